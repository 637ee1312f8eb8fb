//! Input from peers is presented to the bus.

use std::collections::VecDeque;

use super::World;
use crate::bus::port::{Close, Input, Next};
use crate::bus::report::Reason;
use crate::bus::settings::BadOutput;
use crate::bus::shutdown::Stage;
use crate::line::{Kind, Party};
use crate::scan::{PAD, Window};

impl World {
    /// The first line of a peer that is not blank and not taken yet.
    pub(super) fn front(&self, party: Party) -> Option<usize> {
        let mut lines = self.end(party).lines.iter().map(|(number, _)| *number);
        lines.find(|number| self.model.lines[*number].kind != Kind::Blank)
    }

    /// Presents the bytes read from a peer, after reading at most `bytes` more.
    pub(super) fn arrive(&mut self, party: Party, bytes: usize) {
        let end = self.end_mut(party);
        if end.paused || end.ignored || end.end_told {
            return;
        }
        let bytes = bytes.min(end.wire.len());
        let read: Vec<u8> = end.wire.drain(..bytes).collect();
        end.kept.extend(read);
        loop {
            let next = self.present(party);
            let end = self.end(party);
            match next {
                Next::Again => continue,
                Next::Read => {
                    assert!(!end.kept.contains(&b'\n'), "a whole line of {party:?} was left");
                    assert!(end.kept.len() <= self.longest_line(party), "too much is kept of {party:?}");
                }
                Next::Wait => assert!(end.paused || end.ignored, "{party:?} waits, and was not paused"),
            }
            return;
        }
    }

    fn present(&mut self, party: Party) -> Next {
        let junk = b"\n\"}{:\\,\xff id".repeat(PAD / 8);
        let mut buffer = junk.clone();
        buffer.extend_from_slice(&self.end(party).kept);
        let stop = buffer.len();
        buffer.extend_from_slice(&junk);
        let window = Window::new(&buffer, junk.len(), stop);
        let length = window.data().len();
        let bad =
            [Reason::ClientMalformed, Reason::ClientLineTooLong, Reason::WorkerMalformed, Reason::WorkerLineTooLong];
        let bad_before: u64 = bad.iter().map(|reason| self.bus.view().count(*reason)).sum();
        if length > 0 {
            // Unconsumed input is presented again and again.
            self.mention(|_| format!("{party:?} present {length} bytes"));
        }
        self.passage.take_dropped();
        self.note_presented(party);
        let is_refused = self.is_refused_anew(party);
        let peer = self.peer(party);
        let (received, effects) = self.bus.receive(self.now, peer, window);
        let is_bad = bad.iter().map(|reason| self.bus.view().count(*reason)).sum::<u64>() > bad_before;

        let (mut due, mut nothing) = (VecDeque::new(), 0);
        let mut consumed = received.consumed;
        while let Some((number, line_length)) = self.end(party).lines.front().copied() {
            let kind = self.model.lines[number].kind;
            if is_bad && matches!(kind, Kind::Malformed | Kind::TooLong) {
                let reason = match (party, kind) {
                    (Party::Client(_), Kind::Malformed) => Reason::ClientMalformed,
                    (Party::Client(_), _) => Reason::ClientLineTooLong,
                    (Party::Worker(_), Kind::Malformed) => Reason::WorkerMalformed,
                    (Party::Worker(_), _) => Reason::WorkerLineTooLong,
                };
                self.model.counted(reason);
                break;
            }
            if consumed < line_length {
                assert!(!is_bad, "a good line of {party:?} was taken for a bad one");
                if consumed > 0 && (self.end(party).skips || self.may_skip(party)) {
                    nothing += consumed;
                    let end = self.end_mut(party);
                    end.lines[0].1 -= std::mem::take(&mut consumed);
                    end.skips = true;
                }
                break;
            }
            consumed -= line_length;
            let end = self.end_mut(party);
            end.lines.pop_front();
            let is_nothing = std::mem::take(&mut end.skips) || kind == Kind::Malformed && self.passes_over(party);
            nothing += if is_nothing || kind == Kind::Blank { line_length } else { 0 };
            if !is_nothing {
                due.push_back(number);
            }
        }
        let asked = due.iter().any(|number| self.model.lines[*number].kind == Kind::Request);
        let end = self.end_mut(party);
        if is_bad {
            assert_eq!((received.consumed, received.next), (length, Next::Wait));
            end.ignored = true;
        } else {
            assert_eq!(consumed, 0, "part of a line of {party:?} was consumed");
        }
        end.kept.drain(..received.consumed);
        self.journal.trace().into_iter().for_each(|trace| trace.received(received));
        self.carry_out(effects, window.data(), Some(party), due, is_bad);
        match party {
            Party::Worker(worker) if is_bad => self.model.failed(self.now, worker),
            Party::Worker(worker) => self.charge_flood(worker, nothing),
            Party::Client(client) => {
                self.learn_owners(client);
                let is_closing = self.clients[client].closing.is_some() || self.model.is_awaiting(client);
                assert!(!(is_refused && asked) || is_closing, "client {client} was refused, and is not closed");
            }
        }
        self.check();
        received.next
    }

    /// Whether a request of this party is refused because of the shutdown, and it can be closed for that.
    fn is_refused_anew(&self, party: Party) -> bool {
        let Party::Client(at) = party else { return false };
        let client = &self.clients[at];
        self.bus.view().stage() >= Stage::Quiescing && client.closing.is_none() && !client.end.end_told
    }

    /// A worker was read: if it writes too much for nobody, it is not read for a moment.
    fn charge_flood(&mut self, at: usize, nothing: usize) {
        let (must, may) = self.model.was_read(self.now, at, nothing);
        let worker = &self.workers[at];
        let is_read = !worker.end.paused && !worker.end.ignored && worker.process.runs();
        assert!(!(must && is_read), "worker {at} writes much for nobody, and is read on");
        assert!(self.more(Reason::WorkerFloods) == 0 || may, "worker {at} has written too little for a flood");
    }

    /// The model learns which whole lines are presented.
    fn note_presented(&mut self, party: Party) {
        let end = self.end(party);
        let (mut bytes, mut whole) = (end.kept.len(), Vec::new());
        for (number, length) in &end.lines {
            let Some(rest) = bytes.checked_sub(*length) else { break };
            bytes = rest;
            whole.push(*number);
        }
        whole.into_iter().for_each(|number| self.model.presented(self.now, number));
    }

    /// Whether the rest of a partial line may be dropped: memory is short, or was, and the client is being closed.
    fn may_skip(&self, party: Party) -> bool {
        let Party::Client(at) = party else {
            let front = self.end(party).lines.front().map(|(number, _)| self.model.lines[*number].kind);
            return self.passes_over(party) && matches!(front, Some(Kind::Malformed | Kind::TooLong));
        };
        let client = &self.clients[at];
        client.closing == Some(Close::Refuse) && (self.is_crowded || client.left_for == Some(Reason::MemoryLimit))
    }

    /// Whether lines of a worker that are no messages are passed over, and those that are too long up to their end.
    fn passes_over(&self, party: Party) -> bool {
        let Party::Worker(at) = party else { return false };
        self.settings.on_bad_output(self.workers[at].name.pool) == BadOutput::Skip
    }

    /// A client that waits, or was refused, may have been assigned a worker before a line could be queued for it.
    fn learn_owners(&mut self, client: usize) {
        let mut lines = self.passage.take_dropped();
        lines.extend(self.front(Party::Client(client)));
        self.learn_owners_by(client, &lines);
    }

    /// A client whose turn has come has its worker, though it is not read yet if memory is short.
    pub(super) fn learn_waiting_owners(&mut self) {
        for client in 0..self.clients.len() {
            let (party, at) = (Party::Client(client), &self.clients[client]);
            if at.end.paused && !at.closed && at.closing.is_none() {
                let waits_with: Vec<usize> = self.front(party).into_iter().collect();
                self.learn_owners_by(client, &waits_with);
            }
        }
    }

    /// Workers that are starting or stopping get no shared work, and those of paused pools only where all pools are paused.
    pub(super) fn learn_roles(&mut self) {
        let is_paused = |pool: &usize| self.bus.view().pool_row(*pool).is_some_and(|row| row.is_paused);
        self.model.has_paused((0..self.settings.pools.len()).filter(is_paused).collect());
        let is_asleep = |pool: &usize| self.bus.view().is_asleep(*pool);
        self.model.are_asleep(self.now, (0..self.settings.pools.len()).filter(is_asleep).collect());
        for (at, worker) in self.workers.iter().enumerate().filter(|(_, worker)| !worker.released) {
            self.model.has_role(self.now, at, self.bus.view().role(worker.key).expect("it lives"));
        }
    }

    /// While a pool is paused, its new clients use another one.
    pub(super) fn learn_pools(&mut self) {
        for (at, client) in self.clients.iter().enumerate().filter(|(_, client)| !client.closed) {
            if let Some(pool) = self.bus.view().pool_of(client.key) {
                self.model.goes_to(at, pool.index());
            }
        }
    }

    pub(super) fn learn_owners_by(&mut self, client: usize, lines: &[usize]) {
        let key = self.clients[client].key;
        for at in 0..self.workers.len() {
            if !self.workers[at].released && self.bus.view().owner(self.workers[at].key) == Some(key) {
                self.model.claimed(self.now, client, at, lines);
            }
        }
    }

    /// Reports to the bus that a peer's input has ended, once it has received all of it.
    pub(super) fn report_end(&mut self, party: Party) {
        let end = self.end_mut(party);
        if let Party::Client(client) = party
            && end.ended
            && end.paused
            && !end.ignored
        {
            let key = self.clients[client].key;
            self.model.counts_turn(self.now, client);
            return self.handle("sends no more", Some(party), Input::InputStopped(key));
        }
        let end = self.end_mut(party);
        if end.end_told || !end.ended || !end.wire.is_empty() || end.paused || end.ignored {
            return;
        }
        end.end_told = true;
        let partial = end.kept.len();
        if partial > 0 {
            self.model.counted(Reason::PartialLine);
        }
        match party {
            Party::Client(client) => self.model.half_closed(self.now, client),
            Party::Worker(worker) => self.model.stops(worker),
        }
        let peer = self.peer(party);
        self.note(|_| format!("{party:?} has ended, {partial} bytes left"));
        let effects = self.bus.handle(self.now, Input::InputEnded { peer, partial });
        self.carry_out(effects, &[], None, VecDeque::new(), false);
        if let Party::Client(client) = party {
            self.model.leave_unanswered(self.now, client);
        }
        self.check();
    }
}
