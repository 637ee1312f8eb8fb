//! The same worker behind other ways to speak WebSocket: a server for Node that starts one for each connection, and a
//! gateway from npm in front of a single one. What counts is the CPU of all processes of a way together, its worker's
//! included, and how much memory each connection adds to them.
//!
//! `gateways/` has the server and the list of packages, which npm installs beside the build products. Where there is no
//! npm, the daemon is measured alone.

use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::Harness;
use crate::harness::address::{Address, Transport, free_port};
use crate::harness::crowd::{Crowd, Heard};
use crate::harness::machine::{self, Placement};
use crate::harness::measure::{median, progress};
use crate::harness::others::{Running, npm_packages, start};
use crate::harness::server::Contestant;
use crate::harness::web;
use crate::scenario::{Scenario, Table};

const CLIENTS: usize = 32;
/// Requests that each of them has in flight.
const WINDOW: usize = 4;
/// Bytes of a request.
const BYTES: usize = 200;

/// A way, while it runs.
struct Way {
    name: &'static str,
    running: Running,
    base: u64,
    crowd: Crowd,
    load: Load,
    cpu_micros: Vec<f64>,
    rates: Vec<f64>,
}

/// The one that there is.
pub fn scenario() -> Scenario {
    Scenario::new("gateways", measure)
}

/// Measures all of them, in turn.
fn measure(harness: &Harness) -> io::Result<Vec<Table>> {
    let mut ways = ways(harness)?;
    let count = ways.len();
    for round in 0..harness.rounds {
        for turn in 0..count {
            let way = &mut ways[(round + turn) % count];
            progress(&format!("gateways, round {} of {}, {}", round + 1, harness.rounds, way.name));
            way.round(harness).map_err(|error| io::Error::other(format!("{}: {error}", way.name)))?;
        }
    }
    progress("");
    let mut table = Table {
        name: "gateways",
        head: "32 clients with 4 requests of 200 B each in flight; CPU and memory (PSS) of all processes, workers \
               included:\n\n\
               | over WebSocket | CPU µs | messages/s | processes | MB before | MB a connection |\n\
               |---|--:|--:|--:|--:|--:|",
        rows: Vec::new(),
        figures: Vec::new(),
    };
    for way in ways {
        way.finish(&mut table)?;
    }
    Ok(vec![table])
}

fn ways(harness: &Harness) -> io::Result<Vec<Way>> {
    let placement = Placement::choose(false);
    let packages = npm_packages().map_err(|why| eprintln!("\r\x1b[Kgateways: only the daemon is measured: {why}")).ok();
    let daemon = |name, pool| {
        let transport = Transport::WebSocket { ping_sec: 0 };
        let server = harness.start(Contestant::WebSocket, &[pool], transport, placement)?;
        let address = server.address.clone();
        Way::new(name, Running::Daemon(server), &address, placement)
    };
    let bus = harness.bus.display().to_string();
    let mut dedicated = harness.echo("bench", 1);
    dedicated["assignment"] = json!("dedicated");
    dedicated["max_instances"] = json!(CLIENTS);
    let mut ways = vec![daemon("stdio_bus, a worker for each connection", dedicated)?];
    if let Some(packages) = &packages {
        let script = packages.join("spawn-per-connection.mjs");
        let port = free_port()?;
        let address = Address::WebSocket { port, path: "/" };
        let mut node = Command::new("node");
        node.arg(script).arg(port.to_string()).args([&bus, "worker", "echo"]);
        let server = start(node, port, placement)?;
        ways.push(Way::new("Node and ws, a worker for each connection", server, &address, placement)?);
    }
    ways.push(daemon("stdio_bus, one worker for all", harness.echo("bench", 1))?);
    if let Some(packages) = &packages {
        let script = packages.join("node_modules/supergateway/dist/index.js");
        let worker = format!("'{bus}' worker echo");
        let port = free_port()?;
        let address = Address::WebSocket { port, path: "/message" };
        let mut node = Command::new("node");
        node.arg(script).args(["--stdio", &worker, "--outputTransport", "ws", "--logLevel", "none"]);
        node.arg("--port").arg(port.to_string());
        let server = start(node, port, placement)?;
        ways.push(Way::new("supergateway, one worker for all", server, &address, placement)?);
    }
    Ok(ways)
}

impl Way {
    fn new(name: &'static str, running: Running, address: &Address, placement: Placement) -> io::Result<Self> {
        let base = running.memory()?;
        let mut crowd = Crowd::new()?;
        for _ in 0..CLIENTS {
            crowd.join(address)?;
        }
        let mut way = Self { name, running, base, crowd, load: Load::new(), cpu_micros: Vec::new(), rates: Vec::new() };
        // Each connection has its worker once it was answered, and workers begin on the CPU of whoever starts them.
        way.talk(Duration::ZERO)?;
        for worker in machine::family(way.running.process()).into_iter().skip(1) {
            machine::pin(worker, placement.workers)?;
        }
        Ok(way)
    }

    fn round(&mut self, harness: &Harness) -> io::Result<()> {
        self.talk(harness.warm_up)?;
        let (before, begun) = (self.running.cpu()?, Instant::now());
        let done = self.talk(harness.round)? as f64;
        self.cpu_micros.push((self.running.cpu()? - before) as f64 / 1e3 / done);
        self.rates.push(done / begun.elapsed().as_secs_f64());
        Ok(())
    }

    /// Lets all of them ask for so long, each at least once, until all are answered. Says how many answers came.
    fn talk(&mut self, time: Duration) -> io::Result<u64> {
        let begun = Instant::now();
        for member in 0..self.crowd.len() {
            for _ in 0..WINDOW {
                self.crowd.send(member, self.load.next(member))?;
            }
        }
        let (mut under_way, mut done, mut heard) = (self.crowd.len() * WINDOW, 0, Vec::new());
        let mut progress = Instant::now();
        while under_way > 0 {
            let mut wrong = None;
            self.crowd.listen(Duration::from_millis(100), |member, what| {
                if let Heard::Message(answer) = what {
                    match self.load.take(member, answer) {
                        true => heard.push(member),
                        false => wrong = Some(String::from_utf8_lossy(answer).into_owned()),
                    }
                }
            })?;
            if let Some(answer) = wrong {
                return Err(io::Error::other(format!("this is not the answer that was waited for: {answer}")));
            }
            if !heard.is_empty() {
                progress = Instant::now();
            } else if progress.elapsed() > Duration::from_secs(10) {
                return Err(io::Error::other("no answer in ten seconds"));
            }
            let goes_on = begun.elapsed() < time;
            for member in heard.drain(..) {
                done += 1;
                match goes_on {
                    true => self.crowd.send(member, self.load.next(member))?,
                    false => under_way -= 1,
                }
            }
        }
        Ok(done)
    }

    /// Adds what it came to: medians, proportional memory before the first connection and what each connection adds
    /// after it has talked, and processes with all of them there.
    fn finish(self, table: &mut Table) -> io::Result<()> {
        let (name, cpu, rate) = (self.name, median(self.cpu_micros), median(self.rates));
        let processes = machine::family(self.running.process()).len();
        let added = self.running.memory()?.saturating_sub(self.base);
        let (base, each) = (self.base as f64 / 1e6, added as f64 / 1e6 / CLIENTS as f64);
        table.rows.push(format!("| {name} | {cpu:.1} | {rate:.0} | {processes} | {base:.1} | {each:.2} |"));
        table.figures.push(json!({
            "way": name, "cpu_micros": cpu, "messages_per_second": rate, "processes": processes, "megabytes": base,
            "megabytes_a_connection": each,
        }));
        Ok(())
    }
}

/// The requests of all clients, and which answers they wait for: in order, because each has one worker that answers so.
struct Load {
    sent: [u64; CLIENTS],
    answered: [u64; CLIENTS],
    frame: Vec<u8>,
}

impl Load {
    fn new() -> Self {
        Self { sent: [0; CLIENTS], answered: [0; CLIENTS], frame: Vec::new() }
    }

    /// The next request of a client. It has no member that JSON-RPC does not name: not every gateway passes those.
    fn next(&mut self, client: usize) -> &[u8] {
        let request = request(client, self.sent[client]);
        self.sent[client] += 1;
        self.frame = web::frame(request.as_bytes());
        &self.frame
    }

    /// Takes an answer. False if it is not the next one of this client.
    fn take(&mut self, client: usize, answer: &[u8]) -> bool {
        let expected = format!("\"id\":{}", id(client, self.answered[client]));
        self.answered[client] += 1;
        let place = memchr::memmem::find(answer, expected.as_bytes());
        place.is_some_and(|at| answer.get(at + expected.len()).is_none_or(|next| !next.is_ascii_digit()))
    }
}

fn id(client: usize, number: u64) -> u64 {
    1_000_000_000 + client as u64 * 10_000_000 + number
}

/// A request of [`BYTES`] bytes.
fn request(client: usize, number: u64) -> String {
    let id = id(client, number);
    let (begin, end) = (format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"bench/echo","params":{{"text":""#), "\"}}");
    let text = "x".repeat(BYTES - begin.len() - end.len());
    format!("{begin}{text}{end}")
}
