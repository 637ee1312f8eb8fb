//! HTTP/1.1 and HTTP/1.0 without I/O (RFC 9110, RFC 9112): parses the bytes of a connection and writes messages. The
//! WebSocket and admin listeners read requests with it, the bridge and the operators' commands read responses.
//!
//! It turns bytes into events and messages into bytes. It knows no socket and no clock (time is an argument), keeps
//! nothing of what it has read but numbers, and makes no decisions about requests.
//!
//! # A server
//!
//! [`RequestReader::next`] is given the received bytes of a connection and returns an event: a head ([`Request`]), a
//! piece of its body, the end. Bytes that an event has consumed are not passed again. A response is a [`Head`], and a
//! body that is sent with it or in chunks ([`chunk`]); once it is out, call [`RequestReader::answered`]; the next
//! request may have arrived meanwhile. [`RequestReader::deadline`] is when the client has taken too long.
//!
//! # A client
//!
//! [`Head::request`] writes a request, and a [`ResponseReader`] reads the response.
//!
//! # What is refused
//!
//! Whatever another parser might read differently: two lengths, a length beside a transfer coding, numbers with several
//! spellings, lines that do not end with CR LF, folded lines, a target that names another host than `Host`. After an
//! [`Error`] the connection is answered and closed.
//!
//! Invariant: the result does not depend on how the bytes are cut.

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
pub use fields::{Duplicate, Fields, is_same, is_same_name, is_word, printable};
pub use head::{Method, Request, Response, ascii};
pub use reader::{Event, HeadReader, LONGEST_ANSWER, LONGEST_HEAD, Limits, RequestReader, ResponseReader};
pub use status::Status;
pub use write::{CONTINUE, Head, chunk};
