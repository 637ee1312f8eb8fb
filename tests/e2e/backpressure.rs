//! Large and slow (spec 7.3, 8.3): nothing is lost for being too fast, and no client waits for ever for another that
//! does not read.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::admin::{Admin, metric, with_admin};
use crate::client::Client;
use crate::harness::{Daemon, Gate, SetAtTheEnd, Setup, children, echo, with, worker};

#[test]
fn two_thousand_requests_to_a_worker_that_is_not_ready_are_all_answered() {
    let setup = Setup::new([]);
    let gate = Gate::new(setup.path("gate"));
    let mut daemon = setup.set("pools", json!([worker("late", 1, &["--gate", &gate.path()])])).start();
    let mut client = daemon.connect();
    let fill = "x".repeat(185);
    for id in 0..2000 {
        client.send_line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m","params":"{fill}"}}"#));
    }
    gate.open();
    for id in 0..2000 {
        assert_eq!(client.answer(id)["result"]["echo"], fill);
    }
    daemon.stop();
}

#[test]
fn a_line_as_long_as_the_limit_passes_both_ways_and_one_byte_more_closes() {
    const LIMIT: usize = 300_000;
    let mut daemon =
        Setup::new([echo("echo", 1), worker("agents", 1, &[])]).limit("max_input_buffer", LIMIT as u64).start();
    let line = |size: usize| {
        let frame = r#"{"id":1,"method":"write","pool":"agents","params":{"text":""}}"#.len();
        format!(r#"{{"id":1,"method":"write","pool":"agents","params":{{"text":"{}"}}}}"#, " ".repeat(size - frame))
    };
    let mut client = daemon.connect();
    client.send_line(&line(LIMIT));
    // The worker writes the blanks, and its next output completes them to a line of exactly the limit.
    let answer = r#"{"id":1,"result":""}"#;
    let filled = LIMIT - (LIMIT - r#"{"id":1,"method":"write","pool":"agents","params":{"text":""}}"#.len());
    let rest = format!("{}{answer}\n", " ".repeat(filled - answer.len()));
    client.send(&json!({ "method": "write", "pool": "agents", "params": { "text": rest } }));
    assert_eq!(client.line().len(), LIMIT);
    client.send_line(&line(LIMIT + 1));
    assert_eq!(client.error(json!(null), "client_line_too_long"), -32600);
    client.ends();
    // Even without a newline, as soon as it is certain.
    let mut client = daemon.connect();
    client.send_bytes(&vec![b' '; LIMIT + 1]);
    client.send_bytes(b"x");
    assert_eq!(client.error(json!(null), "client_line_too_long"), -32600);
    daemon.logs(&["ERROR", "client_line_too_long", "client="]);
    daemon.stop();
}

#[test]
fn lines_of_a_megabyte_pass_in_both_directions_through_small_pipes() {
    for setup in [Setup::new([echo("echo", 1)]), Setup::new([echo("echo", 1)]).unix()] {
        let mut daemon = setup.limit("max_input_buffer", 4 << 20).start();
        let mut client = daemon.connect();
        for id in 0..8 {
            let fill = char::from(b'a' + id).to_string().repeat(1 << 20);
            client.ask(id, "m", json!(fill));
            assert_eq!(client.answer(id)["result"]["echo"], fill);
        }
        daemon.stop();
    }
}

#[test]
fn many_big_lines_at_once_keep_their_order_and_their_bytes() {
    let mut daemon = Setup::new([echo("echo", 1)]).limit("max_output_queue", 1 << 20).unix().start();
    let mut client = daemon.connect();
    let size = |id: usize| (id * 7919) % 200_000;
    std::thread::scope(|scope| {
        let mut writer = client.second();
        scope.spawn(move || {
            for id in 0..200 {
                writer.ask(id, "m", json!("x".repeat(size(id))));
            }
        });
        for id in 0..200 {
            assert_eq!(client.answer(id)["result"]["echo"].as_str().map(str::len), Some(size(id)));
        }
    });
    daemon.stop();
}

#[test]
fn a_slow_reader_receives_everything() {
    const LINES: usize = 20_000;
    let mut daemon = Setup::new([worker("agents", 1, &[])]).limit("max_output_queue", 64 << 10).unix().start();
    let mut client = daemon.connect();
    client.ask_in("s", 1, "flood", json!({ "lines": LINES, "size": 200 }));
    // One byte at a time at first, as slowly as a reader can be.
    for _ in 0..5000 {
        assert_eq!(client.fill(1), Ok(1));
    }
    for _ in 0..LINES {
        assert_eq!(client.message()["method"], "tick");
    }
    client.answer(1);
    daemon.stop();
}

/// Lets a second pass: another client's request times out in a pool that serves as a clock.
fn a_second_goes_by(other: &mut Client) {
    other.send(&json!({ "id": "clock", "method": "hold", "pool": "clock" }));
    other.error("clock", "timeout");
    // A worker that never answers would be restarted.
    other.send(&json!({ "id": "tick", "method": "m", "pool": "clock" }));
    other.answer("tick");
}

fn take(client: &mut Client, bytes: usize) {
    let mut taken = 0;
    while taken < bytes {
        let more = client.fill(1000).expect("an open connection");
        assert!(more > 0, "it ended");
        taken += more;
    }
}

fn clock() -> Value {
    with(worker("clock", 1, &[]), "request_timeout_sec", 1)
}

#[test]
#[ignore = "scripts/test slow"]
fn a_slow_unix_socket_reader_is_not_closed_although_the_kernel_reports_room_late() {
    // The kernel reports room when three quarters are free, which takes this reader longer than its timeout: 24 seconds
    // are not enough. But it reads something in each of them.
    let mut daemon = Setup::new([worker("agents", 1, &[]), clock()])
        .limit("max_output_queue", 8 << 10)
        .limit("backpressure_timeout_sec", 20)
        .unix()
        .start();
    let (mut client, mut other) = (daemon.connect(), daemon.connect());
    client.send(&json!({
        "id": 1, "method": "flood", "sessionId": "s", "pool": "agents", "params": { "lines": 5000, "size": 200 },
    }));
    for _ in 0..24 {
        a_second_goes_by(&mut other);
        take(&mut client, 3_000);
    }
    for _ in 0..5000 {
        assert_eq!(client.message()["method"], "tick");
    }
    client.answer(1);
    daemon.stop();
}

/// A half-closed client has time for outstanding answers as long as it reads them: `bytes` per second here.
fn a_half_closed_client_that_reads_steadily_gets_everything(
    setup: Setup,
    connect: fn(&mut Daemon) -> Client,
    bytes: usize,
) {
    const ANSWERS: usize = 16;
    let pools = json!([worker("agents", 1, &[]), clock()]);
    let mut daemon = setup.set("pools", pools).limit("drain_timeout_sec", 20).start();
    let (mut client, mut other) = (connect(&mut daemon), daemon.connect());
    other.send(&json!({ "id": 0, "method": "m", "pool": "agents" }));
    other.answer(0);
    let fill = "x".repeat(100_000);
    for id in 0..ANSWERS {
        client.send(&json!({ "id": id, "method": "m", "pool": "agents", "params": fill }));
    }
    client.half_close();
    for _ in 0..24 {
        a_second_goes_by(&mut other);
        take(&mut client, bytes);
    }
    for id in 0..ANSWERS {
        assert_eq!(client.answer(id)["result"]["echo"], fill);
    }
    client.ends();
    daemon.stop();
}

#[test]
#[ignore = "scripts/test slow"]
fn a_half_closed_client_that_reads_its_tcp_socket_steadily_gets_everything() {
    let connect = |daemon: &mut Daemon| Client::over_tcp_with_little_room(daemon.address());
    a_half_closed_client_that_reads_steadily_gets_everything(Setup::new([]), connect, 50_000);
}

#[test]
#[ignore = "scripts/test slow"]
fn a_half_closed_client_that_reads_its_unix_socket_steadily_gets_everything() {
    // The kernel holds up to 104 KB in one piece, which frees room only when all of it was read.
    let connect = |daemon: &mut Daemon| daemon.connect();
    a_half_closed_client_that_reads_steadily_gets_everything(Setup::new([]).unix(), connect, 52_000);
}

#[test]
fn half_closed_clients_that_do_not_read_cost_no_thread_of_the_kernel() {
    const CLIENTS: usize = 16;
    let mut daemon = with_admin(Setup::new([echo("echo", 1)])).start();
    let mut other = daemon.connect();
    other.request(0, "m", json!({}));
    let before = daemon.threads();
    let clients: Vec<Client> = (0..CLIENTS)
        .map(|_| {
            let mut client = Client::over_tcp_with_little_room(daemon.address());
            client.ask(1, "m", json!("x".repeat(800_000)));
            client.half_close();
            client
        })
        .collect();
    let mut admin = Admin::of(&daemon);
    let queued = "stdio_bus_client_queued_bytes";
    daemon.until("the output is unread", || metric(&admin.get("/metrics").body, queued) > 200_000.0 * CLIENTS as f64);
    for id in 0..100 {
        other.request(id, "m", json!({}));
    }
    // The log may need one.
    assert!(daemon.threads() <= before + 1, "{before}, then {}", daemon.threads());
    drop(clients);
    daemon.stop();
}

#[test]
fn a_client_that_leaves_while_it_is_paused_is_removed_at_once() {
    let setup = with_admin(Setup::new([]));
    let gate = Gate::new(setup.path("gate"));
    let mut daemon = setup
        .set("pools", json!([worker("agents", 1, &["--gate", &gate.path()])]))
        .limit("max_output_queue", 64 << 10)
        .limit("backpressure_timeout_sec", 86_400)
        .unix()
        .start();
    // Until it runs, clients are not read for lack of a worker.
    daemon.logs(&["worker_started"]);
    let mut client = daemon.connect();
    let line = format!("{{\"method\":\"m\",\"params\":\"{}\"}}\n", "x".repeat(1000));
    // More than fits into all buffers between it and its worker: the rest stays in the socket.
    let mut at = 0;
    daemon.until("the client is not read", || {
        while let Ok(bytes) = client.push(&line.as_bytes()[at..]) {
            at = (at + bytes) % line.len();
        }
        metric(&Admin::of(&daemon).get("/metrics").body, "stdio_bus_clients_paused") == 1.0
    });
    drop(client);
    daemon.logs(&["client_broken", "the peer has disconnected"]);
    gate.open();
    daemon.stop();
}

#[test]
fn a_client_that_never_reads_is_closed_at_the_timeout_and_its_worker_lives() {
    let mut daemon = Setup::new([worker("agents", 1, &[])])
        .limit("max_output_queue", 100_000)
        .limit("backpressure_timeout_sec", 1)
        .unix()
        .start();
    let mut other = daemon.connect();
    let pid = other.request("who", "who", json!({}))["result"]["pid"].clone();
    let mut client = daemon.connect();
    client.ask_in("s", 1, "flood", json!({ "lines": 20_000, "size": 500 }));
    daemon.logs(&["client_stalled"]);
    // The worker was blocked by it and continues; its further output for that client is dropped.
    assert_eq!(other.request("who", "who", json!({}))["result"]["pid"], pid);
    let got = client.rest();
    assert!(got.len() < 20_000 * 500, "the rest was lost with the connection");
    daemon.stop();
}

#[test]
fn a_client_that_sends_requests_without_reading_is_paused() {
    let mut daemon = Setup::new([echo("echo", 1)])
        .limit("max_output_queue", 100_000)
        .limit("backpressure_timeout_sec", 2)
        .unix()
        .start();
    let mut client = daemon.connect();
    let line = json!({ "id": 1, "method": "m", "params": "x".repeat(1000) }).to_string() + "\n";
    let mut sent = 0;
    // Until the daemon closes it. What it accepts before is bounded: two sockets, a pipe and a queue.
    daemon.until("the client is closed", || {
        while let Ok(written) = client.push(line.as_bytes()) {
            sent += written;
        }
        daemon.log().contains("client_stalled")
    });
    assert!(sent < 8 << 20, "{sent} bytes went into a daemon whose output is unread");
    let resident = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let resident = resident.lines().find(|line| line.starts_with("VmRSS")).expect("the line is always there");
    let kilobytes: u64 = resident.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number");
    assert!(kilobytes < 100_000, "{resident}");
    daemon.stop();
}

#[test]
fn a_worker_that_floods_its_client_does_not_delay_others() {
    let mut daemon = Setup::new([worker("loud", 1, &[]), echo("calm", 1)]).unix().start();
    let (mut listener, mut other) = (daemon.connect(), daemon.connect());
    listener.send(&json!({ "id": 0, "method": "who", "pool": "loud" }));
    let loud = listener.answer(0)["result"]["pid"].as_u64().expect("a pid");
    // It writes for as long as it lives, as fast as it is read.
    let flood = json!({ "lines": 1_u64 << 40, "size": 300 });
    listener.send(&json!({ "id": 1, "method": "flood", "sessionId": "s", "pool": "loud", "params": flood }));
    let (heard, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _end = SetAtTheEnd(&done);
        // Only the daemon limits the flood: its client reads all of it.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let line = listener.line();
                assert!(line.contains(r#""method":"tick""#), "{line}");
                heard.fetch_add(1, Ordering::Relaxed);
            }
        });
        let lines = || heard.load(Ordering::Relaxed);
        daemon.until("the flood is under way", || lines() > 10_000);
        let taken = taken_before_answers(&daemon, &mut other, loud);
        assert!(taken < MOST_BEFORE_AN_ANSWER, "{taken} bytes of the flood went before an answer");
        let before = lines();
        daemon.until("the flood goes on", || lines() > before + 10_000);
    });
    // The rest of it is not read.
    drop(listener);
    daemon.stop();
}

/// Bytes of a flood: a pipe, and a few reads from it.
pub const MOST_BEFORE_AN_ANSWER: u64 = 512 << 10;

/// The bytes that a process has written.
pub fn written_by(pid: u64) -> u64 {
    let counters = fs::read_to_string(format!("/proc/{pid}/io")).expect("it runs");
    let bytes = counters.lines().find_map(|line| line.strip_prefix("wchar: ")).expect("the line is always there");
    bytes.parse().expect("a number")
}

/// How many bytes of a worker's flood the daemon reads before it has answered a request that was pending beside it when
/// the daemon resumed: ten of a hundred requests see fewer. A machine adds to that when it schedules the flood before
/// the answer, but not each time; what the daemon itself prefers shows each time.
pub fn taken_before_answers(daemon: &Daemon, polite: &mut Client, flooder: u64) -> u64 {
    let ask = |id: usize| {
        daemon.stand_still();
        // It sleeps when its pipe is full.
        let is_full = || children(daemon.pid()).contains(&(flooder as u32, 'S'));
        daemon.until("as much of the flood is there as there can be", is_full);
        polite.send(&json!({ "id": id, "method": "m", "pool": "calm" }));
        let before = written_by(flooder);
        daemon.signal(Signal::CONT);
        polite.answer(id);
        written_by(flooder) - before
    };
    let mut taken: Vec<u64> = (0..100).map(ask).collect();
    taken.sort_unstable();
    taken[taken.len() / 10]
}

#[test]
fn a_client_that_sends_requests_continuously_gets_every_answer_and_so_do_others() {
    const REQUESTS: usize = 20_000;
    /// The minimum number of these that have to be there when the daemon resumes.
    const AT_ONCE: usize = 1000;
    let mut daemon = Setup::new([worker("agents", 1, &[])]).unix().start();
    let (mut eager, mut polite) = (daemon.connect(), daemon.connect());
    let line = |answer: Value| answer["result"]["line"].as_u64().expect("a number");
    eager.request_in("s", "first", "m", json!({}));
    let last = line(polite.request(1, "m", json!({})));
    let requests: String =
        (0..REQUESTS).map(|id| format!("{{\"id\":{id},\"method\":\"m\",\"sessionId\":\"s\"}}\n")).collect();
    let requests = requests.as_bytes();
    daemon.stand_still();
    let mut there = 0;
    while let Ok(bytes) = eager.push(&requests[there..]) {
        there += bytes;
    }
    let at_once = requests[..there].iter().filter(|byte| **byte == b'\n').count();
    assert!(at_once >= AT_ONCE, "only {at_once} requests at once");
    polite.ask(2, "m", json!({}));
    daemon.signal(Signal::CONT);
    let before = line(polite.answer(2)) - last - 1;
    // The other client's turn comes after what one read of this one brings, which is a small part of what it has sent.
    assert!(before < at_once as u64 / 4, "{before} of {at_once} requests went first");
    std::thread::scope(|scope| {
        let mut writer = eager.second();
        scope.spawn(move || writer.send_bytes(&requests[there..]));
        for id in 0..REQUESTS {
            eager.answer(id);
        }
    });
    daemon.stop();
}
