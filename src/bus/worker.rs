//! A worker's life: the state × event table with every cell filled, and the restart policy (spec 7.1, appendix B).
//!
//! Death is the process being reaped, not its stdout ending: a grandchild can hold the pipe open for hours, and a
//! process can close its pipes and live.

use std::collections::VecDeque;
use std::time::Duration;

use super::delivery::Patience;
use super::endpoint::Endpoint;
use super::peer::{ClientKey, Moment, WorkerKey};
use super::port::Exit;
use super::send_window::SendWindow;
use super::settings::Limits;

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
    /// Give it [`GRACE`] to exit by itself.
    Await,
    /// SIGTERM, close stdin, and set the timer to drain_timeout.
    Terminate,
    /// SIGKILL.
    Kill,
    /// Read what is left in its stdout, for [`GRACE`] at most.
    ReadRest,
    /// It is gone: settle its requests and sessions and forget it.
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

        (S::Stopping, E::Timer) => (S::Stopping, A::Kill),
        (S::Stopping, E::Exited) => (S::Stopped, A::ReadRest),
        (S::Stopping, E::SpawnFailed) => (S::Stopped, A::Finish),
        // It was told to stop before it had a process to signal.
        (S::Stopping, E::Spawned) => (S::Stopping, A::Terminate),
        (S::Stopping, E::StdoutEnded | E::StdinBroken | E::Stop) => (S::Stopping, A::None),

        (S::Stopped, E::StdoutEnded | E::Timer) => (S::Stopped, A::Finish),
        (S::Stopped, E::Spawned | E::SpawnFailed | E::StdinBroken | E::Stop | E::Exited) => (S::Stopped, A::None),
    }
}

/// One incarnation of a worker.
pub struct Worker {
    /// Index of its pool.
    pub pool: usize,
    /// Its seat in the pool; none when a dedicated worker left its seat for a client.
    pub seat: Option<usize>,
    /// Its id for people.
    pub number: u32,
    /// Where it stands.
    pub state: State,
    /// The client it belongs to alone, in a dedicated pool.
    pub owner: Option<ClientKey>,
    /// When it was started.
    pub started: Moment,
    /// When the timer of its state runs out.
    pub timer: Option<Moment>,
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
    /// It could not be started for want of descriptors, processes or memory.
    pub was_short: bool,
    /// Whether we asked it to end and do not want it back in its seat.
    pub retired: bool,
    /// Requests of `session/new` and the like that it has not answered.
    pub creating: u32,
    /// It was told about that it answers what nobody asked.
    pub answers_twice: bool,
    /// How much longer it may be held up by slow readers.
    pub patience: Patience,
    /// What is on its way to it.
    pub window: SendWindow,
    /// Lines, requests and sessions.
    pub end: Endpoint,
}

impl Worker {
    /// A worker that is being started.
    pub fn new(pool: usize, seat: Option<usize>, number: u32, now: Moment) -> Self {
        Self {
            pool,
            seat,
            number,
            state: State::Starting,
            owner: None,
            started: now,
            timer: None,
            has_process: false,
            stdin_open: true,
            stdout_open: true,
            exit: None,
            was_told: false,
            was_short: false,
            retired: false,
            creating: 0,
            answers_twice: false,
            patience: Patience::default(),
            window: SendWindow::default(),
            end: Endpoint::default(),
        }
    }

    /// Whether messages may be given to it.
    pub fn takes_messages(&self) -> bool {
        matches!(self.state, State::Starting | State::Running) && self.stdin_open && self.stdout_open
    }
}

/// First restart delay; it doubles with each exit (design 2.13).
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// Longest restart delay.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// A worker that ran this long starts over with the first delay.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// A place in a pool that wants a worker in it, and its history.
#[derive(Default)]
pub struct Seat {
    /// Who sits there.
    pub worker: Option<WorkerKey>,
    /// When the next one is to be started.
    pub restart_at: Option<Moment>,
    /// max_restarts was exceeded: nobody is started before the window has passed; never, if there are no restarts.
    pub given_up: bool,
    restarts: VecDeque<Moment>,
    failures: u32,
}

/// What becomes of a seat whose worker exited unexpectedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Start another one after this delay.
    RestartAfter(Duration),
    /// max_restarts within restart_window_sec is exceeded (spec 7.1.3).
    GiveUp,
}

impl Seat {
    /// Whether its last worker exited and the next one is not due yet, or will never come.
    pub fn is_failing(&self) -> bool {
        self.given_up || self.restart_at.is_some()
    }

    /// Nobody is started here before `at`; it counts for nothing.
    pub fn wait(&mut self, at: Moment) {
        self.worker = None;
        self.restart_at = Some(at);
    }

    /// The worker of this seat, started at `started`, has exited unexpectedly.
    pub fn vacate(&mut self, started: Moment, now: Moment, limits: &Limits) -> Verdict {
        self.worker = None;
        if now.since(started) >= HEALTHY_AFTER {
            self.failures = 0;
        }
        while self.restarts.front().is_some_and(|restart| now.since(*restart) >= limits.restart_window) {
            self.restarts.pop_front();
        }
        if self.restarts.len() >= limits.max_restarts as usize {
            self.given_up = true;
            self.restart_at = (limits.max_restarts > 0).then(|| now.after(limits.restart_window));
            return Verdict::GiveUp;
        }
        let delay = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(16)).min(LONGEST_BACKOFF);
        self.failures += 1;
        self.restart_at = Some(now.after(delay));
        self.restarts.push_back(now.after(delay));
        Verdict::RestartAfter(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 4] = [State::Starting, State::Running, State::Stopping, State::Stopped];
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

    #[test]
    fn every_backoff_doubles_up_to_thirty_seconds() {
        let limits = Limits { max_restarts: 100, restart_window: Duration::from_secs(1), ..Limits::default() };
        let mut seat = Seat::default();
        let mut now = Moment(0);
        let mut delays = Vec::new();
        for _ in 0..11 {
            let Verdict::RestartAfter(delay) = seat.vacate(now, now, &limits) else { panic!("gave up") };
            delays.push(delay.as_millis());
            now = now.after(delay).after(Duration::from_secs(2));
        }
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        let Verdict::RestartAfter(delay) = seat.vacate(now, now.after(HEALTHY_AFTER), &limits) else { panic!() };
        assert_eq!(delay, FIRST_BACKOFF, "a worker that ran for a minute starts over");
    }

    #[test]
    fn a_seat_is_given_up_when_its_restarts_exceed_the_limit_within_the_window() {
        let limits = Limits { max_restarts: 5, ..Limits::default() };
        let mut seat = Seat::default();
        for second in 0..5 {
            let at = Moment(second * 1_000_000_000);
            assert!(matches!(seat.vacate(at, at, &limits), Verdict::RestartAfter(_)));
        }
        let at = Moment(6_000_000_000);
        assert_eq!(seat.vacate(at, at, &limits), Verdict::GiveUp);
        assert!(seat.given_up);
    }

    #[test]
    fn without_restarts_the_first_exit_gives_the_seat_up() {
        let limits = Limits { max_restarts: 0, ..Limits::default() };
        assert_eq!(Seat::default().vacate(Moment(0), Moment(0), &limits), Verdict::GiveUp);
    }
}
