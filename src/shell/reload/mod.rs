//! What is read again while the daemon runs: the configuration, on SIGHUP or on demand, and files of tokens whenever they
//! change. Here is the state of a reload.
//!
//! Reading order: `apply.rs` begins a reload, and has the loop apply what was prepared in one step; `prepare.rs` is the
//! thread in between, which reads, checks and plans a new configuration and opens its sockets (`src/config/plan.rs` has
//! the plan); `watch.rs` has the threads that look after files of tokens, and `tokens.rs` applies what they read. The
//! core's part is `reload.rs` and `fleet/rollout.rs` there: a reload is over when each new command is known to work
//! or to fail.

mod apply;
pub(super) mod prepare;
mod tokens;
mod watch;

use std::io;
use std::sync::Arc;

use super::listen::OwnSocket;
use super::loop_handle::{LoopHandle, LoopMessage};
use crate::activation::Inherited;
use crate::bus::port::Moment;
use crate::config::Config;
use crate::config::plan::InUse;
use crate::error::{StartError, exit};
use prepare::prepare;
use watch::TokenFiles;

/// Reads the configuration again, as at start.
pub type ReadConfig = dyn Fn(&[Inherited]) -> Result<Config, StartError> + Send + Sync;

/// The source of new configurations.
#[derive(Clone)]
pub struct Source {
    /// None if there is no file to read again.
    pub again: Option<Arc<ReadConfig>>,
    /// The inherited sockets.
    pub inherited: Arc<Vec<Inherited>>,
}

/// The state of a reload, and its messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// The reload's sequence number.
    pub number: u64,
    pub is_dry_run: bool,
    pub is_under_way: bool,
    /// The exit code of the command.
    pub code: u8,
    pub lines: Vec<String>,
}

/// The outcomes of reloads, for operators.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    pub last: Outcome,
    /// How many have succeeded and failed, not counting dry runs.
    pub succeeded: u64,
    pub failed: u64,
    /// The last of those has failed.
    pub last_failed: bool,
}

impl Outcomes {
    pub(super) fn begin(&mut self, is_dry_run: bool) {
        self.last = Outcome { number: self.last.number + 1, is_dry_run, is_under_way: true, ..Outcome::default() };
    }

    /// Records the end of a reload. Dry runs are not counted.
    pub(super) fn end(&mut self, code: u8) {
        (self.last.is_under_way, self.last.code) = (false, code);
        if !self.last.is_dry_run {
            self.last_failed = code != exit::OK;
            *if self.last_failed { &mut self.failed } else { &mut self.succeeded } += 1;
        }
    }
}

pub(super) struct Reloads {
    pub source: Source,
    /// The current configuration.
    pub running: Arc<Config>,
    /// A reload was requested during another one.
    pub is_wanted: bool,
    /// The outcomes of reloads.
    pub outcomes: Outcomes,
    /// The deadline for new commands to prove themselves.
    pub settles_by: Option<Moment>,
    /// The files of tokens that are read again when they change.
    pub token_files: TokenFiles,
}

impl Reloads {
    /// `running` is the current configuration.
    pub(super) fn new(source: Source, running: Arc<Config>) -> Self {
        Self {
            source,
            running,
            is_wanted: false,
            outcomes: Outcomes::default(),
            settles_by: None,
            token_files: TokenFiles::default(),
        }
    }

    pub(super) fn begin(
        &mut self,
        loop_handle: &LoopHandle,
        in_use: InUse,
        own: Vec<OwnSocket>,
        is_dry_run: bool,
    ) -> io::Result<()> {
        let Some(again) = self.source.again.clone() else { return Err(io::ErrorKind::Unsupported.into()) };
        let (inherited, running) = (Arc::clone(&self.source.inherited), Arc::clone(&self.running));
        loop_handle.spawn("reload", move |loop_handle| {
            let prepared = prepare(&*again, &inherited, &running, &in_use, own, is_dry_run);
            loop_handle.send(LoopMessage::Prepared(Box::new(prepared)));
        })?;
        self.outcomes.begin(is_dry_run);
        Ok(())
    }
}
