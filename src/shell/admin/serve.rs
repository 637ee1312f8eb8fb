//! Moves the bytes of admin connections: they are accepted, read up to a whole request, answered piece by piece, and
//! closed. One piece is made in a turn of the loop, whoever asks.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use tracing::level_filters::LevelFilter;

use super::access::{self, Origin};
use super::connection::{Connection, LINGER, Phase, SEND_TIME};
use super::request::{Manner, Request};
use super::response::{Body, Framing, Response};
use super::route::{Action, Route, route};
use super::view::View;
use super::{Admin, MOST_CONNECTIONS};
use crate::bus::port::{Input, Moment};
use crate::http1::{Error, Status, chunk};
use crate::io::{Io, Submission};
use crate::shell::Shell;
use crate::shell::acceptor::{FIRST_ACCEPT_DELAY, LONGEST_ACCEPT_DELAY};
use crate::shell::log;
use crate::shell::operation::Operation;
use crate::shell::source;

/// Who takes so long over its answer may have to make room.
const SLOW: Duration = Duration::from_secs(1);

/// So many bytes are made before they are sent.
const PIECE: usize = 16 * 1024;

impl<I: Io> Shell<I> {
    /// Opens the admin listener.
    pub(in crate::shell) fn open_admin(&mut self) {
        for index in 0..self.admin.acceptors.len() {
            tracing::info!("the admin listener is {}", self.admin.acceptors[index].address);
            self.arm_admin_accept(index);
        }
    }

    fn arm_admin_accept(&mut self, index: usize) {
        let acceptor = &mut self.admin.acceptors[index];
        let Some(listening) = &acceptor.listening else { return };
        if acceptor.accepting || acceptor.retry_at.is_some() || self.admin.closed {
            return;
        }
        acceptor.accepting = true;
        let accept = Submission::Accept { socket: listening.socket.as_raw_fd() };
        // SAFETY: the socket stays open while `accepting` is set.
        unsafe { self.reactor.io.submit(accept, Operation::AdminAccept.token(index)) };
    }

    pub(in crate::shell) fn admin_accepted(&mut self, now: Moment, index: usize, result: i32) {
        let acceptor = &mut self.admin.acceptors[index];
        debug_assert!(acceptor.accepting);
        acceptor.accepting = false;
        let is_unix = acceptor.listening.as_ref().is_some_and(|listening| listening.is_unix());
        if result >= 0 {
            acceptor.delay = FIRST_ACCEPT_DELAY;
            // SAFETY: the kernel has just made this descriptor for us.
            let socket = unsafe { OwnedFd::from_raw_fd(result) };
            self.admin_connected(now, socket, is_unix);
            return self.arm_admin_accept(index);
        }
        if matches!(-result, libc::ECONNABORTED | libc::ECANCELED | libc::EAGAIN | libc::EINTR) {
            return self.arm_admin_accept(index);
        }
        acceptor.is_ended = matches!(-result, libc::EINVAL | libc::EBADF | libc::ENOTSOCK | libc::EOPNOTSUPP);
        if acceptor.may_tell(now) {
            let error = io::Error::from_raw_os_error(-result);
            tracing::error!(reason = "accept_paused", "cannot accept on {}: {error}", acceptor.address);
        }
        let at = now.after(acceptor.delay);
        acceptor.retry_at = Some(at);
        acceptor.delay = (2 * acceptor.delay).min(LONGEST_ACCEPT_DELAY);
        self.admin.check_at(at);
    }

    fn admin_connected(&mut self, now: Moment, socket: OwnedFd, is_unix: bool) {
        if self.admin.closed || !self.admin.make_room(now) {
            return;
        }
        let source = source::of(&socket, is_unix).source();
        let origin = Origin::of(&socket, is_unix, self.admin.is_abstract);
        let connection = Connection::new(now, socket, origin, source);
        self.admin.check_at(connection.deadline);
        let slot = self.admin.connections.insert(connection);
        self.arm_admin_receive(slot);
    }

    fn arm_admin_receive(&mut self, slot: usize) {
        let connection = &mut self.admin.connections[slot];
        if connection.receiving || connection.phase == Phase::Leaving {
            return;
        }
        if connection.phase == Phase::Lingering {
            connection.filled = 0;
        }
        let room = &mut connection.input[connection.filled..];
        debug_assert!(!room.is_empty(), "a request that fills all of it is refused");
        let receive = Submission::ReceiveInto {
            socket: connection.socket.as_raw_fd(),
            into: room.as_mut_ptr(),
            bytes: room.len() as u32,
        };
        connection.receiving = true;
        // SAFETY: the connection keeps its input and its socket while `receiving` is set.
        unsafe { self.reactor.io.submit(receive, Operation::AdminReceive.token(slot)) };
    }

    pub(in crate::shell) fn admin_received(&mut self, now: Moment, slot: usize, result: i32) {
        let connection = &mut self.admin.connections[slot];
        debug_assert!(connection.receiving);
        connection.receiving = false;
        match (connection.phase, result) {
            (Phase::Leaving, _) => return self.admin.remove_if_idle(slot),
            (_, error) if error == -libc::EAGAIN || error == -libc::EINTR => return self.arm_admin_receive(slot),
            // It was told that it took too long. That is all it gets.
            (Phase::Answering, _) => return,
            (_, ..=0) => return self.admin.leave(slot),
            (Phase::Lingering, _) => return self.arm_admin_receive(slot),
            (Phase::Reading, _) => {}
        }
        connection.filled += result as usize;
        self.read_admin_request(now, slot);
    }

    /// Looks for a request in what has come, and answers it.
    fn read_admin_request(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.admin.connections[slot];
        debug_assert!(connection.phase == Phase::Reading);
        match connection.next_request(now) {
            None => {
                let deadline = connection.deadline;
                self.admin.check_at(deadline);
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

    fn answer_admin(&mut self, now: Moment, slot: usize, request: &Request) -> Response {
        let origin = self.admin.connections[slot].origin;
        if let Err(refused) = access::may_ask(origin, request) {
            return refused;
        }
        match route(&self.view(now), request, origin, self.admin.token.as_ref()) {
            Route::Answer(response) => response,
            Route::Act(action, response) => {
                self.act_for_operator(now, action);
                response
            }
        }
    }

    fn act_for_operator(&mut self, now: Moment, action: Action) {
        match action {
            Action::Drain => {
                tracing::info!("the operator has the daemon drain");
                self.tell(now, Input::Drain);
            }
            Action::CloseClient(client) => self.tell(now, Input::CloseClient { client }),
            Action::RestartWorker(worker) => self.tell(now, Input::RestartWorker { worker }),
            Action::SetLogLevel(level) => {
                tracing::info!("the operator sets the level of the log to {}", LevelFilter::from(level));
                log::set_level(level);
            }
        }
    }

    fn view(&self, now: Moment) -> View<'_> {
        View {
            bus: &self.bus,
            now,
            pools: &self.reactor.pools,
            processes: &*self.reactor.processes,
            places: &self.admin.places,
            recent: &self.reactor.recent,
            history: &self.admin.history,
            turns: &self.admin.turns,
            memory: self.reactor.io.lent(),
            max_memory: self.reactor.memory.most,
            started_at: self.admin.started_at,
            io: I::NAME,
            log_level: log::level_name(),
            log_lines_lost: log::lost(),
            admin_connections: self.admin.connections.len(),
        }
    }

    /// A request that cannot be answered otherwise is the last one of its connection.
    fn refuse_admin_request(&mut self, now: Moment, slot: usize, error: Error) {
        self.begin_admin_answer(now, slot, Response::text(error.status, error.why), Manner::LAST);
    }

    fn begin_admin_answer(&mut self, now: Moment, slot: usize, response: Response, manner: Manner) {
        let is_closed = self.admin.closed;
        let connection = &mut self.admin.connections[slot];
        let framing = response.framing(manner);
        connection.phase = Phase::Answering;
        connection.since = now;
        connection.deadline = now.after(SEND_TIME);
        connection.is_last = !manner.keeps_alive || framing == Framing::End || is_closed;
        connection.output.clear();
        connection.sent = 0;
        let head = response.head(framing, !connection.is_last);
        connection.output.extend_from_slice(head.as_bytes());
        match response.body {
            _ if manner.is_head => {}
            Body::Whole(body) => connection.output.extend_from_slice(&body),
            Body::Pieces(pieces) => connection.pieces = Some((pieces, framing)),
        }
        self.go_on_answering(now, slot);
    }

    /// Sends what is there of an answer, has more of it made, or ends it.
    fn go_on_answering(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.admin.connections[slot];
        debug_assert!(connection.phase == Phase::Answering && !connection.sending);
        let is_made = connection.pieces.is_none();
        if connection.sent == connection.output.len() && is_made {
            return self.end_admin_answer(now, slot);
        }
        if !is_made && connection.output.len() < PIECE {
            if !std::mem::replace(&mut connection.is_busy, true) {
                self.admin.busy.push_back(slot);
            }
            return;
        }
        let rest = &connection.output[connection.sent..];
        let send = Submission::Send {
            socket: connection.socket.as_raw_fd(),
            from: rest.as_ptr(),
            bytes: rest.len().min(u32::MAX as usize) as u32,
            now_or_never: true,
        };
        connection.sending = true;
        connection.deadline = now.after(SEND_TIME);
        let deadline = connection.deadline;
        // SAFETY: the output is not touched and the socket stays open while `sending` is set.
        unsafe { self.reactor.io.submit(send, Operation::AdminSend.token(slot)) };
        self.admin.check_at(deadline);
    }

    /// Lets an answer wait until its socket has room.
    fn await_admin_room(&mut self, slot: usize) {
        let connection = &mut self.admin.connections[slot];
        (connection.sending, connection.awaits_room) = (true, true);
        // Taken for half-closed, as many are, it is told of room in either case.
        let room = Submission::AwaitRoom { descriptor: connection.socket.as_raw_fd(), half_closed: true };
        // SAFETY: the socket stays open while `sending` is set.
        unsafe { self.reactor.io.submit(room, Operation::AdminSend.token(slot)) };
    }

    pub(in crate::shell) fn admin_sent(&mut self, now: Moment, slot: usize, result: i32) {
        let connection = &mut self.admin.connections[slot];
        debug_assert!(connection.sending);
        connection.sending = false;
        let has_room = std::mem::take(&mut connection.awaits_room) && result > 0;
        match (connection.phase, result) {
            (Phase::Leaving, _) => return self.admin.remove_if_idle(slot),
            _ if has_room => {}
            (_, 1..) => connection.sent += result as usize,
            (_, error) if error == -libc::EAGAIN => return self.await_admin_room(slot),
            (_, error) if error == -libc::EINTR => {}
            // Whoever asked has gone.
            _ => return self.admin.leave(slot),
        }
        if connection.sent == connection.output.len() {
            connection.output.clear();
            connection.sent = 0;
        }
        self.go_on_answering(now, slot);
    }

    /// An answer is out. The next request may be there already.
    fn end_admin_answer(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.admin.connections[slot];
        connection.since = now;
        if connection.is_last {
            connection.phase = Phase::Lingering;
            connection.deadline = now.after(LINGER);
            // Closed with bytes unread, the socket would be reset, and the answer might not arrive.
            let _ = shutdown(&connection.socket, Shutdown::Write);
            self.admin.check_at(now.after(LINGER));
            self.arm_admin_receive(slot);
        } else {
            connection.phase = Phase::Reading;
            connection.output = Vec::new();
            connection.answered(now);
            self.read_admin_request(now, slot);
        }
    }

    /// Makes one piece of one answer.
    pub(in crate::shell) fn work_for_admin(&mut self, now: Moment) {
        let Some(slot) = self.admin.busy.pop_front() else { return };
        let Some(connection) = self.admin.connections.get_mut(slot) else { return };
        connection.is_busy = false;
        if connection.phase != Phase::Answering {
            return;
        }
        let Some((mut pieces, framing)) = connection.pieces.take() else { return };
        let mut output = std::mem::take(&mut connection.output);
        let view = self.view(now);
        let goes_on = match framing {
            Framing::Chunks => chunk(&mut output, |out| pieces.next(&view, out)),
            Framing::Length | Framing::End => pieces.next(&view, &mut output),
        };
        let connection = &mut self.admin.connections[slot];
        connection.output = output;
        if goes_on {
            connection.pieces = Some((pieces, framing));
        }
        self.go_on_answering(now, slot);
    }

    /// Does what is due: closes connections that take too long, and accepts again.
    pub(in crate::shell) fn tick_admin(&mut self, now: Moment) {
        if self.admin.history.due() <= now {
            self.admin.history.take(now, &self.bus.stats(), self.admin.turns.sum());
        }
        if self.admin.due.is_none_or(|due| due > now) {
            return;
        }
        self.admin.due = None;
        let slots: Vec<usize> = self.admin.connections.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let Some(connection) = self.admin.connections.get(slot) else { continue };
            if connection.phase == Phase::Leaving {
                continue;
            }
            if connection.deadline > now {
                let deadline = connection.deadline;
                self.admin.check_at(deadline);
            } else if connection.phase == Phase::Reading && connection.has_begun_request() {
                let why = "the request took too long to come";
                self.refuse_admin_request(now, slot, Error { status: Status::RequestTimeout, why });
            } else {
                self.admin.leave(slot);
            }
        }
        for index in 0..self.admin.acceptors.len() {
            let acceptor = &mut self.admin.acceptors[index];
            match acceptor.retry_at {
                Some(at) if at <= now => {
                    acceptor.retry_at = None;
                    acceptor.open_anew_if_ended(now);
                    if let Some(at) = self.admin.acceptors[index].retry_at {
                        self.admin.check_at(at);
                    }
                    self.arm_admin_accept(index);
                }
                Some(at) => self.admin.check_at(at),
                None => {}
            }
        }
    }

    /// Ends all of it.
    pub(in crate::shell) fn close_admin(&mut self) {
        self.admin.closed = true;
        for index in 0..self.admin.acceptors.len() {
            if self.admin.acceptors[index].accepting {
                self.reactor.io.cancel(Operation::AdminAccept.token(index));
            }
        }
        let slots: Vec<usize> = self.admin.connections.iter().map(|(slot, _)| slot).collect();
        slots.into_iter().for_each(|slot| self.admin.leave(slot));
    }

    /// What the kernel still holds stays until the process ends.
    pub(in crate::shell) fn forget_admin(&mut self) {
        std::mem::take(&mut self.admin.connections)
            .into_iter()
            .for_each(|(_, connection)| std::mem::forget(connection));
    }
}

impl Admin {
    /// Makes sure that there is room for one more: who waits for nothing goes first, then who is slow to take its answer,
    /// at once if it comes from where most come from. False if nobody may be sent away.
    fn make_room(&mut self, now: Moment) -> bool {
        if self.connections.len() < MOST_CONNECTIONS {
            return true;
        }
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
        if is_crowded && self.acceptors.first_mut().is_some_and(|acceptor| acceptor.may_tell(now)) {
            tracing::warn!(
                reason = "accept_paused",
                "all {MOST_CONNECTIONS} connections of the admin listener are in use by those who do not take their \
                 answers; who came first goes"
            );
        }
        let Some((_, _, slot)) = goes else { return false };
        self.leave(slot);
        true
    }

    /// Ends a connection; it goes when the kernel holds nothing of it.
    fn leave(&mut self, slot: usize) {
        let connection = &mut self.connections[slot];
        connection.phase = Phase::Leaving;
        connection.pieces = None;
        // All operations on the socket complete after this.
        let _ = shutdown(&connection.socket, Shutdown::Both);
        self.remove_if_idle(slot);
    }

    fn remove_if_idle(&mut self, slot: usize) {
        if self.connections[slot].is_idle() {
            self.connections.remove(slot);
        }
    }
}
