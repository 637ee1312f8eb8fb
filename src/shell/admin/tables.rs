//! The tables of the daemon as JSON, a row for each client, worker, pool, session or request; written in pieces.

use std::time::Duration;

use serde_json::{Value, json};

use super::figures::{self, Over, add_members};
use super::response::Pieces;
use super::samples::STATES;
use super::view::View;
use crate::bus::overview::{Level, Link, Name};
use crate::bus::readiness::Readiness;
use crate::bus::report::{self, WorkerName};
use crate::bus::tally::Outcome;
use crate::visible;

/// Rows of one piece.
const ROWS: usize = 48;
/// Empty slots are passed over fast, but not for ever.
const SLOTS: usize = 1024;
/// Warnings and errors that stand beside everything else.
const LAST: usize = 10;

/// A table: what it is called, how many slots rows may be in, and the row of each.
pub(super) struct Table {
    name: &'static str,
    slots: fn(&View<'_>) -> usize,
    row: fn(&View<'_>, usize) -> Option<Value>,
    /// The slots in the order of the rows, if that is another one.
    order: Option<fn(&View<'_>) -> Vec<usize>>,
}

macro_rules! tables {
    ($($table:ident = $name:literal $slots:expr, $row:expr $(, in $order:expr)?;)*) => {
        $(pub(super) static $table: Table =
            Table { name: $name, slots: $slots, row: $row, order: tables!(@order $($order)?) };)*
    };
    (@order) => { None };
    (@order $order:expr) => { Some($order) };
}

tables! {
    CLIENTS = "clients" |view| view.bus.client_slots(), client;
    WORKERS = "workers" |view| view.bus.worker_slots(), worker, in by_pool;
    POOLS = "pools" |view| view.pools.len(), pool;
    LISTENERS = "listeners" |view| view.places.len(), listener;
    SESSIONS = "sessions" |view| view.bus.session_slots(), session;
    PENDING = "pending" |view| view.bus.request_slots(), request;
    LIMITS = "limits" |view| limits(view).len(), |view, at| limits(view).into_iter().nth(at);
    ERRORS = "errors" |view| view.recent.iter().count(), error;
    LAST_ERRORS = "errors" |view| view.recent.iter().count().min(LAST), error;
    WAITING = "waiting" |view| view.bus.client_slots() + view.bus.worker_slots(), waiting;
}

/// What can be asked for by its name. The last errors stand beside everything else.
static BY_NAME: [&Table; 9] = [&CLIENTS, &WORKERS, &POOLS, &LISTENERS, &SESSIONS, &PENDING, &LIMITS, &ERRORS, &WAITING];

/// The table of this name, alone.
pub(super) fn named(name: &str) -> Option<&'static [&'static Table]> {
    let at = BY_NAME.iter().position(|table| table.name == name)?;
    Some(&BY_NAME[at..=at])
}

/// Workers stand pool by pool.
fn by_pool(view: &View<'_>) -> Vec<usize> {
    let name = |slot| view.bus.worker_row(view.now, slot).map(|worker| (worker.name.pool, worker.name.place, slot));
    let mut workers: Vec<_> = (0..view.bus.worker_slots()).filter_map(name).collect();
    workers.sort_unstable();
    workers.into_iter().map(|(_, _, slot)| slot).collect()
}

/// Writes one table after the other as the members of an object that is begun and ended by others.
struct Rows {
    tables: &'static [&'static Table],
    /// Which of them is being written, from which slot on, and whether a row of it stands there.
    at: usize,
    slot: usize,
    has_row: bool,
    order: Option<Vec<usize>>,
}

impl Rows {
    fn of(tables: &'static [&'static Table]) -> Self {
        Self { tables, at: 0, slot: 0, has_row: false, order: None }
    }

    /// Adds rows. False after the last one.
    fn write(&mut self, view: &View<'_>, out: &mut Vec<u8>) -> bool {
        let Some(table) = self.tables.get(self.at) else { return false };
        if self.slot == 0 {
            out.extend_from_slice(format!("{}\"{}\":[", if self.at > 0 { "," } else { "" }, table.name).as_bytes());
            self.order = table.order.map(|order| order(view));
        }
        let slots = self.order.as_ref().map_or_else(|| (table.slots)(view), Vec::len);
        let (mut rows, last) = (0, self.slot + SLOTS);
        while self.slot < slots && self.slot < last && rows < ROWS {
            let slot = self.order.as_ref().map_or(self.slot, |order| order[self.slot]);
            if let Some(row) = (table.row)(view, slot) {
                out.extend_from_slice(if std::mem::replace(&mut self.has_row, true) { b",\n" } else { b"\n" });
                out.extend_from_slice(visible::json(&row.to_string()).as_bytes());
                rows += 1;
            }
            self.slot += 1;
        }
        if self.slot >= slots {
            out.push(b']');
            (self.at, self.slot, self.has_row) = (self.at + 1, 0, false);
        }
        self.at < self.tables.len()
    }
}

/// Tables as the members of an object, perhaps behind others.
pub(super) struct Object {
    head: Option<fn(&View<'_>) -> Value>,
    rows: Rows,
    has_begun: bool,
}

impl Object {
    /// Tables alone.
    pub(super) fn of(tables: &'static [&'static Table]) -> Self {
        Self { head: None, rows: Rows::of(tables), has_begun: false }
    }

    /// Tables behind the members of what `head` makes.
    pub(super) fn behind(head: fn(&View<'_>) -> Value, tables: &'static [&'static Table]) -> Self {
        Self { head: Some(head), ..Self::of(tables) }
    }
}

impl Pieces for Object {
    fn next(&mut self, view: &View<'_>, out: &mut Vec<u8>) -> bool {
        if !std::mem::replace(&mut self.has_begun, true) {
            let Some(head) = self.head else {
                out.push(b'{');
                return self.next(view, out);
            };
            let head = head(view).to_string();
            let head = visible::json(&head);
            // The object goes on.
            out.extend_from_slice(&head.as_bytes()[..head.len() - 1]);
            out.push(b',');
            return true;
        }
        let goes_on = self.rows.write(view, out);
        if !goes_on {
            out.extend_from_slice(b"}\n");
        }
        goes_on
    }
}

/// Seconds to the millisecond.
pub(super) fn seconds(duration: Duration) -> f64 {
    duration.as_millis() as f64 / 1e3
}

fn optional(duration: Option<Duration>) -> Value {
    duration.map_or(Value::Null, |duration| json!(seconds(duration)))
}

/// How people call a worker.
fn worker_name(view: &View<'_>, worker: WorkerName) -> String {
    let id = view.pools.get(worker.pool).map_or("", |pool| pool.core.id.as_str());
    format!("{id}/{}", worker.place)
}

fn name(view: &View<'_>, name: Name) -> String {
    match name {
        Name::Client(number) => format!("client {number}"),
        Name::Worker(worker) => format!("worker {}", worker_name(view, worker)),
        Name::Pool(pool) => {
            format!("the next worker of {}", view.pools.get(pool).map_or("", |pool| pool.core.id.as_str()))
        }
    }
}

fn place<'v>(view: &'v View<'_>, listener: usize) -> &'v str {
    view.places.get(listener).map_or("", |place| place.label())
}

fn add_link(view: &View<'_>, row: &mut Value, link: &Link) {
    row["queued_bytes"] = link.queued.into();
    row["full_seconds"] = optional(link.full);
    row["waits_for"] = link.waits.map_or(Value::Null, |(who, _)| name(view, who).into());
    row["waits_seconds"] = optional(link.waits.map(|(_, time)| time));
}

fn client(view: &View<'_>, slot: usize) -> Option<Value> {
    let client = view.bus.client_row(view.now, slot)?;
    let mut row = json!({
        "client": client.number,
        "source": client.origin.place.to_string(),
        "via": client.origin.via.map(|via| via.to_string()),
        "token": client.origin.names.token.as_deref(),
        "connection_id": client.origin.names.connection_id,
        "cn": client.origin.names.common_name,
        "sni": client.origin.names.server_name,
        "unique_id": client.origin.names.unique_id,
        "listener": place(view, client.listener),
        "state": client.state,
        "age_seconds": seconds(client.account.lasted),
        "idle_seconds": seconds(client.link.idle),
        "pending": client.link.asked,
        "to_answer": client.link.to_answer,
        "sessions": client.link.sessions,
        "lines_in": client.account.traffic.lines_in,
        "bytes_in": client.account.traffic.bytes_in,
        "lines_out": client.account.traffic.lines_out,
        "bytes_out": client.account.traffic.bytes_out,
        "answered": client.account.answered,
        "failed": client.account.failed,
    });
    add_link(view, &mut row, &client.link);
    Some(row)
}

fn worker(view: &View<'_>, slot: usize) -> Option<Value> {
    let worker = view.bus.worker_row(view.now, slot)?;
    let mut row = json!({
        "worker": worker_name(view, worker.name),
        "incarnation": worker.name.incarnation,
        "pool": view.pools.get(worker.name.pool).map(|pool| &pool.core.id),
        "pid": worker.pid,
        "state": STATES[worker.state as usize],
        "age_seconds": seconds(worker.age),
        "idle_seconds": seconds(worker.link.idle),
        "owner": worker.owner,
        "pending": worker.link.to_answer,
        "asks": worker.link.asked,
        "sessions": worker.link.sessions,
        "unread_bytes": worker.unread,
        "memory_bytes": view.processes.resident(worker.pid),
    });
    add_link(view, &mut row, &worker.link);
    Some(row)
}

/// Why it is not ready, if it is not.
fn why(readiness: Option<Readiness>) -> Value {
    match readiness {
        Some(Readiness::Ready) => Value::Null,
        Some(Readiness::NotReady(why)) => why.into(),
        Some(Readiness::Draining) | None => "draining".into(),
    }
}

fn listener(view: &View<'_>, at: usize) -> Option<Value> {
    let place = view.places.get(at)?;
    let mut row = json!({ "listener": place.asked, "addresses": place.bound });
    row["why"] = why(view.bus.listener_readiness(at));
    add_members(view, Over::Listeners, at, &mut row);
    Some(row)
}

fn pool(view: &View<'_>, at: usize) -> Option<Value> {
    let pool = view.bus.pool_row(at)?;
    let tally = pool.tally;
    let requests: serde_json::Map<String, Value> =
        Outcome::ALL.iter().map(|outcome| (outcome.name().to_owned(), tally.requests(*outcome).into())).collect();
    let quantile = |part: f64| {
        let wanted = (tally.durations.count() as f64 * part).ceil() as u64;
        let class = tally.durations.cumulative().find(|(_, count)| *count >= wanted && *count > 0);
        class.map(|(bound, _)| bound.as_secs_f64())
    };
    let mut row = json!({
        "pool": pool.settings.id,
        "instances": pool.settings.instances,
        "max_instances": pool.settings.max_instances,
        "waiting": pool.waiting,
        "given_up": pool.given_up,
        "requests": requests,
        "answer_seconds_half_below": quantile(0.5),
        "answer_seconds_99_percent_below": quantile(0.99),
        "exits": tally.all_exits(),
        "why": why(view.bus.pool_readiness(at)),
    });
    add_members(view, Over::Pools, at, &mut row);
    Some(row)
}

fn session(view: &View<'_>, slot: usize) -> Option<Value> {
    let session = view.bus.session_row(view.now, slot)?;
    Some(json!({
        "session": String::from_utf8_lossy(session.name),
        "client": session.client,
        "worker": session.worker.map(|worker| name(view, worker)),
        "rank": session.rank,
        "pending": session.pending,
        "idle_seconds": seconds(session.idle),
    }))
}

fn request(view: &View<'_>, slot: usize) -> Option<Value> {
    let request = view.bus.request_row(view.now, slot)?;
    Some(json!({
        "id": request.id,
        "from": request.asker.map(|who| name(view, who)),
        "to": request.answerer.map(|who| name(view, who)),
        "age_seconds": seconds(request.age),
        "expires_seconds": optional(request.expires),
        "cancelled": request.is_cancelled,
    }))
}

fn limits(view: &View<'_>) -> Vec<Value> {
    let levels = view.bus.levels();
    let row = |name: &str, Level { used, most }: Level| json!({ "limit": name, "used": used, "most": most });
    let mut rows: Vec<Value> = figures::TABLES.iter().map(|table| row(table.name, (table.level)(&levels))).collect();
    rows.push(row("memory in bytes (limits.max_memory)", Level { used: view.memory, most: view.max_memory }));
    let limits = view.bus.limits();
    let fixed = [
        ("bytes of a line (limits.max_input_buffer)", limits.max_input_buffer as u64),
        ("bytes queued for one connection (limits.max_output_queue)", limits.max_output_queue as u64),
        ("restarts of a worker (limits.max_restarts)", limits.max_restarts.into()),
        ("seconds in which they count (limits.restart_window_sec)", limits.restart_window.as_secs()),
        ("seconds of a full output (limits.backpressure_timeout_sec)", limits.backpressure_timeout.as_secs()),
        ("seconds of a drain (limits.drain_timeout_sec)", limits.drain_timeout.as_secs()),
        ("seconds for pending requests before it (limits.quiesce_sec)", limits.quiesce.as_secs()),
    ];
    rows.extend(fixed.map(|(name, most)| json!({ "limit": name, "used": null, "most": most })));
    rows
}

fn error(view: &View<'_>, at: usize) -> Option<Value> {
    let trouble = view.recent.iter().nth(at)?;
    Some(json!({
        "time": trouble.at.to_the_millisecond(),
        "level": match trouble.level {
            report::Level::Error => "ERROR",
            report::Level::Warn => "WARN",
            report::Level::Info => "INFO",
            report::Level::Debug => "DEBUG",
        },
        "reason": trouble.reason.name(),
        "client": trouble.client,
        "worker": trouble.worker.map(|worker| worker_name(view, worker)),
        "id": trouble.id,
        "text": trouble.text,
    }))
}

fn waiting(view: &View<'_>, slot: usize) -> Option<Value> {
    let clients = view.bus.client_slots();
    let (who, link) = if slot < clients {
        let client = view.bus.client_row(view.now, slot)?;
        (Name::Client(client.number), client.link)
    } else {
        let worker = view.bus.worker_row(view.now, slot - clients)?;
        (Name::Worker(worker.name), worker.link)
    };
    let (whom, time) = link.waits?;
    Some(json!({ "who": name(view, who), "waits_for": name(view, whom), "waits_seconds": seconds(time) }))
}
