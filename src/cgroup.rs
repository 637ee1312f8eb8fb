//! The limits of our control group (cgroups(7)): with a memory budget above its limit, the kernel would kill the
//! daemon.

use std::fs;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

/// The share of the memory of the daemon that `max_memory` may be: the rest is for tables, code and kernel memory charged to
/// us.
const PARTS: (u64, u64) = (3, 4);

const MEMBERSHIP: &str = "/proc/self/cgroup";
const ROOT: &str = "/sys/fs/cgroup";
const MEMORY: Controller =
    Controller { name: "memory", file: "memory.max", file_of_version_1: "memory.limit_in_bytes" };
const PROCESSES: Controller = Controller { name: "pids", file: "pids.max", file_of_version_1: "pids.max" };

/// A controller and its files with the limits.
struct Controller {
    name: &'static str,
    file: &'static str,
    file_of_version_1: &'static str,
}

/// What the daemon needs at most, in the unit of `max_memory`: no control group of this size is warned of.
pub fn memory_of_daemon(max_memory: u64) -> u64 {
    (max_memory * PARTS.1).div_ceil(PARTS.0)
}

/// The warning if `max_memory`, in bytes, is more than three quarters of our control group's memory limit.
pub fn memory_warning(max_memory: usize) -> Option<String> {
    let limit = limit(&MEMORY, Path::new(MEMBERSHIP), Path::new(ROOT));
    limit.and_then(|limit| warning(max_memory as u64, &limit))
}

/// The memory limit of our control group, if there is one.
pub fn memory() -> Option<u64> {
    limit(&MEMORY, Path::new(MEMBERSHIP), Path::new(ROOT)).map(|limit| limit.most)
}

/// The limit of processes and threads of our control group, if there is one.
pub fn processes() -> Option<u64> {
    limit(&PROCESSES, Path::new(MEMBERSHIP), Path::new(ROOT)).map(|limit| limit.most)
}

/// Whether we may create child groups, which requires version 2 and delegation; none without version 2.
pub fn may_divide() -> Option<bool> {
    divides(Path::new(MEMBERSHIP), Path::new(ROOT))
}

fn divides(membership: &Path, root: &Path) -> Option<bool> {
    let membership = fs::read_to_string(membership).ok()?;
    let path = membership.lines().find_map(|line| line.strip_prefix("0::"))?;
    let group = around(root, path).pop()?;
    fs::metadata(group.join("cgroup.controllers")).ok()?;
    Some(accessat(CWD, group.join("cgroup.procs"), Access::WRITE_OK, AtFlags::EACCESS).is_ok())
}

/// How many processes of our control group the OOM killer has killed; none if that is not counted.
pub fn memory_kills() -> Option<u64> {
    kills(Path::new(MEMBERSHIP), Path::new(ROOT))
}

/// The same; version 2 counts in memory.events, version 1 in memory.oom_control.
fn kills(membership: &Path, root: &Path) -> Option<u64> {
    let membership = fs::read_to_string(membership).ok()?;
    let groups = membership.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let (mount, name) = match controllers.split(',').any(|known| known == MEMORY.name) {
            true => (root.join(MEMORY.name), "memory.oom_control"),
            false if hierarchy == "0" => (root.to_owned(), "memory.events"),
            false => return None,
        };
        Some(around(&mount, path).last()?.join(name))
    });
    let counts = groups.filter_map(|file| fs::read_to_string(file).ok());
    counts.filter_map(|text| text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())).next()
}

/// A limit and the file that sets it.
#[derive(Debug, PartialEq, Eq)]
struct Limit {
    most: u64,
    file: PathBuf,
}

fn warning(max_memory: u64, limit: &Limit) -> Option<String> {
    let most = limit.most / PARTS.1 * PARTS.0;
    (max_memory > most).then(|| {
        format!(
            "limits.max_memory is {max_memory} bytes, and the control group of the daemon may use {} ({}), workers \
             included if they run in it; set limits.max_memory to {most} or less, or allow more memory (MemoryMax in \
             systemd, --memory in Docker)",
            limit.most,
            limit.file.display()
        )
    })
}

/// The lowest limit of the groups that `membership` (/proc/self/cgroup) names and of their ancestors; none if there is
/// no limit. `root` is the mount point of the hierarchies: version 2 alone, or version 1 beside version 2.
fn limit(controller: &Controller, membership: &Path, root: &Path) -> Option<Limit> {
    let membership = fs::read_to_string(membership).ok()?;
    let mut lowest: Option<Limit> = None;
    for line in membership.lines() {
        // hierarchy-ID:controllers:path, where the path may contain colons.
        let mut fields = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (mount, name) = if hierarchy == "0" && controllers.is_empty() {
            (root.to_owned(), controller.file)
        } else if controllers.split(',').any(|known| known == controller.name) {
            (root.join(controller.name), controller.file_of_version_1)
        } else {
            continue;
        };
        for directory in around(&mount, path) {
            let file = directory.join(name);
            // "max" is no limit; version 1 writes an impossibly large number.
            let most = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
            if let Some(most) = most.filter(|most| lowest.as_ref().is_none_or(|lowest| *most < lowest.most)) {
                lowest = Some(Limit { most, file });
            }
        }
    }
    lowest
}

/// The directories of a group and its ancestors, from the mount point down. A group outside our namespace, whose path
/// begins with `..`, is not visible: then only the mount point is used.
fn around(mount: &Path, group: &str) -> Vec<PathBuf> {
    let mut directories = vec![mount.to_owned()];
    for component in Path::new(group).components() {
        match component {
            Component::Normal(name) => {
                let inner = directories.last().map(|outer| outer.join(name));
                directories.extend(inner);
            }
            Component::ParentDir => return vec![mount.to_owned()],
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    directories
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake machine: /proc/self/cgroup with `membership`, and limits by path.
    fn machine(membership: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, Option<Limit>) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (proc, root) = (directory.path().join("cgroup"), directory.path().join("sys"));
        fs::write(&proc, membership).expect("a file");
        for (path, text) in files {
            let file = root.join(path);
            fs::create_dir_all(file.parent().expect("it has a directory")).expect("a directory");
            fs::write(&file, text).expect("a file");
        }
        let limit = limit(&MEMORY, &proc, &root);
        (directory, limit)
    }

    #[test]
    fn oom_kills_in_the_daemons_group_are_counted_with_either_version() {
        let count = |membership: &str, file: &str, text: &str| {
            let (directory, _) = machine(membership, &[(file, text)]);
            kills(&directory.path().join("cgroup"), &directory.path().join("sys"))
        };
        let events = "low 0\noom 4\noom_kill 3\noom_group_kill 0\n";
        assert_eq!(count("0::/a/b\n", "a/b/memory.events", events), Some(3));
        assert_eq!(count("0::/a/b\n", "a/memory.events", events), None, "that of others");
        assert_eq!(count("4:memory:/a\n0::/\n", "memory/a/memory.oom_control", "under_oom 0\noom_kill 2\n"), Some(2));
        assert_eq!(count("0::/\n", "memory.max", "7\n"), None);
    }

    fn bytes(membership: &str, files: &[(&str, &str)]) -> Option<u64> {
        machine(membership, files).1.map(|limit| limit.most)
    }

    #[test]
    fn the_lowest_limit_of_the_groups_around_the_daemon_counts() {
        let service = "0::/system.slice/bus.service\n";
        let outer = ("system.slice/memory.max", "1000\n");
        assert_eq!(bytes(service, &[outer, ("system.slice/bus.service/memory.max", "2000\n")]), Some(1000));
        assert_eq!(bytes(service, &[outer, ("system.slice/bus.service/memory.max", "500\n")]), Some(500));
        assert_eq!(bytes(service, &[outer, ("system.slice/bus.service/memory.max", "max\n")]), Some(1000));
        assert_eq!(bytes(service, &[("system.slice/other.service/memory.max", "1\n")]), None);
        let (directory, limit) = machine("0::/\n", &[("memory.max", "7\n")]);
        let file = directory.path().join("sys/memory.max");
        assert_eq!(limit, Some(Limit { most: 7, file }), "in a container the root is its own");
    }

    #[test]
    fn a_limit_of_version_1_counts_as_well() {
        let hybrid = "12:cpu,memory:/a:b\n3:cpuset:/c\n0::/d\n";
        assert_eq!(bytes(hybrid, &[("memory/a:b/memory.limit_in_bytes", "300\n"), ("d/memory.max", "400")]), Some(300));
        assert_eq!(
            bytes(hybrid, &[("memory/memory.limit_in_bytes", "9223372036854771712\n")]),
            Some(i64::MAX as u64 / 4096 * 4096)
        );
        assert_eq!(bytes("3:cpuset:/c\n", &[("memory/c/memory.limit_in_bytes", "1")]), None, "another hierarchy");
    }

    #[test]
    fn an_unreadable_limit_is_no_limit() {
        assert_eq!(bytes("", &[("memory.max", "1")]), None);
        assert_eq!(bytes("nonsense\n0::\n", &[("memory.max", "-1")]), None);
        assert_eq!(bytes("0::/../../x\n", &[("x/memory.max", "1"), ("memory.max", "5")]), Some(5));
        assert_eq!(limit(&MEMORY, Path::new("/no/such/file"), Path::new("/no/such/directory")), None);
    }

    #[test]
    fn a_budget_above_three_quarters_is_reported_with_both_figures_and_the_remedy() {
        let limit = Limit { most: 400, file: "/sys/fs/cgroup/memory.max".into() };
        assert_eq!(warning(300, &limit), None);
        let text = warning(301, &limit).expect("a warning");
        assert!(text.contains("is 301 bytes") && text.contains("may use 400 (/sys/fs/cgroup/memory.max)"), "{text}");
        assert!(text.contains("set limits.max_memory to 300 or less"), "{text}");
    }
}
