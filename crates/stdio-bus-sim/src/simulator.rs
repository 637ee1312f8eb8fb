//! The mock kernel, the clients and the workers of one seed. It carries out the effects of the bus as the shell does,
//! tells the model what happens, and at the end heals: everybody reads and answers, and nothing may be left over. What
//! happens follows from a seed, or from bytes that choose it.

mod actions;
mod clients;
mod effects;
mod end;
mod input;
mod queues;
mod time;
mod wires;
mod workers;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::time::Duration;

use super::faults::Action;
use super::line::Who;
use super::model::Model;
use super::peers::Mind;
use super::trace::{Hashes, Trace};
use super::twins::Twins;
use super::{Random, faults};
use crate::bus::port::{ClientKey, Close, Effect, Input, Moment, Peer, WorkerKey};
use crate::bus::report::{Reason, WorkerName};
use crate::bus::settings::{Assignment, Settings};
use crate::bus::shutdown::Stage;

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
                share_names_alone(&mut settings);
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

/// Each client has a worker of its own, and what they share is names.
fn share_names_alone(settings: &mut Settings) {
    settings.pools.truncate(1);
    settings.listeners.truncate(1);
    (settings.listeners[0].pools, settings.listeners[0].stdio) = (None, false);
    let pool = &mut settings.pools[0];
    (pool.instances, pool.max_instances, pool.assignment) = (4, 8, Assignment::Dedicated);
    pool.deny_methods.clear();
}
