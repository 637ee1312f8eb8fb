//! How command lines are parsed, and the errors for wrong ones.

use clap::error::ErrorKind;

use super::daemon::bridge::Daemon;
use super::*;
use crate::config::Owner;

fn words(line: &str) -> Result<Command, clap::Error> {
    parse(std::iter::once("stdio_bus").chain(line.split_whitespace()))
}

fn run(line: &str) -> Options {
    match words(line) {
        Ok(Command::Run(options)) => options,
        other => panic!("{line:?} does not run the daemon: {other:?}"),
    }
}

fn listened(line: &str) -> Vec<String> {
    run(line).listeners.iter().map(Listener::address).collect()
}

fn refused(line: &str) -> (ErrorKind, i32, String) {
    let error = words(line).expect_err("this command line must be refused");
    (error.kind(), error.exit_code(), error.to_string())
}

#[test]
fn the_table_has_no_contradiction() {
    command().debug_assert();
    assert_eq!(command().get_name(), "stdio_bus");
}

#[test]
fn nothing_means_the_embedded_default() {
    let options = run("");
    assert_eq!(
        options,
        Options {
            config: ConfigSource::Embedded,
            listeners: Vec::new(),
            admin: None,
            log_level: None,
            log_format: None,
            io: None,
            strict: false
        }
    );
    let config = options.configuration(Path::new("/proc/self/exe"), &[]).expect("the built-in configuration is good");
    assert_eq!(config.listeners[0].listen, Listen::Stdio);
    assert_eq!(config.settings().pools[0].instances, 2);
    assert!(config.settings().listeners[0].stdio);
}

#[test]
fn every_flag_of_the_spec_is_understood() {
    assert_eq!(run("--config a.json").config, ConfigSource::File("a.json".into()));
    assert_eq!(run("--config-fd 3 --stdio").config, ConfigSource::Descriptor(3));
    assert_eq!(listened("--stdio"), ["stdio"]);
    assert_eq!(listened("--tcp [::1]:0"), ["tcp://[::1]:0"]);
    assert_eq!(listened("--ws [::1]:0"), ["ws://[::1]:0/acp"]);
    assert_eq!(listened("--http [::1]:0"), ["http://[::1]:0/mcp"]);
    assert!(run("--http [::1]:0").listeners.iter().all(Listener::is_mcp));
    let unix = Listen::Unix { path: "/tmp/bus".into(), mode: 0o600, owner: Owner::default() };
    assert_eq!(run("--unix /tmp/bus").listeners, [Listener::open(unix)]);
    let logged = run("--log-level warn --log-format json");
    assert_eq!((logged.log_level, logged.log_format), (Some(LogLevel::Warn), Some(LogFormat::Json)));
}

#[test]
fn the_last_of_a_repeated_flag_wins() {
    assert_eq!(run("--config a --config b").config, ConfigSource::File("b".into()));
    assert_eq!(run("--log-level warn --log-level error").log_level, Some(LogLevel::Error));
    assert_eq!(listened("--tcp localhost:1 --tcp localhost:2"), ["tcp://localhost:2"]);
    assert_eq!(words("check --config a --config b").ok(), words("check --config b").ok());
}

#[test]
fn several_listener_flags_add_up() {
    let line = "--http localhost:3 --ws localhost:2 --tcp localhost:1 --unix a --stdio";
    let all = ["stdio", "tcp://localhost:1", "unix:a", "ws://localhost:2/acp", "http://localhost:3/mcp"];
    assert_eq!(listened(line), all);
    let twice = run("--ws localhost:1 --tcp localhost:1").configuration(Path::new("/proc/self/exe"), &[]);
    assert!(twice.is_err_and(|error| error.to_string().contains("is among the listeners already")));
}

#[test]
fn an_address_may_have_its_scheme() {
    assert_eq!(listened("--tcp tcp://127.0.0.1:9000"), ["tcp://127.0.0.1:9000"]);
    assert_eq!(listened("--ws ws://127.0.0.1:9000/acp"), ["ws://127.0.0.1:9000/acp"]);
    assert_eq!(listened("--ws ws://127.0.0.1:9000"), ["ws://127.0.0.1:9000/acp"]);
    assert_eq!(listened("--http http://127.0.0.1:9000/mcp"), ["http://127.0.0.1:9000/mcp"]);
    assert_eq!(listened("--unix unix:/p"), ["unix:/p"]);
    assert_eq!(run("--admin http://127.0.0.1:9001").admin, Address::from_any("127.0.0.1:9001").ok());
}

#[test]
fn a_port_alone_is_every_network() {
    assert_eq!(listened("--tcp :9000"), ["tcp://[::]:9000"]);
    assert_eq!(listened("--tcp *:9000"), ["tcp://[::]:9000"]);
    assert_eq!(listened("--ws :9000"), ["ws://[::]:9000/acp"]);
    assert_eq!(listened("--http :9000"), ["http://[::]:9000/mcp"]);
}

#[test]
fn values_may_be_written_in_capitals() {
    assert_eq!(run("--log-level INFO").log_level, Some(LogLevel::Info));
    assert_eq!(run("--log-level WARNING").log_level, Some(LogLevel::Warn));
    assert_eq!(
        (run("--log-format JSON").log_format, run("--io Epoll").io),
        (Some(LogFormat::Json), Some(Choice::Epoll))
    );
    assert_eq!(words("log-level Debug --admin /a").ok(), words("log-level debug --admin /a").ok());
}

#[test]
fn the_environment_asks_for_debug_unless_the_command_line_names_a_level() {
    let level = |line: &str, value: Option<&str>| {
        let mut options = run(line);
        options.debug(value.map(OsStr::new));
        options.log_level
    };
    assert_eq!(level("", Some("1")), Some(LogLevel::Debug));
    assert_eq!(level("--log-level warn", Some("1")), Some(LogLevel::Warn));
    for value in [None, Some(""), Some("0")] {
        assert_eq!(level("", value), None, "{value:?}");
    }
}

#[test]
fn the_environment_chooses_the_backend_unless_the_command_line_does() {
    let io = |line: &str, value: Option<&str>| {
        let mut options = run(line);
        options.carry(value.map(OsStr::new)).map(|()| options.io).map_err(|error| error.to_string())
    };
    assert_eq!(io("", Some("epoll")), Ok(Some(Choice::Epoll)));
    assert_eq!(io("--io ring", Some("epoll")), Ok(Some(Choice::Ring)));
    assert_eq!(io("--io ring", Some("nonsense")), Ok(Some(Choice::Ring)));
    for unset in [None, Some("")] {
        assert_eq!(io("", unset), Ok(None));
    }
    assert_eq!(io("", Some("nonsense")), Err("STDIO_BUS_IO is nonsense; write auto, ring or epoll".to_owned()));
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    for line in [
        "--config a --config-fd 3",
        "--config",
        "--config-fd x",
        "--config-fd -1",
        "--tcp 9000",
        "--tcp :",
        "--unix",
        "--log-level loud",
        "--no-such-flag",
        "nonsense",
        "worker",
        "worker sleep",
        "acp",
        "acp --connect localhost:9000",
        "acp --connect tcp://localhost:0",
        "acp --connect tcp://:9000",
        "acp --connect tcp://localhost:9000 --token-file a",
        "acp --connect ws://localhost:9000/acp --ca-file a",
        "--tcp localhost:1 check",
        "--instances 2",
        "--assignment client --config a",
        "--config a -- cat",
        "--config-fd 3 -- cat",
        "--tcp :1 --",
        "--instances x -- cat",
        "--assignment none -- cat",
        "call hello",
        "call --connect tcp://localhost:9000 --timeout 0 hello",
        "call --connect tcp://localhost:9000 --initialize lsp hello",
        "init --force",
        "completion csh",
    ] {
        let (_, code, message) = refused(line);
        assert_eq!(code, 2, "{line:?}: {message}");
    }
    assert_eq!(refused("--config a --config-fd 3").0, ErrorKind::ArgumentConflict);
    assert!(refused("acp --connect unix:/a --token-file b").2.contains("the other listeners take no tokens"));
}

#[test]
fn help_and_version_exit_with_0() {
    assert_eq!(refused("--version").1, 0);
    assert_eq!(refused("--version").2.trim(), concat!("stdio_bus ", env!("CARGO_PKG_VERSION")));
    let of_bridge = refused("acp --version");
    assert_eq!((of_bridge.1, of_bridge.2.trim()), (0, concat!("stdio_bus connect ", env!("CARGO_PKG_VERSION"))));
    let (short, long) = (refused("-h"), refused("--help"));
    assert_eq!((short.0, short.1, long.1), (ErrorKind::DisplayHelp, 0, 0));
    assert!(short.2.len() < long.2.len());
    let about: String = long.2.lines().take_while(|line| !line.starts_with("Usage")).collect();
    assert!(about.contains("WebSocket") && about.contains("HTTP"), "{about}");
    for flag in ["--config ", "--config-fd", "--stdio", "--unix", "--tcp", "--log-level", "--log-format"] {
        assert!(short.2.contains(flag) && long.2.contains(flag), "{flag} is missing in the help");
    }
}

#[test]
fn the_other_programs_are_subcommands() {
    assert_eq!(words("worker echo").ok(), Some(Command::Worker(Worker::Echo)));
    for (line, daemon, token_file) in [
        ("acp --connect tcp://localhost:9000", "tcp://localhost:9000", None),
        ("acp --connect ws://localhost:9000/acp --token-file a", "ws://localhost:9000/acp", Some("a".into())),
        ("connect --connect http://localhost:9000/mcp", "http://localhost:9000/mcp", None),
    ] {
        let daemon = Daemon::parse(daemon).expect("a good address");
        assert_eq!(
            words(line).ok(),
            Some(Command::Connect(bridge::Options { daemon, token_file, ca_file: None, user: bridge::User::Editor }))
        );
    }
    for (line, config, environment) in [
        ("check", ConfigSource::Embedded, false),
        ("check --config a", ConfigSource::File("a".into()), false),
        ("check --config - --environment", ConfigSource::Descriptor(0), true),
    ] {
        assert_eq!(words(line).ok(), Some(Command::Check { config, environment }));
    }
}

#[test]
fn a_command_behind_two_dashes_runs_without_a_configuration() {
    let pool = |instances, assignment| {
        let command = ["python3", "worker.py", "--tcp", "x"].map(str::to_owned).into();
        ConfigSource::Command(CommandLinePool { command, instances, assignment })
    };
    let options = run("--tcp :1 --unix a -- python3 worker.py --tcp x");
    assert_eq!((options.config, options.listeners.len()), (pool(None, None), 2));
    for (word, assignment) in
        [("round_robin", Assignment::RoundRobin), ("client", Assignment::Client), ("dedicated", Assignment::Dedicated)]
    {
        let line = format!("--instances 3 --assignment {word} -- python3 worker.py --tcp x");
        assert_eq!(run(&line).config, pool(Some(3), Some(assignment)));
    }
    assert!(refused("--config a -- cat").2.contains("leave --config out"));
    assert!(!refused("--frob").2.contains("-- --frob"), "a flag is not meant as a command");
    assert!(refused("--instances 2 --config a").2.contains("write instances and assignment in pools[]"));
    let options = run("--http :0 -- sh -c cat");
    let error = options.configuration(Path::new("/proc/self/exe"), &[]).expect_err("it does not say its assignment");
    assert!(error.to_string().contains("add --assignment before the --"), "{error}");
    let options = run("--http :0 --assignment dedicated --tcp :0 -- sh -c cat");
    let config = options.configuration(Path::new("/proc/self/exe"), &[]).expect("it can be run");
    assert_eq!((config.listeners.len(), config.pools.len()), (2, 1));
}

#[test]
fn call_takes_a_method_with_its_params() {
    let daemon = Daemon::parse("tcp://localhost:9000").expect("a good address");
    let call = |line: &str| match words(&format!("call --connect tcp://localhost:9000 {line}")) {
        Ok(Command::Call(call)) => call,
        other => panic!("{line:?}: {other:?}"),
    };
    let options = bridge::Options { daemon, token_file: None, ca_file: None, user: bridge::User::Person };
    let limit = Duration::from_secs(30);
    let whole = bridge::Call { options, handshake: None, limit, method: None, params: None };
    assert_eq!(call(""), whole);
    let (method, params) = (Some("a/b".to_owned()), Some("-".to_owned()));
    let handshake = Some(bridge::Handshake::Mcp);
    let limit = Duration::from_secs(5);
    assert_eq!(call("--timeout 5 --initialize MCP a/b -"), bridge::Call { handshake, limit, method, params, ..whole });
}

#[test]
fn init_writes_to_a_file_or_stdout() {
    let init = |line: &str| match words(line) {
        Ok(Command::Init(options)) => options,
        other => panic!("{line:?}: {other:?}"),
    };
    assert_eq!(init("init"), init::InitOptions { output: None, force: false, command: Vec::new() });
    let whole = init("init --output a --force -- python3 worker.py");
    let command = vec!["python3".to_owned(), "worker.py".to_owned()];
    assert_eq!(whole, init::InitOptions { output: Some("a".into()), force: true, command });
    assert_eq!(words("completion fish").ok(), Some(Command::Completion(Shell::Fish)));
}

#[test]
fn a_running_daemon_is_asked_by_its_admin_address() {
    let asked = |line: &str| match words(line) {
        Ok(Command::Control { options, question }) => (options, question),
        other => panic!("{line:?}: {other:?}"),
    };
    let address = Address::from_any("/run/a").ok();
    for (line, json, question) in [
        ("status --admin /run/a", false, Question::Status { watch: false }),
        ("status --watch --json --admin /run/a", true, Question::Status { watch: true }),
        ("show pending --admin /run/a", false, Question::Show { table: "pending" }),
        ("kill client 7 --admin /run/a", false, Question::Act { target: "/kill-client?client=7".to_owned() }),
        (
            "restart worker a&b/1 --admin /run/a",
            false,
            Question::Act { target: "/restart-worker?worker=a%26b/1".to_owned() },
        ),
        ("drain --json --admin /run/a", true, Question::Act { target: "/drain".to_owned() }),
        ("log-level debug --admin /run/a", false, Question::Act { target: "/log-level?level=debug".to_owned() }),
    ] {
        assert_eq!(
            asked(line),
            (ControlOptions { address: address.clone(), token_file: None, json }, question),
            "{line}"
        );
    }
    let doctor = Command::Doctor { config: ConfigSource::Embedded, json: true };
    assert_eq!(words("doctor --json").ok(), Some(doctor));
    for line in ["show", "show nothing", "kill 7", "kill client x", "restart agents/0", "log-level", "status --admin 1"]
    {
        assert_eq!(refused(line).1, 2, "{line}");
    }
}

#[test]
fn the_configuration_is_not_read_from_the_clients_stream() {
    for line in ["--config - --stdio", "--config-fd 0 --stdio"] {
        let error = run(line).configuration(Path::new("/proc/self/exe"), &[]).expect_err("stdin is the client's");
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn common_mistakes_get_a_tip_on_what_to_write_instead() {
    for (line, advice) in [
        ("bus.json", "stdio_bus --config bus.json"),
        ("./here/bus", "stdio_bus --config ./here/bus"),
        ("run", "-- python3 worker.py"),
        ("serve --tcp :0", "or --config FILE"),
        (
            "frobnicate",
            "the commands are worker, connect, call, status, show, kill, restart, pause, resume, take-out, \
             reload, drain, log-level, doctor, init, \
             completion, check; the daemon",
        ),
        ("statsu", "did you mean stdio_bus status?"),
        ("--tpc 127.0.0.1:9000", "did you mean --tcp?"),
        ("-tcp 127.0.0.1:9000", "did you mean --tcp?"),
        ("call --conect=tcp://h:1 hello", "did you mean --connect?"),
        ("stop", "stdio_bus drain"),
        ("echo", "stdio_bus worker echo"),
        ("version", "stdio_bus --version"),
        ("kill 7", "stdio_bus kill client 7"),
        ("kill worker agents/0", "stdio_bus restart worker NAME --now"),
        ("kill client", "stdio_bus show clients"),
        ("restart pool", "stdio_bus show workers"),
        ("show", "one of clients, workers, pools, "),
        ("log-level", "one of debug, info, warn, error"),
        ("completion", "one of bash, "),
        ("restart agents/0", "stdio_bus restart worker agents/0"),
        ("show client", "'clients'"),
        ("check bus.json", "stdio_bus check --config bus.json"),
        ("check bus.yaml", "stdio_bus check --config bus.yaml"),
        ("acp tcp://h:1", "stdio_bus connect --connect tcp://h:1"),
        ("call tcp://h:1 hello", "stdio_bus call --connect tcp://HOST:PORT METHOD"),
        ("connect", "stdio_bus connect --connect tcp://HOST:PORT"),
        ("send hello", "stdio_bus call"),
        ("generate", "stdio_bus init"),
        ("--tcp :9000 python3 worker.py", "-- python3 worker.py"),
        ("npx -y some-agent", "-- python3 worker.py"),
        ("./worker.py", "-- python3 worker.py"),
        ("--command cat", "-- python3 worker.py"),
        ("--workers 3 -- cat", "--instances 3"),
        ("init nope", "stdio_bus init -- nope"),
        ("call --connect tcp://h:1 hello a b", "quote them"),
        ("--port 9000", "--tcp 127.0.0.1:9000"),
        ("--log-file x", "journalctl"),
        ("--logfile x", "journalctl"),
        ("--daemon", "docs/operations.md"),
        ("-d", "docs/operations.md"),
        ("--verbose", "--log-level debug"),
        ("-c x", "--config FILE"),
        ("--tls", "a proxy in front"),
    ] {
        let (_, code, message) = refused(line);
        assert!(code == 2 && message.contains("tip: ") && message.contains(advice), "{line}: {message}");
    }
}

#[test]
fn a_malformed_number_says_what_to_write() {
    for (line, advice) in [
        ("--tcp :9000 --instances two -- cat", "write a whole number, as in 2"),
        ("kill client abc", "write the number of the client, as `show clients` lists it"),
        ("call --connect tcp://h:1 hello --timeout 1.5", "write whole seconds from 1 to 86400, as in 30"),
        ("call --connect tcp://h:1 hello --timeout 0", "write whole seconds from 1 to 86400, as in 30"),
        ("--config-fd x", "write the number of an open descriptor, as in 3"),
    ] {
        let (_, code, message) = refused(line);
        assert!(code == 2 && message.contains(advice), "{line}: {message}");
    }
}

#[test]
fn help_is_a_command_too() {
    assert_eq!((refused("help").0, refused("help").1), (ErrorKind::DisplayHelp, 0));
    assert!(refused("help").2.contains("--config") && refused("help acp").2.contains("--connect"));
}
