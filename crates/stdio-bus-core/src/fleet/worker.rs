//! A worker's life: the state × event table with every cell filled (spec 7.1, appendix B).
//!
//! Death is the process being reaped, not its stdout ending: a grandchild can hold the pipe open for hours, and a
//! process can close its pipes and live.
use core::time::Duration;

use super::answering::Answering;
use super::tenure::Tenure;
use crate::endpoint::Endpoint;
use crate::fleet::eras::discovery::Question;
use crate::fleet::eras::greeting::Greeting;
use crate::flow::stall::StallBudget;
use crate::flow::waste::Useless;
use crate::flow::window::SendWindow;
use crate::index::FleetId;
use crate::peer::{ClientKey, Moment};
use crate::report::{Reason, WorkerName};
use crate::router::audience::Audience;
use crate::router::elicitations::Elicitations;
use crate::session::activity::told_idle;
use crate::session::children::announced;
use crate::session::early::Early;
use crate::stray::Strays;

/// How long a worker with a broken pipe may take to exit by itself, and how long the stdout of an exited one is still
/// read.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// The states of spec appendix B.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Being spawned. Messages for it are queued.
    #[default]
    Starting,
    /// Running and accepting messages.
    Running,
    /// Told to stop; its answers are still read.
    Stopping,
    /// It did not stop in time.
    Killed,
    /// Exited and reaped; its remaining output is still read.
    Stopped,
}

/// An event of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The process runs.
    Spawned,
    /// The process could not be started.
    SpawnFailed,
    /// Its stdout ended.
    StdoutEnded,
    /// Its stdin is broken.
    StdinBroken,
    /// It is told to stop.
    Stop,
    /// It was reaped.
    Exited,
    /// The timer that an action set has run out.
    Timer,
}

/// The action to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing.
    None,
    /// Give it [`GRACE`] to exit by itself, or to answer.
    Await,
    /// SIGTERM, close stdin, and set the timer to drain_timeout.
    Terminate,
    /// SIGKILL.
    Kill,
    /// Read the rest of its stdout, for [`GRACE`] at most.
    ReadRest,
    /// It is gone: end its requests and sessions, and forget it.
    Finish,
}

/// The state table.
fn step(state: State, event: Event) -> (State, Action) {
    use {Action as A, Event as E, State as S};
    match (state, event) {
        (S::Stopped, E::StdoutEnded | E::Timer) => (S::Stopped, A::Finish),
        (S::Stopped, E::Spawned | E::SpawnFailed | E::StdinBroken | E::Stop | E::Exited) => (S::Stopped, A::None),
        (S::Starting | S::Running | S::Stopping | S::Killed, E::Exited) => (S::Stopped, A::ReadRest),
        (S::Starting | S::Stopping | S::Killed, E::SpawnFailed) => (S::Stopped, A::Finish),

        (S::Starting, E::Spawned) => (S::Running, A::None),
        // A worker that was told to stop before had no process to signal.
        (S::Stopping, E::Spawned) | (S::Starting | S::Running, E::Stop) | (S::Running, E::Timer) => {
            (S::Stopping, A::Terminate)
        }
        (S::Killed, E::Spawned) | (S::Stopping, E::Timer) => (S::Killed, A::Kill),
        (S::Running, E::StdoutEnded | E::StdinBroken) => (S::Running, A::Await),
        (_, E::Spawned | E::SpawnFailed | E::StdoutEnded | E::StdinBroken | E::Stop | E::Timer) => (state, A::None),
    }
}

/// The process of a worker: its state, and what is known of its end.
#[derive(Debug, Default)]
pub(crate) struct Process {
    state: State,
    /// Writes to its stdin fail.
    stdin_closed: bool,
    /// Its stdout has ended.
    stdout_closed: bool,
    /// It has exited without being told to.
    ended_by_itself: bool,
    /// Why it is replaced while others need it: its own fault, or the operator's wish.
    cause: Option<Reason>,
}

/// Plain facts about a worker.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// The id of its process; 0 until its start is answered.
    pub pid: u32,
    /// When it was started.
    pub started: Moment,
    /// When the timer of its state expires.
    pub timer: Option<Moment>,
    /// It could not be started for want of descriptors, processes or memory: no fault of the command.
    pub was_short: bool,
    /// It is not wanted any more, and leaves its slot empty.
    pub is_unwanted: bool,
    /// A signal that the bus did not send ended it.
    pub was_killed: bool,
    /// Since when it is read without a pause.
    pub read_since: Moment,
    /// When its client took it, or gave it back.
    pub claimed: Moment,
    /// Its client keeps its connection and gets another one.
    pub is_left: bool,
    /// Whether it was sent `server/discover`.
    pub question: Question,
    /// It may report which of its sessions are active (`session/activity.rs`).
    pub tells_states: bool,
    /// It may announce child sessions (`session/children.rs`).
    pub has_subagents: bool,
    /// It is lent to a client, and got a request of another one, which has a task there.
    pub has_guests: bool,
    /// The wait of its client for the first answer was reported.
    pub told_of_wait: bool,
    /// Its unsolicited answers were reported.
    pub told_of_answers: bool,
    /// It was reported that it spells ids in another way than it was sent.
    pub told_of_spelling: bool,
    /// How many unmatched answers in a row its requests were searched for in vain.
    pub searches: u8,
}

impl Facts {
    /// Whether its updates may mean something to the bus.
    #[inline(always)]
    pub(crate) fn is_watched(&self) -> bool {
        self.tells_states | self.has_subagents
    }

    /// Whether this update of it does.
    #[inline(never)]
    pub(crate) fn is_noted(&self, line: &[u8]) -> bool {
        self.tells_states && told_idle(line).is_some() || self.has_subagents && announced(line).is_some()
    }
}

impl Process {
    /// Its state.
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Whether it has exited.
    pub(crate) fn has_exited(&self) -> bool {
        self.state == State::Stopped
    }

    /// Whether its stdout has ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.stdout_closed
    }

    /// Whether it has exited without being told to.
    pub(crate) fn ended_by_itself(&self) -> bool {
        self.ended_by_itself
    }

    /// Why it is replaced while others need it.
    pub(crate) fn cause(&self) -> Option<Reason> {
        self.cause
    }

    /// It is replaced for a protocol violation: it is not read any more.
    pub(super) fn break_off(&mut self, reason: Reason) {
        self.stdout_closed = true;
        self.replace_for(reason);
    }

    /// It is replaced for this reason, unless it was about to end anyway.
    pub(super) fn replace_for(&mut self, reason: Reason) {
        if !matches!(self.state, State::Stopping | State::Killed) {
            self.cause.get_or_insert(reason);
        }
    }

    /// It was reaped. Returns the reason for which its end counts as unwanted, or none if it was requested.
    pub(super) fn exited(&mut self) -> Option<Reason> {
        self.stdin_closed = true;
        self.ended_by_itself = !matches!(self.state, State::Stopping | State::Killed);
        match self.cause {
            _ if self.ended_by_itself => Some(Reason::WorkerExited),
            Some(Reason::WorkerReplaced) => None,
            cause => cause,
        }
    }

    /// Applies the state table.
    pub(super) fn step(&mut self, event: Event) -> Action {
        self.stdin_closed |= matches!(event, Event::StdinBroken | Event::SpawnFailed);
        self.stdout_closed |= matches!(event, Event::StdoutEnded | Event::SpawnFailed);
        let (state, action) = step(self.state, event);
        self.state = state;
        action
    }
}

/// A worker's pending requests for new sessions (`session/new` and the like).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Creating {
    /// Those that it has not answered.
    pub asked: u32,
    /// One has timed out: it may still create a session, and it is unknown which answer will say so.
    pub may_follow: bool,
}

/// One incarnation of a worker.
#[derive(Default)]
pub(crate) struct Worker {
    /// The fleet whose clients it serves.
    pub fleet: FleetId,
    /// Its name for people: no two live workers share a place in a pool, and its number is never reused (spec 3.3.6).
    pub name: WorkerName,
    /// The client it belongs to alone, in a dedicated pool.
    pub owner: Option<ClientKey>,
    /// Its process.
    pub process: Process,
    /// What else is known of it.
    pub facts: Facts,
    /// Its tenure.
    pub tenure: Tenure,
    /// Its record of answers.
    pub answering: Answering,
    /// Its pending requests for new sessions.
    pub creating: Creating,
    /// The clients whose lines it has received.
    pub audience: Audience,
    /// The `initialize` requests of the clients that share it.
    pub greeting: Greeting,
    /// Its early lines.
    pub early: Early,
    /// The clients that it has sent to other places with elicitations.
    pub elicitations: Elicitations,
    /// The remaining time for which slow readers may hold it up.
    pub stall: StallBudget,
    /// What it has written for nobody.
    pub useless: Useless,
    /// What it has written that is no message.
    pub strays: Strays,
    /// The bytes on their way to it.
    pub window: SendWindow,
    /// Lines, requests and sessions.
    pub end: Endpoint,
}

impl Worker {
    /// Whether it may be giving out a session name just now.
    pub(crate) fn may_give_out_a_name(&self) -> bool {
        self.creating.asked > 0 || self.creating.may_follow
    }

    /// Whether messages may be given to it.
    pub(crate) fn takes_messages(&self) -> bool {
        let process = &self.process;
        matches!(process.state, State::Starting | State::Running)
            && !process.stdin_closed
            && !process.stdout_closed
            && !self.is_asked()
    }

    /// Whether it is asked for its era, or will be: no client's line goes to it before it has answered.
    pub(crate) fn is_asked(&self) -> bool {
        self.facts.question == Question::Open
    }

    /// Whether `server/discover` may have pinned it to 2026-07-28.
    pub(crate) fn may_be_pinned(&self) -> bool {
        matches!(self.facts.question, Question::Late | Question::Answered)
    }

    /// Whether its start was confirmed.
    pub(crate) fn has_run(&self) -> bool {
        self.facts.pid != 0
    }

    /// Whether it runs and may be signalled.
    pub(super) fn is_there(&self) -> bool {
        self.has_run() && self.process.state != State::Stopped
    }

    /// Whether it has ended by itself while it was asked for its era.
    pub(super) fn has_ended_asked(&self) -> bool {
        self.is_asked() && self.has_run() && self.process.ended_by_itself && !self.facts.was_killed
    }

    /// Whether its end is no failure.
    pub(super) fn is_excused(&self) -> bool {
        self.facts.is_unwanted || self.has_ended_asked()
    }

    /// Whether it runs, takes messages, and is not on probation.
    pub(crate) fn serves(&self) -> bool {
        self.runs() && !self.answering.is_on_probation()
    }

    /// Whether it runs and takes messages.
    pub(crate) fn runs(&self) -> bool {
        self.process.state == State::Running && self.takes_messages()
    }

    /// The client that waits for the first answer of this worker, which is its own and may still be starting.
    pub(crate) fn starts_for(&self) -> Option<ClientKey> {
        let waits = !self.answering.has_answered() && self.end.to_answer.count() > 0 && self.takes_messages();
        self.owner.filter(|_| waits)
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
