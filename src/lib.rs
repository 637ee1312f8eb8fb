//! stdio-bus: a message bus for AI agents that speak JSON-RPC over stdin and stdout.

pub mod address;
pub mod bus;
pub mod cli;
pub mod config;
pub mod echo;
pub mod error;
pub mod shell;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
