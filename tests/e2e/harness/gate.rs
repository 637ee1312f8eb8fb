//! What holds a worker back.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::client::PATIENCE;
use crate::waiting::comes_true;

/// A FIFO that holds a worker back (`--gate`) until it is opened.
pub struct Gate(PathBuf);

impl Gate {
    pub fn new(path: PathBuf) -> Self {
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
        Self(path)
    }

    pub fn path(&self) -> String {
        self.0.display().to_string()
    }

    /// Lets the worker go on. Waits until it stands at the gate.
    pub fn open(&self) {
        // To open it waits for a reader, without end; so it only looks whether there is one.
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
