//! WebSocket (RFC 6455) without I/O: decodes and encodes the bytes of a connection. A text message is a line of NDJSON
//! and a line is a text message, so that readers of lines need not know about frames.
//!
//! It turns bytes into events and lines into bytes. It knows no socket, no clock and no random numbers; it buffers no
//! message, validates neither JSON nor UTF-8 (the reader of the lines does, once), and makes no decisions about access.
//!
//! # A connection of a server
//!
//! 1. **The head of the request.** [`request::UpgradeHead::of`] makes a [`request::UpgradeHead`] or a [`Refusal`] of a
//!    head that [`crate::http1`] has read. The bytes after it are the first frames.
//! 2. **The answer.** Path, origin, host and token are there for the caller's decision;
//!    [`request::UpgradeHead::upgrade`] checks that it is a WebSocket handshake. [`answer::Accepted`] or [`Refusal`]
//!    writes the response; after a refusal the connection is closed.
//! 3. **Frames become lines.** Received bytes are wrapped in a [`frame::Received`], and [`frame::Decoder::next`] is
//!    called until it returns none. Then the first [`frame::Received::text`] bytes *of the same memory* are lines, each
//!    with its newline, and possibly the beginning of another, exactly as from a plain connection: a window for the
//!    scanner, or, if they were received after the beginning of a line, its continuation. Nothing is copied, except
//!    that payloads move over the headers before them while they are unmasked.
//! 4. **Lines become frames.** A line of known length is sent as [`encode::text`], its frame's header, and its bytes
//!    without the newline. Several lines may share one write.
//! 5. **Everything but text** is a [`frame::FrameEvent`] of its own: a ping is answered by [`encode::pong`], a close by
//!    [`encode::close`] and the end of the connection, a [`close::Violation`] likewise. None of them affects what was
//!    received before it: those lines count.
//!
//! A message that is too long ends the connection before its bytes arrive, so that only the beginning of a line is ever
//! buffered of one.
//!
//! # Room for one byte
//!
//! A message's header may have arrived earlier, and then its payload and the newline take one byte more than was
//! received. So there has to be a byte of memory after the received bytes, which [`frame::Received::new`] requires:
//! either a read is given one byte less than the capacity, or the pad after a buffer is used (a window needs
//! [`ndjson_scan::PAD`] bytes after the newline as well).
//!
//! # A connection of a client
//!
//! [`client::UpgradeRequest`] writes the request, [`client::read`] reads the response. The decoder of [`Role::Client`]
//! expects unmasked frames; each sent frame has an unpredictable [`Mask`]: `encode::text(length, Some(mask))`, and
//! [`Mask::apply`] on a copy of the line.
//!
//! # Reading order
//! `mask.rs`, `header.rs` (the frame header), `close.rs`, `frame.rs`, `encode.rs`; then `key.rs`, `answer.rs`,
//! `request.rs` and `client.rs`. The HTTP of a handshake is read and written by [`crate::http1`].
//!
//! [`Refusal`]: crate::access::Refusal

pub mod answer;
pub mod client;
pub mod close;
pub mod encode;
pub mod frame;
mod header;
mod key;
mod mask;
pub mod request;
#[cfg(test)]
mod tests;

pub use mask::Mask;

/// The path of a listener's health check, for load balancers.
pub const HEALTH: &str = "/healthz";

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The other end masks its frames, and this one does not.
    Server,
    /// This end masks its frames, and the other one does not.
    Client,
}
