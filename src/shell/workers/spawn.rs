//! Starts workers: three pipes, a process group of their own, and nothing of ours that they did not ask for
//! (spec 3.3, 5.1).

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::Rlimit;

use crate::config::Pool;

/// Bytes that a worker's pipes hold: fewer turns for large messages than with the kernel's 64 KiB.
const PIPE_BYTES: usize = 256 * 1024;

/// A running worker as the kernel knows it.
pub(crate) struct Spawned {
    /// The process id, and the id of its group.
    pub pid: u32,
    /// Where to write its messages.
    pub stdin: OwnedFd,
    /// Where its messages come from.
    pub stdout: OwnedFd,
    /// Where its diagnostics come from.
    pub stderr: OwnedFd,
}

/// Marks every descriptor that we inherited, so that no worker inherits it from us. Our own are marked when made.
pub(crate) fn keep_descriptors() -> io::Result<()> {
    // By its number: musl has no function for it.
    // SAFETY: the call changes flags of descriptors only.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    // Linux before 5.11 has no such flag, and old sandboxes do not know the call.
    if result == 0 { Ok(()) } else { keep_each_descriptor() }
}

fn keep_each_descriptor() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(descriptor) = entry?.file_name().to_str().and_then(|name| name.parse::<libc::c_int>().ok()) else {
            continue;
        };
        if descriptor > 2 {
            // SAFETY: the call changes a flag of a descriptor only. That of the directory itself is gone by now or soon.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// What a service manager tells us alone: with these a worker could speak for the daemon (sd_notify(3),
/// sd_listen_fds(3)).
const OUR_OWN: [&str; 7] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    // The journal is at our stderr, and not at theirs (systemd.exec(5)).
    "JOURNAL_STREAM",
];

/// Starts one worker of `pool`. It gets `descriptors` as its limit of open files.
///
/// # Errors
/// What pipe2(2), fork(2) or execve(2) said, with the command.
pub(crate) fn spawn(pool: &Pool, descriptors: &Rlimit) -> io::Result<Spawned> {
    let (stdin_theirs, stdin) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stdout, stdout_theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, stderr_theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    for pipe in [&stdin, &stdout] {
        // A user at the limit of pipe memory gets the kernel's default, which is slower but works.
        let _ = fcntl_setpipe_size(pipe, PIPE_BYTES);
    }
    for ours in [&stdin, &stdout, &stderr] {
        fcntl_setfl(ours, fcntl_getfl(ours)? | OFlags::NONBLOCK)?;
    }
    let mut command = Command::new(&pool.program);
    for variable in OUR_OWN {
        command.env_remove(variable);
    }
    command.arg0(&pool.command).args(&pool.args).envs(&pool.env);
    command.stdin(Stdio::from(stdin_theirs)).stdout(Stdio::from(stdout_theirs)).stderr(Stdio::from(stderr_theirs));
    command.process_group(0);
    if let Some(cwd) = &pool.cwd {
        command.current_dir(cwd);
    }
    let limit = libc::rlimit {
        rlim_cur: descriptors.current.unwrap_or(libc::RLIM_INFINITY),
        rlim_max: descriptors.maximum.unwrap_or(libc::RLIM_INFINITY),
    };
    let parent = std::process::id() as libc::pid_t;
    // SAFETY: the closure runs between fork and exec and makes async-signal-safe calls only.
    unsafe { command.pre_exec(move || prepare_child(parent, limit)) };
    let child = command.spawn()?;
    Ok(Spawned { pid: child.id(), stdin, stdout, stderr })
}

/// Runs in the child: it dies with us, and starts with the signals and limits of a fresh login.
fn prepare_child(parent: libc::pid_t, limit: libc::rlimit) -> io::Result<()> {
    // SAFETY: plain system calls on values of this frame.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(1);
        }
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        // Short sleeps are the loop's own affair (`io/epoll.rs`): this is what a process has by default (prctl(2)).
        libc::prctl(libc::PR_SET_TIMERSLACK, 50_000);
    }
    Ok(())
}
