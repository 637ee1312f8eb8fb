//! The admin listener, as load balancers, monitors and operators see it.

mod checks;
mod operator;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::{RecvFlags, recv};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{
    Daemon, PATIENCE, Setup, complaints, echo, number_in, program, refuses_connections, seconds_go_by, skip, state,
    with, worker,
};
use crate::slots::on_all_slots;
use crate::steady::Steady;

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// One connection to the admin listener.
pub struct Admin<S>(Steady<S>);

impl Admin<UnixStream> {
    pub fn of(daemon: &Daemon) -> Self {
        let mut stream = None;
        // The clients' socket, which shows that the daemon has started, may exist before it.
        daemon.until("the admin socket is there", || {
            stream = UnixStream::connect(daemon.path("admin")).ok();
            stream.is_some()
        });
        let stream = stream.expect("it was waited for");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self(Steady(stream))
    }

    /// Whether something can be read.
    pub fn has_begun(&self) -> bool {
        recv(&self.0, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok()
    }
}

impl Admin<TcpStream> {
    pub fn at(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self(Steady(stream))
    }
}

impl<S: Read + Write> Admin<S> {
    pub fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).expect("it is read");
    }

    /// One byte, or none at the end.
    fn byte(&mut self) -> Option<u8> {
        let mut byte = [0];
        match self.0.read(&mut byte) {
            Ok(0) => None,
            Ok(_) => Some(byte[0]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("reading an answer: {error}"),
        }
    }

    fn until(&mut self, end: &str) -> Option<String> {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            text.push(self.byte()?);
        }
        Some(String::from_utf8(text).expect("a head is text"))
    }

    fn exactly(&mut self, bytes: usize) -> String {
        let mut body = vec![0; bytes];
        self.0.read_exact(&mut body).expect("the whole body comes");
        String::from_utf8(body).expect("a body is text")
    }

    /// The next response; none at the end of the connection.
    pub fn answer(&mut self) -> Option<Answer> {
        self.answer_to("GET")
    }

    pub fn answer_to(&mut self, method: &str) -> Option<Answer> {
        let head = self.until("\r\n\r\n")?;
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
        let field = |name: &str| {
            let found = head.lines().find_map(|line| line.strip_prefix(name));
            found.map(|value| value.trim().to_owned())
        };
        let body = match (field("Content-Length:"), field("Transfer-Encoding:")) {
            _ if method == "HEAD" => String::new(),
            (Some(length), _) => self.exactly(length.parse().expect("a number")),
            (None, Some(_)) => self.chunks(),
            (None, None) => {
                let mut rest = String::new();
                self.0.read_to_string(&mut rest).expect("a body is text");
                rest
            }
        };
        Some(Answer { status, head, body })
    }

    fn chunks(&mut self) -> String {
        let mut body = String::new();
        loop {
            let size = self.until("\r\n").expect("a chunk");
            let size = usize::from_str_radix(size.trim(), 16).expect("a length");
            body += &self.exactly(size);
            assert_eq!(self.exactly(2), "\r\n");
            if size == 0 {
                return body;
            }
        }
    }

    pub fn request(&mut self, method: &str, target: &str) -> Answer {
        self.send(&format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        self.answer_to(method).expect("an answer comes")
    }

    pub fn get(&mut self, target: &str) -> Answer {
        self.request("GET", target)
    }
}

/// Adds an admin listener on the Unix socket `admin` in the daemon's directory.
pub fn with_admin(setup: Setup) -> Setup {
    let path = setup.text_path("admin");
    setup.args(&["--admin", &path])
}

/// Starts it, and waits until it is ready.
pub fn start_ready(setup: Setup) -> Daemon {
    let daemon = with_admin(setup).start();
    until_status(&daemon, "/readyz", 200);
    daemon
}

pub fn until_status(daemon: &Daemon, target: &str, status: u16) {
    daemon.until(&format!("{target} is answered with {status}"), || Admin::of(daemon).get(target).status == status);
}

fn answers(daemon: &Daemon, target: &str, status: u16, text: &str) {
    let answer = Admin::of(daemon).get(target);
    assert_eq!((answer.status, answer.body.as_str()), (status, text), "{target}");
}

/// The TCP address of its admin listener.
pub fn tcp_address(daemon: &Daemon) -> SocketAddr {
    let line = daemon.logs(&["the admin listener is tcp://"]);
    let address = line.split("tcp://").nth(1).expect("an address");
    address.split(' ').next().and_then(|address| address.parse().ok()).expect("an address")
}

#[test]
fn a_balancer_gets_not_ready_while_no_worker_runs() {
    let setup = Setup::new([worker("agents", 1, &[])]).limit("max_restarts", 0);
    let mut daemon = start_ready(setup);
    answers(&daemon, "/healthz", 200, "alive\n");
    answers(&daemon, "/readyz", 200, "ready\n");
    answers(&daemon, "/readyz?pool=agents", 200, "ready\n");
    answers(&daemon, "/readyz?listener=0", 200, "ready\n");
    let address = daemon.address();
    for name in [format!("{address}"), format!("tcp://{address}"), "tcp%3A%2F%2F127.0.0.1:0".to_owned()] {
        answers(&daemon, &format!("/readyz?listener={name}"), 200, "ready\n");
    }
    daemon.connect().ask(1, "exit", json!({}));
    until_status(&daemon, "/readyz", 503);
    let why = "not ready: no worker of pool \"agents\" is running: 1 of 1 were given up\n";
    for target in ["/readyz", "/readyz?pool=agents", "/readyz?listener=0"] {
        answers(&daemon, target, 503, why);
    }
    answers(&daemon, "/readyz?listener=0&unready=404", 404, why);
    assert_eq!(Admin::of(&daemon).get("/readyz?unready=200").status, 400);
    answers(&daemon, "/healthz", 200, "alive\n");
    daemon.stop();
}

#[test]
fn the_check_of_the_shipped_haproxy_file_lets_a_daemon_in_whose_other_listener_has_a_bad_pool() {
    let file = include_str!("../../config/haproxy.cfg");
    let uri = file.lines().find_map(|line| line.trim().strip_prefix("http-check send meth GET uri ")).expect("a check");
    let listeners = json!([
        { "tcp": "127.0.0.1:0", "pool": "agents" },
        { "tcp": "127.0.0.1:0", "pool": "bad" },
    ]);
    let pools = [echo("agents", 1), crate::harness::shell("bad", "exit 1"), echo("third", 1)];
    let setup = Setup::new(pools).limit("max_restarts", 0).no_listener().set("listeners", listeners);
    let daemon = with_admin(setup).start();
    daemon.until("the bad pool is given up", || Admin::of(&daemon).get("/readyz?listener=1").body.contains("given up"));
    until_status(&daemon, uri, 200);
    assert_eq!(Admin::of(&daemon).get("/readyz").status, 503, "without a listener it is about all");
    daemon.stop();
}

#[test]
fn a_draining_daemon_refuses_new_clients_and_lets_others_finish() {
    let setup = Setup::new([worker("agents", 1, &[])]).limit("quiesce_sec", 600);
    let mut daemon = start_ready(setup);
    let mut client = daemon.connect();
    client.ask(1, "hold", json!({}));
    client.ask(2, "who", json!({}));
    client.answer(2);
    daemon.signal(Signal::TERM);
    until_status(&daemon, "/readyz", 404);
    answers(&daemon, "/readyz?pool=agents", 404, "draining: the daemon shuts down\n");
    answers(&daemon, "/healthz", 200, "alive\n");
    for asked in [
        ["restart", "pool", "agents"],
        ["restart", "worker", "agents/0"],
        ["take-out", "worker", "agents/0"],
        ["pause", "pool", "agents"],
        ["resume", "pool", "agents"],
        ["pause", "listener", "0"],
        ["resume", "listener", "0"],
    ] {
        let (code, _, why) = command(&daemon, &asked);
        assert!(
            code == Some(1) && why.contains("nothing is restarted, taken out, paused or resumed any more"),
            "{why}"
        );
    }
    client.reset();
    daemon.ends_well();
}

#[test]
fn a_lame_duck_is_still_restarted_paused_and_resumed() {
    let setup = Setup::new([worker("agents", 1, &[])]).limit("lame_duck_sec", 600);
    let mut daemon = start_ready(setup);
    let mut client = daemon.connect();
    client.request(1, "who", json!({}));
    said(&daemon, &["drain"]);
    until_status(&daemon, "/readyz", 404);
    said(&daemon, &["pause", "pool", "agents"]);
    client.ask(2, "who", json!({}));
    daemon.until("it waits", || said(&daemon, &["show", "waiting"]).contains("the paused pool agents"));
    said(&daemon, &["resume", "pool", "agents"]);
    assert!(client.answer(2)["error"].is_null());
    said(&daemon, &["restart", "pool", "agents"]);
    daemon.logs(&["a worker is being replaced: requested by the operator"]);
    drop(client);
    daemon.stop();
}

#[test]
fn the_admin_socket_is_its_owners_alone_unless_the_configuration_says_otherwise() {
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    let daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    assert_eq!(mode(&daemon.path("admin")), 0o600);
    let path = daemon.path("admin");
    daemon.stop();
    assert!(!path.exists());
    let mut setup = Setup::new([worker("agents", 1, &[])]);
    let path = setup.text_path("admin");
    setup.config()["admin"] = json!({ "listen": path, "mode": "0660" });
    let daemon = setup.start();
    until_status(&daemon, "/readyz", 200);
    assert_eq!(mode(&daemon.path("admin")), 0o660);
    daemon.stop();
}

#[test]
fn the_admin_listener_may_be_a_port_where_names_of_other_hosts_are_refused() {
    let daemon = Setup::new([worker("agents", 1, &[])]).args(&["--admin", "127.0.0.1:0"]).start();
    let address = tcp_address(&daemon);
    daemon.until("it is ready", || Admin::at(address).get("/readyz").status == 200);
    let mut admin = Admin::at(address);
    admin.send("GET /readyz HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert_eq!(admin.answer().map(|answer| answer.status), Some(403));
    daemon.stop();
}

#[test]
fn an_unavailable_admin_address_prevents_the_start() {
    let daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let path = daemon.path("admin").display().to_string();
    let outcome = Setup::new([worker("agents", 1, &[])]).args(&["--admin", &path]).run();
    assert_eq!(outcome.code, Some(73), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("a running program listens on it already"), "{}", outcome.stderr);
    daemon.stop();
    let outcome = Setup::new([worker("agents", 1, &[])]).args(&["--admin", "9001"]).run();
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
}

/// The value of a metric, by its name with its labels.
pub fn metric(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in\n{text}"))
}

#[test]
fn a_daemon_that_was_stopped_says_so_and_its_figures_have_the_time_that_clients_waited() {
    let mut daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let mut client = daemon.connect();
    client.request(1, "m", json!({}));
    daemon.stand_still();
    client.ask(2, "m", json!({}));
    seconds_go_by(3);
    daemon.signal(Signal::CONT);
    client.answer(2);
    daemon.logs(&["WARN", "the daemon did not run for ", "daemon_held_up"]);
    let text = Admin::of(&daemon).get("/metrics").body;
    let of = |name: &str| metric(&text, name);
    // A busy machine may leave it without a processor once more.
    assert!(of("stdio_bus_events_total{reason=\"daemon_held_up\"}") >= 1.0, "{text}");
    // It is unknown how much of the last wait had passed before it.
    assert!(of("stdio_bus_request_duration_seconds_sum{pool=\"agents\"}") >= 2.0, "{text}");
    client.half_close();
    client.ends();
    let closed = daemon.logs(&["client_closed", "client=0"]);
    assert!(number_in(&closed, "duration_ms") >= 3000, "{closed}");
    daemon.stop();
}

#[test]
fn a_monitor_sees_messages_and_outcomes() {
    let mut daemon = start_ready(
        Setup::new([with(worker("agents", 2, &[]), "request_timeout_sec", 600)]).set("node", json!("bus-1")),
    );
    // One of them is enough to be ready.
    daemon.logs_times("worker_started", 2);
    let mut client = daemon.connect();
    for id in 0..20 {
        client.request(id, "who", json!({}));
    }
    client.ask_in("s", 20, "hold", json!({}));
    client.request(21, "who", json!({}));
    let answer = Admin::of(&daemon).get("/metrics");
    assert!(answer.head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{}", answer.head);
    let text = answer.body;
    let of = |name: &str| metric(&text, name);
    assert_eq!(of("stdio_bus_requests_total{pool=\"agents\",outcome=\"answered\"}"), 21.0);
    assert_eq!(of("stdio_bus_request_duration_seconds_count{pool=\"agents\"}"), 21.0);
    assert_eq!(of("stdio_bus_requests_pending{pool=\"agents\"}"), 1.0);
    assert!(of("stdio_bus_requests_pending_oldest_seconds{pool=\"agents\"}") > 0.0);
    assert_eq!(of("stdio_bus_workers{pool=\"agents\",state=\"running\"}"), 2.0);
    assert_eq!(of(&format!("stdio_bus_clients{{listener=\"tcp://{}\"}}", daemon.address())), 1.0);
    assert_eq!(of("stdio_bus_client_lines_received_total"), 22.0);
    assert_eq!(of("stdio_bus_sessions"), 1.0);
    assert_eq!(of("stdio_bus_ready"), 1.0);
    assert_eq!(of("stdio_bus_events_total{reason=\"worker_started\"}"), 2.0);
    assert!(of("stdio_bus_turn_duration_seconds_count") > 0.0);
    assert!(of("stdio_bus_client_received_bytes_total") > 22.0 * 20.0);
    assert_eq!(
        of(&format!(
            "stdio_bus_build_info{{version=\"{}\",io=\"{}\",node=\"bus-1\"}}",
            env!("CARGO_PKG_VERSION"),
            crate::harness::io()
        )),
        1.0
    );
    daemon.stop();
}

#[test]
fn a_monitor_sees_why_workers_were_replaced_the_reasons_of_errors_and_the_daemons_resources() {
    let mut daemon = start_ready(Setup::new([worker("agents", 1, &[]), echo("calm", 1)]));
    let (mut client, mut bystander) = (daemon.connect(), daemon.connect());
    bystander.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "hold", "pool": "agents" }));
    daemon.until("it is asked", || {
        client.send(&json!({ "jsonrpc": "2.0", "id": 0, "method": "who", "pool": "agents" }));
        client.answer(0)["result"]["held"] == 1
    });
    client.send(&json!({ "method": "write", "params": { "text": "Starting...\n" }, "pool": "agents" }));
    let data = bystander.answer(1)["error"]["data"].clone();
    assert_eq!(data, json!({ "reason": "worker_exited", "cause": "worker_malformed", "delivered": true }));
    daemon.logs(&["reason=worker_exited", "stopped as requested (worker_malformed)"]);
    for id in 0..30 {
        client
            .send(&json!({ "jsonrpc": "2.0", "id": id, "method": "m", "pool": "calm", "sessionId": "s".repeat(300) }));
        client.error(id, "session_id_too_long");
        client.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "m", "pool": "nowhere" }));
        client.error(id, "unknown_pool");
    }
    let text = Admin::of(&daemon).get("/metrics").body;
    let of = |name: &str| metric(&text, name);
    assert_eq!(of("stdio_bus_worker_exits_total{pool=\"agents\",reason=\"worker_malformed\"}"), 1.0);
    assert_eq!(of("stdio_bus_worker_exits_total{pool=\"agents\",reason=\"worker_exited\"}"), 0.0);
    assert_eq!(of("stdio_bus_worker_stops_total{pool=\"agents\"}"), 0.0);
    assert_eq!(of("stdio_bus_events_total{reason=\"worker_exited\"}"), 1.0);
    assert_eq!(of("stdio_bus_request_errors_total{pool=\"agents\",reason=\"request_lost\"}"), 1.0);
    assert_eq!(of("stdio_bus_request_errors_total{pool=\"calm\",reason=\"session_id_too_long\"}"), 30.0);
    assert_eq!(of("stdio_bus_request_errors_total{pool=\"\",reason=\"unknown_pool\"}"), 30.0);
    assert!(of("process_cpu_seconds_total") > 0.0 && of("process_resident_memory_bytes") > 1e6, "{text}");
    assert!(of("process_open_fds") > 5.0 && of("process_open_fds") <= of("process_max_fds"), "{text}");
    daemon.stop();
}

#[test]
fn old_warnings_leave_the_top_of_status_in_sight_and_show_errors_has_them() {
    let mut daemon = start_ready(Setup::new([echo("agents", 1)]));
    let mut client = daemon.connect();
    for id in 0..10 {
        client.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "m", "pool": "nowhere" }));
        client.error(id, "unknown_pool");
        client.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "m", "sessionId": "s".repeat(300) }));
        client.error(id, "session_id_too_long");
    }
    let status = said(&daemon, &["status"]);
    assert_eq!(status.matches("WARN").count(), 10, "{status}");
    let all = said(&daemon, &["show", "errors"]);
    assert_eq!(complaints(&all).len(), 20, "{all}");
    let more = format!("\nand {} more: stdio_bus show errors\n", all.matches("WARN").count() - 10);
    assert!(status.ends_with(&more), "{status}");
    assert_eq!(said(&daemon, &["show", "waiting"]), "nothing\n");
    daemon.stop();
}

#[test]
fn an_operator_is_shown_which_client_a_paused_worker_waits_for() {
    let pool = with(worker("agents", 1, &[]), "assignment", "dedicated");
    let mut daemon = start_ready(Setup::new([pool]).limit("max_output_queue", 65536));
    let mut client = daemon.connect();
    client
        .send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "flood", "params": { "size": 10_000, "lines": 100_000 } }));
    let waits = || said(&daemon, &["show", "waiting"]);
    daemon.until("it is shown", || waits().contains("worker agents/0  client 0"));
    assert!(said(&daemon, &["status"]).contains("\nwho waits for whom:\nWHO "), "{}", waits());
    client.reset();
    daemon.stop();
}

#[test]
fn a_listener_for_websockets_is_called_so_and_workers_stand_in_their_order_whatever_was_restarted() {
    let listeners = json!([{ "ws": "127.0.0.1:0" }, { "tcp": "127.0.0.1:0" }]);
    let pools = [worker("b", 3, &[]), worker("a", 2, &[])];
    let daemon = start_ready(Setup::new(pools).no_listener().set("listeners", listeners));
    let addresses = daemon.addresses(2);
    let shown = |table: &str| -> Vec<Value> {
        let text = said(&daemon, &["show", table, "--json"]);
        let value: Value = serde_json::from_str(&text).expect("it is JSON");
        value[table].as_array().expect("an array").clone()
    };
    let of = |rows: &[Value], key: &str| -> Vec<String> { rows.iter().map(|row| row[key].to_string()).collect() };
    let mut before = Vec::new();
    daemon.until("all of them run", || {
        before = shown("workers");
        before.len() == 5 && before.iter().all(|worker| worker["pid"].as_i64().is_some_and(|pid| pid > 0))
    });
    for at in [1, 0, 4] {
        let pid = before[at]["pid"].as_i64().expect("it runs") as i32;
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).expect("a process"), Signal::KILL)
            .expect("it is ours");
    }
    let incarnations = || {
        of(&shown("workers"), "incarnation").iter().filter(|number| number.parse::<u32>().is_ok_and(|n| n > 4)).count()
    };
    daemon.until("they run again", || incarnations() == 3);
    assert_eq!(of(&shown("workers"), "worker"), ["\"b/0\"", "\"b/1\"", "\"b/2\"", "\"a/0\"", "\"a/1\""]);
    let status = said(&daemon, &["status"]);
    assert!(
        status.contains("\nws://127.0.0.1:0/acp  ") && status.contains(&format!("ws://{}/acp", addresses[0])),
        "{status}"
    );
    for name in ["0".to_owned(), addresses[0].to_string(), format!("ws://{}/acp", addresses[0])] {
        answers(&daemon, &format!("/readyz?listener={name}"), 200, "ready\n");
    }
    daemon.stop();
}

/// Runs a program over this text; none if it is not installed.
fn judged(program: &str, arguments: &[&str], text: &str) -> Option<(bool, String)> {
    let mut child = Command::new(program);
    child.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match child.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skip(&format!("there is no {program} (Debian's package prometheus)"));
            return None;
        }
        Err(error) => panic!("{program}: {error}"),
    };
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    Some((output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()))
}

#[test]
fn the_metrics_are_valid_for_prometheus() {
    let pools = [worker("agents", 1, &[]), echo("with \"quotes\" and \\", 2)];
    let mut daemon = start_ready(Setup::new(pools));
    daemon.connect().request(1, "who", json!({}));
    let text = Admin::of(&daemon).get("/metrics").body;
    if let Some((good, said)) = judged("promtool", &["check", "metrics"], &text) {
        assert!(good && said.is_empty(), "{said}\n{text}");
    }
    daemon.stop();
}

#[test]
fn the_alert_rules_are_valid_for_prometheus() {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/config/prometheus/alerts.yml");
    if let Some((good, said)) = judged("promtool", &["check", "rules", rules], "") {
        assert!(good && said.contains("SUCCESS"), "{said}");
    }
}

#[test]
fn each_alert_fires_only_for_a_daemon_that_needs_attention_and_stops() {
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/alerts.yml");
    let tested = std::fs::read_to_string(tests).expect("it is there");
    let rules = include_str!("../../config/prometheus/alerts.yml");
    let names: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(tested.contains(&format!("alertname=\"{name}\",alertstate=\"firing\"")), "no test has {name}");
        let is_over = format!("{{ expr: 'ALERTS{{alertname=\"{name}\"}}', eval_time: ");
        assert!(tested.contains(&is_over), "no test shows that {name} stops");
    }
    if let Some((good, said)) = judged("promtool", &["test", "rules", tests], "") {
        assert!(good && said.contains("SUCCESS"), "{said}");
    }
}

#[test]
fn tables_are_shown_completely_and_text_from_clients_is_escaped() {
    let mut daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let mut clients: Vec<Client> = (0..300).map(|_| daemon.connect()).collect();
    let name = "<script>alert(1)</script>\u{1b}[2J\"\\";
    clients[7].ask_in(name, "<id>", "hold", json!({}));
    for client in &mut clients {
        client.request(1, "who", json!({}));
    }
    let get = |path: &str| -> Value {
        let answer = Admin::of(&daemon).get(path);
        assert!(answer.status == 200 && answer.head.contains("Content-Type: application/json"), "{answer:?}");
        serde_json::from_str(&answer.body).expect("it is JSON")
    };
    let clients_shown = get("/clients.json");
    let clients_shown = clients_shown["clients"].as_array().expect("an array");
    assert_eq!(clients_shown.len(), 300);
    let busy: Vec<&Value> = clients_shown.iter().filter(|client| client["pending"] == 1).collect();
    assert!(busy.len() == 1 && busy[0]["sessions"] == 1, "{busy:?}");
    assert!(busy[0]["source"].as_str().is_some_and(|source| source.starts_with("127.0.0.1:")), "{busy:?}");
    assert_eq!(get("/sessions.json")["sessions"][0]["session"], name);
    let pending = get("/pending.json");
    assert_eq!(pending["pending"].as_array().map(Vec::len), Some(1));
    assert_eq!(pending["pending"][0]["from"], format!("client {}", busy[0]["client"]));
    let workers = get("/workers.json");
    assert_eq!((&workers["workers"][0]["state"], &workers["workers"][0]["pending"]), (&json!("running"), &json!(1)));
    assert_eq!(get("/pools.json")["pools"][0]["requests"]["answered"], 300);
    assert_eq!(get("/limits.json")["limits"][0], json!({ "limit": "client connections", "used": 300, "most": 1024 }));
    let status = get("/status.json");
    assert_eq!((&status["state"], &status["clients"]["used"]), (&json!("ready"), &json!(300)));
    assert_eq!(status["listeners"][0]["ready"], true);
    let discarded = || get("/errors.json").to_string().matches(r#""reason":"request_discarded""#).count();
    assert_eq!(discarded(), 0);
    clients.remove(7).reset();
    daemon.logs(&["request_discarded"]);
    assert_eq!(discarded(), 1);
    daemon.stop();
}

/// Runs `stdio_bus` with these arguments against the daemon.
pub fn command(daemon: &Daemon, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program()).args(arguments).arg("--admin").arg(daemon.path("admin")).output();
    let output = output.expect("it can be started");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it is text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

pub fn said(daemon: &Daemon, arguments: &[&str]) -> String {
    let (code, stdout, stderr) = command(daemon, arguments);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{arguments:?}");
    stdout
}

/// A listener that is closed while no worker runs, over TCP and over a Unix socket.
fn closes_when_not_ready(setup: Setup) -> Setup {
    let path = setup.text_path("socket");
    let closing = |mut listener: Value| {
        listener["when_not_ready"] = "close".into();
        listener
    };
    let listeners = json!([closing(json!({ "tcp": "127.0.0.1:0" })), closing(json!({ "unix": path }))]);
    setup.no_listener().set("listeners", listeners)
}

#[test]
fn a_balancer_that_only_connects_is_refused_while_no_worker_runs() {
    let setup = Setup::new([worker("agents", 1, &[])]).limit("max_restarts", 1).limit("restart_window_sec", 1);
    let daemon = closes_when_not_ready(setup).start();
    let address = daemon.address();
    let reaches = |path: &Path| UnixStream::connect(path).is_ok();
    let path = daemon.path("socket");
    daemon.until("it listens", || TcpStream::connect(address).is_ok() && reaches(&path));
    for round in 1..=3 {
        let mut client = Client::over_tcp(address);
        let mut other = Client::over_unix(&path);
        client.request(1, "who", json!({}));
        other.ask(1, "exit", json!({}));
        daemon.logs_times("listener_closed", 2 * round);
        daemon.logs_times("listener_opened", 2 * round);
        daemon.until("it listens again", || TcpStream::connect(address).is_ok() && reaches(&path));
        assert!(client.request(2, "who", json!({}))["result"].is_object(), "a connected client stays");
    }
    assert!(!daemon.log().contains("accept_paused"), "that is no failure");
    daemon.stop();
}

#[test]
fn a_listener_whose_pool_was_given_up_refuses_connections_until_the_end() {
    let setup = Setup::new([worker("agents", 1, &[])]).limit("max_restarts", 0);
    let daemon = closes_when_not_ready(setup).start();
    let (address, path) = (daemon.address(), daemon.path("socket"));
    daemon.until("it listens", || TcpStream::connect(address).is_ok());
    Client::over_tcp(address).ask(1, "exit", json!({}));
    daemon.until("connections are refused", || refuses_connections(address));
    daemon.until("there, too", || UnixStream::connect(&path).is_err());
    assert!(refuses_connections(address));
    daemon.stop();
}
