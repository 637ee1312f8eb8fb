//! MCP over Streamable HTTP: sessions, streams, losses, and refusals. `tests/clients` has tests with other projects'
//! clients.

use std::net::TcpStream;

use serde_json::{Value, json};
use stdio_bus_proto::mcp::head::Repeated;

use crate::admin::{Admin, said, with_admin};
use crate::harness::{Daemon, Setup, children, echo, with, worker};
use crate::http::{Answer, Event, Http, notification, request};

pub const VERSION: &str = "2025-11-25";

/// A daemon with one MCP listener, which has these keys.
pub fn door(pool: Value, keys: Value) -> Daemon {
    door_of(Setup::new([pool]), keys)
}

pub fn door_of(setup: Setup, keys: Value) -> Daemon {
    let mut listener = json!({ "http": "127.0.0.1:0" });
    keys.as_object().unwrap().iter().for_each(|(key, value)| listener[key] = value.clone());
    setup.no_listener().set("listeners", json!([listener])).start()
}

/// A pool whose sessions share one worker.
pub fn shared() -> Value {
    with(worker("tools", 1, &[]), "assignment", "client")
}

/// A pool with a worker for each session.
pub fn dedicated() -> Value {
    with(with(worker("tools", 1, &[]), "assignment", "dedicated"), "max_instances", 8)
}

/// A request that makes the worker write these lines before its answer.
fn says(id: u64, lines: &[Value]) -> Value {
    let answer = json!({ "jsonrpc": "2.0", "id": id, "result": { "said": true } });
    let text: String = lines.iter().chain([&answer]).map(|line| format!("{line}\n")).collect();
    request(id, "write", json!({ "text": text }))
}

pub fn messages(events: &[Event]) -> Vec<Value> {
    events.iter().filter(|event| !event.data.is_empty()).map(Event::json).collect()
}

#[test]
fn a_session_begins_with_initialize_and_ends_with_delete() {
    let daemon = door(shared(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let id = client.session_id();
    assert!(id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_graphic()), "{id}");
    let accepted = client.ask(&notification("notifications/initialized", json!({})));
    assert_eq!((accepted.status, accepted.body.as_str()), (202, ""));
    assert_eq!(client.call(1, "tools/list", json!({}))["result"]["method"], "tools/list");
    client.send("DELETE /mcp", &[], "");
    assert_eq!(client.answer().status, 204);
    let gone = client.ask(&request(2, "tools/list", json!({})));
    assert_eq!((gone.status, gone.json()["id"].clone()), (404, json!(2)), "the connection stays, the session does not");
    daemon.logs(&["a client disconnected", "reason=client_closed"]);
    daemon.stop();
}

#[test]
fn ids_begin_with_the_node_that_log_and_status_name() {
    let daemon = door_of(with_admin(Setup::new([shared()]).set("node", json!("bus-1"))), json!({}));
    daemon.logs(&["stdio_bus ", ", node bus-1"]);
    let client = Http::session(daemon.address(), VERSION);
    assert!(client.session_id().starts_with("bus-1."), "{}", client.session_id());
    let status: Value = serde_json::from_str(&Admin::of(&daemon).get("/status.json").body).unwrap();
    assert_eq!(status["node"], "bus-1");
    let text = said(&daemon, &["status"]);
    assert!(text.contains(", node bus-1, "), "{text}");
    let mut other = Http::connect(daemon.address()).with("Mcp-Session-Id", "bus-2.AAAAAAAAAAAAAAAAAAAAAA");
    assert_eq!(other.ask(&request(1, "tools/list", json!({}))).status, 404, "a session of another daemon");
    daemon.logs(&["handshake_refused", "another node has begun it"]);
    daemon.stop();
}

#[test]
fn an_answer_is_json_if_it_is_first_and_an_event_stream_otherwise() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    assert_eq!(client.call(1, "a", json!({ "b": "\u{e9}" }))["result"]["echo"], json!({ "b": "\u{e9}" }));
    let log = notification("notifications/message", json!({ "level": "info", "data": "x" }));
    let stream = client.ask(&says(2, std::slice::from_ref(&log)));
    assert!(stream.status == 200 && stream.is_stream(), "{stream:?}");
    let events = client.events();
    assert_eq!(messages(&events)[0], log);
    assert_eq!(messages(&events)[1]["result"]["said"], true);
    assert!(events[0].data.is_empty() && events.iter().all(|event| event.id.is_some()), "primed: {events:?}");
    assert_eq!(client.call(3, "a", json!({}))["id"], 3, "the next one on the same connection");
    daemon.stop();
}

#[test]
fn old_clients_are_not_sent_an_event_without_data() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Http::session(daemon.address(), "2025-06-18");
    client.post(&says(1, &[notification("notifications/message", json!({}))]));
    assert!(client.answer().is_stream());
    assert!(client.events().iter().all(|event| !event.data.is_empty()));
    daemon.stop();
}

#[test]
fn a_workers_request_uses_the_stream_of_the_request_that_caused_it() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    client.post(&request(1, "ask", json!({ "method": "sampling/createMessage", "id": "q" })));
    assert!(client.answer().is_stream());
    let asked = client.message().expect("it asks").json();
    assert_eq!((&asked["method"], &asked["id"]), (&json!("sampling/createMessage"), &json!("q")));
    let mut other = client.again();
    let answer = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "yes": 1 } });
    assert_eq!(other.ask(&answer).status, 202);
    let last = messages(&client.events());
    assert_eq!(last[0]["result"]["answered"], json!({ "yes": 1 }));
    daemon.stop();
}

#[test]
fn sessions_of_one_worker_get_their_own_messages() {
    let daemon = door(shared(), json!({}));
    let mut clients: Vec<Http> = (0..8).map(|_| Http::session(daemon.address(), VERSION)).collect();
    for round in 0..5 {
        for (number, client) in clients.iter_mut().enumerate() {
            client.post(&request(round, "m", json!({ "of": number })));
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let answer = client.answer().json();
            assert_eq!((&answer["id"], &answer["result"]["echo"]["of"]), (&json!(round), &json!(number)));
        }
    }
    assert_eq!(children(daemon.pid()).len(), 1);
    daemon.stop();
}

#[test]
fn a_get_receives_messages_without_a_request_and_a_new_one_replaces_it() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let mut first = client.stream();
    let changed = notification("notifications/tools/list_changed", json!({}));
    client.post(&says(1, std::slice::from_ref(&changed)));
    let event = first.message().expect("it comes");
    assert_eq!(event.json(), changed);
    assert_eq!(client.answer().json()["result"]["said"], true, "and the request has its answer alone");
    let _second = client.stream();
    assert_eq!(first.event(), None, "the old one ends");
    daemon.stop();
}

#[test]
fn an_answer_whose_connection_broke_is_fetched_after_the_last_event() {
    let daemon = door(dedicated(), json!({}));
    let client = Http::session(daemon.address(), VERSION);
    let mut cut = client.again();
    let log = notification("notifications/message", json!({ "data": "x" }));
    cut.post(&request(1, "write", json!({ "text": format!("{log}\n") })));
    assert!(cut.answer().is_stream());
    let last = cut.message().expect("it comes");
    drop(cut);
    // The answer is sent while no client is connected.
    let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": { "late": true } });
    let mut other = client.again();
    let text = format!("{answer}\n{}\n", json!({ "jsonrpc": "2.0", "id": 2, "result": {} }));
    assert_eq!(other.ask(&request(2, "write", json!({ "text": text }))).json()["id"], 2);
    let mut back = client.again();
    assert!(back.open(last.id.as_deref()).is_stream());
    assert_eq!(messages(&back.events()), [answer], "and the stream ends with it");
    daemon.stop();
}

/// Requests of a session whose connections broke after one event each. Returns the ids of those events.
fn cut_off(client: &Http, ids: std::ops::Range<u64>) -> Vec<String> {
    let log = notification("notifications/message", json!({ "data": "x" }));
    let cut = ids.map(|id| {
        let mut cut = client.again();
        cut.post(&request(id, "write", json!({ "text": format!("{log}\n") })));
        assert!(cut.answer().is_stream());
        cut.message().expect("it comes").id.expect("it can be resumed after")
    });
    cut.collect()
}

/// An answer of nearly a megabyte.
fn long_answer(id: u64) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": { "text": "x".repeat(900_000) } })
}

#[test]
fn an_answer_outlives_its_stream_however_long_it_is_and_whatever_comes_before_and_after_it() {
    let daemon = door(dedicated(), json!({}));
    let client = Http::session(daemon.address(), VERSION);
    let mut other = client.again();
    let log = notification("notifications/message", json!({ "data": "x" }));
    let params = json!({ "text": format!("{log}\n"), "_meta": { "progressToken": "t" } });
    let mut cut = client.again().with_little_room();
    cut.post(&request(1, "write", params));
    assert!(cut.answer().is_stream());
    let last = cut.message().expect("it comes");
    let progress = |number: u64| {
        notification("notifications/progress", json!({ "progressToken": "t", "progress": number })).to_string()
    };
    // It is begun on the connection that breaks, and is longer than that and the kernels hold.
    let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": { "text": "x".repeat(900_000) } });
    let lines: Vec<String> = (0..400).map(progress).chain([answer.to_string()]).collect();
    assert_eq!(other.ask(&notification("write", json!({ "text": lines.join("\n") + "\n" }))).status, 202);
    assert_eq!(other.call(2, "a", json!({}))["id"], 2, "all of it has come before this");
    cut.reset();
    let changed = notification("notifications/tools/list_changed", json!({})).to_string();
    let text = vec![changed; 400].join("\n") + "\n";
    assert_eq!(other.ask(&notification("write", json!({ "text": text }))).status, 202);
    let mut back = client.again();
    assert!(back.open(last.id.as_deref()).is_stream());
    assert_eq!(messages(&back.events()).last(), Some(&answer));
    daemon.stop();
}

#[test]
fn a_long_answer_is_an_event_that_can_be_fetched_after_its_connection_broke() {
    let daemon = door(dedicated(), json!({}));
    let client = Http::session(daemon.address(), VERSION);
    let text = format!("{}\n", long_answer(1));
    let mut cut = client.again().with_little_room();
    cut.post(&request(1, "write", json!({ "text": text })));
    assert!(cut.answer().is_stream());
    let first = cut.event().expect("it comes before the answer");
    assert_eq!(first.data, "");
    cut.reset();
    let mut back = client.again();
    assert!(back.open(first.id.as_deref()).is_stream());
    assert_eq!(messages(&back.events()), [long_answer(1)]);
    let mut old = Http::session(daemon.address(), "2025-06-18");
    let answer = old.ask(&request(1, "write", json!({ "text": text })));
    assert_eq!((answer.is_stream(), answer.json()), (false, long_answer(1)), "others could not ask for it");
    daemon.stop();
}

#[test]
fn an_answer_of_megabytes_comes_whole_with_its_own_id_to_each_session_of_a_shared_worker() {
    let pool = with(echo("echo", 1), "assignment", "client");
    let daemon = door_of(Setup::new([pool]).limit("max_input_buffer", 4 << 20), json!({}));
    let text = "x".repeat(2 << 20);
    // The ids of the second one are replaced.
    let mut sessions = [(); 2].map(|()| Http::session(daemon.address(), VERSION));
    for _ in 0..2 {
        for client in &mut sessions {
            let answer = client.ask(&request(7, "tools/call", json!({ "text": text })));
            assert!(!answer.is_stream());
            let answer = answer.json();
            assert!(answer["id"] == 7 && answer["result"]["echo"]["text"] == text.as_str());
        }
    }
    daemon.stop();
}

#[test]
fn an_event_of_megabytes_has_no_carriage_returns_and_a_whole_answer_may_have_them() {
    let daemon = door_of(Setup::new([dedicated()]).limit("max_input_buffer", 4 << 20), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let result = json!({ "text": "x".repeat(2 << 20) });
    let answer = |id: u64| format!("{{\"jsonrpc\":\"2.0\",\r\"id\":{id},\r\"result\":{result}\r}}\n");
    let whole = client.ask(&request(1, "write", json!({ "text": answer(1) })));
    assert!(!whole.is_stream() && whole.json()["result"] == result);
    let log = notification("notifications/message", json!({ "data": "x" }));
    let text = format!("{log}\n{}", answer(2));
    assert!(client.ask(&request(2, "write", json!({ "text": text }))).is_stream());
    let events = client.events();
    assert!(events.iter().all(|event| !event.data.contains('\r')));
    assert!(messages(&events).last().is_some_and(|answer| answer["id"] == 2 && answer["result"] == result));
    daemon.stop();
}

#[test]
fn an_answer_that_cannot_be_kept_is_an_error_with_its_id_on_the_stream_that_resumes() {
    let daemon = door_of(Setup::new([dedicated()]).limit("max_memory", 16 << 20), json!({}));
    let client = Http::session(daemon.address(), VERSION);
    let cut = cut_off(&client, 1..13);
    let mut other = client.again();
    for id in 1..13 {
        let text = format!("{}\n", long_answer(id));
        assert_eq!(other.ask(&notification("write", json!({ "text": text }))).status, 202);
    }
    assert_eq!(other.call(20, "a", json!({}))["id"], 20, "all of them have come before this");
    let results = cut.iter().zip(1..).map(|(last, id)| {
        let mut back = client.again();
        assert!(back.open(Some(last)).is_stream());
        let told = messages(&back.events());
        let told = told.last().expect("it is answered");
        assert_eq!(told["id"], json!(id));
        let is_lost = told["error"]["data"]["reason"] == "events_lost";
        assert!(is_lost || *told == long_answer(id));
        !is_lost
    });
    assert_eq!(results.filter(|is_there| *is_there).count(), 9, "as many as half of max_memory holds");
    daemon.logs(&["reason=events_lost"]);
    daemon.stop();
}

#[test]
fn an_answer_that_nobody_can_ask_for_is_reported_and_is_on_no_other_stream() {
    let pool = with(worker("tools", 1, &["--keep"]), "assignment", "dedicated");
    let daemon = door(pool, json!({}));
    let client = Http::session(daemon.address(), VERSION);
    let mut other = client.again();
    assert_eq!(other.call(6, "a", json!({}))["id"], 6);
    let before = daemon.sockets();
    let mut cut = client.again();
    cut.post(&request(1, "hold", json!({})));
    daemon.until("the request is with the worker", || other.call(7, "kept", json!({})).to_string().contains("hold"));
    cut.reset();
    daemon.until("the connection has gone", || daemon.sockets() <= before);
    assert_eq!(other.call(2, "release", json!({}))["id"], 2);
    daemon.logs(&["reason=events_lost"]);
    let mut stream = client.stream();
    let changed = notification("notifications/tools/list_changed", json!({}));
    assert_eq!(other.ask(&notification("write", json!({ "text": format!("{changed}\n") }))).status, 202);
    assert_eq!(stream.message().expect("it comes").json(), changed);
    daemon.stop();
}

#[test]
fn undelivered_events_are_kept_up_to_a_limit_and_the_loss_of_others_is_reported() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let changed = |number: u64| notification("notifications/tools/list_changed", json!({ "number": number }));
    let text: String = (0..300).map(|number| format!("{}\n", changed(number))).collect();
    assert_eq!(client.ask(&notification("write", json!({ "text": text }))).status, 202);
    daemon.logs(&["reason=events_lost"]);
    assert_eq!(client.call(1, "a", json!({}))["id"], 1, "all of them have come before this");
    let mut stream = client.stream();
    let first = stream.message().expect("some were kept");
    assert_eq!(first.json(), changed(44));
    daemon.stop();
}

#[test]
fn a_worker_that_dies_is_an_error_with_the_id_of_the_request() {
    let daemon = door(shared(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let answer = client.ask(&request(5, "die", json!({})));
    assert_eq!((answer.status, answer.json()["id"].clone()), (200, json!(5)));
    assert_eq!(answer.json()["error"]["data"]["reason"], "worker_exited");
    daemon.stop();
}

#[test]
fn the_end_of_a_session_ends_its_worker_and_the_end_of_the_worker_the_session() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let pid = client.call(1, "a", json!({}))["result"]["pid"].as_u64().expect("a process");
    client.send("DELETE /mcp", &[], "");
    assert_eq!(client.answer().status, 204);
    daemon.until("its worker has gone", || !crate::harness::lives(pid));
    let mut client = Http::session(daemon.address(), VERSION);
    let answer = client.ask(&request(5, "die", json!({})));
    assert_eq!(answer.json()["error"]["data"]["reason"], "worker_exited", "{answer:?}");
    assert_eq!(client.ask(&request(6, "a", json!({}))).status, 404, "clients begin anew then");
    daemon.stop();
}

#[test]
fn the_stream_of_a_get_ends_without_a_response_when_the_worker_ends() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let mut stream = client.stream();
    let answer = client.ask(&request(5, "die", json!({})));
    assert_eq!(answer.json()["error"]["data"]["reason"], "worker_exited", "{answer:?}");
    assert_eq!(messages(&stream.events()), [] as [Value; 0]);
    daemon.stop();
}

#[test]
fn a_refused_request_gets_a_status_and_an_error_with_the_reason() {
    let daemon = door(shared(), json!({ "hosts": ["mcp.example"] }));
    let session = Http::session(daemon.address(), VERSION);
    let body = request(1, "a", json!({})).to_string();
    let id = session.session_id();
    for (line, fields, body, status) in [
        ("POST /other", vec![], body.as_str(), 404),
        ("PUT /mcp", vec![], "", 405),
        ("GET /mcp", vec![], "", 400),
        ("POST /mcp", vec![], body.as_str(), 400),
        ("POST /mcp", vec![("Mcp-Session-Id", "guessed")], body.as_str(), 404),
        ("GET /mcp", vec![("Mcp-Session-Id", "guessed")], "", 404),
        ("DELETE /mcp", vec![("Mcp-Session-Id", "guessed")], "", 404),
        ("POST /mcp", vec![("Mcp-Session-Id", &id), ("MCP-Protocol-Version", "1999-01-01")], body.as_str(), 400),
        ("POST /mcp", vec![("Mcp-Session-Id", &id)], "{", 400),
        ("POST /mcp", vec![("Mcp-Session-Id", &id)], "[]", 400),
        ("POST /mcp", vec![("Mcp-Session-Id", &id)], "[{\"method\":\"a\"}]", 400),
        ("GET /mcp", vec![("Mcp-Session-Id", &id), ("Last-Event-ID", "7-7")], "", 400),
        ("GET /mcp", vec![("Mcp-Session-Id", &id), ("Last-Event-ID", "x")], "", 400),
        ("POST /mcp", vec![("Origin", "https://evil.example")], body.as_str(), 403),
    ] {
        let mut client = Http::connect(daemon.address());
        client.send(line, &fields, body);
        let answer = client.answer();
        assert_eq!(answer.status, status, "{line} {fields:?} {body}: {answer:?}");
        assert!(answer.json()["error"]["message"].is_string(), "{answer:?}");
    }
    daemon.logs(&["handshake_refused", "a request for MCP is refused: ", "(404)"]);
    let mut rebound = Http::connect(daemon.address());
    rebound.fields.clear();
    rebound.send("POST /mcp", &[("Host", "evil.example")], &body);
    assert_eq!(rebound.answer().status, 403, "DNS rebinding");
    let mut named = Http::connect(daemon.address());
    named.fields.clear();
    named.send("POST /mcp", &[("Host", "mcp.example"), ("Mcp-Session-Id", &id)], &body);
    assert_eq!(named.answer().status, 200);
    assert_eq!(session.again().call(9, "a", json!({}))["id"], 9, "none of it has harmed the session");
    daemon.stop();
}

#[test]
fn ambiguous_bytes_end_the_connection() {
    let daemon = door(shared(), json!({}));
    let id = Http::session(daemon.address(), VERSION).session_id();
    let fields =
        format!("Host: localhost\r\nAccept: */*\r\nContent-Type: application/json\r\nMcp-Session-Id: {id}\r\n");
    for rest in [
        "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n",
        "Content-Length: 2\nA: b\r\n\r\n{}",
        "A: b\r\n c\r\nContent-Length: 2\r\n\r\n{}",
        "Content-Length: +2\r\n\r\n{}",
        "Transfer-Encoding: gzip, chunked\r\n\r\n",
    ] {
        let mut client = Http::connect(daemon.address());
        client.send_bytes(format!("POST /mcp HTTP/1.1\r\n{fields}{rest}").as_bytes());
        let answer = client.answer();
        assert!((400..=501).contains(&answer.status), "{rest:?}: {answer:?}");
        assert_eq!(answer.fields.get("connection").map(String::as_str), Some("close"), "{rest:?}");
        assert!(client.is_closed(), "{rest:?}");
    }
    let mut long = Http::connect(daemon.address());
    long.send_bytes(format!("POST /mcp HTTP/1.1\r\n{fields}A: {}\r\n\r\n", "a".repeat(33_000)).as_bytes());
    assert_eq!(long.answer().status, 431);
    daemon.stop();
}

#[test]
fn requests_may_arrive_in_pieces_and_pipelined() {
    let daemon = door(shared(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let count = 500;
    std::thread::scope(|scope| {
        let mut writer = client.second();
        scope.spawn(move || (0..count).for_each(|id| writer.post(&request(id, "m", json!({})))));
        for id in 0..count {
            assert_eq!(client.answer().json()["id"], id);
        }
    });
    let body = request(7, "m", json!({ "text": "\u{1f600}" })).to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nContent-Type: application/json\r\nMcp-Session-Id: {}\r\n",
        client.session_id()
    );
    let whole = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let (one, other) = body.as_bytes().split_at(20);
    let mut chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", one.len()).into_bytes();
    chunked.extend_from_slice(one);
    chunked.extend_from_slice(format!("\r\n{:X};a=b\r\n", other.len()).as_bytes());
    chunked.extend_from_slice(other);
    chunked.extend_from_slice(b"\r\n0\r\nTrailer: x\r\n\r\n");
    for bytes in [whole.into_bytes(), chunked] {
        for piece in bytes.chunks(7) {
            client.send_bytes(piece);
        }
        assert_eq!(client.answer().json()["result"]["echo"]["text"], "\u{1f600}");
    }
    daemon.stop();
}

#[test]
fn a_client_that_sends_no_more_still_gets_its_answer() {
    let daemon = door(shared(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    client.post(&request(1, "m", json!({})));
    client.half_close();
    assert_eq!(client.answer().json()["id"], 1);
    assert!(client.is_closed());
    daemon.stop();
}

#[test]
fn a_stream_whose_client_half_closes_ends_at_once_and_the_next_one_gets_later_events() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let mut stream = client.stream();
    stream.half_close();
    assert_eq!(messages(&stream.events()), Vec::<Value>::new());
    assert!(stream.is_closed());
    let changed = notification("notifications/tools/list_changed", json!({}));
    assert_eq!(client.ask(&notification("write", json!({ "text": format!("{changed}\n") }))).status, 202);
    let mut next = client.stream();
    let event = next.message().expect("it was kept");
    assert_eq!(event.json(), changed);
    daemon.stop();
}

#[test]
fn a_stream_ends_and_does_not_break_when_the_daemon_ends() {
    let daemon = door(dedicated(), json!({}));
    let mut streams: Vec<Http> = (0..4).map(|_| Http::session(daemon.address(), VERSION).stream()).collect();
    daemon.signal(rustix::process::Signal::TERM);
    for stream in &mut streams {
        assert_eq!(messages(&stream.events()), Vec::<Value>::new());
    }
    daemon.ends_well();
}

#[test]
fn a_client_that_asks_for_a_close_gets_its_whole_response_and_then_the_end_whatever_it_sends_behind() {
    let daemon = door(shared(), json!({}));
    let session = Http::session(daemon.address(), "2025-06-18");
    for (id, length) in [(1, 10), (2, 500_000)] {
        for behind in ["", "\r\n", "GET /mcp HTTP/1.1\r\n"] {
            let mut client = session.again().with("Connection", "close");
            let text = "x".repeat(length);
            let body = request(id, "m", json!({ "text": text })).to_string();
            client.send("POST /mcp", &[], &body);
            client.send_bytes(behind.as_bytes());
            let answer = client.answer();
            assert_eq!(answer.fields["connection"], "close");
            assert_eq!(answer.json()["result"]["echo"]["text"], text, "{behind:?}");
            assert!(client.is_closed(), "{behind:?}");
        }
    }
    daemon.stop();
}

#[test]
fn bytes_that_come_while_the_last_response_is_sent_do_not_cost_its_end() {
    let daemon = door(shared(), json!({}));
    let session = Http::session(daemon.address(), "2025-06-18");
    let text = "x".repeat(900_000);
    let mut client = session.again().with("Connection", "close").with_little_room();
    client.post(&request(1, "m", json!({ "text": text })));
    let mut answer = client.head();
    client.send_bytes(b"\r\n");
    client.read_body(&mut answer);
    assert_eq!(answer.json()["result"]["echo"]["text"], text);
    assert!(client.is_closed());
    daemon.stop();
}

#[test]
fn short_lived_connections_leave_nothing_behind() {
    let daemon = door(shared(), json!({}));
    let session = Http::session(daemon.address(), VERSION);
    drop(session.again().call(0, "m", json!({})));
    daemon.until("one connection is there", || daemon.sockets() > 0);
    let before = daemon.sockets();
    for number in 0..200 {
        match number % 5 {
            0 => drop(session.again().call(number, "m", json!({}))),
            3 => drop(session.again().with("Connection", "close").call(number, "m", json!({}))),
            1 => session.again().post(&request(1_000 + number, "m", json!({}))),
            2 => session.again().send_bytes(b"POST /mcp HTT"),
            _ => drop(TcpStream::connect(daemon.address()).unwrap()),
        }
    }
    daemon.until("all of them have gone", || daemon.sockets() <= before);
    assert_eq!(session.again().call(1, "m", json!({}))["id"], 1);
    daemon.stop();
}

#[test]
fn a_session_belongs_to_the_token_that_started_it() {
    let setup = Setup::new([shared()]);
    let path = setup.path("tokens");
    std::fs::write(&path, "alice:0123456789abcdef\nbob:fedcba9876543210\n").unwrap();
    let daemon = door_of(setup, json!({ "tokens_file": path }));
    let mut stranger = Http::connect(daemon.address());
    assert_eq!(stranger.ask(&request(0, "initialize", json!({}))).status, 401);
    let mut alice = Http::connect(daemon.address()).with("Authorization", "Bearer 0123456789abcdef");
    let answer = alice.ask(&request(0, "initialize", json!({})));
    let id = answer.fields["mcp-session-id"].clone();
    let mut alice = alice.with("Mcp-Session-Id", &id);
    let mut bob =
        Http::connect(daemon.address()).with("Authorization", "Bearer fedcba9876543210").with("Mcp-Session-Id", &id);
    assert_eq!(bob.ask(&request(1, "a", json!({}))).status, 404);
    assert_eq!(alice.call(1, "a", json!({}))["id"], 1);
    daemon.stop();
}

#[test]
fn a_batch_of_the_one_revision_that_has_them_is_split() {
    let daemon = door(shared(), json!({}));
    let mut client = Http::session(daemon.address(), "2025-03-26");
    let batch =
        json!([request(1, "a", json!({})), notification("notifications/x", json!({})), request(2, "b", json!({})),]);
    client.send("POST /mcp", &[("MCP-Protocol-Version", "2025-03-26")], &batch.to_string());
    assert!(client.answer().is_stream());
    let ids: Vec<Value> = messages(&client.events()).iter().map(|message| message["id"].clone()).collect();
    assert_eq!(ids, [1, 2]);
    daemon.stop();
}

#[test]
fn a_drain_answers_what_is_pending_and_takes_nothing_new() {
    let pool = with(worker("tools", 1, &["--keep"]), "assignment", "client");
    let setup = Setup::new([pool]).limit("quiesce_sec", 60);
    let daemon = door_of(setup, json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let mut other = client.again();
    let mut third = client.again();
    client.post(&request(1, "hold", json!({})));
    daemon.until("it is with the worker", || other.call(2, "kept", json!({})).to_string().contains("hold"));
    daemon.signal(rustix::process::Signal::TERM);
    daemon.logs(&["shutting down"]);
    let refused = other.ask(&request(3, "kept", json!({})));
    assert_eq!((refused.status, &refused.json()["id"]), (200, &json!(3)), "the session waits for an answer");
    assert_eq!(refused.json()["error"]["data"], json!({ "reason": "shutting_down", "delivered": false }));
    assert!(other.is_closed(), "each connection ends with its answer");
    third.post(&notification("release", json!({})));
    assert_eq!(third.answer().fields["connection"], "close");
    let answer = client.answer();
    assert_eq!(
        (&answer.json()["id"], &*answer.fields["connection"]),
        (&json!(1), "close"),
        "it comes during the drain"
    );
    drop((client, other, third));
    daemon.ends_well();
}

#[test]
fn requests_that_a_draining_daemon_does_not_take_say_how_clients_go_on() {
    let pool = with(worker("tools", 1, &["--keep"]), "assignment", "client");
    let setup = Setup::new([pool]).limit("quiesce_sec", 600);
    let daemon = door_of(setup, json!({}));
    let mut busy = Http::session(daemon.address(), VERSION);
    let mut idle = Http::session(daemon.address(), VERSION);
    let mut new = Http::connect(daemon.address());
    post_modern(&mut new, &modern(4, "tools/list", json!({})));
    new.answer();
    busy.post(&request(1, "hold", json!({})));
    let mut other = busy.again();
    daemon.until("it is with the worker", || other.call(2, "kept", json!({})).to_string().contains("hold"));
    daemon.signal(rustix::process::Signal::TERM);
    daemon.logs(&["shutting down"]);
    let gone = idle.ask(&request(5, "kept", json!({})));
    assert_eq!((gone.status, &gone.json()["id"]), (404, &json!(5)), "the session has no further use");
    assert_eq!(gone.json()["error"]["data"], json!({ "reason": "shutting_down", "delivered": false }));
    post_modern(&mut new, &modern(6, "tools/list", json!({})));
    let refused = new.answer();
    assert_eq!((refused.status, &refused.json()["id"], &*refused.fields["retry-after"]), (503, &json!(6), "1"));
    assert_eq!(refused.json()["error"]["data"], json!({ "reason": "shutting_down", "delivered": false }));
    other.post(&notification("release", json!({})));
    assert_eq!(busy.answer().json()["id"], 1);
    drop((busy, idle, new, other));
    daemon.ends_well();
}

pub const MODERN: &str = "2026-07-28";

/// A self-contained request.
pub fn modern(id: u64, method: &str, params: Value) -> Value {
    let mut params = params;
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = MODERN.into();
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    request(id, method, params)
}

/// Sends one, with the fields that repeat its metadata.
pub fn post_modern(client: &mut Http, message: &Value) {
    let head = Repeated::of(message).expect("it is a self-contained request");
    client.send("POST /mcp", &head.fields().collect::<Vec<_>>(), &message.to_string());
}

#[test]
fn a_self_contained_request_needs_no_session() {
    for pool in [shared(), dedicated(), with(worker("tools", 2, &[]), "assignment", "round_robin")] {
        let daemon = door(pool, json!({}));
        let mut clients: Vec<Http> = (0..3).map(|_| Http::connect(daemon.address())).collect();
        for id in 0..5 {
            for client in &mut clients {
                post_modern(client, &modern(id, "tools/call", json!({ "name": "x" })));
            }
            for client in &mut clients {
                let answer = client.answer();
                assert_eq!((answer.status, answer.json()["id"].clone()), (200, json!(id)), "{answer:?}");
                assert!(!answer.fields.contains_key("mcp-session-id"));
            }
        }
        daemon.stop();
    }
}

#[test]
fn sessions_and_self_contained_requests_have_separate_workers_on_one_path() {
    let daemon = door(shared(), json!({}));
    let mut session = Http::session(daemon.address(), VERSION);
    let old = session.call(1, "a", json!({}))["result"]["pid"].clone();
    let mut client = Http::connect(daemon.address());
    post_modern(&mut client, &modern(1, "a", json!({})));
    let new = client.answer().json()["result"]["pid"].clone();
    assert!(new.is_u64() && old != new, "one worker serves one era: {old} {new}");
    assert_eq!(session.call(2, "a", json!({}))["result"]["pid"], old);
    daemon.stop();
}

#[test]
fn a_message_that_disagrees_with_its_head_is_refused_with_its_code() {
    let daemon = door(shared(), json!({}));
    let call = modern(7, "tools/call", json!({ "name": "x" })).to_string();
    let bare = request(7, "tools/call", json!({ "name": "x" })).to_string();
    let later = call.replace(MODERN, "2027-01-01");
    let head = |version: &'static str, method: &'static str, name: &'static str| {
        vec![("MCP-Protocol-Version", version), ("Mcp-Method", method), ("Mcp-Name", name)]
    };
    for (fields, body, status, code) in [
        (head(MODERN, "tools/call", "y"), &call, 400, -32020),
        (head(MODERN, "tools/list", "x"), &call, 400, -32020),
        (head("2025-11-25", "tools/call", "x"), &call, 400, -32020),
        (vec![], &call, 400, -32020),
        (head(MODERN, "tools/call", "x"), &bare, 400, -32602),
        (head("2027-01-01", "tools/call", "x"), &later, 400, -32022),
    ] {
        let mut client = Http::connect(daemon.address());
        client.send("POST /mcp", &fields, body);
        let answer = client.answer();
        let (id, error) = (answer.json()["id"].clone(), answer.json()["error"]["code"].clone());
        assert_eq!((answer.status, error, id), (status, json!(code), json!(7)), "{fields:?} {body}");
    }
    let mut client = Http::connect(daemon.address());
    for line in ["GET /mcp", "DELETE /mcp"] {
        client.send(line, &[("MCP-Protocol-Version", MODERN)], "");
        assert_eq!(client.answer().status, 405, "{line}");
    }
    daemon.stop();
}

#[test]
fn the_status_of_an_error_is_that_of_its_code() {
    let daemon = door(shared(), json!({}));
    let mut client = Http::connect(daemon.address());
    for (code, status) in [(-32601, 404), (-32602, 400), (-32021, 400), (-32603, 200), (1, 200)] {
        let text = json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": code, "message": "x" } }).to_string() + "\n";
        post_modern(&mut client, &modern(1, "write", json!({ "text": text })));
        assert_eq!(client.answer().status, status, "{code}");
    }
    daemon.stop();
}

#[test]
fn a_response_that_is_closed_cancels_its_request_at_the_worker() {
    let daemon = door(with(worker("tools", 1, &["--keep"]), "assignment", "client"), json!({}));
    let mut client = Http::connect(daemon.address());
    post_modern(&mut client, &modern(5, "hold", json!({})));
    let mut other = Http::connect(daemon.address());
    let mut kept = move || {
        post_modern(&mut other, &modern(1, "kept", json!({})));
        other.answer().json()["result"]["lines"].to_string()
    };
    daemon.until("the request is with the worker", || kept().contains("hold"));
    drop(client);
    daemon.until("the worker is notified", || kept().contains("notifications/cancelled"));
    daemon.stop();
}

#[test]
fn a_request_that_continues_an_answer_is_sent_to_its_worker() {
    let daemon = door(with(worker("tools", 4, &[]), "assignment", "round_robin"), json!({}));
    let mut client = Http::connect(daemon.address());
    for round in 0..8 {
        post_modern(&mut client, &modern(1, "who", json!({})));
        let state = format!("state {round}");
        let result = json!({ "resultType": "input_required", "requestState": state });
        let text = json!({ "jsonrpc": "2.0", "id": 2, "result": result }).to_string() + "\n";
        client.answer();
        post_modern(&mut client, &modern(2, "write", json!({ "text": text })));
        assert_eq!(client.answer().json()["result"]["requestState"], state);
        // The worker is recognized by the line number that it has kept.
        let mut pids = std::collections::HashSet::new();
        for _ in 0..4 {
            let mut again = Http::connect(daemon.address());
            post_modern(&mut again, &modern(3, "a", json!({ "requestState": state })));
            pids.insert(again.answer().json()["result"]["pid"].as_u64());
        }
        assert_eq!(pids.len(), 1, "all of them go to one worker");
    }
    daemon.stop();
}

#[test]
fn a_client_of_2026_07_28_is_asked_by_an_old_server_to_begin_with_initialize() {
    let script = r#"while read -r line; do case "$line" in *server/discover*) id=${line#*\"id\":\"}; id=${id%%\"*};
        echo "{\"jsonrpc\":\"2.0\",\"id\":\"$id\",\"error\":{\"code\":-32601,\"message\":\"no\"}}";; esac; done"#;
    let pool = with(crate::harness::shell("tools", script), "assignment", "client");
    let daemon = door(pool, json!({}));
    let mut client = Http::connect(daemon.address());
    post_modern(&mut client, &modern(1, "server/discover", json!({})));
    let answer = client.answer();
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("initialize"));
    post_modern(&mut client, &modern(2, "tools/list", json!({})));
    let answer = client.answer();
    let error = &answer.json()["error"];
    assert_eq!((answer.status, &error["code"], &error["data"]["delivered"]), (400, &json!(-32022), &json!(false)));
    assert_eq!(
        (&error["data"]["supported"][0], &error["data"]["requested"]),
        (&json!("2025-11-25"), &json!("2026-07-28"))
    );
    // Clients that support both eras begin like this each time.
    daemon.logs(&["INFO", "(400)", "reason=unsupported_protocol_version"]);
    assert!(!daemon.log().contains("handshake_refused"));
    daemon.stop();
}

#[test]
fn the_initialize_that_wakes_a_pool_does_not_wait_for_a_server_that_never_answers_server_discover() {
    // It answers `initialize` alone, and only as the first line that it reads.
    let script = r#"read -r line; case "$line" in *initialize*) id=${line#*\"id\":}; id=${id%%,*};
        echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"protocolVersion\":\"2025-11-25\"}}";; esac; cat >&2"#;
    let pool = with(with(crate::harness::shell("tools", script), "assignment", "client"), "start", "on_demand");
    let daemon = door(pool, json!({}));
    let mut client = Http::connect(daemon.address());
    let begun = client.ask(&request(0, "initialize", json!({ "protocolVersion": VERSION })));
    assert_eq!((begun.status, &begun.json()["result"]["protocolVersion"]), (200, &json!("2025-11-25")));
    assert!(!daemon.log().contains("server/discover"), "nobody has wanted to know");
    // Who does has another worker asked.
    let mut modern_client = Http::connect(daemon.address());
    post_modern(&mut modern_client, &modern(1, "tools/list", json!({})));
    assert_eq!(modern_client.answer().json()["error"]["code"], -32022);
    daemon.logs(&["reason=era_known", "has not answered server/discover"]);
    assert_eq!(daemon.log().matches("reason=worker_started").count(), 2);
    daemon.stop();
}

#[test]
fn a_command_that_ends_is_not_called_an_old_server_and_its_last_words_are_reported() {
    let script = "read -r line; echo 'cannot read tools.toml' >&2; exit 3";
    let daemon = door(with(crate::harness::shell("tools", script), "assignment", "client"), json!({}));
    let mut client = Http::connect(daemon.address());
    post_modern(&mut client, &modern(1, "tools/list", json!({})));
    let answer = client.answer();
    let text = answer.json()["error"]["message"].as_str().expect("an error").to_owned();
    assert!(text.contains("has ended each time") && text.contains("cannot read tools.toml"), "{text}");
    assert!(!text.contains("2025-11-25"), "{text}");
    daemon.signal(rustix::process::Signal::KILL);
}

#[test]
fn a_page_of_a_listed_origin_may_read_its_responses() {
    let daemon = door(shared(), json!({ "origins": ["https://app.example"] }));
    let mut page = Http::connect(daemon.address()).with("Origin", "https://app.example");
    page.send("OPTIONS /mcp", &[("Access-Control-Request-Method", "POST")], "");
    let allowed = page.answer();
    assert_eq!((allowed.status, allowed.fields["access-control-allow-origin"].as_str()), (204, "https://app.example"));
    let headers: Vec<_> = allowed.fields["access-control-allow-headers"].split(", ").collect();
    assert!(
        headers.contains(&"Mcp-Session-Id") && headers.contains(&"*"),
        "Mcp-Param-* are named by tools: {headers:?}"
    );
    let answer = page.ask(&request(0, "initialize", json!({ "protocolVersion": VERSION })));
    assert_eq!(answer.fields["access-control-expose-headers"], "Mcp-Session-Id");
    let mut other = Http::connect(daemon.address()).with("Origin", "https://evil.example");
    other.send("OPTIONS /mcp", &[("Access-Control-Request-Method", "POST")], "");
    assert_eq!(other.answer().status, 403);
    daemon.stop();
}

#[test]
fn a_connection_with_half_a_request_is_evicted_when_all_are_taken() {
    // Descriptors for only a few connections.
    let setup = Setup::new([shared()]).under(&["prlimit", "--nofile=200:200"]);
    let daemon = door_of(setup, json!({}));
    let mut halves: Vec<Http> = Vec::new();
    for _ in 0..300 {
        let mut half = Http::connect(daemon.address());
        half.send_bytes(b"POST /mcp HTT");
        halves.push(half);
    }
    let mut client = Http::session(daemon.address(), VERSION);
    assert_eq!(client.call(1, "a", json!({}))["id"], 1);
    daemon.stop();
}

// Forms of requests that the listener forgives, and the words with which it refuses others.

/// Posts a message with these lines in its head in place of the usual `Accept`.
fn post(client: &mut Http, lines: &str, message: &Value) -> Answer {
    let (text, session) = (message.to_string(), client.session_id());
    let length = text.len();
    client.send_bytes(
        format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {session}\r\n{lines}Content-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{text}"
        )
        .as_bytes(),
    );
    client.answer()
}

/// A request that makes the worker write a message of its log before the answer.
fn logs_first(id: u64) -> Value {
    let log = notification("notifications/message", json!({ "level": "info", "data": "x" }));
    let answer = json!({ "jsonrpc": "2.0", "id": id, "result": { "said": true } });
    request(id, "write", json!({ "text": format!("{log}\n{answer}\n") }))
}

#[test]
fn the_form_of_an_answer_is_one_that_the_client_accepts() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let one = |id: u64| request(id, "a", json!({}));
    for (id, accept) in [(1, ""), (2, "Accept: application/json\r\n"), (3, "Accept: application/mcp+json\r\n")] {
        let answer = post(&mut client, accept, &one(id));
        assert_eq!((answer.status, answer.is_stream()), (200, false), "{accept}: {answer:?}");
        assert_eq!(answer.json()["id"], id);
    }
    let answer = post(&mut client, "Accept: text/event-stream\r\n", &one(4));
    assert!(answer.is_stream(), "{answer:?}");
    assert_eq!(messages(&client.events())[0]["id"], 4);
    let answer = post(&mut client, "Accept: application/json\r\n", &logs_first(5));
    assert!(answer.is_stream(), "it is more than one message: {answer:?}");
    assert_eq!(messages(&client.events())[1]["result"]["said"], true);
    let refuses = "Accept: application/json, text/event-stream;q=0\r\n";
    let answer = post(&mut client, refuses, &logs_first(6));
    assert_eq!(answer.json()["result"]["said"], true, "no stream: {answer:?}");
    let mut stream = client.stream();
    assert_eq!(stream.message().expect("it was kept").json()["method"], "notifications/message");
    let long =
        request(7, "write", json!({ "text": format!("{}\n", json!({ "id": 7, "result": "x".repeat(200_000) })) }));
    let answer = post(&mut client, "Accept: application/json\r\n", &long);
    assert_eq!(answer.json()["id"], 7, "a long one is no stream either");
    daemon.stop();
}

#[test]
fn a_client_that_accepts_events_alone_learns_the_id_of_its_session() {
    let daemon = door(shared(), json!({}));
    let mut client = Http::connect(daemon.address());
    let hello = request(1, "initialize", json!({ "protocolVersion": VERSION, "capabilities": {} })).to_string();
    let head =
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nContent-Type: application/json\r\n";
    client.send_bytes(format!("{head}Content-Length: {}\r\n\r\n{hello}", hello.len()).as_bytes());
    let answer = client.answer();
    assert!(answer.is_stream() && answer.fields.contains_key("mcp-session-id"), "{answer:?}");
    assert_eq!(client.message().expect("it is answered").json()["id"], 1);
    daemon.stop();
}

#[test]
fn initialize_begins_a_session_whatever_version_its_head_names() {
    let daemon = door(shared(), json!({}));
    for version in ["2026-07-28", "2099-01-01", "nothing"] {
        let mut client = Http::connect(daemon.address());
        let hello = request(1, "initialize", json!({ "protocolVersion": VERSION, "capabilities": {} }));
        client.send("POST /mcp", &[("MCP-Protocol-Version", version)], &hello.to_string());
        let answer = client.answer();
        assert_eq!(answer.status, 200, "{version}: {answer:?}");
        assert!(answer.fields.contains_key("mcp-session-id"), "{version}: {answer:?}");
    }
    daemon.stop();
}

/// A daemon whose listener wants a token.
fn guarded() -> Daemon {
    let setup = Setup::new([shared()]);
    let file = setup.text_path("tokens");
    std::fs::write(&file, "alice:0123456789abcdef\n").unwrap();
    door_of(setup, json!({ "tokens_file": file }))
}

#[test]
fn whoever_looks_for_an_authorization_server_is_notified_that_there_is_none() {
    for daemon in [door(shared(), json!({})), guarded()] {
        for path in [
            "GET /.well-known/oauth-protected-resource/mcp",
            "GET /.well-known/oauth-authorization-server",
            "GET /mcp/.well-known/openid-configuration",
            "POST /register",
        ] {
            let mut client = Http::connect(daemon.address());
            client.send(path, &[], if path.starts_with("POST") { "{\"client_name\":\"x\"}" } else { "" });
            let answer = client.answer();
            assert_eq!((answer.status, answer.json()["error"].as_str()), (404, Some("not_found")), "{path}");
            let text = answer.json()["error_description"].as_str().map(str::to_owned).expect("people read it");
            assert!(text.contains("nobody signs in here: a token is needed") || text == "nobody needs to sign in here");
        }
        assert!(!daemon.log().contains("refused"), "it is nothing to warn of: {}", daemon.log());
        daemon.stop();
    }
}

#[test]
fn a_refusal_names_what_was_asked_for_and_what_to_change() {
    let daemon = guarded();
    let mut client = Http::connect(daemon.address());
    let answer = client.ask(&request(1, "a", json!({})));
    assert!(answer.status == 401 && !answer.body.contains("subprotocol"), "{answer:?}");
    let mut client = Http::connect(daemon.address()).with("Authorization", "Bearer 0123456789abcdef");
    client.send("POST /mcp/toolz", &[], &request(1, "initialize", json!({})).to_string());
    let answer = client.answer();
    assert!(answer.status == 404 && answer.body.contains("there is no pool \\\"toolz\\\" here"), "{answer:?}");
    assert!(answer.body.contains("/mcp/tools"), "{answer:?}");
    client.send_bytes(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n");
    let answer = client.answer();
    assert!(answer.status == 413 && answer.body.contains("limits.max_input_buffer, 1048576 bytes"), "{answer:?}");
    daemon.stop();
}

#[test]
fn a_server_that_prints_to_stdout_serves_http_clients_and_its_lines_are_logged() {
    let daemon = door(shared(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": { "said": true } });
    let text = format!("MCP Server running on stdio\n{answer}\n");
    assert_eq!(client.call(1, "write", json!({ "text": text }))["result"]["said"], true);
    daemon.logs(&["] stdout: MCP Server running on stdio"]);
    daemon.logs(&["WARN", "pools[].on_bad_output", "reason=worker_stdout"]);
    daemon.stop();
}

// Valid requests that the listener refuses: mismatched versions, batches and methods, and more than a session may have.

const ALICE: &str = "Bearer 0123456789abcdef";
const BOB: &str = "Bearer fedcba9876543210";

fn shared_with(flags: &[&str]) -> Value {
    with(worker("tools", 1, flags), "assignment", "client")
}

#[test]
fn an_unsupported_version_is_refused_in_every_kind_of_request() {
    let daemon = door(shared_with(&[]), json!({}));
    let session = Http::session(daemon.address(), "2025-03-26");
    let batch = json!([request(1, "a", json!({}))]).to_string();
    for (line, version, body, status) in [
        ("GET /mcp", "1999-01-01", "", 400),
        ("DELETE /mcp", "1999-01-01", "", 400),
        ("POST /mcp", "1999-01-01", batch.as_str(), 400),
        ("POST /mcp", "2026-07-28", batch.as_str(), 400),
        ("GET /mcp", "2026-07-28", "", 405),
    ] {
        let mut client = session.again();
        client.send(line, &[("MCP-Protocol-Version", version)], body);
        let answer = client.answer();
        assert_eq!(answer.status, status, "{line} {version}: {answer:?}");
    }
    assert_eq!(session.again().call(2, "a", json!({}))["id"], 2, "the session is as it was");
    daemon.stop();
}

#[test]
fn the_session_and_the_version_of_a_request_are_looked_at_before_its_body() {
    let daemon = door(shared_with(&[]), json!({}));
    let old = Http::session(daemon.address(), "2025-03-26");
    let session = Http::session(daemon.address(), VERSION);
    let status = |client: &Http, session: Option<&str>, version: &str, body: &str| {
        let mut fields = vec![("MCP-Protocol-Version", version)];
        fields.extend(session.map(|session| ("Mcp-Session-Id", session)));
        let mut client = if session.is_some() { Http::connect(daemon.address()) } else { client.again() };
        client.send("POST /mcp", &fields, body);
        client.answer().status
    };
    for wrong in ["[7", "[[[[", "{\"id\":", "nothing"] {
        assert_eq!(status(&old, None, "2025-03-26", wrong), 400, "it is read: {wrong}");
        assert_eq!(status(&old, Some("another"), "2025-03-26", wrong), 404, "{wrong}");
    }
    let batch = json!([request(1, "a", json!({}))]).to_string();
    assert_eq!(status(&session, None, VERSION, &batch), 400, "its revision has no batches");
    let mut stranger = Http::connect(daemon.address());
    let answer = stranger.ask(&json!([request(1, "a", json!({}))]));
    assert!(answer.status == 400 && answer.body.contains("names no session"), "{answer:?}");
    daemon.stop();
}

#[test]
fn initialize_is_refused_in_a_batch() {
    let daemon = door(shared_with(&[]), json!({}));
    let session = Http::session(daemon.address(), "2025-03-26");
    let mut client = session.again();
    let batch =
        json!([request(1, "a", json!({})), request(2, "initialize", json!({ "protocolVersion": "2025-03-26" }))]);
    let answer = client.ask(&batch);
    assert_eq!((answer.status, answer.json()["error"]["code"].as_i64()), (400, Some(-32600)), "{answer:?}");
    assert_eq!(client.call(1, "a", json!({}))["id"], 1, "nothing of it has gone to the worker");
    daemon.stop();
}

#[test]
fn a_session_may_have_a_thousand_pending_requests_and_gets_an_error_for_more() {
    let daemon = door(shared_with(&["--keep"]), json!({}));
    let session = Http::session(daemon.address(), "2025-03-26");
    let (mut asks, mut other) = (session.again(), session.again());
    let batch = |ids: std::ops::Range<u64>| Value::from_iter(ids.map(|id| request(id, "hold", json!({}))));
    let answer = asks.ask(&batch(0..1025));
    assert_eq!((answer.status, answer.json()["error"]["code"].as_i64()), (413, Some(-32600)), "{answer:?}");
    asks.post(&batch(0..1000));
    daemon.until("they are with the worker", || {
        other.call(2000, "kept", json!({})).to_string().matches("hold").count() == 1000
    });
    let answer = session.again().ask(&batch(3000..3025));
    assert_eq!((answer.status, answer.fields.contains_key("retry-after")), (429, true), "{answer:?}");
    assert_eq!(answer.json()["error"]["data"], json!({ "reason": "pending_limit", "delivered": false }));
    assert_eq!(other.call(2001, "release", json!({}))["id"], 2001);
    assert!(asks.answer().is_stream());
    assert_eq!(asks.events().len(), 1000);
    daemon.stop();
}

#[test]
fn an_answer_to_head_has_no_body() {
    let daemon = door(shared_with(&[]), json!({}));
    for path in ["/mcp", "/other"] {
        let mut client = Http::connect(daemon.address());
        client.send(&format!("HEAD {path}"), &[], "");
        let head = client.head();
        assert!(matches!(head.status, 404 | 405) && head.fields["content-length"] != "0", "{head:?}");
        assert!(client.is_closed(), "{path}");
    }
    daemon.stop();
}

#[test]
fn initialize_that_says_2026_07_28_reaches_no_worker() {
    let daemon = door(shared_with(&[]), json!({}));
    let mut client = Http::connect(daemon.address());
    post_modern(&mut client, &modern(1, "tools/list", json!({})));
    assert_eq!(client.answer().status, 200, "its workers speak 2026-07-28");
    post_modern(&mut client, &modern(2, "initialize", json!({ "protocolVersion": VERSION })));
    let answer = client.answer();
    assert_eq!((answer.status, answer.json()["error"]["code"].as_i64()), (404, Some(-32601)), "{answer:?}");
    daemon.stop();
}

#[test]
fn a_stream_that_is_resumed_elsewhere_ends_even_before_its_first_event() {
    let daemon = door(shared_with(&["--keep"]), json!({}));
    let session = Http::session(daemon.address(), VERSION);
    let (mut asks, mut other) = (session.again(), session.again());
    asks.post(&request(1, "hold", json!({})));
    daemon.until("it is with the worker", || other.call(2, "kept", json!({})).to_string().contains("hold"));
    // The stream's number can be guessed: the requests of two connections may be read in any order.
    let mut guesses = (2..20).map(|number| (session.again(), format!("{number}-0")));
    let found = guesses.find_map(|(mut thief, last)| thief.open(Some(&last)).is_stream().then_some(thief));
    let mut stolen = found.expect("it is one of these");
    assert!(asks.answer().is_stream());
    assert!(asks.events().iter().all(|event| event.data.is_empty()));
    assert_eq!(other.ask(&notification("release", json!({}))).status, 202);
    let last = stolen.events().pop().expect("the answer");
    assert_eq!(last.json()["id"], 1);
    daemon.stop();
}

#[test]
fn a_response_that_is_refused_gets_no_error_under_its_id_which_is_the_workers() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    client.send("DELETE /mcp", &[], "");
    assert_eq!(client.answer().status, 204);
    let refused = client.ask(&json!({ "jsonrpc": "2.0", "id": 1, "result": {} }));
    assert_eq!((refused.status, &refused.json()["id"]), (404, &json!(null)));
    assert_eq!(client.ask(&request(1, "m", json!({}))).json()["id"], 1);
    daemon.stop();
}

#[test]
fn a_request_that_its_head_answers_is_not_told_to_continue() {
    let daemon = door(shared_with(&[]), json!({ "origins": ["https://app.example"] }));
    let mut page = Http::connect(daemon.address()).with("Origin", "https://app.example");
    page.send("OPTIONS /mcp", &[("Access-Control-Request-Method", "POST"), ("Expect", "100-continue")], "");
    assert_eq!(page.answer().status, 204);
    assert_eq!(page.ask(&request(0, "initialize", json!({ "protocolVersion": VERSION }))).status, 200);
    daemon.stop();
}

#[test]
fn a_token_that_is_revoked_while_a_request_uploads_begins_no_session() {
    let setup = Setup::new([shared_with(&[])]);
    let path = setup.path("tokens");
    std::fs::write(&path, "alice:0123456789abcdef\n").unwrap();
    let daemon = door_of(setup, json!({ "tokens_file": path }));
    let mut alice = Http::connect(daemon.address()).with("Authorization", ALICE);
    let begins = request(0, "initialize", json!({ "protocolVersion": VERSION, "capabilities": {} }));
    alice.uploads(&begins);
    std::fs::write(&path, "bob:fedcba9876543210\n").unwrap();
    let bob = || Http::connect(daemon.address()).with("Authorization", BOB);
    daemon.until("the file was read again", || bob().ask(&request(0, "ping", json!({}))).status == 400);
    alice.send_bytes(begins.to_string().as_bytes());
    assert_eq!(alice.answer().status, 401);
    daemon.stop();
}

#[test]
fn a_token_that_is_revoked_while_a_request_uploads_reaches_no_session_of_its_name() {
    let setup = Setup::new([shared_with(&[])]);
    let path = setup.path("tokens");
    std::fs::write(&path, "alice:0123456789abcdef\nalice:fedcba9876543210\n").unwrap();
    let daemon = door_of(setup, json!({ "tokens_file": path }));
    let mut owner = Http::connect(daemon.address()).with("Authorization", BOB);
    let id = begins(&mut owner).fields["mcp-session-id"].clone();
    let mut revoked = Http::connect(daemon.address()).with("Authorization", ALICE).with("Mcp-Session-Id", &id);
    let asks = request(1, "m", json!({}));
    revoked.uploads(&asks);
    std::fs::write(&path, "alice:fedcba9876543210\n").unwrap();
    let other = || Http::connect(daemon.address()).with("Authorization", ALICE);
    daemon.until("the file was read again", || other().ask(&request(0, "ping", json!({}))).status == 401);
    revoked.send_bytes(asks.to_string().as_bytes());
    assert_eq!(revoked.answer().status, 401);
    daemon.stop();
}

/// A daemon for alice and bob, whose listener has these keys too, and a session of bob, which is older than `sessions`
/// further ones of alice.
fn full_of_alice(keys: &Value, others: usize, sessions: usize) -> (Daemon, Http, Http) {
    let setup = Setup::new([shared_with(&[])]);
    let path = setup.path("tokens");
    std::fs::write(&path, "alice:0123456789abcdef\nbob:fedcba9876543210\n").unwrap();
    let daemon = door_of(setup, with(keys.clone(), "tokens_file", json!(path)));
    let mut bob = Http::connect(daemon.address()).with("Authorization", BOB);
    let id = begins(&mut bob).fields["mcp-session-id"].clone();
    (0..others).for_each(|_| assert_eq!(begins(&mut bob).status, 200));
    let mut alice = Http::connect(daemon.address()).with("Authorization", ALICE);
    (0..sessions).for_each(|_| assert_eq!(begins(&mut alice).status, 200));
    (daemon, alice, bob.with("Mcp-Session-Id", &id))
}

fn begins(client: &mut Http) -> Answer {
    client.ask(&request(0, "initialize", json!({ "protocolVersion": VERSION })))
}

#[test]
fn a_source_with_all_its_sessions_evicts_none_of_another() {
    let keys = json!({ "max_connections": { "per_source": 1000 } });
    let (daemon, mut alice, mut bob) = full_of_alice(&keys, 23, 1000);
    (0..3).for_each(|_| assert_eq!(begins(&mut alice).status, 429));
    assert_eq!(bob.call(1, "m", json!({}))["id"], 1);
    daemon.stop();
}

#[test]
fn a_source_with_most_sessions_gives_way_to_the_others() {
    let (daemon, mut alice, mut bob) = full_of_alice(&json!({}), 0, 1023);
    for client in [&mut alice, &mut bob.again()] {
        (0..3).for_each(|_| assert_eq!(begins(client).status, 200));
    }
    assert_eq!(bob.call(1, "m", json!({}))["id"], 1, "it is idle longest, and stays");
    daemon.until("six evictions are logged", || daemon.log().matches("reason=session_evicted").count() == 6);
    daemon.stop();
}

#[test]
fn a_token_reaches_no_session_in_a_pool_that_only_another_token_of_its_name_grants() {
    let tools = with(worker("others", 1, &[]), "assignment", "client");
    let setup = Setup::new([shared_with(&[]), tools]);
    let path = setup.path("tokens");
    std::fs::write(&path, "alice:0123456789abcdef tools\nalice:fedcba9876543210 others\n").unwrap();
    let daemon = door_of(setup, json!({ "tokens_file": path }));
    let mut alice = Http::connect(daemon.address()).with("Authorization", ALICE);
    let id = begins(&mut alice).fields["mcp-session-id"].clone();
    let mut alice = alice.with("Mcp-Session-Id", &id);
    let mut other = Http::connect(daemon.address()).with("Authorization", BOB).with("Mcp-Session-Id", &id);
    assert_eq!(other.ask(&request(1, "m", json!({}))).status, 404);
    assert_eq!(other.open(None).status, 404);
    assert_eq!(alice.call(1, "m", json!({}))["id"], 1);
    daemon.stop();
}

#[test]
fn a_long_body_gets_its_answer_or_its_error_wherever_the_scanner_is_in_doubt() {
    let daemon = door(with(echo("echo", 1), "assignment", "client"), json!({}));
    let session = Http::session(daemon.address(), VERSION);
    let numbers = "1,".repeat(200_000);
    let post = |text: &str| {
        let mut client = session.again();
        client.send("POST /mcp", &[], text);
        // One behind it on the same connection waits for its turn.
        client.send("POST /mcp", &[], &request(99, "behind", json!({})).to_string());
        let answers = [client.answer(), client.answer()];
        assert_eq!(answers[1].json()["id"], 99, "{:?}", answers[1]);
        let [first, _] = answers;
        first
    };
    for (id, key) in [(1, "b"), (2, "\\u0062"), (3, "\\u0069d")] {
        let params = format!(r#"{{"a":[{numbers}1],"{key}":"é"}}"#);
        let answer = post(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m","params":{params}}}"#));
        assert_eq!(answer.status, 200, "{key}");
        assert!(
            answer.body.contains(&format!(r#""result":{{"echo":{params},"method":"m"}}"#)),
            "{key}: it is as it was"
        );
        assert_eq!(answer.json()["id"], id);
    }
    for wrong in [",", "\u{0}", "\"params\":1"] {
        let answer = post(&format!(r#"{{"jsonrpc":"2.0","id":4,"method":"m","params":{{"a":[{numbers}1]}},{wrong}}}"#));
        assert_eq!((answer.status, answer.json()["error"]["code"].as_i64()), (400, Some(-32700)), "{wrong:?}");
    }
    daemon.stop();
}
