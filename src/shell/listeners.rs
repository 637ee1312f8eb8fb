//! The listening sockets: which of them is accepted from, and which waits until that may work again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::handshakes::upgrade::UpgradePolicy;
use super::listen::{KEEPALIVE, Listening, OwnSocket};
use crate::bus::port::Moment;
use crate::config::{Config, Listen, Listener, Owner, WebProtocol};
use crate::error::StartError;

/// How often it is told at most that nothing can be accepted.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// After accept(2) failed: doubled up to the longest.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(1);
/// How long there may be no sign of life of a client over TCP: it is asked three times.
const SILENCE: Duration = Duration::from_secs(3 * KEEPALIVE.as_secs());

/// Says the same thing every ten seconds at most.
#[derive(Default)]
pub(super) struct Throttle {
    told_at: Option<Moment>,
}

impl Throttle {
    /// Whether it is time to say it. If so, it counts as said.
    pub(super) fn may_tell(&mut self, now: Moment) -> bool {
        let is_due = self.told_at.is_none_or(|told| now.since(told) >= TELL_EVERY);
        if is_due {
            self.told_at = Some(now);
        }
        is_due
    }
}

/// Whether a socket listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// It does not listen any more, and is made anew.
    Ended,
    /// The core does not want it to listen for now.
    Shut,
    /// The core wants it to listen again, with a socket that is still to be made.
    Reopening,
}

/// A listening socket and whether it is being accepted from.
pub(super) struct Acceptor {
    /// Gone once the daemon takes no more connections.
    listening: Option<Listening>,
    /// What people call it.
    pub address: String,
    /// Operators come in here, and not clients.
    pub for_admin: bool,
    /// Its listener is not in the configuration any more.
    is_gone: bool,
    /// The kernel waits for a connection to it.
    is_busy: bool,
    state: State,
    /// How long it waits after the next failure.
    delay: Duration,
    /// How often it is said that nothing can be accepted.
    pub throttle: Throttle,
}

impl Acceptor {
    /// An acceptor that is still closed.
    pub(super) fn new(listening: Listening) -> Self {
        let address = listening.address.clone();
        Self {
            listening: Some(listening),
            address,
            for_admin: false,
            is_gone: false,
            is_busy: false,
            state: State::Open,
            delay: FIRST_DELAY,
            throttle: Throttle::default(),
        }
    }

    /// The same one, called as people write its listener.
    pub(super) fn named_by(mut self, listener: &Listener) -> Self {
        self.call(listener);
        self
    }

    /// It is called as people write its listener.
    fn call(&mut self, listener: &Listener) {
        if let Some(listening) = &self.listening {
            let web = listener.web.as_ref();
            self.address = web.map_or_else(|| listening.address.clone(), |web| web.address(&listening.address));
        }
    }

    /// It belongs to this listener from now on, which has the index `at`.
    pub(super) fn belong_to(&mut self, at: usize, listener: &Listener) {
        if let Some(listening) = &mut self.listening {
            listening.listener = at;
        }
        self.call(listener);
    }

    /// That of these sockets that each of its connections could have come to instead.
    pub(super) fn covered_by<'l>(&self, others: &'l [Listening]) -> Option<&'l Listening> {
        let own = self.listening.as_ref()?;
        others.iter().find(|other| other.covers(own))
    }

    /// Its file gets these permissions, if it has one.
    pub(super) fn set_access(&mut self, mode: u32, owner: Owner) -> Result<(), StartError> {
        self.listening.as_mut().map_or(Ok(()), |listening| listening.set_access(mode, owner))
    }

    /// Whether another one may have its place.
    fn is_free(&self) -> bool {
        self.is_gone && self.listening.is_none() && !self.is_busy
    }

    /// The same one, for operators.
    pub(super) fn for_admin(mut self) -> Self {
        self.for_admin = true;
        self
    }

    /// The listener for clients that it belongs to, by its index, while it listens.
    pub(super) fn listener(&self) -> Option<usize> {
        self.listening.as_ref().filter(|_| !self.for_admin).map(|listening| listening.listener)
    }

    pub(super) fn is_unix(&self) -> bool {
        self.listening.as_ref().is_some_and(Listening::is_unix)
    }

    /// Its socket.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.listening.as_ref().map(|listening| listening.socket.as_fd())
    }

    /// Whether who has connected to it would be lost with us.
    pub(super) fn is_own(&self) -> bool {
        self.listening.as_ref().is_some_and(|listening| !listening.is_inherited)
    }

    /// Begins to wait for a connection, if one is to be waited for. Says at which socket.
    pub(super) fn begin(&mut self) -> Option<BorrowedFd<'_>> {
        if self.is_busy || self.state == State::Shut {
            return None;
        }
        let socket = self.listening.as_ref()?.socket.as_fd();
        self.is_busy = true;
        Some(socket)
    }

    /// The wait is over.
    pub(super) fn end(&mut self) {
        self.is_busy = false;
    }

    /// A connection was accepted.
    pub(super) fn works(&mut self) {
        self.delay = FIRST_DELAY;
    }

    /// Whether the kernel holds an operation of it.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Whether it is accepted from no more, at least for now.
    pub(super) fn is_shut(&self) -> bool {
        self.listening.is_none() || self.state == State::Shut
    }

    /// Whether it waits only for what was in flight to listen again.
    pub(super) fn is_reopening(&self) -> bool {
        self.state == State::Reopening
    }

    /// Accepting has failed in this way: how long it waits now.
    pub(super) fn fail(&mut self, error: Errno) -> Duration {
        let is_ended = matches!(error, Errno::INVAL | Errno::BADF | Errno::NOTSOCK | Errno::OPNOTSUPP);
        self.state = if is_ended { State::Ended } else { State::Open };
        let delay = self.delay;
        self.delay = (2 * delay).min(LONGEST_DELAY);
        delay
    }

    /// New connections are refused from now on. The socket keeps its address.
    fn shut(&mut self) {
        self.state = State::Shut;
        if let Some(listening) = &self.listening {
            // A wait that is in flight completes after this. A socket that ceases to listen is made anew.
            let _ = shutdown(&listening.socket, Shutdown::Both);
        }
    }

    /// Listens again once the old socket has nothing in flight. False if it was not shut.
    pub(super) fn reopen(&mut self) -> bool {
        let was_shut = self.state == State::Shut;
        if was_shut {
            self.state = State::Reopening;
        }
        was_shut
    }

    /// Closes its socket, or accepts no more from it if something is in flight on it. True if that is to be cancelled.
    pub(super) fn close(&mut self) -> bool {
        match self.is_busy {
            true => self.state = State::Shut,
            false => self.listening = None,
        }
        self.is_busy
    }

    /// A socket that somebody has ended is made anew: nothing is in flight on it. If that fails, it says how long to wait.
    pub(super) fn open_anew_if_ended(&mut self, now: Moment) -> Result<(), Duration> {
        let is_ended = matches!(self.state, State::Ended | State::Reopening);
        let Some(listening) = self.listening.as_ref().filter(|_| is_ended) else { return Ok(()) };
        match listening.open_anew() {
            Ok(listening) => {
                self.listening = Some(listening);
                // Of what the core wants it tells itself.
                if std::mem::replace(&mut self.state, State::Open) == State::Ended {
                    tracing::warn!("listening on {} again", self.address);
                }
                Ok(())
            }
            Err(error) => {
                if self.throttle.may_tell(now) {
                    tracing::error!(reason = "accept_paused", "cannot listen on {} again: {error}", self.address);
                }
                Err(self.delay)
            }
        }
    }
}

/// What the clients of a listener may do.
pub(super) struct Terms {
    /// How long they may give no sign of life, if that is looked at.
    silence_allowed: Option<Duration>,
    /// Who is let in, if they speak WebSocket.
    policy: Option<UpgradePolicy>,
}

impl Terms {
    pub(super) fn of(listener: &Listener, config: &Config) -> Self {
        let is_tcp = matches!(listener.listen, Listen::Tcp { .. });
        Self { silence_allowed: is_tcp.then_some(SILENCE), policy: UpgradePolicy::of(listener, config) }
    }
}

/// All of them.
pub(super) struct Listeners {
    acceptors: Vec<Acceptor>,
    /// Of each listener.
    pub terms: Vec<Terms>,
    /// The core takes no more clients for now.
    pub is_paused: bool,
    /// It takes no more at all.
    pub is_closed: bool,
}

impl Listeners {
    pub(super) fn new(acceptors: Vec<Acceptor>, terms: Vec<Terms>) -> Self {
        Self { acceptors, terms, is_paused: false, is_closed: false }
    }

    /// So many sockets.
    pub(super) fn len(&self) -> usize {
        self.acceptors.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Acceptor> {
        self.acceptors.iter()
    }

    /// Puts one where there is room for it. Gives its index.
    pub(super) fn add(&mut self, acceptor: Acceptor) -> usize {
        match self.acceptors.iter().position(Acceptor::is_free) {
            Some(free) => {
                self.acceptors[free] = acceptor;
                free
            }
            None => {
                self.acceptors.push(acceptor);
                self.acceptors.len() - 1
            }
        }
    }

    /// Nothing comes in there any more, once nothing is in flight on it.
    pub(super) fn give_up(&mut self, index: usize) {
        self.acceptors[index].is_gone = true;
    }

    pub(super) fn acceptor(&mut self, index: usize) -> &mut Acceptor {
        &mut self.acceptors[index]
    }

    /// What people call a socket.
    pub(super) fn address(&self, index: usize) -> &str {
        &self.acceptors[index].address
    }

    /// How long clients of a listener may give no sign of life, if that is looked at.
    pub(super) fn silence_allowed(&self, listener: usize) -> Option<Duration> {
        self.terms.get(listener)?.silence_allowed
    }

    /// Whether clients of a listener speak WebSocket.
    pub(super) fn speaks_web(&self, listener: usize) -> bool {
        self.policy(listener).is_some()
    }

    /// Whether clients of a listener speak MCP over HTTP.
    pub(super) fn speaks_mcp(&self, listener: usize) -> bool {
        self.policy(listener).is_some_and(|policy| policy.terms.protocol == WebProtocol::Mcp)
    }

    /// Who is let in at a listener for WebSockets, or for MCP over HTTP.
    pub(super) fn policy(&self, listener: usize) -> Option<&UpgradePolicy> {
        self.terms.get(listener)?.policy.as_ref()
    }

    /// The same one, whose tokens may change.
    pub(super) fn policy_mut(&mut self, listener: usize) -> Option<&mut UpgradePolicy> {
        self.terms.get_mut(listener)?.policy.as_mut()
    }

    /// Whether a socket is not accepted from for now. Where WebSocket is spoken it can be said that there is no room, and
    /// health be told; and operators may always come.
    pub(super) fn is_paused(&self, index: usize) -> bool {
        let listener = self.acceptors[index].listener();
        self.is_paused && listener.is_some_and(|listener| !self.speaks_web(listener))
    }

    /// Those that are not given up.
    pub(super) fn there(&self) -> impl Iterator<Item = &Acceptor> + Clone {
        self.acceptors.iter().filter(|acceptor| !acceptor.is_gone)
    }

    /// Those of TCP that go when we close them.
    pub(super) fn own_tcp(&self) -> io::Result<Vec<OwnSocket>> {
        let of = |acceptor: &Acceptor| {
            let socket = acceptor.listening.as_ref()?.own_tcp()?;
            Some(socket.map(|socket| (acceptor.listener(), socket)))
        };
        self.there().filter_map(of).collect()
    }

    /// Whether a socket is to be closed once nothing is in flight on it.
    pub(super) fn is_closed(&self, index: usize) -> bool {
        let acceptor = &self.acceptors[index];
        acceptor.is_gone || self.is_closed && !acceptor.for_admin
    }

    /// New connections to a listener are refused from now on. Its sockets keep their addresses.
    pub(super) fn close_listener(&mut self, listener: usize) {
        self.acceptors.iter_mut().filter(|acceptor| acceptor.listener() == Some(listener)).for_each(Acceptor::shut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_and_goes_is_told_every_ten_seconds_at_most() {
        let mut throttle = Throttle::default();
        let told = (0..300).filter(|at| throttle.may_tell(Moment(at * 100_000_000))).count();
        assert_eq!(told, 3);
    }
}
