//! The mock kernel, the clients and the workers of one seed. It carries out the effects of the bus as the shell does,
//! tells the model what happens, and at the end heals: everybody reads and answers, and nothing may be left over.

use std::collections::VecDeque;
use std::time::Duration;

use super::Random;
use super::faults::{self, Action};
use super::line::{Draft, Kind, Line, Who, meaning, number_of, spell_id};
use super::model::Model;
use crate::bus::Bus;
use crate::bus::drain::Stage;
use crate::bus::port::{ClientKey, Close, Effect, Exit, Input, Moment, Next, Peer, Signal, Source, WorkerKey};
use crate::bus::report::Reason;
use crate::bus::scan::{PAD, Window};
use crate::bus::settings::{IdCollision, Settings};

/// How long the stdout of a worker that has exited is read at least.
const GRACE: Duration = Duration::from_secs(1);
/// Things that a failing seed shows.
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
    /// The peer writes no more.
    ended: bool,
    /// The bus was told so.
    end_told: bool,
    /// Queued by the bus, not sent yet.
    queue: VecDeque<u8>,
    /// The tail of what was queued: half a line.
    half_queued: Vec<u8>,
    /// The tail of what was sent: half a line.
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
    end: End,
    /// Ids of requests without an answer, and their lines.
    waiting: Vec<(String, usize)>,
    /// Tokens of requests it was asked, with their lines.
    todo: VecDeque<(String, usize)>,
    sessions: Vec<String>,
    closing: Option<Close>,
    reset: bool,
    /// The bus was told that all is sent and that the input has ended.
    flush_told: bool,
    closed: bool,
}

struct SimWorker {
    key: WorkerKey,
    end: End,
    process: Process,
    waiting: Vec<(String, usize)>,
    todo: VecDeque<(String, usize)>,
    sessions: Vec<String>,
    next_id: usize,
    next_session: usize,
    stdin_closed: bool,
    terminated: bool,
    killed: bool,
    ignores_term: bool,
    holds_pipe: bool,
    exited_at: Moment,
    released: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    Starting,
    Running,
    Exited,
}

/// Something that follows from what happened before.
type Reaction = Box<dyn FnOnce(&mut World)>;

/// One seed.
pub struct World {
    seed: u64,
    steps: usize,
    random: Random,
    settings: Settings,
    bus: Bus,
    now: Moment,
    clients: Vec<SimClient>,
    workers: Vec<SimWorker>,
    model: Model,
    weights: Vec<(Action, usize)>,
    /// Clients use an id again before it is answered.
    reuses_ids: bool,
    healing: bool,
    stop_accept: bool,
    accept_paused: bool,
    done: usize,
    shutdowns: usize,
    /// How often the bus had closed a client that took nothing, when its effects were last carried out.
    stalls: u64,
    log: VecDeque<String>,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("\nthe last things that happened:");
            self.log.iter().for_each(|line| eprintln!("  {line}"));
            eprintln!("\n{:#?}", self.settings);
            eprintln!(
                "\nto repeat it:\n  STDIO_BUS_SIM_SEED={} STDIO_BUS_SIM_STEPS={} cargo test --lib testing\n",
                self.seed, self.steps
            );
        }
    }
}

impl World {
    /// The world that follows from a seed.
    pub fn new(seed: u64, steps: usize) -> Self {
        let mut random = Random::new(seed);
        let mut settings = faults::settings(&mut random);
        let rejects = settings.routing.id_collision == IdCollision::Reject;
        let reuses_ids = !rejects && random.one_in(6);
        if rejects || reuses_ids {
            // With one worker there is no doubt which of two equal requests the bus means.
            settings.pools.truncate(1);
            settings.listeners.truncate(1);
            let pool = &mut settings.pools[0];
            (pool.instances, pool.max_instances, pool.request_timeout) = (1, 1, None);
        }
        let mut weights = faults::weights(&mut random);
        if random.one_in(3) {
            weights.push((Action::Shutdown, 1));
        }
        Self {
            seed,
            steps,
            bus: Bus::new(settings.clone()),
            now: Moment(random.range(0..1_000_000) as u64),
            clients: Vec::new(),
            workers: Vec::new(),
            model: Model::new(settings.clone()),
            weights,
            reuses_ids,
            healing: false,
            stop_accept: false,
            accept_paused: false,
            done: 0,
            shutdowns: 0,
            stalls: 0,
            log: VecDeque::new(),
            settings,
            random,
        }
    }

    /// Lives through it. Gives how often each reason was counted.
    pub fn run(mut self) -> Vec<u64> {
        self.step("start", None, |bus, now| bus.start(now));
        for _ in 0..self.steps {
            if self.done > 0 {
                break;
            }
            self.now = self.now.after(Duration::from_micros(self.random.range(0..3000) as u64));
            self.tick_if_due();
            if !self.random.one_in(3) || !self.react() {
                self.act();
            }
        }
        self.heal();
        self.finish();
        Reason::ALL.iter().map(|reason| self.bus.count(*reason)).collect()
    }

    fn note(&mut self, text: String) {
        if self.log.len() == LOG {
            self.log.pop_front();
        }
        self.log.push_back(format!("{:>12.6} {text}", self.now.0 as f64 / 1e9));
    }

    /// Calls the bus and carries out what it wants.
    fn step<T>(&mut self, what: &str, about: Option<Who>, call: impl FnOnce(&mut Bus, Moment) -> T) -> T {
        self.note(match about {
            Some(who) => format!("{who:?} {what}"),
            None => what.to_owned(),
        });
        let result = call(&mut self.bus, self.now);
        let effects: Vec<Effect> = std::iter::from_fn(|| self.bus.next_effect()).collect();
        self.carry_out(effects, &[], None, VecDeque::new(), false);
        self.check();
        result
    }

    fn handle(&mut self, what: &str, about: Option<Who>, input: Input) {
        self.step(what, about, |bus, now| bus.handle(now, input));
    }

    fn check(&mut self) {
        self.bus.check_invariants();
        self.model.refusing = self.bus.stage() >= Stage::Terminating;
        self.model.refused = self.model.refusing;
        self.model.check(&self.bus);
        let paused = self.everybody().into_iter().find(|who| self.end(*who).paused && !self.end(*who).deaf);
        // A client that is far ahead lets others go first, and has its turn soon.
        let soon = self.now.after(Duration::from_millis(1));
        let has_turn = matches!(paused, Some(Who::Client(_))) && self.bus.next_deadline().is_some_and(|at| at <= soon);
        let may_wait = paused.is_none() || has_turn || self.model.somebody_is_full();
        assert!(may_wait, "{paused:?} is paused, and nobody's output is full");
    }

    fn tick_if_due(&mut self) {
        if self.bus.next_deadline().is_some_and(|deadline| deadline <= self.now) {
            self.tick();
        }
    }

    fn tick(&mut self) {
        self.note("the time".into());
        self.bus.handle(self.now, Input::Tick);
        let effects: Vec<Effect> = std::iter::from_fn(|| self.bus.next_effect()).collect();
        self.model.refusing |= self.bus.stage() >= Stage::Terminating;
        self.carry_out(effects, &[], None, VecDeque::new(), false);
        self.model.expire(self.now);
        self.model.check_stalls(self.now);
        self.check();
        let next = self.bus.next_deadline();
        assert!(next.is_none_or(|next| next > self.now), "the bus asks for {next:?} again");
    }

    fn wait_for_deadline(&mut self) -> bool {
        let Some(deadline) = self.bus.next_deadline() else { return false };
        self.now = self.now.max(deadline);
        self.tick();
        true
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
                    assert!(end.kept.len() <= self.settings.limits.max_input_buffer, "too much is kept of {who:?}");
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
            self.note(format!("{who:?} present {length} bytes"));
        }
        let peer = self.peer(who);
        let received = self.bus.receive(self.now, peer, window);
        let effects: Vec<Effect> = std::iter::from_fn(|| self.bus.next_effect()).collect();
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
                break;
            }
            consumed -= line_length;
            due.push_back(number);
            self.end_mut(who).lines.pop_front();
        }
        let end = self.end_mut(who);
        if is_bad {
            assert_eq!((received.consumed, received.next), (length, Next::Wait));
            end.deaf = true;
        } else {
            assert_eq!(consumed, 0, "part of a line of {who:?} was consumed");
        }
        end.kept.drain(..received.consumed);
        self.carry_out(effects, window.data(), Some(who), due, is_bad);
        match who {
            Who::Worker(worker) if is_bad => self.model.settled(worker),
            // A client that waits may have got a worker of its own before its first line could be queued for it.
            Who::Client(client) if received.next == Next::Wait => {
                let key = self.clients[client].key;
                let mut waiting = self.clients[client].end.lines.iter().map(|(number, _)| *number);
                let front = waiting.find(|number| self.model.lines[*number].kind != Kind::Blank);
                for at in 0..self.workers.len() {
                    let owned = !self.workers[at].released && self.bus.owner(self.workers[at].key) == Some(key);
                    if let (true, Some(front)) = (owned, front) {
                        self.model.claimed(client, at, front);
                    }
                }
            }
            _ => {}
        }
        self.check();
        received.next
    }

    /// Tells the bus that a peer's input has ended, once it has all of it.
    fn tell_end(&mut self, who: Who) {
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
            Who::Client(client) => self.model.half_closed(client),
            Who::Worker(worker) => self.model.stops(worker),
        }
        let peer = self.peer(who);
        self.note(format!("{who:?} has ended, {partial} bytes left"));
        self.bus.handle(self.now, Input::Ended { peer, partial });
        let effects: Vec<Effect> = std::iter::from_fn(|| self.bus.next_effect()).collect();
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
        let stalls = self.bus.count(Reason::ClientStalled);
        let stalls_before = std::mem::replace(&mut self.stalls, stalls);
        for effect in effects {
            // What ends a peer comes after all lines that were taken of it.
            let ends = match &effect {
                Effect::Close { client, .. } => hearing == Some(Who::Client(self.client(*client))),
                Effect::Pause { peer } => is_bad && hearing == Some(self.who(*peer)),
                // A client's own worker ends with it, and may be told so first.
                Effect::Signal { .. } | Effect::CloseStdin { .. } => matches!(hearing, Some(Who::Client(_))),
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
                Effect::Pause { peer } => {
                    let who = self.who(peer);
                    self.end_mut(who).paused = true;
                    if let (None, Who::Worker(worker)) = (hearing, who) {
                        // Nobody is heard, so it does not wait for somebody: it has stalled, and is heard no more.
                        stalled.push(worker);
                    }
                }
                Effect::Resume { peer } => {
                    let who = self.who(peer);
                    let now = self.now;
                    let end = self.end_mut(who);
                    assert!(end.paused, "{who:?} is resumed, and was not paused");
                    end.paused = false;
                    end.resumed_at = now;
                }
                Effect::Spawn { worker, pool, .. } => self.start_worker(worker, pool),
                Effect::CloseStdin { worker } => {
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
                    self.note(format!("worker {at} is signalled: {signal:?}"));
                }
                Effect::Probe { .. } => {}
                Effect::Release { worker } => self.release(worker),
                Effect::Close { client, how } => {
                    let at = self.client(client);
                    self.note(format!("client {at} is closed: {how:?}"));
                    assert_ne!(self.clients[at].closing, Some(Close::Now), "closed twice");
                    self.clients[at].closing = Some(how);
                    self.clients[at].end.deaf = true;
                    let is_stalled = stalls > stalls_before && self.model.is_full(Who::Client(at));
                    let excuse = self.clients[at].reset || is_stalled || self.model.refusing;
                    self.model.closing(at, excuse);
                }
                Effect::PauseAccept => self.accept_paused = true,
                Effect::ResumeAccept => self.accept_paused = false,
                Effect::StopAccept => {
                    assert!(!self.stop_accept);
                    self.stop_accept = true;
                }
                Effect::Report(report) => {
                    assert!(!report.text.is_empty());
                    let restarts = report.reason == Reason::RestartScheduled && report.suppressed == 0;
                    assert!(!restarts || !self.model.refused, "a restart is scheduled during the shutdown");
                    self.note(format!("  reported: {} {}", report.reason.name(), report.text));
                }
                Effect::Done => {
                    self.note("done".into());
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

    fn queue(&mut self, to: Peer, bytes: &[u8], hearing: Option<Who>, due: &mut VecDeque<usize>) {
        let who = self.who(to);
        match who {
            Who::Client(client) => assert!(self.clients[client].closing.is_none(), "{who:?} is closing"),
            Who::Worker(worker) => assert!(self.model.takes(worker), "{who:?} does not take messages"),
        }
        let now = self.now;
        let end = self.end_mut(who);
        end.queue.extend(bytes);
        end.half_queued.extend_from_slice(bytes);
        while let Some(at) = memchr::memchr(b'\n', &self.end(who).half_queued) {
            let text: Vec<u8> = self.end_mut(who).half_queued.drain(..=at).collect();
            let Some(number) = number_of(&text) else {
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
                let line = due.pop_front();
                let Some(line) = line else { panic!("line {number} came to {who:?} unasked") };
                if line == number {
                    self.note(format!("  line {number} is queued for {who:?}"));
                    break self.model.forwarded(now, number, who, &text);
                }
                self.drop_line(line);
            }
        }
    }

    fn drop_line(&mut self, line: usize) {
        let reason = self.model.dropped(line);
        let kind = self.model.lines[line].kind;
        self.note(format!("  line {line}, a {kind:?}, is dropped: {}", reason.map_or("blank", Reason::name)));
    }

    fn start_worker(&mut self, key: WorkerKey, pool: usize) {
        self.model.started(self.now, pool);
        let random = &mut self.random;
        let end = End { pace: Self::any_pace(random), ..End::default() };
        self.note(format!("worker {} is started in pool {pool}", self.workers.len()));
        self.workers.push(SimWorker {
            key,
            end,
            process: Process::Starting,
            waiting: Vec::new(),
            todo: VecDeque::new(),
            sessions: Vec::new(),
            next_id: 0,
            next_session: 0,
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
        let worker = &mut self.workers[at];
        let (key, who) = (worker.key, Some(Who::Worker(at)));
        if runs {
            worker.process = Process::Running;
            self.handle("runs", who, Input::Spawned { worker: key, pid: 1000 + at as u32 });
        } else {
            worker.process = Process::Exited;
            worker.end.deaf = true;
            self.model.stops(at);
            self.handle(
                "cannot be started",
                who,
                Input::SpawnFailed { worker: key, why: "no such file".into(), short: false },
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
        self.handle(&format!("takes {bytes} bytes"), Some(who), Input::Sent { peer, bytes });
        while let Some(at) = memchr::memchr(b'\n', &self.end(who).half_read) {
            let text: Vec<u8> = self.end_mut(who).half_read.drain(..=at).collect();
            self.read_line(who, &text);
        }
    }

    /// A peer has read a whole line.
    fn read_line(&mut self, who: Who, text: &[u8]) {
        let value: serde_json::Value = serde_json::from_slice(text).expect("the bus writes JSON");
        let id = value.get("id").filter(|id| !id.is_null()).map(|id| id.to_string());
        let request = value.get("method").is_some() && id.is_some();
        let learned = value["result"]["sessionId"].as_str().map(str::to_owned);
        let named = value["params"]["sessionId"].as_str().or(value["sessionId"].as_str()).map(str::to_owned);
        let number = number_of(text);
        // The token as it was written, since the answer repeats it.
        let token = number.and_then(|number| self.model.lines[number].ids_of(text)).and_then(|ids| ids.0);
        let (waiting, todo) = match who {
            Who::Client(client) => {
                let client = &mut self.clients[client];
                client.sessions.extend(learned);
                (&mut client.waiting, &mut client.todo)
            }
            Who::Worker(worker) => {
                let worker = &mut self.workers[worker];
                worker.sessions.extend(named);
                (&mut worker.waiting, &mut worker.todo)
            }
        };
        if request {
            todo.push_back((token.expect("a request has an id"), number.expect("the bus asks nothing itself")));
        } else if let Some(id) = id {
            let id = meaning(&id);
            let at = waiting.iter().position(|(waiting, _)| *waiting == id);
            assert!(at.is_some() || number.is_none_or(|_| false), "{who:?} was answered {id}, which it did not ask");
            at.map(|at| waiting.remove(at));
        }
    }

    fn write(&mut self, who: Who, line: Line) {
        let number = self.model.lines.len();
        let bytes = line.bytes();
        let line = if bytes.len() - 1 > self.settings.limits.max_input_buffer && line.kind != Kind::Malformed {
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
        if let (Kind::Request, Some(id)) = (line.kind, &line.id) {
            let id = meaning(id);
            match who {
                Who::Client(client) => self.clients[client].waiting.push((id, number)),
                Who::Worker(worker) => self.workers[worker].waiting.push((id, number)),
            }
        }
        self.write(who, line);
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
        while !self.reuses_ids && client.waiting.iter().any(|(id, _)| *id == meaning(&token)) {
            number += 1;
            token = spell_id(number, random);
        }
        let session = match random.range(0..10) {
            0 => Some(random.range(0..3).to_string()),
            1 => Some(format!("s{}", random.range(0..4))),
            2..6 if !client.sessions.is_empty() => Some(random.pick(&client.sessions).clone()),
            6 if random.one_in(20) => Some("s".repeat(257)),
            _ => None,
        };
        let pool = match random.range(0..20) {
            0 | 1 => Some(random.pick(&self.settings.pools).id.clone()),
            2 if random.one_in(4) => Some("nowhere".into()),
            _ => None,
        };
        let mut draft =
            Draft { id: Some(token), session, session_on_top: random.one_in(2), pool, padding, ..Draft::default() };
        match random.range(0..20) {
            0..3 => (draft.method, draft.session) = ("session/new", None),
            3..5 if draft.session.is_some() => draft.method = "session/close",
            5..8 => (draft.method, draft.id) = ("session/update", None),
            8..10 => {
                let known = client.waiting.iter().map(|(id, _)| id.clone());
                let ids: Vec<String> = known.chain([spell_id(number, random)]).collect();
                draft.request_id = Some(random.pick(&ids).clone());
                (draft.method, draft.id) = ("$/cancel_request", None);
            }
            10 if random.one_in(10) => {
                draft.method = "long/id";
                draft.id = Some(format!("\"{}\"", "i".repeat(129)));
            }
            11 => return self.write(who, Line::raw(who, Kind::Blank, " \t\r".into())),
            12 if random.one_in(4) => {
                // An answer that nobody waits for.
                draft = Draft { id: draft.id, result: true, ..Draft::default() };
            }
            _ => draft.method = "session/prompt",
        }
        if let Some(name) = draft.session.clone().filter(|_| draft.id.is_some() && self.random.one_in(2)) {
            self.clients[at].sessions.push(name);
        }
        self.draft(who, draft);
    }

    fn client_answers(&mut self, at: usize) {
        let padding = self.padding();
        let client = &mut self.clients[at];
        if client.end.ended || client.reset {
            return;
        }
        let which = self.random.range(0..client.todo.len());
        let Some((token, _)) = client.todo.remove(if self.healing { 0 } else { which }) else { return };
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
        if !self.workers[at].todo.is_empty() && self.random.one_in(2) {
            return self.worker_answers(at);
        }
        let (random, worker) = (&mut self.random, &mut self.workers[at]);
        let token = worker.next_id.to_string();
        let session = match random.range(0..10) {
            0 => None,
            1 => Some("nobody's".to_owned()),
            _ if worker.sessions.is_empty() => None,
            _ => Some(random.pick(&worker.sessions).clone()),
        };
        let mut draft =
            Draft { id: Some(token), session, session_on_top: random.one_in(3), padding, ..Draft::default() };
        match random.range(0..20) {
            0..10 => (draft.method, draft.id) = ("session/update", None),
            10 | 11 if !worker.todo.is_empty() => {
                draft.method = "elicitation/create";
                draft.request_id = Some(random.range(0..worker.todo.len())).map(|of| worker.todo[of].0.clone());
                if random.one_in(2) {
                    draft.session = None;
                }
            }
            12 if !worker.waiting.is_empty() => {
                (draft.method, draft.id) = ("$/cancel_request", None);
                draft.request_id = Some(random.pick(&worker.waiting).0.clone());
                if random.one_in(2) {
                    draft.session = None;
                }
            }
            13 => {
                let result = random.one_in(2);
                draft = Draft { id: Some(spell_id(random.range(0..50), random)), result, ..Draft::default() };
            }
            14 => return self.write(who, Line::raw(who, Kind::Blank, String::new())),
            15 if random.one_in(5) => {
                draft.method = "long/id";
                draft.id = Some(format!("\"{}\"", "i".repeat(129)));
            }
            _ => draft.method = "session/request_permission",
        }
        if draft.id.is_some() && !draft.method.is_empty() {
            worker.next_id += 1;
        }
        self.draft(who, draft);
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
        let Some((token, number)) = worker.todo.remove(if self.healing { 0 } else { which }) else { return };
        if !self.healing && random.one_in(20) {
            worker.todo.push_back((token.clone(), number));
        }
        let result = !random.one_in(5);
        let mut result_session = None;
        if result && (self.model.lines[number].method == "session/new" || random.one_in(15)) {
            let name = if random.one_in(6) { random.range(0..3) } else { worker.next_session };
            worker.next_session += 1;
            worker.sessions.push(name.to_string());
            result_session = Some(name.to_string());
        }
        self.draft(Who::Worker(at), Draft { id: Some(token), result, result_session, padding, ..Draft::default() });
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
            let text = format!("{{\"a\":\"{}\"}}", "x".repeat(self.settings.limits.max_input_buffer - 8 + more));
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
                let longest = if self.random.one_in(10) { 2000 } else { 100 };
                self.now = self.now.after(Duration::from_millis(self.random.range(0..longest) as u64));
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
            (Action::Shutdown, ..) => self.shutdown(),
            _ => {}
        }
    }

    fn connect(&mut self) {
        if self.accept_paused || self.clients.iter().filter(|client| !client.closed).count() > 12 {
            return;
        }
        let listener = self.random.range(0..self.settings.listeners.len());
        if self.settings.listeners[listener].stdio && !self.clients.is_empty() {
            return;
        }
        let key = self.bus.connect(self.now, listener, Source::Inherited);
        assert_eq!(key.is_none(), self.stop_accept, "a connection was refused or taken wrongly");
        if let Some(key) = key {
            self.model.connected(listener);
            let end = End { pace: Self::any_pace(&mut self.random), ..End::default() };
            self.clients.push(SimClient {
                key,
                end,
                waiting: Vec::new(),
                todo: VecDeque::new(),
                sessions: Vec::new(),
                closing: None,
                reset: false,
                flush_told: false,
                closed: false,
            });
        }
        self.step("connect", None, |_, _| ());
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
        let peer = Peer::Worker(worker.key);
        self.model.stops(at);
        self.handle("closes its stdin", Some(Who::Worker(at)), Input::Broken { peer, why: "broken pipe".into() });
    }

    fn shutdown(&mut self) {
        if self.shutdowns < 2 {
            self.shutdowns += 1;
            let again = self.bus.stage() > Stage::Running;
            self.model.refusing |= again || self.settings.limits.quiesce.is_zero();
            self.handle("shutdown", None, Input::Shutdown);
            if again {
                assert!(self.bus.stage() >= Stage::Killing, "the second signal is not immediate");
                let spared = |worker: &SimWorker| worker.process == Process::Running && !worker.killed;
                assert!(!self.workers.iter().any(spared), "the second signal kills");
                assert!(self.clients.iter().all(|client| client.closed || client.closing == Some(Close::Now)));
            }
        }
    }

    /// Lets one thing happen that follows from what happened before; says whether there was any.
    fn react(&mut self) -> bool {
        let mut todo: Vec<Reaction> = Vec::new();
        for (at, worker) in self.workers.iter().enumerate().filter(|(_, worker)| !worker.released) {
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
        self.handle("is closed", Some(Who::Client(at)), Input::Closed { client: key });
    }

    /// Everybody reads and answers until nobody waits for anything.
    fn heal(&mut self) {
        self.note("everybody heals".into());
        self.healing = true;
        for _ in 0..2000 {
            self.progress();
            let empty = self.model.seats_empty() as u64;
            let manned = self.model.refusing || empty <= self.bus.count(Reason::PoolDegraded);
            if self.done > 0 || manned && self.model.is_idle() && self.nobody_is_paused() {
                return;
            }
            if !self.wait_for_deadline() {
                panic!("nothing will ever happen again, and there is left:\n{}", self.model.outstanding());
            }
        }
        panic!("it does not come to rest; there is left:\n{}", self.model.outstanding());
    }

    fn nobody_is_paused(&self) -> bool {
        self.everybody().into_iter().all(|who| !self.end(who).paused || self.end(who).deaf)
    }

    /// Lets everybody do what can be done without waiting.
    fn progress(&mut self) {
        loop {
            let before = (self.log.back().cloned(), self.model.lines.len());
            while self.react() {}
            for at in 0..self.workers.len() {
                if self.workers[at].process == Process::Starting && !self.workers[at].released {
                    self.spawned(at, true);
                }
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
            if before == (self.log.back().cloned(), self.model.lines.len()) || self.done > 0 {
                return;
            }
        }
    }

    /// All clients leave, the bus shuts down, and nothing may be left.
    fn finish(&mut self) {
        self.note("everybody leaves".into());
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
