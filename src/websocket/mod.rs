//! WebSocket (RFC 6455) without I/O: what the bytes of a connection mean, and which bytes say what is to be said. A text
//! message is a line of NDJSON, and a line is a text message; so whoever reads lines needs to know no frames.
//!
//! It reads bytes and writes bytes. It knows no socket, no clock and no random numbers; it holds no message, checks no
//! JSON and no UTF-8 (whoever reads the lines does, once), and decides nothing about who may come in.
//!
//! # A connection of a server
//!
//! 1. **The head of the request.** What has come is shown to [`request::Reader::read`] until it is a
//!    [`request::Request`] or a [`answer::Refusal`]. Bytes behind [`request::Request::length`] are the first frames.
//! 2. **The answer.** Path, origin, host and token are there for whoever decides; [`request::Request::upgrade`] says
//!    whether it is a WebSocket's request. [`answer::Accepted`] or [`answer::Refusal`] writes what is sent; after a
//!    refusal the connection is closed.
//! 3. **Frames become lines.** Received bytes are wrapped in a [`frame::Received`], and [`frame::Decoder::next`] is asked
//!    until it has nothing more. Then the first [`frame::Received::text`] bytes *of the same memory* are lines, each with
//!    its newline, and perhaps the beginning of one more. They are what bytes of a plain connection would have been: a
//!    window for the scanner; or, if they were received behind the beginning of a line, what that line goes on with.
//!    Nothing is copied, but that payloads move over the headers before them while they are unmasked.
//! 4. **Lines become frames.** A line of known length is sent as [`encode::text`], the head of its frame, and its bytes
//!    without the newline. Several lines may be one write.
//! 5. **What is not text** comes as an [`frame::Event`] of its own: a ping is to be answered by [`encode::pong`], a close
//!    by [`encode::close`] and the end of the connection, a [`close::Fault`] likewise. None of them stops in the middle
//!    of what was received before it: the lines before it count.
//!
//! A message that is too long ends the connection before its bytes come, so the beginning of a line is all that is ever
//! kept of one.
//!
//! # Room for one byte
//!
//! A message's header may have come with the bytes before, and then its payload and the newline are one byte more than
//! what was received. So there has to be a byte of memory behind received bytes, which [`frame::Received::new`] asks for:
//! a read is told of a byte less than there is room for, or the pad behind a buffer is used (a window needs
//! [`crate::scan::PAD`] bytes behind the newline as well).
//!
//! # A connection of a client
//!
//! [`client::Request`] writes the request, [`client::read`] reads the answer. The decoder of [`Role::Client`] takes frames
//! without masks; what is sent has a [`Mask`] that nobody can foresee: `encode::text(length, Some(mask))`, and
//! [`Mask::apply`] on a copy of the line.
//!
//! # Reading order
//! `mask.rs`, `header.rs` (the head of a frame), `close.rs`, `frame.rs`, `encode.rs`; then `key.rs`, `answer.rs`,
//! `request.rs` and `client.rs`. What is HTTP of a handshake is read and written by [`crate::http1`].

pub mod answer;
pub mod client;
pub mod close;
pub mod encode;
pub mod forwarded;
pub mod frame;
mod header;
mod key;
mod mask;
pub mod request;
#[cfg(test)]
mod tests;

pub use mask::Mask;

/// Where balancers ask how a listener is.
pub const HEALTH: &str = "/healthz";

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The other end masks what it sends, and this one does not.
    Server,
    /// This end masks what it sends, and the other one does not.
    Client,
}
