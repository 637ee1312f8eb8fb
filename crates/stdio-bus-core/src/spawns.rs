//! Who gets the next worker of a dedicated pool: one process is started at a time, and the sources that clients come from
//! take turns, so that one that comes and goes a thousand times a second does not keep the others from theirs.
//!
//! A client whose turn is yet to come is not read: its line stays where it is. If it has gone by then, nothing is started
//! for it. Spares are started when no client waits whose turn could come. A source whose clients leave before their
//! workers have answered gets workers at a pace, spares too.
//!
//! Invariant: `wanted` has each client that waits for its turn, once; no worker is being started for it.

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::Bus;
use super::peer::{ClientKey, Moment, Peer, Source, WorkerKey};
use super::port::Effect;
use super::report::Reason;
use super::settings::Assignment;

/// A source whose clients leave before their workers have answered gets the next worker so long after the last one.
const PACE: Duration = Duration::from_millis(50);
/// So many sources are remembered for that.
const PACED: usize = 64;
/// Clients of one source that wait for their turns although they send no more: on TCP nobody can tell whether such a one
/// is still there.
const MOST_ENDED: usize = 16;
/// A client waits for its turn for so long.
const PATIENCE: Duration = Duration::from_secs(30);
/// A client that has waited for so long for the first answer of its own worker is told about.
const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// A client that waits for a worker of its own.
struct Wanted {
    client: ClientKey,
    group: usize,
    since: Moment,
    /// It sends no more, and may have gone.
    has_ended: bool,
}

/// See the top of the file.
#[derive(Default)]
pub(super) struct Spawns {
    /// Workers whose starts were not answered yet.
    under_way: usize,
    wanted: Vec<Wanted>,
    /// Sources that get workers at a pace, and when they got their last ones.
    paced: Vec<(Source, Moment)>,
}

impl Spawns {
    /// A start was asked for.
    pub(super) fn begin(&mut self) {
        self.under_way += 1;
    }

    /// A start was answered.
    pub(super) fn end(&mut self) {
        self.under_way -= 1;
    }

    /// Where a client stands among those that wait.
    fn place_of(&self, client: ClientKey) -> Option<usize> {
        self.wanted.iter().position(|wanted| wanted.client == client)
    }

    /// When the next worker may be started for a client of this source, if not now.
    fn waits_until(&self, now: Moment, source: Source) -> Option<Moment> {
        let last = self.paced.iter().find(|(paced, _)| *paced == source)?.1;
        Some(last.after(PACE)).filter(|at| *at > now)
    }

    /// When a source that gets workers at a pace got its last one.
    fn last_of(&mut self, source: Source) -> Option<&mut Moment> {
        self.paced.iter_mut().find(|(paced, _)| *paced == source).map(|(_, last)| last)
    }

    /// Clients of this source leave without their answers.
    fn slow_down(&mut self, now: Moment, source: Source, last: Moment) {
        self.paced.retain(|(_, last)| last.after(PACE) > now);
        if let Some(known) = self.last_of(source) {
            *known = last.max(*known);
        } else if self.paced.len() < PACED {
            self.paced.push((source, last));
        }
    }
}

impl Bus {
    /// A worker for a client of a dedicated group: a spare one, or one that is started for it. None if that is not its
    /// turn, or cannot be.
    pub(super) fn take_in_turn(&mut self, now: Moment, client: ClientKey, group: usize) -> Option<WorkerKey> {
        let from = self.clients.get(client)?;
        if from.refused_worker || self.spawns.waits_until(now, from.source).is_some() {
            return None;
        }
        let is_its_turn = self.has_spare(group) || self.may_start_at_once(now);
        if is_its_turn { self.take_dedicated(now, client, group) } else { None }
    }

    /// Lets a client wait for its turn with a line that needs a worker of its own. Says whether it waits.
    pub(super) fn await_turn(&mut self, now: Moment, client: ClientKey, group: usize) -> bool {
        if self.groups[group].assignment != Assignment::Dedicated
            || !(self.has_spare(group) || self.may_grow(now, group))
        {
            return false;
        }
        let Some(from) = self.clients.get_mut(client) else { return false };
        from.end.awaits_worker = true;
        let due = self.spawns.waits_until(now, from.source);
        self.spawns.wanted.push(Wanted { client, group, since: now, has_ended: false });
        self.check_at(due.unwrap_or(now.after(PATIENCE)));
        self.effects.push_back(Effect::Pause { peer: Peer::Client(client) });
        true
    }

    /// A client that is not read will send no more. If it waits for a worker it may have gone, and so may others of its
    /// source: only a few of them are waited with.
    pub(super) fn on_sends_no_more(&mut self, now: Moment, key: ClientKey) {
        let Some(source) = self.clients.get(key).map(|client| client.source) else { return };
        let Some(at) = self.spawns.place_of(key) else { return };
        self.spawns.wanted[at].has_ended = true;
        self.spawns.slow_down(now, source, now);
        self.check_at(now.after(PACE));
        let is_like = |wanted: &&Wanted| {
            wanted.has_ended && self.clients.get(wanted.client).is_some_and(|client| client.source == source)
        };
        if self.spawns.wanted.iter().filter(is_like).count() > MOST_ENDED {
            self.stop_wanting(at, true);
        }
    }

    /// Takes a client out of the list, and reads it again: with its turn, or to be refused.
    fn stop_wanting(&mut self, at: usize, is_refused: bool) {
        let client = self.spawns.wanted.remove(at).client;
        if let Some(from) = self.clients.get_mut(client) {
            from.end.awaits_worker = false;
            from.refused_worker = is_refused;
            self.read_again(Peer::Client(client));
        }
    }

    /// All who wait are looked at again.
    pub(super) fn stop_awaiting_turns(&mut self) {
        while !self.spawns.wanted.is_empty() {
            self.stop_wanting(0, false);
        }
    }

    /// A client that waits for its turn is being closed: nothing is started for it.
    pub(super) fn give_up_turn(&mut self, now: Moment, key: ClientKey) {
        let Some(at) = self.spawns.place_of(key) else { return };
        self.spawns.wanted.remove(at);
        if let Some(source) = self.clients.get(key).map(|client| client.source) {
            self.spawns.slow_down(now, source, now);
        }
    }

    /// A client leaves, or sends no more. If its own worker has answered nothing yet, its source gets the next one at a
    /// pace.
    pub(super) fn judge_source(&mut self, now: Moment, key: ClientKey) {
        let Some(client) = self.clients.get(key) else { return };
        let claimed = |worker: &WorkerKey| {
            let worker = self.workers.get(*worker).filter(|worker| worker.owner == Some(key))?;
            (!worker.answering.has_answered).then_some(worker.claimed)
        };
        if let Some(last) = client.assigned.iter().filter_map(|(_, worker)| claimed(worker)).max() {
            self.spawns.slow_down(now, client.source, last);
        }
    }

    /// A worker was taken or started for a client.
    pub(super) fn count_turn(&mut self, now: Moment, key: ClientKey) {
        let Some(client) = self.clients.get(key) else { return };
        self.sources.count_turn(client.source_use);
        if let Some(last) = self.spawns.last_of(client.source) {
            *last = now;
        }
        self.check_at(now.after(FIRST_ANSWER));
    }

    /// Whose turn it is: the source that has waited longest for one, and of its clients the first one that may still send.
    /// A spare can be taken while a worker is being started.
    fn next_turn_of(&self, now: Moment) -> Option<usize> {
        let turn = |(at, wanted): (usize, &Wanted)| {
            let client = self.clients.get(wanted.client)?;
            let may = (self.spawns.under_way == 0 || self.has_spare(wanted.group))
                && self.spawns.waits_until(now, client.source).is_none();
            may.then(|| (self.sources.turn(client.source_use), wanted.has_ended, at))
        };
        self.spawns.wanted.iter().enumerate().filter_map(turn).min().map(|(_, _, at)| at)
    }

    /// Whether a worker may be started for who does not wait: no other is, and no client that waits has its turn.
    pub(super) fn may_start_at_once(&self, now: Moment) -> bool {
        self.spawns.under_way == 0 && self.next_turn_of(now).is_none()
    }

    /// Gives turns; where no client has one, spares are started.
    pub(super) fn give_turns(&mut self, now: Moment) {
        while let Some(at) = self.next_turn_of(now) {
            let Wanted { client, group, .. } = self.spawns.wanted[at];
            if let Some(worker) = self.take_dedicated(now, client, group) {
                self.assign(client, group, worker);
            }
            self.stop_wanting(at, false);
        }
        for pool in 0..self.pools.len() {
            if self.settings.pools[pool].assignment == Assignment::Dedicated {
                self.fill_seats(now, pool);
            }
        }
    }

    /// Turns whose time has come, and those who have waited for too long.
    pub(super) fn tick_spawns(&mut self, now: Moment) {
        self.give_turns(now);
        while let Some(at) = self.spawns.wanted.iter().position(|wanted| wanted.since.after(PATIENCE) <= now) {
            self.stop_wanting(at, true);
        }
        let paced = |wanted: &Wanted| self.spawns.waits_until(now, self.clients.get(wanted.client)?.source);
        let due = self.spawns.wanted.iter().flat_map(|wanted| [paced(wanted), Some(wanted.since.after(PATIENCE))]);
        if let Some(due) = due.flatten().min() {
            self.check_at(due);
        }
    }

    /// Tells of a client that waits for the first answer of its own worker. Gives when to look again.
    pub(super) fn tick_first_answer(&mut self, now: Moment, key: WorkerKey) -> Option<Moment> {
        let worker = self.workers.get(key).filter(|worker| worker.owner.is_some() && !worker.told_of_wait)?;
        let (Some(owner), due) = (worker.owner, worker.claimed.after(FIRST_ANSWER)) else { return None };
        if due > now {
            return Some(due);
        }
        let (started, claimed) = (worker.started, worker.claimed);
        let waits = self.starts_for(key).is_some();
        self.workers.get_mut(key)?.told_of_wait = true;
        if waits {
            self.report_request(now, Reason::WorkerAwaited, [Some(owner.into()), Some(key.into())], || {
                let (waited, ran) = (now.since(claimed).as_secs_f32(), claimed.since(started).as_secs_f32());
                let text = format!(
                    "a client has waited {waited:.1} s for the first answer of its own worker, which had run for {ran:.1} s \
                     before; with more instances spares are warm"
                );
                (None, text)
            });
        }
        None
    }

    /// The client that waits for the first answer of a worker of its own, which may still be starting.
    pub(super) fn starts_for(&self, key: WorkerKey) -> Option<ClientKey> {
        let worker = self.workers.get(key)?;
        let waits = !worker.answering.has_answered && !worker.end.to_answer.is_empty() && worker.takes_messages();
        worker.owner.filter(|_| waits)
    }

    /// Since when a client waits for its turn, and in which group.
    pub(super) fn awaits_turn(&self, key: ClientKey) -> Option<(usize, Moment)> {
        let wanted = &self.spawns.wanted[self.spawns.place_of(key)?];
        Some((wanted.group, wanted.since))
    }

    /// Clients that wait for their turns, or for the first answers of their own workers.
    pub(super) fn awaiting_workers(&self) -> usize {
        let starting = self.workers.iter().filter(|(key, _)| self.starts_for(*key).is_some());
        self.spawns.wanted.len() + starting.count()
    }

    /// The clients that wait for their turns.
    pub(super) fn turn_waiters(&self) -> impl Iterator<Item = ClientKey> {
        self.spawns.wanted.iter().map(|wanted| wanted.client)
    }

    /// Panics if what is under way is not counted.
    pub(super) fn check_spawns(&self) {
        let asked = self.workers.iter().filter(|(_, worker)| worker.is_begun).count();
        assert_eq!(self.spawns.under_way, asked, "each start that was not answered is counted");
    }
}
