//! The protocols that stdio-bus speaks, without I/O: bytes become requests, frames and lines, and answers become bytes.
//! Daemon, bridge and operators' commands share it. Nothing here knows a socket, a clock or a thread; time is an
//! argument.
//!
//! Reading order:
//! 1. [`http1`]: HTTP/1.1 and HTTP/1.0, heads and bodies.
//! 2. [`websocket`]: the handshake over it, and frames that are lines.
//! 3. [`mcp`]: MCP's Streamable HTTP over it.
//! 4. [`acp`]: ACP's Streamable HTTP over it.
//! 5. [`proxy`]: the PROXY protocol, ahead of any of them.
//! 6. [`access`]: who may come in over HTTP.

#![warn(missing_docs, unreachable_pub)]

pub mod access;
pub mod acp;
pub mod http1;
pub mod mcp;
pub mod proxy;
pub mod websocket;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
