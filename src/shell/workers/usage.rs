//! The kernel's counters of processes: the daemon's own, under Prometheus's usual names, and the memory of workers.

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

const DESCRIPTORS: &str = "/proc/self/fd";

/// See the module documentation. Values that cannot be read, for instance without /proc, are none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub cpu_seconds: f64,
    pub resident_bytes: Option<u64>,
    pub virtual_bytes: Option<u64>,
    pub open_descriptors: Option<u64>,
    pub most_descriptors: Option<u64>,
}

impl Usage {
    pub(super) fn own() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let status = status("self");
        Self {
            cpu_seconds: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
            resident_bytes: bytes(&status, "VmRSS:"),
            virtual_bytes: bytes(&status, "VmSize:"),
            open_descriptors: open_descriptors(),
            most_descriptors: getrlimit(Resource::Nofile).current,
        }
    }
}

/// The memory of a process in bytes, including shared memory but not its children's (VmRSS, proc_pid_status(5)).
pub(super) fn resident(process: u32) -> Option<u64> {
    bytes(&status(process), "VmRSS:")
}

/// The children of a process, of all its threads; none if the kernel does not list them (CONFIG_PROC_CHILDREN).
pub(super) fn children(process: impl Display) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let texts = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    texts.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

fn status(process: impl Display) -> String {
    fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default()
}

/// Parses a line like `VmRSS:      5432 kB`.
fn bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

/// The size of the directory is their number since Linux 6.2, and 0 before.
fn open_descriptors() -> Option<u64> {
    match fs::metadata(DESCRIPTORS).ok()?.size() {
        // One of them is the directory being read.
        0 => Some(fs::read_dir(DESCRIPTORS).ok()?.count().saturating_sub(1) as u64),
        count => Some(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_uses_cpu_time_memory_and_fewer_descriptors_than_its_limit() {
        let usage = Usage::own();
        assert!(usage.cpu_seconds > 0.0 && usage.resident_bytes > Some(1 << 16), "{usage:?}");
        assert!(usage.virtual_bytes >= usage.resident_bytes, "{usage:?}");
        assert!(usage.open_descriptors >= Some(3), "{usage:?}");
        assert!(usage.most_descriptors.is_none_or(|most| Some(most) >= usage.open_descriptors), "{usage:?}");
        let held: Vec<fs::File> = (0..50).map(|_| fs::File::open("/dev/null").expect("it is there")).collect();
        assert!(Usage::own().open_descriptors >= Some(50));
        drop(held);
    }
}
