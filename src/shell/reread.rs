//! Applies reread tokens (`token_files.rs`): clients whose tokens were revoked are closed.

use std::io;

use super::news::{FileOwner, News};
use super::turn::Shell;
use crate::bus::port::{Input, Moment, Origin, Peer};
use crate::io::Io;
use crate::tokens::Bearer;

impl<I: Io> Shell<I> {
    /// Threads have told something.
    pub(super) fn take_news(&mut self, now: Moment) {
        while let Some(news) = self.reactor.signals.news.try_recv() {
            match news {
                News::Prepared(prepared) => self.take_prepared(now, *prepared),
                News::Grown(worker, mib) => self.reactor.tell(now, Input::Grown { worker, mib }),
                News::Tokens(list, ..) if list != *self.token_files.watched => {}
                News::Tokens(_, FileOwner::Listener(listener), content) => self.take_tokens(now, listener, content),
                News::Tokens(_, FileOwner::Admin, content) => self.admin.take_token(content),
            }
        }
    }

    /// Replaces the tokens of a listener, and closes clients whose tokens were revoked.
    fn take_tokens(&mut self, now: Moment, listener: usize, content: io::Result<Vec<u8>>) {
        let terms = self.reactor.listeners.terms.get_mut(listener);
        let Some(policy) = terms.and_then(|terms| terms.policy.as_mut()) else { return };
        if policy.take_tokens(content) {
            self.end_unknown_bearers(now, listener);
        }
    }

    /// Closes clients of a listener whose tokens are no longer valid, or good for none of its pools.
    pub(super) fn end_unknown_bearers(&mut self, now: Moment, listener: usize) {
        let (bus, reactor) = (&self.bus, &mut self.reactor);
        let Some(policy) = reactor.listeners.policy(listener) else { return };
        let is_known = |bearer: &Bearer| {
            let origin = Origin { pools: bearer.pools.clone(), ..Origin::default() };
            policy.terms.tokens.has(bearer) && bus.view().offers_any(listener, &origin)
        };
        for (_, connection) in reactor.connections.all_lines() {
            let bearer = connection.web.as_ref().and_then(|web| web.bearer_of(listener));
            if let (Some(bearer), Peer::Client(client)) = (bearer, connection.peer)
                && !is_known(bearer)
            {
                reactor.inputs.push_back((now, Input::TokenRemoved(client)));
            }
        }
        for (client, bearer) in reactor.http.members.bearers_of(listener) {
            if !is_known(bearer) {
                reactor.inputs.push_back((now, Input::TokenRemoved(client)));
            }
        }
    }
}
