//! Runs a bridge: on a ring, or with blocking threads where there is none.

use std::io;
use std::mem::ManuallyDrop;

use tokio::task::LocalSet;

use super::ring;
use super::stream::Backend;
use crate::error::StartError;

/// Runs it to its end. The caller is expected to exit: a read of stdin may still be in progress.
///
/// # Errors
/// No runtime can be created.
pub(super) fn run<T>(does: impl AsyncFnOnce(Backend) -> T) -> Result<T, StartError> {
    // Editors run in containers that block io_uring; a bridge works without it.
    let ring = probe_ring().and_then(|()| ring::Runtime::new());
    // Dropping a runtime would wait for the read of stdin, which may never end.
    match ring {
        Ok(runtime) => {
            let runtime = ManuallyDrop::new(runtime);
            Ok(runtime.block_on(does(Backend::Ring)))
        }
        Err(_) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = ManuallyDrop::new(runtime.map_err(StartError::io("wait for stdin"))?);
            Ok(LocalSet::new().block_on(&runtime, does(Backend::Threads)))
        }
    }
}

/// Submits a no-op to a ring: a sandbox may allow the setup and then refuse the rest.
fn probe_ring() -> io::Result<()> {
    let mut ring = io_uring::IoUring::new(2)?;
    let nothing = io_uring::opcode::Nop::new().build();
    // SAFETY: the operation has no buffer or file that would have to outlive it, and a new ring is not full.
    unsafe { ring.submission().push(&nothing) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    Ok(())
}
