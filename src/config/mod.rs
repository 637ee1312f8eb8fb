//! The configuration: what the daemon is told by its file, its `--config-fd` or, without either, by itself.
//!
//! A [`Config`] that exists is valid: every range is checked, every name resolved, and of the commands those that were not
//! found are told in [`Config::missing`]. Loading never starts, binds or changes anything, and never stops at the first
//! problem: a [`ConfigError`] has them all, each with its line, column and path. `docs/configuration.md` lists every key,
//! `config/schema.json` describes them to editors.
//!
//! Reading order: `table` (what there is), `keys` (how that is asked), `document` (JSON with places), `read`, `listeners`
//! and `values` (what it means), `mcp` (what a door for MCP asks of pools), `node` (what it is called), `command` (can it
//! run), `doubt` (is it meant so), `one_pool` (a command on the command line), `confine`, `rights` and `users` (who workers
//! are, who has which number), `plan` (what it changes in a running daemon).

pub(crate) mod command;
mod confine;
mod document;
mod doubt;
mod keys;
mod listeners;
mod load;
mod mcp;
mod node;
mod one_pool;
pub(crate) mod plan;
mod read;
mod rights;
mod table;
mod users;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::address::{Address, is_loopback};
use crate::bus::settings::{self, Assignment, Entry, Limits, MaxConnections, Proxies, Routing, Settings};
use crate::tokens::{self, Tokens};

pub use crate::address::WebProtocol;
pub use crate::bus::report::Level as LogLevel;
pub use document::Problem;
pub(crate) use keys::nearest;
pub(crate) use rights::may_change_users;
pub use rights::{Identity, Limit, Rights};

/// Largest configuration in bytes: far above any real one, far below what would hurt.
pub const MAX_CONFIG_BYTES: usize = 4 << 20;

/// Most workers at once in a `dedicated` pool that does not say.
pub const DEFAULT_DEDICATED_WORKERS: usize = 64;

/// What messages call a configuration that is a command on the command line.
const COMMAND_LINE: &str = "command line";

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it came from, in the words of a message: the file's path, `fd 3`, or `built-in configuration`.
    pub origin: String,
    /// What this daemon is called among others: the begin of the ids that it gives out.
    pub node: Arc<str>,
    /// Worker pools; at least one.
    pub pools: Vec<Pool>,
    /// Where clients come from. After loading these are the file's; [`Config::listen`] adds the command line's.
    pub listeners: Vec<Listener>,
    /// Resource limits.
    pub limits: Limits,
    /// How messages find their way where the spec leaves it open.
    pub routing: Routing,
    /// Where operators and monitors come in, if anywhere; [`Config::administer`] adds the command line's.
    pub admin: Option<Admin>,
    /// What is logged and how.
    pub log: Log,
    /// The mode that a `transport` section asked for; the command line's flags come before it.
    wanted_mode: Option<Mode>,
    /// Commands that cannot be run, of some of the pools but not of all. These pools have no workers until that is mended.
    pub missing: Vec<Problem>,
    /// What only a daemon with more privileges can do.
    unprivileged: Vec<Problem>,
    /// What it was read from, to tell how another one differs.
    text: Text,
}

/// The text of a configuration. It is never shown as a whole, since it may have secrets.
#[derive(Clone)]
struct Text(Arc<str>);

impl fmt::Debug for Text {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Text(…)")
    }
}

/// A pool: how to start its workers, and what the core has to know of it.
#[derive(Clone, Debug)]
pub struct Pool {
    /// What the core is told.
    pub core: settings::Pool,
    /// Its assignment was said, and is not what holds where nothing is.
    pub says_assignment: bool,
    /// The command as it was written: the worker's `argv[0]`.
    pub command: String,
    /// The absolute path of the program to execute; symbolic links are not resolved.
    pub program: PathBuf,
    /// The arguments after `argv[0]`.
    pub args: Vec<String>,
    /// Variables that are set over the daemon's own environment.
    pub env: BTreeMap<String, String>,
    /// The absolute working directory, if it is not the daemon's.
    pub cwd: Option<PathBuf>,
    /// Who the workers are, and what they may.
    pub rights: Rights,
    /// MiB of memory that the processes of a worker may hold before it is replaced.
    pub recycle_memory: Option<u64>,
}

/// What the command line says of its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnePool {
    /// The command and its arguments; at least one word.
    pub command: Vec<String>,
    /// Workers to keep running; one if it does not say.
    pub instances: Option<u32>,
    /// How messages choose one.
    pub assignment: Option<Assignment>,
}

/// A place where clients come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// What to listen on.
    pub listen: Listen,
    /// Index into [`Config::pools`] of the pool that its clients use, unless a message names another; none means all.
    pub pool: Option<usize>,
    /// Indexes into [`Config::pools`] of the pools that a message of its clients may name; none means all.
    pub pools: Option<Vec<usize>>,
    /// Connections that it takes at once, and of one source.
    pub max_connections: MaxConnections,
    /// How long its clients without sessions may do nothing.
    pub idle_timeout: Option<Duration>,
    /// Who may come in.
    pub entry: Entry,
    /// It is closed while no worker of its pools runs.
    pub closes_when_not_ready: bool,
    /// Its clients come over HTTP, and on these terms; the others speak NDJSON.
    pub web: Option<Web>,
    /// The configuration has it no more; it is there for the clients that have come through it.
    pub is_gone: bool,
}

/// On what terms the clients of a listener come over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Web {
    /// What they speak.
    pub protocol: WebProtocol,
    /// Where it is to be asked for; begins with a slash. Of MCP, each pool that its clients may use stands below it.
    pub path: String,
    /// The origins of pages that may ask for it (RFC 6454), in small letters; `*` is all of them.
    pub origins: Vec<String>,
    /// Names that it is asked for by, in small letters and without a port: a page of one of them is its own.
    pub hosts: Vec<String>,
    /// Where the tokens of its clients stand; none lets everybody in.
    pub tokens_file: Option<PathBuf>,
    /// Those that stood in it.
    pub tokens: Tokens,
    /// Who is believed in what `X-Forwarded-For` and `Forwarded` say.
    pub trusted_proxies: Option<Proxies>,
    /// In each period of so long a WebSocket has a moment at which it is pinged if it is silent; none never pings.
    pub ping: Option<Duration>,
    /// How long it may take to answer that. Not in the configuration.
    pub pong_timeout: Duration,
}

impl Default for Web {
    fn default() -> Self {
        Self::of(WebProtocol::default())
    }
}

impl Listener {
    /// One that keeps nothing from its clients.
    pub fn open(listen: Listen) -> Self {
        Self {
            listen,
            pool: None,
            pools: None,
            max_connections: MaxConnections::default(),
            idle_timeout: None,
            entry: Entry::default(),
            closes_when_not_ready: false,
            web: None,
            is_gone: false,
        }
    }

    /// Where it listens, as people write it.
    pub fn address(&self) -> String {
        match &self.web {
            Some(web) => web.address(&self.listen.to_string()),
            None => self.listen.to_string(),
        }
    }

    /// Indexes of the pools, out of so many, that a message of its clients may name.
    pub fn offered(&self, pools: usize) -> Vec<usize> {
        self.pools.clone().unwrap_or_else(|| (0..pools).collect())
    }

    /// Whether it is a door for MCP over HTTP.
    pub fn is_mcp(&self) -> bool {
        self.web.as_ref().is_some_and(|web| web.protocol == WebProtocol::Mcp)
    }
}

impl Web {
    /// What holds for a protocol where nobody says otherwise.
    pub fn of(protocol: WebProtocol) -> Self {
        Self {
            protocol,
            path: protocol.default_path().to_owned(),
            origins: Vec::new(),
            hosts: Vec::new(),
            tokens_file: None,
            tokens: Tokens::default(),
            trusted_proxies: None,
            ping: Some(Duration::from_secs(30)),
            pong_timeout: Duration::from_secs(10),
        }
    }

    /// The address of a socket, `tcp://HOST:PORT` or `unix:PATH`, as that of what is spoken there.
    pub fn address(&self, socket: &str) -> String {
        let (scheme, path) = (self.protocol.scheme(), &self.path);
        match (socket.strip_prefix("tcp://"), socket.strip_prefix("unix:")) {
            (Some(host), _) => format!("{scheme}://{host}{path}"),
            (_, Some(file)) => format!("{scheme}+unix:{file}:{path}"),
            _ => socket.to_owned(),
        }
    }
}

/// Where operators and monitors come in, over HTTP (`src/shell/admin`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// What to listen on; never [`Listen::Stdio`].
    pub listen: Listen,
    /// What lets an action through that comes over TCP.
    pub token: Option<Token>,
    /// Where that stands.
    pub token_file: Option<PathBuf>,
}

/// A secret that is presented as it stands. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl Token {
    /// The secret, without the white space around it.
    ///
    /// # Errors
    /// It is shorter than [`tokens::SHORTEST`].
    pub fn new(secret: &[u8]) -> Result<Self, String> {
        let (secret, least) = (secret.trim_ascii(), tokens::SHORTEST);
        match secret.len() {
            length if length < least => Err(format!("has {length} bytes, and {least} is the least")),
            _ => Ok(Self(secret.to_vec())),
        }
    }

    /// Whether this is it. How long that takes tells nothing but the length.
    pub fn is(&self, presented: &[u8]) -> bool {
        tokens::is_same(&self.0, presented)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(…)")
    }
}

/// What a listener listens on.
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
        /// Whom the socket file is given to.
        owner: Owner,
    },
}

/// Whom a file is given to (chown(2)): by default whoever makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The user's id; none leaves it as it is.
    pub user: Option<u32>,
    /// The group's id; none leaves it as it is.
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
    /// Permissions of a socket file that nobody asked to be wider: its owner alone.
    pub const DEFAULT_MODE: u32 = 0o600;
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

/// What is logged and how; the command line's flags come before the file, the file before the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The least important level that is written.
    pub level: LogLevel,
    /// How a line of the log looks.
    pub format: LogFormat,
    /// A line is written of each request of a client.
    pub requests: bool,
}

/// The levels of the log by their names.
pub(crate) const LEVELS: [(&str, LogLevel); 4] =
    [("debug", LogLevel::Debug), ("info", LogLevel::Info), ("warn", LogLevel::Warn), ("error", LogLevel::Error)];

/// How a line of the log looks.
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

/// Why there is no configuration. Each line of the message stands for itself.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// It could not be read at all.
    #[error("{origin}: {message}")]
    Unreadable {
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
        /// How the log was to look, as far as that could be read.
        format: LogFormat,
    },
    /// What it asks for does not fit to the command line.
    #[error("{origin}: {message}")]
    Unfit {
        /// The file or descriptor.
        origin: String,
        /// What is wrong and what to do.
        message: String,
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
    /// What runs without a configuration: two built-in echo workers, started from the daemon's own program file.
    pub fn embedded(program: &Path) -> Self {
        let core = settings::Pool {
            id: "echo".to_owned(),
            instances: 2,
            max_instances: 2,
            assignment: Assignment::default(),
            ..settings::Pool::default()
        };
        let pool = Pool {
            core,
            // Each of its workers answers as the other one does.
            says_assignment: true,
            command: program.display().to_string(),
            program: program.to_owned(),
            args: vec!["worker".to_owned(), "echo".to_owned()],
            env: BTreeMap::new(),
            cwd: None,
            rights: Rights::default(),
            recycle_memory: None,
        };
        Self {
            origin: "built-in configuration".to_owned(),
            node: node::of_host().into(),
            pools: vec![pool],
            listeners: Vec::new(),
            limits: Limits::default(),
            routing: Routing::default(),
            admin: None,
            log: Log::default(),
            wanted_mode: None,
            missing: Vec::new(),
            unprivileged: Vec::new(),
            text: Text(Arc::from("{}")),
        }
    }

    /// The same configuration, if every pool can be run.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with what cannot.
    pub fn strict(self) -> Result<Self, ConfigError> {
        let problems = self.missing.clone();
        self.without(problems)
    }

    /// The same configuration, if this process may do all that it asks for.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with what it may not.
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

    /// Adds the listeners that the command line asks for; without any, the file's listeners stand, and where there are
    /// none either it is stdio (spec 4.1.1). After this there is at least one listener and no two are the same.
    pub fn listen(&mut self, flags: &[Listener]) -> Result<(), ConfigError> {
        let origin = self.origin.clone();
        let unfit = |message: String| Err(ConfigError::Unfit { origin, message });
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

    /// Adds the admin listener that the command line asks for. It takes the place of the file's, whose permissions and
    /// token stay. After this it is none of the listeners.
    pub fn administer(&mut self, address: Option<Address>) -> Result<(), ConfigError> {
        if let Some(address) = address {
            let before = self.admin.take();
            let mode = match &before {
                Some(Admin { listen: Listen::Unix { mode, .. }, .. }) => *mode,
                _ => Listen::DEFAULT_MODE,
            };
            let (token, token_file) = before.map_or((None, None), |admin| (admin.token, admin.token_file));
            let listen = match address {
                Address::Unix { path } => Listen::Unix { path, mode, owner: Owner::default() },
                tcp => Listen::from(tcp),
            };
            self.admin = Some(Admin { listen, token, token_file });
        }
        match &self.admin {
            Some(admin) if self.listeners.iter().any(|known| same_place(&known.listen, &admin.listen)) => {
                let message =
                    format!("{} is a listener for clients already; the admin listener needs its own", admin.listen);
                Err(ConfigError::Unfit { origin: self.origin.clone(), message })
            }
            _ => Ok(()),
        }
    }

    /// What the core is told.
    pub fn settings(&self) -> Settings {
        let listener = |one: &Listener| settings::Listener {
            pool: one.pool,
            stdio: matches!(one.listen, Listen::Stdio),
            pools: one.pools.clone(),
            max_connections: one.max_connections,
            idle_timeout: one.idle_timeout,
            entry: one.entry.clone(),
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

    /// What is said of each listener whose clients' messages go round over the workers of several pools when they name
    /// none: seldom is that meant, for an agent answers what another one was asked.
    pub fn mixed_listeners(&self) -> Vec<String> {
        let is_shared = |pool: &usize| self.pools[*pool].core.assignment != Assignment::Dedicated;
        let mixes = |listener: &&Listener| {
            let pools = listener.offered(self.pools.len());
            // Each pool has a path of its own at a door for MCP.
            !listener.is_mcp() && listener.pool.is_none() && pools.iter().filter(|pool| is_shared(pool)).count() > 1
        };
        let tell = |listener: &Listener| {
            format!(
                "{}: a message that names no pool goes to the next worker of any pool; name one in listeners[].pool",
                listener.address()
            )
        };
        // Without any, the command line adds one.
        let from_command_line = self.listeners.is_empty().then(|| Listener::open(Listen::Stdio));
        self.listeners.iter().chain(&from_command_line).filter(mixes).map(tell).collect()
    }

    /// Workers that may run at once, over all pools; at most [`settings::MAX_WORKERS`].
    pub fn max_workers(&self) -> usize {
        self.settings().most_workers()
    }

    /// What is said of each listener that takes clients from other machines without being told from where: who they are
    /// is not asked, and what they say is not encrypted. An admin listener that other machines reach is named as well.
    pub fn open_listeners(&self) -> Vec<String> {
        let asks_for_token = |listener: &Listener| listener.web.as_ref().is_some_and(|web| web.tokens_file.is_some());
        let is_open = |listener: &&Listener| match &listener.listen {
            Listen::Tcp { host, .. } => {
                listener.entry.allow.is_none() && !is_loopback(host) && !asks_for_token(listener)
            }
            Listen::Stdio | Listen::Unix { .. } => false,
        };
        let tell = |listener: &Listener| {
            format!(
                "{} takes everybody who reaches it; name in listeners[].allow who may come, or write \"allow\": \
                 [\"0.0.0.0/0\", \"::/0\"] if a firewall sees to that",
                listener.address()
            )
        };
        let mut told: Vec<String> = self.listeners.iter().filter(is_open).map(tell).collect();
        if let Some(Listen::Tcp { host, port }) = self.admin.as_ref().map(|admin| &admin.listen)
            && !is_loopback(host)
        {
            told.push(format!(
                "the admin listener {} tells everybody who reaches it names of sessions and addresses of clients; \
                 let a firewall keep out all but your monitoring, or write 127.0.0.1 or the path of a Unix socket",
                Address::Tcp { host: host.clone(), port: *port }
            ));
        }
        told
    }

    /// One line that says what this is, for `stdio_bus check` and the log.
    pub fn summary(&self) -> String {
        let pools: Vec<String> = self
            .pools
            .iter()
            .map(|pool| {
                let settings::Pool { id, instances, max_instances, .. } = &pool.core;
                let most = if max_instances > instances { format!(" to {max_instances}") } else { String::new() };
                format!("{id} ({instances}{most} × {})", pool.command)
            })
            .collect();
        let listeners: Vec<String> = self.listeners.iter().map(Listener::address).collect();
        let listeners = if listeners.is_empty() { "from the command line".to_owned() } else { listeners.join(", ") };
        let admin = self.admin.as_ref().map_or_else(String::new, |admin| format!("; admin: {}", admin.listen));
        format!("{}: pools: {}; listeners: {listeners}{admin}", self.origin, pools.join(", "))
    }
}

/// Whether two listeners would meet. Port 0 never does, for the kernel chooses another each time.
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
