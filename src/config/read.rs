//! What a configuration means: from JSON with places to a [`Config`], by the rules of spec section 9 and of
//! `docs/configuration.md`.
//!
//! Each function reads one section and notes every problem in it. It falls back to a default where a value is wrong,
//! which is safe because a reader with problems never gives a [`Config`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::document::{Node, Object, Problem, Reader};
use super::users::{self, MAX_ID};
use super::{
    Admin, Config, DEFAULT_DEDICATED_WORKERS, Listen, Listener, Log, LogFormat, LogLevel, Mode, Owner, Patience, Pool,
    StderrLog, Token, Web, same_place,
};
use super::{command, keys};
use crate::address::{self, Address};
use crate::bus::networks::Network;
use crate::bus::settings::{
    self, Assignment, Entry, IdCollision, Limits, MAX_WORKERS, MaxConnections, OnExit, OnFailure, Proxies, Proxy,
    Routing, SessionAccess,
};
use crate::small_file;
use crate::tokens::Tokens;
use crate::websocket::HEALTH;

const LEVELS: [(&str, LogLevel); 4] =
    [("debug", LogLevel::Debug), ("info", LogLevel::Info), ("warn", LogLevel::Warn), ("error", LogLevel::Error)];

/// Longest pool id in bytes: it stands in every line of its workers' stderr.
const MAX_POOL_ID: usize = 64;

/// Reads a whole configuration, or says everything that is wrong with it.
pub(super) fn config(text: &str, origin: &str) -> Result<Config, (Vec<Problem>, usize, LogFormat)> {
    let mut reader = Reader::new(text);
    let config = top(&mut reader, origin);
    let has_pool = config.as_ref().is_some_and(|config| config.pools.len() > reader.of_pools.len());
    if !has_pool || !reader.problems.is_empty() {
        reader.problems.append(&mut reader.of_pools);
    }
    match config {
        Some(config) if reader.problems.is_empty() => Ok(Config { missing: reader.of_pools, ..config }),
        other => {
            reader.problems.sort_by_key(|problem| (problem.line, problem.column));
            Err((reader.problems, reader.omitted, other.map(|config| config.log.format).unwrap_or_default()))
        }
    }
}

fn top(reader: &mut Reader<'_>, origin: &str) -> Option<Config> {
    let root = reader.root()?;
    let top = reader.object(&root, "", keys::TOP)?;
    let pools = pools(reader, &top);
    let listeners = match top.get("listeners") {
        Some(node) => listeners(reader, node, &pools),
        None => Vec::new(),
    };
    let (mut routing, default_pool) = top.get("routing").map(|node| routing(reader, node, &pools)).unwrap_or_default();
    if let Some(error_replies) = top.get("error_replies").and_then(|node| reader.boolean(node)) {
        routing.error_replies = error_replies;
    }
    let limits = top.get("limits").map(|node| limits(reader, node)).unwrap_or_default();
    let admin = top.get("admin").and_then(|node| admin(reader, node, &listeners));
    let log = top.get("log").map(|node| log(reader, node)).unwrap_or_default();
    let wanted_mode = top.get("transport").and_then(|node| transport(reader, node));
    Some(Config {
        origin: origin.to_owned(),
        pools,
        listeners,
        limits,
        routing,
        default_pool,
        admin,
        log,
        wanted_mode,
        missing: Vec::new(),
    })
}

// Spec 9.3: at least one pool; unique ids.
fn pools<'t>(reader: &mut Reader<'t>, top: &Object<'t>) -> Vec<Pool> {
    let Some(node) = top.get("pools") else {
        let known = Node::clone(&top.node);
        reader.fail(&known, "pools is missing", Some("at least one pool is needed".to_owned()));
        return Vec::new();
    };
    let Some(elements) = reader.array(node) else { return Vec::new() };
    if elements.is_empty() {
        reader.fail(node, "must hold at least one pool", None);
    }
    let mut pools: Vec<Pool> = Vec::with_capacity(elements.len());
    let mut workers = 0;
    for element in &elements {
        let Some(object) = reader.object(element, "pools[]", keys::POOL) else { continue };
        let pool = pool(reader, &object);
        if let Some(first) = pools.iter().position(|other| other.core.id == pool.core.id)
            && let Some(id) = object.get("id")
        {
            reader.fail(id, format!("{:?} is the id of pools[{first}] already", pool.core.id), None);
        }
        let before = workers;
        workers += pool.core.max_instances;
        if before <= MAX_WORKERS && workers > MAX_WORKERS {
            let message = format!("makes {workers} workers over all pools, and {MAX_WORKERS} is the most");
            let key = ["max_instances", "instances"].into_iter().find_map(|key| object.get(key));
            reader.fail(key.unwrap_or(element), message, None);
        }
        pools.push(pool);
    }
    pools
}

fn pool<'t>(reader: &mut Reader<'t>, object: &Object<'t>) -> Pool {
    let id = match object.get("id") {
        Some(node) => pool_id(reader, node),
        None => {
            reader.missing(object, "id", "name the pool, as in \"id\": \"agents\"");
            None
        }
    };
    let id = id.unwrap_or_else(|| object.node.path.clone());
    let args = object.get("args").map(|node| strings(reader, node)).unwrap_or_default();
    let env = object.get("env").map(|node| environment(reader, node)).unwrap_or_default();
    let cwd = object.get("cwd").and_then(|node| {
        let directory = reader.string(node)?;
        match checked(&directory).and_then(command::working_directory) {
            Ok(path) => Some(path),
            Err(why) => {
                reader.fail(node, format!("the working directory {directory:?} of pool {id:?} {why}"), None);
                None
            }
        }
    });
    let (command, program) = program(reader, object, &id, env.get("PATH").map(String::as_str)).unwrap_or_default();
    let core = core(reader, object, id);
    let stderr = stderr(reader, object);
    Pool { core, command, program, args, env, cwd, stderr }
}

fn stderr<'t>(reader: &mut Reader<'t>, object: &Object<'t>) -> StderrLog {
    let default = StderrLog::default();
    let level = object.get("stderr_level").and_then(|node| reader.choice(node, &LEVELS));
    let lines_per_sec = number(reader, object, "stderr_lines_per_sec").and_then(|lines| u32::try_from(lines).ok());
    StderrLog { level: level.unwrap_or(default.level), lines_per_sec: lines_per_sec.unwrap_or(default.lines_per_sec) }
}

fn core<'t>(reader: &mut Reader<'t>, object: &Object<'t>, id: String) -> settings::Pool {
    let assignment = object.get("assignment").and_then(|node| {
        reader.choice(
            node,
            &[
                ("round_robin", Assignment::RoundRobin),
                ("client", Assignment::Client),
                ("dedicated", Assignment::Dedicated),
            ],
        )
    });
    let assignment = assignment.unwrap_or_default();
    if object.get("instances").is_none() {
        reader.missing(object, "instances", "say how many workers to keep running, as in \"instances\": 1");
    }
    let given = number(reader, object, "instances").map(|value| value as usize);
    let instances = given.unwrap_or(1);
    let mut max_instances = match assignment {
        Assignment::Dedicated => instances.max(DEFAULT_DEDICATED_WORKERS),
        Assignment::RoundRobin | Assignment::Client => instances,
    };
    if let Some(node) = object.get("max_instances") {
        let most = number(reader, object, "max_instances").map(|value| value as usize);
        if assignment != Assignment::Dedicated {
            let hint = "set \"assignment\": \"dedicated\", or leave max_instances out".to_owned();
            reader.fail(node, "is for pools that give each connection a worker of its own", Some(hint));
        } else if let Some(most) = most {
            if given.is_some() && most < instances {
                let message = format!("must be at least instances, which is {instances}, not {most}");
                reader.fail(node, message, None);
            }
            max_instances = most.max(instances);
        }
    }
    let cancel = object.get("cancel_on_disconnect").and_then(|node| reader.boolean(node));
    if let Some(node) = object.get("max_timeouts").filter(|_| object.get("request_timeout_sec").is_none()) {
        let hint = "set request_timeout_sec, or leave max_timeouts out".to_owned();
        reader.fail(node, "counts requests that run out of time, and none does", Some(hint));
    }
    let on_exit = object.get("on_exit").and_then(|node| {
        if assignment != Assignment::Dedicated {
            let hint = "set \"assignment\": \"dedicated\", or leave on_exit out".to_owned();
            reader.fail(node, "is for pools that give each connection a worker of its own", Some(hint));
        }
        reader.choice(node, &[("close", OnExit::Close), ("replace", OnExit::Replace)])
    });
    settings::Pool {
        id,
        instances,
        max_instances,
        assignment,
        cancel_on_disconnect: cancel.unwrap_or(false),
        request_timeout: number(reader, object, "request_timeout_sec").map(Duration::from_secs),
        deny_methods: object.get("deny_methods").map(|node| methods(reader, node)).unwrap_or_default(),
        max_timeouts: number(reader, object, "max_timeouts").and_then(|value| u32::try_from(value).ok()),
        retry_after: number(reader, object, "retry_after_sec").map(Duration::from_secs),
        on_exit: on_exit.unwrap_or_default(),
    }
}

fn pool_id<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<String> {
    let id = reader.string(node)?;
    let problem = if id.is_empty() {
        "must not be empty".to_owned()
    } else if id.len() > MAX_POOL_ID {
        format!("must be at most {MAX_POOL_ID} bytes long, not {}", id.len())
    } else if id.chars().any(char::is_control) {
        "must not contain control characters".to_owned()
    } else {
        return Some(id);
    };
    reader.fail(node, problem, None);
    None
}

// Spec 9.3.3: a valid command path.
fn program<'t>(
    reader: &mut Reader<'t>,
    object: &Object<'t>,
    id: &str,
    search_path: Option<&str>,
) -> Option<(String, std::path::PathBuf)> {
    let Some(node) = object.get("command") else {
        reader.missing(object, "command", "name the program to run, as in \"command\": \"python3\"");
        return None;
    };
    let command = reader.string(node)?;
    if let Err(why) = checked(&command) {
        reader.fail(node, format!("the command {command:?} of pool {id:?} {why}"), None);
        return None;
    }
    match command::resolve(&command, search_path) {
        Ok(program) => Some((command, program)),
        Err(why) => {
            // A whole command line in `command` is the commonest mistake of all.
            let words = command.split_whitespace().count();
            let hint = (words > 1 && !Path::new(&command).exists())
                .then(|| "the arguments belong into \"args\", one string each".to_owned());
            reader.fail_pool(node, format!("the command {command:?} of pool {id:?} {why}"), hint);
            let expected = command::expected(&command, search_path);
            Some((command, expected))
        }
    }
}

fn strings<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Vec<String> {
    let elements = reader.array(node).unwrap_or_default();
    let mut strings = Vec::with_capacity(elements.len());
    for element in &elements {
        let Some(text) = reader.string(element) else { continue };
        if text.contains('\0') {
            reader.fail(element, "must not contain a zero byte", None);
        }
        strings.push(text);
    }
    strings
}

fn methods<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Vec<String> {
    let mut methods = Vec::new();
    for element in reader.array(node).unwrap_or_default() {
        let Some(method) = reader.string(&element) else { continue };
        if method.is_empty() {
            let hint = "name a method, as in \"session/list\"".to_owned();
            reader.fail(&element, "must not be empty", Some(hint));
        }
        methods.push(method);
    }
    methods
}

fn environment<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> BTreeMap<String, String> {
    let mut environment = BTreeMap::new();
    for (name, name_node, value) in reader.strings_by_name(node).unwrap_or_default() {
        if name.is_empty() || name.contains(['=', '\0']) {
            reader.fail(&name_node, format!("{name:?} cannot be the name of a variable"), None);
        } else if value.contains('\0') {
            reader.fail(&name_node, "must not contain a zero byte", None);
        }
        environment.insert(name, value);
    }
    environment
}

fn checked(path: &str) -> Result<&str, String> {
    match path {
        "" => Err("must not be empty".to_owned()),
        _ if path.contains('\0') => Err("must not contain a zero byte".to_owned()),
        _ => Ok(path),
    }
}

fn listeners<'t>(reader: &mut Reader<'t>, node: &Node<'t>, pools: &[Pool]) -> Vec<Listener> {
    let mut listeners: Vec<Listener> = Vec::new();
    for element in reader.array(node).unwrap_or_default() {
        let Some(object) = reader.object(&element, "listeners[]", keys::LISTENER) else { continue };
        let pool = object.get("pool").and_then(|node| pool_index(reader, node, pools));
        let named = object.get("pools").and_then(|node| pool_indexes(reader, node, pools));
        if let (Some(node), Some(pool), Some(named)) = (object.get("pool"), pool, &named)
            && !named.contains(&pool)
        {
            let id = &pools[pool].core.id;
            let hint = format!("add {id:?} to pools, or leave pool out");
            reader.fail(node, format!("{id:?} is not among the pools of this listener"), Some(hint));
        }
        let max_connections = object.get("max_connections").map(|node| max_connections(reader, node));
        let patience = patience(reader, &object);
        let closes_when_not_ready = object
            .get("when_not_ready")
            .and_then(|node| reader.choice(node, &[("accept", false), ("close", true)]))
            .unwrap_or_default();
        let Some((node, listen)) = listen(reader, &object) else { continue };
        let web = web(reader, &object, &listen, pools);
        if listeners.iter().any(|other| same_place(&other.listen, &listen)) {
            reader.fail(&node, format!("{listen} is listened on already"), None);
        }
        // Who was given one pool was not given the others.
        let named = named.or_else(|| pool.map(|pool| vec![pool]));
        let max_connections = max_connections.unwrap_or_default();
        let entry = entry(reader, &object, &listen);
        listeners.push(Listener {
            listen,
            pool,
            pools: named,
            max_connections,
            patience,
            entry,
            closes_when_not_ready,
            web,
        });
    }
    listeners
}

fn patience<'t>(reader: &mut Reader<'t>, object: &Object<'t>) -> Patience {
    let [first_line, idle] =
        ["first_line_timeout_sec", "idle_timeout_sec"].map(|key| number(reader, object, key).map(Duration::from_secs));
    let keepalive = number(reader, object, "keepalive_sec").map(Duration::from_secs);
    if let Some(node) = object.get("keepalive_sec").filter(|_| object.get("unix").is_some()) {
        let hint = "leave it out: the kernel knows at once when a process of this machine has gone".to_owned();
        reader.fail(node, "is for connections over TCP", Some(hint));
    }
    let closes_sessions = object.get("idle_closes_sessions");
    if let Some(node) = closes_sessions.filter(|_| object.get("idle_timeout_sec").is_none()) {
        let hint = "set idle_timeout_sec, or leave it out".to_owned();
        reader.fail(node, "says which idle clients are closed, and none is", Some(hint));
    }
    let closes_sessions = closes_sessions.and_then(|node| reader.boolean(node)).unwrap_or(false);
    Patience { first_line, idle, closes_sessions, keepalive }
}

fn entry<'t>(reader: &mut Reader<'t>, object: &Object<'t>, listen: &Listen) -> Entry {
    let is_unix = matches!(listen, Listen::Unix { .. });
    let proxy = object.get("proxy").and_then(|node| proxy(reader, node, is_unix));
    let allow = object.get("allow").and_then(|node| {
        if is_unix && object.get("proxy").is_none() {
            let hint =
                "use mode, owner or peer_uids; with proxy it is about the addresses that the proxy tells".to_owned();
            reader.fail(node, "is addresses of the network; who connects to a Unix socket has none", Some(hint));
            return None;
        }
        networks(reader, node)
    });
    let peer_uids = object.get("peer_uids").and_then(|node| {
        if !is_unix {
            let hint = "use allow".to_owned();
            reader.fail(node, "is users of this machine; who connects to a TCP port is not known by one", Some(hint));
            return None;
        }
        user_ids(reader, node)
    });
    Entry { allow, peer_uids, proxy }
}

fn proxy<'t>(reader: &mut Reader<'t>, node: &Node<'t>, is_unix: bool) -> Option<Proxy> {
    let object = reader.object(node, "listeners[].proxy", keys::PROXY)?;
    let Some(from) = object.get("from") else {
        let hint =
            if is_unix { "\"from\": [\"unix\"]" } else { "\"from\": [\"192.0.2.10\"], the addresses of the proxies" };
        reader.missing(&object, "from", &format!("write {hint}"));
        return None;
    };
    let from = proxies(reader, from, is_unix)?;
    let required = object.get("required").and_then(|node| reader.boolean(node)).unwrap_or(true);
    let timeout = number(reader, &object, "timeout_ms").map_or(Proxy::DEFAULT_TIMEOUT, Duration::from_millis);
    Some(Proxy { from, required, timeout })
}

fn proxies<'t>(reader: &mut Reader<'t>, from: &Node<'t>, is_unix: bool) -> Option<Proxies> {
    if !is_unix {
        return Some(Proxies::Networks(networks(reader, from)?));
    }
    let elements = reader.array(from)?;
    let names: Vec<Option<String>> = elements.iter().map(|element| reader.string(element)).collect();
    if names.iter().all(Option::is_some) && names != [Some("unix".to_owned())] {
        let hint = "write [\"unix\"], and keep others out with mode, owner or peer_uids".to_owned();
        reader.fail(from, "of a Unix socket is whoever may connect to it", Some(hint));
    }
    Some(Proxies::Unix)
}

/// Keys that only a WebSocket has.
const WEB: [&str; 7] = ["path", "origins", "hosts", "tokens_file", "trusted_proxies", "ping_sec", "pong_timeout_sec"];

fn web<'t>(reader: &mut Reader<'t>, object: &Object<'t>, listen: &Listen, pools: &[Pool]) -> Option<Web> {
    if object.get("ws").is_none() {
        for node in WEB.iter().filter_map(|key| object.get(key)) {
            let hint = "write \"ws\" instead of \"tcp\" or \"unix\", or leave it out".to_owned();
            reader.fail(node, "is of a WebSocket listener", Some(hint));
        }
        return None;
    }
    let default = Web::default();
    let is_unix = matches!(listen, Listen::Unix { .. });
    let ping = number(reader, object, "ping_sec").map(|seconds| (seconds > 0).then(|| Duration::from_secs(seconds)));
    let pong_timeout = number(reader, object, "pong_timeout_sec").map(Duration::from_secs);
    if let (Some(None), Some(node)) = (ping, object.get("pong_timeout_sec")) {
        let hint = "set ping_sec, or leave it out".to_owned();
        reader.fail(node, "is how long an answer to a ping may take, and nobody is pinged", Some(hint));
    }
    let (tokens_file, tokens) = match object.get("tokens_file") {
        Some(node) => tokens_file(reader, node, pools),
        None => (None, Tokens::default()),
    };
    Some(Web {
        path: object.get("path").and_then(|node| web_path(reader, node)).unwrap_or(default.path),
        origins: object.get("origins").map(|node| origins(reader, node)).unwrap_or_default(),
        hosts: object.get("hosts").map(|node| hosts(reader, node)).unwrap_or_default(),
        tokens_file,
        tokens,
        trusted_proxies: object.get("trusted_proxies").and_then(|node| proxies(reader, node, is_unix)),
        ping: ping.unwrap_or(default.ping),
        pong_timeout: pong_timeout.unwrap_or(default.pong_timeout),
    })
}

fn web_path<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<String> {
    let path = reader.string(node)?;
    let is_path = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte));
    if !is_path {
        let hint = "write it as it stands in the URL, as in \"/acp\"".to_owned();
        reader.fail(node, format!("must be a path without blanks and query, not {path:?}"), Some(hint));
    } else if path == HEALTH {
        reader.fail(node, format!("{HEALTH} is where balancers ask"), None);
    }
    is_path.then_some(path)
}

fn origins<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Vec<String> {
    let mut origins = Vec::new();
    for element in reader.array(node).unwrap_or_default() {
        let Some(origin) = reader.string(&element) else { continue };
        let host = origin.split_once("://").map(|(_, host)| host);
        let is_origin = host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#']));
        if !is_origin && origin != "*" && origin != "null" {
            let hint = "write \"https://app.example\" or \"http://localhost:8080\", without a slash at the end; \
                        \"*\" is every page there is"
                .to_owned();
            reader.fail(&element, format!("must be an origin, not {origin:?}"), Some(hint));
        }
        origins.push(origin.to_ascii_lowercase());
    }
    origins
}

fn hosts<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Vec<String> {
    let mut hosts = Vec::new();
    for element in reader.array(node).unwrap_or_default() {
        let Some(host) = reader.string(&element) else { continue };
        let is_name =
            !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        if !is_name {
            let hint =
                "write \"bus.example\", without scheme, port and path; addresses and localhost need not be listed";
            reader.fail(&element, format!("must be the name of a host, not {host:?}"), Some(hint.to_owned()));
        }
        hosts.push(host.to_ascii_lowercase());
    }
    hosts
}

fn tokens_file<'t>(reader: &mut Reader<'t>, node: &Node<'t>, pools: &[Pool]) -> (Option<PathBuf>, Tokens) {
    let Some(path) = reader.string(node) else { return (None, Tokens::default()) };
    let ids: Vec<&str> = pools.iter().map(|pool| pool.core.id.as_str()).collect();
    let read = small_file(&path).and_then(|bytes| String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned()));
    let tokens = read.and_then(|text| Tokens::parse(&text, &ids));
    match &tokens {
        Ok(tokens) if tokens.is_empty() => {
            let hint = "write a line NAME:TOKEN for each client; make a token with: openssl rand -hex 32".to_owned();
            reader.fail(node, format!("{path:?} has no token, so nobody could come in"), Some(hint));
        }
        Ok(_) => {}
        Err(why) => reader.fail(node, format!("the tokens file {path:?}: {why}"), None),
    }
    (Some(path.into()), tokens.unwrap_or_default())
}

fn small_file(path: &str) -> Result<Vec<u8>, String> {
    checked(path).and_then(|path| small_file::read(path.as_ref()).map_err(|error| command::reason(&error)))
}

fn networks<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<Vec<Network>> {
    let elements = reader.array(node)?;
    if elements.is_empty() {
        let hint = "write \"0.0.0.0/0\" and \"::/0\" for everybody".to_owned();
        reader.fail(node, "must name at least one network", Some(hint));
    }
    let mut networks = Vec::with_capacity(elements.len());
    for element in &elements {
        let Some(text) = reader.string(element) else { continue };
        match Network::parse(&text) {
            Ok(network) => networks.push(network),
            Err(_) if text == "unix" => {
                reader.fail(element, "is for listeners on a Unix socket; a TCP port has addresses", None);
            }
            Err(why) => reader.fail(element, why, None),
        }
    }
    Some(networks)
}

fn user_ids<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<Vec<u32>> {
    let elements = reader.array(node)?;
    if elements.is_empty() {
        let hint = "leave it out for everybody who may open the socket".to_owned();
        reader.fail(node, "must name at least one user", Some(hint));
    }
    let mut users = Vec::with_capacity(elements.len());
    for element in &elements {
        if element.is_number() {
            users.extend(reader.integer(element, 0..=MAX_ID.into()).map(|id| id as u32));
        } else if let Some(name) = reader.string(element) {
            users.extend(known(reader, element, users::user(&name)));
        }
    }
    Some(users)
}

fn known<'t>(reader: &mut Reader<'t>, node: &Node<'t>, id: Result<u32, String>) -> Option<u32> {
    id.map_err(|why| reader.fail(node, why, None)).ok()
}

/// `user`, `user:group` or `:group`, each a name or a number, as chown(1) takes them.
fn owner<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<Owner> {
    let text = reader.string(node)?;
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text.as_str(), None),
    };
    if group == Some("") || user.is_empty() && group.is_none() {
        let hint = "write \"user\", \"user:group\" or \":group\", with names or numbers".to_owned();
        reader.fail(node, format!("must name an owner, not {text:?}"), Some(hint));
        return None;
    }
    let user = if user.is_empty() { None } else { Some(known(reader, node, users::user(user))?) };
    let group = match group {
        Some(group) => Some(known(reader, node, users::group(group))?),
        None => None,
    };
    Some(Owner { user, group })
}

fn pool_index<'t>(reader: &mut Reader<'t>, node: &Node<'t>, pools: &[Pool]) -> Option<usize> {
    let id = reader.string(node)?;
    let index = pools.iter().position(|pool| pool.core.id == id);
    if index.is_none() {
        let ids: Vec<&str> = pools.iter().map(|pool| pool.core.id.as_str()).collect();
        let hint = match keys::nearest(&id, &ids) {
            Some(name) => format!("did you mean \"{name}\"?"),
            None => format!("the pools are {}", ids.join(", ")),
        };
        reader.fail(node, format!("there is no pool {id:?}"), Some(hint));
    }
    index
}

/// None if something is wrong with them, so that what follows from them is not reported as well.
fn pool_indexes<'t>(reader: &mut Reader<'t>, node: &Node<'t>, pools: &[Pool]) -> Option<Vec<usize>> {
    let elements = reader.array(node)?;
    if elements.is_empty() {
        let hint = "leave it out for all pools".to_owned();
        reader.fail(node, "must name at least one pool", Some(hint));
        return None;
    }
    let mut indexes = Vec::with_capacity(elements.len());
    let mut good = true;
    for element in &elements {
        match pool_index(reader, element, pools) {
            Some(index) if indexes.contains(&index) => {
                reader.fail(element, format!("{:?} is named twice", pools[index].core.id), None);
            }
            Some(index) => indexes.push(index),
            None => good = false,
        }
    }
    good.then_some(indexes)
}

fn max_connections<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> MaxConnections {
    if !node.is_object() {
        let total = reader.integer(node, keys::range("max_connections")).map(|value| value as usize);
        return MaxConnections { total, per_source: None };
    }
    let section = "listeners[].max_connections";
    let Some(object) = reader.object(node, section, keys::MAX_CONNECTIONS_OF) else {
        return MaxConnections::default();
    };
    let count = |reader: &mut Reader<'t>, key| number(reader, &object, key).map(|value| value as usize);
    let (total, per_source) = (count(reader, "total"), count(reader, "per_source"));
    if keys::MAX_CONNECTIONS_OF.iter().all(|key| object.get(key).is_none()) {
        let hint = "write a number, or {\"total\": 100, \"per_source\": 10}".to_owned();
        reader.fail(node, "needs total or per_source", Some(hint));
    }
    if let (Some(total), Some(per_source), Some(node)) = (total, per_source, object.get("per_source"))
        && per_source > total
    {
        reader.fail(node, format!("must be at most total, which is {total}, not {per_source}"), None);
    }
    MaxConnections { total, per_source }
}

fn listen<'t>(reader: &mut Reader<'t>, object: &Object<'t>) -> Option<(Node<'t>, Listen)> {
    let mode = object.get("mode").map(|node| (node, socket_mode(reader, node)));
    let owner = object.get("owner").map(|node| (node, owner(reader, node)));
    let (node, address) = match (object.get("tcp"), object.get("unix"), object.get("ws")) {
        (Some(node), None, None) => (node, Address::from_listener(&reader.string(node)?)),
        (None, Some(node), None) => (node, Address::from_unix_listener(reader.string(node)?)),
        (None, None, Some(node)) => {
            let text = reader.string(node)?;
            let path = object.get("path").filter(|_| text.starts_with("ws://"));
            let path = path.and_then(|path| reader.string(path)).unwrap_or_else(|| Web::default().path);
            let is_unix = text.starts_with("unix:");
            (node, if is_unix { Address::from_url(&text) } else { Address::from_websocket(&text, &path) })
        }
        (None, None, None) => {
            let hint = "write \"tcp\": \"127.0.0.1:9000\", \"unix\": \"/run/stdio_bus.sock\" or \"ws\": \
                        \"127.0.0.1:9000\""
                .to_owned();
            reader.fail(&object.node, "needs tcp, unix or ws", Some(hint));
            return None;
        }
        _ => {
            let hint = "make a listener of each".to_owned();
            reader.fail(&object.node, "has more than one of tcp, unix and ws", Some(hint));
            return None;
        }
    };
    let mut listen = match address {
        Ok(address) => Listen::from(address),
        Err(error) => {
            reader.fail(node, error.to_string(), None);
            return None;
        }
    };
    set_mode(reader, &mut listen, mode);
    match (&mut listen, owner) {
        (Listen::Unix { path, .. }, Some((owner_node, _))) if address::is_abstract(path) => {
            reader.fail(owner_node, "is of a socket file; an abstract name has none", None);
        }
        (Listen::Unix { owner, .. }, Some((_, Some(given)))) => *owner = given,
        (Listen::Tcp { .. }, Some((owner_node, _))) => {
            reader.fail(owner_node, "is of the file of a Unix socket; a TCP port has none", None);
        }
        _ => {}
    }
    Some((node.clone(), listen))
}

/// Gives a socket file the permissions that stand beside its address, if any do.
fn set_mode<'t>(reader: &mut Reader<'t>, listen: &mut Listen, mode: Option<(&Node<'t>, Option<u32>)>) {
    match (listen, mode) {
        (Listen::Unix { path, .. }, Some((mode_node, _))) if address::is_abstract(path) => {
            reader.fail(mode_node, "is the permissions of a socket file; an abstract name has none", None);
        }
        (Listen::Unix { mode, .. }, Some((_, Some(given)))) => *mode = given,
        (Listen::Tcp { .. }, Some((mode_node, _))) => {
            reader.fail(mode_node, "is the permissions of a Unix socket; a TCP port has none", None);
        }
        _ => {}
    }
}

fn admin<'t>(reader: &mut Reader<'t>, node: &Node<'t>, listeners: &[Listener]) -> Option<Admin> {
    let object = reader.object(node, "admin", keys::ADMIN)?;
    let mode = object.get("mode").map(|node| (node, socket_mode(reader, node)));
    let (token, token_file) = object.get("token_file").and_then(|node| token(reader, node)).unzip();
    let Some(node) = object.get("listen") else {
        let hint = "say where, as in \"listen\": \"/run/stdio_bus/admin.sock\"";
        reader.missing(&object, "listen", hint);
        return None;
    };
    let address = Address::from_any(&reader.string(node)?);
    let mut listen = match address {
        Ok(address) => Listen::from(address),
        Err(error) => {
            reader.fail(node, error.to_string(), None);
            return None;
        }
    };
    if listeners.iter().any(|other| same_place(&other.listen, &listen)) {
        reader.fail(node, format!("{listen} is a listener for clients already"), None);
    }
    set_mode(reader, &mut listen, mode);
    Some(Admin { listen, token, token_file })
}

fn token<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<(Token, PathBuf)> {
    let path = reader.string(node)?;
    match small_file(&path).map(|bytes| Token::new(&bytes)) {
        Ok(token) => match token.check() {
            Ok(()) => return Some((token, path.into())),
            Err(why) => {
                let hint = "make one with: openssl rand -hex 32".to_owned();
                reader.fail(node, format!("the token in {path:?} {why}"), Some(hint));
            }
        },
        Err(why) => reader.fail(node, format!("the token file {path:?} {why}"), None),
    }
    None
}

fn socket_mode<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<u32> {
    let text = reader.string(node)?;
    let octal = matches!(text.len(), 3 | 4) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| octal && *mode <= 0o777);
    if mode.is_none() {
        let hint = "\"0600\" is its owner alone, \"0660\" its group, too".to_owned();
        reader.fail(node, format!("must be octal permissions from \"0000\" to \"0777\", not {text:?}"), Some(hint));
    }
    mode
}

// Spec 9.3.5 and 9.3.6: what is left out keeps its default.
fn limits<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Limits {
    let default = Limits::default();
    let Some(object) = reader.object(node, "limits", keys::LIMITS) else { return default };
    let bytes = |reader: &mut Reader<'t>, key, default| {
        number(reader, &object, key).and_then(|value| usize::try_from(value).ok()).unwrap_or(default)
    };
    let seconds = |reader: &mut Reader<'t>, key, default| {
        number(reader, &object, key).map(Duration::from_secs).unwrap_or(default)
    };
    Limits {
        max_input_buffer: bytes(reader, "max_input_buffer", default.max_input_buffer),
        max_output_queue: bytes(reader, "max_output_queue", default.max_output_queue),
        max_restarts: number(reader, &object, "max_restarts")
            .and_then(|value| u32::try_from(value).ok())
            .unwrap_or(default.max_restarts),
        restart_window: seconds(reader, "restart_window_sec", default.restart_window),
        drain_timeout: seconds(reader, "drain_timeout_sec", default.drain_timeout),
        backpressure_timeout: seconds(reader, "backpressure_timeout_sec", default.backpressure_timeout),
        lame_duck: seconds(reader, "lame_duck_sec", default.lame_duck),
        quiesce: seconds(reader, "quiesce_sec", default.quiesce),
        drain_grace: number(reader, &object, "drain_grace_ms")
            .map(Duration::from_millis)
            .unwrap_or(default.drain_grace),
        hold: number(reader, &object, "hold_ms").map(Duration::from_millis).unwrap_or(default.hold),
        session_idle: number(reader, &object, "session_idle_sec")
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs),
        requests_ahead: default.requests_ahead,
        max_memory: bytes(reader, "max_memory", default.max_memory),
        on_failure: object
            .get("on_failure")
            .and_then(|node| reader.choice(node, &[("stay", OnFailure::Stay), ("exit", OnFailure::Exit)]))
            .unwrap_or_default(),
    }
}

/// The section, and the pool of listeners that prefer none.
fn routing<'t>(reader: &mut Reader<'t>, node: &Node<'t>, pools: &[Pool]) -> (Routing, Option<usize>) {
    let default = Routing::default();
    let Some(object) = reader.object(node, "routing", keys::ROUTING) else { return (default, None) };
    let default_pool = object.get("default_pool").and_then(|node| pool_index(reader, node, pools));
    let id_collision = object.get("id_collision").and_then(|node| {
        let choices =
            [("translate", IdCollision::Translate), ("reject", IdCollision::Reject), ("always", IdCollision::Always)];
        reader.choice(node, &choices)
    });
    let session_access = object
        .get("session_access")
        .and_then(|node| reader.choice(node, &[("owner", SessionAccess::Owner), ("shared", SessionAccess::Shared)]));
    let routing = Routing {
        id_collision: id_collision.unwrap_or_default(),
        session_access: session_access.unwrap_or_default(),
        error_replies: default.error_replies,
    };
    (routing, default_pool)
}

fn log<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Log {
    let Some(object) = reader.object(node, "log", keys::LOG) else { return Log::default() };
    let level = object.get("level").and_then(|node| reader.choice(node, &LEVELS));
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let format = object.get("format").and_then(|node| reader.choice(node, &formats));
    Log { level: level.unwrap_or_default(), format: format.unwrap_or_default() }
}

/// The section that the C daemon has: accepted as far as it asks for what this bus does anyway.
fn transport<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<Mode> {
    let object = reader.object(node, "transport", keys::TRANSPORT)?;
    for (key, only) in [("framing", "ndjson"), ("protocol", "json")] {
        let Some(node) = object.get(key) else { continue };
        let Some(value) = reader.string(node) else { continue };
        if value != only {
            let hint = format!("\"{only}\" is the only one; leave transport.{key} out, or use the C daemon for others");
            reader.fail(node, format!("{value:?} is not supported"), Some(hint));
        }
    }
    if let Some(node) = object.get("options") {
        // They tune the C daemon's message queues, which no supported mode has; any object will do.
        reader.members(node, |_| true);
    }
    let node = object.get("mode")?;
    let mode = reader.string(node)?;
    match mode.as_str() {
        "stdio" => Some(Mode::Stdio),
        "unix" => Some(Mode::Unix),
        "tcp" => Some(Mode::Tcp),
        _ => {
            let hint = "use stdio, unix or tcp; the flags --stdio, --unix and --tcp come before it".to_owned();
            reader.fail(node, format!("the transport {mode:?} is not supported"), Some(hint));
            None
        }
    }
}

fn number<'t>(reader: &mut Reader<'t>, object: &Object<'t>, key: &'static str) -> Option<u64> {
    object.get(key).and_then(|node| reader.integer_or(node, keys::range(key), keys::instead_of_zero(key)))
}
