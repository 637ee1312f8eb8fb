//! A worker's life: the state × event table with every cell filled (spec 7.1, appendix B).
//!
//! Death is the process being reaped, not its stdout ending: a grandchild can hold the pipe open for hours, and a
//! process can close its pipes and live.
use core::time::Duration;

use super::answering::Answering;
use super::health::Health;
use super::lifetime::Lifetime;
use super::ownership::WorkerOwnership;
use crate::bad_output::BadLines;
use crate::fleet::eras::discovery::ProbeState;
use crate::fleet::eras::greeting::Greeting;
use crate::flow::stall::StallBudget;
use crate::flow::waste::Undeliverable;
use crate::flow::window::SendWindow;
use crate::index::FleetId;
use crate::peer::{ClientKey, Moment};
use crate::peers::Endpoint;
use crate::report::{Reason, WorkerName};
use crate::router::audience::Audience;
use crate::router::elicitations::Elicitations;
use crate::router::unmatched::Unmatched;
use crate::session::activity::reported_idle;
use crate::session::children::announced;
use crate::session::early_notifications::Early;

/// How long a worker with a broken pipe may take to exit by itself, and how long the stdout of an exited one is still
/// read.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// The states of spec appendix B.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerState {
    /// Being spawned. Messages for it are queued.
    #[default]
    Starting,
    /// Running and accepting messages.
    Running,
    /// Its stdin is closed: it may read what is left there, and is to end by itself.
    Ending,
    /// Asked to stop; its answers are still read.
    Stopping,
    /// It did not stop in time.
    Killed,
    /// Exited and reaped; its remaining output is still read.
    Stopped,
}

/// An event of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerEvent {
    /// The process runs.
    Spawned,
    /// The process could not be started.
    SpawnFailed,
    StdoutEnded,
    /// Writes to its stdin fail.
    StdinBroken,
    /// It is not needed any more, and has its time to end.
    Leave,
    /// It is asked to stop.
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
    /// Close stdin, and set the timer to drain_timeout, or to when it leaves at the latest.
    EndInput,
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
fn step(state: WorkerState, event: WorkerEvent) -> (WorkerState, Action) {
    use {Action as A, WorkerEvent as E, WorkerState as S};
    match (state, event) {
        (S::Stopped, E::StdoutEnded | E::Timer) => (S::Stopped, A::Finish),
        (S::Stopped, E::Spawned | E::SpawnFailed | E::StdinBroken | E::Leave | E::Stop | E::Exited) => {
            (S::Stopped, A::None)
        }
        (S::Starting | S::Running | S::Ending | S::Stopping | S::Killed, E::Exited) => (S::Stopped, A::ReadRest),
        (S::Starting | S::Ending | S::Stopping | S::Killed, E::SpawnFailed) => (S::Stopped, A::Finish),

        (S::Starting, E::Spawned) => (S::Running, A::None),
        // Its time begins when it has a process.
        (S::Ending, E::Spawned) | (S::Starting | S::Running, E::Leave) => (S::Ending, A::EndInput),
        // A worker that was asked to stop before had no process to signal.
        (S::Stopping, E::Spawned)
        | (S::Starting | S::Running | S::Ending, E::Stop)
        | (S::Running | S::Ending, E::Timer) => (S::Stopping, A::Terminate),
        (S::Killed, E::Spawned) | (S::Stopping, E::Timer) => (S::Killed, A::Kill),
        (S::Running, E::StdoutEnded | E::StdinBroken) => (S::Running, A::Await),
        (_, E::Spawned | E::SpawnFailed | E::StdoutEnded | E::StdinBroken | E::Leave | E::Stop | E::Timer) => {
            (state, A::None)
        }
    }
}

/// The process of a worker: its state, and what is known of its end.
#[derive(Debug, Default)]
pub(crate) struct Process {
    state: WorkerState,
    /// Writes to its stdin fail.
    stdin_closed: bool,
    /// Its stdout has ended.
    stdout_closed: bool,
    /// It has exited without being asked to.
    ended_by_itself: bool,
    /// Why it is replaced while others need it: its own fault, or the operator's wish.
    cause: Option<Reason>,
    /// It has written a line that is no message, or is too long, and is not read any more.
    is_malformed: bool,
    /// Its id; 0 until its start is answered.
    pid: u32,
    /// When it was started.
    started: Moment,
    /// When the timer of its state expires.
    timer: Option<Moment>,
    /// It could not be started for want of descriptors, processes or memory: no fault of the command.
    was_short: bool,
    /// It is not wanted any more, and leaves its slot empty.
    is_unwanted: bool,
    /// A signal that the bus did not send ended it.
    was_killed: bool,
}

/// What a worker's updates mean to the bus. Only `session/activity.rs` and `session/children.rs` change
/// it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Updates {
    /// It may report which of its sessions are active.
    reports_states: bool,
    /// It may announce child sessions.
    announce_children: bool,
}

impl Updates {
    /// It may report which of its sessions are active.
    pub(crate) fn reports_states(&self) -> bool {
        self.reports_states
    }

    /// It may announce child sessions.
    pub(crate) fn announce_children(&self) -> bool {
        self.announce_children
    }

    /// Its client has asked for reports of which sessions are active, or has not.
    pub(crate) fn ask_for_states(&mut self, is_asked: bool) {
        self.reports_states |= is_asked;
    }

    /// A client of its pool knows subagents.
    pub(crate) fn expect_children(&mut self) {
        self.announce_children = true;
    }

    /// Whether any of them may mean something to the bus.
    #[inline(always)]
    pub(crate) fn are_watched(&self) -> bool {
        self.reports_states | self.announce_children
    }

    /// Whether this one does.
    #[inline(never)]
    pub(crate) fn are_noted(&self, line: &[u8]) -> bool {
        self.reports_states && reported_idle(line).is_some() || self.announce_children && announced(line).is_some()
    }
}

impl Process {
    /// One that is being started.
    pub(super) fn new(started: Moment) -> Self {
        Self { started, ..Self::default() }
    }

    /// Its id, once its start was answered.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// When it was started.
    pub(crate) fn started(&self) -> Moment {
        self.started
    }

    /// When the timer of its state expires.
    pub(super) fn timer(&self) -> Option<Moment> {
        self.timer
    }

    /// Whether it could not be started for want of descriptors, processes or memory.
    pub(super) fn was_short(&self) -> bool {
        self.was_short
    }

    /// Whether it is not wanted any more, and leaves its slot empty.
    pub(super) fn is_unwanted(&self) -> bool {
        self.is_unwanted
    }

    /// Whether a signal that the bus did not send ended it.
    pub(super) fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// It runs.
    pub(super) fn run(&mut self, pid: u32, now: Moment) {
        (self.pid, self.started) = (pid, now);
    }

    /// It could not be started, perhaps for want of descriptors, processes or memory.
    pub(super) fn fail_to_start(&mut self, is_short: bool) {
        self.was_short = is_short;
    }

    /// It is not wanted any more.
    pub(super) fn dismiss(&mut self) {
        self.is_unwanted = true;
    }

    /// Sets the timer of its state.
    pub(super) fn set_timer(&mut self, at: Moment) {
        self.timer = Some(at);
    }

    /// Whether that has run out, which is said once.
    pub(super) fn take_timer(&mut self, now: Moment) -> bool {
        self.timer.take_if(|at| *at <= now).is_some()
    }

    pub(crate) fn state(&self) -> WorkerState {
        self.state
    }

    /// Whether it has exited.
    pub(crate) fn has_exited(&self) -> bool {
        self.state == WorkerState::Stopped
    }

    /// Whether its stdout has ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.stdout_closed
    }

    /// Whether it has exited without being asked to.
    pub(crate) fn ended_by_itself(&self) -> bool {
        self.ended_by_itself
    }

    /// Why it is replaced while others need it.
    pub(crate) fn cause(&self) -> Option<Reason> {
        self.cause
    }

    /// Whether it has written a line that is no message, or is too long, and is not read any more.
    pub(crate) fn is_malformed(&self) -> bool {
        self.is_malformed
    }

    /// It is replaced for a protocol violation: it is not read any more.
    pub(super) fn stop_reading(&mut self, reason: Reason) {
        self.stdout_closed = true;
        self.is_malformed |= matches!(reason, Reason::WorkerMalformed | Reason::WorkerLineTooLong);
        self.replace_for(reason);
    }

    /// It is replaced for this reason, unless it was about to end anyway.
    pub(super) fn replace_for(&mut self, reason: Reason) {
        if !self.is_asked_to_end() {
            self.cause.get_or_insert(reason);
        }
    }

    /// It was reaped; `is_kill` is what somebody else may have done. Returns the reason for which its end counts as unwanted,
    /// or none if it was requested.
    pub(super) fn exited(&mut self, is_kill: bool) -> Option<Reason> {
        self.stdin_closed = true;
        self.ended_by_itself = !self.is_asked_to_end();
        self.was_killed = is_kill && self.ended_by_itself;
        match self.cause {
            _ if self.ended_by_itself => Some(Reason::WorkerExited),
            Some(Reason::WorkerReplaced) => None,
            cause => cause,
        }
    }

    /// Whether it was asked to end, by the end of its stdin or a signal.
    fn is_asked_to_end(&self) -> bool {
        matches!(self.state, WorkerState::Ending | WorkerState::Stopping | WorkerState::Killed)
    }

    /// Applies the state table.
    pub(super) fn step(&mut self, event: WorkerEvent) -> Action {
        self.stdin_closed |= matches!(event, WorkerEvent::StdinBroken | WorkerEvent::SpawnFailed);
        self.stdout_closed |= matches!(event, WorkerEvent::StdoutEnded | WorkerEvent::SpawnFailed);
        let (state, action) = step(self.state, event);
        self.state = state;
        action
    }

    /// Whether it runs and may be signalled.
    pub(super) fn is_there(&self) -> bool {
        self.pid != 0 && self.state != WorkerState::Stopped
    }
}

/// A worker's pending requests for new sessions (`session/new` and the like).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Creating {
    /// Those that it has not answered.
    asked: u32,
    /// One has timed out: it may still create a session, and it is unknown which answer will say so.
    may_follow: bool,
}

impl Creating {
    /// How many of them it has not answered.
    pub(crate) fn asked(&self) -> u32 {
        self.asked
    }

    /// It gets one more.
    #[inline(always)]
    pub(crate) fn begin(&mut self) {
        self.asked += 1;
    }

    /// One has ended.
    pub(crate) fn end(&mut self) {
        self.asked -= 1;
    }

    /// One has timed out.
    pub(crate) fn time_out(&mut self) {
        self.may_follow = true;
    }

    /// Whether the worker may be giving out a session name just now.
    pub(crate) fn may_give_out_a_name(&self) -> bool {
        self.asked > 0 || self.may_follow
    }
}

/// One incarnation of a worker. Each part has one writer: the module of its type, whose methods all others call.
///
/// | part | written by | what for |
/// |---|---|---|
/// | `fleet`, `name` | `pool.rs` at its start; `eras/mod.rs` when a fleet is handed over | whose clients it serves |
/// | `process` | this file, asked by `pool.rs`, `life.rs` and `rollout.rs` | its state, and why it ends |
/// | `ownership` | `ownership.rs`, asked by `pool.rs`, `life.rs`, `answering.rs`, `eras/lending.rs` and `router/client.rs` | whose it is, and since when |
/// | `question` | `eras/discovery.rs` | whether it was asked for its era |
/// | `greeting` | `eras/opening.rs` | the `initialize` of clients |
/// | `lifetime` | `lifetime.rs`, asked by `answering.rs`, `rollout.rs`, `reload.rs` and `life.rs` | how long it stays |
/// | `answering` | `answering.rs`, asked by `trial.rs` | how it answers, within which limits, and whether it is on trial |
/// | `health` | `health.rs`, asked by `requests/ends.rs` | whether it hangs |
/// | `creating` | this file, asked by `correlation.rs` and `requests/ends.rs` | requests for new sessions |
/// | `updates` | this file, asked by `pool.rs`, `session/activity.rs` and `session/children.rs` | which of its updates are read |
/// | `early` | `session/early_notifications.rs` | lines of sessions that are not known yet |
/// | `audience`, `elicitations`, `unmatched` | their files in `router/` | whom its lines are for |
/// | `stall`, `undeliverable`, `window` | their files in `flow/` | when it waits, and when clients wait for it |
/// | `bad_lines` | `bad_output.rs` | what it writes that is no message |
/// | `end` | `peers/endpoint.rs` | lines, requests and sessions, as of any peer |
#[derive(Default)]
pub(crate) struct Worker {
    /// The fleet whose clients it serves.
    pub(in crate::fleet) fleet: FleetId,
    /// Its name for people: no two live workers share a place in a pool, and its number is never reused (spec 3.3.6).
    pub(in crate::fleet) name: WorkerName,
    /// Its process.
    pub(in crate::fleet) process: Process,
    /// The client it belongs to alone, in a dedicated pool.
    pub(in crate::fleet) ownership: WorkerOwnership,
    /// Whether it was sent `server/discover`.
    pub(in crate::fleet) question: ProbeState,
    /// What its updates mean.
    pub(in crate::fleet) updates: Updates,
    /// Its answers to no request that it has.
    pub(in crate::fleet) unmatched: Unmatched,
    /// How long it may go on, and whether it is being replaced.
    pub(in crate::fleet) lifetime: Lifetime,
    /// Its record of answers.
    pub(in crate::fleet) answering: Answering,
    /// Its silence.
    pub(in crate::fleet) health: Health,
    /// Its pending requests for new sessions.
    pub(in crate::fleet) creating: Creating,
    /// The clients whose lines it has received.
    pub(in crate::fleet) audience: Audience,
    /// The `initialize` requests of the clients that share it.
    pub(in crate::fleet) greeting: Greeting,
    /// Its early lines.
    pub(in crate::fleet) early: Early,
    /// The clients that it has sent to other places with elicitations.
    pub(in crate::fleet) elicitations: Elicitations,
    /// The remaining time for which slow readers may hold it up.
    pub(in crate::fleet) stall: StallBudget,
    /// What it has written for nobody.
    pub(in crate::fleet) undeliverable: Undeliverable,
    /// What it has written that is no message.
    pub(in crate::fleet) bad_lines: BadLines,
    /// The bytes on their way to it.
    pub(in crate::fleet) window: SendWindow,
    /// Lines, requests and sessions.
    pub(in crate::fleet) end: Endpoint,
}

impl Worker {
    #[inline(always)]
    pub(crate) fn fleet(&self) -> FleetId {
        self.fleet
    }

    #[inline(always)]
    pub(crate) fn name(&self) -> WorkerName {
        self.name
    }

    #[inline(always)]
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    #[inline(always)]
    pub(crate) fn ownership(&self) -> &WorkerOwnership {
        &self.ownership
    }

    #[inline(always)]
    pub(crate) fn ownership_mut(&mut self) -> &mut WorkerOwnership {
        &mut self.ownership
    }

    #[inline(always)]
    pub(crate) fn updates(&self) -> &Updates {
        &self.updates
    }

    #[inline(always)]
    pub(crate) fn updates_mut(&mut self) -> &mut Updates {
        &mut self.updates
    }

    #[inline(always)]
    pub(crate) fn unmatched_mut(&mut self) -> &mut Unmatched {
        &mut self.unmatched
    }

    #[inline(always)]
    pub(crate) fn lifetime(&self) -> &Lifetime {
        &self.lifetime
    }

    #[inline(always)]
    pub(crate) fn answering(&self) -> &Answering {
        &self.answering
    }

    #[inline(always)]
    pub(crate) fn answering_mut(&mut self) -> &mut Answering {
        &mut self.answering
    }

    #[inline(always)]
    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    #[inline(always)]
    pub(crate) fn health_mut(&mut self) -> &mut Health {
        &mut self.health
    }

    #[inline(always)]
    pub(crate) fn creating(&self) -> &Creating {
        &self.creating
    }

    #[inline(always)]
    pub(crate) fn creating_mut(&mut self) -> &mut Creating {
        &mut self.creating
    }

    #[inline(always)]
    pub(crate) fn audience(&self) -> &Audience {
        &self.audience
    }

    #[inline(always)]
    pub(crate) fn audience_mut(&mut self) -> &mut Audience {
        &mut self.audience
    }

    #[inline(always)]
    pub(crate) fn greeting(&self) -> &Greeting {
        &self.greeting
    }

    #[inline(always)]
    pub(crate) fn early(&self) -> &Early {
        &self.early
    }

    #[inline(always)]
    pub(crate) fn early_mut(&mut self) -> &mut Early {
        &mut self.early
    }

    #[inline(always)]
    pub(crate) fn elicitations(&self) -> &Elicitations {
        &self.elicitations
    }

    #[inline(always)]
    pub(crate) fn elicitations_mut(&mut self) -> &mut Elicitations {
        &mut self.elicitations
    }

    #[inline(always)]
    pub(crate) fn stall(&self) -> &StallBudget {
        &self.stall
    }

    #[inline(always)]
    pub(crate) fn stall_mut(&mut self) -> &mut StallBudget {
        &mut self.stall
    }

    #[inline(always)]
    pub(crate) fn undeliverable(&self) -> &Undeliverable {
        &self.undeliverable
    }

    #[inline(always)]
    pub(crate) fn undeliverable_mut(&mut self) -> &mut Undeliverable {
        &mut self.undeliverable
    }

    #[inline(always)]
    pub(crate) fn bad_lines(&self) -> &BadLines {
        &self.bad_lines
    }

    #[inline(always)]
    pub(crate) fn bad_lines_mut(&mut self) -> &mut BadLines {
        &mut self.bad_lines
    }

    #[inline(always)]
    pub(crate) fn window(&self) -> &SendWindow {
        &self.window
    }

    #[inline(always)]
    pub(crate) fn window_mut(&mut self) -> &mut SendWindow {
        &mut self.window
    }

    #[inline(always)]
    pub(crate) fn end(&self) -> &Endpoint {
        &self.end
    }

    #[inline(always)]
    pub(crate) fn end_mut(&mut self) -> &mut Endpoint {
        &mut self.end
    }

    /// The client it belongs to alone, in a dedicated pool.
    #[inline(always)]
    pub(crate) fn owner(&self) -> Option<ClientKey> {
        self.ownership.owner()
    }

    /// It has got a request to answer (`Answering::begin`).
    #[inline(always)]
    pub(crate) fn begin_request(&mut self, now: Moment) -> Option<Moment> {
        self.answering.begin(now, &self.end.to_answer, &mut self.lifetime)
    }

    /// Whether messages may be given to it.
    pub(crate) fn takes_messages(&self) -> bool {
        let process = &self.process;
        matches!(process.state, WorkerState::Starting | WorkerState::Running)
            && !process.stdin_closed
            && !process.stdout_closed
            && !self.is_asked()
    }

    /// Whether it is asked for its era, or will be: no client's line is sent to it before it has answered.
    pub(crate) fn is_asked(&self) -> bool {
        self.question == ProbeState::Open
    }

    /// Whether it is asked for its era, or will be, and was not asked to stop.
    pub(crate) fn may_show_its_era(&self) -> bool {
        self.is_asked() && !self.process.is_unwanted
    }

    /// Whether its start was confirmed.
    pub(crate) fn has_run(&self) -> bool {
        self.process.pid != 0
    }

    /// Whether it has ended by itself while it was asked for its era.
    pub(super) fn has_ended_asked(&self) -> bool {
        self.is_asked() && self.has_run() && self.process.ended_by_itself && !self.process.was_killed
    }

    /// Whether its end is no failure.
    pub(super) fn is_excused(&self) -> bool {
        self.process.is_unwanted || self.has_ended_asked()
    }

    /// Whether it runs, takes messages, and is neither on probation nor unresponsive.
    pub(crate) fn serves(&self) -> bool {
        self.runs() && !self.answering.is_on_probation() && !self.is_unresponsive()
    }

    /// Whether it runs and takes messages.
    pub(crate) fn runs(&self) -> bool {
        self.process.state == WorkerState::Running && self.takes_messages()
    }

    /// The client that waits for the first answer of this worker, which is its own and may still be starting.
    pub(crate) fn starts_for(&self) -> Option<ClientKey> {
        let waits = !self.answering.has_answered() && self.end.to_answer.count() > 0 && self.takes_messages();
        self.owner().filter(|_| waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [WorkerState; 6] = [
        WorkerState::Starting,
        WorkerState::Running,
        WorkerState::Ending,
        WorkerState::Stopping,
        WorkerState::Killed,
        WorkerState::Stopped,
    ];
    const EVENTS: [WorkerEvent; 8] = [
        WorkerEvent::Spawned,
        WorkerEvent::SpawnFailed,
        WorkerEvent::StdoutEnded,
        WorkerEvent::StdinBroken,
        WorkerEvent::Leave,
        WorkerEvent::Stop,
        WorkerEvent::Exited,
        WorkerEvent::Timer,
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
                    assert_eq!(next, WorkerState::Stopped, "{state:?} {event:?}");
                }
            }
        }
    }
}
