//! What the core knows of one client connection.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::time::Duration;

use super::endpoint::Endpoint;
use super::message::Refusal;
use super::offers::Offers;
use super::origin::Origin;
use super::peer::{ClientKey, Moment, Peer, WorkerKey};
use super::report::Reason;
use super::seldom::{Seldom, blank};
use super::session::tombstones::LostNames;
use super::settings::Era;
use super::stats::Account;
use super::table::Table;
use super::worker::Worker;
use crate::ctx::Ctx;
use crate::fleet::admission::UseKey;
use crate::fleet::eras::greeting::Opening;
use crate::index::{GroupId, ListenerId};
use crate::view::View;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Both directions are open.
    Open,
    /// It has sent its last line and waits for answers (decision 10).
    HalfClosed,
    /// It is being closed; input is refused (`closing.rs`).
    Refusing,
    /// It is closed once its last bytes are sent.
    Flushing,
    /// It is being closed at once.
    Closing,
}

/// How and why a client is being closed, or waits for its last answers.
#[derive(Default)]
pub(super) struct Closing {
    /// The reason, if it is.
    pub why: Option<Reason>,
    /// When that times out.
    pub deadline: Option<Moment>,
    /// When refusing began.
    pub since: Moment,
    /// Bytes received since then.
    pub bytes: usize,
    /// It is in the middle of a line that is not kept.
    pub skips: bool,
    /// The error that it gets.
    pub refusal: Option<Refusal>,
}

/// The identity of a client, and its listener.
pub(super) struct Identity {
    /// Its number for people: unique during the daemon's lifetime.
    pub number: u32,
    /// Whether it is the one client of `--stdio`.
    pub stdio: bool,
    /// The usage of its source.
    pub source_use: UseKey,
    /// Index of the listener that it came through.
    pub listener: ListenerId,
    /// Its origin, for people.
    pub origin: Rc<Origin>,
    /// There was no room: it is only told so.
    pub turned_away: bool,
    /// When it connected.
    pub opened: Moment,
}

impl Identity {
    /// The listener that has admitted it, if any did.
    pub(super) fn let_in(&self) -> Option<ListenerId> {
        (!self.turned_away).then_some(self.listener)
    }
}

/// What is known of a client of an MCP listener.
#[derive(Clone, Copy, Default)]
pub(super) struct McpState {
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
    pub(super) fn is_modern(&self) -> bool {
        self.era == Some(Era::Modern)
    }
}

/// Kinds of lists.
pub(super) const LISTS: usize = 3;

/// State that few clients have, or each only for a while.
pub(super) struct SeldomOfClient {
    /// How it has begun to speak with the workers that it shares, for each pool.
    pub openings: Vec<Opening>,
    /// How and why it is being closed.
    pub closing: Closing,
    /// Its worker in each group that assigns by client.
    pub assigned: Vec<(GroupId, WorkerKey)>,
    /// Names of sessions that were lost with their workers.
    pub lost: LostNames,
    /// For each kind of list, the number of bytes sent to the client once it has the newest notification of a change.
    pub lists_told: [u64; LISTS],
    /// The MCP servers that it offers.
    pub offers: Offers,
    /// Its next line gets no worker of its own: it has waited for too long, or with too many (`fleet/queue.rs`).
    pub gets_no_worker: bool,
    /// Since when it has no connection, if it is a session of an MCP listener.
    pub detached: Option<Moment>,
    /// Its own worker has ended before its first answer, and it may get another one (`fleet/life.rs`).
    pub has_lost_worker: bool,
}

blank!(
    SeldomOfClient,
    Self {
        openings: Vec::new(),
        closing: Closing { why: None, deadline: None, since: Moment(0), bytes: 0, skips: false, refusal: None },
        assigned: Vec::new(),
        lost: LostNames::NONE,
        lists_told: [0; LISTS],
        offers: Offers::NONE,
        gets_no_worker: false,
        detached: None,
        has_lost_worker: false,
    }
);

/// A thousand of them may be idle.
const _: () = assert!(size_of::<Client>() <= 104);

/// One client connection.
pub(super) struct Client {
    pub identity: Identity,
    /// The group of workers that its messages go to, unless they name a pool.
    pub group: GroupId,
    /// What is known of it if it came through an MCP listener.
    pub mcp: McpState,
    /// The state of its connection.
    pub phase: Phase,
    /// State that few clients have.
    pub seldom: Seldom<SeldomOfClient>,
    /// When its last bytes arrived.
    pub heard: Moment,
    /// Lines, requests and sessions, once there were any.
    pub end: Seldom<Endpoint>,
}

impl Client {
    /// When it last sent or received something.
    pub(super) fn active_at(&self) -> Moment {
        self.heard.max(self.progress_at())
    }

    /// When a line was last taken from it, or it last took bytes; else when it connected.
    pub(super) fn progress_at(&self) -> Moment {
        self.identity.opened.max(self.end.stream.progress_at())
    }

    /// Its account after it has `lasted` this long.
    pub(super) fn account(&self, lasted: Duration) -> Account {
        let traffic = self.end.traffic;
        Account {
            lasted,
            traffic,
            answered: traffic.asked - traffic.given_up - self.end.asked.len() as u64,
            failed: traffic.given_up + traffic.refused,
            why: self.seldom.closing.why.map(Reason::name),
        }
    }
}

/// All clients.
pub(super) type Clients = Table<Client, 'c'>;
/// All workers.
pub(super) type Workers = Table<Worker, 'w'>;

/// The endpoint of a peer, while other fields of the context are borrowed too.
pub(super) fn end_of<'a>(clients: &'a mut Clients, workers: &'a mut Workers, peer: Peer) -> Option<&'a mut Endpoint> {
    match peer {
        Peer::Client(client) => clients.get_mut(client).map(|client| &mut *client.end),
        Peer::Worker(worker) => workers.get_mut(worker).map(|worker| worker.end_mut()),
    }
}

impl Ctx {
    /// The endpoint of a peer, mutable.
    pub(super) fn endpoint(&mut self, peer: Peer) -> Option<&mut Endpoint> {
        end_of(&mut self.clients, &mut self.workers, peer)
    }

    /// The endpoint of a peer.
    pub(super) fn peer_end(&self, peer: Peer) -> Option<&Endpoint> {
        match peer {
            Peer::Client(client) => self.clients.get(client).map(|client| &*client.end),
            Peer::Worker(worker) => self.workers.get(worker).map(|worker| worker.end()),
        }
    }
}

impl Clients {
    /// A client whose input is refused.
    pub(super) fn refused(&mut self, client: ClientKey) -> Option<&mut Client> {
        self.get_mut(client).filter(|client| client.phase == Phase::Refusing)
    }

    /// The number of a client for people.
    pub(crate) fn client_number(&self, client: ClientKey) -> Option<u32> {
        self.identity(client).map(|client| client.number)
    }

    /// The identity of a client, if it is connected.
    pub(super) fn identity(&self, client: ClientKey) -> Option<&Identity> {
        self.get(client).map(|client| &client.identity)
    }

    /// The state of its connection.
    pub(super) fn phase(&self, client: ClientKey) -> Option<Phase> {
        self.get(client).map(|client| client.phase)
    }

    /// What is known of it if it came through an MCP listener.
    pub(super) fn mcp(&self, client: ClientKey) -> McpState {
        self.get(client).map(|client| client.mcp).unwrap_or_default()
    }

    /// Its workers, in the groups that assign by client.
    pub(super) fn workers_of(&self, client: ClientKey) -> impl Iterator<Item = WorkerKey> + use<'_> {
        self.get(client).into_iter().flat_map(|client| &client.seldom.assigned).map(|(_, worker)| *worker)
    }

    /// The worker that it has in a group.
    pub(super) fn worker_in(&self, client: ClientKey, group: GroupId) -> Option<WorkerKey> {
        let assigned = &self.get(client)?.seldom.assigned;
        assigned.iter().find(|(of, _)| *of == group).map(|(_, worker)| *worker)
    }

    /// Assigns a worker to the client in this group.
    pub(super) fn assign(&mut self, client: ClientKey, group: GroupId, worker: WorkerKey) {
        if let Some(client) = self.get_mut(client) {
            client.seldom.assigned.retain(|(of, _)| *of != group);
            client.seldom.assigned.push((group, worker));
        }
    }

    /// Unassigns a worker from the client in every group.
    pub(super) fn unassign(&mut self, client: ClientKey, worker: WorkerKey) {
        if let Some(client) = self.get_mut(client).and_then(|client| client.seldom.get_mut()) {
            client.assigned.retain(|(_, assigned)| *assigned != worker);
        }
    }

    /// Unassigns all workers of a client.
    pub(super) fn take_workers(&mut self, client: ClientKey) -> Vec<(GroupId, WorkerKey)> {
        let client = self.get_mut(client).and_then(|client| client.seldom.get_mut());
        client.map(|client| core::mem::take(&mut client.assigned)).unwrap_or_default()
    }

    /// Whether a client of a worker must be notified that this list has changed, in a line of `bytes` bytes. It needs no
    /// second notification while the first is still in its output, since it fetches the list only after reading that.
    pub(super) fn owes_list(&mut self, client: ClientKey, list: usize, bytes: usize) -> bool {
        let Some(Client { seldom, end, .. }) = self.get_mut(client) else { return false };
        let sent = end.traffic.bytes_out;
        let is_due = seldom.lists_told[list] <= sent;
        if is_due {
            seldom.lists_told[list] = sent + (end.output.queued() + bytes) as u64;
        }
        is_due
    }

    /// A client has lost a session of this name without asking for that: it gets an error when it names it.
    pub(super) fn note_lost(&mut self, client: ClientKey, name: &[u8]) {
        if let Some(client) = self.get_mut(client) {
            client.seldom.lost.add(name);
        }
    }

    /// It has a session of this name again, or asks for one.
    pub(super) fn forget_lost(&mut self, client: ClientKey, name: &[u8]) {
        if let Some(client) = self.get_mut(client).and_then(|client| client.seldom.get_mut()) {
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
