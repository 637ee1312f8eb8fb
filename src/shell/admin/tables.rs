//! The daemon's tables as JSON, with a row for each client, worker, pool, session or request; written in pieces.

use std::time::Duration;

use serde_json::{Value, json};

use super::figures::{self, FIGURES, MetricScope, add_members};
use super::response::Pieces;
use super::samples::{STATES, seconds};
use super::view::{MOST_CONSUMERS, View};
use crate::bus::histogram::Histogram;
use crate::bus::overview::{FillLevel, PeerName, RequestRow, WaitsFor};
use crate::bus::pool_stats::{Outcome, PoolStats};
use crate::bus::port::PoolId;
use crate::bus::readiness::Readiness;
use crate::bus::report::WorkerName;
use crate::bus::usage::{UsageKind, Who};
use crate::printable;
use crate::shell::log::level_of;

/// Rows of a piece.
const ROWS: usize = 96;
// Those who use most are one piece, with the others of each kind: the next piece would be of another moment.
const _: () = assert!(UsageKind::ALL.len() * (MOST_CONSUMERS + 1) <= ROWS);
/// A client that has waited for so long is worth a line of an overview.
const LONG: Duration = Duration::from_secs(1);
/// Slots scanned for a piece: empty ones are skipped fast, but not without limit.
const SLOTS: usize = 1024;

/// A table: its name, its number of slots, and the row of each slot.
pub(super) struct Table {
    name: &'static str,
    columns: &'static [Column],
    /// These figures, declared with the metrics, follow the first column.
    figures: Option<MetricScope>,
    slots: fn(&View<'_>) -> usize,
    row: fn(&View<'_>, usize) -> Option<Value>,
    /// The slots in the order of the rows, if it differs.
    order: Option<fn(&View<'_>) -> Vec<usize>>,
}

/// A member of each row: its JSON name and its heading.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    pub(crate) member: &'static str,
    heading: Option<&'static str>,
}

impl Column {
    /// The column's heading. Units are with the values.
    pub(crate) fn heading(self) -> String {
        let unit = ["_seconds", "_bytes"].into_iter().find_map(|unit| self.member.strip_suffix(unit));
        self.heading.or(unit).unwrap_or(self.member).replace('_', " ")
    }
}

macro_rules! tables {
    ($(
        $name:literal, $slots:expr $(, in $order:ident)? $(, with $figures:ident)?;
        |$view:ident, $at:ident| $row:pat = $found:expr;
        { $($member:literal $(as $heading:literal)?: $value:expr,)* }
    )*) => {
        static TABLES: &[Table] = &[$(Table {
            name: $name,
            columns: &[$(Column { member: $member, heading: tables!(@perhaps $($heading)?) }),*],
            figures: tables!(@perhaps $(MetricScope::$figures)?),
            slots: $slots,
            row: |$view, $at| {
                let $row = $found;
                Some(json!({ $($member: $value),* }))
            },
            order: tables!(@perhaps $($order)?),
        }),*];
    };
    (@perhaps) => { None };
    (@perhaps $($given:tt)+) => { Some($($given)+) };
}

tables! {
    "clients", |view| view.bus.view().client_slots();
    |view, slot| client = view.bus.view().client_row(view.now, slot)?;
    {
        "client": client.number,
        "source": client.origin.place.to_string(),
        "listener": view.places.get(client.listener.index()).map_or("", |place| place.label()),
        "state": client.state,
        "age_seconds": seconds(client.account.lasted),
        "idle_seconds": seconds(client.link.idle),
        "pending": client.link.asked,
        "to_answer": client.link.to_answer,
        "sessions": client.link.sessions,
        "queued_bytes": client.link.queued,
        "full_seconds": client.link.full.map(seconds),
        "waits_for": client.link.waits_for.map(|it| name(view, it.whom)),
        "waits_seconds": client.link.waits_for.map(|it| seconds(it.time)),
        "lines_in": client.account.traffic.lines_in,
        "bytes_in": client.account.traffic.bytes_in,
        "lines_out": client.account.traffic.lines_out,
        "bytes_out": client.account.traffic.bytes_out,
        "answered": client.account.answered,
        "failed": client.account.failed,
        "via": client.origin.via.as_ref().map(|via| via.to_string()),
        "token": client.origin.names.token.as_deref(),
        "user": client.origin.names.user.as_deref(),
        "connection_id": client.origin.names.connection_id,
        "cn": client.origin.names.common_name,
        "sni": client.origin.names.server_name,
        "unique_id": client.origin.names.unique_id,
    }

    "workers", |view| view.bus.view().worker_slots(), in by_pool;
    |view, slot| worker = view.bus.view().worker_row(view.now, slot)?;
    {
        "worker": worker_name(view, worker.name),
        "pool": view.workers.pools.get(worker.name.pool.index()).map(|pool| &pool.core.id),
        "state": STATES[worker.state as usize],
        "role": worker.role,
        "pid": worker.pid,
        "incarnation": worker.name.incarnation,
        "age_seconds": seconds(worker.age),
        "idle_seconds": seconds(worker.link.idle),
        "owner": worker.owner,
        "pending": worker.link.to_answer,
        "owes_seconds": view.bus.view().worker_owes(view.now, slot).map(seconds),
        "unresponsive": worker.is_unresponsive,
        "asks": worker.link.asked,
        "sessions": worker.link.sessions,
        "queued_bytes": worker.link.queued,
        "unread_bytes": worker.unread,
        "memory_bytes": view.workers.processes.resident(worker.pid),
        "full_seconds": worker.link.full.map(seconds),
        "waits_for": worker.link.waits_for.map(|it| name(view, it.whom)),
        "waits_seconds": worker.link.waits_for.map(|it| seconds(it.time)),
    }

    "pools", |view| view.workers.pools.len(), with Pools;
    |view, at| pool = view.bus.view().pool_row(at).filter(|_| view.bus.view().pool_in_use(at))?;
    {
        "pool": pool.settings.id,
        "why": why(view.bus.view().pool_readiness(at)),
        "requests": Outcome::ALL.iter().map(|one| (one.name(), pool.stats.requests(*one))).collect::<Value>(),
        "answer_seconds_half_below" as "p50": quantile(pool.stats, 0.5),
        "answer_seconds_99_percent_below" as "p99": quantile(pool.stats, 0.99),
        "wakes": pool.woken,
        "wake_seconds_half_below" as "wake_p50": below(pool.wakes, 0.5),
        "wake_seconds_99_percent_below" as "wake_p99": below(pool.wakes, 0.99),
        "instances": pool.settings.instances,
        "grown": pool.grown,
        "max_instances": pool.settings.max_instances,
        "waiting": pool.waiting,
        "given_up": pool.given_up,
        "taken_out": pool.out,
        "exits": pool.stats.all_exits(),
    }

    "listeners", |view| view.places.len(), with Listeners;
    |view, at| place = view.places.get(at).filter(|_| view.bus.view().listener_in_use(at))?;
    {
        "listener": place.asked,
        "number": view.order.iter().position(|listener| *listener == at),
        "why": why(view.bus.view().listener_readiness(at)),
        "addresses": place.bound,
    }

    "sessions", |view| view.bus.view().session_slots();
    |view, slot| session = view.bus.view().session_row(view.now, slot)?;
    {
        "session": String::from_utf8_lossy(session.name),
        "client": session.client,
        "worker": session.worker.map(|worker| name(view, worker)),
        "rank": session.rank,
        "pending": session.pending,
        "idle_seconds": seconds(session.idle),
    }

    "pending", |view| view.bus.view().request_slots();
    |view, slot| request = view.bus.view().request_row(view.now, slot, &view.questions)?;
    {
        "id": request.id,
        "from": request.asker.map(|who| name(view, who)),
        "to": request.answerer.map(|who| name(view, who)),
        "method": request.method,
        "age_seconds": seconds(request.age),
        "silent_seconds": request.silent.map(seconds),
        "expires_seconds": request.expires.map(seconds),
        "cancelled": request.is_cancelled,
    }

    "limits", |view| limits(view).len();
    |view, at| (limit, used, most) = limits(view).into_iter().nth(at)?;
    {
        "limit": limit,
        "used": used,
        "most": most,
    }

    "errors", |view| view.recent.iter().count();
    |view, at| (time, trouble) = view.recent.iter().nth(at)?;
    {
        "time": time.to_the_millisecond(),
        "level": level_of(trouble.level).as_str(),
        "reason": trouble.reason.name(),
        "id": trouble.id,
        "client": trouble.client,
        "worker": trouble.worker.map(|worker| worker_name(view, worker)),
        "text": trouble.text,
    }

    "top", |view| view.consumers().len();
    |view, at| row = view.consumers().get(at)?;
    {
        "by": row.kind.name(),
        // None for all others together: a token may have any name.
        "name": row.who.as_ref().map(|one| who(view, one)),
        "now_requests": row.now.requests,
        "now_bytes" as "now bytes": row.now.bytes,
        "now_worker_seconds" as "now worker time": seconds(row.now.worker_time),
        "total_requests": row.all.requests,
        "total_bytes" as "total bytes": row.all.bytes,
        "total_worker_seconds" as "total worker time": seconds(row.all.worker_time),
    }

    "waiting", |view| peers(view) + view.bus.view().request_slots(), in questions_first;
    |view, slot| wait = waiting(view, slot)?;
    {
        "who": wait.who.map_or_else(|| "a client that has left".to_owned(), |who| name(view, who)),
        "waits_for": name(view, wait.whom),
        "what": wait.what,
        "waits_seconds": seconds(wait.time),
    }
}

impl Table {
    /// The columns in display order.
    fn all_columns(&self) -> Vec<Column> {
        let figures = FIGURES.iter().filter(|figure| Some(figure.over) == self.figures);
        let figures = figures.filter_map(|figure| Some(Column { member: figure.member?, heading: None }));
        let (first, others) = self.columns.split_at(1);
        first.iter().copied().chain(figures).chain(others.iter().copied()).collect()
    }

    fn row(&self, view: &View<'_>, slot: usize) -> Option<Value> {
        let mut row = (self.row)(view, slot)?;
        if let Some(over) = self.figures {
            add_members(view, over, slot, &mut row);
        }
        Some(row)
    }
}

/// The table with this name.
pub(super) fn named(name: &str) -> Option<&'static Table> {
    TABLES.iter().find(|table| table.name == name)
}

/// The columns of each table.
pub(crate) fn columns() -> impl Iterator<Item = (&'static str, Vec<Column>)> {
    TABLES.iter().map(|table| (table.name, table.all_columns()))
}

/// Workers grouped by pool.
pub(super) fn by_pool(view: &View<'_>) -> Vec<usize> {
    let name =
        |slot| view.bus.view().worker_row(view.now, slot).map(|worker| (worker.name.pool, worker.name.place, slot));
    let mut workers: Vec<_> = (0..view.bus.view().worker_slots()).filter_map(name).collect();
    workers.sort_unstable();
    workers.into_iter().map(|(_, _, slot)| slot).collect()
}

/// A part of an object: a table, or the rows of it for an overview.
pub(super) struct Part {
    pub(super) table: &'static Table,
    /// Maximum number of rows.
    pub(super) most: usize,
    /// Whether the row of a slot is shown.
    pub(super) shows: fn(&View<'_>, usize) -> bool,
}

/// An object written in pieces: the members of `head`, then tables.
pub(super) struct Object {
    head: Option<fn(&View<'_>) -> Value>,
    parts: Vec<Part>,
    /// The current table and slot, and how many rows it has yet.
    at: usize,
    slot: usize,
    rows: usize,
    order: Option<Vec<usize>>,
}

impl Object {
    pub(super) fn new(head: fn(&View<'_>) -> Value, parts: Vec<Part>) -> Self {
        Self { head: Some(head), parts, at: 0, slot: 0, rows: 0, order: None }
    }

    /// A single table.
    pub(super) fn of(table: &'static Table) -> Self {
        Self::new(|_| json!({}), vec![Part { table, most: usize::MAX, shows: |_, _| true }])
    }

    /// Appends rows. False after the last one.
    fn add_rows(&mut self, view: &View<'_>, out: &mut Vec<u8>) -> bool {
        let Some(&Part { table, most, shows }) = self.parts.get(self.at) else { return false };
        if self.slot == 0 {
            out.extend_from_slice(format!("{}\"{}\":[", if self.at > 0 { "," } else { "" }, table.name).as_bytes());
            self.order = table.order.map(|order| order(view));
        }
        let slots = self.order.as_ref().map_or_else(|| (table.slots)(view), Vec::len);
        let (last, last_row) = (self.slot + SLOTS, most.min(self.rows + ROWS));
        while self.slot < slots && self.slot < last && self.rows < last_row {
            let slot = self.order.as_ref().map_or(self.slot, |order| order[self.slot]);
            if let Some(row) = table.row(view, slot).filter(|_| shows(view, slot)) {
                out.extend_from_slice(if self.rows > 0 { b",\n" } else { b"\n" });
                out.extend_from_slice(printable::json(&row.to_string()).as_bytes());
                self.rows += 1;
            }
            self.slot += 1;
        }
        if self.slot >= slots || self.rows >= most {
            out.push(b']');
            (self.at, self.slot, self.rows) = (self.at + 1, 0, 0);
        }
        self.at < self.parts.len()
    }
}

impl Pieces for Object {
    fn next(&mut self, view: &View<'_>, out: &mut Vec<u8>) -> bool {
        if let Some(head) = self.head.take() {
            let head = head(view).to_string();
            let head = printable::json(&head);
            // The object continues.
            out.extend_from_slice(&head.as_bytes()[..head.len() - 1]);
            out.extend_from_slice(if head.len() > 2 { b"," } else { b"" });
            return true;
        }
        let goes_on = self.add_rows(view, out);
        if !goes_on {
            out.extend_from_slice(b"}\n");
        }
        goes_on
    }
}

fn pool_id<'v>(view: &'v View<'_>, pool: PoolId) -> &'v str {
    view.workers.pools.get(pool.index()).map_or("", |pool| pool.core.id.as_str())
}

/// A worker's display name.
pub(super) fn worker_name(view: &View<'_>, worker: WorkerName) -> String {
    format!("{}/{}", pool_id(view, worker.pool), worker.place)
}

/// The name of one whose usage is counted.
pub(super) fn who(view: &View<'_>, who: &Who) -> String {
    match who {
        Who::Source(source) => source.to_string(),
        Who::Token(name) | Who::User(name) => name.to_string(),
        Who::Pool(pool) => pool_id(view, *pool).to_owned(),
    }
}

fn name(view: &View<'_>, name: PeerName) -> String {
    match name {
        PeerName::Client(number) => format!("client {number}"),
        PeerName::Worker(worker) => format!("worker {}", worker_name(view, worker)),
        PeerName::Pool(pool) => format!("the next worker of {}", pool_id(view, pool)),
        PeerName::PausedPool(pool) => format!("the paused pool {}", pool_id(view, pool)),
    }
}

/// Why it is not ready, if it is not.
fn why(readiness: Option<Readiness>) -> Value {
    match &readiness {
        Some(Readiness::Ready) => Value::Null,
        Some(readiness) => readiness.reason().unwrap_or("draining").into(),
        None => "draining".into(),
    }
}

/// A quantile of answer times.
fn quantile(stats: &PoolStats, part: f64) -> Option<f64> {
    below(stats.durations(), part)
}

/// A quantile: below this bound, in seconds, is at least such a part of the durations.
fn below(durations: &Histogram, part: f64) -> Option<f64> {
    let wanted = (durations.count() as f64 * part).ceil() as u64;
    let class = durations.cumulative().find(|(_, count)| *count >= wanted && *count > 0);
    class.map(|(bound, _)| bound.as_secs_f64())
}

fn limits(view: &View<'_>) -> Vec<(&'static str, Option<usize>, u64)> {
    let levels = view.bus.view().levels();
    let row = |name, FillLevel { used, most }| (name, Some(used), most as u64);
    let mut rows: Vec<_> = figures::TABLES.iter().map(|table| row(table.name, (table.level)(&levels))).collect();
    rows.push(row("memory in bytes (limits.max_memory)", FillLevel { used: view.memory, most: view.max_memory }));
    if let Some((used, most)) = view.bus.view().workers_memory() {
        rows.push(("MiB of all workers (limits.max_workers_memory_mb)", Some(used as usize), most));
    }
    let limits = view.bus.view().limits();
    let fixed = [
        ("bytes of a line (limits.max_input_buffer)", limits.max_input_buffer as u64),
        ("bytes queued for one connection (limits.max_output_queue)", limits.max_output_queue as u64),
        ("restarts of a worker (limits.max_restarts)", limits.max_restarts.into()),
        ("seconds in which they count (limits.restart_window_sec)", limits.restart_window.as_secs()),
        ("seconds of a full output (limits.backpressure_timeout_sec)", limits.backpressure_timeout.as_secs()),
        ("seconds of a drain (limits.drain_timeout_sec)", limits.drain_timeout.as_secs()),
        ("seconds for pending requests before it (limits.quiesce_sec)", limits.quiesce.as_secs()),
    ];
    rows.extend(fixed.map(|(name, most)| (name, None, most)));
    rows
}

/// A peer that waits for another.
struct Wait {
    /// None for a client that has left: the worker still owes the answer.
    who: Option<PeerName>,
    whom: PeerName,
    what: String,
    time: Duration,
}

/// Slots of the `waiting` table that are of peers; requests follow.
fn peers(view: &View<'_>) -> usize {
    view.bus.view().client_slots() + view.bus.view().worker_slots()
}

/// The request in a slot of the `waiting` table.
fn request_in(view: &View<'_>, slot: usize) -> Option<RequestRow> {
    view.bus.view().request_row(view.now, slot.checked_sub(peers(view))?, &view.questions)
}

/// The rows of the `waiting` table: peers that are not read, workers that asked clients, clients.
fn questions_first(view: &View<'_>) -> Vec<usize> {
    let is_question = |slot: &usize| matches!(view.bus.view().asker_of(slot - peers(view)), Some(PeerName::Worker(_)));
    let (questions, requests): (Vec<_>, Vec<_>) =
        (peers(view)..peers(view) + view.bus.view().request_slots()).partition(is_question);
    (0..peers(view)).chain(questions).chain(requests).collect()
}

/// The peer in a slot, or whoever has asked in it, if it waits for another.
fn waiting(view: &View<'_>, slot: usize) -> Option<Wait> {
    let clients = view.bus.view().client_slots();
    let (who, link) = if slot < clients {
        let client = view.bus.view().client_row(view.now, slot)?;
        (PeerName::Client(client.number), client.link)
    } else if slot < peers(view) {
        let worker = view.bus.view().worker_row(view.now, slot - clients)?;
        (PeerName::Worker(worker.name), worker.link)
    } else {
        let RequestRow { id, asker, answerer, method, age, is_cancelled, .. } = request_in(view, slot)?;
        let what = match method {
            Some(method) => format!("the answer to {method} {id}"),
            None => format!("the answer to {id}"),
        };
        let is_owed = !is_cancelled && matches!(answerer, Some(PeerName::Worker(_)));
        return (asker.is_some() || is_owed).then_some(Wait { who: asker, whom: answerer?, what, time: age });
    };
    let WaitsFor { whom, what, time } = link.waits_for?;
    Some(Wait { who: Some(who), whom, what: what.to_owned(), time })
}

/// Whether a row of the table of those who wait is worth a line of an overview: not each request that is answered soon.
pub(super) fn waits_long(view: &View<'_>, slot: usize) -> bool {
    let is_question = |request: &RequestRow| matches!(request.asker, Some(PeerName::Worker(_)));
    request_in(view, slot).is_none_or(|request| is_question(&request) || request.age >= LONG)
}
