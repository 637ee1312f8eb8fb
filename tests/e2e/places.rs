//! What one source can hold of an `http` listener: its connections and its clients' slots are shared by source, and who
//! holds most gives way, of what waits for an answer as of what is idle.

use serde_json::{Value, json};

use crate::harness::{Daemon, Setup, with, worker};
use crate::http::{Http, request};
use crate::mcp::{VERSION, door_of, modern, post_modern};

const ALICE: &str = "Bearer 0123456789abcdef";
const BOB: &str = "Bearer fedcba9876543210";

/// A daemon for alice and bob, with a worker that keeps what it reads and answers no `hold`.
fn door_for_two(max_connections: Value) -> Daemon {
    let setup = Setup::new([with(worker("tools", 1, &["--keep"]), "assignment", "client")]);
    let path = setup.path("tokens");
    std::fs::write(&path, "alice:0123456789abcdef\nbob:fedcba9876543210\n").unwrap();
    let keys = json!({ "tokens_file": path });
    door_of(setup, if max_connections.is_null() { keys } else { with(keys, "max_connections", max_connections) })
}

fn of(daemon: &Daemon, token: &str) -> Http {
    Http::connect(daemon.address()).with("Authorization", token)
}

/// A session of this client.
fn begin(daemon: &Daemon, token: &str) -> Http {
    let mut client = of(daemon, token);
    let answer = client.ask(&request(0, "initialize", json!({ "protocolVersion": VERSION })));
    assert_eq!(answer.status, 200, "{answer:?}");
    let id = answer.fields["mcp-session-id"].clone();
    client.with("Mcp-Session-Id", &id)
}

/// Connections of a session, each with a request that is with the worker and waits.
fn wait_for_answers(daemon: &Daemon, session: &mut Http, ids: std::ops::Range<u64>) -> Vec<Http> {
    let mut waiting: Vec<Http> = ids.clone().map(|_| session.again()).collect();
    // One after the other: of requests that are read in the same turn none is the newest.
    for ((client, id), count) in waiting.iter_mut().zip(ids.clone()).zip(1..) {
        client.post(&request(id, "hold", json!({})));
        daemon.until("it is with the worker", || kept(session, ids.end).matches("\\\"hold\\\"").count() >= count);
    }
    waiting
}

/// What the worker has read.
fn kept(session: &mut Http, id: u64) -> String {
    session.call(id, "kept", json!({})).to_string()
}

/// Checks that the request with this id that waits on a connection gets the error of one that was given up.
fn is_given_up(client: &mut Http, id: u64) {
    let answer = client.answer();
    // After a while without an answer the response is a stream.
    let error = match answer.is_stream() {
        true => client.events().pop().expect("an error").json(),
        false => {
            assert_eq!((answer.status, answer.fields["retry-after"].as_str()), (429, "1"), "{answer:?}");
            answer.json()
        }
    };
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!(id), &json!(-32019)), "{error}");
    assert_eq!(error["error"]["data"], json!({ "reason": "connection_limit", "delivered": true }));
}

#[test]
fn a_source_whose_requests_take_all_connections_gives_its_newest_one_up_for_another_source() {
    let daemon = door_for_two(json!({ "total": 12 }));
    let mut bob = begin(&daemon, BOB);
    let mut session = begin(&daemon, ALICE);
    let mut waiting = wait_for_answers(&daemon, &mut session, 1..11);
    let mut other = bob.again();
    assert_eq!(other.call(1, "m", json!({}))["id"], 1, "it has got the place of an idle connection");
    let mut another = bob.again();
    assert_eq!(another.call(2, "m", json!({}))["id"], 2);
    is_given_up(&mut waiting.pop().expect("there are ten"), 10);
    assert_eq!(bob.call(3, "m", json!({}))["id"], 3, "his idle connection was not the price");
    daemon.until("the worker is told", || kept(&mut bob, 9).contains("notifications/cancelled"));
    daemon.logs(&["WARN", "reason=connection_limit", "a request for MCP is given up: "]);
    daemon.stop();
}

#[test]
fn a_source_above_its_share_is_refused_and_none_of_its_requests_is_cut_off_and_health_is_answered() {
    let daemon = door_for_two(json!({ "total": 6 }));
    let mut session = begin(&daemon, ALICE);
    let mut waiting = wait_for_answers(&daemon, &mut session, 1..6);
    // Its idle connection goes first.
    waiting.push(session.again());
    waiting[5].post(&request(6, "hold", json!({})));
    assert!(session.is_closed());
    for id in 7..9 {
        let refused = session.again().ask(&request(id, "m", json!({})));
        assert_eq!((refused.status, refused.fields.contains_key("retry-after")), (429, true), "{refused:?}");
        assert_eq!(refused.json()["error"]["data"]["reason"], "connection_limit");
    }
    let mut health = Http::connect(daemon.address());
    health.send("GET /healthz", &[], "");
    assert_eq!(health.answer().status, 200);
    let mut bob = begin(&daemon, BOB);
    is_given_up(&mut waiting.pop().expect("there are six"), 6);
    assert_eq!(bob.call(1, "release", json!({}))["id"], 1);
    for (client, id) in waiting.iter_mut().zip(1..) {
        let answer = client.answer();
        let answer = if answer.is_stream() { client.events().pop().expect("it").json() } else { answer.json() };
        assert_eq!((&answer["id"], answer["result"].is_object()), (&json!(id), true), "the others have their answers");
    }
    daemon.stop();
}

#[test]
fn the_limit_of_a_source_counts_its_connections_and_closes_an_idle_one_of_its_own_first() {
    let daemon = door_for_two(json!({ "per_source": 2 }));
    let mut session = begin(&daemon, ALICE);
    let mut second = session.again();
    assert_eq!(second.call(1, "m", json!({}))["id"], 1);
    let mut third = session.again();
    third.post(&request(2, "hold", json!({})));
    assert!(session.is_closed(), "the one that was idle longest");
    second.post(&request(3, "hold", json!({})));
    let mut bob = begin(&daemon, BOB);
    daemon.until("both wait", || kept(&mut bob, 9).matches("\\\"hold\\\"").count() >= 2);
    let refused = second.again().ask(&request(4, "m", json!({})));
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.body.contains("2 connections from one source"), "{refused:?}");
    daemon.stop();
}

#[test]
fn sessions_of_one_source_do_not_take_a_listener_from_the_others() {
    let daemon = door_for_two(json!({ "total": 4 }));
    let first = begin(&daemon, ALICE);
    let _others: Vec<Http> = (0..3).map(|_| begin(&daemon, ALICE)).collect();
    let mut bob = begin(&daemon, BOB);
    assert_eq!(bob.call(1, "m", json!({}))["id"], 1);
    assert_eq!(first.again().ask(&request(1, "m", json!({}))).status, 404, "it was idle longest");
    daemon.logs(&["reason=session_evicted"]);
    daemon.stop();
}

#[test]
fn while_one_source_holds_the_slots_with_requests_that_wait_no_idle_session_of_another_is_the_price() {
    let daemon = door_for_two(Value::Null);
    let mut honest: Vec<Http> = (0..4).map(|_| begin(&daemon, BOB)).collect();
    let mut waiting: Vec<Http> = (0..1020).map(|_| of(&daemon, ALICE)).collect();
    for (client, id) in waiting.iter_mut().zip(1000..) {
        post_modern(client, &modern(id, "hold", json!({})));
    }
    let mut refused = of(&daemon, ALICE);
    daemon.until("it holds all slots", || {
        post_modern(&mut refused, &modern(1, "m", json!({})));
        let answer = refused.answer();
        let is_refused = answer.status == 429;
        if is_refused || answer.fields.contains_key("connection") {
            refused = of(&daemon, ALICE);
        }
        if !is_refused {
            // It was read before one of those that wait, which was refused then: another one takes that slot.
            let mut one_more = of(&daemon, ALICE);
            post_modern(&mut one_more, &modern(2, "hold", json!({})));
            waiting.push(one_more);
        }
        is_refused
    });
    let new: Vec<Http> = (0..3).map(|_| begin(&daemon, BOB)).collect();
    for (number, client) in honest.iter_mut().enumerate() {
        assert_eq!(client.call(1, "m", json!({}))["id"], 1, "{number}");
    }
    drop(new);
    let log = daemon.stop().stderr;
    assert!(log.contains("a request for MCP is given up: "), "{log}");
    let is_the_price = |line: &str| line.contains("session_evicted") && line.contains("token=bob");
    assert!(!log.lines().any(is_the_price), "{log}");
}
