//! Workers as processes: they are started, their stderr is passed on, their deaths and our signals are heard.

pub(super) mod reap;
pub(super) mod spawn;

use std::os::fd::{AsRawFd, RawFd};

use io_uring::{opcode, squeue, types};

use super::connection::{Closing, Descriptor, Kind, Link};
use super::{Operation, Shell, log};
use crate::bus::port::{Input, Peer, WorkerKey};

impl Shell {
    pub(super) fn spawn(&mut self, worker: WorkerKey, pool: usize, number: u32) {
        let now = self.clock.now();
        match spawn::spawn(&self.pools[pool], &self.descriptors) {
            Ok(spawned) => {
                self.reaper.add(spawned.pid, worker);
                let peer = Peer::Worker(worker);
                let link = Link::new(
                    peer,
                    Kind::Worker,
                    Descriptor::Owned(spawned.stdout),
                    Some(Descriptor::Owned(spawned.stdin)),
                    Some(spawned.stderr),
                );
                let slot = self.links.insert(link.with_name(pool, number));
                if self.workers.len() <= worker.index() {
                    self.workers.resize(worker.index() + 1, None);
                }
                self.workers[worker.index()] = Some(slot);
                self.tell(now, Input::Spawned { worker, pid: spawned.pid });
                self.arm_read(slot);
                self.watch(slot);
                self.hear(slot, Operation::Hear);
            }
            Err(error) => {
                let pool = &self.pools[pool];
                let why = format!("cannot start \"{}\" ({}): {error}", pool.command, pool.program.display());
                // What is short now may be there again soon, whatever the command is like.
                let short = matches!(
                    error.raw_os_error(),
                    Some(libc::EMFILE | libc::ENFILE | libc::EAGAIN | libc::ENOMEM | libc::ENOBUFS)
                );
                self.tell(now, Input::SpawnFailed { worker, why, short });
            }
        }
    }

    /// Reads a worker's stderr.
    pub(super) fn hear(&mut self, slot: usize, operation: Operation) {
        let link = &mut self.links[slot];
        let Some(stderr) = &mut link.stderr else { return };
        link.hearing = true;
        // The rest of a worker that has gone is taken as far as it is there: a grandchild may hold the pipe for ever.
        let flags = if operation == Operation::HearRest { libc::RWF_NOWAIT } else { 0 };
        let entry =
            opcode::Read::new(types::Fd(stderr.pipe.as_raw_fd()), stderr.block.as_mut_ptr(), stderr.block.len() as u32)
                .offset(u64::MAX)
                .rw_flags(flags);
        // SAFETY: the link keeps the block and the pipe while `hearing` is set.
        unsafe { self.ring.submit(entry.build().user_data(operation.token(slot))) };
    }

    pub(super) fn hear_rest(&mut self, slot: usize) {
        self.hear(slot, Operation::HearRest);
    }

    pub(super) fn heard(&mut self, slot: usize, result: i32, operation: Operation) {
        let link = &mut self.links[slot];
        link.hearing = false;
        let leaving = link.closing == Closing::Leaving;
        let name = link.name;
        if let Some(stderr) = &mut link.stderr {
            let pool = self.pools.get(name.0).map_or("", |pool| pool.core.id.as_str());
            if result > 0 {
                stderr.take(result as usize, |line| log::worker_line(pool, name.1, line));
            }
            let over = result == 0 || (result < 0 && (operation == Operation::HearRest || result != -libc::ECANCELED));
            if over {
                stderr.finish(|line| log::worker_line(pool, name.1, line));
                link.stderr = None;
            }
        }
        if leaving && link.stderr.is_some() {
            return self.hear_rest(slot);
        }
        if !self.gone(slot) {
            self.hear(slot, Operation::Hear);
        }
    }

    pub(super) fn arm_children(&mut self) {
        let entry = read_entry(self.signals.children.as_raw_fd(), self.children_seen.as_mut_slice());
        // SAFETY: the buffer and the pipe live as long as the shell.
        unsafe { self.ring.submit(entry.user_data(Operation::Children.token(0))) };
    }

    pub(super) fn arm_stop(&mut self) {
        let entry = read_entry(self.signals.stop.as_raw_fd(), self.stops_seen.as_mut_slice());
        // SAFETY: the buffer and the pipe live as long as the shell.
        unsafe { self.ring.submit(entry.user_data(Operation::Stop.token(0))) };
    }
}

fn read_entry(descriptor: RawFd, into: &mut [u8]) -> squeue::Entry {
    opcode::Read::new(types::Fd(descriptor), into.as_mut_ptr(), into.len() as u32).offset(u64::MAX).build()
}
