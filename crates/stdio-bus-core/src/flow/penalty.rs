//! Who is not read for a while for what it has asked: a client over whose requests workers keep ending, one that was
//! refused because a table is full of what it holds, and one that cancels nothing.

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::gate::Hold;
use crate::Bus;
use crate::peer::{ClientKey, Moment, Peer, RequestKey, WorkerKey};
use crate::report::Reason;

/// So many workers in a row that end while they have a request of one client are no accident.
const SUSPECT_AFTER: u32 = 3;
/// How long such a client is not read; it doubles each time.
const FIRST_PENALTY: Duration = Duration::from_secs(1);
/// How long it is not read at most.
const LONGEST_PENALTY: Duration = Duration::from_secs(30);
/// How long a client is not read after such a refusal. It doubles with each one, up to the longest, and begins anew after
/// this time without one.
const FIRST_REST: Duration = Duration::from_millis(1);
const LONGEST_REST: Duration = Duration::from_millis(32);
const REFUSALS_COUNT_FOR: Duration = Duration::from_secs(1);
/// The ends of such pauses are looked at together, in nanoseconds.
const REST_ROUND: u64 = 4_000_000;

/// What a client may get a penalty for.
#[derive(Debug, Default)]
pub(crate) struct Penalty {
    /// Workers in a row that ended while they had a request of the client.
    crashes: u32,
    /// Refusals in a row.
    refusals: u32,
    /// When the last of them was.
    refused_at: Moment,
}

impl Penalty {
    pub(crate) const NONE: Self = Self { crashes: 0, refusals: 0, refused_at: Moment(0) };

    /// A worker lives and answers, so no request of the client has ended it.
    #[inline]
    pub(crate) fn forget_crashes(&mut self) {
        self.crashes = 0;
    }

    /// A worker has ended while it had a request of the client. Gives how many that are in a row and how long the
    /// client is not read, once they are too many.
    fn count_crash(&mut self) -> Option<(u32, Duration)> {
        self.crashes += 1;
        let more = self.crashes.checked_sub(SUSPECT_AFTER)?;
        Some((self.crashes, FIRST_PENALTY.saturating_mul(1 << more.min(16)).min(LONGEST_PENALTY)))
    }

    /// The client was refused. Gives until when it is not read.
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

impl Bus {
    /// A worker has ended although nobody asked it to: whoever had a request pending there may have caused it, and who
    /// had one each time is slowed down.
    pub(crate) fn penalise_crash(&mut self, key: WorkerKey, to_answer: &[RequestKey]) {
        let unexpected = self.workers.get(key).is_some_and(|worker| worker.process.ended_by_itself());
        if !unexpected || self.shutdown.stops_workers() {
            return;
        }
        let mut askers = Vec::new();
        for request in to_answer.iter().copied() {
            let Some(Peer::Client(asker)) = self.pending.get(request).and_then(|it| it.asker()) else { continue };
            if askers.contains(&asker) {
                continue;
            }
            askers.push(asker);
            let now = self.time.now();
            let Some(client) = self.endpoint(asker.into()) else { continue };
            let Some((crashes, pause)) = client.seldom.penalty.count_crash() else { continue };
            client.gate.penalise(now.after(pause));
            self.wake_at(asker.into(), now.after(pause));
            let id = Some(self.pending.asker_text(request));
            self.report_request(Reason::CrashSuspect, [Some(asker.into()), Some(key.into())], || {
                let text = format!(
                    "{crashes} workers in a row have ended while they had a request of this client; it is read again in {} s",
                    pause.as_secs()
                );
                (id, text)
            });
        }
    }

    /// A table was full of what this client and its source hold, or it has cancelled nothing: it rests for a while.
    /// Refusing costs more than asking, and a thousand connections that are refused at full speed would leave no time for
    /// the others.
    pub(crate) fn penalise_refusal(&mut self, key: ClientKey) {
        let (now, is_alone) = (self.time.now(), self.is_alone());
        let Some(client) = self.endpoint(key.into()).filter(|_| !is_alone) else { return };
        let ends = client.seldom.penalty.count_refusal(now);
        client.gate.penalise(ends);
        self.wake_at(key.into(), ends);
    }

    /// A client that has a penalty has sent something: it is paused.
    pub(crate) fn is_penalised(&mut self, key: ClientKey) -> bool {
        let has_penalty = self.peer_end(key.into()).is_some_and(|client| client.gate.penalised_until().is_some());
        if has_penalty {
            self.close_gate(key.into(), Hold::Penalty);
        }
        has_penalty
    }

    /// A client has a penalty no more.
    pub(crate) fn end_penalty(&mut self, key: ClientKey) {
        if let Some(client) = self.endpoint(key.into()) {
            client.gate.pardon();
            self.open_gate(key.into(), Hold::Penalty);
        }
    }
}
