//! The most recent warnings and errors of the log, for operators who look later. Entries suppressed in the log are not
//! kept either, so that no client can push out all others.

use std::collections::VecDeque;

use super::wall_clock::WallClock;
use crate::bus::report::{Level, Report};

/// The number of entries kept.
const MOST: usize = 64;
/// Maximum length of a kept text in bytes.
const LONGEST: usize = 500;

#[derive(Default)]
pub(in crate::shell) struct Recent(VecDeque<(WallClock, Box<Report>)>);

impl Recent {
    /// Keeps a report if it is a warning or an error.
    pub(in crate::shell) fn add(&mut self, mut report: Box<Report>) {
        if report.level < Level::Warn {
            return;
        }
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        report.text.truncate(whole_characters(&report.text, LONGEST));
        self.0.push_back((WallClock::now(), report));
    }

    /// The entries, newest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(WallClock, Box<Report>)> {
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
    use crate::bus::report::Reason;

    #[test]
    fn recent_warnings_and_errors_are_kept_and_other_entries_are_not() {
        let mut recent = Recent::default();
        recent.add(Report::new(Reason::WorkerStarted, "a worker runs").into());
        assert_eq!(recent.iter().count(), 0);
        for number in 0..MOST + 3 {
            recent.add(Report::new(Reason::NoWorker, format!("{number} {}", "é".repeat(400))).into());
        }
        assert_eq!(recent.iter().count(), MOST);
        let (_, last) = recent.iter().next().expect("the last one comes first");
        assert!(last.text.starts_with("66 é") && last.text.len() <= LONGEST, "{}", last.text);
    }
}
