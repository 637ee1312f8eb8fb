//! The loop: the core, and the reactor that carries out its effects. A turn enters the kernel once, takes the
//! completions, presents their bytes to the core, carries out its effects into the outboxes, starts one write for each
//! idle output with something to write, and submits the next reads.
//!
//! Invariant: after each action the core gets what has happened meanwhile, before the next action ([`Shell::step`]).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::admin::Admin;
use super::admin::wall_clock::WallClock;
use super::clock::Clock;
use super::connection_counts::ConnectionCounts;
use super::connections::Connections;
use super::descriptors::Allowance;
use super::http::Http;
use super::http::exchange::Exchange;
use super::listeners::{Acceptor, ClientTerms, Listeners};
use super::log::{self, Batch};
use super::memory_pressure::MemoryPressure;
use super::notify::{Condition, Notify};
use super::operation::Operation;
use super::persistence::Persistence;
use super::reactor::{Reactor, Workers};
use super::reload::Reloads;
use super::signals::Signals;
use super::stdio::{LogOutput, Stdio};
use super::timers::{Timer, Timers, earlier};
use super::transport::Transport;
use super::workers::processes::Processes;
use crate::bus::Bus;
use crate::bus::port::{Input, ListenerId, Moment, Origin};
use crate::bus::shutdown::Stage;
use crate::io::Io;
use crate::io::ring::Completion;

/// A deadline that is noticed this late was not noticed for want of CPU, and what has arrived meanwhile comes first.
const LATE: Duration = Duration::from_millis(1);

/// How long to wait for the last cancelled operations at the end.
const LAST_COMPLETIONS: Duration = Duration::from_millis(200);

/// Output that the loop did not write.
#[derive(Default)]
pub(super) struct Unflushed {
    /// The beginning of the remaining log.
    pub log: Batch,
    /// The kernel may still write it: writing it again would duplicate it.
    pub log_in_flight: bool,
    /// Lines for stdout.
    pub unwritten: usize,
    /// The next start finds an older state.
    pub has_lost_state: bool,
}

/// The running daemon: the core, and the reactor that carries out its effects.
pub(super) struct Shell<I: Io> {
    pub bus: Bus,
    pub reactor: Reactor<I>,
    pub admin: Admin,
    pub reloads: Reloads,
    pub started_at: WallClock,
    /// Completions of the last turn.
    completions: Vec<Completion>,
}

impl<I: Io> Shell<I> {
    pub(super) fn new(
        reloads: Reloads,
        mut io: I,
        processes: Box<dyn Processes>,
        signals: Signals,
        descriptors: Allowance,
        acceptors: Vec<Acceptor>,
        admin: Admin,
    ) -> Self {
        let Allowance { of_workers, fewer_clients, handshakes, http } = descriptors;
        let config = Arc::clone(&reloads.running);
        let mut settings = config.settings();
        if let Some((clients, _)) = fewer_clients {
            settings.most_clients = clients;
        }
        let mut bus = Bus::new(settings);
        bus.record_requests(config.log.requests);
        let memory = MemoryPressure::new(config.limits.max_memory);
        io.buffers().keep_spares_below(memory.short_above());
        let terms = config.listeners.iter().map(|listener| ClientTerms::of(listener, &config)).collect();
        let reactor = Reactor {
            clock: Clock::new(io.asleep()),
            io,
            timers: Timers::default(),
            connections: Connections::new(&config, ConnectionCounts::new(http, handshakes)),
            listeners: Listeners::new(acceptors, terms, config.has_personal_pools()),
            http: Http::new(&config),
            workers: Workers::new(processes, &config, of_workers),
            signals,
            log: LogOutput::for_stderr(),
            stdio: Stdio::default(),
            notify: Notify::default(),
            persistence: Persistence::default(),
            memory,
            inputs: VecDeque::new(),
            is_done: false,
        };
        Self { bus, reactor, admin, reloads, started_at: WallClock::now(), completions: Vec::with_capacity(256) }
    }

    /// `stdio` is the listener on the process's stdin and stdout.
    pub(super) fn start_listening(&mut self, stdio: Option<ListenerId>) {
        let now = self.reactor.clock.now();
        let Reactor { io, signals, .. } = &mut self.reactor;
        signals.children.arm(io, Operation::Children);
        signals.stop.arm(io, Operation::Stop);
        if let Some(hangup) = &mut signals.hangup {
            hangup.arm(io, Operation::Hangup);
        }
        self.step(|shell| shell.reactor.carry_out(shell.bus.start(now), None));
        for acceptor in self.reactor.listeners.there() {
            let address = &acceptor.address;
            match acceptor.for_admin {
                true => tracing::info!("the admin listener is {address}"),
                false => tracing::info!("listening on {address}"),
            }
        }
        self.reactor.start_accepting();
        self.admin.start(&mut self.reactor.timers, now);
        self.watch_memories(now);
        if let Some(listener) = stdio {
            let (stdin, stdout) = (rustix::stdio::stdin(), rustix::stdio::stdout());
            self.step(|shell| {
                shell.add_client(listener, Origin::default(), Transport::stdio(stdin, stdout));
            });
            tracing::info!("serving one client on stdin and stdout");
        }
    }

    /// Does one action, gives the core what has happened meanwhile, and carries out the consequences.
    pub(super) fn step(&mut self, act: impl FnOnce(&mut Self)) {
        act(self);
        while let Some((now, input)) = self.reactor.inputs.pop_front() {
            self.reactor.carry_out(self.bus.handle(now, input), None);
        }
    }

    /// The loop.
    pub(super) fn serve(&mut self) -> io::Result<()> {
        while !self.turn()? {}
        Ok(())
    }

    /// One turn. True when everything is finished.
    pub(super) fn turn(&mut self) -> io::Result<bool> {
        while let Some(slot) = self.reactor.connections.next_dirty() {
            self.step(|shell| shell.write(shell.reactor.clock.now(), slot));
        }
        self.log_requests();
        self.reactor.write_log();
        if self.reactor.is_done {
            return Ok(true);
        }
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let gap = self.enter(&mut completions)?;
        let now = self.reactor.clock.now();
        if gap.is_some() || self.is_late(now) {
            // A signal, or its time, may have ended the wait before the completions that it caused: those available by now
            // belong to this moment, and nobody is taken for silent who has spoken by then.
            self.reactor.io.turn(Some(Duration::ZERO), &mut completions)?;
        }
        if let Some((held_up, suspended)) = gap {
            self.step(|shell| shell.reactor.dispatch(now, Input::ClockJumped { held_up, suspended }));
        }
        for completion in &completions {
            self.step(|shell| shell.complete(now, completion));
        }
        self.completions = completions;
        self.resume_connections(now);
        if self.reactor.clock.deadlines_from() <= now {
            if self.bus.view().next_deadline().is_some_and(|deadline| deadline <= now) {
                self.step(|shell| shell.reactor.dispatch(now, Input::Tick));
                self.resume_connections(now);
            }
            self.run_timers(now);
        }
        self.step(|shell| shell.check_reload(now));
        self.notify();
        self.check_memory(now);
        if self.reactor.persistence.is_on() {
            let next = self.reactor.persistence.write(now, self.bus.view(), &self.reloads.running);
            next.into_iter().for_each(|at| self.reactor.timers.set_at_latest(Timer::State, at));
        }
        self.step(|shell| shell.work_for_admin(now));
        if self.reactor.http.is_busy() {
            self.step(|shell| shell.work_for_http(now));
        }
        if !self.reactor.connections.starved.is_empty() {
            for slot in std::mem::take(&mut self.reactor.connections.starved) {
                self.reactor.receive_again(slot);
            }
        }
        Ok(false)
    }

    /// Waits for completions, at most until the next deadline. Returns for how long the daemon did not run
    /// ([`Clock::read`]).
    fn enter(&mut self, completions: &mut Vec<Completion>) -> io::Result<Option<(Duration, Duration)>> {
        let planned = Clock::wait_for(self.poll_timeout(), self.bus.view().has_clients());
        let reactor = &mut self.reactor;
        if let Some(since) = self.admin.turned_at {
            self.admin.turns.observe(reactor.io.elapsed().saturating_sub(since));
        }
        reactor.io.turn(planned, completions)?;
        let elapsed = reactor.io.turned_at();
        self.admin.turned_at = self.admin.is_on.then_some(elapsed);
        Ok(reactor.clock.read(elapsed, || reactor.io.asleep(), planned))
    }

    /// Whether the core's next deadline has passed for so long that the daemon had no CPU then.
    fn is_late(&self, now: Moment) -> bool {
        self.bus.view().next_deadline().is_some_and(|deadline| deadline.after(LATE) <= now)
    }

    /// How long the next turn may wait.
    fn poll_timeout(&self) -> Option<Duration> {
        let reactor = &self.reactor;
        if !reactor.connections.resumed.is_empty() || !self.admin.busy.is_empty() || reactor.http.is_busy() {
            return Some(Duration::ZERO);
        }
        let deadline = earlier(self.bus.view().next_deadline(), reactor.timers.next);
        let wait = deadline.map(|deadline| deadline.max(reactor.clock.deadlines_from()).since(reactor.clock.now()));
        let notice = reactor.notify.due().map(|due| due.saturating_sub(reactor.io.turned_at()));
        earlier(wait, notice)
    }

    #[inline]
    fn resume_connections(&mut self, now: Moment) {
        // Only those queued now: one that is queued meanwhile has its turn after the next completions.
        for _ in 0..self.reactor.connections.resumed.len() {
            self.step(|shell| shell.resume_next(now));
        }
    }

    /// Handles expired timers.
    fn run_timers(&mut self, now: Moment) {
        while let Some(timer) = self.reactor.timers.take_due(now) {
            self.step(|shell| match timer {
                Timer::Connection(slot) => shell.connection_due(now, slot),
                Timer::Accept(index) => shell.reactor.retry_accepting(now, index),
                Timer::Output => shell.reactor.retry_writing(),
                Timer::Log => log::hurry(),
                Timer::Memory => shell.reactor.memory.is_due = true,
                Timer::Session(client) => shell.session_due(now, client),
                Timer::History => shell.sample_history(now),
                Timer::Memories => shell.ask_for_memories(now),
                // They are checked in each turn.
                Timer::Reload | Timer::State => {}
            });
        }
    }

    /// Logs finished requests.
    #[inline]
    fn log_requests(&mut self) {
        if !self.bus.view().records_requests() && self.reactor.log.requests.lost == 0 {
            return;
        }
        let Reactor { log, workers, clock, .. } = &mut self.reactor;
        log.requests.write(clock.now(), &mut self.bus, &workers.pools);
    }

    /// Sends due messages to the service manager.
    fn notify(&mut self) {
        let Reactor { notify, io, clock, .. } = &mut self.reactor;
        if self.bus.view().stage() > Stage::Running {
            notify.stops();
        }
        if notify.due().is_some() {
            notify.send_due(io.turned_at(), || {
                let (running, wanted) = self.bus.view().staffing();
                let is_ready = self.bus.view().has_started(clock.now());
                Condition { is_ready, running, wanted, clients: self.bus.view().levels().clients.used }
            });
        }
    }

    /// Cancels what is in flight, so that buffers outlive it, and closes the remaining connections.
    pub(super) fn finish(&mut self) -> Unflushed {
        let killed = self.reactor.workers.processes.kill_the_rest();
        if !killed.is_empty() {
            tracing::warn!("killed {} processes that outlived their workers: {killed:?}", killed.len());
        }
        let slots: Vec<usize> = self.reactor.connections.all_peers().map(|(slot, ..)| slot).collect();
        for slot in slots {
            self.reactor.begin_close(slot);
        }
        self.send_last_answers();
        self.close_admin();
        if self.reactor.connections.all_http().next().is_some() {
            // Flush what was submitted last: without the end of their streams clients would take them for broken.
            self.take_completions(Duration::ZERO);
            self.close_all_http(self.reactor.clock.now(), |_| true);
        }
        self.settle();
        if self.reactor.log.is_busy() {
            // It is written again from where it stopped.
            self.reactor.cancel(Operation::Log, 0);
            self.settle();
        }
        let is_saved = self.reactor.persistence.close(self.bus.view(), &self.reloads.running);
        self.log_requests();
        let reactor = &mut self.reactor;
        reactor.log.requests.report_lost(reactor.clock.now(), Duration::ZERO);
        // Connections that the kernel may still use are leaked until the process ends.
        for connection in reactor.connections.take_all().filter(|it| !it.transport.in_flight.is_empty()) {
            if connection.transport.ends.is_stdio() {
                reactor.stdio.count_unwritten(connection.transport.outbox.lines());
            }
            std::mem::forget(connection);
        }
        let stats = self.bus.view().stats();
        tracing::info!(
            "stopped: {} lines from clients, {} from workers, {} error replies",
            stats.client_side.lines_in,
            stats.worker_side.lines_in,
            stats.error_replies
        );
        let mut left = Unflushed {
            log_in_flight: reactor.log.is_busy(),
            log: std::mem::take(&mut reactor.log.batch),
            unwritten: reactor.stdio.unwritten,
            has_lost_state: !is_saved,
        };
        if left.log_in_flight {
            std::mem::forget(std::mem::take(&mut left.log));
        }
        left
    }

    /// Sends operators what they are answered in the last turn: that the daemon drains, for one.
    fn send_last_answers(&mut self) {
        let is_owed = |exchange: &Exchange| exchange.is_operators() && exchange.outgoing.weight() > 0;
        let all = self.reactor.connections.all_http().filter(|(_, _, exchange)| is_owed(exchange));
        let slots: Vec<usize> = all.map(|(slot, ..)| slot).collect();
        for slot in &slots {
            self.send_http(self.reactor.clock.now(), *slot);
        }
        if !slots.is_empty() {
            self.take_completions(Duration::ZERO);
        }
    }

    /// Takes the last completions, for a limited time.
    fn settle(&mut self) {
        let until = self.reactor.io.elapsed() + LAST_COMPLETIONS;
        loop {
            let reactor = &self.reactor;
            let is_settled = reactor.connections.is_empty() && !reactor.log.is_busy();
            let left = until.saturating_sub(reactor.io.elapsed());
            if is_settled || left.is_zero() || !self.take_completions(left) {
                break;
            }
        }
    }

    /// Lets the kernel work, for at most `wait` if nothing completes. False if it fails.
    fn take_completions(&mut self, wait: Duration) -> bool {
        let mut completions = Vec::new();
        let reactor = &mut self.reactor;
        let works = reactor.io.turn(Some(wait), &mut completions).is_ok();
        let now = reactor.clock.now();
        for completion in completions {
            self.step(|shell| shell.complete(now, &completion));
        }
        works
    }

    fn complete(&mut self, now: Moment, completion: &Completion) {
        let Some((operation, slot)) = Operation::of(completion.token) else {
            debug_assert!(false, "nothing was submitted with the token {:#x}", completion.token);
            return;
        };
        match operation {
            Operation::Accept => self.connected(now, slot, completion.result),
            Operation::Read => self.read(now, slot, completion.result),
            Operation::Receive => self.received(now, slot, completion),
            Operation::Write => self.written(now, slot, completion.result),
            Operation::Watch => self.reactor.watched(now, slot, completion.result),
            Operation::ReadStderr => self.reactor.stderr_read(slot, completion.result),
            Operation::Children => {
                if self.reactor.signals.reopen.swap(false, Ordering::Relaxed) {
                    self.open_log_again();
                }
                self.reactor.notify.changed();
                self.reactor.started(now);
                self.reactor.reap(now);
                self.take_messages(now);
                self.reactor.signals.children.arm(&mut self.reactor.io, operation);
            }
            Operation::Stop => {
                // Simultaneous signals count as one: timeout(1) sends its signal to us and to our group.
                if completion.result > 0 {
                    self.reactor.dispatch(now, Input::Shutdown);
                }
                self.reactor.signals.stop.arm(&mut self.reactor.io, operation);
            }
            Operation::Hangup => self.hung_up(now),
            Operation::Log => self.reactor.log_written(now, completion.result),
        }
    }
}
