//! The workers of ACP in the simulation: they begin and load sessions, report each prompt's progress, ask for permissions,
//! and answer in any order. What they say names the client that it is for (`who`), so that any other one notices.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::testing::Random;

/// A request that an agent has read.
#[derive(Debug)]
struct Work {
    id: Value,
    params: Value,
    result: Value,
    /// Updates that were sent, of so many.
    sent_steps: u64,
    steps: u64,
    /// It asks for a permission after the first half of them.
    asks: bool,
    /// The number of its question, while that is open.
    question: Option<u64>,
}

impl Work {
    fn session(&self) -> Option<&str> {
        self.params["sessionId"].as_str()
    }
}

#[derive(Default)]
pub(super) struct Agent {
    work: Vec<Work>,
    /// Open questions: whom they were put to.
    questions: BTreeMap<u64, Value>,
    count: u64,
    /// The connections that it has served.
    visits: BTreeSet<(u64, u64)>,
}

impl Agent {
    /// The worker with this number has read a line. What it answers at once is returned.
    pub(super) fn takes_in(&mut self, at: usize, line: &Value, is_alone: bool) -> Option<Value> {
        let (id, params) = (&line["id"], &line["params"]);
        let Some(method) = line["method"].as_str() else {
            let question = id.as_u64().and_then(|id| self.questions.remove(&id));
            if let Some(who) = question.filter(|_| line["result"].is_object()) {
                assert_eq!(line["result"]["who"], who, "the worker {at} is answered by another: {line}");
            }
            for work in self.work.iter_mut().filter(|work| work.question.is_some() && work.question == id.as_u64()) {
                work.question = None;
            }
            return None;
        };
        if let (Some(who), Some(visit)) = (params["who"].as_u64(), params["visit"].as_u64()) {
            self.visits.insert((who, visit));
            assert!(!is_alone || self.visits.len() == 1, "the worker {at} serves {:?}", self.visits);
        }
        if let Some(session) = params["sessionId"].as_str() {
            let owner = session.split('.').next();
            assert_eq!(
                owner,
                params["who"].as_u64().map(|who| who.to_string()).as_deref(),
                "another's session: {line}"
            );
        }
        let (who, number) = (&params["who"], &params["number"]);
        let text = "x".repeat(params["length"].as_u64().unwrap_or(0) as usize);
        let (result, steps, asks) = match method {
            "session/cancel" => {
                let its = self.work.iter_mut().filter(|work| work.session() == params["sessionId"].as_str());
                for work in its.filter(|work| work.result["stopReason"].is_string()) {
                    (work.steps, work.asks, work.question) = (work.sent_steps, false, None);
                    work.result["stopReason"] = json!("cancelled");
                }
                return None;
            }
            _ if id.is_null() => return None,
            "initialize" => (json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}), 0, false),
            "session/new" => {
                (json!({"who": who, "number": number, "sessionId": format!("{who}.{number}.{at}")}), 0, false)
            }
            "session/prompt" => {
                let result = json!({"who": who, "number": number, "text": text, "stopReason": "end_turn"});
                (result, params["steps"].as_u64().unwrap_or(0), params["asks"] == true)
            }
            "session/load" | "session/list" => {
                (json!({"who": who, "number": number, "text": text}), params["steps"].as_u64().unwrap_or(0), false)
            }
            _ => return Some(json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}})),
        };
        self.work.push(Work {
            id: id.clone(),
            params: params.clone(),
            result,
            sent_steps: 0,
            steps,
            asks,
            question: None,
        });
        None
    }

    /// Says something, if there is anything that needs no answer first.
    pub(super) fn says(&mut self, at: usize, random: &mut Random) -> Option<Value> {
        let free: Vec<usize> = (0..self.work.len()).filter(|at| self.work[*at].question.is_none()).collect();
        if free.is_empty() {
            return None;
        }
        let next = *random.pick(&free);
        let work = &mut self.work[next];
        let (who, number, session) = (&work.params["who"], &work.params["number"], &work.params["sessionId"]);
        if work.asks && work.sent_steps >= work.steps / 2 {
            work.asks = false;
            self.count += 1;
            let id = self.count * 1000 + at as u64;
            work.question = Some(id);
            self.questions.insert(id, who.clone());
            let params = json!({"sessionId": session, "who": who, "number": number});
            return Some(json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params}));
        }
        if work.sent_steps < work.steps {
            work.sent_steps += 1;
            let text = "y".repeat(random.range(0..3) * random.range(0..9000));
            let update = json!({"who": who, "number": number, "step": work.sent_steps, "text": text});
            let params = json!({"sessionId": session, "update": update});
            return Some(json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
        }
        let Work { id, result, .. } = self.work.remove(next);
        Some(json!({"jsonrpc": "2.0", "id": id, "result": result}))
    }

    /// What it works on, for a world that hangs.
    pub(super) fn works_on(&self) -> String {
        let show = |work: &Work| format!("{} of {} ({:?})", work.id, work.params["number"], work.question);
        self.work.iter().map(show).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn has_work(&self) -> bool {
        self.work.iter().any(|work| work.question.is_none())
    }
}
