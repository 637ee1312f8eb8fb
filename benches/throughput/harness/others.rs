//! Other projects' servers, and the resources of all processes of a server.

use std::io;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::address::Address;
use super::machine::{self, Placement, Usage};
use super::server::Server;

/// A running server.
pub enum Running {
    Daemon(Server),
    /// Another server.
    Other(Other),
}

/// Resources used by a server's processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// CPU time, in nanoseconds.
    pub cpu_nanos: u64,
    /// Memory (PSS) in bytes.
    pub memory: u64,
}

impl Running {
    /// The same server, which needs another one behind it. Nothing of that is counted as its own.
    pub fn before(mut self, behind: Self) -> Self {
        if let Self::Other(other) = &mut self {
            other.behind = Some(Box::new(behind));
        }
        self
    }

    /// Its process id.
    pub fn process(&self) -> u32 {
        match self {
            Self::Daemon(server) => server.process(),
            Self::Other(other) => other.child.id(),
        }
    }

    /// The resources of all its processes, without its workers, which are this program, and with them; and the number
    /// of processes. A process that ends meanwhile is omitted.
    pub fn taken(&self, worker: &Path) -> ([Taken; 2], usize) {
        let (mut sums, mut count) = ([Taken::default(); 2], 0);
        for process in machine::family(self.process()) {
            let (Ok(usage), Ok(memory)) = (Usage::of(process), machine::proportional(process)) else { continue };
            count += 1;
            let first = usize::from(self.is_worker(process, worker));
            for sum in &mut sums[first..] {
                sum.cpu_nanos += usage.cpu_nanos;
                sum.memory += memory;
            }
        }
        (sums, count)
    }

    /// Binds the workers to their CPU: they start on their parent's.
    pub fn pin_workers(&self, worker: &Path, placement: Placement) {
        let workers = machine::family(self.process()).into_iter().filter(|process| self.is_worker(*process, worker));
        // A worker that has ended meanwhile needs no CPU.
        workers.for_each(|worker| drop(machine::pin(worker, placement.workers)));
    }

    fn is_worker(&self, process: u32, worker: &Path) -> bool {
        let program = || std::fs::read_link(format!("/proc/{process}/exe")).ok();
        process != self.process() && program().as_deref() == Some(worker)
    }
}

/// Another project's server.
pub struct Other {
    child: Child,
    /// A directory of its own.
    files: PathBuf,
    /// What it forwards to.
    behind: Option<Box<Running>>,
}

impl Drop for Other {
    fn drop(&mut self) {
        // Children with a process group of their own are not reached by a signal to its group.
        let family = machine::family(self.child.id());
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process_group(group, Signal::TERM);
            let begun = Instant::now();
            while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < Duration::from_secs(3) {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = kill_process_group(group, Signal::KILL);
        }
        let ours = |process: &u32| std::fs::metadata(format!("/proc/{process}")).is_ok();
        for process in family.into_iter().skip(1).filter(ours).filter_map(|process| Pid::from_raw(process as i32)) {
            let _ = kill_process(process, Signal::KILL);
        }
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.files);
    }
}

/// Starts a server at this address, and waits for a limited time until it accepts connections.
pub fn start(mut command: Command, address: &Address, files: PathBuf, placement: Placement) -> io::Result<Running> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    machine::pin(0, placement.daemon)?;
    let child = command.spawn();
    machine::pin(0, placement.clients)?;
    let mut other = Other { child: child?, files, behind: None };
    let listens = || match address {
        Address::Unix(path) => UnixStream::connect(path).is_ok(),
        other => other.port().is_ok_and(|port| TcpStream::connect(("127.0.0.1", port)).is_ok()),
    };
    let begun = Instant::now();
    while !listens() {
        if let Some(status) = other.child.try_wait()? {
            return Err(io::Error::other(format!("it does not listen: {status}")));
        }
        if begun.elapsed() > Duration::from_secs(30) {
            return Err(io::Error::other("it does not listen after 30 s"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(Running::Other(other))
}
