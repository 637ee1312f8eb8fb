//! The bridge and a WebSocket served by tungstenite: directly, and behind a TLS proxy, like a load balancer.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tungstenite::handshake::server::{Callback, ErrorResponse, Request, Response};
use tungstenite::protocol::frame::CloseFrame;
use tungstenite::protocol::{Role, WebSocketConfig};
use tungstenite::{Error, Message, WebSocket};

use super::steady::Steady;
use super::{Bridge, Reader, fill, filled, has_logged, ids, lines, patient, ready, resident_kilobytes};

/// A daemon played by a test.
struct Daemon {
    listener: TcpListener,
    /// The URL for the bridge.
    url: String,
    arguments: Vec<String>,
}

type Peer = WebSocket<Steady<TcpStream>>;

/// Gives connections an id.
struct Named;

impl Callback for Named {
    fn on_request(self, _: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
        response.headers_mut().insert("Acp-Connection-Id", "c-17".parse().expect("a value"));
        Ok(response)
    }
}

impl Daemon {
    fn plain() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("ws://{}/acp", listener.local_addr().expect("it is bound"));
        Self { listener, url, arguments: Vec::new() }
    }

    #[cfg(feature = "tls")]
    fn behind_tls() -> Self {
        let plain = Self::plain();
        let front = super::tls::front(plain.listener.local_addr().expect("it is bound"));
        let url = format!("wss://localhost:{}/acp", front.port());
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

    /// The next connection, before any byte was read.
    fn socket(&self) -> Steady<TcpStream> {
        ready(&self.listener, libc::POLLIN);
        patient(self.listener.accept().expect("a connection").0)
    }

    fn accept(&self) -> Peer {
        let config = WebSocketConfig::default().max_frame_size(None).max_message_size(None);
        tungstenite::accept_hdr_with_config(self.socket(), Named, Some(config))
            .expect("the bridge's handshake is right")
    }

    /// A connected bridge, its stdout, and the daemon's side.
    fn bridge(&self) -> (Bridge, Reader, Peer) {
        let (bridge, stdout) = self.start();
        (bridge, stdout, self.accept())
    }

    /// Answers the handshake with these bytes, and returns the request.
    fn answer(&self, answer: &str) -> String {
        let mut socket = self.socket();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).expect("the bridge asks");
            asked.push(byte[0]);
        }
        socket.write_all(answer.as_bytes()).expect("the bridge reads");
        String::from_utf8(asked).expect("ASCII")
    }

    /// Whether another connection is pending.
    fn has_another(&self) -> bool {
        self.listener.set_nonblocking(true).expect("it is open");
        self.listener.accept().is_ok()
    }
}

/// The next text message of the bridge. Tungstenite answers control frames.
fn text(peer: &mut Peer) -> String {
    loop {
        match peer.read().expect("the bridge says something") {
            Message::Text(text) => return text.to_string(),
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn say(peer: &mut Peer, text: &str) {
    peer.send(Message::text(text)).expect("the bridge reads");
}

fn close(peer: &mut Peer, code: u16, reason: &str) {
    peer.close(Some(CloseFrame { code: code.into(), reason: reason.into() })).expect("the bridge reads");
}

/// Reads to the end, and returns the code of the bridge's close frame, if there was one.
fn ending(peer: &mut Peer) -> Option<u16> {
    loop {
        match peer.read() {
            Ok(Message::Close(frame)) => return frame.map(|frame| frame.code.into()),
            Ok(_) => {}
            Err(Error::ConnectionClosed | Error::AlreadyClosed) => return None,
            Err(Error::Io(error)) if error.kind() != ErrorKind::WouldBlock => return None,
            Err(Error::Protocol(_)) => return None,
            Err(error) => panic!("{error}"),
        }
    }
}

fn reason(message: &Value) -> &str {
    message["error"]["data"]["reason"].as_str().expect("an error with a reason")
}

fn messages(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

#[test]
fn a_line_is_a_message_and_a_message_is_a_line() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        bridge.send(b"{\"id\":1,\"method\":\"m\"}\n\n\r\n{\"id\":2,\"method\":\"\xc3\xa9\"}\r\n {\"half\":");
        assert_eq!(text(&mut peer), r#"{"id":1,"method":"m"}"#);
        assert_eq!(text(&mut peer), "{\"id\":2,\"method\":\"é\"}\r");
        bridge.send(b"1}\n");
        assert_eq!(text(&mut peer), "{\"half\":1}");
        say(&mut peer, "{\"id\":1,\n\"result\":{}}");
        assert_eq!(stdout.exactly(22), b"{\"id\":1,\t\"result\":{}}\n");
        peer.send(Message::binary(&b"{}"[..])).expect("the bridge reads");
        say(&mut peer, r#"{"id":2,"result":"é"}"#);
        assert_eq!(stdout.message(), json!({"id": 2, "result": "é"}));
        close(&mut peer, 1000, "");
        assert_eq!(ending(&mut peer), Some(1000), "it is answered with the same code");
        assert_eq!(bridge.code(), Some(1));
        assert_eq!(stdout.rest(), b"");
        let log = bridge.stderr.text();
        assert!(log.contains("a binary message of 2 bytes is left out"), "{log}");
        assert!(log.contains(&daemon.url) && log.contains("(connection c-17)") && log.contains("1000 (done)"), "{log}");
    }
}

#[test]
fn megabytes_pass_in_both_directions_at_once() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        let big = format!("{{\"big\":\"{}\"}}", "b".repeat(1 << 20));
        let generated = |seed| String::from_utf8(lines(4 << 20, seed)).expect("UTF-8");
        let (up, down) = (format!("{}{big}\n", generated(1)), format!("{}{big}\n", generated(2)));
        let blank = |line: &&str| !line.trim().is_empty();
        let (expected_up, said) = (up.clone(), down.clone());
        let copy = Steady(peer.get_ref().0.try_clone().expect("a descriptor"));
        let sender = std::thread::spawn(move || {
            let mut peer = WebSocket::from_raw_socket(copy, Role::Server, None);
            for line in said.split('\n').filter(blank) {
                peer.send(Message::text(line)).expect("the bridge reads");
            }
        });
        let mut stdin = bridge.stdin.take().expect("stdin is open");
        let editor = std::thread::spawn(move || stdin.write_all(up.as_bytes()).map(|()| stdin));
        let reader = std::thread::spawn(move || {
            for line in expected_up.split('\n').filter(blank) {
                assert!(text(&mut peer) == line, "a message differs from its line");
            }
            peer
        });
        let expected: Vec<u8> =
            down.split('\n').filter(blank).flat_map(|line| format!("{line}\n").into_bytes()).collect();
        let expected = String::from_utf8(expected).expect("UTF-8").replace('\r', "\t");
        assert!(stdout.exactly(expected.len()) == expected.as_bytes(), "what the daemon said arrives");
        sender.join().expect("the daemon said it all");
        let peer = reader.join().expect("the daemon has read it all");
        drop(editor.join().expect("no panic").expect("the editor said it all"));
        drop(peer);
        assert_eq!(bridge.code(), Some(1), "none of the requests was answered");
    }
}

#[test]
fn pings_are_answered_between_the_fragments_of_a_message() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        bridge.send(b"{\"id\":1,\"method\":\"m\"}\n");
        assert_eq!(text(&mut peer), r#"{"id":1,"method":"m"}"#);
        for bytes in [&b"\x01\x05{\"id\""[..], b"\x89\x02hi", b"\x00\x00", b"\x00\x0b:1,\"result\"", b"\x80\x04:{}}"] {
            peer.get_mut().write_all(bytes).expect("the bridge reads");
        }
        assert_eq!(stdout.message(), json!({"id": 1, "result": {}}));
        match peer.read() {
            Ok(Message::Pong(payload)) => assert_eq!(&payload[..], b"hi"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn after_the_end_of_stdin_a_websocket_is_closed_once_all_is_answered() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        bridge.send(b"{\"id\":1,\"method\":\"m\"}\n{\"id\":2,\"method\":\"no newline\"}");
        bridge.end_input();
        assert_eq!(text(&mut peer), r#"{"id":1,"method":"m"}"#);
        assert_eq!(text(&mut peer), r#"{"id":2,"method":"no newline"}"#);
        say(&mut peer, r#"{"id":2,"result":2}"#);
        assert_eq!(stdout.message(), json!({"id": 2, "result": 2}));
        say(&mut peer, r#"{"method":"update"}"#);
        say(&mut peer, r#"{"id":1,"result":1}"#);
        assert_eq!(stdout.message()["method"], "update");
        assert_eq!(stdout.message(), json!({"id": 1, "result": 1}));
        assert_eq!(ending(&mut peer), Some(1000));
        assert_eq!(ending(&mut peer), None);
        drop(peer);
        assert_eq!(bridge.code(), Some(0));
        assert_eq!(bridge.stderr.text(), "");
    }
}

#[test]
fn half_a_message_at_the_end_of_stdin_costs_no_other_its_answer() {
    let daemon = Daemon::plain();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    bridge.send(b"{\"id\":1,\"method\":\"m\"}\n{\"id\":2,\"meth");
    bridge.end_input();
    assert_eq!(text(&mut peer), r#"{"id":1,"method":"m"}"#);
    say(&mut peer, r#"{"id":1,"result":1}"#);
    assert_eq!(stdout.message(), json!({"id": 1, "result": 1}));
    assert_eq!(ending(&mut peer), Some(1000), "nothing else was sent");
    drop(peer);
    assert_eq!(bridge.code(), Some(0));
    assert!(bridge.stderr.text().contains("stdin has ended within a line; 13 bytes of it are dropped"));
}

#[test]
fn each_pending_request_gets_the_reason_why_the_daemon_closed() {
    let cases = [
        (1001, "draining", "1001 (going away): draining", "shuts down"),
        (1008, "token withdrawn", "1008 (not allowed): token withdrawn", "does not allow"),
        (1011, "own_worker_ended", "1011 (internal error): own_worker_ended", "the agent behind it has ended"),
        (1013, "", "1013 (try again later)", "no room now"),
        (4321, "\u{1b}[31m", "4321: \u{fffd}[31m", "its log says why"),
    ];
    for (code, word, told, remedy) in cases {
        let daemon = Daemon::plain();
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        bridge.send(b"{\"id\":1,\"method\":\"m\"}\n{\"id\":\"b\",\"method\":\"m\"}\n");
        assert_eq!((text(&mut peer).len(), text(&mut peer).len()), (21, 23));
        say(&mut peer, r#"{"method":"the last word"}"#);
        close(&mut peer, code, word);
        assert_eq!(ending(&mut peer), Some(code));
        let messages = messages(&stdout.text());
        assert_eq!(messages[0]["method"], "the last word");
        assert_eq!(ids(&messages[1..]), [json!(1), json!("b")]);
        for message in &messages[1..] {
            let (expected, what) = if code == 1001 { ("daemon_gone", "lost") } else { ("daemon_closed", "closed") };
            assert_eq!(reason(message), expected);
            let said = message["error"]["message"].as_str().expect("a message");
            let what = format!("the connection to the daemon was {what}: ");
            assert!(said.starts_with(&what) && said.ends_with(told), "{said}");
        }
        assert_eq!(bridge.code(), Some(1));
        let log = bridge.stderr.text();
        assert!(log.contains(told) && log.contains("2 requests were not answered") && log.contains(remedy), "{log}");
        assert!(!daemon.has_another(), "it does not connect again by itself");
    }
}

#[test]
fn what_a_daemon_that_shuts_down_has_not_answered_when_it_closes_is_sent_again() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        let ask = |id: u32| format!("{{\"id\":{id},\"method\":\"m\"}}");
        let prompt = r#"{"id":3,"method":"session/prompt","params":{"sessionId":"s"}}"#;
        let cancel = r#"{"method":"session/cancel","params":{"sessionId":"s"}}"#;
        for request in [ask(1), prompt.to_owned(), cancel.to_owned(), ask(2)] {
            bridge.send(format!("{request}\n").as_bytes());
            assert_eq!(text(&mut peer), request);
        }
        // It has answered all that its workers got.
        say(&mut peer, r#"{"id":1,"result":{}}"#);
        assert_eq!(stdout.message()["id"], 1);
        close(&mut peer, 1001, "shutting_down");
        assert_eq!(ending(&mut peer), Some(1001));
        assert_eq!(stdout.message(), json!({ "jsonrpc": "2.0", "id": 3, "result": { "stopReason": "cancelled" } }));
        let mut second = daemon.accept();
        assert_eq!(text(&mut second), ask(2));
        say(&mut second, r#"{"id":2,"result":{}}"#);
        assert_eq!(stdout.message()["id"], 2);
        bridge.end_input();
        assert_eq!(ending(&mut second), Some(1000));
        assert_eq!((bridge.code(), stdout.rest()), (Some(0), Vec::new()));
    }
}

#[test]
fn a_daemon_that_dies_within_a_message_leaves_an_error_for_each_request() {
    for daemon in Daemon::both() {
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        bridge.send(b"{\"id\":1,\"method\":\"m\"}\n");
        text(&mut peer);
        peer.get_mut().write_all(b"\x81\x40{\"id\":1,\"result\":\"unfinis").expect("the bridge reads");
        assert_eq!(stdout.exactly(25), b"{\"id\":1,\"result\":\"unfinis");
        drop(peer);
        let rest = stdout.text();
        let messages = messages(rest.trim_start_matches('\n'));
        assert_eq!((ids(&messages), reason(&messages[0])), (vec![json!(1)], "daemon_gone"));
        assert_eq!(bridge.code(), Some(1));
        assert!(bridge.stderr.text().contains("1 request was not answered"));
    }
}

#[test]
fn a_line_that_is_too_long_for_the_daemon_is_reported_to_its_sender() {
    // Complete, and while it is still being sent.
    for is_whole in [true, false] {
        let daemon = Daemon::plain();
        let (mut bridge, mut stdout, mut peer) = daemon.bridge();
        let long = "x".repeat(200_000);
        let end = if is_whole { "\"}\n{\"id\":3,\"method\":\"m\"}\n" } else { "" };
        let lines = format!("{{\"id\":1,\"method\":\"m\"}}\n{{\"id\":2,\"method\":\"m\",\"params\":\"{long}{end}");
        let mut stdin = bridge.stdin.take().expect("stdin is open");
        // Sockets may hold little, and the bridge reads no more once it is closed.
        let editor = std::thread::spawn(move || {
            let _ = stdin.write_all(lines.as_bytes());
            stdin
        });
        text(&mut peer);
        if is_whole {
            text(&mut peer);
        } else {
            ready(peer.get_ref(), libc::POLLIN);
        }
        close(&mut peer, 1009, "longer than 100000 bytes");
        let messages = messages(&stdout.text());
        let others: &[Value] = if is_whole { &[json!(1), json!(3)] } else { &[json!(1)] };
        assert_eq!(messages[0]["id"], 2);
        assert_eq!((&messages[0]["error"]["code"], reason(&messages[0])), (&json!(-32600), "client_line_too_long"));
        assert_eq!(messages[0]["error"]["data"]["delivered"], false);
        assert_eq!(ids(&messages[1..]), others);
        assert!(messages[1..].iter().all(|message| reason(message) == "daemon_closed"));
        assert_eq!(bridge.code(), Some(1));
        let log = bridge.stderr.text();
        assert!(log.contains("longer than 100000 bytes; a line of ") && log.contains("max_input_buffer"), "{log}");
        drop(editor.join().expect("no panic"));
    }
    let daemon = Daemon::plain();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    bridge.send(b"{\"method\":\"a notification\"}\n");
    text(&mut peer);
    close(&mut peer, 1009, "");
    let error = stdout.message();
    assert_eq!((&error["id"], reason(&error)), (&Value::Null, "client_line_too_long"));
    assert_eq!(bridge.code(), Some(1));
}

#[test]
fn a_prompt_that_waits_is_cancelled_over_a_websocket_too() {
    let daemon = Daemon::plain();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    let prompt = r#"{"id":3,"method":"session/prompt","params":{"sessionId":"s"}}"#;
    bridge.send(prompt.as_bytes());
    bridge.end_input();
    assert_eq!(text(&mut peer), prompt, "it needs no newline");
    assert_eq!(text(&mut peer), r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}"#);
    say(&mut peer, r#"{"id":3,"result":{}}"#);
    assert_eq!(ending(&mut peer), Some(1000));
    // The answer to the close, which the bridge waits for, is sent with the next read.
    assert_eq!(ending(&mut peer), None);
    assert_eq!(stdout.text(), "{\"id\":3,\"result\":{}}\n");
    assert_eq!(bridge.code(), Some(0));
}

#[test]
fn a_daemon_that_breaks_the_protocol_is_notified() {
    let daemon = Daemon::plain();
    let (mut bridge, mut stdout, mut peer) = daemon.bridge();
    bridge.send(b"{\"id\":1,\"method\":\"m\"}\n");
    text(&mut peer);
    peer.get_mut().write_all(b"\x81\x82abcd\0\0").expect("the bridge reads");
    assert_eq!(ending(&mut peer), Some(1002));
    assert_eq!(reason(&stdout.message()), "daemon_closed");
    assert_eq!(bridge.code(), Some(1));
    assert!(bridge.stderr.text().contains("a server's frame has a mask"));
}

#[test]
fn a_request_gets_an_error_though_the_server_closes_together_with_its_101() {
    for close in [&b"\x88\x02\x03\xf3"[..], b""] {
        let daemon = Daemon::plain();
        let (mut bridge, mut stdout) = daemon.start();
        let mut socket = daemon.socket();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).expect("the bridge asks");
            asked.push(byte[0]);
        }
        let asked = String::from_utf8(asked).expect("ASCII");
        let key = asked.split_once("Sec-WebSocket-Key: ").and_then(|(_, rest)| rest.split_once("\r\n"));
        let accept = tungstenite::handshake::derive_accept_key(key.expect("a key").0.as_bytes());
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        socket.write_all(&[head.as_bytes(), close].concat()).expect("the bridge reads");
        drop(socket);
        bridge.send(b"{\"id\":1,\"method\":\"initialize\"}\n");
        let error = stdout.message();
        assert_eq!(error["id"], 1);
        assert_eq!(reason(&error), if close.is_empty() { "daemon_gone" } else { "daemon_closed" });
        assert_eq!(bridge.code(), Some(1));
    }
}

#[test]
fn a_flood_of_pings_is_throttled_and_later_messages_arrive() {
    let daemon = Daemon::plain();
    let (_bridge, mut stdout, mut peer) = daemon.bridge();
    let flood = [&b"\x89\x7d"[..], &[b'x'; 125]].concat().repeat(24 << 10);
    let began = std::time::Instant::now();
    // Its pongs are not read: there may be one for each read of the bridge.
    peer.get_mut().write_all(&flood).expect("the bridge reads");
    say(&mut peer, r#"{"method":"m"}"#);
    assert_eq!(stdout.message()["method"], "m");
    // Each read but the first few is delayed, however fast or slow the machine is.
    let reads = flood.len() / (64 * 1024);
    let least = std::time::Duration::from_millis(50) * (reads as u32 - 20);
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
}

/// A file with a token and the arguments that name it.
fn token_file(token: &str) -> (tempfile::TempDir, Vec<String>) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("token");
    std::fs::write(&path, token).expect("the disk has room");
    let arguments = vec!["--token-file".to_owned(), path.display().to_string()];
    (directory, arguments)
}

const SECRET: &str = "s3cret-of-tests";

#[test]
fn a_token_is_sent_to_the_daemon_and_nowhere_else() {
    for daemon in Daemon::both() {
        let (_directory, arguments) = token_file(&format!("{SECRET}\n"));
        let daemon = Daemon { arguments: [daemon.arguments.clone(), arguments].concat(), ..daemon };
        let (mut bridge, mut stdout) = daemon.start();
        let asked = daemon.answer(
            "HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length: 58\r\n\r\n\
             {\"status\":401,\"error\":\"token\",\"message\":\"unknown token\"}  ",
        );
        assert!(asked.starts_with("GET /acp HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains(&format!("\r\nAuthorization: Bearer {SECRET}\r\n")), "{asked}");
        bridge.send(b"{\"id\":1,\"method\":\"initialize\"}\n");
        let error = stdout.message();
        assert_eq!((&error["id"], reason(&error)), (&json!(1), "daemon_refused"));
        assert_eq!(error["error"]["message"], "the daemon refuses the connection: it answers 401: unknown token");
        let arguments = std::fs::read(format!("/proc/{}/cmdline", bridge.child.id())).expect("it runs");
        assert!(!String::from_utf8_lossy(&arguments).contains(SECRET));
        bridge.end_input();
        assert_eq!(bridge.code(), Some(1));
        let log = bridge.stderr.text();
        assert!(log.contains("401: unknown token") && log.contains("does not know the token"), "{log}");
        assert!(!log.contains(SECRET), "{log}");
        assert!(!daemon.has_another(), "a wrong token is not tried again");
    }
}

#[test]
fn a_token_file_without_a_token_is_reported_before_anything_is_sent() {
    let daemon = Daemon::plain();
    for (content, why) in
        [("", "must have one token"), ("two words", "must have one token"), ("\u{e9}", "must have one")]
    {
        let (_directory, arguments) = token_file(content);
        let daemon =
            Daemon { listener: daemon.listener.try_clone().expect("a descriptor"), url: daemon.url.clone(), arguments };
        let (mut bridge, mut stdout) = daemon.start();
        bridge.send(b"{\"id\":1,\"method\":\"initialize\"}\n");
        assert_eq!(reason(&stdout.message()), "daemon_unreachable");
        bridge.end_input();
        assert_eq!(bridge.code(), Some(1));
        let log = bridge.stderr.text();
        assert!(log.contains("--token-file /") && log.contains(why), "{log}");
        assert!(!daemon.has_another());
    }
}

#[test]
fn each_refusal_is_reported_with_a_remedy() {
    let json = |status: &str, message: &str| {
        let body = format!("{{\"status\":0,\"error\":\"x\",\"message\":\"{message}\"}}");
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    for (answer, told, advice) in [
        (json("401 Unauthorized", "a token is needed"), "401: a token is needed", "--token-file FILE"),
        (json("403 Forbidden", "not from there"), "403: not from there", "may not connect here"),
        (json("404 Not Found", "no such path"), "404: no such path", "the usual one; check the port"),
        (
            "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n".to_owned(),
            "503: Service Unavailable",
            "again in 7 s",
        ),
        (
            "HTTP/1.1 308 Permanent Redirect\r\nLocation: https://elsewhere/acp\r\nContent-Length: 0\r\n\r\n"
                .to_owned(),
            "308: Permanent Redirect",
            "ask https://elsewhere/acp",
        ),
    ] {
        let daemon = Daemon::plain();
        let (mut bridge, mut stdout) = daemon.start();
        daemon.answer(&answer);
        bridge.send(b"{\"id\":1,\"method\":\"initialize\"}\n");
        let error = stdout.message();
        assert_eq!(reason(&error), "daemon_refused");
        assert!(error["error"]["message"].as_str().expect("a message").ends_with(told), "{error}");
        bridge.end_input();
        assert_eq!(bridge.code(), Some(1));
        let log = bridge.stderr.text();
        assert!(log.contains(told) && log.contains(advice), "{log}");
    }
}

#[test]
fn a_server_without_websocket_is_reported_as_such() {
    for (answer, why) in [
        ("{\"jsonrpc\":\"2.0\",\"id\":null}\n", "not HTTP"),
        ("", "closed without an answer"),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            "Sec-WebSocket-Accept",
        ),
    ] {
        let daemon = Daemon::plain();
        let (mut bridge, mut stdout) = daemon.start();
        daemon.answer(answer);
        bridge.send(b"{\"id\":1,\"method\":\"initialize\"}\n");
        let error = stdout.message();
        assert_eq!(reason(&error), "daemon_unreachable");
        assert!(error["error"]["message"].as_str().expect("a message").contains(why), "{error}");
        bridge.end_input();
        assert_eq!(bridge.code(), Some(1));
        assert!(bridge.stderr.text().contains("something else answers there"));
    }
}

#[test]
fn a_daemon_that_reads_slowly_slows_the_editor_of_a_websocket_too_and_pings_are_answered_meanwhile() {
    let daemon = Daemon::plain();
    let (mut bridge, _stdout, mut peer) = daemon.bridge();
    let stdin = bridge.stdin.take().expect("stdin is open");
    let writer = std::fs::File::from(std::os::fd::OwnedFd::from(stdin));
    let taken = fill(&writer);
    assert!(resident_kilobytes(&bridge) < 24 * 1024, "{} kB", resident_kilobytes(&bridge));
    peer.send(Message::Ping(b"alive?".to_vec().into())).expect("the bridge reads");
    // An incomplete last line is not sent.
    let (sent, whole) = filled(taken);
    let sent = std::str::from_utf8(&sent[..whole]).expect("text");
    let mut pongs = 0;
    for line in sent.split('\n').filter(|line| !line.trim().is_empty()) {
        loop {
            match peer.read().expect("the bridge says something") {
                Message::Pong(payload) => {
                    assert_eq!(&payload[..], b"alive?");
                    pongs += 1;
                }
                Message::Text(text) => {
                    assert!(*text == *line.trim_start(), "a message differs from its line");
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    if pongs == 0 {
        assert!(matches!(peer.read(), Ok(Message::Pong(_))));
    }
    // Only now: what closes need answer no pings.
    drop(writer);
}

#[test]
fn an_editor_that_dies_ends_its_websocket_although_a_request_is_pending() {
    for daemon in Daemon::both() {
        let mut command = Bridge::command(&daemon.url);
        command.args(&daemon.arguments);
        let mut bridge = Bridge::from(command);
        let mut peer = daemon.accept();
        bridge.send(b"{\"id\":1,\"method\":\"session/prompt\"}\n");
        drop(bridge.child.stdout.take());
        bridge.end_input();
        assert_eq!(bridge.code(), Some(0));
        assert_eq!(ending(&mut peer), None, "it is not closed cleanly: an unwanted answer is outstanding");
    }
}

#[test]
fn an_editor_that_stops_reading_closes_a_websocket_with_nothing_pending() {
    let daemon = Daemon::plain();
    let mut bridge = Bridge::from(Bridge::command(&daemon.url));
    let mut peer = daemon.accept();
    drop(bridge.child.stdout.take());
    // Until other tests have spawned their processes, a copy of the pipe's other end may still be open there.
    let copy = Steady(peer.get_ref().0.try_clone().expect("a descriptor"));
    let sender = std::thread::spawn(move || {
        let mut peer = WebSocket::from_raw_socket(copy, Role::Server, None);
        while peer.send(Message::text("{\"method\":\"m\"}")).is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    });
    assert_eq!(ending(&mut peer), Some(1000));
    drop(peer);
    sender.join().expect("it ends with the connection");
    assert_eq!(bridge.code(), Some(0));
    assert_eq!(bridge.stderr.text(), "");
}

#[cfg(not(feature = "tls"))]
#[test]
fn without_tls_a_url_that_needs_it_is_refused_at_once() {
    let mut bridge = Bridge::from(Bridge::command("wss://localhost/acp"));
    assert_eq!(bridge.code(), Some(2));
    assert!(bridge.stderr.text().contains("--features tls"));
}

#[test]
fn an_editor_talks_to_the_real_daemon_over_websocket_and_learns_which_line_is_too_long() {
    let token = "a-token-of-the-tests";
    let (directory, arguments) = token_file(token);
    let path = |name: &str| directory.path().join(name).display().to_string();
    let program = env!("CARGO_BIN_EXE_stdio_bus");
    let config = json!({
        "pools": [{"id": "echo", "command": program, "args": ["worker", "echo"], "instances": 1}],
        "listeners": [{"ws": "127.0.0.1:0", "tokens_file": path("tokens")}],
        "limits": {"max_input_buffer": 65_536}
    });
    std::fs::write(path("tokens"), format!("tester:{token}\n")).expect("the disk has room");
    std::fs::write(path("bus.json"), config.to_string()).expect("the disk has room");
    let mut command = Command::new(program);
    command.args(["--config", &path("bus.json")]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut real = Bridge::from(command);
    let url = loop {
        let log = String::from_utf8_lossy(&real.stderr.seen).into_owned();
        match log.split_once("listening on ws://") {
            Some((_, rest)) if rest.contains("/acp") => {
                break format!("ws://{}/acp", rest.split('/').next().expect("an address"));
            }
            _ => assert!(!real.stderr.ended, "the daemon does not listen: {log}"),
        }
        real.stderr.more();
    };
    let connect = |arguments: &[String]| {
        let mut command = Bridge::command(&url);
        command.args(arguments);
        let mut bridge = Bridge::from(command);
        let stdout = Reader::new(bridge.child.stdout.take().expect("stdout is a pipe"));
        (bridge, stdout)
    };

    let (mut bridge, mut stdout) = connect(&[]);
    bridge.send(b"{\"id\":1,\"method\":\"initialize\"}\n");
    assert_eq!(reason(&stdout.message()), "daemon_refused");
    bridge.end_input();
    assert_eq!(bridge.code(), Some(1));
    assert!(bridge.stderr.text().contains("401"));

    let (mut bridge, mut stdout) = connect(&arguments);
    bridge.send(b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"m\",\"params\":[1]}\n");
    bridge.end_input();
    assert_eq!(stdout.message(), json!({"jsonrpc": "2.0", "id": "a", "result": {"echo": [1], "method": "m"}}));
    assert_eq!(bridge.code(), Some(0));
    assert_eq!((stdout.text(), bridge.stderr.text()), (String::new(), String::new()));

    let (mut bridge, mut stdout) = connect(&arguments);
    let long = format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"m\",\"params\":\"{}\"}}\n", "x".repeat(70_000));
    bridge.send(long.as_bytes());
    let told = messages(&stdout.text());
    // The daemon does not know the sender, but the bridge does.
    assert_eq!((ids(&told), reason(&told[0])), (vec![json!(7)], "client_line_too_long"));
    assert_eq!(bridge.code(), Some(1));
    assert!(bridge.stderr.text().contains("1009"));

    let (mut bridge, mut stdout) = connect(&arguments);
    bridge.send(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\n");
    assert_eq!(stdout.message()["id"], 1);
    // SAFETY: kill(2) takes integers alone, and the child has not been reaped, so the number is still its own.
    assert_eq!(unsafe { libc::kill(real.child.id() as i32, libc::SIGTERM) }, 0);
    assert_eq!(real.code(), Some(0));
    has_logged(&mut bridge, "nothing was pending: it closed the WebSocket with 1001 (going away): shutting_down", 1);
    bridge.end_input();
    assert_eq!(bridge.code(), Some(0));
}
