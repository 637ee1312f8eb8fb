//! Moves the bytes of admin connections: reads complete requests, sends answers in pieces, and closes. One piece is
//! produced per turn of the loop, however many connections wait.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};

use super::access::Origin;
use super::connection::{Connection, LINGER, Phase, SEND_TIME};
use super::request::{Manner, Request};
use super::response::Response;
use super::route::{Act, route};
use super::view::View;
use super::{Admin, MOST_CONNECTIONS};
use crate::bus::port::{Moment, Place};
use crate::http1::{Error, Status};
use crate::io::{Io, Submission};
use crate::shell::connection::Flight;
use crate::shell::log;
use crate::shell::operation::Operation;
use crate::shell::timers::{Timer, Timers};
use crate::shell::turn::Shell;

/// A connection whose answer makes no progress for this long may be evicted.
const SLOW: Duration = Duration::from_secs(1);

impl<I: Io> Shell<I> {
    /// A connection to the admin listener was accepted.
    pub(in crate::shell) fn admin_connected(&mut self, now: Moment, socket: OwnedFd, place: Place, is_unix: bool) {
        if self.admin.closed || !self.make_room_for_admin(now) {
            return;
        }
        let origin = Origin::of(&socket, place, is_unix, self.admin.is_abstract);
        let slot = self.admin.connections.insert(Connection::new(now, socket, origin, place.source()));
        self.read_admin_request(now, slot);
    }

    fn arm_admin_receive(&mut self, slot: usize) {
        let connection = &mut self.admin.connections[slot];
        if connection.phase == Phase::Leaving || !connection.in_flight.add(Flight::Read) {
            return;
        }
        if connection.phase == Phase::Lingering {
            connection.incoming.clear();
        }
        let room = connection.incoming.room();
        let (into, bytes) = (room.as_mut_ptr(), room.len() as u32);
        let receive = Submission::ReceiveInto { socket: connection.socket.as_raw_fd(), into, bytes };
        // SAFETY: the connection keeps its bytes and its socket while this is in flight.
        unsafe { self.reactor.io.submit(receive, Operation::AdminReceive.token(slot)) };
    }

    pub(in crate::shell) fn admin_received(&mut self, now: Moment, slot: usize, result: i32) {
        let connection = &mut self.admin.connections[slot];
        let was_reading = connection.in_flight.remove(Flight::Read);
        debug_assert!(was_reading);
        match (connection.phase, result) {
            (Phase::Leaving, _) => return self.admin.remove_if_idle(slot),
            (_, error) if error == -libc::EAGAIN || error == -libc::EINTR => return self.arm_admin_receive(slot),
            // It was told that it took too long, and gets no other answer.
            (Phase::Answering, _) => return,
            (_, ..=0) => return self.leave_admin(slot),
            (Phase::Lingering, _) => return self.arm_admin_receive(slot),
            (Phase::Reading, _) => {}
        }
        connection.incoming.took(result as usize);
        self.read_admin_request(now, slot);
    }

    /// Parses the received bytes, and answers a complete request.
    fn read_admin_request(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.admin.connections[slot];
        debug_assert!(connection.phase == Phase::Reading);
        match connection.incoming.next(now) {
            None => {
                let deadline = connection.incoming.deadline();
                self.set_admin_deadline(slot, deadline);
                self.arm_admin_receive(slot);
            }
            Some(Err(error)) => self.refuse_admin_request(now, slot, error),
            Some(Ok(request)) => {
                let response = self.answer_admin(now, slot, &request);
                tracing::debug!("{} is asked for, and answered with {}", request.path, response.status.code());
                self.begin_admin_answer(now, slot, response, request.manner);
            }
        }
    }

    fn set_admin_deadline(&mut self, slot: usize, at: Moment) {
        self.reactor.timers.set(Timer::Admin(slot), Some(at));
    }

    fn answer_admin(&mut self, now: Moment, slot: usize, request: &Request) -> Response {
        let origin = self.admin.connections[slot].origin;
        let (response, act) = route(&self.view(now), request, origin, self.admin.token.as_ref());
        match act {
            Act::Nothing => {}
            Act::Tell(input) => self.reactor.tell(now, input),
            Act::SetLogLevel((name, level)) => {
                log::set_level(*level);
                tracing::info!("the operator sets the level of the log to {name}");
            }
            Act::Reload { is_dry_run } => {
                if let Err(why) = self.begin_reload(is_dry_run) {
                    return Response::text(Status::Conflict, &why);
                }
            }
        }
        response
    }

    fn view(&self, now: Moment) -> View<'_> {
        View {
            bus: &self.bus,
            now,
            workers: &self.reactor.workers,
            places: &self.admin.places,
            recent: &self.reactor.log.recent,
            history: &self.admin.history,
            turns: &self.admin.turns,
            started_at: self.admin.started_at,
            memory: self.lent(),
            max_memory: self.reactor.memory.most,
            io: self.reactor.io.name(),
            node: &self.reloads.running.node,
            admin_connections: self.admin.connections.len(),
            reloads: &self.reloads.outcomes,
        }
    }

    /// Refuses a request that cannot be parsed; the connection ends after it.
    fn refuse_admin_request(&mut self, now: Moment, slot: usize, error: Error) {
        self.begin_admin_answer(now, slot, Response::text(error.status, error.why), Manner::LAST);
    }

    fn begin_admin_answer(&mut self, now: Moment, slot: usize, response: Response, manner: Manner) {
        let is_closed = self.admin.closed;
        let connection = &mut self.admin.connections[slot];
        (connection.phase, connection.since) = (Phase::Answering, now);
        connection.outgoing.begin(response, manner, is_closed);
        self.set_admin_deadline(slot, now.after(SEND_TIME));
        self.go_on_answering(now, slot);
    }

    /// Sends pending bytes of an answer, has more produced, or ends it.
    fn go_on_answering(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.admin.connections[slot];
        debug_assert!(connection.phase == Phase::Answering && !connection.in_flight.has(Flight::Write));
        if connection.outgoing.is_over() {
            return self.end_admin_answer(now, slot);
        }
        if connection.outgoing.needs_piece() {
            if !std::mem::replace(&mut connection.is_busy, true) {
                self.admin.busy.push_back(slot);
            }
            return;
        }
        let rest = connection.outgoing.rest();
        let send = Submission::Send {
            socket: connection.socket.as_raw_fd(),
            from: rest.as_ptr(),
            bytes: rest.len().min(u32::MAX as usize) as u32,
            now_or_never: true,
            more: false,
        };
        connection.in_flight.add(Flight::Write);
        // SAFETY: the output is not touched and the socket stays open while this is in flight.
        unsafe { self.reactor.io.submit(send, Operation::AdminSend.token(slot)) };
        self.set_admin_deadline(slot, now.after(SEND_TIME));
    }

    /// Waits for room in the socket.
    fn await_admin_room(&mut self, slot: usize) {
        let connection = &mut self.admin.connections[slot];
        connection.in_flight.add(Flight::Write);
        connection.in_flight.add(Flight::Room);
        // Treated as half-closed, as many are: room is reported in either case.
        let room = Submission::AwaitRoom { descriptor: connection.socket.as_raw_fd(), half_closed: true };
        // SAFETY: the socket stays open while this is in flight.
        unsafe { self.reactor.io.submit(room, Operation::AdminSend.token(slot)) };
    }

    pub(in crate::shell) fn admin_sent(&mut self, now: Moment, slot: usize, result: i32) {
        let connection = &mut self.admin.connections[slot];
        let was_sending = connection.in_flight.remove(Flight::Write);
        debug_assert!(was_sending);
        let has_room = connection.in_flight.remove(Flight::Room) && result > 0;
        match (connection.phase, result) {
            (Phase::Leaving, _) => return self.admin.remove_if_idle(slot),
            _ if has_room => {}
            (_, 1..) => connection.outgoing.sent(result as usize),
            (_, error) if error == -libc::EAGAIN => return self.await_admin_room(slot),
            (_, error) if error == -libc::EINTR => {}
            // The client has gone.
            _ => return self.leave_admin(slot),
        }
        self.go_on_answering(now, slot);
    }

    /// An answer was sent. The next request may have been received.
    fn end_admin_answer(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.admin.connections[slot];
        connection.since = now;
        if connection.outgoing.is_last {
            connection.phase = Phase::Lingering;
            // Closed with unread bytes, the socket would be reset, and the answer might be lost.
            let _ = shutdown(&connection.socket, Shutdown::Write);
            self.set_admin_deadline(slot, now.after(LINGER));
            self.arm_admin_receive(slot);
        } else {
            connection.phase = Phase::Reading;
            connection.incoming.answered(now);
            self.read_admin_request(now, slot);
        }
    }

    /// Produces one piece of one answer.
    pub(in crate::shell) fn work_for_admin(&mut self, now: Moment) {
        let Some(slot) = self.admin.busy.pop_front() else { return };
        let Some(connection) = self.admin.connections.get_mut(slot) else { return };
        connection.is_busy = false;
        if connection.phase != Phase::Answering {
            return;
        }
        let mut outgoing = std::mem::take(&mut connection.outgoing);
        outgoing.make_piece(&self.view(now));
        self.admin.connections[slot].outgoing = outgoing;
        self.go_on_answering(now, slot);
    }

    /// A connection has timed out.
    pub(in crate::shell) fn admin_due(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.admin.connections[slot];
        if connection.phase == Phase::Reading && connection.incoming.has_begun() {
            let why = "the request took too long to come";
            self.refuse_admin_request(now, slot, Error { status: Status::RequestTimeout, why });
        } else if connection.phase != Phase::Leaving {
            self.leave_admin(slot);
        }
    }

    /// Takes a sample for the chart.
    pub(in crate::shell) fn sample_history(&mut self, now: Moment) {
        self.admin.history.take(now, &self.bus.stats(), self.admin.turns.sum());
        self.admin.start(&mut self.reactor.timers, self.admin.history.due());
    }

    /// Closes everything.
    pub(in crate::shell) fn close_admin(&mut self) {
        self.admin.closed = true;
        for index in 0..self.reactor.listeners.len() {
            if self.reactor.listeners.acceptor(index).for_admin {
                self.reactor.close_acceptor(index);
            }
        }
        let slots: Vec<usize> = self.admin.connections.iter().map(|(slot, _)| slot).collect();
        slots.into_iter().for_each(|slot| self.leave_admin(slot));
    }

    /// Leaks what the kernel still holds until the process ends.
    pub(in crate::shell) fn forget_admin(&mut self) {
        std::mem::forget(std::mem::take(&mut self.admin.connections));
    }

    /// Makes room for one more connection. False if none can be evicted.
    fn make_room_for_admin(&mut self, now: Moment) -> bool {
        if self.admin.connections.len() < MOST_CONNECTIONS {
            return true;
        }
        let goes = self.admin.first_to_go(now);
        if let Some(slot) = goes {
            self.leave_admin(slot);
        }
        goes.is_some()
    }

    /// Ends a connection; it is removed when the kernel holds no operation of it.
    fn leave_admin(&mut self, slot: usize) {
        let connection = &mut self.admin.connections[slot];
        connection.phase = Phase::Leaving;
        connection.outgoing.pieces = None;
        self.reactor.timers.set(Timer::Admin(slot), None);
        // All operations on the socket complete after this.
        let _ = shutdown(&connection.socket, Shutdown::Both);
        self.admin.remove_if_idle(slot);
    }
}

impl Admin {
    /// Schedules the next sample, if there is an admin listener.
    pub(in crate::shell) fn start(&mut self, timers: &mut Timers, at: Moment) {
        if self.is_on {
            timers.set(Timer::History, Some(at));
        }
    }

    /// Picks the connection to evict: an idle one, else a slow reader of its answer, without delay if it is of the
    /// source with most connections.
    fn first_to_go(&mut self, now: Moment) -> Option<usize> {
        let count = |source| self.connections.iter().filter(|(_, connection)| connection.source == source).count();
        let rank = |connection: &Connection| match connection.phase {
            Phase::Leaving => None,
            _ if connection.is_waiting() => Some(0),
            _ if count(connection.source) > MOST_CONNECTIONS / 2 => Some(1),
            _ if now.since(connection.since) >= SLOW => Some(2),
            _ => None,
        };
        let ranked = self
            .connections
            .iter()
            .filter_map(|(slot, connection)| rank(connection).map(|rank| (rank, connection.since, slot)));
        let goes = ranked.min();
        let is_crowded = goes.is_none_or(|(rank, ..)| rank > 0);
        if is_crowded && self.throttle.may_tell(now) {
            tracing::warn!(
                reason = "accept_paused",
                "all {MOST_CONNECTIONS} connections of the admin listener are in use by those who do not take their \
                 answers; who came first goes"
            );
        }
        goes.map(|(_, _, slot)| slot)
    }

    fn remove_if_idle(&mut self, slot: usize) {
        if self.connections[slot].in_flight.is_empty() {
            self.connections.remove(slot);
        }
    }
}
