//! The mock kernel, the clients and the workers of one seed. It carries out the effects of the bus as the shell does,
//! tells the model what happens, and at the end heals: everybody reads and answers, and nothing may be left over. What
//! happens follows from a seed, or from bytes that choose it.

mod actions;
mod clients;
mod drain;
mod effects;
mod end;
mod input;
mod journal;
mod passage;
mod process;
mod queues;
mod scenario;
mod time;
mod wires;
mod workers;

use std::collections::VecDeque;
use std::fmt::Display;
use std::time::Duration;

use super::Random;
use super::line::Who;
use super::model::Model;
use super::peers::Mind;
use super::trace::Hashes;
use super::twins::Twins;
use crate::bus::port::{ClientKey, Close, Effect, Input, Moment, Peer, WorkerKey};
use crate::bus::report::{Reason, WorkerName};
use crate::bus::settings::Settings;
use drain::Drain;
use journal::Journal;
use passage::Passage;
use process::Process;
use scenario::Scenario;

/// In one step of so many the bus hears that it did not run.
const GAPS: usize = 97;

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
    /// It is held up by one that too much is queued for, or was when that began.
    has_moment: bool,
    /// The bus wants to know how much it has not read.
    probed: bool,
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

/// What a call of the bus was about, while its effects are carried out.
struct Call {
    /// Who is heard.
    hearing: Option<Who>,
    /// Lines that were taken of it and are still to be queued or dropped.
    due: VecDeque<usize>,
    /// It has sent what is no line.
    is_bad: bool,
    /// Workers that have stalled.
    stalled: Vec<usize>,
    /// Workers that are released, and by which effect.
    released: Vec<(usize, usize)>,
    /// The bus has closed a client that took nothing, or too little.
    has_stalled: bool,
}

/// Something that follows from what happened before.
type Reaction = Box<dyn FnOnce(&mut World)>;

/// One seed, or what some bytes choose.
pub struct World {
    scenario: Scenario,
    random: Random,
    /// As they are now.
    settings: Settings,
    bus: Twins,
    now: Moment,
    clients: Vec<SimClient>,
    workers: Vec<SimWorker>,
    model: Model,
    healing: bool,
    /// Memory is short.
    is_crowded: bool,
    accept_paused: bool,
    drain: Drain,
    passage: Passage,
    /// How often the bus had counted each reason when that was last asked for.
    counts: Vec<u64>,
    journal: Journal,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            if !self.journal.is_read() {
                return;
            }
            eprintln!("\nthe last things that happened:");
            self.journal.lines().for_each(|line| eprintln!("  {line}"));
            eprintln!("\n{:#?}", self.settings);
            if let Some(command) = self.scenario.command() {
                eprintln!("\nto repeat it:\n  {command}\n");
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
        self.journal.open();
        self
    }

    /// The world that these bytes choose: its settings, then what happens, up to their end or for so many steps.
    pub fn chosen(bytes: &[u8], steps: usize) -> Self {
        Self::of(None, Random::chosen(bytes), steps)
    }

    fn of(seed: Option<u64>, mut random: Random, steps: usize) -> Self {
        let scenario = Scenario::new(seed, &mut random, steps);
        let settings = scenario.settings().clone();
        let bus = Twins::new(settings.clone());
        Self {
            bus: if scenario.records_requests() { bus.record_requests() } else { bus },
            now: scenario.start(),
            clients: Vec::new(),
            workers: Vec::new(),
            model: Model::new(settings.clone()),
            healing: false,
            is_crowded: false,
            accept_paused: false,
            drain: Drain::default(),
            passage: Passage::default(),
            counts: vec![0; Reason::ALL.len()],
            journal: Journal::new(),
            scenario,
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
        self.journal.sum_up();
        self.live();
        self.journal.take()
    }

    /// Lives through it. Gives how many lines went the fast path.
    #[cfg(test)]
    pub(super) fn fast_lines(mut self) -> u64 {
        self.live();
        self.bus.fast_lines()
    }

    fn live(&mut self) {
        self.step("start", None, Twins::start);
        let steps = self.scenario.steps();
        for step in 0..steps {
            self.draw_anew(step);
            if self.drain.has_ended() || self.scenario.is_chosen() && self.random.left() == 0 {
                break;
            }
            let pause = Duration::from_micros(self.random.range(0..3000) as u64);
            self.pass(self.now.after(pause));
            // That changes nothing but what is told, and a trace is of what depends on others.
            if (step + 1).is_multiple_of(GAPS) && !self.journal.is_summed_up() {
                let gaps = [pause, Duration::ZERO, pause];
                let (held_up, suspended) = (gaps[step / GAPS % 3], gaps[(step / GAPS + 1) % 3]);
                self.handle("it did not run", None, Input::Gap { held_up, suspended });
            }
            self.tick_if_due();
            // A trace has none, so that it is of the same things as ever.
            if !self.journal.is_summed_up() && self.scenario.reloads_now(&mut self.random) {
                self.reload();
            }
            if !self.random.one_in(3) || !self.react() {
                self.act();
            }
        }
        self.draw_anew(steps);
        self.heal();
        self.draw_anew(steps + 1);
        self.finish();
    }

    fn draw_anew(&mut self, step: usize) {
        if let Some(random) = self.scenario.random_of(step) {
            self.random = random;
        }
    }

    /// How often the bus has counted a reason since this was asked the last time.
    fn more(&mut self, reason: Reason) -> u64 {
        let count = self.bus.count(reason);
        count - std::mem::replace(&mut self.counts[reason as usize], count)
    }

    fn note(&mut self, text: impl FnOnce(&Self) -> String) {
        self.journal.counts();
        self.mention(text);
    }

    /// Writes down what may have changed nothing.
    fn mention(&mut self, text: impl FnOnce(&Self) -> String) {
        if self.journal.is_read() {
            let text = text(self);
            self.journal.write(self.now, &text);
        }
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
        client_of(&self.clients, key)
    }

    fn worker(&self, key: WorkerKey) -> usize {
        worker_of(&self.workers, key)
    }

    fn who(&self, peer: Peer) -> Who {
        who(&self.clients, &self.workers, peer)
    }
}

fn client_of(clients: &[SimClient], key: ClientKey) -> usize {
    let found = clients.iter().position(|client| client.key == key && !client.closed);
    found.expect("an effect is about a client that is there")
}

fn worker_of(workers: &[SimWorker], key: WorkerKey) -> usize {
    let found = workers.iter().position(|worker| worker.key == key && !worker.released);
    found.expect("an effect is about a worker that is there")
}

fn who(clients: &[SimClient], workers: &[SimWorker], peer: Peer) -> Who {
    match peer {
        Peer::Client(key) => Who::Client(client_of(clients, key)),
        Peer::Worker(key) => Who::Worker(worker_of(workers, key)),
    }
}
