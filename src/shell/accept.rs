//! Where connections come in: accepting, waiting when that fails for want of descriptors, and closing for good.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

use super::connection::Connection;
use super::handshakes::state::AcceptedSocket;
use super::listen::BACKLOG;
use super::operation::Operation;
use super::reactor::Reactor;
use super::source;
use super::timers::Timer;
use super::turn::Shell;
use crate::bus::port::{ClientKey, Moment, Origin, Peer, Place};
use crate::io::{Io, Submission};

/// Connections that come in through one socket in a turn: those behind them wait in the backlog meanwhile.
const AT_ONCE: usize = 16;

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

    /// Somebody has connected to a listening socket, or it fails.
    pub(super) fn connected(&mut self, now: Moment, index: usize, result: i32) {
        let acceptor = self.reactor.listeners.acceptor(index);
        debug_assert!(acceptor.is_busy());
        acceptor.end();
        if self.reactor.listeners.is_closed(index) {
            self.empty_backlog(now, index);
            return self.reactor.close_acceptor(index);
        }
        let is_gone = result > 0 && result & i32::from(libc::POLLERR | libc::POLLHUP) != 0;
        match if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { self.accept_some(now, index) } {
            // A Unix socket that listens no more says so only to who waits in accept(2).
            Err(Errno::AGAIN) if is_gone => self.reactor.cannot_accept(now, index, Errno::INVAL),
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::CANCELED) => self.reactor.arm_accept(index),
            Err(error) => self.reactor.cannot_accept(now, index, error),
        }
    }

    /// Accepts those who wait at a socket, one at least, as long as none of them takes the place of another connection.
    fn accept_some(&mut self, now: Moment, index: usize) -> Result<(), Errno> {
        for number in 0..AT_ONCE {
            if !self.reactor.is_accepting(index) || number > 0 && !self.reactor.has_room(index) {
                break;
            }
            self.accept_next(now, index)?;
        }
        Ok(())
    }

    /// Accepts the next connection that waits at a socket.
    fn accept_next(&mut self, now: Moment, index: usize) -> Result<(), Errno> {
        let reactor = &mut self.reactor;
        let listening = reactor.listeners.acceptor(index).socket().ok_or(Errno::AGAIN)?;
        match reactor.io.accept_now(listening) {
            Ok((socket, address)) => {
                reactor.listeners.acceptor(index).works();
                self.step(|shell| shell.take_in(now, index, socket, address));
                Ok(())
            }
            // It gave up before it was accepted.
            Err(Errno::CONNABORTED) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes a client of a socket that was accepted, unless the core does not take it, or its PROXY header comes first.
    fn take_in(&mut self, now: Moment, index: usize, socket: OwnedFd, address: Option<SocketAddr>) {
        let acceptor = self.reactor.listeners.acceptor(index);
        let place = source::of(&socket, address, acceptor.is_unix());
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
        if self.reactor.listeners.acceptor(index).is_own() {
            let _ = (0..BACKLOG).try_for_each(|_| self.accept_next(now, index));
        }
    }
}

impl<I: Io> Reactor<I> {
    /// Whether connections to a socket are accepted for now. One from which nothing could be accepted waits until it is
    /// tried again.
    fn is_accepting(&self, index: usize) -> bool {
        !self.listeners.is_paused(index) && !self.timers.is_set(Timer::Accept(index))
    }

    /// Whether nobody has to go if another connection comes in: the descriptor of one that goes is free in the next turn.
    fn has_room(&mut self, index: usize) -> bool {
        !self.listeners.acceptor(index).for_admin && self.http.has_room() && self.handshakes.has_room()
    }

    /// Has the kernel wait for a connection, if one may come in.
    pub(super) fn arm_accept(&mut self, index: usize) {
        if !self.is_accepting(index) {
            return;
        }
        let Some(socket) = self.listeners.acceptor(index).begin() else { return };
        let socket = socket.as_raw_fd();
        // SAFETY: the socket stays open while this is in flight.
        unsafe { self.io.submit(Submission::AwaitConnection { socket }, Operation::Accept.token(index)) };
    }

    /// Nothing could be accepted from a socket: it is tried again later, unless it is not to be.
    fn cannot_accept(&mut self, now: Moment, index: usize, error: Errno) {
        let acceptor = self.listeners.acceptor(index);
        if acceptor.is_shut() {
            return;
        }
        if acceptor.is_reopening() {
            return self.retry_accepting(now, index);
        }
        if acceptor.throttle.may_tell(now) {
            let remedy = match error {
                Errno::MFILE | Errno::NFILE => "; raise RLIMIT_NOFILE (ulimit -n, LimitNOFILE)",
                _ => "",
            };
            tracing::error!(
                reason = "accept_paused",
                "cannot accept on {}: {}; trying again until it works{remedy}",
                acceptor.address,
                io::Error::from(error)
            );
        }
        let delay = acceptor.fail(error);
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
