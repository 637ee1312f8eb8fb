//! Starts a worker: three pipes, a process group of its own, and nothing inherited that it did not ask for (spec 3.3,
//! 5.1).
//!
//! The child borrows our memory until its exec, so that no page table is copied and no page is written twice; only the
//! calling thread waits for that exec (clone(2), CLONE_VFORK).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;
use std::sync::atomic::AtomicI32;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{
    Gid, Pid, Resource, Rlimit, Uid, WaitId, WaitIdOptions, WaitOptions, setrlimit, waitid, waitpid,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, sched_setaffinity, set_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::config::{Identity, Pool, Rights};

/// Capacity of the pipes that messages pass through in bytes: large messages need fewer turns than with the kernel's
/// 64 KiB.
const PIPE_BYTES: usize = 256 * 1024;
/// The capacity that the kernel gives a pipe, in pages (pipe(7)).
const USUAL_PAGES: usize = 16;
/// The part of its user's pipe memory that the daemon takes with large pipes.
const PIPES_PART: usize = 4;

/// How many workers may have large pipes at a time; no limit for a privileged daemon. Once the pipes of a user have more
/// than `fs.pipe-user-pages-soft` together, each further one of that user gets a page or two, also those that a worker
/// makes for its own children (pipe(7)).
pub(crate) fn most_large_pipes() -> Option<usize> {
    let free = CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_ADMIN;
    if capabilities(None).is_ok_and(|ours| ours.effective.intersects(free)) {
        return None;
    }
    let pages: usize = std::fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft").ok()?.trim().parse().ok()?;
    // SAFETY: the call takes a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|page| *page > 0)?;
    large_pipes_within(pages, page)
}

/// The same for this many pages of this size; zero pages are no limit.
fn large_pipes_within(pages: usize, page: usize) -> Option<usize> {
    let of_worker = 2 * PIPE_BYTES / page + USUAL_PAGES;
    (pages > 0).then_some(pages / PIPES_PART / of_worker)
}

/// A running worker's process.
pub(crate) struct Spawned {
    /// The process id, and the id of its group.
    pub pid: u32,
    /// For its messages to read.
    pub stdin: OwnedFd,
    /// For its messages to us.
    pub stdout: OwnedFd,
    /// For its diagnostics.
    pub stderr: OwnedFd,
}

/// Marks every inherited descriptor as close-on-exec, so that no worker inherits it. Our own are created that way.
pub(crate) fn keep_descriptors() -> io::Result<()> {
    // By number: musl has no function for it. SAFETY: the call only changes flags of descriptors.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    // Linux before 5.11 lacks this flag, and old sandboxes do not know the system call.
    if result == 0 { Ok(()) } else { keep_each_descriptor() }
}

fn keep_each_descriptor() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(descriptor) = entry?.file_name().to_str().and_then(|name| name.parse::<libc::c_int>().ok()) else {
            continue;
        };
        if descriptor > 2 {
            // SAFETY: the call only changes a descriptor's flag. That of the directory itself is closed by now or soon.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// A service manager's variables for us alone: with them a worker could speak for the daemon (sd_notify(3),
/// sd_listen_fds(3)), or read its credentials (systemd.exec(5)).
const OUR_OWN: [&str; 8] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    // Our stderr is the journal, but theirs is not (systemd.exec(5)).
    "JOURNAL_STREAM",
    "CREDENTIALS_DIRECTORY",
];

/// What our own commands ask a daemon with, such as the token of its operator: no worker is to act as one.
const OF_OPERATORS: &[u8] = b"STDIO_BUS_ADMIN";

/// Whether a variable of ours is not for workers. A pool's `env` may still name it.
fn is_our_own(name: &OsStr) -> bool {
    OUR_OWN.iter().any(|own| name == *own) || name.as_bytes().starts_with(OF_OPERATORS)
}

/// By how much the OOM killer prefers a worker to the daemon, in thousandths of memory (oom_score_adj in
/// proc_pid_oom_score_adj(5)): a worker is replaced, but without the daemon all of them would end.
const KILLED_BEFORE_US: i32 = 500;

/// Stack size of a child before its exec; the C library may copy the arguments there.
const STACK: usize = 64 * 1024;

/// Why a worker was not started.
#[derive(Debug)]
pub(crate) struct NotStarted {
    /// The child's failed system call, if it was one.
    pub step: Option<&'static str>,
    pub error: io::Error,
}

impl From<io::Error> for NotStarted {
    fn from(error: io::Error) -> Self {
        Self { step: None, error }
    }
}

impl From<Errno> for NotStarted {
    fn from(error: Errno) -> Self {
        io::Error::from(error).into()
    }
}

impl fmt::Display for NotStarted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.step.map_or(Ok(()), |step| write!(out, "{step}: "))?;
        self.error.fmt(out)?;
        match self.error.raw_os_error() {
            Some(libc::EAGAIN) => out.write_str(
                "; there are as many processes as may be: raise TasksMax= or pids.max of the control group, or ulimit -u \
                 of their user; it is tried again each second",
            ),
            Some(libc::ENOMEM | libc::ENOBUFS) => {
                out.write_str("; the machine or the control group is short of memory; it is tried again each second")
            }
            Some(libc::EMFILE | libc::ENFILE) => out.write_str(
                "; raise RLIMIT_NOFILE (LimitNOFILE=, ulimit -n), or fs.file-max; it is tried again each second",
            ),
            _ => Ok(()),
        }
    }
}

/// Time limit for starting another user's worker. That user can stop the child between the change of user and its exec,
/// or delay the exec with a file system of its own, and we would wait for ever.
const LONGEST_START: Duration = Duration::from_secs(10);

/// Everything that starting a worker needs. Nothing is allocated between clone and exec.
pub(crate) struct Job {
    program: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    cwd: Option<CString>,
    descriptors: Rlimit,
    rights: Rights,
    /// The supplementary groups of its user.
    groups: Vec<Gid>,
    /// Its oom_score_adj, if that is higher than ours.
    memory_score: Option<String>,
    /// Its pipes are larger than usual.
    has_large_pipes: bool,
}

impl Job {
    /// A worker of `pool`, with `descriptors` as its limit of open files, its oom_score_adj ([`memory_score`]), and large
    /// pipes or those that the kernel makes.
    ///
    /// # Errors
    /// The command, an argument or a variable contains a zero byte.
    pub(crate) fn new(
        pool: &Pool,
        descriptors: &Rlimit,
        memory_score: Option<String>,
        has_large_pipes: bool,
    ) -> io::Result<Self> {
        let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::from);
        let mut variables = BTreeMap::new();
        variables.extend(std::env::vars_os().filter(|(name, _)| !is_our_own(name)));
        if let Some(identity) = &pool.rights.identity {
            name_the_user(&mut variables, identity);
        }
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
            descriptors: *descriptors,
            rights: pool.rights.clone(),
            groups: pool
                .rights
                .identity
                .iter()
                .flat_map(|one| &one.groups)
                .map(|group| Gid::from_raw(*group))
                .collect(),
            memory_score,
            has_large_pipes,
        })
    }

    /// Starts the worker, and waits for its exec. `pid` is set to its process id before the child runs. All signals
    /// have to be blocked in the calling thread: a handler in the child would run in our memory.
    ///
    /// # Errors
    /// The error of pipe2(2), clone(2) or a system call of the child.
    pub(crate) fn start(&self, pid: &AtomicI32) -> Result<Spawned, NotStarted> {
        let [(stdin_theirs, stdin), (stdout, stdout_theirs), (stderr, stderr_theirs)] = self.pipes()?;
        for pipe in [&stdin, &stdout].into_iter().filter(|_| self.has_large_pipes) {
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
            failure: Cell::new(None),
        };
        let began = Instant::now();
        // Aligned like every stack.
        let mut stack = Vec::<u128>::with_capacity(STACK / 16 + self.arguments.len());
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;
        // SAFETY: the stack, and what `child` points to, live until the child's exec or end, for which this call waits.
        // The child only makes async-signal-safe calls, and writes only to its stack, to `failure` and to our errno.
        let number = unsafe {
            let top = stack.as_mut_ptr().add(stack.capacity());
            let child = ptr::from_ref(&child).cast_mut();
            libc::clone(prepare_child, top.cast::<c_void>(), flags, child.cast::<c_void>(), pid.as_ptr())
        };
        if number < 0 {
            return Err(io::Error::last_os_error().into());
        }
        match child.failure.get() {
            None if self.rights.identity.is_some() && began.elapsed() >= LONGEST_START && was_killed(number) => {
                let why = format!("not done within {} s, and given up", LONGEST_START.as_secs());
                Err(NotStarted { step: Some("execve"), error: io::Error::new(io::ErrorKind::TimedOut, why) })
            }
            None => Ok(Spawned { pid: number as u32, stdin, stdout, stderr }),
            Some((step, error)) => {
                // SAFETY: it is our child, which is reaped only here; the status may be a null pointer.
                unsafe { libc::waitpid(number, ptr::null_mut(), 0) };
                Err(NotStarted { step: Some(step), error: error.into() })
            }
        }
    }

    /// Three pipes that the worker's user owns: opening /dev/stderr opens the pipe again, which checks its permissions.
    fn pipes(&self) -> io::Result<[(OwnedFd, OwnedFd); 3]> {
        let make = || -> io::Result<_> {
            let pipe = || pipe_with(PipeFlags::CLOEXEC);
            Ok([pipe()?, pipe()?, pipe()?])
        };
        let Some(identity) = &self.rights.identity else { return make() };
        // SAFETY: the calls take numbers, and change the owner of files that this thread creates (setfsuid(2)).
        let (group, user) = unsafe { (libc::setfsgid(identity.group), libc::setfsuid(identity.user)) };
        let pipes = make();
        // SAFETY: the same, with the previous values.
        unsafe { (libc::setfsuid(user as libc::uid_t), libc::setfsgid(group as libc::gid_t)) };
        pipes
    }
}

/// Sets the worker's user in its environment, and removes ours.
fn name_the_user(variables: &mut BTreeMap<OsString, OsString>, identity: &Identity) {
    variables.insert("HOME".into(), identity.home.clone().into());
    for variable in ["USER", "LOGNAME"] {
        match &identity.name {
            Some(name) => variables.insert(variable.into(), name.into()),
            None => variables.remove(OsStr::new(variable)),
        };
    }
}

/// A worker's oom_score_adj; none if ours is the maximum, or unknown.
pub(crate) fn memory_score() -> Option<String> {
    let ours: i32 = std::fs::read_to_string("/proc/self/oom_score_adj").ok()?.trim().parse().ok()?;
    (ours < 1000).then(|| (ours + KILLED_BEFORE_US).min(1000).to_string())
}

type Failure = (&'static str, Errno);

/// The child's view of our memory.
struct Child<'a> {
    job: &'a Job,
    /// The future stdin, stdout and stderr.
    pipes: [RawFd; 3],
    arguments: *const *const c_char,
    environment: *const *const c_char,
    parent: libc::pid_t,
    /// Why it was not started: a system call and its error.
    failure: Cell<Option<Failure>>,
}

/// Runs in the child until the exec.
extern "C" fn prepare_child(child: *mut c_void) -> c_int {
    // SAFETY: `Job::start` passes a `Child`, and waits.
    let child = unsafe { &*child.cast::<Child<'_>>() };
    let Err(failure) = child.exec();
    child.failure.set(Some(failure));
    // SAFETY: this exit runs none of our handlers.
    unsafe { libc::_exit(127) }
}

impl Child<'_> {
    /// Becomes the worker: it dies with us, and starts with the signals and limits of a fresh login.
    fn exec(&self) -> Result<Infallible, Failure> {
        let job = self.job;
        self.leave()?;
        // SAFETY: plain system calls on values that live until the exec.
        unsafe {
            for (number, pipe) in self.pipes.iter().enumerate() {
                // Ours are above 2, so none of them is overwritten.
                done("dup2", libc::dup2(*pipe, number as c_int))?;
            }
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
        }
        self.take_rights()?;
        // SAFETY: the same.
        unsafe {
            // After the change of user, which clears it (prctl(2)).
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() != self.parent {
                return Err(("getppid", Errno::SRCH));
            }
            if let Some(cwd) = &job.cwd {
                done("chdir", libc::chdir(cwd.as_ptr()))?;
            }
            // Like a shell, it runs a script without an interpreter line with sh.
            done("execve", libc::execvpe(job.program.as_ptr(), self.arguments.cast(), self.environment.cast()))?;
        }
        Err(("execve", Errno::INVAL))
    }

    /// Leaves our process group, and for another user also our terminal: its holder can type into it (TIOCSTI).
    fn leave(&self) -> Result<(), Failure> {
        // SAFETY: the calls take numbers.
        unsafe {
            match self.job.rights.identity {
                Some(_) => done("setsid", libc::setsid()),
                None => {
                    libc::setpgid(0, 0);
                    Ok(())
                }
            }
        }
    }

    /// Sets the limits first, which may be above ours, and then the user. These system calls affect only this thread:
    /// the C library's functions would change all of ours, too. That user cannot access our memory meanwhile: on the
    /// change of user the kernel forbids tracing of the address space, which is also ours from then on (PR_SET_DUMPABLE
    /// in prctl(2)).
    fn take_rights(&self) -> Result<(), Failure> {
        let rights = &self.job.rights;
        let _ = setrlimit(Resource::Nofile, self.job.descriptors);
        for limit in &rights.limits {
            setrlimit(limit.resource, limit.most).map_err(|error| (limit.call, error))?;
        }
        if let Some(cpus) = &rights.cpus {
            sched_setaffinity(None, cpus).map_err(|error| ("sched_setaffinity", error))?;
        }
        if let Some(umask) = rights.umask {
            // SAFETY: the call takes a number.
            unsafe { libc::umask(umask as libc::mode_t) };
        }
        if let Some(identity) = &rights.identity {
            let (user, group) = (Uid::from_raw(identity.user), Gid::from_raw(identity.group));
            limit_start();
            set_thread_groups(&self.job.groups).map_err(|error| ("setgroups", error))?;
            set_thread_res_gid(group, group, group).map_err(|error| ("setresgid", error))?;
            set_thread_res_uid(user, user, user).map_err(|error| ("setresuid", error))?;
            if !user.is_root() {
                // They are lost with root, but not with another user who had them.
                set_capabilities(None, NONE).map_err(|error| ("capset", error))?;
            }
        }
        if rights.no_new_privs {
            set_no_new_privs(true).map_err(|error| ("prctl", error))?;
        }
        Ok(())
    }
}

const NONE: CapabilitySets = CapabilitySets {
    effective: CapabilitySet::empty(),
    permitted: CapabilitySet::empty(),
    inheritable: CapabilitySet::empty(),
};

const SCORE: &CStr = c"/proc/self/oom_score_adj";

/// Makes the kernel kill this process unless it soon calls execve(2), which ends all timers (timer_create(2)); that
/// also kills a stopped process.
fn limit_start() {
    // SAFETY: all of these live during the calls, and any value of their fields is valid.
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

/// Whether a child that took too long to start was killed for it, and reaped. If it was executed after all, it is left
/// to the reaper.
fn was_killed(child: libc::pid_t) -> bool {
    let Some(child) = Pid::from_raw(child) else { return false };
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // This thread continues a moment before the child can be reaped.
    for _ in 0..100 {
        if let Ok(Some(status)) = waitid(WaitId::Pid(child), look) {
            let was_killed = status.terminating_signal() == Some(libc::SIGKILL);
            return was_killed && waitpid(Some(child), WaitOptions::empty()).is_ok();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Converts the result of a C library call.
fn done(step: &'static str, result: c_int) -> Result<(), Failure> {
    // SAFETY: the C library's errno of this thread, which waits while its child uses it.
    if result < 0 { Err((step, Errno::from_raw_os_error(unsafe { *libc::__errno_location() }))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_workers_leave_pipes_of_the_usual_size_for_their_children() {
        // The default of Linux: 64 MiB.
        let (pages, page) = (16_384, 4096);
        let large = large_pipes_within(pages, page).expect("it is limited");
        let of_daemon = |workers: usize| {
            let with_large = workers.min(large);
            with_large * 2 * PIPE_BYTES / page + (3 * workers - 2 * with_large) * USUAL_PAGES
        };
        assert!(large >= 16, "{large} workers are usual");
        assert!(pages - of_daemon(150) > 150 * 2 * USUAL_PAGES, "each of 150 workers has room for two pipes");
        assert_eq!(large_pipes_within(0, page), None);
    }
}
