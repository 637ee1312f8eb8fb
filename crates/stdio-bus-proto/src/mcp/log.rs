//! The latest events of a session: those to resend to a client that lost its connection, and those that were never
//! delivered. It is bounded. Progress is dropped first, then other events that were delivered. An answer outlives them
//! all: one that has to go leaves an error behind in its place, which its client gets instead.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use super::fault::Fault;
use super::write::EventId;
use ndjson_scan::member;

/// Maximum number of events kept for a session, besides answers, and of delivered answers.
const MOST_EVENTS: usize = 256;
/// Maximum number of answers kept for a session.
const MOST_ANSWERS: usize = 1024;
/// An answer of up to this length is not replaced by an error, which would save nothing.
const SHORT: usize = 512;

/// What an event carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// The answer to a request.
    Answer,
    /// The progress of a request.
    Progress,
    /// Another message.
    Other,
}

/// The message of an event, which its session shares with the connection that is sending it.
#[derive(Clone)]
pub enum Data {
    /// A copy of its worker's line.
    Copied(Rc<[u8]>),
    /// A long answer, where its worker's line was received.
    InPlace(Rc<dyn InPlace>),
}

/// A long answer that was not copied.
pub trait InPlace {
    /// Its bytes: what is before the rest if its id was replaced, and the rest.
    fn parts(&self) -> [&[u8]; 2];
    /// The id that it answers, verbatim, as the client wrote it.
    fn id(&self) -> &[u8];
    /// The memory that it takes up, in bytes.
    fn weight(&self) -> usize;
}

impl From<&[u8]> for Data {
    fn from(bytes: &[u8]) -> Self {
        Self::Copied(bytes.into())
    }
}

impl From<Vec<u8>> for Data {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Copied(bytes.into())
    }
}

impl Data {
    /// Its bytes, in two parts.
    pub fn parts(&self) -> [&[u8]; 2] {
        match self {
            Self::Copied(bytes) => [bytes, &[]],
            Self::InPlace(data) => data.parts(),
        }
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "no message is empty")]
    pub fn len(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }

    /// Appends some of its bytes.
    pub fn append_to(&self, out: &mut Vec<u8>, place: Range<usize>) {
        let [first, rest] = self.parts();
        let split = first.len();
        out.extend_from_slice(&first[place.start.min(split)..place.end.min(split)]);
        out.extend_from_slice(&rest[place.start.max(split) - split..place.end.max(split) - split]);
    }

    /// The memory that it takes up, in bytes.
    pub fn weight(&self) -> usize {
        match self {
            Self::Copied(bytes) => bytes.len(),
            Self::InPlace(data) => data.weight(),
        }
    }

    /// The id of an answer.
    fn id(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => member(bytes, b"id").unwrap_or(b"null"),
            Self::InPlace(data) => data.id(),
        }
    }
}

/// A line for the client of a session, as it is sent in a stream of events.
pub struct StoredEvent {
    /// Its position.
    pub id: EventId,
    /// Its message.
    pub data: Data,
    /// What that is.
    pub carries: Carries,
    /// It was not delivered on any connection.
    pub is_untaken: bool,
    /// Nothing was ever sent on its stream, so no client can ask to resume it.
    pub is_nameless: bool,
}

impl StoredEvent {
    /// Its position and its message.
    pub fn shared(&self) -> (EventId, Data) {
        (self.id, self.data.clone())
    }

    fn is_answer(&self) -> bool {
        self.carries == Carries::Answer
    }
}

/// The kept events of one session, in the order in which they came.
#[derive(Default)]
pub struct Log {
    events: VecDeque<StoredEvent>,
    bytes: usize,
    /// Number and bytes of answers.
    answers: (usize, usize),
    /// The newest stream whose answer was dropped without leaving an error behind.
    forgotten: u32,
}

impl Log {
    /// Keeps an event. Those that are no answers may have `most` bytes in total. Returns how many undelivered events
    /// were dropped for it.
    pub fn keep(&mut self, event: StoredEvent, most: usize) -> usize {
        self.bytes += event.data.weight();
        if event.is_answer() {
            self.answers = (self.answers.0 + 1, self.answers.1 + event.data.weight());
        }
        self.events.push_back(event);
        let mut lost = 0;
        while self.events.len() - self.answers.0 > MOST_EVENTS
            || self.bytes - self.answers.1 > most && self.events.len() - self.answers.0 > 1
        {
            let others = || self.events.iter().enumerate().filter(|(_, event)| !event.is_answer());
            let progress = others().find(|(_, event)| event.carries == Carries::Progress);
            let oldest = progress.or_else(|| others().find(|(_, event)| !event.is_untaken)).or_else(|| others().next());
            let Some(at) = oldest.map(|(at, _)| at) else { break };
            lost += self.drop_event(at);
        }
        if self.answers.0 > MOST_EVENTS {
            let taken = || self.events.iter().enumerate().filter(|(_, event)| event.is_answer() && !event.is_untaken);
            let oldest = if taken().count() > MOST_EVENTS { taken().next() } else { None };
            let is_full = self.answers.0 > MOST_ANSWERS;
            let oldest = oldest.or_else(|| is_full.then(|| taken().next()).flatten());
            let any = || self.events.iter().position(StoredEvent::is_answer).filter(|_| is_full);
            if let Some(at) = oldest.map(|(at, _)| at).or_else(any) {
                lost += self.drop_event(at);
            }
        }
        lost
    }

    fn drop_event(&mut self, at: usize) -> usize {
        let Some(event) = self.events.remove(at) else { return 0 };
        self.bytes -= event.data.weight();
        if event.is_answer() {
            self.answers = (self.answers.0 - 1, self.answers.1 - event.data.weight());
            self.forgotten = self.forgotten.max(event.id.stream);
        }
        usize::from(event.is_untaken)
    }

    /// Gives up an answer for lack of memory: one that was delivered, or else the oldest. Its client gets an error in its
    /// place. Returns how many undelivered ones are lost; none if there is no answer.
    pub fn give_up_answer(&mut self) -> Option<usize> {
        let answers = self.events.iter().enumerate().filter(|(_, event)| event.is_answer());
        let rank = |event: &StoredEvent| (event.data.len() <= SHORT, event.is_untaken);
        let at = answers.min_by_key(|(_, event)| rank(event)).map(|(at, _)| at)?;
        let event = &mut self.events[at];
        if event.data.len() <= SHORT {
            return Some(self.drop_event(at));
        }
        let before = event.data.weight();
        event.data = Fault::answer_lost().body(event.data.id()).into();
        let less = before.saturating_sub(event.data.weight());
        (self.bytes, self.answers.1) = (self.bytes - less, self.answers.1 - less);
        Some(usize::from(event.is_untaken))
    }

    /// Drops everything. Returns how many undelivered events are lost.
    pub fn clear(&mut self) -> usize {
        let lost = self.events.iter().filter(|event| event.is_untaken).count();
        *self = Self::default();
        lost
    }

    /// Memory used, in bytes.
    pub fn weight(&self) -> usize {
        self.bytes + self.events.len() * size_of::<StoredEvent>()
    }

    /// The events of a stream after a position.
    pub fn behind(&self, id: EventId) -> impl Iterator<Item = &StoredEvent> {
        let is_behind = move |event: &&StoredEvent| event.id.stream == id.stream && event.id.place > id.place;
        self.events.iter().filter(is_behind)
    }

    /// The last known position of a stream that has ended, if that position has been given out; none if its answer is
    /// not kept any more.
    pub fn last_of(&self, stream: u32) -> Option<u32> {
        let known = self.events.iter().rev().find(|event| event.id.stream == stream).map(|event| event.id.place);
        known.or_else(|| (stream > self.forgotten).then_some(u32::MAX))
    }

    /// Moves undelivered events to the GET stream, after `place` and so after all others there: all of them, or only
    /// those that no client can ask for. An answer stays in its stream (MCP 2025-11-25, "Listening for Messages from the
    /// Server"). Returns its last position.
    pub fn adopt(&mut self, mut place: u32, all: bool) -> u32 {
        let moves = |event: &StoredEvent| {
            event.is_untaken && !event.is_answer() && event.id.stream != 0 && (all || event.is_nameless)
        };
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
    pub fn untaken(&self) -> impl Iterator<Item = &StoredEvent> {
        self.events.iter().filter(|event| event.is_untaken && event.id.stream == 0)
    }

    /// Marks an event as delivered.
    pub fn take(&mut self, id: EventId) {
        self.events.iter_mut().filter(|event| event.id == id).for_each(|event| event.is_untaken = false);
    }

    /// Marks these events as undelivered again. A stream whose first event is among them counts as unknown to the
    /// client. Returns how many of them were dropped meanwhile, and are lost.
    pub fn give_back(&mut self, ids: &[EventId]) -> usize {
        let mut found = 0;
        for event in self.events.iter_mut().filter(|event| ids.contains(&event.id)) {
            (event.is_untaken, event.is_nameless) = (true, event.is_nameless || event.id.place == 1);
            found += 1;
        }
        ids.len() - found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(stream: u32, place: u32, bytes: usize, is_untaken: bool) -> StoredEvent {
        let id = EventId { stream, place };
        StoredEvent { id, data: vec![b' '; bytes].into(), carries: Carries::Other, is_untaken, is_nameless: false }
    }

    fn answer(stream: u32, place: u32, bytes: usize, is_untaken: bool) -> StoredEvent {
        let data = format!(r#"{{"id":{stream},"result":"{}"}}"#, "x".repeat(bytes)).into_bytes().into();
        StoredEvent { data, carries: Carries::Answer, ..event(stream, place, 0, is_untaken) }
    }

    fn places(log: &mut Log, stream: u32) -> Vec<u32> {
        log.behind(EventId { stream, place: 0 }).map(|event| event.id.place).collect()
    }

    #[test]
    fn the_oldest_events_are_dropped_first_and_undelivered_ones_counted() {
        const MOST: usize = 1000;
        let mut log = Log::default();
        assert_eq!(log.keep(event(1, 1, 10, true), MOST), 0);
        let lost: usize = (2..=MOST_EVENTS as u32 + 1).map(|place| log.keep(event(1, place, 1, true), MOST)).sum();
        assert_eq!(lost, 1);
        assert_eq!(places(&mut log, 1), (2..=MOST_EVENTS as u32 + 1).collect::<Vec<_>>());
        assert_eq!(log.keep(event(2, 1, MOST + 1, true), MOST), MOST_EVENTS);
        assert_eq!(
            (places(&mut log, 1).len(), places(&mut log, 2)),
            (0, vec![1]),
            "one that is too large is kept alone"
        );
        assert_eq!(log.clear(), 1);
    }

    #[test]
    fn progress_is_dropped_before_all_others_and_an_answer_by_none_of_them() {
        const MOST: usize = 1000;
        let mut log = Log::default();
        log.keep(answer(1, 1, 10 * MOST, true), MOST);
        log.keep(event(2, 1, 1, true), MOST);
        log.keep(event(3, 1, 1, false), MOST);
        log.keep(StoredEvent { carries: Carries::Progress, ..event(3, 2, 1, true) }, MOST);
        (3..MOST_EVENTS as u32).for_each(|place| _ = log.keep(event(3, place, 1, true), MOST));
        assert_eq!((log.keep(event(4, 1, 1, true), MOST), places(&mut log, 3)[..2].to_vec()), (1, vec![1, 3]));
        assert_eq!((log.keep(event(4, 2, 1, true), MOST), places(&mut log, 3)[0]), (0, 3), "then what was delivered");
        assert_eq!((log.keep(event(4, 3, 1, true), MOST), places(&mut log, 2)), (1, vec![]), "then the oldest");
        assert_eq!(places(&mut log, 1), [1], "the answer is still there");
    }

    #[test]
    fn an_answer_that_is_given_up_leaves_an_error_with_its_id_and_a_delivered_one_is_evicted_first() {
        let mut log = Log::default();
        log.keep(answer(1, 1, 5000, true), 1000);
        log.keep(answer(2, 1, 5000, false), 1000);
        let weight = log.weight();
        assert_eq!(log.give_up_answer(), Some(0), "it was delivered");
        assert_eq!(log.give_up_answer(), Some(1));
        assert!(log.weight() < weight - 9000);
        for stream in [1, 2] {
            let kept = log.behind(EventId { stream, place: 0 }).next().expect("it is there").shared().1;
            let text = String::from_utf8(kept.parts().concat()).expect("it is text");
            assert!(text.starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{stream},"error":"#)), "{text}");
        }
        while log.give_up_answer().is_some() {}
        assert_eq!((log.weight(), log.last_of(2), log.last_of(3)), (0, None, Some(u32::MAX)));
    }

    #[test]
    fn the_number_of_kept_answers_is_limited() {
        let mut log = Log::default();
        let lost: usize = (1..=MOST_ANSWERS as u32 + 3).map(|stream| log.keep(answer(stream, 1, 1, true), 1000)).sum();
        assert_eq!((lost, log.last_of(3), log.last_of(4)), (3, None, Some(1)));
        let mut log = Log::default();
        (1..=MOST_EVENTS as u32 + 3).for_each(|stream| _ = log.keep(answer(stream, 1, 1, false), 1000));
        assert_eq!((log.last_of(3), log.last_of(4)), (None, Some(1)), "delivered ones sooner");
    }

    #[test]
    fn events_moved_to_the_get_stream_follow_its_own_and_answers_stay() {
        let mut log = Log::default();
        for (stream, place) in [(3, 1), (0, 1), (0, 2)] {
            log.keep(event(stream, place, 1, true), 1000);
        }
        log.keep(answer(4, 1, 1, true), 1000);
        assert_eq!(log.adopt(2, true), 3);
        assert_eq!(places(&mut log, 0), [1, 2, 3], "a client that resumes after its last event misses none");
        assert_eq!((places(&mut log, 4), log.untaken().count()), (vec![1], 3));
    }
}
