//! Another daemon's workers: the command of a pool is the bridge to it.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Daemon, Setup, children, lives, program, with, worker};

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
