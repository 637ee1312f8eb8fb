//! The rules in the world of an MCP listener: what a worker may read, which clients it may send to, when it is asked to
//! stop, and how many there are.

use serde_json::{Value, json};

use super::worker::{SimWorker, Work};
use super::{PATIENCE, SILENT_FOR, SimClient, World};
use crate::bus::port::Moment;
use crate::bus::report::Reason;
use crate::bus::settings::{Assignment, Era, Pool, Start};
use crate::small::SmallWorld;

impl World {
    pub(super) fn worker_reads(&mut self, at: usize, line: Value) {
        self.note(format!("worker {at} reads {line}"));
        let pool = self.workers[at].pool;
        if line["method"] == "server/discover" {
            let worker = &mut self.workers[at];
            assert!(worker.pinned.is_none() && worker.asked.is_none(), "it is asked first, and once");
            assert!(worker.may_be_asked, "no worker is asked when it is known");
            worker.asked = Some(line["id"].clone());
            return;
        }
        let is_held = self.workers[at].asked.is_some() && !self.workers[at].is_late;
        assert!(!is_held, "nothing is said to a worker that is asked");
        if line["method"] == "notifications/cancelled" {
            let id = &line["params"]["requestId"];
            let work = self.workers[at].work.iter_mut().find(|work| work.id == *id);
            let work = work.expect("a request is cancelled by the id that its worker knows");
            assert!(self.clients[work.client].closing, "only a client that leaves cancels here");
            work.given_up = Some(self.ground.now);
            return;
        }
        if line["method"].is_null() {
            return;
        }
        let number = |name: &str| line["params"][name].as_u64().expect("it is a client's line") as usize;
        let (client, number) = (number("client"), number("number"));
        let (era, assignment) = (self.clients[client].speaks(), self.settings.pools[pool].assignment);
        assert_eq!(self.clients[client].pool, pool, "a line is sent to the pool of its client");
        assert!(!self.denies(pool, client, &line), "a denied tool is called");
        let has_task = self.reads_task(at, client, &line);
        let bound = self.clients[client].bound.filter(|_| era == Era::Modern && !has_task);
        if let Some(bound) = bound {
            let takes = self.workers[bound].takes();
            assert!(bound == at || !takes, "client {client} is bound to worker {bound}");
        }
        let is_guest = has_task || self.is_listened_to(at, client);
        let worker = &mut self.workers[at];
        assert!(era == Era::Modern || !worker.may_be_pinned, "worker {at} may be pinned by the question");
        let pinned = *worker.pinned.get_or_insert(era);
        assert_eq!(pinned, era, "worker {at} is pinned to one era");
        if !worker.served.contains(&client) {
            worker.served.push(client);
        }
        if assignment == Assignment::Dedicated {
            let others = match era {
                Era::Legacy => worker.served.iter().any(|other| *other != client),
                // What names a task is sent to its worker, whoever has borrowed that.
                Era::Modern if is_guest => false,
                Era::Modern => {
                    let is_others = |work: &Work| work.client != client && work.given_up.is_none() && !work.is_guest;
                    worker.work.iter().any(is_others)
                }
            };
            assert!(!others, "worker {at} has one client at a time");
        }
        let greets = (line["method"] == "initialize").then(|| line["params"]["capabilities"]["kind"].as_u64());
        let greets = greets.map(|kind| kind.expect("a client's initialize") as usize);
        // Its client has the answer, or an error.
        let is_again = greets.is_some() && !self.clients[client].waiting.contains(&number);
        if let Some(kind) = greets.filter(|_| is_again) {
            self.is_greeted_again(at, client, kind);
        } else if greets.is_none() {
            self.check_greeted(at, client);
        }
        if !line["id"].is_null() {
            let is_second = greets.is_some() && std::mem::replace(&mut self.workers[at].has_begun, true);
            let (id, given_up) = (line["id"].clone(), None);
            let listens = line["method"] == "subscriptions/listen";
            let task = line["params"]["taskId"].as_str().map(str::to_owned);
            self.workers[at].work.push(Work {
                id,
                client,
                number,
                task,
                listens,
                given_up,
                greets,
                is_second,
                is_again,
                is_guest,
            });
        }
    }

    /// A worker reads an `initialize` that the bus has sent again.
    fn is_greeted_again(&mut self, at: usize, client: usize, kind: usize) {
        let worker = &self.workers[at];
        assert_ne!(self.settings.pools[worker.pool].assignment, Assignment::Dedicated, "nobody else has it");
        assert!(!worker.accepted.contains(&kind), "worker {at} has accepted one that asks for the same");
        assert!(worker.greeted.iter().all(|(greeted, ..)| *greeted != client), "once for client {client}");
        self.workers[at].greeted.push((client, self.ground.now, false));
    }

    /// A worker reads a line of a client: it knows the client's `initialize`, or one that asks for the same, unless it
    /// has refused it, or knows another one and cannot be sent that of the client.
    fn check_greeted(&self, at: usize, client: usize) {
        let worker = &self.workers[at];
        let is_shared = self.settings.pools[worker.pool].assignment != Assignment::Dedicated;
        let Some((kind, true)) = self.clients[client].greeting.filter(|_| is_shared) else { return };
        let was_asked = |(of, since, is_answered): &(usize, Moment, bool)| {
            *of == client && *is_answered || self.ground.now.since(*since) >= PATIENCE
        };
        let takes_no_more = self.take_one[worker.pool] && !worker.accepted.is_empty();
        let cannot_be_sent = self.clients[client].has_lost_initialize() && !worker.accepted.is_empty();
        let goes_on = takes_no_more || cannot_be_sent;
        let knows = worker.accepted.contains(&kind) || goes_on || worker.greeted.iter().any(was_asked);
        assert!(knows, "worker {at} knows nothing of client {client}");
    }

    pub(super) fn client_reads(&mut self, at: usize, line: &Value) {
        self.note(format!("client {at} reads {line}"));
        if line["method"] == "notifications/message" || line["method"] == "notifications/tasks" {
            return self.check_audience(at, line["params"]["of"].as_u64().expect("a worker") as usize);
        }
        if !line["method"].is_null() {
            assert_eq!(self.clients[at].speaks(), Era::Legacy, "a client of 2026-07-28 gets no requests");
            let of = line["params"]["of"].as_u64().expect("a worker") as usize;
            return self.check_audience(at, of);
        }
        if line["id"].is_null() {
            return;
        }
        let client = &mut self.clients[at];
        let id = line["id"].as_u64().or_else(|| line["id"].as_str()?.parse().ok()).expect("its own id") as usize;
        let modern = client.speaks() == Era::Modern;
        let is_it = |number: &usize| if modern { number % 3 == id } else { *number == id };
        let asked = client.waiting.iter().position(is_it).expect("a request is answered once");
        let number = client.waiting.remove(asked);
        if let Some((kind, is_answered)) = client.greeting.as_mut().filter(|(_, is_answered)| !*is_answered) {
            if line["result"].is_null() {
                client.greeting = None;
            } else {
                *is_answered = true;
                assert_eq!(line["result"]["kind"], json!(*kind), "an answer to what it asks for");
                self.answered += 1;
                return;
            }
        }
        let result = if line["result"].is_null() { &line["error"]["data"] } else { &line["result"] };
        if result["client"].is_u64() {
            assert_eq!((&result["client"], &result["number"]), (&json!(at), &json!(number)), "an answer is its own");
            self.answered += 1;
        } else {
            let reason = result["reason"].as_str().expect("an error of the bus has a reason").to_owned();
            let may_be = [
                "no_worker",
                "worker_exited",
                "own_worker_ended",
                "unsupported_protocol_version",
                "request_discarded",
                "initialize_lost",
                "session_denied",
                "tool_denied",
            ];
            assert!(may_be.contains(&reason.as_str()), "{line}");
            if reason == "session_denied" {
                self.check_refused_task(at, self.clients[at].naming.get(&number));
            }
            if reason == "tool_denied" {
                let asked = self.clients[at].naming.get(&number).expect("a call");
                assert!(self.denies(self.clients[at].pool, at, asked), "{asked} is denied");
            }
            assert!(reason != "initialize_lost" || self.clients[at].has_lost_initialize(), "{line}");
            let is_unsupported = reason == "unsupported_protocol_version";
            let era = self.eras[self.clients[at].pool];
            assert!(!is_unsupported || modern && era == Some(Era::Legacy), "{line}");
        }
    }

    /// This client gets a message of a worker that names no client.
    fn check_audience(&self, client: usize, worker: usize) {
        let at = &self.workers[worker];
        let (era, assignment) = (self.clients[client].speaks(), self.settings.pools[at.pool].assignment);
        if assignment == Assignment::Dedicated && era == Era::Modern {
            let fresh = |since: Moment| self.ground.now.since(since) < SILENT_FOR;
            let others = at.work.iter().filter(|work| work.client != client);
            let works_for_others = others.clone().any(|work| work.given_up.is_none_or(fresh));
            let has_it = at.work.iter().any(|work| work.client == client && work.given_up.is_none());
            assert!(has_it && !works_for_others, "client {client} gets what worker {worker} writes for others");
        } else {
            assert!(at.served.iter().all(|served| *served == client), "client {client} learns of others of {worker}");
        }
    }

    /// A worker is asked to stop: only the end of its own client is a reason for that.
    pub(super) fn check_stop(&self, at: usize) {
        let worker = &self.workers[at];
        let is_own =
            self.settings.pools[worker.pool].assignment == Assignment::Dedicated && worker.pinned != Some(Era::Modern);
        let has_left = |client: &usize| self.clients[*client].closing || self.may_be_evicted(*client);
        let is_left = is_own && worker.served.iter().all(has_left);
        // A spare one that was not needed for a while.
        let is_spare = worker.pinned == Some(Era::Modern) && worker.work.iter().all(|work| work.given_up.is_some());
        let live = self.workers.iter().filter(|other| other.pool == worker.pool && !other.released);
        let is_spare = is_spare && !self.works_on_task(at);
        let is_extra = is_spare && live.count() > self.settings.pools[worker.pool].instances;
        // Sessions have another one.
        let is_for_others = (worker.may_be_pinned || worker.is_late) && worker.served.is_empty();
        // It was started to be asked for clients that its command does not serve, since others had come before.
        let has_asked = |client: &SimClient| client.pool == worker.pool && client.next > 0;
        let has_others = self.clients.iter().any(|client| has_asked(client) && client.speaks() == Era::Legacy);
        let is_known = self.eras[worker.pool] == Some(Era::Legacy);
        let is_beside = worker.served.is_empty() && worker.may_be_asked && has_others && is_known;
        // Its pool falls asleep, or becomes smaller.
        let pool = &self.settings.pools[worker.pool];
        let is_over = |work: &Work| {
            let client = &self.clients[work.client];
            // Nobody waits for the answer to an `initialize` that the bus has sent again if the client continues
            // elsewhere.
            work.given_up.is_some() || client.closing || work.is_again && !client.wire.paused
        };
        let is_unneeded = worker.work.iter().all(is_over) && !self.works_on_task(at);
        let sleeps = ends_what_is_idle(pool) && is_unneeded;
        let is_unwanted = is_left || is_extra || is_for_others || is_beside || sleeps;
        assert!(is_unwanted || worker.is_gone(), "worker {at} is asked to stop");
    }

    pub(super) fn check(&mut self) {
        self.ground.bus.check_invariants();
        for pool in 0..self.settings.pools.len() {
            assert_eq!(self.ground.bus.view().pool_era(pool), self.eras[pool], "of pool {pool}");
            let here = &self.settings.pools[pool];
            let leaves = |worker: &SimWorker| (worker.may_be_pinned || worker.is_late) && worker.pinned.is_none();
            // Others may be started while those that nobody needs are ending.
            let counts = |worker: &&SimWorker| {
                let others_may_end = here.start == Start::OnDemand || ends_what_is_idle(here);
                worker.pool == pool && !worker.released && (!others_may_end || worker.takes())
            };
            let of_pool = self.workers.iter().filter(counts);
            let live: Vec<&SimWorker> = of_pool.filter(|worker| !leaves(worker)).collect();
            let of = |era: Era| live.iter().filter(|worker| worker.pinned == Some(era)).count();
            assert!(of(Era::Modern) <= here.max_instances && of(Era::Legacy) <= here.max_instances);
            assert!(live.len() <= 2 * here.max_instances);
            // A client that has sent no request, or waits, needs no worker.
            let uses = |era: Era| {
                self.clients.iter().any(|client| client.pool == pool && client.next > 0 && client.speaks() == era)
            };
            if !uses(Era::Modern) || !uses(Era::Legacy) {
                assert!(live.len() <= here.max_instances, "one era has the workers of one");
            }
            let is_ready = self.ground.bus.view().pool_readiness(pool).is_some_and(|ready| ready.is_ready());
            let runs = self.workers.iter().any(|worker| worker.pool == pool && !worker.released && worker.runs());
            // One may be started in the place of another that has to give way.
            let may_end = |(at, client): (usize, &SimClient)| client.pool == pool && self.may_be_evicted(at);
            let makes_room = self.clients.iter().enumerate().any(may_end);
            let may_start = here.start == Start::OnDemand;
            assert!(!is_ready || runs || makes_room || may_start, "a pool is ready in which none runs");
            // One that is asleep has no workers, and nobody waits for them.
            let is_asleep = self.ground.bus.view().is_asleep(pool);
            assert!(!is_asleep || may_start && live.iter().all(|worker| !worker.takes() || worker.work.is_empty()));
        }
        for client in self.clients.iter().filter(|client| client.speaks() == Era::Modern && !client.closing) {
            let is_idle = |worker: &&SimWorker| {
                let takes = worker.takes() && worker.pinned == Some(Era::Modern);
                worker.pool == client.pool && takes && worker.work.is_empty()
            };
            // A crash suspect is not read for a while.
            let has_suspects = self.ground.bus.view().count(Reason::CrashSuspect) > 0;
            let waits = client.wire.paused && client.bound.is_none() && !has_suspects;
            assert!(
                !waits || !self.workers.iter().any(|worker| is_idle(&worker)),
                "a client waits before a free worker"
            );
        }
        for reason in [Reason::UnknownId, Reason::LateAnswer, Reason::WorkerAnswersTwice, Reason::WorkerMalformed] {
            assert_eq!(self.ground.bus.view().count(reason), 0, "{}", reason.name());
        }
    }
}

/// Whether workers of a pool end that nobody needs.
fn ends_what_is_idle(pool: &Pool) -> bool {
    let grows = pool.assignment != Assignment::Dedicated && pool.max_instances > pool.instances;
    (pool.start == Start::OnDemand || grows) && pool.idle_stop.is_some()
}
