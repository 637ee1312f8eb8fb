//! Clients that are not read for a while because of their requests: one whose requests keep crashing workers, one that
//! was refused because it fills a table, and one whose cancellations name nothing.

use alloc::vec::Vec;
use core::time::Duration;

use super::gate::Hold;
use crate::Bus;
use crate::peer::{ClientKey, Moment, Peer, RequestKey, WorkerKey};
use crate::report::Reason;

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

/// The record for a client's penalties.
#[derive(Debug, Default)]
pub(crate) struct Penalty {
    /// Number of workers in a row that ended while they had a request of the client.
    crashes: u32,
    /// Number of refusals in a row.
    refusals: u32,
    /// Time of the last one.
    refused_at: Moment,
}

impl Penalty {
    pub(crate) const NONE: Self = Self { crashes: 0, refusals: 0, refused_at: Moment(0) };

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

impl Bus {
    /// A worker has ended without being asked to: any client with a request pending there may have caused it, and one
    /// that had a request each time is slowed down.
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

    /// This client and its source fill a table, or its cancellation named nothing: it is not read for a while. Refusing
    /// costs more than asking, and a thousand connections refused at full speed would leave no time for the others.
    pub(crate) fn penalise_refusal(&mut self, key: ClientKey) {
        let (now, is_alone) = (self.time.now(), self.client_count() == 1);
        let Some(client) = self.endpoint(key.into()).filter(|_| !is_alone) else { return };
        let ends = client.seldom.penalty.count_refusal(now);
        client.gate.penalise(ends);
        self.wake_at(key.into(), ends);
    }

    /// A client with a penalty has sent something: it is paused.
    pub(crate) fn is_penalised(&mut self, key: ClientKey) -> bool {
        let has_penalty = self.peer_end(key.into()).is_some_and(|client| client.gate.penalised_until().is_some());
        if has_penalty {
            self.close_gate(key.into(), Hold::Penalty);
        }
        has_penalty
    }

    /// Ends a client's penalty.
    pub(crate) fn end_penalty(&mut self, key: ClientKey) {
        if let Some(client) = self.endpoint(key.into()) {
            client.gate.clear_penalty();
            self.open_gate(key.into(), Hold::Penalty);
        }
    }
}
