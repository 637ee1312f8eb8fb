//! What a client may rely on (spec 4, 7.2; decisions 9, 10): its lines, its end, its place, and its line in the log.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{getpeername, sockopt};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::admin::{Admin, metric, said, start_ready, with_admin};
use crate::client::Client;
use crate::harness::{Daemon, Gate, Setup, echo, lives, number_in, seconds_go_by, sink, with, worker};
use crate::slots::on_all_slots;

#[test]
fn each_of_the_three_modes_carries_a_request_and_its_answer() {
    for setup in
        [Setup::new([echo("echo", 1)]).stdio(), Setup::new([echo("echo", 1)]).unix(), Setup::new([echo("echo", 1)])]
    {
        let mut daemon = setup.start();
        let mut client = daemon.connect();
        let answer = client.request("a", "hello", json!([1, "two", null]));
        assert_eq!(answer["result"]["echo"], json!([1, "two", null]));
        daemon.stop();
    }
}

#[test]
fn many_clients_are_served_at_once_and_each_gets_its_own_answers() {
    let mut daemon = Setup::new([echo("echo", 3)]).unix().start();
    let mut clients: Vec<Client> = (0..100).map(|_| daemon.connect()).collect();
    for round in 0..5 {
        for (number, client) in clients.iter_mut().enumerate() {
            client.ask(round, "mine", json!({ "client": number, "round": round }));
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let answer = client.answer(round);
            assert_eq!(answer["result"]["echo"], json!({ "client": number, "round": round }));
        }
    }
    daemon.stop();
}

#[test]
fn a_clients_lines_reach_the_worker_byte_for_byte() {
    let setup = Setup::new([]);
    let seen = setup.path("seen");
    let mut daemon = setup.set("pools", json!([sink("sink", &seen)])).start();
    let lines = concat!(
        "{ \"id\" : 1 ,\t\"method\":\"a\\u0062\\/\" , \"params\" : { \"b\":1e3, \"a\":1.0, \"a\":-0 } }\n",
        "{\"method\":\"é€😀\\ud83d\\ude00\\ud83d\",\"id\":\"\\u0031\",\"x\":[[],{}, \"\\\\\\\"\"]}\r\n",
        "  {\"jsonrpc\":\"2.0\",\"method\":\"no id\"}  \n",
        "{\"id\":9007199254740991,\"method\":\"m\"}\n",
        "{\"id\":null,\"method\":\"m\"}\n",
    );
    let mut client = daemon.connect();
    client.send_bytes(lines.as_bytes());
    daemon.until("the worker has seen it all", || fs::read(&seen).is_ok_and(|seen| seen.len() >= lines.len()));
    assert_eq!(fs::read_to_string(&seen).unwrap(), lines);
    daemon.stop();
}

#[test]
fn a_workers_lines_reach_the_client_byte_for_byte() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    for answer in [
        "{ \"result\" : null ,\t\"id\" : 1 }",
        "  {\"id\":1,\"error\":{\"code\":-1,\"message\":\"é€😀\\u00e9\\/\"},\"extra\":[1e3,1.0,-0]}\r",
        "{\"result\":{\"b\":1,\"a\":2,\"b\":3},\"id\":1,\"jsonrpc\":\"1.0\"}",
    ] {
        client.ask(1, "write", json!({ "text": format!("{answer}\n") }));
        assert_eq!(client.line(), answer);
    }
    daemon.stop();
}

/// Sends `bytes` on a connection of its own and checks that it is answered and closed.
fn is_turned_away(daemon: &mut Daemon, bytes: &[u8], why: &str) {
    let mut client = daemon.connect();
    client.send_bytes(bytes);
    let shown = bytes[..bytes.len().min(60)].escape_ascii();
    let message = client.message();
    assert_eq!(message["id"], Value::Null, "{shown}: {message}");
    assert_eq!(message["error"]["code"], -32700, "{shown}: {message}");
    assert!(message["error"]["message"].as_str().unwrap().contains(why), "{shown}: {message}");
    client.ends();
}

#[test]
fn a_malformed_line_is_answered_and_closes_its_connection_alone() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).unix().start();
    let mut bystander = daemon.connect();
    bystander.ask(1, "hold", json!({}));
    let deep = [b"{\"method\":\"m\",\"params\":".as_slice(), &b"[".repeat(600), &b"]".repeat(600), b"}\n"].concat();
    for (bytes, why) in [
        (b"hello\n".as_slice(), "not JSON"),
        (b"{\"id\":1,\"method\":\"m\"\n", "not JSON"),
        (b"{\"id\":1,\"method\":\"m\"} x\n", "not JSON"),
        (b"{\"id\":1,\"method\":\"m\"}{\"id\":2}\n", "not JSON"),
        (b"{'id':1}\n", "not JSON"),
        (b"{\"id\":01}\n", "not JSON"),
        (b"{\"id\":1,}\n", "not JSON"),
        (b"[{\"id\":1,\"method\":\"m\"}]\n", "not a JSON object"),
        (b"\"text\"\n", "not a JSON object"),
        (b"17\n", "not a JSON object"),
        (b"\xEF\xBB\xBF\xEF\xBB\xBF{\"id\":1}\n", "not"),
        (b"{\"method\":\"\xff\"}\n", "not UTF-8"),
        (b"{\"method\":\"\xed\xa0\x80\"}\n", "not UTF-8"),
        (b"{\"method\":\"a\0b\"}\n", "not JSON"),
        (b"{\"method\":\"\x1b[2J\"}\n", "not JSON"),
        (b"{\"id\":1,\"method\":\"m\",\"id\":2}\n", "twice"),
        (b"{\"id\":1,\"method\":\"m\",\"i\\u0064\":2}\n", "twice"),
        (b"{\"id\":true,\"method\":\"m\"}\n", "id"),
        (b"{\"id\":[1],\"method\":\"m\"}\n", "id"),
        (b"{\"id\":{},\"method\":\"m\"}\n", "id"),
        (&deep, "deep"),
    ] {
        is_turned_away(&mut daemon, bytes, why);
    }
    daemon.logs(&["not JSON, at byte"]);
    assert!(!daemon.log().contains("hello"), "what a client sends is private");
    bystander.ask(2, "release", json!({}));
    bystander.answer(1);
    bystander.answer(2);
    daemon.stop();
}

#[test]
fn a_million_open_brackets_are_refused_without_harm() {
    let mut daemon = Setup::new([echo("echo", 1)]).limit("max_input_buffer", 4 << 20).start();
    let line = [b"[".repeat(1_000_000), b"\n".to_vec()].concat();
    is_turned_away(&mut daemon, &line, "");
    assert_eq!(daemon.connect().request(1, "m", json!({}))["id"], 1);
    daemon.stop();
}

#[test]
fn a_line_may_come_byte_by_byte_and_many_lines_in_one_piece() {
    let mut daemon = Setup::new([echo("echo", 1)]).start();
    let mut client = daemon.connect();
    for byte in json!({ "id": 1, "method": "slow" }).to_string().bytes().chain([b'\n']) {
        client.send_bytes(&[byte]);
    }
    client.answer(1);
    let many: String = (0..1000).map(|id| json!({ "id": id, "method": "fast" }).to_string() + "\n").collect();
    client.send_bytes(many.as_bytes());
    for id in 0..1000 {
        client.answer(id);
    }
    daemon.stop();
}

#[test]
fn a_client_that_half_closes_still_gets_its_answers() {
    for setup in [Setup::new([worker("agents", 2, &[])]), Setup::new([worker("agents", 2, &[])]).unix()] {
        let mut daemon = setup.start();
        let mut client = daemon.connect();
        for id in 0..200 {
            client.ask(id, "m", json!({ "n": id }));
        }
        client.half_close();
        let mut answers: Vec<i64> = (0..200).map(|_| client.message()["id"].as_i64().unwrap()).collect();
        answers.sort_unstable();
        assert_eq!(answers, (0..200).collect::<Vec<_>>());
        client.ends();
        daemon.stop();
    }
}

#[test]
fn a_client_that_closes_its_unix_socket_is_not_waited_for() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).limit("drain_timeout_sec", 600).unix().start();
    let mut client = daemon.connect();
    client.ask(1, "hold", json!({}));
    drop(client);
    daemon.logs(&["reason=client_broken"]);
    daemon.logs(&["reason=request_discarded", "id=1"]);
    daemon.connect().request(2, "m", json!({}));
    daemon.stop();
}

#[test]
fn a_half_closed_client_that_disconnects_is_not_waited_for() {
    for over_tcp in [false, true] {
        let setup = with_admin(Setup::new([worker("agents", 1, &[])])).limit("drain_timeout_sec", 86_400);
        let mut daemon = if over_tcp { setup.start() } else { setup.unix().start() };
        let mut client = daemon.connect();
        client.ask(1, "hold", json!({}));
        client.half_close();
        let mut admin = Admin::of(&daemon);
        daemon.until("its end is seen", || admin.get("/clients.json").body.contains(r#""half_closed""#));
        if over_tcp {
            client.reset();
        } else {
            drop(client);
        }
        daemon.logs(&["reason=client_broken"]);
        daemon.logs(&["reason=request_discarded", "id=1"]);
        daemon.stop();
    }
}

#[test]
fn clients_that_have_closed_give_their_slots_up_though_their_worker_does_not_read() {
    for over_tcp in [true, false] {
        let setup = with_admin(Setup::new([])).limit("max_output_queue", 8 << 10);
        let setup = setup.limit("backpressure_timeout_sec", 86_400);
        let gate = Gate::new(setup.path("gate"));
        let setup =
            setup.set("pools", json!([with(worker("late", 1, &["--gate", &gate.path()]), "assignment", "client")]));
        let mut daemon = if over_tcp { setup.start() } else { setup.unix().start() };
        let mut admin = Admin::of(&daemon);
        // Until it runs, clients are not read for lack of a worker.
        daemon.logs(&["worker_started"]);
        let mut paused = |number: f64| metric(&admin.get("/metrics").body, "stdio_bus_clients_paused") == number;
        // More than fits into all buffers between one client and the worker: the others wait for it.
        let (mut first, mut at, mut looks) = (daemon.connect(), 0, 0);
        let line = format!("{{\"method\":\"m\",\"params\":\"{}\"}}\n", "x".repeat(1000));
        daemon.until("the first one is not read", || {
            looks += 1;
            while let Ok(bytes) = first.push(&line.as_bytes()[at..]) {
                (at, looks) = ((at + bytes) % line.len(), 0);
            }
            looks > 3 && paused(1.0)
        });
        let fill = "x".repeat(20_000);
        let mut send = |id: i64| {
            let mut client = daemon.connect();
            (0..4).for_each(|n| client.ask(10 * id + n, "m", json!(fill)));
            client
        };
        let (mut waits, mut half) = (send(1), send(2));
        half.half_close();
        let gone: Vec<Client> = (3..8).map(&mut send).collect();
        daemon.until("they are not read", || {
            // A worker that was slow to start may have read once more since: the first one fills what that has emptied.
            while let Ok(bytes) = first.push(&line.as_bytes()[at..]) {
                at = (at + bytes) % line.len();
            }
            paused(8.0)
        });
        drop(gone);
        daemon.logs_times("reason=client_broken", 5);
        daemon.logs_times("waited for a worker and are not delivered", 5);
        gate.open();
        for (id, client) in [(1, &mut waits), (2, &mut half)] {
            for n in 0..4 {
                assert_eq!(client.answer(10 * id + n)["result"]["echo"], fill, "client {id}");
            }
        }
        half.ends();
        daemon.stop();
    }
}

#[test]
fn a_client_that_resets_its_connection_disturbs_no_other() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    for _ in 0..20 {
        let mut client = daemon.connect();
        client.ask(1, "hold", json!({}));
        client.send_bytes(b"{\"id\":");
        client.reset();
    }
    daemon.logs_times("client", 1);
    let mut client = daemon.connect();
    // The worker first answers the requests of the clients that have left: those answers are dropped.
    client.ask("mine", "release", json!({}));
    client.answer("mine");
    daemon.stop();
}

#[test]
fn the_connection_after_the_last_slot_waits_until_clients_leave() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).unix().start();
    let mut clients = on_all_slots(&mut daemon);
    let mut late = daemon.connect();
    late.ask(1, "m", json!({}));
    daemon.logs(&["connection_limit"]);
    assert!(!late.has_something());
    clients.truncate(900);
    assert_eq!(late.answer(1)["result"]["method"], "m");
    for client in &mut clients {
        client.request(2, "m", json!({}));
    }
    daemon.stop();
}

#[test]
fn a_storm_of_short_connections_leaves_nothing_behind() {
    let mut daemon = Setup::new([echo("echo", 1)]).start();
    daemon.connect().request(1, "m", json!({}));
    let before = daemon.descriptors();
    for round in 0..1000 {
        let mut client = daemon.connect();
        match round % 3 {
            0 => drop(client),
            1 => client.ask(1, "m", json!({})),
            _ => drop(client.request(1, "m", json!({}))),
        }
    }
    daemon.until("the descriptors are closed", || daemon.descriptors() <= before);
    assert_eq!(daemon.connect().request(1, "m", json!({}))["id"], 1);
    daemon.stop();
}

#[test]
fn a_worker_that_falls_silent_loses_its_request_and_one_that_waits_for_a_client_keeps_it() {
    let pool = with(with(worker("agents", 1, &[]), "idle_timeout_sec", 1), "request_timeout_sec", 3600);
    let mut daemon = start_ready(Setup::new([pool]));
    let (mut client, mut other) = (daemon.connect(), daemon.connect());
    client.ask_in("s", 1, "ask", json!({ "id": "p" }));
    assert_eq!(client.message()["method"], "session/request_permission");
    other.ask(1, "hold", json!({}));
    let error = other.answer(1);
    assert_eq!(error["error"]["data"]["reason"], "timeout", "{error}");
    assert!(error["error"]["message"].as_str().is_some_and(|text| text.contains("idle_timeout_sec")), "{error}");
    // As much time has passed for the client with the question.
    assert!(!client.has_something());
    let waiting = said(&daemon, &["show", "waiting"]);
    assert!(waiting.contains("worker agents/0  client 0"), "{waiting}");
    assert!(waiting.contains("the answer to session/request_permission \"p\""), "{waiting}");
    assert!(waiting.contains("client 0         worker agents/0  the answer to 1"), "{waiting}");
    let status = said(&daemon, &["status"]);
    assert!(status.contains("session/request_permission"), "{status}");
    client.send(&json!({ "jsonrpc": "2.0", "id": "p", "result": {} }));
    client.answer(1);
    daemon.stop();
}

#[test]
#[ignore = "scripts/test slow"]
fn an_answer_that_a_stopped_daemon_could_not_read_is_delivered_after_its_timeout() {
    let pool = with(worker("agents", 1, &[]), "request_timeout_sec", 6);
    let mut daemon = Setup::new([pool]).start();
    let (mut client, mut other) = (daemon.connect(), daemon.connect());
    other.request(0, "m", json!({}));
    client.ask(1, "hold", json!({}));
    daemon.until("it waits", || other.request(1, "who", json!({}))["result"]["held"] == 1);
    daemon.stand_still();
    // It is there when the daemon resumes.
    other.ask(2, "release", json!({}));
    // More than the timeout passes while the daemon runs.
    seconds_go_by(8);
    daemon.signal(Signal::CONT);
    assert_eq!(client.answer(1)["result"]["held"], true);
    other.answer(2);
    daemon.stop();
}

#[test]
fn a_thousand_idle_clients_cost_no_processor_time() {
    let mut daemon = Setup::new([echo("echo", 1)]).unix().start();
    let mut clients: Vec<Client> = (0..1000).map(|_| daemon.connect()).collect();
    for client in &mut clients {
        client.request(1, "m", json!({}));
    }
    // Its sleeps: a daemon that polls its clients would sleep a thousand times, or many times per second.
    let (slept, used, since) = (daemon.sleeps(), daemon.ticks(), Instant::now());
    seconds_go_by(1);
    let (slept, used) = (daemon.sleeps() - slept, daemon.ticks() - used);
    // On a busy machine more of them go by.
    let most = 5 * since.elapsed().as_secs().max(1);
    assert!(slept <= most, "an idle daemon sleeps on: it woke up {slept} times");
    // A busy loop would not sleep at all.
    assert!(used <= most, "an idle daemon uses no processor: {used} ticks");
    daemon.stop();
}

#[test]
fn a_stopped_worker_delays_only_its_own_clients() {
    let setup = Setup::new([]);
    let gate = Gate::new(setup.path("gate"));
    let pools = json!([worker("stuck", 1, &["--gate", &gate.path()]), echo("free", 1)]);
    let mut daemon = setup.set("pools", pools).start();
    let mut client = daemon.connect();
    client.send(&json!({ "id": 1, "method": "m", "pool": "stuck" }));
    client.send(&json!({ "id": 2, "method": "m", "pool": "free" }));
    client.answer(2);
    gate.open();
    let pid = client.answer(1)["result"]["pid"].as_u64().unwrap();
    assert!(lives(pid));
    daemon.stop();
}

#[test]
fn every_client_is_logged_when_it_connects_and_leaves_with_the_same_number() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    let from = format!(" from=127.0.0.1:{}", client.port());
    daemon.logs(&["INFO", "a client connected", "client_opened", "client=0", &from]);
    client.request(1, "m", json!({}));
    client.request(2, "m", json!({}));
    client.ask(3, "hold", json!({}));
    let mut other = daemon.connect();
    daemon.until("it is asked", || other.request(1, "who", json!({}))["result"]["held"] == 1);
    client.reset();
    let gone = daemon.logs(&["INFO", "a client disconnected", "client_closed", "client=0", &from]);
    for field in
        [" why=client_broken", " duration_ms=", " lines_in=3", " bytes_in=", " lines_out=2", " answered=2", " failed=1"]
    {
        assert!(gone.contains(field), "{field}: {gone}");
    }
    assert!(number_in(&gone, "bytes_out") > 20 && number_in(&gone, "bytes_in") > 60, "{gone}");
    daemon.stop();
}

#[test]
fn a_unix_socket_client_is_identified_by_its_process_and_user() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).unix().start();
    daemon.connect().request(1, "m", json!({}));
    let user = rustix::process::geteuid().as_raw();
    let who = format!(" pid={} uid={user}", std::process::id());
    daemon.logs(&["INFO", "client_opened", &who]);
    daemon.logs(&["INFO", "client_closed", "why=client_closed", "answered=1 failed=0", &who]);
    daemon.stop();
}

// TCP clients that vanish: their host has lost power, or a cable was cut.

/// A descriptor of ours for the daemon's end of a connection.
fn far_end(daemon: &Daemon, near: SocketAddr) -> OwnedFd {
    let mut found = None;
    daemon.until("the connection is accepted", || {
        found = daemon.copies_of_descriptors().find(|copy| {
            let peer = getpeername(copy).ok().flatten();
            peer.and_then(|peer| SocketAddr::try_from(peer).ok()) == Some(near)
        });
        found.is_some()
    });
    found.unwrap()
}

/// A connection, and the daemon's end of it.
fn connect(daemon: &Daemon) -> (TcpStream, OwnedFd) {
    let stream = TcpStream::connect(daemon.address()).unwrap();
    let far = far_end(daemon, stream.local_addr().unwrap());
    (stream, far)
}

/// Drops everything that arrives for this socket before TCP sees it: nothing is acknowledged or refused, as if its host
/// were gone.
fn vanish(stream: &TcpStream) {
    let mut keep_nothing = [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: 1, filter: keep_nothing.as_mut_ptr() };
    // SAFETY: setsockopt(2) reads the program and its filter, which live until it returns.
    let result = unsafe {
        let value = (&raw const program).cast();
        let size = size_of_val(&program) as libc::socklen_t;
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, value, size)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_silent_client_is_asked_whether_it_is_still_there() {
    let daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (_client, far) = connect(&daemon);
    assert_eq!(sockopt::socket_keepalive(&far), Ok(true));
    assert_eq!(sockopt::tcp_keepidle(&far), Ok(Duration::from_secs(10)));
    assert_eq!(sockopt::tcp_keepintvl(&far), Ok(Duration::from_secs(5)));
    // It would also close clients that are alive but do not read.
    assert_eq!(sockopt::tcp_user_timeout(&far), Ok(0));
    daemon.stop();
}

#[test]
#[ignore = "scripts/test slow"]
fn clients_with_lost_hosts_are_closed_and_free_their_sessions_while_silent_and_slow_ones_stay() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (quiet, _) = connect(&daemon);
    let (full, _) = connect(&daemon);
    let mut full = Client::over(full);
    // More than the kernel buffers for a stalled reader.
    full.ask(1, "m", json!({ "fill": "x".repeat(900_000) }));
    full.ask(2, "m", json!({ "fill": "x".repeat(900_000) }));
    let (stream, far) = connect(&daemon);
    let mut silent = Client::over(stream.try_clone().unwrap());
    silent.request_in("silent", 1, "m", json!({}));
    let (waiting_stream, waiting_far) = connect(&daemon);
    let mut waiting = Client::over(waiting_stream.try_clone().unwrap());
    waiting.ask_in("waiting", 1, "hold", json!({}));
    let mut other = daemon.connect();
    daemon.until("it is asked", || other.request(1, "who", json!({}))["result"]["held"] == 1);
    other.ask_in("silent", 2, "m", json!({}));
    assert_eq!(other.error(2, "session_denied"), -32014);
    for (stream, far) in [(stream, far), (waiting_stream, waiting_far)] {
        vanish(&stream);
        drop(far);
    }
    // The answer can be written, but is not acknowledged.
    other.request(3, "release", json!({}));
    for session in ["silent", "waiting"] {
        daemon.until("the session is free", || other.request_in(session, 4, "m", json!({}))["result"].is_object());
    }
    daemon.logs(&["the network has given no sign of it for 30 s"]);
    // They were sent before those.
    assert_eq!(full.answer(1)["id"], 1);
    assert_eq!(full.answer(2)["id"], 2);
    let mut quiet = Client::over(quiet);
    assert_eq!(quiet.request(1, "m", json!({}))["id"], 1);
    daemon.stop();
}
