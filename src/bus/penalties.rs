//! Who is not read for a while for what it has asked: a client over whose requests workers keep ending, and one that
//! was refused because a table is full of what it holds.

use std::time::Duration;

use super::Bus;
use super::peer::{ClientKey, Moment, Peer, RequestKey, WorkerKey};
use super::port::Effect;
use super::report::{Reason, Report};
use super::requests::Request;

/// So many workers in a row that end while they have a request of one client are no accident.
const SUSPECT_AFTER: u32 = 3;
/// How long such a client is not read; it doubles each time.
const FIRST_PENALTY: Duration = Duration::from_secs(1);
/// How long at most.
const LONGEST_PENALTY: Duration = Duration::from_secs(30);
/// How long a client is not read after a table was full of what it holds. It doubles with each refusal, up to the
/// longest, and begins anew after this time without one.
const FIRST_REST: Duration = Duration::from_millis(1);
const LONGEST_REST: Duration = Duration::from_millis(32);
const RESTS_ARE_FORGIVEN_AFTER: Duration = Duration::from_secs(1);
/// The ends of such pauses are looked at together, in nanoseconds.
const REST_ROUND: u64 = 4_000_000;

impl Bus {
    /// A worker has ended although nobody asked it to: whoever had a request pending there may have caused it, and who
    /// had one each time is slowed down.
    pub(super) fn blame(&mut self, now: Moment, key: WorkerKey, owes: &[RequestKey]) {
        let unexpected = self.workers.get(key).is_some_and(|worker| worker.exit.is_some() && !worker.was_told);
        if !unexpected || self.shutdown.refuses_requests() {
            return;
        }
        for (asker, request) in self.askers_of(owes.iter().copied()) {
            let Some(client) = self.clients.get_mut(asker) else { continue };
            client.crashes += 1;
            let Some(more) = client.crashes.checked_sub(SUSPECT_AFTER) else { continue };
            let pause = FIRST_PENALTY.saturating_mul(1 << more.min(16)).min(LONGEST_PENALTY);
            client.read_after = Some(now.after(pause));
            let (crashes, number) = (client.crashes, client.number);
            self.check_at(now.after(pause));
            let id = self.to_workers.get(request).map(|request| request.asker_id().to_string());
            let worker = self.workers.get(key).map(|worker| (worker.pool, worker.number));
            let report = self.reporter.report(now, Reason::CrashSuspect, || {
                let text = format!(
                    "{crashes} workers in a row have ended while they had a request of this client; it is read again in \
                     {} s",
                    pause.as_secs()
                );
                Report { client: Some(number), worker, id, ..Report::new(Reason::CrashSuspect, text) }
            });
            self.tell(report);
        }
    }

    /// The clients that wait for answers to these requests, each with the first one of its requests.
    fn askers_of(&self, requests: impl Iterator<Item = RequestKey>) -> Vec<(ClientKey, RequestKey)> {
        let mut askers: Vec<(ClientKey, RequestKey)> = Vec::new();
        for key in requests {
            if let Some(Peer::Client(client)) = self.to_workers.get(key).and_then(Request::asker)
                && !askers.iter().any(|(known, _)| *known == client)
            {
                askers.push((client, key));
            }
        }
        askers
    }

    /// A table was full of what this client and its source hold: it rests for a while. Refusing costs more than asking,
    /// and a thousand connections that are refused at full speed would leave no time for the others.
    pub(super) fn rests(&mut self, now: Moment, key: ClientKey) {
        let alone = self.clients.len() == 1;
        let Some(client) = self.clients.get_mut(key).filter(|_| !alone) else { return };
        if now.since(client.refused_at) > RESTS_ARE_FORGIVEN_AFTER {
            client.refusals = 0;
        }
        let rest = FIRST_REST.saturating_mul(1 << client.refusals.min(16)).min(LONGEST_REST);
        client.refusals += 1;
        client.refused_at = now;
        let ends = Moment(now.after(rest).0.next_multiple_of(REST_ROUND));
        client.read_after = Some(client.read_after.map_or(ends, |before| before.max(ends)));
        self.check_at(ends);
        self.sender_rests = true;
    }

    /// Whether a client is not read for a while, since workers keep ending over what it asks, or it has to rest.
    pub(super) fn is_slowed_down(&mut self, key: ClientKey) -> bool {
        let Some(client) = self.clients.get_mut(key).filter(|client| client.read_after.is_some()) else { return false };
        if !std::mem::replace(&mut client.is_slowed_down, true) {
            self.effects.push_back(Effect::Pause { peer: Peer::Client(key) });
        }
        true
    }

    /// A client is read again that was slowed down for what its requests did.
    pub(super) fn forgive(&mut self, key: ClientKey) {
        let Some(client) = self.clients.get_mut(key) else { return };
        client.read_after = None;
        if std::mem::take(&mut client.is_slowed_down) {
            self.read_again(Peer::Client(key));
        }
    }
}
