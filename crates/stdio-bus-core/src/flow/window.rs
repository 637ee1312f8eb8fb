//! The bytes that were queued for one worker and not read yet, and how many there may be before its clients take turns.
//!
//! Lines in a pipe are in order of arrival: behind a client that sends without end everyone waits. So a shared worker
//! is sent no more than it reads in some milliseconds; the rest waits at its senders, and they take turns. The limit
//! follows from how long bytes have waited. A worker that starts slowly, since others use its CPU, is not fed less for
//! that: the wait of a single line does not count.
//!
//! Invariant: `read ≤ sent ≤ queued`, in bytes since the worker was started.

use alloc::vec::Vec;
use core::time::Duration;

use crate::peer::{ClientKey, Moment};

/// Target wait of a byte before the worker reads it: what it reads at a time waits as long again inside it.
const TARGET: Duration = Duration::from_millis(4);
/// The window of a worker that was not measured yet, in bytes.
const FIRST_WINDOW: u64 = 16 * 1024;
/// The window if only one client uses it: the size of the pipe (`shell/workers/spawn.rs`).
const WINDOW_ALONE: u64 = 256 * 1024;
/// A window never needs to be larger: the limit of an output is reached before.
const LARGEST_WINDOW: u64 = 1 << 40;
/// A closed window reopens with this many bytes.
const SMALLEST_STEP: u64 = 64;
/// How soon the worker is probed again while so much is queued that a client may have to wait. No client should wait
/// for room that is there already.
const PROBE_AGAIN_AFTER: Duration = Duration::from_micros(100);
/// How often it is probed while a client waits.
const PROBE_EVERY: Duration = Duration::from_millis(1);

/// How long the measured wait of a single line is valid.
const DELAY_COUNTS: Duration = Duration::from_secs(5);

/// A position in the stream, when it was queued, and the window then.
#[derive(Clone, Copy, Debug)]
struct Mark {
    place: u64,
    at: Moment,
    window: u64,
    /// When it was last seen unread. The time between two probes is not the worker's fault.
    unread_at: Moment,
    /// At most one line was on its way.
    is_single: bool,
    /// So much was on its way that a larger window could have let more through.
    is_limited: bool,
}

/// The bytes on their way to one worker.
#[derive(Debug, Default)]
pub(crate) struct SendWindow {
    queued: u64,
    /// Bytes sent by the daemon.
    sent: u64,
    read: u64,
    window: u64,
    mark: Option<Mark>,
    /// Time of the last probe.
    probed_at: Moment,
    /// Clients take turns for the worker; it is checked then.
    turns_due: Option<Moment>,
    moved_at: Moment,
    /// It reads nothing at all.
    is_stuck: bool,
    /// How long a single line waits, and until when that is valid.
    delay: Duration,
    delay_ends: Moment,
    /// Where the last line of each client ends, by slot.
    ends: Vec<LineEnd>,
}

/// Where the last line of a client ends in the stream.
#[derive(Clone, Copy, Debug, Default)]
struct LineEnd {
    /// The client of the line: a slot may have another client after it. 0 is none.
    client: u64,
    place: u64,
}

impl SendWindow {
    /// The window of a worker that was not measured yet.
    pub(crate) fn new() -> Self {
        Self { window: FIRST_WINDOW, ..Self::default() }
    }

    /// Bytes queued since the worker was started.
    pub(crate) fn queued(&self) -> u64 {
        self.queued
    }

    /// Bytes queued and not read, as far as is known.
    pub(crate) fn backlog(&self) -> u64 {
        self.queued - self.read
    }

    /// Bytes that may be queued before clients have to wait for their turn.
    pub(crate) fn room(&self, alone: bool) -> u64 {
        if self.is_stuck { LARGEST_WINDOW } else { self.limit(alone).saturating_sub(self.backlog()) }
    }

    /// Bytes that may be on their way. A client that is alone delays only the next one to arrive.
    fn limit(&self, alone: bool) -> u64 {
        if alone { self.window.max(WINDOW_ALONE) } else { self.window }
    }

    /// Whether a client may queue a line: there is room and no client waits for it, or nothing of this client is on its
    /// way yet.
    pub(crate) fn has_room_for(&self, client: ClientKey, others_wait: bool, alone: bool) -> bool {
        let has_read = |end: &LineEnd| end.client != client.serial() || end.place <= self.read;
        ((self.backlog() <= self.limit(alone) || self.is_stuck) && !others_wait)
            || self.ends.get(client.index()).is_none_or(has_read)
    }

    /// Bytes are queued. `in_turns` means that more than one client uses the worker: only then is it measured.
    pub(crate) fn push(&mut self, now: Moment, bytes: usize, in_turns: bool) {
        if self.backlog() == 0 {
            self.moved_at = now;
        }
        self.queued += bytes as u64;
        if !in_turns {
            return;
        }
        match &mut self.mark {
            None => self.set_mark(now, bytes),
            // Bytes queued at the same time wait behind each other: the last of them shows how long.
            Some(mark) if mark.at == now => {
                mark.place = self.queued;
                mark.is_single = false;
                mark.is_limited = self.queued - self.read > self.window / 2;
            }
            Some(_) => {}
        }
    }

    /// The next queued bytes are a line of this client.
    pub(crate) fn mark_line_end(&mut self, client: ClientKey, bytes: usize) {
        let index = client.index();
        if self.ends.len() <= index {
            self.ends.resize(index + 1, LineEnd::default());
        }
        self.ends[index] = LineEnd { client: client.serial(), place: self.queued + bytes as u64 };
    }

    /// Bytes were sent by the daemon.
    pub(crate) fn leave(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }

    /// The worker is probed now.
    pub(crate) fn probe(&mut self, now: Moment) {
        self.probed_at = now;
    }

    /// When it is checked, if clients take turns for the worker.
    pub(crate) fn turns_due(&self) -> Option<Moment> {
        self.turns_due
    }

    /// Clients take turns, or continue to. Returns when it is checked.
    pub(crate) fn take_turns(&mut self, now: Moment) -> Moment {
        *self.turns_due.insert(now.after(PROBE_EVERY))
    }

    /// No client waits for its turn any more.
    pub(crate) fn end_turns(&mut self) {
        self.turns_due = None;
    }

    /// Whether it is time to probe the worker: a client waits for it, or may soon have to.
    pub(crate) fn is_probe_due(&self, now: Moment) -> bool {
        self.sent > self.read && self.backlog() > self.window / 2 && now.since(self.probed_at) >= PROBE_AGAIN_AFTER
    }

    /// The worker has `unread` bytes in its pipe.
    pub(crate) fn read_up_to(&mut self, now: Moment, unread: usize) {
        let read = self.sent.saturating_sub(unread as u64).max(self.read);
        if read > self.read {
            self.read = read;
            self.moved_at = now;
            self.is_stuck = false;
        }
        let Some(mark) = &mut self.mark else { return };
        let is_read = self.read >= mark.place;
        if !is_read {
            mark.unread_at = now;
        }
        let mark = *mark;
        let waited = mark.unread_at.since(mark.at);
        if is_read && mark.is_single {
            (self.delay, self.delay_ends) = (waited, now.after(DELAY_COUNTS));
        }
        let delay = if now < self.delay_ends { self.delay } else { Duration::ZERO };
        let longest = TARGET + delay;
        if waited > longest {
            self.window = (u128::from(mark.window) * longest.as_nanos() / waited.as_nanos()) as u64;
        } else if is_read && mark.is_limited && waited <= delay + TARGET / 2 {
            self.window = (self.window * 2).clamp(SMALLEST_STEP, LARGEST_WINDOW);
        }
        if is_read {
            self.mark = None;
            if self.backlog() > 0 {
                self.set_mark(now, usize::MAX);
            }
        }
    }

    /// Marks the bytes queued last.
    fn set_mark(&mut self, now: Moment, bytes: usize) {
        self.mark = Some(Mark {
            place: self.queued,
            at: now,
            window: self.window,
            unread_at: now,
            is_single: self.backlog() == bytes as u64 && self.window < bytes as u64,
            is_limited: self.backlog() > self.window / 2,
        });
    }

    /// Checks whether the worker has read nothing for this long. Then turns make no sense, and its output may fill up.
    pub(crate) fn update_stuck(&mut self, now: Moment, patience: Duration) {
        self.is_stuck = self.backlog() > 0 && now.since(self.moved_at) >= patience;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    const MS: u64 = 1_000_000;

    /// A worker that reads `rate` bytes a millisecond in pieces of `chunk`, always fed up to its window: returns the
    /// window after this many milliseconds.
    fn window_after(rate: u64, chunk: u64, milliseconds: u64) -> u64 {
        let mut feed = SendWindow::new();
        let (mut has, mut unread) = (0, 0);
        for at in 1..milliseconds {
            let now = Moment(at * MS);
            let room = feed.room(false).min(256 * 1024 - unread);
            if room > 0 || feed.backlog() == 0 {
                let line = room.max(200);
                feed.push(now, line as usize, true);
                feed.leave(line as usize);
                unread += line;
            }
            for _ in 0..100 {
                if has == 0 {
                    has = unread.min(chunk);
                    unread -= has;
                }
                has -= has.min(rate / 100);
            }
            feed.read_up_to(now, unread as usize);
        }
        feed.window
    }

    #[test]
    fn the_window_of_a_slow_worker_is_what_it_reads_in_some_milliseconds() {
        // 0.2 ms for a line of 200 bytes, read in the pieces that Node and Python read.
        for chunk in [200, 8 * 1024, 64 * 1024] {
            let window = window_after(1000, chunk, 2000);
            assert!((1_000..10_000).contains(&window), "{window} bytes, read in pieces of {chunk}");
        }
    }

    #[test]
    fn a_worker_that_waits_long_for_its_cpu_is_not_fed_a_line_at_a_time() {
        let mut feed = SendWindow::new();
        let (mut unread, mut read) = (0, 0);
        for at in 1..4000 {
            let now = Moment(at * MS);
            while feed.backlog() == 0 || (feed.room(false) > 0 && unread < 200_000) {
                feed.push(now, 200, true);
                feed.leave(200);
                unread += 200;
            }
            // Each 12 ms it reads everything.
            if at % 12 == 0 {
                read += std::mem::take(&mut unread);
            }
            feed.read_up_to(now, unread);
        }
        assert!(read > 10_000_000, "{read} bytes in 4 s");
    }

    #[test]
    fn a_worker_that_is_slow_per_line_has_at_most_two_queued() {
        let mut feed = SendWindow::new();
        let (mut unread, mut most) = (0_usize, 0);
        for at in 1..4000 {
            let now = Moment(at * MS);
            while feed.backlog() == 0 || feed.room(false) > 0 {
                feed.push(now, 200, true);
                feed.leave(200);
                unread += 200;
            }
            most = if at > 2000 { most.max(unread / 200) } else { 0 };
            if at % 10 == 0 {
                unread = unread.saturating_sub(200);
            }
            feed.read_up_to(now, unread);
        }
        assert!(most <= 3, "{most} lines of 10 ms wait");
    }

    #[test]
    fn the_window_of_a_fast_worker_is_no_limit() {
        assert!(window_after(1 << 20, 64 * 1024, 100) > 256 * 1024);
    }

    #[test]
    fn the_first_line_of_a_client_is_taken_whatever_waits() {
        let mut slots = Table::<(), 'c'>::new(2);
        let (flooding, other) = (slots.insert(()).unwrap(), slots.insert(()).unwrap());
        slots.remove(flooding);
        let successor = slots.insert(()).unwrap();
        let mut feed = SendWindow::new();
        feed.mark_line_end(flooding, 1 << 20);
        feed.push(Moment(0), 1 << 20, true);
        assert!(!feed.has_room_for(flooding, false, false));
        assert!(feed.has_room_for(other, true, false) && feed.has_room_for(successor, true, false));
        feed.leave(1 << 20);
        feed.read_up_to(Moment(MS), 1 << 10);
        assert_eq!(feed.backlog(), 1 << 10);
        assert!(!feed.has_room_for(flooding, true, false) && feed.has_room_for(flooding, false, false));
        feed.read_up_to(Moment(MS), 0);
        assert!(feed.has_room_for(flooding, true, false));
    }

    #[test]
    fn a_worker_that_reads_nothing_is_not_waited_for_in_turns() {
        let mut feed = SendWindow::new();
        feed.push(Moment(0), 1 << 20, true);
        feed.update_stuck(Moment(999 * MS), Duration::from_secs(1));
        assert_eq!(feed.room(false), 0);
        feed.update_stuck(Moment(1000 * MS), Duration::from_secs(1));
        assert!(feed.room(false) > 1 << 30);
    }
}
