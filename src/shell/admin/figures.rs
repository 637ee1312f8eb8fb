//! The daemon's metrics: one table has their names in `/metrics`, their meanings, their members in `/status.json`, or
//! their columns in the tables of pools or listeners, and their sources.

use serde_json::Value;

use super::samples::{STATES, Samples, Totals};
use super::view::View;
use crate::bus::overview::{FillLevel, Levels, PoolRow};
use crate::bus::pool_stats::{ENDS, Outcome};
use crate::bus::readiness::Readiness;
use crate::bus::report::Reason;
use crate::bus::stats::Stats;
use crate::shell::log;
use Write::{Many, One};

/// What a figure has samples for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricScope {
    /// The daemon.
    All,
    /// Each pool.
    Pools,
    /// Each listener.
    Listeners,
}

/// One figure, or several that differ in a label.
pub(super) struct Figure {
    pub name: &'static str,
    pub kind: &'static str,
    pub help: &'static str,
    pub over: MetricScope,
    /// The name in JSON, if it is there: a member, possibly nested.
    pub member: Option<&'static str>,
    pub write: Write,
}

/// How its samples are written.
pub(super) enum Write {
    One(fn(&MetricContext<'_>, usize) -> Value),
    Many(fn(&mut Samples<'_>, &MetricContext<'_>, usize)),
}

/// The sources of samples.
pub(super) struct MetricContext<'a> {
    pub view: &'a View<'a>,
    pub stats: Stats,
    /// Totals that have to be counted. Nothing in JSON depends on them.
    pub gathered: &'a Totals,
}

impl MetricContext<'_> {
    fn pool(&self, at: usize) -> PoolRow<'_> {
        self.view.bus.view().pool_row(at).expect("parts are pools of the bus")
    }
}

/// Adds the figures of a part to its object.
pub(super) fn add_members(view: &View<'_>, over: MetricScope, at: usize, object: &mut Value) {
    let gathered = Totals::default();
    let scene = MetricContext { view, stats: view.bus.view().stats(), gathered: &gathered };
    for figure in FIGURES.iter().filter(|figure| figure.over == over) {
        if let (Some(member), One(value)) = (figure.member, &figure.write) {
            let place = member.split('/').fold(&mut *object, |object, name| &mut object[name]);
            *place = value(&scene, at);
        }
    }
}

/// A table of the core with a fixed capacity.
pub(super) struct MetricsTable {
    /// Its name in JSON and in text.
    pub member: &'static str,
    pub name: &'static str,
    pub level: fn(&Levels) -> FillLevel,
}

pub(super) const TABLES: [MetricsTable; 4] = [
    MetricsTable { member: "clients", name: "client connections", level: |levels| levels.clients },
    MetricsTable { member: "sessions", name: "sessions", level: |levels| levels.sessions },
    MetricsTable { member: "requests", name: "pending requests of clients", level: |levels| levels.requests },
    MetricsTable {
        member: "worker_requests",
        name: "pending requests of workers",
        level: |levels| levels.worker_requests,
    },
];

fn free(level: FillLevel) -> usize {
    level.most - level.used
}

/// What was removed is neither ready nor in need of attention: it has no sample, however long its last clients stay.
fn is_ready(readiness: Option<Readiness>) -> Value {
    readiness.map_or(Value::Null, |readiness| readiness.is_ready().into())
}

/// Each figure has a line of description, and one with its source.
macro_rules! figures {
    ($($kind:ident $name:literal $(as $member:literal)? of $over:ident: $help:literal; $write:ident $value:expr;)*) => {
        &[$(Figure {
            name: $name,
            kind: stringify!($kind),
            help: $help,
            over: MetricScope::$over,
            member: figures!(@member $($member)?),
            write: $write($value),
        },)*]
    };
    (@member) => { None };
    (@member $member:literal) => { Some($member) };
}

pub(super) const FIGURES: &[Figure] = figures! {
    gauge "stdio_bus_build_info" of All: "Always 1. Labels: version, io (ring or epoll), node.";
        Many |out, it, _| {
            out.labelled(&[("version", env!("CARGO_PKG_VERSION")), ("io", it.view.io), ("node", it.view.node)], 1.0);
        };
    gauge "stdio_bus_start_time_seconds" of All: "Start of the daemon, in seconds since 1970.";
        One |it, _| Value::from(it.view.started_at.seconds());
    gauge "stdio_bus_ready" of All: "1 if /readyz says 200.";
        One |it, _| is_ready(Some(it.view.bus.view().readiness()));
    counter "stdio_bus_reloads_total" of All: "Reloads by result: ok, failed.";
        Many |out, it, _| out.each("result", [("ok", it.view.reloads.succeeded), ("failed", it.view.reloads.failed)]);
    gauge "stdio_bus_last_reload_successful" as "last_reload_successful" of All:
        "1 if the last reload succeeded, or there was none.";
        One |it, _| Value::from(!it.view.reloads.last_failed);
    gauge "stdio_bus_draining" of All: "1 while the daemon drains.";
        One |it, _| Value::from(it.view.bus.view().readiness() == Readiness::Draining);
    gauge "stdio_bus_listener_ready" as "ready" of Listeners: "1 if /readyz?listener=N says 200.";
        One |it, at| is_ready(it.view.bus.view().listener_readiness(at));
    gauge "stdio_bus_pool_ready" as "ready" of Pools: "1 if /readyz?pool=ID says 200.";
        One |it, at| is_ready(it.view.bus.view().pool_readiness(at));
    gauge "stdio_bus_listener_paused" as "paused" of Listeners: "1 while an operator has paused the listener.";
        One |it, at| Value::from(it.view.bus.view().is_listener_paused(at));
    gauge "stdio_bus_listener_pools_paused" as "pools_paused" of Listeners: "1 while an operator has paused all pools of the listener.";
        One |it, at| Value::from(it.view.bus.view().are_pools_paused_of(at));
    gauge "stdio_bus_pool_paused" as "paused" of Pools: "1 while an operator has paused the pool.";
        One |it, at| Value::from(it.pool(at).is_paused);
    gauge "stdio_bus_pool_asleep" as "asleep" of Pools: "1 while the pool has no workers, until a line needs one.";
        One |it, at| Value::from(it.pool(at).is_asleep);
    gauge "stdio_bus_pool_rollout_stopped" of Pools:
        "1 if the rollout of the pool was stopped because the new workers kept ending.";
        One |it, at| Value::from(u64::from(it.view.bus.view().rollout_failure(at).is_some()));
    gauge "stdio_bus_clients" of Listeners: "Connected clients.";
        One |it, at| Value::from(it.gathered.clients.get(at).copied().unwrap_or_default());
    gauge "stdio_bus_client_slots_free" of All: "Clients that could still connect.";
        One |it, _| Value::from(free(it.view.bus.view().levels().clients));
    gauge "stdio_bus_sessions" of All: "Sessions that have an owner.";
        One |it, _| Value::from(it.stats.sessions);
    gauge "stdio_bus_session_slots_free" of All: "Sessions that could still be opened.";
        One |it, _| Value::from(free(it.view.bus.view().levels().sessions));
    gauge "stdio_bus_session_names_held" as "names_held" of All:
        "Session ids kept for clients that have left.";
        One |it, _| Value::from(it.view.bus.view().levels().held);
    gauge "stdio_bus_requests_pending" of Pools: "Client requests that wait for a worker's answer.";
        One |it, at| Value::from(it.gathered.pools[at].pending);
    gauge "stdio_bus_requests_pending_oldest_seconds" of Pools: "Age of the oldest client request that waits for a worker's answer; 0 if there is none.";
        One |it, at| Value::from(it.gathered.pools[at].oldest.as_secs_f64());
    gauge "stdio_bus_requests_owed_oldest_seconds" of Pools:
        "Age of the oldest request that a worker has not answered, also of clients that have left; 0 if there is none.";
        One |it, at| Value::from(it.gathered.pools[at].oldest_owed.as_secs_f64());
    gauge "stdio_bus_request_slots_free" of All: "Client requests that could still be taken.";
        One |it, _| Value::from(free(it.view.bus.view().levels().requests));
    gauge "stdio_bus_worker_requests_pending" of All: "Worker requests that wait for a client's answer.";
        One |it, _| Value::from(it.view.bus.view().levels().worker_requests.used);
    counter "stdio_bus_requests_total" of Pools: "Requests passed on to a worker, by outcome.";
        Many |out, it, at| {
            let stats = it.pool(at).stats;
            out.each("outcome", Outcome::ALL.iter().map(|outcome| (outcome.name(), stats.requests(*outcome))));
        };
    counter "stdio_bus_request_errors_total" of Pools:
        "Client requests failed by the daemon, by reason; pool is empty if none or several were meant.";
        Many |out, it, at| {
            out.reasons(it.pool(at).stats.errors().iter());
            if at + 1 == it.gathered.pools.len() {
                out.part = Some(("pool", String::new()));
                out.reasons(it.view.bus.view().errors_of_no_pool().iter());
            }
        };
    counter "stdio_bus_tool_calls_denied_total" of Pools:
        "Calls of tools that a rule denies, by the pattern of deny_tools (empty: no pattern of allow_tools matches; *ambiguous: the call can be read in two ways).";
        Many |out, it, at| {
            let of_pool = it.view.bus.view().denied_tools().filter(|(pool, ..)| pool.index() == at);
            of_pool.for_each(|(_, pattern, count)| out.labelled(&[("pattern", pattern)], count as f64));
        };
    histogram "stdio_bus_request_duration_seconds" of Pools: "Time from passing a request on to its answer.";
        Many |out, it, at| out.histogram(it.pool(at).stats.durations());
    counter "stdio_bus_usage_requests_total" of All:
        "Requests passed on to workers. Labels: by (source, token, user or pool) and name; the 20 heaviest of each.";
        Many |out, it, _| out.consumers(it.gathered, |used| used.requests as f64);
    counter "stdio_bus_usage_bytes_total" of All:
        "Bytes received from clients and sent to them, labelled as stdio_bus_usage_requests_total; of a pool those of its workers.";
        Many |out, it, _| out.consumers(it.gathered, |used| used.bytes as f64);
    counter "stdio_bus_usage_worker_seconds_total" of All:
        "How long workers had the requests, labelled as stdio_bus_usage_requests_total.";
        Many |out, it, _| out.consumers(it.gathered, |used| used.worker_time.as_secs_f64());
    gauge "stdio_bus_workers" of Pools: "Worker processes by state.";
        Many |out, it, at| out.each("state", STATES.into_iter().zip(it.gathered.pools[at].states));
    gauge "stdio_bus_workers_unresponsive" of Pools:
        "Workers that have written nothing for worker_silent_sec although they owe answers.";
        One |it, at| Value::from(it.gathered.pools[at].unresponsive);
    gauge "stdio_bus_worker_slots" of Pools: "Workers that the pool should have, by state: filled, waiting for a restart, given_up, taken_out by the operator.";
        Many |out, it, at| {
            let pool = it.pool(at);
            let wanted = if pool.is_asleep { 0 } else { pool.settings.instances + pool.grown };
            let there = wanted.saturating_sub(pool.waiting + pool.given_up + pool.out);
            let slots = [
                ("filled", there),
                ("waiting", pool.waiting),
                ("given_up", pool.given_up),
                ("taken_out", pool.out),
            ];
            out.each("state", slots.map(|(state, count)| (state, count as u64)));
        };
    counter "stdio_bus_worker_starts_total" as "starts" of Pools: "Worker processes started.";
        One |it, at| Value::from(it.pool(at).stats.events(Reason::WorkerStarted));
    counter "stdio_bus_worker_start_failures_total" as "start_failures" of Pools: "Workers that could not be started.";
        One |it, at| Value::from(it.pool(at).stats.events(Reason::SpawnFailed));
    counter "stdio_bus_worker_exits_total" of Pools:
        "Workers that ended unexpectedly or were restarted for a fault, by reason.";
        Many |out, it, at| {
            let stats = it.pool(at).stats;
            out.reasons(ENDS.into_iter().map(|reason| (reason, stats.events(reason))));
        };
    counter "stdio_bus_worker_stops_total" of Pools:
        "Workers that ended as requested.";
        One |it, at| Value::from(it.pool(at).stats.events(Reason::WorkerStopped));
    counter "stdio_bus_worker_restarts_total" as "restarts" of Pools: "Restarts after an unexpected exit.";
        One |it, at| Value::from(it.pool(at).stats.events(Reason::RestartScheduled));
    counter "stdio_bus_worker_slots_given_up_total" of Pools: "Workers given up after too many restarts.";
        One |it, at| Value::from(it.pool(at).stats.events(Reason::PoolDegraded));
    counter "stdio_bus_client_lines_received_total" as "totals/client_lines_received" of All:
        "Lines received from clients.";
        One |it, _| Value::from(it.stats.client_side.lines_in);
    counter "stdio_bus_client_lines_sent_total" as "totals/client_lines_sent" of All:
        "Lines queued for clients, error replies included.";
        One |it, _| Value::from(it.stats.client_side.lines_out);
    counter "stdio_bus_worker_lines_received_total" as "totals/worker_lines_received" of All:
        "Lines received from workers.";
        One |it, _| Value::from(it.stats.worker_side.lines_in);
    counter "stdio_bus_worker_lines_sent_total" as "totals/worker_lines_sent" of All: "Lines queued for workers.";
        One |it, _| Value::from(it.stats.worker_side.lines_out);
    counter "stdio_bus_client_received_bytes_total" as "totals/client_bytes_received" of All:
        "Bytes received from clients.";
        One |it, _| Value::from(it.stats.client_side.bytes_in);
    counter "stdio_bus_client_sent_bytes_total" as "totals/client_bytes_sent" of All: "Bytes queued for clients.";
        One |it, _| Value::from(it.stats.client_side.bytes_out);
    counter "stdio_bus_worker_received_bytes_total" as "totals/worker_bytes_received" of All:
        "Bytes received from workers.";
        One |it, _| Value::from(it.stats.worker_side.bytes_in);
    counter "stdio_bus_worker_sent_bytes_total" as "totals/worker_bytes_sent" of All: "Bytes queued for workers.";
        One |it, _| Value::from(it.stats.worker_side.bytes_out);
    counter "stdio_bus_error_replies_total" as "totals/error_replies" of All:
        "Error replies of the daemon itself.";
        One |it, _| Value::from(it.stats.error_replies);
    counter "stdio_bus_ids_replaced_total" of All: "Request ids replaced.";
        One |it, _| Value::from(it.stats.ids_translated);
    counter "stdio_bus_unsent_bytes_total" of All: "Bytes still queued for a connection when it was closed.";
        One |it, _| Value::from(it.stats.bytes_unsent);
    gauge "stdio_bus_client_queued_bytes" of All: "Bytes queued for clients and not sent yet.";
        One |it, _| Value::from(it.gathered.client_queued);
    gauge "stdio_bus_worker_queued_bytes" of Pools: "Bytes queued for workers and not sent yet.";
        One |it, at| Value::from(it.gathered.pools[at].queued);
    gauge "stdio_bus_clients_paused" of All: "Clients that are not read now, because a queue is full or others come first.";
        One |it, _| Value::from(it.gathered.clients_paused);
    gauge "stdio_bus_clients_awaiting_workers" of All:
        "Clients that wait for a worker of their own, or for its first answer.";
        One |it, _| Value::from(it.stats.awaiting_workers);
    counter "stdio_bus_clients_paused_seconds_total" of All: "How long clients were paused, all together.";
        One |it, _| Value::from((it.stats.client_side.paused + it.gathered.clients_paused_for).as_secs_f64());
    gauge "stdio_bus_workers_paused" of Pools: "Workers that are not read now, because a client's queue is full.";
        One |it, at| Value::from(it.gathered.pools[at].paused);
    counter "stdio_bus_workers_paused_seconds_total" of All: "How long workers were paused, all together.";
        One |it, _| Value::from((it.stats.worker_side.paused + it.gathered.workers_paused_for).as_secs_f64());
    gauge "stdio_bus_memory_bytes" as "memory/used" of All: "Memory of unfinished lines, queues and held lines.";
        One |it, _| Value::from(it.view.memory);
    gauge "stdio_bus_memory_limit_bytes" as "memory/most" of All: "limits.max_memory.";
        One |it, _| Value::from(it.view.max_memory);
    gauge "stdio_bus_workers_memory_bytes" as "workers_memory/used" of All:
        "Memory in RAM of the processes of all workers, measured every 5 s; 0 without limits.max_workers_memory_mb.";
        One |it, _| Value::from(it.view.bus.view().workers_memory().map_or(0, |(used, _)| used << 20));
    gauge "stdio_bus_workers_memory_limit_bytes" as "workers_memory/most" of All:
        "limits.max_workers_memory_mb; 0 without it.";
        One |it, _| Value::from(it.view.bus.view().workers_memory().map_or(0, |(_, most)| most << 20));
    counter "stdio_bus_events_total" of All: "Everything dropped, closed or changed, by reason.";
        Many |out, it, _| out.reasons(it.view.bus.view().reasons());
    histogram "stdio_bus_turn_duration_seconds" of All: "Time that each turn of the loop works, without waiting.";
        Many |out, it, _| out.histogram(it.view.turns);
    counter "stdio_bus_log_lines_lost_total" as "log/lines_lost" of All:
        "Log lines that could not be kept or written.";
        One |_, _| Value::from(log::lost());
    gauge "stdio_bus_state_sessions" of All:
        "MCP sessions that outlive the daemon (state), by state: open, waiting for their client since an earlier daemon.";
        Many |out, it, _| {
            let counts = it.view.persistence.counts();
            out.each("state", [("open", counts.open as u64), ("waiting", counts.waiting as u64)]);
        };
    gauge "stdio_bus_state_last_write_successful" as "state_last_write_successful" of All:
        "1 if the last write of the state succeeded, or there was none.";
        One |it, _| Value::from(!it.view.persistence.has_failed());
    gauge "stdio_bus_admin_connections" of All: "Connections of the admin listener.";
        One |it, _| Value::from(it.view.admin_connections);
    counter "process_cpu_seconds_total" of All: "CPU time of the daemon without its workers.";
        One |it, _| Value::from(it.gathered.process.cpu_seconds);
    gauge "process_resident_memory_bytes" of All: "Memory of the daemon in RAM.";
        One |it, _| Value::from(it.gathered.process.resident_bytes);
    gauge "process_virtual_memory_bytes" of All: "Address space of the daemon.";
        One |it, _| Value::from(it.gathered.process.virtual_bytes);
    gauge "process_open_fds" of All: "Open file descriptors of the daemon.";
        One |it, _| Value::from(it.gathered.process.open_descriptors);
    gauge "process_max_fds" of All: "Most file descriptors that the daemon may open.";
        One |it, _| Value::from(it.gathered.process.most_descriptors);
    gauge "process_start_time_seconds" of All: "Start of the daemon, as in stdio_bus_start_time_seconds.";
        One |it, _| Value::from(it.view.started_at.seconds());
};
