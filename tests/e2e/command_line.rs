//! The command line: its verbs (a command after `--` without a configuration, `call`, `check`, `init`, `completion`), its
//! flags, the environment, and the sources of the configuration.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Daemon, Log, Outcome, Setup, end_of, inheritable, program, shell, with, worker};
use crate::seccomp::forbid;
use crate::startup;

/// The result of a call.
struct Called {
    code: Option<i32>,
    lines: Vec<Value>,
    said: String,
}

impl Called {
    fn last(&self) -> &Value {
        self.lines.last().unwrap_or_else(|| panic!("nothing came: {}", self.said))
    }
}

/// Runs `stdio_bus` to its end with this on stdin.
fn run(arguments: &[&str], stdin: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(program());
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it can be started");
    // It may have exited before it has read everything.
    let _ = child.stdin.take().expect("a pipe").write_all(stdin.as_bytes());
    let log = Log::of(child.stderr.take().expect("a pipe"));
    let said = Client::over_pipes(None, child.stdout.take().expect("a pipe")).rest();
    let code = end_of("stdio_bus", &mut child).code();
    log.until_end();
    (code, said, log.text())
}

fn call(address: &str, arguments: &[&str], stdin: &str) -> Called {
    let (code, stdout, said) = run(&[&["call", "--connect", address], arguments].concat(), stdin);
    let lines = stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")));
    Called { code, lines: lines.collect(), said }
}

fn tcp(daemon: &Daemon) -> String {
    format!("tcp://{}", daemon.address())
}

/// A shell script as the workers, without a configuration.
fn of_command(arguments: &[&str], script: &str) -> Setup {
    Setup::bare().args(arguments).args(&["--", "sh", "-c", script])
}

const ANSWERS: &str = r#"while read -r line; do
    id=$(printf '%s' "$line" | sed 's/.*"id": *\([0-9]*\).*/\1/')
    echo '{"jsonrpc":"2.0","id":'"$id"',"result":{"pid":'$$'}}'
done"#;

fn refused(arguments: &[&str]) -> Outcome {
    Setup::bare().args(arguments).run()
}

#[test]
fn a_command_runs_as_the_one_pool_at_all_listeners_that_are_named() {
    let setup = of_command(&["--tcp", "127.0.0.1:0"], ANSWERS);
    let path = setup.text_path("socket");
    let daemon =
        of_command(&["--tcp", "127.0.0.1:0", "--unix", &path, "--ws", "127.0.0.1:0", "--instances", "2"], ANSWERS);
    let daemon = daemon.start();
    daemon.until("there are two workers", || daemon.descendants().len() == 2);
    let addresses = daemon.addresses(2);
    let ways = [format!("tcp://{}", addresses[0]), format!("unix:{path}"), format!("ws://{}/acp", addresses[1])];
    for way in ways {
        let called = call(&way, &["hello"], "");
        assert_eq!((called.code, called.said.as_str()), (Some(0), ""), "{way}");
        assert!(called.last()["result"]["pid"].is_number(), "{way}: {:?}", called.lines);
    }
    daemon.stop();
}

#[test]
fn a_command_serves_mcp_over_http_once_its_assignment_is_said() {
    let refused = of_command(&["--http", "127.0.0.1:0"], ANSWERS).run();
    assert_eq!(refused.code, Some(78), "{}", refused.stderr);
    assert!(refused.stderr.contains("add --assignment before the --"), "{}", refused.stderr);
    let daemon = of_command(&["--http", "127.0.0.1:0", "--assignment", "dedicated"], "exec cat").start();
    let door = format!("http://{}/mcp", daemon.address());
    let called = call(&door, &["tools/list"], "");
    assert_eq!(called.code, Some(1), "{:?}", called.lines);
    assert!(called.said.contains("add --initialize mcp"), "{}", called.said);
    daemon.stop();
}

#[test]
fn a_broken_command_is_reported_at_the_start() {
    let line = ["--tcp", "127.0.0.1:0"];
    for (arguments, code, told) in [
        (&["--", "python33", "worker.py"][..], 78, "\"python33\" is not in PATH"),
        (&["--", "./no-such-worker"], 78, "\"./no-such-worker\" does not exist"),
        (&["--", "sh", "no-such-worker.sh"], 78, "no-such-worker.sh does not exist in /"),
        (&["--instances", "0", "--", "cat"], 78, "--instances must be"),
        (&["--instances", "2"], 2, "are for a command after --"),
        (&["--config", "bus.json", "--", "cat"], 2, "leave --config out"),
        (&["--"], 2, "write the command of the workers"),
        (&["python3", "worker.py"], 2, "write its command after --"),
    ] {
        let outcome = refused(&[&line, arguments].concat());
        assert_eq!(outcome.code, Some(code), "{arguments:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(told), "{arguments:?}: {}", outcome.stderr);
    }
}

#[test]
fn sighup_drains_a_daemon_that_has_no_file_to_read_again() {
    let mut daemon = of_command(&["--tcp", "127.0.0.1:0"], ANSWERS).hears_hangups().start();
    let _ = daemon.address();
    daemon.signal(Signal::HUP);
    assert_eq!(daemon.wait().code(), Some(0));
}

#[test]
fn a_call_prints_messages_before_the_answer_and_exits_by_its_outcome() {
    let daemon = Setup::new([worker("a", 1, &[])]).start();
    let address = tcp(&daemon);
    let called = call(&address, &["hello", r#"{"a": 1}"#], "");
    assert_eq!((called.code, called.lines.len(), called.said.as_str()), (Some(0), 1, ""));
    assert_eq!(called.last()["id"], 1);
    let replay = json!({ "sessionId": "s", "replay": 3 }).to_string();
    let called = call(&address, &["session/load", "-"], &replay);
    assert_eq!((called.code, called.lines.len()), (Some(0), 4), "{:?}", called.lines);
    assert_eq!((&called.lines[0]["method"], called.last()["id"].as_u64()), (&json!("session/update"), Some(1)));
    let called = call(&address, &["session/load", r#"{"sessionId":"t","unknown":true}"#], "");
    assert_eq!((called.code, called.last()["error"]["code"].as_i64()), (Some(1), Some(-32002)), "{}", called.said);
    daemon.stop();
}

#[test]
fn a_call_shakes_hands_before_it_asks() {
    let daemon = Setup::new([with(worker("a", 1, &[]), "assignment", "client")]).start();
    let called = call(&tcp(&daemon), &["--initialize", "acp", "session/new"], "");
    assert_eq!((called.code, called.lines.len()), (Some(0), 2), "{:?} {}", called.lines, called.said);
    assert_eq!(called.lines[0]["id"], 0);
    assert!(called.last()["result"]["sessionId"].is_string());
    let called = call(&tcp(&daemon), &["--initialize", "mcp", "kept"], "");
    assert_eq!(called.lines[0]["result"]["protocolVersion"], "2025-11-25", "{}", called.said);
    daemon.stop();
}

#[test]
fn a_server_of_mcp_without_a_handshake_is_asked_without_one() {
    let script = r#"while read -r line; do case $line in
        *initialize*) echo '{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"no"}}' ;;
        *io.modelcontextprotocol/protocolVersion*) echo '{"jsonrpc":"2.0","id":1,"result":{"modern":true}}' ;;
        esac; done"#;
    let daemon = Setup::new([with(shell("a", script), "assignment", "client")]).start();
    let called = call(&tcp(&daemon), &["--initialize", "mcp", "tools/list"], "");
    assert_eq!((called.code, &called.last()["result"]), (Some(0), &json!({ "modern": true })), "{}", called.said);
    daemon.stop();
}

#[test]
fn a_call_does_without_io_uring() {
    use std::os::unix::process::CommandExt;
    let daemon = Setup::new([worker("a", 1, &[])]).start();
    let mut command = Command::new(program());
    command.args(["call", "--connect", &tcp(&daemon)]).stdin(Stdio::piped()).stdout(Stdio::piped());
    // SAFETY: it only makes system calls.
    unsafe { command.pre_exec(|| forbid(libc::SYS_io_uring_setup, None, libc::EPERM)) };
    let mut child = command.spawn().expect("it can be started");
    child.stdin.take().expect("a pipe").write_all(b"one\ntwo\n").expect("it reads");
    let said = Client::over_pipes(None, child.stdout.take().expect("a pipe")).rest();
    assert_eq!((end_of("the call", &mut child).code(), said.lines().count()), (Some(0), 2), "{said}");
    daemon.stop();
}

#[test]
fn a_request_that_a_call_cannot_answer_is_answered_with_an_error() {
    let daemon = Setup::new([with(worker("a", 1, &[]), "assignment", "client")]).start();
    let called = call(&tcp(&daemon), &["ask", r#"{"about": 1}"#], "");
    assert_eq!(called.lines[0]["method"], "session/request_permission", "{:?}", called.lines);
    assert!(called.last().to_string().contains("stdio_bus call answers no requests"), "{:?}", called.lines);
    daemon.stop();
}

#[test]
fn lines_of_stdin_are_sent_until_all_is_answered() {
    let daemon = Setup::new([worker("a", 1, &[])]).start();
    let lines = "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"one\"}\n\ntwo {\"b\": 2}\nthree";
    let called = call(&tcp(&daemon), &[], lines);
    assert_eq!((called.code, called.said.as_str()), (Some(0), ""));
    let ids: Vec<&Value> = called.lines.iter().map(|line| &line["id"]).collect();
    assert_eq!(ids, [&json!("x"), &json!(1), &json!(2)]);
    let called = call(&tcp(&daemon), &[], "{\"id\":1,\ntwo\nthree 3\n");
    assert_eq!((called.code, called.lines.len()), (Some(2), 1), "{}", called.said);
    assert!(called.said.contains("not sent: this is no JSON") && called.said.contains("must be an object"));
    let called = call(&tcp(&daemon), &[], "[1]\ntwo\n");
    assert_eq!((called.code, called.lines.len()), (Some(2), 1), "{}", called.said);
    assert!(called.said.contains("not sent: a message is an object"), "{}", called.said);
    daemon.stop();
}

#[test]
fn a_notification_that_is_the_last_line_arrives() {
    let pool = with(worker("a", 1, &["--keep"]), "assignment", "client");
    let listeners = json!([{ "tcp": "127.0.0.1:0" }, { "http": "127.0.0.1:0" }, { "ws": "127.0.0.1:0" }]);
    let daemon = Setup::new([pool]).no_listener().set("listeners", listeners).start();
    let addresses = daemon.addresses(3);
    let [lines, door, web] = [
        format!("tcp://{}", addresses[0]),
        format!("http://{}/mcp", addresses[1]),
        format!("ws://{}/acp", addresses[2]),
    ];
    for (number, way) in [&lines, &door, &web].into_iter().enumerate() {
        let mark = format!("notifications/{number}");
        let line = json!({ "jsonrpc": "2.0", "method": mark }).to_string();
        let called = call(way, &["--initialize", "mcp"], &line);
        assert_eq!(called.code, Some(0), "{way}: {}", called.said);
        daemon.until("the worker has read it", || call(&lines, &["kept"], "").last().to_string().contains(&mark));
    }
    daemon.stop();
}

#[test]
fn params_that_are_no_json_are_reported_with_their_place_and_not_sent() {
    let dead = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("tcp://{}", dead.local_addr().expect("its address"));
    for (params, told) in
        [(r#"{"a": }"#, "column 7\n  {\"a\": }\n        ^"), ("{a:1}", "quote the whole"), ("7", "an object")]
    {
        let called = call(&address, &["hello", params], "");
        assert_eq!((called.code, called.lines.len()), (Some(2), 0), "{}", called.said);
        assert!(called.said.contains(told), "{}", called.said);
    }
}

#[test]
fn without_a_daemon_or_an_answer_the_call_says_so_and_exits_otherwise_than_for_an_error() {
    let setup = Setup::bare();
    let missing = format!("unix:{}", setup.text_path("missing"));
    let called = call(&missing, &["hello"], "");
    assert_eq!(called.code, Some(69), "{}", called.said);
    assert!(called.said.contains("there is no such socket; start the daemon"), "{}", called.said);

    let daemon = Setup::new([worker("a", 1, &[])]).start();
    let called = call(&tcp(&daemon), &["--timeout", "1", "hold"], "");
    assert_eq!((called.code, called.lines.len()), (Some(75), 0), "{}", called.said);
    assert!(called.said.contains("within 1 s") && called.said.contains("--timeout SEC"), "{}", called.said);

    let called = call(&format!("http://{}/mcp", daemon.address()), &["hello"], "");
    assert_eq!(called.code, Some(69), "{:?}", called.lines);
    assert!(called.said.contains("this is not HTTP") && called.said.contains("check the host"), "{}", called.said);

    // An HTTP server on the NDJSON port.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("tcp://{}", listener.local_addr().expect("its address"));
    let web = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("it listens");
    });
    let called = call(&address, &["hello"], "");
    web.join().expect("no panic in there");
    assert_eq!(called.code, Some(69), "{}", called.said);
    assert!(called.said.contains("HTTP, not JSON-RPC") && called.said.contains("connect to ws://"), "{}", called.said);
    daemon.stop();
}

#[test]
fn a_call_whose_connection_is_closed_says_to_call_again() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("tcp://{}", listener.local_addr().expect("its address"));
    let daemon = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        client.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"bye\"}\n").expect("it listens");
    });
    let called = call(&address, &["hello"], "");
    daemon.join().expect("no panic in there");
    assert_eq!((called.code, called.lines.len()), (Some(69), 1), "{}", called.said);
    assert!(called.said.contains("then call again") && !called.said.contains("the agent again"), "{}", called.said);
}

#[test]
fn a_worker_that_dies_is_an_error_of_the_call() {
    let daemon = Setup::new([worker("a", 1, &[])]).start();
    let called = call(&tcp(&daemon), &["exit"], "");
    assert_eq!(called.code, Some(1), "{}", called.said);
    assert!(called.last()["error"]["data"]["reason"].is_string(), "{:?}", called.lines);
    assert!(called.said.contains("in the daemon's log"), "{}", called.said);
    daemon.stop();
}

#[test]
fn init_writes_what_check_accepts_and_overwrites_nothing() {
    let setup = Setup::bare();
    let (file, script) = (setup.text_path("bus.json"), setup.text_path("worker.sh"));
    fs::write(&script, ANSWERS).expect("it can be written");
    let init = |more: &[&str]| run(&[&["init", "--output", &file], more, &["--", "sh", &script]].concat(), "");
    let (code, said, told) = init(&[]);
    assert_eq!((code, said.as_str()), (Some(0), ""), "{told}");
    assert!(told.contains("stdio_bus --config") && told.contains("stdio_bus call --connect"), "{told}");
    let (code, said, told) = run(&["check", "--config", &file], "");
    assert_eq!((code, told.as_str()), (Some(0), ""), "{said}");
    let (code, _, told) = init(&[]);
    assert_eq!(code, Some(2));
    assert!(told.contains("is there already; --force writes over it"), "{told}");
    assert_eq!(init(&["--force"]).0, Some(0));
    for to_stdout in [&["init"][..], &["init", "--output", "-"]] {
        let (code, said, _) = run(&[to_stdout, &["--", "sh", &script]].concat(), "");
        assert_eq!((code, said), (Some(0), fs::read_to_string(&file).expect("it was written")));
    }
    let (code, _, told) = run(&["init", "--output", &setup.text_path("no/x.json"), "--", "sh", &script], "");
    assert!(code == Some(2) && told.contains("its directory does not exist"), "{told}");
    let (code, _, told) = run(&["init", "--", "no-such-program"], "");
    assert!(code == Some(78) && told.contains("is not in PATH"), "{told}");
}

#[test]
fn init_finds_agents_and_says_what_to_do_where_there_is_nothing() {
    let setup = Setup::bare();
    let init = || {
        let mut command = Command::new(program());
        command.args(["init"]).env("PATH", setup.path("bin"));
        command.output().expect("it can be started")
    };
    fs::create_dir(setup.path("bin")).expect("a directory");
    let nothing = init();
    assert_eq!(nothing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("stdio_bus init -- python3 worker.py"));
    for name in ["uvx", "gemini", "codex-acp"] {
        crate::harness::script(&setup.path("bin").join(name), "#!/bin/sh\n");
        let found = init();
        assert_eq!(found.status.code(), Some(0), "{}", String::from_utf8_lossy(&found.stderr));
    }
    let found: Value = serde_json::from_slice(&init().stdout).expect("JSON");
    let ids: Vec<&Value> = found["pools"].as_array().expect("pools").iter().map(|pool| &pool["id"]).collect();
    assert_eq!(ids, ["codex", "gemini"], "agents come before servers");
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "fish", "zsh"] {
        let (code, said, _) = run(&["completion", shell], "");
        assert_eq!(code, Some(0));
        assert!(said.contains("call") && said.contains("--initialize") | said.contains("initialize"), "{shell}");
    }
}

#[test]
fn a_websocket_handshake_that_times_out_is_reported_as_no_answer() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("ws://{}/acp", silent.local_addr().unwrap());
    let called = call(&address, &["--timeout", "1", "m"], "");
    assert_eq!(called.code, Some(75), "{}", called.said);
    assert!(called.said.contains("within 1 s"), "{}", called.said);
}

// The command line and the environment, and the sources of the configuration.

fn answers_by_its_name(setup: Setup) {
    let mut daemon = setup.start();
    let answer = daemon.connect().request(0, "who", json!({}));
    assert_eq!(answer["result"]["name"], "by descriptor");
    daemon.stop();
}

#[test]
fn help_and_version_go_to_stdout_with_exit_code_0() {
    for (flag, part) in [("--help", "--config"), ("-h", "--config"), ("--version", env!("CARGO_PKG_VERSION"))] {
        let outcome = Setup::bare().args(&[flag]).run();
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{flag}");
        assert!(outcome.stdout.contains(part), "{flag}: {}", outcome.stdout);
    }
}

#[test]
fn a_wrong_command_line_exits_with_2_and_says_what_is_wrong() {
    for (arguments, part) in [
        (&["--config", "a", "--config-fd", "3"][..], "--config-fd"),
        (&["--tcp", "9000"], "9000"),
        (&["--bogus"], "--bogus"),
        (&["--log-level", "loud"], "loud"),
    ] {
        let (code, stderr) = startup::refused(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_configuration_that_does_not_exist_exits_with_78() {
    let (code, stderr) = startup::refused(&["--config", "/no/such/agents.json"]);
    assert_eq!(code, Some(78));
    assert!(stderr.contains("/no/such/agents.json"), "{stderr}");
}

#[test]
fn flags_that_are_given_twice_are_no_error_and_the_last_one_holds() {
    let setup = Setup::bare().tcp();
    let path = setup.text_path("c");
    fs::write(&path, json!({ "pools": [worker("last", 1, &["--name", "by descriptor"])] }).to_string()).unwrap();
    let arguments = ["--config", "/no/such.json", "--tcp", "127.0.0.1:1", "--config", &path, "--tcp", "127.0.0.1:0"];
    answers_by_its_name(setup.args(&arguments));
}

#[test]
fn of_several_flags_that_say_where_to_listen_each_one_listens() {
    let setup = Setup::bare();
    let path = setup.text_path("both");
    let unix = format!("unix:{path}");
    let daemon = setup.args(&["--unix", &unix, "--tcp", "tcp://127.0.0.1:0"]).start_without_waiting();
    assert_eq!(Client::over_tcp(daemon.address()).request(1, "m", json!({}))["id"], 1);
    assert_eq!(Client::over_unix(path.as_ref()).request(2, "m", json!({}))["id"], 2);
    daemon.stop();
}

#[test]
fn a_missing_script_is_reported_at_the_start_as_by_check() {
    let setup = Setup::new([json!({ "id": "a", "command": "sh", "args": ["/no/such/agent.py"], "instances": 1 })]);
    let daemon = setup.start_without_waiting();
    daemon.logs(&["WARN", "pools[0].args[0]: /no/such/agent.py does not exist"]);
    daemon.stop();
}

#[test]
fn the_environment_can_ask_for_debug() {
    for (value, arguments, told) in [("1", &[][..], true), ("1", &["--log-level", "info"], false), ("0", &[], false)] {
        let setup = Setup::new([worker("agents", 1, &[])]).variable("DEBUG_STDIO", value).args(arguments);
        let mut daemon = setup.start();
        daemon.connect().request(1, "who", json!({}));
        let log = daemon.log();
        assert_eq!(log.contains("DEBUG"), told, "{value} {arguments:?}:\n{log}");
    }
}

#[test]
fn the_environment_chooses_the_backend_only_for_the_daemon() {
    let with = |value: &str, arguments: &[&str]| Setup::bare().variable("STDIO_BUS_IO", value).args(arguments);
    let mut daemon = with("", &["--tcp", "127.0.0.1:0"]).start();
    assert!(daemon.connect().request(1, "m", json!({}))["result"].is_object());
    let daemon = with("epoll", &["--tcp", "127.0.0.1:0", "--log-level", "debug"]).start();
    daemon.address();
    let log = daemon.stop().stderr;
    assert!(log.contains("epoll"), "{log}");
    let outcome = with("nonsense", &["--tcp", "127.0.0.1:0"]).run();
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("STDIO_BUS_IO") && outcome.stderr.contains("ring"), "{}", outcome.stderr);
    for arguments in [&["worker", "echo"][..], &["check"], &["--version"]] {
        let outcome = with("nonsense", arguments).run();
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {}", outcome.stderr);
    }
}

#[test]
fn a_port_alone_is_open_to_every_network_of_both_protocols() {
    let daemon = Setup::new([worker("agents", 1, &[])]).args(&["--tcp", ":0"]).start();
    let port = daemon.address().port();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    if TcpListener::bind("[::1]:0").is_ok() {
        assert!(TcpStream::connect(("::1", port)).is_ok());
    }
    daemon.stop();
}

#[test]
fn the_configuration_may_come_through_a_descriptor() {
    let setup = Setup::bare().tcp();
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(setup.path("c")).unwrap();
    file.write_all(json!({ "pools": [worker("passed", 1, &["--name", "by descriptor"])] }).to_string().as_bytes())
        .unwrap();
    file.rewind().unwrap();
    let number = inheritable(&file).to_string();
    answers_by_its_name(setup.args(&["--config-fd", &number]));
}

#[test]
fn the_configuration_may_come_through_stdin_but_not_with_the_clients_messages() {
    let setup = Setup::bare();
    let path = setup.path("c");
    let pools = json!([worker("passed", 1, &["--name", "by descriptor"])]);
    fs::write(&path, json!({ "pools": pools }).to_string()).unwrap();
    let outcome = setup.args(&["--config", "-"]).stdin(File::open(&path).unwrap()).run();
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("add --tcp or --unix"), "{}", outcome.stderr);
    let with_listener = json!({ "pools": pools, "listeners": [{ "tcp": "127.0.0.1:0" }] });
    let setup = Setup::bare();
    let path = setup.path("c");
    fs::write(&path, with_listener.to_string()).unwrap();
    answers_by_its_name(setup.args(&["--config", "-"]).stdin(File::open(&path).unwrap()));
}

#[test]
fn check_says_whether_a_configuration_is_good_and_starts_nothing() {
    let setup = Setup::bare();
    let marker = setup.path("started");
    let path = setup.path("c.json");
    let config = json!({ "pools": [shell("a", &format!("touch {}", marker.display()))] });
    fs::write(&path, config.to_string()).unwrap();
    let file = path.display().to_string();
    let outcome = setup.args(&["check", "--config", &file]).run();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(!marker.exists());
}

#[test]
fn check_warns_of_missing_files_and_checks_this_machine_if_requested() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.json");
    let pool = json!({ "id": "a", "command": "sh", "args": ["/no/such/worker.py"], "instances": 1 });
    let config = json!({ "pools": [pool], "listeners": [{ "unix": "/no/such/directory/bus" }] });
    fs::write(&path, config.to_string()).unwrap();
    let file = path.display().to_string();
    let outcome = Setup::bare().args(&["check", "--config", &file]).run();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("warning: pools[0].args[0]: /no/such/worker.py does not exist"), "{outcome:?}");
    let outcome = Setup::bare().args(&["check", "--environment", "--config", &file]).run();
    assert_eq!(outcome.code, Some(73), "{outcome:?}");
    assert!(outcome.stderr.contains("mkdir -p /no/such/directory"), "{outcome:?}");
    let outcome = Setup::bare().args(&["check", "--environment"]).run();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("io_uring works: DEFER_TASKRUN"), "{outcome:?}");
}

#[test]
fn unwritable_output_ends_in_failure() {
    for arguments in [["check"].as_slice(), &["--help"], &["--version"], &["-h"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let outcome = Setup::bare().no_listener().args(arguments).stdout(full).run();
        assert_eq!(outcome.code, Some(1), "{arguments:?}: {}", outcome.stderr);
    }
}
