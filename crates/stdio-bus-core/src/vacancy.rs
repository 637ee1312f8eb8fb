//! Clients whose next line waits for a worker: all that it could go to have just ended, and another one is due at once.
//!
//! The line stays where it is, its client is not read, and both go on once a worker is started, or with an error when the
//! group has had nobody for `hold_ms`. So nothing is reordered, and what waits is bounded as it is for any client that is
//! not read. Workers that end again and again are not waited for.
//!
//! Invariant: `waiting` has each client that awaits a worker, once.
use alloc::vec::Vec;

use ndjson_scan::{Line, Window};

use super::Bus;
use super::assignment::Group;
use super::peer::{ClientKey, Moment, Peer};
use super::port::Effect;
use super::settings::Assignment;

/// See the top of the file.
#[derive(Default)]
pub(super) struct Vacancy {
    /// Clients that are not read before a worker is started, with the groups that they wait for.
    waiting: Vec<(ClientKey, usize)>,
    /// When the first of them has waited long enough.
    due: Option<Moment>,
}

impl Bus {
    /// Lets a client wait with this line, for which nobody is there, if somebody is about to come. Says whether it waits.
    pub(super) fn await_worker(&mut self, now: Moment, client: ClientKey, window: Window<'_>, line: &Line) -> bool {
        let hold = self.settings.limits.hold;
        let Ok(group) = self.group_of_line(client, window, line) else { return false };
        let is_refused = self.clients.get_mut(client).is_none_or(|client| core::mem::take(&mut client.refused_worker));
        if is_refused || self.shutdown.refuses_requests() {
            return false;
        }
        if self.await_turn(now, client, group) {
            return true;
        }
        if hold.is_zero() || !self.expects_worker(now, group) {
            return false;
        }
        let due = self.groups[group].vacant_since.get_or_insert(now).after(hold);
        let Some(from) = self.clients.get_mut(client).filter(|_| due > now) else { return false };
        from.end.awaits_worker = true;
        self.vacancy.waiting.push((client, group));
        self.vacancy.due = Some(self.vacancy.due.map_or(due, |first| first.min(due)));
        self.check_at(due);
        self.effects.push_back(Effect::Pause { peer: Peer::Client(client) });
        true
    }

    /// Whether the next worker of a group, which has none that takes messages, comes after the first backoff at the
    /// latest.
    fn expects_worker(&self, now: Moment, group: usize) -> bool {
        let group = &self.groups[group];
        let is_coming = |(pool, seat): &(usize, usize)| {
            let seat = &self.pools[*pool].seats[*seat];
            match seat.worker {
                Some(worker) => {
                    let limits = &self.settings.limits;
                    self.workers.get(worker).is_some_and(|worker| seat.is_followed(worker.started, now, limits))
                }
                None => seat.is_in_first_backoff(),
            }
        };
        let rests = |pool: usize| {
            let (pool, most) = (&self.pools[pool], self.settings.pools[pool].max_instances);
            group.assignment == Assignment::Dedicated && pool.live < most && pool.rests_for_the_first_time(now)
        };
        group.seats().iter().any(is_coming) || group.pools().any(rests)
    }

    /// A worker was started in a seat of a pool: there is somebody for those who wait.
    pub(super) fn end_vacancy(&mut self, pool: usize) {
        for group in self.groups.iter_mut().filter(|group| group.vacant_since.is_some()) {
            if group.pools().any(|of| of == pool) {
                group.vacant_since = None;
            }
        }
        self.stop_awaiting_workers_of(pool);
    }

    /// What is known of workers has changed: the lines that wait for one are looked at again.
    pub(super) fn stop_awaiting_workers(&mut self) {
        self.look_again(|_| true);
        self.stop_awaiting_turns();
    }

    /// The same, where it has changed in one pool alone.
    pub(super) fn stop_awaiting_workers_of(&mut self, pool: usize) {
        self.look_again(|group| group.pools().any(|of| of == pool));
    }

    fn look_again(&mut self, concerns: impl Fn(&Group) -> bool) {
        let groups = &self.groups;
        let over: Vec<_> = self.vacancy.waiting.extract_if(.., |(_, group)| concerns(&groups[*group])).collect();
        if self.vacancy.waiting.is_empty() {
            self.vacancy.due = None;
        }
        for (client, _) in over {
            if let Some(from) = self.clients.get_mut(client) {
                from.end.awaits_worker = false;
                self.read_again(Peer::Client(client));
            }
        }
    }

    /// A client waits for no worker any more, since it is being closed.
    pub(super) fn stop_awaiting_worker(&mut self, now: Moment, key: ClientKey) {
        self.give_up_turn(now, key);
        let Some(client) = self.clients.get_mut(key).filter(|client| client.end.awaits_worker) else { return };
        client.end.awaits_worker = false;
        self.vacancy.waiting.retain(|(waiting, _)| *waiting != key);
    }

    /// Those who have waited long enough go on.
    pub(super) fn tick_vacancy(&mut self, now: Moment) {
        match self.vacancy.due {
            Some(due) if due <= now => self.look_again(|_| true),
            Some(due) => self.check_at(due),
            None => {}
        }
    }

    /// Panics if those who wait and the list of them disagree.
    pub(super) fn check_vacancy(&self) {
        let waiting = self.clients.iter().filter(|(_, client)| client.end.awaits_worker).map(|(key, _)| key);
        let listed = self.vacancy.waiting.iter().map(|(client, _)| *client);
        let mut listed: Vec<ClientKey> = listed.chain(self.turn_waiters()).collect();
        listed.sort_unstable_by_key(|client| client.index());
        assert!(waiting.eq(listed), "a client that awaits a worker is listed");
        assert!(self.vacancy.due.is_some() || self.vacancy.waiting.is_empty(), "nobody waits for ever");
    }
}
