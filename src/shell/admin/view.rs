//! A read-only view of the core and the shell, from which answers are made.

use super::history::History;
use super::place::Place;
use super::recent::Recent;
use super::wall::WallClock;
use crate::bus::Bus;
use crate::bus::histogram::Histogram;
use crate::bus::overview::Questions;
use crate::bus::port::Moment;
use crate::shell::reactor::Workers;
use crate::shell::reload::Outcomes;

pub(super) struct View<'a> {
    pub bus: &'a Bus,
    pub now: Moment,
    /// What clients have still to answer now.
    pub questions: Questions,
    pub workers: &'a Workers,
    pub places: &'a [Place],
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
}
