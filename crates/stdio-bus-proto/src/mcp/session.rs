//! A session of the revisions that have sessions: which requests of its client are pending, on which streams, and on
//! which one each line for it is sent.
//!
//! A stream is a POST with requests, until the last one is answered, or the GET stream, which is number 0. It may have
//! lost its connection: then its lines are kept (`log.rs`) for a GET that resumes after an event; those that are no
//! answers also for the next GET.
//!
//! Invariants: a line is sent on one stream (MCP 2025-11-25, "Multiple Connections"). An answer is only sent on the
//! stream of its request, or on a GET that resumes that.

use super::fault::Fault;
use super::log::{Carries, Data, Log, StoredEvent};
use super::write::EventId;
use crate::http1::Status;
use stdio_bus_core::eras::protocol::{Revision, revision};
use stdio_bus_core::id::Id;
use stdio_bus_core::settings::Era;

/// The holder's name for a connection.
pub type ConnectionId = usize;

/// Maximum number of pending requests of one session, since each new one is compared with them all.
pub const MOST_REQUESTS: usize = 1024;

/// The kind of a line for a client.
#[derive(Clone, Debug)]
pub enum LineKind<'a> {
    /// The answer to a request of this id.
    Answer(&'a [u8]),
    /// The progress of the request that gave this token.
    Progress(&'a [u8]),
    /// A message that belongs to no request: a list changed, a resource was updated.
    Unrelated,
    /// Anything else, which belongs to whatever the worker is doing.
    Other,
}

/// Where a line is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The connection to send it on; none if it is kept.
    pub connection: Option<ConnectionId>,
    /// Its position.
    pub id: EventId,
    /// It is an answer with nothing before or after it: it needs no event.
    pub is_whole: bool,
    /// It is the last line of its stream.
    pub is_last: bool,
    /// It is the first line of its stream.
    pub is_first: bool,
}

/// A pending request.
struct Exchange {
    id: Id,
    /// Its progress token, verbatim.
    token: Option<Box<[u8]>>,
    stream: u32,
}

struct SseStream {
    number: u32,
    connection: Option<ConnectionId>,
    /// The number of pending requests.
    pending: usize,
    /// The position of its last event.
    place: u32,
    /// Events were sent, or its client expects several answers.
    has_events: bool,
    /// Its client takes nothing but the answer on it.
    is_for_answer_alone: bool,
}

impl LineKind<'_> {
    /// What its event carries.
    pub fn carries(&self) -> Carries {
        match self {
            LineKind::Answer(_) => Carries::Answer,
            LineKind::Progress(_) => Carries::Progress,
            LineKind::Unrelated | LineKind::Other => Carries::Other,
        }
    }
}

/// What a GET gets that resumes a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// What is kept, and what follows. The connection that it replaces, if there is one.
    Events(Option<ConnectionId>),
    /// Nothing: the stream has ended, and nothing of it is left to send.
    Nothing,
}

impl SseStream {
    fn next(&mut self) -> EventId {
        self.place += 1;
        EventId { stream: self.number, place: self.place }
    }
}

/// A session: the streams of its client, with what is kept of them.
pub struct Session {
    /// `Mcp-Session-Id`.
    pub id: Box<str>,
    /// The negotiated version, once known.
    pub version: Option<&'static Revision>,
    /// The initialize request, until it is answered.
    pub initialize: Option<Id>,
    /// The initialize request that a restored session's worker was sent again, until it is answered.
    pub replayed: Option<Id>,
    /// The first one is the GET stream.
    streams: Vec<SseStream>,
    exchanges: Vec<Exchange>,
    next: u32,
    log: Log,
    /// Smaller numbers of streams and events are those of an earlier daemon; 0 if none has begun it.
    numbers_from: u32,
    /// An earlier daemon has begun it, and none of its streams has reported yet that what was kept there is lost.
    is_new_to_its_streams: bool,
}

impl Session {
    /// The stream of the initialize request.
    pub const FIRST: u32 = 1;

    /// A session that a request has just started.
    pub fn new(id: Box<str>, initialize: Option<Id>) -> Self {
        let general = SseStream {
            number: 0,
            connection: None,
            pending: 0,
            place: 0,
            has_events: true,
            is_for_answer_alone: false,
        };
        let (streams, exchanges) = (vec![general], Vec::new());
        Self {
            id,
            version: None,
            initialize,
            replayed: None,
            streams,
            exchanges,
            next: Self::FIRST,
            log: Log::default(),
            numbers_from: 0,
            is_new_to_its_streams: false,
        }
    }

    /// A session that an earlier daemon has begun, with this version. Streams and their events are counted from a number
    /// that depends on this random one: its client may know smaller ones, whose events are lost.
    pub fn restored(id: Box<str>, version: &[u8], random: u32) -> Self {
        let mut session = Self::new(id, None);
        session.agree(version);
        let from = random % (1 << 30) + (1 << 30);
        (session.numbers_from, session.next, session.streams[0].place) = (from, from, from);
        session.is_new_to_its_streams = true;
        session
    }

    /// Whether an earlier daemon has given out an event, so that it and what followed it there is lost.
    pub fn is_of_earlier(&self, id: EventId) -> bool {
        let general = &self.streams[0];
        let is_ours = if id.stream == 0 {
            (self.numbers_from..=general.place).contains(&id.place)
        } else {
            id.stream >= self.numbers_from
        };
        self.numbers_from > 0 && !is_ours
    }

    /// Whether a GET that resumes after this event, or after none, has to be notified that events of an earlier daemon
    /// are lost.
    pub fn tells_of_loss(&mut self, behind: Option<EventId>) -> bool {
        let is_first = std::mem::take(&mut self.is_new_to_its_streams);
        behind.map_or(is_first, |id| self.is_of_earlier(id))
    }

    /// Records the negotiated version, if it is a known one.
    pub fn agree(&mut self, version: &[u8]) {
        self.version = revision(version).filter(|known| known.era == Era::Legacy);
    }

    /// Whether streams start with an event from which they can be resumed. Clients of older versions take its empty
    /// data for a message.
    pub fn primes(&self) -> bool {
        self.version.is_some_and(|version| version.primes_streams)
    }

    /// Whether it accepts batches, which only one revision has.
    pub fn takes_batches(&self) -> bool {
        self.version.is_some_and(|version| version.has_batches)
    }

    /// Adds the requests that a connection brings, with their ids and progress tokens. Returns the stream of their
    /// answers. `is_for_answer_alone` if its client refuses a stream: all else is sent on the stream of GET.
    pub fn begin<'a>(
        &mut self,
        connection: ConnectionId,
        requests: impl Iterator<Item = (Id, Option<&'a [u8]>)>,
        is_batch: bool,
        is_for_answer_alone: bool,
    ) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1).max(1);
        let before = self.exchanges.len();
        self.exchanges.extend(requests.map(|(id, token)| Exchange { id, token: token.map(Box::from), stream: number }));
        let pending = self.exchanges.len() - before;
        let connection = Some(connection);
        self.streams.push(SseStream {
            number,
            connection,
            pending,
            place: 0,
            has_events: is_batch,
            is_for_answer_alone,
        });
        number
    }

    /// Whether it has room for this many more pending requests.
    pub fn has_room_for(&self, requests: usize) -> bool {
        requests <= MOST_REQUESTS.saturating_sub(self.exchanges.len())
    }

    /// Whether a request with this id is pending.
    pub fn waits_for(&self, id: &Id) -> bool {
        self.exchanges.iter().any(|exchange| exchange.id == *id)
    }

    /// The pending request whose progress token is this one.
    fn asked_with(&self, is_it: impl Fn(&[u8]) -> bool) -> Option<usize> {
        self.exchanges.iter().position(|exchange| exchange.token.as_deref().is_some_and(&is_it))
    }

    /// Its client has cancelled a request, which gets no answer any more. Returns the connection that waits for nothing
    /// else.
    pub fn cancel(&mut self, id: &Id) -> Option<ConnectionId> {
        if self.initialize.as_ref() == Some(id) {
            return None;
        }
        let at = self.exchanges.iter().position(|exchange| exchange.id == *id)?;
        let number = self.exchanges.remove(at).stream;
        let at = self.streams.iter().position(|stream| stream.number == number)?;
        self.streams[at].pending -= 1;
        if self.streams[at].pending > 0 { None } else { self.streams.remove(at).connection }
    }

    /// Decides where a line for the client is sent. None for an answer that no request waits for.
    pub fn deliver(&mut self, line: &LineKind<'_>) -> Option<Delivery> {
        let exchange = match *line {
            LineKind::Answer(id) => {
                let id = Id::parse(id).ok();
                self.exchanges.iter().position(|exchange| Some(&exchange.id) == id.as_ref())
            }
            LineKind::Progress(token) => self.asked_with(|own| own == token).or_else(|| {
                // A worker may spell a client's token in another way.
                let id = Id::parse(token).ok()?;
                self.asked_with(|own| Id::parse(own).is_ok_and(|own| own == id))
            }),
            LineKind::Unrelated | LineKind::Other => None,
        };
        if exchange.is_none() && matches!(line, LineKind::Answer(_)) {
            return None;
        }
        let is_answer = matches!(line, LineKind::Answer(_));
        let number = match exchange.map(|at| self.exchanges[at].stream) {
            Some(number) if !is_answer && self.is_for_answer_alone(number) => 0,
            Some(number) => number,
            None => self.stream_of_no_request(line),
        };
        if let Some(at) = exchange.filter(|_| is_answer) {
            self.exchanges.remove(at);
        }
        let at = self.streams.iter().position(|stream| stream.number == number).unwrap_or(0);
        let stream = &mut self.streams[at];
        if is_answer && exchange.is_some() {
            stream.pending -= 1;
        }
        let is_last = number != 0 && stream.pending == 0;
        let is_whole = is_last && !stream.has_events;
        let is_first = !stream.has_events;
        let delivery = Delivery { connection: stream.connection, id: stream.next(), is_whole, is_last, is_first };
        stream.has_events = true;
        if is_last {
            self.streams.remove(at);
        }
        Some(delivery)
    }

    /// Whether a stream carries nothing but an answer.
    fn is_for_answer_alone(&self, number: u32) -> bool {
        self.streams.iter().any(|stream| stream.number == number && stream.is_for_answer_alone)
    }

    /// The stream of a line that names no request: that of the newest request whose client is connected, or that of
    /// GET.
    fn stream_of_no_request(&self, line: &LineKind<'_>) -> u32 {
        let general = &self.streams[0];
        if matches!(line, LineKind::Unrelated) && general.connection.is_some() {
            return 0;
        }
        let mut newest = self.streams[1..].iter().rev();
        newest
            .find(|stream| stream.connection.is_some() && !stream.is_for_answer_alone)
            .map_or(0, |stream| stream.number)
    }

    /// Keeps a sent line as an event; those that are no answers within `most` bytes in total. Returns how many undelivered
    /// ones are dropped for it.
    pub fn keep(&mut self, id: EventId, data: Data, carries: Carries, most: usize) -> usize {
        self.log.keep(StoredEvent { id, data, carries, is_untaken: false, is_nameless: false }, most)
    }

    /// Keeps a line that could not be sent. `is_nameless` if nothing was ever sent on its stream: an answer is lost then,
    /// since no client can ask for it.
    pub fn keep_untaken(&mut self, id: EventId, data: Data, carries: Carries, is_nameless: bool, most: usize) -> usize {
        if is_nameless && carries == Carries::Answer {
            return 1;
        }
        self.log.keep(StoredEvent { id, data, carries, is_untaken: true, is_nameless }, most)
    }

    /// Gives up a kept answer for lack of memory. Returns how many undelivered ones are lost; none if it keeps no answer.
    pub fn give_up_answer(&mut self) -> Option<usize> {
        self.log.give_up_answer()
    }

    /// Notes that its stream became an event stream before its first event.
    pub fn begin_events(&mut self, stream: u32) {
        if let Some(stream) = self.streams.iter_mut().find(|it| it.number == stream) {
            stream.has_events = true;
        }
    }

    /// Detaches a closed connection, which did not deliver these events. Returns how many of them are lost.
    pub fn detach(&mut self, connection: ConnectionId, untaken: &[EventId]) -> usize {
        self.streams.iter_mut().filter(|it| it.connection == Some(connection)).for_each(|it| it.connection = None);
        if untaken.is_empty() { 0 } else { self.log.give_back(untaken) }
    }

    /// The position of a stream's last event.
    pub fn place(&self, stream: u32) -> u32 {
        self.streams.iter().find(|it| it.number == stream).map_or(0, |stream| stream.place)
    }

    /// Lets a GET take over the general stream. Returns the connection that it replaces.
    pub fn open(&mut self, connection: ConnectionId) -> Option<ConnectionId> {
        self.streams[0].connection.replace(connection)
    }

    /// Lets a GET resume after an event. What was dropped behind that, which was reported, is left out.
    ///
    /// # Errors
    /// That event was not given out, or the answer behind it is not known any more.
    pub fn resume(&mut self, connection: ConnectionId, id: EventId) -> Result<Resumed, Fault> {
        if self.is_of_earlier(id) {
            if id.stream == 0 {
                return Ok(Resumed::Events(self.open(connection)));
            }
            let why = "the daemon was restarted, and what this stream carried is lost: send its requests again, if they may \
                       be repeated";
            return Err(Fault::new(Status::BadRequest, why));
        }
        let stream = self.streams.iter_mut().find(|stream| stream.number == id.stream);
        let has_ended = stream.is_none();
        let last = match &stream {
            Some(stream) => Some(stream.place),
            None => self.log.last_of(id.stream).filter(|_| id.stream < self.next),
        };
        if last.is_none_or(|last| last < id.place) {
            let why = "Last-Event-ID is none of this session, or the events after it are not kept any more";
            return Err(Fault::new(Status::BadRequest, why));
        }
        if has_ended && self.log.behind(id).next().is_none() {
            return Ok(Resumed::Nothing);
        }
        Ok(Resumed::Events(stream.and_then(|stream| stream.connection.replace(connection))))
    }

    /// Whether more will come on a stream.
    pub fn goes_on(&self, stream: u32) -> bool {
        self.streams.iter().any(|it| it.number == stream)
    }

    /// The events to send to a GET that resumes after an event.
    pub fn events_behind(&self, id: EventId) -> impl Iterator<Item = &StoredEvent> {
        self.log.behind(id)
    }

    /// The undelivered events to send to a GET that takes over the general stream. A resumed one gets those of other
    /// streams that no client can ask for, a new one gets all.
    pub fn untaken(&mut self, is_new: bool) -> impl Iterator<Item = &StoredEvent> {
        let place = self.streams[0].place;
        self.streams[0].place = self.log.adopt(place, is_new);
        self.log.untaken()
    }

    /// A kept event is being sent.
    pub fn take(&mut self, id: EventId) {
        self.log.take(id);
    }

    /// Whether its client no longer waits for the session id and never received it.
    pub fn is_unheard(&self) -> bool {
        let first = self.streams.iter().find(|stream| stream.number == Self::FIRST);
        self.initialize.is_some() && first.is_some_and(|stream| stream.connection.is_none() && !stream.has_events)
    }

    /// Whether a request is pending.
    pub fn has_requests(&self) -> bool {
        !self.exchanges.is_empty()
    }

    /// The ids of all unanswered requests.
    pub fn unanswered(&self) -> impl Iterator<Item = &Id> {
        self.exchanges.iter().map(|exchange| &exchange.id)
    }

    /// Whether the request that begins it is pending on this stream.
    pub fn begins_on(&self, stream: u32) -> bool {
        self.initialize.is_some() && stream == Self::FIRST
    }

    /// Whether a client is connected, with a request or a stream.
    pub fn is_in_use(&self) -> bool {
        self.streams.iter().any(|stream| stream.connection.is_some())
    }

    /// The connections that wait for a message of it.
    pub fn connections(&self) -> Vec<ConnectionId> {
        self.streams.iter().filter_map(|stream| stream.connection).collect()
    }

    /// The ids of a stream's unanswered requests.
    pub fn unanswered_on(&self, stream: u32) -> impl Iterator<Item = &Id> {
        self.exchanges.iter().filter(move |exchange| exchange.stream == stream).map(|exchange| &exchange.id)
    }

    /// Drops all kept events. Returns how many undelivered ones are lost.
    pub fn forget(&mut self) -> usize {
        self.log.clear()
    }

    /// Memory used by kept events, in bytes.
    pub fn weight(&self) -> usize {
        self.log.weight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        Session::new("s".into(), None)
    }

    fn deliver(session: &mut Session, line: &LineKind<'_>) -> Delivery {
        session.deliver(line).expect("a request waits for it")
    }

    fn post(session: &mut Session, connection: usize, id: u64, token: Option<&[u8]>) -> u32 {
        session.begin(connection, [(Id::Number(id), token)].into_iter(), false, false)
    }

    #[test]
    fn only_the_answer_comes_on_the_stream_of_a_client_that_refuses_streams() {
        let mut session = Session::new("a".into(), None);
        session.begin(7, [(Id::Number(1), Some(&b"1"[..]))].into_iter(), false, true);
        session.open(9);
        let mut to = |line: LineKind<'_>| session.deliver(&line).map(|it| (it.connection, it.id.stream, it.is_whole));
        assert_eq!(to(LineKind::Progress(b"1")), Some((Some(9), 0, false)));
        assert_eq!(to(LineKind::Other), Some((Some(9), 0, false)));
        assert_eq!(to(LineKind::Answer(b"1")), Some((Some(7), 1, true)));
    }

    #[test]
    fn an_answer_alone_is_a_whole_response_and_one_after_progress_an_event() {
        let mut session = session();
        assert_eq!((post(&mut session, 10, 1, None), post(&mut session, 11, 2, Some(b"7"))), (1, 2));
        let progress = deliver(&mut session, &LineKind::Progress(b"7"));
        let id = EventId { stream: 2, place: 1 };
        assert_eq!(progress, Delivery { connection: Some(11), id, is_whole: false, is_last: false, is_first: true });
        let whole = deliver(&mut session, &LineKind::Answer(b"1"));
        assert!(whole.is_whole && whole.is_last && whole.connection == Some(10));
        let last = deliver(&mut session, &LineKind::Answer(b"2"));
        assert!(!last.is_whole && last.is_last && last.connection == Some(11));
        assert!(!session.goes_on(1) && !session.goes_on(2));
    }

    #[test]
    fn progress_is_sent_to_its_request_however_the_worker_spells_the_token() {
        let mut session = session();
        post(&mut session, 10, 1, Some("\"\u{e9}\"".as_bytes()));
        post(&mut session, 11, 2, Some(b"2"));
        post(&mut session, 12, 3, None);
        assert_eq!(deliver(&mut session, &LineKind::Progress(br#""\u00e9""#)).connection, Some(10));
        assert_eq!(deliver(&mut session, &LineKind::Progress(b"2.0")).connection, Some(11));
        assert_eq!(deliver(&mut session, &LineKind::Progress(br#""2""#)).connection, Some(12), "that is nobody's");
    }

    #[test]
    fn a_line_without_a_request_is_sent_to_the_newest_stream_or_to_get() {
        let mut session = session();
        assert_eq!(deliver(&mut session, &LineKind::Other).connection, None, "no client is connected");
        assert_eq!(session.open(20), None);
        assert_eq!(deliver(&mut session, &LineKind::Other).connection, Some(20));
        post(&mut session, 10, 1, None);
        assert_eq!(deliver(&mut session, &LineKind::Other).connection, Some(10));
        assert_eq!(deliver(&mut session, &LineKind::Unrelated).connection, Some(20));
        assert_eq!(session.open(21), Some(20), "a new GET replaces the old one");
        session.detach(21, &[]);
        assert_eq!(deliver(&mut session, &LineKind::Unrelated).connection, Some(10));
    }

    #[test]
    fn a_stream_is_resumed_after_an_event_while_that_is_kept() {
        let mut session = session();
        post(&mut session, 10, 1, None);
        let first = deliver(&mut session, &LineKind::Other);
        session.keep(first.id, b"a"[..].into(), Carries::Other, 1000);
        session.detach(10, &[]);
        let progress = deliver(&mut session, &LineKind::Other);
        assert_eq!(progress.id.stream, 0, "what names no request is for the next GET");
        let answer = deliver(&mut session, &LineKind::Answer(b"1"));
        assert_eq!(answer.connection, None);
        session.keep_untaken(answer.id, b"b"[..].into(), Carries::Answer, false, 1000);
        assert_eq!(session.resume(30, first.id), Ok(Resumed::Events(None)));
        let behind: Vec<_> = session.events_behind(first.id).map(|event| event.data.parts().concat()).collect();
        assert_eq!((behind, session.goes_on(1)), (vec![b"b".to_vec()], false));
        for (stream, place) in [(9, 0), (2, 0), (1, answer.id.place + 1)] {
            assert!(session.resume(30, EventId { stream, place }).is_err(), "{stream}-{place} was not given out");
        }
        assert_eq!(session.resume(30, answer.id), Ok(Resumed::Nothing));
        assert_eq!(session.untaken(true).count(), 0, "no answer is on a stream that resumes none");
    }

    #[test]
    fn a_cancelled_request_gets_no_answer_and_its_stream_ends_with_it() {
        let mut session = session();
        session.begin(10, [(Id::Number(1), None), (Id::Number(2), None)].into_iter(), true, false);
        assert_eq!(session.cancel(&Id::Number(1)), None, "the other one waits");
        assert_eq!(session.deliver(&LineKind::Answer(b"1")), None);
        assert!(session.goes_on(1) && !session.waits_for(&Id::Number(1)));
        assert_eq!(session.cancel(&Id::Number(2)), Some(10));
        assert_eq!((session.goes_on(1), session.cancel(&Id::Number(2))), (false, None));
        assert_eq!(session.resume(30, EventId { stream: 1, place: 0 }), Ok(Resumed::Nothing), "a client may ask");
    }

    #[test]
    fn initialize_is_not_cancelled() {
        let mut session = Session::new("s".into(), Some(Id::Number(0)));
        post(&mut session, 10, 0, None);
        assert_eq!(session.cancel(&Id::Number(0)), None);
        assert!(deliver(&mut session, &LineKind::Answer(b"0")).is_whole);
    }

    #[test]
    fn a_restored_session_gives_out_no_number_twice_and_resumes_its_general_stream_alone() {
        let mut session = Session::restored("s".into(), b"2025-11-25", 7);
        assert!(session.version.is_some());
        assert!(session.tells_of_loss(None) && !session.tells_of_loss(None), "it is said once");
        assert!(session.tells_of_loss(Some(EventId { stream: 0, place: 5 })), "and to who asks for what is lost");
        let stream = post(&mut session, 10, 1, None);
        assert!(stream > 1000);
        for place in [0, 5, u32::MAX] {
            assert_eq!(session.resume(30, EventId { stream: 0, place }), Ok(Resumed::Events(None)));
            session.detach(30, &[]);
        }
        let why = session.resume(30, EventId { stream: 3, place: 1 }).expect_err("its answer is lost");
        assert!(why.why.contains("restarted"), "{}", why.why);
        let answer = deliver(&mut session, &LineKind::Answer(b"1"));
        assert!(!session.is_of_earlier(answer.id));
    }

    #[test]
    fn an_answer_of_which_nothing_was_sent_can_be_asked_for_by_nobody_and_is_lost() {
        let mut session = session();
        let id = EventId { stream: post(&mut session, 10, 1, None), place: 1 };
        assert_eq!(session.keep_untaken(id, b"b"[..].into(), Carries::Answer, true, 1000), 1);
        assert_eq!(session.weight(), 0);
    }

    #[test]
    fn a_batch_ends_with_its_last_answer() {
        let mut session = session();
        session.begin(10, [(Id::Number(1), None), (Id::Number(2), None)].into_iter(), true, false);
        let one = deliver(&mut session, &LineKind::Answer(b"2"));
        assert!(!one.is_whole && !one.is_last);
        assert!(deliver(&mut session, &LineKind::Answer(b"1")).is_last);
    }
}
