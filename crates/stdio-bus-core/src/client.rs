//! What the core knows of one client connection.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::time::Duration;

use super::account::Account;
use super::admission::UseKey;
use super::endpoint::Endpoint;
use super::flow::lists::ListsTold;
use super::flow::pace::Pace;
use super::flow::penalty::Penalty;
use super::flow::turn::Turn;
use super::message::Refusal;
use super::offers::Offers;
use super::origin::Origin;
use super::peer::{Moment, Source, WorkerKey};
use super::report::Reason;
use super::session::tombstones::LostNames;
use super::settings::Era;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Both directions are open.
    Open,
    /// It has sent its last line and waits for answers (decision 10).
    HalfClosed,
    /// It is being closed; what it still sends is refused (`closing.rs`).
    Refusing,
    /// It is being closed after its last bytes are sent.
    Flushing,
    /// It is being closed at once.
    Closing,
}

/// How and why a client is being closed, or waits for its last answers.
#[derive(Default)]
pub(super) struct Closing {
    /// Why, if it is.
    pub why: Option<Reason>,
    /// When that has lasted long enough.
    pub deadline: Option<Moment>,
    /// Since when it is refused.
    pub since: Moment,
    /// Bytes that were taken since then.
    pub bytes: usize,
    /// It holds much while memory is short: no unfinished line of it is kept.
    pub saves_memory: bool,
    /// It is in the middle of a line that is not kept.
    pub skips: bool,
    /// What it is told.
    pub refusal: Option<Refusal>,
}

/// Who a client is, and where it has come in.
pub(super) struct Identity {
    /// Its number for people: unique in the life of the daemon.
    pub number: u32,
    /// Whether it is the one client of `--stdio`.
    pub stdio: bool,
    /// What it has in common with the other connections of its source.
    pub source_use: UseKey,
    /// Index of the listener that it came through.
    pub listener: usize,
    /// What it has its share by.
    pub source: Source,
    /// Who it is, for people.
    pub origin: Rc<Origin>,
    /// It found no room, and is only here to be told so.
    pub turned_away: bool,
    /// When it connected.
    pub opened: Moment,
}

impl Identity {
    /// The listener that has let it in, if it did.
    pub(super) fn let_in(&self) -> Option<usize> {
        (!self.turned_away).then_some(self.listener)
    }
}

/// What is known of a client of a door for MCP.
#[derive(Clone, Copy, Default)]
pub(super) struct Door {
    /// What it speaks; none if it is the client of another door.
    pub era: Option<Era>,
    /// Workers are lent to it.
    pub borrows: bool,
    /// The worker that has answered it last.
    pub answered_by: Option<WorkerKey>,
    /// The worker that its next messages go to.
    pub preferred: Option<WorkerKey>,
}

impl Door {
    /// Whether it speaks 2026-07-28.
    pub(super) fn is_modern(&self) -> bool {
        self.era == Some(Era::Modern)
    }
}

/// One client connection.
pub(super) struct Client {
    pub identity: Identity,
    /// The group of workers that its messages go to, unless they name a pool.
    pub group: usize,
    /// What is known of it if it has come through a door for MCP.
    pub door: Door,
    /// How far it has come.
    pub phase: Phase,
    /// How and why it is being closed.
    pub closing: Closing,
    /// Its worker in each group that assigns by client.
    pub assigned: Vec<(usize, WorkerKey)>,
    /// Whether it lets others go first.
    pub pace: Pace,
    /// Its turn before a worker that others use, too.
    pub turn: Turn,
    /// Names of sessions that went with their workers.
    pub lost: LostNames,
    /// Its next line gets no worker of its own: it has waited for too long, or with too many.
    pub refused_worker: bool,
    /// What it has been told of lists that change.
    pub lists_told: ListsTold,
    /// The MCP servers that it offers.
    pub offers: Offers,
    /// What it may get a penalty for.
    pub penalty: Penalty,
    /// When its last bytes came.
    pub heard: Moment,
    /// Lines, requests and sessions.
    pub end: Endpoint,
}

impl Client {
    /// A new connection.
    pub(super) fn new(identity: Identity, group: usize, door: Door) -> Self {
        let end = Endpoint { progress_at: identity.opened, ..Endpoint::default() };
        Self {
            identity,
            group,
            door,
            phase: Phase::Open,
            closing: Closing::default(),
            assigned: Vec::new(),
            pace: Pace::default(),
            turn: Turn::default(),
            lost: LostNames::default(),
            refused_worker: false,
            lists_told: ListsTold::default(),
            offers: Offers::default(),
            penalty: Penalty::default(),
            heard: Moment::default(),
            end,
        }
    }

    /// The worker that it has in a group.
    #[inline]
    pub(super) fn worker_in(&self, group: usize) -> Option<WorkerKey> {
        self.assigned.iter().find(|(of, _)| *of == group).map(|(_, worker)| *worker)
    }

    /// What it has come to in the time that it has `lasted`.
    pub(super) fn account(&self, lasted: Duration) -> Account {
        let traffic = self.end.traffic;
        Account {
            lasted,
            traffic,
            answered: traffic.asked - traffic.given_up - self.end.outstanding.len() as u64,
            failed: traffic.given_up + traffic.refused,
            why: self.closing.why.map(Reason::name),
        }
    }
}
