//! Clients that are not read for a while because of their requests: one whose requests keep crashing workers, one that
//! was refused because it fills a table, and one whose cancellations name nothing, from their next line on. A
//! cancellation that crossed its answer is not counted; each request allows one such miss.

use alloc::vec::Vec;
use core::time::Duration;

use super::gate::Hold;
use crate::ctx::Ctx;
use crate::peer::{ClientKey, Moment, Peer, RequestKey, WorkerKey};
use crate::report::Reason;
use crate::requests::Requests;

/// This many workers in a row that end with a request of one client are not a coincidence.
const SUSPECT_AFTER: u32 = 3;
/// How long such a client is not read; it doubles each time.
const FIRST_PENALTY: Duration = Duration::from_secs(1);
/// The longest such time.
const LONGEST_PENALTY: Duration = Duration::from_secs(30);
/// How long a client is not read after such a refusal. It doubles with each one, up to the longest, and starts over
/// after this time without one.
const FIRST_REST: Duration = Duration::from_millis(1);
const LONGEST_REST: Duration = Duration::from_millis(32);
const REFUSALS_COUNT_FOR: Duration = Duration::from_secs(1);
/// The ends of such pauses are rounded up to this, in nanoseconds.
const REST_ROUND: u64 = 4_000_000;
/// This many of a client's newest requests excuse a cancellation each.
const CROSSINGS: u64 = 64;

/// Why a client is throttled.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// Number of workers in a row that ended while they had a request of the client.
    crashes: u32,
    /// Number of refusals in a row.
    refusals: u32,
    /// Time of the last one.
    refused_at: Moment,
    /// Number of the client's requests that excuse no cancellation any more.
    excused: u64,
}

impl Throttle {
    pub(crate) const NONE: Self = Self { crashes: 0, refusals: 0, refused_at: Moment(0), excused: 0 };

    /// A worker lives and answers, so no request of the client has crashed it.
    pub(crate) fn forget_crashes(&mut self) {
        self.crashes = 0;
    }

    /// A worker has ended while it had a request of the client. Returns how many that are in a row and how long the
    /// client is not read, once they are too many.
    fn count_crash(&mut self) -> Option<(u32, Duration)> {
        self.crashes += 1;
        let more = self.crashes.checked_sub(SUSPECT_AFTER)?;
        Some((self.crashes, FIRST_PENALTY.saturating_mul(1 << more.min(16)).min(LONGEST_PENALTY)))
    }

    /// A cancellation of the client, which has made so many requests, named nothing. Returns whether it may have crossed
    /// an answer.
    fn excuse(&mut self, asked: u64) -> bool {
        self.excused = self.excused.max(asked.saturating_sub(CROSSINGS));
        let crossed = self.excused < asked;
        self.excused += u64::from(crossed);
        crossed
    }

    /// The client was refused. Returns until when it is not read.
    fn count_refusal(&mut self, now: Moment) -> Moment {
        if now.since(self.refused_at) > REFUSALS_COUNT_FOR {
            self.refusals = 0;
        }
        let rest = FIRST_REST.saturating_mul(1 << self.refusals.min(16)).min(LONGEST_REST);
        self.refusals += 1;
        self.refused_at = now;
        Moment(now.after(rest).0.next_multiple_of(REST_ROUND))
    }
}

impl Requests {
    /// A worker has ended without being asked to: any client with a request pending there may have caused it, and one
    /// that had a request each time is slowed down.
    pub(crate) fn penalise_crash(&self, ctx: &mut Ctx, key: WorkerKey, to_answer: &[RequestKey]) {
        let unexpected = ctx.workers.get(key).is_some_and(|worker| worker.process().ended_by_itself());
        if !unexpected || ctx.shutdown.stops_workers() {
            return;
        }
        let mut askers = Vec::new();
        for request in to_answer.iter().copied() {
            let Some(Peer::Client(asker)) = self.get(request).and_then(|it| it.asker()) else { continue };
            if askers.contains(&asker) {
                continue;
            }
            askers.push(asker);
            let now = ctx.time.now();
            let Some(client) = ctx.endpoint(asker.into()) else { continue };
            let Some((crashes, pause)) = client.cold.throttle_mut().count_crash() else { continue };
            ctx.throttle(asker, now.after(pause));
            let id = Some(self.asker_text(request));
            ctx.report_request(Reason::CrashSuspect, [Some(asker.into()), Some(key.into())], || {
                let text = format!(
                    "{crashes} workers in a row have ended while they had a request of this client; it is read again in {} s",
                    pause.as_secs()
                );
                (id, text)
            });
        }
    }
}

impl Ctx {
    /// A cancellation of this client named nothing.
    pub(crate) fn penalise_cancellation(&mut self, key: ClientKey) {
        let Some(client) = self.endpoint(key.into()) else { return };
        if !client.cold.throttle_mut().excuse(client.traffic.asked) {
            self.penalise_refusal(key);
        }
    }

    /// This client and its source fill a table, or its cancellation named nothing: it is not read for a while. Refusing
    /// costs more than asking, and a thousand connections refused at full speed would leave no time for the others.
    pub(crate) fn penalise_refusal(&mut self, key: ClientKey) {
        let (now, is_alone) = (self.time.now(), self.clients.len() == 1);
        let Some(client) = self.endpoint(key.into()).filter(|_| !is_alone) else { return };
        let ends = client.cold.throttle_mut().count_refusal(now);
        self.throttle(key, ends);
    }

    fn throttle(&mut self, key: ClientKey, until: Moment) {
        let Some(client) = self.endpoint(key.into()) else { return };
        client.gate.throttle(until);
        self.wake_at(key.into(), until);
    }

    /// A client that is throttled has sent something: it is paused.
    pub(crate) fn is_throttled(&mut self, key: ClientKey) -> bool {
        let is_throttled = self.peer_end(key.into()).is_some_and(|client| client.gate.throttled_until().is_some());
        if is_throttled {
            self.close_gate(key.into(), Hold::Throttle);
        }
        is_throttled
    }

    /// A client was throttled for long enough.
    pub(crate) fn end_throttle(&mut self, key: ClientKey) {
        let Some(client) = self.endpoint(key.into()).filter(|client| client.gate.throttled_until().is_some()) else {
            return;
        };
        client.gate.end_throttle();
        self.open_gate(key.into(), Hold::Throttle);
    }
}
