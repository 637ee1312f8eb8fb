//! WebSocket clients: access, refusals, and control frames. `tests/clients` has tests with other projects' clients.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tungstenite::client::IntoClientRequest;
use tungstenite::protocol::WebSocket;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Bytes, Message};

use crate::client::Client;
use crate::harness::{Daemon, Setup, echo, worker};
use crate::slots::on_all_slots;
use crate::sockets::register;
use crate::steady::Steady;

/// Time limit for everything that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon with one WebSocket listener that has these keys.
fn door(pools: impl IntoIterator<Item = Value>, keys: Value) -> Daemon {
    door_of(Setup::new(pools), keys)
}

/// The same for a prepared daemon.
fn door_of(setup: Setup, keys: Value) -> Daemon {
    let mut listener = json!({ "ws": "127.0.0.1:0" });
    keys.as_object().unwrap().iter().for_each(|(key, value)| listener[key] = value.clone());
    setup.no_listener().set("listeners", json!([listener])).start()
}

/// A tungstenite client.
pub type Socket = WebSocket<Steady<TcpStream>>;

/// A tungstenite client, with these fields in its request.
pub fn web(daemon: &Daemon, fields: &[(&'static str, &str)]) -> Socket {
    let stream = TcpStream::connect(daemon.address()).unwrap();
    register(&stream);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut request = format!("ws://{}/acp", daemon.address()).into_client_request().unwrap();
    for (name, value) in fields {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    let (socket, answer) = tungstenite::client(request, Steady(stream)).unwrap();
    let id = answer.headers()["acp-connection-id"].to_str().unwrap();
    assert!(id.split_once('.').is_some_and(|(node, random)| !node.is_empty() && random.len() == 22), "{id}");
    socket
}

pub fn ask(socket: &mut Socket, id: u64, method: &str, params: Value) {
    let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    socket.send(Message::text(request.to_string())).unwrap();
}

/// The next message.
pub fn message(socket: &mut Socket) -> Value {
    loop {
        match socket.read().unwrap() {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("{other:?} instead of a message"),
        }
    }
}

/// The code and reason of the next close frame.
fn close(socket: &mut Socket) -> (CloseCode, String) {
    loop {
        match socket.read().unwrap() {
            Message::Close(Some(frame)) => return (frame.code, frame.reason.to_string()),
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("{other:?} instead of a close frame"),
        }
    }
}

pub const UPGRADE: &str = "GET /acp HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";

/// The response to a connection that starts with these bytes: the status, and the message in the body.
fn told(daemon: &Daemon, bytes: &str) -> (u16, String) {
    told_at(daemon.address(), bytes)
}

/// The same, at a listener that is not the first.
fn told_at(address: SocketAddr, bytes: &str) -> (u16, String) {
    let mut client = Client::over_tcp(address);
    client.send_bytes(bytes.as_bytes());
    let answer = client.rest();
    let status =
        answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer:?}"));
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap();
    let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    (status, body["message"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn a_refused_request_gets_a_status_and_a_line_of_json_with_the_reason() {
    let daemon = door([echo("echo", 1)], json!({ "origins": ["https://app.example"] }));
    let with = |field: &str| format!("{UPGRADE}{field}\r\n");
    let upgrade = with("");
    for (request, status, why) in [
        ("{\"jsonrpc\":\"2.0\"}\n".to_owned(), 400, "this is not HTTP"),
        (upgrade.replace("Connection: Upgrade\r\n", ""), 400, "Connection: Upgrade"),
        (with("Origin: https://evil.example\r\n"), 403, "the origin \"https://evil.example\" is not in origins"),
        (upgrade.replace("localhost", "evil.example"), 403, "Host is not a name of this machine"),
        (upgrade.replace("/acp", "/"), 404, "nothing here but WebSocket, at ws://localhost/acp, and /healthz"),
        (upgrade.replace("GET", "POST"), 405, "begins with GET"),
        (
            upgrade.replace("Upgrade: websocket\r\n", ""),
            405,
            "at ws://localhost/acp; the request has no Upgrade: websocket",
        ),
        (upgrade.replace("Version: 13", "Version: 8"), 426, "Sec-WebSocket-Version: 13"),
        (with(&format!("A: {}\r\n", "a".repeat(33_000))), 431, "longer than 32 KiB"),
    ] {
        let (given, text) = told(&daemon, &request);
        assert_eq!(given, status, "{request:?}: {text}");
        assert!(text.contains(why), "{request:?}: {text}");
        daemon.logs(&["WARN", "handshake_refused", "from=127.0.0.1:", &format!("({status})")]);
    }
    let mut page = web(&daemon, &[("Origin", "https://app.example")]);
    ask(&mut page, 1, "m", json!({}));
    assert_eq!(message(&mut page)["id"], 1);
    // It has answered, so it runs.
    assert_eq!(told(&daemon, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"), (200, String::new()));
    drop(page);
    daemon.stop();
}

/// The head of the response to a request like [`UPGRADE`] with these fields.
fn head(daemon: &Daemon, fields: &str) -> String {
    let mut client = Client::over_tcp(daemon.address());
    client.send_bytes(format!("{UPGRADE}{fields}\r\n").as_bytes());
    let lines = std::iter::repeat_with(|| client.line().trim_end().to_owned());
    lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_client_of_acp_or_mcp_gets_the_subprotocol_that_it_offers_first() {
    let daemon = door([echo("echo", 1)], json!({}));
    for (offered, chosen) in [
        ("mcp", Some("mcp")),
        ("acp", Some("acp")),
        ("x, mcp, acp", Some("mcp")),
        ("bearer.0123456789abcdef, acp", Some("acp")),
        ("x", None),
    ] {
        let head = head(&daemon, &format!("Sec-WebSocket-Protocol: {offered}\r\n"));
        assert!(head.starts_with("HTTP/1.1 101 "), "{offered}: {head}");
        let field = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Protocol: "));
        assert_eq!(field, chosen, "{offered}: {head}");
    }
    let alone = format!("{UPGRADE}Sec-WebSocket-Protocol: bearer.0123456789abcdef\r\n\r\n");
    let (status, why) = told(&daemon, &alone);
    assert_eq!(status, 400, "{why}");
    assert!(why.contains("offer acp (or mcp) beside it"), "{why}");
    daemon.stop();
}

#[test]
fn a_program_with_the_address_as_its_origin_is_admitted_and_a_rebound_name_is_not() {
    // Behind a proxy any Host is accepted; a page's rights depend only on its Origin.
    let keys = json!({ "trusted_proxies": ["127.0.0.1"], "hosts": ["bus.example"] });
    let daemon = door([echo("echo", 1)], keys);
    let status = |host: &str, origin: &str| {
        let request = UPGRADE.replace("localhost", host);
        let mut client = Client::over_tcp(daemon.address());
        client.send_bytes(format!("{request}Origin: {origin}\r\n\r\n").as_bytes());
        client.line().split(' ').nth(1).map(str::to_owned)
    };
    for (host, origin) in [
        ("127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("[::1]:9000", "http://[::1]:9000"),
        ("localhost:9000", "http://localhost:9000"),
        ("bus.example", "https://bus.example"),
        ("Bus.example:8443", "https://bus.example:8443"),
    ] {
        assert_eq!(status(host, origin).as_deref(), Some("101"), "{host} {origin}");
    }
    for (host, origin) in [
        ("rebound.example:9000", "http://rebound.example:9000"),
        ("127.0.0.1.rebound.example:9000", "http://127.0.0.1.rebound.example:9000"),
        ("127.0.0.1:9000", "http://rebound.example:9000"),
        ("127.0.0.1:9000", "http://127.0.0.1:8000"),
        ("bus.example", "https://other.bus.example"),
    ] {
        assert_eq!(status(host, origin).as_deref(), Some("403"), "{host} {origin}");
    }
    daemon.stop();
    let daemon = door([echo("echo", 1)], json!({ "hosts": ["bus.example"] }));
    let named = format!("{}\r\n", UPGRADE.replace("localhost", "bus.example:9000"));
    let mut client = Client::over_tcp(daemon.address());
    client.send_bytes(named.as_bytes());
    assert!(client.line().starts_with("HTTP/1.1 101 "), "a name in hosts is one of this machine");
    drop(client);
    daemon.stop();
}

#[test]
fn a_streamable_http_client_is_asked_to_use_a_websocket() {
    let daemon = door([echo("echo", 1)], json!({}));
    let body = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\"}";
    let host = "Host: localhost:9000\r\n";
    for request in [
        format!("POST /acp HTTP/1.1\r\n{host}Content-Length: {}\r\n\r\n{body}", body.len()),
        format!("POST /acp HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n3\r\n{{}}\n\r\n0\r\n\r\n"),
        format!("GET /acp HTTP/1.1\r\n{host}Accept: text/event-stream\r\n\r\n"),
    ] {
        let mut client = Client::over_tcp(daemon.address());
        client.send_bytes(request.as_bytes());
        let answer = client.rest();
        assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("\r\nAllow: GET\r\n"), "{request}: {answer}");
        assert!(answer.contains("only WebSocket is spoken here, at ws://localhost:9000/acp;"), "{request}: {answer}");
    }
    daemon.stop();
}

#[test]
fn binary_messages_are_ignored_and_the_log_says_so_once_for_each_connection() {
    let daemon = door([echo("echo", 1)], json!({}));
    for client in 0..2 {
        let mut socket = web(&daemon, &[]);
        for id in 0..3 {
            socket.send(Message::binary(&b"{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"m\"}"[..])).unwrap();
            ask(&mut socket, id, "m", json!({}));
            assert_eq!(message(&mut socket)["id"], id);
        }
        daemon.logs(&["WARN", "binary_ignored", "text messages", &format!("client={client}")]);
    }
    let log = daemon.stop().stderr;
    assert_eq!(log.matches("binary_ignored").count(), 2, "{log}");
}

#[test]
fn health_checks_fail_when_no_worker_runs() {
    let daemon = door([worker("agents", 1, &["--exit", "1"])], json!({}));
    daemon.until("the pool is not ready", || told(&daemon, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").0 == 503);
    daemon.stop();
}

#[test]
fn a_full_daemon_says_so_to_websocket_requests_and_health_checks() {
    let listeners = json!([{ "tcp": "127.0.0.1:0" }, { "ws": "127.0.0.1:0" }]);
    let setup = Setup::new([worker("w", 1, &[])]).no_listener().set("listeners", listeners);
    // The clients leave with a request pending, whose answer would be waited for.
    let mut daemon = setup.limit("drain_timeout_sec", 1).start();
    let door = daemon.addresses(2)[1];
    let clients = on_all_slots(&mut daemon);
    daemon.logs(&["connection_limit", "all 1024 connections are in use"]);
    let (status, why) = told_at(door, &format!("{UPGRADE}\r\n"));
    assert!(status == 429 && why.starts_with("all 1024 connections are in use, 1024 of them by your source"), "{why}");
    let health = || told_at(door, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").0;
    assert_eq!(health(), 503);
    drop(clients);
    daemon.until("there is room again", || health() == 200);
    daemon.stop();
}

#[test]
fn requests_and_frames_may_come_in_any_pieces() {
    let daemon = door([echo("echo", 1)], json!({}));
    let request = format!("{UPGRADE}\r\n");
    // A ping between two fragments of a message, masked with zeros.
    let text = br#"{"jsonrpc":"2.0","id":1,"method":"m"}"#;
    let frames = [
        &b"\x01\x8a\0\0\0\0"[..],
        &text[..10],
        b"\x89\x82\0\0\0\0hi",
        &[0x80, 0x80 | (text.len() - 10) as u8, 0, 0, 0, 0],
        &text[10..],
    ];
    let bytes = [request.as_bytes(), &frames.concat()].concat();
    for piece in [1, 7, bytes.len()] {
        let stream = TcpStream::connect(daemon.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = Steady(stream);
        bytes.chunks(piece).for_each(|piece| stream.write_all(piece).unwrap());
        let mut came = Vec::new();
        while !came.ends_with(b"\"method\":\"m\"}}") {
            let mut more = [0; 4096];
            let count = stream.read(&mut more).unwrap();
            assert!(count > 0, "{}", came.escape_ascii());
            came.extend_from_slice(&more[..count]);
        }
        assert!(came.starts_with(b"HTTP/1.1 101 ") && came.windows(4).any(|four| four == b"\x8a\x02hi"));
    }
    daemon.stop();
}

#[test]
fn a_client_behind_a_trusted_proxy_has_the_address_that_the_proxy_reports() {
    let daemon = door([echo("echo", 1)], json!({ "trusted_proxies": ["127.0.0.1"], "allow": ["192.0.2.0/24"] }));
    let fields = [("X-Forwarded-For", "198.51.100.9, 192.0.2.7"), ("Host", "bus.example")];
    let mut client = web(&daemon, &fields);
    daemon.logs(&["client_opened", "client=0", " from=192.0.2.7:0", " via=127.0.0.1:", " connection_id="]);
    ask(&mut client, 1, "m", json!({}));
    assert_eq!(message(&mut client)["id"], 1);
    let stranger = format!("{UPGRADE}X-Forwarded-For: 192.0.2.7, 198.51.100.9\r\n\r\n");
    assert_eq!(told(&daemon, &stranger).0, 403, "the last address is the client's");
    assert_eq!(told(&daemon, &format!("{UPGRADE}\r\n")).0, 403, "the proxy itself is not allowed in");
    let two = format!("{UPGRADE}X-Forwarded-For: 192.0.2.7\r\nForwarded: for=192.0.2.8\r\n\r\n");
    assert_eq!(told(&daemon, &two).0, 400);
    drop(client);
    daemon.stop();
}

#[test]
fn claims_of_an_untrusted_proxy_are_ignored() {
    let daemon = door([echo("echo", 1)], json!({ "trusted_proxies": ["192.0.2.1"] }));
    let client = web(&daemon, &[("X-Forwarded-For", "192.0.2.7")]);
    daemon.logs(&["client_opened", "client=0", " from=127.0.0.1:"]);
    drop(client);
    daemon.stop();
}

#[test]
fn a_proxy_header_precedes_the_request() {
    let keys = json!({ "proxy": { "from": ["127.0.0.1"] }, "trusted_proxies": ["127.0.0.1"] });
    let daemon = door([echo("echo", 1)], keys);
    let mut client = Client::over_tcp(daemon.address());
    // The client has set the field: a proxy that forwards bytes sets none.
    let request = UPGRADE.replace("localhost", "bus.example") + "X-Forwarded-For: 10.0.0.1\r\n";
    client.send_bytes(format!("PROXY TCP4 192.0.2.7 198.51.100.1 40000 9000\r\n{request}\r\n").as_bytes());
    assert!(client.line().starts_with("HTTP/1.1 101 "));
    daemon.logs(&["client_opened", "client=0", " from=192.0.2.7:40000", " via=127.0.0.1:"]);
    let check = format!("PROXY UNKNOWN\r\n{}", "GET /healthz HTTP/1.0\r\n\r\n");
    daemon.until("its worker runs", || told(&daemon, &check).0 == 200);
    drop(client);
    daemon.stop();
}

const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Slots of clients, and the maximum number of handshakes beyond the free ones.
const SLOTS: usize = 1024;
const BEYOND: usize = 256;

#[test]
fn a_thousand_clients_that_connect_at_once_are_all_admitted() {
    let daemon = door([echo("echo", 1)], json!({}));
    let mut clients: Vec<Client> = (0..1000).map(|_| Client::over_tcp(daemon.address())).collect();
    // None of them sends anything before the last one has connected.
    clients.iter_mut().for_each(|client| client.send_bytes(format!("{UPGRADE}\r\n").as_bytes()));
    for (number, client) in clients.iter_mut().enumerate() {
        let line = client.line();
        assert!(line.starts_with("HTTP/1.1 101 "), "{number}: {line}");
    }
    drop(clients);
    let log = daemon.stop().stderr;
    assert!(!log.contains("handshake_refused"), "{log}");
}

#[test]
fn silent_connections_from_one_address_do_not_keep_out_slow_clients_of_another() {
    let daemon = door([echo("echo", 1)], json!({}));
    let silent =
        |count: usize| -> Vec<Client> { (0..count).map(|_| Client::over_tcp_from(FAR, daemon.address())).collect() };
    // It sees all of them at once, so that the time of none is over before the last has come.
    daemon.address();
    daemon.stand_still();
    let mut crowd = silent(SLOTS + BEYOND + 1);
    let mut slow: Vec<Client> = (0..15).map(|_| Client::over_tcp_from(NEAR, daemon.address())).collect();
    // Twice as many as fit connect before they send their requests.
    let _more = silent(SLOTS + BEYOND);
    daemon.signal(Signal::CONT);
    let refused = crowd[0].rest();
    assert!(refused.starts_with("HTTP/1.1 429 ") && refused.contains("\r\nRetry-After: 1\r\n"), "{refused}");
    assert!(refused.contains("it is one of the source that has most of them"), "{refused}");
    for client in &mut slow {
        client.send_bytes(format!("{UPGRADE}\r\n").as_bytes());
        assert!(client.line().starts_with("HTTP/1.1 101 "));
    }
    let log = daemon.log();
    assert!(log.contains("handshake_refused") && !log.contains("accept_paused"), "{log}");
    drop(slow);
    daemon.stop();
}

#[test]
fn silent_connections_do_not_hold_up_the_end_of_a_daemon_that_has_no_place_for_more() {
    let daemon = door([echo("echo", 1)], json!({}));
    let address = daemon.address();
    let connect = |count: usize| -> Vec<Client> { (0..count).map(|_| Client::over_tcp(address)).collect() };
    let crowd = connect(SLOTS + BEYOND);
    let descriptors = daemon.descriptors();
    daemon.until("all places are taken", || daemon.descriptors() >= descriptors.max(SLOTS + BEYOND));
    daemon.stand_still();
    let waits = connect(50);
    daemon.signal(Signal::TERM);
    daemon.signal(Signal::CONT);
    daemon.logs(&["connections to ", "were not accepted yet, and are closed with it: all places are taken"]);
    drop((crowd, waits));
    let log = daemon.ends_well().stderr;
    assert!(log.matches("handshake_refused").count() < 3, "none gave way to one that is not served either: {log}");
}

#[test]
fn of_one_source_silent_connections_are_evicted_first() {
    let daemon = door([echo("echo", 1)], json!({}));
    let mut begun = Client::over_tcp(daemon.address());
    let (first, rest) = UPGRADE.split_at(20);
    begun.send_bytes(first.as_bytes());
    // That was read when what came behind it is answered.
    told(&daemon, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
    daemon.stand_still();
    let mut silent: Vec<Client> = (0..SLOTS + BEYOND).map(|_| Client::over_tcp(daemon.address())).collect();
    daemon.signal(Signal::CONT);
    let refused = silent[0].rest();
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    begun.send_bytes(format!("{rest}\r\n").as_bytes());
    assert!(begun.line().starts_with("HTTP/1.1 101 "));
    drop((begun, silent));
    daemon.stop();
}

#[test]
fn connections_in_handshakes_count_for_their_source() {
    let daemon = door([echo("echo", 1)], json!({ "max_connections": { "per_source": 2 } }));
    let mut waiting: Vec<Client> = (0..3).map(|_| Client::over_tcp_from(FAR, daemon.address())).collect();
    let refused = waiting[0].rest();
    assert!(refused.starts_with("HTTP/1.1 429 ") && refused.contains("\r\nRetry-After: 1\r\n"), "{refused}");
    assert!(refused.contains("listeners[].max_connections"), "{refused}");
    let mut near = Client::over_tcp_from(NEAR, daemon.address());
    for client in waiting[1..].iter_mut().chain([&mut near]) {
        client.send_bytes(format!("{UPGRADE}\r\n").as_bytes());
        assert!(client.line().starts_with("HTTP/1.1 101 "));
    }
    let mut third = Client::over_tcp_from(FAR, daemon.address());
    third.send_bytes(format!("{UPGRADE}\r\n").as_bytes());
    let refused = third.rest();
    assert!(
        refused.starts_with("HTTP/1.1 429 ") && refused.contains("takes 2 connections from one source"),
        "{refused}"
    );
    drop((waiting, near));
    daemon.stop();
}

#[test]
fn nine_hundred_clients_come_back_after_a_restart_at_the_first_try() {
    let upgrade = format!("{UPGRADE}\r\n");
    let mut port = 0;
    for _ in 0..2 {
        let setup = Setup::new([echo("echo", 1)]).no_listener();
        let daemon = setup.set("listeners", json!([{ "ws": format!("127.0.0.1:{port}") }])).start();
        port = daemon.address().port();
        let mut clients: Vec<Client> = (0..900).map(|_| Client::over_tcp(daemon.address())).collect();
        clients.iter_mut().for_each(|client| client.send_bytes(upgrade.as_bytes()));
        for (number, client) in clients.iter_mut().enumerate() {
            let line = client.line();
            assert!(line.starts_with("HTTP/1.1 101 "), "{number}: {line}");
        }
        // The daemon closes them: the closing side keeps the port for a while (tcp(7), TIME-WAIT).
        daemon.signal(Signal::TERM);
        daemon.logs_times("client_closed", 900);
        drop(clients);
        daemon.ends_well();
    }
}

#[test]
fn pings_are_answered_before_queued_lines() {
    // All of it fits into the queue: a client that writes without reading would otherwise block itself.
    let setup = Setup::new([worker("agents", 1, &[])]).limit("max_output_queue", 64 << 20);
    let daemon = door_of(setup, json!({}));
    let mut client = web(&daemon, &[]);
    let text = "x".repeat(900_000);
    // More than the kernel buffers for a stalled client.
    for id in 0..20 {
        ask(&mut client, id, "echo", json!({ "text": text }));
    }
    client.send(Message::Ping(Bytes::from_static(b"are you there"))).unwrap();
    let (mut answers, mut before) = (0, None);
    while answers < 20 {
        match client.read().unwrap() {
            Message::Text(answer) => {
                assert!(answer.len() > text.len());
                answers += 1;
            }
            Message::Pong(payload) => {
                assert_eq!(&payload[..], b"are you there");
                before = Some(answers);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(before.is_some_and(|before| before < 20), "the pong came behind {before:?} answers");
    drop(client);
    daemon.stop();
}

#[test]
#[ignore = "scripts/test slow"]
fn a_client_that_answers_pings_stays_and_one_that_does_not_is_closed() {
    let daemon = door([echo("echo", 1)], json!({ "ping_sec": 1 }));
    let mut alive = web(&daemon, &[]);
    let mut dead = Client::over_tcp(daemon.address());
    dead.send_bytes(format!("{UPGRADE}\r\n").as_bytes());
    // Reading answers pings.
    let reader = std::thread::spawn(move || {
        let mut pings = 0;
        while pings < 13 {
            match alive.read().unwrap() {
                Message::Ping(_) => pings += 1,
                other => panic!("{other:?}"),
            }
        }
        ask(&mut alive, 1, "m", json!({}));
        assert_eq!(message(&mut alive)["id"], 1);
    });
    daemon.logs(&["client_broken", "client=1", "it has not answered a ping within 10 s"]);
    assert!(dead.rest().contains("101 Switching"));
    reader.join().unwrap();
    assert!(!daemon.log().contains("client=0 from=127.0.0.1 reason=client_broken"));
    daemon.stop();
}

#[test]
fn a_client_that_vanishes_ends_its_requests_and_its_worker() {
    let mut pool = worker("agents", 1, &[]);
    pool["assignment"] = "dedicated".into();
    let daemon = door([pool], json!({}));
    let mut client = web(&daemon, &[]);
    ask(&mut client, 1, "hold", json!({}));
    daemon.until("the worker has the request", || daemon.log().matches("worker_started").count() >= 2);
    drop(client);
    daemon.logs(&["client_broken", "client=0", "it disconnected without a close frame", "1 requests were pending"]);
    daemon.logs(&["worker_stopped"]);
    daemon.stop();
}

#[test]
fn a_client_whose_own_worker_ends_gets_1011() {
    let mut pool = worker("agents", 1, &[]);
    pool["assignment"] = "dedicated".into();
    let daemon = door([pool], json!({}));
    let mut client = web(&daemon, &[]);
    ask(&mut client, 0, "m", json!({}));
    assert_eq!(message(&mut client)["id"], 0);
    ask(&mut client, 1, "die", json!({}));
    assert_eq!(message(&mut client)["error"]["data"]["reason"], "worker_exited");
    assert_eq!(message(&mut client)["error"]["data"]["reason"], "own_worker_ended");
    assert_eq!(close(&mut client), (CloseCode::Error, "own_worker_ended".to_owned()));
    drop(client);
    daemon.stop();
}

const ALICE: &str = "alice:0123456789abcdef\n";
const BOB: &str = "bob:0123456789abcdeg\n";

/// A daemon that admits alice and bob, and the path of their tokens.
fn guarded() -> (Daemon, PathBuf) {
    let setup = Setup::new([worker("agents", 1, &[])]);
    let path = setup.path("tokens");
    std::fs::write(&path, [ALICE, BOB].concat()).expect("a file");
    let daemon = door_of(setup, json!({ "tokens_file": path }));
    // It has read it when it listens.
    daemon.address();
    (daemon, path)
}

/// Replaces a file atomically, as an editor does.
fn rewrite(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).expect("a file");
    std::fs::rename(new, path).expect("the same directory");
}

#[test]
fn a_token_removed_from_its_file_closes_its_live_connections() {
    let (daemon, path) = guarded();
    let mut alice = web(&daemon, &[("Authorization", "Bearer 0123456789abcdef")]);
    let mut bob = web(&daemon, &[("Authorization", "Bearer 0123456789abcdeg")]);
    ask(&mut bob, 1, "hold", json!({}));
    rewrite(&path, ALICE);
    for id in [json!(1), Value::Null] {
        let told = message(&mut bob);
        assert_eq!((&told["id"], &told["error"]["data"]["reason"]), (&id, &json!("token_removed")), "{told}");
    }
    assert_eq!(close(&mut bob), (CloseCode::Policy, "token_removed".to_owned()));
    daemon.logs(&["WARN", "token_removed", "client=1", "token=bob", "1 requests pending"]);
    ask(&mut alice, 2, "echo", json!({}));
    assert_eq!(message(&mut alice)["id"], 2);
    let again = format!("{UPGRADE}Authorization: Bearer 0123456789abcdeg\r\n\r\n");
    assert_eq!(told(&daemon, &again).0, 401);
    rewrite(&path, &[ALICE, BOB].concat());
    daemon.until("bob may come back", || head(&daemon, "Authorization: Bearer 0123456789abcdeg\r\n").contains(" 101 "));
    drop((alice, bob));
    daemon.stop();
}

#[test]
fn a_tokens_file_that_becomes_a_fifo_or_a_device_blocks_nothing_and_the_last_tokens_stay_valid() {
    let (daemon, path) = guarded();
    std::fs::remove_file(&path).expect("it is there");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
    daemon.until("it is looked at", || {
        // A daemon that checked it only for new clients would hang here.
        head(&daemon, "Authorization: Bearer 0123456789abcdef\r\n").contains(" 101 ")
            && daemon.log().contains("cannot be used, and its last content stays valid: it is no regular file")
    });
    std::fs::remove_file(&path).expect("it is there");
    std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
    daemon.logs_times("its last content stays valid: it is no regular file", 2);
    let mut alice = web(&daemon, &[("Authorization", "Bearer 0123456789abcdef")]);
    ask(&mut alice, 1, "echo", json!({}));
    assert_eq!(message(&mut alice)["id"], 1);
    drop(alice);
    daemon.stop();
}

#[test]
fn an_invalid_tokens_file_or_a_token_of_two_names_is_reported_at_the_start() {
    let start = |file: &dyn Fn(&Path)| {
        let setup = Setup::new([echo("echo", 1)]).no_listener();
        let path = setup.path("tokens");
        file(&path);
        let outcome = setup.set("listeners", json!([{ "ws": "127.0.0.1:0", "tokens_file": path }])).run();
        assert_eq!(outcome.code, Some(78), "{}", outcome.stderr);
        outcome.stderr
    };
    let fifo = start(&|path| {
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
    });
    assert!(fifo.contains("it is no regular file"), "{fifo}");
    let zero = start(&|path| std::os::unix::fs::symlink("/dev/zero", path).expect("a link"));
    assert!(zero.contains("it is no regular file"), "{zero}");
    let twice = start(&|path| {
        std::fs::write(path, format!("{ALICE}{}", BOB.replace("abcdeg", "abcdef"))).expect("a file");
    });
    assert!(twice.contains("line 2: the token of bob is that of alice in line 1"), "{twice}");
}

#[test]
fn a_drain_lets_answers_out_and_says_1001() {
    let daemon = door([worker("agents", 1, &[])], json!({}));
    let mut client = web(&daemon, &[]);
    ask(&mut client, 1, "echo", json!({}));
    assert_eq!(message(&mut client)["id"], 1);
    daemon.signal(Signal::TERM);
    assert_eq!(close(&mut client), (CloseCode::Away, "shutting_down".to_owned()));
    drop(client);
    daemon.ends_well();
}

#[test]
fn a_websocket_that_its_client_closes_holds_no_descriptor_until_the_client_is_gone() {
    let daemon = door([echo("echo", 1)], json!({}));
    let mut client = web(&daemon, &[]);
    ask(&mut client, 1, "m", json!({}));
    assert_eq!(message(&mut client)["id"], 1);
    let open = daemon.sockets();
    client.close(None).unwrap();
    assert!(matches!(client.read(), Ok(Message::Close(_))), "the close frame is answered");
    // The daemon's end of the connection, while the client's own end stays open.
    assert!(matches!(client.read(), Err(tungstenite::Error::ConnectionClosed)));
    assert_eq!(daemon.sockets(), open - 1, "RFC 6455, section 7.1.1: the server closes first");
    drop(client);
    daemon.stop();
}
