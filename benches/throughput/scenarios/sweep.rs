//! Rates and times by the number of clients, each with one request in flight: from a client that is alone to a full
//! table. A daemon that waits for more than can come, or that serves many well and few badly, shows here and in no case
//! with a fixed number of clients.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::time::Duration;

use serde_json::json;

use super::race::{SMALL, calls, trips};
use crate::harness::Harness;
use crate::harness::address::Transport;
use crate::harness::load::Case;
use crate::harness::race::{Row, race};
use crate::harness::server::{self, Contestant};
use crate::scenario::{Scenario, Table};

const CLIENTS: [usize; 13] = [1, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64, 128, 1000];
/// Up to this many clients have a worker each.
const MOST_WORKERS: usize = 16;
const WEB: Transport = Transport::WebSocket { ping_sec: 0 };

/// The names of the scenarios, and what they measure: the transport, whether each client has a worker of its own, and
/// whether the daemon has a CPU of its own. Otherwise nothing is pinned.
const SWEEPS: [(&str, Transport, bool, bool); 16] = [
    ("sweep: TCP", Transport::Tcp, false, false),
    ("sweep: TCP, a worker each", Transport::Tcp, true, false),
    ("sweep: TCP, daemon's own CPU", Transport::Tcp, false, true),
    ("sweep: TCP, a worker each, daemon's own CPU", Transport::Tcp, true, true),
    ("sweep: Unix", Transport::Unix, false, false),
    ("sweep: Unix, a worker each", Transport::Unix, true, false),
    ("sweep: Unix, daemon's own CPU", Transport::Unix, false, true),
    ("sweep: Unix, a worker each, daemon's own CPU", Transport::Unix, true, true),
    ("sweep: WebSocket", WEB, false, false),
    ("sweep: WebSocket, a worker each", WEB, true, false),
    ("sweep: WebSocket, daemon's own CPU", WEB, false, true),
    ("sweep: WebSocket, a worker each, daemon's own CPU", WEB, true, true),
    ("sweep: HTTP", Transport::Http, false, false),
    ("sweep: HTTP, a worker each", Transport::Http, true, false),
    ("sweep: HTTP, daemon's own CPU", Transport::Http, false, true),
    ("sweep: HTTP, a worker each, daemon's own CPU", Transport::Http, true, true),
];

const HEAD: &str = "\
CPU: the daemon's own for a round trip. The last three columns: this daemon's figures to those of the row.

| case | clients | who | answers/s | p50 µs | p99 µs | CPU µs | rate is | p50 is | CPU is |
|---|--:|---|--:|--:|--:|--:|--:|--:|--:|";

/// All sweeps.
pub fn scenarios() -> impl Iterator<Item = Scenario> {
    SWEEPS.into_iter().map(|(name, transport, each, own)| {
        Scenario::new(name, move |harness| sweep(name, transport, each, own, harness)).on_request()
    })
}

fn sweep(name: &'static str, transport: Transport, each: bool, own: bool, usual: &Harness) -> io::Result<Vec<Table>> {
    // There are many cases: a fifth of a second is enough for a thousand clients to have their turns.
    let harness = Harness {
        rounds: usual.rounds.min(5),
        round: usual.round.min(Duration::from_millis(200)),
        warm_up: usual.warm_up.min(Duration::from_millis(50)),
        ..usual.clone()
    };
    let mut contestants = vec![Contestant::Bus];
    let has_relay = harness.relay && matches!(transport, Transport::Tcp | Transport::Unix);
    contestants.extend(has_relay.then_some(Contestant::Relay));
    contestants.extend(harness.peer.is_some().then_some(Contestant::Peer));
    let mut table = Table { name: "sweep", head: HEAD, rows: Vec::new(), figures: Vec::new() };
    let mut points = Vec::new();
    for clients in CLIENTS.into_iter().filter(|clients| !each || *clients <= MOST_WORKERS) {
        let workers = if each { clients } else { 1 };
        let usual = match transport {
            Transport::Http => calls(name, clients),
            _ => trips(name, clients, 1, 1, SMALL),
        };
        let rows = race(&Case { transport, workers, unpinned: !own, ..usual }, &contestants, &harness)?;
        for row in &rows {
            table.rows.push(line(name, clients, row, &rows[0]));
            table.figures.push(json!({
                "case": name, "clients": clients, "who": row.contestant.name(), "rate": row.rate,
                "p50_micros": row.times[0], "p99_micros": row.times[1], "cpu_micros": row.cpu_micros,
                "faults": row.faults.to_string(), "failed": row.failed,
            }));
        }
        points.push((clients, rows));
    }
    let file = name.replace([':', ',', '\''], "").replace(' ', "-");
    let path = server::target().join("bench").join(format!("{file}.svg"));
    fs::create_dir_all(path.parent().unwrap_or(&path))?;
    fs::write(path, picture(&points))?;
    Ok(vec![table])
}

fn line(name: &str, clients: usize, row: &Row, own: &Row) -> String {
    let who = row.contestant.name();
    if let Some(why) = &row.failed {
        return format!("| {name} | {clients} | {who} | failed: {why} |");
    }
    let ratios = match row.contestant {
        Contestant::Bus => "| | |".to_owned(),
        _ => {
            format!(
                "{:.2} | {:.2} | {:.2} |",
                own.rate / row.rate,
                own.times[0] / row.times[0],
                own.cpu_micros / row.cpu_micros
            )
        }
    };
    let faults = if row.faults == Default::default() { String::new() } else { format!(" ({})", row.faults) };
    format!(
        "| {name} | {clients} | {who}{faults} | {:.0} | {:.0} | {:.0} | {:.2} | {ratios}",
        row.rate, row.times[0], row.times[1], row.cpu_micros
    )
}

/// The width and height of a chart, and the space around it for labels, in pixels.
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 240.0;
const SPACE: f64 = 50.0;

/// Two charts as SVG, whose axes are logarithmic: rate and p50 by the number of clients, with a line for each
/// contestant.
fn picture(points: &[(usize, Vec<Row>)]) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        2.0 * (WIDTH + 2.0 * SPACE),
        HEIGHT + 2.0 * SPACE
    );
    let rate: fn(&Row) -> f64 = |row| row.rate;
    for (number, (title, value)) in
        [("answers a second", rate), ("p50, µs", |row| row.times[0])].into_iter().enumerate()
    {
        let left = SPACE + number as f64 * (WIDTH + 2.0 * SPACE);
        let _ = writeln!(svg, "<g transform=\"translate({left} {SPACE})\">\n<text y=\"-12\">{title}</text>");
        chart(&mut svg, points, value);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn chart(svg: &mut String, points: &[(usize, Vec<Row>)], value: fn(&Row) -> f64) {
    let rows = || points.iter().flat_map(|(_, rows)| rows).filter(|row| row.failed.is_none());
    let low = rows().map(value).fold(f64::INFINITY, f64::min).log10().floor();
    let high = rows().map(value).fold(0.0, f64::max).log10().ceil();
    let widest = points.last().map_or(1, |(clients, _)| *clients).max(2) as f64;
    let x = |clients: usize| WIDTH * (clients as f64).ln() / widest.ln();
    let y = |value: f64| HEIGHT * (high - value.log10()) / (high - low).max(1.0);
    for exponent in low as i32..=high as i32 {
        let at = y(10_f64.powi(exponent));
        let _ = writeln!(
            svg,
            "<path d=\"M0 {at:.1}H{WIDTH}\" stroke=\"#ddd\"/><text x=\"-6\" y=\"{at:.1}\" text-anchor=\"end\" \
             dominant-baseline=\"middle\">{}</text>",
            10_u64.pow(exponent.max(0) as u32)
        );
    }
    for (clients, _) in points {
        let (at, below) = (x(*clients), HEIGHT + 16.0);
        let _ = writeln!(svg, "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{clients}</text>");
    }
    let contestants = points.first().map_or(&[][..], |(_, rows)| rows);
    for (number, (row, colour)) in contestants.iter().zip(["#0a6", "#999", "#c40"]).enumerate() {
        let path = points.iter().filter_map(|(clients, rows)| Some((*clients, rows.get(number)?)));
        let path = path.filter(|(_, row)| row.failed.is_none());
        let path: Vec<_> = path.map(|(clients, row)| format!("{:.1} {:.1}", x(clients), y(value(row)))).collect();
        let name = row.contestant.name();
        let label = 14.0 * (number as f64 + 1.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"6\" y=\"{label}\" fill=\"{colour}\">{name}</text>",
            path.join("L")
        );
    }
}
