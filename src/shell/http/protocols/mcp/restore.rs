//! Sessions of an earlier daemon (`src/shell/lasting.rs`). The first request that names one, from its owner, begins it
//! anew: a worker is sent its `initialize`, and when it has answered that, the notification that followed. What its client
//! sends meanwhile waits behind.

use std::sync::Arc;

use crate::bus::id::Id;
use crate::bus::port::{ClientKey, Input, Moment, PoolId};
use crate::io::Io;
use crate::mcp::{Fault, Message, Session};
use crate::random;
use crate::scan::{member, string_in};
use crate::shell::connections::AsHttp;
use crate::shell::http::deliver::Said;
use crate::shell::http::members::{Member, Opening, Role, Waiting};
use crate::shell::lasting::Lasting;
use crate::shell::reactor::Reactor;
use crate::shell::timers::Timer;
use crate::shell::turn::Shell;
use crate::state;

impl<I: Io> Shell<I> {
    /// The session of an earlier daemon that a request names, and its pool, if it is the sender's and nobody has named it
    /// yet.
    fn waiting_asked(&self, slot: usize) -> Option<(Arc<state::Session>, PoolId)> {
        let Reactor { connections, lasting, workers, clock, .. } = &self.reactor;
        let connection = &connections[AsHttp(slot)];
        let (asked, origin) = (connection.incoming.asked.as_ref()?, &connection.incoming.sender.origin);
        let session = lasting.waiting(clock.now(), asked.session.as_deref()?)?;
        let is_meant = asked.pool.as_deref().is_none_or(|name| name == session.pool);
        let may_use = |pool: &PoolId| self.bus.view().offers(connection.listener, origin, *pool);
        let pool = workers.pools.iter().position(|pool| pool.core.id == session.pool && pool.restores);
        let pool = pool.map(PoolId::at).filter(|pool| is_meant && may_use(pool))?;
        Lasting::is_of(session, &origin.names).then(|| (Arc::clone(session), pool))
    }

    /// Begins the session that a request names anew, if an earlier daemon has begun it.
    ///
    /// # Errors
    /// There is no room for it now, or the daemon shuts down.
    pub(super) fn restore_asked(&mut self, slot: usize) -> Result<(), Fault> {
        let Some((kept, pool)) = self.waiting_asked(slot) else { return Ok(()) };
        if self.bus.view().refuses_requests() {
            return Err(Fault::shutting_down());
        }
        let Reactor { connections, http, clock, .. } = &mut self.reactor;
        let now = clock.now();
        let asked = connections[AsHttp(slot)].incoming.asked.as_ref();
        let id: Box<str> = asked.and_then(|asked| asked.session.as_deref()).ok_or_else(Fault::no_session)?.into();
        let initialize = Message::of_line(kept.initialize.as_bytes(), &mut http.lines);
        let again = initialize.as_ref().and_then(Message::id).and_then(|id| Id::parse(id).ok());
        let (Some(initialize), Some(again)) = (initialize, again) else { return Ok(()) };
        let mut earlier = [0; 4];
        let random = random::fill(&mut earlier, random::Flags::NONBLOCK);
        random.map_err(|_| Fault::busy("the system has no random numbers yet"))?;
        let mut session = Session::restored(id.clone(), kept.version.as_bytes(), u32::from_ne_bytes(earlier));
        session.again = Some(again);
        self.reactor.end_own_client(slot);
        let client = self.add_member(now, slot, pool, Role::Session(Box::new(session)))?;
        self.reactor.lasting.goes_on(&id);
        self.reactor.timers.set(Timer::Session(client), Some(now.after(self.reactor.http.session_idle)));
        self.reactor.visit(now, slot, Some(client));
        if let Some(member) = self.reactor.http.members.get_mut(client) {
            member.opening = Opening::Queued;
        }
        let number = self.bus.view().client_number(client);
        tracing::info!(
            reason = "session_restored",
            client = number,
            pool = kept.pool,
            "a session of an earlier daemon goes on: a worker is sent its initialize again"
        );
        self.reactor.http.queue_message(client, initialize, None, None);
        self.present_queued(now, client);
        Ok(())
    }

    /// Forgets the session that a request ends, if it waits for its client since an earlier daemon.
    pub(super) fn forget_asked(&mut self, slot: usize) -> bool {
        let is_there = self.waiting_asked(slot).is_some();
        let asked = self.reactor.connections[AsHttp(slot)].incoming.asked.as_ref();
        if let Some(id) = asked.and_then(|asked| asked.session.as_deref()).filter(|_| is_there) {
            self.reactor.lasting.forget(id, true);
        }
        is_there
    }
}

impl<I: Io> Reactor<I> {
    /// Keeps a session that has begun for a later daemon, with its `initialize`.
    pub(super) fn keep_session(&mut self, client: ClientKey, opening: &[u8]) {
        let Some(member) = self.http.members.get_mut(client) else { return };
        let pool = &self.workers.pools[member.pool.index()].core.id;
        let names = member.names.clone();
        let Some(session) = member.session() else { return };
        if let Some(version) = session.version {
            self.lasting.keep(&session.id, &names, pool, version.date, opening);
        }
    }

    /// A worker has answered the `initialize` of a restored session: what waits behind it goes on, or the session ends.
    pub(super) fn restored(&mut self, now: Moment, client: ClientKey, said: &Said<'_>) {
        let text = said.whole();
        let version = member(&text, b"result").and_then(|result| string_in(result, b"protocolVersion"));
        let Some(session) = self.http.members.get_mut(client).and_then(Member::session) else { return };
        session.again = None;
        let is_same = session.version.map(|known| known.date.as_bytes()) == version.as_deref();
        if said.is_error || !is_same {
            let id = session.id.clone();
            tracing::warn!(
                reason = "session_restored",
                "a session of an earlier daemon has ended: its worker has refused the initialize that began it, or \
                 chosen another version; its client has to begin anew"
            );
            self.lasting.forget(&id, true);
            return self.tell(now, Input::Left(client));
        }
        let initialized = self.lasting.initialized_of(&session.id);
        let message = initialized.and_then(|text| Message::of_line(text.as_bytes(), &mut self.http.lines));
        let Some(member) = self.http.members.get_mut(client) else { return };
        member.opening = Opening::Done;
        if let Some(message) = message {
            self.http.memory.held += message.weight();
            member.inbox.push_front(Waiting { message, tells: None, trace: None, offered: 0, taken: 0 });
        }
        self.http.members.resume(client);
    }
}
