//! Discovers the MCP era of a pool's command with `server/discover`. A worker is pinned to an era by its first request.
//! So the bus sends `server/discover` to the first worker of a pool that an MCP listener offers, once it runs. A result
//! means that it serves 2026-07-28; an error, silence for a while, or its end, that it does not. The result is valid
//! until the daemon ends.
//!
//! Clients of earlier versions need not know it. So where they have come before it was known, a worker for them is not asked:
//! the first client of 2026-07-28 has one asked in the other fleet, beside them.
//!
//! Some servers are pinned by that request, too (the official Python SDK's), and refuse `initialize` from then on. So a
//! worker that has answered it with a result, or is late with that, serves no clients of earlier versions: another one
//! is started for them, and it is stopped. While it is late it is still read.
//!
//! Some old servers exit on a request before `initialize`. So no client's line is sent to the worker until it has
//! answered, and its exit is not a failure. It may have exited for another reason: the next one is asked again, and if
//! that exits, too, the one after it is not. If even that one exits before it has answered anything, the request was
//! not the reason: the next one is asked once more.

use alloc::vec::Vec;
use core::time::Duration;

use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::fleet::balancer::Group;
use crate::fleet::eras::protocol::MODERN;
use crate::fleet::lifetime::RecycleReason;
use crate::fleet::pool::Pools;
use crate::fleet::rollout::notice_end_of_work;
use crate::id::Id;
use crate::index::{FleetId, PoolId};
use crate::peer::{Moment, WorkerKey};
use crate::peers::Workers;
use crate::port::Effect;
use crate::reply;
use crate::report::Reason;
use crate::settings::Era;
use crate::view::View;
use crate::worker::Worker;

/// A worker that was silent for this long after its start does not serve 2026-07-28.
const SILENT_FOR: Duration = Duration::from_secs(5);
/// If this many workers in a row exit when asked, their command does not serve 2026-07-28.
const MOST_ENDS: u32 = 2;

/// How the era of a command is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Known {
    /// A worker has answered `server/discover`.
    #[default]
    Answered,
    /// The worker that was asked has said nothing yet: it may be slow.
    Silent,
    /// Workers have ended before they answered: the command may not work at all.
    Ended,
}

/// The state of a pool's discovery.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    /// The era of the command: [`Era::Modern`] if it answers `server/discover`, and then it usually serves clients of
    /// either, else [`Era::Legacy`]; none if it was not asked yet, or has not answered.
    pub(in crate::fleet) era: Option<Era>,
    /// How that is known.
    known: Known,
    /// The command that it is known of ([`Pool::generation`](crate::settings::Pool::generation)).
    of: u32,
    /// How many workers in a row have exited when asked, or late after others, and with which command.
    ends: (u32, u32),
}

impl Discovery {
    /// Whether a worker with this command is to be asked.
    fn wants_to_know(&self, command: u32) -> bool {
        match self.ends_of(command) {
            0 => self.era.is_none() || self.of != command,
            ends => ends < MOST_ENDS,
        }
    }

    /// How many workers in a row with this command have exited when asked.
    fn ends_of(&self, command: u32) -> u32 {
        if self.ends.1 == command { self.ends.0 } else { 0 }
    }
}

/// The state of a worker's `server/discover`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ProbeState {
    /// It is not asked, or has answered with an error.
    #[default]
    None,
    /// It is asked, or will be once it runs: it gets nothing else before.
    Open,
    /// It did not answer in time. It still may.
    Late,
    /// It has answered with a result.
    Answered,
}

impl ProbeState {
    /// Whether it may have pinned the worker to 2026-07-28.
    pub(crate) fn may_have_pinned(&self) -> bool {
        matches!(self, ProbeState::Late | ProbeState::Answered)
    }
}

/// The id of the request to a worker with this number. The bus makes no other id that begins like this, and until the
/// answer has arrived, or is late, no client's request reaches the worker.
fn id_of(number: u32) -> alloc::string::String {
    format!("\"stdio-bus/discover/{number}\"")
}

/// A `server/discover` with this id, a JSON token, as a line.
pub(crate) fn discover(id: &[u8]) -> Vec<u8> {
    let params = format!(
        "{{\"_meta\":{{\
         \"io.modelcontextprotocol/protocolVersion\":\"{MODERN}\",\
         \"io.modelcontextprotocol/clientCapabilities\":{{}},\
         \"io.modelcontextprotocol/clientInfo\":{{\"name\":\"stdio-bus\",\"version\":\"{}\"}}}}}}",
        env!("CARGO_PKG_VERSION")
    );
    reply::call(Some(id), b"server/discover", Some(params.as_bytes()))
}

/// What is learned of the era of a pool's command.
pub(crate) struct Learned {
    pool: PoolId,
    era: Era,
    known: Known,
    /// It is another era than was known `before`, or the first.
    is_news: bool,
    before: Option<Era>,
}

impl Group {
    /// By when the last worker of a group that is being asked will have answered or be late.
    pub(crate) fn questions_end(&self, ctx: &Ctx) -> Option<Moment> {
        // Clients of earlier versions wait for none that is asked for others alone.
        let is_awaited = |fleet: FleetId, asked: &Worker| fleet.era == Era::Modern || asked.fleet == fleet;
        let asked = |fleet: FleetId| ctx.workers.asked_in(fleet.pool).filter(|asked| is_awaited(fleet, asked));
        self.fleets().filter_map(|fleet| Some(asked(fleet)?.process.started().after(SILENT_FOR))).max()
    }
}

impl Fleets {
    /// Takes a worker's answer to `server/discover`, if this is one: an echo counts as no result, and neither does an
    /// error. Returns whether it is one.
    pub(crate) fn take_era(&mut self, ctx: &mut Ctx, key: WorkerKey, id: &Id, is_result: bool) -> bool {
        let Some(worker) = ctx.workers.get_mut(key) else { return false };
        if !matches!(worker.question, ProbeState::Open | ProbeState::Late)
            || Id::parse(id_of(worker.name.incarnation).as_bytes()).as_ref() != Ok(id)
        {
            return false;
        }
        ctx.workers_changed |= worker.answering.answers(false);
        // Its command may have been replaced, and the next worker is asked, or was.
        if worker.process.is_unwanted() {
            return true;
        }
        let (answered, era) = match is_result {
            true => (ProbeState::Answered, Era::Modern),
            false => (ProbeState::None, Era::Legacy),
        };
        let learned = self.pools.stop_asking(ctx, key, answered, era);
        self.follow_era(ctx, learned);
        notice_end_of_work(ctx, key);
        true
    }

    /// Stops waiting for an answer. Returns when to check again.
    pub(crate) fn tick_question(&mut self, ctx: &mut Ctx, key: WorkerKey) -> Option<Moment> {
        let worker = ctx.workers.get(key).filter(|worker| worker.may_show_its_era() && worker.has_run())?;
        let due = worker.process.started().after(SILENT_FOR);
        if due > ctx.time.now() {
            return Some(due);
        }
        let learned = self.pools.stop_asking(ctx, key, ProbeState::Late, Era::Legacy);
        self.follow_era(ctx, learned);
        None
    }

    /// Dismisses the workers of a fleet for earlier versions that the request may have pinned to 2026-07-28.
    pub(crate) fn dismiss_asked(&mut self, ctx: &mut Ctx, fleet: FleetId) {
        if fleet.era != Era::Legacy || !self.pools[fleet].is_used() {
            return;
        }
        self.pools.retire_those(ctx, fleet, Some(RecycleReason::Asked), |_, worker| worker.question.may_have_pinned());
        self.fill_slots(ctx, fleet);
    }

    /// What was learned of the era of a pool's command takes effect.
    pub(crate) fn follow_era(&mut self, ctx: &mut Ctx, learned: Option<Learned>) {
        let Some(Learned { pool, era, known, is_news, before }) = learned else { return };
        // Before the waiting clients are given workers that were asked.
        self.dismiss_asked(ctx, pool.of(Era::Legacy));
        if !is_news {
            return;
        }
        if before == Some(Era::Modern) {
            self.end_modern_fleet(ctx, pool, None);
        } else if era == Era::Legacy && Era::BOTH.iter().all(|era| !self.pools[pool.of(*era)].rests()) {
            // It was asked beside those that serve clients of earlier versions.
            self.end_modern_fleet(ctx, pool, Some(RecycleReason::Asked));
        }
        ctx.out.push(Effect::Discovered { pool });
        let id = &ctx.settings.pools[pool].id;
        let text = match (era, known) {
            (Era::Modern, _) => format!("the command of pool \"{id}\" serves clients of MCP {MODERN}"),
            (Era::Legacy, Known::Answered) => {
                format!("the command of pool \"{id}\" serves no clients of MCP {MODERN}, but earlier ones")
            }
            (Era::Legacy, Known::Silent) => format!(
                "the command of pool \"{id}\" has not answered server/discover within {} s: until it does, it is treated as \
                 not supporting MCP {MODERN}",
                SILENT_FOR.as_secs()
            ),
            (Era::Legacy, Known::Ended) => format!(
                "workers of pool \"{id}\" have ended {MOST_ENDS} times without an answer to server/discover: the command \
                 is treated as not supporting MCP {MODERN}, if it works at all"
            ),
        };
        ctx.report(Reason::EraKnown, None, || text);
        for fleet in self.pools.of(pool) {
            self.queue.stop_awaiting_of(ctx, &self.balancer, fleet);
        }
        self.give_turns(ctx);
    }
}

impl Pools {
    /// A worker gets a slot: it is asked, unless lines of clients of earlier versions wait for it. These need not know what
    /// else the command serves, and it is asked when somebody wants to know.
    pub(crate) fn choose_to_ask_in_slot(&self, ctx: &mut Ctx, key: WorkerKey) {
        let is_for_lines = |fleet: FleetId| fleet.era == Era::Legacy && self[fleet].is_used();
        if !ctx.workers.fleet_of(key).is_some_and(is_for_lines) {
            self.choose_to_ask(ctx, key);
        }
    }

    /// A worker that may get a slot is being started: it is asked once it runs, if its command's era is unknown.
    pub(crate) fn choose_to_ask(&self, ctx: &mut Ctx, key: WorkerKey) {
        let Some(pool) = ctx.workers.fleet_of(key).map(|fleet| fleet.pool).filter(|pool| !ctx.workers.asks_era(*pool))
        else {
            return;
        };
        let (discovery, worker) = (&self[pool].discovery, ctx.workers.get_mut(key));
        if let (Some(discovery), Some(worker)) = (discovery, worker)
            && discovery.wants_to_know(worker.lifetime.generation())
        {
            worker.question = ProbeState::Open;
        }
    }

    fn discovery(&self, pool: PoolId) -> Option<&Discovery> {
        self.get(pool)?.discovery.as_ref()
    }

    /// The era of a pool's command, if known: [`Era::Modern`] if it answers `server/discover`, and serves clients of
    /// 2026-07-28, and usually others. Where workers are for one client each it does not matter.
    pub(crate) fn pool_era(&self, ctx: &Ctx, pool: PoolId) -> Option<Era> {
        if ctx.settings.pools.get(pool.index())?.personal {
            return Some(Era::Legacy);
        }
        let discovery = self.discovery(pool)?;
        // What another command served, which was replaced while the pool was asleep, does not hold for this one.
        discovery.era.filter(|era| *era == Era::Modern || !self.was_replaced_asleep(pool))
    }

    /// A pool is woken: what was not served by a command that was replaced meanwhile is asked again.
    pub(crate) fn forget_old_era(&mut self, pool: PoolId) {
        let is_old = self.was_replaced_asleep(pool);
        if let Some(discovery) = self[pool].discovery.as_mut().filter(|_| is_old) {
            // One that served more is known to be another one when the next has answered.
            discovery.era = discovery.era.filter(|era| *era == Era::Modern);
        }
    }

    /// Whether the command of a pool is another one than was asked, since it was replaced while the pool was asleep.
    fn was_replaced_asleep(&self, pool: PoolId) -> bool {
        let Some(of) = self.discovery(pool).map(|discovery| discovery.of) else { return false };
        self.is_asleep(pool) && self.of(pool).any(|fleet| self[fleet].was_replaced_asleep(of))
    }

    /// A worker has answered, or is late.
    fn stop_asking(&mut self, ctx: &mut Ctx, key: WorkerKey, question: ProbeState, era: Era) -> Option<Learned> {
        let worker = ctx.workers.get_mut(key)?;
        worker.question = question;
        let (fleet, of) = (worker.fleet, worker.lifetime.generation());
        let pool = fleet.pool;
        self.offer(ctx, fleet);
        if let Some(discovery) = &mut self[pool].discovery {
            discovery.ends = match (question, discovery.ends_of(of)) {
                (ProbeState::Late, 1..) => (MOST_ENDS, of),
                _ => (0, 0),
            };
        }
        let known = if question == ProbeState::Late { Known::Silent } else { Known::Answered };
        self.learn_era(ctx, pool, of, era, known)
    }

    /// A worker has ended. If it was asked and has not answered, the next one may be asked; if it was not asked, and has
    /// answered nothing, its command also exits without the request.
    pub(crate) fn end_question(&mut self, ctx: &mut Ctx, worker: &Worker) -> Option<Learned> {
        let (pool, of) = (worker.fleet.pool, worker.lifetime.generation());
        let discovery = self[pool].discovery.as_mut()?;
        let ends = discovery.ends_of(of);
        let was_in_vain = match worker.question {
            ProbeState::Open => !worker.process.was_killed(),
            ProbeState::Late => discovery.era == Some(Era::Legacy),
            ProbeState::None | ProbeState::Answered => false,
        };
        if was_in_vain {
            discovery.ends = (ends + 1, of);
            // A new command has no effect on running workers before it has settled.
            if discovery.era.is_none() || discovery.of == of {
                return self.conclude_from_exits(ctx, pool, of);
            }
        } else if ends == MOST_ENDS && !worker.answering.has_answered() {
            discovery.ends.0 = MOST_ENDS - 1;
        }
        None
    }

    /// If its workers have exited whenever they were asked, a command serves no clients of 2026-07-28.
    pub(crate) fn conclude_from_exits(&mut self, ctx: &mut Ctx, pool: PoolId, of: u32) -> Option<Learned> {
        if self.discovery(pool).is_some_and(|discovery| discovery.ends_of(of) >= MOST_ENDS) {
            return self.learn_era(ctx, pool, of, Era::Legacy, Known::Ended);
        }
        None
    }

    /// The era of a pool's command is known. Only a late answer changes it again.
    fn learn_era(&mut self, ctx: &mut Ctx, pool: PoolId, of: u32, era: Era, known: Known) -> Option<Learned> {
        // Its workers take lines now, or clients of 2026-07-28 are known to get none.
        self.roll_out_soon(ctx);
        let discovery = self[pool].discovery.as_mut()?;
        let is_another = core::mem::replace(&mut discovery.of, of) != of;
        if discovery.era != Some(Era::Modern) || era == Era::Modern || is_another {
            discovery.known = known;
        }
        let is_news = discovery.era != Some(era) && (discovery.era != Some(Era::Modern) || is_another);
        let before = if is_news { discovery.era.replace(era) } else { Some(era) };
        Some(Learned { pool, era, known, is_news, before })
    }
}

/// A worker runs: it is asked, if it was chosen for that.
pub(crate) fn ask_era(ctx: &mut Ctx, key: WorkerKey) {
    let Some(worker) = ctx.workers.get(key).filter(|worker| worker.is_asked()) else { return };
    let line = discover(id_of(worker.name.incarnation).as_bytes());
    ctx.send(key.into(), &line);
    ctx.wake_at(key.into(), ctx.time.now().after(SILENT_FOR));
}

impl Workers {
    /// The id of the bus's own request that a worker has to answer before all others, or while it has no other.
    pub(crate) fn own_question(&self, key: WorkerKey) -> Option<Id> {
        let worker = self.get(key).filter(|worker| worker.end.to_answer.count() == 0)?;
        match worker.question {
            ProbeState::Open => Id::parse(id_of(worker.name.incarnation).as_bytes()).ok(),
            _ => worker.greeting.asked_by_bus().cloned(),
        }
    }

    /// Whether a worker of a pool is asked for its era, or will be once it runs.
    pub(crate) fn asks_era(&self, pool: PoolId) -> bool {
        self.asked_in(pool).is_some()
    }

    /// The worker of a pool that was sent `server/discover`, or will be. One that was asked to stop counts no more: another one
    /// may be asked.
    fn asked_in(&self, pool: PoolId) -> Option<&Worker> {
        let mut workers = self.iter().map(|(_, worker)| worker);
        workers.find(|worker| worker.fleet.pool == pool && worker.may_show_its_era())
    }
}

/// Panics if more than one worker of a pool is asked, or one that somebody uses.
pub(crate) fn check_questions(pools: &Pools, ctx: &Ctx) {
    let mut asked: Vec<PoolId> = Vec::new();
    for (_, worker) in ctx.workers.iter().filter(|(_, worker)| worker.may_show_its_era()) {
        let pool = worker.fleet.pool;
        assert!(!asked.contains(&pool) && pools.discovery(pool).is_some());
        asked.push(pool);
        let is_free = worker.owner().is_none() && worker.end.to_answer.count() == 0;
        assert!(is_free, "a worker that is asked gets nothing else");
    }
}

impl View<'_> {
    /// How the era of a pool's command is known.
    pub fn era_known(&self, pool: impl Into<PoolId>) -> Known {
        let pool = pool.into();
        self.bus.fleets.pools.discovery(pool).map_or(Known::Answered, |discovery| discovery.known)
    }
}
