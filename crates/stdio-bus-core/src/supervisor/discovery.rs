//! What era of MCP the command of a pool speaks. A worker is pinned to an era by the first request that it gets. So the first
//! worker of a pool that a door for MCP offers is asked `server/discover` by the bus, once it runs. A result means that it
//! serves 2026-07-28; an error, silence for a while, or its end, that it does not. What was learned holds for as long as the
//! daemon runs.
//!
//! Some servers are pinned by that question, too (the official Python SDK's), and refuse `initialize` from then on. So a
//! worker that has answered it with a result, or is late with that, serves no clients of earlier versions: another one is
//! started for them, and it leaves. While it is late it is still listened to.
//!
//! Some old servers end with a request before `initialize`. So no line of a client goes to the worker until it has
//! answered, and that it ends is no failure. It may have ended for another reason: the next one is asked again, and where
//! that ends, too, the one behind it is not. If even that one ends before it has answered anything, it was not the question:
//! the next one is asked once more.

use alloc::format;
use core::time::Duration;

use super::tenure::Wear;
use crate::Bus;
use crate::id::Id;
use crate::peer::{Moment, Peer, WorkerKey};
use crate::port::Effect;
use crate::report::Reason;
use crate::settings::Era;

/// A worker that has said nothing for so long since its start speaks no 2026-07-28.
const SILENT_FOR: Duration = Duration::from_secs(5);
/// So many workers in a row that end when they are asked mean that their command speaks no 2026-07-28.
const MOST_ENDS: u32 = 2;

/// What is known of the era of a pool's command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolEra {
    /// It was not asked yet, or has not answered.
    #[default]
    Unknown,
    /// It does not answer `server/discover`: it is for clients that begin with `initialize`.
    Legacy,
    /// It answers `server/discover`: it serves clients of 2026-07-28, and usually others.
    Modern,
}

/// What is known of a pool's command, and which worker is asked.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    pub era: PoolEra,
    /// The command of which that is known ([`Pool::generation`](crate::settings::Pool::generation)).
    of: u32,
    asked: Option<WorkerKey>,
    /// How many workers in a row have ended when they were asked, and with which command.
    ends: (u32, u32),
}

impl Discovery {
    /// Whether a worker with this command is to be asked.
    fn wants_to_know(&self, command: u32) -> bool {
        let is_known = || self.era != PoolEra::Unknown && self.of == command;
        self.asked.is_none()
            && match self.ends_of(command) {
                0 => !is_known(),
                ends => ends < MOST_ENDS,
            }
    }

    /// How many workers in a row with this command have ended when they were asked.
    fn ends_of(&self, command: u32) -> u32 {
        if self.ends.1 == command { self.ends.0 } else { 0 }
    }
}

/// Whether a worker is asked for its era.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Question {
    /// It is not, or has answered.
    #[default]
    None,
    /// It is, or will be once it runs: nothing else is said to it before.
    Open,
    /// It did not answer in time. It may yet.
    Late,
    /// It has answered with a result.
    Answered,
}

/// The id of the question to a worker with this number. The bus makes no other one that begins so, and until the answer
/// has come, or is late, no client's request reaches the worker.
fn id_of(number: u32) -> alloc::string::String {
    format!("\"stdio-bus/discover/{number}\"")
}

fn question(number: u32) -> alloc::string::String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"server/discover\",\"params\":{{\"_meta\":{{\
         \"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",\
         \"io.modelcontextprotocol/clientCapabilities\":{{}},\
         \"io.modelcontextprotocol/clientInfo\":{{\"name\":\"stdio-bus\",\"version\":\"{}\"}}}}}}}}\n",
        id_of(number),
        env!("CARGO_PKG_VERSION")
    )
}

impl Bus {
    /// A worker is being started that may get a slot: it is asked when it runs, if its command's era is not known.
    pub(super) fn choose_to_ask(&mut self, key: WorkerKey) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        let Some(discovery) = &mut self.supervisor.pools[worker.name.pool].discovery else { return };
        if discovery.wants_to_know(worker.tenure.generation()) {
            discovery.asked = Some(key);
            worker.answering.set_question(Question::Open);
        }
    }

    /// A worker runs: it is asked, if it was chosen for that.
    pub(super) fn ask_era(&mut self, key: WorkerKey) {
        let Some(worker) = self.workers.get(key).filter(|worker| worker.is_asked()) else { return };
        let line = question(worker.name.incarnation);
        self.send(key.into(), line.as_bytes());
        self.wake_at(key.into(), self.time.now().after(SILENT_FOR));
    }

    /// Takes a worker's answer to the question, if this is one: the request itself is none, and so is an error. Says whether
    /// it is.
    pub(crate) fn take_era(&mut self, key: WorkerKey, id: &Id, is_result: bool) -> bool {
        let Some(worker) = self.workers.get_mut(key) else { return false };
        if !matches!(worker.answering.question(), Question::Open | Question::Late)
            || Id::parse(id_of(worker.name.incarnation).as_bytes()).as_ref() != Ok(id)
        {
            return false;
        }
        self.supervisor.has_changed |= worker.answering.answers(false);
        let (answered, era) = match is_result {
            true => (Question::Answered, PoolEra::Modern),
            false => (Question::None, PoolEra::Legacy),
        };
        self.stop_asking(key, answered, era);
        self.notice_leaving(key);
        true
    }

    /// Gives up waiting for an answer. Gives when to look again.
    pub(super) fn tick_question(&mut self, key: WorkerKey) -> Option<Moment> {
        let worker = self.workers.get(key).filter(|worker| worker.is_asked() && worker.process.has_run())?;
        let due = worker.process.started().after(SILENT_FOR);
        if due > self.time.now() {
            return Some(due);
        }
        self.stop_asking(key, Question::Late, PoolEra::Legacy);
        None
    }

    /// The workers of a side that serves earlier versions are none that the question may have pinned to 2026-07-28.
    pub(crate) fn dismiss_asked(&mut self, pool: usize) {
        let here = &self.supervisor.pools[pool];
        if here.side.era != Era::Legacy || !here.side.is_used {
            return;
        }
        for worker in self.workers.values_mut().filter(|worker| worker.pool == pool && worker.slot.is_some()) {
            if worker.answering.may_be_pinned() {
                worker.tenure.wear(Wear::Asked);
            }
        }
        self.retire_those(pool, |_, worker| worker.answering.may_be_pinned());
        self.fill_slots(pool);
    }

    /// A worker has answered, or is late.
    fn stop_asking(&mut self, key: WorkerKey, question: Question, era: PoolEra) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        worker.answering.set_question(question);
        let (pool, of) = (worker.name.pool, worker.tenure.generation());
        if let Some(discovery) = &mut self.supervisor.pools[pool].discovery
            && discovery.asked.take_if(|asked| *asked == key).is_some()
        {
            discovery.ends = (0, 0);
        }
        self.learn_era(pool, of, era);
    }

    /// A worker has gone that was to be asked, or was asked and has not answered: the next one may be. `pool` is what people
    /// know it by, and `of` its command.
    pub(super) fn end_question(&mut self, pool: usize, of: u32, was_its_end: bool) {
        let Some(discovery) = &mut self.supervisor.pools[pool].discovery else { return };
        discovery.asked = None;
        if was_its_end {
            discovery.ends = (discovery.ends_of(of) + 1, of);
            // Of a new command nothing follows for those that run before it has settled.
            if discovery.era == PoolEra::Unknown || discovery.of == of {
                self.judge_ends(pool, of);
            }
        }
    }

    /// A worker that was not asked has ended before it has answered anything: its command ends without a question as well.
    pub(super) fn doubt_ends(&mut self, pool: usize, of: u32) {
        if let Some(discovery) = &mut self.supervisor.pools[pool].discovery
            && discovery.ends_of(of) == MOST_ENDS
        {
            discovery.ends.0 = MOST_ENDS - 1;
        }
    }

    /// If its workers have ended whenever they were asked, a command serves no clients of 2026-07-28.
    pub(super) fn judge_ends(&mut self, pool: usize, of: u32) {
        if self.discovery(pool).is_some_and(|discovery| discovery.ends_of(of) >= MOST_ENDS) {
            self.learn_era(pool, of, PoolEra::Legacy);
        }
    }

    /// The era of a pool's command is known. Only an answer that comes late changes it again.
    fn learn_era(&mut self, pool: usize, of: u32, era: PoolEra) {
        // Its workers take lines now, or it is known that clients of 2026-07-28 get none.
        self.roll_soon();
        let Some(discovery) = &mut self.supervisor.pools[pool].discovery else { return };
        let is_another = core::mem::replace(&mut discovery.of, of) != of;
        let is_news = discovery.era != era && (discovery.era != PoolEra::Modern || is_another);
        let before = if is_news { core::mem::replace(&mut discovery.era, era) } else { era };
        // Before those who wait are given what has been asked.
        self.dismiss_asked(pool);
        if !is_news {
            return;
        }
        if before == PoolEra::Modern {
            self.end_modern_side(pool);
        }
        self.out.push(Effect::Discovered { pool });
        let id = &self.settings.pools[pool].id;
        let text = match era {
            PoolEra::Modern => format!("the command of pool \"{id}\" serves clients of MCP 2026-07-28"),
            _ => format!("the command of pool \"{id}\" serves no clients of MCP 2026-07-28, but earlier ones"),
        };
        self.report(Reason::EraKnown, None, || text);
        for side in self.sides_of(pool) {
            self.stop_awaiting_workers_of(side);
        }
        self.give_turns();
    }

    /// When the last of those workers of a group that are asked has answered at the latest.
    pub(super) fn questions_end(&self, group: usize) -> Option<Moment> {
        let pools = self.balancer.groups[group].pools();
        let asked = pools.filter_map(|pool| {
            let shown = self.supervisor.pools[pool].side.shown_as;
            let worker = self.workers.get(self.discovery(shown)?.asked?)?;
            Some(worker.process.started().after(SILENT_FOR))
        });
        asked.max()
    }

    /// Whether a worker of a pool is asked for its era, or will be when it runs.
    pub fn asks_era(&self, pool: usize) -> bool {
        self.discovery(pool).is_some_and(|discovery| discovery.asked.is_some())
    }

    fn discovery(&self, pool: usize) -> Option<&Discovery> {
        self.supervisor.pools.get(pool)?.discovery.as_ref()
    }

    /// What is known of the era of a pool's command.
    pub fn pool_era(&self, pool: usize) -> PoolEra {
        self.discovery(pool).map_or(PoolEra::Unknown, |discovery| discovery.era)
    }

    /// Panics if what is known of questions disagrees.
    pub(crate) fn check_questions(&self) {
        for (key, worker) in self.workers.iter() {
            let is_chosen = self.discovery(worker.name.pool).is_some_and(|discovery| discovery.asked == Some(key));
            assert_eq!(worker.is_asked(), is_chosen, "a worker that is asked is the one that is waited for");
            let is_nobodys = worker.owner.is_none() && worker.end.unanswered.count() == 0;
            assert!(!worker.is_asked() || is_nobodys, "nothing is said to a worker that is asked");
        }
        let asked = self.supervisor.pools.iter().filter_map(|pool| pool.discovery.as_ref()?.asked);
        for worker in asked {
            assert!(self.peer_end(Peer::Worker(worker)).is_some(), "a worker that is asked lives");
        }
    }
}
