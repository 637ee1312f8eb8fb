//! The commands that need nothing.

pub mod echo;
pub mod init;
