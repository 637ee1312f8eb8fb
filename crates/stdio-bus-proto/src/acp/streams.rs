//! The streams of a connection: which one each line for its client is queued for, and what waits there.
//!
//! A stream has one reader at a time, and may have none for a while: a client reads on the stream of a session only once
//! it knows the session. Nothing that waits is dropped while the connection lasts. It counts as not sent, so that the
//! core pauses the workers of a client that does not read.
//!
//! Invariants: the lines of a stream reach its readers in order. A line is taken from its stream once all of its event was
//! given to the kernel; one that was sent in part is sent anew, as a whole, to the next reader.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::asked::SESSION;
use crate::http1::Status;
use crate::mcp::fault::Fault;
use crate::mcp::log::Data;
use crate::mcp::write;
use stdio_bus_core::id::Id;

/// The holder's name for the socket of a request.
pub type Socket = usize;

/// The number of a stream. None is 0.
pub type Number = u32;

/// The stream of the connection.
pub const GENERAL: Number = 1;
/// How many streams may be open for sessions that no line for this client has named: a client opens that of a session
/// before it loads it.
pub const MOST_UNNAMED: usize = 16;
/// How many sessions without a reader and without a line are remembered by their names.
const MOST_REMEMBERED: usize = 256;
/// How many requests are remembered with their streams. The answer to one that was forgotten is sent on the
/// connection's.
const MOST_REQUESTS: usize = 4096;
/// How much is handed to a reader at once.
const PAGE: usize = 64 * 1024;

/// What a line for the client is.
#[derive(Clone, Copy, Debug)]
pub enum LineKind<'a> {
    /// The answer to a request of this id, and the session that it gives out.
    Answer(&'a [u8], Option<&'a [u8]>),
    /// Anything else, and the session that it names.
    Other(Option<&'a [u8]>),
}

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It answers `initialize`, for which this socket waits. It is not queued.
    First(Socket),
    /// It was queued, for this reader if there is one.
    Queued(Option<Socket>),
}

/// A line that waits, and how much of its event was handed to the reader and sent.
struct QueuedLine {
    data: Data,
    /// The length of the line with its newline, and how much of it was reported to the core as sent.
    length: usize,
    reported: usize,
    /// The length of its event, once that was begun for the present reader.
    framed: usize,
    handed: usize,
    sent: usize,
}

impl QueuedLine {
    /// Hands over more of its event.
    fn hand_over(&mut self, out: &mut Vec<u8>, most: usize, is_old: bool) {
        let length = self.data.len();
        let (mut before, mut after) = (Vec::new(), Vec::new());
        write::begin_event(&mut before, None, length, is_old);
        write::end_event(&mut after, is_old);
        self.framed = before.len() + length + after.len();
        let (from, to) = (self.handed, self.framed.min(self.handed + most));
        let part = |begin: usize, length: usize| from.clamp(begin, begin + length)..to.clamp(begin, begin + length);
        let place = part(0, before.len());
        out.extend_from_slice(&before[place]);
        let place = part(before.len(), length);
        self.data.append_to(out, place.start - before.len()..place.end - before.len());
        let place = part(before.len() + length, after.len());
        let at = before.len() + length;
        out.extend_from_slice(&after[place.start - at..place.end - at]);
        self.handed = to;
    }

    fn is_begun(&self) -> bool {
        self.handed > 0
    }

    fn is_handed_over(&self) -> bool {
        self.handed > 0 && self.handed == self.framed
    }

    /// The reader has gone: the next one gets all of it.
    fn begin_anew(&mut self) {
        (self.framed, self.handed, self.sent) = (0, 0, 0);
    }

    /// More of its event was sent. Returns how many bytes of the line that completes.
    fn sends(&mut self, bytes: usize) -> usize {
        self.sent += bytes;
        let reported = if self.sent == self.framed { self.length } else { self.sent.min(self.length) };
        let news = reported.saturating_sub(self.reported);
        self.reported += news;
        news
    }

    fn weight(&self) -> usize {
        self.data.weight() + size_of::<Self>()
    }
}

#[derive(Default)]
struct SessionStream {
    /// Its session; empty for that of the connection.
    name: Box<[u8]>,
    reader: Option<Socket>,
    waiting: VecDeque<QueuedLine>,
    /// A line for this client has named its session.
    is_named: bool,
    /// When it was last used, by a count.
    used: u64,
}

impl SessionStream {
    fn drop_waiting(&mut self) -> Dropped {
        let items = std::mem::take(&mut self.waiting);
        let owed = items.iter().map(|item| item.length - item.reported).sum();
        Dropped { lines: items.len(), owed, weight: items.iter().map(QueuedLine::weight).sum() }
    }
}

/// Lines that are dropped, and the bytes of them that the core waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// How many lines.
    pub lines: usize,
    /// How many bytes of them the core does not know to be sent.
    pub owed: usize,
    weight: usize,
}

/// See the module documentation.
pub struct Streams {
    /// `Acp-Connection-Id`.
    pub id: Box<str>,
    /// The request that begins the connection and the socket that waits for its answer, until it comes.
    first: Option<(Id, Socket)>,
    streams: BTreeMap<Number, SessionStream>,
    names: HashMap<Box<[u8]>, Number>,
    /// Pending requests, with the sessions whose streams have their answers.
    asked: VecDeque<(Id, Option<Box<[u8]>>)>,
    next: Number,
    count: u64,
    weight: usize,
}

impl Streams {
    /// Those of a connection that the request of this id begins, for whose answer a socket waits.
    pub fn new(id: Box<str>, initialize: Id, socket: Socket) -> Self {
        Self {
            id,
            first: Some((initialize, socket)),
            streams: [(GENERAL, SessionStream { is_named: true, ..SessionStream::default() })].into(),
            names: HashMap::new(),
            asked: VecDeque::new(),
            next: GENERAL + 1,
            count: 0,
            weight: 0,
        }
    }

    /// A client asks something, whose answer is sent on the stream of this session, or of the connection.
    pub fn ask(&mut self, id: Id, session: Option<&[u8]>) {
        if self.asked.len() == MOST_REQUESTS {
            self.asked.pop_front();
        }
        self.asked.push_back((id, session.map(Box::from)));
    }

    /// A socket becomes the reader of a stream. Returns the number of that.
    ///
    /// # Errors
    /// It has a reader, or too many are open for sessions that nobody has named.
    pub fn open(&mut self, socket: Socket, session: Option<&str>) -> Result<Number, Fault> {
        let number = match session.map(str::as_bytes) {
            None => GENERAL,
            Some(name) => match self.names.get(name) {
                Some(number) => *number,
                None if self.streams.values().filter(|stream| !stream.is_named).count() >= MOST_UNNAMED => {
                    let why = format!(
                        "no session of this connection has the name in {SESSION}, and {MOST_UNNAMED} streams wait for \
                         such sessions already: load it first"
                    );
                    return Err(Fault::new(Status::NotFound, why));
                }
                None => self.add(name),
            },
        };
        let used = self.tick();
        let stream = self.streams.get_mut(&number).ok_or_else(Fault::no_session)?;
        if stream.reader.is_some() {
            return Err(Fault::new(Status::Conflict, "another request reads this stream: end that first"));
        }
        (stream.reader, stream.used) = (Some(socket), used);
        Ok(number)
    }

    fn add(&mut self, name: &[u8]) -> Number {
        let number = self.next;
        self.next += 1;
        self.names.insert(name.into(), number);
        self.streams.insert(number, SessionStream { name: name.into(), ..SessionStream::default() });
        number
    }

    fn tick(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// The stream of a session that a line names.
    fn named(&mut self, name: &[u8]) -> Number {
        let known = self.names.get(name).copied();
        let number = known.unwrap_or_else(|| self.add(name));
        let used = self.tick();
        if let Some(stream) = self.streams.get_mut(&number) {
            (stream.is_named, stream.used) = (true, used);
        }
        if known.is_none() {
            self.forget_names();
        }
        number
    }

    /// Forgets names of sessions that are not in use, if there are too many.
    fn forget_names(&mut self) {
        if self.names.len() <= MOST_REMEMBERED {
            return;
        }
        let unused = |(number, stream): &(&Number, &SessionStream)| {
            **number != GENERAL && stream.reader.is_none() && stream.waiting.is_empty() && stream.used != self.count
        };
        let oldest = self.streams.iter().filter(unused).min_by_key(|(_, stream)| stream.used);
        if let Some(number) = oldest.map(|(number, _)| *number) {
            self.remove(number);
        }
    }

    fn remove(&mut self, number: Number) {
        let gone = self.streams.remove(&number);
        gone.into_iter().for_each(|stream| _ = self.names.remove(&stream.name));
    }

    /// Queues a line for the client, which has this length with its newline, unless it answers `initialize`.
    pub fn deliver(&mut self, line: LineKind<'_>, length: usize, data: impl FnOnce() -> Data) -> Delivery {
        let number = match line {
            LineKind::Other(None) => GENERAL,
            LineKind::Other(Some(name)) => self.named(name),
            LineKind::Answer(id, gives) => {
                let id = Id::parse(id).ok();
                if let Some((_, socket)) = self.first.take_if(|(first, _)| Some(&*first) == id.as_ref()) {
                    return Delivery::First(socket);
                }
                gives.into_iter().for_each(|name| _ = self.named(name));
                let at = self.asked.iter().position(|(asked, _)| Some(asked) == id.as_ref());
                match at.and_then(|at| self.asked.remove(at)).and_then(|(_, session)| session) {
                    Some(name) => self.named(&name),
                    None => GENERAL,
                }
            }
        };
        let item = QueuedLine { data: data(), length, reported: 0, framed: 0, handed: 0, sent: 0 };
        self.weight += item.weight();
        let stream = self.streams.entry(number).or_default();
        stream.waiting.push_back(item);
        Delivery::Queued(stream.reader)
    }

    /// Hands over the next part of what waits on a stream, if there is any. Returns its length. All that was handed over
    /// before has to be sent.
    pub fn hand_over(&mut self, number: Number, out: &mut Vec<u8>, is_old: bool) -> usize {
        let begin = out.len();
        let Some(stream) = self.streams.get_mut(&number) else { return 0 };
        for item in stream.waiting.iter_mut().skip_while(|item| item.is_handed_over()) {
            let room = PAGE - (out.len() - begin);
            item.hand_over(out, room, is_old);
            if out.len() - begin >= PAGE {
                break;
            }
        }
        out.len() - begin
    }

    /// So many bytes of what was handed over were sent. Returns how many bytes of the core's lines they complete.
    pub fn sent(&mut self, number: Number, mut bytes: usize) -> usize {
        let Some(stream) = self.streams.get_mut(&number) else { return 0 };
        let mut reported = 0;
        while bytes > 0
            && let Some(first) = stream.waiting.front_mut().filter(|first| first.is_begun())
        {
            let its = bytes.min(first.handed - first.sent);
            if its == 0 {
                break;
            }
            bytes -= its;
            reported += first.sends(its);
            if first.sent == first.framed {
                self.weight -= first.weight();
                stream.waiting.pop_front();
            }
        }
        reported
    }

    /// Whether an event of a stream was handed over in part: its reader cannot be sent the end of the stream.
    pub fn is_amid(&self, number: Number) -> bool {
        let stream = self.streams.get(&number);
        stream.is_some_and(|stream| stream.waiting.iter().any(|item| item.is_begun() && !item.is_handed_over()))
    }

    /// A socket reads a stream no more.
    pub fn detach(&mut self, number: Number, socket: Socket) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        if stream.reader.take_if(|reader| *reader == socket).is_none() {
            return;
        }
        stream.waiting.iter_mut().filter(|item| item.is_begun()).for_each(QueuedLine::begin_anew);
        if !stream.is_named && stream.waiting.is_empty() {
            self.remove(number);
        }
    }

    /// A socket does not wait for the answer to `initialize` any more. Returns its id, if it did: no client knows the
    /// connection's name then.
    pub fn give_up(&mut self, socket: Socket) -> Option<Id> {
        self.first.take_if(|(_, waits)| *waits == socket).map(|(id, _)| id)
    }

    /// Drops what waits for no reader, or all.
    pub fn drop_waiting(&mut self, all: bool) -> Dropped {
        let mut sum = Dropped::default();
        for stream in self.streams.values_mut().filter(|stream| all || stream.reader.is_none()) {
            let dropped = stream.drop_waiting();
            sum.lines += dropped.lines;
            sum.owed += dropped.owed;
            self.weight -= dropped.weight;
        }
        sum
    }

    /// Whether its client reads a stream, or waits for the connection to begin.
    pub fn is_in_use(&self) -> bool {
        self.first.is_some() || self.streams.values().any(|stream| stream.reader.is_some())
    }

    /// Whether a request is pending.
    pub fn has_requests(&self) -> bool {
        self.first.is_some() || !self.asked.is_empty()
    }

    /// The sockets of its requests, with their streams.
    pub fn sockets(&self) -> impl Iterator<Item = (Socket, Number)> {
        let readers = self.streams.iter().filter_map(|(number, stream)| Some((stream.reader?, *number)));
        self.first.iter().map(|(_, socket)| (*socket, 0)).chain(readers)
    }

    /// Memory used by what waits, in bytes.
    pub fn weight(&self) -> usize {
        self.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams() -> Streams {
        let mut streams = Streams::new("n.1".into(), Id::Number(0), 7);
        let first = streams.deliver(LineKind::Answer(b"0", None), 10, || panic!("it is not queued"));
        assert_eq!((first, streams.is_in_use()), (Delivery::First(7), false));
        streams
    }

    fn say(streams: &mut Streams, line: LineKind<'_>, text: &str) -> Option<Socket> {
        match streams.deliver(line, text.len() + 1, || text.as_bytes().into()) {
            Delivery::Queued(reader) => reader,
            other => panic!("{other:?}"),
        }
    }

    /// What a reader of a stream gets now, and how many bytes of lines are reported as sent.
    fn read(streams: &mut Streams, number: Number) -> (String, usize) {
        let (mut text, mut reported) = (Vec::new(), 0);
        loop {
            let length = streams.hand_over(number, &mut text, true);
            if length == 0 {
                return (String::from_utf8(text).expect("it is text"), reported);
            }
            reported += streams.sent(number, length);
        }
    }

    fn events(lines: &[&str]) -> String {
        lines.iter().map(|line| format!("event: message\ndata: {line}\n\n")).collect()
    }

    #[test]
    fn each_line_is_sent_to_the_stream_of_the_session_that_it_names_and_others_to_that_of_the_connection() {
        let mut streams = streams();
        let general = streams.open(1, None).expect("it is free");
        let one = streams.open(2, Some("a")).expect("it is free");
        assert_eq!(say(&mut streams, LineKind::Other(Some(b"a")), "1"), Some(2));
        assert_eq!(say(&mut streams, LineKind::Other(None), "2"), Some(1));
        assert_eq!(say(&mut streams, LineKind::Other(Some(b"b")), "3"), None, "nobody reads that yet");
        assert_eq!((read(&mut streams, one), read(&mut streams, general)), ((events(&["1"]), 2), (events(&["2"]), 2)));
        let other = streams.open(3, Some("b")).expect("it is free");
        assert_eq!(read(&mut streams, other), (events(&["3"]), 2));
    }

    #[test]
    fn an_answer_goes_where_its_request_said() {
        let mut streams = streams();
        streams.open(1, None).expect("it is free");
        streams.open(2, Some("a")).expect("it is free");
        streams.ask(Id::Number(1), Some(b"a"));
        streams.ask(Id::Number(2), None);
        assert_eq!(say(&mut streams, LineKind::Answer(b"2", Some(b"b")), "2"), Some(1));
        assert_eq!(say(&mut streams, LineKind::Answer(b"1.0", None), "1"), Some(2), "ids are compared as values");
        assert!(!streams.has_requests());
        assert_eq!(say(&mut streams, LineKind::Answer(b"1", None), "3"), Some(1), "it answers nothing that is known");
    }

    #[test]
    fn a_stream_has_one_reader_and_what_it_did_not_send_waits_for_the_next_one() {
        let mut streams = streams();
        let number = streams.open(1, Some("a")).expect("it is free");
        assert_eq!(streams.open(2, Some("a")).map_err(|fault| fault.status), Err(Status::Conflict));
        for text in ["first", "second", "third"] {
            say(&mut streams, LineKind::Other(Some(b"a")), text);
        }
        let mut sent = Vec::new();
        let length = streams.hand_over(number, &mut sent, true);
        assert_eq!(String::from_utf8(sent).expect("it is text"), events(&["first", "second", "third"]));
        let one = events(&["first"]).len();
        assert!(length > one + 10);
        assert_eq!(streams.sent(number, one - 1), 6, "the line was sent, and not the end of its event");
        assert_eq!(streams.sent(number, 1 + 3), 3, "its progress");
        streams.detach(number, 9);
        assert_eq!(streams.hand_over(number, &mut Vec::new(), true), 0, "another one has gone");
        streams.detach(number, 1);
        assert_eq!(streams.open(3, Some("a")).ok(), Some(number));
        let (text, reported) = read(&mut streams, number);
        assert_eq!(text, events(&["second", "third"]), "one that was sent in part is sent anew");
        assert_eq!((reported, streams.weight()), (7 - 3 + 6, 0), "each byte is reported once");
    }

    #[test]
    fn a_long_line_is_handed_over_in_pieces_and_its_chunk_is_whole() {
        let mut streams = streams();
        let number = streams.open(1, None).expect("it is free");
        let text = "x".repeat(5 * PAGE + 17);
        say(&mut streams, LineKind::Other(None), &text);
        say(&mut streams, LineKind::Other(None), "next");
        assert_eq!(streams.hand_over(number, &mut Vec::new(), false), PAGE);
        assert!(streams.is_amid(number));
        assert_eq!(streams.sent(number, PAGE), PAGE);
        streams.detach(number, 1);
        assert!(!streams.is_amid(number));
        streams.open(2, None).expect("it is free");
        let (mut all, mut reported) = (Vec::new(), 0);
        for _ in 0..6 {
            let length = streams.hand_over(number, &mut all, false);
            assert!(length <= PAGE);
            reported += streams.sent(number, length);
        }
        let mut whole = Vec::new();
        [&*text, "next"].iter().for_each(|text| write::event(&mut whole, None, text.as_bytes(), false));
        assert!(all == whole, "the next reader gets all of it");
        assert_eq!((reported, streams.weight()), (text.len() + 1 - PAGE + 5, 0));
    }

    #[test]
    fn streams_for_sessions_that_nobody_has_named_are_few() {
        let mut streams = streams();
        let numbers: Vec<_> =
            (0..MOST_UNNAMED).map(|at| streams.open(at, Some(&format!("s{at}"))).expect("it is free")).collect();
        assert_eq!(streams.open(99, Some("more")).map_err(|fault| fault.status), Err(Status::NotFound));
        say(&mut streams, LineKind::Other(Some(b"s3")), "{}");
        let more = streams.open(99, Some("more")).expect("another one has a name now");
        assert_eq!(streams.open(98, Some("s")).map_err(|fault| fault.status), Err(Status::NotFound));
        streams.detach(more, 99);
        streams.detach(numbers[5], 5);
        assert!(streams.open(98, Some("s")).is_ok() && streams.open(97, Some("t")).is_ok());
        assert_eq!(say(&mut streams, LineKind::Answer(b"5", Some(b"given")), "{}"), None);
        assert!(streams.open(96, Some("given")).is_ok(), "an answer has named it");
    }

    #[test]
    fn names_of_sessions_that_are_not_used_are_forgotten_and_no_line_is() {
        let mut streams = streams();
        let kept = streams.open(1, Some("read")).expect("it is free");
        for at in 0..2 * MOST_REMEMBERED {
            say(&mut streams, LineKind::Answer(b"1", Some(format!("s{at}").as_bytes())), "{}");
        }
        say(&mut streams, LineKind::Other(Some(b"s0")), "for it");
        assert!(streams.names.len() <= MOST_REMEMBERED + 1, "{} names", streams.names.len());
        assert_eq!(streams.names.get(&b"read"[..]), Some(&kept));
        let number = streams.open(2, Some("s0")).expect("it is free");
        assert_eq!(read(&mut streams, number).0, events(&["for it"]));
    }

    #[test]
    fn what_nobody_reads_can_be_dropped_and_is_counted() {
        let mut streams = streams();
        let number = streams.open(1, Some("a")).expect("it is free");
        say(&mut streams, LineKind::Other(Some(b"a")), "12345");
        say(&mut streams, LineKind::Other(None), "1234567");
        let dropped = streams.drop_waiting(false);
        assert_eq!((dropped.lines, dropped.owed), (1, 8));
        let mut out = Vec::new();
        streams.hand_over(number, &mut out, true);
        assert_eq!(streams.sent(number, 4), 4);
        let dropped = streams.drop_waiting(true);
        assert_eq!((dropped.lines, dropped.owed, streams.weight()), (1, 2, 0));
        assert_eq!(streams.sent(number, 4), 0, "it is reported already");
    }

    #[test]
    fn a_connection_that_nobody_knows_ends_with_the_socket_that_began_it() {
        let mut streams = Streams::new("n.1".into(), Id::Number(0), 7);
        assert!(streams.is_in_use() && streams.has_requests());
        assert_eq!(streams.sockets().collect::<Vec<_>>(), [(7, 0)]);
        assert_eq!((streams.give_up(8), streams.give_up(7)), (None, Some(Id::Number(0))));
        assert!(!streams.is_in_use());
    }
}
