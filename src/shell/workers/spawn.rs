//! Starts a worker: three pipes, a process group of its own, and nothing of ours that it did not ask for
//! (spec 3.3, 5.1).
//!
//! The child borrows our memory until its exec, so that no page table is copied and no page of ours is written twice; the
//! thread that calls waits for that exec, and no other (clone(2), CLONE_VFORK).

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

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

/// By how much the kernel's memory killer prefers a worker to the daemon, in thousandths of the memory that there is
/// (oom_score_adj in proc_pid_oom_score_adj(5)): a worker is replaced, and with the daemon all of them would end.
const KILLED_BEFORE_US: i32 = 500;

/// Bytes of stack for what a child does before its exec; the C library may copy the arguments there.
const STACK: usize = 64 * 1024;

/// What a new worker is started with. Nothing more is allocated between clone and exec.
pub(crate) struct Job {
    program: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    cwd: Option<CString>,
    descriptors: libc::rlimit,
    /// What is written to oom_score_adj, if that is more than ours.
    memory_score: Option<String>,
}

impl Job {
    /// A worker of `pool`, which gets `descriptors` as its limit of open files, and its place before the kernel's memory
    /// killer ([`memory_score`]).
    ///
    /// # Errors
    /// Where the command, an argument or a variable has a zero byte.
    pub(crate) fn new(pool: &Pool, descriptors: &Rlimit, memory_score: Option<String>) -> io::Result<Self> {
        let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::from);
        let mut variables: BTreeMap<OsString, OsString> =
            std::env::vars_os().filter(|(name, _)| !OUR_OWN.iter().any(|own| name == own)).collect();
        variables.extend(pool.env.iter().map(|(name, value)| (name.into(), value.into())));
        let assignment = |(mut name, value): (OsString, OsString)| {
            name.push("=");
            name.push(value);
            CString::new(name.into_vec()).map_err(io::Error::from)
        };
        let arguments = std::iter::once(&pool.command).chain(&pool.args).map(|argument| text(argument.as_ref()));
        Ok(Self {
            program: text(pool.program.as_os_str())?,
            arguments: arguments.collect::<io::Result<_>>()?,
            environment: variables.into_iter().map(assignment).collect::<io::Result<_>>()?,
            cwd: pool.cwd.as_ref().map(|cwd| text(cwd.as_os_str())).transpose()?,
            descriptors: libc::rlimit {
                rlim_cur: descriptors.current.unwrap_or(libc::RLIM_INFINITY),
                rlim_max: descriptors.maximum.unwrap_or(libc::RLIM_INFINITY),
            },
            memory_score,
        })
    }

    /// Starts the worker, and waits for its exec. `pid` gets its process id before the child runs. All signals have to
    /// be blocked in the calling thread: a handler of ours that ran in the child would run in our memory.
    ///
    /// # Errors
    /// What pipe2(2), clone(2), chdir(2) or execve(2) said.
    pub(crate) fn start(&self, pid: &AtomicI32) -> io::Result<Spawned> {
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
        let pointers = |texts: &[CString]| -> Vec<*const c_char> {
            texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
        };
        let (arguments, environment) = (pointers(&self.arguments), pointers(&self.environment));
        let child = Child {
            job: self,
            pipes: [&stdin_theirs, &stdout_theirs, &stderr_theirs].map(|pipe| pipe.as_raw_fd()),
            arguments: arguments.as_ptr(),
            environment: environment.as_ptr(),
            parent: std::process::id() as libc::pid_t,
            error: AtomicI32::new(0),
        };
        // Aligned as every stack has to be.
        let mut stack = Vec::<u128>::with_capacity(STACK / 16 + self.arguments.len());
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;
        // SAFETY: the stack, and what `child` points to, live until the exec or the end of the child, for which this call
        // waits. The child makes async-signal-safe calls only, and writes to its stack, to `error` and to our errno.
        let number = unsafe {
            let top = stack.as_mut_ptr().add(stack.capacity());
            let child = ptr::from_ref(&child).cast_mut();
            libc::clone(prepare_child, top.cast::<c_void>(), flags, child.cast::<c_void>(), pid.as_ptr())
        };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        match child.error.load(Ordering::Relaxed) {
            0 => Ok(Spawned { pid: number as u32, stdin, stdout, stderr }),
            error => {
                // SAFETY: it is our child, which nobody else reaps; a null pointer is no place for its status.
                unsafe { libc::waitpid(number, ptr::null_mut(), 0) };
                Err(io::Error::from_raw_os_error(error))
            }
        }
    }
}

/// What oom_score_adj a worker gets; none where ours is the highest, or is not told.
pub(crate) fn memory_score() -> Option<String> {
    let ours: i32 = std::fs::read_to_string("/proc/self/oom_score_adj").ok()?.trim().parse().ok()?;
    (ours < 1000).then(|| (ours + KILLED_BEFORE_US).min(1000).to_string())
}

/// What the child finds in our memory.
struct Child<'a> {
    job: &'a Job,
    /// What become its stdin, stdout and stderr.
    pipes: [RawFd; 3],
    arguments: *const *const c_char,
    environment: *const *const c_char,
    parent: libc::pid_t,
    /// Why it was not started, as an errno.
    error: AtomicI32,
}

/// Runs in the child up to the exec.
extern "C" fn prepare_child(child: *mut c_void) -> c_int {
    // SAFETY: `Job::start` gives a `Child`, and waits.
    let child = unsafe { &*child.cast::<Child<'_>>() };
    child.error.store(child.exec(), Ordering::Relaxed);
    // SAFETY: nothing of ours is run at this end.
    unsafe { libc::_exit(127) }
}

impl Child<'_> {
    /// Becomes the worker: it dies with us, and starts with the signals and limits of a fresh login. Gives the errno if it
    /// cannot.
    fn exec(&self) -> c_int {
        let job = self.job;
        // SAFETY: plain system calls on values that live until the exec.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() != self.parent {
                return libc::ESRCH;
            }
            libc::setpgid(0, 0);
            for (number, pipe) in self.pipes.iter().enumerate() {
                // Ours are above 2, so none of them is overwritten.
                if libc::dup2(*pipe, number as c_int) < 0 {
                    return errno();
                }
            }
            if let Some(cwd) = &job.cwd
                && libc::chdir(cwd.as_ptr()) != 0
            {
                return errno();
            }
            libc::setrlimit(libc::RLIMIT_NOFILE, &job.descriptors);
            // Short sleeps are the loop's own affair (`io/epoll.rs`): this is what a process has by default (prctl(2)).
            libc::prctl(libc::PR_SET_TIMERSLACK, 50_000);
            if let Some(score) = &job.memory_score {
                let file = libc::open(SCORE.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                if file >= 0 {
                    libc::write(file, score.as_ptr().cast::<c_void>(), score.len());
                    libc::close(file);
                }
            }
            for signal in 1..=64 {
                libc::signal(signal, libc::SIG_DFL);
            }
            let mut none = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
            // It runs a script without an interpreter's name by a shell, as everyone is used to.
            libc::execvpe(job.program.as_ptr(), self.arguments.cast(), self.environment.cast());
        }
        errno()
    }
}

const SCORE: &CStr = c"/proc/self/oom_score_adj";

fn errno() -> c_int {
    // SAFETY: the C library's errno of this thread, which waits while its child uses it.
    unsafe { *libc::__errno_location() }
}
