//! The exit watchdog: writing the last lines to stderr, including those of a panic, takes at most a second, even if
//! stderr is not read.

use std::panic;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use signal_hook::low_level::{exit, register};

/// Seconds that the process has for its last lines.
const LIMIT: u32 = 1;

/// The second is counted in this many parts: a process that was stopped (SIGSTOP, a frozen container) gets one signal
/// when it continues, however long that took, and still has its time.
const PARTS: u32 = 10;

/// Exits the process with this code after a second of running, whatever it waits for then.
pub(super) fn limit(code: u8) {
    let passed = AtomicU32::new(0);
    let handler = move || {
        if passed.fetch_add(1, Ordering::Relaxed) + 1 == PARTS {
            exit(code.into());
        }
    };
    // SAFETY: the handler counts and makes one call, all async-signal-safe (signal-safety(7)).
    if unsafe { register(libc::SIGALRM, handler) }.is_ok() {
        let part = libc::timeval { tv_sec: 0, tv_usec: i64::from(LIMIT * 1_000_000 / PARTS) };
        let timer = libc::itimerval { it_interval: part, it_value: part };
        // SAFETY: setitimer(2) reads the timer, and is given no address for the old one.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, null_mut()) };
    }
}

/// Makes a panic kill the process by SIGALRM if its message cannot be written within a second.
pub(super) fn limit_panic() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        // SAFETY: signal(2) with the default and alarm(2) take numbers.
        unsafe {
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            libc::alarm(LIMIT);
        }
        print(panic);
    }));
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, ExitStatus, Stdio};
    use std::time::{Duration, Instant};

    use rustix::io::{Errno, ioctl_fionbio, write};
    use rustix::pipe::pipe;
    use rustix::process::{Pid, Signal};

    use super::*;

    /// A full pipe: its reader and its writer.
    fn full_pipe() -> (OwnedFd, OwnedFd) {
        let (reader, writer) = pipe().expect("there are descriptors");
        ioctl_fionbio(&writer, true).expect("it is a pipe");
        while write(&writer, &[b'x'; 4096]) != Err(Errno::AGAIN) {}
        ioctl_fionbio(&writer, false).expect("it is a pipe");
        (reader, writer)
    }

    #[test]
    #[ignore = "it panics: another test runs it in a process of its own"]
    fn a_process_that_panics() {
        limit_panic();
        panic!("last words");
    }

    #[test]
    #[ignore = "it stops: another test runs it in a process of its own"]
    fn a_process_that_is_stopped_during_its_last_lines() {
        limit(99);
        rustix::process::kill_process(rustix::process::getpid(), Signal::STOP).expect("it may");
    }

    /// Runs one of the tests above as a process.
    fn process(test: &str, stderr: impl Into<Stdio>) -> Child {
        let mut process = Command::new(std::env::current_exe().expect("it has a file"));
        process.args(["--exact", &format!("shell::exit_watchdog::tests::{test}"), "--ignored", "--nocapture"]);
        let _starting = crate::testing::STARTS.write();
        process.stdout(Stdio::null()).stderr(stderr).spawn().expect("it can be started")
    }

    /// Polls until there is a result, for two minutes.
    fn until<T>(mut there: impl FnMut() -> Option<T>) -> Option<T> {
        let until = Instant::now() + Duration::from_secs(120);
        while Instant::now() < until {
            if let Some(found) = there() {
                return Some(found);
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
        None
    }

    /// Its exit status.
    fn end_of(mut process: Child) -> ExitStatus {
        let status = until(|| process.try_wait().expect("it is our child"));
        if status.is_none() {
            let _ = process.kill().and_then(|()| process.wait());
        }
        status.expect("it ends")
    }

    #[test]
    fn a_panic_ends_the_process_although_stderr_is_not_read() {
        let (_reader, writer) = full_pipe();
        assert_eq!(end_of(process("a_process_that_panics", writer)).signal(), Some(libc::SIGALRM));
    }

    #[test]
    fn a_process_stopped_for_longer_than_the_limit_still_has_its_time() {
        let process = process("a_process_that_is_stopped_during_its_last_lines", Stdio::null());
        let pid = Pid::from_child(&process);
        let stopped = until(|| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).expect("it is not reaped");
            stat.contains(") T ").then_some(())
        });
        let since = Instant::now();
        until(|| (since.elapsed() > Duration::from_secs(u64::from(LIMIT) + 1)).then_some(()));
        rustix::process::kill_process(pid, Signal::CONT).expect("it is our child");
        let status = end_of(process);
        assert!(stopped.is_some() && status.success(), "{status}");
    }
}
