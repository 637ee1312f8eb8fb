//! Workers that are started while clients are served: no client waits for another's exec, nor for workers of clients
//! that have left.

use std::fs::{self, File};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::admin::{Admin, start_ready};
use crate::client::Client;
use crate::harness::{Daemon, Setup, children, echo, program, script, skip, with};

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
    daemon.until("both run, and it is told what they have", || {
        let workers: Value = serde_json::from_str(&Admin::of(&daemon).get("/workers.json").body).expect("it is JSON");
        let rows = workers["workers"].as_array().expect("a table");
        rows.len() == 2 && rows.iter().all(|row| row["memory_bytes"].as_u64() > Some(65_536))
    });
    daemon.stop();
}
