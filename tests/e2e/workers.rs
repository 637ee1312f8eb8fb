//! How workers are started, monitored, stopped and restarted (spec 3.3, 5, 7.1; decision 13).

use std::fs::{self, File};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::admin::{Admin, start_ready};
use crate::backpressure::{MOST_BEFORE_AN_ANSWER, taken_before_answers, written_by};
use crate::client::Client;
use crate::harness::{
    Daemon, Gate, Setup, children, echo, inheritable, lives, program, recorded, script, shell, skip, until, with,
    worker,
};

/// The process id of the worker that answers.
fn pid(client: &mut Client) -> u64 {
    client.request("who", "who", json!({}))["result"]["pid"].as_u64().expect("a pid")
}

/// Sends requests until another worker than `old` answers: its replacement. Returns its process id.
fn successor(client: &mut Client, old: u64) -> u64 {
    let mut new = old;
    until("a new worker answers", || {
        client.ask("who", "who", json!({}));
        new = client.answer("who")["result"]["pid"].as_u64().unwrap_or(old);
        new != old
    });
    new
}

fn send_signal(pid: u64, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).expect("a pid"), signal).expect("the worker is there");
}

#[test]
fn a_worker_inherits_no_descriptor_no_blocked_and_no_ignored_signal() {
    // A shell keeps the inherited signal state, which neither Python nor Rust does.
    let leaked = fs::File::open("/dev/null").unwrap();
    let number = inheritable(&leaked);
    let daemon = Setup::new([shell("plain", "read line; :")])
        .variable("NOTIFY_SOCKET", "/run/nobody")
        .variable("WATCHDOG_USEC", "1000000000")
        .variable("WATCHDOG_PID", "1")
        .variable("LISTEN_PID", "1")
        .variable("LISTEN_FDS", "1")
        .variable("LISTEN_FDNAMES", "bus")
        .variable("JOURNAL_STREAM", "1:1")
        .variable("CREDENTIALS_DIRECTORY", "/run/credentials/bus")
        .variable("STDIO_BUS_ADMIN", "/run/admin.sock")
        .variable("STDIO_BUS_ADMIN_TOKEN_FILE", "/run/token")
        .before_exec(move || {
            // SAFETY: system calls on values that live here; dup2 makes a descriptor that the daemon inherits.
            unsafe {
                let mut set = std::mem::zeroed();
                libc::sigemptyset(&raw mut set);
                libc::sigaddset(&raw mut set, libc::SIGUSR1);
                libc::sigaddset(&raw mut set, libc::SIGTERM);
                libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                libc::signal(libc::SIGHUP, libc::SIG_IGN);
                libc::signal(libc::SIGUSR2, libc::SIG_IGN);
                libc::dup2(number, 57);
            }
            Ok(())
        })
        .start();
    daemon.until("it has a worker", || !daemon.descendants().is_empty());
    let (worker, _) = daemon.descendants()[0];
    let numbers = || {
        let files = fs::read_dir(format!("/proc/{worker}/fd")).unwrap();
        let mut numbers: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        numbers.sort();
        numbers
    };
    // While it is being loaded it has its libraries open, too.
    until("no descriptor but its own three is left", || numbers() == ["0", "1", "2"]);
    let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    for name in ["SigBlk", "SigIgn"] {
        let line = status.lines().find(|line| line.starts_with(name)).expect("the line is always there");
        let mask = line.split_whitespace().nth(1).and_then(|mask| u64::from_str_radix(mask, 16).ok()).expect("a mask");
        // The C library reserves signals 32 and 33 and keeps them unchanged.
        assert_eq!(mask & !(0b11 << 31), 0, "{line}");
    }
    let environment = fs::read(format!("/proc/{worker}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    for name in ["NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "JOURNAL_STREAM", "CREDENTIALS_DIRECTORY", "STDIO_BUS_ADMIN"]
    {
        assert!(!environment.contains(name), "{name}: it could speak for the daemon");
    }
    // The daemon handles SIGTERM although it was started with it blocked.
    daemon.stop();
}

#[test]
fn a_worker_leads_a_process_group_of_its_own() {
    let mut daemon = Setup::new([worker("agents", 2, &[])]).start();
    let mut client = daemon.connect();
    for id in 0..2 {
        let who = client.request(id, "who", json!({}));
        assert_eq!(who["result"]["group"], who["result"]["pid"]);
        assert_eq!(who["result"]["parent"], daemon.pid());
    }
    daemon.stop();
}

#[test]
fn a_pool_that_starts_on_demand_has_no_process_before_its_first_line_nor_when_nobody_has_needed_it() {
    let pool = with(worker("agents", 1, &[]), "start", "on_demand");
    let mut daemon = Setup::new([with(pool, "idle_stop_sec", 1)]).start();
    let mut client = daemon.connect();
    let mut last = 0;
    for wakes in 1..=2 {
        assert_eq!(daemon.descendants(), [], "nobody needs a worker");
        let pid = pid(&mut client);
        assert_ne!(std::mem::replace(&mut last, pid), pid, "it is another process");
        daemon.logs_times("reason=pool_woken", wakes);
        daemon.logs_times("reason=pool_asleep", wakes);
        daemon.until("its worker has ended", || daemon.descendants().is_empty());
    }
    let log = daemon.log();
    daemon.stop();
    assert!(!log.contains("reason=worker_exited"), "that is no failure: {log}");
}

#[test]
fn a_pool_that_nobody_needs_falls_asleep_when_workers_hold_more_memory_than_allowed() {
    let pool = with(worker("agents", 1, &[]), "start", "on_demand");
    let mut daemon = Setup::new([pool]).limit("max_workers_memory_mb", 1).start();
    let mut client = daemon.connect();
    let first = pid(&mut client);
    daemon.logs(&["reason=pool_asleep", "more than max_workers_memory_mb (1)"]);
    daemon.until("its worker has ended", || daemon.descendants().is_empty());
    assert_ne!(pid(&mut client), first, "the next line wakes it");
    daemon.stop();
}

#[test]
fn a_pool_whose_workers_are_all_busy_starts_another_one_which_is_stopped_when_it_is_not_needed() {
    let pool = with(with(worker("agents", 1, &[]), "max_instances", 2), "concurrency", 1);
    let mut daemon = Setup::new([with(pool, "idle_stop_sec", 1)]).start();
    let mut client = daemon.connect();
    let first = pid(&mut client);
    client.ask("busy", "hold", json!({}));
    daemon.logs_times("reason=worker_started", 2);
    let second = successor(&mut client, first);
    client.send(&json!({ "method": "notifications/cancelled", "params": { "requestId": "busy" } }));
    daemon.logs(&["reason=worker_stopped"]);
    assert_ne!(lives(first), lives(second), "one is kept");
    let log = daemon.log();
    daemon.stop();
    assert!(!log.contains("reason=worker_exited"), "that is no failure: {log}");
}

#[test]
fn what_a_worker_has_not_read_when_its_pool_falls_asleep_reaches_it_nevertheless() {
    let setup = Setup::new([]);
    let (slow, noted) = (setup.path("slow"), setup.path("noted"));
    script(&slow, &format!("#!/bin/sh\nsleep 4\ncat > {0}.part && mv {0}.part {0}\n", noted.display()));
    let pool = json!({ "id": "a", "command": slow, "start": "on_demand", "idle_stop_sec": 1, "instances": 1 });
    let mut daemon = setup.set("pools", json!([pool])).start();
    let mut client = daemon.connect();
    client.send(&json!({ "jsonrpc": "2.0", "method": "note" }));
    daemon.logs(&["reason=pool_asleep"]);
    daemon.until("it has read to the end of its stdin", || noted.exists());
    assert!(fs::read_to_string(&noted).unwrap().contains("note"));
    daemon.until("its worker has ended", || daemon.descendants().is_empty());
    daemon.stop();
}

#[test]
fn a_pool_sets_the_environment_and_the_directory_of_its_workers() {
    let setup = Setup::new([]).variable("KEPT", "from the daemon").variable("CHANGED", "from the daemon");
    let directory = setup.path("work");
    fs::create_dir(&directory).unwrap();
    let pool = with(worker("agents", 1, &[]), "env", json!({ "CHANGED": "by the pool", "ADDED": "é=1" }));
    let mut daemon = setup.set("pools", json!([with(pool, "cwd", directory.to_str().unwrap())])).start();
    let who = daemon.connect().request(1, "who", json!({ "KEPT": 0, "CHANGED": 0, "ADDED": 0, "MISSING": 0 }));
    let variables = json!({ "KEPT": "from the daemon", "CHANGED": "by the pool", "ADDED": "é=1", "MISSING": null });
    assert_eq!(who["result"]["variables"], variables);
    let there = fs::canonicalize(&directory).unwrap();
    assert_eq!(who["result"]["cwd"], there.to_str().unwrap());
    daemon.stop();
}

#[test]
fn a_command_is_looked_for_in_the_path_of_its_pool() {
    let setup = Setup::new([]);
    let directory = setup.path("bin");
    fs::create_dir(&directory).unwrap();
    let text = format!("#!/bin/sh\nexec {} worker echo\n", crate::harness::program().display());
    script(&directory.join("my-agent"), &text);
    let path = format!("{}:/usr/bin:/bin", directory.display());
    let pool = json!({ "id": "a", "command": "my-agent", "instances": 1, "env": { "PATH": path } });
    let mut daemon = setup.set("pools", json!([pool])).start();
    assert_eq!(daemon.connect().request(1, "m", json!({}))["id"], 1);
    daemon.stop();
}

#[test]
fn arguments_reach_the_worker_as_they_are() {
    let mut daemon = Setup::new([worker("agents", 1, &["--name", "a b\t'\"$HOME*\\"])]).start();
    assert_eq!(daemon.connect().request(1, "who", json!({}))["result"]["name"], "a b\t'\"$HOME*\\");
    daemon.stop();
}

#[test]
fn a_workers_stderr_is_logged_with_its_name_and_without_control_characters() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).unix().start();
    let mut client = daemon.connect();
    client.request(1, "stderr", json!({ "text": "one\ntwo {\"id\":1}\n\u{1b}[31mred\nlast without an end" }));
    daemon.logs(&["[agents/0] one"]);
    daemon.logs(&["[agents/0] two {\"id\":1}"]);
    daemon.logs(&["[agents/0] \\x1b[31mred"]);
    daemon.signal(Signal::TERM);
    daemon.logs(&["[agents/0] last without an end"]);
    let outcome = daemon.ends_well();
    assert_eq!(outcome.stdout, "");
    assert!(!outcome.stderr.contains('\u{1b}'), "{}", outcome.stderr);
}

#[test]
fn a_worker_that_floods_stderr_never_stalls_routing() {
    let pools = [worker("noisy", 1, &[]), echo("calm", 1)];
    let mut daemon = Setup::new(pools).unix().stderr(Stdio::null()).start();
    let mut client = daemon.connect();
    client.send(&json!({ "id": "who", "method": "who", "pool": "noisy" }));
    let noisy = client.answer("who")["result"]["pid"].as_u64().unwrap();
    // It writes for as long as it lives, as fast as it is read.
    let flood = json!({ "bytes": 1_u64 << 50, "lines_at_once": 500 });
    client.send(&json!({ "id": "flood", "method": "stderr_flood", "pool": "noisy", "params": flood }));
    daemon.until("the flood is under way", || written_by(noisy) > 1_000_000);
    let taken = taken_before_answers(&daemon, &mut client, noisy);
    assert!(taken < MOST_BEFORE_AN_ANSWER, "{taken} bytes of the flood went before an answer");
    let before = written_by(noisy);
    daemon.until("the flood goes on", || written_by(noisy) > before + 1_000_000);
    daemon.stop();
}

#[test]
fn an_exit_by_code_by_zero_or_by_signal_is_logged_and_the_worker_is_started_again() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    let mut last = pid(&mut client);
    for (method, params, logged) in [
        ("exit", json!({ "code": 7 }), "exit code 7"),
        ("exit", json!({ "code": 0 }), "exit code 0"),
        ("die", json!({ "signal": 9 }), "signal 9"),
        ("die", json!({ "signal": 6 }), "signal 6"),
    ] {
        client.ask(1, method, params);
        assert_eq!(client.error(1, "worker_exited"), -32011);
        daemon.logs(&["reason=worker_exited", logged]);
        daemon.logs(&["reason=request_lost", "client=0 ", " id=1"]);
        assert!(!lives(last));
        last = successor(&mut client, last);
    }
    assert!(daemon.zombies().is_empty());
    daemon.stop();
}

#[test]
fn whole_lines_that_a_worker_wrote_before_it_died_are_delivered() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    client.ask(1, "half_line", json!({ "whole": "{\"id\":1,\"result\":\"whole\"}", "half": "{\"id\":1,\"res" }));
    assert_eq!(client.answer(1)["result"], "whole");
    daemon.logs(&["reason=partial_line", " 12 bytes of an unfinished line"]);
    daemon.stop();
}

#[test]
fn a_worker_that_closes_its_stdout_and_lives_is_replaced() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    let old = pid(&mut client);
    client.ask(1, "close_stdout", json!({}));
    client.error(1, "worker_exited");
    daemon.logs(&["worker_closed_stdout"]);
    successor(&mut client, old);
    assert!(!lives(old));
    daemon.stop();
}

#[test]
fn a_worker_that_closes_its_stdin_and_lives_is_replaced() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    let old = pid(&mut client);
    client.send(&json!({ "method": "close_stdin" }));
    daemon.logs(&["worker_closed_stdin"]);
    successor(&mut client, old);
    assert!(!lives(old));
    daemon.stop();
}

#[test]
fn a_worker_that_closes_its_stdin_while_it_works_may_still_answer() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    let old = pid(&mut client);
    // Longer than a worker with a broken pipe may take to exit by itself.
    client.ask(1, "close_stdin", json!({ "answer_after": 2 }));
    assert!(client.answer(1)["result"].is_object());
    daemon.logs(&["worker_closed_stdin"]);
    successor(&mut client, old);
    daemon.stop();
}

/// Checks that a worker is replaced that stopped reading after `stop_reading` was called with its client and its
/// process.
fn is_replaced_when_its_queue_stays_full(stop_reading: impl FnOnce(&mut Client, u64)) {
    let mut daemon = Setup::new([worker("agents", 1, &[])])
        .limit("max_output_queue", 100_000)
        .limit("backpressure_timeout_sec", 1)
        .start();
    let mut client = daemon.connect();
    let old = pid(&mut client);
    stop_reading(&mut client, old);
    let mut sent = 0;
    // The next worker's answers are short: they fit into the sockets while this client does not read.
    let line = json!({ "id": "x", "method": "who", "params": "x".repeat(10_000) }).to_string();
    // Its pipe and its queue are full after fewer than this.
    for id in 0..80 {
        client.send_line(&line.replacen("\"x\"", &id.to_string(), 1));
        sent += 1;
    }
    daemon.logs(&["worker_stalled"]);
    client.error("pending", "worker_exited");
    let mut failed = 0;
    for _ in 0..sent {
        failed += usize::from(client.message()["error"]["code"].is_number());
    }
    assert!(failed > 0, "what was given to the old worker cannot be answered");
    successor(&mut client, old);
    assert!(!lives(old));
    daemon.stop();
}

#[test]
fn a_worker_that_was_stopped_by_a_signal_is_replaced_when_its_queue_stays_full() {
    is_replaced_when_its_queue_stays_full(|client, worker| {
        client.ask("pending", "hold", json!({}));
        // It has read that one.
        client.request("who", "who", json!({}));
        send_signal(worker, Signal::STOP);
    });
}

#[test]
fn a_stopped_worker_is_continued_so_that_it_handles_sigterm() {
    let setup = Setup::new([]);
    let record = setup.path("record");
    let pool = worker("agents", 1, &["--record", record.to_str().unwrap()]);
    let mut daemon = setup.set("pools", json!([pool])).start();
    let mut client = daemon.connect();
    let old = pid(&mut client);
    send_signal(old, Signal::STOP);
    daemon.signal(Signal::TERM);
    daemon.wait();
    assert!(recorded(&record).iter().any(|line| line.starts_with("SIGTERM")), "TERM, then CONT");
    daemon.ends_well();
}

#[test]
fn a_worker_that_ignores_sigterm_is_killed_after_drain_timeout() {
    let mut daemon = Setup::new([worker("agents", 1, &["--ignore-term"])]).limit("drain_timeout_sec", 1).start();
    let mut client = daemon.connect();
    let old = pid(&mut client);
    client.ask(1, "write", json!({ "text": "nonsense\n" }));
    client.error(1, "worker_exited");
    daemon.logs(&["worker_killed"]);
    successor(&mut client, old);
    assert!(!lives(old));
    daemon.stop();
}

#[test]
fn a_grandchild_that_holds_stdout_open_does_not_hide_the_workers_death() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    let old = pid(&mut client);
    let params = json!({ "holds_stdout": true, "setsid": true });
    let grandchild = client.request(1, "grandchild", params)["result"]["pid"].as_u64().unwrap();
    client.ask(2, "exit", json!({ "code": 1 }));
    client.error(2, "worker_exited");
    daemon.logs(&["worker_holds_pipe"]);
    successor(&mut client, old);
    // It has left the worker's group; it ends with the daemon at the latest.
    let outcome = daemon.stop();
    assert!(!lives(grandchild), "{}", outcome.stderr);
}

#[test]
fn a_workers_whole_process_group_ends_with_it() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).limit("drain_timeout_sec", 1).start();
    let mut client = daemon.connect();
    // This one ignores SIGTERM.
    let grandchild = client.request(1, "grandchild", json!({}))["result"]["pid"].as_u64().unwrap();
    assert!(lives(grandchild));
    daemon.stop();
    assert!(!lives(grandchild));
}

#[test]
fn processes_left_in_a_dead_workers_group_are_killed() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    let grandchild = client.request(1, "grandchild", json!({}))["result"]["pid"].as_u64().unwrap();
    assert!(lives(grandchild));
    client.ask(2, "exit", json!({ "code": 1 }));
    client.error(2, "worker_exited");
    daemon.until("nothing of the worker is left", || !lives(grandchild));
    daemon.stop();
}

#[test]
fn a_process_that_left_its_workers_group_is_found_and_ended_at_the_shutdown() {
    let mut daemon = Setup::new([worker("agents", 2, &["--orphan"])]).limit("drain_timeout_sec", 1).start();
    let mut client = daemon.connect();
    pid(&mut client);
    pid(&mut client);
    // A process has no environment for a moment during exec.
    daemon.until("two workers and their orphans are there", || daemon.descendants().len() == 4);
    daemon.stop();
}

#[test]
fn orphans_of_workers_become_no_zombies() {
    let setup = Setup::new([]);
    let gate = Gate::new(setup.path("gate"));
    let script = format!("while read line; do (sh -c ': < {}' &); done", gate.path());
    let mut daemon = setup.set("pools", json!([shell("forks", &script)])).start();
    let mut client = daemon.connect();
    for _ in 0..20 {
        client.send(&json!({ "method": "fork" }));
    }
    daemon.until("the daemon has adopted all orphans", || children(daemon.pid()).len() == 21);
    // It stays open: some may open it late.
    let _open = fs::File::options().read(true).write(true).open(gate.path()).unwrap();
    // A zombie would still be there.
    daemon.until("its only child is the worker", || children(daemon.pid()).len() == 1);
    daemon.stop();
}

/// Kills the daemon by a signal without a chance to clean up, and checks that its workers exit by themselves.
fn dies_with_its_workers(mut daemon: Daemon, signal: Signal) {
    let mut client = daemon.connect();
    client.request(1, "who", json!({}));
    assert!(!daemon.descendants().is_empty());
    daemon.signal(signal);
    daemon.wait();
    daemon.nothing_is_left();
}

#[test]
fn no_worker_survives_a_daemon_that_is_killed() {
    dies_with_its_workers(Setup::new([worker("agents", 3, &[])]).start(), Signal::KILL);
}

#[test]
fn no_worker_survives_a_daemon_that_aborts_as_a_panic_makes_it_do() {
    dies_with_its_workers(Setup::new([worker("agents", 3, &["--ignore-term"])]).start(), Signal::ABORT);
}

#[test]
fn not_even_a_worker_that_ignores_everything_survives_a_daemon_that_is_killed() {
    dies_with_its_workers(Setup::new([worker("agents", 2, &["--ignore-term"])]).start(), Signal::KILL);
}

// Workers that are started while clients are served: no client waits for another's exec, nor for workers of clients that
// have left.

/// fcntl(2); the crate libc does not have it.
const F_SETSIG: libc::c_int = 10;

/// A file lease: opening the file, even to execute it, blocks until the lease is released (fcntl(2), F_SETLEASE).
pub struct Lease(File);

impl Lease {
    /// None if the file system does not support leases.
    pub fn on(path: &Path) -> Option<Self> {
        let file = File::open(path).expect("it is ours");
        // SAFETY: the calls have no memory arguments. The signal for a lease break is ignored by default.
        let is_held = unsafe {
            libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG);
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0
        };
        is_held.then_some(Self(file))
    }

    /// Whether no open is blocked by it.
    pub fn is_undisturbed(&self) -> bool {
        // SAFETY: the call has no memory arguments.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_GETLEASE) == libc::F_WRLCK }
    }
}

fn dedicated(pool: Value, most: usize) -> Value {
    with(with(pool, "assignment", "dedicated"), "max_instances", most)
}

/// A dedicated pool whose program can be leased, and another pool.
fn slow_to_start(most: usize) -> (Setup, PathBuf) {
    let mut setup = Setup::new([]);
    let agent = setup.path("agent.sh");
    script(&agent, &format!("#!/bin/sh\nexec '{}' worker echo\n", program().display()));
    let own = json!({ "id": "own", "command": agent, "args": [], "instances": 1 });
    setup.config()["pools"] = json!([dedicated(own, most), echo("others", 1)]);
    (setup, agent)
}

/// A daemon whose spare worker has opened everything that it needs of its program.
fn start_with_a_spare(setup: Setup) -> Daemon {
    let daemon = start_ready(setup);
    let has_begun = |(process, _): (u32, char)| {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        line.starts_with(program().as_os_str().as_bytes())
    };
    daemon.until("both workers run", || {
        children(daemon.pid()).into_iter().filter(|child| has_begun(*child)).count() == 2
    });
    daemon
}

/// How many workers of a pool were started.
fn starts(daemon: &Daemon, pool: &str) -> u64 {
    let answer = Admin::of(daemon).get("/pools.json").body;
    let pools: Value = serde_json::from_str(&answer).expect("it is JSON");
    let rows = pools["pools"].as_array().expect("a table");
    rows.iter().find(|row| row["pool"] == pool).and_then(|row| row["starts"].as_u64()).expect("it is counted")
}

fn ask(client: &mut Client, pool: &str) {
    client.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "pool": pool }));
}

#[test]
fn while_a_worker_starts_others_are_served_and_its_waiting_clients_are_shown() {
    let (setup, agent) = slow_to_start(9);
    let mut daemon = start_with_a_spare(setup);
    let Some(lease) = Lease::on(&agent) else { return skip("the file system of TMPDIR has no leases (fcntl(2))") };
    let (mut warm, mut waits, mut other) = (daemon.connect(), daemon.connect(), daemon.connect());
    // The spare one is used, and the next one cannot start.
    ask(&mut warm, "own");
    warm.answer(1);
    daemon.until("the next one is being started", || !lease.is_undisturbed());
    ask(&mut waits, "own");
    ask(&mut other, "others");
    other.answer(1);
    assert_eq!(starts(&daemon, "own"), 1, "no other client has waited for it");
    assert!(!daemon.log().contains("spawn_failed"), "nor for its failure");
    let tables = || Admin::of(&daemon).get("/waiting.json").body;
    daemon.until("the waiting client is shown", || tables().contains("\"waits_for\":\"worker own/"));
    let metrics = Admin::of(&daemon).get("/metrics").body;
    assert!(metrics.contains("\nstdio_bus_clients_awaiting_workers 1\n"), "{metrics}");
    daemon.logs(&["worker_awaited", "first answer of its own worker"]);
    assert!(!waits.has_something());
    drop(lease);
    waits.answer(1);
    daemon.stop();
}

#[test]
fn closed_connections_get_no_workers_and_delay_no_others() {
    let daemon = start_ready(Setup::new([dedicated(echo("own", 1), 1000)]).tcp());
    let address = daemon.address();
    let from = |host: u8| Client::over_tcp_from(IpAddr::from([127, 0, 0, host]), address);
    // All have connected, sent requests and left before the daemon looks.
    daemon.stand_still();
    for _ in 0..300 {
        let mut gone = from(2);
        ask(&mut gone, "own");
    }
    let mut honest: Vec<Client> = (3..6).map(from).collect();
    honest.iter_mut().for_each(|client| ask(client, "own"));
    daemon.signal(Signal::CONT);
    for client in &mut honest {
        let answer = client.answer(1);
        assert!(answer["result"].is_object(), "{answer}");
    }
    daemon.until("all others are closed", || {
        let clients = Admin::of(&daemon).get("/clients.json").body;
        clients.matches("\"client\":").count() == honest.len()
    });
    let started = starts(&daemon, "own");
    assert!(started < 60, "{started} workers were started, for 300 clients that have left and 3 that have not");
    daemon.stop();
}

#[test]
fn a_worker_is_killed_for_its_memory_before_the_daemon() {
    let mut daemon = Setup::new([echo("agents", 1)]).start();
    daemon.connect_and_ask();
    let score = |process: u32| -> i32 {
        let text = fs::read_to_string(format!("/proc/{process}/oom_score_adj")).expect("it runs");
        text.trim().parse().expect("a number")
    };
    let (worker, _) = children(daemon.pid())[0];
    let ours = score(daemon.pid());
    assert_eq!(score(worker), (ours + 500).min(1000), "ours is {ours}");
    daemon.stop();
}

#[test]
fn an_operator_sees_how_much_memory_each_worker_has() {
    let daemon = start_ready(Setup::new([echo("agents", 2)]));
    daemon.until("both run, and it is reported what they have", || {
        let workers: Value = serde_json::from_str(&Admin::of(&daemon).get("/workers.json").body).expect("it is JSON");
        let rows = workers["workers"].as_array().expect("a table");
        rows.len() == 2 && rows.iter().all(|row| row["memory_bytes"].as_u64() > Some(65_536))
    });
    daemon.stop();
}
