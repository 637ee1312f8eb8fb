//! What the agent asks the disk for.

use serde_json::Value as Json;

use crate::history::{Choice, Entry, Header};
use crate::rpc::Reply;

/// What a turn needs to be stored.
#[derive(Debug)]
pub struct ToStore {
    /// The session.
    pub session_id: String,
    /// The first line of its file, if there is none yet.
    pub header: Option<Header>,
    /// Bytes of its file known here.
    pub known: u64,
    /// The line to add.
    pub entry: Entry,
}

/// What a choice needs to be stored.
#[derive(Debug, PartialEq, Eq)]
pub struct ToKeep {
    /// The session.
    pub session_id: String,
    /// Bytes of its file known here.
    pub known: u64,
    /// What was chosen.
    pub choice: Choice,
}

/// What the agent asks the disk for, waiting for the answer.
pub(super) enum Pending {
    Load { reply: Reply, session_id: String, cwd: String, replay: bool },
    List { reply: Reply, cwd: Option<String>, cursor: usize },
    Keep { session_id: String, answer: Option<(Reply, Json)> },
    Delete { reply: Reply },
}
