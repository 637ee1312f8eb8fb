//! `initialize` on shared workers. Clients and workers of MCP and ACP believe that each has the other for itself, so
//! that two things are missing where a worker is shared:
//!
//! - **A worker that has not seen a client yet**, since it replaces one that has ended or was restarted, or with
//!   `round_robin`. Many refuse everything before `initialize`. So before the first line of a client it is sent the
//!   `initialize` that the client has sent before, under an id of the bus, and what followed it (`initialized`); the
//!   answer is discarded, and the client's line waits for it, since some agents work on several lines at once. One that
//!   has the same version and capabilities as another that the worker has accepted is not sent again.
//! - **A worker that takes one `initialize` only.** A later one is sent to it, too, since most take many. If it refuses
//!   that, the client gets the worker's first answer under its own id, if version and capabilities are the same; if
//!   they are not, it gets the refusal, and the log names the remedy.
//!
//! Invariant: what is kept is bounded for each client and worker, and counted.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use ndjson_scan::{Line, decoded};

use crate::ctx::Ctx;
use crate::fleet::Fleets;
use crate::fleet::eras::greeting::{Greeting, KeptLine, Opening, PendingInitialize, RefusedInitialize, alike};
use crate::fleet::trial::may_try;
use crate::id::Id;
use crate::index::{FleetId, GroupId};
use crate::message::{Edits, KnownMethod, Parsed, Refusal, is_response, not_for_worker};
use crate::peer::{ClientKey, Moment, Peer, RequestKey, WorkerKey, hash_of_name};
use crate::peers::{Client, Clients, Workers};
use crate::reply;
use crate::report::Reason;
use crate::requests::Requests;
use crate::router::audience::note_audience;
use crate::router::message::Message;
use crate::router::unmatched::error_of;
use crate::settings::{MAX_WORKERS, Settings};
use crate::view::View;
use crate::worker::Worker;

/// Maximum size of an `initialize`, and of an answer, that is kept.
const LONGEST: usize = 64 << 10;
/// Those of all clients may use this part of max_memory.
const MEMORY_PART: usize = 16;
/// What each client may keep however little memory there is.
const LEAST: usize = 1024;
/// Maximum size of a notification behind it that is kept; of a longer one only the method.
const LONGEST_NOTIFICATION: usize = 512;
/// How long a client's line waits for the answer to its `initialize`; then it continues without it. So long a refusal
/// waits for the answer to another one.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many different versions and capabilities a worker is known to have accepted; then the oldest is sent again.
const MOST_ACCEPTED: usize = 32;
/// After so many workers have ended before they answered it, an `initialize` is not sent again.
const MOST_ENDS: u8 = 2;

const REMEDY: &str = "\"assignment\": \"dedicated\" gives each client a worker of its own";

/// Whether an answer to an `initialize` is none that refuses it: an echo counts as a result.
fn accepts(line: Parsed<'_>) -> bool {
    !line.has(Line::ERROR) || line.has(Line::RESULT)
}

/// Removes an unanswered `initialize` with this id.
fn take_asked(greeting: &mut Greeting, id: &Id, is_again: bool) -> Option<PendingInitialize> {
    let at = greeting.asked.iter().position(|asked| asked.is_again == is_again && asked.id == *id)?;
    let asked = greeting.asked.remove(at);
    greeting.is_asking = greeting.asked.iter().any(|asked| asked.is_again);
    Some(asked)
}

/// Bytes of the `initialize` of all clients and of the answers kept of all workers, which are counted together.
#[derive(Default)]
pub(crate) struct Openings {
    bytes: usize,
}

/// What a worker's answer to an `initialize` settles.
pub(crate) struct Settled {
    asked: PendingInitialize,
    is_accepted: bool,
    /// Refusals of others that were held back for it, whose clients are answered now.
    refused: Vec<RefusedInitialize>,
    /// They get the worker's first answer instead.
    gets_first: bool,
    /// It is the refusal of this request of a client, which asked for something else than those before, or did not.
    refused_to: Option<(RequestKey, bool)>,
}

impl Settled {
    /// Refusals of others that were held back for it, whose clients are answered now.
    pub(crate) fn take_refused(&mut self) -> Vec<RefusedInitialize> {
        core::mem::take(&mut self.refused)
    }

    /// Whether these get the worker's first answer instead.
    pub(crate) fn gets_first(&self) -> bool {
        self.gets_first
    }
}

/// What a worker's answer to a client's `initialize` is.
pub(crate) enum ToInitialize {
    /// None that is waited for.
    Unknown,
    /// It is for the client.
    Settles(Settled),
    /// A refusal, instead of which the client gets the worker's first answer.
    AsFirst,
    /// A refusal that is held back until another `initialize`, which asked for the same, is answered.
    HeldBack,
}

impl Fleets {
    /// Picks a worker for a message that belongs to no session yet. One on trial that has to be sent the client's
    /// `initialize` first is sent that, and the message goes to another one: it does not wait for a worker that may say
    /// nothing.
    pub(crate) fn pick_worker_to_try(
        &mut self,
        ctx: &mut Ctx,
        requests: &mut Requests,
        message: &Message<'_>,
        group: GroupId,
    ) -> Result<WorkerKey, Refusal> {
        let &Message { from: client, line, .. } = message;
        let worker = self.pick_worker_for_line(ctx, client, group, line, may_try(line))?;
        let is_tried = ctx.workers.get(worker).is_some_and(Worker::is_on_trial)
            && !(message.verb == KnownMethod::Initialize && message.id.is_some())
            && needs_opening(ctx, client, worker);
        // Its client may have moved to another group meanwhile.
        let group = self.balancer().group_of_line(ctx, client, line)?;
        if !is_tried || !self.balancer()[group].has_well(ctx, self.pools()) {
            return Ok(worker);
        }
        let may_ask = ctx.workers.get(worker).is_some_and(|worker| !worker.greeting.takes_one);
        let fleet = ctx.workers.fleet_of(worker).unwrap_or_default();
        if may_ask && ctx.clients.opening_of(client, fleet).is_some_and(|opening| opening.line.is_some()) {
            self.send_opening(ctx, requests, client, worker);
        }
        // It stays with the one that gets this message.
        ctx.clients.unassign(client, worker);
        self.pick_worker_for_line(ctx, client, group, line, false)
    }

    /// Sends a worker the `initialize` of a client again, if that is kept.
    fn send_opening(&mut self, ctx: &mut Ctx, requests: &mut Requests, client: ClientKey, key: WorkerKey) {
        let Some(fleet) = ctx.workers.fleet_of(key) else { return };
        let Some(opening) = ctx.clients.opening_of(client, fleet) else { return };
        let (alike, is_string) = (opening.alike, opening.is_string);
        let Some(line) = opening.line.clone() else { return };
        let id = requests.make_name(ctx, key.into(), is_string);
        let text = line.with(&id.token());
        note_audience(ctx, key, client);
        self.pools.note_initialize(ctx, key, &text);
        let since = ctx.time.now();
        if let Some(worker) = ctx.workers.get_mut(key) {
            worker.greeting.asked.push(PendingInitialize { id, alike, client, since, is_again: true });
            worker.greeting.is_asking = true;
        }
        ctx.send(Peer::Worker(key), &text);
    }

    /// A client's message is to go to a worker: the worker may have to be sent the client's `initialize` first. Returns
    /// whether the message has to wait for that.
    pub(crate) fn await_opening(
        &mut self,
        ctx: &mut Ctx,
        requests: &mut Requests,
        message: &Message<'_>,
        key: WorkerKey,
    ) -> Result<bool, Refusal> {
        let client = message.from;
        let Some(worker) = ctx.workers.get(key).filter(|worker| worker.owner().is_none()) else { return Ok(false) };
        let is_new = !worker.audience.has(client);
        let is_concerned = is_new || worker.greeting.is_asking;
        if !is_concerned || message.verb == KnownMethod::Initialize && message.id.is_some() {
            return Ok(false);
        }
        let Some(opening) = ctx.clients.opening_of(client, worker.fleet).filter(|opening| opening.is_accepted) else {
            return Ok(false);
        };
        let (greeting, fleet, alike, now) = (&worker.greeting, worker.fleet, opening.alike, ctx.time.now());
        if greeting.accepted.contains(&alike) {
            send_initialized(ctx, client, key);
            return Ok(false);
        }
        // What the client itself has just sent does not hold its next line up.
        let is_it = |asked: &&PendingInitialize| asked.alike == alike && (asked.is_again || is_new);
        let is_timely = |asked: &&PendingInitialize| asked.since.after(PATIENCE) > now;
        let mut same = greeting.asked.iter().filter(is_it);
        if let Some(asked) = same.clone().find(is_timely) {
            let until = asked.since.after(PATIENCE);
            self.queue.await_greeting(ctx, client, fleet, until);
            return Ok(true);
        }
        if same.any(|asked| asked.is_again) {
            let is_asking = greeting.asked.iter().filter(is_timely).any(|asked| asked.is_again);
            ctx.workers.get_mut(key).into_iter().for_each(|worker| worker.greeting.is_asking = is_asking);
            return Ok(false);
        }
        if !is_new {
            return Ok(false);
        }
        if greeting.takes_one {
            ctx.report_request(Reason::InitializeRefused, [Some(client.into()), Some(key.into())], || {
                let text = format!(
                    "a client continues at a worker that takes one initialize only, and has had one with another protocol \
                     version or other capabilities; {REMEDY}"
                );
                (None, text)
            });
            return Ok(false);
        }
        if opening.line.is_none() {
            if !greeting.accepted.is_empty() {
                return Ok(false);
            }
            let why = if opening.ends < MOST_ENDS {
                format!("was larger than the {} bytes that the daemon keeps of one", longest_opening(ctx))
            } else {
                "ended the workers to which it was sent again".into()
            };
            let text = format!(
                "the next worker of this connection cannot be initialized, because the initialize {why}; send initialize \
                 again, or reconnect"
            );
            return Err(Refusal(Reason::InitializeLost, text));
        }
        self.send_opening(ctx, requests, client, key);
        self.queue.await_greeting(ctx, client, fleet, now.after(PATIENCE));
        Ok(true)
    }

    /// What has waited for the answer to an `initialize` continues, after the refusals that were held back for it.
    pub(crate) fn release_after_initialize(
        &mut self,
        ctx: &mut Ctx,
        requests: &Requests,
        key: WorkerKey,
        settled: &Settled,
        line: Parsed<'_>,
    ) {
        let &Settled { ref asked, is_accepted, refused_to, .. } = settled;
        if is_accepted && asked.is_again {
            send_initialized(ctx, asked.client, key);
        } else if is_accepted {
            note_accepted(ctx, asked.client, key, asked.alike);
        }
        let fleet = ctx.workers.fleet_of(key).unwrap_or_default();
        self.queue.stop_awaiting_of(ctx, &self.balancer, fleet);
        if let Some((request, is_other)) = refused_to {
            if ctx.clients.opening_of(asked.client, fleet).is_some_and(|opening| opening.alike == asked.alike) {
                self.openings.forget_those_in(ctx, asked.client, fleet);
            }
            if is_other {
                let shown = requests.asker_text(request);
                ctx.report_request(Reason::InitializeRefused, [Some(asked.client.into()), Some(key.into())], || {
                    let text = format!(
                        "a worker has refused an initialize after one with another protocol version or other \
                         capabilities: {}; if it accepts one only: {REMEDY}",
                        error_of(line)
                    );
                    (Some(shown), text)
                });
            }
        } else if asked.is_again && !is_accepted {
            let (client, error) = (ctx.clients.get(asked.client).map(|_| asked.client.into()), error_of(line));
            let has_others = ctx.workers.get(key).is_some_and(|worker| !worker.greeting.accepted.is_empty());
            let remedy = if has_others { format!("; if it accepts one only: {REMEDY}") } else { String::new() };
            ctx.report_request(Reason::InitializeRefused, [client, Some(key.into())], || {
                let text = format!(
                    "a worker refused a client's initialize, which the daemon replayed because the client had sent it to \
                     another worker: {error}{remedy}"
                );
                (None, text)
            });
        }
    }
}

impl Openings {
    /// Takes the answer of a worker to an `initialize` that the bus has sent again, if this is one: an echo counts as a
    /// result.
    pub(crate) fn take_opening(&mut self, ctx: &mut Ctx, key: WorkerKey, id: &Id, line: Parsed<'_>) -> Option<Settled> {
        let worker = ctx.workers.get_mut(key)?;
        let asked = take_asked(&mut worker.greeting, id, true)?;
        ctx.workers_changed |= worker.answering.answers(is_response(&line));
        Some(self.settle(&ctx.settings, &mut worker.greeting, asked, line, accepts(line), None))
    }

    /// A worker is sent this `initialize` by a client, with these replacements. That of a shared worker is kept.
    #[cold]
    pub(crate) fn keep_initialize(&mut self, ctx: &mut Ctx, message: &Message<'_>, key: WorkerKey, edits: &Edits) {
        let &Message { from: client, line, ref id, .. } = message;
        let text = line.get(line.span);
        let (since, longest) = (ctx.time.now(), longest_opening(ctx));
        let fleet = ctx.workers.get(key).filter(|worker| worker.owner().is_none()).map(|worker| worker.fleet);
        let Some((spelled, fleet)) = id.as_ref().zip(fleet) else { return };
        self.forget_those_in(ctx, client, fleet);
        let openings = ctx.clients.get(client).map(Client::openings);
        let kept: usize = openings.map_or(0, |openings| openings.iter().map(Opening::bytes).sum());
        let is_kept = kept + text.len() < longest;
        // Only what is kept, or nearly, is compared: another one is like no other.
        let alike = if text.len() <= LONGEST { alike(text) } else { hash_of_name(text) };
        let opening = Opening {
            fleet,
            alike,
            is_accepted: false,
            line: is_kept.then(|| KeptLine::of(line, &[line.id, message.progress], not_for_worker(line))),
            is_string: spelled.id.is_string(),
            initialized: None,
            ends: 0,
        };
        self.bytes += opening.bytes();
        if let Some(client) = ctx.clients.get_mut(client) {
            client.open(opening);
        }
        let made = edits[0].as_ref().and_then(|edit| Id::parse(edit.with.as_bytes()).ok());
        let id = made.unwrap_or_else(|| spelled.id.clone());
        if let Some(worker) = ctx.workers.get_mut(key) {
            worker.greeting.asked.push(PendingInitialize { id, alike, client, since, is_again: false });
        }
    }

    /// Takes the answer of a worker to a client's `initialize`, which has this id there.
    #[cold]
    pub(crate) fn take_answer(
        &mut self,
        ctx: &mut Ctx,
        key: WorkerKey,
        (request, id): (RequestKey, &Id),
        line: Parsed<'_>,
        is_misspelled: bool,
    ) -> ToInitialize {
        let Some(worker) = ctx.workers.get_mut(key) else { return ToInitialize::Unknown };
        let greeting = &mut worker.greeting;
        let Some(asked) = take_asked(greeting, id, false) else { return ToInitialize::Unknown };
        let is_accepted = accepts(line);
        let is_alike = |first: &u64| *first == asked.alike;
        if is_accepted || is_misspelled {
            let is_accepted = is_accepted && !is_misspelled;
            return ToInitialize::Settles(self.settle(&ctx.settings, greeting, asked, line, is_accepted, None));
        }
        if greeting.first.as_ref().is_some_and(|(first, _)| is_alike(first)) {
            return ToInitialize::AsFirst;
        }
        if greeting.asked.iter().any(|other| is_alike(&other.alike)) {
            let answer = KeptLine::of(line, &[line.id], None);
            let until = ctx.time.now().after(PATIENCE);
            ctx.workers_changed |= worker.answering.answers(true);
            greeting.refused.push(RefusedInitialize { request, alike: asked.alike, answer, until });
            ctx.wake_at(key.into(), until);
            return ToInitialize::HeldBack;
        }
        let is_other = !greeting.accepted.is_empty() && !greeting.accepted.iter().any(is_alike);
        ToInitialize::Settles(self.settle(&ctx.settings, greeting, asked, line, false, Some((request, is_other))))
    }

    /// A worker has answered an `initialize`.
    fn settle(
        &mut self,
        settings: &Settings,
        greeting: &mut Greeting,
        asked: PendingInitialize,
        line: Parsed<'_>,
        is_accepted: bool,
        refused_to: Option<(RequestKey, bool)>,
    ) -> Settled {
        let longest = LONGEST.min(settings.limits.max_memory / MEMORY_PART / MAX_WORKERS).max(LEAST);
        if is_accepted {
            if !greeting.accepted.contains(&asked.alike) {
                if greeting.accepted.len() >= MOST_ACCEPTED {
                    greeting.accepted.remove(0);
                }
                greeting.accepted.push(asked.alike);
            }
            greeting.is_ready = false;
            if greeting.first.is_none() && line.id.is_some() && line.span.len() < longest {
                greeting.first = Some((asked.alike, KeptLine::of(line, &[line.id], None)));
                self.bytes += greeting.bytes();
            }
        }
        let is_over = is_accepted || !greeting.asked.iter().any(|other| other.alike == asked.alike);
        let gets_first = greeting.first.as_ref().is_some_and(|(first, _)| *first == asked.alike);
        let refused = greeting.refused.extract_if(.., |refused| is_over && refused.alike == asked.alike).collect();
        Settled { asked, is_accepted, refused, gets_first, refused_to }
    }

    /// A client sends a worker the notification that follows `initialize`. Others that have accepted its `initialize`
    /// get it, too. Returns whether this one is to get none: it takes one only, and has had it.
    #[cold]
    pub(crate) fn note_initialized(&mut self, ctx: &mut Ctx, message: &Message<'_>, key: WorkerKey) -> bool {
        let &Message { from: client, line, ref id, .. } = message;
        let fleet = ctx.workers.get(key).filter(|worker| worker.owner().is_none()).map(|worker| worker.fleet);
        let Some(fleet) = fleet.filter(|_| id.is_none()) else { return false };
        let Some(opening) = ctx.clients.opening_mut(client, fleet) else { return false };
        let (alike, before) = (opening.alike, opening.bytes());
        let kept = if line.span.len() < LONGEST_NOTIFICATION {
            KeptLine::of(line, &[], not_for_worker(line)).text
        } else {
            reply::call(None, &decoded(line.get(line.method)).unwrap_or_default(), None).into()
        };
        opening.initialized = Some(kept);
        let after = opening.bytes();
        self.bytes += after;
        self.bytes -= before;
        let accepts = |greeting: &Greeting| greeting.accepted.contains(&alike);
        let Some(greeting) = ctx.workers.get_mut(key).map(|worker| &mut worker.greeting) else { return false };
        let is_known = greeting.is_ready && greeting.takes_one && accepts(greeting);
        greeting.is_ready = true;
        let waits = |worker: &Worker| {
            let has_begun = worker.fleet == fleet && worker.audience.has(client);
            has_begun && accepts(&worker.greeting) && !worker.greeting.is_ready
        };
        let others: Vec<WorkerKey> = ctx.workers.iter().filter(|(_, it)| waits(it)).map(|(other, _)| other).collect();
        others.into_iter().for_each(|other| send_initialized(ctx, client, other));
        is_known
    }

    /// What a client has begun with in a pool is not kept any longer.
    fn forget_those_in(&mut self, ctx: &mut Ctx, client: ClientKey, fleet: FleetId) {
        let Some(openings) = ctx.clients.get_mut(client).and_then(Client::openings_mut) else { return };
        let dropped = openings.extract_if(.., |opening| opening.fleet == fleet);
        let bytes: usize = dropped.map(|opening| opening.bytes()).sum();
        self.bytes -= bytes;
    }

    /// A client has gone.
    pub(crate) fn forget_client(&mut self, openings: &[Opening]) {
        self.bytes -= openings.iter().map(Opening::bytes).sum::<usize>();
    }

    /// A worker has gone. The end of one on trial does not count against an `initialize`: the worker may have ended at its
    /// start whatever it was sent.
    pub(crate) fn forget_worker(&mut self, ctx: &mut Ctx, worker: &Worker) {
        let (fleet, greeting) = (worker.fleet, &worker.greeting);
        self.bytes -= greeting.bytes();
        for asked in greeting.asked.iter().filter(|asked| asked.is_again && !worker.is_on_trial()) {
            let Some(opening) = ctx.clients.opening_mut(asked.client, fleet) else { continue };
            opening.ends += u8::from(opening.alike == asked.alike);
            if opening.ends >= MOST_ENDS {
                let before = opening.bytes();
                (opening.line, opening.initialized) = (None, None);
                self.bytes -= before;
            }
        }
    }

    /// Panics if what is kept was counted wrongly.
    pub(crate) fn check(&self, ctx: &Ctx) {
        let clients = ctx.clients.iter();
        let kept: usize = clients.flat_map(|(_, client)| client.openings()).map(Opening::bytes).sum();
        let answers: usize = ctx.workers.iter().map(|(_, worker)| worker.greeting.bytes()).sum();
        assert_eq!(kept + answers, self.bytes);
    }
}

impl Requests {
    /// The answer to the first `initialize` of a worker, for a client whose own it has refused, which asked for the same.
    pub(crate) fn first_answer(&self, ctx: &mut Ctx, key: WorkerKey, request: RequestKey) -> Option<KeptLine> {
        let greeting = &mut ctx.workers.get_mut(key)?.greeting;
        let is_news = !core::mem::replace(&mut greeting.takes_one, true);
        let (alike, first) = greeting.first.clone()?;
        let asker = self.get(request).and_then(|request| request.asker());
        if let Some(Peer::Client(client)) = asker {
            note_accepted(ctx, client, key, alike);
        }
        if is_news {
            ctx.report_request(Reason::InitializeRefused, [asker, Some(key.into())], || {
                let text = format!(
                    "a worker takes one initialize only: clients with the protocol version and the capabilities of the \
                     first one get its answer, all others are refused; {REMEDY}"
                );
                (None, text)
            });
        }
        Some(first)
    }
}

impl Workers {
    /// The refusals that a worker's clients get now, since they were held back for long enough.
    pub(crate) fn overdue_refusals(&mut self, key: WorkerKey, now: Moment) -> Vec<RefusedInitialize> {
        let Some(worker) = self.get_mut(key) else { return Vec::new() };
        worker.greeting.refused.extract_if(.., |refused| refused.until <= now).collect()
    }

    /// When the next of them is due.
    pub(crate) fn next_refusal(&self, key: WorkerKey) -> Option<Moment> {
        self.get(key)?.greeting.refused.iter().map(|refused| refused.until).min()
    }
}

/// Whether a client's next line to a worker waits for its `initialize`. An answer to the worker's own question does
/// not.
pub(crate) fn needs_opening(ctx: &Ctx, client: ClientKey, key: WorkerKey) -> bool {
    let is_new = |worker: &&Worker| worker.owner().is_none() && !worker.audience.has(client);
    let Some(worker) = ctx.workers.get(key).filter(is_new) else { return false };
    let needs = |opening: &Opening| opening.is_accepted && !worker.greeting.accepted.contains(&opening.alike);
    ctx.clients.opening_of(client, worker.fleet).is_some_and(needs)
}

/// Maximum size of what is kept of a client.
fn longest_opening(ctx: &Ctx) -> usize {
    (ctx.settings.limits.max_memory / MEMORY_PART / ctx.clients.capacity().max(1)).clamp(LEAST, LONGEST)
}

/// A worker that has accepted a client's `initialize` gets the notification that follows, unless it has had one, or
/// the client has not sent it yet.
fn send_initialized(ctx: &mut Ctx, client: ClientKey, key: WorkerKey) {
    let Some(fleet) = ctx.workers.get(key).filter(|worker| !worker.greeting.is_ready).map(|worker| worker.fleet) else {
        return;
    };
    let line = ctx.clients.opening_of(client, fleet).and_then(|opening| opening.initialized.clone());
    let Some(line) = line else { return };
    let Some(worker) = ctx.workers.get_mut(key) else { return };
    worker.greeting.is_ready = true;
    ctx.send(Peer::Worker(key), &line);
}

/// A client gets a result for its `initialize`.
fn note_accepted(ctx: &mut Ctx, client: ClientKey, key: WorkerKey, alike: u64) {
    let Some(fleet) = ctx.workers.fleet_of(key) else { return };
    if let Some(opening) = ctx.clients.opening_mut(client, fleet).filter(|opening| opening.alike == alike) {
        opening.is_accepted = true;
    }
}

impl Clients {
    /// How a client has begun in a pool.
    fn opening_of(&self, client: ClientKey, fleet: FleetId) -> Option<&Opening> {
        self.get(client)?.openings().iter().find(|opening| opening.fleet == fleet)
    }

    fn opening_mut(&mut self, client: ClientKey, fleet: FleetId) -> Option<&mut Opening> {
        self.get_mut(client)?.openings_mut()?.iter_mut().find(|opening| opening.fleet == fleet)
    }
}

impl View<'_> {
    /// Bytes of the openings of clients, and of the answers that are kept.
    pub fn bytes_of_openings(&self) -> usize {
        self.bus.fleets.openings.bytes
    }
}
