//! Starts a worker: three pipes, a process group of its own, and nothing inherited that it did not ask for (spec 3.3,
//! 5.1). What its process does until it is the worker is in `child.rs`.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicI32;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Gid, Pid, Rlimit, WaitId, WaitIdOptions, WaitOptions, waitid, waitpid};
use rustix::thread::{CapabilitySet, capabilities};
use zeroize::Zeroizing;

pub(crate) use super::child::SpawnJob;
use super::child::{Child, LONGEST_START};
use super::client_env::ClientEnv;
use crate::config::reference;
use crate::config::{PoolConfig, UserAndGroups};
use crate::env_file::Unread;

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

/// Why a worker was not started.
#[derive(Debug)]
pub(crate) struct SpawnError {
    /// The child's failed system call, if it was one.
    pub step: Option<&'static str>,
    pub error: io::Error,
    /// It is for want of what its client has to bring, and the error says what.
    pub is_of_client: bool,
}

impl SpawnError {
    /// Its client lacks something.
    pub(in crate::shell) fn of_client(why: String) -> Self {
        Self { is_of_client: true, ..io::Error::other(why).into() }
    }
}

impl From<io::Error> for SpawnError {
    fn from(error: io::Error) -> Self {
        Self { step: None, error, is_of_client: false }
    }
}

impl From<Unread> for SpawnError {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Shortage(error) => error.into(),
            Unread::Unusable(why) => Self::of_client(why),
        }
    }
}

impl From<Errno> for SpawnError {
    fn from(error: Errno) -> Self {
        io::Error::from(error).into()
    }
}

impl fmt::Display for SpawnError {
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

/// What the workers of all pools have in common.
pub(crate) struct SpawnTerms<'t> {
    /// Their limit of open files.
    pub descriptors: &'t Rlimit,
    /// Their limit of core dumps, if that is not ours.
    pub core: Option<Rlimit>,
    /// Their oom_score_adj ([`memory_score`]).
    pub memory_score: Option<String>,
    /// Their pipes are large, or those that the kernel makes.
    pub has_large_pipes: bool,
}

/// The environment of a worker, which is overwritten when it is dropped: values are secrets.
type Environment = Zeroizing<Vec<CString>>;

impl SpawnJob {
    /// A worker of `pool`, with the variables of the client that it is for, if it is for one.
    ///
    /// # Errors
    /// The command or an argument contains a zero byte.
    pub(crate) fn new(pool: &PoolConfig, own: Option<ClientEnv>, terms: SpawnTerms<'_>) -> io::Result<Self> {
        let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::from);
        let mut variables = BTreeMap::new();
        variables.extend(std::env::vars_os().filter(|(name, _)| !is_our_own(name)));
        if let Some(identity) = &pool.rights.identity {
            name_the_user(&mut variables, identity);
        }
        let SpawnTerms { descriptors, core, memory_score, has_large_pipes } = terms;
        let arguments = std::iter::once(&pool.command).chain(&pool.args).map(|argument| text(argument.as_ref()));
        Ok(Self {
            program: text(pool.program.as_os_str())?,
            arguments: arguments.collect::<io::Result<_>>()?,
            variables,
            env: pool.env.clone(),
            own,
            cwd: pool.cwd.as_ref().map(|cwd| text(cwd.as_os_str())).transpose()?,
            descriptors: *descriptors,
            core,
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
    /// have to be blocked in the calling thread (`child.rs`).
    ///
    /// # Errors
    /// The error of pipe2(2), clone(2) or a system call of the child.
    pub(crate) fn start(&self, pid: &AtomicI32) -> Result<Spawned, SpawnError> {
        let environment = self.environment()?;
        let [(stdin_theirs, stdin), (stdout, stdout_theirs), (stderr, stderr_theirs)] = self.pipes()?;
        for pipe in [&stdin, &stdout].into_iter().filter(|_| self.has_large_pipes) {
            // A user at the limit of pipe memory gets the kernel's default, which is slower but works.
            let _ = fcntl_setpipe_size(pipe, PIPE_BYTES);
        }
        for ours in [&stdin, &stdout, &stderr] {
            fcntl_setfl(ours, fcntl_getfl(ours)? | OFlags::NONBLOCK)?;
        }
        let child = Child::new(self, &environment, [&stdin_theirs, &stdout_theirs, &stderr_theirs]);
        let began = Instant::now();
        match child.run(pid)? {
            (child, None)
                if self.rights.identity.is_some() && began.elapsed() >= LONGEST_START && was_killed(child) =>
            {
                let why = format!("not done within {} s, and given up", LONGEST_START.as_secs());
                Err(SpawnError { step: Some("execve"), ..io::Error::new(io::ErrorKind::TimedOut, why).into() })
            }
            (child, None) => Ok(Spawned { pid: child.as_raw_nonzero().get().cast_unsigned(), stdin, stdout, stderr }),
            (child, Some((step, error))) => {
                // It is our child, which is reaped only here.
                let _ = waitpid(Some(child), WaitOptions::empty());
                Err(SpawnError { step: Some(step), ..error.into() })
            }
        }
    }

    /// Its whole environment. Files are read here, where the loop does not wait.
    ///
    /// # Errors
    /// Something that a variable stands for cannot be read, or what its client has to bring.
    fn environment(&self) -> Result<Environment, SpawnError> {
        let own = self.own.as_ref().map(ClientEnv::read).transpose()?.unwrap_or_default();
        let is_own = |name: &OsStr| own.iter().any(|(own, _)| *name == **own);
        let most = self.variables.len() + self.env.len() + own.len();
        let mut environment = Environment::new(Vec::with_capacity(most));
        let mut set = |name: &OsStr, value: &[u8]| -> io::Result<()> {
            // With room for all of it no part of it is left where it was before.
            let mut text = Zeroizing::new(Vec::with_capacity(name.len() + value.len() + 2));
            text.extend_from_slice(name.as_bytes());
            text.push(b'=');
            text.extend_from_slice(value);
            environment.push(CString::new(std::mem::take(&mut *text))?);
            Ok(())
        };
        for (name, value) in &self.variables {
            let is_set = name.to_str().is_some_and(|name| self.env.contains_key(name)) || is_own(name);
            if !is_set {
                set(name, value.as_bytes())?;
            }
        }
        for (name, text) in self.env.iter().filter(|(name, _)| !is_own(name.as_ref())) {
            let value = reference::read(text).map_err(|error| reference::named(error, format_args!("env.{name}")))?;
            set(name.as_ref(), &value)?;
        }
        for (name, value) in &own {
            set(name.as_ref(), value)?;
        }
        Ok(environment)
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
fn name_the_user(variables: &mut BTreeMap<OsString, OsString>, identity: &UserAndGroups) {
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

/// Whether a child that took too long to start was killed for it, and reaped. If it was executed after all, it is left
/// to the reaper.
fn was_killed(child: Pid) -> bool {
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::path::Path;
    use std::process::Command;
    use std::ptr;
    use std::sync::atomic::Ordering;
    use std::thread;

    use rustix::process::{Resource, getrlimit};
    use rustix::thread::{CapabilitySets, CpuSet, set_capabilities};

    use super::*;
    use crate::config::{Config, Limit};

    /// A user without an account.
    const SOMEBODY: u32 = 1_999_999_001;

    /// A job of a pool that runs `program`.
    fn job(program: &str, arguments: &[&str], change: impl FnOnce(&mut PoolConfig)) -> SpawnJob {
        let mut pool = Config::embedded(Path::new(program)).pools.remove(0);
        pool.args = arguments.iter().copied().map(str::to_owned).collect();
        change(&mut pool);
        let descriptors = &getrlimit(Resource::Nofile);
        let terms = SpawnTerms { descriptors, core: None, memory_score: None, has_large_pipes: false };
        SpawnJob::new(&pool, None, terms).expect("no zero bytes")
    }

    /// Starts it in a thread whose signals are blocked, perhaps with these capabilities alone, and looks at the result
    /// there: the worker would not outlive the thread.
    fn started<T: Send>(
        job: &SpawnJob,
        left: Option<CapabilitySet>,
        look: impl FnOnce(i32, Result<Spawned, SpawnError>) -> T + Send,
    ) -> T {
        let _starting = crate::testing::STARTS.write();
        let run = || {
            // SAFETY: any set is valid, and the mask is that of this thread.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &all, ptr::null_mut());
            }
            if let Some(left) = left {
                let ours = capabilities(None).expect("they are ours");
                let fewer = CapabilitySets { effective: ours.permitted & left, ..ours };
                set_capabilities(None, fewer).expect("fewer may always be had");
            }
            let pid = AtomicI32::new(0);
            let result = job.start(&pid);
            look(pid.load(Ordering::Acquire), result)
        };
        thread::scope(|scope| scope.spawn(run).join().expect("it does not panic"))
    }

    /// What a worker writes to stdout until its end.
    fn printed(job: &SpawnJob) -> String {
        started(job, None, |_, result| {
            let spawned = result.expect("it is started");
            drop(spawned.stdin);
            fcntl_setfl(&spawned.stdout, OFlags::empty()).expect("it is open");
            let mut text = String::new();
            File::from(spawned.stdout).read_to_string(&mut text).expect("it is text");
            waitpid(Pid::from_raw(spawned.pid as i32), WaitOptions::empty()).expect("it is our child");
            text
        })
    }

    /// The failed step and its error; no process is left.
    fn failure(job: &SpawnJob, left: Option<CapabilitySet>) -> (&'static str, Errno) {
        started(job, left, |pid, result| {
            let SpawnError { step, error, .. } = result.err().expect("it is not started");
            let left = waitpid(Pid::from_raw(pid), WaitOptions::NOHANG);
            assert_eq!(left.err(), Some(Errno::CHILD), "the child is reaped");
            let error = Errno::from_io_error(&error).expect("an error of the kernel");
            (step.expect("a call of the child has failed"), error)
        })
    }

    #[test]
    fn each_step_that_can_fail_is_named_with_its_error_and_leaves_no_process() {
        let limit = |pool: &mut PoolConfig| {
            let most = Rlimit { current: Some(2), maximum: Some(1) };
            pool.rights.limits = vec![Limit { call: "setrlimit(RLIMIT_CORE)", resource: Resource::Core, most }];
        };
        assert_eq!(failure(&job("/bin/cat", &[], limit), None), ("setrlimit(RLIMIT_CORE)", Errno::INVAL));
        let cpus = |pool: &mut PoolConfig| {
            let mut last = CpuSet::new();
            last.set(CpuSet::MAX_CPU - 1);
            pool.rights.cpus = Some(last);
        };
        assert_eq!(failure(&job("/bin/cat", &[], cpus), None), ("sched_setaffinity", Errno::INVAL));
        let nowhere = |pool: &mut PoolConfig| pool.cwd = Some("/nowhere".into());
        assert_eq!(failure(&job("/bin/cat", &[], nowhere), None), ("chdir", Errno::NOENT));
        assert_eq!(failure(&job("/nowhere", &[], |_| ()), None), ("execve", Errno::NOENT));
        assert_eq!(failure(&job("/etc/passwd", &[], |_| ()), None), ("execve", Errno::ACCESS));
    }

    #[test]
    fn a_daemon_that_may_not_change_users_says_which_call_has_failed() {
        let job = job("/bin/cat", &[], |pool| {
            let (user, group, home) = (SOMEBODY, SOMEBODY, "/".into());
            pool.rights.identity = Some(UserAndGroups { user, group, groups: Vec::new(), name: None, home });
        });
        let nothing = CapabilitySet::empty();
        assert_eq!(failure(&job, Some(nothing)), ("setgroups", Errno::PERM));
        let groups = CapabilitySet::SETGID;
        if capabilities(None).is_ok_and(|ours| ours.permitted.contains(groups)) {
            assert_eq!(failure(&job, Some(groups)), ("setresuid", Errno::PERM));
        }
    }

    #[test]
    fn a_script_without_an_interpreter_line_is_run_by_sh_with_its_arguments() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("script").display().to_string();
        // Another process writes it: ours may have a child meanwhile that would keep it open for writing (ETXTBSY).
        let write = r#"printf '%s' 'printf "%s." "$0" "$@"' > "$0" && chmod +x "$0""#;
        let starting = crate::testing::STARTS.write();
        assert!(Command::new("sh").args(["-c", write, &path]).status().expect("it is there").success());
        drop(starting);
        assert_eq!(printed(&job(&path, &["one", "and two"], |_| ())), format!("{path}.one.and two."));
    }

    #[test]
    fn a_worker_begins_with_default_actions_of_all_signals_and_none_blocked() {
        /// The numbers 32 to 34, which C libraries keep for themselves and refuse to change.
        const OF_LIBRARIES: u64 = 0b111 << 31;
        let status = printed(&job("/bin/cat", &["/proc/self/status"], |_| ()));
        let mask = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("it is in proc_pid_status(5)");
            u64::from_str_radix(line.trim(), 16).expect("a mask") & !OF_LIBRARIES
        };
        assert_eq!(["SigBlk:", "SigIgn:", "SigCgt:"].map(mask), [0; 3], "{status}");
    }

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
