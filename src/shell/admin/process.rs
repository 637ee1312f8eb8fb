//! What the kernel counts of the daemon's own process, under the names that Prometheus has for it in every program.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

const DESCRIPTORS: &str = "/proc/self/fd";

/// See the top of the file. What cannot be seen here, where /proc is not mounted for instance, is none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Process {
    pub cpu_seconds: f64,
    pub resident_bytes: Option<u64>,
    pub virtual_bytes: Option<u64>,
    pub open_descriptors: Option<u64>,
    pub most_descriptors: Option<u64>,
}

impl Process {
    pub(super) fn look() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        // `VmRSS:      5432 kB`
        let memory = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
        };
        Self {
            cpu_seconds: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
            resident_bytes: memory("VmRSS:"),
            virtual_bytes: memory("VmSize:"),
            open_descriptors: open_descriptors(),
            most_descriptors: getrlimit(Resource::Nofile).current,
        }
    }
}

/// The size of the directory is their number since Linux 6.2, and 0 before.
fn open_descriptors() -> Option<u64> {
    match fs::metadata(DESCRIPTORS).ok()?.size() {
        // One of them is that of the directory that is read.
        0 => Some(fs::read_dir(DESCRIPTORS).ok()?.count().saturating_sub(1) as u64),
        count => Some(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_used_time_and_memory_and_has_fewer_descriptors_open_than_it_may() {
        let process = Process::look();
        assert!(process.cpu_seconds > 0.0 && process.resident_bytes > Some(1 << 16), "{process:?}");
        assert!(process.virtual_bytes >= process.resident_bytes, "{process:?}");
        assert!(process.open_descriptors >= Some(3), "{process:?}");
        assert!(process.most_descriptors.is_none_or(|most| Some(most) >= process.open_descriptors), "{process:?}");
        let held: Vec<fs::File> = (0..50).map(|_| fs::File::open("/dev/null").expect("it is there")).collect();
        assert!(Process::look().open_descriptors >= Some(50));
        drop(held);
    }
}
