//! The configuration as an operator sees it: what is accepted, what is refused, and the messages.

mod documents;
mod listeners;

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::bus::networks::Network;
use crate::bus::settings::{IdCollision, MAX_WORKERS, Proxies, SessionAccess, Start};

fn read(text: &str) -> Result<Config, ConfigError> {
    Config::from_bytes(text.as_bytes(), "bus.json")
}

fn good(text: &str) -> Config {
    read(text).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

/// All messages for an invalid text.
fn refused(text: &str) -> String {
    read(text).map(|config| config.summary()).expect_err("this configuration must be refused").to_string()
}

/// A configuration with one pool that has these members besides the required ones.
fn pool(members: &str) -> String {
    format!(r#"{{"pools":[{{"id":"a","command":"/bin/sh","instances":2{members}}}]}}"#)
}

/// A valid pool and these members beside it.
fn top(members: &str) -> String {
    format!(r#"{{"pools":[{{"id":"a","command":"/bin/sh","instances":2}}]{members}}}"#)
}

#[test]
fn the_least_configuration_has_the_defaults_of_the_spec() {
    let config = good(&pool(""));
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.routing, Routing::default());
    assert_eq!(config.log, Log::default());
    let core = &config.pools[0].core;
    assert_eq!((core.instances, core.max_instances, core.assignment), (2, 2, Assignment::RoundRobin));
    assert_eq!((core.cancel_on_disconnect, core.request_timeout, core.idle_timeout), (false, None, None));
    assert_eq!((core.deny_methods.as_slice(), config.limits.max_memory), (&[][..], 268_435_456));
    assert_eq!((config.pools[0].program.as_path(), config.pools[0].cwd.as_deref()), (Path::new("/bin/sh"), None));
}

fn networks(texts: &[&str]) -> Vec<Network> {
    texts.iter().map(|text| Network::parse(text).expect("a network")).collect()
}

/// A configuration with every key.
const ALL: &str = r#"{
  "_comment": "a comment", "_comment": "and another",
  "pools": [{
    "id": "a", "command": "sh", "args": ["-c", "cat"], "instances": 2, "max_instances": 9, "_": 1,
    "env": {"A": "1", "_JAVA_OPTIONS": "-Xmx1g", "_comment": "x"}, "cwd": "/", "assignment": "dedicated",
    "user": "root", "group": "7", "no_new_privs": false, "umask": "027",
    "rlimits": {"descriptors": 100, "core": 0, "file_size": 5, "cpu_sec": 60, "_": 1}, "cpus": [0],
    "start": "on_demand", "idle_stop_sec": 300, "start_timeout_sec": 9,
    "cancel_on_disconnect": true, "request_timeout_sec": 7, "idle_timeout_sec": 5, "deny_methods": ["session/list", "x\u002fy"]
  }, {"id": "b", "command": "sh", "instances": 1}],
  "limits": {"max_input_buffer": 10, "max_output_queue": 5, "max_restarts": 0, "restart_window_sec": 4,
    "drain_timeout_sec": 3, "backpressure_timeout_sec": 2, "quiesce_sec": 1, "lame_duck_sec": 8,
    "session_idle_sec": 50, "session_detached_sec": 40, "max_memory": 16777216, "max_workers_memory_mb": 900, "_why": {}},
  "routing": {"id_collision": "always", "session_access": "shared"}, "node": "bus-1",
  "listeners": [
    {"tcp": "[::1]:9000", "pool": "a", "pools": ["b", "a"], "max_connections": {"total": 9, "per_source": 2},
      "when_not_ready": "close", "reuse_port": true,
      "allow": ["10.0.0.0/8", "::1"], "proxy": {"from": ["192.0.2.7"]}},
    {"unix": "/run/b", "mode": "0660", "owner": "root:7", "peer_uids": ["root", 1000], "max_connections": 7,
     "idle_timeout_sec": 600},
    {"unix": "c", "proxy": {"from": ["unix"]}}],
  "admin": {"listen": "/run/admin", "mode": "0660", "token_file": "/proc/version"},
  "log": {"level": "debug", "format": "json", "requests": true, "file": "/var/log/bus"},
  "transport": {"mode": "tcp", "framing": "ndjson", "protocol": "json", "options": {"mqueue_depth": 1}}
}"#;

#[test]
fn every_key_arrives() {
    let config = good(ALL);
    let pool = &config.pools[0];
    assert!(pool.program.is_absolute() && pool.program.ends_with("sh"));
    assert_eq!((pool.command.as_str(), pool.args.as_slice()), ("sh", &["-c".to_owned(), "cat".to_owned()][..]));
    assert_eq!(pool.env.keys().map(String::as_str).collect::<Vec<_>>(), ["A", "_JAVA_OPTIONS"]);
    assert_eq!(pool.cwd.as_deref(), Some(Path::new("/")));
    let identity = pool.rights.identity.as_ref().expect("a user is named");
    assert_eq!((identity.user, identity.group, identity.name.as_deref()), (0, 7, Some("root")));
    assert!(identity.groups.contains(&7) && identity.home.is_absolute());
    assert_eq!((pool.rights.no_new_privs, pool.rights.umask), (false, Some(0o027)));
    let limits = pool.rights.limits.iter().map(|limit| (limit.call, limit.most.current, limit.most.maximum));
    let expected = [("NOFILE", 100, 100), ("CORE", 0, 0), ("FSIZE", 5, 5), ("CPU", 60, 61)];
    for (limit, (name, current, maximum)) in limits.zip(expected) {
        assert_eq!((limit.1, limit.2), (Some(current), Some(maximum)));
        assert_eq!(limit.0, format!("setrlimit(RLIMIT_{name})"));
    }
    assert_eq!(pool.rights.limits.len(), expected.len());
    assert!(pool.rights.cpus.is_some_and(|cpus| cpus.count() == 1 && cpus.is_set(0)));
    let core = &pool.core;
    assert_eq!((core.instances, core.max_instances, core.assignment), (2, 9, Assignment::Dedicated));
    assert_eq!((core.cancel_on_disconnect, core.request_timeout), (true, Some(Duration::from_secs(7))));
    assert_eq!(core.idle_timeout, Some(Duration::from_secs(5)));
    assert_eq!((core.start, core.idle_stop), (Start::OnDemand, Some(Duration::from_secs(300))));
    assert_eq!(core.start_timeout, Some(Duration::from_secs(9)));
    assert_eq!(core.deny_methods, ["session/list", "x/y"]);
    let admin = config.admin.as_ref().expect("it is there");
    assert_eq!(admin.listen, Listen::Unix { path: "/run/admin".into(), mode: 0o660, owner: Owner::default() });
    let version = fs::read("/proc/version").expect("there is a kernel");
    assert!(admin.token.as_ref().is_some_and(|token| token.is(version.trim_ascii()) && !token.is(b"Linux")));
    let limits = Limits {
        max_input_buffer: 10,
        max_output_queue: 5,
        max_restarts: 0,
        restart_window: Duration::from_secs(4),
        drain_timeout: Duration::from_secs(3),
        backpressure_timeout: Duration::from_secs(2),
        lame_duck: Duration::from_secs(8),
        quiesce: Duration::from_secs(1),
        session_idle: Some(Duration::from_secs(50)),
        session_detached: Some(Duration::from_secs(40)),
        max_memory: 16 << 20,
        max_workers_memory: Some(900),
        ..Limits::default()
    };
    assert_eq!(config.limits, limits);
    let routing = Routing { id_collision: IdCollision::Always, session_access: SessionAccess::Shared };
    assert_eq!(config.routing, routing);
    let file = Some(PathBuf::from("/var/log/bus"));
    assert_eq!(config.log, Log { level: LogLevel::Debug, format: LogFormat::Json, requests: true, file });
    assert_eq!((config.max_workers(), &*config.node), (10, "bus-1"));
    let summary = "bus.json: pools: a (on demand 2 to 9 × sh), b (1 × sh); listeners: tcp://[::1]:9000, unix:/run/b, unix:c; \
         admin: unix:/run/admin";
    assert_eq!(config.summary(), summary);
}

#[test]
fn a_message_has_file_line_column_path_and_remedy() {
    let text = "{\n  \"pools\": [\n    {\"id\": \"é\", \"command\": \"/bin/sh\", \"instances\": 1},\n    {\"id\": \"ü\", \
                \"command\": \"/bin/sh\", \"instances\": 0}\n  ]\n}";
    assert_eq!(refused(text), "bus.json:4:52: pools[1].instances: must be at least 1, not 0");
    let text = "{\"pools\": [{\"id\": \"a\", \"comand\": \"sh\", \"instances\": 1}]}";
    assert_eq!(
        refused(text),
        "bus.json:1:12: pools[0].command: is missing (name the program to run, as in \"command\": \"python3\")\n\
         bus.json:1:24: pools[0].comand: is not a known key (did you mean \"command\"?)"
    );
}

#[test]
fn every_problem_is_reported_in_one_run() {
    let message =
        refused(r#"{"pools":[{"id":"","command":"/no/such","instances":"2"}],"limits":{"max_restarts":-1},"x":1}"#);
    let paths = ["pools[0].id", "pools[0].command", "pools[0].instances", "limits.max_restarts", "x"];
    assert_eq!(message.lines().count(), paths.len(), "{message}");
    for (line, path) in message.lines().zip(paths) {
        assert!(line.contains(&format!(": {path}: ")), "{line}");
    }
}

#[test]
fn broken_json_says_where_and_why() {
    let cases = [
        ("{\"pools\": [],}", "bus.json:1:14: is not valid JSON: key must be a string (is there a comma too many"),
        ("{\n  // workers\n}", "bus.json:2:3: is not valid JSON: key must be a string (JSON has no comments"),
        ("{\"pools\": [1,]}", "bus.json:1:14: is not valid JSON: expected value (is there a comma too many"),
        ("{\"pools\": [", "is the file complete?"),
        ("{'pools': []}", "strings need double quotes"),
        ("{pools: []}", "keys need double quotes"),
        ("{}\n{}", "bus.json:2:1: is not valid JSON: trailing characters (a configuration is one object"),
        ("pools:\n  - id: a\n", "bus.json:1:1: is YAML, and a configuration is JSON (write it as JSON, or"),
        ("# comment\n---\npools: []\n", "is YAML"),
        ("- id: a\n", "yq -p yaml -o json FILE"),
        ("[[pools]]\nid = \"a\"\n", "is TOML, and a configuration is JSON"),
        ("log = \"x\"\n", "is TOML"),
        ("<bus/>", "is XML"),
        ("# comment\n{}", "JSON has no comments"),
        ("{\"pools\": [1 2]}", "bus.json:1:14: is not valid JSON: expected `,` or `]`"),
        ("{\"pools\": []} x", "bus.json:1:15: is not valid JSON: trailing characters"),
        ("{\"pools\": [{\"id\": \"\\ud800\"}]}", "pools[0].id: is not valid JSON"),
        ("{\"pools\": 01}", "is not valid JSON"),
        ("[]", "bus.json:1:1: must be an object {…}, not an array"),
        ("\"x\"", "must be an object {…}, not a string"),
        ("{\"pools\": True}", "expected value (in JSON these are true, false and null)"),
        ("python3 worker.py", "expected value (a configuration is one object"),
        ("{\"mcpServers\": {}}", "write each of them as a pool"),
    ];
    for (text, expected) in cases {
        let message = refused(text);
        assert!(message.contains(expected), "{text}: {message}");
    }
    let error = Config::from_bytes(b"{\"a\":\n \"\xff\"}", "bus.json").map(|_| ()).expect_err("not UTF-8");
    assert_eq!(error.to_string(), "bus.json:2:3: is not UTF-8 (save the file as UTF-8)");
    assert!(
        Config::from_bytes(b"", "bus.json").is_err_and(|error| error.to_string().starts_with("bus.json: is empty"))
    );
    assert!(Config::from_bytes(b" \n", "bus.json").is_err());
    let marked = [b"\xEF\xBB\xBF", pool("").as_bytes()].concat();
    assert!(Config::from_bytes(&marked, "bus.json").is_ok());
}

#[test]
fn a_key_is_given_once() {
    let message =
        refused("{\n\"limits\":{},\n\"limits\":{},\"pools\":[{\"id\":\"a\",\"command\":\"/bin/sh\",\"instances\":1}]}");
    assert_eq!(message, "bus.json:3:1: limits: is given twice (the first is at 2:1; keep one of them)");
    let message = refused(&pool(r#","\u0069d":"b""#));
    assert!(message.contains("pools[0].id: is given twice"), "{message}");
    assert!(refused(&pool(r#","env":{"A":"1","A":"2"}"#)).contains("pools[0].env.A: is given twice"));
}

#[test]
fn an_unknown_key_brings_the_nearest_known_one() {
    let cases = [
        (pool(r#","maxInstances":2"#), "did you mean \"max_instances\"?"),
        (pool(r#","arguments":[]"#), "did you mean \"args\"?"),
        (pool(r#","cmd":"x""#), "did you mean \"command\"?"),
        (pool(r#","colour":[]"#), "known here are id, command"),
        (pool(r#","max_restarts":2"#), "\"max_restarts\" belongs under limits"),
        (top(r#","max_input_buffer":2"#), "\"max_input_buffer\" belongs under limits"),
        (top(r#","limit":{}"#), "did you mean \"limits\"?"),
        (top(r#","routing":{"listeners":[]}"#), "\"listeners\" belongs at the top level"),
        (top(r#","framing":"ndjson""#), "\"framing\" belongs under transport"),
        (top(r#","limits":{"drain_timeout":1}"#), "did you mean \"drain_timeout_sec\"?"),
        (top(r#","listeners":[{"tpc":"x:1"}]"#), "did you mean \"tcp\"?"),
        (top(r#","a b":1"#), "[\"a b\"]: is not a known key"),
    ];
    for (text, expected) in cases {
        let message = refused(&text);
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn a_removed_setting_says_what_applies_now() {
    for (path, key, choice, holds) in keys::GONE {
        let (value, what) = if choice.is_empty() {
            ("1".to_owned(), "is no setting any more".to_owned())
        } else {
            (format!("{choice:?}"), format!("is {choice:?} no more"))
        };
        let member = format!("{key:?}:{value}");
        let text = match path {
            "" => top(&format!(",{member}")),
            "pools[]" => pool(&format!(",{member}")),
            "listeners[]" => top(&format!(r#","listeners":[{{"tcp":"a:1",{member}}}]"#)),
            "listeners[].proxy" => {
                top(&format!(r#","listeners":[{{"tcp":"a:1","proxy":{{"from":["::1"],{member}}}}}]"#))
            }
            path => top(&format!(r#","{path}":{{{member}}}"#)),
        };
        let column = text.rfind(&member).expect("it is there") + 1;
        let column = if choice.is_empty() { column } else { column + format!("{key:?}:").len() };
        let place = path.replace("[]", "[0]");
        let place = if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") };
        assert_eq!(refused(&text), format!("bus.json:1:{column}: {place}: {what}: {holds} (leave it out)"));
        assert_eq!(keys::known(path).contains(&key), !choice.is_empty(), "{path} {key}");
    }
}

#[test]
fn a_timeout_of_nothing_kills_workers_at_once_and_is_no_backpressure() {
    assert_eq!(good(&top(r#","limits":{"drain_timeout_sec":0}"#)).limits.drain_timeout, Duration::ZERO);
    let message = refused(&top(r#","limits":{"backpressure_timeout_sec":0}"#));
    assert!(message.contains("must be at least 1, not 0 (") && message.contains("86400 for the longest"), "{message}");
}

#[test]
fn a_number_is_whole_and_in_its_range() {
    let cases = [
        ("1e6", "write 1000000"),
        ("1.5", "without a fraction or an exponent, not 1.5"),
        ("2.0", "write 2"),
        ("-1", "must be at least 1, not -1"),
        ("0", "must be at least 1, not 0"),
        ("1073741825", "must be at most 1073741824, not 1073741825"),
        ("99999999999999999999999", "must be at most 1073741824"),
        ("1e999", "must be a whole number"),
        ("\"5\"", "not a string (write it without quotes)"),
        ("\"10MB\"", "not a string (write 10000000)"),
        ("\"64 KiB\"", "not a string (write 65536)"),
        ("\"1g\"", "not a string (write 1073741824)"),
        ("\"99999999999TB\"", "not a string (write it without quotes)"),
        ("null", "must be a whole number from 1 to 1073741824, not null"),
        ("[]", "not an array"),
        ("true", "not a boolean"),
    ];
    for (number, expected) in cases {
        let message = refused(&top(&format!(r#","limits":{{"max_input_buffer":{number}}}"#)));
        assert!(message.contains("limits.max_input_buffer: ") && message.contains(expected), "{number}: {message}");
    }
    assert_eq!(good(&top(r#","limits":{"max_input_buffer":1073741824}"#)).limits.max_input_buffer, 1 << 30);
}

#[test]
fn workers_with_what_is_their_clients_own_are_for_dedicated_pools_without_spares() {
    let personal = |rest: &str| {
        let head = r#"{"pools":[{"id":"a","command":"sh""#;
        format!(r#"{head}{rest}}}]}}"#)
    };
    let of = |from: &str| personal(&format!(r#","assignment":"dedicated","env_from":{from}"#));
    let config = good(&of(r#"{"files":"/etc/x","headers":{"X-Github-Token":"GITHUB_TOKEN"}}"#));
    let first = &config.pools[0];
    let headers = vec![("X-Github-Token".into(), "GITHUB_TOKEN".to_owned())];
    assert_eq!(first.env_from, Some(EnvFrom { files: Some("/etc/x".into()), headers }));
    assert_eq!((first.core.personal, first.core.instances, first.core.max_instances), (true, 0, 64));
    assert!(!first.restores, "values of headers are kept nowhere");
    assert!(good(&of(r#"{"files":"/etc/x"}"#)).pools[0].restores);
    let header = |name: &str, variable: &str| of(&format!(r#"{{"headers":{{"{name}":"{variable}"}}}}"#));
    let cases = [
        (personal(r#","env_from":{"files":"/x"}"#), "is for dedicated pools"),
        (personal(r#","assignment":"client","env_from":{"files":"/x"}"#), "set \"assignment\": \"dedicated\""),
        (of(r#"{"files":"/x"},"instances":1"#), "leave instances out"),
        (of(r#"{"files":"/x"},"start":"on_demand""#), "leave start out"),
        (of(r#"{"headers":{"A":"B"}},"restore":true"#), "leave restore out"),
        (of("{}"), "names neither headers nor files of the client"),
        (of(r#"{"headers":{}}"#), "names neither headers nor files of the client"),
        (of(r#"{"files":""}"#), "must not be empty"),
        (of(r#"{"file":"/x"}"#), "env_from.file"),
        (header("Authorization", "TOKEN"), "Authorization means something else"),
        (header("mcp-session-id", "TOKEN"), "means something else"),
        (header("X Y", "TOKEN"), "must be the name of a header"),
        (header("X", ""), "cannot be the name of a variable"),
        (header("X", "A=B"), "cannot be the name of a variable"),
        (header("X", "LD_PRELOAD"), "clients would choose what the worker runs"),
        (header("X", "PATH"), "clients would choose what the worker runs"),
        (header("X", "npm_config_registry"), "clients would choose what the worker runs"),
        (header("X", "https_proxy"), "or whom it connects to"),
        (header("X", "A B"), "cannot be the name of a variable"),
        (header("X", "1A"), "begins with no digit"),
        (of(r#"{"headers":{"X":"A","x":"B"}}"#), "is given twice"),
        (of(r#"{"headers":{"X":"A","Y":"A"}}"#), "A is that of another header"),
        (of(r#"{"headers":{"X":"A"}},"env":{"A":"1"}"#), "A is in env, too"),
        (pool(r#","env":{"A":"$file:key"}"#), "whose path has to begin with a slash"),
        (pool(r#","env":{"A":"$env:"}"#), "which cannot be one"),
    ];
    for (text, expected) in cases {
        let message = refused(&text);
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn what_env_refers_to_and_cannot_be_read_now_is_warned_of() {
    let warnings = |value: &str| good(&pool(&format!(r#","env":{{"A":"{value}"}},"cwd":"/""#))).pool_warnings();
    for (bad, why) in [
        ("$file:/no/such/file", "No such file"),
        ("$file:/dev/null", "no regular file"),
        ("$file:/", "no regular file"),
        ("$env:NO_SUCH_VARIABLE_HERE", "has no variable"),
    ] {
        let [warning] = &warnings(bad)[..] else { panic!("{bad}: {:?}", warnings(bad)) };
        assert!(warning.starts_with("pools[0].env.A: ") && warning.contains(why), "{warning}");
    }
    for fine in ["$file:/etc/passwd", "$env:PATH", "$$env:NO_SUCH_VARIABLE_HERE"] {
        assert_eq!(warnings(fine), Vec::<String>::new(), "{fine}");
    }
}

#[test]
fn values_of_the_wrong_kind_are_named() {
    let cases = [
        (pool(r#","args":"-v""#), "pools[0].args: must be an array"),
        (pool(r#","args":[1]"#), "pools[0].args[0]: must be a string"),
        (pool(r#","args":["a\u0000b"]"#), "pools[0].args[0]: must not contain a zero byte"),
        (pool(r#","env":{"A":1}"#), "pools[0].env.A: must be a string"),
        (pool(r#","env":{"A=B":"1"}"#), "pools[0].env[\"A=B\"]: \"A=B\" cannot be the name of a variable"),
        (pool(r#","env":{"":"1"}"#), "cannot be the name"),
        (pool(r#","cancel_on_disconnect":"true""#), "must be true or false, not a string (write it without quotes)"),
        (pool(r#","assignment":"robin""#), "must be \"round_robin\" or \"client\" or \"dedicated\", not \"robin\""),
        (pool(r#","assignment":"Client""#), "did you mean \"client\"?"),
        (pool(r#","cancel_on_disconnect":1"#), "cancel_on_disconnect: must be true or false, not a number"),
        (pool(r#","args":"-v""#), "(put it in brackets: [ … ])"),
        (r#"{"pools":[{"id":"a","command":["sh"],"instances":1}]}"#.to_owned(), "its arguments belong in \"args\""),
        (top(r#","listeners":[{"tcp":9000}]"#), "(write \"127.0.0.1:9000\")"),
        (top(r#","listeners":["127.0.0.1:9000"]"#), "not a string (write { \"tcp\": \"127.0.0.1:9000\" })"),
        (top(r#","admin":"127.0.0.1:9001""#), "not a string (write { \"listen\": \"127.0.0.1:9001\" })"),
        (r#"{"pools":[]}"#.to_owned(), "must hold at least one pool (as in [{"),
        (top(r#","limits":[]"#), "limits: must be an object"),
        (top(r#","log":{"level":"warning"}"#), "log.level: must be"),
        (r#"{"pools":{}}"#.to_owned(), "pools: must be an array"),
        (r#"{"pools":[]}"#.to_owned(), "pools: must hold at least one pool"),
        (r#"{"pools":[[]]}"#.to_owned(), "pools[0]: must be an object"),
        ("{}".to_owned(), "pools is missing (at least one pool is needed)"),
        (r#"{"pools":[{}]}"#.to_owned(), "pools[0].instances: is missing"),
        (r#"{"pools":[{}]}"#.to_owned(), "pools[0].id: is missing"),
        (r#"{"pools":[{"id":"a\n","command":"sh","instances":1}]}"#.to_owned(), "must not contain control characters"),
    ];
    for (text, expected) in cases {
        let message = refused(&text);
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn only_pools_that_start_on_demand_fall_asleep_and_only_those_and_growing_ones_end_what_is_idle() {
    let message = refused(&pool(r#","start_timeout_sec":5"#));
    assert!(message.contains("pools[0].start_timeout_sec: is for pools that start on demand"), "{message}");
    assert!(message.contains("set \"start\": \"on_demand\""), "{message}");
    for text in [r#","idle_stop_sec":5"#, r#","idle_stop_sec":5,"max_instances":4,"assignment":"dedicated""#] {
        let message = refused(&pool(text));
        assert!(message.contains("pools[0].idle_stop_sec: is for pools that start on demand or grow"), "{message}");
        assert!(message.contains("set \"start\": \"on_demand\", or a max_instances above instances"), "{message}");
    }
    let core = |text: &str| good(text).pools[0].core.clone();
    assert_eq!(core(&pool(r#","idle_stop_sec":0,"start_timeout_sec":120"#)).start_timeout, None);
    assert_eq!(core(&pool(r#","idle_stop_sec":5,"max_instances":4"#)).idle_stop, Some(Duration::from_secs(5)));
    let asleep = core(&pool(r#","start":"on_demand","idle_stop_sec":5"#));
    assert_eq!(
        (asleep.idle_stop, asleep.start_timeout),
        (Some(Duration::from_secs(5)), Some(Duration::from_secs(120)))
    );
}

#[test]
fn pools_have_ids_of_their_own() {
    let one = r#"{"id":"a","command":"/bin/sh","instances":1}"#;
    let message = refused(&format!(r#"{{"pools":[{one},{one}]}}"#));
    assert_eq!(message, "bus.json:1:62: pools[1].id: \"a\" is the id of pools[0] already");
}

#[test]
fn pools_grow_up_to_max_instances() {
    let text = pool(r#","max_instances":1,"assignment":"dedicated""#);
    assert!(refused(&text).contains("pools[0].max_instances: must be at least instances, which is 2, not 1"));
    let core = |text: &str| good(text).pools[0].core.clone();
    assert_eq!(core(&pool(r#","assignment":"dedicated""#)).max_instances, DEFAULT_DEDICATED_WORKERS);
    assert_eq!(core(&pool(r#","max_instances":2,"assignment":"dedicated""#)).max_instances, 2);
    assert_eq!(core(&pool("")).max_instances, 2);
    let shared = core(&pool(r#","max_instances":4"#));
    assert_eq!((shared.max_instances, shared.concurrency), (4, DEFAULT_CONCURRENCY));
    assert_eq!(core(&pool(r#","max_instances":4,"concurrency":1"#)).concurrency, 1);
    let own = pool(r#","max_instances":4,"concurrency":4,"assignment":"dedicated""#);
    assert!(refused(&own).contains("each connection has a worker of its own"));
}

#[test]
fn there_are_only_so_many_workers() {
    let pools = |second: usize| {
        format!(
            r#"{{"pools":[{{"id":"a","command":"/bin/sh","instances":1000}},
                {{"id":"b","command":"/bin/sh","instances":1,"assignment":"dedicated","max_instances":{second}}}]}}"#
        )
    };
    assert_eq!(good(&pools(24)).max_workers(), MAX_WORKERS);
    let message = refused(&pools(25));
    assert!(message.contains("pools[1].max_instances: makes 1025 workers over all pools, and 1024 is"), "{message}");
}

#[test]
fn a_command_that_cannot_run_names_pool_command_and_reason() {
    let with = |command: &str| format!(r#"{{"pools":[{{"id":"agents","command":{command:?},"instances":1}}]}}"#);
    let cases = [
        ("", "the command \"\" of pool \"agents\" must not be empty"),
        ("/no/such", "the command \"/no/such\" of pool \"agents\" does not exist"),
        ("no-such-command-here", "(install it, or write its whole path)"),
        ("/etc/passwd", "is not executable; chmod +x /etc/passwd"),
        ("/", "is a directory"),
        ("/dev/null", "is not a file"),
        (
            "python3 worker.py",
            "is a whole command line, and no program has such a name (the arguments belong in \"args\"",
        ),
        ("python3 worker.py -v", "one string each: \"command\": \"python3\", \"args\": [\"worker.py\", \"-v\"])"),
        ("sh -c 'exec cat'", "the arguments belong in \"args\", one string each)"),
    ];
    for (command, expected) in cases {
        let message = refused(&with(command));
        assert!(message.starts_with("bus.json:1:36: pools[0].command: "), "{message}");
        assert!(message.contains(expected), "{command}: {message}");
    }
    assert!(refused(&pool(r#","cwd":"/no/such""#)).contains("directory \"/no/such\" of pool \"a\" does not exist"));
    let message = refused(r#"{"pools":[{"id":"a","command":"sh","instances":1,"env":{"PATH":"/no/such"}}]}"#);
    assert!(message.contains("is not in PATH (/no/such)"), "{message}");
}

#[test]
fn rules_for_tools_are_names_or_their_beginnings() {
    let refused = |value: &str| refused(&pool(&format!(r#","deny_tools":{value}"#)));
    assert!(refused(r#"["a*",""]"#).contains("pools[0].deny_tools[1]: must not be empty (name a tool"));
    assert!(refused(r#"["*_delete"]"#).contains("pools[0].deny_tools[0]: may have a * at its end alone"));
    assert!(refused(r#"["a**"]"#).contains("may have a * at its end alone"));
    let config = read(&pool(r#","deny_tools":["a","b*"],"allow_tools":[]"#)).unwrap();
    let tools = &config.pools[0].core.tools;
    assert_eq!(
        (tools.allow.as_deref(), tools.deny.as_slice()),
        (Some(&[][..]), &["a".to_owned(), "b*".to_owned()][..])
    );
}

#[test]
fn denied_methods_have_names() {
    let refused = |value: &str| refused(&pool(&format!(r#","deny_methods":{value}"#)));
    assert!(refused(r#"["a",""]"#).contains("pools[0].deny_methods[1]: must not be empty (name a method"));
    assert!(refused(r#""a""#).contains("pools[0].deny_methods: must be an array"));
    assert!(refused("[1]").contains("pools[0].deny_methods[0]: must be a string"));
}

#[test]
fn memory_and_id_collision_have_their_range_and_their_names() {
    let limits = |bytes: u64| top(&format!(r#","limits":{{"max_memory":{bytes}}}"#));
    assert_eq!(good(&limits(16 << 20)).limits.max_memory, 16 << 20);
    assert_eq!(good(&limits(1 << 40)).limits.max_memory, 1 << 40);
    assert!(refused(&limits(1 << 20)).contains("limits.max_memory: must be at least 16777216, not 1048576"));
    assert!(refused(&limits(1 << 41)).contains("limits.max_memory: must be at most 1099511627776"));
    let routing = |name: &str| top(&format!(r#","routing":{{"id_collision":"{name}"}}"#));
    assert_eq!(good(&routing("always")).routing.id_collision, IdCollision::Always);
    assert!(refused(&routing("alway")).contains("did you mean \"always\"?"));
}

#[test]
fn a_node_name_is_a_valid_id_prefix() {
    for name in ["a", "Bus_1-b", &"x".repeat(32)] {
        assert_eq!(&*good(&top(&format!(r#","node":"{name}""#))).node, name);
    }
    assert!((1..=32).contains(&good(&top("")).node.len()), "the host's name");
    for name in ["", "a.b", "a b", "é", &"x".repeat(33)] {
        let message = refused(&top(&format!(r#","node":"{name}""#)));
        assert!(message.contains("node: must be 1 to 32 letters, digits, - and _"), "{message}");
    }
}

#[test]
fn a_transport_section_may_ask_for_what_the_bus_does() {
    let with = |members: &str| top(&format!(r#","transport":{{{members}}}"#));
    for members in ["", r#""mode":"stdio""#, r#""framing":"ndjson","protocol":"json","options":{}"#] {
        assert!(good(&with(members)).listen(&[]).is_ok(), "{members}");
    }
    let cases = [
        (r#""framing":"length""#, "transport.framing: \"length\" is not supported (\"ndjson\" is the only one"),
        (r#""protocol":"binary""#, "transport.protocol: \"binary\" is not supported"),
        (r#""mode":"shm""#, "transport.mode: the transport \"shm\" is not supported"),
        (r#""options":1"#, "transport.options: must be an object"),
        (r#""framin":1"#, "did you mean \"framing\"?"),
    ];
    for (members, expected) in cases {
        let message = refused(&with(members));
        assert!(message.contains(expected), "{members}: {message}");
    }
    let mut config = good(&with(r#""mode":"tcp""#));
    assert!(config.listen(&[]).is_err_and(|error| error.to_string().contains("say where with --tcp HOST:PORT")));
    assert!(config.listen(&[Listener::open(Listen::Stdio)]).is_ok());
}

#[test]
fn a_file_that_cannot_be_read_says_why() {
    let load = |path: &Path| Config::load(path).map(|_| ()).expect_err("must be refused").to_string();
    let missing = load(Path::new("/no/such.json"));
    assert!(
        missing.starts_with("/no/such.json: the file does not exist; stdio_bus init --output FILE writes one"),
        "{missing}"
    );
    assert_eq!(load(Path::new("/")), "/: is a directory; name the file in it");
    assert!(load(Path::new("/dev/null")).starts_with("/dev/null: is empty"));
    let large = load(Path::new("/dev/zero"));
    assert!(large.contains("larger than 4194304 bytes"), "{large}");
}

#[test]
fn a_descriptor_is_read_to_its_end_and_closed() {
    let (mut parent, child) = UnixStream::pair().expect("a socket pair");
    let number = child.into_raw_fd();
    parent.write_all(pool("").as_bytes()).expect("the socket has room");
    parent.shutdown(Shutdown::Write).expect("the socket is connected");
    // SAFETY: the number is ours to give away.
    let config = unsafe { Config::from_fd(number) }.expect("a good configuration");
    assert_eq!((config.origin, config.pools.len()), (format!("fd {number}"), 1));
    assert_eq!(parent.read(&mut [0]).expect("the other end is closed"), 0);
    for number in [-1, 1, 2, 1_000_000] {
        // SAFETY: these numbers are closed, or refused.
        assert!(unsafe { Config::from_fd(number) }.is_err(), "{number}");
    }
}

#[test]
fn a_nonblocking_descriptor_is_waited_for() {
    let (mut parent, child) = UnixStream::pair().expect("a socket pair");
    child.set_nonblocking(true).expect("a socket can be set so");
    let number = child.into_raw_fd();
    // SAFETY: the number is ours to give away.
    let reader = std::thread::spawn(move || unsafe { Config::from_fd(number) }.map(|config| config.pools.len()));
    for byte in pool("").bytes() {
        parent.write_all(&[byte]).expect("the other end reads");
        std::thread::yield_now();
    }
    drop(parent);
    assert_eq!(reader.join().expect("the reader does not panic"), Ok(1));
}

#[test]
fn a_wrong_admin_section_says_what_to_write() {
    let wrong = |members: &str| refused(&top(&format!(r#","admin":{members}"#)));
    assert!(wrong("{}").contains("admin.listen: is missing (say where, as in"), "{}", wrong("{}"));
    assert!(wrong(r#"{"listen":"9001"}"#).contains("write HOST:PORT, for example 127.0.0.1:9000"));
    assert!(wrong(r#"{"listen":"localhost:1","mode":"0600"}"#).contains("admin.mode: is the permissions of a Unix"));
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("token");
    let with_token = || wrong(&format!(r#"{{"listen":"localhost:1","token_file":{path:?}}}"#));
    assert!(with_token().contains("token\" does not exist"), "{}", with_token());
    fs::write(&path, "fifteen bytes..\n").expect("a file");
    assert!(with_token().contains("has 15 bytes, and 16 is the least"), "{}", with_token());
    fs::write(&path, "not to be guessed").expect("a file");
    let config = good(&top(&format!(r#","admin":{{"listen":"localhost:1","token_file":{path:?}}}"#)));
    assert!(!format!("{config:?}").contains("guessed"), "it is never shown");
    let both = refused(&top(r#","listeners":[{"unix":"/run/x"}],"admin":{"listen":"/run/x"}"#));
    assert!(both.contains("admin.listen: unix:/run/x is a listener for clients already"), "{both}");
}

#[test]
fn the_command_lines_admin_address_replaces_the_files() {
    let text = top(r#","admin":{"listen":"/run/a","mode":"0666","token_file":"/proc/version"}"#);
    let mut config = good(&text);
    config.administer(Some(Address::from_any("/run/b").expect("a path"))).expect("it is free");
    let admin = config.admin.clone().expect("it is there");
    assert_eq!(admin.listen, Listen::Unix { path: "/run/b".into(), mode: 0o666, owner: Owner::default() });
    assert!(admin.token.is_some() && config.summary().ends_with("; admin: unix:/run/b"));
    config.listeners.push(Listener::open(admin.listen));
    assert!(config.administer(None).is_err(), "clients and operators do not share a socket");
}

#[test]
fn a_file_that_is_not_a_configuration_is_refused_quickly() {
    let members: Vec<String> = (0..20_000).map(|number| format!("\"k{number}\":1")).collect();
    let message = refused(&format!("{{{}}}", members.join(",")));
    // One more than the listed keys, since the pools are missing.
    assert_eq!(message.lines().count(), 51);
    assert!(message.ends_with("bus.json: and 19951 more"), "{}", message.lines().last().unwrap_or_default());
}

#[test]
fn the_example_configurations_are_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    assert_eq!(Config::load(&root.join("minimal.json")).map(|config| config.pools.len()), Ok(1));
    let text = fs::read_to_string(root.join("full.json")).expect("the file is in the repository");
    let config = good(&text);
    assert_eq!(config.limits, Limits::default(), "the full example shows the defaults");
}

/// Files in a folder with this extension.
fn files_in(folder: &str, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).expect("it is there");
    let paths = entries.map(|entry| entry.expect("it can be read").path());
    paths.filter(|path| path.extension().is_some_and(|kind| kind == ending)).collect()
}

#[test]
fn the_configurations_in_the_docs_and_those_of_init_are_valid() {
    let mut shown = Vec::new();
    for page in files_in("", "md").into_iter().chain(files_in("docs", "md")) {
        let text = fs::read_to_string(&page).expect("a page");
        let blocks = text.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next());
        shown.extend(blocks.map(|block| (page.clone(), block.to_owned())));
    }
    shown.extend(
        files_in("config", "json").into_iter().map(|path| (path.clone(), fs::read_to_string(path).expect("JSON"))),
    );
    let mut count = 0;
    for (path, text) in shown {
        let mut value: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if value.get("command").is_some() && value.get("instances").is_some() {
            value = json!({ "pools": [value] });
        }
        let Some(pools) = value["pools"].as_array_mut() else { continue };
        // Their commands need not be on this machine.
        pools.iter_mut().for_each(|pool| pool["command"] = "cat".into());
        let text = value.to_string();
        if let Err(why) = Config::from_bytes(text.as_bytes(), "it") {
            panic!("{}: {why}\n{text}", path.display());
        }
        count += 1;
    }
    assert!(count > 15, "only {count} were found");
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Config::from_bytes(&bytes, "x").is_err());
    }

    /// Nearly valid texts reach further than random bytes do.
    #[test]
    fn no_damage_makes_it_panic(
        at in any::<prop::sample::Index>(),
        length in 0usize..20,
        insert in prop::collection::vec(prop::sample::select(&b"{}[]\",:\\u0019eE.-_ \n\xC3\xA9tn"[..]), 0..6),
    ) {
        let mut bytes = include_bytes!("../../config/full.json").to_vec();
        let start = at.index(bytes.len());
        let end = (start + length).min(bytes.len());
        bytes.splice(start..end, insert);
        if let Err(ConfigError::Invalid { problems, .. }) = Config::from_bytes(&bytes, "x") {
            let lines = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
            prop_assert!(!problems.is_empty());
            for problem in problems {
                prop_assert!((1..=lines).contains(&problem.line) && problem.column >= 1, "{}", problem);
            }
        }
    }

    #[test]
    fn what_is_written_is_what_is_read(
        ids in prop::collection::btree_set("[a-zé\"\\\\]{1,8}", 1..5),
        instances in 1u64..50,
        args in prop::collection::vec("[^\0]{0,12}", 0..4),
        env in prop::collection::btree_map("[A-Z_][A-Z0-9_]{0,6}", "[^\0]{0,12}", 0..4),
        buffer in keys::range("limits", "max_input_buffer"),
        drain in keys::range("limits", "drain_timeout_sec"),
        pretty in any::<bool>(),
    ) {
        let pools: Vec<Value> = ids
            .iter()
            .map(|id| json!({"id": id, "command": "/bin/sh", "args": args, "env": env, "instances": instances}))
            .collect();
        let value = json!({"pools": pools, "limits": {"max_input_buffer": buffer, "drain_timeout_sec": drain}});
        let text = if pretty { format!("{value:#}") } else { value.to_string() };
        let config = good(&text);
        prop_assert_eq!(config.pools.len(), ids.len());
        for (pool, id) in config.pools.iter().zip(&ids) {
            prop_assert_eq!((&pool.core.id, &pool.args, &pool.env), (id, &args, &env));
            prop_assert_eq!(pool.core.instances as u64, instances);
        }
        prop_assert_eq!(config.limits.max_input_buffer as u64, buffer);
        prop_assert_eq!(config.limits.drain_timeout.as_secs(), drain);
    }

    #[test]
    fn a_problem_points_at_the_value(spaces in "[ \n\t]{0,20}", filler in "[a-zé😀]{0,10}") {
        let before = format!("{{\"_{filler}\":1,{spaces}\"pools\":[{{\"id\":\"a\",\"command\":\"/bin/sh\",\"instances\":");
        let text = format!("{before}0}}]}}");
        let line = before.split('\n').count();
        let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
        let expected = format!("bus.json:{line}:{column}: pools[0].instances: must be at least 1, not 0");
        prop_assert_eq!(refused(&text), expected);
    }
}

#[test]
fn a_command_that_cannot_be_run_disables_only_its_pool_unless_strict_or_in_all_pools() {
    let config =
        good(r#"{"pools":[{"id":"a","command":"sh","instances":1},{"id":"b","command":"/no/such","instances":1}]}"#);
    let [problem] = &config.missing[..] else { panic!("one pool cannot run: {:?}", config.missing) };
    assert_eq!(
        (problem.path.as_str(), problem.message.as_str()),
        ("pools[1].command", r#"the command "/no/such" of pool "b" does not exist"#)
    );
    assert_eq!(config.pools[1].program, Path::new("/no/such"));
    assert!(config.strict().is_err_and(|error| error.to_string().contains("pools[1].command")));
    let plain = good(
        r#"{"pools":[{"id":"a","command":"sh","instances":1},{"id":"b","command":"no-such-program","instances":1}]}"#,
    );
    assert!(plain.pools[1].program.is_absolute(), "no file of some working directory is run by accident");
    let all =
        refused(r#"{"pools":[{"id":"a","command":"/no/a","instances":1},{"id":"b","command":"/no/b","instances":1}]}"#);
    assert_eq!(all.lines().count(), 2, "{all}");
    let other =
        refused(r#"{"pools":[{"id":"a","command":"sh","instances":0},{"id":"b","command":"/no/b","instances":1}]}"#);
    assert_eq!(other.lines().count(), 2, "all that is wrong is reported at once: {other}");
}
