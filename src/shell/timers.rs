//! The shell's single queue of deadlines. Each owner is in it at most once, with its earliest deadline. A turn touches
//! only what is due.
//!
//! The core has its own queue, and the service manager is notified by a clock that nothing here can delay
//! (`notify.rs`).

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::bus::port::{ClientKey, Moment};

/// The owners of deadlines. Those due at the same moment are handled in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// A connection: its ping, its silence, its full socket, omitted lines of its stderr, what it awaits in HTTP.
    Connection(usize),
    /// A listening socket whose accept failed.
    Accept(usize),
    /// The process's stdout and stderr, for which the kernel had no thread.
    Output,
    /// Request lines that wait for more.
    Log,
    /// Memory pressure.
    Memory,
    /// A client whose messages are requests of HTTP.
    Session(ClientKey),
    /// The next sample for operators.
    History,
    /// The check of workers' memory.
    Memories,
    /// A reload that has taken too long.
    Reload,
    /// What outlives the daemon may be written again.
    State,
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    queue: BTreeSet<(Moment, Timer)>,
    /// The deadline of each.
    at: HashMap<Timer, Moment>,
    /// The first deadline of the queue, which each turn needs.
    pub next: Option<Moment>,
}

/// The earlier of two optional moments. Each turn needs several of these, and an iterator over both would cost ten
/// times as much.
#[inline]
pub(super) fn earlier<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl Timers {
    /// Sets a timer to exactly this moment, or stops it.
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

    /// Sets a timer to this moment at the latest. It is for deadlines that every event postpones: when the timer
    /// expires, its owner sets it again, and nothing is moved before.
    pub(super) fn set_at_latest(&mut self, timer: Timer, at: Moment) {
        if self.at.get(&timer).is_none_or(|before| *before > at) {
            self.set(timer, Some(at));
        }
    }

    /// Whether it is set.
    pub(super) fn is_set(&self, timer: Timer) -> bool {
        self.at.contains_key(&timer)
    }

    /// Takes an expired timer.
    pub(super) fn take_due(&mut self, now: Moment) -> Option<Timer> {
        self.next.filter(|at| *at <= now)?;
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
    fn a_timer_expires_once_at_the_moment_set_last() {
        let mut timers = Timers::default();
        let (one, other) = (Timer::Connection(1), Timer::Accept(0));
        timers.set(one, Some(Moment(20)));
        timers.set(one, Some(Moment(10)));
        timers.set(other, Some(Moment(5)));
        timers.set(other, Some(Moment(15)));
        assert_eq!((timers.next, timers.take_due(Moment(9))), (Some(Moment(10)), None));
        assert_eq!(timers.take_due(Moment(99)), Some(one));
        timers.set_at_latest(one, Moment(30));
        timers.set_at_latest(one, Moment(40));
        assert_eq!((timers.take_due(Moment(29)), timers.take_due(Moment(30))), (Some(other), Some(one)));
        timers.set(other, Some(Moment(15)));
        timers.set_at_latest(other, Moment(14));
        assert_eq!(timers.next, Some(Moment(14)));
        timers.set(other, None);
        assert_eq!((timers.take_due(Moment(99)), timers.is_set(one), timers.is_set(other)), (None, false, false));
    }
}
