//! The idle daemon's resources: memory and CPU, without clients and with the maximum, and its start-up time.

use std::io;
use std::time::Duration;

use serde_json::json;

use crate::harness::Harness;
use crate::harness::address::Transport;
use crate::harness::machine::{self, Placement, Usage};
use crate::harness::measure::{median, progress};
use crate::harness::server::Contestant;
use crate::scenario::{Scenario, Table};

/// The daemon's maximum of connections.
const CLIENTS: usize = 1024;

/// The only scenario.
pub fn scenario() -> Scenario {
    Scenario::new("idle", measure)
}

/// Measures every contestant except the relay.
fn measure(harness: &Harness) -> io::Result<Vec<Table>> {
    let wait = Duration::from_secs(harness.either(5, 1));
    let mut table = Table { name: "idle", head: "", rows: Vec::new(), figures: Vec::new() };
    for contestant in harness.contestants().into_iter().filter(|contestant| *contestant != Contestant::Relay) {
        let name = contestant.name();
        progress(&format!("idle, {name}"));
        let start =
            |transport| harness.start(contestant, &[harness.echo("bench", 2)], transport, Placement::choose(true));
        let starts = (0..harness.either(9, 3)).map(|_| Ok(start(Transport::Tcp)?.started_in.as_secs_f64() * 1e3));
        let starts = median(starts.collect::<io::Result<_>>()?);
        let server = start(Transport::Unix)?;
        std::thread::sleep(Duration::from_millis(300));
        let before = machine::resident(server.process())?;
        let clients: Vec<_> = (0..CLIENTS).map_while(|_| server.address.connect().ok()).collect();
        // Accepting the clients has to be finished, including the log.
        std::thread::sleep(Duration::from_millis(1500));
        let usage = Usage::of(server.process())?;
        std::thread::sleep(wait);
        let cpu = Usage::of(server.process())?.micros_since(usage);
        let with_clients = machine::resident(server.process())?;
        let (clients, seconds) = (clients.len(), wait.as_secs());
        table.rows.push(format!(
            "{name} listens {starts:.1} ms after its start; idle it holds {:.1} MB, with {clients} clients {:.1} MB; with \
             them it uses {cpu:.0} µs of CPU in {seconds} s",
            before as f64 / 1e6,
            with_clients as f64 / 1e6
        ));
        table.figures.push(json!({
            "who": name, "start_millis": starts, "resident_bytes": before, "clients": clients,
            "resident_bytes_with_clients": with_clients, "cpu_micros": cpu, "seconds": seconds,
        }));
    }
    progress("");
    Ok(vec![table])
}
