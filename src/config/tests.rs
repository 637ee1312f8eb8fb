//! What a person sees of the configuration: what is accepted, what is refused, and how the refusal reads.

use std::collections::BTreeSet;
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
use crate::bus::settings::{IdCollision, MAX_WORKERS, OnExit, Proxies, Proxy, SessionAccess};

fn read(text: &str) -> Result<Config, ConfigError> {
    Config::from_bytes(text.as_bytes(), "bus.json")
}

fn good(text: &str) -> Config {
    read(text).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

/// All messages about a text that must be refused.
fn refused(text: &str) -> String {
    read(text).map(|config| config.summary()).expect_err("this configuration must be refused").to_string()
}

/// A configuration with one pool that has these members beside the required ones.
fn pool(members: &str) -> String {
    format!(r#"{{"pools":[{{"id":"a","command":"/bin/sh","instances":2{members}}}]}}"#)
}

/// A good pool and these members beside it.
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
    assert_eq!((core.cancel_on_disconnect, core.request_timeout), (false, None));
    assert_eq!((core.deny_methods.as_slice(), config.limits.max_memory), (&[][..], 268_435_456));
    assert_eq!((config.pools[0].program.as_path(), config.pools[0].cwd.as_deref()), (Path::new("/bin/sh"), None));
}

fn networks(texts: &[&str]) -> Vec<Network> {
    texts.iter().map(|text| Network::parse(text).expect("a network")).collect()
}

#[test]
fn every_key_arrives() {
    let config = good(
        r#"{
          "_comment": "a comment", "_comment": "and another",
          "pools": [{
            "id": "a", "command": "sh", "args": ["-c", "cat"], "instances": 2, "max_instances": 9, "_": 1,
            "env": {"A": "1", "_JAVA_OPTIONS": "-Xmx1g", "_comment": "x"}, "cwd": "/", "assignment": "dedicated",
            "cancel_on_disconnect": true, "request_timeout_sec": 7, "deny_methods": ["session/list", "x\u002fy"],
            "max_timeouts": 3, "retry_after_sec": 0, "on_exit": "replace",
            "stderr_level": "warn", "stderr_lines_per_sec": 0
          }, {"id": "b", "command": "sh", "instances": 1}],
          "limits": {"max_input_buffer": 10, "max_output_queue": 5, "max_restarts": 0, "restart_window_sec": 4,
            "drain_timeout_sec": 3, "backpressure_timeout_sec": 2, "quiesce_sec": 1, "lame_duck_sec": 8,
            "drain_grace_ms": 70, "hold_ms": 60, "session_idle_sec": 50,
            "on_failure": "exit", "max_memory": 16777216, "_why": {}},
          "routing": {"id_collision": "reject", "session_access": "shared", "default_pool": "b"},
          "error_replies": false,
          "listeners": [
            {"tcp": "[::1]:9000", "pool": "a", "pools": ["b", "a"], "max_connections": {"total": 9, "per_source": 2},
              "when_not_ready": "close", "keepalive_sec": 7,
              "allow": ["10.0.0.0/8", "::1"], "proxy": {"from": ["192.0.2.7"], "required": false, "timeout_ms": 50}},
            {"unix": "/run/b", "mode": "0660", "owner": "root:7", "peer_uids": ["root", 1000], "max_connections": 7,
             "first_line_timeout_sec": 5, "idle_timeout_sec": 600, "idle_closes_sessions": true},
            {"unix": "c", "proxy": {"from": ["unix"]}}],
          "admin": {"listen": "/run/admin", "mode": "0660", "token_file": "/proc/version"},
          "log": {"level": "debug", "format": "json"},
          "transport": {"mode": "tcp", "framing": "ndjson", "protocol": "json", "options": {"mqueue_depth": 1}}
        }"#,
    );
    let pool = &config.pools[0];
    assert!(pool.program.is_absolute() && pool.program.ends_with("sh"));
    assert_eq!((pool.command.as_str(), pool.args.as_slice()), ("sh", &["-c".to_owned(), "cat".to_owned()][..]));
    assert_eq!(pool.env.keys().map(String::as_str).collect::<Vec<_>>(), ["A", "_JAVA_OPTIONS"]);
    assert_eq!(pool.cwd.as_deref(), Some(Path::new("/")));
    let core = &pool.core;
    assert_eq!((core.instances, core.max_instances, core.assignment), (2, 9, Assignment::Dedicated));
    assert_eq!((core.cancel_on_disconnect, core.request_timeout), (true, Some(Duration::from_secs(7))));
    assert_eq!(core.deny_methods, ["session/list", "x/y"]);
    assert_eq!((core.max_timeouts, core.retry_after), (Some(3), Some(Duration::ZERO)));
    assert_eq!((core.on_exit, config.pools[1].core.on_exit), (OnExit::Replace, OnExit::Close));
    assert_eq!(pool.stderr, StderrLog { level: LogLevel::Warn, lines_per_sec: 0 });
    assert_eq!(config.pools[1].stderr, StderrLog { level: LogLevel::Info, lines_per_sec: 100 });
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
        drain_grace: Duration::from_millis(70),
        hold: Duration::from_millis(60),
        session_idle: Some(Duration::from_secs(50)),
        requests_ahead: 128,
        max_memory: 16 << 20,
        on_failure: settings::OnFailure::Exit,
    };
    assert_eq!(config.limits, limits);
    let routing =
        Routing { id_collision: IdCollision::Reject, session_access: SessionAccess::Shared, error_replies: false };
    assert_eq!((&config.routing, config.default_pool), (&routing, Some(1)));
    assert_eq!(config.log, Log { level: LogLevel::Debug, format: LogFormat::Json });
    let unix = |path: &str, mode| Listener::open(Listen::Unix { path: path.into(), mode, owner: Owner::default() });
    let tcp = Listener {
        listen: Listen::Tcp { host: "::1".to_owned(), port: 9000 },
        pool: Some(0),
        pools: Some(vec![1, 0]),
        max_connections: MaxConnections { total: Some(9), per_source: Some(2) },
        patience: Patience { keepalive: Some(Duration::from_secs(7)), ..Patience::default() },
        entry: Entry {
            allow: Some(networks(&["10.0.0.0/8", "::1"])),
            peer_uids: None,
            proxy: Some(Proxy {
                from: Proxies::Networks(networks(&["192.0.2.7"])),
                required: false,
                timeout: Duration::from_millis(50),
            }),
        },
        closes_when_not_ready: true,
        web: None,
    };
    let seven = MaxConnections { total: Some(7), per_source: None };
    let patience = Patience {
        first_line: Some(Duration::from_secs(5)),
        idle: Some(Duration::from_secs(600)),
        closes_sessions: true,
        keepalive: None,
    };
    let owner = Owner { user: Some(0), group: Some(7) };
    let bounded = Listener {
        max_connections: seven,
        patience,
        entry: Entry { peer_uids: Some(vec![0, 1000]), ..Entry::default() },
        ..Listener::open(Listen::Unix { path: "/run/b".into(), mode: 0o660, owner })
    };
    let proxy = Some(Proxy { from: Proxies::Unix, required: true, timeout: Duration::from_secs(3) });
    let proxied = Listener { entry: Entry { proxy, ..Entry::default() }, ..unix("c", 0o600) };
    assert_eq!(config.listeners, [tcp, bounded, proxied]);
    assert_eq!(config.settings().listeners[1].entry, config.listeners[1].entry);
    let core = config.settings().listeners;
    assert_eq!((core.len(), core[0].pool, core[0].pools.as_deref()), (3, Some(0), Some(&[1, 0][..])));
    assert_eq!(core[0].max_connections, MaxConnections { total: Some(9), per_source: Some(2) });
    assert_eq!(config.max_workers(), 10);
    let summary = "bus.json: pools: a (2 to 9 × sh), b (1 × sh); listeners: tcp://[::1]:9000, unix:/run/b, unix:c; \
         admin: unix:/run/admin";
    assert_eq!(config.summary(), summary);
}

#[test]
fn a_websocket_listener_has_its_terms() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("tokens");
    fs::write(&file, "alice:0123456789abcdef a\n").expect("a file");
    let listener = |members: &str| good(&top(&format!(r#","listeners":[{{{members}}}]"#))).listeners.remove(0);
    let plain = listener(r#""ws":"127.0.0.1:0""#);
    assert_eq!(plain.listen, Listen::Tcp { host: "127.0.0.1".to_owned(), port: 0 });
    assert_eq!((plain.web.clone(), plain.address()), (Some(Web::default()), "ws://127.0.0.1:0/acp".to_owned()));
    let full = listener(&format!(
        r#""ws":"[::1]:9000","path":"/a/b","origins":["https://App.example","*"],"hosts":["Bus.example"],"tokens_file":"{}",
           "trusted_proxies":["10.0.0.0/8"],"ping_sec":0"#,
        file.display()
    ));
    let web = Web {
        path: "/a/b".to_owned(),
        origins: vec!["https://app.example".to_owned(), "*".to_owned()],
        hosts: vec!["bus.example".to_owned()],
        tokens_file: Some(file),
        tokens: Tokens::parse("alice:0123456789abcdef a", &["a"]).expect("it is right"),
        trusted_proxies: Some(Proxies::Networks(networks(&["10.0.0.0/8"]))),
        ping: None,
        pong_timeout: Duration::from_secs(10),
    };
    assert_eq!((full.web.as_ref(), full.address()), (Some(&web), "ws://[::1]:9000/a/b".to_owned()));
    let unix = listener(r#""ws":"unix:/run/bus.sock","mode":"0660","ping_sec":7,"trusted_proxies":["unix"]"#);
    assert_eq!(unix.address(), "ws+unix:/run/bus.sock:/acp");
    assert!(unix.web.is_some_and(|web| web.ping == Some(Duration::from_secs(7))));
}

#[test]
fn a_listener_that_asks_for_tokens_is_not_open_to_everybody() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("tokens");
    fs::write(&file, "alice:0123456789abcdef\n").expect("a file");
    let open = |members: &str| good(&top(&format!(r#","listeners":[{{{members}}}]"#))).open_listeners().len();
    assert_eq!(open(r#""ws":"0.0.0.0:9000""#), 1);
    assert_eq!(open(&format!(r#""ws":"0.0.0.0:9000","tokens_file":"{}""#, file.display())), 0);
}

#[test]
fn what_would_have_no_effect_is_refused() {
    let lonely = refused(&pool(r#","max_timeouts": 3"#));
    assert!(lonely.contains("pools[0].max_timeouts: counts requests that run out of time, and none does"), "{lonely}");
    for (members, why) in [
        (r#""tcp":"a:1","origins":[]"#, "listeners[0].origins: is of a WebSocket listener (write \"ws\" instead"),
        (r#""ws":"a:1","tcp":"b:1""#, "has more than one of tcp, unix and ws"),
        (
            r#""ws":"a:1","ping_sec":0,"pong_timeout_sec":3"#,
            "pong_timeout_sec: is how long an answer to a ping may take",
        ),
        (r#""ws":"a:1","path":"acp""#, "must be a path without blanks and query, not \"acp\""),
        (r#""ws":"a:1","path":"/healthz""#, "/healthz is where balancers ask"),
        (r#""ws":"a:1","hosts":["https://a.example"]"#, "must be the name of a host, not \"https://a.example\" (write"),
        (r#""ws":"a:1","hosts":["a.example:9000"]"#, "without scheme, port and path"),
        (r#""ws":"a:1","origins":["https://a.example/"]"#, "must be an origin, not \"https://a.example/\""),
        (r#""ws":"a:1","tokens_file":"/nowhere/tokens""#, "the tokens file \"/nowhere/tokens\": "),
        (
            r#""ws":"a:1","tokens_file":"/dev/null""#,
            "the tokens file \"/dev/null\": cannot be used: it is no regular file",
        ),
        (r#""ws":"a:1","trusted_proxies":["unix"]"#, "is for listeners on a Unix socket"),
        (r#""ws":"unix:","pool":"a""#, "the socket's path is empty"),
    ] {
        let refused = refused(&top(&format!(r#","listeners":[{{{members}}}]"#)));
        assert!(refused.contains(why), "{members}: {refused}");
    }
    let idle = refused(&top(r#","listeners":[{"unix":"x","idle_closes_sessions":true}]"#));
    assert!(idle.contains("listeners[0].idle_closes_sessions: says which idle clients are closed"), "{idle}");
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
        (top(r#","routing":{"error_replies":true}"#), "\"error_replies\" belongs at the top level"),
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
        (top(r#","error_replies":1"#), "error_replies: must be true or false, not a number"),
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
fn pools_have_ids_of_their_own() {
    let one = r#"{"id":"a","command":"/bin/sh","instances":1}"#;
    let message = refused(&format!(r#"{{"pools":[{one},{one}]}}"#));
    assert_eq!(message, "bus.json:1:62: pools[1].id: \"a\" is the id of pools[0] already");
}

#[test]
fn only_dedicated_pools_grow() {
    assert!(refused(&pool(r#","max_instances":4"#)).contains("set \"assignment\": \"dedicated\""));
    let text = pool(r#","max_instances":1,"assignment":"dedicated""#);
    assert!(refused(&text).contains("pools[0].max_instances: must be at least instances, which is 2, not 1"));
    let core = |text: &str| good(text).pools[0].core.clone();
    assert_eq!(core(&pool(r#","assignment":"dedicated""#)).max_instances, DEFAULT_DEDICATED_WORKERS);
    assert_eq!(core(&pool(r#","max_instances":2,"assignment":"dedicated""#)).max_instances, 2);
}

#[test]
fn only_dedicated_pools_have_connections_that_end_with_their_worker() {
    let message = refused(&pool(r#","on_exit":"close""#));
    assert!(
        message.contains("pools[0].on_exit: is for pools that give each connection a worker of its own"),
        "{message}"
    );
    let message = refused(&pool(r#","assignment":"dedicated","on_exit":"restart""#));
    assert!(message.contains("must be \"close\" or \"replace\", not \"restart\""), "{message}");
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
        ("no-such-command-here", "is not in PATH"),
        ("/etc/passwd", "is not executable; chmod +x /etc/passwd"),
        ("/", "is a directory"),
        ("/dev/null", "is not a file"),
        ("python3 worker.py", "the arguments belong into \"args\""),
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
fn a_listener_has_one_address_and_a_pool_that_exists() {
    let with = |listener: &str| top(&format!(r#","listeners":[{listener}]"#));
    let cases = [
        (r#"{}"#, "listeners[0]: needs tcp, unix or ws"),
        (r#"{"tcp":"a:1","unix":"b"}"#, "listeners[0]: has more than one of tcp, unix and ws"),
        (r#"{"tcp":":x"}"#, "listeners[0].tcp: the port must be a number"),
        (r#"{"unix":""}"#, "listeners[0].unix: the socket's path is empty"),
        (r#"{"tcp":"a:1","pool":"b"}"#, "listeners[0].pool: there is no pool \"b\""),
        (r#"{"tcp":"a:1","mode":"0600"}"#, "a TCP port has none"),
        (r#"{"unix":"@a","mode":"0600"}"#, "an abstract name has none"),
        (r#"{"unix":"@"}"#, "the abstract name is empty"),
        (r#"{"unix":"b","mode":"600x"}"#, "must be octal permissions"),
        (r#"{"unix":"b","mode":"1777"}"#, "must be octal permissions"),
        (r#"{"unix":"b","mode":600}"#, "listeners[0].mode: must be a string"),
        (r#"{"tcp":"a:1"},{"tcp":"a:1"}"#, "listeners[1].tcp: tcp://a:1 is listened on already"),
        (r#"{"unix":"b"},{"unix":"b","mode":"0660"}"#, "unix:b is listened on already"),
    ];
    for (listener, expected) in cases {
        let message = refused(&with(listener));
        assert!(message.contains(expected), "{listener}: {message}");
    }
    assert_eq!(good(&with(r#"{"tcp":"a:0"},{"tcp":"a:0"}"#)).listeners.len(), 2);
}

#[test]
fn a_listener_offers_the_pools_it_names_or_its_own_or_all() {
    let pools = |listener: &str| {
        let text = format!(
            r#"{{"pools":[{{"id":"a","command":"/bin/sh","instances":1}},{{"id":"b","command":"/bin/sh","instances":1}}],
                "listeners":[{{"unix":"x"{listener}}}]}}"#
        );
        read(&text).map(|config| (config.listeners[0].pool, config.listeners[0].pools.clone()))
    };
    assert_eq!(pools(""), Ok((None, None)));
    assert_eq!(pools(r#","pool":"b""#), Ok((Some(1), Some(vec![1]))), "its own and no other");
    assert_eq!(pools(r#","pools":["b"]"#), Ok((None, Some(vec![1]))));
    assert_eq!(pools(r#","pool":"a","pools":["b","a"]"#), Ok((Some(0), Some(vec![1, 0]))));
    let cases = [
        (r#","pools":[]"#, "listeners[0].pools: must name at least one pool (leave it out for all pools)"),
        (r#","pools":"a""#, "listeners[0].pools: must be an array"),
        (r#","pools":["a","c"]"#, "listeners[0].pools[1]: there is no pool \"c\""),
        (r#","pools":["a","a"]"#, "listeners[0].pools[1]: \"a\" is named twice"),
        (r#","pool":"b","pools":["a"]"#, "listeners[0].pool: \"b\" is not among the pools of this listener (add \"b\""),
    ];
    for (listener, expected) in cases {
        let message = pools(listener).expect_err("must be refused").to_string();
        assert!(message.contains(expected), "{listener}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn a_listener_counts_its_connections_all_together_or_by_source() {
    let with = |value: &str| top(&format!(r#","listeners":[{{"unix":"x","max_connections":{value}}}]"#));
    let counts = |value: &str| good(&with(value)).listeners[0].max_connections;
    assert_eq!(counts("1024"), MaxConnections { total: Some(1024), per_source: None });
    assert_eq!(counts(r#"{"per_source":4,"_":1}"#), MaxConnections { total: None, per_source: Some(4) });
    let cases = [
        ("0", "listeners[0].max_connections: must be at least 1, not 0"),
        ("1025", "listeners[0].max_connections: must be at most 1024, not 1025"),
        ("\"4\"", "listeners[0].max_connections: must be a whole number from 1 to 1024, not a string"),
        ("{}", "listeners[0].max_connections: needs total or per_source"),
        (r#"{"total":0}"#, "listeners[0].max_connections.total: must be at least 1, not 0"),
        (r#"{"per_sorce":4}"#, "max_connections.per_sorce: is not a known key (did you mean \"per_source\"?)"),
        (r#"{"total":2,"per_source":3}"#, "max_connections.per_source: must be at most total, which is 2, not 3"),
    ];
    for (value, expected) in cases {
        let message = refused(&with(value));
        assert!(message.contains(expected), "{value}: {message}");
    }
    assert!(refused(&top(r#","per_source":4"#)).contains("belongs under listeners[].max_connections"));
}

#[test]
fn the_stderr_of_workers_has_a_level_and_a_rate() {
    let refused = |members: &str| refused(&pool(members));
    let level = refused(r#","stderr_level":"warning""#);
    assert!(level.contains("pools[0].stderr_level: must be \"debug\" or \"info\" or \"warn\" or \"error\""), "{level}");
    assert!(refused(r#","stderr_lines_per_sec":1000001"#).contains("must be at most 1000000, not 1000001"));
    assert!(refused(r#","stderr_lines_per_sec":-1"#).contains("pools[0].stderr_lines_per_sec: must be"));
    assert!(refused(r#","stderr_lines":5"#).contains("is not a known key"));
}

#[test]
fn who_may_come_in_is_said_in_the_way_of_the_listener() {
    let with = |listener: &str| top(&format!(r#","listeners":[{{{listener}}}]"#));
    let cases = [
        (
            r#""tcp":"a:1","allow":["10.0.0.1/8"]"#,
            "listeners[0].allow[0]: 10.0.0.1 has bits beyond the first 8; write 10",
        ),
        (r#""tcp":"a:1","allow":["home"]"#, "listeners[0].allow[0]: \"home\" is no network; write 10.0.0.0/8"),
        (r#""tcp":"a:1","allow":[]"#, "listeners[0].allow: must name at least one network (write \"0.0.0.0/0\" and"),
        (r#""tcp":"a:1","allow":"::/0""#, "listeners[0].allow: must be an array"),
        (r#""unix":"b","allow":["::/0"]"#, "listeners[0].allow: is addresses of the network; who connects to a Unix"),
        (r#""tcp":"a:1","peer_uids":[0]"#, "listeners[0].peer_uids: is users of this machine; who connects to a TCP"),
        (r#""unix":"b","peer_uids":[]"#, "listeners[0].peer_uids: must name at least one user (leave it out"),
        (r#""unix":"b","peer_uids":["no-one"]"#, "listeners[0].peer_uids[0]: there is no user \"no-one\" on this"),
        (r#""unix":"b","peer_uids":[-1]"#, "listeners[0].peer_uids[0]: must be at least 0, not -1"),
        (r#""unix":"b","peer_uids":[4294967295]"#, "listeners[0].peer_uids[0]: must be at most 4294967294"),
        (r#""unix":"b","owner":"no-one""#, "listeners[0].owner: there is no user \"no-one\" on this machine"),
        (r#""unix":"b","owner":":no-one""#, "listeners[0].owner: there is no group \"no-one\" on this machine"),
        (r#""unix":"b","owner":"root:""#, "listeners[0].owner: must name an owner, not \"root:\" (write \"user\""),
        (r#""unix":"b","owner":"""#, "listeners[0].owner: must name an owner, not \"\""),
        (r#""unix":"@b","owner":"root""#, "listeners[0].owner: is of a socket file; an abstract name has none"),
        (r#""tcp":"a:1","owner":"root""#, "listeners[0].owner: is of the file of a Unix socket; a TCP port has none"),
    ];
    for (listener, expected) in cases {
        let message = refused(&with(listener));
        assert!(message.contains(expected), "{listener}: {message}");
    }
    let owner = |text: &str| match &good(&with(&format!(r#""unix":"b","owner":"{text}""#))).listeners[0].listen {
        Listen::Unix { owner, .. } => (owner.user, owner.group),
        other => panic!("{other}"),
    };
    assert_eq!((owner("root"), owner("5:6"), owner(":root")), ((Some(0), None), (Some(5), Some(6)), (None, Some(0))));
    let allowed = good(&with(r#""unix":"b","allow":["::/0"],"proxy":{"from":["unix"]}"#));
    assert_eq!(allowed.listeners[0].entry.allow, Some(networks(&["::/0"])));
}

#[test]
fn a_proxy_has_addresses_and_a_time() {
    let with = |kind: &str, proxy: &str| top(&format!(r#","listeners":[{{{kind},"proxy":{proxy}}}]"#));
    let (tcp, unix) = (r#""tcp":"a:1""#, r#""unix":"b""#);
    let cases = [
        (tcp, "true", "listeners[0].proxy: must be an object"),
        (tcp, "{}", "listeners[0].proxy.from: is missing (write \"from\": [\"192.0.2.10\"]"),
        (unix, "{}", "listeners[0].proxy.from: is missing (write \"from\": [\"unix\"])"),
        (tcp, r#"{"from":["unix"]}"#, "listeners[0].proxy.from[0]: is for listeners on a Unix socket"),
        (unix, r#"{"from":["10.0.0.5"]}"#, "listeners[0].proxy.from: of a Unix socket is whoever may connect to it"),
        (
            unix,
            r#"{"from":[]}"#,
            "listeners[0].proxy.from: of a Unix socket is whoever may connect to it (write [\"unix\"]",
        ),
        (tcp, r#"{"from":["::1"],"timeout":5}"#, "listeners[0].proxy.timeout: is not a known key"),
        (tcp, r#"{"from":["::1"],"timeout_ms":0}"#, "listeners[0].proxy.timeout_ms: must be at least 1, not 0"),
        (tcp, r#"{"from":["::1"],"timeout_ms":60001}"#, "listeners[0].proxy.timeout_ms: must be at most 60000"),
        (tcp, r#"{"from":["::1"],"required":1}"#, "listeners[0].proxy.required: must be true or false"),
    ];
    for (kind, proxy, expected) in cases {
        let message = refused(&with(kind, proxy));
        assert!(message.contains(expected), "{proxy}: {message}");
    }
    let entry = good(&with(tcp, r#"{"from":["::1"]}"#)).listeners[0].entry.clone();
    let expected =
        Proxy { from: Proxies::Networks(networks(&["::1"])), required: true, timeout: Proxy::DEFAULT_TIMEOUT };
    assert_eq!(entry.proxy, Some(expected));
}

#[test]
fn a_listener_that_other_machines_reach_says_so_until_it_is_told_who_may_come() {
    let open = |listener: &str| good(&top(&format!(r#","listeners":[{listener}]"#))).open_listeners();
    for near in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "[::ffff:127.0.0.1]:1"] {
        assert_eq!(open(&format!(r#"{{"tcp":"{near}"}}"#)), Vec::<String>::new(), "{near}");
    }
    for far in ["0.0.0.0:1", "[::]:1", "192.0.2.7:1", "bus.example:1"] {
        let said = open(&format!(r#"{{"tcp":"{far}"}}"#));
        assert_eq!(said.len(), 1, "{far}");
        assert!(said[0].starts_with(&format!("tcp://{far} takes everybody who reaches it")), "{said:?}");
        assert_eq!(open(&format!(r#"{{"tcp":"{far}","allow":["0.0.0.0/0","::/0"]}}"#)), Vec::<String>::new());
    }
    assert_eq!(open(r#"{"unix":"b"}"#), Vec::<String>::new());
    let admin = |listen: &str| good(&top(&format!(r#","admin":{{"listen":"{listen}"}}"#))).open_listeners();
    assert_eq!((admin("127.0.0.1:1"), admin("/a")), (vec![], vec![]));
    assert!(
        admin("0.0.0.0:1")[0].starts_with("the admin listener 0.0.0.0:1 tells everybody"),
        "{:?}",
        admin("0.0.0.0:1")
    );
}

#[test]
fn methods_that_are_denied_have_names() {
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
fn a_flag_adds_a_listener_and_stdio_is_the_default() {
    let tcp = Listen::Tcp { host: "a".to_owned(), port: 1 };
    let mut config = good(&top(r#","listeners":[{"unix":"b"}]"#));
    config.listen(&[]).expect("the file has a listener");
    assert_eq!(config.listeners.len(), 1);
    config.listen(&[Listener::open(tcp.clone())]).expect("another one");
    assert_eq!(config.listeners[0].listen, tcp);
    let error = config.listen(&[Listener::open(tcp)]).expect_err("twice");
    assert!(error.to_string().contains("tcp://a:1 is among the listeners already"), "{error}");
    let mut config = good(&top(""));
    config.listen(&[]).expect("stdio is always there");
    assert_eq!(config.listeners, [Listener::open(Listen::Stdio)]);
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
    assert!(missing.starts_with("/no/such.json: the file does not exist; start without --config"), "{missing}");
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
        // SAFETY: nobody has these numbers, or they are refused.
        assert!(unsafe { Config::from_fd(number) }.is_err(), "{number}");
    }
}

#[test]
fn a_descriptor_that_does_not_block_is_waited_for() {
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
fn the_admin_address_of_the_command_line_takes_the_place_of_the_files() {
    let text = top(r#","admin":{"listen":"/run/a","mode":"0666","token_file":"/proc/version"}"#);
    let mut config = good(&text);
    config.administer(Some(Address::from_any("/run/b").expect("a path"))).expect("it is nobody else's");
    let admin = config.admin.clone().expect("it is there");
    assert_eq!(admin.listen, Listen::Unix { path: "/run/b".into(), mode: 0o666, owner: Owner::default() });
    assert!(admin.token.is_some() && config.summary().ends_with("; admin: unix:/run/b"));
    config.listeners.push(Listener::open(admin.listen));
    assert!(config.administer(None).is_err(), "clients and operators do not share a socket");
}

#[test]
fn a_file_that_is_no_configuration_is_refused_quickly() {
    let members: Vec<String> = (0..60_000).map(|number| format!("\"k{number}\":1")).collect();
    let message = refused(&format!("{{{}}}", members.join(",")));
    // One more than the keys, for the pools are missing.
    assert_eq!(message.lines().count(), 51);
    assert!(message.ends_with("bus.json: and 59951 more"), "{}", message.lines().last().unwrap_or_default());
}

#[test]
fn the_example_configurations_and_their_schema_agree_with_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let parse = |name: &str| -> Value {
        let text = fs::read_to_string(root.join(name)).expect("the file is in the repository");
        serde_json::from_str(&text).expect("the file is JSON")
    };
    let schema = parse("schema.json");
    let mut seen = BTreeSet::new();
    for (section, known) in keys::SECTIONS {
        let object = match *section {
            "" => &schema,
            "pools[]" => &schema["properties"]["pools"]["items"],
            "listeners[]" => &schema["properties"]["listeners"]["items"],
            "listeners[].max_connections" => {
                let either = &schema["properties"]["listeners"]["items"]["properties"]["max_connections"]["anyOf"];
                let range = keys::range("max_connections");
                assert_eq!(
                    (&either[0]["minimum"], &either[0]["maximum"]),
                    (&json!(range.start()), &json!(range.end()))
                );
                &either[1]
            }
            "listeners[].proxy" => &schema["properties"]["listeners"]["items"]["properties"]["proxy"],
            name => &schema["properties"][name],
        };
        let properties = object["properties"].as_object().expect("a section has properties");
        let names = |keys: Vec<&str>| keys.into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
        let written = properties.keys().map(String::as_str).filter(|key| *key != "$schema").collect();
        assert_eq!(names(written), names(known.to_vec()), "the keys of {section:?} in the schema");
        assert_eq!(object["additionalProperties"], json!(false), "{section:?}");
        assert_eq!(object["patternProperties"]["^_"], json!(true), "{section:?}");
        for (key, value) in properties {
            assert!(value["description"].is_string(), "{key} has no description");
            if value["type"] == "integer" {
                let range = keys::range(key);
                assert_eq!(
                    (&value["minimum"], &value["maximum"]),
                    (&json!(range.start()), &json!(range.end())),
                    "{key}"
                );
                seen.insert(key.clone());
            }
        }
    }
    assert_eq!(seen.len(), 26, "numbers in the schema: {seen:?}");
    let limits = schema["properties"]["limits"]["properties"].as_object().expect("limits");
    let empty = good(&top(r#","limits":{}"#)).limits;
    let defaults = [
        ("max_input_buffer", empty.max_input_buffer as u64),
        ("max_output_queue", empty.max_output_queue as u64),
        ("max_restarts", empty.max_restarts.into()),
        ("restart_window_sec", empty.restart_window.as_secs()),
        ("drain_timeout_sec", empty.drain_timeout.as_secs()),
        ("backpressure_timeout_sec", empty.backpressure_timeout.as_secs()),
        ("lame_duck_sec", empty.lame_duck.as_secs()),
        ("quiesce_sec", empty.quiesce.as_secs()),
        ("drain_grace_ms", empty.drain_grace.as_millis() as u64),
        ("hold_ms", empty.hold.as_millis() as u64),
        ("session_idle_sec", empty.session_idle.map_or(0, |idle| idle.as_secs())),
        ("max_memory", empty.max_memory as u64),
    ];
    for (key, default) in defaults {
        assert_eq!(limits[key]["default"], json!(default), "the default of {key} in the schema");
    }
}

#[test]
fn the_example_configurations_are_good() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    assert_eq!(Config::load(&root.join("minimal.json")).map(|config| config.pools.len()), Ok(1));
    let text = fs::read_to_string(root.join("full.json")).expect("the file is in the repository");
    let config = good(&text);
    assert_eq!(config.limits, Limits::default(), "the full example shows the defaults");
    let shown: Value = serde_json::from_str(&text).expect("the file is JSON");
    for (section, known) in keys::SECTIONS {
        let has = |key: &str| match *section {
            "" => shown.get(key).is_some(),
            "pools[]" | "listeners[]" => {
                let elements = shown[section.trim_end_matches("[]")].as_array().expect("an array");
                elements.iter().any(|element| element.get(key).is_some())
            }
            "listeners[].max_connections" => shown["listeners"][0]["max_connections"].get(key).is_some(),
            "listeners[].proxy" => shown["listeners"][0]["proxy"].get(key).is_some(),
            name => shown[name].get(key).is_some(),
        };
        // `options` belongs to transports that the bus does not have, and no example has a file with a secret.
        for key in known.iter().filter(|key| !["options", "token_file", "tokens_file"].contains(key)) {
            assert!(has(key), "config/full.json does not show {section} {key}");
        }
    }
}

#[test]
fn the_documentation_lists_every_key() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let text = fs::read_to_string(path).expect("the file is in the repository");
    for (section, known) in keys::SECTIONS {
        for key in *known {
            assert!(text.contains(&format!("\n| `{key}` |")), "docs/configuration.md has no row for {section} {key}");
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Config::from_bytes(&bytes, "x").is_err());
    }

    /// Texts that are nearly right reach further than random bytes do.
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
        buffer in keys::range("max_input_buffer"),
        drain in keys::range("drain_timeout_sec"),
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
fn messages_that_name_no_pool_go_to_the_default_pool_where_a_listener_prefers_none_and_offers_it() {
    let two = r#""pools":[{"id":"a","command":"sh","instances":1},{"id":"b","command":"sh","instances":1}]"#;
    let listeners = r#""listeners":[{"tcp":"[::1]:1"},{"tcp":"[::1]:2","pool":"a"},{"tcp":"[::1]:3","pools":["a"]}]"#;
    let preferred = |config: &Config| config.settings().listeners.iter().map(|one| one.pool).collect::<Vec<_>>();
    let config = good(&format!(r#"{{{two},{listeners},"routing":{{"default_pool":"b"}}}}"#));
    assert_eq!((preferred(&config), config.mixed_listeners()), (vec![Some(1), Some(0), None], vec![]));
    let config = good(&format!("{{{two},{listeners}}}"));
    assert_eq!(preferred(&config), [None, Some(0), None]);
    let [told] = &config.mixed_listeners()[..] else { panic!("one listener mixes") };
    assert!(
        told.starts_with("tcp://[::1]:1: a message that names no pool") && told.contains("routing.default_pool"),
        "{told}"
    );
    assert_eq!(good(&format!("{{{two}}}")).mixed_listeners().len(), 1, "the one of the command line would");
    let message = refused(&format!(r#"{{{two},"routing":{{"default_pool":"c"}}}}"#));
    assert!(message.contains("routing.default_pool: there is no pool \"c\""), "{message}");
    let dedicated = two.replacen(r#""instances":1"#, r#""instances":1,"assignment":"dedicated""#, 1);
    assert_eq!(good(&format!("{{{dedicated}}}")).mixed_listeners(), Vec::<String>::new(), "one pool is left to choose");
}

#[test]
fn a_command_that_cannot_be_run_is_a_fault_of_its_pool_alone_unless_all_pools_have_one_or_it_is_strict() {
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
    assert_eq!(other.lines().count(), 2, "all that is wrong is told at once: {other}");
}
