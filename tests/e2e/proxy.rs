//! Clients behind a proxy: its PROXY header identifies them, and only listed proxies are trusted.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use proxy_header::{ProxiedAddress, ProxyHeader, SslInfo, Tlv};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Daemon, Setup, complaints, echo, with, worker};
use crate::websocket::UPGRADE;

/// The proxy.
const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Another client.
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

const TEXT: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 9000\r\n";
/// LOCAL: a proxy's health check.
const CHECK: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// A daemon whose only TCP listener trusts 127.0.0.1, with these additional keys.
fn behind(proxy: Value, keys: Value) -> Daemon {
    let mut listener = json!({ "tcp": "127.0.0.1:0", "proxy": with(proxy, "from", json!(["127.0.0.1"])) });
    keys.as_object().unwrap().iter().for_each(|(key, value)| listener[key] = value.clone());
    Setup::new([echo("echo", 1)]).no_listener().set("listeners", json!([listener])).start()
}

/// A version 2 header for a client whose certificate has this name.
pub fn binary(source: &str, name: &str) -> Vec<u8> {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let mut ssl = SslInfo::new(true, true, true, 0);
    ssl.append_tlv(Tlv::SslCn(name.into()));
    let fields = [Tlv::Ssl(ssl), Tlv::Authority("bus.example".into()), Tlv::UniqueId(b"A1:7".into())];
    let to = if source.starts_with('[') { "[2001:db8::1]:9000" } else { "198.51.100.1:9000" };
    let addresses = ProxiedAddress::stream(address(source), address(to));
    let mut bytes = Vec::new();
    ProxyHeader::with_tlvs(Some(addresses), fields).encode_v2(&mut bytes).unwrap();
    bytes
}

/// A connection from the proxy that starts with these bytes.
pub fn begins(daemon: &Daemon, bytes: &[u8]) -> Client {
    let mut client = Client::over_tcp_from(NEAR, daemon.address());
    client.send_bytes(bytes);
    client
}

#[test]
fn a_client_has_the_address_and_the_names_that_the_proxy_reports() {
    let daemon = behind(json!({}), json!({}));
    let request = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\n";
    let mut first = begins(&daemon, &[TEXT, request].concat());
    first.answer(1);
    daemon.logs(&["INFO", "client_opened", "client=0", " from=192.0.2.7:40000", " via=127.0.0.1:"]);
    let mut second = begins(&daemon, &[&binary("[2001:db8::7]:40000", "alice smith"), &request[..]].concat());
    second.answer(1);
    let names = [" from=[2001:db8::7]:40000", " cn=\"alice smith\"", " sni=bus.example", " unique_id=A1:7"];
    daemon.logs(&[&["client_opened", "client=1"], &names[..]].concat());
    second.send_line("no JSON");
    daemon.logs(&[&["WARN", "client_malformed", "client=1"], &names[..]].concat());
    second.message();
    second.ends();
    drop(second);
    daemon.logs(&[&["client_closed", "client=1", "answered=1"], &names[..]].concat());
    first.request(2, "m", json!({}));
    daemon.stop();
}

#[test]
fn a_header_may_be_cut_at_every_byte_and_no_line_behind_it_is_lost() {
    let daemon = behind(json!({}), json!({}));
    for header in [TEXT.to_vec(), binary("192.0.2.7:40000", "alice")] {
        let lines =
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\n{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"m\"}\n";
        let bytes = [&header, &lines[..]].concat();
        for cut in (1..header.len() + 3).chain([bytes.len() - 1]) {
            let mut client = begins(&daemon, &bytes[..cut]);
            client.send_bytes(&bytes[cut..]);
            client.answer(1);
            client.answer(2);
        }
        let mut slow = Client::over_tcp_from(NEAR, daemon.address());
        bytes.iter().for_each(|byte| slow.send_bytes(&[*byte]));
        slow.answer(1);
        slow.answer(2);
    }
    assert!(complaints(&daemon.log()).is_empty(), "{}", daemon.log());
    daemon.stop();
}

#[test]
fn a_header_from_an_address_that_is_not_listed_is_refused_by_name() {
    let daemon = behind(json!({}), json!({}));
    for header in [TEXT.to_vec(), binary("192.0.2.7:40000", "mallory")] {
        let mut forged = Client::over_tcp_from(FAR, daemon.address());
        forged.send_bytes(&[&header, &b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\n"[..]].concat());
        assert_eq!(forged.error(Value::Null, "proxy_header"), -32600);
        forged.ends();
    }
    daemon.logs_times("not in listeners[].proxy.from", 2);
    daemon.logs(&["WARN", "proxy_header", " from=127.0.0.2:"]);
    assert!(!daemon.log().contains("from=192.0.2.7"), "{}", daemon.log());
    Client::over_tcp_from(FAR, daemon.address()).request(1, "m", json!({}));
    daemon.stop();
}

#[test]
fn a_listener_without_proxies_says_how_to_believe_one() {
    let daemon = Setup::new([echo("echo", 1)]).start();
    assert_eq!(begins(&daemon, TEXT).error(Value::Null, "proxy_header"), -32600);
    daemon.logs(&["WARN", "listeners[].proxy.from of its listener does not contain 127.0.0.1:"]);
    daemon.stop();
}

#[test]
fn a_connection_of_the_proxy_without_a_header_is_closed_with_a_reason() {
    let daemon = behind(json!({}), json!({}));
    let mut plain = begins(&daemon, b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\n");
    assert_eq!(plain.rest(), "");
    daemon.logs(&[
        "WARN",
        "proxy_header",
        "does not begin with a PROXY header; let the proxy send one",
        " from=127.0.0.1:",
    ]);
    let mut malformed = begins(&daemon, b"PROXY TCP4 here there 1 2\r\n");
    assert_eq!(malformed.rest(), "");
    daemon.logs(&["WARN", "proxy_header", "its PROXY header is malformed"]);
    let mut half = begins(&daemon, &TEXT[..20]);
    half.half_close();
    assert_eq!(half.rest(), "");
    daemon.logs(&["WARN", "proxy_header", "it ended in the middle of its PROXY header"]);
    // A load balancer's check that only connects.
    drop(Client::over_tcp_from(NEAR, daemon.address()));
    begins(&daemon, TEXT).request(1, "m", json!({}));
    let log = daemon.stop().stderr;
    assert_eq!((complaints(&log).len(), log.matches("client_opened").count()), (3, 1), "{log}");
}

#[test]
fn a_header_that_is_late_is_not_waited_for() {
    let daemon = behind(json!({}), json!({}));
    let (mut silent, mut half) = (begins(&daemon, b""), begins(&daemon, &TEXT[..20]));
    assert_eq!((silent.rest(), half.rest()), (String::new(), String::new()));
    daemon.logs_times("no whole PROXY header came within 3 s", 2);
    begins(&daemon, TEXT).request(1, "m", json!({}));
    daemon.stop();
}

#[test]
fn connections_without_a_header_keep_no_client_out_and_are_limited() {
    let daemon = behind(json!({}), json!({}));
    daemon.address();
    let before = daemon.descriptors();
    // As many as there are slots, and 256 more.
    daemon.stand_still();
    let silent: Vec<Client> = (0..1500).map(|_| begins(&daemon, b"")).collect();
    // It sees all of them at once, and none is late before the last has come.
    daemon.signal(Signal::CONT);
    begins(&daemon, TEXT).request(1, "m", json!({}));
    daemon.logs(&["WARN", "proxy_header", "more connections wait than there is room for"]);
    daemon.until("the others are closed", || daemon.descriptors() < before + 1380);
    assert!(!daemon.log().contains("connection_limit"), "{}", daemon.log());
    // They do not delay the shutdown either.
    daemon.stop();
    drop(silent);
}

#[test]
fn a_whole_request_behind_a_header_is_not_refused_for_slower_ones_of_its_source() {
    let listener = json!({
        "ws": "127.0.0.1:0", "proxy": { "from": ["127.0.0.1"] }, "max_connections": { "per_source": 1 }
    });
    let daemon = Setup::new([echo("echo", 1)]).no_listener().set("listeners", json!([listener])).start();
    let _slow = begins(&daemon, &[TEXT, &UPGRADE.as_bytes()[..20]].concat());
    let mut whole = begins(&daemon, &[TEXT, UPGRADE.as_bytes(), b"\r\n"].concat());
    let answer = whole.line();
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    daemon.stop();
}

#[test]
fn behind_a_proxy_the_clients_own_address_is_what_is_allowed() {
    let daemon = behind(json!({}), json!({ "allow": ["192.0.2.0/24"] }));
    begins(&daemon, TEXT).request(1, "m", json!({}));
    assert_eq!(begins(&daemon, b"PROXY TCP4 203.0.113.9 198.51.100.1 1 2\r\n").rest(), "");
    daemon.logs(&["WARN", "not_allowed", "203.0.113.9:1 is not in listeners[].allow", " via=127.0.0.1:"]);
    // A proxy's health check. It needs no permission, and is not logged.
    begins(&daemon, CHECK).request(1, "m", json!({}));
    drop(begins(&daemon, CHECK));
    begins(&daemon, TEXT).request(1, "m", json!({}));
    let log = daemon.stop().stderr;
    assert_eq!(log.matches("client_opened").count(), 2, "{log}");
}

#[test]
fn a_client_that_the_proxy_brings_without_an_address_passes_no_allow() {
    let unix = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x31\0\xd8"[..], &[b'x'; 216]].concat();
    let unspecified = b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0";
    // The place of the proxy is not the client's, either.
    let daemon = behind(json!({}), json!({ "allow": ["127.0.0.1", "192.0.2.0/24"] }));
    for header in [&unix[..], unspecified] {
        assert_eq!(begins(&daemon, header).rest(), "");
        daemon.logs(&["WARN", "not_allowed", "an unknown source is not in listeners[].allow", " via=127.0.0.1:"]);
    }
    begins(&daemon, TEXT).request(1, "m", json!({}));
    daemon.stop();
    let daemon = behind(json!({}), json!({}));
    begins(&daemon, &unix).request(1, "m", json!({}));
    daemon.logs(&["INFO", "client_opened", " via=127.0.0.1:"]);
    daemon.stop();
}

#[test]
fn a_proxys_health_check_that_resets_is_not_refused() {
    let daemon = behind(json!({}), json!({}));
    // It has reported it before it stops.
    daemon.address();
    daemon.stand_still();
    for _ in 0..20 {
        begins(&daemon, b"PROXY UNKNOWN\r\n").reset();
    }
    daemon.signal(Signal::CONT);
    begins(&daemon, TEXT).request(1, "m", json!({}));
    let log = daemon.stop().stderr;
    assert!(!log.contains("proxy_header"), "{log}");
    assert_eq!(log.matches("client_opened").count(), 1, "{log}");
}

#[test]
fn a_proxy_may_come_over_a_unix_socket() {
    let setup = Setup::new([worker("agents", 1, &[])]).no_listener();
    let path = setup.path("bus");
    let daemon = setup.set("listeners", json!([{ "unix": path, "proxy": { "from": ["unix"] } }])).start();
    daemon.logs(&["listening on unix:"]);
    let mut client = Client::over_unix(&path);
    client.send_bytes(&binary("192.0.2.7:40000", "alice"));
    client.request(1, "m", json!({}));
    let via = format!("via=\"process {} of user", std::process::id());
    daemon.logs(&["client_opened", " from=192.0.2.7:40000", &via, " cn=alice"]);
    daemon.stop();
}
