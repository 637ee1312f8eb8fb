//! The one queue of the shell's deadlines. Each owner is in it once, with the earliest moment at which it has to be looked
//! at, and keeps that moment itself, so that an entry can be moved or taken out. A turn touches what is due.
//!
//! The core has a queue of its own, and the service manager is told by a clock that nothing here may hold up (`notify.rs`).

use std::collections::BTreeSet;

use crate::bus::port::Moment;

/// What has to be looked at. What is due at one moment is looked at in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A connection that has something to say before it is a client.
    Handshake(usize),
    /// A connection: its ping, its silence, its full socket, what was left out of its stderr.
    Connection(usize),
    /// A listening socket from which nothing could be accepted.
    Accept(usize),
    /// Our own stdout and stderr, for which the kernel had no thread.
    Output,
    /// How much memory is lent.
    Memory,
    /// A connection of an operator.
    Admin(usize),
    /// The next sample for operators.
    History,
}

/// When a [`Timer`] runs out, kept by its owner; never, if it is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Armed(Option<Moment>);

impl Armed {
    /// The timer has run out.
    pub(super) fn reset(&mut self) {
        self.0 = None;
    }

    /// Whether it runs.
    pub(super) fn is_set(self) -> bool {
        self.0.is_some()
    }
}

/// See the top of the file.
#[derive(Debug, Default)]
pub(super) struct Timers {
    queue: BTreeSet<(Moment, Timer)>,
}

impl Timers {
    /// Has a timer run out then, and at no other time.
    pub(super) fn set(&mut self, timer: Timer, armed: &mut Armed, at: Option<Moment>) {
        if armed.0 == at {
            return;
        }
        if let Some(before) = std::mem::replace(&mut armed.0, at) {
            self.queue.remove(&(before, timer));
        }
        if let Some(at) = at {
            self.queue.insert((at, timer));
        }
    }

    /// When the next one runs out.
    pub(super) fn next(&self) -> Option<Moment> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Takes out one that has run out. Its owner has to [`Armed::reset`] what it keeps.
    pub(super) fn take_due(&mut self, now: Moment) -> Option<Timer> {
        self.next().filter(|at| *at <= now)?;
        self.queue.pop_first().map(|(_, timer)| timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_runs_out_once_at_the_moment_that_was_set_last() {
        let mut timers = Timers::default();
        let (mut one, mut other) = (Armed::default(), Armed::default());
        timers.set(Timer::Connection(1), &mut one, Some(Moment(20)));
        timers.set(Timer::Connection(1), &mut one, Some(Moment(10)));
        timers.set(Timer::Accept(0), &mut other, Some(Moment(5)));
        timers.set(Timer::Accept(0), &mut other, Some(Moment(15)));
        assert_eq!((timers.next(), timers.take_due(Moment(9))), (Some(Moment(10)), None));
        assert_eq!(timers.take_due(Moment(99)), Some(Timer::Connection(1)));
        one.reset();
        timers.set(Timer::Accept(0), &mut other, None);
        assert_eq!((timers.take_due(Moment(99)), one.is_set(), other.is_set()), (None, false, false));
    }
}
