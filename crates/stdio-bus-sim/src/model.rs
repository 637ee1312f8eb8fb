//! What must become of every line: lists, searched from the front, that know nothing of the tables of the core. The
//! world tells the model what the bus was given and what it did; the model panics when that is wrong.
//!
//! Where the bus has a choice (which worker takes a new session), the model knows who may be chosen and learns from
//! the bus who was.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::line::{Ids, Kind, Line, MADE, Who, is_cancellation, is_plain, meaning, own_id_of, value_of};
use crate::bus::overview::Role;
use crate::bus::port::{Close, Moment, Source};
use crate::bus::report::Reason;
use crate::bus::settings::{
    Assignment, IdCollision, MAX_REQUEST_ID_LEN, MAX_SESSION_ID_LEN, Pool, SessionAccess, Settings,
};
use crate::bus::shutdown::Stage;

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

/// How long a request that nobody waits for, or that its client has cancelled, keeps its slot.
const SLOT_KEPT: Duration = Duration::from_secs(5);

/// It keeps it a little longer, so that several go together.
const SLOT_ROUND: Duration = Duration::from_millis(100);

/// For how long it may be believed that clients share a worker.
pub const BELIEVED: Duration = Duration::from_millis(10);

/// A claim that is not used for so long is forgotten.
const CLAIM_KEPT: Duration = Duration::from_secs(60);

/// Lines that wait for the session that they name, of one worker, their bytes, and for how long.
const EARLY_LINES: usize = 64;
const EARLY_BYTES: usize = 1 << 20;
const EARLY_WAITS: Duration = Duration::from_secs(60);

/// Names of lost sessions that are remembered for each client.
const LOST_NAMES: usize = 64;

/// A client is read with pauses after so many crashes of its workers in a row.
const SUSPECT_AFTER: usize = 3;
/// The first pause; each one is twice as long as the one before, up to the longest.
const PENALTY: Duration = Duration::from_secs(1);
const LONGEST_PENALTY: Duration = Duration::from_secs(30);

/// A client that has cancelled nothing is not read for so long; twice as long the next time, up to the longest, unless
/// that is so long ago. Pauses end together.
const REST: Duration = Duration::from_millis(1);
const LONGEST_REST: Duration = Duration::from_millis(32);
const REFUSALS_COUNT_FOR: Duration = Duration::from_secs(1);
const REST_ROUND: u64 = 4_000_000;

/// So many ids are remembered of what a worker may answer although it has left the table.
const RETIRED: usize = 1024;

/// A client waits for a worker of its own for so long.
const TURN_AWAITED: Duration = Duration::from_secs(30);

/// A source whose clients leave early gets the next worker so long after the last one.
const PACE: Duration = Duration::from_millis(50);

/// No worker is started again sooner than this.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);

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
    /// Workers that exited in a row while it waited for them.
    crashes: usize,
    /// It is not read before this moment.
    slowed_until: Option<Moment>,
    /// Its cancellations in a row that went nowhere, and when the last one came.
    refusals: usize,
    refused_at: Moment,
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
    /// The ids of requests that have left the table, and that it may answer still.
    retired: Vec<String>,
    /// Tokens that the progress of such requests may be told under, if those are not their ids.
    retired_tokens: Vec<String>,
    /// How many there are that were too many to be remembered.
    more_retired: usize,
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

    /// A client has connected, with the token of `name` if it has one.
    pub fn connected(&mut self, listener: usize, source: Source, name: Option<&'static str>) {
        self.clients.push(Client {
            name,
            source,
            listener,
            group: self.group_of_listener(listener),
            lost: Vec::new(),
            crashes: 0,
            slowed_until: None,
            refusals: 0,
            refused_at: Moment::default(),
            half_closed: false,
            closed: false,
            refused_for: Reason::ConnectionClosing,
            gone: false,
            waits_with: None,
            waits_since: None,
            has_waited: Duration::ZERO,
            assigned: Vec::new(),
        });
    }

    /// The pools that clients of a listener may use.
    fn offered(&self, listener: usize) -> Vec<usize> {
        let all = || (0..self.settings.pools.len()).filter(|pool| !self.settings.pools[*pool].is_gone);
        self.settings.listeners[listener].pools.clone().unwrap_or_else(|| all().collect())
    }

    fn group_of_listener(&self, at: usize) -> usize {
        let listener = &self.settings.listeners[at];
        let offered = self.offered(at);
        let shared: Vec<usize> = offered.iter().copied().filter(|pool| !self.is_dedicated(*pool)).collect();
        match (listener.pool, &shared[..], &listener.pools) {
            // Where one pool alone is left to choose, it is all the same whether it is named.
            (Some(pool), ..) | (None, &[pool], _) => pool,
            (None, [], _) => offered[0],
            (None, _, None) => self.settings.pools.len(),
            (None, _, Some(_)) => self.settings.pools.len() + 1 + at,
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

    /// What a worker is there for: whether it may get what any worker of its pool may do.
    pub fn has_role(&mut self, worker: usize, role: Role) {
        let did = std::mem::replace(&mut self.workers[worker].serves, role == Role::Serves);
        if did && role == Role::Leaves {
            self.may_be_kept(worker);
        }
    }

    /// Clients may have got a worker for lines that were not delivered, and keep to it.
    fn may_be_kept(&mut self, worker: usize) {
        let may_have = (0..self.clients.len()).filter(|client| !self.clients[*client].closed);
        self.workers[worker].perhaps_of.extend(may_have);
    }

    fn is_dedicated(&self, pool: usize) -> bool {
        self.settings.pools[pool].assignment == Assignment::Dedicated
    }

    /// A worker is being started.
    pub fn started(&mut self, now: Moment, pool: usize) {
        let Pool { instances, assignment, .. } = self.settings.pools[pool];
        let before = self.workers.iter().filter(|worker| worker.pool == pool).count();
        if before >= instances && assignment != Assignment::Dedicated && !self.replaces {
            let seat = self.vacant.iter().position(|(of, since)| *of == pool && now.since(*since) >= FIRST_BACKOFF);
            self.vacant.remove(seat.expect("a seat is vacant for as long as the first backoff"));
        }
        self.workers.push(Worker {
            pool,
            takes: true,
            serves: true,
            perhaps_of: BTreeSet::new(),
            owner: None,
            released: false,
            ran: false,
            fresh: false,
            answers_twice: false,
            used_at: BTreeMap::new(),
            retired: Vec::new(),
            retired_tokens: Vec::new(),
            more_retired: 0,
            may_create: false,
            served: BTreeSet::new(),
            early: Vec::new(),
        });
        let live = self.workers.iter().filter(|worker| worker.pool == pool && !worker.released).count();
        let most = self.settings.pools[pool].max_instances;
        assert!(live <= most || self.replaces, "pool {pool} has {live} workers");
        assert!(!self.refused, "a worker is started during the drain");
    }

    /// A worker was started.
    pub fn runs(&mut self, worker: usize) {
        self.workers[worker].ran = true;
    }

    /// How many seats are empty that should not be.
    pub fn seats_empty(&self) -> usize {
        let empty = self.settings.pools.iter().enumerate().map(|(pool, settings)| {
            let live = self.workers.iter().filter(|worker| worker.pool == pool && !worker.released && worker.serves);
            let (owned, spare): (Vec<_>, Vec<_>) = live.partition(|worker| worker.owner.is_some());
            let instances = if settings.is_gone { 0 } else { settings.instances };
            instances.min(settings.max_instances.saturating_sub(owned.len())).saturating_sub(spare.len())
        });
        empty.sum()
    }

    /// Nothing may be sent to this worker any more.
    pub fn stops(&mut self, worker: usize) {
        self.workers[worker].takes = false;
    }

    /// A worker is heard no more: nobody has to answer what it has asked.
    pub fn unasks(&mut self, worker: usize) {
        for request in self.to_clients.iter_mut().filter(|request| request.asker == Some(Who::Worker(worker))) {
            request.asker = None;
        }
    }

    /// Whether the worker may be given messages.
    pub fn takes(&self, worker: usize) -> bool {
        self.workers[worker].takes
    }

    /// A client has got a worker of its own, by one of the lines `numbers` that was not delivered.
    pub fn claimed(&mut self, now: Moment, client: usize, worker: usize, numbers: &[usize]) {
        if self.workers[worker].owner.is_some() {
            return;
        }
        let asks = |line: &&Line| matches!(line.kind, Kind::Request | Kind::Notification) && line.targets().is_empty();
        let lines = numbers.iter().map(|number| &self.lines[*number]).filter(asks);
        let groups = lines.filter_map(|line| self.group_of(client, line));
        let is_it = |group: &usize| {
            let (pools, assignment) = self.pools_of(*group);
            let has = self.clients[client].assigned.iter().any(|(of, has)| of == group && self.workers[*has].takes);
            assignment == Assignment::Dedicated && pools.contains(&self.workers[worker].pool) && !has
        };
        let group = groups.into_iter().find(is_it).expect("a client gets a worker of its own for a line");
        self.workers[worker].owner = Some(client);
        self.counts_turn(now, client);
        self.clients[client].assigned.retain(|(of, _)| *of != group);
        self.clients[client].assigned.push((group, worker));
    }

    /// A client has got a worker of its own, or leaves: its source may get the next one some time later.
    pub fn counts_turn(&mut self, now: Moment, client: usize) {
        let source = self.clients[client].source;
        self.turns.retain(|(of, _)| *of != source);
        self.turns.push((source, now));
    }

    /// Whether a client that cannot wait for its turn may be refused a worker, though there is one.
    fn is_paced(&self, now: Moment, client: usize, line: &Line) -> bool {
        let Client { source, .. } = self.clients[client];
        self.quiescing
            && self.awaits_turn(client, line)
            && self.turns.iter().any(|(of, last)| *of == source && now.since(*last) < PACE)
    }

    /// A client has ended its input.
    pub fn half_closed(&mut self, now: Moment, client: usize) {
        self.counts_turn(now, client);
        self.clients[client].half_closed = true;
    }

    fn count(&mut self, reason: Reason) {
        self.counts[reason as usize] += 1;
    }

    /// Something was counted that the world sees by itself.
    pub fn counted(&mut self, reason: Reason) {
        self.count(reason);
    }

    /// Bytes have left for a peer.
    pub fn left(&mut self, now: Moment, who: Who, bytes: usize) {
        let limit = self.settings.limits.max_output_queue;
        let output = self.outputs.entry(who).or_default();
        output.queued -= bytes;
        output.left += bytes as u64;
        output.moved_at = now;
        if output.queued < limit / 2 {
            output.full = false;
        }
    }

    fn queued(&mut self, now: Moment, who: Who, bytes: usize) {
        let limit = self.settings.limits.max_output_queue;
        let output = self.outputs.entry(who).or_default();
        output.queued += bytes;
        if output.queued > limit && !output.full {
            output.full = true;
            output.moved_at = now;
        }
    }

    /// Whether more is queued for this peer than it may be.
    pub fn is_full(&self, who: Who) -> bool {
        self.outputs.get(&who).is_some_and(|output| output.full)
    }

    /// Whether anybody's output is full, so that somebody may be paused.
    pub fn somebody_is_full(&self) -> bool {
        self.outputs.iter().any(|(who, output)| output.full && (self.is_there(*who) || self.is_leaving(*who)))
    }

    /// Whether it is a client that may still be refused what it sends.
    fn is_leaving(&self, who: Who) -> bool {
        matches!(who, Who::Client(client) if !self.clients[client].gone)
    }

    fn is_there(&self, who: Who) -> bool {
        match who {
            Who::Client(client) => !self.clients[client].closed,
            Who::Worker(worker) => self.workers[worker].takes,
        }
    }

    fn pools_of(&self, group: usize) -> (Vec<usize>, Assignment) {
        let pools = &self.settings.pools;
        if group < pools.len() {
            return (vec![group], pools[group].assignment);
        }
        let of_listener = group.checked_sub(pools.len() + 1).and_then(|at| self.settings.listeners[at].pools.clone());
        let is_there = |pool: &usize| !pools[*pool].is_gone;
        let all = of_listener.unwrap_or_else(|| (0..pools.len()).filter(is_there).collect());
        let is_shared = |pool: &usize| pools[*pool].assignment != Assignment::Dedicated;
        let shared: Vec<usize> = all.iter().copied().filter(is_shared).collect();
        if shared.is_empty() {
            return (vec![all[0]], Assignment::Dedicated);
        }
        let sticky = shared.iter().any(|pool| pools[*pool].assignment == Assignment::Client);
        (shared, if sticky { Assignment::Client } else { Assignment::RoundRobin })
    }

    /// Who may take a message of `client` that belongs to no session.
    fn anybody(&self, client: usize, group: usize) -> Fate {
        let (pools, assignment) = self.pools_of(group);
        if let Some((_, worker)) = self.clients[client].assigned.iter().find(|(of, _)| *of == group) {
            let is_its_own = self.is_own(client, *worker);
            if (is_its_own || assignment == Assignment::Client) && self.workers[*worker].takes {
                return Fate { group: Some(group), ..Fate::to(Who::Worker(*worker)) };
            }
            if is_its_own {
                return Fate::lost(Reason::RequestLost);
            }
        }
        let serves = |at: &Worker| at.serves && pools.contains(&at.pool);
        let may_keep = |worker: &Worker| assignment == Assignment::Client && worker.perhaps_of.contains(&client);
        let free = |worker: &Worker| worker.takes && worker.owner.is_none() && (serves(worker) || may_keep(worker));
        let to: Vec<Who> =
            self.workers.iter().enumerate().filter(|(_, worker)| free(worker)).map(|(at, _)| Who::Worker(at)).collect();
        let taken = self.perhaps_taken.iter().any(|pool| pools.contains(pool));
        let may_lack =
            assignment == Assignment::Dedicated && (taken || self.clients[client].has_waited >= TURN_AWAITED);
        let any_serves = |to: &Who| matches!(to, Who::Worker(worker) if serves(&self.workers[*worker]));
        let lost = if may_lack || !to.iter().any(any_serves) { vec![Reason::NoWorker] } else { Vec::new() };
        Fate { to, lost, group: Some(group) }
    }

    /// Whether the client of this worker is closed when it has ended.
    fn ends_its_client(&self, worker: usize) -> bool {
        self.is_dedicated(self.workers[worker].pool)
    }

    /// Whether a worker is a client's own.
    pub fn is_own(&self, client: usize, worker: usize) -> bool {
        self.workers[worker].owner == Some(client)
    }

    /// Whether a client is closed since a worker of its own has ended, or is about to.
    pub fn lost_its_worker(&self, client: usize) -> bool {
        let own =
            |(at, worker): (usize, &Worker)| worker.owner == Some(client) && !worker.takes && self.ends_its_client(at);
        self.workers.iter().enumerate().any(own)
    }

    fn usable(&self, workers: impl Iterator<Item = usize>) -> Fate {
        let mut fate = Fate::default();
        for worker in workers {
            if self.workers[worker].takes {
                fate.to.push(Who::Worker(worker));
            } else {
                fate.lost.push(Reason::RequestLost);
            }
        }
        fate
    }

    fn fate_of_client_line(&self, client: usize, line: &Line) -> Fate {
        let me = Who::Client(client);
        if line.kind == Kind::Response {
            let id = line.id.as_deref().map(meaning).unwrap_or_default();
            return match self.to_clients.iter().find(|request| request.answerer == me && request.wire == id) {
                None => Fate::lost(Reason::UnknownId),
                Some(Request { asker: Some(Who::Worker(worker)), .. }) if self.workers[*worker].takes => {
                    Fate::to(Who::Worker(*worker))
                }
                Some(_) => Fate::lost(Reason::LateAnswer),
            };
        }
        if self.clients[client].closed {
            return Fate::lost(self.clients[client].refused_for);
        }
        if self.refusing || self.quiescing && line.kind == Kind::Request {
            return Fate::lost(Reason::ShuttingDown);
        }
        if line.id.as_deref().is_some_and(|id| meaning(id).len() > MAX_REQUEST_ID_LEN + 2) {
            return Fate::lost(Reason::IdTooLong);
        }
        let mut fate = if !line.targets().is_empty() {
            self.fate_of_cancellation(client, line)
        } else if line.progress.is_some() {
            match self.told_for(&self.to_clients, me, line).and_then(|request| request.asker) {
                Some(Who::Worker(worker)) if self.workers[worker].takes => Fate::to(Who::Worker(worker)),
                _ => Fate::lost(Reason::UnknownRequest),
            }
        } else if let Some(name) = line.way() {
            self.fate_in_session(client, line, name)
        } else {
            match self.group_of(client, line) {
                Some(group) => self.anybody(client, group),
                None => Fate::lost(Reason::UnknownPool),
            }
        };
        fate = self.keep(fate, Reason::SessionDenied, |worker| {
            self.may_use(client, line, worker) && !self.is_bound(client, line, worker)
        });
        fate = self.keep(fate, Reason::MethodDenied, |worker| {
            let denied = &self.settings.pools[self.workers[worker].pool].deny_methods;
            denied.iter().all(|method| method != line.method)
        });
        let denies = |pool: &usize| self.settings.pools[*pool].deny_methods.iter().any(|method| method == line.method);
        // The worker that a client has kept from before a reload may be of another pool than its group.
        if fate.group.is_some_and(|group| self.pools_of(group).0.iter().all(denies)) {
            fate.lost.push(Reason::MethodDenied);
        }
        // Which of several faults is told is all the same.
        if !line.names().is_empty() && !fate.lost.is_empty() {
            fate.lost.push(Reason::SessionDenied);
        }
        let denied = |pool: &Pool| pool.deny_methods.iter().any(|method| method == line.method);
        if !fate.lost.is_empty() && self.settings.pools.iter().any(denied) {
            fate.lost.push(Reason::MethodDenied);
        }
        if line.targets().is_empty() && line.request_id.is_some() {
            fate = self.keep(fate, Reason::UnknownRequest, |worker| self.may_mean(client, line, worker));
        }
        fate
    }

    /// Leaves only those workers in the fate of a line that `may` get it.
    fn keep(&self, mut fate: Fate, reason: Reason, may: impl Fn(usize) -> bool) -> Fate {
        let before = fate.to.len();
        fate.to.retain(|to| matches!(to, Who::Worker(worker) if may(*worker)));
        if fate.to.len() < before {
            fate.lost.push(reason);
        }
        fate
    }

    /// A cancellation goes to the worker that has the request, if that is the sender's own.
    fn fate_of_cancellation(&self, client: usize, line: &Line) -> Fate {
        let mut fate = Fate::default();
        for request in self.targets(client, line) {
            match request.answerer {
                Who::Worker(worker) if self.workers[worker].takes => fate.to.push(request.answerer),
                _ => fate.lost.extend([Reason::UnknownRequest, Reason::RequestLost]),
            }
        }
        if fate.to.is_empty() && fate.lost.is_empty() {
            fate.lost.push(Reason::UnknownRequest);
        }
        // What else is wrong with it may be told in place of that.
        if line.names().iter().any(|name| name.len() > MAX_SESSION_ID_LEN) {
            fate.lost.push(Reason::SessionIdTooLong);
        }
        if !line.names().is_empty() && fate.to.is_empty() {
            fate.lost.push(Reason::SessionDenied);
        }
        if self.group_of(client, line).is_none() {
            fate.lost.push(Reason::UnknownPool);
        }
        fate
    }

    /// The requests of its sender that a cancellation means.
    fn targets(&self, client: usize, line: &Line) -> Vec<&Request> {
        let meant: Vec<String> = line.targets().into_iter().map(|token| meaning(token)).collect();
        let is_meant = |request: &&Request| {
            let id = meaning(&request.token);
            request.asker == Some(Who::Client(client)) && meant.iter().all(|meant| *meant == id)
        };
        self.to_workers.iter().filter(is_meant).collect()
    }

    /// Whether the sessions that a line names may be named to this worker.
    fn may_use(&self, client: usize, line: &Line, worker: usize) -> bool {
        let shared = self.settings.routing.session_access == SessionAccess::Shared;
        if shared || self.workers[worker].owner == Some(client) {
            return true;
        }
        let on_worker = |name: &String| self.sessions.iter().find(|at| at.worker == worker && at.name == *name);
        let is_held = |name: &String| self.held.iter().any(|held| held.worker == worker && held.name == *name);
        let is_mine = |name: &String| on_worker(name).is_some_and(|at| at.client == client);
        let cancels = !line.targets().is_empty();
        // What is loaded stands in params, if something stands there.
        let may_load = |name: &String| line.loads() && (line.names().len() < 2 || line.inner.as_ref() == Some(name));
        let is_free = |name: &String| on_worker(name).is_none() && (may_load(name) || !is_held(name));
        let issues = self.issues(worker) && !line.loads();
        // Nothing else may be asked in a session before the worker has said who gets it.
        let waits = |at: &Session| (at.lent || at.asked) && at.rank < Rank::Issued && !line.loads() && !cancels;
        if line.names().iter().any(|name| on_worker(name).is_some_and(waits)) {
            return false;
        }
        // Who only claimed a name may be waiting for the worker to give it to somebody else.
        let is_given = |name: &String| is_mine(name) && on_worker(name).is_some_and(|at| at.rank == Rank::Issued);
        line.names().iter().all(|name| is_mine(name) || is_free(name))
            && line.inner.as_ref().is_none_or(|name| is_given(name) || !issues || cancels && is_mine(name))
    }

    /// Whether a line names a session that was made under another name than that of its client. What the worker has made
    /// for the client is its own, but not to be loaded. A cancellation names its request.
    fn is_bound(&self, client: usize, line: &Line, worker: usize) -> bool {
        let is_given =
            |name: &String| self.sessions.iter().any(|at| is_it(at, client, worker, name) && at.given && !line.loads());
        let is_bound = |name: &&String| self.is_bound_to_another(client, worker, name) && !is_given(name);
        let shared = self.settings.routing.session_access == SessionAccess::Shared;
        !shared && line.targets().is_empty() && line.names().iter().any(is_bound)
    }

    /// Whether a session was made under another name than that of this client.
    fn is_bound_to_another(&self, client: usize, worker: usize, session: &str) -> bool {
        let bond = self.bonds.get(&(self.workers[worker].pool, session.into()));
        bond.is_some_and(|bond| Some(*bond) != self.clients[client].name)
    }

    /// A client was given a session: it is loaded under no other name.
    fn bind(&mut self, client: usize, worker: usize, session: &str) {
        if let Some(name) = self.clients[client].name {
            self.bonds.entry((self.workers[worker].pool, session.into())).or_insert(name);
        }
    }

    /// Whether a worker gives out names, as far as others of its pool tell, or may be just doing so: then a client may
    /// name in params only what it was given. The worker of one client alone may do as it likes.
    fn issues(&self, worker: usize) -> bool {
        let pool = self.workers[worker].pool;
        let shared = self.settings.pools[pool].assignment != Assignment::Dedicated;
        shared && (self.issuing.contains(&pool) || self.creates(worker))
    }

    /// Whether a worker may be making a session: a request for one is pending, or was given up before it was answered.
    fn creates(&self, worker: usize) -> bool {
        let creates = |request: &Request| request.answerer == Who::Worker(worker) && self.lines[request.line].creates();
        self.workers[worker].may_create || self.to_workers.iter().any(creates)
    }

    /// Whether the request that a line is about may be named to this worker: it must not be somebody else's.
    fn may_mean(&self, client: usize, line: &Line, worker: usize) -> bool {
        let Some(token) = &line.request_id else { return true };
        let mine = self.named(&self.to_workers, Who::Client(client), line);
        let taken = |at: &Request| at.answerer == Who::Worker(worker) && at.wire == meaning(token);
        mine.iter().any(|request| request.answerer == Who::Worker(worker))
            || is_plain(token) && meaning(token).len() <= MAX_REQUEST_ID_LEN + 2 && !self.to_workers.iter().any(taken)
    }

    /// Adds to the fate of a line that it may name a session that its client lost with its worker.
    fn may_be_lost(&self, client: usize, line: &Line, fate: &mut Fate) {
        let has = |name: &String| self.sessions.iter().any(|at| at.client == client && at.name == *name);
        for (lost, sure) in self.clients[client].lost.iter().filter(|(lost, _)| line.names().contains(&lost)) {
            if !line.loads() {
                fate.lost.push(Reason::SessionLost);
                if *sure && !has(lost) {
                    fate.to.clear();
                }
            }
        }
    }

    fn group_of(&self, client: usize, line: &Line) -> Option<usize> {
        let Some(name) = &line.pool else { return Some(self.clients[client].group) };
        let pool = self.settings.pools.iter().position(|pool| pool.id == *name)?;
        self.may_name(client, pool).then_some(pool)
    }

    /// Whether messages of a client may name a pool.
    fn may_name(&self, client: usize, pool: usize) -> bool {
        let offered = &self.settings.listeners[self.clients[client].listener].pools;
        !self.settings.pools[pool].is_gone && offered.as_ref().is_none_or(|pools| pools.contains(&pool))
    }

    fn fate_in_session(&self, client: usize, line: &Line, name: &str) -> Fate {
        if name.len() > MAX_SESSION_ID_LEN {
            return Fate { lost: vec![Reason::SessionIdTooLong, Reason::SessionDenied], ..Fate::default() };
        }
        let mut fate = self.fate_of_name(client, line, name);
        if line.inner.as_ref().is_some_and(|inner| inner.len() > MAX_SESSION_ID_LEN) {
            fate.to.clear();
            fate.lost.extend([Reason::SessionIdTooLong, Reason::SessionDenied]);
        }
        self.may_be_lost(client, line, &mut fate);
        fate
    }

    fn fate_of_name(&self, client: usize, line: &Line, name: &str) -> Fate {
        let mine = self.sessions.iter().filter(|session| session.client == client && session.name == name);
        let mine: Vec<usize> = mine.map(|session| session.worker).collect();
        if line.pool.is_none() && !mine.is_empty() {
            return self.usable(mine.into_iter());
        }
        let Some(group) = self.group_of(client, line) else { return Fate::lost(Reason::UnknownPool) };
        let (pools, assignment) = self.pools_of(group);
        if assignment == Assignment::Dedicated {
            return self.anybody(client, group);
        }
        let within = |worker: &usize| pools.contains(&self.workers[*worker].pool);
        let mine: Vec<usize> = mine.into_iter().filter(within).collect();
        if !mine.is_empty() {
            return self.usable(mine.into_iter());
        }
        let theirs = self.sessions.iter().filter(|session| session.name == name).map(|session| session.worker);
        let theirs: Vec<usize> = theirs.filter(within).collect();
        let held = self.held.iter().filter(|held| held.name == name).map(|held| held.worker);
        let held: Vec<usize> = held.filter(within).collect();
        let shared = self.settings.routing.session_access == SessionAccess::Shared;
        match (theirs.is_empty(), held.is_empty()) {
            (true, true) => match (&line.pool, self.worker_of_inner(client, line)) {
                // A new name at top level joins the session that it comes with.
                (None, Some(worker)) => self.usable(std::iter::once(worker)),
                _ => self.anybody(client, group),
            },
            (false, _) if shared => self.usable(theirs.into_iter()),
            (true, false) if shared || line.loads() => self.usable(held.into_iter()),
            _ => Fate::lost(Reason::SessionDenied),
        }
    }

    /// The worker of the session that a line names in its params, if that is its sender's.
    fn worker_of_inner(&self, client: usize, line: &Line) -> Option<usize> {
        let inner = line.top.as_ref().and(line.inner.as_ref())?;
        self.sessions.iter().find(|at| at.client == client && at.name == *inner).map(|session| session.worker)
    }

    /// The requests of `asker` that a line's requestId means.
    fn named<'a>(&self, requests: &'a [Request], asker: Who, line: &Line) -> Vec<&'a Request> {
        let Some(id) = line.request_id.as_deref().map(meaning) else { return Vec::new() };
        let is_named = |request: &&Request| request.asker == Some(asker) && meaning(&request.token) == id;
        requests.iter().filter(is_named).collect()
    }

    /// The request that something is told for, among those that its sender has to answer.
    fn told_for<'a>(&self, requests: &'a [Request], from: Who, line: &Line) -> Option<&'a Request> {
        let (progress, subscription) =
            (line.progress.as_deref().map(meaning), line.subscription.as_deref().map(meaning));
        let is_it = |request: &&Request| {
            let token = request.progress.as_ref().map(|token| &token.wire);
            request.answerer == from
                && (progress.is_some() && progress.as_ref() == token || subscription.as_ref() == Some(&request.wire))
        };
        requests.iter().find(is_it)
    }

    fn fate_of_worker_line(&self, worker: usize, line: &Line) -> Fate {
        let me = Who::Worker(worker);
        if line.kind == Kind::Response {
            let id = line.id.as_deref().map(meaning).unwrap_or_default();
            return match self.to_workers.iter().find(|request| request.answerer == me && request.wire == id) {
                None if self.may_be_late(worker, line) => Fate::lost(Reason::LateAnswer),
                None => Fate::lost(Reason::UnknownId),
                Some(Request { asker: Some(asker), .. }) => Fate::to(*asker),
                Some(_) => Fate::lost(Reason::LateAnswer),
            };
        }
        if line.id.as_deref().is_some_and(|id| meaning(id).len() > MAX_REQUEST_ID_LEN + 2) {
            return Fate::lost(Reason::IdTooLong);
        }
        let owner = self.workers[worker].owner;
        let target = if let Some(name) = line.way() {
            let session = self.sessions.iter().find(|session| session.worker == worker && session.name == *name);
            let session = session.filter(|session| !self.may_be_anothers(session));
            session.map(|session| session.client).or(owner).ok_or(Reason::UnknownSession)
        } else if line.progress.is_some() || line.subscription.is_some() {
            match self.told_for(&self.to_workers, me, line).and_then(|request| request.asker) {
                Some(Who::Client(client)) => Ok(client),
                _ => owner.filter(|_| names_itself(line)).ok_or(Reason::UnknownRequest),
            }
        } else if line.request_id.is_some() {
            let about = self.request_meant_by(worker, line);
            let client = about.and_then(|request| match line.kind {
                Kind::Notification => Some(request.answerer),
                _ => request.asker,
            });
            match client {
                Some(Who::Client(client)) => Ok(client),
                _ => self.only_client(worker).ok_or(Reason::UnknownRequest),
            }
        } else {
            let all = self.told_all(worker, line);
            if !all.is_empty() {
                return Fate { to: all.into_iter().map(Who::Client).collect(), ..Fate::default() };
            }
            self.only_client(worker).ok_or(Reason::Unroutable)
        };
        match target {
            Err(reason) => Fate::lost(reason),
            // It cannot answer any more.
            Ok(client) if self.clients[client].half_closed && line.kind == Kind::Request => {
                Fate::lost(Reason::UnknownSession)
            }
            Ok(client) if self.clients[client].closed => Fate::lost(Reason::UnknownSession),
            Ok(client) if self.names_anothers(worker, line, client) => Fate::lost(Reason::UnknownRequest),
            Ok(client) => Fate::to(Who::Client(client)),
        }
    }

    /// Whom a line of a worker that names nobody is for, if that is everybody.
    fn told_all(&self, worker: usize, line: &Line) -> BTreeSet<usize> {
        let Worker { owner, served, .. } = &self.workers[worker];
        if line.list().is_none() || owner.is_some() || served.len() < 2 {
            return BTreeSet::new();
        }
        served.iter().copied().filter(|client| !self.clients[*client].closed).collect()
    }

    /// Who has to get a line that is for everybody: whoever has read the one before it.
    fn begins_for_all(&mut self, number: usize) {
        if self.for_all.as_ref().is_some_and(|(of, _)| *of == number) {
            return;
        }
        self.ends_for_all();
        let line = &self.lines[number];
        let (Who::Worker(worker), Some(list)) = (line.from, line.list()) else { return };
        let left = |client: usize| self.outputs.get(&Who::Client(client)).map_or(0, |output| output.left);
        let is_due = |client: &usize| self.lists_told.get(&(*client, list)).is_none_or(|told| *told <= left(*client));
        let due = self.told_all(worker, line).into_iter().filter(is_due).collect();
        self.for_all = Some((number, due));
    }

    /// Everybody has got the line that is for everybody.
    fn ends_for_all(&mut self) {
        if let Some((number, left)) = self.for_all.take() {
            assert!(left.is_empty(), "line {number} is for everybody, and {left:?} did not get it");
        }
    }

    /// Whether a response that no request waits for may answer one that has left the table.
    fn may_be_late(&self, worker: usize, line: &Line) -> bool {
        let Worker { retired, more_retired, .. } = &self.workers[worker];
        let id = line.id.as_deref().map(meaning).filter(|id| id.len() <= MAX_REQUEST_ID_LEN + 2);
        id.is_some_and(|id| *more_retired > 0 || retired.contains(&id))
    }

    /// Whether a notification names what is no pending request of its sender, and may be that of another worker which
    /// the client has still to answer.
    fn names_anothers(&self, worker: usize, line: &Line, client: usize) -> bool {
        let (Kind::Notification, Some(token)) = (line.kind, &line.request_id) else { return false };
        let me = Who::Client(client);
        let is_it = |request: &&Request| request.answerer == me && (!is_plain(token) || request.wire == meaning(token));
        self.request_meant_by(worker, line).is_none_or(|request| request.answerer != me)
            && meaning(token).len() <= MAX_REQUEST_ID_LEN + 2
            && self.to_clients.iter().any(|request| is_it(&request))
    }

    /// The client that a worker's message is for if it names nobody: the only one that has ever sent that worker
    /// anything, or that may use it if nobody has. A worker that is for one client alone is for nobody before.
    fn only_client(&self, worker: usize) -> Option<usize> {
        let Worker { owner, served, pool, .. } = &self.workers[worker];
        if self.settings.pools[*pool].assignment == Assignment::Dedicated {
            return *owner;
        }
        let is_there = |client: &usize| !self.clients[*client].gone && self.may_name(*client, *pool);
        let mut there = (0..self.clients.len()).filter(is_there);
        match (owner, served.len()) {
            (Some(owner), _) => Some(*owner),
            (None, 0) => there.next().filter(|_| there.next().is_none()),
            (None, 1) => served.first().copied(),
            _ => None,
        }
    }

    /// Whether a line of a worker waits for an answer that makes the session which it names.
    fn waits_for_session(&self, worker: usize, line: &Line) -> bool {
        let Worker { owner: None, early, .. } = &self.workers[worker] else { return false };
        let Some(name) = line.way().filter(|name| name.len() <= MAX_SESSION_ID_LEN) else { return false };
        let is_known = self.sessions.iter().any(|at| at.worker == worker && at.name == *name)
            || self.held.iter().any(|held| held.worker == worker && held.name == *name);
        let in_all = |early: &[Early]| early.iter().map(|early| early.bytes).sum::<usize>();
        let bytes = line.bytes().len();
        let most = self.settings.limits.max_memory / 16;
        let all: usize = self.workers.iter().map(|worker| in_all(&worker.early)).sum();
        line.kind == Kind::Notification
            && line.request_id.is_none()
            && line.progress.is_none()
            && line.subscription.is_none()
            && self.is_making(worker)
            && !is_known
            && early.len() < EARLY_LINES
            && in_all(early) + bytes <= EARLY_BYTES.min(most)
            && all + bytes <= most
    }

    /// The lines of a worker wait for their sessions no longer, but for those of session `made`, which follow now.
    fn ends_early(&mut self, worker: usize, made: Option<&str>) {
        let early = std::mem::take(&mut self.workers[worker].early);
        for early in early {
            if made.is_some() && self.lines[early.number].way().map(String::as_str) == made {
                self.workers[worker].early.push(early);
            } else {
                self.count(Reason::UnknownSession);
            }
        }
    }

    /// Sessions were loaded that lines of their worker may wait for: nobody can say whom those are for, unless the answer
    /// has named the session, as `made`.
    fn loaded_otherwise(&mut self, worker: usize, loaded: &[usize], made: Option<&str>) {
        let is_it = |at: &&Session| loaded.contains(&at.serial) && at.rank == Rank::Issued;
        let names = self.sessions.iter().filter(is_it).map(|at| at.name.clone());
        for name in names.filter(|name| Some(name.as_str()) != made).collect::<Vec<_>>() {
            let early = std::mem::take(&mut self.workers[worker].early);
            let (gone, stay): (Vec<_>, Vec<_>) =
                early.into_iter().partition(|early| self.lines[early.number].way() == Some(&name));
            self.workers[worker].early = stay;
            gone.iter().for_each(|_| self.count(Reason::UnknownSession));
        }
    }

    /// Whether a request for a session is pending at a worker.
    fn is_making(&self, worker: usize) -> bool {
        let makes = |request: &Request| request.answerer == Who::Worker(worker) && self.lines[request.line].creates();
        self.to_workers.iter().any(makes)
    }

    /// Whether this line waits for its session.
    pub fn is_early(&self, number: usize) -> bool {
        let Who::Worker(worker) = self.lines[number].from else { return false };
        self.workers[worker].early.iter().any(|early| early.number == number)
    }

    /// Lines that have waited for too long for their sessions wait no more.
    pub fn expire_early(&mut self, now: Moment) {
        for at in 0..self.workers.len() {
            let early = &mut self.workers[at].early;
            let before = early.len();
            early.retain(|early| now.since(early.since) < EARLY_WAITS);
            for _ in early.len()..before {
                self.count(Reason::UnknownSession);
            }
        }
    }

    /// What waits for its session waits for one that is still to be made.
    fn check_early(&mut self, bytes_waiting: usize) {
        // Those that were dropped before a client was closed are the first ones of those that may have been.
        let waits = |workers: &[Worker]| workers.iter().flat_map(|worker| &worker.early).map(|early| early.bytes).sum();
        while waits(&self.workers) > bytes_waiting
            && let Some(worker) = self.workers.iter_mut().find(|worker| worker.early.iter().any(|early| early.in_doubt))
        {
            let at = worker.early.iter().position(|early| early.in_doubt).expect("it was found");
            worker.early.remove(at);
            self.count(Reason::UnknownSession);
        }
        let waiting: usize = waits(&self.workers);
        assert_eq!(waiting, bytes_waiting, "bytes that wait for sessions");
        self.workers.iter_mut().flat_map(|worker| &mut worker.early).for_each(|early| early.in_doubt = false);
        for (at, worker) in self.workers.iter().enumerate() {
            for Early { number, .. } in &worker.early {
                let name = self.lines[*number].way();
                let is_it = |session: &&Session| session.worker == at && Some(&session.name) == name;
                let made = self.sessions.iter().find(is_it);
                assert!(made.is_none_or(|made| made.rank < Rank::Issued), "line {number} still waits for {made:?}");
            }
        }
    }

    /// A line that has waited for its session is queued for its owner.
    fn early_line(&mut self, number: usize, to: Who) {
        let line = &self.lines[number];
        let Who::Worker(worker) = line.from else { panic!("line {number} never waited: {line:?}") };
        let is_it = |at: &&Session| at.worker == worker && Some(&at.name) == line.way();
        let session = self.sessions.iter().find(is_it).expect("a line waits until its session is made");
        assert_eq!(Who::Client(session.client), to, "line {number} waited for another");
        // It was made, or the worker has said that it is loaded.
        assert!(session.rank >= Rank::Confirmed, "line {number} waited for more than {session:?}");
        let early = std::mem::take(&mut self.workers[worker].early);
        let is_behind =
            |early: &Early| early.number > number || self.lines[early.number].way() != self.lines[number].way();
        let (behind, before): (Vec<_>, Vec<_>) = early.into_iter().partition(is_behind);
        self.workers[worker].early = behind;
        for early in before.into_iter().filter(|early| early.number != number) {
            assert!(early.in_doubt, "early lines keep their order");
            self.count(Reason::UnknownSession);
        }
    }

    /// A name that its owner has only used may be one that the worker is just giving to somebody else, or one that it
    /// still works for somebody else in, who has left.
    fn may_be_anothers(&self, session: &Session) -> bool {
        let all = self.to_workers.iter().chain(&self.to_clients);
        let pending = all.filter(|request| request.sessions.contains(&session.serial)).count();
        let may_have_left = session.rank == Rank::Claimed && session.lent && pending != 1;
        // What a worker is asked to load it tells again before it answers.
        let is_loaded = session.lent || session.asked;
        may_have_left || session.rank < Rank::Issued && !is_loaded && self.creates(session.worker)
    }

    /// A worker's notification is about a request of its own, its request about one of a client.
    fn request_meant_by(&self, worker: usize, line: &Line) -> Option<&Request> {
        let me = Who::Worker(worker);
        if line.kind == Kind::Notification {
            return self.named(&self.to_clients, me, line).first().copied();
        }
        let id = line.request_id.as_deref().map(meaning)?;
        self.to_workers.iter().find(|request| request.answerer == me && request.wire == id)
    }

    /// The bus has queued line `number` for `to`, as `text`.
    pub fn forwarded(&mut self, now: Moment, number: usize, to: Who, text: &[u8]) {
        let line = self.lines[number].clone();
        if self.is_early(number) {
            assert!(line.ids_of(text).is_some(), "line {number} was changed:\n{line:?}\n{}", text.escape_ascii());
            self.early_line(number, to);
            return self.queued(now, to, text.len());
        }
        self.begins_for_all(number);
        let fate = match line.from {
            Who::Client(client) => self.fate_of_client_line(client, &line),
            Who::Worker(worker) => self.fate_of_worker_line(worker, &line),
        };
        let is_for_all = matches!(line.from, Who::Worker(worker) if !self.told_all(worker, &line).is_empty());
        if let (true, Who::Client(client), Some((_, due))) = (is_for_all, to, &mut self.for_all) {
            assert!(due.remove(&client), "line {number} came to {to:?}, which was told before");
            let output = self.outputs.get(&to);
            let behind = output.map_or(0, |output| output.left + output.queued as u64) + text.len() as u64;
            self.lists_told.insert((client, line.list().unwrap_or_default()), behind);
        }
        assert!(fate.to.contains(&to), "line {number} went to {to:?}, but {fate:?}: {line:?}");
        // What is for a slow reader must not hold up those with whom it shares a worker.
        let limit = self.settings.limits.max_output_queue;
        let queued = self.outputs.get(&to).map_or(0, |output| output.queued);
        let may_be_full = matches!((line.from, to), (Who::Worker(worker), Who::Client(client))
            if queued <= 4 * limit && (self.is_shared(worker, client) || self.was_shared(now, worker, client)));
        assert!(may_be_full || is_for_all || !self.is_full(to), "line {number} was queued for {to:?}, which is full");
        let Some(ids) = line.ids_of(text) else {
            panic!("line {number} was changed:\n{line:?}\n{}", text.escape_ascii());
        };
        let last = self.last_line.insert((line.from, to), number);
        assert!(last.is_none_or(|last| last < number), "line {number} came to {to:?} after {last:?}");
        if let (Who::Client(client), Who::Worker(worker)) = (line.from, to) {
            self.workers[worker].served.insert(client);
        }
        match (line.from, to) {
            (Who::Client(client), Who::Worker(worker)) if line.kind != Kind::Response => {
                self.client_message(now, number, client, worker, &fate, &ids)
            }
            (Who::Worker(worker), Who::Client(client)) if line.kind != Kind::Response => {
                self.worker_message(number, worker, client, &ids)
            }
            (Who::Worker(worker), Who::Client(client)) => self.worker_response(now, number, worker, client, &ids),
            (Who::Client(_), Who::Worker(_)) => {
                let request = self.answered_by(number, false);
                let expected = if request.replaced { Some(&request.token) } else { line.id.as_ref() };
                assert_eq!(ids.id.as_ref(), expected, "the id of a worker was not restored");
            }
            _ => panic!("{:?} spoke to {to:?}", line.from),
        }
        self.queued(now, to, text.len());
    }

    /// Takes out the request that a response answers.
    fn answered_by(&mut self, number: usize, of_client: bool) -> Request {
        let line = &self.lines[number];
        let requests = if of_client { &mut self.to_workers } else { &mut self.to_clients };
        let id = line.id.as_deref().map(meaning).unwrap_or_default();
        let at = requests.iter().position(|request| request.answerer == line.from && request.wire == id);
        requests.remove(at.expect("a request was pending"))
    }

    fn client_message(&mut self, now: Moment, number: usize, client: usize, worker: usize, fate: &Fate, ids: &Ids) {
        let line = self.lines[number].clone();
        if let Some(group) = fate.group {
            let assignment = self.pools_of(group).1;
            if assignment != Assignment::RoundRobin {
                self.clients[client].assigned.retain(|(of, _)| *of != group);
                self.clients[client].assigned.push((group, worker));
            }
            if assignment == Assignment::Dedicated {
                let owner = self.workers[worker].owner.replace(client);
                assert!(owner.is_none_or(|owner| owner == client), "worker {worker} has two clients");
                if owner.is_none() {
                    self.counts_turn(now, client);
                }
            }
        }
        self.check_named(&line, client, worker, ids);
        let mut sessions = Vec::new();
        if line.targets().is_empty() {
            // It asks for a lost session, unless it has one of that name: then only an answer ends the loss.
            let has = |name: &String| {
                let is_way = line.way() == Some(name);
                let mut mine = self.sessions.iter().filter(|at| at.client == client && at.name == *name);
                mine.any(|at| if is_way { line.pool.is_none() } else { at.worker == worker })
            };
            let asked: Vec<&String> = line.names().into_iter().filter(|name| line.loads() && !has(name)).collect();
            self.clients[client].lost.retain(|(lost, _)| !asked.contains(&lost));
            for name in line.names() {
                sessions.extend(self.session_used(now, client, worker, name, &line));
            }
        } else {
            let loud = line.method != "notifications/cancelled";
            // Of several with one id it is the one that the worker is told.
            let told = ids.request_id.as_deref().or(ids.params_id.as_deref()).map(meaning);
            let is_told = |at: &&Request| at.answerer == Who::Worker(worker) && Some(&at.wire) == told.as_ref();
            let target = self.targets(client, &line).into_iter().find(is_told);
            let target = target.map(|request| request.line).expect("it has a target");
            let found = self.to_workers.iter_mut().find(|request| request.line == target);
            found.expect("it was found").cancelled.get_or_insert((now, loud));
        }
        if line.kind == Kind::Notification {
            if let Some(seen) = &ids.progress {
                let request = self.told_for(&self.to_clients, Who::Client(client), &line).expect("it was found");
                assert_eq!(Some(seen), is_told_as(request, &line), "{line:?}");
            }
            return;
        }
        let timeout = self.settings.pools[self.workers[worker].pool].request_timeout;
        let request = Request {
            line: number,
            asker: Some(Who::Client(client)),
            answerer: Who::Worker(worker),
            wire: String::new(),
            token: String::new(),
            replaced: false,
            progress: None,
            sessions,
            expires: timeout.map(|timeout| now.after(timeout)),
            cancelled: None,
            orphaned: None,
        };
        let worker = &self.workers[worker];
        let always = self.settings.routing.id_collision == IdCollision::Always
            && self.settings.pools[worker.pool].assignment != Assignment::Dedicated;
        let is_retired = line.id.as_deref().is_some_and(|id| worker.retired.contains(&meaning(id)));
        let fresh = worker.fresh || is_retired || always;
        let is_late = line.token.as_deref().map(meaning).is_some_and(|token| {
            worker.fresh || always || worker.retired.contains(&token) || worker.retired_tokens.contains(&token)
        });
        let request = translated(request, &line, ids, &self.to_workers, &mut self.made, [fresh, is_late]);
        self.to_workers.push(request);
    }

    /// The requests that a client's line names arrive as its worker knows them.
    fn check_named(&self, line: &Line, client: usize, worker: usize, ids: &Ids) {
        let is_there = |request: &&&Request| request.answerer == Who::Worker(worker);
        let cancels = !line.targets().is_empty();
        let mine =
            if cancels { self.targets(client, line) } else { self.named(&self.to_workers, Who::Client(client), line) };
        let mine: Vec<_> = mine.iter().filter(is_there).collect();
        for (written, seen) in [(&line.request_id, &ids.request_id), (&line.params_id, &ids.params_id)] {
            let Some(seen) = seen else { continue };
            let right = if mine.is_empty() {
                written.as_ref() == Some(seen)
            } else {
                mine.iter().any(|request| {
                    request.wire == meaning(seen) && (request.replaced || Some(seen) == written.as_ref())
                })
            };
            assert!(right, "a request is named {seen}, but it is {mine:?}: {line:?}");
        }
    }

    /// The session of this name is used, or claimed if it is nobody's.
    fn session_used(&mut self, now: Moment, client: usize, worker: usize, name: &str, line: &Line) -> Option<usize> {
        let found = self.sessions.iter_mut().find(|session| session.worker == worker && session.name == *name);
        let shared = self.settings.routing.session_access == SessionAccess::Shared;
        if let Some(session) = found {
            assert!(session.client == client || shared, "a foreign session was used");
            (session.used, session.perhaps_used) = (now, now);
            return (session.client == client).then_some(session.serial);
        }
        let held = self.held.iter().position(|held| held.worker == worker && held.name == name);
        // A fork leaves the session alone that it comes from, and a worker of one client needs no second name.
        let is_its_own = self.workers[worker].owner.is_some();
        let second = is_its_own && line.way().is_some_and(|way| way != name);
        if let (Some(at), true) = (held, is_its_own) {
            // There is nobody to hold it from, so the request is in it all the same.
            let loads = line.loads() && line.method != "session/fork";
            if second || !loads {
                return (!second || !shared).then_some(self.held[at].serial);
            }
        }
        let shared = shared && !is_its_own;
        if line.method == "session/fork" || second || held.is_some() && (shared || !line.loads()) {
            return None;
        }
        let held = held.map(|held| self.held.remove(held));
        let made = self.new_session(now, client, worker, name, Rank::Claimed);
        let session = self.sessions.last_mut().expect("it was pushed");
        session.lent = held.is_some();
        // What is loaded stands in params, if something stands there.
        session.asked = held.is_none() && line.loads() && line.inner.as_ref().is_none_or(|inner| inner == name);
        session.was_issued = held.as_ref().is_some_and(|held| held.is_issued);
        // What its old owner has asked in it is pending in it still.
        session.serial = held.map_or(made, |held| held.serial);
        Some(session.serial)
    }

    fn new_session(&mut self, now: Moment, client: usize, worker: usize, name: &str, rank: Rank) -> usize {
        let serial = self.next_session;
        self.next_session += 1;
        let session = Session {
            serial,
            client,
            worker,
            name: name.into(),
            rank,
            used: now,
            perhaps_used: now,
            was_issued: false,
            lent: false,
            asked: false,
            given: false,
        };
        self.sessions.push(session);
        serial
    }

    /// The owner of a session has gone, or has been refused it: nobody else gets it as long as something of it may come.
    fn hold(&mut self, session: Session) {
        let is_issued = session.rank == Rank::Issued || session.was_issued;
        self.held.push(Held { worker: session.worker, name: session.name, serial: session.serial, is_issued });
    }

    fn worker_message(&mut self, number: usize, worker: usize, client: usize, ids: &Ids) {
        let line = self.lines[number].clone();
        let about = self.request_meant_by(worker, &line);
        let seen = ids.request_id.as_deref();
        match (line.kind, about) {
            (Kind::Notification, Some(request)) if request.answerer == Who::Client(client) && request.replaced => {
                assert_eq!(seen.map(meaning).as_ref(), Some(&request.wire), "{line:?}");
            }
            (Kind::Request, Some(request)) if request.asker == Some(Who::Client(client)) && request.replaced => {
                assert_eq!(seen, Some(request.token.as_str()), "{line:?}");
            }
            _ => assert_eq!(seen, line.request_id.as_deref(), "{line:?}"),
        }
        let told_for = self.told_for(&self.to_workers, Who::Worker(worker), &line);
        let told_for = told_for.filter(|request| request.asker == Some(Who::Client(client)));
        let is_told = told_for
            .map_or(line.progress.as_ref().or(line.subscription.as_ref()), |request| is_told_as(request, &line));
        assert_eq!(ids.progress.as_ref().or(ids.subscription.as_ref()), is_told, "{line:?}");
        if line.kind == Kind::Request {
            // A worker of one client asks it in a session that is held as well.
            let is_it = |of: usize, name: &String| of == worker && Some(name) == line.way();
            let owned = self.sessions.iter().find(|at| is_it(at.worker, &at.name)).map(|at| at.serial);
            let held = self.held.iter().find(|held| is_it(held.worker, &held.name)).map(|held| held.serial);
            let session = owned.or(held);
            let request = Request {
                line: number,
                asker: Some(Who::Worker(worker)),
                answerer: Who::Client(client),
                wire: String::new(),
                token: String::new(),
                replaced: false,
                progress: None,
                sessions: session.into_iter().collect(),
                expires: None,
                cancelled: None,
                orphaned: None,
            };
            let request = translated(request, &line, ids, &self.to_clients, &mut self.made, [false; 2]);
            self.to_clients.push(request);
        }
    }

    fn worker_response(&mut self, now: Moment, number: usize, worker: usize, client: usize, ids: &Ids) {
        let line = self.lines[number].clone();
        let request = self.answered_by(number, true);
        self.answered += 1;
        self.clients[client].crashes = 0;
        let expected = if request.replaced { Some(&request.token) } else { line.id.as_ref() };
        assert_eq!(ids.id.as_ref(), expected, "the id of {:?} was not restored", request.line);
        let is_its = line.subscription.as_deref().map(meaning).as_ref() == Some(&request.wire);
        let expected = if request.replaced && is_its { Some(&request.token) } else { line.subscription.as_ref() };
        assert_eq!(ids.subscription.as_ref(), expected, "the subscription of {:?} was not restored", request.line);
        let asked = self.lines[request.line].clone();
        let only_asks = matches!(asked.method, "session/load" | "session/resume");
        for session in std::mem::take(&mut self.sessions) {
            let mut session = session;
            if !request.sessions.contains(&session.serial) {
                self.sessions.push(session);
            } else if !line.result && only_asks && session.rank == Rank::Claimed {
                // Others of its requests keep it, and that it was claimed before.
                if !session.lent && !session.asked || is_in_use(&self.to_workers, &self.to_clients, session.serial) {
                    self.sessions.push(session);
                } else if session.was_issued {
                    self.hold(session);
                }
            } else {
                let is_loaded =
                    only_asks && (request.sessions.len() < 2 || asked.inner.as_ref() == Some(&session.name));
                let rank = if is_loaded { Rank::Issued } else { Rank::Confirmed };
                let risen = session.rank.max(if line.result { rank } else { Rank::Claimed });
                if risen == Rank::Issued && session.rank < risen {
                    self.bind(session.client, session.worker, &session.name);
                    session.given |= !self.is_bound_to_another(session.client, session.worker, &session.name);
                }
                session.rank = risen;
                // A worker that reads names at top level has loaded the other one.
                session.was_issued |= line.result && only_asks;
                if session.rank == Rank::Issued {
                    self.clients[client].lost.retain(|(lost, _)| *lost != session.name);
                }
                self.sessions.push(session);
            }
        }
        if let Some(name) = line.result_session.as_ref().filter(|_| line.result) {
            self.learns(now, client, worker, name, asked.creates());
        }
        let makes_more = self.is_making(worker);
        let made = line.result_session.as_deref().filter(|_| line.result);
        let is_its =
            |name: &str| self.sessions.iter().any(|at| at.worker == worker && at.name == name && at.client == client);
        if asked.creates() && (made.is_none() || !makes_more) {
            self.ends_early(worker, made.filter(|name| is_its(name)));
        }
        if line.result && only_asks {
            self.loaded_otherwise(worker, &request.sessions, made);
        }
        if line.result && asked.closes() {
            self.sessions.retain(|session| !request.sessions.contains(&session.serial));
            self.held.retain(|held| !request.sessions.contains(&held.serial));
        }
    }

    /// An answer to a client names a session. `creates` says that the client asked for a new one.
    fn learns(&mut self, now: Moment, client: usize, worker: usize, name: &str, creates: bool) {
        match self.sessions.iter_mut().find(|session| session.worker == worker && session.name == name) {
            // A worker that repeats what it is sent gives out nothing by that.
            Some(session) if session.client == client && !creates => {
                session.rank = session.rank.max(Rank::Confirmed);
                return;
            }
            Some(session) if session.client == client => {
                session.given = true;
                if session.rank < Rank::Issued {
                    session.rank = Rank::Issued;
                    self.bind(client, worker, name);
                }
            }
            Some(session) if session.rank == Rank::Issued => return self.count(Reason::SessionReused),
            _ => {
                self.sessions.retain(|session| session.worker != worker || session.name != name);
                self.new_session(now, client, worker, name, Rank::Issued);
                self.sessions.last_mut().expect("it was pushed").given = true;
                self.bind(client, worker, name);
            }
        }
        self.gives_out(worker, name);
        self.clients[client].lost.retain(|(lost, _)| *lost != name);
    }

    /// A worker has given out a name: from now on its pool does so, and the name is held for nobody else.
    fn gives_out(&mut self, worker: usize, name: &str) {
        self.held.retain(|held| held.worker != worker || held.name != name);
        self.issuing.push(self.workers[worker].pool);
    }

    /// An answer comes that nobody waits for: what it names is kept from everybody. `asked_in` are the sessions of the
    /// request, if it did not ask for a new one: who repeats their names gives out nothing by that.
    fn holds_late(&mut self, number: usize, asked_in: &[usize]) {
        let line = self.lines[number].clone();
        let (Who::Worker(worker), Some(name)) = (line.from, line.result_session.filter(|_| line.result)) else {
            return;
        };
        let is_it = |of: usize, called: &str| of == worker && called == name;
        let owned = self.sessions.iter().find(|at| is_it(at.worker, &at.name));
        let held = self.held.iter().find(|held| is_it(held.worker, &held.name));
        let serial = owned.map(|at| at.serial).or(held.map(|held| held.serial));
        if serial.is_some_and(|serial| asked_in.contains(&serial)) {
            return;
        }
        self.issuing.push(self.workers[worker].pool);
        if owned.is_none_or(|at| at.rank < Rank::Issued && !at.was_issued) && held.is_none_or(|held| !held.is_issued) {
            self.sessions.retain(|at| !is_it(at.worker, &at.name));
            self.gives_out(worker, &name);
            self.held.push(Held { worker, name, serial: self.next_session, is_issued: true });
            self.next_session += 1;
        }
    }

    /// A client is closed while these lines of a worker are heard: nobody can say which of them came before.
    pub fn closes_amid(&mut self, lines: impl Iterator<Item = usize>) {
        for number in lines {
            if let Who::Worker(worker) = self.lines[number].from {
                let line = &self.lines[number];
                let lost = self.fate_of_worker_line(worker, line).lost;
                // One that waits for its session was not lost.
                if lost != [Reason::UnknownSession] || !self.waits_for_session(worker, line) {
                    self.lost_before.entry(number).or_default().extend(lost);
                }
            }
        }
    }

    /// The bus has taken line `number` and queued it for nobody. Gives the reason that it must have had.
    pub fn dropped(&mut self, now: Moment, number: usize) -> Option<Reason> {
        let line = self.lines[number].clone();
        if line.kind == Kind::Blank {
            return None;
        }
        assert!(!matches!(line.kind, Kind::Malformed | Kind::TooLong), "a bad line passed: {line:?}");
        self.begins_for_all(number);
        self.ends_for_all();
        if let Who::Worker(worker) = line.from
            && !self.told_all(worker, &line).is_empty()
        {
            // All are still to be told the same.
            return None;
        }
        let mut fate = match line.from {
            Who::Client(client) => self.fate_of_client_line(client, &line),
            Who::Worker(worker) => self.fate_of_worker_line(worker, &line),
        };
        if let Who::Client(client) = line.from
            && fate.group.is_some()
            && self.is_paced(now, client, &line)
        {
            fate.lost.push(Reason::NoWorker);
        }
        if let Who::Worker(worker) = line.from
            && fate.lost == [Reason::UnknownSession]
            && self.waits_for_session(worker, &line)
        {
            let in_doubt = self.lost_before.remove(&number).is_some_and(|lost| !lost.is_empty());
            let bytes = line.bytes().len();
            self.workers[worker].early.push(Early { number, bytes, since: now, in_doubt });
            return None;
        }
        let fate = Fate { lost: [fate.lost, self.lost_before.remove(&number).unwrap_or_default()].concat(), ..fate };
        let told = self.refused_for.take().filter(|_| line.kind == Kind::Request);
        let Some(reason) = told.or(fate.lost.first().copied()) else {
            panic!("line {number} was lost; it should have gone to {:?}: {line:?}", fate.to)
        };
        assert!(fate.lost.contains(&reason), "line {number} is refused: {reason:?}, but {fate:?}: {line:?}");
        if told.is_none() && fate.lost.iter().any(|other| *other != reason) {
            self.doubts.push(fate.lost);
        } else {
            self.count(reason);
        }
        if reason == Reason::LateAnswer {
            self.late_answer(number);
        }
        if let Who::Client(client) = line.from {
            if is_cancellation(line.method) && reason != Reason::ShuttingDown {
                self.rests(now, client);
            }
            if let Some(group) = self.group_of(client, &line) {
                let (pools, assignment) = self.pools_of(group);
                let dedicated = pools.into_iter().filter(|_| assignment == Assignment::Dedicated);
                self.perhaps_taken.extend(dedicated);
            }
            // It may have been looked at before it was refused.
            let names = line.names();
            for session in self.sessions.iter_mut().filter(|at| at.client == client && names.contains(&&at.name)) {
                session.perhaps_used = now;
            }
            for (name, sure) in &mut self.clients[client].lost {
                *sure &= !(line.loads() && names.contains(&&*name));
            }
        }
        if let (Reason::UnknownId, Who::Worker(worker)) = (reason, line.from) {
            let worker = &mut self.workers[worker];
            worker.fresh = true;
            if !std::mem::replace(&mut worker.answers_twice, true) {
                self.count(Reason::WorkerAnswersTwice);
            }
        }
        let told = match line.from {
            Who::Client(_) => true,
            Who::Worker(worker) => self.workers[worker].takes,
        };
        if line.kind == Kind::Request && told {
            let token = line.id.clone().expect("a request has an id");
            self.expected_replies.push((line.from, token, reason.told()));
        }
        Some(reason)
    }

    /// A client has cancelled nothing. Who is alone keeps nobody waiting.
    fn rests(&mut self, now: Moment, client: usize) {
        if self.clients.iter().filter(|client| !client.gone).count() == 1 {
            return;
        }
        let client = &mut self.clients[client];
        if now.since(client.refused_at) > REFUSALS_COUNT_FOR {
            client.refusals = 0;
        }
        let rest = REST.saturating_mul(1 << client.refusals.min(16)).min(LONGEST_REST);
        client.refusals += 1;
        client.refused_at = now;
        let until = Moment(now.after(rest).0.next_multiple_of(REST_ROUND));
        client.slowed_until = client.slowed_until.max(Some(until));
    }

    fn late_answer(&mut self, number: usize) {
        let line = &self.lines[number];
        let id = line.id.as_deref().map(meaning).unwrap_or_default();
        if let Who::Worker(worker) = line.from {
            let pending = self.to_workers.iter().any(|request| request.answerer == line.from && request.wire == id);
            if pending {
                let request = self.answered_by(number, true);
                let method = self.lines[request.line].method;
                if self.lines[number].result && matches!(method, "session/load" | "session/resume") {
                    self.is_loaded(&request.sessions);
                }
                let creates = self.lines[request.line].creates();
                if creates {
                    self.ends_early(worker, None);
                }
                self.holds_late(number, if creates { &[] } else { &request.sessions });
            } else {
                let Worker { retired, more_retired, .. } = &mut self.workers[worker];
                retired.retain(|retired| *retired != id);
                *more_retired = more_retired.saturating_sub(1);
                self.holds_late(number, &[]);
            }
            self.let_go();
        } else {
            self.answered_by(number, false);
        }
    }

    /// A worker has loaded sessions, or may have, and nobody was told: it knows them for as long as it lives.
    fn is_loaded(&mut self, serials: &[usize]) {
        for session in self.sessions.iter_mut().filter(|at| serials.contains(&at.serial)) {
            session.was_issued = true;
        }
        for held in self.held.iter_mut().filter(|held| serials.contains(&held.serial)) {
            held.is_issued = true;
        }
    }

    /// Whether this line of the bus refuses a message that it is just hearing.
    pub fn said_refusal(&mut self, hearing: Option<Who>, to: Who, text: &[u8]) -> bool {
        let value = value_of(text);
        let refuses =
            hearing == Some(to) && !value["id"].is_null() && value["error"]["data"]["reason"] != "client_left";
        self.refused_for = value["error"]["data"]["reason"].as_str().filter(|_| refuses).map(reason_of);
        refuses
    }

    /// The bus has queued a line of its own for `to`. `hearing` is the peer whose bytes it was given.
    pub fn said(&mut self, now: Moment, hearing: Option<Who>, to: Who, text: &[u8]) {
        self.queued(now, to, text.len());
        let value = value_of(text);
        if value["method"] == "session/cancel" {
            let Who::Worker(worker) = to else { panic!("a client was told to cancel") };
            let name = value["params"]["sessionId"].as_str().expect("a session has a name");
            assert!(self.settings.pools[self.workers[worker].pool].cancel_on_disconnect);
            let owned = self.sessions.iter().any(|session| session.worker == worker && session.name == name);
            // The worker of one client alone may have been asked in a name that a late answer gave out.
            let held = self.held.iter().any(|held| held.worker == worker && held.name == name);
            assert!(owned || held && self.workers[worker].owner.is_some(), "{name} is cancelled, and nobody's");
            assert!(self.workers[worker].takes, "a worker that does not listen is spoken to");
            return;
        }
        let reason = value["error"]["data"]["reason"].as_str().expect("an error has a reason").to_owned();
        if value["id"].is_null() {
            assert!(matches!(to, Who::Client(_)) && value["error"]["code"].is_i64());
            return;
        }
        let id = own_id_of(text).expect("an error has an id");
        if reason == "client_left" {
            let at = self.to_clients.iter().position(|request| request.asker == Some(to) && request.token == id);
            let request = self.to_clients.remove(at.expect("a request of a worker was pending"));
            let Who::Client(client) = request.answerer else { panic!("{request:?}") };
            self.count(Reason::ClientLeft);
            assert!(self.is_there(to), "a worker that does not listen is spoken to");
            assert!(!self.clients[client].closed);
            return;
        }
        let is_replaced = reason == Reason::WorkerReplaced.name();
        let reason = reason_of(&reason);
        if hearing == Some(to) {
            self.seen_replies.push((to, id, reason.told()));
            return;
        }
        self.gave_up(now, to, &id, reason, is_replaced);
    }

    /// A pending request was answered with an error.
    fn gave_up(&mut self, now: Moment, to: Who, id: &str, reason: Reason, is_replaced: bool) {
        if reason == Reason::Cancelled {
            let at = self.cancelled.iter().position(|(asker, token)| *asker == to && token == id);
            self.cancelled.remove(at.expect("a request was cancelled, and its grace is over"));
            return self.count(reason);
        }
        let request = self.to_workers.iter_mut().find(|request| request.asker == Some(to) && request.token == id);
        let Some(request) = request else { panic!("{to:?} was told {reason:?} about {id}, which is not pending") };
        request.asker = None;
        request.orphaned = Some(now);
        let Who::Worker(worker) = request.answerer else { panic!("{request:?}") };
        match reason {
            Reason::Timeout => {
                let Who::Client(client) = to else { panic!("{to:?} waits for a client") };
                let overdue = request.expires.is_some_and(|at| at <= now) || self.clients[client].half_closed;
                assert!(overdue, "too early: {request:?}");
            }
            Reason::RequestLost => {
                assert!(!self.refused);
                self.accused.push(worker);
                if !is_replaced {
                    self.blamed.push((worker, to));
                }
            }
            Reason::ShuttingDown => {
                assert!(self.refusing);
                self.accused.push(worker);
            }
            Reason::RequestDiscarded | Reason::MemoryLimit | Reason::ListenerRemoved => {
                let Who::Client(client) = to else { panic!("{to:?} waits for a client") };
                self.bereaved.push((client, reason));
            }
            _ => panic!("a request was given up for {reason:?}"),
        }
        self.count(reason);
    }

    /// A client is being closed: what hung on it is settled. One that waits for answers needs an `excuse` for it.
    pub fn closing(&mut self, now: Moment, client: usize, how: Close, why: Reason, excuse: bool) {
        let me = Who::Client(client);
        let waits = self.to_workers.iter().any(|request| request.asker == Some(me));
        let drains = (self.clients[client].half_closed || self.quiescing) && why != Reason::ListenerRemoved;
        assert!(!(waits && drains) || excuse, "client {client} is closed before its answers have come");
        if std::mem::replace(&mut self.clients[client].closed, true) {
            return;
        }
        if why == Reason::ShuttingDown {
            self.clients[client].refused_for = why;
        }
        self.counts_turn(now, client);
        // Who holds the memory by what is queued for it can be told nothing.
        let is_mute = how == Close::Now && self.outputs.get(&me).is_some_and(|output| output.queued > 0);
        let is_told = why == Reason::MemoryLimit && !is_mute;
        let lost_for = if is_told { why } else { Reason::RequestDiscarded };
        for at in 0..self.to_workers.len() {
            if self.to_workers[at].asker == Some(me) {
                self.to_workers[at].asker = None;
                self.to_workers[at].orphaned = Some(now);
                let was_cancelled = self.to_workers[at].cancelled.is_some();
                self.count(if was_cancelled && !is_told { Reason::Cancelled } else { lost_for });
            }
        }
        self.leave_unanswered(client);
        for session in std::mem::take(&mut self.sessions) {
            if session.client == client {
                self.hold(session);
            } else {
                self.sessions.push(session);
            }
        }
        self.let_go();
    }

    /// Names that were only claimed are free when nothing of them can come any more.
    fn let_go(&mut self) {
        let pending = |serial: usize| self.to_workers.iter().any(|request| request.sessions.contains(&serial));
        self.held.retain(|held| held.is_issued || pending(held.serial));
    }

    /// When a request gives its slot back, if it was cancelled or nobody waits for it.
    fn leaves_at(request: &Request) -> Option<Moment> {
        let round = |at: Moment| Moment(at.0.next_multiple_of(SLOT_ROUND.as_nanos() as u64));
        if let Some((at, _)) = request.cancelled {
            let due = round(at.after(SLOT_KEPT));
            return Some(request.expires.map_or(due, |expires| expires.min(due)));
        }
        request.orphaned.map(|at| round(at.after(SLOT_KEPT)))
    }

    /// Requests that were cancelled, or that nobody waits for, give their slots back. Their answers may still come, so
    /// their workers are sent their ids no more until then.
    pub fn leave_slots(&mut self, now: Moment) {
        let stays =
            |request: &Request| request.cancelled.is_none() || Self::leaves_at(request).is_none_or(|at| at > now);
        let (stay, leave) = std::mem::take(&mut self.to_workers).into_iter().partition(stays);
        self.to_workers = stay;
        for request in leave {
            self.leaves(request);
        }
        self.let_go();
    }

    /// Of those that nobody waits for so many have given their slots back. The bus may let them keep theirs until
    /// somebody needs one.
    fn orphans_leave(&mut self, now: Moment, how_many: usize) {
        for _ in 0..how_many {
            let due = |request: &Request| Self::leaves_at(request).filter(|at| *at <= now && request.asker.is_none());
            let due = self.to_workers.iter().enumerate().filter_map(|(at, request)| Some((due(request)?, at))).min();
            let Some((_, at)) = due else { return };
            let request = self.to_workers.remove(at);
            self.leaves(request);
        }
        self.let_go();
    }

    fn leaves(&mut self, request: Request) {
        if let Who::Worker(worker) = request.answerer {
            let Worker { retired, more_retired, fresh, .. } = &mut self.workers[worker];
            if *more_retired > 0 || retired.len() == RETIRED {
                *fresh = true;
                *more_retired += 1 + std::mem::take(retired).len();
            } else {
                retired.push(request.wire.clone());
            }
            let token = request.progress.as_ref().map(|token| &token.wire).filter(|token| **token != request.wire);
            self.workers[worker].retired_tokens.extend(token.cloned());
            self.workers[worker].may_create |= self.lines[request.line].creates();
            if self.lines[request.line].creates() {
                self.ends_early(worker, None);
            }
        }
        // The worker may load it yet.
        if matches!(self.lines[request.line].method, "session/load" | "session/resume") {
            self.is_loaded(&request.sessions);
            for session in self.sessions.iter_mut().filter(|at| request.sessions.contains(&at.serial)) {
                session.lent |= session.rank == Rank::Claimed;
            }
        }
        let loud = request.cancelled.is_some_and(|(_, loud)| loud);
        match request.asker {
            Some(asker) if loud => self.cancelled.push((asker, request.token)),
            Some(_) => self.count(Reason::Cancelled),
            None => {}
        }
    }

    /// A client will answer nothing more.
    pub fn leave_unanswered(&mut self, client: usize) {
        let (unanswered, rest) = std::mem::take(&mut self.to_clients)
            .into_iter()
            .partition(|request| request.answerer == Who::Client(client));
        self.to_clients = rest;
        for request in unanswered {
            let Some(worker) = request.asker else { continue };
            assert!(!self.is_there(worker), "{worker:?} still waits for {request:?}");
            self.count(Reason::ClientLeft);
        }
    }

    /// Panics if a request is overdue that somebody waits for.
    pub fn check_overdue(&self, now: Moment) {
        for request in self.to_workers.iter().filter(|request| request.asker.is_some() && request.cancelled.is_none()) {
            assert!(request.expires.is_none_or(|expires| expires > now), "it is overdue: {request:?}");
        }
    }

    /// So many claims were forgotten in this call, and the sessions that `is_left` says the bus has are left after it. A
    /// worker or a client that has ended in the same call may have taken some of the others with it (`is_over`).
    pub fn claims_expired(
        &mut self,
        now: Moment,
        how_many: u64,
        is_left: impl Fn(usize, &str) -> bool,
        is_over: impl Fn(Who) -> bool,
    ) {
        let (mut sure, mut all) = (0, 0);
        for session in std::mem::take(&mut self.sessions) {
            let in_use = is_in_use(&self.to_workers, &self.to_clients, session.serial);
            let is_old = now.since(session.used) >= CLAIM_KEPT;
            let may_go = session.rank == Rank::Claimed && !session.was_issued && !in_use && is_old;
            if !may_go || is_left(session.worker, &session.name) {
                self.sessions.push(session);
                continue;
            }
            all += 1;
            sure += u64::from(!is_over(Who::Client(session.client)) && !is_over(Who::Worker(session.worker)));
        }
        assert!((sure..=all).contains(&how_many), "{how_many} claims are forgotten, and not {sure} to {all}");
    }

    /// A client waits until it may send a line, or waits no more.
    pub fn waits(&mut self, now: Moment, client: usize, line: Option<usize>) {
        let client = &mut self.clients[client];
        let since = client.waits_since.take();
        // It may be paused for the very line that it has waited with.
        if let Some(since) = since {
            client.has_waited = now.since(since);
        }
        client.waits_since = line.map(|_| since.unwrap_or(now));
        client.waits_with = line;
    }

    /// Whether a client may have to wait for a worker to be started.
    pub fn awaits_worker(&self, client: usize) -> bool {
        let Some(line) = self.clients[client].waits_with.map(|line| &self.lines[line]) else { return false };
        if self.awaits_turn(client, line) {
            return true;
        }
        if self.settings.limits.hold.is_zero() {
            return false;
        }
        let lacks = |fate: &Fate| fate.lost.contains(&Reason::NoWorker);
        let fate = self.fate_of_client_line(client, line);
        // Why it will be refused may have come about while it waits.
        let is_vacant = || self.group_of(client, line).is_some_and(|group| lacks(&self.anybody(client, group)));
        lacks(&fate) || fate.to.is_empty() && is_vacant()
    }

    /// Whether a client may have to wait for its turn to get a worker of its own.
    fn awaits_turn(&self, client: usize, line: &Line) -> bool {
        let Some(group) = self.group_of(client, line) else { return false };
        let has = |(of, worker): &(usize, usize)| *of == group && self.workers[*worker].takes;
        self.pools_of(group).1 == Assignment::Dedicated && !self.clients[client].assigned.iter().any(has)
    }

    /// What a client waits with, and what is thought to become of it.
    pub fn waiting_text(&self, who: Who) -> String {
        let Who::Client(client) = who else { return String::new() };
        let line = self.clients[client].waits_with;
        line.map_or_else(String::new, |line| {
            let fate = self.fate_of_client_line(client, &self.lines[line]);
            format!("line {line}: to {:?}, lost {:?}", fate.to, fate.lost)
        })
    }

    fn waits_for(&self, client: usize, worker: usize) -> bool {
        let line = self.clients[client].waits_with.filter(|_| !self.clients[client].closed);
        // Why it will be refused may have come about while it waits, and what it names is looked at once there is room.
        let is_awaited = |fate: Fate| {
            fate.to.is_empty() || fate.to.contains(&Who::Worker(worker)) || fate.lost.contains(&Reason::UnknownRequest)
        };
        line.is_some_and(|line| is_awaited(self.fate_of_client_line(client, &self.lines[line])))
    }

    /// Whether a worker's line waits for a client that is full, while others use that worker.
    pub fn holds_up(&self, worker: usize, line: usize) -> bool {
        let fate = self.fate_of_worker_line(worker, &self.lines[line]);
        let is_for_all = !self.told_all(worker, &self.lines[line]).is_empty();
        let slow = |to: &Who| matches!(to, Who::Client(client) if self.is_full(*to) && self.is_used(worker, *client));
        self.workers[worker].owner.is_none() && !is_for_all && fate.to.iter().any(slow)
    }

    /// Whether others than this client have a session or an unanswered request on a worker.
    fn is_used(&self, worker: usize, client: usize) -> bool {
        let others = |who: Option<Who>| who.is_some_and(|who| who != Who::Client(client));
        let asked = self.to_workers.iter().any(|at| at.answerer == Who::Worker(worker) && others(at.asker));
        asked || self.sessions.iter().any(|at| at.worker == worker && at.client != client)
    }

    /// Whether others than this client use a worker, or may be waiting for it.
    pub fn is_shared(&self, worker: usize, client: usize) -> bool {
        let waits = (0..self.clients.len()).any(|other| other != client && self.waits_for(other, worker));
        waits || self.is_used(worker, client)
    }

    /// Whether others than this client used a worker a moment ago.
    fn was_shared(&self, now: Moment, worker: usize, client: usize) -> bool {
        let used = &self.workers[worker].used_at;
        used.iter().any(|(other, at)| *other != client && now.since(*at) <= BELIEVED)
    }

    /// The clients that have something to expect of a worker.
    fn clients_of(&self, worker: usize) -> BTreeSet<usize> {
        let asked = self.to_workers.iter().filter(|at| at.answerer == Who::Worker(worker)).filter_map(|at| at.asker);
        let asked = asked.filter_map(|who| if let Who::Client(client) = who { Some(client) } else { None });
        let owners = self.sessions.iter().filter(|at| at.worker == worker).map(|at| at.client);
        let waiting = (0..self.clients.len()).filter(|client| self.waits_for(*client, worker));
        asked.chain(owners).chain(waiting).collect()
    }

    /// Whether a client is read with pauses, since its requests seem to end their workers or it cancels nothing.
    pub fn is_suspect(&self, now: Moment, client: usize) -> bool {
        self.clients[client].slowed_until.is_some_and(|until| now < until)
    }

    /// No peer may be stuck for longer than the timeout.
    pub fn check_stalls(&self, now: Moment) {
        let timeout = self.settings.limits.backpressure_timeout;
        for (who, output) in &self.outputs {
            let stuck = output.full && self.is_there(*who) && now.since(output.moved_at) >= timeout;
            assert!(!stuck, "{who:?} has taken nothing since {:?}", output.moved_at);
        }
    }

    /// Everything that hung on a worker is settled.
    pub fn settled(&mut self, worker: usize) {
        let me = Who::Worker(worker);
        self.workers[worker].takes = false;
        for request in std::mem::take(&mut self.to_workers) {
            if let (true, Some(asker)) = (request.answerer == me, request.asker) {
                self.blamed.push((worker, asker));
            }
            if request.answerer != me {
                self.to_workers.push(request);
            } else {
                assert!(request.asker.is_none(), "nobody was told that {request:?} is lost");
            }
        }
        self.unasks(worker);
        for session in std::mem::take(&mut self.sessions) {
            if session.worker != worker {
                self.sessions.push(session);
            } else if session.rank == Rank::Issued || session.was_issued {
                let lost = &mut self.clients[session.client].lost;
                lost.retain(|(name, _)| *name != session.name);
                lost.push((session.name, true));
                lost.drain(..lost.len().saturating_sub(LOST_NAMES));
            }
        }
        self.held.retain(|held| held.worker != worker);
        self.ends_early(worker, None);
        self.let_go();
    }

    /// A worker is gone for good.
    pub fn released(&mut self, now: Moment, worker: usize) {
        self.settled(worker);
        for (at, client) in self.clients.iter_mut().enumerate() {
            if self.blamed.contains(&(worker, Who::Client(at))) {
                client.crashes += 1;
                if let Some(more) = client.crashes.checked_sub(SUSPECT_AFTER) {
                    let pause = PENALTY.saturating_mul(1 << more.min(16)).min(LONGEST_PENALTY);
                    client.slowed_until = client.slowed_until.max(Some(now.after(pause)));
                }
            }
        }
        self.workers[worker].released = true;
        self.vacant.push((self.workers[worker].pool, now));
        self.unsent += self.outputs.remove(&Who::Worker(worker)).unwrap_or_default().queued as u64;
        for client in &mut self.clients {
            client.assigned.retain(|(_, assigned)| *assigned != worker);
        }
    }

    /// A client's descriptor is closed.
    pub fn gone(&mut self, client: usize) {
        self.clients[client].gone = true;
        self.unsent += self.outputs.remove(&Who::Client(client)).unwrap_or_default().queued as u64;
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

    /// How many requests of clients wait for an answer or an error that they would be told.
    pub fn asked_by_clients(&self) -> usize {
        self.to_workers.iter().filter(|request| request.asker.is_some()).count()
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

/// The id that the answerer sees: another one, never seen before, where it knows this one already, where parsers read
/// this one differently, and where it may be answered by mistake (`fresh`).
fn translated(
    mut request: Request,
    line: &Line,
    ids: &Ids,
    pending: &[Request],
    made: &mut BTreeSet<String>,
    [fresh, is_late]: [bool; 2],
) -> Request {
    let token = line.id.clone().expect("a request has an id");
    let seen = ids.id.clone().expect("an id arrives");
    request.wire = meaning(&seen);
    let known = |id: &str| pending.iter().any(|other| other.answerer == request.answerer && other.wire == id);
    request.replaced = fresh || !is_plain(&token) || known(&meaning(&token));
    if request.replaced {
        let number: u64 = seen.trim_matches('"').parse().unwrap_or_default();
        assert!(MADE.contains(&number), "the id {token} was replaced by {seen}: {line:?}");
        assert!(made.insert(number.to_string()), "the id {seen} was made twice: {line:?}");
        assert_eq!(seen.starts_with('"'), token.starts_with('"'), "the type of an id changed");
    } else {
        assert_eq!(seen, token, "an id was changed without need");
    }
    if let (Some(token), Some(seen_token)) = (&line.token, &ids.token) {
        let follows = request.replaced && line.id.as_deref().map(meaning) == Some(meaning(token));
        let is_known = |other: &Request| {
            let has = other.progress.as_ref().is_some_and(|other| other.wire == meaning(token));
            has && other.answerer == request.answerer
        };
        let replaced = follows || is_late || !is_plain(token) || pending.iter().any(is_known);
        if follows {
            assert_eq!(*seen_token, seen, "a token goes with the id that it is: {line:?}");
        } else if replaced {
            let number: u64 = seen_token.trim_matches('"').parse().unwrap_or_default();
            assert!(MADE.contains(&number), "the token {token} was replaced by {seen_token}: {line:?}");
            assert!(made.insert(number.to_string()), "the token {seen_token} was made twice: {line:?}");
            assert_eq!(seen_token.starts_with('"'), token.starts_with('"'), "the type of a token changed");
        } else {
            assert_eq!(seen_token, token, "a token was changed without need: {line:?}");
        }
        request.progress = Some(Token { wire: meaning(seen_token), token: token.clone(), replaced });
    }
    request.token = token;
    request
}

/// Whether a name that something is told under may be one that a client has given, and the worker was sent.
fn names_itself(line: &Line) -> bool {
    let name = line.progress.as_ref().or(line.subscription.as_ref());
    name.is_some_and(|name| is_plain(name) && meaning(name).len() <= MAX_REQUEST_ID_LEN + 2)
}

/// The name that something is told under for a request, as its asker knows it.
fn is_told_as<'a>(request: &'a Request, line: &'a Line) -> Option<&'a String> {
    let token = request.progress.as_ref().filter(|token| token.replaced);
    match (&line.progress, &line.subscription) {
        (Some(progress), _) => Some(token.map_or(progress, |token| &token.token)),
        (_, Some(_)) if request.replaced => Some(&request.token),
        (_, subscription) => subscription.as_ref(),
    }
}
