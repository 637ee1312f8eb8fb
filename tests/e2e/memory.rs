//! Memory (`limits.max_memory`): with however many incomplete lines and stalled readers, it stays bounded, it is
//! returned, and clients that hold little notice nothing. Clients and workers that are gone leave nothing behind.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::json;

use crate::client::Client;
use crate::harness::{Daemon, PATIENCE, Setup, children, echo, shell, until, with, worker};

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
fn an_idle_daemon_has_given_back_the_pages_of_its_program_that_only_its_start_needed() {
    let daemon = Setup::new([echo("p", 1)]).start();
    daemon
        .until("it has a megabyte less than at its start", || resident(&daemon) + MIB < status(daemon.pid(), "VmHWM:"));
}

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
fn a_client_that_is_closed_for_its_unfinished_line_gets_the_reason() {
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

// Clients that have left and workers that have crashed leave nothing behind. The daemon's own counts of its tables may be
// wrong. So they are filled at the end: if a slot was leaked, a client would be refused.

/// Concurrent clients.
const AT_ONCE: usize = 8;
/// The number of ways to disconnect.
const WAYS: usize = 8;
const WORKERS: usize = 2;
/// Clients and crashes before memory is measured, and after that.
const WARM_CLIENTS: usize = 1600;
const WARM_CRASHES: usize = 80;
const CLIENTS: usize = 10_000;
const CRASHES: usize = 500;
/// Workers that wait for a client that makes them crash.
const SPARES: usize = 4;
/// The fixed limits of docs/configuration.md.
const CONNECTIONS: usize = 1024;
const SESSIONS: usize = 1024;
const PENDING: usize = 4096;

/// The daemon's system resources.
#[derive(Debug, PartialEq)]
struct Open {
    descriptors: usize,
    /// Including zombies.
    children: usize,
}

fn open(daemon: &Daemon) -> Open {
    Open { descriptors: daemon.descriptors(), children: children(daemon.pid()).len() }
}

/// The daemon's addresses.
struct Doors {
    tcp: std::net::SocketAddr,
    unix: PathBuf,
}

impl Doors {
    /// Connects and disconnects this many clients, some at a time, and crashes this many workers.
    fn churn(&self, name: &str, clients: usize, crashes: usize) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= clients {
                            break;
                        }
                        self.come_and_go(name, number);
                        // The crashes are spread over all clients.
                        if (number + 1) * crashes / clients > number * crashes / clients {
                            self.crash();
                        }
                    }
                });
            }
        });
    }

    /// All ways of disconnecting happen on both.
    fn is_over_tcp(number: usize) -> bool {
        (number / WAYS).is_multiple_of(2)
    }

    fn connect(&self, number: usize) -> Client {
        if Self::is_over_tcp(number) { Client::over_tcp(self.tcp) } else { Client::over_unix(&self.unix) }
    }

    fn leave(client: Client, number: usize) {
        if Self::is_over_tcp(number) { client.reset() } else { drop(client) }
    }

    fn come_and_go(&self, name: &str, number: usize) {
        let mut client = self.connect(number);
        match number % WAYS {
            0 => {
                // Whatever this worker holds for others is answered, although they have left.
                client.request(1, "release", json!({}));
                client.half_close();
                client.ends();
            }
            1 => {
                client.ask(1, "m", json!({}));
                client.half_close();
                client.answer(1);
                client.ends();
            }
            2 => {
                client.request(1, "m", json!({}));
                Self::leave(client, number);
            }
            // The answer shows that what was sent before it is pending.
            way @ (3 | 4) => {
                (1..=3).for_each(|id| client.ask(id, "hold", json!({})));
                client.ask(4, "who", json!({}));
                client.find_answer(4);
                if way == 3 { drop(client) } else { Self::leave(client, number) }
            }
            5 => {
                client.request(1, "session/new", json!({ "name": format!("{name} issued {number}") }));
                client.ask_in(&format!("{name} issued {number}"), 2, "m", json!({}));
            }
            6 => {
                client.request_in(&format!("{name} claimed {number}"), 1, "m", json!({}));
                client.send_bytes(br#"{"id":2,"method":"never"#);
                Self::leave(client, number);
            }
            _ => Self::leave(client, number),
        }
    }

    /// A client makes its dedicated worker crash, once it has one.
    fn crash(&self) {
        // From one source: if clients of several make a pool's workers end, replacements are delayed.
        let mut client = Client::over_unix(&self.unix);
        until("a worker is there that can crash", || {
            client.send(&json!({ "id": 0, "method": "m", "pool": "brittle" }));
            client.answer(0)["result"] == 1
        });
        client.send(&json!({ "id": 1, "method": "m", "pool": "brittle" }));
        assert_eq!(client.answer(1)["error"]["data"]["reason"], "worker_exited");
    }
}

/// Waits until no descriptor and no child is left. A client that only closed its socket is taken for one that still
/// reads, so it stays until it gets what a worker holds for it.
fn settle(daemon: &Daemon, watcher: &mut Client, before: &Open) {
    daemon.until("no descriptor and no child is left", || {
        release_all(watcher);
        open(daemon) == *before
    });
}

/// Makes the workers, in turn, answer what they hold for clients that have left.
fn release_all(client: &mut Client) {
    for id in 0..WORKERS {
        client.request(id, "release", json!({}));
    }
}

/// Fills all tables completely, without any refusal.
fn fill_all_tables(daemon: &mut Daemon, mut holder: Client) {
    for number in 0..SESSIONS {
        let answer = holder.request_in(&format!("last {number}"), number, "m", json!({}));
        assert!(answer["error"].is_null(), "session {number}: {answer}");
    }
    // The others need one, in turn.
    (0..PENDING - 1).for_each(|number| holder.ask(number, "hold", json!({})));
    // Until all of them are pending: while other clients send requests, the last slots are reserved for clients with
    // few.
    holder.request("then", "who", json!({}));
    let _others: Vec<Client> = (1..CONNECTIONS).map(|_| daemon.connect_and_ask()).collect();
}

#[test]
#[ignore = "scripts/test slow"]
fn clients_that_left_and_workers_that_crashed_leave_nothing_behind() {
    // It answers first: workers that exit before they have answered are restarted more and more slowly.
    let answer = r#"read -r line; echo '{"jsonrpc":"2.0","id":0,"result":1}'; read -r line; kill -9 $$"#;
    let brittle = with(shell("brittle", answer), "assignment", "dedicated");
    let setup = Setup::new([worker("agents", WORKERS, &[]), with(brittle, "instances", SPARES)]);
    let unix = setup.path("churn");
    let mut daemon = setup.set("listeners", json!([{ "unix": unix }])).start();
    let doors = Doors { tcp: daemon.address(), unix };
    // It stays. Once every worker has answered it, no start is in progress any more.
    let mut watcher = daemon.connect();
    daemon.until("all workers are there", || open(&daemon).children == WORKERS + SPARES);
    release_all(&mut watcher);
    let before = open(&daemon);
    doors.churn("warm", WARM_CLIENTS, WARM_CRASHES);
    settle(&daemon, &mut watcher, &before);
    let memory = resident(&daemon);
    doors.churn("churn", CLIENTS, CRASHES);
    settle(&daemon, &mut watcher, &before);
    daemon.until("no memory is left", || resident(&daemon) <= memory + memory / 10);
    println!("{CLIENTS} clients, {CRASHES} crashes; {before:?}, {memory} bytes before and {} after", resident(&daemon));
    // No other client sends requests now, so each worker gets one of these.
    release_all(&mut watcher);
    fill_all_tables(&mut daemon, watcher);
    let outcome = daemon.stop();
    for refusal in ["session_limit", "session_evicted", "pending_limit"] {
        assert!(!outcome.stderr.contains(refusal), "{refusal}: {}", outcome.stderr);
    }
}
