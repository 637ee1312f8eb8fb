//! Who is let in: how many connections a listener takes, all together and from one source. One that is refused is
//! told why and closed, and does not count itself.

use super::Bus;
use super::peer::{ClientKey, Moment, Peer, Source};
use super::port::Close;
use super::reply::Delivered;
use super::report::Reason;

/// Refused clients that are told why at a time. More are closed without a word, so that refused ones never take the
/// slots of others.
const EXPLAINED_REFUSALS: usize = 16;

/// What a client from `source` that finds no room is told.
pub(super) struct NoRoom {
    text: String,
    source: Source,
}

impl Bus {
    /// Why the listener with this index takes no more clients from `source`; none if it does.
    pub(super) fn no_room(&self, listener: usize, source: Source) -> Option<NoRoom> {
        let most = self.settings.listeners.get(listener)?.max_connections;
        let there = || self.clients.iter().filter(|(_, client)| client.listener == listener && !client.turned_away);
        let connections =
            |count: usize| if count == 1 { "1 connection".into() } else { format!("{count} connections") };
        let key = "listeners[].max_connections";
        // What the client can do something about comes first.
        let text = match (most.per_source, most.total) {
            (Some(most), _) if there().filter(|(_, client)| client.source == source).count() >= most => {
                format!("this listener takes {} from one source ({key}); close one of yours first", connections(most))
            }
            (_, Some(most)) if there().count() >= most => {
                format!("this listener takes {} ({key}); try again when one has left", connections(most))
            }
            _ => return None,
        };
        Some(NoRoom { text, source })
    }

    /// Whether one more refused client can be told why.
    pub(super) fn may_explain_refusal(&self) -> bool {
        let refused = self.clients.iter().filter(|(_, client)| client.turned_away).count();
        self.settings.routing.error_replies && refused < EXPLAINED_REFUSALS
    }

    /// Tells that a client was refused, and the client too if it has a connection for that, which ends with it.
    pub(super) fn refuse_client(&mut self, now: Moment, client: Option<ClientKey>, no_room: &NoRoom) {
        let NoRoom { text, source } = no_room;
        self.report(now, Reason::ConnectionLimit, client.map(Peer::Client), || {
            format!("a client from {source} is turned away: {text}")
        });
        if let Some(client) = client {
            self.send_error(now, client.into(), b"null", None, Reason::ConnectionLimit, text, Delivered::Nothing);
            self.close_client(now, client, Close::Flush);
        }
    }
}
