//! Where clients come in: accepting, waiting when that fails for want of descriptors, and closing for good.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::io::ioctl_fionbio;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};

use super::acceptor::{FIRST_ACCEPT_DELAY, LONGEST_ACCEPT_DELAY};
use super::connection::{Connection, Descriptor, Kind};
use super::handshakes::AcceptedSocket;
use super::listen::BACKLOG;
use super::operation::Operation;
use super::reactor::Reactor;
use super::{Shell, source};
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
        let (client, effects) = self.bus.connect(reactor.clock.now(), listener, origin);
        let slot = client.map(|client| {
            let slot = reactor.connections.insert(connection(Peer::Client(client)));
            reactor.clients[client.index()] = Some(slot);
            reactor.track_liveness(listener, slot);
            slot
        });
        if slot.is_some() {
            reactor.notify.changed();
        }
        let is_kept = slot.is_none_or(|slot| begun.is_empty() || reactor.keep(slot, begun));
        reactor.carry_out(effects, None);
        match slot.filter(|slot| reactor.connections.contains(*slot)) {
            Some(slot) if !is_kept => {
                let now = self.reactor.clock.now();
                self.refuse_to_keep(now, slot);
            }
            // It is read on once the core has seen what has come.
            Some(slot) if !begun.is_empty() => reactor.resume_soon(slot),
            Some(slot) => reactor.arm_read(slot),
            None => {}
        }
        if let Some(slot) = slot.filter(|slot| self.reactor.connections.contains(*slot)) {
            let now = self.reactor.clock.now();
            self.reactor.begin_pings(now, slot);
            self.reactor.after_frames(now, slot);
        }
        self.drain_inputs();
        self.reactor.limit_handshakes(self.bus.free_slots());
        client
    }

    pub(super) fn accepted(&mut self, now: Moment, index: usize, result: i32) {
        let reactor = &mut self.reactor;
        let acceptor = &mut reactor.acceptors[index];
        debug_assert!(acceptor.accepting);
        acceptor.accepting = false;
        if std::mem::take(&mut acceptor.awaiting) {
            acceptor.is_awaited = result >= 0;
            return if reactor.closed_for_good { reactor.close_acceptor(index) } else { reactor.arm_accept(index) };
        }
        // SAFETY: the kernel has just made this descriptor for us.
        let socket = (result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) });
        if let Some(socket) = socket {
            acceptor.delay = FIRST_ACCEPT_DELAY;
            self.take_in(now, index, socket);
            if !self.reactor.closed_for_good {
                return self.reactor.arm_accept(index);
            }
        }
        if self.reactor.closed_for_good {
            self.empty_backlog(now, index);
            return self.reactor.close_acceptor(index);
        }
        let acceptor = &mut self.reactor.acceptors[index];
        if acceptor.listening.is_none() || acceptor.is_shut {
            return;
        }
        if acceptor.reopens {
            return acceptor.retry_at = Some(now);
        }
        acceptor.is_ended = matches!(-result, libc::EINVAL | libc::EBADF | libc::ENOTSOCK | libc::EOPNOTSUPP);
        let error = io::Error::from_raw_os_error(-result);
        // The client gave up before it was accepted, or nothing has happened (accept(2)).
        if matches!(-result, libc::ECONNABORTED | libc::ECANCELED | libc::EAGAIN | libc::EINTR) {
            return self.reactor.arm_accept(index);
        }
        if acceptor.may_tell(now) {
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
        acceptor.retry_at = Some(now.after(acceptor.delay));
        acceptor.delay = (2 * acceptor.delay).min(LONGEST_ACCEPT_DELAY);
    }
}

impl<I: Io> Shell<I> {
    /// Makes a client of a socket that was accepted, unless the core does not take it, or its PROXY header comes first.
    fn take_in(&mut self, now: Moment, index: usize, socket: OwnedFd) {
        let Some(listening) = &self.reactor.acceptors[index].listening else { return };
        let (listener, descriptor) = (listening.listener, socket.as_raw_fd());
        let place = source::of(&socket, listening.is_unix());
        if place == Place::Inherited && self.bus.is_behind_proxies(listener) {
            // Nobody can say any more whether its header would have been believed: a proxy's check, most often.
            let address = &self.reactor.acceptors[index].address;
            tracing::debug!("a connection to {address} was reset before anybody could see where it came from");
            drop(socket);
            return self.reactor.free_descriptor();
        }
        if self.bus.awaits_header(listener, place).is_some() || self.reactor.policies[listener].is_some() {
            return self.begin_handshake(now, AcceptedSocket { socket, acceptor: index, listener, place });
        }
        let client = self.add_client(listener, place.into(), &[], |peer| {
            Connection::new(peer, Kind::Socket, Descriptor::Owned(socket), None)
        });
        if let Some(number) = client.and_then(|client| self.bus.client_number(client)) {
            let address = &self.reactor.acceptors[index].address;
            tracing::debug!(client = number, descriptor, "accepted on {address} from {place}");
        }
    }

    /// Takes in who has connected before a socket is closed for good: closing it would reset them, although the kernel
    /// has told them that they are connected. In one that is not ours they wait for the next daemon.
    fn empty_backlog(&mut self, now: Moment, index: usize) {
        let listening = self.reactor.acceptors[index].listening.as_ref();
        let Some(listening) = listening.filter(|listening| !listening.is_inherited) else { return };
        let Ok(listening) = listening.socket.try_clone() else { return };
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
    pub(super) fn arm_accept(&mut self, index: usize) {
        let acceptor = &mut self.acceptors[index];
        let Some(listening) = &acceptor.listening else { return };
        // At a door it can be said that there is no room, and health be told.
        let is_paused = self.accept_paused && self.policies.get(listening.listener).is_none_or(Option::is_none);
        if acceptor.accepting || acceptor.is_shut || is_paused || acceptor.retry_at.is_some() {
            return;
        }
        acceptor.accepting = true;
        let socket = listening.socket.as_raw_fd();
        // What others gave us may be non-blocking, and then the ring does not wait in accept(2); and a wait takes no
        // connection that the next daemon could have.
        acceptor.awaiting = listening.is_inherited && !std::mem::take(&mut acceptor.is_awaited);
        let accept = match acceptor.awaiting {
            true => Submission::AwaitConnection { socket },
            false => Submission::Accept { socket },
        };
        // SAFETY: the socket stays open while `accepting` is set.
        unsafe { self.io.submit(accept, Operation::Accept.token(index)) };
    }

    /// Whoever connects to a listener is refused from now on. Its sockets keep their addresses.
    pub(super) fn close_listener(&mut self, listener: usize) {
        for acceptor in self.acceptors.iter_mut().filter(|acceptor| acceptor.listener() == Some(listener)) {
            acceptor.is_shut = true;
            if let Some(listening) = &acceptor.listening {
                // An accept that is in flight completes after this. A socket that ceases to listen is made anew.
                let _ = shutdown(&listening.socket, Shutdown::Both);
            }
        }
    }

    /// Listens again where [`Reactor::close_listener`] has ceased to.
    pub(super) fn open_listener(&mut self, listener: usize) {
        let now = self.clock.now();
        for index in 0..self.acceptors.len() {
            let acceptor = &mut self.acceptors[index];
            if acceptor.listener() != Some(listener) || !std::mem::take(&mut acceptor.is_shut) {
                continue;
            }
            (acceptor.is_ended, acceptor.reopens) = (true, true);
            // What is in flight on the old socket completes first, with an error that leads here, too.
            if !acceptor.accepting {
                acceptor.retry_at = Some(now);
            }
        }
        self.retry_accepting(now);
    }

    /// Closes a listening socket, once nothing is accepted from it any more (spec 10.2.1).
    pub(super) fn close_acceptor(&mut self, index: usize) {
        let acceptor = &mut self.acceptors[index];
        acceptor.retry_at = None;
        if acceptor.accepting {
            self.io.cancel(Operation::Accept.token(index));
        } else {
            acceptor.listening = None;
        }
    }

    pub(super) fn retry_accepting(&mut self, now: Moment) {
        for index in 0..self.acceptors.len() {
            if self.acceptors[index].retry_at.is_some_and(|at| at <= now) {
                self.acceptors[index].retry_at = None;
                self.acceptors[index].open_anew_if_ended(now);
                self.arm_accept(index);
            }
        }
    }
}
