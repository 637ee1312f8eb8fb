//! The orderly close: everything that a client has sent before it can know of the close is read.
//!
//! Its pending requests get errors at once. From then on it is read and everything it sends is refused as not
//! delivered, until it is silent for a moment or has sent its last byte; only then is its output shut down. Time and
//! bytes of that are bounded. If memory is short, the rest of an incomplete line is skipped and not kept. A client that
//! leaves, breaks off or sends a malformed line is closed without this: there is nothing more to read.
use core::time::Duration;

use ndjson_scan::Window;

use super::Bus;
use super::client::Phase;
use super::message::Refusal;
use super::peer::{ClientKey, Moment, Peer};
use super::port::{Close, Next, Received};
use super::reply::Delivered;
use super::report::Reason;
use crate::ctx::Ctx;

/// A client that was silent for this long counts as read to the end.
pub(super) const SILENCE: Duration = Duration::from_millis(100);
/// How long a client that is never silent is read, and how long it may pause in the middle of a line.
const LONGEST: Duration = Duration::from_secs(1);
/// How many bytes are read from it: what the kernels of both sides may hold for a connection, and somewhat more.
const MOST_BYTES: usize = 32 << 20;

impl Bus {
    /// Closes a client that can still get messages, in an orderly way. `why` is the reason of the close and of its
    /// requests' errors, `text` a sentence for people.
    pub(super) fn close_orderly(&mut self, key: ClientKey, why: Reason, text: &str) {
        let refusal = match why {
            Reason::ShuttingDown => Refusal(why, text.into()),
            _ => Refusal(Reason::ConnectionClosing, format!("this connection is being closed: {text}")),
        };
        let since = self.ctx.time.now();
        let Some(client) = self.ctx.client_mut(key).filter(|client| client.phase < Phase::Refusing) else { return };
        let closing = &mut client.seldom.closing;
        closing.why.get_or_insert(why);
        (closing.since, closing.refusal) = (since, Some(refusal));
        self.fail_requests_of(key, why, text);
        // It may have no request whose error would tell it that the daemon keeps running.
        if why != Reason::ShuttingDown {
            self.ctx.send_error(key.into(), b"null", why, text, Delivered::Nothing);
        }
        let is_open = self.ctx.phase(key) == Some(Phase::Open);
        self.close_client(key, if is_open { Close::Refuse } else { Close::Flush }, why);
    }

    /// Bytes of a client whose input is refused.
    #[cold]
    pub(super) fn refuse_lines(&mut self, key: ClientKey, window: Window<'_>) -> Received {
        let bytes = window.data().len();
        let (now, is_short) = (self.ctx.time.now(), self.shortage.is_on);
        let Some(client) = self.ctx.refused(key) else { return Received { consumed: bytes, next: Next::Wait } };
        if !client.end.gate.is_open() {
            return Received { consumed: 0, next: Next::Wait };
        }
        if client.end.stream.has_more(bytes) {
            client.heard = now;
        }
        if client.seldom.closing.skips {
            let end = memchr::memchr(b'\n', window.data());
            client.seldom.closing.skips = end.is_none();
            client.end.stream.discard(bytes);
            let consumed = end.map_or(bytes, |end| end + 1);
            self.ctx.count_refused(key, consumed);
            return Received { consumed, next: if consumed < bytes { Next::Again } else { Next::Read } };
        }
        let saves_memory = client.seldom.closing.why == Some(Reason::MemoryLimit) || is_short;
        let found = self.find_lines(key, window);
        let mut received = self.route_lines(key.into(), window, found, 0);
        if received.next == Next::Read
            && saves_memory
            && received.consumed < bytes
            && let Some(client) = self.ctx.refused(key)
        {
            client.seldom.closing.skips = true;
            received.consumed = client.end.stream.discard(bytes).consumed;
        }
        self.ctx.count_refused(key, received.consumed);
        received
    }

    /// Continues the close of a client that was read to the end. Returns when to check it again.
    pub(super) fn tick_refusing(&mut self, key: ClientKey) -> Option<Moment> {
        let client = self.ctx.client(key).filter(|client| client.phase == Phase::Refusing)?;
        // A client that is not read, because it does not take its errors, is not silent.
        let is_silent = (!client.end.gate.waits() && !client.end.stream.waits()).then(|| {
            let is_amid_a_line = client.seldom.closing.skips || client.end.stream.is_amid();
            client.heard.max(client.seldom.closing.since).after(if is_amid_a_line { LONGEST } else { SILENCE })
        });
        let due = [is_silent, client.seldom.closing.deadline].into_iter().flatten().min()?;
        if due > self.ctx.time.now() {
            return Some(due);
        }
        self.ctx.leave_unread(key);
        self.close_client(key, Close::Flush, Reason::ClientClosed);
        None
    }

    /// Closes a client in an orderly way, unless it takes no bytes. On a second request, it is closed at once.
    pub(super) fn on_close_client(&mut self, key: ClientKey) {
        let Some(client) = self.ctx.client(key) else { return };
        let pending = client.end.outstanding.len();
        let takes_nothing = client.end.output.is_full() || client.phase >= Phase::Refusing;
        self.ctx.report(Reason::ClientKilled, Some(Peer::Client(key)), || {
            format!("the operator closes a client with {pending} requests pending")
        });
        if takes_nothing {
            return self.close_client(key, Close::Now, Reason::ClientKilled);
        }
        self.close_orderly(key, Reason::ClientKilled, "the operator closed this connection");
    }

    /// Closes a client whose token was removed, in an orderly way: nothing it sends is delivered from now on.
    pub(super) fn on_token_removed(&mut self, key: ClientKey) {
        let Some(client) = self.ctx.client(key).filter(|client| client.phase < Phase::Refusing) else { return };
        let pending = client.end.outstanding.len();
        self.ctx.report(Reason::TokenRemoved, Some(Peer::Client(key)), || {
            format!(
                "a client with {pending} requests pending is closed: its token is in tokens_file no more, or for other pools"
            )
        });
        self.close_orderly(key, Reason::TokenRemoved, "the token of this connection is no longer valid here");
    }
}

impl Ctx {
    /// Refuses a client's input from now on: nothing else keeps it from being read.
    pub(super) fn begin_refusing(&mut self, key: ClientKey) {
        // The shutdown of the daemon has a deadline for all.
        let longest =
            if self.shutdown.has_deadline_for_clients() { None } else { Some(self.time.now().after(LONGEST)) };
        let Some(client) = self.refused(key) else { return };
        client.seldom.closing.deadline = longest;
        let end = &mut client.end;
        end.gate = Default::default();
        if let Some(seldom) = end.seldom.get_mut() {
            (seldom.turn, seldom.throttle) = Default::default();
        }
        self.wake_at(key.into(), self.time.now().after(SILENCE));
    }

    /// Counts refused bytes. A client that sends endlessly is not read any longer.
    fn count_refused(&mut self, key: ClientKey, bytes: usize) {
        let now = self.time.now();
        let Some(client) = self.refused(key) else { return };
        client.seldom.closing.bytes += bytes;
        let is_over = client.seldom.closing.bytes > MOST_BYTES;
        if is_over {
            client.seldom.closing.deadline = Some(now);
        }
        self.wake_at(key.into(), if is_over { now } else { now.after(SILENCE) });
    }

    /// Reports input of a client that is neither answered nor refused, since it takes no answers.
    pub(super) fn leave_unread(&mut self, key: ClientKey) {
        let waiting = self.endpoint(key.into()).map_or(0, |end| end.stream.drop_waiting());
        if waiting > 0 {
            self.report(Reason::ClientOverdue, Some(Peer::Client(key)), || {
                format!(
                    "a client did not read in time: {waiting} lines of it, or more, are neither answered nor refused"
                )
            });
        }
    }
}
