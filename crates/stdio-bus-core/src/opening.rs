//! What is kept of how a session of a door for MCP begins (`router/opening.rs`).

use alloc::boxed::Box;

use super::peer::WorkerKey;

/// The `initialize` of a session, with the id of the bus, and the worker that got it last.
#[derive(Default)]
pub(crate) struct Opening {
    pub line: Option<Box<[u8]>>,
    pub at: Option<WorkerKey>,
}

/// Whether a worker has seen how a session begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Opened {
    /// It has, or needs not.
    #[default]
    Yes,
    /// It has not.
    No,
    /// The bus has shown it, and waits for its answer.
    Asked,
}
