//! The shutdown loses nothing silently: each request is answered or refused, with its id verbatim.

use std::collections::BTreeMap;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Setup, worker};

const REQUESTS: usize = 400;

/// A worker that takes 20 ms per line, and room for a few lines before it.
fn slow() -> Setup {
    Setup::new([worker("slow", 1, &["--slow", "20000"])]).limit("max_output_queue", 8192)
}

/// How often each request was answered. There is nothing else before the end.
fn answers(client: &mut Client) -> BTreeMap<usize, usize> {
    let mut answers = BTreeMap::new();
    for line in client.rest().lines() {
        let answer: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        if answer["result"].is_null() {
            let reason = answer["error"]["data"]["reason"].as_str().unwrap_or_else(|| panic!("no reason: {line}"));
            assert!(["shutting_down", "worker_exited"].contains(&reason), "{line}");
        }
        *answers.entry(answer["id"].as_u64().expect("a number") as usize).or_default() += 1;
    }
    answers
}

#[test]
fn every_request_that_was_sent_before_the_end_is_answered_or_refused_once() {
    for half_closed in [false, true] {
        // As much as the sockets usually hold, and more than the daemon accepts before its worker reads.
        for (setup, size) in [(slow(), 2000), (slow().unix(), 900)] {
            let mut daemon = setup.start();
            let mut client = daemon.connect();
            client.request(0, "m", json!({}));
            // In one write: a Unix socket holds less of many small ones.
            let request = |id| format!("{}\n", json!({ "id": id, "method": "m", "params": "x".repeat(size) }));
            client.send_and_hear((1..=REQUESTS).map(request).collect::<String>().as_bytes());
            if half_closed {
                client.half_close();
            }
            client.answer(1);
            daemon.signal(Signal::TERM);
            let got = answers(&mut client);
            let missing: Vec<usize> = (2..=REQUESTS).filter(|id| got.get(id) != Some(&1)).collect();
            assert!(missing.is_empty(), "half-closed {half_closed}: not answered once: {missing:?}");
            daemon.ends_well();
        }
    }
}

#[test]
fn requests_of_many_clients_that_wait_for_their_turn_are_all_answered_or_refused_at_the_end() {
    let mut daemon = slow().start();
    let mut clients: Vec<Client> = (0..8).map(|_| daemon.connect()).collect();
    clients[0].request(0, "m", json!({}));
    // Their answers are short: they are not read before the last request was sent.
    let fill = "x".repeat(4000);
    let request = |id| format!("{}\n", json!({ "id": id, "method": "who", "params": fill }));
    for client in &mut clients {
        client.send_and_hear((1..=50).map(request).collect::<String>().as_bytes());
    }
    clients[0].answer(1);
    daemon.signal(Signal::TERM);
    for (number, client) in clients.iter_mut().enumerate() {
        let first = if number == 0 { 2 } else { 1 };
        let expected: BTreeMap<usize, usize> = (first..=50).map(|id| (id, 1)).collect();
        assert_eq!(answers(client), expected, "client {number}");
    }
    daemon.ends_well();
}

/// Ids with more than one spelling, no two of the same value.
const TOKENS: [&str; 12] = [
    "-1.5",
    r#""\u0066""#,
    "1.0",
    "1e2",
    "-0",
    "20E-1",
    "123456789012345678901234567890",
    r#""\ud800""#,
    r#""\/\u00e9é""#,
    r#""""#,
    "7",
    "2000000001",
];

#[test]
fn an_error_repeats_the_id_as_its_client_wrote_it_when_a_request_is_refused_at_once() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (mut owner, mut client) = (daemon.connect(), daemon.connect());
    owner.request_in("owners", 1, "m", json!({}));
    for id in TOKENS {
        for (members, reason) in [
            (r#""pool":"none""#, "unknown_pool"),
            (r#""sessionId":"owners""#, "session_denied"),
            (r#""params":{"sessionId":"owners"}"#, "session_denied"),
        ] {
            client.send_line(&format!(r#"{{"id":{id},"method":"m",{members}}}"#));
            assert_eq!(client.reply(id).error["data"]["reason"], reason);
        }
    }
    daemon.stop();
}

#[test]
fn an_error_repeats_the_id_as_its_client_wrote_it_when_a_pending_request_gets_no_answer() {
    for (method, reason) in [("exit", "worker_exited"), ("nonsense", "worker_exited"), ("term", "shutting_down")] {
        let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
        let mut client = daemon.connect();
        for id in TOKENS {
            client.send_line(&format!(r#"{{"id":{id},"method":"hold","params":{{}}}}"#));
        }
        client.request("sync", "who", json!({}));
        match method {
            "exit" => client.send(&json!({ "method": "exit", "params": { "code": 1 } })),
            "nonsense" => client.send(&json!({ "method": "write", "params": { "text": "nonsense\n" } })),
            _ => daemon.signal(Signal::TERM),
        }
        for id in TOKENS {
            assert_eq!(client.reply(id).error["data"]["reason"], reason);
        }
        if method == "term" {
            daemon.ends_well();
        } else {
            daemon.stop();
        }
    }
}

#[test]
fn an_error_repeats_the_id_as_its_client_wrote_it_when_an_answer_takes_too_long_or_is_not_wanted() {
    let mut pool = worker("agents", 1, &[]);
    pool["request_timeout_sec"] = 1.into();
    let mut daemon = Setup::new([pool]).start();
    let mut client = daemon.connect();
    // All at once, so that all time out before their worker is taken for hung.
    let lines = TOKENS.map(|id| format!("{{\"id\":{id},\"method\":\"hold\",\"params\":{{}}}}\n"));
    client.send_bytes(lines.concat().as_bytes());
    for id in TOKENS {
        assert_eq!(client.reply(id).error["data"]["reason"], "timeout");
    }
    daemon.stop();
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    for id in TOKENS {
        client.send_line(&format!(r#"{{"id":{id},"method":"hold","params":{{"stubborn":true}}}}"#));
        client.send_line(&format!(r#"{{"method":"$/cancelRequest","params":{{"id":{id}}}}}"#));
    }
    for id in TOKENS {
        assert_eq!(client.reply(id).error["data"]["reason"], "cancelled");
    }
    daemon.stop();
}

#[test]
fn an_answer_repeats_the_id_as_its_client_wrote_it_whatever_the_worker_makes_of_it() {
    let mut daemon = Setup::new([worker("agents", 1, &["--doubles"])]).start();
    let mut client = daemon.connect();
    // A plain integer or text passes verbatim, and comes back as the worker writes it.
    for id in TOKENS.into_iter().filter(|id| !id.contains("\\u00")) {
        client.send_line(&format!(r#"{{"id":{id},"method":"m"}}"#));
        assert!(client.reply(id).result.is_object());
    }
    daemon.stop();
}

#[test]
fn lines_after_a_half_closed_clients_last_answer_in_the_same_write_are_delivered() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (mut leaver, mut other) = (daemon.connect(), daemon.connect());
    // It owns every session, so the one created for it does not fit.
    for number in 0..1024 {
        leaver.request_in(&format!("s{number}"), number, "m", json!({}));
    }
    leaver.ask(5000, "session/new", json!({ "later": true }));
    leaver.request_in("s0", 5001, "m", json!({}));
    leaver.half_close();
    other.request("before", "m", json!({}));
    let made = json!({ "jsonrpc": "2.0", "id": 5000, "result": { "sessionId": "one too many" } });
    let answer = json!({ "jsonrpc": "2.0", "id": "other", "result": "it is there" });
    other.ask("other", "write", json!({ "text": format!("{made}\n{answer}\n") }));
    assert_eq!(other.answer("other")["result"], "it is there");
    leaver.error(5000, "session_limit");
    leaver.ends();
    daemon.stop();
}
