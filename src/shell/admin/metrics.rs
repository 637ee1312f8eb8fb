//! `/metrics` in Prometheus's text format 0.0.4: the table of `figures.rs`, with the totals that it needs.
//!
//! Tables are scanned and figures written in pieces, so that a scrape of a full daemon does not block the loop. Labels
//! are pools, listeners, states, outcomes, reasons, and of those who use most a fixed number: they stay few, however many
//! clients connect.

use super::figures::{FIGURES, Figure, MetricContext, MetricScope, Write};
use super::response::Pieces;
use super::samples::{PoolTotals, Samples, Totals};
use super::tables::who;
use super::view::View;
use crate::bus::overview::WaitsFor;
use crate::bus::usage::Consumer;

/// The content type of the format.
pub(super) const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Table entries scanned for one piece.
const ROWS: usize = 256;
/// The minimum size of a piece in bytes.
const ENOUGH: usize = 8 * 1024;

/// One scrape.
pub(super) struct Metrics {
    /// The next slot to scan: those of clients, workers and requests, in this order.
    slot: usize,
    /// The next figure, and which part of it.
    figure: (usize, usize),
    gathered: Totals,
    /// Removed pools and listeners of which nothing is left are not shown.
    shows_pool: Vec<bool>,
    shows_listener: Vec<bool>,
}

impl Metrics {
    pub(super) fn new(view: &View<'_>) -> Self {
        let clients = vec![0; view.places.len()];
        let pools = vec![PoolTotals::default(); view.workers.pools.len()];
        let named = |one: &Consumer| Some((one.kind.name(), who(view, one.who.as_ref()?), one.all));
        let consumers = view.consumers().iter().filter_map(named);
        let gathered = Totals {
            clients,
            pools,
            consumers: consumers.collect(),
            process: view.workers.processes.usage(),
            ..Totals::default()
        };
        let shows_pool = (0..view.workers.pools.len()).map(|pool| view.bus.view().pool_in_use(pool)).collect();
        let shows_listener = (0..view.places.len()).map(|at| view.bus.view().listener_in_use(at)).collect();
        Self { slot: 0, figure: (0, 0), gathered, shows_pool, shows_listener }
    }

    /// Counts the entry in a slot. False if there is no such slot.
    fn gather(&mut self, view: &View<'_>, mut slot: usize) -> bool {
        let sizes = [view.bus.view().client_slots(), view.bus.view().worker_slots(), view.bus.view().request_slots()];
        let Some(table) = sizes.iter().position(|size| {
            let is_here = slot < *size;
            slot -= if is_here { 0 } else { *size };
            is_here
        }) else {
            return false;
        };
        let gathered = &mut self.gathered;
        match table {
            0 => {
                let Some(row) = view.bus.view().client_row(view.now, slot) else { return true };
                if let Some(clients) = gathered.clients.get_mut(row.listener.index()) {
                    *clients += 1;
                }
                gathered.client_queued += row.link.queued;
                if let Some(WaitsFor { time: paused, .. }) = row.link.waits_for {
                    gathered.clients_paused += 1;
                    gathered.clients_paused_for += paused;
                }
            }
            1 => {
                let Some(row) = view.bus.view().worker_row(view.now, slot) else { return true };
                // A reload may have added pools since the scrape began.
                let Some(pool) = gathered.pools.get_mut(row.name.pool.index()) else { return true };
                pool.states[row.state as usize] += 1;
                pool.unresponsive += usize::from(row.is_unresponsive);
                pool.queued += row.link.queued;
                if let Some(WaitsFor { time: paused, .. }) = row.link.waits_for {
                    pool.paused += 1;
                    gathered.workers_paused_for += paused;
                }
            }
            _ => {
                if let Some((pool, age)) = view.bus.view().owed_age(view.now, slot)
                    && let Some(pool) = gathered.pools.get_mut(pool.index())
                {
                    pool.oldest_owed = pool.oldest_owed.max(age);
                }
                let Some((pool, age)) = view.bus.view().request_age(view.now, slot) else { return true };
                let Some(pool) = gathered.pools.get_mut(pool.index()) else { return true };
                pool.pending += 1;
                pool.oldest = pool.oldest.max(age);
            }
        }
        true
    }

    /// Writes figures until the piece is large enough. True if some are left.
    fn write(&mut self, view: &View<'_>, out: &mut Vec<u8>) -> bool {
        let scene = MetricContext { view, stats: view.bus.view().stats(), gathered: &self.gathered };
        let begin = out.len();
        while let Some(Figure { name, kind, help, over, write, .. }) = FIGURES.get(self.figure.0) {
            let (_, part) = self.figure;
            if out.len() - begin >= ENOUGH {
                return true;
            }
            if part == 0 {
                out.extend_from_slice(format!("# HELP {name} {help}\n# TYPE {name} {kind}\n").as_bytes());
            }
            let (parts, label) = match over {
                MetricScope::All => (1, None),
                MetricScope::Pools => {
                    (self.gathered.pools.len(), view.workers.pools.get(part).map(|pool| ("pool", pool.core.id.clone())))
                }
                MetricScope::Listeners => {
                    (view.places.len(), view.places.get(part).map(|place| ("listener", place.label().to_owned())))
                }
            };
            let is_shown = match over {
                MetricScope::All => true,
                MetricScope::Pools => self.shows_pool.get(part) == Some(&true),
                MetricScope::Listeners => self.shows_listener.get(part) == Some(&true),
            };
            if part < parts && is_shown {
                let samples = &mut Samples { out, name, part: label };
                match write {
                    Write::One(value) => samples.value(&value(&scene, part)),
                    Write::Many(write) => write(samples, &scene, part),
                }
            }
            self.figure = if part + 1 < parts { (self.figure.0, part + 1) } else { (self.figure.0 + 1, 0) };
        }
        false
    }
}

impl Pieces for Metrics {
    fn next(&mut self, view: &View<'_>, out: &mut Vec<u8>) -> bool {
        let next = self.slot + ROWS;
        while self.slot < next {
            if !self.gather(view, self.slot) {
                return self.write(view, out);
            }
            self.slot += 1;
        }
        true
    }
}

/// The names of all metrics, to compare with the documentation.
#[cfg(test)]
fn names() -> Vec<&'static str> {
    FIGURES.iter().map(|figure| figure.name).collect()
}

#[cfg(test)]
mod tests {
    use super::super::samples::STATES;
    use super::*;
    use crate::bus::worker::WorkerState;

    #[test]
    fn the_states_of_workers_have_their_names() {
        for (state, name) in
            [(WorkerState::Starting, "starting"), (WorkerState::Killed, "killed"), (WorkerState::Stopped, "stopped")]
        {
            assert_eq!(STATES[state as usize], name);
        }
        let mut names = names();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FIGURES.len(), "a name occurs once");
    }

    /// The table in docs/monitoring.md of the metrics of one kind.
    fn table(over: MetricScope) -> String {
        let head = match over {
            MetricScope::All => "of the daemon",
            MetricScope::Pools => "of each `pool`",
            MetricScope::Listeners => "of each `listener`",
        };
        let rows = FIGURES.iter().filter(|figure| figure.over == over);
        let rows = rows.map(|Figure { name, help, .. }| format!("| `{name}` | {help} |\n"));
        format!("\n| {head} | |\n|---|---|\n{}", rows.collect::<String>())
    }

    /// Every word in a text that looks like a metric's name.
    fn mentioned(text: &str) -> Vec<&str> {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        words.filter(|word| word.starts_with("stdio_bus_") && !word.ends_with('_')).collect()
    }

    #[test]
    fn dashboard_and_alerts_use_existing_metrics_and_all_are_documented() {
        let names = names();
        let exists = |word: &str| {
            let parts = ["_bucket", "_sum", "_count"].into_iter().filter_map(|part| word.strip_suffix(part));
            std::iter::once(word).chain(parts).any(|name| names.contains(&name))
        };
        let dashboard = include_str!("../../../config/grafana/dashboard.json");
        let alerts = include_str!("../../../config/prometheus/alerts.yml");
        for text in [dashboard, alerts] {
            let words = mentioned(text);
            assert!(words.len() > 10, "{words:?}");
            for word in words {
                assert!(exists(word), "there is no metric {word}");
            }
        }
        let panels: serde_json::Value = serde_json::from_str(dashboard).expect("the dashboard is JSON");
        assert!(panels["panels"].as_array().is_some_and(|panels| panels.len() > 10));
        let documented = include_str!("../../../docs/monitoring.md");
        for table in [MetricScope::All, MetricScope::Pools, MetricScope::Listeners].map(table) {
            assert!(documented.contains(&table), "docs/monitoring.md should have this table:\n{table}");
        }
    }
}
