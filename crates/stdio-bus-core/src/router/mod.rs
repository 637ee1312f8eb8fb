//! Routing: lines are decoded (`message.rs`); a client's go to the worker of their session (`client.rs`),
//! a worker's to their addressee (`worker.rs` with `unmatched.rs`, `addressee.rs` with `elicitations.rs` and `servers.rs`, `audience.rs`).

pub(crate) mod addressee;
pub(crate) mod audience;
mod client;
pub(crate) mod elicitations;
pub(crate) mod message;
mod servers;
pub(crate) mod unmatched;
mod worker;
