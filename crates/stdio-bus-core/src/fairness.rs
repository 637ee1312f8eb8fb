//! What one connection may take of what all share, so that the others do not wait when one floods the bus.
//!
//! Who has many requests unanswered is read more slowly: what it sends stands in the same pipes as what the others
//! send. It is never kept waiting for answers alone, because a worker may need its next line to give them: after
//! [`PAUSE`] it has one turn, however many are unanswered. And the last free slots for pending requests are kept for
//! those who hold few. When a table is full all the same, the source that holds most, and within it the connection
//! that holds most, has to give something up, whoever came first.

use alloc::collections::VecDeque;
use alloc::vec;
use core::time::Duration;

use super::client::{Client, Pace};
use super::peer::{ClientKey, Moment, Peer};
use super::port::Effect;
use super::requests::Direction;
use super::{Bus, settings};

/// How long a client with many unanswered requests waits at most, before it has its next turn.
const PAUSE: Duration = Duration::from_millis(1);
/// Slots for pending requests that are kept for each other connection, and for all of them together.
const KEPT_FOR_EACH: usize = 4;
const KEPT: usize = settings::MAX_PENDING_REQUESTS / 4;

/// Clients that wait for their turn, the first one first. Some have gone, or have gone on already.
pub(super) type PaceQueue = VecDeque<(Moment, ClientKey)>;

impl Bus {
    /// Lets a client wait that has too many requests unanswered, while there are others. Says whether it waits.
    pub(super) fn yield_to_others(&mut self, now: Moment, key: ClientKey) -> bool {
        let (alone, ahead) = (self.clients.len() == 1, self.settings.limits.requests_ahead);
        let Some(client) = self.clients.get_mut(key) else { return false };
        match client.pace {
            Pace::Waiting => return true,
            Pace::Free if !alone && client.end.outstanding.len() >= ahead => {}
            Pace::Free | Pace::Turn => {
                client.pace = Pace::Free;
                return false;
            }
        }
        client.pace = Pace::Waiting;
        self.pace_queue.push_back((now.after(PAUSE), key));
        self.effects.push_back(Effect::Pause { peer: Peer::Client(key) });
        true
    }

    /// A client has one unanswered request less: it is read again once it has few.
    pub(super) fn resume_if_caught_up(&mut self, key: ClientKey) {
        let ahead = self.settings.limits.requests_ahead;
        let Some(client) = self.clients.get_mut(key) else { return };
        if client.pace == Pace::Waiting && client.end.outstanding.len() < ahead.div_ceil(2) {
            client.pace = Pace::Free;
            self.read_again(Peer::Client(key));
        }
    }

    /// When the next client has its turn.
    pub(super) fn next_turn(&self) -> Option<Moment> {
        self.pace_queue.front().map(|(at, _)| *at)
    }

    /// Gives those their turn who have waited long enough.
    pub(super) fn resume_due_clients(&mut self, now: Moment) {
        while let Some((_, key)) = self.pace_queue.front().copied().filter(|(at, _)| *at <= now) {
            self.pace_queue.pop_front();
            let Some(client) = self.clients.get_mut(key) else { continue };
            if client.pace == Pace::Waiting {
                client.pace = Pace::Turn;
                self.read_again(Peer::Client(key));
            }
        }
    }

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

    /// Whether the next slot for a pending request is kept for connections that hold fewer than `asker` does.
    pub(super) fn slot_is_kept(&self, direction: Direction, asker: Peer) -> bool {
        let (requests, askers) = match direction {
            Direction::ToWorkers => (&self.to_workers, self.clients.len()),
            Direction::ToClients => (&self.to_clients, self.workers.len()),
        };
        let free = settings::MAX_PENDING_REQUESTS - requests.len();
        let kept = KEPT.min(KEPT_FOR_EACH * askers.saturating_sub(1));
        let holds = || self.peer_end(asker).map_or(0, |end| end.outstanding.len());
        free <= kept && holds() >= settings::MAX_PENDING_REQUESTS / askers.max(1)
    }

    /// Panics if a client waits for a turn that never comes.
    pub(super) fn check_pace(&self) {
        let mut has_turn = vec![false; settings::MAX_CONNECTIONS];
        self.pace_queue.iter().for_each(|(_, client)| has_turn[client.index()] = true);
        for (key, client) in self.clients.iter() {
            assert!(client.pace != Pace::Waiting || has_turn[key.index()], "{key:?} waits for no turn");
        }
    }
}
