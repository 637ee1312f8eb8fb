//! Who the workers of a pool are, and what they may: user, groups, limits.

use std::fmt;
use std::path::PathBuf;

use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// What the workers of a pool may, beside what the daemon may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Who they are, if not who the daemon is.
    pub identity: Option<Identity>,
    /// No exec of theirs gains a privilege (`PR_SET_NO_NEW_PRIVS` in prctl(2)).
    pub no_new_privs: bool,
    /// The permissions that new files of theirs do not have; none leaves the daemon's.
    pub umask: Option<u32>,
    /// Limits that differ from the daemon's.
    pub limits: Vec<Limit>,
}

/// A user, as a process has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user's id.
    pub user: u32,
    /// The group's id.
    pub group: u32,
    /// All groups beside it.
    pub groups: Vec<u32>,
    /// What `USER` and `LOGNAME` say; none of a number without a name.
    pub name: Option<String>,
    /// What `HOME` says.
    pub home: PathBuf,
}

impl fmt::Display for Identity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(out, "user {name}"),
            None => write!(out, "user {}", self.user),
        }
    }
}

/// A limit of one process (setrlimit(2)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The call that sets it, for who reads that it failed.
    pub call: &'static str,
    /// What is limited.
    pub resource: Resource,
    /// How much of it there is.
    pub most: Rlimit,
}

/// What a process needs to start another user's, and to end it.
const CAPABILITIES: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::KILL);

/// Whether this process may start processes of other users.
pub(crate) fn may_change_users() -> bool {
    capabilities(None).is_ok_and(|ours| ours.effective.contains(CAPABILITIES))
}
