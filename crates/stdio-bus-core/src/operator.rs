//! What an operator does to one client while the others go on.

use super::Bus;
use super::client::Phase;
use super::peer::{ClientKey, Peer};
use super::port::Close;
use super::report::Reason;
use alloc::format;

impl Bus {
    /// Closes a client in an orderly way, unless it takes no bytes. Asked for again, it is closed at once.
    pub(super) fn on_close_client(&mut self, key: ClientKey) {
        let Some(client) = self.clients.get(key) else { return };
        let pending = client.end.outstanding.len();
        let takes_nothing = client.end.output.is_full() || client.phase >= Phase::Refusing;
        self.report(Reason::ClientKilled, Some(Peer::Client(key)), || {
            format!("the operator closes a client with {pending} requests pending")
        });
        if takes_nothing {
            return self.close_client(key, Close::Now, Reason::ClientKilled);
        }
        self.close_orderly(key, Reason::ClientKilled, "the operator closed this connection");
    }

    /// Closes a client whose token is good no more, in an orderly way: nothing of it is delivered from now on.
    pub(super) fn on_token_removed(&mut self, key: ClientKey) {
        let Some(client) = self.clients.get(key).filter(|client| client.phase < Phase::Refusing) else { return };
        let pending = client.end.outstanding.len();
        self.report(Reason::TokenRemoved, Some(Peer::Client(key)), || {
            format!(
                "a client with {pending} requests pending is closed: its token is in tokens_file no more, or for other pools"
            )
        });
        self.close_orderly(key, Reason::TokenRemoved, "the token of this connection was taken out of tokens_file");
    }
}
