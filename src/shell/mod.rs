//! The shell: the only place that calls the kernel. It moves bytes and decides nothing; what to do is said by the
//! core's effects.
//!
//! A turn: enter the kernel once, take the completions, give their bytes to the core, carry out its effects into the
//! outboxes, start one write for each output that has something and is idle, arm what is to be read next.

mod buffers;
mod clock;
mod link;
mod listen;
mod log;
mod reap;
mod ring;
mod signals;
mod spawn;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use io_uring::{opcode, squeue, types};
use rustix::process::Rlimit;
use slab::Slab;

use crate::bus::Bus;
use crate::bus::port::{ClientKey, Close, Effect, Input, Moment, Next, Peer, WorkerKey};
use crate::bus::scan::{Span, Window};
use crate::bus::settings::MAX_CONNECTIONS;
use crate::cli::Options;
use crate::config::{Config, Listen, Pool};
use crate::error::StartError;
use buffers::{Block, Buffers, CHUNK, GROUP};
use clock::Clock;
use link::{Closing, Descriptor, HOLD, HOLD_PART, Kind, Link};
use listen::Listening;
use reap::Reaper;
use ring::{Completion, Ring};
use signals::Signals;

/// A socket whose unfinished line is at least this long is read straight into place.
const LONG_LINE: usize = 8 * 1024;
/// After accept(2) failed for want of descriptors or memory: doubled up to the longest.
const FIRST_ACCEPT_DELAY: Duration = Duration::from_millis(100);
const LONGEST_ACCEPT_DELAY: Duration = Duration::from_secs(1);
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

/// The bytes that effects copy from, and the block that they lie in with their offset there, if lines of it can be
/// held in place.
struct Source<'a> {
    window: Window<'a>,
    block: Option<(Rc<Block>, usize)>,
}

/// A listening socket and whether it is being accepted from.
struct Gate {
    /// Gone once the daemon takes no more clients.
    listening: Option<Listening>,
    address: String,
    accepting: bool,
    retry_at: Option<Moment>,
    delay: Duration,
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
    /// Links whose kept bytes the core wants now.
    resumed: VecDeque<usize>,
    /// Links whose receive found no buffer.
    starved: Vec<usize>,
    done: bool,
}

impl Shell {
    fn start(config: Config) -> Result<Self, StartError> {
        spawn::keep_descriptors().map_err(StartError::io("mark inherited descriptors"))?;
        let signals = signals::install().map_err(StartError::io("install signal handlers"))?;
        let descriptors = spawn::allow_descriptors(config.listeners.len(), MAX_CONNECTIONS, config.max_workers())?;
        let ring = Ring::new()?;
        let buffers = Buffers::new(&ring, config.max_workers()).map_err(|source| StartError::NoIoUring { source })?;
        let mut gates = Vec::new();
        for (index, listener) in config.listeners.iter().enumerate() {
            for listening in listen::open(&listener.listen, index)? {
                let address = listening.address.clone();
                let listening = Some(listening);
                gates.push(Gate { listening, address, accepting: false, retry_at: None, delay: FIRST_ACCEPT_DELAY });
            }
        }
        tracing::info!("stdio_bus {} {}", env!("CARGO_PKG_VERSION"), config.summary());
        tracing::debug!("ring: {}", ring.description);
        if let Some(error) = &buffers.unregistered {
            tracing::info!("buffers are not registered ({error}); raise RLIMIT_MEMLOCK for a few percent less CPU");
        }
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
            done: false,
        };
        shell.open_doors(&config.listeners.iter().map(|listener| &listener.listen).collect::<Vec<_>>());
        Ok(shell)
    }

    fn open_doors(&mut self, listeners: &[&Listen]) {
        let now = self.clock.now();
        self.arm_children();
        self.arm_stop();
        self.bus.start(now);
        self.carry_out(None);
        for gate in &self.gates {
            tracing::info!("listening on {}", gate.address);
        }
        for gate in 0..self.gates.len() {
            self.arm_accept(gate);
        }
        for (index, listen) in listeners.iter().enumerate() {
            if matches!(listen, Listen::Stdio) {
                let link = |peer| Link::new(peer, Kind::Stdio, Descriptor::Lent(0), Some(Descriptor::Lent(1)), None);
                self.add_client(index, link);
                tracing::info!("serving one client on stdin and stdout");
            }
        }
    }

    /// The loop.
    fn serve(&mut self) -> Result<(), StartError> {
        let mut completions = Vec::with_capacity(256);
        loop {
            self.write_dirty(self.clock.now());
            self.write_log();
            if self.done {
                return Ok(());
            }
            let planned = self.patience();
            completions.clear();
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
        let deadline = [self.bus.next_deadline(), retry].into_iter().flatten().min()?;
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
            if self.links.is_empty() || self.ring.turn(Some(LAST_COMPLETIONS / 4), &mut completions).is_err() {
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
        if self.logging {
            // The write may have been cut short by the end of the ring; what it did not confirm is written again.
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

    /// Tells the core something, and does what it says.
    fn tell(&mut self, now: Moment, input: Input) {
        self.bus.handle(now, input);
        self.carry_out(None);
    }

    /// Carries out the core's effects; those that copy, from `source`.
    fn carry_out(&mut self, source: Option<&Source<'_>>) {
        while let Some(effect) = self.bus.next_effect() {
            match effect {
                Effect::Copy { to, span } => {
                    if let Some(source) = source {
                        self.copy(to, source, span);
                    }
                }
                Effect::Insert { to, text } => {
                    let Some(slot) = self.slot(to) else { continue };
                    self.links[slot].outbox.push(text.as_bytes(), &mut self.buffers);
                    self.mark_dirty(slot);
                }
                Effect::Pause { peer } => {
                    if let Some(slot) = self.slot(peer) {
                        self.links[slot].paused = true;
                        self.watch(slot);
                    }
                }
                Effect::Resume { peer } => {
                    if let Some(slot) = self.slot(peer) {
                        self.resumed.push_back(slot);
                    }
                }
                Effect::Spawn { worker, pool, number } => self.spawn(worker, pool, number),
                Effect::CloseStdin { worker } => {
                    if let Some(slot) = self.slot(Peer::Worker(worker)) {
                        self.close_after_flush(slot);
                    }
                }
                Effect::Signal { worker, signal } => self.reaper.signal(worker, signal),
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
        match &source.block {
            Some((block, start)) if span.len() >= HOLD.max(block.capacity() / HOLD_PART) => {
                let (from, to) = (start + span.start as usize, start + span.end as usize);
                self.links[slot].outbox.hold(Rc::clone(block), from, to);
            }
            _ => self.links[slot].outbox.push(source.window.get(span), &mut self.buffers),
        }
        self.mark_dirty(slot);
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

    fn add_client(&mut self, listener: usize, link: impl FnOnce(Peer) -> Link) -> Option<ClientKey> {
        let client = self.bus.connect(self.clock.now(), listener);
        if let Some(client) = client {
            let slot = self.links.insert(link(Peer::Client(client)));
            self.clients[client.index()] = Some(slot);
            self.arm_read(slot);
        }
        self.carry_out(None);
        client
    }

    fn arm_accept(&mut self, index: usize) {
        let gate = &mut self.gates[index];
        let Some(listening) = &gate.listening else { return };
        if gate.accepting || self.accept_paused || gate.retry_at.is_some() {
            return;
        }
        gate.accepting = true;
        let socket = types::Fd(listening.socket.as_raw_fd());
        let entry = opcode::Accept::new(socket, std::ptr::null_mut(), std::ptr::null_mut()).flags(libc::SOCK_CLOEXEC);
        // SAFETY: the socket stays open as long as the shell lives, and no address is asked for.
        unsafe { self.ring.submit(entry.build().user_data(Operation::Accept.token(index))) };
    }

    fn accepted(&mut self, now: Moment, index: usize, result: i32) {
        let gate = &mut self.gates[index];
        gate.accepting = false;
        if self.closed_for_good {
            if result >= 0 {
                // SAFETY: the kernel has just made this descriptor for us; the client came too late.
                drop(unsafe { OwnedFd::from_raw_fd(result) });
            }
            return self.close_gate(index);
        }
        let Some(listener) = gate.listening.as_ref().map(|listening| listening.listener) else { return };
        if result >= 0 {
            gate.delay = FIRST_ACCEPT_DELAY;
            // SAFETY: the kernel has just made this descriptor for us.
            let socket = unsafe { OwnedFd::from_raw_fd(result) };
            let client =
                self.add_client(listener, |peer| Link::new(peer, Kind::Socket, Descriptor::Owned(socket), None, None));
            if let Some(number) = client.and_then(|client| self.bus.client_number(client)) {
                tracing::debug!(client = number, descriptor = result, "accepted on {}", self.gates[index].address);
            }
            return self.arm_accept(index);
        }
        let error = io::Error::from_raw_os_error(-result);
        match -result {
            libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM => {
                if gate.delay == FIRST_ACCEPT_DELAY {
                    tracing::error!(
                        reason = "accept_paused",
                        "cannot accept on {}: {error}; trying again until it works. Raise RLIMIT_NOFILE (ulimit -n, \
                         LimitNOFILE)",
                        gate.address
                    );
                }
                gate.retry_at = Some(now.after(gate.delay));
                gate.delay = (2 * gate.delay).min(LONGEST_ACCEPT_DELAY);
            }
            // The client gave up before it was accepted.
            _ => self.arm_accept(index),
        }
    }

    /// Closes a listening socket, once nothing is accepted from it any more (spec 10.2.1).
    fn close_gate(&mut self, index: usize) {
        let gate = &mut self.gates[index];
        gate.retry_at = None;
        if gate.accepting {
            self.ring.cancel(Operation::Accept.token(index));
        } else {
            gate.listening = None;
        }
    }

    fn retry_gates(&mut self, now: Moment) {
        for index in 0..self.gates.len() {
            if self.gates[index].retry_at.is_some_and(|at| at <= now) {
                self.gates[index].retry_at = None;
                self.arm_accept(index);
            }
        }
    }

    /// Starts the next read of a link, if its bytes are wanted.
    fn arm_read(&mut self, slot: usize) {
        let Some(link) = self.links.get_mut(slot) else { return };
        let wanted = !link.paused || link.discard;
        let Some(input) = link.input.as_ref().map(Descriptor::raw) else { return };
        if !wanted || link.reading || link.eof || link.closing == Closing::Leaving {
            return;
        }
        link.reading = true;
        let direct = link.kind != Kind::Socket || link.inbox.len() >= LONG_LINE;
        let entry = if !direct {
            receive_entry(input, link.more_to_read).user_data(Operation::Receive.token(slot))
        } else {
            let wanted = if link.inbox.len() >= LONG_LINE { CHUNK } else { CHUNK / 2 };
            let (registered, address, room) = link.inbox.room(wanted, self.longest_line, &mut self.buffers);
            let room = room.min(u32::MAX as usize) as u32;
            let token = Operation::Read.token(slot);
            match (link.kind, registered) {
                (Kind::Socket, _) => opcode::Recv::new(types::Fd(input), address, room).build().user_data(token),
                (_, Some(index)) => opcode::ReadFixed::new(types::Fd(input), address, room, index)
                    .offset(u64::MAX)
                    .build()
                    .user_data(token),
                (_, None) => {
                    opcode::Read::new(types::Fd(input), address, room).offset(u64::MAX).build().user_data(token)
                }
            }
        };
        // SAFETY: the inbox keeps its block and the link its descriptor while `reading` is set.
        unsafe { self.ring.submit(entry) };
    }

    /// A read into the link's own memory has completed.
    fn read(&mut self, now: Moment, slot: usize, result: i32) {
        if result > 0 {
            self.links[slot].inbox.filled(result as usize);
            self.present(now, slot);
        }
        self.links[slot].reading = false;
        if self.gone(slot) {
            return;
        }
        if result > 0 { self.arm_read(slot) } else { self.input_over(now, slot, result) }
    }

    /// A receive into a provided buffer has completed.
    fn received(&mut self, now: Moment, slot: usize, completion: &Completion) {
        let link = &mut self.links[slot];
        link.more_to_read = completion.more_to_read();
        let buffer = completion.buffer();
        if completion.result > 0
            && let Some(buffer) = buffer
            && link.closing != Closing::Leaving
            && !link.discard
        {
            self.present_received(now, slot, buffer, completion.result as usize);
        }
        if let Some(buffer) = buffer {
            self.buffers.return_received(buffer);
        }
        self.links[slot].reading = false;
        if self.gone(slot) {
            return;
        }
        match completion.result {
            1.. => self.arm_read(slot),
            result if result == -libc::ENOBUFS => self.starved.push(slot),
            result => self.input_over(now, slot, result),
        }
    }

    /// Gives received bytes to the core where they lie, and keeps what it does not consume.
    fn present_received(&mut self, now: Moment, slot: usize, buffer: u16, bytes: usize) {
        let peer = self.links[slot].peer;
        let limit = self.longest_line;
        // SAFETY: the buffer is returned by the caller, after this.
        let mut window = unsafe { self.buffers.received(buffer, bytes) };
        if !self.links[slot].inbox.is_empty() || self.links[slot].paused {
            let data = window.data();
            self.links[slot].inbox.append(data, limit, &mut self.buffers);
            return self.present(now, slot);
        }
        loop {
            let received = self.bus.receive(now, peer, window);
            self.carry_out(Some(&Source { window, block: None }));
            window = window.without(received.consumed);
            if received.next != Next::Again {
                break;
            }
        }
        if !window.data().is_empty() {
            let data = window.data();
            self.links[slot].inbox.append(data, limit, &mut self.buffers);
        }
    }

    /// Gives the bytes of the inbox to the core. The caller keeps `reading` set, so that the link stays even if the
    /// core closes it over what it reads.
    fn present(&mut self, now: Moment, slot: usize) {
        if self.links[slot].discard {
            return self.links[slot].inbox.release(&mut self.buffers);
        }
        let peer = self.links[slot].peer;
        while !self.links[slot].paused && !self.links[slot].inbox.is_empty() {
            let keep = self.links[slot].kind != Kind::Socket;
            let mut inbox = std::mem::take(&mut self.links[slot].inbox);
            let Some(window) = inbox.window() else { return };
            let received = self.bus.receive(now, peer, window);
            self.carry_out(Some(&Source { window, block: inbox.holdable() }));
            inbox.consume(received.consumed, keep, &mut self.buffers);
            self.links[slot].inbox = inbox;
            if received.next != Next::Again {
                break;
            }
        }
        let link = &mut self.links[slot];
        let small_again = link.inbox.is_empty() && link.inbox.is_long();
        if link.discard || small_again {
            link.inbox.release(&mut self.buffers);
        }
    }

    /// The input has ended, in whatever way.
    fn input_over(&mut self, now: Moment, slot: usize, result: i32) {
        match -result {
            libc::EAGAIN | libc::EINTR => return self.arm_read(slot),
            libc::ECANCELED if self.links[slot].paused => return,
            _ => {}
        }
        let link = &mut self.links[slot];
        link.eof = true;
        let peer = link.peer;
        if result < 0 && link.kind == Kind::Socket {
            let why = io::Error::from_raw_os_error(-result).to_string();
            return self.broken(now, slot, peer, why);
        }
        self.tell_end(now, slot);
        self.watch(slot);
    }

    /// Tells the core that a peer has sent everything, once everything was given to it.
    fn tell_end(&mut self, now: Moment, slot: usize) {
        let link = &mut self.links[slot];
        if !link.eof || link.end_told || link.paused {
            return;
        }
        link.end_told = true;
        let (peer, partial) = (link.peer, link.inbox.len());
        link.inbox.release(&mut self.buffers);
        self.tell(now, Input::Ended { peer, partial });
    }

    fn broken(&mut self, now: Moment, slot: usize, peer: Peer, why: String) {
        let link = &mut self.links[slot];
        if link.kind == Kind::Worker {
            link.closing = link.closing.max(Closing::ShutDown);
            self.close_stdin_when_idle(slot);
        }
        self.tell(now, Input::Broken { peer, why });
    }

    fn resume_links(&mut self, now: Moment) {
        // Only those that wait now: one that is resumed meanwhile has its turn after the next completions.
        for _ in 0..self.resumed.len() {
            let Some(slot) = self.resumed.pop_front() else { return };
            if !self.links.contains(slot) || self.gone(slot) {
                continue;
            }
            let link = &mut self.links[slot];
            link.paused = false;
            if !std::mem::replace(&mut link.reading, true) {
                self.present(now, slot);
                self.links[slot].reading = false;
            }
            if !self.gone(slot) {
                self.tell_end(now, slot);
                self.arm_read(slot);
            }
        }
    }

    /// Starts a write for every output that has something and is idle.
    fn write_dirty(&mut self, now: Moment) {
        while let Some(slot) = self.dirty.pop() {
            let Some(link) = self.links.get_mut(slot) else { continue };
            link.dirty = false;
            self.write(now, slot);
        }
    }

    fn write(&mut self, now: Moment, slot: usize) {
        let link = &mut self.links[slot];
        if link.writing || link.closing >= Closing::ShutDown {
            return;
        }
        let (Some(out), Some(next)) = (link.out(), link.outbox.next()) else {
            if link.closing == Closing::AfterFlush {
                self.shut_down(now, slot);
            }
            return;
        };
        let descriptor = types::Fd(out);
        let socket = link.kind == Kind::Socket;
        let entry = match next {
            link::Next::One { address, bytes, .. } if socket => {
                opcode::Send::new(descriptor, address, bytes as u32).flags(libc::MSG_NOSIGNAL).build()
            }
            link::Next::One { registered: Some(index), address, bytes } => {
                opcode::WriteFixed::new(descriptor, address, bytes as u32, index).offset(u64::MAX).build()
            }
            link::Next::One { registered: None, address, bytes } => {
                opcode::Write::new(descriptor, address, bytes as u32).offset(u64::MAX).build()
            }
            link::Next::Many { message, .. } if socket => {
                opcode::SendMsg::new(descriptor, message).flags(libc::MSG_NOSIGNAL as u32).build()
            }
            link::Next::Many { vectors, count, .. } => {
                opcode::Writev::new(descriptor, vectors, count as u32).offset(u64::MAX).build()
            }
        };
        link.writing = true;
        // SAFETY: the outbox keeps the segments and the descriptor stays open while `writing` is set.
        unsafe { self.ring.submit(entry.user_data(Operation::Write.token(slot))) };
    }

    fn written(&mut self, now: Moment, slot: usize, result: i32) {
        self.links[slot].writing = false;
        if self.gone(slot) {
            return;
        }
        self.close_stdin_when_idle(slot);
        let peer = self.links[slot].peer;
        if result >= 0 {
            self.links[slot].outbox.advance(result as usize, &mut self.buffers);
            self.tell(now, Input::Sent { peer, bytes: result as usize });
            if self.links.contains(slot) {
                self.mark_dirty(slot);
            }
            return;
        }
        match -result {
            libc::EAGAIN | libc::EINTR => self.mark_dirty(slot),
            libc::ECANCELED => {}
            error => self.broken(now, slot, peer, io::Error::from_raw_os_error(error).to_string()),
        }
    }

    /// Watches for the other side's leaving where no read would show it: a paused or half-closed client, and a worker's
    /// stdin.
    fn watch(&mut self, slot: usize) {
        let Some(link) = self.links.get_mut(slot) else { return };
        let wanted = match link.kind {
            Kind::Socket => link.paused || link.eof,
            Kind::Worker => true,
            Kind::Stdio => false,
        };
        let Some(descriptor) = link.out().filter(|_| wanted && !link.watching && link.closing < Closing::ShutDown)
        else {
            return;
        };
        link.watching = true;
        // POLLERR, POLLHUP and POLLRDHUP come without being asked for.
        let entry = opcode::PollAdd::new(types::Fd(descriptor), 0).build().user_data(Operation::Watch.token(slot));
        // SAFETY: a poll touches no memory, and the descriptor stays open while `watching` is set.
        unsafe { self.ring.submit(entry) };
    }

    fn watched(&mut self, now: Moment, slot: usize, result: i32) {
        self.links[slot].watching = false;
        if self.gone(slot) {
            return;
        }
        let link = &self.links[slot];
        if result < 0 || link.closing >= Closing::ShutDown {
            return self.close_stdin_when_idle(slot);
        }
        let peer = link.peer;
        // A socket that is read again will show its end by itself, after its last bytes; and one that will only send
        // nothing more may still wait for answers. Unix sockets tell that from a full close; on TCP the next send does.
        let has_gone = result & i32::from(libc::POLLERR | libc::POLLHUP) != 0;
        if link.kind == Kind::Worker || ((link.paused || link.eof) && has_gone) {
            self.broken(now, slot, peer, "the other side has gone".to_owned());
        }
    }

    /// Closes the output once everything is written.
    fn close_after_flush(&mut self, slot: usize) {
        let link = &mut self.links[slot];
        link.closing = link.closing.max(Closing::AfterFlush);
        self.mark_dirty(slot);
    }

    fn shut_down(&mut self, now: Moment, slot: usize) {
        let link = &mut self.links[slot];
        link.closing = Closing::ShutDown;
        match link.kind {
            Kind::Worker => {
                if link.watching {
                    self.ring.cancel(Operation::Watch.token(slot));
                }
                self.close_stdin_when_idle(slot);
            }
            Kind::Socket => {
                if let Some(descriptor) = link.out() {
                    // SAFETY: the descriptor is open.
                    unsafe { libc::shutdown(descriptor, libc::SHUT_WR) };
                }
                if link.eof {
                    let peer = link.peer;
                    self.tell(now, Input::Ended { peer, partial: 0 });
                } else {
                    self.arm_read(slot);
                }
            }
            Kind::Stdio => {
                let peer = link.peer;
                self.tell(now, Input::Ended { peer, partial: 0 });
            }
        }
    }

    fn close_stdin_when_idle(&mut self, slot: usize) {
        let link = &mut self.links[slot];
        if link.kind == Kind::Worker && link.closing == Closing::ShutDown && !link.writing && !link.watching {
            link.output = None;
        }
    }

    /// The core closes a client.
    fn close(&mut self, slot: usize, how: Close) {
        let link = &mut self.links[slot];
        link.discard = true;
        link.inbox_is_over(&mut self.buffers);
        match how {
            Close::Flush => {
                self.close_after_flush(slot);
                self.arm_read(slot);
            }
            Close::Now => {
                self.leave(slot);
            }
        }
    }

    /// Ends everything of a link that is in flight; it goes when the last of it has completed.
    fn leave(&mut self, slot: usize) {
        let link = &mut self.links[slot];
        if link.closing == Closing::Leaving {
            return;
        }
        link.closing = Closing::Leaving;
        if link.kind == Kind::Socket
            && let Some(input) = &link.input
        {
            // SAFETY: the descriptor is open. All operations on the socket complete after this.
            unsafe { libc::shutdown(input.raw(), libc::SHUT_RDWR) };
        }
        let flights = [
            (link.reading && link.kind != Kind::Socket, Operation::Read),
            (link.writing && link.kind != Kind::Socket, Operation::Write),
            (link.watching, Operation::Watch),
            (link.hearing, Operation::Hear),
        ];
        let hears = link.stderr.is_some() && !link.hearing;
        for (in_flight, operation) in flights {
            if in_flight {
                self.ring.cancel(operation.token(slot));
            }
        }
        if hears {
            self.hear_rest(slot);
        }
        self.gone(slot);
    }

    /// Removes a link that is leaving and has nothing in flight. True if it is leaving.
    fn gone(&mut self, slot: usize) -> bool {
        let link = &mut self.links[slot];
        if link.closing != Closing::Leaving {
            return false;
        }
        // What an inherited descriptor still has in flight may never complete, and nobody waits for it.
        let client = match link.peer {
            Peer::Client(client) if link.is_idle() || link.kind == Kind::Stdio => Some(client),
            _ => None,
        };
        if link.is_idle() {
            let mut link = self.links.remove(slot);
            link.outbox.clear(&mut self.buffers);
            link.inbox.release(&mut self.buffers);
            drop(link);
            self.free_descriptor();
        }
        if let Some(client) = client
            && self.clients[client.index()] == Some(slot)
        {
            self.clients[client.index()] = None;
            self.bus.handle(self.clock.now(), Input::Closed { client });
            self.carry_out(None);
        }
        true
    }

    /// A descriptor was closed: accepting may work again.
    fn free_descriptor(&mut self) {
        for gate in &mut self.gates {
            if gate.retry_at.is_some() {
                gate.retry_at = Some(self.clock.now());
            }
        }
    }

    fn spawn(&mut self, worker: WorkerKey, pool: usize, number: u32) {
        let now = self.clock.now();
        match spawn::spawn(&self.pools[pool], &self.descriptors) {
            Ok(spawned) => {
                self.reaper.add(spawned.pid, worker);
                let peer = Peer::Worker(worker);
                let link = Link::new(
                    peer,
                    Kind::Worker,
                    Descriptor::Owned(spawned.stdout),
                    Some(Descriptor::Owned(spawned.stdin)),
                    Some(spawned.stderr),
                );
                let slot = self.links.insert(link.with_name(pool, number));
                if self.workers.len() <= worker.index() {
                    self.workers.resize(worker.index() + 1, None);
                }
                self.workers[worker.index()] = Some(slot);
                self.bus.handle(now, Input::Spawned { worker, pid: spawned.pid });
                self.arm_read(slot);
                self.watch(slot);
                self.hear(slot, Operation::Hear);
            }
            Err(error) => {
                let pool = &self.pools[pool];
                let why = format!("cannot start \"{}\" ({}): {error}", pool.command, pool.program.display());
                self.bus.handle(now, Input::SpawnFailed { worker, why });
            }
        }
    }

    /// Reads a worker's stderr.
    fn hear(&mut self, slot: usize, operation: Operation) {
        let link = &mut self.links[slot];
        let Some(stderr) = &mut link.stderr else { return };
        link.hearing = true;
        // The rest of a worker that has gone is taken as far as it is there: a grandchild may hold the pipe for ever.
        let flags = if operation == Operation::HearRest { libc::RWF_NOWAIT } else { 0 };
        let entry =
            opcode::Read::new(types::Fd(stderr.pipe.as_raw_fd()), stderr.block.as_mut_ptr(), stderr.block.len() as u32)
                .offset(u64::MAX)
                .rw_flags(flags);
        // SAFETY: the link keeps the block and the pipe while `hearing` is set.
        unsafe { self.ring.submit(entry.build().user_data(operation.token(slot))) };
    }

    fn hear_rest(&mut self, slot: usize) {
        self.hear(slot, Operation::HearRest);
    }

    fn heard(&mut self, slot: usize, result: i32, operation: Operation) {
        let link = &mut self.links[slot];
        link.hearing = false;
        let leaving = link.closing == Closing::Leaving;
        let name = link.name;
        if let Some(stderr) = &mut link.stderr {
            let pool = self.pools.get(name.0).map_or("", |pool| pool.core.id.as_str());
            if result > 0 {
                stderr.take(result as usize, |line| log::worker_line(pool, name.1, line));
            }
            let over = result == 0 || (result < 0 && (operation == Operation::HearRest || result != -libc::ECANCELED));
            if over {
                stderr.finish(|line| log::worker_line(pool, name.1, line));
                link.stderr = None;
            }
        }
        if leaving && link.stderr.is_some() {
            return self.hear_rest(slot);
        }
        if !self.gone(slot) {
            self.hear(slot, Operation::Hear);
        }
    }

    fn arm_children(&mut self) {
        let entry = read_entry(self.signals.children.as_raw_fd(), self.children_seen.as_mut_slice());
        // SAFETY: the buffer and the pipe live as long as the shell.
        unsafe { self.ring.submit(entry.user_data(Operation::Children.token(0))) };
    }

    fn arm_stop(&mut self) {
        let entry = read_entry(self.signals.stop.as_raw_fd(), self.stops_seen.as_mut_slice());
        // SAFETY: the buffer and the pipe live as long as the shell.
        unsafe { self.ring.submit(entry.user_data(Operation::Stop.token(0))) };
    }

    /// Hands the log to the kernel, one write at a time.
    fn write_log(&mut self) {
        if self.logging {
            return;
        }
        if self.log_written >= self.log_line.len() {
            self.log_written = 0;
            if !log::take(&mut self.log_line) {
                return;
            }
        }
        let rest = &self.log_line[self.log_written..];
        let entry = opcode::Write::new(types::Fd(2), rest.as_ptr(), rest.len() as u32).offset(u64::MAX).build();
        self.logging = true;
        // SAFETY: the line is not touched while `logging` is set.
        unsafe { self.ring.submit(entry.user_data(Operation::Log.token(0))) };
    }

    fn logged(&mut self, result: i32) {
        self.logging = false;
        match result {
            0.. => self.log_written += result as usize,
            _ if result == -libc::EAGAIN || result == -libc::EINTR => {}
            // Nobody reads the log: it is dropped, and the daemon goes on.
            _ => self.log_written = self.log_line.len(),
        }
    }
}

fn receive_entry(socket: RawFd, more_to_read: bool) -> squeue::Entry {
    // A socket that was emptied is polled before it is tried again.
    let hint = if more_to_read { 0 } else { RECVSEND_POLL_FIRST };
    opcode::Recv::new(types::Fd(socket), std::ptr::null_mut(), 0)
        .ioprio(hint)
        .buf_group(GROUP)
        .build()
        .flags(squeue::Flags::BUFFER_SELECT)
}

/// IORING_RECVSEND_POLL_FIRST (io_uring_enter(2)).
const RECVSEND_POLL_FIRST: u16 = 1;

fn read_entry(descriptor: RawFd, into: &mut [u8]) -> squeue::Entry {
    opcode::Read::new(types::Fd(descriptor), into.as_mut_ptr(), into.len() as u32).offset(u64::MAX).build()
}
