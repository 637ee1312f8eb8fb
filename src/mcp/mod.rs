//! Streamable HTTP of MCP without I/O: what a request asks for, which lines its body holds, and what is written in
//! answer. Both eras: sessions (2025-03-26 to 2025-11-25), and requests that stand for themselves (2026-07-28).
//!
//! It knows no socket and no clock, and decides nothing about workers. Heads and bodies are read by [`crate::http1`].
//!
//! # Reading order
//! `versions.rs`, `fault.rs` (what is told when a request is not served), `asked.rs` (a head), `message.rs` (a body), `modern.rs` (what
//! 2026-07-28 wants of both), `session.rs` with `log.rs` (which stream a line goes to, and what is kept of it), and
//! `write.rs` (answers and events).

pub mod asked;
pub mod fault;
pub mod log;
pub mod message;
pub mod modern;
pub mod session;
mod versions;
pub mod write;

pub use asked::Asked;
pub use fault::Fault;
pub use message::{Body, Kind, Message};
pub use session::Session;
