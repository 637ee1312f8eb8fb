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
