//! The operators' commands.

use super::*;
use crate::http::{Http, request};
use crate::mcp::{VERSION, door_of, shared};

#[test]
fn an_operator_sees_the_daemon_in_text_and_in_json() {
    let mut daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let mut client = daemon.connect();
    client.ask_in("\u{1b}]0;owned\u{7}", 5, "hold", json!({}));
    client.request(6, "who", json!({}));
    let status = said(&daemon, &["status"]);
    assert!(status.contains(": ready\nclients 1 of 1024, sessions 1 of 1024, pending 1 of 4096"), "{status}");
    assert!(status.contains("agents/0") && status.contains("running"), "{status}");
    let sessions = said(&daemon, &["show", "sessions"]);
    assert!(sessions.contains("\\u{1b}]0;owned\\u{7}") && !sessions.contains('\u{1b}'), "{sessions}");
    for table in ["clients", "workers", "pools", "pending", "top", "limits"] {
        assert!(said(&daemon, &["show", table]).lines().count() >= 2, "{table}");
        let value: Value = serde_json::from_str(&said(&daemon, &["show", table, "--json"])).expect("it is JSON");
        assert!(value[table].as_array().is_some_and(|rows| !rows.is_empty()), "{table}: {value}");
    }
    assert!(complaints(&said(&daemon, &["show", "errors"])).is_empty());
    let value: Value = serde_json::from_str(&said(&daemon, &["status", "--json"])).expect("it is JSON");
    assert_eq!(value["requests"]["used"], 1);
    daemon.stop();
}

#[test]
fn an_operator_closes_a_client_replaces_a_worker_changes_the_log_and_has_the_daemon_drain() {
    let mut daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let (mut killed, mut other) = (daemon.connect(), daemon.connect());
    killed.ask(1, "hold", json!({}));
    daemon.until("it is asked", || other.request(1, "who", json!({}))["result"]["held"] == 1);
    let shown: Value = serde_json::from_str(&said(&daemon, &["show", "clients", "--json"])).expect("it is JSON");
    let rows = shown["clients"].as_array().expect("an array");
    let number = rows.iter().find(|row| row["pending"] == 1).expect("it is there")["client"].to_string();
    assert_eq!(said(&daemon, &["kill", "client", &number]), format!("client {number} is closed\n"));
    assert_eq!(killed.error(1, "client_killed"), -32028);
    assert_eq!(killed.error(json!(null), "client_killed"), -32028);
    killed.ends();
    let (code, _, stderr) = command(&daemon, &["kill", "client", "4711"]);
    assert!(code == Some(1) && stderr.contains("there is no client \"4711\""), "{stderr}");

    let before = other.request(2, "who", json!({}))["result"]["pid"].clone();
    let at_once = said(&daemon, &["restart", "worker", "agents/0", "--now"]);
    assert_eq!(at_once, "worker agents/0 is asked to stop\n");
    daemon.logs(&["worker_started", "worker=agents/0", "incarnation=1"]);
    daemon.until("the new one answers", || {
        let answer = other.request(3, "who", json!({}));
        answer["result"]["pid"].is_u64() && answer["result"]["pid"] != before
    });
    assert!(!daemon.log().contains("restart_scheduled"), "it counts as no failure");
    let (code, _, stderr) = command(&daemon, &["restart", "worker", "agents/1"]);
    assert!(code == Some(1) && stderr.contains("there is no worker \"agents/1\""), "{stderr}");

    assert!(!daemon.log().contains("accepted on"));
    assert_eq!(said(&daemon, &["log-level", "debug"]), "the log has level debug now; it had info\n");
    drop(daemon.connect());
    daemon.logs(&["accepted on"]);
    assert_eq!(said(&daemon, &["log-level", "error"]), "the log has level error now; it had debug\n");

    assert_eq!(said(&daemon, &["drain"]), "the daemon drains\n");
    daemon.ends_well();
}

#[test]
fn the_log_says_which_user_has_done_what_at_any_level_and_what_was_refused() {
    let daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let uid = format!("uid={}", rustix::process::getuid().as_raw());
    said(&daemon, &["log-level", "error"]);
    daemon.logs(&["an operator: the log has level error now; it had info", "reason=operator", "pid=", &uid]);
    said(&daemon, &["restart", "pool", "agents"]);
    daemon.logs(&["an operator: the workers of pool agents are replaced", "action=\"restart-pool?pool=agents\"", &uid]);
    let (code, ..) = command(&daemon, &["kill", "client", "4711"]);
    assert_eq!(code, Some(1));
    daemon.logs(&["an operator is refused: there is no client \"4711\"", "action=\"kill-client?client=4711\"", &uid]);
    said(&daemon, &["status"]);
    said(&daemon, &["drain"]);
    daemon.logs(&["an operator: the daemon drains", "action=drain", &uid]);
    let outcome = daemon.ends_well();
    assert_eq!(outcome.stderr.matches("reason=operator").count(), 4, "who only reads has no line");
}

#[test]
fn a_paused_pool_has_its_requests_wait_and_a_worker_that_is_taken_out_is_not_replaced() {
    let mut daemon = start_ready(Setup::new([worker("agents", 2, &[])]));
    let mut client = daemon.connect();
    client.request(1, "who", json!({}));
    assert_eq!(
        said(&daemon, &["pause", "pool", "agents"]),
        "pool agents is paused: new requests wait until it is resumed, and pending ones continue\n"
    );
    daemon.logs(&["an operator: pool agents is paused", "action=\"pause?pool=agents\""]);
    client.ask(2, "who", json!({}));
    let waits = || said(&daemon, &["show", "waiting"]).contains("the paused pool agents");
    daemon.until("its request waits", waits);
    until_status(&daemon, "/readyz", 404);
    let metrics = Admin::of(&daemon).get("/metrics").body;
    assert_eq!(metric(&metrics, "stdio_bus_pool_paused{pool=\"agents\"}"), 1.0);
    said(&daemon, &["take-out", "worker", "agents/1"]);
    said(&daemon, &["resume", "pool", "agents"]);
    assert!(client.answer(2)["error"].is_null());
    until_status(&daemon, "/readyz", 200);

    said(&daemon, &["take-out", "worker", "agents/0"]);
    let slots = |state: &str| {
        let metrics = Admin::of(&daemon).get("/metrics").body;
        metric(&metrics, &format!("stdio_bus_worker_slots{{pool=\"agents\",state=\"{state}\"}}"))
    };
    daemon.until("it has ended", || said(&daemon, &["show", "workers"]).matches("agents/").count() == 1);
    assert_eq!((slots("taken_out"), slots("filled")), (1.0, 1.0));
    said(&daemon, &["restart", "pool", "agents"]);
    daemon.until("it is back", || slots("filled") == 2.0);
    let (code, _, why) = command(&daemon, &["pause", "pool", "nobody"]);
    assert!(code == Some(1) && why.contains("there is no pool"), "{why}");
    client.half_close();
    client.ends();
    daemon.stop();
}

#[test]
fn new_clients_of_a_paused_listener_wait_over_lines_and_are_asked_to_come_again_over_http() {
    let pools = [with(worker("agents", 1, &[]), "assignment", "round_robin")];
    let listeners = json!([{ "tcp": "127.0.0.1:0" }, { "ws": "127.0.0.1:0" }]);
    let daemon = start_ready(Setup::new(pools).no_listener().set("listeners", listeners));
    let addresses = daemon.addresses(2);
    let mut before = Client::over_tcp(addresses[0]);
    before.request(1, "who", json!({}));
    let tcp = addresses[0].to_string();
    assert!(said(&daemon, &["pause", "listener", &tcp]).contains("accepts no new clients until it is resumed"));
    said(&daemon, &["pause", "listener", "1"]);
    until_status(&daemon, "/readyz?listener=0", 404);
    let mut late = Client::over_tcp(addresses[0]);
    late.ask(1, "who", json!({}));
    let mut web = Client::over_tcp(addresses[1]);
    web.send_bytes(
        b"GET /acp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: \
          13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    );
    let refused = web.rest();
    assert!(refused.contains(" 503 ") && refused.contains("Retry-After") && refused.contains("paused"), "{refused}");
    before.request(2, "who", json!({}));
    assert!(!late.has_something() && !late.is_over());
    said(&daemon, &["resume", "listener", "0"]);
    late.answer(1);
    drop((before, late));
    daemon.stop();
}

#[test]
fn to_have_a_daemon_drain_twice_and_then_to_send_it_a_signal_does_not_end_it_early() {
    let setup = Setup::new([worker("agents", 1, &[])]).limit("quiesce_sec", 600);
    let mut daemon = start_ready(setup);
    let mut client = daemon.connect();
    client.ask(1, "hold", json!({}));
    daemon.until("it is asked", || client.request(2, "who", json!({}))["result"]["held"] == 1);
    assert_eq!(said(&daemon, &["drain"]), "the daemon drains\n");
    assert_eq!(said(&daemon, &["drain"]), "the daemon drains already\n");
    let status: Value = serde_json::from_str(&said(&daemon, &["status", "--json"])).expect("it is JSON");
    assert_eq!((&status["state"], &status["requests"]["used"]), (&json!("draining"), &json!(1)));
    // Two signals within a second would count as one.
    seconds_go_by(1);
    daemon.signal(Signal::TERM);
    daemon.logs(&["a signal: the drain continues"]);
    client.ask(3, "m", json!({}));
    client.error(3, "shutting_down");
    client.reset();
    daemon.ends_well();
}

#[test]
fn the_drain_of_a_daemon_without_clients_and_workers_is_answered_before_it_ends() {
    let pool = with(worker("agents", 1, &[]), "start", "on_demand");
    let daemon = start_ready(Setup::new([pool]));
    let restarts = said(&daemon, &["restart", "pool", "agents"]);
    assert_eq!(restarts, "pool agents is asleep: its next line starts workers\n");
    assert_eq!(said(&daemon, &["drain"]), "the daemon drains\n");
    daemon.ends_well();
}

#[test]
fn a_command_names_the_address_that_it_uses_and_the_error() {
    let run = |arguments: &[&str], variable: &str| {
        let output = Command::new(program()).args(arguments).env("STDIO_BUS_ADMIN", variable).output();
        let output = output.expect("it can be started");
        (output.status.code(), String::from_utf8(output.stderr).expect("it is text"))
    };
    let (code, stderr) = run(&["status"], "");
    assert!(code == Some(2) && stderr.contains("--admin ADDRESS or in STDIO_BUS_ADMIN"), "{stderr}");
    let (code, stderr) = run(&["status"], "/no/such/socket");
    assert!(code == Some(1) && stderr.contains("ask the daemon at unix:/no/such/socket: No such file"), "{stderr}");
    let daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let (code, stderr) = run(&["status"], &daemon.path("admin").display().to_string());
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    daemon.stop();
}

#[test]
fn an_action_over_tcp_needs_the_token() {
    let mut setup = Setup::new([worker("agents", 1, &[])]);
    let file = setup.text_path("token");
    fs::write(&file, "0123456789abcdef\n").expect("a file");
    setup.config()["admin"] = json!({ "listen": "127.0.0.1:0", "token_file": file });
    let daemon = setup.start();
    let address = tcp_address(&daemon);
    let post = |fields: &str| {
        let mut admin = Admin::at(address);
        admin.send(&format!("POST /log-level?level=info HTTP/1.1\r\nHost: {address}\r\n{fields}\r\n"));
        admin.answer().expect("an answer comes").status
    };
    assert_eq!(post(""), 401);
    assert_eq!(post("Authorization: Bearer 0123456789abcdee\r\n"), 401);
    assert_eq!(post("Authorization: Bearer 0123456789abcdef\r\n"), 202);
    daemon.logs(&["an operator: the log has level info now", "from=127.0.0.1:", "token=admin.token_file"]);
    assert_eq!(post("Authorization: Bearer 0123456789abcdef\r\nOrigin: http://evil.example\r\n"), 403);
    assert_eq!(post("Authorization: Bearer 0123456789abcdef\r\nSec-Fetch-Site: cross-site\r\n"), 403);
    let asked = |arguments: &[&str]| {
        let output = Command::new(program()).args(arguments).arg("--admin").arg(address.to_string()).output();
        output.expect("it can be started").status.code()
    };
    assert_eq!(asked(&["log-level", "warn"]), Some(1));
    assert_eq!(asked(&["log-level", "warn", "--token-file", &file]), Some(0));
    assert_eq!(asked(&["status"]), Some(0), "reading needs none");
    let put = |text: &str| {
        fs::write(format!("{file}.new"), text).expect("a file");
        fs::rename(format!("{file}.new"), &file).expect("the same directory");
    };
    put("short\n");
    daemon.logs(&["ERROR", "its last content stays valid: it has 5 bytes, and 16 is the least"]);
    assert_eq!(post("Authorization: Bearer 0123456789abcdef\r\n"), 202);
    put("another token of 16\n");
    daemon.until("the new token is good", || post("Authorization: Bearer another token of 16\r\n") == 202);
    assert_eq!(post("Authorization: Bearer 0123456789abcdef\r\n"), 401, "the old one is not");
    daemon.stop();
}

#[test]
fn an_action_over_tcp_is_refused_where_there_is_no_token() {
    let daemon = Setup::new([worker("agents", 1, &[])]).args(&["--admin", "127.0.0.1:0"]).start();
    let mut admin = Admin::at(tcp_address(&daemon));
    for target in ["/drain", "/kill-client?client=0", "/restart-worker?worker=agents/0", "/log-level?level=debug"] {
        assert_eq!(admin.request("POST", target).status, 403, "{target}");
        assert_eq!(admin.get(target).status, 405, "{target}");
    }
    daemon.stop();
}

#[test]
fn a_watcher_is_shown_the_daemon_again_and_again_until_it_ends() {
    let daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let mut watcher = Command::new(program());
    watcher.args(["status", "--watch", "--json", "--admin"]).arg(daemon.path("admin"));
    let mut watcher = watcher.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started");
    let mut lines = BufReader::new(watcher.stdout.take().expect("a pipe")).lines();
    for _ in 0..2 {
        let line = lines.next().expect("it goes on").expect("a line");
        let status: Value = serde_json::from_str(&line).expect("a line is JSON");
        assert_eq!(status["state"], "ready");
    }
    daemon.stop();
    // Reads its remaining output, so that it can continue.
    lines.map_while(Result::ok).for_each(drop);
    assert_eq!(watcher.wait().expect("it is our child").code(), Some(1));
}

#[test]
fn the_doctor_needs_no_daemon_and_checks_its_requirements() {
    let run = |arguments: &[&str]| Command::new(program()).args(arguments).output().expect("it can be started");
    let output = run(&["doctor"]);
    let text = String::from_utf8(output.stdout).expect("it is text");
    assert_eq!(output.status.code(), Some(0), "{text}");
    for what in ["kernel", "io_uring", "descriptors", "memlock", "processes", "memory", "backlog", "container"] {
        assert!(text.lines().any(|line| line.contains(what)), "{what}: {text}");
    }
    let value: Value = serde_json::from_slice(&run(&["doctor", "--json"]).stdout).expect("it is JSON");
    assert!(value["findings"].as_array().is_some_and(|findings| findings.len() >= 8), "{value}");
}

#[test]
fn an_operator_sees_who_uses_most_by_source_token_and_pool() {
    let setup = Setup::new([shared()]);
    let path = setup.path("tokens");
    fs::write(&path, "alice:0123456789abcdef\nbob:fedcba9876543210\n").unwrap();
    let daemon = door_of(with_admin(setup), json!({ "tokens_file": path }));
    for (token, calls) in [("Bearer 0123456789abcdef", 3), ("Bearer fedcba9876543210", 1)] {
        let mut client = Http::connect(daemon.address()).with("Authorization", token);
        let answer = client.ask(&request(0, "initialize", json!({ "protocolVersion": VERSION })));
        let id = answer.fields["mcp-session-id"].clone();
        let mut client = client.with("Mcp-Session-Id", &id);
        for id in 1..=calls {
            client.call(id, "who", json!({}));
        }
    }
    let shown: Value = serde_json::from_str(&said(&daemon, &["show", "top", "--json"])).expect("it is JSON");
    let rows = shown["top"].as_array().expect("an array");
    let row = |by: &str, name: &str| {
        let found = rows.iter().find(|row| row["by"] == by && row["name"] == name);
        found.unwrap_or_else(|| panic!("no {by} {name} in {shown}"))
    };
    // `initialize` is a request, too.
    for (by, name, requests) in
        [("source", "127.0.0.1", 6), ("token", "alice", 4), ("token", "bob", 2), ("pool", "tools", 6)]
    {
        let row = row(by, name);
        assert_eq!(row["total_requests"], requests, "{row}");
        assert!(row["total_bytes"].as_u64() > Some(100) && row["total_worker_seconds"].is_f64(), "{row}");
    }
    assert!(rows.iter().position(|row| row["name"] == "alice") < rows.iter().position(|row| row["name"] == "bob"));
    let text = said(&daemon, &["show", "top"]);
    assert!(text.contains("NOW WORKER TIME") && text.contains("alice"), "{text}");
    let metrics = Admin::of(&daemon).get("/metrics").body;
    assert_eq!(metric(&metrics, "stdio_bus_usage_requests_total{by=\"token\",name=\"alice\"}"), 4.0);
    assert!(metric(&metrics, "stdio_bus_usage_worker_seconds_total{by=\"pool\",name=\"tools\"}") > 0.0);
    daemon.stop();
}
