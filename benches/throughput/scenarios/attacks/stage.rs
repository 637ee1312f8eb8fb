//! The common parts of attacks: starting the daemon, and time limits.
//!
//! All clients come from one host and are one source. The attackers' priority is hardly lowered: one that waited until
//! the workers are idle would not be a flood.

use std::io;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::Harness;
use crate::harness::address::{Address, Transport};
use crate::harness::client::Client;
use crate::harness::machine::{self, Placement};
use crate::harness::measure::progress;
use crate::harness::server::{Contestant, Server, agents};
use crate::scenario::{Table, bold_unless};

#[derive(Clone, Copy)]
pub struct Attack {
    /// Its name in the table and on the command line.
    pub name: &'static str,
    /// The target for polite clients.
    pub goal: &'static str,
    /// Time limit per contestant.
    pub limit: Duration,
    /// The attack.
    pub run: fn(&Stage<'_>) -> io::Result<Outcome>,
}

/// The result of an attack for one contestant.
pub struct Outcome {
    /// The text for the table.
    pub text: String,
    /// Whether the target is reached.
    pub reached: bool,
    /// For the record.
    pub figures: Value,
}

impl Attack {
    /// Attacks the peer, if there is one, and the daemon.
    pub fn measure(&self, harness: &Harness) -> io::Result<Vec<Table>> {
        let name = self.name.trim_start_matches("fairness, ");
        let mut row = format!("| {name} | {} |", self.goal);
        let mut contestants = Vec::new();
        for contestant in [Contestant::Peer, Contestant::Bus] {
            if contestant == Contestant::Peer && harness.peer.is_none() {
                row += " – |";
                continue;
            }
            progress(&format!("{}, {}", self.name, contestant.name()));
            let Outcome { text, reached, figures } = self.outcome(contestant, harness);
            row += &format!(" {} |", bold_unless(reached, &text));
            contestants.push(json!({ "who": contestant.name(), "reached": reached, "text": text, "figures": figures }));
        }
        progress("");
        Ok(vec![Table {
            name: "attacks",
            head: "How polite clients fare; in bold where the goal is missed:\n\n\
                   | attack | goal | peer | stdio_bus |\n|---|---|---|---|",
            rows: vec![row],
            figures: vec![json!({ "attack": name, "goal": self.goal, "contestants": contestants })],
        }])
    }

    fn outcome(&self, contestant: Contestant, harness: &Harness) -> Outcome {
        let began = Instant::now();
        let _watch = self.watch();
        (self.run)(&Stage { contestant, harness, until: began + self.limit }).unwrap_or_else(|error| {
            let text = match error.kind() {
                io::ErrorKind::TimedOut => {
                    format!("failed: given up after {} s, an answer did not come in time", began.elapsed().as_secs())
                }
                _ => format!("failed: {error}"),
            };
            Outcome { figures: json!({ "failed": text }), text, reached: false }
        })
    }

    /// Ends the bench if an attack hangs although all its waits have limits. Its daemons end with it. Dropping the
    /// result ends the watch.
    fn watch(&self) -> mpsc::Sender<()> {
        let (over, watched) = mpsc::channel();
        let (name, limit) = (self.name, self.limit);
        std::thread::spawn(move || {
            if watched.recv_timeout(limit + Duration::from_secs(30)) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("\nthroughput: {name}: hangs; its limit of {} s is over", limit.as_secs());
                for daemon in machine::children(std::process::id()) {
                    // SAFETY: the call has no memory arguments.
                    unsafe { libc::kill(daemon as libc::pid_t, libc::SIGKILL) };
                }
                std::process::exit(1);
            }
        });
        over
    }
}

/// The setting of an attack.
pub struct Stage<'a> {
    /// The attacked contestant.
    pub contestant: Contestant,
    harness: &'a Harness,
    /// Its deadline.
    pub until: Instant,
}

impl Stage<'_> {
    /// Starts the attacked daemon.
    pub fn start(&self, pools: &[Value], limits: &Value, transport: Transport) -> io::Result<Server> {
        let configuration = json!({ "pools": pools, "limits": limits });
        self.harness.start_with(self.contestant, configuration, transport, Placement::choose(false))
    }

    /// This many seconds from now, but not after the attack's deadline.
    pub fn within(&self, seconds: u64) -> Instant {
        self.until.min(Instant::now() + Duration::from_secs(seconds))
    }

    /// The first in a full run, the second in a quick one.
    pub fn either<T>(&self, full: T, quick: T) -> T {
        self.harness.either(full, quick)
    }
}

/// The pools "shared", which is attacked and takes this many microseconds per line, and "own".
pub fn two_pools(micros: u64) -> [Value; 2] {
    [agents("shared", 1, micros), agents("own", 1, 0)]
}

/// Opens connections.
pub fn connect(address: &Address, count: usize) -> io::Result<Vec<Client>> {
    (0..count).map(|_| Client::connect(address)).collect()
}
