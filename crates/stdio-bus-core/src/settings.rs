//! The settings of the core: limits, pools, listeners and routing choices. The configuration file is one source
//! (`crate::config`), the simulator another.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::networks::Network;
use crate::index::{ListenerId, PoolId};
use crate::origin::{Names, is_in_group};

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
/// Workers that may exist at once over all pools: our own bound, because of their descriptors.
pub const MAX_WORKERS: usize = 1024;

/// Everything the core needs to know before the first event.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Resource limits (spec 8).
    pub limits: Limits,
    /// Worker pools; at least one.
    pub pools: Vec<Pool>,
    /// One entry per listener.
    pub listeners: Vec<Listener>,
    /// Routing choices that the spec leaves open.
    pub routing: Routing,
    /// Clients that may be connected at once: at most [`MAX_CONNECTIONS`].
    pub most_clients: usize,
}

impl Settings {
    /// The listener at this place, if there is one.
    pub(crate) fn listener(&self, listener: ListenerId) -> Option<&Listener> {
        self.listeners.get(listener.index())
    }

    /// The places of the pools, also of those that are gone.
    pub fn places_of_pools(&self) -> impl Iterator<Item = PoolId> + use<> {
        (0..self.pools.len()).map(PoolId::at)
    }

    /// The pools that have workers for clients of both eras: those that an MCP listener offers, but for personal ones.
    pub fn pools_of_both_eras(&self) -> Vec<PoolId> {
        let offering = |listener: &&Listener| listener.mcp && !listener.is_gone;
        let is_offered = |pool: &PoolId| self.listeners.iter().filter(offering).any(|listener| listener.knows(*pool));
        let serves = |pool: &PoolId| !self.pools[*pool].is_gone && !self.pools[*pool].personal;
        self.places_of_pools().filter(serves).filter(is_offered).collect()
    }

    /// What happens if a worker of this pool writes what is no message. Where it does not say, it is what its clients
    /// expect: those of an MCP listener over HTTP know servers that print a banner to stdout.
    pub fn on_bad_output(&self, pool: impl Into<PoolId>) -> BadOutput {
        let pool = pool.into();
        let Some(settings) = self.pools.get(pool.index()) else { return BadOutput::Restart };
        settings.on_bad_output.unwrap_or_else(|| {
            let knows = |listener: &&Listener| !listener.is_gone && listener.knows(pool);
            let mut offering = self.listeners.iter().filter(knows).peekable();
            match offering.peek().is_some() && offering.all(|listener| listener.mcp) {
                true => BadOutput::Skip,
                false => BadOutput::Restart,
            }
        })
    }

    /// Maximum number of workers over all pools.
    pub fn most_workers(&self) -> usize {
        let twice = self.pools_of_both_eras();
        let pools = self.pools.iter().chain(twice.iter().map(|pool| &self.pools[*pool]));
        pools.map(|pool| pool.max_instances).sum()
    }
}

/// The limits of spec section 8.1, and our own.
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
    /// How long a shutdown keeps serving while balancers learn that the daemon is not ready.
    pub lame_duck: Duration,
    /// How long a shutdown lets pending requests finish before workers are asked to stop.
    pub quiesce: Duration,
    /// How long a client without pending requests is silent before a shutdown closes it. Not in the configuration.
    pub drain_grace: Duration,
    /// How long a message for a pool whose workers have just ended may wait for the next one. Not in the configuration.
    pub hold: Duration,
    /// A session that is unused for this long is forgotten; none if never.
    pub session_idle: Option<Duration>,
    /// A session of an MCP listener that had no connection for this long is ended, if that is sooner. The listener does
    /// it.
    pub session_detached: Option<Duration>,
    /// How long a worker that is replaced may take for its requests and sessions.
    pub replace_timeout: Duration,
    /// How long a worker may say nothing while it owes answers before it is unresponsive, where its pool does not say; zero for
    /// no limit.
    pub worker_silent: Duration,
    /// Bytes of memory for unfinished lines, queues and held lines of all connections together.
    pub max_memory: usize,
    /// MiB that the processes of all workers may hold together before pools that start on demand fall asleep when they are
    /// idle; none for no limit.
    pub max_workers_memory: Option<u64>,
}

/// A worker's line may be this many times as long as a client's: a worker that echoes its input may have wrapped it, or
/// escaped its letters, which makes them three times as long at most.
pub const WRAPPED_LINE: usize = 4;
/// No line is longer, since positions in it are 32-bit numbers.
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
            session_detached: None,
            replace_timeout: Duration::from_secs(3600),
            worker_silent: Duration::from_secs(60),
            max_memory: 256 << 20,
            max_workers_memory: None,
        }
    }
}

/// A pool of equal workers.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// The pool's unique `id`.
    pub id: String,
    /// Number of workers to keep running; with [`Assignment::Dedicated`] the warm spares.
    pub instances: usize,
    /// Maximum number of workers.
    pub max_instances: usize,
    /// Where clients share workers: while each of them owes so many answers, another one is started. 0 is as 1.
    pub concurrency: usize,
    /// How messages without a session choose a worker.
    pub assignment: Assignment,
    /// Each worker is started for one client, with what is that client's own ([`Effect::Spawn`] names it), and serves no other
    /// before or after. Such a pool is [`Assignment::Dedicated`] and has no `instances`, and serves no clients of MCP 2026-07-28,
    /// whose requests belong together by nothing.
    ///
    /// [`Effect::Spawn`]: super::port::Effect::Spawn
    pub personal: bool,
    /// When its workers are started.
    pub start: Start,
    /// How long workers beyond `instances` are idle before they are stopped, and all of a pool that starts on demand; none for
    /// never.
    pub idle_stop: Option<Duration>,
    /// How long a worker of a pool that starts on demand may owe its first answer and have said nothing yet, if that is
    /// limited.
    pub start_timeout: Option<Duration>,
    /// Whether workers are notified with `session/cancel` when a client leaves with a request pending.
    pub cancel_on_disconnect: bool,
    /// Time limit for the answer to a request, if any.
    pub request_timeout: Option<Duration>,
    /// How long a worker may say nothing about a request, if that is limited.
    pub idle_timeout: Option<Duration>,
    /// How long a worker may say nothing while it owes answers before it is unresponsive: zero for no limit, none for that of
    /// [`Limits`].
    pub worker_silent: Option<Duration>,
    /// How its workers are checked while they are silent and owe answers, if they are.
    pub check: Option<Check>,
    /// Methods that clients may not use on its workers, decoded.
    pub deny_methods: Vec<String>,
    /// Tools of MCP that they may call.
    pub tools: ToolRules,
    /// A worker of about this age is replaced, if limited.
    pub max_age: Option<Duration>,
    /// A worker with about this many requests is replaced, if limited.
    pub max_requests: Option<u32>,
    /// What happens if a worker writes what is no message; none for the default ([`Settings::on_bad_output`]).
    pub on_bad_output: Option<BadOutput>,
    /// The number of its command, counted by the caller: workers of another are replaced ([`Bus::reload`]).
    ///
    /// [`Bus::reload`]: super::Bus::reload
    pub generation: u32,
    /// Removed from the configuration; it is kept for the clients that still use it.
    pub is_gone: bool,
}

/// Which tools clients may call (`tools/call` of MCP). A pattern is a name, or its beginning and a `*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolRules {
    /// Only these, if there are any such patterns: none is all tools.
    pub allow: Option<Vec<String>>,
    /// None of these, whatever is allowed.
    pub deny: Vec<String>,
}

impl ToolRules {
    /// Whether there is any.
    pub(super) fn are_set(&self) -> bool {
        self.allow.is_some() || !self.deny.is_empty()
    }

    /// The rule by which clients may not call this tool: a pattern of `deny`, or that `allow` has none for it.
    pub(super) fn denies(&self, tool: &[u8]) -> Option<ToolRule<'_>> {
        let matches = |pattern: &&String| match pattern.strip_suffix('*') {
            Some(begin) => tool.starts_with(begin.as_bytes()),
            None => tool == pattern.as_bytes(),
        };
        let denied = self.deny.iter().find(matches).map(|pattern| ToolRule::Deny(pattern));
        let is_missing = || self.allow.as_ref().is_some_and(|allow| !allow.iter().any(|pattern| matches(&pattern)));
        denied.or_else(|| is_missing().then_some(ToolRule::NotAllowed))
    }
}

/// Why a tool is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolRule<'a> {
    /// By this pattern.
    Deny(&'a str),
    /// It is none of those that are allowed.
    NotAllowed,
}

impl Pool {
    /// Whether clients may not use everything that its workers can do.
    pub(super) fn denies_anything(&self) -> bool {
        !self.deny_methods.is_empty() || self.tools.are_set()
    }

    /// Whether it may be asleep.
    pub(super) fn may_sleep(&self) -> bool {
        self.start == Start::OnDemand
    }

    /// Whether it lends its workers to clients of this era for the time of a request.
    pub(super) fn lends(&self, era: Era) -> bool {
        era == Era::Modern && self.assignment == Assignment::Dedicated && !self.personal
    }

    /// Whether it starts more workers while those that clients share are busy.
    pub(super) fn grows(&self) -> bool {
        self.assignment != Assignment::Dedicated && self.max_instances > self.instances
    }

    /// How many slots it has for them. Workers that are lent, or started while others are busy, have one each, whether they
    /// are kept or not.
    pub(super) fn slots(&self, era: Era) -> usize {
        if self.lends(era) || self.grows() { self.max_instances } else { self.instances }
    }

    /// In how many of them workers take turns, as long as it has not grown.
    pub(super) fn open_slots(&self, era: Era) -> usize {
        if self.grows() { self.instances } else { self.slots(era) }
    }
}

/// How a silent worker that owes answers is checked. After two checks in a row without the expected answer it is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// How long it is silent before each of them. Longer than zero.
    pub every: Duration,
    /// The request that it is sent: a JSON object in one line that begins with its brace, has at least one member, and no
    /// `id`. None for that of MCP: `ping`, or `server/discover` for clients of 2026-07-28.
    pub send: Option<String>,
    /// What the line with its answer has to contain; none if any answer will do.
    pub expects: Option<String>,
}

/// What happens if a worker writes a line that is no message, or is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadOutput {
    /// The worker is restarted (spec 5.3, 7.3.2).
    Restart,
    /// The line is passed over.
    Skip,
}

/// When the workers of a pool are started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// With the daemon.
    #[default]
    AtOnce,
    /// When the first line for them arrives: until then the pool is asleep, and again when it was idle for long enough.
    OnDemand,
}

/// How a message without a known session chooses its worker (decision 6). Of several pools the last one of these holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Assignment {
    /// Each message to the next running worker (spec 6.1.1, 6.1.3).
    #[default]
    RoundRobin,
    /// All messages of one connection to one worker.
    Client,
    /// A worker of its own for each connection, which ends with it.
    Dedicated,
}

/// A listener for clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listener {
    /// The pool that its clients use, unless a message names another; none means all pools.
    pub pool: Option<PoolId>,
    /// The one client of `--stdio`: its end of file starts the drain.
    pub stdio: bool,
    /// The pools that a message of its clients may name; none means all.
    pub pools: Option<Vec<PoolId>>,
    /// How many connections it takes at once, in total and per source.
    pub max_connections: MaxConnections,
    /// How long a client without sessions may be idle.
    pub idle_timeout: Option<Duration>,
    /// Which clients are allowed.
    pub entry: Entry,
    /// It is closed while no worker of its pools runs.
    pub closes_when_not_ready: bool,
    /// It is an MCP listener over HTTP: its pools have workers for clients of both eras.
    pub mcp: bool,
    /// What some of its clients may not use, beside what their pools deny.
    pub rules: Vec<Rules>,
    /// Removed from the configuration; it is kept for the clients that came through it.
    pub is_gone: bool,
}

/// What some clients of a listener may not use, of whatever pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The clients.
    pub whom: RuleScope,
    /// Methods that they may not use, decoded.
    pub deny_methods: Vec<String>,
    /// Tools of MCP that they may call.
    pub tools: ToolRules,
}

/// Clients that rules are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleScope {
    /// Those with this verified name, whoever vouches for it and whatever other name they have: a rule takes away only.
    Name(String),
    /// Those in this group; [`EVERYBODY`](super::origin::EVERYBODY) is all of the listener.
    Group(String),
}

impl Rules {
    /// Whether they deny anything.
    pub(super) fn deny_anything(&self) -> bool {
        !self.deny_methods.is_empty() || self.tools.are_set()
    }
}

impl Listener {
    /// The places of the rules that deny something to clients with one of these verified names, in these groups.
    pub(crate) fn rules_for(&self, names: &Names, groups: &str) -> Vec<usize> {
        let verified = [names.token.as_deref(), names.common_name.as_deref(), names.user.as_deref()];
        let are_for = |(_, rules): &(usize, &Rules)| match &rules.whom {
            RuleScope::Name(name) => verified.contains(&Some(name)),
            RuleScope::Group(group) => is_in_group(groups, group),
        };
        let deny = |(_, rules): &(usize, &Rules)| rules.deny_anything();
        self.rules.iter().enumerate().filter(deny).filter(are_for).map(|(at, _)| at).collect()
    }

    /// Whether its clients use this pool, or may name it.
    fn knows(&self, pool: PoolId) -> bool {
        self.pools.as_ref().is_none_or(|pools| pools.contains(&pool)) || self.pool == Some(pool)
    }
}

/// The era of a client of an MCP listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Era {
    /// A revision before 2026-07-28: it begins with `initialize`.
    #[default]
    Legacy,
    /// 2026-07-28 or later: each request is self-contained.
    Modern,
}

impl Era {
    /// Both of them, the older one first.
    pub const BOTH: [Self; 2] = [Self::Legacy, Self::Modern];

    pub(crate) fn other(self) -> Self {
        match self {
            Self::Legacy => Self::Modern,
            Self::Modern => Self::Legacy,
        }
    }
}

/// Which clients a listener allows, and which proxies it trusts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Networks that clients may come from; none means all.
    pub allow: Option<Vec<Network>>,
    /// Users whose processes may connect to a Unix socket; none means all that the file's permissions allow.
    pub peer_uids: Option<Vec<u32>>,
    /// Proxies that name their clients with a PROXY header. A connection of theirs without one is closed.
    pub proxy: Option<Proxies>,
}

/// The trusted proxies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proxies {
    /// Every process that may connect to the Unix socket.
    Unix,
    /// Every peer from these networks.
    Networks(Vec<Network>),
}

/// How many connections a listener takes; further ones are rejected with an error that says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaxConnections {
    /// In total.
    pub total: Option<usize>,
    /// From one source (see [`super::port::Source`]).
    pub per_source: Option<usize>,
}

/// Choices that the spec leaves open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    /// What happens when one receiver would see the same id twice at the same time.
    pub id_collision: IdCollision,
    /// Which clients may use a session.
    pub session_access: SessionAccess,
}

/// What happens when one receiver would see the same id twice at the same time (decision 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdCollision {
    /// The id is replaced on the way in and restored on the way back.
    #[default]
    Translate,
    /// On shared workers, every id is replaced: for operators who trust no worker.
    Always,
}

/// Which clients may use a session (decision 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionAccess {
    /// Only its owner.
    #[default]
    Owner,
    /// Every client that names it: the literal spec 6.1.2.
    Shared,
}
