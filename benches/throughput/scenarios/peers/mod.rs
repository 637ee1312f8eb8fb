//! The same work through the daemon and through alternatives: the C daemon, socat, websocketd, websocat, a Node.js
//! server, supergateway, mcp-proxy, stdio2http. The contestants of a case take turns, round after round. One that is
//! missing or fails gets a row that says why, and the others continue.

mod cases;
mod launch;

use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::json;

use crate::harness::Harness;
use crate::harness::address::Transport;
use crate::harness::install::Installer;
use crate::harness::load::Faults;
use crate::harness::measure::{histogram, median, percentiles, progress};
use crate::harness::others::{Running, Taken};
use crate::harness::talk::Talk;
use crate::scenario::{Scenario, Table};

use cases::{CASES, Candidate, Case};
use launch::{Launch, begin, worker};

/// Time limit in total, and for installation.
const MOST: Duration = Duration::from_secs(540);
const INSTALLING: Duration = Duration::from_secs(240);

const HEAD: &str = "\
CPU for a round trip of 200 B, a line of a token stream of 200 B, or a call of 100 B (2026-07-28: 220 B), and memory (PSS): of all
processes but the workers, and with them.

| work | who | CPU µs | with workers | p50 µs | p99 | MB | with workers | processes | lost | foreign |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|";

const BESIDE: &str = "\
| work | CPU µs | others | MB | others |
|---|--:|---|--:|---|";

/// A contestant in a case.
struct Entry {
    name: String,
    state: State,
    /// CPU time per message in each round, without workers and with them.
    cpu: [Vec<f64>; 2],
    times: Histogram<u64>,
    memory: [f64; 2],
    processes: usize,
}

enum State {
    Runs(Box<(Talk, Running)>),
    Failed(String),
}

/// All comparisons, in the order in which they run.
pub fn scenarios() -> impl Iterator<Item = Scenario> {
    CASES.iter().map(|case| Scenario::new(case.name, |harness| measure(case, harness)))
}

/// The other programs, and the start of the run.
fn launch(harness: &Harness) -> &'static (Launch, Instant) {
    static LAUNCH: OnceLock<(Launch, Instant)> = OnceLock::new();
    LAUNCH.get_or_init(|| {
        let begun = Instant::now();
        let launch = Launch::find(Installer { until: (!harness.quick).then_some(begun + INSTALLING) }, harness);
        progress("");
        (launch, begun)
    })
}

fn measure(case: &'static Case, harness: &Harness) -> io::Result<Vec<Table>> {
    let (launch, begun) = launch(harness);
    let is_late = || begun.elapsed() > MOST;
    let mut entries: Vec<_> = [Candidate::Bus]
        .iter()
        .chain(case.others)
        .map(|candidate| Entry::new(*candidate, case, harness, launch))
        .collect();
    let count = entries.len();
    for round in 0..harness.rounds {
        for turn in 0..count {
            let entry = &mut entries[(round + turn) % count];
            progress(&format!("{:<46} round {} of {}, {}", case.name, round + 1, harness.rounds, entry.name));
            if is_late() {
                entry.fail("the ten minutes are over");
            }
            entry.round(case, harness);
        }
    }
    progress("");
    Ok(tables(case, entries))
}

impl Entry {
    fn new(candidate: Candidate, case: &Case, harness: &Harness, launch: &Launch) -> Self {
        let name = launch.name(candidate);
        progress(&format!("{:<46} {name} begins", case.name));
        let state = match begin(candidate, case, harness, launch) {
            Ok(runs) => State::Runs(Box::new(runs)),
            Err(why) => State::Failed(why),
        };
        Self { name, state, cpu: [Vec::new(), Vec::new()], times: histogram(), memory: [0.0; 2], processes: 0 }
    }

    fn fail(&mut self, why: impl ToString) {
        if matches!(self.state, State::Runs(_)) {
            self.state = State::Failed(why.to_string());
        }
    }

    fn round(&mut self, case: &Case, harness: &Harness) {
        let State::Runs(runs) = &mut self.state else { return };
        let (talk, running) = &mut **runs;
        let worker = worker(case.traffic, harness);
        let mut round = || -> io::Result<()> {
            talk.run(harness.warm_up)?;
            talk.times.reset();
            let (before, done) = (running.taken(&worker).0, talk.done);
            talk.run(harness.round)?;
            let (after, processes) = running.taken(&worker);
            let messages = (talk.done - done) as f64;
            if messages == 0.0 {
                return Err(io::Error::other("no answer came"));
            }
            let since = |after: Taken, before: Taken| after.cpu_nanos.saturating_sub(before.cpu_nanos) as f64 / 1e3;
            for at in 0..2 {
                self.cpu[at].push(since(after[at], before[at]) / messages);
                self.memory[at] = after[at].memory as f64 / 1e6;
            }
            self.processes = processes;
            self.times.add(&talk.times).map_err(io::Error::other)
        };
        if let Err(error) = round() {
            self.fail(error);
        }
    }
}

/// A row for each, and one that summarizes all.
fn tables(case: &Case, entries: Vec<Entry>) -> Vec<Table> {
    let table = |name, head| Table { name, head, rows: Vec::new(), figures: Vec::new() };
    let (mut peers, mut beside) = (table("peers", HEAD), table("beside", BESIDE));
    let (mut cpus, mut sizes) = (Vec::new(), Vec::new());
    for Entry { name, state, cpu, times, memory, processes } in entries {
        let [own, all] = cpu.map(median);
        let [p50, p99, _] = percentiles(&times);
        match state {
            State::Failed(why) => {
                peers.rows.push(format!(
                    "| {} | {name} | not measured: {} |",
                    case.name,
                    why.replace(['|', '\n'], " ")
                ));
                peers.figures.push(json!({ "case": case.name, "who": name, "failed": why }));
            }
            State::Runs(runs) => {
                let Faults { lost, misrouted, .. } = runs.0.faults;
                let [small, large] = memory;
                peers.rows.push(format!(
                    "| {} | {name} | {own:.2} | {all:.2} | {p50:.0} | {p99:.0} | {small:.1} | {large:.1} | {processes} \
                     | {lost} | {misrouted} |",
                    case.name
                ));
                peers.figures.push(json!({
                    "case": case.name, "who": name, "cpu_micros": own, "cpu_micros_with_workers": all, "p50_micros": p50,
                    "p99_micros": p99, "megabytes": small, "megabytes_with_workers": large, "processes": processes,
                    "lost": lost, "foreign": misrouted,
                }));
                // The long table has the versions.
                let name =
                    name.split_once(|next: char| next.is_ascii_digit()).map_or(&name[..], |(name, _)| name.trim());
                cpus.push((name == Candidate::NAME, format!("{name} {}", rounded(own)), rounded(own)));
                sizes.push((name == Candidate::NAME, format!("{name} {}", rounded(small)), rounded(small)));
            }
        }
    }
    let row = [cpus, sizes].map(|all| {
        let own = all.iter().find(|(is_own, ..)| *is_own).map_or("—", |(.., value)| value);
        let others: Vec<_> = all.iter().filter(|(is_own, ..)| !is_own).map(|(_, text, _)| &text[..]).collect();
        format!("{own} | {}", if others.is_empty() { "—".to_owned() } else { others.join(", ") })
    });
    // Unix sockets behave like TCP, but are cheaper.
    if case.transport != Transport::Unix {
        beside.rows.push(format!("| {} | {} |", case.name, row.join(" | ")));
    }
    vec![peers, beside]
}

/// With two significant digits.
fn rounded(value: f64) -> String {
    match value {
        ..1.0 => format!("{value:.2}"),
        ..20.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}
