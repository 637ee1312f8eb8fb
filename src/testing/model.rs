//! What must become of every line: lists, searched from the front, that know nothing of the tables of the core. The
//! world tells the model what the bus was given and what it did; the model panics when that is wrong.
//!
//! Where the bus has a choice (which worker takes a new session), the model knows who may be chosen and learns from
//! the bus who was.

use std::collections::BTreeMap;
use std::time::Duration;

use super::line::{Kind, Line, Who, meaning};
use crate::bus::drain::Stage;
use crate::bus::port::Moment;
use crate::bus::report::Reason;
use crate::bus::settings::{
    Assignment, IdCollision, MAX_REQUEST_ID_LEN, MAX_SESSION_ID_LEN, Pool, SessionAccess, Settings,
};

/// Reasons for which a single line or a single request is lost: the model foresees each of them.
const FORESEEN: [Reason; 20] = [
    Reason::NoWorker,
    Reason::SessionLimit,
    Reason::PendingLimit,
    Reason::SessionDenied,
    Reason::IdTooLong,
    Reason::SessionIdTooLong,
    Reason::UnknownPool,
    Reason::IdCollision,
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
];

/// Reasons for which a pending request is given up. Without error replies the model cannot see which of them it was.
const GIVEN_UP: [Reason; 3] = [Reason::WorkerGone, Reason::ShuttingDown, Reason::RequestDiscarded];

/// No worker is started again sooner than this.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);

/// A client as the model sees it.
struct Client {
    group: usize,
    half_closed: bool,
    closed: bool,
    assigned: Vec<(usize, usize)>,
}

/// A worker as the model sees it.
struct Worker {
    pool: usize,
    /// Messages may be given to it.
    takes: bool,
    owner: Option<usize>,
    released: bool,
}

#[derive(Debug)]
struct Session {
    serial: usize,
    client: usize,
    worker: usize,
    name: String,
    confirmed: bool,
}

/// A request that waits for its answer.
#[derive(Debug)]
struct Request {
    line: usize,
    asker: Option<Who>,
    answerer: Who,
    /// What the answerer knows it by.
    wire: String,
    /// The token to restore, if that is another one.
    original: Option<String>,
    /// What the asker knows it by.
    id: String,
    session: Option<usize>,
    expires: Option<Moment>,
}

/// What is queued for a peer.
#[derive(Default)]
struct Output {
    queued: usize,
    full: bool,
    moved_at: Moment,
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
    to_workers: Vec<Request>,
    to_clients: Vec<Request>,
    outputs: BTreeMap<Who, Output>,
    counts: Vec<u64>,
    given_up: u64,
    /// Lines that were lost for one of several reasons: the client has sessions of one name in one pool.
    doubts: Vec<Vec<Reason>>,
    expected_replies: Vec<(Who, String, &'static str)>,
    seen_replies: Vec<(Who, String, &'static str)>,
    /// Pools that a worker has left, and when.
    vacant: Vec<(usize, Moment)>,
    /// Workers whose requests were given up in this step: they must have stopped by its end.
    accused: Vec<usize>,
    /// Lines that went from one peer to another, to see that order is kept.
    last_line: BTreeMap<(Who, Who), usize>,
    /// The bus refuses new requests, since it shuts down, at the end of this step.
    pub refusing: bool,
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
            to_workers: Vec::new(),
            to_clients: Vec::new(),
            outputs: BTreeMap::new(),
            counts: vec![0; Reason::ALL.len()],
            given_up: 0,
            doubts: Vec::new(),
            expected_replies: Vec::new(),
            seen_replies: Vec::new(),
            vacant: Vec::new(),
            accused: Vec::new(),
            last_line: BTreeMap::new(),
            refusing: false,
            refused: false,
            unsent: 0,
            answered: 0,
        }
    }

    /// A client has connected.
    pub fn connected(&mut self, listener: usize) {
        let pools = self.settings.pools.len();
        let group = self.settings.listeners[listener].pool.unwrap_or(if pools == 1 { 0 } else { pools });
        self.clients.push(Client { group, half_closed: false, closed: false, assigned: Vec::new() });
    }

    /// A worker is being started.
    pub fn started(&mut self, now: Moment, pool: usize) {
        let Pool { instances, assignment, .. } = self.settings.pools[pool];
        let before = self.workers.iter().filter(|worker| worker.pool == pool).count();
        if before >= instances && assignment != Assignment::Dedicated {
            let seat = self.vacant.iter().position(|(of, since)| *of == pool && now.since(*since) >= FIRST_BACKOFF);
            self.vacant.remove(seat.expect("a seat is vacant for as long as the first backoff"));
        }
        self.workers.push(Worker { pool, takes: true, owner: None, released: false });
        let live = self.workers.iter().filter(|worker| worker.pool == pool && !worker.released).count();
        assert!(live <= self.settings.pools[pool].max_instances, "pool {pool} has {live} workers");
        assert!(!self.refused, "a worker is started during the drain");
    }

    /// How many seats are empty that should not be.
    pub fn seats_empty(&self) -> usize {
        let empty = self.settings.pools.iter().enumerate().map(|(pool, settings)| {
            let live = self.workers.iter().filter(|worker| worker.pool == pool && !worker.released);
            let (owned, spare): (Vec<_>, Vec<_>) = live.partition(|worker| worker.owner.is_some());
            settings.instances.min(settings.max_instances - owned.len()).saturating_sub(spare.len())
        });
        empty.sum()
    }

    /// Nothing may be sent to this worker any more.
    pub fn stops(&mut self, worker: usize) {
        self.workers[worker].takes = false;
    }

    /// Whether the worker may be given messages.
    pub fn takes(&self, worker: usize) -> bool {
        self.workers[worker].takes
    }

    /// A client that waits to send line `number` has got a worker of its own.
    pub fn claimed(&mut self, client: usize, worker: usize, number: usize) {
        if self.workers[worker].owner.is_none()
            && let Some(group) = self.group_of(client, &self.lines[number])
        {
            assert_eq!(self.pools_of(group).1, Assignment::Dedicated);
            self.workers[worker].owner = Some(client);
            self.clients[client].assigned.retain(|(of, _)| *of != group);
            self.clients[client].assigned.push((group, worker));
        }
    }

    /// A client has ended its input.
    pub fn half_closed(&mut self, client: usize) {
        self.clients[client].half_closed = true;
    }

    fn count(&mut self, reason: Reason) {
        if GIVEN_UP.contains(&reason) || (!self.settings.routing.error_replies && reason == Reason::Timeout) {
            self.given_up += 1;
        }
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
        self.outputs.iter().any(|(who, output)| output.full && self.is_there(*who))
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
        let shared: Vec<usize> =
            (0..pools.len()).filter(|pool| pools[*pool].assignment != Assignment::Dedicated).collect();
        if shared.is_empty() {
            return (vec![0], Assignment::Dedicated);
        }
        let sticky = shared.iter().any(|pool| pools[*pool].assignment == Assignment::Client);
        (shared, if sticky { Assignment::Client } else { Assignment::RoundRobin })
    }

    /// Who may take a message of `client` that belongs to no session.
    fn anybody(&self, client: usize, group: usize) -> Fate {
        let (pools, assignment) = self.pools_of(group);
        if assignment != Assignment::RoundRobin
            && let Some((_, worker)) = self.clients[client].assigned.iter().find(|(of, _)| *of == group)
            && self.workers[*worker].takes
        {
            return Fate { group: Some(group), ..Fate::to(Who::Worker(*worker)) };
        }
        let free = |worker: &Worker| worker.takes && worker.owner.is_none() && pools.contains(&worker.pool);
        let to: Vec<Who> =
            self.workers.iter().enumerate().filter(|(_, worker)| free(worker)).map(|(at, _)| Who::Worker(at)).collect();
        let lost = if to.is_empty() { vec![Reason::NoWorker] } else { Vec::new() };
        Fate { to, lost, group: Some(group) }
    }

    fn usable(&self, workers: impl Iterator<Item = usize>) -> Fate {
        let mut fate = Fate::default();
        for worker in workers {
            if self.workers[worker].takes {
                fate.to.push(Who::Worker(worker));
            } else {
                fate.lost.push(Reason::WorkerGone);
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
        if self.refusing {
            return Fate::lost(Reason::ShuttingDown);
        }
        if line.id.as_deref().is_some_and(|id| meaning(id).len() > MAX_REQUEST_ID_LEN + 2) {
            return Fate::lost(Reason::IdTooLong);
        }
        let mut fate = match &line.session {
            Some(name) => self.fate_in_session(client, line, name),
            None if line.request_id.is_some() && line.id.is_none() => {
                let mine = self.named(&self.to_workers, me, line);
                let there = mine.into_iter().map(|request| request.answerer).filter(|who| self.is_there(*who));
                let to: Vec<Who> = there.collect();
                if to.is_empty() { Fate::lost(Reason::UnknownRequest) } else { Fate { to, ..Fate::default() } }
            }
            None => match self.group_of(client, line) {
                Some(group) => self.anybody(client, group),
                None => Fate::lost(Reason::UnknownPool),
            },
        };
        if line.session.is_some() && line.kind == Kind::Notification && line.request_id.is_some() {
            // It must not cancel a request of somebody else.
            let id = line.request_id.as_deref().map(meaning).unwrap_or_default();
            let mine = self.named(&self.to_workers, me, line);
            let hits_another = |to: &Who| {
                !mine.iter().any(|request| request.answerer == *to)
                    && self.to_workers.iter().any(|request| request.answerer == *to && request.wire == id)
            };
            let before = fate.to.len();
            fate.to.retain(|to| !hits_another(to));
            if fate.to.len() < before {
                fate.lost.push(Reason::UnknownRequest);
            }
        }
        self.reject_collisions(line, &self.to_workers, fate)
    }

    fn reject_collisions(&self, line: &Line, requests: &[Request], mut fate: Fate) -> Fate {
        if let (Some(id), IdCollision::Reject) = (&line.id, self.settings.routing.id_collision) {
            let id = meaning(id);
            let before = fate.to.len();
            fate.to.retain(|to| !requests.iter().any(|request| request.answerer == *to && request.wire == id));
            if fate.to.len() < before {
                fate.lost.push(Reason::IdCollision);
            }
        }
        fate
    }

    fn group_of(&self, client: usize, line: &Line) -> Option<usize> {
        let Some(name) = &line.pool else { return Some(self.clients[client].group) };
        self.settings.pools.iter().position(|pool| pool.id == *name)
    }

    fn fate_in_session(&self, client: usize, line: &Line, name: &str) -> Fate {
        if name.len() > MAX_SESSION_ID_LEN {
            return Fate::lost(Reason::SessionIdTooLong);
        }
        let mine = self.sessions.iter().filter(|session| session.client == client && session.name == name);
        let mine: Vec<usize> = mine.map(|session| session.worker).collect();
        if let (None, Some(first)) = (&line.pool, mine.first()) {
            return self.usable(std::iter::once(*first));
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
        match (theirs.is_empty(), self.settings.routing.session_access) {
            (true, _) => self.anybody(client, group),
            (false, SessionAccess::Owner) => Fate::lost(Reason::SessionDenied),
            (false, SessionAccess::Shared) => self.usable(theirs.into_iter()),
        }
    }

    /// The requests of `asker` that a line's requestId means.
    fn named<'a>(&self, requests: &'a [Request], asker: Who, line: &Line) -> Vec<&'a Request> {
        let Some(id) = line.request_id.as_deref().map(meaning) else { return Vec::new() };
        requests.iter().filter(|request| request.asker == Some(asker) && request.id == id).collect()
    }

    fn fate_of_worker_line(&self, worker: usize, line: &Line) -> Fate {
        let me = Who::Worker(worker);
        if line.kind == Kind::Response {
            let id = line.id.as_deref().map(meaning).unwrap_or_default();
            return match self.to_workers.iter().find(|request| request.answerer == me && request.wire == id) {
                None => Fate::lost(Reason::UnknownId),
                Some(Request { asker: Some(asker), .. }) => Fate::to(*asker),
                Some(_) => Fate::lost(Reason::LateAnswer),
            };
        }
        if line.id.as_deref().is_some_and(|id| meaning(id).len() > MAX_REQUEST_ID_LEN + 2) {
            return Fate::lost(Reason::IdTooLong);
        }
        let owner = self.workers[worker].owner;
        let target = if let Some(name) = &line.session {
            let session = self.sessions.iter().find(|session| session.worker == worker && session.name == *name);
            session.map(|session| session.client).or(owner).ok_or(Reason::UnknownSession)
        } else if line.request_id.is_some() {
            let about = self.request_meant_by(worker, line);
            let client = about.and_then(|request| match line.kind {
                Kind::Notification => Some(request.answerer),
                _ => request.asker,
            });
            match client {
                Some(Who::Client(client)) => Ok(client),
                _ => owner.ok_or(Reason::UnknownRequest),
            }
        } else {
            owner.ok_or(Reason::Unroutable)
        };
        let fate = match target {
            Err(reason) => Fate::lost(reason),
            // It cannot answer any more.
            Ok(client) if self.clients[client].half_closed && line.kind == Kind::Request => {
                Fate::lost(Reason::UnknownSession)
            }
            Ok(client) if self.clients[client].closed => Fate::lost(Reason::UnknownSession),
            Ok(client) => Fate::to(Who::Client(client)),
        };
        self.reject_collisions(line, &self.to_clients, fate)
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
        let fate = match line.from {
            Who::Client(client) => self.fate_of_client_line(client, &line),
            Who::Worker(worker) => self.fate_of_worker_line(worker, &line),
        };
        assert!(fate.to.contains(&to), "line {number} went to {to:?}, but {fate:?}: {line:?}");
        assert!(!self.is_full(to), "line {number} was queued for {to:?}, which is full");
        let Some((id, request_id)) = line.ids_of(text) else {
            panic!("line {number} was changed:\n{line:?}\n{}", text.escape_ascii());
        };
        let last = self.last_line.insert((line.from, to), number);
        assert!(last.is_none_or(|last| last < number), "line {number} came to {to:?} after {last:?}");
        match (line.from, to) {
            (Who::Client(client), Who::Worker(worker)) if line.kind != Kind::Response => {
                self.client_message(now, number, client, worker, &fate, id, request_id)
            }
            (Who::Worker(worker), Who::Client(client)) if line.kind != Kind::Response => {
                self.worker_message(number, worker, client, id, request_id)
            }
            (Who::Worker(worker), Who::Client(client)) => self.worker_response(number, worker, client, id),
            (Who::Client(_), Who::Worker(_)) => {
                let request = self.answered_by(number, false);
                let expected = request.original.as_ref().or(line.id.as_ref());
                assert_eq!(id.as_ref(), expected, "the id of a worker was not restored");
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

    #[allow(clippy::too_many_arguments)]
    fn client_message(
        &mut self,
        now: Moment,
        number: usize,
        client: usize,
        worker: usize,
        fate: &Fate,
        id: Option<String>,
        request_id: Option<String>,
    ) {
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
            }
        }
        let session = line.session.as_ref().and_then(|name| self.session_used(client, worker, name));
        if line.kind == Kind::Notification {
            let mine = self.named(&self.to_workers, Who::Client(client), &line);
            let mut mine = mine.into_iter().filter(|request| request.answerer == Who::Worker(worker)).peekable();
            let seen = request_id.as_deref();
            let right = match mine.peek() {
                None => seen == line.request_id.as_deref(),
                Some(_) => mine.any(|request| match request.original {
                    None => seen == line.request_id.as_deref(),
                    Some(_) => seen.map(meaning).as_ref() == Some(&request.wire),
                }),
            };
            assert!(right, "a cancellation names {seen:?}: {line:?}");
            return;
        }
        assert_eq!(request_id, line.request_id, "only a notification cancels");
        let timeout = self.settings.pools[self.workers[worker].pool].request_timeout;
        let request = Request {
            line: number,
            asker: Some(Who::Client(client)),
            answerer: Who::Worker(worker),
            wire: String::new(),
            original: None,
            id: String::new(),
            session,
            expires: timeout.map(|timeout| now.after(timeout)),
        };
        let request = translated(request, &line, id, &self.to_workers);
        self.to_workers.push(request);
    }

    fn session_used(&mut self, client: usize, worker: usize, name: &str) -> Option<usize> {
        if let Some(session) = self.sessions.iter().find(|session| session.worker == worker && session.name == *name) {
            let shared = self.settings.routing.session_access == SessionAccess::Shared;
            assert!(session.client == client || shared, "a foreign session was used");
            return (session.client == client).then_some(session.serial);
        }
        Some(self.new_session(client, worker, name))
    }

    fn new_session(&mut self, client: usize, worker: usize, name: &str) -> usize {
        let serial = self.next_session;
        self.next_session += 1;
        self.sessions.push(Session { serial, client, worker, name: name.into(), confirmed: false });
        serial
    }

    fn worker_message(
        &mut self,
        number: usize,
        worker: usize,
        client: usize,
        id: Option<String>,
        request_id: Option<String>,
    ) {
        let line = self.lines[number].clone();
        let about = self.request_meant_by(worker, &line);
        let expected = match (line.kind, about) {
            (Kind::Notification, Some(request))
                if request.answerer == Who::Client(client) && request.original.is_some() =>
            {
                Some(request.wire.clone())
            }
            (Kind::Request, Some(request)) if request.asker == Some(Who::Client(client)) => request.original.clone(),
            _ => None,
        };
        match expected {
            Some(expected) => assert_eq!(request_id.as_deref().map(meaning), Some(meaning(&expected)), "{line:?}"),
            None => assert_eq!(request_id, line.request_id, "{line:?}"),
        }
        if line.kind == Kind::Request {
            let request = Request {
                line: number,
                asker: Some(Who::Worker(worker)),
                answerer: Who::Client(client),
                wire: String::new(),
                original: None,
                id: String::new(),
                session: None,
                expires: None,
            };
            let request = translated(request, &line, id, &self.to_clients);
            self.to_clients.push(request);
        }
    }

    fn worker_response(&mut self, number: usize, worker: usize, client: usize, id: Option<String>) {
        let line = self.lines[number].clone();
        let request = self.answered_by(number, true);
        self.answered += 1;
        let expected = request.original.as_ref().or(line.id.as_ref());
        assert_eq!(id.as_ref(), expected, "the id of {:?} was not restored", request.line);
        if !line.result {
            return;
        }
        let method = self.lines[request.line].method;
        if let Some(session) = request.session {
            if method == "session/close" || method == "session/delete" {
                self.sessions.retain(|known| known.serial != session);
            } else if let Some(session) = self.sessions.iter_mut().find(|known| known.serial == session) {
                session.confirmed = true;
            }
        }
        let Some(name) = line.result_session else { return };
        match self.sessions.iter_mut().find(|session| session.worker == worker && session.name == name) {
            Some(session) if session.client == client => session.confirmed = true,
            Some(session) if session.confirmed => self.count(Reason::SessionReused),
            squatted => {
                let squatted = squatted.map(|session| session.serial);
                self.sessions.retain(|session| Some(session.serial) != squatted);
                self.new_session(client, worker, &name);
                self.sessions.last_mut().expect("it was pushed").confirmed = true;
            }
        }
    }

    /// The bus has taken line `number` and queued it for nobody. Gives the reason that it must have had.
    pub fn dropped(&mut self, number: usize) -> Option<Reason> {
        let line = self.lines[number].clone();
        if line.kind == Kind::Blank {
            return None;
        }
        assert!(!matches!(line.kind, Kind::Malformed | Kind::TooLong), "a bad line passed: {line:?}");
        let fate = match line.from {
            Who::Client(client) => self.fate_of_client_line(client, &line),
            Who::Worker(worker) => self.fate_of_worker_line(worker, &line),
        };
        let Some(reason) = fate.lost.first().copied() else {
            panic!("line {number} was lost; it should have gone to {:?}: {line:?}", fate.to)
        };
        if fate.lost.iter().any(|other| *other != reason) {
            self.doubts.push(fate.lost);
        } else {
            self.count(reason);
        }
        if reason == Reason::LateAnswer {
            self.answered_by(number, matches!(line.from, Who::Worker(_)));
        }
        let told = match line.from {
            Who::Client(_) => true,
            Who::Worker(worker) => self.workers[worker].takes,
        };
        if line.kind == Kind::Request && told && self.settings.routing.error_replies {
            let id = meaning(line.id.as_deref().expect("a request has an id"));
            self.expected_replies.push((line.from, id, reason.name()));
        }
        Some(reason)
    }

    /// Whether this line of the bus refuses a message that it is just hearing.
    pub fn said_refusal(&self, hearing: Option<Who>, to: Who, text: &[u8]) -> bool {
        let value: serde_json::Value = serde_json::from_slice(text).expect("the bus writes JSON");
        hearing == Some(to) && !value["id"].is_null() && value["error"]["data"]["reason"] != "client_left"
    }

    /// The bus has queued a line of its own for `to`. `hearing` is the peer whose bytes it was given.
    pub fn said(&mut self, now: Moment, hearing: Option<Who>, to: Who, text: &[u8]) {
        self.queued(now, to, text.len());
        let value: serde_json::Value = serde_json::from_slice(text).expect("the bus writes JSON");
        if value["method"] == "session/cancel" {
            let Who::Worker(worker) = to else { panic!("a client was told to cancel") };
            let name = value["params"]["sessionId"].as_str().expect("a session has a name");
            assert!(self.settings.pools[self.workers[worker].pool].cancel_on_disconnect);
            assert!(self.sessions.iter().any(|session| session.worker == worker && session.name == name));
            assert!(self.workers[worker].takes, "a worker that does not listen is spoken to");
            return;
        }
        assert!(self.settings.routing.error_replies, "an error reply: {}", text.escape_ascii());
        let reason = value["error"]["data"]["reason"].as_str().expect("an error has a reason").to_owned();
        if value["id"].is_null() {
            assert!(matches!(to, Who::Client(_)) && value["error"]["code"].is_i64());
            return;
        }
        let id = meaning(&value["id"].to_string());
        if reason == "client_left" {
            let at = self.to_clients.iter().position(|request| request.asker == Some(to) && request.id == id);
            let request = self.to_clients.remove(at.expect("a request of a worker was pending"));
            let Who::Client(client) = request.answerer else { panic!("{request:?}") };
            self.count(Reason::RequestDiscarded);
            assert!(self.is_there(to), "a worker that does not listen is spoken to");
            assert!(!self.clients[client].closed);
            return;
        }
        let reason = Reason::ALL.iter().find(|known| known.name() == reason).expect("a reason has a name");
        if hearing == Some(to) {
            self.seen_replies.push((to, id, reason.name()));
            return;
        }
        self.gave_up(now, to, &id, *reason);
    }

    /// A pending request was answered with an error.
    fn gave_up(&mut self, now: Moment, to: Who, id: &str, reason: Reason) {
        let request = self.to_workers.iter_mut().find(|request| request.asker == Some(to) && request.id == id);
        let Some(request) = request else { panic!("{to:?} was told {reason:?} about {id}, which is not pending") };
        request.asker = None;
        let Who::Worker(worker) = request.answerer else { panic!("{request:?}") };
        match reason {
            Reason::Timeout => {
                let Who::Client(client) = to else { panic!("{to:?} waits for a client") };
                let overdue = request.expires.is_some_and(|at| at <= now) || self.clients[client].half_closed;
                assert!(overdue, "too early: {request:?}");
            }
            Reason::WorkerGone => {
                assert!(!self.refused);
                self.accused.push(worker);
            }
            Reason::ShuttingDown => {
                assert!(self.refusing);
                self.accused.push(worker);
            }
            _ => panic!("a request was given up for {reason:?}"),
        }
        self.count(reason);
    }

    /// A client is being closed: what hung on it is settled. One that waits for answers needs an `excuse` for it.
    pub fn closing(&mut self, client: usize, excuse: bool) {
        let me = Who::Client(client);
        let waits = self.to_workers.iter().any(|request| request.asker == Some(me));
        let early = waits && self.clients[client].half_closed && self.settings.routing.error_replies;
        assert!(!early || excuse, "client {client} is closed before its answers have come");
        if std::mem::replace(&mut self.clients[client].closed, true) {
            return;
        }
        for at in 0..self.to_workers.len() {
            if self.to_workers[at].asker == Some(me) {
                self.to_workers[at].asker = None;
                self.count(Reason::RequestDiscarded);
            }
        }
        self.leave_unanswered(client);
        self.sessions.retain(|session| session.client != client);
    }

    /// A client will answer nothing more.
    pub fn leave_unanswered(&mut self, client: usize) {
        let (unanswered, rest) = std::mem::take(&mut self.to_clients)
            .into_iter()
            .partition(|request| request.answerer == Who::Client(client));
        self.to_clients = rest;
        for request in unanswered {
            let Some(worker) = request.asker else { continue };
            let told = self.settings.routing.error_replies && self.is_there(worker);
            assert!(!told, "{worker:?} still waits for {request:?}");
            self.count(Reason::RequestDiscarded);
        }
    }

    /// Requests that nobody was told about are overdue: only without error replies.
    pub fn expire(&mut self, now: Moment) {
        for at in 0..self.to_workers.len() {
            let request = &mut self.to_workers[at];
            if request.asker.is_some() && request.expires.is_some_and(|expires| expires <= now) {
                assert!(!self.settings.routing.error_replies, "it is overdue: {request:?}");
                request.asker = None;
                self.count(Reason::Timeout);
            }
        }
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
            if request.answerer != me {
                self.to_workers.push(request);
            } else if request.asker.is_some() {
                assert!(!self.settings.routing.error_replies, "nobody was told that {request:?} is lost");
                self.count(Reason::WorkerGone);
            }
        }
        for request in &mut self.to_clients {
            if request.asker == Some(me) {
                request.asker = None;
            }
        }
        self.sessions.retain(|session| session.worker != worker);
    }

    /// A worker is gone for good.
    pub fn released(&mut self, now: Moment, worker: usize) {
        self.settled(worker);
        self.workers[worker].released = true;
        self.vacant.push((self.workers[worker].pool, now));
        self.unsent += self.outputs.remove(&Who::Worker(worker)).unwrap_or_default().queued as u64;
        for client in &mut self.clients {
            client.assigned.retain(|(_, assigned)| *assigned != worker);
        }
    }

    /// A client's descriptor is closed.
    pub fn gone(&mut self, client: usize) {
        self.unsent += self.outputs.remove(&Who::Client(client)).unwrap_or_default().queued as u64;
    }

    /// Compares with the bus, after each step.
    pub fn check(&mut self, bus: &crate::bus::Bus) {
        assert_eq!(self.seen_replies, self.expected_replies, "error replies");
        self.seen_replies.clear();
        self.expected_replies.clear();
        for worker in std::mem::take(&mut self.accused) {
            assert!(!self.workers[worker].takes, "requests of worker {worker} were given up, and it goes on");
        }
        for (at, worker) in self.workers.iter().enumerate() {
            let orphaned = worker.owner.is_some_and(|owner| self.clients[owner].closed);
            assert!(!orphaned || !worker.takes, "worker {at} outlives the client that it belongs to");
        }
        let idle = bus.stage() == Stage::Terminating && self.workers.iter().all(|worker| worker.released);
        assert!(!idle, "the shutdown waits for workers that are gone");
        let waits = self.to_workers.iter().any(|request| request.asker.is_some());
        assert!(bus.stage() != Stage::Quiescing || waits, "the shutdown waits for nothing");
        let stats = bus.stats();
        assert_eq!(stats.sessions, self.sessions.len(), "sessions: {:?}", self.sessions);
        let pending = self.to_workers.len() + self.to_clients.len();
        assert_eq!(stats.pending, pending, "pending: {:?} {:?}", self.to_workers, self.to_clients);
        assert_eq!(stats.bytes_unsent, self.unsent, "bytes unsent");
        for mut doubt in std::mem::take(&mut self.doubts) {
            // What is known in sum only says nothing about this line as long as another reason can be the one.
            doubt.sort_by_key(|reason| GIVEN_UP.contains(reason));
            let likely = doubt.iter().find(|reason| bus.count(**reason) > self.counts[**reason as usize]);
            self.count(*likely.unwrap_or(&doubt[0]));
        }
        let replies = self.settings.routing.error_replies;
        for reason in FORESEEN {
            if replies || reason != Reason::Timeout {
                assert_eq!(bus.count(reason), self.counts[reason as usize], "{}", reason.name());
            }
        }
        let counted = |reason: Reason| bus.count(reason);
        let timeouts = if replies { 0 } else { counted(Reason::Timeout) };
        assert_eq!(GIVEN_UP.map(counted).iter().sum::<u64>() + timeouts, self.given_up, "requests given up");
        if replies {
            for reason in GIVEN_UP {
                assert_eq!(counted(reason), self.counts[reason as usize], "{}", reason.name());
            }
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

/// The id that the answerer sees: another one exactly when it knows this one already.
fn translated(mut request: Request, line: &Line, seen: Option<String>, pending: &[Request]) -> Request {
    let token = line.id.clone().expect("a request has an id");
    let seen = seen.expect("an id arrives");
    request.id = meaning(&token);
    request.wire = meaning(&seen);
    let known = |id: &str| pending.iter().any(|other| other.answerer == request.answerer && other.wire == id);
    if known(&request.id) {
        assert!(!known(&request.wire), "two requests have the id {seen}: {line:?}");
        assert_eq!(seen.starts_with('"'), token.starts_with('"'), "the type of an id changed");
        request.original = Some(token);
    } else {
        assert_eq!(seen, token, "an id was changed without need");
    }
    request
}
