//! stdio-bus: a message bus for AI agents that speak JSON-RPC over stdin and stdout.
//!
//! Most people want the programs, `stdio_bus` and `openai-agent`. To write your own event loop, use the core:
//! [`bus::Bus`] takes lines and events and answers with effects, with [`scan`] to read lines and [`config`] for its
//! settings. `examples/core.rs` runs it with nothing around it. These three modules are the library's face; the others
//! are public for the programs alone, are not shown here, and may change at any time.
//!
//! A pure core decides and a thin shell does:
//!
//! ```text
//!             bytes, exits, signals, time            effects: copy, close, spawn, signal …
//!   kernel ──▶ shell ───────────────────────▶ bus ───────────────────────▶ shell ──▶ kernel
//!             (io_uring)                    (no fd, no clock)             (io_uring)
//! ```
//!
//! Reading order:
//! 1. [`bus::port`]: the whole contract between the two, and [`bus::settings`], the core's settings.
//! 2. [`bus`]: the front door of the core; its own page leads through the rest of it.
//! 3. [`scan`]: how a line is validated and its routing fields are found.
//! 4. [`shell`]: the event loop, which makes no decisions. The crate `stdio-bus-proto` has the syntax of what it reads and
//!    writes: HTTP, WebSocket, MCP, PROXY.
//! 5. [`config`], [`activation`], [`error`]: everything before the loop starts; [`reserve`]: memory for when the allocator
//!    runs out.
//! 6. [`commands`]: the command line, and all commands beside the daemon, by what they need.

#![warn(unreachable_pub)]

#[doc(hidden)]
pub mod activation;
#[doc(hidden)]
pub mod address;
#[doc(hidden)]
pub mod cgroup;
#[doc(hidden)]
pub mod commands;
pub mod config;
mod dial;
mod env_file;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod io;
mod kinds;
#[doc(hidden)]
pub mod printable;
#[doc(hidden)]
pub mod reserve;
#[doc(hidden)]
pub mod shell;
#[doc(hidden)]
pub mod small_file;
mod state;

#[cfg(test)]
mod testing;

// A fuzzer compiles what is in `testing/fuzz` as well, for which this crate has its name.
#[cfg(test)]
extern crate self as stdio_bus;

pub use ndjson_scan as scan;
#[cfg(feature = "tls")]
use stdio_bus_base::trust;
use stdio_bus_base::{calendar, random};
pub use stdio_bus_core as bus;
use stdio_bus_proto::{access, acp, http1, mcp, proxy, websocket};
