//! The exit watchdog: writing the last lines to stderr, those of a panic too, takes a second at most, also when the reader
//! of stderr does not read.

use std::panic;

use signal_hook::low_level::{exit, register};

/// Seconds that the process has for its last words.
const LIMIT: u32 = 1;

/// Ends the process with this code in a second, whatever it waits for then.
pub(super) fn limit(code: u8) {
    // SAFETY: the handler makes one call, which is async-signal-safe (signal-safety(7)).
    let installed = unsafe { register(libc::SIGALRM, move || exit(code.into())) };
    if installed.is_ok() {
        // SAFETY: alarm(2) takes a number.
        unsafe { libc::alarm(LIMIT) };
    }
}

/// Has a panic kill the process by SIGALRM in a second if its message cannot be written before.
pub(super) fn limit_those_of_a_panic() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        // SAFETY: signal(2) with the default and alarm(2) take numbers.
        unsafe {
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            libc::alarm(LIMIT);
        }
        tell(panic);
    }));
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::io::{Errno, ioctl_fionbio, write};
    use rustix::pipe::pipe;

    use super::*;

    /// A pipe that takes nothing more: its reader and its writer.
    fn full_pipe() -> (OwnedFd, OwnedFd) {
        let (reader, writer) = pipe().expect("there are descriptors");
        ioctl_fionbio(&writer, true).expect("it is a pipe");
        while write(&writer, &[b'x'; 4096]) != Err(Errno::AGAIN) {}
        ioctl_fionbio(&writer, false).expect("it is a pipe");
        (reader, writer)
    }

    #[test]
    #[ignore = "it panics: the next test runs it in a process of its own"]
    fn a_process_that_panics() {
        limit_those_of_a_panic();
        panic!("last words");
    }

    #[test]
    fn a_panic_ends_the_process_though_nobody_reads_what_it_says() {
        let (_reader, writer) = full_pipe();
        let mut process = Command::new(std::env::current_exe().expect("it has a file"));
        process.args(["--exact", "shell::exit_watchdog::tests::a_process_that_panics", "--ignored", "--nocapture"]);
        let mut process = process.stdout(Stdio::null()).stderr(writer).spawn().expect("it can be started");
        let until = Instant::now() + Duration::from_secs(120);
        let status = loop {
            if let Some(status) = process.try_wait().expect("it is our child") {
                break Some(status);
            }
            if Instant::now() >= until {
                break None;
            }
            std::thread::park_timeout(Duration::from_millis(2));
        };
        if status.is_none() {
            let _ = process.kill().and_then(|()| process.wait());
        }
        assert_eq!(status.expect("it ends").signal(), Some(libc::SIGALRM));
    }
}
