//! The contestants of a comparison: their programs, and how to start them with an address and a worker.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use super::cases::{Candidate, Case};
use crate::harness::Harness;
use crate::harness::address::{Address, Transport};
use crate::harness::install::Installer;
use crate::harness::load::Traffic;
use crate::harness::machine::Placement;
use crate::harness::others::{Running, start};
use crate::harness::server::{Contestant, scratch, this_program};
use crate::harness::talk::Talk;
use crate::harness::worker::TOOLS;

const SUPERGATEWAY: &str = "4.0.0";
const MCP_PROXY: &str = "0.13.0";
const STDIO2HTTP: &str = "0.3.0";
const WEBSOCAT: &str = "1.14.0";

/// A program, or why it is missing.
type Found = Result<PathBuf, String>;

/// The contestants' programs.
pub struct Launch {
    peer: Found,
    peer_name: String,
    socat: Found,
    websocketd: Found,
    websocat: Found,
    node: Found,
    packages: Found,
    mcp_proxy: Found,
    stdio2http: Found,
    haproxy: Found,
}

impl Launch {
    /// Finds all of them, and installs missing ones. The slowest come last.
    pub fn find(installer: Installer, harness: &Harness) -> Self {
        let peer = harness.peer.clone().ok_or_else(|| "STDIO_BUS_PEER does not name it".to_owned());
        let peer_name = peer.as_ref().map_or("C daemon".to_owned(), |program| name_of(program));
        Self {
            peer,
            peer_name,
            socat: installer.system("socat"),
            websocketd: installer.system("websocketd"),
            node: installer.system("node"),
            packages: installer.npm(),
            mcp_proxy: installer.pip("mcp-proxy", MCP_PROXY),
            stdio2http: installer.cargo("stdio2http", STDIO2HTTP),
            websocat: installer.cargo("websocat", WEBSOCAT),
            haproxy: installer.system("haproxy"),
        }
    }

    /// Its name in the table.
    pub fn name(&self, candidate: Candidate) -> String {
        match candidate {
            Candidate::Bus => Candidate::NAME.to_owned(),
            Candidate::Peer => self.peer_name.clone(),
            Candidate::Socat => "socat".to_owned(),
            Candidate::Websocketd => "websocketd".to_owned(),
            Candidate::Websocat => format!("websocat {WEBSOCAT}"),
            Candidate::Node => "Node and ws".to_owned(),
            Candidate::Supergateway => format!("supergateway {SUPERGATEWAY}"),
            Candidate::McpProxy => format!("mcp-proxy {MCP_PROXY}"),
            Candidate::Stdio2http => format!("stdio2http {STDIO2HTTP}"),
            Candidate::Haproxy => "HAProxy, which forwards".to_owned(),
        }
    }

    /// The command that starts it with this worker.
    fn command(&self, candidate: Candidate, address: &Address, worker: &[String]) -> Result<Command, String> {
        let port = address.port().map_or_else(|_| String::new(), |port| port.to_string());
        let with = |program: &Found, arguments: &[&str]| -> Result<Command, String> {
            let mut command = Command::new(program.clone()?);
            command.args(arguments);
            Ok(command)
        };
        let script =
            |name: &str| -> Result<String, String> { Ok(self.packages.clone()?.join(name).display().to_string()) };
        Ok(match candidate {
            Candidate::Bus | Candidate::Peer | Candidate::Haproxy => {
                return Err("it is started otherwise".to_owned());
            }
            Candidate::Socat => {
                let listen = match address {
                    Address::Unix(path) => format!("UNIX-LISTEN:{},fork,backlog=64", path.display()),
                    _ => format!("TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr,nodelay,backlog=64"),
                };
                with(&self.socat, &[&listen, &format!("EXEC:{}", worker.join(" "))])?
            }
            Candidate::Websocketd => {
                let mut command = with(&self.websocketd, &["--address=127.0.0.1", "--loglevel=fatal"])?;
                command.arg(format!("--port={port}")).args(worker);
                command
            }
            Candidate::Websocat => {
                let listen = format!("ws-l:127.0.0.1:{port}");
                let mut command = with(&self.websocat, &["-t", "-E", &listen, &format!("exec:{}", worker[0])])?;
                command.arg("--exec-args").args(&worker[1..]);
                command
            }
            Candidate::Node => {
                let mut command = with(&self.node, &[&script("spawn-per-connection.mjs")?, &port])?;
                command.args(worker);
                command
            }
            Candidate::Supergateway => {
                let program = script("node_modules/supergateway/dist/index.js")?;
                let (program, quoted) = (&program[..], format!("'{}' {}", worker[0], worker[1..].join(" ")));
                let mut command =
                    with(&self.node, &[program, "--stdio", &quoted, "--logLevel", "none", "--port", &port])?;
                match address {
                    Address::Http(_) => command.args(["--outputTransport", "streamableHttp", "--stateful"]),
                    _ => command.args(["--outputTransport", "ws"]),
                };
                command
            }
            Candidate::McpProxy => {
                let mut command = with(&self.mcp_proxy, &["--port", &port, "--log-level", "ERROR", "--"])?;
                command.args(worker);
                command
            }
            Candidate::Stdio2http => {
                let mut command =
                    with(&self.stdio2http, &["--log-level", "error", "--port", &port, "--command", &worker[0]])?;
                command.args(worker[1..].iter().map(|word| format!("--arg={word}")));
                command
            }
        })
    }
}

/// The worker program of a case.
pub fn worker(traffic: Traffic, harness: &Harness) -> PathBuf {
    let program = match traffic {
        Traffic::RoundTrips { .. } => harness.bus.clone(),
        Traffic::Calls { .. } | Traffic::Tokens { .. } => this_program(),
    };
    program.canonicalize().unwrap_or(program)
}

/// Starts a contestant for a case, and lets its clients talk once, so that all workers exist.
pub fn begin(candidate: Candidate, case: &Case, harness: &Harness, launch: &Launch) -> Result<(Talk, Running), String> {
    let placement = placement(case);
    let program = worker(case.traffic, harness);
    let mut words = vec![program.display().to_string()];
    words.extend(match case.traffic {
        Traffic::RoundTrips { .. } => vec!["worker".to_owned(), "echo".to_owned()],
        Traffic::Calls { bytes, .. } => vec![TOOLS.to_owned(), bytes.to_string()],
        Traffic::Tokens { lines, bytes } => {
            let sessions = if case.each { 1 } else { case.clients };
            vec!["be-stream-worker".to_owned(), sessions.to_string(), lines.to_string(), bytes.to_string()]
        }
    });
    let text = |error: std::io::Error| error.to_string();
    let (running, address) = match candidate {
        Candidate::Bus | Candidate::Peer => daemon(candidate, case, harness, launch, &words, placement)?,
        Candidate::Haproxy => {
            // It has the measured CPU for itself.
            let behind = Placement { daemon: placement.workers, ..placement };
            let (behind, address) = daemon(Candidate::Bus, case, harness, launch, &words, behind)?;
            let (files, to) = (scratch().map_err(text)?, address.port().map_err(text)?);
            let address = address_of(candidate, case.transport, &files)?;
            let configuration = files.join("haproxy.cfg");
            std::fs::write(&configuration, forwards(address.port().map_err(text)?, to)).map_err(text)?;
            let mut command = Command::new(launch.haproxy.clone()?);
            command.arg("-f").arg(configuration);
            (start(command, &address, files, placement).map_err(text)?.before(behind), address)
        }
        _ => {
            let files = scratch().map_err(text)?;
            let address = address_of(candidate, case.transport, &files)?;
            let command = launch.command(candidate, &address, &words)?;
            (start(command, &address, files, placement).map_err(text)?, address)
        }
    };
    let talk = || -> std::io::Result<Talk> {
        let mut talk = Talk::connect(&address, case.traffic, case.clients, case.window, case.anew)?;
        talk.run(std::time::Duration::ZERO)?;
        running.pin_workers(&program, placement);
        Ok(talk)
    };
    let talk = talk().map_err(text)?;
    Ok((talk, running))
}

/// The configuration of HAProxy that forwards all requests from one port to another.
fn forwards(from: u16, to: u16) -> String {
    format!(
        "global
    nbthread 1
    maxconn 1000
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend clients
    bind 127.0.0.1:{from}
    default_backend daemons
backend daemons
    server daemon 127.0.0.1:{to}
"
    )
}

fn daemon(
    candidate: Candidate,
    case: &Case,
    harness: &Harness,
    launch: &Launch,
    words: &[String],
    placement: Placement,
) -> Result<(Running, Address), String> {
    let mut pool = json!({ "id": "bench", "command": words[0], "args": words[1..], "instances": 1 });
    if case.each {
        pool["assignment"] = json!("dedicated");
        pool["max_instances"] = json!(case.clients);
    } else if matches!(case.traffic, Traffic::Calls { .. }) {
        pool["assignment"] = json!("client");
    }
    let contestant = if candidate == Candidate::Peer { Contestant::Peer } else { Contestant::Bus };
    if candidate == Candidate::Peer {
        launch.peer.clone()?;
    }
    let server = harness.start(contestant, &[pool], case.transport, placement);
    let server = server.map_err(|error| error.to_string())?;
    let address = server.address.clone();
    Ok((Running::Daemon(server), address))
}

/// A client with one request at a time shares the CPU of its server: see [`Placement`].
fn placement(case: &Case) -> Placement {
    Placement::choose(case.clients * case.window == 1)
}

/// The listen address of another server.
fn address_of(candidate: Candidate, transport: Transport, files: &Path) -> Result<Address, String> {
    let address = Address::free(transport, files).map_err(|error| error.to_string())?;
    Ok(match address {
        Address::WebSocket { port, .. } => {
            Address::WebSocket { port, path: if candidate == Candidate::Supergateway { "/message" } else { "/" } }
        }
        other => other,
    })
}

/// The name of a daemon with our command line: another version of this one, or the one in C, which does not report its
/// version.
fn name_of(program: &Path) -> String {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let said =
        output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    if said.starts_with("stdio_bus ") { format!("peer, {said}") } else { "C daemon".to_owned() }
}
