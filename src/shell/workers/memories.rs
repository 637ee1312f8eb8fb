//! How much memory the processes of workers hold (`recycle_memory_mb`). A thread asks the kernel, since
//! that takes its time where there are many; without the setting there is none.

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;

use super::usage::{children, resident};
use crate::bus::port::WorkerKey;
use crate::channel::{Receiver, Sender, channel};
use crate::io::leave_signals_to_the_loop;
use crate::shell::signals::Bell;

/// Processes of one worker that are counted at most.
const MOST_PROCESSES: usize = 4096;
const MIB: u64 = 1 << 20;

/// A worker, its process, and how many MiB it may hold.
pub(in crate::shell) type Question = (WorkerKey, u32, u64);

/// The thread that asks.
pub(in crate::shell) struct Memories {
    pub questions: Sender<Vec<Question>>,
    /// Workers that hold more than they may, and how many MiB.
    pub answers: Receiver<(WorkerKey, u64)>,
    /// Has a byte when there are some.
    pub bell: Bell,
}

impl Memories {
    pub(in crate::shell) fn begin() -> io::Result<Self> {
        let (questions, todo) = channel::<Vec<Question>>();
        let (tell, answers) = channel();
        let (bell, mut ring) = UnixStream::pair()?;
        ring.set_nonblocking(true)?;
        std::thread::Builder::new().name("memories".to_owned()).spawn(move || {
            leave_signals_to_the_loop();
            for (worker, process, most) in todo.iter().flatten() {
                let mib = held_by(process) / MIB;
                if mib > most && tell.send((worker, mib)).is_ok() {
                    // A full pipe rings already.
                    let _ = ring.write(&[0]);
                }
            }
        })?;
        Ok(Self { questions, answers, bell: Bell::new(bell.into()) })
    }
}

/// Bytes that a process and its children hold, and those of them: npx and uvx run the worker proper as a child.
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
    fn what_children_hold_counts() {
        let mut shell = std::process::Command::new("sh");
        let starting = crate::testing::STARTS.read();
        let mut child = shell.args(["-c", "sleep 60 & wait"]).spawn().expect("there is a shell");
        drop(starting);
        let own = || resident(child.id()).unwrap_or(0);
        while held_by(child.id()) <= own() || own() == 0 {
            std::thread::yield_now();
        }
        // The shell of the test is the child of this process.
        assert!(held_by(std::process::id()) >= held_by(child.id()));
        let _starting = crate::testing::STARTS.read();
        let sleeping = std::process::Command::new("pkill").args(["-P", &child.id().to_string()]).status();
        let _ = (sleeping, child.kill(), child.wait());
    }
}
