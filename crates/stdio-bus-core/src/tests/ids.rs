//! Request ids: unchanged unless two requests could not be distinguished, and restored exactly (decision 4).

use std::collections::BTreeSet;

use super::*;

#[test]
fn a_cancellation_in_a_session_cannot_hit_the_request_of_another_client() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(first, r#"{"id":5,"method":"x","sessionId":"a"}"#);
    bench.write(second, r#"{"id":6,"method":"x","sessionId":"b"}"#);
    bench.read(worker);
    bench.write(second, r#"{"method":"$/cancel_request","sessionId":"b","params":{"requestId":5}}"#);
    assert!(bench.read(worker).is_empty());
    assert_eq!(bench.count(Reason::UnknownRequest), 1);
    bench.pass(milliseconds(4));
    let own = r#"{"method":"$/cancel_request","sessionId":"b","params":{"requestId":6}}"#;
    bench.write(second, own);
    assert_eq!(bench.read_one(worker), own);
}

#[test]
fn a_cancellation_for_a_worker_that_does_not_listen_any_more_is_dropped_and_counted() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":5,"method":"x"}"#);
    bench.breaks(worker);
    bench.read(worker);
    bench.write(client, r#"{"method":"$/cancel_request","params":{"requestId":5}}"#);
    assert!(bench.read(worker).is_empty());
    assert_eq!(bench.count(Reason::UnknownRequest), 1);
}

/// Two clients and one worker that has got a request of each with this id. Returns the ids that it saw.
fn collide(token: &str) -> (Bench, Peer, Peer, Peer, Vec<String>) {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    for client in [first, second] {
        bench.write(client, &format!(r#"{{"id":{token},"method":"x","from":"{client:?}"}}"#));
    }
    let ids = bench.read(worker).iter().map(|line| id_of(line)).collect();
    (bench, first, second, worker, ids)
}

/// The token of a top-level id that comes first.
fn id_of(line: &str) -> String {
    line[r#"{"id":"#.len()..line.find(r#","method"#).unwrap()].to_owned()
}

#[test]
fn equal_ids_of_two_clients_are_distinguished_and_restored_exactly() {
    for token in ["0", "1.0", "1e2", r#""a""#, r#""\u0061""#, "\"\"", "-0", "123456789012345678901234567890"] {
        let (mut bench, first, second, worker, ids) = collide(token);
        // Some parsers change the others, so they are never passed on unchanged.
        let is_plain = token == "0" || token.starts_with('"');
        assert_eq!(ids[0] == token, is_plain, "the first one is unchanged");
        assert_ne!(ids[1], token);
        assert_eq!(ids[1].starts_with('"'), token.starts_with('"'), "a string stays a string");
        bench.write(worker, &format!(r#"{{"result":{{"id":9}},"id":{}}}"#, ids[1]));
        assert_eq!(bench.read_one(second), format!(r#"{{"result":{{"id":9}},"id":{token}}}"#));
        bench.write(worker, &format!(r#"{{"result":{{"id":9}},"id":{}}}"#, ids[0]));
        assert_eq!(bench.read_one(first), format!(r#"{{"result":{{"id":9}},"id":{token}}}"#));
        assert_eq!(bench.bus.view().stats().pending, 0);
    }
}

#[test]
fn ids_of_equal_value_collide_however_they_are_written() {
    for (one, other, same) in [
        ("1", "1.0", true),
        ("100", "1e2", true),
        (r#""a""#, r#""\u0061""#, true),
        // Some workers answer with a string for a number.
        ("1", r#""1""#, true),
        (r#""a""#, r#""A""#, false),
    ] {
        let mut bench = bench(1);
        let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
        bench.write(first, &format!(r#"{{"id":{one},"method":"x"}}"#));
        bench.write(second, &format!(r#"{{"id":{other},"method":"x"}}"#));
        assert_eq!(id_of(&bench.read(worker)[1]) != other, same, "{one} and {other}");
    }
}

#[test]
fn an_id_that_the_bus_makes_is_never_made_again() {
    let (mut bench, _, second, worker, ids) = collide("0");
    let mut made = BTreeSet::from([ids[1].clone()]);
    // More than counters of twelve and of sixteen bits can distinguish, with the first request unanswered.
    for _ in 0..1 << 16 {
        bench.write(second, r#"{"id":0,"method":"x"}"#);
        let id = id_of(&bench.read_one(worker));
        bench.write(worker, &format!(r#"{{"id":{id},"result":1}}"#));
        bench.read(second);
        assert!(made.insert(id), "another request had it");
    }
}

#[test]
fn an_id_that_one_client_has_used_is_never_used_by_another_one_and_unchanged_for_the_first() {
    for token in ["0", "-1", "\"a\"", "\"0\""] {
        let (mut bench, first, second, worker, ids) = collide(token);
        bench.write(worker, &format!(r#"{{"id":{},"result":1}}"#, ids[0]));
        bench.write(worker, &format!(r#"{{"id":{},"result":1}}"#, ids[1]));
        let line = format!(r#"{{"id":{token},"method":"x"}}"#);
        for client in [first, second] {
            bench.write(client, &line);
            let seen = id_of(&bench.read_one(worker));
            assert_eq!(seen == token, client == first, "{token}");
            bench.write(worker, &format!(r#"{{"id":{seen},"result":1}}"#));
        }
        bench.breaks(first);
        bench.gone(first);
        let third = bench.client();
        bench.write(third, &line);
        assert_ne!(id_of(&bench.read_one(worker)), token, "nor when the first has left");
        assert_eq!(bench.bus.view().stats().ids_translated, 3);
    }
}

#[test]
fn a_client_that_uses_an_id_again_before_its_answer_gets_both_answers() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":5,"method":"one"}"#);
    bench.write(client, r#"{"id":5,"method":"two"}"#);
    let ids: Vec<String> = bench.read(worker).iter().map(|line| id_of(line)).collect();
    for id in ids.iter().rev() {
        bench.write(worker, &format!(r#"{{"id":{id},"result":"to {id}"}}"#));
    }
    let expected: Vec<String> = ids.iter().rev().map(|id| format!(r#"{{"id":5,"result":"to {id}"}}"#)).collect();
    assert_eq!(bench.read(client), expected);
}

/// Two workers ask one client under the id 0: the bench, the client, the workers, and the ids that it sees.
fn two_questions() -> (Bench, Peer, [Peer; 2], Vec<String>) {
    let mut bench = bench(2);
    let (client, first, second) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.write(client, r#"{"id":0,"method":"x","sessionId":"a"}"#);
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"b"}"#);
    bench.write(first, r#"{"id":0,"method":"ask","sessionId":"a"}"#);
    bench.write(second, r#"{"id":0,"method":"ask","sessionId":"b"}"#);
    let ids: Vec<String> = bench.read(client).iter().map(|line| id_of(line)).collect();
    (bench, client, [first, second], ids)
}

#[test]
fn requests_of_two_workers_with_one_id_are_distinguished_by_their_client() {
    let (mut bench, client, [first, second], ids) = two_questions();
    bench.read(first);
    bench.read(second);
    assert_eq!(ids[0], "0");
    bench.write(client, &format!(r#"{{"id":{},"result":"b"}}"#, ids[1]));
    bench.write(client, r#"{"id":0,"result":"a"}"#);
    assert_eq!(bench.read_one(first), r#"{"id":0,"result":"a"}"#);
    assert_eq!(bench.read_one(second), r#"{"id":0,"result":"b"}"#);
}

#[test]
fn an_id_that_the_bus_made_does_not_hit_one_that_a_client_chose() {
    let (mut bench, _, second, worker, ids) = collide("0");
    bench.write(second, &format!(r#"{{"id":{},"method":"x"}}"#, ids[1]));
    assert_ne!(id_of(&bench.read_one(worker)), ids[1]);
}

#[test]
fn a_cancellation_follows_the_id_that_was_replaced() {
    for method in ["$/cancel_request", "notifications/cancelled"] {
        let (mut bench, first, second, worker, ids) = collide(r#""job""#);
        let cancel = format!(r#"{{"method":"{method}","params":{{"requestId":"job","reason":"x"}}}}"#);
        bench.write(second, &cancel);
        assert_eq!(bench.read_one(worker), cancel.replace(r#""job""#, &ids[1]));
        bench.write(first, &cancel);
        assert_eq!(bench.read_one(worker), cancel, "the other one's id was not replaced");
        bench.write(worker, &format!(r#"{{"id":{},"error":{{"code":-32800}}}}"#, ids[1]));
        bench.read(second);
        bench.write(second, &cancel);
        assert!(bench.read(worker).is_empty(), "it would cancel the request of the first client");
    }
}

#[test]
fn a_cancellation_is_sent_to_the_worker_that_has_the_request() {
    let mut bench = bench(3);
    let client = bench.client();
    for id in 0..3 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    for at in 0..3 {
        let worker = bench.worker(at);
        bench.read(worker);
    }
    let worker = bench.worker(1);
    bench.write(client, r#"{"method":"$/cancel_request","params":{"requestId":1}}"#);
    assert_eq!(bench.read(worker).len(), 1);
}

#[test]
fn an_elicitation_without_a_session_finds_its_client_and_its_request() {
    let (mut bench, first, second, worker, ids) = collide("3");
    let question = |id: &str| format!(r#"{{"id":0,"method":"elicitation/create","params":{{"requestId":{id}}}}}"#);
    bench.write(worker, &question(&ids[1]));
    assert_eq!(bench.read_one(second), question("3"));
    bench.write(worker, &question(&ids[0]).replace(r#""id":0"#, r#""id":1"#));
    assert_eq!(bench.read_one(first), question("3").replace(r#""id":0"#, r#""id":1"#));
    bench.write(second, r#"{"id":0,"result":{"action":"accept"}}"#);
    assert_eq!(bench.read_one(worker), r#"{"id":0,"result":{"action":"accept"}}"#);
}

#[test]
fn a_workers_cancellation_of_its_own_request_is_translated_too() {
    let (mut bench, client, [_, second], ids) = two_questions();
    bench.write(second, r#"{"method":"$/cancel_request","params":{"requestId":0}}"#);
    let expected = format!(r#"{{"method":"$/cancel_request","params":{{"requestId":{}}}}}"#, ids[1]);
    assert_eq!(bench.read_one(client), expected);
}

#[test]
fn both_the_id_and_nothing_else_of_a_line_is_replaced() {
    let (mut bench, first, second, worker, _) = collide("1");
    let line = |id: &str| format!(r#"{{ "a":{{"id":1}}, "id" :{id} ,"method":"x","z":"id\":1" }}"#);
    bench.write(second, &line("1"));
    let seen = bench.read_one(worker);
    let value: Value = serde_json::from_str(&seen).unwrap();
    assert_eq!(seen, line(&value["id"].to_string()));
    assert_ne!(value["id"], 1);
    let _ = first;
}

fn cancel(id: &str) -> String {
    format!(r#"{{"method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#)
}

#[test]
fn one_of_many_requests_is_cancelled_by_its_id_however_many_there_are() {
    for pending in [4, 100] {
        let mut bench = bench(1);
        let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
        for client in [first, second] {
            (0..pending).for_each(|id| bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#)));
        }
        let ids: Vec<String> = bench.read(worker).iter().map(|line| id_of(line)).collect();
        // Those of the second one are replaced.
        for (client, ids) in [(first, &ids[..pending]), (second, &ids[pending..])] {
            for id in [2, 0, 2] {
                bench.write(client, &cancel(&id.to_string()));
                assert_eq!(bench.read_one(worker), cancel(&ids[id]), "of {pending}");
            }
            // One that was answered, one that was never sent, and one that was sent since.
            bench.write(worker, &format!(r#"{{"id":{},"result":1}}"#, ids[2]));
            for id in ["2", "\"0\"", "-1"] {
                bench.write(client, &cancel(id));
                assert!(bench.read(worker).is_empty(), "{id} of {pending}");
                bench.pass(milliseconds(32));
            }
            bench.write(client, r#"{"id":"new","method":"x"}"#);
            bench.read(worker);
            bench.write(client, &cancel("\"new\""));
            let seen: Value = serde_json::from_str(&bench.read_one(worker)).unwrap();
            assert_eq!(seen["params"]["requestId"] == "new", client == first);
        }
        bench.breaks(first);
        bench.gone(first);
        bench.bus.check_invariants();
    }
}

#[test]
fn of_requests_with_one_id_the_oldest_is_cancelled() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    for id in 0..100 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    bench.write(client, r#"{"id":7,"method":"x"}"#);
    let again = id_of(bench.read(worker).last().unwrap());
    bench.write(client, &cancel("7"));
    assert_eq!(bench.read_one(worker), cancel("7"));
    bench.write(worker, r#"{"id":7,"result":1}"#);
    bench.write(client, &cancel("7"));
    assert_eq!(bench.read_one(worker), cancel(&again));
}

#[test]
fn a_client_whose_cancellation_names_nothing_is_paused_unless_it_is_alone() {
    for others in [0, 1] {
        let mut bench = bench(1);
        let (client, worker) = (bench.client(), bench.worker(0));
        for _ in 0..others {
            bench.client();
        }
        for _ in 0..3 {
            bench.write(client, &cancel("5"));
            bench.write(client, r#"{"method":"x"}"#);
            assert_eq!(bench.read(worker).len(), 1 - others, "beside {others}");
            bench.pass(milliseconds(36));
            assert_eq!(bench.read(worker).len(), others, "and then it continues");
        }
    }
}

#[test]
fn a_client_whose_cancellations_cross_the_answers_is_not_paused() {
    let mut bench = bench(1);
    let (client, worker, _other) = (bench.client(), bench.worker(0), bench.client());
    for _ in 0..100 {
        bench.write(client, r#"{"id":5,"method":"x"}"#);
        assert_eq!(bench.read(worker).len(), 1, "it is read at once");
        bench.write(worker, r#"{"id":5,"result":1}"#);
        bench.write(client, &cancel("5"));
    }
    bench.write(client, &cancel("5"));
    bench.write(client, r#"{"method":"x"}"#);
    assert_eq!(bench.read(worker).len(), 0, "a request excuses one cancellation");
}

#[test]
fn many_answered_requests_excuse_no_flood_of_cancellations() {
    let mut bench = bench(1);
    let (client, worker, _other) = (bench.client(), bench.worker(0), bench.client());
    for _ in 0..1000 {
        bench.write(client, r#"{"id":5,"method":"x"}"#);
        bench.write(worker, r#"{"id":5,"result":1}"#);
    }
    bench.read(worker);
    for id in 0..65 {
        bench.write(client, &cancel(&id.to_string()));
    }
    bench.write(client, r#"{"method":"x"}"#);
    assert_eq!(bench.read(worker).len(), 0);
}

/// A client with a worker of its own that has cancelled its request 1. The worker was silent for so long that its
/// answer is not awaited any more.
fn given_up() -> (Bench, Peer, Peer) {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 2, ..pool(1, Assignment::Dedicated) }]));
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"subscriptions/listen"}"#);
    bench.write(client, &cancel("1"));
    bench.pass(seconds(6));
    assert_eq!(bench.read(worker).len(), 2);
    (bench, client, worker)
}

#[test]
fn when_a_cancelled_request_was_never_answered_other_ids_still_pass_unchanged() {
    let (mut bench, client, worker) = given_up();
    for id in ["2", "\"1\"", "3"] {
        let line = format!(r#"{{"id":{id},"method":"subscriptions/listen"}}"#);
        bench.write(client, &line);
        assert_eq!(bench.read_one(worker), line);
    }
    assert_eq!(bench.bus.view().stats().ids_translated, 0);
}

#[test]
fn the_id_of_a_dropped_request_is_replaced_until_its_answer_has_arrived() {
    let (mut bench, client, worker) = given_up();
    let line = r#"{"id":1,"method":"x"}"#;
    bench.write(client, line);
    let made = id_of(&bench.read_one(worker));
    assert_ne!(made, "1");
    bench.write(worker, r#"{"id":1,"result":"too late"}"#);
    bench.write(worker, &format!(r#"{{"id":{made},"result":"in time"}}"#));
    assert_eq!(bench.read_one(client), r#"{"id":1,"result":"in time"}"#);
    assert_eq!((bench.count(Reason::LateAnswer), bench.count(Reason::UnknownId)), (1, 0));
    bench.write(client, line);
    assert_eq!(bench.read_one(worker), line, "nothing of it can come any more");
}

#[test]
fn an_answer_to_none_of_the_dropped_requests_is_not_a_late_one() {
    let (mut bench, _, worker) = given_up();
    bench.write(worker, r#"{"id":2,"result":"to what?"}"#);
    assert_eq!((bench.count(Reason::LateAnswer), bench.count(Reason::UnknownId)), (0, 1));
}

#[test]
fn when_more_requests_were_dropped_than_are_remembered_every_id_is_replaced() {
    for (given_up, is_replaced) in [(1024, false), (1025, true)] {
        let mut bench = bench(1);
        let (client, worker) = (bench.client(), bench.worker(0));
        for id in 0..given_up {
            bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
            bench.write(client, &cancel(&id.to_string()));
        }
        bench.pass(seconds(6));
        bench.read(worker);
        bench.write(client, r#"{"id":9999,"method":"x"}"#);
        assert_eq!(id_of(&bench.read_one(worker)) != "9999", is_replaced, "{given_up}");
        for id in 0..given_up {
            bench.write(worker, &format!(r#"{{"id":{id},"result":1}}"#));
        }
        bench.pass(seconds(1));
        assert_eq!((bench.count(Reason::LateAnswer), bench.count(Reason::UnknownId)), (given_up, 0));
    }
}

#[test]
fn the_answer_of_a_worker_that_changes_the_type_of_an_id_is_delivered_and_reported_once() {
    for (asked, answered, text) in
        [("1", "\"1\"", "1 (a number)"), ("\"1\"", "1", "\"1\" (a string)"), ("\"1\"", "1.0", "\"1\" (a string)")]
    {
        let mut bench = bench(1);
        let (client, other, worker) = (bench.client(), bench.client(), bench.worker(0));
        bench.write(other, r#"{"method":"x"}"#);
        for _ in 0..2 {
            bench.write(client, &format!(r#"{{"id":{asked},"method":"x"}}"#));
            bench.write(worker, &format!(r#"{{"id":{answered},"result":1}}"#));
            assert_eq!(bench.read_one(client), format!(r#"{{"id":{asked},"result":1}}"#));
        }
        assert_eq!(bench.count(Reason::UnknownId), 1);
        let times = bench.reports.iter().filter(|report| report.text.contains(text)).count();
        assert_eq!(times, 1, "{text}: {:?}", bench.reports);
    }
}

#[test]
fn a_workers_request_with_an_invalid_id_is_dropped_and_reported() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":5,"method":"x","sessionId":"a"}"#);
    bench.read(worker);
    for id in ["true", "[1]", "{}"] {
        bench.write(worker, &format!(r#"{{"id":{id},"method":"m","sessionId":"a"}}"#));
    }
    assert!(bench.read(client).is_empty());
    assert_eq!(bench.count(Reason::UnknownId), 3);
    bench.write(worker, r#"{"id":null,"method":"m","sessionId":"a"}"#);
    assert_eq!(bench.read(client).len(), 1, "null is none, and says so");
}

#[test]
fn a_plain_number_that_is_replaced_goes_the_short_way_and_is_its_clients_own_everywhere() {
    let pool = Pool { request_timeout: Some(seconds(3)), ..pool(1, Assignment::RoundRobin) };
    let mut bench = Bench::new(settings(vec![pool]));
    let (first, client, worker) = (bench.client(), bench.client(), bench.worker(0));
    for line in [1, 2, 4_294_967_295u64].map(|id| format!(r#"{{"id":{id},"method":"x"}}"#)) {
        bench.write(first, &line);
        bench.write(worker, &line.replace(r#""method":"x""#, r#""result":1"#));
    }
    // The first line of a client to a worker takes the long way.
    bench.write(client, r#"{"method":"hello"}"#);
    bench.read(worker);
    let ask = |bench: &mut Bench, id: u64| {
        bench.write(client, &format!(r#"{{"method":"x","id":{id} ,"params":{{}}}}"#));
        let seen: Value = serde_json::from_str(&bench.read_one(worker)).unwrap();
        assert_ne!(seen["id"], id);
        seen["id"].clone()
    };
    for id in [1, 4_294_967_295] {
        let before = bench.bus.view().fast_lines();
        let seen = ask(&mut bench, id);
        bench.write(worker, &format!(r#"{{"result":{{}},"id":{seen} }}"#));
        assert_eq!(bench.read_one(client), format!(r#"{{"result":{{}},"id":{id} }}"#));
        assert_eq!(bench.bus.view().fast_lines(), before + 2);
    }
    // An answer that repeats the id elsewhere, a cancellation, a question about it, and an error know it, too.
    let seen = ask(&mut bench, 2);
    let meta = "io.modelcontextprotocol/subscriptionId";
    bench.write(worker, &format!(r#"{{"id":{seen},"result":{{"_meta":{{"{meta}":{seen}}}}}}}"#));
    assert_eq!(bench.read_one(client), format!(r#"{{"id":2,"result":{{"_meta":{{"{meta}":2}}}}}}"#));
    let seen = ask(&mut bench, 3);
    bench.write(worker, &format!(r#"{{"id":7,"method":"elicitation/create","params":{{"requestId":{seen}}}}}"#));
    assert_eq!(bench.read_json(client)["params"]["requestId"], 3);
    bench.write(client, r#"{"method":"$/cancel_request","params":{"requestId":3}}"#);
    assert_eq!(bench.read_json(worker)["params"]["requestId"], seen);
    bench.write(worker, &format!(r#"{{"id":{seen},"error":{{"code":-32800,"message":"cancelled"}}}}"#));
    assert_eq!(bench.read_json(client)["id"], 3);
    let seen = ask(&mut bench, 5);
    let row = (0..bench.bus.view().request_slots()).filter_map(|slot| bench.request_row(slot));
    assert!(row.into_iter().any(|row| row.id == "5"), "operators see the client's own");
    bench.pass(seconds(3));
    let heard: Vec<Value> = bench.read(client).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(heard.iter().any(|line| line["id"] == 5 && line["error"]["data"]["reason"] == "timeout"), "{heard:?}");
    let lines = bench.read(worker).join("\n");
    assert!(lines.contains(&format!(r#""requestId":{seen}"#)), "{lines}");
}

#[test]
fn a_long_number_that_is_replaced_is_restored_as_well() {
    let mut bench = bench(1);
    let (first, client, worker) = (bench.client(), bench.client(), bench.worker(0));
    for sender in [first, client] {
        bench.write(sender, r#"{"id":4294967296,"method":"x"}"#);
        let seen: Value = serde_json::from_str(&bench.read_one(worker)).unwrap();
        bench.write(worker, &format!(r#"{{"id":{},"result":1}}"#, seen["id"]));
        assert_eq!(bench.read_one(sender), r#"{"id":4294967296,"result":1}"#);
    }
}
