//! `/metrics` in the text format 0.0.4 of Prometheus: what `figures.rs` says, with what has to be counted for it.
//!
//! Tables are counted through and figures written in pieces, so that a scrape of a full daemon holds nothing up.
//! Labels are pools, listeners, states, outcomes and reasons: a bounded number, however many clients connect.

use super::figures::{FIGURES, Figure, Over, Scene, Write};
use super::response::Pieces;
use super::samples::{Gathered, OfPool, Samples};
use super::view::View;

/// The media type of the format.
pub(super) const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Entries of tables that are looked at for one piece.
const ROWS: usize = 256;
/// Bytes after which a piece is long enough.
const ENOUGH: usize = 8 * 1024;
/// What comes next.
enum Step {
    /// Slots of clients from here on.
    Clients(usize),
    Workers(usize),
    Requests(usize),
    /// This part of a figure.
    Figure(usize, usize),
}

/// One scrape.
pub(super) struct Metrics {
    step: Step,
    gathered: Gathered,
}

impl Metrics {
    pub(super) fn new(view: &View<'_>) -> Self {
        let clients = vec![0; view.places.len()];
        let pools = vec![OfPool::default(); view.pools.len()];
        Self {
            step: Step::Clients(0),
            gathered: Gathered { clients, pools, process: view.processes.usage(), ..Gathered::default() },
        }
    }

    fn gather_clients(&mut self, view: &View<'_>, slots: std::ops::Range<usize>) {
        for row in slots.filter_map(|slot| view.bus.client_row(view.now, slot)) {
            if let Some(clients) = self.gathered.clients.get_mut(row.listener) {
                *clients += 1;
            }
            self.gathered.client_queued += row.link.queued;
            if let Some((_, paused)) = row.link.waits {
                self.gathered.clients_paused += 1;
                self.gathered.clients_paused_for += paused;
            }
        }
    }

    fn gather_workers(&mut self, view: &View<'_>, slots: std::ops::Range<usize>) {
        for row in slots.filter_map(|slot| view.bus.worker_row(view.now, slot)) {
            let pool = &mut self.gathered.pools[row.name.pool];
            pool.states[row.state as usize] += 1;
            pool.queued += row.link.queued;
            if let Some((_, paused)) = row.link.waits {
                pool.paused += 1;
                self.gathered.workers_paused_for += paused;
            }
        }
    }

    fn gather_requests(&mut self, view: &View<'_>, slots: std::ops::Range<usize>) {
        for (pool, age) in slots.filter_map(|slot| view.bus.request_age(view.now, slot)) {
            let pool = &mut self.gathered.pools[pool];
            pool.pending += 1;
            pool.oldest = pool.oldest.max(age);
        }
    }

    /// Writes figures until that is enough. True if some are left.
    fn write(&mut self, view: &View<'_>, from: (usize, usize), out: &mut Vec<u8>) -> bool {
        let scene = Scene { view, stats: view.bus.stats(), gathered: &self.gathered };
        let (first, mut part) = from;
        let begin = out.len();
        for (at, figure) in FIGURES.iter().enumerate().skip(first) {
            let parts = match figure.over {
                Over::All => 1,
                Over::Pools => view.pools.len(),
                Over::Listeners => view.places.len(),
            };
            if part == 0 && out.len() - begin >= ENOUGH {
                self.step = Step::Figure(at, 0);
                return true;
            }
            if part == 0 {
                let Figure { name, kind, help, .. } = figure;
                out.extend_from_slice(format!("# HELP {name} {help}\n# TYPE {name} {kind}\n").as_bytes());
            }
            while part < parts {
                if part > 0 && out.len() - begin >= ENOUGH {
                    self.step = Step::Figure(at, part);
                    return true;
                }
                let label = match figure.over {
                    Over::All => None,
                    Over::Pools => Some(("pool", view.pools[part].core.id.clone())),
                    Over::Listeners => Some(("listener", view.places[part].label().to_owned())),
                };
                let samples = &mut Samples { out, name: figure.name, part: label };
                match figure.write {
                    Write::One(value) => samples.number(value(&scene, part)),
                    Write::Many(write) => write(samples, &scene, part),
                }
                part += 1;
            }
            part = 0;
        }
        false
    }
}

impl Pieces for Metrics {
    fn next(&mut self, view: &View<'_>, out: &mut Vec<u8>) -> bool {
        let end = |from: usize, slots: usize| if from + ROWS < slots { Some(from + ROWS) } else { None };
        match self.step {
            Step::Clients(from) => {
                self.gather_clients(view, from..from + ROWS);
                self.step = end(from, view.bus.client_slots()).map_or(Step::Workers(0), Step::Clients);
            }
            Step::Workers(from) => {
                self.gather_workers(view, from..from + ROWS);
                self.step = end(from, view.bus.worker_slots()).map_or(Step::Requests(0), Step::Workers);
            }
            Step::Requests(from) => {
                self.gather_requests(view, from..from + ROWS);
                self.step = end(from, view.bus.request_slots()).map_or(Step::Figure(0, 0), Step::Requests);
            }
            Step::Figure(at, part) => return self.write(view, (at, part), out),
        }
        true
    }
}

/// The names of all metrics, for those who write down what they mean.
#[cfg(test)]
fn names() -> Vec<&'static str> {
    FIGURES.iter().map(|figure| figure.name).collect()
}

#[cfg(test)]
mod tests {
    use super::super::samples::STATES;
    use super::*;
    use crate::bus::worker::State;

    #[test]
    fn the_states_of_workers_have_their_names() {
        for (state, name) in [(State::Starting, "starting"), (State::Killed, "killed"), (State::Stopped, "stopped")] {
            assert_eq!(STATES[state as usize], name);
        }
        let mut names = names();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FIGURES.len(), "a name stands once");
    }

    /// Every word in a text that could be the name of a metric.
    fn mentioned(text: &str) -> Vec<&str> {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        words.filter(|word| word.starts_with("stdio_bus_") && !word.ends_with('_')).collect()
    }

    #[test]
    fn dashboard_and_alerts_ask_for_metrics_that_exist_and_the_documentation_has_all() {
        let names = names();
        let exists = |word: &str| {
            let parts = ["_bucket", "_sum", "_count"].into_iter().filter_map(|part| word.strip_suffix(part));
            std::iter::once(word).chain(parts).any(|name| names.contains(&name))
        };
        let dashboard = include_str!("../../../config/prometheus/dashboard.json");
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
        let documented = include_str!("../../../docs/admin.md");
        for name in names {
            assert!(documented.contains(&format!("\n| `{name}` | ")), "docs/admin.md has no row for {name}");
        }
    }
}
