//! The log of a running daemon.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use crate::client::PATIENCE;
use crate::waiting::comes_true;

/// What was written to stderr so far.
#[derive(Default)]
pub struct Log {
    state: Mutex<LogState>,
    changed: Condvar,
}

#[derive(Default)]
struct LogState {
    lines: Vec<String>,
    ended: bool,
}

impl Log {
    /// Reads it on a thread of its own.
    pub fn of(stderr: impl Read + Send + 'static) -> Arc<Self> {
        let log = Arc::new(Self::default());
        let follower = Arc::clone(&log);
        std::thread::spawn(move || follower.follow(stderr));
        log
    }

    fn follow(&self, stderr: impl Read) {
        let mut reader = BufReader::new(stderr);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
            self.state.lock().expect("no panic in here").lines.push(text);
            self.changed.notify_all();
            line.clear();
        }
        self.state.lock().expect("no panic in here").ended = true;
        self.changed.notify_all();
    }

    /// The first line that `wanted` accepts, as soon as there is one.
    pub fn wait(&self, wanted: impl Fn(&str) -> bool) -> Option<String> {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = 0;
        let mut state = self.state.lock().expect("no panic in here");
        loop {
            if let Some(line) = state.lines[seen..].iter().find(|line| wanted(line)) {
                return Some(line.clone());
            }
            seen = state.lines.len();
            let left = deadline.saturating_duration_since(Instant::now());
            if state.ended || left.is_zero() {
                return None;
            }
            state = self.changed.wait_timeout(state, left).expect("no panic in here").0;
        }
    }

    /// Whether the log has ended.
    pub fn has_ended(&self) -> bool {
        self.state.lock().expect("no panic in here").ended
    }

    pub fn until_end(&self) {
        assert!(comes_true(PATIENCE, || self.has_ended()), "in vain: the log ends");
    }

    pub fn text(&self) -> String {
        let state = self.state.lock().expect("no panic in here");
        state.lines.iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{line}");
            text
        })
    }
}

/// The warnings and errors in a log, but for one: a busy machine may leave the daemon without a processor.
pub fn complaints(log: &str) -> Vec<&str> {
    let is_loud = |line: &&str| line.contains("WARN") || line.contains("ERROR");
    log.lines().filter(is_loud).filter(|line| !line.contains("daemon_held_up")).collect()
}
