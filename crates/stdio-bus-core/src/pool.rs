//! The seats of each pool: who sits there, when the next worker is started, and when a seat is given up
//! (spec 7.1.3; decision 13).

use alloc::borrow::ToOwned;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::Bus;
use super::peer::{Moment, Source, WorkerKey};
use super::port::Effect;
use super::report::{Level, Reason, Report, WorkerName};
use super::settings::{self, Assignment, Limits, OnFailure};
use super::tally::Tally;
use super::timers::Armed;
use super::worker::{State, Worker};

/// A worker that could not be started for want of descriptors, processes or memory is tried again after this long.
const SHORTAGE: Duration = Duration::from_secs(1);
/// First restart delay; it doubles with each exit (decision 13).
const FIRST_BACKOFF: Duration = Duration::from_millis(100);

/// Longest restart delay.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

/// A worker that ran this long, or for the window in which restarts are counted, starts over with the first delay.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// So many failures in a row are no accident.
const UNSTEADY: u32 = 2;

/// A place in a pool that wants a worker in it, and its history.
#[derive(Default)]
pub(super) struct Seat {
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
pub(super) enum Verdict {
    /// Start another one after this delay.
    RestartAfter(Duration),
    /// max_restarts within restart_window_sec is exceeded (spec 7.1.3).
    GiveUp,
}

impl Seat {
    /// Whether the next worker has to show first that it does better than those before it.
    fn is_unsteady(&self) -> bool {
        self.given_up || self.failures >= UNSTEADY
    }

    /// Whether its last worker exited and the next one is not due yet, or will never come.
    pub(super) fn is_failing(&self) -> bool {
        self.given_up || self.restart_at.is_some()
    }

    /// Whether a worker of it has failed since one did well.
    pub(super) fn has_failed(&self) -> bool {
        self.is_failing() || self.failures > 0
    }

    /// Whether its last worker exited, the first after a time in which all went well, and the next one is due.
    pub(super) fn is_in_first_backoff(&self) -> bool {
        !self.given_up && self.restart_at.is_some() && self.failures == 1
    }

    /// Whether its worker, started at `started`, is followed by another after the first backoff when it exits now.
    pub(super) fn is_followed(&self, started: Moment, now: Moment, limits: &Limits) -> bool {
        self.failures == 0 || does_well(started, now, limits)
    }

    /// Nobody is started here before `at`; it counts for nothing.
    pub(super) fn wait_until(&mut self, at: Moment) {
        self.worker = None;
        self.restart_at = Some(at);
    }

    /// The worker of this seat, started at `started`, has exited unexpectedly.
    pub(super) fn vacate(&mut self, started: Moment, now: Moment, limits: &Limits, retry: Option<Duration>) -> Verdict {
        self.worker = None;
        if does_well(started, now, limits) {
            self.failures = 0;
        }
        while self.restarts.front().is_some_and(|restart| now.since(*restart) >= limits.restart_window) {
            self.restarts.pop_front();
        }
        if self.restarts.len() >= limits.max_restarts as usize {
            self.given_up = true;
            self.restart_at = retry.map(|after| now.after(after));
            return Verdict::GiveUp;
        }
        let delay = backoff(self.failures);
        self.failures += 1;
        self.restart_at = Some(now.after(delay));
        self.restarts.push_back(now.after(delay));
        Verdict::RestartAfter(delay)
    }
}

/// Whether a worker that was started at `started` has run for so long that what was before is forgotten.
fn does_well(started: Moment, now: Moment, limits: &Limits) -> bool {
    now.since(started) >= HEALTHY_AFTER.min(limits.restart_window)
}

/// How long a worker is not started after so many failures before this one.
fn backoff(failures: u32) -> Duration {
    FIRST_BACKOFF.saturating_mul(1 << failures.min(16)).min(LONGEST_BACKOFF)
}

/// A worker that lives for so long with its client is no failure, however it ends then.
const LASTS: Duration = Duration::from_secs(10);

/// More failures than it takes to the longest backoff.
const SOURCES: usize = 16;

/// Workers of a dedicated pool that ended soon after a client had taken them.
#[derive(Default)]
struct Failures {
    /// Since one of them did well.
    in_a_row: u32,
    /// Where their clients came from, of the first [`SOURCES`]: each counts once, so that a few who make workers crash do
    /// not keep them from the others.
    sources: Vec<Source>,
    /// No spare one is started before this moment.
    rests_until: Option<Moment>,
}

/// A pool's seats.
pub(super) struct Pool {
    /// One for each instance; in a dedicated pool, one for each warm spare.
    pub seats: Vec<Seat>,
    /// Workers of the pool, seated or not.
    pub live: usize,
    /// Which names are taken: `true` at the place of each worker that lives.
    pub places: Vec<bool>,
    /// One of its workers has given out the name of a session.
    pub issues_names: bool,
    /// It was told that its workers give one client the same name twice.
    pub told_of_doubles: bool,
    failures: Failures,
    /// What was counted of it.
    pub tally: Tally,
    pub timer: Armed,
}

impl Pool {
    /// A pool with nobody in it.
    pub(super) fn new(pool: &settings::Pool) -> Self {
        Self {
            seats: (0..pool.instances).map(|_| Seat::default()).collect(),
            live: 0,
            places: vec![false; pool.max_instances],
            issues_names: false,
            told_of_doubles: false,
            failures: Failures::default(),
            tally: Tally::default(),
            timer: Armed::default(),
        }
    }

    /// Whether a worker of it gives out the names of its sessions, so that clients may use no others.
    pub(super) fn gives_out_names(&self, worker: &Worker) -> bool {
        worker.owner.is_none() && (worker.may_give_out_a_name() || self.issues_names)
    }

    /// The place that a worker in this seat gets its name from: that of the seat, so that the name stays the same over
    /// a restart, or the first free one if a client has taken the last worker of the seat along.
    fn free_place(&self, seat: Option<usize>) -> Option<usize> {
        let own = seat.filter(|seat| self.places.get(*seat) == Some(&false));
        own.or_else(|| self.places.iter().position(|taken| !taken))
    }

    /// Whether nobody is started for now, since one worker that a client had taken has failed.
    pub(super) fn rests_for_the_first_time(&self, now: Moment) -> bool {
        self.failures.in_a_row == 1 && self.rests_until(now).is_some()
    }

    /// Until when nobody is started, since workers that clients had taken have failed.
    pub(super) fn rests_until(&self, now: Moment) -> Option<Moment> {
        self.failures.rests_until.filter(|until| *until > now)
    }
}

/// When a worker that was given up is tried again; never if none.
fn retry_after(pool: &settings::Pool, limits: &Limits) -> Option<Duration> {
    match pool.retry_after {
        Some(never) if never.is_zero() => None,
        None => (limits.max_restarts > 0).then_some(limits.restart_window),
        after => after,
    }
}

/// How many workers a pool has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Staffing {
    /// Workers that run.
    pub running: usize,
    /// Seats whose worker does not run: nobody sits there, or it is being started or stopped.
    pub missing: usize,
}

impl Bus {
    /// How many workers each pool has, in the order of the configuration.
    pub fn staffing(&self) -> Vec<Staffing> {
        let mut pools: Vec<Staffing> =
            self.pools.iter().map(|pool| Staffing { running: 0, missing: pool.seats.len() }).collect();
        for (_, worker) in self.workers.iter().filter(|(_, worker)| worker.state == State::Running) {
            let pool = &mut pools[worker.pool];
            pool.running += 1;
            pool.missing -= usize::from(worker.seat.is_some());
        }
        pools
    }

    /// Starts a worker wherever a seat is empty and not waiting out its backoff. Spares of a dedicated pool come one after
    /// the other, and after clients that wait (`worker_queue.rs`).
    pub(super) fn fill_seats(&mut self, pool: usize) {
        if self.shutdown.stops_workers() {
            return;
        }
        if let Some(until) = self.pools[pool].rests_until(self.now) {
            return self.wake_pool_at(pool, until);
        }
        for seat in 0..self.pools[pool].seats.len() {
            let here = &self.pools[pool].seats[seat];
            let waits = match here.restart_at {
                Some(at) => at > self.now,
                None => here.given_up,
            };
            if here.worker.is_some() || waits {
                continue;
            }
            if self.settings.pools[pool].assignment == Assignment::Dedicated && !self.may_start_at_once() {
                return;
            }
            if let Some(worker) = self.start_worker(pool, Some(seat)) {
                if self.pools[pool].seats[seat].is_unsteady() {
                    self.put_on_trial(worker);
                }
                let here = &mut self.pools[pool].seats[seat];
                here.restart_at = None;
                here.given_up = false;
                here.worker = Some(worker);
                self.end_vacancy(pool);
            }
        }
    }

    pub(super) fn start_worker(&mut self, pool: usize, seat: Option<usize>) -> Option<WorkerKey> {
        if self.pools[pool].live >= self.settings.pools[pool].max_instances {
            return None;
        }
        let place = self.pools[pool].free_place(seat)?;
        let name = WorkerName { pool, place, incarnation: self.next_worker_number };
        let worker = self.workers.insert(Worker {
            request_timeout: self.settings.pools[pool].request_timeout,
            ..Worker::new(name, seat, self.now)
        })?;
        self.next_worker_number += 1;
        self.pools[pool].live += 1;
        self.pools[pool].places[place] = true;
        self.worker_queue.begin_start();
        self.out.effects.push_back(Effect::Spawn { worker, name });
        Some(worker)
    }

    /// The worker of a seat has exited unexpectedly: tells what becomes of the seat.
    fn vacate_seat(&mut self, seat: usize, worker: &Worker) {
        let (pool, started) = (worker.pool, worker.started);
        let retry = retry_after(&self.settings.pools[pool], &self.settings.limits);
        let verdict = self.pools[pool].seats[seat].vacate(started, self.now, &self.settings.limits, retry);
        if let Some(at) = self.pools[pool].seats[seat].restart_at {
            self.wake_pool_at(pool, at);
        }
        let tally = &mut self.pools[pool].tally;
        *(if verdict == Verdict::GiveUp { &mut tally.given_up } else { &mut tally.restarts }) += 1;
        let id = &self.settings.pools[pool].id;
        let mut report = match verdict {
            Verdict::RestartAfter(delay) => {
                Report::new(Reason::RestartScheduled, format!("the next one starts in {} ms", delay.as_millis()))
            }
            Verdict::GiveUp => {
                let left = self.pools[pool].seats.iter().filter(|seat| !seat.given_up).count();
                let limits = &self.settings.limits;
                Report::new(
                    Reason::PoolDegraded,
                    format!(
                        "given up after {} restarts within {} s; pool \"{id}\" has {left} of {} workers left. Mend the \
                         command; {}",
                        limits.max_restarts,
                        limits.restart_window.as_secs(),
                        self.pools[pool].seats.len(),
                        match retry {
                            None => "the daemon has to be restarted".to_owned(),
                            Some(after) => format!("it is tried again in {} s", after.as_secs()),
                        },
                    ),
                )
                .at(Level::Error)
            }
        };
        report.worker = Some(worker.name());
        let report = self.reporter.report(self.now, report.reason, || report);
        self.out.effects.extend(report.map(Effect::Report));
        let is_lost = |pool: &Pool| pool.live == 0 && pool.seats.iter().all(|seat| seat.given_up);
        if self.settings.limits.on_failure == OnFailure::Exit && self.pools.iter().all(is_lost) {
            self.fail("every worker of every pool was given up (on_failure)");
        }
    }

    /// A worker that a client had taken has ended: if that was soon, and by itself, the next one has to wait. That it has
    /// answered is no excuse: agents without their key answer `initialize`, and end with the first session.
    fn count_failure(&mut self, worker: &Worker) {
        let now = self.now;
        let source = worker.owner.and_then(|owner| self.clients.get(owner)).map(|owner| owner.source);
        let failures = &mut self.pools[worker.pool].failures;
        let is_unexpected = worker.owner.is_some() && worker.exit.is_some() && !worker.was_told && !worker.no_restart;
        let is_failure = is_unexpected && now.since(worker.claimed) < LASTS;
        if !is_failure && worker.answering.has_answered {
            *failures = Failures::default();
        }
        if !is_failure || source.is_some_and(|source| failures.sources.contains(&source)) {
            return;
        }
        let delay = backoff(failures.in_a_row);
        failures.rests_until = Some(now.after(delay));
        failures.in_a_row += 1;
        failures.sources.extend(source.filter(|_| failures.sources.len() < SOURCES));
        let report = self.reporter.report(now, Reason::RestartScheduled, || {
            let text = format!("a client has lost it soon; the next one starts in {} ms", delay.as_millis());
            Report { worker: Some(worker.name()), ..Report::new(Reason::RestartScheduled, text) }
        });
        self.out.effects.extend(report.map(Effect::Report));
    }

    /// A worker has left its pool: its seat, if it has one, is filled again, now or after its backoff.
    pub(super) fn leave_pool(&mut self, worker: &Worker) {
        let pool = worker.pool;
        self.pools[pool].live -= 1;
        self.pools[pool].places[worker.place] = false;
        if let Some(seat) = worker.seat {
            if worker.no_restart || self.shutdown.stops_workers() {
                self.pools[pool].seats[seat].worker = None;
            } else if worker.was_short {
                // That is no failure of the command.
                self.pools[pool].seats[seat].wait_until(self.now.after(SHORTAGE));
                self.wake_pool_at(pool, self.now.after(SHORTAGE));
            } else {
                self.vacate_seat(seat, worker);
            }
        } else {
            self.count_failure(worker);
        }
        self.fill_seats(pool);
        // Nobody may come any more.
        self.stop_awaiting_workers_of(pool);
    }

    /// Starts workers whose time has come.
    pub(super) fn tick_pool(&mut self, pool: usize) {
        self.fill_seats(pool);
        let empty = self.pools[pool].seats.iter().filter(|seat| seat.worker.is_none());
        // What is due and was not started is started after another (`worker_queue.rs`).
        if let Some(next) = empty.filter_map(|seat| seat.restart_at).filter(|at| *at > self.now).min() {
            self.wake_pool_at(pool, next);
        }
    }

    /// Panics if seats, workers and what is counted of them disagree.
    pub(super) fn check_pools(&self) {
        for (index, pool) in self.pools.iter().enumerate() {
            let live = self.workers.iter().filter(|(_, worker)| worker.pool == index).count();
            assert_eq!(pool.live, live, "workers of a pool are counted");
            assert!(live <= self.settings.pools[index].max_instances);
            let mut places = vec![false; pool.places.len()];
            for (_, worker) in self.workers.iter().filter(|(_, worker)| worker.pool == index) {
                assert!(!core::mem::replace(&mut places[worker.place], true), "no two workers have one name");
            }
            assert_eq!(pool.places, places, "places are taken by workers that live");
            for (seat, here) in pool.seats.iter().enumerate() {
                let Some(key) = here.worker else { continue };
                let worker = self.workers.get(key).expect("who sits somewhere lives");
                assert_eq!((worker.pool, worker.seat), (index, Some(seat)));
                assert!(here.restart_at.is_none() && !here.given_up, "a seat that is taken waits for nobody");
            }
        }
        for (key, worker) in self.workers.iter() {
            let Some(seat) = worker.seat else { continue };
            assert_eq!(self.pools[worker.pool].seats[seat].worker, Some(key), "a seat has one worker");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_backoff_doubles_up_to_thirty_seconds() {
        let limits = Limits { max_restarts: 100, restart_window: Duration::from_secs(1), ..Limits::default() };
        let mut seat = Seat::default();
        let mut now = Moment(0);
        let mut delays = Vec::new();
        for _ in 0..11 {
            let Verdict::RestartAfter(delay) = seat.vacate(now, now, &limits, None) else { panic!("gave up") };
            delays.push(delay.as_millis());
            now = now.after(delay).after(Duration::from_secs(2));
        }
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        let Verdict::RestartAfter(delay) = seat.vacate(now, now.after(HEALTHY_AFTER), &limits, None) else { panic!() };
        assert_eq!(delay, FIRST_BACKOFF, "a worker that ran for a minute starts over");
        let Verdict::RestartAfter(delay) = seat.vacate(now, now, &limits, None) else { panic!() };
        assert_eq!(delay, 2 * FIRST_BACKOFF);
        let Verdict::RestartAfter(delay) = seat.vacate(now, now.after(limits.restart_window), &limits, None) else {
            panic!()
        };
        assert_eq!(delay, FIRST_BACKOFF, "so does one that outlived the window in which restarts are counted");
    }

    #[test]
    fn a_seat_is_given_up_when_its_restarts_exceed_the_limit_within_the_window() {
        let limits = Limits { max_restarts: 5, ..Limits::default() };
        let mut seat = Seat::default();
        for second in 0..5 {
            let at = Moment(second * 1_000_000_000);
            assert!(matches!(seat.vacate(at, at, &limits, None), Verdict::RestartAfter(_)));
        }
        let at = Moment(6_000_000_000);
        assert_eq!(seat.vacate(at, at, &limits, None), Verdict::GiveUp);
        assert!(seat.given_up);
    }

    #[test]
    fn without_restarts_the_first_exit_gives_the_seat_up() {
        let limits = Limits { max_restarts: 0, ..Limits::default() };
        assert_eq!(Seat::default().vacate(Moment(0), Moment(0), &limits, None), Verdict::GiveUp);
    }
}
