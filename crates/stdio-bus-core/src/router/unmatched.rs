//! A worker's answer with an id that no request is pending under: a late one, one without an id, one whose id the worker
//! has spelled in another way, or one that nobody waits for.
//!
//! Invariant: it reaches a client only if it cannot be about a request of another one. A number and the string of its
//! digits have one owner (`requests/names.rs`), so one stands for the other; all else that is only likely is delivered by a
//! worker that has served one client alone, and fails the request at any other.
use alloc::string::String;

use ndjson_scan::{Span, decoded, member};

use crate::ctx::Ctx;
use crate::id::Id;
use crate::message::{Edit, Parsed};
use crate::peer::{Peer, RequestKey, WorkerKey};
use crate::refusals::report_with_id;
use crate::report::Reason;
use crate::requests::Requests;

/// After so many unmatched answers in a row the pending requests of a worker are not searched any more for ids that
/// such an answer may mean.
const MOST_SEARCHES: u8 = 64;
/// Maximum number of bytes of a worker's text in a report.
const LONGEST_TEXT: usize = 200;

/// The request that an answer means, though it does not have its id.
pub(crate) struct Meant {
    pub(super) key: RequestKey,
    /// No other request can be meant.
    pub(super) is_sure: bool,
    /// What the worker has written, for people; none if that is common.
    pub(super) how: Option<String>,
}

/// The id of an answer that is not the one that its answerer was sent.
pub(crate) struct Misspelled {
    /// Its place, or the one where it is to be.
    at: Span,
    /// The answer has an id at all.
    is_there: bool,
    /// What the answerer has written, for people; none if that is common.
    how: Option<String>,
}

impl Misspelled {
    /// The id of an answer. If it has none, or null: the place of that, or the one behind the brace.
    pub(crate) fn of(line: Parsed<'_>, how: Option<String>) -> Self {
        if line.id.is_some() {
            return Self { at: line.id, is_there: true, how };
        }
        let (begin, text) = (line.span.start, line.get(line.span));
        let null = member(text, b"id").map(|null| (null.as_ptr() as usize - text.as_ptr() as usize, null.len()));
        let (start, length) = null.unwrap_or((memchr::memchr(b'{', text).unwrap_or(0) + 1, 0));
        let start = begin + start as u32;
        Self { at: Span { start, end: start + length as u32 }, is_there: null.is_some(), how }
    }

    /// The edit that puts the asker's id there.
    pub(crate) fn edit(&self, id: &[u8]) -> Edit {
        let with = if self.is_there { id.into() } else { [b"\"id\":", id, b","].concat().as_slice().into() };
        Edit { at: self.at, with }
    }
}

/// A worker's answers that match no request that it has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unmatched {
    /// They were reported.
    has_warned_of_answers: bool,
    /// It was reported that it spells ids in another way than it was sent.
    has_warned_of_spelling: bool,
    /// How many of them in a row its requests were searched for in vain.
    searches: u8,
}

impl Unmatched {
    /// One is reported. Returns whether it is the first.
    pub(crate) fn note_report(&mut self) -> bool {
        !core::mem::replace(&mut self.has_warned_of_answers, true)
    }

    /// A misspelled id is reported. Returns whether it is the first.
    fn note_spelling(&mut self) -> bool {
        !core::mem::replace(&mut self.has_warned_of_spelling, true)
    }
}

impl Requests {
    /// The request of a worker that an answer means by an id that it does not have.
    pub(crate) fn request_meant(&self, ctx: &mut Ctx, worker: WorkerKey, line: Parsed<'_>, id: Id) -> Option<Meant> {
        let from = Peer::Worker(worker);
        let written = line.get(line.id);
        let other = id.clone().of_other_type();
        if let Some(key) = self.find(from, &other) {
            let kind = if other.is_string() { "a string" } else { "a number" };
            let how = format!("no request is pending under {id}, but {other} ({kind}) is");
            return Some(Meant { key, is_sure: true, how: Some(how) });
        }
        let at = ctx.workers.get_mut(worker).filter(|at| at.end().to_answer.count() > 0)?;
        if at.unmatched_mut().searches >= MOST_SEARCHES {
            return None;
        }
        at.unmatched_mut().searches += 1;
        let owed = self.all(&|request| request.answerer() == from);
        let mut likely = owed.into_iter().filter_map(|key| {
            let wire = self.wire_of(key)?;
            Some((key, mangled(written, &id, &wire)?, wire))
        });
        let (key, how, wire) = likely.next()?;
        if likely.next().is_some() {
            return None;
        }
        let how = format!("{} is {wire} {how}", written.escape_ascii());
        ctx.workers.get_mut(worker)?.unmatched_mut().searches = 0;
        Some(Meant { key, is_sure: false, how: Some(how) })
    }

    /// The only request that a worker has to answer.
    pub(crate) fn only_pending(&self, ctx: &Ctx, worker: WorkerKey) -> Option<RequestKey> {
        ctx.workers.get(worker).filter(|at| at.end().to_answer.count() == 1)?;
        self.all(&|request| request.answerer() == Peer::Worker(worker)).first().copied()
    }
}

/// An answer under a misspelled id was delivered: reports the first one of a worker.
pub(crate) fn report_spelling(ctx: &mut Ctx, worker: WorkerKey, line: Parsed<'_>, misspelled: &Misspelled) {
    let Some(how) = &misspelled.how else { return };
    if ctx.workers.get_mut(worker).is_some_and(|at| at.unmatched_mut().note_spelling()) {
        let text = format!("{how}, which it is taken for; a worker answers with the id as it came");
        report_with_id(ctx, Reason::UnknownId, Peer::Worker(worker), line, &text);
    }
}

/// What became of the pending id `wire` if a worker has `written` this instead.
fn mangled(written: &[u8], id: &Id, wire: &Id) -> Option<&'static str> {
    let Id::Number(wire) = *wire else { return None };
    if wire > u64::from(u32::MAX) && *id == cut(wire) || wire > i32::MAX as u64 && *id == signed(wire) {
        return Some("cut to 32 bits");
    }
    let is_float = !written.starts_with(b"\"") && written.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E'));
    match id {
        Id::Number(id) if is_float && is_rounded(*id, wire) => Some("rounded"),
        Id::String(text)
            if text.as_bytes().iter().any(u8::is_ascii_digit)
                && Id::parse(text.as_bytes()).ok() == Some(Id::Number(wire)) =>
        {
            Some("as a string")
        }
        _ => None,
    }
}

fn cut(wire: u64) -> Id {
    Id::Number(wire & u64::from(u32::MAX))
}

fn signed(wire: u64) -> Id {
    let cut = wire as u32 as i32;
    Id::parse(format!("{cut}").as_bytes()).unwrap_or(Id::Number(wire))
}

/// Whether a number is another one with fewer digits, as some programs write doubles (`%g`, `%.14g`).
fn is_rounded(rounded: u64, number: u64) -> bool {
    let digits = number.checked_ilog10().unwrap_or(0) + 1;
    (6..digits).any(|kept| {
        let unit = 10_u64.pow(digits - kept);
        number.saturating_add(unit / 2) / unit * unit == rounded || number / unit * unit == rounded
    })
}

/// The code and the message of an error, for people.
pub(crate) fn error_of(line: Parsed<'_>) -> String {
    let Some(error) = member(line.get(line.span), b"error") else { return String::new() };
    let code = member(error, b"code").unwrap_or_default();
    let message = member(error, b"message").and_then(decoded).unwrap_or_default();
    let (code, message) = (&code[..code.len().min(32)], &message[..message.len().min(LONGEST_TEXT)]);
    format!("{} {}", code.escape_ascii(), String::from_utf8_lossy(message).escape_debug())
}
