//! The life of a worker: it is started, it stops or breaks, it is reaped, and everything that depends on it ends with
//! it (spec 7.1; decision 13).

use alloc::borrow::{Cow, ToOwned};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::lifetime::{Lifetime, RecycleReason};
use super::worker::{Action, GRACE, Worker, WorkerEvent, WorkerState};
use crate::Bus;
use crate::ctx::Ctx;
use crate::fleet::answering::{hangs, tick_first_answer, tick_probation};
use crate::fleet::demand::start_ends;
use crate::fleet::eras::discovery::ask_era;
use crate::fleet::eras::lending::tick_extra;
use crate::fleet::health::HealthVerdict;
use crate::fleet::restart::healthy_after;
use crate::flow::delivery::release_overdue;
use crate::flow::gate::Hold;
use crate::index::FleetId;
use crate::peer::{ClientKey, Moment, Peer, RequestKey, WorkerKey};
use crate::peers::{Client, Phase, Workers};
use crate::pool_stats::ENDS;
use crate::port::{Effect, Exit, Signal, SpawnFailure};
use crate::report::{Reason, WorkerName};
use crate::shutdown::Stage;
use crate::timers::Timer;
use crate::usage::note_worker;

/// What an event has made of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepOutcome {
    /// It is still there.
    Continues,
    /// It has exited, and its last line was read.
    Gone,
}

impl Bus {
    pub(crate) fn on_spawned(&mut self, key: WorkerKey, pid: u32) {
        let Some(worker) = self.ctx.workers.get_mut(key) else { return };
        let fleet = worker.fleet;
        worker.process.run(pid, self.ctx.time.now());
        self.fleets.pools[worker.fleet.pool].stats.note(Reason::WorkerStarted);
        self.ctx.report(Reason::WorkerStarted, Some(Peer::Worker(key)), || format!("a worker runs as process {pid}"));
        self.step(key, WorkerEvent::Spawned);
        ask_era(&mut self.ctx, key);
        if self.ctx.workers.get(key).is_some_and(Worker::is_on_trial) {
            self.ctx.wake_at(key.into(), self.ctx.time.now().after(healthy_after(&self.ctx.settings.limits)));
            self.fleets.pools.offer(&mut self.ctx, fleet);
        }
        self.fleets.advance_rollout(&mut self.ctx, fleet);
        // It was being started while the others were killed.
        if self.ctx.shutdown.stage() >= Stage::Killing {
            self.step(key, WorkerEvent::Timer);
        }
        self.fleets.give_turns(&mut self.ctx);
    }

    pub(crate) fn on_spawn_failed(&mut self, key: WorkerKey, why: &str, fault: SpawnFailure) {
        match fault {
            SpawnFailure::Client => self.fail_for_want_of_credentials(key, why),
            SpawnFailure::Command | SpawnFailure::Shortage => {
                self.ctx.report(Reason::SpawnFailed, Some(Peer::Worker(key)), || why.to_owned());
                if let Some(worker) = self.ctx.workers.get_mut(key) {
                    worker.process.fail_to_start(fault == SpawnFailure::Shortage);
                    self.fleets.pools[worker.fleet.pool].stats.note(Reason::SpawnFailed);
                }
                self.fail_for_want_of_process(key, why, fault);
            }
        }
        self.step(key, WorkerEvent::SpawnFailed);
        self.fleets.give_turns(&mut self.ctx);
    }

    /// A worker was not started, since its client did not supply a credential: that client alone gets an error, and may
    /// try again.
    fn fail_for_want_of_credentials(&mut self, key: WorkerKey, why: &str) {
        let asked = self.requests.asked_of(&self.ctx, key.into());
        let owner = self.ctx.workers.owner(key);
        let has_lines = self.ctx.workers.get(key).is_some_and(|worker| worker.window.queued() > 0);
        if let Some(owner) = owner.and_then(|owner| self.ctx.clients.get_mut(owner)).filter(|_| !has_lines) {
            // Its line waited for the start and is now handled; it is refused for the same reason.
            owner.set_lack(Some(why.into()));
        } else if asked.is_empty() {
            let error = || (None, why.to_owned());
            self.ctx.report_request(Reason::CredentialsMissing, [owner.map(Peer::Client), Some(key.into())], error);
        }
        self.end_requests(asked, Reason::CredentialsMissing, why);
        // However often it tries, starts for others are not late.
        if let Some(worker) = self.ctx.workers.get(key) {
            self.fleets.queue.slow_down_owner(&self.ctx, worker);
        }
    }

    /// A worker could not be started: no process got the lines that were queued for it. Their senders are answered as if
    /// they had found no worker, so that they may send them again, and with the reason.
    fn fail_for_want_of_process(&mut self, key: WorkerKey, why: &str, fault: SpawnFailure) {
        let Some(worker) = self.ctx.workers.get(key).filter(|_| !self.ctx.shutdown.stops_workers()) else { return };
        // That of a shortage is in its reason.
        let remedy = match fault {
            SpawnFailure::Shortage => String::new(),
            _ => format!("; correct the command of pool \"{}\"", self.ctx.settings.pools[worker.fleet].id),
        };
        let text = format!("the worker could not be started: {why}{remedy}");
        let others = worker.end.traffic.lines_out.saturating_sub(worker.end.to_answer.count().into());
        if others > 0 {
            self.ctx.report(Reason::NoWorker, Some(Peer::Worker(key)), || {
                format!("lines that get no answer were not delivered, {others} in all: {text}")
            });
        }
        let asked = self.requests.asked_of(&self.ctx, key.into());
        self.end_requests(asked, Reason::NoWorker, &text);
    }

    /// The requests of a worker end with an error for their askers.
    fn end_requests(&mut self, requests: Vec<RequestKey>, reason: Reason, text: &str) {
        for request in requests {
            self.fail_request(request, reason, text);
            self.requests.forget(&mut self.ctx, &mut self.sessions, request);
        }
    }

    /// Its process was reaped (spec 7.1).
    pub(crate) fn on_exited(&mut self, key: WorkerKey, exit: Exit) {
        // Its last lines are read at once.
        self.ctx.end_pause(key, |_| true);
        let Some(worker) = self.ctx.workers.get_mut(key) else { return };
        // SIGINT, SIGKILL, SIGTERM.
        let is_kill = matches!(exit, Exit::Signal(2 | 9 | 15) | Exit::OutOfMemory);
        let unwanted = worker.process.exited(is_kill);
        let was_asked = worker.has_ended_asked();
        let unwanted = unwanted.filter(|_| !was_asked);
        let cause = unwanted.filter(|_| !worker.process.ended_by_itself());
        debug_assert!(unwanted.is_none_or(|reason| ENDS.contains(&reason)), "no metric shows {unwanted:?}");
        self.fleets.pools[worker.fleet.pool].stats.note(unwanted.unwrap_or(Reason::WorkerStopped));
        let (pending, sessions) = (worker.end.to_answer.count(), worker.end.sessions.len());
        let reason = if unwanted.is_some() { Reason::WorkerExited } else { Reason::WorkerStopped };
        self.ctx.report(reason, Some(Peer::Worker(key)), || match cause {
            Some(why) => format!("a worker stopped as requested ({}): {exit}", why.name()),
            None if was_asked => format!("a worker ended with {exit} when it was asked server/discover"),
            None => {
                format!("a worker ended with {exit}; {pending} requests were pending, {sessions} sessions are gone")
            }
        });
        self.step(key, WorkerEvent::Exited);
    }

    /// A worker has violated the protocol: its sessions are invalid at once, and it is asked to stop (spec 5.3).
    pub(crate) fn stop_broken_worker(&mut self, key: WorkerKey, reason: Reason, text: &str) {
        self.ctx.report(reason, Some(Peer::Worker(key)), || text.to_owned());
        let Some(worker) = self.ctx.workers.get_mut(key) else { return };
        worker.process.stop_reading(reason);
        // A worker that has exited was only read to its end, which is reached.
        let has_exited = worker.process.state() == WorkerState::Stopped;
        self.ctx.close_gate(key.into(), Hold::Over);
        self.detach_worker(key);
        self.step(key, if has_exited { WorkerEvent::StdoutEnded } else { WorkerEvent::Stop });
    }

    /// Applies the state table of `worker.rs`, and ends a worker that is gone.
    pub(crate) fn step(&mut self, key: WorkerKey, event: WorkerEvent) {
        if step_worker(&mut self.ctx, key, event) == StepOutcome::Gone {
            self.finish_worker(key);
        }
    }

    /// Ends the requests and sessions of a worker (spec 7.1.2).
    fn detach_worker(&mut self, key: WorkerKey) {
        self.ctx.release_waiters(Peer::Worker(key));
        self.ctx.stop_waiting(Peer::Worker(key));
        let to_answer = self.requests.asked_of(&self.ctx, key.into());
        let (reason, text) = match self.ctx.workers.get(key) {
            _ if self.ctx.shutdown.stops_workers() => {
                (Reason::ShuttingDown, Cow::Borrowed("the daemon shut down before the worker answered"))
            }
            Some(worker) if worker.process.cause() == Some(Reason::WorkerLineTooLong) => {
                let text = format!(
                    "the worker was restarted before it answered: it wrote a line longer than {}; raise that",
                    self.ctx.settings.limits.longest_of_worker()
                );
                (Reason::RequestLost, text.into())
            }
            Some(worker) => (Reason::RequestLost, lost(worker.process.cause(), &worker.lifetime).into()),
            None => return,
        };
        self.requests.penalise_crash(&mut self.ctx, key, &to_answer);
        let owner = self.ctx.workers.owner(key).map(Peer::Client);
        let has_failed = |request: &RequestKey| self.requests.get(*request).is_some_and(|it| it.asker() == owner);
        let is_notified = owner.is_some() && to_answer.iter().any(has_failed);
        self.end_requests(to_answer, reason, &text);
        for request in self.requests.asked_by(&self.ctx, key.into()) {
            self.requests.abandon(&mut self.ctx, &mut self.sessions, request);
        }
        while let Some(session) = self.ctx.workers.get(key).and_then(|worker| worker.end.sessions.first().copied()) {
            self.sessions.lose(&mut self.ctx, session);
        }
        self.sessions.drop_all_early(&mut self.ctx, key);
        self.tasks.forget_worker(key);
        self.close_owner(key, is_notified);
    }

    /// A dedicated worker has ended: the client sees that as the end of its connection, as if it had started the worker
    /// itself. Another worker would know nothing of the negotiated state. `is_notified` means that a request of it
    /// failed.
    fn close_owner(&mut self, key: WorkerKey, is_notified: bool) {
        let Some(worker) = self.ctx.workers.get(key) else { return };
        // A worker that could not be started has negotiated nothing.
        let Some(owner) = worker.owner().filter(|_| worker.has_run() && !worker.ownership.is_left()) else { return };
        // The shutdown closes its clients in its own time; a client that is being closed has a reason already.
        let keeps_connection = self.ctx.clients.phase(owner).is_none_or(|phase| phase >= Phase::Refusing)
            || self.ctx.clients.mcp(owner).borrows;
        if self.ctx.shutdown.stops_workers() || keeps_connection {
            return;
        }
        if is_notified && gets_another_worker(&mut self.ctx, owner, key) {
            self.ctx.report_request(Reason::OwnWorkerReplaced, [Some(owner.into()), Some(key.into())], || {
                (None, "the client's own worker has ended before its first answer; the client gets another one".into())
            });
            self.ctx.workers.get_mut(key).into_iter().for_each(|worker| worker.ownership.leave());
            return self.ctx.clients.unassign(owner, key);
        }
        self.ctx.report_request(Reason::OwnWorkerEnded, [Some(owner.into()), Some(key.into())], || {
            (None, "the client's own worker has ended; the connection is closed".into())
        });
        // It has ended by itself, and is not stopped for lack of its client.
        self.ctx.clients.unassign(owner, key);
        // Its requests to workers of other pools.
        let text = "the worker of this connection has ended, and the connection is closed";
        self.fail_requests_of(owner, Reason::RequestDiscarded, text);
        self.close_orderly(owner, Reason::OwnWorkerEnded, text);
    }

    /// It has exited and its last line was read.
    fn finish_worker(&mut self, key: WorkerKey) {
        self.detach_worker(key);
        note_worker(&mut self.ctx, key);
        let Some(worker) = self.ctx.workers.remove(key) else { return };
        self.requests.forget_names(&worker.end.names);
        self.fleets.openings.forget_worker(&mut self.ctx, &worker);
        self.ctx.timers.disarm(Timer::Worker(key));
        self.ctx.out.stats().bytes_unsent += worker.end.output.queued() as u64;
        self.ctx.out.push(Effect::Release(key));
        worker.owner().into_iter().for_each(|owner| self.ctx.clients.unassign(owner, key));
        self.fleets.leave_pool(&mut self.ctx, key, &worker);
        if self.fleets.queue.has_turns() {
            // Clients that waited for this worker only, or for its place, may get another.
            self.fleets.give_turns(&mut self.ctx);
        }
        self.advance_shutdown();
    }

    /// Timers and stalls of a worker.
    pub(crate) fn tick_worker(&mut self, key: WorkerKey) {
        let timeout = self.ctx.settings.limits.backpressure_timeout;
        self.ctx.tick_turns(key);
        self.ctx.release_held_up(key);
        release_overdue(&mut self.ctx, self.fleets.queue_mut(), key.into());
        let now = self.ctx.time.now();
        self.ctx.end_pause(key, |until| until <= now);
        if self.ctx.workers.get_mut(key).is_some_and(|worker| worker.process.take_timer(now)) {
            self.on_worker_timer(key);
        }
        let stalls_at = |worker: &Worker| worker.end.output.stalls_at(timeout).filter(|_| worker.takes_messages());
        if let Some(worker) = self.ctx.workers.get(key)
            && stalls_at(worker).is_some_and(|at| at <= now)
        {
            let text = format!(
                "a worker read nothing for {} s, with {} bytes queued; it is asked to stop",
                timeout.as_secs_f32(),
                worker.end.output.queued()
            );
            self.stop_broken_worker(key, Reason::WorkerStalled, &text);
        }
        let next_look = match self.requests.look_at(&mut self.ctx, key) {
            HealthVerdict::Again(at) => at,
            HealthVerdict::Hangs(why) => {
                self.stop_broken_worker(key, Reason::WorkerHangs, &why);
                None
            }
        };
        let starts_until = match start_ends(&self.ctx, key) {
            Some(at) if at <= now => {
                let text = "a worker that owes an answer has written nothing for start_timeout_sec since its start";
                self.stop_broken_worker(key, Reason::StartTimeout, text);
                None
            }
            at => at,
        };
        let due = [
            starts_until,
            next_look,
            self.requests.tick_silent(&mut self.ctx, key),
            tick_probation(&mut self.ctx, key),
            self.fleets.pools.tick_trial(&mut self.ctx, key),
            self.sessions.tick_early(&mut self.ctx, key),
            self.tick_refused(key),
            tick_first_answer(&mut self.ctx, key),
            self.fleets.tick_question(&mut self.ctx, key),
            tick_extra(self.fleets.pools_mut(), &mut self.ctx, &self.tasks, key),
            self.fleets.pools.tick_lifetime(&mut self.ctx, &self.sessions, &self.tasks, key),
            self.fleets.tick_growth(&mut self.ctx, key),
            self.fleets.tick_idle(&mut self.ctx, &self.sessions, &self.tasks, key),
        ];
        let Some(worker) = self.ctx.workers.get(key) else { return };
        let overdue_at = worker.end.cold.first_line_expires();
        let own = [
            worker.process.timer(),
            stalls_at(worker),
            worker.stall.ends(),
            worker.window.turns_due(),
            overdue_at,
            worker.end.gate.throttled_until(),
        ];
        if let Some(next) = due.into_iter().chain(own).flatten().min() {
            self.ctx.wake_at(key.into(), next);
        }
    }

    fn on_worker_timer(&mut self, key: WorkerKey) {
        let Some(worker) = self.ctx.workers.get_mut(key) else { return };
        let (state, stdout_open) = (worker.process.state(), !worker.process.is_drained());
        let (waits_longer, reason, text) = match state {
            // Its last lines wait for a slow client: the timer starts when they can be read again.
            WorkerState::Stopped => (
                worker.end.gate.waits(),
                Reason::WorkerHoldsPipe,
                "a worker has exited, but another process keeps its stdout open; the daemon no longer reads it",
            ),
            // It has closed its stdin and works on a request that it has read, for as long as that may take. If
            // something was not read, a request may be lost, and it is not known which.
            WorkerState::Running if stdout_open => (
                worker.window.backlog() == 0 && worker.end.to_answer.awaited() > 0,
                Reason::WorkerClosedStdin,
                "a worker closed its stdin and still runs; it is asked to stop",
            ),
            WorkerState::Running => {
                (false, Reason::WorkerClosedStdout, "a worker closed its stdout and still runs; it is asked to stop")
            }
            WorkerState::Starting | WorkerState::Ending | WorkerState::Stopping | WorkerState::Killed => {
                return self.step(key, WorkerEvent::Timer);
            }
        };
        if waits_longer {
            let at = self.ctx.time.now().after(GRACE);
            return set_timer(&mut self.ctx, key, at);
        }
        if state == WorkerState::Running {
            worker.process.replace_for(reason);
        }
        self.ctx.report(reason, Some(Peer::Worker(key)), || text.into());
        self.step(key, WorkerEvent::Timer);
    }

    /// A request to a worker has timed out: after too many in a row the worker is restarted.
    pub(crate) fn count_timeout(&mut self, key: WorkerKey) {
        if let Some(timeouts) = hangs(&mut self.ctx, key) {
            let text =
                format!("the worker hangs: {timeouts} requests in a row timed out without any output; it is restarted");
            self.stop_broken_worker(key, Reason::WorkerHangs, &text);
        }
    }
}

/// The operator has a worker stopped, which counts as no failure. The next one is started when it is gone.
#[cold]
pub(crate) fn stop_for_operator(ctx: &mut Ctx, key: WorkerKey) {
    let Some(worker) = ctx.workers.get_mut(key) else { return };
    let pending = worker.end.to_answer.count();
    worker.process.replace_for(Reason::WorkerReplaced);
    worker.lifetime.end_for_operator();
    ctx.report(Reason::WorkerReplaced, Some(Peer::Worker(key)), || {
        format!("the operator replaces a worker with {pending} requests pending")
    });
    stop_worker(ctx, key);
}

/// Kills every remaining worker: all were asked to stop before.
pub(crate) fn kill_workers(ctx: &mut Ctx) {
    let is_there = |worker: &Worker| worker.process.is_there() && worker.process.state() == WorkerState::Stopping;
    for key in ctx.workers.keys() {
        if ctx.workers.get(key).is_some_and(is_there) {
            let life = step_worker(ctx, key, WorkerEvent::Timer);
            debug_assert_eq!(life, StepOutcome::Continues, "a worker is gone once it is reaped");
        }
    }
}

/// Applies the state table of `worker.rs`.
#[cold]
fn step_worker(ctx: &mut Ctx, key: WorkerKey, event: WorkerEvent) -> StepOutcome {
    let Some(worker) = ctx.workers.get_mut(key) else { return StepOutcome::Continues };
    let action = worker.process.step(event);
    let (is_there, drained) = (worker.process.is_there(), worker.process.is_drained());
    let leaves_by = worker.lifetime.leaves_by().filter(|_| action == Action::EndInput).unwrap_or(Moment::NEVER);
    ctx.workers_changed = true;
    let lasts = match action {
        Action::None => return StepOutcome::Continues,
        Action::EndInput | Action::Terminate | Action::Kill => ctx.settings.limits.drain_timeout,
        Action::Await | Action::ReadRest | Action::Finish => GRACE,
    };
    set_timer(ctx, key, ctx.time.now().after(lasts).min(leaves_by));
    if !ctx.workers.worker_takes_messages(key) {
        // Its queue may be lost, and nothing is added to it, so no client has to wait for it.
        ctx.release_waiters(Peer::Worker(key));
    }
    match action {
        Action::EndInput => ctx.out.push(Effect::CloseStdin(key)),
        Action::Terminate => {
            ctx.out.push(Effect::CloseStdin(key));
            if is_there {
                ctx.out.push(Effect::Signal { worker: key, signal: Signal::Terminate });
            }
        }
        Action::Kill if is_there => {
            ctx.report(Reason::WorkerKilled, Some(Peer::Worker(key)), || {
                "a worker did not stop in time and is killed".into()
            });
            ctx.out.push(Effect::Signal { worker: key, signal: Signal::Kill });
        }
        Action::ReadRest if drained => return StepOutcome::Gone,
        Action::Finish => return StepOutcome::Gone,
        Action::None | Action::Await | Action::ReadRest | Action::Kill => {}
    }
    StepOutcome::Continues
}

/// Ends a worker that is not needed any more: it gets the end of its stdin behind all that it has not read yet, and a
/// signal only if it does not end by itself.
pub(crate) fn end_worker(ctx: &mut Ctx, key: WorkerKey) {
    let Some(worker) = ctx.workers.get_mut(key) else { return };
    worker.process.dismiss();
    let fleet = worker.fleet;
    let life = step_worker(ctx, key, WorkerEvent::Leave);
    debug_assert_eq!(life, StepOutcome::Continues, "a worker is gone once it is reaped");
    // Those that ignore the end of their stdin do not pile up. Those that end together have their time together.
    let until = |key: WorkerKey| ctx.workers.get(key).and_then(|worker| worker.process.timer());
    let is_ending = |worker: &Worker| worker.fleet == fleet && worker.process.state() == WorkerState::Ending;
    let ending = || ctx.workers.iter().filter(|(_, worker)| is_ending(worker));
    if ending().count() > ctx.settings.pools[fleet].max_instances
        && let Some((oldest, _)) = ending().min_by_key(|(_, worker)| worker.process.timer())
        && until(oldest) < until(key)
    {
        stop_worker(ctx, oldest);
    }
}

/// Stops a worker that is not wanted any more.
pub(crate) fn stop_worker(ctx: &mut Ctx, key: WorkerKey) {
    let Some(worker) = ctx.workers.get_mut(key) else { return };
    worker.process.dismiss();
    let life = step_worker(ctx, key, WorkerEvent::Stop);
    debug_assert_eq!(life, StepOutcome::Continues, "a worker is gone once it is reaped");
}

/// Whether a client whose own worker has ended keeps its connection, once: nothing was negotiated before the first
/// answer. Some servers end at a request before `initialize`, by which a client finds out what they speak, and some
/// of these say on stdout why they end: such a line is read while the process is still there, and ends it by itself,
/// also if it was asked to stop before. The error of its request notifies the client of the end.
fn gets_another_worker(ctx: &mut Ctx, owner: ClientKey, key: WorkerKey) -> bool {
    let has_failed = |Worker { process, answering, .. }: &Worker| {
        (process.has_exited() || process.is_malformed()) && !answering.has_answered()
    };
    let is_first = ctx.workers.get(key).is_some_and(has_failed) && ctx.clients.phase(owner) == Some(Phase::Open);
    let owner = ctx.clients.get_mut(owner).filter(|owner| is_first && owner.mcp().era.is_none());
    owner.is_some_and(Client::loses_first_worker)
}

/// A worker's stdout is read again. If it has exited meanwhile, its last lines get the full time.
pub(crate) fn extend_read_timer(ctx: &mut Ctx, key: WorkerKey) {
    if ctx.workers.get(key).is_some_and(|worker| worker.process.state() == WorkerState::Stopped) {
        set_timer(ctx, key, ctx.time.now().after(GRACE));
    }
}

fn set_timer(ctx: &mut Ctx, key: WorkerKey, at: Moment) {
    let Some(worker) = ctx.workers.get_mut(key) else { return };
    worker.process.set_timer(at);
    ctx.wake_at(key.into(), at);
}

impl Workers {
    /// The name of a worker for people.
    pub(crate) fn worker_name(&self, worker: WorkerKey) -> Option<WorkerName> {
        self.get(worker).map(|worker| worker.name)
    }

    /// The fleet of a worker.
    pub(crate) fn fleet_of(&self, worker: WorkerKey) -> Option<FleetId> {
        self.get(worker).map(|worker| worker.fleet)
    }

    /// The client that a worker of a dedicated pool belongs to.
    pub(crate) fn owner(&self, worker: WorkerKey) -> Option<ClientKey> {
        self.get(worker)?.owner()
    }

    /// Whether it serves only one client.
    pub(crate) fn has_owner(&self, worker: WorkerKey) -> bool {
        self.owner(worker).is_some()
    }

    pub(crate) fn worker_takes_messages(&self, worker: WorkerKey) -> bool {
        self.get(worker).is_some_and(Worker::takes_messages)
    }
}

/// The error for requests lost with a worker that was replaced for this reason, or ended by itself.
fn lost(cause: Option<Reason>, lifetime: &Lifetime) -> &'static str {
    match cause {
        Some(Reason::WorkerMalformed) => {
            "the worker was restarted before it answered: it wrote a malformed line (pools[].on_bad_output)"
        }
        Some(Reason::WorkerHangs) => "the worker was restarted before it answered: it hung",
        Some(Reason::StartTimeout) => {
            "the worker was restarted before it answered: it said nothing within start_timeout_sec; its stderr is in the log of \
             the daemon; raise pools[].start_timeout_sec if it needs more time"
        }
        Some(Reason::WorkerStalled) => "the worker was restarted before it answered: it did not read its stdin",
        Some(Reason::WorkerReplaced) if lifetime.recycle_reason() == Some(RecycleReason::Operator) => {
            "the operator had the worker replaced before it answered"
        }
        Some(Reason::WorkerReplaced) => "the worker was replaced before it answered",
        _ => "the worker exited before it answered",
    }
}
