//! Where clients come in: accepting, waiting when that fails for want of descriptors, and closing for good.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use io_uring::{opcode, types};

use super::connection::{Descriptor, Kind, Link};
use super::listen::Listening;
use super::{Operation, Shell, source};
use crate::bus::port::{ClientKey, Moment, Peer, Source};

/// After accept(2) failed for want of descriptors or memory: doubled up to the longest.
const FIRST_ACCEPT_DELAY: Duration = Duration::from_millis(100);
const LONGEST_ACCEPT_DELAY: Duration = Duration::from_secs(1);

/// A listening socket and whether it is being accepted from.
pub(super) struct Gate {
    /// Gone once the daemon takes no more clients.
    pub listening: Option<Listening>,
    pub address: String,
    pub accepting: bool,
    pub retry_at: Option<Moment>,
    pub delay: Duration,
}

impl Gate {
    /// A gate that is still closed.
    pub fn new(listening: Listening) -> Self {
        let address = listening.address.clone();
        Self { listening: Some(listening), address, accepting: false, retry_at: None, delay: FIRST_ACCEPT_DELAY }
    }
}

impl Shell {
    pub(super) fn add_client(
        &mut self,
        listener: usize,
        source: Source,
        link: impl FnOnce(Peer) -> Link,
    ) -> Option<ClientKey> {
        let (client, effects) = self.bus.connect(self.clock.now(), listener, source);
        let effects = effects.collect();
        if let Some(client) = client {
            let slot = self.links.insert(link(Peer::Client(client)));
            self.clients[client.index()] = Some(slot);
            self.arm_read(slot);
        }
        self.carry_out(effects, None);
        client
    }

    pub(super) fn arm_accept(&mut self, index: usize) {
        let gate = &mut self.gates[index];
        let Some(listening) = &gate.listening else { return };
        if gate.accepting || self.accept_paused || gate.retry_at.is_some() {
            return;
        }
        gate.accepting = true;
        let socket = types::Fd(listening.socket.as_raw_fd());
        let entry = opcode::Accept::new(socket, std::ptr::null_mut(), std::ptr::null_mut()).flags(libc::SOCK_CLOEXEC);
        // SAFETY: the socket stays open as long as the shell lives, and no address is asked for.
        unsafe { self.ring.submit(entry.build().user_data(Operation::Accept.token(index))) };
    }

    pub(super) fn accepted(&mut self, now: Moment, index: usize, result: i32) {
        let gate = &mut self.gates[index];
        gate.accepting = false;
        if self.closed_for_good {
            if result >= 0 {
                // SAFETY: the kernel has just made this descriptor for us; the client came too late.
                drop(unsafe { OwnedFd::from_raw_fd(result) });
            }
            return self.close_gate(index);
        }
        let Some(listening) = &gate.listening else { return };
        let (listener, is_unix) = (listening.listener, listening.is_unix());
        if result >= 0 {
            gate.delay = FIRST_ACCEPT_DELAY;
            // SAFETY: the kernel has just made this descriptor for us.
            let socket = unsafe { OwnedFd::from_raw_fd(result) };
            let source = source::of(&socket, is_unix);
            let client = self.add_client(listener, source, |peer| {
                Link::new(peer, Kind::Socket, Descriptor::Owned(socket), None, None)
            });
            if let Some(number) = client.and_then(|client| self.bus.client_number(client)) {
                tracing::debug!(
                    client = number,
                    descriptor = result,
                    "accepted on {} from {source}",
                    self.gates[index].address
                );
            }
            return self.arm_accept(index);
        }
        let error = io::Error::from_raw_os_error(-result);
        match -result {
            libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM => {
                if gate.delay == FIRST_ACCEPT_DELAY {
                    tracing::error!(
                        reason = "accept_paused",
                        "cannot accept on {}: {error}; trying again until it works. Raise RLIMIT_NOFILE (ulimit -n, \
                         LimitNOFILE)",
                        gate.address
                    );
                }
                gate.retry_at = Some(now.after(gate.delay));
                gate.delay = (2 * gate.delay).min(LONGEST_ACCEPT_DELAY);
            }
            // The client gave up before it was accepted.
            _ => self.arm_accept(index),
        }
    }

    /// Closes a listening socket, once nothing is accepted from it any more (spec 10.2.1).
    pub(super) fn close_gate(&mut self, index: usize) {
        let gate = &mut self.gates[index];
        gate.retry_at = None;
        if gate.accepting {
            self.ring.cancel(Operation::Accept.token(index));
        } else {
            gate.listening = None;
        }
    }

    pub(super) fn retry_gates(&mut self, now: Moment) {
        for index in 0..self.gates.len() {
            if self.gates[index].retry_at.is_some_and(|at| at <= now) {
                self.gates[index].retry_at = None;
                self.arm_accept(index);
            }
        }
    }
}
