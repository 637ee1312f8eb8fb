//! The mock kernel, the clients and the workers of one seed. It carries out the effects of the bus as the shell does,
//! tells the model what happens, and at the end heals: everybody reads and answers, and nothing may be left over. What
//! happens follows from a seed, or from bytes that choose it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::time::Duration;

use super::Random;
use super::faults::{self, Action};
use super::line::{
    Draft, Ids, Kind, LISTS, Line, Meant, Who, is_cancellation, is_plain, meaning, number_of, own_id_of, spell_id,
    value_of,
};
use super::model::{BELIEVED, Model};
use super::peers::{Heard, Mind};
use super::trace::{Hashes, Trace};
use super::twins::Twins;
use crate::bus::overview::{Name, Role, SessionRow};
use crate::bus::port::{ClientKey, Close, Effect, Exit, Input, Moment, Next, Origin, Peer, Signal, Source, WorkerKey};
use crate::bus::report::{Reason, WorkerName};
use crate::bus::settings::{Assignment, SessionAccess, Settings};
use crate::bus::shutdown::Stage;
use crate::scan::{PAD, Window};

/// How long the stdout of a worker that has exited is read at least.
const GRACE: Duration = Duration::from_secs(1);
/// How long a worker may be held up in all by slow readers while others use it, and which part of the time that passes
/// comes back.
const PATIENCE: Duration = Duration::from_millis(500);
const PATIENCE_RETURNS: u32 = 100;
/// Whom tokens belong to.
const NAMES: [&str; 5] = ["alice", "bob", "carol", "dave", "eve"];
/// In one step of so many the bus hears that it did not run.
const GAPS: usize = 97;
/// In one step of so many the configuration is changed, or workers are to be replaced.
const RELOADS: usize = 40;
/// Things that a failing seed shows, unless `STDIO_BUS_SIM_LOG` says how many.
const LOG: usize = 50;

/// The bytes between the bus and one peer.
#[derive(Default)]
struct End {
    /// Written by the peer, not read yet.
    wire: VecDeque<u8>,
    /// Read, not consumed yet.
    kept: Vec<u8>,
    /// The lines that `kept` and then `wire` begin with: number and length. Half a line may follow them.
    lines: VecDeque<(usize, usize)>,
    paused: bool,
    resumed_at: Moment,
    /// Its bytes are presented no more.
    deaf: bool,
    /// The rest of its first line is skipped.
    skips: bool,
    /// The peer writes no more.
    ended: bool,
    /// The bus was told so.
    end_told: bool,
    /// Queued by the bus, not sent yet.
    queue: VecDeque<u8>,
    /// The tail of what was queued: half a line.
    half_queued: Vec<u8>,
    /// What was sent and not read: half a line, or what waits in a worker's pipe.
    half_read: Vec<u8>,
    /// The peer can be written to no more.
    broken: bool,
    pace: Pace,
}

/// How a peer reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pace {
    #[default]
    Fast,
    Slow,
    Never,
}

struct SimClient {
    key: ClientKey,
    /// Whose token it has shown.
    name: Option<&'static str>,
    end: End,
    /// Tokens of requests without an answer, and their lines.
    waiting: Vec<(String, usize)>,
    /// Tokens of requests it was asked, with their lines.
    todo: VecDeque<(String, usize)>,
    /// Tokens under which it may tell progress, with the lines that they came in.
    telling: Vec<(String, usize)>,
    sessions: Vec<String>,
    closing: Option<Close>,
    /// When it was told that it is closed, or was closed.
    left: Option<Moment>,
    /// Why.
    left_for: Option<Reason>,
    reset: bool,
    /// The bus was told that all is sent and that the input has ended.
    flush_told: bool,
    closed: bool,
}

struct SimWorker {
    key: WorkerKey,
    name: WorkerName,
    /// The command that it runs.
    generation: u32,
    end: End,
    process: Process,
    mind: Mind,
    waiting: Vec<(String, usize)>,
    todo: VecDeque<Todo>,
    /// Tokens of requests that it has answered.
    told: Vec<String>,
    next_id: usize,
    /// How many lines had been passed on when it first answered what nobody asked.
    exposed: Option<usize>,
    /// How long it was held up by slow readers while others used it, as far as that has not come back.
    waited: Duration,
    /// The bus wants to know how much it has not read.
    probed: bool,
    stdin_closed: bool,
    terminated: bool,
    killed: bool,
    ignores_term: bool,
    holds_pipe: bool,
    exited_at: Moment,
    released: bool,
}

/// A request that a worker will answer.
#[derive(Clone)]
struct Todo {
    token: String,
    line: usize,
    /// What it tells its progress under.
    progress: Option<String>,
    /// The session that it has made for it.
    made: Option<String>,
    /// It was answered once.
    again: bool,
}

/// A line of a client that named a session to a worker.
struct Visit {
    worker: usize,
    name: String,
    client: usize,
    at: Moment,
    loads: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    Starting,
    Running,
    Exited,
}

/// Something that follows from what happened before.
type Reaction = Box<dyn FnOnce(&mut World)>;

/// One seed, or what some bytes choose.
pub struct World {
    /// None if bytes choose what happens: who has them can show them.
    seed: Option<u64>,
    steps: usize,
    random: Random,
    /// As they were at the start, and as they are.
    first: Settings,
    settings: Settings,
    /// The configuration is changed, and workers are replaced.
    reloads: bool,
    bus: Twins,
    now: Moment,
    clients: Vec<SimClient>,
    workers: Vec<SimWorker>,
    model: Model,
    weights: Vec<(Action, usize)>,
    /// Clients use an id again before it is answered.
    reuses_ids: bool,
    healing: bool,
    /// Memory is short.
    is_crowded: bool,
    /// The bus was just told so, and may close anybody.
    sheds: bool,
    stop_accept: bool,
    accept_paused: bool,
    done: usize,
    shutdowns: usize,
    /// When the first signal came.
    signalled: Option<Moment>,
    /// Clients that may be connected at once.
    crowd: usize,
    /// How many of them may show tokens: so many of [`NAMES`] have one.
    tokens: usize,
    /// When each line was passed on, and as which one.
    sent: BTreeMap<usize, (Moment, usize)>,
    visits: Vec<Visit>,
    /// Lines that were dropped in this step.
    dropped: Vec<usize>,
    /// The last line that was queued, if others may get it as well.
    for_all: Option<usize>,
    /// How often the bus had closed a client that took nothing, or too little, when its effects were last carried out.
    stalls: u64,
    /// How many claims it had forgotten then.
    expired: u64,
    /// What all this comes to, if somebody wants to know.
    trace: Option<Trace>,
    /// The last things that happened, if somebody wants to read them: to write them down takes half of the time.
    log: Option<VecDeque<String>>,
    /// How many of them.
    log_length: usize,
    /// How many things have happened.
    noted: u64,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Some(log) = &self.log else { return };
            eprintln!("\nthe last things that happened:");
            log.iter().for_each(|line| eprintln!("  {line}"));
            eprintln!("\n{:#?}", self.settings);
            if let Some(seed) = self.seed {
                eprintln!(
                    "\nto repeat it:\n  STDIO_BUS_SIM_SEED={seed} STDIO_BUS_SIM_STEPS={} cargo test -p stdio-bus-sim every_line\n",
                    self.steps
                );
            }
        }
    }
}

impl World {
    /// The world that follows from a seed.
    pub fn new(seed: u64, steps: usize) -> Self {
        Self::of(Some(seed), Random::new(seed), steps)
    }

    /// Has it tell what happened if it fails.
    pub fn tell(mut self) -> Self {
        self.log = Some(VecDeque::new());
        self
    }

    /// The world that these bytes choose: its settings, then what happens, up to their end or for so many steps.
    pub fn chosen(bytes: &[u8], steps: usize) -> Self {
        Self::of(None, Random::chosen(bytes), steps)
    }

    fn of(seed: Option<u64>, mut random: Random, steps: usize) -> Self {
        let mut settings = faults::settings(&mut random);
        let reuses_ids = random.one_in(6);
        if reuses_ids {
            // With one worker there is no doubt which of two equal requests the bus means.
            settings.pools.truncate(1);
            settings.listeners.truncate(1);
            settings.listeners[0].pools = None;
            let pool = &mut settings.pools[0];
            (pool.instances, pool.max_instances, pool.request_timeout) = (1, 1, None);
        }
        let mut weights = faults::weights(&mut random);
        if random.one_in(3) {
            weights.push((Action::Shutdown, 1));
        }
        let tokens = *random.pick(&[0, 2, NAMES.len()]);
        if tokens > 0 {
            // Many come and go, since who owned a session shows when others ask for it.
            weights.extend([(Action::Connect, 10), (Action::HalfClose, 2), (Action::Spawn, 20)]);
            weights.extend([(Action::ClientWrites, 60), (Action::WorkerWrites, 60)]);
            weights.extend([(Action::Arrive, 100), (Action::Leave, 60)]);
            if !reuses_ids && random.one_in(2) {
                // Each has a worker of its own, and what they share is names.
                settings.pools.truncate(1);
                settings.listeners.truncate(1);
                (settings.listeners[0].pools, settings.listeners[0].stdio) = (None, false);
                let pool = &mut settings.pools[0];
                (pool.instances, pool.max_instances, pool.assignment) = (4, 8, Assignment::Dedicated);
                pool.deny_methods.clear();
            }
        }
        // Of two requests with one id the bus may mean the one that an older worker has.
        let reloads = !reuses_ids && seed.map_or_else(|| random.one_in(2), |seed| Random::new(!seed).one_in(2));
        Self {
            seed,
            steps,
            reloads,
            first: settings.clone(),
            bus: match seed {
                Some(seed) if seed % 2 == 0 => Twins::new(settings.clone()).record_requests(),
                _ => Twins::new(settings.clone()),
            },
            now: Moment(random.range(0..1_000_000) as u64),
            clients: Vec::new(),
            workers: Vec::new(),
            model: Model::new(settings.clone()),
            weights,
            reuses_ids,
            healing: false,
            is_crowded: false,
            sheds: false,
            stop_accept: false,
            accept_paused: false,
            done: 0,
            shutdowns: 0,
            signalled: None,
            crowd: if random.one_in(8) { 40 } else { 12 },
            tokens,
            sent: BTreeMap::new(),
            visits: Vec::new(),
            dropped: Vec::new(),
            for_all: None,
            stalls: 0,
            expired: 0,
            trace: None,
            log: None,
            log_length: std::env::var("STDIO_BUS_SIM_LOG").ok().and_then(|text| text.parse().ok()).unwrap_or(LOG),
            noted: 0,
            settings,
            random,
        }
    }

    /// Lives through it. Gives how often each reason was counted.
    pub fn run(mut self) -> Vec<u64> {
        self.live();
        Reason::ALL.iter().map(|reason| self.bus.count(*reason)).collect()
    }

    /// Lives through it with one bus alone. Gives what that came to, and all that happened if it is to tell.
    pub fn traced(mut self) -> (Hashes, Vec<String>) {
        self.bus.alone();
        self.trace = Some(Trace::default());
        self.log_length = usize::MAX;
        self.live();
        let hashes = self.trace.take().unwrap_or_default().hashes();
        (hashes, self.log.take().unwrap_or_default().into())
    }

    /// Lives through it. Gives how many lines went the fast path.
    #[cfg(test)]
    pub(super) fn fast_lines(mut self) -> u64 {
        self.live();
        self.bus.fast_lines()
    }

    fn live(&mut self) {
        self.step("start", None, Twins::start);
        for step in 0..self.steps {
            self.draw_anew(step);
            if self.done > 0 || self.seed.is_none() && self.random.left() == 0 {
                break;
            }
            let pause = Duration::from_micros(self.random.range(0..3000) as u64);
            self.pass(self.now.after(pause));
            // That changes nothing but what is told, and a trace is of what depends on others.
            if (step + 1).is_multiple_of(GAPS) && self.trace.is_none() {
                let gaps = [pause, Duration::ZERO, pause];
                let (held_up, suspended) = (gaps[step / GAPS % 3], gaps[(step / GAPS + 1) % 3]);
                self.handle("it did not run", None, Input::Gap { held_up, suspended });
            }
            self.tick_if_due();
            // A trace has none, so that it is of the same things as ever.
            if self.reloads && self.trace.is_none() && self.random.one_in(RELOADS) {
                self.reload();
            }
            if !self.random.one_in(3) || !self.react() {
                self.act();
            }
        }
        self.draw_anew(self.steps);
        self.heal();
        self.draw_anew(self.steps + 1);
        self.finish();
    }

    /// What is drawn in one step does not depend on how much was drawn in those before: what is the same in two versions
    /// of the bus but for a small thing goes on being so.
    fn draw_anew(&mut self, step: usize) {
        if let Some(seed) = self.seed {
            self.random = Random::new(seed ^ ((step as u64 + 1) << 40));
        }
    }

    fn note(&mut self, text: impl FnOnce(&Self) -> String) {
        self.noted += 1;
        self.mention(text);
    }

    /// Writes down what may have changed nothing.
    fn mention(&mut self, text: impl FnOnce(&Self) -> String) {
        if self.log.is_none() {
            return;
        }
        let text = text(self);
        let now = self.now.0 as f64 / 1e9;
        let log = self.log.get_or_insert_default();
        if log.len() >= self.log_length.max(1) {
            log.pop_front();
        }
        log.push_back(format!("{now:>12.6} {text}"));
    }

    /// Calls the bus and carries out what it wants.
    fn step(&mut self, what: impl Display, about: Option<Who>, call: impl FnOnce(&mut Twins, Moment) -> Vec<Effect>) {
        self.note(|_| match about {
            Some(who) => format!("{who:?} {what}"),
            None => what.to_string(),
        });
        let effects = call(&mut self.bus, self.now);
        self.carry_out(effects, &[], None, VecDeque::new(), false);
        self.check();
    }

    fn handle(&mut self, what: impl Display, about: Option<Who>, input: Input) {
        self.step(what, about, |bus, now| bus.handle(now, input));
    }

    fn check(&mut self) {
        self.learn_owners_who_wait();
        self.bus.check_invariants();
        self.model.refusing = self.bus.stage() >= Stage::Terminating;
        self.model.quiescing = self.bus.stage() >= Stage::Quiescing;
        self.model.refused = self.model.refusing;
        self.model.check(self.now, &self.bus);
        self.learn_roles();
        let soon = self.now.after(Duration::from_millis(1));
        let turns = self.bus.next_deadline().is_some_and(|at| at <= soon);
        for who in self.everybody() {
            let excused = match who {
                // A client that is far ahead, or whose lines stand before a worker, lets others go first, and has its
                // turn soon. One whose requests seem to end workers has to wait, and so has one for which nobody is there
                // just now.
                Who::Client(client) => {
                    turns || self.model.is_suspect(self.now, client) || self.model.awaits_worker(client)
                }
                Who::Worker(_) => false,
            };
            let waits = self.end(who).paused && !self.end(who).deaf;
            assert!(
                !waits || excused || self.is_crowded || self.model.somebody_is_full(),
                "{who:?} is paused, and nobody's output is full; {}",
                self.model.waiting_text(who)
            );
        }
    }

    fn tick_if_due(&mut self) {
        if self.bus.next_deadline().is_some_and(|deadline| deadline <= self.now) {
            self.tick();
        }
    }

    fn tick(&mut self) {
        self.note(|_| "the time".into());
        let effects = self.bus.handle(self.now, Input::Tick);
        self.model.refusing |= self.bus.stage() >= Stage::Terminating;
        self.model.quiescing |= self.bus.stage() >= Stage::Quiescing;
        self.model.leave_slots(self.now);
        self.model.expire_early(self.now);
        self.carry_out(effects, &[], None, VecDeque::new(), false);
        self.model.check_overdue(self.now);
        self.model.check_stalls(self.now);
        self.check();
        let next = self.bus.next_deadline();
        assert!(next.is_none_or(|next| next > self.now), "the bus asks for {next:?} again");
    }

    fn wait_for_deadline(&mut self) -> bool {
        let Some(deadline) = self.bus.next_deadline() else { return false };
        self.pass(self.now.max(deadline));
        self.tick();
        true
    }

    /// Time passes. A worker that several clients use may not stand still for one of them for long in all.
    fn pass(&mut self, until: Moment) {
        // If the bus is told the time late, what happens meanwhile is no fault of it.
        let due = self.bus.next_deadline().map_or(until, |deadline| deadline.max(self.now).min(until));
        for at in 0..self.workers.len() {
            let held_up = if self.is_held_up(at) { due.since(self.now) } else { Duration::ZERO };
            let worker = &mut self.workers[at];
            let returns = until.since(self.now) / PATIENCE_RETURNS;
            worker.waited = (worker.waited + held_up).saturating_sub(returns);
            assert!(worker.waited <= PATIENCE + BELIEVED, "worker {at} was held up for {:?}", worker.waited);
        }
        self.now = until;
    }

    /// Whether a worker waits for a client that reads slowly, while others have something to expect of it.
    fn is_held_up(&self, at: usize) -> bool {
        let worker = &self.workers[at];
        let waits = worker.end.paused && !worker.end.deaf && !worker.released;
        waits && self.front(Who::Worker(at)).is_some_and(|front| self.model.holds_up(at, front))
    }

    /// The first line that a peer has sent, is not blank and is not taken.
    fn front(&self, who: Who) -> Option<usize> {
        let mut lines = self.end(who).lines.iter().map(|(number, _)| *number);
        lines.find(|number| self.model.lines[*number].kind != Kind::Blank)
    }

    /// Presents what was read of a peer, after reading at most `bytes` more.
    fn arrive(&mut self, who: Who, bytes: usize) {
        let end = self.end_mut(who);
        if end.paused || end.deaf || end.end_told {
            return;
        }
        let bytes = bytes.min(end.wire.len());
        let read: Vec<u8> = end.wire.drain(..bytes).collect();
        end.kept.extend(read);
        loop {
            let next = self.present(who);
            let end = self.end(who);
            match next {
                Next::Again => continue,
                Next::Read => {
                    assert!(!end.kept.contains(&b'\n'), "a whole line of {who:?} was left");
                    assert!(end.kept.len() <= self.longest_line(who), "too much is kept of {who:?}");
                }
                Next::Wait => assert!(end.paused || end.deaf, "{who:?} waits, and was not paused"),
            }
            return;
        }
    }

    fn present(&mut self, who: Who) -> Next {
        let junk = b"\n\"}{:\\,\xff id".repeat(PAD / 8);
        let mut buffer = junk.clone();
        buffer.extend_from_slice(&self.end(who).kept);
        let stop = buffer.len();
        buffer.extend_from_slice(&junk);
        let window = Window::new(&buffer, junk.len(), stop);
        let length = window.data().len();
        let bad =
            [Reason::ClientMalformed, Reason::ClientLineTooLong, Reason::WorkerMalformed, Reason::WorkerLineTooLong];
        let bad_before: u64 = bad.iter().map(|reason| self.bus.count(*reason)).sum();
        if length > 0 {
            // What stays where it is is presented again and again.
            self.mention(|_| format!("{who:?} present {length} bytes"));
        }
        self.dropped.clear();
        let peer = self.peer(who);
        let (received, effects) = self.bus.receive(self.now, peer, window);
        let is_bad = bad.iter().map(|reason| self.bus.count(*reason)).sum::<u64>() > bad_before;

        let mut due = VecDeque::new();
        let mut consumed = received.consumed;
        while let Some((number, line_length)) = self.end(who).lines.front().copied() {
            let kind = self.model.lines[number].kind;
            if is_bad && matches!(kind, Kind::Malformed | Kind::TooLong) {
                let reason = match (who, kind) {
                    (Who::Client(_), Kind::Malformed) => Reason::ClientMalformed,
                    (Who::Client(_), _) => Reason::ClientLineTooLong,
                    (Who::Worker(_), Kind::Malformed) => Reason::WorkerMalformed,
                    (Who::Worker(_), _) => Reason::WorkerLineTooLong,
                };
                self.model.counted(reason);
                break;
            }
            if consumed < line_length {
                assert!(!is_bad, "a good line of {who:?} was taken for a bad one");
                if consumed > 0 && (self.end(who).skips || self.may_skip(who)) {
                    let end = self.end_mut(who);
                    end.lines[0].1 -= std::mem::take(&mut consumed);
                    end.skips = true;
                }
                break;
            }
            consumed -= line_length;
            let end = self.end_mut(who);
            end.lines.pop_front();
            if !std::mem::take(&mut end.skips) {
                due.push_back(number);
            }
        }
        let end = self.end_mut(who);
        if is_bad {
            assert_eq!((received.consumed, received.next), (length, Next::Wait));
            end.deaf = true;
        } else {
            assert_eq!(consumed, 0, "part of a line of {who:?} was consumed");
        }
        end.kept.drain(..received.consumed);
        self.trace.iter_mut().for_each(|trace| trace.received(received));
        self.carry_out(effects, window.data(), Some(who), due, is_bad);
        match who {
            Who::Worker(worker) if is_bad => self.model.settled(worker),
            Who::Client(client) => self.learn_owners(client),
            _ => {}
        }
        self.check();
        received.next
    }

    /// Whether the rest of a line may be dropped that has not come as a whole: memory is short, or was, and the client is
    /// being closed.
    fn may_skip(&self, who: Who) -> bool {
        let Who::Client(at) = who else { return false };
        let client = &self.clients[at];
        client.closing == Some(Close::Refuse) && (self.is_crowded || client.left_for == Some(Reason::MemoryLimit))
    }

    /// A client that waits, or was refused, may have got a worker of its own before a line could be queued for it.
    fn learn_owners(&mut self, client: usize) {
        let mut lines = std::mem::take(&mut self.dropped);
        lines.extend(self.front(Who::Client(client)));
        self.learn_owners_by(client, &lines);
    }

    /// A client whose turn has come has got its worker, though it is not read yet where memory is short.
    fn learn_owners_who_wait(&mut self) {
        for client in 0..self.clients.len() {
            let (who, at) = (Who::Client(client), &self.clients[client]);
            if at.end.paused && !at.closed && at.closing.is_none() {
                let waits_with: Vec<usize> = self.front(who).into_iter().collect();
                self.learn_owners_by(client, &waits_with);
            }
        }
    }

    /// Workers that are on their way in or out get no work that others may do.
    fn learn_roles(&mut self) {
        for (at, worker) in self.workers.iter().enumerate().filter(|(_, worker)| !worker.released) {
            self.model.has_role(at, self.bus.role(worker.key).expect("it lives"));
        }
    }

    fn learn_owners_by(&mut self, client: usize, lines: &[usize]) {
        let key = self.clients[client].key;
        for at in 0..self.workers.len() {
            if !self.workers[at].released && self.bus.owner(self.workers[at].key) == Some(key) {
                self.model.claimed(self.now, client, at, lines);
            }
        }
    }

    /// Tells the bus that a peer's input has ended, once it has all of it.
    fn tell_end(&mut self, who: Who) {
        let end = self.end_mut(who);
        if let Who::Client(client) = who
            && end.ended
            && end.paused
            && !end.deaf
        {
            let key = self.clients[client].key;
            self.model.counts_turn(self.now, client);
            return self.handle("sends no more", Some(who), Input::SendsNoMore(key));
        }
        let end = self.end_mut(who);
        if end.end_told || !end.ended || !end.wire.is_empty() || end.paused || end.deaf {
            return;
        }
        end.end_told = true;
        let partial = end.kept.len();
        if partial > 0 {
            self.model.counted(Reason::PartialLine);
        }
        match who {
            Who::Client(client) => self.model.half_closed(self.now, client),
            Who::Worker(worker) => self.model.stops(worker),
        }
        let peer = self.peer(who);
        self.note(|_| format!("{who:?} has ended, {partial} bytes left"));
        let effects = self.bus.handle(self.now, Input::Ended { peer, partial });
        self.carry_out(effects, &[], None, VecDeque::new(), false);
        if let Who::Client(client) = who {
            self.model.leave_unanswered(client);
        }
        self.check();
    }

    fn carry_out(
        &mut self,
        effects: Vec<Effect>,
        data: &[u8],
        hearing: Option<Who>,
        mut due: VecDeque<usize>,
        is_bad: bool,
    ) {
        let mut stalled = Vec::new();
        // The count tells what a report may keep back.
        let stalls = self.bus.count(Reason::ClientStalled) + self.bus.count(Reason::ClientSlow);
        let stalls_before = std::mem::replace(&mut self.stalls, stalls);
        let expired = self.bus.count(Reason::ClaimExpired);
        let expired = expired - std::mem::replace(&mut self.expired, expired);
        if expired > 0 {
            self.learn_expired(expired, &effects);
        }
        let released: Vec<(usize, usize)> = effects
            .iter()
            .enumerate()
            .filter_map(|(at, effect)| match effect {
                Effect::Release(worker) => Some((at, self.worker(*worker))),
                _ => None,
            })
            .collect();
        for (place, effect) in effects.into_iter().enumerate() {
            self.trace_effect(&effect, data);
            // What ends a peer comes after all lines that were taken of it.
            let ends = match &effect {
                Effect::Close { client, .. } => hearing == Some(Who::Client(self.client(*client))),
                Effect::Pause(peer) => is_bad && hearing == Some(self.who(*peer)),
                // A client's own worker ends with it, and may be told so first.
                Effect::Signal { .. } | Effect::CloseStdin(_) => matches!(hearing, Some(Who::Client(_))),
                _ => false,
            };
            if ends {
                due.drain(..).for_each(|line| self.drop_line(line));
            }
            match effect {
                Effect::Copy { to, span } => {
                    let bytes = &data[span.start as usize..span.end as usize];
                    assert!(!bytes.is_empty());
                    self.queue(to, bytes, hearing, &mut due);
                }
                Effect::Insert { to, text } => self.queue(to, text.as_bytes(), hearing, &mut due),
                Effect::Pause(peer) => {
                    let who = self.who(peer);
                    self.end_mut(who).paused = true;
                    if let Who::Client(client) = who {
                        self.model.waits(self.now, client, self.front(who));
                    }
                    if let (None, Who::Worker(worker)) = (hearing, who) {
                        // Nobody is heard, so it does not wait for somebody: it has stalled, and is heard no more.
                        self.model.unasks(worker);
                        stalled.push(worker);
                    }
                }
                Effect::Resume(peer) => {
                    let who = self.who(peer);
                    let now = self.now;
                    if let Who::Client(client) = who {
                        let waits_with: Vec<usize> = self.front(who).into_iter().collect();
                        self.learn_owners_by(client, &waits_with);
                        self.model.waits(now, client, None);
                    }
                    let end = self.end_mut(who);
                    assert!(end.paused, "{who:?} is resumed, and was not paused");
                    end.paused = false;
                    end.resumed_at = now;
                }
                Effect::Spawn { worker, name, generation } => self.start_worker(worker, name, generation),
                Effect::CloseStdin(worker) => {
                    let at = self.worker(worker);
                    self.workers[at].stdin_closed = true;
                    self.model.stops(at);
                }
                Effect::Signal { worker, signal } => {
                    let at = self.worker(worker);
                    let worker = &mut self.workers[at];
                    assert_eq!(worker.process, Process::Running, "a signal to nobody");
                    match signal {
                        Signal::Terminate => worker.terminated = true,
                        Signal::Kill => worker.killed = true,
                    }
                    self.note(|_| format!("worker {at} is signalled: {signal:?}"));
                }
                Effect::Probe(worker) => {
                    let at = self.worker(worker);
                    self.workers[at].probed = true;
                }
                Effect::Release(worker) => self.release(worker),
                Effect::Close { client, how, why } => {
                    let at = self.client(client);
                    if why == Reason::OwnWorkerEnded && self.clients[at].closing.is_none() {
                        // Its worker has nothing to ask any more: the one that is heard no longer, or goes next.
                        let goes =
                            released.iter().find(|(behind, worker)| *behind > place && self.model.is_own(at, *worker));
                        let heard = hearing.filter(|_| is_bad);
                        match (goes, heard) {
                            (Some((_, worker)), _) => self.model.unasks(*worker),
                            (None, Some(Who::Worker(worker))) => self.model.unasks(worker),
                            _ => assert!(!stalled.is_empty(), "client {at} has lost no worker"),
                        }
                    }
                    self.note(|_| format!("client {at} is closed: {how:?}"));
                    assert_ne!(self.clients[at].closing, Some(Close::Now), "closed twice");
                    self.clients[at].closing = Some(how);
                    let now = self.now;
                    let client = &mut self.clients[at];
                    client.left.get_or_insert(now);
                    client.left_for.get_or_insert(why);
                    // It is heard to the end where it is refused, whatever it has waited for.
                    client.end.deaf = how != Close::Refuse;
                    client.end.paused &= client.end.deaf;
                    if how == Close::Refuse {
                        self.model.waits(self.now, at, None);
                    }
                    let is_stalled = stalls > stalls_before && self.model.is_full(Who::Client(at));
                    let is_bad = is_bad && hearing == Some(Who::Client(at));
                    self.model.closes_amid(due.iter().copied());
                    let excuse = self.clients[at].reset || is_stalled || self.sheds || self.model.refusing || is_bad;
                    self.model.closing(self.now, at, how, why, excuse);
                }
                Effect::PauseAccept => self.accept_paused = true,
                Effect::ResumeAccept => self.accept_paused = false,
                Effect::CloseListener(_) | Effect::OpenListener(_) | Effect::Discovered { .. } => {}
                Effect::StopAccept => {
                    assert!(!self.stop_accept);
                    self.stop_accept = true;
                }
                Effect::Report(report) => {
                    assert!(!report.text.is_empty());
                    let restarts = report.reason == Reason::RestartScheduled && report.suppressed == 0;
                    assert!(!restarts || !self.model.refused, "a restart is scheduled during the shutdown");
                    self.note(|_| {
                        let client = report.client.map(|number| format!(" of client {number}")).unwrap_or_default();
                        format!("  reported: {}{client}: {}", report.reason.name(), report.text)
                    });
                }
                Effect::Done => {
                    self.note(|_| "done".into());
                    self.done += 1;
                }
            }
        }
        for number in due {
            self.drop_line(number);
        }
        for worker in stalled {
            self.workers[worker].end.deaf = true;
            self.model.settled(worker);
        }
    }

    fn trace_effect(&mut self, effect: &Effect, data: &[u8]) {
        if !matches!(effect, Effect::Copy { .. } | Effect::Insert { .. } | Effect::Report(_)) {
            self.mention(|_| format!("  {effect:?}"));
        }
        if let Some(mut trace) = self.trace.take() {
            trace.effect(self.now, effect, data, |peer| self.who(peer));
            self.trace = Some(trace);
        }
    }

    /// So many claims were forgotten in a call of the bus with these effects: it says which sessions are left.
    fn learn_expired(&mut self, how_many: u64, effects: &[Effect]) {
        let over = effects.iter().filter_map(|effect| match effect {
            Effect::Close { client, .. } => Some(Who::Client(self.client(*client))),
            Effect::Pause(peer @ Peer::Worker(_)) => Some(self.who(*peer)),
            Effect::Release(worker) => Some(Who::Worker(self.worker(*worker))),
            _ => None,
        });
        let over: Vec<Who> = over.collect();
        let (bus, workers) = (&*self.bus, &self.workers);
        let rows = || (0..bus.session_slots()).filter_map(|slot| bus.session_row(self.now, slot));
        let is_left = |worker: usize, name: &str| {
            let is_at = |row: &SessionRow<'_>| row.worker == Some(Name::Worker(workers[worker].name));
            rows().any(|row| is_at(&row) && row.client.is_some() && row.name == name.as_bytes())
        };
        self.model.claims_expired(self.now, how_many, is_left, |who| over.contains(&who));
    }

    fn queue(&mut self, to: Peer, bytes: &[u8], hearing: Option<Who>, due: &mut VecDeque<usize>) {
        let who = self.who(to);
        match who {
            Who::Client(client) => {
                let is_refused = hearing == Some(who) && self.clients[client].closing == Some(Close::Refuse);
                assert!(is_refused || self.clients[client].closing.is_none(), "{who:?} is closing");
            }
            Who::Worker(worker) => assert!(self.model.takes(worker), "{who:?} does not take messages"),
        }
        let now = self.now;
        let end = self.end_mut(who);
        end.queue.extend(bytes);
        end.half_queued.extend_from_slice(bytes);
        while let Some(at) = memchr::memchr(b'\n', &self.end(who).half_queued) {
            let text: Vec<u8> = self.end_mut(who).half_queued.drain(..=at).collect();
            let number = number_of(&text);
            self.trace.iter_mut().for_each(|trace| trace.line(who, &text, number.is_none()));
            let Some(number) = number else {
                // A refusal: the lines up to the refused one were taken before it.
                while self.model.said_refusal(hearing, who, &text) {
                    let Some(line) = due.pop_front() else { panic!("{who:?} is refused what it did not ask") };
                    self.drop_line(line);
                    if self.model.lines[line].kind == Kind::Request {
                        break;
                    }
                }
                self.model.said(now, hearing, who, &text);
                continue;
            };
            loop {
                if self.model.is_early(number) {
                    self.note(|_| format!("  line {number} has its session, and is queued for {who:?}"));
                    self.passed_on(number, who, &text);
                    break self.model.forwarded(now, number, who, &text);
                }
                if self.for_all == Some(number) {
                    break self.model.forwarded(now, number, who, &text);
                }
                let line = due.pop_front();
                let Some(line) = line else { panic!("line {number} came to {who:?} unasked") };
                if line == number {
                    self.note(|world| {
                        format!("  line {number}, {}, is queued for {who:?}", world.model.lines[number].about())
                    });
                    self.passed_on(number, who, &text);
                    self.for_all = self.model.lines[number].list().map(|_| number);
                    break self.model.forwarded(now, number, who, &text);
                }
                self.drop_line(line);
            }
        }
    }

    /// Looks at a line that was queued for `to` as its peers would, whatever the model says of it.
    fn passed_on(&mut self, number: usize, to: Who, text: &[u8]) {
        let (now, order) = (self.now, self.sent.len());
        self.sent.insert(number, (now, order));
        let line = &self.model.lines[number];
        if let Some(asked) = line.told_for.map(|asked| &self.model.lines[asked]) {
            let ids = line.ids_of(text).expect("a line arrives as it was written");
            assert_eq!(asked.from, to, "breach: {to:?} is told {line:?} for {asked:?}");
            let (known, seen) = match &line.progress {
                Some(_) => (&asked.token, &ids.progress),
                None => (&asked.id, &ids.subscription),
            };
            let same = known == seen || known.as_deref().is_some_and(is_plain);
            let alike = known.as_deref().map(meaning) == seen.as_deref().map(meaning);
            assert!(same && alike, "{to:?} is told {seen:?} for {asked:?}");
        }
        match (line.from, to) {
            (Who::Client(client), Who::Worker(worker)) => {
                let visit =
                    |name: &&String| Visit { worker, name: (*name).clone(), client, at: now, loads: line.loads() };
                self.visits.extend(line.names().iter().map(visit));
            }
            (Who::Worker(worker), Who::Client(client)) if line.kind == Kind::Response => {
                let token = line.ids_of(text).and_then(|ids| ids.id);
                let asked = line.answers.filter(|_| !line.again).map(|asked| &self.model.lines[asked]);
                let blurted = line.id.as_deref().is_some_and(|id| self.workers[worker].mind.has_blurted(id));
                // What it had answered without being asked may have been taken for the answer, and the id used again.
                if let Some(asked) = asked.filter(|asked| asked.from == to || !blurted) {
                    assert_eq!(asked.from, to, "breach: {to:?} has the answer {line:?} to {asked:?}");
                    let same = asked.id == token || asked.id.as_deref().is_some_and(is_plain);
                    let alike = asked.id.as_deref().map(meaning) == token.as_deref().map(meaning);
                    assert!(same && alike, "{to:?} has the id {token:?} in the answer to {asked:?}");
                    if let Some(name) = &line.result_session {
                        self.workers[worker].mind.told(name, order);
                    }
                    return;
                }
                // Nobody asked for this. The first time nothing gives it away, but for requests sent before. Of several
                // with one id nobody can say which it is for.
                let alike = |waiting: &str| Some(meaning(waiting)) == token.as_deref().map(meaning);
                let asked = self.clients[client].waiting.iter().filter(|(waiting, _)| alike(waiting));
                let sent = asked.filter_map(|(_, asked)| self.sent.get(asked)).map(|(_, order)| *order).min();
                let known = self.workers[worker].exposed.is_some_and(|exposed| sent.is_none_or(|sent| sent >= exposed));
                assert!(!known, "breach: {to:?} has the answer {line:?} of a worker that is known to answer twice");
            }
            (Who::Worker(worker), Who::Client(client)) => {
                let Some(Meant { name, owner, issued }) = line.meant_for.as_ref().filter(|meant| meant.owner != client)
                else {
                    return;
                };
                let left = self.clients[*owner].left;
                let visits = self.visits.iter().filter(|visit| visit.worker == worker && visit.name == *name);
                let last = |of: usize| visits.clone().filter(|visit| visit.client == of).map(|visit| visit.at).max();
                let forgotten =
                    |at: Moment| !issued && last(*owner).is_some_and(|last| at.since(last) >= Duration::from_secs(60));
                let inherits = |visit: &Visit| {
                    let free = left.is_some_and(|left| left <= visit.at) || forgotten(visit.at);
                    visit.client == client && free && (visit.loads || !issued)
                };
                let shared = self.settings.routing.session_access == SessionAccess::Shared;
                let mind = &self.workers[worker].mind;
                // What it has said in a session before it gave the name to somebody else, which waited for that.
                let muddled = self.model.is_early(number) && mind.is_muddled(name);
                let inherited =
                    muddled || mind.is_closed(name, *owner) || mind.is_untold(name) || visits.clone().any(inherits);
                assert!(shared || inherited, "breach: {to:?} hears of a session of client {owner}: {line:?}");
            }
            _ => {}
        }
    }

    fn drop_line(&mut self, line: usize) {
        let reason = self.model.dropped(self.now, line);
        self.dropped.push(line);
        if let (Who::Worker(worker), Some(Reason::UnknownId)) = (self.model.lines[line].from, reason) {
            self.workers[worker].exposed.get_or_insert(self.sent.len());
        }
        if let (Who::Worker(worker), Some(asked)) = (self.model.lines[line].from, self.model.lines[line].answers) {
            self.workers[worker].mind.is_unheard(&self.model.lines[asked]);
        }
        self.note(|world| {
            let (about, why) = (world.model.lines[line].about(), reason.map_or("blank", Reason::name));
            format!("  line {line}, {about}, is dropped: {why}")
        });
    }

    fn start_worker(&mut self, key: WorkerKey, name: WorkerName, generation: u32) {
        let pool = name.pool;
        self.model.started(self.now, pool);
        let random = &mut self.random;
        let end = End { pace: Self::any_pace(random), ..End::default() };
        let mind = Mind::new(random, self.settings.pools[pool].request_timeout.is_some());
        self.note(|world| format!("worker {} is started in pool {pool}: {mind:?}", world.workers.len()));
        self.workers.push(SimWorker {
            key,
            name,
            generation,
            end,
            process: Process::Starting,
            mind,
            waiting: Vec::new(),
            todo: VecDeque::new(),
            told: Vec::new(),
            next_id: 0,
            exposed: None,
            waited: Duration::ZERO,
            probed: false,
            stdin_closed: false,
            terminated: false,
            killed: false,
            ignores_term: self.random.one_in(5),
            holds_pipe: self.random.one_in(5),
            exited_at: Moment(0),
            released: false,
        });
    }

    fn release(&mut self, key: WorkerKey) {
        let at = self.worker(key);
        let worker = &mut self.workers[at];
        worker.released = true;
        let quiet = self.now.since(worker.exited_at.max(worker.end.resumed_at));
        let lines_left = !worker.end.deaf && !worker.end.lines.is_empty();
        assert!(worker.process == Process::Exited, "worker {at} is released, and lives");
        assert!(!lines_left || quiet >= GRACE, "lines of worker {at} were lost");
        self.model.released(self.now, at);
    }

    fn spawned(&mut self, at: usize, runs: bool) {
        let short = self.random.one_in(3);
        let worker = &mut self.workers[at];
        let (key, who) = (worker.key, Some(Who::Worker(at)));
        if runs {
            worker.process = Process::Running;
            self.model.runs(at);
            self.handle("runs", who, Input::Spawned { worker: key, pid: 1000 + at as u32 });
        } else {
            worker.process = Process::Exited;
            worker.end.deaf = true;
            self.model.stops(at);
            self.handle(
                "cannot be started",
                who,
                Input::SpawnFailed { worker: key, why: "no such file".into(), short },
            );
        }
    }

    fn exit(&mut self, at: usize, exit: Exit) {
        let half = self.random.one_in(3);
        let now = self.now;
        let worker = &mut self.workers[at];
        worker.process = Process::Exited;
        worker.exited_at = now;
        if half
            && !worker.end.ended
            && worker.end.lines.back().is_none_or(|(line, _)| self.model.lines[*line].kind != Kind::TooLong)
        {
            worker.end.wire.extend(b"{\"half\":\"a li");
        }
        worker.end.ended |= !worker.holds_pipe;
        worker.end.broken = true;
        worker.end.half_read.clear();
        let key = worker.key;
        self.model.stops(at);
        self.handle("exits", Some(Who::Worker(at)), Input::Exited { worker: key, exit });
    }

    /// Sends up to `bytes` bytes that are queued for a peer.
    fn leave(&mut self, who: Who, bytes: usize) {
        let now = self.now;
        let reachable = match who {
            Who::Client(client) => {
                let client = &self.clients[client];
                !client.closed && client.closing != Some(Close::Now)
            }
            Who::Worker(worker) => {
                let worker = &self.workers[worker];
                worker.process == Process::Running && !worker.released
            }
        };
        let end = self.end_mut(who);
        let bytes = bytes.min(end.queue.len());
        if !reachable || end.broken || bytes == 0 {
            return;
        }
        let sent: Vec<u8> = end.queue.drain(..bytes).collect();
        end.half_read.extend(sent);
        self.model.left(now, who, bytes);
        let peer = self.peer(who);
        self.handle(format_args!("takes {bytes} bytes"), Some(who), Input::Sent { peer, bytes });
        // A worker reads its pipe when it likes.
        if matches!(who, Who::Client(_)) || self.healing || self.random.one_in(2) {
            self.read_lines(who);
        }
    }

    /// A peer reads all lines that have reached it.
    fn read_lines(&mut self, who: Who) {
        while let Some(at) = memchr::memchr(b'\n', &self.end(who).half_read) {
            let text: Vec<u8> = self.end_mut(who).half_read.drain(..=at).collect();
            self.read_line(who, &text);
        }
    }

    /// A peer has read a whole line.
    fn read_line(&mut self, who: Who, text: &[u8]) {
        let value = value_of(text);
        let number = number_of(text);
        let ids = number.map(|number| {
            let ids = self.model.lines[number].ids_of(text);
            ids.expect("a line arrives as it was written")
        });
        // The token as it was written, since the answer repeats it.
        let token = ids.as_ref().map_or_else(|| own_id_of(text), |ids| ids.id.clone());
        let request = value.get("method").is_some() && token.is_some();
        match who {
            Who::Client(client) => {
                let client = &mut self.clients[client];
                client.sessions.extend(value["result"]["sessionId"].as_str().map(str::to_owned));
                if let (true, Some(token), Some(number)) = (request, &token, number) {
                    client.todo.push_back((token.clone(), number));
                    let progress = ids.as_ref().and_then(|ids| ids.token.clone());
                    client.telling.extend(progress.map(|progress| (progress, number)));
                }
            }
            Who::Worker(worker) => self.worker_reads(worker, number, ids.unwrap_or_default()),
        }
        let waiting = match who {
            Who::Client(client) => &mut self.clients[client].waiting,
            Who::Worker(worker) => &mut self.workers[worker].waiting,
        };
        if let (false, Some(token)) = (request, token) {
            let alike = |waiting: &str| is_plain(waiting) && meaning(waiting) == meaning(&token);
            // Of several with one id, what the bus refused itself is rather one that it has never passed on.
            let refused = |asked: &usize| number.is_none() && !self.sent.contains_key(asked);
            let at = waiting.iter().position(|(waiting, asked)| *waiting == token && refused(asked));
            let at = at.or_else(|| waiting.iter().position(|(waiting, _)| *waiting == token));
            let at = at.or_else(|| waiting.iter().position(|(waiting, _)| alike(waiting)));
            assert!(at.is_some(), "{who:?} was answered {token}, which it did not ask");
            at.map(|at| waiting.remove(at));
        }
    }

    fn worker_reads(&mut self, worker: usize, number: Option<usize>, ids: Ids) {
        // What the bus says itself is about a session that the worker keeps, or an answer.
        let Some(number) = number else { return };
        let line = self.model.lines[number].clone();
        let (Who::Client(client), false) = (line.from, line.kind == Kind::Response) else { return };
        let (sent, order) = self.sent[&number];
        let shared = self.settings.routing.session_access == SessionAccess::Shared;
        let heard = Heard { client, number, line: &line, ids: &ids, sent, order };
        let clients = &self.clients;
        let at = &mut self.workers[worker];
        at.mind.hears(&heard, shared, |client| clients[client].left);
        if let Some(token) = ids.id {
            let made = if line.creates() { at.mind.makes(worker, client, &mut self.random) } else { None };
            at.todo.push_back(Todo { token, line: number, progress: ids.token, made, again: false });
        }
    }

    fn write(&mut self, who: Who, line: Line) {
        let number = self.model.lines.len();
        let bytes = line.bytes();
        let line = if bytes.len() - 1 > self.longest_line(who) && line.kind != Kind::Malformed {
            Line { kind: Kind::TooLong, ..line }
        } else {
            line
        };
        let end = self.end_mut(who);
        end.lines.push_back((number, bytes.len()));
        end.wire.extend(bytes);
        self.model.lines.push(line);
    }

    fn draft(&mut self, who: Who, draft: Draft) {
        let number = self.model.lines.len();
        let line = Line::new(number, who, draft, &mut self.random);
        if let (Kind::Request, Some(id)) = (line.kind, line.id.clone()) {
            match who {
                Who::Client(client) => self.clients[client].waiting.push((id, number)),
                Who::Worker(worker) => self.workers[worker].waiting.push((id, number)),
            }
        }
        self.write(who, line);
    }

    fn longest_line(&self, who: Who) -> usize {
        match who {
            Who::Client(_) => self.settings.limits.max_input_buffer,
            Who::Worker(_) => self.settings.limits.max_worker_line(),
        }
    }

    fn padding(&mut self) -> usize {
        match self.random.range(0..20) {
            0 => self.random.range(0..self.settings.limits.max_input_buffer),
            1..5 => self.random.range(0..300),
            _ => 0,
        }
    }

    fn client_writes(&mut self, at: usize) {
        let who = Who::Client(at);
        let padding = self.padding();
        let random = &mut self.random;
        let client = &mut self.clients[at];
        if client.end.ended || client.reset {
            return;
        }
        if !client.todo.is_empty() && random.one_in(3) {
            return self.client_answers(at);
        }
        let mut number = random.range(0..client.waiting.len() + 3);
        let mut token = spell_id(number, random);
        while !self.reuses_ids && client.waiting.iter().any(|(id, _)| meaning(id) == meaning(&token)) {
            number += 1;
            token = spell_id(number, random);
        }
        let pool = match random.range(0..20) {
            0 | 1 => Some(random.pick(&self.settings.pools).id.clone()),
            2 if random.one_in(4) => Some("nowhere".into()),
            _ => None,
        };
        let mut draft = Draft { id: Some(token), pool, padding, ..Draft::default() };
        let what = self.random.range(0..24);
        if !matches!(what, 0..3) && self.random.one_in(2) {
            self.name_sessions(at, &mut draft);
        }
        let named = draft.top.is_some() || draft.inner.is_some();
        let random = &mut self.random;
        match what {
            0..3 => draft.method = "session/new",
            3..5 if named => draft.method = *random.pick(&["session/close", "session/delete"]),
            5..8 => (draft.method, draft.id) = ("session/update", None),
            8..12 => self.name_requests(at, number, &mut draft),
            12 if random.one_in(10) => {
                draft.method = "long/id";
                draft.id = Some(format!("\"{}\"", "i".repeat(129)));
            }
            13 => return self.write(who, Line::raw(who, Kind::Blank, " \t\r".into())),
            14 if random.one_in(4) => {
                // An answer that nobody waits for.
                draft = Draft { id: draft.id, result: true, ..Draft::default() };
            }
            15 | 16 if named => draft.method = *random.pick(&["session/load", "session/resume", "session/fork"]),
            17 => draft.method = "session/list",
            18 | 19 if named && self.tokens > 0 => draft.method = *random.pick(&["session/load", "session/resume"]),
            20 if !self.clients[at].telling.is_empty() => {
                let (progress, line) = random.pick(&self.clients[at].telling).clone();
                return self.tells(who, Draft { progress: Some(progress), padding, ..Draft::default() }, line);
            }
            21 | 22 => draft.method = "subscriptions/listen",
            _ => draft.method = "session/prompt",
        }
        if !draft.method.is_empty() && draft.id.is_some() {
            draft.token = any_token(&mut self.random, draft.id.as_deref());
        }
        if draft.id.is_some() && self.random.one_in(2) {
            let names = draft.top.iter().chain(&draft.inner).cloned();
            self.clients[at].sessions.extend(names.filter(|name| !name.is_empty()));
        }
        self.draft(who, draft);
    }

    /// Something is told for line `line`, if that is one.
    fn tells(&mut self, who: Who, mut draft: Draft, line: usize) {
        let methods = ["notifications/subscriptions/acknowledged", "notifications/resources/updated"];
        draft.method = if draft.progress.is_some() { "notifications/progress" } else { *self.random.pick(&methods) };
        draft.told_for = Some(line).filter(|line| *line < self.model.lines.len());
        self.draft(who, draft);
    }

    /// A name that a client may try: one of its own, one that it can guess, or one that it has seen elsewhere.
    fn any_name(&mut self, at: usize) -> String {
        let random = &mut self.random;
        let other = random.range(0..self.clients.len());
        // Where it matters whose a session is, all ask for the same few.
        if self.tokens > 0 && random.one_in(2) {
            return format!("s{}", random.range(0..2));
        }
        match random.range(0..20) {
            0 | 1 => random.range(0..4).to_string(),
            2 | 3 => format!("s{}", random.range(0..4)),
            4..7 if !self.clients[other].sessions.is_empty() => random.pick(&self.clients[other].sessions).clone(),
            7 if random.one_in(20) => "s".repeat(257),
            _ if self.clients[at].sessions.is_empty() => format!("s{}", random.range(0..4)),
            _ => random.pick(&self.clients[at].sessions).clone(),
        }
    }

    /// Lets a client's message name sessions: at top level, in params, or different ones in both places.
    fn name_sessions(&mut self, at: usize, draft: &mut Draft) {
        let (name, other) = (self.any_name(at), self.any_name(at));
        let junk = *self.random.pick(&["\"\"", "7", "null", "[\"0\"]", "{\"sessionId\":\"0\"}"]);
        match self.random.range(0..12) {
            0..4 => draft.top = Some(name),
            4..8 => draft.inner = Some(name),
            8 => (draft.top, draft.inner) = (Some(name.clone()), Some(name)),
            9 => (draft.top, draft.inner) = (Some(name), Some(other)),
            10 => (draft.junk_on_top, draft.inner) = (Some(junk), Some(name)),
            _ => (draft.top, draft.junk_inside) = (Some(name), Some(junk)),
        }
    }

    /// Makes a message name a request: one of the client's own, or of somebody else.
    fn name_requests(&mut self, at: usize, number: usize, draft: &mut Draft) {
        let random = &mut self.random;
        let of = if random.one_in(3) { random.range(0..self.clients.len()) } else { at };
        let known = self.clients[of].waiting.iter().map(|(id, _)| id.clone());
        let ids: Vec<String> = known.chain([spell_id(number, random)]).collect();
        let (target, other) = (random.pick(&ids).clone(), random.pick(&ids).clone());
        draft.method = *random.pick(&[
            "$/cancel_request",
            "$/cancel_request",
            "$/cancelRequest",
            "notifications/cancelled",
            "request/about",
        ]);
        if !random.one_in(4) {
            draft.id = None;
        }
        match random.range(0..10) {
            _ if !is_cancellation(draft.method) => draft.request_id = Some(target),
            0..5 => draft.request_id = Some(target),
            5..8 => draft.params_id = Some(target),
            8 => (draft.request_id, draft.params_id) = (Some(target.clone()), Some(target)),
            _ => (draft.request_id, draft.params_id) = (Some(target), Some(other)),
        }
    }

    fn client_answers(&mut self, at: usize) {
        let padding = self.padding();
        let client = &mut self.clients[at];
        if client.end.ended || client.reset {
            return;
        }
        let which = self.random.range(0..client.todo.len());
        let Some((token, asked)) = client.todo.remove(if self.healing { 0 } else { which }) else { return };
        // What it tells from now on is told too late.
        client.telling.iter_mut().filter(|(_, line)| *line == asked).for_each(|(_, line)| *line = usize::MAX);
        if !self.healing && self.random.one_in(20) {
            self.clients[at].todo.push_back((token.clone(), 0));
        }
        let result = self.random.one_in(2);
        self.draft(Who::Client(at), Draft { id: Some(token), result, padding, ..Draft::default() });
    }

    fn worker_writes(&mut self, at: usize) {
        let who = Who::Worker(at);
        if !self.can_write(at) {
            return;
        }
        let padding = self.padding();
        self.read_lines(who);
        let busy = if self.workers[at].mind.slow { 12 } else { 2 };
        if !self.workers[at].todo.is_empty() && self.random.one_in(busy) {
            return self.worker_answers(at);
        }
        let (random, worker) = (&mut self.random, &mut self.workers[at]);
        let token = worker.next_id.to_string();
        let mut draft = Draft { id: Some(token), padding, ..Draft::default() };
        let session = match random.range(0..10) {
            0 => None,
            1 => Some("nobody's".to_owned()),
            // One that it has made and not told of yet.
            2 if worker.todo.iter().any(|todo| todo.made.is_some()) => {
                let made = worker.todo.iter().filter_map(|todo| Some((todo.made.clone()?, todo.line)));
                let made: Vec<_> = made.filter(|(name, _)| worker.mind.is_untold(name)).collect();
                let made = (!made.is_empty()).then(|| random.pick(&made).clone());
                made.and_then(|(name, line)| {
                    let Who::Client(client) = self.model.lines[line].from else { return None };
                    draft.meant_for = Some(Meant { name: name.clone(), owner: client, issued: true });
                    Some(name)
                })
            }
            _ => {
                draft.meant_for = worker.mind.any_session(random);
                draft.meant_for.as_ref().map(|meant| meant.name.clone())
            }
        };
        match random.range(0..6) {
            0 | 1 => draft.top = session,
            2 => (draft.junk_on_top, draft.inner) = (Some("\"\""), session),
            _ => draft.inner = session,
        }
        let unnamed = |draft: &mut Draft| (draft.top, draft.inner, draft.meant_for) = (None, None, None);
        match random.range(0..20) {
            0..10 => (draft.method, draft.id) = ("session/update", None),
            10 | 11 if !worker.todo.is_empty() => {
                draft.method = "elicitation/create";
                let of = random.range(0..worker.todo.len());
                draft.request_id = Some(worker.mind.write_id(&worker.todo[of].token));
                if random.one_in(2) {
                    unnamed(&mut draft);
                }
            }
            12 if !worker.waiting.is_empty() => {
                (draft.method, draft.id) = ("$/cancel_request", None);
                draft.request_id = Some(random.pick(&worker.waiting).0.clone());
                if random.one_in(2) {
                    unnamed(&mut draft);
                }
            }
            13 if worker.mind.careless => {
                let (result, number) = (random.one_in(2), random.range(0..50));
                let token = if random.one_in(2) { number.to_string() } else { format!("\"{number}\"") };
                worker.mind.blurts(&token);
                draft = Draft { id: Some(token), result, ..Draft::default() };
            }
            14 => return self.write(who, Line::raw(who, Kind::Blank, String::new())),
            15 if random.one_in(5) => {
                draft.method = "long/id";
                draft.id = Some(format!("\"{}\"", "i".repeat(129)));
            }
            19 if random.one_in(2) => {
                (draft.method, draft.id) = (*random.pick(&LISTS), None);
                unnamed(&mut draft);
            }
            16 | 17 if !worker.todo.is_empty() || !worker.told.is_empty() => return self.worker_tells(at, padding),
            _ => draft.method = "session/request_permission",
        }
        if draft.id.is_some() && !draft.method.is_empty() {
            draft.token = any_token(random, draft.id.as_deref());
            worker.next_id += 1;
        }
        self.draft(who, draft);
    }

    /// A worker tells something for a request: one that it works on, or one that is over or never was.
    fn worker_tells(&mut self, at: usize, padding: usize) {
        let (random, worker) = (&mut self.random, &mut self.workers[at]);
        let mut draft = Draft { padding, ..Draft::default() };
        let mut told_for = usize::MAX;
        if worker.todo.is_empty() || random.one_in(6) {
            let over = (!worker.told.is_empty()).then(|| random.pick(&worker.told).clone());
            draft.progress = over.filter(|_| !random.one_in(3)).or_else(|| Some(random.range(0..50).to_string()));
        } else {
            let todo = &worker.todo[random.range(0..worker.todo.len())];
            // What it has answered without being asked may have been taken for the answer.
            if !todo.again && !worker.mind.has_blurted(&todo.token) {
                told_for = todo.line;
            }
            match &todo.progress {
                Some(token) if !random.one_in(3) => draft.progress = Some(worker.mind.write_id(token)),
                _ => draft.subscription = Some(worker.mind.write_id(&todo.token)),
            }
        }
        self.tells(Who::Worker(at), draft, told_for);
    }

    fn can_write(&self, at: usize) -> bool {
        let worker = &self.workers[at];
        worker.process == Process::Running && !worker.end.ended
    }

    fn worker_answers(&mut self, at: usize) {
        if !self.can_write(at) {
            return;
        }
        let padding = self.padding();
        let (random, worker) = (&mut self.random, &mut self.workers[at]);
        let which = if random.one_in(2) { 0 } else { random.range(0..worker.todo.len()) };
        let Some(todo) = worker.todo.remove(if self.healing { 0 } else { which }) else { return };
        if worker.mind.careless && !self.healing && random.one_in(8) {
            worker.todo.push_back(Todo { again: true, ..todo.clone() });
        }
        let asked = &self.model.lines[todo.line];
        if todo.again {
            worker.mind.blurts(&todo.token);
        }
        let result = !random.one_in(5) && (!asked.loads() || worker.mind.can_load(todo.line, asked));
        if let (false, Some(name)) = (result, &todo.made) {
            worker.mind.unmakes(name);
        }
        let mut result_session = todo.made.filter(|_| result);
        if result && worker.mind.careless && random.one_in(4) {
            let name = random.range(0..3).to_string();
            if let Some(made) = &result_session {
                worker.mind.unmakes(made);
            }
            worker.mind.muddles(name.clone());
            result_session = Some(name);
        } else if let (None, Some(name), true) = (&result_session, &asked.inner, result && asked.loads())
            && random.one_in(3)
        {
            if asked.method == "session/fork" {
                // The original and its copy have one name.
                worker.mind.muddles(name.clone());
            }
            result_session = Some(name.clone());
        }
        worker.mind.answered(todo.line, asked, result, result_session.as_deref());
        worker.told.extend(todo.progress);
        let ends = result && (asked.method == "subscriptions/listen" || random.one_in(20));
        let draft = Draft {
            id: Some(worker.mind.write_id(&todo.token)),
            subscription: ends.then(|| worker.mind.write_id(&todo.token)),
            result,
            result_session,
            padding,
            answers: Some(todo.line),
            again: todo.again,
            ..Draft::default()
        };
        self.draft(Who::Worker(at), draft);
    }

    fn write_bad(&mut self, who: Who) {
        let bad = [
            "hello",
            "[]",
            "{\"id\":1,}",
            "{\"id\":true,\"method\":\"x\"}x",
            "{\"id\":1,\"id\":1}",
            "{\"a\":\"\u{1}\"}",
        ];
        let line = if self.random.one_in(3) {
            let more = self.random.range(1..2000);
            let text = format!("{{\"a\":\"{}\"}}", "x".repeat(self.longest_line(who) - 8 + more));
            Line::raw(who, Kind::TooLong, text)
        } else {
            Line::raw(who, Kind::Malformed, (*self.random.pick(&bad)).into())
        };
        self.write(who, line);
    }

    fn act(&mut self) {
        let total: usize = self.weights.iter().map(|(_, weight)| weight).sum();
        let mut at = self.random.range(0..total);
        let mut action = Action::Wait;
        for (candidate, weight) in &self.weights {
            if at < *weight {
                action = *candidate;
                break;
            }
            at -= weight;
        }
        let (client, worker) = (self.any_client(), self.any_worker());
        match (action, client, worker) {
            (Action::Connect, ..) => self.connect(),
            (Action::ClientWrites, Some(client), _) => {
                for _ in 0..self.random.range(1..5) {
                    self.client_writes(client);
                }
            }
            (Action::WorkerWrites, _, Some(worker)) => {
                for _ in 0..self.random.range(1..5) {
                    self.worker_writes(worker);
                }
            }
            (Action::Arrive, ..) => {
                if let Some(who) = self.anybody(client, worker) {
                    let bytes = match self.random.range(0..4) {
                        0 => self.random.range(1..8),
                        1 => self.random.range(1..400),
                        _ => usize::MAX,
                    };
                    self.arrive(who, bytes);
                    if self.random.one_in(2) {
                        self.tell_end(who);
                    }
                }
            }
            (Action::Leave, ..) => {
                if let Some(who) = self.anybody(client, worker) {
                    let pace = self.end(who).pace;
                    let bytes = match pace {
                        Pace::Never => 0,
                        Pace::Slow => self.random.range(1..60),
                        Pace::Fast if self.random.one_in(3) => self.random.range(1..300),
                        Pace::Fast => usize::MAX,
                    };
                    self.leave(who, bytes);
                }
            }
            (Action::Spawn, ..) => {
                if let Some(at) = self.workers.iter().position(|worker| worker.process == Process::Starting) {
                    let runs = !self.random.one_in(8);
                    self.spawned(at, runs);
                }
            }
            (Action::Wait, ..) => {
                let longest = match self.random.range(0..100) {
                    0..3 => 200_000,
                    3..5 => 8000,
                    5..14 => 2000,
                    _ => 100,
                };
                let pause = Duration::from_millis(self.random.range(0..longest) as u64);
                self.pass(self.now.after(pause));
                self.tick_if_due();
            }
            (Action::WaitForDeadline, ..) => {
                self.wait_for_deadline();
            }
            (Action::ChangePace, ..) => {
                if let Some(who) = self.anybody(client, worker) {
                    self.end_mut(who).pace = Self::any_pace(&mut self.random);
                }
            }
            (Action::HalfClose, Some(client), _) => self.clients[client].end.ended = true,
            (Action::Reset, Some(client), _) => self.reset(client),
            (Action::ClientBad, Some(client), _) if !self.clients[client].end.ended => {
                self.write_bad(Who::Client(client))
            }
            (Action::WorkerBad, _, Some(worker)) if self.can_write(worker) => self.write_bad(Who::Worker(worker)),
            (Action::Exit, _, Some(worker)) if self.workers[worker].process == Process::Running => {
                let exit = *self.random.pick(&[Exit::Code(0), Exit::Code(1), Exit::Signal(11)]);
                self.exit(worker, exit);
            }
            (Action::CloseStdout, _, Some(worker)) if self.can_write(worker) => self.workers[worker].end.ended = true,
            (Action::CloseStdin, _, Some(worker)) => self.break_stdin(worker),
            (Action::Crowd, ..) => self.crowd(),
            (Action::Shutdown, ..) => self.shutdown(),
            _ => {}
        }
    }

    /// Another configuration holds from now on, or the operator has workers replaced.
    fn reload(&mut self) {
        self.model.replaces = true;
        let (pool, worker) = (self.random.range(0..self.settings.pools.len()), self.any_worker());
        match (self.random.range(0..5), worker) {
            (0, _) => self.handle("is to be replaced", None, Input::RestartPool(pool)),
            (1, Some(at)) => {
                let worker = self.workers[at].key;
                let input = if self.random.one_in(2) {
                    Input::RestartWorker { worker, at_once: false }
                } else {
                    Input::Grown { worker, mib: 1 }
                };
                self.handle("is to be replaced", Some(Who::Worker(at)), input);
            }
            _ => {
                let next = faults::reload(&mut self.random, &self.first, &self.settings);
                if self.bus.stage() < Stage::Terminating {
                    self.settings = next.clone();
                    self.model.reloaded(&next);
                }
                self.note(|_| format!("{next:#?}"));
                self.step("reload", None, |bus, now| bus.reload(now, &next));
            }
        }
    }

    /// Tells the bus that memory is short, with holders of any size; or that it is not any more.
    fn crowd(&mut self) {
        let most = self.settings.limits.max_memory;
        let clients: Vec<_> = self.clients.iter().filter(|client| !client.closed).map(|client| client.key).collect();
        let goes_on = !self.is_crowded || self.random.one_in(2);
        self.is_crowded = goes_on && !clients.is_empty();
        let random = &mut self.random;
        let (used, held) = if self.is_crowded {
            let sizes = [1 << 10, 100 << 10, most / 4, most];
            let held = clients.into_iter().map(|key| (Peer::Client(key), *random.pick(&sizes))).collect();
            (if random.one_in(4) { random.range(most..2 * most) } else { most - 1 }, held)
        } else {
            (0, Vec::new())
        };
        self.sheds = true;
        self.handle("memory", None, Input::Memory { used, held, waiting: Vec::new() });
        self.sheds = false;
    }

    fn connect(&mut self) {
        if self.accept_paused || self.clients.iter().filter(|client| !client.closed).count() > self.crowd {
            return;
        }
        let listener = self.random.range(0..self.settings.listeners.len());
        if self.settings.listeners[listener].stdio && !self.clients.is_empty() {
            return;
        }
        let source = Source::User(self.random.range(0..4) as u32);
        let is_gone = self.settings.listeners[listener].is_gone;
        let refuses = is_gone || self.bus.stage() >= Stage::Terminating;
        let mut origin = Origin::from(source);
        let name = self.free_name();
        origin.names.token = name.map(Into::into);
        let (key, effects) = self.bus.connect(self.now, listener, &origin);
        assert_eq!(key.is_none(), refuses, "a connection was refused or taken wrongly");
        if let Some(key) = key {
            self.model.connected(listener, source, name);
            let end = End { pace: Self::any_pace(&mut self.random), ..End::default() };
            self.clients.push(SimClient {
                key,
                name,
                end,
                waiting: Vec::new(),
                todo: VecDeque::new(),
                telling: Vec::new(),
                sessions: Vec::new(),
                closing: None,
                left: None,
                left_for: None,
                reset: false,
                flush_told: false,
                closed: false,
            });
        }
        self.note(|_| format!("{} connects", name.unwrap_or("somebody")));
        self.carry_out(effects, &[], None, VecDeque::new(), false);
        self.check();
    }

    /// Whose token a client shows that connects now. Nobody else who is there has the same one: two of one name may take
    /// sessions from each other (`bus::tests::sessions`), but who comes back finds what it has left.
    fn free_name(&mut self) -> Option<&'static str> {
        if self.tokens == 0 || self.random.one_in(4) {
            return None;
        }
        let name = Some(*self.random.pick(&NAMES[..self.tokens]));
        let is_there = self.clients.iter().any(|client| !client.closed && client.name == name);
        name.filter(|_| !is_there)
    }

    fn reset(&mut self, at: usize) {
        let client = &mut self.clients[at];
        if client.closing == Some(Close::Now) || client.closed {
            return;
        }
        client.reset = true;
        client.end.broken = true;
        client.end.deaf = true;
        client.end.wire.clear();
        let peer = Peer::Client(client.key);
        self.handle("breaks", Some(Who::Client(at)), Input::Broken { peer, why: "reset by peer".into() });
    }

    fn break_stdin(&mut self, at: usize) {
        let worker = &mut self.workers[at];
        if worker.process != Process::Running || worker.end.broken {
            return;
        }
        worker.end.broken = true;
        let (worker, bytes) = (worker.key, worker.end.half_read.len());
        let peer = Peer::Worker(worker);
        self.handle("is looked at", Some(Who::Worker(at)), Input::Unread { worker, bytes });
        self.model.stops(at);
        self.handle("closes its stdin", Some(Who::Worker(at)), Input::Broken { peer, why: "broken pipe".into() });
    }

    fn shutdown(&mut self) {
        if self.shutdowns < 2 {
            self.shutdowns += 1;
            let before = self.bus.stage();
            let is_new = self.signalled.is_none_or(|at| self.now.since(at) >= Duration::from_secs(1));
            let again = before > Stage::Running && is_new;
            self.signalled = self.signalled.or(Some(self.now));
            let limits = &self.settings.limits;
            let starts = before == Stage::Running && limits.lame_duck.is_zero();
            self.model.quiescing |= again || starts;
            self.model.refusing |= again || starts && limits.quiesce.is_zero();
            self.handle("shutdown", None, Input::Shutdown);
            if before > Stage::Running && !again {
                assert_eq!(self.bus.stage(), before, "two signals within a second are one");
            }
            if again {
                assert!(self.bus.stage() >= Stage::Killing, "the second signal waits for somebody");
                let spared = |worker: &SimWorker| worker.process == Process::Running && !worker.killed;
                assert!(!self.workers.iter().any(spared), "the second signal kills");
                assert!(self.clients.iter().all(|client| client.closed || client.closing.is_some()));
                let pending = self.model.asked_by_clients();
                assert_eq!(pending, 0, "nobody is told what becomes of {pending} requests");
            }
        }
    }

    /// Lets one thing happen that follows from what happened before; says whether there was any.
    fn react(&mut self) -> bool {
        let mut todo: Vec<Reaction> = Vec::new();
        for (at, worker) in self.workers.iter().enumerate().filter(|(_, worker)| !worker.released) {
            if worker.probed {
                todo.push(Box::new(move |world| {
                    let worker = &mut world.workers[at];
                    worker.probed = false;
                    let input = Input::Unread { worker: worker.key, bytes: worker.end.half_read.len() };
                    world.handle("is looked at", Some(Who::Worker(at)), input);
                }));
            }
            let runs = worker.process == Process::Running;
            if runs && worker.killed {
                todo.push(Box::new(move |world| world.exit(at, Exit::Signal(9))));
            } else if runs && worker.terminated && !worker.ignores_term {
                todo.push(Box::new(move |world| world.exit(at, Exit::Signal(15))));
            } else if runs && worker.stdin_closed && worker.end.queue.is_empty() && !worker.ignores_term {
                todo.push(Box::new(move |world| world.exit(at, Exit::Code(0))));
            }
            if worker.end.ended && !worker.end.end_told && !worker.end.deaf && !worker.end.paused {
                todo.push(Box::new(move |world| {
                    world.arrive(Who::Worker(at), usize::MAX);
                    world.tell_end(Who::Worker(at));
                }));
            }
        }
        for (at, client) in self.clients.iter().enumerate().filter(|(_, client)| !client.closed) {
            match client.closing {
                Some(Close::Now) => todo.push(Box::new(move |world| world.close(at))),
                // The shell shuts its own side down, and then sees the end of the input, again if it had seen it.
                Some(Close::Flush) if client.end.queue.is_empty() && !client.reset && !client.flush_told => {
                    todo.push(Box::new(move |world| {
                        let client = &mut world.clients[at];
                        (client.end.ended, client.end.end_told, client.flush_told) = (true, true, true);
                        let input = Input::Ended { peer: Peer::Client(client.key), partial: 0 };
                        world.handle("has ended after all", Some(Who::Client(at)), input);
                    }));
                }
                _ => {}
            }
            if client.end.ended && !client.end.end_told && !client.end.deaf && !client.end.paused {
                todo.push(Box::new(move |world| {
                    world.arrive(Who::Client(at), usize::MAX);
                    world.tell_end(Who::Client(at));
                }));
            }
        }
        if todo.is_empty() {
            return false;
        }
        let which = self.random.range(0..todo.len());
        todo.swap_remove(which)(self);
        true
    }

    fn close(&mut self, at: usize) {
        self.clients[at].closed = true;
        self.model.gone(at);
        let key = self.clients[at].key;
        self.handle("is closed", Some(Who::Client(at)), Input::Closed(key));
    }

    /// Everybody reads and answers until nobody waits for anything.
    fn heal(&mut self) {
        self.note(|_| "everybody heals".into());
        self.healing = true;
        if self.is_crowded {
            self.is_crowded = false;
            self.handle("memory", None, Input::Memory { used: 0, held: Vec::new(), waiting: Vec::new() });
        }
        for _ in 0..2000 {
            self.progress();
            let empty = self.model.seats_empty() as u64;
            let manned = self.model.refusing || empty <= self.bus.count(Reason::PoolDegraded) && self.all_are_renewed();
            if self.done > 0 || manned && self.model.is_idle() && self.nobody_is_paused() {
                return;
            }
            if !self.wait_for_deadline() {
                panic!("nothing will ever happen again, and there is left:\n{}", self.model.outstanding());
            }
        }
        panic!("it does not come to rest; there is left:\n{}", self.model.outstanding());
    }

    /// Whether no worker runs a command that is not the newest one of its pool, but for those that leave, and pools
    /// whose newest command cannot live.
    fn all_are_renewed(&self) -> bool {
        let is_renewed = |worker: &SimWorker| {
            let pool = &self.settings.pools[worker.name.pool];
            let stays = self.bus.role(worker.key) == Some(Role::Serves) && self.bus.owner(worker.key).is_none();
            !stays
                || pool.is_gone
                || worker.generation == pool.generation
                || self.bus.roll_failure(worker.name.pool).is_some()
        };
        self.workers.iter().filter(|worker| !worker.released).all(is_renewed)
    }

    fn nobody_is_paused(&self) -> bool {
        self.everybody().into_iter().all(|who| !self.end(who).paused || self.end(who).deaf)
    }

    /// Lets everybody do what can be done without waiting.
    fn progress(&mut self) {
        loop {
            let before = (self.noted, self.model.lines.len());
            while self.react() {}
            for at in 0..self.workers.len() {
                if self.workers[at].process == Process::Starting && !self.workers[at].released {
                    self.spawned(at, true);
                }
                self.read_lines(Who::Worker(at));
                while !self.workers[at].todo.is_empty() && self.can_write(at) {
                    self.worker_answers(at);
                }
            }
            for at in 0..self.clients.len() {
                let client = &self.clients[at];
                if !client.closed && !client.end.ended && !client.reset {
                    while !self.clients[at].todo.is_empty() {
                        self.client_answers(at);
                    }
                }
            }
            for who in self.everybody() {
                if !self.end(who).wire.is_empty() || !self.end(who).kept.is_empty() {
                    self.arrive(who, usize::MAX);
                }
                if !self.end(who).queue.is_empty() {
                    self.leave(who, usize::MAX);
                }
            }
            if before == (self.noted, self.model.lines.len()) || self.done > 0 {
                return;
            }
        }
    }

    /// All clients leave, the bus shuts down, and nothing may be left.
    fn finish(&mut self) {
        self.note(|_| "everybody leaves".into());
        for at in 0..self.clients.len() {
            if self.random.one_in(3) {
                self.reset(at);
            }
            self.clients[at].end.ended = true;
        }
        for _ in 0..2000 {
            if self.done > 0 || self.clients.iter().all(|client| client.closed) {
                break;
            }
            self.progress();
            self.wait_for_deadline();
        }
        if self.done == 0 {
            assert!(self.clients.iter().all(|client| client.closed), "clients never go");
            assert_eq!((self.bus.stats().clients, self.bus.stats().sessions), (0, 0));
            let leaves = |at: &usize| self.bus.role(self.workers[*at].key) == Some(Role::Leaves);
            let leaving: Vec<usize> = (0..self.workers.len()).filter(leaves).collect();
            let have_ended = |world: &Self| leaving.iter().all(|at| world.workers[*at].released);
            for _ in 0..100 {
                if have_ended(self) {
                    break;
                }
                self.progress();
                self.wait_for_deadline();
            }
            assert!(have_ended(self), "a worker that nobody uses any more does not end");
            self.shutdowns = 0;
            self.shutdown();
        }
        for _ in 0..2000 {
            if self.done > 0 {
                break;
            }
            self.progress();
            self.wait_for_deadline();
        }
        assert_eq!(self.done, 1, "the drain never ends");
        assert_eq!(self.bus.stage(), Stage::Done);
        assert_eq!(self.bus.stats().clients, 0);
        // A killed worker that is not reaped in time, or whose pipe is held, does not hold up the end.
        for at in 0..self.workers.len() {
            let worker = &self.workers[at];
            if !worker.released {
                let left_alone = worker.process == Process::Running && !worker.killed;
                assert!(!left_alone, "worker {at} was left alone");
                self.model.settled(at);
            }
        }
        self.model.check_end();
    }

    fn any_pace(random: &mut Random) -> Pace {
        *random.pick(&[Pace::Fast, Pace::Fast, Pace::Fast, Pace::Slow, Pace::Never])
    }

    fn any_client(&mut self) -> Option<usize> {
        let live: Vec<usize> = (0..self.clients.len()).filter(|at| !self.clients[*at].closed).collect();
        (!live.is_empty()).then(|| *self.random.pick(&live))
    }

    fn any_worker(&mut self) -> Option<usize> {
        let live: Vec<usize> = (0..self.workers.len()).filter(|at| !self.workers[*at].released).collect();
        (!live.is_empty()).then(|| *self.random.pick(&live))
    }

    fn anybody(&mut self, client: Option<usize>, worker: Option<usize>) -> Option<Who> {
        let (client, worker) = (client.map(Who::Client), worker.map(Who::Worker));
        if self.random.one_in(2) { client.or(worker) } else { worker.or(client) }
    }

    fn everybody(&self) -> Vec<Who> {
        let clients = (0..self.clients.len()).filter(|at| !self.clients[*at].closed).map(Who::Client);
        let workers = (0..self.workers.len()).filter(|at| !self.workers[*at].released).map(Who::Worker);
        clients.chain(workers).collect()
    }

    fn end(&self, who: Who) -> &End {
        match who {
            Who::Client(at) => &self.clients[at].end,
            Who::Worker(at) => &self.workers[at].end,
        }
    }

    fn end_mut(&mut self, who: Who) -> &mut End {
        match who {
            Who::Client(at) => &mut self.clients[at].end,
            Who::Worker(at) => &mut self.workers[at].end,
        }
    }

    fn peer(&self, who: Who) -> Peer {
        match who {
            Who::Client(at) => Peer::Client(self.clients[at].key),
            Who::Worker(at) => Peer::Worker(self.workers[at].key),
        }
    }

    fn client(&self, key: ClientKey) -> usize {
        let found = self.clients.iter().position(|client| client.key == key && !client.closed);
        found.expect("an effect is about a client that is there")
    }

    fn worker(&self, key: WorkerKey) -> usize {
        let found = self.workers.iter().position(|worker| worker.key == key && !worker.released);
        found.expect("an effect is about a worker that is there")
    }

    fn who(&self, peer: Peer) -> Who {
        match peer {
            Peer::Client(key) => Who::Client(self.client(key)),
            Peer::Worker(key) => Who::Worker(self.worker(key)),
        }
    }
}

/// What the progress of a request is to be told under, if it is: mostly its id, or a number that others count up to as well.
fn any_token(random: &mut Random, id: Option<&str>) -> Option<String> {
    match random.range(0..8) {
        0 | 1 => id.map(str::to_owned),
        2 => {
            let number = random.range(0..4);
            Some(spell_id(number, random))
        }
        _ => None,
    }
}
