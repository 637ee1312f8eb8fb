//! Sessions of an earlier daemon (`src/shell/persistence.rs`). The first request that names one, from its owner, begins it
//! anew: a worker is sent its `initialize`, and when it has answered that, the notification that followed. What its client
//! sends meanwhile waits behind. A client of a shared worker the core introduces to the next one in the same way
//! (`eras/opening.rs`), but of a session that a dead process had it knows nothing.

use std::sync::Arc;

use crate::bus;
use crate::bus::id::Id;
use crate::bus::port::{ClientKey, Input, Moment, PoolId, Reason};
use crate::io::Io;
use crate::mcp::{Fault, Kind, Message, Session};
use crate::random;
use crate::scan::{member, string_in};
use crate::shell::connections::HttpSlot;
use crate::shell::http::deliver::OutgoingLine;
use crate::shell::http::http_clients::{HttpClient, QueuedMessage, RequestContext, Restoring};
use crate::shell::persistence::Persistence;
use crate::shell::reactor::Reactor;
use crate::shell::turn::Shell;
use crate::state;

/// What follows `initialize`, if it is not known how the client has put it.
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// Why the daemon closes a client and fails its requests. Such an error says nothing of the worker that had the request.
const CLOSES_A_CLIENT: [Reason; 6] = [
    Reason::ClientIdle,
    Reason::ClientKilled,
    Reason::TokenRemoved,
    Reason::MemoryLimit,
    Reason::ListenerRemoved,
    Reason::ShuttingDown,
];

/// Whether it is the notification that follows `initialize`.
pub(super) fn is_initialized(message: &Message) -> bool {
    message.kind() == Kind::Notification && bus::is_initialized(&message.method())
}

/// Of an error that is the daemon's own, whether a worker has got the request; none if a worker has answered.
fn delivered(outgoing: &OutgoingLine<'_>) -> Option<bool> {
    let text = outgoing.whole();
    let data = member(member(&text, b"error")?, b"data")?;
    let value = member(data, b"delivered").filter(|_| member(data, b"reason").is_some())?;
    Some(value != b"false")
}

/// A session that a request names, and that is kept.
struct RestoredSession {
    id: Box<str>,
    session: Arc<state::StoredSession>,
    pool: PoolId,
    /// It waits for its client since an earlier daemon.
    waits: bool,
}

impl<I: Io> Shell<I> {
    /// The session that a request names, if it is kept, is the sender's, and has no client here.
    fn kept_asked(&self, slot: usize) -> Option<RestoredSession> {
        let Reactor { connections, http, persistence, workers, clock, .. } = &self.reactor;
        let connection = &connections[HttpSlot(slot)];
        let (asked, origin) = (connection.incoming.asked.as_ref()?, &connection.incoming.sender.origin);
        // One that is being closed takes nothing any more.
        let is_here = |id: &str| http.clients.named(id).is_some_and(|member| !member.is_closing);
        let id = asked.session.as_deref().filter(|id| !is_here(id))?;
        let (session, waits) = persistence.find(clock.now(), id)?;
        let is_meant = asked.pool.as_deref().is_none_or(|name| name == session.pool);
        let may_use = |pool: &PoolId| self.bus.view().offers(connection.listener, origin, *pool);
        let pool = workers.pools.iter().position(|pool| pool.core.id == session.pool && pool.restores);
        let pool = pool.map(PoolId::at).filter(|pool| is_meant && may_use(pool))?;
        let listener = self.reloads.running.listeners.get(connection.listener.index())?;
        let is_its = Persistence::is_of(session, &origin.names, listener);
        is_its.then(|| RestoredSession { id: id.into(), session: Arc::clone(session), pool, waits })
    }

    /// Whether the session that a request names is kept, is the sender's, and has no client here.
    pub(super) fn is_kept_asked(&self, slot: usize) -> bool {
        self.kept_asked(slot).is_some()
    }

    /// Begins the session that a request names anew, if an earlier daemon has begun it.
    ///
    /// # Errors
    /// There is no room for it now, or the daemon shuts down: it continues at the next one.
    pub(super) fn restore_asked(&mut self, slot: usize) -> Result<(), Fault> {
        let Some(RestoredSession { id, session: kept, pool, waits }) = self.kept_asked(slot) else { return Ok(()) };
        if self.bus.view().refuses_requests() {
            return Err(Fault::shutting_down());
        }
        if !waits {
            // It is just being closed, and will wait again.
            let member = self.reactor.http.clients.named(&id);
            return if member.is_some_and(HttpClient::is_restoring) { Err(Fault::session_waits()) } else { Ok(()) };
        }
        let now = self.reactor.clock.now();
        let initialize = Message::of_line(kept.initialize.as_bytes(), &mut self.reactor.http.lines);
        let replayed = initialize.as_ref().and_then(Message::id).and_then(|id| Id::parse(id).ok());
        let (Some(initialize), Some(replayed)) = (initialize, replayed) else { return Ok(()) };
        let mut number = [0; 4];
        let random = random::fill(&mut number, random::Flags::NONBLOCK);
        random.map_err(|_| Fault::busy("the system has no random numbers yet"))?;
        let mut session = Session::restored(id.clone(), kept.version.as_bytes(), u32::from_ne_bytes(number));
        session.replayed = Some(replayed);
        self.reactor.end_own_client(slot);
        let client = self.add_session(now, slot, pool, session)?;
        self.reactor.persistence.resumed(&id);
        if let Some(member) = self.reactor.http.clients.get_mut(client) {
            member.restoring = Restoring::Queued;
        }
        let number = self.bus.view().client_number(client);
        tracing::info!(
            reason = "session_restored",
            client = number,
            pool = kept.pool,
            "a session of an earlier daemon continues: a worker is sent its initialize again"
        );
        self.reactor.http.queue_message(client, initialize, RequestContext::default(), None);
        self.present_queued(now, client);
        Ok(())
    }

    /// Forgets the session that a request ends, if it is kept and has no client here.
    pub(super) fn forget_asked(&mut self, slot: usize) -> bool {
        let kept = self.kept_asked(slot);
        kept.iter().for_each(|kept| self.reactor.persistence.forget(&kept.id, true));
        kept.is_some()
    }
}

impl<I: Io> Reactor<I> {
    /// A worker has answered the `initialize` of a session: it is kept for a later daemon, if that was a result.
    pub(super) fn keep_session(&mut self, client: ClientKey, is_error: bool) {
        let Some(member) = self.http.clients.get_mut(client) else { return };
        let record = member.record.take().filter(|_| !is_error);
        let version = member.session().and_then(|session| session.version);
        if let (Some(record), Some(version)) = (record, version) {
            self.persistence.keep(state::StoredSession { version: version.date.to_owned(), ..*record });
        }
    }

    /// The `initialize` of a restored session is answered: what waits behind it is passed on, or the session ends. One
    /// that no worker has answered waits for its client again.
    pub(super) fn restored(&mut self, now: Moment, client: ClientKey, outgoing: &OutgoingLine<'_>) {
        let text = outgoing.whole();
        let version = member(&text, b"result").and_then(|result| string_in(result, b"protocolVersion"));
        let Some(member) = self.http.clients.get_mut(client) else { return };
        let pool = &self.workers.pools[member.pool.index()].core.id;
        let Some(session) = member.session() else { return };
        session.replayed = None;
        let is_same = session.version.map(|known| known.date.as_bytes()) == version.as_deref();
        let id = session.id.clone();
        if let Some(was_delivered) = delivered(outgoing) {
            let closes = CLOSES_A_CLIENT.iter().any(|why| outgoing.code() == Some(why.code().into()));
            if was_delivered && !closes {
                member.restoring = Restoring::Failed;
            }
            return self.dispatch(now, Input::ClientLeft(client));
        }
        if outgoing.is_error || !is_same {
            tracing::warn!(
                reason = "session_restored",
                pool = pool,
                "a session of an earlier daemon has ended: its worker has refused the initialize that began it, or \
                 chosen another version; its client has to begin anew"
            );
            self.persistence.forget(&id, true);
            return self.dispatch(now, Input::ClientLeft(client));
        }
        member.restoring = Restoring::No;
        if !member.inbox.iter().any(|waiting| is_initialized(&waiting.message)) {
            let text = self.persistence.initialized_of(&id).unwrap_or(INITIALIZED);
            if let Some(message) = Message::of_line(text.as_bytes(), &mut self.http.lines) {
                self.http.memory.held += message.weight();
                member.push_front(QueuedMessage {
                    message,
                    waiter: None,
                    brought: RequestContext::default(),
                    offered: 0,
                    taken: 0,
                });
            }
        }
        self.http.clients.resume(client);
    }
}
