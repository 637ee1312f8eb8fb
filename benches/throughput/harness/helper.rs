//! A child process of the bench that generates load during a measurement until its stdin ends, and then reports its
//! rate per second.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::server::this_program;

pub struct Helper(Child);

impl Helper {
    /// Starts the helper with these arguments.
    pub fn start(arguments: &[&str]) -> io::Result<Self> {
        let mut command = Command::new(this_program());
        Ok(Self(command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?))
    }

    /// Stops it, and returns its report.
    pub fn stop(mut self) -> io::Result<f64> {
        drop(self.0.stdin.take());
        let mut text = String::new();
        if let Some(output) = &mut self.0.stdout {
            output.read_to_string(&mut text)?;
        }
        let status = self.0.wait()?;
        text.trim().parse().map_err(|_| io::Error::other(format!("the load beside has ended too early: {status}")))
    }
}

/// Whether this process, a helper, was asked to stop.
pub fn is_stopped() -> io::Result<bool> {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(&io::stdin(), PollFlags::IN)], Some(&at_once))? > 0)
}
