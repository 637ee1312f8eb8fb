//! Code that only the daemon, the bridge and the agent share: it may change at any time.

#![warn(missing_docs, unreachable_pub)]

pub mod calendar;
pub mod panic;
pub mod random;
pub mod stack;
#[cfg(feature = "tls")]
pub mod trust;
