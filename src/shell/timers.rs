//! The one queue of the shell's deadlines. Each owner is in it once, with the earliest moment at which it has to be looked
//! at. A turn touches what is due.
//!
//! The core has a queue of its own, and the service manager is told by a clock that nothing here may hold up (`notify.rs`).

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::bus::port::Moment;

/// What has to be looked at. What is due at one moment is looked at in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// A connection that has something to say before it is a client.
    Handshake(usize),
    /// A connection: its ping, its silence, its full socket, what was left out of its stderr.
    Connection(usize),
    /// A listening socket from which nothing could be accepted.
    Accept(usize),
    /// Our own stdout and stderr, for which the kernel had no thread.
    Output,
    /// Lines of requests that wait for more of them.
    Log,
    /// How much memory is lent.
    Memory,
    /// A connection of the door for MCP.
    Http(usize),
    /// A session there.
    Session(usize),
    /// A connection of an operator.
    Admin(usize),
    /// The next sample for operators.
    History,
    /// Workers whose memory is looked at.
    Memories,
    /// A reload that has taken long enough.
    Reload,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Timers {
    queue: BTreeSet<(Moment, Timer)>,
    /// When each of them runs out.
    at: HashMap<Timer, Moment>,
    /// When the first of the queue does: each turn asks for it.
    next: Option<Moment>,
}

/// The earlier of two moments, as far as there are any. Each turn asks for some, and an iterator over both would cost it ten
/// times as much.
#[inline]
pub(super) fn earlier<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl Timers {
    /// Has a timer run out then, and at no other time.
    pub(super) fn set(&mut self, timer: Timer, at: Option<Moment>) {
        let before = match at {
            Some(at) => self.at.insert(timer, at),
            None => self.at.remove(&timer),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.queue.remove(&(before, timer));
        }
        if let Some(at) = at {
            self.queue.insert((at, timer));
        }
        self.find_next();
    }

    fn find_next(&mut self) {
        self.next = self.queue.first().map(|(at, _)| *at);
    }

    /// Has a timer run out then at the latest. It is for what is put off with each thing that happens: when the timer runs
    /// out, its owner says until when, and nothing is moved before.
    pub(super) fn set_at_latest(&mut self, timer: Timer, at: Moment) {
        if self.at.get(&timer).is_none_or(|before| *before > at) {
            self.set(timer, Some(at));
        }
    }

    /// Whether it runs.
    pub(super) fn is_set(&self, timer: Timer) -> bool {
        self.at.contains_key(&timer)
    }

    /// When the next one runs out.
    pub(super) fn next(&self) -> Option<Moment> {
        self.next
    }

    /// Takes out one that has run out.
    pub(super) fn take_due(&mut self, now: Moment) -> Option<Timer> {
        self.next().filter(|at| *at <= now)?;
        let (_, timer) = self.queue.pop_first()?;
        self.at.remove(&timer);
        self.find_next();
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_runs_out_once_at_the_moment_that_was_set_last() {
        let mut timers = Timers::default();
        let (one, other) = (Timer::Connection(1), Timer::Accept(0));
        timers.set(one, Some(Moment(20)));
        timers.set(one, Some(Moment(10)));
        timers.set(other, Some(Moment(5)));
        timers.set(other, Some(Moment(15)));
        assert_eq!((timers.next(), timers.take_due(Moment(9))), (Some(Moment(10)), None));
        assert_eq!(timers.take_due(Moment(99)), Some(one));
        timers.set_at_latest(one, Moment(30));
        timers.set_at_latest(one, Moment(40));
        assert_eq!((timers.take_due(Moment(29)), timers.take_due(Moment(30))), (Some(other), Some(one)));
        timers.set(other, Some(Moment(15)));
        timers.set_at_latest(other, Moment(14));
        assert_eq!(timers.next(), Some(Moment(14)));
        timers.set(other, None);
        assert_eq!((timers.take_due(Moment(99)), timers.is_set(one), timers.is_set(other)), (None, false, false));
    }
}
