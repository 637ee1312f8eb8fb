//! Bytes on their way to a peer and from it.

use super::World;
use crate::Random;
use crate::bus::port::{Close, Input};
use crate::line::{Draft, Kind, Line, Party, is_plain, meaning, number_of, own_id_of, spell_id, value_of};

impl World {
    /// Sends up to `bytes` queued bytes to a peer.
    pub(super) fn leave(&mut self, party: Party, bytes: usize) {
        let now = self.now;
        let reachable = match party {
            Party::Client(client) => {
                let client = &self.clients[client];
                !client.closed && client.closing != Some(Close::Now)
            }
            Party::Worker(worker) => {
                let worker = &self.workers[worker];
                worker.process.runs() && !worker.released
            }
        };
        let end = self.end_mut(party);
        let bytes = bytes.min(end.queue.len());
        if !reachable || end.broken || bytes == 0 {
            return;
        }
        let sent: Vec<u8> = end.queue.drain(..bytes).collect();
        end.half_read.extend(sent);
        self.model.left(now, party, bytes);
        let peer = self.peer(party);
        self.handle(format_args!("takes {bytes} bytes"), Some(party), Input::Sent { peer, bytes });
        // A worker reads its pipe at any time.
        if matches!(party, Party::Client(_)) || self.healing || self.random.one_in(2) {
            self.read_lines(party);
        }
    }

    /// A peer reads all lines that have reached it.
    pub(super) fn read_lines(&mut self, party: Party) {
        while let Some(at) = memchr::memchr(b'\n', &self.end(party).half_read) {
            let text: Vec<u8> = self.end_mut(party).half_read.drain(..=at).collect();
            self.read_line(party, &text);
        }
    }

    /// A peer has read a whole line.
    fn read_line(&mut self, party: Party, text: &[u8]) {
        let value = value_of(text);
        let number = number_of(text);
        let ids = number.map(|number| {
            let ids = self.model.lines[number].ids_of(text);
            ids.expect("a line arrives as it was written")
        });
        // The token as written, since the answer repeats it.
        let token = ids.as_ref().map_or_else(|| own_id_of(text), |ids| ids.id.clone());
        let request = value.get("method").is_some() && token.is_some();
        match party {
            Party::Client(client) => {
                let client = &mut self.clients[client];
                client.sessions.extend(value["result"]["sessionId"].as_str().map(str::to_owned));
                if let (true, Some(token), Some(number)) = (request, &token, number) {
                    client.todo.push_back((token.clone(), number));
                    let progress = ids.as_ref().and_then(|ids| ids.token.clone());
                    client.reporting.extend(progress.map(|progress| (progress, number)));
                }
            }
            Party::Worker(worker) => self.worker_reads(worker, number, ids.unwrap_or_default()),
        }
        let waiting = match party {
            Party::Client(client) => &mut self.clients[client].waiting,
            Party::Worker(worker) => &mut self.workers[worker].waiting,
        };
        if let (false, Some(token)) = (request, token) {
            let alike = |waiting: &str| is_plain(waiting) && meaning(waiting) == meaning(&token);
            // Of several with the same id, it is the one that the answer was made for; an error of the bus itself is
            // more likely for one that it has never forwarded.
            let meant = number.and_then(|number| self.model.lines[number].answers);
            let refused = |asked: &usize| number.is_none() && self.passage.sent(*asked).is_none();
            let at = waiting.iter().position(|(waiting, asked)| alike(waiting) && Some(*asked) == meant);
            let refused = |(waiting, asked): &(String, usize)| *waiting == token && refused(asked);
            let at = at.or_else(|| waiting.iter().position(refused));
            let at = at.or_else(|| waiting.iter().position(|(waiting, _)| *waiting == token));
            let at = at.or_else(|| waiting.iter().position(|(waiting, _)| alike(waiting)));
            assert!(at.is_some(), "{party:?} was answered {token}, which it did not ask");
            at.map(|at| waiting.remove(at));
        }
    }

    pub(super) fn write(&mut self, party: Party, mut line: Line) {
        let number = self.model.lines.len();
        let bytes = line.bytes();
        if bytes.len() - 1 > self.longest_line(party) && line.kind != Kind::Malformed {
            line.kind = Kind::TooLong;
        }
        let end = self.end_mut(party);
        end.lines.push_back((number, bytes.len()));
        end.wire.extend(bytes);
        self.model.lines.push(line);
    }

    pub(super) fn draft(&mut self, party: Party, draft: Draft) {
        let number = self.model.lines.len();
        let line = Line::new(number, party, draft, &mut self.random);
        if let (Kind::Request, Some(id)) = (line.kind, line.ids.id.clone()) {
            match party {
                Party::Client(client) => self.clients[client].waiting.push((id, number)),
                Party::Worker(worker) => self.workers[worker].waiting.push((id, number)),
            }
        }
        self.write(party, line);
    }

    pub(super) fn longest_line(&self, party: Party) -> usize {
        match party {
            Party::Client(_) => self.settings.limits.max_input_buffer,
            Party::Worker(_) => self.settings.limits.max_worker_line(),
        }
    }

    pub(super) fn padding(&mut self) -> usize {
        match self.random.range(0..20) {
            0 => self.random.range(0..self.settings.limits.max_input_buffer),
            1..5 => self.random.range(0..300),
            _ => 0,
        }
    }

    pub(super) fn write_bad(&mut self, party: Party) {
        let bad = [
            "hello",
            "[]",
            "{\"id\":1,}",
            "{\"id\":true,\"method\":\"x\"}x",
            "{\"id\":1,\"id\":1}",
            "{\"a\":\"\u{1}\"}",
        ];
        let line = if self.random.one_in(3) {
            let more = self.random.range(1..2000);
            let text = format!("{{\"a\":\"{}\"}}", "x".repeat(self.longest_line(party) - 8 + more));
            Line::raw(party, Kind::TooLong, text)
        } else {
            Line::raw(party, Kind::Malformed, (*self.random.pick(&bad)).into())
        };
        self.write(party, line);
    }

    /// Sends a message about line `line`, if there is one.
    pub(super) fn notifies(&mut self, party: Party, mut draft: Draft, line: usize) {
        let methods = ["notifications/subscriptions/acknowledged", "notifications/resources/updated"];
        draft.method =
            if draft.ids.progress.is_some() { "notifications/progress" } else { *self.random.pick(&methods) };
        draft.referred_to = Some(line).filter(|line| *line < self.model.lines.len());
        self.draft(party, draft);
    }
}

/// The progress token of a request, if it has one: usually its id, or a number that others count up to as well.
pub(super) fn any_token(random: &mut Random, id: Option<&str>) -> Option<String> {
    match random.range(0..8) {
        0 | 1 => id.map(str::to_owned),
        2 => {
            let number = random.range(0..4);
            Some(spell_id(number, random))
        }
        _ => None,
    }
}
