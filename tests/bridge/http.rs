//! The bridge and MCP over Streamable HTTP, with a small server in these tests: directly, and behind a TLS proxy.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Bridge, PATIENCE, Reader, patient};

const SESSION: &str = "the-session";
const JSON: &str = "application/json";
const STREAM: &str = "text/event-stream";

/// A server played by a test: the requests of all its connections.
struct Server {
    url: String,
    arguments: Vec<String>,
    asked: Receiver<Asked>,
    /// Requests that were received but not handled yet.
    later: Vec<Asked>,
}

/// A request, and its connection.
struct Asked {
    method: String,
    target: String,
    /// Its fields, with names in lower case.
    fields: Vec<(String, String)>,
    body: Value,
    /// The number of its connection.
    connection: usize,
    socket: TcpStream,
}

impl Server {
    fn plain() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/mcp", listener.local_addr().expect("it is bound"));
        let (sender, asked) = channel();
        // The threads end with their connections, and the first one with the test.
        std::thread::spawn(move || accept_all(&listener, &sender));
        Self { url, arguments: Vec::new(), asked, later: Vec::new() }
    }

    #[cfg(feature = "tls")]
    fn behind_tls() -> Self {
        let plain = Self::plain();
        let address = plain.url["http://".len()..plain.url.len() - "/mcp".len()].parse().expect("an address");
        let front = super::tls::front(address);
        let url = format!("https://localhost:{}/mcp", front.port());
        Self { url, arguments: vec!["--ca-file".to_owned(), super::tls::file("authority")], ..plain }
    }

    fn both() -> Vec<Self> {
        vec![
            Self::plain(),
            #[cfg(feature = "tls")]
            Self::behind_tls(),
        ]
    }

    fn start(&self) -> (Bridge, Reader) {
        let mut command = Bridge::command(&self.url);
        command.args(&self.arguments);
        let mut bridge = Bridge::from(command);
        let stdout = Reader::new(bridge.child.stdout.take().expect("stdout is a pipe"));
        (bridge, stdout)
    }

    /// A bridge with a session, and the request for the server's own stream.
    fn begin(&mut self) -> (Bridge, Reader, Asked) {
        let (mut bridge, mut stdout) = self.start();
        self.initialize(&mut bridge, &mut stdout);
        let stream = self.next("GET");
        stream.open_stream();
        (bridge, stdout, stream)
    }

    /// Starts a session, up to the request for the server's own stream.
    fn initialize(&mut self, bridge: &mut Bridge, stdout: &mut Reader) {
        bridge.ask(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}));
        let asked = self.next("POST");
        assert_eq!((asked.field("mcp-session-id"), asked.field("mcp-protocol-version")), (None, None));
        let result = json!({"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": "2025-11-25"}});
        asked.answer("200 OK", JSON, &format!("Mcp-Session-Id: {SESSION}\r\n"), &result.to_string());
        assert_eq!(stdout.message(), result);
        bridge.ask(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        self.next("POST").accept();
    }

    /// The next request with this method.
    fn next(&mut self, method: &str) -> Asked {
        if let Some(at) = self.later.iter().position(|asked| asked.method == method) {
            return self.later.remove(at);
        }
        loop {
            let asked = self.asked.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {method} comes"));
            if asked.method == method {
                return asked;
            }
            self.later.push(asked);
        }
    }

    /// Whether there are other requests.
    fn has_more(&mut self) -> bool {
        self.later.extend(self.asked.try_iter());
        !self.later.is_empty()
    }
}

fn accept_all(listener: &TcpListener, sender: &Sender<Asked>) {
    for (connection, socket) in listener.incoming().flatten().enumerate() {
        let sender = sender.clone();
        std::thread::spawn(move || read_requests(connection, patient(socket).0, &sender));
    }
}

fn read_requests(connection: usize, socket: TcpStream, sender: &Sender<Asked>) {
    let mut reader = BufReader::new(socket.try_clone().expect("a descriptor"));
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(1..) if line == "\r\n" => break,
                Ok(1..) => lines.push(line.trim_end().to_owned()),
                _ => return,
            }
        }
        let mut first = lines[0].split(' ').map(str::to_owned);
        let (method, target) = (first.next().expect("a method"), first.next().expect("a target"));
        let fields = lines[1..].iter().map(|line| line.split_once(": ").expect("a field"));
        let fields: Vec<_> = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        let length = fields.iter().find(|(name, _)| name == "content-length");
        let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().expect("a number"))];
        reader.read_exact(&mut body).expect("the body comes whole");
        // A line that is no JSON is sent as it is.
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let socket = socket.try_clone().expect("a descriptor");
        if sender.send(Asked { method, target, fields, body, connection, socket }).is_err() {
            return;
        }
    }
}

impl Asked {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn say(&self, text: &str) {
        (&self.socket).write_all(text.as_bytes()).expect("the bridge reads");
    }

    fn answer(&self, status: &str, kind: &str, fields: &str, body: &str) {
        let length = body.len();
        self.say(&format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
        ));
    }

    /// Answers a request with this result.
    fn result(&self, result: Value) -> Value {
        let answer = json!({"jsonrpc": "2.0", "id": self.body["id"], "result": result});
        self.answer("200 OK", JSON, "", &answer.to_string());
        answer
    }

    fn accept(&self) {
        self.say("HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n");
    }

    fn open_stream(&self) {
        self.say(&format!("HTTP/1.1 200 OK\r\nContent-Type: {STREAM}\r\nTransfer-Encoding: chunked\r\n\r\n"));
    }

    /// One event of a stream.
    fn event(&self, id: &str, data: &str) {
        let event = format!(": a comment\n\nid: {id}\ndata: {data}\n\n");
        self.say(&format!("{:x}\r\n{event}\r\n", event.len()));
    }

    fn end_stream(&self) {
        self.say("0\r\n\r\n");
    }

    fn break_off(&self) {
        self.socket.shutdown(Shutdown::Both).expect("it is connected");
    }

    /// Waits until the bridge has closed the connection.
    fn is_closed(&self) {
        let mut rest = Vec::new();
        let _ = self.socket.try_clone().expect("a descriptor").read_to_end(&mut rest);
    }
}

impl Bridge {
    fn ask(&mut self, message: Value) {
        self.send(format!("{message}\n").as_bytes());
    }
}

fn tool(id: impl Into<Value>) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": "tools/call", "params": {"name": "t"}})
}

fn said(number: u32) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"n": number}})
}

fn modern(id: Value, method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn reason(message: &Value) -> &str {
    message["error"]["data"]["reason"].as_str().expect("an error with a reason")
}

#[test]
fn a_session_is_begun_used_and_ended() {
    for mut server in Server::both() {
        let (mut bridge, mut stdout, stream) = server.begin();
        assert_eq!((stream.target.as_str(), stream.field("accept")), ("/mcp", Some(STREAM)));
        assert_eq!((stream.field("mcp-session-id"), stream.field("last-event-id")), (Some(SESSION), None));
        stream.event("g-1", &said(1).to_string());
        assert_eq!(stdout.message(), said(1));

        bridge.ask(tool("a"));
        let asked = server.next("POST");
        assert_eq!(asked.body, tool("a"));
        for (name, value) in [
            ("accept", "application/json, text/event-stream"),
            ("content-type", JSON),
            ("mcp-session-id", SESSION),
            ("mcp-protocol-version", "2025-11-25"),
        ] {
            assert_eq!(asked.field(name), Some(value), "{name}");
        }
        assert!(asked.field("mcp-method").is_none() && asked.field("authorization").is_none());
        asked.open_stream();
        asked.event("p-0", "");
        asked.event("p-1", &said(2).to_string());
        assert_eq!(stdout.message(), said(2));
        asked.event("p-2", "{\"jsonrpc\":\"2.0\",\ndata: \"id\":\"a\",\"result\":7}");
        assert_eq!(stdout.message(), json!({"jsonrpc": "2.0", "id": "a", "result": 7}));
        asked.end_stream();
        // The end of a response may arrive after the next request was sent.
        let mut used = vec![asked.connection];
        let is_used_again = (2..50).any(|id| {
            bridge.ask(tool(id));
            let asked = server.next("POST");
            let connection = asked.connection;
            let answer = asked.result(json!({}));
            assert_eq!(stdout.message(), answer);
            let is_known = used.contains(&connection);
            used.push(connection);
            is_known
        });
        assert!(is_used_again, "connections are used again");
        bridge.end_input();
        let last = server.next("DELETE");
        assert_eq!(last.field("mcp-session-id"), Some(SESSION));
        last.answer("200 OK", JSON, "", "");
        assert_eq!(bridge.code(), Some(0));
        assert_eq!((stdout.text(), bridge.stderr.text()), (String::new(), String::new()));
    }
}

#[test]
fn a_server_that_ends_no_session_is_waited_for_two_seconds() {
    let mut server = Server::plain();
    let (mut bridge, _stdout, _stream) = server.begin();
    let since = Instant::now();
    bridge.end_input();
    assert_eq!(server.next("DELETE").target, "/mcp");
    assert_eq!(bridge.code(), Some(0));
    assert!(since.elapsed() >= Duration::from_secs(2));
}

#[test]
fn a_modern_request_repeats_itself_in_its_head_and_has_no_session() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout) = server.start();
    for (method, params, name) in [
        ("server/discover", json!({}), None),
        ("tools/call", json!({"name": "grüß"}), Some("=?base64?Z3LDvMOf?=")),
        ("resources/read", json!({"uri": "file:///a"}), Some("file:///a")),
    ] {
        bridge.ask(modern(json!(method), method, params));
        let asked = server.next("POST");
        assert_eq!(asked.field("mcp-protocol-version"), Some("2026-07-28"));
        assert_eq!((asked.field("mcp-method"), asked.field("mcp-name")), (Some(method), name));
        assert_eq!(asked.field("mcp-session-id"), None);
        let result = json!({"jsonrpc": "2.0", "id": method, "result": {}});
        // A modern server's session id is ignored.
        asked.answer("200 OK", JSON, "Mcp-Session-Id: x\r\n", &result.to_string());
        assert_eq!(stdout.message(), result);
    }
    // A refusal that is a JSON-RPC error is the answer, and gets the id if it has none.
    for (id, given) in [(json!(1), json!(1)), (json!("b"), Value::Null)] {
        bridge.ask(modern(id.clone(), "no/such", json!({})));
        let error = |id: &Value| json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "none"}});
        server.next("POST").answer("404 Not Found", JSON, "", &error(&given).to_string());
        assert_eq!(stdout.message(), error(&id));
    }
    bridge.end_input();
    assert_eq!(bridge.code(), Some(0));
    assert!(
        !server.has_more() && bridge.stderr.text().is_empty(),
        "there is no stream of its own, and no session to end"
    );
}

#[test]
fn a_modern_request_is_cancelled_by_the_end_of_its_connection() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout) = server.start();
    bridge.ask(modern(json!(1), "tools/call", json!({"name": "t"})));
    let asked = server.next("POST");
    asked.open_stream();
    asked.event("1", &said(1).to_string());
    assert_eq!(stdout.message(), said(1));
    bridge.ask(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}));
    asked.is_closed();
    // Nor is an endless stream awaited at the end of stdin.
    bridge.ask(modern(json!(2), "subscriptions/listen", json!({})));
    let asked = server.next("POST");
    asked.open_stream();
    bridge.end_input();
    asked.is_closed();
    assert_eq!(bridge.code(), Some(0));
    assert_eq!((stdout.text(), bridge.stderr.text()), (String::new(), String::new()));
    assert!(!server.has_more(), "no notification goes to the server");
}

/// Cancels a request of a session, and returns how long the bridge then lives after the end of its stdin.
fn cancels_in_words() -> Duration {
    let mut server = Server::plain();
    let (mut bridge, mut stdout, _stream) = server.begin();
    bridge.ask(tool(1));
    let asked = server.next("POST");
    asked.open_stream();
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    bridge.ask(cancel.clone());
    let told = server.next("POST");
    assert_eq!(told.body, cancel);
    told.accept();
    // It may be answered all the same, and is not awaited.
    bridge.ask(tool(2));
    server.next("POST").result(json!({}));
    assert_eq!(stdout.message()["id"], 2);
    let since = Instant::now();
    bridge.end_input();
    server.next("DELETE").accept();
    assert_eq!(bridge.code(), Some(0));
    assert_eq!(stdout.text(), "");
    drop(asked);
    since.elapsed()
}

#[test]
fn a_request_of_a_session_is_cancelled_in_words() {
    // It would be waited for each time; a machine is not slow each time.
    assert!((0..10).any(|_| cancels_in_words() < Duration::from_secs(4)), "it is waited for");
}

#[test]
fn more_than_sixteen_requests_wait_and_answers_to_the_server_do_not() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout, _stream) = server.begin();
    for id in 1..=18 {
        bridge.ask(tool(id));
    }
    let mut asked: Vec<Asked> = (1..=16).map(|_| server.next("POST")).collect();
    // Each has a connection of its own.
    asked.sort_by_key(|asked| asked.body["id"].as_i64());
    let ids: Vec<i64> = asked.iter().filter_map(|asked| asked.body["id"].as_i64()).collect();
    assert_eq!(ids, (1..=16).collect::<Vec<_>>());
    let answer = json!({"jsonrpc": "2.0", "id": "of-the-server", "result": {}});
    bridge.ask(answer.clone());
    let told = server.next("POST");
    assert_eq!(told.body, answer, "it passes those that wait");
    told.accept();
    assert!(!server.has_more());
    for (at, next) in [(3, 17), (0, 18)] {
        let answer = asked[at].result(json!(at));
        assert_eq!(stdout.message(), answer);
        let asked = server.next("POST");
        assert_eq!(asked.body["id"], next);
        asked.result(json!({}));
        assert_eq!(stdout.message()["id"], next);
    }
}

#[test]
fn subscriptions_keep_no_request_back_however_many_there_are() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout) = server.start();
    let listens: Vec<Asked> = (1..=16)
        .map(|id| {
            bridge.ask(modern(json!(id), "subscriptions/listen", json!({})));
            let asked = server.next("POST");
            asked.open_stream();
            asked
        })
        .collect();
    bridge.ask(modern(json!(17), "tools/list", json!({})));
    let answer = server.next("POST").result(json!({}));
    assert_eq!(stdout.message(), answer);
    drop(listens);
}

#[test]
fn a_subscription_that_still_waits_at_the_end_of_stdin_is_not_sent() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout) = server.start();
    bridge.ask(modern(json!(0), "subscriptions/listen", json!({})));
    let listens = server.next("POST");
    listens.open_stream();
    (1..=16).for_each(|id| bridge.ask(modern(json!(id), "tools/list", json!({}))));
    let asked: Vec<Asked> = (1..=16).map(|_| server.next("POST")).collect();
    bridge.ask(modern(json!(17), "subscriptions/listen", json!({})));
    bridge.end_input();
    // This shows that the bridge has handled the end of stdin.
    listens.is_closed();
    asked.iter().for_each(|asked| drop(asked.result(json!({}))));
    assert_eq!(bridge.code(), Some(0));
    assert_eq!(stdout.text().lines().count(), 16);
    assert!(!server.has_more(), "there is no one to cancel the subscription that was queued");
}

#[test]
fn an_editor_that_leaves_ends_the_bridge_although_a_cancelled_initialize_is_not_answered() {
    let mut server = Server::plain();
    let mut bridge = Bridge::from(Bridge::command(&server.url));
    bridge.ask(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}));
    let _unanswered = server.next("POST");
    bridge.ask(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}}));
    drop(bridge.child.stdout.take());
    bridge.end_input();
    assert_eq!(bridge.code(), Some(0));
}

#[test]
fn nothing_goes_before_the_session_has_begun() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout) = server.start();
    bridge.ask(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}));
    bridge.ask(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    bridge.ask(tool(1));
    let asked = server.next("POST");
    let result = json!({"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": "2025-06-18"}});
    assert!(!server.has_more());
    asked.answer("200 OK", JSON, &format!("Mcp-Session-Id: {SESSION}\r\n"), &result.to_string());
    assert_eq!(stdout.message(), result);
    let initialized = server.next("POST");
    assert_eq!(initialized.body["method"], "notifications/initialized");
    assert_eq!(initialized.field("mcp-protocol-version"), Some("2025-06-18"));
    initialized.accept();
    let asked = server.next("POST");
    assert_eq!((asked.body["id"].as_i64(), asked.field("mcp-session-id")), (Some(1), Some(SESSION)));
}

#[test]
fn a_truncated_response_is_resumed() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout, _stream) = server.begin();
    bridge.ask(tool(1));
    let asked = server.next("POST");
    asked.open_stream();
    let retry = "retry: 10\n\n";
    asked.say(&format!("{:x}\r\n{retry}\r\n", retry.len()));
    asked.event("p-1", &said(1).to_string());
    assert_eq!(stdout.message(), said(1));
    asked.break_off();
    let again = server.next("GET");
    assert_eq!((again.field("last-event-id"), again.field("mcp-session-id")), (Some("p-1"), Some(SESSION)));
    again.open_stream();
    again.event("p-2", &said(2).to_string());
    assert_eq!(stdout.message(), said(2));
    again.end_stream();
    let again = server.next("GET");
    assert_eq!(again.field("last-event-id"), Some("p-2"));
    let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {}});
    again.open_stream();
    again.event("p-3", &answer.to_string());
    again.end_stream();
    assert_eq!(stdout.message(), answer);
    bridge.end_input();
    server.next("DELETE").accept();
    assert_eq!(bridge.code(), Some(0));
}

#[test]
fn a_truncated_response_that_cannot_be_resumed_is_an_error() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout, _stream) = server.begin();
    bridge.send(b"{\"jsonrpc\":\"2.0\",\"id\":\"\\u0061\",\"method\":\"m\"}\n");
    server.next("POST").break_off();
    let line = stdout.message();
    assert_eq!((line["id"].as_str(), reason(&line)), (Some("a"), "daemon_gone"));
    assert_eq!(line["error"]["data"]["delivered"], true);
    bridge.ask(tool(2));
    let asked = server.next("POST");
    asked.say("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{\"id\":2,");
    asked.break_off();
    assert_eq!(reason(&stdout.message()), "daemon_gone");
    // Anything but a message is not passed on.
    for (status, kind, body) in [("200 OK", "text/html", "<html>"), ("202 Accepted", JSON, ""), ("200 OK", JSON, "7")] {
        bridge.ask(tool(3));
        server.next("POST").answer(status, kind, "", body);
        let line = stdout.message();
        assert_eq!((line["id"].as_i64(), reason(&line)), (Some(3), "daemon_unreachable"), "{body}");
    }
    bridge.ask(tool(4));
    server.next("POST").answer("429 Too Many Requests", "text/plain", "Retry-After: 7\r\n", "full");
    let line = stdout.message();
    assert_eq!(reason(&line), "daemon_refused");
    assert!(line["error"]["message"].as_str().is_some_and(|message| message.ends_with("it answers 429: full")));
    assert!(line["error"]["data"]["remedy"].as_str().is_some_and(|remedy| remedy.ends_with("try again in 7 s")));
    bridge.ask(tool(5));
    let answer = server.next("POST").result(json!({}));
    assert_eq!(stdout.message(), answer, "it goes on");
}

#[test]
fn a_request_that_may_have_been_carried_out_is_not_called_safe_to_repeat() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout, _stream) = server.begin();
    let statuses = [("500 A", true), ("502 B", true), ("504 C", true), ("503 D", false), ("429 E", false)];
    for (status, delivered) in statuses {
        bridge.ask(tool(1));
        server.next("POST").answer(status, "text/plain", "", "no");
        let line = stdout.message();
        assert_eq!(
            (reason(&line), &line["error"]["data"]["delivered"]),
            ("daemon_refused", &json!(delivered)),
            "{status}"
        );
    }
    // The rest of its answer is lost, but it was requested.
    bridge.ask(tool(2));
    let asked = server.next("POST");
    asked.open_stream();
    asked.event("5", &said(1).to_string());
    assert_eq!(stdout.message(), said(1));
    asked.break_off();
    server.next("GET").answer("400 Bad Request", "text/plain", "", "too late");
    let line = stdout.message();
    assert_eq!((reason(&line), &line["error"]["data"]["delivered"]), ("daemon_refused", &json!(true)));
}

#[test]
fn the_servers_own_stream_is_asked_for_again_where_it_ended() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout, stream) = server.begin();
    stream.event("g-1", &said(1).to_string());
    assert_eq!(stdout.message(), said(1));
    stream.break_off();
    let again = server.next("GET");
    assert_eq!(again.field("last-event-id"), Some("g-1"));
    again.answer("405 Method Not Allowed", JSON, "", "");
    bridge.ask(tool(1));
    let answer = server.next("POST").result(json!({}));
    assert_eq!(stdout.message(), answer);
    bridge.end_input();
    server.next("DELETE").accept();
    assert_eq!(bridge.code(), Some(0));
    assert!(!server.has_more() && bridge.stderr.text().is_empty(), "a server need not have one");
}

const UNKNOWN: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#;

#[test]
fn a_session_that_is_gone_is_begun_anew_with_the_clients_own_lines() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout, _stream) = server.begin();
    bridge.ask(tool(1));
    let waits = server.next("POST");
    bridge.ask(tool("b"));
    server.next("POST").answer("404 Not Found", JSON, "", UNKNOWN);
    let again = server.next("POST");
    assert_eq!((&again.body["method"], again.field("mcp-session-id")), (&json!("initialize"), None));
    let result = json!({"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": "2025-06-18"}});
    again.answer("200 OK", JSON, "Mcp-Session-Id: second\r\n", &result.to_string());
    let told = server.next("POST");
    assert_eq!(told.body["method"], "notifications/initialized");
    told.accept();
    server.next("GET").open_stream();
    let repeated = server.next("POST");
    let head = (repeated.field("mcp-session-id"), repeated.field("mcp-protocol-version"));
    assert_eq!(head, (Some("second"), Some("2025-06-18")));
    assert_eq!(repeated.body, tool("b"));
    let answer = repeated.result(json!({}));
    assert_eq!(stdout.message(), answer, "the second answer to initialize is not the client's");
    // What the old session may have acted on is not repeated.
    waits.break_off();
    let lost = stdout.message();
    assert_eq!(
        (&lost["id"], reason(&lost), &lost["error"]["data"]["delivered"]),
        (&json!(1), "daemon_gone", &json!(true))
    );
    bridge.end_input();
    let ends = server.next("DELETE");
    assert_eq!(ends.field("mcp-session-id"), Some("second"));
    ends.accept();
    assert_eq!(bridge.code(), Some(0));
    assert!(bridge.stderr.text().contains("a new one was begun"));
}

#[test]
fn a_session_that_is_lost_again_while_a_message_waits_for_it_is_begun_anew_once_more() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout, _stream) = server.begin();
    let renew = |server: &mut Server, id: u32| {
        let begins = server.next("POST");
        assert_eq!(begins.body["method"], "initialize");
        let result = json!({"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": "2025-11-25"}});
        begins.answer("200 OK", JSON, &format!("Mcp-Session-Id: {id}\r\n"), &result.to_string());
        server.next("POST").accept();
        server.next("GET").open_stream();
    };
    let notification = json!({"jsonrpc": "2.0", "method": "notifications/progress"});
    for (message, first) in [(tool(1), 1), (notification, 3)] {
        bridge.ask(message.clone());
        for id in [first, first + 1] {
            let lost = server.next("POST");
            assert_eq!(lost.body, message);
            lost.answer("404 Not Found", JSON, "", UNKNOWN);
            renew(&mut server, id);
        }
        let taken = server.next("POST");
        assert_eq!((&taken.body, taken.field("mcp-session-id")), (&message, Some(&*(first + 1).to_string())));
        if message["id"].is_null() {
            taken.accept();
        } else {
            let answer = taken.result(json!({}));
            assert_eq!(stdout.message(), answer);
        }
    }
    bridge.end_input();
    server.next("DELETE").accept();
    assert_eq!(bridge.code(), Some(0));
}

#[test]
fn a_session_that_cannot_be_begun_anew_ends_the_bridge() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout, _stream) = server.begin();
    bridge.ask(tool(1));
    let _waits = server.next("POST");
    bridge.ask(tool("b"));
    server.next("POST").answer("404 Not Found", JSON, "", UNKNOWN);
    server.next("POST").answer("404 Not Found", JSON, "", UNKNOWN);
    let told: Vec<Value> = stdout.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(super::ids(&told), [json!(1), json!("b")]);
    assert!(told.iter().all(|error| reason(error) == "daemon_refused"), "{told:?}");
    assert_eq!(bridge.code(), Some(1));
}

#[test]
fn a_line_that_is_no_json_gets_its_error_though_stdin_has_ended() {
    for line in ["not json\n", "{\"id\":1,"] {
        let mut server = Server::plain();
        let (mut bridge, mut stdout) = server.start();
        bridge.send(line.as_bytes());
        bridge.end_input();
        let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "Parse error"}});
        server.next("POST").answer("400 Bad Request", JSON, "", &error.to_string());
        assert_eq!(stdout.message(), error, "{line}");
        assert_eq!(bridge.code(), Some(0), "{line}");
    }
}

#[test]
fn a_listener_for_websocket_at_an_http_url_is_named_by_its_own() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout) = server.start();
    bridge.ask(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}));
    server.next("POST").answer("405 Method Not Allowed", "text/plain", "Allow: GET\r\n", "no");
    let line = stdout.message();
    assert_eq!((reason(&line), &line["error"]["data"]["delivered"]), ("daemon_refused", &json!(false)));
    let url = format!("{}/acp", server.url.replace("http:", "ws:").trim_end_matches("/mcp"));
    assert!(line["error"]["data"]["remedy"].as_str().is_some_and(|remedy| remedy.contains(&url)), "{line}");
    assert_eq!(bridge.code(), Some(1));
}

#[test]
fn a_daemon_that_has_ended_takes_its_sessions_with_it() {
    // Nothing listens on its port after its one connection was accepted.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("it is bound"));
    let (mut bridge, mut stdout) = Bridge::start(&url);
    let socket = patient(listener.accept().expect("a connection").0).0;
    // Closing it would not be enough: a process that another test starts has a copy of it until it executes its program.
    rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).expect("it listens");
    let (sender, asked) = channel();
    std::thread::spawn(move || read_requests(0, socket, &sender));
    let mut server = Server { url, arguments: Vec::new(), asked, later: Vec::new() };
    bridge.ask(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}));
    // Without a version it is no session that could be begun anew.
    let result = json!({"jsonrpc": "2.0", "id": 0, "result": {}});
    let asked = server.next("POST");
    asked.answer("200 OK", JSON, &format!("Mcp-Session-Id: {SESSION}\r\n"), &result.to_string());
    assert_eq!(stdout.message(), result);
    asked.break_off();
    bridge.ask(tool(1));
    let line = stdout.message();
    assert_eq!((line["id"].as_i64(), reason(&line)), (Some(1), "daemon_gone"));
    assert_eq!(bridge.code(), Some(1));
    assert!(bridge.stderr.text().contains("lost the connection to the daemon at http://127.0.0.1:"));
}

/// Refuses a request as a daemon that shuts down.
fn shuts_down(asked: &Asked) {
    let data = json!({ "reason": "shutting_down", "delivered": false });
    let error = json!({ "code": -32016, "message": "the daemon is shutting down", "data": data });
    let body = json!({ "jsonrpc": "2.0", "id": asked.body["id"], "error": error });
    asked.answer("503 Service Unavailable", JSON, "Retry-After: 1\r\n", &body.to_string());
}

#[test]
fn a_request_that_is_cancelled_before_it_is_sent_again_is_not_and_its_id_is_free_at_once() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout, _stream) = server.begin();
    bridge.ask(tool(1));
    let held = server.next("POST");
    // It is cancelled while the server has it, so the server is notified.
    bridge.ask(json!({"method": "notifications/cancelled", "params": {"requestId": 1}}));
    let cancelled = server.next("POST");
    assert_eq!(cancelled.body["method"], "notifications/cancelled");
    cancelled.accept();
    shuts_down(&held);
    bridge.ask(tool(1));
    let again = server.next("POST");
    assert_eq!(again.body["method"], "tools/call");
    let answer = again.result(json!({ "its": "own" }));
    assert_eq!(stdout.message(), answer, "that of the cancelled one is no answer to this");
    assert!(!server.has_more());
    // It is refused again and again until it is cancelled.
    bridge.ask(tool(2));
    shuts_down(&server.next("POST"));
    shuts_down(&server.next("POST"));
    bridge.ask(json!({"method": "notifications/cancelled", "params": {"requestId": 2}}));
    bridge.ask(tool(3));
    let next = loop {
        let next = server.next("POST");
        match next.body["id"].as_i64() {
            // It was on its way.
            Some(2) => shuts_down(&next),
            None => next.accept(),
            _ => break next,
        }
    };
    assert_eq!(next.body["id"], 3);
    let answer = next.result(json!({}));
    assert_eq!(stdout.message(), answer);
    bridge.end_input();
    server.next("DELETE").accept();
    assert_eq!((bridge.code(), stdout.rest()), (Some(0), Vec::new()));
}

#[test]
fn a_request_that_is_cancelled_while_its_session_is_begun_anew_is_not_sent_and_a_late_answer_is_not_the_next_ones() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout, _stream) = server.begin();
    bridge.ask(tool(1));
    let late = server.next("POST");
    bridge.ask(json!({"method": "notifications/cancelled", "params": {"requestId": 1}}));
    server.next("POST").accept();
    bridge.ask(tool(1));
    let own = server.next("POST");
    late.result(json!({ "is": "late" }));
    bridge.ask(tool(2));
    let lost = server.next("POST");
    let answer = own.result(json!({ "is": "own" }));
    assert_eq!(stdout.message(), answer);
    lost.answer("404 Not Found", "text/plain", "", "no such session");
    let begins = server.next("POST");
    assert_eq!(begins.body["method"], "initialize");
    bridge.ask(json!({"method": "notifications/cancelled", "params": {"requestId": 2}}));
    bridge.ask(tool(3));
    super::was_taken(&mut bridge);
    let result = json!({"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": "2025-11-25"}});
    begins.answer("200 OK", JSON, &format!("Mcp-Session-Id: {SESSION}\r\n"), &result.to_string());
    let initialized = server.next("POST");
    assert_eq!(initialized.body["method"], "notifications/initialized");
    initialized.accept();
    let next = server.next("POST");
    assert_eq!(next.body["id"], 3, "neither the cancelled one nor its cancellation");
    let answer = next.result(json!({}));
    assert_eq!(stdout.message(), answer);
    bridge.end_input();
    server.next("DELETE").accept();
    assert_eq!((bridge.code(), stdout.rest()), (Some(0), Vec::new()));
}

#[test]
fn an_initialize_that_a_server_has_no_room_for_yet_is_repeated_and_begins_the_session() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout) = server.start();
    bridge.ask(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}));
    bridge.ask(tool(1));
    for _ in 0..2 {
        let asked = server.next("POST");
        assert_eq!(asked.body["method"], "initialize");
        let error = json!({ "code": -32000, "message": "an operator has paused this listener" });
        let body = json!({ "jsonrpc": "2.0", "id": 0, "error": error });
        asked.answer("503 Service Unavailable", JSON, "Retry-After: 1\r\n", &body.to_string());
    }
    let asked = server.next("POST");
    let result = json!({"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": "2025-11-25"}});
    asked.answer("200 OK", JSON, &format!("Mcp-Session-Id: {SESSION}\r\n"), &result.to_string());
    assert_eq!(stdout.message(), result);
    let asked = server.next("POST");
    assert_eq!((&asked.body["id"], asked.field("mcp-session-id")), (&json!(1), Some(SESSION)));
    let answer = asked.result(json!({}));
    assert_eq!(stdout.message(), answer);
    bridge.end_input();
    server.next("DELETE").accept();
    assert_eq!(bridge.code(), Some(0));
}

/// A client of 2026-07-28 whose server was there once, and now nothing listens at its address.
fn left_alone() -> (Bridge, Reader, Server, TcpListener) {
    // A port that was asked for by its number stays that of its socket, whatever becomes of that.
    let (address, _keeps_it) = super::unused();
    let listener = TcpListener::bind(address).expect("its port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("it is bound"));
    let (mut bridge, mut stdout) = Bridge::start(&url);
    let socket = patient(listener.accept().expect("a connection").0).0;
    // Closing it would not be enough: a process that another test starts has a copy of it until it executes its program.
    rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).expect("it listens");
    let (sender, asked) = channel();
    std::thread::spawn(move || read_requests(0, socket, &sender));
    let mut server = Server { url, arguments: Vec::new(), asked, later: Vec::new() };
    bridge.ask(modern(json!(0), "tools/list", json!({})));
    let asked = server.next("POST");
    let answer = asked.result(json!({}));
    assert_eq!(stdout.message(), answer);
    asked.break_off();
    (bridge, stdout, server, listener)
}

#[test]
fn what_a_modern_client_asks_while_the_daemon_is_away_waits_for_it_in_order() {
    let (mut bridge, mut stdout, mut server, listener) = left_alone();
    for id in 1..5 {
        bridge.ask(modern(json!(id), "tools/call", json!({"name": "t"})));
    }
    for id in [1, 3] {
        bridge.ask(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
    }
    bridge.ask(modern(json!(1), "tools/call", json!({"name": "again"})));
    super::was_taken(&mut bridge);
    // A test can wait only a limited time for something not to happen.
    assert!(
        !super::waiting::comes_true(Duration::from_millis(500), || stdout.has_more()),
        "each gets no error at once"
    );
    rustix::net::listen(&listener, 16).expect("it is bound");
    let (sender, asked) = channel();
    server.asked = asked;
    std::thread::spawn(move || accept_all(&listener, &sender));
    let mut all: Vec<Asked> = (0..3).map(|_| server.next("POST")).collect();
    all.sort_by_key(|asked| asked.connection);
    assert_eq!(
        super::ids(&all.iter().map(|asked| asked.body.clone()).collect::<Vec<_>>()),
        [json!(2), json!(4), json!(1)]
    );
    assert_eq!(all[2].field("mcp-name"), Some("again"));
    for asked in &all {
        let answer = asked.result(json!({}));
        assert_eq!(stdout.message(), answer);
    }
    bridge.end_input();
    assert_eq!((bridge.code(), stdout.rest()), (Some(0), Vec::new()));
    assert!(!server.has_more(), "what was cancelled is not sent");
}

#[test]
#[ignore = "scripts/test slow"]
fn what_a_modern_client_asks_of_a_daemon_that_stays_away_gets_its_error_after_half_a_minute() {
    let (mut bridge, mut stdout, _server, _listener) = left_alone();
    let begin = Instant::now();
    for id in 1..20 {
        bridge.ask(modern(json!(id), "tools/call", json!({"name": "t"})));
    }
    for id in 1..20 {
        let error = stdout.message();
        assert_eq!((&error["id"], reason(&error)), (&json!(id), "daemon_unreachable"));
        assert_eq!(error["error"]["data"]["delivered"], false);
    }
    assert!(begin.elapsed() > Duration::from_secs(29));
    bridge.end_input();
    assert_eq!((bridge.code(), stdout.rest()), (Some(0), Vec::new()));
}

#[test]
fn a_request_that_a_server_or_proxy_has_no_room_for_yet_is_repeated_if_no_worker_has_it() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout) = server.start();
    bridge.ask(modern(json!(1), "tools/call", json!({"name": "t"})));
    for _ in 0..2 {
        server.next("POST").answer("503 Service Unavailable", "text/html", "Retry-After: 1\r\n", "<html>");
    }
    let answer = server.next("POST").result(json!({}));
    assert_eq!(stdout.message(), answer);
    for delivered in [true, false] {
        bridge.ask(modern(json!(2), "tools/call", json!({"name": "t"})));
        let error = json!({ "code": -32019, "message": "no room", "data": { "delivered": delivered } });
        let body = json!({ "jsonrpc": "2.0", "id": 2, "error": error });
        server.next("POST").answer("503 Service Unavailable", JSON, "Retry-After: 1\r\n", &body.to_string());
        let answer = if delivered { body } else { server.next("POST").result(json!({})) };
        assert_eq!(stdout.message(), answer);
    }
    bridge.end_input();
    assert_eq!((bridge.code(), stdout.rest()), (Some(0), Vec::new()));
    assert!(!server.has_more());
}

#[test]
fn a_server_that_refuses_everything_ends_the_bridge() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("token");
    std::fs::write(&path, "s3cret-of-tests\n").expect("the disk has room");
    let mut server = Server::plain();
    server.arguments = vec!["--token-file".to_owned(), path.display().to_string()];
    let (mut bridge, mut stdout) = server.start();
    bridge.ask(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}));
    let asked = server.next("POST");
    assert_eq!(asked.field("authorization"), Some("Bearer s3cret-of-tests"));
    asked.answer("401 Unauthorized", JSON, "", "{\"message\":\"this token is not valid\"}");
    let line = stdout.message();
    assert_eq!(
        (line["id"].as_i64(), reason(&line), &line["error"]["code"]),
        (Some(0), "daemon_refused", &json!(-32018))
    );
    assert_eq!(bridge.code(), Some(1));
    let log = bridge.stderr.text();
    assert!(log.contains("cannot use http://") && log.contains("it answers 401: this token"), "{log}");
    assert!(log.contains("does not know the token of --token-file") && !log.contains("s3cret"), "{log}");
}

#[test]
fn a_modern_client_learns_that_a_server_is_of_the_older_era_and_falls_back() {
    let mut server = Server::plain();
    let (mut bridge, mut stdout) = server.start();
    bridge.ask(modern(json!("probe"), "server/discover", json!({})));
    server.next("POST").answer("400 Bad Request", "text/plain", "", "No valid session ID provided");
    let line = stdout.message();
    assert_eq!((line["id"].as_str(), reason(&line)), (Some("probe"), "daemon_refused"));
    server.initialize(&mut bridge, &mut stdout);
}

#[test]
fn an_unreachable_daemon_is_an_error_for_each_request() {
    let (free, _keeps_it) = super::unused();
    let (mut bridge, mut stdout) = Bridge::start(&format!("http://{free}/mcp"));
    bridge.ask(tool(1));
    let line = stdout.message();
    assert_eq!((line["id"].as_i64(), reason(&line)), (Some(1), "daemon_unreachable"));
    bridge.end_input();
    assert_eq!(bridge.code(), Some(1));
    assert!(bridge.stderr.text().contains("\"http\" in listeners[]"));
}

#[test]
fn a_long_message_and_a_long_answer_pass_whole() {
    for mut server in Server::both() {
        let (mut bridge, mut stdout, _stream) = server.begin();
        let text = "é{}[]\\\"".repeat(200_000);
        let mut long = tool(1);
        long["params"]["arguments"] = json!({ "text": text });
        let sent = long.clone();
        let mut stdin = bridge.stdin.take().expect("stdin is open");
        let editor = std::thread::spawn(move || stdin.write_all(format!("{sent}\n").as_bytes()).map(|()| stdin));
        let asked = server.next("POST");
        assert!(asked.body == long, "what the client says arrives unchanged");
        let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {"text": text}});
        let (body, socket) = (answer.to_string(), asked);
        std::thread::spawn(move || socket.answer("200 OK", JSON, "", &body));
        assert!(stdout.message() == answer, "what the server says arrives unchanged");
        drop(editor.join().expect("no panic").expect("the client said it all"));
    }
}

#[test]
fn a_client_talks_to_the_real_daemon_by_http() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stdio_bus"));
    command.args(["--http", "127.0.0.1:0"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut real = Bridge::from(command);
    let url = loop {
        let log = String::from_utf8_lossy(&real.stderr.seen).into_owned();
        match log.split_once("listening on http://") {
            Some((_, rest)) if rest.contains("/mcp") => {
                break format!("http://{}/mcp/echo", rest.split('/').next().expect("an address"));
            }
            _ => assert!(!real.stderr.ended, "the daemon does not listen: {log}"),
        }
        real.stderr.more();
    };
    let (mut bridge, mut stdout) = Bridge::start(&url);
    let params =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    bridge.ask(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}));
    assert_eq!(stdout.message()["result"]["method"], "initialize");
    bridge.ask(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    for id in 1..=40 {
        bridge.ask(tool(id));
    }
    bridge.end_input();
    let mut ids: Vec<i64> = (1..=40).filter_map(|_| stdout.message()["id"].as_i64()).collect();
    ids.sort();
    assert_eq!(ids, (1..=40).collect::<Vec<_>>());
    assert_eq!(bridge.code(), Some(0));
    assert_eq!((stdout.text(), bridge.stderr.text()), (String::new(), String::new()));
}
