//! As many WebSocket clients as fit that say nothing: what memory the daemon holds, and how often their pings wake it up.

use std::io;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::Harness;
use crate::harness::address::Transport;
use crate::harness::crowd::{Crowd, Heard};
use crate::harness::machine::{self, Placement, Usage};
use crate::harness::measure::{first, progress, put_first};
use crate::harness::request::{request, set_id};
use crate::harness::server::Contestant;
use crate::harness::web;
use crate::scenario::{Goal, Scenario, Table, goals};

/// Connections that the daemon takes at once.
const CLIENTS: usize = 1024;
/// Bytes of what each of them says, once.
const GREETING: usize = 200;
/// The memory that it may hold with them, in MB.
const MEMORY: f64 = 8.0;
/// A ping may wake the daemon up twice: when it is due, and when its answer comes.
const WAKEUPS: f64 = 2.0;
/// Pings within so many milliseconds are a bunch. Of ten bunches the largest one is left out: a machine that stands still
/// for a moment makes one, too.
const BUNCH: u64 = 100;
/// A bunch may be so many times what an even spread would have.
const UNEVEN: f64 = 3.0;

/// The one that there is.
pub fn scenario() -> Scenario {
    Scenario::new("idle", measure)
}

/// Measures the daemon over a period of its pings, after one in which each client was pinged for the first time.
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
    // Pings are due at moments of their own, and not when the scheduler lets the daemon and its clients run.
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

/// Lets one ask once, in a session of its own: who has none makes room for others where all slots are taken.
fn greet(crowd: &mut Crowd, member: usize) -> io::Result<()> {
    let mut line = request(member, GREETING);
    set_id(&mut line, member, 0);
    crowd.send(member, &web::frame(line.trim_ascii_end()))?;
    let (begun, mut is_answered) = (Instant::now(), false);
    while !is_answered {
        crowd.listen(Duration::from_millis(100), |_, heard| is_answered |= matches!(heard, Heard::Message))?;
        if begun.elapsed() > Duration::from_secs(10) {
            return Err(io::Error::other("no answer in ten seconds"));
        }
    }
    Ok(())
}

/// When pings came during so long, in milliseconds from its begin.
fn pings_during(crowd: &mut Crowd, time: Duration) -> io::Result<Vec<u64>> {
    let (begun, mut pings) = (Instant::now(), Vec::new());
    while let Some(rest) = time.checked_sub(begun.elapsed()).filter(|rest| !rest.is_zero()) {
        crowd.listen(rest, |_, heard| {
            if let Heard::Ping = heard {
                pings.push(begun.elapsed().as_millis() as u64);
            }
        })?;
    }
    Ok(pings)
}

/// How many of these times, which are in order, lie within [`BUNCH`] from one of them on: at most so many for nine of ten.
pub fn usual_bunch(times: &[u64]) -> usize {
    let of = |begin: usize| times[begin..].iter().take_while(|time| **time < times[begin] + BUNCH).count();
    let mut bunches: Vec<usize> = (0..times.len()).map(of).collect();
    bunches.sort_unstable();
    bunches.get(9 * bunches.len() / 10).copied().unwrap_or(0)
}
