//! Where connections come in: accepting, waiting when that fails for want of descriptors, and closing for good.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::io::ioctl_fionbio;
use rustix::net::{SocketFlags, accept_with};

use super::connection::Connection;
use super::handshakes::state::AcceptedSocket;
use super::listen::BACKLOG;
use super::listeners::Accepting;
use super::operation::Operation;
use super::reactor::Reactor;
use super::source;
use super::timers::Timer;
use super::turn::Shell;
use crate::bus::port::{ClientKey, Moment, Origin, Peer, Place};
use crate::io::{Io, Submission};

impl<I: Io> Shell<I> {
    /// A connection becomes a client. `begun` has come from it already.
    pub(super) fn add_client(
        &mut self,
        listener: usize,
        origin: Origin,
        begun: &[u8],
        connection: impl FnOnce(Peer) -> Connection,
    ) -> Option<ClientKey> {
        let reactor = &mut self.reactor;
        let now = reactor.clock.now();
        let (client, effects) = self.bus.connect(now, listener, origin);
        let added = client.map(|client| reactor.connections.add(connection(Peer::Client(client))));
        let mut is_kept = true;
        if let Some((slot, number)) = added {
            reactor.notify.changed();
            reactor.track_liveness(now, listener, slot);
            reactor.begin_pings(now, slot, number);
            is_kept = begun.is_empty() || reactor.keep(slot, begun);
        }
        reactor.carry_out(effects, None);
        if let Some((slot, _)) = added.filter(|(slot, _)| reactor.connections.contains(*slot)) {
            if !is_kept {
                reactor.refuse_to_keep(now, slot);
            } else if begun.is_empty() {
                reactor.arm_read(slot);
            } else {
                // It is read on once the core has seen what has come.
                reactor.connections.resume_soon(slot);
            }
            reactor.after_frames(now, slot);
        }
        self.reactor.limit_handshakes(self.bus.free_slots());
        client
    }

    pub(super) fn accepted(&mut self, now: Moment, index: usize, result: i32) {
        let acceptor = self.reactor.listeners.acceptor(index);
        debug_assert!(acceptor.is_busy());
        let ended = acceptor.end(result >= 0);
        // SAFETY: the kernel has just made this descriptor for us.
        let accept = || unsafe { OwnedFd::from_raw_fd(result) };
        let socket = (result >= 0 && ended == Some(Accepting::Accept)).then(accept);
        if let Some(socket) = socket {
            self.take_in(now, index, socket);
        }
        if self.reactor.listeners.is_closed(index) {
            if ended == Some(Accepting::Accept) {
                self.empty_backlog(now, index);
            }
            return self.reactor.close_acceptor(index);
        }
        self.reactor.accept_again(now, index, result);
    }

    /// Makes a client of a socket that was accepted, unless the core does not take it, or its PROXY header comes first.
    fn take_in(&mut self, now: Moment, index: usize, socket: OwnedFd) {
        let acceptor = self.reactor.listeners.acceptor(index);
        let place = source::of(&socket, acceptor.is_unix());
        let Some(listener) = acceptor.listener() else {
            let is_unix = acceptor.is_unix();
            return self.admin_connected(now, socket, place, is_unix);
        };
        let descriptor = socket.as_raw_fd();
        if place == Place::Inherited && self.bus.is_behind_proxies(listener) {
            // Nobody can say any more whether its header would have been believed: a proxy's check, most often.
            let address = &acceptor.address;
            tracing::debug!("a connection to {address} was reset before anybody could see where it came from");
            drop(socket);
            return self.reactor.free_descriptor();
        }
        let awaits_header = self.bus.awaits_header(listener, place);
        if !awaits_header && self.reactor.listeners.speaks_mcp(listener) {
            return self.http_connected(now, socket, listener, place.into(), &[]);
        }
        if awaits_header || self.reactor.listeners.speaks_web(listener) {
            return self.begin_handshake(now, AcceptedSocket { socket, acceptor: index, listener, place });
        }
        let client = self.add_client(listener, place.into(), &[], |peer| Connection::socket(peer, socket));
        if let Some(number) = client.and_then(|client| self.bus.client_number(client)) {
            let address = self.reactor.listeners.address(index);
            tracing::debug!(client = number, descriptor, "accepted on {address} from {place}");
        }
    }

    /// Takes in who has connected before a socket is closed for good: closing it would reset them, although the kernel
    /// has told them that they are connected. In one that is not ours they wait for the next daemon.
    pub(super) fn empty_backlog(&mut self, now: Moment, index: usize) {
        let Some(socket) = self.reactor.listeners.acceptor(index).own_socket() else { return };
        let Ok(listening) = socket.try_clone_to_owned() else { return };
        if ioctl_fionbio(&listening, true).is_err() {
            return;
        }
        for _ in 0..BACKLOG {
            let Ok(socket) = accept_with(&listening, SocketFlags::CLOEXEC) else { return };
            self.reactor.io.opened(socket.as_raw_fd());
            self.take_in(now, index, socket);
        }
    }
}

impl<I: Io> Reactor<I> {
    /// Has the kernel accept from a socket, or wait for a connection, if it may.
    pub(super) fn arm_accept(&mut self, index: usize) {
        // One from which nothing could be accepted waits until it is tried again.
        if self.listeners.is_paused(index) || self.timers.is_set(Timer::Accept(index)) {
            return;
        }
        let acceptor = self.listeners.acceptor(index);
        let Some(accepting) = acceptor.begin() else { return };
        let Some(socket) = acceptor.socket().map(|socket| socket.as_raw_fd()) else { return };
        let accept = match accepting {
            Accepting::Await => Submission::AwaitConnection { socket },
            Accepting::Accept => Submission::Accept { socket },
        };
        // SAFETY: the socket stays open while this is in flight.
        unsafe { self.io.submit(accept, Operation::Accept.token(index)) };
    }

    /// Goes on accepting after this result: at once, or later.
    fn accept_again(&mut self, now: Moment, index: usize, result: i32) {
        let acceptor = self.listeners.acceptor(index);
        if result >= 0 {
            return self.arm_accept(index);
        }
        if acceptor.is_shut() {
            return;
        }
        if acceptor.is_reopening() {
            return self.retry_accepting(now, index);
        }
        // The client gave up before it was accepted, or nothing has happened (accept(2)).
        if matches!(-result, libc::ECONNABORTED | libc::ECANCELED | libc::EAGAIN | libc::EINTR) {
            return self.arm_accept(index);
        }
        if acceptor.throttle.may_tell(now) {
            let error = io::Error::from_raw_os_error(-result);
            let remedy = match -result {
                libc::EMFILE | libc::ENFILE => "; raise RLIMIT_NOFILE (ulimit -n, LimitNOFILE)",
                _ => "",
            };
            tracing::error!(
                reason = "accept_paused",
                "cannot accept on {}: {error}; trying again until it works{remedy}",
                acceptor.address
            );
        }
        let delay = acceptor.fail(-result);
        self.timers.set(Timer::Accept(index), Some(now.after(delay)));
    }

    /// A socket from which nothing could be accepted is tried again.
    pub(super) fn retry_accepting(&mut self, now: Moment, index: usize) {
        self.timers.set(Timer::Accept(index), None);
        match self.listeners.acceptor(index).open_anew_if_ended(now) {
            Ok(()) => self.arm_accept(index),
            Err(delay) => self.timers.set(Timer::Accept(index), Some(now.after(delay))),
        }
    }

    /// A descriptor was closed: accepting may work again.
    pub(super) fn free_descriptor(&mut self) {
        for index in 0..self.listeners.len() {
            if self.timers.is_set(Timer::Accept(index)) {
                self.timers.set(Timer::Accept(index), Some(self.clock.now()));
            }
        }
    }

    /// Has the kernel accept from every socket that it may accept from.
    pub(super) fn start_accepting(&mut self) {
        (0..self.listeners.len()).for_each(|index| self.arm_accept(index));
    }

    /// Listens again where a listener was closed.
    pub(super) fn open_listener(&mut self, listener: usize) {
        let now = self.clock.now();
        for index in 0..self.listeners.len() {
            let acceptor = self.listeners.acceptor(index);
            if acceptor.listener() != Some(listener) || !acceptor.reopen() {
                continue;
            }
            // What is in flight on the old socket completes first, with an error that leads here, too.
            if !acceptor.is_busy() {
                self.retry_accepting(now, index);
            }
        }
    }

    /// The core takes no more clients. Operators may still come.
    pub(super) fn stop_accepting(&mut self) {
        self.listeners.is_closed = true;
        for index in 0..self.listeners.len() {
            if self.listeners.is_closed(index) {
                self.close_acceptor(index);
            }
        }
    }

    /// Closes a listening socket, once nothing is accepted from it any more (spec 10.2.1).
    pub(super) fn close_acceptor(&mut self, index: usize) {
        self.timers.set(Timer::Accept(index), None);
        if self.listeners.acceptor(index).close() {
            self.cancel(Operation::Accept, index);
        }
    }
}
