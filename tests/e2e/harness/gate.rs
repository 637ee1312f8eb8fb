//! Blocks a worker until a test lets it continue.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::client::PATIENCE;
use crate::waiting::comes_true;

/// A FIFO that blocks a worker (`--gate`) until it is opened.
pub struct Gate(PathBuf);

impl Gate {
    pub fn new(path: PathBuf) -> Self {
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
        Self(path)
    }

    pub fn path(&self) -> String {
        self.0.display().to_string()
    }

    /// Lets the worker continue. Waits until it is blocked at the gate.
    pub fn open(&self) {
        // A blocking open would wait for a reader without a limit; so it polls for one.
        let mut gate = File::options();
        gate.write(true).custom_flags(libc::O_NONBLOCK);
        let is_open = || match gate.open(&self.0) {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => false,
            opened => {
                opened.expect("the FIFO is there");
                true
            }
        };
        assert!(comes_true(PATIENCE, is_open), "in vain: a worker stands at the gate");
    }
}
