//! The ways of lines: each is decoded (`message.rs`), and what a client says goes to the worker of its session
//! (`client.rs`; before the first line of a session `opening.rs`), what a worker says to the client that it is for (`worker.rs`, `addressee.rs` with `elicitations.rs` and `servers.rs`, `audience.rs`).

pub(crate) mod addressee;
pub(crate) mod audience;
mod client;
pub(crate) mod elicitations;
mod message;
mod opening;
mod servers;
mod worker;
