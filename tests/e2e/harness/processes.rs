//! Processes in `/proc`.

use std::fs;
use std::path::PathBuf;

/// All processes, with their folders in `/proc`.
pub fn processes() -> impl Iterator<Item = (u32, PathBuf)> {
    let entries = fs::read_dir("/proc").expect("/proc is there").filter_map(Result::ok);
    entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
}

/// The children of a process with their states.
pub fn children(parent: u32) -> Vec<(u32, char)> {
    let of_parent = |(pid, path): (u32, PathBuf)| {
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        // The name may contain anything; what follows it is plain.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?.chars().next()?;
        (fields.next()?.parse() == Ok(parent)).then_some((pid, state))
    };
    processes().filter_map(of_parent).collect()
}

/// The state of a process (proc_pid_stat(5)), if it exists.
pub fn state(pid: u64) -> Option<char> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.rsplit_once(") ")?.1.chars().next()
}

/// Whether a process exists and is not a zombie.
pub fn lives(pid: u64) -> bool {
    state(pid).is_some_and(|state| !['Z', 'X'].contains(&state))
}
