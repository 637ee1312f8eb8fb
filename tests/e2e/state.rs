//! What outlives the daemon (`state`): sessions of MCP, and the owners of ACP's. Formats, torn files and full disks are tested
//! where the file is written (`src/state.rs`).

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::admin::{Admin, metric, said, with_admin};
use crate::harness::{Daemon, Setup, seconds_go_by, with, worker};
use crate::http::{Http, notification, request};
use crate::mcp::{VERSION, dedicated, door_of, shared};

const ALICE: &str = "Bearer 0123456789abcdef";
const BOB: &str = "Bearer fedcba9876543210";

/// A daemon with one MCP listener, whose sessions outlive it in this folder.
fn lasting(folder: &Path, pool: Value, keys: Value) -> Daemon {
    let daemon = door_of(Setup::new([pool]).hears_hangups().set("state", json!(folder)), keys);
    // It runs: a signal before that would end it at once.
    daemon.address();
    daemon
}

fn folder() -> TempDir {
    TempDir::new().expect("a folder")
}

/// A pool of workers that keep what they read.
fn keeping(assignment: &str) -> Value {
    with(worker("tools", 1, &["--keep"]), "assignment", assignment)
}

/// The client of a session, at another daemon.
fn at(daemon: &Daemon, session: &str) -> Http {
    Http::connect(daemon.address()).with("Mcp-Session-Id", session)
}

/// Begins a session as clients do. Returns its id.
fn session(daemon: &Daemon) -> String {
    let mut client = Http::session(daemon.address(), VERSION);
    assert_eq!(client.ask(&notification("notifications/initialized", json!({ "is": "sent" }))).status, 202);
    assert_eq!(client.call(1, "a", json!({}))["id"], 1);
    client.session_id()
}

/// A session answers, perhaps after it was asked to come again.
fn continues(daemon: &Daemon, id: &str) {
    daemon.until("it continues", || {
        let answer = at(daemon, id).ask(&request(2, "a", json!({})));
        assert!([200, 503].contains(&answer.status), "{}", answer.body);
        answer.status == 200
    });
}

/// A session of a daemon that has ended.
fn earlier_session(folder: &Path, pool: Value) -> String {
    let daemon = lasting(folder, pool, json!({}));
    let id = session(&daemon);
    daemon.stop();
    id
}

/// The file of a folder.
fn written(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("sessions")).unwrap_or_default()
}

#[test]
fn a_session_continues_after_a_restart_and_its_worker_is_greeted_before_its_first_call() {
    for assignment in ["dedicated", "client"] {
        let folder = folder();
        let daemon = lasting(folder.path(), keeping(assignment), json!({}));
        let id = session(&daemon);
        daemon.stop();
        assert!(!written(folder.path()).contains(&id), "the file has no id, which would let others in");
        let daemon = lasting(folder.path(), keeping(assignment), json!({}));
        let mut client = at(&daemon, &id);
        let lines = client.call(2, "kept", json!({}))["result"]["lines"].clone();
        let methods = |line: &Value| {
            let line: Value = serde_json::from_str(line.as_str().expect("a line")).expect("JSON");
            (line["method"].as_str().unwrap_or_default().to_owned(), line["params"].clone())
        };
        let methods: Vec<_> = lines.as_array().expect("lines").iter().map(methods).collect();
        let methods: Vec<_> = methods.into_iter().filter(|(method, _)| method != "server/discover").collect();
        let params = json!({ "protocolVersion": VERSION, "capabilities": {} });
        assert_eq!(methods[0], ("initialize".to_owned(), params));
        assert_eq!(methods[1], ("notifications/initialized".to_owned(), json!({ "is": "sent" })));
        assert_eq!((methods[2].0.as_str(), methods.len()), ("kept", 3), "each is sent once");
        assert_eq!(client.call(3, "a", json!({}))["id"], 3);
        daemon.logs(&["reason=session_restored", "continues"]);
        daemon.stop();
    }
}

#[test]
fn a_session_continues_after_several_restarts_and_after_a_kill() {
    let folder = folder();
    let daemon = lasting(folder.path(), dedicated(), json!({}));
    let id = session(&daemon);
    daemon.until("it is written behind the loop", || written(folder.path()).contains("notifications/initialized"));
    daemon.signal(Signal::KILL);
    drop(daemon);
    for _ in 0..2 {
        lasting(folder.path(), dedicated(), json!({})).stop();
        let daemon = lasting(folder.path(), dedicated(), json!({}));
        assert_eq!(at(&daemon, &id).call(2, "a", json!({}))["id"], 2);
        daemon.stop();
    }
}

#[test]
fn what_is_asked_at_once_after_a_restart_waits_for_the_greeting_and_is_answered_in_order() {
    let folder = folder();
    let id = earlier_session(folder.path(), keeping("dedicated"));
    let daemon = lasting(folder.path(), keeping("dedicated"), json!({}));
    let mut clients: Vec<Http> = (0..8).map(|_| at(&daemon, &id)).collect();
    for (number, client) in (10..).zip(&mut clients) {
        client.post(&request(number, "a", json!({})));
    }
    for (number, client) in (10..).zip(&mut clients) {
        assert_eq!(client.answer().json()["id"], number);
    }
    let kept = clients[0].call(20, "kept", json!({})).to_string();
    assert_eq!(kept.matches("initialize").count(), 2, "one initialize, and one notification: {kept}");
    daemon.stop();
}

#[test]
fn a_session_that_has_ended_is_unknown_after_a_restart_also_if_it_is_deleted_while_the_daemon_drains() {
    let folder = folder();
    let daemon = door_of(
        Setup::new([keeping("dedicated")]).set("state", json!(folder.path())).limit("quiesce_sec", 600),
        json!({ "max_connections": 100 }),
    );
    let (deleted, drained) = (session(&daemon), session(&daemon));
    at(&daemon, &deleted).send("DELETE /mcp", &[], "");
    let (mut holds, mut ends) = (at(&daemon, &drained), at(&daemon, &drained));
    holds.post(&request(1, "hold", json!({})));
    daemon.until("it is with the worker", || ends.call(2, "kept", json!({})).to_string().contains("hold"));
    daemon.signal(Signal::TERM);
    daemon.logs(&["shutting down"]);
    ends.send("DELETE /mcp", &[], "");
    assert_eq!(ends.answer().status, 204);
    drop((holds, ends));
    daemon.ends_well();
    let daemon = lasting(folder.path(), dedicated(), json!({}));
    for id in [deleted, drained] {
        assert_eq!(at(&daemon, &id).ask(&request(3, "a", json!({}))).status, 404);
    }
    daemon.stop();
}

#[test]
fn while_the_daemon_drains_a_session_that_outlives_it_is_asked_to_come_again_and_not_to_begin_anew() {
    let folder = folder();
    let setup = Setup::new([keeping("client")]).set("state", json!(folder.path())).limit("quiesce_sec", 600);
    let daemon = door_of(setup, json!({}));
    let (busy, idle) = (session(&daemon), session(&daemon));
    let (mut holds, mut other) = (at(&daemon, &busy), at(&daemon, &busy));
    holds.post(&request(1, "hold", json!({})));
    daemon.until("it is with the worker", || other.call(2, "kept", json!({})).to_string().contains("hold"));
    let ended = session(&daemon);
    let [mut client, mut late] = [(); 2].map(|()| at(&daemon, &idle));
    let mut others: Vec<Http> = (0..12).map(|_| at(&daemon, &idle)).collect();
    for other in &mut others {
        assert_eq!(other.call(2, "a", json!({}))["id"], 2);
    }
    let [mut ends, mut deleted] = [(); 2].map(|()| at(&daemon, &ended));
    for client in [&mut client, &mut late, &mut ends, &mut deleted] {
        assert_eq!(client.call(3, "a", json!({}))["id"], 3);
    }
    daemon.signal(Signal::TERM);
    daemon.logs(&["shutting down"]);
    let refused = client.ask(&request(4, "a", json!({})));
    assert_eq!((refused.status, &*refused.fields["retry-after"]), (503, "1"));
    assert_eq!(refused.json()["error"]["data"], json!({ "reason": "shutting_down", "delivered": false }));
    // Its client tries again at the same daemon, on a connection that was open before.
    let again = late.ask(&request(5, "a", json!({})));
    assert_eq!((again.status, &*again.fields["retry-after"]), (503, "1"));
    // Also while its silent client is closed, and afterwards.
    for other in &mut others {
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(other.ask(&request(5, "a", json!({}))).status, 503);
    }
    let gone = ends.ask(&request(6, "a", json!({})));
    assert_eq!(gone.status, 503);
    deleted.send("DELETE /mcp", &[], "");
    assert_eq!(deleted.answer().status, 204);
    other.post(&notification("release", json!({})));
    assert_eq!(holds.answer().json()["id"], 1);
    drop((holds, other, client, late, others, ends, deleted));
    daemon.ends_well();
    let daemon = lasting(folder.path(), keeping("client"), json!({}));
    assert_eq!(at(&daemon, &idle).call(5, "a", json!({}))["id"], 5);
    assert_eq!(at(&daemon, &ended).ask(&request(7, "a", json!({}))).status, 404, "it was deleted");
    daemon.stop();
}

#[test]
fn a_session_continues_for_the_token_that_began_it_alone() {
    let folder = folder();
    let path = folder.path().join("tokens");
    let state = folder.path().join("state");
    let keys = json!({ "tokens_file": path });
    std::fs::write(&path, "alice:0123456789abcdef\nbob:fedcba9876543210\n").expect("a file");
    let daemon = lasting(&state, shared(), keys.clone());
    let mut alice = Http::connect(daemon.address()).with("Authorization", ALICE);
    let begun = alice.ask(&request(0, "initialize", json!({ "protocolVersion": VERSION })));
    let id = begun.fields["mcp-session-id"].clone();
    daemon.stop();
    assert!(!written(&state).contains("0123456789abcdef"), "no token is in the file");
    let daemon = lasting(&state, shared(), keys.clone());
    let by = |daemon: &Daemon, token: &str| at(daemon, &id).with("Authorization", token);
    assert_eq!(by(&daemon, BOB).ask(&request(1, "a", json!({}))).status, 404);
    by(&daemon, BOB).send("DELETE /mcp", &[], "");
    assert_eq!(by(&daemon, ALICE).call(2, "a", json!({}))["id"], 2);
    daemon.stop();
    std::fs::write(&path, "bob:fedcba9876543210\n").expect("a file");
    let daemon = lasting(&state, shared(), keys);
    assert_eq!(by(&daemon, ALICE).ask(&request(3, "a", json!({}))).status, 401);
    assert_eq!(by(&daemon, BOB).ask(&request(3, "a", json!({}))).status, 404);
    daemon.stop();
}

#[test]
fn a_pool_whose_sessions_are_not_restored_or_that_has_gone_has_none_after_a_restart() {
    let folder = folder();
    let other = |id: &str, restores: bool| with(with(worker(id, 1, &[]), "assignment", "client"), "restore", restores);
    let start = |pools: [Value; 2]| {
        door_of(Setup::new(pools).set("state", json!(folder.path())), json!({ "pools": ["a", "b"], "pool": "a" }))
    };
    let begin = |daemon: &Daemon, pool: &str| {
        let mut client = Http::connect(daemon.address());
        let text = request(0, "initialize", json!({ "protocolVersion": VERSION })).to_string();
        client.send(&format!("POST /mcp/{pool}"), &[], &text);
        client.answer().fields["mcp-session-id"].clone()
    };
    let daemon = start([other("a", true), other("b", false)]);
    let (a, b) = (begin(&daemon, "a"), begin(&daemon, "b"));
    daemon.stop();
    let daemon = start([other("a", true), other("b", true)]);
    let mut wrong = at(&daemon, &a);
    wrong.send("POST /mcp/b", &[], &request(1, "m", json!({})).to_string());
    assert_eq!(wrong.answer().status, 404, "it is another pool's");
    assert_eq!(at(&daemon, &b).ask(&request(2, "m", json!({}))).status, 404, "it was not kept");
    daemon.stop();
    let daemon = start([other("a", false), other("b", true)]);
    assert_eq!(at(&daemon, &a).ask(&request(3, "m", json!({}))).status, 404, "it is not restored any more");
    daemon.stop();
}

#[test]
fn a_session_whose_worker_refuses_its_initialize_now_is_gone() {
    let folder = folder();
    let id = earlier_session(folder.path(), dedicated());
    let refuses = greets(r#"printf '{"jsonrpc":"2.0","id":"init","error":{"code":-32602,"message":"no"}}\n'"#);
    let daemon = lasting(folder.path(), refuses, json!({}));
    let gone = at(&daemon, &id).ask(&request(2, "a", json!({})));
    assert_eq!((gone.status, gone.json()["id"].clone()), (404, json!(2)), "its client begins anew");
    assert_eq!(gone.json()["error"]["data"]["delivered"], false);
    daemon.logs(&["reason=session_restored", "has refused the initialize that began it"]);
    daemon.stop();
}

#[test]
fn a_session_whose_worker_dies_before_it_is_greeted_is_asked_for_again_and_continues() {
    let folder = folder();
    let id = earlier_session(folder.path(), dedicated());
    let mark = folder.path().join("died");
    // The first one dies of its initialize.
    let dies_once = format!("if [ ! -e {mark} ]; then touch {mark}; exit 1; fi", mark = mark.display());
    let pool = greets(&format!("{dies_once}; {}", greeting()));
    let daemon = lasting(folder.path(), pool, json!({}));
    let mut client = at(&daemon, &id);
    let mut answers = Vec::new();
    daemon.until("it is answered", || {
        let answer = client.ask(&request(2, "a", json!({})));
        answers.push((answer.status, answer.body));
        answers.last().is_some_and(|(status, _)| *status == 200)
    });
    assert!(answers.len() > 1 && answers.iter().all(|(status, _)| [200, 503].contains(status)), "{answers:?}");
    assert!(answers[0].1.contains("\"delivered\":false"), "{answers:?}");
    daemon.stop();
}

#[test]
fn a_session_whose_initialize_is_answered_while_the_daemon_drains_continues_at_the_next_one() {
    let folder = folder();
    let [asked, answers] = ["asked", "answers"].map(|name| folder.path().join(name));
    let waits = format!("touch {}; until [ -e {} ]; do sleep 0.1; done", asked.display(), answers.display());
    let others = with(keeping("client"), "id", "others");
    let setup = Setup::new([greets(&format!("{waits}; {}", greeting())), others]).set("state", json!(folder.path()));
    let keys = json!({ "pools": ["tools", "others"], "pool": "others" });
    let daemon = door_of(setup.limit("quiesce_sec", 600), keys);
    // The drain lasts until that is answered.
    let mut holds = Http::session(daemon.address(), VERSION);
    let [mut other, mut late] = [(); 2].map(|()| holds.again());
    holds.post(&request(1, "hold", json!({})));
    daemon.until("it is with the worker", || other.call(2, "kept", json!({})).to_string().contains("hold"));
    assert_eq!(late.call(3, "a", json!({}))["id"], 3);
    let mut begins = Http::connect(daemon.address());
    let params = json!({ "protocolVersion": VERSION, "capabilities": {} });
    let initialize = json!({ "jsonrpc": "2.0", "id": "init", "method": "initialize", "params": params });
    begins.send("POST /mcp/tools", &[], &initialize.to_string());
    daemon.until("its worker has the initialize", || asked.exists());
    daemon.signal(Signal::TERM);
    daemon.logs(&["shutting down"]);
    std::fs::write(&answers, "").expect("a file");
    let begun = begins.answer();
    let id = &begun.fields["mcp-session-id"];
    // On a connection that was open before.
    late.fields.retain(|(name, _)| name != "Mcp-Session-Id");
    let refused = late.with("Mcp-Session-Id", id).ask(&request(2, "a", json!({})));
    assert_eq!((refused.status, &*refused.fields["retry-after"]), (503, "1"));
    other.post(&notification("release", json!({})));
    assert_eq!(holds.answer().json()["id"], 1);
    drop((holds, other));
    daemon.ends_well();
    let daemon = lasting(folder.path(), greets(&greeting()), json!({}));
    assert_eq!(at(&daemon, id).call(2, "a", json!({}))["id"], 2);
    daemon.stop();
}

/// A pool whose workers do this with an `initialize`, and answer the request with the id 2.
fn greets(does: &str) -> Value {
    let script = format!(
        r#"while read -r line; do case "$line" in
        *'"initialize"'*) {does};;
        *'"id":2'*) printf '{{"jsonrpc":"2.0","id":2,"result":{{}}}}\n';; esac; done"#
    );
    json!({ "id": "tools", "command": "sh", "args": ["-c", script], "instances": 1,
            "assignment": "dedicated", "max_instances": 4 })
}

/// Answers the `initialize` of [`session`], in a shell.
fn greeting() -> String {
    format!(r#"printf '{{"jsonrpc":"2.0","id":"init","result":{{"protocolVersion":"{VERSION}"}}}}\n'"#)
}

#[test]
fn a_session_that_finds_no_worker_is_asked_to_come_again_however_often_and_continues() {
    let folder = folder();
    let pool = || with(dedicated(), "max_instances", 1);
    let id = earlier_session(folder.path(), pool());
    let daemon = lasting(folder.path(), pool(), json!({}));
    let mut other = Http::session(daemon.address(), VERSION);
    assert_eq!(other.call(1, "a", json!({}))["id"], 1);
    for _ in 0..5 {
        let refused = at(&daemon, &id).ask(&request(2, "a", json!({})));
        assert_eq!((refused.status, refused.json()["error"]["data"]["delivered"].clone()), (503, json!(false)));
    }
    other.send("DELETE /mcp", &[], "");
    assert_eq!(other.answer().status, 204);
    continues(&daemon, &id);
    daemon.stop();
}

#[test]
fn a_session_that_an_operator_closes_before_its_worker_has_answered_continues_however_often() {
    let folder = folder();
    let id = earlier_session(folder.path(), dedicated());
    let mark = folder.path().join("answers");
    let pool = greets(&format!("if [ -e {} ]; then {}; fi", mark.display(), greeting()));
    let daemon = door_of(with_admin(Setup::new([pool]).set("state", json!(folder.path()))), json!({}));
    for _ in 0..5 {
        let mut client = at(&daemon, &id);
        client.post(&request(2, "a", json!({})));
        let mut number = Value::Null;
        daemon.until("its worker is sent the initialize", || {
            let shown = said(&daemon, &["show", "clients", "--json"]);
            let shown: Value = serde_json::from_str(&shown).expect("it is JSON");
            let row = shown["clients"].as_array().and_then(|rows| rows.iter().find(|row| row["pending"] == 1));
            number = row.map_or(Value::Null, |row| row["client"].clone());
            number != Value::Null
        });
        said(&daemon, &["kill", "client", &number.to_string()]);
        let refused = client.answer();
        assert_eq!((refused.status, refused.json()["error"]["data"]["delivered"].clone()), (503, json!(false)));
    }
    std::fs::write(&mark, "").expect("a file");
    continues(&daemon, &id);
    daemon.stop();
}

#[test]
fn a_session_whose_initialize_three_workers_have_died_of_has_ended() {
    let folder = folder();
    let id = earlier_session(folder.path(), dedicated());
    let count = folder.path().join("count");
    let daemon = lasting(folder.path(), greets(&format!("echo >> {}; exit 1", count.display())), json!({}));
    let mut gone = None;
    daemon.until("it has ended", || {
        let answer = at(&daemon, &id).ask(&request(2, "a", json!({})));
        assert!([404, 503].contains(&answer.status), "{}", answer.body);
        gone = (answer.status == 404).then_some(answer);
        gone.is_some()
    });
    let died = std::fs::read_to_string(&count).expect("it was written").lines().count();
    assert_eq!(died, 3);
    daemon.logs(&["reason=session_restored", "3 workers have not answered the initialize that began it"]);
    daemon.stop();
}

#[test]
fn a_second_signal_while_only_readiness_has_changed_keeps_the_sessions() {
    let folder = folder();
    let setup = Setup::new([dedicated()]).set("state", json!(folder.path())).limit("lame_duck_sec", 600);
    let daemon = door_of(setup, json!({}));
    let id = session(&daemon);
    daemon.signal(Signal::TERM);
    daemon.logs(&["shutting down in 600 s"]);
    // Two within a second are one.
    seconds_go_by(2);
    daemon.stop();
    let daemon = lasting(folder.path(), dedicated(), json!({}));
    assert_eq!(at(&daemon, &id).call(2, "a", json!({}))["id"], 2);
    daemon.stop();
}

#[test]
fn a_session_continues_at_the_listener_that_it_was_begun_at_alone() {
    let folder = folder();
    let start = |path: &str| {
        let listeners = json!([{ "http": "127.0.0.1:0", "path": path }]);
        let setup = Setup::new([shared()]).no_listener().set("state", json!(folder.path())).set("listeners", listeners);
        let daemon = setup.start();
        daemon.address();
        daemon
    };
    let daemon = start("/mcp");
    let id = session(&daemon);
    daemon.stop();
    let daemon = start("/other");
    let mut client = at(&daemon, &id);
    client.send("POST /other", &[], &request(2, "a", json!({})).to_string());
    assert_eq!(client.answer().status, 404);
    daemon.stop();
}

#[test]
fn a_stream_of_a_restored_session_says_that_events_are_lost_and_continues() {
    let folder = folder();
    let id = earlier_session(folder.path(), dedicated());
    let daemon = lasting(folder.path(), dedicated(), json!({}));
    let mut stream = at(&daemon, &id);
    assert!(stream.open(Some("0-3")).is_stream());
    let changed = notification("notifications/tools/list_changed", json!({}));
    let mut client = at(&daemon, &id);
    assert_eq!(client.ask(&notification("write", json!({ "text": format!("{changed}\n") }))).status, 202);
    let pieces: Vec<String> = (0..3).map_while(|_| stream.piece()).collect();
    assert!(
        pieces.iter().any(|piece| piece.starts_with(": ") && piece.contains("events from before the restart are lost")),
        "{pieces:?}"
    );
    assert!(pieces.iter().any(|piece| piece.contains("list_changed")), "it goes on: {pieces:?}");
    let resumed = at(&daemon, &id).open(Some("2-1"));
    assert_eq!(resumed.status, 400, "no answer will come on it");
    assert!(resumed.body.contains("restarted"), "{}", resumed.body);
    daemon.stop();
}

#[test]
fn a_stream_that_ends_with_the_daemon_says_when_to_open_it_again_if_its_session_continues() {
    for outlives in [true, false] {
        let folder = folder();
        let daemon = match outlives {
            true => lasting(folder.path(), dedicated(), json!({})),
            false => door_of(Setup::new([dedicated()]), json!({})),
        };
        let id = session(&daemon);
        let mut stream = at(&daemon, &id);
        assert!(stream.open(None).is_stream());
        daemon.signal(Signal::TERM);
        let pieces: Vec<String> = std::iter::from_fn(|| stream.piece()).collect();
        assert_eq!(pieces.iter().any(|piece| piece.starts_with("retry: 15000\n")), outlives, "{pieces:?}");
        daemon.ends_well();
    }
}

#[test]
fn two_daemons_do_not_share_a_folder_and_a_reload_does_not_move_it() {
    let folder = folder();
    let daemon = lasting(folder.path(), shared(), json!({}));
    let second = Setup::new([shared()]).set("state", json!(folder.path())).run();
    assert_eq!(second.code, Some(73), "{}", second.stderr);
    assert!(second.stderr.contains("another daemon uses it"), "{}", second.stderr);
    let config = std::fs::read_to_string(daemon.path("config.json")).expect("it is there");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    config["state"] = json!(daemon.path("elsewhere"));
    std::fs::write(daemon.path("config.json"), config.to_string()).expect("it is ours");
    daemon.signal(Signal::HUP);
    daemon.logs(&["sessions that outlive the daemon (state)", "restart the daemon"]);
    daemon.stop();
}

#[test]
fn a_torn_file_is_put_aside_and_said_and_the_daemon_continues() {
    let folder = folder();
    let id = earlier_session(folder.path(), dedicated());
    let text = written(folder.path());
    std::fs::write(folder.path().join("sessions"), &text[..text.len() / 2]).expect("it is ours");
    let daemon = lasting(folder.path(), dedicated(), json!({}));
    daemon.logs(&["reason=state", "put aside as sessions.unreadable"]);
    assert_eq!(at(&daemon, &id).ask(&request(2, "a", json!({}))).status, 404);
    let id = session(&daemon);
    daemon.stop();
    let daemon = lasting(folder.path(), dedicated(), json!({}));
    assert_eq!(at(&daemon, &id).call(2, "a", json!({}))["id"], 2);
    daemon.stop();
}

#[test]
fn metrics_say_how_many_sessions_outlive_the_daemon_and_whether_they_are_written() {
    let folder = folder();
    let start = || {
        let daemon = door_of(with_admin(Setup::new([dedicated()]).set("state", json!(folder.path()))), json!({}));
        daemon.address();
        daemon
    };
    let daemon = start();
    let id = session(&daemon);
    daemon.stop();
    let daemon = start();
    let figure = |name: &str| metric(&Admin::of(&daemon).get("/metrics").body, name);
    let sessions =
        || ["open", "waiting"].map(|state| figure(&format!("stdio_bus_state_sessions{{state=\"{state}\"}}")));
    assert_eq!(sessions(), [0.0, 1.0]);
    // Nothing can be written over a folder.
    let in_its_place = folder.path().join("sessions.new");
    std::fs::create_dir(&in_its_place).expect("a folder");
    assert_eq!(at(&daemon, &id).call(2, "a", json!({}))["id"], 2);
    assert_eq!(sessions(), [1.0, 0.0]);
    let is_written = || figure("stdio_bus_state_last_write_successful") == 1.0;
    daemon.until("the write fails", || !is_written());
    std::fs::remove_dir(&in_its_place).expect("it is empty");
    daemon.until("it is written again", is_written);
    daemon.stop();
}

#[test]
fn a_session_gets_no_worker_for_a_malformed_request() {
    let folder = folder();
    let id = earlier_session(folder.path(), dedicated());
    let daemon = door_of(with_admin(Setup::new([dedicated()]).set("state", json!(folder.path()))), json!({}));
    let mut client = at(&daemon, &id);
    client.send("POST /mcp", &[], "{");
    assert_eq!(client.answer().status, 400);
    let waiting = metric(&Admin::of(&daemon).get("/metrics").body, "stdio_bus_state_sessions{state=\"waiting\"}");
    assert_eq!(waiting, 1.0);
    assert_eq!(at(&daemon, &id).call(2, "a", json!({}))["id"], 2);
    let mut stranger = at(&daemon, "unknown");
    stranger.send("POST /mcp", &[], "{");
    assert_eq!(stranger.answer().status, 404);
    daemon.stop();
}

#[test]
fn a_daemon_that_cannot_write_its_last_state_says_so_and_ends_with_1() {
    let folder = folder();
    let mut daemon = lasting(folder.path(), dedicated(), json!({}));
    // Nothing can be written over a folder.
    std::fs::create_dir(folder.path().join("sessions.new")).expect("a folder");
    session(&daemon);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(1));
    daemon.logs(&["ERROR", "the last state was not written", "reason=state"]);
}
