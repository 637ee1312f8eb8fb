//! Which client may name a session, with which method, and which client a worker means by it. Every route asks here: a
//! client's line for each session that it names, its cancellations, the fast path, and a worker's messages.
//!
//! A client without access learns nothing of others: every reason has the same text.

use ndjson_scan::is_decoded;

use super::state::State;
use super::table::Session;
use crate::ctx::Ctx;
use crate::index::PoolId;
use crate::message::{Parsed, Refusal, Verb};
use crate::peer::{ClientKey, SessionKey, WorkerKey};
use crate::report::Reason;
use crate::session::table::Sessions;
use crate::settings::SessionAccess;

/// Where in a message a session is named.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// At top level only.
    Alone,
    /// In the params, with no other one elsewhere.
    Params,
    /// At top level, where it determines the route, with another one in the params.
    Leading,
    /// In the params, with another one at top level.
    Second,
}

/// A session that a client's message names.
pub(crate) struct Naming<'a> {
    pub client: ClientKey,
    pub verb: Verb,
    pub place: Place,
    pub name: &'a [u8],
}

/// How a message uses a session that it names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Not at all.
    None,
    /// Its sender owns it.
    Own(SessionKey),
    /// No client has one of this name yet.
    Claim,
    /// The same, and the sender asks the worker for it.
    Ask,
    /// Its owner has left, and the sender asks the worker for it.
    Lend(SessionKey),
    /// It belongs to another connection of the same user name, and the sender takes it over.
    Take(SessionKey),
    /// It belongs to another client, or has no owner, and all clients may use every session.
    Share(SessionKey),
}

/// Why a client cannot use a name.
pub(crate) fn denied() -> Refusal {
    let text = "this session is not available to this connection; if it is yours, load it first (session/load)";
    Refusal(Reason::SessionDenied, text.into())
}

impl Session {
    /// Whether its owner may use it at once for a method that asks for no other session: `has_bonds` is whether any
    /// session is bound to a user name, `gives_out_names` whether a name not given out is a guess.
    #[inline]
    pub(crate) fn is_open_at_once(&self, has_bonds: bool, gives_out_names: impl FnOnce() -> bool) -> bool {
        let is_claim = || matches!(self.state, State::Claimed | State::Used) && !gives_out_names();
        self.state == State::Given || !has_bonds && (self.state == State::Loaded || is_claim())
    }

    /// The client that its worker means by its name. It may mean another client by a name that was not given to its
    /// owner: one that it is just giving that name to (`is_one_made`), unless the owner has asked for it, since the
    /// worker replays the history before it answers; or, if others may have had it, any client unless only one request is
    /// pending, for which the owner waits. An answer proves nothing: the worker may have read another name in that request,
    /// or none.
    #[inline]
    pub(crate) fn addressee(
        &self,
        is_one_made: impl FnOnce() -> bool,
        owner_waits: impl FnOnce() -> bool,
    ) -> Option<ClientKey> {
        if self.state.is_issued() {
            return self.client;
        }
        let may_be_anothers = match self.state {
            // That depends on its parent.
            _ if self.parent.is_some() => true,
            State::Lent => self.pending != 1 || !owner_waits(),
            State::Claimed | State::Used => is_one_made(),
            _ => false,
        };
        self.client.filter(|_| !may_be_anothers)
    }
}

impl Sessions {
    /// How a client may use the session that it names, which is `key` on this worker if it exists. A session that is
    /// closed to a client does not even reveal whether its worker is there.
    pub(crate) fn access(
        &self,
        ctx: &Ctx,
        of: &Naming<'_>,
        worker: WorkerKey,
        key: Option<SessionKey>,
    ) -> Result<Use, Refusal> {
        let found = key.and_then(|key| Some((key, self.get(key)?)));
        let how = self.use_of(ctx, of, worker, found).ok_or_else(denied)?;
        if !ctx.worker_takes_messages(worker) {
            return Err(Refusal(Reason::RequestLost, "the worker of this session has exited or is stopping".into()));
        }
        let is_open = self.is_open(ctx, of, worker, found.map(|(_, session)| session), how);
        if is_open { Ok(how) } else { Err(denied()) }
    }

    /// How it may be used as far as its owner is concerned; none if not at all.
    fn use_of(
        &self,
        ctx: &Ctx,
        of: &Naming<'_>,
        worker: WorkerKey,
        found: Option<(SessionKey, &Session)>,
    ) -> Option<Use> {
        let (is_alone, is_shared, loads) = (ctx.has_owner(worker), ctx.shares_sessions(), of.verb == Verb::Load);
        let is_second = of.place == Place::Second;
        // The session to load or fork is the one in the params.
        let is_meant = of.place != Place::Leading;
        let Some((key, session)) = found else {
            return Some(match of.verb {
                Verb::Cancel(_) | Verb::Fork => Use::None,
                _ if is_second && is_alone => Use::None,
                Verb::Load if is_meant => Use::Ask,
                _ => Use::Claim,
            });
        };
        let is_held = session.client.is_none();
        Some(match of.verb {
            _ if session.client == Some(of.client) => Use::Own(key),
            Verb::Cancel(_) if is_alone || is_shared => Use::None,
            Verb::Cancel(_) => return None,
            // A late answer gave it out: there is no other client to protect.
            _ if is_alone && !is_second => {
                if loads && is_held {
                    Use::Lend(key)
                } else {
                    Use::Own(key)
                }
            }
            _ if is_shared => Use::Share(key),
            _ if is_alone => Use::Own(key),
            Verb::Load if is_held && is_meant => Use::Lend(key),
            Verb::Fork if is_held && is_meant => Use::None,
            Verb::Fork => return None,
            _ if !is_held && !is_second && self.may_take_over(ctx, session, of.client, loads) => Use::Take(key),
            _ => return None,
        })
    }

    fn is_open(&self, ctx: &Ctx, of: &Naming<'_>, worker: WorkerKey, session: Option<&Session>, how: Use) -> bool {
        let asks = of.verb.asks_for_session();
        if ctx.shares_sessions() {
            return true;
        }
        let own = session.filter(|session| session.client == Some(of.client));
        let is_read = matches!(of.place, Place::Params | Place::Second);
        if matches!(of.verb, Verb::Cancel(_)) {
            return session.is_some() || !is_read || !self.takes_only_issued(ctx, worker);
        }
        // If workers give out names, one that was not given to this client is a guess. A claim determines where a
        // message goes, but is not a session that the worker may read in the params.
        let is_given = own.is_some_and(|session| session.state.is_issued()) || matches!(how, Use::Take(_));
        if is_read && !asks && !is_given && self.takes_only_issued(ctx, worker) {
            return false;
        }
        // A session that a client has asked a shared worker for is not its own before the worker has answered.
        let waits = |session: &&Session| session.state.is_asked_for();
        if !asks && matches!(how, Use::Own(_)) && session.filter(waits).is_some() && !ctx.has_owner(worker) {
            return false;
        }
        // A session that the worker has created for the client may be used, even if another client has one of that
        // name: some agents count from one in each process. Only loading it would reach the other one.
        let is_made = own.is_some_and(|session| session.state == State::Given);
        is_made && !asks || !self.is_bound_to_another(ctx, of.client, worker, of.name)
    }

    /// Whether a session was created or loaded under a user name, and this client has another one or none.
    pub(super) fn is_bound_to_another(&self, ctx: &Ctx, client: ClientKey, worker: WorkerKey, session: &[u8]) -> bool {
        if self.bonds().is_empty() || ctx.shares_sessions() {
            return false;
        }
        let (Some(client), Some(worker)) = (ctx.identity(client), ctx.worker_name(worker)) else {
            return false;
        };
        self.bonds().keeps_from(worker.pool, session, client.origin.names.owner())
    }

    /// Whether a session may be taken over by another connection that names it now: one with the same verified user
    /// name. A client whose connection was lost without a close reconnects, and nothing shows yet that the old
    /// connection is dead. A connection that asks for the session always gets it; other messages move it to the newer
    /// connection only, so that two of one name do not take it from each other by accident. A mere claim is taken over
    /// where it could be made: where workers give out names it is a guess of either.
    fn may_take_over(&self, ctx: &Ctx, session: &Session, by: ClientKey, asks: bool) -> bool {
        let old = session.client.and_then(|old| ctx.identity(old));
        let (Some(new), Some(old)) = (ctx.identity(by), old) else { return false };
        // A name on one listener may be another user's on another listener, which has other tokens or authorities.
        let has_name = new.listener == old.listener && new.origin.names.are_the_same_owner(&old.origin.names);
        let state = session.state;
        let is_settled = state.is_issued() || !state.is_asked_for() && !self.takes_only_issued(ctx, session.worker);
        has_name && is_settled && (asks || new.number > old.number)
    }

    /// Whether the workers of a worker's pool give out session names, so that clients may use no others.
    fn takes_only_issued(&self, ctx: &Ctx, worker: WorkerKey) -> bool {
        ctx.workers.get(worker).is_some_and(|worker| self.issues_names(worker))
    }
}

impl Ctx {
    /// Whether all clients may use every session.
    pub(crate) fn shares_sessions(&self) -> bool {
        self.settings.routing.session_access == SessionAccess::Shared
    }

    /// Why a client's line may not go to any worker of this pool, which denies the method to clients, since the answer
    /// would reveal other clients. None if it may.
    pub(crate) fn denied_in(&self, pool: PoolId, line: Parsed<'_>) -> Option<Refusal> {
        let pool = &self.settings.pools[pool];
        if pool.deny_methods.is_empty() || !line.method.is_some() {
            return None;
        }
        let method = line.get(line.method);
        let denied = pool.deny_methods.iter().find(|denied| is_decoded(method, denied.as_bytes()))?;
        let text = format!("Method not found: {denied:?} is not for clients of this pool (pools[].deny_methods)");
        Some(Refusal(Reason::MethodDenied, text))
    }
}
