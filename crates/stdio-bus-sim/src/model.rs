//! What must become of every line: lists, searched from the front, that know nothing of the tables of the core. The
//! world tells the model what the bus was given and what it did; the model panics when that is wrong.
//!
//! Where the bus has a choice (which worker takes a new session), the model knows who may be chosen and learns from
//! the bus who was.

mod clients;
mod early;
mod fates;
mod lines;
mod outputs;
mod penalty;
mod requests;
mod retired;
mod sessions;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::line::{Line, Who};
use crate::bus::port::{Moment, Source};
use crate::bus::report::Reason;
use crate::bus::settings::{Assignment, Settings};
use crate::bus::shutdown::Stage;
use penalty::Penalty;
use retired::Retired;

/// Reasons for which a single line or a single request is lost: the model foresees each of them.
const FORESEEN: [Reason; 28] = [
    Reason::NoWorker,
    Reason::SessionLimit,
    Reason::PendingLimit,
    Reason::SessionDenied,
    Reason::IdTooLong,
    Reason::SessionIdTooLong,
    Reason::UnknownPool,
    Reason::UnknownId,
    Reason::LateAnswer,
    Reason::UnknownSession,
    Reason::SessionReused,
    Reason::Unroutable,
    Reason::UnknownRequest,
    Reason::PartialLine,
    Reason::ClientMalformed,
    Reason::ClientLineTooLong,
    Reason::WorkerMalformed,
    Reason::WorkerLineTooLong,
    Reason::Timeout,
    Reason::SessionLost,
    Reason::MethodDenied,
    Reason::WorkerAnswersTwice,
    Reason::ConnectionClosing,
    Reason::RequestLost,
    Reason::ShuttingDown,
    Reason::RequestDiscarded,
    Reason::ClientLeft,
    Reason::Cancelled,
];

/// For how long it may be believed that clients share a worker.
pub const BELIEVED: Duration = Duration::from_millis(10);

/// Names of lost sessions that are remembered for each client.
const LOST_NAMES: usize = 64;

/// A client as the model sees it.
struct Client {
    /// Whose token it has shown.
    name: Option<&'static str>,
    source: Source,
    listener: usize,
    group: usize,
    /// Names of sessions that it lost with their workers, oldest first, and whether it is sure that it has not asked
    /// for them since.
    lost: Vec<(String, bool)>,
    penalty: Penalty,
    half_closed: bool,
    closed: bool,
    /// What it hears of its lines since it is being closed.
    refused_for: Reason,
    gone: bool,
    /// The line that it waits to send.
    waits_with: Option<usize>,
    /// Since when it waits.
    waits_since: Option<Moment>,
    /// How long it has waited with the line that it sends next.
    has_waited: Duration,
    assigned: Vec<(usize, usize)>,
}

/// A worker as the model sees it.
struct Worker {
    pool: usize,
    /// Messages may be given to it.
    takes: bool,
    /// Those of anybody, too.
    serves: bool,
    /// Clients that may keep to it, though it gets no new work.
    perhaps_of: BTreeSet<usize>,
    owner: Option<usize>,
    released: bool,
    /// It was started.
    ran: bool,
    /// Every id that it is sent is replaced.
    fresh: bool,
    /// It has answered what nobody waited for.
    answers_twice: bool,
    /// When each client used it last.
    used_at: BTreeMap<usize, Moment>,
    /// Requests that have left the table, and that it may answer still.
    retired: Retired,
    /// One of them asked for a session.
    may_create: bool,
    /// Clients whose lines it was given.
    served: BTreeSet<usize>,
    /// Lines that wait for the session that they name.
    early: Vec<Early>,
}

/// A line that waits for the session that it names.
struct Early {
    number: usize,
    bytes: usize,
    since: Moment,
    /// It may have been dropped before a client was closed.
    in_doubt: bool,
}

/// How sure it is that a session belongs to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Claimed,
    Confirmed,
    Issued,
}

#[derive(Debug)]
struct Session {
    serial: usize,
    client: usize,
    worker: usize,
    name: String,
    rank: Rank,
    used: Moment,
    /// It was named in a line that was refused, perhaps before anybody looked for the session.
    perhaps_used: Moment,
    /// The worker gave it out before, and its present owner has asked for it.
    was_issued: bool,
    /// The worker knows it already, and has not said yet whether its present owner gets it.
    lent: bool,
    /// Its owner was the first to name it, when it asked the worker to load it.
    asked: bool,
    /// The worker has made it for its owner, or has loaded it for it when it was bound to no other name.
    given: bool,
}

/// A name whose owner has left: it is kept from others.
#[derive(Debug)]
struct Held {
    worker: usize,
    name: String,
    /// The session that it was, or a number of its own.
    serial: usize,
    /// The worker has given it out or loaded it: it is held for as long as the worker lives. Another one is until none
    /// of its requests is pending.
    is_issued: bool,
}

/// A request that waits for its answer.
#[derive(Debug)]
struct Request {
    line: usize,
    asker: Option<Who>,
    answerer: Who,
    /// What the answerer knows it by: the meaning of its id.
    wire: String,
    /// What the asker knows it by: the token.
    token: String,
    /// The id was replaced.
    replaced: bool,
    /// What its progress is told under.
    progress: Option<Token>,
    sessions: Vec<usize>,
    expires: Option<Moment>,
    /// When its client gave it up, and whether that is told when the slot goes.
    cancelled: Option<(Moment, bool)>,
    /// Since when nobody waits for it.
    orphaned: Option<Moment>,
}

impl Request {
    /// A request in no session, that does not expire.
    fn new(line: usize, asker: Who, answerer: Who) -> Self {
        Self {
            line,
            asker: Some(asker),
            answerer,
            wire: String::new(),
            token: String::new(),
            replaced: false,
            progress: None,
            sessions: Vec::new(),
            expires: None,
            cancelled: None,
            orphaned: None,
        }
    }
}

/// A progress token.
#[derive(Debug)]
struct Token {
    /// What the answerer knows it by: its meaning.
    wire: String,
    /// As the asker has written it.
    token: String,
    replaced: bool,
}

/// What is queued for a peer.
#[derive(Default)]
struct Output {
    queued: usize,
    full: bool,
    moved_at: Moment,
    /// Bytes that have left.
    left: u64,
}

/// What may become of a line.
#[derive(Default, Debug)]
struct Fate {
    to: Vec<Who>,
    /// It may be dropped for one of these reasons.
    lost: Vec<Reason>,
    /// A worker was chosen anew, so the client keeps to it where its group says so.
    group: Option<usize>,
}

impl Fate {
    fn lost(reason: Reason) -> Self {
        Self { lost: vec![reason], ..Self::default() }
    }

    fn to(who: Who) -> Self {
        Self { to: vec![who], ..Self::default() }
    }
}

/// The shadow of the bus.
pub struct Model {
    settings: Settings,
    /// Every line that was ever written.
    pub lines: Vec<Line>,
    clients: Vec<Client>,
    workers: Vec<Worker>,
    sessions: Vec<Session>,
    next_session: usize,
    held: Vec<Held>,
    /// Under whose name each session was made or loaded, by pool and session.
    bonds: BTreeMap<(usize, String), &'static str>,
    /// Pools of which a worker has given out a name.
    issuing: Vec<usize>,
    /// Ids that the bus has made.
    made: BTreeSet<String>,
    to_workers: Vec<Request>,
    to_clients: Vec<Request>,
    outputs: BTreeMap<Who, Output>,
    counts: Vec<u64>,
    /// Lines that were lost for one of several reasons: the client has sessions of one name in one pool.
    doubts: Vec<Vec<Reason>>,
    expected_replies: Vec<(Who, String, &'static str)>,
    seen_replies: Vec<(Who, String, &'static str)>,
    /// Why the next request that is dropped is refused.
    refused_for: Option<Reason>,
    /// Requests that were cancelled and are given up in this step, which their clients have to be told.
    cancelled: Vec<(Who, String)>,
    /// Pools that a worker has left, and when.
    vacant: Vec<(usize, Moment)>,
    /// When a client of each source has got a worker of its own, or has left, the last time.
    turns: Vec<(Source, Moment)>,
    /// Workers whose requests were given up in this step: they must have stopped by its end.
    accused: Vec<usize>,
    /// Clients whose requests were given up in this step with their connection, and why.
    bereaved: Vec<(usize, Reason)>,
    /// Workers that ended, and who waited for them.
    blamed: Vec<(usize, Who)>,
    /// Why lines of a worker would have been lost before a client was closed in the middle of them.
    lost_before: BTreeMap<usize, Vec<Reason>>,
    /// Dedicated pools of which a line that was dropped in this step may have taken a worker.
    perhaps_taken: Vec<usize>,
    /// Lines that went from one peer to another, to see that order is kept.
    last_line: BTreeMap<(Who, Who), usize>,
    /// How many bytes will have left for a client when it has the newest line about a list, of each kind.
    lists_told: BTreeMap<(usize, usize), u64>,
    /// A line that is for everybody, and who has still to get it.
    for_all: Option<(usize, BTreeSet<usize>)>,
    /// Workers are replaced, or their pools changed.
    pub replaces: bool,
    /// The bus refuses new requests, since it shuts down, at the end of this step.
    pub refusing: bool,
    /// New requests are refused.
    pub quiescing: bool,
    /// It did so when the step began.
    pub refused: bool,
    /// Bytes that were queued for peers when they were closed.
    pub unsent: u64,
    /// Answers that were given, to see that worlds are worth something.
    pub answered: u64,
}

impl Model {
    /// A model of a bus with these settings.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            lines: Vec::new(),
            clients: Vec::new(),
            workers: Vec::new(),
            sessions: Vec::new(),
            next_session: 0,
            held: Vec::new(),
            bonds: BTreeMap::new(),
            issuing: Vec::new(),
            made: BTreeSet::new(),
            to_workers: Vec::new(),
            to_clients: Vec::new(),
            outputs: BTreeMap::new(),
            counts: vec![0; Reason::ALL.len()],
            doubts: Vec::new(),
            expected_replies: Vec::new(),
            seen_replies: Vec::new(),
            refused_for: None,
            cancelled: Vec::new(),
            vacant: Vec::new(),
            turns: Vec::new(),
            accused: Vec::new(),
            bereaved: Vec::new(),
            blamed: Vec::new(),
            lost_before: BTreeMap::new(),
            perhaps_taken: Vec::new(),
            last_line: BTreeMap::new(),
            lists_told: BTreeMap::new(),
            for_all: None,
            replaces: false,
            refusing: false,
            quiescing: false,
            refused: false,
            unsent: 0,
            answered: 0,
        }
    }

    /// These settings hold from now on.
    pub fn reloaded(&mut self, settings: &Settings) {
        self.settings = settings.clone();
        let serve: Vec<usize> = (0..self.workers.len()).filter(|at| self.workers[*at].serves).collect();
        serve.into_iter().for_each(|worker| self.may_be_kept(worker));
        for at in 0..self.clients.len() {
            let group = self.group_of_listener(self.clients[at].listener);
            let before = std::mem::replace(&mut self.clients[at].group, group);
            let mut assigned = std::mem::take(&mut self.clients[at].assigned);
            assigned.sort_by_key(|(of, _)| *of != before);
            // Where two groups become one, a worker that it got for a line which was not delivered may be the one that stays.
            let is_sure = before == group || assigned.iter().any(|(of, _)| *of == before);
            assigned.retain(|(of, worker)| is_sure || *of != group || self.is_own(at, *worker));
            for (of, worker) in assigned {
                let to = if of == before { group } else { of };
                let keeps = self.pools_of(to).1 != Assignment::Dedicated || self.workers[worker].owner == Some(at);
                if keeps && self.clients[at].assigned.iter().all(|(of, _)| *of != to) {
                    self.clients[at].assigned.push((to, worker));
                }
            }
        }
    }

    fn count(&mut self, reason: Reason) {
        self.counts[reason as usize] += 1;
    }

    /// Something was counted that the world sees by itself.
    pub fn counted(&mut self, reason: Reason) {
        self.count(reason);
    }

    /// Compares with the bus, after each step.
    pub fn check(&mut self, now: Moment, bus: &crate::bus::Bus) {
        self.ends_for_all();
        assert_eq!(self.seen_replies, self.expected_replies, "error replies");
        self.seen_replies.clear();
        self.expected_replies.clear();
        self.perhaps_taken.clear();
        self.lost_before.clear();
        for (client, reason) in std::mem::take(&mut self.bereaved) {
            let has_cause = match reason {
                Reason::MemoryLimit => true,
                Reason::ListenerRemoved => self.settings.listeners[self.clients[client].listener].is_gone,
                _ => self.lost_its_worker(client),
            };
            let closed = self.clients[client].closed && has_cause;
            assert!(closed, "requests of client {client} are given up, and it goes on");
        }
        for worker in 0..self.workers.len() {
            let worker = &self.workers[worker];
            // With one that could not be started nothing was agreed on.
            let outlives =
                worker.ran && worker.released && worker.owner.is_some_and(|owner| !self.clients[owner].closed);
            assert!(
                !(outlives && self.is_dedicated(worker.pool)) || self.refusing,
                "a client outlives its own worker: {:?}",
                worker.owner
            );
        }
        for worker in std::mem::take(&mut self.accused) {
            assert!(!self.workers[worker].takes, "requests of worker {worker} were given up, and it goes on");
        }
        for (at, worker) in self.workers.iter().enumerate() {
            let orphaned = worker.owner.is_some_and(|owner| self.clients[owner].closed);
            assert!(!orphaned || !worker.takes, "worker {at} outlives the client that it belongs to");
        }
        for worker in 0..self.workers.len() {
            for client in self.clients_of(worker) {
                self.workers[worker].used_at.insert(client, now);
            }
        }
        let idle = bus.stage() == Stage::Terminating && self.workers.iter().all(|worker| worker.released);
        assert!(!idle, "the shutdown waits for workers that are gone");
        let waits = self.clients.iter().any(|client| !client.closed);
        assert!(bus.stage() != Stage::Quiescing || waits, "the shutdown waits for nothing");
        let stats = bus.stats();
        assert!(self.cancelled.is_empty(), "nobody was told that these were cancelled: {:?}", self.cancelled);
        assert_eq!(stats.sessions, self.sessions.len(), "sessions: {:?}", self.sessions);
        let pending = self.to_workers.len() + self.to_clients.len();
        self.orphans_leave(now, pending.saturating_sub(stats.pending));
        self.check_early(bus.bytes_waiting());
        let pending = self.to_workers.len() + self.to_clients.len();
        assert_eq!(stats.pending, pending, "pending: {:?} {:?}", self.to_workers, self.to_clients);
        assert_eq!(stats.bytes_unsent, self.unsent, "bytes unsent");
        self.settle_doubts(bus);
        for reason in FORESEEN {
            assert_eq!(bus.count(reason), self.counts[reason as usize], "{}", reason.name());
        }
    }

    /// Finds for each line that was lost for one of several reasons one that the bus has counted.
    fn settle_doubts(&mut self, bus: &crate::bus::Bus) {
        let doubts = std::mem::take(&mut self.doubts);
        let left = |reason: Reason| bus.count(reason).saturating_sub(self.counts[reason as usize]) as usize;
        let mut chosen: Vec<Option<Reason>> = vec![None; doubts.len()];
        for at in 0..doubts.len() {
            // Whoever has a reason that is used up may take another one for it.
            let mut tried: Vec<Reason> = Vec::new();
            let mut ways = vec![(at, Vec::new())];
            while let Some((doubt, way)) = ways.pop() {
                let open = doubts[doubt]
                    .iter()
                    .copied()
                    .find(|reason| chosen.iter().flatten().filter(|chosen| *chosen == reason).count() < left(*reason));
                if open.is_some() {
                    chosen[doubt] = open;
                    way.into_iter().for_each(|(at, reason): (usize, Reason)| chosen[at] = Some(reason));
                    break;
                }
                for reason in doubts[doubt].iter().copied() {
                    if tried.contains(&reason) {
                        continue;
                    }
                    tried.push(reason);
                    for other in (0..chosen.len()).filter(|other| chosen[*other] == Some(reason)) {
                        let mut way = way.clone();
                        way.push((doubt, reason));
                        ways.push((other, way));
                    }
                }
            }
        }
        for (doubt, chosen) in doubts.iter().zip(chosen) {
            self.count(chosen.unwrap_or(doubt[0]));
        }
    }

    /// Whether nobody waits for anything.
    pub fn is_idle(&self) -> bool {
        self.to_workers.is_empty() && self.to_clients.is_empty() && self.outputs.values().all(|out| out.queued == 0)
    }

    /// What is still waited for, for people.
    pub fn outstanding(&self) -> String {
        let queued: Vec<_> = self.outputs.iter().filter(|(_, out)| out.queued > 0).map(|(who, _)| who).collect();
        format!("to workers {:?}\nto clients {:?}\nqueued for {queued:?}", self.to_workers, self.to_clients)
    }

    /// Nothing may be left at the end.
    pub fn check_end(&self) {
        assert!(self.sessions.is_empty() && self.to_workers.is_empty() && self.to_clients.is_empty());
    }
}

/// What was counted for an error that gives this reason. A request that is lost with a worker which was replaced is told so.
fn reason_of(told: &str) -> Reason {
    let found = Reason::ALL.iter().find(|reason| reason.told() == told);
    match found.expect("a reason has a name") {
        Reason::WorkerReplaced => Reason::RequestLost,
        reason => *reason,
    }
}

/// Whether this session of a client is called so on a worker.
fn is_it(at: &Session, client: usize, worker: usize, name: &str) -> bool {
    at.client == client && at.worker == worker && at.name == name
}

/// Whether a request in this session is pending.
fn is_in_use(to_workers: &[Request], to_clients: &[Request], serial: usize) -> bool {
    to_workers.iter().chain(to_clients).any(|request| request.sessions.contains(&serial))
}
