//! The maximum number of idle WebSocket clients: the daemon's memory, and how often pings wake it up.

use std::io;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::Harness;
use crate::harness::address::Transport;
use crate::harness::crowd::{Arrival, Crowd};
use crate::harness::machine::{self, Placement, Usage};
use crate::harness::measure::{first, progress, put_first};
use crate::harness::request::{request, set_id};
use crate::harness::server::Contestant;
use crate::harness::web;
use crate::scenario::{Goal, Scenario, Table, goals};

/// The daemon's maximum of connections.
const CLIENTS: usize = 1024;
/// Length of the one line that each client sends.
const GREETING: usize = 200;
/// The daemon's memory limit with them, in MB.
const MEMORY: f64 = 8.0;
/// A ping may wake the daemon up twice: when it is due, and when the pong arrives.
const WAKEUPS: f64 = 2.0;
/// Pings within this many milliseconds are a bunch. The largest of ten bunches is ignored, since a stall of the machine
/// also causes one.
const BUNCH: u64 = 100;
/// Maximum size of a bunch, relative to an even spread.
const UNEVEN: f64 = 3.0;

/// The only scenario.
pub fn scenario() -> Scenario {
    Scenario::new("idle", measure)
}

/// Measures the daemon over a ping period, after one in which each client was pinged for the first time.
fn measure(harness: &Harness) -> io::Result<Vec<Table>> {
    let ping_sec = harness.either(30, 3);
    let period = Duration::from_secs(ping_sec.into());
    progress(&format!("idle, two periods of {ping_sec} s"));
    let transport = Transport::WebSocket { ping_sec };
    let pools = [harness.echo("bench", 2)];
    let server = harness.start(Contestant::WebSocket, &pools, transport, Placement::choose(false))?;
    let mut crowd = Crowd::new()?;
    for _ in 0..CLIENTS {
        let member = crowd.join(&server.address)?;
        greet(&mut crowd, member)?;
    }
    // Pings should be sent when they are due, and not when the scheduler lets the daemon and its clients run.
    put_first(server.process(), true);
    pings_during(&mut crowd, period)?;
    let before = Usage::of(server.process())?;
    let pings = first(|| pings_during(&mut crowd, period))?;
    let used = Usage::of(server.process())?.since(before);
    let megabytes = machine::resident(server.process())? as f64 / 1e6;
    progress("");
    let seconds = period.as_secs_f64();
    let cpu = used.cpu_nanos as f64 / 1e3 / seconds;
    let (rate, wakeups) = (pings.len() as f64 / seconds, used.wakeups as f64 / seconds);
    let even = CLIENTS as f64 / seconds;
    let bunch = usual_bunch(&pings);
    let most = UNEVEN * even * BUNCH as f64 / 1e3;
    let clients = crowd.len();
    Ok(vec![goals(vec![
        Goal {
            what: format!("{clients} idle clients: memory of the daemon"),
            goal: format!("below {MEMORY:.0} MB"),
            value: format!("{megabytes:.1} MB"),
            reached: megabytes < MEMORY,
            figures: json!({ "clients": clients, "megabytes": megabytes }),
        },
        Goal {
            what: format!("the same, pinged after {ping_sec} s of silence: wake-ups a second"),
            goal: format!("none but for {even:.0} pings and their answers"),
            value: format!("{wakeups:.1} for {rate:.1} pings, {cpu:.0} µs of CPU"),
            reached: rate <= 1.05 * even && wakeups <= 1.05 * WAKEUPS * rate,
            figures: json!({ "wakeups_per_second": wakeups, "pings_per_second": rate, "ping_sec": ping_sec,
                             "cpu_micros_per_second": cpu }),
        },
        Goal {
            what: format!("pings within {BUNCH} ms after nine of ten"),
            goal: format!("at most {most:.1}, {UNEVEN} times an even spread"),
            value: bunch.to_string(),
            reached: bunch as f64 <= most,
            figures: json!({ "pings": bunch, "milliseconds": BUNCH }),
        },
    ])])
}

/// Lets one send a request in a session of its own: clients without one are evicted when all slots are taken.
fn greet(crowd: &mut Crowd, member: usize) -> io::Result<()> {
    let mut line = request(member, GREETING);
    set_id(&mut line, member, 0);
    crowd.send(member, &web::frame(line.trim_ascii_end()))?;
    let (begun, mut is_answered) = (Instant::now(), false);
    while !is_answered {
        crowd.listen(Duration::from_millis(100), |_, arrived| is_answered |= matches!(arrived, Arrival::Message))?;
        if begun.elapsed() > Duration::from_secs(10) {
            return Err(io::Error::other("no answer in ten seconds"));
        }
    }
    Ok(())
}

/// The times of pings during this period, in milliseconds from its start.
fn pings_during(crowd: &mut Crowd, time: Duration) -> io::Result<Vec<u64>> {
    let (begun, mut pings) = (Instant::now(), Vec::new());
    while let Some(rest) = time.checked_sub(begun.elapsed()).filter(|rest| !rest.is_zero()) {
        crowd.listen(rest, |_, arrived| {
            if let Arrival::Ping = arrived {
                pings.push(begun.elapsed().as_millis() as u64);
            }
        })?;
    }
    Ok(pings)
}

/// The usual number of these ordered times that lie within [`BUNCH`] after one of them: the maximum for nine of ten.
pub fn usual_bunch(times: &[u64]) -> usize {
    let of = |begin: usize| times[begin..].iter().take_while(|time| **time < times[begin] + BUNCH).count();
    let mut bunches: Vec<usize> = (0..times.len()).map(of).collect();
    bunches.sort_unstable();
    bunches.get(9 * bunches.len() / 10).copied().unwrap_or(0)
}
