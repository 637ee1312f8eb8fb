//! The machine: its CPUs, which process runs where, and the kernel's counters of a process.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};

/// The CPU of each process. The daemon has one to itself, as it usually has in production; workers and clients share
/// another.
///
/// In cases like ping-pong, where only one of them is ever awake, all run on one CPU: a wake-up across CPUs costs
/// several times what is measured there, and depends as much on the hypervisor as on the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The daemon's CPU; none means any.
    pub daemon: Option<usize>,
    /// The CPU of its workers.
    pub workers: Option<usize>,
    /// The CPU of the clients.
    pub clients: Option<usize>,
}

impl Placement {
    /// The kernel chooses.
    pub const FREE: Self = Self { daemon: None, workers: None, clients: None };

    /// Everything on one CPU, or the daemon on one of its own where there are two.
    pub fn choose(one_cpu: bool) -> Self {
        let (daemon, others) = match cpus() {
            count if one_cpu || count == 1 => (count - 1, count - 1),
            _ => (0, 1),
        };
        Self { daemon: Some(daemon), workers: Some(others), clients: Some(others) }
    }
}

impl std::fmt::Display for Placement {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cpu = |cpu: Option<usize>| cpu.map_or("any CPU".to_owned(), |cpu| format!("CPU {cpu}"));
        let [daemon, workers, clients] = [self.daemon, self.workers, self.clients].map(cpu);
        write!(out, "daemon on {daemon}, workers on {workers}, clients on {clients}")
    }
}

/// The machine's number of CPUs, regardless of this thread's affinity.
pub fn cpus() -> usize {
    // SAFETY: the call has no memory arguments.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as usize
}

/// Binds a process, or the calling thread if 0, to one CPU, or to none in particular.
pub fn pin(process: u32, cpu: Option<usize>) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpu.map_or(0..cpus(), |cpu| cpu..cpu + 1).for_each(|cpu| set.set(cpu));
    Ok(sched_setaffinity(Pid::from_raw(process as i32), &set)?)
}

/// A thousand clients need a thousand descriptors.
pub fn allow_descriptors() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}

/// CPU and kernel, for the head of a report.
pub fn description() -> String {
    let kernel = |file| fs::read_to_string(format!("/proc/sys/{file}")).unwrap_or_default().trim().to_owned();
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        text.lines().find(|line| line.starts_with(name)).and_then(|line| line.split(": ").nth(1)).unwrap_or("?")
    };
    format!(
        "{} (family {}, model {}), {} CPUs, Linux {}, TCP congestion control {}",
        field("model name"),
        field("cpu family"),
        field("model\t"),
        cpus(),
        kernel("kernel/osrelease"),
        kernel("net/ipv4/tcp_congestion_control")
    )
}

/// The kernel's counters of a process, over all its threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// CPU time, from schedstat.
    pub cpu_nanos: u64,
    /// User and system ticks, from stat; they are sampled at clock interrupts.
    pub ticks: [u64; 2],
    /// Voluntary and involuntary context switches.
    pub switches: u64,
    /// Voluntary ones, which equal its wake-ups.
    pub wakeups: u64,
}

impl Usage {
    /// The counters of a process now.
    pub fn of(process: u32) -> io::Result<Self> {
        let mut usage = Self::default();
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            let thread = thread?.path();
            let times = fs::read_to_string(thread.join("schedstat"))?;
            usage.cpu_nanos += times.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or(0);
            let stat = fs::read_to_string(thread.join("stat"))?;
            // After the name, which may contain spaces: fields 14 and 15 (proc_pid_stat(5)).
            let behind = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
            behind.zip(&mut usage.ticks).for_each(|(ticks, sum)| *sum += ticks.parse::<u64>().unwrap_or(0));
            let status = fs::read_to_string(thread.join("status"))?;
            let voluntary = field(&status, "voluntary_ctxt_switches:");
            usage.wakeups += voluntary;
            usage.switches += voluntary + field(&status, "nonvoluntary_ctxt_switches:");
        }
        Ok(usage)
    }

    /// CPU time in microseconds since `before`.
    pub fn micros_since(self, before: Self) -> f64 {
        self.since(before).cpu_nanos as f64 / 1e3
    }

    /// The difference to `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            cpu_nanos: self.cpu_nanos - before.cpu_nanos,
            ticks: [0, 1].map(|at| self.ticks[at] - before.ticks[at]),
            switches: self.switches - before.switches,
            wakeups: self.wakeups - before.wakeups,
        }
    }
}

/// Resident memory of a process in bytes.
pub fn resident(process: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    Ok(field(&status, "VmRSS:") * 1024)
}

/// The proportional set size of a process in bytes.
pub fn proportional(process: u32) -> io::Result<u64> {
    Ok(field(&fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?, "Pss:") * 1024)
}

/// The number after a name at the beginning of a line, as in /proc/PID/status; 0 if there is none.
pub fn field(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// A process and all its descendants.
pub fn family(process: u32) -> Vec<u32> {
    let mut all = vec![process];
    let mut next = 0;
    while let Some(&parent) = all.get(next) {
        all.extend(children(parent));
        next += 1;
    }
    all
}

/// The children of a process.
pub fn children(process: u32) -> Vec<u32> {
    // Each thread has its own children: the daemon starts its workers on a separate thread.
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let texts = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    texts.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Counts a process's system calls. It slows down every system call of the machine a little, so it is never used while
/// CPU time is measured.
pub struct SyscallCounter(OwnedFd);

impl SyscallCounter {
    /// None if the kernel does not permit it, which needs root and tracefs.
    pub fn of(process: u32) -> Option<Self> {
        let id = fs::read_to_string("/sys/kernel/tracing/events/raw_syscalls/sys_enter/id").ok()?;
        // struct perf_event_attr, first version: type, size, config; everything else is zero.
        let mut attributes = [0_u64; 8];
        const TRACEPOINT: u64 = 2;
        attributes[0] = TRACEPOINT | (size_of_val(&attributes) as u64) << 32;
        attributes[1] = id.trim().parse().ok()?;
        const CLOSE_ON_EXEC: libc::c_ulong = 8;
        // SAFETY: the attributes have the given size, and the kernel only reads them.
        let result = unsafe {
            libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), process as libc::pid_t, -1, -1, CLOSE_ON_EXEC)
        };
        // SAFETY: the kernel has just returned this descriptor to us.
        (result >= 0).then(|| Self(unsafe { OwnedFd::from_raw_fd(result as i32) }))
    }

    /// The count so far.
    pub fn count(&self) -> u64 {
        let mut count = 0_u64;
        // SAFETY: a counter is read as eight bytes, and that many are there.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
        count
    }
}
