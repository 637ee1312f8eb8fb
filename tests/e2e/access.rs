//! Access of clients: how many are admitted, which of them, which pools they may name, and which methods they may use.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Daemon, PATIENCE, Setup, echo};

const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// A daemon with one TCP listener that has this key.
fn listening(pools: impl IntoIterator<Item = Value>, key: &str, value: Value) -> Daemon {
    let mut listener = json!({ "tcp": "127.0.0.1:0" });
    listener[key] = value;
    let setup = Setup::new(pools).no_listener().set("listeners", json!([listener]));
    setup.args(&["--log-level", "debug"]).start()
}

/// Checks that a client is refused with these words, and that its connection ends.
fn is_refused(mut client: Client, words: &str) {
    let message = client.message();
    assert_eq!(message["id"], Value::Null, "{message}");
    assert_eq!(message["error"]["code"], -32019, "{message}");
    assert_eq!(message["error"]["data"]["reason"], "connection_limit", "{message}");
    assert!(message["error"]["message"].as_str().unwrap().contains(words), "{message}");
    client.ends();
}

#[test]
fn one_source_has_its_connections_and_another_one_has_as_many() {
    let daemon = listening([echo("echo", 1)], "max_connections", json!({ "per_source": 2 }));
    let mut near: Vec<Client> = (0..2).map(|_| Client::over_tcp_from(NEAR, daemon.address())).collect();
    for client in &mut near {
        client.request(1, "m", json!({}));
    }
    is_refused(Client::over_tcp_from(NEAR, daemon.address()), "takes 2 connections from one source");
    daemon.logs(&["WARN", "connection_limit", "from 127.0.0.1 is rejected", "listeners[].max_connections"]);
    let mut far = Client::over_tcp_from(FAR, daemon.address());
    far.request(1, "m", json!({}));
    near.pop();
    daemon.logs(&["client_closed", "client=1"]);
    Client::over_tcp_from(NEAR, daemon.address()).request(1, "m", json!({}));
    near[0].request(2, "m", json!({}));
    daemon.stop();
}

#[test]
fn on_a_unix_socket_one_user_is_one_source() {
    let setup = Setup::new([echo("echo", 1)]).no_listener();
    let path = setup.path("bus");
    let daemon = setup.set("listeners", json!([{ "unix": path, "max_connections": { "per_source": 1 } }])).start();
    daemon.logs(&["listening on unix:"]);
    let mut first = Client::over_unix(&path);
    first.request(1, "m", json!({}));
    is_refused(Client::over_unix(&path), "takes 1 connection from one source");
    let user = rustix::process::getuid().as_raw();
    daemon.logs(&["connection_limit", &format!("from user {user} is rejected")]);
    daemon.stop();
}

#[test]
fn a_client_that_is_not_allowed_is_closed_at_once_with_a_warning_that_has_its_address() {
    let daemon = listening([echo("echo", 1)], "allow", json!(["127.0.0.2", "2001:db8::/32"]));
    for _ in 0..3 {
        Client::over_tcp_from(NEAR, daemon.address()).ends();
    }
    daemon.logs(&["WARN", "not_allowed", "127.0.0.1:", "is not in listeners[].allow", " from=127.0.0.1:"]);
    Client::over_tcp_from(FAR, daemon.address()).request(1, "m", json!({}));
    let log = daemon.stop().stderr;
    assert_eq!(log.matches("client_opened").count(), 1, "there was no other client:\n{log}");
}

#[test]
fn an_unlisted_user_is_closed_at_once_although_the_socket_is_accessible() {
    let user = rustix::process::geteuid().as_raw();
    let setup = Setup::new([echo("echo", 1)]).no_listener();
    let (ours, others) = (setup.path("ours"), setup.path("others"));
    let listeners =
        json!([{ "unix": ours, "peer_uids": [user, 4_000_000] }, { "unix": others, "peer_uids": [4_000_000] }]);
    let daemon = setup.set("listeners", listeners).start();
    daemon.logs_times("listening on unix:", 2);
    Client::over_unix(&others).ends();
    let told = format!("process {} of user {user} is not in listeners[].peer_uids", std::process::id());
    daemon.logs(&["WARN", "not_allowed", &told, &format!(" pid={} uid={user}", std::process::id())]);
    Client::over_unix(&ours).request(1, "m", json!({}));
    daemon.stop();
}

#[test]
fn a_user_that_is_not_listed_is_refused() {
    if !rustix::process::geteuid().is_root() {
        let status = std::process::Command::new("true").uid(65_533).status();
        return assert!(status.is_err(), "only root may be others");
    }
    // An abstract name has no permissions.
    let name = format!("stdio-bus-test-{}-users", std::process::id());
    let setup = Setup::new([echo("echo", 1)]).no_listener();
    let daemon = setup.set("listeners", json!([{ "unix": format!("@{name}"), "peer_uids": ["root"] }])).start();
    daemon.logs(&["listening on unix:"]);
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("it is short");
    let visit = move || {
        let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        connect(&socket, &address)?;
        // Only this is not an error of the system.
        let is_closed = rustix::io::read(&socket, &mut [0; 1])? == 0;
        if is_closed { Ok(()) } else { Err(std::io::ErrorKind::InvalidData.into()) }
    };
    let mut other = std::process::Command::new("true");
    other.uid(65_533);
    // SAFETY: it only makes system calls, on prepared values.
    unsafe { other.pre_exec(visit) };
    let ended = other.status().expect("it is closed without a byte");
    assert!(ended.success());
    daemon.logs(&["WARN", "not_allowed", "of user 65533 is not in listeners[].peer_uids", " uid=65533"]);
    daemon.stop();
}

#[test]
fn a_socket_file_is_given_to_its_owner_or_the_start_names_the_missing_privilege() {
    let setup = Setup::new([echo("echo", 1)]).no_listener();
    let path = setup.path("bus");
    let setup = setup.set("listeners", json!([{ "unix": path, "owner": "65533:65533", "mode": "0660" }]));
    if !rustix::process::geteuid().is_root() {
        let outcome = setup.run();
        assert_eq!(outcome.code, Some(73), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("only root, or a process with CAP_CHOWN"), "{}", outcome.stderr);
        return;
    }
    let daemon = setup.start();
    daemon.logs(&["listening on unix:"]);
    let file = std::fs::symlink_metadata(&path).expect("it is there");
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o777), (65_533, 65_533, 0o660));
    daemon.stop();
}

#[test]
fn a_listener_open_to_other_machines_warns_until_access_is_restricted() {
    let start = |listener: Value| {
        let mut daemon = Setup::new([echo("echo", 1)]).no_listener().set("listeners", json!([listener])).start();
        daemon.connect().request(1, "m", json!({}));
        daemon.stop().stderr
    };
    let open = start(json!({ "tcp": "0.0.0.0:0" }));
    let warning = "tcp://0.0.0.0:0 accepts clients from everywhere; restrict it with listeners[].allow, or write \
                   \"allow\": [\"0.0.0.0/0\", \"::/0\"]";
    assert!(open.lines().any(|line| line.contains(" WARN ") && line.contains(warning)), "{open}");
    for told in [json!({ "tcp": "0.0.0.0:0", "allow": ["0.0.0.0/0", "::/0"] }), json!({ "tcp": "127.0.0.1:0" })] {
        let quiet = start(told);
        assert!(!quiet.contains("accepts clients from everywhere"), "{quiet}");
    }
    let mut check = Setup::bare();
    let listeners = json!([{ "tcp": "0.0.0.0:9000" }]);
    std::fs::write(check.path("open.json"), json!({ "pools": [echo("echo", 1)], "listeners": listeners }).to_string())
        .expect("it can be written");
    let path = check.text_path("open.json");
    check = check.args(&["check", "--config", &path]);
    let outcome = check.run();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("warning: tcp://0.0.0.0:9000 accepts clients from everywhere"),
        "{}",
        outcome.stderr
    );
}
