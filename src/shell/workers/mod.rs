//! Workers as processes: they are started, their stderr is passed on, their deaths and our signals are heard.

pub(super) mod processes;
pub(super) mod reap;
pub(super) mod spawn;
pub(super) mod starter;
pub(super) mod usage;

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use super::connection::{Closing, Connection, Descriptor};
use super::log;
use super::operation::Operation;
use super::reactor::Reactor;
use super::stderr::{Said, Stderr};
use crate::bus::port::{Input, Moment, Peer, WorkerKey, WorkerName};
use crate::io::{Io, Submission};

impl<I: Io> Reactor<I> {
    /// Begins to start a worker. What is written to it meanwhile waits in its outbox.
    pub(super) fn spawn(&mut self, worker: WorkerKey, name: WorkerName) {
        let slot = self.connections.insert(Connection::starting(worker, name));
        if self.workers.len() <= worker.index() {
            self.workers.resize(worker.index() + 1, None);
        }
        self.workers[worker.index()] = Some(slot);
        if let Err(error) = self.processes.begin(worker, &self.pools[name.pool], &self.descriptors) {
            self.not_started(self.clock.now(), worker, name, &error);
        }
    }

    /// Takes over the workers that were started.
    pub(super) fn started(&mut self, now: Moment) {
        while let Some((worker, result)) = self.processes.next_started() {
            let Some(slot) = self.slot(Peer::Worker(worker)) else { continue };
            let Some(name) = self.connections[slot].name else { continue };
            match result {
                Ok(spawned) => {
                    for pipe in [&spawned.stdin, &spawned.stdout, &spawned.stderr] {
                        self.io.opened(pipe.as_raw_fd());
                    }
                    let connection = &mut self.connections[slot];
                    connection.input = Some(Descriptor::Owned(spawned.stdout));
                    connection.output = Some(Descriptor::Owned(spawned.stdin));
                    let lines_per_sec = self.pools[name.pool].stderr.lines_per_sec;
                    connection.stderr = Some(Stderr::new(spawned.stderr, lines_per_sec));
                    self.tell(now, Input::Spawned { worker, pid: spawned.pid });
                    self.notify.changed();
                    self.arm_read(slot);
                    self.watch(slot);
                    self.read_stderr(slot, Operation::ReadStderr);
                    self.mark_dirty(slot);
                }
                Err(error) => self.not_started(now, worker, name, &error),
            }
        }
    }

    fn not_started(&mut self, now: Moment, worker: WorkerKey, name: WorkerName, error: &io::Error) {
        let pool = &self.pools[name.pool];
        let why = format!("cannot start \"{}\" ({}): {error}", pool.command, pool.program.display());
        // What is short now may be there again soon, whatever the command is like.
        let short = matches!(
            error.raw_os_error(),
            Some(libc::EMFILE | libc::ENFILE | libc::EAGAIN | libc::ENOMEM | libc::ENOBUFS)
        );
        self.tell(now, Input::SpawnFailed { worker, why, short });
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
        if let (Some(stderr), Some(name)) = (&mut connection.stderr, connection.name) {
            let now = self.clock.now();
            let pool = &self.pools[name.pool];
            let (level, is_wanted) = (pool.stderr.level, log::is_wanted(pool.stderr.level));
            let tell = |said: Said<'_>| log::worker(&pool.core.id, name, level, said);
            if result > 0 {
                stderr.take(now, result as usize, is_wanted, tell);
            }
            let was_rest = operation == Operation::ReadRestOfStderr;
            let over = result == 0 || (result < 0 && (was_rest || result != -libc::ECANCELED));
            if over {
                stderr.finish(now, tell);
                connection.stderr = None;
            } else if let Some(due) = stderr.left_out_due() {
                self.left_out_due = Some(self.left_out_due.map_or(due, |known| known.min(due)));
            }
        }
        if leaving && connection.stderr.is_some() {
            return self.read_stderr(slot, Operation::ReadRestOfStderr);
        }
        if !self.remove_if_idle(slot) {
            self.read_stderr(slot, Operation::ReadStderr);
        }
    }

    /// Tells what of the stderr of workers was left out, when it is time.
    pub(super) fn tell_left_out(&mut self, now: Moment) {
        if self.left_out_due.is_none_or(|due| due > now) {
            return;
        }
        self.left_out_due = None;
        for (_, connection) in &mut self.connections {
            let (Some(stderr), Some(name)) = (&mut connection.stderr, connection.name) else { continue };
            let pool = &self.pools[name.pool];
            stderr.tell_left_out(now, |said| log::worker(&pool.core.id, name, pool.stderr.level, said));
            self.left_out_due = [self.left_out_due, stderr.left_out_due()].into_iter().flatten().min();
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
        // SAFETY: the bytes live as long as the process, and the pipe as long as the reactor.
        unsafe { self.io.submit(read, Operation::Children.token(0)) };
    }

    pub(super) fn arm_stop(&mut self) {
        let read = read_bytes(self.signals.stop.as_raw_fd(), self.stops_seen);
        // SAFETY: the bytes live as long as the process, and the pipe as long as the reactor.
        unsafe { self.io.submit(read, Operation::Stop.token(0)) };
    }
}

fn read_bytes(from: RawFd, into: &mut [u8]) -> Submission {
    let bytes = into.len() as u32;
    Submission::Read { from, into: into.as_mut_ptr(), bytes, registered: None, now_or_never: false }
}
