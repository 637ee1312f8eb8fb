//! The actions of workers.

use super::wires::any_token;
use super::{Todo, World};
use crate::bus::port::{Exit, Input, Peer, SpawnFailure};
use crate::bus::settings::SessionAccess;
use crate::line::{Draft, Ids, Kind, LISTS, Line, Meant, Party};
use crate::peers::Received;

impl World {
    pub(super) fn spawned(&mut self, at: usize, runs: bool) {
        let fault = if self.random.one_in(3) { SpawnFailure::Shortage } else { SpawnFailure::Command };
        let worker = &mut self.workers[at];
        let (key, party) = (worker.key, Some(Party::Worker(at)));
        if runs {
            worker.process.spawned(true);
            self.model.runs(self.now, at);
            self.handle("runs", party, Input::Spawned { worker: key, pid: 1000 + at as u32 });
        } else {
            worker.process.spawned(false);
            worker.end.ignored = true;
            let queued = worker.end.queue.iter().filter(|byte| **byte == b'\n').count();
            self.model.cannot_start(at, queued);
            self.handle(
                "cannot be started",
                party,
                Input::SpawnFailed { worker: key, why: "no such file".into(), fault },
            );
        }
    }

    pub(super) fn exit(&mut self, at: usize, exit: Exit) {
        let half = self.random.one_in(3);
        let now = self.now;
        let worker = &mut self.workers[at];
        let is_closed = worker.process.exits(now);
        if half
            && !worker.end.ended
            && worker.end.lines.back().is_none_or(|(line, _)| self.model.lines[*line].kind != Kind::TooLong)
        {
            worker.end.wire.extend(b"{\"half\":\"a li");
        }
        worker.end.ended |= is_closed;
        worker.end.broken = true;
        worker.end.half_read.clear();
        let key = worker.key;
        self.model.stops(at);
        self.handle("exits", Some(Party::Worker(at)), Input::Exited { worker: key, exit });
    }

    pub(super) fn worker_reads(&mut self, worker: usize, number: Option<usize>, ids: Ids) {
        // A line of the bus itself is about a session that the worker keeps, or an answer.
        let Some(number) = number else { return };
        let line = self.model.lines[number].clone();
        let (Party::Client(client), false) = (line.from, line.kind == Kind::Response) else { return };
        let (sent, order) = self.passage.sent(number).expect("it was passed on");
        let shared = self.settings.routing.session_access == SessionAccess::Shared;
        let received = Received { client, number, line: &line, ids: &ids, sent, order };
        let clients = &self.clients;
        let at = &mut self.workers[worker];
        at.view.receive(&received, shared, |client| clients[client].left);
        if let Some(token) = ids.id {
            let made = if line.creates() { at.view.makes(worker, client, &mut self.random) } else { None };
            at.todo.push_back(Todo { token, line: number, progress: ids.token, made, again: false });
        }
    }

    pub(super) fn worker_writes(&mut self, at: usize) {
        let party = Party::Worker(at);
        if !self.can_write(at) {
            return;
        }
        let padding = self.padding();
        self.read_lines(party);
        let busy = if self.workers[at].view.slow { 12 } else { 2 };
        if !self.workers[at].todo.is_empty() && self.random.one_in(busy) {
            return self.worker_answers(at);
        }
        let token = self.workers[at].next_id.to_string();
        let mut draft = Draft { ids: Ids::of(token), padding, ..Draft::default() };
        let session = self.any_session(at, &mut draft);
        let (random, worker) = (&mut self.random, &mut self.workers[at]);
        match random.range(0..6) {
            0 | 1 => draft.top = session,
            2 => (draft.junk_on_top, draft.inner) = (Some("\"\""), session),
            _ => draft.inner = session,
        }
        let unnamed = |draft: &mut Draft| (draft.top, draft.inner, draft.meant_for) = (None, None, None);
        match random.range(0..20) {
            0..10 => (draft.method, draft.ids.id) = ("session/update", None),
            10 | 11 if !worker.todo.is_empty() => {
                draft.method = "elicitation/create";
                let of = random.range(0..worker.todo.len());
                draft.ids.request_id = Some(worker.view.write_id(&worker.todo[of].token));
                if random.one_in(2) {
                    unnamed(&mut draft);
                }
            }
            12 if !worker.waiting.is_empty() => {
                (draft.method, draft.ids.id) = ("$/cancel_request", None);
                draft.ids.request_id = Some(random.pick(&worker.waiting).0.clone());
                if random.one_in(2) {
                    unnamed(&mut draft);
                }
            }
            13 if worker.view.careless => {
                let (result, number) = (random.one_in(2), random.range(0..50));
                let token = if random.one_in(2) { number.to_string() } else { format!("\"{number}\"") };
                worker.view.answers_unasked(&token);
                draft = Draft { ids: Ids::of(token), result, ..Draft::default() };
            }
            14 => return self.write(party, Line::raw(party, Kind::Blank, String::new())),
            15 if random.one_in(5) => {
                draft.method = "long/id";
                draft.ids.id = Some(format!("\"{}\"", "i".repeat(129)));
            }
            19 if random.one_in(2) => {
                (draft.method, draft.ids.id) = (*random.pick(&LISTS), None);
                unnamed(&mut draft);
            }
            16 | 17 if !worker.todo.is_empty() || !worker.over.is_empty() => return self.worker_notifies(at, padding),
            _ => draft.method = "session/request_permission",
        }
        if draft.ids.id.is_some() && !draft.method.is_empty() {
            draft.ids.token = any_token(random, draft.ids.id.as_deref());
            worker.next_id += 1;
        }
        self.draft(party, draft);
    }

    /// A worker writes much that has no receiver: messages in a session that nobody has, or blank lines.
    pub(super) fn flood(&mut self, at: usize) {
        let party = Party::Worker(at);
        let (lines, is_blank) = (self.random.range(200..2000), self.random.one_in(3));
        let blank = " ".repeat(self.random.range(0..500));
        for _ in 0..lines {
            if is_blank {
                self.write(party, Line::raw(party, Kind::Blank, blank.clone()));
            } else {
                let inner = Some("nobody's".to_owned());
                self.draft(party, Draft { method: "session/update", inner, ..Draft::default() });
            }
        }
    }

    /// A session that a worker may name, and the client it means.
    fn any_session(&mut self, at: usize, draft: &mut Draft) -> Option<String> {
        let (random, worker) = (&mut self.random, &mut self.workers[at]);
        match random.range(0..10) {
            0 => None,
            1 => Some("nobody's".to_owned()),
            // One that it has created and not announced yet.
            2 if worker.todo.iter().any(|todo| todo.made.is_some()) => {
                let made = worker.todo.iter().filter_map(|todo| Some((todo.made.clone()?, todo.line)));
                let made: Vec<_> = made.filter(|(name, _)| worker.view.is_unannounced(name)).collect();
                let (name, line) = (!made.is_empty()).then(|| random.pick(&made).clone())?;
                let Party::Client(client) = self.model.lines[line].from else { return None };
                draft.meant_for = Some(Meant { name: name.clone(), owner: client, issued: true });
                Some(name)
            }
            _ => {
                draft.meant_for = worker.view.any_session(random);
                draft.meant_for.as_ref().map(|meant| meant.name.clone())
            }
        }
    }

    /// A worker sends a message for a request: one that it works on, or one that is over or never existed.
    fn worker_notifies(&mut self, at: usize, padding: usize) {
        let (random, worker) = (&mut self.random, &mut self.workers[at]);
        let mut draft = Draft { padding, ..Draft::default() };
        let mut referred_to = usize::MAX;
        if !worker.over.is_empty() && (worker.todo.is_empty() || random.one_in(3)) {
            return self.worker_notifies_late(at, draft);
        } else if worker.todo.is_empty() || random.one_in(6) {
            draft.ids.progress = Some(random.range(0..50).to_string());
        } else {
            let todo = &worker.todo[random.range(0..worker.todo.len())];
            // An unsolicited answer may have been taken for this one.
            if !todo.again && !worker.view.has_answered_unasked(&todo.token) {
                referred_to = todo.line;
            }
            match &todo.progress {
                Some(token) if !random.one_in(3) => draft.ids.progress = Some(worker.view.write_id(token)),
                _ => draft.ids.subscription = Some(worker.view.write_id(&todo.token)),
            }
        }
        self.notifies(Party::Worker(at), draft, referred_to);
    }

    /// A worker speaks of a request that it has answered: of its progress, in its subscription, or it asks its client.
    fn worker_notifies_late(&mut self, at: usize, mut draft: Draft) {
        let (random, worker) = (&mut self.random, &mut self.workers[at]);
        let over = random.pick(&worker.over).clone();
        draft.over = Some(over.line);
        match over.progress {
            Some(token) if random.one_in(2) => draft.ids.progress = Some(worker.view.write_id(&token)),
            _ if random.one_in(2) => draft.ids.subscription = Some(worker.view.write_id(&over.token)),
            _ => {
                draft.method = "elicitation/create";
                draft.ids.id = Some(worker.next_id.to_string());
                draft.ids.request_id = Some(worker.view.write_id(&over.token));
                worker.next_id += 1;
                return self.draft(Party::Worker(at), draft);
            }
        }
        self.notifies(Party::Worker(at), draft, usize::MAX);
    }

    pub(super) fn can_write(&self, at: usize) -> bool {
        let worker = &self.workers[at];
        worker.process.runs() && !worker.end.ended
    }

    pub(super) fn worker_answers(&mut self, at: usize) {
        if !self.can_write(at) {
            return;
        }
        let padding = self.padding();
        let (random, worker) = (&mut self.random, &mut self.workers[at]);
        let which = if random.one_in(2) { 0 } else { random.range(0..worker.todo.len()) };
        let Some(todo) = worker.todo.remove(if self.healing { 0 } else { which }) else { return };
        // The bus takes an answer under -1 that it does not wait for to be the one to 9007199254740991, cut to 32 bits; its
        // own tests show that.
        let may_be_cut = todo.token.starts_with('-');
        if worker.view.careless && !self.healing && random.one_in(8) && !may_be_cut {
            worker.todo.push_back(Todo { again: true, ..todo.clone() });
        }
        let asked = &self.model.lines[todo.line];
        if todo.again {
            worker.view.answers_unasked(&todo.token);
        }
        let result = !random.one_in(5) && (!asked.loads() || worker.view.can_load(todo.line, asked));
        if let (false, Some(name)) = (result, &todo.made) {
            worker.view.discards_session(name);
        }
        let mut result_session = todo.made.clone().filter(|_| result);
        if result && worker.view.careless && random.one_in(4) {
            let name = random.range(0..3).to_string();
            if let Some(made) = &result_session {
                worker.view.discards_session(made);
            }
            worker.view.reuses_name(name.clone());
            result_session = Some(name);
        } else if let (None, Some(name), true) = (&result_session, &asked.inner, result && asked.loads())
            && random.one_in(3)
        {
            if asked.method == "session/fork" {
                // The original and its copy have the same name.
                worker.view.reuses_name(name.clone());
            }
            result_session = Some(name.clone());
        }
        worker.view.answered(todo.line, asked, result, result_session.as_deref());
        worker.over.push(todo.clone());
        let ends = result && (asked.method == "subscriptions/listen" || random.one_in(20));
        let draft = Draft {
            ids: Ids {
                subscription: ends.then(|| worker.view.write_id(&todo.token)),
                ..Ids::of(worker.view.write_id(&todo.token))
            },
            result,
            result_session,
            padding,
            answers: Some(todo.line),
            again: todo.again,
            ..Draft::default()
        };
        self.draft(Party::Worker(at), draft);
    }

    pub(super) fn break_stdin(&mut self, at: usize) {
        let worker = &mut self.workers[at];
        if !worker.process.runs() || worker.end.broken {
            return;
        }
        worker.end.broken = true;
        let (worker, bytes) = (worker.key, worker.end.half_read.len());
        let peer = Peer::Worker(worker);
        self.handle("is looked at", Some(Party::Worker(at)), Input::UnreadMeasured { worker, bytes });
        self.model.stops(at);
        self.handle(
            "closes its stdin",
            Some(Party::Worker(at)),
            Input::OutputBroken { peer, why: "broken pipe".into() },
        );
    }
}
