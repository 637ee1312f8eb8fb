//! Memory (`limits.max_memory`): with however many incomplete lines and stalled readers, it stays bounded, it is
//! returned, and clients that hold little notice nothing.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::json;

use crate::client::Client;
use crate::harness::{Daemon, PATIENCE, Setup, echo, worker};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The daemon's memory besides max_memory: its own, and data in flight.
const BESIDE: u64 = 20 * MIB;
/// How much of a burst may remain.
const LEFT: u64 = 10 * MIB;

/// A line of /proc/PID/status in bytes.
fn status(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon runs");
    let line = status.lines().find(|line| line.starts_with(name)).expect("the line is always there");
    KIB * line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).expect("a number")
}

/// Its resident memory in bytes.
pub fn resident(daemon: &Daemon) -> u64 {
    status(daemon.pid(), "VmRSS:")
}

/// Runs `work` while a client on a pool of its own sends one request at a time, each of which is answered. Returns the
/// daemon's peak memory as counted by the kernel.
fn beside_a_polite_client(polite: &mut Client, pid: u32, work: impl FnOnce()) -> u64 {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                polite.send(&json!({ "id": 7, "method": "m", "pool": "calm" }));
                polite.answer(7);
            }
        });
        // The other thread has to end in any case.
        let _over = Guard(&over);
        work();
    });
    status(pid, "VmHWM:")
}

struct Guard<'a>(&'a AtomicBool);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn goes_back(daemon: &Daemon, before: u64) {
    let most = before + LEFT;
    daemon.until(&format!("at most {most} bytes are left after a burst"), || resident(daemon) <= most);
}

/// Writes the beginning of a line to each client until all of it is sent, the client is closed, or it accepts no more
/// and `is_enough`.
fn begin_lines(clients: &mut [Client], line: &[u8], mut is_enough: impl FnMut() -> bool) {
    let mut written: Vec<Option<usize>> = vec![Some(0); clients.len()];
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut moved = false;
        for (client, at) in clients.iter_mut().zip(&mut written) {
            let Some(from) = at.filter(|from| *from < line.len()) else { continue };
            match client.push(&line[from..]) {
                Ok(bytes) => (*at, moved) = (Some(from + bytes), true),
                Err(rustix::io::Errno::AGAIN) => {}
                Err(_) => *at = None,
            }
        }
        if !moved && (is_enough() || written.iter().all(|at| at.is_none_or(|at| at == line.len()))) {
            return;
        }
        assert!(Instant::now() < deadline, "the daemon takes no more, and does nothing about it");
        std::thread::yield_now();
    }
}

fn unfinished_line(bytes: usize) -> Vec<u8> {
    [br#"{"id":1,"method":""#, "x".repeat(bytes).as_bytes()].concat()
}

/// The default of `limits.max_memory`.
const MAX_MEMORY: u64 = 256 * MIB;

#[test]
fn a_thousand_unfinished_lines_stay_within_the_memory_limit_and_leave_nothing() {
    // All slots but two: the polite client has one, and the daemon accepts new clients in the last.
    const CLIENTS: usize = 1022;
    let mut daemon = Setup::new([echo("loud", 1), echo("calm", 1)]).unix().start();
    let pid = daemon.pid();
    let mut polite = daemon.connect();
    polite.send(&json!({ "id": 1, "method": "m", "pool": "calm" }));
    polite.answer(1);
    let before = resident(&daemon);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| daemon.connect()).collect();
    let most = beside_a_polite_client(&mut polite, pid, || {
        // None completes its line, so they are closed, one after the other.
        begin_lines(&mut clients, &unfinished_line(1_000_000), || {
            daemon.log().lines().filter(|line| line.contains("memory_limit")).count() >= 3
        });
    });
    assert!(most < MAX_MEMORY + BESIDE, "{most} bytes");
    // Of a block that counts for a line, the kernel counts what came so far.
    assert!(most > MAX_MEMORY / 4, "it was no burst: {most} bytes");
    daemon.logs(&["WARN", "memory_limit", "client=", "limits.max_memory"]);
    drop(clients);
    goes_back(&daemon, before);
    polite.send(&json!({ "id": 2, "method": "m", "pool": "calm" }));
    polite.answer(2);
    daemon.stop();
}

#[test]
fn a_client_that_is_closed_for_its_unfinished_line_is_told_why() {
    let mut daemon = Setup::new([echo("echo", 1)]).limit("max_input_buffer", 512 * MIB).unix().start();
    let mut client = daemon.connect();
    let mut writing = [client.second()];
    // There are no others to evict: it ends when the daemon closes it.
    begin_lines(&mut writing, &unfinished_line(300 * MIB as usize), || client.has_something());
    assert_eq!(client.error(json!(null), "memory_limit"), -32027);
    client.ends();
    daemon.stop();
}

#[test]
fn clients_that_never_read_stay_within_the_memory_limit_and_leave_nothing() {
    const CLIENTS: usize = 110;
    let mut daemon = Setup::new([worker("loud", 1, &[]), echo("calm", 1)]).unix().start();
    let pid = daemon.pid();
    let mut polite = daemon.connect();
    polite.send(&json!({ "id": 1, "method": "m", "pool": "calm" }));
    polite.answer(1);
    let before = resident(&daemon);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| daemon.connect()).collect();
    let most = beside_a_polite_client(&mut polite, pid, || {
        for (number, client) in clients.iter_mut().enumerate() {
            // Less than fills one output, so that the worker continues: all together are too much.
            let params = json!({ "lines": 130, "size": 30_000 });
            let session = format!("session-{number}");
            client.send(&json!({ "id": 1, "method": "flood", "sessionId": session, "pool": "loud", "params": params }));
        }
        daemon.logs(&["WARN", "memory_limit", "client="]);
        let mut last = daemon.connect();
        last.send(&json!({ "id": 1, "method": "who", "pool": "loud" }));
        last.answer(1);
    });
    assert!(most < MAX_MEMORY + BESIDE, "{most} bytes");
    assert!(most > MAX_MEMORY / 2, "it was no burst: {most} bytes");
    drop(clients);
    goes_back(&daemon, before);
    daemon.stop();
}

/// Bounds the address space of a running process.
fn bound_address_space(pid: u32, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: prlimit(2) reads `limit`, which lives until it returns, and writes nothing.
    let result = unsafe { libc::prlimit(pid as i32, libc::RLIMIT_AS, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn without_memory_the_daemon_and_its_workers_live_and_a_polite_client_is_answered() {
    let mut daemon = Setup::new([worker("loud", 1, &[]), echo("calm", 1)]).unix().start();
    let pid = daemon.pid();
    let mut polite = daemon.connect();
    polite.send(&json!({ "id": 1, "method": "who", "pool": "loud" }));
    let worker_before = polite.answer(1)["result"]["pid"].clone();
    bound_address_space(pid, status(pid, "VmSize:") + 60 * MIB);
    let mut clients: Vec<Client> = (0..200).map(|_| daemon.connect()).collect();
    beside_a_polite_client(&mut polite, pid, || begin_lines(&mut clients, &unfinished_line(1_000_000), || false));
    daemon.logs(&["WARN", "memory_limit", "client=", "the system has no memory left"]);
    // The same in the other direction: clients that do not read a worker's output.
    let mut deaf: Vec<Client> = (0..40).map(|_| daemon.connect()).collect();
    beside_a_polite_client(&mut polite, pid, || {
        for (number, client) in deaf.iter_mut().enumerate() {
            let (session, params) = (format!("session-{number}"), json!({ "lines": 130, "size": 30_000 }));
            client.send(&json!({ "id": 1, "method": "flood", "sessionId": session, "pool": "loud", "params": params }));
        }
        let mut last = daemon.connect();
        last.send(&json!({ "id": 1, "method": "who", "pool": "loud" }));
        assert_eq!(last.answer(1)["result"]["pid"], worker_before, "the worker lives");
    });
    drop((clients, deaf));
    assert!(daemon.runs());
    polite.send(&json!({ "id": 2, "method": "who", "pool": "loud" }));
    assert_eq!(polite.answer(2)["result"]["pid"], worker_before);
    let outcome = daemon.stop();
    assert!(!outcome.stderr.contains("worker_exited"), "{}", outcome.stderr);
}
