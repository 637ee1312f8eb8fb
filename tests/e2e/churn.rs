//! Clients that have left and workers that have crashed leave nothing behind.
//!
//! The daemon's own counts of its tables may be wrong. So they are filled at the end: if a slot was leaked, a client
//! would be refused.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::client::Client;
use crate::harness::{Daemon, Setup, children, shell, until, with, worker};
use crate::memory::resident;

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
