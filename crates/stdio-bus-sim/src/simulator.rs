//! The mock kernel, the clients and the workers of one seed. It carries out the effects of the bus as the shell does,
//! reports events to the model, and at the end heals: all peers read and answer, and nothing may be left over. A seed,
//! or bytes, determine what happens.

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

use super::line::Party;
use super::model::Model;
use super::peers::WorkerView;
use super::trace::Hashes;
use super::twins::Twins;
use super::{Draws, Random};
use crate::bus::port::{ClientKey, Close, Effect, Input, Moment, Peer, WorkerKey};
use crate::bus::report::{Reason, WorkerName};
use crate::bus::settings::Settings;
use drain::Drain;
use journal::Journal;
use passage::Passage;
use process::Process;
use scenario::Scenario;

/// In one step of this many the bus learns that it did not run.
const GAPS: usize = 97;

/// The bytes between the bus and one peer.
#[derive(Default)]
struct End {
    /// Written by the peer, not read yet.
    wire: VecDeque<u8>,
    /// Read, not consumed yet.
    kept: Vec<u8>,
    /// The lines at the start of `kept` followed by `wire`: number and length. Half a line may follow.
    lines: VecDeque<(usize, usize)>,
    paused: bool,
    resumed_at: Moment,
    /// Its bytes are not presented any more.
    ignored: bool,
    /// The rest of its first line is skipped.
    skips: bool,
    /// The peer will write no more.
    ended: bool,
    /// The bus was given the end of its input.
    end_told: bool,
    /// Queued by the bus, not sent yet.
    queue: VecDeque<u8>,
    /// The tail of the queue: half a line.
    half_queued: Vec<u8>,
    /// What was sent and not read: half a line, or the content of a worker's pipe.
    half_read: Vec<u8>,
    /// Writes to the peer fail.
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
    /// The owner of the token it has shown.
    name: Option<&'static str>,
    end: End,
    /// Tokens of unanswered requests, and their lines.
    waiting: Vec<(String, usize)>,
    /// Tokens of requests that it received, with their lines.
    todo: VecDeque<(String, usize)>,
    /// Progress tokens that it may use, with the lines that they came in.
    reporting: Vec<(String, usize)>,
    sessions: Vec<String>,
    closing: Option<Close>,
    /// When it was notified that it is closed, or was closed.
    left: Option<Moment>,
    /// The reason.
    left_for: Option<Reason>,
    reset: bool,
    /// The bus was notified that everything was sent and the input has ended.
    flush_told: bool,
    closed: bool,
}

struct SimWorker {
    key: WorkerKey,
    name: WorkerName,
    /// The generation of the command that it runs.
    generation: u32,
    end: End,
    process: Process,
    view: WorkerView,
    waiting: Vec<(String, usize)>,
    todo: VecDeque<Todo>,
    /// Requests that it has answered, and may speak of late.
    over: Vec<Todo>,
    next_id: usize,
    /// How long slow readers held it up while others used it, less what it has regained.
    waited: Duration,
    /// A client with too much queued output holds it up, or did when that began.
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
    /// Its progress token.
    progress: Option<String>,
    /// The session that it has created for it.
    made: Option<String>,
    /// It was already answered once.
    again: bool,
}

/// One call of the bus, while its effects are carried out.
struct Call {
    /// The peer whose input is handled.
    hearing: Option<Party>,
    /// Lines taken from it that are still to be queued or dropped.
    due: VecDeque<usize>,
    /// It has sent something that is not a line.
    is_bad: bool,
    /// Workers that have stalled.
    stalled: Vec<usize>,
    /// Workers that are released, and by which effect.
    released: Vec<(usize, usize)>,
    /// The bus has closed a client that read nothing, or too little.
    has_stalled: bool,
}

/// A consequence of an earlier event.
type Reaction = Box<dyn FnOnce(&mut World)>;

/// The world of one seed, or of choices in bytes.
pub struct World {
    scenario: Scenario,
    random: Random,
    /// The current settings.
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
    /// The bus's counters at the last query.
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
    /// The world of a seed.
    pub fn new(seed: u64, steps: usize) -> Self {
        Self::of(Some(seed), Random::new(seed), steps)
    }

    /// Makes it print its events if it fails.
    pub fn narrated(mut self) -> Self {
        self.journal.open();
        self
    }

    /// The world chosen by these bytes: its settings, then its events, up to the end of the bytes or for `steps` steps.
    pub fn chosen(bytes: &[u8], steps: usize) -> Self {
        Self::of(None, Random::chosen(bytes), steps)
    }

    fn of(seed: Option<u64>, mut random: Random, steps: usize) -> Self {
        let scenario = Scenario::new(seed, &mut Draws::new(&mut random), steps);
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

    /// Runs it. Returns how often each reason was counted.
    pub fn run(mut self) -> Vec<u64> {
        self.live();
        Reason::ALL.iter().map(|reason| self.bus.view().count(*reason)).collect()
    }

    /// Runs it with one bus alone. Returns its hashes, and all its events if they are to be printed.
    pub fn traced(mut self) -> (Hashes, Vec<String>) {
        self.bus.alone();
        self.journal.sum_up();
        self.live();
        self.journal.take()
    }

    /// Runs it. Returns how many lines took the fast path.
    #[cfg(test)]
    pub(super) fn fast_lines(mut self) -> u64 {
        self.live();
        self.bus.view().fast_lines()
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
            // That changes only reports, and a trace covers what peers depend on.
            if (step + 1).is_multiple_of(GAPS) && !self.journal.is_summed_up() {
                let gaps = [pause, Duration::ZERO, pause];
                let (held_up, suspended) = (gaps[step / GAPS % 3], gaps[(step / GAPS + 1) % 3]);
                self.handle("it did not run", None, Input::ClockJumped { held_up, suspended });
                self.model.stood_still(self.now);
            }
            self.tick_if_due();
            // A trace has none, so that it stays comparable.
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

    /// How often the bus has counted a reason since the last call.
    fn more(&mut self, reason: Reason) -> u64 {
        let count = self.bus.view().count(reason);
        count - std::mem::replace(&mut self.counts[reason as usize], count)
    }

    fn note(&mut self, text: impl FnOnce(&Self) -> String) {
        self.journal.counts();
        self.mention(text);
    }

    /// Logs an event that may have changed nothing.
    fn mention(&mut self, text: impl FnOnce(&Self) -> String) {
        if self.journal.is_read() {
            let text = text(self);
            self.journal.write(self.now, &text);
        }
    }

    /// Calls the bus and carries out its effects.
    fn step(&mut self, what: impl Display, about: Option<Party>, call: impl FnOnce(&mut Twins, Moment) -> Vec<Effect>) {
        self.note(|_| match about {
            Some(party) => format!("{party:?} {what}"),
            None => what.to_string(),
        });
        let effects = call(&mut self.bus, self.now);
        self.carry_out(effects, &[], None, VecDeque::new(), false);
        self.check();
    }

    fn handle(&mut self, what: impl Display, about: Option<Party>, input: Input) {
        self.step(what, about, |bus, now| bus.handle(now, input));
    }

    fn check(&mut self) {
        self.learn_waiting_owners();
        self.bus.check_invariants();
        self.model.check(self.now, &self.bus);
        self.learn_roles();
        let soon = self.now.after(Duration::from_millis(1));
        let turns = self.bus.view().next_deadline().is_some_and(|at| at <= soon);
        let is_due = self.bus.view().next_deadline().is_some_and(|at| at <= self.now);
        let mut rows = (0..self.settings.pools.len()).filter_map(|pool| self.bus.view().pool_row(pool));
        let any_is_paused = rows.any(|row| row.is_paused);
        for party in self.all_parties() {
            let excused = match party {
                // A client that was refused, or whose lines wait for a worker, is read again soon. A crash suspect has
                // to wait, and so does a client without an available worker, or with a request for a paused pool.
                Party::Client(client) => {
                    any_is_paused
                        || turns
                        || self.model.is_suspect(self.now, client)
                        || self.model.awaits_worker(client)
                }
                Party::Worker(worker) => is_due || self.model.floods(self.now, worker),
            };
            let waits = self.end(party).paused && !self.end(party).ignored;
            assert!(
                !waits || excused || self.is_crowded || self.model.is_any_full(),
                "{party:?} is paused, and no output is full; {}",
                self.model.waiting_text(party)
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

    fn any_party(&mut self, client: Option<usize>, worker: Option<usize>) -> Option<Party> {
        let (client, worker) = (client.map(Party::Client), worker.map(Party::Worker));
        if self.random.one_in(2) { client.or(worker) } else { worker.or(client) }
    }

    fn all_parties(&self) -> Vec<Party> {
        let clients = (0..self.clients.len()).filter(|at| !self.clients[*at].closed).map(Party::Client);
        let workers = (0..self.workers.len()).filter(|at| !self.workers[*at].released).map(Party::Worker);
        clients.chain(workers).collect()
    }

    fn end(&self, party: Party) -> &End {
        match party {
            Party::Client(at) => &self.clients[at].end,
            Party::Worker(at) => &self.workers[at].end,
        }
    }

    fn end_mut(&mut self, party: Party) -> &mut End {
        match party {
            Party::Client(at) => &mut self.clients[at].end,
            Party::Worker(at) => &mut self.workers[at].end,
        }
    }

    fn peer(&self, party: Party) -> Peer {
        match party {
            Party::Client(at) => Peer::Client(self.clients[at].key),
            Party::Worker(at) => Peer::Worker(self.workers[at].key),
        }
    }

    fn client(&self, key: ClientKey) -> usize {
        client_of(&self.clients, key)
    }

    fn worker(&self, key: WorkerKey) -> usize {
        worker_of(&self.workers, key)
    }

    fn party(&self, peer: Peer) -> Party {
        party(&self.clients, &self.workers, peer)
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

fn party(clients: &[SimClient], workers: &[SimWorker], peer: Peer) -> Party {
    match peer {
        Peer::Client(key) => Party::Client(client_of(clients, key)),
        Peer::Worker(key) => Party::Worker(worker_of(workers, key)),
    }
}
