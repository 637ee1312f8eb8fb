//! stdin and stdout without blocking and without threads.
//!
//! The flag `O_NONBLOCK` belongs to the open file, which other processes may share: setting it on an inherited pipe
//! or terminal would break them. So pipes and terminals are opened a second time by way of `/proc/self/fd`, sockets
//! are asked with `MSG_DONTWAIT`, and what never blocks (files, `/dev/null`) is read and written as it is.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{FileType, OFlags};
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// One of the standard streams.
pub struct Stdio {
    fd: Fd,
    is_socket: bool,
}

enum Fd {
    /// Waits for readiness.
    Polled(AsyncFd<OwnedFd>),
    /// Is always ready.
    Ready(OwnedFd),
}

impl Stdio {
    /// The process's stdin.
    ///
    /// # Errors
    /// It is closed, or cannot be registered.
    pub fn stdin() -> io::Result<Self> {
        Self::open(rustix::stdio::stdin(), 0, Interest::READABLE)
    }

    /// The process's stdout.
    ///
    /// # Errors
    /// It is closed, or cannot be registered.
    pub fn stdout() -> io::Result<Self> {
        Self::open(rustix::stdio::stdout(), 1, Interest::WRITABLE)
    }

    fn open(fd: BorrowedFd<'_>, number: u8, interest: Interest) -> io::Result<Self> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
        let is_socket = kind == FileType::Socket;
        let own = match kind {
            FileType::Fifo | FileType::CharacterDevice => {
                let flags = i32::try_from(OFlags::NONBLOCK.union(OFlags::NOCTTY).bits()).unwrap_or(0);
                let again = OpenOptions::new()
                    .read(interest.is_readable())
                    .write(interest.is_writable())
                    .custom_flags(flags)
                    .open(format!("/proc/self/fd/{number}"));
                match again {
                    Ok(file) => OwnedFd::from(file),
                    // No /proc, or somebody else's terminal: then the shared flag it is.
                    Err(_) => {
                        let flags = rustix::fs::fcntl_getfl(fd)?;
                        rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
                        fd.try_clone_to_owned()?
                    }
                }
            }
            _ => fd.try_clone_to_owned()?,
        };
        if kind == FileType::RegularFile || kind == FileType::Directory {
            return Ok(Self { fd: Fd::Ready(own), is_socket });
        }
        // SAFETY: register_with_interest wants a descriptor that stays the same and open until the AsyncFd is dropped.
        // An OwnedFd closes its descriptor only when it is dropped, never changes it, and moves into the AsyncFd here.
        let registered = unsafe { AsyncFd::register_with_interest(own, interest) };
        let fd = match registered {
            Ok(polled) => Fd::Polled(polled),
            // EPERM: the kernel's way to say that this is always ready.
            Err(error) => {
                let (own, cause) = error.into_parts();
                match cause.kind() {
                    io::ErrorKind::PermissionDenied => Fd::Ready(own),
                    _ => return Err(cause),
                }
            }
        };
        Ok(Self { fd, is_socket })
    }

    /// Reads into `buffer`; 0 is the end of the input. It may be cancelled without loss.
    ///
    /// # Errors
    /// The system's.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let is_socket = self.is_socket;
        let mut read = |fd: &OwnedFd| -> io::Result<usize> {
            let count = match is_socket {
                true => rustix::net::recv(fd, &mut *buffer, RecvFlags::DONTWAIT).map(|(count, _)| count),
                false => rustix::io::read(fd, &mut *buffer),
            };
            count.map_err(io::Error::from)
        };
        loop {
            let outcome = match &self.fd {
                Fd::Ready(fd) => read(fd),
                Fd::Polled(fd) => match fd.readable().await?.try_io(|fd| read(fd.get_ref())) {
                    Ok(outcome) => outcome,
                    Err(_would_block) => continue,
                },
            };
            match outcome {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        }
    }

    /// Writes what fits at once; nothing if not a byte does.
    ///
    /// # Errors
    /// The system's; a broken pipe says that the reader is gone.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let fd = match &self.fd {
            Fd::Ready(fd) => fd.as_fd(),
            Fd::Polled(fd) => fd.get_ref().as_fd(),
        };
        loop {
            let outcome = match self.is_socket {
                true => rustix::net::send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
                false => rustix::io::write(fd, bytes),
            };
            match outcome.map_err(io::Error::from) {
                Ok(count) => return Ok(Some(count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until a write may fit again, after [`Self::try_write`] gave nothing.
    ///
    /// # Errors
    /// The system's.
    pub async fn writable(&self) -> io::Result<()> {
        let Fd::Polled(fd) = &self.fd else { return Ok(()) };
        loop {
            let mut ready = fd.writable().await?;
            // Epoll told of the room that there was before the last write; ask the kernel of the room that is now.
            let mut fds = [rustix::event::PollFd::new(fd.get_ref(), rustix::event::PollFlags::OUT)];
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            if rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|count| count == 0) {
                ready.clear_ready();
                continue;
            }
            return Ok(());
        }
    }
}
