//! Every limit at its exact value (spec 7.3.2, 8; decision 9).

use super::*;

/// A line of exactly `length` bytes that becomes malformed at the byte `fault`, if any.
fn line_of(length: usize, fault: Option<usize>) -> Vec<u8> {
    let mut line = format!(r#"{{"method":"x","p":"{}"}}"#, "x".repeat(length - 21)).into_bytes();
    assert_eq!(line.len(), length);
    if let Some(fault) = fault {
        line[fault] = 1;
    }
    line.push(b'\n');
    line
}

fn bench_with_limit(limit: usize) -> Bench {
    let mut small = settings(vec![pool(1, Assignment::RoundRobin)]);
    small.limits.max_input_buffer = limit;
    Bench::new(small)
}

#[test]
fn a_line_that_is_wrong_beyond_the_limit_is_too_long_however_it_is_cut() {
    for fault in [100, 101, 150, 199] {
        for piece in [1, 7, 100, 101, 1000] {
            let mut bench = bench_with_limit(100);
            let client = bench.client();
            for bytes in line_of(202, Some(fault)).chunks(piece) {
                if bench.how_closed(client).is_none() {
                    bench.write_bytes(client, bytes);
                }
            }
            let reason = bench.read_error(client).0;
            assert_eq!(reason, "client_line_too_long", "wrong at byte {fault}, in pieces of {piece}");
        }
    }
}

#[test]
fn a_line_of_exactly_max_input_buffer_that_is_wrong_is_not_too_long() {
    for piece in [1, 7, 100, 101, 1000] {
        let mut bench = bench_with_limit(100);
        let client = bench.client();
        for bytes in line_of(100, Some(60)).chunks(piece) {
            if bench.how_closed(client).is_none() {
                bench.write_bytes(client, bytes);
            }
        }
        assert_eq!(bench.read_error(client).0, "client_malformed", "in pieces of {piece}");
    }
}

#[test]
fn lines_of_both_sides_are_counted() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    let lines =
        |bench: &Bench| [bench.bus.view().stats().client_side.lines_in, bench.bus.view().stats().worker_side.lines_in];
    assert_eq!(lines(&bench), [0, 0]);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.write(client, r#"{"method":"y"}"#);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    assert_eq!(lines(&bench), [2, 1]);
}

#[test]
fn a_line_of_exactly_max_input_buffer_passes_and_one_byte_more_closes() {
    for piece in [1, 50, 100, 101, 102, 1000] {
        let mut bench = bench_with_limit(100);
        let (client, worker) = (bench.client(), bench.worker(0));
        line_of(100, None).chunks(piece).for_each(|bytes| bench.write_bytes(client, bytes));
        assert_eq!(bench.read_one(worker).len(), 100);
        for bytes in line_of(101, None).chunks(piece) {
            if bench.how_closed(client).is_none() {
                bench.write_bytes(client, bytes);
            }
        }
        assert!(bench.read(worker).is_empty());
        let (reason, code, id) = bench.read_error(client);
        assert_eq!((reason.as_str(), code, id), ("client_line_too_long", -32600, Value::Null));
        assert_eq!(bench.how_closed(client), Some(Close::Flush));
        let report = bench.reports.iter().find(|report| report.reason == Reason::ClientLineTooLong).unwrap();
        assert_eq!((report.level, report.client), (crate::report::Level::Error, Some(0)));
    }
}

#[test]
fn a_session_that_a_worker_makes_may_have_256_bytes_for_its_name_too() {
    for (length, sessions) in [(256, 1), (257, 0)] {
        let name = "n".repeat(length);
        let mut bench = bench(1);
        let (client, leaving, worker) = (bench.client(), bench.client(), bench.worker(0));
        bench.write(client, r#"{"id":1,"method":"session/new"}"#);
        bench.write(worker, &format!(r#"{{"id":1,"result":{{"sessionId":"{name}"}}}}"#));
        assert_eq!(bench.bus.view().stats().sessions, sessions, "{length} bytes");
        bench.write(leaving, r#"{"id":2,"method":"session/new"}"#);
        bench.breaks(leaving);
        bench.gone(leaving);
        let name = name.replace('n', "m");
        bench.write(worker, &format!(r#"{{"id":2,"result":{{"sessionId":"{name}"}}}}"#));
        let rows = (0..bench.bus.view().session_slots())
            .filter_map(|slot| bench.bus.view().session_row(bench.now, slot))
            .count();
        assert_eq!(rows, 2 * sessions, "{length} bytes: a name without an owner is reserved");
    }
}

#[test]
fn an_id_of_128_bytes_and_a_session_id_of_256_pass() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    let line = format!(r#"{{"id":"{}","method":"x","sessionId":"{}"}}"#, "é".repeat(64), "s".repeat(256));
    bench.write(client, &line);
    assert_eq!(bench.read_one(worker), line);
    let answer = format!(r#"{{"id":"{}","result":1}}"#, "é".repeat(64));
    bench.write(worker, &answer);
    assert_eq!(bench.read_one(client), answer);
    // It is the decoded text that counts.
    bench.write(client, &format!(r#"{{"id":"{}","method":"x"}}"#, r"\u0069".repeat(128)));
    assert_eq!((bench.read(worker).len(), bench.read(client).len()), (1, 0));
}

#[test]
fn a_worker_line_of_four_times_max_input_buffer_passes_and_one_byte_more_ends_the_worker() {
    for piece in [1, 50, 401, 1000] {
        let mut bench = bench_with_limit(100);
        let (client, worker) = (bench.client(), bench.worker(0));
        bench.write(client, r#"{"id":1,"method":"m","sessionId":"s"}"#);
        let line = |length: usize| {
            let line = format!(r#"{{"sessionId":"s","p":"{}"}}{}"#, "x".repeat(length - 24), "\n");
            assert_eq!(line.len(), length + 1);
            line.into_bytes()
        };
        line(400).chunks(piece).for_each(|bytes| bench.write_bytes(worker, bytes));
        assert_eq!(bench.read_one(client).len(), 400);
        for bytes in line(401).chunks(piece) {
            if bench.signals_to(worker).is_empty() {
                bench.write_bytes(worker, bytes);
            }
        }
        assert_eq!(bench.count(Reason::WorkerLineTooLong), 1, "in pieces of {piece}");
    }
}

/// A value of this many nested arrays.
fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

#[test]
fn a_worker_may_echo_the_deepest_client_line_wrapped() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, &format!(r#"{{"id":1,"method":"m","params":{}}}"#, nested(511)));
    assert!(bench.read_one(worker).contains(&nested(511)));
    for (id, depth) in [(1, 512), (2, 1023)] {
        bench.write(client, &format!(r#"{{"id":{id},"method":"m"}}"#));
        bench.write(worker, &format!(r#"{{"id":{id},"result":{}}}"#, nested(depth)));
        assert!(bench.read(client).iter().any(|line| line.contains(&nested(depth))), "{depth}");
    }
    assert_eq!(bench.count(Reason::WorkerMalformed), 0);
}

#[test]
fn a_worker_line_that_is_nested_too_deeply_costs_its_request_and_not_the_worker() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    for id in [1, 2] {
        bench.write(client, &format!(r#"{{"id":{id},"method":"m","sessionId":"s"}}"#));
    }
    bench.read(worker);
    bench.write(worker, &format!(r#"{{"id":1,"result":{}}}"#, nested(1024)));
    let (reason, code, id) = bench.read_error(client);
    assert_eq!((reason.as_str(), code, id), ("too_deep", -32603, 1.into()));
    // The answer has arrived, so its id is free, and a second one is unsolicited.
    assert_eq!(bench.bus.view().stats().pending, 1);
    // A request of the worker gets an error, a notification is dropped, and both are reported.
    bench.write(worker, &format!(r#"{{"id":"q","method":"ask","sessionId":"s","params":{}}}"#, nested(20_000)));
    assert_eq!(bench.read_json(worker)["error"]["data"]["reason"], "too_deep");
    bench.write(worker, &format!(r#"{{"method":"update","sessionId":"s","params":{}}}"#, nested(1024)));
    assert_eq!(bench.count(Reason::TooDeep), 3);
    bench.write(worker, r#"{"id":2,"result":2}"#);
    assert_eq!(bench.read_json(client)["result"], 2);
    assert!(bench.signals_to(worker).is_empty());
}

#[test]
fn there_are_1024_sessions_and_the_next_one_is_refused() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    for at in 0..1024 {
        bench.write(client, &format!(r#"{{"method":"x","sessionId":"s{at}"}}"#));
    }
    assert_eq!(bench.read(worker).len(), 1024);
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"one more"}"#);
    let (reason, code, _) = bench.read_error(client);
    assert_eq!((reason.as_str(), code), ("session_limit", -32012));
    bench.write(client, r#"{"id":2,"method":"x","sessionId":"s7"}"#);
    bench.write(client, r#"{"id":3,"method":"session/new"}"#);
    assert_eq!(bench.read(worker).len(), 2, "what needs no new session continues");
    bench.write(worker, r#"{"id":3,"result":{"sessionId":"learned"}}"#);
    assert_eq!(bench.read_error(client).0, "session_limit", "a session that cannot be kept is useless");
    bench.write(worker, r#"{"id":2,"result":1}"#);
    assert_eq!(bench.read(client).len(), 1);
}

#[test]
fn lines_after_a_half_closed_clients_last_answer_in_the_same_write_are_delivered() {
    let mut bench = bench(1);
    let (leaver, worker) = (bench.client(), bench.worker(0));
    // It has every session, so the one that is created for it does not fit.
    for at in 0..1024 {
        bench.write(leaver, &format!(r#"{{"method":"x","sessionId":"s{at}"}}"#));
    }
    bench.write(leaver, r#"{"id":1,"method":"session/new"}"#);
    bench.ends(leaver);
    let other = bench.client();
    bench.write(other, r#"{"id":2,"method":"x"}"#);
    bench.write_bytes(worker, b"{\"id\":1,\"result\":{\"sessionId\":\"one more\"}}\n{\"id\":2,\"result\":2}\n");
    assert_eq!(bench.read_error(leaver).0, "session_limit");
    assert_eq!(bench.how_closed(leaver), Some(Close::Flush));
    assert_eq!(bench.read_one(other), r#"{"id":2,"result":2}"#);
}

#[test]
fn there_are_4096_pending_requests_and_the_next_one_is_refused() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    for id in 0..4096 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    assert_eq!(bench.read(worker).len(), 4096);
    bench.write(client, r#"{"id":"one more","method":"x","sessionId":"s"}"#);
    let (reason, code, _) = bench.read_error(client);
    assert_eq!((reason.as_str(), code), ("pending_limit", -32013));
    assert_eq!((bench.bus.view().stats().pending, bench.bus.view().stats().sessions), (4096, 0));
    bench.write(worker, r#"{"id":17,"result":1}"#);
    assert_eq!(bench.read(client).len(), 1, "answers go on");
    bench.write(client, r#"{"id":17,"method":"x"}"#);
    assert_eq!(bench.read(worker).len(), 1, "and make room");
}

#[test]
fn requests_whose_client_has_left_give_way_when_the_table_is_full() {
    let mut bench = bench(1);
    let (gone, worker) = (bench.client(), bench.worker(0));
    for id in 0..4096 {
        bench.write(gone, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    let client = bench.client();
    bench.breaks(gone);
    bench.read(worker);
    bench.write(client, r#"{"id":"new","method":"x"}"#);
    assert_eq!(bench.read_one(worker), r#"{"id":"new","method":"x"}"#);
    bench.write(client, r#"{"id":0,"method":"x"}"#);
    let seen: Value = serde_json::from_str(&bench.read_one(worker)).unwrap();
    assert!(seen["id"].is_number() && seen["id"] != 0, "the answer to what gave way may still come");
    bench.write(worker, &format!(r#"{{"id":{},"result":1}}"#, seen["id"]));
    assert_eq!(bench.read_one(client), r#"{"id":0,"result":1}"#);
}

#[test]
fn when_the_table_is_full_the_longest_unwanted_request_is_dropped_first() {
    let mut bench = bench(1);
    let worker = bench.worker(0);
    for ids in [0..1, 1..4096] {
        let gone = bench.client();
        ids.for_each(|id| bench.write(gone, &format!(r#"{{"id":{id},"method":"x"}}"#)));
        bench.breaks(gone);
        bench.gone(gone);
    }
    assert_eq!(bench.read(worker).len(), 4096);
    let client = bench.client();
    bench.write(client, r#"{"id":"new","method":"x"}"#);
    assert_eq!(bench.bus.view().stats().pending, 4096);
    for (id, left) in [(0, 4096), (1, 4095), (4095, 4094)] {
        bench.write(worker, &format!(r#"{{"id":{id},"result":1}}"#));
        assert_eq!(bench.bus.view().stats().pending, left, "the answer to {id}");
    }
}

#[test]
fn there_are_1024_connections_and_then_no_more_are_taken_until_one_leaves() {
    let mut bench = bench(1);
    let clients: Vec<Peer> = (0..1024).map(|_| bench.client()).collect();
    assert!(!bench.listeners.accepting);
    assert!(bench.connect(0, Source::Inherited).is_none());
    bench.breaks(clients[102]);
    assert!(!bench.listeners.accepting);
    bench.gone(clients[102]);
    assert!(bench.listeners.accepting);
    bench.client();
}

#[test]
fn all_1024_clients_stay_until_a_connection_waits_for_a_slot() {
    let mut bench = bench(1);
    let clients: Vec<Peer> = (0..1024).map(|_| bench.client()).collect();
    bench.pass(seconds(60));
    assert!(clients.iter().all(|client| bench.how_closed(*client).is_none()), "nobody needs the slot of another");
    bench.handle(Input::ConnectionQueued);
    assert_eq!(bench.count(Reason::ClientIdle), 1);
    let gone = clients.iter().copied().find(|client| bench.how_closed(*client).is_some()).expect("one is closed");
    bench.gone(gone);
    bench.client();
    bench.pass(seconds(60));
    assert_eq!(bench.count(Reason::ClientIdle), 1, "nobody waits any more");
    // A handshake is refused with an answer, and comes again.
    let origin = Source::Inherited;
    assert!(bench.bus.view().would_take(0, &Place::from(origin).into()).is_err());
    bench.pass(seconds(1));
    assert_eq!(bench.count(Reason::ClientIdle), 2);
}

#[test]
fn the_defaults_are_those_of_the_specification() {
    let limits = Limits::default();
    assert_eq!((limits.max_input_buffer, limits.max_output_queue), (1_048_576, 4_194_304));
    assert_eq!((limits.max_restarts, limits.restart_window), (5, seconds(60)));
    assert_eq!((limits.drain_timeout, limits.backpressure_timeout), (seconds(30), seconds(60)));
    use super::super::settings;
    assert_eq!((settings::MAX_CONNECTIONS, settings::MAX_SESSIONS), (1024, 1024));
    assert_eq!(settings::MAX_PENDING_REQUESTS, 4096);
    assert_eq!((settings::MAX_SESSION_ID_LEN, settings::MAX_REQUEST_ID_LEN), (256, 128));
}

#[test]
fn a_client_that_fills_a_table_is_read_more_slowly_and_the_others_are_not() {
    let mut bench = Bench::new(settings(vec![pool(1, Assignment::RoundRobin)]));
    let (greedy, polite) = (bench.client(), bench.client());
    for id in 0..4096 {
        bench.write(greedy, &format!(r#"{{"id":{id},"method":"x"}}"#));
        bench.pass(milliseconds(4));
    }
    bench.read(greedy);
    let more: String = (0..8).map(|id| format!("{{\"id\":\"{id}\",\"method\":\"x\"}}\n")).collect();
    let mut refused = bench.read(greedy).len();
    let mut rests = 0;
    bench.write_bytes(greedy, more.as_bytes());
    while refused < 8 {
        let answers = bench.read(greedy);
        assert!(answers.len() <= 1, "no more than one before it rests: {answers:?}");
        refused += answers.len();
        bench.write(polite, r#"{"id":"p","method":"x"}"#);
        assert_eq!(bench.read(bench.worker(0)).len(), if rests == 0 { 4096 - 4 + 1 } else { 1 });
        bench.write(bench.worker(0), r#"{"id":"p","result":1}"#);
        assert_eq!(bench.read(polite).len(), 1, "no other client is paused");
        rests += 1;
        assert!(rests < 60, "it continues");
        bench.pass(milliseconds(4));
    }
    assert!(rests > 16, "the pauses grow: {rests}");
}

#[test]
fn memory_not_counted_by_max_memory_is_at_most_40_mib() {
    use crate::mcp_servers;
    use crate::requests::LARGEST;
    use crate::router::elicitations;
    use crate::settings::{
        MAX_CONNECTIONS, MAX_PENDING_REQUESTS, MAX_REQUEST_ID_LEN, MAX_SESSION_ID_LEN, MAX_SESSIONS, MAX_WORKERS,
    };
    use ndjson_scan::{BATCH, Line};
    // An escape takes six bytes for one of the id.
    let id = MAX_REQUEST_ID_LEN + MAX_REQUEST_ID_LEN + 6 * MAX_REQUEST_ID_LEN + 2;
    // The progress token, as both sides know it.
    let token = 2 * (MAX_REQUEST_ID_LEN + 2);
    let requests = 2 * MAX_PENDING_REQUESTS * (LARGEST + id + token);
    let names = (MAX_SESSIONS + 4096) * MAX_SESSION_ID_LEN;
    let lines = (MAX_CONNECTIONS + MAX_WORKERS) * BATCH * size_of::<Line>();
    let elicitations = MAX_WORKERS * elicitations::MOST_MEMORY;
    let offers = MAX_CONNECTIONS * mcp_servers::MOST_MEMORY;
    // Of requests that are over.
    let known = crate::requests::LARGEST_NAMES;
    let sum = requests + names + lines + elicitations + offers + known;
    assert!(sum <= 40 << 20, "{sum} bytes: {:?}", [requests, names, lines, elicitations, offers, known]);
}
