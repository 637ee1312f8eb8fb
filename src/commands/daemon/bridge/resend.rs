//! What a daemon that shuts down has refused is sent again on a new connection, so that its editor notices nothing: a
//! request whose error says `shutting_down` and that no worker got it (`"delivered": false`). The error is held back,
//! and with it what stdin brings from then on, in order, until the connection has ended. So is what crossed that: a
//! request that was sent after a refused one and has no answer at the end, or over a WebSocket any, if the daemon
//! closes it since it shuts down. What may have been delivered is never repeated: it gets an error, as without this.
//!
//! Number, bytes and time are bounded: [`MOST_TRIES`](super::limits::MOST_TRIES), [`MOST_HELD`], [`HOLD_LIMIT`]. What
//! exceeds them gets the daemon's own error. What the editor cancels meanwhile is not sent again, and gets the answer
//! that its protocol has for that ([`Cancelled`]). On the new connection the editor's `initialize` is repeated first,
//! and its answer is not passed on.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use memchr::memmem;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::cancelled::Cancelled;
use super::pending::{LastWord, RefusedRequest, Undelivered, Waiting};
use super::reconnect::{Round, Rounds};
use crate::bus::id::Id;
use crate::bus::report::Reason;

/// While more bytes of stdin than this are held, it is not read.
const MOST_HELD: usize = 4 << 20;

/// How long anything is held. A daemon gives pending requests `quiesce_sec`, and a restart takes a few seconds.
const HOLD_LIMIT: Duration = Duration::from_secs(120);

/// How long after the daemon owes nothing any more: it closes such a connection within a second. One that does not has
/// passed on the refusal of another daemon behind it.
const IDLE_HOLD_LIMIT: Duration = Duration::from_secs(10);

/// Maximum length of the daemon's error: it repeats an id and a session name.
const LONGEST_REFUSAL: usize = 8 * 1024;

/// Maximum length of a line while the answer to a repeated `initialize` is awaited.
const LONGEST_ANSWER: usize = 16 << 20;

/// How the daemon's own errors begin.
const BEGIN: &[u8] = br#"{"jsonrpc":"2.0","id":"#;

/// What has become of the `initialize` that is repeated on a new connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Initialize {
    /// None is repeated.
    #[default]
    NotRepeated,
    /// The answer to this id is awaited.
    Awaited(Id),
    /// A result has come.
    Accepted,
    /// An error has come.
    Refused(LastWord),
}

/// See the module documentation.
#[derive(Default)]
pub(super) struct Repeat {
    /// Since when anything is held.
    since: Option<Instant>,
    /// Since when, of that, the daemon has owed nothing.
    idle_since: Option<Instant>,
    /// The number of the first request that was refused on this connection. No worker gets any that was sent after it.
    refused_from: Option<u64>,
    /// The connections tried since a daemon was last there.
    rounds: Option<Rounds>,
    /// Refused on this connection, with the daemon's errors.
    refused: Vec<(RefusedRequest, Vec<u8>)>,
    /// Refused on an earlier one, and not sent again yet.
    queue: VecDeque<(RefusedRequest, Vec<u8>)>,
    /// What stdin has brought meanwhile.
    held: Vec<u8>,
    /// It is being sent on a new connection.
    is_sending: bool,
    /// It was held for too long: what was refused gets the daemon's errors, and no other connection is tried.
    has_given_up: bool,
    initialize: Initialize,
    /// The beginning of the daemon's incomplete line, while it may be an error to hold back.
    tail: Vec<u8>,
}

impl Repeat {
    /// Whether stdin is held.
    pub(super) fn is_holding(&self) -> bool {
        self.since.is_some()
    }

    /// Whether what is held waits for a new connection. What is being sent on this one does not, even though stdin is held
    /// until that is done.
    pub(super) fn wants_connection(&self) -> bool {
        let is_sending_the_last = self.is_sending && self.has_nothing_to_send();
        self.is_holding() && !self.has_given_up && !is_sending_the_last
    }

    /// When it is held no longer; `has_pending` says whether the daemon still owes answers `now`.
    pub(super) fn deadline(&mut self, has_pending: bool, now: Instant) -> Option<Instant> {
        let until = self.since.filter(|_| !self.has_given_up)? + HOLD_LIMIT;
        if has_pending || self.is_sending {
            self.idle_since = None;
            return Some(until);
        }
        Some(until.min(*self.idle_since.get_or_insert(now) + IDLE_HOLD_LIMIT))
    }

    /// How a new connection is tried, `now` that the last one has ended; `was_answered` says whether the daemon has answered
    /// anything on that.
    pub(super) fn next_round(&mut self, was_answered: bool, now: Instant) -> Round {
        let was_taken = match self.initialize {
            Initialize::NotRepeated => was_answered || self.refused_from.is_some(),
            Initialize::Accepted => true,
            Initialize::Awaited(_) | Initialize::Refused(_) => false,
        };
        if was_taken {
            self.rounds = None;
        }
        let mut round = Rounds::next(&mut self.rounds, now);
        round.until = self.since.map_or(round.until, |since| round.until.min(since + HOLD_LIMIT));
        round
    }

    /// That time has come: nothing is held back any more.
    pub(super) fn give_up(&mut self) {
        self.has_given_up = true;
        // It was not the daemon of this connection that has refused it, but one behind that.
        self.refused_from = None;
    }

    /// Whether [`Self::give_up`] was called, and not all that was held is sent yet.
    pub(super) fn has_given_up(&self) -> bool {
        self.has_given_up
    }

    /// How many requests wait to be sent again.
    pub(super) fn count(&self) -> usize {
        self.refused.len() + self.queue.len()
    }

    /// Whether stdin is not to be read.
    pub(super) fn is_full(&self) -> bool {
        self.is_holding() && self.held.len() > MOST_HELD
    }

    /// Whether all that is held is being sent, in order.
    pub(super) fn is_sending(&self) -> bool {
        self.is_sending
    }

    /// Holds all that stdin brings from now on: there is no connection.
    pub(super) fn hold_all(&mut self) {
        (self.since, self.is_sending, self.idle_since, self.rounds) = (Some(Instant::now()), true, None, None);
    }

    /// Whether nothing waits for a connection.
    pub(super) fn has_nothing_to_send(&self) -> bool {
        self.count() == 0 && self.held.is_empty() && !self.has_given_up
    }

    /// Holds a part of stdin.
    pub(super) fn hold(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Holds a part of stdin that comes before all that is held.
    pub(super) fn hold_first(&mut self, bytes: Vec<u8>) {
        self.held.splice(..0, bytes);
    }

    /// Whether a line is held in part.
    pub(super) fn is_mid_held_line(&self) -> bool {
        self.held.last().is_some_and(|byte| *byte != b'\n')
    }

    /// Takes out of the next bytes of the daemon what the editor is not to see. All before them was passed on.
    pub(super) fn sift(&mut self, bytes: &mut Vec<u8>, waiting: &mut Waiting) {
        let mut is_mid_line = !waiting.at_line_start();
        if self.tail.is_empty() && !self.may_matter(bytes, is_mid_line) {
            return;
        }
        let all =
            if self.tail.is_empty() { bytes.clone() } else { [std::mem::take(&mut self.tail), bytes.clone()].concat() };
        bytes.clear();
        for line in all.split_inclusive(|byte| *byte == b'\n') {
            let (begins, is_whole) = (!is_mid_line, line.ends_with(b"\n"));
            if begins && !is_whole && self.may_be_held(line) {
                self.tail = line.to_vec();
                return;
            }
            is_mid_line = !is_whole;
            let instead = if begins && is_whole { self.takes(line, waiting) } else { None };
            bytes.extend_from_slice(instead.as_deref().unwrap_or(line));
        }
    }

    /// What was held back of the daemon's last line, which it has not ended. Of what may be the answer to a repeated
    /// `initialize` the editor sees nothing.
    pub(super) fn take_tail(&mut self) -> Vec<u8> {
        let tail = std::mem::take(&mut self.tail);
        if matches!(self.initialize, Initialize::Awaited(_)) { Vec::new() } else { tail }
    }

    /// Whether there may be an error to hold back in these bytes, or the beginning of one at their end. `is_mid_line` says
    /// whether they continue a line.
    fn may_matter(&self, bytes: &[u8], is_mid_line: bool) -> bool {
        let last = memchr::memrchr(b'\n', bytes).map(|newline| newline + 1);
        let begun = match last {
            Some(last) => &bytes[last..],
            None if is_mid_line => &[],
            None => bytes,
        };
        let code = Reason::ShuttingDown.code().to_string();
        matches!(self.initialize, Initialize::Awaited(_))
            || !begun.is_empty() && self.may_be_held(begun)
            || memmem::find(bytes, code.as_bytes()).is_some()
    }

    /// Whether an incomplete line may become one to hold back.
    fn may_be_held(&self, line: &[u8]) -> bool {
        let both = line.len().min(BEGIN.len());
        match self.initialize {
            Initialize::Awaited(_) => line.len() <= LONGEST_ANSWER,
            _ => line.len() <= LONGEST_REFUSAL && line[..both] == BEGIN[..both],
        }
    }

    /// Takes a line of the daemon that the editor is not to see. Returns what it is to see instead, which may be
    /// nothing; none if it is to see the line.
    fn takes(&mut self, line: &[u8], waiting: &mut Waiting) -> Option<Vec<u8>> {
        if let Initialize::Awaited(awaited) = &self.initialize
            && let Some(id) = answered(line)
            && id == *awaited
        {
            let value: Value = serde_json::from_slice(line).unwrap_or_default();
            self.initialize = match value.get("error") {
                None => Initialize::Accepted,
                Some(error) => Initialize::Refused(LastWord::of(error)),
            };
            return Some(Vec::new());
        }
        if line.len() > LONGEST_REFUSAL || !is_refusal(line) {
            return None;
        }
        let id = answered(line)?;
        if let Some(answer) = waiting.take_cancelled(&id) {
            return Some(answer);
        }
        let again = if self.has_given_up { None } else { waiting.take_refused(&id) }?;
        self.note_refused(again, line.to_vec());
        Some(Vec::new())
    }

    fn note_refused(&mut self, again: RefusedRequest, error: Vec<u8>) {
        self.since.get_or_insert_with(Instant::now);
        self.refused_from = Some(self.refused_from.map_or(again.order, |first| first.min(again.order)));
        self.refused.push((again, error));
    }

    /// The connection has ended: takes the pending requests that no worker got, to send them again. These are all that were
    /// sent after one that was refused, and if `all`, all others: the daemon has closed the connection, and before that it
    /// answers what workers have got. `error` is what a request gets otherwise. Returns what the editor is to see at once.
    pub(super) fn take_undelivered(
        &mut self,
        all: bool,
        waiting: &mut Waiting,
        error: impl Fn(&[u8]) -> Vec<u8>,
    ) -> Vec<u8> {
        let after = self.refused_from.filter(|_| !all);
        if after.is_none() && !all {
            return Vec::new();
        }
        let mut answers = Vec::new();
        for undelivered in waiting.take_undelivered(after) {
            match undelivered {
                Undelivered::RefusedRequest(again, id) => self.note_refused(again, error(&id)),
                Undelivered::Cancelled(answer) => answers.extend(answer),
                Undelivered::Lost(id) => answers.extend(error(&id)),
            }
        }
        answers
    }

    /// A new connection begins, for which this id is that of the repeated `initialize`, if it is repeated.
    pub(super) fn begin_again(&mut self, initialize: Option<Id>) {
        self.requeue();
        self.initialize = initialize.map_or(Initialize::NotRepeated, Initialize::Awaited);
        (self.tail, self.is_sending, self.idle_since, self.refused_from) = (Vec::new(), true, None, None);
    }

    /// What has become of the `initialize` that is repeated on this connection.
    pub(super) fn initialize(&self) -> &Initialize {
        &self.initialize
    }

    /// What was refused is sent again before all that was not sent yet.
    fn requeue(&mut self) {
        self.refused.sort_by_key(|(again, _)| again.order);
        for again in self.refused.drain(..).rev() {
            self.queue.push_front(again);
        }
    }

    /// The lines to send again.
    pub(super) fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.queue.iter().chain(&self.refused).map(|(again, _)| &again.line[..])
    }

    /// What is sent next on the new connection: a refused request, with the number of its tries, or what was held. None
    /// when all is sent, and from then on nothing is held; or if something was refused anew. `is_mid_line` says whether a line
    /// was sent in part: nothing but its rest can follow.
    pub(super) fn next(&mut self, is_mid_line: bool) -> Option<(Vec<u8>, u8)> {
        if is_mid_line && !self.held.is_empty() {
            return Some((self.take_line(), 0));
        }
        if !self.refused.is_empty() {
            self.is_sending = false;
            return None;
        }
        if let Some((again, _)) = self.queue.pop_front() {
            return Some((again.line, again.tries));
        }
        if self.held.is_empty() {
            (self.since, self.idle_since, self.is_sending, self.has_given_up) = (None, None, false, false);
            return None;
        }
        // The beginning of a long line is a part of its own, so that it is clear where it begins.
        let whole = memchr::memrchr(b'\n', &self.held).map_or(self.held.len(), |newline| newline + 1);
        Some((self.held.drain(..whole).collect(), 0))
    }

    /// Takes the first line that is held, or as much of it as there is.
    fn take_line(&mut self) -> Vec<u8> {
        let end = memchr::memchr(b'\n', &self.held).map_or(self.held.len(), |newline| newline + 1);
        self.held.drain(..end).collect()
    }

    /// Drops the rest of a line that was sent in part. Returns whether its end was held.
    pub(super) fn drop_begun(&mut self) -> bool {
        self.take_line().ends_with(b"\n")
    }

    /// Takes out what the editor has cancelled: a request, or the prompts of a session. Returns the answers to it; none if
    /// nothing that was cancelled is held.
    pub(super) fn cancel(&mut self, cancelled: &Cancelled) -> Option<Vec<u8>> {
        let mut answers = None::<Vec<u8>>;
        let mut takes = |line: &[u8]| match cancelled.answer_to(line) {
            Some(answer) if answers.is_none() || cancelled.is_turn() => {
                answers.get_or_insert_default().extend(answer);
                true
            }
            _ => false,
        };
        // What came last is what an id stands for that was used twice.
        let mut lines: Vec<&[u8]> = self.held.split_inclusive(|byte| *byte == b'\n').collect();
        let before = lines.len();
        lines.reverse();
        lines.retain(|line| !(line.ends_with(b"\n") && takes(line)));
        lines.reverse();
        let left = (lines.len() < before).then(|| lines.concat());
        self.queue.retain(|(again, _)| !takes(&again.line));
        self.refused.retain(|(again, _)| !takes(&again.line));
        if let Some(left) = left {
            self.held = left;
        }
        answers
    }

    /// Takes the errors of what was refused.
    pub(super) fn take_errors(&mut self) -> Vec<u8> {
        self.requeue();
        self.queue.drain(..).flat_map(|(_, error)| error).collect()
    }

    /// Nothing refused is left, and what was held is to be sent in order. False if that is being done.
    pub(super) fn starts_sending(&mut self) -> bool {
        !std::mem::replace(&mut self.is_sending, true)
    }

    /// What was held, which no daemon got.
    pub(super) fn take_held(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

/// The id that a line answers.
fn answered(line: &[u8]) -> Option<Id> {
    let members: HashMap<String, &RawValue> = serde_json::from_slice(line).ok()?;
    let answers = !members.contains_key("method") && (members.contains_key("result") || members.contains_key("error"));
    Id::parse(members.get("id").filter(|_| answers)?.get().as_bytes()).ok()
}

/// Whether a line is the daemon's refusal of a request that no worker got, since it shuts down.
pub(super) fn is_refusal(line: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<Value>(line) else { return false };
    let error = &value["error"];
    error["code"] == Reason::ShuttingDown.code()
        && error["data"]["reason"] == Reason::ShuttingDown.name()
        && error["data"]["delivered"] == false
}

/// Whether a line of stdin is a request, which waits for an answer.
pub(super) fn is_request(line: &[u8]) -> bool {
    let Ok(members) = serde_json::from_slice::<HashMap<String, &RawValue>>(line) else { return false };
    members.contains_key("method") && members.contains_key("id")
}

/// What a line of stdin is, for a daemon that takes no more requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// It waits for the new connection.
    Held,
    /// It is about something that the daemon has: the answer to a question, a notification, a cancellation.
    Sent,
}

impl Urgency {
    /// That of a line; `has_pending` says whether the daemon still owes answers.
    pub(super) fn of(line: &[u8], has_pending: bool) -> Self {
        let Ok(members) = serde_json::from_slice::<HashMap<String, &RawValue>>(line) else { return Self::Held };
        match members.get("method") {
            None if members.contains_key("result") || members.contains_key("error") => Self::Sent,
            Some(_) if !members.contains_key("id") && has_pending => Self::Sent,
            _ => Self::Held,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::commands::daemon::bridge::limits::MOST_TRIES;

    fn refusal(id: &str) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32016,"message":"the daemon is shutting down","data":{{"reason":"shutting_down","delivered":false}}}}}}"#
        ) + "\n"
    }

    fn request(id: &str) -> String {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"m\"}}\n")
    }

    fn sifted(stream: &str, cut: usize, repeat: &mut Repeat, waiting: &mut Waiting) -> String {
        let mut seen = Vec::new();
        for piece in stream.as_bytes().chunks(cut) {
            let mut piece = piece.to_vec();
            repeat.sift(&mut piece, waiting);
            waiting.passed(&piece);
            seen.extend(piece);
        }
        seen.extend(repeat.take_tail());
        String::from_utf8(seen).expect("text")
    }

    #[test]
    fn refusals_of_what_no_worker_got_are_held_back_however_they_are_cut() {
        let delivered = refusal("4").replace("false", "true");
        let others =
            format!("{{\"id\":1,\"result\":\"-32016\"}}\n{delivered}{{\"method\":\"-32016\"}}\n{}", refusal("9"));
        let stream = format!("{}{others}{}{{\"jsonrpc\":\"2.0\",\"id\":7", refusal("3"), refusal("\"b\""));
        for cut in 1..=stream.len() {
            let (mut repeat, mut waiting) = (Repeat::default(), Waiting::default());
            for id in ["\"b\"", "1", "3", "4"] {
                waiting.sending(request(id).as_bytes());
            }
            let seen = sifted(&stream, cut, &mut repeat, &mut waiting);
            assert_eq!(seen, format!("{others}{{\"jsonrpc\":\"2.0\",\"id\":7"), "in pieces of {cut}");
            assert!(repeat.is_holding() && waiting.is_empty());
            repeat.begin_again(None);
            let again: Vec<u8> = std::iter::from_fn(|| repeat.next(false)).flat_map(|(line, _)| line).collect();
            assert_eq!(String::from_utf8_lossy(&again), request("\"b\"") + &request("3"), "as they were sent first");
            assert!(!repeat.is_holding());
        }
    }

    #[test]
    fn what_is_being_sent_last_waits_for_no_other_connection() {
        let mut repeat = Repeat::default();
        repeat.hold_all();
        repeat.hold(request("1").as_bytes());
        assert!(repeat.wants_connection());
        repeat.begin_again(None);
        assert!(repeat.wants_connection(), "it is not sent yet");
        assert_eq!(repeat.next(false), Some((request("1").into_bytes(), 0)));
        assert!(repeat.is_holding() && !repeat.wants_connection(), "it may have been delivered, and is not sent again");
        repeat.hold(request("2").as_bytes());
        assert!(repeat.wants_connection(), "that came meanwhile");
    }

    #[test]
    fn the_answer_to_a_repeated_initialize_is_taken_out_and_says_whether_it_worked() {
        let word = LastWord { reason: String::new(), message: "why".to_owned() };
        for (answer, became) in [
            (r#""result":{"x":1}"#, Initialize::Accepted),
            (r#""error":{"code":1,"message":"why"}"#, Initialize::Refused(word)),
        ] {
            let stream = format!("{{\"method\":\"a\"}}\n{{\"id\":0,{answer}}}\n{{\"id\":0,\"method\":\"b\"}}\n");
            for cut in 1..=stream.len() {
                let (mut repeat, mut waiting) = (Repeat::default(), Waiting::default());
                repeat.begin_again(Some(Id::parse(b"0").expect("an id")));
                assert!(matches!(repeat.initialize(), Initialize::Awaited(_)));
                let seen = sifted(&stream, cut, &mut repeat, &mut waiting);
                assert_eq!(seen, "{\"method\":\"a\"}\n{\"id\":0,\"method\":\"b\"}\n");
                assert_eq!(*repeat.initialize(), became, "in pieces of {cut}");
            }
        }
        let (mut repeat, mut waiting) = (Repeat::default(), Waiting::default());
        repeat.begin_again(Some(Id::parse(b"0").expect("an id")));
        let half = "{\"method\":\"a\"}\n{\"id\":0,\"result\":{\"x\"";
        let seen = sifted(half, 7, &mut repeat, &mut waiting);
        assert_eq!(seen, "{\"method\":\"a\"}\n", "the connection has ended within the answer");
    }

    #[test]
    fn a_request_that_is_refused_each_time_gets_an_error_in_the_end() {
        let (mut repeat, mut waiting) = (Repeat::default(), Waiting::default());
        waiting.sending(request("1").as_bytes());
        for _ in 1..MOST_TRIES {
            assert_eq!(sifted(&refusal("1"), 1000, &mut repeat, &mut waiting), "");
            repeat.begin_again(None);
            let (line, tries) = repeat.next(false).expect("it is sent again");
            waiting.sending_again(&line, tries);
        }
        assert_eq!(sifted(&refusal("1"), 1000, &mut repeat, &mut waiting), refusal("1"));
    }

    #[test]
    fn what_is_refused_again_comes_before_what_was_not_sent_yet() {
        let (mut repeat, mut waiting) = (Repeat::default(), Waiting::default());
        (1..4).for_each(|id| waiting.sending(request(&id.to_string()).as_bytes()));
        sifted(&(1..4).map(|id| refusal(&id.to_string())).collect::<String>(), 1000, &mut repeat, &mut waiting);
        repeat.hold(request("4").as_bytes());
        repeat.begin_again(None);
        let (line, tries) = repeat.next(false).expect("there is one");
        waiting.sending_again(&line, tries);
        sifted(&refusal("1"), 1000, &mut repeat, &mut waiting);
        assert_eq!(repeat.next(false), None, "this daemon shuts down, too");
        repeat.begin_again(None);
        let again: Vec<u8> = std::iter::from_fn(|| repeat.next(false)).flat_map(|(line, _)| line).collect();
        assert_eq!(String::from_utf8_lossy(&again), (1..5).map(|id| request(&id.to_string())).collect::<String>());
        let (mut repeat, mut waiting) = (Repeat::default(), Waiting::default());
        waiting.sending(request("1").as_bytes());
        sifted(&refusal("1"), 1000, &mut repeat, &mut waiting);
        repeat.hold(b"x");
        assert_eq!((repeat.take_errors(), repeat.count()), (refusal("1").into_bytes(), 0));
        assert_eq!(repeat.next(false), Some((b"x".to_vec(), 0)), "that was never sent");
        assert!(repeat.next(false).is_none() && !repeat.is_holding());
    }

    #[test]
    fn the_rest_of_a_line_follows_its_beginning_whatever_is_refused_meanwhile() {
        let (mut repeat, mut waiting) = (Repeat::default(), Waiting::default());
        (1..3).for_each(|id| waiting.sending(request(&id.to_string()).as_bytes()));
        sifted(&refusal("1"), 1000, &mut repeat, &mut waiting);
        repeat.hold((request("3") + "{\"id\":4,").as_bytes());
        repeat.begin_again(None);
        let mut next = |repeat: &mut Repeat| {
            let (bytes, tries) = repeat.next(waiting.is_mid_line())?;
            waiting.sending_again(&bytes, tries);
            Some(String::from_utf8(bytes).expect("text"))
        };
        assert_eq!(next(&mut repeat), Some(request("1")));
        assert_eq!(next(&mut repeat), Some(request("3")));
        assert_eq!(next(&mut repeat).as_deref(), Some("{\"id\":4,"));
        repeat.refused.push((RefusedRequest { order: 0, line: request("1").into(), tries: 1 }, refusal("1").into()));
        repeat.hold(("\"method\":\"m\"}\n".to_owned() + &request("5")).as_bytes());
        assert_eq!(next(&mut repeat).as_deref(), Some("\"method\":\"m\"}\n"));
        assert_eq!(next(&mut repeat), None, "this daemon shuts down, too");
        repeat.begin_again(None);
        assert_eq!(next(&mut repeat), Some(request("1")));
        assert_eq!(next(&mut repeat), Some(request("5")));
        repeat.hold(b"xx\ny");
        assert!(repeat.drop_begun() && !repeat.drop_begun(), "what is too long to be kept is dropped up to its end");
    }

    #[test]
    fn a_daemon_has_time_to_close_after_its_last_answer_however_long_that_took() {
        let (mut repeat, mut waiting) = (Repeat::default(), Waiting::default());
        waiting.sending(request("1").as_bytes());
        sifted(&refusal("1"), 1000, &mut repeat, &mut waiting);
        let since = repeat.since.expect("it is held");
        let answered = since + Duration::from_secs(60);
        assert_eq!(repeat.deadline(true, answered), Some(since + HOLD_LIMIT));
        assert_eq!(repeat.deadline(false, answered), Some(answered + IDLE_HOLD_LIMIT));
        let later = answered + Duration::from_secs(5);
        assert_eq!(repeat.deadline(false, later), Some(answered + IDLE_HOLD_LIMIT), "it owes nothing since then");
        repeat.begin_again(None);
        assert_eq!(repeat.deadline(false, later), Some(since + HOLD_LIMIT), "it is being sent again");
        waiting.sending_again(&repeat.next(false).expect("it is sent").0, 1);
        sifted(&refusal("1"), 1000, &mut repeat, &mut waiting);
        assert_eq!(repeat.next(false), None, "this daemon shuts down, too");
        assert_eq!(repeat.deadline(false, later), Some(later + IDLE_HOLD_LIMIT), "it has time of its own");
        let last = since + HOLD_LIMIT - Duration::from_secs(1);
        assert_eq!(repeat.deadline(true, last), Some(since + HOLD_LIMIT));
        assert_eq!(repeat.deadline(false, last), Some(since + HOLD_LIMIT), "there is an end to all of it");
    }

    /// What has become of connections that were tried one after the other: how long it is tried, from the first one, and the
    /// pauses.
    fn tried(initialize: bool, each: impl Fn(&mut Repeat, &mut Waiting) -> bool) -> (Vec<Duration>, Vec<Duration>) {
        let (mut repeat, mut waiting) = (Repeat::default(), Waiting::default());
        waiting.sending(request("1").as_bytes());
        sifted(&refusal("1"), 1000, &mut repeat, &mut waiting);
        let (begin, mut untils, mut pauses) = (repeat.since.expect("it is held"), Vec::new(), Vec::new());
        let mut was_answered = true;
        for seconds in 0..4 {
            let round = repeat.next_round(was_answered, begin + Duration::from_secs(seconds));
            assert_eq!(round.is_first, round.until == begin + Duration::from_secs(30 + seconds));
            untils.push(round.until - begin);
            pauses.push(round.pause);
            repeat.begin_again(initialize.then(|| Id::parse(b"0").expect("an id")));
            was_answered = each(&mut repeat, &mut waiting);
        }
        (untils, pauses)
    }

    #[test]
    fn all_connections_until_a_daemon_is_there_have_one_limit_and_growing_pauses() {
        let one_limit = vec![Duration::from_secs(30); 4];
        let moved: Vec<_> = (30..34).map(Duration::from_secs).collect();
        let no_worker = "{\"id\":0,\"error\":{\"code\":1,\"data\":{\"reason\":\"no_worker\"}}}\n";
        let closed = |_: &mut Repeat, _: &mut Waiting| false;
        let refuses = |repeat: &mut Repeat, waiting: &mut Waiting| {
            sifted(no_worker, 1000, repeat, waiting);
            false
        };
        for (what, (untils, pauses)) in [
            ("a tunnel that closes at once", tried(false, closed)),
            ("the same, which an initialize was sent to", tried(true, closed)),
            ("a daemon that has no worker yet", tried(true, refuses)),
        ] {
            assert_eq!(untils, one_limit, "{what}");
            assert!(pauses.is_sorted_by(|one, next| one < next), "{what}: {pauses:?}");
        }
        let accepts = |repeat: &mut Repeat, waiting: &mut Waiting| {
            sifted("{\"id\":0,\"result\":{}}\n", 1000, repeat, waiting);
            false
        };
        let refuses_again = |repeat: &mut Repeat, waiting: &mut Waiting| {
            waiting.sending_again(&repeat.next(false).expect("it is held").0, 1);
            sifted(&refusal("1"), 1000, repeat, waiting);
            false
        };
        let closes = |repeat: &mut Repeat, waiting: &mut Waiting| {
            waiting.sending_again(&repeat.next(false).expect("it is held").0, 1);
            assert!(repeat.take_undelivered(true, waiting, |_| Vec::new()).is_empty());
            false
        };
        for (what, (untils, _)) in [
            ("a daemon that takes the initialize", tried(true, accepts)),
            ("one that answers", tried(false, |_, _| true)),
            ("one that shuts down", tried(false, refuses_again)),
            ("one that closes a WebSocket since it does", tried(false, closes)),
        ] {
            assert_eq!(untils, moved, "{what}");
        }
    }

    #[test]
    fn each_idle_end_of_a_connection_has_a_limit_of_its_own_though_nothing_was_answered_between() {
        let (mut repeat, mut begin) = (Repeat::default(), Instant::now());
        for _ in 0..3 {
            repeat.hold_all();
            let round = repeat.next_round(false, begin);
            assert_eq!((round.is_first, round.until), (true, begin + Duration::from_secs(30)));
            repeat.begin_again(None);
            repeat.hold(b"{\"method\":\"note\"}\n");
            assert!(repeat.next(false).is_some() && repeat.next(false).is_none(), "it is sent");
            begin += Duration::from_secs(40);
        }
    }

    #[test]
    fn what_was_held_for_too_long_is_given_up_once() {
        let (mut repeat, mut waiting) = (Repeat::default(), Waiting::default());
        waiting.sending((request("1") + &request("2")).as_bytes());
        sifted(&refusal("1"), 1000, &mut repeat, &mut waiting);
        repeat.hold(request("3").as_bytes());
        assert!(repeat.deadline(true, Instant::now()).is_some() && repeat.wants_connection());
        repeat.give_up();
        assert_eq!(repeat.deadline(true, Instant::now()), None, "it would be reached again and again");
        assert!(!repeat.wants_connection() && repeat.is_holding(), "what comes waits behind what is held");
        assert_eq!(sifted(&refusal("2"), 1000, &mut repeat, &mut waiting), refusal("2"), "nothing more is held back");
        assert_eq!(repeat.take_errors(), refusal("1").into_bytes());
        assert!(repeat.starts_sending() && !repeat.starts_sending(), "one task sends it");
        assert_eq!(repeat.next(false), Some((request("3").into_bytes(), 0)));
        assert!(repeat.next(false).is_none() && !repeat.is_holding() && !repeat.has_given_up());
        waiting.sending(request("4").as_bytes());
        assert_eq!(sifted(&refusal("4"), 1000, &mut repeat, &mut waiting), "", "another one is held back again");
    }

    #[test]
    fn only_requests_wait_for_the_new_connection() {
        for (line, urgency) in [
            (r#"{"id":1,"method":"m"}"#, Urgency::Held),
            (r#"{"id":1,"result":{}}"#, Urgency::Sent),
            (r#"{"id":1,"error":{}}"#, Urgency::Sent),
            (r#"{"method":"m"}"#, Urgency::Sent),
            (r#"{"method":"session/cancel","params":{"sessionId":"s"}}"#, Urgency::Sent),
            (r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#, Urgency::Sent),
            (r#"{"method":"$/cancel_request","params":{"requestId":1}}"#, Urgency::Sent),
            (r#"{"method":"$\/cancelRequest","params":{"id":1}}"#, Urgency::Sent),
            ("nonsense", Urgency::Held),
        ] {
            assert_eq!(Urgency::of(line.as_bytes(), true), urgency, "{line}");
        }
        assert_eq!(Urgency::of(br#"{"method":"session/cancel"}"#, false), Urgency::Held);
    }

    proptest! {
        #[test]
        fn all_else_is_passed_on_as_it_came(
            lines in prop::collection::vec("[a-z{}\":, -]{0,40}", 0..12),
            cut in 1..50_usize,
        ) {
            let stream = lines.join("\n");
            let (mut repeat, mut waiting) = (Repeat::default(), Waiting::default());
            prop_assert_eq!(sifted(&stream, cut, &mut repeat, &mut waiting), stream);
        }
    }
}
