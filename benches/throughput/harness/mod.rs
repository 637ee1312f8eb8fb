//! The parts of scenarios: processes on their CPUs, clients, and counters. Nothing here depends on a scenario.

pub mod address;
pub mod admin;
pub mod client;
pub mod crowd;
pub mod direct;
pub mod helper;
pub mod install;
pub mod load;
pub mod machine;
pub mod measure;
pub mod others;
pub mod polite;
pub mod post;
pub mod race;
pub mod relay;
pub mod request;
pub mod server;
pub mod talk;
pub mod web;
pub mod worker;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use address::{Address, Transport};
use machine::Placement;
use server::{Contestant, Server, scratch, this_program};

/// The parameters of a run, and its contestants.
#[derive(Clone)]
pub struct Harness {
    /// Rounds per case and contestant.
    pub rounds: usize,
    /// Duration of a measured round.
    pub round: Duration,
    /// Duration of the warm-up.
    pub warm_up: Duration,
    /// Whether the relay takes part.
    pub relay: bool,
    /// Whether the daemon with an admin listener takes part.
    pub with_admin: bool,
    /// Whether this run is short.
    pub quick: bool,
    /// The daemon.
    pub bus: PathBuf,
    /// The other daemon.
    pub peer: Option<PathBuf>,
}

impl Harness {
    /// The first in a full run, the second in a quick one.
    pub fn either<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// The contestants of a race.
    pub fn contestants(&self) -> Vec<Contestant> {
        let mut all = vec![Contestant::Bus];
        if self.with_admin {
            all.extend([Contestant::Admin, Contestant::Scraped]);
        }
        all.extend(self.relay.then_some(Contestant::Relay));
        all.extend(self.peer.is_some().then_some(Contestant::Peer));
        all
    }

    /// A pool of the daemon's own echo workers.
    pub fn echo(&self, id: &str, instances: usize) -> Value {
        json!({ "id": id, "command": self.bus, "args": ["worker", "echo"], "instances": instances })
    }

    /// A shared pool of workers that answer tool calls in lines of this length.
    pub fn tools(&self, id: &str, instances: usize, bytes: usize) -> Value {
        let args = [worker::TOOLS, &bytes.to_string()];
        json!({ "id": id, "command": this_program(), "args": args, "instances": instances, "assignment": "client" })
    }

    /// Starts a daemon with these pools.
    pub fn start(
        &self,
        contestant: Contestant,
        pools: &[Value],
        transport: Transport,
        placement: Placement,
    ) -> io::Result<Server> {
        self.start_with(contestant, json!({ "pools": pools }), transport, placement)
    }

    /// Starts a daemon with this configuration.
    pub fn start_with(
        &self,
        contestant: Contestant,
        mut configuration: Value,
        transport: Transport,
        placement: Placement,
    ) -> io::Result<Server> {
        let program = match contestant {
            Contestant::Peer => self.peer.as_ref().unwrap_or(&self.bus),
            _ => &self.bus,
        };
        let files = scratch()?;
        let address = Address::free(transport, &files)?;
        if let (Transport::WebSocket { ping_sec }, Address::WebSocket { port, path }) = (transport, &address) {
            let listener = format!("127.0.0.1:{port}");
            configuration["listeners"] = json!([{ "ws": listener, "path": path, "ping_sec": ping_sec }]);
        }
        if let Address::Http(port) = address {
            configuration["listeners"] = json!([{ "http": format!("127.0.0.1:{port}") }]);
        }
        let config = files.join("config.json");
        fs::write(&config, configuration.to_string())?;
        let mut command = Command::new(program);
        command.arg("--config").arg(&config);
        Server::launch(contestant, command, Vec::new(), address, files, placement)
    }
}
