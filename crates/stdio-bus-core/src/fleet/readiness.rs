//! Readiness as a load balancer sees it, by listener, by pool or in total; and listeners that are closed while no worker
//! could serve their new clients, for balancers that only connect. One that is full or paused stays open.
//!
//! A listener is ready if a message of a new client that names no pool would find a running worker, and there is room
//! for the client. A worker that is being started does not count, though messages for it would be kept; nor does a
//! worker on probation, whose predecessors have failed in a row, until it has answered or has run for some seconds:
//! otherwise a pool of crashing workers would attract clients with each of them. Nor does an unresponsive one (`health.rs`).
//!
//! A pool that starts on demand starts most of its workers for a line, and one that does not work shows that only then. So
//! after a worker has failed before any had answered since a request woke the pool, it is not ready for `restart_window`,
//! awake or asleep, or until one has answered.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::time::Duration;

use crate::ctx::Ctx;
use crate::eviction::{gives_up_at, has_detached_session};
use crate::fleet::Fleets;
use crate::fleet::pool::Pools;
use crate::index::{FleetId, ListenerId, PoolId};
use crate::peer::Moment;
use crate::peers::Workers;
use crate::port::Effect;
use crate::report::{Level, Reason, Report};
use crate::settings::Assignment;
use crate::shutdown::Stage;
use crate::view::View;
use crate::worker::Worker;

/// The result of a readiness check. Texts are for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// New clients are served.
    Ready,
    /// They are not, for this reason, and others are not served either.
    NotReady(String),
    /// All workers that run are unresponsive, and say nothing to anybody; what they have been asked may still be answered.
    Unresponsive(String),
    /// There is no room for them, for this reason; connected clients go on.
    Full(String),
    /// The operator has paused what would serve them; connected clients go on.
    Paused(String),
    /// The daemon shuts down; connected clients may finish.
    Draining,
}

/// A worker that has run this long without output counts as alive: most say nothing before they are asked, and a
/// process as such is no sign of life, since its program may end at once.
const FIRST_SIGN: Duration = Duration::from_secs(1);

impl Readiness {
    /// Whether new clients are served.
    pub fn is_ready(&self) -> bool {
        *self == Self::Ready
    }

    /// Why they are not, unless the daemon shuts down.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::NotReady(why) | Self::Unresponsive(why) | Self::Full(why) | Self::Paused(why) => Some(why),
            Self::Ready | Self::Draining => None,
        }
    }
}

/// Why new clients are not served.
enum Unready {
    /// Others are.
    Full(String),
    /// Others are, and new ones will be when the operator says so.
    Paused(String),
    /// Others may be: their workers are unresponsive.
    Unresponsive(String),
    /// Nobody is.
    Dead(String),
}

impl Unready {
    /// How much those clients can expect that are there.
    fn rank(&self) -> u8 {
        match self {
            Self::Full(_) | Self::Paused(_) => 2,
            Self::Unresponsive(_) => 1,
            Self::Dead(_) => 0,
        }
    }
}

fn full(why: String) -> Result<(), Unready> {
    Err(Unready::Full(why))
}

fn paused(what: &str) -> Result<(), Unready> {
    Err(Unready::Paused(format!("the operator has paused {what}")))
}

fn dead(why: String) -> Result<(), Unready> {
    Err(Unready::Dead(why))
}

/// One that serves suffices, then one that is full or paused; else the reason of the first one is returned. Beside one
/// that is paused, the others have to serve: why they do not is said as well.
fn any_or_first(serve: impl Iterator<Item = Result<(), Unready>>) -> Result<(), Unready> {
    let better = |first: Unready, next: Unready| {
        let (better, other) = if next.rank() > first.rank() { (next, first) } else { (first, next) };
        match (better, other) {
            (Unready::Paused(why), Unready::Dead(other) | Unready::Unresponsive(other)) => {
                Unready::Paused(format!("{why}, and {other}"))
            }
            (better, _) => better,
        }
    };
    serve.reduce(|first, next| first.or_else(|first| next.map_err(|next| better(first, next)))).unwrap_or(Ok(()))
}

/// All have to serve; the reason of the first one is returned that serves nobody, or else of the first one that is full or paused.
fn all_or_first(serve: impl Iterator<Item = Result<(), Unready>>) -> Result<(), Unready> {
    let worse = |first: Unready, next: Unready| if next.rank() < first.rank() { next } else { first };
    let both = |first: Result<(), Unready>, next: Result<(), Unready>| match (first, next) {
        (Err(first), Err(next)) => Err(worse(first, next)),
        (first, next) => first.and(next),
    };
    serve.reduce(both).unwrap_or(Ok(()))
}

/// `ends_sessions` if a new client needs no free slot where a session without a connection could be ended for it.
fn readiness_if(ctx: &Ctx, ends_sessions: bool, serves: impl FnOnce() -> Result<(), Unready>) -> Readiness {
    if ctx.shutdown.stage() != Stage::Running {
        return Readiness::Draining;
    }
    // The one client of stdio has its slot.
    let all_are_stdio = ctx.settings.listeners.iter().all(|listener| listener.stdio);
    let has_room = || ctx.clients.free_slots() > 0 || all_are_stdio || ends_sessions && has_detached_session(ctx);
    let slots = || match has_room() {
        true => Ok(()),
        false => full(format!("all {} connections are in use", ctx.clients.capacity())),
    };
    match all_or_first([slots(), serves()].into_iter()) {
        Ok(()) => Readiness::Ready,
        Err(Unready::Full(why)) => Readiness::Full(why),
        Err(Unready::Paused(why)) => Readiness::Paused(why),
        Err(Unready::Unresponsive(why)) => Readiness::Unresponsive(why),
        Err(Unready::Dead(why)) => Readiness::NotReady(why),
    }
}

impl Workers {
    /// Whether any such worker of a configured pool runs, owned or not, and is not on probation.
    fn pool_runs(&self, pool: PoolId, is_such: impl Fn(&Worker) -> bool) -> bool {
        self.iter().any(|(_, worker)| worker.fleet.pool == pool && worker.serves() && is_such(worker))
    }
}

fn listener_serves(fleets: &Fleets, ctx: &Ctx, listener: ListenerId) -> Result<(), Unready> {
    let most = ctx.settings.listeners[listener].max_connections.total;
    if let Some(most) = most.filter(|most| ctx.clients.admitted_count(Some(listener), None) >= *most) {
        return full(format!("all {most} connections of the listener are in use"));
    }
    if fleets.admission.is_paused(listener) {
        return paused("this listener");
    }
    let all = fleets.balancer[fleets.group_of_new(ctx, listener)].fleets();
    any_or_first(all.map(|fleet| pool_serves(&fleets.pools, ctx, fleet.pool)))
}

/// Whether a configured pool takes messages. With workers for clients of two eras those of one suffice.
fn pool_serves(pools: &Pools, ctx: &Ctx, pool: PoolId) -> Result<(), Unready> {
    if pools[pool].is_paused() {
        return paused(&format!("pool \"{}\"", ctx.settings.pools[pool].id));
    }
    pool_works(pools, ctx, pool)
}

/// The same, whether it is paused or not.
fn pool_works(pools: &Pools, ctx: &Ctx, pool: PoolId) -> Result<(), Unready> {
    let is_there = |fleet: &FleetId| !pools[*fleet].rests();
    any_or_first(pools.of(pool).filter(is_there).map(|fleet| fleet_serves(pools, ctx, fleet)))
}

fn fleet_serves(pools: &Pools, ctx: &Ctx, fleet: FleetId) -> Result<(), Unready> {
    let (here, settings) = (&pools[fleet], &ctx.settings.pools[fleet]);
    let workers = || here.workers_in_slots().filter_map(|worker| ctx.workers.get(worker));
    // A pool that may grow, or that lends its workers, has more slots than it keeps filled.
    let (id, slots) = (&settings.id, &here.slots[..here.kept_slots(ctx).max(settings.instances)]);
    let starts_for_each = settings.personal && pools.may_grow(ctx, fleet);
    let serves = workers().any(Worker::serves) || here.starts_on_demand(ctx, pools) || starts_for_each;
    let is_proved = |worker: &Worker| worker.serves() && worker.answering().has_answered();
    let has_failed = here.unready_until(ctx).is_some() && !workers().any(is_proved);
    if serves && !has_failed {
        return Ok(());
    }
    let out = slots.iter().filter(|slot| slot.is_out()).count();
    if here.is_asleep() {
        let what = match here.may_start_any(ctx) {
            true => "its last worker has failed".to_owned(),
            false => format!("the operator has taken {out} of {} out", slots.len()),
        };
        return dead(format!("pool \"{id}\" is asleep, and {what}"));
    }
    if serves {
        return dead(format!(
            "the last worker of pool \"{id}\" has failed before it had answered anything, and no other one has answered since"
        ));
    }
    if workers().any(Worker::is_asked) {
        return dead(format!("the first worker of pool \"{id}\" has not said yet which version of MCP it serves"));
    }
    if workers().any(|worker| worker.runs() && worker.is_unresponsive()) {
        let why = format!(
            "the workers of pool \"{id}\" say nothing although they owe answers (worker_silent_sec); see show waiting"
        );
        return Err(Unready::Unresponsive(why));
    }
    if workers().any(Worker::runs) {
        return dead(format!(
            "the workers of pool \"{id}\" have ended one after the other; those that run now have not answered yet"
        ));
    }
    let is_coming = workers().next().is_some();
    if settings.assignment == Assignment::Dedicated {
        if !is_coming && pools.is_full(ctx, fleet) {
            if pools[fleet].is_sound(ctx) && gives_up_at(ctx, fleet, None).is_some_and(|at| at <= ctx.time.now()) {
                return Ok(());
            }
            return full(format!("all {} workers of pool \"{id}\" are in use", settings.max_instances));
        }
        // Its spares were taken out: the next client gets one of its own.
        if !is_coming && slots.iter().any(|slot| slot.is_out()) && pools.may_grow(ctx, fleet) {
            return Ok(());
        }
        // The next spare is being started, and the others show that it will run.
        if is_coming
            && !has_failed
            && !slots.iter().any(|slot| slot.restarts.is_failing())
            && ctx.workers.pool_runs(fleet.pool, |_| true)
        {
            return Ok(());
        }
    }
    let given_up = slots.iter().filter(|slot| slot.restarts.is_given_up()).count();
    let failing = slots.iter().filter(|slot| slot.restarts.is_failing()).count();
    let what = match (given_up, failing) {
        (0, 0) if !is_coming && out > 0 => format!("the operator has taken {out} of {} out", slots.len()),
        (0, 0) if settings.personal => "those of the last clients ended soon".to_owned(),
        (0, 0) if is_coming => "the first one is being started".to_owned(),
        (0, 0) => "the next one is not started yet".to_owned(),
        (0, waiting) => format!("{waiting} of {} wait for their restart", slots.len()),
        (given_up, _) => format!("{given_up} of {} were given up", slots.len()),
    };
    let why = format!("no worker of pool \"{id}\" is running: {what}");
    // Clients that have their own worker go on.
    let is_owned = |worker: &Worker| worker.fleet == fleet && worker.owner().is_some() && worker.runs();
    let has_owned = ctx.workers.iter().any(|(_, worker)| is_owned(worker));
    if has_owned { full(why) } else { dead(why) }
}

/// Closes listeners that are configured to close while no worker could serve their new clients, and opens them again.
/// Only workers count: pauses and full listeners change nothing.
pub(crate) fn update_listeners(fleets: &mut Fleets, ctx: &mut Ctx) {
    ctx.workers_changed = false;
    if ctx.shutdown.refuses_requests() {
        return;
    }
    for listener in (0..ctx.settings.listeners.len()).map(ListenerId::at) {
        if !ctx.settings.listeners[listener].closes_when_not_ready {
            continue;
        }
        let group = &fleets.balancer[fleets.balancer.of_listener(listener)];
        let why_not = match any_or_first(group.fleets().map(|fleet| pool_works(&fleets.pools, ctx, fleet.pool))) {
            Err(Unready::Dead(why) | Unready::Unresponsive(why)) => Some(why),
            Ok(()) | Err(Unready::Full(_) | Unready::Paused(_)) => None,
        };
        let runs = why_not.is_none();
        let state = fleets.admission.listener_mut(listener);
        if core::mem::replace(&mut state.is_closed, !runs) != runs {
            continue;
        }
        // Before its first worker runs this is normal.
        let is_news = state.has_opened;
        state.has_opened |= runs;
        let (effect, reason) = match runs {
            true => (Effect::OpenListener(listener), Reason::ListenerOpened),
            false => (Effect::CloseListener(listener), Reason::ListenerClosed),
        };
        ctx.out.push(effect);
        ctx.emit_report(reason, || {
            let what =
                why_not.map_or_else(|| "open: new clients are served".to_owned(), |why| format!("closed: {why}"));
            let text = format!("listener {} is {what}", listener.index());
            let report = Report::new(reason, text);
            if is_news { report } else { report.at(Level::Debug) }
        });
    }
}

impl View<'_> {
    /// Whether every listener is ready.
    pub fn readiness(&self) -> Readiness {
        let is_there = |listener: &ListenerId| !self.bus.ctx.settings.listeners[*listener].is_gone;
        let listeners = (0..self.bus.ctx.settings.listeners.len()).map(ListenerId::at).filter(is_there);
        readiness_if(&self.bus.ctx, false, || {
            all_or_first(listeners.map(|listener| listener_serves(&self.bus.fleets, &self.bus.ctx, listener)))
        })
    }

    /// Whether startup is over: each pool has a worker with output or a second of running, or has failed, and not all
    /// have failed.
    pub fn has_started(&self, now: Moment) -> bool {
        let mut any_lives = false;
        let is_there = |pool: &PoolId| !self.bus.ctx.settings.pools[*pool].is_gone;
        let all_are_known = self.bus.fleets.pools.places().filter(is_there).all(|pool| {
            // A first sign of life.
            let shows = |worker: &Worker| {
                worker.end.stream.spoke_at().is_some() || now.since(worker.process.started()) >= FIRST_SIGN
            };
            let starts_late = self.bus.ctx.settings.pools[pool].personal || self.bus.fleets.pools.is_asleep(pool);
            let lives = self.bus.ctx.workers.pool_runs(pool, shows) || starts_late;
            any_lives |= lives;
            lives || self.bus.fleets.pools.slots_of(&self.bus.ctx, pool).all(|slot| slot.restarts.has_failed())
        });
        all_are_known && any_lives
    }

    /// Whether the listener with this index is ready; none if there is no such listener.
    pub fn listener_readiness(&self, listener: impl Into<ListenerId>) -> Option<Readiness> {
        let listener = listener.into();
        self.bus.ctx.settings.listener(listener).filter(|listener| !listener.is_gone)?;
        Some(readiness_if(&self.bus.ctx, self.bus.ctx.settings.listeners[listener].mcp, || {
            listener_serves(&self.bus.fleets, &self.bus.ctx, listener)
        }))
    }

    /// Whether a message of a new client that names the pool with this index is accepted; none without such a pool.
    pub fn pool_readiness(&self, pool: impl Into<PoolId>) -> Option<Readiness> {
        let pool = pool.into();
        self.bus.ctx.settings.pools.get(pool.index()).filter(|pool| !pool.is_gone)?;
        Some(readiness_if(&self.bus.ctx, false, || pool_serves(&self.bus.fleets.pools, &self.bus.ctx, pool)))
    }
}
