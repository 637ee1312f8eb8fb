//! The table of listening sockets: which are accepted from, and which wait for a retry.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::access::{Access, Grants};
use super::listen::{Listening, OwnSocket};
use crate::bus::port::{ListenerId, Moment};
use crate::config::{Config, Listener};
use crate::kinds::Requests;

/// Interval of messages that nothing can be accepted.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// The first delay after accept(2) failed; doubled up to the maximum.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// Limits a repeated message to one in ten seconds.
#[derive(Default)]
pub(super) struct Throttle {
    reported_at: Option<Moment>,
}

impl Throttle {
    /// Whether the message is due. If so, it counts as sent.
    pub(super) fn may_report(&mut self, now: Moment) -> bool {
        let is_due = self.reported_at.is_none_or(|at| now.since(at) >= REPORT_EVERY);
        if is_due {
            self.reported_at = Some(now);
        }
        is_due
    }
}

/// The state of a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenState {
    Open,
    /// It was shut down, and is replaced.
    Ended,
    /// The core has closed it for now.
    Shut,
    /// The core wants it to listen again, with a socket that is not open yet.
    Reopening,
}

/// A listening socket and its accept state.
pub(super) struct Acceptor {
    /// None once the daemon accepts no more connections.
    pub listening: Option<Listening>,
    /// Its display name.
    pub address: String,
    /// It is for operators rather than clients.
    pub for_admin: bool,
    /// Its listener is no longer in the configuration.
    pub is_gone: bool,
    /// A wait for a connection is in flight.
    pub is_busy: bool,
    /// While accepting was paused, it was reported to the core that a connection waits here.
    pub has_reported_waiting: bool,
    pub state: ListenState,
    /// The delay after the next failure.
    delay: Duration,
    /// Limits the message that nothing can be accepted.
    pub throttle: Throttle,
}

/// The address of a socket as that of its listener.
fn display_name(listening: &Listening, listener: Option<&Listener>) -> String {
    let web = listener.and_then(|listener| listener.web.as_ref());
    web.map_or_else(|| listening.address.clone(), |web| web.address(&listening.address))
}

impl Acceptor {
    /// An acceptor that is not armed yet.
    pub(super) fn new(listening: Listening, listeners: &[Listener]) -> Self {
        let listener = listeners.get(listening.listener.index());
        Self {
            address: display_name(&listening, listener),
            listening: Some(listening),
            for_admin: listener.is_none(),
            is_gone: false,
            is_busy: false,
            has_reported_waiting: false,
            state: ListenState::Open,
            delay: FIRST_DELAY,
            throttle: Throttle::default(),
        }
    }

    /// Assigns it to this listener, which has the id `at`.
    pub(super) fn belong_to(&mut self, at: ListenerId, listener: &Listener) {
        if let Some(listening) = &mut self.listening {
            listening.listener = at;
            self.address = display_name(listening, Some(listener));
        }
    }

    /// Its client listener, while it listens.
    pub(super) fn listener(&self) -> Option<ListenerId> {
        self.listening.as_ref().filter(|_| !self.for_admin).map(|listening| listening.listener)
    }

    pub(super) fn is_unix(&self) -> bool {
        self.listening.as_ref().is_some_and(Listening::is_unix)
    }

    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.listening.as_ref().map(|listening| listening.socket.as_fd())
    }

    /// Begins a wait for a connection, if it should. Returns the socket.
    pub(super) fn begin(&mut self) -> Option<BorrowedFd<'_>> {
        if self.is_busy || self.state == ListenState::Shut {
            return None;
        }
        let socket = self.listening.as_ref()?.socket.as_fd();
        self.is_busy = true;
        Some(socket)
    }

    /// Records a successful accept.
    pub(super) fn works(&mut self) {
        self.delay = FIRST_DELAY;
    }

    /// Records a failed accept. Returns the delay.
    pub(super) fn fail(&mut self, error: Errno) -> Duration {
        let is_ended = matches!(error, Errno::INVAL | Errno::BADF | Errno::NOTSOCK | Errno::OPNOTSUPP);
        self.state = if is_ended { ListenState::Ended } else { ListenState::Open };
        let delay = self.delay;
        self.delay = (2 * delay).min(LONGEST_DELAY);
        delay
    }

    /// Refuses new connections. The socket keeps its address.
    fn shut(&mut self) {
        self.state = ListenState::Shut;
        if let Some(listening) = &self.listening {
            // A wait in flight completes after this. The socket has to be replaced afterwards.
            let _ = shutdown(&listening.socket, Shutdown::Both);
        }
    }

    /// Closes its socket, or only stops accepting if something is in flight on it. True if that has to be cancelled.
    pub(super) fn close(&mut self) -> bool {
        match self.is_busy {
            true => self.state = ListenState::Shut,
            false => self.listening = None,
        }
        self.is_busy
    }

    /// Replaces a socket that was shut down: nothing is in flight on it. If that fails, returns the delay of a retry.
    pub(super) fn open_anew_if_ended(&mut self, now: Moment) -> Result<(), Duration> {
        let is_ended = matches!(self.state, ListenState::Ended | ListenState::Reopening);
        let Some(listening) = self.listening.as_ref().filter(|_| is_ended) else { return Ok(()) };
        match listening.open_anew() {
            Ok(listening) => {
                self.listening = Some(listening);
                // The core logs the changes that it asks for.
                if std::mem::replace(&mut self.state, ListenState::Open) == ListenState::Ended {
                    tracing::warn!("listening on {} again", self.address);
                }
                Ok(())
            }
            Err(error) => {
                if self.throttle.may_report(now) {
                    tracing::error!(reason = "accept_paused", "cannot listen on {} again: {error}", self.address);
                }
                Err(self.delay)
            }
        }
    }
}

/// The terms of a listener's clients.
pub(super) struct ClientTerms {
    /// They come over a network, which may fail silently.
    pub is_tcp: bool,
    /// Their access policy, if it is served over HTTP.
    pub policy: Option<Access>,
}

impl ClientTerms {
    pub(super) fn of(listener: &Listener, config: &Config) -> Self {
        let is_tcp = listener.listen.host_and_port().is_some();
        Self { is_tcp, policy: Access::of(listener, config) }
    }
}

/// All listening sockets.
pub(super) struct Listeners {
    pub acceptors: Vec<Acceptor>,
    /// The terms of each listener.
    pub terms: Vec<ClientTerms>,
    /// Who was admitted by tokens.
    pub grants: Grants,
    /// The core admits no more clients for now.
    pub is_paused: bool,
    /// The listeners that the operator has paused.
    held: Vec<ListenerId>,
    /// It admits no more at all.
    pub is_closed: bool,
    /// It leaves ports that other daemons share.
    pub leaves_shared: bool,
}

impl Listeners {
    pub(super) fn new(acceptors: Vec<Acceptor>, terms: Vec<ClientTerms>, keeps_own: bool) -> Self {
        Self {
            acceptors,
            terms,
            grants: Grants::new(keeps_own),
            is_paused: false,
            held: Vec::new(),
            is_closed: false,
            leaves_shared: false,
        }
    }

    /// Applies a new configuration. The clients of a removed listener are judged by the tokens that its file had when it
    /// was last read: the configuration keeps only those of the last load.
    pub(super) fn configure(&mut self, config: &Config) {
        let terms = config.listeners.iter().map(|listener| ClientTerms::of(listener, config)).collect();
        let before = std::mem::replace(&mut self.terms, terms);
        for ((listener, terms), before) in config.listeners.iter().zip(&mut self.terms).zip(before) {
            if listener.is_gone
                && let (Some(policy), Some(before)) = (&mut terms.policy, before.policy)
            {
                policy.terms.access.tokens = before.terms.access.tokens;
            }
        }
        self.grants.keeps_own = config.has_personal_pools();
    }

    /// Adds an acceptor in a free slot, and returns the index.
    pub(super) fn add(&mut self, acceptor: Acceptor) -> usize {
        let is_free = |old: &Acceptor| old.is_gone && old.listening.is_none() && !old.is_busy;
        match self.acceptors.iter().position(is_free) {
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

    /// Whether a listener's clients speak WebSocket.
    pub(super) fn speaks_web(&self, listener: ListenerId) -> bool {
        self.policy(listener).is_some()
    }

    /// Whether a listener serves requests over connections that come and go, so that its clients are no connections.
    pub(super) fn takes_requests(&self, listener: ListenerId) -> bool {
        self.requests(listener).is_some()
    }

    /// The protocol of those requests.
    pub(super) fn requests(&self, listener: ListenerId) -> Option<Requests> {
        self.policy(listener)?.terms.kind.requests()
    }

    /// Whether a request to a listener may ask for a WebSocket.
    pub(super) fn takes_websockets(&self, listener: ListenerId) -> bool {
        let web = self.policy(listener).and_then(|policy| policy.terms.kind.web());
        web.is_some_and(|web| web.has_websockets)
    }

    /// The access policy of a listener over HTTP.
    pub(super) fn policy(&self, listener: ListenerId) -> Option<&Access> {
        self.terms.get(listener.index())?.policy.as_ref()
    }

    /// Whether accepting from a socket is paused. WebSocket listeners still answer that they are full, and health
    /// checks; and operators are always admitted.
    pub(super) fn is_paused(&self, index: usize) -> bool {
        let listener = self.acceptors[index].listener();
        self.is_paused && listener.is_some_and(|listener| !self.speaks_web(listener)) || self.is_held(index)
    }

    /// Whether the operator has paused the listener of a socket, whose connections wait there.
    pub(super) fn is_held(&self, index: usize) -> bool {
        let is_held = |listener: ListenerId| self.held.contains(&listener) && !self.speaks_web(listener);
        !self.held.is_empty() && self.acceptors[index].listener().is_some_and(is_held)
    }

    /// The operator pauses a listener, or resumes it.
    pub(super) fn hold(&mut self, listener: ListenerId, is_held: bool) {
        self.held.retain(|held| *held != listener);
        self.held.extend(is_held.then_some(listener));
    }

    /// The core admits no more clients for now. That one waits is reported anew.
    pub(super) fn pause(&mut self) {
        self.is_paused = true;
        self.acceptors.iter_mut().for_each(|acceptor| acceptor.has_reported_waiting = false);
    }

    /// Those in use.
    pub(super) fn there(&self) -> impl Iterator<Item = &Acceptor> + Clone {
        self.acceptors.iter().filter(|acceptor| !acceptor.is_gone)
    }

    /// TCP sockets that only we hold.
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
        acceptor.is_gone || self.is_closed && !acceptor.for_admin || self.has_left(acceptor)
    }

    /// Whether a socket is left to other daemons, which share its port.
    pub(super) fn has_left(&self, acceptor: &Acceptor) -> bool {
        self.leaves_shared && acceptor.listening.as_ref().is_some_and(Listening::is_shared)
    }

    /// Refuses new connections to a listener. Its sockets keep their addresses.
    pub(super) fn close_listener(&mut self, listener: ListenerId) {
        self.acceptors.iter_mut().filter(|acceptor| acceptor.listener() == Some(listener)).for_each(Acceptor::shut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recurring_failure_is_reported_every_ten_seconds_at_most() {
        let mut throttle = Throttle::default();
        let times = (0..300).filter(|at| throttle.may_report(Moment(at * 100_000_000))).count();
        assert_eq!(times, 3);
    }
}
