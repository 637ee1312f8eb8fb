//! The same MCP server behind bridges to HTTP: the daemon, one from npm and one from pip. What counts is the CPU of the
//! bridge's own process for a call, how long that takes, and how much memory and how many processes are there in all.
//!
//! Where npm or pip cannot install a bridge, the others are measured.

use std::io;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::json;

use crate::harness::Harness;
use crate::harness::address::{Transport, free_port};
use crate::harness::machine::{self, Placement, Usage};
use crate::harness::measure::{histogram, joined, median, percentiles, progress};
use crate::harness::others::{Running, npm_packages, pip_package, start};
use crate::harness::post::{self, Caller};
use crate::harness::request::{call, id, set_id};
use crate::harness::server::{Contestant, this_program};
use crate::harness::worker::TOOLS;
use crate::scenario::{Goal, Scenario, Table, goals};

/// Sessions at once, each with one call under way.
const SESSIONS: [usize; 2] = [1, 16];
/// Bytes of a call.
const BYTES: usize = 100;
/// CPU of the daemon, and its median time, at most: the part of another bridge's in the same run.
const CPU: f64 = 60.0;
const TIME: f64 = 10.0;

/// A bridge, while it runs.
struct Bridge {
    name: &'static str,
    running: Running,
    port: u16,
    sessions: Vec<Session>,
    cpu_micros: Vec<f64>,
    times: Histogram<u64>,
}

/// A client.
struct Session {
    stream: TcpStream,
    caller: Caller,
    number: usize,
    sent: u64,
}

/// What a bridge came to with so many sessions.
struct Found {
    name: &'static str,
    cpu_micros: f64,
    times: [f64; 3],
}

/// The one that there is.
pub fn scenario() -> Scenario {
    Scenario::new("bridges", measure)
}

/// Measures all of them, in turn.
fn measure(harness: &Harness) -> io::Result<Vec<Table>> {
    let mut bridges = bridges(harness)?;
    let count = bridges.len();
    let mut table = Table {
        name: "bridges",
        head: "One MCP server, calls of 100 B, one under way in each session; CPU of the bridge's own process, memory (PSS) \
               of all:\n\n\
               | bridge | sessions | CPU µs a call | p50 µs | p99 | processes beside it | MB |\n\
               |---|--:|--:|--:|--:|--:|--:|",
        rows: Vec::new(),
        figures: Vec::new(),
    };
    let mut reached = Vec::new();
    for sessions in SESSIONS {
        for bridge in &mut bridges {
            bridge.come(sessions)?;
        }
        for round in 0..harness.rounds {
            for turn in 0..count {
                let bridge = &mut bridges[(round + turn) % count];
                progress(&format!("bridges, round {} of {}, {}", round + 1, harness.rounds, bridge.name));
                bridge.round(harness).map_err(|error| io::Error::other(format!("{}: {error}", bridge.name)))?;
            }
        }
        let found = bridges.iter_mut().map(|bridge| bridge.finish(&mut table)).collect::<io::Result<Vec<_>>>()?;
        reached.extend(found[1..].iter().map(|other| beside(&found[0], other, sessions)));
    }
    progress("");
    Ok(vec![table, goals(reached)])
}

/// What the daemon takes beside another one.
fn beside(bus: &Found, other: &Found, sessions: usize) -> Goal {
    let (cpu, time) = (other.cpu_micros / bus.cpu_micros, other.times[0] / bus.times[0]);
    Goal {
        what: format!("{sessions} sessions beside {}: CPU of a call, and its median time", other.name),
        goal: format!("1/{CPU:.0}, 1/{TIME:.0}"),
        value: format!("1/{cpu:.0}, 1/{time:.0}"),
        reached: cpu >= CPU && time >= TIME,
        figures: json!({ "beside": other.name, "sessions": sessions, "cpu": cpu, "time": time }),
    }
}

fn bridges(harness: &Harness) -> io::Result<Vec<Bridge>> {
    let placement = Placement::choose(false);
    let transport = Transport::Http;
    let server = harness.start(Contestant::Http, &[harness.tools("bench", 1, BYTES)], transport, placement)?;
    let port = server.address.port()?;
    let mut bridges = vec![Bridge::new("stdio_bus", Running::Daemon(server), port)];
    let worker = this_program().display().to_string();
    let missing = |why: String| eprintln!("\r\x1b[Kbridges: one is not measured: {why}");
    if let Ok(packages) = npm_packages().map_err(missing) {
        let port = free_port()?;
        let mut command = Command::new("node");
        command.arg(packages.join("node_modules/supergateway/dist/index.js"));
        command.args(["--stdio", &format!("'{worker}' {TOOLS} {BYTES}"), "--outputTransport", "streamableHttp"]);
        command.args(["--stateful", "--logLevel", "none", "--port", &port.to_string()]);
        bridges.push(Bridge::new("supergateway 4.0.0", start(command, port, placement)?, port));
    }
    if let Ok(packages) = pip_package("mcp-proxy", "0.13.0").map_err(missing) {
        let port = free_port()?;
        let mut command = Command::new(packages.join("bin/mcp-proxy"));
        command.args(["--port", &port.to_string(), "--log-level", "ERROR", "--", &worker, TOOLS, &BYTES.to_string()]);
        bridges.push(Bridge::new("mcp-proxy 0.13.0", start(command, port, placement)?, port));
    }
    Ok(bridges)
}

impl Bridge {
    fn new(name: &'static str, running: Running, port: u16) -> Self {
        Self { name, running, port, sessions: Vec::new(), cpu_micros: Vec::new(), times: histogram() }
    }

    /// So many sessions are there from now on.
    fn come(&mut self, sessions: usize) -> io::Result<()> {
        for number in self.sessions.len()..sessions {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            let caller = Caller::begin(&mut stream, self.port, false)?;
            self.sessions.push(Session { stream, caller, number, sent: 0 });
        }
        // Workers begin on the CPU of whoever starts them.
        let placement = Placement::choose(false);
        let workers = machine::family(self.running.process()).into_iter().skip(1);
        workers.into_iter().try_for_each(|worker| machine::pin(worker, placement.workers))
    }

    fn round(&mut self, harness: &Harness) -> io::Result<()> {
        self.talk(harness.warm_up)?;
        let before = Usage::of(self.running.process())?;
        let times = self.talk(harness.round)?;
        let cpu = Usage::of(self.running.process())?.micros_since(before);
        self.cpu_micros.push(cpu / times.len() as f64);
        self.times.add(&times).map_err(io::Error::other)
    }

    /// Lets all sessions call for so long, each at least once. Says how long each call took.
    fn talk(&mut self, time: Duration) -> io::Result<Histogram<u64>> {
        let (port, until) = (self.port, Instant::now() + time);
        let mut all = histogram();
        let each = std::thread::scope(|scope| {
            let talks = self.sessions.iter_mut().map(|session| scope.spawn(move || session.talk(port, until)));
            let talks: Vec<_> = talks.collect();
            talks.into_iter().map(|talk| joined(talk.join())).collect::<io::Result<Vec<_>>>()
        })?;
        each.iter().try_for_each(|times| all.add(times)).map_err(io::Error::other)?;
        Ok(all)
    }

    /// Adds what it came to.
    fn finish(&mut self, table: &mut Table) -> io::Result<Found> {
        let cpu_micros = median(std::mem::take(&mut self.cpu_micros));
        let times = percentiles(&self.times);
        self.times.reset();
        let (name, sessions) = (self.name, self.sessions.len());
        let processes = machine::family(self.running.process()).len() - 1;
        let megabytes = self.running.memory()? as f64 / 1e6;
        let [p50, p99, _] = times;
        table.rows.push(format!(
            "| {name} | {sessions} | {cpu_micros:.1} | {p50:.0} | {p99:.0} | {processes} | {megabytes:.1} |"
        ));
        table.figures.push(json!({
            "bridge": name, "sessions": sessions, "cpu_micros": cpu_micros, "p50_micros": p50, "p99_micros": p99,
            "processes": processes, "megabytes": megabytes,
        }));
        Ok(Found { name, cpu_micros, times })
    }
}

impl Session {
    fn talk(&mut self, port: u16, until: Instant) -> io::Result<Histogram<u64>> {
        let mut times = histogram();
        let mut call = call(BYTES, false);
        loop {
            set_id(&mut call, self.number, self.sent);
            let expected = id(self.number, self.sent);
            self.sent += 1;
            let request = self.caller.request(port, call.trim_ascii_end());
            let begun = Instant::now();
            let answer = post::ask(&mut self.stream, &request)?;
            times.saturating_record(begun.elapsed().as_nanos() as u64);
            let message = answer.message()?;
            if message["id"] != expected || message.get("result").is_none() {
                return Err(io::Error::other(format!("this is not the answer that was waited for: {}", answer.text)));
            }
            if Instant::now() >= until {
                return Ok(times);
            }
        }
    }
}
