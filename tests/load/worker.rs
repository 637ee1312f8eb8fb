//! An agent that serves many clients in one process and distinguishes them only by their messages: it has ten session
//! names, and a request for one waits while all are taken. Its own requests are numbered from 0. It speaks late: after
//! some more prompts it says all that it can say of one that it has answered, which no client may hear.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufWriter, Write};

use serde_json::{Value, json};

use crate::client::UPDATES;

/// So many prompts later it speaks of one that it has answered.
const LATER: usize = 8;

#[derive(Default)]
struct Agent {
    free: VecDeque<String>,
    waiting: VecDeque<(Value, Value)>,
    next_id: u64,
    /// Prompts that wait for a permission, by the id of its request.
    asked: HashMap<u64, (Value, Value)>,
    /// Prompts that it has answered, the oldest first.
    over: VecDeque<(Value, Value)>,
}

/// Serves until stdin ends.
pub fn run() {
    let mut agent = Agent { free: (0..10).map(|name: u32| name.to_string()).collect(), ..Agent::default() };
    let mut stdin = std::io::BufReader::with_capacity(1 << 16, std::io::stdin());
    let mut stdout = BufWriter::with_capacity(1 << 16, std::io::stdout());
    let mut line = String::new();
    while stdin.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        let message: Value = serde_json::from_str(&line).expect("the bus passes JSON");
        agent.handle(message, &mut |answer| writeln!(stdout, "{answer}").expect("the bus reads"));
        line.clear();
        if stdin.buffer().is_empty() {
            stdout.flush().expect("the bus reads");
        }
    }
}

impl Agent {
    fn handle(&mut self, message: Value, say: &mut dyn FnMut(Value)) {
        let (id, params) = (message["id"].clone(), message["params"].clone());
        let whose = params["whose"].clone();
        match message["method"].as_str() {
            Some("initialize") => {
                say(json!({"jsonrpc": "2.0", "id": id, "result": {"protocolVersion": 1, "whose": whose}}))
            }
            Some("session/new") => {
                self.waiting.push_back((id, whose));
                self.give_names(say);
            }
            Some("session/close") => {
                say(json!({"jsonrpc": "2.0", "id": id, "result": {"whose": whose}}));
                self.free.push_back(params["sessionId"].as_str().expect("a name").to_owned());
                self.give_names(say);
            }
            Some("session/prompt") => {
                let session = &params["sessionId"];
                for number in 0..UPDATES {
                    let params = json!({"sessionId": session, "whose": whose, "number": number});
                    say(json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
                }
                let asks = json!({"sessionId": session, "whose": whose});
                say(
                    json!({"jsonrpc": "2.0", "id": self.next_id, "method": "session/request_permission", "params": asks}),
                );
                self.asked.insert(self.next_id, (id, whose));
                self.next_id += 1;
            }
            Some(other) => say(json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": other}})),
            // What it has asked late was refused.
            None if id.is_string() => assert!(message["error"].is_object(), "a late question is answered: {message}"),
            None => {
                let answered = id.as_u64().and_then(|id| self.asked.remove(&id));
                let (id, whose) = answered.unwrap_or_else(|| panic!("an answer without a request: {message}"));
                // Another client's permission ends this prompt with an error, which its client reports.
                let answer = if message["result"]["whose"] == whose {
                    json!({"jsonrpc": "2.0", "id": id, "result": {"stopReason": "end_turn", "whose": whose}})
                } else {
                    json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": message.to_string()}})
                };
                say(answer);
                self.over.push_back((id, whose));
                if self.over.len() > LATER
                    && let Some((id, whose)) = self.over.pop_front()
                {
                    tell_late(&id, &whose, say);
                }
            }
        }
    }

    fn give_names(&mut self, say: &mut dyn FnMut(Value)) {
        while !self.free.is_empty()
            && let Some((id, whose)) = self.waiting.pop_front()
        {
            let name = self.free.pop_front();
            say(json!({"jsonrpc": "2.0", "id": id, "result": {"sessionId": name, "whose": whose}}));
        }
    }
}

/// All that it can say of a request that it has answered.
fn tell_late(id: &Value, whose: &Value, say: &mut dyn FnMut(Value)) {
    let progress = json!({"progressToken": id, "progress": 1, "whose": whose});
    say(json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}));
    let asks = json!({"requestId": id, "whose": whose});
    say(json!({"jsonrpc": "2.0", "id": format!("late {id}"), "method": "elicitation/create", "params": asks}));
    let updated = json!({"_meta": {"io.modelcontextprotocol/subscriptionId": id}, "whose": whose});
    say(json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": updated}));
    say(json!({"jsonrpc": "2.0", "id": id, "result": {"stopReason": "late", "whose": whose}}));
}
