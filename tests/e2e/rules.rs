//! `listeners[].rules`: tools and methods that are kept from names and groups, however the daemon has learned of them.

use serde_json::{Value, json};

use crate::admin::{Admin, said, start_ready, with_admin};
use crate::harness::{Daemon, Setup, worker};
use crate::http::{Answer, Http, request};
use crate::mcp::{MODERN, VERSION, door_of, messages, modern, shared};
use crate::proxy::{begins, binary};
use crate::reload::change;
use crate::websocket::{Socket, ask, message, web};

const USER: &str = "X-Forwarded-User";
const GROUPS: &str = "X-Groups";

/// The keys of a listener whose proxy names groups, of which interns may not delete.
fn with_groups() -> Value {
    let identity = json!({ "header": USER, "groups_header": GROUPS, "trusted_proxies": ["127.0.0.1"] });
    json!({ "identity": identity, "rules": { "groups": { "interns": { "deny_tools": ["delete_*"] } } } })
}

fn call(id: u64, tool: &str) -> Value {
    request(id, "tools/call", json!({ "name": tool, "arguments": {} }))
}

/// Whether an answer is the refusal of a tool; else it is a result.
fn is_denied(answer: &Value) -> bool {
    let is_denied = answer["error"]["data"]["reason"] == "tool_denied";
    assert!(is_denied || answer["result"].is_object(), "{answer}");
    is_denied
}

fn posts(client: &mut Http, fields: &[(&str, &str)], message: &Value) -> Answer {
    client.send("POST /mcp", fields, &message.to_string());
    client.answer()
}

/// A daemon that can be reloaded, with this listener and its tokens file, of the token of alice.
fn with_token(mut listener: Value) -> Daemon {
    let setup = Setup::new([shared()]).no_listener();
    let path = setup.path("tokens");
    std::fs::write(&path, "alice:0123456789abcdef groups=staff,interns\nbob:0123456789abcdeg groups=staff\n").unwrap();
    listener["tokens_file"] = json!(path);
    start_ready(setup.set("listeners", json!([listener])))
}

#[test]
fn in_a_session_over_http_each_request_has_the_rules_of_its_own_groups() {
    let daemon = door_of(with_admin(Setup::new([shared()])), with_groups());
    let mut proxy = Http::connect(daemon.address()).with(USER, "alice");
    let initialize = request(0, "initialize", json!({ "protocolVersion": "2025-03-26", "capabilities": {} }));
    let begun = posts(&mut proxy, &[(GROUPS, "staff")], &initialize);
    let id = begun.fields["mcp-session-id"].clone();
    let mut asks = |groups: &str, message: &Value| {
        let fields = [(GROUPS, groups), ("Mcp-Session-Id", &*id)];
        posts(&mut proxy, &fields, message).json()
    };
    assert!(!is_denied(&asks("staff", &call(1, "delete_all"))));
    let denied = asks("staff, interns", &call(2, "delete_all"));
    assert!(is_denied(&denied) && denied["id"] == 2, "{denied}");
    let text = denied["error"]["message"].as_str().unwrap();
    assert!(text.contains("the group \"interns\" (deny_tools, listeners[].rules.groups)"), "{text}");
    assert!(!is_denied(&asks("", &call(3, "delete_all"))), "the next request is somebody else's");
    assert!(!is_denied(&asks("interns", &call(4, "read"))));
    let fields = [(GROUPS, "interns"), ("Mcp-Session-Id", &*id)];
    let batch = json!([call(5, "delete_all"), call(6, "read"), call(7, "delete_one")]);
    assert!(posts(&mut proxy, &fields, &batch).is_stream());
    let mut denied: Vec<(Value, bool)> =
        messages(&proxy.events()).iter().map(|answer| (answer["id"].clone(), is_denied(answer))).collect();
    denied.sort_by_key(|(id, _)| id.as_u64());
    assert_eq!(denied, [(json!(5), true), (json!(6), false), (json!(7), true)]);
    let metrics = Admin::of(&daemon).get("/metrics").body;
    let count = metrics.lines().find(|line| line.starts_with("stdio_bus_tool_calls_denied_total{"));
    assert!(count.is_some_and(|line| line.contains("pattern=\"delete_*\"") && line.ends_with(" 3")), "{count:?}");
    daemon.stop();
}

#[test]
fn on_one_connection_of_a_proxy_self_contained_requests_have_the_rules_of_their_own_groups() {
    let daemon = door_of(Setup::new([shared()]), with_groups());
    let mut proxy =
        Http::connect(daemon.address()).with("MCP-Protocol-Version", MODERN).with("Mcp-Method", "tools/call");
    for (at, groups, denied) in [(1, "interns", true), (2, "staff", false), (3, "interns", true), (4, "", false)] {
        let fields = [(USER, "alice"), (GROUPS, groups), ("Mcp-Name", "delete_all")];
        let answer = posts(&mut proxy, &fields, &modern(at, "tools/call", json!({ "name": "delete_all" }))).json();
        assert_eq!(is_denied(&answer), denied, "{groups}");
    }
    daemon.stop();
}

#[test]
fn a_websocket_has_the_rules_of_the_name_and_groups_of_its_token_and_those_of_a_reload_at_once() {
    let rules =
        json!({ "names": { "bob": { "deny_methods": ["secret"] } }, "groups": { "interns": { "deny_tools": ["x"] } } });
    let daemon = with_token(json!({ "ws": "127.0.0.1:0", "rules": rules }));
    let [mut alice, mut bob] = ["0123456789abcdef", "0123456789abcdeg"]
        .map(|token| web(&daemon, &[("Authorization", &format!("Bearer {token}"))]));
    let calls = |id: u64, clients: [&mut Socket; 2]| {
        clients.map(|client| {
            ask(client, id, "tools/call", json!({ "name": "x" }));
            is_denied(&message(client))
        })
    };
    let may_ask = |client: &mut Socket, id: u64| {
        ask(client, id, "secret", json!({}));
        message(client)["result"].is_object()
    };
    assert_eq!(calls(1, [&mut alice, &mut bob]), [true, false]);
    assert!(!may_ask(&mut bob, 11) && may_ask(&mut alice, 11));
    change(&daemon, |config| config["listeners"][0]["rules"] = json!({ "names": { "bob": { "allow_tools": ["y"] } } }));
    let told = said(&daemon, &["reload"]);
    assert!(told.contains("rules"), "{told}");
    assert_eq!(calls(2, [&mut alice, &mut bob]), [false, true]);
    change(&daemon, |config| config["listeners"][0]["rules"] = json!({ "groups": { "*": { "deny_tools": ["x"] } } }));
    said(&daemon, &["reload"]);
    assert_eq!(calls(3, [&mut alice, &mut bob]), [true, true]);
    assert!(may_ask(&mut bob, 14), "its rule has gone");
    daemon.stop();
}

#[test]
fn a_client_over_tcp_has_the_rules_of_the_name_in_its_certificate() {
    let rules = json!({ "names": { "alice smith": { "deny_methods": ["secret"] } } });
    let listener = json!({ "tcp": "127.0.0.1:0", "proxy": { "from": ["127.0.0.1"] }, "rules": rules });
    let setup = Setup::new([worker("tools", 1, &[])]).no_listener();
    let daemon = setup.set("listeners", json!([listener])).start();
    let connect = |name: &str| begins(&daemon, &binary("192.0.2.7:40000", name));
    let (mut alice, mut other) = (connect("alice smith"), connect("alice smit"));
    alice.ask(1, "secret", json!({}));
    assert_eq!(alice.error(1, "method_denied"), -32601);
    alice.request(2, "m", json!({}));
    other.request(1, "secret", json!({}));
    daemon.stop();
}

#[test]
fn a_token_that_is_given_another_group_has_the_rules_of_that_one() {
    let rules = json!({ "groups": { "interns": { "deny_tools": ["x"] } } });
    let daemon = with_token(json!({ "http": "127.0.0.1:0", "rules": rules, "pool": "tools" }));
    let asks = |id: u64| {
        let mut client = Http::connect(daemon.address()).with("Authorization", "Bearer 0123456789abcdef");
        let begun = client.ask(&request(0, "initialize", json!({ "protocolVersion": VERSION, "capabilities": {} })));
        let mut client = client.with("Mcp-Session-Id", &begun.fields["mcp-session-id"]);
        is_denied(&client.call(id, "tools/call", json!({ "name": "x" })))
    };
    assert!(asks(1));
    std::fs::write(daemon.path("tokens"), "alice:0123456789abcdef groups=staff\n").unwrap();
    daemon.logs(&["token_removed", " token=alice"]);
    assert!(!asks(2));
    daemon.stop();
}
