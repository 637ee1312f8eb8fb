//! Tables near their capacity, and hundreds of clients: a smaller mock kernel than [`super::simulator`] that moves
//! whole lines, for scenes with greedy and polite clients. A scene asserts what the polite ones observe.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde_json::Value;

use crate::bus::Bus;
use crate::bus::port::{ClientKey, Close, Effect, Input, Moment, Next, Peer, PeerBits, Place, WorkerKey};
use crate::bus::settings::{Assignment, Limits, Listener, MAX_CONNECTIONS, Pool, Routing, Settings};
use crate::scan::{PAD, Window};

/// The bytes between the bus and one peer.
#[derive(Default)]
struct Wire {
    /// Written by the peer, not taken yet.
    written: Vec<u8>,
    paused: bool,
    /// Queued for it, not sent yet.
    queued: Vec<u8>,
    /// Sent, not read yet: the content of a worker's pipe.
    pipe: Vec<u8>,
    /// Lines that it has read, with their times.
    read: VecDeque<(Moment, Value)>,
    /// It accepts no bytes.
    stalls: bool,
    /// It reads its pipe only when the test asks it to.
    reads_late: bool,
    gone: bool,
}

/// Capacity of a pipe.
const PIPE: usize = 64 * 1024;

/// A bus with its peers.
pub(super) struct Crowd {
    bus: Bus,
    /// The time.
    pub now: Moment,
    wires: BTreeMap<u64, Wire>,
    peers: Vec<Peer>,
    workers: Vec<WorkerKey>,
    /// The listener is not paused.
    pub accepts: bool,
}

fn number_of(peer: Peer) -> u64 {
    PeerBits::from(peer).get()
}

impl Crowd {
    /// A crowd with this many workers, shared by all clients.
    pub(super) fn new(workers: usize, limits: Limits) -> Self {
        let pool = Pool {
            id: "agents".into(),
            instances: workers,
            max_instances: workers,
            assignment: Assignment::RoundRobin,
            ..Pool::default()
        };
        let (listeners, routing) = (vec![Listener::default()], Routing::default());
        let mut crowd = Self {
            bus: Bus::new(Settings { limits, pools: vec![pool], listeners, routing, most_clients: MAX_CONNECTIONS }),
            now: Moment(0),
            wires: BTreeMap::new(),
            peers: Vec::new(),
            workers: Vec::new(),
            accepts: true,
        };
        let effects = crowd.bus.start(crowd.now).collect();
        crowd.carry_out(effects, &[]);
        for worker in crowd.workers.clone() {
            crowd.handle(Input::Spawned { worker, pid: 1 });
        }
        crowd
    }

    pub(super) fn worker(&self, at: usize) -> Peer {
        Peer::Worker(self.workers[at])
    }

    /// Connects a client of this user.
    pub(super) fn client(&mut self, user: u32) -> Peer {
        let (key, effects) = self.bus.connect(self.now, 0, Place::Process { pid: 0, user });
        let (key, effects): (ClientKey, _) = (key.expect("there is room"), effects.collect());
        let peer = Peer::Client(key);
        self.wires.insert(number_of(peer), Wire::default());
        self.carry_out(effects, &[]);
        self.peers.push(peer);
        peer
    }

    fn wire(&mut self, peer: Peer) -> &mut Wire {
        self.wires.entry(number_of(peer)).or_default()
    }

    fn handle(&mut self, input: Input) {
        let effects = self.bus.handle(self.now, input).collect();
        self.carry_out(effects, &[]);
    }

    fn carry_out(&mut self, effects: Vec<Effect>, data: &[u8]) {
        let mut news = Vec::new();
        for effect in effects {
            match effect {
                Effect::Copy { to, span } => {
                    self.wire(to).queued.extend_from_slice(&data[span.start as usize..span.end as usize]);
                }
                Effect::Insert { to, text } => self.wire(to).queued.extend_from_slice(text.as_bytes()),
                Effect::Pause(peer) => self.wire(peer).paused = true,
                Effect::Resume(peer) => self.wire(peer).paused = false,
                Effect::Spawn { worker, .. } => {
                    self.workers.push(worker);
                    self.peers.push(Peer::Worker(worker));
                }
                Effect::Probe(worker) => {
                    let bytes = self.wire(Peer::Worker(worker)).pipe.len();
                    news.push(Input::UnreadMeasured { worker, bytes });
                }
                Effect::Close { client, how: Close::Refuse, .. } => self.wire(Peer::Client(client)).paused = false,
                Effect::Close { client, how, .. } => {
                    let wire = self.wire(Peer::Client(client));
                    let first = !std::mem::replace(&mut wire.gone, true);
                    if how == Close::Now && first {
                        news.push(Input::ClientClosed(client));
                    }
                }
                Effect::PauseAccept => self.accepts = false,
                Effect::ResumeAccept => self.accepts = true,
                _ => {}
            }
        }
        for input in news {
            self.handle(input);
        }
    }

    /// `peer` writes lines.
    pub(super) fn write(&mut self, peer: Peer, lines: &str) {
        self.wire(peer).written.extend_from_slice(lines.as_bytes());
        self.wire(peer).written.push(b'\n');
    }

    /// Breaks a client's connection.
    pub(super) fn breaks(&mut self, peer: Peer) {
        self.handle(Input::OutputBroken { peer, why: "reset by peer".into() });
    }

    /// From now on a peer accepts no bytes.
    pub(super) fn stalls(&mut self, peer: Peer) {
        self.wire(peer).stalls = true;
    }

    /// From now on a worker reads only by [`Crowd::reads`].
    pub(super) fn reads_late(&mut self, peer: Peer) {
        self.wire(peer).reads_late = true;
    }

    /// Whether the bus has closed a client.
    pub(super) fn is_gone(&mut self, peer: Peer) -> bool {
        self.wire(peer).gone
    }

    /// Moves everything that can move without waiting.
    pub(super) fn settle(&mut self) {
        loop {
            let mut moved = false;
            for peer in self.peers.clone() {
                moved |= self.presents(peer) | self.takes(peer);
            }
            if !moved {
                return;
            }
        }
    }

    fn presents(&mut self, peer: Peer) -> bool {
        let mut moved = false;
        loop {
            let wire = self.wire(peer);
            if wire.paused || wire.gone || wire.written.is_empty() {
                return moved;
            }
            // As much as the shell reads in one call.
            let bytes = wire.written.len().min(64 * 1024);
            let mut buffer = vec![0; PAD];
            buffer.extend_from_slice(&wire.written[..bytes]);
            let end = buffer.len();
            buffer.resize(end + PAD, 0);
            let window = Window::new(&buffer, PAD, end);
            let (received, effects) = self.bus.receive(self.now, peer, window);
            let effects = effects.collect();
            self.wire(peer).written.drain(..received.consumed);
            moved |= received.consumed > 0;
            self.carry_out(effects, window.data());
            if received.next != Next::Again {
                return moved;
            }
        }
    }

    fn takes(&mut self, peer: Peer) -> bool {
        let is_worker = matches!(peer, Peer::Worker(_));
        let wire = self.wire(peer);
        let room = if is_worker { PIPE.saturating_sub(wire.pipe.len()) } else { usize::MAX };
        let bytes = wire.queued.len().min(room);
        if wire.stalls || wire.gone || bytes == 0 {
            return false;
        }
        let sent: Vec<u8> = wire.queued.drain(..bytes).collect();
        wire.pipe.extend(sent);
        let late = wire.reads_late;
        self.handle(Input::Sent { peer, bytes });
        if !late {
            while self.reads(peer) {}
        }
        true
    }

    /// A peer reads one line; false if none has reached it.
    pub(super) fn reads(&mut self, peer: Peer) -> bool {
        let now = self.now;
        let wire = self.wire(peer);
        let Some(end) = memchr::memchr(b'\n', &wire.pipe) else { return false };
        let line: Vec<u8> = wire.pipe.drain(..=end).collect();
        wire.read.push_back((now, serde_json::from_slice(&line).expect("the bus writes JSON")));
        true
    }

    /// The lines that a peer has read since the last call.
    pub(super) fn lines(&mut self, peer: Peer) -> Vec<Value> {
        self.wire(peer).read.drain(..).map(|(_, line)| line).collect()
    }

    /// Each worker answers what it has read, except where `ignores` returns true.
    pub(super) fn answer(&mut self, ignores: impl Fn(&Value) -> bool) {
        for worker in self.workers.clone() {
            for line in self.lines(Peer::Worker(worker)) {
                if line["method"].is_string() && !line["id"].is_null() && !ignores(&line) {
                    let answer = format!("{{\"id\":{},\"result\":{{\"to\":{}}}}}", line["id"], line["params"]);
                    self.write(Peer::Worker(worker), &answer);
                }
            }
        }
        self.settle();
    }

    /// Advances time; the bus is called exactly at its deadlines.
    pub(super) fn pass(&mut self, duration: Duration) {
        let end = self.now.after(duration);
        while let Some(deadline) = self.bus.view().next_deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.handle(Input::Tick);
            self.settle();
        }
        self.now = end;
        self.settle();
        self.bus.check_invariants();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::report::Reason;
    use crate::bus::settings::{MAX_CONNECTIONS, MAX_PENDING_REQUESTS, MAX_SESSIONS};

    const MS: Duration = Duration::from_millis(1);

    fn request(id: usize, what: &str) -> String {
        format!("{{\"id\":{id},\"method\":\"work\",\"params\":\"{what}\"}}")
    }

    /// Three polite clients send twenty requests each, and all are answered. `greedy` requests are never answered.
    fn polite_clients_are_served(crowd: &mut Crowd) {
        let polite: Vec<Peer> = (0..3).map(|at| crowd.client(1000 + at)).collect();
        for id in 0..20 {
            for (at, client) in polite.iter().enumerate() {
                crowd.write(*client, &request(id, &format!("{at}:{id}")));
            }
            crowd.settle();
            crowd.pass(2 * MS);
            crowd.answer(|line| line["params"] == "greedy");
            for (at, client) in polite.iter().enumerate() {
                let answers = crowd.lines(*client);
                let served =
                    answers.len() == 1 && answers[0]["id"] == id && answers[0]["result"]["to"] == format!("{at}:{id}");
                assert!(served, "client {at} asked {id} and got {answers:?}");
            }
        }
    }

    fn floods(crowd: &mut Crowd, client: Peer, requests: usize) {
        for id in 0..requests {
            crowd.write(client, &request(id, "greedy"));
        }
    }

    #[test]
    fn a_client_that_holds_every_request_slot_makes_room_for_the_others() {
        for hogs in [&[1][..], &[1, 1], &[1, 2]] {
            let mut crowd = Crowd::new(2, Limits::default());
            for user in hogs {
                let hog = crowd.client(*user);
                floods(&mut crowd, hog, MAX_PENDING_REQUESTS + 100);
            }
            // It gets a turn each millisecond.
            for _ in 0..200 {
                crowd.pass(MS);
            }
            assert!(crowd.bus.view().stats().pending >= MAX_PENDING_REQUESTS * 9 / 10, "the table is not full");
            polite_clients_are_served(&mut crowd);
        }
    }

    #[test]
    fn cancelled_requests_free_their_slots() {
        let mut crowd = Crowd::new(2, Limits::default());
        let hog = crowd.client(1);
        for id in 0..4300 {
            crowd.write(hog, &request(id, "greedy"));
            let cancellation = "{\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":";
            crowd.write(hog, &format!("{cancellation}{id}}}}}"));
        }
        crowd.pass(200 * MS);
        polite_clients_are_served(&mut crowd);
        crowd.pass(Duration::from_secs(6));
        assert_eq!(crowd.bus.view().stats().pending, 0, "slots of cancelled requests are kept");
    }

    #[test]
    fn a_client_that_leaves_frees_its_slots() {
        let mut crowd = Crowd::new(2, Limits::default());
        let hog = crowd.client(1);
        floods(&mut crowd, hog, MAX_PENDING_REQUESTS);
        crowd.pass(200 * MS);
        crowd.breaks(hog);
        polite_clients_are_served(&mut crowd);
    }

    /// The ids of evicted requests are never used again, since their answers may still arrive.
    #[test]
    fn late_answers_reach_no_other_client_after_the_table_was_full() {
        let mut crowd = Crowd::new(1, Limits::default());
        let worker = crowd.worker(0);
        let mut owed = Vec::new();
        for round in 0..2 {
            let hog = crowd.client(1);
            floods(&mut crowd, hog, MAX_PENDING_REQUESTS + 64);
            for _ in 0..100 {
                crowd.pass(MS);
            }
            owed.extend(crowd.lines(worker));
            crowd.breaks(hog);
            crowd.pass(if round == 0 { MS } else { Duration::from_secs(6) });
        }
        assert!(owed.len() > MAX_PENDING_REQUESTS);
        let victim = crowd.client(2);
        for id in 0..100 {
            crowd.write(victim, &request(id, "mine"));
        }
        crowd.pass(10 * MS);
        for line in owed {
            crowd.write(worker, &format!("{{\"id\":{},\"result\":\"late\"}}", line["id"]));
        }
        // A worker that answers so much late is read with pauses.
        crowd.pass(Duration::from_secs(2));
        assert_eq!(crowd.lines(victim), Vec::<Value>::new());
        crowd.answer(|_| false);
        crowd.pass(Duration::from_secs(2));
        assert_eq!(crowd.lines(victim).len(), 100);
    }

    #[test]
    fn a_client_that_holds_every_session_makes_room_for_the_others() {
        let mut crowd = Crowd::new(2, Limits::default());
        let hog = crowd.client(1);
        for name in 0..2 * MAX_SESSIONS {
            crowd.write(hog, &format!("{{\"method\":\"x\",\"sessionId\":\"s{name}\"}}"));
        }
        crowd.pass(100 * MS);
        assert_eq!(crowd.bus.view().stats().sessions, MAX_SESSIONS);
        let polite: Vec<Peer> = (0..3).map(|at| crowd.client(1000 + at)).collect();
        for id in 0..20 {
            for (at, client) in polite.iter().enumerate() {
                let name = format!("p{at}-{id}");
                crowd.write(
                    *client,
                    &format!("{{\"id\":{id},\"method\":\"x\",\"params\":{{\"sessionId\":\"{name}\"}}}}"),
                );
                crowd.pass(2 * MS);
                crowd.answer(|_| false);
                let answers = crowd.lines(*client);
                assert!(answers.len() == 1 && answers[0]["result"].is_object(), "{answers:?}");
            }
        }
        assert!(crowd.bus.view().count(Reason::SessionEvicted) >= 60);
        crowd.pass(Duration::from_secs(65));
        assert!(crowd.bus.view().stats().sessions <= 60, "unused claims are kept");
    }

    #[test]
    fn a_new_client_gets_the_first_free_slot() {
        let mut crowd = Crowd::new(1, Limits::default());
        let clients: Vec<Peer> = (0..MAX_CONNECTIONS).map(|at| crowd.client(at as u32 % 7)).collect();
        assert!(!crowd.accepts);
        crowd.breaks(clients[500]);
        crowd.settle();
        assert!(crowd.accepts);
        let newcomer = crowd.client(9);
        crowd.write(newcomer, &request(1, "x"));
        crowd.settle();
        crowd.answer(|_| false);
        assert_eq!(crowd.lines(newcomer).len(), 1);
    }

    #[test]
    fn stalled_readers_hold_up_a_shared_worker_for_a_second_at_most() {
        let mut crowd = Crowd::new(1, Limits { max_output_queue: 64 * 1024, ..Limits::default() });
        let worker = crowd.worker(0);
        let (polite, slow) = (crowd.client(1), (0..6).map(|at| crowd.client(2 + at)).collect::<Vec<_>>());
        for (at, client) in slow.iter().enumerate() {
            crowd.stalls(*client);
            crowd.write(*client, &format!("{{\"id\":1,\"method\":\"x\",\"params\":{{\"sessionId\":\"slow{at}\"}}}}"));
        }
        crowd.settle();
        let padding = "x".repeat(20_000);
        let mut slowest = Duration::ZERO;
        for id in 0..200 {
            for at in 0..slow.len() {
                let update = format!(
                    "{{\"method\":\"session/update\",\"params\":{{\"sessionId\":\"slow{at}\",\"p\":\"{padding}\"}}}}"
                );
                crowd.write(worker, &update);
            }
            crowd.write(polite, &request(id, "mine"));
            let asked = crowd.now;
            crowd.settle();
            crowd.answer(|line| line["params"] != "mine");
            for _ in 0..5000 {
                if !crowd.wire(polite).read.is_empty() {
                    break;
                }
                crowd.pass(MS);
                crowd.answer(|line| line["params"] != "mine");
            }
            assert_eq!(crowd.lines(polite).len(), 1, "no answer to request {id}");
            slowest += crowd.now.since(asked);
        }
        assert!(slowest <= Duration::from_secs(1), "the polite one waited for {slowest:?} in all");
        assert!(slow.iter().all(|client| crowd.is_gone(*client)), "one that takes nothing is kept");
    }

    #[test]
    fn endless_notifications_do_not_delay_the_other_clients() {
        let mut crowd = Crowd::new(1, Limits::default());
        let worker = crowd.worker(0);
        let (polite, hog) = (crowd.client(1), crowd.client(2));
        crowd.reads_late(worker);
        let padding = "x".repeat(150);
        for _ in 0..20_000 {
            crowd.write(hog, &format!("{{\"method\":\"x\",\"params\":\"{padding}\"}}"));
        }
        let mut waits = Vec::new();
        for id in 0..40 {
            crowd.write(polite, &request(id, "mine"));
            let asked = crowd.now;
            let mut done = None;
            // It takes 0.2 ms per line.
            for _ in 0..100 {
                crowd.pass(Duration::from_micros(200));
                crowd.reads(worker);
                crowd.settle();
                if crowd.lines(worker).iter().any(|line| line["params"] == "mine") {
                    done.get_or_insert(crowd.now.since(asked));
                }
            }
            waits.push(done.unwrap_or(Duration::MAX));
        }
        waits.sort_unstable();
        assert!(waits[20] <= 11 * MS, "half of the requests wait for {:?} and more", waits[20]);
    }
}
