//! Routing (spec 6; decisions 3 to 7). The core's tests and its model prove the rules; these show that real processes,
//! pipes and connections follow them, of another daemon, too, and under load.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{
    Daemon, SetAtTheEnd, Setup, children, complaints, echo, figure, lives, program, until, with, worker,
};

fn process(answer: &Value) -> u64 {
    answer["result"]["pid"].as_u64().unwrap_or_else(|| panic!("no pid: {answer}"))
}

#[test]
fn a_client_cannot_use_or_take_the_session_of_another() {
    let mut daemon = Setup::new([worker("agents", 2, &[])]).start();
    let (mut owner, mut thief) = (daemon.connect(), daemon.connect());
    owner.request(0, "session/new", json!({ "name": "secret" }));
    for (id, line) in [
        (1, json!({ "id": 1, "method": "session/prompt", "params": { "sessionId": "secret" } })),
        (2, json!({ "id": 2, "method": "m", "sessionId": "secret" })),
    ] {
        thief.send(&line);
        assert_eq!(thief.error(id, "session_denied"), -32014);
    }
    thief.send(&json!({ "method": "session/cancel", "params": { "sessionId": "secret" } }));
    owner.ask_in("secret", 1, "ask", json!({ "about": "the owner" }));
    let question = owner.message();
    assert_eq!(question["params"]["about"], "the owner");
    // An answer to the same id from another client is dropped.
    thief.send(&json!({ "id": question["id"], "result": "stolen" }));
    daemon.logs(&["unknown_id"]);
    owner.send(&json!({ "id": question["id"], "result": "given" }));
    assert_eq!(owner.answer(1)["result"]["answered"], "given");
    daemon.stop();
}

#[test]
fn a_dedicated_worker_serves_one_connection_and_ends_with_it() {
    let pool = with(with(worker("agents", 1, &[]), "assignment", "dedicated"), "max_instances", 3);
    let mut daemon = Setup::new([pool]).start();
    let (mut first, mut second, mut third) = (daemon.connect(), daemon.connect(), daemon.connect());
    let pids: Vec<u64> = [&mut first, &mut second, &mut third]
        .into_iter()
        .map(|client| process(&client.request(0, "m", json!({}))))
        .collect();
    assert!(pids[0] != pids[1] && pids[1] != pids[2] && pids[0] != pids[2]);
    // All messages of its worker are this client's, with or without a session.
    first.send(&json!({ "method": "write", "params": { "text": "{\"method\":\"plain\"}\n" } }));
    assert_eq!(first.message()["method"], "plain");
    let mut fourth = daemon.connect();
    fourth.ask(1, "m", json!({}));
    assert_eq!(fourth.error(1, "no_worker"), -32010);
    drop(second);
    daemon.until("its worker has gone", || !crate::harness::lives(pids[1]));
    let mut answered = Value::Null;
    daemon.until("there is room for the next", || {
        fourth.ask(2, "m", json!({}));
        answered = fourth.answer(2);
        answered["result"].is_object()
    });
    assert!(!pids.contains(&process(&answered)), "no client gets a used worker");
    daemon.stop();
}

#[test]
fn every_request_that_a_client_sends_while_its_own_worker_dies_is_answered_or_refused() {
    const MOST: u64 = 20_000;
    let pool = with(with(worker("agents", 1, &[]), "assignment", "dedicated"), "max_instances", 3);
    let mut daemon = Setup::new([pool]).limit("max_restarts", 1000).tcp().start();
    for _ in 0..10 {
        let mut client = daemon.connect();
        client.request("first", "m", json!({}));
        let mut speaker = client.second();
        let is_told = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| {
                let (mut last, mut held_up) = (Instant::now(), Duration::ZERO);
                let asked = (0..MOST).find(|id| {
                    held_up = if *id > 100 { held_up.max(last.elapsed()) } else { Duration::ZERO };
                    last = Instant::now();
                    let method = if *id == 100 { "exit" } else { "m" };
                    let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": { "code": 3 } });
                    // A client that knows of the end sends nothing more. Whether bytes written after the end were lost
                    // shows only when more are written.
                    is_told.load(Ordering::Relaxed)
                        || speaker.try_send(format!("{line}\n").as_bytes()).is_err()
                        || speaker.is_over()
                });
                (asked.unwrap_or(MOST), held_up.max(last.elapsed()))
            });
            let _told = SetAtTheEnd(&is_told);
            let mut answered = BTreeSet::new();
            while let Some(message) = client.message_or_end() {
                if message["error"].is_object() {
                    is_told.store(true, Ordering::Relaxed);
                }
                if message["id"].is_null() {
                    assert_eq!(message["error"]["data"]["reason"], "own_worker_ended");
                    continue;
                }
                assert!(answered.insert(message["id"].as_u64().expect("it was asked")), "twice: {message}");
            }
            is_told.store(true, Ordering::Relaxed);
            let (asked, held_up) = asks.join().expect("it asks");
            let unanswered: Vec<u64> = (0..asked).filter(|id| !answered.contains(id)).collect();
            // A client that gets no processor for a second is not waited for.
            let is_complete = unanswered.is_empty() || held_up >= Duration::from_secs(1);
            assert!(is_complete, "{} of {asked} have no answer: {unanswered:?}", unanswered.len());
        });
    }
    daemon.stop();
}

#[test]
fn in_stdio_mode_the_daemon_ends_with_the_worker_of_its_one_client() {
    let pool = with(worker("agents", 1, &[]), "assignment", "dedicated");
    let mut daemon = Setup::new([pool]).stdio().start();
    let mut client = daemon.connect();
    client.request(0, "m", json!({}));
    client.ask(1, "exit", json!({ "code": 3 }));
    assert_eq!(client.error(1, "worker_exited"), -32011);
    assert_eq!(client.error(json!(null), "own_worker_ended"), -32011);
    client.ends();
    assert_eq!(daemon.wait().code(), Some(0));
    daemon.logs(&["the worker of its one client has ended"]);
}

/// An agent that refuses everything before `initialize`, and a second one, as several do.
const STRICT: &str = r#"
while IFS= read -r line; do
    id=$(printf %s "$line" | sed 's/.*"id":\([^,}]*\).*/\1/')
    case $seen$line in
        1*'"initialize"'*) answer='"error":{"code":-32600,"message":"Already initialized"}' ;;
        *'"initialize"'*) seen=1 answer="\"result\":{\"pid\":$$}" ;;
        1*'"exit"'*) exit 3 ;;
        1*) answer="\"result\":{\"pid\":$$}" ;;
        *) answer='"error":{"code":-32600,"message":"Not initialized"}' ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$answer"
done
"#;

#[test]
fn clients_of_a_strict_agent_share_it_and_go_on_after_its_crash() {
    let pool = with(crate::harness::shell("agents", STRICT), "assignment", "client");
    let mut daemon = Setup::new([pool]).start();
    let (mut one, mut two) = (daemon.connect(), daemon.connect());
    let asks = json!({ "protocolVersion": 1, "clientCapabilities": { "terminal": true } });
    let first = process(&one.request(0, "initialize", asks.clone()));
    assert_eq!(process(&two.request(5000, "initialize", asks)), first, "it is the answer to the first one");
    daemon.logs(&["initialize_refused", "takes one initialize only", "dedicated"]);
    one.ask(1, "exit", json!({}));
    assert_eq!(one.error(1, "worker_exited"), -32011);
    let next = process(&one.request(2, "session/new", json!({})));
    assert_ne!(next, first);
    assert_eq!(process(&two.request(5001, "session/new", json!({}))), next);
    daemon.stop();
}

/// Ids of a victim and of an attacker that are equal to a program with doubles and UTF-16.
const LIKE: [(&str, &str); 16] = [
    ("1", "1.00000000000000000001"),
    ("1", "0.99999999999999999999"),
    ("1.00000000000000000001", "1"),
    ("0", "1e-400"),
    ("0", "-0"),
    ("0", "-0.0"),
    ("1", "1.0"),
    ("100", "1e2"),
    ("9007199254740992", "9007199254740993"),
    ("9007199254740993", "9007199254740992"),
    ("-9007199254740992", "-9007199254740993"),
    ("12345678901234567890123", "12345678901234567890124"),
    ("1e400", "1e500"),
    (r#""\ud800""#, r#""\udc00""#),
    ("\"\u{fffd}\"", r#""\ud800""#),
    (r#""a\udc00b""#, r#""a\ud800b""#),
];

#[test]
fn ids_that_a_worker_with_doubles_confuses_are_distinguished_and_come_back_verbatim() {
    let mut daemon = Setup::new([worker("agents", 1, &["--doubles"])]).start();
    let (mut victim, mut attacker) = (daemon.connect(), daemon.connect());
    for (theirs, ours) in LIKE {
        victim.send_line(&format!(r#"{{"id":{theirs},"method":"hold","params":{{"of":"victim"}}}}"#));
        victim.request("sync", "who", json!({}));
        attacker.send_line(&format!(r#"{{"id":{ours},"method":"hold","params":{{"of":"attacker"}}}}"#));
        attacker.request("sync", "who", json!({}));
        victim.ask("release", "release", json!({}));
        assert_eq!(victim.reply(theirs).result["echo"]["of"], "victim", "{theirs} and {ours}");
        assert_eq!(attacker.reply(ours).result["echo"]["of"], "attacker", "{theirs} and {ours}");
        victim.answer("release");
    }
    daemon.stop();
}

// Another daemon's workers: the command of a pool is the bridge to it.

/// A daemon whose workers others use, with its address.
fn elsewhere(pool: Value, address: &str) -> Daemon {
    let listener = if address.starts_with('/') { json!({ "unix": address }) } else { json!({ "ws": address }) };
    Setup::new([pool]).no_listener().set("listeners", json!([listener])).start()
}

/// A pool with that daemon's workers.
fn there(address: &str) -> Value {
    json!({ "id": "far", "command": program(), "args": ["acp", "--connect", address], "instances": 1 })
}

#[test]
fn workers_of_another_daemon_are_used_like_local_ones() {
    let far = elsewhere(worker("agents", 2, &["--name", "far"]), "127.0.0.1:0");
    let pool = there(&format!("ws://{}/acp", far.address()));
    let mut daemon = Setup::new([pool]).start();
    let (mut client, mut other) = (daemon.connect(), daemon.connect());
    assert_eq!(client.request(1, "who", json!({}))["result"]["name"], "far");
    // Sessions have their worker there, and their owner here.
    let made = client.request(2, "session/new", json!({ "name": "mine" }));
    let pid = &made["result"]["pid"];
    for id in 3..7 {
        assert_eq!(client.request_in("mine", id, "m", json!({}))["result"]["pid"], *pid);
    }
    other.ask_in("mine", 1, "m", json!({}));
    other.error(1, "session_denied");
    // A worker sends a request, and is answered.
    client.ask_in("mine", 7, "ask", json!({ "about": "a file" }));
    let question = client.message();
    assert_eq!(question["params"]["about"], "a file", "{question}");
    client.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "may": true } }));
    assert_eq!(client.answer(7)["result"]["answered"]["may"], true);
    // Of two requests with the same id, the sender's is cancelled.
    for one in [&mut client, &mut other] {
        one.ask("a", "hold", json!({}));
    }
    client.send(&json!({ "id": "c", "method": "$/cancelRequest", "params": { "id": "a" } }));
    assert_eq!(client.find_answer("a")["error"]["code"], -32800);
    other.send(&json!({ "id": "c", "method": "$/cancelRequest", "params": { "id": "a" } }));
    assert_eq!(other.find_answer("a")["error"]["code"], -32800);
    daemon.stop();
    far.logs(&["a client disconnected"]);
    far.stop();
}

#[test]
fn a_worker_of_another_daemon_that_dies_costs_what_one_of_this_one_does() {
    let keeper = Setup::bare();
    let path = keeper.text_path("far");
    let start = || elsewhere(worker("agents", 1, &[]), &path);
    let mut far = start();
    far.logs(&["a worker runs"]);
    let mut daemon = Setup::new([there(&format!("unix:{path}"))]).limit("max_restarts", 1000).start();
    let mut client = daemon.connect();
    let pid = client.request(1, "who", json!({}))["result"]["pid"].clone();
    // The worker dies.
    client.ask(2, "hold", json!({}));
    client.ask(3, "exit", json!({}));
    for id in [2, 3] {
        let answer = client.find_answer(id);
        assert_eq!(answer["error"]["data"]["reason"], "worker_exited", "{answer}");
        assert_eq!(answer["error"]["data"]["delivered"], true, "{answer}");
    }
    assert_ne!(client.request(4, "who", json!({}))["result"]["pid"], pid, "another one has its place");
    // The connection to it is cut.
    client.ask(5, "hold", json!({}));
    // It has arrived there once a later one is answered.
    client.request("later", "who", json!({}));
    let (bridge, _) = children(daemon.pid())[0];
    rustix::process::kill_process(rustix::process::Pid::from_raw(bridge as i32).expect("a pid"), Signal::KILL)
        .expect("it lives");
    client.error(5, "worker_exited");
    assert!(client.request(6, "who", json!({}))["result"]["pid"].is_number(), "a new bridge is there");
    // The whole daemon dies. Requests meanwhile get an error, which says whether a bridge may have sent them, and then
    // everything continues.
    client.ask(7, "hold", json!({}));
    far.signal(Signal::KILL);
    far.wait();
    let answer = client.answer(7);
    assert!(answer["error"]["data"]["delivered"].is_boolean(), "{answer}");
    let far = start();
    let mut id = 8;
    daemon.until("the other daemon's workers answer again", || {
        id += 1;
        let answer = client.request(id, "who", json!({}));
        assert!(answer["result"].is_object() || answer["error"]["data"]["delivered"].is_boolean(), "{answer}");
        answer["result"].is_object()
    });
    daemon.stop();
    far.stop();
}

#[test]
fn a_client_has_a_process_of_its_own_there_where_both_daemons_say_so() {
    let dedicated = |pool: Value| with(pool, "assignment", "dedicated");
    let far = elsewhere(dedicated(worker("agents", 1, &[])), "127.0.0.1:0");
    let mut daemon = Setup::new([dedicated(there(&format!("ws://{}/acp", far.address())))]).start();
    let (mut client, mut other) = (daemon.connect(), daemon.connect());
    let pid = |client: &mut Client| client.request(1, "who", json!({}))["result"]["pid"].as_u64().expect("a pid");
    let (mine, others) = (pid(&mut client), pid(&mut other));
    assert_ne!(mine, others);
    drop(client);
    far.until("the process has ended with its client", || !lives(mine));
    assert_eq!(pid(&mut other), others);
    daemon.stop();
    far.stop();
}

// Loads with a target figure. The number of requests is a fraction of it here; `STDIO_BUS_FIGURE_REQUESTS=300000
// STDIO_BUS_FIGURE_KILLS=3000` (as in scripts/soak) sets the full one.

const CONNECTIONS: usize = 64;
const WINDOW: usize = 16;

#[test]
fn sixty_four_connections_through_one_worker_lose_misroute_and_reorder_nothing() {
    let requests = figure("STDIO_BUS_FIGURE_REQUESTS", 30_000);
    let each = requests / CONNECTIONS;
    let mut daemon = Setup::new([echo("echo", 1)]).start();
    let clients: Vec<_> = (0..CONNECTIONS).map(|_| daemon.connect()).collect();
    std::thread::scope(|scope| {
        for (number, mut client) in clients.into_iter().enumerate() {
            scope.spawn(move || {
                let session = format!("session-{number}");
                // 200 bytes including the newline, whatever the lengths of the numbers.
                let line = |id: usize| {
                    let frame = json!({ "id": id, "method": "m", "params": [number, id, ""], "sessionId": session });
                    let fill = 199 - frame.to_string().len();
                    json!({ "id": id, "method": "m", "params": [number, id, "x".repeat(fill)], "sessionId": session })
                };
                for id in 0..WINDOW.min(each) {
                    client.send(&line(id));
                }
                for id in 0..each {
                    let answer = client.answer(id);
                    assert_eq!(answer["sessionId"], session);
                    assert_eq!(
                        (&answer["result"]["echo"][0], &answer["result"]["echo"][1]),
                        (&json!(number), &json!(id))
                    );
                    if id + WINDOW < each {
                        client.send(&line(id + WINDOW));
                    }
                }
                assert!(!client.has_something(), "an answer too many");
            });
        }
    });
    let outcome = daemon.stop();
    assert!(complaints(&outcome.stderr).is_empty(), "{}", outcome.stderr);
}

/// Answered requests between two kills: at 50,000 lines per second, one kill every 100 ms.
const BETWEEN_KILLS: usize = 2500;

/// Sends requests until `over`, each of which must be answered once. Returns the number of errors.
fn asks_without_end(client: &mut Client, answered: &AtomicUsize, over: &AtomicBool) -> usize {
    let (mut waits, mut next, mut errors) = (HashSet::new(), 0_u64, 0);
    loop {
        while waits.len() < WINDOW && !over.load(Ordering::Relaxed) {
            client.ask(next, "m", json!({ "fill": "x".repeat(130) }));
            waits.insert(next);
            next += 1;
        }
        if waits.is_empty() {
            return errors;
        }
        let message = client.message();
        let id = message["id"].as_u64().unwrap_or_else(|| panic!("whose? {message}"));
        assert!(waits.remove(&id), "{id} has been answered before: {message}");
        if message["error"].is_object() {
            let reason = message["error"]["data"]["reason"].as_str().unwrap_or_default();
            assert!(["worker_exited", "no_worker"].contains(&reason), "{message}");
            errors += 1;
        } else {
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn every_request_is_answered_once_or_fails_while_workers_are_killed_one_after_the_other() {
    // Enough that most live for a second and restart after 100 ms: with fewer, all would wait for long delays.
    const WORKERS: usize = 64;
    let kills = figure("STDIO_BUS_FIGURE_KILLS", 25);
    let setup = Setup::new([echo("echo", WORKERS)]);
    let mut daemon = setup.limit("max_restarts", 1_000_000).limit("restart_window_sec", 1).start();
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| daemon.connect()).collect();
    let (answered, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let begun = Instant::now();
    let errors: usize = std::thread::scope(|scope| {
        // They also end if something here panics.
        let end = SetAtTheEnd(&over);
        let asking: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(|| asks_without_end(client, &answered, &over))).collect();
        for kill in 1..=kills {
            until("enough is answered", || answered.load(Ordering::Relaxed) >= kill * BETWEEN_KILLS);
            let workers = children(daemon.pid());
            if !workers.is_empty() {
                // A different one each time.
                let (worker, _) = workers[kill * 7 % workers.len()];
                let _ = kill_process(Pid::from_raw(worker as i32).expect("a process"), Signal::KILL);
            }
        }
        drop(end);
        asking.into_iter().map(|client| client.join().expect("it does not panic")).sum()
    });
    let (answered, took) = (answered.into_inner(), begun.elapsed());
    println!("{answered} requests answered, {errors} failed, {kills} kills in {:.1} s", took.as_secs_f32());
    assert!(clients.iter_mut().all(|client| !client.has_something()), "an answer too many");
    daemon.until("all workers are there again", || children(daemon.pid()).len() == WORKERS);
    daemon.stop();
}
