//! Measures the memory of workers' processes (`recycle_memory_mb`, `max_workers_memory_mb`). A thread does it, since it is
//! slow with many processes; without these settings there is none.

use std::io;
use std::sync::mpsc::{Sender, channel};

use super::usage::{children, resident};
use crate::bus::port::WorkerKey;
use crate::shell::loop_handle::{LoopHandle, LoopMessage};

/// Maximum number of processes counted for one worker.
const MOST_PROCESSES: usize = 4096;
const MIB: u64 = 1 << 20;

/// A worker, its process, and its limit in MiB, if it has one.
pub(in crate::shell) type Question = (WorkerKey, u32, Option<u64>);

/// Starts the thread, which reports workers above their limit, and what all together hold.
pub(in crate::shell) fn begin(loop_handle: &LoopHandle) -> io::Result<Sender<Vec<Question>>> {
    let (questions, todo) = channel::<Vec<Question>>();
    loop_handle.spawn("memories", move |loop_handle| {
        for workers in todo {
            let mut all = 0;
            for (worker, process, most) in workers {
                let held = held_by(process);
                all += held;
                if most.is_some_and(|most| held / MIB > most) {
                    loop_handle.send(LoopMessage::Grown(worker, held / MIB));
                }
            }
            loop_handle.send(LoopMessage::Measured(all / MIB));
        }
    })?;
    Ok(questions)
}

/// Memory in bytes of a process and its descendants: npx and uvx run the actual worker as a child.
fn held_by(process: u32) -> u64 {
    let (mut all, mut at) = (vec![process], 0);
    while at < all.len() && all.len() < MOST_PROCESSES {
        all.extend(children(all[at]));
        at += 1;
    }
    all.into_iter().filter_map(resident).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_children_counts() {
        let mut shell = std::process::Command::new("sh");
        let starting = crate::testing::STARTS.write();
        let mut child = shell.args(["-c", "sleep 60 & wait"]).spawn().expect("there is a shell");
        drop(starting);
        let own = || resident(child.id()).unwrap_or(0);
        while held_by(child.id()) <= own() || own() == 0 {
            std::thread::yield_now();
        }
        // The test's shell is a child of this process.
        assert!(held_by(std::process::id()) >= held_by(child.id()));
        let _starting = crate::testing::STARTS.write();
        let sleeping = std::process::Command::new("pkill").args(["-P", &child.id().to_string()]).status();
        let _ = (sleeping, child.kill(), child.wait());
    }
}
