//! What every part of the core may use: the current time, the settings, the effects and reports of a call, the timers,
//! the rows of the peers, and how far the shutdown is.
//!
//! It is the floor of the core: its methods call nothing above it. A table's method takes it as an argument.

use super::client::{Clients, Workers};
use super::out::Out;
use super::settings::{MAX_CONNECTIONS, MAX_WORKERS, Settings};
use super::shutdown::Shutdown;
use super::table::Table;
use super::time::Time;
use super::timers::Timers;

/// See the module's documentation.
pub(crate) struct Ctx {
    pub(crate) time: Time,
    pub(crate) settings: Settings,
    pub(crate) clients: Clients,
    pub(crate) workers: Workers,
    pub(crate) timers: Timers,
    pub(crate) out: Out,
    pub(crate) shutdown: Shutdown,
    /// Readiness and replacements must be checked after this call: a worker has started or ceased to run, or to be
    /// needed.
    pub(crate) workers_changed: bool,
}

impl Ctx {
    /// Nobody is connected yet, and no worker runs.
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            time: Time::default(),
            clients: Clients::new(settings.most_clients.min(MAX_CONNECTIONS)),
            workers: Table::new(MAX_WORKERS),
            timers: Timers::default(),
            out: Out::default(),
            shutdown: Shutdown::default(),
            workers_changed: true,
            settings,
        }
    }
}
