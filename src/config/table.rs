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
    pub kind: Kind,
    pub left_out: LeftOut,
    /// One sentence of description.
    pub says: &'static str,
}

/// The type and range of a value; in words where the reader has code for it.
#[derive(Clone, Copy)]
pub(super) enum Kind {
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
pub(super) enum LeftOut {
    /// It must not be omitted.
    Required,
    /// The same as this JSON value.
    Value(&'static str),
    /// A description, if no value is equivalent.
    Words(&'static str),
}

use Kind::{
    Choice, Flag, Number, NumberOrObject, Numbers, Object, Objects, ObjectsByName, Text, Texts, TextsByName,
    TextsOrByName, Users,
};
use LeftOut::{Required, Value, Words};
use Unit::{Bytes, One, Seconds};

const DAY: u64 = 24 * 60 * 60;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const fn row(key: &'static str, kind: Kind, left_out: LeftOut, says: &'static str) -> Setting {
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
    row("pools", Objects, Required, "Worker pools, with at most 1024 workers in all."),
    row("limits", Object, Words("see below"), "Resource limits."),
    row("routing", Object, Words("see below"), "Ids, and access to sessions."),
    row("listeners", Objects, Value("[]"), "Where clients connect, beside the flags of the command line."),
    row("admin", Object, Words("none"), "Status, metrics and commands over HTTP."),
    row("log", Object, Words("see below"), "What is written to stderr."),
    row(
        "node",
        Text("1 to 32 letters, digits, `-`, `_`"),
        Words("the host's name"),
        "The daemon's name, with which its ids begin.",
    ),
    row(
        "state",
        Text("a folder"),
        Words("none"),
        "Folder in which sessions of MCP, and who owns those of ACP, outlive the daemon.",
    ),
    row("transport", Object, Words("none"), "A section of the C daemon."),
];

const POOL: &[Setting] = &[
    row("id", Text("unique, 1 to 64 bytes"), Required, "Name in logs and in `pool` of a message."),
    row("command", Text(""), Required, "Program: a name in PATH, or a path."),
    row("args", Texts(""), Value("[]"), "Arguments; there is no shell."),
    row(
        "instances",
        Number(One, 1, MAX_WORKERS as u64),
        Words("required; with `env_from` there are none"),
        "Workers to keep running; in a dedicated pool the warm spares.",
    ),
    row(
        "env",
        TextsByName,
        Value("{}"),
        "Variables to set; `\"$file:PATH\"`, `\"$env:NAME\"` are read at each start, `${NAME}` is not replaced.",
    ),
    row("env_from", Object, Words("none"), "Variables of a dedicated worker that are its client's own."),
    row("cwd", Text("a directory"), Words("the daemon's"), "Working directory of the workers."),
    row(
        "user",
        Text("a name or a number"),
        Words("the daemon's"),
        "User of the workers, for a daemon started as root.",
    ),
    row("group", Text("a name or a number"), Words("that of `user`"), "Group of the workers."),
    row("no_new_privs", Flag, Words("`true` with `user`"), "Whether setuid programs such as sudo gain no privileges."),
    row("umask", Text("`\"0000\"` to `\"0777\"`"), Words("the daemon's"), "File mode mask, octal."),
    row("rlimits", Object, Words("the daemon's"), "Limits of each process (setrlimit(2))."),
    row(
        "cpus",
        Numbers(0, super::rights::HIGHEST_CPU),
        Words("the daemon's"),
        "CPUs that the workers may use, by number (sched_setaffinity(2)).",
    ),
    row(
        "assignment",
        Choice(&["round_robin", "client", "dedicated"]),
        Words("`\"round_robin\"`"),
        "Worker of a message without a session: the next one, one per connection, or one that serves that connection alone.",
    ),
    row(
        "on_bad_output",
        Choice(&["restart", "skip"]),
        Words("`\"restart\"`; `\"skip\"` if only `http` listeners offer the pool"),
        "A worker writes a line to stdout that is no message or is too long: it is restarted, or the line passed over.",
    ),
    row(
        "max_instances",
        Number(One, 1, MAX_WORKERS as u64),
        Words("`instances`; if `dedicated`, the larger of 64 and it"),
        "Most workers; those that clients share are more than `instances` only if all were busy.",
    ),
    row(
        "concurrency",
        Number(One, 1, 4096),
        Value("8"),
        "Requests of each shared worker at which all are busy, so that one more is started, up to `max_instances`.",
    ),
    row(
        "start",
        Choice(&["at_once", "on_demand"]),
        Value("\"at_once\""),
        "When workers are started: with the daemon, or when a first line needs one, until which the pool is asleep.",
    ),
    row(
        "idle_stop_sec",
        Number(Seconds, 0, 30 * DAY),
        Value("0"),
        "Idle time after which workers beyond `instances` end, and all if the pool starts on demand; 0 is never.",
    ),
    row(
        "start_timeout_sec",
        Number(Seconds, 0, DAY),
        Value("120"),
        "Time that a worker of a pool that starts on demand may take for its first output; 0 is without a limit.",
    ),
    row(
        "restore",
        Flag,
        Value("true"),
        "With `state`: sessions of MCP in this pool outlive the daemon; a worker is sent their `initialize` again.",
    ),
    row(
        "cancel_on_disconnect",
        Flag,
        Value("false"),
        "Send `session/cancel` when a client leaves with requests pending.",
    ),
    row(
        "request_timeout_sec",
        Number(Seconds, 1, 7 * DAY),
        Words("no timeout"),
        "Time that an answer may take, of a worker or of a client, counted from when the daemon has taken the request.",
    ),
    row(
        "idle_timeout_sec",
        Number(Seconds, 1, 7 * DAY),
        Words("no timeout"),
        "Time that a worker may say nothing about a client's request: no progress, nothing in its session, no answer.",
    ),
    row(
        "worker_silent_sec",
        Number(Seconds, 0, 7 * DAY),
        Words("that of `limits`"),
        "Time that a worker may say nothing while it owes answers before new clients go to others; 0 is without a limit.",
    ),
    row("check", Object, Words("none"), "How a silent worker that owes answers is checked, and replaced if it hangs."),
    row("max_age_sec", Number(Seconds, 1, 365 * DAY), Words("no limit"), "Age at which a worker is replaced."),
    row(
        "max_requests",
        Number(One, 1, u32::MAX as u64),
        Words("no limit"),
        "Requests after which a worker is replaced.",
    ),
    row(
        "recycle_memory_mb",
        Number(One, 1, 1 << 20),
        Words("no limit"),
        "MiB of a worker's processes above which it is replaced.",
    ),
    row("deny_methods", Texts(""), Value("[]"), "Methods that clients may not use (`method_denied`)."),
    row("deny_tools", Texts("`\"delete_*\"`"), Value("[]"), "Tools of MCP that clients may not call (`tool_denied`)."),
    row("allow_tools", Texts("`\"read_*\"`"), Words("all"), "The only tools of MCP that clients may call."),
];

/// No memory and no processes: see `keys::unlimited`.
const RLIMITS: &[Setting] = &[
    row("descriptors", Number(One, 16, 1 << 20), Words("the daemon's"), "Open files, pipes and sockets."),
    row("core", Number(Bytes, 0, 1024 * GIB), Words("the daemon's"), "Largest core dump; 0 for none."),
    row("file_size", Number(Bytes, 0, 1024 * GIB), Words("no limit"), "Largest file that can be written."),
    row("cpu_sec", Number(Seconds, 1, 365 * DAY), Words("no limit"), "CPU time of a process before SIGXCPU."),
];

const ENV_FROM: &[Setting] = &[
    row("files", Text("a folder"), Words("none"), "Folder with a file of variables for each verified name."),
    row("headers", TextsByName, Words("none"), "Headers of the request that begins a session, and their variables."),
];

const CHECK: &[Setting] = &[
    row(
        "every_sec",
        Number(Seconds, 1, DAY),
        Required,
        "Silence before each check; two in a row without the expected answer replace the worker.",
    ),
    row(
        "send",
        Text("a JSON-RPC request without `id`"),
        Words("that of MCP: `ping`, or `server/discover`"),
        "Request that the worker is sent.",
    ),
    row("expect", Text(""), Words("any answer will do"), "Text that the line with the answer has to contain."),
];

const LIMITS: &[Setting] = &[
    row(
        "max_input_buffer",
        Number(Bytes, 1, GIB),
        Value("1048576"),
        "Longest line of a client; a longer one closes its connection.",
    ),
    row(
        "max_output_queue",
        Number(Bytes, 1, 4 * GIB),
        Value("4194304"),
        "Queue of one connection above which its sources are paused.",
    ),
    row(
        "max_restarts",
        Number(One, 0, 1_000_000),
        Value("5"),
        "Restarts of a worker within the window before it is given up.",
    ),
    row(
        "restart_window_sec",
        Number(Seconds, 1, 30 * DAY),
        Value("60"),
        "That window, after which a worker that was given up is tried again.",
    ),
    row(
        "drain_timeout_sec",
        Number(Seconds, 0, DAY),
        Value("30"),
        "Time for workers to end at shutdown before they are killed.",
    ),
    row(
        "backpressure_timeout_sec",
        Number(Seconds, 1, DAY),
        Value("60"),
        "Time that an output may stay full before its connection is closed.",
    ),
    row(
        "lame_duck_sec",
        Number(Seconds, 0, DAY),
        Words("0, with `reuse_port` 1"),
        "Time that a shutdown keeps serving while balancers see `/readyz` fail.",
    ),
    row(
        "quiesce_sec",
        Number(Seconds, 0, DAY),
        Value("45"),
        "Time for pending requests to finish at shutdown; new ones get `shutting_down`.",
    ),
    row(
        "replace_timeout_sec",
        Number(Seconds, 0, 30 * DAY),
        Value("3600"),
        "Time for a replaced worker to finish its requests and sessions.",
    ),
    row(
        "worker_silent_sec",
        Number(Seconds, 0, 7 * DAY),
        Value("60"),
        "Time that a worker may say nothing while it owes answers before new clients go to others; 0 is without a limit.",
    ),
    row(
        "session_idle_sec",
        Number(Seconds, 0, 30 * DAY),
        Value("0"),
        "Silence after which a session is forgotten; 0 is never, over HTTP 1800.",
    ),
    row(
        "session_detached_sec",
        Number(Seconds, 0, 30 * DAY),
        Value("0"),
        "Over HTTP: time without a connection after which a session ends; 0 is as `session_idle_sec`, with `acp` 60 s.",
    ),
    row(
        "max_memory",
        Number(Bytes, 16 * MIB, 1024 * GIB),
        Value("268435456"),
        "Memory for lines and queues of all connections.",
    ),
    row(
        "max_workers_memory_mb",
        Number(One, 0, 1 << 24),
        Value("0"),
        "MiB of all workers above which the pool that starts on demand and is idle for longest falls asleep; 0 is no limit.",
    ),
];

const ROUTING: &[Setting] = &[
    row(
        "id_collision",
        Choice(&["translate", "always"]),
        Value("\"translate\""),
        "Replace ids that another client has used, or all ids on shared workers.",
    ),
    row(
        "session_access",
        Choice(&["owner", "shared"]),
        Value("\"owner\""),
        "Clients that may use a session: its owner, or each that names it (spec 6.1.2).",
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
    row("mode", Text("`\"0000\"` to `\"0777\"`"), Value("\"0600\""), "Permissions of the socket file, octal."),
    row("owner", Text("`user`, `user:group`, `:group`"), Words("the daemon's user"), "Owner of the socket file."),
    row("pool", Text("id of a pool"), Words("all `pools`"), "Pool of its clients, unless a message names another."),
    row(
        "pools",
        TextsOrByName("ids of pools"),
        Words("`pool`, or all pools"),
        "Pools that a message may name, or those of each group.",
    ),
    row(
        "max_connections",
        NumberOrObject(1, MAX_CONNECTIONS as u64),
        Words("no limit"),
        "Connections at once; more are refused (`connection_limit`).",
    ),
    row(
        "idle_timeout_sec",
        Number(Seconds, 1, 30 * DAY),
        Words("no timeout"),
        "Silence after which a client without requests and sessions is closed; not with `http`.",
    ),
    row("allow", Texts("networks (CIDR)"), Words("all"), "Where clients may come from (else `not_allowed`)."),
    row("peer_uids", Users, Words("all"), "Users that may connect to a Unix socket (SO_PEERCRED)."),
    row("rules", Object, Words("none"), "What clients may not use, by their names and groups."),
    row("proxy", Object, Words("none"), "Proxies that are believed (PROXY protocol)."),
    row(
        "when_not_ready",
        Choice(&["accept", "close"]),
        Value("\"accept\""),
        "While none of its workers runs, or all are doubtful or taken out: accept clients, or close the socket.",
    ),
    row("reuse_port", Flag, Value("false"), "Whether other daemons of the same user may listen at the same TCP port."),
];

const OF_WEB: &[Setting] = &[
    row("path", Text("a path"), Words("`\"/acp\"`, `\"/mcp\"`"), "Path of its URL; `/healthz` is there too."),
    row(
        "origins",
        Texts("`\"https://app.example\"`, `\"null\"`, `\"*\"`"),
        Value("[]"),
        "Origins of web pages that may connect.",
    ),
    row("hosts", Texts("names"), Value("[]"), "Names by which it is reached."),
    row("tokens_file", Text("a file"), Words("all may connect"), "Tokens that let clients in."),
    row(
        "trusted_proxies",
        Texts("networks (CIDR), or `\"unix\"`"),
        Words("none"),
        "Proxies whose `X-Forwarded-For` and `Forwarded` are believed.",
    ),
    row("oauth", Object, Words("none"), "Where clients sign in, as they are told (RFC 9728)."),
    row("identity", Object, Words("none"), "How a proxy names its clients; each client needs a name."),
];

const RULES: &[Setting] = &[
    row("names", ObjectsByName, Words("none"), "The rules of verified names."),
    row("groups", ObjectsByName, Words("none"), "The rules of groups; those of `*` are for everybody."),
];

const RULE: &[Setting] = &[
    row("deny_methods", Texts(""), Value("[]"), "Methods that they may not use (`method_denied`)."),
    row("deny_tools", Texts("`\"delete_*\"`"), Value("[]"), "Tools of MCP that they may not call (`tool_denied`)."),
    row("allow_tools", Texts("`\"read_*\"`"), Words("all"), "The only tools of MCP that they may call."),
];

const OAUTH: &[Setting] = &[
    row("resource", Text("a URL"), Required, "The URL that clients use, or its origin, without a slash at the end."),
    row("authorization_servers", Texts("URLs"), Required, "Issuers at which clients sign in; most use the first one."),
    row("scopes_supported", Texts(""), Words("not said"), "Scopes that clients ask for."),
];

const IDENTITY: &[Setting] = &[
    row("header", Text("a header"), Required, "The header with the client's name, as `X-Forwarded-User`."),
    row(
        "groups_header",
        Text("a header"),
        Words("none"),
        "The header with the client's groups, for pools and rules by group.",
    ),
    row(
        "trusted_proxies",
        Texts("networks (CIDR), or `\"unix\"`"),
        Words("the listener's"),
        "Proxies that are believed; from others the header is refused.",
    ),
];

const OF_PINGS: &[Setting] =
    &[row("ping_sec", Number(Seconds, 0, DAY), Value("30"), "Silence after which a client is pinged; 0 is never.")];

const COUNTS: &[Setting] = &[
    row("total", Number(One, 1, MAX_CONNECTIONS as u64), Words("no limit"), "Connections of all clients."),
    row("per_source", Number(One, 1, MAX_CONNECTIONS as u64), Words("no limit"), "Connections of one source."),
];

const PROXY: &[Setting] = &[row(
    "from",
    Texts("networks (CIDR), or `\"unix\"`"),
    Required,
    "Proxies, each connection of which begins with a header.",
)];

const ADMIN: &[Setting] = &[
    row(
        "listen",
        Text("a path with a slash, `@NAME`, or `HOST:PORT`"),
        Required,
        "Address; its 64 connections take no slots of clients.",
    ),
    row(
        "mode",
        Text("`\"0000\"` to `\"0777\"`"),
        Value("\"0600\""),
        "Permissions of the socket file; each connection may act.",
    ),
    row(
        "token_file",
        Text("a file"),
        Words("none"),
        "Token that actions over TCP or an abstract name need (`Authorization: Bearer TOKEN`).",
    ),
];

const LOG: &[Setting] = &[
    row(
        "level",
        Choice(&["debug", "info", "warn", "error"]),
        Value("\"info\""),
        "Least important level that is written.",
    ),
    row("format", Choice(&["text", "json"]), Value("\"text\""), "Format of its lines."),
    row("requests", Flag, Value("false"), "Write a line of each request that has ended."),
    row("file", Text("a file"), Words("stderr"), "File that is written to instead of stderr; SIGUSR1 opens it again."),
];
