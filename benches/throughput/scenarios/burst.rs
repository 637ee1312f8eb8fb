//! A burst: 64 clients come at once to a dedicated pool of two spares whose workers need a second before they answer,
//! against as many that each start a process of their own at the same moment; and how long a client of another pool
//! waits meanwhile, against one that talks to a process of its own. The daemon runs before its workers, as
//! config/systemd/stdio_bus.service has it.

use std::io;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::Harness;
use crate::harness::address::Transport;
use crate::harness::client::{Client, request};
use crate::harness::direct::Direct;
use crate::harness::machine::Placement;
use crate::harness::measure::{self, Over, first, joined, median, prefer, progress};
use crate::harness::polite::polite;
use crate::harness::server::Contestant;
use crate::scenario::{Goal, Scenario, goals};

const CLIENTS: usize = 64;
/// Time limit of a round.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between an answer and the next request of who talks to a process of its own, as of a polite client.
const BREAK: Duration = Duration::from_millis(5);

/// How a worker is started, and the largest part of the time of direct starts that a burst may take.
struct Start {
    name: &'static str,
    /// What the shell does before it becomes the worker.
    before: &'static str,
    /// Whether the pool sleeps until the clients come, and has no spares then.
    is_asleep: bool,
    most: f64,
}

/// A shim, such as those of pyenv, nvm and asdf, runs a few programs to find the one that is meant.
const STARTS: [Start; 3] = [
    Start { name: "a program", before: "", is_asleep: false, most: 1.03 },
    Start {
        name: "a shell's shim",
        before: "for each in 1 2 3 4 5 6 7 8 9 10 11 12; do found=$(uname); done; ",
        is_asleep: false,
        most: 1.10,
    },
    Start { name: "a program of a pool that sleeps", before: "", is_asleep: true, most: 1.10 },
];

/// The p99 of another pool's client, at most this much of what a client of a process of its own has.
const MOST_WAIT: f64 = 2.0;

/// The only scenario.
pub fn scenario() -> Scenario {
    Scenario::new("burst", |harness| {
        let reached = STARTS.iter().map(|start| burst(harness, start)).collect::<io::Result<Vec<_>>>()?;
        progress("");
        Ok(vec![goals(reached.into_iter().flatten().collect())])
    })
}

fn burst(harness: &Harness, start: &Start) -> io::Result<[Goal; 2]> {
    let rounds = harness.either(harness.rounds, 1);
    let clients = harness.either(CLIENTS, 4);
    let script = format!("{}sleep 1; exec '{}' worker echo", start.before, harness.bus.display());
    let (mut times, mut waits) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for round in 0..rounds {
        progress(&format!("burst, {}, round {} of {rounds}", start.name, round + 1));
        let rounds = [directly(harness, &script, clients)?, through_the_bus(harness, start, &script, clients)?];
        for (at, (time, wait)) in rounds.into_iter().enumerate() {
            times[at].push(time);
            waits[at].push(wait);
        }
    }
    let [direct, bus] = times.map(median);
    let [alone, beside] = waits.map(median);
    let figures = json!({ "direct_seconds": direct, "seconds": bus, "direct_p99_millis": alone, "p99_millis": beside });
    let goal = |what: String, most: f64, value: String, reached| Goal {
        what,
        goal: format!("at most {most:.2} ×"),
        value,
        reached,
        figures: figures.clone(),
    };
    Ok([
        goal(
            format!("{clients} clients at once, {}: the last first answer, to direct starts", start.name),
            start.most,
            format!("{:.2} × ({bus:.2} s, {direct:.2})", bus / direct),
            bus <= start.most * direct,
        ),
        goal(
            format!("{clients} clients at once, {}: p99 of another pool, to a process of its own", start.name),
            MOST_WAIT,
            format!("{:.2} × ({beside:.1} ms, {alone:.1})", beside / alone),
            beside <= MOST_WAIT * alone,
        ),
    ])
}

/// As many threads each start a process at the same moment, and ask it. The seconds until the last of them has answered, and
/// the p99 of a client of another process meanwhile, in milliseconds.
fn directly(harness: &Harness, script: &str, count: usize) -> io::Result<(f64, f64)> {
    let mut other = Direct::start(Command::new(&harness.bus).args(["worker", "echo"]))?;
    let (is_over, gate) = (AtomicBool::new(false), Barrier::new(count + 1));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| first(|| waits_of(&mut other, &is_over)));
        let over = Over(&is_over);
        let start = || {
            gate.wait();
            let mut process = Direct::start(Command::new("/bin/sh").args(["-c", script]))?;
            process.send(&request(1, "m", "bench"))?;
            process.answer()?;
            // It ends when all have answered.
            Ok::<_, io::Error>(process)
        };
        let starts: Vec<_> = (0..count).map(|_| scope.spawn(start)).collect();
        gate.wait();
        let begun = Instant::now();
        let answered = starts.into_iter().map(|start| joined(start.join())).collect::<io::Result<Vec<_>>>()?;
        let time = begun.elapsed().as_secs_f64();
        drop((over, answered));
        Ok((time, joined(asking.join())?))
    })
}

/// The same with clients of the daemon.
fn through_the_bus(harness: &Harness, start: &Start, script: &str, count: usize) -> io::Result<(f64, f64)> {
    let mut burst = json!({
        "id": "bench", "command": "/bin/sh", "args": ["-c", script], "assignment": "dedicated", "instances": 2,
        "max_instances": 2 * count
    });
    if start.is_asleep {
        burst["start"] = json!("on_demand");
    }
    let pools = [burst, harness.echo("other", 1)];
    let server = harness.start(Contestant::Bus, &pools, Transport::Unix, Placement::FREE)?;
    prefer(server.process());
    let until = Instant::now() + PATIENCE;
    // The spares are there, as before any burst, unless the pool sleeps.
    std::thread::sleep(Duration::from_millis(harness.either(2500, 1500)));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| polite(&server.address, "other", until, |_| is_over.load(Ordering::Relaxed)));
        let over = Over(&is_over);
        let begun = Instant::now();
        let ask = |_| {
            let mut client = Client::connect(&server.address)?;
            client.ask(1, "m", "bench", until)?;
            Ok(client)
        };
        let mut clients = (0..count).map(ask).collect::<io::Result<Vec<_>>>()?;
        for client in &mut clients {
            let answer = client.answer(1, until)?;
            if answer.get("result").is_none() {
                return Err(io::Error::other(format!("a client of a burst gets {answer}")));
            }
        }
        let time = begun.elapsed().as_secs_f64();
        drop(over);
        Ok((time, joined(asking.join())?.quantile(0.99)))
    })
}

/// Asks a process until it is over. The p99 in milliseconds.
fn waits_of(other: &mut Direct, is_over: &AtomicBool) -> io::Result<f64> {
    let mut times = measure::histogram();
    while !is_over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        other.send(&request(1, "m", "other"))?;
        other.answer()?;
        times.saturating_record(begun.elapsed().as_nanos() as u64);
        std::thread::sleep(BREAK);
    }
    Ok(times.value_at_quantile(0.99) as f64 / 1e6)
}
