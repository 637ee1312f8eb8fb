//! The cost of observation: how long each table of a full daemon takes, and how long a polite client waits meanwhile.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::Harness;
use crate::harness::address::Transport;
use crate::harness::admin::ask;
use crate::harness::client::{Client, request};
use crate::harness::machine::Placement;
use crate::harness::measure::{Over, joined, median, progress};
use crate::harness::polite::polite;
use crate::harness::server::{Contestant, Server, agents};
use crate::scenario::{Scenario, Table};

/// Connections of a full daemon, and pending requests on each but one.
const CLIENTS: usize = 1024;
const PENDING: usize = 4;
/// The paths that an operator requests.
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

/// The only scenario.
pub fn scenario() -> Scenario {
    Scenario::new("admin", measure)
}

/// Requests each path of a full daemon in turn, repeatedly, while a polite client continues.
fn measure(harness: &Harness) -> io::Result<Vec<Table>> {
    let time = Duration::from_millis(harness.either(5000, 500));
    let until = Instant::now() + Duration::from_secs(120);
    let pools = [agents("shared", 2, 0), agents("own", 1, 0)];
    let server = harness.start(Contestant::Admin, &pools, Transport::Unix, Placement::choose(false))?;
    let _clients = fill(&server, until)?;
    let mut table = Table {
        name: "admin",
        head: "With 1,024 clients and 4,092 requests that wait, a polite client asks again 5 ms after each answer:",
        rows: Vec::new(),
        figures: Vec::new(),
    };
    for path in [None].into_iter().chain(PATHS.map(Some)) {
        progress(&format!("admin, {}", path.unwrap_or("unasked")));
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
        let asked = path.map_or("nobody asks".to_owned(), |path| {
            format!("{path} takes {:.1} ms, {:.1} at most, for {} kB", millis[0], millis[1], bytes / 1000)
        });
        let waits = [waits.quantile(0.5), waits.quantile(0.99), waits.longest.as_secs_f64() * 1e3];
        let [middle, tail, longest] = waits;
        table.rows.push(format!("{asked}; the client waits p50 {middle:.2} ms, p99 {tail:.2}, {longest:.2} at most"));
        table.figures.push(json!({ "path": path, "millis": millis, "bytes": bytes, "waits_millis": waits }));
    }
    progress("");
    Ok(vec![table])
}

/// All other connections, each with a session and pending requests.
fn fill(server: &Server, until: Instant) -> io::Result<Vec<Client>> {
    let mut clients = Vec::new();
    while clients.len() < CLIENTS - 1 {
        let mut client = Client::connect(&server.address)?;
        let lines: String = (0..PENDING).map(|id| request(id, "never", "shared")).collect();
        client.send(lines.as_bytes(), until)?;
        clients.push(client);
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let line = format!(r#"{{"jsonrpc":"2.0","id":"s","method":"m","pool":"own","sessionId":"{number}"}}"#);
        client.send(format!("{line}\n").as_bytes(), until)?;
        client.line(until)?;
    }
    Ok(clients)
}

fn ask_again_and_again(admin: &Path, path: Option<&str>, over: &AtomicBool) -> io::Result<([f64; 2], usize)> {
    let Some(path) = path else { return Ok(([0.0; 2], 0)) };
    let (mut times, mut bytes) = (Vec::new(), 0);
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        bytes = ask(admin, path)?.len();
        times.push(began.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_millis(50));
    }
    let longest = times.iter().copied().fold(0.0, f64::max);
    Ok(([median(times), longest], bytes))
}
