//! The outcome of a line: it was queued for a peer, it was dropped, or its sender got an error.

use super::{Early, Fate, Model, reason_of};
use crate::bus::port::Moment;
use crate::bus::report::Reason;
use crate::line::{Kind, Party, is_cancellation, own_id_of, value_of};

impl Model {
    /// The bus has queued line `number` for `to`, as `text`.
    pub fn forwarded(&mut self, now: Moment, number: usize, to: Party, text: &[u8]) {
        let line = self.lines[number].clone();
        if self.is_early(number) {
            assert!(line.ids_of(text).is_some(), "line {number} was changed:\n{line:?}\n{}", text.escape_ascii());
            self.early_line(number, to);
            return self.queued(now, to, text.len());
        }
        self.begins_for_all(number);
        let fate = match line.from {
            Party::Client(client) => self.fate_of_client_line(now, client, &line),
            Party::Worker(worker) => self.fate_of_worker_line(worker, &line),
        };
        let is_for_all = matches!(line.from, Party::Worker(worker) if !self.broadcast_to(worker, &line).is_empty());
        if let (true, Party::Client(client)) = (is_for_all, to) {
            self.outputs.notify_list(client, line.list().unwrap_or_default(), number, text.len());
        }
        assert!(fate.to.contains(&to), "line {number} went to {to:?}, but {fate:?}: {line:?}");
        // Output for a slow reader must not hold up the clients that share its worker.
        let limit = self.settings.limits.max_output_queue;
        let queued = self.outputs.queued(to);
        let may_be_full = matches!((line.from, to), (Party::Worker(worker), Party::Client(client))
            if queued <= 4 * limit && (self.is_shared(worker, client) || self.was_shared(now, worker, client)));
        assert!(may_be_full || is_for_all || !self.is_full(to), "line {number} was queued for {to:?}, which is full");
        let Some(ids) = line.ids_of(text) else {
            panic!("line {number} was changed:\n{line:?}\n{}", text.escape_ascii());
        };
        self.outputs.pass(line.from, to, number);
        match (line.from, to) {
            (Party::Client(client), Party::Worker(worker)) => _ = self.workers[worker].served.insert(client),
            (Party::Worker(worker), _) => self.workers[worker].health.surely(now),
            (Party::Client(_), Party::Client(_)) => {}
        }
        match (line.from, to) {
            (Party::Client(client), Party::Worker(worker)) if line.kind != Kind::Response => {
                self.client_message(now, number, client, worker, &fate, &ids)
            }
            (Party::Worker(worker), Party::Client(client)) if line.kind != Kind::Response => {
                self.worker_message(now, number, worker, client, &ids)
            }
            (Party::Worker(worker), Party::Client(client)) => self.worker_response(now, number, worker, client, &ids),
            (Party::Client(_), Party::Worker(_)) => {
                let request = self.answered_by(number, false);
                self.question_ends(now, &request);
                self.let_go();
                let expected = if request.replaced { Some(&request.token) } else { line.ids.id.as_ref() };
                assert_eq!(ids.id.as_ref(), expected, "the id of a worker was not restored");
            }
            _ => panic!("{:?} spoke to {to:?}", line.from),
        }
        self.queued(now, to, text.len());
    }

    /// The bus has taken line `number` and queued it for no peer. Returns the reason that it must have had.
    pub fn dropped(&mut self, now: Moment, number: usize) -> Option<Reason> {
        let line = self.lines[number].clone();
        if line.kind == Kind::Blank {
            return None;
        }
        assert!(!matches!(line.kind, Kind::Malformed | Kind::TooLong), "a bad line passed: {line:?}");
        self.begins_for_all(number);
        self.outputs.end_for_all();
        if let Party::Worker(worker) = line.from
            && !self.broadcast_to(worker, &line).is_empty()
        {
            // Some of them are still to get the same error.
            return None;
        }
        let mut fate = match line.from {
            Party::Client(client) => self.fate_of_client_line(now, client, &line),
            Party::Worker(worker) => self.fate_of_worker_line(worker, &line),
        };
        if let Party::Client(client) = line.from
            && fate.group.is_some()
            && self.is_paced(now, client, &line)
        {
            fate.lost.push(Reason::NoWorker);
        }
        if let Party::Worker(worker) = line.from
            && fate.lost == [Reason::UnknownSession]
            && self.waits_for_session(worker, &line)
        {
            let in_doubt = !self.step.take_lost_before(number).is_empty();
            let bytes = line.bytes().len();
            self.workers[worker].early.push(Early { number, bytes, since: now, in_doubt });
            return None;
        }
        if self.may_be_overdue(now, number) {
            fate.lost.push(Reason::Timeout);
        }
        let fate = Fate { lost: [fate.lost, self.step.take_lost_before(number)].concat(), ..fate };
        let refusal = self.counts.take_refusal().filter(|_| line.kind == Kind::Request);
        let Some(reason) = refusal.or(fate.lost.first().copied()) else {
            panic!("line {number} was lost; it should have gone to {:?}: {line:?}", fate.to)
        };
        assert!(fate.lost.contains(&reason), "line {number} is refused: {reason:?}, but {fate:?}: {line:?}");
        if refusal.is_none() && fate.lost.iter().any(|other| *other != reason) {
            self.counts.count_one_of(fate.lost);
        } else {
            self.count(reason);
        }
        self.wastes(line.from);
        if reason == Reason::LateAnswer {
            self.late_answer(now, number);
        }
        if let Party::Client(client) = line.from {
            if is_cancellation(line.method) && reason != Reason::ShuttingDown {
                self.rests(now, client);
            }
            self.perhaps_done(now, client, &line);
        }
        if let (Reason::UnknownId, Party::Worker(worker)) = (reason, line.from) {
            let worker = &mut self.workers[worker];
            if !std::mem::replace(&mut worker.answers_twice, true) {
                self.count(Reason::WorkerAnswersTwice);
            }
        }
        let gets_error = match line.from {
            Party::Client(_) => true,
            Party::Worker(worker) => self.workers[worker].takes,
        };
        if line.kind == Kind::Request && gets_error {
            let token = line.ids.id.clone().expect("a request has an id");
            self.counts.expect_reply(line.from, token, reason.error_name());
        }
        Some(reason)
    }

    /// Whether a request may have waited for its whole time before it could be forwarded.
    fn may_be_overdue(&self, now: Moment, number: usize) -> bool {
        let (line, at) = (&self.lines[number], self.presented_at(now, number));
        let mut limits = self.settings.pools.iter().filter_map(|pool| pool.request_timeout);
        line.kind == Kind::Request && !line.listens() && limits.any(|limit| at.after(limit) <= now)
    }

    /// Whether this line of the bus refuses a message that is being received.
    pub fn said_refusal(&mut self, hearing: Option<Party>, to: Party, text: &[u8]) -> bool {
        let value = value_of(text);
        // Those are errors for earlier requests.
        let is_of_before = ["client_left", "request_discarded"]
            .contains(&value["error"]["data"]["reason"].as_str().unwrap_or_default());
        let refuses = hearing == Some(to) && !value["id"].is_null() && !is_of_before;
        self.counts.refuses_next(value["error"]["data"]["reason"].as_str().filter(|_| refuses).map(reason_of));
        refuses
    }

    /// The bus has queued a line of its own for `to`. `hearing` is the peer whose bytes it received.
    pub fn said(&mut self, now: Moment, hearing: Option<Party>, to: Party, text: &[u8]) {
        self.queued(now, to, text.len());
        let value = value_of(text);
        if value["method"] == "session/cancel" {
            let Party::Worker(worker) = to else { panic!("a client was asked to cancel") };
            let name = value["params"]["sessionId"].as_str().expect("a session has a name");
            assert!(self.settings.pools[self.workers[worker].pool].cancel_on_disconnect);
            let owned = self.sessions.iter().any(|session| session.worker == worker && session.name == name);
            // A dedicated worker may have been asked in a name that a late answer gave out.
            let held = self.held.iter().any(|held| held.worker == worker && held.name == name);
            assert!(owned || held && self.workers[worker].owner.is_some(), "{name} is cancelled, and has no owner");
            assert!(self.workers[worker].takes, "a worker that does not listen is spoken to");
            return;
        }
        if ["$/cancel_request", "$/cancelRequest", "notifications/cancelled"]
            .iter()
            .any(|name| value["method"] == *name)
        {
            assert!(self.is_there(to), "a peer that does not listen is spoken to");
            let params = &value["params"];
            let id = if params["id"].is_null() { &params["requestId"] } else { &params["id"] };
            return self.withdrawn(now, to, &id.to_string());
        }
        let reason = value["error"]["data"]["reason"].as_str().expect("an error has a reason").to_owned();
        if value["id"].is_null() {
            assert!(matches!(to, Party::Client(_)) && value["error"]["code"].is_i64());
            return;
        }
        let id = own_id_of(text).expect("an error has an id");
        if reason == "client_left" {
            let at = self.to_clients.iter().position(|request| request.asker == Some(to) && request.token == id);
            let request = self.to_clients.remove(at.expect("a request of a worker was pending"));
            self.question_ends(now, &request);
            let Party::Client(client) = request.answerer else { panic!("{request:?}") };
            self.count(Reason::ClientLeft);
            assert!(self.is_there(to), "a worker that does not listen is spoken to");
            assert!(!self.clients[client].closed);
            return;
        }
        let is_replaced = reason == Reason::WorkerReplaced.name();
        let reason = reason_of(&reason);
        if hearing == Some(to) && reason != Reason::RequestDiscarded {
            self.counts.see_reply(to, id, reason.error_name());
            return;
        }
        self.gave_up(now, to, &id, reason, is_replaced);
    }

    /// A client is closed while these lines of a worker are received: which of them came before is unknown.
    pub fn closes_amid(&mut self, lines: impl Iterator<Item = usize>) {
        for number in lines {
            if let Party::Worker(worker) = self.lines[number].from {
                let line = &self.lines[number];
                let lost = self.fate_of_worker_line(worker, line).lost;
                // A line that waits for its session was not lost.
                if lost != [Reason::UnknownSession] || !self.waits_for_session(worker, line) {
                    self.step.may_be_lost(number, lost);
                }
            }
        }
    }

    /// The recipients of a broadcast: every client that has read the previous one.
    fn begins_for_all(&mut self, number: usize) {
        if self.outputs.is_for_all(number) {
            return;
        }
        self.outputs.end_for_all();
        let line = &self.lines[number];
        let (Party::Worker(worker), Some(list)) = (line.from, line.list()) else { return };
        let clients = self.broadcast_to(worker, line);
        self.outputs.begin_for_all(number, list, clients);
    }
}
