//! What attacks share: the stage on which each takes place, and the limits that none may exceed.
//!
//! All clients come from one host and are one source. The attackers hardly give way: one that waits until the workers
//! have nothing to do would be no flood.

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

/// One attack.
#[derive(Clone, Copy)]
pub struct Attack {
    /// For the table and the command line.
    pub name: &'static str,
    /// What the polite shall have.
    pub goal: &'static str,
    /// How long it may take for one contestant.
    pub limit: Duration,
    /// What is done.
    pub run: fn(&Stage<'_>) -> io::Result<Outcome>,
}

/// What came of an attack, for one contestant.
pub struct Outcome {
    /// For the table.
    pub text: String,
    /// Whether the goal is reached.
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
        for who in [Contestant::Peer, Contestant::Bus] {
            if who == Contestant::Peer && harness.peer.is_none() {
                row += " – |";
                continue;
            }
            progress(&format!("{}, {}", self.name, who.name()));
            let Outcome { text, reached, figures } = self.outcome(who, harness);
            row += &format!(" {} |", bold_unless(reached, &text));
            contestants.push(json!({ "who": who.name(), "reached": reached, "text": text, "figures": figures }));
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

    fn outcome(&self, who: Contestant, harness: &Harness) -> Outcome {
        let began = Instant::now();
        let _watch = self.watch();
        (self.run)(&Stage { who, harness, until: began + self.limit }).unwrap_or_else(|error| {
            let text = match error.kind() {
                io::ErrorKind::TimedOut => {
                    format!("failed: given up after {} s, an answer did not come in time", began.elapsed().as_secs())
                }
                _ => format!("failed: {error}"),
            };
            Outcome { figures: json!({ "failed": text }), text, reached: false }
        })
    }

    /// Ends the bench if an attack hangs although all its waits have limits. The daemons that it has started end with
    /// it. Dropping what this returns ends the watch.
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

/// Where an attack takes place.
pub struct Stage<'a> {
    /// Who is attacked.
    pub who: Contestant,
    harness: &'a Harness,
    /// When it has to be over.
    pub until: Instant,
}

impl Stage<'_> {
    /// Starts the daemon that is attacked.
    pub fn start(&self, pools: &[Value], limits: &Value, transport: Transport) -> io::Result<Server> {
        let configuration = json!({ "pools": pools, "limits": limits });
        self.harness.start_with(self.who, configuration, transport, Placement::choose(false))
    }

    /// This many seconds from now, or sooner if the attack has to be over by then.
    pub fn within(&self, seconds: u64) -> Instant {
        self.until.min(Instant::now() + Duration::from_secs(seconds))
    }

    /// One in a full run, another one in a short run.
    pub fn either<T>(&self, full: T, quick: T) -> T {
        self.harness.either(full, quick)
    }
}

/// The pools "shared", which is attacked and takes so many microseconds for a line, and "own".
pub fn two_pools(micros: u64) -> [Value; 2] {
    [agents("shared", 1, micros), agents("own", 1, 0)]
}

/// So many connections.
pub fn connect(address: &Address, count: usize) -> io::Result<Vec<Client>> {
    (0..count).map(|_| Client::connect(address)).collect()
}
