//! Prepares a configuration outside the loop: reads, checks and plans it, and opens its new sockets.

use std::os::fd::OwnedFd;

use super::ReadConfig;
use crate::activation::Inherited;
use crate::bus::port::ListenerId;
use crate::config::Config;
use crate::config::plan::{InUse, Plan};
use crate::error::StartError;
use crate::shell::descriptors::{self, Allowance, Need};
use crate::shell::listen::{Listening, OwnSocket, SocketOpener};
use crate::shell::log_file;

/// A prepared configuration.
pub(in crate::shell) struct Prepared {
    pub plan: Plan,
    /// The opened sockets, for clients and for operators.
    pub opened: Vec<Listening>,
    pub allowance: Option<Allowance>,
    /// The opened file of the log, if the log moves there.
    pub log: Option<OwnedFd>,
}

/// Does everything that may block.
///
/// # Errors
/// The new configuration cannot be read or applied.
pub(super) fn prepare(
    again: &ReadConfig,
    inherited: &[Inherited],
    running: &Config,
    in_use: &InUse,
    own: Vec<OwnSocket>,
    is_dry_run: bool,
) -> Result<Prepared, StartError> {
    let plan = again(inherited)?.replace(running, in_use)?;
    if is_dry_run {
        return Ok(Prepared { plan, opened: Vec::new(), allowance: None, log: None });
    }
    let log = plan.config.log.file.as_ref().filter(|file| running.log.file.as_ref() != Some(*file));
    let log =
        log.map(|path| log_file::opened(path).map_err(|source| StartError::LogFile { path: path.clone(), source }));
    let log = log.transpose()?;
    let allowance = Some(descriptors::allow(Need::of(&plan.config))?);
    let leaving =
        own.into_iter().filter(|(listener, _)| listener.map_or(plan.moves_admin, |at| plan.closes(at.index())));
    let mut opening = SocketOpener::new(inherited, leaving.map(|(_, socket)| socket).collect());
    let opened = opening.open_all(&plan.config, plan.opens.iter().copied().map(ListenerId::at), plan.moves_admin)?;
    Ok(Prepared { plan, opened, allowance, log })
}
