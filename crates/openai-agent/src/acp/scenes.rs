//! Sessions on disk, and what happens when there are too many or they hold too much.

use std::time::UNIX_EPOCH;

use serde_json::{Value as Json, json};

use super::Effect;
use super::trial::{Trial, stored, title};
use crate::chunk::Kind;
use crate::config::Level;
use crate::failure::Failure;
use crate::history::{Store, Stored};

const HISTORY: (&str, &str) = ("OPENAI_HISTORY_DIR", "/h");

/// Loads a session from disk and returns all lines written.
fn load(trial: &mut Trial, found: Stored) -> Vec<Json> {
    let session_id = found.header.session_id.clone();
    assert!(trial.ask("session/load", json!({"sessionId": session_id, "cwd": "/"})).is_empty());
    let load = trial.effects().into_iter().find_map(|effect| match effect {
        Effect::Load(load) => Some(load),
        _ => None,
    });
    trial.agent.loaded(load.unwrap(), Ok(Some(found)));
    trial.lines()
}

#[test]
fn a_turn_that_cannot_be_stored_is_reported_beside_its_answer() {
    let mut trial = Trial::new(&[HISTORY]);
    let session = trial.session();
    let turn = trial.begin(&session, "hi");
    let to_store = trial.end(turn, "the answer").unwrap();
    assert_eq!((to_store.header.session_id, to_store.entry.model), (session.clone(), "gpt-4o".to_owned()));
    trial.agent.stored(turn, Err("no space".to_owned()));
    let lines = trial.lines();
    let updates: Vec<&Json> = lines.iter().map(|line| &line["params"]["update"]).collect();
    assert_eq!(updates[0]["content"]["text"], "the answer");
    let words = "This turn could not be stored: no space. It is sent with your next prompts, and is lost when the session \
                 ends.";
    assert_eq!(updates[1]["content"]["text"], format!("\n\n{words}"));
    assert_ne!(updates[0]["messageId"], updates[1]["messageId"], "it is not taken for the end of the answer");
    assert_eq!(lines[2]["result"]["stopReason"], "end_turn");
    let log = trial.log();
    assert_eq!(log, [(Level::Error, format!("Session {session}: a turn could not be stored: no space."))]);
    let turn = trial.begin(&session, "next");
    assert_eq!(trial.asked(turn), ["hi", "the answ", "next"], "of the words none is sent to the model");
}

#[test]
fn a_session_keeps_to_the_models_that_are_offered() {
    for (models, expected) in [("a,b", "c"), ("a,old", "old"), ("", "old")] {
        let mut trial = Trial::new(&[HISTORY, ("OPENAI_MODELS", models), ("OPENAI_MODEL", "c")]);
        let lines = load(&mut trial, stored("s", "old", &["hi"]));
        let result = &lines.last().unwrap()["result"];
        assert_eq!(result["configOptions"][0]["currentValue"], expected, "{models}");
        let turn = trial.begin("s", "next");
        assert_eq!(trial.agent.model(turn).as_deref(), Some(expected));
        let words = "Session s: it continues with c, for old is not in OPENAI_MODELS.".to_owned();
        let logged = if expected == "c" { vec![(Level::Warn, words)] } else { vec![] };
        assert_eq!(trial.log(), logged);
    }
}

#[test]
fn a_title_is_sent_when_it_is_new_and_when_a_session_is_loaded() {
    let mut trial = Trial::new(&[HISTORY]);
    let session = trial.session();
    let prompt = |text: &str| json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]});
    let mut titles = |text: &str| {
        let line = json!({"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": prompt(text)});
        trial.agent.handle_line(line.to_string().as_bytes(), UNIX_EPOCH);
        let lines = trial.lines();
        trial.ask("session/cancel", json!({"sessionId": session}));
        lines.iter().filter_map(title).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(titles(" \n").is_empty(), "a prompt without words names nothing");
    assert_eq!(titles("Mend the \"roof\"\nplease"), ["Mend the \"roof\""]);
    assert!(titles("again").is_empty());

    let lines = load(&mut trial, stored("s", "m", &["first", "second"]));
    assert_eq!(lines.iter().filter_map(title).collect::<Vec<_>>(), ["first"]);
    let update = lines.iter().find(|line| title(line).is_some()).unwrap();
    assert_eq!(update["params"]["update"]["updatedAt"], "1970-01-01T00:00:00Z");
    assert!(lines.last().unwrap().get("result").is_some(), "the answer is the last line");
}

#[test]
fn damage_on_disk_is_logged() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), usize::MAX).unwrap();
    let found = stored("s", "m", &["one", "two"]);
    store.append(&found.header, &found.entries[0]).unwrap();
    let file = dir.path().join("s.jsonl");
    let text = std::fs::read_to_string(&file).unwrap() + "torn\n";
    std::fs::write(&file, text).unwrap();
    store.append(&found.header, &found.entries[1]).unwrap();

    let mut trial = Trial::new(&[HISTORY]);
    load(&mut trial, store.load("s").unwrap().unwrap());
    let words = "line 3 cannot be read and is passed over; the other turns are kept";
    assert_eq!(trial.log(), [(Level::Warn, format!("Session s: {}: {words}.", file.display()))]);
    let turn = trial.begin("s", "three");
    assert_eq!(trial.asked(turn), ["one", "fine", "two", "fine", "three"]);
}

fn close(session: &str) -> Json {
    json!({ "sessionId": session })
}

#[test]
fn the_least_recently_used_session_makes_room_for_a_new_one() {
    let mut trial = Trial::with(&[], |config| config.limits.sessions = 2);
    let sessions = [trial.session(), trial.session()];
    let turn = trial.begin(&sessions[0], "hi");
    let third = trial.session();
    let ended = format!("Session {} has ended: it was the longest unused one of 2.", sessions[1]);
    assert_eq!(trial.log(), [(Level::Info, ended)], "in the one before it a prompt runs");
    let error = trial.answer("session/close", close(&sessions[1]))["error"].clone();
    assert_eq!((&error["code"], &error["data"]["sessionId"]), (&json!(-32002), &json!(sessions[1])));
    trial.begin(&third, "hi");
    let refused = trial.answer("session/new", json!({"cwd": "/"}));
    assert!(refused["error"]["message"].as_str().unwrap().contains("all of them are busy"), "{refused}");
    trial.end(turn, "fine");
    trial.lines();
    trial.session();
}

/// Room for about three turns of [`long`].
fn small() -> Trial {
    Trial::with(&[], |config| config.limits.memory = 36_000)
}

/// Ten thousand characters that begin with `name`.
fn long(name: &str) -> String {
    format!("{name:<8}{}", "x".repeat(10_000))
}

#[test]
fn the_oldest_turns_of_the_least_recently_used_session_are_forgotten_first() {
    let mut trial = small();
    let (left, right) = (trial.session(), trial.session());
    trial.say(&left, &long("left 1"));
    trial.say(&right, &long("right 1"));
    trial.say(&left, &long("left 2"));
    assert_eq!(trial.log(), []);
    trial.say(&left, &long("left 3"));
    let words = "the oldest turns were forgotten, for all conversations together take more than 0 MiB. What is on the \
                 disk comes back with session/load.";
    assert_eq!(trial.log(), [(Level::Warn, format!("Session {right}: {words}"))], "it was used before the other");
    trial.say(&right, &long("right 2"));
    assert_eq!(trial.log().len(), 1, "now it is the other's turn");
    trial.say(&right, &long("right 3"));
    assert_eq!(trial.log(), [], "it is logged once");
    let turn = trial.begin(&left, "left 4");
    assert_eq!(trial.asked(turn), ["left 3  ", "fine", "left 4"]);
    let turn = trial.begin(&right, "right 4");
    assert_eq!(trial.asked(turn), ["right 2 ", "fine", "right 3 ", "fine", "right 4"]);
}

#[test]
fn answers_on_their_way_and_messages_without_an_answer_count() {
    let mut trial = small();
    let (quiet, busy) = (trial.session(), trial.session());
    trial.say(&quiet, &long("quiet 1"));
    let turn = trial.begin(&busy, "hi");
    for _ in 0..300 {
        trial.agent.delta(turn, Kind::Text, &"y".repeat(100));
    }
    assert_eq!(trial.log().len(), 1, "30,000 bytes of an answer");
    trial.lines();
    trial.ask("session/cancel", close(&busy));
    let asking = trial.begin(&quiet, "quiet 2");
    assert_eq!(trial.asked(asking), ["quiet 2"]);
    trial.end(asking, "fine");

    for index in 0..4 {
        let turn = trial.begin(&busy, &long(&format!("busy {index}")));
        trial.agent.fail(turn, &Failure::Network("x".into()));
        trial.lines();
    }
    let turn = trial.begin(&quiet, "quiet 3");
    assert_eq!(trial.asked(turn), ["quiet 3"], "40,000 bytes of messages");
    assert_eq!(trial.log().len(), 1, "of those the oldest is forgotten too");
}

#[test]
fn words_that_are_kept_as_long_as_their_session_have_a_limit() {
    let mut trial = Trial::new(&[]);
    let session = trial.session();
    for (method, params) in [
        ("session/new", json!({"cwd": "/".repeat(4097)})),
        ("session/set_model", json!({"sessionId": session, "modelId": "m".repeat(4097)})),
        ("session/set_config_option", json!({"sessionId": session, "configId": "model", "value": "s".repeat(4097)})),
    ] {
        assert_eq!(trial.answer(method, params)["error"]["code"], -32602, "{method}");
    }
}
