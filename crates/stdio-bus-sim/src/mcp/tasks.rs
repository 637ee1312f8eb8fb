//! Tasks in the world of an MCP listener: workers answer with them, clients of both eras name them, their own and others',
//! and workers say what becomes of them.
//!
//! The rules: what names a task that is known in its client's pool is read by the worker that has it, and by no other; a
//! task that was made under a name is that name's; a client that has a worker of its own reaches no other one; and no
//! worker is stopped for want of use while it works on a task.

use std::time::Duration;

use serde_json::{Value, json};

use super::World;
use crate::bus::port::Moment;
use crate::bus::settings::{Assignment, Era};

/// How long a task counts as working after it was last spoken of, unless it has a time to live.
const WORKS_FOR: Duration = Duration::from_secs(3600);

/// A task that a worker has answered with.
pub(super) struct Task {
    id: String,
    pool: usize,
    /// Of the clients that may name it.
    era: Era,
    worker: usize,
    /// Where its client has come in, and under which name, if it has one.
    maker: Option<(usize, &'static str)>,
    works: bool,
    until: Moment,
    has_ttl: bool,
}

impl World {
    /// Makes a client's line name tasks. Returns the first one of its pool.
    pub(super) fn names_tasks(&mut self, client: usize, line: &mut Value) {
        if self.tasks.is_empty() || !self.ground.random.one_in(3) {
            return;
        }
        let count = self.tasks.len();
        let (one, other) =
            (self.ground.random.range(0..count), self.ground.random.range(count.saturating_sub(4)..count));
        let (one, other) = (self.tasks[one].id.clone(), self.tasks[other].id.clone());
        if self.clients[client].speaks() == Era::Modern && self.ground.random.one_in(5) {
            line["method"] = json!("subscriptions/listen");
            let place = if self.ground.random.one_in(2) { "notifications" } else { "other" };
            line["params"][place] = json!({ "taskIds": [other] });
            if place == "other" {
                line["params"]["taskIds"] = json!(["unknown", other]);
            }
        } else {
            let which = if self.ground.random.one_in(2) { one } else { other };
            line["method"] = json!(*self.ground.random.pick(&["tasks/get", "tasks/update", "tasks/cancel"]));
            line["params"]["taskId"] = json!(which);
        }
    }

    /// The task that a client's line names, if it is known in its pool, and whether the client may name it. A client with
    /// a worker of its own names what that has.
    pub(super) fn task_named(&self, client: usize, line: &Value) -> Option<(usize, bool)> {
        let params = &line["params"];
        let listed = || params["taskIds"].as_array().or(params["notifications"]["taskIds"].as_array())?.last();
        let id = params["taskId"].as_str().or_else(|| listed()?.as_str())?;
        let client = &self.clients[client];
        let is_its_own =
            self.settings.pools[client.pool].assignment == Assignment::Dedicated && client.speaks() == Era::Legacy;
        let is_known = |task: &Task| !self.workers[task.worker].released;
        let is_it =
            |task: &Task| task.id == id && task.pool == client.pool && task.era == client.speaks() && is_known(task);
        let at = self.tasks.iter().position(|task| is_it(task) && !is_its_own)?;
        let task = &self.tasks[at];
        let has_come = |maker: (usize, &str)| maker == (client.listener(), client.name.unwrap_or_default());
        Some((at, task.maker.is_none_or(has_come)))
    }

    /// A worker reads a line that names tasks: it has them. Returns whether it is a guest's.
    pub(super) fn reads_task(&mut self, at: usize, client: usize, line: &Value) -> bool {
        let Some((task, may)) = self.task_named(client, line) else { return false };
        let task = &mut self.tasks[task];
        assert!(may, "client {client} reaches another one's task {}", task.id);
        assert_eq!(task.worker, at, "task {} is asked for at another worker", task.id);
        if !task.has_ttl {
            task.until = self.ground.now.after(WORKS_FOR);
        }
        self.named += 1;
        true
    }

    /// Whether a client listens to this worker, by this connection or by another one of its name: all else of it is
    /// sent there, too.
    pub(super) fn is_listened_to(&self, at: usize, client: usize) -> bool {
        let of = &self.clients[client];
        let is_its = |other: usize| {
            let by = &self.clients[other];
            other == client || of.name.is_some() && by.name == of.name && by.listener() == of.listener()
        };
        self.workers[at].work.iter().any(|work| work.listens && work.given_up.is_none() && is_its(work.client))
    }

    /// A client is refused what names a task.
    pub(super) fn check_refused_task(&self, client: usize, named: Option<&Value>) {
        let found = named.and_then(|line| self.task_named(client, line));
        assert!(found.is_some_and(|(_, may)| !may), "client {client} is refused its own: {named:?}");
    }

    /// What a worker adds to a result: a new task, or what has become of the one that it is asked for.
    pub(super) fn with_task(&mut self, at: usize, client: usize, of: Option<&str>, result: &mut Value) {
        let makes = of.is_none() && self.ground.random.one_in(4);
        if of.is_none() && !makes {
            return;
        }
        let id = of.map_or_else(|| format!("t{}", self.tasks.len()), str::to_owned);
        result["taskId"] = json!(id);
        let status = *self.ground.random.pick(&["working", "working", "input_required", "completed", "failed"]);
        result["status"] = json!(status);
        let ttl = self.ground.random.one_in(3).then(|| self.ground.random.range(500..60_000) as u64);
        ttl.into_iter().for_each(|ttl| result["ttlMs"] = json!(ttl));
        if makes {
            result["resultType"] = json!("task");
            let (pool, maker) = (self.workers[at].pool, &self.clients[client]);
            self.tasks.push(Task {
                id: id.clone(),
                pool,
                era: maker.speaks(),
                worker: at,
                maker: maker.name.map(|name| (maker.listener(), name)),
                works: true,
                until: self.ground.now,
                has_ttl: false,
            });
        }
        self.reports_task(at, &id, status, ttl);
    }

    /// A worker says what has become of a task: of its own it knows.
    fn reports_task(&mut self, at: usize, id: &str, status: &str, ttl: Option<u64>) {
        let now = self.ground.now;
        let Some(task) = self.tasks.iter_mut().find(|task| task.id == id && task.worker == at) else { return };
        task.works = matches!(status, "working" | "input_required");
        match ttl {
            Some(ttl) if !task.has_ttl => {
                (task.until, task.has_ttl) = (now.after(Duration::from_millis(ttl)), true);
            }
            None if !task.has_ttl => task.until = now.after(WORKS_FOR),
            _ => {}
        }
    }

    /// A notification of a worker about one of its tasks.
    pub(super) fn note_of_task(&mut self, at: usize) -> Option<Value> {
        let own: Vec<String> = self.tasks.iter().filter(|task| task.worker == at).map(|task| task.id.clone()).collect();
        if own.is_empty() {
            return None;
        }
        let id = self.ground.random.pick(&own).clone();
        let status = *self.ground.random.pick(&["working", "completed", "cancelled"]);
        self.reports_task(at, &id, status, None);
        let params = json!({"of": at, "taskId": id, "status": status});
        Some(json!({"jsonrpc": "2.0", "method": "notifications/tasks", "params": params}))
    }

    /// Whether a worker works on a task.
    pub(super) fn works_on_task(&self, at: usize) -> bool {
        self.tasks.iter().any(|task| task.worker == at && task.works && task.until > self.ground.now)
    }
}
