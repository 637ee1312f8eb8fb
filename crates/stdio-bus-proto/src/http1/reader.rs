//! The messages of one connection in order: heads, pieces of bodies, ends. The caller keeps the bytes, passes those
//! that are not consumed yet, and continues after the ones that an event consumed.

use std::time::Duration;

use super::body::{BodyReader, Piece};
use super::error::Error;
use super::head::{HeadProgress, Method, Request, Response, Search};
use stdio_bus_core::port::Moment;

/// Maximum length of a request head in bytes, including the final empty line, and its maximum number of fields. A browser
/// sends the cookies of all ports of a host to each of them, and may have more than 8 KiB of them.
pub const LONGEST_HEAD: usize = 32 * 1024;
const MOST_FIELDS: usize = 64;
/// Maximum length of a response head in bytes.
pub const LONGEST_ANSWER: usize = 16 * 1024;

/// The next event on a connection. `H` is the head of a request or of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'b, H> {
    /// More bytes are needed. This many were consumed.
    More(usize),
    /// A head, which knows its length.
    Head(H),
    /// A piece of a body.
    Data {
        /// The piece itself.
        data: &'b [u8],
        /// How many bytes were consumed: more than the data if chunk framing came with it.
        length: usize,
    },
    /// The end of a message, and how many bytes of it were consumed.
    End(usize),
    /// The bytes are invalid, and nothing after them can be read.
    Wrong(Error),
}

/// The limits of a request.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a body.
    pub body: u64,
    /// Maximum time from the first byte of a head, or from the start of the connection, to its end.
    pub head_time: Duration,
    /// Maximum time without progress of a body.
    pub body_time: Duration,
    /// Maximum time between the end of an answer and the next request.
    pub idle_time: Duration,
}

/// Reads one head, in pieces of any size.
#[derive(Clone, Debug, Default)]
pub struct HeadReader {
    search: Search,
}

impl HeadReader {
    /// Reads all bytes received so far, on each call; none if the head is incomplete.
    ///
    /// # Errors
    /// The head is malformed.
    pub fn read<'b>(&mut self, bytes: &'b [u8]) -> Result<Option<Request<'b>>, Error> {
        // A client that speaks another protocol (TLS, NDJSON) should not have to send 32 KiB of it first.
        if bytes.first().is_some_and(|first| !first.is_ascii_uppercase()) {
            return Err(Error::NOT_HTTP);
        }
        Request::read(self.search.look(bytes, LONGEST_HEAD), MOST_FIELDS)
    }
}

/// Reads the requests of a connection. A caller that answers a request before it asks for the event after its end
/// leaves pipelined requests unread.
#[derive(Clone, Debug)]
pub struct RequestReader {
    limits: Limits,
    stage: ReaderStage,
    /// When the wait for the next event began.
    since: Moment,
    /// Nothing of the next request has arrived since the last one ended.
    is_idle: bool,
    /// It was the last request of the connection.
    is_last: bool,
}

#[derive(Clone, Debug)]
enum ReaderStage {
    Head(HeadReader),
    Body(BodyReader),
    Over,
    Wrong(Error),
}

impl RequestReader {
    /// A reader for a connection that starts now.
    pub fn new(now: Moment, limits: Limits) -> Self {
        let stage = ReaderStage::Head(HeadReader::default());
        Self { limits, stage, since: now, is_idle: false, is_last: false }
    }

    /// The deadline of the current wait.
    pub fn deadline(&self) -> Moment {
        self.since.after(match self.stage {
            ReaderStage::Body(_) => self.limits.body_time,
            _ if self.is_idle => self.limits.idle_time,
            _ => self.limits.head_time,
        })
    }

    /// Whether a body is incomplete, of which nothing has arrived for this long.
    pub fn has_stalled(&self, now: Moment, limit: Duration) -> bool {
        matches!(self.stage, ReaderStage::Body(_)) && now >= self.since.after(limit)
    }

    /// Whether a head is awaited or incomplete.
    pub fn awaits_head(&self) -> bool {
        matches!(self.stage, ReaderStage::Head(_))
    }

    /// Whether the last request of the connection was read completely.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, ReaderStage::Over)
    }

    /// Records that the last request was answered and that `bytes` bytes after it are pending: the next request's time
    /// begins.
    pub fn answered(&mut self, now: Moment, bytes: usize) {
        // An empty line does not begin a request.
        (self.since, self.is_idle) = (now, bytes <= b"\r\n".len());
    }

    /// Returns the event that the unconsumed bytes begin with.
    pub fn next<'b>(&mut self, now: Moment, bytes: &'b [u8]) -> Event<'b, Request<'b>> {
        let event = match &mut self.stage {
            ReaderStage::Over => Event::More(0),
            ReaderStage::Wrong(error) => Event::Wrong(*error),
            ReaderStage::Body(body) => piece(body, bytes),
            ReaderStage::Head(reader) => {
                // Some clients end a body with an empty line that does not belong to it (RFC 9112, section 2.2).
                let begun = match bytes {
                    [b'\r', b'\n', begun @ ..] => begun,
                    [b'\r'] => &[],
                    _ => bytes,
                };
                if self.is_idle && !begun.is_empty() {
                    (self.since, self.is_idle) = (now, false);
                }
                match reader.read(begun) {
                    Ok(Some(mut head)) => {
                        head.length += bytes.len() - begun.len();
                        Event::Head(head)
                    }
                    Ok(None) => Event::More(0),
                    Err(error) => Event::Wrong(error),
                }
            }
        };
        self.follow(now, event)
    }

    /// Moves to the state that follows an event.
    fn follow<'b>(&mut self, now: Moment, event: Event<'b, Request<'b>>) -> Event<'b, Request<'b>> {
        match &event {
            Event::Head(head) => {
                (self.since, self.is_last) = (now, !head.keeps_alive);
                match BodyReader::new(head.body, self.limits.body) {
                    Ok(body) => self.stage = ReaderStage::Body(body),
                    Err(error) => {
                        self.stage = ReaderStage::Wrong(error);
                        return Event::Wrong(error);
                    }
                }
            }
            Event::End(_) if self.is_last => self.stage = ReaderStage::Over,
            Event::End(_) => self.stage = ReaderStage::Head(HeadReader::default()),
            Event::Data { .. } => self.since = now,
            Event::Wrong(error) => self.stage = ReaderStage::Wrong(*error),
            Event::More(_) => {}
        }
        event
    }
}

/// Reads the responses to one request: interim ones (1xx), and the final one.
#[derive(Clone, Debug)]
pub struct ResponseReader {
    to: Method,
    most: u64,
    search: Search,
    body: Option<BodyReader>,
    /// It is the response to an upgrade, after which no HTTP follows.
    has_switched: bool,
}

impl ResponseReader {
    /// A reader for the response to a request with this method, whose body may have at most `most` bytes.
    pub fn new(to: Method, most: u64) -> Self {
        Self { to, most, search: Search::default(), body: None, has_switched: false }
    }

    /// Returns the event that the unconsumed bytes begin with. `has_ended` if no more will arrive.
    pub fn next<'b>(&mut self, bytes: &'b [u8], has_ended: bool) -> Event<'b, Response<'b>> {
        let Some(body) = &mut self.body else { return self.next_head(bytes, has_ended) };
        match piece(body, bytes) {
            Event::More(length) if has_ended && length == bytes.len() => match body.may_end() {
                true => Event::End(length),
                false => Event::Wrong(Error::CUT_OFF),
            },
            other => other,
        }
    }

    fn next_head<'b>(&mut self, bytes: &'b [u8], has_ended: bool) -> Event<'b, Response<'b>> {
        if self.has_switched {
            return Event::End(0);
        }
        // The parser would skip an empty line, which others may take for the end of a head.
        if bytes.first().is_some_and(|first| *first != b'H') {
            return Event::Wrong(Error::NOT_HTTP);
        }
        let (head, has_newline_alone) = match self.search.look(bytes, LONGEST_ANSWER) {
            HeadProgress::Whole { head, has_newline_alone } => (head, has_newline_alone),
            HeadProgress::More if !has_ended => return Event::More(0),
            HeadProgress::More if bytes.is_empty() => return Event::Wrong(Error::NOTHING),
            HeadProgress::More | HeadProgress::Endless(_) => {
                let is_none = Response::read(bytes, false, self.to).is_err_and(|error| error != Error::CUT_OFF);
                return Event::Wrong(if is_none { Error::NOT_HTTP } else { Error::CUT_OFF });
            }
        };
        let read = Response::read(head, has_newline_alone, self.to)
            .and_then(|head| Ok((BodyReader::new(head.body, self.most)?, head)));
        match read {
            Ok((body, head)) => {
                self.search = Search::default();
                self.has_switched = head.status == 101;
                self.body = (head.status >= 200).then_some(body);
                Event::Head(head)
            }
            Err(error) => Event::Wrong(error),
        }
    }
}

fn piece<'b, H>(body: &mut BodyReader, bytes: &'b [u8]) -> Event<'b, H> {
    match body.read(bytes) {
        Ok((Piece::More, length)) => Event::More(length),
        Ok((Piece::Data(data), length)) => Event::Data { data, length },
        Ok((Piece::End, length)) => Event::End(length),
        Err(error) => Event::Wrong(error),
    }
}
