//! The actions of clients.

use std::collections::VecDeque;

use super::scenario::Scenario;
use super::wires::any_token;
use super::{End, SimClient, World};
use crate::Draws;
use crate::bus::port::{Close, Input, Origin, Peer, Place};
use crate::bus::shutdown::Stage;
use crate::line::{Draft, Ids, Kind, Line, Party, is_cancellation, meaning, spell_id};

impl World {
    pub(super) fn client_writes(&mut self, at: usize) {
        let party = Party::Client(at);
        let padding = self.padding();
        let random = &mut self.random;
        let client = &mut self.clients[at];
        if client.end.ended || client.reset {
            return;
        }
        if !client.todo.is_empty() && random.one_in(3) {
            return self.client_answers(at);
        }
        let mut number = random.range(0..client.waiting.len() + 3);
        let mut token = spell_id(number, random);
        while !self.scenario.reuses_ids() && client.waiting.iter().any(|(id, _)| meaning(id) == meaning(&token)) {
            number += 1;
            token = spell_id(number, random);
        }
        let pool = match random.range(0..20) {
            0 | 1 => Some(random.pick(&self.settings.pools).id.clone()),
            2 if random.one_in(4) => Some("nowhere".into()),
            _ => None,
        };
        let mut draft = Draft { ids: Ids::of(token), pool, padding, ..Draft::default() };
        let what = self.random.range(0..24);
        if !matches!(what, 0..3) && self.random.one_in(2) {
            self.name_sessions(at, &mut draft);
        }
        let named = draft.top.is_some() || draft.inner.is_some();
        let random = &mut self.random;
        match what {
            0..3 => draft.method = "session/new",
            3..5 if named => draft.method = *random.pick(&["session/close", "session/delete"]),
            5..8 => (draft.method, draft.ids.id) = ("session/update", None),
            8..12 => self.name_requests(at, number, &mut draft),
            12 if random.one_in(10) => {
                draft.method = "long/id";
                draft.ids.id = Some(format!("\"{}\"", "i".repeat(129)));
            }
            13 => return self.write(party, Line::raw(party, Kind::Blank, " \t\r".into())),
            14 if random.one_in(4) => {
                // An unsolicited answer.
                draft = Draft { ids: Ids { id: draft.ids.id, ..Ids::default() }, result: true, ..Draft::default() };
            }
            15 | 16 if named => draft.method = *random.pick(&["session/load", "session/resume", "session/fork"]),
            17 => draft.method = "session/list",
            18 | 19 if named && self.scenario.has_names() => {
                draft.method = *random.pick(&["session/load", "session/resume"])
            }
            20 if !self.clients[at].reporting.is_empty() => {
                let (progress, line) = random.pick(&self.clients[at].reporting).clone();
                return self.notifies(
                    party,
                    Draft { ids: Ids { progress: Some(progress), ..Ids::default() }, padding, ..Draft::default() },
                    line,
                );
            }
            21 | 22 => draft.method = "subscriptions/listen",
            _ => draft.method = "session/prompt",
        }
        if !draft.method.is_empty() && draft.ids.id.is_some() {
            draft.ids.token = any_token(&mut self.random, draft.ids.id.as_deref());
        }
        if draft.ids.id.is_some() && self.random.one_in(2) {
            let names = draft.top.iter().chain(&draft.inner).cloned();
            self.clients[at].sessions.extend(names.filter(|name| !name.is_empty()));
        }
        self.draft(party, draft);
    }

    /// A name that a client may try: one of its own, one that it can guess, or one that it has seen elsewhere.
    fn any_name(&mut self, at: usize) -> String {
        let random = &mut self.random;
        let other = random.range(0..self.clients.len());
        // Where the owner of a session matters, all clients ask for the same few.
        if self.scenario.has_names() && random.one_in(2) {
            return format!("s{}", random.range(0..2));
        }
        match random.range(0..20) {
            0 | 1 => random.range(0..4).to_string(),
            2 | 3 => format!("s{}", random.range(0..4)),
            4..7 if !self.clients[other].sessions.is_empty() => random.pick(&self.clients[other].sessions).clone(),
            7 if random.one_in(20) => "s".repeat(257),
            _ if self.clients[at].sessions.is_empty() => format!("s{}", random.range(0..4)),
            _ => random.pick(&self.clients[at].sessions).clone(),
        }
    }

    /// Makes a client's message name sessions: at top level, in params, or different ones in both places.
    fn name_sessions(&mut self, at: usize, draft: &mut Draft) {
        let (name, other) = (self.any_name(at), self.any_name(at));
        let junk = *self.random.pick(&["\"\"", "7", "null", "[\"0\"]", "{\"sessionId\":\"0\"}"]);
        match self.random.range(0..12) {
            0..4 => draft.top = Some(name),
            4..8 => draft.inner = Some(name),
            8 => (draft.top, draft.inner) = (Some(name.clone()), Some(name)),
            9 => (draft.top, draft.inner) = (Some(name), Some(other)),
            10 => (draft.junk_on_top, draft.inner) = (Some(junk), Some(name)),
            _ => (draft.top, draft.junk_inside) = (Some(name), Some(junk)),
        }
    }

    /// Makes a message name a request: one of the client's own, or another client's.
    fn name_requests(&mut self, at: usize, number: usize, draft: &mut Draft) {
        let random = &mut self.random;
        let of = if random.one_in(3) { random.range(0..self.clients.len()) } else { at };
        let known = self.clients[of].waiting.iter().map(|(id, _)| id.clone());
        let ids: Vec<String> = known.chain([spell_id(number, random)]).collect();
        let (target, other) = (random.pick(&ids).clone(), random.pick(&ids).clone());
        draft.method = *random.pick(&[
            "$/cancel_request",
            "$/cancel_request",
            "$/cancelRequest",
            "notifications/cancelled",
            "request/about",
        ]);
        if !random.one_in(4) {
            draft.ids.id = None;
        }
        match random.range(0..10) {
            _ if !is_cancellation(draft.method) => draft.ids.request_id = Some(target),
            0..5 => draft.ids.request_id = Some(target),
            5..8 => draft.ids.params_id = Some(target),
            8 => (draft.ids.request_id, draft.ids.params_id) = (Some(target.clone()), Some(target)),
            _ => (draft.ids.request_id, draft.ids.params_id) = (Some(target), Some(other)),
        }
    }

    pub(super) fn client_answers(&mut self, at: usize) {
        let padding = self.padding();
        let client = &mut self.clients[at];
        if client.end.ended || client.reset {
            return;
        }
        let which = self.random.range(0..client.todo.len());
        let Some((token, asked)) = client.todo.remove(if self.healing { 0 } else { which }) else { return };
        // From now on its progress is too late.
        client.reporting.iter_mut().filter(|(_, line)| *line == asked).for_each(|(_, line)| *line = usize::MAX);
        if !self.healing && self.random.one_in(20) {
            self.clients[at].todo.push_back((token.clone(), 0));
        }
        let result = self.random.one_in(2);
        self.draft(Party::Client(at), Draft { ids: Ids::of(token), result, padding, ..Draft::default() });
    }

    pub(super) fn connect(&mut self) {
        let connected = self.clients.iter().filter(|client| !client.closed).count();
        if self.accept_paused || !self.scenario.has_room_beside(connected) {
            return;
        }
        let draws = &mut Draws::new(&mut self.random);
        let listener = draws.of("listener").range(0..self.settings.listeners.len());
        if self.settings.listeners[listener].stdio && !self.clients.is_empty() {
            return;
        }
        let place = Place::Process { pid: 0, user: draws.of("user").range(0..4) as u32 };
        let name = self.scenario.any_name(draws);
        let end = End { pace: Self::any_pace(draws.of("pace")), ..End::default() };
        let name = name.filter(|name| self.is_free(name));
        let is_gone = self.settings.listeners[listener].is_gone;
        let refuses = is_gone || self.bus.view().stage() >= Stage::Terminating;
        let mut origin = Origin::from(place);
        origin.names = name.map(Scenario::shown).unwrap_or_default().into();
        let (key, effects) = self.bus.connect(self.now, listener, &origin);
        assert_eq!(key.is_none(), refuses, "a connection was refused or taken wrongly");
        if let Some(key) = key {
            self.model.connected(listener, place.source(), name);
            self.clients.push(SimClient {
                key,
                name,
                end,
                waiting: Vec::new(),
                todo: VecDeque::new(),
                reporting: Vec::new(),
                sessions: Vec::new(),
                closing: None,
                left: None,
                left_for: None,
                reset: false,
                flush_told: false,
                closed: false,
            });
        }
        self.note(|_| format!("{} connects", name.unwrap_or("somebody")));
        self.carry_out(effects, &[], None, VecDeque::new(), false);
        self.check();
    }

    /// Whether no connected client shows a token of this user: two of one user may take sessions from each other
    /// (`bus::tests::sessions`).
    fn is_free(&self, name: &str) -> bool {
        !self.clients.iter().any(|client| !client.closed && client.name == Some(name))
    }

    pub(super) fn reset(&mut self, at: usize) {
        let client = &mut self.clients[at];
        if client.closing == Some(Close::Now) || client.closed {
            return;
        }
        client.reset = true;
        client.end.broken = true;
        client.end.ignored = true;
        client.end.wire.clear();
        let peer = Peer::Client(client.key);
        self.handle("breaks", Some(Party::Client(at)), Input::OutputBroken { peer, why: "reset by peer".into() });
    }

    pub(super) fn close(&mut self, at: usize) {
        self.clients[at].closed = true;
        self.model.gone(at);
        let key = self.clients[at].key;
        self.handle("is closed", Some(Party::Client(at)), Input::ClientClosed(key));
    }
}
