//! The self-contained requests of 2026-07-28: those of one connection are a client, which ends with it. They are parked
//! until it is known whether the pool's command serves that revision.

use std::time::Duration;

use super::{ClientProtocol, needs_events};
use crate::bus::Known;
use crate::bus::eras::protocol::{LEGACY, MODERN};
use crate::bus::id::Id;
use crate::bus::port::{ClientKey, Input, Moment, PoolId};
use crate::bus::settings::Era;
use crate::http1::Status;
use crate::io::Io;
use crate::mcp::asked::Takes;
use crate::mcp::{Fault, Kind, Message, modern};
use crate::scan::{member, string_in};
use crate::shell::connections::HttpSlot;
use crate::shell::http::deliver::{Beginning, EventText, OutgoingLine};
use crate::shell::http::exchange::{Exchange, State, Unsent};
use crate::shell::http::http_clients::{HttpClient, HttpClientData, HttpClientKind, Modern};
use crate::shell::reactor::Reactor;
use crate::shell::turn::Shell;

/// Interval of checks whether a parked request may still learn the era of its pool's workers.
const PARKED: Duration = Duration::from_secs(1);

impl<I: Io> Shell<I> {
    /// Finds the workers of the last answers that carry a state.
    pub(super) fn look_up_states(&mut self) {
        for (client, state) in self.reactor.http.mcp.states.take_answered() {
            if let Some(worker) = self.bus.view().answered_by(client) {
                self.reactor.http.mcp.states.remember(state, worker);
            }
        }
    }

    /// Handles a message of 2026-07-28.
    pub(super) fn post_modern(&mut self, now: Moment, slot: usize, message: Message) -> Result<(), Fault> {
        let pool = self.pool_asked(slot)?;
        let era = self.bus.view().pool_era(pool);
        if era == Some(Era::Legacy) {
            return Err(self.legacy_server(pool, &message));
        }
        let Reactor { connections, http, .. } = &mut self.reactor;
        let connection = &mut connections[HttpSlot(slot)];
        let asked = connection.incoming.asked.as_ref().ok_or_else(Fault::no_session)?;
        modern::check(asked, &message)?;
        if era.is_none() {
            connection.state = State::Parked;
            http.memory.held += message.weight();
            connection.incoming.parked = Some(message);
            self.reactor.set_deadline(slot, now.after(PARKED));
            self.reactor.dispatch(now, Input::WakePool(pool));
            return Ok(());
        }
        self.give_modern(now, slot, pool, message)
    }

    /// Passes a message of 2026-07-28 to the core.
    fn give_modern(&mut self, now: Moment, slot: usize, pool: PoolId, message: Message) -> Result<(), Fault> {
        if self.reactor.connections[HttpSlot(slot)].takes() == Takes::JsonAlone
            && *message.method() == *b"subscriptions/listen"
        {
            return Err(needs_events("subscriptions/listen"));
        }
        let client = self.modern_http_client(now, slot, pool)?;
        let Reactor { connections, http, .. } = &mut self.reactor;
        let state = modern::request_state(&message);
        let worker = state.and_then(|state| http.mcp.states.worker(&state));
        self.bus.prefer_worker(client, worker);
        let is_request = message.kind() == Kind::Request;
        connections[HttpSlot(slot)].asks = message.id().filter(|_| is_request).and_then(|id| Id::parse(id).ok());
        self.await_answer(now, slot);
        self.hand_over(now, slot, client, message, !is_request);
        Ok(())
    }

    /// The client for a connection's self-contained requests.
    fn modern_http_client(&mut self, now: Moment, slot: usize, pool: PoolId) -> Result<ClientKey, Fault> {
        let Reactor { connections, http, .. } = &mut self.reactor;
        let connection = &connections[HttpSlot(slot)];
        let names = &connection.incoming.sender.origin.names;
        let is_it = |member: &&mut HttpClient| {
            member.is_of_one_connection() && !member.is_closing && member.pool == pool && member.is_of(names)
        };
        if let Some(client) = connection.member
            && let Some(member) = http.clients.get_mut(client).filter(is_it)
        {
            member.since = now;
            return Ok(client);
        }
        self.reactor.end_own_client(slot);
        let client = self.add_http_client(now, slot, pool, HttpClientKind::Modern(Modern { connection: slot }))?;
        self.reactor.connections[HttpSlot(slot)].member = Some(client);
        Ok(client)
    }

    /// The era of a pool's workers has become known: requests that were parked for it continue.
    pub(super) fn resume_parked(&mut self, now: Moment) {
        if !std::mem::take(&mut self.reactor.http.mcp.has_discovered) {
            return;
        }
        let connections = self.reactor.connections.all_http();
        let parked = connections.filter(|(_, _, it)| it.state == State::Parked).map(|(slot, ..)| slot);
        for slot in parked.collect::<Vec<_>>() {
            // An unknown pool is refused.
            if self.pool_asked(slot).map(|pool| self.bus.view().pool_era(pool)) != Ok(None) {
                self.unpark(now, slot);
            }
        }
    }

    /// A request has been parked for a while. If no worker is being asked, the core decides.
    pub(super) fn parked_due(&mut self, now: Moment, slot: usize) {
        if self.pool_asked(slot).is_ok_and(|pool| self.bus.view().asks_era(pool)) {
            return self.reactor.set_deadline(slot, now.after(PARKED));
        }
        self.unpark(now, slot);
    }

    /// Continues a parked request.
    fn unpark(&mut self, now: Moment, slot: usize) {
        let Reactor { connections, http, .. } = &mut self.reactor;
        let Some(connection) = connections.http_mut(slot).filter(|it| it.state == State::Parked) else { return };
        connection.state = State::Reading;
        let Some(message) = connection.incoming.parked.take() else { return };
        http.memory.held -= message.weight();
        let id = message.id().map(<[u8]>::to_vec);
        let is_late = self.bus.view().refuses_requests() && message.kind() == Kind::Request;
        let taken = if is_late { Err(Fault::shutting_down()) } else { self.still_admits(slot) };
        let result = taken.and_then(|()| self.pool_asked(slot)).and_then(|pool| match self.bus.view().pool_era(pool) {
            Some(Era::Legacy) => Err(self.legacy_server(pool, &message)),
            _ => self.give_modern(now, slot, pool, message),
        });
        if let Err(fault) = result {
            self.reactor.refuse_http(now, slot, &fault, id.as_deref());
        }
    }

    /// The refusal of a message of 2026-07-28 for a pool whose command does not serve that, or does not work at all.
    fn legacy_server(&self, pool: PoolId, message: &Message) -> Fault {
        let stderr_end = self
            .reactor
            .workers
            .last_stderr
            .get(&pool.index())
            .map_or_else(String::new, |line| format!("; its stderr ends: {line}"));
        let why = match self.bus.view().era_known(pool) {
            Known::Answered => format!("this server speaks MCP up to {LEGACY}; begin with initialize"),
            Known::Silent => format!(
                "the command of this pool runs and has not answered yet whether it serves MCP {MODERN}{stderr_end}; try again, \
                 or begin with initialize"
            ),
            Known::Ended => format!(
                "the command of this pool has ended each time before it answered whether it serves MCP {MODERN}{stderr_end}; \
                 it may not start at all, or only after initialize"
            ),
        };
        Fault::legacy_server(why, *message.method() == *b"server/discover")
    }
}

impl<I: Io> Reactor<I> {
    /// Delivers a line for a self-contained request. False if no connection waits for it.
    fn deliver_modern(
        &mut self,
        now: Moment,
        connection: usize,
        client: ClientKey,
        outgoing: &OutgoingLine<'_>,
    ) -> bool {
        let its = self.connections.http(connection).filter(|it| it.member == Some(client));
        let state = its.map(|it| it.state);
        let is_answer = outgoing.answers && outgoing.id.is_some();
        let takes = its.map_or(Takes::Either, Exchange::takes);
        // An error has a status of its own, which no stream of events has.
        let is_whole = is_answer && (takes != Takes::Events || outgoing.status() != Status::Ok);
        if is_answer && its.is_some() && self.comes_too_late(connection, outgoing) {
            self.refuse_too_late(now, connection, &Fault::shutting_down(), outgoing.id);
            return false;
        }
        match state {
            Some(State::Waiting) if is_whole => self.answer_whole(now, connection, outgoing.status(), outgoing, None),
            Some(State::Waiting) if takes == Takes::JsonAlone => {
                tracing::debug!("a message ahead of its answer is dropped: its client refuses text/event-stream (q=0)");
                return false;
            }
            Some(State::Waiting | State::Events) => {
                if state == Some(State::Waiting) {
                    self.begin_http_events(now, connection, &Beginning::default());
                }
                let text = match outgoing.place {
                    Some(_) => EventText::Shared(outgoing.data(&self.http.memory.in_place)),
                    None => EventText::Own(outgoing.text),
                };
                self.queue_event(now, connection, None, text, is_answer);
            }
            _ => return false,
        }
        let has_state = |text| memchr::memmem::find(text, b"requestState").is_some();
        if is_answer && [outgoing.head, outgoing.text].into_iter().any(has_state) {
            let text = outgoing.whole();
            let result = member(&text, b"result");
            if let Some(request_state) = result.and_then(|result| string_in(result, b"requestState")) {
                self.http.mcp.states.note(client, &request_state);
            }
        }
        true
    }
}

impl HttpClientData for Modern {
    fn id(&self) -> Option<&str> {
        None
    }

    fn connections(&self) -> Vec<usize> {
        vec![self.connection]
    }

    fn uses(&self) -> (bool, bool) {
        (true, true)
    }

    fn weight(&self) -> usize {
        0
    }

    fn forget(&mut self) -> usize {
        0
    }

    fn only_connection(&self) -> Option<usize> {
        Some(self.connection)
    }

    fn era(&self) -> Option<Era> {
        Some(Era::Modern)
    }
}

impl ClientProtocol for Modern {
    fn deliver<I: Io>(
        reactor: &mut Reactor<I>,
        now: Moment,
        client: ClientKey,
        outgoing: &OutgoingLine<'_>,
        _bytes: usize,
    ) -> bool {
        let Some(member) = reactor.http.clients.get(client) else { return false };
        let HttpClientKind::Modern(Self { connection }) = member.kind else { return false };
        reactor.deliver_modern(now, connection, client, outgoing)
    }

    /// This cancels its request (MCP 2026-07-28, "Cancellation").
    fn half_closed<I: Io>(reactor: &mut Reactor<I>, now: Moment, slot: usize) {
        reactor.close_http(now, slot);
    }

    fn left<I: Io>(reactor: &mut Reactor<I>, now: Moment, _slot: usize, client: ClientKey, unsent: Unsent) {
        reactor.end_delivery(now, client, 0, unsent.owed, true);
    }

    fn give_up(&mut self, _slot: usize, _stream: u32, asks: Option<&Id>) -> (Vec<Vec<u8>>, bool) {
        (asks.into_iter().map(Id::token).collect(), true)
    }
}
