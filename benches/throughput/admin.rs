//! What it costs to look inside: how long each table of a full daemon takes, how long a polite client waits meanwhile,
//! and the scraper that runs beside a case.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::attack::{Over, agents, joined, polite};
use crate::case::Transport;
use crate::client::{Client, request};
use crate::machine::Placement;
use crate::options::Options;
use crate::round::median;
use crate::server::{Contestant, Server};

/// Connections of a full daemon, and requests that wait in each but one.
const CLIENTS: usize = 1024;
const PENDING: usize = 4;
/// What a person asks for.
const PATHS: [&str; 9] = [
    "/metrics",
    "/status.json",
    "/clients.json",
    "/workers.json",
    "/pools.json",
    "/sessions.json",
    "/pending.json",
    "/limits.json",
    "/errors.json",
];

/// What one path came to on a full daemon.
pub struct Asked {
    /// Which; none while nobody asks.
    pub path: Option<&'static str>,
    /// Milliseconds until all of the answer is there: p50 and the longest.
    pub millis: [f64; 2],
    /// Its bytes.
    pub bytes: usize,
    /// Milliseconds that a polite client waits meanwhile: p50, p99 and the longest.
    pub waits: [f64; 3],
}

/// Fills a daemon and asks for one path after the other, again and again, while a polite client goes on.
pub fn measure(options: &Options) -> io::Result<Vec<Asked>> {
    let time = Duration::from_millis(if options.quick { 500 } else { 5000 });
    let until = Instant::now() + Duration::from_secs(120);
    let placement = Placement::choose(false, options);
    let configuration = json!({ "pools": [agents("shared", 2, 0)?, agents("own", 1, 0)?] });
    let server = Server::start_with(Contestant::Admin, &configuration, Transport::Unix, options, &placement)?;
    let mut clients = Vec::new();
    while clients.len() < CLIENTS - 1 {
        let mut client = Client::connect(&server.address)?;
        let lines: String = (0..PENDING).map(|id| request(id, "never", "shared")).collect();
        client.send(lines.as_bytes(), until)?;
        clients.push(client);
    }
    for client in &mut clients {
        let line = format!(r#"{{"jsonrpc":"2.0","id":"s","method":"m","pool":"own","sessionId":"{:p}"}}"#, client);
        client.send(format!("{line}\n").as_bytes(), until)?;
        client.line(until)?;
    }
    let mut all = Vec::new();
    for path in [None].into_iter().chain(PATHS.map(Some)) {
        eprint!("\r\x1b[Kadmin, {}", path.unwrap_or("nobody asks"));
        let over = AtomicBool::new(false);
        let (asked, waits) = std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask_again_and_again(&server.admin, path, &over));
            let waits = {
                let _over = Over(&over);
                let begun = Instant::now();
                polite(&server.address, "own", until, |_| begun.elapsed() > time)
            };
            (joined(asking.join()), waits)
        });
        let ((millis, bytes), waits) = (asked?, waits?);
        let longest = waits.longest.as_secs_f64() * 1e3;
        all.push(Asked { path, millis, bytes, waits: [waits.quantile(0.5), waits.quantile(0.99), longest] });
    }
    eprint!("\r\x1b[K");
    Ok(all)
}

fn ask_again_and_again(admin: &Path, path: Option<&str>, over: &AtomicBool) -> io::Result<([f64; 2], usize)> {
    let Some(path) = path else { return Ok(([0.0; 2], 0)) };
    let (mut times, mut bytes) = (Vec::new(), 0);
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        bytes = ask(admin, path)?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_millis(50));
    }
    let longest = times.iter().copied().fold(0.0, f64::max);
    Ok(([median(times), longest], bytes))
}

/// Asks once. Returns the length of the answer, with its head.
fn ask(admin: &Path, path: &str) -> io::Result<usize> {
    let mut stream = UnixStream::connect(admin)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    match answer.get(9..12) {
        Some(b"200") => Ok(answer.len()),
        _ => Err(io::Error::other(format!("{path}: {}", String::from_utf8_lossy(&answer)))),
    }
}

/// Asks for /metrics and for /status.json each second, as Prometheus and `status --watch` do together, until it is
/// dropped.
pub struct Scraper(Option<Sender<()>>, Option<std::thread::JoinHandle<()>>);

impl Scraper {
    /// Begins at once.
    pub fn of(admin: PathBuf) -> Self {
        let (going, is_over) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            loop {
                let began = Instant::now();
                for path in ["/metrics", "/status.json"] {
                    if let Err(error) = ask(&admin, path) {
                        eprintln!("\nthroughput: the scraper: {error}");
                    }
                }
                let rest = Duration::from_secs(1).saturating_sub(began.elapsed());
                if is_over.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        });
        Self(Some(going), Some(thread))
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        self.0.take();
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}
