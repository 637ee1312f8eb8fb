//! The workers of all pools: who sits where, who is picked for a message, who is started again (spec 3.3, 6.1, 7.1;
//! design 2.6, 2.7, 2.13).

use std::time::Duration;

use super::Bus;
use super::client::Phase;
use super::peer::{ClientKey, Moment, Peer, RequestKey, WorkerKey};
use super::port::{Effect, Exit, Signal};
use super::report::{Level, Reason, Report};
use super::requests::{Direction, in_order};
use super::settings::{self, Assignment, Settings};
use super::shutdown::Stage;
use super::worker::{Action, Event, GRACE, Seat, State, Verdict, Worker, step};
use crate::scan::{Line, Window, decoded};

/// So many workers in a row that end while they have a request of one client are no accident.
const SUSPECT_AFTER: u32 = 3;
/// How long such a client is not read; it doubles each time.
const FIRST_PENALTY: Duration = Duration::from_secs(1);
/// How long at most.
const LONGEST_PENALTY: Duration = Duration::from_secs(30);
/// A worker that could not be started for want of descriptors, processes or memory is tried again after this long.
const SHORTAGE: Duration = Duration::from_secs(1);

/// A pool's seats.
pub struct Pool {
    /// One for each instance; in a dedicated pool, one for each warm spare.
    pub seats: Vec<Seat>,
    /// Workers of the pool, seated or not.
    pub live: usize,
    /// One of its workers has given out the name of a session.
    pub issues_names: bool,
}

impl Pool {
    /// A pool with nobody in it.
    pub fn new(pool: &settings::Pool) -> Self {
        Self { seats: (0..pool.instances).map(|_| Seat::default()).collect(), live: 0, issues_names: false }
    }
}

/// The workers that a message may go to: those of one pool, or of all.
pub struct Group {
    /// Seats as (pool, seat), in the order of the configuration.
    seats: Vec<(usize, usize)>,
    /// How one of them is chosen.
    pub assignment: Assignment,
    /// Where round robin goes on.
    cursor: usize,
}

impl Group {
    /// How many seats it has.
    pub fn len(&self) -> usize {
        self.seats.len()
    }

    fn of_pool(settings: &Settings, pool: usize) -> Self {
        let seats = (0..settings.pools[pool].instances).map(|seat| (pool, seat)).collect();
        Self { seats, assignment: settings.pools[pool].assignment, cursor: 0 }
    }

    /// Leaves dedicated pools out where there are others, since joining one by accident would start a process.
    fn of_pools(settings: &Settings, pools: &[usize]) -> Self {
        let assignment = |pool: &usize| settings.pools[*pool].assignment;
        let shared: Vec<usize> =
            pools.iter().copied().filter(|pool| assignment(pool) != Assignment::Dedicated).collect();
        if let ([], Some(pool)) = (&shared[..], pools.first()) {
            return Self::of_pool(settings, *pool);
        }
        let sticky = shared.iter().any(|pool| assignment(pool) == Assignment::Client);
        let assignment = if sticky { Assignment::Client } else { Assignment::RoundRobin };
        let seats = shared.into_iter().flat_map(|pool| Self::of_pool(settings, pool).seats).collect();
        Self { seats, assignment, cursor: 0 }
    }

    /// The pool that all its workers are of, if they are: the seats of a pool stand together.
    fn only_pool(&self) -> Option<usize> {
        let (first, last) = (self.seats.first()?.0, self.seats.last()?.0);
        (first == last).then_some(first)
    }
}

/// One group for each pool, one behind them for messages that name none, and one for each listener that offers some
/// pools and prefers none; and the group of each listener. One pool alone is the same group whether it is named or not.
pub fn groups(settings: &Settings) -> (Vec<Group>, Vec<usize>) {
    let all: Vec<usize> = (0..settings.pools.len()).collect();
    let mut groups: Vec<Group> = all.iter().map(|pool| Group::of_pool(settings, *pool)).collect();
    groups.push(Group::of_pools(settings, &all));
    let is_dedicated = |pool: &usize| settings.pools[*pool].assignment == Assignment::Dedicated;
    let of_listener = |listener: &settings::Listener| match (listener.pool, listener.pools.as_deref()) {
        (Some(pool), _) => pool,
        (None, None) if all.len() == 1 => 0,
        (None, None) => all.len(),
        (None, Some([pool])) => *pool,
        // Of these the first one is taken: named or not, a client has one worker there.
        (None, Some(some @ [pool, ..])) if some.iter().all(is_dedicated) => *pool,
        (None, Some(some)) => {
            groups.push(Group::of_pools(settings, some));
            groups.len() - 1
        }
    };
    let of_listeners = settings.listeners.iter().map(of_listener).collect();
    (groups, of_listeners)
}

impl Bus {
    /// The group that a client's line asks for (design 2.7).
    pub(super) fn group_of_line(
        &self,
        client: ClientKey,
        window: Window<'_>,
        line: &Line,
    ) -> Result<usize, (Reason, String)> {
        let group = if line.pool.is_some() {
            self.named_pool(client, &decoded(window.get(line.pool)))?
        } else {
            self.clients.get(client).map_or(0, |client| client.group)
        };
        // Nobody is picked, and no worker started, for one who asks for what it may not have.
        if self.denies_methods
            && let Some(pool) = self.groups[group].only_pool()
            && let Some(denied) = self.denied_in(pool, window, line)
        {
            return Err(denied);
        }
        Ok(group)
    }

    /// The pool of this name. One that the client's listener does not offer is not told from one that does not exist.
    fn named_pool(&self, client: ClientKey, name: &[u8]) -> Result<usize, (Reason, String)> {
        let listener = self.clients.get(client).and_then(|client| self.settings.listeners.get(client.listener));
        let offered = listener.and_then(|listener| listener.pools.as_ref());
        let found = self.settings.pools.iter().position(|pool| pool.id.as_bytes() == name);
        found.filter(|pool| offered.is_none_or(|offered| offered.contains(pool))).ok_or_else(|| {
            let shown = name[..name.len().min(64)].escape_ascii();
            (Reason::UnknownPool, format!("no pool is called \"{shown}\""))
        })
    }

    /// Who sits on a seat of a group.
    pub(super) fn group_worker(&self, group: usize, at: usize) -> Option<WorkerKey> {
        let (pool, seat) = *self.groups[group].seats.get(at)?;
        self.pools[pool].seats[seat].worker
    }

    /// A worker for a client's message that belongs to no session yet.
    pub(super) fn pick(&mut self, now: Moment, client: ClientKey, group: usize) -> Result<WorkerKey, (Reason, String)> {
        let assignment = self.groups[group].assignment;
        if assignment == Assignment::RoundRobin {
            return self.next_in_turn(group).ok_or_else(|| self.nobody(now, group));
        }
        let assigned = self.clients.get(client).and_then(|client| client.assigned.iter().find(|(g, _)| *g == group));
        if let Some((_, worker)) = assigned
            && self.worker_takes_messages(*worker)
        {
            return Ok(*worker);
        }
        let worker = match assignment {
            Assignment::Dedicated => self.claim(now, client, group),
            _ => self.next_in_turn(group),
        };
        let worker = worker.ok_or_else(|| self.nobody(now, group))?;
        if let Some(client) = self.clients.get_mut(client) {
            client.assigned.retain(|(g, _)| *g != group);
            client.assigned.push((group, worker));
        }
        Ok(worker)
    }

    fn nobody(&self, now: Moment, group: usize) -> (Reason, String) {
        let group = &self.groups[group];
        let text = match group.seats.first() {
            Some((pool, _)) if group.assignment == Assignment::Dedicated => self.nobody_free(now, *pool),
            _ => "no worker is running".into(),
        };
        (Reason::NoWorker, text)
    }

    /// Why [`Bus::claim`] finds nobody in a dedicated pool.
    fn nobody_free(&self, now: Moment, pool: usize) -> String {
        let most = self.settings.pools[pool].max_instances;
        let pool = &self.pools[pool];
        if pool.live >= most {
            return format!("no worker is free: all {most} of max_instances workers are in use");
        }
        if let Some(at) = pool.seats.iter().filter_map(|seat| seat.restart_at).min() {
            let wait = at.since(now).as_millis();
            return format!("no worker is free: the spare one has exited, and the next one starts in {wait} ms");
        }
        if pool.seats.iter().any(|seat| seat.given_up) {
            let limits = &self.settings.limits;
            let (restarts, window) = (limits.max_restarts, limits.restart_window.as_secs());
            return format!(
                "no worker is free: the spare one was given up after {restarts} restarts within {window} s \
                 (max_restarts)"
            );
        }
        "no worker is free".into()
    }

    /// Round robin over those that take messages (spec 6.1.1, 6.1.3).
    fn next_in_turn(&mut self, group: usize) -> Option<WorkerKey> {
        let count = self.groups[group].seats.len();
        for _ in 0..count {
            let group = &mut self.groups[group];
            let (pool, seat) = group.seats[group.cursor];
            group.cursor = (group.cursor + 1) % count;
            if let Some(worker) = self.pools[pool].seats[seat].worker
                && self.worker_takes_messages(worker)
            {
                return Some(worker);
            }
        }
        None
    }

    /// Takes a warm spare out of its seat for one client, or starts a worker for it if the pool may grow.
    fn claim(&mut self, now: Moment, client: ClientKey, group: usize) -> Option<WorkerKey> {
        let pool = self.groups[group].seats.first()?.0;
        let worker = match self.next_in_turn(group) {
            Some(spare) => {
                if let Some(seat) = self.workers.get_mut(spare)?.seat.take() {
                    self.pools[pool].seats[seat].worker = None;
                }
                spare
            }
            // A pool whose workers do not stay is not started over and over by those who ask for one.
            None if self.pools[pool].seats.iter().any(Seat::is_failing) => return None,
            None => self.spawn(now, pool, None)?,
        };
        self.workers.get_mut(worker)?.owner = Some(client);
        self.fill_seats(now, pool);
        Some(worker)
    }

    /// Starts a worker wherever a seat is empty and not waiting out its backoff.
    pub(super) fn fill_seats(&mut self, now: Moment, pool: usize) {
        if self.shutdown.refuses_requests() {
            return;
        }
        for seat in 0..self.pools[pool].seats.len() {
            let here = &self.pools[pool].seats[seat];
            let waits = match here.restart_at {
                Some(at) => at > now,
                None => here.given_up,
            };
            if here.worker.is_some() || waits {
                continue;
            }
            if let Some(worker) = self.spawn(now, pool, Some(seat)) {
                let here = &mut self.pools[pool].seats[seat];
                here.restart_at = None;
                here.given_up = false;
                here.worker = Some(worker);
            }
        }
    }

    fn spawn(&mut self, now: Moment, pool: usize, seat: Option<usize>) -> Option<WorkerKey> {
        if self.pools[pool].live >= self.settings.pools[pool].max_instances {
            return None;
        }
        let number = self.next_worker_number;
        let worker = self.workers.insert(Worker::new(pool, seat, number, now))?;
        self.next_worker_number += 1;
        self.pools[pool].live += 1;
        self.effects.push_back(Effect::Spawn { worker, pool, number });
        Some(worker)
    }

    pub(super) fn spawned(&mut self, now: Moment, key: WorkerKey, pid: u32) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        worker.has_process = true;
        worker.started = now;
        self.report(now, Reason::WorkerStarted, Some(Peer::Worker(key)), || format!("a worker runs as process {pid}"));
        self.step(now, key, Event::Spawned);
        // It was being started while the others were killed.
        if self.stage() >= Stage::Killing {
            self.step(now, key, Event::Timer);
        }
    }

    pub(super) fn spawn_failed(&mut self, now: Moment, key: WorkerKey, why: &str, short: bool) {
        self.report(now, Reason::SpawnFailed, Some(Peer::Worker(key)), || why.to_owned());
        if let Some(worker) = self.workers.get_mut(key) {
            worker.stdout_open = false;
            worker.stdin_open = false;
            worker.was_short = short;
        }
        self.step(now, key, Event::SpawnFailed);
    }

    pub(super) fn stdout_ended(&mut self, now: Moment, key: WorkerKey) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        worker.stdout_open = false;
        self.step(now, key, Event::StdoutEnded);
    }

    pub(super) fn stdin_broken(&mut self, now: Moment, key: WorkerKey, _why: &str) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        worker.stdin_open = false;
        self.step(now, key, Event::StdinBroken);
    }

    /// Its process was reaped (spec 7.1).
    pub(super) fn exited(&mut self, now: Moment, key: WorkerKey, exit: Exit) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        worker.exit = Some(exit);
        worker.has_process = false;
        worker.stdin_open = false;
        let asked = worker.state == State::Stopping;
        worker.was_told = asked;
        let (pending, sessions) = (worker.end.owes.len(), worker.end.sessions.len());
        let reason = if asked { Reason::WorkerStopped } else { Reason::WorkerExited };
        self.report(now, reason, Some(Peer::Worker(key)), || {
            format!("a worker ended with {exit}; {pending} requests were pending, {sessions} sessions are gone")
        });
        self.step(now, key, Event::Exited);
    }

    /// A worker that broke the rules: its sessions are invalid at once, and it is told to stop (spec 5.3).
    pub(super) fn stop_bad_worker(&mut self, now: Moment, key: WorkerKey, reason: Reason, text: &str) {
        self.report(now, reason, Some(Peer::Worker(key)), || text.to_owned());
        if let Some(worker) = self.workers.get_mut(key) {
            worker.stdout_open = false;
        }
        self.effects.push_back(Effect::Pause { peer: Peer::Worker(key) });
        self.settle_worker(now, key);
        // One that has exited was only read to its end, and that is here.
        let event = match self.workers.get(key).map(|worker| worker.state) {
            Some(State::Stopped) => Event::StdoutEnded,
            _ => Event::Stop,
        };
        self.step(now, key, event);
    }

    /// A worker that is wanted no more.
    pub(super) fn retire(&mut self, now: Moment, key: WorkerKey) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        worker.retired = true;
        self.step(now, key, Event::Stop);
    }

    /// Applies the table of `worker.rs`.
    fn step(&mut self, now: Moment, key: WorkerKey, event: Event) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        let (state, action) = step(worker.state, event);
        worker.state = state;
        let timer = match action {
            Action::None => return,
            Action::Await | Action::ReadRest => Some(now.after(GRACE)),
            Action::Terminate | Action::Kill => Some(now.after(self.settings.limits.drain_timeout)),
            Action::Finish => None,
        };
        worker.timer = timer;
        let has_process = worker.has_process;
        let drained = !worker.stdout_open;
        if let Some(timer) = timer {
            self.check_at(timer);
        }
        if !self.worker_takes_messages(key) {
            // What is queued for it may go nowhere, and nothing is added to it, so nobody has to wait for it.
            self.release_waiters(now, Peer::Worker(key));
        }
        match action {
            Action::Terminate => {
                self.effects.push_back(Effect::CloseStdin { worker: key });
                if has_process {
                    self.effects.push_back(Effect::Signal { worker: key, signal: Signal::Terminate });
                }
            }
            Action::Kill => {
                if has_process {
                    self.report(now, Reason::WorkerKilled, Some(Peer::Worker(key)), || {
                        "a worker did not stop in time and is killed".into()
                    });
                    self.effects.push_back(Effect::Signal { worker: key, signal: Signal::Kill });
                }
            }
            Action::ReadRest if drained => self.finish_worker(now, key),
            Action::Finish => self.finish_worker(now, key),
            Action::None | Action::Await | Action::ReadRest => {}
        }
    }

    /// Everything that hung on a worker ends with it (spec 7.1.2).
    fn settle_worker(&mut self, now: Moment, key: WorkerKey) {
        self.release_waiters(now, Peer::Worker(key));
        self.stop_waiting(now, Peer::Worker(key));
        let owes: Vec<_> = self.workers.get(key).map(|worker| worker.end.owes.iter().collect()).unwrap_or_default();
        let (reason, text) = if self.shutdown.refuses_requests() {
            (Reason::ShuttingDown, "the daemon shut down before the worker answered")
        } else {
            (Reason::WorkerGone, "the worker exited before it answered")
        };
        self.blame(now, key, &owes);
        for request in in_order(owes) {
            self.give_up_request(now, request, reason, text);
            self.forget_request(Direction::ToWorkers, request);
        }
        let asked: Vec<_> = self.workers.get(key).map(|worker| worker.end.asked.iter().collect()).unwrap_or_default();
        for request in in_order(asked) {
            self.orphan_request(Direction::ToClients, request);
        }
        while let Some(session) = self.workers.get(key).and_then(|worker| worker.end.sessions.first()) {
            self.lose_session(session);
        }
    }

    /// A worker has ended although nobody asked it to: whoever had a request pending there may have caused it, and who
    /// had one each time is slowed down.
    fn blame(&mut self, now: Moment, key: WorkerKey, owes: &[RequestKey]) {
        let unexpected = self.workers.get(key).is_some_and(|worker| worker.exit.is_some() && !worker.was_told);
        if !unexpected || self.shutdown.refuses_requests() {
            return;
        }
        for (asker, request) in self.askers_of(owes.iter().copied()) {
            let Some(client) = self.clients.get_mut(asker) else { continue };
            client.crashes += 1;
            let Some(more) = client.crashes.checked_sub(SUSPECT_AFTER) else { continue };
            let pause = FIRST_PENALTY.saturating_mul(1 << more.min(16)).min(LONGEST_PENALTY);
            client.read_after = Some(now.after(pause));
            let (crashes, number) = (client.crashes, client.number);
            self.check_at(now.after(pause));
            let id = self.to_workers.table.get(request).map(|request| request.asker_id().to_string());
            let worker = self.workers.get(key).map(|worker| (worker.pool, worker.number));
            let report = self.reporter.report(now, Reason::CrashSuspect, || {
                let text = format!(
                    "{crashes} workers in a row have ended while they had a request of this client; it is read again in \
                     {} s",
                    pause.as_secs()
                );
                Report { client: Some(number), worker, id, ..Report::new(Reason::CrashSuspect, text) }
            });
            self.tell(report);
        }
    }

    /// It has exited and its last line was read.
    fn finish_worker(&mut self, now: Moment, key: WorkerKey) {
        self.settle_worker(now, key);
        let Some(worker) = self.workers.remove(key) else { return };
        let (pool, number) = (worker.pool, worker.number);
        self.stats.bytes_unsent += worker.end.output.queued() as u64;
        self.effects.push_back(Effect::Release { worker: key });
        self.pools[pool].live -= 1;
        if let Some(owner) = worker.owner.and_then(|owner| self.clients.get_mut(owner)) {
            owner.assigned.retain(|(_, assigned)| *assigned != key);
        }
        if let Some(seat) = worker.seat {
            if worker.retired || self.shutdown.refuses_requests() {
                self.pools[pool].seats[seat].worker = None;
            } else if worker.was_short {
                // That is no failure of the command.
                self.pools[pool].seats[seat].wait(now.after(SHORTAGE));
                self.check_at(now.after(SHORTAGE));
            } else {
                self.vacate(now, pool, seat, number, worker.started);
            }
        }
        self.fill_seats(now, pool);
        self.advance_drain(now);
    }

    fn vacate(&mut self, now: Moment, pool: usize, seat: usize, number: u32, started: Moment) {
        let verdict = self.pools[pool].seats[seat].vacate(started, now, &self.settings.limits);
        if let Some(at) = self.pools[pool].seats[seat].restart_at {
            self.check_at(at);
        }
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
                        match limits.max_restarts {
                            0 => "the daemon has to be restarted".to_owned(),
                            _ => format!("it is tried again in {} s", limits.restart_window.as_secs()),
                        },
                    ),
                )
                .at(Level::Error)
            }
        };
        report.worker = Some((pool, number));
        let report = self.reporter.report(now, report.reason, || report);
        self.tell(report);
    }

    /// Restarts, timers and stalls of workers.
    pub(super) fn tick_workers(&mut self, now: Moment) {
        let timeout = self.settings.limits.backpressure_timeout;
        for key in self.workers.keys() {
            self.end_patience(now, key);
            let Some(worker) = self.workers.get_mut(key) else { continue };
            if worker.timer.is_some_and(|at| at <= now) {
                worker.timer = None;
                self.timer_ran_out(now, key);
            }
            let Some(worker) = self.workers.get(key) else { continue };
            let stalls_at = worker.end.output.stalls_at(timeout).filter(|_| worker.takes_messages());
            let queued = worker.end.output.queued();
            if stalls_at.is_some_and(|at| at <= now) {
                let text = format!(
                    "a worker read nothing for {} s, with {queued} bytes queued; it is told to stop",
                    timeout.as_secs_f32()
                );
                self.stop_bad_worker(now, key, Reason::WorkerStalled, &text);
            }
            let Some(worker) = self.workers.get(key) else { continue };
            let stalls_at = worker.end.output.stalls_at(timeout).filter(|_| worker.takes_messages());
            if let Some(next) = [worker.timer, stalls_at, worker.patience.ends()].into_iter().flatten().min() {
                self.check_at(next);
            }
        }
        for pool in 0..self.pools.len() {
            self.fill_seats(now, pool);
            let next = self.pools[pool]
                .seats
                .iter()
                .filter(|seat| seat.worker.is_none())
                .filter_map(|seat| seat.restart_at)
                .min();
            if let Some(next) = next.filter(|next| *next > now) {
                self.check_at(next);
            }
        }
    }

    fn timer_ran_out(&mut self, now: Moment, key: WorkerKey) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        match worker.state {
            // Its last lines wait for a slow client: the clock starts when they can be read again.
            State::Stopped if worker.end.blocked_on.is_some() => {
                let again = now.after(GRACE);
                worker.timer = Some(again);
                return self.check_at(again);
            }
            State::Stopped => {
                self.report(now, Reason::WorkerHoldsPipe, Some(Peer::Worker(key)), || {
                    "a worker has exited, but another process keeps its stdout open; it is read no more".into()
                });
            }
            State::Running if !worker.stdout_open => {
                self.report(now, Reason::WorkerClosedStdout, Some(Peer::Worker(key)), || {
                    "a worker closed its stdout and lives; it is told to stop".into()
                });
            }
            State::Running => {
                self.report(now, Reason::WorkerClosedStdin, Some(Peer::Worker(key)), || {
                    "a worker closed its stdin and lives; it is told to stop".into()
                });
            }
            State::Starting | State::Stopping => {}
        }
        self.step(now, key, Event::Timer);
    }

    /// A worker's stdout is read again: if it has exited meanwhile, its last lines have their full time from now on.
    pub(super) fn read_on(&mut self, now: Moment, key: WorkerKey) {
        let Some(worker) = self.workers.get_mut(key).filter(|worker| worker.state == State::Stopped) else { return };
        let timer = now.after(GRACE);
        worker.timer = Some(timer);
        self.check_at(timer);
    }

    /// The client that a worker of a dedicated pool belongs to.
    pub fn owner(&self, worker: WorkerKey) -> Option<ClientKey> {
        self.workers.get(worker).and_then(|worker| worker.owner)
    }

    /// Whether any client still waits for an answer.
    pub(super) fn has_pending(&self) -> bool {
        self.clients.iter().any(|(_, client)| client.phase <= Phase::HalfClosed && !client.end.asked.is_empty())
    }

    /// Tells every worker to stop.
    pub(super) fn stop_workers(&mut self, now: Moment) {
        for key in self.workers.keys() {
            self.retire(now, key);
        }
    }

    /// Kills every worker that is left.
    pub(super) fn kill_workers(&mut self, now: Moment) {
        for key in self.workers.keys() {
            let Some(worker) = self.workers.get(key).filter(|worker| worker.has_process) else { continue };
            if worker.state == State::Stopping {
                self.step(now, key, Event::Timer);
            } else {
                self.effects.push_back(Effect::Signal { worker: key, signal: Signal::Kill });
            }
        }
    }
}
