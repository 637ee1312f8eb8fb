//! The process of a worker: the signals it got, and when it ends.

use crate::Draws;
use crate::bus::port::{Exit, Moment, Signal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starting,
    Running,
    Exited,
}

/// A worker's process.
pub(super) struct Process {
    state: State,
    stdin_closed: bool,
    terminated: bool,
    killed: bool,
    ignores_term: bool,
    /// Its stdout is still open in another process after its exit.
    holds_pipe: bool,
    exited_at: Moment,
}

impl Process {
    /// A random process that is being started.
    pub(super) fn new(draws: &mut Draws<'_>) -> Self {
        Self {
            state: State::Starting,
            stdin_closed: false,
            terminated: false,
            killed: false,
            ignores_term: draws.of("ignores_term").one_in(5),
            holds_pipe: draws.of("holds_pipe").one_in(5),
            exited_at: Moment(0),
        }
    }

    pub(super) fn is_starting(&self) -> bool {
        self.state == State::Starting
    }

    pub(super) fn runs(&self) -> bool {
        self.state == State::Running
    }

    /// When it has exited, if it has; one that could not be started has exited at once.
    pub(super) fn exited_at(&self) -> Option<Moment> {
        Some(self.exited_at).filter(|_| self.state == State::Exited)
    }

    /// It was started, or cannot be.
    pub(super) fn spawned(&mut self, runs: bool) {
        self.state = if runs { State::Running } else { State::Exited };
    }

    pub(super) fn closes_stdin(&mut self) {
        self.stdin_closed = true;
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        assert!(self.runs(), "a signal without a process");
        match signal {
            Signal::Terminate => self.terminated = true,
            Signal::Kill => self.killed = true,
        }
    }

    /// It runs, and was not killed.
    pub(super) fn is_spared(&self) -> bool {
        self.runs() && !self.killed
    }

    /// How it ends because of the signals it got, if it does. `is_dry` means that its stdin is drained.
    pub(super) fn ends(&self, is_dry: bool) -> Option<Exit> {
        match self.state {
            State::Running if self.killed => Some(Exit::Signal(9)),
            State::Running if self.ignores_term => None,
            State::Running if self.terminated => Some(Exit::Signal(15)),
            State::Running if self.stdin_closed && is_dry => Some(Exit::Code(0)),
            _ => None,
        }
    }

    /// It exits. Returns whether its stdout ends with it.
    pub(super) fn exits(&mut self, now: Moment) -> bool {
        (self.state, self.exited_at) = (State::Exited, now);
        !self.holds_pipe
    }
}
