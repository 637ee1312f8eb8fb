//! The most recent warnings and errors of the log, for operators who look later. Entries suppressed in the log are not
//! kept either, so that no client can push out all others.

use std::collections::VecDeque;

use super::wall::WallClock;
use crate::bus::report::{Level, Reason, Report, WorkerName};

/// The number of entries kept.
const MOST: usize = 64;
/// Maximum length of a kept text in bytes.
const LONGEST: usize = 500;

/// One entry.
pub(in crate::shell) struct Trouble {
    pub at: WallClock,
    pub level: Level,
    pub reason: Reason,
    pub client: Option<u32>,
    pub worker: Option<WorkerName>,
    pub id: Option<String>,
    pub text: String,
}

/// See the module documentation.
#[derive(Default)]
pub(in crate::shell) struct Recent(VecDeque<Trouble>);

impl Recent {
    /// Keeps a report if it is a warning or an error.
    pub(in crate::shell) fn add(&mut self, report: &Report) {
        if report.level < Level::Warn {
            return;
        }
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        let mut text = report.text.clone();
        text.truncate(whole_characters(&text, LONGEST));
        self.0.push_back(Trouble {
            at: WallClock::now(),
            level: report.level,
            reason: report.reason,
            client: report.client,
            worker: report.worker,
            id: report.id.clone(),
            text,
        });
    }

    /// The entries, newest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Trouble> {
        self.0.iter().rev()
    }
}

/// The largest length up to `most` that does not cut a character.
fn whole_characters(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_warnings_and_errors_are_kept_and_other_entries_are_not() {
        let mut recent = Recent::default();
        recent.add(&Report::new(Reason::WorkerStarted, "a worker runs"));
        assert_eq!(recent.iter().count(), 0);
        for number in 0..MOST + 3 {
            recent.add(&Report::new(Reason::NoWorker, format!("{number} {}", "é".repeat(400))));
        }
        assert_eq!(recent.iter().count(), MOST);
        let last = recent.iter().next().expect("the last one comes first");
        assert!(last.text.starts_with("66 é") && last.text.len() <= LONGEST, "{}", last.text);
    }
}
