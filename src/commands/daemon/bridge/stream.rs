//! One end of the bridge: a pipe, a terminal, a file or a socket. It reads and writes through the ring, or with
//! blocking threads where there is none, at the file's own position, and waits even if another process has made the
//! file non-blocking.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::net::{Shutdown, shutdown};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::task::{spawn_blocking, spawn_local as spawn};
use tokio::time::sleep;

use super::ring::File;
use crate::dial::{LOOK_EVERY, Pulse};

/// How to read and write.
#[derive(Clone, Copy)]
pub(super) enum Backend {
    /// With the ring of the runtime.
    Ring,
    /// With threads of the runtime, since there is no ring here.
    Threads,
}

/// One end of the bridge.
pub(super) struct Stream {
    /// All kinds are read and written in the same way, so the runtime's file serves for sockets too. None without a
    /// ring.
    file: Option<File>,
    /// The same open file, for operations that the ring does not offer, and for threads.
    fd: Arc<OwnedFd>,
    /// It is a connection to a machine that does not answer any more.
    is_lost: Cell<bool>,
}

impl Stream {
    /// Wraps an open file.
    ///
    /// # Errors
    /// The error of dup(2).
    pub(super) fn new(fd: OwnedFd, backend: Backend) -> io::Result<Self> {
        let file = match backend {
            Backend::Ring => Some(File::new(fd.try_clone()?)?),
            Backend::Threads => None,
        };
        Ok(Self { file, fd: Arc::new(fd), is_lost: Cell::new(false) })
    }

    /// Ends a connection to a machine that does not answer any more.
    pub(super) fn watch_pulse(self: &Rc<Self>) {
        let stream = Rc::downgrade(self);
        spawn(async move {
            let mut pulse = Pulse::default();
            loop {
                sleep(LOOK_EVERY).await;
                let Some(stream) = stream.upgrade() else { return };
                if pulse.has_stopped(stream.fd()) {
                    stream.is_lost.set(true);
                    // The pending read and write end with it.
                    let _ = shutdown(stream.fd(), Shutdown::Both);
                    return;
                }
            }
        });
    }

    /// The file itself, to shut it down.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Reads what is available, at most the capacity of `buffer`, whose contents are replaced; 0 is the end.
    pub(super) async fn read(&self, mut buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        loop {
            buffer.clear();
            let (result, returned) = match &self.file {
                Some(file) => file.read(buffer).await,
                None => {
                    self.wait_in_a_thread(buffer, |fd, buffer| Ok(rustix::io::read(fd, spare_capacity(buffer))?)).await
                }
            };
            buffer = returned;
            if self.is_lost.get() {
                return (Err(Pulse::error()), buffer);
            }
            let result = match result {
                Err(error) => self.patience(error, Interest::READABLE).await,
                Ok(count) => return (Ok(count), buffer),
            };
            if let Err(error) = result {
                return (Err(error), buffer);
            }
        }
    }

    /// Writes all of `buffer`.
    pub(super) async fn write(&self, mut buffer: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        let mut written = 0;
        while written < buffer.len() {
            let result;
            (result, buffer) = match &self.file {
                Some(file) => file.write(buffer, written).await,
                None => {
                    let write =
                        move |fd: &OwnedFd, buffer: &mut Vec<u8>| Ok(rustix::io::write(fd, &buffer[written..])?);
                    self.wait_in_a_thread(buffer, write).await
                }
            };
            let result = match result {
                Ok(0) => Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    written += count;
                    Ok(())
                }
                Err(error) => self.patience(error, Interest::WRITABLE).await,
            };
            if let Err(error) = result {
                return (Err(error), buffer);
            }
        }
        (Ok(()), buffer)
    }

    /// Runs a blocking operation in a thread. Returns what was lent to it.
    async fn wait_in_a_thread(
        &self,
        mut buffer: Vec<u8>,
        does: impl FnOnce(&OwnedFd, &mut Vec<u8>) -> io::Result<usize> + Send + 'static,
    ) -> (io::Result<usize>, Vec<u8>) {
        let fd = Arc::clone(&self.fd);
        let done = spawn_blocking(move || (does(&fd, &mut buffer), buffer)).await;
        done.unwrap_or_else(|error| (Err(error.into()), Vec::new()))
    }

    /// Returns when the failed operation should be retried.
    ///
    /// # Errors
    /// The failure itself, if it is one.
    async fn patience(&self, error: io::Error, interest: Interest) -> io::Result<()> {
        match error.kind() {
            ErrorKind::Interrupted => Ok(()),
            // The ring does not wait for a non-blocking file, and the flag must not be changed: it belongs to the open
            // file, and so to every process that shares it.
            ErrorKind::WouldBlock => {
                self.watch(interest)?.ready(interest).await?.retain_ready();
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Registers the file with the runtime, which refuses regular files; those never block.
    fn watch(&self, interest: Interest) -> io::Result<AsyncFd<BorrowedFd<'_>>> {
        // SAFETY: the descriptor belongs to this object, is never replaced, and is open while it is borrowed here; a
        // borrowed descriptor always returns the same number.
        let watched = unsafe { AsyncFd::register_with_interest(self.fd.as_fd(), interest) };
        watched.map_err(io::Error::from)
    }

    /// Waits until all readers of this file have gone. It never returns for a regular file.
    pub(super) async fn reader_gone(&self) {
        self.closed(Interest::WRITABLE, Ready::is_write_closed).await;
    }

    /// Waits until all writers of this file have gone, whatever is still to be read. It never returns for a regular file.
    pub(super) async fn writer_gone(&self) {
        self.closed(Interest::READABLE, Ready::is_read_closed).await;
    }

    async fn closed(&self, interest: Interest, is_closed: fn(Ready) -> bool) {
        let closed = async {
            // With a descriptor of its own: epoll(7) accepts each only once, and a write may have to wait for room
            // meanwhile.
            let own = self.fd.as_fd().try_clone_to_owned()?;
            // SAFETY: the descriptor is moved into it, and is open for as long as it lives.
            let watched = unsafe { AsyncFd::register_with_interest(own, interest) };
            let watched = watched.map_err(io::Error::from)?;
            loop {
                let mut ready = watched.ready(interest).await?;
                if is_closed(ready.ready()) {
                    return Ok::<(), io::Error>(());
                }
                ready.clear_ready();
            }
        };
        if closed.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
