//! File descriptors: how many the daemon needs at most, how many it may have, and how many clients that allows.

use std::os::fd::RawFd;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::stdio::stderr;

use super::connection_counts::{MOST_CONNECTIONS, MOST_HANDSHAKES, MOST_HEARD, MOST_OPERATORS};
use super::listen::MOST_OPERATOR_SOCKETS;
use crate::bus::settings::MAX_CONNECTIONS;
use crate::config::{Config, Listen, Listener};
use crate::error::StartError;

/// The daemon's own: the standard three, the ring or epoll, the signal pipes, and temporary ones for spawning a worker.
const OWN: usize = 24;
/// The pipes of a worker.
const PER_WORKER: usize = 3;
/// The minimum number of clients for which the daemon starts.
const FEWEST_CLIENTS: usize = 1;

/// The descriptors that a configuration needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// The fixed part, which does not depend on the number of clients.
    least: usize,
    /// Clients that can be accepted; only stdio's if there is no listener.
    clients: usize,
    /// Connections in handshakes, beyond the free slots of clients.
    handshakes: usize,
    /// Connections for requests of clients, which are not clients.
    http: usize,
    workers: usize,
}

impl Need {
    pub(crate) fn of(config: &Config) -> Self {
        let has_handshakes = |listener: &Listener| listener.entry.proxy.is_some() || listener.web.is_some();
        let accepts = config.listeners.iter().any(|listener| listener.listen != Listen::Stdio && !listener.is_mcp());
        let takes_requests =
            |listener: &Listener| listener.web.as_ref().is_some_and(|web| web.kind.requests().is_some());
        let takes_requests = config.listeners.iter().any(takes_requests);
        let of_admin = if config.admin.is_some() { MOST_OPERATORS + MOST_OPERATOR_SOCKETS } else { 0 };
        let workers = config.max_workers();
        Self {
            least: OWN + config.listeners.len() + PER_WORKER * workers + of_admin,
            clients: if accepts { MAX_CONNECTIONS } else { 0 },
            handshakes: if config.listeners.iter().any(has_handshakes) { MOST_HANDSHAKES } else { 0 },
            http: if takes_requests { MOST_CONNECTIONS + MOST_HEARD } else { 0 },
            workers,
        }
    }

    /// The total.
    pub(crate) fn most(&self) -> u64 {
        (self.least + self.clients + self.handshakes + self.http) as u64
    }

    /// The sum with its terms, for a message.
    pub(crate) fn sum(&self) -> String {
        let of_workers = PER_WORKER * self.workers;
        let rest = self.handshakes + self.http + self.least - of_workers;
        format!(
            "{} are needed at most: {of_workers} for {} workers, {} for clients, {rest} for everything else",
            self.most(),
            self.workers,
            self.clients
        )
    }

    /// How many clients fit into this limit; none if not even the fixed part does.
    pub(crate) fn clients_within(&self, allowed: u64) -> Option<usize> {
        let rest = self.rest(allowed)?;
        let for_clients = rest - (self.handshakes_within(allowed) + self.http_within(allowed)).min(rest);
        let fits = self.clients == 0 || for_clients >= FEWEST_CLIENTS;
        fits.then_some(for_clients.min(self.clients))
    }

    /// How many of them may be handshakes: at least one, if there are listeners with handshakes.
    fn handshakes_within(&self, allowed: u64) -> usize {
        self.handshakes.min((self.rest(allowed).unwrap_or(0) / 4).max(1))
    }

    /// How many of them may be connections for requests: at least one, if listeners take those.
    pub(crate) fn http_within(&self, allowed: u64) -> usize {
        let share = self.rest(allowed).unwrap_or(0) / if self.clients == 0 { 1 } else { 2 };
        self.http.min(share.max(1))
    }

    /// What the fixed part leaves of this limit.
    fn rest(&self, allowed: u64) -> Option<usize> {
        usize::try_from(allowed).unwrap_or(usize::MAX).checked_sub(self.least)
    }

    fn refusal(&self, allowed: u64) -> StartError {
        let fewest = if self.clients == 0 { 0 } else { FEWEST_CLIENTS };
        StartError::FileDescriptors { needed: (self.least + fewest) as u64, allowed, workers: self.workers }
    }
}

/// The limits determined at start.
pub(super) struct Allowance {
    /// The limit to restore for workers.
    pub of_workers: Rlimit,
    /// The maximum number of clients, if it had to be reduced, and the limit that requires it.
    pub fewer_clients: Option<(usize, u64)>,
    /// Maximum number of handshakes beyond the free slots of clients.
    pub handshakes: usize,
    /// Maximum number of connections for requests.
    pub http: usize,
}

/// Raises the soft limit of descriptors as far as needed and permitted.
///
/// # Errors
/// [`StartError::FileDescriptors`] if not even one client fits.
pub(super) fn allow(need: Need) -> Result<Allowance, StartError> {
    let of_workers = getrlimit(Resource::Nofile);
    let most = need.most();
    let raised = match of_workers.maximum {
        Some(allowed) => most.min(allowed),
        None => most,
    };
    if of_workers.current.is_some_and(|current| current < raised) {
        let limit = Rlimit { current: Some(raised), maximum: of_workers.maximum };
        setrlimit(Resource::Nofile, limit).map_err(|error| StartError::io("raise RLIMIT_NOFILE")(error.into()))?;
    }
    let Some(allowed) = of_workers.maximum.filter(|allowed| *allowed < most) else {
        return Ok(Allowance { of_workers, fewer_clients: None, handshakes: MOST_HANDSHAKES, http: need.http });
    };
    let fit = need.clients_within(allowed).ok_or_else(|| need.refusal(allowed))?;
    let fewer_clients = (fit < need.clients).then_some((fit, allowed));
    Ok(Allowance {
        of_workers,
        fewer_clients,
        handshakes: need.handshakes_within(allowed),
        http: need.http_within(allowed),
    })
}

/// Grows the kernel's table of this process's descriptors to the size that it may need. In a process of several threads,
/// whoever opens the first descriptor above 64, 128, 256 and so on waits until all CPUs have passed an RCU grace period
/// (`expand_fdtable` in Linux's fs/file.c), which takes 10 ms and more: the loop, or a thread that starts a worker. With
/// one thread nobody waits, so this is called before there are others.
pub(super) fn grow_table(need: Need) {
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let Ok(last) = RawFd::try_from(need.most().min(allowed).saturating_sub(1)) else { return };
    // A table that stays small costs time, and nothing else.
    let _ = fcntl_dupfd_cloexec(stderr(), last);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: Need = Need { least: 40, clients: MAX_CONNECTIONS, handshakes: 0, http: 0, workers: 5 };

    #[test]
    fn as_many_clients_fit_as_descriptors_are_left() {
        assert_eq!(TCP.clients_within(1024), Some(984));
        assert_eq!(TCP.clients_within(100_000), Some(MAX_CONNECTIONS));
        assert_eq!(TCP.clients_within(41), Some(1));
        assert_eq!((TCP.clients_within(40), TCP.clients_within(10)), (None, None));
    }

    #[test]
    fn handshakes_take_at_most_a_quarter() {
        let web = Need { handshakes: 256, ..TCP };
        assert_eq!((web.clients_within(140), web.handshakes_within(140)), (Some(75), 25));
        assert_eq!((web.clients_within(42), web.handshakes_within(42)), (Some(1), 1));
        assert_eq!(web.clients_within(2000), Some(MAX_CONNECTIONS));
        assert_eq!(web.most(), 40 + 1024 + 256);
    }

    #[test]
    fn the_client_of_stdio_needs_no_descriptor_of_its_own() {
        let stdio = Need { clients: 0, ..TCP };
        assert_eq!((stdio.clients_within(40), stdio.clients_within(39)), (Some(0), None));
    }
}
