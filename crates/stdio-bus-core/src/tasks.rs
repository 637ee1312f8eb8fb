//! Tasks of MCP 2026-07-28: a worker may answer a request with `{resultType: "task", taskId}` and work on. Later requests
//! name the task alone (`tasks/get`, `tasks/update`, `tasks/cancel`; `subscriptions/listen` with `taskIds`), and only the
//! process that has it knows it.
//!
//! A task is its maker's: a client whose name is verified shares it with its other connections, and with nobody else.
//! Without names whoever knows the id may use it, since a client of 2026-07-28 is nothing but its requests.
//!
//! Invariant: a task here has a live worker. What is known of tasks is bounded; one that is forgotten, or whose worker has
//! ended, is unknown, and a message that names it goes to any worker.
use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::time::Duration;

use ndjson_scan::{member, string_in, string_in_params, strings_in};

use super::Bus;
use super::client::Client;
use super::message::{Parsed, Refusal, Verb, has_method};
use super::origin::Origin;
use super::peer::{ClientKey, Moment, WorkerKey};
use super::report::Reason;
use super::router::message::{Message, Said};

/// Maximum number of tasks; beyond it the oldest one that has ended is forgotten, else the oldest one.
const MOST: usize = 4096;
/// A longer id is not remembered.
const LONGEST_ID: usize = 256;
/// A task that works and whose end its worker has not said counts as working for this long after it was last spoken of.
const WORKS_FOR: Duration = Duration::from_secs(3600);
/// The longest time to live that keeps a worker.
const LONGEST_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

/// A task, by the pool of its worker and its id.
type Name = (usize, Rc<[u8]>);

struct Task {
    serial: u64,
    worker: WorkerKey,
    /// Who has made it, if that is known beyond its connection: a listener, and the names shown there.
    maker: Option<(usize, Rc<Origin>)>,
    /// The worker has not said that it has ended.
    works: bool,
    /// It is kept for until then, by its worker's word; if there is none, by [`WORKS_FOR`].
    until: Moment,
    has_ttl: bool,
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Tasks {
    by_name: BTreeMap<Name, Task>,
    /// Their names, the oldest in front.
    oldest: BTreeMap<u64, Name>,
    made: u64,
}

/// What a worker says of a task.
struct Report {
    works: bool,
    ttl: Option<Duration>,
}

impl Report {
    /// That of a result, or of the params of a notification.
    fn of(object: &[u8]) -> Self {
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

    fn get(&self, pool: usize, id: &[u8]) -> Option<&Task> {
        self.by_name.get(&(pool, Rc::from(id)))
    }

    fn insert(&mut self, name: Name, task: Task) {
        self.remove(&name);
        if self.by_name.len() >= MOST {
            let ended = self.oldest.values().find(|name| self.by_name.get(*name).is_some_and(|task| !task.works));
            if let Some(oldest) = ended.or_else(|| self.oldest.values().next()).cloned() {
                self.remove(&oldest);
            }
        }
        self.oldest.insert(task.serial, name.clone());
        self.by_name.insert(name, task);
    }

    fn remove(&mut self, name: &Name) {
        if let Some(task) = self.by_name.remove(name) {
            self.oldest.remove(&task.serial);
        }
    }

    /// Pools have other indexes now. Those of tasks stay, since their workers live.
    pub(crate) fn arrange(&mut self, moved: &[Option<usize>]) {
        let to = |(pool, id): Name| Some((moved.get(pool).copied().flatten()?, id));
        let by_name = core::mem::take(&mut self.by_name);
        self.by_name = by_name.into_iter().filter_map(|(name, task)| Some((to(name)?, task))).collect();
        let oldest = core::mem::take(&mut self.oldest);
        self.oldest = oldest.into_iter().filter_map(|(serial, name)| Some((serial, to(name)?))).collect();
    }

    /// The tasks of a worker go with it.
    pub(crate) fn forget_worker(&mut self, worker: WorkerKey) {
        self.by_name.retain(|_, task| task.worker != worker);
        self.oldest.retain(|_, name| self.by_name.contains_key(name));
    }

    /// Whether it knows this task of a pool.
    #[cfg(test)]
    pub(crate) fn knows(&self, pool: usize, id: &[u8]) -> bool {
        self.get(pool, id).is_some()
    }

    /// Panics if the two tables disagree, or a worker is not in the table of these.
    pub(crate) fn check(&self, lives: impl Fn(WorkerKey) -> bool) {
        assert!(self.by_name.len() <= MOST && self.by_name.len() == self.oldest.len());
        for (serial, name) in &self.oldest {
            let task = self.by_name.get(name).expect("a name has a task");
            assert!(task.serial == *serial && lives(task.worker), "a task has a live worker");
        }
    }
}

/// The tasks that a client's message names.
fn named<'a>(message: &Message<'a>) -> Vec<Cow<'a, [u8]>> {
    let whole = message.line.get(message.line.span);
    match message.verb {
        Verb::Task => string_in_params(whole, b"taskId").into_iter().collect(),
        Verb::Listen => {
            let Some(params) = member(whole, b"params") else { return Vec::new() };
            let inner = member(params, b"notifications").into_iter().flat_map(|at| strings_in(at, b"taskIds"));
            strings_in(params, b"taskIds").chain(inner).collect()
        }
        _ => Vec::new(),
    }
}

impl Bus {
    /// The worker that has the tasks which a client's message names. If there are several, it is that of the first one.
    ///
    /// # Errors
    /// One of them is another client's, or its worker takes no messages any more.
    #[inline(always)]
    pub(crate) fn worker_of_task(&mut self, message: &Message<'_>, group: usize) -> Result<Option<WorkerKey>, Refusal> {
        match message.verb {
            Verb::Task | Verb::Listen if !self.tasks.is_empty() => self.find_tasks(message, group),
            _ => Ok(None),
        }
    }

    #[cold]
    fn find_tasks(&mut self, message: &Message<'_>, group: usize) -> Result<Option<WorkerKey>, Refusal> {
        let now = self.time.now();
        let mut worker = None;
        for id in named(message) {
            let pools = self.balancer.groups[group].pools();
            let found = pools.into_iter().find_map(|pool| Some((pool, self.tasks.get(pool, &id)?)));
            let Some((pool, task)) = found else { continue };
            let is_its = task.maker.as_ref().is_none_or(|maker| self.is_maker(message.from, maker));
            if !is_its && !self.shares_sessions() {
                return Err(Refusal(Reason::SessionDenied, "this task is not available to this connection".into()));
            }
            worker = worker.or(Some(task.worker));
            if let Some(task) = self.tasks.by_name.get_mut(&(pool, Rc::from(&*id))).filter(|task| !task.has_ttl) {
                task.until = now.after(WORKS_FOR);
            }
        }
        if worker.is_some_and(|worker| !self.worker_takes_messages(worker)) {
            return Err(Refusal(Reason::RequestLost, "the worker of this task has exited or is stopping".into()));
        }
        Ok(worker)
    }

    fn is_maker(&self, client: ClientKey, (listener, origin): &(usize, Rc<Origin>)) -> bool {
        let is_it = |client: &Client| {
            let client = &client.identity;
            client.listener == *listener && client.origin.names.are_the_same_owner(&origin.names)
        };
        self.client(client).is_some_and(is_it)
    }

    /// A worker answers a client's request with a result that names a task.
    #[cold]
    pub(crate) fn note_task(&mut self, client: Option<ClientKey>, worker: WorkerKey, line: Parsed<'_>) {
        let Some(result) = member(line.get(line.span), b"result") else { return };
        let id = string_in(result, b"taskId").filter(|id| !id.is_empty() && id.len() <= LONGEST_ID);
        let Some((id, pool)) = id.zip(self.pool_of(worker)) else { return };
        let makes = string_in(result, b"resultType").is_some_and(|kind| &*kind == b"task");
        if makes && let Some(client) = client.and_then(|client| self.identity(client)) {
            let maker = (client.listener, Rc::clone(&client.origin));
            let maker = Some(maker).filter(|(_, origin)| origin.names.owner().is_some());
            let serial = self.tasks.made;
            self.tasks.made += 1;
            let task = Task { serial, worker, maker, works: true, until: self.time.now(), has_ttl: false };
            self.tasks.insert((pool, Rc::from(&*id)), task);
        }
        self.update_task(worker, pool, &id, result);
    }

    /// A worker's notification may tell of a task.
    pub(crate) fn note_task_update(&mut self, said: &Said<'_>) {
        let &Said { from: worker, line, .. } = said;
        let tells = |name: &[u8]| has_method(line, name);
        if self.tasks.is_empty() || !(tells(b"notifications/tasks") || tells(b"notifications/tasks/status")) {
            return;
        }
        let Some((params, pool)) = member(line.get(line.span), b"params").zip(self.pool_of(worker)) else { return };
        if let Some(id) = string_in(params, b"taskId") {
            self.update_task(worker, pool, &id, params);
        }
    }

    fn update_task(&mut self, worker: WorkerKey, pool: usize, id: &[u8], said: &[u8]) {
        let now = self.time.now();
        let task = self.tasks.by_name.get_mut(&(pool, Rc::from(id))).filter(|task| task.worker == worker);
        let Some(task) = task else { return };
        let Report { works, ttl } = Report::of(said);
        task.works = works;
        // It begins when the task does, but it is only known here when it is said.
        match ttl {
            Some(ttl) if !task.has_ttl => (task.until, task.has_ttl) = (now.after(ttl), true),
            None if !task.has_ttl => task.until = now.after(WORKS_FOR),
            _ => {}
        }
        if !works {
            self.notice_leaving(worker);
        }
    }

    /// Until when a worker is needed for tasks that it works on; none if it works on none.
    pub(crate) fn needed_for_tasks(&self, worker: WorkerKey) -> Option<Moment> {
        let now = self.time.now();
        let works = |task: &&Task| task.worker == worker && task.works && task.until > now;
        self.tasks.by_name.values().filter(works).map(|task| task.until).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_works_until_its_worker_says_that_it_has_ended() {
        let of = |object: &str| Report::of(object.as_bytes());
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
