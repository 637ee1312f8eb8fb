//! Prepares configurations outside the loop: a thread reads, checks and plans one, and opens its new sockets. The loop
//! then applies all of it in one step (`reload.rs`).

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::descriptors::{self, Allowance, Need};
use super::http::connection::OPERATORS;
use super::listen::{Listening, Opening, OwnSocket};
use super::outcomes::Outcomes;
use super::signals::Bell;
use crate::activation::Inherited;
use crate::bus::port::Moment;
use crate::channel::{Receiver, Sender, channel};
use crate::config::Config;
use crate::config::plan::{InUse, Plan};
use crate::error::StartError;
use crate::io::leave_signals_to_the_loop;

/// Reads the configuration again, as at start.
pub type Again = dyn Fn(&[Inherited]) -> Result<Config, StartError> + Send + Sync;

/// The source of new configurations.
#[derive(Clone)]
pub struct Source {
    /// None if there is no file to read again.
    pub again: Option<Arc<Again>>,
    /// The inherited sockets.
    pub inherited: Arc<Vec<Inherited>>,
}

/// What the thread has prepared.
pub(super) struct Prepared {
    pub plan: Plan,
    /// The opened sockets, for clients and for operators.
    pub opened: Vec<Listening>,
    pub allowance: Option<Allowance>,
}

/// See the module documentation.
pub(super) struct Reloads {
    source: Source,
    pub running: Arc<Config>,
    tell: Sender<Result<Prepared, StartError>>,
    pub prepared: Receiver<Result<Prepared, StartError>>,
    /// Readable when a configuration was prepared.
    pub bell: Bell,
    ring: UnixStream,
    /// A reload was requested during another one.
    pub is_wanted: bool,
    /// The outcomes of reloads.
    pub outcomes: Outcomes,
    /// The deadline for new commands to prove themselves.
    pub settles_by: Option<Moment>,
}

impl Reloads {
    /// `running` is the current configuration.
    pub(super) fn new(source: Source, running: Arc<Config>) -> io::Result<Self> {
        let (tell, prepared) = channel();
        let (bell, ring) = UnixStream::pair()?;
        ring.set_nonblocking(true)?;
        let bell = Bell::new(bell.into());
        Ok(Self {
            source,
            running,
            tell,
            prepared,
            bell,
            ring,
            is_wanted: false,
            outcomes: Outcomes::default(),
            settles_by: None,
        })
    }

    /// The current configuration.
    pub(super) fn running(&self) -> &Arc<Config> {
        &self.running
    }

    /// Whether there is a file to read again.
    pub(super) fn has_source(&self) -> bool {
        self.source.again.is_some()
    }

    /// Whether a reload is in progress.
    pub(super) fn is_under_way(&self) -> bool {
        !self.outcomes.last.is_over
    }

    pub(super) fn begin(&mut self, in_use: InUse, own: Vec<OwnSocket>, is_dry_run: bool) -> io::Result<()> {
        let Some(again) = self.source.again.clone() else { return Err(io::ErrorKind::Unsupported.into()) };
        let (inherited, running) = (Arc::clone(&self.source.inherited), Arc::clone(&self.running));
        let (tell, mut ring) = (self.tell.clone(), self.ring.try_clone()?);
        std::thread::Builder::new().name("reload".to_owned()).spawn(move || {
            leave_signals_to_the_loop();
            let prepared = prepare(&*again, &inherited, &running, &in_use, own, is_dry_run);
            // The loop may have ended, and a full pipe is readable already.
            let _ = tell.send(prepared);
            let _ = ring.write(&[0]);
        })?;
        self.outcomes.begin(is_dry_run);
        Ok(())
    }
}

/// Does everything that may block.
fn prepare(
    again: &Again,
    inherited: &[Inherited],
    running: &Config,
    in_use: &InUse,
    own: Vec<OwnSocket>,
    is_dry_run: bool,
) -> Result<Prepared, StartError> {
    let plan = again(inherited)?.replace(running, in_use)?;
    if is_dry_run {
        return Ok(Prepared { plan, opened: Vec::new(), allowance: None });
    }
    let allowance = Some(descriptors::allow(Need::of(&plan.config))?);
    let leaving = own.into_iter().filter(|(listener, _)| listener.map_or(plan.moves_admin, |at| plan.closes(at)));
    let mut opening = Opening::new(inherited, leaving.map(|(_, socket)| socket).collect());
    let mut opened = Vec::new();
    for index in &plan.opens {
        let listener = &plan.config.listeners[*index].listen;
        opened.extend(opening.open(listener, *index)?);
    }
    if let Some(admin) = plan.config.admin.as_ref().filter(|_| plan.moves_admin) {
        opened.extend(opening.open(&admin.listen, OPERATORS)?);
    }
    Ok(Prepared { plan, opened, allowance })
}
