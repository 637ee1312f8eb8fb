//! A listening socket that is being accepted from, or waits until that may work again.

use std::time::Duration;

use super::listen::Listening;
use crate::bus::port::Moment;

/// After accept(2) failed for want of descriptors or memory: doubled up to the longest.
pub(super) const FIRST_ACCEPT_DELAY: Duration = Duration::from_millis(100);
pub(super) const LONGEST_ACCEPT_DELAY: Duration = Duration::from_secs(1);

/// A listening socket and whether it is being accepted from.
pub(super) struct Acceptor {
    /// Gone once the daemon takes no more clients.
    pub listening: Option<Listening>,
    pub address: String,
    pub accepting: bool,
    pub retry_at: Option<Moment>,
    pub delay: Duration,
}

impl Acceptor {
    /// An acceptor that is still closed.
    pub(super) fn new(listening: Listening) -> Self {
        let address = listening.address.clone();
        Self { listening: Some(listening), address, accepting: false, retry_at: None, delay: FIRST_ACCEPT_DELAY }
    }
}
