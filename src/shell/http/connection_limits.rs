//! Limits of HTTP connections (status 429 and 503): how many a listener has, in total and of one source, and which is
//! evicted when all places are taken.
//!
//! A connection gets its place with the head of its first request, when it is known who sends it. Until then it is read
//! beyond the places, so that health checks are answered, and those without a place get the reason.

use super::exchange::{Exchange, State};
use super::http_clients::{QueuedMessage, RequestContext};
use crate::access::Refusal;
use crate::bus::admission::{Rejection, most_of_source};
use crate::bus::port::{Input, Moment, Reason, Source};
use crate::bus::{Dialect, cancellation};
use crate::io::Io;
use crate::mcp::{Fault, Message};
use crate::shell::connection_counts::Purpose;
use crate::shell::connections::HttpSlot;
use crate::shell::reactor::Reactor;
use crate::shell::turn::Shell;

/// Why a request is given up for another one: its source has `held` of all `places`.
pub(super) fn evicted(places: usize, what: &str, held: usize) -> Fault {
    let why = format!(
        "evicted to make room for another request: all {places} {what} are in use, {held} of them by your source; retry \
         with fewer in parallel"
    );
    Fault::too_many(Reason::ConnectionLimit, why)
}

impl<I: Io> Shell<I> {
    /// Makes room for reading one more connection. False if there is none.
    pub(in crate::shell) fn make_room_for_http(&mut self, now: Moment, source: Source) -> bool {
        let Reactor { connections, http, .. } = &mut self.reactor;
        if connections.counts.has_room(Purpose::Requests) {
            return true;
        }
        let most = connections.counts.count(Purpose::Requests);
        let (victim, shares) =
            connections.eviction_victim(now, most, Some(source), |_, it| it.purpose == Purpose::Requests);
        let Some(slot) = victim else {
            if http.throttle.may_report(now) {
                tracing::warn!(
                    reason = "accept_paused",
                    "all {most} connections over HTTP wait for answers or hold streams; new ones are closed"
                );
            }
            return false;
        };
        let fault = evicted(most, WHAT, shares.held_by(connections[HttpSlot(slot)].counted_as.source()));
        self.give_up(now, slot, &fault);
        true
    }

    /// The head of a request of this source has come: its connection needs a place.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn find_place(&mut self, slot: usize, source: Source) -> Result<(), Fault> {
        let now = self.reactor.clock.now();
        let Exchange { listener, counted_as, .. } = &self.reactor.connections[HttpSlot(slot)];
        let (listener, has_place) = (*listener, counted_as.has_place());
        let is_known = has_place && counted_as.source() == source;
        self.reactor.connections.counts_for(slot, source);
        let most = self.bus.view().max_connections(listener);
        let is_other = |at: usize, it: &Exchange| at != slot && it.counted_as.has_place();
        if let Some(most) = most.per_source.filter(|_| !is_known) {
            let is_own = |at: usize, it: &Exchange| {
                is_other(at, it) && it.listener == listener && it.counted_as.source() == source
            };
            let own = self.reactor.connections.counts.at(listener, Some(source)).placed;
            let others = own - usize::from(has_place);
            for _ in most..=others {
                // One that is idle, or whose request does not arrive: no request that a worker may have is given up for
                // another one of the same source.
                let (Some(victim), _) = self.reactor.connections.eviction_victim(now, most, Some(source), is_own)
                else {
                    return Err(Refusal::from(most_of_source(most)).into());
                };
                let fault = evicted(most, "connections of one source", most);
                self.give_up(now, victim, &fault);
            }
        }
        if has_place {
            return Ok(());
        }
        if let Some(total) =
            most.total.filter(|total| self.reactor.connections.counts.at(listener, None).placed >= *total)
        {
            let is_at_listener = |at: usize, it: &Exchange| is_other(at, it) && it.listener == listener;
            self.make_place(now, total, " of this listener", source, is_at_listener)?;
        }
        if self.reactor.connections.counts.has_no_place() {
            let places = self.reactor.connections.counts.places();
            self.make_place(now, places, " over HTTP", source, is_other)?;
        }
        self.reactor.connections.set_placed(slot);
        Ok(())
    }

    /// One of these gives way to a connection of this source.
    ///
    /// # Errors
    /// None does.
    fn make_place(
        &mut self,
        now: Moment,
        places: usize,
        whose: &str,
        source: Source,
        is_chosen: impl Fn(usize, &Exchange) -> bool,
    ) -> Result<(), Fault> {
        let (victim, shares) = self.reactor.connections.eviction_victim(now, places, Some(source), is_chosen);
        let victim = victim.ok_or_else(|| Refusal::from(Rejection::full(&shares, whose)))?;
        let held = shares.held_by(self.reactor.connections[HttpSlot(victim)].counted_as.source());
        self.give_up(now, victim, &evicted(places, WHAT, held));
        Ok(())
    }

    /// A connection gives its place up: what was asked on it gets this error, and workers are notified that nobody waits for
    /// it any more. What is silent, or only reads its answer, is closed.
    pub(in crate::shell) fn give_up(&mut self, now: Moment, slot: usize, fault: &Fault) {
        let Reactor { connections, http, .. } = &mut self.reactor;
        connections.set_unplaced(slot);
        let connection = &mut connections[HttpSlot(slot)];
        let member = connection.member.and_then(|client| http.clients.get(client));
        match connection.state {
            State::Header | State::Reading if connection.incoming.asked.is_some() => self.fail_http(now, slot, fault),
            // Its descriptor is needed at once: while there is no room to read heads, they are not answered.
            State::Header | State::Reading if !connection.is_silent() => {
                let (place, protocol) = (connection.origin.place, self.reactor.protocol(slot).name());
                let text =
                    format!("a connection for {protocol} is closed before its request was complete: {}", fault.why);
                self.reactor.dispatch(now, Input::ConnectionRejected { place, reason: fault.reason(), text });
                self.reactor.close_http(now, slot);
            }
            State::Parked => {
                connection.incoming.is_last = true;
                let id = connection.incoming.parked.as_ref().and_then(|message| message.id()).map(<[u8]>::to_vec);
                self.reactor.refuse_http(now, slot, fault, id.as_deref());
            }
            State::Events if member.is_some_and(|member| member.kind.kept().keeps_streams()) => {
                self.reactor.close_http(now, slot)
            }
            State::Waiting | State::Events => self.give_exchange_up(now, slot, fault.clone()),
            _ => self.reactor.close_http(now, slot),
        }
    }

    /// Gives up what a connection waits for.
    fn give_exchange_up(&mut self, now: Moment, slot: usize, mut fault: Fault) {
        let Reactor { connections, http, .. } = &mut self.reactor;
        let connection = &mut connections[HttpSlot(slot)];
        connection.incoming.is_last = true;
        let (stream, serial, asks) = (connection.stream, connection.serial, connection.asks.take());
        let owed = connection.outgoing.disown();
        let Some(client) = connection.member.take() else { return self.reactor.close_http(now, slot) };
        let Some(member) = http.clients.get_mut(client) else { return self.reactor.close_http(now, slot) };
        // What waits only to be taken by the core is taken back, but for what the core has begun to read.
        let is_its = |waiting: &mut QueuedMessage| {
            let is_its = waiting.waiter == Some((slot, serial));
            let is_begun = waiting.offered > 0;
            waiting.waiter = waiting.waiter.filter(|_| !(is_its && is_begun));
            is_its && !is_begun
        };
        let mut is_delivered = true;
        while let Some(at) = member.inbox.iter_mut().position(is_its) {
            let weight = member.inbox.remove(at).map_or(0, |waiting| waiting.message.weight());
            http.memory.held -= weight;
            is_delivered = false;
        }
        if is_delivered {
            fault = fault.delivered();
        }
        member.since = now;
        let (ids, has_left) = member.kind.give_up(slot, stream, asks.as_ref());
        let reactor = &mut self.reactor;
        let place = reactor.connections[HttpSlot(slot)].origin.place;
        let protocol = reactor.protocol(slot).name();
        let text = format!("a request for {protocol} is given up: {} ({})", fault.why, fault.status.code());
        reactor.dispatch(now, Input::ConnectionRejected { place, reason: fault.reason(), text });
        reactor.fail_exchange(now, slot, &fault, &ids);
        reactor.report_sent(now, client, owed);
        if has_left {
            return reactor.dispatch(now, Input::ClientLeft(client));
        }
        for id in ids {
            let line = cancellation(Dialect::Mcp, &id, "there is no room for it");
            if let Some(message) = Message::of_line(&line, &mut self.reactor.http.lines) {
                self.reactor.http.queue_message(client, message, RequestContext::default(), None);
                self.present_queued(now, client);
            }
        }
    }
}

/// What the places are for.
const WHAT: &str = "connections";
