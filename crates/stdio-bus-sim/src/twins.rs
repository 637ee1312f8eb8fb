//! Two buses as one: the second routes every line by the slow path, where the first takes the fast path if it can
//! (`intake.rs`). Both get the same input, and must do the same at the same moment.

use std::ops::Deref;

use crate::bus::Bus;
use crate::bus::overview::SessionRow;
use crate::bus::port::{ClientKey, Effect, Input, Moment, Origin, Peer, Received};
use crate::bus::settings::Settings;
use crate::scan::Window;

/// See the module's documentation. Queries are answered by the first one.
pub(super) struct Twins {
    bus: Bus,
    long_way: Option<Bus>,
}

impl Deref for Twins {
    type Target = Bus;

    fn deref(&self) -> &Bus {
        &self.bus
    }
}

impl Twins {
    pub(super) fn new(settings: Settings) -> Self {
        Self { bus: Bus::new(settings.clone()), long_way: Some(Bus::new(settings).without_fast_path()) }
    }

    /// Both keep records of requests, which must be equal.
    pub(super) fn record_requests(mut self) -> Self {
        [Some(&mut self.bus), self.long_way.as_mut()].into_iter().flatten().for_each(|bus| bus.record_requests(true));
        self
    }

    /// Removes the second one.
    pub(super) fn alone(&mut self) {
        self.long_way = None;
    }

    pub(super) fn start(&mut self, now: Moment) -> Vec<Effect> {
        self.both(now, |bus| ((), bus.start(now).collect())).1
    }

    pub(super) fn connect(
        &mut self,
        now: Moment,
        listener: usize,
        origin: &Origin,
    ) -> (Option<ClientKey>, Vec<Effect>) {
        self.both(now, |bus| {
            let (client, effects) = bus.connect(now, listener, origin.clone());
            (client, effects.collect())
        })
    }

    #[cfg(test)]
    pub(super) fn connect_mcp(
        &mut self,
        now: Moment,
        listener: usize,
        origin: &Origin,
        pool: usize,
        era: crate::bus::settings::Era,
    ) -> (Option<ClientKey>, Vec<Effect>) {
        self.both(now, |bus| {
            let (client, effects) = bus.connect_mcp(now, listener, origin.clone(), pool, era);
            (client, effects.collect())
        })
    }

    #[cfg(test)]
    pub(super) fn prefer_worker(&mut self, client: ClientKey, worker: Option<crate::bus::port::WorkerKey>) {
        for bus in [Some(&mut self.bus), self.long_way.as_mut()].into_iter().flatten() {
            bus.prefer_worker(client, worker);
        }
    }

    pub(super) fn reload(&mut self, now: Moment, settings: &Settings) -> Vec<Effect> {
        self.both(now, |bus| ((), bus.reload(now, settings.clone()).collect())).1
    }

    pub(super) fn handle(&mut self, now: Moment, input: Input) -> Vec<Effect> {
        self.both(now, |bus| ((), bus.handle(now, input.clone()).collect())).1
    }

    pub(super) fn receive(&mut self, now: Moment, from: Peer, window: Window<'_>) -> (Received, Vec<Effect>) {
        self.both(now, |bus| {
            let (received, effects) = bus.receive(now, from, window);
            (received, effects.collect())
        })
    }

    fn both<T: PartialEq + std::fmt::Debug>(
        &mut self,
        now: Moment,
        call: impl Fn(&mut Bus) -> (T, Vec<Effect>),
    ) -> (T, Vec<Effect>) {
        let done = call(&mut self.bus);
        let Some(long_way) = &mut self.long_way else { return done };
        let other = call(long_way);
        assert!(done == other, "the two ways differ\n  the fast one: {done:?}\n  the long one: {other:?}");
        assert_eq!(
            self.bus.view().next_deadline(),
            long_way.view().next_deadline(),
            "the two ways wait for different moments"
        );
        assert_eq!(self.bus.view().stats(), long_way.view().stats(), "the two ways count differently");
        assert_eq!(records(&mut self.bus), records(long_way), "the two ways report other things of requests");
        assert!(sessions(&self.bus, now).eq(sessions(long_way, now)), "the two ways know different sessions");
        done
    }
}

/// The records of the requests that have ended.
fn records(bus: &mut Bus) -> Vec<String> {
    let mut records = Vec::new();
    let lost = bus.take_ended(|ended| records.push(format!("{ended:?}")));
    assert_eq!(lost, 0, "no simulated flood is that large");
    records
}

fn sessions(bus: &Bus, now: Moment) -> impl Iterator<Item = SessionRow<'_>> {
    (0..bus.view().session_slots()).filter_map(move |slot| bus.view().session_row(now, slot))
}

#[cfg(test)]
mod tests {
    use crate::simulator::World;

    /// If no line takes the fast path, there is nothing to compare.
    #[test]
    fn many_worlds_have_lines_that_take_the_fast_path() {
        let took_it = (1..=30).filter(|seed| World::new(*seed, 600).fast_lines() > 0).count();
        assert!(took_it > 7, "{took_it} of 30 worlds have any");
    }
}
