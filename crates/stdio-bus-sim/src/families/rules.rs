//! Who holds which session, and what each peer may read.

use serde_json::{Value, json};

use super::{Said, Work, World};
use crate::bus::port::Peer;
use crate::bus::report::Reason;
use crate::small::SmallWorld;

/// A session that a worker has made or announced.
pub(super) struct Session {
    pub(super) name: String,
    worker: usize,
    /// The session that it is a child of.
    parent: Option<usize>,
    /// The client that has it; that of a child is its parent's.
    holder: Option<usize>,
    /// The worker has given it to its holder.
    is_sure: bool,
    /// It has begun and not ended.
    is_known: bool,
    /// How often a session of this name has ended.
    life: usize,
    /// The name under which it was made.
    bound: Option<&'static str>,
}

impl World {
    fn root(&self, mut session: usize) -> usize {
        while let Some(parent) = self.sessions[session].parent {
            session = parent;
        }
        session
    }

    /// The client that has a session.
    pub(super) fn holder(&self, session: usize) -> Option<usize> {
        self.sessions[self.root(session)].holder.filter(|_| self.sessions[session].is_known)
    }

    /// The client that receives what a worker writes in a session: the one that has it, or while it has not begun the one that has
    /// asked the worker for it.
    fn receiver(&self, session: usize) -> Option<usize> {
        let root = self.root(session);
        if self.sessions[root].is_known {
            return self.holder(session);
        }
        // A request from before it was closed asks for the one that has ended.
        let Session { life, worker, .. } = self.sessions[root];
        let is_in_it = |work: &&Work| work.session == Some(root) && work.life == life;
        let asks = |work: &&Work| is_in_it(work) && work.method == "session/load" && !work.given_up;
        self.workers[worker].work.iter().find(asks).map(|work| work.client)
    }

    fn is_sure(&self, session: usize) -> bool {
        self.sessions[self.root(session)].is_sure
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.sessions.iter().position(|session| session.name == name)
    }

    /// A session ends with its children.
    fn ends(&mut self, session: usize) {
        let children: Vec<usize> =
            (0..self.sessions.len()).filter(|at| self.sessions[*at].parent == Some(session)).collect();
        children.into_iter().for_each(|child| self.ends(child));
        let session = &mut self.sessions[session];
        (session.is_known, session.parent, session.holder) = (false, None, None);
        session.life += 1;
    }

    /// A session was given to a client of this name, with its children.
    fn binds(&mut self, session: usize, name: Option<&'static str>) {
        let children: Vec<usize> =
            (0..self.sessions.len()).filter(|at| self.sessions[*at].parent == Some(session)).collect();
        children.into_iter().for_each(|child| self.binds(child, name));
        let bound = &mut self.sessions[session].bound;
        *bound = bound.or(name);
    }

    fn family(&self, root: usize) -> Vec<usize> {
        (0..self.sessions.len()).filter(|at| self.root(*at) == root).collect()
    }

    /// A client has left: what it had is nobody's, and what it asked is answered to nobody.
    pub(super) fn is_left(&mut self, at: usize) {
        for session in &mut self.sessions {
            session.holder.take_if(|holder| *holder == at);
        }
        for worker in &mut self.workers {
            worker.work.iter_mut().filter(|work| work.client == at).for_each(|work| work.given_up = true);
        }
    }

    /// A worker has ended, and its sessions with it.
    pub(super) fn is_gone(&mut self, at: usize) {
        (0..self.sessions.len())
            .filter(|of| self.sessions[*of].worker == at)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|session| self.ends(session));
        self.workers[at].work.clear();
        self.workers[at].questions.clear();
    }

    pub(super) fn worker_reads(&mut self, at: usize, line: &Value) {
        self.note(format!("worker {at} reads {line}"));
        let Some(method) = line["method"].as_str() else {
            let id = line["id"].as_str().expect("a question's id").to_owned();
            let questions = &mut self.workers[at].questions;
            let asked = questions.iter().position(|question| *question == id);
            questions.remove(asked.expect("a question is answered once"));
            return;
        };
        self.may_announce |= method == "initialize" && self.knows_children;
        let Some(client) = line["params"]["client"].as_u64().map(|client| client as usize) else {
            // The bus cancels what a client has left.
            return;
        };
        if self.is_dedicated {
            let owner = *self.workers[at].owner.get_or_insert(client);
            assert_eq!(owner, client, "worker {at} has one client");
        }
        let name = line["params"]["sessionId"].as_str();
        let session = name.and_then(|name| self.find(name)).filter(|session| self.sessions[*session].worker == at);
        if let Some(session) = session.filter(|_| !self.is_dedicated) {
            self.is_used(session, client, method);
        } else if name.is_some() && !self.is_dedicated {
            assert_eq!(method, "session/load", "client {client} reaches worker {at} in {name:?}");
        }
        if !line["id"].is_null() {
            let (id, method) = (line["id"].clone(), method.to_owned());
            let life = session.map_or(0, |session| self.sessions[session].life);
            self.workers[at].work.push(Work { id, client, method, session, life, given_up: false });
        }
    }

    /// A client's line in a session has reached its worker.
    fn is_used(&mut self, session: usize, client: usize, method: &str) {
        let (name, loads) = (self.clients[client].name, method == "session/load");
        let root = self.root(session);
        if !self.sessions[session].is_known {
            return assert!(loads, "client {client} reaches a session that has ended");
        }
        match self.sessions[root].holder {
            Some(holder) if holder == client => {
                // A child may have been loaded by itself.
                let is_its = self.sessions[root].is_sure || session != root;
                assert!(loads || is_its, "client {client} has not loaded it yet");
            }
            Some(holder) => {
                let has_come_back = name.is_some() && name == self.clients[holder].name;
                assert!(has_come_back, "client {client} reaches a session of client {holder}");
                let family = self.family(root);
                for work in self.workers.iter_mut().flat_map(|worker| &mut worker.work) {
                    let is_in_it = work.session.is_some_and(|session| family.contains(&session));
                    work.given_up |= work.client == holder && is_in_it;
                }
                self.sessions[root].holder = Some(client);
            }
            // A child that it has loaded while its parent has not begun.
            None if session != root && self.receiver(session) == Some(client) => {}
            None => {
                assert!(loads, "client {client} reaches a session that nobody has");
                let bound = self.sessions[session].bound;
                assert!(bound.is_none() || bound == name, "client {client} loads a session of {bound:?}");
                let session = &mut self.sessions[session];
                (session.parent, session.holder, session.is_sure) = (None, Some(client), false);
            }
        }
    }

    /// A worker answers a request.
    pub(super) fn answers(&mut self, at: usize) {
        if self.workers[at].work.is_empty() {
            return;
        }
        let which = self.ground.random.range(0..self.workers[at].work.len());
        if self.workers[at].work[which].method == "session/load" && self.ground.random.one_in(2) {
            self.sends_history(at, which);
            if which >= self.workers[at].work.len() {
                return;
            }
        }
        let Work { id, client, method, session, life, given_up } = self.workers[at].work.remove(which);
        let knows = session.is_some_and(|session| self.sessions[session].is_known);
        let fails = match &*method {
            "session/load" => !knows || self.ground.random.one_in(4),
            "initialize" => false,
            _ => self.ground.random.one_in(6),
        };
        let mut answer = json!({"jsonrpc": "2.0", "id": id});
        if fails {
            answer["error"] = json!({"code": -32000, "message": "no", "data": {"client": client}});
        } else {
            answer["result"] = json!({"client": client});
        }
        let made = (method == "session/new" && !fails).then_some(self.sessions.len());
        if let Some(made) = made {
            let name = format!("w{at}-{made}");
            answer["result"]["sessionId"] = json!(name);
            let (holder, is_sure, is_known) = (Some(client).filter(|_| !given_up), true, true);
            let bound = self.clients[client].name.filter(|_| !given_up);
            let (parent, life) = (None, 0);
            self.sessions.push(Session { name, worker: at, parent, holder, is_sure, is_known, life, bound });
        }
        let is_same = |session: &usize| !given_up && self.sessions[*session].life == life;
        if let Some(session) = session.filter(is_same) {
            let root = self.root(session);
            if method == "session/load" && !(self.sessions[root].is_known && self.is_sure(root)) {
                if fails {
                    self.refuses(at, client, session);
                } else if self.holder(session) == Some(client) || self.receiver(session) == Some(client) {
                    // A child that is given out ahead of its parent is a session of its own.
                    let given = &mut self.sessions[session];
                    (given.parent, given.holder, given.is_sure) = (None, Some(client), true);
                    self.binds(session, self.clients[client].name);
                }
            } else if method == "session/close" && knows && !fails {
                self.ends(session);
            }
        }
        self.note(format!("worker {at} answers {answer}"));
        self.write(Peer::Worker(self.workers[at].key), &answer);
    }

    /// A worker does not load a session that it has not given to this client. A child stays with its parent; if that is
    /// refused, those children remain that the client has asked for by themselves.
    fn refuses(&mut self, at: usize, client: usize, session: usize) {
        if self.root(session) != session || self.awaits(at, client, session) {
            return;
        }
        for child in self.family(session) {
            if child != session && self.awaits(at, client, child) {
                let asked = &mut self.sessions[child];
                (asked.parent, asked.holder, asked.is_sure) = (None, Some(client), false);
            }
        }
        self.sessions[session].holder.take_if(|holder| *holder == client);
    }

    /// Whether a client waits for one more answer of this worker in a session.
    fn awaits(&self, at: usize, client: usize, session: usize) -> bool {
        let is_in_it = |work: &Work| work.session == Some(session) && work.life == self.sessions[session].life;
        let is_its = |work: &Work| work.client == client && is_in_it(work) && !work.given_up;
        self.workers[at].work.iter().any(is_its)
    }

    /// Before it answers a request to load, a worker writes of the session, and of what was in it.
    fn sends_history(&mut self, at: usize, which: usize) {
        let Some(session) = self.workers[at].work[which].session else { return };
        if !self.sessions[session].is_known || self.workers[at].terminated {
            return;
        }
        let name = self.sessions[session].name.clone();
        self.updates(at, &name);
        let child = self.any_child(at);
        self.announces(at, &name, &child);
        self.updates(at, &child);
    }

    /// A name for a child: a new one, one that the worker has spoken in ahead, or any of its sessions.
    fn any_child(&mut self, at: usize) -> String {
        let own: Vec<usize> = (0..self.sessions.len()).filter(|of| self.sessions[*of].worker == at).collect();
        match self.ground.random.range(0..8) {
            0 if !own.is_empty() => {
                let own = *self.ground.random.pick(&own);
                self.sessions[own].name.clone()
            }
            1..5 if !self.workers[at].early.is_empty() => self.workers[at].early.remove(0),
            _ => format!("w{at}-child-{}", self.said.len()),
        }
    }

    /// A worker says something in one of its sessions, announces a child, or speaks in one ahead.
    pub(super) fn says(&mut self, at: usize) {
        let own: Vec<usize> = (0..self.sessions.len()).filter(|of| self.sessions[*of].worker == at).collect();
        if own.is_empty() || self.workers[at].terminated {
            return;
        }
        let of = *self.ground.random.pick(&own);
        let name = self.sessions[of].name.clone();
        match self.ground.random.range(0..10) {
            0..4 => self.updates(at, &name),
            4 | 5 => self.questions(at, &name),
            6 | 7 => {
                let child = self.any_child(at);
                self.announces(at, &name, &child);
            }
            _ => {
                let child = format!("w{at}-child-{}", self.said.len());
                self.workers[at].early.push(child.clone());
                if self.ground.random.one_in(2) { self.questions(at, &child) } else { self.updates(at, &child) }
            }
        }
    }

    fn updates(&mut self, at: usize, session: &str) {
        self.writes(at, session, json!({"sessionUpdate": "agent_message_chunk"}), None);
    }

    fn announces(&mut self, at: usize, session: &str, child: &str) {
        let kind = if self.ground.random.one_in(8) { "session_message" } else { "subagent_update" };
        self.writes(at, session, json!({"sessionUpdate": kind, "sessionId": child}), None);
    }

    fn questions(&mut self, at: usize, session: &str) {
        let id = format!("q{}", self.said.len());
        self.workers[at].questions.push(id.clone());
        self.writes(at, session, Value::Null, Some(id));
    }

    /// A worker writes a line in a session, and its receiver gets it.
    fn writes(&mut self, at: usize, session: &str, update: Value, id: Option<String>) {
        let tag = self.said.len();
        self.said.push(Said { worker: at, received_by: None, is_request: id.is_some() });
        let mut line =
            json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "tag": tag}});
        match &id {
            Some(id) => (line["id"], line["method"]) = (json!(id), json!("session/request_permission")),
            None => line["params"]["update"] = update,
        }
        self.note(format!("worker {at} says {line}"));
        let known = self.find(session).filter(|of| self.sessions[*of].is_known && self.is_sure(*of));
        let expected = known.and_then(|session| self.holder(session));
        self.write(Peer::Worker(self.workers[at].key), &line);
        if !self.is_dedicated && !self.workers[at].terminated && expected.is_some() {
            assert_eq!(self.said[tag].received_by, expected, "line {tag} reaches the holder of its session");
        }
    }

    pub(super) fn client_reads(&mut self, at: usize, line: &Value) {
        self.note(format!("client {at} reads {line}"));
        if let Some(tag) = line["params"]["tag"].as_u64() {
            return self.client_receives(at, tag as usize, line);
        }
        if !line["method"].is_null() {
            // A question is withdrawn.
            let id = &line["params"]["requestId"];
            return self.clients[at].asked.retain(|asked| asked != id);
        }
        let Some(number) = line["id"].as_u64() else { return };
        let waiting = &mut self.clients[at].waiting;
        let asked = waiting.iter().position(|asked| *asked as u64 == number).expect("a request is answered once");
        waiting.remove(asked);
        let result = if line["result"].is_null() { &line["error"]["data"] } else { &line["result"] };
        if result["client"].is_u64() {
            return assert_eq!(result["client"], json!(at), "an answer is its own");
        }
        let reason = result["reason"].as_str().unwrap_or_default();
        if self.is_dedicated || !result.is_object() || reason.is_empty() {
            return;
        }
        let may_be = [
            "session_denied",
            "session_lost",
            "no_worker",
            "worker_exited",
            "request_discarded",
            "initialize_lost",
            "session_taken",
        ];
        assert!(may_be.contains(&reason), "{line}");
    }

    /// A client gets what a worker has said in a session: it has that session, or the one that it is a child of.
    fn client_receives(&mut self, at: usize, tag: usize, line: &Value) {
        let worker = self.said[tag].worker;
        assert!(self.said[tag].received_by.replace(at).is_none(), "line {tag} is received twice");
        let name = line["params"]["sessionId"].as_str().expect("a name");
        let session = self.find(name);
        if self.is_dedicated {
            assert_eq!(self.workers[worker].owner, Some(at), "line {tag} is for the client of its worker");
        } else {
            let session = session.unwrap_or_else(|| panic!("client {at} learns of {name}, which nobody has announced"));
            assert_eq!(self.receiver(session), Some(at), "who learns of {name}");
            self.of_children += usize::from(self.sessions[session].parent.is_some());
            self.waited += usize::from(tag + 1 < self.said.len());
        }
        let update = &line["params"]["update"];
        let child = update["sessionId"].as_str().filter(|_| update["sessionUpdate"] == "subagent_update");
        if let (Some(child), Some(parent)) = (child, session)
            && self.may_announce
        {
            self.begins(worker, parent, child, at);
        }
        if self.said[tag].is_request {
            self.clients[at].asked.push(line["id"].clone());
        }
    }

    /// A worker has announced a child to this client.
    fn begins(&mut self, worker: usize, parent: usize, child: &str, client: usize) {
        let holder = self.holder(parent);
        match self.find(child) {
            // What its holder has asked for belongs to the family from now on.
            Some(known) if self.receiver(known) == Some(client) => {
                let is_asked_for = self.root(known) == known && !(self.sessions[known].is_known && self.is_sure(known));
                if is_asked_for && self.root(parent) != known {
                    (self.sessions[known].parent, self.sessions[known].is_known) = (Some(parent), true);
                }
            }
            // Whoever has only asked for it does not keep it, if the worker says that it is another one's.
            Some(known) if self.holder(known).is_some() && self.is_sure(known) => {}
            // A client with a worker of its own receives all, also of what it has not asked for: a circle changes nothing.
            Some(known) if known == parent || self.root(parent) == known => {}
            Some(known) => {
                self.ends(known);
                let name = holder.and_then(|holder| self.clients[holder].name);
                let is_sure = self.is_sure(parent);
                let session = &mut self.sessions[known];
                (session.is_known, session.parent) = (true, Some(parent));
                session.bound = session.bound.or(name.filter(|_| is_sure));
            }
            None => {
                let bound = holder.and_then(|holder| self.clients[holder].name).filter(|_| self.is_sure(parent));
                self.sessions.push(Session {
                    name: child.to_owned(),
                    worker,
                    parent: Some(parent),
                    holder: None,
                    is_sure: true,
                    is_known: true,
                    life: 0,
                    bound,
                });
            }
        }
    }

    /// What nobody has received is counted.
    pub(super) fn check_losses(&self) {
        let unreceived = self.said.iter().filter(|said| said.received_by.is_none()).count() as u64;
        let counted: u64 =
            [Reason::UnknownSession, Reason::Unroutable].iter().map(|of| self.ground.bus.view().count(*of)).sum();
        assert_eq!(counted, unreceived, "lost lines are counted");
    }
}
