//! A session of the revisions that have sessions: which requests of its client are pending, on which streams, and where
//! each line for it goes.
//!
//! A stream is a POST with requests, until the last one is answered, or the GET stream, which is number 0. It may have
//! lost its connection: then its lines are kept (`log.rs`) for a GET that resumes after an event, or for the next GET.
//!
//! Invariant: a line goes to one stream (MCP 2025-11-25, "Multiple connections").

use super::fault::Fault;
use super::log::{Event, Log};
use super::versions::LEGACY_VERSIONS;
use super::write::EventId;
use crate::bus::id::Id;
use crate::http1::Status;

/// The holder's name for a connection.
pub type Connection = usize;

/// Maximum number of pending requests of one session, since each new one is compared with them all.
pub const MOST_REQUESTS: usize = 1024;

/// The kind of a line for a client.
#[derive(Clone, Debug)]
pub enum Line<'a> {
    /// The answer to a request of this id.
    Answer(&'a [u8]),
    /// The progress of the request that gave this token.
    Progress(&'a [u8]),
    /// A message that belongs to no request: a list changed, a resource was updated.
    Unrelated,
    /// Anything else, which belongs to whatever the worker is doing.
    Other,
}

/// Where a line goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The connection to send it on; none if it is kept.
    pub connection: Option<Connection>,
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

struct Stream {
    number: u32,
    connection: Option<Connection>,
    /// The number of pending requests.
    pending: usize,
    /// The position of its last event.
    place: u32,
    /// Events were sent, or its client expects several answers.
    has_events: bool,
}

impl Stream {
    fn next(&mut self) -> EventId {
        self.place += 1;
        EventId { stream: self.number, place: self.place }
    }
}

/// See the module documentation.
pub struct Session {
    /// `Mcp-Session-Id`.
    pub id: Box<str>,
    /// The negotiated version, once known.
    pub version: Option<&'static str>,
    /// The initialize request, until it is answered.
    pub initialize: Option<Id>,
    /// The first one is the GET stream.
    streams: Vec<Stream>,
    exchanges: Vec<Exchange>,
    next: u32,
    log: Log,
}

impl Session {
    /// The stream of the initialize request.
    pub const FIRST: u32 = 1;

    /// A session that a request has just started.
    pub fn new(id: Box<str>, initialize: Option<Id>) -> Self {
        let general = Stream { number: 0, connection: None, pending: 0, place: 0, has_events: true };
        let (streams, exchanges) = (vec![general], Vec::new());
        Self { id, version: None, initialize, streams, exchanges, next: Self::FIRST, log: Log::default() }
    }

    /// Records the negotiated version, if it is a known one.
    pub fn agree(&mut self, version: &[u8]) {
        self.version = LEGACY_VERSIONS.into_iter().find(|known| known.as_bytes() == version);
    }

    /// Whether streams start with an event from which they can be resumed. Clients of older versions take its empty
    /// data for a message.
    pub fn primes(&self) -> bool {
        self.version == Some(LEGACY_VERSIONS[0])
    }

    /// Whether it accepts batches, which only one revision has.
    pub fn takes_batches(&self) -> bool {
        self.version == Some("2025-03-26")
    }

    /// Adds the requests that a connection brings, with their ids and progress tokens. Returns the stream of their
    /// answers.
    pub fn begin<'a>(
        &mut self,
        connection: Connection,
        requests: impl Iterator<Item = (Id, Option<&'a [u8]>)>,
        is_batch: bool,
    ) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1).max(1);
        let before = self.exchanges.len();
        self.exchanges.extend(requests.map(|(id, token)| Exchange { id, token: token.map(Box::from), stream: number }));
        let pending = self.exchanges.len() - before;
        let connection = Some(connection);
        self.streams.push(Stream { number, connection, pending, place: 0, has_events: is_batch });
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

    /// Decides where a line for the client goes.
    pub fn deliver(&mut self, line: &Line<'_>) -> Delivery {
        let exchange = match *line {
            Line::Answer(id) => {
                let id = Id::parse(id).ok();
                self.exchanges.iter().position(|exchange| Some(&exchange.id) == id.as_ref())
            }
            Line::Progress(token) => self.asked_with(|own| own == token).or_else(|| {
                // A worker may spell a client's token in another way.
                let told = Id::parse(token).ok()?;
                self.asked_with(|own| Id::parse(own).is_ok_and(|own| own == told))
            }),
            Line::Unrelated | Line::Other => None,
        };
        let number = match exchange {
            Some(at) => self.exchanges[at].stream,
            None => self.stream_of_no_request(line),
        };
        let is_answer = matches!(line, Line::Answer(_));
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
        delivery
    }

    /// The stream of a line that names no request: that of the newest request whose client is connected, or that of
    /// GET.
    fn stream_of_no_request(&self, line: &Line<'_>) -> u32 {
        let general = &self.streams[0];
        if matches!(line, Line::Unrelated) && general.connection.is_some() {
            return 0;
        }
        let mut newest = self.streams[1..].iter().rev();
        newest.find(|stream| stream.connection.is_some()).map_or(0, |stream| stream.number)
    }

    /// Keeps a sent line as an event, within `most` bytes in total. Returns how many undelivered ones are dropped for
    /// it.
    pub fn keep(&mut self, id: EventId, data: &[u8], most: usize) -> usize {
        self.log.keep(Event { id, data: data.into(), is_untaken: false, is_nameless: false }, most)
    }

    /// Keeps a line that could not be sent. `is_nameless` if nothing was ever sent on its stream.
    pub fn keep_untaken(&mut self, id: EventId, data: &[u8], is_nameless: bool, most: usize) -> usize {
        self.log.keep(Event { id, data: data.into(), is_untaken: true, is_nameless }, most)
    }

    /// Notes that its stream became an event stream before its first event.
    pub fn begin_events(&mut self, stream: u32) {
        if let Some(stream) = self.streams.iter_mut().find(|it| it.number == stream) {
            stream.has_events = true;
        }
    }

    /// Detaches a closed connection, which did not deliver these events.
    pub fn detach(&mut self, connection: Connection, untaken: &[EventId]) {
        self.streams.iter_mut().filter(|it| it.connection == Some(connection)).for_each(|it| it.connection = None);
        if !untaken.is_empty() {
            self.log.give_back(untaken);
        }
    }

    /// The position of a stream's last event.
    pub fn place(&self, stream: u32) -> u32 {
        self.streams.iter().find(|it| it.number == stream).map_or(0, |stream| stream.place)
    }

    /// Lets a GET take over the general stream. Returns the connection that it replaces.
    pub fn open(&mut self, connection: Connection) -> Option<Connection> {
        self.streams[0].connection.replace(connection)
    }

    /// Lets a GET resume after an event. Returns the stream, and the connection that it replaces.
    ///
    /// # Errors
    /// The events after that one are not all kept any more.
    pub fn resume(&mut self, connection: Connection, id: EventId) -> Result<Option<Connection>, Fault> {
        let stream = self.streams.iter_mut().find(|stream| stream.number == id.stream);
        let last = stream.as_ref().map(|stream| stream.place).or_else(|| self.log.last_of(id.stream));
        if !last.is_some_and(|last| self.log.has_all(id, last)) {
            let why = "the events after Last-Event-ID are not kept any more";
            return Err(Fault::new(Status::BadRequest, why));
        }
        Ok(stream.and_then(|stream| stream.connection.replace(connection)))
    }

    /// Whether more will come on a stream.
    pub fn goes_on(&self, stream: u32) -> bool {
        self.streams.iter().any(|it| it.number == stream)
    }

    /// The events to send to a GET that resumes after an event.
    pub fn events_behind(&mut self, id: EventId) -> impl Iterator<Item = &mut Event> {
        self.log.behind(id)
    }

    /// The undelivered events to send to a GET that takes over the general stream. A resumed one gets those of other
    /// streams that no client can ask for, a new one gets all.
    pub fn untaken(&mut self, is_new: bool) -> impl Iterator<Item = &mut Event> {
        let place = self.streams[0].place;
        self.streams[0].place = self.log.adopt(place, is_new);
        self.log.untaken()
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

    /// Whether the request that begins it is pending on this stream.
    pub fn begins_on(&self, stream: u32) -> bool {
        self.initialize.is_some() && stream == Self::FIRST
    }

    /// Whether a client is connected, with a request or a stream.
    pub fn is_in_use(&self) -> bool {
        self.streams.iter().any(|stream| stream.connection.is_some())
    }

    /// The connections that wait for a message of it.
    pub fn connections(&self) -> Vec<Connection> {
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

    fn post(session: &mut Session, connection: usize, id: u64, token: Option<&[u8]>) -> u32 {
        session.begin(connection, [(Id::Number(id), token)].into_iter(), false)
    }

    #[test]
    fn an_answer_alone_is_a_whole_response_and_one_after_progress_an_event() {
        let mut session = session();
        assert_eq!((post(&mut session, 10, 1, None), post(&mut session, 11, 2, Some(b"7"))), (1, 2));
        let progress = session.deliver(&Line::Progress(b"7"));
        let id = EventId { stream: 2, place: 1 };
        assert_eq!(progress, Delivery { connection: Some(11), id, is_whole: false, is_last: false, is_first: true });
        let whole = session.deliver(&Line::Answer(b"1"));
        assert!(whole.is_whole && whole.is_last && whole.connection == Some(10));
        let last = session.deliver(&Line::Answer(b"2"));
        assert!(!last.is_whole && last.is_last && last.connection == Some(11));
        assert!(!session.goes_on(1) && !session.goes_on(2));
    }

    #[test]
    fn progress_goes_to_its_request_however_the_worker_spells_the_token() {
        let mut session = session();
        post(&mut session, 10, 1, Some("\"\u{e9}\"".as_bytes()));
        post(&mut session, 11, 2, Some(b"2"));
        post(&mut session, 12, 3, None);
        assert_eq!(session.deliver(&Line::Progress(br#""\u00e9""#)).connection, Some(10));
        assert_eq!(session.deliver(&Line::Progress(b"2.0")).connection, Some(11));
        assert_eq!(session.deliver(&Line::Progress(br#""2""#)).connection, Some(12), "that is nobody's");
    }

    #[test]
    fn a_line_without_a_request_goes_to_the_newest_stream_or_to_get() {
        let mut session = session();
        assert_eq!(session.deliver(&Line::Other).connection, None, "no client is connected");
        assert_eq!(session.open(20), None);
        assert_eq!(session.deliver(&Line::Other).connection, Some(20));
        post(&mut session, 10, 1, None);
        assert_eq!(session.deliver(&Line::Other).connection, Some(10));
        assert_eq!(session.deliver(&Line::Unrelated).connection, Some(20));
        assert_eq!(session.open(21), Some(20), "a new GET replaces the old one");
        session.detach(21, &[]);
        assert_eq!(session.deliver(&Line::Unrelated).connection, Some(10));
    }

    #[test]
    fn a_stream_is_resumed_after_an_event_while_that_is_kept() {
        let mut session = session();
        post(&mut session, 10, 1, None);
        let first = session.deliver(&Line::Other);
        session.keep(first.id, b"a", 1000);
        session.detach(10, &[]);
        let answer = session.deliver(&Line::Answer(b"1"));
        assert_eq!(answer.connection, None);
        session.keep_untaken(answer.id, b"b", false, 1000);
        assert_eq!(session.resume(30, first.id), Ok(None));
        let behind: Vec<_> = session.events_behind(first.id).map(|event| event.data.to_vec()).collect();
        assert_eq!((behind, session.goes_on(1)), (vec![b"b".to_vec()], false));
        assert!(session.resume(30, EventId { stream: 9, place: 0 }).is_err());
        assert_eq!(session.untaken(false).count(), 0, "its client can ask for it");
        let next: Vec<_> = session.untaken(true).map(|event| event.taken().0).collect();
        assert_eq!(next, [EventId { stream: 0, place: 1 }], "a new GET is sent it in any case");
    }

    #[test]
    fn a_batch_ends_with_its_last_answer() {
        let mut session = session();
        session.begin(10, [(Id::Number(1), None), (Id::Number(2), None)].into_iter(), true);
        let one = session.deliver(&Line::Answer(b"2"));
        assert!(!one.is_whole && !one.is_last);
        assert!(session.deliver(&Line::Answer(b"1")).is_last);
    }
}
