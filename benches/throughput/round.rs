//! Measuring one case: all contestants are started, then take turns, round after round; the median of the rounds
//! counts. Ratios are taken within a round and their median is reported, so that slow times of the machine cancel out.

use std::io::{self, Write};
use std::time::Instant;

use hdrhistogram::Histogram;

use crate::case::{Case, Traffic};
use crate::load::{Faults, Load, histogram};
use crate::machine::{Placement, SyscallCounter, Usage};
use crate::options::Options;
use crate::server::{Contestant, Server};

/// What one contestant came to in one case.
pub struct Row {
    /// Who.
    pub who: Contestant,
    /// The daemon's own CPU time for a message, in microseconds: a median.
    pub cpu_micros: f64,
    /// The daemon's CPU time divided by that of the first row, in the same round: a median.
    pub ratio: f64,
    /// System calls for a message.
    pub syscalls: Option<f64>,
    /// Context switches of the daemon for a message.
    pub switches: f64,
    /// Messages a second.
    pub rate: f64,
    /// Microseconds: p50, p99, p99.9.
    pub times: [f64; 3],
    /// What went wrong.
    pub faults: Faults,
    /// Round trips or lines that were measured.
    pub messages: u64,
    /// Why there are no figures.
    pub failed: Option<String>,
}

struct Entry {
    who: Contestant,
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
    switches: f64,
    rate: f64,
    messages: u64,
}

/// Runs a case for these, whose ratios are to the first one.
pub fn measure(case: &Case, contestants: &[Contestant], options: &Options) -> io::Result<Vec<Row>> {
    let placement = Placement::choose(case.one_cpu, options);
    let mut entries = Vec::new();
    for &who in contestants {
        let server = Server::for_case(who, case, options, &placement)?;
        let load = Load::connect(case, &server.address, who != Contestant::Relay)?;
        let times = histogram();
        entries.push(Entry {
            who,
            server,
            load,
            rounds: Vec::new(),
            faults: Faults::default(),
            times,
            syscalls: None,
            failed: None,
        });
    }
    // A case with a fixed number of messages is one long round.
    let rounds = if case.total.is_some() { 1 } else { options.rounds };
    let count = entries.len();
    for round in 0..rounds {
        for turn in 0..count {
            let entry = &mut entries[(round + turn) % count];
            eprint!("\r\x1b[K{:<34} round {:>2} of {rounds}, {}", case.name, round + 1, entry.who.name());
            io::stderr().flush()?;
            if entry.failed.is_none()
                && let Err(error) = entry.round(options)
            {
                let log = entry.server.log();
                let last: Vec<_> = log.lines().rev().take(3).collect();
                entry.failed = Some(format!("{error}; {}", last.join(" | ")));
            }
        }
    }
    if case.total.is_none() {
        eprint!("\r\x1b[K{:<34} system calls", case.name);
        for entry in &mut entries {
            entry.count_syscalls(options)?;
        }
    }
    eprint!("\r\x1b[K");
    let base: Vec<f64> = entries[0].rounds.iter().map(|round| round.cpu_micros).collect();
    Ok(entries.into_iter().map(|entry| entry.row(&base)).collect())
}

impl Entry {
    fn round(&mut self, options: &Options) -> io::Result<()> {
        self.load.start()?;
        let process = self.server.process();
        let mut began = None;
        let started = Instant::now();
        let fixed = self.load.total();
        self.load.run(|_, now| fixed.is_some() || now - started >= options.warm_up)?;
        self.load.times.reset();
        self.load.run(|load, now| {
            let (at, _, _) = *began.get_or_insert_with(|| (now, load.done, Usage::of(process).unwrap_or_default()));
            match fixed {
                Some(total) => load.done >= total,
                None => now - at >= options.round,
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
            switches: usage.switches as f64 / messages as f64,
            rate: messages as f64 / elapsed.as_secs_f64(),
            messages,
        });
        Ok(())
    }

    /// A short round of its own, because counting costs.
    fn count_syscalls(&mut self, options: &Options) -> io::Result<()> {
        if self.failed.is_some() {
            return Ok(());
        }
        let Some(counter) = SyscallCounter::of(self.server.process()) else { return Ok(()) };
        self.load.start()?;
        let started = Instant::now();
        self.load.run(|_, now| now - started >= options.warm_up)?;
        let (calls, done) = (counter.count(), self.load.done);
        let started = Instant::now();
        self.load.run(|_, now| now - started >= options.round / 4)?;
        self.syscalls = Some((counter.count() - calls) as f64 / (self.load.done - done) as f64);
        self.faults.add(self.load.finish()?);
        Ok(())
    }

    fn row(self, base: &[f64]) -> Row {
        let of = |field: fn(&Round) -> f64| median(self.rounds.iter().map(field).collect());
        let ratios = self.rounds.iter().zip(base).map(|(round, base)| round.cpu_micros / base).collect();
        let time = |quantile| self.times.value_at_quantile(quantile) as f64 / 1e3;
        Row {
            who: self.who,
            cpu_micros: of(|round| round.cpu_micros),
            ratio: median(ratios),
            syscalls: self.syscalls,
            switches: of(|round| round.switches),
            rate: of(|round| round.rate),
            times: [time(0.5), time(0.99), time(0.999)],
            faults: self.faults,
            messages: self.rounds.iter().map(|round| round.messages).sum(),
            failed: self.failed,
        }
    }
}

/// What a message is in a case.
pub fn unit(case: &Case) -> &'static str {
    match case.traffic {
        Traffic::RoundTrips { .. } => "round trip",
        Traffic::Tokens { .. } => "line",
    }
}

/// The middle one.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}
