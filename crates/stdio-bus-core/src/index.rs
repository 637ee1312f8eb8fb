//! Where pools, listeners, fleets, slots and groups are found: typed indexes, so that one is not taken for another.

use alloc::vec::Vec;
use core::ops::Index;

use crate::settings::{self, Era};

/// A configured pool, by its place in [`Settings::pools`](settings::Settings::pools).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(u16);

impl PoolId {
    /// The pool at this place. Each pool has a worker, and there are at most 1,024: far beyond them no pool is found.
    pub const fn at(index: usize) -> Self {
        Self(if index < u16::MAX as usize { index as u16 } else { u16::MAX })
    }

    /// Its place.
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// Its fleet for clients of this era.
    pub(crate) fn of(self, era: Era) -> FleetId {
        FleetId { era, pool: self }
    }
}

impl From<usize> for PoolId {
    fn from(index: usize) -> Self {
        Self::at(index)
    }
}

/// A configured listener, by its place in [`Settings::listeners`](settings::Settings::listeners).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(u32);

impl ListenerId {
    /// The listener at this place.
    pub const fn at(index: usize) -> Self {
        Self(if index < u32::MAX as usize { index as u32 } else { u32::MAX })
    }

    /// Its place.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl From<usize> for ListenerId {
    fn from(index: usize) -> Self {
        Self::at(index)
    }
}

/// The workers of a pool that serve clients of one era. What is done for all fleets is done for those of the legacy era
/// first, in the order of the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FleetId {
    /// The era of their clients.
    pub era: Era,
    /// The configured pool.
    pub pool: PoolId,
}

impl FleetId {
    /// The fleet of the same pool for clients of the other era. Few pools have both.
    pub(crate) fn other_era(self) -> Self {
        self.pool.of(self.era.other())
    }

    /// Its slot with this number.
    pub(crate) fn slot(self, number: usize) -> SlotId {
        SlotId { fleet: self, number: u16::try_from(number).expect("there are at most 1,024 workers") }
    }
}

/// The place for a worker in a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotId {
    pub fleet: FleetId,
    /// Which of its slots.
    pub number: u16,
}

/// A group of workers that a message may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupId {
    /// Those of one fleet.
    Fleet(FleetId),
    /// Those of all pools, for clients of listeners that offer all and prefer none.
    All,
    /// Those of the pools that a listener offers, if these are some of several and it prefers none.
    Listener(ListenerId),
}

impl Index<FleetId> for Vec<settings::Pool> {
    type Output = settings::Pool;

    fn index(&self, fleet: FleetId) -> &settings::Pool {
        &self[fleet.pool.index()]
    }
}

impl Index<PoolId> for Vec<settings::Pool> {
    type Output = settings::Pool;

    fn index(&self, pool: PoolId) -> &settings::Pool {
        &self[pool.index()]
    }
}

impl Index<ListenerId> for Vec<settings::Listener> {
    type Output = settings::Listener;

    fn index(&self, listener: ListenerId) -> &settings::Listener {
        &self[listener.index()]
    }
}
