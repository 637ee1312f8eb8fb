//! Nothing hangs: the asker gets an error for anything that cannot be delivered or answered any more (decisions 8, 9).

use super::*;

fn error_of(bench: &mut Bench, client: Peer, line: &str) -> (String, i64, Value) {
    bench.write(client, line);
    bench.read_error(client)
}

#[test]
fn a_request_that_cannot_be_delivered_is_answered_with_its_reason() {
    let long_id = format!(r#"{{"id":"{}","method":"x"}}"#, "i".repeat(129));
    let long_session = format!(r#"{{"id":2,"method":"x","sessionId":"{}"}}"#, "s".repeat(257));
    let long_inner = long_session.replace(r#""sessionId""#, r#""sessionId":"short","params":{"sessionId""#) + "}";
    for (line, id, expected, code) in [
        (long_id.as_str(), Value::from("i".repeat(129)), "id_too_long", -32602),
        (long_session.as_str(), Value::from(2), "session_id_too_long", -32602),
        (long_inner.as_str(), Value::from(2), "session_id_too_long", -32602),
        (r#"{"id":3,"method":"x","pool":"nowhere"}"#, Value::from(3), "unknown_pool", -32602),
    ] {
        let mut bench = bench(1);
        let (client, worker) = (bench.client(), bench.worker(0));
        assert_eq!(error_of(&mut bench, client, line), (expected.to_owned(), code, id));
        assert!(bench.read(worker).is_empty(), "never truncated, never sent elsewhere");
        assert_eq!(bench.how_closed(client), None);
        assert_eq!((bench.bus.view().stats().sessions, bench.bus.view().stats().pending), (0, 0));
    }
}

#[test]
fn without_a_running_worker_a_request_is_answered_at_once() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.dies(worker);
    let (reason, code, _) = error_of(&mut bench, client, r#"{"id":1,"method":"x"}"#);
    assert_eq!((reason.as_str(), code), ("no_worker", -32010));
    bench.write(client, r#"{"method":"x"}"#);
    assert_eq!(bench.count(Reason::NoWorker), 2, "a notification is dropped, reported and counted");
    assert!(bench.read(client).is_empty());
}

#[test]
fn every_pending_request_of_a_dead_worker_is_answered_in_the_order_of_asking() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    for id in 0..5 {
        bench.write(first, &format!(r#"{{"id":{id},"method":"x"}}"#));
        bench.write(second, &format!(r#"{{"id":{id},"method":"x","sessionId":"s"}}"#));
    }
    bench.dies(worker);
    for (client, session) in [(first, Value::Null), (second, Value::from("s"))] {
        let errors: Vec<Value> = bench.read(client).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(errors.iter().map(|error| error["id"].as_i64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        for error in &errors {
            assert_eq!(error["error"]["code"], -32011);
            assert_eq!(error["error"]["data"]["reason"], "worker_exited");
            assert_eq!(error["sessionId"], session, "spec 5.2.2");
        }
    }
    assert_eq!(bench.count(Reason::RequestLost), 10);
}

#[test]
fn a_replaced_id_is_restored_in_an_error_too() {
    let mut bench = bench(1);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(first, r#"{"id":"\u0061","method":"x"}"#);
    bench.write(second, r#"{"id":"\u0061","method":"x"}"#);
    bench.dies(worker);
    assert!(bench.read_one(second).contains(r#""id":"\u0061","#));
    assert_eq!(bench.read_json(first)["id"], "a");
}

#[test]
fn a_request_that_waits_too_long_is_answered_and_its_late_answer_discarded() {
    let mut slow = settings(vec![pool(1, Assignment::RoundRobin)]);
    slow.pools[0].request_timeout = Some(seconds(3));
    let mut bench = Bench::new(slow);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(seconds(1));
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    bench.pass(milliseconds(1999));
    assert!(bench.read(client).is_empty());
    bench.pass(milliseconds(1));
    let (reason, code, id) = bench.read_error(client);
    assert_eq!((reason.as_str(), code, id), ("timeout", -32015, Value::from(1)));
    bench.write(worker, r#"{"id":1,"result":"late"}"#);
    bench.write(worker, r#"{"id":2,"result":"in time"}"#);
    assert_eq!(bench.read_one(client), r#"{"id":2,"result":"in time"}"#);
    assert_eq!(bench.count(Reason::LateAnswer), 1);
    bench.pass(seconds(10));
    assert!(bench.read(client).is_empty());
    assert_eq!(bench.bus.view().stats().pending, 0);
}

#[test]
fn a_late_answer_is_not_taken_for_the_answer_to_a_new_request_with_the_same_id() {
    let mut slow = settings(vec![pool(1, Assignment::RoundRobin)]);
    slow.pools[0].request_timeout = Some(seconds(3));
    let mut bench = Bench::new(slow);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"old"}"#);
    bench.pass(seconds(3));
    bench.read(client);
    bench.read(worker);
    bench.write(client, r#"{"id":1,"method":"new"}"#);
    let wire: Value = serde_json::from_str(&bench.read_one(worker)).unwrap();
    bench.write(worker, r#"{"id":1,"result":"old"}"#);
    bench.write(worker, &format!(r#"{{"id":{},"result":"new"}}"#, wire["id"]));
    assert_eq!(bench.read_one(client), r#"{"id":1,"result":"new"}"#);
}

#[test]
fn a_peer_with_another_protocol_learns_which_one_and_how_it_began() {
    for (bytes, text) in [
        (&b"GET /acp?token=secret HTTP/1.1\r\nHost: a\r\n\r\n"[..], "HTTP, not JSON; the line begins \"GET /acp\""),
        (b"\x16\x03\x01\x02\x00\x01\n", "TLS, not JSON; the line begins \"\\x16\\x03"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "SSH, not JSON; the line begins \"SSH-2.0-OpenSSH_9.2p1\""),
        (b"Content-Length: 2\r\n\r\n{}", "headers before a message (as in LSP), not JSON"),
        (
            b"{\n  \"id\": 1\n}\n",
            "not JSON: the line ends within a message, at byte 1; each message has to be one line",
        ),
    ] {
        let mut bench = bench(1);
        let client = bench.client();
        bench.write_bytes(client, bytes);
        let error = bench.read_json(client)["error"].take();
        let message = error["message"].as_str().expect("text");
        assert!(message.contains(text) && !message.contains("secret"), "{message}");
        let warning = bench.reports.iter().find(|report| report.reason == Reason::ClientMalformed).unwrap();
        assert!(warning.text.contains(text), "{}", warning.text);
    }
}

#[test]
fn a_worker_that_writes_no_messages_learns_what_belongs_on_stdout() {
    for (bytes, text) in [
        (&b"Starting...\n"[..], "not JSON, at byte 0 of the line, which begins \"Starting...\"; a worker"),
        (b"{\n  \"id\": 1\n}\n", "not JSON: the line ends within a message, at byte 1, which begins \"{\"; a worker"),
        (b"Content-Length: 2\r\n\r\n{}", "(as in LSP), not JSON; the line begins \"Content-Length: 2\"; a worker"),
    ] {
        let mut bench = bench(1);
        let worker = bench.worker(0);
        bench.write_bytes(worker, bytes);
        let error = bench.reports.iter().find(|report| report.reason == Reason::WorkerMalformed).unwrap();
        assert!(error.text.contains(text), "{}", error.text);
        let advice = "writes each message as one line of JSON to stdout, and everything else to stderr (or on_bad_output is \"skip\")";
        assert!(error.text.ends_with(advice), "{}", error.text);
    }
}

#[test]
fn a_line_that_is_not_a_json_object_gets_a_parse_error_and_a_close() {
    for line in [
        &b"hello\n"[..],
        b"{\"id\":1,\"method\":\"x\"\n",
        b"[]\n",
        b"1\n",
        b"null\n",
        b"{}{}\n",
        b"{\"id\":1} x\n",
        b"{\"a\":\"\xff\"}\n",
        b"{\"id\":true,\"method\":\"x\"}\n",
        b"{\"id\":[],\"method\":\"x\"}\n",
        b"{\"id\":{},\"method\":\"x\"}\n",
    ] {
        let mut bench = bench(1);
        let (client, worker) = (bench.client(), bench.worker(0));
        bench.write_bytes(client, b"{\"id\":1,\"method\":\"before\"}\n");
        bench.write_bytes(client, line);
        bench.read(worker);
        let errors: Vec<Value> = bench.read(client).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let summary = |error: &Value| {
            let error = [&error["id"], &error["error"]["code"], &error["error"]["data"]["reason"]];
            error.map(Value::to_string).join(" ")
        };
        let expected = [r#"1 -32011 "request_discarded""#, r#"null -32700 "client_malformed""#];
        assert_eq!(errors.iter().map(summary).collect::<Vec<_>>(), expected, "what was asked before has an end, too");
        assert_eq!(bench.how_closed(client), Some(Close::Flush));
        bench.write_bytes(client, b"{\"id\":2,\"method\":\"after\"}\n");
        assert!(bench.read(worker).is_empty(), "it is not listened to any more");
        let warning = bench.reports.iter().find(|report| report.reason == Reason::ClientMalformed).unwrap();
        assert_eq!((warning.level, warning.client), (crate::report::Level::Warn, Some(0)));
        assert!(!warning.text.contains("hello"), "what clients send stays private");
    }
}

#[test]
fn the_lines_before_a_malformed_one_are_handled() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write_bytes(client, b"{\"method\":\"a\"}\n{\"method\":\"b\"}\nc\n{\"method\":\"d\"}\n");
    assert_eq!(bench.read(worker), [r#"{"method":"a"}"#, r#"{"method":"b"}"#]);
}

#[test]
fn an_error_reply_reveals_its_id_only_up_to_a_length() {
    let mut bench = bench(1);
    let client = bench.client();
    let line = format!(r#"{{"id":"{}","method":"x"}}"#, "i".repeat(5000));
    assert_eq!(error_of(&mut bench, client, &line).2, Value::Null);
}
