//! The record of each client request that has ended.

use super::*;
use crate::request_log::REFUSED;

/// The id, outcome and code of each request that has ended.
fn ended_requests(bench: &mut Bench) -> Vec<(String, &'static str, Option<i64>)> {
    let mut records = Vec::new();
    bench.bus.take_ended(|ended| {
        let id = String::from_utf8_lossy(ended.id.as_bytes()).into_owned();
        records.push((id, ended.ending.outcome, ended.ending.code));
    });
    records
}

fn recording(settings: Settings) -> Bench {
    let mut bench = Bench::new(settings);
    bench.bus.record_requests(true);
    bench
}

fn with_timeout() -> Bench {
    recording(settings(vec![Pool { request_timeout: Some(seconds(10)), ..pool(1, Assignment::RoundRobin) }]))
}

/// A worker of this pool has room for one request.
fn with_little_room(assignment: Assignment) -> Settings {
    let mut limited = settings(vec![pool(1, assignment)]);
    limited.limits.max_output_queue = 10;
    limited
}

/// A client has sent two requests, and its worker, which does not read, has room for the first one.
fn second_waits(assignment: Assignment) -> (Bench, Peer, Peer) {
    let mut bench = recording(with_little_room(assignment));
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.stalls(worker);
    for id in 1..=2 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"m"}}"#));
    }
    (bench, client, worker)
}

#[test]
fn each_request_is_recorded_once_with_its_outcome() {
    let mut bench = with_timeout();
    let (client, leaves, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m","params":{"sessionId":"s"}}"#);
    bench.write(worker, r#"{"id":1,"result":{}}"#);
    for id in 2..=4 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"m","params":{{"sessionId":"s"}}}}"#));
    }
    bench.write(worker, r#"{"id":2,"result":{}}"#);
    bench.write(worker, r#"{"id":3,"error":{"code":-5,"message":"no"}}"#);
    bench.write(client, r#"{"id":"x","method":"m","pool":"nowhere"}"#);
    bench.write(leaves, r#"{"id":5,"method":"m"}"#);
    bench.breaks(leaves);
    bench.pass(seconds(11));
    bench.write(worker, r#"{"id":4,"result":"too late"}"#);
    bench.write(client, r#"{"id":6,"method":"m"}"#);
    bench.dies(worker);
    let expected = [
        ("1", "answered", None),
        ("2", "answered", None),
        ("3", "error", Some(-5)),
        ("\"x\"", REFUSED, Some(-32602)),
        ("5", "client_left", None),
        ("4", "timeout", Some(-32015)),
        ("6", "worker_exited", Some(-32011)),
    ];
    assert_eq!(ended_requests(&mut bench), expected.map(|(id, outcome, code)| (id.to_owned(), outcome, code)));
    assert_eq!(ended_requests(&mut bench), [], "they are taken");
}

#[test]
fn lines_take_the_fast_path_while_requests_are_recorded() {
    let mut bench = recording(settings(vec![pool(1, Assignment::RoundRobin)]));
    let (client, worker) = (bench.client(), bench.worker(0));
    for id in 1..=3 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"m","params":{{"sessionId":"s"}}}}"#));
        bench.write(worker, &format!(r#"{{"id":{id},"result":{{}}}}"#));
    }
    assert!(bench.bus.view().fast_lines() >= 4, "{}", bench.bus.view().fast_lines());
    assert_eq!(ended_requests(&mut bench).len(), 3);
}

#[test]
fn a_record_has_the_clients_own_id_and_the_session_that_its_request_created() {
    let mut bench = recording(settings(vec![pool(1, Assignment::RoundRobin)]));
    let (one, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(one, r#"{"id":1,"method":"session/new"}"#);
    bench.write(other, r#"{"id":1,"method":"m"}"#);
    let asked: Vec<Value> = bench.read(worker).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    bench.write(worker, &format!(r#"{{"id":{},"result":{{}}}}"#, asked[1]["id"]));
    bench.write(worker, &format!(r#"{{"id":{},"result":{{"sessionId":"made"}}}}"#, asked[0]["id"]));
    let mut records = Vec::new();
    bench.bus.take_ended(|ended| {
        let words = [ended.id, ended.method, ended.session];
        records.push(words.map(|word| String::from_utf8_lossy(word.as_bytes()).into_owned()));
    });
    assert_ne!(asked[0]["id"], asked[1]["id"]);
    assert_eq!(records, [["1", "m", ""], ["1", "session/new", "made"]]);
}

#[test]
fn a_flood_has_so_many_lines_and_the_rest_is_counted() {
    let mut bench = recording(settings(vec![pool(1, Assignment::RoundRobin)]));
    let (client, worker) = (bench.client(), bench.worker(0));
    let (mut lines, mut lost) = (0, 0);
    // No time passes meanwhile.
    for id in 0..20_000 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"m"}}"#));
        bench.write(worker, &format!(r#"{{"id":{id},"result":{{}}}}"#));
        lost += bench.bus.take_ended(|_| lines += 1);
    }
    assert_eq!((lines, lost), (1_000, 19_000));
    bench.pass(milliseconds(100));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.write(worker, r#"{"id":1,"result":{}}"#);
    assert_eq!(ended_requests(&mut bench).len(), 1, "and then there are lines again");
}

#[test]
fn requests_made_before_records_were_enabled_have_none_and_none_are_kept_when_disabled() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"m"}"#);
    bench.bus.record_requests(true);
    bench.write(client, r#"{"id":2,"method":"m"}"#);
    bench.write(worker, r#"{"id":1,"result":{}}"#);
    bench.write(worker, r#"{"id":2,"result":{}}"#);
    assert_eq!(ended_requests(&mut bench), [("2".to_owned(), "answered", None)]);
    bench.write(client, r#"{"id":3,"method":"m"}"#);
    bench.bus.record_requests(false);
    bench.write(worker, r#"{"id":3,"result":{}}"#);
    assert_eq!(ended_requests(&mut bench), []);
}

#[test]
fn a_record_has_the_tool_of_a_call_and_the_id_of_its_trace() {
    let mut bench = recording(settings(vec![pool(1, Assignment::RoundRobin)]));
    let client = bench.client();
    let id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{id}-00f067aa0ba902b7-01");
    let call = |id: u32, params: &str| format!(r#"{{"id":{id},"method":"tools/call","params":{params}}}"#);
    let lines = [
        call(1, &format!(r#"{{"name":"sea\u0072ch","_meta":{{"traceparent":"{parent}"}}}}"#)),
        call(2, &format!(r#"{{"name":7,"traceparent":"{parent}"}}"#)),
        call(3, r#"{"name":"x","_meta":{"traceparent":"00-00000000000000000000000000000000-00f067aa0ba902b7-01"}}"#),
        r#"{"id":4,"method":"prompts/get","params":{"name":"search"}}"#.to_owned(),
        r#"{"id":5,"method":"tools/call","pool":"nowhere","params":{"name":"refused"}}"#.to_owned(),
    ];
    lines.iter().for_each(|line| bench.write(client, line));
    bench.dies(bench.worker(0));
    let mut records = Vec::new();
    bench.bus.take_ended(|ended| {
        let texts = [ended.id, ended.tool, ended.trace];
        records.push(texts.map(|text| String::from_utf8_lossy(text.as_bytes()).into_owned()));
    });
    records.sort();
    let expected = [["1", "search", id], ["2", "", ""], ["3", "x", ""], ["4", "", ""], ["5", "refused", ""]];
    assert_eq!(records, expected);
}

#[test]
fn a_record_says_how_long_a_request_waited_before_its_worker_got_it() {
    let (mut bench, client, worker) = second_waits(Assignment::Dedicated);
    assert!(bench.is_paused(client), "the second one waits for room");
    bench.pass(seconds(3));
    bench.takes(worker, 1000);
    bench.pass(seconds(4));
    for id in 1..=2 {
        bench.write(worker, &format!(r#"{{"id":{id},"result":1}}"#));
    }
    let mut records = Vec::new();
    bench.bus.take_ended(|ended| records.push((ended.waited.as_secs(), ended.took.as_secs())));
    assert_eq!(records, [(0, 7), (3, 4)]);
}

#[test]
fn a_request_whose_client_leaves_before_a_worker_got_it_is_recorded() {
    for (how, outcome) in [("breaks", "client_left"), ("is gone", "client_left"), ("is refused", REFUSED)] {
        let mut bench = recording(with_little_room(Assignment::RoundRobin));
        let (other, waits, worker) = (bench.client(), bench.client(), bench.worker(0));
        bench.stalls(worker);
        for (client, id) in [(other, 1), (waits, 2)] {
            let call = r#""method":"tools/call","params":{"name":"search"}"#;
            bench.write(client, &format!(r#"{{"id":{id},{call}}}"#));
        }
        assert!(bench.is_paused(waits));
        bench.pass(seconds(3));
        match how {
            "breaks" => bench.breaks(waits),
            "is gone" => bench.gone(waits),
            _ => bench.shutdown(),
        }
        let mut records = Vec::new();
        bench.bus.take_ended(|ended| {
            let [id, tool] = [ended.id, ended.tool].map(|text| String::from_utf8_lossy(text.as_bytes()).into_owned());
            records.push((id, tool, ended.ending.outcome, ended.waited.as_secs(), ended.worker.is_some()));
        });
        records.retain(|(id, ..)| id == "2");
        assert_eq!(records, [("2".to_owned(), "search".to_owned(), outcome, 3, false)]);
    }
}

#[test]
fn a_request_that_has_waited_and_is_answered_is_recorded_once_though_its_client_leaves_then() {
    let (mut bench, client, worker) = second_waits(Assignment::RoundRobin);
    bench.takes(worker, 1000);
    for id in 1..=2 {
        bench.write(worker, &format!(r#"{{"id":{id},"result":1}}"#));
    }
    bench.gone(client);
    assert_eq!(ended_requests(&mut bench), ["1", "2"].map(|id| (id.to_owned(), "answered", None)));
}
