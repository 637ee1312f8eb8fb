//! The orderly close: everything that a client has sent before it can know of the close is read.
//!
//! Its pending requests get errors at once. From then on it is read and everything it sends is refused as not
//! delivered, until it is silent for a moment or has sent its last byte; only then is its output shut down. Time and
//! bytes of that are bounded. If memory is short, the rest of an incomplete line is skipped and not kept. A client that
//! leaves, breaks off or sends a malformed line is closed without this: there is nothing more to read. `clients.rs` says
//! in which order these things happen.
use core::time::Duration;

use super::peer::{ClientKey, Peer};
use super::report::Reason;
use crate::ctx::Ctx;

/// A client that was silent for this long counts as read to the end.
pub(super) const SILENCE: Duration = Duration::from_millis(100);
/// How long a client that is never silent is read, and how long it may pause in the middle of a line.
pub(crate) const LONGEST: Duration = Duration::from_secs(1);
/// How many bytes are read from it: what the kernels of both sides may hold for a connection, and somewhat more.
const MOST_BYTES: usize = 32 << 20;

/// Refuses a client's input from now on: nothing else keeps it from being read.
pub(super) fn begin_refusing(ctx: &mut Ctx, key: ClientKey) {
    let longest = ctx.time.now().after(LONGEST);
    let Some(client) = ctx.clients.refused(key) else { return };
    client.closing_mut().set_deadline(Some(longest));
    let end = client.end_mut();
    end.gate = Default::default();
    end.cold.forget_turn_and_throttle();
    ctx.wake_at(key.into(), ctx.time.now().after(SILENCE));
}

/// Counts refused bytes. A client that sends endlessly is not read any longer.
pub(crate) fn count_refused(ctx: &mut Ctx, key: ClientKey, bytes: usize) {
    let now = ctx.time.now();
    let Some(client) = ctx.clients.refused(key) else { return };
    let is_over = client.closing_mut().count(bytes) > MOST_BYTES;
    if is_over {
        client.closing_mut().set_deadline(Some(now));
    }
    ctx.wake_at(key.into(), if is_over { now } else { now.after(SILENCE) });
}

/// Reports input of a client that is neither answered nor refused, since it takes no answers.
pub(super) fn report_unread(ctx: &mut Ctx, key: ClientKey) {
    let waiting = ctx.endpoint(key.into()).map_or(0, |end| end.stream.drop_waiting());
    if waiting > 0 {
        ctx.report(Reason::ClientOverdue, Some(Peer::Client(key)), || {
            format!("a client did not read in time: {waiting} lines of it, or more, are neither answered nor refused")
        });
    }
}

/// The end of what a client is to get is lost with its connection.
pub(super) fn report_untaken(ctx: &mut Ctx, key: ClientKey) {
    let unsent = ctx.endpoint(key.into()).map_or(0, |end| end.output.queued());
    if unsent > 0 {
        ctx.report(Reason::ClientOverdue, Some(Peer::Client(key)), || {
            format!("a closing client did not take its last {unsent} bytes in time")
        });
    }
}
