//! MCP's Streamable HTTP without I/O: what a request asks for, the lines in its body, and the responses to it. Both
//! eras: sessions (2025-03-26 to 2025-11-25), and self-contained requests (2026-07-28).
//!
//! It knows no socket and no clock, and makes no decisions about workers. Heads and bodies are read by
//! [`crate::http1`].
//!
//! # Reading order
//! `fault.rs` (error responses), `head.rs` (the fields of a head), `asked.rs` (what a head asks for), `message.rs` (a
//! body), `params.rs` and `modern.rs` (what 2026-07-28 requires of both), `session.rs` with `log.rs` (which stream a line
//! is sent on, and what is kept of it), and `write.rs` (responses and events). Versions and error codes are those of
//! the core: `fleet/eras/protocol.rs`.

pub mod asked;
pub mod fault;
pub mod head;
pub mod log;
pub mod message;
pub mod modern;
pub mod params;
pub mod session;
pub mod write;

pub use asked::Asked;
pub use fault::Fault;
pub use message::{Body, Kind, Message};
pub use session::Session;
