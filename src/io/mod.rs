//! The interface to the kernel, [`Io`], and its implementations: the ring ([`uring`]), epoll as the fallback
//! ([`epoll`]), and in tests a kernel whose order of events follows from a seed (`testing/kernel.rs`).
//!
//! The implementation owns all memory that the kernel may touch asynchronously, so that none of it is freed while an
//! operation may still write to it.

mod blocking_pool;
pub mod buffers;
mod clocks;
pub mod epoll;
mod half_closed;
mod instance;
pub mod kernel;
mod result;
pub mod ring;
pub mod uring;

pub(crate) use blocking_pool::leave_signals_to_the_loop;
pub(crate) use result::result_of;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags};
use rustix::time::ClockId;

use crate::scan::Window;
use buffers::Buffers;
use ring::Completion;

/// One operation. Files are pipes and terminals here: there are no offsets.
#[derive(Clone, Copy, Debug)]
pub enum Submission {
    /// recv(2) into a provided buffer, which the completion names.
    Receive {
        /// A connected socket.
        socket: RawFd,
        /// It was empty the last time: poll before trying.
        was_empty: bool,
    },
    /// recv(2) into the caller's memory.
    ReceiveInto {
        /// A connected socket.
        socket: RawFd,
        /// The buffer.
        into: *mut u8,
        /// Its capacity.
        bytes: u32,
    },
    /// read(2).
    Read {
        /// A pipe or a terminal.
        from: RawFd,
        /// The buffer.
        into: *mut u8,
        /// Its capacity.
        bytes: u32,
        /// The index of the registered buffer.
        registered: Option<u16>,
        /// Take what is available; EAGAIN if that is nothing (RWF_NOWAIT, preadv2(2)).
        now_or_never: bool,
    },
    /// send(2) without SIGPIPE.
    Send {
        /// A connected socket.
        socket: RawFd,
        /// The bytes.
        from: *const u8,
        /// Their number.
        bytes: u32,
        /// Send what there is room for; EAGAIN if there is none. Waiting for room is left to [`Submission::AwaitRoom`]:
        /// to wait on a half-closed socket, the ring would start a thread that blocks.
        now_or_never: bool,
        /// More follows at once, if only the close: the kernel may hold back these bytes until then (MSG_MORE).
        more: bool,
    },
    /// sendmsg(2) without SIGPIPE, of as much as there is room for; EAGAIN if there is none.
    SendMany {
        /// A connected socket.
        socket: RawFd,
        /// The message header.
        message: *const libc::msghdr,
        /// More follows at once, if only the close: the kernel may hold back these bytes until then (MSG_MORE).
        more: bool,
    },
    /// write(2).
    Write {
        /// A pipe, a file or a terminal.
        to: RawFd,
        /// The bytes.
        from: *const u8,
        /// Their number.
        bytes: u32,
        /// The index of the registered buffer.
        registered: Option<u16>,
    },
    /// writev(2).
    WriteMany {
        /// A pipe or a terminal.
        to: RawFd,
        /// The message header.
        vectors: *const libc::iovec,
        /// Their number.
        count: u32,
    },
    /// write(2) that must not block the loop, to a file that has no non-blocking mode: a terminal, a regular file. A
    /// kernel thread does it; ECANCELED if none can be started.
    WriteAside {
        /// A file or a terminal.
        to: RawFd,
        /// The bytes.
        from: *const u8,
        /// Their number.
        bytes: u32,
    },
    /// Completes when the descriptor is writable or never will be: poll(2) for POLLOUT. Completes with POLLRDHUP alone
    /// when the peer half-closes, unless that is known; with nothing if it could never be notified.
    AwaitRoom {
        /// Any descriptor.
        descriptor: RawFd,
        /// The peer is known to have half-closed.
        half_closed: bool,
    },
    /// Completes when a connection can be accepted: poll(2) for POLLIN.
    AwaitConnection {
        /// A listening socket.
        socket: RawFd,
    },
    /// Completes when the peer has gone: poll(2) for only POLLERR and POLLHUP. Completes with POLLRDHUP alone when the
    /// peer half-closes, unless that is known; with nothing if it could never be notified.
    Watch {
        /// Any descriptor.
        descriptor: RawFd,
        /// The peer is known to have half-closed.
        half_closed: bool,
    },
}

impl Submission {
    /// Whether it completes with EAGAIN where other operations wait.
    pub fn is_now_or_never(self) -> bool {
        matches!(
            self,
            Self::Read { now_or_never: true, .. } | Self::Send { now_or_never: true, .. } | Self::SendMany { .. }
        )
    }

    /// The descriptor that it operates on.
    pub fn descriptor(self) -> RawFd {
        match self {
            Self::AwaitConnection { socket: descriptor }
            | Self::Receive { socket: descriptor, .. }
            | Self::ReceiveInto { socket: descriptor, .. }
            | Self::Read { from: descriptor, .. }
            | Self::Send { socket: descriptor, .. }
            | Self::SendMany { socket: descriptor, .. }
            | Self::Write { to: descriptor, .. }
            | Self::WriteMany { to: descriptor, .. }
            | Self::WriteAside { to: descriptor, .. }
            | Self::AwaitRoom { descriptor, .. }
            | Self::Watch { descriptor, .. } => descriptor,
        }
    }
}

/// Whether the result of a [`Submission::AwaitRoom`] or a [`Submission::Watch`] reports nothing but the peer's
/// half-close.
pub fn is_half_closed(result: i32) -> bool {
    let more = i32::from(libc::POLLOUT | libc::POLLERR | libc::POLLHUP);
    result > 0 && result & i32::from(libc::POLLRDHUP) != 0 && result & more == 0
}

/// What the shell needs from a kernel. Each submission completes exactly once, whatever happens.
pub trait Io {
    /// The backend's name, for operators.
    fn name(&self) -> &'static str;

    /// Queues an operation for the next turn.
    ///
    /// # Safety
    /// Memory and descriptors that it names stay valid until its completion was taken.
    unsafe fn submit(&mut self, submission: Submission, token: u64);

    /// Notes that a descriptor was opened: its number may have belonged to another file.
    fn opened(&mut self, descriptor: RawFd);

    /// Accepts a pending connection of a listening socket, which is non-blocking, with the peer's address.
    ///
    /// # Errors
    /// As accept(2): `AGAIN` if no connection is pending.
    fn accept_now(&mut self, socket: BorrowedFd<'_>) -> Result<(OwnedFd, Option<SocketAddr>), Errno> {
        let (accepted, address) = rustix::net::acceptfrom_with(socket, SocketFlags::CLOEXEC)?;
        self.opened(accepted.as_raw_fd());
        Ok((accepted, address.and_then(|address| address.try_into().ok())))
    }

    /// Takes bytes that have already arrived on a socket without a pending receive: 0 if there are none, or if only the
    /// next receive will show them.
    fn receive_now(&mut self, socket: BorrowedFd<'_>, into: &mut [u8]) -> usize {
        rustix::net::recv(socket, into, RecvFlags::DONTWAIT).map_or(0, |(received, _)| received)
    }

    /// Requests cancellation of the operation with this token on this descriptor; it completes with ECANCELED, or as
    /// usual.
    fn cancel(&mut self, token: u64, descriptor: RawFd);

    /// Submits what is queued, waits for a completion or until `timeout` has passed (none: for ever), and appends all
    /// completions to `completions`.
    ///
    /// # Errors
    /// Only if no operation will ever complete again.
    fn turn(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) -> io::Result<()>;

    /// Creates what [`Submission::WriteAside`] to this descriptor needs, and keeps it: later the process limit of this
    /// user or service may leave no room for a thread.
    fn prepare_aside(&mut self, to: RawFd);

    /// Writes to a descriptor on this thread, which may wait for it.
    ///
    /// # Errors
    /// Those of write(2).
    fn write_here(&mut self, to: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
        rustix::io::write(to, bytes)
    }

    /// Whether the next turn would return at once.
    fn has_news(&mut self) -> bool;

    /// Time since a fixed moment, on a clock that cannot be set.
    fn elapsed(&self) -> Duration;

    /// That time when the last turn ended.
    fn turned_at(&self) -> Duration {
        self.elapsed()
    }

    /// How long the machine was suspended since boot (CLOCK_BOOTTIME, clock_gettime(2)).
    fn asleep(&self) -> Duration {
        // The clocks advance between the two reads.
        let running = clocks::monotonic();
        clocks::time(ClockId::Boottime).saturating_sub(running)
    }

    /// The memory to read into and write from.
    fn buffers(&mut self) -> &mut Buffers;

    /// The same, read-only.
    fn memory(&self) -> &Buffers;

    /// Lent bytes of this memory.
    fn lent(&self) -> usize {
        self.memory().used()
    }

    /// The bytes received into a provided buffer.
    ///
    /// # Safety
    /// The window is not used after [`Io::return_received`], nor after `self` is dropped. Its lifetime is the caller's
    /// to choose, because other memory is lent while it is in use.
    #[inline]
    unsafe fn received<'window>(&self, buffer: u16, bytes: usize) -> Window<'window> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.memory().received(buffer, bytes) }
    }

    /// The bytes of a provided buffer, plus one more than can be received: see [`Buffers::received_bytes`].
    ///
    /// # Safety
    /// As for [`Io::received`], and no window of it is alive.
    #[inline]
    unsafe fn received_bytes<'bytes>(&mut self, buffer: u16) -> &'bytes mut [u8] {
        // SAFETY: guaranteed by the caller.
        unsafe { self.buffers().received_bytes(buffer) }
    }

    /// Returns a provided buffer to the kernel.
    fn return_received(&mut self, buffer: u16);

    /// For the log: the backend in use, and why memory is not registered, if it is not.
    fn describe(&self) -> (String, Option<&io::Error>);
}
