//! The processes that are measured: each contestant is started with the same arguments, the same workers and the same
//! configuration file, and told where to run.

use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::admin::Scraper;
use crate::case::{Case, Traffic, Transport};
use crate::machine::{self, Placement};
use crate::options::Options;
use crate::web;

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contestant {
    /// The daemon of this project.
    Bus,
    /// The same with an admin listener that nobody asks.
    Admin,
    /// The same with one that is scraped each second.
    Scraped,
    /// The floor.
    Relay,
    /// The daemon that `STDIO_BUS_PEER` names.
    Peer,
    /// The daemon of this project, spoken to over WebSocket.
    WebSocket,
}

impl Contestant {
    /// Those that take part.
    pub fn all(options: &Options) -> Vec<Self> {
        let mut all = vec![Self::Bus];
        if options.with_admin {
            all.extend([Self::Admin, Self::Scraped]);
        }
        all.extend(options.relay.then_some(Self::Relay));
        all.extend(options.peer.is_some().then_some(Self::Peer));
        all
    }

    /// For the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bus => "stdio_bus",
            Self::Admin => "with admin",
            Self::Scraped => "scraped",
            Self::Relay => "relay",
            Self::Peer => "peer",
            Self::WebSocket => "WebSocket",
        }
    }
}

/// A pool of workers.
pub struct Pool {
    /// Its name.
    pub id: &'static str,
    /// What to start.
    pub command: PathBuf,
    /// With what.
    pub args: Vec<String>,
    /// How many.
    pub instances: usize,
}

impl Pool {
    /// The workers that a case wants.
    pub fn of(case: &Case, options: &Options) -> io::Result<Self> {
        let instances = case.workers;
        Ok(match case.traffic {
            Traffic::RoundTrips { .. } => Self::echo("bench", options, instances),
            Traffic::Tokens { lines, bytes } => {
                let sessions = case.clients / case.workers;
                let args = ["be-stream-worker".to_owned(), sessions.to_string(), lines.to_string(), bytes.to_string()];
                Self { id: "bench", command: std::env::current_exe()?, args: args.into(), instances }
            }
        })
    }

    /// The daemon's own echo workers.
    pub fn echo(id: &'static str, options: &Options, instances: usize) -> Self {
        Self { id, command: options.bus.clone(), args: vec!["worker".to_owned(), "echo".to_owned()], instances }
    }
}

/// A running contestant.
pub struct Server {
    child: Child,
    /// Where clients connect.
    pub address: Address,
    /// Where its admin listener is, if it has one.
    pub admin: PathBuf,
    scraper: Option<Scraper>,
    files: PathBuf,
    /// How long it took until a connection succeeded.
    pub started_in: Duration,
}

/// Where clients connect.
#[derive(Clone, Debug)]
pub enum Address {
    /// A port of the loopback.
    Tcp(u16),
    /// A path.
    Unix(PathBuf),
    /// A port of the loopback, where WebSocket is spoken.
    WebSocket {
        /// Which.
        port: u16,
        /// For what is asked there.
        path: &'static str,
    },
}

impl Address {
    /// Where nobody listens yet.
    pub fn free(transport: Transport, files: &Path) -> io::Result<Self> {
        Ok(match transport {
            Transport::Tcp => Self::Tcp(free_port()?),
            Transport::Unix => Self::Unix(files.join("socket")),
            Transport::WebSocket { .. } => Self::WebSocket { port: free_port()?, path: "/acp" },
        })
    }

    /// Whether messages are frames.
    pub fn is_web(&self) -> bool {
        matches!(self, Self::WebSocket { .. })
    }

    /// A connection. A WebSocket's handshake is over.
    pub fn connect(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Tcp(port) => Ok(tcp(*port)?.into()),
            Self::WebSocket { port, path } => {
                let mut stream = tcp(*port)?;
                web::upgrade(&mut stream, *port, path)?;
                Ok(stream.into())
            }
            Self::Unix(path) => Ok(UnixStream::connect(path)?.into()),
        }
    }
}

impl Server {
    /// Starts a contestant for a case.
    pub fn for_case(who: Contestant, case: &Case, options: &Options, placement: &Placement) -> io::Result<Self> {
        let pool = Pool::of(case, options)?;
        match who {
            Contestant::Relay => {}
            Contestant::WebSocket => {
                return Self::start(who, &[pool], Transport::WebSocket { ping_sec: 0 }, options, placement);
            }
            _ => return Self::start(who, &[pool], case.transport, options, placement),
        }
        let mut command = Command::new(std::env::current_exe()?);
        let (how, bytes) = match case.traffic {
            Traffic::RoundTrips { bytes } if case.is_one_to_one() && bytes > 16 * 1024 => ("pass", bytes),
            Traffic::RoundTrips { bytes } => ("answers", bytes),
            Traffic::Tokens { bytes, .. } => ("turns", bytes),
        };
        command.args(["be-relay", how, &bytes.to_string(), &pool.instances.to_string()]);
        let arguments = [pool.command.into_os_string()].into_iter().chain(pool.args.into_iter().map(Into::into));
        let files = scratch()?;
        let address = Address::free(case.transport, &files)?;
        Self::launch(who, command, arguments.collect(), address, files, placement)
    }

    /// Starts a daemon with these pools.
    pub fn start(
        who: Contestant,
        pools: &[Pool],
        transport: Transport,
        options: &Options,
        placement: &Placement,
    ) -> io::Result<Self> {
        let pools: Vec<_> = pools
            .iter()
            .map(|pool| {
                serde_json::json!({
                    "id": pool.id, "command": pool.command, "args": pool.args, "instances": pool.instances,
                })
            })
            .collect();
        Self::start_with(who, &serde_json::json!({ "pools": pools }), transport, options, placement)
    }

    /// Starts a daemon with this configuration.
    pub fn start_with(
        who: Contestant,
        configuration: &serde_json::Value,
        transport: Transport,
        options: &Options,
        placement: &Placement,
    ) -> io::Result<Self> {
        let program = match who {
            Contestant::Peer => options.peer.as_ref().unwrap_or(&options.bus),
            _ => &options.bus,
        };
        let mut command = Command::new(program);
        let files = scratch()?;
        let address = Address::free(transport, &files)?;
        let mut configuration = configuration.clone();
        if let (Transport::WebSocket { ping_sec }, Address::WebSocket { port, path }) = (transport, &address) {
            let listener = format!("127.0.0.1:{port}");
            configuration["listeners"] = serde_json::json!([{ "ws": listener, "path": path, "ping_sec": ping_sec }]);
        }
        let config = files.join("config.json");
        fs::write(&config, configuration.to_string())?;
        command.arg("--config").arg(&config);
        Self::launch(who, command, Vec::new(), address, files, placement)
    }

    fn launch(
        who: Contestant,
        mut command: Command,
        last_arguments: Vec<std::ffi::OsString>,
        address: Address,
        files: PathBuf,
        placement: &Placement,
    ) -> io::Result<Self> {
        match &address {
            Address::Tcp(port) => command.arg("--tcp").arg(format!("127.0.0.1:{port}")),
            Address::Unix(path) => command.arg("--unix").arg(path),
            // Its listener is in the configuration.
            Address::WebSocket { .. } => &mut command,
        };
        let admin = files.join("admin");
        if matches!(who, Contestant::Admin | Contestant::Scraped) {
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
        // Workers inherit the daemon's CPU; they are given their own once they are there.
        std::thread::sleep(Duration::from_millis(50));
        for worker in machine::children(server.process()) {
            machine::pin(worker, placement.workers)?;
        }
        if who == Contestant::Scraped {
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
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("stdio_bus-bench-{}-{count}", std::process::id()));
    fs::create_dir(&path)?;
    Ok(path)
}

/// The directory of build products.
pub fn target() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_stdio_bus"));
    program.ancestors().nth(2).unwrap_or(Path::new("target")).to_path_buf()
}

fn tcp(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A port that nobody has at the moment.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
