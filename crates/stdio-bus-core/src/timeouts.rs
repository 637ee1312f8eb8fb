//! Request timeouts: how long requests may take, and how long a worker may be silent about one (`request_timeout_sec`,
//! `idle_timeout_sec`). Signs of life are a message in a session of the request, a message that names it or its
//! progress token, and the end of a question that belongs to it. While a client has such a question to answer, or the
//! worker is not read, the worker is not silent: it is not its turn.
//!
//! A sign of life only notes the time. The deadline of the request stays, and is moved on when it comes: that costs
//! nothing for each line, and several requests are looked at together.

use alloc::vec::Vec;
use core::cell::OnceCell;
use core::time::Duration;

use super::peer::{Moment, Peer, RequestKey, SessionKey, WorkerKey};
use super::settings::Pool;
use crate::ctx::Ctx;
use crate::requests::{Request, Requests};
use crate::session::table::Sessions;

/// Deadlines that are moved on are rounded up to this, in nanoseconds.
const ROUND: u64 = 50_000_000;

/// The time limits of the requests to one worker, in nanoseconds: `u64::MAX` for none.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimits {
    /// Of the answer.
    total: u64,
    /// Of silence.
    idle: u64,
    /// The shorter one.
    first: u64,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self::of(&Pool::default())
    }
}

impl TimeLimits {
    pub(super) fn of(pool: &Pool) -> Self {
        let nanoseconds =
            |limit: Option<Duration>| limit.and_then(|limit| u64::try_from(limit.as_nanos()).ok()).unwrap_or(u64::MAX);
        let (total, idle) = (nanoseconds(pool.request_timeout), nanoseconds(pool.idle_timeout));
        Self { total, idle, first: total.min(idle) }
    }

    /// When a request that was taken at this moment times out; perhaps never.
    pub(super) fn expires(&self, taken_at: Moment) -> Moment {
        Moment(taken_at.0.saturating_add(self.total))
    }

    /// The first deadline of a request that is taken and forwarded at this moment; perhaps never.
    #[inline(always)]
    pub(super) fn first_deadline(&self, now: Moment) -> Moment {
        Moment(now.0.saturating_add(self.first))
    }

    /// When a worker has been silent for too long that has last said something at this moment; perhaps never.
    pub(super) fn silent_at(&self, active_at: Moment) -> Moment {
        Moment(active_at.0.saturating_add(self.idle))
    }

    /// Whether silence is limited.
    #[inline(always)]
    pub(super) fn limit_silence(&self) -> bool {
        self.idle != u64::MAX
    }

    /// Whether `waited` is longer than one of them.
    pub(super) fn are_shorter_than(&self, waited: Duration) -> bool {
        waited.as_nanos() >= self.first.into()
    }
}

/// A request about which its worker may not be silent for long.
#[derive(Clone, Copy)]
pub(super) struct Watched {
    request: RequestKey,
    /// When it times out, whatever is said about it.
    expires: Moment,
    /// When its worker was sent it, or has last named it.
    active_at: Moment,
}

/// Those requests, by slot. Entries of former ones are left behind.
#[derive(Default)]
pub(super) struct Watch {
    requests: Vec<Option<Watched>>,
}

impl Watch {
    /// A worker is sent a request, which times out at `expires`.
    #[cold]
    pub(super) fn begin(&mut self, request: RequestKey, now: Moment, expires: Moment) {
        if self.requests.len() <= request.index() {
            self.requests.resize(request.index() + 1, None);
        }
        self.requests[request.index()] = Some(Watched { request, expires, active_at: now });
    }

    /// A worker has said something about a request.
    pub(super) fn touch(&mut self, request: RequestKey, now: Moment) {
        if let Some(Some(watched)) = self.requests.get_mut(request.index())
            && watched.request == request
        {
            watched.active_at = now;
        }
    }

    /// When a watched request times out, whatever is said about it.
    pub(super) fn expires(&self, request: RequestKey) -> Option<Moment> {
        self.of(request).map(|watched| watched.expires)
    }

    pub(crate) fn of(&self, request: RequestKey) -> Option<&Watched> {
        self.requests.get(request.index())?.as_ref().filter(|watched| watched.request == request)
    }
}

/// What clients have still to answer: the sessions of workers' questions, and the requests that these belong to.
pub(super) struct OpenQuestions {
    sessions: Vec<SessionKey>,
    requests: Vec<RequestKey>,
}

/// What clients have still to answer at one moment. It is looked for once, when the first of many rows needs it.
#[derive(Default)]
pub struct Questions(OnceCell<OpenQuestions>);

impl Requests {
    /// A worker has said something in this session, or about this request.
    #[inline]
    pub(super) fn note_life(
        &mut self,
        ctx: &Ctx,
        sessions: &mut Sessions,
        worker: WorkerKey,
        session: Option<SessionKey>,
        about: Option<RequestKey>,
    ) {
        let now = ctx.time.now();
        if ctx.workers.get(worker).is_none_or(|worker| !worker.answering().limits().limit_silence()) {
            return;
        }
        if let Some(session) = session {
            sessions.touch_by_worker(session, now);
        }
        if let Some(request) = about {
            self.watch_mut().touch(request, now);
        }
    }

    /// A question of a worker is answered, or given up: what it belongs to is the worker's turn again.
    pub(super) fn note_end_of_question(&mut self, ctx: &Ctx, sessions: &mut Sessions, question: RequestKey) {
        let Some(asker) = self.get(question).and_then(Request::asker) else { return };
        if let Peer::Worker(worker) = asker {
            let [session, _] = self.sessions(question);
            self.note_life(ctx, sessions, worker, session, self.belongs_to(question));
        }
    }

    /// Whatever clients have still to answer.
    pub(super) fn asked_of_clients(&self, sessions: &Sessions) -> OpenQuestions {
        let (mut in_sessions, mut requests) = (Vec::new(), Vec::new());
        let is_waited_for = |request: &Request| matches!(request.asker(), Some(Peer::Worker(_)));
        for (key, question) in self.iter().filter(|(_, request)| is_waited_for(request)) {
            in_sessions.extend(question.session().into_iter().flat_map(|session| sessions.ancestry(session)));
            requests.extend(self.belongs_to(key));
        }
        in_sessions.sort_unstable();
        requests.sort_unstable();
        OpenQuestions { sessions: in_sessions, requests }
    }

    /// Since when the worker of a watched request is silent about it, if it is, and could speak.
    pub(super) fn silent_since(
        &self,
        ctx: &Ctx,
        sessions: &Sessions,
        key: RequestKey,
        asked: &OpenQuestions,
    ) -> Option<Moment> {
        let watched = self.watch().of(key)?;
        let Peer::Worker(worker) = self.get(key)?.answerer() else { return None };
        let worker = ctx.workers.get(worker)?;
        let named = self.sessions(key);
        let in_session = |session: &SessionKey| asked.sessions.binary_search(session).is_ok();
        let is_asked = asked.requests.binary_search(&key).is_ok() || named.iter().flatten().any(in_session);
        if is_asked || worker.end().gate.is_held_up() {
            return None;
        }
        let active_at = named.iter().flatten().filter_map(|session| Some(sessions.get(*session)?.active_at()));
        active_at.chain([watched.active_at, worker.answering().read_since()]).max()
    }

    /// How long the worker of a request is silent about it, if that is limited, and when the request is given up then.
    pub(super) fn patience_for(
        &self,
        ctx: &Ctx,
        sessions: &Sessions,
        now: Moment,
        key: RequestKey,
        request: &Request,
        questions: &Questions,
    ) -> (Option<Duration>, Moment) {
        let Some(watched) = self.watch().of(key) else { return (None, request.expires()) };
        let Peer::Worker(worker) = request.answerer() else { return (None, request.expires()) };
        if request.asker().is_none() || request.cancelled().is_some() {
            return (None, request.expires());
        }
        let since = self.silent_since(ctx, sessions, key, questions.0.get_or_init(|| self.asked_of_clients(sessions)));
        let limits = ctx.workers.get(worker).map(|worker| *worker.answering().limits()).unwrap_or_default();
        let silent_at = since.map_or(Moment::NEVER, |since| limits.silent_at(since));
        (since.map(|since| now.since(since)), watched.expires.min(silent_at))
    }

    /// Why a request to a worker whose deadline has come is given up; or its next deadline.
    pub(super) fn why_overdue(
        &self,
        ctx: &Ctx,
        sessions: &Sessions,
        key: RequestKey,
        asked: &OpenQuestions,
    ) -> Result<&'static str, Moment> {
        let now = ctx.time.now();
        let text = "the worker did not answer within request_timeout_sec";
        let Some(watched) = self.watch().of(key).filter(|watched| watched.expires > now) else {
            return Ok(text);
        };
        let Some(Peer::Worker(worker)) = self.get(key).map(Request::answerer) else { return Ok(text) };
        let limits = ctx.workers.get(worker).map(|worker| *worker.answering().limits()).unwrap_or_default();
        let silent_at = limits.silent_at(self.silent_since(ctx, sessions, key, asked).unwrap_or(now));
        if silent_at <= now {
            return Ok(
                "the worker has said nothing about it for idle_timeout_sec: no progress, no update of its session",
            );
        }
        Err(Moment(silent_at.0.checked_next_multiple_of(ROUND).unwrap_or(u64::MAX)).min(watched.expires))
    }
}

/// When the request that is being handled times out, by the limits of this worker, if ever. Its time began when the
/// daemon took its line.
pub(super) fn line_expires(ctx: &Ctx, worker: WorkerKey) -> Option<Moment> {
    let expires = ctx.workers.get(worker)?.answering().limits().expires(ctx.time.taken_at());
    Some(expires).filter(|expires| *expires != Moment::NEVER)
}
