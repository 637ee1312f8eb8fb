//! What one connection may take of what all share, so that the others do not wait when one floods the bus.
//!
//! The last free slots for pending requests are kept for those who hold few. When a table is full all the same, the source
//! that holds most, and within it the connection that holds most, has to give something up, whoever came first.

use alloc::vec;

use super::client::Client;
use super::peer::ClientKey;
use super::{Bus, settings};

impl Bus {
    /// The connection that holds most, if that is not `asker`: of the source that holds most, its own if no other one
    /// holds more. `of` counts what a connection holds. Tables are rarely full, so nothing is counted before.
    pub(super) fn heaviest(&self, asker: ClientKey, of: impl Fn(&Client) -> usize) -> Option<ClientKey> {
        let own = self.clients.get(asker)?;
        let mut together = vec![0; settings::MAX_CONNECTIONS];
        for (_, client) in self.clients.iter() {
            together[client.source_use.index()] += of(client);
        }
        let mut source = own.source_use;
        for key in self.sources.keys() {
            if together[key.index()] > together[source.index()] {
                source = key;
            }
        }
        // If the asker held as many as the other one afterwards, nothing would be gained.
        let mut least = if source == own.source_use { of(own) + 1 } else { 0 };
        let mut heaviest = None;
        for (key, client) in self.clients.iter().filter(|(_, client)| client.source_use == source) {
            if of(client) > least {
                (heaviest, least) = (Some(key), of(client));
            }
        }
        heaviest
    }
}
