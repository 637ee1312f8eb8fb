//! The names that workers give to sessions, and the numbers of sessions.

use std::collections::BTreeMap;

/// The names given out.
#[derive(Default)]
pub(super) struct Names {
    /// The user name under which each session was created or loaded, by pool and session.
    session_users: BTreeMap<(usize, String), &'static str>,
    /// Pools with a worker that has given out a name.
    issuing: Vec<usize>,
    next: usize,
}

impl Names {
    /// The number of a new session.
    pub(super) fn number(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    /// Whether a session was created under another user name than this.
    pub(super) fn is_bound_to_another(&self, pool: usize, session: &str, name: Option<&str>) -> bool {
        self.session_users.get(&(pool, session.into())).is_some_and(|session_user| Some(*session_user) != name)
    }

    /// Binds a session to a user name: it can be loaded under no other.
    pub(super) fn bind(&mut self, pool: usize, session: &str, name: &'static str) {
        self.session_users.entry((pool, session.into())).or_insert(name);
    }

    /// A worker of this pool has given out a name.
    pub(super) fn issue(&mut self, pool: usize) {
        self.issuing.push(pool);
    }

    pub(super) fn are_issued_in(&self, pool: usize) -> bool {
        self.issuing.contains(&pool)
    }
}
