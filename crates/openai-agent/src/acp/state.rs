//! What the agent remembers and asks for: its turns, its models, and itself.

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::time::SystemTime;

use crate::answer::Ending;
use crate::config::{Config, Level};
use crate::history::{Entry, Header};
use crate::models::Model;
use crate::rpc::Reply;
use crate::session::{Sessions, TurnId};
use crate::stdio::Outbox;

/// Bytes of an answer that are held while the reader is slow; a turn that holds more stops reading its stream.
pub const MOST_HELD: usize = 16 << 10;

/// Models of which it is remembered how long a request they take, and that they take no images.
pub(super) const MOST_MODELS: usize = 1000;

/// Something for the shell to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Run this turn: ask the endpoint.
    Start(TurnId),
    /// Drop this turn and its connection at once.
    Stop(TurnId),
    /// This turn may read its stream again.
    Resume(TurnId),
    /// Read this session from the disk, then call [`Agent::loaded`].
    Load(Load),
    /// List the sessions on the disk, then call [`Agent::listed`].
    List(List),
    /// Delete this session from the disk, then call [`Agent::deleted`].
    Delete(Reply, String),
    /// Fetch the list of models, then call [`Agent::models_known`].
    FetchModels,
    /// Log this.
    Log(Level, String),
}

/// A session that is to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Load {
    pub reply: Reply,
    pub session_id: String,
    pub cwd: String,
    /// Whether the client is told what was said in it.
    pub replay: bool,
}

/// A list that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct List {
    pub reply: Reply,
    pub cwd: Option<String>,
    pub cursor: usize,
}

/// What a turn needs to be stored.
#[derive(Debug)]
pub struct ToStore {
    /// The first line of the session's file, if there is none yet.
    pub header: Header,
    /// The line to add.
    pub entry: Entry,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Running,
    Storing,
}

/// One run of a prompt.
#[derive(Default)]
pub(super) struct Turn {
    pub session_id: Rc<str>,
    pub reply: Reply,
    /// The message to send, and what the user said of it now.
    pub user: Rc<str>,
    pub own: Rc<str>,
    pub model: Rc<str>,
    pub phase: Phase,
    /// The beginning of its update lines.
    pub head: Box<[u8]>,
    pub message_id: Option<Box<str>>,
    pub thought_id: Option<Box<str>>,
    /// All text of the answer; up to `told` it is in the outbox.
    pub answer: String,
    pub told: usize,
    /// Bytes of the message and of the answer so far, as they count for the memory of all.
    pub memory: usize,
    pub held_thought: String,
    pub is_queued: bool,
    pub is_paused: bool,
    /// What its request counts for, in bytes of text.
    pub asked: usize,
    /// Less was sent after the endpoint had refused the whole.
    pub is_shortened: bool,
    /// The images of the turns before were left out after the endpoint had refused them.
    pub is_blind: bool,
    pub ending: Option<Ending>,
}

/// The models to choose from.
#[derive(Default)]
pub(super) struct Models {
    pub known: Option<Vec<Model>>,
    /// Being fetched: the answers that need them, which wait.
    pub waiting: Option<Vec<(Reply, Rc<str>)>>,
    /// Until then nobody has them fetched again; never, if they are not to be fetched at all.
    pub fresh_until: Option<SystemTime>,
}

/// The agent.
pub struct Agent {
    pub(super) config: Rc<Config>,
    pub(super) sessions: Sessions,
    pub(super) turns: HashMap<TurnId, Turn>,
    /// Sum of what the turns hold.
    pub(super) in_flight: usize,
    /// Turns that hold pieces, in the order in which they began to.
    pub(super) holding: VecDeque<TurnId>,
    /// What the disk is asked for and has not answered.
    pub(super) pending: usize,
    pub(super) models: Models,
    /// The windows of models whose endpoint said so, in tokens.
    pub(super) windows: HashMap<Rc<str>, u64>,
    /// Models that take no images.
    pub(super) blind: HashSet<Rc<str>>,
    pub(super) outbox: Outbox,
    pub(super) effects: VecDeque<Effect>,
    pub(super) next_number: TurnId,
    pub(super) dice: Box<dyn FnMut() -> [u8; 16]>,
    pub(super) has_noted_servers: bool,
    /// Whether the client that initialized last is new enough for `usage_update`. That its sessions are opened next is true
    /// of all clients that do not share the process, and of nearly all others.
    pub(super) knows_usage_updates: bool,
}
