//! The shell: the only place that calls the kernel. It moves bytes and decides nothing; what to do is said by the
//! core's effects.
//!
//! This file has the loop and carries out effects; `reading.rs` and `writing.rs` move bytes, `gates.rs` takes clients
//! in, `children.rs` looks after worker processes, `memory.rs` after memory, and `closing.rs` ends what they opened.
//!
//! A turn: enter the kernel once, take the completions, give their bytes to the core, carry out its effects into the
//! outboxes, start one write for each output that has something and is idle, arm what is to be read next. A link that
//! brings more lines than fit into its turn goes behind the others; a busy turn may wait for company (`company.rs`).

mod accept;
mod cgroup;
mod clock;
mod close;
mod connection;
mod listen;
mod log;
mod memory;
mod read;
mod signals;
mod source;
mod workers;
mod write;

use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use rustix::process::Rlimit;
use slab::Slab;

use crate::bus::port::{Effect, Input, Moment, Peer};
use crate::bus::settings::MAX_CONNECTIONS;
use crate::bus::{self, Bus};
use crate::cli::Options;
use crate::config::{Config, Listen, Pool};
use crate::error::StartError;
use crate::io::buffers::{Block, Buffers};
use crate::io::ring::{Completion, Ring};
use crate::reserve;
use crate::scan::{Span, Window};
use accept::Gate;
use clock::Clock;
use connection::{Descriptor, HOLD, HOLD_PART, Kind, Link};
use memory::Memory;
use signals::Signals;
use workers::reap::Reaper;

/// How long the last cancelled operations may take at the end.
const LAST_COMPLETIONS: Duration = Duration::from_millis(200);

/// Runs the daemon until it has drained.
///
/// # Errors
/// Whatever keeps it from starting; once it runs, only a failure of the ring itself.
pub fn run(options: &Options, program: &Path) -> Result<(), StartError> {
    let config = options.configuration(program)?;
    log::install(config.log);
    let result = Shell::start(config).and_then(|mut shell| {
        let result = shell.serve();
        shell.finish();
        result
    });
    log::flush(&[]);
    result
}

/// What an operation was for; with the slot it makes the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Operation {
    Accept = 1,
    Read,
    Receive,
    Write,
    Watch,
    Hear,
    HearRest,
    Children,
    Stop,
    Log,
}

impl Operation {
    fn token(self, slot: usize) -> u64 {
        (self as u64) << 32 | slot as u64
    }

    fn of(token: u64) -> Option<(Self, usize)> {
        use Operation as O;
        let all =
            [O::Accept, O::Read, O::Receive, O::Write, O::Watch, O::Hear, O::HearRest, O::Children, O::Stop, O::Log];
        let operation = all.into_iter().find(|operation| *operation as u64 == token >> 32)?;
        Some((operation, token as u32 as usize))
    }
}

/// Whose bytes effects copy from, and the block that they lie in with their offset there, if lines of it can be held
/// in place.
struct Source<'a> {
    from: Peer,
    window: Window<'a>,
    block: Option<(Rc<Block>, usize)>,
}

/// The running daemon. The ring is dropped first: nothing that it can write to goes before it.
struct Shell {
    ring: Ring,
    bus: Bus,
    buffers: Buffers,
    clock: Clock,
    pools: Vec<Pool>,
    descriptors: Rlimit,
    longest_line: usize,
    links: Slab<Link>,
    /// Slots of links by the index of their key.
    clients: Vec<Option<usize>>,
    workers: Vec<Option<usize>>,
    gates: Vec<Gate>,
    accept_paused: bool,
    closed_for_good: bool,
    reaper: Reaper,
    signals: Signals,
    children_seen: Box<[u8; 64]>,
    stops_seen: Box<[u8; 8]>,
    log_line: Vec<u8>,
    log_written: usize,
    logging: bool,
    /// Outputs that have something to write.
    dirty: Vec<usize>,
    /// Links whose kept bytes are presented next, one after the other.
    resumed: VecDeque<usize>,
    /// Links whose receive found no buffer.
    starved: Vec<usize>,
    /// What has happened and was not told to the core yet.
    news: VecDeque<(Moment, Input)>,
    is_carrying_out: bool,
    memory: Memory,
    done: bool,
}

impl Shell {
    fn start(config: Config) -> Result<Self, StartError> {
        workers::spawn::keep_descriptors().map_err(StartError::io("mark inherited descriptors"))?;
        let signals = signals::install().map_err(StartError::io("install signal handlers"))?;
        let descriptors =
            workers::spawn::allow_descriptors(config.listeners.len(), MAX_CONNECTIONS, config.max_workers())?;
        let ring = Ring::new()?;
        let mut buffers =
            Buffers::new(&ring, config.max_workers()).map_err(|source| StartError::NoIoUring { source })?;
        let memory = Memory::new(config.limits.max_memory);
        buffers.keep_spares_below(memory.short_above());
        reserve::keep();
        let mut gates = Vec::new();
        for (index, listener) in config.listeners.iter().enumerate() {
            gates.extend(listen::open(&listener.listen, index)?.into_iter().map(Gate::new));
        }
        tracing::info!("stdio_bus {} {}", env!("CARGO_PKG_VERSION"), config.summary());
        tracing::debug!("ring: {}", ring.description);
        if let Some(error) = &buffers.unregistered {
            tracing::info!("buffers are not registered ({error}); raise RLIMIT_MEMLOCK for a few percent less CPU");
        }
        cgroup::check(config.limits.max_memory);
        let bus = Bus::new(config.settings());
        let mut shell = Self {
            ring,
            bus,
            buffers,
            clock: Clock::new(),
            longest_line: config.limits.max_input_buffer,
            pools: config.pools,
            descriptors,
            links: Slab::new(),
            clients: vec![None; MAX_CONNECTIONS],
            workers: Vec::new(),
            gates,
            accept_paused: false,
            closed_for_good: false,
            reaper: Reaper::new(),
            signals,
            children_seen: Box::new([0; 64]),
            stops_seen: Box::new([0; 8]),
            log_line: Vec::new(),
            log_written: 0,
            logging: false,
            dirty: Vec::new(),
            resumed: VecDeque::new(),
            starved: Vec::new(),
            news: VecDeque::new(),
            is_carrying_out: false,
            memory,
            done: false,
        };
        shell.open_doors(&config.listeners.iter().map(|listener| &listener.listen).collect::<Vec<_>>());
        Ok(shell)
    }

    fn open_doors(&mut self, listeners: &[&Listen]) {
        let now = self.clock.now();
        self.arm_children();
        self.arm_stop();
        let effects = self.bus.start(now).collect();
        self.carry_out(effects, None);
        for gate in &self.gates {
            tracing::info!("listening on {}", gate.address);
        }
        for gate in 0..self.gates.len() {
            self.arm_accept(gate);
        }
        for (index, listen) in listeners.iter().enumerate() {
            if matches!(listen, Listen::Stdio) {
                let link = |peer| Link::new(peer, Kind::Stdio, Descriptor::Lent(0), Some(Descriptor::Lent(1)), None);
                self.add_client(index, bus::port::Source::Inherited, link);
                tracing::info!("serving one client on stdin and stdout");
            }
        }
    }

    /// The loop.
    fn serve(&mut self) -> Result<(), StartError> {
        let mut completions = Vec::with_capacity(256);
        let mut lines = 0;
        loop {
            self.write_dirty(self.clock.now());
            self.write_log();
            if self.done {
                return Ok(());
            }
            let planned = self.patience();
            completions.clear();
            let so_far = self.bus.lines_taken();
            self.ring.carried(so_far - std::mem::replace(&mut lines, so_far));
            self.ring.turn(planned, &mut completions).map_err(StartError::io("use the ring"))?;
            let now = self.clock.read(planned);
            for completion in &completions {
                self.complete(now, completion);
            }
            self.resume_links(now);
            if self.bus.next_deadline().is_some_and(|deadline| deadline <= now) {
                self.tell(now, Input::Tick);
                self.resume_links(now);
            }
            self.retry_gates(now);
            self.mind_memory(now);
            for link in std::mem::take(&mut self.starved) {
                self.arm_read(link);
            }
        }
    }

    /// How long the next turn may wait.
    fn patience(&self) -> Option<Duration> {
        if !self.resumed.is_empty() {
            return Some(Duration::ZERO);
        }
        let retry = self.gates.iter().filter_map(|gate| gate.retry_at).min();
        let deadline = [self.bus.next_deadline(), retry, self.memory_due()].into_iter().flatten().min()?;
        Some(deadline.since(self.clock.now()))
    }

    /// Cancels what is in flight, so that buffers outlive it, and ends whoever is left.
    fn finish(&mut self) {
        let killed = self.reaper.kill_the_rest();
        if !killed.is_empty() {
            tracing::warn!("killed {} processes that outlived their workers: {killed:?}", killed.len());
        }
        let slots: Vec<usize> = self.links.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.leave(slot);
        }
        let mut completions = Vec::new();
        for _ in 0..4 {
            let settled = self.links.is_empty() && !self.logging;
            if settled || self.ring.turn(Some(LAST_COMPLETIONS / 4), &mut completions).is_err() {
                break;
            }
            for completion in std::mem::take(&mut completions) {
                self.complete(self.clock.now(), &completion);
            }
        }
        let stats = self.bus.stats();
        tracing::info!(
            "stopped: {} lines from clients, {} from workers, {} error replies",
            stats.lines_from_clients,
            stats.lines_from_workers,
            stats.error_replies
        );
        // What the kernel still holds it may write yet: written again, it would stand there twice.
        if !self.logging {
            log::flush(&self.log_line[self.log_written..]);
        }
    }

    fn complete(&mut self, now: Moment, completion: &Completion) {
        let Some((operation, slot)) = Operation::of(completion.token) else { return };
        match operation {
            Operation::Accept => self.accepted(now, slot, completion.result),
            Operation::Read => self.read(now, slot, completion.result),
            Operation::Receive => self.received(now, slot, completion),
            Operation::Write => self.written(now, slot, completion.result),
            Operation::Watch => self.watched(now, slot, completion.result),
            Operation::Hear | Operation::HearRest => self.heard(slot, completion.result, operation),
            Operation::Children => {
                while let Some((worker, exit)) = self.reaper.next_dead() {
                    if let Some(worker) = worker {
                        self.tell(now, Input::Exited { worker, exit });
                    }
                }
                self.arm_children();
            }
            Operation::Stop => {
                // Signals that came together are one: timeout(1) sends its signal to us and to our group.
                if completion.result > 0 {
                    self.tell(now, Input::Shutdown);
                }
                self.arm_stop();
            }
            Operation::Log => self.logged(completion.result),
        }
    }

    /// Tells the core something, and does what it says. What happens while effects are carried out is told after the
    /// last of them: the core is never called before.
    fn tell(&mut self, now: Moment, input: Input) {
        self.news.push_back((now, input));
        if !self.is_carrying_out {
            self.carry_out(Vec::new(), None);
        }
    }

    /// Carries out the core's effects, those that copy from `source`, and tells the core what happened meanwhile.
    fn carry_out(&mut self, effects: Vec<Effect>, source: Option<&Source<'_>>) {
        debug_assert!(!self.is_carrying_out);
        self.is_carrying_out = true;
        self.take_effects(effects, source);
        while let Some((now, input)) = self.news.pop_front() {
            let effects = self.bus.handle(now, input).collect();
            self.take_effects(effects, None);
        }
        self.is_carrying_out = false;
    }

    fn take_effects(&mut self, effects: Vec<Effect>, source: Option<&Source<'_>>) {
        for effect in effects {
            match effect {
                Effect::Copy { to, span } => {
                    debug_assert!(source.is_some(), "a copy has a window");
                    if let Some(source) = source {
                        self.copy(to, source, span);
                    }
                }
                Effect::Insert { to, text } => {
                    let Some(slot) = self.slot(to) else { continue };
                    let pushed = self.links[slot].outbox.push(text.as_bytes(), &mut self.buffers);
                    self.mark_dirty(slot);
                    if let Err(lost) = pushed {
                        self.has_lost(source.map(|source| source.from), to, lost);
                    }
                }
                Effect::Pause { peer } => {
                    if let Some(slot) = self.slot(peer) {
                        self.links[slot].paused = true;
                        self.watch(slot);
                    }
                }
                Effect::Resume { peer } => {
                    if let Some(slot) = self.slot(peer) {
                        self.links[slot].paused = false;
                        self.resume_soon(slot);
                    }
                }
                Effect::Spawn { worker, pool, number } => self.spawn(worker, pool, number),
                Effect::CloseStdin { worker } => {
                    if let Some(slot) = self.slot(Peer::Worker(worker)) {
                        self.close_after_flush(slot);
                    }
                }
                Effect::Signal { worker, signal } => self.reaper.signal(worker, signal),
                Effect::Probe { worker } => self.tell_unread(worker),
                Effect::Release { worker } => {
                    if let Some(slot) = self.workers.get_mut(worker.index()).and_then(Option::take) {
                        self.leave(slot);
                    }
                }
                Effect::Close { client, how } => {
                    if let Some(slot) = self.slot(Peer::Client(client)) {
                        self.close(slot, how);
                    }
                }
                Effect::PauseAccept => self.accept_paused = true,
                Effect::ResumeAccept => {
                    self.accept_paused = false;
                    for gate in 0..self.gates.len() {
                        self.arm_accept(gate);
                    }
                }
                Effect::StopAccept => {
                    self.closed_for_good = true;
                    for gate in 0..self.gates.len() {
                        self.close_gate(gate);
                    }
                }
                Effect::Report(report) => {
                    log::report(&report, |pool| self.pools.get(pool).map_or_else(String::new, |p| p.core.id.clone()));
                }
                Effect::Done => self.done = true,
            }
        }
    }

    fn copy(&mut self, to: Peer, source: &Source<'_>, span: Span) {
        let Some(slot) = self.slot(to) else { return };
        let outbox = &mut self.links[slot].outbox;
        let queued = match &source.block {
            Some((block, start)) if span.len() >= HOLD.max(block.capacity() / HOLD_PART) => {
                outbox.hold(Rc::clone(block), start + span.start as usize, start + span.end as usize)
            }
            _ => outbox.push(source.window.get(span), &mut self.buffers),
        };
        self.mark_dirty(slot);
        if let Err(lost) = queued {
            self.has_lost(Some(source.from), to, lost);
        }
    }

    fn mark_dirty(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.links[slot].dirty, true) {
            self.dirty.push(slot);
        }
    }

    fn slot(&self, peer: Peer) -> Option<usize> {
        let slot = match peer {
            Peer::Client(client) => *self.clients.get(client.index())?,
            Peer::Worker(worker) => *self.workers.get(worker.index())?,
        }?;
        (self.links.get(slot)?.peer == peer).then_some(slot)
    }
}
