//! What keeps clients of one worker apart: names of sessions, ids, answers and cancellations (docs/security.md).

mod cancellations;
mod names;

use super::super::admission::Rejection;
use super::super::origin::{Names, Origin};
use super::*;

/// A worker that has given a session to each of two clients: `s0` and `s1`.
fn two_owners() -> (Bench, [Peer; 2], Peer) {
    let mut bench = bench(1);
    let (clients, worker) = ([bench.client(), bench.client()], bench.worker(0));
    for (at, client) in clients.into_iter().enumerate() {
        bench.write(client, &format!(r#"{{"id":"{at}new","method":"session/new","params":{{}}}}"#));
        bench.write(worker, &format!(r#"{{"id":"{at}new","result":{{"sessionId":"s{at}"}}}}"#));
        bench.read(client);
    }
    bench.read(worker);
    (bench, clients, worker)
}

/// A bus with one worker that has a second for each answer.
fn hurried() -> Bench {
    Bench::new(settings(vec![Pool { request_timeout: Some(seconds(1)), ..pool(1, Assignment::RoundRobin) }]))
}

fn prompt(id: usize, session: &str) -> String {
    format!(r#"{{"id":{id},"method":"session/prompt","params":{{"sessionId":"{session}"}}}}"#)
}

fn load(id: usize, session: &str) -> String {
    prompt(id, session).replace("prompt", "load")
}

#[test]
fn the_session_in_the_params_must_be_its_senders_whatever_is_at_top_level() {
    let (mut bench, [_, attacker], worker) = two_owners();
    for top in [r#""anything""#, r#""s1""#, r#""""#, "7", "null", "[]", r#""s0""#, r#""\u00730""#] {
        let line = format!(r#"{{"id":1,"method":"session/prompt","sessionId":{top},"params":{{"sessionId":"s0"}}}}"#);
        bench.write(attacker, &line);
        assert!(bench.read(worker).is_empty(), "{line}");
        assert_eq!(bench.read_error(attacker).0, "session_denied", "{line}");
    }
    for members in [
        r#""sessionId":"s0","params":{"sessionId":"s1"}"#,
        r#""sessionId":"","params":{"sessionId":"s\u0030"}"#,
        r#""session\u0049d":"anything","p\u0061rams":{"session\u0049d":"s0"}"#,
        r#""sessionId":"\u00730","params":{}"#,
    ] {
        for method in ["session/prompt", r"session\u002fprompt", "session/cancel", r"session\/close"] {
            bench.write(attacker, &format!(r#"{{"id":1,"method":"{method}",{members}}}"#));
            assert_eq!(bench.read_error(attacker).0, "session_denied", "{method} {members}");
            bench.write(attacker, &format!(r#"{{"method":"{method}",{members}}}"#));
            assert!(bench.read(attacker).is_empty() && bench.read(worker).is_empty(), "{method} {members}");
        }
    }
    assert_eq!(bench.bus.view().stats().sessions, 2, "nothing is left of what was refused");
}

#[test]
fn a_message_may_have_its_own_name_at_top_level_for_a_session_it_was_given() {
    let (mut bench, [owner, other], worker) = two_owners();
    let line = |id, inner| {
        format!(r#"{{"id":{id},"method":"session/prompt","sessionId":"mine","params":{{"sessionId":"{inner}"}}}}"#)
    };
    bench.write(owner, &line(1, "s0"));
    assert_eq!(bench.read_one(worker), line(1, "s0"));
    bench.write(other, &line(2, "s1"));
    assert_eq!(bench.read_error(other).0, "session_denied", "the name at top level is taken too");
}

#[test]
fn ids_that_some_parser_changes_are_replaced_and_restored_to_the_byte() {
    for (token, victim) in [
        ("1.00000000000000000001", "1"),
        ("0.99999999999999999999", "1"),
        ("1e-400", "0"),
        ("9007199254740993", "9007199254740991"),
        (r#""\ud800""#, r#""a""#),
        ("2000000000", "1"),
    ] {
        let mut bench = bench(1);
        let (owner, attacker, worker) = (bench.client(), bench.client(), bench.worker(0));
        bench.write(owner, &format!(r#"{{"id":{victim},"method":"x"}}"#));
        assert_eq!(bench.read_one(worker), format!(r#"{{"id":{victim},"method":"x"}}"#), "a plain id passes");
        bench.write(attacker, &format!(r#"{{"id":{token},"method":"x"}}"#));
        let seen: Value = serde_json::from_str(&bench.read_one(worker)).unwrap();
        assert_eq!(seen["id"].is_string(), token.starts_with('"'));
        assert!(!seen["id"].is_f64(), "{seen}");
        let cancel = format!(r#"{{"method":"$/cancel_request","params":{{"requestId":{token}}}}}"#);
        bench.write(attacker, &cancel);
        assert_eq!(bench.read_json(worker)["params"]["requestId"], seen["id"], "its own is cancelled");
        bench.write(worker, &format!(r#"{{"id":{},"result":1}}"#, seen["id"]));
        assert_eq!(bench.read_one(attacker), format!(r#"{{"id":{token},"result":1}}"#));
        bench.write(attacker, &cancel);
        assert!(bench.read(worker).is_empty(), "a double makes it the other client's");
    }
}

#[test]
fn an_id_whose_answer_may_still_come_is_never_given_to_another_request() {
    let mut bench = bench(1);
    let (gone, worker) = (bench.client(), bench.worker(0));
    for id in 0..4096 {
        bench.write(gone, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    bench.read(worker);
    let (busy, client) = (bench.client(), bench.client());
    bench.breaks(gone);
    bench.gone(gone);
    for id in 0..70 {
        bench.write(busy, &format!(r#"{{"id":"b{id}","method":"x"}}"#));
    }
    bench.read(worker);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    let seen: Value = serde_json::from_str(&bench.read_one(worker)).unwrap();
    assert_ne!(seen["id"], 1);
    bench.write(worker, r#"{"id":1,"result":"of the one that left"}"#);
    assert!(bench.read(client).is_empty());
    assert_eq!((bench.count(Reason::LateAnswer), bench.count(Reason::UnknownId)), (1, 0));
    bench.write(worker, &format!(r#"{{"id":{},"result":"its own"}}"#, seen["id"]));
    assert_eq!(bench.read_one(client), r#"{"id":1,"result":"its own"}"#);
}

#[test]
fn a_second_answer_reaches_no_client_and_is_reported_once_as_such() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    for _ in 0..3 {
        bench.write(first, r#"{"id":7,"method":"x"}"#);
        let seen: Value = serde_json::from_str(&bench.read_one(worker)).unwrap();
        let answer = format!(r#"{{"id":{},"result":"of the first"}}"#, seen["id"]);
        bench.write(worker, &answer);
        bench.write(worker, &answer);
        bench.write(second, r#"{"id":7,"method":"x"}"#);
        let again: Value = serde_json::from_str(&bench.read_one(worker)).unwrap();
        assert!(again["id"] != 7 && again["id"] != seen["id"]);
        bench.write(worker, &answer);
        assert!(bench.read(second).is_empty());
        assert_eq!(bench.read(first).len(), 1);
        bench.write(worker, &format!(r#"{{"id":{},"result":2}}"#, again["id"]));
        assert_eq!(bench.read_one(second), r#"{"id":7,"result":2}"#);
    }
    assert_eq!(bench.count(Reason::WorkerAnswersTwice), 1);
    assert_eq!(bench.count(Reason::UnknownId), 6);
}

#[test]
fn with_always_every_id_on_a_shared_worker_is_replaced_and_none_on_a_dedicated_one() {
    for (assignment, replaced) in [(Assignment::Client, true), (Assignment::Dedicated, false)] {
        let mut settings = settings(vec![Pool { max_instances: 2, ..pool(1, assignment) }]);
        settings.routing.id_collision = IdCollision::Always;
        let mut bench = Bench::new(settings);
        let (client, worker) = (bench.client(), bench.worker(0));
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        let seen: Value = serde_json::from_str(&bench.read_one(worker)).unwrap();
        assert_eq!(seen["id"] != 1, replaced);
        bench.write(worker, &format!(r#"{{"id":{},"result":1}}"#, seen["id"]));
        assert_eq!(bench.read_one(client), r#"{"id":1,"result":1}"#);
    }
}

#[test]
fn a_name_that_the_worker_gives_out_outranks_one_that_it_has_only_confirmed() {
    let mut bench = bench(1);
    let (squatter, client, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(squatter, &prompt(1, "0"));
    bench.write(worker, r#"{"id":1,"result":"no such session"}"#);
    bench.write(client, r#"{"id":2,"method":"session/new"}"#);
    bench.write(worker, r#"{"id":2,"result":{"sessionId":"0"}}"#);
    bench.read(client);
    bench.write(worker, r#"{"method":"update","params":{"sessionId":"0"}}"#);
    assert_eq!(bench.read(client).len(), 1);
    bench.read(squatter);
    bench.write(squatter, &prompt(3, "0"));
    assert_eq!(bench.read_error(squatter).0, "session_denied");
}

#[test]
fn messages_in_a_session_not_given_out_yet_do_not_reach_a_client_that_claimed_its_name() {
    let mut bench = bench(1);
    let (thief, owner, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(thief, r#"{"id":1,"method":"x","sessionId":"next"}"#);
    bench.write(worker, r#"{"id":1,"result":"who reads names at top level?"}"#);
    bench.write(owner, r#"{"id":2,"method":"session/new"}"#);
    let update = r#"{"method":"session/update","params":{"sessionId":"next"}}"#;
    bench.write(worker, update);
    bench.write(worker, r#"{"id":2,"result":{"sessionId":"next"}}"#);
    bench.write(worker, update);
    assert_eq!(bench.read(thief).len(), 1, "its own answer");
    assert_eq!(bench.read(owner).len(), 2, "the answer, and what came after it");
}

#[test]
fn a_name_that_was_not_given_out_is_a_guess_while_a_session_is_made_and_ever_after() {
    for spelling in ["session/new", r"session\u002fnew"] {
        let mut bench = bench(1);
        let (owner, guesser, worker) = (bench.client(), bench.client(), bench.worker(0));
        bench.write(owner, &format!(r#"{{"id":1,"method":"{spelling}"}}"#));
        bench.read(worker);
        for _ in 0..2 {
            bench.write(guesser, &prompt(1, "0"));
            assert_eq!(bench.read_error(guesser).0, "session_denied");
            assert!(bench.read(worker).is_empty());
            bench.write(worker, r#"{"id":1,"result":{"sessionId":"1"}}"#);
        }
        // A name at top level is the bus's own business, as long as it has no owner.
        bench.write(guesser, r#"{"id":2,"method":"x","sessionId":"mine"}"#);
        assert_eq!(bench.read(worker).len(), 1);
        bench.write(guesser, r#"{"id":3,"method":"x","sessionId":"1"}"#);
        assert_eq!(bench.read_error(guesser).0, "session_denied");
        bench.read(owner);
        for (own, top) in [(owner, "1"), (guesser, "mine")] {
            bench.write(own, &prompt(4, "0").replace(r#""params""#, &format!(r#""sessionId":"{top}","params""#)));
            assert_eq!(bench.read_error(own).0, "session_denied", "a name of its own at top level hides no guess");
        }
    }
}

#[test]
fn a_name_is_a_guess_even_while_a_worker_may_create_a_session_for_a_request_that_timed_out() {
    let mut bench = bench(1);
    let (owner, guesser, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(owner, r#"{"id":1,"method":"session/new"}"#);
    bench.write(owner, r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#);
    bench.pass(seconds(6));
    assert_eq!((bench.count(Reason::Cancelled), bench.bus.view().stats().pending), (1, 0));
    bench.read(worker);
    bench.write(guesser, &prompt(1, "0"));
    assert_eq!(bench.read_error(guesser).0, "session_denied");
    bench.write(guesser, r#"{"method":"x","sessionId":"0"}"#);
    assert_eq!(bench.read(worker).len(), 1);
    bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"0"}}"#);
    assert_eq!((bench.count(Reason::UnknownSession), bench.read(guesser).len()), (1, 0));
}

#[test]
fn a_worker_that_echoes_its_input_gives_out_no_names() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(first, &prompt(1, "mine"));
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"mine"}}"#);
    bench.read(worker);
    bench.write(second, &prompt(2, "another"));
    assert_eq!(bench.read(worker).len(), 1);
}

#[test]
fn a_session_lost_with_its_worker_is_lost_to_its_owner_and_cannot_be_claimed() {
    let (mut bench, [owner, other], worker) = two_owners();
    bench.dies(worker);
    bench.pass(seconds(1));
    let worker = bench.worker(0);
    bench.read(owner);
    bench.write(other, r#"{"id":1,"method":"session/new"}"#);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"s0"}}"#);
    bench.read(worker);
    bench.read(other);
    for line in [prompt(5, "s0"), prompt(5, "s0").replace(r#""params":{"#, r#""sessionId":"top","params":{"#)] {
        bench.write(owner, &line);
        let (reason, code, _) = bench.read_error(owner);
        assert_eq!((reason.as_str(), code), ("session_lost", -32017));
        assert!(bench.read(worker).is_empty());
    }
    bench.write(other, &prompt(2, "s1"));
    assert_eq!(bench.read_error(other).0, "session_lost");
    bench.write(other, &load(3, "s1"));
    bench.write(worker, r#"{"id":3,"result":null}"#);
    bench.read(worker);
    bench.read(other);
    bench.write(other, &prompt(4, "s1"));
    assert_eq!(bench.read_one(worker), prompt(4, "s1"));
}

#[test]
fn a_session_lost_with_its_worker_can_be_loaded_or_given_out_again() {
    let (mut bench, [owner, other], worker) = two_owners();
    bench.dies(worker);
    bench.pass(seconds(1));
    let worker = bench.worker(0);
    bench.write(owner, &load(20, "s0"));
    bench.write(worker, r#"{"id":20,"result":null}"#);
    bench.write(other, r#"{"id":30,"method":"session/new"}"#);
    bench.write(worker, r#"{"id":30,"result":{"sessionId":"s1"}}"#);
    for (client, stranger, name, id) in [(owner, other, "s0", 21), (other, owner, "s1", 31)] {
        bench.read(worker);
        bench.read(stranger);
        bench.write(client, &prompt(id, name));
        assert_eq!(bench.read_one(worker), prompt(id, name));
        bench.write(stranger, &prompt(40, name));
        assert_eq!(bench.read_error(stranger).0, "session_denied", "{name}");
    }
}

#[test]
fn a_session_that_its_client_named_may_start_again_on_another_worker() {
    let mut bench = bench(2);
    let (client, first, second) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"mine"}"#);
    bench.write(first, r#"{"id":1,"result":1}"#);
    bench.dies(first);
    bench.read(client);
    bench.write(client, r#"{"id":2,"method":"x","sessionId":"mine"}"#);
    assert_eq!((bench.read(second).len(), bench.read(client).len()), (1, 0));
}

#[test]
fn a_returning_owner_loads_its_session_at_the_worker_that_has_it() {
    for spelling in ["session/load", "session/resume", r"session\u002fload"] {
        let mut bench = bench(3);
        let (owner, stranger) = (bench.client(), bench.client());
        bench.write(stranger, r#"{"id":1,"method":"x"}"#);
        bench.write(owner, r#"{"id":2,"method":"session/new"}"#);
        let worker = bench.worker(1);
        bench.write(worker, r#"{"id":2,"result":{"sessionId":"kept"}}"#);
        bench.breaks(owner);
        bench.gone(owner);
        bench.read(worker);
        let back = bench.client();
        let line = load(3, "kept").replace("session/load", spelling);
        bench.write(back, &line);
        assert_eq!(bench.read_one(worker), line);
        let update = r#"{"method":"session/update","params":{"sessionId":"kept"}}"#;
        bench.write(worker, update);
        bench.write(worker, r#"{"id":3,"result":null}"#);
        assert_eq!(bench.read(back), [update, r#"{"id":3,"result":null}"#]);
        bench.write(back, &prompt(4, "kept"));
        assert_eq!(bench.read(worker).len(), 1);
        bench.write(stranger, &prompt(5, "kept"));
        assert_eq!(bench.read_error(stranger).0, "session_denied", "{spelling}");
    }
}

#[test]
fn a_session_that_its_owner_closed_is_not_held_when_it_leaves() {
    let (mut bench, [owner, stranger], worker) = two_owners();
    bench.write(owner, &prompt(1, "s0").replace("prompt", "close"));
    bench.write(worker, r#"{"id":1,"result":{}}"#);
    bench.breaks(owner);
    bench.gone(owner);
    bench.read(worker);
    bench.write(stranger, r#"{"id":2,"method":"x","sessionId":"s0"}"#);
    assert_eq!((bench.read(worker).len(), bench.read(stranger).len()), (1, 0));
}

#[test]
fn a_name_is_reserved_when_its_owner_leaves_until_it_reconnects_and_loads_it() {
    let (mut bench, [owner, stranger], worker) = two_owners();
    bench.write(owner, &prompt(1, "s0"));
    bench.breaks(owner);
    bench.gone(owner);
    bench.read(worker);
    bench.write(stranger, &prompt(1, "s0"));
    bench.write(stranger, r#"{"id":2,"method":"x","sessionId":"s0"}"#);
    for error in bench.read(stranger) {
        assert!(error.contains("session_denied"), "{error}");
    }
    bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"s0"}}"#);
    assert!(bench.read(stranger).is_empty() && bench.read(worker).is_empty());
    assert_eq!(bench.count(Reason::UnknownSession), 1);
    let back = bench.client();
    bench.write(back, &load(10, "s0"));
    bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"s0"}}"#);
    assert!(bench.read(back).is_empty(), "the worker still works for the owner that has left");
    bench.write(worker, r#"{"id":10,"error":{"code":-32002}}"#);
    bench.write(worker, r#"{"id":1,"result":"of the owner that has left"}"#);
    assert_eq!(bench.read(back).len(), 1);
    bench.write(back, &load(11, "s0"));
    bench.read(worker);
    bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"s0"}}"#);
    assert_eq!(bench.read(back).len(), 1, "the replay during a load is sent to the client that loads it");
    bench.write(worker, r#"{"id":11,"error":{"code":-32002}}"#);
    bench.read(back);
    bench.write(back, &prompt(2, "s0"));
    assert_eq!(bench.read_error(back).0, "session_denied", "the worker did not give it away");
    bench.write(back, &load(3, "s0"));
    let seen: Value = serde_json::from_str(&bench.read_one(worker)).unwrap();
    bench.write(worker, &format!(r#"{{"id":{},"result":{{}}}}"#, seen["id"]));
    bench.read(back);
    bench.write(back, &prompt(4, "s0"));
    assert_eq!(bench.read(worker).len(), 1);
}

#[test]
fn a_session_whose_load_is_answered_too_late_stays_with_the_client_that_asked_for_it() {
    for result in ["null", r#"{"sessionId":"s"}"#] {
        let mut bench = hurried();
        let (owner, stranger, worker) = (bench.client(), bench.client(), bench.worker(0));
        bench.write(owner, &load(1, "s"));
        bench.pass(seconds(1));
        assert_eq!(bench.read_error(owner).0, "timeout");
        bench.write(worker, &format!(r#"{{"id":1,"result":{result}}}"#));
        bench.pass(seconds(61));
        bench.read(worker);
        for method in ["fork", "load", "prompt"] {
            bench.write(stranger, &prompt(2, "s").replace("prompt", method));
            assert_eq!(bench.read_error(stranger).0, "session_denied", "{method} {result}");
        }
        bench.write(owner, &load(3, "s"));
        assert_eq!(bench.read_one(worker), load(3, "s"));
        bench.write(worker, r#"{"id":3,"error":{"code":-32002}}"#);
        bench.breaks(owner);
        bench.gone(owner);
        bench.write(stranger, &prompt(4, "s"));
        assert_eq!(bench.read_error(stranger).0, "session_denied", "the worker has it still: {result}");
    }
}

#[test]
fn a_late_answer_that_repeats_its_session_name_takes_the_session_from_no_client() {
    // Seven seconds later its request is forgotten.
    for later in [0, 7] {
        let mut bench = hurried();
        let (owner, other, worker) = (bench.client(), bench.client(), bench.worker(0));
        bench.write(owner, &prompt(1, "mine"));
        bench.pass(seconds(1 + later));
        bench.write(worker, r#"{"id":1,"result":{"sessionId":"mine"}}"#);
        assert_eq!((bench.read_error(owner).0.as_str(), bench.count(Reason::LateAnswer)), ("timeout", 1));
        bench.read(worker);
        bench.write(owner, &prompt(2, "mine"));
        assert_eq!(bench.read_one(worker), prompt(2, "mine"));
        bench.write(other, &prompt(300_000, "another"));
        assert_eq!(bench.read_one(worker), prompt(300_000, "another"), "the worker has given out no name by that");
    }
}

#[test]
fn a_session_that_a_late_answer_names_stays_with_the_client_that_asks_for_it_then() {
    for answer in [r#""result":null"#, r#""error":{"code":-32002}"#] {
        let mut bench = hurried();
        let (maker, asker, worker) = (bench.client(), bench.client(), bench.worker(0));
        let stranger = bench.client();
        bench.write(maker, r#"{"id":1,"method":"session/new"}"#);
        bench.pass(seconds(1));
        assert_eq!(bench.read_error(maker).0, "timeout");
        bench.write(asker, &load(2, "s"));
        bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
        bench.write(stranger, &load(3, "s"));
        assert_eq!(bench.read_error(stranger).0, "session_denied");
        bench.write(worker, &format!(r#"{{"id":2,{answer}}}"#));
        bench.read(asker);
        bench.read(worker);
        bench.write(stranger, &prompt(4, "s"));
        assert_eq!(bench.read_error(stranger).0, "session_denied", "{answer}");
        if answer.contains("result") {
            bench.write(asker, &prompt(5, "s"));
            assert_eq!(bench.read_one(worker), prompt(5, "s"));
        }
    }
}

#[test]
fn an_answer_for_an_owner_that_has_left_does_not_take_the_session_from_its_loader() {
    let mut bench = bench(1);
    let (owner, loader, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(owner, &prompt(1, "s"));
    bench.breaks(owner);
    bench.gone(owner);
    bench.write(loader, &load(2, "s"));
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.write(worker, r#"{"id":2,"result":null}"#);
    assert_eq!((bench.read(worker).len(), bench.read_one(loader).as_str()), (2, r#"{"id":2,"result":null}"#));
    bench.write(loader, &prompt(3, "s"));
    assert_eq!(bench.read_one(worker), prompt(3, "s"));
}

#[test]
fn a_session_keeps_its_owner_when_a_timed_out_load_is_answered_after_all() {
    let mut bench = bench(1);
    let (owner, stranger, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(owner, &prompt(1, "s"));
    bench.write(worker, r#"{"id":1,"error":{"code":1,"message":"busy"}}"#);
    bench.write(owner, &load(2, "s"));
    bench.write(owner, r#"{"method":"notifications/cancelled","params":{"requestId":2}}"#);
    bench.pass(seconds(6));
    bench.write(worker, r#"{"id":2,"result":{"sessionId":"s"}}"#);
    assert_eq!((bench.count(Reason::Cancelled), bench.count(Reason::LateAnswer)), (1, 1));
    for method in ["fork", "load", "prompt"] {
        bench.write(stranger, &prompt(3, "s").replace("prompt", method));
        assert_eq!(bench.read_error(stranger).0, "session_denied", "{method}");
    }
    bench.read(worker);
    bench.read(owner);
    bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"s"}}"#);
    assert!(bench.read(owner).is_empty(), "its addressee is ambiguous");
    bench.write(owner, &load(4, "s"));
    assert_eq!(bench.read(worker).len(), 1);
    bench.write(worker, r#"{"method":"session/update","params":{"sessionId":"s"}}"#);
    assert_eq!(bench.read(owner).len(), 1);
}

#[test]
fn both_names_that_were_loaded_at_once_are_held_when_their_owner_leaves() {
    let mut bench = bench(1);
    let (owner, stranger, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(owner, r#"{"id":1,"method":"session/load","sessionId":"top","params":{"sessionId":"inner"}}"#);
    bench.write(worker, r#"{"id":1,"result":"who reads names at top level?"}"#);
    bench.breaks(owner);
    bench.gone(owner);
    for name in ["top", "inner"] {
        bench.write(stranger, &prompt(2, name));
        assert_eq!(bench.read_error(stranger).0, "session_denied", "{name}");
    }
}

#[test]
fn a_load_of_a_session_in_the_params_does_not_give_the_reserved_one_at_top_level() {
    let mut bench = bench(1);
    let (owner, stranger, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(owner, &load(1, "held"));
    bench.write(worker, r#"{"id":1,"result":null}"#);
    bench.breaks(owner);
    bench.gone(owner);
    bench.read(worker);
    let both = r#"{"id":2,"method":"session/load","sessionId":"held","params":{"sessionId":"other"}}"#;
    bench.write(stranger, both);
    assert_eq!(bench.read_error(stranger).0, "session_denied");
    bench.write(stranger, &both.replace("other", "held"));
    assert_eq!(bench.read(worker), [both.replace("other", "held")]);
}

#[test]
fn a_session_that_the_worker_may_have_loaded_unseen_is_held_when_its_owner_leaves() {
    let mut bench = bench(1);
    let (owner, stranger, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(owner, &prompt(1, "s"));
    bench.write(worker, r#"{"id":1,"result":"it knows the name"}"#);
    bench.write(owner, &load(2, "s"));
    bench.write(owner, r#"{"method":"notifications/cancelled","params":{"requestId":2}}"#);
    bench.pass(seconds(6));
    assert_eq!(bench.count(Reason::Cancelled), 1);
    bench.breaks(owner);
    bench.gone(owner);
    bench.write(stranger, &prompt(3, "s"));
    assert_eq!(bench.read_error(stranger).0, "session_denied");
}

#[test]
fn a_session_created_for_a_client_that_has_left_has_no_owner() {
    let mut bench = bench(1);
    let (gone, guesser, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(gone, r#"{"id":1,"method":"session/new"}"#);
    bench.breaks(gone);
    bench.gone(gone);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"made"}}"#);
    bench.read(worker);
    bench.write(guesser, r#"{"id":1,"method":"x","sessionId":"made"}"#);
    assert_eq!(bench.read_error(guesser).0, "session_denied");
    assert_eq!(bench.bus.view().stats().sessions, 0);
    bench.write(guesser, &load(2, "made"));
    bench.write(worker, r#"{"id":2,"result":null}"#);
    bench.read(worker);
    bench.read(guesser);
    bench.write(guesser, &prompt(3, "made"));
    assert_eq!(bench.read_one(worker), prompt(3, "made"), "whom the worker lets load it");
}

#[test]
fn at_most_4096_names_are_held_and_the_oldest_is_evicted_first() {
    let mut bench = bench(1);
    let (stranger, worker) = (bench.client(), bench.worker(0));
    for round in 0..5 {
        let owner = bench.client();
        for at in 0..1000 {
            let (name, id) = (round * 1000 + at, round * 1_000_000 + at);
            bench.write(owner, &format!(r#"{{"id":{id},"method":"session/new"}}"#));
            bench.write(worker, &format!(r#"{{"id":{id},"result":{{"sessionId":"n{name}"}}}}"#));
        }
        bench.breaks(owner);
        bench.gone(owner);
    }
    bench.read(worker);
    let mut held = 0;
    for name in 0..5000 {
        bench.write(stranger, &format!(r#"{{"id":90{name:06},"method":"x","sessionId":"n{name}"}}"#));
        let is_held = !bench.read(stranger).is_empty();
        assert!(is_held || name < 1000, "n{name} is not among the oldest");
        held += u32::from(is_held);
        bench.write(worker, &format!(r#"{{"id":90{name:06},"result":1}}"#));
        bench.read(stranger);
    }
    assert_eq!(held, 4096);
    bench.bus.check_invariants();
}

#[test]
fn a_name_whose_load_fails_repeatedly_takes_no_more_room_than_once() {
    let (mut bench, [owner, loader], worker) = two_owners();
    bench.breaks(owner);
    bench.gone(owner);
    for id in 0..3 * 4096 {
        bench.write(loader, &load(id, "s0"));
        bench.write(worker, &format!(r#"{{"id":{id},"error":{{"code":-32002}}}}"#));
        if id % 1024 == 0 {
            bench.read(loader);
            bench.read(worker);
        }
    }
    bench.bus.check_invariants();
    bench.write(loader, &prompt(0, "s0"));
    assert!(bench.read(loader).pop().unwrap().contains("session_denied"));
}

#[test]
fn a_claim_that_no_worker_has_acknowledged_is_forgotten_after_a_minute_without_use() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    for name in ["unused", "used", "pending", "confirmed"] {
        bench.write(client, &format!(r#"{{"method":"x","sessionId":"{name}"}}"#));
    }
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"pending"}"#);
    bench.write(client, r#"{"id":2,"method":"x","sessionId":"confirmed"}"#);
    bench.write(worker, r#"{"id":2,"result":1}"#);
    bench.pass(seconds(30));
    bench.write(client, r#"{"method":"x","sessionId":"used"}"#);
    bench.pass(milliseconds(29_999));
    assert_eq!(bench.bus.view().stats().sessions, 4);
    bench.pass(milliseconds(2));
    assert_eq!((bench.bus.view().stats().sessions, bench.count(Reason::ClaimExpired)), (3, 1));
    bench.pass(seconds(31));
    assert_eq!(bench.bus.view().stats().sessions, 2);
}

/// Ids with more than one spelling, no two of the same value.
const TOKENS: [&str; 13] = [
    "-1.5",
    r#""\u0066""#,
    "1.0",
    "1e2",
    "-0",
    "20E-1",
    "123456789012345678901234567890",
    r#""\ud800""#,
    r#""\ud800\"""#,
    r#""\/\u00e9é""#,
    r#""""#,
    "7",
    "2000000001",
];

/// Checks that the only line that `client` was sent is an error for this reason that has the id as it was written.
fn fails_with(bench: &mut Bench, client: Peer, token: &str, reason: &str) {
    let error = bench.read_one(client);
    assert!(error.contains(&format!(r#""id":{token},"#)) && error.contains(&format!(r#""{reason}""#)), "{error}");
}

#[test]
fn an_error_repeats_the_id_as_its_client_wrote_it_when_a_request_is_refused_at_once() {
    let (mut bench, [_, client], _) = two_owners();
    for token in TOKENS {
        for (members, reason) in [
            (r#""pool":"none""#, "unknown_pool"),
            (r#""sessionId":"s0""#, "session_denied"),
            (r#""params":{"sessionId":"s0"}"#, "session_denied"),
        ] {
            bench.write(client, &format!(r#"{{"id":{token},"method":"x",{members}}}"#));
            fails_with(&mut bench, client, token, reason);
        }
    }
}

#[test]
fn an_error_repeats_the_id_as_its_client_wrote_it() {
    type Ends = fn(&mut Bench, Peer, Peer, &str);
    let ends: [(Ends, &str); 5] = [
        (|bench, _, worker, _| bench.dies(worker), "worker_exited"),
        (|bench, _, worker, _| bench.write(worker, "nonsense"), "worker_exited"),
        (
            |bench, _, worker, _| {
                bench.shutdown();
                bench.dies(worker);
            },
            "shutting_down",
        ),
        (|bench, _, _, _| bench.pass(seconds(10)), "timeout"),
        (
            |bench, client, _, token| {
                bench.write(client, &format!(r#"{{"method":"$/cancelRequest","params":{{"id":{token}}}}}"#));
                bench.pass(seconds(6));
            },
            "cancelled",
        ),
    ];
    for token in TOKENS {
        for (end, reason) in ends {
            let slow = Pool { request_timeout: Some(seconds(10)), ..pool(1, Assignment::RoundRobin) };
            let mut bench = Bench::new(settings(vec![slow]));
            let (client, worker) = (bench.client(), bench.worker(0));
            bench.write(client, &format!(r#"{{"id":{token},"method":"x"}}"#));
            end(&mut bench, client, worker, token);
            fails_with(&mut bench, client, token, reason);
        }
    }
}

#[test]
fn replayed_history_reaches_the_client_that_loads_the_session_while_others_create_theirs() {
    let mut bench = bench(1);
    let (loader, maker, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(maker, r#"{"id":1,"method":"session/new"}"#);
    bench.write(loader, &load(2, "old"));
    let update = r#"{"method":"session/update","params":{"sessionId":"old"}}"#;
    bench.write(worker, update);
    assert_eq!((bench.read_one(loader).as_str(), bench.read(maker).len()), (update, 0));
}
