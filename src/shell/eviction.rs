//! The places of connections that speak HTTP, and which connection goes when there is no room for another one: for all of
//! them, whatever they are for.

use hashbrown::HashMap;

use super::connections::{AsHttp, Connections};
use super::http::connection::{Accepted, Connection, Purpose, State};
use crate::bus::port::{Moment, Source};
use crate::bus::shares::{Shares, Turn};
use crate::http1::Limits;

impl Connections {
    /// A connection gets a place.
    pub(super) fn give_place(&mut self, slot: usize) {
        let is_new = !std::mem::replace(&mut self[AsHttp(slot)].has_place, true);
        self.crowd.placed += usize::from(is_new);
    }

    /// A connection has no place any more: it goes after what it is still sent.
    pub(super) fn take_place_away(&mut self, slot: usize) {
        let had_one = std::mem::take(&mut self[AsHttp(slot)].has_place);
        self.crowd.placed -= usize::from(had_one);
    }

    /// How many connections with a place a listener has, in total or of one source.
    pub(super) fn placed_at(&self, listener: usize, source: Option<Source>) -> usize {
        let is_of = |it: &Connection| it.has_place && it.listener == listener;
        self.all_http().filter(|(_, it)| is_of(it) && source.is_none_or(|source| it.source == source)).count()
    }

    /// Whether a listener has accepted one of the connections.
    pub(super) fn is_connected_to(&self, listener: usize) -> bool {
        self.all_http().any(|(_, it)| it.listener == listener)
    }

    /// How many handshakes exceed the limit, with this many free slots of clients.
    pub(super) fn surplus_handshakes(&self, free: usize) -> usize {
        let most = free + self.crowd.most(Purpose::Handshake);
        if self.crowd.count(Purpose::Handshake) <= most {
            return 0;
        }
        // A final answer is about to be sent: cut off, it would not explain anything.
        let holds = |it: &Connection| it.state != State::Answering && !it.transport.is_closing();
        let held = self.all_http().filter(|(_, it)| it.purpose == Purpose::Handshake && holds(it)).count();
        held.saturating_sub(most)
    }

    /// Adds a connection, and returns its slot.
    pub(super) fn begin_http(&mut self, now: Moment, accepted: Accepted, purpose: Purpose, limits: Limits) -> usize {
        let serial = self.crowd.comes(purpose);
        self.add_http(Connection::new(now, accepted, purpose, limits, serial))
    }

    /// A handshake turns out to be a connection for MCP.
    pub(super) fn becomes_mcp(&mut self, slot: usize) {
        self[AsHttp(slot)].purpose = Purpose::Mcp;
        self.crowd.becomes_mcp();
    }

    /// Which of these goes for one more of `asker`, if it is known, where all have `capacity` places; and their shares.
    /// Of what is idle that which was longest, of what is in use the newest.
    pub(super) fn first_to_go(
        &self,
        capacity: usize,
        asker: Option<Source>,
        is_chosen: impl Fn(usize, &Connection) -> bool,
    ) -> (Option<usize>, Shares) {
        let chosen = || self.all_http().filter(|(slot, connection)| is_chosen(*slot, connection));
        let shares = Shares::new(capacity, chosen().map(|(_, connection)| (connection.source, 1)), asker);
        let rank = |connection: &Connection| -> Option<(Turn, u8, u64, u64)> {
            let (is_idle, class) = connection.standing()?;
            let turn = shares.turn(connection.source, is_idle)?;
            let age = |number: u64| if is_idle { number } else { u64::MAX - number };
            Some((turn, class, age(connection.since.0), age(connection.serial)))
        };
        let ranked = chosen().filter_map(|(slot, connection)| rank(connection).map(|rank| (rank, slot)));
        let goes = ranked.min().map(|(_, slot)| slot);
        (goes, shares)
    }

    /// The longest upload of the source with most bytes of uploads, if that has more of them than `but` would have with
    /// `more` bytes.
    pub(super) fn heaviest_upload(&self, but: usize, more: usize) -> Option<usize> {
        let mut uploads: HashMap<Source, usize> = HashMap::new();
        let all = || self.all_http().filter(|(_, it)| it.state == State::Reading && it.incoming.weight() > 0);
        all().for_each(|(_, it)| *uploads.entry(it.source()).or_default() += it.incoming.weight());
        let of = |it: &Connection| uploads.get(&it.source()).copied().unwrap_or_default();
        let own = &self[AsHttp(but)];
        let (slot, heaviest) = all().max_by_key(|(_, it)| (of(it), it.incoming.weight()))?;
        (heaviest.source() != own.source() && of(heaviest) > of(own) + more).then_some(slot)
    }
}
