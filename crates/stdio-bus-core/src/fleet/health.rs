//! Workers that hang. One that has said nothing for a while although it owes answers is unresponsive (`worker_silent_sec`): no
//! line that any worker may get is sent to it while another one is well, and a pool of unresponsive workers is not ready.
//! Its next line ends that. What it owes are the requests that it was sent and has not answered, also those of clients
//! that have left, but none that was cancelled, and no subscription.
//!
//! Silence alone does not say why: an agent may work for long without a word. So a worker is replaced only if its pool has
//! it checked (`pools[].check`): while it is silent and owes something it is sent a request of the bus now and then, and
//! two of them in a row without the expected answer show that it hangs.
//!
//! It is not silent while it is not read, or waits for the answer of a client.
//!
//! A line costs nothing more for this: when a worker has last said something is noted anyway, and what it owes is looked
//! for when a look is due.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::ctx::Ctx;
use crate::fleet::eras::discovery::discover;
use crate::fleet::worker::Worker;
use crate::id::Id;
use crate::index::PoolId;
use crate::message::Parsed;
use crate::peer::{Moment, Peer, WorkerKey};
use crate::reply;
use crate::report::Reason;
use crate::requests::Requests;
use crate::settings::{Check, Era, Settings};

/// A worker that owes answers is looked at this often until it is unresponsive.
const LOOKS: u32 = 4;
/// An unresponsive worker is looked at again after this time, so that others learn soon that it is well.
const SOON: Duration = Duration::from_secs(1);
/// This many checks in a row without the expected answer show that a worker hangs.
const MOST_MISSES: u32 = 2;

/// What is known of a worker's silence.
#[derive(Default)]
pub(crate) struct Health {
    /// How long it had said nothing while it owed answers, when it was last looked at.
    silent: Duration,
    /// When that was.
    looked_at: Moment,
    /// It owed something then, and was to speak.
    owed: bool,
    /// When a client has last answered a question of it.
    active_at: Moment,
    /// It is unresponsive since then, if it has said nothing since.
    since: Option<Moment>,
    /// The check that it has not answered: its id, and when it was sent.
    asked: Option<(Id, Moment)>,
    /// When it was last sent a check, or has answered one.
    checked_at: Moment,
    /// Number of checks in a row without the expected answer.
    misses: u32,
}

/// What a look at a worker shows.
pub(crate) enum HealthVerdict {
    /// When to look again, if ever.
    Again(Option<Moment>),
    /// It hangs, for this reason.
    Hangs(String),
}

impl Health {
    /// Whether it was unresponsive when it was last looked at. It may have said something since.
    #[inline(always)]
    pub(crate) fn is_raised(&self) -> bool {
        self.since.is_some()
    }

    /// Whether it was sent a check that it has not answered.
    pub(super) fn is_checked(&self) -> bool {
        self.asked.is_some()
    }

    /// A client has answered a question of the worker, whose turn it is again.
    pub(crate) fn touch(&mut self, now: Moment) {
        self.active_at = now;
    }

    /// A look at the worker, which was last active at `active_at`. If it owes something and is to speak, `oldest` is
    /// when the oldest of that was asked for.
    ///
    /// A pause in which it owes nothing is left out, and does not end the silence: so workers are noticed, too, whose
    /// clients give up before. But then it gets a part of the time again. So is what was before the daemon `resumed`, since
    /// what has stopped it may have stopped the worker, too.
    fn look(&mut self, times: [Moment; 3], oldest: Option<Moment>, limit: Option<Duration>) {
        let [now, active_at, resumed] = times;
        if active_at >= self.looked_at {
            (self.silent, self.owed) = (Duration::ZERO, false);
        } else if !self.owed
            && let Some(limit) = limit
        {
            self.silent = self.silent.min(limit - limit / LOOKS);
        }
        if let Some(oldest) = oldest {
            let from = if self.owed { self.looked_at } else { oldest.max(active_at).max(self.looked_at) };
            self.silent += now.since(from.max(resumed));
        }
        (self.owed, self.looked_at) = (oldest.is_some(), now);
    }
}

impl Settings {
    /// How long a worker of this pool may say nothing while it owes answers, if that matters.
    pub fn worker_silent(&self, pool: PoolId) -> Option<Duration> {
        let own = self.pools.get(pool.index()).and_then(|pool| pool.worker_silent);
        Some(own.unwrap_or(self.limits.worker_silent)).filter(|limit| !limit.is_zero())
    }

    /// How soon a worker of this pool that owes something is looked at, if at all.
    pub(crate) fn first_look(&self, pool: PoolId) -> Option<Duration> {
        let check = self.pools.get(pool.index()).and_then(|pool| Some(pool.check.as_ref()?.every));
        self.worker_silent(pool).map(|limit| limit / LOOKS).into_iter().chain(check).min()
    }
}

impl Worker {
    /// Whether it has said nothing for so long that what any worker may get is sent to others.
    pub(crate) fn is_unresponsive(&self) -> bool {
        self.health.since.is_some_and(|since| self.end.stream.spoke_at().is_none_or(|spoke| spoke < since))
    }
}

/// Takes a worker's answer to a check, if this is one. Returns whether it is.
pub(crate) fn take_check(ctx: &mut Ctx, key: WorkerKey, id: &Id, line: Parsed<'_>) -> bool {
    let Some(worker) = ctx.workers.get_mut(key) else { return false };
    if worker.health.asked.take_if(|(asked, _)| asked == id).is_none() {
        return false;
    }
    worker.health.checked_at = ctx.time.now();
    let expected = ctx.settings.pools[worker.fleet].check.as_ref().and_then(|check| check.expects.as_deref());
    let has = |text: &str| memchr::memmem::find(line.get(line.span), text.as_bytes()).is_some();
    worker.health.misses = if expected.is_none_or(has) { 0 } else { worker.health.misses + 1 };
    if worker.health.misses >= MOST_MISSES {
        ctx.wake_at(key.into(), ctx.time.now());
    }
    true
}

impl Requests {
    /// Looks whether a worker is silent although it owes answers.
    pub(crate) fn look_at(&self, ctx: &mut Ctx, key: WorkerKey) -> HealthVerdict {
        let now = ctx.time.now();
        let Some(worker) = ctx.workers.get_mut(key).filter(|worker| worker.takes_messages()) else {
            return HealthVerdict::Again(None);
        };
        let pool = worker.fleet.pool;
        let limit = ctx.settings.worker_silent(pool);
        let first = ctx.settings.first_look(pool).filter(|_| worker.end.to_answer.count() > 0);
        let is_its_turn = worker.has_run() && !worker.end.gate.is_held_up() && worker.end.asked.is_empty();
        let oldest = first.and_then(|_| self.oldest_owed(key)).filter(|_| is_its_turn);
        let spoke = worker.end.stream.spoke_at().unwrap_or(worker.process.started());
        let active_at = spoke.max(worker.answering.read_since()).max(worker.health.active_at);
        worker.health.look([now, active_at, ctx.time.awake_since(Moment::default())], oldest, limit);
        let silent = worker.health.silent;
        // It may have said something and been silent again since it was unresponsive.
        let was_unresponsive = worker.is_unresponsive();
        let is_unresponsive = oldest.is_some() && limit.is_some_and(|limit| silent >= limit);
        if is_unresponsive != was_unresponsive || is_unresponsive != worker.health.is_raised() {
            worker.health.since = is_unresponsive.then_some(now);
            ctx.workers_changed = true;
            report_silence(ctx, key, is_unresponsive.then_some(silent));
        }
        let Some(first) = first else { return HealthVerdict::Again(None) };
        let next = match limit {
            _ if oldest.is_none() => first,
            _ if is_unresponsive => SOON.min(first),
            Some(limit) => first.min(limit - silent),
            None => first,
        };
        let checked = match ctx.settings.pools[pool].check.clone() {
            Some(check) => self.check(ctx, key, &check, oldest.is_some()),
            None => HealthVerdict::Again(None),
        };
        match checked {
            HealthVerdict::Again(at) => HealthVerdict::Again(at.into_iter().chain([now.after(next)]).min()),
            hangs @ HealthVerdict::Hangs(_) => hangs,
        }
    }

    /// Checks a worker, if that is due. It need not answer now if it owes nothing, or it is not its turn.
    fn check(&self, ctx: &mut Ctx, key: WorkerKey, check: &Check, owes: bool) -> HealthVerdict {
        let now = ctx.time.now();
        let Some(worker) = ctx.workers.get_mut(key) else { return HealthVerdict::Again(None) };
        let spoke = worker.end.stream.spoke_at().unwrap_or_default();
        let Health { silent, asked, misses, checked_at, .. } = &mut worker.health;
        if !owes {
            *misses = 0;
            asked.iter_mut().for_each(|(_, at)| *at = now);
            return HealthVerdict::Again(None);
        }
        let is_late = |(_, at): &mut (Id, Moment)| *at <= spoke || ctx.time.awake_since(*at).after(check.every) <= now;
        if let Some((id, at)) = asked.take_if(is_late) {
            // Whatever it has said meanwhile shows that it lives.
            *misses = if at <= spoke { 0 } else { *misses + 1 };
            let late = self.fingerprint(&id);
            worker.end.cold.retired_mut().add(late, false);
        }
        if *misses >= MOST_MISSES {
            return HealthVerdict::Hangs(format!(
                "the worker hangs: it did not answer {MOST_MISSES} health checks in a row as expected; it is restarted"
            ));
        }
        if let Some((_, at)) = asked {
            return HealthVerdict::Again(Some(ctx.time.awake_since(*at).after(check.every)));
        }
        let due = now.after(check.every.saturating_sub(*silent)).max(checked_at.after(check.every));
        if due > now {
            return HealthVerdict::Again(Some(due));
        }
        *checked_at = now;
        let era = worker.fleet.era;
        let id = self.make_name(ctx, key.into(), false);
        ctx.send(key.into(), &check.line(era, &id));
        if let Some(worker) = ctx.workers.get_mut(key) {
            worker.health.asked = Some((id, now));
        }
        HealthVerdict::Again(Some(now.after(check.every)))
    }
}

impl Check {
    /// A request with this id, as a line.
    fn line(&self, era: Era, id: &Id) -> Vec<u8> {
        let id = id.token();
        match (&self.send, era) {
            // The members follow the brace, and there is at least one.
            (Some(request), _) => [b"{\"id\":", id.as_slice(), b",", &request.as_bytes()[1..], b"\n"].concat(),
            (None, Era::Legacy) => reply::call(Some(&id), b"ping", None),
            (None, Era::Modern) => discover(&id),
        }
    }
}

/// Reports that a worker is unresponsive since it was silent for so long, or no longer.
fn report_silence(ctx: &mut Ctx, key: WorkerKey, silent: Option<Duration>) {
    match silent {
        Some(silent) => ctx.report(Reason::WorkerUnresponsive, Some(Peer::Worker(key)), || {
            format!(
                "a worker has written nothing for {} s while requests are pending on it; new clients are sent to other \
                 workers (see show workers and show pending)",
                silent.as_secs()
            )
        }),
        None => ctx.report(Reason::WorkerWell, Some(Peer::Worker(key)), || {
            "an unresponsive worker has recovered: it wrote a line, or no request is pending on it".to_owned()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Moment {
        Moment(seconds * 1_000_000_000)
    }

    #[test]
    fn silence_counts_while_something_is_owed_and_a_word_ends_it() {
        let limit = Some(Duration::from_secs(60));
        let mut health = Health::default();
        let look = |health: &mut Health, now, active_at, oldest: Option<u64>| {
            health.look([at(now), at(active_at), at(0)], oldest.map(at), limit);
            health.silent.as_secs()
        };
        assert_eq!(look(&mut health, 100, 10, Some(90)), 10, "it was asked ten seconds ago");
        assert_eq!(look(&mut health, 110, 10, Some(105)), 20, "one request has taken the place of another one");
        assert_eq!(look(&mut health, 120, 112, Some(105)), 8, "it has spoken");
        assert_eq!(look(&mut health, 160, 112, Some(105)), 48);
        assert_eq!(look(&mut health, 170, 112, None), 48, "its client has given up");
        assert_eq!(look(&mut health, 300, 112, Some(290)), 55, "a part of it is forgotten");
        assert_eq!(look(&mut health, 310, 305, Some(290)), 5);
        health.look([at(400), at(305), at(390)], Some(at(290)), limit);
        assert_eq!(health.silent.as_secs(), 15, "the daemon did not run for a while, and the worker perhaps neither");
    }
}
