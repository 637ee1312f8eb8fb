//! A read-only view of the core and the shell, from which answers are made.

use std::cell::OnceCell;

use super::history::History;
use super::listener_names::ListenerNames;
use super::recent_reports::Recent;
use super::wall_clock::WallClock;
use crate::bus::Bus;
use crate::bus::histogram::Histogram;
use crate::bus::overview::Questions;
use crate::bus::port::Moment;
use crate::bus::usage::Consumer;
use crate::shell::persistence::Persistence;
use crate::shell::reactor::Workers;
use crate::shell::reload::Outcomes;

/// Those who use most, of each kind, that are shown by name.
pub(super) const MOST_CONSUMERS: usize = 20;

pub(super) struct View<'a> {
    pub bus: &'a Bus,
    pub now: Moment,
    /// What clients have still to answer now.
    pub questions: Questions,
    /// Those who use most, once they were asked for.
    pub consumers: OnceCell<Vec<Consumer>>,
    pub workers: &'a Workers,
    pub places: &'a [ListenerNames],
    /// The indexes of the listeners in the order of the configuration.
    pub order: &'a [usize],
    pub recent: &'a Recent,
    pub history: &'a History,
    /// How long each turn of the loop was busy.
    pub turns: &'a Histogram,
    pub started_at: WallClock,
    /// Lent bytes, and max_memory.
    pub memory: usize,
    pub max_memory: usize,
    /// The I/O backend.
    pub io: &'static str,
    /// The daemon's name.
    pub node: &'a str,
    pub admin_connections: usize,
    pub reloads: &'a Outcomes,
    pub persistence: &'a Persistence,
}

impl View<'_> {
    /// Those who use most, of each kind.
    pub(super) fn consumers(&self) -> &[Consumer] {
        self.consumers.get_or_init(|| self.bus.view().consumers(self.now, MOST_CONSUMERS))
    }
}
