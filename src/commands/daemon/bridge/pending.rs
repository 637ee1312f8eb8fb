//! The pending requests: recorded before they are sent to the daemon, removed when their answers have passed. Those
//! that remain when the connection ends would keep the editor waiting for ever.

use std::collections::{HashMap, VecDeque};

use memchr::memmem;
use serde_json::Value;

use super::cancelled::Cancelled;
use super::follow::{FollowedKind, FollowedLine, Follower};
use super::limits::MOST_TRIES;
use crate::bus::id::Id;
use crate::bus::is_initialized;
use crate::bus::reply::session_cancel;

/// Maximum number of pending requests, which bounds the memory that an editor can make the bridge use. The daemon
/// itself allows far fewer.
const MAX_WAITING: usize = 65_536;

/// Maximum length of a line from the daemon that may be its last word.
const MAX_LAST_WORD: usize = 4096;

/// How many bytes of pending requests are kept, so that they can be sent again. Longer ones are not kept.
const MOST_KEPT: usize = 4 << 20;

/// How many requests that nothing answers any more are remembered, in case a daemon has refused them.
const MOST_GIVEN_UP: usize = 64;

/// Maximum length of a message that begins a connection.
const LONGEST_OPENING: usize = 64 * 1024;

/// The pending requests of one connection.
#[derive(Default)]
pub(super) struct Waiting {
    requests: Follower,
    /// The line that is being sent.
    draft: Draft,
    opening: SessionOpening,
    answers: Follower,
    open: Open,
    /// The beginning of the daemon's incomplete line, while it may be its last word.
    begun: Vec<u8>,
    /// The daemon's last line, if it is an error without an id.
    last_word: Vec<u8>,
    /// It has answered a request on this connection.
    has_answered: bool,
}

/// The daemon's reason for closing a connection, or for refusing a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LastWord {
    /// The reason's code; empty in an error of an agent.
    pub reason: String,
    /// The reason in words.
    pub message: String,
}

impl LastWord {
    /// From the error of a response.
    pub(super) fn of(error: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self { reason: text(&error["data"]["reason"]), message: text(&error["message"]) }
    }
}

/// What remains to be sent to the daemon at the end of stdin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnsentAtEnd {
    /// The missing newline of the last line, and lines that cancel pending prompts.
    pub lines: Vec<u8>,
    /// Stdin did not end in the middle of a message.
    pub is_whole: bool,
}

/// A copy of the line that is being sent.
#[derive(Default)]
struct Draft {
    bytes: Vec<u8>,
    is_too_long: bool,
}

impl Draft {
    fn push(&mut self, bytes: &[u8]) {
        self.is_too_long |= self.bytes.len() + bytes.len() > MOST_KEPT;
        if self.is_too_long {
            self.bytes = Vec::new();
        } else {
            self.bytes.extend_from_slice(bytes);
        }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(LONGEST_OPENING);
        self.is_too_long = false;
    }
}

/// The messages that the editor began its connection with.
#[derive(Clone, Default)]
pub(super) struct SessionOpening {
    /// `initialize` and its id.
    pub initialize: Option<(Id, Vec<u8>)>,
    /// `notifications/initialized` of MCP, or `initialized` of LSP.
    pub initialized: Option<Vec<u8>>,
}

impl SessionOpening {
    /// Whether this would cancel the `initialize`, which MCP does not do.
    fn outlasts(&self, cancelled: &Cancelled) -> bool {
        matches!((&self.initialize, cancelled), (Some((id, _)), Cancelled::Unanswered(other)) if id == other)
    }

    /// Takes note of a line that is being sent.
    fn note(&mut self, line: &FollowedLine<'_>, bytes: &[u8]) {
        if bytes.len() > LONGEST_OPENING || memmem::find(bytes, b"initialize").is_none() {
            return;
        }
        let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return };
        match (value["method"].as_str(), &line.message) {
            (Some("initialize"), Some((FollowedKind::Request, id, _))) => {
                self.initialize = Some((id.clone(), bytes.to_vec()));
                self.initialized = None;
            }
            (Some(method), None) if is_initialized(method.as_bytes()) => self.initialized = Some(bytes.to_vec()),
            _ => {}
        }
    }
}

/// A refused request, to be sent again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RefusedRequest {
    /// Its sequence number.
    pub order: u64,
    pub line: Vec<u8>,
    /// How often it was sent.
    pub tries: u8,
}

/// A pending request that no worker got, now that its connection has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Undelivered {
    /// It can be sent again; and its raw id.
    RefusedRequest(RefusedRequest, Box<[u8]>),
    /// The editor has cancelled it: what answers it.
    Cancelled(Vec<u8>),
    /// It was not kept, or was sent too often: its raw id.
    Lost(Box<[u8]>),
}

/// The table of pending requests.
#[derive(Default)]
struct Open {
    requests: HashMap<IdToken, PendingRequest>,
    /// Number of pending requests, including repeated ids.
    count: usize,
    next: u64,
    /// Bytes of pending requests that are kept.
    kept: usize,
    /// How often the request that is being sent was sent before.
    tries: u8,
    longest: Longest,
    /// The editor has received an error without an id.
    has_null_id_error: bool,
    /// The last requests that were given up in MCP, newest first.
    given_up: VecDeque<IdToken>,
}

/// The longest line sent.
#[derive(Default)]
struct Longest {
    length: u64,
    /// Its raw id, if it is a request.
    request: Option<Box<[u8]>>,
}

/// A line that was too long for the daemon.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overlong {
    /// Its length, as far as it is known.
    pub length: u64,
    /// Its sender.
    pub asker: Asker,
}

/// The sender of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// It waits for the answer to the request with this raw id.
    Waits(Box<[u8]>),
    /// The daemon has answered it already.
    Knows,
    Unknown,
}

/// An id token in canonical form.
type IdToken = Box<[u8]>;

struct PendingRequest {
    /// Its sequence number.
    order: u64,
    /// The id verbatim.
    token: Box<[u8]>,
    /// The raw session name of the last one, if it is a prompt.
    prompts: Option<Box<[u8]>>,
    /// How many requests with this id are pending: an editor that reuses an id waits for several answers.
    times: usize,
    /// Its line, if it is the only one with its id and not too long, and how often it was sent.
    line: Option<Vec<u8>>,
    tries: u8,
    /// How the editor has cancelled it.
    cancelled: Option<Cancelled>,
}

impl Waiting {
    /// Records bytes that are about to be sent to the daemon. Must be called before they are sent, so that no answer
    /// arrives first.
    pub(super) fn sending(&mut self, bytes: &[u8]) {
        let Self { requests, open, draft, opening, .. } = self;
        let mut start = 0;
        requests.read(bytes, |line| {
            let next = bytes.len() - line.rest;
            draft.push(&bytes[start..next]);
            opening.note(&line, &draft.bytes);
            open.sent(&line, &draft.bytes);
            if line.message.is_none()
                && let Some(cancelled) = Cancelled::by(&draft.bytes)
                && !opening.outlasts(&cancelled)
            {
                open.cancel(&cancelled);
            }
            draft.clear();
            start = next;
        });
        draft.push(&bytes[start..]);
    }

    /// The same for a request that was sent so often before.
    pub(super) fn sending_again(&mut self, line: &[u8], tries: u8) {
        self.open.tries = tries;
        self.sending(line);
        self.open.tries = 0;
    }

    /// Removes a request that the daemon has refused, if it can be sent again and the editor still wants it.
    pub(super) fn take_refused(&mut self, id: &Id) -> Option<RefusedRequest> {
        let may_go = |request: &&mut PendingRequest| request.tries < MOST_TRIES && request.cancelled.is_none();
        let request = self.open.requests.get_mut(&key(id)).filter(may_go)?;
        let (order, line, tries) = (request.order, request.line.take()?, request.tries);
        self.open.kept -= line.len();
        self.open.answered(id);
        Some(RefusedRequest { order, line, tries })
    }

    /// A daemon has refused a request as not delivered: if the editor has cancelled it, it is pending no more. Returns what
    /// answers it instead, which may be nothing.
    pub(super) fn take_cancelled(&mut self, id: &Id) -> Option<Vec<u8>> {
        let name = key(id);
        if let Some(at) = self.open.given_up.iter().position(|other| *other == name) {
            self.open.given_up.remove(at);
            return Some(Vec::new());
        }
        let request = self.open.requests.get(&name)?;
        let answer = request.cancelled.as_ref()?.answer(&request.token);
        self.open.answered(id);
        Some(answer)
    }

    /// Takes the pending requests that no worker got: those that were sent `after` this one, or all.
    pub(super) fn take_undelivered(&mut self, after: Option<u64>) -> Vec<Undelivered> {
        let is_later = |request: &PendingRequest| after.is_none_or(|order| request.order > order);
        let mut taken: Vec<_> = self.open.requests.extract_if(|_, request| is_later(request)).collect();
        taken.sort_by_key(|(_, request)| request.order);
        let mut undelivered = Vec::new();
        for (_, request) in taken {
            self.open.count -= request.times;
            self.open.kept -= request.line.as_ref().map_or(0, Vec::len);
            undelivered.extend(request.undelivered());
        }
        undelivered
    }

    /// Takes the incomplete line that was sent so far, of which the daemon can have done nothing.
    ///
    /// # Errors
    /// It was too long to keep: its id, if it is a request and its id is known.
    pub(super) fn take_unfinished(&mut self) -> Result<Vec<u8>, Option<Box<[u8]>>> {
        let id = self.requests.unfinished().1.map(Box::from);
        self.requests = Follower::default();
        let draft = std::mem::take(&mut self.draft);
        if draft.is_too_long { Err(id) } else { Ok(draft.bytes) }
    }

    /// Whether a line was sent in part.
    pub(super) fn is_mid_line(&self) -> bool {
        !self.draft.bytes.is_empty() || self.draft.is_too_long
    }

    /// What the editor began its connection with.
    pub(super) fn opening(&self) -> SessionOpening {
        self.opening.clone()
    }

    /// A new connection begins, whose lines follow nothing.
    pub(super) fn begin_again(&mut self) {
        (self.answers, self.begun, self.last_word) = (Follower::default(), Vec::new(), Vec::new());
        self.has_answered = false;
    }

    /// Records the end of the editor's input; the last line needs no newline. Returns what has to be sent to the daemon
    /// then: no one is left to cancel a prompt, and an agent would work in vain.
    pub(super) fn sent_all(&mut self) -> UnsentAtEnd {
        let Self { requests, open, draft, .. } = self;
        let (has_newline, is_whole) = (requests.at_line_start(), requests.is_whole());
        draft.push(b"\n");
        requests.end(|line| open.sent(&line, &draft.bytes));
        draft.clear();
        let mut lines = Vec::new();
        if is_whole && !has_newline {
            lines.push(b'\n');
        }
        lines.extend(self.cancel_prompts());
        UnsentAtEnd { lines, is_whole }
    }

    /// Cancels pending prompts, which are not sent again then. Returns the lines that do so.
    pub(super) fn cancel_prompts(&mut self) -> Vec<u8> {
        let mut lines = Vec::new();
        for request in self.open.requests.values_mut() {
            let Some(session) = request.prompts.as_deref() else { continue };
            lines.push((request.order, session_cancel(session)));
            request.cancelled = serde_json::from_slice(session).ok().map(Cancelled::Turn);
        }
        lines.sort();
        lines.into_iter().flat_map(|(_, line)| line).collect()
    }

    /// Records bytes that were written to the editor.
    pub(super) fn passed(&mut self, bytes: &[u8]) {
        let Self { answers, open, begun, last_word, has_answered, .. } = self;
        let mut start = 0;
        answers.read(bytes, |line| {
            let next = bytes.len() - line.rest;
            // Errors for requests in flight may follow it.
            if !matches!(line.message, Some((FollowedKind::Response, ..))) {
                last_word.clear();
            }
            if line.has_null_id {
                open.has_null_id_error = true;
                if line.length <= MAX_LAST_WORD as u64 {
                    last_word.extend_from_slice(begun);
                    last_word.extend_from_slice(&bytes[start..next]);
                }
            }
            if let Some((FollowedKind::Response, id, _)) = line.message {
                *has_answered |= open.answered(&id);
            }
            begun.clear();
            start = next;
        });
        let tail = &bytes[start..];
        begun.extend_from_slice(&tail[..tail.len().min(MAX_LAST_WORD.saturating_sub(begun.len()))]);
    }

    /// The daemon's last line, if it was an error without an id and only responses followed: it says why the connection
    /// was closed.
    pub(super) fn last_word(&self) -> Option<LastWord> {
        let value: serde_json::Value = serde_json::from_slice(&self.last_word).ok()?;
        let error = value.get("error").filter(|_| self.begun.is_empty())?;
        let text = |value: Option<&serde_json::Value>| Some(value?.as_str()?.to_owned());
        Some(LastWord { reason: text(error.pointer("/data/reason"))?, message: text(error.get("message"))? })
    }

    /// Whether the daemon has answered a request on this connection.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Removes a request that nothing answers any more.
    pub(super) fn forget(&mut self, id: &Id) {
        self.open.answered(id);
    }

    /// Whether nothing is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.open.count == 0
    }

    /// Whether the editor's output ends with a complete line.
    pub(super) fn at_line_start(&self) -> bool {
        self.answers.at_line_start()
    }

    /// The line that was too long; its request is not pending afterwards.
    ///
    /// It is the longest one sent. All lines before the one that the daemon refused were shorter, so any longer one is
    /// too long as well.
    pub(super) fn take_overlong(&mut self) -> Overlong {
        let unknown = if self.open.has_null_id_error { Asker::Knows } else { Asker::Unknown };
        let (length, unfinished) = self.requests.unfinished();
        if length > self.open.longest.length {
            return Overlong { length, asker: unfinished.map_or(unknown, |token| Asker::Waits(token.into())) };
        }
        let Longest { length, request } = std::mem::take(&mut self.open.longest);
        let asker = match request {
            None => unknown,
            Some(token) if Id::parse(&token).is_ok_and(|id| self.open.answered(&id)) => Asker::Waits(token),
            Some(_) => Asker::Knows,
        };
        Overlong { length, asker }
    }

    /// Takes the raw ids of all pending requests, in the order in which they were sent.
    pub(super) fn take(&mut self) -> Vec<Box<[u8]>> {
        (self.open.count, self.open.kept) = (0, 0);
        let mut requests: Vec<PendingRequest> = self.open.requests.drain().map(|(_, request)| request).collect();
        requests.sort_by_key(|request| request.order);
        requests.into_iter().flat_map(|request| vec![request.token; request.times]).collect()
    }
}

impl PendingRequest {
    /// What has become of it, and of others with its id.
    fn undelivered(self) -> Vec<Undelivered> {
        let Self { order, token, line, tries, times, .. } = self;
        if let Some(cancelled) = &self.cancelled {
            return vec![Undelivered::Cancelled(cancelled.answer(&token).repeat(times))];
        }
        match line.filter(|_| tries < MOST_TRIES) {
            Some(line) => vec![Undelivered::RefusedRequest(RefusedRequest { order, line, tries }, token)],
            None => (0..times).map(|_| Undelivered::Lost(token.clone())).collect(),
        }
    }
}

impl Open {
    /// A line is sent; `bytes` is a copy of it, or empty.
    fn sent(&mut self, line: &FollowedLine<'_>, bytes: &[u8]) {
        let request = match &line.message {
            Some((FollowedKind::Request, id, token)) => Some((id, *token)),
            _ => None,
        };
        if line.length > self.longest.length {
            self.longest = Longest { length: line.length, request: request.map(|(_, token)| token.into()) };
        }
        let Some((id, token)) = request else { return };
        if self.count == MAX_WAITING {
            return;
        }
        self.count += 1;
        let order = self.next;
        self.next += 1;
        // Its id begins anew.
        self.given_up.retain(|other| *other != key(id));
        let new = || PendingRequest {
            order,
            token: token.into(),
            prompts: None,
            times: 0,
            line: None,
            tries: 0,
            cancelled: None,
        };
        let request = self.requests.entry(key(id)).or_insert_with(new);
        request.times += 1;
        request.prompts = line.prompts.map(Box::from);
        self.kept -= request.line.take().map_or(0, |line| line.len());
        if request.times == 1 && !bytes.is_empty() && self.kept + bytes.len() <= MOST_KEPT {
            self.kept += bytes.len();
            (request.line, request.tries) = (Some(bytes.to_vec()), self.tries + 1);
        }
    }

    /// The editor cancels what is pending. In MCP nothing answers it, so nothing is pending then.
    fn cancel(&mut self, cancelled: &Cancelled) {
        match cancelled {
            Cancelled::Unanswered(id) => {
                if self.answered(id) {
                    self.given_up.truncate(MOST_GIVEN_UP - 1);
                    self.given_up.push_front(key(id));
                }
            }
            Cancelled::Answered(id) => {
                let request = self.requests.get_mut(&key(id));
                request.into_iter().for_each(|request| request.cancelled = Some(cancelled.clone()));
            }
            Cancelled::Turn(session) => {
                let names = |raw: &[u8]| serde_json::from_slice::<String>(raw).is_ok_and(|name| name == *session);
                let prompts = |request: &&mut PendingRequest| request.prompts.as_deref().is_some_and(names);
                let all = self.requests.values_mut().filter(prompts);
                all.for_each(|request| request.cancelled = Some(cancelled.clone()));
            }
        }
    }

    /// Removes a request with this id. Returns whether there was one.
    fn answered(&mut self, id: &Id) -> bool {
        let key = key(id);
        let Some(request) = self.requests.get_mut(&key) else { return false };
        self.count -= 1;
        request.times -= 1;
        if request.times == 0 {
            self.kept -= request.line.as_ref().map_or(0, Vec::len);
            self.requests.remove(&key);
        }
        true
    }
}

fn key(id: &Id) -> IdToken {
    id.token().into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn left(waiting: &mut Waiting) -> Vec<String> {
        waiting.take().iter().map(|token| String::from_utf8_lossy(token).into_owned()).collect()
    }

    #[test]
    fn a_request_is_pending_until_its_whole_answer_has_passed() {
        let mut waiting = Waiting::default();
        waiting.sending(b"{\"id\":1,\"method\":\"a\"}\n{\"id\":\"1\",\"method\":\"b\"}\n{\"method\":\"c\"}\n");
        waiting.passed(b"{\"id\":0,\"method\":\"session/request_permission\"}\n{\"id\":1,\"method\":\"same id\"}\n");
        waiting.passed(b"{\"id\":\"1\",\"result\":{}}");
        assert!(!waiting.at_line_start());
        waiting.passed(b"\n");
        assert!(waiting.at_line_start() && !waiting.is_empty());
        assert_eq!(left(&mut waiting), ["1"]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn what_an_editor_of_either_protocol_began_with_is_kept() {
        for method in ["notifications/initialized", "initialized"] {
            let mut waiting = Waiting::default();
            let note = format!("{{\"method\":\"{method}\",\"params\":{{}}}}\n");
            waiting.sending((r#"{"id":0,"method":"initialize"}"#.to_owned() + "\n" + &note).as_bytes());
            assert_eq!(waiting.opening().initialized.as_deref(), Some(note.as_bytes()));
        }
    }

    #[test]
    fn an_answer_to_the_daemon_is_not_pending() {
        let mut waiting = Waiting::default();
        waiting.sending(b"{\"id\":1,\"result\":{}}\n");
        assert!(waiting.is_empty());
    }

    #[test]
    fn an_answer_may_spell_the_id_differently() {
        let mut waiting = Waiting::default();
        waiting.sending(b"{\"id\":\"\\u0061\",\"method\":\"m\"}\n{\"id\":10,\"method\":\"m\"}\n");
        waiting.passed(b"{\"id\":\"a\",\"result\":1}\n{\"id\":1e1,\"error\":{}}\n");
        assert!(waiting.is_empty());
    }

    #[test]
    fn the_last_line_needs_no_newline() {
        let mut waiting = Waiting::default();
        waiting.sending(b"{\"id\":1,\"method\":\"m\"}");
        assert!(waiting.is_empty());
        waiting.sent_all();
        assert_eq!(left(&mut waiting), ["1"]);
    }

    #[test]
    fn the_line_that_was_too_long_is_the_longest_one() {
        let mut waiting = Waiting::default();
        let mut send = |lines: &str, answers: &str| {
            waiting.sending(lines.as_bytes());
            waiting.passed(answers.as_bytes());
            let overlong = waiting.take_overlong();
            (overlong.length, overlong.asker, waiting.take().len())
        };
        let waits = |token: &str| Asker::Waits(token.as_bytes().into());
        let requests = "{\"id\":1,\"method\":\"m\"}\n{\"id\":22,\"method\":\"m\"}\n{\"id\":3,\"method\":\"m\"}\n";
        assert_eq!(send(requests, ""), (22, waits("22"), 2));
        assert_eq!(send(requests, "{\"id\":22,\"error\":{}}\n"), (22, Asker::Knows, 2));
        assert_eq!(send("{\"id\":4,\"method\":\"m\"}\n{\"method\":\"a longer one\"}\n", ""), (25, Asker::Unknown, 1));
        assert_eq!(send("{\"id\":5,\"method\":\"m\"}\n{\"id\":6,\"method\":\"m\",\"p\":[", ""), (26, waits("6"), 1));
        assert_eq!(send("0", ""), (27, waits("6"), 0), "it continues");
        let said = "{\"id\":null,\"error\":{}}\n";
        assert_eq!(send("]}\n{\"method\":\"a notification of its own\"}\n", said).1, Asker::Knows);
    }

    #[test]
    fn pending_prompts_are_cancelled_at_the_end() {
        let prompt = |id: u32, session: &str| {
            format!("{{\"id\":{id},\"method\":\"session/prompt\",\"params\":{{\"sessionId\":\"{session}\"}}}}")
        };
        let cancel = |session: &str| {
            format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"session/cancel\",\"params\":{{\"sessionId\":\"{session}\"}}}}\n"
            )
        };
        let mut waiting = Waiting::default();
        waiting.sending(format!("{}\n{}\n{}\n", prompt(1, "a"), prompt(2, "b"), prompt(3, "c")).as_bytes());
        waiting.sending(b"{\"id\":4,\"method\":\"session/load\",\"params\":{\"sessionId\":\"d\"}}\n");
        waiting.passed(b"{\"id\":2,\"result\":{}}\n");
        let text = |farewell: UnsentAtEnd| (String::from_utf8(farewell.lines).expect("text"), farewell.is_whole);
        assert_eq!(text(waiting.sent_all()), (cancel("a") + &cancel("c"), true));
        let mut waiting = Waiting::default();
        waiting.sending(prompt(1, "a").as_bytes());
        assert_eq!(text(waiting.sent_all()), ("\n".to_owned() + &cancel("a"), true));
        let mut waiting = Waiting::default();
        waiting.sending(format!("{}\n{{\"id\":2,", prompt(1, "a")).as_bytes());
        assert_eq!(text(waiting.sent_all()), (cancel("a"), false), "what was begun is no line");
        let mut waiting = Waiting::default();
        waiting.sending(b"{\"id\":4,\"method\":\"m\"}");
        assert_eq!(text(waiting.sent_all()), ("\n".to_owned(), true));
    }

    #[test]
    fn the_daemons_last_word_is_found_however_it_is_cut() {
        let word = "{\"id\":null,\"error\":{\"code\":-32600,\"message\":\"why\",\"data\":{\"reason\":\"name\"}}}\n";
        let known = LastWord { reason: "name".to_owned(), message: "why".to_owned() };
        let stream = format!("{{\"id\":1,\"result\":{{}}}}\n\n{word}");
        for cut in 1..=stream.len() {
            let mut waiting = Waiting::default();
            stream.as_bytes().chunks(cut).for_each(|piece| waiting.passed(piece));
            assert_eq!(waiting.last_word().as_ref(), Some(&known), "in pieces of {cut}");
            waiting.passed(b"{\"id\":1,\"error\":{}}\n");
            assert_eq!(waiting.last_word().as_ref(), Some(&known), "an error for a request that was on its way");
            waiting.passed(b"{");
            assert_eq!(waiting.last_word(), None, "there is more");
        }
        for other in
            ["{\"id\":1,\"error\":{}}\n".to_owned(), "{\"id\":null,\"error\":7}\n".to_owned(), format!("{word}\n")]
        {
            let mut waiting = Waiting::default();
            waiting.passed(other.as_bytes());
            assert_eq!(waiting.last_word(), None, "{other}");
        }
        let mut waiting = Waiting::default();
        for _ in 0..100 {
            waiting.passed(&[b'x'; MAX_LAST_WORD]);
        }
        assert!(waiting.begun.capacity() <= 2 * MAX_LAST_WORD, "it is bounded");
    }

    #[test]
    fn the_number_of_remembered_requests_is_bounded() {
        let mut waiting = Waiting::default();
        for id in 0..MAX_WAITING + 10 {
            waiting.sending(format!("{{\"id\":{id},\"method\":\"m\"}}\n").as_bytes());
        }
        assert_eq!(left(&mut waiting).len(), MAX_WAITING);
    }

    proptest! {
        /// The model is a list: a request is appended, an answer removes the first one with its id.
        #[test]
        fn the_pending_requests_are_those_sent_and_not_answered(
            steps in prop::collection::vec((any::<bool>(), 0..6_u32, any::<bool>()), 0..60),
            cut in 1..50_usize,
        ) {
            let mut waiting = Waiting::default();
            let mut model: Vec<String> = Vec::new();
            for (asks, number, string) in steps {
                let id = if string { format!("\"{number}\"") } else { number.to_string() };
                let member = if asks { "\"method\":\"m\"" } else { "\"result\":{\"id\":1}" };
                let line = format!("{{\"id\":{id},{member}}}\n");
                for piece in line.as_bytes().chunks(cut) {
                    if asks { waiting.sending(piece) } else { waiting.passed(piece) }
                }
                if asks {
                    model.push(id);
                } else if let Some(found) = model.iter().position(|waits| *waits == id) {
                    model.remove(found);
                }
                prop_assert_eq!(waiting.is_empty(), model.is_empty());
            }
            let mut rest = left(&mut waiting);
            rest.sort();
            model.sort();
            prop_assert_eq!(rest, model);
        }
    }
}
