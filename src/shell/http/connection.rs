//! One connection of the door for MCP: the request that comes in, and what is sent in answer.
//!
//! While the kernel sends, what it sends stays where it is; what comes meanwhile is queued behind it. A connection goes
//! when the kernel holds nothing of it.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use crate::bus::port::{ClientKey, Moment, Origin};
use crate::http1::{Limits, RequestReader};
use crate::mcp::write::{self, EventId, Manner};
use crate::mcp::{Asked, Message, message};
use crate::shell::connection::{Flight, InFlight};
use crate::tokens::Bearer;

/// How often a stream gives a sign of life, and how long an answer may be awaited before it becomes one.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often it is looked whether a request may still learn what the workers of its pool speak.
pub(super) const PARKED: Duration = Duration::from_secs(1);
/// How long a request may take to come, in however many pieces.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(120);
/// How long what is sent may stand still.
pub(super) const SEND_TIME: Duration = Duration::from_secs(30);
/// How long the other side may take to see the last answer, and to close.
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// Memory for what is sent that a connection keeps for its next answer.
const KEPT: usize = 16 * 1024;

/// What a request may take; its body is as long as a line at most.
pub(super) fn limits(body: usize) -> Limits {
    Limits {
        body: body as u64,
        head_time: Duration::from_secs(10),
        body_time: Duration::from_secs(30),
        idle_time: Duration::from_secs(75),
    }
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A request comes, or is awaited.
    Reading,
    /// Its request waits until it is known what the workers of its pool speak.
    Parked,
    /// Its messages are on their way, and nothing was said yet.
    Waiting,
    /// Events are sent.
    Events,
    /// All of its answer is there, and on its way.
    Answering,
    /// Everything is said; what still comes is thrown away until the other side closes.
    Lingering,
    /// It goes when the kernel holds nothing of it.
    Leaving,
}

/// Who sends a request.
#[derive(Clone, Default)]
pub(super) struct Sender {
    pub origin: Origin,
    pub bearer: Option<Bearer>,
    /// The page in a browser that it is.
    pub page: Option<Rc<str>>,
}

/// The request that comes in.
pub(super) struct Incoming {
    pub reader: RequestReader,
    /// What has come and is not dealt with.
    pub bytes: Vec<u8>,
    /// What the head says, once it is there.
    pub asked: Option<Asked>,
    pub sender: Sender,
    /// What has come of the body.
    pub body: Vec<u8>,
    /// The message, while it waits.
    pub parked: Option<Message>,
    /// It is HEAD, whose answer has no body.
    pub is_head: bool,
    /// Another request may follow.
    pub keeps_alive: bool,
    /// The other side sends no more.
    pub has_ended: bool,
}

impl Incoming {
    fn new(now: Moment, longest: usize) -> Self {
        Self {
            reader: RequestReader::new(now, limits(longest)),
            bytes: Vec::new(),
            asked: None,
            sender: Sender::default(),
            body: Vec::new(),
            parked: None,
            is_head: false,
            keeps_alive: true,
            has_ended: false,
        }
    }

    /// Bytes of the body that have come, or of the message that waits.
    pub(super) fn weight(&self) -> usize {
        message::received(&self.body) + self.parked.as_ref().map_or(0, Message::weight)
    }

    /// Whether the end of a stream is told by the end of the connection.
    pub(super) fn is_old(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.is_old)
    }

    /// Nothing more of the request is needed. Says how many bytes it has taken up.
    pub(super) fn clear(&mut self) -> usize {
        let weight = self.weight();
        (self.asked, self.parked, self.body) = (None, None, Vec::new());
        weight
    }
}

/// Bytes that are sent together, and what they are of.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Bytes of lines of the core in it.
    owed: usize,
    /// The events in it that can be sent again.
    events: Vec<EventId>,
}

/// What was not sent of a connection.
pub(super) struct Unsent {
    /// Bytes of lines of the core.
    pub owed: usize,
    /// Events that can be sent again.
    pub events: Vec<EventId>,
    /// An answer that is no event.
    pub whole: Option<(EventId, Vec<u8>)>,
    /// Some of that answer is out.
    pub is_begun: bool,
}

/// What goes out.
#[derive(Default)]
pub(super) struct Outgoing {
    now: Batch,
    sent: usize,
    next: Batch,
    /// The answer that is no event: where it would stand, and how long it is.
    pub whole: Option<(EventId, usize)>,
}

impl Outgoing {
    /// Where to write what is sent next.
    pub(super) fn queue(&mut self) -> &mut Vec<u8> {
        &mut self.next.bytes
    }

    /// So many bytes of a line of the core were queued.
    pub(super) fn owe(&mut self, bytes: usize, event: Option<EventId>) {
        self.next.owed += bytes;
        self.next.events.extend(event);
    }

    /// What is to be sent now; none if nothing is.
    pub(super) fn rest(&mut self) -> Option<&[u8]> {
        if self.sent == self.now.bytes.len() {
            self.now.bytes.clear();
            self.now.bytes.shrink_to(KEPT);
            self.sent = 0;
            std::mem::swap(&mut self.now, &mut self.next);
        }
        let rest = &self.now.bytes[self.sent..];
        (!rest.is_empty()).then_some(rest)
    }

    /// So many bytes are sent. Says how many of lines of the core are out with them. Of a long answer that is told while it
    /// goes out: who takes it slowly does take it.
    pub(super) fn sent(&mut self, bytes: usize) -> usize {
        self.sent += bytes;
        if self.sent < self.now.bytes.len() {
            let out = bytes.min(self.now.owed);
            self.now.owed -= out;
            return out;
        }
        self.now.events.clear();
        std::mem::take(&mut self.now.owed)
    }

    /// Whether everything is sent.
    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.now.bytes.len() && self.next.bytes.is_empty()
    }

    /// Bytes that wait.
    pub(super) fn weight(&self) -> usize {
        self.now.bytes.len() - self.sent + self.next.bytes.len()
    }

    /// Nothing more is sent. Says what is not out.
    pub(super) fn give_up(&mut self) -> Unsent {
        let is_begun = self.next.bytes.is_empty() && self.sent > 0;
        let whole = self.whole.take().filter(|_| !self.is_empty()).map(|(id, length)| {
            let all = if self.next.bytes.is_empty() { &self.now.bytes } else { &self.next.bytes };
            (id, all[all.len().saturating_sub(length)..].to_vec())
        });
        let mut events = std::mem::take(&mut self.now.events);
        events.append(&mut self.next.events);
        let owed = std::mem::take(&mut self.now.owed) + std::mem::take(&mut self.next.owed);
        Unsent { owed, events, whole, is_begun }
    }
}

/// See the module documentation.
pub(super) struct Connection {
    pub socket: OwnedFd,
    pub listener: usize,
    /// Where it comes from.
    pub origin: Origin,
    /// Tells it from others that had its slot.
    pub serial: u64,
    pub state: State,
    pub incoming: Incoming,
    pub outgoing: Outgoing,
    pub in_flight: InFlight,
    /// The client of the core that its request is of, or its requests of 2026-07-28 are.
    pub member: Option<ClientKey>,
    /// The stream of that on which it is answered.
    pub stream: u32,
    /// When it came, its request began to come, or it last had something to do.
    pub since: Moment,
    /// When its time is up. Its timer may run out earlier, and is then set anew.
    pub due: Moment,
    /// It is in the list of those that have something to send.
    pub is_dirty: bool,
    /// It is closed behind what is being sent, and its receive is cancelled.
    pub parts: bool,
    /// So many bytes that wait to be sent are counted.
    pub weighed: usize,
}

impl Connection {
    pub(super) fn new(
        now: Moment,
        socket: OwnedFd,
        listener: usize,
        origin: Origin,
        longest: usize,
        serial: u64,
    ) -> Self {
        Self {
            socket,
            listener,
            origin,
            serial,
            state: State::Reading,
            incoming: Incoming::new(now, longest),
            outgoing: Outgoing::default(),
            in_flight: InFlight::default(),
            member: None,
            stream: 0,
            since: now,
            due: now,
            is_dirty: false,
            parts: false,
            weighed: 0,
        }
    }

    /// What its answers say of themselves.
    pub(super) fn manner<'a>(&self, session: Option<&'a str>) -> Manner<'a> {
        let (is_old, page) = (self.incoming.is_old(), self.incoming.sender.page.clone());
        let Incoming { is_head, keeps_alive, .. } = self.incoming;
        Manner { session, is_last: !keeps_alive, is_old, is_head, page }
    }

    /// Queues an event.
    pub(super) fn event(&mut self, id: Option<EventId>, data: &[u8]) {
        write::event(self.outgoing.queue(), id, data, self.incoming.is_old());
    }

    /// Whether it can be closed behind what is queued: all of its last request has come, and nothing else.
    pub(super) fn may_part(&self) -> bool {
        let incoming = &self.incoming;
        let is_last = self.state == State::Answering && !incoming.keeps_alive && incoming.reader.is_over();
        is_last && incoming.bytes.is_empty() && !incoming.has_ended && !self.in_flight.has(Flight::Watch)
    }

    /// Whether nobody waits for anything on it, so that its place may be given to another one.
    pub(super) fn is_idle(&self) -> bool {
        match self.state {
            State::Reading => self.incoming.asked.is_none() && self.incoming.bytes.is_empty(),
            State::Lingering => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_of_a_long_answer_is_told_while_it_goes_out() {
        let mut outgoing = Outgoing::default();
        outgoing.queue().extend_from_slice(&[b'h'; 20]);
        outgoing.queue().extend_from_slice(&[b'x'; 80]);
        outgoing.owe(81, None);
        assert_eq!(outgoing.rest().map(<[u8]>::len), Some(100));
        assert_eq!([30, 30, 39].map(|bytes| outgoing.sent(bytes)), [30, 30, 21], "no more than is owed");
        assert_eq!((outgoing.sent(1), outgoing.give_up().owed), (0, 0));
    }
}
