//! Reloads: changes that apply at once, rolling replacement of workers, and no lost requests.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::FileType;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::admin::{Admin, command, metric, said, start_ready, until_status, with_admin};
use crate::client::Client;
use crate::harness::{Daemon, SetAtTheEnd, Setup, echo, figure, lives, refuses_connections, shell, with, worker};
use crate::http::{Http, request};
use crate::service::Manager;

/// Changes the configuration file.
pub fn change(daemon: &Daemon, change: impl FnOnce(&mut Value)) {
    let path = daemon.path("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).expect("it was written")).expect("it is JSON");
    change(&mut config);
    // As a careful operator does, so that it is never read half-written.
    let next = daemon.path("config.next");
    fs::write(&next, config.to_string()).expect("there is room");
    fs::rename(&next, &path).expect("it is ours");
}

/// The same, and reloads it. Returns the output.
pub fn reload(daemon: &Daemon, with: impl FnOnce(&mut Value)) -> String {
    change(daemon, with);
    said(daemon, &["reload"])
}

fn name_of(client: &mut Client, id: u64) -> Value {
    let answer = client.request(id, "who", json!({}));
    answer["result"]["name"].as_str().unwrap_or_else(|| panic!("{answer}")).into()
}

/// A pool whose workers have this name.
fn named(name: &str, instances: usize) -> Value {
    worker("agents", instances, &["--name", name])
}

#[test]
fn a_hangup_replaces_the_workers_of_a_changed_command_and_no_request_is_lost() {
    let mut daemon = start_ready(Setup::new([named("old", 2)]).hears_hangups());
    let (mut client, mut held) = (daemon.connect(), daemon.connect());
    held.ask_in("s", 1, "hold", json!({}));
    held.request_in("s", 2, "m", json!({}));
    change(&daemon, |config| config["pools"][0] = named("new", 2));
    daemon.signal(Signal::HUP);
    daemon.logs(&["the configuration was reloaded", "pools[\"agents\"].args"]);
    let mut id = 1;
    daemon.until("all that is asked is answered by new workers", || {
        let names = [id + 1, id + 2].map(|id| name_of(&mut client, id));
        id += 2;
        names.iter().all(|name| name == "new")
    });
    daemon.logs(&["pool_rolled"]);
    let workers = || Admin::of(&daemon).get("/workers.json").body.matches("\"worker\":").count();
    daemon.until("one is left that has a request to answer", || workers() == 3);
    held.ask_in("s", 3, "release", json!({}));
    drop(held);
    daemon.until("the last old one has ended", || workers() == 2);
    daemon.stop();
}

#[test]
fn an_invalid_reload_changes_nothing_and_reports_all_problems_with_their_places() {
    let mut daemon = start_ready(Setup::new([named("old", 1)]));
    change(&daemon, |config| {
        config["pools"][0] = with(named("new", 1), "instance", 2);
        config["limits"]["quiesce_sec"] = json!(-1);
    });
    let (code, out, wrong) = command(&daemon, &["reload"]);
    assert_eq!((code, out.as_str()), (Some(78), ""));
    for part in ["config.json:1:", "pools[0].instance: is not a known key", "did you mean", "limits.quiesce_sec"] {
        assert!(wrong.contains(part), "{part}: {wrong}");
        daemon.logs(&["the reload changes nothing:", part]);
    }
    let (code, _, wrong) = command(&daemon, &["reload", "--dry-run"]);
    assert!(code == Some(78) && wrong.contains("quiesce_sec"), "{wrong}");
    let metrics = Admin::of(&daemon).get("/metrics").body;
    assert_eq!(metric(&metrics, "stdio_bus_reloads_total{result=\"failed\"}"), 1.0);
    assert_eq!(metric(&metrics, "stdio_bus_last_reload_successful"), 0.0);
    assert_eq!(name_of(&mut daemon.connect(), 1), "old");
    reload(&daemon, |config| {
        config["pools"][0] = named("new", 1);
        config["limits"]["quiesce_sec"] = json!(0);
    });
    assert_eq!(metric(&Admin::of(&daemon).get("/metrics").body, "stdio_bus_last_reload_successful"), 1.0);
    assert_eq!(name_of(&mut daemon.connect(), 1), "new");
    daemon.stop();
}

#[test]
fn the_figures_of_a_removed_pool_and_listener_go_with_the_last_of_them() {
    let mut setup = Setup::new([named("stays", 1), worker("goes", 1, &[])]);
    let listeners = json!([{ "unix": "@goes-by-reload", "pool": "goes" }]);
    setup.config()["listeners"] = listeners;
    let daemon = start_ready(setup);
    let shown = |what: &str| {
        let admin = Admin::of(&daemon);
        let all = ["/metrics", "/pools.json", "/listeners.json"].map(|path| Admin::of(&daemon).get(path).body);
        drop(admin);
        all.iter().any(|text| text.contains(what))
    };
    assert!(shown("\"goes\"") && shown("goes-by-reload"));
    reload(&daemon, |config| {
        let pools = config["pools"].as_array_mut().expect("pools");
        pools.retain(|pool| pool["id"] != "goes");
        config["listeners"] = json!([]);
    });
    daemon.until("nothing of them is left", || !shown("\"goes\"") && !shown("goes-by-reload"));
    assert!(shown("\"agents\""));
    daemon.stop();
}

#[test]
fn a_dry_run_says_what_would_change_and_changes_nothing() {
    let mut daemon = start_ready(Setup::new([with(named("old", 1), "env", json!({ "KEY": "old secret" }))]));
    change(&daemon, |config| {
        config["pools"][0] = with(named("new", 3), "env", json!({ "KEY": "new secret" }));
        config["listeners"] = json!([{ "tcp": "127.0.0.1:0" }, { "unix": "@a-dry-run" }]);
    });
    // The command line's is the first of the same address.
    change(&daemon, |config| config["listeners"] = json!([{ "unix": "@a-dry-run" }]));
    let plan = said(&daemon, &["reload", "--dry-run"]);
    for part in ["pools[\"agents\"].instances: 1 → 3", ".env.KEY: changed", "\"old\"", "a-dry-run"] {
        assert!(plan.contains(part), "{part}: {plan}");
    }
    assert!(!plan.contains("secret"), "{plan}");
    assert!(!plan.contains("warning"), "{plan}");
    assert_eq!(name_of(&mut daemon.connect(), 1), "old");
    let listeners = Admin::of(&daemon).get("/listeners.json").body;
    assert!(!listeners.contains("a-dry-run"), "{listeners}");
    assert_eq!(said(&daemon, &["reload", "--dry-run"]), plan);
    change(&daemon, |config| config["pools"][0]["args"] = json!(["/no/such/worker.py"]));
    let plan = said(&daemon, &["reload", "--dry-run"]);
    assert!(plan.contains("warning: pools[0].args[0]: /no/such/worker.py does not exist"), "{plan}");
    daemon.stop();
}

#[test]
fn a_reload_requested_by_a_signal_during_a_dry_run_begins_after_it() {
    let daemon = start_ready(Setup::new([named("old", 1)]).hears_hangups());
    let mut admin = Admin::of(&daemon);
    assert_eq!(admin.get("/readyz").status, 200);
    // The daemon gets both at once when it continues, so that the dry run is in progress when the signal is handled.
    daemon.signal(Signal::STOP);
    admin.send("POST /reload?dry_run=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    daemon.signal(Signal::HUP);
    daemon.signal(Signal::CONT);
    daemon.logs(&["the configuration was reloaded"]);
    daemon.stop();
}

#[test]
fn a_command_that_keeps_failing_is_reported_and_the_old_workers_stay() {
    let mut daemon = start_ready(Setup::new([named("old", 2)]));
    let mut client = daemon.connect();
    change(&daemon, |config| config["pools"][0] = with(shell("agents", "exit 3"), "instances", 2));
    let (code, _, told) = command(&daemon, &["reload"]);
    assert!(code == Some(1) && told.contains("pool \"agents\"") && told.contains("Correct the command"), "{told}");
    daemon.logs(&["roll_failed"]);
    let ready = Admin::of(&daemon).get("/readyz");
    assert!(ready.status == 200 && ready.body.contains("pool \"agents\""), "{ready:?}");
    assert_eq!(name_of(&mut client, 1), "old");
    // If one exits, it is replaced by the command that is known to work.
    client.ask(2, "exit", json!({ "code": 1 }));
    client.error(2, "worker_exited");
    daemon.logs(&["worker_started", "incarnation=5"]);
    for id in 3..6 {
        assert_eq!(name_of(&mut client, id), "old");
    }
    reload(&daemon, |config| config["pools"][0] = named("new", 2));
    assert_eq!(Admin::of(&daemon).get("/readyz").body, "ready\n");
    daemon.stop();
}

#[test]
fn new_listeners_are_opened_and_gone_ones_keep_their_clients_for_the_time_of_a_drain() {
    let setup = Setup::new([worker("agents", 1, &[])]).limit("drain_timeout_sec", 1);
    let path = setup.text_path("gone");
    let mut daemon = start_ready(setup.set("listeners", json!([{ "unix": path }])));
    let (mut stays, mut goes) = (daemon.connect(), Client::over_unix(path.as_ref()));
    goes.request(1, "m", json!({}));
    let other = daemon.path("new").display().to_string();
    reload(&daemon, |config| config["listeners"] = json!([{ "unix": other, "mode": "0660" }]));
    assert!(!daemon.path("gone").exists(), "its file goes with it");
    assert_eq!(fs::metadata(&other).expect("it is there").permissions().mode() & 0o777, 0o660);
    assert_eq!(goes.request(2, "m", json!({}))["id"], 2);
    assert_eq!(Client::over_unix(other.as_ref()).request(1, "m", json!({}))["id"], 1);
    assert_eq!(goes.error(json!(null), "listener_removed"), -32030);
    goes.ends();
    // The permissions of a listener that stays change in place.
    reload(&daemon, |config| config["listeners"][0]["mode"] = json!("0600"));
    assert_eq!(fs::metadata(&other).expect("it is there").permissions().mode() & 0o777, 0o600);
    assert_eq!(stays.request(9, "m", json!({}))["id"], 9);
    daemon.stop();
}

#[test]
fn listeners_have_the_numbers_of_the_configuration_after_a_reload_too() {
    let setup = Setup::new([worker("agents", 1, &[])]).limit("drain_timeout_sec", 60);
    let [first, second, third] = ["first", "second", "third"].map(|name| setup.text_path(name));
    let daemon = start_ready(setup.set("listeners", json!([{ "unix": first }, { "unix": second }])));
    // A client keeps the place of the listener that goes.
    let mut stays = Client::over_unix(first.as_ref());
    stays.request(1, "m", json!({}));
    reload(&daemon, |config| config["listeners"] = json!([{ "unix": third }, { "unix": second }]));
    let paused = said(&daemon, &["pause", "listener", "1"]);
    assert!(paused.contains("third"), "{paused}");
    let status = |query: &str| Admin::of(&daemon).get(&format!("/readyz?listener={query}")).status;
    assert_eq!(["1", "2", "3", "01"].map(status), [404, 200, 400, 400]);
    let shown: Value = serde_json::from_str(&Admin::of(&daemon).get("/listeners.json").body).expect("it is JSON");
    let numbers = shown["listeners"].as_array().expect("rows").iter().map(|row| {
        let name = row["listener"].as_str().expect("a name").rsplit('/').next().expect("a path").to_owned();
        (name, row["number"].as_u64())
    });
    let known = [("127.0.0.1:0", Some(0)), ("first", None), ("second", Some(2)), ("third", Some(1))];
    let known = known.map(|(name, at)| (name.to_owned(), at));
    assert_eq!(numbers.collect::<BTreeMap<_, _>>(), BTreeMap::from(known));
    daemon.stop();
}

#[test]
fn an_address_may_switch_its_protocol_without_refusing_a_connection() {
    let setup = Setup::new([with(worker("agents", 1, &[]), "assignment", "client")]).no_listener();
    let path = setup.text_path("socket");
    let daemon = start_ready(setup.set("listeners", json!([{ "unix": path }])));
    let mut line = Client::over_unix(path.as_ref());
    line.request(1, "m", json!({}));
    reload(&daemon, |config| config["listeners"] = json!([{ "http": format!("unix:{path}") }]));
    assert_eq!(line.request(2, "m", json!({}))["id"], 2);
    let mut web = Client::over_unix(path.as_ref());
    web.send_bytes(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(web.line().starts_with("HTTP/1.1 "));
    // And back, as when an operator reverts a change.
    reload(&daemon, |config| config["listeners"] = json!([{ "unix": path }]));
    assert_eq!(Client::over_unix(path.as_ref()).request(3, "m", json!({}))["id"], 3);
    assert_eq!(line.request(4, "m", json!({}))["id"], 4);
    daemon.stop();
}

#[test]
fn a_daemon_without_a_rereadable_configuration_drains_on_a_hangup() {
    let mut daemon = with_admin(Setup::bare().tcp().hears_hangups()).start();
    let mut client = daemon.connect();
    client.request(1, "m", json!({}));
    let (code, _, why) = command(&daemon, &["reload"]);
    assert!(code == Some(1) && why.contains("with --config"), "{why}");
    daemon.signal(Signal::HUP);
    client.ends();
    daemon.ends_well();
}

#[test]
fn a_reload_lets_other_daemons_share_a_port() {
    let at = |port: u16, is_shared: bool| {
        let listener = json!({ "tcp": format!("127.0.0.1:{port}"), "reuse_port": is_shared });
        Setup::new([named("one", 1)]).no_listener().set("listeners", json!([listener]))
    };
    let running = start_ready(at(0, false));
    let another = || at(running.address().port(), true);
    assert_eq!(another().run().code, Some(73));
    reload(&running, |config| config["listeners"][0]["reuse_port"] = json!(true));
    let other = another().start();
    assert_eq!(other.address(), running.address());
    other.stop();
    running.stop();
}

#[test]
fn the_service_manager_is_notified_of_a_reload_and_its_end() {
    let (mut manager, setup) = Manager::new(Setup::new([named("old", 1)]));
    let daemon = start_ready(setup);
    manager.hears("READY=1");
    manager.forget();
    reload(&daemon, |config| config["pools"][0] = named("new", 1));
    manager.hears("RELOADING=1");
    let since = manager.hears("MONOTONIC_USEC=");
    assert!(since["MONOTONIC_USEC=".len()..].parse::<u64>().is_ok_and(|since| since > 0), "{since}");
    manager.hears("READY=1");
    manager.forget();
    change(&daemon, |config| config["pools"] = json!([]));
    assert_eq!(command(&daemon, &["reload"]).0, Some(78));
    manager.hears("RELOADING=1");
    manager.hears("READY=1");
    daemon.stop();
}

#[test]
fn a_client_with_a_revoked_token_is_closed_by_a_reload() {
    let setup = Setup::new([worker("agents", 1, &[])]).no_listener();
    let [old, new] = ["old", "new"].map(|name| setup.text_path(name));
    fs::write(&old, "alice:0123456789abcdef\nbob:fedcba9876543210\n").expect("there is room");
    fs::write(&new, "bob:fedcba9876543210\n").expect("there is room");
    let listener = json!({ "ws": "127.0.0.1:0", "tokens_file": old });
    let daemon = start_ready(setup.set("listeners", json!([listener])));
    let connect = |token: &str| {
        let mut client = Client::over_tcp(daemon.address());
        let key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
        let head = format!(
            "GET /acp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}\r\n\
             Authorization: Bearer {token}\r\n\r\n"
        );
        client.send_bytes(head.as_bytes());
        let status = client.line();
        (client, status)
    };
    let (_alice, status) = connect("0123456789abcdef");
    assert!(status.contains("101"), "{status}");
    reload(&daemon, |config| config["listeners"][0]["tokens_file"] = json!(new));
    daemon.logs(&["token_removed", "token=alice"]);
    assert!(connect("0123456789abcdef").1.contains("401"));
    assert!(connect("fedcba9876543210").1.contains("101"));
    // The new file is the one that is watched from now on.
    fs::write(&new, "carol:0011223344556677\n").expect("there is room");
    daemon.until("it was read again", || connect("0011223344556677").1.contains("101"));
    daemon.stop();
}

#[test]
fn a_client_whose_token_is_good_for_no_pool_of_its_listener_any_more_is_closed_by_a_reload() {
    let setup = Setup::new([worker("open", 1, &[]), worker("secret", 1, &[])]).no_listener();
    let tokens = setup.text_path("tokens");
    fs::write(&tokens, "alice:0123456789abcdef open\n").expect("there is room");
    let listener = json!({ "ws": "127.0.0.1:0", "tokens_file": tokens, "pools": ["open"] });
    let daemon = start_ready(setup.set("listeners", json!([listener])));
    let mut alice = Client::over_tcp(daemon.address());
    let key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    let head = format!(
        "GET /acp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}\r\n\
         Authorization: Bearer 0123456789abcdef\r\n\r\n"
    );
    alice.send_bytes(head.as_bytes());
    assert!(alice.line().contains("101"));
    reload(&daemon, |config| config["listeners"][0]["pools"] = json!(["secret"]));
    daemon.logs(&["token_removed", "token=alice"]);
    daemon.stop();
}

#[test]
fn sessions_with_tokens_go_on_for_a_while_when_their_listener_is_removed_together_with_its_pool() {
    let gone = with(worker("gone", 1, &[]), "assignment", "client");
    let setup = Setup::new([gone, worker("stays", 1, &[])]).no_listener();
    let tokens = setup.text_path("tokens");
    fs::write(&tokens, "alice:0123456789abcdef\n").expect("there is room");
    let listener = json!({ "http": "127.0.0.1:0", "tokens_file": tokens, "pools": ["gone"] });
    let daemon = start_ready(setup.set("listeners", json!([listener])));
    let mut alice = Http::connect(daemon.address()).with("Authorization", "Bearer 0123456789abcdef");
    let begins = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
    let id = alice.ask(&request(0, "initialize", begins)).fields["mcp-session-id"].clone();
    let mut alice = alice.with("Mcp-Session-Id", &id);
    assert_eq!(alice.call(1, "m", json!({}))["id"], 1);
    let path = daemon.path("other").display().to_string();
    reload(&daemon, |config| {
        config["listeners"] = json!([{ "unix": path }]);
        config["pools"].as_array_mut().expect("pools").remove(0);
    });
    assert_eq!(alice.call(2, "m", json!({}))["id"], 2);
    daemon.stop();
}

#[test]
fn a_session_with_a_token_added_after_the_start_continues_when_its_listener_is_removed() {
    let setup = Setup::new([with(worker("agents", 1, &[]), "assignment", "client")]).no_listener();
    let tokens = setup.text_path("tokens");
    fs::write(&tokens, "alice:0123456789abcdef\n").expect("there is room");
    let listener = json!({ "http": "127.0.0.1:0", "tokens_file": tokens });
    let daemon = start_ready(setup.set("listeners", json!([listener])));
    fs::write(&tokens, "alice:0123456789abcdef\ncarol:0011223344556677\n").expect("there is room");
    let begins = request(0, "initialize", json!({ "protocolVersion": "2025-11-25", "capabilities": {} }));
    let connect = || Http::connect(daemon.address()).with("Authorization", "Bearer 0011223344556677");
    daemon.until("the file was read again", || connect().ask(&begins).status == 200);
    let mut carol = connect();
    let id = carol.ask(&begins).fields["mcp-session-id"].clone();
    let mut carol = carol.with("Mcp-Session-Id", &id);
    assert_eq!(carol.call(1, "m", json!({}))["id"], 1);
    let path = daemon.path("other").display().to_string();
    reload(&daemon, |config| config["listeners"] = json!([{ "unix": path }]));
    assert_eq!(carol.call(2, "m", json!({}))["id"], 2);
    reload(&daemon, |config| config["pools"][0]["instances"] = json!(2));
    assert_eq!(carol.call(3, "m", json!({}))["id"], 3, "a later reload keeps the tokens too");
    daemon.stop();
}

#[test]
fn an_admin_listener_moves_and_the_command_that_moved_it_gets_the_outcome() {
    let setup = Setup::new([worker("agents", 1, &[])]);
    let [old, new] = ["admin", "admin.new"].map(|name| setup.text_path(name));
    let daemon = setup.set("admin", json!({ "listen": old })).start();
    daemon.until("the admin socket is there", || daemon.path("admin").exists());
    let said = reload(&daemon, |config| config["admin"]["listen"] = json!(new));
    assert!(said.contains("admin.new"), "{said}");
    daemon.until("the new socket is there and the old one is not", || {
        daemon.path("admin.new").exists() && !daemon.path("admin").exists()
    });
    daemon.stop();
}

#[test]
fn an_admin_listener_that_a_reload_adds_takes_samples_from_then_on() {
    let setup = Setup::new([worker("agents", 1, &[])]).hears_hangups();
    let admin = setup.text_path("admin");
    let daemon = setup.start();
    change(&daemon, |config| config["admin"] = json!({ "listen": admin }));
    daemon.signal(Signal::HUP);
    daemon.until("it takes a sample", || {
        let status: Value = serde_json::from_str(&Admin::of(&daemon).get("/status.json").body).expect("it is JSON");
        status["history"]["samples"].as_array().is_some_and(|samples| !samples.is_empty())
    });
    daemon.stop();
}

#[test]
fn mcp_sessions_go_on_over_a_reload_and_new_ones_meet_the_new_command() {
    let pool = |name: &str| with(with(named(name, 1), "assignment", "dedicated"), "max_instances", 8);
    let setup = Setup::new([pool("old")]).no_listener().set("listeners", json!([{ "http": "127.0.0.1:0" }]));
    let daemon = start_ready(setup);
    let mut old = Http::session(daemon.address(), "2025-11-25");
    assert_eq!(old.call(1, "who", json!({}))["result"]["name"], "old");
    reload(&daemon, |config| config["pools"][0] = pool("new"));
    assert_eq!(old.call(2, "who", json!({}))["result"]["name"], "old");
    let mut new = Http::session(daemon.address(), "2025-11-25");
    assert_eq!(new.call(1, "who", json!({}))["result"]["name"], "new");
    old.send("DELETE /mcp", &[], "");
    assert_eq!(old.answer().status, 204);
    assert_eq!(new.ask(&request(3, "who", json!({}))).status, 200);
    daemon.stop();
}

#[test]
fn sessions_of_a_removed_http_listener_go_on_over_their_connections_for_the_time_of_a_drain() {
    let setup = Setup::new([with(worker("agents", 1, &[]), "assignment", "client")]).no_listener();
    let setup = setup.set("listeners", json!([{ "http": "127.0.0.1:0" }])).limit("drain_timeout_sec", 2);
    let daemon = start_ready(setup);
    let mut client = Http::session(daemon.address(), "2025-11-25");
    let mut kept = client.again();
    assert_eq!(kept.call(1, "m", json!({}))["id"], 1);
    let path = daemon.path("other").display().to_string();
    reload(&daemon, |config| config["listeners"] = json!([{ "unix": path }]));
    assert_eq!(client.call(2, "m", json!({}))["id"], 2);
    assert_eq!(kept.open(None).status, 200, "its stream, too");
    let begins = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
    let refused = client.ask(&request(3, "initialize", begins));
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("this listener was removed"), "{refused:?}");
    // No request was asked on its stream, so nothing but its end says that it is over.
    assert_eq!(kept.message().map(|last| last.data), None);
    daemon.stop();
}

#[test]
fn a_request_that_began_before_its_listener_had_tokens_begins_no_session_without_one() {
    let setup = Setup::new([with(worker("agents", 1, &[]), "assignment", "client")]).no_listener();
    let tokens = setup.text_path("tokens");
    fs::write(&tokens, "alice:0123456789abcdef\n").expect("there is room");
    let daemon = start_ready(setup.set("listeners", json!([{ "http": "127.0.0.1:0" }])));
    let mut stranger = Http::connect(daemon.address());
    let begins = request(1, "initialize", json!({ "protocolVersion": "2025-11-25", "capabilities": {} }));
    stranger.uploads(&begins);
    reload(&daemon, |config| config["listeners"][0]["tokens_file"] = json!(tokens));
    stranger.send_bytes(begins.to_string().as_bytes());
    assert_eq!(stranger.answer().status, 401);
    daemon.stop();
}

#[test]
fn a_header_that_is_complete_after_its_proxy_was_taken_out_is_not_believed() {
    let listener = json!({ "tcp": "127.0.0.1:0", "proxy": { "from": ["127.0.0.1"] } });
    let setup = Setup::new([worker("agents", 1, &[])]).no_listener();
    let daemon = start_ready(setup.set("listeners", json!([listener])));
    let header = b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 9000\r\n";
    let mut client = Client::over_tcp(daemon.address());
    client.send_bytes(&header[..20]);
    reload(&daemon, |config| config["listeners"][0]["proxy"]["from"] = json!(["127.0.0.2"]));
    client.send_bytes(&header[20..]);
    assert_eq!(client.rest(), "");
    daemon.logs(&["WARN", "proxy_header", "it was taken out of proxy.from"]);
    daemon.stop();
}

#[test]
fn a_connection_to_a_removed_listener_is_none_to_the_one_that_comes_after_it() {
    let pool = with(worker("agents", 1, &[]), "assignment", "client");
    let setup = Setup::new([pool]).no_listener().limit("drain_timeout_sec", 0);
    let path = setup.text_path("stays");
    let listeners = json!([{ "http": "127.0.0.1:0" }, { "unix": path }]);
    let daemon = start_ready(setup.set("listeners", listeners));
    let mut stranger = Http::connect(daemon.address());
    let unknown = stranger.ask(&request(1, "m", json!({})));
    assert_eq!(unknown.status, 400, "it has no session, and stays");
    reload(&daemon, |config| config["listeners"] = json!([{ "unix": path }]));
    let private = daemon.path("private").display().to_string();
    reload(&daemon, |config| config["listeners"] = json!([{ "http": format!("unix:{private}") }, { "unix": path }]));
    let begins = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
    let refused = stranger.ask(&request(2, "initialize", begins));
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(stranger.is_closed(), "so it connects to one that is there");
    daemon.stop();
}

#[test]
fn the_operator_has_workers_replaced_in_turn_or_at_once() {
    let mut daemon = start_ready(Setup::new([named("a", 2)]));
    let mut client = daemon.connect();
    let pids = |client: &mut Client, id: u64| -> Vec<Value> {
        (id..id + 2).map(|id| client.request(id, "who", json!({}))["result"]["pid"].clone()).collect()
    };
    let before = pids(&mut client, 1);
    let expected = "the workers of pool agents are replaced in turn, and those that are missing started\n";
    assert_eq!(said(&daemon, &["restart", "pool", "agents"]), expected);
    let mut id = 10;
    daemon.until("both are others", || {
        id += 2;
        pids(&mut client, id).iter().all(|pid| !before.contains(pid))
    });
    daemon.until("the old ones have ended", || before.iter().all(|pid| !lives(pid.as_u64().expect("a number"))));
    let (code, _, why) = command(&daemon, &["restart", "worker", "agents/9"]);
    let names = Admin::of(&daemon).get("/workers.json").body;
    let names = names.split("\"worker\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect::<Vec<_>>();
    let says = format!("there is no worker \"agents/9\", but {}", names.join(", "));
    assert!(code == Some(1) && names.len() == 2 && why.contains(&says), "{says}: {why}");
    let (code, _, why) = command(&daemon, &["restart", "pool", "agent"]);
    assert!(code == Some(1) && why.contains("there is no pool \"agent\""), "{why}");
    daemon.stop();
}

/// A client that sends requests continuously, and its number of answers.
fn asks_without_end(address: std::net::SocketAddr, ends: &AtomicBool, answered: &AtomicU64) {
    let mut client = Client::over_tcp(address);
    for id in 1.. {
        let answer = client.request(id, "m", json!({ "text": "x".repeat(100) }));
        assert!(answer["error"].is_null(), "{answer}");
        answered.fetch_add(1, Ordering::Relaxed);
        if ends.load(Ordering::Relaxed) {
            break;
        }
    }
}

#[test]
#[ignore = "scripts/test slow"]
fn a_hundred_reloads_of_all_kinds_under_load_fail_no_request() {
    let times = figure("STDIO_BUS_RELOADS", 100);
    let setup = Setup::new([named("0", 2), echo("other", 1)]).set("listeners", json!([{ "tcp": "127.0.0.1:0" }]));
    let daemon = start_ready(setup);
    let address = daemon.address();
    let (ends, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _end = SetAtTheEnd(&ends);
        for _ in 0..4 {
            scope.spawn(|| asks_without_end(address, &ends, &answered));
        }
        for round in 0..times {
            let before = answered.load(Ordering::Relaxed);
            reload(&daemon, |config| {
                config["pools"][0] = named(&round.to_string(), 1 + round % 3);
                config["limits"]["max_input_buffer"] = json!(1_000_000 + round);
                config["limits"]["session_idle_sec"] = json!(round % 2 * 60);
                let extra = json!({ "unix": format!("@reload-{}-{}", daemon.pid(), round % 2) });
                config["listeners"] = json!([{ "tcp": "127.0.0.1:0" }, extra]);
                let pools = config["pools"].as_array_mut().expect("an array");
                pools.truncate(1);
                pools.push(echo(&format!("other-{}", round % 4), 1));
                config["log"]["level"] = json!(["info", "debug"][round % 2]);
            });
            daemon.until("they go on", || answered.load(Ordering::Relaxed) > before + 8);
        }
    });
    daemon.until("what was replaced has ended", || {
        let body = Admin::of(&daemon).get("/workers.json").body;
        let rows: Value = serde_json::from_str(&body).expect("it is JSON");
        rows["workers"].as_array().is_some_and(|rows| rows.len() == 2 + (times - 1) % 3)
    });
    assert!(daemon.zombies().is_empty());
    daemon.stop();
}

#[test]
fn a_listener_that_cannot_be_opened_leaves_everything_as_it_was() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("it is bound");
    let mut daemon = start_ready(Setup::new([named("old", 1)]));
    change(&daemon, |config| {
        config["pools"][0] = named("new", 1);
        config["listeners"] = json!([{ "tcp": address.to_string() }]);
    });
    let (code, _, why) = command(&daemon, &["reload"]);
    assert!(code == Some(73) && why.contains(&address.to_string()), "{why}");
    assert_eq!(name_of(&mut daemon.connect(), 1), "old");
    drop(taken);
    said(&daemon, &["reload"]);
    assert!(!refuses_connections(address));
    assert_eq!(name_of(&mut daemon.connect(), 1), "new");
    daemon.stop();
}

#[test]
fn a_log_file_that_cannot_be_opened_leaves_everything_as_it_was() {
    let mut daemon = start_ready(Setup::new([named("old", 1)]));
    change(&daemon, |config| {
        config["pools"][0] = named("new", 1);
        config["log"] = json!({ "file": "/no/such/folder/bus.log" });
    });
    let (code, _, why) = command(&daemon, &["reload"]);
    assert!(code == Some(73) && why.contains("cannot open the log file /no/such/folder/bus.log"), "{why}");
    assert_eq!(name_of(&mut daemon.connect(), 1), "old");
    daemon.stop();
}

#[test]
fn a_listener_moves_to_overlapping_addresses_and_refuses_no_connection() {
    // Its port was chosen by the kernel.
    let setup = Setup::new([named("it", 1)]).no_listener().limit("drain_timeout_sec", 600);
    let daemon = start_ready(setup.set("listeners", json!([{ "tcp": "127.0.0.1:0" }])));
    let address = daemon.address();
    let at = |host: &str| json!([{ "tcp": format!("{host}:{}", address.port()) }]);
    reload(&daemon, |config| config["listeners"] = at("127.0.0.1"));
    let mut client = Client::over_tcp(address);
    for (id, host) in (1..).zip(["0.0.0.0", "127.0.0.1", "[::]", "localhost", "0.0.0.0"]) {
        reload(&daemon, |config| config["listeners"] = at(host));
        assert_eq!(name_of(&mut Client::over_tcp(address), 1), "it", "{host}");
        assert_eq!(name_of(&mut client, id), "it", "{host}");
    }
    // If another new one cannot be opened, the old one stays, and keeps its address to itself.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    change(&daemon, |config| {
        let other = json!({ "tcp": taken.local_addr().expect("it is bound").to_string() });
        config["listeners"] = json!([at("127.0.0.1")[0], other]);
    });
    assert_eq!(command(&daemon, &["reload"]).0, Some(73));
    assert_eq!(name_of(&mut Client::over_tcp(address), 1), "it");
    assert!(std::net::TcpListener::bind(address).is_err());
    daemon.stop();
}

#[test]
fn a_worker_whose_child_holds_too_much_memory_is_replaced() {
    // npx and uvx run the actual worker as a child.
    let wrapped = "\"$0\" \"$@\"; exit $?";
    let keeps = worker("agents", 1, &["--keep"]);
    let mut args = vec![json!("-c"), json!(wrapped), keeps["command"].clone()];
    args.extend(keeps["args"].as_array().expect("an array").iter().cloned());
    let pool = json!({ "id": "agents", "command": "sh", "args": args, "instances": 1, "recycle_memory_mb": 48 });
    let mut daemon = start_ready(Setup::new([pool]));
    let mut client = daemon.connect();
    for id in 1..=60 {
        client.request(id, "m", json!({ "text": "x".repeat(900_000) }));
    }
    daemon.logs(&["worker_replaced", "MiB (recycle_memory_mb)"]);
    daemon.logs(&["worker_stopped"]);
    assert_eq!(client.request(61, "m", json!({}))["id"], 61);
    daemon.stop();
}

#[test]
fn a_reload_of_a_path_that_is_not_a_file_any_more_neither_blocks_nor_changes_anything() {
    let mut daemon = start_ready(Setup::new([named("old", 1)]));
    let path = daemon.path("config.json");
    fs::remove_file(&path).expect("it is ours");
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
    for _ in 0..2 {
        let (code, _, wrong) = command(&daemon, &["reload"]);
        assert!(code == Some(78) && wrong.contains("is no longer a regular file"), "{wrong}");
    }
    assert_eq!(name_of(&mut daemon.connect(), 1), "old");
    daemon.stop();
}

#[test]
fn a_path_that_the_daemon_itself_listens_on_is_reported_as_its_own() {
    let setup = Setup::new([named("old", 1)]);
    let (path, next) = (setup.text_path("admin"), setup.text_path("next"));
    let daemon = setup.set("admin", json!({ "listen": path })).start();
    until_status(&daemon, "/readyz", 200);
    change(&daemon, |config| {
        config["admin"]["listen"] = json!(next);
        config["listeners"] = json!([{ "unix": path }]);
    });
    let (code, _, wrong) = command(&daemon, &["reload"]);
    assert!(code == Some(73) && wrong.contains("this daemon listens on it already"), "{wrong}");
    daemon.stop();
}

#[test]
fn a_scrape_that_is_read_slowly_continues_after_a_reload_that_adds_a_pool() {
    // Their metrics are more than a socket's buffers hold.
    let pools =
        |count: usize| -> Vec<Value> { (0..count).map(|number| worker(&format!("p{number}"), 1, &[])).collect() };
    let daemon = start_ready(Setup::new(pools(100)));
    let mut slow = Admin::of(&daemon);
    slow.send("GET /metrics HTTP/1.0\r\n\r\n");
    daemon.until("its answer begins", || slow.has_begun());
    reload(&daemon, |config| config["pools"] = pools(101).into());
    let answer = slow.answer().expect("an answer comes");
    assert!(answer.body.contains("{pool=\"p99\"}") && !answer.body.contains("{pool=\"p100\"}"), "{}", answer.body);
    let next = Admin::of(&daemon).get("/metrics").body;
    assert!(next.contains("{pool=\"p100\"}"), "{next}");
    daemon.stop();
}
