//! Begins a reload, and applies what was prepared: the new configuration replaces the running one in one step. If anything
//! is wrong with it, the old one continues.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use super::prepare::Prepared;
use crate::bus::port::{Input, ListenerId, Moment, PoolId};
use crate::bus::shutdown::Stage;
use crate::config::plan::{InUse, Plan};
use crate::error::{StartError, exit};
use crate::io::Io;
use crate::shell::descriptors::Allowance;
use crate::shell::listen::Listening;
use crate::shell::listeners::Acceptor;
use crate::shell::log;
use crate::shell::log_file;
use crate::shell::loop_handle::LoopMessage;
use crate::shell::operation::Operation;
use crate::shell::timers::Timer;
use crate::shell::turn::Shell;

/// How long a reload waits for new commands to prove themselves.
const SETTLES_WITHIN: Duration = Duration::from_secs(30);

impl<I: Io> Shell<I> {
    /// SIGHUP: reloads the configuration, or drains if there is none to reload or the terminal has hung up.
    pub(in crate::shell) fn hung_up(&mut self, now: Moment) {
        if let Some(hangup) = &mut self.reactor.signals.hangup {
            hangup.arm(&mut self.reactor.io, Operation::Hangup);
        }
        if self.reloads.source.again.is_none() || self.reactor.signals.terminal_has_gone() {
            return self.reactor.dispatch(now, Input::Shutdown);
        }
        tracing::info!("SIGHUP: the configuration is read again");
        self.reloads.is_wanted = self.reloads.outcomes.last.is_under_way;
        if let Err(why) = self.begin_reload(false) {
            tracing::warn!("{why}");
        }
    }

    /// SIGUSR1: the log's file was moved away, and another one takes its place.
    pub(in crate::shell) fn open_log_again(&mut self) {
        if let Some(file) = &self.reloads.running.log.file
            && self.reactor.write_log_to(Some(file), log_file::opened(file).map(Some))
        {
            tracing::info!("SIGUSR1: the log file was opened again");
        }
    }

    /// Begins a reload.
    ///
    /// # Errors
    /// There is nothing to reload, another reload is in progress, or the daemon shuts down.
    pub(in crate::shell) fn begin_reload(&mut self, is_dry_run: bool) -> Result<(), String> {
        if self.reloads.source.again.is_none() {
            return Err(
                "there is no file to read again: restart the daemon with --config PATH, and let PATH be a file, not a \
                 pipe"
                    .to_owned(),
            );
        }
        if self.bus.view().stage() > Stage::Running {
            return Err("the daemon is shutting down, and no longer reads its configuration".to_owned());
        }
        if self.reloads.outcomes.last.is_under_way {
            return Err("another reload is under way".to_owned());
        }
        let running = &self.reloads.running;
        let in_use = InUse {
            pools: (0..running.pools.len()).map(|pool| self.bus.view().pool_in_use(pool)).collect(),
            // Connections without a client would pass on to the listener that gets the place next.
            listeners: (0..running.listeners.len())
                .map(ListenerId::at)
                .map(|listener| {
                    self.bus.view().listener_in_use(listener) || self.reactor.connections.is_connected_to(listener)
                })
                .collect(),
        };
        let begun = self.reactor.listeners.own_tcp().and_then(|own| {
            let loop_handle = &self.reactor.signals.loop_handle;
            self.reloads.begin(loop_handle, in_use, own, is_dry_run)
        });
        begun.map_err(|error| format!("cannot begin to reload: {error}"))?;
        if !is_dry_run {
            self.reactor.notify.reloads();
        }
        Ok(())
    }

    /// Handles a prepared configuration.
    fn take_prepared(&mut self, now: Moment, prepared: Result<Prepared, StartError>) {
        match prepared {
            Err(error) => self.end_reload(error.exit_code(), error.to_string().lines().map(str::to_owned)),
            Ok(prepared) if self.reloads.outcomes.last.is_dry_run => {
                let lines = self.outcome_lines(&prepared);
                self.end_reload(exit::OK, lines);
            }
            Ok(_) if self.bus.view().stage() > Stage::Running => {
                self.end_reload(exit::FAILURE, ["the daemon shuts down".to_owned()]);
            }
            Ok(prepared) => {
                self.reloads.outcomes.last.lines = self.outcome_lines(&prepared);
                self.take_over(now, prepared);
                let until = now.after(SETTLES_WITHIN);
                self.reloads.settles_by = Some(until);
                self.reactor.timers.set(Timer::Reload, Some(until));
            }
        }
    }

    /// The messages about changes, and the new warnings.
    fn outcome_lines(&self, prepared: &Prepared) -> Vec<String> {
        let (plan, before) = (&prepared.plan, self.reloads.running.warnings());
        let mut lines = plan.changes.clone();
        if lines.is_empty() {
            lines.push("nothing has changed".to_owned());
        }
        let new = plan.config.warnings().into_iter().filter(|warning| !before.contains(warning));
        lines.extend(new.map(|warning| format!("warning: {warning}")));
        lines
    }

    /// Makes a prepared configuration the running one.
    fn take_over(&mut self, now: Moment, prepared: Prepared) {
        let Prepared { plan, opened, allowance, log } = prepared;
        let config = &plan.config;
        log::set_level(config.log.level);
        if config.log.file != self.reloads.running.log.file {
            self.reactor.write_log_to(config.log.file.as_deref(), Ok(log));
        }
        log::set_format(config.log.format);
        self.bus.record_requests(config.log.requests);
        let moved = self.leave_listeners(now, &plan, &opened);
        let settled =
            |pool: PoolId, generation| self.bus.view().settled_commands(pool).any(|settled| settled == generation);
        self.reactor.workers.configure(config, settled);
        let reactor = &mut self.reactor;
        reactor.connections.configure(config);
        reactor.http.configure(config);
        reactor.persistence.configure(config);
        reactor.persistence.take_owners(self.bus.view(), &self.reloads.running, config);
        reactor.memory.most = config.limits.max_memory;
        reactor.io.buffers().keep_spares_below(reactor.memory.short_above());
        reactor.listeners.configure(config);
        if let Some(Allowance { handshakes, http, .. }) = allowance {
            self.reactor.connections.counts.allow(http, handshakes);
        }
        self.step(|shell| {
            shell.reactor.carry_out(shell.bus.reload(now, config.settings()), None);
            shell.reactor.persistence.bind_owners(&mut shell.bus, config);
        });
        for listening in opened {
            if !listening.is_inherited {
                self.reactor.io.opened(listening.socket.as_raw_fd());
            }
            let acceptor = Acceptor::new(listening, &config.listeners);
            tracing::info!("listening on {}", acceptor.address);
            let index = self.reactor.listeners.add(acceptor);
            self.reactor.arm_accept(index);
        }
        for (index, to) in moved {
            self.reactor.listeners.acceptors[index].belong_to(to, &config.listeners[to.index()]);
            self.step(|shell| shell.empty_backlog(now, index));
            self.give_up_acceptor(index);
        }
        // Sockets of a paused listener may be another one's now.
        self.reactor.start_accepting();
        self.admin.configure(config, self.reactor.listeners.there());
        self.begin_history(now);
        if let Err(error) = self.reloads.token_files.watch(config, &self.reactor.signals.loop_handle) {
            tracing::error!("files of tokens are not read again when they change: {error}");
        }
        self.watch_memories(now);
        for listener in (0..config.listeners.len()).map(ListenerId::at) {
            self.step(|shell| shell.end_unknown_bearers(now, listener));
        }
        config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        self.reloads.running = Arc::new(plan.config);
    }

    /// Closes the sockets of removed listeners, and renames the others. Returns those that another client socket
    /// replaces, with its listener: their pending connections are to be accepted there.
    fn leave_listeners(&mut self, now: Moment, plan: &Plan, opened: &[Listening]) -> Vec<(usize, ListenerId)> {
        let mut moved = Vec::new();
        for index in 0..self.reactor.listeners.acceptors.len() {
            let acceptor = &mut self.reactor.listeners.acceptors[index];
            let Some(before) = acceptor.listener() else {
                if acceptor.for_admin && plan.moves_admin {
                    self.give_up_acceptor(index);
                }
                continue;
            };
            let after = plan.place_of(before.index());
            let listener = &plan.config.listeners[after];
            if listener.is_gone {
                tracing::info!("stopped listening on {}", self.reactor.listeners.acceptors[index].address);
                let acceptor = &mut self.reactor.listeners.acceptors[index];
                let covers = |own: &Listening| opened.iter().find(|other| other.covers(own));
                let to = acceptor.listening.as_ref().and_then(covers).map(|listening| listening.listener);
                if let Some(to) = to.filter(|to| to.index() < plan.config.listeners.len()) {
                    moved.push((index, to));
                    continue;
                }
                self.step(|shell| shell.empty_backlog(now, index));
                self.give_up_acceptor(index);
            } else {
                let acceptor = &mut self.reactor.listeners.acceptors[index];
                acceptor.belong_to(ListenerId::at(after), listener);
                if let Some((mode, owner)) = listener.listen.file()
                    && let Some(Err(error)) = acceptor.listening.as_mut().map(|own| own.set_access(mode, owner))
                {
                    tracing::error!("{error}");
                }
                if let Some(Err(error)) = acceptor.listening.as_mut().map(|own| own.set_shared(listener.reuse_port)) {
                    tracing::error!("cannot set SO_REUSEPORT of {}: {error}", acceptor.address);
                }
            }
        }
        moved
    }

    /// Closes an acceptor once nothing is in flight on it.
    fn give_up_acceptor(&mut self, index: usize) {
        self.reactor.listeners.acceptors[index].is_gone = true;
        self.reactor.close_acceptor(index);
    }

    /// Ends a reload once new commands have proved themselves or failed.
    pub(in crate::shell) fn check_reload(&mut self, now: Moment) {
        let Some(until) = self.reloads.settles_by else { return };
        let pools = (0..self.reloads.running.pools.len()).map(PoolId::at);
        let unsettled: Vec<PoolId> = pools.clone().filter(|pool| self.bus.view().is_unsettled(*pool)).collect();
        if !unsettled.is_empty() && until > now && self.bus.view().stage() == Stage::Running {
            return;
        }
        let id = |pool: PoolId| &self.reloads.running.pools[pool.index()].core.id;
        let late = unsettled.iter().map(|pool| format!("pool {:?}: its new command is still starting", id(*pool)));
        let failures: Vec<String> =
            pools.filter_map(|pool| self.bus.view().rollout_failure(pool)).map(str::to_owned).collect();
        let lines: Vec<String> = late.chain(failures.iter().cloned()).collect();
        self.end_reload(if failures.is_empty() { exit::OK } else { exit::FAILURE }, lines);
    }

    fn end_reload(&mut self, code: u8, lines: impl IntoIterator<Item = String>) {
        self.reloads.settles_by = None;
        self.reactor.timers.set(Timer::Reload, None);
        let outcomes = &mut self.reloads.outcomes;
        outcomes.last.lines.extend(lines);
        outcomes.end(code);
        let last = &outcomes.last;
        if !last.is_dry_run {
            self.reactor.notify.reloaded();
            if code == exit::OK {
                tracing::info!("the configuration was reloaded: {}", last.lines.join("; "));
            } else {
                // Whether a command works is known only after the rest has been applied.
                let what = if code == exit::FAILURE { "reload" } else { "the reload changes nothing" };
                last.lines.iter().for_each(|line| tracing::error!(reason = "reload_failed", "{what}: {line}"));
            }
        }
        // One may have been requested during a dry run, too.
        if std::mem::take(&mut self.reloads.is_wanted)
            && let Err(why) = self.begin_reload(false)
        {
            tracing::warn!("{why}");
        }
    }

    /// Handles the messages that threads have sent.
    pub(in crate::shell) fn take_messages(&mut self, now: Moment) {
        while let Ok(message) = self.reactor.signals.messages.try_recv() {
            match message {
                LoopMessage::Prepared(prepared) => self.take_prepared(now, *prepared),
                LoopMessage::Measured(mib) => self.reactor.dispatch(now, Input::WorkersMemoryMeasured { mib }),
                LoopMessage::Grown(worker, mib) => self.reactor.dispatch(now, Input::WorkerMemoryGrew { worker, mib }),
                LoopMessage::StateWritten(result) => self.reactor.persistence.written(now, &result),
                LoopMessage::Tokens(list, owner, content) => self.take_token_file(now, list, owner, content),
            }
        }
    }
}
