//! Delivers the core's output to clients whose messages are requests: finds its lines, which their protocol takes
//! (`protocols`), and writes answers and events for it; and clients are paused, resumed and closed.

use std::borrow::Cow;
use std::rc::Rc;

use super::Http;
use super::exchange::{KEEP_ALIVE, State};
use super::held_answers::{Blocks, HeldAnswer};
use crate::bus::id::Id;
use crate::bus::port::{ClientKey, Close, Input, Moment, Peer, Reason};
use crate::http1::Status;
use crate::io::Io;
use crate::mcp::Fault;
use crate::mcp::fault::status_of;
use crate::mcp::log::Data;
use crate::mcp::write::{self, EventId, Manner, OwnFields};
use crate::scan::{Line, PAD, Partial, Span, Window, blank_returns, member, members};
use crate::shell::connections::HttpSlot;
use crate::shell::outbox::{Storage, are_held};
use crate::shell::reactor::Reactor;
use crate::shell::receivers::CopySource;
use crate::shell::timers::Timer;

/// A line from this length on is not scanned for its delivery.
const LONG: usize = 64 * 1024;

/// A line from the core, and its routing fields.
pub(super) struct OutgoingLine<'a> {
    /// What precedes `text`, if the id was replaced in a line that is not copied.
    pub head: &'a [u8],
    pub text: &'a [u8],
    /// Where `text` lies if it is long: it can be sent from there.
    pub place: Option<(&'a Storage, usize)>,
    /// It has carriage returns, which would end a line in an event.
    has_returns: bool,
    pub id: Option<&'a [u8]>,
    /// None if it has none, or one that is no string.
    pub method: Option<&'a [u8]>,
    pub answers: bool,
    pub is_error: bool,
}

/// How a stream of events begins.
#[derive(Default)]
pub(super) struct Beginning<'a> {
    /// The protocol's own fields.
    pub fields: &'static OwnFields,
    /// The id of the client, if this response gives it out.
    pub id: Option<&'a str>,
    /// Another field of the head.
    pub more: Option<(&'a str, &'a str)>,
    /// An event without a message, from which the client can resume.
    pub prime: Option<EventId>,
}

/// The message of an event.
pub(super) enum EventText<'a> {
    /// It is for its connection alone.
    Own(&'a [u8]),
    /// Its session keeps it, too, or it is long.
    Shared(Data),
}

impl EventText<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Own(text) => text.len(),
            Self::Shared(data) => data.len(),
        }
    }

    fn shared(self) -> Data {
        match self {
            Self::Own(text) => text.into(),
            Self::Shared(data) => data,
        }
    }
}

impl Http {
    /// Scans a line that the core has made or forwarded.
    fn read_line<'a>(&mut self, line: &'a [u8], padded: &'a mut Vec<u8>) -> Option<OutgoingLine<'a>> {
        let is_long = line.len() >= LONG;
        // Between tokens it is a blank; in an event it would end a line.
        let has_returns = memchr::memchr(b'\r', line).is_some();
        if is_long && !has_returns {
            return Some(OutgoingLine::of_long(line));
        }
        padded.resize(PAD, 0);
        padded.extend_from_slice(line);
        if has_returns {
            blank_returns(padded);
        }
        if is_long {
            return Some(OutgoingLine::of_long(&padded[PAD..]));
        }
        padded.push(b'\n');
        let end = padded.len();
        padded.resize(end + PAD, 0);
        let found = self.lines.read(Partial::of_any_depth(), Window::new(padded, PAD, end)).ok()??;
        let text = &padded[PAD..end - 1];
        let get = |span: crate::scan::Span| &text[span.start as usize..span.end as usize];
        Some(OutgoingLine {
            head: &[],
            text,
            place: None,
            has_returns: false,
            id: found.id.is_some().then(|| get(found.id)),
            method: found.method.is_some().then(|| get(found.method)),
            answers: found.flags & (Line::RESULT | Line::ERROR) != 0,
            is_error: found.has(Line::ERROR) && !found.has(Line::RESULT),
        })
    }
}

impl<'a> OutgoingLine<'a> {
    /// What a long line says. The core has scanned it: it is neither scanned again nor copied, only walked through.
    fn of_long(text: &'a [u8]) -> Self {
        let [id, method, result, error] = members(text, [b"id", b"method", b"result", b"error"]);
        Self {
            head: &[],
            text,
            place: None,
            has_returns: false,
            id: id.filter(|id| matches!(id.first(), Some(b'"' | b'-' | b'0'..=b'9'))),
            method: method.filter(|method| method.starts_with(b"\"") && method.len() <= LONG),
            answers: result.is_some() || error.is_some(),
            is_error: error.is_some() && result.is_none(),
        }
    }
}

impl OutgoingLine<'_> {
    /// The id that it answers, if it is an answer. One without an id answers nothing that is known.
    pub(super) fn answers(&self) -> Option<&[u8]> {
        self.answers.then(|| self.id.unwrap_or(b"null"))
    }

    /// Its error code, if it is an error.
    pub(super) fn code(&self) -> Option<i64> {
        let code = self.is_error.then(|| member(member(self.text, b"error")?, b"code")).flatten();
        code.and_then(|code| str::from_utf8(code).ok()?.parse().ok())
    }

    /// Its length.
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.text.len()
    }

    pub(super) fn whole(&self) -> Cow<'_, [u8]> {
        match self.head {
            b"" => self.text.into(),
            head => [head, self.text].concat().into(),
        }
    }

    /// The message of an event with it. It has no carriage returns, which would end a line there.
    pub(super) fn data(&self, blocks: &Rc<Blocks>) -> Data {
        let Some(place) = self.place else { return Data::from(self.text) };
        if self.has_returns {
            let mut text = self.whole().into_owned();
            blank_returns(&mut text);
            return text.into();
        }
        let answer = self.id.and_then(|id| HeldAnswer::hold(self.head, place, self.text.len(), id, blocks));
        answer.map_or_else(|| Data::from(&*self.whole()), |answer| Data::InPlace(Rc::new(answer)))
    }

    /// The HTTP status for it, if it is an answer.
    pub(super) fn status(&self) -> Status {
        self.code().map_or(Status::Ok, status_of)
    }
}

impl<I: Io> Reactor<I> {
    /// Takes the core's output for such a client: whole lines, or pieces of one.
    pub(in crate::shell) fn push_to_http_client(&mut self, to: ClientKey, bytes: &[u8]) {
        if self.http.clients.get(to).is_none() {
            return;
        }
        let now = self.clock.now();
        let mut begun = std::mem::take(&mut self.http.clients.begun);
        let whole = match begun.is_empty() && bytes.ends_with(b"\n") {
            true => bytes,
            false => {
                begun.extend_from_slice(bytes);
                if !begun.ends_with(b"\n") {
                    self.http.clients.begun = begun;
                    return;
                }
                &begun
            }
        };
        let mut padded = std::mem::take(&mut self.http.padded);
        let mut at = 0;
        for end in memchr::memchr_iter(b'\n', whole) {
            self.deliver_line(now, to, &whole[at..end], &mut padded);
            at = end + 1;
        }
        for used in [&mut begun, &mut padded] {
            used.clear();
            used.shrink_to(64 * 1024);
        }
        (self.http.clients.begun, self.http.padded) = (begun, padded);
    }

    /// Takes bytes of a window for such a client.
    pub(in crate::shell) fn copy_to_http_client(
        &mut self,
        to: ClientKey,
        source: &CopySource<'_>,
        lines: &[Line],
        span: Span,
    ) {
        let mut rest = span;
        let first = lines.partition_point(|line| line.span.end < span.start);
        for line in lines[first..].iter().take_while(|line| line.span.end < span.end) {
            let part = Span { end: line.span.end + 1, ..rest };
            if !self.deliver_answer(to, source, line, part) {
                self.push_to_http_client(to, source.window.get(part));
            }
            rest.start = part.end;
        }
        if rest.start < rest.end {
            self.push_to_http_client(to, source.window.get(rest));
        }
    }

    /// Delivers an answer without another look at it: the core has found its fields. `part` is the whole line, or what
    /// follows its id, which was replaced. A long one is not copied. Returns whether it was that.
    fn deliver_answer(&mut self, to: ClientKey, source: &CopySource<'_>, line: &Line, part: Span) -> bool {
        let kind = line.flags & (Line::RESULT | Line::ERROR);
        if kind == 0 || line.method.is_some() || !line.id.is_some() || self.http.clients.get(to).is_none() {
            return false;
        }
        let text = source.window.get(Span { end: part.end - 1, ..part });
        let has_returns = line.has(Line::LONE_RETURN) || text.ends_with(b"\r");
        let place = match &source.block {
            Some((storage, begin)) if part.len() >= LONG && are_held(part.len(), storage.capacity()) => {
                Some((storage, begin + part.start as usize))
            }
            _ => None,
        };
        // An error's code is looked for in the whole line, and carriage returns become blanks in a copy.
        if if place.is_some() { kind != Line::RESULT } else { has_returns } {
            return false;
        }
        let mut begun = std::mem::take(&mut self.http.clients.begun);
        let before = source.window.get(Span { end: line.id.start, ..line.span });
        let id = match begun.is_empty() {
            true if part.start == line.span.start => before.len()..before.len() + line.id.len(),
            false if part.start == line.id.end && begun.starts_with(before) => before.len()..begun.len(),
            _ => {
                self.http.clients.begun = begun;
                return false;
            }
        };
        let bytes = begun.len() + part.len();
        if place.is_none() && !begun.is_empty() {
            begun.extend_from_slice(text);
        }
        let (head, text) =
            if place.is_none() && !begun.is_empty() { (&[][..], &begun[..]) } else { (&begun[..], text) };
        let outgoing = OutgoingLine {
            head,
            text,
            place,
            has_returns,
            id: Some(if begun.is_empty() { &text[id] } else { &begun[id] }),
            method: None,
            answers: true,
            is_error: kind == Line::ERROR,
        };
        self.deliver_or_report(self.clock.now(), to, Some(&outgoing), bytes);
        begun.clear();
        begun.shrink_to(LONG);
        self.http.clients.begun = begun;
        true
    }

    fn deliver_line(&mut self, now: Moment, to: ClientKey, line: &[u8], padded: &mut Vec<u8>) {
        let outgoing = self.http.read_line(line, padded);
        self.deliver_or_report(now, to, outgoing.as_ref(), line.len() + 1);
    }

    /// Delivers a line of so many bytes.
    fn deliver_or_report(&mut self, now: Moment, to: ClientKey, outgoing: Option<&OutgoingLine<'_>>, bytes: usize) {
        if !outgoing.is_some_and(|outgoing| self.deliver_by_role(now, to, outgoing, bytes)) {
            self.report_sent(now, to, bytes);
        }
    }

    /// Answers with a body that is not an event.
    pub(super) fn answer_whole(
        &mut self,
        now: Moment,
        slot: usize,
        status: Status,
        outgoing: &OutgoingLine<'_>,
        session: Option<&str>,
    ) {
        let connection = &mut self.connections[HttpSlot(slot)];
        let manner = connection.manner(session);
        match outgoing.place.filter(|_| !manner.is_head) {
            Some((storage, start)) => {
                let queue = connection.outgoing.queue();
                write::json_head(queue, status, &manner, outgoing.len());
                queue.extend_from_slice(outgoing.head);
                let bytes = start..start + outgoing.text.len();
                connection.outgoing.hold(storage.clone(), bytes, outgoing.len() + 1);
            }
            None => {
                write::json(connection.outgoing.queue(), status, &manner, &outgoing.whole());
                connection.outgoing.note_unacked(outgoing.len() + 1, None);
            }
        }
        self.begin_http_answer(now, slot);
    }

    /// Whether an answer is the core's refusal of a request that came too late for the daemon, or waited for it until then,
    /// and nothing of its response was sent.
    pub(super) fn comes_too_late(&self, slot: usize, outgoing: &OutgoingLine<'_>) -> bool {
        let is_refused = self.http.refuses_requests && outgoing.code() == Some(Reason::ShuttingDown.code().into());
        is_refused && self.connections[HttpSlot(slot)].state == State::Waiting
    }

    /// Refuses such a request as one that comes then. The core has reported it.
    pub(super) fn refuse_too_late(&mut self, now: Moment, slot: usize, fault: &Fault, id: Option<&[u8]>) {
        self.connections[HttpSlot(slot)].incoming.is_last = true;
        self.answer_fault(now, slot, fault, id);
    }

    /// Turns a response into a stream of events.
    pub(super) fn begin_http_events(&mut self, now: Moment, slot: usize, begins: &Beginning<'_>) {
        let connection = &mut self.connections[HttpSlot(slot)];
        // The close of the connection ends a stream of HTTP/1.0.
        connection.incoming.is_last |= connection.incoming.is_old;
        let manner = Manner { fields: begins.fields, ..connection.manner(begins.id) };
        write::begin_events(connection.outgoing.queue(), &manner, begins.more);
        if let Some(id) = begins.prime {
            write::prime(connection.outgoing.queue(), id, manner.is_old);
        }
        (connection.state, connection.since) = (State::Events, now);
        self.connections.mark_dirty(slot);
        self.set_deadline(slot, now.after(KEEP_ALIVE));
    }

    /// Queues an event, and the end of its stream after the last one.
    pub(super) fn queue_event(
        &mut self,
        now: Moment,
        slot: usize,
        id: Option<EventId>,
        text: EventText<'_>,
        is_last: bool,
    ) {
        let connection = &mut self.connections[HttpSlot(slot)];
        if connection.outgoing.is_empty() {
            connection.since = now;
        }
        let replay = &mut connection.outgoing.replay;
        if replay.is_some() || text.len() >= LONG {
            // Kept events are still being sent, and it comes behind them; or it is long, and not copied at once.
            let replay = replay.get_or_insert_default();
            replay.push(id, text.shared(), true);
            replay.ends |= is_last;
            return self.connections.mark_dirty(slot);
        }
        connection.outgoing.note_unacked(text.len() + 1, id);
        match text {
            EventText::Own(text) => connection.event(id, text),
            EventText::Shared(data) => connection.event(id, data.parts()[0]),
        }
        if is_last {
            self.end_http_events(now, slot);
        } else {
            self.connections.mark_dirty(slot);
        }
    }

    /// Queues the next page of what is replayed, if there is room for it.
    pub(super) fn refill_http(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.connections[HttpSlot(slot)];
        if connection.outgoing.replay.is_none() {
            return;
        }
        let begun = connection.outgoing.refill(connection.incoming.is_old);
        let ends = connection.outgoing.replay.take_if(|replay| replay.is_empty()).is_some_and(|replay| replay.ends);
        let client = self.connections[HttpSlot(slot)].member;
        if let Some(member) = client.and_then(|client| self.http.clients.get_mut(client)) {
            begun.into_iter().for_each(|id| member.begin_event(id));
        }
        if ends {
            self.end_http_events(now, slot);
        }
        self.http.weigh(&mut self.connections, slot);
    }

    /// Queues the end of a stream.
    pub(super) fn end_http_events(&mut self, now: Moment, slot: usize) {
        let connection = &mut self.connections[HttpSlot(slot)];
        if let Some(replay) = &mut connection.outgoing.replay {
            replay.ends = true;
            return self.connections.mark_dirty(slot);
        }
        let (out, is_old) = (connection.outgoing.queue(), connection.incoming.is_old);
        if self.persistence.is_on() && self.persistence.is_final() {
            write::retry_after_restart(out, is_old);
        }
        write::end_events(out, is_old);
        self.begin_http_answer(now, slot);
    }

    /// The core has accepted a message that gets no answer.
    pub(super) fn on_message_accepted(&mut self, now: Moment, slot: usize, serial: u64) {
        let Some(connection) = self.connections.http_mut(slot) else { return };
        if connection.serial == serial && connection.state == State::Waiting {
            self.answer_empty(now, slot, Status::Accepted);
        }
    }

    /// A message that gets no answer was not passed on, since its client ends or the daemon stops.
    pub(super) fn on_message_dropped(&mut self, now: Moment, slot: usize, serial: u64, fault: &Fault) {
        let Some(connection) = self.connections.http_mut(slot) else { return };
        if connection.serial == serial && connection.state == State::Waiting {
            self.refuse_http(now, slot, fault, None);
        }
    }

    /// Answers without a body.
    pub(super) fn answer_empty(&mut self, now: Moment, slot: usize, status: Status) {
        self.answer_http(now, slot, |out, manner| write::empty(out, status, manner));
    }

    /// The core pauses or resumes a client.
    pub(in crate::shell) fn pause_http_client(&mut self, client: ClientKey, is_paused: bool) {
        let Some(member) = self.http.clients.get_mut(client) else { return };
        member.is_paused = is_paused;
        if !is_paused && !member.inbox.is_empty() {
            self.http.clients.resume(client);
        }
    }

    /// The core closes a client.
    pub(in crate::shell) fn close_http_client(&mut self, client: ClientKey, how: Close) {
        let now = self.clock.now();
        let Some(member) = self.http.clients.get_mut(client) else { return };
        match how {
            Close::Refuse => {
                // A session that ends accepts nothing further; pending requests are refused.
                member.is_closing |= !member.is_of_one_connection();
                self.pause_http_client(client, false);
            }
            Close::Flush => {
                (member.is_closing, member.is_flushing) = (true, true);
                let waiters: Vec<_> = member.inbox.iter_mut().filter_map(|waiting| waiting.waiter.take()).collect();
                let outlives = self.persistence.is_final() || member.is_restoring();
                let id: Option<Box<str>> = member.kind.kept().id().filter(|_| outlives).map(Box::from);
                let faults = self.faults_of_loss(id.as_deref());
                for (connection, _) in waiters {
                    self.lose_http_client(now, connection, client, &[], &[], &faults);
                }
                self.flush_by_role(now, client);
                self.dispatch(now, Input::InputEnded { peer: Peer::Client(client), partial: 0 });
            }
            Close::Now => self.remove_http_client(now, client),
        }
    }

    /// A client of the core is gone: connections that wait for it get an error.
    fn remove_http_client(&mut self, now: Moment, client: ClientKey) {
        self.timers.set(Timer::Session(client), None);
        let Some(mut member) = self.http.clients.remove(client) else { return };
        self.listeners.grants.forget(client);
        self.http.memory.held -= member.waiting();
        self.removed_by_kind(now, &member);
        self.notify.changed();
        let faults = self.faults_of_loss(member.kind.kept().id());
        let mut connections = member.connections();
        connections.extend(member.inbox.iter().filter_map(|waiting| waiting.waiter).map(|(slot, _)| slot));
        for at in connections {
            let Some(stream) = self.connections.http(at).map(|it| it.stream) else { continue };
            let unanswered = member.kind.kept().unanswered_on(stream);
            let (held, begun): (Vec<_>, Vec<_>) = unanswered.iter().partition(|id| member.holds(id));
            let [held, begun] = [held, begun].map(|ids| ids.into_iter().map(Id::token).collect::<Vec<_>>());
            self.lose_http_client(now, at, client, &begun, &held, &faults);
        }
        let lost = member.forget();
        self.count_lost_events(client, lost);
        self.dispatch(now, Input::ClientClosed(client));
    }

    /// The errors for a message that no worker has got, since its client is gone: for a request, and for another one. A
    /// session that continues at a later daemon, or with another worker, may be asked again.
    fn faults_of_loss(&self, id: Option<&str>) -> [Fault; 2] {
        match id.is_some_and(|id| self.persistence.has(id)) {
            true => [Fault::session_waits(), Fault::session_waits()],
            false => [Fault::session_ended_before(), Fault::no_session()],
        }
    }

    /// The client of a connection's request is gone: each request with one of these ids gets an error, and so does each
    /// that was `held`, which no worker has got: the first one. The second one is for what is no request.
    fn lose_http_client(
        &mut self,
        now: Moment,
        slot: usize,
        client: ClientKey,
        ids: &[Vec<u8>],
        held: &[Vec<u8>],
        [of_held, of_others]: &[Fault; 2],
    ) {
        let Some(connection) = self.connections.http_mut(slot) else { return };
        if connection.member.take_if(|member| *member == client).is_none() {
            return;
        }
        let is_waiting = self.connections[HttpSlot(slot)].state == State::Waiting;
        if ids.is_empty() && is_waiting {
            let fault = if held.is_empty() { of_others } else { of_held };
            let id = Some(held).filter(|held| held.len() == 1).and_then(|held| held.first());
            return self.refuse_http(now, slot, fault, id.map(Vec::as_slice));
        }
        if !held.is_empty() {
            if is_waiting {
                self.begin_events_by_role(now, slot);
            }
            self.queue_faults(slot, of_held, held);
        }
        // The core has reported the loss.
        self.fail_exchange(now, slot, &Fault::session_ended(), ids);
    }

    /// Ends the response of a connection that waits for answers: each request with one of these ids gets an error.
    pub(super) fn fail_exchange(&mut self, now: Moment, slot: usize, fault: &Fault, ids: &[Vec<u8>]) {
        if self.connections[HttpSlot(slot)].state == State::Waiting && ids.len() > 1 {
            self.begin_events_by_role(now, slot);
        }
        match self.connections[HttpSlot(slot)].state {
            State::Waiting => self.answer_fault(now, slot, fault, ids.first().map(Vec::as_slice)),
            State::Events => {
                self.queue_faults(slot, fault, ids);
                self.end_http_events(now, slot);
            }
            _ => {}
        }
    }

    /// Queues an event with this error for each request with one of these ids.
    fn queue_faults(&mut self, slot: usize, fault: &Fault, ids: &[Vec<u8>]) {
        let connection = &mut self.connections[HttpSlot(slot)];
        for body in ids.iter().map(|id| fault.body(id)) {
            match &mut connection.outgoing.replay {
                Some(replay) => replay.push(None, body.into(), false),
                None => connection.event(None, &body),
            }
        }
    }

    /// Gives back the memory of long answers that nobody keeps or sends any more.
    pub(in crate::shell) fn give_back_answers(&mut self) {
        self.http.memory.in_place.give_back(self.io.buffers());
    }

    /// Counts undelivered events that were dropped.
    pub(super) fn count_lost_events(&mut self, client: ClientKey, lost: usize) {
        if lost > 0 {
            self.dispatch(self.clock.now(), Input::EventsLost { client, lost });
        }
    }
}
