//! How many connections that speak HTTP there are of each purpose, and of each listener and source, and how many there
//! may be. Which of them is evicted when there is no room for another one is up to `eviction.rs`: only then all are
//! looked at.

use hashbrown::HashMap;

use crate::bus::port::{ListenerId, Source};

/// Maximum number of connections for requests that have sent one, answered or not.
pub(super) const MOST_CONNECTIONS: usize = 2048;
/// How many more there may be whose first request is read: some ask for health, or are answered that there is no room.
pub(super) const MOST_HEARD: usize = 64;
/// The same for operators.
pub(super) const MOST_OPERATORS: usize = 64;
/// Maximum number of handshakes beyond the free slots of clients: some ask for health, or are answered that the daemon is
/// full.
pub(super) const MOST_HANDSHAKES: usize = 256;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Requests of clients: of MCP, of ACP.
    Requests,
    /// Requests of operators, which `admin` answers.
    Admin,
    /// A PROXY header, the request of a WebSocket, or both: then it becomes a client of the core.
    Handshake,
}

/// What a connection is counted as. The counts follow, since only [`ConnectionCounts`] changes it.
#[derive(Debug)]
pub(super) struct CountedAs {
    listener: ListenerId,
    source: Source,
    has_place: bool,
}

impl CountedAs {
    /// The source that it counts for: that of its request; between requests that of its client, or of the proxy that
    /// brings the requests of many.
    pub(super) fn source(&self) -> Source {
        self.source
    }

    /// Whether it counts among the connections of its listener, since its first request has come.
    pub(super) fn has_place(&self) -> bool {
        self.has_place
    }
}

/// How many connections there are of a listener, in total or of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// With and without a place.
    pub placed: usize,
    pub unplaced: usize,
}

impl Counts {
    fn of(&mut self, has_place: bool) -> &mut usize {
        if has_place { &mut self.placed } else { &mut self.unplaced }
    }
}

/// See the module documentation.
#[derive(Default)]
pub(super) struct ConnectionCounts {
    /// Those of each listener: of each of its sources, and of all.
    by_source: HashMap<(ListenerId, Option<Source>), Counts>,
    /// The number of connections of each purpose, and its maximum.
    by_purpose: [usize; 3],
    most: [usize; 3],
    /// How many of those for requests have a place.
    pub placed: usize,
    /// How many there have been: a connection's number distinguishes it from others in its slot.
    count: u64,
}

impl ConnectionCounts {
    /// None yet, with a maximum number of connections for requests, and of handshakes beyond the free slots of clients.
    pub(super) fn new(requests: usize, handshakes: usize) -> Self {
        Self { most: [requests, MOST_OPERATORS, handshakes], ..Self::default() }
    }

    /// Sets the maximum numbers of connections.
    pub(super) fn allow(&mut self, requests: usize, handshakes: usize) {
        self.most = [requests, MOST_OPERATORS, handshakes];
    }

    /// A connection of this purpose comes to a listener. Returns its number, and what it is counted as.
    pub(super) fn add(&mut self, purpose: Purpose, listener: ListenerId, source: Source) -> (u64, CountedAs) {
        self.by_purpose[purpose as usize] += 1;
        self.count += 1;
        let counted_as = CountedAs { listener, source, has_place: false };
        self.count_in(&counted_as);
        (self.count, counted_as)
    }

    /// A connection is removed, or becomes a client.
    pub(super) fn leaves(&mut self, purpose: Purpose, counted_as: &CountedAs) {
        self.count_out(counted_as);
        self.by_purpose[purpose as usize] -= 1;
    }

    /// Whether a connection has a place changes.
    pub(super) fn set_place(&mut self, counted_as: &mut CountedAs, has_place: bool) {
        if counted_as.has_place != has_place {
            self.count_out(counted_as);
            counted_as.has_place = has_place;
            self.count_in(counted_as);
        }
    }

    /// A connection counts for this source from now on.
    pub(super) fn set_source(&mut self, counted_as: &mut CountedAs, source: Source) {
        if counted_as.source != source {
            self.count_out(counted_as);
            counted_as.source = source;
            self.count_in(counted_as);
        }
    }

    fn count_in(&mut self, counted_as: &CountedAs) {
        self.placed += usize::from(counted_as.has_place);
        for source in [None, Some(counted_as.source)] {
            *self.by_source.entry((counted_as.listener, source)).or_default().of(counted_as.has_place) += 1;
        }
    }

    fn count_out(&mut self, counted_as: &CountedAs) {
        self.placed -= usize::from(counted_as.has_place);
        for source in [None, Some(counted_as.source)] {
            let key = (counted_as.listener, source);
            let Some(counts) = self.by_source.get_mut(&key) else {
                debug_assert!(false, "{counted_as:?} was counted");
                continue;
            };
            *counts.of(counted_as.has_place) -= 1;
            if *counts == Counts::default() {
                self.by_source.remove(&key);
            }
        }
    }

    /// How many connections a listener has, in total or of one source.
    pub(super) fn at(&self, listener: ListenerId, source: Option<Source>) -> Counts {
        self.by_source.get(&(listener, source)).copied().unwrap_or_default()
    }

    /// Panics if the counts are not those of these connections.
    #[cfg(test)]
    pub(super) fn check<'a>(&self, connections: impl Iterator<Item = (Purpose, &'a CountedAs)>) {
        let mut counted = Self::default();
        for (purpose, counted_as) in connections {
            counted.by_purpose[purpose as usize] += 1;
            counted.count_in(counted_as);
        }
        let all = |it: &Self| (it.by_purpose, it.placed, it.by_source.clone());
        assert_eq!(all(self), all(&counted), "the counts are those of the connections that there are");
    }

    /// A handshake turns out to be a connection for requests.
    pub(super) fn becomes_requests(&mut self) {
        self.by_purpose[Purpose::Handshake as usize] -= 1;
        self.by_purpose[Purpose::Requests as usize] += 1;
    }

    /// The maximum of this purpose.
    pub(super) fn most(&self, purpose: Purpose) -> usize {
        self.most[purpose as usize]
    }

    /// The number of connections of this purpose.
    pub(super) fn count(&self, purpose: Purpose) -> usize {
        self.by_purpose[purpose as usize]
    }

    /// The number of places for connections for requests: some more are read until it is known what they ask for.
    pub(super) fn places(&self) -> usize {
        match self.most[Purpose::Requests as usize] {
            0 => usize::MAX,
            most => most - MOST_HEARD.min(most / 8),
        }
    }

    /// Whether all of them are taken.
    pub(super) fn has_no_place(&self) -> bool {
        self.placed >= self.places()
    }

    /// Whether another connection of this purpose fits, or no listener has any; of handshakes, without any free slot of
    /// clients.
    pub(super) fn has_room(&self, purpose: Purpose) -> bool {
        let most = self.most[purpose as usize];
        most == 0 || self.count(purpose) < most
    }
}
