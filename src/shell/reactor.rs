//! The reactor: owns everything that is open, submits operations and carries out the core's effects (`effects.rs`). It
//! cannot call the core: events meanwhile are queued as inputs, which the shell drains.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsRawFd;
use std::sync::mpsc::Sender;

use rustix::process::Rlimit;

use super::clock::Clock;
use super::connections::{Connections, PeerSlot};
use super::http::Http;
use super::listeners::Listeners;
use super::memory_pressure::MemoryPressure;
use super::notify::Notify;
use super::operation::Operation;
use super::persistence::Persistence;
use super::signals::Signals;
use super::stdio::{LogOutput, Stdio};
use super::timers::Timers;
use super::workers::client_env::{ClientEnv, EnvSource};
use super::workers::memory_usage::Question;
use super::workers::processes::Processes;
use super::workers::spawn::SpawnError;
use crate::bus::port::{Input, Moment, PoolId, WorkerKey};
use crate::config::{Config, PoolConfig};
use crate::io::Io;

/// See the module documentation. The backend is dropped first: it must not outlive anything that it can write to.
pub(super) struct Reactor<I: Io> {
    pub io: I,
    pub clock: Clock,
    pub timers: Timers,
    pub connections: Connections,
    pub listeners: Listeners,
    pub http: Http,
    pub workers: Workers,
    pub signals: Signals,
    pub log: LogOutput,
    pub stdio: Stdio,
    /// Notifies the service manager.
    pub notify: Notify,
    /// What outlives the daemon.
    pub persistence: Persistence,
    pub memory: MemoryPressure,
    /// Events that the core has not got yet.
    pub inputs: VecDeque<(Moment, Input)>,
    /// The core has finished its shutdown.
    pub is_done: bool,
}

/// What is needed to start workers.
pub(super) struct Workers {
    pub processes: Box<dyn Processes>,
    pub pools: Vec<PoolConfig>,
    /// Earlier versions of pools, by index, whose commands may be started again.
    former: Vec<(usize, PoolConfig)>,
    /// To the thread that measures their memory, if there is a limit.
    pub memories: Option<Sender<Vec<Question>>>,
    /// The open-files limit of workers.
    pub descriptors: Rlimit,
    /// The last line that workers of a pool have written to stderr.
    pub last_stderr: BTreeMap<usize, String>,
}

impl Workers {
    pub(super) fn new(mut processes: Box<dyn Processes>, config: &Config, descriptors: Rlimit) -> Self {
        if config.has_personal_pools() {
            processes.keep_secrets();
        }
        Self {
            processes,
            pools: config.pools.clone(),
            former: Vec::new(),
            memories: None,
            descriptors,
            last_stderr: BTreeMap::new(),
        }
    }

    /// Replaces the pools. Of the old ones, those are kept whose commands satisfy `may_start`.
    pub(super) fn configure(&mut self, config: &Config, may_start: impl Fn(PoolId, u32) -> bool) {
        if config.has_personal_pools() {
            self.processes.keep_secrets();
        }
        let before = std::mem::replace(&mut self.pools, config.pools.clone());
        self.former.extend(before.into_iter().enumerate());
        self.former.retain(|(at, pool)| {
            may_start(PoolId::at(*at), pool.core.generation) && pool.core.id == self.pools[*at].core.id
        });
    }

    /// Begins to start a worker of a pool with one of its commands, for this client if it is for one.
    ///
    /// # Errors
    /// It cannot be begun, or its client lacks something.
    pub(super) fn begin(
        &mut self,
        worker: WorkerKey,
        pool: PoolId,
        generation: u32,
        client: Option<&EnvSource>,
    ) -> Result<(), SpawnError> {
        let is_meant =
            |former: &&(usize, PoolConfig)| former.0 == pool.index() && former.1.core.generation == generation;
        let newest = &self.pools[pool.index()];
        let former = self.former.iter().filter(|_| newest.core.generation != generation).find(is_meant);
        // With other credentials than the operator has said last no worker is started.
        let former = former.filter(|(_, pool)| pool.env_from == newest.env_from);
        let pool = former.map_or(newest, |(_, pool)| pool);
        let own = pool.env_from.as_ref().map(|from| ClientEnv::of(from, client)).transpose();
        let own = own.map_err(SpawnError::of_client)?;
        Ok(self.processes.begin(worker, pool, own, &self.descriptors)?)
    }
}

impl<I: Io> Reactor<I> {
    /// Queues an input for the core.
    pub(super) fn dispatch(&mut self, now: Moment, input: Input) {
        self.inputs.push_back((now, input));
    }

    /// Handles the expired timer of the connection of a peer of the core.
    pub(super) fn lines_due(&mut self, now: Moment, slot: usize) {
        self.log_left_out(now, slot);
        self.close_if_dead(now, slot);
        self.ping(now, slot);
        self.schedule(slot);
    }

    /// Cancels an operation in flight.
    pub(super) fn cancel(&mut self, operation: Operation, slot: usize) {
        let descriptor = match operation {
            Operation::Accept => self.listeners.acceptors[slot].socket().map(|socket| socket.as_raw_fd()),
            Operation::Log => Some(rustix::stdio::stderr().as_raw_fd()),
            Operation::Read => self.connections[slot].ends.input().map(|input| input.as_raw_fd()),
            Operation::ReadStderr => {
                self.connections[PeerSlot(slot)].stderr.as_ref().map(|stderr| stderr.pipe.as_raw_fd())
            }
            _ => self.connections[slot].ends.raw_output(),
        };
        if let Some(descriptor) = descriptor {
            self.io.cancel(operation.token(slot), descriptor);
        }
    }
}
