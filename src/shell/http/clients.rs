//! Starts and ends clients of the core: sessions with `initialize`, and clients of connections with their first request
//! of 2026-07-28. If the core has no free slot, an idle one is evicted.

use std::collections::VecDeque;

use super::connection_limits::evicted;
use super::http_clients::{HttpClient, HttpClientKind, Restoring};
use crate::access::Refusal;
use crate::bus::origin::Names;
use crate::bus::port::{ClientKey, Input, Moment, Peer, PoolId, Reason};
use crate::bus::shares::Shares;
use crate::io::Io;
use crate::mcp::Fault;
use crate::shell::connections::HttpSlot;
use crate::shell::reactor::Reactor;
use crate::shell::timers::Timer;
use crate::shell::turn::Shell;

impl<I: Io> Shell<I> {
    /// Adds a client of the core for the sender of a connection's request.
    pub(super) fn add_http_client(
        &mut self,
        now: Moment,
        slot: usize,
        pool: PoolId,
        kind: HttpClientKind,
    ) -> Result<ClientKey, Fault> {
        let connection = &mut self.reactor.connections[HttpSlot(slot)];
        let (listener, sender) = (connection.listener, connection.incoming.sender.clone());
        // What it brings is its client's from now on.
        connection.incoming.sender.credentials = None;
        if self.bus.view().free_slots() == 0 && self.bus.view().would_take_in_a_slot(listener, &sender.origin) {
            let shares =
                Shares::new(self.bus.view().most_clients(), self.bus.view().sources(), Some(sender.origin.source()));
            self.evict_http_client(now, slot, &shares, |_| true);
        } else if let Some(total) = self.bus.view().full_listener(listener)
            && self.bus.view().may_ask(listener, &sender.origin).is_ok()
        {
            let here = self.reactor.http.clients.iter().filter(|member| member.listener == listener);
            let shares = Shares::new(total, here.map(|member| (member.source, 1)), Some(sender.origin.source()));
            self.evict_http_client(now, slot, &shares, |member| member.listener == listener);
        }
        self.bus.view().would_take(listener, &sender.origin).map_err(Refusal::from)?;
        let (source, names) = (sender.origin.source(), Names::clone(&sender.origin.names));
        let pools = sender.origin.pools.clone();
        let (client, effects) = match kind.kept().era() {
            Some(era) => self.bus.connect_mcp(now, listener, sender.origin.clone(), pool, era),
            None => self.bus.connect(now, listener, sender.origin.clone()),
        };
        if let Some(client) = client {
            self.reactor.notify.changed();
            self.reactor.listeners.grants.keep(client, listener, &sender);
            self.reactor.http.clients.add(HttpClient {
                client,
                kind,
                pool,
                listener,
                source,
                names,
                pools,
                inbox: VecDeque::new(),
                is_resumed: false,
                is_paused: false,
                is_closing: false,
                is_flushing: false,
                restoring: Restoring::No,
                record: None,
                since: now,
                visitors: 0,
                detached: None,
            });
        }
        self.reactor.carry_out(effects, None);
        self.reactor.limit_handshakes(now, self.bus.view().free_slots());
        let members = &self.reactor.http.clients;
        let added = client.filter(|client| members.get(*client).is_some_and(|member| !member.is_closing));
        added.ok_or_else(|| Fault::busy("no client is accepted now"))
    }

    /// All slots, or all of a listener, are taken: ends one of these clients for another one, if their shares permit it.
    /// Of the source with most that is one without a request, first those of connections, then the session that has been
    /// idle longest; or else one with a request. The connection `but` asks.
    fn evict_http_client(&mut self, now: Moment, but: usize, shares: &Shares, is_chosen: impl Fn(&HttpClient) -> bool) {
        let Reactor { connections, http, .. } = &self.reactor;
        let standing = |member: &HttpClient| match member.kind.kept().only_connection() {
            _ if member.is_closing => None,
            Some(connection) if connection == but => None,
            Some(connection) => Some((connections.is_idle(connection), 0)),
            None => match member.kind.kept().uses() {
                (false, _) => Some((true, 1)),
                // Its stream waits for what may never come.
                (true, false) => Some((false, 1)),
                (true, true) => Some((false, 2)),
            },
        };
        let rank = |member: &HttpClient| {
            let (is_idle, class) = standing(member)?;
            let turn = shares.turn(member.source, is_idle)?;
            let is_newest_first = !is_idle && class != 1;
            let age = if is_newest_first { u64::MAX - member.since.0 } else { member.since.0 };
            Some((turn, class, age))
        };
        let chosen = http.clients.iter().filter(|member| is_chosen(member));
        let ranked = chosen.filter_map(|member| rank(member).map(|rank| (rank, member.client)));
        let Some((_, client)) = ranked.min_by_key(|(rank, _)| *rank) else { return };
        let Some(member) = http.clients.get(client) else { return };
        match member.kind.kept().only_connection() {
            Some(connection) if !connections.is_idle(connection) => {
                let held = shares.held_by(member.source);
                let fault = evicted(shares.capacity, "slots for clients", held);
                self.step(|shell| shell.give_up(now, connection, &fault));
            }
            _ => {
                self.step(|shell| shell.reactor.dispatch(now, Input::EndClient { client, why: Reason::SessionEvicted }))
            }
        }
    }
}

impl<I: Io> Reactor<I> {
    /// A connection carries a request of this session now, or of none, or is gone.
    pub(super) fn visit(&mut self, now: Moment, slot: usize, session: Option<ClientKey>) {
        let before = std::mem::replace(&mut self.connections[HttpSlot(slot)].visits, session);
        if before == session {
            return;
        }
        if let Some(member) = session.and_then(|client| self.http.clients.get_mut(client)) {
            let client = member.client;
            member.visitors += 1;
            if member.detached.take().is_some() {
                self.dispatch(now, Input::Detached { client, is_detached: false });
            }
        }
        if let Some(member) = before.and_then(|client| self.http.clients.get_mut(client)) {
            let client = member.client;
            member.visitors -= 1;
            if member.visitors == 0 {
                member.detached = Some(now);
                if let Some(limit) = self.http.session_detached {
                    self.timers.set(Timer::Session(client), Some(now.after(limit.min(self.http.session_idle))));
                }
                self.dispatch(now, Input::Detached { client, is_detached: true });
            }
        }
    }

    /// Ends the client that is the requests of this connection alone, since it sends something else now.
    pub(super) fn end_own_client(&mut self, slot: usize) {
        let Some(client) = self.connections[HttpSlot(slot)].member.take() else { return };
        let Some(member) = self.http.clients.get(client) else { return };
        if member.kind.kept().only_connection() == Some(slot) {
            self.dispatch(self.clock.now(), Input::ClientLeft(client));
        }
    }

    /// The request of a connection is done.
    pub(super) fn release_http(&mut self, slot: usize) {
        let connection = &mut self.connections[HttpSlot(slot)];
        let Some(member) = connection.member.and_then(|client| self.http.clients.get_mut(client)) else {
            connection.member = None;
            return;
        };
        member.since = self.clock.now();
        let client = member.client;
        if !member.is_of_one_connection() {
            connection.member = None;
        }
        self.answered_by_role(self.clock.now(), slot, client);
    }

    /// A connection has gone.
    pub(super) fn detach_http(&mut self, now: Moment, slot: usize) {
        debug_assert!(self.connections[slot].is_closing());
        self.visit(now, slot, None);
        let connection = &mut self.connections[HttpSlot(slot)];
        let unsent = connection.outgoing.give_up();
        if let Some(client) = connection.member.take() {
            self.left_by_role(now, slot, client, unsent);
        }
    }

    /// Reports to the core that bytes of its lines for a member are off its hands. One that it is closing will send nothing,
    /// and is closed once there are no more of them.
    pub(super) fn report_sent(&mut self, now: Moment, client: ClientKey, bytes: usize) {
        let peer = Peer::Client(client);
        if bytes == 0 {
            return;
        }
        self.dispatch(now, Input::Sent { peer, bytes });
        if self.http.clients.get(client).is_some_and(|member| member.is_flushing) {
            self.dispatch(now, Input::InputEnded { peer, partial: 0 });
        }
    }
}
