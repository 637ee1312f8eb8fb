//! The rows of both kinds of peers: what the core knows of a client (`client.rs`) and of its close (`close.rs`), and the
//! endpoint that clients and workers have in common (`endpoint.rs`), with its output (`output.rs`). A worker's own row is
//! in `fleet/worker.rs`.
//!
//! What most peers do not have is boxed (`ColdEndpoint` in each file), which nobody outside sees.

mod client;
mod close;
mod endpoint;
mod output;

pub(crate) use client::{Client, ClientIdentity, Clients, McpState, Phase, Workers, end_of};
pub(crate) use close::Closing;
pub(crate) use endpoint::{Endpoint, ToAnswer};
pub(crate) use output::Output;
