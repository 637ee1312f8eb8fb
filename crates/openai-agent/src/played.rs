//! Plays each of the bodies whole, byte by byte, and cut in two at every place.

use super::acp::trial::Trial;
use super::acp::{Agent, Effect};
use super::answer::{Answer, Piece};
use super::bodies::{Body, Outcome, URL, bodies};
use super::dialect::Dialect;
use super::session::TurnId;
use serde_json::{Value as Json, json};
use std::time::UNIX_EPOCH;

struct World {
    agent: Agent,
    session: String,
}

impl World {
    fn new() -> Self {
        Self { agent: Trial::new(&[]).agent, session: String::new() }
    }

    fn open(&mut self) {
        self.ask("session/new", json!({"cwd": "/"}));
        self.session = self.lines()[0]["result"]["sessionId"].as_str().unwrap().to_owned();
    }

    fn close(&mut self) {
        self.ask("session/close", json!({"sessionId": self.session}));
        self.lines();
    }

    fn ask(&mut self, method: &str, params: Json) {
        let line = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        self.agent.handle_line(line.as_bytes(), UNIX_EPOCH);
    }

    fn prompt(&mut self, text: &str) -> TurnId {
        let params = json!({"sessionId": self.session, "prompt": [{"type": "text", "text": text}]});
        self.ask("session/prompt", params);
        loop {
            match self.agent.next_effect() {
                Some(Effect::Start(turn)) => return turn,
                Some(_) => {}
                None => panic!("no turn was started"),
            }
        }
    }

    fn lines(&mut self) -> Vec<Json> {
        let text = String::from_utf8(self.agent.outbox().waiting().to_vec()).unwrap();
        self.agent.wrote(text.len(), false);
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Plays an answer that arrives in these pieces.
fn play(world: &mut World, body: &Body, pieces: &[&[u8]]) -> Outcome {
    world.open();
    let turn = world.prompt("hi");
    let (mut answer, mut log) = (Answer::new(1 << 20), Vec::new());
    let World { agent, .. } = world;
    let mut sink = |piece: Piece<'_>| match piece {
        Piece::Delta(kind, text) => agent.delta(turn, kind, text),
        Piece::Skipped(data) => log.push(String::from_utf8_lossy(data).into_owned()),
    };
    for piece in pieces {
        answer.push(piece, &mut sink);
        if answer.is_over() {
            break;
        }
    }
    if body.trouble.is_none() {
        answer.end(&mut sink);
    }
    match answer.finish(body.trouble.map(str::to_owned), body.content_type, &mut sink) {
        Ok(ending) => assert!(agent.complete(turn, ending, UNIX_EPOCH).is_none()),
        Err(failure) => agent.fail(turn, &failure),
    }
    let mut lines = world.lines();
    let stop = lines.pop().unwrap()["result"]["stopReason"].as_str().unwrap().to_owned();
    let updates = lines.iter().map(|line| &line["params"]["update"]);
    let updates = updates.filter(|update| update["sessionUpdate"] != "session_info_update").map(|update| {
        let text = update["content"]["text"].as_str().unwrap_or_default().replace(URL, "U");
        match update["sessionUpdate"].as_str().unwrap() {
            "agent_message_chunk" => text,
            "agent_thought_chunk" => format!("~{text}"),
            "usage_update" => format!("#{}", update["used"]),
            other => panic!("{other}"),
        }
    });
    let updates = updates.collect();
    let next = world.prompt("next");
    let dialect = Dialect::default();
    let request: Json = serde_json::from_slice(&world.agent.request_body(next, dialect).unwrap()).unwrap();
    let next = request["messages"].as_array().unwrap().iter().map(|message| message["content"].clone()).collect();
    world.close();
    Outcome { updates, stop, next, log }
}

#[test]
fn every_body_has_its_expected_result_with_any_cut() {
    let bodies = bodies();
    assert!(bodies.len() >= 120, "{} bodies", bodies.len());
    let mut seen = std::collections::HashSet::new();
    for body in &bodies {
        assert!(seen.insert((&body.bytes, body.trouble, body.content_type)), "{} is there twice", body.whose);
    }
    // Several in parallel, each with its own agent.
    let parts = bodies.chunks(bodies.len().div_ceil(4));
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let parts: Vec<_> = parts.map(|bodies| scope.spawn(|| play_all(bodies))).collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} of {} bodies:\n{}", wrong.len(), bodies.len(), wrong.join("\n"));
}

/// Plays these bodies in every way, and returns those with an unexpected result.
fn play_all(bodies: &[Body]) -> Vec<String> {
    let (mut world, mut wrong) = (World::new(), Vec::new());
    for body in bodies {
        let outcome = play(&mut world, body, &[&body.bytes]);
        if !body.is_met_by(&outcome) {
            wrong.push(format!("{}: {}\n    {outcome:?}", body.whose, body.bytes.escape_ascii()));
            continue;
        }
        let bytes: Vec<&[u8]> = body.bytes.chunks(1).collect();
        assert_eq!(play(&mut world, body, &bytes), outcome, "{} byte by byte", body.whose);
        for cut in 1..body.bytes.len() {
            let (left, right) = body.bytes.split_at(cut);
            assert_eq!(play(&mut world, body, &[left, right]), outcome, "{} cut at {cut}", body.whose);
        }
    }
    wrong
}
