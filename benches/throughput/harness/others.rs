//! Servers of somebody else beside the daemon: their packages, which npm and pip install beside the build products, and
//! what all processes of one take.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::machine::{self, Placement, Usage};
use super::server::{Server, target};

/// Somebody that serves.
pub enum Running {
    /// The daemon.
    Daemon(Server),
    /// Somebody else.
    Other(Other),
}

impl Running {
    /// Its process id.
    pub fn process(&self) -> u32 {
        match self {
            Self::Daemon(server) => server.process(),
            Self::Other(other) => other.0.id(),
        }
    }

    /// CPU time of all processes that are there, in nanoseconds.
    pub fn cpu(&self) -> io::Result<u64> {
        machine::family(self.process()).into_iter().map(|process| Ok(Usage::of(process)?.cpu_nanos)).sum()
    }

    /// Memory of all processes that are there, in bytes (PSS).
    pub fn memory(&self) -> io::Result<u64> {
        machine::family(self.process()).into_iter().map(machine::proportional).sum()
    }
}

/// A server of somebody else.
pub struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // Its workers end with their stdin.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server that listens on this port, and waits until it takes connections.
pub fn start(mut command: Command, port: u16, placement: Placement) -> io::Result<Running> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    machine::pin(0, placement.daemon)?;
    let child = command.spawn();
    machine::pin(0, placement.clients)?;
    let mut other = Other(child?);
    let begun = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        if begun.elapsed() > Duration::from_secs(20) || other.0.try_wait()?.is_some() {
            return Err(io::Error::other(format!("{command:?} does not listen")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(Running::Other(other))
}

/// Installs the packages unless they are there, and says where.
///
/// # Errors
/// Why not, in words.
pub fn npm_packages() -> Result<PathBuf, String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/throughput/gateways");
    let packages = target().join("bench/gateways");
    let copied = |name: &str| -> io::Result<bool> {
        let (from, to) = (fs::read(sources.join(name))?, packages.join(name));
        let is_new = fs::read(&to).ok().as_ref() != Some(&from);
        fs::write(to, from).map(|()| is_new)
    };
    let copy = || -> io::Result<bool> {
        fs::create_dir_all(&packages)?;
        copied("spawn-per-connection.mjs")?;
        copied("package.json")?;
        copied("package-lock.json")
    };
    let is_new = copy().map_err(|error| error.to_string())?;
    // npm writes this when everything else is there.
    if !is_new && packages.join("node_modules/.package-lock.json").exists() {
        return Ok(packages);
    }
    eprint!("\r\x1b[Kgateways, npm ci");
    let mut npm = Command::new("npm");
    npm.args(["ci", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(&packages);
    match npm.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(packages),
        Ok(output) => Err(format!("npm ci: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("npm: {error}")),
    }
}

/// Installs a package in an environment of its own unless it is there, and says where.
///
/// # Errors
/// Why not, in words.
pub fn pip_package(name: &str, version: &str) -> Result<PathBuf, String> {
    let place = target().join("bench").join(format!("{name}-{version}"));
    // pip writes its program when everything else is there.
    if place.join("bin").join(name).exists() {
        return Ok(place);
    }
    eprint!("\r\x1b[Kbridges, pip install {name}");
    let run = |command: &mut Command| match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{command:?}: {error}")),
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(&place))?;
    run(Command::new(place.join("bin/pip")).args(["install", "--quiet", &format!("{name}=={version}")]))?;
    Ok(place)
}
