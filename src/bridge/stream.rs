//! One end of the bridge, whatever it is: a pipe, a terminal, a file or a socket. It reads and writes through the ring,
//! or where there is none by threads that wait, at the file's own position, and waits where another process has made the
//! file non-blocking.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::spawn_blocking;

use super::ring::File;

/// Who reads and writes.
#[derive(Clone, Copy)]
pub(super) enum Means {
    /// The ring of the runtime.
    Ring,
    /// Threads of the runtime, since there is no ring here.
    Threads,
}

/// One end of the bridge.
pub(super) struct Stream {
    /// All kinds are read and written alike, so the runtime's file serves for sockets too. None where there is no ring.
    file: Option<File>,
    /// The same open file, for what the ring does not offer, and for threads.
    fd: Arc<OwnedFd>,
}

impl Stream {
    /// Takes an open file.
    ///
    /// # Errors
    /// What dup(2) said.
    pub(super) fn new(fd: OwnedFd, means: Means) -> io::Result<Self> {
        let file = match means {
            Means::Ring => Some(File::new(fd.try_clone()?)?),
            Means::Threads => None,
        };
        Ok(Self { file, fd: Arc::new(fd) })
    }

    /// The file itself, to shut it down.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Reads what is there, at most the capacity of `buffer`, whose old content is lost; 0 is the end.
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

    /// Does something that may wait, in a thread. What is lent to it comes back.
    async fn wait_in_a_thread(
        &self,
        mut buffer: Vec<u8>,
        does: impl FnOnce(&OwnedFd, &mut Vec<u8>) -> io::Result<usize> + Send + 'static,
    ) -> (io::Result<usize>, Vec<u8>) {
        let fd = Arc::clone(&self.fd);
        let done = spawn_blocking(move || (does(&fd, &mut buffer), buffer)).await;
        done.unwrap_or_else(|error| (Err(error.into()), Vec::new()))
    }

    /// Returns when the operation that failed so is to be tried again.
    ///
    /// # Errors
    /// The failure itself if it is one.
    async fn patience(&self, error: io::Error, interest: Interest) -> io::Result<()> {
        match error.kind() {
            ErrorKind::Interrupted => Ok(()),
            // The ring does not wait for a file that is non-blocking, and the flag is not ours to change: it belongs
            // to the open file, so to every process that has it.
            ErrorKind::WouldBlock => {
                self.watch(interest)?.ready(interest).await?.retain_ready();
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Has the runtime watch the file; it refuses regular files, which never make anybody wait.
    fn watch(&self, interest: Interest) -> io::Result<AsyncFd<BorrowedFd<'_>>> {
        // SAFETY: the descriptor is this object's, is never replaced, and is open for as long as it is borrowed here;
        // a borrowed descriptor always gives the same number.
        let watched = unsafe { AsyncFd::register_with_interest(self.fd.as_fd(), interest) };
        watched.map_err(io::Error::from)
    }

    /// Waits until nobody is left who could read what is written here. It never returns for a regular file.
    pub(super) async fn reader_gone(&self) {
        let gone = async {
            // By a number of its own: epoll(7) takes each once, and a write may have to wait for room meanwhile.
            let own = self.fd.as_fd().try_clone_to_owned()?;
            // SAFETY: the descriptor is moved there, and is open for as long as that lives.
            let watched = unsafe { AsyncFd::register_with_interest(own, Interest::WRITABLE) };
            let watched = watched.map_err(io::Error::from)?;
            loop {
                let mut ready = watched.ready(Interest::WRITABLE).await?;
                if ready.ready().is_write_closed() {
                    return Ok::<(), io::Error>(());
                }
                ready.clear_ready();
            }
        };
        if gone.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
