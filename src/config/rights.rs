//! The identity and limits of a pool's workers.

use std::fmt;
use std::path::PathBuf;

use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CpuSet, capabilities};

/// The rights of a pool's workers, where they differ from the daemon's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Their user, if not the daemon's.
    pub identity: Option<UserAndGroups>,
    /// An exec cannot gain privileges (`PR_SET_NO_NEW_PRIVS` in prctl(2)).
    pub no_new_privs: bool,
    /// Their umask; none keeps the daemon's.
    pub umask: Option<u32>,
    /// Limits that differ from the daemon's.
    pub limits: Vec<Limit>,
    /// The CPUs that they may use; none keeps the daemon's.
    pub cpus: Option<CpuSet>,
}

/// The highest number of a CPU that can be named: the size of the kernel's set for this call.
pub(super) const HIGHEST_CPU: u64 = CpuSet::MAX_CPU as u64 - 1;

/// A process's user and groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserAndGroups {
    /// The user's id.
    pub user: u32,
    /// The group's id.
    pub group: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
    /// The value of `USER` and `LOGNAME`; none for a number without a name.
    pub name: Option<String>,
    /// The value of `HOME`.
    pub home: PathBuf,
}

impl fmt::Display for UserAndGroups {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(out, "user {name}"),
            None => write!(out, "user {}", self.user),
        }
    }
}

/// A process limit (setrlimit(2)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The call that sets it, for the error message.
    pub call: &'static str,
    /// The limited resource.
    pub resource: Resource,
    /// The limit.
    pub most: Rlimit,
}

/// The capabilities needed to start and kill another user's processes.
const CAPABILITIES: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::KILL);

/// Whether this process may start processes of other users.
pub(crate) fn may_change_users() -> bool {
    capabilities(None).is_ok_and(|ours| ours.effective.contains(CAPABILITIES))
}
