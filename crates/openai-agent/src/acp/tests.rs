//! Clients, endpoints and readers do anything, in any order.

use std::collections::HashMap;
use std::time::UNIX_EPOCH;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::trial::Trial;
use super::{Agent, Effect, MOST_HELD};
use crate::answer::{Ending, StopReason};
use crate::chunk::Kind;
use crate::failure::Failure;
use crate::session::TurnId;

/// What may happen between two looks at the outbox.
#[derive(Clone, Debug)]
enum Step {
    Prompt(usize),
    Cancel(usize),
    CancelRequest(usize),
    Close(usize),
    Thought(usize, String),
    Text(usize, String),
    Complete(usize),
    Fail(usize),
    Write(usize, bool),
    Line(String),
}

fn step() -> impl Strategy<Value = Step> {
    let turn = 0usize..4;
    let text = |longest: usize| {
        (any::<u8>(), 1..longest).prop_map(|(seed, length)| {
            (0..length).map(|index| char::from(b'a' + (seed ^ (index as u8 & 7)) % 3)).collect::<String>()
        })
    };
    prop_oneof![
        3 => turn.clone().prop_map(Step::Prompt),
        1 => turn.clone().prop_map(Step::Cancel),
        1 => turn.clone().prop_map(Step::CancelRequest),
        1 => turn.clone().prop_map(Step::Close),
        3 => (turn.clone(), text(9_000)).prop_map(|(turn, text)| Step::Thought(turn, text)),
        9 => (turn.clone(), prop_oneof![text(4), text(20_000)]).prop_map(|(turn, text)| Step::Text(turn, text)),
        2 => turn.clone().prop_map(Step::Complete),
        1 => turn.prop_map(Step::Fail),
        9 => (0usize..60_000, any::<bool>()).prop_map(|(count, blocked)| Step::Write(count, blocked)),
        1 => "\\PC{0,30}".prop_map(Step::Line),
    ]
}

/// The text of a request's turn.
#[derive(Default)]
struct PromptLog {
    session: String,
    thoughts: String,
    texts: String,
    has_failed: bool,
    is_complete_without_text: bool,
}

/// A client, an endpoint and a writer around an agent; it remembers requests and text.
struct World {
    agent: Agent,
    read: Vec<u8>,
    sessions: Vec<String>,
    /// The running request and turn of each session.
    running: Vec<Option<(u64, TurnId)>>,
    said: HashMap<u64, PromptLog>,
    next_id: u64,
}

impl World {
    fn new() -> Self {
        let agent = Trial::new(&[]).agent;
        let (sessions, running) = (Vec::new(), vec![None; 4]);
        let mut world = Self { agent, read: Vec::new(), sessions, running, said: HashMap::new(), next_id: 0 };
        for _ in 0..4 {
            world.open();
        }
        world
    }

    fn open(&mut self) {
        self.ask("session/new", json!({"cwd": "/"}));
        let lines = std::mem::take(&mut self.read);
        self.write(usize::MAX, false);
        let lines = [lines, std::mem::take(&mut self.read)].concat();
        let last = lines.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).unwrap();
        let answer: Json = serde_json::from_slice(last).unwrap();
        self.sessions.push(answer["result"]["sessionId"].as_str().unwrap().to_owned());
        self.read = lines;
    }

    fn ask(&mut self, method: &str, params: Json) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
        id
    }

    fn line(&mut self, line: &str) {
        self.agent.handle_line(line.as_bytes(), UNIX_EPOCH);
    }

    fn write(&mut self, count: usize, blocked: bool) {
        let count = count.min(self.agent.outbox().len());
        self.read.extend_from_slice(&self.agent.outbox().waiting()[..count]);
        self.agent.wrote(count, blocked);
    }

    fn act(&mut self, step: Step) {
        match step {
            Step::Prompt(slot) => {
                let params = json!({"sessionId": self.sessions[slot], "prompt": [{"type": "text", "text": "hi"}]});
                let is_busy = self.running[slot].is_some();
                let id = self.ask("session/prompt", params);
                let mut started = None;
                while let Some(effect) = self.agent.next_effect() {
                    if let Effect::Start(turn) = effect {
                        started = Some(turn);
                    }
                }
                assert_eq!(started.is_none(), is_busy);
                if let Some(turn) = started {
                    self.running[slot] = Some((id, turn));
                    self.said.insert(id, PromptLog { session: self.sessions[slot].clone(), ..PromptLog::default() });
                }
            }
            Step::Cancel(slot) => {
                self.ask("session/cancel", json!({"sessionId": self.sessions[slot]}));
                self.running[slot] = None;
            }
            Step::CancelRequest(slot) => {
                if let Some((id, _)) = self.running[slot].take() {
                    let params = json!({"requestId": id});
                    self.line(&json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": params}).to_string());
                }
            }
            Step::Close(slot) => {
                self.ask("session/close", json!({"sessionId": self.sessions[slot]}));
                self.running[slot] = None;
                self.open();
                self.sessions.swap_remove(slot);
            }
            Step::Thought(slot, text) => self.say(slot, Kind::Thought, &text),
            Step::Text(slot, text) => self.say(slot, Kind::Text, &text),
            Step::Complete(slot) => {
                if let Some((id, turn)) = self.running[slot].take() {
                    let said = self.said.get_mut(&id).unwrap();
                    said.is_complete_without_text = said.texts.trim().is_empty();
                    let ending = Ending { stop: StopReason::EndTurn, usage: None, wants_tools: false };
                    assert!(self.agent.complete(turn, ending, UNIX_EPOCH).is_none());
                    // Late text for it is dropped.
                    self.agent.delta(turn, Kind::Text, "late");
                }
            }
            Step::Fail(slot) => {
                if let Some((id, turn)) = self.running[slot].take() {
                    self.agent.fail(turn, &Failure::Network("FAILED".to_owned()));
                    self.said.get_mut(&id).unwrap().has_failed = true;
                }
            }
            Step::Write(count, blocked) => self.write(count, blocked),
            Step::Line(line) => self.line(&line),
        }
        while self.agent.next_effect().is_some() {}
        self.agent.check_invariants();
    }

    fn say(&mut self, slot: usize, kind: Kind, text: &str) {
        let Some((id, turn)) = self.running[slot] else { return };
        // A turn that is paused reads nothing.
        if self.agent.is_paused(turn) {
            return;
        }
        self.agent.delta(turn, kind, text);
        let said = self.said.get_mut(&id).unwrap();
        match kind {
            Kind::Thought => said.thoughts.push_str(text),
            Kind::Text => said.texts.push_str(text),
        }
        let turn = &self.agent.turns[&turn];
        assert!(turn.said.held() < MOST_HELD + text.len(), "what is held is bounded");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_request_is_answered_once_after_all_its_text_whatever_happens(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new();
        for step in steps {
            world.act(step);
        }
        world.agent.cancel_all();
        while !world.agent.outbox().is_empty() {
            world.write(usize::MAX, false);
        }
        world.agent.check_invariants();
        prop_assert!(world.agent.is_idle());

        // Updates of a session between two answers to its prompts belong to the latter.
        let mut received: HashMap<String, (String, String)> = HashMap::new();
        let mut answered: HashMap<u64, usize> = HashMap::new();
        let text = String::from_utf8(world.read).unwrap();
        for line in text.lines() {
            let line: Json = serde_json::from_str(line).unwrap();
            if line["method"] == "session/update" {
                let update = &line["params"]["update"];
                if update["sessionUpdate"] == "session_info_update" {
                    continue;
                }
                let received = received.entry(line["params"]["sessionId"].as_str().unwrap().to_owned()).or_default();
                let text = update["content"]["text"].as_str().unwrap();
                match update["sessionUpdate"].as_str().unwrap() {
                    "agent_thought_chunk" => received.0.push_str(text),
                    _ => received.1.push_str(text),
                }
            } else if let Some(id) = line["id"].as_u64() {
                *answered.entry(id).or_default() += 1;
                if let Some(said) = world.said.get(&id) {
                    let (thoughts, texts) = received.remove(&said.session).unwrap_or_default();
                    prop_assert_eq!(&thoughts, &said.thoughts);
                    prop_assert!(texts.starts_with(&said.texts), "all that was said is sent before the answer");
                    prop_assert_eq!(texts[said.texts.len()..].contains("FAILED"), said.has_failed);
                    let added = texts[said.texts.len()..].trim_start();
                    let is_of_no_text = added == "The endpoint's answer has no text.";
                    prop_assert_eq!(is_of_no_text, said.is_complete_without_text);
                    prop_assert!(said.has_failed || is_of_no_text || added.is_empty());
                }
            }
        }
        prop_assert!(received.is_empty(), "nothing is said after the answer");
        for id in 1..=world.next_id {
            prop_assert_eq!(answered.get(&id), Some(&1), "request {}", id);
        }
    }
}
