//! Memory: who is held back and who is closed when all unfinished lines and queues together need too much of it.
//!
//! Above three quarters of `max_memory`, clients that hold more than their share are not read, and one that moves
//! nothing is closed now and then, so that nobody waits for ever for those who will never finish. Above `max_memory`
//! the largest are closed until there is room again. A client that holds little is never touched, and neither is a
//! worker: what waits for it keeps its clients waiting (`delivery.rs`).

use alloc::format;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use super::Bus;
use super::client::Phase;
use super::gate::Hold;
use super::peer::{ClientKey, Moment, Peer};
use super::port::Close;
use super::report::Reason;

/// Nobody is held back who holds no more than a chunk and some small blocks.
const SMALL_SHARE: usize = 80 << 10;
/// Nor is anybody closed who holds no more than this, even when there are so many that they are too much together.
const TRIFLE: usize = 24 << 10;
/// A share is this part of the memory, divided by all clients.
const SHARE_PART: usize = 4;
/// Who has moved nothing for so long makes no progress; and memory may be short for so long before one is closed.
const PATIENCE: Duration = Duration::from_secs(1);
/// So many of those who are held back are read all the same, in turn, so that whole lines can be finished and the end
/// of those who have gone is seen.
const CHANCES: usize = 32;
/// How long such a turn is. Who sends nothing in it is closed.
const CHANCE: Duration = Duration::from_millis(50);
/// How often one is closed while it stays short.
const CLOSE_EVERY: Duration = Duration::from_millis(100);
/// This part of what is held is freed at least when the system refuses more.
const FREED_PART: usize = 8;

/// What the bus remembers of memory being short.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    since: Option<Moment>,
    /// When it was short for the last time. A pause that was no relief does not count: whoever was held back goes on
    /// at once, and it is short again.
    last: Moment,
    closed_at: Option<Moment>,
    /// Those who are held back and have their turn, and since when.
    chances: Vec<(ClientKey, Moment)>,
    /// The index of the one who had it last.
    last_chance: usize,
    is_on: bool,
}

impl Shortage {
    /// Whether it is short now.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }
}

/// A client and what it holds.
struct Holder {
    client: ClientKey,
    bytes: usize,
    moves: bool,
    heard: Moment,
}

/// How much one client may hold before it is held back or closed.
fn share(max_memory: usize, clients: usize, least: usize) -> usize {
    (max_memory / (SHARE_PART * clients.max(1))).max(least)
}

impl Bus {
    /// Memory is short, or not any more if nobody is named.
    pub(super) fn on_memory(&mut self, used: usize, held: &[(Peer, usize)], waiting: &[Peer]) {
        let now = self.now;
        self.shortage.is_on = !held.is_empty();
        if held.is_empty() {
            self.shortage.chances.clear();
            for client in self.clients.keys() {
                self.hold_back(client, false);
            }
            return;
        }
        let most = self.settings.limits.max_memory;
        if now.since(self.shortage.last) > PATIENCE {
            self.shortage.since = None;
        }
        self.shortage.last = now;
        let since = *self.shortage.since.get_or_insert(now);
        let (mut holders, leaving) = self.holders(held);
        let share_to_read = share(most, self.clients.len(), SMALL_SHARE);
        let mut too_much: Vec<ClientKey> =
            holders.iter().filter(|holder| holder.bytes > share_to_read).map(|holder| holder.client).collect();
        too_much.sort_unstable_by_key(|client| client.index());
        let lasts = now >= since.after(PATIENCE);
        let missed = if lasts { self.rotate_chances(&too_much, waiting) } else { Vec::new() };
        for client in self.clients.keys() {
            let holds_too_much = too_much.binary_search_by_key(&client.index(), |client| client.index()).is_ok();
            let has_chance = self.shortage.chances.iter().any(|(lucky, _)| *lucky == client);
            self.hold_back(client, holds_too_much && !has_chance);
        }
        let text = |bytes: usize| {
            format!(
                "it held {bytes} bytes when {used} bytes of max_memory, {most}, were in use; finish lines and read \
                 answers sooner, or raise limits.max_memory"
            )
        };
        for holder in holders.iter().filter(|holder| !holder.moves && missed.contains(&holder.client)) {
            self.close_holder(holder, &text(holder.bytes));
        }
        let share_to_keep = share(most, self.clients.len(), TRIFLE);
        let due = lasts && self.shortage.closed_at.is_none_or(|at| now >= at.after(CLOSE_EVERY));
        let (enough, mut left) = (most / 8 * 7, used.saturating_sub(leaving));
        // While it is only short, one at least goes, and as many as it takes that those who have a chance can finish
        // their lines: they need larger blocks for it. Who was silent for longest goes first.
        let mut one_goes = used <= most && due;
        if one_goes {
            holders.sort_by_key(|holder| (holder.moves, holder.heard));
        }
        for holder in holders.iter().filter(|holder| holder.bytes > share_to_keep) {
            let may_go = used > most || due && !holder.moves;
            if !may_go || (left <= enough && !one_goes) {
                break;
            }
            self.shortage.closed_at = Some(now);
            one_goes = false;
            self.close_holder(holder, &text(holder.bytes));
            left = left.saturating_sub(holder.bytes);
        }
    }

    /// Lets some of those who are held back be read for a while, one after the other. Gives those who had their turn
    /// and sent nothing; who waits for memory keeps it until there is some.
    fn rotate_chances(&mut self, held_back: &[ClientKey], waiting: &[Peer]) -> Vec<ClientKey> {
        let (over, mut running): (Vec<_>, Vec<_>) = core::mem::take(&mut self.shortage.chances)
            .into_iter()
            .partition(|(client, since)| self.now >= since.after(CHANCE) && !waiting.contains(&Peer::Client(*client)));
        running.retain(|(client, _)| held_back.contains(client));
        let missed = over.iter().filter(|(client, since)| {
            held_back.contains(client) && self.clients.get(*client).is_some_and(|client| client.heard < *since)
        });
        let missed: Vec<ClientKey> = missed.map(|(client, _)| *client).collect();
        // Round after round by their places in the table.
        let after = held_back.partition_point(|client| client.index() <= self.shortage.last_chance);
        for client in held_back[after..].iter().chain(&held_back[..after]) {
            if running.len() >= CHANCES {
                break;
            }
            let waits = self.clients.get(*client).is_none_or(|client| client.end.gate.waits());
            if !waits && !missed.contains(client) && !running.iter().any(|(lucky, _)| lucky == client) {
                running.push((*client, self.now));
                self.shortage.last_chance = client.index();
            }
        }
        self.shortage.chances = running;
        missed
    }

    /// The system has refused memory: for bytes of `client`, which are lost, or for some that can wait.
    pub(super) fn on_memory_refused(&mut self, client: Option<ClientKey>, held: &[(Peer, usize)]) {
        let text = |bytes: usize| {
            let why = if client.is_some() { " for what it sends or is sent" } else { "" };
            format!(
                "the system has no memory left{why}, and it held {bytes} bytes; allow the daemon more (ulimit -v, \
                 MemoryMax), or lower limits.max_memory"
            )
        };
        let (holders, leaving) = self.holders(held);
        if let Some(client) = client {
            let bytes = holders.first().map_or(0, |holder| holder.bytes);
            return self.close_holder(&Holder { client, bytes, moves: false, heard: self.now }, &text(bytes));
        }
        let all: usize = held.iter().map(|(_, bytes)| bytes).sum();
        let mut freed = leaving;
        for holder in holders.iter().filter(|holder| holder.bytes > TRIFLE) {
            if freed > all / FREED_PART {
                break;
            }
            self.close_holder(holder, &text(holder.bytes));
            freed += holder.bytes;
        }
    }

    /// The clients among those who hold something, in the order in which they are closed: first who makes no progress,
    /// then who holds most. And how much of it goes with those that are being closed.
    fn holders(&self, held: &[(Peer, usize)]) -> (Vec<Holder>, usize) {
        let mut leaving = 0;
        let mut holders = Vec::with_capacity(held.len());
        for (peer, bytes) in held {
            let Peer::Client(key) = peer else { continue };
            match self.clients.get(*key) {
                Some(client) if client.phase < Phase::Closing => {
                    // Who waits for a worker has sent whole lines, and it is not in its hands when they are taken.
                    let moves = self.now.since(client.end.progress_at) < PATIENCE || client.end.gate.waits();
                    holders.push(Holder { client: *key, bytes: *bytes, moves, heard: client.heard });
                }
                _ => leaving += bytes,
            }
        }
        holders.sort_by_key(|holder| (holder.moves, Reverse(holder.bytes)));
        (holders, leaving)
    }

    fn close_holder(&mut self, holder: &Holder, text: &str) {
        let Some(client) = self.clients.get(holder.client).filter(|client| client.phase < Phase::Closing) else {
            return;
        };
        let (phase, queued) = (client.phase, client.end.output.queued());
        // What is queued for it may be all that it holds: then nothing can be said to it any more.
        let can_be_told = queued == 0 || queued < holder.bytes / 4;
        self.report(Reason::MemoryLimit, Some(Peer::Client(holder.client)), || format!("a client is closed: {text}"));
        match phase {
            Phase::Open | Phase::HalfClosed if can_be_told => {
                self.close_orderly(holder.client, Reason::MemoryLimit, text);
            }
            Phase::Refusing if can_be_told => self.close_client(holder.client, Close::Flush, Reason::MemoryLimit),
            _ => self.close_client(holder.client, Close::Now, Reason::MemoryLimit),
        }
    }

    fn hold_back(&mut self, key: ClientKey, held_back: bool) {
        let Some(client) = self.clients.get(key).filter(|client| client.phase == Phase::Open) else { return };
        if client.end.gate.has(Hold::Memory) == held_back {
            return;
        }
        match held_back {
            true => self.close_gate(key.into(), Hold::Memory),
            false => self.open_gate(key.into(), Hold::Memory),
        }
    }
}
