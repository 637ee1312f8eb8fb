//! The measured processes: each contestant is started with the same arguments, the same workers and the same
//! configuration file, and bound to its CPU.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::address::Address;
use super::admin::Scraper;
use super::machine::{self, Placement};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contestant {
    /// The daemon of this project.
    Bus,
    /// The same with an unused admin listener.
    Admin,
    /// The same with one that is scraped every second.
    Scraped,
    Relay,
    /// The daemon that `STDIO_BUS_PEER` names.
    Peer,
    /// The daemon of this project, over WebSocket.
    WebSocket,
    /// The same, over HTTP on persistent connections.
    Http,
    /// Over TCP with a connection for each message.
    TcpAnew,
    /// Over HTTP with a connection for each request.
    HttpAnew,
}

impl Contestant {
    /// Whether each message has a connection of its own.
    pub fn comes_anew(self) -> bool {
        matches!(self, Self::TcpAnew | Self::HttpAnew)
    }

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bus => "stdio_bus",
            Self::Admin => "with admin",
            Self::Scraped => "scraped",
            Self::Relay => "relay",
            Self::Peer => "peer",
            Self::WebSocket => "WebSocket",
            Self::Http => "HTTP",
            Self::TcpAnew => "TCP, anew",
            Self::HttpAnew => "HTTP, anew",
        }
    }
}

/// A running contestant.
pub struct Server {
    child: Child,
    /// The address that clients connect to.
    pub address: Address,
    /// The address of its admin listener, if it has one.
    pub admin: PathBuf,
    scraper: Option<Scraper>,
    files: PathBuf,
    /// The time until a connection succeeded.
    pub started_in: Duration,
}

impl Server {
    /// Starts a contestant, and waits until it listens.
    pub fn launch(
        contestant: Contestant,
        mut command: Command,
        last_arguments: Vec<OsString>,
        address: Address,
        files: PathBuf,
        placement: Placement,
    ) -> io::Result<Self> {
        match &address {
            Address::Tcp(port) => command.arg("--tcp").arg(format!("127.0.0.1:{port}")),
            Address::Unix(path) => command.arg("--unix").arg(path),
            // Its listener is in the configuration.
            Address::WebSocket { .. } | Address::Http(_) => &mut command,
        };
        let admin = files.join("admin");
        if matches!(contestant, Contestant::Admin | Contestant::Scraped) {
            command.arg("--admin").arg(&admin);
        }
        let log = File::create(files.join("log"))?;
        command.args(last_arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        machine::pin(0, placement.daemon)?;
        let began = Instant::now();
        let child = command.spawn();
        machine::pin(0, placement.clients)?;
        let mut server = Self { child: child?, address, admin, scraper: None, files, started_in: Duration::ZERO };
        while server.address.connect().is_err() {
            if began.elapsed() > Duration::from_secs(10) || server.child.try_wait()?.is_some() {
                let log = fs::read_to_string(server.files.join("log"))?;
                return Err(io::Error::other(format!("{command:?} does not listen:\n{log}")));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        server.started_in = began.elapsed();
        // Workers inherit the daemon's CPU; they are bound to their own once they exist.
        std::thread::sleep(Duration::from_millis(50));
        for worker in server.workers() {
            machine::pin(worker, placement.workers)?;
        }
        if contestant == Contestant::Scraped {
            server.scraper = Some(Scraper::of(server.admin.clone()));
        }
        Ok(server)
    }

    /// Its process id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Its workers' process ids.
    pub fn workers(&self) -> Vec<u32> {
        machine::children(self.process())
    }

    /// Changes its configuration file, before a reload.
    pub fn configure(&self, change: impl FnOnce(&mut Value)) -> io::Result<()> {
        let path = self.files.join("config.json");
        let mut configuration = serde_json::from_slice(&fs::read(&path)?)?;
        change(&mut configuration);
        fs::write(path, configuration.to_string())
    }

    /// What it wrote to stderr.
    pub fn log(&self) -> String {
        fs::read_to_string(self.files.join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.scraper = None;
        // The workers end with their daemon, however it ends.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.files);
    }
}

/// A directory for one server's files.
pub fn scratch() -> io::Result<PathBuf> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("stdio_bus-bench-{}-{count}", std::process::id()));
    fs::create_dir(&path)?;
    Ok(path)
}

/// The directory of build products.
pub fn target() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_stdio_bus"));
    program.ancestors().nth(2).unwrap_or(Path::new("target")).to_path_buf()
}

/// This program, which is also a helper and a worker.
pub fn this_program() -> PathBuf {
    std::env::current_exe().expect("the kernel knows it")
}

/// A pool of workers that take this many microseconds per line.
pub fn agents(id: &str, instances: usize, micros: u64) -> Value {
    let args = ["be-agent-worker".to_owned(), micros.to_string()];
    json!({ "id": id, "command": this_program(), "args": args, "instances": instances })
}
