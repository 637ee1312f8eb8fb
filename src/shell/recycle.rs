//! Has the memory of workers measured: those whose processes hold more than their limit are replaced
//! (`recycle_memory_mb`), and above that of all idle pools fall asleep (`max_workers_memory_mb`).

use std::time::Duration;

use super::reactor::Reactor;
use super::timers::Timer;
use super::turn::Shell;
use super::workers::memory_usage::{self, Question};
use crate::bus::port::Moment;
use crate::io::Io;

/// The interval of checks.
const EVERY: Duration = Duration::from_secs(5);
impl<I: Io> Shell<I> {
    /// Starts the checks if any pool has a limit, or all together have one.
    pub(super) fn watch_memories(&mut self, now: Moment) {
        let is_limited = self.bus.view().limits().max_workers_memory.is_some()
            || self.reactor.workers.pools.iter().any(|pool| pool.recycle_memory.is_some());
        self.reactor.timers.set(Timer::Memories, is_limited.then(|| now.after(EVERY)));
    }

    /// Asks the thread to check all workers with a limit, or all if there is one for all together.
    pub(super) fn ask_for_memories(&mut self, now: Moment) {
        self.watch_memories(now);
        let all_count = self.bus.view().limits().max_workers_memory.is_some();
        let row = |slot| {
            let row = self.bus.view().worker_row(now, slot)?;
            let most = self.reactor.workers.pools[row.name.pool.index()].recycle_memory;
            Some((self.bus.view().worker_at(row.name.pool, row.name.place)?, row.pid, most))
                // The memory of those that leave is free soon.
                .filter(|(_, pid, most)| *pid != 0 && row.role != "leaves" && (all_count || most.is_some()))
        };
        let questions: Vec<Question> = (0..self.bus.view().worker_slots()).filter_map(row).collect();
        let Reactor { workers, signals, .. } = &mut self.reactor;
        if workers.memories.is_none() {
            match memory_usage::begin(&signals.loop_handle) {
                Ok(questions) => workers.memories = Some(questions),
                Err(error) => tracing::error!(
                    "recycle_memory_mb, max_workers_memory_mb: cannot look at the memory of workers: {error}"
                ),
            }
        }
        // Without a thread the questions are dropped.
        workers.memories.iter().for_each(|memories| _ = memories.send(questions.clone()));
    }
}
