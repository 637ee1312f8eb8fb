//! The places of connections that speak HTTP, and which connection is evicted when there is no room for another one:
//! for all of them, whatever they are for.

use hashbrown::HashMap;

use super::connection_counts::{Counts, Purpose};
use super::connections::{Connections, HttpSlot};
use super::http::exchange::{Accepted, Exchange, State};
use super::transport::Transport;
use crate::bus::port::{ListenerId, Moment, Source};
use crate::bus::shares::{EvictionOrder, Shares};
use crate::http1::Limits;

impl Connections {
    /// A connection gets a place.
    pub(super) fn set_placed(&mut self, slot: usize) {
        self.recount(slot, |counts, counted_as| counts.set_place(counted_as, true));
    }

    /// A connection has no place any more: it is closed after what it is still sent.
    pub(super) fn set_unplaced(&mut self, slot: usize) {
        self.recount(slot, |counts, counted_as| counts.set_place(counted_as, false));
    }

    /// A connection counts for this source from now on.
    pub(super) fn counts_for(&mut self, slot: usize, source: Source) {
        self.recount(slot, |counts, counted_as| counts.set_source(counted_as, source));
    }

    /// Whether a listener has accepted one of the connections.
    pub(super) fn is_connected_to(&self, listener: ListenerId) -> bool {
        self.counts.at(listener, None) != Counts::default()
    }

    /// How many handshakes exceed the limit, with this many free slots of clients.
    pub(super) fn surplus_handshakes(&self, free: usize) -> usize {
        let most = free + self.counts.most(Purpose::Handshake);
        if self.counts.count(Purpose::Handshake) <= most {
            return 0;
        }
        // A final answer is about to be sent: cut off, it would not explain anything.
        let holds = |transport: &Transport, it: &Exchange| it.state != State::Answering && !transport.is_closing();
        let handshakes = self.all_http().filter(|(_, _, it)| it.purpose == Purpose::Handshake);
        let held = handshakes.filter(|(_, transport, it)| holds(transport, it)).count();
        held.saturating_sub(most)
    }

    /// Adds a connection, and returns its slot.
    pub(super) fn begin_http(&mut self, now: Moment, accepted: Accepted, purpose: Purpose, limits: Limits) -> usize {
        let (serial, counted_as) = self.counts.add(purpose, accepted.listener, accepted.place.source());
        let (transport, exchange) = Exchange::new(now, accepted, purpose, limits, serial, counted_as);
        self.add_http(transport, exchange)
    }

    /// A handshake turns out to be a connection for requests.
    pub(super) fn becomes_requests(&mut self, slot: usize) {
        self[HttpSlot(slot)].purpose = Purpose::Requests;
        self.counts.becomes_requests();
    }

    /// Which of these is evicted for one more of `asker`, if it is known, where all have `capacity` places; and their
    /// shares. Of what is idle that which was longest, and after it what has stalled; of what is in use the newest.
    pub(super) fn eviction_victim(
        &self,
        now: Moment,
        capacity: usize,
        asker: Option<Source>,
        is_chosen: impl Fn(usize, &Exchange) -> bool,
    ) -> (Option<usize>, Shares) {
        self.eviction_victim_or_slow(now, capacity, asker, is_chosen, |_, _| false)
    }

    /// The same, where those that are too slow are evicted as if they were idle, after these.
    pub(super) fn eviction_victim_or_slow(
        &self,
        now: Moment,
        capacity: usize,
        asker: Option<Source>,
        is_chosen: impl Fn(usize, &Exchange) -> bool,
        is_slow: impl Fn(usize, &Exchange) -> bool,
    ) -> (Option<usize>, Shares) {
        let chosen = || self.all_http().filter(|(slot, _, exchange)| is_chosen(*slot, exchange));
        let shares = Shares::new(capacity, chosen().map(|(_, _, exchange)| (exchange.counted_as.source(), 1)), asker);
        let rank = |slot: usize, transport: &Transport, exchange: &Exchange| -> Option<(EvictionOrder, u8, u64, u64)> {
            let (is_unused, class) = exchange.standing(transport)?;
            let is_idle = is_unused || exchange.has_stalled(now) || is_slow(slot, exchange);
            let turn = shares.turn(exchange.counted_as.source(), is_idle)?;
            let age = |number: u64| if is_idle { number } else { u64::MAX - number };
            Some((turn, class, age(exchange.since.0), age(exchange.serial)))
        };
        let ranked = chosen().filter_map(|(slot, transport, exchange)| Some((rank(slot, transport, exchange)?, slot)));
        let victim = ranked.min().map(|(_, slot)| slot);
        (victim, shares)
    }

    /// The longest upload of the source with most bytes of uploads, if that has more of them than `but` would have with
    /// `more` bytes.
    pub(super) fn heaviest_upload(&self, but: usize, more: usize) -> Option<usize> {
        let mut uploads: HashMap<Source, usize> = HashMap::new();
        let all = || self.all_http().filter(|(_, _, it)| it.state == State::Reading && it.incoming.weight() > 0);
        all().for_each(|(_, _, it)| *uploads.entry(it.source()).or_default() += it.incoming.weight());
        let of = |it: &Exchange| uploads.get(&it.source()).copied().unwrap_or_default();
        let own = &self[HttpSlot(but)];
        let (slot, _, heaviest) = all().max_by_key(|(_, _, it)| (of(it), it.incoming.weight()))?;
        (heaviest.source() != own.source() && of(heaviest) > of(own) + more).then_some(slot)
    }

    /// Whether a connection's source would hold more than its share of these bytes of memory for what is sent here, with
    /// `more` of them; `waiting` is what its members and others' have sent that the core has not taken yet.
    pub(super) fn uploads_too_much(
        &self,
        slot: usize,
        more: usize,
        most: usize,
        waiting: impl Iterator<Item = (Source, usize)>,
    ) -> bool {
        let own = self[HttpSlot(slot)].source();
        let reads = self.all_http().filter(|(_, _, it)| it.state == State::Reading);
        let held = reads.map(|(_, _, it)| (it.source(), it.incoming.weight())).chain(waiting);
        let held = held.filter(|(_, weight)| *weight > 0).chain([(own, more)]);
        Shares::new(most, held, Some(own)).is_asker_above_its_share()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::connections::tests::add;
    use crate::testing::Random;

    /// Adds a connection of this source, which is in this state since this moment.
    fn add_of(connections: &mut Connections, purpose: Purpose, source: u32, state: State, since: u64) -> usize {
        let slot = add(connections, purpose, since);
        connections.counts_for(slot, Source::User(source));
        connections[HttpSlot(slot)].state = state;
        slot
    }

    #[test]
    fn the_counts_of_listeners_and_sources_are_those_of_a_walk() {
        let mut random = Random::new(1);
        let (mut connections, mut slots) = (Connections::default(), Vec::new());
        for _ in 0..2_000 {
            match random.range(0..5) {
                0 => {
                    let purpose = *random.pick(&[Purpose::Requests, Purpose::Admin, Purpose::Handshake]);
                    slots.push(add(&mut connections, purpose, 0));
                }
                _ if slots.is_empty() => {}
                1 => drop(connections.remove(slots.swap_remove(random.range(0..slots.len())))),
                2 => connections.counts_for(*random.pick(&slots), Source::User(random.range(0..3) as u32)),
                3 => connections.set_placed(*random.pick(&slots)),
                _ => connections.set_unplaced(*random.pick(&slots)),
            }
            connections.check();
            for source in (0..3).map(Source::User) {
                let is_of = |it: &Exchange| it.counted_as.source() == source && it.counted_as.has_place();
                let walked = connections.all_http().filter(|(_, _, it)| is_of(it)).count();
                assert_eq!(connections.counts.at(ListenerId::at(0), Some(source)).placed, walked);
            }
        }
    }

    #[test]
    fn connections_of_all_purposes_go_by_the_same_rank() {
        for purpose in [Purpose::Requests, Purpose::Admin, Purpose::Handshake] {
            let mut connections = Connections::default();
            let mut slots: Vec<usize> =
                (0..4).map(|at| add_of(&mut connections, purpose, 1, State::Answering, at)).collect();
            slots.push(add_of(&mut connections, purpose, 1, State::Reading, 8));
            slots.push(add_of(&mut connections, purpose, 1, State::Reading, 7));
            let small = add_of(&mut connections, purpose, 2, State::Answering, 9);
            let mut order = Vec::new();
            while let (Some(slot), _) =
                connections.eviction_victim(Moment(9), 7, Some(Source::User(3)), |_, it| it.purpose == purpose)
            {
                order.push(slot);
                drop(connections.remove(slot));
            }
            let expected = [slots[5], slots[4], slots[3]];
            assert_eq!(order[..3], expected, "what is idle, the longest first, then what is in use, the newest first");
            assert!(!order.contains(&small) && connections.counts.count(purpose) == 7 - order.len());
        }
    }

    #[test]
    fn a_slow_reader_goes_as_if_it_were_idle_and_after_what_is() {
        let mut connections = Connections::default();
        let slow = add_of(&mut connections, Purpose::Admin, 1, State::Answering, 1);
        let fast = add_of(&mut connections, Purpose::Admin, 1, State::Answering, 2);
        let idle = add_of(&mut connections, Purpose::Admin, 1, State::Reading, 3);
        let victim = |connections: &Connections| {
            connections
                .eviction_victim_or_slow(Moment(9), 64, Some(Source::User(1)), |_, _| true, |slot, _| slot == slow)
                .0
        };
        assert_eq!(victim(&connections), Some(idle));
        drop(connections.remove(idle));
        assert_eq!(victim(&connections), Some(slow));
        drop(connections.remove(slow));
        assert_eq!((victim(&connections), connections.http(fast).is_some()), (None, true), "its own are not cut off");
    }
}
