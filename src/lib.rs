//! stdio-bus: a message bus for AI agents that speak JSON-RPC over stdin and stdout.
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
//! 1. [`bus::port`]: the whole contract between the two, and [`bus::settings`], what the core is told.
//! 2. [`bus`]: the front door of the core; its own page leads through the rest of it.
//! 3. [`scan`]: how a line is validated and its routing fields are found.
//! 4. [`shell`]: the loop. It decides nothing. [`proxy`]: who a proxy says that a client is;
//!    [`websocket`]: what frames say.
//! 5. [`config`], [`cli`], [`check`], [`activation`], [`error`]: what happens before the loop; [`reserve`]: memory for when there is none
//!    left.
//! 6. [`bridge`] and [`echo`]: the bridge that editors spawn, and the built-in worker; [`control`]: the commands of
//!    operators.

#![warn(unreachable_pub)]

pub mod activation;
pub mod address;
pub mod bridge;
pub mod bus;
pub mod calendar;
pub mod cgroup;
pub mod check;
pub mod cli;
pub mod config;
pub mod control;
pub mod echo;
pub mod error;
pub mod io;
pub mod proxy;
pub mod random;
pub mod reserve;
pub mod scan;
pub mod shell;
pub mod tokens;
pub mod websocket;

#[cfg(feature = "agent")]
pub mod agent;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(feature = "tls")]
pub mod trust;
