//! Workers that are started with what is their clients' own (`pools[].env_from`): who gets what, where it comes from, and that it
//! is seen nowhere else.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use crate::admin::{Admin, with_admin};
use crate::harness::{Daemon, Setup, with, worker};
use crate::http::{Answer, Http, request};
use crate::mcp::{VERSION, door_of};
use crate::reload::reload;
use crate::websocket::{UPGRADE, ask, message, web};

const TOKEN: &str = "X-Github-Token";
const USER: &str = "X-Forwarded-User";
/// No part of it occurs anywhere by chance.
const SECRET: &str = "s3cret-0f-";

/// A pool whose workers get this.
fn personal(env_from: Value) -> Value {
    let mut pool = with(with(worker("tools", 1, &[]), "assignment", "dedicated"), "env_from", env_from);
    pool.as_object_mut().unwrap().remove("instances");
    pool
}

fn by_header() -> Value {
    personal(json!({ "headers": { TOKEN: "GITHUB_TOKEN" } }))
}

/// The folder of files of a daemon, with a file of each of these names.
fn files(setup: &Setup, names: &[&str]) -> Value {
    let folder = setup.path("users");
    for name in names {
        put(&folder, name, name);
    }
    json!({ "files": folder })
}

/// Writes the file of a name, such as `token/alice`.
fn put(folder: &Path, name: &str, value: &str) {
    let path = folder.join(format!("{name}.env"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("# {name}\nGITHUB_TOKEN={SECRET}{value}\n")).unwrap();
}

fn believes() -> Value {
    json!({ "identity": { "header": USER, "trusted_proxies": ["127.0.0.1"] } })
}

fn initialize() -> Value {
    request(0, "initialize", json!({ "protocolVersion": VERSION, "capabilities": {} }))
}

/// Begins a session with these fields in its request.
fn begins(address: SocketAddr, fields: &[(&str, &str)]) -> (Http, Answer) {
    let mut client = Http::connect(address);
    client.send("POST /mcp", fields, &initialize().to_string());
    let answer = client.answer();
    (client, answer)
}

/// A client of a session that was begun so.
fn session(address: SocketAddr, fields: &[(&str, &str)]) -> Http {
    let (client, answer) = begins(address, fields);
    assert_eq!(answer.status, 200, "{answer:?}");
    let id = answer.fields.get("mcp-session-id").unwrap_or_else(|| panic!("{answer:?}"));
    fields.iter().fold(client.with("Mcp-Session-Id", id), |client, (name, value)| client.with(name, value))
}

/// The variable of a client's worker.
fn token_of(client: &mut Http) -> Value {
    client.call(7, "who", json!({ "GITHUB_TOKEN": null }))["result"]["variables"]["GITHUB_TOKEN"].clone()
}

/// The code and message of an error.
fn error(answer: &Answer) -> (Value, String) {
    let error = &answer.json()["error"];
    (error["code"].clone(), error["message"].as_str().unwrap_or_default().to_owned())
}

/// Nothing that a daemon shows has a secret.
fn tells_nothing(daemon: Daemon) {
    let mut admin = Admin::of(&daemon);
    let tables = [
        "clients",
        "workers",
        "sessions",
        "pending",
        "waiting",
        "pools",
        "listeners",
        "limits",
        "errors",
        "top",
        "status",
        "reload",
    ];
    let paths = tables.iter().map(|table| format!("/{table}.json")).chain(["/metrics".into(), "/".into()]);
    for path in paths {
        let answer = admin.get(&path);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        assert!(!answer.body.contains(SECRET), "{path}: {}", answer.body);
    }
    let log = daemon.stop().stderr;
    assert!(!log.contains(SECRET), "{log}");
}

#[test]
fn each_session_has_a_worker_with_the_header_of_the_request_that_began_it_and_no_other() {
    let setup =
        with_admin(Setup::new([by_header()])).args(&["--log-level", "debug"]).set("log", json!({ "requests": true }));
    let daemon = door_of(setup, json!({}));
    let of = |name: &str| format!("{SECRET}{name}");
    let mut alice = session(daemon.address(), &[(TOKEN, &of("alice"))]);
    let mut bob = session(daemon.address(), &[("x-github-token", &of("bob"))]);
    assert_eq!((token_of(&mut alice), token_of(&mut bob)), (json!(of("alice")), json!(of("bob"))));
    alice.fields.last_mut().unwrap().1 = of("carol");
    assert_eq!(token_of(&mut alice), of("alice"), "a worker keeps what it was started with");
    let fields = alice.fields.clone();
    alice.send("DELETE /mcp", &[], "");
    assert_eq!(alice.answer().status, 204);
    let mut next = session(daemon.address(), &[(TOKEN, &of("dave"))]);
    assert_eq!(token_of(&mut next), of("dave"), "no worker is used again");
    assert!(fields.len() > 2);
    tells_nothing(daemon);
}

#[test]
fn without_its_header_nothing_is_started_and_what_is_ambiguous_is_refused() {
    let daemon = door_of(with_admin(Setup::new([by_header()])), json!({}));
    for fields in [&[][..], &[(TOKEN, "")], &[("X_Github_Token", "a")]] {
        let (code, why) = error(&begins(daemon.address(), fields).1);
        assert_eq!(code, -32032, "{why}");
        assert!(why.contains("no X-Github-Token"), "{why}");
    }
    for fields in [[(TOKEN, "s3cret-0f-a"), (TOKEN, "s3cret-0f-a")], [(TOKEN, "s3cret-0f-\u{7f}"), ("A", "b")]] {
        let answer = begins(daemon.address(), &fields).1;
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(!answer.body.contains("s3cret"), "{answer:?}");
    }
    daemon.logs(&["credentials_missing", "no X-Github-Token"]);
    let workers = Admin::of(&daemon).get("/workers.json").body;
    assert!(!workers.contains("\"pid\""), "{workers}");
    let mut good = session(daemon.address(), &[(TOKEN, "good")]);
    assert_eq!(token_of(&mut good), "good", "nobody else is affected");
    tells_nothing(daemon);
}

#[test]
fn a_header_that_no_pool_of_a_listener_wants_is_ignored() {
    let plain = with(worker("plain", 1, &[]), "assignment", "client");
    let listeners = json!([
        { "http": "127.0.0.1:0", "pools": ["plain"], "pool": "plain" },
        { "http": "127.0.0.1:0", "pool": "tools" }
    ]);
    let daemon = Setup::new([plain, by_header()]).no_listener().set("listeners", listeners).start();
    let twice = [(TOKEN, "a"), (TOKEN, "b")];
    assert_eq!(begins(daemon.address(), &twice).1.status, 200);
    daemon.stop();
}

#[test]
fn each_verified_name_has_the_file_of_its_kind_which_is_read_at_each_start() {
    let setup = with_admin(Setup::new([])).args(&["--log-level", "debug"]);
    let pool = personal(files(&setup, &["user/alice", "user/bob", "token/alice"]));
    let users = setup.path("users");
    let tokens = setup.path("tokens");
    fs::write(&tokens, "alice:0123456789abcdef\ncarol:fedcba9876543210\n").unwrap();
    let mut keys = believes();
    keys["tokens_file"] = json!(tokens);
    let daemon = door_of(setup.set("pools", json!([pool])), keys);
    let session = |fields: &[(&str, &str)]| session(daemon.address(), fields);
    let token = |token: &'static str| ("Authorization", token);
    assert_eq!(token_of(&mut session(&[(USER, "alice")])), "s3cret-0f-user/alice");
    assert_eq!(token_of(&mut session(&[(USER, "bob")])), "s3cret-0f-user/bob");
    assert_eq!(token_of(&mut session(&[token("Bearer 0123456789abcdef")])), "s3cret-0f-token/alice");
    put(&users, "user/alice", "changed");
    assert_eq!(token_of(&mut session(&[(USER, "alice")])), "s3cret-0f-changed");
    let (code, why) = error(&begins(daemon.address(), &[token("Bearer fedcba9876543210")]).1);
    assert_eq!(code, -32032);
    assert!(why.contains("token/carol.env does not exist"), "{why}");
    put(&users, "token/carol", "carol");
    assert_eq!(token_of(&mut session(&[token("Bearer fedcba9876543210")])), "s3cret-0f-carol", "it may try again");
    tells_nothing(daemon);
}

#[test]
fn names_that_lead_elsewhere_and_links_give_nobody_a_file() {
    let setup = with_admin(Setup::new([]));
    let pool = personal(files(&setup, &["user/alice"]));
    let users = setup.path("users");
    put(&users.join(".."), "outside", "outside");
    put(&users, "token/alice", "other kind");
    symlink(users.join("user/alice.env"), users.join("user/link.env")).unwrap();
    symlink(users.join("token"), users.join("user/folder")).unwrap();
    fs::write(users.join("user/broken.env"), format!("export A={SECRET}\n")).unwrap();
    let daemon = door_of(setup.set("pools", json!([pool])), believes());
    for (name, says) in [
        ("../outside", "no slash"),
        ("../../outside", "no slash"),
        ("../token/alice", "no slash"),
        ("folder/alice", "no slash"),
        ("/etc/passwd", "no slash"),
        ("..", "no dot"),
        (".", "no dot"),
        ("link", "is a link"),
        ("alice.env", "does not exist"),
        ("ALICE", "does not exist"),
        ("broken", "malformed in line 1"),
    ] {
        let answer = begins(daemon.address(), &[(USER, name)]).1;
        let (code, why) = error(&answer);
        assert_eq!(code, -32032, "{name}: {answer:?}");
        assert!(why.contains(says) && !why.contains(SECRET), "{name}: {why}");
    }
    assert_eq!(token_of(&mut session(daemon.address(), &[(USER, "alice")])), "s3cret-0f-user/alice");
    tells_nothing(daemon);
}

#[test]
fn whom_nobody_names_has_no_file_and_gets_the_reason() {
    let setup = Setup::new([]);
    let pool = personal(files(&setup, &["user/alice"]));
    let mut daemon = setup.set("pools", json!([pool])).start();
    let mut client = daemon.connect();
    let said = client.request(1, "who", json!({}));
    assert_eq!(said["error"]["code"], -32032, "{said}");
    assert!(said["error"]["message"].as_str().unwrap().contains("your name was not known"), "{said}");
    daemon.stop();
}

#[test]
fn connections_of_acp_and_websockets_have_their_own_workers_too() {
    let pool = by_header();
    let listeners = json!([{ "ws": "127.0.0.1:0" }, { "acp": "127.0.0.1:0" }]);
    let daemon = with_admin(Setup::new([pool])).no_listener().set("listeners", listeners).start();
    let mut sockets = ["alice", "bob"].map(|name| web(&daemon, &[("x-github-token", &format!("{SECRET}{name}"))]));
    for (socket, name) in sockets.iter_mut().zip(["alice", "bob"]) {
        ask(socket, 1, "who", json!({ "GITHUB_TOKEN": null }));
        let said = message(socket);
        assert_eq!(said["result"]["variables"]["GITHUB_TOKEN"], format!("{SECRET}{name}"), "{said}");
    }
    let mut without = web(&daemon, &[]);
    ask(&mut without, 1, "who", json!({}));
    assert_eq!(message(&mut without)["error"]["code"], -32032);
    let mut twice = crate::client::Client::over_tcp(daemon.address());
    twice.send_bytes(format!("{UPGRADE}{TOKEN}: a\r\n{TOKEN}: b\r\n\r\n").as_bytes());
    assert!(twice.rest().starts_with("HTTP/1.1 400 "));
    let acp = daemon.addresses(2)[1];
    for name in ["alice", "bob"] {
        let mut client = Http::connect(acp).with(TOKEN, &format!("{SECRET}{name}"));
        client.send("POST /acp", &[], &request(0, "initialize", json!({ "protocolVersion": 1 })).to_string());
        let begun = client.answer();
        assert_eq!(begun.status, 200, "{begun:?}");
        let mut client = client.with("Acp-Connection-Id", &begun.fields["acp-connection-id"]);
        let mut stream = client.again();
        stream.send("GET /acp", &[], "");
        assert!(stream.answer().is_stream());
        client.send("POST /acp", &[], &request(1, "who", json!({ "GITHUB_TOKEN": null })).to_string());
        assert_eq!(client.answer().status, 202);
        let said = stream.event().expect("it is answered").json();
        assert_eq!(said["result"]["variables"]["GITHUB_TOKEN"], format!("{SECRET}{name}"), "{said}");
    }
    tells_nothing(daemon);
}

#[test]
fn after_a_restart_of_the_daemon_files_are_read_again_and_sessions_with_headers_have_ended() {
    let folder = tempfile::TempDir::new().unwrap();
    let state = folder.path().join("state");
    fs::create_dir(&state).unwrap();
    let users = folder.path().join("users");
    put(&users, "user/alice", "before");
    for (env_from, lasts) in
        [(json!({ "files": users }), true), (json!({ "files": users, "headers": { TOKEN: "OTHER_TOKEN" } }), false)]
    {
        let start = || {
            let daemon = door_of(Setup::new([personal(env_from.clone())]).set("state", json!(state)), believes());
            daemon.address();
            daemon
        };
        put(&users, "user/alice", "before");
        let daemon = start();
        let mut client = session(daemon.address(), &[(USER, "alice"), (TOKEN, &format!("{SECRET}header"))]);
        let id = client.session_id();
        assert_eq!(token_of(&mut client), "s3cret-0f-before");
        daemon.stop();
        let written = fs::read_to_string(state.join("sessions")).expect("the daemon has written its state");
        assert!(!lasts || written.contains("tools"), "the session is there: {written}");
        assert!(!written.contains(SECRET), "{written}");
        put(&users, "user/alice", "after");
        let daemon = start();
        let mut client =
            Http::connect(daemon.address()).with("Mcp-Session-Id", &id).with(USER, "alice").with(TOKEN, "header");
        if lasts {
            assert_eq!(token_of(&mut client), "s3cret-0f-after");
        } else {
            assert_eq!(client.ask(&request(1, "who", json!({}))).status, 404);
        }
        daemon.stop();
    }
}

#[test]
fn a_reload_changes_what_the_next_workers_get() {
    let daemon = door_of(with_admin(Setup::new([by_header()])), json!({}));
    let mut before = session(daemon.address(), &[(TOKEN, "a")]);
    let said = reload(&daemon, |config| {
        config["pools"][0]["env_from"] = json!({ "headers": { "X-Other": "GITHUB_TOKEN" } });
    });
    assert!(said.contains("env_from"), "{said}");
    assert_eq!(token_of(&mut before), "a", "a session keeps its worker");
    assert_eq!(error(&begins(daemon.address(), &[(TOKEN, "b")]).1).0, -32032);
    assert_eq!(token_of(&mut session(daemon.address(), &[("x-other", "c")])), "c");
    reload(&daemon, |config| {
        let pool = &mut config["pools"][0];
        pool.as_object_mut().unwrap().remove("env_from");
        pool["instances"] = json!(1);
    });
    assert_eq!(token_of(&mut session(daemon.address(), &[])), Value::Null);
    assert_eq!(token_of(&mut before), "a");
    daemon.stop();
}

#[test]
fn clients_without_sessions_are_asked_to_begin_one() {
    let daemon = door_of(Setup::new([by_header()]), json!({}));
    let mut client = Http::connect(daemon.address()).with(TOKEN, "a");
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { "name": "x", "version": "1" }
    });
    for (method, code) in [("server/discover", -32601), ("tools/list", -32022)] {
        let fields = [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", method)];
        client.send("POST /mcp", &fields, &request(1, method, json!({ "_meta": meta })).to_string());
        let (told, why) = error(&client.answer());
        assert!(told == code && why.contains("begin with initialize"), "{method}: {told} {why}");
    }
    daemon.stop();
}

#[test]
fn values_in_env_may_be_in_a_file_or_a_variable_of_the_daemon_and_are_read_at_each_start() {
    let setup = Setup::new([]);
    let file = setup.path("key");
    fs::write(&file, "s3cret-0f-file\nsecond\n").unwrap();
    let env = json!({ "A": format!("$file:{}", file.display()), "B": "$env:OF_DAEMON", "C": "$$env:OF_DAEMON" });
    let pool = with(with(with(worker("tools", 1, &[]), "assignment", "dedicated"), "env", env), "max_instances", 8);
    let daemon = door_of(setup.set("pools", json!([pool])).variable("OF_DAEMON", "s3cret-0f-daemon"), json!({}));
    let variables = |client: &mut Http| {
        let said = client.call(1, "who", json!({ "A": null, "B": null, "C": null }));
        let variables = &said["result"]["variables"];
        ["A", "B", "C"].map(|name| variables[name].as_str().unwrap_or_default().to_owned())
    };
    let mut first = session(daemon.address(), &[]);
    assert_eq!(variables(&mut first), ["s3cret-0f-file\nsecond", "s3cret-0f-daemon", "$env:OF_DAEMON"]);
    fs::remove_file(&file).unwrap();
    session(daemon.address(), &[]);
    let told = daemon.logs(&["spawn_failed", "env.A", "key: "]);
    assert!(told.contains("No such file"), "{told}");
    assert!(!daemon.log().contains(SECRET), "{}", daemon.log());
    daemon.stop();
}

#[test]
fn neither_the_daemon_nor_such_a_worker_writes_a_core_dump() {
    let limit = |process: u64| {
        let limits = fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap().to_owned();
        let mut values = line["Max core file size".len()..].split_whitespace().map(str::to_owned);
        (values.next().unwrap(), values.next().unwrap())
    };
    let ours = limit(std::process::id().into());
    // A hard limit of 0 cannot be raised.
    let secret = (if ours.1 == "0" { "0" } else { "1" }.to_owned(), ours.1.clone());
    let other = with(with(worker("plain", 1, &[]), "assignment", "dedicated"), "max_instances", 4);
    let daemon = door_of(Setup::new([by_header(), other]), json!({}));
    daemon.address();
    assert_eq!(limit(daemon.pid().into()), secret);
    let pid = |path: &str| {
        let mut client = Http::connect(daemon.address()).with(TOKEN, "a");
        client.send(&format!("POST {path}"), &[], &initialize().to_string());
        let id = client.answer().fields["mcp-session-id"].clone();
        client.send(&format!("POST {path}"), &[("Mcp-Session-Id", &id)], &request(1, "who", json!({})).to_string());
        let pid = client.answer().json()["result"]["pid"].as_u64().unwrap();
        (limit(pid), client)
    };
    let (of_personal, _kept) = pid("/mcp/tools");
    assert_eq!(of_personal, secret);
    assert_eq!(pid("/mcp/plain").0, ours, "other workers are not concerned");
    daemon.stop();
}

#[test]
fn an_initialize_that_names_a_session_begins_another_one_with_the_header_that_it_brings() {
    let daemon = door_of(Setup::new([by_header()]), json!({}));
    let mut first = session(daemon.address(), &[(TOKEN, "first")]);
    assert_eq!(token_of(&mut first), "first");
    let known = first.fields.iter().find(|(name, _)| name == "Mcp-Session-Id").unwrap().1.clone();
    for id in [&*known, "of-nobody"] {
        let (client, answer) = begins(daemon.address(), &[("Mcp-Session-Id", id), (TOKEN, "second")]);
        assert_eq!(answer.status, 200, "{answer:?}");
        let id = answer.fields.get("mcp-session-id").unwrap_or_else(|| panic!("{answer:?}"));
        assert_eq!(token_of(&mut client.with("Mcp-Session-Id", id)), "second");
    }
    assert_eq!(token_of(&mut first), "first");
    daemon.stop();
}
