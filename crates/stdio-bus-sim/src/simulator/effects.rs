//! How the world carries out the effects of the bus.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Call, End, Process, SimWorker, World, party};
use crate::Draws;
use crate::bus::overview::{PeerName, SessionRow};
use crate::bus::port::{ClientKey, Close, Effect, Peer, Signal, WorkerKey};
use crate::bus::report::{Reason, Report, WorkerName};
use crate::line::Party;
use crate::peers::WorkerView;

/// Minimum time for which the stdout of an exited worker is read.
const GRACE: Duration = Duration::from_secs(1);

impl World {
    pub(super) fn carry_out(
        &mut self,
        effects: Vec<Effect>,
        data: &[u8],
        hearing: Option<Party>,
        due: VecDeque<usize>,
        is_bad: bool,
    ) {
        // The counter shows what a report may hold back.
        let has_stalled = self.more(Reason::ClientStalled) + self.more(Reason::ClientSlow) > 0;
        self.learn_expired(&effects);
        self.learn_pools();
        let released = effects.iter().enumerate().filter_map(|(at, effect)| match effect {
            Effect::Release(worker) => Some((at, self.worker(*worker))),
            _ => None,
        });
        let released = released.collect();
        let mut call = Call { hearing, due, is_bad, stalled: Vec::new(), released, has_stalled };
        for (place, effect) in effects.into_iter().enumerate() {
            self.trace_effect(&effect, data);
            if self.ends(&effect, &call) {
                call.due.drain(..).for_each(|line| self.drop_line(line));
            }
            match effect {
                Effect::Copy { to, span } => {
                    let bytes = &data[span.start as usize..span.end as usize];
                    assert!(!bytes.is_empty());
                    self.queue(to, bytes, hearing, &mut call.due);
                }
                Effect::Insert { to, text } => self.queue(to, text.as_bytes(), hearing, &mut call.due),
                Effect::Pause(peer) => self.pause(peer, &mut call),
                Effect::Resume(peer) => self.resume(peer),
                Effect::Spawn { worker, name, generation, client } => {
                    let client = client.map(|client| self.client(client));
                    self.model.started(self.now, name.pool.index(), client);
                    self.start_worker(worker, name, generation);
                }
                Effect::CloseStdin(worker) => {
                    let at = self.worker(worker);
                    self.workers[at].process.closes_stdin();
                    self.model.stops(at);
                }
                Effect::Signal { worker, signal } => self.signal(worker, signal),
                Effect::Probe(worker) => {
                    let at = self.worker(worker);
                    self.workers[at].probed = true;
                }
                Effect::Release(worker) => self.release(worker),
                Effect::Close { client, how, why } => self.close_client(client, (how, why), place, &call),
                Effect::PauseAccept => self.accept_paused = true,
                Effect::ResumeAccept => self.accept_paused = false,
                Effect::CloseListener(_)
                | Effect::OpenListener(_)
                | Effect::HoldListener(_)
                | Effect::ReleaseListener(_)
                | Effect::LeaveSharedPorts
                | Effect::Discovered { .. } => {}
                Effect::StopAccept => self.drain.stops_listening(),
                Effect::Report(report) => self.read_report(&report),
                Effect::BadLine { .. } => {}
                Effect::Done => {
                    self.note(|_| "done".into());
                    self.drain.ends();
                }
            }
        }
        for number in call.due {
            self.drop_line(number);
        }
        for worker in call.stalled {
            self.workers[worker].end.ignored = true;
            self.model.settled(self.now, worker);
        }
    }

    /// Whether an effect ends a peer: it comes after all lines that were taken from it.
    fn ends(&self, effect: &Effect, call: &Call) -> bool {
        match effect {
            Effect::Close { client, .. } => call.hearing == Some(Party::Client(self.client(*client))),
            Effect::Pause(peer) => call.is_bad && call.hearing == Some(self.party(*peer)),
            // A client's own worker ends with it, and may be notified first.
            Effect::Signal { .. } | Effect::CloseStdin(_) => matches!(call.hearing, Some(Party::Client(_))),
            _ => false,
        }
    }

    fn pause(&mut self, peer: Peer, call: &mut Call) {
        let party = self.party(peer);
        self.end_mut(party).paused = true;
        if let Party::Client(client) = party {
            self.model.waits(self.now, client, self.front(party));
        }
        if let Party::Worker(worker) = party {
            self.model.pauses(self.now, worker, true);
        }
        if let (None, Party::Worker(worker)) = (call.hearing, party) {
            // It is not read, so it does not wait for a peer: it has stalled, and is not read any more.
            self.model.unasks(worker);
            call.stalled.push(worker);
        }
    }

    fn resume(&mut self, peer: Peer) {
        let party = self.party(peer);
        let now = self.now;
        if let Party::Client(client) = party {
            let waits_with: Vec<usize> = self.front(party).into_iter().collect();
            self.learn_owners_by(client, &waits_with);
            self.model.waits(now, client, None);
        }
        if let Party::Worker(worker) = party {
            self.model.pauses(now, worker, false);
        }
        let end = self.end_mut(party);
        assert!(end.paused, "{party:?} is resumed, and was not paused");
        end.paused = false;
        end.resumed_at = now;
    }

    fn signal(&mut self, key: WorkerKey, signal: Signal) {
        let at = self.worker(key);
        self.workers[at].process.signal(signal);
        self.note(|_| format!("worker {at} is signalled: {signal:?}"));
    }

    fn close_client(&mut self, key: ClientKey, (how, why): (Close, Reason), place: usize, call: &Call) {
        let at = self.client(key);
        if why == Reason::OwnWorkerEnded && self.clients[at].closing.is_none() {
            // Its worker can ask nothing any more: it has stalled, is not read any longer, or is stopped next.
            let has_stalled = call.stalled.iter().any(|worker| self.model.is_own(at, *worker));
            let is_own = |(behind, worker): &&(usize, usize)| *behind > place && self.model.is_own(at, *worker);
            let released = call.released.iter().find(is_own);
            let receiver = call.hearing.filter(|_| call.is_bad);
            let worker = match (released, receiver) {
                // Another one of its own may have stalled in the same step.
                (Some((behind, worker)), _) if *behind == place + 1 => Some(*worker),
                _ if has_stalled => None,
                (Some((_, worker)), _) => Some(*worker),
                (None, Some(Party::Worker(worker))) => Some(worker),
                _ => panic!("client {at} has lost no worker"),
            };
            if let Some(worker) = worker {
                assert!(!self.model.gets_another(at, worker), "client {at} loses its connection at a first request");
                self.model.unasks(worker);
            }
        }
        self.note(|_| format!("client {at} is closed: {how:?}"));
        assert_ne!(self.clients[at].closing, Some(Close::Now), "closed twice");
        self.clients[at].closing = Some(how);
        let now = self.now;
        let client = &mut self.clients[at];
        client.left.get_or_insert(now);
        client.left_for.get_or_insert(why);
        // While it is refused it is read to the end, whatever it has waited for.
        client.end.ignored = how != Close::Refuse;
        client.end.paused &= client.end.ignored;
        if how == Close::Refuse {
            self.model.waits(self.now, at, None);
        }
        let is_stalled = call.has_stalled && self.model.is_full(Party::Client(at));
        let is_bad = call.is_bad && call.hearing == Some(Party::Client(at));
        self.model.closes_amid(call.due.iter().copied());
        let excuse =
            self.clients[at].reset || is_stalled || why == Reason::MemoryLimit || self.model.is_refusing() || is_bad;
        self.model.closing(self.now, at, how, why, excuse);
    }

    fn read_report(&mut self, report: &Report) {
        assert!(!report.text.is_empty());
        let restarts = report.reason == Reason::RestartScheduled && report.suppressed == 0;
        assert!(!restarts || !self.model.has_refused(), "a restart is scheduled during the shutdown");
        if let (Reason::Cancelled, Some(client)) = (report.reason, report.client) {
            self.model.reports_cancelled(client as usize);
        }
        self.note(|_| {
            let client = report.client.map(|number| format!(" of client {number}")).unwrap_or_default();
            format!("  reported: {}{client}: {}", report.reason.name(), report.text)
        });
    }

    fn trace_effect(&mut self, effect: &Effect, data: &[u8]) {
        if !matches!(effect, Effect::Copy { .. } | Effect::Insert { .. } | Effect::Report(_)) {
            self.mention(|_| format!("  {effect:?}"));
        }
        let (clients, workers) = (&self.clients, &self.workers);
        if let Some(trace) = self.journal.trace() {
            trace.effect(self.now, effect, data, |peer| party(clients, workers, peer));
        }
    }

    /// Claims may have expired in a call of the bus with these effects: the bus says which sessions are left.
    fn learn_expired(&mut self, effects: &[Effect]) {
        let how_many = self.more(Reason::ClaimExpired);
        if how_many == 0 {
            return;
        }
        let over = effects.iter().filter_map(|effect| match effect {
            Effect::Close { client, .. } => Some(Party::Client(self.client(*client))),
            Effect::Pause(peer @ Peer::Worker(_)) => Some(self.party(*peer)),
            Effect::Release(worker) => Some(Party::Worker(self.worker(*worker))),
            _ => None,
        });
        let over: Vec<Party> = over.collect();
        let (bus, workers) = (&*self.bus, &self.workers);
        let rows = || (0..bus.view().session_slots()).filter_map(|slot| bus.view().session_row(self.now, slot));
        let is_left = |worker: usize, name: &str| {
            let is_at = |row: &SessionRow<'_>| row.worker == Some(PeerName::Worker(workers[worker].name));
            rows().any(|row| is_at(&row) && row.client.is_some() && row.name == name.as_bytes())
        };
        self.model.claims_expired(self.now, how_many, is_left, |party| over.contains(&party));
    }

    fn release(&mut self, key: WorkerKey) {
        let at = self.worker(key);
        let worker = &mut self.workers[at];
        worker.released = true;
        let Some(exited_at) = worker.process.exited_at() else { panic!("worker {at} is released, and lives") };
        let quiet = self.now.since(exited_at.max(worker.end.resumed_at));
        let lines_left = !worker.end.ignored && !worker.end.lines.is_empty();
        assert!(!lines_left || quiet >= GRACE, "lines of worker {at} were lost");
        self.model.released(self.now, at);
    }

    fn start_worker(&mut self, key: WorkerKey, name: WorkerName, generation: u32) {
        let pool = name.pool.index();
        let draws = &mut Draws::new(&mut self.random);
        let end = End { pace: Self::any_pace(draws.of("pace")), ..End::default() };
        let limits = &self.settings.pools[pool];
        let is_hurried = limits.request_timeout.is_some() || limits.idle_timeout.is_some();
        let (view, process) = (WorkerView::new(draws, is_hurried), Process::new(draws));
        self.note(|world| format!("worker {} is started in pool {pool}: {view:?}", world.workers.len()));
        self.workers.push(SimWorker {
            key,
            name,
            generation,
            end,
            view,
            waiting: Vec::new(),
            todo: VecDeque::new(),
            over: Vec::new(),
            next_id: 0,
            waited: Duration::ZERO,
            has_moment: false,
            probed: false,
            process,
            released: false,
        });
    }
}
