//! Messages that name a client's request, on a worker shared by several clients that use the same ids.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Setup, shell, with};

/// A worker that takes two requests at a time, reports progress on each, and answers them, the later one first. It
/// repeats ids and tokens verbatim.
const WORKER: &str = r#"
    id_of() { rest=${1#*'"id":'}; echo "${rest%%[,\}]*}"; }
    token_of() { rest=${1#*'"progressToken":'}; echo "${rest%%[,\}]*}"; }
    text_of() { rest=${1#*'"text":'}; echo "${rest%%[,\}]*}"; }
    while read -r first && read -r second; do
        echo '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
        for line in "$second" "$first" "$second"; do
            text="\"message\":$(text_of "$line")"
            echo '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":'"$(token_of "$line"),$text"'}}'
            meta='"_meta":{"io.modelcontextprotocol/subscriptionId":'"$(id_of "$line")"'}'
            echo '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{'"$meta,$text"'}}'
        done
        for line in "$second" "$first"; do
            meta='"_meta":{"io.modelcontextprotocol/subscriptionId":'"$(id_of "$line")"'}'
            echo '{"jsonrpc":"2.0","id":'"$(id_of "$line")"',"result":{'"$meta"',"text":'"$(text_of "$line")"'}}'
        done
    done
"#;

/// The next message, skipping changes of the worker's tools.
fn next(client: &mut Client) -> Value {
    loop {
        let message = client.message();
        if message["method"] != "notifications/tools/list_changed" {
            return message;
        }
    }
}

#[test]
fn clients_with_equal_ids_and_tokens_on_one_worker_hear_only_of_their_own_requests() {
    for (id, token) in [(json!(0), json!(0)), (json!("a"), json!(7)), (json!(3), json!("3"))] {
        let mut daemon = Setup::new([with(shell("mcp", WORKER), "assignment", "round_robin")]).start();
        let mut clients = [daemon.connect(), daemon.connect()];
        for round in 0..3 {
            for (at, client) in clients.iter_mut().enumerate() {
                let text = format!("{round} of {at}");
                let params = json!({ "_meta": { "progressToken": token }, "text": text });
                client.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }));
            }
            let mut times = [0; 2];
            for (at, client) in clients.iter_mut().enumerate() {
                let text = Value::from(format!("{round} of {at}"));
                let answer = loop {
                    let message = next(client);
                    if message["method"].is_null() {
                        break message;
                    }
                    let params = &message["params"];
                    assert_eq!(params["message"], text, "{message}");
                    if message["method"] == "notifications/progress" {
                        assert_eq!(params["progressToken"], token, "{message}");
                    } else {
                        assert_eq!(params["_meta"]["io.modelcontextprotocol/subscriptionId"], id, "{message}");
                    }
                    times[at] += 1;
                };
                assert_eq!((&answer["id"], &answer["result"]["text"]), (&id, &text), "{answer}");
                assert_eq!(answer["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"], id);
            }
            times.sort_unstable();
            assert_eq!(times, [2, 4], "the worker tells of one request twice, and of the other once");
        }
    }
}

#[test]
fn all_clients_of_a_worker_hear_that_its_tools_have_changed() {
    let mut daemon = Setup::new([with(shell("mcp", WORKER), "assignment", "client")]).start();
    let mut clients = [daemon.connect(), daemon.connect()];
    for client in &mut clients {
        let params = json!({ "_meta": { "progressToken": 1 }, "text": "x" });
        client.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }));
    }
    for client in &mut clients {
        assert_eq!(client.message()["method"], "notifications/tools/list_changed");
    }
}
