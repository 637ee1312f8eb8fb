//! One connection of a client over HTTP in the simulation: what it sends, and the responses that it reads. `W` is what the
//! client remembers of a request that waits for its response.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use super::lines::{Pulled, pull, push};
use crate::http1::{Event, Method, ResponseReader};
use crate::testing::Random;

/// The head of a response.
#[derive(Debug)]
pub(super) struct ReceivedHead {
    pub(super) status: u16,
    pub(super) is_stream: bool,
    pub(super) closes: bool,
}

/// What was taken of a response.
pub(super) struct Taken {
    pub(super) is_over: bool,
    /// The id that its head gives out.
    pub(super) id: Option<String>,
}

pub(super) struct Wire<W> {
    end: OwnedFd,
    pub(super) inode: u64,
    pub(super) number: usize,
    pub(super) todo: VecDeque<u8>,
    pub(super) came: Vec<u8>,
    /// Requests without their whole responses, in order.
    pub(super) waits: VecDeque<W>,
    reader: Option<ResponseReader>,
    pub(super) response: Option<ReceivedHead>,
    pub(super) body: Vec<u8>,
    /// The daemon has announced that it closes the connection.
    pub(super) is_closing: bool,
    /// The client sends nothing more on it, whether it has announced that or not.
    pub(super) is_over: bool,
    /// It is read in small steps.
    is_slow: bool,
    /// A request was sent on it.
    pub(super) is_used: bool,
    /// The simulation has broken it, though the client may not have noticed.
    pub(super) is_broken: bool,
}

impl<W> Wire<W> {
    pub(super) fn new(end: OwnedFd, inode: u64, number: usize, random: &mut Random) -> Self {
        Self {
            end,
            inode,
            number,
            todo: VecDeque::new(),
            came: Vec::new(),
            waits: VecDeque::new(),
            reader: None,
            response: None,
            body: Vec::new(),
            is_closing: false,
            is_over: false,
            is_slow: random.one_in(4),
            is_used: false,
            is_broken: false,
        }
    }

    /// Whether another request may follow those that wait, none of which `is_last`.
    pub(super) fn may_ask(&self, keeps: bool, is_last: impl Fn(&W) -> bool) -> bool {
        let may_ask = !self.is_used || keeps;
        may_ask
            && !self.waits.iter().any(is_last)
            && !self.is_closing
            && !self.is_over
            && self.waits.len() < 4
            && !self.closes()
    }

    /// Whether the present response is the last one.
    pub(super) fn closes(&self) -> bool {
        self.response.as_ref().is_some_and(|response| response.closes)
    }

    pub(super) fn writes(&mut self, most: usize) -> bool {
        push(&self.end, &mut self.todo, most) > 0
    }

    /// Reads what is available. The result is [`Pulled::End`] if the daemon has closed the connection.
    pub(super) fn pulls(&mut self, most: usize) -> Pulled {
        pull(&self.end, &mut self.came, if self.is_slow { most.min(200) } else { most })
    }

    /// Reads all that is available, and drops it.
    pub(super) fn drains(&mut self) {
        while pull(&self.end, &mut self.came, 1 << 16) == Pulled::Something {}
    }

    /// Takes one piece of the response to a request with this method, whose head may have an id in this field. None if
    /// there is no piece. `who` reads it.
    pub(super) fn takes(&mut self, who: usize, method: Method, id: &str) -> Option<Taken> {
        let reader = self.reader.get_or_insert_with(|| ResponseReader::new(method, 1 << 24));
        let came = std::mem::take(&mut self.came);
        let mut taken = Taken { is_over: false, id: None };
        let (length, has_more) = match reader.next(&came, false) {
            Event::More(length) => (length, false),
            Event::Head(head) => {
                let field = |name: &str| head.fields.values(name).next().and_then(|value| str::from_utf8(value).ok());
                let is_stream = field("content-type") == Some("text/event-stream");
                self.response =
                    Some(ReceivedHead { status: head.status, is_stream, closes: field("connection") == Some("close") });
                taken.id = field(id).map(str::to_owned);
                (head.length, true)
            }
            Event::Data { data, length } => {
                self.body.extend_from_slice(data);
                (length, true)
            }
            Event::End(length) => {
                taken.is_over = true;
                (length, true)
            }
            Event::Wrong(error) => panic!("{who} receives no HTTP: {error:?} {:?}", shown(&came)),
        };
        self.came = came[length..].to_vec();
        if taken.is_over {
            self.reader = None;
        }
        has_more.then_some(taken)
    }

    /// Takes the next complete event, if the response is a stream.
    pub(super) fn next_event(&mut self) -> Option<String> {
        if !self.response.as_ref().is_some_and(|response| response.is_stream) {
            return None;
        }
        let end = memchr::memmem::find(&self.body, b"\n\n")?;
        let event: Vec<u8> = self.body.drain(..end + 2).collect();
        Some(String::from_utf8(event).expect("an event is text"))
    }

    /// Whether it has served its purpose.
    pub(super) fn is_done(&self) -> bool {
        self.is_over && self.todo.is_empty() && self.waits.is_empty()
    }
}

/// The beginning of received bytes.
pub(super) fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned()
}
