//! ACP's Streamable HTTP without I/O (RFD "Streamable HTTP & WebSocket Transport"): what a request asks for, and which
//! stream of a connection each line is queued for.
//!
//! A connection, which the RFD names by `Acp-Connection-Id`, is a client of the core and no socket. Its client posts each
//! message alone, which is answered with 202 at once, and reads on streams of events: one of the connection, and one of
//! each session. What a client posts is read by [`crate::mcp::message`], since a body is a message in both protocols, and
//! refused by [`crate::mcp::Fault`], a status with an error of JSON-RPC. Responses are those of [`crate::mcp::write`], with
//! [`asked::FIELDS`].
//!
//! # Reading order
//! `asked.rs` (what a head asks for), `posted.rs` (what a body may say), and `streams.rs` (which stream a line is
//! queued for, and what waits there).

pub mod asked;
pub mod posted;
pub mod streams;

pub use streams::Streams;
