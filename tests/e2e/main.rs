//! The daemon as its users see it: a real process, real workers, real sockets and pipes.
//!
//! Each module is a part of the specification, each test a sentence of it, or of `docs/failures.md`. The harness and
//! the client are shared; `misbehaving.rs` is the only misbehaving worker.

mod client;
#[path = "../support/descriptors.rs"]
mod descriptors;
mod harness;
mod http;
#[path = "../support/seccomp.rs"]
mod seccomp;
mod sockets;
#[path = "../support/steady.rs"]
mod steady;
#[path = "../support/terminal.rs"]
mod terminal;
#[path = "../support/waiting.rs"]
mod waiting;

mod access;
mod admin;
mod backpressure;
mod call;
mod churn;
mod clients;
mod elsewhere;
mod endings;
mod figures;
mod greedy;
mod kernels;
mod logs;
mod mcp;
mod mcp_ends;
mod mcp_forms;
mod mcp_refusals;
mod memory;
mod misbehaving;
mod network;
mod places;
mod proxy;
mod reload;
mod request_lines;
mod service;
mod sessions;
mod shutdown;
mod slots;
mod spawns;
mod startup;
mod stdio;
mod strangers;
mod websocket;
mod workers;
