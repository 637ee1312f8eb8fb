//! The daemon as its users see it: a real process, real workers, real sockets and pipes.
//!
//! Each module is a subject, each test a sentence of the specification, or of `docs/failures.md`, that needs a mechanism:
//! processes, pipes, sockets, signals, files, the machine. A rule of routing is proved in the core's tests instead. The
//! harness and the clients are shared; `harness/misbehaving.rs` is the only misbehaving worker.

#[path = "harness/client.rs"]
mod client;
#[path = "../support/descriptors.rs"]
mod descriptors;
mod harness;
#[path = "harness/http.rs"]
mod http;
#[path = "harness/misbehaving.rs"]
mod misbehaving;
#[path = "../support/seccomp.rs"]
mod seccomp;
#[path = "harness/slots.rs"]
mod slots;
#[path = "harness/sockets.rs"]
mod sockets;
#[path = "../support/steady.rs"]
mod steady;
#[path = "../support/terminal.rs"]
mod terminal;
#[path = "../support/waiting.rs"]
mod waiting;

mod access;
mod acp;
mod admin;
mod backpressure;
mod clients;
mod command_line;
mod credentials;
mod fairness;
mod identity;
mod kernels;
mod logs;
mod mcp;
mod mcp_sessions;
mod memory;
mod privileges;
mod proxy;
mod reload;
mod routing;
mod rules;
mod service;
mod shutdown;
mod startup;
mod state;
mod stdio;
mod websocket;
mod workers;
