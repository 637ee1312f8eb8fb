//! The configuration of the daemon, from a file, from `--config-fd` or built in.
//!
//! A [`Config`] that exists is valid: every range is checked and every name resolved; commands that were not found are
//! in [`Config::missing`]. Loading never starts, binds or changes anything, and never stops at the first problem: a
//! [`ConfigError`] has them all, each with its line, column and path. `docs/configuration.md` lists every key,
//! `config/schema.json` describes them to editors.
//!
//! Reading order: `table` (the settings), `keys` (queries to the table), `document` (JSON with positions), `read`,
//! `listeners` and `values` (from JSON to a `Config`), `mcp` (what MCP listeners require of pools), `daemon_name` (the
//! daemon's name), `command` (can it run), `warnings` (is it intended), `command_line_pool` (a command on the command line),
//! `confine`, `rights` and `users` (identity and limits of workers), `plan` (changes to a running daemon).

mod client_env;
pub(crate) mod command;
mod command_line_pool;
mod confine;
mod daemon_name;
mod document;
mod keys;
mod listeners;
mod load;
mod mcp;
pub(crate) mod plan;
mod read;
pub(crate) mod reference;
mod rights;
mod table;
mod users;
mod values;
mod warnings;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::access::{Policy, Secret};
use crate::address::{Address, is_abstract, is_loopback};
use crate::bus::index::PoolId;
use crate::bus::settings::{self, Assignment, Entry, Limits, MaxConnections, Routing, Rules, Settings, Start};

pub use crate::bus::report::Level as LogLevel;
pub use crate::kinds::ListenerKind;
pub use client_env::EnvFrom;
pub use document::Problem;
pub(crate) use keys::nearest;
pub(crate) use rights::may_change_users;
pub use rights::{Limit, Rights, UserAndGroups};

/// Maximum size of a configuration in bytes: far above any real one, far below what would hurt.
pub const MAX_CONFIG_BYTES: usize = 4 << 20;

/// Default of `start_timeout_sec`, in seconds: a package may have to be fetched.
const DEFAULT_START_TIMEOUT: u64 = 120;
/// Default of `concurrency`.
const DEFAULT_CONCURRENCY: usize = 8;
/// Default of `max_instances` in a `dedicated` pool.
pub const DEFAULT_DEDICATED_WORKERS: usize = 64;

/// The name in messages of a configuration made from the command line.
const COMMAND_LINE: &str = "command line";

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it came from, in the words of a message: the file's path, `fd 3`, or `built-in configuration`.
    pub origin: String,
    /// The daemon's name among others: the prefix of the ids that it gives out.
    pub node: Arc<str>,
    /// Worker pools; at least one.
    pub pools: Vec<PoolConfig>,
    /// The listeners. After loading these are the file's; [`Config::listen`] adds the command line's.
    pub listeners: Vec<Listener>,
    /// After a reload, the indexes of the listeners in the order in which the configuration has them ([`Config::order`]).
    reordered: Option<Vec<usize>>,
    /// Resource limits.
    pub limits: Limits,
    /// Routing options where the spec leaves a choice.
    pub routing: Routing,
    /// The admin listener, if there is one; [`Config::administer`] adds the command line's.
    pub admin: Option<Admin>,
    /// Log settings.
    pub log: Log,
    /// The folder of what outlives the daemon, if anything does.
    pub state: Option<PathBuf>,
    /// The mode from a `transport` section, which the command line overrides.
    wanted_mode: Option<Mode>,
    /// Commands that cannot be run, of some of the pools but not of all. These pools have no workers until that is
    /// fixed.
    pub missing: Vec<Problem>,
    /// Settings that need more privileges.
    unprivileged: Vec<Problem>,
    /// The source text, to diff it against another one.
    text: Text,
}

/// The text of a configuration. It is never shown as a whole, since it may contain secrets.
#[derive(Clone)]
struct Text(Arc<str>);

impl fmt::Debug for Text {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Text(…)")
    }
}

/// A pool: how to start its workers, and its settings for the core.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The core's settings.
    pub core: settings::Pool,
    /// Its assignment was set explicitly, and is not the default.
    pub says_assignment: bool,
    /// The command as it was written: the worker's `argv[0]`.
    pub command: String,
    /// The absolute path of the program to execute; symbolic links are not resolved.
    pub program: PathBuf,
    /// The arguments after `argv[0]`.
    pub args: Vec<String>,
    /// Variables that are set over the daemon's own environment, as they were written (`reference.rs` says what they mean).
    pub env: BTreeMap<String, String>,
    /// Variables that the worker of each client gets of that client.
    pub env_from: Option<EnvFrom>,
    /// The absolute working directory, if it is not the daemon's.
    pub cwd: Option<PathBuf>,
    /// Its sessions of MCP outlive the daemon, if anything does.
    pub restores: bool,
    /// The workers' identity and limits.
    pub rights: Rights,
    /// Memory in MiB that a worker's processes may use before it is replaced.
    pub recycle_memory: Option<u64>,
}

/// A pool from the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLinePool {
    /// The command and its arguments; at least one word.
    pub command: Vec<String>,
    /// Workers to keep running; one by default.
    pub instances: Option<u32>,
    pub assignment: Option<Assignment>,
}

/// A listener for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The address to listen on.
    pub listen: Listen,
    /// Index into [`Config::pools`] of its clients' default pool; none means all.
    pub pool: Option<usize>,
    /// Indexes into [`Config::pools`] of the pools that its clients' messages may name; none means all.
    pub pools: Option<Vec<usize>>,
    /// Maximum number of connections at once, in total and per source.
    pub max_connections: MaxConnections,
    /// How long clients without sessions may be idle.
    pub idle_timeout: Option<Duration>,
    /// Access rules.
    pub entry: Entry,
    /// What some of its clients may not use.
    pub rules: Vec<Rules>,
    /// It is closed while none of its pools has a running worker.
    pub closes_when_not_ready: bool,
    /// Other daemons may listen at the same TCP port (SO_REUSEPORT).
    pub reuse_port: bool,
    /// The terms of its HTTP clients; none if its clients speak NDJSON.
    pub web: Option<Web>,
    /// The configuration does not have it any more; it exists for its remaining clients.
    pub is_gone: bool,
    /// Indexes of the listeners that it may have moved to, if it is gone: their rules hold for its remaining clients, too.
    pub moved_to: Vec<usize>,
}

/// The terms of a listener for HTTP clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Web {
    /// The listener's kind: one that is served over HTTP.
    pub kind: ListenerKind,
    /// The path it is served at; begins with a slash. With MCP, each pool that its clients may use has a path below it.
    pub path: String,
    /// Who may use it.
    pub access: Policy,
    /// The file that the tokens in `access` are from.
    pub tokens_file: Option<PathBuf>,
    /// The period of pings: in each one, a silent WebSocket is pinged once; none never pings.
    pub ping: Option<Duration>,
    /// How long a pong may take. Not configurable.
    pub pong_timeout: Duration,
}

impl Default for Web {
    /// Of a WebSocket.
    fn default() -> Self {
        Self::of(ListenerKind::WebSocket)
    }
}

impl Listener {
    /// One without restrictions.
    pub fn open(listen: Listen) -> Self {
        Self {
            listen,
            pool: None,
            pools: None,
            max_connections: MaxConnections::default(),
            idle_timeout: None,
            entry: Entry::default(),
            rules: Vec::new(),
            closes_when_not_ready: false,
            reuse_port: false,
            web: None,
            is_gone: false,
            moved_to: Vec::new(),
        }
    }

    /// One of this kind at this address, without restrictions.
    pub fn of(kind: ListenerKind, address: Address) -> Self {
        Self { web: kind.web().is_some().then(|| Web::of(kind)), ..Self::open(address.into()) }
    }

    /// Its address, as an operator would write it.
    pub fn address(&self) -> String {
        match &self.web {
            Some(web) => web.address(&self.listen.to_string()),
            None => self.listen.to_string(),
        }
    }

    /// Indexes of the pools, out of `pools`, that its clients' messages may name.
    pub fn offered(&self, pools: usize) -> Vec<usize> {
        self.pools.clone().unwrap_or_else(|| (0..pools).collect())
    }

    /// Whether it serves MCP over HTTP.
    pub fn is_mcp(&self) -> bool {
        self.web.as_ref().is_some_and(|web| web.kind.is_mcp())
    }
}

impl Web {
    /// The defaults of a kind of listener.
    pub fn of(kind: ListenerKind) -> Self {
        Self {
            kind,
            path: kind.default_path().to_owned(),
            access: Policy::default(),
            tokens_file: None,
            ping: Some(Duration::from_secs(30)),
            pong_timeout: Duration::from_secs(10),
        }
    }

    /// The URL for a socket address, `tcp://HOST:PORT` or `unix:PATH`.
    pub fn address(&self, socket: &str) -> String {
        self.kind.url(socket, &self.path)
    }
}

/// The admin listener, over HTTP (`src/shell/admin`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// The address to listen on; never [`Listen::Stdio`].
    pub listen: Listen,
    /// The token required for actions over TCP.
    pub token: Option<Secret>,
    /// The file that it came from.
    pub token_file: Option<PathBuf>,
}

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// The one client on stdin and stdout.
    Stdio,
    /// A TCP port; the host may be a name, the port 0.
    Tcp {
        /// A name or an address, an IPv6 one without brackets.
        host: String,
        /// The port; 0 lets the kernel choose.
        port: u16,
    },
    /// A Unix socket.
    Unix {
        /// At most [`crate::address::MAX_UNIX_PATH`] bytes.
        path: PathBuf,
        /// The permissions of the socket file.
        mode: u32,
        /// The owner of the socket file.
        owner: Owner,
    },
}

/// The owner of a file (chown(2)): by default its creator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The user's id; none leaves it unchanged.
    pub user: Option<u32>,
    /// The group's id; none leaves it unchanged.
    pub group: Option<u32>,
}

impl fmt::Display for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, group } = self;
        user.map_or(Ok(()), |user| write!(out, "{user}"))?;
        group.map_or(Ok(()), |group| write!(out, ":{group}"))
    }
}

impl Listen {
    /// Default permissions of a socket file: its owner alone.
    pub const DEFAULT_MODE: u32 = 0o600;

    /// Its host and port, if it is a TCP port.
    pub(crate) fn host_and_port(&self) -> Option<(&str, u16)> {
        match self {
            Self::Tcp { host, port } => Some((host, *port)),
            Self::Unix { .. } | Self::Stdio => None,
        }
    }

    /// Whether it is a port that the kernel chooses.
    pub(crate) fn is_port_zero(&self) -> bool {
        self.host_and_port().is_some_and(|(_, port)| port == 0)
    }

    /// The path of its Unix socket, if it is one.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Unix { path, .. } => Some(path),
            Self::Tcp { .. } | Self::Stdio => None,
        }
    }

    /// Whether its clients are local users rather than network addresses.
    pub(crate) fn is_unix(&self) -> bool {
        self.path().is_some()
    }

    /// Whether it is a name without a file, which every user of this machine may connect to.
    pub(crate) fn is_abstract(&self) -> bool {
        self.path().is_some_and(is_abstract)
    }

    /// Whether only this machine reaches it over TCP.
    pub(crate) fn is_loopback(&self) -> bool {
        self.host_and_port().is_some_and(|(host, _)| is_loopback(&host.to_ascii_lowercase()))
    }

    /// The permissions and the owner of its socket file, if it is a Unix socket.
    pub(crate) fn file(&self) -> Option<(u32, Owner)> {
        match self {
            Self::Unix { mode, owner, .. } => Some((*mode, *owner)),
            Self::Tcp { .. } | Self::Stdio => None,
        }
    }

    /// The permissions and the owner of its socket file, to set them.
    ///
    /// # Errors
    /// It has no file.
    pub(crate) fn file_mut(&mut self) -> Result<(&mut u32, &mut Owner), NoFile> {
        match self {
            Self::Unix { path, .. } if is_abstract(path) => Err(NoFile::Abstract),
            Self::Unix { mode, owner, .. } => Ok((mode, owner)),
            Self::Tcp { .. } | Self::Stdio => Err(NoFile::Port),
        }
    }
}

/// Why a listener has no socket file.
pub(crate) enum NoFile {
    /// It is a Unix socket with an abstract name.
    Abstract,
    /// It is no Unix socket.
    Port,
}

impl From<Address> for Listen {
    fn from(address: Address) -> Self {
        match address {
            Address::Tcp { host, port } => Self::Tcp { host, port },
            Address::Unix { path } => Self::Unix { path, mode: Self::DEFAULT_MODE, owner: Owner::default() },
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio => out.write_str("stdio"),
            Self::Tcp { host, port } => Address::Tcp { host: host.clone(), port: *port }.fmt(out),
            Self::Unix { path, .. } => Address::Unix { path: path.clone() }.fmt(out),
        }
    }
}

/// Log settings; the command line overrides the file, and the file the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The least important level that is written.
    pub level: LogLevel,
    /// The format of a line.
    pub format: LogFormat,
    /// Log each request of a client.
    pub requests: bool,
    /// The file that it is written to instead of stderr.
    pub file: Option<PathBuf>,
}

/// The levels of the log by their names.
pub(crate) const LEVELS: [(&str, LogLevel); 4] =
    [("debug", LogLevel::Debug), ("info", LogLevel::Info), ("warn", LogLevel::Warn), ("error", LogLevel::Error)];

/// The format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// The operating modes of spec 4.1.1, as the C daemon's `transport.mode` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Stdio,
    Unix,
    Tcp,
}

/// Why there is no configuration. Each line of the message stands alone.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// It could not be read, or conflicts with the command line or the running daemon.
    #[error("{origin}: {message}")]
    Unusable {
        /// The file or descriptor.
        origin: String,
        /// What is wrong and what to do.
        message: String,
    },
    /// It was read and is wrong.
    #[error("{}", lines(origin, problems, *omitted))]
    Invalid {
        /// The file or descriptor.
        origin: String,
        /// At least one, in the order of the text.
        problems: Vec<Problem>,
        /// How many more there were.
        omitted: usize,
        /// The requested log format, as far as it could be read.
        format: LogFormat,
    },
}

fn lines(origin: &str, problems: &[Problem], omitted: usize) -> String {
    let mut lines: Vec<String> = problems.iter().map(|problem| format!("{origin}:{problem}")).collect();
    if omitted > 0 {
        lines.push(format!("{origin}: and {omitted} more"));
    }
    lines.join("\n")
}

impl Config {
    /// The indexes of the listeners in the order of the configuration, in which operators number them.
    pub fn order(&self) -> Vec<usize> {
        self.reordered.clone().unwrap_or_else(|| (0..self.listeners.len()).collect())
    }

    /// The configuration without a file: two built-in echo workers, started from the daemon's own executable.
    pub fn embedded(program: &Path) -> Self {
        let core = settings::Pool {
            id: "echo".to_owned(),
            instances: 2,
            max_instances: 2,
            assignment: Assignment::default(),
            ..settings::Pool::default()
        };
        let pool = PoolConfig {
            core,
            // All of its workers answer alike.
            says_assignment: true,
            command: program.display().to_string(),
            program: program.to_owned(),
            args: vec!["worker".to_owned(), "echo".to_owned()],
            env: BTreeMap::new(),
            env_from: None,
            cwd: None,
            restores: true,
            rights: Rights::default(),
            recycle_memory: None,
        };
        Self {
            origin: "built-in configuration".to_owned(),
            node: daemon_name::of_host().into(),
            pools: vec![pool],
            listeners: Vec::new(),
            reordered: None,
            limits: Limits::default(),
            routing: Routing::default(),
            admin: None,
            log: Log::default(),
            state: None,
            wanted_mode: None,
            missing: Vec::new(),
            unprivileged: Vec::new(),
            text: Text(Arc::from("{}")),
        }
    }

    /// Returns the configuration if every pool can be run.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with the pools that cannot.
    pub fn strict(self) -> Result<Self, ConfigError> {
        let problems = self.missing.clone();
        self.without(problems)
    }

    /// Returns the configuration if this process has the privileges that it needs.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with the missing privileges.
    pub fn privileged(self) -> Result<Self, ConfigError> {
        let problems = self.unprivileged.clone();
        self.without(problems)
    }

    fn without(self, problems: Vec<Problem>) -> Result<Self, ConfigError> {
        match problems.is_empty() {
            true => Ok(self),
            false => Err(ConfigError::Invalid { origin: self.origin, problems, omitted: 0, format: self.log.format }),
        }
    }

    /// Adds the command line's listeners; without any, the file's are used, and without those stdio (spec 4.1.1).
    /// Afterwards there is at least one listener and no two are the same.
    pub fn listen(&mut self, flags: &[Listener]) -> Result<(), ConfigError> {
        let origin = self.origin.clone();
        let unfit = |message: String| Err(ConfigError::Unusable { origin, message });
        for (place, listener) in flags.iter().enumerate() {
            if self.listeners.iter().any(|known| same_place(&known.listen, &listener.listen)) {
                return unfit(format!(
                    "{} is among the listeners already; leave it out there or on the command line",
                    listener.listen
                ));
            }
            if let Some((what, remedy)) =
                listener.objections(&self.pools, self.origin == COMMAND_LINE).into_iter().next()
            {
                return unfit(format!("{}: {what} ({remedy})", listener.address()));
            }
            self.listeners.insert(place, listener.clone());
        }
        if let Some((at, what, remedy)) = client_env::unproven(&self.listeners, &self.pools).into_iter().next() {
            return unfit(format!("{}: {what} ({remedy})", self.listeners[at].address()));
        }
        if self.listeners.is_empty() {
            match self.wanted_mode {
                Some(Mode::Tcp) => {
                    return unfit("transport.mode is \"tcp\"; say where with --tcp HOST:PORT".to_owned());
                }
                Some(Mode::Unix) => return unfit("transport.mode is \"unix\"; say where with --unix PATH".to_owned()),
                Some(Mode::Stdio) | None => self.listeners.push(Listener::open(Listen::Stdio)),
            }
        }
        Ok(())
    }

    /// Sets the command line's admin listener. It replaces the file's address, but keeps its permissions and token.
    /// Afterwards it differs from all listeners.
    pub fn administer(&mut self, address: Option<Address>) -> Result<(), ConfigError> {
        if let Some(address) = address {
            let before = self.admin.take();
            let mut listen = Listen::from(address);
            if let Some(Admin { listen: Listen::Unix { mode: before, .. }, .. }) = &before
                && let Listen::Unix { mode, .. } = &mut listen
            {
                *mode = *before;
            }
            let (token, token_file) = before.map_or((None, None), |admin| (admin.token, admin.token_file));
            self.admin = Some(Admin { listen, token, token_file });
        }
        match &self.admin {
            Some(admin) if self.listeners.iter().any(|known| same_place(&known.listen, &admin.listen)) => {
                let message =
                    format!("{} is a listener for clients already; the admin listener needs its own", admin.listen);
                Err(ConfigError::Unusable { origin: self.origin.clone(), message })
            }
            _ => Ok(()),
        }
    }

    /// The core's settings.
    pub fn settings(&self) -> Settings {
        let listener = |one: &Listener| settings::Listener {
            pool: one.pool.map(PoolId::at),
            stdio: matches!(one.listen, Listen::Stdio),
            pools: one.pools.as_ref().map(|pools| pools.iter().copied().map(PoolId::at).collect()),
            max_connections: one.max_connections,
            idle_timeout: one.idle_timeout,
            entry: one.entry.clone(),
            rules: one.rules.clone(),
            closes_when_not_ready: one.closes_when_not_ready,
            mcp: one.is_mcp(),
            is_gone: one.is_gone,
        };
        Settings {
            limits: self.limits.clone(),
            pools: self.pools.iter().map(|pool| pool.core.clone()).collect(),
            listeners: self.listeners.iter().map(listener).collect(),
            routing: self.routing.clone(),
            most_clients: settings::MAX_CONNECTIONS,
        }
    }

    /// Whether any pool has workers with what is their clients' own.
    pub(crate) fn has_personal_pools(&self) -> bool {
        self.pools.iter().any(|pool| pool.env_from.is_some())
    }

    /// Warnings about listeners whose clients' messages are balanced over several pools if they name none. That is
    /// rarely intended: an agent then answers what another one was asked.
    pub fn mixed_listeners(&self) -> Vec<String> {
        let is_shared = |pool: &usize| self.pools[*pool].core.assignment != Assignment::Dedicated;
        let mixes = |listener: &&Listener| {
            let pools = listener.offered(self.pools.len());
            // Each pool has a path of its own at an MCP listener.
            !listener.is_mcp() && listener.pool.is_none() && pools.iter().filter(|pool| is_shared(pool)).count() > 1
        };
        let warning = |listener: &Listener| {
            format!(
                "{}: a message that names no pool is sent to the next worker of any pool; name one in listeners[].pool",
                listener.address()
            )
        };
        // Without any, the command line adds one.
        let from_command_line = self.listeners.is_empty().then(|| Listener::open(Listen::Stdio));
        self.listeners.iter().chain(&from_command_line).filter(mixes).map(warning).collect()
    }

    /// Maximum number of running workers over all pools; at most [`settings::MAX_WORKERS`].
    pub fn max_workers(&self) -> usize {
        self.settings().most_workers()
    }

    /// How many workers are likely to run at once, for which memory is set aside: of all that start on demand it is one,
    /// since most of them sleep. What more of them need is ordinary memory, which is given back.
    pub fn usual_workers(&self) -> usize {
        let (asleep, awake): (Vec<_>, Vec<_>) = self.pools.iter().partition(|pool| pool.core.start == Start::OnDemand);
        // One that clients share is larger than `instances` only while all its workers are busy.
        let usual = |pool: &PoolConfig| match pool.core.assignment {
            Assignment::Dedicated => pool.core.max_instances,
            Assignment::RoundRobin | Assignment::Client => pool.core.instances,
        };
        let most = |pools: &[&PoolConfig]| pools.iter().map(|pool| usual(pool)).sum::<usize>();
        most(&awake) + most(&asleep).min(1)
    }

    /// Warnings about listeners that accept clients from any other machine: they are neither authenticated nor
    /// encrypted. An admin listener that other machines can reach is included.
    pub fn open_listeners(&self) -> Vec<String> {
        let asks_for_token = |listener: &Listener| listener.web.as_ref().is_some_and(|web| web.access.tokens.is_some());
        let is_open = |listener: &&Listener| match &listener.listen {
            Listen::Tcp { host, .. } => {
                listener.entry.allow.is_none() && !is_loopback(host) && !asks_for_token(listener)
            }
            Listen::Stdio | Listen::Unix { .. } => false,
        };
        let warning = |listener: &Listener| {
            format!(
                "{} accepts clients from everywhere; restrict it with listeners[].allow, or write \"allow\": \
                 [\"0.0.0.0/0\", \"::/0\"] if a firewall sees to that",
                listener.address()
            )
        };
        let mut warnings: Vec<String> = self.listeners.iter().filter(is_open).map(warning).collect();
        if let Some(Listen::Tcp { host, port }) = self.admin.as_ref().map(|admin| &admin.listen)
            && !is_loopback(host)
        {
            warnings.push(format!(
                "the admin listener {} shows everyone who can reach it the names of sessions and addresses of clients; \
                 let a firewall keep out all but your monitoring, or write 127.0.0.1 or the path of a Unix socket",
                Address::Tcp { host: host.clone(), port: *port }
            ));
        }
        warnings
    }

    /// A one-line summary, for `stdio_bus check` and the log.
    pub fn summary(&self) -> String {
        let pools: Vec<String> = self
            .pools
            .iter()
            .map(|pool| {
                let settings::Pool { id, instances, max_instances, .. } = &pool.core;
                let most = if max_instances > instances { format!(" to {max_instances}") } else { String::new() };
                let start = if pool.core.start == settings::Start::OnDemand { "on demand " } else { "" };
                format!("{id} ({start}{instances}{most} × {})", pool.command)
            })
            .collect();
        let listeners: Vec<String> = self.listeners.iter().map(Listener::address).collect();
        let listeners = if listeners.is_empty() { "from the command line".to_owned() } else { listeners.join(", ") };
        let admin = self.admin.as_ref().map_or_else(String::new, |admin| format!("; admin: {}", admin.listen));
        format!("{}: pools: {}; listeners: {listeners}{admin}", self.origin, pools.join(", "))
    }
}

/// Whether two listeners would conflict. Port 0 never does, since the kernel chooses another each time.
fn same_place(one: &Listen, other: &Listen) -> bool {
    match (one, other) {
        (Listen::Stdio, Listen::Stdio) => true,
        (Listen::Tcp { host, port }, Listen::Tcp { host: other_host, port: other_port }) => {
            *port != 0 && port == other_port && host == other_host
        }
        (Listen::Unix { path, .. }, Listen::Unix { path: other_path, .. }) => path == other_path,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
