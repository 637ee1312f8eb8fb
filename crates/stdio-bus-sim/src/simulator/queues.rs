//! The lines that the bus has queued for a peer, and those that it has dropped.

use std::collections::VecDeque;
use std::time::Duration;

use super::World;
use super::passage::Visit;
use crate::bus::port::{Close, Moment, Peer};
use crate::bus::report::Reason;
use crate::bus::settings::SessionAccess;
use crate::line::{Kind, Meant, Party, is_plain, meaning, number_of};

impl World {
    pub(super) fn queue(&mut self, to: Peer, bytes: &[u8], hearing: Option<Party>, due: &mut VecDeque<usize>) {
        let party = self.party(to);
        match party {
            Party::Client(client) => {
                let is_refused = hearing == Some(party) && self.clients[client].closing == Some(Close::Refuse);
                assert!(is_refused || self.clients[client].closing.is_none(), "{party:?} is closing");
            }
            Party::Worker(worker) => assert!(self.model.takes(worker), "{party:?} does not take messages"),
        }
        let now = self.now;
        let end = self.end_mut(party);
        end.queue.extend(bytes);
        end.half_queued.extend_from_slice(bytes);
        while let Some(at) = memchr::memchr(b'\n', &self.end(party).half_queued) {
            let text: Vec<u8> = self.end_mut(party).half_queued.drain(..=at).collect();
            let number = number_of(&text);
            self.journal.trace().into_iter().for_each(|trace| trace.line(party, &text, number.is_none()));
            let Some(number) = number else {
                // A refusal: the lines up to the refused one were taken before it.
                while self.model.said_refusal(hearing, party, &text) {
                    let Some(line) = due.pop_front() else { panic!("{party:?} is refused what it did not ask") };
                    self.drop_line(line);
                    if self.model.lines[line].kind == Kind::Request {
                        break;
                    }
                }
                self.model.said(now, hearing, party, &text);
                continue;
            };
            loop {
                if self.model.is_early(number) {
                    self.note(|_| format!("  line {number} has its session, and is queued for {party:?}"));
                    self.passed_on(number, party, &text);
                    break self.model.forwarded(now, number, party, &text);
                }
                if self.passage.is_for_all(number) {
                    break self.model.forwarded(now, number, party, &text);
                }
                let line = due.pop_front();
                let Some(line) = line else { panic!("line {number} came to {party:?} unasked") };
                if line == number {
                    self.note(|world| {
                        format!("  line {number}, {}, is queued for {party:?}", world.model.lines[number].about())
                    });
                    self.passed_on(number, party, &text);
                    self.passage.queued(self.model.lines[number].list().map(|_| number));
                    break self.model.forwarded(now, number, party, &text);
                }
                self.drop_line(line);
            }
        }
    }

    /// Interprets a line that was queued for `to` as its peers would, independently of the model.
    fn passed_on(&mut self, number: usize, to: Party, text: &[u8]) {
        let order = self.passage.passes(self.now, number);
        let line = &self.model.lines[number];
        if let Some(asked) = line.referred_to.map(|asked| &self.model.lines[asked]) {
            let ids = line.ids_of(text).expect("a line arrives as it was written");
            assert_eq!(asked.from, to, "breach: {to:?} gets {line:?} for {asked:?}");
            let (known, seen) = match &line.ids.progress {
                Some(_) => (&asked.ids.token, &ids.progress),
                None => (&asked.ids.id, &ids.subscription),
            };
            let same = known == seen || known.as_deref().is_some_and(is_plain);
            let alike = known.as_deref().map(meaning) == seen.as_deref().map(meaning);
            assert!(same && alike, "{to:?} gets {seen:?} for {asked:?}");
        }
        if let Some(asked) = line.over.map(|asked| &self.model.lines[asked]) {
            assert_eq!(asked.from, to, "breach: {to:?} gets {line:?} of {asked:?}, which is over");
        }
        match (line.from, to) {
            (Party::Client(client), Party::Worker(worker)) => {
                self.passage.visits(self.now, client, worker, line);
            }
            (Party::Worker(worker), Party::Client(client)) if line.kind == Kind::Response => {
                let token = line.ids_of(text).and_then(|ids| ids.id);
                // An unsolicited answer is about nothing, and may hit any request. Another one, be it the second or the
                // answer to a request that is over, belongs to the client that has asked.
                let Some(asked) = line.answers.map(|asked| &self.model.lines[asked]) else { return };
                assert_eq!(asked.from, to, "breach: {to:?} has the answer {line:?} to {asked:?}");
                let same = asked.ids.id == token || asked.ids.id.as_deref().is_some_and(is_plain);
                let alike = asked.ids.id.as_deref().map(meaning) == token.as_deref().map(meaning);
                // A client that uses both 0 and "0" may get the second answer to one for that to the other.
                let unasked = |id: &str| self.workers[worker].view.has_answered_unasked(id);
                let is_sure = !line.ids.id.as_deref().is_some_and(unasked);
                assert!(same && alike || !is_sure, "{to:?} has the id {token:?} in the answer to {asked:?}");
                let view = &mut self.workers[worker].view;
                match &line.result_session {
                    Some(name) if line.again => view.names_again(name, client),
                    Some(name) => view.delivered_name(name, order),
                    None => {}
                }
            }
            (Party::Worker(worker), Party::Client(client)) => {
                let Some(Meant { name, owner, issued }) = line.meant_for.as_ref().filter(|meant| meant.owner != client)
                else {
                    return;
                };
                let left = self.clients[*owner].left;
                let visits = self.passage.visits_of(worker, name);
                let last = |of: usize| visits.clone().filter(|visit| visit.client == of).map(|visit| visit.at).max();
                let forgotten =
                    |at: Moment| !issued && last(*owner).is_some_and(|last| at.since(last) >= Duration::from_secs(60));
                let inherits = |visit: &Visit| {
                    let free = left.is_some_and(|left| left <= visit.at) || forgotten(visit.at);
                    visit.client == client && free && (visit.loads || !issued)
                };
                let shared = self.settings.routing.session_access == SessionAccess::Shared;
                let view = &self.workers[worker].view;
                // A message in a session before the worker gave the name to another client, which waited for that.
                let ambiguous = self.model.is_early(number) && view.is_ambiguous(name);
                let inherited = ambiguous
                    || view.has_named_again(name, client)
                    || view.is_closed(name, *owner)
                    || view.is_unannounced(name)
                    || visits.clone().any(inherits);
                assert!(shared || inherited, "breach: {to:?} gets a line of a session of client {owner}: {line:?}");
            }
            _ => {}
        }
    }

    pub(super) fn drop_line(&mut self, line: usize) {
        let reason = self.model.dropped(self.now, line);
        self.passage.drops(line);
        if let (Party::Worker(worker), Some(asked)) = (self.model.lines[line].from, self.model.lines[line].answers) {
            self.workers[worker].view.is_undelivered(&self.model.lines[asked]);
        }
        self.note(|world| {
            let (about, why) = (world.model.lines[line].about(), reason.map_or("blank", Reason::name));
            format!("  line {line}, {about}, is dropped: {why}")
        });
    }
}
