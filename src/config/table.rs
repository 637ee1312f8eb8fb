//! The settings, one row each: key, type and range, default, and description. The reader, the suggestions for misspelt
//! keys, `config/schema.json` and the tables of `docs/configuration.md` are derived from it.
//!
//! The limits of `stdio_bus_core::settings` repeat the defaults as values; a test compares them.

#![cfg_attr(not(test), expect(dead_code, reason = "schema and documentation are written by a test"))]

use crate::bus::settings::{MAX_CONNECTIONS, MAX_WORKERS};
use crate::kinds::KINDS;

/// The members of one object, or those of them that only some listeners have.
pub(super) struct Section {
    /// The title of its table in the documentation.
    pub name: &'static str,
    /// The object's path, as an operator would write it; empty at the top level.
    pub path: &'static str,
    pub settings: &'static [Setting],
}

/// A row.
#[derive(Clone, Copy)]
pub(super) struct Setting {
    pub key: &'static str,
    pub kind: ValueKind,
    pub left_out: DefaultValue,
    /// One sentence of description.
    pub says: &'static str,
}

/// The type and range of a value; in words where the reader has code for it.
#[derive(Clone, Copy)]
pub(super) enum ValueKind {
    Text(&'static str),
    Texts(&'static str),
    TextsByName,
    /// An array of strings, or an object of such arrays by name.
    TextsOrByName(&'static str),
    /// Whole numbers from the first to the second.
    Numbers(u64, u64),
    /// Strings, or the equivalent numbers.
    Users,
    Choice(&'static [&'static str]),
    Flag,
    Number(Unit, u64, u64),
    /// A number, or an object with the section of this key's path.
    NumberOrObject(u64, u64),
    Object,
    /// An object of objects by name, whose section is that of the path of `groups` beside it, with a star.
    ObjectsByName,
    Objects,
}

/// The unit of a number.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    One,
    Bytes,
    Seconds,
}

/// What applies if a setting is omitted.
#[derive(Clone, Copy)]
pub(super) enum DefaultValue {
    /// It must not be omitted.
    Required,
    /// The same as this JSON value.
    Value(&'static str),
    /// A description, if no value is equivalent.
    Words(&'static str),
}

use DefaultValue::{Required, Value, Words};
use Unit::{Bytes, One, Seconds};
use ValueKind::{
    Choice, Flag, Number, NumberOrObject, Numbers, Object, Objects, ObjectsByName, Text, Texts, TextsByName,
    TextsOrByName, Users,
};

const DAY: u64 = 24 * 60 * 60;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const fn row(key: &'static str, kind: ValueKind, left_out: DefaultValue, says: &'static str) -> Setting {
    Setting { key, kind, left_out, says }
}

const fn section(name: &'static str, path: &'static str, settings: &'static [Setting]) -> Section {
    Section { name, path, settings }
}

pub(super) const SETTINGS: [Section; 18] = [
    section("top level", "", TOP),
    section("pools[]", "pools[]", POOL),
    section("pools[].rlimits", "pools[].rlimits", RLIMITS),
    section("pools[].check", "pools[].check", CHECK),
    section("pools[].env_from", "pools[].env_from", ENV_FROM),
    section("limits", "limits", LIMITS),
    section("routing", "routing", ROUTING),
    section("listeners[]", "listeners[]", &LISTENER),
    section(WEB, "listeners[]", OF_WEB),
    section(PINGS, "listeners[]", OF_PINGS),
    section("listeners[].rules", "listeners[].rules", RULES),
    section("a rule", "listeners[].rules.groups.*", RULE),
    section("listeners[].identity", "listeners[].identity", IDENTITY),
    section("listeners[].oauth", "listeners[].oauth", OAUTH),
    section("listeners[].max_connections", "listeners[].max_connections", COUNTS),
    section("listeners[].proxy", "listeners[].proxy", PROXY),
    section("admin", "admin", ADMIN),
    section("log", "log", LOG),
];

/// The section of the settings for listeners with HTTP clients.
pub(super) const WEB: &str = "listeners[] over HTTP";
/// The section of the settings for listeners with WebSockets.
pub(super) const PINGS: &str = "listeners[] for WebSocket";

/// The members of the C daemon's own section, which is accepted where it asks for what this bus does.
pub(super) const TRANSPORT: [&str; 4] = ["mode", "framing", "protocol", "options"];

const TOP: &[Setting] = &[
    row("pools", Objects, Required, "Worker pools; all of them together have at most 1024 workers."),
    row("limits", Object, Words("see below"), "Limits on lines, queues, memory, restarts and time."),
    row("routing", Object, Words("see below"), "How request ids are replaced, and which clients may use a session."),
    row(
        "listeners",
        Objects,
        Value("[]"),
        "Addresses where clients connect, in addition to those of the command line.",
    ),
    row("admin", Object, Words("none"), "HTTP listener for status, metrics and the commands of operators."),
    row("log", Object, Words("see below"), "What the daemon logs, in which format and where."),
    row(
        "node",
        Text("1 to 32 letters, digits, `-`, `_`"),
        Words("the host's name"),
        "Name of this daemon, with which the ids of its sessions over HTTP begin.",
    ),
    row(
        "state",
        Text("a folder"),
        Words("none"),
        "Folder where the daemon keeps MCP sessions, and the owners of ACP sessions, across restarts.",
    ),
    row("transport", Object, Words("none"), "Section of the C daemon's configuration, accepted for compatibility."),
];

const POOL: &[Setting] = &[
    row(
        "id",
        Text("unique, 1 to 64 bytes"),
        Required,
        "Name of the pool, in logs and in the `pool` member of a message.",
    ),
    row("command", Text(""), Required, "Program to run: a name that is looked up in PATH, or a path."),
    row("args", Texts(""), Value("[]"), "Arguments of the program; no shell interprets them."),
    row(
        "instances",
        Number(One, 1, MAX_WORKERS as u64),
        Words("required, except with `env_from`"),
        "Number of workers to keep running; in a `dedicated` pool, of spares that wait for clients (with `on_demand`, workers that clients have count, too).",
    ),
    row(
        "env",
        TextsByName,
        Value("{}"),
        "Environment variables to set; `\"$file:PATH\"` and `\"$env:NAME\"` are read at each start of a worker, `${NAME}` is not replaced.",
    ),
    row("env_from", Object, Words("none"), "Environment variables that a `dedicated` worker gets from its own client."),
    row("cwd", Text("a directory"), Words("the daemon's"), "Working directory of the workers."),
    row(
        "user",
        Text("a name or a number"),
        Words("the daemon's"),
        "User that the workers run as; the daemon needs root's rights for this.",
    ),
    row("group", Text("a name or a number"), Words("that of `user`"), "Group that the workers run as."),
    row(
        "no_new_privs",
        Flag,
        Words("`true` with `user`"),
        "Whether workers are kept from gaining privileges by setuid programs such as sudo.",
    ),
    row(
        "umask",
        Text("`\"0000\"` to `\"0777\"`"),
        Words("the daemon's"),
        "File mode creation mask of the workers, in octal.",
    ),
    row("rlimits", Object, Words("the daemon's"), "Resource limits of each worker process (setrlimit(2))."),
    row(
        "cpus",
        Numbers(0, super::rights::HIGHEST_CPU),
        Words("the daemon's"),
        "Numbers of the CPUs that the workers may use (sched_setaffinity(2)).",
    ),
    row(
        "assignment",
        Choice(&["round_robin", "client", "dedicated"]),
        Words("`\"round_robin\"`"),
        "Which worker gets a message without a session: the next one, the one of its connection, or one that serves only that connection.",
    ),
    row(
        "on_bad_output",
        Choice(&["restart", "skip"]),
        Words("`\"restart\"`; `\"skip\"` if only `http` listeners offer the pool"),
        "What happens when a worker writes an invalid or overlong line to stdout: it is restarted, or the line is skipped.",
    ),
    row(
        "max_instances",
        Number(One, 1, MAX_WORKERS as u64),
        Words("`instances`; in a `dedicated` pool the larger of 64 and `instances`"),
        "Most workers at once; shared workers beyond `instances` are started only while all others are busy.",
    ),
    row(
        "concurrency",
        Number(One, 1, 4096),
        Value("8"),
        "Pending requests at which a shared worker counts as busy; while all are busy, more are started, up to `max_instances`.",
    ),
    row(
        "start",
        Choice(&["at_once", "on_demand"]),
        Value("\"at_once\""),
        "When workers are started: with the daemon, or when the first message needs one; until then the pool is asleep.",
    ),
    row(
        "idle_stop_sec",
        Number(Seconds, 0, 30 * DAY),
        Value("0"),
        "Idle time after which workers beyond `instances` end, or all workers of a pool with `on_demand`; with 0 only lent workers end, after 60 s.",
    ),
    row(
        "start_timeout_sec",
        Number(Seconds, 0, DAY),
        Value("120"),
        "Time that a worker of a pool with `on_demand` has for its first output; 0 means no limit.",
    ),
    row(
        "restore",
        Flag,
        Value("true"),
        "With `state`: MCP sessions of this pool survive a restart of the daemon, which sends their `initialize` to a new worker.",
    ),
    row(
        "cancel_on_disconnect",
        Flag,
        Value("false"),
        "Send `session/cancel` to the worker when a client disconnects with requests pending.",
    ),
    row(
        "request_timeout_sec",
        Number(Seconds, 1, 7 * DAY),
        Words("no timeout"),
        "Time within which a worker or a client has to answer a request, counted from when the daemon accepted it.",
    ),
    row(
        "idle_timeout_sec",
        Number(Seconds, 1, 7 * DAY),
        Words("no timeout"),
        "Time that a worker may send nothing about a client's request: no progress, no message in its session, no answer.",
    ),
    row(
        "worker_silent_sec",
        Number(Seconds, 0, 7 * DAY),
        Words("`limits.worker_silent_sec`"),
        "Silence after which a worker that owes answers is unresponsive, and new clients get other workers; 0 means never.",
    ),
    row(
        "check",
        Object,
        Words("none"),
        "How the daemon checks a silent worker that owes answers, and restarts one that hangs.",
    ),
    row("max_age_sec", Number(Seconds, 1, 365 * DAY), Words("no limit"), "Age at which a worker is replaced."),
    row(
        "max_requests",
        Number(One, 1, u32::MAX as u64),
        Words("no limit"),
        "Number of requests after which a worker is replaced.",
    ),
    row(
        "recycle_memory_mb",
        Number(One, 1, 1 << 20),
        Words("no limit"),
        "Memory of a worker's processes, in MiB, above which the worker is replaced.",
    ),
    row(
        "deny_methods",
        Texts(""),
        Value("[]"),
        "Methods that clients may not use; they are refused with `method_denied`.",
    ),
    row(
        "deny_tools",
        Texts("`\"delete_*\"`"),
        Value("[]"),
        "MCP tools that clients may not call; calls are refused with `tool_denied`.",
    ),
    row("allow_tools", Texts("`\"read_*\"`"), Words("all"), "The only MCP tools that clients may call."),
];

/// No memory and no processes: see `keys::unlimited`.
const RLIMITS: &[Setting] = &[
    row("descriptors", Number(One, 16, 1 << 20), Words("the daemon's"), "Number of open files, pipes and sockets."),
    row(
        "core",
        Number(Bytes, 0, 1024 * GIB),
        Words("the daemon's"),
        "Size of the largest core dump; 0 means that none is written.",
    ),
    row(
        "file_size",
        Number(Bytes, 0, 1024 * GIB),
        Words("no limit"),
        "Size of the largest file that a process can write.",
    ),
    row("cpu_sec", Number(Seconds, 1, 365 * DAY), Words("no limit"), "CPU time after which a process gets SIGXCPU."),
];

const ENV_FROM: &[Setting] = &[
    row("files", Text("a folder"), Words("none"), "Folder with one file of variables for each verified name."),
    row(
        "headers",
        TextsByName,
        Words("none"),
        "Headers of the HTTP request that begins a session, and the variable that each of them sets.",
    ),
];

const CHECK: &[Setting] = &[
    row(
        "every_sec",
        Number(Seconds, 1, DAY),
        Required,
        "Silence before each check; a worker that fails two checks in a row is restarted.",
    ),
    row(
        "send",
        Text("a JSON-RPC request without `id`"),
        Words("for MCP clients `ping` or `server/discover`"),
        "Request that the daemon sends to the worker.",
    ),
    row("expect", Text(""), Words("any answer counts"), "Text that the line with the answer has to contain."),
];

const LIMITS: &[Setting] = &[
    row(
        "max_input_buffer",
        Number(Bytes, 1, GIB),
        Value("1048576"),
        "Longest line that a client may send; a client that sends a longer one is disconnected.",
    ),
    row(
        "max_output_queue",
        Number(Bytes, 1, 4 * GIB),
        Value("4194304"),
        "Output queued for one connection above which the daemon stops reading from whoever sends to it.",
    ),
    row(
        "max_restarts",
        Number(One, 0, 1_000_000),
        Value("5"),
        "Restarts of a worker within `restart_window_sec` after which it is given up.",
    ),
    row(
        "restart_window_sec",
        Number(Seconds, 1, 30 * DAY),
        Value("60"),
        "Period in which `max_restarts` is counted, and after which a worker that was given up is started again.",
    ),
    row(
        "drain_timeout_sec",
        Number(Seconds, 0, DAY),
        Value("30"),
        "Time that workers have to exit at shutdown before they are killed.",
    ),
    row(
        "backpressure_timeout_sec",
        Number(Seconds, 1, DAY),
        Value("60"),
        "Time that the output queue of a connection may stay full before the connection is closed.",
    ),
    row(
        "lame_duck_sec",
        Number(Seconds, 0, DAY),
        Words("0; 1 with `reuse_port`"),
        "Time at the start of a shutdown during which clients are still served, while balancers already see `/readyz` fail.",
    ),
    row(
        "quiesce_sec",
        Number(Seconds, 0, DAY),
        Value("45"),
        "Time that pending requests have to finish at shutdown; new requests are refused with `shutting_down`.",
    ),
    row(
        "replace_timeout_sec",
        Number(Seconds, 0, 30 * DAY),
        Value("3600"),
        "Time that a worker which is being replaced has to finish its requests and sessions.",
    ),
    row(
        "worker_silent_sec",
        Number(Seconds, 0, 7 * DAY),
        Value("60"),
        "Silence after which a worker that owes answers is unresponsive, and new clients get other workers; 0 means never.",
    ),
    row(
        "session_idle_sec",
        Number(Seconds, 0, 30 * DAY),
        Value("0"),
        "Idle time after which a session is forgotten; 0 means never, but 1800 over HTTP.",
    ),
    row(
        "session_detached_sec",
        Number(Seconds, 0, 30 * DAY),
        Value("0"),
        "Over HTTP: time without a connection after which a session ends; 0 means as `session_idle_sec`, but 60 on `acp` listeners.",
    ),
    row(
        "max_memory",
        Number(Bytes, 16 * MIB, 1024 * GIB),
        Value("268435456"),
        "Memory for the lines and queues of all connections together.",
    ),
    row(
        "max_workers_memory_mb",
        Number(One, 0, 1 << 24),
        Value("0"),
        "Memory of all workers, in MiB, above which the longest idle pool with `on_demand` falls asleep; 0 means no limit.",
    ),
];

const ROUTING: &[Setting] = &[
    row(
        "id_collision",
        Choice(&["translate", "always"]),
        Value("\"translate\""),
        "Whether only ids that another client has used are replaced, or all ids on shared workers.",
    ),
    row(
        "session_access",
        Choice(&["owner", "shared"]),
        Value("\"owner\""),
        "Which clients may use a session: only its owner, or every client that names it (spec 6.1.2).",
    ),
];

/// The keys of the kinds, and those that all listeners have.
const LISTENER: [Setting; KINDS.len() + OF_ALL_LISTENERS.len()] = {
    let mut all = [OF_ALL_LISTENERS[0]; KINDS.len() + OF_ALL_LISTENERS.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = match at.checked_sub(KINDS.len()) {
            Some(at) => OF_ALL_LISTENERS[at],
            None => row(KINDS[at].key, Text(KINDS[at].written), Words(""), KINDS[at].says),
        };
        at += 1;
    }
    all
};

const OF_ALL_LISTENERS: &[Setting] = &[
    row("mode", Text("`\"0000\"` to `\"0777\"`"), Value("\"0600\""), "Permissions of the socket file, in octal."),
    row("owner", Text("`user`, `user:group`, `:group`"), Words("the daemon's user"), "Owner of the socket file."),
    row(
        "pool",
        Text("id of a pool"),
        Words("all `pools`"),
        "Pool that serves its clients, unless a message names another one.",
    ),
    row(
        "pools",
        TextsOrByName("ids of pools"),
        Words("`pool`, or all pools"),
        "Pools that a message may name, or the pools that each group may use.",
    ),
    row(
        "max_connections",
        NumberOrObject(1, MAX_CONNECTIONS as u64),
        Words("no limit"),
        "Most connections at once; further ones are refused with `connection_limit`.",
    ),
    row(
        "idle_timeout_sec",
        Number(Seconds, 1, 30 * DAY),
        Words("no timeout"),
        "Silence after which a client without requests and sessions is disconnected; not with `http`.",
    ),
    row(
        "allow",
        Texts("networks (CIDR)"),
        Words("all"),
        "Networks that clients may connect from; all others are refused with `not_allowed`.",
    ),
    row("peer_uids", Users, Words("all"), "Users that may connect to a Unix socket (SO_PEERCRED)."),
    row(
        "rules",
        Object,
        Words("none"),
        "Methods and tools that clients may not use, by their verified names and groups.",
    ),
    row("proxy", Object, Words("none"), "Proxies from which the daemon accepts PROXY headers."),
    row(
        "when_not_ready",
        Choice(&["accept", "close"]),
        Value("\"accept\""),
        "While all of its workers are down, unresponsive or taken out: accept clients, or close the listening socket.",
    ),
    row(
        "reuse_port",
        Flag,
        Value("false"),
        "Whether other daemons of the same user may listen on the same TCP port (SO_REUSEPORT).",
    ),
];

const OF_WEB: &[Setting] = &[
    row(
        "path",
        Text("a path"),
        Words("`\"/acp\"`, `\"/mcp\"`"),
        "Path of the listener's URL; `/healthz` is served beside it.",
    ),
    row(
        "origins",
        Texts("`\"https://app.example\"`, `\"null\"`, `\"*\"`"),
        Value("[]"),
        "Origins of the web pages that may connect.",
    ),
    row("hosts", Texts("names"), Value("[]"), "Host names under which clients reach the listener."),
    row("tokens_file", Text("a file"), Words("no token is needed"), "File with the tokens that clients have to send."),
    row(
        "trusted_proxies",
        Texts("networks (CIDR), or `\"unix\"`"),
        Words("none"),
        "Proxies from which the daemon accepts `X-Forwarded-For` and `Forwarded` headers.",
    ),
    row("oauth", Object, Words("none"), "What the daemon announces to clients about where to sign in (RFC 9728)."),
    row(
        "identity",
        Object,
        Words("none"),
        "Header in which a proxy names its clients; with it, every client needs a name.",
    ),
];

const RULES: &[Setting] = &[
    row("names", ObjectsByName, Words("none"), "Rules for the clients with these verified names."),
    row(
        "groups",
        ObjectsByName,
        Words("none"),
        "Rules for the members of these groups; the rules of `*` apply to every client.",
    ),
];

const RULE: &[Setting] = &[
    row(
        "deny_methods",
        Texts(""),
        Value("[]"),
        "Methods that these clients may not use; they are refused with `method_denied`.",
    ),
    row(
        "deny_tools",
        Texts("`\"delete_*\"`"),
        Value("[]"),
        "MCP tools that these clients may not call; calls are refused with `tool_denied`.",
    ),
    row("allow_tools", Texts("`\"read_*\"`"), Words("all"), "The only MCP tools that these clients may call."),
];

const OAUTH: &[Setting] = &[
    row(
        "resource",
        Text("a URL"),
        Required,
        "URL that clients use for the listener, or its origin, without a slash at the end.",
    ),
    row(
        "authorization_servers",
        Texts("URLs"),
        Required,
        "Issuers where clients sign in; most clients use only the first.",
    ),
    row("scopes_supported", Texts(""), Words("not announced"), "Scopes that clients should ask for."),
];

const IDENTITY: &[Setting] = &[
    row("header", Text("a header"), Required, "Header with the client's name, such as `X-Forwarded-User`."),
    row(
        "groups_header",
        Text("a header"),
        Words("none"),
        "Header with the client's groups, for pools and rules by group.",
    ),
    row(
        "trusted_proxies",
        Texts("networks (CIDR), or `\"unix\"`"),
        Words("`trusted_proxies` of the listener"),
        "Proxies from which the daemon accepts the header; a request with it from anywhere else is refused.",
    ),
];

const OF_PINGS: &[Setting] = &[row(
    "ping_sec",
    Number(Seconds, 0, DAY),
    Value("30"),
    "Interval in which the daemon pings a silent client once; 0 means never.",
)];

const COUNTS: &[Setting] = &[
    row(
        "total",
        Number(One, 1, MAX_CONNECTIONS as u64),
        Words("no limit"),
        "Most connections of all clients together.",
    ),
    row("per_source", Number(One, 1, MAX_CONNECTIONS as u64), Words("no limit"), "Most connections of one source."),
];

const PROXY: &[Setting] = &[row(
    "from",
    Texts("networks (CIDR), or `\"unix\"`"),
    Required,
    "Proxies that begin each of their connections with a PROXY header.",
)];

const ADMIN: &[Setting] = &[
    row(
        "listen",
        Text("a path with a slash, `@NAME`, or `HOST:PORT`"),
        Required,
        "Address of the admin listener, whose connections (at most 64) do not count as clients.",
    ),
    row(
        "mode",
        Text("`\"0000\"` to `\"0777\"`"),
        Value("\"0600\""),
        "Permissions of the socket file, in octal; everybody who can connect may act.",
    ),
    row(
        "token_file",
        Text("a file"),
        Words("none"),
        "File with the token that actions over TCP or an abstract socket need (`Authorization: Bearer TOKEN`).",
    ),
];

const LOG: &[Setting] = &[
    row(
        "level",
        Choice(&["debug", "info", "warn", "error"]),
        Value("\"info\""),
        "Least important level that is logged.",
    ),
    row("format", Choice(&["text", "json"]), Value("\"text\""), "Format of the log's lines."),
    row("requests", Flag, Value("false"), "Whether a line is logged for each request that has ended."),
    row(
        "file",
        Text("a file"),
        Words("stderr"),
        "File that is written instead of stderr; SIGUSR1 makes the daemon reopen it.",
    ),
];
