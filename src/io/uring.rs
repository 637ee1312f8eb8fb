//! The io_uring backend, with all memory that the kernel may touch. The ring is always dropped first; any memory still
//! in use then is leaked until the process ends, because closing a ring cancels its operations asynchronously.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::{opcode, squeue, types};

use super::buffers::{Buffers, GROUP};
use super::clocks::monotonic;
use super::half_closed::HalfClosed;
use super::ring::{Completion, IGNORE, ROUSE, Ring};
use super::{Io, Submission};
use crate::error::StartError;

/// IORING_RECVSEND_POLL_FIRST (io_uring_enter(2)).
const POLL_FIRST: u16 = 1;
/// The offset of reads and writes on files without offsets (io_uring_enter(2)).
const HERE: u64 = u64::MAX;

pub struct Uring {
    ring: ManuallyDrop<Ring>,
    buffers: ManuallyDrop<Buffers>,
    half_closed: HalfClosed,
    /// The ring polls `half_closed`.
    awaits_half_closed: bool,
    /// Operations whose completion was not taken yet.
    in_flight: usize,
    origin: Duration,
}

impl Uring {
    /// Opens a ring, and memory for `workers` workers.
    ///
    /// # Errors
    /// As [`Ring::new`] and [`Ring::enable`]; or the system is out of memory.
    pub fn new(workers: usize) -> Result<Self, StartError> {
        let mut ring = Ring::new()?;
        let buffers = Buffers::new(Some(&ring), workers).map_err(|source| StartError::NoIoUring { source })?;
        ring.enable()?;
        Ok(Self {
            ring: ManuallyDrop::new(ring),
            buffers: ManuallyDrop::new(buffers),
            half_closed: HalfClosed::default(),
            awaits_half_closed: false,
            in_flight: 0,
            origin: monotonic(),
        })
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // SAFETY: neither is used after this.
        unsafe {
            ManuallyDrop::drop(&mut self.ring);
            if self.in_flight == 0 {
                ManuallyDrop::drop(&mut self.buffers);
            }
        }
    }
}

impl Io for Uring {
    fn name(&self) -> &'static str {
        "ring"
    }

    #[inline]
    unsafe fn submit(&mut self, submission: Submission, token: u64) {
        self.in_flight += 1;
        if let Submission::AwaitRoom { half_closed: true, .. } | Submission::Watch { half_closed: true, .. } =
            submission
        {
            return self.half_closed.wait(token, submission);
        }
        let entry = entry(submission).user_data(token);
        // SAFETY: guaranteed by the caller.
        unsafe { self.ring.submit(entry) };
    }

    fn opened(&mut self, _: RawFd) {}

    fn cancel(&mut self, token: u64, descriptor: RawFd) {
        if !self.half_closed.cancel(token, descriptor) {
            self.ring.cancel(token);
        }
    }

    fn turn(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) -> io::Result<()> {
        let before = completions.len();
        if let Some(descriptor) = self.half_closed.descriptor().filter(|_| !self.awaits_half_closed) {
            let poll = opcode::PollAdd::new(types::Fd(descriptor), libc::POLLIN as u32).build();
            // SAFETY: the operation names no memory, and the descriptor is closed after the ring.
            unsafe { self.ring.submit(poll.user_data(ROUSE)) };
            self.awaits_half_closed = true;
        }
        let timeout = if self.half_closed.has_news() { Some(Duration::ZERO) } else { timeout };
        let turned = self.ring.turn(timeout, completions);
        let was_roused = std::mem::take(&mut self.ring.was_roused);
        self.awaits_half_closed &= !was_roused;
        if was_roused || self.half_closed.has_news() {
            self.half_closed.take(completions);
        }
        self.in_flight -= completions.len() - before;
        turned
    }

    fn prepare_aside(&mut self, to: RawFd) {
        let nothing = Submission::WriteAside { to, from: std::ptr::null(), bytes: 0 };
        // SAFETY: nothing is written, and the result does not matter.
        unsafe { self.ring.submit(entry(nothing).user_data(IGNORE)) };
        // A failure here recurs in the first turn, which reports it.
        let _ = self.ring.turn(Some(Duration::ZERO), &mut Vec::new());
    }

    fn has_news(&mut self) -> bool {
        self.half_closed.has_news() || self.ring.has_news()
    }

    fn elapsed(&self) -> Duration {
        monotonic().saturating_sub(self.origin)
    }

    fn turned_at(&self) -> Duration {
        self.ring.turned_at().saturating_sub(self.origin)
    }

    #[inline]
    fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    fn memory(&self) -> &Buffers {
        &self.buffers
    }

    fn return_received(&mut self, buffer: u16) {
        self.buffers.return_received(buffer);
    }

    fn describe(&self) -> (String, Option<&io::Error>) {
        (self.ring.description.clone(), self.buffers.unregistered.as_ref())
    }
}

#[inline]
fn entry(submission: Submission) -> squeue::Entry {
    let fd = |descriptor: RawFd| types::Fd(descriptor);
    match submission {
        Submission::Receive { socket, was_empty } => {
            let hint = if was_empty { POLL_FIRST } else { 0 };
            let receive = opcode::Recv::new(fd(socket), std::ptr::null_mut(), 0).ioprio(hint).buf_group(GROUP);
            receive.build().flags(squeue::Flags::BUFFER_SELECT)
        }
        Submission::ReceiveInto { socket, into, bytes } => opcode::Recv::new(fd(socket), into, bytes).build(),
        Submission::Read { from, into, bytes, registered: Some(index), now_or_never: false } => {
            opcode::ReadFixed::new(fd(from), into, bytes, index).offset(HERE).build()
        }
        Submission::Read { from, into, bytes, now_or_never, .. } => {
            let flags = if now_or_never { libc::RWF_NOWAIT } else { 0 };
            opcode::Read::new(fd(from), into, bytes).offset(HERE).rw_flags(flags).build()
        }
        Submission::Send { socket, from, bytes, now_or_never, more } => {
            let waits = if now_or_never { libc::MSG_DONTWAIT } else { 0 };
            let more = if more { libc::MSG_MORE } else { 0 };
            opcode::Send::new(fd(socket), from, bytes).flags(libc::MSG_NOSIGNAL | waits | more).build()
        }
        Submission::SendMany { socket, message, more } => {
            let more = if more { libc::MSG_MORE } else { 0 };
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | more;
            opcode::SendMsg::new(fd(socket), message).flags(flags as u32).build()
        }
        Submission::Write { to, from, bytes, registered: Some(index) } => {
            opcode::WriteFixed::new(fd(to), from, bytes, index).offset(HERE).build()
        }
        Submission::Write { to, from, bytes, registered: None } => {
            opcode::Write::new(fd(to), from, bytes).offset(HERE).build()
        }
        Submission::WriteMany { to, vectors, count } => {
            opcode::Writev::new(fd(to), vectors, count).offset(HERE).build()
        }
        Submission::WriteAside { to, from, bytes } => {
            // Tried inline, as the ring does by default, a write to a terminal with room for one byte would block the
            // loop until all bytes were taken.
            opcode::Write::new(fd(to), from, bytes).offset(HERE).build().flags(squeue::Flags::ASYNC)
        }
        Submission::AwaitRoom { descriptor, .. } => opcode::PollAdd::new(fd(descriptor), libc::POLLOUT as u32).build(),
        Submission::AwaitConnection { socket } => opcode::PollAdd::new(fd(socket), libc::POLLIN as u32).build(),
        Submission::Watch { descriptor, .. } => opcode::PollAdd::new(fd(descriptor), 0).build(),
    }
}
