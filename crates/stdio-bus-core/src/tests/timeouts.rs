//! Time limits of requests: when they begin, and who is notified that a request was given up.

use super::*;

const LIMIT: Duration = seconds(3);

fn limited(assignment: Assignment) -> Settings {
    let pool = Pool { request_timeout: Some(LIMIT), ..pool(1, assignment) };
    settings(vec![pool])
}

fn limited_bench(assignment: Assignment) -> Bench {
    Bench::new(limited(assignment))
}

fn methods(lines: &[String]) -> Vec<String> {
    let method =
        |line: &String| serde_json::from_str::<Value>(line).unwrap()["method"].as_str().unwrap_or("-").to_owned();
    lines.iter().map(method).collect()
}

/// The reason, the id and whether it was delivered, of each error that `peer` was sent.
fn errors(bench: &mut Bench, peer: Peer) -> Vec<(String, Value, Value)> {
    let error = |line: String| {
        let value: Value = serde_json::from_str(&line).unwrap();
        let data = value["error"]["data"].clone();
        (data["reason"].as_str().unwrap_or("-").to_owned(), value["id"].clone(), data["delivered"].clone())
    };
    bench.read(peer).into_iter().map(error).collect()
}

fn waited_in_vain(id: u32) -> (String, Value, Value) {
    ("timeout".into(), id.into(), false.into())
}

/// Other clients' lines fill what a worker that reads nothing may get.
fn flooded(settings: Settings) -> (Bench, Peer) {
    let mut bench = Bench::new(settings);
    let (flooder, worker) = (bench.client(), bench.worker(0));
    bench.client();
    bench.wire(worker).unread = 1 << 30;
    while !bench.is_paused(flooder) {
        bench.write(flooder, &format!(r#"{{"method":"x","params":"{}"}}"#, "f".repeat(200)));
    }
    bench.read(worker);
    (bench, worker)
}

#[test]
fn the_time_of_a_request_runs_while_it_waits_for_its_turn_at_a_worker_that_reads_nothing() {
    let (mut bench, worker) = flooded(limited(Assignment::RoundRobin));
    let client = bench.client();
    bench.write(client, r#"{"method":"first"}"#);
    bench.read(worker);
    bench.write(client, "{\"id\":1,\"method\":\"x\"}\n{\"id\":2,\"method\":\"x\"}");
    assert!(bench.is_paused(client), "its second line has to wait");
    bench.pass(LIMIT - milliseconds(1));
    assert!(bench.read(client).is_empty());
    bench.pass(milliseconds(1));
    assert_eq!(errors(&mut bench, client), [waited_in_vain(1), waited_in_vain(2)]);
    assert!(bench.read(worker).is_empty() && !bench.is_paused(client));
    assert_eq!(bench.count(Reason::Timeout), 2);
}

#[test]
fn the_time_of_a_request_runs_behind_the_full_queue_of_a_worker() {
    for assignment in [Assignment::RoundRobin, Assignment::Client, Assignment::Dedicated] {
        let mut tight = limited(assignment);
        tight.limits.max_output_queue = 100;
        let mut bench = Bench::new(tight);
        let (client, worker) = (bench.client(), bench.worker(0));
        bench.stalls(worker);
        bench.write(client, &format!(r#"{{"method":"x","params":"{}"}}"#, "a".repeat(100)));
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        bench.pass(seconds(1));
        assert!(bench.is_paused(client));
        bench.pass(seconds(2));
        assert_eq!(errors(&mut bench, client), [waited_in_vain(1)], "{assignment:?}");
    }
}

#[test]
fn a_request_that_had_to_wait_has_only_the_rest_of_its_time_for_the_answer() {
    let mut tight = limited(Assignment::RoundRobin);
    tight.limits.max_output_queue = 100;
    let mut bench = Bench::new(tight);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.stalls(worker);
    bench.write(client, &format!(r#"{{"method":"x","params":"{}"}}"#, "a".repeat(100)));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.pass(seconds(2));
    bench.wire(worker).stalls = false;
    bench.takes(worker, usize::MAX);
    assert_eq!(methods(&bench.read(worker)), ["x", "x"]);
    bench.pass(milliseconds(999));
    assert!(bench.read(client).is_empty());
    bench.pass(milliseconds(1));
    assert_eq!(errors(&mut bench, client), [("timeout".into(), 1.into(), true.into())]);
}

#[test]
fn the_time_of_a_request_runs_while_no_worker_is_free_for_it() {
    let mut spares = limited(Assignment::Dedicated);
    spares.pools[0].max_instances = 3;
    let mut bench = Bench::starting(spares);
    let (first, client) = (bench.client(), bench.client());
    bench.write(first, r#"{"method":"x"}"#);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert!(bench.is_paused(client), "one worker is started at a time");
    bench.pass(LIMIT - milliseconds(1));
    assert!(bench.read(client).is_empty());
    bench.pass(milliseconds(1));
    assert_eq!(errors(&mut bench, client), [waited_in_vain(1)]);
    assert!(!bench.is_paused(client));
}

#[test]
fn the_time_of_a_request_begins_with_its_newline_also_behind_lines_that_waited() {
    let mut spares = limited(Assignment::Dedicated);
    spares.pools[0].max_instances = 3;
    let mut bench = Bench::starting(spares);
    let (first, client) = (bench.client(), bench.client());
    bench.write(first, r#"{"method":"x"}"#);
    // As many lines as are read at once, a blank one, and the next request but for its newline.
    let lines = [r#"{"id":1,"method":"x"}"#].into_iter().chain([r#"{"id":1,"result":1}"#; 63]);
    let text = lines.map(|line| format!("{line}\n")).collect::<String>() + "\n" + r#"{"id":2,"method":"x"}"#;
    bench.write_bytes(client, text.as_bytes());
    bench.pass(LIMIT);
    assert_eq!(errors(&mut bench, client), [waited_in_vain(1)]);
    bench.write_bytes(client, b"\n");
    assert!(bench.read(client).is_empty() && bench.is_paused(client), "it waits for a worker");
}

#[test]
fn notifications_that_wait_for_room_are_not_given_up() {
    let mut tight = limited(Assignment::RoundRobin);
    tight.limits.max_output_queue = 100;
    let mut bench = Bench::new(tight);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.stalls(worker);
    for letter in ["a", "b"] {
        bench.write(client, &format!(r#"{{"method":"{letter}","params":"{}"}}"#, "x".repeat(100)));
    }
    bench.pass(seconds(20));
    assert!(bench.is_paused(client));
    bench.wire(worker).stalls = false;
    bench.takes(worker, usize::MAX);
    assert_eq!(methods(&bench.read(worker)), ["a", "b"]);
}

#[test]
fn a_worker_of_acp_gets_a_cancellation_with_its_own_id_that_a_request_was_given_up() {
    let mut bench = limited_bench(Assignment::RoundRobin);
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(first, r#"{"id":7,"method":"initialize","params":{"protocolVersion":1}}"#);
    bench.write(second, r#"{"id":7,"method":"x"}"#);
    let sent: Value = serde_json::from_str(bench.read(worker).last().unwrap()).unwrap();
    bench.write(worker, r#"{"id":7,"result":{}}"#);
    assert_ne!(sent["id"], 7);
    bench.pass(LIMIT);
    assert_eq!(errors(&mut bench, second), [("timeout".into(), 7.into(), true.into())]);
    let cancel = bench.read_json(worker);
    assert_eq!((cancel["method"].as_str(), &cancel["params"]["requestId"]), (Some("$/cancel_request"), &sent["id"]));
}

#[test]
fn a_worker_of_mcp_gets_a_notification_and_its_slot_is_free_a_moment_later() {
    let mut bench = limited_bench(Assignment::RoundRobin);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#);
    bench.write(worker, r#"{"id":0,"result":{}}"#);
    bench.write(client, r#"{"id":"a","method":"tools/call"}"#);
    bench.read(worker);
    bench.read(client);
    bench.pass(LIMIT);
    let cancel = bench.read_json(worker);
    assert_eq!(cancel["method"], "notifications/cancelled");
    assert_eq!(cancel["params"]["requestId"], "a");
    assert!(cancel["params"]["reason"].as_str().unwrap().contains("request_timeout_sec"));
    bench.pass(seconds(6));
    assert_eq!(bench.bus.view().stats().pending, 0);
    assert_eq!(bench.read(worker), [""; 0], "it is notified once");
}

#[test]
fn the_initialize_of_mcp_is_not_cancelled() {
    let mut bench = limited_bench(Assignment::RoundRobin);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#);
    bench.read(worker);
    bench.pass(LIMIT);
    assert_eq!(bench.read_error(client).0, "timeout");
    assert!(bench.read(worker).is_empty());
}

#[test]
fn a_request_with_a_progress_token_is_one_of_mcp_and_a_language_server_gets_its_own_words() {
    for (first, method, at) in [
        (r#"{"id":1,"method":"x","params":{"_meta":{"progressToken":1}}}"#, "notifications/cancelled", "requestId"),
        (r#"{"id":1,"method":"x","params":{"_meta":{"progressToken":"t"}}}"#, "notifications/cancelled", "requestId"),
        (r#"{"id":1,"method":"initialize","params":{"processId":null}}"#, "$/cancelRequest", "id"),
        (r#"{"id":1,"method":"x"}"#, "$/cancel_request", "requestId"),
    ] {
        let mut bench = limited_bench(Assignment::RoundRobin);
        let (client, worker) = (bench.client(), bench.worker(0));
        bench.write(client, first);
        bench.read(worker);
        bench.pass(LIMIT);
        let cancel = bench.read_json(worker);
        assert_eq!((cancel["method"].as_str(), &cancel["params"][at]), (Some(method), &json!(1)), "{first}");
    }
}

/// A prompt of a session that its worker has given out, and the permission that the worker asks for.
fn prompted(cancels: bool) -> (Bench, Peer, Peer) {
    let mut settings = limited(Assignment::RoundRobin);
    settings.pools[0].cancel_on_disconnect = cancels;
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"s"}}"#);
    bench.write(client, r#"{"id":2,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    bench.pass(seconds(1));
    bench.write(worker, r#"{"id":"p","method":"session/request_permission","params":{"sessionId":"s"}}"#);
    bench.read(client);
    bench.read(worker);
    (bench, client, worker)
}

#[test]
fn a_permission_is_withdrawn_with_the_prompt_that_it_belongs_to() {
    for cancels in [false, true] {
        let (mut bench, client, worker) = prompted(cancels);
        bench.pass(seconds(2));
        let lines = bench.read(worker);
        let before: &[&str] = if cancels { &["session/cancel"] } else { &[] };
        assert_eq!(methods(&lines), [before, &["$/cancel_request", "-"]].concat());
        let refusal: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
        assert_eq!((&refusal["id"], &refusal["error"]["data"]["reason"]), (&json!("p"), &json!("timeout")));
        let heard = bench.read(client);
        assert_eq!(methods(&heard), ["-", "$/cancel_request"]);
        let cancel: Value = serde_json::from_str(&heard[1]).unwrap();
        assert_eq!(cancel["params"]["requestId"], "p");
        bench.write(client, r#"{"id":"p","result":{"outcome":{"outcome":"cancelled"}}}"#);
        assert!(bench.read(worker).is_empty(), "it has its answer");
        assert_eq!(bench.count(Reason::LateAnswer), 1);
        bench.pass(seconds(6));
        assert_eq!(bench.bus.view().stats().pending, 0);
    }
}

#[test]
fn another_request_of_the_session_that_times_out_ends_neither_the_prompt_nor_its_permission() {
    let (mut bench, client, worker) = prompted(true);
    bench.write(worker, r#"{"id":2,"result":{"stopReason":"end_turn"}}"#);
    bench.write(client, r#"{"id":3,"method":"session/set_mode","params":{"sessionId":"s"}}"#);
    bench.pass(seconds(1));
    bench.write(client, r#"{"id":4,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    bench.write(worker, r#"{"id":"q","method":"session/request_permission","params":{"sessionId":"s"}}"#);
    bench.read(client);
    bench.read(worker);
    bench.pass(seconds(2));
    // The first permission ran out of its own time.
    assert_eq!(methods(&bench.read(worker)), ["-", "$/cancel_request"]);
    let given_up = |line: &String| line.contains("\"q\"");
    let heard = bench.read(client);
    assert!(heard.iter().any(|line| line.contains("\"id\":3")) && !heard.iter().any(given_up), "{heard:?}");
}

#[test]
fn an_elicitation_that_names_a_request_is_withdrawn_with_it() {
    let mut bench = limited_bench(Assignment::RoundRobin);
    let (client, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(other, r#"{"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#);
    bench.write(worker, r#"{"id":1,"result":{}}"#);
    bench.write(client, r#"{"id":5,"method":"tools/call"}"#);
    bench.pass(seconds(1));
    bench.write(worker, r#"{"id":0,"method":"elicitation/create","params":{"requestId":5}}"#);
    bench.read(client);
    bench.read(worker);
    bench.pass(seconds(2));
    assert_eq!(methods(&bench.read(worker)), ["notifications/cancelled", "-"]);
    assert_eq!(methods(&bench.read(client)), ["-", "notifications/cancelled"]);
}

#[test]
fn a_workers_request_that_its_client_does_not_answer_times_out_too() {
    let mut bench = limited_bench(Assignment::Dedicated);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"method":"hello"}"#);
    bench.read(worker);
    bench.write(worker, r#"{"id":9,"method":"fs/read_text_file"}"#);
    bench.read(client);
    bench.pass(LIMIT);
    assert_eq!(errors(&mut bench, worker), [("timeout".into(), 9.into(), true.into())]);
    let cancel = bench.read_json(client);
    assert_eq!((cancel["method"].as_str(), &cancel["params"]["requestId"]), (Some("$/cancel_request"), &json!(9)));
    bench.write(client, r#"{"id":9,"result":"late"}"#);
    bench.pass(seconds(6));
    bench.write(client, r#"{"id":9,"result":"again"}"#);
    assert!(bench.read(worker).is_empty());
    assert_eq!((bench.count(Reason::LateAnswer), bench.count(Reason::UnknownId)), (1, 1));
}

#[test]
fn an_id_of_a_question_that_was_given_up_is_replaced_until_its_answer_comes() {
    let mut bench = limited_bench(Assignment::Dedicated);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"method":"hello"}"#);
    bench.write(worker, r#"{"id":9,"method":"x"}"#);
    bench.pass(seconds(10));
    bench.read(client);
    bench.read(worker);
    bench.write(worker, r#"{"id":9,"method":"y"}"#);
    let seen = bench.read_json(client)["id"].clone();
    assert_ne!(seen, 9);
    bench.write(client, r#"{"id":9,"result":"to the first"}"#);
    assert!(bench.read(worker).is_empty());
    assert_eq!(bench.count(Reason::UnknownId), 1);
    bench.write(client, &format!(r#"{{"id":{seen},"result":"to the second"}}"#));
    assert_eq!(bench.read_one(worker), r#"{"id":9,"result":"to the second"}"#);
}

#[test]
fn the_time_of_a_workers_request_runs_while_its_client_takes_nothing() {
    let mut tight = limited(Assignment::Dedicated);
    tight.limits.max_output_queue = 100;
    let mut bench = Bench::new(tight);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"method":"hello"}"#);
    bench.read(worker);
    bench.stalls(client);
    bench.write(worker, &format!(r#"{{"method":"x","params":"{}"}}"#, "a".repeat(100)));
    bench.write(worker, r#"{"id":1,"method":"y"}"#);
    assert!(bench.is_paused(worker));
    bench.pass(LIMIT);
    assert_eq!(errors(&mut bench, worker), [waited_in_vain(1)]);
    assert!(!bench.is_paused(worker));
}
