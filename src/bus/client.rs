//! A client connection as the core sees it.

use super::endpoint::Endpoint;
use super::port::{Moment, Source, WorkerKey};
use super::share::Pace;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Both directions are open.
    Open,
    /// It has sent its last line and waits for answers (design 2.10).
    HalfClosed,
    /// It is being closed after its last bytes are sent.
    Flushing,
    /// It is being closed at once.
    Closing,
}

/// One client connection.
pub struct Client {
    /// Its number for people: unique in the life of the daemon.
    pub number: u32,
    /// The group of workers that its messages go to, unless they name a pool.
    pub group: usize,
    /// Whether it is the one client of `--stdio`.
    pub stdio: bool,
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
    /// Whether it is read as fast as it sends.
    pub pace: Pace,
    /// Lines, requests and sessions.
    pub end: Endpoint,
}

impl Client {
    /// A new connection.
    pub fn new(number: u32, listener: usize, group: usize, stdio: bool, source: Source) -> Self {
        Self {
            number,
            group,
            stdio,
            listener,
            source,
            turned_away: false,
            phase: Phase::Open,
            deadline: None,
            assigned: Vec::new(),
            pace: Pace::Free,
            end: Endpoint::default(),
        }
    }
}
