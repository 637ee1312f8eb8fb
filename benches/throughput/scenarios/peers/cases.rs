//! The compared cases, and their contestants.

use crate::harness::address::Transport;
use crate::harness::load::Traffic;

/// A contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidate {
    /// The daemon.
    Bus,
    /// The one that `STDIO_BUS_PEER` names.
    Peer,
    /// Starts a worker for each connection.
    Socat,
    /// The same with frames.
    Websocketd,
    Websocat,
    /// The same, written naively.
    Node,
    /// WebSocket with one worker, or MCP with a worker for each session.
    Supergateway,
    /// MCP with one worker.
    McpProxy,
    /// MCP 2026-07-28 with one worker.
    Stdio2http,
    /// Only forwards the requests of MCP, with one thread, to a daemon that counts as a worker.
    Haproxy,
}

impl Candidate {
    /// The daemon's name in tables.
    pub const NAME: &str = "stdio_bus";
}

/// A case, and its contestants.
pub struct Case {
    /// Its name in the table and on the command line.
    pub name: &'static str,
    /// The transport of the clients.
    pub transport: Transport,
    /// Whether each connection has a worker of its own.
    pub each: bool,
    /// Number of clients.
    pub clients: usize,
    /// Requests in flight per client.
    pub window: usize,
    pub traffic: Traffic,
    /// Each request has a connection of its own.
    pub anew: bool,
    /// The contestants besides the daemon.
    pub others: &'static [Candidate],
}

const ECHO: Traffic = Traffic::RoundTrips { bytes: 200 };
const CALL: Traffic = Traffic::Calls { bytes: 100, is_modern: false };
const MODERN: Traffic = Traffic::Calls { bytes: 220, is_modern: true };
const TOKENS: Traffic = Traffic::Tokens { lines: 200, bytes: 200 };
const WEB: Transport = Transport::WebSocket { ping_sec: 0 };

const SHARED: &[Candidate] = &[Candidate::Peer];
const FORKING: &[Candidate] = &[Candidate::Socat];
const FRAMES: &[Candidate] = &[Candidate::Websocketd, Candidate::Websocat, Candidate::Node];
const BRIDGES: &[Candidate] = &[Candidate::Supergateway, Candidate::McpProxy];
const BRIDGES_AND_FORWARDER: &[Candidate] = &[Candidate::Supergateway, Candidate::McpProxy, Candidate::Haproxy];

const fn case(
    name: &'static str,
    transport: Transport,
    clients: usize,
    traffic: Traffic,
    others: &'static [Candidate],
) -> Case {
    Case { name, transport, each: false, clients, window: 1, traffic, anew: false, others }
}

/// The same case with a worker for each connection.
const fn each(case: Case) -> Case {
    Case { each: true, ..case }
}

/// In the order in which they run.
pub const CASES: &[Case] = &[
    case("TCP, a client", Transport::Tcp, 1, ECHO, &[Candidate::Peer, Candidate::Socat]),
    case("TCP, 8 clients, a worker", Transport::Tcp, 8, ECHO, SHARED),
    case("TCP, 64 clients, a worker", Transport::Tcp, 64, ECHO, SHARED),
    Case { window: 4, ..each(case("TCP, 16 clients, a worker each", Transport::Tcp, 16, ECHO, FORKING)) },
    case("Unix, 8 clients, a worker", Transport::Unix, 8, ECHO, SHARED),
    case("Unix, 64 clients, a worker", Transport::Unix, 64, ECHO, SHARED),
    Case { window: 4, ..each(case("Unix, 16 clients, a worker each", Transport::Unix, 16, ECHO, FORKING)) },
    case("tokens, TCP, 16 sessions, a worker", Transport::Tcp, 16, TOKENS, SHARED),
    each(case("tokens, TCP, 16 clients, a worker each", Transport::Tcp, 16, TOKENS, FORKING)),
    Case { window: 4, ..case("WebSocket, 32 clients, a worker", WEB, 32, ECHO, &[Candidate::Supergateway]) },
    Case { window: 4, ..each(case("WebSocket, 16 clients, a worker each", WEB, 16, ECHO, FRAMES)) },
    each(case("tokens, WebSocket, 16 clients, a worker each", WEB, 16, TOKENS, FRAMES)),
    case("MCP, a session", Transport::Http, 1, CALL, BRIDGES_AND_FORWARDER),
    case("MCP, 8 sessions", Transport::Http, 8, CALL, BRIDGES),
    case("MCP, 16 sessions", Transport::Http, 16, CALL, BRIDGES_AND_FORWARDER),
    Case { anew: true, ..case("MCP, a session, new connections", Transport::Http, 1, CALL, BRIDGES) },
    Case { anew: true, ..case("MCP, 16 sessions, new connections", Transport::Http, 16, CALL, BRIDGES) },
    case("MCP 2026-07-28, 16 clients", Transport::Http, 16, MODERN, &[Candidate::Stdio2http]),
];
