//! The door to the kernel: what the shell may ask of it ([`Io`]), and who answers: the ring ([`uring`]), epoll where there
//! is none ([`epoll`]), or in tests a kernel whose order of things follows from a seed (`testing/kernel.rs`).
//!
//! Whoever answers owns all memory that the kernel may touch on its own account, so that none of it is given back while
//! an operation may still write there.

mod aside;
pub mod batching;
pub mod buffers;
mod clocks;
pub mod epoll;
mod half_closed;
mod instance;
pub mod kernel;
mod result;
pub mod ring;
pub mod uring;

pub(crate) use aside::leave_signals_to_the_loop;
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

/// One operation. Files are pipes and terminals here: nobody seeks in them.
#[derive(Clone, Copy, Debug)]
pub enum Submission {
    /// recv(2) into a provided buffer, which the completion names.
    Receive {
        /// A connected socket.
        socket: RawFd,
        /// It was empty the last time: it is waited for before it is tried.
        was_empty: bool,
    },
    /// recv(2) into memory of the caller.
    ReceiveInto {
        /// A connected socket.
        socket: RawFd,
        /// Where to.
        into: *mut u8,
        /// How much fits.
        bytes: u32,
    },
    /// read(2).
    Read {
        /// A pipe or a terminal.
        from: RawFd,
        /// Where to.
        into: *mut u8,
        /// How much fits.
        bytes: u32,
        /// The index that the memory is registered under.
        registered: Option<u16>,
        /// Take what is there; EAGAIN if that is nothing (RWF_NOWAIT, preadv2(2)).
        now_or_never: bool,
    },
    /// send(2) without SIGPIPE.
    Send {
        /// A connected socket.
        socket: RawFd,
        /// From where.
        from: *const u8,
        /// How much.
        bytes: u32,
        /// Send what there is room for; EAGAIN if there is none. To wait for room is [`Submission::AwaitRoom`]'s: a ring
        /// that has to wait for it at a socket whose other side sends no more makes a thread that does.
        now_or_never: bool,
        /// More follows at once, if only the end: the kernel may wait for that with what it sends (MSG_MORE).
        more: bool,
    },
    /// sendmsg(2) without SIGPIPE, of what there is room for; EAGAIN if there is none.
    SendMany {
        /// A connected socket.
        socket: RawFd,
        /// The vectors.
        message: *const libc::msghdr,
        /// More follows at once, if only the end: the kernel may wait for that with what it sends (MSG_MORE).
        more: bool,
    },
    /// write(2).
    Write {
        /// A pipe, a file or a terminal.
        to: RawFd,
        /// From where.
        from: *const u8,
        /// How much.
        bytes: u32,
        /// The index that the memory is registered under.
        registered: Option<u16>,
    },
    /// writev(2).
    WriteMany {
        /// A pipe or a terminal.
        to: RawFd,
        /// The vectors.
        vectors: *const libc::iovec,
        /// How many.
        count: u32,
    },
    /// write(2) that must not make the loop wait, to what cannot be asked not to: a terminal, a file.
    /// A thread of the kernel does it; ECANCELED if none can be made.
    WriteAside {
        /// What is written to.
        to: RawFd,
        /// From where.
        from: *const u8,
        /// How much.
        bytes: u32,
    },
    /// Completes when something can be written, or never will be: poll(2) for POLLOUT. With POLLRDHUP alone where the
    /// other side sends no more, unless that is known; with nothing where nobody would tell.
    AwaitRoom {
        /// Any descriptor.
        descriptor: RawFd,
        /// The other side is known to send no more.
        half_closed: bool,
    },
    /// Completes when there is a connection to be accepted: poll(2) for POLLIN.
    AwaitConnection {
        /// A listening socket.
        socket: RawFd,
    },
    /// Completes when the other side has gone: poll(2) for nothing but POLLERR and POLLHUP. With POLLRDHUP alone where it
    /// sends no more, unless that is known; with nothing where nobody would tell.
    Watch {
        /// Any descriptor.
        descriptor: RawFd,
        /// The other side is known to send no more.
        half_closed: bool,
    },
}

impl Submission {
    /// Whether it completes with EAGAIN where others wait.
    pub fn is_now_or_never(self) -> bool {
        matches!(
            self,
            Self::Read { now_or_never: true, .. } | Self::Send { now_or_never: true, .. } | Self::SendMany { .. }
        )
    }

    /// What it is done to.
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

/// Whether the end of a [`Submission::AwaitRoom`] or a [`Submission::Watch`] says no more than that the other side sends no
/// more.
pub fn tells_half_closed(result: i32) -> bool {
    let more = i32::from(libc::POLLOUT | libc::POLLERR | libc::POLLHUP);
    result > 0 && result & i32::from(libc::POLLRDHUP) != 0 && result & more == 0
}

/// What the shell needs of a kernel. Each submission completes once, whatever happens.
pub trait Io {
    /// What it is called, for operators.
    fn name(&self) -> &'static str;

    /// Queues an operation for the next turn.
    ///
    /// # Safety
    /// Memory and descriptors that it names stay valid until its completion was taken.
    unsafe fn submit(&mut self, submission: Submission, token: u64);

    /// Says that a descriptor was opened: its number may have belonged to another file.
    fn opened(&mut self, descriptor: RawFd);

    /// Accepts a connection that waits at a listening socket, which is non-blocking, with the address that it comes from.
    ///
    /// # Errors
    /// As accept(2): `AGAIN` where nobody waits.
    fn accept_now(&mut self, socket: BorrowedFd<'_>) -> Result<(OwnedFd, Option<SocketAddr>), Errno> {
        let (accepted, address) = rustix::net::acceptfrom_with(socket, SocketFlags::CLOEXEC)?;
        self.opened(accepted.as_raw_fd());
        Ok((accepted, address.and_then(|address| address.try_into().ok())))
    }

    /// Takes what has come already to a socket that nothing receives from: 0 if that is nothing, or shows by the next
    /// receive only.
    fn receive_now(&mut self, socket: BorrowedFd<'_>, into: &mut [u8]) -> usize {
        rustix::net::recv(socket, into, RecvFlags::DONTWAIT).map_or(0, |(received, _)| received)
    }

    /// Asks for the end of the operation with this token, which is about this descriptor; it completes with ECANCELED, or
    /// as usual.
    fn cancel(&mut self, token: u64, descriptor: RawFd);

    /// Submits what is queued, waits for a completion or until `timeout` has passed (none: for ever), and adds all
    /// completions to `completions`.
    ///
    /// # Errors
    /// Only when no operation will ever complete again.
    fn turn(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) -> io::Result<()>;

    /// Has made whatever [`Submission::WriteAside`] to this needs, and keeps it from then on: later there may be no room
    /// for a thread among the processes that this user or service may have.
    fn prepare_aside(&mut self, to: RawFd);

    /// Whether the next turn would bring something at once.
    fn has_news(&mut self) -> bool;

    /// Says how many lines were carried since the last turn: whether waiting for more completions pays depends on it.
    fn carried(&mut self, lines: u64);

    /// Time since some moment, on a clock that nobody sets.
    fn elapsed(&self) -> Duration;

    /// What that was when the last turn ended.
    fn turned_at(&self) -> Duration {
        self.elapsed()
    }

    /// For how long the machine was suspended since its start (CLOCK_BOOTTIME, clock_gettime(2)).
    fn asleep(&self) -> Duration {
        // Between the two the clocks go on.
        let running = clocks::monotonic();
        clocks::time(ClockId::Boottime).saturating_sub(running)
    }

    /// The memory to read into and to write from.
    fn buffers(&mut self) -> &mut Buffers;

    /// The same, to look at.
    fn memory(&self) -> &Buffers;

    /// Bytes of this memory that are lent.
    fn lent(&self) -> usize {
        self.memory().used()
    }

    /// What was received into a provided buffer.
    ///
    /// # Safety
    /// The window is not looked at after [`Io::return_received`], nor after this is gone. Its lifetime is the caller's
    /// to choose, because other memory is lent while it is in use.
    #[inline]
    unsafe fn received<'window>(&self, buffer: u16, bytes: usize) -> Window<'window> {
        // SAFETY: as promised by the caller.
        unsafe { self.memory().received(buffer, bytes) }
    }

    /// The bytes of a provided buffer, with one more than was received at most: see [`Buffers::received_bytes`].
    ///
    /// # Safety
    /// As for [`Io::received`], and no window of it is alive.
    #[inline]
    unsafe fn received_bytes<'bytes>(&mut self, buffer: u16) -> &'bytes mut [u8] {
        // SAFETY: as promised by the caller.
        unsafe { self.buffers().received_bytes(buffer) }
    }

    /// Lets a provided buffer be used again.
    fn return_received(&mut self, buffer: u16);

    /// For the log: what is in use, and why memory is not registered if it is not.
    fn describe(&self) -> (String, Option<&io::Error>);
}
