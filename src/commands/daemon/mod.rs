//! The commands that need a running daemon: `bridge` connects to it as a client, `control` asks it as an operator.

pub mod bridge;
pub mod control;
