//! The latest events of a session: those to resend to a client that lost its connection, and those that were never
//! delivered. It is bounded; the oldest events are dropped.

use std::collections::VecDeque;

use super::write::EventId;

/// Maximum number of events kept for a session.
const MOST_EVENTS: usize = 256;

/// One event.
pub struct Event {
    /// Its position.
    pub id: EventId,
    /// Its message.
    pub data: Box<[u8]>,
    /// It was not delivered on any connection.
    pub is_untaken: bool,
    /// Nothing was ever sent on its stream, so no client can ask to resume it.
    pub is_nameless: bool,
}

impl Event {
    /// Marks it as delivered.
    pub fn taken(&mut self) -> (EventId, Box<[u8]>) {
        self.is_untaken = false;
        (self.id, self.data.clone())
    }
}

/// See the module documentation.
#[derive(Default)]
pub struct Log {
    events: VecDeque<Event>,
    bytes: usize,
}

impl Log {
    /// Keeps an event, within `most` bytes in total. Returns how many undelivered events were dropped for it.
    pub fn keep(&mut self, event: Event, most: usize) -> usize {
        self.bytes += event.data.len();
        self.events.push_back(event);
        let mut lost = 0;
        while self.events.len() > MOST_EVENTS || self.bytes > most && self.events.len() > 1 {
            lost += self.drop_oldest();
        }
        lost
    }

    fn drop_oldest(&mut self) -> usize {
        let Some(event) = self.events.pop_front() else { return 0 };
        self.bytes -= event.data.len();
        usize::from(event.is_untaken)
    }

    /// Drops everything. Returns how many undelivered events are lost.
    pub fn clear(&mut self) -> usize {
        let lost = self.events.iter().filter(|event| event.is_untaken).count();
        *self = Self::default();
        lost
    }

    /// Memory used, in bytes.
    pub fn weight(&self) -> usize {
        self.bytes + self.events.len() * size_of::<Event>()
    }

    /// The events of a stream after a position.
    pub fn behind(&mut self, id: EventId) -> impl Iterator<Item = &mut Event> {
        let is_behind = move |event: &&mut Event| event.id.stream == id.stream && event.id.place > id.place;
        self.events.iter_mut().filter(is_behind)
    }

    /// Whether the log still has every event of a stream after a position, up to the last one, `last`.
    pub fn has_all(&self, id: EventId, last: u32) -> bool {
        let is_behind = |event: &&Event| event.id.stream == id.stream && event.id.place > id.place;
        id.place <= last && self.events.iter().filter(is_behind).count() == (last - id.place) as usize
    }

    /// The last known position of a stream.
    pub fn last_of(&self, stream: u32) -> Option<u32> {
        self.events.iter().rev().find(|event| event.id.stream == stream).map(|event| event.id.place)
    }

    /// Moves undelivered events to the GET stream, after `place` and so after all others there: all of them, or only
    /// those that no client can ask for. Returns its last position.
    pub fn adopt(&mut self, mut place: u32, all: bool) -> u32 {
        let moves = |event: &Event| event.is_untaken && event.id.stream != 0 && (all || event.is_nameless);
        let (adopted, others): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.events).into_iter().partition(moves);
        self.events = others;
        for mut event in adopted {
            place += 1;
            event.id = EventId { stream: 0, place };
            self.events.push_back(event);
        }
        place
    }

    /// The undelivered events of the GET stream.
    pub fn untaken(&mut self) -> impl Iterator<Item = &mut Event> {
        self.events.iter_mut().filter(|event| event.is_untaken && event.id.stream == 0)
    }

    /// Marks these events as undelivered again. A stream whose first event is among them counts as unknown to the
    /// client.
    pub fn give_back(&mut self, ids: &[EventId]) {
        for event in self.events.iter_mut().filter(|event| ids.contains(&event.id)) {
            (event.is_untaken, event.is_nameless) = (true, event.is_nameless || event.id.place == 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(stream: u32, place: u32, bytes: usize, is_untaken: bool) -> Event {
        Event { id: EventId { stream, place }, data: vec![b' '; bytes].into(), is_untaken, is_nameless: false }
    }

    #[test]
    fn the_oldest_events_are_dropped_first_and_undelivered_ones_counted() {
        const MOST: usize = 1000;
        let mut log = Log::default();
        assert_eq!(log.keep(event(1, 1, 10, true), MOST), 0);
        let lost: usize = (2..=MOST_EVENTS as u32 + 1).map(|place| log.keep(event(1, place, 1, false), MOST)).sum();
        assert_eq!(lost, 1);
        assert!(log.has_all(EventId { stream: 1, place: 1 }, MOST_EVENTS as u32 + 1));
        assert!(!log.has_all(EventId { stream: 1, place: 0 }, MOST_EVENTS as u32 + 1), "the first one has gone");
        log.keep(event(2, 1, MOST + 1, true), MOST);
        assert_eq!((log.last_of(1), log.last_of(2)), (None, Some(1)), "one that is too large is kept alone");
        assert_eq!(log.clear(), 1);
    }

    #[test]
    fn events_moved_to_the_get_stream_follow_its_own() {
        let mut log = Log::default();
        for (stream, place) in [(3, 1), (0, 1), (0, 2)] {
            log.keep(event(stream, place, 1, true), 1000);
        }
        assert_eq!(log.adopt(2, true), 3);
        let places: Vec<u32> = log.behind(EventId { stream: 0, place: 0 }).map(|event| event.id.place).collect();
        assert_eq!(places, [1, 2, 3], "a client that resumes after its last event misses none");
    }
}
