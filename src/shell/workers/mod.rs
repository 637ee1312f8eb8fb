//! Workers as processes: they are started, their stderr is passed on, their deaths and our signals are heard.

pub(super) mod processes;
pub(super) mod reap;
pub(super) mod spawn;

use std::os::fd::{AsRawFd, RawFd};

use super::connection::{Closing, Connection, Descriptor, Kind};
use super::hands::Hands;
use super::log;
use super::operation::Operation;
use crate::bus::port::{Input, Moment, Peer, WorkerKey};
use crate::io::{Io, Submission};

impl<I: Io> Hands<I> {
    pub(super) fn spawn(&mut self, worker: WorkerKey, pool: usize, number: u32) {
        let now = self.clock.now();
        match self.processes.spawn(worker, &self.pools[pool], &self.descriptors) {
            Ok(spawned) => {
                let peer = Peer::Worker(worker);
                let connection = Connection::new(
                    peer,
                    Kind::Worker,
                    Descriptor::Owned(spawned.stdout),
                    Some(Descriptor::Owned(spawned.stdin)),
                    Some(spawned.stderr),
                );
                let slot = self.connections.insert(connection.with_name(pool, number));
                if self.workers.len() <= worker.index() {
                    self.workers.resize(worker.index() + 1, None);
                }
                self.workers[worker.index()] = Some(slot);
                self.tell(now, Input::Spawned { worker, pid: spawned.pid });
                self.arm_read(slot);
                self.watch(slot);
                self.read_stderr(slot, Operation::ReadStderr);
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

    /// Reads a worker's stderr, or the rest of it.
    pub(super) fn read_stderr(&mut self, slot: usize, operation: Operation) {
        let connection = &mut self.connections[slot];
        let Some(stderr) = &mut connection.stderr else { return };
        debug_assert!(!connection.reading_stderr);
        connection.reading_stderr = true;
        let read = Submission::Read {
            from: stderr.pipe.as_raw_fd(),
            into: stderr.block.as_mut_ptr(),
            bytes: stderr.block.len() as u32,
            registered: None,
            // What a worker that has gone has left is taken as far as it is there: a grandchild may hold the pipe for
            // ever.
            now_or_never: operation == Operation::ReadRestOfStderr,
        };
        // SAFETY: the connection keeps the block and the pipe while `reading_stderr` is set.
        unsafe { self.io.submit(read, operation.token(slot)) };
    }

    pub(super) fn stderr_read(&mut self, slot: usize, result: i32, operation: Operation) {
        let connection = &mut self.connections[slot];
        debug_assert!(connection.reading_stderr);
        connection.reading_stderr = false;
        let leaving = connection.closing == Closing::Leaving;
        let name = connection.name;
        if let Some(stderr) = &mut connection.stderr {
            let pool = self.pools.get(name.0).map_or("", |pool| pool.core.id.as_str());
            if result > 0 {
                stderr.take(result as usize, |line| log::worker_line(pool, name.1, line));
            }
            let was_rest = operation == Operation::ReadRestOfStderr;
            let over = result == 0 || (result < 0 && (was_rest || result != -libc::ECANCELED));
            if over {
                stderr.finish(|line| log::worker_line(pool, name.1, line));
                connection.stderr = None;
            }
        }
        if leaving && connection.stderr.is_some() {
            return self.read_stderr(slot, Operation::ReadRestOfStderr);
        }
        if !self.remove_if_idle(slot) {
            self.read_stderr(slot, Operation::ReadStderr);
        }
    }

    /// Reaps whoever is dead.
    pub(super) fn reap(&mut self, now: Moment) {
        while let Some((worker, exit)) = self.processes.next_dead() {
            if let Some(worker) = worker {
                self.tell(now, Input::Exited { worker, exit });
            }
        }
    }

    pub(super) fn arm_children(&mut self) {
        let read = read_bytes(self.signals.children.as_raw_fd(), self.children_seen);
        // SAFETY: the bytes live as long as the process, and the pipe as long as the hands.
        unsafe { self.io.submit(read, Operation::Children.token(0)) };
    }

    pub(super) fn arm_stop(&mut self) {
        let read = read_bytes(self.signals.stop.as_raw_fd(), self.stops_seen);
        // SAFETY: the bytes live as long as the process, and the pipe as long as the hands.
        unsafe { self.io.submit(read, Operation::Stop.token(0)) };
    }
}

fn read_bytes(from: RawFd, into: &mut [u8]) -> Submission {
    let bytes = into.len() as u32;
    Submission::Read { from, into: into.as_mut_ptr(), bytes, registered: None, now_or_never: false }
}
