//! Routing: each line is decoded (`message.rs`); a client's goes to the worker of its session (`client.rs`; before the
//! first line of a session `opening.rs`), a worker's to its addressee (`worker.rs`, `addressee.rs` with
//! `elicitations.rs` and `servers.rs`, `audience.rs`).

pub(crate) mod addressee;
pub(crate) mod audience;
mod client;
pub(crate) mod elicitations;
mod message;
mod opening;
mod servers;
mod worker;
