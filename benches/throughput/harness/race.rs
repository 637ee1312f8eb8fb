//! Measures one case: all contestants are started, then take turns, round after round; the median of the rounds counts.
//! Ratios are taken within a round and their median is reported, so that slow phases of the machine cancel out.

use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::time::Instant;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::Harness;
use super::address::{Address, Transport};
use super::load::{Case, Faults, Load, Traffic};
use super::machine::{Placement, SyscallCounter, Usage};
use super::measure::{histogram, median, percentiles, progress};
use super::server::{Contestant, Server, scratch, this_program};

/// The results of one contestant in one case.
pub struct Row {
    pub contestant: Contestant,
    /// The daemon's own CPU time per message, in microseconds: a median.
    pub cpu_micros: f64,
    /// The part of it in user space.
    pub user_micros: f64,
    /// The daemon's CPU time relative to that of the first row, in the same round: a median.
    pub ratio: f64,
    /// System calls per message.
    pub syscalls: Option<f64>,
    /// Context switches of the daemon per message.
    pub switches: f64,
    /// Messages per second.
    pub rate: f64,
    /// Microseconds: p50, p99, p99.9.
    pub times: [f64; 3],
    /// Wrong or missing answers.
    pub faults: Faults,
    /// Measured round trips or lines.
    pub messages: u64,
    /// Why there are no figures.
    pub failed: Option<String>,
}

struct Entry {
    contestant: Contestant,
    server: Server,
    load: Load,
    rounds: Vec<Round>,
    faults: Faults,
    times: Histogram<u64>,
    syscalls: Option<f64>,
    failed: Option<String>,
}

#[derive(Clone, Copy, Default)]
struct Round {
    cpu_micros: f64,
    ticks: [u64; 2],
    switches: f64,
    rate: f64,
    messages: u64,
}

/// Runs a case for these contestants. Ratios are to the first one.
pub fn race(case: &Case, contestants: &[Contestant], harness: &Harness) -> io::Result<Vec<Row>> {
    let mut entries = Vec::new();
    for &contestant in contestants {
        let server = start(contestant, case, harness)?;
        let load = Load::connect(case, &server.address, contestant)?;
        let (rounds, faults, times) = (Vec::new(), Faults::default(), histogram());
        entries.push(Entry { contestant, server, load, rounds, faults, times, syscalls: None, failed: None });
    }
    // A case with a fixed number of messages runs one long round.
    let rounds = if case.total.is_some() { 1 } else { harness.rounds };
    let count = entries.len();
    for round in 0..rounds {
        for turn in 0..count {
            let entry = &mut entries[(round + turn) % count];
            progress(&format!("{:<34} round {:>2} of {rounds}, {}", case.name, round + 1, entry.contestant.name()));
            if entry.failed.is_none()
                && let Err(error) = entry.round(case, harness)
            {
                let log = entry.server.log();
                let last: Vec<_> = log.lines().rev().take(3).collect();
                entry.failed = Some(format!("{error}; {}", last.join(" | ")));
            }
        }
    }
    if case.total.is_none() {
        progress(&format!("{:<34} system calls", case.name));
        for entry in entries.iter_mut().filter(|entry| entry.failed.is_none()) {
            entry.count_syscalls(harness)?;
        }
    }
    progress("");
    let base: Vec<f64> = entries[0].rounds.iter().map(|round| round.cpu_micros).collect();
    Ok(entries.into_iter().map(|entry| entry.row(&base)).collect())
}

impl Entry {
    fn round(&mut self, case: &Case, harness: &Harness) -> io::Result<()> {
        self.load.start()?;
        let process = self.server.process();
        let mut began = None;
        let started = Instant::now();
        self.load.run(|_, now| case.total.is_some() || now - started >= harness.warm_up)?;
        self.load.times.reset();
        self.load.run(|load, now| {
            let (at, _, _) = *began.get_or_insert_with(|| (now, load.done, Usage::of(process).unwrap_or_default()));
            match case.total {
                Some(total) => load.done >= total,
                None => now - at >= harness.round,
            }
        })?;
        let usage = Usage::of(process)?;
        let Some((at, done, before)) = began else { return Ok(()) };
        let (elapsed, usage) = (at.elapsed(), usage.since(before));
        let messages = self.load.done - done;
        self.times.add(&self.load.times).map_err(io::Error::other)?;
        self.faults.add(self.load.finish()?);
        if messages == 0 {
            return Err(io::Error::other("no answer came"));
        }
        self.rounds.push(Round {
            cpu_micros: usage.cpu_nanos as f64 / 1e3 / messages as f64,
            ticks: usage.ticks,
            switches: usage.switches as f64 / messages as f64,
            rate: messages as f64 / elapsed.as_secs_f64(),
            messages,
        });
        Ok(())
    }

    /// A separate short round, because counting costs time.
    fn count_syscalls(&mut self, harness: &Harness) -> io::Result<()> {
        let Some(counter) = SyscallCounter::of(self.server.process()) else { return Ok(()) };
        self.load.start()?;
        let started = Instant::now();
        self.load.run(|_, now| now - started >= harness.warm_up)?;
        let (calls, done) = (counter.count(), self.load.done);
        let started = Instant::now();
        self.load.run(|_, now| now - started >= harness.round / 4)?;
        self.syscalls = Some((counter.count() - calls) as f64 / (self.load.done - done) as f64);
        self.faults.add(self.load.finish()?);
        Ok(())
    }

    fn row(self, base: &[f64]) -> Row {
        let of = |field: fn(&Round) -> f64| median(self.rounds.iter().map(field).collect());
        let ratios = self.rounds.iter().zip(base).map(|(round, base)| round.cpu_micros / base).collect();
        let [user, kernel] = [0, 1].map(|at| self.rounds.iter().map(|round| round.ticks[at]).sum::<u64>() as f64);
        let cpu_micros = of(|round| round.cpu_micros);
        Row {
            contestant: self.contestant,
            cpu_micros,
            user_micros: cpu_micros * user / (user + kernel),
            ratio: median(ratios),
            syscalls: self.syscalls,
            switches: of(|round| round.switches),
            rate: of(|round| round.rate),
            times: percentiles(&self.times),
            faults: self.faults,
            messages: self.rounds.iter().map(|round| round.messages).sum(),
            failed: self.failed,
        }
    }
}

/// Starts the relay for a case, with the same workers.
fn relay(case: &Case, pool: &Value, placement: Placement) -> io::Result<Server> {
    let (how, bytes) = match case.traffic {
        Traffic::RoundTrips { bytes } if case.is_one_to_one() && bytes > 16 * 1024 => ("pass", bytes),
        Traffic::RoundTrips { bytes } | Traffic::Calls { bytes, .. } => ("answers", bytes),
        Traffic::Tokens { bytes, .. } => ("turns", bytes),
    };
    let mut command = Command::new(this_program());
    command.args(["be-relay", how, &bytes.to_string(), &case.workers.to_string()]);
    let words = [&pool["command"]].into_iter().chain(pool["args"].as_array().into_iter().flatten());
    let words = words.filter_map(|word| word.as_str().map(OsString::from)).collect();
    let files = scratch()?;
    let address = Address::free(case.transport, &files)?;
    Server::launch(Contestant::Relay, command, words, address, files, placement)
}

/// Starts a contestant for a case.
fn start(contestant: Contestant, case: &Case, harness: &Harness) -> io::Result<Server> {
    let placement = if case.unpinned { Placement::FREE } else { Placement::choose(case.one_cpu) };
    let pool = match case.traffic {
        Traffic::RoundTrips { .. } => harness.echo("bench", case.workers),
        Traffic::Calls { bytes, .. } => harness.tools("bench", case.workers, bytes),
        Traffic::Tokens { lines, bytes } => {
            let sessions = case.clients / case.workers;
            let args = ["be-stream-worker".to_owned(), sessions.to_string(), lines.to_string(), bytes.to_string()];
            json!({ "id": "bench", "command": this_program(), "args": args, "instances": case.workers })
        }
    };
    match contestant {
        Contestant::Relay => relay(case, &pool, placement),
        Contestant::WebSocket => harness.start(contestant, &[pool], Transport::WebSocket { ping_sec: 0 }, placement),
        Contestant::Http | Contestant::HttpAnew => harness.start(contestant, &[pool], Transport::Http, placement),
        _ => harness.start(contestant, &[pool], case.transport, placement),
    }
}
