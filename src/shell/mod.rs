//! The shell: the only place that calls the kernel. It moves bytes and decides nothing; what to do is said by the
//! core's effects.
//!
//! It has two halves, so that the core cannot be called while its effects are carried out: the [`Bus`], and the reactor
//! (`reactor.rs`) that hold whatever is open. This file has the loop between them; `read.rs` and `write.rs` move
//! bytes, `accept.rs` takes clients in, `handshakes` those who have to say something first, `web` is for those who speak
//! WebSocket, `workers` looks after processes, `memory.rs` after memory, and `close.rs` ends what they opened.
//!
//! A turn: enter the kernel once, take the completions, give their bytes to the core, carry out its effects into the
//! outboxes, start one write for each output that has something and is idle, arm what is to be read next. A connection
//! that brings more lines than fit into its turn goes behind the others; a busy turn may wait for more
//! (`io/batching.rs`).

mod accept;
mod acceptor;
mod admin;
mod budget;
mod clock;
mod close;
mod connection;
pub(crate) mod descriptors;
mod effects;
mod entry;
mod exit_watchdog;
mod framing;
mod handshakes;
mod inbox;
mod inherited;
mod listen;
mod liveness;
mod log;
mod memory;
mod notify;
mod operation;
mod outbox;
mod reactor;
mod read;
mod reread;
mod signals;
#[cfg(test)]
mod simulation;
mod source;
mod stderr;
mod websocket;
mod workers;
mod write;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use slab::Slab;

use crate::activation::Inherited;
use crate::bus::Bus;
use crate::bus::port::{Input, Moment, Origin};
use crate::bus::settings::MAX_CONNECTIONS;
use crate::bus::shutdown::Stage;
use crate::cgroup;
use crate::config::{Config, Listen, Listener, LogFormat};
use crate::error::{StartError, exit};
use crate::io::Io;
use crate::io::kernel::{Choice, Kernel, Refused};
use crate::io::ring::Completion;
use crate::reserve;
use acceptor::Acceptor;
use admin::Admin;
use admin::recent::Recent;
use budget::Budget;
use clock::{Clock, Gap};
use connection::{Connection, Kind};
use descriptors::{Allowance, Need};
use handshakes::Handshakes;
use handshakes::upgrade::UpgradePolicy;
use inherited::may_block;
use log::Batch;
use notify::{Condition, Notify};
use operation::Operation;
use reactor::Reactor;
use reread::{Rereading, Whose};
use signals::Signals;
use websocket::Pings;
use workers::processes::Processes;
use workers::reap::Reaper;

/// How long the last cancelled operations may take at the end.
const LAST_COMPLETIONS: Duration = Duration::from_millis(200);

/// Runs the daemon until it has drained, and returns what the program exits with: failure if something could not be
/// written that somebody may miss.
///
/// # Errors
/// Whatever keeps it from starting; once it runs, only a failure of the ring itself.
pub fn run(config: Config, inherited: Vec<Inherited>, choice: Choice) -> Result<u8, StartError> {
    log::install(config.log);
    exit_watchdog::limit_those_of_a_panic();
    let mut left = Unflushed::default();
    let result =
        StartupContext::prepare(&config).and_then(|context| match Kernel::open(choice, config.max_workers())? {
            Kernel::Ring(ring) => operate(ring, context, config, inherited, &mut left),
            Kernel::Epoll(epoll, why) => {
                let context = StartupContext { instead: Some(instead(why.as_ref())), ..context };
                operate(epoll, context, config, inherited, &mut left)
            }
        });
    // Signals that ask for the end are not heard any more.
    exit_watchdog::limit(result.as_ref().map_or_else(StartError::exit_code, |()| exit::FAILURE));
    let log_is_complete = !left.log_in_flight && log::flush(&mut left.log);
    result.map(|()| if left.unwritten == 0 && log_is_complete && !left.failed { exit::OK } else { exit::FAILURE })
}

/// Why the daemon does not run, as its log would say it.
pub fn last_line(error: &StartError, format: LogFormat) -> Vec<u8> {
    log::set_format(format);
    log::last_line(error)
}

/// What was not written in the time of the loop.
#[derive(Default)]
struct Unflushed {
    /// The begin of the log that is left.
    log: Batch,
    /// The kernel may write it yet: written again, it would stand there twice.
    log_in_flight: bool,
    /// Lines for our stdout.
    unwritten: usize,
    /// The core gave up.
    failed: bool,
}

/// What there is before the door to the kernel is opened.
struct StartupContext {
    signals: Signals,
    descriptors: Allowance,
    /// What to say of the door, if it is not the ring.
    instead: Option<String>,
}

impl StartupContext {
    fn prepare(config: &Config) -> Result<Self, StartError> {
        workers::spawn::keep_descriptors().map_err(StartError::io("mark inherited descriptors"))?;
        let signals = signals::install().map_err(StartError::io("install signal handlers"))?;
        Ok(Self { signals, descriptors: descriptors::allow(Need::of(config))?, instead: None })
    }
}

/// Why it is not the ring, what that costs, and how to get it.
fn instead(refused: Option<&Refused>) -> String {
    match refused {
        Some(Refused { why, remedy }) => format!(
            "{why}; epoll is used instead, which does the same and takes up to a fifth more CPU; to get io_uring: {remedy}"
        ),
        None => "epoll is used, as --io says; it takes up to a fifth more CPU than io_uring".to_owned(),
    }
}

/// The life of the daemon.
fn operate<I: Io>(
    io: I,
    context: StartupContext,
    config: Config,
    inherited: Vec<Inherited>,
    left: &mut Unflushed,
) -> Result<(), StartError> {
    let mut shell = start(io, context, config, inherited)?;
    let served = shell.serve();
    *left = shell.finish();
    served.map_err(StartError::io(&format!("use {}", I::NAME)))
}

/// Opens everything that can be missing or refused, then the doors.
fn start<I: Io>(
    mut io: I,
    context: StartupContext,
    config: Config,
    inherited: Vec<Inherited>,
) -> Result<Shell<I>, StartError> {
    let stdio = config.listeners.iter().position(|listener| matches!(listener.listen, Listen::Stdio));
    let (stdout, stderr) = (rustix::stdio::stdout(), rustix::stdio::stderr());
    for output in [stdio.map(|_| stdout), Some(stderr)].into_iter().flatten().filter(|output| may_block(*output)) {
        io.prepare_aside(output.as_raw_fd());
    }
    reserve::keep();
    let mut acceptors = Vec::new();
    let mut used = vec![false; inherited.len()];
    let others_until = Instant::now() + listen::OTHER_STARTS;
    for (index, listener) in config.listeners.iter().enumerate() {
        let opened = listen::open(&listener.listen, index, &inherited, &mut used, others_until)?;
        for listening in opened {
            let listening = listening.keep_alive(listener.patience.keepalive)?;
            acceptors.push(Acceptor::new(listening).named_by(listener));
        }
    }
    let open_admin =
        |admin: &crate::config::Admin| listen::open(&admin.listen, usize::MAX, &inherited, &mut used, others_until);
    let of_admin = config.admin.as_ref().map(open_admin).transpose()?;
    if let Some(unused) = used.iter().position(|used| !used) {
        // Its clients would wait for ever.
        let Inherited { number, address, .. } = &inherited[unused];
        let why =
            format!("it listens on {address}, and no listener does; add one to listeners, or take it out of the unit");
        return Err(StartError::Inherited { number: *number, why });
    }
    let of_admin = of_admin.into_iter().flatten().take(admin::MOST_SOCKETS).map(Acceptor::new).collect();
    let admin = Admin::new(&config, of_admin, &acceptors);
    tracing::info!("stdio_bus {} {}", env!("CARGO_PKG_VERSION"), config.summary());
    if let Some(instead) = &context.instead {
        tracing::info!("{instead}");
    }
    for doubt in config.open_listeners().into_iter().chain(config.doubtful_pools()) {
        tracing::warn!("{doubt}");
    }
    for problem in &config.missing {
        tracing::error!(
            "{}:{problem}; this pool has no workers until that is mended, and the others run",
            config.origin
        );
    }
    let (description, unregistered) = io.describe();
    tracing::debug!("{}: {description}", I::NAME);
    if let Some((clients, allowed)) = context.descriptors.fewer_clients {
        tracing::warn!(
            "{clients} clients at once fit into the {allowed} descriptors that are allowed, and not {MAX_CONNECTIONS}; \
             raise the hard limit of RLIMIT_NOFILE for more (LimitNOFILE= in systemd, --ulimit nofile= in Docker)"
        );
    }
    if let Some(error) = unregistered {
        let remedy = match error.raw_os_error() {
            Some(libc::ENOMEM) => "; raise RLIMIT_MEMLOCK for a few percent less CPU",
            _ => "",
        };
        tracing::info!("buffers are not registered ({error}){remedy}");
    }
    if let Some(doubt) = cgroup::doubt(config.limits.max_memory) {
        tracing::warn!(reason = "memory_limit", "{doubt}");
    }
    let bell = context.signals.bell.try_clone().map_err(StartError::io("copy a descriptor"))?;
    let tokens_of = |(at, listener): (usize, &Listener)| {
        let path = listener.web.as_ref().and_then(|web| web.tokens_file.clone())?;
        Some((Whose::Listener(at), path))
    };
    let of_admin = config.admin.as_ref().and_then(|admin| admin.token_file.clone()).map(|path| (Whose::Admin, path));
    let files: Vec<_> = config.listeners.iter().enumerate().filter_map(tokens_of).chain(of_admin).collect();
    let mut shell = Shell::new(config, io, Box::new(Reaper::new(bell)), context, acceptors, admin);
    if !files.is_empty() {
        let rereading = Rereading::begin(files).map_err(StartError::io("make a thread that reads tokens again"))?;
        shell.reactor.rereading = Some(rereading);
    }
    shell.reactor.notify = Notify::from_environment();
    shell.start_listening(stdio);
    Ok(shell)
}

fn condition(bus: &Bus, now: Moment) -> Condition {
    let (mut running, mut wanted) = (0, 0);
    for pool in bus.staffing() {
        running += pool.running;
        wanted += pool.running + pool.missing;
    }
    Condition { is_ready: bus.has_started(now), running, wanted, clients: bus.levels().clients.used }
}

/// The running daemon: the core, and the reactor that do what it wants.
struct Shell<I: Io> {
    bus: Bus,
    reactor: Reactor<I>,
    admin: Admin,
    /// Lines that the core had taken before this turn.
    lines: u64,
    /// Those of the last turn.
    completions: Vec<Completion>,
}

impl<I: Io> Shell<I> {
    fn new(
        config: Config,
        mut io: I,
        processes: Box<dyn Processes>,
        context: StartupContext,
        acceptors: Vec<Acceptor>,
        admin: Admin,
    ) -> Self {
        let StartupContext { signals, descriptors: Allowance { of_workers, fewer_clients, handshakes }, .. } = context;
        let mut settings = config.settings();
        if let Some((clients, _)) = fewer_clients {
            settings.most_clients = clients;
        }
        let bus = Bus::new(settings);
        let memory = Budget::new(config.limits.max_memory);
        io.buffers().keep_spares_below(memory.short_above());
        let asleep = io.asleep();
        let reactor = Reactor {
            io,
            clock: Clock::new(asleep),
            longest_client_line: config.limits.max_input_buffer,
            longest_worker_line: config.limits.max_worker_line(),
            descriptors: of_workers,
            connections: Slab::new(),
            clients: vec![None; MAX_CONNECTIONS],
            workers: Vec::new(),
            acceptors,
            handshakes: Handshakes::new(handshakes),
            policies: config.listeners.iter().map(|listener| UpgradePolicy::of(listener, &config.pools)).collect(),
            rereading: None,
            pings: Pings::default(),
            silence_allowed: config.listeners.iter().map(liveness::allowed_by).collect(),
            silence_due: None,
            accept_paused: false,
            closed_for_good: false,
            processes,
            signals,
            children_seen: Box::leak(Box::new([0; 64])),
            stops_seen: Box::leak(Box::new([0; 8])),
            log: Batch::default(),
            logging: false,
            log_awaits_room: false,
            log_half_closed: false,
            log_aside: may_block(rustix::stdio::stderr()),
            retry_writing_at: None,
            told_of_no_thread: false,
            full: BinaryHeap::new(),
            reader_gone: false,
            unwritten: 0,
            left_out_due: None,
            notify: Notify::nobody(),
            dirty: Vec::new(),
            resumed: VecDeque::new(),
            starved: Vec::new(),
            inputs: VecDeque::new(),
            memory,
            done: false,
            recent: Recent::default(),
            pools: config.pools,
        };
        Self { bus, reactor, admin, lines: 0, completions: Vec::with_capacity(256) }
    }

    /// `stdio` is the listener that is our own stdin and stdout.
    fn start_listening(&mut self, stdio: Option<usize>) {
        let now = self.reactor.clock.now();
        self.reactor.arm_children();
        self.reactor.arm_stop();
        self.arm_rereading();
        self.reactor.carry_out(self.bus.start(now), None);
        self.drain_inputs();
        for acceptor in &self.reactor.acceptors {
            tracing::info!("listening on {}", acceptor.address);
        }
        for acceptor in 0..self.reactor.acceptors.len() {
            self.reactor.arm_accept(acceptor);
        }
        self.open_admin();
        if let Some(listener) = stdio {
            let (stdin, stdout) = (rustix::stdio::stdin(), rustix::stdio::stdout());
            self.add_client(listener, Origin::default(), &[], |peer| Connection::stdio(peer, stdin, stdout));
            tracing::info!("serving one client on stdin and stdout");
        }
    }

    /// The loop.
    fn serve(&mut self) -> io::Result<()> {
        while !self.turn()? {}
        Ok(())
    }

    /// One turn. True when everything is over.
    fn turn(&mut self) -> io::Result<bool> {
        while !self.reactor.dirty.is_empty() {
            self.reactor.write_dirty(self.reactor.clock.now());
            self.drain_inputs();
        }
        self.reactor.write_log();
        if self.reactor.done {
            return Ok(true);
        }
        let planned = Clock::wait_for(self.poll_timeout(), self.bus.has_clients());
        let reactor = &mut self.reactor;
        let so_far = self.bus.lines_taken();
        reactor.io.carried(so_far - std::mem::replace(&mut self.lines, so_far));
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let is_watched = self.admin.is_on();
        if is_watched {
            self.admin.turn_ends(reactor.io.elapsed());
        }
        reactor.io.turn(planned, &mut completions)?;
        let elapsed = reactor.io.elapsed();
        if is_watched {
            self.admin.turn_begins(elapsed);
        }
        let gap = reactor.clock.read(elapsed, || reactor.io.asleep(), planned);
        let now = reactor.clock.now();
        if let Some(Gap { held_up, suspended }) = gap {
            // A signal may have ended the wait before that brought anything: what has come by now belongs to this moment.
            reactor.io.turn(Some(Duration::ZERO), &mut completions)?;
            self.tell(now, Input::Gap { held_up, suspended });
        }
        for completion in &completions {
            self.complete(now, completion);
        }
        self.completions = completions;
        self.resume_connections(now);
        if self.reactor.clock.hears_until() <= now {
            if self.bus.next_deadline().is_some_and(|deadline| deadline <= now) {
                self.tell(now, Input::Tick);
                self.resume_connections(now);
            }
            self.reactor.expire_handshakes(now);
            self.reactor.ping(now);
        }
        self.reactor.retry_accepting(now);
        self.reactor.close_dead_peers(now);
        self.drain_inputs();
        self.reactor.retry_writing(now);
        self.reactor.retry_sending(now);
        self.reactor.tell_left_out(now);
        self.notify();
        self.check_memory(now);
        if self.admin.is_on() {
            self.work_for_admin(now);
            self.tick_admin(now);
        }
        for connection in std::mem::take(&mut self.reactor.starved) {
            self.reactor.arm_read(connection);
        }
        Ok(false)
    }

    /// How long the next turn may wait.
    fn poll_timeout(&mut self) -> Option<Duration> {
        if !self.reactor.resumed.is_empty() {
            return Some(Duration::ZERO);
        }
        let ping = self.reactor.next_ping();
        let reactor = &self.reactor;
        let retry = reactor.acceptors.iter().filter_map(|acceptor| acceptor.retry_at).min();
        let (writing, left_out) = (reactor.retry_writing_at, reactor.left_out_due);
        let sending = reactor.full.peek().map(|Reverse((due, _))| *due);
        let waits = [retry, reactor.handshakes.due(), ping, writing, sending, left_out, reactor.silence_due];
        let due = [self.bus.next_deadline(), self.memory_due(), self.admin.due()].into_iter().chain(waits);
        let deadline = due.flatten().min().map(|deadline| deadline.max(reactor.clock.hears_until()));
        let deadline = deadline.map(|deadline| deadline.since(reactor.clock.now()));
        let notice = reactor.notify.due().map(|due| due.saturating_sub(reactor.io.elapsed()));
        [deadline, notice].into_iter().flatten().min()
    }

    /// Tells the service manager what there is to tell.
    fn notify(&mut self) {
        let Reactor { notify, io, clock, .. } = &mut self.reactor;
        if self.bus.stage() > Stage::Running {
            notify.stops();
        }
        if notify.due().is_some() {
            notify.tell(io.elapsed(), || condition(&self.bus, clock.now()));
        }
    }

    /// Cancels what is in flight, so that buffers outlive it, and ends whoever is left.
    fn finish(&mut self) -> Unflushed {
        let killed = self.reactor.processes.kill_the_rest();
        if !killed.is_empty() {
            tracing::warn!("killed {} processes that outlived their workers: {killed:?}", killed.len());
        }
        let slots: Vec<usize> = self.reactor.connections.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.reactor.leave(slot);
        }
        self.reactor.cancel_handshakes();
        self.close_admin();
        self.settle();
        if self.reactor.logging {
            // It is written again from where it stopped.
            self.reactor.io.cancel(Operation::Log.token(0));
            self.settle();
        }
        self.forget_admin();
        let reactor = &mut self.reactor;
        // What the kernel still holds may still be written to: it stays until the process ends.
        let connections = std::mem::take(&mut reactor.connections);
        for (_, connection) in connections.into_iter().filter(|(_, connection)| !connection.is_idle()) {
            if connection.kind == Kind::Stdio {
                reactor.count_unwritten(connection.outbox.lines());
            }
            std::mem::forget(connection);
        }
        std::mem::forget(std::mem::take(&mut reactor.handshakes));
        let stats = self.bus.stats();
        tracing::info!(
            "stopped: {} lines from clients, {} from workers, {} error replies",
            stats.lines_from_clients,
            stats.lines_from_workers,
            stats.error_replies
        );
        let mut left = Unflushed {
            log: std::mem::take(&mut reactor.log),
            log_in_flight: reactor.logging,
            unwritten: reactor.unwritten,
            failed: self.bus.has_failed(),
        };
        if left.log_in_flight {
            std::mem::forget(std::mem::take(&mut left.log));
        }
        left
    }

    /// Takes the last completions, for a while.
    fn settle(&mut self) {
        let mut completions = Vec::new();
        for _ in 0..4 {
            let reactor = &mut self.reactor;
            let settled = reactor.connections.is_empty()
                && reactor.handshakes.is_empty()
                && !reactor.logging
                && self.admin.is_empty();
            if settled || reactor.io.turn(Some(LAST_COMPLETIONS / 4), &mut completions).is_err() {
                break;
            }
            for completion in std::mem::take(&mut completions) {
                self.complete(self.reactor.clock.now(), &completion);
            }
        }
    }

    fn complete(&mut self, now: Moment, completion: &Completion) {
        let Some((operation, slot)) = Operation::of(completion.token) else {
            debug_assert!(false, "nothing was submitted with the token {:#x}", completion.token);
            return;
        };
        match operation {
            Operation::Accept => self.accepted(now, slot, completion.result),
            Operation::Handshake => self.handshake_step(now, slot, completion.result),
            Operation::Read => self.read(now, slot, completion.result),
            Operation::Receive => self.received(now, slot, completion),
            Operation::Write => self.reactor.written(now, slot, completion.result),
            Operation::Watch => self.reactor.watched(now, slot, completion.result),
            Operation::ReadStderr | Operation::ReadRestOfStderr => {
                self.reactor.stderr_read(slot, completion.result, operation);
            }
            Operation::Children => {
                self.reactor.notify.changed();
                self.reactor.started(now);
                self.reactor.reap(now);
                self.reactor.arm_children();
            }
            Operation::Stop => {
                // Signals that came together are one: timeout(1) sends its signal to us and to our group.
                if completion.result > 0 {
                    self.reactor.tell(now, Input::Shutdown);
                }
                self.reactor.arm_stop();
            }
            Operation::AdminAccept => self.admin_accepted(now, slot, completion.result),
            Operation::AdminReceive => self.admin_received(now, slot, completion.result),
            Operation::AdminSend => self.admin_sent(now, slot, completion.result),
            Operation::Reread => self.reread(now),
            Operation::Log => self.reactor.log_written(now, completion.result),
        }
        self.drain_inputs();
    }

    /// Tells the core something at once, and does what it says.
    fn tell(&mut self, now: Moment, input: Input) {
        self.reactor.carry_out(self.bus.handle(now, input), None);
        self.drain_inputs();
    }

    /// Tells the core what happened while its effects were carried out, and what that leads to.
    fn drain_inputs(&mut self) {
        while let Some((now, input)) = self.reactor.inputs.pop_front() {
            self.reactor.carry_out(self.bus.handle(now, input), None);
        }
    }
}
