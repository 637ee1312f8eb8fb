//! `/metrics` in the text format 0.0.4 of Prometheus. One table has every metric with its help text.
//!
//! Tables are counted through and families written in pieces, so that a scrape of a full daemon holds nothing up.
//! Labels are pools, listeners, states, outcomes and reasons: a bounded number, whoever connects.

use std::fmt::Write as _;
use std::time::Duration;

use super::response::Pieces;
use super::view::View;
use crate::bus::histogram::Histogram;
use crate::bus::overview::PoolRow;
use crate::bus::readiness::Readiness;
use crate::bus::stats::Stats;
use crate::bus::tally::{ENDS, Errors, Outcome};
use crate::shell::workers::usage::Usage;

/// The media type of the format.
pub(super) const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Entries of tables that are looked at for one piece.
const ROWS: usize = 256;
/// Bytes after which a piece is long enough.
const ENOUGH: usize = 8 * 1024;
/// The states of a worker, by their numbers.
const STATES: [&str; 5] = ["starting", "running", "stopping", "killed", "stopped"];

/// What a family has a sample for.
#[derive(Clone, Copy)]
enum Over {
    /// The daemon.
    All,
    /// Each pool.
    Pools,
    /// Each listener.
    Listeners,
}

/// Metrics of one name.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    over: Over,
    write: fn(&mut Samples<'_>, &Scene<'_>, usize),
}

/// What samples are made from.
struct Scene<'a> {
    view: &'a View<'a>,
    stats: Stats,
    gathered: &'a Gathered,
}

impl Scene<'_> {
    fn pool(&self, at: usize) -> (&OfPool, PoolRow<'_>) {
        let row = self.view.bus.pool_row(at).expect("parts are pools of the bus");
        (&self.gathered.pools[at], row)
    }
}

/// What the tables add up to.
#[derive(Default)]
struct Gathered {
    /// Clients of each listener.
    clients: Vec<usize>,
    client_queued: usize,
    clients_paused: usize,
    /// For how long those are paused that are paused now.
    clients_paused_for: Duration,
    workers_paused_for: Duration,
    pools: Vec<OfPool>,
    process: Usage,
}

#[derive(Clone, Default)]
struct OfPool {
    states: [usize; STATES.len()],
    queued: usize,
    paused: usize,
    pending: usize,
    oldest: Duration,
}

/// Writes the samples of one family.
struct Samples<'a> {
    out: &'a mut Vec<u8>,
    name: &'static str,
    /// The label of its part, if it has one.
    part: Option<(&'static str, String)>,
}

impl Samples<'_> {
    fn one(&mut self, value: f64) {
        self.labelled(&[], value);
    }

    fn labelled(&mut self, labels: &[(&str, &str)], value: f64) {
        self.sample("", labels, value);
    }

    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        let mut line = format!("{}{suffix}", self.name);
        let part = self.part.as_ref().map(|(name, value)| (*name, value.as_str()));
        let mut before = '{';
        for (name, value) in part.into_iter().chain(labels.iter().copied()) {
            let _ = write!(line, "{before}{name}=\"");
            for character in value.chars() {
                match character {
                    '\\' => line.push_str("\\\\"),
                    '"' => line.push_str("\\\""),
                    '\n' => line.push_str("\\n"),
                    other => line.push(other),
                }
            }
            line.push('"');
            before = ',';
        }
        let _ = writeln!(line, "{} {value}", if before == ',' { "}" } else { "" });
        self.out.extend_from_slice(line.as_bytes());
    }

    /// No sample where it is not known.
    fn known(&mut self, value: Option<u64>) {
        if let Some(value) = value {
            self.one(value as f64);
        }
    }

    fn errors(&mut self, errors: &Errors) {
        for (reason, count) in errors.iter() {
            self.labelled(&[("reason", reason.name())], count as f64);
        }
    }

    fn histogram(&mut self, histogram: &Histogram) {
        for (bound, count) in histogram.cumulative() {
            let bound = bound.as_secs_f64().to_string();
            self.sample("_bucket", &[("le", &bound)], count as f64);
        }
        self.sample("_bucket", &[("le", "+Inf")], histogram.count() as f64);
        self.sample("_sum", &[], histogram.sum().as_secs_f64());
        self.sample("_count", &[], histogram.count() as f64);
    }
}

/// A counter or a gauge that is one number of the statistics.
macro_rules! of_stats {
    ($name:literal $kind:literal $help:literal $field:ident) => {
        Family {
            name: $name,
            kind: $kind,
            help: $help,
            over: Over::All,
            write: |out, scene, _| out.one(scene.stats.$field as f64),
        }
    };
}

/// A counter of each pool.
macro_rules! of_tally {
    ($name:literal $help:literal $field:ident) => {
        Family {
            name: $name,
            kind: "counter",
            help: $help,
            over: Over::Pools,
            write: |out, scene, at| out.one(scene.pool(at).1.tally.$field as f64),
        }
    };
}

fn is_ready(readiness: Option<Readiness>) -> f64 {
    if readiness.is_some_and(|readiness| readiness.is_ready()) { 1.0 } else { 0.0 }
}

const FAMILIES: &[Family] = &[
    Family {
        name: "stdio_bus_build_info",
        kind: "gauge",
        help: "Always 1; its labels say which version runs, and whether io_uring (ring) or epoll carries the bytes.",
        over: Over::All,
        write: |out, scene, _| {
            out.labelled(&[("version", env!("CARGO_PKG_VERSION")), ("io", scene.view.io)], 1.0);
        },
    },
    Family {
        name: "stdio_bus_start_time_seconds",
        kind: "gauge",
        help: "When the daemon was started, in seconds since 1970.",
        over: Over::All,
        write: |out, scene, _| {
            out.one(scene.view.started_at.seconds());
        },
    },
    Family {
        name: "stdio_bus_ready",
        kind: "gauge",
        help: "Whether /readyz says yes.",
        over: Over::All,
        write: |out, scene, _| out.one(is_ready(Some(scene.view.bus.readiness()))),
    },
    Family {
        name: "stdio_bus_draining",
        kind: "gauge",
        help: "Whether the daemon shuts down.",
        over: Over::All,
        write: |out, scene, _| {
            out.one(if scene.view.bus.readiness() == Readiness::Draining { 1.0 } else { 0.0 });
        },
    },
    Family {
        name: "stdio_bus_listener_ready",
        kind: "gauge",
        help: "Whether /readyz?listener=N says yes.",
        over: Over::Listeners,
        write: |out, scene, at| out.one(is_ready(scene.view.bus.listener_readiness(at))),
    },
    Family {
        name: "stdio_bus_pool_ready",
        kind: "gauge",
        help: "Whether /readyz?pool=ID says yes.",
        over: Over::Pools,
        write: |out, scene, at| out.one(is_ready(scene.view.bus.pool_readiness(at))),
    },
    Family {
        name: "stdio_bus_clients",
        kind: "gauge",
        help: "Client connections.",
        over: Over::Listeners,
        write: |out, scene, at| out.one(scene.gathered.clients.get(at).copied().unwrap_or_default() as f64),
    },
    Family {
        name: "stdio_bus_client_slots_free",
        kind: "gauge",
        help: "Connections that could still be taken.",
        over: Over::All,
        write: |out, scene, _| {
            let level = scene.view.bus.levels().clients;
            out.one((level.most - level.used) as f64);
        },
    },
    of_stats!("stdio_bus_sessions" "gauge" "Sessions that have an owner." sessions),
    Family {
        name: "stdio_bus_session_slots_free",
        kind: "gauge",
        help: "Sessions that could still be made.",
        over: Over::All,
        write: |out, scene, _| {
            let level = scene.view.bus.levels().sessions;
            out.one((level.most - level.used) as f64);
        },
    },
    Family {
        name: "stdio_bus_session_names_held",
        kind: "gauge",
        help: "Names of sessions whose owners have left, which nobody else gets.",
        over: Over::All,
        write: |out, scene, _| out.one(scene.view.bus.levels().held as f64),
    },
    Family {
        name: "stdio_bus_requests_pending",
        kind: "gauge",
        help: "Requests of clients that workers have not answered and that somebody waits for.",
        over: Over::Pools,
        write: |out, scene, at| out.one(scene.pool(at).0.pending as f64),
    },
    Family {
        name: "stdio_bus_requests_pending_oldest_seconds",
        kind: "gauge",
        help: "How long the oldest of them has waited; 0 if there is none.",
        over: Over::Pools,
        write: |out, scene, at| out.one(scene.pool(at).0.oldest.as_secs_f64()),
    },
    Family {
        name: "stdio_bus_request_slots_free",
        kind: "gauge",
        help: "Requests of clients that could still be taken.",
        over: Over::All,
        write: |out, scene, _| {
            let level = scene.view.bus.levels().requests;
            out.one((level.most - level.used) as f64);
        },
    },
    Family {
        name: "stdio_bus_worker_requests_pending",
        kind: "gauge",
        help: "Requests of workers that clients have not answered.",
        over: Over::All,
        write: |out, scene, _| out.one(scene.view.bus.levels().worker_requests.used as f64),
    },
    Family {
        name: "stdio_bus_requests_total",
        kind: "counter",
        help: "Requests that were passed on to a worker, by what became of them.",
        over: Over::Pools,
        write: |out, scene, at| {
            for outcome in Outcome::ALL {
                let count = scene.pool(at).1.tally.requests(*outcome);
                out.labelled(&[("outcome", outcome.name())], count as f64);
            }
        },
    },
    Family {
        name: "stdio_bus_request_errors_total",
        kind: "counter",
        help: "Requests of clients that the daemon has answered with an error of its own, by the reason that stands in the log; without a pool those that were for none or for one of several.",
        over: Over::Pools,
        write: |out, scene, at| {
            out.errors(&scene.pool(at).1.tally.errors);
            if at + 1 == scene.view.pools.len() {
                out.part = Some(("pool", String::new()));
                out.errors(scene.view.bus.errors_of_no_pool());
            }
        },
    },
    Family {
        name: "stdio_bus_request_duration_seconds",
        kind: "histogram",
        help: "From passing a request on until its answer came, with a result or an error.",
        over: Over::Pools,
        write: |out, scene, at| out.histogram(&scene.pool(at).1.tally.durations),
    },
    Family {
        name: "stdio_bus_workers",
        kind: "gauge",
        help: "Workers by state.",
        over: Over::Pools,
        write: |out, scene, at| {
            for (state, count) in STATES.iter().zip(scene.pool(at).0.states) {
                out.labelled(&[("state", state)], count as f64);
            }
        },
    },
    Family {
        name: "stdio_bus_worker_seats",
        kind: "gauge",
        help: "Workers that a pool wants to have: there, waiting for their restart, or given up.",
        over: Over::Pools,
        write: |out, scene, at| {
            let pool = scene.pool(at).1;
            let there = pool.instances - pool.waiting - pool.given_up;
            for (state, count) in [("filled", there), ("waiting", pool.waiting), ("given_up", pool.given_up)] {
                out.labelled(&[("state", state)], count as f64);
            }
        },
    },
    of_tally!("stdio_bus_worker_starts_total" "Processes of workers that were started." starts),
    of_tally!("stdio_bus_worker_start_failures_total" "Workers that could not be started." start_failures),
    Family {
        name: "stdio_bus_worker_exits_total",
        kind: "counter",
        help: "Workers that ended by themselves or were replaced for what they did, by the reason that stands in the log.",
        over: Over::Pools,
        write: |out, scene, at| {
            for reason in ENDS {
                out.labelled(&[("reason", reason.name())], scene.pool(at).1.tally.exits(reason) as f64);
            }
        },
    },
    of_tally!("stdio_bus_worker_stops_total" "Workers that ended as asked: by the operator, with their client, or at the end." stops),
    of_tally!("stdio_bus_worker_restarts_total" "Restarts that an unasked exit led to." restarts),
    of_tally!("stdio_bus_worker_seats_given_up_total" "Seats that were given up after too many restarts." given_up),
    of_stats!("stdio_bus_client_lines_received_total" "counter" "Lines taken from clients." lines_from_clients),
    of_stats!("stdio_bus_client_lines_sent_total" "counter" "Lines queued for clients, error replies included." lines_to_clients),
    of_stats!("stdio_bus_worker_lines_received_total" "counter" "Lines taken from workers." lines_from_workers),
    of_stats!("stdio_bus_worker_lines_sent_total" "counter" "Lines queued for workers." lines_to_workers),
    of_stats!("stdio_bus_client_received_bytes_total" "counter" "Bytes taken from clients." bytes_from_clients),
    of_stats!("stdio_bus_client_sent_bytes_total" "counter" "Bytes queued for clients." bytes_to_clients),
    of_stats!("stdio_bus_worker_received_bytes_total" "counter" "Bytes taken from workers." bytes_from_workers),
    of_stats!("stdio_bus_worker_sent_bytes_total" "counter" "Bytes queued for workers." bytes_to_workers),
    of_stats!("stdio_bus_error_replies_total" "counter" "Errors that the daemon itself has answered with." error_replies),
    of_stats!("stdio_bus_ids_replaced_total" "counter" "Request ids that were replaced." ids_translated),
    of_stats!("stdio_bus_unsent_bytes_total" "counter" "Bytes that were queued for a connection when it was closed." bytes_unsent),
    Family {
        name: "stdio_bus_client_queued_bytes",
        kind: "gauge",
        help: "Bytes queued for clients and not sent.",
        over: Over::All,
        write: |out, scene, _| out.one(scene.gathered.client_queued as f64),
    },
    Family {
        name: "stdio_bus_worker_queued_bytes",
        kind: "gauge",
        help: "Bytes queued for workers and not sent.",
        over: Over::Pools,
        write: |out, scene, at| out.one(scene.pool(at).0.queued as f64),
    },
    Family {
        name: "stdio_bus_clients_paused",
        kind: "gauge",
        help: "Clients that are not read because somebody else has no room or is served first.",
        over: Over::All,
        write: |out, scene, _| out.one(scene.gathered.clients_paused as f64),
    },
    Family {
        name: "stdio_bus_clients_awaiting_workers",
        kind: "gauge",
        help: "Clients that wait for a worker of their own to be started, or for its first answer.",
        over: Over::All,
        write: |out, scene, _| out.one(scene.stats.awaiting_workers as f64),
    },
    Family {
        name: "stdio_bus_clients_paused_seconds_total",
        kind: "counter",
        help: "How long clients were not read for that, all together.",
        over: Over::All,
        write: |out, scene, _| {
            out.one((scene.stats.clients_paused + scene.gathered.clients_paused_for).as_secs_f64());
        },
    },
    Family {
        name: "stdio_bus_workers_paused",
        kind: "gauge",
        help: "Workers that are not read because a client has no room.",
        over: Over::Pools,
        write: |out, scene, at| out.one(scene.pool(at).0.paused as f64),
    },
    Family {
        name: "stdio_bus_workers_paused_seconds_total",
        kind: "counter",
        help: "How long workers were not read for that, all together.",
        over: Over::All,
        write: |out, scene, _| {
            out.one((scene.stats.workers_paused + scene.gathered.workers_paused_for).as_secs_f64());
        },
    },
    Family {
        name: "stdio_bus_memory_bytes",
        kind: "gauge",
        help: "Memory of unfinished lines, queues and held lines.",
        over: Over::All,
        write: |out, scene, _| out.one(scene.view.memory as f64),
    },
    Family {
        name: "stdio_bus_memory_limit_bytes",
        kind: "gauge",
        help: "limits.max_memory.",
        over: Over::All,
        write: |out, scene, _| out.one(scene.view.max_memory as f64),
    },
    Family {
        name: "stdio_bus_events_total",
        kind: "counter",
        help: "What was dropped, closed or changed, by the reason that stands in the log.",
        over: Over::All,
        write: |out, scene, _| {
            for (reason, count) in scene.view.bus.reasons() {
                out.labelled(&[("reason", reason.name())], count as f64);
            }
        },
    },
    Family {
        name: "stdio_bus_turn_duration_seconds",
        kind: "histogram",
        help: "How long each turn of the loop has worked, without its wait.",
        over: Over::All,
        write: |out, scene, _| out.histogram(scene.view.turns),
    },
    Family {
        name: "stdio_bus_log_lines_lost_total",
        kind: "counter",
        help: "Lines of the log that found no room or could not be written.",
        over: Over::All,
        write: |out, scene, _| out.one(scene.view.log_lines_lost as f64),
    },
    Family {
        name: "stdio_bus_admin_connections",
        kind: "gauge",
        help: "Connections of the admin listener.",
        over: Over::All,
        write: |out, scene, _| out.one(scene.view.admin_connections as f64),
    },
    Family {
        name: "process_cpu_seconds_total",
        kind: "counter",
        help: "Processor time of the daemon itself, without its workers.",
        over: Over::All,
        write: |out, scene, _| out.one(scene.gathered.process.cpu_seconds),
    },
    Family {
        name: "process_resident_memory_bytes",
        kind: "gauge",
        help: "Memory of the daemon itself that is in RAM.",
        over: Over::All,
        write: |out, scene, _| out.known(scene.gathered.process.resident_bytes),
    },
    Family {
        name: "process_virtual_memory_bytes",
        kind: "gauge",
        help: "Address space of the daemon itself.",
        over: Over::All,
        write: |out, scene, _| out.known(scene.gathered.process.virtual_bytes),
    },
    Family {
        name: "process_open_fds",
        kind: "gauge",
        help: "File descriptors that the daemon has open.",
        over: Over::All,
        write: |out, scene, _| out.known(scene.gathered.process.open_descriptors),
    },
    Family {
        name: "process_max_fds",
        kind: "gauge",
        help: "File descriptors that it may have open.",
        over: Over::All,
        write: |out, scene, _| out.known(scene.gathered.process.most_descriptors),
    },
    Family {
        name: "process_start_time_seconds",
        kind: "gauge",
        help: "The same as stdio_bus_start_time_seconds, under the name that dashboards of processes ask for.",
        over: Over::All,
        write: |out, scene, _| out.one(scene.view.started_at.seconds()),
    },
];

/// What comes next.
enum Step {
    /// Slots of clients from here on.
    Clients(usize),
    Workers(usize),
    Requests(usize),
    /// This part of a family.
    Family(usize, usize),
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
            let pool = &mut self.gathered.pools[row.pool];
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

    /// Writes families until that is enough. True if some are left.
    fn write(&mut self, view: &View<'_>, from: (usize, usize), out: &mut Vec<u8>) -> bool {
        let scene = Scene { view, stats: view.bus.stats(), gathered: &self.gathered };
        let (first, mut part) = from;
        let begin = out.len();
        for (at, family) in FAMILIES.iter().enumerate().skip(first) {
            let parts = match family.over {
                Over::All => 1,
                Over::Pools => view.pools.len(),
                Over::Listeners => view.places.len(),
            };
            if part == 0 && out.len() - begin >= ENOUGH {
                self.step = Step::Family(at, 0);
                return true;
            }
            if part == 0 {
                let Family { name, kind, help, .. } = family;
                out.extend_from_slice(format!("# HELP {name} {help}\n# TYPE {name} {kind}\n").as_bytes());
            }
            while part < parts {
                if part > 0 && out.len() - begin >= ENOUGH {
                    self.step = Step::Family(at, part);
                    return true;
                }
                let label = match family.over {
                    Over::All => None,
                    Over::Pools => Some(("pool", view.pools[part].core.id.clone())),
                    Over::Listeners => Some(("listener", view.places[part].label().to_owned())),
                };
                (family.write)(&mut Samples { out, name: family.name, part: label }, &scene, part);
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
                self.step = end(from, view.bus.request_slots()).map_or(Step::Family(0, 0), Step::Requests);
            }
            Step::Family(at, part) => return self.write(view, (at, part), out),
        }
        true
    }
}

/// The names of all metrics, for those who write down what they mean.
#[cfg(test)]
fn names() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::worker::State;

    #[test]
    fn labels_are_escaped_and_numbers_are_plain() {
        let mut out = Vec::new();
        let part = Some(("pool", "a\"b\\c\nd".to_owned()));
        let mut samples = Samples { out: &mut out, name: "n", part };
        samples.labelled(&[("state", "x")], 0.00001);
        samples.one(12_345_678_901_234.0);
        Samples { out: &mut out, name: "m", part: None }.one(1.5);
        let text = String::from_utf8(out).expect("it is text");
        assert_eq!(
            text,
            "n{pool=\"a\\\"b\\\\c\\nd\",state=\"x\"} 0.00001\nn{pool=\"a\\\"b\\\\c\\nd\"} 12345678901234\nm 1.5\n"
        );
    }

    #[test]
    fn the_states_of_workers_have_their_names() {
        for (state, name) in [(State::Starting, "starting"), (State::Killed, "killed"), (State::Stopped, "stopped")] {
            assert_eq!(STATES[state as usize], name);
        }
        let mut names = names();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FAMILIES.len(), "a name stands once");
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

    #[test]
    fn a_histogram_ends_with_everything() {
        let mut histogram = Histogram::default();
        histogram.observe(Duration::from_millis(3));
        let mut out = Vec::new();
        Samples { out: &mut out, name: "h", part: None }.histogram(&histogram);
        let text = String::from_utf8(out).expect("it is text");
        assert!(text.starts_with("h_bucket{le=\"0.00001\"} 0\n"), "{text}");
        assert!(text.contains("h_bucket{le=\"0.0025\"} 0\nh_bucket{le=\"0.005\"} 1\n"), "{text}");
        assert!(text.ends_with("h_bucket{le=\"1000\"} 1\nh_bucket{le=\"+Inf\"} 1\nh_sum 0.003\nh_count 1\n"), "{text}");
    }
}
