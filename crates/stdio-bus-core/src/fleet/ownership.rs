//! Which client a worker of a dedicated pool belongs to, and since when.

use crate::peer::{ClientKey, Moment};

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkerOwnership {
    owner: Option<ClientKey>,
    /// When its client took it, or gave it back.
    since: Moment,
    /// Its client keeps its connection and gets another one.
    is_left: bool,
    /// It is lent to a client, and got a request of another one, which has a task there.
    has_guests: bool,
    /// The wait of its client for the first answer was reported.
    reported_wait: bool,
}

impl WorkerOwnership {
    /// The client that it belongs to.
    #[inline(always)]
    pub(crate) fn owner(&self) -> Option<ClientKey> {
        self.owner
    }

    /// When its client took it, or gave it back.
    pub(crate) fn since(&self) -> Moment {
        self.since
    }

    /// Whether its client gets another one.
    pub(super) fn is_left(&self) -> bool {
        self.is_left
    }

    /// Whether it may work for others than the client that it is lent to.
    pub(crate) fn has_guests(&self) -> bool {
        self.has_guests
    }

    /// Whether the wait of its client for the first answer was reported.
    pub(super) fn reported_wait(&self) -> bool {
        self.reported_wait
    }

    /// A client takes it.
    pub(super) fn take(&mut self, client: ClientKey, now: Moment) {
        (self.owner, self.since) = (Some(client), now);
    }

    /// Its client gives it back.
    pub(super) fn give_back(&mut self, now: Moment) {
        (self.owner, self.since) = (None, now);
    }

    /// It is returned although its client may still wait for it.
    pub(super) fn take_back(&mut self) -> Option<ClientKey> {
        self.owner.take()
    }

    /// Its client gets another one.
    pub(super) fn leave(&mut self) {
        self.is_left = true;
    }

    /// It gets a message of this client, which may not be its owner.
    pub(crate) fn visit(&mut self, client: ClientKey) {
        self.has_guests |= self.owner != Some(client);
    }

    /// The wait of its client is reported.
    pub(super) fn set_reported_wait(&mut self) {
        self.reported_wait = true;
    }
}
