//! A worker's life: the state × event table with every cell filled (spec 7.1, appendix B).
//!
//! Death is the process being reaped, not its stdout ending: a grandchild can hold the pipe open for hours, and a
//! process can close its pipes and live.
use core::time::Duration;

use ndjson_scan::Partial;

use super::endpoint::Endpoint;
use super::flow::stall::StallBudget;
use super::hung::Answering;
use super::peer::{ClientKey, Moment};
use super::port::Exit;
use super::report::{Reason, WorkerName};
use super::router::addressee::Audience;
use super::router::elicitations::Elicitations;
use super::send_window::SendWindow;
use super::session::early::Early;

/// How long a worker whose pipe broke may take to exit by itself, and how long the stdout of one that has exited is
/// still read.
pub const GRACE: Duration = Duration::from_secs(1);

/// The states of spec appendix B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Being spawned. Messages for it are queued.
    Starting,
    /// Running and accepting messages.
    Running,
    /// Told to stop; its answers are still read.
    Stopping,
    /// It did not stop in time.
    Killed,
    /// Exited and reaped; what it wrote before is still read.
    Stopped,
}

/// What can happen to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The process runs.
    Spawned,
    /// The process could not be started.
    SpawnFailed,
    /// Its stdout ended.
    StdoutEnded,
    /// Its stdin is broken.
    StdinBroken,
    /// We want it to end.
    Stop,
    /// It was reaped.
    Exited,
    /// The timer that an action set has run out.
    Timer,
}

/// What has to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    None,
    /// Give it [`GRACE`] to exit by itself, or to answer.
    Await,
    /// SIGTERM, close stdin, and set the timer to drain_timeout.
    Terminate,
    /// SIGKILL.
    Kill,
    /// Read what is left in its stdout, for [`GRACE`] at most.
    ReadRest,
    /// It is gone: end its requests and sessions, and forget it.
    Finish,
}

/// The table.
pub fn step(state: State, event: Event) -> (State, Action) {
    use {Action as A, Event as E, State as S};
    match (state, event) {
        (S::Starting, E::Spawned) => (S::Running, A::None),
        (S::Starting, E::SpawnFailed) => (S::Stopped, A::Finish),
        (S::Starting, E::Stop) => (S::Stopping, A::Terminate),
        (S::Starting, E::Exited) => (S::Stopped, A::ReadRest),
        (S::Starting, E::StdoutEnded | E::StdinBroken | E::Timer) => (S::Starting, A::None),

        (S::Running, E::Stop | E::Timer) => (S::Stopping, A::Terminate),
        (S::Running, E::StdoutEnded | E::StdinBroken) => (S::Running, A::Await),
        (S::Running, E::Exited) => (S::Stopped, A::ReadRest),
        (S::Running, E::Spawned | E::SpawnFailed) => (S::Running, A::None),

        (S::Stopping, E::Timer) => (S::Killed, A::Kill),
        (S::Stopping | S::Killed, E::Exited) => (S::Stopped, A::ReadRest),
        (S::Stopping | S::Killed, E::SpawnFailed) => (S::Stopped, A::Finish),
        // It was told to stop before it had a process to signal.
        (S::Stopping, E::Spawned) => (S::Stopping, A::Terminate),
        (S::Stopping, E::StdoutEnded | E::StdinBroken | E::Stop) => (S::Stopping, A::None),
        (S::Killed, E::Spawned) => (S::Killed, A::Kill),
        (S::Killed, E::StdoutEnded | E::StdinBroken | E::Stop | E::Timer) => (S::Killed, A::None),

        (S::Stopped, E::StdoutEnded | E::Timer) => (S::Stopped, A::Finish),
        (S::Stopped, E::Spawned | E::SpawnFailed | E::StdinBroken | E::Stop | E::Exited) => (S::Stopped, A::None),
    }
}

/// One incarnation of a worker.
pub(super) struct Worker {
    /// Index of its pool.
    pub pool: usize,
    /// Its seat in the pool; none when a dedicated worker left its seat for a client.
    pub seat: Option<usize>,
    /// Its place in the pool, which its name ends with: no two that live have the same.
    pub place: usize,
    /// Its own number, which no other ever has (spec 3.3.6).
    pub number: u32,
    /// Its process, once it has one.
    pub pid: u32,
    /// Where it stands.
    pub state: State,
    /// The client it belongs to alone, in a dedicated pool.
    pub owner: Option<ClientKey>,
    /// When it was started.
    pub started: Moment,
    /// When its client has taken it.
    pub claimed: Moment,
    /// When the timer of its state runs out.
    pub timer: Option<Moment>,
    /// Its start was asked for and not answered.
    pub is_begun: bool,
    /// It was told how long its client waits for its first answer.
    pub told_of_wait: bool,
    /// Whether its process is there to be signalled.
    pub has_process: bool,
    /// Whether its stdin can still be written to.
    pub stdin_open: bool,
    /// Whether its stdout may still give lines.
    pub stdout_open: bool,
    /// How it ended.
    pub exit: Option<Exit>,
    /// It ended because it was told to.
    pub was_told: bool,
    /// Why it was replaced while others needed it: what it did, or that the operator wanted it.
    pub cause: Option<Reason>,
    /// It could not be started for want of descriptors, processes or memory.
    pub was_short: bool,
    /// Whether we asked it to end and do not want it back in its seat.
    pub no_restart: bool,
    /// Requests of `session/new` and the like that it has not answered.
    pub creating: u32,
    /// Such a request was given up: it may make a session yet, and nobody can tell which answer says so.
    pub may_create: bool,
    /// It was reported that it answers what nobody asked.
    pub answers_twice: bool,
    /// It was reported that it makes a string of the number in an id, or the other way round.
    pub told_of_type: bool,
    /// Whose lines it has been given.
    pub audience: Audience,
    /// What it has said in sessions that it has not given out yet.
    pub(super) early: Early,
    /// Whom it has sent with elicitations to other places.
    pub(super) elicitations: Elicitations,
    /// How it answers what it is asked.
    pub answering: Answering,
    /// How much longer it may be held up by slow readers.
    pub stall: StallBudget,
    /// How long a request to it may wait for its answer.
    pub request_timeout: Option<Duration>,
    /// What is on its way to it.
    pub window: SendWindow,
    /// Clients take turns before it; it is looked after then.
    pub turns_due: Option<Moment>,
    /// Lines, requests and sessions.
    pub end: Endpoint,
}

impl Worker {
    /// A worker that is being started.
    pub(super) fn new(name: WorkerName, seat: Option<usize>, now: Moment) -> Self {
        let WorkerName { pool, place, incarnation: number } = name;
        Self {
            pool,
            seat,
            place,
            number,
            pid: 0,
            state: State::Starting,
            owner: None,
            started: now,
            claimed: now,
            timer: None,
            is_begun: true,
            told_of_wait: false,
            has_process: false,
            stdin_open: true,
            stdout_open: true,
            exit: None,
            was_told: false,
            cause: None,
            was_short: false,
            no_restart: false,
            creating: 0,
            may_create: false,
            answers_twice: false,
            told_of_type: false,
            audience: Audience::default(),
            early: Early::default(),
            elicitations: Elicitations::default(),
            answering: Answering::default(),
            stall: StallBudget::default(),
            request_timeout: None,
            window: SendWindow::default(),
            turns_due: None,
            end: Endpoint { partial: Partial::of_any_depth(), ..Endpoint::default() },
        }
    }

    /// What people call it.
    pub(super) fn name(&self) -> WorkerName {
        WorkerName { pool: self.pool, place: self.place, incarnation: self.number }
    }

    /// Whether it may be giving out the name of a session just now.
    pub(super) fn may_give_out_a_name(&self) -> bool {
        self.creating > 0 || self.may_create
    }

    /// It has got a request to answer. If it has no other one, it is watched, and looked at when the moment comes that is
    /// given.
    #[inline]
    pub(super) fn begin_answering(&mut self, now: Moment) -> Option<Moment> {
        if self.end.unanswered.count == 1 { self.answering.watch(now) } else { None }
    }

    /// It is replaced for this reason, unless it was to end before.
    pub(super) fn replaced_for(&mut self, reason: Reason) {
        if !matches!(self.state, State::Stopping | State::Killed) {
            self.cause.get_or_insert(reason);
        }
    }

    /// How its end counts that has just come: as one that nobody wanted, for this reason, or as one that was asked for.
    pub(super) fn unwanted_end(&self) -> Option<Reason> {
        match self.cause {
            _ if !self.was_told => Some(Reason::WorkerExited),
            Some(Reason::WorkerReplaced) => None,
            cause => cause,
        }
    }

    /// Whether messages may be given to it.
    pub(super) fn takes_messages(&self) -> bool {
        matches!(self.state, State::Starting | State::Running) && self.stdin_open && self.stdout_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 5] = [State::Starting, State::Running, State::Stopping, State::Killed, State::Stopped];
    const EVENTS: [Event; 7] = [
        Event::Spawned,
        Event::SpawnFailed,
        Event::StdoutEnded,
        Event::StdinBroken,
        Event::Stop,
        Event::Exited,
        Event::Timer,
    ];

    #[test]
    fn no_event_leads_back_to_an_earlier_state() {
        for state in STATES {
            for event in EVENTS {
                let (next, _) = step(state, event);
                assert!(next as u8 >= state as u8, "{state:?} {event:?} {next:?}");
            }
        }
    }

    #[test]
    fn a_worker_is_finished_only_after_it_has_been_reaped() {
        for state in STATES {
            for event in EVENTS {
                let (next, action) = step(state, event);
                if action == Action::Finish {
                    assert_eq!(next, State::Stopped, "{state:?} {event:?}");
                }
            }
        }
    }
}
