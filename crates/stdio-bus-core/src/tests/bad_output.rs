//! What is passed over: byte order marks, and what workers write that is no message or is too long.

use super::*;
use crate::settings::BadOutput;

/// One worker, whose bad output is passed over, and which may write lines of 4,000 bytes.
fn skipping() -> Bench {
    let pool = Pool { on_bad_output: Some(BadOutput::Skip), ..pool(1, Assignment::RoundRobin) };
    let mut settings = settings(vec![pool]);
    settings.limits.max_input_buffer = 1000;
    Bench::new(settings)
}

/// Writes bytes in pieces of this length.
fn in_pieces(bench: &mut Bench, peer: Peer, bytes: &[u8], piece: usize) {
    bytes.chunks(piece).for_each(|piece| bench.write_bytes(peer, piece));
}

#[test]
fn a_byte_order_mark_ahead_of_the_first_line_is_passed_over() {
    for piece in [1, 2, 3, 1000] {
        let mut bench = bench(1);
        let (client, worker) = (bench.client(), bench.worker(0));
        in_pieces(&mut bench, client, b"\xef\xbb\xbf{\"id\":1,\"method\":\"m\"}\n{\"id\":2,\"method\":\"m\"}\n", piece);
        assert_eq!(bench.read(worker), [r#"{"id":1,"method":"m"}"#, r#"{"id":2,"method":"m"}"#], "pieces of {piece}");
        in_pieces(&mut bench, worker, b"\xef\xbb\xbf{\"id\":1,\"result\":1}\n{\"id\":2,\"result\":2}\n", piece);
        assert_eq!(bench.read(client), [r#"{"id":1,"result":1}"#, r#"{"id":2,"result":2}"#]);
        bench.write_bytes(client, b"\xef\xbb\xbf{\"id\":3,\"method\":\"m\"}\n");
        assert_eq!(bench.read_error(client).0, "client_malformed", "it is ahead of the first line alone");
    }
}

#[test]
fn a_second_byte_order_mark_is_malformed() {
    let mut bench = bench(1);
    let client = bench.client();
    bench.write_bytes(client, b"\xef\xbb\xbf\xef\xbb\xbf{\"id\":1,\"method\":\"m\"}\n");
    assert_eq!(bench.read_error(client).0, "client_malformed");
    let client = bench.client();
    bench.write_bytes(client, b"\xef\xbbx{\"id\":1,\"method\":\"m\"}\n");
    assert_eq!(bench.read_error(client).0, "client_malformed");
}

#[test]
fn lines_of_a_worker_that_are_no_messages_are_logged_and_passed_over() {
    for piece in [1, 7, 10_000] {
        let mut bench = skipping();
        let (client, worker) = (bench.client(), bench.worker(0));
        in_pieces(&mut bench, worker, b"MCP Server running on stdio\n", piece);
        for id in 1..=5 {
            bench.write(client, &format!(r#"{{"id":{id},"method":"m"}}"#));
        }
        bench.read(worker);
        let text = "{\"id\":1,\"result\":1}\n[db] Connected\n{\"id\":2,\"result\":2}\n\"text\"\n42\n[]\n{'a': 1}\n\
                    {\"id\":3,\"result\":3}\nn\u{e4}chste\n{\"id\":4,\"result\":4}\n\n{\"id\":5,\"result\":5}\n";
        in_pieces(&mut bench, worker, text.as_bytes(), piece);
        let answers: Vec<String> = (1..=5).map(|id| format!(r#"{{"id":{id},"result":{id}}}"#)).collect();
        assert_eq!(bench.read(client), answers, "pieces of {piece}");
        let logged =
            ["MCP Server running on stdio", "[db] Connected", "\"text\"", "42", "[]", "{'a': 1}", "n\u{e4}chste"];
        assert_eq!(bench.bad_lines, logged);
        assert_eq!((bench.count(Reason::WorkerStdout), bench.count(Reason::WorkerMalformed)), (7, 0));
        assert!(bench.signals_to(worker).is_empty());
    }
}

#[test]
fn what_a_worker_writes_of_a_line_before_its_end_is_logged() {
    let mut bench = skipping();
    let worker = bench.worker(0);
    let long = "fatal error ".repeat(1_000);
    bench.write_bytes(worker, long.as_bytes());
    bench.dies(worker);
    assert_eq!(bench.bad_lines, [&long[..4096]]);
}

#[test]
fn an_answer_that_is_not_valid_json_fails_its_request_alone() {
    let mut bench = skipping();
    let (client, worker) = (bench.client(), bench.worker(0));
    for id in 1..=3 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"m"}}"#));
    }
    bench.write(worker, r#"{"id":1,"result":{"a":1,}}"#);
    assert_eq!(bench.read_error(client), ("worker_malformed".to_owned(), -32011, 1.into()));
    bench.write(worker, r#"{"id":2,"id":3,"result":1}"#);
    assert!(bench.read(client).is_empty(), "it may answer either");
    bench.write(worker, r#"{"id":2,"result":2}"#);
    assert_eq!(bench.read_json(client)["result"], 2);
    assert!(bench.signals_to(worker).is_empty());
}

#[test]
fn the_requests_that_a_worker_answers_in_an_array_fail_at_once() {
    for (piece, length) in [(1, 10), (10_000, 10), (100, 9_000)] {
        let mut bench = skipping();
        let (client, worker) = (bench.client(), bench.worker(0));
        for id in 1..=4 {
            bench.write(client, &format!(r#"{{"id":{id},"method":"m"}}"#));
        }
        let text = "x".repeat(length);
        let array = format!(
            r#"[{{"id":1,"result":"{text}"}}, {{"method":"notifications/message"}},{{"id":99,"result":1}},{{"id":3,"error":{{}}}}]"#
        );
        in_pieces(&mut bench, worker, format!("{array}\n").as_bytes(), piece);
        let failed = bench.read(client).into_iter().map(|line| serde_json::from_str::<Value>(&line).unwrap());
        let failed: Vec<Value> = failed.map(|it| json!([it["id"], it["error"]["data"]["reason"]])).collect();
        assert_eq!(failed, [json!([1, "worker_malformed"]), json!([3, "worker_malformed"])], "{length} bytes");
        bench.write(worker, r#"{"id":2,"result":2}"#);
        bench.write(worker, r#"{"id":4,"result":4}"#);
        assert_eq!(bench.read(client).len(), 2, "the others are answered");
        assert!(bench.signals_to(worker).is_empty());
    }
}

#[test]
fn a_flood_of_lines_that_are_no_messages_ends_the_worker() {
    let mut bench = skipping();
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.write_bytes(worker, &b"x\n".repeat(900));
    assert_eq!(bench.count(Reason::WorkerMalformed), 0, "a long banner is none");
    for _ in 0..10 {
        bench.pass(milliseconds(100));
        bench.write_bytes(worker, &b"x\n".repeat(200));
    }
    let (reason, code, id) = bench.read_error(client);
    assert_eq!((reason.as_str(), code, id), ("worker_exited", -32011, 1.into()));
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
}

/// An answer of about this many bytes.
fn answer(id: &str, length: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{}"}}"#, "x".repeat(length))
}

#[test]
fn an_answer_that_is_too_long_costs_its_own_request_alone() {
    for piece in [1, 100, 100_000] {
        let mut bench = skipping();
        let (one, other, worker) = (bench.client(), bench.client(), bench.worker(0));
        bench.write(one, r#"{"id":1,"method":"m"}"#);
        bench.write(other, r#"{"id":2,"method":"session/new"}"#);
        bench.write(worker, r#"{"id":2,"result":{"sessionId":"s"}}"#);
        bench.read(other);
        bench.write(other, r#"{"id":"a","method":"m","params":{"sessionId":"s"}}"#);
        let lines = bench.read(worker);
        let id = |line: &String| serde_json::from_str::<Value>(line).unwrap()["id"].to_string();
        in_pieces(&mut bench, worker, format!("{}\n", answer(&id(&lines[0]), 20_000)).as_bytes(), piece);
        let error = bench.read_json(one);
        assert_eq!((&error["id"], &error["error"]["code"]), (&json!(1), &json!(-32011)), "pieces of {piece}");
        assert_eq!(error["error"]["data"], json!({ "reason": "worker_line_too_long", "delivered": true }));
        let text = error["error"]["message"].as_str().unwrap();
        assert!(text.contains("4 times limits.max_input_buffer, 4000 bytes"), "{text}");
        bench.write(worker, &format!(r#"{{"id":{},"result":"b"}}"#, id(&lines[2])));
        assert_eq!(bench.read_json(other)["result"], "b", "another's session continues");
        bench.write(one, r#"{"id":1,"method":"m"}"#);
        let again = bench.read_one(worker);
        bench.write(worker, &answer(&id(&again), 3_900));
        assert_eq!(bench.read_json(one)["id"], 1, "the one below the limit comes");
        assert!(bench.signals_to(worker).is_empty());
    }
}

#[test]
fn the_id_of_a_line_that_is_too_long_may_stand_at_its_end() {
    let mut bench = skipping();
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    in_pieces(&mut bench, worker, format!("{{\"result\":\"{}\",\"id\":1}}\n", "x".repeat(9_000)).as_bytes(), 512);
    assert_eq!(bench.read_error(client), ("worker_line_too_long".to_owned(), -32011, 1.into()));
    assert!(bench.signals_to(worker).is_empty());
}

#[test]
fn a_line_that_is_too_long_and_says_not_which_request_it_answers_ends_the_worker() {
    let mut bench = skipping();
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.write(worker, &format!("{{\"result\":\"{}\"}}", "x".repeat(9_000)));
    assert_eq!(bench.read_error(client), ("worker_exited".to_owned(), -32011, 1.into()));
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
}

#[test]
fn a_question_of_a_worker_that_is_too_long_gets_an_error_and_a_notification_is_reported() {
    let mut bench = skipping();
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.read(worker);
    let long = "x".repeat(9_000);
    bench.write(worker, &format!(r#"{{"id":"q","method":"sampling/createMessage","params":{{"x":"{long}"}}}}"#));
    assert_eq!(bench.read_error(worker), ("worker_line_too_long".to_owned(), -32011, "q".into()));
    bench.write(worker, &format!(r#"{{"method":"notifications/message","params":{{"x":"{long}"}}}}"#));
    bench.write(worker, &"no message ".repeat(1000));
    assert_eq!(bench.count(Reason::WorkerLineTooLong), 3);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    assert_eq!(bench.read_json(client)["result"], 1);
    assert!(bench.signals_to(worker).is_empty());
}

#[test]
fn a_line_that_never_ends_ends_its_worker() {
    let mut bench = skipping();
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.write_bytes(worker, br#"{"id":1,"result":""#);
    for _ in 0..1_000 {
        bench.write_bytes(worker, &[b'x'; 1_000]);
        bench.pass(milliseconds(60));
    }
    assert_eq!(bench.read_error(client).0, "worker_exited", "64 times the longest line");
    assert_eq!(bench.signals_to(worker)[0], Signal::Terminate);
    let mut bench = skipping();
    let worker = bench.worker(0);
    bench.write_bytes(worker, &[b'x'; 9_000]);
    for _ in 0..15 {
        bench.write_bytes(worker, b"slow");
        bench.pass(seconds(10));
    }
    assert_eq!(bench.signals_to(worker)[0], Signal::Terminate, "two minutes");
}

#[test]
fn the_error_of_a_worker_that_is_replaced_names_the_key() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.limits.max_input_buffer = 1000;
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.write(worker, &answer("1", 9_000));
    let text = bench.read_json(client)["error"]["message"].as_str().unwrap().to_owned();
    assert!(text.contains("4 times limits.max_input_buffer, 4000 bytes; raise that"), "{text}");
    let mut bench = super::bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.write(worker, "a banner");
    let text = bench.read_json(client)["error"]["message"].as_str().unwrap().to_owned();
    assert!(text.contains("pools[].on_bad_output"), "{text}");
}

#[test]
fn bad_output_is_passed_over_by_default_where_http_listeners_alone_offer_the_pool() {
    let http = || Listener { mcp: true, ..Listener::default() };
    let first = |listener: Listener| Listener { pools: Some(places(&[0])), ..listener };
    for (listeners, expected) in [
        (vec![http()], BadOutput::Skip),
        (vec![http(), Listener::default()], BadOutput::Restart),
        (vec![Listener::default()], BadOutput::Restart),
        (vec![], BadOutput::Restart),
        (vec![http(), Listener { is_gone: true, ..Listener::default() }], BadOutput::Skip),
    ] {
        let settings = Settings { listeners, ..settings(vec![pool(1, Assignment::Client)]) };
        assert_eq!(settings.on_bad_output(0), expected, "{:?}", settings.listeners);
    }
    let pools = vec![pool(1, Assignment::Client), pool(1, Assignment::Client)];
    let mut settings = Settings { listeners: vec![first(Listener::default()), http()], ..settings(pools) };
    assert_eq!([0, 1].map(|pool| settings.on_bad_output(pool)), [BadOutput::Restart, BadOutput::Skip]);
    settings.pools[1].on_bad_output = Some(BadOutput::Restart);
    assert_eq!(settings.on_bad_output(1), BadOutput::Restart);
}

#[test]
fn a_line_with_half_an_escape_in_a_key_or_an_id_is_passed_over() {
    let long = format!(r#"{{"{}\u0041":1}}"#, "a".repeat(60));
    for line in
        [r#"{"\u":1}"#, r#"{"\ud83d\u":1}"#, r#"{"id":"\u","result":1}"#, r#"[{"id":"\u12","result":1},"#, &long]
    {
        let mut bench = skipping();
        let (client, worker) = (bench.client(), bench.worker(0));
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        bench.write(worker, &line.replace(":1}", ":01}"));
        bench.write(worker, r#"{"id":1,"result":7}"#);
        assert_eq!(bench.read_json(client)["result"], 7, "{line}");
        assert!(bench.signals_to(worker).is_empty(), "{line}");
    }
}
