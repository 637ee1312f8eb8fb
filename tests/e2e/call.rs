//! First steps: a command after `--` without a configuration, `stdio_bus call` to talk to it, `init` and `completion`.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Daemon, Log, Outcome, Setup, end_of, program, shell, with, worker};
use crate::seccomp::forbid;

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
        (&["--instances", "2"], 2, "are for a command behind --"),
        (&["--config", "bus.json", "--", "cat"], 2, "leave --config out"),
        (&["--"], 2, "stands the command of the workers"),
        (&["python3", "worker.py"], 2, "write its command behind --"),
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
fn params_that_are_no_json_are_told_with_their_place_and_not_sent() {
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
