//! Late messages of a worker: whatever it says about a request that is over reaches no other client, whoever has used the
//! same name since; and answers that it has spelled in its own way.

use super::*;

/// A client's request with this id as its progress token.
fn asks(id: &str) -> String {
    format!(r#"{{"id":{id},"method":"subscriptions/listen","params":{{"_meta":{{"progressToken":{id}}}}}}}"#)
}

fn answer(id: &str) -> String {
    format!(r#"{{"id":{id},"result":{{}}}}"#)
}

/// All that a worker may say about a request with this id.
fn late(id: &str) -> [String; 7] {
    let about = |method: &str, params: &str| format!(r#"{{"method":"{method}","params":{{{params}}}}}"#);
    [
        about("notifications/progress", &format!(r#""progressToken":{id},"progress":1"#)),
        about("elicitation/create", &format!(r#""requestId":{id}"#)).replacen('{', r#"{"id":900,"#, 1),
        about("notifications/cancelled", &format!(r#""requestId":{id}"#)),
        about("$/cancel_request", &format!(r#""requestId":{id}"#)),
        about("$/cancelRequest", &format!(r#""id":{id}"#)),
        about(
            "notifications/resources/updated",
            &format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#),
        ),
        answer(id),
    ]
}

/// The id of the only line that a peer was sent.
fn seen(bench: &mut Bench, peer: Peer) -> String {
    bench.read_json(peer)["id"].to_string()
}

#[test]
fn what_a_worker_says_about_an_answered_request_reaches_no_client_that_uses_its_id_next() {
    for id in ["5", "0", r#""5""#, r#""a7""#, "-3", "9007199254740991"] {
        for leaves in [false, true] {
            let mut bench = bench(1);
            let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
            // Both have used the worker, so what names nothing has no receiver.
            [first, second].into_iter().for_each(|client| bench.write(client, r#"{"method":"x"}"#));
            bench.read(worker);
            bench.write(first, &asks(id));
            assert_eq!(seen(&mut bench, worker), id);
            bench.write(worker, &answer(id));
            bench.read(first);
            if leaves {
                bench.breaks(first);
                bench.gone(first);
            }
            bench.write(second, &asks(id));
            let made = seen(&mut bench, worker);
            let third = bench.client();
            bench.write(third, &asks(id));
            let other = seen(&mut bench, worker);
            assert!(made != id && other != id && made != other);
            for line in late(id) {
                bench.write(worker, &line);
                assert!(bench.read(second).is_empty() && bench.read(third).is_empty(), "{line}");
                bench.read(worker);
            }
            assert_eq!((bench.count(Reason::UnknownRequest), bench.count(Reason::UnknownId)), (6, 1), "{id}");
            bench.write(worker, &answer(&made));
            assert_eq!(bench.read_one(second), answer(id));
            for line in late(&made) {
                bench.write(worker, &line);
                assert!(bench.read(second).is_empty() && bench.read(third).is_empty(), "{line}");
            }
            bench.bus.check_invariants();
        }
    }
}

#[test]
fn what_a_shared_worker_says_about_a_request_that_is_over_is_dropped_also_where_it_has_served_one_client_alone() {
    for assignment in [Assignment::RoundRobin, Assignment::Client, Assignment::Dedicated] {
        let mut bench = Bench::new(settings(vec![pool(1, assignment)]));
        let client = bench.client();
        bench.write(client, &asks("5"));
        let worker = bench.busy_worker();
        bench.write(worker, &answer("5"));
        bench.read(client);
        for id in ["5", "77"] {
            for line in late(id) {
                bench.write(worker, &line);
            }
        }
        let heard = bench.read(client).len();
        if assignment == Assignment::Dedicated {
            // All but answers: nobody else can be meant, and the progress of a task may go on.
            assert_eq!((heard, bench.count(Reason::UnknownRequest)), (12, 0));
        } else {
            assert_eq!((heard, bench.count(Reason::UnknownRequest)), (0, 12), "{assignment:?}");
        }
        assert_eq!(bench.count(Reason::UnknownId), 2, "{assignment:?}");
    }
}

#[test]
fn a_progress_token_is_used_unchanged_by_one_client_alone_also_as_an_id() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    let asks = |id: &str, token: &str| {
        format!(r#"{{"id":{id},"method":"x","params":{{"_meta":{{"progressToken":{token}}}}}}}"#)
    };
    bench.write(first, &asks("5", "77"));
    bench.write(worker, &answer("5"));
    bench.read(worker);
    bench.write(second, &asks("77", r#""a""#));
    let line: Value = bench.read_json(worker);
    assert!(line["id"] != 77 && line["params"]["_meta"]["progressToken"] == "a");
    bench.write(second, &asks(r#""b""#, "5"));
    assert_ne!(bench.read_json(worker)["params"]["_meta"]["progressToken"], 5);
}

#[test]
fn a_client_that_counts_on_its_own_far_from_others_keeps_its_ids() {
    let mut bench = bench(1);
    let worker = bench.worker(0);
    let clients: Vec<(Peer, u64)> = (0..20).map(|at| (bench.client(), 1_000_000_000 + at * 100_000)).collect();
    for count in (0..100).chain((100..100_000).step_by(4_999)).chain(0..3) {
        for (client, begin) in &clients {
            let line = format!(r#"{{"id":{},"method":"x"}}"#, begin + count);
            bench.write(*client, &line);
            assert_eq!(bench.read_one(worker), line);
            bench.write(worker, &answer(&(begin + count).to_string()));
        }
    }
    assert_eq!(bench.bus.view().stats().ids_translated, 0);
}

#[test]
fn where_more_names_were_used_than_are_remembered_only_the_first_client_keeps_its_own() {
    for spelled in [|number: u64| (number * 1_000_000).to_string(), |number: u64| format!("\"{number}-\"")] {
        let mut bench = bench(1);
        let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
        let mut is_replaced = |client: Peer, number: u64| {
            let id = spelled(number);
            bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
            let seen = seen(&mut bench, worker);
            bench.write(worker, &answer(&seen));
            seen != id
        };
        assert!(!is_replaced(second, 0) || !is_replaced(first, 0));
        assert!(is_replaced(first, 0), "the second one has used it");
        for number in 1..1100 {
            assert_eq!(is_replaced(first, number), number >= 1024, "{number}");
        }
        assert!(!is_replaced(first, 1000) && is_replaced(first, 0));
        for number in 1..1100 {
            assert_eq!(is_replaced(second, number), number < 1024, "the second one was here first: {number}");
        }
    }
}

#[test]
fn a_late_answer_of_a_client_answers_no_other_worker() {
    let mut bench = bench(2);
    let (client, first, second) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"a"}"#);
    bench.write(client, r#"{"id":2,"method":"x","sessionId":"b"}"#);
    bench.read(first);
    bench.read(second);
    bench.write(first, r#"{"id":0,"method":"ask","sessionId":"a"}"#);
    bench.write(client, r#"{"id":0,"result":"of the first"}"#);
    bench.write(second, r#"{"id":0,"method":"ask","sessionId":"b"}"#);
    bench.write(client, r#"{"id":0,"result":"of the first"}"#);
    assert!(bench.read(second).is_empty());
    let asked: Vec<Value> = bench.read(client).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    bench.write(client, &format!(r#"{{"id":{},"result":"of the second"}}"#, asked[1]["id"]));
    assert_eq!(bench.read_one(second), r#"{"id":0,"result":"of the second"}"#);
}

#[test]
fn an_unknown_answer_does_not_make_other_ids_replaced() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(worker, r#"{"id":99,"result":1}"#);
    bench.write(worker, r#"{"error":{"code":-32700,"message":"Parse error"}}"#);
    let line = r#"{"id":1,"method":"x"}"#;
    bench.write(client, line);
    assert_eq!(bench.read_one(worker), line);
}

#[test]
fn ids_that_the_bus_makes_fit_into_31_bits_and_begin_anew_only_after_all_others() {
    use crate::id::Id;
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(first, r#"{"id":0,"method":"x"}"#);
    bench.read(worker);
    let ask = |bench: &mut Bench| {
        bench.write(second, r#"{"id":0,"method":"x"}"#);
        seen(bench, worker)
    };
    assert_eq!((ask(&mut bench), ask(&mut bench)), ("2000000000".into(), "2000000001".into()));
    bench.bus.ctx.endpoint(worker).unwrap().names.have_made((1 << 31) - 2_000_000_000 - 1);
    assert_eq!(ask(&mut bench), i32::MAX.to_string());
    assert_eq!(ask(&mut bench), "2000000002", "the first two are pending still");
    assert!(Id::parse(b"2000000002").unwrap() == Id::Number(2_000_000_002));
}

#[test]
fn an_error_without_an_id_answers_the_only_request_of_its_worker() {
    for (error, delivered) in [
        (r#"{"error":{"code":-32700}}"#, r#"{"id":"a","error":{"code":-32700}}"#),
        (r#"{ "error":{"code":-32700}}"#, r#"{"id":"a", "error":{"code":-32700}}"#),
        (r#"{"jsonrpc":"2.0","id":null,"error":{}}"#, r#"{"jsonrpc":"2.0","id":"a","error":{}}"#),
        (r#"{"error":{"id":null},"i\u0064" : null }"#, r#"{"error":{"id":null},"i\u0064" : "a" }"#),
    ] {
        let mut bench = bench(1);
        let (client, other, worker) = (bench.client(), bench.client(), bench.worker(0));
        bench.write(client, r#"{"id":"a","method":"x"}"#);
        bench.write(worker, error);
        assert_eq!(bench.read_one(client), delivered);
        assert_eq!((bench.bus.view().stats().pending, bench.count(Reason::UnknownId)), (0, 0));
        [client, other].into_iter().for_each(|client| bench.write(client, r#"{"id":"b","method":"x"}"#));
        bench.write(worker, r#"{"id":null,"error":{"code":-32700,"message":"Parse\u0020error\n"}}"#);
        bench.write(worker, r#"{"id":null,"result":{}}"#);
        assert!(bench.read(client).is_empty() && bench.read(other).is_empty(), "it may belong to either");
        let texts: Vec<&str> = bench.reports.iter().map(|report| report.text.as_str()).collect();
        assert!(texts.contains(&r"an error without an id: -32700 Parse error\n"), "{texts:?}");
        assert_eq!((bench.count(Reason::UnknownId), bench.count(Reason::WorkerAnswersTwice)), (2, 0));
    }
}

#[test]
fn an_answer_under_a_rounded_or_cut_id_answers_the_only_client_and_fails_a_request_of_several() {
    for (asked, answered, says) in [
        ("5000000000000001", "5e+15", "5e+15 is 5000000000000001 rounded"),
        ("1785312345678123", "1.7853123456781e+15", "is 1785312345678123 rounded"),
        ("16777217", "1.67772e+07", "1.67772e+07 is 16777217 rounded"),
        ("4294967303", "7", "7 is 4294967303 cut to 32 bits"),
        ("4294967295", "-1", "-1 is 4294967295 cut to 32 bits"),
        ("7", r#""7.0""#, "is 7 as a string"),
    ] {
        for is_shared in [false, true] {
            let mut bench = bench(1);
            let (client, worker) = (bench.client(), bench.worker(0));
            if is_shared {
                let other = bench.client();
                bench.write(other, r#"{"method":"x"}"#);
            }
            bench.write(client, &format!(r#"{{"id":{asked},"method":"x"}}"#));
            bench.write(client, r#"{"id":1,"method":"x"}"#);
            bench.write(worker, &format!(r#"{{"id":{answered},"result":1}}"#));
            if is_shared {
                let (reason, code, id) = bench.read_error(client);
                assert_eq!((reason.as_str(), code, id.to_string().as_str()), ("unknown_id", -32603, asked));
            } else {
                assert_eq!(bench.read_one(client), format!(r#"{{"id":{asked},"result":1}}"#));
            }
            assert!(bench.reports.iter().any(|report| report.text.contains(says)), "{says}: {:?}", bench.reports);
            assert_eq!(bench.bus.view().stats().pending, 1);
        }
    }
}

#[test]
fn a_whole_number_that_is_near_a_pending_one_does_not_answer_it() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1000001,"method":"x"}"#);
    bench.write(worker, r#"{"id":1000000,"result":"a second answer"}"#);
    assert!(bench.read(client).is_empty());
    assert_eq!(bench.count(Reason::UnknownId), 1);
}
