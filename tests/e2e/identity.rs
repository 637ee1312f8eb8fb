//! Clients whose names a proxy sends in a header: what a name owns, on connections that the proxy shares among its clients.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Value, json};

use crate::admin::{Admin, with_admin};
use crate::client::Client;
use crate::harness::{Daemon, Setup, echo, with, worker};
use crate::http::{Answer, Http, request};
use crate::mcp::{VERSION, door_of, shared};

const USER: &str = "X-Forwarded-User";
/// An address that is no proxy's.
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// The keys of a listener that believes 127.0.0.1.
fn believes() -> Value {
    json!({ "identity": { "header": USER, "trusted_proxies": ["127.0.0.1"] } })
}

/// A message on a proxy's connection, for this client and in this session.
fn posts(proxy: &mut Http, fields: &[(&str, &str)], message: &Value) -> Answer {
    proxy.send("POST /mcp", fields, &message.to_string());
    proxy.answer()
}

/// How often a refusal was for the name.
fn refused(daemon: &Daemon) -> u64 {
    let metrics = Admin::of(daemon).get("/metrics").body;
    let line =
        metrics.lines().find_map(|line| line.strip_prefix(r#"stdio_bus_events_total{reason="identity_refused"} "#));
    line.map_or(0, |count| count.parse().expect("a number"))
}

#[test]
fn requests_of_several_users_on_one_connection_of_a_proxy_are_each_their_own() {
    let daemon = door_of(with_admin(Setup::new([shared()])), believes());
    let mut proxy = Http::connect(daemon.address());
    let initialize = request(0, "initialize", json!({ "protocolVersion": VERSION, "capabilities": {} }));
    let begun = posts(&mut proxy, &[(USER, "alice")], &initialize);
    assert_eq!(begun.status, 200, "{begun:?}");
    let id = begun.fields["mcp-session-id"].clone();
    let mut says = |user: &str, at: u64| {
        let fields = [(USER, user), ("Mcp-Session-Id", &*id)];
        posts(&mut proxy, &fields, &request(at, "m", json!({}))).status
    };
    assert_eq!((says("alice", 1), says("bob", 2), says("alice", 3)), (200, 404, 200));
    assert_eq!((says("Alice", 4), says("alice ", 5)), (404, 200), "blanks around a value are no part of it");
    assert_eq!(says("", 6), 401, "nobody is not the one before");
    daemon.logs(&["client_opened", " user=alice"]);
    let usage = Admin::of(&daemon).get("/metrics").body;
    assert!(usage.contains(r#"stdio_bus_usage_requests_total{by="user",name="alice"}"#), "{usage}");
    daemon.stop();
}

#[test]
fn a_name_from_who_is_not_believed_or_that_occurs_twice_is_refused_and_counted() {
    let daemon = door_of(with_admin(Setup::new([shared()])), believes());
    let tells = |client: &mut Client, fields: &str| {
        let head = format!("POST /mcp HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", daemon.address());
        client.send_bytes(format!("{head}{fields}Content-Length: 2\r\n\r\n{{}}").as_bytes());
        client.rest()
    };
    let mut far = Client::over_tcp_from(FAR, daemon.address());
    let told = tells(&mut far, "x-forwarded-user: alice\r\n");
    assert!(told.starts_with("HTTP/1.1 400 ") && told.contains("is not trusted"), "{told}");
    let mut near = Client::over_tcp(daemon.address());
    let told = tells(&mut near, "X-Forwarded-User: alice\r\nX-Forwarded-User: bob\r\n");
    assert!(told.starts_with("HTTP/1.1 400 ") && told.contains("occurs twice"), "{told}");
    let mut far = Client::over_tcp_from(FAR, daemon.address());
    assert!(tells(&mut far, "").starts_with("HTTP/1.1 401 "), "a name is needed");
    daemon.logs(&["identity_refused", "X-Forwarded-User comes from an address that is not trusted"]);
    assert_eq!(refused(&daemon), 2);
    daemon.stop();
}

#[test]
fn a_name_in_a_trailer_names_nobody() {
    let daemon = door_of(Setup::new([shared()]), believes());
    let mut proxy = Client::over_tcp(daemon.address());
    let body = request(0, "initialize", json!({ "protocolVersion": VERSION })).to_string();
    let head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n";
    let framing = "Accept: */*\r\nTrailer: X-Forwarded-User\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunks = format!("{:x}\r\n{body}\r\n0\r\nX-Forwarded-User: alice\r\n\r\n", body.len());
    proxy.send_bytes(format!("{head}{framing}{chunks}").as_bytes());
    let told = proxy.rest();
    assert!(told.starts_with("HTTP/1.1 401 "), "{told}");
    daemon.stop();
}

#[test]
fn a_user_is_another_than_the_bearer_of_a_token_of_the_same_name() {
    let setup = Setup::new([shared()]);
    let path = setup.path("tokens");
    std::fs::write(&path, "alice:0123456789abcdef\n").unwrap();
    let mut keys = believes();
    keys["tokens_file"] = json!(path);
    let daemon = door_of(setup, keys);
    let mut client = Http::connect(daemon.address());
    let token = ("Authorization", "Bearer 0123456789abcdef");
    let initialize = request(0, "initialize", json!({ "protocolVersion": VERSION }));
    let begun = posts(&mut client, &[token], &initialize);
    let id = begun.fields["mcp-session-id"].clone();
    let session = ("Mcp-Session-Id", &*id);
    let message = request(1, "m", json!({}));
    assert_eq!(posts(&mut client, &[(USER, "alice"), session], &message).status, 404);
    assert_eq!(posts(&mut client, &[token, (USER, "alice"), session], &message).status, 200, "the token comes first");
    let mut other = client.again();
    assert_eq!(posts(&mut client, &[token, (USER, "bob"), session], &message).status, 400, "they disagree");
    assert_eq!(posts(&mut other, &[session], &message).status, 401);
    daemon.stop();
}

#[test]
fn a_websocket_has_the_name_of_its_request_and_none_is_opened_without() {
    let mut listener = believes();
    listener["ws"] = json!("127.0.0.1:0");
    let daemon = Setup::new([echo("echo", 1)]).no_listener().set("listeners", json!([listener])).start();
    let opens = |user: &str| {
        let mut client = Client::over_tcp(daemon.address());
        let upgrade = "GET /acp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MTIzNDU2Nzg5MDEyMzQ1Ng==\r\n";
        client.send_bytes(format!("{upgrade}{user}\r\n").as_bytes());
        let status = client.line();
        (client, status)
    };
    assert!(opens("").1.starts_with("HTTP/1.1 401 "));
    assert!(opens("X-Forwarded-User: alice, bob\r\n").1.starts_with("HTTP/1.1 400 "));
    let (client, status) = opens("X-Forwarded-User: alice\r\n");
    assert!(status.starts_with("HTTP/1.1 101 "), "{status}");
    daemon.logs(&["client_opened", " user=alice", " connection_id="]);
    drop(client);
    daemon.stop();
}

#[test]
fn a_client_uses_the_pools_of_its_groups_and_gets_the_reason_for_others() {
    let pool = |id: &str| with(worker(id, 1, &[]), "assignment", "client");
    let mut keys = believes();
    keys["identity"]["groups_header"] = json!("X-Groups");
    keys["pools"] = json!({ "dev": ["tools"], "ops": ["shell", "tools"] });
    let daemon = door_of(Setup::new([pool("tools"), pool("shell")]), keys);
    let begins = |groups: &str, path: &str| {
        let mut proxy = Http::connect(daemon.address()).with(USER, "alice").with("X-Groups", groups);
        let initialize = request(0, "initialize", json!({ "protocolVersion": VERSION }));
        proxy.send(&format!("POST {path}"), &[], &initialize.to_string());
        (proxy.answer(), proxy)
    };
    let (begun, mut proxy) = begins("ops", "/mcp/shell");
    assert_eq!(begun.status, 200, "{begun:?}");
    assert_eq!(begins("x, dev", "/mcp").0.status, 200, "it has one pool");
    assert_eq!(begins("dev, ops", "/mcp").0.status, 200, "to be in one more group takes nothing away");
    let (told, _) = begins("dev", "/mcp/shell");
    assert_eq!(told.status, 403, "{told:?}");
    assert!(told.body.contains("is for other groups than yours; for you there is /mcp/tools"), "{told:?}");
    assert!(!told.fields.contains_key("www-authenticate"), "no login would help: {told:?}");
    assert_eq!(begins("dev", "/mcp/none").0.status, 404);
    let (told, _) = begins("sales", "/mcp");
    assert!(told.status == 403 && told.body.contains("you are in none of them"), "{told:?}");
    // Who has lost the group has lost the session.
    proxy.fields.retain(|(name, _)| name != "X-Groups");
    let id = begun.fields["mcp-session-id"].clone();
    let fields = [("X-Groups", "dev"), ("Mcp-Session-Id", &*id)];
    assert_eq!(posts(&mut proxy, &fields, &request(1, "m", json!({}))).status, 404);
    let fields = [("X-Groups", "ops"), ("Mcp-Session-Id", &*id)];
    assert_eq!(posts(&mut proxy, &fields, &request(2, "m", json!({}))).status, 200);
    daemon.stop();
}

#[test]
fn a_client_without_a_name_learns_where_to_sign_in_whatever_it_accepts() {
    let mut keys = believes();
    keys["origins"] = json!(["https://app.example"]);
    keys["oauth"] = json!({
        "resource": "https://bus.example/mcp",
        "authorization_servers": ["https://login.example"],
        "scopes_supported": ["mcp"],
    });
    let daemon = door_of(Setup::new([shared()]), keys);
    let asks = |line: &str, fields: &[(&str, &str)]| {
        let mut client = Http::connect(daemon.address());
        client.send(line, fields, "{}");
        client.answer()
    };
    let place = "https://bus.example/.well-known/oauth-protected-resource/mcp";
    for line in ["POST /mcp", "GET /mcp", "POST /mcp/tools"] {
        let told = asks(line, &[]);
        assert_eq!(told.status, 401, "{told:?}");
        assert_eq!(told.fields["www-authenticate"], format!("Bearer resource_metadata=\"{place}\""));
    }
    for path in ["", "/mcp", "/mcp/tools"] {
        let fields =
            [("MCP-Protocol-Version", "2024-11-05"), ("X-Forwarded-User", "a"), ("Origin", "https://app.example")];
        let answer = asks(&format!("GET /.well-known/oauth-protected-resource{path}"), &fields);
        assert_eq!((answer.status, &answer.json()["resource"]), (200, &json!("https://bus.example/mcp")), "{path}");
        assert_eq!(answer.json()["authorization_servers"], json!(["https://login.example"]));
        assert_eq!(answer.fields["access-control-allow-origin"], "https://app.example");
    }
    for line in
        ["POST /register", "GET /.well-known/oauth-authorization-server", "GET /.well-known/oauth-protected-resource/x"]
    {
        let answer = asks(line, &[]);
        assert_eq!((answer.status, &answer.json()["error"]), (404, &json!("not_found")), "{line}");
        let text = answer.json()["error_description"].to_string();
        assert!(text.contains("register and sign in at https://login.example"), "{text}");
    }
    let page = asks("POST /mcp", &[("Origin", "https://app.example")]);
    assert!(
        page.status == 401 && page.fields["access-control-expose-headers"].contains("WWW-Authenticate"),
        "{page:?}"
    );
    assert_eq!(asks("POST /mcp", &[("Origin", "https://other.example")]).status, 403);
    daemon.stop();
}
