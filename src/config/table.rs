//! The settings, each in one row: what a configuration may have, of which type and range, what holds where it is left
//! out, and what it does. The reader, the suggestions for misspelt keys, `config/schema.json` and the tables of
//! `docs/configuration.md` come from here.
//!
//! The limits of `stdio_bus_core::settings` have the defaults once more, as values; a test compares them.

#![cfg_attr(not(test), expect(dead_code, reason = "schema and documentation are written by a test"))]

use crate::bus::settings::{MAX_CONNECTIONS, MAX_WORKERS};

/// What belongs together: the members of one object, or those of them that only some listeners have.
pub(super) struct Section {
    /// What its table is called in the documentation.
    pub name: &'static str,
    /// The object, as a person would write it; empty at the top level.
    pub path: &'static str,
    pub settings: &'static [Setting],
}

/// A row.
pub(super) struct Setting {
    pub key: &'static str,
    pub kind: Kind,
    pub left_out: LeftOut,
    /// Where it comes from.
    pub source: &'static str,
    /// One sentence for people.
    pub says: &'static str,
}

/// The type of a value, and its range: in words where the reader knows it by itself.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Text(&'static str),
    Texts(&'static str),
    TextsByName,
    /// Strings, or numbers that mean the same.
    Users,
    Choice(&'static [&'static str]),
    Flag,
    Number(Unit, u64, u64),
    /// A number, or an object of the section with the path of this key.
    NumberOrObject(u64, u64),
    Object,
    Objects(&'static str),
}

/// What a number counts.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    One,
    Bytes,
    Seconds,
}

/// What holds where a setting is left out.
#[derive(Clone, Copy)]
pub(super) enum LeftOut {
    /// It may not be left out.
    Required,
    /// The same as with this JSON value.
    Value(&'static str),
    /// Something that no value says.
    Words(&'static str),
}

use Kind::{Choice, Flag, Number, NumberOrObject, Object, Objects, Text, Texts, TextsByName, Users};
use LeftOut::{Required, Value, Words};
use Unit::{Bytes, One, Seconds};

const DAY: u64 = 24 * 60 * 60;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const fn row(key: &'static str, kind: Kind, left_out: LeftOut, source: &'static str, says: &'static str) -> Setting {
    Setting { key, kind, left_out, source, says }
}

const fn section(name: &'static str, path: &'static str, settings: &'static [Setting]) -> Section {
    Section { name, path, settings }
}

pub(super) const SETTINGS: [Section; 12] = [
    section("top level", "", TOP),
    section("pools[]", "pools[]", POOL),
    section("pools[].rlimits", "pools[].rlimits", RLIMITS),
    section("limits", "limits", LIMITS),
    section("routing", "routing", ROUTING),
    section("listeners[]", "listeners[]", LISTENER),
    section(WEB, "listeners[]", OF_WEB),
    section(WEBSOCKET, "listeners[]", OF_WEBSOCKET),
    section("listeners[].max_connections", "listeners[].max_connections", COUNTS),
    section("listeners[].proxy", "listeners[].proxy", PROXY),
    section("admin", "admin", ADMIN),
    section("log", "log", LOG),
];

/// The section of what only listeners have whose clients come over HTTP.
pub(super) const WEB: &str = "listeners[] with ws or http";
/// The section of what only a WebSocket listener has.
pub(super) const WEBSOCKET: &str = "listeners[] with ws";

/// The members of the C daemon's own section, which is accepted as far as it asks for what this bus does.
pub(super) const TRANSPORT: [&str; 4] = ["mode", "framing", "protocol", "options"];

const TOP: &[Setting] = &[
    row("pools", Objects("at least 1"), Required, "spec 9.2", "The worker pools, with at most 1024 workers together."),
    row("limits", Object, Words("see below"), "spec 9.2", "Resource limits."),
    row("routing", Object, Words("see below"), "bus", "Choices that the specification leaves open."),
    row("listeners", Objects(""), Value("[]"), "bus", "Where clients come from, beside the flag of the command line."),
    row("admin", Object, Words("none"), "bus", "Where operators, monitors and load balancers ask, over HTTP."),
    row("log", Object, Words("see below"), "bus", "What is written to stderr."),
    row(
        "node",
        Text("1 to 32 letters, digits, `-`, `_`"),
        Words("the host's name, with `-` for what cannot stand there"),
        "bus",
        "What this daemon is called among others: the ids that it gives out begin with it and a dot.",
    ),
    row("transport", Object, Words("none"), "C daemon", "Accepted as far as it asks for what this bus does."),
];

const POOL: &[Setting] = &[
    row(
        "id",
        Text("unique, 1 to 64 bytes"),
        Required,
        "spec 9.2",
        "The pool's name, in logs and in the `pool` of a message.",
    ),
    row(
        "command",
        Text(""),
        Required,
        "spec 9.2",
        "The program: a name that is looked for in PATH, or a path relative to the working directory of the daemon.",
    ),
    row("args", Texts(""), Value("[]"), "spec 9.2", "The arguments, one string each, for there is no shell."),
    row(
        "instances",
        Number(One, 1, MAX_WORKERS as u64),
        Required,
        "spec 9.2",
        "Workers to keep running; in a dedicated pool the warm spares.",
    ),
    row(
        "env",
        TextsByName,
        Value("{}"),
        "bus",
        "Variables set over the environment of the daemon, as they stand: `${NAME}` is not replaced.",
    ),
    row(
        "cwd",
        Text("a directory"),
        Words("the daemon's"),
        "bus",
        "The working directory of the workers, relative to that of the daemon.",
    ),
    row(
        "user",
        Text("a name or a number"),
        Words("the daemon's"),
        "bus",
        "Who the workers are, with that user's groups, HOME, USER and LOGNAME; for a daemon that was started as root.",
    ),
    row(
        "group",
        Text("a name or a number"),
        Words("that of `user`"),
        "bus",
        "Their group, in place of the first one of `user`.",
    ),
    row(
        "no_new_privs",
        Flag,
        Words("`true` where `user` is set"),
        "bus",
        "No program that they run gains a privilege, as sudo does (PR_SET_NO_NEW_PRIVS).",
    ),
    row(
        "umask",
        Text("`\"0000\"` to `\"0777\"`"),
        Words("the daemon's"),
        "bus",
        "Permissions that files which they make do not have, octal.",
    ),
    row("rlimits", Object, Words("the daemon's"), "bus", "Limits of each of their processes (setrlimit(2))."),
    row(
        "assignment",
        Choice(&["round_robin", "client", "dedicated"]),
        Words("`\"round_robin\"`; required by `http`"),
        "bus",
        "How a message without a known session chooses a worker: the next one, one for each connection, or one that the \
         connection has for itself.",
    ),
    row(
        "max_instances",
        Number(One, 1, MAX_WORKERS as u64),
        Words("the larger of 64 and `instances`"),
        "bus",
        "Most workers at once, at least `instances`; for dedicated pools only.",
    ),
    row(
        "cancel_on_disconnect",
        Flag,
        Value("false"),
        "bus",
        "Send `session/cancel` for the sessions of a client that leaves with a request pending.",
    ),
    row(
        "request_timeout_sec",
        Number(Seconds, 1, 7 * DAY),
        Words("no timeout"),
        "bus",
        "How long a request may wait for its answer; a worker that says nothing while three run out is started anew.",
    ),
    row(
        "max_age_sec",
        Number(Seconds, 1, 365 * DAY),
        Words("no limit"),
        "bus",
        "A worker of about this age (up to a tenth less) is replaced, without a lost request.",
    ),
    row(
        "max_requests",
        Number(One, 1, u32::MAX as u64),
        Words("no limit"),
        "bus",
        "A worker that has got about so many requests (up to a tenth less) is replaced, without a lost request.",
    ),
    row(
        "recycle_memory_mb",
        Number(One, 1, 1 << 20),
        Words("no limit"),
        "bus",
        "A worker is replaced whose processes together hold more MiB of memory than this, looked at every 5 s.",
    ),
    row(
        "deny_methods",
        Texts("none of them empty"),
        Value("[]"),
        "bus",
        "Methods that clients may not use: a request is answered with -32601 (`method_denied`), a notification is dropped.",
    ),
];

/// Neither memory nor processes: see `keys::unlimited`.
const RLIMITS: &[Setting] = &[
    row("descriptors", Number(One, 16, 1 << 20), Words("the daemon's"), "bus", "Open files, pipes and sockets."),
    row("core", Number(Bytes, 0, 1024 * GIB), Words("the daemon's"), "bus", "The largest core dump; 0 makes none."),
    row("file_size", Number(Bytes, 0, 1024 * GIB), Words("no limit"), "bus", "The largest file that can be written."),
    row(
        "cpu_sec",
        Number(Seconds, 1, 365 * DAY),
        Words("no limit"),
        "bus",
        "CPU time of a process over its whole life, after which it is killed (SIGXCPU).",
    ),
];

const LIMITS: &[Setting] = &[
    row(
        "max_input_buffer",
        Number(Bytes, 1, GIB),
        Value("1048576"),
        "spec 8.1",
        "The longest line of a client, without its newline; a longer one closes its connection.",
    ),
    row(
        "max_output_queue",
        Number(Bytes, 1, 4 * GIB),
        Value("4194304"),
        "spec 8.1",
        "Bytes queued for one connection above which its sources are paused.",
    ),
    row(
        "max_restarts",
        Number(One, 0, 1_000_000),
        Value("5"),
        "spec 8.1",
        "Restarts of one worker within the window before it is given up; 0 never restarts.",
    ),
    row(
        "restart_window_sec",
        Number(Seconds, 1, 30 * DAY),
        Value("60"),
        "spec 8.1",
        "The window in which restarts are counted, and after which a worker that was given up is tried again.",
    ),
    row(
        "drain_timeout_sec",
        Number(Seconds, 0, DAY),
        Value("30"),
        "spec 8.1",
        "How long a shutdown waits for workers before it kills them; 0 kills at once.",
    ),
    row(
        "backpressure_timeout_sec",
        Number(Seconds, 1, DAY),
        Value("60"),
        "spec 8.1",
        "How long an output may stay full before its connection is closed.",
    ),
    row(
        "lame_duck_sec",
        Number(Seconds, 0, DAY),
        Value("0"),
        "bus",
        "How long a shutdown goes on as before, so that balancers see that it is not ready and send nobody any more.",
    ),
    row(
        "quiesce_sec",
        Number(Seconds, 0, DAY),
        Value("45"),
        "bus",
        "How long a shutdown lets pending requests finish before workers are told to stop; new ones get `shutting_down`.",
    ),
    row(
        "replace_timeout_sec",
        Number(Seconds, 0, 30 * DAY),
        Value("3600"),
        "bus",
        "How long a worker that is replaced may take for the requests and sessions that it has (`worker_replaced`).",
    ),
    row(
        "session_idle_sec",
        Number(Seconds, 0, 30 * DAY),
        Value("0"),
        "bus",
        "A session without a message for so long, and without a pending request, is forgotten; 0 forgets none, but those of \
         HTTP after 1800.",
    ),
    row(
        "max_memory",
        Number(Bytes, 16 * MIB, 1024 * GIB),
        Value("268435456"),
        "bus",
        "Memory for unfinished lines, queues and held lines of all connections together.",
    ),
];

const ROUTING: &[Setting] = &[
    row(
        "id_collision",
        Choice(&["translate", "always"]),
        Value("\"translate\""),
        "bus",
        "Whether an id is replaced on its way where two clients use it at once, or always on workers that they share.",
    ),
    row(
        "session_access",
        Choice(&["owner", "shared"]),
        Value("\"owner\""),
        "bus",
        "Who may use a session: the client it belongs to, or every client that names it (the literal spec 6.1.2).",
    ),
];

const LISTENER: &[Setting] = &[
    row(
        "tcp",
        Text("`HOST:PORT`"),
        Words(""),
        "spec 4.1.1",
        "A TCP port of a name, an IPv4 address, or an IPv6 address in brackets; port 0 lets the kernel choose.",
    ),
    row(
        "unix",
        Text("1 to 107 bytes"),
        Words(""),
        "spec 4.1.1",
        "The path of a Unix socket, relative to the working directory of the daemon, or `@NAME` without a file.",
    ),
    row(
        "ws",
        Text("`HOST:PORT`, `unix:PATH`"),
        Words(""),
        "ACP",
        "A WebSocket listener (RFC 6455) on a TCP port or a Unix socket: each text message is a line.",
    ),
    row(
        "http",
        Text("`HOST:PORT`, `unix:PATH`"),
        Words(""),
        "MCP",
        "A listener for MCP over Streamable HTTP on a TCP port or a Unix socket, for pools that say their `assignment`.",
    ),
    row(
        "mode",
        Text("`\"0000\"` to `\"0777\"`"),
        Value("\"0600\""),
        "bus",
        "Permissions of the socket file, octal; for Unix sockets with a path only.",
    ),
    row(
        "owner",
        Text("`user`, `user:group`, `:group`"),
        Words("whoever started the daemon"),
        "bus",
        "Whom the socket file is given to before anybody can connect, by names or numbers (chown(2)).",
    ),
    row(
        "pool",
        Text("the id of a pool, one of `pools`"),
        Words("all of `pools`"),
        "bus",
        "The pool that its clients use, unless a message names another of `pools`.",
    ),
    row(
        "pools",
        Texts("ids of pools, at least 1"),
        Words("`pool` alone; without it all pools"),
        "bus",
        "The pools that a message of its clients may name; another one is answered like one that does not exist.",
    ),
    row(
        "max_connections",
        NumberOrObject(1, MAX_CONNECTIONS as u64),
        Words("no limit of its own"),
        "bus",
        "Connections at once, all together; one more is answered with an error (`connection_limit`, -32019) and closed.",
    ),
    row(
        "idle_timeout_sec",
        Number(Seconds, 1, 30 * DAY),
        Words("no timeout"),
        "bus",
        "A client without pending requests and sessions is closed when it has sent and taken nothing for so long.",
    ),
    row(
        "allow",
        Texts("networks (CIDR) or addresses, at least 1"),
        Words("everybody"),
        "bus",
        "Where clients may come from; anybody else is closed at once, and told in the log (`not_allowed`).",
    ),
    row(
        "peer_uids",
        Users,
        Words("everybody"),
        "bus",
        "Whose processes may connect (SO_PEERCRED, unix(7)), beside what the mode says; for Unix sockets only.",
    ),
    row("proxy", Object, Words("none is believed"), "bus", "Proxies that say with a PROXY header whom they bring."),
    row(
        "when_not_ready",
        Choice(&["accept", "close"]),
        Value("\"accept\""),
        "bus",
        "While no worker runs that its clients would use, they are taken all the same, or its socket is closed.",
    ),
];

const OF_WEB: &[Setting] = &[
    row(
        "path",
        Text("a path"),
        Words("`\"/acp\"` with `ws`, `\"/mcp\"` with `http`"),
        "ACP, MCP",
        "The path of its URL; beside it there are `/healthz` and, with `http`, a path below it for each pool.",
    ),
    row(
        "origins",
        Texts("`\"https://app.example\"`, `\"null\"`, `\"*\"`"),
        Value("[]"),
        "RFC 6454",
        "The origins of pages in browsers that may connect; `\"*\"` is every page there is.",
    ),
    row(
        "hosts",
        Texts("names without a port"),
        Value("[]"),
        "RFC 6454",
        "Names that this listener is asked for by: a page that one of them has served may connect to it.",
    ),
    row(
        "tokens_file",
        Text("a file, see below"),
        Words("everybody may connect"),
        "RFC 6750",
        "Whose tokens let in; without a good one a request is refused (401).",
    ),
    row(
        "trusted_proxies",
        Texts("networks (CIDR) or addresses, at least 1; `[\"unix\"]` for a Unix socket"),
        Words("none is believed"),
        "RFC 7239",
        "Whose `X-Forwarded-For` and `Forwarded` say where a client is.",
    ),
];

const OF_WEBSOCKET: &[Setting] = &[row(
    "ping_sec",
    Number(Seconds, 0, DAY),
    Value("30"),
    "RFC 6455",
    "How often a client is pinged that is silent; without an answer for 10 s it is closed, and 0 never asks.",
)];

const COUNTS: &[Setting] = &[
    row(
        "total",
        Number(One, 1, MAX_CONNECTIONS as u64),
        Words("no limit of its own"),
        "bus",
        "Connections of this listener, all together.",
    ),
    row(
        "per_source",
        Number(One, 1, MAX_CONNECTIONS as u64),
        Words("no limit of its own"),
        "bus",
        "Connections of this listener from one source, at most `total`.",
    ),
];

const PROXY: &[Setting] = &[row(
    "from",
    Texts("networks (CIDR) or addresses, at least 1; `[\"unix\"]` for a Unix socket"),
    Required,
    "bus",
    "Whose headers are believed; from there a connection without one is closed (`proxy_header`).",
)];

const ADMIN: &[Setting] = &[
    row(
        "listen",
        Text("a path with a slash, `unix:PATH`, `@NAME`, or `HOST:PORT`"),
        Required,
        "bus",
        "Where; its connections, 64 at once, take none of the slots of clients.",
    ),
    row(
        "mode",
        Text("`\"0000\"` to `\"0777\"`"),
        Value("\"0600\""),
        "bus",
        "Permissions of the socket file, octal; who may connect may act.",
    ),
    row(
        "token_file",
        Text("a file with a token of 16 bytes or more"),
        Words("none"),
        "bus",
        "What lets an action through over TCP or an abstract name: `Authorization: Bearer TOKEN`.",
    ),
];

const LOG: &[Setting] = &[
    row(
        "level",
        Choice(&["debug", "info", "warn", "error"]),
        Value("\"info\""),
        "spec app. C",
        "The least important level that is written; what workers write to stderr has the level `info`.",
    ),
    row("format", Choice(&["text", "json"]), Value("\"text\""), "bus", "How a line of the log looks."),
    row(
        "requests",
        Flag,
        Value("false"),
        "bus",
        "A line is written of each request of a client when it has ended, whatever the level.",
    ),
];
