//! Predicts what happens to every line, with lists that are searched linearly and without the core's tables. The world
//! reports to the model what the bus received and did; the model panics if that is wrong.
//!
//! Where the bus has a choice (which worker gets a new session), the model knows the candidates and learns the choice
//! from the bus.

mod clients;
mod counts;
mod drain;
mod early_notifications;
mod fates;
mod floods;
mod health;
mod lines;
mod names;
mod outputs;
mod owners;
mod penalty;
mod queues;
mod requests;
mod retired;
mod sessions;
mod slots;
mod step;
mod timeouts;
mod trial;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::line::{Line, Party};
use crate::bus::overview::Questions;
use crate::bus::port::{Moment, Source};
use crate::bus::report::Reason;
use crate::bus::settings::{Assignment, Settings, Start};
use crate::bus::shutdown::Stage;
use counts::Counts;
use drain::Drain;
use floods::Flood;
use health::Health;
use names::Names;
use owners::Owners;
use penalty::Penalty;
use queues::Outputs;
use retired::Retired;
use slots::Slots;
use step::Step;
use trial::Trial;

/// For how long the bus may assume that clients share a worker.
pub const BELIEVED: Duration = Duration::from_millis(10);

/// Number of lost session names remembered per client.
const LOST_NAMES: usize = 64;

/// A client as the model sees it.
struct Client {
    /// The owner of the token it has shown.
    name: Option<&'static str>,
    source: Source,
    listener: usize,
    group: usize,
    /// Names of sessions that it lost with their workers, oldest first, and whether it has certainly not asked for them
    /// since.
    lost: Vec<(String, bool)>,
    penalty: Penalty,
    half_closed: bool,
    closed: bool,
    /// The error that its lines get while it is being closed.
    refused_for: Reason,
    gone: bool,
    /// The line that it waits to send.
    waits_with: Option<usize>,
    /// A worker of its own has ended before its first answer, and it has kept its connection.
    has_lost_worker: bool,
    /// When it began to wait.
    waits_since: Option<Moment>,
    /// How long it has waited with the line that it sends next.
    has_waited: Duration,
    assigned: Vec<(usize, usize)>,
    /// Questions that were given up, and that it may still answer.
    retired: Retired,
    /// Those were too many: every id of a question to it is replaced.
    fresh: bool,
}

/// A worker as the model sees it.
struct Worker {
    pool: usize,
    /// Messages may be given to it.
    takes: bool,
    /// From any client.
    serves: bool,
    /// It is not read for now.
    is_paused: bool,
    /// Clients that may stay on it, though it gets no new work.
    perhaps_of: BTreeSet<usize>,
    owner: Option<usize>,
    /// The client that it was started for, if it was for one.
    meant_for: Option<usize>,
    released: bool,
    /// It was started.
    ran: bool,
    /// It has answered a request that was waited for.
    has_answered: bool,
    /// A request to it was lost with it in this step.
    has_lost_request: bool,
    /// Its client has kept its connection.
    is_left: bool,
    /// Every id sent to it is replaced.
    fresh: bool,
    /// It has sent an answer that nothing waits for.
    answers_twice: bool,
    /// It has answered with a number for a string, or the other way around.
    misspells: bool,
    /// When each client used it last.
    used_at: BTreeMap<usize, Moment>,
    /// Requests that have left the table, and that it may still answer.
    retired: Retired,
    /// One of them asked for a session.
    may_create: bool,
    /// Clients whose lines it was given.
    served: BTreeSet<usize>,
    /// When somebody last waited for an answer of it, or had a session there.
    needed_at: Moment,
    /// Its pool has fallen asleep.
    is_dismissed: bool,
    /// Lines that wait for the session that they name.
    early: Vec<Early>,
    /// What it has written for nobody.
    flood: Flood,
    /// What shows that it is well.
    health: Health,
    /// Whether it is on trial.
    trial: Trial,
}

/// A line that waits for the session that it names.
struct Early {
    number: usize,
    bytes: usize,
    since: Moment,
    /// It may have been dropped before a client was closed.
    in_doubt: bool,
}

/// How certain it is that a session belongs to its client.
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
    /// It was named in a line that was refused, perhaps before the session was looked up.
    perhaps_used: Moment,
    /// The worker gave it out before, and its present owner has asked for it.
    was_issued: bool,
    /// The worker knows it already, but has not yet decided whether its present owner gets it.
    lent: bool,
    /// Its owner was the first to name it, when it asked the worker to load it.
    asked: bool,
    /// The worker has created it for its owner, or has loaded it when it was bound to no other name.
    given: bool,
}

/// A name whose owner has left: it is reserved.
#[derive(Debug)]
struct Held {
    worker: usize,
    name: String,
    /// The number of its former session, or a new one.
    serial: usize,
    /// The worker has given it out or loaded it: it is reserved for the worker's lifetime. Any other name is reserved
    /// until none of its requests is pending.
    is_issued: bool,
}

/// A request that waits for its answer.
#[derive(Debug)]
struct Request {
    line: usize,
    asker: Option<Party>,
    answerer: Party,
    /// When it was forwarded.
    sent: Moment,
    /// Its id for the answerer: the meaning of the id.
    wire: String,
    /// Its id for the asker: the token.
    token: String,
    /// The id was replaced.
    replaced: bool,
    /// Its progress token.
    progress: Option<Token>,
    sessions: Vec<usize>,
    expires: Option<Moment>,
    /// The same, if it had to wait before it was forwarded: the bus counts from when it has taken the line.
    expires_first: Option<Moment>,
    /// Signs of life about it, if its worker may not be silent for long.
    signs: Option<Signs>,
    /// When its client cancelled it, and whether that is reported when the slot is freed.
    cancelled: Option<(Moment, bool)>,
    /// It was given up, and its answerer was notified.
    given_up: bool,
    /// When its asker stopped waiting.
    orphaned: Option<Moment>,
}

/// Signs of life about a request.
#[derive(Debug)]
struct Signs {
    /// The limit when its worker was sent it.
    limit: Duration,
    /// When its worker has last said something about it.
    seen: Moment,
    /// The same, or when it has perhaps become the worker's turn.
    perhaps: Moment,
}

impl Request {
    /// A request without a session that does not expire.
    fn new(line: usize, asker: Party, answerer: Party) -> Self {
        Self {
            line,
            asker: Some(asker),
            answerer,
            sent: Moment(0),
            wire: String::new(),
            token: String::new(),
            replaced: false,
            progress: None,
            sessions: Vec::new(),
            expires: None,
            expires_first: None,
            signs: None,
            cancelled: None,
            given_up: false,
            orphaned: None,
        }
    }
}

/// A progress token.
#[derive(Debug)]
struct Token {
    /// The meaning that the answerer knows.
    wire: String,
    /// As the asker has written it.
    token: String,
    replaced: bool,
}

/// The possible outcomes of a line.
#[derive(Default, Debug)]
struct Fate {
    to: Vec<Party>,
    /// It may be dropped for one of these reasons.
    lost: Vec<Reason>,
    /// A worker was newly chosen, so the client stays on it where its group says so.
    group: Option<usize>,
}

impl Fate {
    fn lost(reason: Reason) -> Self {
        Self { lost: vec![reason], ..Self::default() }
    }

    fn to(party: Party) -> Self {
        Self { to: vec![party], ..Self::default() }
    }
}

/// The shadow of the bus.
pub struct Model {
    settings: Settings,
    /// Every line ever written.
    pub lines: Vec<Line>,
    clients: Vec<Client>,
    workers: Vec<Worker>,
    sessions: Vec<Session>,
    held: Vec<Held>,
    names: Names,
    /// Ids made by the bus, with their answerers.
    made: BTreeSet<(Party, u64)>,
    /// Who has used which name unchanged, by the answerer.
    owners: BTreeMap<Party, Owners>,
    to_workers: Vec<Request>,
    to_clients: Vec<Request>,
    /// When each line was first presented to the bus.
    presented: BTreeMap<usize, Moment>,
    outputs: Outputs,
    counts: Counts,
    step: Step,
    slots: Slots,
    drain: Drain,
    /// The pools that the operator has paused.
    paused: BTreeSet<usize>,
    /// The pools that have no workers until a line needs one.
    asleep: BTreeSet<usize>,
    /// The bus is informed that all workers hold more memory than they may.
    is_heavy: bool,
    /// Workers that were asked to end since it was last looked which pools are asleep.
    just_ended: BTreeSet<usize>,
}

impl Model {
    /// A model of a bus with these settings.
    pub fn new(settings: Settings) -> Self {
        let pools = settings.pools.iter().enumerate();
        Self {
            asleep: pools.filter(|(_, pool)| pool.start == Start::OnDemand).map(|(at, _)| at).collect(),
            is_heavy: false,
            just_ended: BTreeSet::new(),
            settings,
            lines: Vec::new(),
            clients: Vec::new(),
            workers: Vec::new(),
            sessions: Vec::new(),
            held: Vec::new(),
            names: Names::default(),
            made: BTreeSet::new(),
            owners: BTreeMap::new(),
            to_workers: Vec::new(),
            to_clients: Vec::new(),
            presented: BTreeMap::new(),
            outputs: Outputs::default(),
            counts: Counts::new(),
            step: Step::default(),
            slots: Slots::default(),
            drain: Drain::default(),
            paused: BTreeSet::new(),
        }
    }

    /// Workers are replaced from now on, or their pools changed.
    pub fn replaces(&mut self) {
        self.slots.replace();
    }

    /// The bus shuts down, and may advance this far in this step.
    pub fn shuts_down(&mut self, is_quiescing: bool, is_refusing: bool) {
        self.drain.comes(is_quiescing, is_refusing);
    }

    /// Whether the bus refuses all messages at the end of this step because it shuts down.
    pub fn is_refusing(&self) -> bool {
        self.drain.is_refusing()
    }

    /// Whether it did so when the step began.
    pub fn has_refused(&self) -> bool {
        self.drain.has_refused()
    }

    /// These settings hold from now on.
    pub fn reloaded(&mut self, now: Moment, settings: &Settings) {
        self.settings = settings.clone();
        for worker in &mut self.workers {
            worker.health.forget(now);
            worker.trial.is_in_doubt();
        }
        let serve: Vec<usize> = (0..self.workers.len()).filter(|at| self.workers[*at].serves).collect();
        serve.into_iter().for_each(|worker| self.may_be_kept(worker));
        for at in 0..self.clients.len() {
            let group = self.group_of_listener(self.clients[at].listener);
            let before = std::mem::replace(&mut self.clients[at].group, group);
            let mut assigned = std::mem::take(&mut self.clients[at].assigned);
            assigned.sort_by_key(|(of, _)| *of != before);
            // When two groups are merged, a worker assigned for an undelivered line may be the one that stays.
            let is_sure = before == group || assigned.iter().any(|(of, _)| *of == before);
            assigned.retain(|(of, worker)| is_sure || *of != group || self.is_own(at, *worker));
            for (of, worker) in assigned {
                let to = if of == before { group } else { of };
                let keeps = self.pools_of(to).1 == Assignment::Client || self.workers[worker].owner == Some(at);
                if keeps && self.clients[at].assigned.iter().all(|(of, _)| *of != to) {
                    self.clients[at].assigned.push((to, worker));
                }
            }
        }
    }

    fn count(&mut self, reason: Reason) {
        self.counts.count(reason);
    }

    /// Something was counted that the world observes itself.
    pub fn counted(&mut self, reason: Reason) {
        self.count(reason);
    }

    /// Compares the model with the bus, after each step.
    pub fn check(&mut self, now: Moment, bus: &crate::bus::Bus) {
        self.drain.has_come(bus.view().stage());
        self.outputs.end_for_all();
        self.counts.check_replies();
        self.step.end();
        for (client, reason) in self.step.take_dropped() {
            let has_cause = match reason {
                Reason::MemoryLimit => true,
                Reason::ListenerRemoved => self.settings.listeners[self.clients[client].listener].is_gone,
                _ => self.lost_its_worker(client),
            };
            let closed = self.clients[client].closed && has_cause;
            assert!(closed, "requests of client {client} are given up, and it continues");
        }
        for worker in 0..self.workers.len() {
            let worker = &self.workers[worker];
            // A worker that could not be started has negotiated nothing.
            let outlives = worker.ran
                && worker.released
                && !worker.is_left
                && worker.owner.is_some_and(|owner| !self.clients[owner].closed);
            assert!(
                !(outlives && self.is_dedicated(worker.pool)) || self.drain.is_refusing(),
                "a client outlives its own worker: {:?}",
                worker.owner
            );
        }
        self.workers.iter_mut().for_each(|worker| worker.has_lost_request = false);
        for worker in self.step.take_timed_out() {
            assert!(!self.workers[worker].takes, "requests of worker {worker} were given up, and it continues");
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
        self.note_needed(now);
        let idle = bus.view().stage() == Stage::Terminating && self.workers.iter().all(|worker| worker.released);
        assert!(!idle, "the shutdown waits for workers that are gone");
        let waits = self.clients.iter().any(|client| !client.closed);
        assert!(bus.view().stage() != Stage::Quiescing || waits, "the shutdown waits for nothing");
        let stats = bus.view().stats();
        self.step.check_cancelled();
        assert_eq!(stats.sessions, self.sessions.len(), "sessions: {:?}", self.sessions);
        let pending = self.to_workers.len() + self.to_clients.len();
        let rows = || {
            (0..bus.view().request_slots()).filter_map(|slot| bus.view().request_row(now, slot, &Questions::default()))
        };
        let is_called = |token: &str| rows().filter(|row| row.id == token).count();
        self.orphans_leave(now, pending.saturating_sub(stats.pending), is_called);
        self.check_early(bus.view().bytes_waiting());
        let pending = self.to_workers.len() + self.to_clients.len();
        assert_eq!(stats.pending, pending, "pending: {:?} {:?}", self.to_workers, self.to_clients);
        assert_eq!(stats.bytes_unsent, self.outputs.unsent(), "bytes unsent");
        self.counts.check_counts(bus);
    }

    /// Whether no peer waits for anything.
    pub fn is_idle(&self) -> bool {
        self.to_workers.is_empty() && self.to_clients.is_empty() && self.outputs.waiting().is_empty()
    }

    /// What is still awaited, for people.
    pub fn outstanding(&self) -> String {
        let queued = self.outputs.waiting();
        format!("to workers {:?}\nto clients {:?}\nqueued for {queued:?}", self.to_workers, self.to_clients)
    }

    /// At the end nothing may be left.
    pub fn check_end(&self) {
        assert!(self.sessions.is_empty() && self.to_workers.is_empty() && self.to_clients.is_empty());
    }
}

/// The reason counted for an error with this text. A request lost with a replaced worker has its own.
fn reason_of(name: &str) -> Reason {
    let found = Reason::ALL.iter().find(|reason| reason.error_name() == name);
    match found.expect("a reason has a name") {
        Reason::WorkerReplaced => Reason::RequestLost,
        reason => *reason,
    }
}

/// Whether this is the session that a client calls `name` on a worker.
fn is_it(at: &Session, client: usize, worker: usize, name: &str) -> bool {
    at.client == client && at.worker == worker && at.name == name
}

/// Whether a request in this session is pending.
fn is_in_use(to_workers: &[Request], to_clients: &[Request], serial: usize) -> bool {
    to_workers.iter().chain(to_clients).any(|request| request.sessions.contains(&serial))
}
