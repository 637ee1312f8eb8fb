//! Accepts connections, backs off while that fails for lack of descriptors, and closes listeners for good.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

use super::connection_counts::Purpose;
use super::connections::Connections;
use super::endpoint::Endpoint;
use super::http::exchange::{Accepted, OPERATORS};
use super::listen::BACKLOG;
use super::listeners::ListenState;
use super::operation::Operation;
use super::peer_origin;
use super::reactor::Reactor;
use super::timers::Timer;
use super::transport::Transport;
use super::turn::Shell;
use crate::bus::port::{ClientKey, Input, ListenerId, Moment, Origin, Peer, Place};
use crate::io::{Io, Submission};

/// Maximum number of connections accepted from one socket in a turn; the others wait in the backlog.
const AT_ONCE: usize = 16;

impl<I: Io> Shell<I> {
    /// Makes a new connection a client.
    pub(super) fn add_client(
        &mut self,
        listener: ListenerId,
        origin: Origin,
        transport: Transport,
    ) -> Option<ClientKey> {
        self.connect(listener, origin, &[], |connections, client| {
            connections.add(transport, Endpoint::of(Peer::Client(client)))
        })
    }

    /// Makes a connection a client, which `add` puts into the table. `begun` was received from it already.
    pub(super) fn connect(
        &mut self,
        listener: ListenerId,
        origin: Origin,
        begun: &[u8],
        add: impl FnOnce(&mut Connections, ClientKey) -> usize,
    ) -> Option<ClientKey> {
        let reactor = &mut self.reactor;
        let now = reactor.clock.now();
        let (client, effects) = self.bus.connect(now, listener, origin);
        let added = client.map(|client| (add(&mut reactor.connections, client), client));
        let mut is_kept = true;
        if let Some((slot, client)) = added {
            reactor.notify.changed();
            if let Some(web) = reactor.connections.entry(slot).protocol.web_mut() {
                web.heartbeat.begin(now, client.serial());
            }
            reactor.track_liveness(now, listener, slot);
            is_kept = begun.is_empty() || reactor.keep(slot, begun);
        }
        reactor.carry_out(effects, None);
        if let Some((slot, _)) = added.filter(|(slot, _)| reactor.connections.peer(*slot).is_some()) {
            if !is_kept {
                reactor.refuse_to_keep(now, slot);
            } else if begun.is_empty() {
                reactor.arm_read(slot);
            } else {
                // Reading continues once the core has processed these bytes.
                reactor.connections.resume_soon(slot);
            }
            reactor.after_frames(now, slot);
        }
        self.reactor.limit_handshakes(now, self.bus.view().free_slots());
        client
    }

    /// A listening socket has a pending connection, or failed.
    pub(super) fn connected(&mut self, now: Moment, index: usize, result: i32) {
        let acceptor = &mut self.reactor.listeners.acceptors[index];
        debug_assert!(acceptor.is_busy);
        acceptor.is_busy = false;
        if self.reactor.listeners.is_closed(index) {
            self.empty_backlog(now, index);
            return self.reactor.close_acceptor(index);
        }
        let is_gone = result > 0 && result & i32::from(libc::POLLERR | libc::POLLHUP) != 0;
        if self.reactor.listeners.is_held(index) && result >= 0 && !is_gone {
            return;
        }
        if self.reactor.listeners.is_paused(index) && result >= 0 && !is_gone {
            // It is accepted once a client has left: the core may close one for that.
            self.reactor.listeners.acceptors[index].has_reported_waiting = true;
            return self.reactor.dispatch(now, Input::ConnectionQueued);
        }
        match if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { self.accept_some(now, index) } {
            // A Unix socket that stopped listening reports that only to a blocking accept(2).
            Err(Errno::AGAIN) if is_gone => self.reactor.cannot_accept(now, index, Errno::INVAL),
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::CANCELED) => self.reactor.arm_accept(index),
            Err(error) => self.reactor.cannot_accept(now, index, error),
        }
    }

    /// Accepts pending connections of a socket, at least one, until another would need the place of an existing one.
    fn accept_some(&mut self, now: Moment, index: usize) -> Result<(), Errno> {
        for number in 0..AT_ONCE {
            if !self.reactor.is_accepting(index) || number > 0 && !self.reactor.has_room(index) {
                break;
            }
            self.accept_next(now, index)?;
        }
        Ok(())
    }

    /// Accepts the next pending connection of a socket.
    fn accept_next(&mut self, now: Moment, index: usize) -> Result<(), Errno> {
        let reactor = &mut self.reactor;
        let listening = reactor.listeners.acceptors[index].socket().ok_or(Errno::AGAIN)?;
        match reactor.io.accept_now(listening) {
            Ok((socket, address)) => {
                reactor.listeners.acceptors[index].works();
                self.step(|shell| shell.admit_socket(now, index, socket, address));
                Ok(())
            }
            // The peer aborted before accept(2).
            Err(Errno::CONNABORTED) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes an accepted socket a client, unless the core refuses it, or a PROXY header is expected first.
    fn admit_socket(&mut self, now: Moment, index: usize, socket: OwnedFd, address: Option<SocketAddr>) {
        let acceptor = &mut self.reactor.listeners.acceptors[index];
        let (is_unix, listener) = (acceptor.is_unix(), acceptor.listener().unwrap_or(OPERATORS));
        let place = peer_origin::of(&socket, address, is_unix);
        let accepted = Accepted { socket, acceptor: index, listener, place };
        if listener == OPERATORS {
            return self.admin_connected(now, accepted, is_unix);
        }
        if place == Place::Inherited && self.bus.view().is_behind_proxies(listener) {
            // It is unknown whether its header would have been trusted: usually a proxy's health check.
            let address = &acceptor.address;
            tracing::debug!("a connection to {address} was reset before its address was known");
            drop(accepted);
            return self.reactor.free_descriptor();
        }
        let awaits_header = self.bus.view().awaits_header(listener, place);
        if awaits_header || self.reactor.listeners.speaks_web(listener) {
            return match !awaits_header && self.reactor.listeners.takes_requests(listener) {
                true => self.http_connected(now, accepted),
                false => self.begin_handshake(now, accepted, awaits_header),
            };
        }
        let descriptor = accepted.socket.as_raw_fd();
        let client = self.add_client(listener, place.into(), Transport::of_socket(accepted.socket));
        if let Some(number) = client.and_then(|client| self.bus.view().client_number(client)) {
            let address = &self.reactor.listeners.acceptors[index].address;
            tracing::debug!(client = number, descriptor, "accepted on {address} from {place}");
        }
    }

    /// Accepts the pending connections before a socket is closed for good: closing it would reset them, although they
    /// are connected as far as the peers know. Those of an inherited socket wait for the next daemon. While all places over
    /// HTTP are taken, the others are closed: none of those that have one gives way to what is not served any more either,
    /// and to choose one for each of thousands would hold up the loop for seconds.
    pub(super) fn empty_backlog(&mut self, now: Moment, index: usize) {
        let acceptor = &self.reactor.listeners.acceptors[index];
        let needs_places = acceptor.listener().is_some_and(|listener| {
            self.reactor.listeners.speaks_web(listener) || self.bus.view().is_behind_proxies(listener)
        });
        if acceptor.listening.as_ref().is_none_or(|listening| listening.is_inherited) {
            return;
        }
        let mut closed = 0;
        for _ in 0..BACKLOG {
            let is_full = needs_places && !self.reactor.has_room(index);
            let accepted = if is_full { self.close_next(index) } else { self.accept_next(now, index) };
            if accepted.is_err() {
                break;
            }
            closed += u32::from(is_full);
        }
        if closed > 0 {
            let address = &self.reactor.listeners.acceptors[index].address;
            tracing::warn!(
                reason = "accept_paused",
                "{closed} connections to {address} were not accepted yet, and are closed with it: all places are taken"
            );
        }
    }

    /// Closes the next pending connection of a socket.
    fn close_next(&mut self, index: usize) -> Result<(), Errno> {
        let reactor = &mut self.reactor;
        let listening = reactor.listeners.acceptors[index].socket().ok_or(Errno::AGAIN)?;
        match reactor.io.accept_now(listening) {
            Ok(_) | Err(Errno::CONNABORTED) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl<I: Io> Reactor<I> {
    /// Whether connections to a socket are accepted now. After a failure it waits for its retry.
    fn is_accepting(&self, index: usize) -> bool {
        !self.listeners.is_paused(index) && !self.timers.is_set(Timer::Accept(index))
    }

    /// Whether it has to be noticed that a connection waits for a slot.
    fn is_watching(&self, index: usize) -> bool {
        let has_told = self.listeners.acceptors[index].has_reported_waiting;
        let may_watch = self.listeners.is_paused(index) && !self.listeners.is_held(index);
        may_watch && !has_told && !self.timers.is_set(Timer::Accept(index))
    }

    /// Whether another connection needs no eviction: the descriptor of an evicted one is free only in the next turn.
    fn has_room(&mut self, index: usize) -> bool {
        let counts = &self.connections.counts;
        !self.listeners.acceptors[index].for_admin
            && counts.has_room(Purpose::Requests)
            && counts.has_room(Purpose::Handshake)
    }

    /// Arms the wait for a connection. While the listener is paused, the first one that waits is still noticed.
    pub(super) fn arm_accept(&mut self, index: usize) {
        if !self.is_accepting(index) && !self.is_watching(index) {
            return;
        }
        self.await_connection(index);
    }

    fn await_connection(&mut self, index: usize) {
        let Some(socket) = self.listeners.acceptors[index].begin() else { return };
        let socket = socket.as_raw_fd();
        // SAFETY: the socket stays open while this is in flight.
        unsafe { self.io.submit(Submission::AwaitConnection { socket }, Operation::Accept.token(index)) };
    }

    /// Accepting from a socket failed: schedules a retry, unless it is closed.
    fn cannot_accept(&mut self, now: Moment, index: usize, error: Errno) {
        let acceptor = &mut self.listeners.acceptors[index];
        if acceptor.listening.is_none() || acceptor.state == ListenState::Shut {
            return;
        }
        if acceptor.state == ListenState::Reopening {
            return self.retry_accepting(now, index);
        }
        if acceptor.throttle.may_report(now) {
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

    /// Retries a socket from which accepting failed.
    pub(super) fn retry_accepting(&mut self, now: Moment, index: usize) {
        self.timers.set(Timer::Accept(index), None);
        match self.listeners.acceptors[index].open_anew_if_ended(now) {
            Ok(()) => self.arm_accept(index),
            Err(delay) => self.timers.set(Timer::Accept(index), Some(now.after(delay))),
        }
    }

    /// A descriptor was closed: accepting may work again.
    pub(super) fn free_descriptor(&mut self) {
        for index in 0..self.listeners.acceptors.len() {
            if self.timers.is_set(Timer::Accept(index)) {
                self.timers.set(Timer::Accept(index), Some(self.clock.now()));
            }
        }
    }

    /// Arms the wait at every socket that may accept.
    pub(super) fn start_accepting(&mut self) {
        (0..self.listeners.acceptors.len()).for_each(|index| self.arm_accept(index));
    }

    /// Listens again at a listener that was closed.
    pub(super) fn open_listener(&mut self, listener: ListenerId) {
        let now = self.clock.now();
        for index in 0..self.listeners.acceptors.len() {
            let acceptor = &mut self.listeners.acceptors[index];
            if acceptor.listener() != Some(listener) || acceptor.state != ListenState::Shut {
                continue;
            }
            acceptor.state = ListenState::Reopening;
            // Operations on the old socket complete first, with an error that leads here, too.
            if !acceptor.is_busy {
                self.retry_accepting(now, index);
            }
        }
    }

    /// The core takes no more clients. Operators are still admitted.
    pub(super) fn stop_accepting(&mut self) {
        self.listeners.is_closed = true;
        self.close_acceptors();
    }

    /// Other daemons take all new clients of the ports that they share with us.
    pub(super) fn leave_shared_ports(&mut self) {
        self.listeners.leaves_shared = true;
        for acceptor in self.listeners.there().filter(|acceptor| self.listeners.has_left(acceptor)) {
            tracing::info!("stopped listening on {}, whose port other daemons share", acceptor.address);
        }
        self.close_acceptors();
    }

    /// Closes the listening sockets that are to be closed. What waits in them is accepted before (`empty_backlog`), also
    /// where nothing was awaited, since the table was full.
    pub(super) fn close_acceptors(&mut self) {
        for index in 0..self.listeners.acceptors.len() {
            if self.listeners.is_closed(index) {
                self.await_connection(index);
                self.close_acceptor(index);
            }
        }
    }

    /// Closes a listening socket for good (spec 10.2.1).
    pub(super) fn close_acceptor(&mut self, index: usize) {
        self.timers.set(Timer::Accept(index), None);
        if self.listeners.acceptors[index].close() {
            self.cancel(Operation::Accept, index);
        }
    }
}
