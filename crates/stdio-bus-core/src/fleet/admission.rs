//! Admits or rejects clients: by address, by user, through which proxies; and how many connections a listener takes in
//! total and per source. A client above a limit gets an error that says why and is closed, and does not count. A client
//! that is not allowed is closed without a word, and never becomes a client.

use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::Cell;

use crate::ctx::Ctx;
use crate::index::ListenerId;
use crate::origin::{Origin, Place};
use crate::peer::{Moment, Source};
use crate::peers::Clients;
use crate::port::Effect;
use crate::report::{Level, Reason, Report};
use crate::settings::{Entry, MAX_CONNECTIONS, MaxConnections, Proxies, Settings};
use crate::shares::Shares;
use crate::table::{Key, Table};
use crate::timers::Timer;
use crate::view::View;

/// Number of rejected clients that get an error at a time. Further ones are closed without a word, so that rejected
/// clients never take the slots of others.
const EXPLAINED_REFUSALS: usize = 16;

/// Why a client is not accepted, for it to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The daemon shuts down.
    Draining,
    /// The listener is gone from the configuration.
    Removed,
    /// Its place, user or name is not one that the listener admits; a sentence says which.
    NotAllowed(String),
    /// There is no room for anybody now.
    NoRoom(String),
    /// Its source has as much as it may have: another source would be taken.
    TooMany(String),
}

/// The usage of one source.
pub(crate) struct SourceUsage {
    source: Source,
    connections: usize,
    /// When it got its last worker, in turns of all sources. A source that has got none is served before the one that
    /// got the last, and behind those that have waited since.
    turn: u64,
}

/// Key of a source's usage, for as long as it has a connection.
pub(crate) type SourceKey = Key<'u'>;

/// Decides whether a connection becomes a client. Holds the connection counts of all sources and the state of the
/// listeners.
#[derive(Default)]
pub(crate) struct Admission {
    listeners: Vec<ListenerState>,
    sources: Sources,
    /// The number of the next client.
    next_number: u32,
    /// All slots are taken, and somebody has asked for one since.
    is_awaited: Cell<bool>,
}

impl Admission {
    /// Nobody is connected yet.
    pub(crate) fn new(settings: &Settings) -> Self {
        Self { listeners: vec![ListenerState::default(); settings.listeners.len()], ..Self::default() }
    }

    /// The number of the next client.
    pub(crate) fn next_number(&self) -> u32 {
        self.next_number
    }

    /// One more connection of this source. None if all slots are taken.
    pub(crate) fn enter(&mut self, source: Source) -> Option<SourceKey> {
        self.sources.enter(source)
    }

    /// The next number is that of a client.
    pub(crate) fn number_is_taken(&mut self) {
        self.next_number += 1;
    }

    /// One connection of this source less.
    pub(crate) fn leave(&mut self, source: SourceKey) {
        self.sources.leave(source);
    }

    /// A source gets a worker.
    pub(super) fn count_turn(&mut self, source: SourceKey) {
        self.sources.count_turn(source);
    }

    /// The source with the lowest turn has waited longest for a worker.
    pub(super) fn turn(&self, source: SourceKey) -> u64 {
        self.sources.turn(source)
    }

    /// Whether all slots are taken, and somebody has asked for one since.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited.get()
    }

    /// Somebody asks for a slot, or nobody does any more.
    pub(crate) fn set_awaited(&self, is_awaited: bool) {
        self.is_awaited.set(is_awaited);
    }

    /// The state of a listener.
    pub(super) fn listener_mut(&mut self, listener: ListenerId) -> &mut ListenerState {
        &mut self.listeners[listener.index()]
    }

    /// Whether the operator has paused a listener.
    pub(crate) fn is_paused(&self, listener: ListenerId) -> bool {
        self.listeners.get(listener.index()).is_some_and(|listener| listener.is_paused)
    }

    /// The listeners that are gone from the configuration, and when their clients are closed.
    pub(crate) fn gone_listeners(&self) -> Vec<(ListenerId, Moment)> {
        let listeners = self.listeners.iter().enumerate();
        listeners.filter_map(|(index, listener)| Some((ListenerId::at(index), listener.ends?))).collect()
    }

    pub(crate) fn arrange_listeners(&mut self, ctx: &mut Ctx, before: &Settings) {
        let ends = ctx.time.now().after(ctx.settings.limits.drain_timeout);
        self.listeners.resize_with(ctx.settings.listeners.len(), Default::default);
        for (index, (listener, state)) in ctx.settings.listeners.iter().zip(&mut self.listeners).enumerate() {
            let was_gone = before.listeners.get(index).is_none_or(|before| before.is_gone);
            state.ends = listener.is_gone.then(|| state.ends.filter(|_| was_gone).unwrap_or(ends));
            ctx.timers.arm(Timer::Listeners, state.ends);
            if (listener.is_gone || was_gone) && core::mem::take(&mut state.is_paused) {
                ctx.out.push(Effect::ReleaseListener(ListenerId::at(index)));
            }
            if state.is_closed && !listener.closes_when_not_ready {
                (state.is_closed, state.has_opened) = (false, false);
                ctx.out.push(Effect::OpenListener(ListenerId::at(index)));
            }
        }
    }
}

/// A listener, which may be closed while no worker of its pools runs, or paused by the operator.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ListenerState {
    pub(in crate::fleet) is_paused: bool,
    pub(in crate::fleet) is_closed: bool,
    /// A worker of its pools has run before.
    pub(in crate::fleet) has_opened: bool,
    /// When the clients of a listener that is gone from the configuration are closed.
    pub(in crate::fleet) ends: Option<Moment>,
}

/// The current connections by source.
struct Sources {
    table: Table<SourceUsage, 'u'>,
    turns: u64,
}

impl Default for Sources {
    fn default() -> Self {
        Self { table: Table::new(MAX_CONNECTIONS), turns: 0 }
    }
}

impl Sources {
    /// One more connection of `source`.
    fn enter(&mut self, source: Source) -> Option<SourceKey> {
        let turn = self.turns.saturating_sub(1);
        let known = self.table.iter().find(|(_, uses)| uses.source == source).map(|(key, _)| key);
        let key = known.or_else(|| self.table.insert(SourceUsage { source, connections: 0, turn }))?;
        self.uses(key).connections += 1;
        Some(key)
    }

    /// One connection of this source less.
    fn leave(&mut self, key: SourceKey) {
        self.uses(key).connections -= 1;
        if self.count(key) == 0 {
            self.table.remove(key);
        }
    }

    /// Number of connections of a source.
    fn count(&self, key: SourceKey) -> usize {
        self.table.get(key).map_or(0, |uses| uses.connections)
    }

    /// It has got a worker: all other waiting sources go before it.
    fn count_turn(&mut self, key: SourceKey) {
        self.turns += 1;
        self.uses(key).turn = self.turns;
    }

    /// The source with the lowest turn has waited longest for a worker.
    fn turn(&self, key: SourceKey) -> u64 {
        self.table.get(key).map_or(0, |uses| uses.turn)
    }

    fn uses(&mut self, key: SourceKey) -> &mut SourceUsage {
        self.table.get_mut(key).expect("a source lives as long as its connections")
    }
}

/// The setting that limits the connections of a listener.
const KEY: &str = "listeners[].max_connections";

fn connections(count: usize) -> String {
    if count == 1 { "1 connection".into() } else { format!("{count} connections") }
}

/// A listener takes no more than `most` connections from the source of a client.
pub fn most_of_source(most: usize) -> Rejection {
    let most = connections(most);
    Rejection::TooMany(format!("this listener takes {most} from one source ({KEY}); close one of yours first"))
}

impl Rejection {
    /// All places of a table are in use, and nobody gives one up for the asker. `whose` says whose they are, and begins
    /// with a blank if it is not empty.
    pub fn full(shares: &Shares, whose: &str) -> Self {
        let all = format!("all {} connections{whose} are in use", shares.capacity);
        match shares.is_asker_above_its_share() {
            true => Self::TooMany(format!(
                "{all}, {} of them by your source, which is more than its share; close one of yours first",
                shares.held_by_asker()
            )),
            false => Self::NoRoom(all),
        }
    }

    /// The reason, for people.
    pub fn text(&self) -> &str {
        match self {
            Self::Draining => "the daemon shuts down",
            Self::Removed => "this listener was removed from the configuration: connect to another one",
            Self::NotAllowed(why) | Self::NoRoom(why) | Self::TooMany(why) => why,
        }
    }
}

impl Entry {
    /// Whether this may be the peer of a connection. A client that comes through a proxy is somewhere else.
    fn allows_connection(&self, place: Place) -> bool {
        match (place, &self.peer_uids) {
            (Place::Process { user, .. }, Some(users)) => users.contains(&user),
            (_, Some(_)) => false,
            (_, None) => true,
        }
    }

    /// Whether this client is allowed, and the key that forbids it if not.
    fn allows(&self, origin: &Origin) -> Result<(), &'static str> {
        if !self.allows_connection(origin.via.as_deref().copied().unwrap_or(origin.place)) {
            return Err("listeners[].peer_uids");
        }
        let Some(networks) = self.allow.as_ref().filter(|_| !origin.is_proxy) else { return Ok(()) };
        if origin.place.is_in(networks) { Ok(()) } else { Err("listeners[].allow") }
    }
}

impl Admission {
    fn would_take_with(
        &self,
        ctx: &Ctx,
        free_slots: usize,
        listener: ListenerId,
        origin: &Origin,
    ) -> Result<(), Rejection> {
        may_ask(ctx, listener, origin)?;
        if ctx.settings.listeners[listener].is_gone {
            return Err(Rejection::Removed);
        }
        if self.is_paused(listener) {
            return Err(Rejection::NoRoom("the operator has paused this listener; try again later".into()));
        }
        if free_slots == 0 {
            self.is_awaited.set(true);
            let shares = Shares::new(ctx.clients.capacity(), self.sources(), Some(origin.source()));
            return Err(Rejection::full(&shares, ""));
        }
        no_room(ctx, listener, origin.source()).map_or(Ok(()), Err)
    }

    /// Whether a source has more than half of all slots.
    pub(crate) fn has_most(&self, ctx: &Ctx, source: SourceKey) -> bool {
        self.sources.count(source) > ctx.clients.capacity() / 2
    }

    /// The sources of all clients, and how many each has.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (Source, usize)> {
        self.sources.table.iter().map(|(_, uses)| (uses.source, uses.connections))
    }

    /// Panics if the current connections do not match their counts.
    pub(crate) fn check_admission(&self, ctx: &Ctx) {
        let mut all = 0;
        for (key, uses) in self.sources.table.iter() {
            let of_it = ctx.clients.iter().filter(|(_, client)| client.identity().source_use == key);
            let is_listed =
                of_it.map(|(_, client)| client.identity().origin.source() == uses.source).collect::<Vec<_>>();
            assert_eq!(is_listed, vec![true; uses.connections], "every connection is listed with its source");
            all += uses.connections;
        }
        assert_eq!(all, ctx.clients.len(), "every source is listed");
    }
}

/// Whether a client is allowed. If not, that is reported.
pub(crate) fn is_allowed(ctx: &mut Ctx, listener: ListenerId, origin: &Origin) -> bool {
    let Err(key) = ctx.settings.listeners[listener].entry.allows(origin) else { return true };
    ctx.emit_report(Reason::NotAllowed, || {
        let text = format!("a client is rejected: {} is not in {key}", origin.place);
        let report = Report { origin: Some(Rc::new(origin.clone())), ..Report::new(Reason::NotAllowed, text) };
        // The peer left before its address could be read, unless a proxy brings it without an address.
        if origin.place == Place::Inherited && origin.via.is_none() { report.at(Level::Debug) } else { report }
    });
    false
}

/// Whether a client of this origin is allowed at all, one that was here before the listener was removed included.
///
/// # Errors
/// Why not.
pub(crate) fn may_ask(ctx: &Ctx, listener: ListenerId, origin: &Origin) -> Result<(), Rejection> {
    let Some(settings) = ctx.settings.listener(listener) else { return Err(Rejection::Removed) };
    if ctx.shutdown.stops_workers() {
        return Err(Rejection::Draining);
    }
    if let Err(key) = settings.entry.allows(origin) {
        return Err(Rejection::NotAllowed(format!("{} is not in {key}", origin.place)));
    }
    if !ctx.settings.offers_any(listener, origin) {
        return Err(Rejection::NotAllowed("this token is not valid for any pool of this listener".into()));
    }
    Ok(())
}

/// Why the listener with this index takes no more clients from `source`; none if it does.
pub(crate) fn no_room(ctx: &Ctx, listener: ListenerId, source: Source) -> Option<Rejection> {
    let most = ctx.settings.listener(listener)?.max_connections;
    let admitted = |source| ctx.clients.admitted_count(Some(listener), source);
    // The reason that the client can act upon comes first.
    match (most.per_source, most.total) {
        (Some(most), _) if admitted(Some(source)) >= most => Some(most_of_source(most)),
        (_, Some(most)) if admitted(None) >= most => {
            let text = format!("this listener takes {} ({KEY}); try again when one has left", connections(most));
            let clients = ctx.clients.iter().map(|(_, client)| client.identity());
            let here = clients.filter(|client| client.admitted_by() == Some(listener));
            let shares = Shares::new(most, here.map(|client| (client.origin.source(), 1)), Some(source));
            Some(if shares.is_asker_above_its_share() { Rejection::TooMany(text) } else { Rejection::NoRoom(text) })
        }
        _ => None,
    }
}

impl Clients {
    /// Number of free client slots.
    pub(crate) fn free_slots(&self) -> usize {
        self.capacity() - self.len()
    }

    /// Number of clients that a listener has admitted, or that are only admitted to be rejected; in total or from
    /// one source.
    pub(crate) fn admitted_count(&self, listener: Option<ListenerId>, source: Option<Source>) -> usize {
        let admitted =
            self.iter().map(|(_, client)| client.identity()).filter(|client| client.admitted_by() == listener);
        admitted.filter(|client| source.is_none_or(|source| client.origin.source() == source)).count()
    }

    /// Whether one more rejected client can get an error that says why.
    pub(crate) fn may_explain_refusal(&self) -> bool {
        self.admitted_count(None, None) < EXPLAINED_REFUSALS
    }
}

impl View<'_> {
    /// Whether a connection from `place` begins with a PROXY header. The caller reads it before
    /// [`Bus::connect`](crate::Bus::connect), which takes its content.
    pub fn awaits_header(&self, listener: impl Into<ListenerId>, place: Place) -> bool {
        let listener = listener.into();
        let Some(listener) = self.bus.ctx.settings.listener(listener) else { return false };
        match &listener.entry.proxy {
            Some(Proxies::Unix) => listener.entry.allows_connection(place),
            Some(Proxies::Networks(networks)) => place.is_in(networks),
            None => false,
        }
    }

    /// Whether a connection may begin with a PROXY header, if it comes from the right place.
    pub fn is_behind_proxies(&self, listener: impl Into<ListenerId>) -> bool {
        let listener = listener.into();
        self.bus.ctx.settings.listener(listener).is_some_and(|listener| listener.entry.proxy.is_some())
    }

    /// Whether a client of this origin would be accepted now, for handshakes whose answer can give the reason.
    ///
    /// # Errors
    /// Why not.
    pub fn would_take(&self, listener: impl Into<ListenerId>, origin: &Origin) -> Result<(), Rejection> {
        let listener = listener.into();
        self.bus.fleets.admission.would_take_with(&self.bus.ctx, self.bus.ctx.clients.free_slots(), listener, origin)
    }

    /// Whether a client of this origin would be accepted if it had a slot.
    pub fn would_take_in_a_slot(&self, listener: impl Into<ListenerId>, origin: &Origin) -> bool {
        let listener = listener.into();
        self.bus.fleets.admission.would_take_with(&self.bus.ctx, 1, listener, origin).is_ok()
    }

    /// How many connections a listener takes, in total and from one source.
    pub fn max_connections(&self, listener: impl Into<ListenerId>) -> MaxConnections {
        let listener = listener.into();
        self.bus.ctx.settings.listener(listener).map_or_else(MaxConnections::default, |it| it.max_connections)
    }

    /// How many more connections of this source a listener takes, if that is limited.
    pub fn room_of_source(&self, listener: impl Into<ListenerId>, source: Source) -> Option<usize> {
        let listener = listener.into();
        let most = self.bus.ctx.settings.listener(listener)?.max_connections.per_source?;
        Some(most.saturating_sub(self.bus.ctx.clients.admitted_count(Some(listener), Some(source))))
    }

    /// How many clients a listener may have, if it has that many.
    pub fn full_listener(&self, listener: impl Into<ListenerId>) -> Option<usize> {
        let listener = listener.into();
        self.max_connections(listener)
            .total
            .filter(|most| self.bus.ctx.clients.admitted_count(Some(listener), None) >= *most)
    }
}
