//! Writes samples in Prometheus's format, and the totals that some need.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

use crate::bus::histogram::Histogram;
use crate::bus::report::Reason;
use crate::bus::usage::Used;
use crate::shell::workers::usage::Usage;

/// The states of a worker, by number.
pub(super) const STATES: [&str; 6] = ["starting", "running", "ending", "stopping", "killed", "stopped"];

/// Seconds, rounded to milliseconds.
pub(super) fn seconds(duration: Duration) -> f64 {
    duration.as_millis() as f64 / 1e3
}

/// Totals over the tables.
#[derive(Default)]
pub(super) struct Totals {
    /// Clients of each listener.
    pub clients: Vec<usize>,
    pub client_queued: usize,
    pub clients_paused: usize,
    /// The total time that currently paused clients have been paused.
    pub clients_paused_for: Duration,
    pub workers_paused_for: Duration,
    pub pools: Vec<PoolTotals>,
    /// Those who use most: what they are, their names, and what they have used since the start.
    pub consumers: Vec<(&'static str, String, Used)>,
    pub process: Usage,
}

#[derive(Clone, Default)]
pub(super) struct PoolTotals {
    pub states: [u64; STATES.len()],
    pub queued: usize,
    pub paused: usize,
    pub pending: usize,
    pub oldest: Duration,
    /// The same, also of clients that have left.
    pub oldest_owed: Duration,
    pub unresponsive: usize,
}

/// Writes the samples of one figure.
pub(super) struct Samples<'a> {
    pub out: &'a mut Vec<u8>,
    pub name: &'static str,
    /// The label of its part, if it has one.
    pub part: Option<(&'static str, String)>,
}

impl Samples<'_> {
    pub(super) fn labelled(&mut self, labels: &[(&str, &str)], value: f64) {
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

    /// A number or a flag; no sample if it is unknown.
    pub(super) fn value(&mut self, value: &Value) {
        if let Some(number) = value.as_f64().or_else(|| value.as_bool().map(|flag| f64::from(u8::from(flag)))) {
            self.labelled(&[], number);
        }
    }

    /// A sample for each of these values of a label.
    pub(super) fn each(&mut self, label: &str, counts: impl IntoIterator<Item = (&'static str, u64)>) {
        counts.into_iter().for_each(|(value, count)| self.labelled(&[(label, value)], count as f64));
    }

    pub(super) fn reasons(&mut self, counts: impl Iterator<Item = (Reason, u64)>) {
        self.each("reason", counts.map(|(reason, count)| (reason.name(), count)));
    }

    /// A sample for each of those who use most.
    pub(super) fn consumers(&mut self, gathered: &Totals, value: fn(&Used) -> f64) {
        for (kind, name, used) in &gathered.consumers {
            self.labelled(&[("by", kind), ("name", name)], value(used));
        }
    }

    pub(super) fn histogram(&mut self, histogram: &Histogram) {
        for (bound, count) in histogram.cumulative() {
            let bound = bound.as_secs_f64().to_string();
            self.sample("_bucket", &[("le", &bound)], count as f64);
        }
        self.sample("_bucket", &[("le", "+Inf")], histogram.count() as f64);
        self.sample("_sum", &[], histogram.sum().as_secs_f64());
        self.sample("_count", &[], histogram.count() as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_numbers_are_plain() {
        let mut out = Vec::new();
        let part = Some(("pool", "a\"b\\c\nd".to_owned()));
        let mut samples = Samples { out: &mut out, name: "n", part };
        samples.labelled(&[("state", "x")], 0.00001);
        samples.labelled(&[], 12_345_678_901_234.0);
        Samples { out: &mut out, name: "m", part: None }.value(&1.5.into());
        let text = String::from_utf8(out).expect("it is text");
        assert_eq!(
            text,
            "n{pool=\"a\\\"b\\\\c\\nd\",state=\"x\"} 0.00001\nn{pool=\"a\\\"b\\\\c\\nd\"} 12345678901234\nm 1.5\n"
        );
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
