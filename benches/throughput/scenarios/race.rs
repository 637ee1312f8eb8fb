//! Cases in which contestants race: the daemon, the floor, the peer; or the daemon over TCP and over WebSocket or HTTP.

use serde_json::{Value, json};

use crate::harness::address::Transport;
use crate::harness::load::{Case, Traffic};
use crate::harness::race::{Row, race};
use crate::harness::server::Contestant;
use crate::scenario::{Goal, Scenario, Table, goals};

/// The usual length of a line in bytes, including the newline.
pub const SMALL: usize = 200;

pub const fn trips(name: &'static str, clients: usize, window: usize, workers: usize, bytes: usize) -> Case {
    let traffic = Traffic::RoundTrips { bytes };
    Case {
        name,
        transport: Transport::Tcp,
        clients,
        idle: 0,
        window,
        workers,
        traffic,
        gathered: false,
        one_cpu: false,
        unpinned: false,
        total: None,
    }
}

const fn unix(name: &'static str, case: Case) -> Case {
    Case { name, transport: Transport::Unix, ..case }
}

const fn gathered(case: Case) -> Case {
    Case { gathered: true, ..case }
}

const fn among(name: &'static str, idle: usize, case: Case) -> Case {
    Case { name, idle, ..case }
}

const fn one_cpu(case: Case) -> Case {
    Case { one_cpu: true, ..case }
}

const fn tokens(name: &'static str) -> Case {
    Case { traffic: Traffic::Tokens { lines: 200, bytes: SMALL }, ..trips(name, 64, 1, 8, SMALL) }
}

const CASES: &[Case] = &[
    one_cpu(trips("ping-pong", 1, 1, 1, SMALL)),
    one_cpu(unix("ping-pong unix", trips("", 1, 1, 1, SMALL))),
    one_cpu(among("ping-pong among 1,023 idle", 1023, trips("", 1, 1, 1, SMALL))),
    trips("64 x 1", 64, 1, 1, SMALL),
    unix("64 x 1 unix", trips("", 64, 1, 1, SMALL)),
    among("64 x 1 among 960 idle", 960, trips("", 64, 1, 1, SMALL)),
    trips("64 x 16", 64, 16, 1, SMALL),
    unix("64 x 16 unix", trips("", 64, 16, 1, SMALL)),
    trips("64 x 16, 4 workers", 64, 16, 4, SMALL),
    gathered(trips("64 x 16, 4 workers, gathered", 64, 16, 4, SMALL)),
    one_cpu(trips("1 x 64", 1, 64, 1, SMALL)),
    one_cpu(unix("1 x 64 unix", trips("", 1, 64, 1, SMALL))),
    one_cpu(gathered(trips("1 x 64, gathered", 1, 64, 1, SMALL))),
    trips("64 x 4, 2 KB", 64, 4, 4, 2048),
    trips("4 x 2, 60 KB", 4, 2, 4, 60 * 1024),
    trips("4 x 1, 1 MB", 4, 1, 4, 1_000_000),
    unix("4 x 1, 1 MB unix", trips("", 4, 1, 4, 1_000_000)),
    tokens("tokens"),
    unix("tokens unix", tokens("")),
    trips("1000 x 1", 1000, 1, 4, SMALL),
    Case { total: Some(300_000), ..trips("integrity: 300,000 over 64 x 16", 64, 16, 1, SMALL) },
];

pub const fn calls(name: &'static str, clients: usize) -> Case {
    Case { traffic: Traffic::Calls { bytes: 100, is_modern: false }, ..trips(name, clients, 1, 1, SMALL) }
}

/// The MCP cases.
const CALLS: &[Case] = &[
    one_cpu(calls("a call, 1 x 1", 1)),
    calls("a call, 16 x 1", 16),
    calls("a call, 64 x 1", 64),
    Case { traffic: Traffic::Calls { bytes: 220, is_modern: true }, ..calls("a call of 2026-07-28, 16 x 1", 16) },
];

/// Maximum CPU time of a call over HTTP, relative to the same line over TCP: on persistent connections, and with one
/// for each call.
const KEPT: f64 = 2.0;
const ANEW: f64 = 3.0;

/// Maximum CPU time of a round trip over WebSocket, relative to TCP: short and long lines.
const SHORT: f64 = 1.25;
const LONG: f64 = 1.15;

const HEAD: &str = "\
CPU: the daemon's own for a round trip (of a token stream: for a line); user: what of it was not in the kernel. Bus is: its CPU to
this one's.

| case | who | CPU µs | user µs | × relay | bus is | syscalls | switches | messages/s | p50 µs | p99 | p99.9 | faults |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|";

/// All cases, in the order in which they run.
pub fn scenarios() -> impl Iterator<Item = Scenario> {
    CASES.iter().map(|case| {
        Scenario::new(case.name, |harness| {
            // A fixed number of messages takes too long.
            if harness.quick && case.total.is_some() {
                return Ok(Vec::new());
            }
            Ok(vec![table(case, &race(case, &harness.contestants(), harness)?)])
        })
    })
}

/// The cases that compare WebSocket with TCP.
pub fn beside_tcp() -> impl Iterator<Item = Scenario> {
    CASES.iter().filter(|case| ["64 x 1", "64 x 16", "4 x 2, 60 KB"].contains(&case.name)).map(|case| {
        Scenario::new(case.name, |harness| {
            let rows = race(case, &[Contestant::Bus, Contestant::WebSocket], harness)?;
            let most = if case.is_one_to_one() { LONG } else { SHORT };
            let reached = rows[1..].iter().map(|row| ratio(case, row, most)).collect();
            Ok(vec![table(case, &rows), goals(reached)])
        })
    })
}

/// The MCP cases, over TCP and over HTTP.
pub fn over_http() -> impl Iterator<Item = Scenario> {
    CALLS.iter().map(|case| {
        Scenario::new(case.name, |harness| {
            let mut contestants = vec![Contestant::Bus, Contestant::Http];
            if case.name == "a call, 16 x 1" {
                contestants.extend([Contestant::TcpAnew, Contestant::HttpAnew]);
            }
            let rows = race(case, &contestants, harness)?;
            let reached = rows.iter().filter_map(|row| match row.contestant {
                Contestant::Http => Some(ratio(case, row, KEPT)),
                Contestant::HttpAnew => Some(ratio(case, row, ANEW)),
                _ => None,
            });
            Ok(vec![table(case, &rows), goals(reached.collect())])
        })
    })
}

/// The text of a case's row about its limit.
fn ratio(case: &Case, row: &Row, most: f64) -> Goal {
    let ratio = row.failed.is_none().then_some(row.ratio);
    Goal {
        what: format!("{}, {}: CPU of a round trip, for one over TCP", case.name, row.contestant.name()),
        goal: format!("at most × {most}"),
        value: ratio.map_or_else(|| "failed".to_owned(), |ratio| format!("× {ratio:.2}")),
        reached: ratio.is_some_and(|ratio| ratio <= most),
        figures: json!({ "ratio": ratio, "at_most": most }),
    }
}

fn table(case: &Case, rows: &[Row]) -> Table {
    let relay = rows.iter().find(|row| row.contestant == Contestant::Relay).map(|row| row.ratio);
    let unit = if case.is_tokens() { "line" } else { "round trip" };
    let contestants: Vec<_> = rows.iter().map(figures).collect();
    Table {
        name: "cases",
        head: HEAD,
        rows: rows.iter().map(|row| line(case, row, relay)).collect(),
        figures: vec![json!({ "case": case.name, "unit": unit, "contestants": contestants })],
    }
}

fn line(case: &Case, row: &Row, relay: Option<f64>) -> String {
    let contestant = row.contestant.name();
    if let Some(why) = &row.failed {
        return format!("| {} | {contestant} | failed: {why} |", case.name);
    }
    let (case, bus_is) = match row.contestant {
        Contestant::Bus => (format!("{}{}", case.name, if case.one_cpu { " ¹" } else { "" }), String::new()),
        _ => (String::new(), times(1.0 / row.ratio)),
    };
    let known = |value: Option<f64>, digits| value.map_or("–".to_owned(), |value| format!("{value:.digits$}"));
    let [p50, p99, p999] = row.times;
    format!(
        "| {case} | {contestant} | {:.2} | {:.2} | {} | {bus_is} | {} | {:.3} | {:.0} | {p50:.0} | {p99:.0} | {p999:.0} | {} |",
        row.cpu_micros,
        row.user_micros,
        known(relay.map(|relay| row.ratio / relay), 2),
        known(row.syscalls, 3),
        row.switches,
        row.rate,
        row.faults
    )
}

fn figures(row: &Row) -> Value {
    json!({
        "who": row.contestant.name(),
        "cpu_micros": row.cpu_micros,
        "user_micros": row.user_micros,
        "cpu_to_bus": row.ratio,
        "syscalls": row.syscalls,
        "context_switches": row.switches,
        "messages_per_second": row.rate,
        "p50_micros": row.times[0],
        "p99_micros": row.times[1],
        "p999_micros": row.times[2],
        "messages": row.messages,
        "lost": row.faults.lost,
        "misrouted": row.faults.misrouted,
        "reordered": row.faults.reordered,
        "failed": row.failed,
    })
}

fn times(ratio: f64) -> String {
    if ratio < 0.5 { format!("1/{:.1}", 1.0 / ratio) } else { format!("{ratio:.2}") }
}
