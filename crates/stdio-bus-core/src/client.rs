//! What the core knows of one client connection.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::time::Duration;

use super::Bus;
use super::admission::UseKey;
use super::endpoint::Endpoint;
use super::message::Refusal;
use super::offers::Offers;
use super::origin::Origin;
use super::peer::{ClientKey, ClientMark, Moment, Peer, SessionKey, Source, WorkerKey, WorkerMark};
use super::report::Reason;
use super::seldom::{Seldom, blank};
use super::session::tombstones::LostNames;
use super::settings::Era;
use super::stats::Account;
use super::table::Table;
use super::timers::Timer;
use super::worker::Worker;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Both directions are open.
    Open,
    /// It has sent its last line and waits for answers (decision 10).
    HalfClosed,
    /// It is being closed; what it still sends is refused (`closing.rs`).
    Refusing,
    /// It is being closed after its last bytes are sent.
    Flushing,
    /// It is being closed at once.
    Closing,
}

/// How and why a client is being closed, or waits for its last answers.
#[derive(Default)]
pub(super) struct Closing {
    /// Why, if it is.
    pub why: Option<Reason>,
    /// When that has lasted long enough.
    pub deadline: Option<Moment>,
    /// Since when it is refused.
    pub since: Moment,
    /// Bytes that were taken since then.
    pub bytes: usize,
    /// It holds much while memory is short: no unfinished line of it is kept.
    pub saves_memory: bool,
    /// It is in the middle of a line that is not kept.
    pub skips: bool,
    /// What it is told.
    pub refusal: Option<Refusal>,
}

/// Who a client is, and where it has come in.
pub(super) struct Identity {
    /// Its number for people: unique in the life of the daemon.
    pub number: u32,
    /// Whether it is the one client of `--stdio`.
    pub stdio: bool,
    /// What it has in common with the other connections of its source.
    pub source_use: UseKey,
    /// Index of the listener that it came through.
    pub listener: usize,
    /// Who it is, for people.
    pub origin: Rc<Origin>,
    /// It found no room, and is only here to be told so.
    pub turned_away: bool,
    /// When it connected.
    pub opened: Moment,
}

impl Identity {
    /// What it has its share by.
    pub(super) fn source(&self) -> Source {
        self.origin.source()
    }

    /// The listener that has let it in, if it did.
    pub(super) fn let_in(&self) -> Option<usize> {
        (!self.turned_away).then_some(self.listener)
    }
}

/// What is known of a client of a door for MCP.
#[derive(Clone, Copy, Default)]
pub(super) struct Door {
    /// What it speaks; none if it is the client of another door.
    pub era: Option<Era>,
    /// Workers are lent to it.
    pub borrows: bool,
    /// The worker that has answered it last.
    pub answered_by: Option<WorkerKey>,
    /// The worker that its next messages go to.
    pub preferred: Option<WorkerKey>,
}

impl Door {
    /// Whether it speaks 2026-07-28.
    pub(super) fn is_modern(&self) -> bool {
        self.era == Some(Era::Modern)
    }
}

/// Kinds of lists.
pub(super) const LISTS: usize = 3;

/// What a client is told of lists that have changed: a line of which it need not get a second one while the first one waits
/// in its output, since it asks for the list only when it has read that.
#[derive(Default)]
pub(super) struct ListsTold(
    /// Of each kind how many bytes will have left for a client when it has the newest such line.
    [u64; LISTS],
);

impl ListsTold {
    pub(super) const NONE: Self = Self([0; LISTS]);

    /// Whether a client of which `left` bytes have left has to be told; then the line will end so many bytes behind them.
    pub(super) fn is_due(&mut self, list: usize, left: u64, behind: usize) -> bool {
        let is_due = self.0[list] <= left;
        if is_due {
            self.0[list] = left + behind as u64;
        }
        is_due
    }
}

/// How a session of a door for MCP begins (`router/opening.rs`): its `initialize`, with the id of the bus, and the worker
/// that got it last.
#[derive(Default)]
pub(super) struct Opening {
    pub line: Option<Box<[u8]>>,
    pub at: Option<WorkerKey>,
}

/// What few clients have, or each only for a while.
pub(super) struct SeldomOfClient {
    /// How it began, if it is a session of a door for MCP.
    pub opening: Opening,
    /// How and why it is being closed.
    pub closing: Closing,
    /// Its worker in each group that assigns by client.
    pub assigned: Vec<(usize, WorkerKey)>,
    /// Names of sessions that went with their workers.
    pub lost: LostNames,
    /// What it has been told of lists that change.
    pub lists_told: ListsTold,
    /// The MCP servers that it offers.
    pub offers: Offers,
}

blank!(
    SeldomOfClient,
    Self {
        opening: Opening { line: None, at: None },
        closing: Closing {
            why: None,
            deadline: None,
            since: Moment(0),
            bytes: 0,
            saves_memory: false,
            skips: false,
            refusal: None,
        },
        assigned: Vec::new(),
        lost: LostNames::NONE,
        lists_told: ListsTold::NONE,
        offers: Offers::NONE,
    }
);

/// A thousand of them may be idle.
const _: () = assert!(size_of::<Client>() <= 104);

/// One client connection.
pub(super) struct Client {
    pub identity: Identity,
    /// The group of workers that its messages go to, unless they name a pool.
    pub group: usize,
    /// What is known of it if it has come through a door for MCP.
    pub door: Door,
    /// How far it has come.
    pub phase: Phase,
    /// What few clients have.
    pub seldom: Seldom<SeldomOfClient>,
    /// When its last bytes came.
    pub heard: Moment,
    /// Lines, requests and sessions, since there were any.
    pub end: Seldom<Endpoint>,
}

impl Client {
    /// A new connection.
    pub(super) fn new(identity: Identity, group: usize, door: Door) -> Self {
        let (heard, phase) = (Moment::default(), Phase::Open);
        Self { identity, group, door, phase, seldom: Seldom::default(), heard, end: Seldom::default() }
    }

    /// When something was last heard of it, or taken by it.
    pub(super) fn active_at(&self) -> Moment {
        self.heard.max(self.progress_at())
    }

    /// When a line was taken from it, or it took bytes, for the last time; or it has only connected since.
    pub(super) fn progress_at(&self) -> Moment {
        self.identity.opened.max(self.end.stream.progress_at())
    }

    /// What it has come to in the time that it has `lasted`.
    pub(super) fn account(&self, lasted: Duration) -> Account {
        let traffic = self.end.traffic;
        Account {
            lasted,
            traffic,
            answered: traffic.asked - traffic.given_up - self.end.outstanding.len() as u64,
            failed: traffic.given_up + traffic.refused,
            why: self.seldom.closing.why.map(Reason::name),
        }
    }
}

/// The clients that there are.
pub(super) type Clients = Table<Client, ClientMark>;

/// The end of a peer, while other tables of the bus are borrowed too.
macro_rules! end {
    ($bus:ident, $peer:expr) => {
        $crate::client::end_of(&mut $bus.clients, &mut $bus.workers, $peer)
    };
}
pub(super) use end;

pub(super) fn end_of<'a>(
    clients: &'a mut Clients,
    workers: &'a mut Table<Worker, WorkerMark>,
    peer: Peer,
) -> Option<&'a mut Endpoint> {
    match peer {
        Peer::Client(client) => clients.get_mut(client).map(|client| &mut *client.end),
        Peer::Worker(worker) => workers.get_mut(worker).map(|worker| &mut worker.end),
    }
}

/// What others ask of clients, and do to them: the table is touched here, in `clients.rs` and where lines come in.
impl Bus {
    /// The end of a peer, to be changed.
    pub(super) fn endpoint(&mut self, peer: Peer) -> Option<&mut Endpoint> {
        end!(self, peer)
    }

    /// The end of a peer.
    pub(super) fn peer_end(&self, peer: Peer) -> Option<&Endpoint> {
        match peer {
            Peer::Client(client) => self.clients.get(client).map(|client| &*client.end),
            Peer::Worker(worker) => self.workers.get(worker).map(|worker| &worker.end),
        }
    }

    /// A client that is refused.
    pub(super) fn refused(&mut self, client: ClientKey) -> Option<&mut Client> {
        self.clients.get_mut(client).filter(|client| client.phase == Phase::Refusing)
    }

    /// How a client is closed to which nothing of that has happened yet.
    pub(super) fn closing(&mut self, client: ClientKey) -> Option<&mut Closing> {
        self.clients
            .get_mut(client)
            .filter(|client| client.phase < Phase::Refusing)
            .map(|client| &mut client.seldom.closing)
    }

    /// All clients, in the order of their slots.
    pub(super) fn all_clients(&self) -> impl Iterator<Item = (ClientKey, &Client)> {
        self.clients.iter()
    }

    /// Slots that clients may be in.
    pub fn client_slots(&self) -> usize {
        self.clients.slots()
    }

    /// One of them.
    pub(super) fn client(&self, client: ClientKey) -> Option<&Client> {
        self.clients.get(client)
    }

    /// The one in a slot.
    pub(super) fn client_in(&self, slot: usize) -> Option<(ClientKey, &Client)> {
        self.clients.at(slot)
    }

    /// The number that people know a client by.
    pub fn client_number(&self, client: ClientKey) -> Option<u32> {
        self.identity(client).map(|client| client.number)
    }

    /// Whether somebody is connected.
    pub fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    /// Their keys, while what follows may change the table.
    pub(super) fn client_keys(&self) -> Vec<ClientKey> {
        self.clients.keys()
    }

    /// How many there are.
    pub(super) fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// How many there may be.
    pub(super) fn most_clients(&self) -> usize {
        self.clients.capacity()
    }

    /// Whether there is one alone: it keeps nobody waiting.
    pub(super) fn is_alone(&self) -> bool {
        self.clients.len() == 1
    }

    /// Who a client is, if it is there.
    pub(super) fn identity(&self, client: ClientKey) -> Option<&Identity> {
        self.clients.get(client).map(|client| &client.identity)
    }

    /// How far its connection has come.
    pub(super) fn phase(&self, client: ClientKey) -> Option<Phase> {
        self.clients.get(client).map(|client| client.phase)
    }

    /// What is known of it if it has come through a door for MCP.
    pub(super) fn door(&self, client: ClientKey) -> Door {
        self.clients.get(client).map(|client| client.door).unwrap_or_default()
    }

    /// How it began, if it is a session of a door for MCP.
    pub(super) fn opening(&mut self, client: ClientKey) -> Option<&mut Opening> {
        self.clients.get_mut(client).map(|client| &mut client.seldom.opening)
    }

    /// The group of workers that its messages go to.
    pub(super) fn group_of(&self, client: ClientKey) -> usize {
        self.clients.get(client).map_or(0, |client| client.group)
    }

    /// Its workers, in the groups that assign by client.
    pub(super) fn workers_of(&self, client: ClientKey) -> impl Iterator<Item = WorkerKey> + use<'_> {
        self.clients.get(client).into_iter().flat_map(|client| &client.seldom.assigned).map(|(_, worker)| *worker)
    }

    /// Its messages go to this group from now on.
    pub(super) fn move_client(&mut self, client: ClientKey, group: usize) {
        if let Some(client) = self.clients.get_mut(client) {
            (client.group, client.door.borrows) = (group, self.balancer.groups[group].lends());
        }
    }

    /// The worker that it has in a group.
    pub(super) fn worker_in(&self, client: ClientKey, group: usize) -> Option<WorkerKey> {
        let assigned = &self.clients.get(client)?.seldom.assigned;
        assigned.iter().find(|(of, _)| *of == group).map(|(_, worker)| *worker)
    }

    /// A worker is the client's in this group.
    pub(super) fn assign(&mut self, client: ClientKey, group: usize, worker: WorkerKey) {
        if let Some(client) = self.clients.get_mut(client) {
            client.seldom.assigned.retain(|(of, _)| *of != group);
            client.seldom.assigned.push((group, worker));
        }
    }

    /// A worker is the client's no more, in whatever group.
    pub(super) fn unassign(&mut self, client: ClientKey, worker: WorkerKey) {
        if let Some(client) = self.clients.get_mut(client).and_then(|client| client.seldom.get_mut()) {
            client.assigned.retain(|(_, assigned)| *assigned != worker);
        }
    }

    /// A client has none of its workers any more.
    pub(super) fn take_workers(&mut self, client: ClientKey) -> Vec<(usize, WorkerKey)> {
        let client = self.clients.get_mut(client).and_then(|client| client.seldom.get_mut());
        client.map(|client| core::mem::take(&mut client.assigned)).unwrap_or_default()
    }

    /// Whether a client that a worker has served is to be told that this list has changed, in a line of so many bytes.
    pub(super) fn owes_list(&mut self, client: ClientKey, list: usize, bytes: usize) -> bool {
        self.clients.get_mut(client).is_some_and(|Client { seldom, end, .. }| {
            seldom.lists_told.is_due(list, end.traffic.bytes_out, end.output.queued() + bytes)
        })
    }

    /// A client offers a worker an MCP server of this name.
    pub(super) fn note_offer(&mut self, client: ClientKey, worker: WorkerKey, name: &[u8]) {
        if let Some(client) = self.clients.get_mut(client) {
            client.seldom.offers.note(worker, name);
        }
    }

    /// A worker has answered it.
    pub(super) fn note_answerer(&mut self, client: ClientKey, worker: WorkerKey) {
        if let Some(client) = self.clients.get_mut(client) {
            client.door.answered_by = Some(worker);
        }
    }

    /// The worker that has answered a client last.
    pub fn answered_by(&self, client: ClientKey) -> Option<WorkerKey> {
        self.door(client).answered_by
    }

    /// The next messages of a client of 2026-07-28 go to this worker as long as it lives and takes messages: they go on
    /// with a request that it has begun to answer.
    pub fn prefer_worker(&mut self, client: ClientKey, worker: Option<WorkerKey>) {
        let Some(from) = self.clients.get_mut(client) else { return };
        if core::mem::replace(&mut from.door.preferred, worker) != worker && self.awaits_turn(client).is_some() {
            // Another one may be free.
            self.timers.arm(Timer::WorkerQueue, self.time.now());
        }
    }

    /// Gives a session that nobody owns to a client. Says whether it is there.
    pub(super) fn give_session(&mut self, session: SessionKey, client: ClientKey) -> bool {
        let Some(owner) = self.clients.get_mut(client) else { return false };
        self.sessions.give(session, client, &mut owner.end.sessions);
        true
    }

    /// A session has no owner any more.
    pub(super) fn leave_owner(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        let (worker, owner) = (session.worker, session.client.and_then(|owner| self.clients.get_mut(owner)));
        self.sessions.take_from_owner(key, owner.map(|owner| &mut owner.end.sessions));
        self.notice_leaving(worker);
    }

    /// A client has lost a session of this name, without having asked for that: it is told when it names it.
    pub(super) fn note_lost(&mut self, client: ClientKey, name: &[u8]) {
        if let Some(client) = self.clients.get_mut(client) {
            client.seldom.lost.add(name);
        }
    }

    /// Whether it has.
    pub(super) fn has_lost(&self, client: ClientKey, name: &[u8]) -> bool {
        self.clients.get(client).is_some_and(|client| client.seldom.lost.has(name))
    }

    /// It has a session of this name again, or asks for one.
    pub(super) fn forget_lost(&mut self, client: ClientKey, name: &[u8]) {
        if let Some(client) = self.clients.get_mut(client).and_then(|client| client.seldom.get_mut()) {
            client.lost.forget(name);
        }
    }
}
