//! Converts JSON with positions to a [`Config`], by the rules of spec section 9 and of `docs/configuration.md`.
//!
//! Each function reads one section and adds all problems in it. It falls back to a default where a value is wrong,
//! which is safe because a reader with problems never returns a [`Config`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::command;
use super::confine::rights;
use super::document::{Node, Object, Problem, Reader};
use super::listeners::listeners;
use super::reference::{self, Value};
use super::values::{checked, denied, number, set_mode, small_file, socket_mode};
use super::{
    Admin, Config, DEFAULT_CONCURRENCY, DEFAULT_DEDICATED_WORKERS, DEFAULT_START_TIMEOUT, EnvFrom, LEVELS, Listen,
    Listener, Log, LogFormat, Mode, PoolConfig, Text, client_env, daemon_name, same_place,
};
use crate::access::Secret;
use crate::address::Address;
use crate::bus::settings::{
    self, Assignment, BadOutput, Check, IdCollision, Limits, MAX_WORKERS, Routing, SessionAccess, Start,
};

/// Maximum length of a pool id in bytes: it is in every line of its workers' stderr.
const MAX_POOL_ID: usize = 64;

/// Default of `lame_duck_sec` where daemons share a port. Who has just connected when a daemon begins to drain is
/// still served by it; new clients are another daemon's from then on.
const SHARED_LAME_DUCK: Duration = Duration::from_secs(1);

/// Reads a whole configuration, or returns everything that is wrong with it.
pub(super) fn config(text: &str, origin: &str) -> Result<Config, (Vec<Problem>, usize, LogFormat)> {
    let mut reader = Reader::new(text);
    let config = top(&mut reader, text, origin);
    let has_pool = config.as_ref().is_some_and(|config| config.pools.len() > reader.of_pools.len());
    if !has_pool || !reader.problems.is_empty() {
        reader.problems.append(&mut reader.of_pools);
    }
    match config {
        Some(config) if reader.problems.is_empty() => {
            Ok(Config { missing: reader.of_pools, unprivileged: reader.of_privileges, ..config })
        }
        other => {
            reader.problems.sort_by_key(|problem| (problem.line, problem.column));
            Err((reader.problems, reader.omitted, other.map(|config| config.log.format).unwrap_or_default()))
        }
    }
}

fn top(reader: &mut Reader<'_>, text: &str, origin: &str) -> Option<Config> {
    let root = reader.root()?;
    let top = reader.object(&root, "")?;
    let pools = pools(reader, &top);
    let listeners = match top.get("listeners") {
        Some(node) => listeners(reader, node, &pools),
        None => Vec::new(),
    };
    let routing = top.get("routing").map(|node| routing(reader, node)).unwrap_or_default();
    let mut default = Limits::default();
    if listeners.iter().any(|listener| listener.reuse_port) {
        default.lame_duck = SHARED_LAME_DUCK;
    }
    let limits = match top.get("limits") {
        Some(node) => limits(reader, node, default),
        None => default,
    };
    let admin = top.get("admin").and_then(|node| admin(reader, node, &listeners));
    let log = top.get("log").map(|node| log(reader, node)).unwrap_or_default();
    let state = top.get("state").and_then(|node| path(reader, node, "the folder"));
    let node = top.get("node").and_then(|node| name(reader, node)).unwrap_or_else(daemon_name::of_host);
    let wanted_mode = top.get("transport").and_then(|node| transport(reader, node));
    Some(Config {
        origin: origin.to_owned(),
        node: node.into(),
        pools,
        listeners,
        reordered: None,
        limits,
        routing,
        admin,
        log,
        state,
        wanted_mode,
        missing: Vec::new(),
        unprivileged: Vec::new(),
        text: Text(Arc::from(text)),
    })
}

/// The daemon's name.
fn name<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<String> {
    let text = reader.string(node)?;
    if daemon_name::is_name(&text) {
        return Some(text);
    }
    let hint = "as in \"node\": \"bus-1\"; left out, it is the name of the host".to_owned();
    let most = daemon_name::LONGEST;
    reader.fail(node, format!("must be 1 to {most} letters, digits, - and _, not {text:?}"), Some(hint));
    None
}

// Spec 9.3: at least one pool; unique ids.
fn pools<'t>(reader: &mut Reader<'t>, top: &Object<'t>) -> Vec<PoolConfig> {
    let Some(node) = top.get("pools") else {
        let known = Node::clone(&top.node);
        reader.fail(&known, "pools is missing", Some("at least one pool is needed".to_owned()));
        return Vec::new();
    };
    let hint = "as in [{ \"id\": \"a\", \"command\": \"python3\", \"args\": [\"worker.py\"], \"instances\": 1 }]";
    let elements = reader.elements(node, "must hold at least one pool", hint).unwrap_or_default();
    let mut pools: Vec<PoolConfig> = Vec::with_capacity(elements.len());
    let mut workers = 0;
    for element in &elements {
        let Some(object) = reader.object(element, "pools[]") else { continue };
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

fn pool<'t>(reader: &mut Reader<'t>, object: &Object<'t>) -> PoolConfig {
    let id = match object.get("id") {
        Some(node) => pool_id(reader, node),
        None => {
            reader.missing(object, "id", "name the pool, as in \"id\": \"agents\"");
            None
        }
    };
    let id = id.unwrap_or_else(|| object.node.path.clone());
    let args = object.get("args").map(|node| {
        reader.strings(node, |text| text.contains('\0').then(|| ("must not contain a zero byte".to_owned(), None)))
    });
    let args = args.unwrap_or_default();
    let env = object.get("env").map(|node| environment(reader, node)).unwrap_or_default();
    let cwd = object.get("cwd").and_then(|node| {
        let directory = reader.string(node)?;
        let path = checked(&directory).and_then(command::working_directory);
        reader.found(node, path.map_err(|why| format!("the working directory {directory:?} of pool {id:?} {why}")))
    });
    let search_path = match env.get("PATH").map(|path| Value::of(path)) {
        Some(Value::Text(path)) => Some(path),
        _ => None,
    };
    let (command, program) = program(reader, object, &id, search_path).unwrap_or_default();
    let core = core(reader, object, id);
    let env_from = client_env::env_from(reader, object, core.assignment, |name| env.contains_key(name));
    let has_headers = env_from.as_ref().is_some_and(EnvFrom::has_headers);
    let restores = object.get("restore").and_then(|node| reader.boolean(node));
    if let Some(node) = object.get("restore").filter(|_| has_headers && restores == Some(true)) {
        let hint = "leave restore out: such sessions end with the daemon".to_owned();
        reader.fail(node, "needs what the client has sent in its headers, and that is kept nowhere", Some(hint));
    }
    let recycle_memory = number(reader, object, "recycle_memory_mb");
    let restores = restores.unwrap_or(!has_headers);
    let (says_assignment, rights) = (object.get("assignment").is_some(), rights(reader, object));
    PoolConfig { core, says_assignment, command, program, args, env, env_from, cwd, restores, rights, recycle_memory }
}

fn core<'t>(reader: &mut Reader<'t>, object: &Object<'t>, id: String) -> settings::Pool {
    let assignments = [Assignment::RoundRobin, Assignment::Client, Assignment::Dedicated];
    let assignment = reader.choice(object, "assignment", assignments).unwrap_or_default();
    let personal = object.get("env_from").is_some();
    if object.get("instances").is_none() && !personal {
        reader.missing(object, "instances", "say how many workers to keep running, as in \"instances\": 1");
    }
    let given = number(reader, object, "instances").map(|value| value as usize);
    // Where each worker is for one client there are none before.
    let instances = if personal { 0 } else { given.unwrap_or(1) };
    let mut max_instances = match assignment {
        Assignment::Dedicated => instances.max(DEFAULT_DEDICATED_WORKERS),
        Assignment::RoundRobin | Assignment::Client => instances,
    };
    if let Some(node) = object.get("max_instances") {
        let most = number(reader, object, "max_instances").map(|value| value as usize);
        if let Some(most) = most {
            if given.is_some() && most < instances {
                let message = format!("must be at least instances, which is {instances}, not {most}");
                reader.fail(node, message, None);
            }
            max_instances = most.max(instances);
        }
    }
    if let Some(node) = object.get("concurrency").filter(|_| assignment == Assignment::Dedicated) {
        let hint = "leave it out: each connection has a worker of its own".to_owned();
        reader.fail(node, "is for pools whose clients share workers", Some(hint));
    }
    let concurrency = number(reader, object, "concurrency").map_or(DEFAULT_CONCURRENCY, |value| value as usize);
    let (deny_methods, tools) = denied(reader, object);
    let start = reader.choice(object, "start", [Start::AtOnce, Start::OnDemand]).unwrap_or_default();
    let idle_stop = number(reader, object, "idle_stop_sec").filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let start_timeout = number(reader, object, "start_timeout_sec");
    let grows = assignment != Assignment::Dedicated && max_instances > instances;
    // A file may write out the defaults.
    let is_set = start_timeout.is_some_and(|n| n != DEFAULT_START_TIMEOUT);
    if let Some(node) = object.get("start_timeout_sec").filter(|_| is_set && start == Start::AtOnce) {
        let hint = "set \"start\": \"on_demand\", or leave start_timeout_sec out".to_owned();
        reader.fail(node, "is for pools that start on demand", Some(hint));
    }
    let has_use = start == Start::OnDemand || grows;
    if let Some(node) = object.get("idle_stop_sec").filter(|_| idle_stop.is_some() && !has_use) {
        let hint = "set \"start\": \"on_demand\", or a max_instances above instances where clients share workers, or leave \
                    idle_stop_sec out";
        reader.fail(node, "is for pools that start on demand or grow", Some(hint.to_owned()));
    }
    let start_timeout = start_timeout.unwrap_or(DEFAULT_START_TIMEOUT);
    let start_timeout = Some(Duration::from_secs(start_timeout));
    let cancel = object.get("cancel_on_disconnect").and_then(|node| reader.boolean(node));
    settings::Pool {
        id,
        instances,
        max_instances,
        concurrency,
        assignment,
        personal,
        start,
        idle_stop,
        start_timeout: start_timeout.filter(|_| start == Start::OnDemand).filter(|limit| !limit.is_zero()),
        cancel_on_disconnect: cancel.unwrap_or(false),
        on_bad_output: reader.choice(object, "on_bad_output", [BadOutput::Restart, BadOutput::Skip]),
        request_timeout: number(reader, object, "request_timeout_sec").map(Duration::from_secs),
        idle_timeout: number(reader, object, "idle_timeout_sec").map(Duration::from_secs),
        worker_silent: number(reader, object, "worker_silent_sec").map(Duration::from_secs),
        check: object.get("check").and_then(|node| check(reader, node)),
        deny_methods,
        tools,
        max_age: number(reader, object, "max_age_sec").map(Duration::from_secs),
        max_requests: number(reader, object, "max_requests").and_then(|value| u32::try_from(value).ok()),
        ..settings::Pool::default()
    }
}

/// How the workers of a pool are checked.
fn check<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<Check> {
    let object = reader.object(node, "pools[].check")?;
    if object.get("every_sec").is_none() {
        reader.missing(
            &object,
            "every_sec",
            "say how long a worker is silent before each check, as in \"every_sec\": 30",
        );
    }
    let every = number(reader, &object, "every_sec").map(Duration::from_secs);
    let send = object.get("send").and_then(|node| {
        let text = reader.string(node)?;
        let request = request_without_id(&text).map_err(|why| format!("the request {text:?} {why}"));
        reader.found(node, request)
    });
    let expects = object.get("expect").and_then(|node| {
        let text = reader.string(node)?;
        if text.is_empty() || text.contains(['\n', '\r']) {
            let hint = "leave it out if any answer will do, also an error".to_owned();
            reader.fail(node, "must be a part of one line", Some(hint));
        }
        Some(text)
    });
    Some(Check { every: every?, send, expects })
}

/// A request in one line that the daemon gives its ids.
fn request_without_id(text: &str) -> Result<String, String> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}"))?;
    let serde_json::Value::Object(members) = &value else { return Err("is no JSON object".to_owned()) };
    if members.contains_key("id") {
        return Err("has an id: leave that out, for the daemon makes one for each check".to_owned());
    }
    if !members.get("method").is_some_and(serde_json::Value::is_string) {
        return Err("has no method, as in {\"jsonrpc\":\"2.0\",\"method\":\"ping\"}".to_owned());
    }
    Ok(value.to_string())
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
    let checked = checked(&command).map_err(|why| format!("the command {command:?} of pool {id:?} {why}"));
    reader.found(node, checked)?;
    match command::resolve(&command, search_path) {
        Ok(program) => Some((command, program)),
        Err(why) => {
            // A whole command line in `command` is the commonest mistake of all.
            let words: Vec<&str> = command.split_whitespace().collect();
            let hint = match words.len() > 1 && !Path::new(&command).exists() {
                // What a shell would read in another way is no list of words.
                true if command.contains(['"', '\'', '\\', '$']) => {
                    Some("the arguments belong in \"args\", one string each".to_owned())
                }
                true => Some(format!(
                    "the arguments belong in \"args\", one string each: \"command\": {:?}, \"args\": {:?}",
                    words[0],
                    &words[1..]
                )),
                false => why.contains("not in PATH").then(|| "install it, or write its whole path".to_owned()),
            };
            reader.fail_pool(node, format!("the command {command:?} of pool {id:?} {why}"), hint);
            let expected = command::expected(&command, search_path);
            Some((command, expected))
        }
    }
}

fn environment<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> BTreeMap<String, String> {
    let mut environment = BTreeMap::new();
    for (name, name_node, value) in reader.strings_by_name(node).unwrap_or_default() {
        if name.is_empty() || name.contains(['=', '\0']) {
            reader.fail(&name_node, format!("{name:?} cannot be the name of a variable"), None);
        } else if value.contains('\0') {
            reader.fail(&name_node, "must not contain a zero byte", None);
        } else if let Some((why, hint)) = reference::reference_fault(&value) {
            reader.fail(&name_node, why, Some(hint.to_owned()));
        }
        environment.insert(name, value);
    }
    environment
}

fn admin<'t>(reader: &mut Reader<'t>, node: &Node<'t>, listeners: &[Listener]) -> Option<Admin> {
    let object = reader.object(node, "admin")?;
    let mode = object.get("mode").map(|node| (node, socket_mode(reader, node)));
    let (token, token_file) = object.get("token_file").and_then(|node| token(reader, node)).unzip();
    let Some(node) = object.get("listen") else {
        let hint = "say where, as in \"listen\": \"/run/stdio_bus/admin.sock\"";
        reader.missing(&object, "listen", hint);
        return None;
    };
    let address = Address::from_any(&reader.string(node)?);
    let mut listen = Listen::from(reader.found(node, address)?);
    if listeners.iter().any(|other| same_place(&other.listen, &listen)) {
        reader.fail(node, format!("{listen} is a listener for clients already"), None);
    }
    set_mode(reader, &mut listen, mode);
    Some(Admin { listen, token, token_file })
}

fn token<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<(Secret, PathBuf)> {
    let path = reader.string(node)?;
    match small_file(&path).map(|bytes| Secret::new(&bytes)) {
        Ok(Ok(token)) => return Some((token, path.into())),
        Ok(Err(why)) => {
            let hint = "make one with: openssl rand -hex 32".to_owned();
            reader.fail(node, format!("the token in {path:?} {why}"), Some(hint));
        }
        Err(why) => reader.fail(node, format!("the token file {path:?} {why}"), None),
    }
    None
}

// Spec 9.3.5 and 9.3.6: omitted limits keep their defaults.
fn limits<'t>(reader: &mut Reader<'t>, node: &Node<'t>, default: Limits) -> Limits {
    let Some(object) = reader.object(node, "limits") else { return default };
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
        session_idle: number(reader, &object, "session_idle_sec")
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs),
        session_detached: number(reader, &object, "session_detached_sec")
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs),
        max_memory: bytes(reader, "max_memory", default.max_memory),
        max_workers_memory: number(reader, &object, "max_workers_memory_mb").filter(|mib| *mib > 0),
        replace_timeout: seconds(reader, "replace_timeout_sec", default.replace_timeout),
        worker_silent: seconds(reader, "worker_silent_sec", default.worker_silent),
        ..default
    }
}

fn routing<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Routing {
    let Some(object) = reader.object(node, "routing") else { return Routing::default() };
    let id_collision = reader.choice(&object, "id_collision", [IdCollision::Translate, IdCollision::Always]);
    let session_access = reader.choice(&object, "session_access", [SessionAccess::Owner, SessionAccess::Shared]);
    Routing { id_collision: id_collision.unwrap_or_default(), session_access: session_access.unwrap_or_default() }
}

/// The path of `what`.
fn path<'t>(reader: &mut Reader<'t>, node: &Node<'t>, what: &str) -> Option<PathBuf> {
    let path = reader.string(node)?;
    let checked = checked(&path).map_err(|why| format!("{what} {path:?} {why}"));
    reader.found(node, checked).map(PathBuf::from)
}

fn log<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Log {
    let Some(object) = reader.object(node, "log") else { return Log::default() };
    let level = reader.choice(&object, "level", LEVELS.map(|(_, level)| level));
    let format = reader.choice(&object, "format", [LogFormat::Text, LogFormat::Json]);
    let requests = object.get("requests").and_then(|node| reader.boolean(node)).unwrap_or_default();
    let file = object.get("file").and_then(|node| path(reader, node, "the log file"));
    Log { level: level.unwrap_or_default(), format: format.unwrap_or_default(), requests, file }
}

/// The C daemon's section, accepted where it asks for what this bus does anyway.
fn transport<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<Mode> {
    let object = reader.object(node, "transport")?;
    for (key, only) in [("framing", "ndjson"), ("protocol", "json")] {
        let Some(node) = object.get(key) else { continue };
        let Some(value) = reader.string(node) else { continue };
        if value != only {
            let hint = format!("\"{only}\" is the only one; leave transport.{key} out, or use the C daemon for others");
            reader.fail(node, format!("{value:?} is not supported"), Some(hint));
        }
    }
    if let Some(node) = object.get("options") {
        // They tune the C daemon's message queues, which no supported mode has; any object is accepted.
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
