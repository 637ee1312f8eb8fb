//! What the core knows of one client connection.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Closing, Endpoint};
use crate::cold::{Cold, blank};
use crate::ctx::Ctx;
use crate::fleet::admission::SourceKey;
use crate::fleet::eras::greeting::Opening;
use crate::flow::gate::Hold;
use crate::index::{GroupId, ListenerId};
use crate::mcp_servers::McpServers;
use crate::origin::Origin;
use crate::peer::{ClientKey, Moment, Peer, WorkerKey};
use crate::report::Reason;
use crate::session::tombstones::LostNames;
use crate::settings::Era;
use crate::stats::ConnectionStats;
use crate::table::Table;
use crate::view::View;
use crate::worker::Worker;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Both directions are open.
    Open,
    /// It has sent its last line and waits for answers (decision 10).
    HalfClosed,
    /// It is being closed; input is refused (`graceful_close.rs`).
    Refusing,
    /// It is closed once its last bytes are sent.
    Flushing,
    /// It is being closed at once.
    Closing,
}

/// The identity of a client, and its listener.
pub(crate) struct ClientIdentity {
    /// Its number for people: unique during the daemon's lifetime.
    pub number: u32,
    /// Whether it is the one client of `--stdio`.
    pub stdio: bool,
    /// The usage of its source.
    pub source_use: SourceKey,
    /// Index of the listener that it came through.
    pub listener: ListenerId,
    /// Its origin, for people.
    pub origin: Rc<Origin>,
    /// There was no room: it is only rejected with an error.
    pub turned_away: bool,
    /// When it connected.
    pub opened: Moment,
}

impl ClientIdentity {
    /// The listener that has admitted it, if any did.
    pub(crate) fn admitted_by(&self) -> Option<ListenerId> {
        (!self.turned_away).then_some(self.listener)
    }
}

/// What is known of a client of an MCP listener.
#[derive(Clone, Copy, Default)]
pub(crate) struct McpState {
    /// Its era; none if it came through another listener.
    pub era: Option<Era>,
    /// Workers are lent to it.
    pub borrows: bool,
    /// The last worker that answered it.
    pub answered_by: Option<WorkerKey>,
    /// The worker that its next messages go to.
    pub preferred: Option<WorkerKey>,
}

impl McpState {
    /// Whether it speaks 2026-07-28.
    pub(crate) fn is_modern(&self) -> bool {
        self.era == Some(Era::Modern)
    }
}

/// Kinds of lists.
pub(crate) const LISTS: usize = 3;

/// State that few clients have, or each only for a while.
struct ColdClient {
    /// How it has begun to speak with the workers that it shares, for each pool.
    openings: Vec<Opening>,
    /// How and why it is being closed.
    closing: Closing,
    /// Its worker in each group that assigns by client.
    assigned: Vec<(GroupId, WorkerKey)>,
    /// Names of sessions that were lost with their workers.
    lost: LostNames,
    /// For each kind of list, the number of bytes sent to the client once it has the newest notification of a change.
    lists_notified: [u64; LISTS],
    /// The MCP servers that it offers.
    offers: McpServers,
    /// Its next line gets no worker of its own: it has waited for too long, or with too many (`fleet/queue.rs`).
    gets_no_worker: bool,
    /// Why no worker of its own was started for its next line: what it has to bring is missing (`fleet/life.rs`).
    lacks: Option<Box<str>>,
    /// Since when it has no connection, if it is a session of an MCP listener.
    detached: Option<Moment>,
    /// Its own worker has ended before its first answer, and it may get another one (`fleet/life.rs`).
    has_lost_worker: bool,
    /// The groups of whoever sends its next line, if that may be somebody in others than it began with.
    groups: Option<Arc<str>>,
    /// The places of those rules of its listener that hold for it.
    rules: Vec<usize>,
}

blank!(
    ColdClient,
    Self {
        openings: Vec::new(),
        closing: Closing::NONE,
        assigned: Vec::new(),
        lost: LostNames::NONE,
        lists_notified: [0; LISTS],
        offers: McpServers::NONE,
        gets_no_worker: false,
        lacks: None,
        detached: None,
        has_lost_worker: false,
        groups: None,
        rules: Vec::new(),
    }
);

/// A thousand of them may be idle.
const _: () = assert!(size_of::<Client>() <= 104);

/// A client: a connection, or an HTTP session.
pub(crate) struct Client {
    identity: ClientIdentity,
    /// The group of workers that its messages go to, unless they name a pool.
    group: GroupId,
    mcp: McpState,
    phase: Phase,
    cold: Cold<ColdClient>,
    /// When its last bytes arrived.
    received_at: Moment,
    /// Lines, requests and sessions, once there were any.
    end: Cold<Endpoint>,
}

impl Client {
    /// One that has just connected.
    pub(crate) fn new(identity: ClientIdentity, group: GroupId, mcp: McpState) -> Self {
        let (cold, end) = (Cold::default(), Cold::default());
        Self { identity, group, mcp, phase: Phase::Open, cold, received_at: Moment::default(), end }
    }

    /// Who it is; that never changes.
    #[inline(always)]
    pub(crate) fn identity(&self) -> &ClientIdentity {
        &self.identity
    }

    /// The group of workers that its messages go to, unless they name a pool.
    #[inline(always)]
    pub(crate) fn group(&self) -> GroupId {
        self.group
    }

    /// Its messages go to this group from now on, whose workers are lent if `borrows` says so.
    pub(crate) fn regroup(&mut self, group: GroupId, borrows: bool) {
        (self.group, self.mcp.borrows) = (group, borrows);
    }

    /// What is known of it if it came through an MCP listener.
    #[inline(always)]
    pub(crate) fn mcp(&self) -> McpState {
        self.mcp
    }

    #[inline(always)]
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Lines, requests and sessions, if there were any.
    #[inline(always)]
    pub(crate) fn end(&self) -> &Endpoint {
        &self.end
    }

    #[inline(always)]
    pub(crate) fn end_mut(&mut self) -> &mut Endpoint {
        &mut self.end
    }

    /// Its end, if it has ever had lines, requests or sessions.
    #[inline(always)]
    pub(crate) fn used_end_mut(&mut self) -> Option<&mut Endpoint> {
        self.end.get_mut()
    }

    /// Takes its end away, to use it beside the client. It has to be put back.
    #[inline(always)]
    pub(crate) fn take_end(&mut self) -> Cold<Endpoint> {
        core::mem::take(&mut self.end)
    }

    /// Puts back what was taken.
    #[inline(always)]
    pub(crate) fn put_end(&mut self, end: Cold<Endpoint>) {
        self.end = end;
    }

    /// Its last bytes arrive now.
    #[inline(always)]
    pub(crate) fn touch(&mut self, now: Moment) {
        self.received_at = now;
    }

    /// When its last bytes arrived.
    pub(crate) fn received_at(&self) -> Moment {
        self.received_at
    }

    /// A worker answers it, which has had the request since then.
    pub(crate) fn note_answer_of(&mut self, worker: WorkerKey, since: Moment, now: Moment) {
        self.end_mut().meter.add(since, now);
        self.mcp.answered_by = Some(worker);
    }

    /// What a plain answer for it needs, if nothing but the answer concerns it: it is open, is not held back, has lost no
    /// session, and has no worker that is lent to it.
    #[inline(always)]
    pub(crate) fn take_simple_answer(&mut self) -> Option<(&ClientIdentity, &mut McpState, &mut Endpoint)> {
        let end = self.end.get_mut()?;
        let is_simple = self.phase == Phase::Open
            && !end.output.is_full()
            && self.cold.get().is_none_or(|cold| cold.lost.is_empty())
            && !end.gate.has(Hold::Throttle)
            && !self.mcp.borrows;
        is_simple.then_some((&self.identity, &mut self.mcp, end))
    }

    /// Its next messages go to this worker. Returns the one that they went to before.
    pub(crate) fn prefer(&mut self, worker: Option<WorkerKey>) -> Option<WorkerKey> {
        core::mem::replace(&mut self.mcp.preferred, worker)
    }

    /// It has sent its last line, and waits for answers.
    pub(crate) fn half_close(&mut self) {
        self.phase = Phase::HalfClosed;
    }

    /// It is closed, in this later phase. Returns the first reason that was given for that.
    pub(crate) fn close(&mut self, next: Phase, why: Reason) -> Reason {
        debug_assert!(self.phase < next);
        self.phase = next;
        self.end.gate.close(Hold::Over);
        self.cold.closing.begin(why)
    }

    /// How and why it is being closed.
    pub(crate) fn closing(&self) -> &Closing {
        &self.cold.closing
    }

    pub(crate) fn closing_mut(&mut self) -> &mut Closing {
        &mut self.cold.closing
    }

    /// Its worker in each group that assigns by client.
    #[inline(always)]
    pub(crate) fn assigned(&self) -> &[(GroupId, WorkerKey)] {
        self.cold.get().map_or(&[][..], |cold| &cold.assigned)
    }

    /// Whether it has lost a session of this name without asking for that.
    pub(crate) fn has_lost(&self, name: &[u8]) -> bool {
        self.cold.lost.has(name)
    }

    /// The MCP servers that it offers.
    #[inline(always)]
    pub(crate) fn offers(&self) -> &McpServers {
        &self.cold.offers
    }

    /// It offers a worker an MCP server of this name.
    pub(crate) fn note_offer(&mut self, worker: WorkerKey, name: &[u8]) {
        self.cold.offers.note(worker, name);
    }

    /// How it has begun to speak with the workers that it shares, for each pool.
    pub(crate) fn openings(&self) -> &[Opening] {
        self.cold.get().map_or(&[][..], |cold| &cold.openings)
    }

    pub(crate) fn openings_mut(&mut self) -> Option<&mut Vec<Opening>> {
        self.cold.get_mut().map(|cold| &mut cold.openings)
    }

    /// It begins to speak with workers that it shares.
    pub(crate) fn open(&mut self, opening: Opening) {
        self.cold.openings.push(opening);
    }

    /// Whether its next line gets no worker of its own: it has waited for too long, or with too many.
    pub(crate) fn gets_no_worker(&self) -> bool {
        self.cold.gets_no_worker
    }

    /// Its next line gets no worker of its own, or may get one again. Returns whether it might not before.
    pub(crate) fn refuse_worker(&mut self, is_refused: bool) -> bool {
        core::mem::replace(&mut self.cold.gets_no_worker, is_refused)
    }

    /// No worker of its own was started for its next line, for this reason, or none is said.
    pub(crate) fn set_lack(&mut self, why: Option<Box<str>>) -> Option<Box<str>> {
        if self.cold.lacks.is_none() && why.is_none() {
            return None;
        }
        core::mem::replace(&mut self.cold.lacks, why)
    }

    /// Since when it has no connection, if it is a session of an MCP listener.
    pub(crate) fn detached(&self) -> Option<Moment> {
        self.cold.detached
    }

    /// It has no connection since then, or one again.
    pub(crate) fn detach(&mut self, since: Option<Moment>) {
        self.cold.detached = since;
    }

    /// Its own worker has ended before its first answer. Returns whether that is the first time: then it may get another
    /// one.
    pub(crate) fn loses_first_worker(&mut self) -> bool {
        !core::mem::replace(&mut self.cold.has_lost_worker, true)
    }

    /// The groups of whoever sends its next line, which commas separate.
    pub(crate) fn groups(&self) -> &str {
        self.cold.groups.as_deref().or(self.identity.origin.groups.as_deref()).unwrap_or_default()
    }

    /// Its next lines are from somebody in these groups.
    pub(crate) fn set_groups(&mut self, groups: Option<Arc<str>>) {
        self.cold.groups = Some(groups.unwrap_or_default());
    }

    /// The places of those rules of its listener that hold for it, and deny something.
    pub(crate) fn rules(&self) -> &[usize] {
        self.cold.get().map_or(&[], |cold| &cold.rules)
    }

    /// Those rules of its listener hold for it from now on.
    pub(crate) fn set_rules(&mut self, rules: Vec<usize>) {
        if self.rules() != rules {
            self.cold.rules = rules;
        }
    }

    /// When it last sent or received something.
    pub(crate) fn active_at(&self) -> Moment {
        self.received_at.max(self.progress_at())
    }

    /// When a line was last taken from it, or it last took bytes; else when it connected.
    pub(crate) fn progress_at(&self) -> Moment {
        self.identity.opened.max(self.end.stream.progress_at())
    }

    /// Its account after it has `lasted` this long.
    pub(crate) fn account(&self, lasted: Duration) -> ConnectionStats {
        let traffic = self.end.traffic;
        ConnectionStats {
            lasted,
            traffic,
            answered: traffic.asked - traffic.given_up - self.end.asked.len() as u64,
            failed: traffic.given_up + traffic.refused,
            why: self.cold.closing.why().map(Reason::name),
        }
    }
}

pub(crate) type Clients = Table<Client, 'c'>;
pub(crate) type Workers = Table<Worker, 'w'>;

/// The endpoint of a peer, while other fields of the context are borrowed too.
pub(crate) fn end_of<'a>(clients: &'a mut Clients, workers: &'a mut Workers, peer: Peer) -> Option<&'a mut Endpoint> {
    match peer {
        Peer::Client(client) => clients.get_mut(client).map(|client| &mut *client.end),
        Peer::Worker(worker) => workers.get_mut(worker).map(|worker| worker.end_mut()),
    }
}

impl Ctx {
    /// The endpoint of a peer, mutable.
    pub(crate) fn endpoint(&mut self, peer: Peer) -> Option<&mut Endpoint> {
        end_of(&mut self.clients, &mut self.workers, peer)
    }

    /// The endpoint of a peer.
    pub(crate) fn peer_end(&self, peer: Peer) -> Option<&Endpoint> {
        match peer {
            Peer::Client(client) => self.clients.get(client).map(|client| &*client.end),
            Peer::Worker(worker) => self.workers.get(worker).map(|worker| worker.end()),
        }
    }
}

impl Clients {
    /// A client whose input is refused.
    pub(crate) fn refused(&mut self, client: ClientKey) -> Option<&mut Client> {
        self.get_mut(client).filter(|client| client.phase == Phase::Refusing)
    }

    /// The number of a client for people.
    pub(crate) fn client_number(&self, client: ClientKey) -> Option<u32> {
        self.identity(client).map(|client| client.number)
    }

    /// The identity of a client, if it is connected.
    pub(crate) fn identity(&self, client: ClientKey) -> Option<&ClientIdentity> {
        self.get(client).map(|client| &client.identity)
    }

    /// The state of its connection.
    pub(crate) fn phase(&self, client: ClientKey) -> Option<Phase> {
        self.get(client).map(|client| client.phase)
    }

    /// What is known of it if it came through an MCP listener.
    pub(crate) fn mcp(&self, client: ClientKey) -> McpState {
        self.get(client).map(|client| client.mcp).unwrap_or_default()
    }

    /// How many requests of clients somebody waits for.
    pub(crate) fn awaited(&self) -> usize {
        self.iter().map(|(_, client)| client.end.asked.len()).sum()
    }

    /// Its workers, in the groups that assign by client.
    pub(crate) fn workers_of(&self, client: ClientKey) -> impl Iterator<Item = WorkerKey> + use<'_> {
        self.get(client).into_iter().flat_map(Client::assigned).map(|(_, worker)| *worker)
    }

    /// The worker that it has in a group.
    pub(crate) fn worker_in(&self, client: ClientKey, group: GroupId) -> Option<WorkerKey> {
        let assigned = self.get(client)?.assigned();
        assigned.iter().find(|(of, _)| *of == group).map(|(_, worker)| *worker)
    }

    /// Assigns a worker to the client in this group.
    pub(crate) fn assign(&mut self, client: ClientKey, group: GroupId, worker: WorkerKey) {
        if let Some(client) = self.get_mut(client) {
            client.cold.assigned.retain(|(of, _)| *of != group);
            client.cold.assigned.push((group, worker));
        }
    }

    /// Unassigns a worker from the client in every group.
    pub(crate) fn unassign(&mut self, client: ClientKey, worker: WorkerKey) {
        if let Some(client) = self.get_mut(client).and_then(|client| client.cold.get_mut()) {
            client.assigned.retain(|(_, assigned)| *assigned != worker);
        }
    }

    /// Unassigns all workers of a client.
    pub(crate) fn take_workers(&mut self, client: ClientKey) -> Vec<(GroupId, WorkerKey)> {
        let client = self.get_mut(client).and_then(|client| client.cold.get_mut());
        client.map(|client| core::mem::take(&mut client.assigned)).unwrap_or_default()
    }

    /// Whether a client of a worker must be notified that this list has changed, in a line of `bytes` bytes. It needs no
    /// second notification while the first is still in its output, since it fetches the list only after reading that.
    pub(crate) fn owes_list(&mut self, client: ClientKey, list: usize, bytes: usize) -> bool {
        let Some(Client { cold, end, .. }) = self.get_mut(client) else { return false };
        let sent = end.traffic.bytes_out;
        let is_due = cold.lists_notified[list] <= sent;
        if is_due {
            cold.lists_notified[list] = sent + (end.output.queued() + bytes) as u64;
        }
        is_due
    }

    /// A client has lost a session of this name without asking for that: it gets an error when it names it.
    pub(crate) fn note_lost(&mut self, client: ClientKey, name: &[u8]) {
        if let Some(client) = self.get_mut(client) {
            client.cold.lost.add(name);
        }
    }

    /// It has a session of this name again, or asks for one.
    pub(crate) fn forget_lost(&mut self, client: ClientKey, name: &[u8]) {
        if let Some(client) = self.get_mut(client).and_then(|client| client.cold.get_mut()) {
            client.lost.forget(name);
        }
    }
}

impl View<'_> {
    /// Number of client slots in use, gaps included.
    pub fn client_slots(&self) -> usize {
        self.bus.ctx.clients.slots()
    }

    /// The worker that has answered a client last.
    pub fn answered_by(&self, client: ClientKey) -> Option<WorkerKey> {
        self.bus.ctx.clients.mcp(client).answered_by
    }
}
