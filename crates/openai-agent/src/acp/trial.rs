//! An agent in a test: requests go in, lines and effects come out, and the test sets the clock.

use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};

use super::{Agent, Effect, ToStore};
use crate::answer::{Ending, StopReason};
use crate::chunk::Kind;
use crate::config::{Config, Level};
use crate::dialect::Dialect;
use crate::history::{Entry, Header, Stored};
use crate::session::TurnId;

/// An agent and its environment.
pub(crate) struct Trial {
    pub(crate) agent: Agent,
    /// Seconds since 1970.
    pub(crate) seconds: u64,
    /// Effects of the agent that the test has not read.
    effects: Vec<Effect>,
    next_id: u64,
}

impl Trial {
    /// An agent with these variables.
    pub(crate) fn new(variables: &[(&str, &str)]) -> Self {
        Self::with(variables, |_| ())
    }

    /// An agent with these variables and changed limits.
    pub(crate) fn with(variables: &[(&str, &str)], limit: impl FnOnce(&mut Config)) -> Self {
        let mut count = 0u128;
        let dice = move || {
            count += 1;
            count.to_be_bytes()
        };
        let mut env = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let mut config = Config::from_env(&mut env).unwrap();
        limit(&mut config);
        let agent = Agent::new(Rc::new(config), Box::new(dice));
        Self { agent, seconds: 0, effects: Vec::new(), next_id: 0 }
    }

    pub(crate) fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.seconds)
    }

    /// Sends a request and returns the lines since the last call, without titles.
    pub(crate) fn ask(&mut self, method: &str, params: Json) -> Vec<Json> {
        self.next_id += 1;
        let line = json!({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params}).to_string();
        let now = self.now();
        self.agent.handle_line(line.as_bytes(), now);
        self.lines().into_iter().filter(|line| title(line).is_none()).collect()
    }

    /// Sends a request that is answered at once.
    pub(crate) fn answer(&mut self, method: &str, params: Json) -> Json {
        let mut lines = self.ask(method, params);
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines.remove(0)
    }

    /// All lines since the last call.
    pub(crate) fn lines(&mut self) -> Vec<Json> {
        self.agent.check_invariants();
        while let Some(effect) = self.agent.next_effect() {
            self.effects.push(effect);
        }
        let bytes = self.agent.outbox().waiting().to_vec();
        self.agent.wrote(bytes.len(), false);
        bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }

    /// The effects since the last call.
    pub(crate) fn effects(&mut self) -> Vec<Effect> {
        while let Some(effect) = self.agent.next_effect() {
            self.effects.push(effect);
        }
        std::mem::take(&mut self.effects)
    }

    /// The log since the last call; other effects are dropped.
    pub(crate) fn log(&mut self) -> Vec<(Level, String)> {
        let effects = self.effects().into_iter();
        let logged = effects.filter_map(|effect| match effect {
            Effect::Log(level, message) => Some((level, message)),
            _ => None,
        });
        logged.collect()
    }

    /// A new session.
    pub(crate) fn session(&mut self) -> String {
        let answer = self.answer("session/new", json!({"cwd": "/"}));
        answer["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Begins a prompt.
    pub(crate) fn begin(&mut self, session: &str, text: &str) -> TurnId {
        let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]});
        self.lines();
        let lines = self.ask("session/prompt", prompt);
        assert!(lines.is_empty(), "{lines:?}");
        let starts = self.effects.iter().rev();
        let start = starts.clone().find_map(|effect| match effect {
            Effect::Start(turn) => Some(*turn),
            _ => None,
        });
        start.unwrap()
    }

    /// Ends a turn with this text.
    pub(crate) fn end(&mut self, turn: TurnId, text: &str) -> Option<ToStore> {
        self.agent.delta(turn, Kind::Text, text);
        let ending = Ending { stop: StopReason::EndTurn, usage: None, wants_tools: false };
        let now = self.now();
        let to_store = self.agent.complete(turn, ending, now);
        self.agent.check_invariants();
        to_store
    }

    /// A whole turn of an agent that keeps no history.
    pub(crate) fn say(&mut self, session: &str, text: &str) {
        let turn = self.begin(session, text);
        assert!(self.end(turn, "fine").is_none());
        assert!(self.lines().last().is_some_and(|line| line["result"]["stopReason"] == "end_turn"));
    }

    /// The request for a turn: the first characters of each message.
    pub(crate) fn asked(&self, turn: TurnId) -> Vec<String> {
        let body = self.agent.request_body(turn, Dialect::default()).unwrap();
        let body: Json = serde_json::from_slice(&body).unwrap();
        let contents = body["messages"].as_array().unwrap().iter().map(|message| message["content"].as_str().unwrap());
        contents.map(|content| content.chars().take(8).collect()).collect()
    }
}

/// The session title in a line.
pub(crate) fn title(line: &Json) -> Option<&str> {
    let update = &line["params"]["update"];
    (update["sessionUpdate"] == "session_info_update").then(|| update["title"].as_str().unwrap())
}

/// A session as stored in a file: the user's message of each turn, all answered "fine" by this model.
pub(crate) fn stored(session_id: &str, model: &str, said: &[&str]) -> Stored {
    let header = Header { version: 1, session_id: session_id.into(), cwd: "/".into(), model: model.into() };
    let message = |role: &str, text: &str| json!({"role": role, "content": text}).to_string();
    let entries = said.iter().map(|text| Entry {
        user: message("user", text),
        assistant: message("assistant", "fine"),
        model: model.into(),
        usage: None,
        title: Some(said[0].chars().take(8).collect()),
    });
    Stored { header, entries: entries.collect(), updated: UNIX_EPOCH, damage: None }
}
