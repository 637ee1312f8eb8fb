//! What scenarios are made of: processes on their CPUs, clients, and what is counted of them. Nothing here knows a
//! scenario.

pub mod address;
pub mod admin;
pub mod client;
pub mod crowd;
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

/// How one run measures, and whom.
pub struct Harness {
    /// Rounds for each case and contestant.
    pub rounds: usize,
    /// How long one round is measured.
    pub round: Duration,
    /// How long the load runs before it is measured.
    pub warm_up: Duration,
    /// Whether the floor takes part.
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
    /// One in a full run, another one in a short run.
    pub fn either<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Those that take part in a race.
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

    /// A pool of workers that answer calls of tools in lines of this length, whose workers are shared.
    pub fn tools(&self, id: &str, instances: usize, bytes: usize) -> Value {
        let args = [worker::TOOLS, &bytes.to_string()];
        json!({ "id": id, "command": this_program(), "args": args, "instances": instances, "assignment": "client" })
    }

    /// Starts a daemon with these pools.
    pub fn start(
        &self,
        who: Contestant,
        pools: &[Value],
        transport: Transport,
        placement: Placement,
    ) -> io::Result<Server> {
        self.start_with(who, json!({ "pools": pools }), transport, placement)
    }

    /// Starts a daemon with this configuration.
    pub fn start_with(
        &self,
        who: Contestant,
        mut configuration: Value,
        transport: Transport,
        placement: Placement,
    ) -> io::Result<Server> {
        let program = match who {
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
        Server::launch(who, command, Vec::new(), address, files, placement)
    }
}
