//! Handles the requests of admin connections, which `http/serve.rs` reads and writes. One piece of an answer is produced
//! per turn of the loop, however many connections wait.

use std::cell::OnceCell;
use std::time::Duration;

use super::access::Origin;
use super::audit::{self, Who};
use super::history::{EVERY, History};
use super::request::{AdminRequest, LIMITS};
use super::response::{AdminBody, Response, Rest};
use super::route::{Act, is_action, route};
use super::view::View;
use super::{Admin, Operator};
use crate::bus::overview::Questions;
use crate::bus::port::Moment;
use crate::http1::{self, Framing, Status};
use crate::io::Io;
use crate::mcp::Fault;
use crate::shell::connection_counts::{MOST_OPERATORS, Purpose};
use crate::shell::connections::HttpSlot;
use crate::shell::http::exchange::{Accepted, Exchange, State};
use crate::shell::http::service::Service;
use crate::shell::log;
use crate::shell::reactor::Reactor;
use crate::shell::timers::{Timer, Timers};
use crate::shell::transport::PendingOp;
use crate::shell::turn::Shell;

/// Bytes that are produced before they are sent.
const PIECE: usize = 16 * 1024;
/// A connection whose answer takes longer than this may be evicted.
const SLOW: Duration = Duration::from_secs(1);

/// The requests of operators, as a service of HTTP. Their heads have all that is asked for.
pub(in crate::shell) struct OperatorRequests;

impl Service for OperatorRequests {
    fn head<I: Io>(
        shell: &mut Shell<I>,
        _now: Moment,
        slot: usize,
        head: &http1::Request<'_>,
        _begun: &[u8],
    ) -> Result<(), Fault> {
        let request = AdminRequest::of(head).map_err(|error| Fault::new(error.status, error.why))?;
        shell.admin.operator(slot).request = Some(request);
        Ok(())
    }

    fn request<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize) {
        shell.answer_operator(now, slot);
    }

    fn fail<I: Io>(shell: &mut Shell<I>, now: Moment, slot: usize, fault: &Fault) {
        shell.fail_operator(now, slot, fault.status, &fault.why);
    }
}

impl<I: Io> Shell<I> {
    /// A connection to the admin listener was accepted.
    pub(in crate::shell) fn admin_connected(&mut self, now: Moment, accepted: Accepted, is_unix: bool) {
        if self.admin.closed || !self.make_room_for_admin(now) {
            return;
        }
        let place = accepted.place;
        let origin = Origin::of(&accepted.socket, place, is_unix, self.admin.is_abstract);
        let connections = &mut self.reactor.connections;
        let slot = connections.begin_http(now, accepted, Purpose::Admin, LIMITS);
        self.admin
            .operators
            .insert(slot, Operator { who: Who { place, origin }, request: None, rest: None, since: now });
        self.receive_first(now, slot);
    }

    /// Answers a complete request.
    fn answer_operator(&mut self, now: Moment, slot: usize) {
        let Some(request) = self.admin.operator(slot).request.take() else { return };
        let response = self.answer_admin(now, slot, &request).unwrap_or_else(|refused| refused);
        if is_action(&request) {
            audit::note(&self.admin.operator(slot).who, &request, &response);
        } else {
            tracing::debug!("{} is asked for, and answered with {}", request.path, response.status.code());
        }
        self.begin_admin_answer(now, slot, response);
    }

    fn answer_admin(&mut self, now: Moment, slot: usize, request: &AdminRequest) -> Result<Response, Response> {
        let origin = self.admin.operator(slot).who.origin;
        let (response, act) = route(&self.view(now), request, origin, self.admin.token.as_ref())?;
        match act {
            Act::Nothing => {}
            Act::Dispatch(input) => self.reactor.dispatch(now, input),
            Act::SetLogLevel((_, level)) => log::set_level(*level),
            Act::Reload { is_dry_run } => {
                self.begin_reload(is_dry_run).map_err(|why| Response::text(Status::Conflict, &why))?;
            }
        }
        Ok(response)
    }

    fn view(&self, now: Moment) -> View<'_> {
        View {
            bus: &self.bus,
            now,
            questions: Questions::default(),
            consumers: OnceCell::new(),
            workers: &self.reactor.workers,
            places: &self.admin.places,
            order: &self.admin.order,
            recent: &self.reactor.log.recent,
            history: &self.admin.history,
            turns: &self.admin.turns,
            started_at: self.started_at,
            memory: self.lent(),
            max_memory: self.reactor.memory.most,
            io: self.reactor.io.name(),
            node: &self.reloads.running.node,
            admin_connections: self.reactor.connections.counts.count(Purpose::Admin),
            reloads: &self.reloads.outcomes,
            persistence: &self.reactor.persistence,
        }
    }

    /// Refuses a request that cannot be read; the connection ends after it.
    fn fail_operator(&mut self, now: Moment, slot: usize, status: Status, why: &str) {
        self.begin_admin_answer(now, slot, Response::text(status, why));
    }

    fn begin_admin_answer(&mut self, now: Moment, slot: usize, response: Response) {
        let operator = self.admin.operator(slot);
        let connection = &mut self.reactor.connections[HttpSlot(slot)];
        let framing = response.framing(connection.incoming.is_old);
        let stays = !connection.incoming.is_last && framing != Framing::UntilEnd;
        let out = connection.outgoing.queue();
        out.extend_from_slice(response.head(framing, stays).as_bytes());
        match response.body {
            _ if connection.incoming.is_head => {}
            AdminBody::Whole(body) => out.extend_from_slice(&body),
            AdminBody::Pieces(pieces) => operator.rest = Some(Rest { pieces, framing, stays }),
        }
        operator.since = now;
        // The last piece decides whether the connection ends.
        connection.incoming.is_last = !stays && operator.rest.is_none();
        self.reactor.begin_http_answer(now, slot);
    }

    /// Whether a connection needs its next piece before anything more is sent. If so, it is queued for it.
    pub(in crate::shell) fn waits_for_piece(&mut self, slot: usize) -> bool {
        let connection = &self.reactor.connections[HttpSlot(slot)];
        let is_sending = self.reactor.connections[slot].in_flight.has(PendingOp::Write);
        let has_enough = is_sending || connection.outgoing.weight() >= PIECE;
        let operator = self.admin.operator(slot);
        if has_enough || connection.state != State::Answering || operator.rest.is_none() {
            return false;
        }
        if !self.admin.busy.contains(&slot) {
            self.admin.busy.push_back(slot);
        }
        true
    }

    /// Produces one piece of one answer.
    pub(in crate::shell) fn work_for_admin(&mut self, now: Moment) {
        let connections = &self.reactor.connections;
        if self.admin.operators.len() > connections.counts.count(Purpose::Admin) {
            self.admin.operators.retain(|slot, _| connections.http(*slot).is_some_and(Exchange::is_operators));
        }
        let Some(slot) = self.admin.busy.pop_front() else { return };
        let is_there = |it: &&mut Exchange| it.is_operators() && it.state == State::Answering;
        let Some(connection) = self.reactor.connections.http_mut(slot).filter(is_there) else { return };
        let mut out = std::mem::take(connection.outgoing.queue());
        let mut rest = self.admin.operator(slot).rest.take();
        let goes_on = rest.as_mut().is_some_and(|rest| rest.make_piece(&self.view(now), &mut out));
        let connection = &mut self.reactor.connections[HttpSlot(slot)];
        *connection.outgoing.queue() = out;
        match rest {
            Some(rest) if !goes_on => connection.incoming.is_last = !rest.stays,
            rest => self.admin.operator(slot).rest = rest,
        }
        self.send_http(now, slot);
    }

    /// Makes room for one more connection. False if none can be evicted. A slow reader of its answer gives way like one that
    /// is idle; and one of the source with most connections without delay, so that it cannot shut out the others.
    fn make_room_for_admin(&mut self, now: Moment) -> bool {
        let Reactor { connections, .. } = &self.reactor;
        if connections.counts.has_room(Purpose::Admin) {
            return true;
        }
        let operators = &self.admin.operators;
        let is_slow =
            |slot: usize, _: &Exchange| operators.get(&slot).is_some_and(|operator| now.since(operator.since) >= SLOW);
        let is_operators = |_: usize, it: &Exchange| it.is_operators();
        let (victim, _) = connections.eviction_victim_or_slow(now, MOST_OPERATORS, None, is_operators, is_slow);
        let is_crowded = victim.is_none_or(|slot| connections[HttpSlot(slot)].state == State::Answering);
        if is_crowded && self.admin.throttle.may_report(now) {
            tracing::warn!(
                reason = "accept_paused",
                "all {MOST_OPERATORS} connections of the admin listener are in use by clients that do not take their \
                 answers; one of the source with most of them is closed"
            );
        }
        if let Some(slot) = victim {
            self.reactor.close_http(now, slot);
        }
        victim.is_some()
    }

    /// Takes a sample for the chart, and lets the core begin an interval of the usage.
    pub(in crate::shell) fn sample_history(&mut self, now: Moment) {
        self.bus.mark_usage(now);
        self.admin.history.take(&self.bus.view().stats(), self.admin.turns.sum());
        self.admin.start(&mut self.reactor.timers, now.after(EVERY));
    }

    /// Begins the chart and the usage of the last minute anew, if no sample is due: a reload may have added the admin
    /// listener.
    pub(in crate::shell) fn begin_history(&mut self, now: Moment) {
        if !self.reactor.timers.is_set(Timer::History) {
            self.admin.history = History::since(&self.bus.view().stats(), self.admin.turns.sum());
            self.bus.mark_usage(now);
            self.admin.start(&mut self.reactor.timers, now.after(EVERY));
        }
    }

    /// Closes everything.
    pub(in crate::shell) fn close_admin(&mut self) {
        self.admin.closed = true;
        for index in 0..self.reactor.listeners.acceptors.len() {
            if self.reactor.listeners.acceptors[index].for_admin {
                self.reactor.close_acceptor(index);
            }
        }
        self.close_all_http(self.reactor.clock.now(), Exchange::is_operators);
    }
}

impl Admin {
    /// Schedules the next sample, if there is an admin listener.
    pub(in crate::shell) fn start(&mut self, timers: &mut Timers, at: Moment) {
        if self.is_on {
            timers.set(Timer::History, Some(at));
        }
    }
}
