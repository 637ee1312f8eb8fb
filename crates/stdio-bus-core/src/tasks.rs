//! Tasks of MCP 2026-07-28: a worker may answer a request with `{resultType: "task", taskId}` and work on. Later requests
//! name the task alone (`tasks/get`, `tasks/update`, `tasks/cancel`; `subscriptions/listen` with `taskIds`), and only the
//! process that has it knows it.
//!
//! A task is its maker's: a client whose name is verified shares it with its other connections, and with nobody else.
//! Without names whoever knows the id may use it, since a client of 2026-07-28 is nothing but its requests. A client that
//! has a worker of its own finds its tasks there, whatever it names.
//!
//! Invariant: a task here has a live worker. What is known of tasks is bounded, and when the table is full the sources of
//! their makers have shares of it, as of other tables (`shares.rs`). One that is forgotten, or whose worker has ended, is
//! unknown, and a message that names it is routed to any worker.
use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::time::Duration;

use ndjson_scan::{member, string_in, string_in_params, strings_in};

use super::message::{KnownMethod, Parsed, Refusal, has_method};
use super::origin::Origin;
use super::peer::{ClientKey, Moment, Source, WorkerKey};
use super::report::Reason;
use super::router::message::{Message, WorkerMessage};
use super::shares::Shares;
use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::fleet::rollout::notice_end_of_work;
use crate::index::{FleetId, GroupId, ListenerId, PoolId};
use crate::peers::{Client, Clients};

/// Maximum number of tasks; beyond it one is forgotten for each new one.
const MOST: usize = 4096;
/// A longer id is not remembered.
const LONGEST_ID: usize = 256;
/// A task that works and whose end its worker has not said counts as working for this long after it was last spoken of.
const WORKS_FOR: Duration = Duration::from_secs(3600);
/// The longest time to live that keeps a worker.
const LONGEST_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

/// A task, by the pool of its worker and its id.
type TaskName = (FleetId, Rc<[u8]>);

/// The order in which the tasks of a source are forgotten: its source, whether it works, and its serial number.
type ForgetOrder = (Source, bool, u64);

struct Task {
    serial: u64,
    worker: WorkerKey,
    /// Where its maker's connection came from.
    source: Source,
    /// Who has made it, if that is known beyond its connection: a listener, and the names shown there.
    maker: Option<(ListenerId, Rc<Origin>)>,
    /// The worker has not said that it has ended.
    works: bool,
    /// It is kept for until then, by its worker's word; if there is none, by [`WORKS_FOR`].
    until: Moment,
    has_ttl: bool,
}

impl Task {
    fn turn(&self) -> ForgetOrder {
        (self.source, self.works, self.serial)
    }
}

/// All known tasks.
#[derive(Default)]
pub(crate) struct Tasks {
    by_name: BTreeMap<TaskName, Task>,
    /// Their names: of each source those that have ended in front, and of these and the others the oldest.
    turns: BTreeMap<ForgetOrder, TaskName>,
    /// How many each source has.
    held: BTreeMap<Source, usize>,
    made: u64,
}

/// What a worker says of a task.
struct TaskReport {
    works: bool,
    ttl: Option<Duration>,
}

impl TaskReport {
    /// That of a result, or of the params of a notification.
    pub(crate) fn of(object: &[u8]) -> Self {
        let status = string_in(object, b"status");
        let ends = status.is_some_and(|status| matches!(&*status, b"completed" | b"failed" | b"cancelled"));
        let ttl = member(object, b"ttlMs").or_else(|| member(object, b"ttl"));
        let ttl = ttl.and_then(|ttl| core::str::from_utf8(ttl).ok()?.parse().ok());
        Self { works: !ends, ttl: ttl.map(|ttl| Duration::from_millis(ttl).min(LONGEST_TTL)) }
    }
}

impl Tasks {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    #[cfg(debug_assertions)]
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    fn get(&self, fleet: FleetId, id: &[u8]) -> Option<&Task> {
        self.by_name.get(&(fleet, Rc::from(id)))
    }

    fn insert(&mut self, name: TaskName, task: Task) {
        self.remove(&name);
        if self.by_name.len() >= MOST
            && let Some(victim) = self.eviction_victim(task.source)
        {
            self.remove(&victim);
        }
        *self.held.entry(task.source).or_default() += 1;
        self.turns.insert(task.turn(), name.clone());
        self.by_name.insert(name, task);
    }

    fn remove(&mut self, name: &TaskName) {
        let Some(task) = self.by_name.remove(name) else { return };
        self.turns.remove(&task.turn());
        if let Some(held) = self.held.get_mut(&task.source) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&task.source);
            }
        }
    }

    /// The task that is forgotten for a new one of this source: by the shares of the sources, else the oldest one of its
    /// own, else of all; of these one that has ended before one that works.
    fn eviction_victim(&self, asker: Source) -> Option<TaskName> {
        let shares = Shares::new(MOST, self.held.iter().map(|(source, count)| (*source, *count)), Some(asker));
        let first = |source: Source, works: bool| {
            let (from, to) = ((source, works, 0), (source, works, u64::MAX));
            self.turns.range(from..=to).next().map(|((.., serial), name)| (*serial, name))
        };
        let each = || self.held.keys().flat_map(|source| [(*source, false), (*source, true)]);
        let by_share = each().filter_map(|(source, works)| {
            let turn = shares.turn(source, !works)?;
            first(source, works).map(|(serial, name)| (turn, serial, name))
        });
        if let Some((.., name)) = by_share.min_by_key(|(turn, serial, _)| (*turn, *serial)) {
            return Some(name.clone());
        }
        let others = each().filter_map(|(source, works)| {
            first(source, works).map(|(serial, name)| ((source != asker, works, serial), name))
        });
        others.min_by_key(|(turn, _)| *turn).map(|(_, name)| name.clone())
    }

    /// A pool is gone, and another one has its place.
    pub(crate) fn forget_pool(&mut self, pool: PoolId) {
        self.by_name.retain(|(fleet, _), _| fleet.pool != pool);
        self.count_anew();
    }

    /// The tasks of a worker go with it.
    pub(crate) fn forget_worker(&mut self, worker: WorkerKey) {
        let before = self.by_name.len();
        self.by_name.retain(|_, task| task.worker != worker);
        if self.by_name.len() < before {
            self.count_anew();
        }
    }

    /// Makes the other tables those of the tasks.
    fn count_anew(&mut self) {
        self.turns = self.by_name.iter().map(|(name, task)| (task.turn(), name.clone())).collect();
        self.held.clear();
        self.by_name.values().for_each(|task| *self.held.entry(task.source).or_default() += 1);
    }

    /// A task works, or has ended.
    fn set_works(&mut self, name: &TaskName, works: bool) {
        let Some(task) = self.by_name.get_mut(name).filter(|task| task.works != works) else { return };
        self.turns.remove(&task.turn());
        task.works = works;
        self.turns.insert(task.turn(), name.clone());
    }

    /// Whether it knows this task of a pool.
    #[cfg(test)]
    pub(crate) fn knows(&self, fleet: FleetId, id: &[u8]) -> bool {
        self.get(fleet, id).is_some()
    }

    /// Panics if the tables disagree, or a worker is not in the table of these.
    pub(crate) fn check(&self, lives: impl Fn(WorkerKey) -> bool) {
        assert!(self.by_name.len() <= MOST && self.by_name.len() == self.turns.len());
        assert_eq!(self.held.values().sum::<usize>(), self.by_name.len());
        for (turn, name) in &self.turns {
            let task = self.by_name.get(name).expect("a name has a task");
            assert!(task.turn() == *turn && lives(task.worker), "a task has a live worker");
        }
    }

    /// The worker that has the tasks which a client's message names. If there are several, it is that of the first one.
    ///
    /// # Errors
    /// One of them is another client's, or its worker takes no messages any more.
    #[inline(always)]
    pub(crate) fn worker_of(
        &mut self,
        ctx: &Ctx,
        fleets: &Fleets,
        message: &Message<'_>,
        group: GroupId,
    ) -> Result<Option<WorkerKey>, Refusal> {
        match message.verb {
            KnownMethod::Task | KnownMethod::Listen
                if !self.is_empty() && !fleets.balancer()[group].gives_own_workers() =>
            {
                self.find(ctx, fleets, message, group)
            }
            _ => Ok(None),
        }
    }

    #[cold]
    fn find(
        &mut self,
        ctx: &Ctx,
        fleets: &Fleets,
        message: &Message<'_>,
        group: GroupId,
    ) -> Result<Option<WorkerKey>, Refusal> {
        let now = ctx.time.now();
        let mut worker = None;
        for id in named(message) {
            let found = fleets.balancer()[group].fleets().find_map(|fleet| Some((fleet, self.get(fleet, &id)?)));
            let Some((fleet, task)) = found else { continue };
            let is_its = task.maker.as_ref().is_none_or(|maker| ctx.clients.is_maker(message.from, maker));
            if !is_its && !ctx.settings.shares_sessions() {
                return Err(Refusal(Reason::SessionDenied, "this task is not available to this connection".into()));
            }
            worker = worker.or(Some(task.worker));
            if let Some(task) = self.by_name.get_mut(&(fleet, Rc::from(&*id))).filter(|task| !task.has_ttl) {
                task.until = now.after(WORKS_FOR);
            }
        }
        if worker.is_some_and(|worker| !ctx.workers.worker_takes_messages(worker)) {
            return Err(Refusal(Reason::RequestLost, "the worker of this task has exited or is stopping".into()));
        }
        Ok(worker)
    }

    /// A worker answers a client's request with a result that names a task.
    #[cold]
    pub(crate) fn note(&mut self, ctx: &mut Ctx, client: Option<ClientKey>, worker: WorkerKey, line: Parsed<'_>) {
        let Some(result) = member(line.get(line.span), b"result") else { return };
        let id = string_in(result, b"taskId").filter(|id| !id.is_empty() && id.len() <= LONGEST_ID);
        let Some((id, fleet)) = id.zip(ctx.workers.fleet_of(worker)) else { return };
        let makes = string_in(result, b"resultType").is_some_and(|kind| &*kind == b"task");
        if makes && let Some(client) = client.and_then(|client| ctx.clients.identity(client)) {
            let maker = (client.listener, Rc::clone(&client.origin));
            let maker = Some(maker).filter(|(_, origin)| origin.names.owner().is_some());
            let (serial, source) = (self.made, client.origin.source());
            self.made += 1;
            let task = Task { serial, worker, source, maker, works: true, until: ctx.time.now(), has_ttl: false };
            self.insert((fleet, Rc::from(&*id)), task);
        }
        self.update(ctx, worker, fleet, &id, result);
    }

    /// A worker's notification may report a task.
    pub(crate) fn note_update(&mut self, ctx: &mut Ctx, said: &WorkerMessage<'_>) {
        let &WorkerMessage { from: worker, line, .. } = said;
        let has_name = |name: &[u8]| has_method(line, name);
        if self.is_empty() || !(has_name(b"notifications/tasks") || has_name(b"notifications/tasks/status")) {
            return;
        }
        let Some((params, fleet)) = member(line.get(line.span), b"params").zip(ctx.workers.fleet_of(worker)) else {
            return;
        };
        if let Some(id) = string_in(params, b"taskId") {
            self.update(ctx, worker, fleet, &id, params);
        }
    }

    fn update(&mut self, ctx: &mut Ctx, worker: WorkerKey, fleet: FleetId, id: &[u8], said: &[u8]) {
        let now = ctx.time.now();
        let name = (fleet, Rc::from(id));
        let Some(task) = self.by_name.get_mut(&name).filter(|task| task.worker == worker) else { return };
        let TaskReport { works, ttl } = TaskReport::of(said);
        // It begins when the task does, but it is only known here when it is said.
        match ttl {
            Some(ttl) if !task.has_ttl => (task.until, task.has_ttl) = (now.after(ttl), true),
            None if !task.has_ttl => task.until = now.after(WORKS_FOR),
            _ => {}
        }
        self.set_works(&name, works);
        // A client needs its own worker as long as it is there, and its lines take the fast path.
        if !works && !ctx.workers.has_owner(worker) {
            notice_end_of_work(ctx, worker);
        }
    }

    /// Until when a worker is needed for tasks that it works on; none if it works on none.
    pub(crate) fn need(&self, ctx: &Ctx, worker: WorkerKey) -> Option<Moment> {
        let now = ctx.time.now();
        let works = |task: &&Task| task.worker == worker && task.works && task.until > now;
        self.by_name.values().filter(works).map(|task| task.until).max()
    }
}

/// The tasks that a client's message names.
fn named<'a>(message: &Message<'a>) -> Vec<Cow<'a, [u8]>> {
    let whole = message.line.get(message.line.span);
    match message.verb {
        KnownMethod::Task => string_in_params(whole, b"taskId").into_iter().collect(),
        KnownMethod::Listen => {
            let Some(params) = member(whole, b"params") else { return Vec::new() };
            let inner = member(params, b"notifications").into_iter().flat_map(|at| strings_in(at, b"taskIds"));
            strings_in(params, b"taskIds").chain(inner).collect()
        }
        _ => Vec::new(),
    }
}

impl Clients {
    fn is_maker(&self, client: ClientKey, (listener, origin): &(ListenerId, Rc<Origin>)) -> bool {
        let is_it = |client: &Client| {
            let client = client.identity();
            client.listener == *listener && client.origin.names.are_the_same_owner(&origin.names)
        };
        self.get(client).is_some_and(is_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_works_until_its_worker_says_that_it_has_ended() {
        let of = |object: &str| TaskReport::of(object.as_bytes());
        assert!(of(r#"{"status":"working"}"#).works && of("{}").works && of(r#"{"status":"input_required"}"#).works);
        for status in ["completed", "failed", "cancelled"] {
            assert!(!of(&format!(r#"{{"status":"{status}"}}"#)).works, "{status}");
        }
        assert_eq!(of(r#"{"ttlMs":1500}"#).ttl, Some(Duration::from_millis(1500)));
        assert_eq!(of(r#"{"ttl":60000}"#).ttl, Some(Duration::from_secs(60)));
        assert_eq!(of(r#"{"ttlMs":1e300}"#).ttl.or(of(r#"{"ttlMs":null}"#).ttl), None);
        assert_eq!(of(r#"{"ttlMs":99999999999999}"#).ttl, Some(LONGEST_TTL));
    }
}
