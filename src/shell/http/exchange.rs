//! One connection that speaks HTTP, of a client or to the admin listener: the incoming request, and the outgoing response.
//!
//! While the kernel sends bytes they stay in place; further ones are queued after them. A connection is removed when
//! the kernel holds no operation of it.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use super::http_clients::RequestContext;
use crate::bus::id::Id;
use crate::bus::port::{ClientKey, ListenerId, Moment, Origin, Place, Source};
use crate::http1::{Limits, RequestReader};
use crate::io::Submission;
use crate::io::buffers::Buffers;
use crate::mcp::asked::{Takes, Verb};
use crate::mcp::log::Data;
use crate::mcp::message::Upload;
use crate::mcp::write::{self, EventId, Manner};
use crate::mcp::{Asked, Message};
use crate::shell::access::Sender;
use crate::shell::connection_counts::{CountedAs, Purpose};
use crate::shell::outbox::{Outbox, Storage};
use crate::shell::transport::{PendingOp, Transport};

/// Interval of keep-alives in a stream, and how long an answer may be outstanding before its response becomes a stream.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// After this time without a byte of its body, a request gives way to another one, even of its own source.
const STALLED: Duration = Duration::from_secs(1);
/// Time limit for a request to arrive, in however many pieces.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(120);
/// Maximum time without progress of sending, and that of admin connections.
pub(super) const SEND_TIME: Duration = Duration::from_secs(30);
const SEND_TIME_OF_OPERATORS: Duration = Duration::from_secs(10);
/// Maximum time for the client to read the last response and to close.
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// Capacity of the send buffer that a connection keeps for its next response.
const KEPT: usize = 16 * 1024;

/// How much of a replay is queued at a time.
const PAGE: usize = 16 * 1024;

/// The limits of a request; its body may have the length of a line.
pub(in crate::shell) fn limits(body: usize) -> Limits {
    Limits {
        body: body as u64,
        head_time: Duration::from_secs(10),
        body_time: Duration::from_secs(30),
        idle_time: Duration::from_secs(75),
    }
}

/// The listener of admin connections, which are not among those of the configuration.
pub(in crate::shell) const OPERATORS: ListenerId = ListenerId::at(usize::MAX);

/// A socket that has just been accepted.
pub(in crate::shell) struct Accepted {
    pub socket: OwnedFd,
    /// Index of its acceptor.
    pub acceptor: usize,
    /// Index of its listener in the configuration.
    pub listener: ListenerId,
    /// The peer's address.
    pub place: Place,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shell) enum State {
    /// It awaits a PROXY header, which has to come first.
    Header,
    /// It receives or awaits a request.
    Reading,
    /// Its message waits until its protocol knows what to do with it.
    Parked,
    /// Its messages were forwarded, and there is no response yet.
    Waiting,
    /// It sends events.
    Events,
    /// Its response is complete and being sent.
    Answering,
    /// There is no exchange any more: its transport lingers or closes.
    Over,
}

/// The incoming request.
#[derive(Default)]
pub(in crate::shell) struct Incoming {
    /// Received bytes that are not consumed.
    pub bytes: Vec<u8>,
    /// The parsed head.
    pub asked: Option<Asked>,
    pub sender: Sender,
    /// The body so far.
    pub body: Option<Box<Upload>>,
    /// The message, while it is parked.
    pub parked: Option<Message>,
    /// The trace id in the head, if requests are logged.
    pub trace: Option<Rc<[u8]>>,
    /// It is HEAD, whose response has no body.
    pub is_head: bool,
    /// It is of HTTP/1.0, where the close of the connection ends a stream.
    pub is_old: bool,
    /// The connection carries no other request.
    pub is_last: bool,
}

impl Incoming {
    /// Memory used by the body so far, or by the parked message.
    pub(in crate::shell) fn weight(&self) -> usize {
        self.body.as_ref().map_or(0, |upload| upload.weight()) + self.parked.as_ref().map_or(0, Message::weight)
    }

    /// Whether the scanner is behind with the body.
    pub(super) fn is_behind(&self) -> bool {
        self.body.as_ref().is_some_and(|upload| upload.is_behind())
    }

    /// What its head says about its messages.
    pub(super) fn brought(&self) -> RequestContext {
        RequestContext { trace: self.trace.clone(), groups: self.sender.origin.groups.clone() }
    }

    /// Frees the request. Returns how many bytes it used.
    pub(super) fn clear(&mut self) -> usize {
        let weight = self.weight();
        (self.asked, self.parked, self.body, self.trace) = (None, None, None, None);
        self.sender.credentials = None;
        weight
    }
}

/// Bytes that are sent together, and their origin.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// How many of them are bytes of the core's lines.
    owed: usize,
    /// Its events that can be resent.
    events: Vec<EventId>,
}

/// Events that are queued one page at a time, as the reader takes what is before them: those that a session has kept,
/// which it shares, and what comes behind them meanwhile.
#[derive(Default)]
pub(super) struct Replay {
    waiting: VecDeque<Waits>,
    /// How much of the first one's message is queued.
    at: usize,
    /// Memory of all their messages.
    bytes: usize,
    /// The stream ends behind them.
    pub ends: bool,
}

/// An event of a replay.
struct Waits {
    id: Option<EventId>,
    data: Data,
    /// The core waits for it to be sent.
    is_owed: bool,
}

impl Replay {
    /// Adds an event.
    pub(super) fn push(&mut self, id: Option<EventId>, data: Data, is_owed: bool) {
        self.bytes += data.weight();
        self.waiting.push_back(Waits { id, data, is_owed });
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether an event has been begun and not queued as a whole.
    pub(super) fn is_amid_event(&self) -> bool {
        self.at > 0
    }

    /// Gives it up. Returns the events that were taken from the session's log for it, one that was begun and those that
    /// came meanwhile, and how many bytes of the core's lines it has.
    pub(super) fn give_up(mut self) -> (Vec<EventId>, usize) {
        let is_begun = |at: usize| at == 0 && self.at > 0;
        let taken = self.waiting.iter().enumerate().filter(|(at, event)| is_begun(*at) || event.is_owed);
        let events = taken.filter_map(|(_, event)| event.id).collect();
        (events, self.disown())
    }

    /// The core waits for none of it any more. Returns how many bytes it has waited for.
    fn disown(&mut self) -> usize {
        let begun = self.waiting.front().map_or(0, |first| if first.is_owed { self.at } else { 0 });
        let owed = self.waiting.iter_mut().map(|event| match std::mem::take(&mut event.is_owed) {
            true => event.data.len() + 1,
            false => 0,
        });
        owed.sum::<usize>() - begun
    }

    fn weight(&self) -> usize {
        self.bytes + self.waiting.capacity() * size_of::<Waits>()
    }
}

/// What a connection did not send.
pub(super) struct Unsent {
    /// Bytes of the core's lines.
    pub owed: usize,
    /// Events that can be resent.
    pub events: Vec<EventId>,
    /// An answer that is not an event.
    pub whole: Option<EventId>,
    /// That answer was partly sent.
    pub is_begun: bool,
}

/// The outgoing bytes.
#[derive(Default)]
pub(in crate::shell) struct Outgoing {
    now: Batch,
    sent: usize,
    next: Batch,
    /// The answer that is not an event.
    pub whole: Option<EventId>,
    /// A long answer that is sent from where it lies, after all that is queued. It ends the response.
    held: Option<Box<Held>>,
    /// What comes after all that is queued.
    pub(super) replay: Option<Box<Replay>>,
    /// How many queued bytes, also of requests behind the current one, are accounted for.
    pub weighed: usize,
}

/// See [`Outgoing::hold`].
struct Held {
    bytes: Outbox,
    /// How many bytes of the core's line are not sent yet.
    owed: usize,
    has_begun: bool,
}

impl Outgoing {
    /// The buffer for further output.
    pub(in crate::shell) fn queue(&mut self) -> &mut Vec<u8> {
        debug_assert!(self.held.is_none(), "the response is complete");
        &mut self.next.bytes
    }

    /// Queues the rest of a response without a copy: it is sent from where it lies, and given back then. With it `owed`
    /// bytes of a core's line are sent.
    pub(super) fn hold(&mut self, storage: Storage, place: Range<usize>, owed: usize) {
        let mut bytes = Outbox::default();
        bytes.hold_bytes(storage, place.start, place.end);
        self.held = Some(Box::new(Held { bytes, owed, has_begun: false }));
    }

    /// Sends the next bytes; `more` if something else follows at once.
    pub(super) fn send(&mut self, socket: RawFd, more: bool) -> Option<Submission> {
        let is_held = self.held.is_some();
        if let Some(rest) = self.rest() {
            let bytes = rest.len().min(u32::MAX as usize) as u32;
            let more = more || is_held;
            return Some(Submission::Send { socket, from: rest.as_ptr(), bytes, now_or_never: true, more });
        }
        let held = self.held.as_deref_mut()?;
        held.has_begun = true;
        held.bytes.next(socket, true).map(|(send, _)| match send {
            Submission::Send { socket, from, bytes, now_or_never, .. } => {
                Submission::Send { socket, from, bytes, now_or_never, more }
            }
            other => other,
        })
    }

    /// Gives back the memory of what is sent from its place. The kernel has no part of it.
    pub(in crate::shell) fn let_go(&mut self, buffers: &mut Buffers) {
        self.held.take().into_iter().for_each(|mut held| held.bytes.clear(buffers));
    }

    /// Records that bytes of a core's line were queued.
    pub(super) fn note_unacked(&mut self, bytes: usize, event: Option<EventId>) {
        self.next.owed += bytes;
        self.next.events.extend(event);
    }

    /// The bytes to send now; none if there are none.
    fn rest(&mut self) -> Option<&[u8]> {
        if self.sent == self.now.bytes.len() {
            self.now.bytes.clear();
            self.now.bytes.shrink_to(KEPT);
            self.sent = 0;
            std::mem::swap(&mut self.now, &mut self.next);
        }
        let rest = &self.now.bytes[self.sent..];
        (!rest.is_empty()).then_some(rest)
    }

    /// Records sent bytes. Returns how many bytes of the core's lines are completed by them. Progress of a long answer
    /// is reported as it is sent, since a slow reader does read.
    pub(super) fn sent(&mut self, bytes: usize, buffers: &mut Buffers) -> usize {
        if let Some(held) = self.held.as_deref_mut().filter(|held| held.has_begun) {
            held.bytes.advance(bytes, buffers);
            let is_over = held.bytes.is_empty();
            let out = if is_over { held.owed } else { bytes.min(held.owed) };
            held.owed -= out;
            self.held.take_if(|_| is_over);
            return out;
        }
        self.sent += bytes;
        if self.sent < self.now.bytes.len() {
            let out = bytes.min(self.now.owed);
            self.now.owed -= out;
            return out;
        }
        self.now.events.clear();
        std::mem::take(&mut self.now.owed)
    }

    /// Whether everything was sent.
    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.now.bytes.len() && self.next.bytes.is_empty() && self.held.is_none() && self.replay.is_none()
    }

    /// Memory used by what is queued, but for what is sent from its place. Sent bytes are freed with those after them.
    pub(in crate::shell) fn weight(&self) -> usize {
        let now = if self.sent == self.now.bytes.len() { 0 } else { self.now.bytes.len() };
        now + self.next.bytes.len() + self.replay.as_ref().map_or(0, |replay| replay.weight())
    }

    /// Memory used by what is sent from its place: it counts as lent, whoever holds it.
    fn held_weight(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.bytes.weight())
    }

    /// Queues as much of the replay as the reader has room for, and returns the events that this begins. The caller ends
    /// the stream if `ends` is set once it is empty, and takes it away.
    pub(super) fn refill(&mut self, is_old: bool) -> Vec<EventId> {
        let mut begun = Vec::new();
        let Some(replay) = &mut self.replay else { return begun };
        let (next, left) = (&mut self.next, self.now.bytes.len() - self.sent);
        while left + next.bytes.len() < PAGE
            && let Some(first) = replay.waiting.front()
        {
            let length = first.data.len();
            if replay.at == 0 {
                begun.extend(first.id);
                write::begin_event(&mut next.bytes, first.id, length, is_old);
            }
            let end = length.min(replay.at + PAGE);
            first.data.append_to(&mut next.bytes, replay.at..end);
            next.owed += if first.is_owed { end - replay.at } else { 0 };
            replay.at = end;
            if end == length {
                next.owed += usize::from(first.is_owed);
                next.events.extend(first.id);
                write::end_event(&mut next.bytes, is_old);
                replay.bytes -= first.data.weight();
                replay.at = 0;
                replay.waiting.pop_front();
            }
        }
        begun
    }

    /// What is queued is the connection's own from now on. Returns how many bytes of the core's lines it has.
    pub(super) fn disown(&mut self) -> usize {
        self.now.events.clear();
        self.next.events.clear();
        let replayed = self.replay.as_mut().map_or(0, |replay| replay.disown());
        let held = self.held.as_deref_mut().map_or(0, |held| std::mem::take(&mut held.owed));
        std::mem::take(&mut self.now.owed) + std::mem::take(&mut self.next.owed) + held + replayed
    }

    /// Gives up sending. Returns what was not sent.
    pub(super) fn give_up(&mut self) -> Unsent {
        let is_begun =
            self.next.bytes.is_empty() && self.sent > 0 || self.held.as_ref().is_some_and(|held| held.has_begun);
        let whole = self.whole.take().filter(|_| !self.is_empty());
        let mut events = std::mem::take(&mut self.now.events);
        events.append(&mut self.next.events);
        let mut owed = std::mem::take(&mut self.now.owed) + std::mem::take(&mut self.next.owed);
        // The kernel may have it: it stays until the connection is removed.
        owed += self.held.as_deref_mut().map_or(0, |held| std::mem::take(&mut held.owed));
        if let Some(replay) = self.replay.take() {
            let (taken, its) = replay.give_up();
            events.extend(taken);
            owed += its;
        }
        Unsent { owed, events, whole, is_begun }
    }
}

pub(in crate::shell) struct Exchange {
    /// Indexes of its acceptor and of its listener.
    pub acceptor: usize,
    pub listener: ListenerId,
    pub purpose: Purpose,
    /// Its origin, as far as known.
    pub origin: Origin,
    /// What it is counted as, and the source that it counts for between requests.
    pub counted_as: CountedAs,
    pub source_between: Source,
    /// Distinguishes it from others in its slot.
    pub serial: u64,
    pub state: State,
    pub reader: RequestReader,
    pub incoming: Incoming,
    pub outgoing: Outgoing,
    /// The core's client of its request, or of its requests of 2026-07-28.
    pub member: Option<ClientKey>,
    /// The id of its pending request of 2026-07-28.
    pub asks: Option<Id>,
    /// The stream of its response in the session.
    pub stream: u32,
    /// The session of its request, or of its last one: its client is still there.
    pub visits: Option<ClientKey>,
    /// When it was accepted, its request began, or it last had activity.
    pub since: Moment,
}

impl Exchange {
    pub(in crate::shell) fn new(
        now: Moment,
        accepted: Accepted,
        purpose: Purpose,
        limits: Limits,
        serial: u64,
        counted_as: CountedAs,
    ) -> (Transport, Self) {
        let Accepted { socket, acceptor, listener, place } = accepted;
        let exchange = Self {
            acceptor,
            listener,
            purpose,
            origin: place.into(),
            counted_as,
            source_between: place.source(),
            serial,
            state: State::Reading,
            reader: RequestReader::new(now, limits),
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            member: None,
            asks: None,
            stream: 0,
            visits: None,
            since: now,
        };
        (Transport::of_socket(socket), exchange)
    }

    /// How its client takes the answers to its request.
    pub(super) fn takes(&self) -> Takes {
        self.incoming.asked.as_ref().map_or(Takes::Either, |asked| asked.takes)
    }

    /// Whether it is an admin connection, whose requests `admin` answers.
    pub(in crate::shell) fn is_operators(&self) -> bool {
        self.purpose == Purpose::Admin
    }

    /// Bytes of output, of an incomplete head, and of requests behind the current one.
    pub(super) fn queued(&self) -> usize {
        self.outgoing.weight() + self.incoming.bytes.len()
    }

    /// Its maximum time without progress of sending.
    pub(super) fn send_time(&self) -> Duration {
        if self.is_operators() { SEND_TIME_OF_OPERATORS } else { SEND_TIME }
    }

    /// How its responses have to be sent.
    pub(super) fn manner<'a>(&self, session: Option<&'a str>) -> Manner<'a> {
        let Incoming { is_head, is_old, is_last, .. } = self.incoming;
        Manner { session, is_last, is_old, is_head, page: self.incoming.sender.page.clone(), ..Manner::default() }
    }

    /// Queues an event.
    pub(super) fn event(&mut self, id: Option<EventId>, data: &[u8]) {
        write::event(self.outgoing.queue(), id, data, self.incoming.is_old);
    }

    /// The source of its request, or else of the connection.
    pub(in crate::shell) fn source(&self) -> Source {
        let of_request = self.incoming.asked.is_some().then_some(&self.incoming.sender.origin);
        of_request.unwrap_or(&self.origin).source()
    }

    /// All memory that it uses, in bytes.
    pub(in crate::shell) fn weight(&self) -> usize {
        self.queued() + self.outgoing.held_weight() + self.incoming.weight()
    }

    /// Whether it can be closed after what is queued: its last request is complete, and nothing follows it.
    pub(super) fn may_part(&self, transport: &Transport) -> bool {
        let incoming = &self.incoming;
        let is_last = self.state == State::Answering && incoming.is_last && self.reader.is_over();
        is_last && incoming.bytes.is_empty() && !transport.has_ended() && !transport.in_flight.has(PendingOp::Watch)
    }

    /// Whether nothing is lost for good if it is closed for another one, and how much is lost in comparison with others;
    /// none if it is being closed.
    pub(in crate::shell) fn standing(&self, transport: &Transport) -> Option<(bool, u8)> {
        let is_get = self.incoming.asked.as_ref().is_some_and(|asked| asked.verb == Verb::Get);
        if transport.is_closing() {
            return None;
        }
        Some(match self.state {
            State::Over => (true, 0),
            State::Header | State::Reading if self.is_silent() => (true, 1),
            State::Header | State::Reading if self.incoming.asked.is_none() => (true, 2),
            // Its client opens it again.
            State::Events if is_get => (false, 3),
            State::Header | State::Reading => (false, 4),
            State::Parked => (false, 5),
            State::Waiting => (false, 6),
            State::Events => (false, 7),
            State::Answering => (false, 8),
        })
    }

    /// Whether its client has begun a request and sends nothing more of it: no worker has begun with it.
    pub(in crate::shell) fn has_stalled(&self, now: Moment) -> bool {
        self.state == State::Reading && self.reader.has_stalled(now, STALLED)
    }

    /// Whether it is idle, so that it may be evicted.
    pub(in crate::shell) fn is_idle(&self, transport: &Transport) -> bool {
        match self.state {
            State::Reading => self.is_silent() && self.purpose != Purpose::Handshake,
            State::Over => !transport.is_closing(),
            _ => false,
        }
    }

    /// Whether nothing of its next request has arrived.
    pub(in crate::shell) fn is_silent(&self) -> bool {
        self.reader.awaits_head() && self.incoming.bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::shell::connection_counts::ConnectionCounts;

    #[test]
    fn an_answer_without_room_is_tried_again_long_before_its_reader_counts_as_stuck() {
        let (socket, _peer) = UnixStream::pair().expect("there are descriptors");
        let accepted =
            Accepted { socket: socket.into(), acceptor: 0, listener: ListenerId::at(0), place: Place::Inherited };
        let now = Moment(1_000_000_000);
        let (serial, counted_as) =
            ConnectionCounts::default().add(Purpose::Requests, ListenerId::at(0), Source::Inherited);
        let (mut transport, _) = Exchange::new(now, accepted, Purpose::Requests, limits(0), serial, counted_as);
        transport.deadline = Some(now.after(SEND_TIME));
        assert_eq!(transport.due(), transport.deadline);
        // The kernel may report room only once a third of its buffer is free, which a slow reader takes minutes for.
        transport.room.none(now);
        let retry = transport.due().expect("it is tried again");
        assert!(retry < now.after(Duration::from_secs(1)), "a reader that takes a little makes progress");
        assert!(transport.room.take_due(retry));
        assert_eq!(transport.due(), transport.deadline);
    }

    fn buffers() -> Buffers {
        Buffers::new(None, 0).expect("there is memory")
    }

    #[test]
    fn a_long_answer_is_sent_from_where_it_lies() {
        let mut buffers = buffers();
        let mut block = buffers.take(100_000, 100_000).expect("there is memory");
        block.write(10, &[b'x'; 90_000]);
        let block = Rc::new(block);
        let lies_at = block.at(10).cast_const();
        let mut outgoing = Outgoing::default();
        outgoing.queue().extend_from_slice(b"head");
        outgoing.hold(Storage::Block(block), 10..90_010, 90_003);
        let sends = |outgoing: &mut Outgoing| match outgoing.send(3, false) {
            Some(Submission::Send { socket: 3, from, bytes, more, .. }) => Some((from, bytes, more)),
            other => panic!("{other:?}"),
        };
        let head = sends(&mut outgoing).expect("it begins with its head");
        assert_eq!((head.1, head.2, outgoing.weight()), (4, true, 4), "nothing of the answer is copied");
        assert_eq!(outgoing.sent(4, &mut buffers), 0);
        assert_eq!(sends(&mut outgoing), Some((lies_at, 90_000, false)));
        assert_eq!(outgoing.sent(50_000, &mut buffers), 50_000, "progress is reported");
        assert_eq!(sends(&mut outgoing), Some((lies_at.wrapping_add(50_000), 40_000, false)));
        assert!(!outgoing.is_empty() && outgoing.held_weight() == buffers.used() && buffers.used() >= 90_000);
        assert_eq!(outgoing.sent(40_000, &mut buffers), 40_003);
        assert!(outgoing.is_empty() && outgoing.send(3, false).is_none());
        assert_eq!(buffers.used(), 0, "its memory is given back");
    }

    #[test]
    fn a_long_answer_that_is_given_up_keeps_its_memory_until_the_kernel_is_done() {
        let mut buffers = buffers();
        let block = Rc::new(buffers.take(100_000, 100_000).expect("there is memory"));
        let mut outgoing = Outgoing::default();
        outgoing.hold(Storage::Block(block), 0..100_000, 100_001);
        assert!(outgoing.send(3, false).is_some());
        outgoing.sent(1, &mut buffers);
        let unsent = outgoing.give_up();
        assert_eq!((unsent.owed, unsent.is_begun, buffers.used() > 0), (100_000, true, true));
        outgoing.let_go(&mut buffers);
        assert_eq!(buffers.used(), 0);
    }

    #[test]
    fn progress_of_a_long_answer_is_reported_while_it_is_sent() {
        let (mut outgoing, mut buffers) = (Outgoing::default(), buffers());
        outgoing.queue().extend_from_slice(&[b'h'; 20]);
        outgoing.queue().extend_from_slice(&[b'x'; 80]);
        outgoing.note_unacked(81, None);
        assert_eq!(outgoing.rest().map(<[u8]>::len), Some(100));
        assert_eq!([30, 30, 39].map(|bytes| outgoing.sent(bytes, &mut buffers)), [30, 30, 21], "no more than is owed");
        assert_eq!((outgoing.sent(1, &mut buffers), outgoing.give_up().owed), (0, 0));
    }

    fn replay(lengths: &[usize]) -> Outgoing {
        let mut replay = Replay::default();
        for (at, length) in lengths.iter().enumerate() {
            replay.push(Some(EventId { stream: 2, place: at as u32 + 1 }), vec![b'x'; *length].into(), at > 0);
        }
        Outgoing { replay: Some(Box::new(replay)), ..Outgoing::default() }
    }

    #[test]
    fn kept_events_are_queued_as_the_reader_takes_them_and_shared_until_then() {
        let lengths = [3_900_000, 10, 40_000, 0];
        let (mut outgoing, mut sent, mut owed, mut begun) = (replay(&lengths), Vec::new(), 0, Vec::new());
        while !outgoing.replay.as_ref().is_some_and(|replay| replay.is_empty()) || outgoing.rest().is_some() {
            begun.extend(outgoing.refill(false).iter().map(|id| id.place));
            let rest = outgoing.rest().expect("there is more to send").to_vec();
            assert!(rest.len() < 3 * PAGE, "{} bytes are queued at once", rest.len());
            // The reader is slow.
            let taken = rest.len().min(5_000);
            sent.extend_from_slice(&rest[..taken]);
            owed += outgoing.sent(taken, &mut buffers());
        }
        let mut whole = Vec::new();
        for (at, length) in lengths.iter().enumerate() {
            write::event(&mut whole, Some(EventId { stream: 2, place: at as u32 + 1 }), &vec![b'x'; *length], false);
        }
        assert!(sent == whole, "the bytes are those of whole events");
        assert_eq!((owed, begun), (10 + 40_000 + 3, vec![1, 2, 3, 4]));
        outgoing.replay = None;
        assert_eq!((outgoing.is_empty(), outgoing.weight()), (true, 0));
    }

    #[test]
    fn a_replay_that_is_given_up_gives_back_what_was_begun_and_what_came_meanwhile() {
        let mut outgoing = replay(&[100_000, 50]);
        let begun = outgoing.refill(false);
        let unsent = outgoing.give_up();
        let places: Vec<u32> = unsent.events.iter().map(|id| id.place).collect();
        assert_eq!((begun.len(), places, unsent.owed), (1, vec![1, 2], 51));
        let mut outgoing = replay(&[10, 100_000]);
        outgoing.refill(false);
        assert_eq!(outgoing.give_up().owed, 100_001, "what is queued of it and the rest");
    }
}
