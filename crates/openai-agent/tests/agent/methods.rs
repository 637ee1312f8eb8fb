//! ACP's methods, and the answers to requests that cannot be understood.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use serde_json::{Value as Json, json};

use super::client::{Client, PATIENCE};
use super::endpoint::Endpoint;

#[test]
fn initialize_returns_the_capabilities_of_the_agent() {
    let mut client = Client::for_url("http://127.0.0.1:9/v1");
    for version in [json!(1), json!(7), json!("2025-03-26")] {
        let result = client.result("initialize", json!({"protocolVersion": version, "clientCapabilities": {}}));
        assert_eq!(result["protocolVersion"], 1);
        assert_eq!(result["agentInfo"]["name"], "openai-agent");
        let capabilities = &result["agentCapabilities"];
        assert_eq!(
            capabilities["promptCapabilities"],
            json!({"image": false, "audio": false, "embeddedContext": true})
        );
        assert_eq!(capabilities["loadSession"], false);
        assert_eq!(result["authMethods"].as_array().unwrap().len(), 1);
        assert!(result["authMethods"][0].get("type").is_none());
    }
    assert_eq!(client.result("authenticate", json!({"methodId": "env-api-key"})), json!({}));
    // Any method id is accepted without effect (the RFD: "no-op").
    assert_eq!(client.result("authenticate", json!({"methodId": "face"})), json!({}));
    assert_eq!(client.result("authenticate", json!({})), json!({}));
}

#[test]
fn a_session_offers_its_model_and_takes_another() {
    let endpoint = Endpoint::saying(&["ok"]);
    let mut client = Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_MODEL", "first")]);
    let result = client.result("session/new", json!({"cwd": "/work", "mcpServers": []}));
    let session = result["sessionId"].as_str().unwrap().to_owned();
    let option = json!([{"id": "model", "name": "Model", "category": "model", "type": "select", "currentValue": "first",
        "options": [{"value": "first", "name": "first"}]}]);
    assert_eq!(result["configOptions"][0], option[0]);

    let params = json!({"sessionId": session, "configId": "model", "value": "second"});
    let options = client.result("session/set_config_option", params)["configOptions"].clone();
    assert_eq!(options[0]["currentValue"], "second");
    let values: Vec<&Json> = options[0]["options"].as_array().unwrap().iter().map(|option| &option["value"]).collect();
    assert_eq!(values, ["second", "first"]);
    client.prompt(&session, "hi");
    assert_eq!(client.result("session/set_model", json!({"sessionId": session, "modelId": "third"})), json!({}));
    client.prompt(&session, "hi");
    client.result("session/set_model", json!({"sessionId": session, "modelId": "default"}));
    client.prompt(&session, "hi");
    let models: Vec<Json> = endpoint.requests().iter().map(|request| request.body["model"].clone()).collect();
    assert_eq!(models, ["second", "third", "first"]);

    for params in [
        json!({"sessionId": session, "configId": "mood", "value": "x"}),
        json!({"sessionId": session, "configId": "model", "value": 7}),
        json!({"sessionId": session, "configId": "model", "value": ""}),
        json!({"sessionId": session}),
    ] {
        assert_eq!(client.error("session/set_config_option", params)["code"], -32602);
    }
    assert_eq!(client.error("session/set_mode", json!({"sessionId": session, "modeId": "x"}))["code"], -32601);
}

#[test]
fn a_client_that_names_mcp_servers_is_served_and_the_operator_is_warned_once() {
    let mut client = Client::logging("warn", &[]);
    let server = json!({"name": "files", "command": "/bin/files", "args": [], "env": []});
    for servers in [json!([]), json!([server]), json!([server])] {
        client.result("session/new", json!({"cwd": "/", "mcpServers": servers}));
    }
    let log = client.log();
    assert_eq!(log.matches("mcpServers").count(), 1, "{log}");
}

#[test]
fn a_configured_list_of_models_is_kept_to() {
    let mut client = Client::start(&[("OPENAI_MODELS", "a, b"), ("OPENAI_MODEL", "c")]);
    let result = client.result("session/new", json!({"cwd": "/", "mcpServers": []}));
    let values: Vec<Json> =
        result["configOptions"][0]["options"].as_array().unwrap().iter().map(|o| o["value"].clone()).collect();
    assert_eq!(values, ["c", "a", "b"]);
    let set = |model: &str| json!({"sessionId": result["sessionId"], "configId": "model", "value": model});
    client.result("session/set_config_option", set("b"));
    let error = client.error("session/set_config_option", set("d"));
    assert_eq!(error["code"], -32602);
    assert!(error["message"].as_str().unwrap().contains("a, b"), "{error}");
}

#[test]
fn models_are_fetched_when_asked() {
    let endpoint = Endpoint::start(|request, conn| {
        assert_eq!((request.method.as_str(), request.target.as_str()), ("GET", "/v1/models"));
        assert_eq!(request.header("authorization"), Some("Bearer k"));
        conn.respond(200, &[("content-type", "application/json")], r#"{"data":[{"id":"m1"},{"id":"m2"}]}"#);
    });
    let env = [("OPENAI_BASE_URL", endpoint.url()), ("OPENAI_MODELS", "fetch".into()), ("OPENAI_API_KEY", "k".into())];
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut client = Client::start(&env);
    let result = client.result("session/new", json!({"cwd": "/", "mcpServers": []}));
    assert_eq!(models_of(&result), ["gpt-4o", "m1", "m2"]);
}

/// The models that a new session offers.
fn offered(client: &mut Client) -> Vec<String> {
    models_of(&client.result("session/new", json!({"cwd": "/", "mcpServers": []})))
}

/// The models that an answer to session/new offers.
fn models_of(result: &Json) -> Vec<String> {
    let options = result["configOptions"][0]["options"].as_array().unwrap();
    options.iter().map(|option| option["value"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn models_are_fetched_again_when_that_failed() {
    // The fetch at startup fails while a client waits for it, not before: then the client would start another.
    let (asked, may_fail) = channel();
    let may_fail = Mutex::new(may_fail);
    let endpoint = Endpoint::start(move |request, conn| match request.number {
        0 => {
            may_fail.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            conn.refuse(503, "starting");
        }
        1 => conn.respond(200, &[], "<html>"),
        _ => conn.respond(200, &[], r#"[{"id":"m1"},{"id":7},{"name":"x"},{"id":"m2"}]"#),
    });
    let mut client = Client::logging(
        "warn",
        &[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_MODELS", "fetch"), ("OPENAI_MODEL", "m2")],
    );
    let waiting = client.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
    client.result("authenticate", json!({}));
    asked.send(()).unwrap();
    let result = client.answer(waiting).answer["result"].take();
    assert_eq!(models_of(&result), ["m2"], "the fetch of the start");
    assert_eq!(offered(&mut client), ["m2"], "asked late, and no list yet");
    assert_eq!(offered(&mut client), ["m1", "m2"], "a bare array, without entries that have no id");
    assert_eq!(offered(&mut client), ["m1", "m2"]);
    assert_eq!(endpoint.requests().len(), 3, "what was fetched is believed for a while");
    let log = client.log();
    assert_eq!(
        log,
        "openai-agent: warning: The list of models cannot be fetched: HTTP 503: starting\n\
         openai-agent: warning: The list of models cannot be fetched: no list of models: no JSON at line 1, column 1\n"
    );
}

#[test]
fn unknown_methods_sessions_and_models_are_errors() {
    let mut client = Client::for_url("http://127.0.0.1:9/v1");
    assert_eq!(client.error("session/dance", json!({}))["code"], -32601);
    for method in ["session/load", "session/resume", "session/delete"] {
        let error = client.error(method, json!({"sessionId": "x", "cwd": "/", "mcpServers": []}));
        assert_eq!(error["code"], -32601);
        assert!(error["message"].as_str().unwrap().contains("OPENAI_HISTORY_DIR"), "{error}");
    }
    for method in
        ["session/prompt", "session/close", "session/set_model", "session/set_config_option", "session/cancel"]
    {
        let params = json!({"sessionId": "x", "prompt": [{"type": "text", "text": "hi"}], "modelId": "m", "configId": "model", "value": "m"});
        let error = client.error(method, params);
        assert_eq!((&error["code"], &error["data"]["sessionId"]), (&json!(-32002), &json!("x")), "{method}");
    }
    for (method, params) in [
        ("session/new", json!({})),
        ("session/new", json!({"cwd": 7})),
        ("session/new", json!([1])),
        ("session/prompt", json!({})),
    ] {
        assert_eq!(client.error(method, params)["code"], -32602, "{method}");
    }
    let session = client.session();
    for prompt in [json!(null), json!("hi"), json!([]), json!([{"type": "text"}]), json!([{"type": "smell"}])] {
        assert_eq!(client.error("session/prompt", json!({"sessionId": session, "prompt": prompt}))["code"], -32602);
    }
}

#[test]
fn an_invalid_request_gets_an_error_and_the_next_line_is_read() {
    let mut client = Client::start(&[("OPENAI_MAX_LINE_BYTES", "100000")]);
    let mut expect = |bytes: &[u8], code: i64| {
        client.write(bytes);
        let line = client.line();
        assert_eq!((&line["error"]["code"], &line["id"]), (&json!(code), &Json::Null), "{line}");
    };
    expect(b"{oops\n", -32700);
    expect(b"\n\r\n[]\n", -32600);
    expect(b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\"}]\n", -32600);
    expect(b"7\n", -32600);
    expect(b"{}\n", -32600);
    expect(b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"x\"}\n", -32600);
    expect(&[&vec![b'['; 90_000][..], b"\n"].concat(), -32700);
    expect(&[&vec![b' '; 100_001][..], b"\n"].concat(), -32600);
    expect(b"\xff\xfe\n", -32700);
    client.write(b"{\"jsonrpc\":\"1.0\",\"id\":\"a\",\"method\":\"initialize\"}\n");
    let line = client.line();
    assert_eq!((&line["error"]["code"], &line["id"]), (&json!(-32600), &json!("a")));
    // Answers, unknown notifications and blank lines are ignored.
    client.write(b"{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":null}\n{\"jsonrpc\":\"2.0\",\"method\":\"x/y\"}\n\n");
    client.session();
}

#[test]
fn a_line_that_cannot_be_read_is_answered_under_its_id() {
    let endpoint = Endpoint::saying(&["ok"]);
    let mut client = Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_MAX_LINE_BYTES", "100000")]);
    let session = client.session();
    // Valid JSON that no float or string of ours can hold.
    for (id, text, said) in [
        ("7.5", "cut \\ud83d", "cut \u{fffd}"),
        ("18446744073709551616", "big", "big"),
        ("3", "x\",\"number\":1e400,\"y\":\"", "x"),
    ] {
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"session/prompt","params":{{"sessionId":"{session}","prompt":[{{"type":"text","text":"{text}"}}]}}}}"#
        );
        client.write(format!("{line}\n").as_bytes());
        let answer = std::iter::repeat_with(|| client.line()).find(|line| line.get("method").is_none()).unwrap();
        assert_eq!(answer["id"].to_string(), serde_json::from_str::<Json>(id).unwrap().to_string(), "{answer}");
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        let last = endpoint.requests().pop().unwrap().body;
        assert_eq!(last["messages"].as_array().unwrap().last().unwrap()["content"], said);
    }
    // Lines that are not JSON, and lines that are too long.
    let long = "x".repeat(100_000);
    for (line, code) in [
        (r#"{"jsonrpc":"2.0","id":"a","method":"initialize",}"#.to_owned(), -32700),
        (r#"{"jsonrpc":"2.0","method":"initialize","params":{"x":NaN},"id":"a"}"#.to_owned(), -32700),
        (format!(r#"{{"jsonrpc":"2.0","id":"a","method":"m","params":{{"x":"{long}"}}}}"#), -32600),
        (format!(r#"{{"jsonrpc":"2.0","method":"m","params":{{"x":"{long}","id":1}},"id":"a"}}"#), -32600),
    ] {
        client.write(format!("{line}\n").as_bytes());
        let answer = client.line();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("a"), &json!(code)), "{answer}");
    }
    // An answer that is too long is ignored.
    client.write(format!("{{\"id\":\"a\",\"result\":\"{long}\"}}\n").as_bytes());
    client.session();
}

#[test]
fn ids_come_back_as_they_came() {
    let mut client = Client::for_url("http://127.0.0.1:9/v1");
    for id in [json!(0), json!("0"), json!(-3), json!(9007199254740993u64), json!("5b0c\u{e9}\n\""), Json::Null] {
        client.send(&json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": {"protocolVersion": 1}}));
        let line = client.line();
        assert_eq!(line["id"], id);
        assert!(line["result"].is_object());
    }
}

#[test]
fn open_sessions_are_listed_without_a_history_and_one_that_was_closed_is_not_known_any_more() {
    let mut client = Client::start(&[]);
    let (first, second) = (client.session(), client.session());
    assert_ne!(first, second);
    let listed = |client: &mut Client, params: Json| client.result("session/list", params)["sessions"].clone();
    assert_eq!(listed(&mut client, json!({"cwd": "/work"})).as_array().map(Vec::len), Some(2));
    assert_eq!(listed(&mut client, json!({"cwd": "/other"})), json!([]));
    assert_eq!(client.result("session/close", json!({"sessionId": second})), json!({}));
    assert_eq!(client.error("session/close", json!({"sessionId": second}))["code"], -32002);
    assert_eq!(listed(&mut client, json!({}))[0]["sessionId"], first.as_str());
}

#[test]
fn the_session_id_of_the_bus_is_on_every_line_if_it_was_sent() {
    let endpoint = Endpoint::saying(&["a", "b"]);
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "hi"}]});
    client.send(
        &json!({"jsonrpc": "2.0", "id": "p", "sessionId": "bus-1", "method": "session/prompt", "params": prompt}),
    );
    loop {
        let line = client.line();
        assert_eq!(line["sessionId"], "bus-1", "{line}");
        if line["id"] == "p" {
            break;
        }
        assert_eq!(line["params"]["sessionId"], session.as_str());
    }
    let id = client.ask("session/prompt", prompt);
    loop {
        let line = client.line();
        assert!(line.get("sessionId").is_none(), "{line}");
        if line["id"] == id {
            break;
        }
    }
    client.send(&json!({"jsonrpc": "2.0", "id": "n", "sessionId": "bus-2", "method": "nope", "params": {}}));
    assert_eq!(client.line()["sessionId"], "bus-2");
}

#[test]
fn a_second_prompt_of_a_busy_session_is_refused() {
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let endpoint = Endpoint::start(move |_, conn| {
        conn.begin();
        conn.text("a");
        gate.lock().unwrap().recv().unwrap();
        conn.text("b");
        conn.done();
    });
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    let first = client.ask_prompt(&session, "one");
    assert_eq!(client.line()["method"], "session/update");
    let second = client.prompt(&session, "two");
    assert_eq!(second.answer["error"]["code"], -32600);
    open.send(()).unwrap();
    assert_eq!(client.answer(first).text(), "b");
}
