//! A process that was started without the daemon, to compare with.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

/// It is killed at the latest when this is dropped.
pub struct Direct {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Direct {
    /// Starts it.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = process.stdout.take().map(BufReader::new).ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { process, output })
    }

    /// Writes to its stdin.
    pub fn send(&mut self, text: &str) -> io::Result<()> {
        let input = self.process.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        input.write_all(text.as_bytes())
    }

    /// Waits for its next line.
    pub fn answer(&mut self) -> io::Result<()> {
        match self.output.read_line(&mut String::new())? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
