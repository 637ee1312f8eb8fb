//! `/status.json`: an overview of the daemon, for the status page and for `stdio_bus status`. Clients, sessions and
//! requests have tables of their own, since there may be thousands.

use serde_json::json;

use super::figures::{self, MetricScope, add_members};
use super::history;
use super::samples::seconds;
use super::tables::{Object, Part, named, waits_long};
use super::view::View;
use crate::bus::overview::FillLevel;
use crate::bus::port::Moment;
use crate::bus::readiness::Readiness;
use crate::shell::log;

/// The tables after the figures, with their maximum numbers of rows: of warnings and errors the latest.
const TABLES: [(&str, usize); 5] =
    [("listeners", usize::MAX), ("pools", usize::MAX), ("workers", usize::MAX), ("waiting", 32), ("errors", 10)];

/// The whole object.
pub(super) fn status() -> Object {
    let shows = |name: &str| if name == "waiting" { waits_long } else { |_: &View<'_>, _| true };
    let part = |(name, most): &(&str, usize)| Some(Part { table: named(name)?, most: *most, shows: shows(name) });
    Object::new(figures, TABLES.iter().filter_map(part).collect())
}

fn figures(view: &View<'_>) -> serde_json::Value {
    let levels = view.bus.view().levels();
    let readiness = view.bus.view().readiness();
    let stage = match readiness {
        Readiness::Ready => "ready",
        Readiness::NotReady(_) | Readiness::Unresponsive(_) | Readiness::Full(_) => "not ready",
        Readiness::Paused(_) => "paused",
        Readiness::Draining => "draining",
    };
    let failure = || (0..view.workers.pools.len()).find_map(|pool| view.bus.view().rollout_failure(pool));
    let why = if readiness.is_ready() { failure() } else { readiness.reason() };
    let mut status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "io": view.io,
        "node": view.node,
        "state": stage,
        "why": why,
        "started": view.started_at.to_the_second(),
        "uptime_seconds": seconds(view.bus.view().lasted(view.now, Moment::default())),
        "errors_kept": view.recent.iter().count(),
        "log": { "level": log::level_name() },
        "loop": { "turns": view.turns.count(), "busy_seconds": view.turns.sum().as_secs_f64() },
        "history": {
            "every_seconds": history::EVERY.as_secs(),
            "columns": history::COLUMNS,
            "samples": view.history.samples,
        },
    });
    for table in figures::TABLES {
        let FillLevel { used, most } = (table.level)(&levels);
        status[table.member] = json!({ "used": used, "most": most });
    }
    add_members(view, MetricScope::All, 0, &mut status);
    status
}
