//! A listening socket that is being accepted from, or waits until that may work again.

use std::time::Duration;

use super::listen::Listening;
use crate::bus::port::Moment;
use crate::config::Listener;

/// How often it is told at most that nothing can be accepted.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// After accept(2) failed: doubled up to the longest.
pub(super) const FIRST_ACCEPT_DELAY: Duration = Duration::from_millis(100);
pub(super) const LONGEST_ACCEPT_DELAY: Duration = Duration::from_secs(1);

/// A listening socket and whether it is being accepted from.
pub(super) struct Acceptor {
    /// Gone once the daemon takes no more clients.
    pub listening: Option<Listening>,
    pub address: String,
    pub accepting: bool,
    /// What is in flight for `accepting` is a wait for a connection.
    pub awaiting: bool,
    /// There was one since the last was accepted.
    pub is_awaited: bool,
    /// The socket does not listen any more, and is made anew.
    pub is_ended: bool,
    /// The core does not want it to listen for now.
    pub is_shut: bool,
    /// The core wants it to listen again, with a socket that is still to be made.
    pub reopens: bool,
    pub retry_at: Option<Moment>,
    pub delay: Duration,
    /// When it was last told that nothing can be accepted.
    told_at: Option<Moment>,
}

impl Acceptor {
    /// An acceptor that is still closed.
    pub(super) fn new(listening: Listening) -> Self {
        let address = listening.address.clone();
        Self {
            listening: Some(listening),
            address,
            accepting: false,
            awaiting: false,
            is_awaited: false,
            is_ended: false,
            is_shut: false,
            reopens: false,
            retry_at: None,
            delay: FIRST_ACCEPT_DELAY,
            told_at: None,
        }
    }

    /// The same one, called as people write its listener.
    pub(super) fn named_by(mut self, listener: &Listener) -> Self {
        if let Some(web) = &listener.web {
            self.address = web.address(&self.address);
        }
        self
    }

    /// The listener for clients that it belongs to, by its index, while it listens.
    pub(super) fn listener(&self) -> Option<usize> {
        self.listening.as_ref().map(|listening| listening.listener)
    }

    /// A socket that somebody has ended is made anew: nothing is in flight on it.
    pub(super) fn open_anew_if_ended(&mut self, now: Moment) {
        let Some(listening) = self.listening.as_ref().filter(|_| self.is_ended) else { return };
        match listening.open_anew() {
            Ok(listening) => {
                self.listening = Some(listening);
                self.is_ended = false;
                // Of what the core wants it tells itself.
                if !std::mem::take(&mut self.reopens) {
                    tracing::warn!("listening on {} again", self.address);
                }
            }
            Err(error) => {
                self.retry_at = Some(now.after(self.delay));
                if self.may_tell(now) {
                    tracing::error!(reason = "accept_paused", "cannot listen on {} again: {error}", self.address);
                }
            }
        }
    }

    /// Whether it is time to tell that nothing can be accepted. If so, it counts as told.
    pub(super) fn may_tell(&mut self, now: Moment) -> bool {
        let is_due = self.told_at.is_none_or(|told| now.since(told) >= TELL_EVERY);
        if is_due {
            self.told_at = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_comes_and_goes_is_told_every_ten_seconds_at_most() {
        let directory = tempfile::tempdir().expect("there is a place for it");
        let socket = UnixListener::bind(directory.path().join("s")).expect("it is free");
        let mut acceptor = Acceptor::new(Listening::nowhere(socket.into(), "here"));
        let told = (0..300).filter(|at| acceptor.may_tell(Moment(at * 100_000_000))).count();
        assert_eq!(told, 3);
    }
}
