//! Readiness as a load balancer sees it, by listener, by pool or in total; and listeners that are closed while none of
//! their workers runs, for balancers that only connect.
//!
//! A listener is ready if a message of a new client that names no pool would find a running worker, and there is room
//! for the client. A worker that is being started does not count, though messages for it would be kept; nor does a
//! worker on probation, whose predecessors have failed in a row, until it has answered or has run for some seconds:
//! otherwise a pool of crashing workers would attract clients with each of them.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::time::Duration;

use super::Bus;
use super::peer::Moment;
use super::port::Effect;
use super::report::{Level, Reason, Report};
use super::settings::Assignment;
use super::shutdown::Stage;
use super::worker::Worker;

/// The result of a readiness check. Texts are for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// New clients are served.
    Ready,
    /// They are not, for this reason.
    NotReady(String),
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
}

/// One that serves suffices; else the reason of the first one is returned.
fn any_or_first(serve: impl Iterator<Item = Result<(), String>>) -> Result<(), String> {
    serve.reduce(|first, next| next.or(first)).unwrap_or(Ok(()))
}

impl Bus {
    /// Whether every listener is ready.
    pub fn readiness(&self) -> Readiness {
        let is_there = |listener: &usize| !self.settings.listeners[*listener].is_gone;
        let mut listeners = (0..self.settings.listeners.len()).filter(is_there);
        self.readiness_if(|| listeners.try_for_each(|listener| self.listener_serves(listener)))
    }

    /// Whether startup is over: each pool has a worker with output or a second of running, or has failed, and not all
    /// have failed.
    pub fn has_started(&self, now: Moment) -> bool {
        let mut any_lives = false;
        let is_there = |pool: &usize| !self.settings.pools[*pool].is_gone;
        let all_are_known = (0..self.supervisor.shown).filter(is_there).all(|pool| {
            // A first sign of life.
            let shows = |worker: &Worker| {
                worker.end.stream.spoke_at().is_some() || now.since(worker.facts.started) >= FIRST_SIGN
            };
            let lives = self.pool_runs(pool, shows);
            any_lives |= lives;
            lives || self.slots_of(pool).all(|slot| slot.restarts.has_failed())
        });
        all_are_known && any_lives
    }

    /// Whether the listener with this index is ready; none if there is no such listener.
    pub fn listener_readiness(&self, listener: usize) -> Option<Readiness> {
        self.settings.listeners.get(listener).filter(|listener| !listener.is_gone)?;
        Some(self.readiness_if(|| self.listener_serves(listener)))
    }

    /// Whether a message of a new client that names the pool with this index is accepted; none without such a pool.
    pub fn pool_readiness(&self, pool: usize) -> Option<Readiness> {
        self.settings.pools[..self.supervisor.shown].get(pool).filter(|pool| !pool.is_gone)?;
        Some(self.readiness_if(|| self.pool_serves(pool)))
    }

    fn readiness_if(&self, serves: impl FnOnce() -> Result<(), String>) -> Readiness {
        // The one client of stdio has its slot.
        let all_are_stdio = self.settings.listeners.iter().all(|listener| listener.stdio);
        if self.stage() != Stage::Running {
            Readiness::Draining
        } else if self.free_slots() == 0 && !all_are_stdio {
            Readiness::NotReady(format!("all {} connections are in use", self.most_clients()))
        } else {
            serves().map_or_else(Readiness::NotReady, |()| Readiness::Ready)
        }
    }

    fn listener_serves(&self, listener: usize) -> Result<(), String> {
        let most = self.settings.listeners[listener].max_connections.total;
        if let Some(most) = most.filter(|most| self.let_in(Some(listener), None) >= *most) {
            return Err(format!("all {most} connections of the listener are in use"));
        }
        let pools = self.balancer.groups[self.balancer.of_listeners[listener]].pools();
        any_or_first(pools.map(|pool| self.pool_serves(pool)))
    }

    /// Whether a configured pool takes messages. With workers for clients of two eras those of one suffice.
    fn pool_serves(&self, pool: usize) -> Result<(), String> {
        let is_there = |side: &usize| !self.supervisor.pools[*side].side.is_dormant;
        any_or_first(self.sides_of(pool).filter(is_there).map(|side| self.side_serves(side)))
    }

    fn side_serves(&self, pool: usize) -> Result<(), String> {
        let (here, settings) = (&self.supervisor.pools[pool], &self.settings.pools[pool]);
        let (id, slots) = (&settings.id, &here.slots);
        let workers = || slots.iter().filter_map(|slot| self.workers.get(slot.worker?));
        if workers().any(Worker::serves) {
            return Ok(());
        }
        if workers().any(Worker::is_asked) {
            return Err(format!("the first worker of pool \"{id}\" has not said yet which version of MCP it serves"));
        }
        if workers().any(Worker::runs) {
            return Err(format!(
                "the workers of pool \"{id}\" have ended one after the other; those that run now have not answered yet"
            ));
        }
        let is_coming = workers().next().is_some();
        if settings.assignment == Assignment::Dedicated {
            if !is_coming && self.is_full(pool) {
                return Err(format!("all {} workers of pool \"{id}\" are in use", settings.max_instances));
            }
            // The next spare is being started, and the others show that it will run.
            if is_coming && !slots.iter().any(|slot| slot.restarts.is_failing()) && self.pool_runs(pool, |_| true) {
                return Ok(());
            }
        }
        let given_up = slots.iter().filter(|slot| slot.restarts.is_given_up()).count();
        let failing = slots.iter().filter(|slot| slot.restarts.is_failing()).count();
        let what = match (given_up, failing) {
            (0, 0) if is_coming => "the first one is being started".to_owned(),
            (0, 0) => "the next one is not started yet".to_owned(),
            (0, waiting) => format!("{waiting} of {} wait for their restart", slots.len()),
            (given_up, _) => format!("{given_up} of {} were given up", slots.len()),
        };
        Err(format!("no worker of pool \"{id}\" is running: {what}"))
    }

    /// Closes listeners that are configured to close while no worker of their pools runs, and opens them again.
    pub(super) fn update_listeners(&mut self) {
        self.supervisor.has_changed = false;
        if self.shutdown.refuses_requests() {
            return;
        }
        for listener in 0..self.settings.listeners.len() {
            if !self.settings.listeners[listener].closes_when_not_ready {
                continue;
            }
            let runs = self.balancer.groups[self.balancer.of_listeners[listener]]
                .pools()
                .any(|pool| self.pool_runs(pool, |_| true));
            let state = &mut self.admission.listeners[listener];
            if core::mem::replace(&mut state.is_closed, !runs) != runs {
                continue;
            }
            // Before its first worker runs this is normal.
            let is_news = state.has_opened;
            state.has_opened |= runs;
            let (effect, reason, what) = match runs {
                true => (Effect::OpenListener(listener), Reason::ListenerOpened, "open: a worker"),
                false => (Effect::CloseListener(listener), Reason::ListenerClosed, "closed: no worker"),
            };
            self.out.push(effect);
            self.tell(reason, || {
                let text = format!("listener {listener} is {what} of its pools is running");
                let report = Report::new(reason, text);
                if is_news { report } else { report.at(Level::Debug) }
            });
        }
    }

    /// Whether any such worker of a configured pool runs, owned or not, and is not on probation.
    fn pool_runs(&self, pool: usize, is_such: impl Fn(&Worker) -> bool) -> bool {
        self.workers.iter().any(|(_, worker)| worker.name.pool == pool && worker.serves() && is_such(worker))
    }
}
