//! The same worker behind other ways to speak WebSocket: a server for Node that starts one for each connection, and a
//! gateway from npm in front of a single one. What counts is the CPU of all processes of a way together, its worker's
//! included, and how much memory each connection adds to them.
//!
//! `gateways/` has the server and the list of packages, which npm installs beside the build products. Where there is no
//! npm, the daemon is measured alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::crowd::{Crowd, Heard};
use crate::case::Transport;
use crate::machine::{self, Placement, Usage};
use crate::options::Options;
use crate::round::median;
use crate::server::{self, Address, Contestant, Server};
use crate::web;

const CLIENTS: usize = 32;
/// Requests that each of them has in flight.
const WINDOW: usize = 4;
/// Bytes of a request.
const BYTES: usize = 200;

/// What one way came to.
pub struct Gateway {
    /// Which.
    pub name: &'static str,
    /// CPU of all its processes for a round trip, in microseconds: a median.
    pub cpu_micros: f64,
    /// Round trips a second: a median.
    pub rate: f64,
    /// Proportional memory of all its processes before the first connection, in MB.
    pub base: f64,
    /// What each connection adds, in MB, after it has talked.
    pub each: f64,
    /// Processes with all connections there.
    pub processes: usize,
}

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

enum Running {
    Daemon(Server),
    Other(Other),
}

impl Running {
    fn process(&self) -> u32 {
        match self {
            Self::Daemon(server) => server.process(),
            Self::Other(other) => other.0.id(),
        }
    }

    /// What is used by all processes that are there.
    fn usage(&self) -> io::Result<Usage> {
        machine::family(self.process()).into_iter().try_fold(Usage::default(), |sum, process| {
            let one = Usage::of(process)?;
            Ok(Usage {
                cpu_nanos: sum.cpu_nanos + one.cpu_nanos,
                switches: sum.switches + one.switches,
                wakeups: sum.wakeups + one.wakeups,
            })
        })
    }

    fn memory(&self) -> io::Result<u64> {
        machine::family(self.process()).into_iter().map(machine::proportional).sum()
    }
}

/// A server of somebody else.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // Its workers end with their stdin.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures all of them, in turn.
pub fn measure(options: &Options) -> io::Result<Vec<Gateway>> {
    let placement = &Placement::choose(false, options);
    let packages = install().map_err(|why| eprintln!("\r\x1b[Kgateways: only the daemon is measured: {why}")).ok();
    let daemon = |assignment, spares| {
        let command = &options.bus;
        let pool = json!({ "id": "bench", "command": command, "args": ["worker", "echo"], "instances": spares,
                           "assignment": assignment, "max_instances": CLIENTS });
        let pool = match assignment {
            "dedicated" => pool,
            _ => json!({ "id": "bench", "command": command, "args": ["worker", "echo"], "instances": 1 }),
        };
        let transport = Transport::WebSocket { ping_sec: 0 };
        let server =
            Server::start_with(Contestant::WebSocket, &json!({ "pools": [pool] }), transport, options, placement)?;
        let address = server.address.clone();
        Ok::<_, io::Error>((Running::Daemon(server), address))
    };
    let mut ways = Vec::new();
    let (server, address) = daemon("dedicated", 1)?;
    ways.push(Way::new("stdio_bus, a worker for each connection", server, &address, placement)?);
    if let Some(packages) = &packages {
        let script = packages.join("spawn-per-connection.mjs");
        let (server, address) = node(&script, "/", placement, |port| {
            vec![port.to_string(), options.bus.display().to_string(), "worker".to_owned(), "echo".to_owned()]
        })?;
        ways.push(Way::new("Node and ws, a worker for each connection", server, &address, placement)?);
    }
    let (server, address) = daemon("round_robin", 1)?;
    ways.push(Way::new("stdio_bus, one worker for all", server, &address, placement)?);
    if let Some(packages) = &packages {
        let script = packages.join("node_modules/supergateway/dist/index.js");
        let worker = format!("'{}' worker echo", options.bus.display());
        let (server, address) = node(&script, "/message", placement, |port| {
            ["--stdio", &worker, "--outputTransport", "ws", "--logLevel", "none", "--port", &port.to_string()]
                .map(str::to_owned)
                .to_vec()
        })?;
        ways.push(Way::new("supergateway, one worker for all", server, &address, placement)?);
    }
    let count = ways.len();
    for round in 0..options.rounds {
        for turn in 0..count {
            let way = &mut ways[(round + turn) % count];
            eprint!("\r\x1b[Kgateways, round {} of {}, {}", round + 1, options.rounds, way.name);
            way.round(options).map_err(|error| io::Error::other(format!("{}: {error}", way.name)))?;
        }
    }
    eprint!("\r\x1b[K");
    ways.into_iter().map(Way::finish).collect()
}

impl Way {
    fn new(name: &'static str, running: Running, address: &Address, placement: &Placement) -> io::Result<Self> {
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

    fn round(&mut self, options: &Options) -> io::Result<()> {
        self.talk(options.warm_up)?;
        let (before, begun) = (self.running.usage()?, Instant::now());
        let done = self.talk(options.round)? as f64;
        let used = self.running.usage()?.since(before);
        self.cpu_micros.push(used.cpu_nanos as f64 / 1e3 / done);
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

    fn finish(self) -> io::Result<Gateway> {
        let memory = self.running.memory()?;
        Ok(Gateway {
            name: self.name,
            cpu_micros: median(self.cpu_micros),
            rate: median(self.rates),
            base: self.base as f64 / 1e6,
            each: memory.saturating_sub(self.base) as f64 / 1e6 / CLIENTS as f64,
            processes: machine::family(self.running.process()).len(),
        })
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

/// Starts a server for Node, and waits until it takes connections.
fn node(
    script: &Path,
    path: &'static str,
    placement: &Placement,
    arguments: impl FnOnce(u16) -> Vec<String>,
) -> io::Result<(Running, Address)> {
    let port = server::free_port()?;
    let mut command = Command::new("node");
    command.arg(script).args(arguments(port));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    machine::pin(0, placement.daemon)?;
    let child = command.spawn();
    machine::pin(0, placement.clients)?;
    let mut other = Other(child?);
    let begun = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        if begun.elapsed() > Duration::from_secs(20) || other.0.try_wait()?.is_some() {
            return Err(io::Error::other(format!("{command:?} does not listen")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok((Running::Other(other), Address::WebSocket { port, path }))
}

/// Installs the packages unless they are there, and says where.
///
/// # Errors
/// Why not, in words.
fn install() -> Result<PathBuf, String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/throughput/gateways");
    let packages = server::target().join("bench/gateways");
    let copied = |name: &str| -> io::Result<bool> {
        let (from, to) = (fs::read(sources.join(name))?, packages.join(name));
        let is_new = fs::read(&to).ok().as_ref() != Some(&from);
        fs::write(to, from).map(|()| is_new)
    };
    let copy = || -> io::Result<bool> {
        fs::create_dir_all(&packages)?;
        copied("spawn-per-connection.mjs")?;
        copied("package.json")?;
        copied("package-lock.json")
    };
    let is_new = copy().map_err(|error| error.to_string())?;
    // npm writes this when everything else is there.
    if !is_new && packages.join("node_modules/.package-lock.json").exists() {
        return Ok(packages);
    }
    eprint!("\r\x1b[Kgateways, npm ci");
    let mut npm = Command::new("npm");
    npm.args(["ci", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(&packages);
    match npm.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(packages),
        Ok(output) => Err(format!("npm ci: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("npm: {error}")),
    }
}
