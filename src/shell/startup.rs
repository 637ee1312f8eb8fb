//! The start: opens everything that can be missing or refused, then listens.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::admin::Admin;
use super::descriptors::{self, Allowance, Need};
use super::inherited::may_block;
use super::listen::{MIGRATES, SocketOpener, sharing_warning};
use super::listeners::Acceptor;
use super::notify::Notify;
use super::persistence::Persistence;
use super::reload::{Reloads, Source};
use super::signals::{self, Signals};
use super::turn::Shell;
use super::workers::reap::Reaper;
use super::workers::spawn;
use crate::activation::Inherited;
use crate::bus::port::ListenerId;
use crate::bus::settings::MAX_CONNECTIONS;
use crate::cgroup;
use crate::config::{Config, Listen};
use crate::error::StartError;
use crate::io::Io;
use crate::io::kernel::Refused;
use crate::reserve;

/// What exists before the backend is opened.
pub(super) struct StartupContext {
    pub signals: Signals,
    pub descriptors: Allowance,
    /// The message about the backend, if it is not the ring.
    pub instead: Option<String>,
}

impl StartupContext {
    pub(super) fn prepare(config: &Config) -> Result<Self, StartError> {
        spawn::keep_descriptors().map_err(StartError::io("mark inherited descriptors"))?;
        let signals = signals::install().map_err(StartError::io("install signal handlers"))?;
        let need = Need::of(config);
        let descriptors = descriptors::allow(need)?;
        descriptors::grow_table(need);
        Ok(Self { signals, descriptors, instead: None })
    }

    /// Sets why the backend is not the ring, what that costs, and how to get it.
    pub(super) fn without_ring(self, refused: Option<&Refused>) -> Self {
        let instead = match refused {
            Some(Refused { why, remedy }) => format!(
                "{why}; epoll is used instead, which does the same and takes up to a fifth more CPU; to get io_uring: \
                 {remedy}"
            ),
            None => "epoll is used, as --io says; it takes up to a fifth more CPU than io_uring".to_owned(),
        };
        Self { instead: Some(instead), ..self }
    }
}

/// Opens everything, then listens.
pub(super) fn start<I: Io>(
    mut io: I,
    context: StartupContext,
    config: Config,
    source: Source,
) -> Result<Shell<I>, StartError> {
    let stdio = config.listeners.iter().position(|listener| matches!(listener.listen, Listen::Stdio));
    let stdio = stdio.map(ListenerId::at);
    let (stdout, stderr) = (rustix::stdio::stdout(), rustix::stdio::stderr());
    for output in [stdio.map(|_| stdout), Some(stderr)].into_iter().flatten().filter(|output| may_block(*output)) {
        io.prepare_aside(output.as_raw_fd());
    }
    reserve::keep();
    // Before anybody connects: with a folder that another daemon has, this one ends.
    let persistence = Persistence::open(&config, &context.signals.loop_handle)?;
    let acceptors = open_acceptors(&config, &source.inherited)?;
    let admin = Admin::new(&config, &acceptors);
    say_how_it_is(&config, &context, io.describe(), io.name());
    let StartupContext { signals, descriptors, .. } = context;
    let (loop_handle, reloads) = (signals.loop_handle.clone(), Reloads::new(source, Arc::new(config)));
    let reaper = Box::new(Reaper::new(loop_handle.clone()));
    let mut shell = Shell::new(reloads, io, reaper, signals, descriptors, acceptors, admin);
    shell.reactor.persistence = persistence;
    shell.reactor.persistence.wait_until(shell.reactor.clock.now().after(shell.reactor.http.session_idle()));
    shell.reactor.persistence.bind_owners(&mut shell.bus, &shell.reloads.running);
    let Reloads { token_files, running, .. } = &mut shell.reloads;
    token_files.watch(running, &loop_handle).map_err(StartError::io("make a thread that reads tokens again"))?;
    shell.reactor.notify = Notify::from_environment();
    shell.start_listening(stdio);
    Ok(shell)
}

/// Opens the sockets for clients, and after them those for operators.
fn open_acceptors(config: &Config, inherited: &[Inherited]) -> Result<Vec<Acceptor>, StartError> {
    let mut opening = SocketOpener::new(inherited, Vec::new());
    let opened = opening.open_all(config, (0..config.listeners.len()).map(ListenerId::at), true)?;
    if let Some(Inherited { number, address, .. }) = opening.unused() {
        // Its clients would wait for ever.
        let why =
            format!("it listens on {address}, and no listener does; add one to listeners, or take it out of the unit");
        return Err(StartError::Inherited { number: *number, why });
    }
    Ok(opened.into_iter().map(|listening| Acceptor::new(listening, &config.listeners)).collect())
}

/// Logs which daemon this is, and what may be missing. `description` is the backend's, with the reason why buffers are
/// not registered.
fn say_how_it_is(
    config: &Config,
    context: &StartupContext,
    (description, unregistered): (String, Option<&io::Error>),
    backend: &str,
) {
    tracing::info!("stdio_bus {} {}, node {}", env!("CARGO_PKG_VERSION"), config.summary(), config.node);
    if let Some(instead) = &context.instead {
        tracing::info!("{instead}");
    }
    config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    for problem in &config.missing {
        tracing::error!(
            "{}:{problem}; this pool has no workers until that is corrected; the others run",
            config.origin
        );
    }
    tracing::debug!("{backend}: {description}");
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
    if config.listeners.iter().any(|listener| listener.reuse_port)
        && let Some(warning) = std::fs::read_to_string(MIGRATES).ok().and_then(|migrates| sharing_warning(&migrates))
    {
        tracing::info!("{warning}");
    }
    if let Some(warning) = cgroup::memory_warning(config.limits.max_memory) {
        tracing::warn!(reason = "memory_limit", "{warning}");
    }
}
