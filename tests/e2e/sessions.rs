//! Routing (spec 6; decisions 3 to 7). The core's tests cover the corner cases; these show what users see.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{SetAtTheEnd, Setup, echo, with, worker};

fn process(answer: &Value) -> u64 {
    answer["result"]["pid"].as_u64().unwrap_or_else(|| panic!("no pid: {answer}"))
}

#[test]
fn messages_without_a_session_go_round_the_workers() {
    let mut daemon = Setup::new([worker("agents", 3, &[])]).start();
    let mut client = daemon.connect();
    let pids: Vec<u64> = (0..9).map(|id| process(&client.request(id, "m", json!({})))).collect();
    assert!(pids[..3].iter().all(|pid| pids[..3].iter().filter(|other| *other == pid).count() == 1), "{pids:?}");
    assert_eq!(pids[..3], pids[3..6]);
    assert_eq!(pids[..3], pids[6..]);
    daemon.stop();
}

#[test]
fn a_session_stays_with_its_worker() {
    let mut daemon = Setup::new([worker("agents", 4, &[])]).start();
    let mut client = daemon.connect();
    let first: Vec<u64> =
        (0..8).map(|name| process(&client.request_in(&format!("s{name}"), name, "m", json!({})))).collect();
    for round in 0..3 {
        for (name, pid) in first.iter().enumerate() {
            assert_eq!(process(&client.request_in(&format!("s{name}"), round, "m", json!({}))), *pid);
        }
    }
    // Its position makes no difference.
    assert_eq!(process(&client.request(9, "m", json!({ "sessionId": "s3" }))), first[3]);
    daemon.stop();
}

#[test]
fn a_notification_of_a_worker_reaches_the_owner_of_the_session_alone() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (mut owner, mut other) = (daemon.connect(), daemon.connect());
    other.request_in("theirs", 1, "m", json!({}));
    owner.ask_in("mine", 1, "flood", json!({ "lines": 100, "size": 5 }));
    for _ in 0..100 {
        let message = owner.message();
        assert_eq!((&message["method"], &message["sessionId"]), (&json!("tick"), &json!("mine")));
    }
    owner.answer(1);
    other.request_in("theirs", 2, "m", json!({}));
    daemon.stop();
}

#[test]
fn equal_ids_of_many_clients_on_one_worker_never_meet() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut clients: Vec<Client> = (0..20).map(|_| daemon.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        for id in 0..5 {
            client.ask(id, "hold", json!({ "client": number, "id": id }));
        }
        client.send_line(&format!(r#"{{"id":"\u0061","method":"hold","params":{number}}}"#));
    }
    let mut last = daemon.connect();
    // All are held, since the worker reads in order; the last request is not answered first.
    for client in &mut clients {
        client.ask("sync", "who", json!({}));
        client.answer("sync");
    }
    last.request(0, "release", json!({}));
    for (number, client) in clients.iter_mut().enumerate() {
        for id in 0..5 {
            assert_eq!(client.answer(id)["result"]["echo"], json!({ "client": number, "id": id }));
        }
        assert_eq!(client.answer("a")["result"]["echo"], json!(number));
    }
    daemon.stop();
}

#[test]
fn two_workers_may_call_their_sessions_alike() {
    let mut daemon = Setup::new([with(worker("agents", 2, &[]), "assignment", "client")]).start();
    let mut clients = [daemon.connect(), daemon.connect()];
    let mut pids = Vec::new();
    for client in &mut clients {
        let made = client.request(0, "session/new", json!({ "name": "0" }));
        assert_eq!(made["result"]["sessionId"], "0");
        pids.push(process(&made));
    }
    assert_ne!(pids[0], pids[1]);
    for (client, pid) in clients.iter_mut().zip(&pids) {
        assert_eq!(process(&client.request(1, "m", json!({ "sessionId": "0" }))), *pid);
        client.ask_in("0", 2, "flood", json!({ "lines": 1, "size": 1 }));
        assert_eq!(client.message()["sessionId"], "0");
        client.answer(2);
    }
    daemon.stop();
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
fn with_shared_access_a_session_serves_every_client_that_names_it() {
    let setup = Setup::new([worker("agents", 2, &[])]).set("routing", json!({ "session_access": "shared" }));
    let mut daemon = setup.start();
    let (mut first, mut second) = (daemon.connect(), daemon.connect());
    let pid = process(&first.request_in("s", 1, "m", json!({})));
    for id in 0..3 {
        assert_eq!(process(&second.request_in("s", id, "m", json!({}))), pid);
    }
    daemon.stop();
}

#[test]
fn the_answer_to_a_workers_request_goes_back_to_the_worker_that_asked() {
    let mut daemon = Setup::new([worker("agents", 4, &[])]).start();
    let mut client = daemon.connect();
    // All four workers send requests with the same id, all of them pending at once.
    for name in 0..4 {
        client.ask_in(&format!("s{name}"), name, "ask", json!({ "id": 0, "about": name }));
    }
    let questions: Vec<Value> = (0..4).map(|_| client.message()).collect();
    let mut ids: Vec<String> = questions.iter().map(|question| question["id"].to_string()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4, "the client can tell them apart: {ids:?}");
    for question in questions.iter().rev() {
        client.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": question["params"]["about"] }));
    }
    let mut answers: Vec<(i64, i64)> = (0..4)
        .map(|_| client.message())
        .map(|answer| (answer["id"].as_i64().unwrap(), answer["result"]["answered"].as_i64().unwrap()))
        .collect();
    answers.sort_unstable();
    assert_eq!(answers, [(0, 0), (1, 1), (2, 2), (3, 3)]);
    daemon.stop();
}

#[test]
fn a_question_of_a_worker_whose_client_leaves_is_answered_with_an_error() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (mut leaver, mut stayer) = (daemon.connect(), daemon.connect());
    stayer.request(1, "session/new", json!({ "name": "stays" }));
    leaver.ask_in("goes", 1, "ask", json!({ "about": 1 }));
    leaver.message();
    leaver.reset();
    daemon.logs(&["reason=client_left", "id="]);
    // The worker got its error, and its answer to the departed client is dropped: the next line is ours.
    stayer.request(2, "m", json!({}));
    daemon.stop();
}

#[test]
fn with_client_assignment_one_connection_stays_with_one_worker() {
    let mut daemon = Setup::new([with(worker("agents", 3, &[]), "assignment", "client")]).start();
    let mut pids = Vec::new();
    let mut clients: Vec<Client> = (0..3).map(|_| daemon.connect()).collect();
    for client in &mut clients {
        let pid = process(&client.request(0, "m", json!({})));
        assert!((1..10).all(|id| process(&client.request(id, "m", json!({}))) == pid));
        pids.push(pid);
    }
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 3, "connections are spread over the workers");
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
fn a_connection_ends_with_its_own_worker_and_the_next_one_gets_another() {
    let pool = with(with(worker("agents", 1, &[]), "assignment", "dedicated"), "max_instances", 3);
    let mut daemon = Setup::new([pool]).start();
    let mut client = daemon.connect();
    let first = process(&client.request(0, "initialize", json!({})));
    client.ask(1, "hold", json!({}));
    client.ask(2, "exit", json!({ "code": 3 }));
    assert_eq!(client.error(1, "worker_exited"), -32011);
    assert_eq!(client.error(2, "worker_exited"), -32011);
    assert_eq!(client.error(json!(null), "own_worker_ended"), -32011);
    client.ends();
    daemon.logs(&["own_worker_ended", "client=0"]);
    let mut next = daemon.connect();
    assert_ne!(process(&next.request(0, "initialize", json!({}))), first);
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

#[test]
fn a_message_may_name_its_pool() {
    let pools = [worker("one", 1, &["--name", "1"]), worker("two", 1, &["--name", "2"])];
    let mut daemon = Setup::new(pools).start();
    let mut client = daemon.connect();
    for (pool, name) in [("one", "1"), ("two", "2"), ("one", "1")] {
        client.send(&json!({ "id": 1, "method": "who", "pool": pool }));
        assert_eq!(client.answer(1)["result"]["name"], name);
    }
    client.send(&json!({ "id": 2, "method": "who", "pool": "three" }));
    assert_eq!(client.error(2, "unknown_pool"), -32602);
    daemon.stop();
}

#[test]
fn when_the_session_table_is_full_the_largest_holder_is_refused_and_others_continue() {
    let mut daemon = Setup::new([echo("echo", 2)]).start();
    let (mut client, mut other) = (daemon.connect(), daemon.connect());
    for name in 0..1024 {
        client.ask_in(&name.to_string(), name, "m", json!({}));
    }
    for _ in 0..1024 {
        assert!(client.message()["result"].is_object());
    }
    client.ask_in("one too many", 1, "m", json!({}));
    assert_eq!(client.error(1, "session_limit"), -32012);
    assert!(client.request_in("512", 1, "m", json!({}))["result"].is_object());
    // A client with few gets room from the one with most.
    assert!(other.request_in("one of its own", 1, "m", json!({}))["result"].is_object());
    assert!(other.request(2, "m", json!({}))["result"].is_object());
    daemon.stop();
}

#[test]
fn when_the_pending_table_is_full_the_next_request_is_refused_and_answers_go_on() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let mut client = daemon.connect();
    for id in 0..4096 {
        client.ask(id, "hold", json!({}));
    }
    client.ask("over", "hold", json!({}));
    assert_eq!(client.error("over", "pending_limit"), -32013);
    client.send(&json!({ "method": "release" }));
    for id in 0..4096 {
        client.answer(id);
    }
    client.request("again", "m", json!({}));
    daemon.stop();
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
