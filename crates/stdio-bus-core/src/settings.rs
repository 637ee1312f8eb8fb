//! What the core is told at the start: limits, pools, listeners and routing choices. The configuration file is one
//! way to fill it (`crate::config`), the simulator is another.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::networks::Network;

/// Connections that may be open at once (spec 8.2, `MAX_CONNECTIONS`).
pub const MAX_CONNECTIONS: usize = 1024;
/// Sessions that may exist at once (spec 8.2, `STDIO_BUS_MAX_SESSIONS`).
pub const MAX_SESSIONS: usize = 1024;
/// Requests that may be unanswered at once, in each direction (spec 8.2, `STDIO_BUS_MAX_PENDING_REQUESTS`).
pub const MAX_PENDING_REQUESTS: usize = 4096;
/// Longest sessionId in bytes, decoded (spec 8.2, `STDIO_BUS_MAX_SESSION_ID_LEN`).
pub const MAX_SESSION_ID_LEN: usize = 256;
/// Longest request id in bytes, decoded (spec 8.2, `STDIO_BUS_MAX_REQUEST_ID_LEN`).
pub const MAX_REQUEST_ID_LEN: usize = 128;
/// Workers that may exist at once over all pools: a bound of ours, for the descriptors they need.
pub const MAX_WORKERS: usize = 1024;

/// Everything the core needs to know before the first event.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Resource limits (spec 8).
    pub limits: Limits,
    /// Worker pools; at least one.
    pub pools: Vec<Pool>,
    /// One entry for each place where clients come from.
    pub listeners: Vec<Listener>,
    /// How messages find their way where the spec leaves it open.
    pub routing: Routing,
    /// Clients that may be there at once: at most [`MAX_CONNECTIONS`].
    pub most_clients: usize,
}

impl Settings {
    /// The pools, by their indexes, that have workers for clients of both eras: those that a door for MCP offers.
    pub fn pools_of_both_eras(&self) -> Vec<usize> {
        let doors = || self.listeners.iter().filter(|listener| listener.mcp && !listener.is_gone);
        let offers = |pool: &usize| {
            doors().any(|door| door.pools.as_ref().is_none_or(|pools| pools.contains(pool)) || door.pool == Some(*pool))
        };
        (0..self.pools.len()).filter(|pool| !self.pools[*pool].is_gone).filter(offers).collect()
    }

    /// Workers that there may be at once, over all pools.
    pub fn most_workers(&self) -> usize {
        let twice = self.pools_of_both_eras();
        let pools = self.pools.iter().chain(twice.iter().map(|pool| &self.pools[*pool]));
        pools.map(|pool| pool.max_instances).sum()
    }
}

/// The limits of spec section 8.1, and ours beside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest line of a client in bytes, without its newline.
    pub max_input_buffer: usize,
    /// Bytes queued for one connection above which its sources are paused.
    pub max_output_queue: usize,
    /// Restarts of one worker within `restart_window` before it is given up.
    pub max_restarts: u32,
    /// The window in which restarts are counted.
    pub restart_window: Duration,
    /// How long a drain waits for workers and unsent answers.
    pub drain_timeout: Duration,
    /// How long an output may stay full before its connection is closed.
    pub backpressure_timeout: Duration,
    /// How long a shutdown goes on as before, while balancers learn that we are not ready.
    pub lame_duck: Duration,
    /// How long a shutdown lets pending requests finish before workers are told to stop.
    pub quiesce: Duration,
    /// How long a client without pending requests is silent before a shutdown closes it. Not in the configuration.
    pub drain_grace: Duration,
    /// How long a message for a pool whose workers have just ended may wait for the next one. Not in the configuration.
    pub hold: Duration,
    /// A session that nobody has used for so long is forgotten; none if never.
    pub session_idle: Option<Duration>,
    /// Requests that a client may have unanswered before the others go first (`flow/pace.rs`). Not in the configuration.
    pub requests_ahead: usize,
    /// How long a worker that is replaced may take for the requests and sessions that it has.
    pub replace_timeout: Duration,
    /// Bytes of memory for unfinished lines, queues and held lines of all connections together.
    pub max_memory: usize,
}

/// A worker's line may be so many times as long as a client's: an honest worker that sends back what it got may have
/// wrapped it, or written its letters as escapes, which are three times as long at most.
pub const WRAPPED_LINE: usize = 4;
/// No line is longer than this, since places in it are numbers of 32 bits.
const LONGEST_LINE: usize = 2 << 30;

impl Limits {
    /// Longest line of a worker in bytes, without its newline.
    pub fn max_worker_line(&self) -> usize {
        self.max_input_buffer.saturating_mul(WRAPPED_LINE).min(LONGEST_LINE)
    }
}

impl Default for Limits {
    /// The defaults of spec section 8.1.
    fn default() -> Self {
        Self {
            max_input_buffer: 1_048_576,
            max_output_queue: 4_194_304,
            max_restarts: 5,
            restart_window: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(30),
            backpressure_timeout: Duration::from_secs(60),
            lame_duck: Duration::ZERO,
            quiesce: Duration::from_secs(45),
            drain_grace: Duration::from_millis(250),
            hold: Duration::from_secs(1),
            session_idle: None,
            requests_ahead: 128,
            replace_timeout: Duration::from_secs(3600),
            max_memory: 256 << 20,
        }
    }
}

/// A pool of equal workers.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// The pool's `id`, unique.
    pub id: String,
    /// Workers to keep running; with [`Assignment::Dedicated`] the warm spares.
    pub instances: usize,
    /// Most workers at once; only [`Assignment::Dedicated`] goes beyond `instances`.
    pub max_instances: usize,
    /// How messages without a session choose a worker.
    pub assignment: Assignment,
    /// Whether workers are told with `session/cancel` when a client leaves with a request pending.
    pub cancel_on_disconnect: bool,
    /// How long a request may wait for its answer, if bounded.
    pub request_timeout: Option<Duration>,
    /// Methods that clients may not use on its workers, decoded.
    pub deny_methods: Vec<String>,
    /// A worker of about this age is replaced, if there is such an age.
    pub max_age: Option<Duration>,
    /// A worker that has got about so many requests is replaced, if that is bounded.
    pub max_requests: Option<u32>,
    /// Which command it has, counted by who configures it: workers of another one are replaced in turn ([`Bus::reload`]).
    ///
    /// [`Bus::reload`]: super::Bus::reload
    pub generation: u32,
    /// The configuration has it no more; it is there for those that still use it.
    pub is_gone: bool,
}

/// How a message without a known session chooses its worker (decision 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Assignment {
    /// Each message to the next running worker (spec 6.1.1, 6.1.3).
    #[default]
    RoundRobin,
    /// All messages of one connection to one worker.
    Client,
    /// A worker of its own for each connection, which ends with it.
    Dedicated,
}

/// A place where clients come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listener {
    /// Index of the pool its clients use, unless a message names another; none means all pools.
    pub pool: Option<usize>,
    /// The one client of `--stdio`: its end of file starts the drain.
    pub stdio: bool,
    /// Indexes of the pools that a message of its clients may name; none means all.
    pub pools: Option<Vec<usize>>,
    /// Connections that it takes at once, and of one source.
    pub max_connections: MaxConnections,
    /// How long a client without sessions may do nothing.
    pub idle_timeout: Option<Duration>,
    /// Who may come in.
    pub entry: Entry,
    /// It is closed while no worker of its pools runs.
    pub closes_when_not_ready: bool,
    /// It is a door for MCP over HTTP: its pools have workers for clients of both eras.
    pub mcp: bool,
    /// The configuration has it no more; it is there for the clients that have come through it.
    pub is_gone: bool,
}

/// What a client of a door for MCP speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Era {
    /// A revision before 2026-07-28: it begins with `initialize`.
    #[default]
    Legacy,
    /// 2026-07-28 or later: each request says what it needs.
    Modern,
}

/// Who may come in through a listener, and who is believed to bring others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Networks that clients may come from; none means all.
    pub allow: Option<Vec<Network>>,
    /// Users whose processes may connect to a Unix socket; none means all that its file lets.
    pub peer_uids: Option<Vec<u32>>,
    /// Proxies that say with a PROXY header whom they bring. A connection of theirs without one is closed.
    pub proxy: Option<Proxies>,
}

/// Who is a proxy that is believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proxies {
    /// Every process that may connect to the Unix socket.
    Unix,
    /// Who comes from these networks.
    Networks(Vec<Network>),
}

/// How many connections a listener takes; the rest is refused with an error that says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaxConnections {
    /// All together.
    pub total: Option<usize>,
    /// From one source (see [`super::port::Source`]).
    pub per_source: Option<usize>,
}

/// Choices that the spec leaves open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    /// What happens when one receiver would see one id twice at the same time.
    pub id_collision: IdCollision,
    /// Who may use a session.
    pub session_access: SessionAccess,
}

/// What happens when one receiver would see one id twice at the same time (decision 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdCollision {
    /// The id is replaced on the way in and restored on the way back.
    #[default]
    Translate,
    /// On workers that several clients share, every id is replaced: for those who trust no worker.
    Always,
}

/// Who may use a session (decision 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionAccess {
    /// Its owner alone.
    #[default]
    Owner,
    /// Every client that names it: the literal spec 6.1.2.
    Shared,
}
