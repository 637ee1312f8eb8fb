//! All that speaks HTTP: requests of clients (the Streamable HTTP of MCP and of ACP), requests of operators, which `admin`
//! answers, and handshakes, which `handshakes` handles.
//!
//! Where clients are requests, connections come and go, and a connection is not a client: it uses none of the core's slots.
//! Its messages are read completely here, and passed to the core as lines of their client, which is a session, or what
//! else the protocol says; the core's output for a client is sent on the connection that the protocol says.
//!
//! Reading order: `service.rs` (what a connection is for), `exchange.rs`, `serve.rs` (moves bytes), `requests.rs`
//! (reads the requests of clients), `http_clients.rs` (the clients), `clients.rs` (they start and end),
//! `connection_limits.rs` (who has a place), `protocols` (what clients speak), `deliver.rs` (the core's output),
//! `held_answers.rs` (long answers).

mod clients;
mod connection_limits;
mod deliver;
pub(super) mod exchange;
mod held_answers;
mod http_clients;
mod protocols;
mod requests;
mod serve;
pub(super) mod service;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use hashbrown::HashMap;

use super::connections::{Connections, HttpSlot};
use super::listeners::Throttle;
use super::transport::Transport;
use crate::bus::port::{Peer, Source};
use crate::config::Config;
use crate::mcp::message::LineReader;
use exchange::Exchange;
use held_answers::Blocks;
pub(super) use http_clients::HttpClients;
use protocols::mcp::states::OfMcp;

/// Default idle timeout of a session.
const SESSION_IDLE: Duration = Duration::from_secs(1800);

#[derive(Default)]
pub(super) struct Http {
    pub clients: HttpClients,
    /// Connections with a body that the scanner is behind with.
    behind: Vec<usize>,
    /// What MCP keeps beside its clients.
    pub mcp: OfMcp,
    lines: LineReader,
    /// A line from the core, with padding for the scanner.
    padded: Vec<u8>,
    memory: Memory,
    /// The idle timeout of sessions.
    session_idle: Duration,
    /// How long a session may have no connection, if that is limited.
    session_detached: Option<Duration>,
    throttle: Throttle,
    /// A message is being passed to the core, which takes no requests any more: an answer to it is the core's refusal.
    refuses_requests: bool,
}

/// Memory used for MCP, in bytes.
#[derive(Default)]
struct Memory {
    /// Bodies and queued messages.
    held: usize,
    /// Events kept by sessions, and queued output.
    kept: usize,
    /// Events kept by sessions.
    logs: usize,
    /// Posted bodies that lie in the queues of workers.
    posted: Rc<Cell<usize>>,
    /// Long answers that are kept, or sent as events, where they were received.
    in_place: Rc<Blocks>,
    /// Limit of what may be held, of all sessions' kept events that are no answers, and of their answers.
    most: usize,
}

impl Memory {
    /// Updates what is kept from `before` to `now`.
    fn keep(&mut self, before: usize, now: usize) {
        self.kept = self.kept - before + now;
    }

    /// Updates what a session keeps from `before` to `now`.
    fn keep_log(&mut self, before: usize, now: usize) {
        self.keep(before, now);
        self.logs = self.logs - before + now;
    }
}

impl Http {
    /// Empty.
    pub(super) fn new(config: &Config) -> Self {
        let mut http = Self::default();
        http.configure(config);
        http
    }

    /// Applies the limits of this configuration.
    pub(super) fn configure(&mut self, config: &Config) {
        self.memory.most = config.limits.max_memory / 4;
        self.session_idle = config.limits.session_idle.unwrap_or(SESSION_IDLE);
        self.session_detached = config.limits.session_detached;
    }

    /// The idle timeout of sessions.
    pub(super) fn session_idle(&self) -> Duration {
        self.session_idle
    }

    /// Whether there is work that can be done at once.
    pub(super) fn is_busy(&self) -> bool {
        let has_turns = !self.clients.resumed.is_empty() || !self.behind.is_empty();
        has_turns || self.mcp.is_busy()
    }

    /// Memory used by data queued for workers and clients, in bytes.
    pub(super) fn held(&self) -> usize {
        let Memory { held, kept, posted, in_place, .. } = &self.memory;
        // What is in place counts as lent already; until its connection is weighed it counts as nothing else.
        (held + kept + posted.get()).saturating_sub(in_place.weight())
    }

    /// A connection is removed: what it had queued is not kept any more.
    pub(super) fn forget(&mut self, exchange: &mut Exchange) {
        self.memory.keep(std::mem::take(&mut exchange.outgoing.weighed), 0);
    }

    /// Updates the accounting of what a connection has queued; admin connections, which are few, are not counted.
    fn weigh(&mut self, connections: &mut Connections, slot: usize) {
        let connection = &mut connections[HttpSlot(slot)];
        if connection.is_operators() {
            return;
        }
        let weight = connection.queued();
        self.memory.keep(std::mem::replace(&mut connection.outgoing.weighed, weight), weight);
    }

    /// Panics if the accounting is wrong.
    #[cfg(test)]
    pub(super) fn check(&self, connections: &Connections) {
        let bodies = connections.all_http().map(|(_, _, exchange)| exchange.incoming.weight());
        let waiting = self.clients.iter().map(|member| member.waiting());
        assert_eq!(self.memory.held, bodies.chain(waiting).sum::<usize>(), "what is held is counted");
        for member in self.clients.iter().filter(|member| member.kind.kept().id().is_some()) {
            let visits = |it: &Exchange| it.visits == Some(member.client);
            let visitors = connections.all_http().filter(|(_, _, exchange)| visits(exchange)).count();
            assert_eq!((member.visitors, member.detached.is_some()), (visitors, visitors == 0), "visitors are counted");
        }
        let events = || self.clients.iter().map(|member| member.kept());
        let logs = self.clients.iter().filter(|member| member.is_session());
        assert_eq!(self.memory.logs, logs.map(|member| member.kept()).sum::<usize>(), "events are counted");
        let outputs = connections.all_http().map(|(_, _, exchange)| exchange.outgoing.weighed);
        assert_eq!(self.memory.kept, events().chain(outputs).sum::<usize>(), "what is kept is counted");
    }

    /// Whether there are no connections, no sessions, and nothing queued.
    #[cfg(test)]
    pub(super) fn is_deserted(&self, connections: &Connections) -> bool {
        connections.all_http().next().is_none() && self.clients.iter().next().is_none() && self.held() == 0
    }

    /// What is left of clients, for a test that expects none.
    #[cfg(test)]
    pub(super) fn left(&self) -> Vec<String> {
        let show = |member: &http_clients::HttpClient| {
            let kind = match &member.kind {
                http_clients::HttpClientKind::Session(_) => "a session of MCP",
                http_clients::HttpClientKind::Modern { .. } => "requests of MCP",
                http_clients::HttpClientKind::Acp(_) => "a connection of ACP",
            };
            let http_clients::HttpClient { client, since, is_closing, visitors, .. } = member;
            format!("{kind} ({client:?}) since {since:?}, closing {is_closing}, {visitors} visitors")
        };
        self.clients.iter().map(show).collect()
    }

    /// How much of that, and of what is kept or queued for sending, each client holds.
    pub(super) fn holders(&self, connections: &Connections) -> impl Iterator<Item = (Peer, usize)> {
        let mut of_connections: HashMap<usize, usize> = HashMap::new();
        for (client, weight) in connections.all_http().filter_map(|(_, _, it)| Some((it.member?, it.weight()))) {
            if self.clients.get(client).is_some() {
                *of_connections.entry(client.index()).or_default() += weight;
            }
        }
        self.clients.iter().map(move |member| {
            let queued = of_connections.get(&member.client.index()).copied().unwrap_or_default();
            (Peer::Client(member.client), queued + member.kept() + member.waiting())
        })
    }

    /// What connections hold that no client is charged for, since it has ended or is not known yet, by their sources.
    fn strays(&self, connections: &Connections) -> HashMap<Source, usize> {
        let mut strays = HashMap::new();
        for (_, _, exchange) in connections.all_http().filter(|(_, transport, it)| self.is_stray(transport, it)) {
            *strays.entry(exchange.source()).or_default() += exchange.weight();
        }
        strays
    }

    fn is_stray(&self, transport: &Transport, exchange: &Exchange) -> bool {
        let has_client = exchange.member.is_some_and(|client| self.clients.get(client).is_some());
        !has_client && !exchange.is_operators() && !transport.is_closing()
    }

    /// The heaviest connection without a client, of the source whose connections without one hold most; and how much all
    /// of those hold.
    pub(super) fn heaviest_stray(&self, connections: &Connections) -> Option<(usize, usize)> {
        let strays = self.strays(connections);
        let own = connections.all_http().filter(|(_, transport, it)| self.is_stray(transport, it) && it.weight() > 0);
        let rank = |it: &Exchange| (strays.get(&it.source()).copied().unwrap_or_default(), it.weight());
        let (slot, _, heaviest) = own.max_by_key(|(_, _, it)| rank(it))?;
        Some((slot, rank(heaviest).0))
    }
}
