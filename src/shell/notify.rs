//! Notifies the service manager (sd_notify(3)): ready, status, stopping, and the watchdog. Sending never blocks: a
//! message that does not fit is retried shortly after.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with};

use super::timers::earlier;
use crate::address;

/// Minimum interval of status messages.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// The delay of a retry after a full socket; and after any other failure.
const SOON: Duration = Duration::from_millis(100);
const LATER: Duration = Duration::from_secs(1);
/// Interval of checks whether the start is over, which no event reports.
const START_EVERY: Duration = Duration::from_millis(250);

/// The daemon's condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Condition {
    /// The start is over.
    pub is_ready: bool,
    /// Workers that run, and those that should.
    pub running: usize,
    pub wanted: usize,
    pub clients: usize,
}

/// See the module documentation. Times are since the start of the loop's clock, and stop while the machine is
/// suspended.
#[derive(Default)]
pub(super) struct Notify {
    /// None without a service manager.
    to: Option<(OwnedFd, SocketAddrUnix)>,
    /// When to check for unreported changes.
    look_at: Option<Duration>,
    looked_at: Duration,
    /// The watchdog's interval, and when the next message is due.
    beat_every: Option<Duration>,
    beat_at: Duration,
    was_ready: bool,
    stops: bool,
    /// When a reload began that has to be reported (CLOCK_MONOTONIC, in microseconds).
    reload_begins: Option<u64>,
    /// The end of a reload has to be reported.
    reload_ends: bool,
    /// What was reported: stopping, and the status.
    has_sent_stopping: bool,
    status: String,
    has_logged_failure: bool,
}

impl Notify {
    /// To the service manager in NOTIFY_SOCKET and WATCHDOG_USEC.
    pub(super) fn from_environment() -> Self {
        let to = env::var_os("NOTIFY_SOCKET").and_then(|name| match connect(&name) {
            Ok(to) => Some(to),
            Err(error) => {
                tracing::warn!("NOTIFY_SOCKET is {}, and cannot be used: {error}", name.display());
                None
            }
        });
        let variable = |name| env::var(name).ok();
        let every = watchdog(variable("WATCHDOG_USEC").as_deref(), variable("WATCHDOG_PID").as_deref());
        Self::new(to, every)
    }

    fn new(to: Option<(OwnedFd, SocketAddrUnix)>, beat_every: Option<Duration>) -> Self {
        Self { look_at: Some(Duration::ZERO), to, beat_every, ..Self::default() }
    }

    /// Something has changed that may have to be reported.
    pub(super) fn changed(&mut self) {
        if self.was_ready {
            self.look_at.get_or_insert(self.looked_at + STATUS_EVERY);
        } else {
            self.look_at = Some(self.looked_at);
        }
    }

    /// The daemon is stopping.
    pub(super) fn stops(&mut self) {
        if !std::mem::replace(&mut self.stops, true) {
            self.look_at = Some(Duration::ZERO);
        }
    }

    /// The daemon is reloading its configuration.
    pub(super) fn reloads(&mut self) {
        // A start that is not over is reported as ready later anyway.
        if self.was_ready {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            self.reload_begins = Some(now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000);
            self.look_at = Some(Duration::ZERO);
        }
    }

    /// The reload has ended, with the new or the old configuration.
    pub(super) fn reloaded(&mut self) {
        if self.was_ready {
            self.reload_ends = true;
            self.look_at = Some(Duration::ZERO);
        }
    }

    /// When there is something to send.
    #[inline]
    pub(super) fn due(&self) -> Option<Duration> {
        self.to.as_ref()?;
        let beat = self.beat_every.map(|_| self.beat_at);
        earlier(self.look_at, beat)
    }

    /// Sends what is due.
    pub(super) fn send_due(&mut self, now: Duration, condition: impl FnOnce() -> Condition) {
        if self.due().is_none_or(|due| due > now) {
            return;
        }
        let mut message = String::new();
        let beats = self.beat_every.filter(|_| self.beat_at <= now);
        if beats.is_some() {
            message.push_str("WATCHDOG=1\n");
        }
        let mut reported = None;
        if self.look_at.is_some_and(|at| at <= now) {
            let condition = condition();
            let status = status(condition, self.stops);
            if let Some(since) = self.reload_begins {
                let _ = write!(message, "RELOADING=1\nMONOTONIC_USEC={since}\n");
            } else if self.reload_ends || condition.is_ready && !self.was_ready {
                message.push_str("READY=1\n");
            }
            if self.stops && !self.has_sent_stopping {
                message.push_str("STOPPING=1\n");
            }
            if status != self.status {
                let _ = writeln!(message, "STATUS={status}");
            }
            reported = Some((condition.is_ready, status));
        }
        let again = if message.is_empty() { None } else { self.send(message.trim_end()).err() };
        if let Some(pause) = again {
            self.look_at = reported.map_or(self.look_at, |_| Some(now + pause));
            self.beat_at = beats.map_or(self.beat_at, |_| now + pause);
            return;
        }
        if let Some(every) = beats {
            self.beat_at = now + every;
        }
        if let Some((is_ready, status)) = reported {
            (self.look_at, self.looked_at) = (None, now);
            self.was_ready |= is_ready;
            if !self.was_ready && !self.stops {
                self.look_at = Some(now + START_EVERY);
            }
            let has_begun = self.reload_begins.take().is_some();
            if has_begun && self.reload_ends {
                self.look_at = Some(now);
            }
            self.reload_ends &= has_begun;
            self.has_sent_stopping = self.stops;
            self.status = status;
        }
    }

    /// Sends one message; if that fails, returns the delay of a retry.
    fn send(&mut self, message: &str) -> Result<(), Duration> {
        let Some((socket, address)) = &self.to else { return Ok(()) };
        match sendto(socket, message.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL, address) {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Err(SOON),
            // A manager that restarts will be back soon.
            Err(error) => {
                if !std::mem::replace(&mut self.has_logged_failure, true) {
                    tracing::warn!(
                        "the service manager cannot be reached (NOTIFY_SOCKET): {error}; trying again until it can"
                    );
                }
                Err(LATER)
            }
        }
    }
}

fn status(condition: Condition, stops: bool) -> String {
    let Condition { running, wanted, clients, .. } = condition;
    match stops {
        true => format!("stopping: {running} workers and {clients} clients are left"),
        false => format!("{running} of {wanted} workers run, {clients} clients"),
    }
}

fn connect(name: &OsStr) -> io::Result<(OwnedFd, SocketAddrUnix)> {
    let address = address::of_unix_socket(Path::new(name))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok((socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?, address))
}

/// The watchdog interval: half of the manager's timeout, if it watches this process (sd_watchdog_enabled(3)).
fn watchdog(microseconds: Option<&str>, process: Option<&str>) -> Option<Duration> {
    let is_ours = process.is_none_or(|process| process.parse() == Ok(std::process::id()));
    let microseconds: u64 = microseconds.filter(|_| is_ours)?.parse().ok()?;
    Some(Duration::from_micros(microseconds / 2)).filter(|every| !every.is_zero())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    struct Manager {
        socket: UnixDatagram,
        notify: Notify,
        _directory: tempfile::TempDir,
    }

    const READY: Condition = Condition { is_ready: true, running: 2, wanted: 2, clients: 0 };

    impl Manager {
        fn new(beat_every: Option<Duration>) -> Self {
            let directory = tempfile::tempdir().expect("there is a place for it");
            let path = directory.path().join("notify");
            let socket = UnixDatagram::bind(&path).expect("it is free");
            socket.set_nonblocking(true).expect("it is a socket");
            let to = connect(path.as_os_str()).expect("it is there");
            Self { socket, notify: Notify::new(Some(to), beat_every), _directory: directory }
        }

        fn receives(&mut self, at: Duration, condition: Condition) -> String {
            self.notify.send_due(at, || condition);
            let mut bytes = [0; 1000];
            let length = self.socket.recv(&mut bytes).unwrap_or(0);
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn ready_and_stopping_are_reported_once() {
        let mut manager = Manager::new(None);
        let starting = Condition { is_ready: false, running: 1, ..READY };
        assert_eq!(manager.receives(SECOND, starting), "STATUS=1 of 2 workers run, 0 clients");
        assert_eq!(manager.notify.due(), Some(SECOND + START_EVERY), "no event reports that time has passed");
        manager.notify.changed();
        assert_eq!(manager.receives(SECOND, READY), "READY=1\nSTATUS=2 of 2 workers run, 0 clients");
        manager.notify.changed();
        assert_eq!(manager.notify.due(), Some(2 * SECOND), "the status waits");
        assert_eq!(manager.receives(SECOND, Condition { clients: 1, ..READY }), "");
        assert_eq!(
            manager.receives(2 * SECOND, Condition { clients: 2, ..READY }),
            "STATUS=2 of 2 workers run, 2 clients"
        );
        manager.notify.changed();
        manager.notify.stops();
        let left = Condition { clients: 2, ..READY };
        assert_eq!(manager.receives(2 * SECOND, left), "STOPPING=1\nSTATUS=stopping: 2 workers and 2 clients are left");
        manager.notify.stops();
        assert_eq!(manager.notify.due(), None);
    }

    #[test]
    fn a_reload_is_reported_with_its_clock_and_then_its_end() {
        let mut manager = Manager::new(None);
        manager.notify.reloads();
        assert!(manager.receives(SECOND, READY).starts_with("READY=1"), "it is not ready yet");
        manager.notify.reloads();
        let begins = manager.receives(SECOND, READY);
        let since = begins.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("it reloads");
        assert!(since.parse::<u64>().is_ok_and(|since| since > 0), "{begins}");
        manager.notify.reloaded();
        assert_eq!(manager.receives(SECOND, READY), "READY=1");
        assert_eq!(manager.notify.due(), None);
        // A reload that ends before its start was reported.
        manager.notify.reloads();
        manager.notify.reloaded();
        assert!(manager.receives(SECOND, READY).starts_with("RELOADING=1"));
        assert_eq!((manager.notify.due(), manager.receives(SECOND, READY)), (Some(SECOND), "READY=1".to_owned()));
    }

    #[test]
    fn a_message_that_does_not_fit_is_sent_again() {
        let mut manager = Manager::new(Some(SECOND));
        let filler = UnixDatagram::unbound().expect("there are descriptors");
        filler.connect(manager.socket.local_addr().expect("it is bound").as_pathname().expect("a path")).expect("free");
        filler.set_nonblocking(true).expect("it is a socket");
        while filler.send(b"x").is_ok() {}
        manager.notify.send_due(SECOND, || READY);
        assert_eq!(manager.notify.due(), Some(SECOND + SOON));
        let mut bytes = [0; 10];
        while manager.socket.recv(&mut bytes).is_ok() {}
        assert!(manager.receives(SECOND + SOON, READY).starts_with("WATCHDOG=1\nREADY=1\nSTATUS="));
        assert_eq!(manager.notify.due(), Some(2 * SECOND + SOON));
        assert_eq!(manager.receives(2 * SECOND + SOON, READY), "WATCHDOG=1");
    }

    #[test]
    fn the_watchdog_is_fed_twice_per_timeout_and_only_by_the_watched_process() {
        let own = std::process::id().to_string();
        assert_eq!(watchdog(Some("3000000"), Some(&own)), Some(Duration::from_millis(1500)));
        assert_eq!(watchdog(Some("3000000"), None), Some(Duration::from_millis(1500)));
        assert_eq!(watchdog(Some("3000000"), Some("1")), None);
        for nonsense in [None, Some("0"), Some("1"), Some("-5"), Some("x")] {
            assert_eq!(watchdog(nonsense, None), None);
        }
    }

    #[test]
    fn without_a_service_manager_nothing_is_sent() {
        let mut notify = Notify::default();
        notify.changed();
        notify.stops();
        assert_eq!(notify.due(), None);
        notify.send_due(SECOND, || unreachable!("it is disabled"));
    }
}
