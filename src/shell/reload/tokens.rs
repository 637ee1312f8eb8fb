//! Applies files of tokens that were read again: clients whose tokens were revoked are closed.

use std::io;

use crate::bus::port::{Input, ListenerId, Moment};
use crate::io::Io;
use crate::shell::loop_handle::FileOwner;
use crate::shell::turn::Shell;

impl<I: Io> Shell<I> {
    /// The file of this owner was read again, which is one of the list with this number.
    pub(super) fn take_token_file(&mut self, now: Moment, list: u64, owner: FileOwner, content: io::Result<Vec<u8>>) {
        match owner {
            _ if !self.reloads.token_files.are_those_of(list) => {}
            FileOwner::Listener(listener) => self.take_tokens(now, listener, content),
            FileOwner::Admin => self.admin.take_token(content),
        }
    }

    /// Replaces the tokens of a listener, and closes clients whose tokens were revoked.
    fn take_tokens(&mut self, now: Moment, listener: ListenerId, content: io::Result<Vec<u8>>) {
        let terms = self.reactor.listeners.terms.get_mut(listener.index());
        let Some(policy) = terms.and_then(|terms| terms.policy.as_mut()) else { return };
        if policy.take_tokens(content) {
            self.end_unknown_bearers(now, listener);
        }
    }

    /// Closes clients of a listener whose tokens are no longer valid, or good for none of its pools.
    pub(super) fn end_unknown_bearers(&mut self, now: Moment, listener: ListenerId) {
        let listeners = &self.reactor.listeners;
        let Some(access) = listeners.policy(listener) else { return };
        let revoked = listeners.grants.revoked(&self.bus, listener, access);
        self.reactor.inputs.extend(revoked.map(|client| (now, Input::TokenRemoved(client))));
    }
}
