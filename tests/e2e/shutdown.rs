//! Shutdown (spec 10; decision 14).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::admin::{Admin, command, metric, said, start_ready};
use crate::client::Client;
use crate::harness::{
    Daemon, Setup, children, echo, lives, recorded, refuses_connections, seconds_go_by, skip, until, worker,
};

/// The process id of the only worker.
fn pid_of_its_worker(client: &mut Client) -> u64 {
    client.request("who", "who", json!({}))["result"]["pid"].as_u64().expect("a pid")
}

fn kill(pid: u64) {
    kill_process(Pid::from_raw(pid as i32).expect("a pid"), Signal::KILL).expect("it is there");
}

#[test]
fn sigterm_and_sigint_end_the_daemon_with_exit_code_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Setup::new([worker("agents", 3, &[])]).start();
        let mut client = daemon.connect();
        client.request(1, "m", json!({}));
        daemon.signal(signal);
        client.ends();
        let outcome = daemon.ends_well();
        assert!(outcome.stderr.contains("reason=draining"), "{}", outcome.stderr);
    }
}

#[test]
fn workers_are_asked_with_sigterm_before_anything_harder() {
    let setup = Setup::new([]);
    let record = setup.path("record");
    let pools = json!([worker("agents", 2, &["--record", record.to_str().unwrap()])]);
    let mut daemon = setup.set("pools", pools).start();
    let mut client = daemon.connect();
    for id in 0..2 {
        client.request(id, "m", json!({}));
    }
    daemon.signal(Signal::TERM);
    daemon.wait();
    let asked = recorded(&record).iter().filter(|line| line.starts_with("SIGTERM")).count();
    assert_eq!(asked, 2);
    let outcome = daemon.ends_well();
    assert!(!outcome.stderr.contains("worker_killed"), "{}", outcome.stderr);
}

#[test]
fn the_listening_sockets_close_first_while_workers_still_finish() {
    for setup in [
        Setup::new([worker("agents", 1, &["--ignore-term"])]),
        Setup::new([worker("agents", 1, &["--ignore-term"])]).unix(),
    ] {
        let mut daemon = setup.limit("drain_timeout_sec", 600).start();
        let mut client = daemon.connect();
        let worker = pid_of_its_worker(&mut client);
        // Through a second name, a Unix socket can be probed after its path is gone.
        let (socket, name) = (daemon.path("socket"), daemon.path("second-name"));
        let is_unix = socket.exists();
        if is_unix {
            fs::hard_link(&socket, &name).expect("it is ours");
            assert!(UnixStream::connect(&name).is_ok());
        }
        daemon.signal(Signal::TERM);
        daemon.logs(&["workers are asked to stop"]);
        let refuses = || UnixStream::connect(&name).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        if is_unix {
            daemon.until("no new clients", || !socket.exists() && refuses());
        } else {
            let address = daemon.address();
            daemon.until("no new clients", || refuses_connections(address));
        }
        assert!(lives(worker) && daemon.runs(), "its worker has not ended yet");
        kill(worker);
        daemon.ends_well();
    }
}

#[test]
fn workers_that_do_not_stop_are_killed_at_drain_timeout_and_the_exit_code_is_0() {
    let mut daemon = Setup::new([worker("agents", 2, &["--ignore-term"])]).limit("drain_timeout_sec", 1).start();
    let mut client = daemon.connect();
    for id in 0..2 {
        client.request(id, "m", json!({}));
    }
    let started = Instant::now();
    daemon.signal(Signal::TERM);
    daemon.wait();
    assert!(started.elapsed() >= Duration::from_secs(1), "they were given their time");
    let outcome = daemon.ends_well();
    let told = |what: &str| outcome.stderr.matches(what).count();
    assert_eq!((told("reason=worker_killed"), told("signal 9")), (2, 2), "{}", outcome.stderr);
}

#[test]
fn with_a_drain_timeout_of_zero_workers_are_killed_at_once() {
    let mut daemon = Setup::new([worker("agents", 1, &["--ignore-term"])]).limit("drain_timeout_sec", 0).start();
    daemon.connect().request(1, "m", json!({}));
    daemon.stop();
}

#[test]
fn answers_during_the_drain_are_delivered() {
    let mut daemon = Setup::new([worker("agents", 1, &["--answer-late"])]).start();
    let mut client = daemon.connect();
    for id in 0..100 {
        client.ask(id, "hold", json!({}));
    }
    client.request("sync", "who", json!({}));
    daemon.signal(Signal::TERM);
    for id in 0..100 {
        assert_eq!(client.answer(id)["result"]["held"], true);
    }
    client.ends();
    daemon.ends_well();
}

#[test]
fn a_request_during_the_drain_is_refused_at_once() {
    let mut daemon = Setup::new([worker("agents", 1, &["--ignore-term"])]).limit("drain_timeout_sec", 600).start();
    let mut client = daemon.connect();
    let worker = pid_of_its_worker(&mut client);
    daemon.signal(Signal::TERM);
    daemon.logs(&["workers are asked to stop"]);
    client.ask(2, "m", json!({}));
    assert_eq!(client.error(2, "shutting_down"), -32016);
    assert!(lives(worker), "it was refused while the worker could still answer");
    kill(worker);
    daemon.ends_well();
}

#[test]
fn with_quiesce_pending_requests_may_finish_first_and_new_ones_are_refused() {
    let setup = Setup::new([worker("agents", 1, &[])]).limit("quiesce_sec", 60);
    let mut daemon = setup.start();
    let mut client = daemon.connect();
    let mut idle = daemon.connect();
    client.ask(1, "hold", json!({}));
    client.request(2, "who", json!({}));
    idle.request(1, "who", json!({}));
    daemon.signal(Signal::TERM);
    daemon.logs(&["shutting down"]);
    let address = daemon.address();
    daemon.until("no new clients", || refuses_connections(address));
    idle.ends();
    client.ask(3, "who", json!({}));
    let refused = client.answer(3);
    assert_eq!(refused["error"]["data"], json!({ "reason": "shutting_down", "delivered": false }));
    assert!(daemon.runs());
    client.send(&json!({ "method": "release" }));
    client.answer(1);
    client.ends();
    daemon.ends_well();
}

#[test]
fn a_client_that_asks_on_does_not_hold_up_the_drain() {
    let setup = Setup::new([worker("agents", 1, &[])]).limit("quiesce_sec", 600).limit("drain_timeout_sec", 600);
    let mut daemon = setup.start();
    let mut client = daemon.connect();
    client.request(1, "who", json!({}));
    daemon.signal(Signal::TERM);
    daemon.logs(&["shutting down"]);
    let asks = |client: &mut Client, id: u64| {
        client.try_send(format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "method": "who" })).as_bytes())
    };
    asks(&mut client, 2).expect("it is not closed yet");
    let refused = client.answer(2);
    assert_eq!(refused["error"]["data"], json!({ "reason": "shutting_down", "delivered": false }));
    // Until it sees the end of its connection.
    let mut id = 3;
    daemon.until("it is closed", || {
        id += 1;
        client.is_over() || asks(&mut client, id).is_err()
    });
    drop(client);
    daemon.ends_well();
}

/// Stops the daemon while a client's silence counts, for longer than it may last, and has the client ask meanwhile. Returns
/// whether it was stopped before it had closed the client.
fn asks_while_it_does_not_run(daemon: &Daemon, client: &mut Client) -> bool {
    daemon.stand_still();
    let came_in_time = !client.is_over();
    if came_in_time {
        client.ask("late", "who", json!({}));
        std::thread::sleep(Duration::from_millis(600));
    }
    daemon.signal(Signal::CONT);
    if came_in_time {
        let refused = client.answer("late");
        assert_eq!(refused["error"]["data"], json!({ "reason": "shutting_down", "delivered": false }));
    }
    client.ends();
    came_in_time
}

#[test]
fn a_request_that_has_arrived_before_its_silent_client_is_closed_is_refused() {
    for was_refused in [false, true] {
        let came_in_time = (0..20).any(|_| {
            let mut daemon = Setup::new([worker("agents", 1, &[])]).limit("quiesce_sec", 60).start();
            let (mut client, mut other) = (daemon.connect(), daemon.connect());
            client.request(1, "who", json!({}));
            other.ask(1, "hold", json!({}));
            other.request(2, "who", json!({}));
            daemon.signal(Signal::TERM);
            daemon.logs(&["shutting down"]);
            if was_refused {
                client.ask(2, "who", json!({}));
                client.error(2, "shutting_down");
            }
            let came_in_time = asks_while_it_does_not_run(&daemon, &mut client);
            other.send(&json!({ "method": "release" }));
            other.answer(1);
            other.ends();
            daemon.ends_well();
            came_in_time
        });
        assert!(came_in_time, "the daemon was never stopped in time");
    }
}

#[test]
fn a_lame_duck_without_clients_ends_at_once() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).limit("lame_duck_sec", 600).start();
    let mut client = daemon.connect();
    client.request(1, "who", json!({}));
    daemon.signal(Signal::TERM);
    daemon.logs(&["shutting down in 600 s"]);
    client.request(2, "who", json!({}));
    drop(client);
    daemon.logs(&["shutting down: no client is left"]);
    daemon.ends_well();
}

#[test]
fn a_connection_in_the_backlog_at_shutdown_gets_an_answer() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).limit("quiesce_sec", 60).start();
    let mut busy = daemon.connect();
    busy.request(1, "who", json!({}));
    busy.ask(2, "hold", json!({}));
    // It does not accept while it is stopped; the kernel does.
    daemon.signal(Signal::STOP);
    let mut late: Vec<_> = (0..20).map(|_| daemon.connect()).collect();
    for client in &mut late {
        client.ask(1, "who", json!({}));
    }
    daemon.signal(Signal::TERM);
    daemon.signal(Signal::CONT);
    for client in &mut late {
        let answer = client.answer(1);
        let data = &answer["error"]["data"];
        assert!(!answer["result"].is_null() || data["delivered"] == json!(false), "{answer}");
        client.ends();
    }
    busy.send(&json!({ "method": "release" }));
    busy.answer(2);
    daemon.ends_well();
}

/// Two daemons, one after the other, at a TCP port that they share. The first one's lame duck ends with its last client.
fn two_at_one_port() -> [Daemon; 2] {
    let at = |port: u16| {
        let setup = Setup::new([worker("agents", 1, &[])]).limit("lame_duck_sec", 600).no_listener();
        setup.set("listeners", json!([{ "tcp": format!("127.0.0.1:{port}"), "reuse_port": true }])).start()
    };
    let old = at(0);
    let new = at(old.address().port());
    assert_eq!(new.address(), old.address());
    [old, new]
}

#[test]
fn daemons_that_share_a_port_each_serve_some_of_its_clients() {
    let [one, other] = two_at_one_port();
    let address = one.address();
    // The kernel spreads them by their ports: that one daemon gets all is as likely as 64 coins that fall alike.
    let pids: BTreeSet<u64> = (0..64).map(|_| pid_of_its_worker(&mut Client::over_tcp(address))).collect();
    assert_eq!(pids.len(), 2);
    one.stop();
    other.stop();
}

#[test]
fn a_new_daemon_takes_a_shared_port_over_and_nobody_is_refused() {
    let [old, new] = two_at_one_port();
    let address = old.address();
    // Some of these wait in the queue of the old daemon, which accepts nobody while it is stopped.
    old.stand_still();
    let mut waiting: Vec<_> = (0..64).map(|_| Client::over_tcp(address)).collect();
    old.signal(Signal::TERM);
    old.signal(Signal::CONT);
    let pids: BTreeSet<u64> = waiting.iter_mut().map(pid_of_its_worker).collect();
    assert_eq!(pids.len(), 2);
    old.logs(&["stopped listening on", "whose port other daemons share"]);
    new.until("all new clients are the new daemon's", || {
        let pids: BTreeSet<u64> = (0..16).map(|_| pid_of_its_worker(&mut Client::over_tcp(address))).collect();
        pids.len() == 1
    });
    drop(waiting);
    old.ends_well();
    new.stop();
}

#[test]
fn a_port_is_shared_only_if_both_daemons_say_so() {
    let [first, second] = two_at_one_port();
    let setup = Setup::new([worker("agents", 1, &[])]).no_listener();
    let outcome = setup.set("listeners", json!([{ "tcp": first.address().to_string() }])).run();
    assert_eq!(outcome.code, Some(73), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("reuse_port"), "{}", outcome.stderr);
    first.stop();
    second.stop();
}

#[test]
fn a_second_signal_answers_pending_requests_with_errors_and_ends_everything() {
    for second in [Signal::TERM, Signal::INT] {
        let mut daemon = Setup::new([worker("agents", 2, &["--ignore-term"])]).limit("drain_timeout_sec", 600).start();
        let mut client = daemon.connect();
        for id in 0..2 {
            client.request(id, "m", json!({}));
        }
        for id in 0..2 {
            client.ask(format!("held {id}"), "hold", json!({}));
        }
        // The daemon has read them when it answers the next one.
        client.request("sync", "m", json!({}));
        // Two simultaneous signals count as one.
        daemon.stand_still();
        daemon.signal(Signal::TERM);
        daemon.signal(second);
        daemon.signal(Signal::CONT);
        daemon.logs(&["workers are asked to stop"]);
        seconds_go_by(1);
        assert!(daemon.runs() && !daemon.log().contains("a second signal: "), "{}", daemon.log());
        // The daemon's second may take longer if it waits for a CPU.
        daemon.until("it takes it for the second one", || {
            daemon.signal(second);
            daemon.log().contains("a second signal: everything ends within a second; 2 pending requests get errors")
        });
        for id in 0..2 {
            let error = client.answer(format!("held {id}"))["error"].take();
            assert_eq!(error["data"], json!({ "reason": "shutting_down", "delivered": true }), "{error}");
        }
        client.ends();
        daemon.ends_well();
    }
}

#[test]
fn a_new_daemon_takes_the_address_over_while_the_old_one_finishes() {
    let mut old = start_ready(Setup::new([worker("agents", 1, &["--name", "old"])]).limit("quiesce_sec", 600));
    let mut before = old.connect();
    before.ask(1, "hold", json!({}));
    let pending = "stdio_bus_requests_pending{pool=\"agents\"}";
    old.until("it is asked", || metric(&Admin::of(&old).get("/metrics").body, pending) == 1.0);
    assert_eq!(command(&old, &["drain"]).0, Some(0));
    old.logs(&["shutting down", "1 requests are pending"]);
    // Its own admin address belongs to the old daemon until that has exited.
    let address = old.address().to_string();
    let setup = Setup::new([worker("agents", 1, &["--name", "new"])]).no_listener();
    let mut new = start_ready(setup.args(&["--tcp", &address]));
    assert_eq!(new.address(), old.address());
    let mut after = new.connect();
    assert_eq!(after.request(1, "who", json!({}))["result"]["name"], "new");
    // Both can be queried, and the old one answers its requests.
    assert!(said(&old, &["status"]).contains("draining") && said(&new, &["status"]).contains("ready"));
    before.send(&json!({ "method": "release" }));
    assert_eq!(before.answer(1)["result"]["held"], true);
    before.ends();
    old.ends_well();
    assert_eq!(after.request(2, "who", json!({}))["result"]["name"], "new");
    new.stop();
}

#[test]
#[ignore = "scripts/test slow"]
fn a_daemon_that_only_runs_for_moments_finishes_its_drain() {
    let mut daemon = Setup::new([worker("agents", 1, &["--ignore-term"])]).limit("drain_timeout_sec", 6).start();
    daemon.connect().request(1, "m", json!({}));
    daemon.signal(Signal::TERM);
    daemon.logs(&["workers are asked to stop"]);
    for _ in 0..20 {
        if !daemon.runs() {
            break;
        }
        daemon.signal(Signal::STOP);
        seconds_go_by(3);
        let slept = daemon.sleeps();
        daemon.signal(Signal::CONT);
        until("it has had a turn, or has ended", || !daemon.runs() || daemon.sleeps() > slept);
    }
    assert!(!daemon.runs(), "{}", daemon.log());
    daemon.ends_well();
}

#[test]
fn ctrl_c_reaches_the_daemon_and_not_the_workers() {
    let setup = Setup::new([]);
    let record = setup.path("record");
    let pools = json!([worker("agents", 2, &["--answer-late", "--record", record.to_str().unwrap()])]);
    let mut daemon = setup.set("pools", pools).own_group().start();
    let mut client = daemon.connect();
    for id in 0..2 {
        client.ask(id, "hold", json!({}));
        client.request("sync", "who", json!({}));
        client.request("sync", "who", json!({}));
    }
    daemon.signal_group(Signal::INT);
    // The two workers end in any order.
    let mut answered = [client.message()["id"].clone(), client.message()["id"].clone()].map(|id| id.as_i64());
    answered.sort_unstable();
    assert_eq!(answered, [Some(0), Some(1)]);
    daemon.wait();
    assert!(!recorded(&record).iter().any(|line| line.starts_with("SIGINT")), "{:?}", recorded(&record));
    daemon.ends_well();
}

#[test]
fn a_client_that_does_not_read_cannot_delay_the_shutdown() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).limit("drain_timeout_sec", 1).unix().start();
    let mut client = daemon.connect();
    client.ask_in("s", 1, "flood", json!({ "lines": 10_000, "size": 500 }));
    daemon.until("something came", || client.has_something());
    daemon.stop();
}

#[test]
fn a_storm_of_signals_changes_nothing() {
    let mut daemon = Setup::new([worker("agents", 2, &[])]).start();
    let mut client = daemon.connect();
    for id in 0..50 {
        for signal in [Signal::HUP, Signal::PIPE, Signal::CHILD, Signal::USR1, Signal::USR2, Signal::ALARM] {
            if signal != Signal::HUP {
                daemon.signal(signal);
            }
        }
        client.request(id, "m", json!({}));
    }
    daemon.stop();
}

#[test]
fn a_daemon_that_is_stopped_while_workers_start_leaves_nothing() {
    // The signal arrives at a different moment of the start each time.
    for turn in 0..20_u32 {
        let daemon = Setup::new([echo("echo", 8)]).start_without_waiting();
        for _ in 0..turn * 2000 {
            std::hint::spin_loop();
        }
        daemon.logs(&["stdio_bus"]);
        daemon.signal(Signal::TERM);
        daemon.ends_well();
    }
}

#[test]
fn as_process_1_of_a_container_it_reaps_everything_and_ends_on_sigterm() {
    // SAFETY: geteuid(2) cannot fail and takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        return skip("only root can make a process namespace");
    }
    let namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let possible = std::process::Command::new(namespace[0]).args(&namespace[1..]).arg("true").status();
    if !possible.is_ok_and(|status| status.success()) {
        return skip("process namespaces are not allowed here");
    }
    let mut daemon =
        Setup::new([worker("agents", 2, &["--orphan"])]).limit("drain_timeout_sec", 1).under(&namespace).start();
    let mut client = daemon.connect();
    for id in 0..2 {
        client.request(id, "m", json!({}));
    }
    let first = children(daemon.pid())[0].0;
    // The worker's death makes its orphan a child of process 1.
    client.ask("x", "exit", json!({ "code": 1 }));
    client.error("x", "worker_exited");
    daemon.logs(&["worker_exited"]);
    daemon.until("no zombies", || children(first).iter().all(|(_, state)| *state != 'Z'));
    kill_process(Pid::from_raw(first as i32).unwrap(), Signal::TERM).unwrap();
    daemon.ends_well();
}

// The shutdown loses nothing silently: each request is answered or refused.

const REQUESTS: usize = 400;

/// A worker that takes 20 ms per line, and room for a few lines before it.
fn slow() -> Setup {
    Setup::new([worker("slow", 1, &["--slow", "20000"])]).limit("max_output_queue", 8192)
}

/// How often each request was answered. There is nothing else before the end.
fn answers(client: &mut Client) -> BTreeMap<usize, usize> {
    let mut answers = BTreeMap::new();
    for line in client.rest().lines() {
        let answer: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        if answer["result"].is_null() {
            let reason = answer["error"]["data"]["reason"].as_str().unwrap_or_else(|| panic!("no reason: {line}"));
            assert!(["shutting_down", "worker_exited"].contains(&reason), "{line}");
        }
        *answers.entry(answer["id"].as_u64().expect("a number") as usize).or_default() += 1;
    }
    answers
}

#[test]
fn every_request_that_was_sent_before_the_end_is_answered_or_refused_once() {
    for half_closed in [false, true] {
        // As much as the sockets usually hold, and more than the daemon accepts before its worker reads.
        for (setup, size) in [(slow(), 2000), (slow().unix(), 900)] {
            let mut daemon = setup.start();
            let mut client = daemon.connect();
            client.request(0, "m", json!({}));
            // In one write: a Unix socket holds less of many small ones.
            let request = |id| format!("{}\n", json!({ "id": id, "method": "m", "params": "x".repeat(size) }));
            client.send_and_hear((1..=REQUESTS).map(request).collect::<String>().as_bytes());
            if half_closed {
                client.half_close();
            }
            client.answer(1);
            daemon.signal(Signal::TERM);
            let got = answers(&mut client);
            let missing: Vec<usize> = (2..=REQUESTS).filter(|id| got.get(id) != Some(&1)).collect();
            assert!(missing.is_empty(), "half-closed {half_closed}: not answered once: {missing:?}");
            daemon.ends_well();
        }
    }
}

#[test]
fn requests_of_many_clients_that_wait_for_their_turn_are_all_answered_or_refused_at_the_end() {
    let mut daemon = slow().start();
    let mut clients: Vec<Client> = (0..8).map(|_| daemon.connect()).collect();
    clients[0].request(0, "m", json!({}));
    // Their answers are short: they are not read before the last request was sent.
    let fill = "x".repeat(4000);
    let request = |id| format!("{}\n", json!({ "id": id, "method": "who", "params": fill }));
    for client in &mut clients {
        client.send_and_hear((1..=50).map(request).collect::<String>().as_bytes());
    }
    clients[0].answer(1);
    daemon.signal(Signal::TERM);
    for (number, client) in clients.iter_mut().enumerate() {
        let first = if number == 0 { 2 } else { 1 };
        let expected: BTreeMap<usize, usize> = (first..=50).map(|id| (id, 1)).collect();
        assert_eq!(answers(client), expected, "client {number}");
    }
    daemon.ends_well();
}
