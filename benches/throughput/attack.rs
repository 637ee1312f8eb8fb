//! Attacks: what one client does to all others, for the daemon and for its peer side by side. [`attacks`] has the
//! attacks themselves; here is what they share: the stage on which each takes place, the polite clients beside it, and
//! the limits that no attack may exceed.
//!
//! All clients come from one host and are one source. The polite go before everybody else of their CPU, so that what is
//! measured is the part of the daemon and its workers, and not the scheduler's. The attackers hardly give way: one
//! that waits until the workers have nothing to do would be no flood.
//!
//! [`attacks`]: crate::attacks

use std::io;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::case::Transport;
use crate::client::Client;
use crate::fairness::measure_first;
use crate::load::histogram;
use crate::machine::{self, Placement};
use crate::options::Options;
use crate::server::{Address, Contestant, Server};

/// One attack.
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

/// What came of an attack, for all contestants.
pub struct Row {
    /// Which.
    pub name: &'static str,
    /// What the polite shall have.
    pub goal: &'static str,
    /// Who, and what it did.
    pub cells: Vec<(Contestant, Outcome)>,
}

impl Attack {
    /// Attacks the peer, if there is one, and the daemon.
    pub fn measure(&self, options: &Options) -> io::Result<Row> {
        let mut cells = Vec::new();
        for who in [Contestant::Peer, Contestant::Bus] {
            if who == Contestant::Peer && options.peer.is_none() {
                continue;
            }
            eprint!("\r\x1b[K{}, {}", self.name, who.name());
            let stage = Stage {
                who,
                options,
                placement: Placement::choose(false, options),
                quick: options.quick,
                until: Instant::now() + self.limit,
            };
            let (watch, began) = (self.watch(), Instant::now());
            let outcome = (self.run)(&stage).unwrap_or_else(|error| {
                let text = match error.kind() {
                    io::ErrorKind::TimedOut => {
                        format!(
                            "failed: given up after {} s, an answer did not come in time",
                            began.elapsed().as_secs()
                        )
                    }
                    _ => format!("failed: {error}"),
                };
                Outcome { figures: json!({ "failed": text }), text, reached: false }
            });
            drop(watch);
            cells.push((who, outcome));
        }
        eprint!("\r\x1b[K");
        Ok(Row { name: self.name, goal: self.goal, cells })
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
    options: &'a Options,
    placement: Placement,
    /// Whether this run is short.
    pub quick: bool,
    /// When it has to be over.
    pub until: Instant,
}

impl Stage<'_> {
    /// Starts the daemon that is attacked.
    pub fn start(&self, pools: &[Value], limits: &Value, transport: Transport) -> io::Result<Server> {
        let configuration = json!({ "pools": pools, "limits": limits });
        Server::start_with(self.who, &configuration, transport, self.options, &self.placement)
    }

    /// This many seconds from now, or sooner if the attack has to be over by then.
    pub fn within(&self, seconds: u64) -> Instant {
        self.until.min(Instant::now() + Duration::from_secs(seconds))
    }

    /// One in a full run, another one in a short run.
    pub fn either<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// A pool of workers that take so many microseconds for a line.
pub fn agents(id: &str, instances: usize, micros: u64) -> io::Result<Value> {
    let command = std::env::current_exe()?;
    Ok(json!({ "id": id, "command": command, "args": ["be-agent-worker", micros.to_string()], "instances": instances }))
}

/// How long a polite client waits after an answer before it asks again.
const BREAK: Duration = Duration::from_millis(5);
/// A request that takes longer has been kept waiting.
const PROMPT: Duration = Duration::from_millis(20);

/// What a polite client came to, which has one request under way at a time.
pub struct Waits {
    times: Histogram<u64>,
    /// Requests that got a result.
    pub results: usize,
    /// Requests that got an error.
    pub errors: usize,
    /// The time of all requests that took more than 20 ms.
    pub in_all: Duration,
    /// The time of the one that took longest.
    pub longest: Duration,
    /// The time of the first one: a newcomer's.
    pub first: Duration,
    /// Whether the last one had no answer when it was over.
    pub unanswered: bool,
}

impl Waits {
    /// Milliseconds.
    pub fn quantile(&self, quantile: f64) -> f64 {
        self.times.value_at_quantile(quantile) as f64 / 1e6
    }

    /// p50 and p99 in milliseconds; what has no answer counts as if it came now.
    pub fn middle_and_tail(&self) -> [f64; 2] {
        [self.quantile(0.5), self.quantile(0.99)]
    }

    /// For the record.
    pub fn figures(&self) -> Value {
        json!({
            "p50_millis": self.quantile(0.5), "p99_millis": self.quantile(0.99), "results": self.results,
            "errors": self.errors, "seconds_above_20_millis": self.in_all.as_secs_f64(),
            "longest_seconds": self.longest.as_secs_f64(), "first_seconds": self.first.as_secs_f64(),
            "unanswered": self.unanswered,
        })
    }
}

/// A polite client asks a pool until `done` says so, which hears when the first answer came. What is under way then may
/// take until `until`.
pub fn polite(
    address: &Address,
    pool: &str,
    until: Instant,
    done: impl Fn(Option<Instant>) -> bool,
) -> io::Result<Waits> {
    let mut client = Client::connect(address)?;
    let mut waits = Waits {
        times: histogram(),
        results: 0,
        errors: 0,
        in_all: Duration::ZERO,
        longest: Duration::ZERO,
        first: Duration::ZERO,
        unanswered: false,
    };
    measure_first(0, true);
    let mut asks = || -> io::Result<()> {
        let mut first = None;
        for id in 0.. {
            if done(first) || Instant::now() >= until {
                break;
            }
            let began = Instant::now();
            let answer = client.ask(id, "m", pool, until).and_then(|()| client.answer(id, until));
            let time = began.elapsed();
            if first.is_none() {
                first = Some(Instant::now());
                waits.first = time;
            }
            waits.times.saturating_record(time.as_nanos() as u64);
            waits.longest = waits.longest.max(time);
            if time > PROMPT {
                waits.in_all += time;
            }
            match answer {
                Ok(answer) if answer.get("result").is_some() => waits.results += 1,
                Ok(_) => waits.errors += 1,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    waits.unanswered = true;
                    break;
                }
                Err(error) => return Err(error),
            }
            std::thread::sleep(BREAK);
        }
        Ok(())
    };
    let asked = asks();
    measure_first(0, false);
    asked.map(|()| waits)
}

/// One polite client for each of two pools, at the same time.
pub fn polite_pair(
    address: &Address,
    pools: [&str; 2],
    until: Instant,
    done: impl Fn(Option<Instant>) -> bool + Sync,
) -> io::Result<[Waits; 2]> {
    let done = &done;
    std::thread::scope(|scope| {
        let [first, second] = pools.map(|pool| scope.spawn(move || polite(address, pool, until, done)));
        Ok([joined(first.join())?, joined(second.join())?])
    })
}

/// What a thread of an attack has returned.
pub fn joined<T>(result: std::thread::Result<io::Result<T>>) -> io::Result<T> {
    result.unwrap_or_else(|_| Err(io::Error::other("a thread of the bench has panicked")))
}

/// Tells the threads of an attack that it is over, also when the measuring has failed.
pub struct Over<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}
