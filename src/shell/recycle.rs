//! Replaces workers whose processes use more memory than their limit (`recycle_memory_mb`).

use std::time::Duration;

use super::reactor::Reactor;
use super::timers::Timer;
use super::turn::Shell;
use super::workers::memories::{self, Question};
use crate::bus::port::Moment;
use crate::io::Io;

/// The interval of checks.
const EVERY: Duration = Duration::from_secs(5);
impl<I: Io> Shell<I> {
    /// Starts the checks if any pool has a limit.
    pub(super) fn watch_memories(&mut self, now: Moment) {
        let is_limited = self.reactor.workers.pools.iter().any(|pool| pool.recycle_memory.is_some());
        self.reactor.timers.set(Timer::Memories, is_limited.then(|| now.after(EVERY)));
    }

    /// Asks the thread to check all workers with a limit.
    pub(super) fn ask_for_memories(&mut self, now: Moment) {
        self.watch_memories(now);
        let row = |slot| {
            let row = self.bus.view().worker_row(now, slot)?;
            let most = self.reactor.workers.pools[row.name.pool.index()].recycle_memory?;
            Some((self.bus.view().worker_at(row.name.pool, row.name.place)?, row.pid, most))
                .filter(|(_, pid, _)| *pid != 0)
        };
        let questions: Vec<Question> = (0..self.bus.view().worker_slots()).filter_map(row).collect();
        let Reactor { workers, signals, .. } = &mut self.reactor;
        if workers.memories.is_none() {
            match memories::begin(&signals.teller) {
                Ok(questions) => workers.memories = Some(questions),
                Err(error) => tracing::error!("recycle_memory_mb: cannot look at the memory of workers: {error}"),
            }
        }
        // Without a thread the questions are dropped.
        workers.memories.iter().for_each(|memories| _ = memories.send(questions.clone()));
    }
}
