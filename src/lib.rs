//! stdio-bus: a message bus for AI agents that speak JSON-RPC over stdin and stdout.

pub mod bus;
