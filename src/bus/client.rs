//! What the core knows of one client connection.

use super::endpoint::Endpoint;
use super::lost::LostNames;
use super::peer::{Moment, Source, WorkerKey};
use super::penalties::Penalty;
use super::sources::UseKey;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Both directions are open.
    Open,
    /// It has sent its last line and waits for answers (decision 10).
    HalfClosed,
    /// It is being closed after its last bytes are sent.
    Flushing,
    /// It is being closed at once.
    Closing,
}

/// Whether a client is read as fast as it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pace {
    /// It is.
    #[default]
    Free,
    /// It waits for answers, or for its turn.
    Waiting,
    /// It has its turn.
    Turn,
}

/// One client connection.
pub(super) struct Client {
    /// Its number for people: unique in the life of the daemon.
    pub number: u32,
    /// The group of workers that its messages go to, unless they name a pool.
    pub group: usize,
    /// Whether it is the one client of `--stdio`.
    pub stdio: bool,
    /// What it has in common with the other connections of its source.
    pub source_use: UseKey,
    /// Index of the listener that it came through.
    pub listener: usize,
    /// Where it comes from.
    pub source: Source,
    /// It found no room, and is only here to be told so.
    pub turned_away: bool,
    /// How far it has come.
    pub phase: Phase,
    /// When its closing or its half-closed state has lasted long enough.
    pub deadline: Option<Moment>,
    /// Its worker in each group that assigns by client.
    pub assigned: Vec<(usize, WorkerKey)>,
    /// Whether it waits for answers or its turn.
    pub pace: Pace,
    /// Bytes of the line that it waits to send.
    pub waiting_bytes: usize,
    /// Bytes that it may send when its turn comes.
    pub credit: usize,
    /// The worker before which it has its turn.
    pub granted: Option<WorkerKey>,
    /// Names of sessions that went with their workers.
    pub lost: LostNames,
    /// What it is not read for, for a while.
    pub penalty: Penalty,
    /// When it connected.
    pub opened: Moment,
    /// When its last bytes came.
    pub heard: Moment,
    /// Lines, requests and sessions.
    pub end: Endpoint,
}

impl Client {
    /// A new connection.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn new(
        now: Moment,
        number: u32,
        listener: usize,
        group: usize,
        stdio: bool,
        source: Source,
        source_use: UseKey,
    ) -> Self {
        Self {
            number,
            group,
            stdio,
            source_use,
            listener,
            source,
            turned_away: false,
            phase: Phase::Open,
            deadline: None,
            assigned: Vec::new(),
            pace: Pace::Free,
            waiting_bytes: 0,
            credit: 0,
            granted: None,
            lost: LostNames::default(),
            penalty: Penalty::default(),
            opened: now,
            heard: Moment::default(),
            end: Endpoint { progress_at: now, ..Endpoint::default() },
        }
    }

    /// Whether nothing stands against reading it.
    pub(super) fn is_read(&self) -> bool {
        let end = &self.end;
        end.blocked_on.is_none() && self.pace != Pace::Waiting && !end.held_back && !self.penalty.is_paused()
    }
}
