//! The bridge's io_uring runtime, if available: tokio-uring does not compile against musl, where threads are used
//! instead.

#[cfg(not(target_env = "musl"))]
pub(super) use here::{File, Runtime};
#[cfg(target_env = "musl")]
pub(super) use missing::{File, Runtime};

#[cfg(not(target_env = "musl"))]
mod here {
    use std::io;
    use std::os::fd::OwnedFd;

    use tokio_uring::buf::BoundedBuf;

    /// The offset that means the file's own position: 0 would read the start of a regular file again and again.
    const CURRENT: u64 = u64::MAX;

    /// The runtime of the tasks.
    pub(in crate::commands::daemon::bridge) struct Runtime(tokio_uring::Runtime);

    impl Runtime {
        /// A runtime with a ring: at most three reads or writes are in flight, and a small ring fits into a small limit
        /// of locked memory.
        pub(in crate::commands::daemon::bridge) fn new() -> io::Result<Self> {
            tokio_uring::Runtime::new(tokio_uring::builder().entries(16)).map(Self)
        }

        pub(in crate::commands::daemon::bridge) fn block_on<F: Future>(&self, future: F) -> F::Output {
            self.0.block_on(future)
        }
    }

    /// An open file of any kind, all of which are read and written in the same way.
    pub(in crate::commands::daemon::bridge) struct File(tokio_uring::fs::File);

    impl File {
        pub(in crate::commands::daemon::bridge) fn new(fd: OwnedFd) -> io::Result<Self> {
            Ok(Self(tokio_uring::fs::File::from_std(fd.into())))
        }

        /// Reads into the capacity of `buffer`. Returns the buffer.
        pub(in crate::commands::daemon::bridge) async fn read(&self, buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
            self.0.read_at(buffer, CURRENT).await
        }

        /// Writes `buffer` from byte `from` on. Returns the buffer.
        pub(in crate::commands::daemon::bridge) async fn write(
            &self,
            buffer: Vec<u8>,
            from: usize,
        ) -> (io::Result<usize>, Vec<u8>) {
            let (result, slice) = self.0.write_at(buffer.slice(from..), CURRENT).submit().await;
            (result, slice.into_inner())
        }
    }
}

#[cfg(target_env = "musl")]
mod missing {
    use std::io::{self, ErrorKind};
    use std::os::fd::OwnedFd;

    /// Not available.
    pub(in crate::commands::daemon::bridge) enum Runtime {}

    impl Runtime {
        pub(in crate::commands::daemon::bridge) fn new() -> io::Result<Self> {
            Err(ErrorKind::Unsupported.into())
        }

        pub(in crate::commands::daemon::bridge) fn block_on<F: Future>(&self, _: F) -> F::Output {
            match *self {}
        }
    }

    /// Not available.
    pub(in crate::commands::daemon::bridge) enum File {}

    impl File {
        pub(in crate::commands::daemon::bridge) fn new(_: OwnedFd) -> io::Result<Self> {
            Err(ErrorKind::Unsupported.into())
        }

        pub(in crate::commands::daemon::bridge) async fn read(&self, _: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
            match *self {}
        }

        pub(in crate::commands::daemon::bridge) async fn write(
            &self,
            _: Vec<u8>,
            _: usize,
        ) -> (io::Result<usize>, Vec<u8>) {
            match *self {}
        }
    }
}
