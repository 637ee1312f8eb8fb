//! The commands that need a configuration, and no running daemon.

pub mod check;
pub mod doctor;
