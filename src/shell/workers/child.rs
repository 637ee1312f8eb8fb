//! What the child of a start does between clone and exec: it takes the rights of its pool, and becomes the worker.
//!
//! It borrows our memory until then, so that no page table is copied and no page is written twice: `CLONE_VM` and
//! `CLONE_VFORK` in clone(2), under the rules of vfork(2). The thread that has called is suspended until the child's exec
//! or end; our other threads go on. Everything in this file that runs in the child keeps these rules:
//!
//! - **It writes nothing of ours** but [`Child::failure`], which nobody reads before it has ended, its own stack, and the
//!   `errno` of the suspended thread, whose thread-local storage it has.
//! - **It allocates nothing and takes no lock.** From its change of user on, that user may kill it at any moment, and a
//!   lock that it held would be held for ever. So it makes system calls, by rustix or by functions of the C library that
//!   do no more and are listed in signal-safety(7), or that are named below with the reason why they may be called.
//! - **It does not panic**, since that would run our hook: nothing is indexed, added or unwrapped.
//! - **No handler of ours runs in it.** All signals are blocked in the thread that calls, and so in the child, until all
//!   of its signals have their default action.
//! - **What it changes is its own.** Its descriptors, directory, umask and handlers are copies (no `CLONE_FILES`,
//!   `CLONE_FS`, `CLONE_SIGHAND`), and limits, CPUs and credentials are those of a process of its own. But the C
//!   library's functions for users and groups would change all threads that it knows, which are ours (nptl(7)): here they
//!   are plain system calls.
//!
//! # Why no helper program
//! A helper of ours that is started by posix_spawn(3), lowers its rights in safe code and executes the worker was tried:
//! it is not shorter, since it has to be sent all of this and to say what has failed. With 100 workers that start at once
//! (`cat`, two CPUs, medians of nine rounds in turns) a start costs 2.5 ms of CPU instead of 1.0, and all of them run after
//! 290 ms instead of 115. The p99 of another pool meanwhile is the same within what it varies (6.1 and 7.2 ms). And it can
//! fail where this cannot: without /proc, with our file on a file system that has become noexec, under AppArmor, SELinux
//! or securebits(7) that do not provide for our executing ourselves, for lack of memory between two execs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::AtomicI32;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, write};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, chdir, getppid, set_parent_process_death_signal, setpgid, setrlimit, setsid, umask,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, sched_setaffinity, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use super::client_env::ClientEnv;
use crate::config::Rights;

/// Time limit for starting another user's worker. That user can stop the child between the change of user and its exec,
/// or delay the exec with a file system of its own, and we would wait for ever.
pub(super) const LONGEST_START: Duration = Duration::from_secs(10);

/// Stack size of a child before its exec.
const STACK: usize = 64 * 1024;

/// The highest number of a signal (signal(7)).
const LAST_SIGNAL: c_int = 64;

/// Runs a script that has no interpreter line, as it does for execvp(3).
const SHELL: &CStr = c"/bin/sh";

const SCORE: &CStr = c"/proc/self/oom_score_adj";

const NO_CAPABILITIES: CapabilitySets = CapabilitySets {
    effective: CapabilitySet::empty(),
    permitted: CapabilitySet::empty(),
    inheritable: CapabilitySet::empty(),
};

/// Everything that starting a worker needs.
pub(crate) struct SpawnJob {
    pub(super) program: CString,
    pub(super) arguments: Vec<CString>,
    /// The variables that it has of ours, and as its user.
    pub(super) variables: BTreeMap<OsString, OsString>,
    /// Those that its pool sets over them, as they were written.
    pub(super) env: BTreeMap<String, String>,
    /// Those of its client, which are set over all others.
    pub(super) own: Option<ClientEnv>,
    pub(super) cwd: Option<CString>,
    pub(super) descriptors: Rlimit,
    /// Its limit of core dumps, if that is not ours.
    pub(super) core: Option<Rlimit>,
    pub(super) rights: Rights,
    /// The supplementary groups of its user.
    pub(super) groups: Vec<Gid>,
    /// Its oom_score_adj, if that is higher than ours.
    pub(super) memory_score: Option<String>,
    /// Its pipes are larger than usual.
    pub(super) has_large_pipes: bool,
}

/// A failed system call of the child, and its error.
pub(super) type Failure = (&'static str, Errno);

/// Names the system call of a result.
trait Step<T> {
    fn of(self, step: &'static str) -> Result<T, Failure>;
}

impl<T> Step<T> for Result<T, Errno> {
    fn of(self, step: &'static str) -> Result<T, Failure> {
        self.map_err(|error| (step, error))
    }
}

/// Texts as exec takes them: pointers to them, and a null pointer behind the last one.
struct Texts<'a> {
    pointers: Vec<*const c_char>,
    /// The texts live as long as the pointers to them.
    of: std::marker::PhantomData<&'a CStr>,
}

impl<'a> Texts<'a> {
    fn new(texts: impl Iterator<Item = &'a CStr>) -> Self {
        let pointers = texts.map(CStr::as_ptr).chain([ptr::null()]).collect();
        Self { pointers, of: std::marker::PhantomData }
    }
}

/// What the child reads of our memory, with everything allocated that it needs.
pub(super) struct Child<'a> {
    job: &'a SpawnJob,
    /// The future stdin, stdout and stderr. Their numbers are above 2, so that none overwrites another.
    pipes: [&'a OwnedFd; 3],
    arguments: Texts<'a>,
    /// The same for the shell, if the program is a script without an interpreter line.
    of_shell: Texts<'a>,
    environment: Texts<'a>,
    /// Our process.
    parent: Option<Pid>,
    /// Why it was not started.
    failure: Cell<Option<Failure>>,
}

impl<'a> Child<'a> {
    pub(super) fn new(job: &'a SpawnJob, environment: &'a [CString], pipes: [&'a OwnedFd; 3]) -> Self {
        let arguments = || job.arguments.iter().map(CString::as_c_str);
        Self {
            job,
            pipes,
            arguments: Texts::new(arguments()),
            of_shell: Texts::new([SHELL, &job.program].into_iter().chain(arguments().skip(1))),
            environment: Texts::new(environment.iter().map(CString::as_c_str)),
            parent: Some(rustix::process::getpid()),
            failure: Cell::new(None),
        }
    }

    /// Starts the child, and waits for its exec or end. `pid` is set to its process id before it runs. All signals have
    /// to be blocked in the calling thread.
    ///
    /// # Errors
    /// The error of clone(2).
    pub(super) fn run(&self, pid: &AtomicI32) -> io::Result<(Pid, Option<Failure>)> {
        // Of this type it is aligned like every stack.
        let mut stack = Vec::<u128>::with_capacity(STACK / size_of::<u128>());
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;
        // SAFETY: the stack grows downwards from its end, and nothing else uses it. It, `self` and `pid` live until this
        // call returns, which is after the child's exec or end: it cannot use them any longer. What it does meanwhile
        // keeps the rules of this file.
        let number = unsafe {
            let top = stack.as_mut_ptr().add(stack.capacity());
            let child = ptr::from_ref(self).cast_mut();
            libc::clone(enter_child, top.cast::<c_void>(), flags, child.cast::<c_void>(), pid.as_ptr())
        };
        // No process has a negative number, and none may be asked for.
        let child = if number > 0 { Pid::from_raw(number) } else { None };
        let child = child.ok_or_else(io::Error::last_os_error)?;
        Ok((child, self.failure.take()))
    }

    /// Becomes the worker: it dies with us, and starts with the signals and limits of a fresh login.
    fn exec(&self) -> Result<Infallible, Failure> {
        self.leave()?;
        let [stdin, stdout, stderr] = self.pipes;
        dup2_stdin(stdin).of("dup2")?;
        dup2_stdout(stdout).of("dup2")?;
        dup2_stderr(stderr).of("dup2")?;
        self.score();
        forget_signals();
        self.take_rights()?;
        // After the change of user, which clears it (prctl(2)).
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        if getppid() != self.parent {
            // We have died before.
            return Err(("getppid", Errno::SRCH));
        }
        if let Some(cwd) = &self.job.cwd {
            chdir(cwd.as_c_str()).of("chdir")?;
        }
        Err(("execve", self.become_worker()))
    }

    /// Leaves our process group, and for another user also our terminal: its holder can type into it (TIOCSTI).
    fn leave(&self) -> Result<(), Failure> {
        match self.job.rights.identity {
            Some(_) => setsid().map(|_| ()).of("setsid"),
            None => {
                let _ = setpgid(None, None);
                Ok(())
            }
        }
    }

    /// Has the OOM killer prefer it to us, if that can be set.
    fn score(&self) {
        let Some(score) = &self.job.memory_score else { return };
        if let Ok(file) = open(SCORE, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
            let _ = write(file, score.as_bytes());
        }
    }

    /// Sets the limits first, which may be above ours, and then the user. That user cannot access our memory meanwhile:
    /// on the change of user the kernel forbids tracing of the address space, which is also ours from then on
    /// (PR_SET_DUMPABLE in prctl(2)).
    fn take_rights(&self) -> Result<(), Failure> {
        let rights = &self.job.rights;
        let _ = setrlimit(Resource::Nofile, self.job.descriptors);
        if let Some(core) = self.job.core {
            let _ = setrlimit(Resource::Core, core);
        }
        for limit in &rights.limits {
            setrlimit(limit.resource, limit.most).of(limit.call)?;
        }
        if let Some(cpus) = &rights.cpus {
            sched_setaffinity(None, cpus).of("sched_setaffinity")?;
        }
        if let Some(mask) = rights.umask {
            umask(Mode::from_raw_mode(mask));
        }
        if let Some(identity) = &rights.identity {
            let (user, group) = (Uid::from_raw(identity.user), Gid::from_raw(identity.group));
            limit_start();
            set_thread_groups(&self.job.groups).of("setgroups")?;
            set_thread_res_gid(group, group, group).of("setresgid")?;
            set_thread_res_uid(user, user, user).of("setresuid")?;
            if !user.is_root() {
                // They are lost with root, but not with another user who had them.
                set_capabilities(None, NO_CAPABILITIES).of("capset")?;
            }
        }
        if rights.no_new_privs {
            set_no_new_privs(true).of("prctl")?;
        }
        Ok(())
    }

    /// Executes the program, or returns why not. Like a shell, it has sh run a script without an interpreter line.
    fn become_worker(&self) -> Errno {
        let (arguments, of_shell) = (self.arguments.pointers.as_ptr(), self.of_shell.pointers.as_ptr());
        let environment = self.environment.pointers.as_ptr();
        // SAFETY: these are arrays of pointers to texts that end with a zero byte, with a null pointer behind the last one
        // (execve(2)). If a call returns, the error number is that of the suspended thread.
        unsafe {
            libc::execve(self.job.program.as_ptr(), arguments, environment);
            let why = Errno::from_raw_os_error(*libc::__errno_location());
            if why == Errno::NOEXEC {
                libc::execve(SHELL.as_ptr(), of_shell, environment);
            }
            why
        }
    }
}

/// Runs in the child until the exec.
extern "C" fn enter_child(child: *mut c_void) -> c_int {
    // SAFETY: [`Child::run`] passes a `Child`, which lives until that returns, and does not use it meanwhile.
    let child = unsafe { &*child.cast::<Child<'_>>() };
    let Err(failure) = child.exec();
    child.failure.set(Some(failure));
    // SAFETY: it ends this process alone, and runs no handlers of ours as exit(3) would.
    unsafe { libc::_exit(127) }
}

/// Gives all signals their default action, and blocks none. An exec does so only with those that have handlers.
fn forget_signals() {
    // SAFETY: the handlers and the mask are those of the child alone, and an empty set is valid in any state. Those few
    // numbers that the C library keeps for itself are refused.
    unsafe {
        for signal in 1..=LAST_SIGNAL {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
    }
}

/// Makes the kernel kill this process unless it soon calls execve(2), which ends all timers (timer_create(2)); that
/// also kills a stopped process.
fn limit_start() {
    // SAFETY: all of these live during the calls, and any value of their fields is valid. timer_create is not listed in
    // signal-safety(7): before glibc 2.34 it allocates a few bytes, which nobody frees. The allocator is in order, since
    // the child has the thread-local storage of the suspended thread, and nobody may kill the child yet but us.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, libc::SIGKILL);
        let mut timer: libc::timer_t = std::mem::zeroed();
        let mut time: libc::itimerspec = std::mem::zeroed();
        time.it_value.tv_sec = LONGEST_START.as_secs() as _;
        if libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) == 0 {
            libc::timer_settime(timer, 0, &raw const time, ptr::null_mut());
        }
    }
}
