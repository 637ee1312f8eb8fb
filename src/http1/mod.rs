//! HTTP/1.1 and HTTP/1.0 without I/O (RFC 9110, RFC 9112): what the bytes of a connection say, and which bytes say what is
//! to be said. The listeners for WebSockets and for operators read requests by it, the bridge and the commands of operators
//! answers.
//!
//! It reads bytes and writes bytes. It knows no socket and no clock (what time it is, is an argument), keeps nothing of
//! what it has read but numbers, and decides nothing about what is asked.
//!
//! # A server
//!
//! [`RequestReader::next`] is shown what has come of a connection and says what that is: a head ([`Request`]), pieces of
//! its body, the end. What an event has dealt with is not shown again. An answer is a [`Head`], and a body that comes
//! with it or in parts ([`chunk`]); when it is out, [`RequestReader::answered`] says so, and the next request may have
//! come meanwhile. [`RequestReader::deadline`] says when the other side has taken too long.
//!
//! # A client
//!
//! [`Head::request`] asks, and a [`ResponseReader`] reads the answer.
//!
//! # What is refused
//!
//! Whatever another reader might take for something else: two lengths, a length beside a coding, numbers that can be
//! written in other ways, lines that do not end with CR LF, lines that go on in the next one, a target that names another
//! host than `Host`. After an [`Error`] a connection is answered and closed.
//!
//! Invariant: what is read is the same however the bytes are cut.

mod body;
mod error;
mod fields;
mod head;
mod reader;
mod status;
#[cfg(test)]
mod tests;
mod write;

pub use body::Framing;
pub use error::Error;
pub use fields::{Fields, Twice, is_same_name, is_word, printable};
pub use head::{Method, Request, Response, ascii};
pub use reader::{Event, HeadReader, LONGEST_ANSWER, LONGEST_HEAD, Limits, RequestReader, ResponseReader};
pub use status::Status;
pub use write::{CONTINUE, Head, chunk};
