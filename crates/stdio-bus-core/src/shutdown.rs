//! The shutdown of the daemon, which drains it: Running → LameDuck → Quiescing → Terminating → Killing → Flushing →
//! Done (spec 10, decision 14). It only moves forward. From Quiescing on new requests are refused and pending ones may
//! finish; from Terminating on all client input is refused. A client that waits for nothing is closed with its first
//! refusal, or when it is silent; and before it is closed it is read until it is silent, for a second at most:
//! everything received is answered or refused. One that was silent is read until the workers have ended, too, since its
//! next request may be under way; then all are closed at once.

use alloc::string::String;
use core::time::Duration;

use super::message::KnownMethod;
use super::peer::{ClientKey, Moment, SessionKey};
use super::port::{Close, Effect};
use super::report::Reason;
use super::session::table::Session;
use super::timers::Timer;
use super::{Bus, graceful_close};
use crate::ctx::Ctx;
use crate::fleet::life::{kill_workers, stop_worker};
use crate::graceful_close::{report_unread, report_untaken};
use crate::peers::{Client, Phase};
use crate::requests::Request;
use crate::session::table::Sessions;

/// How long a killed worker may take to be reaped, and a client to take its last bytes after the drain timeout.
const LAST_GRACE: Duration = Duration::from_secs(1);

/// A daemon without clients and sessions is a lame duck for this long at most: clients that a load balancer still sends
/// here arrive within this time.
const ALONE: Duration = Duration::from_secs(1);

/// Why its clients are closed.
const SHUTS_DOWN: &str = "the daemon is shutting down";

/// Two signals within this time count as one: timeout(1), systemd and containers signal us and our group.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// The stage of the shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// No shutdown.
    #[default]
    Running,
    /// Service continues, but balancers see that they should send no more clients.
    LameDuck,
    /// No new clients and no new requests; pending ones may finish, and a client without any is closed when silent.
    Quiescing,
    /// Workers were asked to stop; their last answers are still delivered.
    Terminating,
    /// Workers that did not stop were killed.
    Killing,
    /// Workers are gone; clients take their last bytes.
    Flushing,
    /// Nothing is left.
    Done,
}

/// How far the shutdown is, and until when its stages last.
#[derive(Debug, Default)]
pub struct Shutdown {
    stage: Stage,
    /// The deadline of the current stage, from [`Stage::LameDuck`] to [`Stage::Flushing`].
    deadline: Moment,
    /// The deadline of the whole drain.
    ends: Moment,
    immediate: bool,
    /// The operator has asked for it, without a signal.
    by_operator: bool,
    /// When the first signal came.
    signalled: Option<Moment>,
    /// When new requests began to be refused.
    quiesces_from: Moment,
    /// Since when a lame duck has had no client, and the number that the next one gets.
    alone: Option<(Moment, u32)>,
}

impl Shutdown {
    /// The stage that it is in.
    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether new requests are answered with an error.
    pub fn refuses_requests(&self) -> bool {
        self.stage >= Stage::Quiescing
    }

    /// Whether there is a moment at which all remaining clients are closed.
    pub fn has_deadline_for_clients(&self) -> bool {
        self.stage == Stage::Flushing || self.immediate
    }

    /// Whether workers run that may still answer.
    pub(crate) fn has_workers(&self) -> bool {
        self.stage < Stage::Flushing
    }

    /// Whether the workers are asked to stop: new connections are rejected, all client input is refused, and no worker
    /// is restarted.
    pub fn stops_workers(&self) -> bool {
        self.stage > Stage::Quiescing
    }
}

impl Bus {
    /// The operator asks for a drain. It does not hurry.
    pub(super) fn on_drain(&mut self) {
        if self.ctx.shutdown.stage == Stage::Running {
            self.ctx.shutdown.by_operator = true;
            self.begin_lame_duck("the operator asked for it");
        }
    }

    /// SIGTERM or SIGINT: the first one drains, the second one drops pending requests and leaves a second to report
    /// that. An earlier drain by the operator does not count: service managers send a signal after that.
    pub(super) fn on_shutdown(&mut self) {
        let now = self.ctx.time.now();
        let first = self.ctx.shutdown.signalled;
        self.ctx.shutdown.signalled = first.or(Some(now));
        if self.ctx.shutdown.stage == Stage::Running {
            return self.begin_lame_duck("a signal asked for it");
        }
        if first.is_none() && self.ctx.shutdown.by_operator {
            let text = "a signal: the drain continues; a second one ends it";
            return self.ctx.report(Reason::Draining, None, || text.into());
        }
        if self.ctx.shutdown.immediate || first.is_some_and(|first| now.since(first) < SAME_SIGNAL) {
            return;
        }
        self.ctx.shutdown.immediate = true;
        let pending = self.ctx.clients.awaited();
        self.ctx.report(Reason::Draining, None, || {
            format!("a second signal: everything ends within a second; {pending} pending requests get errors")
        });
        if self.ctx.shutdown.stage < Stage::Quiescing {
            self.ctx.out.push(Effect::StopAccept);
        }
        self.close_clients();
        if self.ctx.shutdown.stage < Stage::Terminating {
            self.terminate();
        }
        if self.ctx.shutdown.stage < Stage::Killing {
            self.kill();
        }
        let ends = now.after(LAST_GRACE);
        (self.ctx.shutdown.ends, self.ctx.shutdown.deadline) = (ends, self.ctx.shutdown.deadline.min(ends));
        self.ctx.timers.arm(Timer::Drain, ends);
        self.advance_shutdown();
    }

    /// Starts the shutdown: for a while only readiness checks see it.
    fn begin_lame_duck(&mut self, why: &str) {
        let lame_duck = self.ctx.settings.limits.lame_duck;
        if lame_duck.is_zero() {
            return self.begin_shutdown(why);
        }
        let until = self.ctx.time.now().after(lame_duck);
        enter_stage(&mut self.ctx, Stage::LameDuck, until);
        self.ctx.out.push(Effect::LeaveSharedPorts);
        self.ctx.report(Reason::Draining, None, || {
            let seconds = lame_duck.as_secs();
            format!(
                "shutting down in {seconds} s (lame_duck_sec), or when the last client has left: {why}; until then \
                 new clients are accepted"
            )
        });
        self.advance_shutdown();
    }

    /// Starts the drain itself, once.
    pub(super) fn begin_shutdown(&mut self, why: &str) {
        let now = self.ctx.time.now();
        if self.ctx.shutdown.stage >= Stage::Quiescing {
            return;
        }
        let quiesce = self.ctx.settings.limits.quiesce;
        enter_stage(&mut self.ctx, Stage::Quiescing, now.after(quiesce));
        self.ctx.shutdown.quiesces_from = now;
        self.fleets.queue_mut().stop_awaiting_workers(&mut self.ctx);
        self.ctx.out.push(Effect::StopAccept);
        // These will get no answer.
        let is_subscription =
            |request: &Request| request.verb() == KnownMethod::Listen && request.cancelled().is_none();
        let subscriptions = self.requests.all(&|request| is_subscription(request) && request.asker().is_some());
        let (pending, clients) = (self.ctx.clients.awaited() - subscriptions.len(), self.ctx.clients.len());
        self.ctx.report(Reason::Draining, None, || {
            let patience = match pending {
                0 => String::new(),
                _ => format!(", which have {} s (quiesce_sec); a second signal ends it at once", quiesce.as_secs()),
            };
            format!("shutting down: {why}; {clients} clients are connected, {pending} requests are pending{patience}")
        });
        for subscription in subscriptions {
            self.fail_request(subscription, Reason::ShuttingDown, SHUTS_DOWN);
        }
        self.advance_shutdown();
    }

    /// Advances as far as what is left allows.
    pub(super) fn advance_shutdown(&mut self) {
        let over = self.ctx.shutdown.deadline <= self.ctx.time.now();
        match self.ctx.shutdown.stage {
            Stage::LameDuck if over => self.begin_shutdown("lame_duck_sec is over"),
            Stage::LameDuck => self.recheck_alone(),
            Stage::Quiescing if over => self.terminate(),
            Stage::Quiescing => {
                self.close_silent();
                self.recheck_quiesced();
            }
            Stage::Terminating if self.ctx.workers.is_empty() => self.flush(),
            Stage::Terminating if over => self.kill(),
            Stage::Killing if over || self.ctx.workers.is_empty() => self.flush(),
            Stage::Flushing if over => {
                self.ctx.shutdown.deadline = Moment::NEVER;
                for client in self.ctx.clients.keys() {
                    report_unread(&mut self.ctx, client);
                    report_untaken(&mut self.ctx, client);
                    self.close_client(client, Close::Now, Reason::ShuttingDown);
                }
            }
            _ => {}
        }
        if self.ctx.shutdown.stage == Stage::Flushing && self.ctx.clients.is_empty() {
            self.ctx.shutdown.stage = Stage::Done;
            self.ctx.out.push(Effect::Done);
        } else {
            await_deadline(&mut self.ctx);
        }
    }

    fn terminate(&mut self) {
        let deadline = self.ctx.time.now().after(self.ctx.settings.limits.drain_timeout);
        enter_stage(&mut self.ctx, Stage::Terminating, deadline);
        self.ctx.shutdown.ends = deadline;
        for client in self.ctx.clients.keys() {
            self.ctx.end_throttle(client);
        }
        let left = self.ctx.workers.len();
        self.ctx.report(Reason::Draining, None, || format!("{left} workers are asked to stop"));
        for worker in self.ctx.workers.keys() {
            stop_worker(&mut self.ctx, worker);
        }
        self.advance_shutdown();
    }

    fn kill(&mut self) {
        let until = self.ctx.time.now().after(LAST_GRACE);
        enter_stage(&mut self.ctx, Stage::Killing, until);
        kill_workers(&mut self.ctx);
        self.advance_shutdown();
    }

    fn flush(&mut self) {
        let deadline = match self.ctx.shutdown.immediate {
            true => self.ctx.shutdown.ends,
            false => self.ctx.shutdown.ends.max(self.ctx.time.now().after(LAST_GRACE)),
        };
        enter_stage(&mut self.ctx, Stage::Flushing, deadline);
        self.close_clients();
        self.advance_shutdown();
    }

    fn close_clients(&mut self) {
        for client in self.ctx.clients.keys() {
            self.close_orderly(client, Reason::ShuttingDown, SHUTS_DOWN);
            // It may have been read until now because workers ran.
            self.ctx.wake_at(client.into(), self.ctx.time.now().after(Duration::from_nanos(1)));
        }
    }

    /// Closes clients that wait for nothing and were silent for a while. A request that crosses the end of the
    /// connection would be lost; so it is refused, and the grace begins anew.
    fn close_silent(&mut self) {
        let grace = self.ctx.settings.limits.drain_grace;
        for key in self.ctx.clients.keys() {
            let Some(client) = self.ctx.clients.get(key).filter(|client| client.phase() == Phase::Open) else {
                continue;
            };
            if awaits_something(&self.sessions, client) {
                continue;
            }
            let end = client.end();
            let silent_at = client.active_at().max(self.ctx.shutdown.quiesces_from).after(grace);
            // In the middle of a line, or with output to take, it is not done.
            let is_busy = end.stream.is_mid_line() || end.output.queued() > 0 || !end.gate.is_open();
            match is_busy {
                true => {
                    self.ctx.timers.arm(Timer::Drain, self.ctx.time.now().after(grace.max(graceful_close::SILENCE)))
                }
                false if silent_at > self.ctx.time.now() => self.ctx.timers.arm(Timer::Drain, silent_at),
                false => {
                    self.close_orderly(key, Reason::ShuttingDown, SHUTS_DOWN);
                    if let Some(client) = self.ctx.clients.get_mut(key) {
                        client.closing_mut().await_workers();
                    }
                }
            }
        }
    }

    /// Lines of a client were read, before which `refused` of its requests had been refused. If there are more now, and it
    /// waits for nothing, it is closed: each further request would be refused, too, and it is served elsewhere. Returns
    /// whether it is.
    pub(super) fn close_refused(&mut self, key: ClientKey, refused: u64) -> bool {
        let client = self.ctx.clients.get(key).filter(|client| client.phase() == Phase::Open);
        let is_done =
            |client: &Client| client.end().traffic.refused > refused && !awaits_something(&self.sessions, client);
        let closes = self.ctx.shutdown.refuses_requests() && client.is_some_and(is_done);
        if closes {
            self.close_orderly(key, Reason::ShuttingDown, SHUTS_DOWN);
        }
        closes
    }

    /// Ends the time of a lame duck that has had no client and no session for a while.
    fn recheck_alone(&mut self) {
        let (now, next) = (self.ctx.time.now(), self.fleets.admission().next_number());
        if !self.ctx.clients.is_empty() || self.sessions.iter().any(|(_, session)| session.is_working()) {
            self.ctx.shutdown.alone = None;
            return;
        }
        let since = match self.ctx.shutdown.alone {
            Some((since, number)) if number == next => since,
            _ => now,
        };
        self.ctx.shutdown.alone = Some((since, next));
        let over = since.after(ALONE);
        if over <= now {
            return self.begin_shutdown("no client is left");
        }
        self.ctx.timers.arm(Timer::Drain, over);
    }

    /// Advances when the last client has left, or is about to, and no session works.
    pub(super) fn recheck_quiesced(&mut self) {
        let is_open = |(_, client): (_, &Client)| client.phase() <= Phase::HalfClosed;
        let works = |(_, session): (_, &Session)| session.is_working();
        if self.ctx.shutdown.stage == Stage::Quiescing
            && !self.ctx.clients.iter().any(is_open)
            && !self.sessions.iter().any(works)
        {
            self.terminate();
        }
    }
}

/// Enters the next stage, which lasts until `deadline` at most.
fn enter_stage(ctx: &mut Ctx, stage: Stage, deadline: Moment) {
    (ctx.shutdown.stage, ctx.shutdown.deadline) = (stage, deadline);
    await_deadline(ctx);
}

fn await_deadline(ctx: &mut Ctx) {
    if ctx.shutdown.deadline > ctx.time.now() {
        ctx.timers.arm(Timer::Drain, ctx.shutdown.deadline);
    }
}

/// A client has got an answer: it may be its last one.
pub(super) fn watch_silence(ctx: &mut Ctx) {
    if ctx.shutdown.stage == Stage::Quiescing {
        // Without a grace it is checked in the next tick, not again in this one.
        let grace = ctx.settings.limits.drain_grace.max(Duration::from_nanos(1));
        ctx.timers.arm(Timer::Drain, ctx.time.now().after(grace));
    }
}

/// Whether a client has pending requests, or a session that works for it without one.
fn awaits_something(sessions: &Sessions, client: &Client) -> bool {
    let works = |session: &SessionKey| sessions.get(*session).is_some_and(|session| session.is_working());
    !client.end().asked.is_empty() || client.end().sessions.iter().any(works)
}
