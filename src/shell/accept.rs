//! Where clients come in: accepting, waiting when that fails for want of descriptors, and closing for good.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::acceptor::{FIRST_ACCEPT_DELAY, LONGEST_ACCEPT_DELAY};
use super::connection::{Connection, Descriptor, Kind};
use super::hands::Hands;
use super::operation::Operation;
use super::{Shell, source};
use crate::bus::port::{ClientKey, Moment, Peer, Source};
use crate::io::{Io, Submission};

impl<I: Io> Shell<I> {
    pub(super) fn add_client(
        &mut self,
        listener: usize,
        source: Source,
        connection: impl FnOnce(Peer) -> Connection,
    ) -> Option<ClientKey> {
        let hands = &mut self.hands;
        let (client, effects) = self.bus.connect(hands.clock.now(), listener, source);
        let slot = client.map(|client| {
            let slot = hands.connections.insert(connection(Peer::Client(client)));
            hands.clients[client.index()] = Some(slot);
            slot
        });
        hands.carry_out(effects, None);
        if let Some(slot) = slot {
            hands.arm_read(slot);
        }
        self.tell_news();
        client
    }

    pub(super) fn accepted(&mut self, now: Moment, index: usize, result: i32) {
        let hands = &mut self.hands;
        let acceptor = &mut hands.acceptors[index];
        debug_assert!(acceptor.accepting);
        acceptor.accepting = false;
        if hands.closed_for_good {
            if result >= 0 {
                // SAFETY: the kernel has just made this descriptor for us; the client came too late.
                drop(unsafe { OwnedFd::from_raw_fd(result) });
            }
            return hands.close_acceptor(index);
        }
        let Some(listening) = &acceptor.listening else { return };
        let (listener, is_unix) = (listening.listener, listening.is_unix());
        if result >= 0 {
            acceptor.delay = FIRST_ACCEPT_DELAY;
            // SAFETY: the kernel has just made this descriptor for us.
            let socket = unsafe { OwnedFd::from_raw_fd(result) };
            let source = source::of(&socket, is_unix);
            let client = self.add_client(listener, source, |peer| {
                Connection::new(peer, Kind::Socket, Descriptor::Owned(socket), None, None)
            });
            if let Some(number) = client.and_then(|client| self.bus.client_number(client)) {
                tracing::debug!(
                    client = number,
                    descriptor = result,
                    "accepted on {} from {source}",
                    self.hands.acceptors[index].address
                );
            }
            return self.hands.arm_accept(index);
        }
        acceptor.is_ended = matches!(-result, libc::EINVAL | libc::EBADF | libc::ENOTSOCK | libc::EOPNOTSUPP);
        let error = io::Error::from_raw_os_error(-result);
        // The client gave up before it was accepted, or nothing has happened (accept(2)).
        if matches!(-result, libc::ECONNABORTED | libc::ECANCELED | libc::EAGAIN | libc::EINTR) {
            return self.hands.arm_accept(index);
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

impl<I: Io> Hands<I> {
    pub(super) fn arm_accept(&mut self, index: usize) {
        let acceptor = &mut self.acceptors[index];
        let Some(listening) = &acceptor.listening else { return };
        if acceptor.accepting || self.accept_paused || acceptor.retry_at.is_some() {
            return;
        }
        acceptor.accepting = true;
        let accept = Submission::Accept { socket: listening.socket.as_raw_fd() };
        // SAFETY: the socket stays open while `accepting` is set.
        unsafe { self.io.submit(accept, Operation::Accept.token(index)) };
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

    /// A socket that somebody has ended is made anew: nothing is in flight on it.
    fn open_anew_if_ended(&mut self, now: Moment, index: usize) {
        let acceptor = &mut self.acceptors[index];
        let Some(listening) = acceptor.listening.as_ref().filter(|_| acceptor.is_ended) else { return };
        match listening.open_anew() {
            Ok(listening) => {
                acceptor.listening = Some(listening);
                acceptor.is_ended = false;
                tracing::warn!("listening on {} again", acceptor.address);
            }
            Err(error) => {
                acceptor.retry_at = Some(now.after(acceptor.delay));
                if acceptor.may_tell(now) {
                    tracing::error!(reason = "accept_paused", "cannot listen on {} again: {error}", acceptor.address);
                }
            }
        }
    }

    pub(super) fn retry_accepting(&mut self, now: Moment) {
        for index in 0..self.acceptors.len() {
            if self.acceptors[index].retry_at.is_some_and(|at| at <= now) {
                self.acceptors[index].retry_at = None;
                self.open_anew_if_ended(now, index);
                self.arm_accept(index);
            }
        }
    }
}
