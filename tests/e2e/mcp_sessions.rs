//! MCP over Streamable HTTP: what a listener reports, keeps and closes when a session, a connection or all workers end.

use serde_json::{Value, json};

use crate::admin::{Admin, metric, said, with_admin};
use crate::harness::{Daemon, Setup, echo, figure, with, worker};
use crate::http::{Http, notification, request};
use crate::mcp::{VERSION, dedicated, door, door_of, messages, modern, post_modern, shared};

/// The value of a gauge of the admin listener.
fn gauge(daemon: &Daemon, name: &str) -> u64 {
    let metrics = Admin::of(daemon).get("/metrics").body;
    let mut lines = metrics.lines().filter_map(|line| line.rsplit_once(' '));
    let value = lines.find(|(series, _)| series.split('{').next() == Some(name)).map(|(_, value)| value);
    value.unwrap_or_else(|| panic!("{name} is no family of {metrics}")).parse().expect("a number")
}

#[test]
fn each_request_of_a_batch_gets_an_error_when_its_session_ends() {
    let daemon = door(with(worker("tools", 1, &["--keep"]), "assignment", "client"), json!({}));
    let client = Http::session(daemon.address(), "2025-03-26");
    let (mut asks, mut other) = (client.again(), client.again());
    asks.post(&json!([request(1, "hold", json!({})), request(2, "hold", json!({}))]));
    daemon.until("both are with the worker", || {
        other.call(7, "kept", json!({})).to_string().matches("hold").count() == 2
    });
    other.send("DELETE /mcp", &[], "");
    assert_eq!(other.answer().status, 204);
    assert!(asks.answer().is_stream());
    let told = messages(&asks.events());
    let told: Vec<_> = told.iter().map(|error| (error["id"].as_u64(), error["error"]["code"].as_i64())).collect();
    assert_eq!(told, [(Some(1), Some(-32011)), (Some(2), Some(-32011))]);
    daemon.stop();
}

#[test]
fn a_request_whose_session_is_deleted_gets_an_error_that_clients_do_not_retry() {
    let daemon = door(with(worker("tools", 1, &["--keep"]), "assignment", "client"), json!({}));
    let client = Http::session(daemon.address(), "2025-11-25");
    let (mut asks, mut other) = (client.again(), client.again());
    asks.post(&request(1, "hold", json!({})));
    daemon.until("it is with the worker", || other.call(7, "kept", json!({})).to_string().contains("hold"));
    other.send("DELETE /mcp", &[], "");
    assert_eq!(other.answer().status, 204);
    let answer = asks.answer();
    assert_eq!(answer.status, 200);
    let error = &answer.json()["error"];
    assert_eq!((&answer.json()["id"], &error["code"]), (&json!(1), &json!(-32011)));
    assert_eq!(error["data"], json!({ "reason": "request_discarded", "delivered": true }));
    assert_eq!(asks.ask(&request(2, "m", json!({}))).status, 404, "the session is there no more");
    daemon.stop();
}

#[test]
fn a_session_ends_at_once_if_its_initialize_is_abandoned() {
    // It serves sessions, and answers nothing else.
    let script = r#"while read -r line; do case "$line" in *server/discover*) id=${line#*\"id\":\"}; id=${id%%\"*};
        printf '{"jsonrpc":"2.0","id":"%s","error":{"code":-32601,"message":"no"}}\n' "$id";; esac; done"#;
    let pool =
        json!({ "id": "silent", "command": "sh", "args": ["-c", script], "instances": 1, "assignment": "client" });
    let daemon = door_of(with_admin(Setup::new([pool])), json!({}));
    let clients = || gauge(&daemon, "stdio_bus_clients");
    let mut client = Http::connect(daemon.address());
    client.post(&request(0, "initialize", json!({ "protocolVersion": VERSION })));
    daemon.until("the session has begun", || clients() == 1);
    client.reset();
    daemon.until("no client knows it, and it is gone", || clients() == 0);
    daemon.stop();
}

#[test]
fn a_session_whose_client_closes_before_its_initialize_is_answered_is_gone_before_the_answer_comes() {
    // It answers after a second: what closes looks like what half-closes, and would be taken for one that reads.
    let pool = with(worker("tools", 1, &["--slow", "1000000"]), "assignment", "client");
    let daemon = door_of(with_admin(Setup::new([pool])), json!({}));
    let mut client = Http::connect(daemon.address());
    client.post(&request(0, "initialize", json!({ "protocolVersion": VERSION })));
    daemon.until("the session has begun", || gauge(&daemon, "stdio_bus_clients") == 1);
    drop(client);
    daemon.until("no client knows it, and it is gone", || gauge(&daemon, "stdio_bus_clients") == 0);
    // One that half-closes gets its session.
    let mut client = Http::connect(daemon.address());
    client.post(&request(0, "initialize", json!({ "protocolVersion": VERSION })));
    client.half_close();
    let answer = client.answer();
    assert_eq!(answer.status, 200);
    let mut next = Http::connect(daemon.address()).with("Mcp-Session-Id", &answer.fields["mcp-session-id"]);
    assert_eq!(next.ask(&notification("notifications/initialized", json!({}))).status, 202);
    daemon.stop();
}

#[test]
fn events_that_are_kept_count_as_memory() {
    let daemon = door_of(with_admin(Setup::new([dedicated()])), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let text = notification("notifications/tools/list_changed", json!({ "text": "x".repeat(200_000) }));
    assert_eq!(client.ask(&notification("write", json!({ "text": format!("{text}\n{text}\n") }))).status, 202);
    let memory = || gauge(&daemon, "stdio_bus_memory_bytes");
    daemon.until("both are kept and counted", || memory() > 400_000);
    client.send("DELETE /mcp", &[], "");
    assert_eq!(client.answer().status, 204);
    daemon.until("they are gone with their session", || memory() < 300_000);
    daemon.stop();
}

#[test]
fn answers_of_megabytes_are_kept_with_their_own_ids_and_their_memory_is_given_back_with_their_sessions() {
    let pool = with(echo("echo", 1), "assignment", "client");
    let daemon = door_of(with_admin(Setup::new([pool]).limit("max_input_buffer", 4 << 20)), json!({}));
    let memory = || gauge(&daemon, "stdio_bus_memory_bytes");
    let text = "x".repeat(2 << 20);
    let message = request(7, "tools/call", json!({ "text": text })).to_string();
    let is_whole = |answer: &Value| answer["id"] == 7 && answer["result"]["echo"]["text"] == text.as_str();
    // The id of the second one is replaced.
    let mut sessions = [(); 2].map(|()| Http::session(daemon.address(), VERSION));
    let before = memory();
    for client in &mut sessions {
        let (id, length) = (client.session_id(), message.len());
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nMcp-Session-Id: {id}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        client.send_bytes((head + &message).as_bytes());
        assert!(client.answer().is_stream());
        let events = client.events();
        assert!(messages(&events).iter().all(is_whole) && events.len() == 1);
        let before_it = events[0].id.as_deref().and_then(|id| id.strip_suffix("-1")).expect("it is the first one");
        let mut back = client.again();
        assert!(back.open(Some(&format!("{before_it}-0"))).is_stream());
        assert!(is_whole(&messages(&back.events())[0]), "it is kept");
    }
    daemon.until("both count", || memory() > before + (4 << 20));
    for client in &mut sessions {
        client.send("DELETE /mcp", &[], "");
        assert_eq!(client.answer().status, 204);
    }
    daemon.until("their memory is free", || memory() <= before);
    daemon.stop();
}

#[test]
fn requests_behind_a_pending_one_count_as_memory() {
    let pool = with(worker("tools", 1, &["--keep"]), "assignment", "dedicated");
    let daemon = door_of(with_admin(Setup::new([pool])), json!({}));
    let client = Http::session(daemon.address(), VERSION);
    let (mut asks, mut other) = (client.again(), client.again());
    asks.post(&request(1, "hold", json!({})));
    daemon.until("it is with the worker", || other.call(7, "kept", json!({})).to_string().contains("hold"));
    // One connection for all looks: each of them counts as memory itself until the daemon has seen its end.
    let mut admin = Admin::of(&daemon);
    let mut memory = || metric(&admin.get("/metrics").body, "stdio_bus_memory_bytes");
    let before = memory();
    asks.post(&request(2, "m", json!({ "text": "x".repeat(10_000) })));
    // It may come in pieces, and after 8 KiB no more is received. Other answers count meanwhile, which are shorter.
    daemon.until("it is received and counted", || memory() > before + 4_000.0);
    asks.reset();
    daemon.until("it is gone with its connection", || memory() < before + 4_000.0);
    daemon.stop();
}

#[test]
fn a_request_of_2026_07_28_is_answered_where_no_worker_can_be_started() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("gone");
    std::fs::write(&program, "#!/bin/sh\nexit 1\n").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let pool = json!({ "id": "gone", "command": program, "args": [], "instances": 1, "assignment": "client" });
    let daemon = door(pool, json!({}));
    let mut client = Http::connect(daemon.address());
    std::fs::remove_file(&program).unwrap();
    daemon.logs(&["reason=spawn_failed"]);
    post_modern(&mut client, &modern(5, "tools/list", json!({})));
    let answer = client.answer();
    assert_eq!(answer.json()["id"], 5, "{answer:?}");
    daemon.stop();
}

#[test]
fn the_response_to_a_cancelled_request_of_a_session_ends_at_once_and_without_an_answer() {
    let daemon = door(with(worker("tools", 1, &["--keep"]), "assignment", "client"), json!({}));
    let client = Http::session(daemon.address(), VERSION);
    let (mut asks, mut other) = (client.again(), client.again());
    asks.post(&request(5, "hold", json!({})));
    daemon.until("it is with the worker", || other.call(7, "kept", json!({})).to_string().contains("hold"));
    let cancel = notification("notifications/cancelled", json!({ "requestId": 5 }));
    assert_eq!(other.ask(&cancel).status, 202);
    let told = asks.answer();
    assert!(told.status == 200 && told.is_stream(), "{told:?}");
    assert_eq!(asks.events().len(), 0);
    assert_eq!(asks.call(6, "release", json!({}))["id"], 6, "its connection is free, and the late answer goes nowhere");
    daemon.stop();
}

#[test]
fn nothing_is_kept_for_a_client_that_has_cancelled_its_request_and_left() {
    let daemon = door(with(worker("tools", 1, &["--keep"]), "assignment", "dedicated"), json!({}));
    let client = Http::session(daemon.address(), VERSION);
    let mut other = client.again();
    assert_eq!(other.call(6, "a", json!({}))["id"], 6);
    let before = daemon.sockets();
    let mut asks = client.again();
    asks.post(&request(5, "hold", json!({})));
    daemon.until("it is with the worker", || other.call(7, "kept", json!({})).to_string().contains("hold"));
    asks.reset();
    daemon.until("the connection has gone", || daemon.sockets() <= before);
    let cancel = notification("notifications/cancelled", json!({ "requestId": 5 }));
    assert_eq!(other.ask(&cancel).status, 202);
    let mut stream = client.stream();
    let changed = notification("notifications/tools/list_changed", json!({}));
    assert_eq!(other.ask(&notification("write", json!({ "text": format!("{changed}\n") }))).status, 202);
    let first = stream.message().expect("it comes");
    assert_eq!(first.json(), changed);
    let log = daemon.stop().stderr;
    assert!(!log.contains("events_lost"), "{log}");
}

#[test]
fn a_client_with_an_empty_last_event_id_gets_its_stream() {
    let daemon = door(dedicated(), json!({}));
    let mut stream = Http::session(daemon.address(), VERSION).again();
    assert!(stream.open(Some("")).is_stream());
    daemon.stop();
}

#[test]
fn a_worker_that_says_an_object_without_a_method_to_a_session_harms_nobody() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let mut stream = client.stream();
    let lines = [json!({}), json!({ "method": 7 }), json!({ "jsonrpc": "2.0", "params": {} })];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    assert_eq!(client.ask(&notification("write", json!({ "text": text }))).status, 202);
    for line in lines {
        assert_eq!(stream.message().expect("the daemon lives").json(), line);
    }
    assert_eq!(client.call(6, "a", json!({}))["id"], 6);
    daemon.stop();
}

#[test]
fn an_unused_session_is_dropped_but_not_one_with_a_stream() {
    let setup = Setup::new([shared()]).limit("session_idle_sec", 1);
    let daemon = door_of(setup, json!({}));
    let mut idle = Http::session(daemon.address(), VERSION);
    let (mut listening, mut stream) = (None, None);
    daemon.until("a stream is opened within the second that its session is kept", || {
        let session = listening.insert(Http::session(daemon.address(), VERSION));
        stream.insert(session.again()).open(None).is_stream()
    });
    let listening = listening.expect("it has a stream");
    daemon.logs(&["session_idle"]);
    assert_eq!(idle.ask(&request(1, "a", json!({}))).status, 404);
    assert_eq!(listening.again().call(1, "a", json!({}))["id"], 1, "a client with a stream stays");
    daemon.stop();
}

#[test]
fn a_session_ends_when_it_had_no_connection_for_session_detached_sec() {
    let daemon = door_of(Setup::new([shared()]).limit("session_detached_sec", 1), json!({}));
    let mut connected = Http::session(daemon.address(), VERSION);
    let left = Http::session(daemon.address(), VERSION).again();
    daemon.logs(&["session_idle"]);
    let mut left = left.again();
    daemon.until("it has ended", || left.ask(&request(1, "a", json!({}))).status == 404);
    assert_eq!(connected.call(1, "a", json!({}))["id"], 1, "one whose client keeps its connection stays");
    daemon.stop();
}

#[test]
fn a_session_whose_program_has_ended_gives_its_worker_up_to_one_that_waits() {
    let pool = with(with(worker("tools", 1, &[]), "assignment", "dedicated"), "max_instances", 2);
    let daemon = door(pool, json!({}));
    let abandoned = Http::session(daemon.address(), VERSION).session_id();
    let mut connected = Http::session(daemon.address(), VERSION);
    let mut newcomer = Http::session(daemon.address(), VERSION);
    assert_eq!(newcomer.call(1, "a", json!({}))["id"], 1, "it has waited for a worker, and got one");
    assert_eq!(connected.call(1, "a", json!({}))["id"], 1);
    daemon.logs(&["reason=session_evicted"]);
    let mut gone = Http::connect(daemon.address()).with("Mcp-Session-Id", &abandoned);
    assert_eq!(gone.ask(&request(1, "a", json!({}))).status, 404, "its client begins anew");
    daemon.stop();
}

#[test]
fn an_idle_session_is_evicted_when_all_slots_are_taken() {
    let slots = figure("MAX_CONNECTIONS", 1024);
    let daemon = door(shared(), json!({}));
    let first = Http::session(daemon.address(), VERSION);
    let stream_of_first = first.stream();
    let second = Http::session(daemon.address(), VERSION);
    let mut connection = Http::connect(daemon.address());
    for _ in 0..slots {
        let params = json!({ "protocolVersion": VERSION, "capabilities": {} });
        let answer = connection.ask(&json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params }));
        assert_eq!(answer.status, 200);
    }
    // On new connections: a slow machine may take longer than an idle one is kept.
    assert_eq!(second.again().ask(&request(1, "a", json!({}))).status, 404, "it was idle for longest");
    assert_eq!(first.again().call(1, "a", json!({}))["id"], 1, "one with a stream stays");
    drop(stream_of_first);
    daemon.stop();
}

#[test]
fn a_client_of_2026_07_28_that_leaves_amid_an_answer_keeps_no_slot() {
    let setup = Setup::new([with(worker("tools", 1, &[]), "assignment", "client")]).limit("drain_timeout_sec", 3600);
    let daemon = door_of(with_admin(setup), json!({}));
    let mut client = Http::connect(daemon.address()).with_little_room();
    post_modern(&mut client, &modern(1, "big", json!({ "size": 4_000_000 })));
    assert_eq!(client.head().status, 200);
    client.reset();
    daemon.until("it is gone", || gauge(&daemon, "stdio_bus_clients") == 0);
    let log = daemon.stop().stderr;
    assert!(!log.contains("client_overdue"), "{log}");
}

#[test]
fn sessions_that_no_worker_takes_do_not_push_out_others() {
    let pool = with(with(worker("tools", 1, &[]), "assignment", "dedicated"), "max_instances", 1);
    let daemon = door(pool, json!({}));
    let client = Http::session(daemon.address(), VERSION);
    let mut refused = Http::connect(daemon.address());
    for _ in 0..55 {
        (0..20).for_each(|_| refused.post(&request(0, "initialize", json!({ "protocolVersion": VERSION }))));
        for _ in 0..20 {
            let answer = refused.answer();
            assert_eq!(answer.json()["error"]["data"]["reason"], "no_worker", "{answer:?}");
        }
    }
    assert!(client.again().call(1, "a", json!({}))["result"].is_object(), "its session is still there");
    let log = daemon.stop().stderr;
    assert!(!log.contains("session_evicted") && !log.contains("connection_limit"), "{log}");
}

#[test]
fn long_heads_that_do_not_end_are_refused_while_memory_is_short_and_short_ones_are_not() {
    let setup = with_admin(Setup::new([dedicated()])).limit("max_memory", 16 << 20);
    let daemon = door_of(setup, json!({}));
    let begin = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\nCookie: a={}", "x".repeat(31_000));
    let begins = || {
        let mut client = Http::connect(daemon.address());
        client.send_bytes(begin.as_bytes());
        client
    };
    let mut all: Vec<Http> = (0..380).map(|_| begins()).collect();
    let memory = || gauge(&daemon, "stdio_bus_memory_bytes");
    daemon.until("they are counted", || memory() > 380 * 31_000);
    all.extend((0..40).map(|_| begins()));
    let log = daemon.logs(&["a request for MCP is refused: memory is short; try again later (503)"]);
    let is_refused = |client: &Http| log.ends_with(&format!("from={}", client.name()));
    let at = all.iter().position(is_refused).expect("it is one of them");
    assert_eq!(all.swap_remove(at).answer().status, 503);
    let mut client = Http::session(daemon.address(), VERSION);
    assert_eq!(client.call(1, "m", json!({}))["id"], 1);
    drop(all);
    daemon.until("their memory is free", || memory() < 1_000_000);
    let cookies = "a=x".repeat(3_000);
    let mut browser = client.again();
    browser.send("POST /mcp", &[("Cookie", &cookies)], &request(2, "m", json!({})).to_string());
    assert_eq!(browser.answer().status, 200, "cookies of other ports of its host come with it");
    daemon.stop();
}

#[test]
fn kept_events_that_are_asked_for_again_and_again_are_not_copied_for_each_reader() {
    let daemon = door_of(with_admin(Setup::new([dedicated()])), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let text = notification("notifications/tools/list_changed", json!({ "text": "x".repeat(450_000) })).to_string();
    assert_eq!(client.ask(&notification("write", json!({ "text": format!("{text}\n") }))).status, 202);
    let memory = || gauge(&daemon, "stdio_bus_memory_bytes");
    daemon.until("it is kept", || memory() > 450_000);
    assert!(client.again().with_little_room().open(None).is_stream());
    let opens = |_| {
        let mut reader = client.again().with_little_room();
        assert!(reader.open(Some("0-0")).is_stream());
        reader
    };
    let unread: Vec<Http> = (0..60).map(opens).collect();
    assert!(memory() < 3_000_000, "{} bytes", memory());
    let mut reader = opens(0);
    let event = reader.message().expect("it is kept");
    assert!(event.data == text, "the newest one gets all of it");
    let again = notification("notifications/tools/list_changed", json!({ "text": "later" }));
    assert_eq!(client.ask(&notification("write", json!({ "text": format!("{again}\n") }))).status, 202);
    assert_eq!(reader.message().map(|event| event.data), Some(again.to_string()));
    drop(unread);
    daemon.stop();
}

#[test]
fn what_comes_while_kept_events_are_sent_follows_them() {
    let daemon = door_of(with_admin(Setup::new([dedicated()])), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    let mut reader = client.again().with_little_room();
    let text = |number: usize| {
        notification("notifications/tools/list_changed", json!({ "n": number, "text": "x".repeat(100_000) }))
            .to_string()
    };
    let mut writes = |numbers: std::ops::Range<usize>| {
        let all: String = numbers.map(|number| text(number) + "\n").collect();
        assert_eq!(client.ask(&notification("write", json!({ "text": all }))).status, 202);
    };
    writes(0..4);
    daemon.until("they are kept", || gauge(&daemon, "stdio_bus_memory_bytes") > 400_000);
    assert!(reader.open(None).is_stream());
    writes(4..12);
    reader.gets_room();
    for number in 0..12 {
        let event = reader.message().expect("the next one");
        assert!(event.data == text(number), "event {number} is whole and in order");
    }
    daemon.stop();
}

#[test]
fn answers_that_ended_sessions_do_not_read_are_given_up_before_others_suffer() {
    let pool = with(worker("tools", 1, &[]), "assignment", "client");
    let daemon = door_of(with_admin(Setup::new([pool])).limit("max_memory", 16 << 20), json!({}));
    let mut honest = Http::session(daemon.address(), VERSION);
    let memory = || gauge(&daemon, "stdio_bus_memory_bytes");
    let asks = |_| {
        let session = Http::session(daemon.address(), VERSION);
        let (mut asks, mut ends) = (session.again().with_little_room(), session.again());
        asks.post(&request(1, "big", json!({ "size": 3_000_000 })));
        assert_eq!(asks.head().status, 200);
        ends.send("DELETE /mcp", &[], "");
        // It may have been closed for what it holds before it ends itself.
        let status = ends.answer().status;
        assert!([204, 404].contains(&status), "{status}");
        asks
    };
    let unread: Vec<Http> = (0..12).map(asks).collect();
    daemon.logs(&["memory_limit", "a connection over HTTP is closed", "whose sessions have ended"]);
    daemon.until("there is room again", || memory() <= 16 << 20);
    assert_eq!(honest.call(1, "m", json!({}))["id"], 1);
    drop(unread);
    daemon.stop();
}

#[test]
fn the_source_with_most_uploads_gives_way_to_another() {
    let setup = with_admin(Setup::new([dedicated()])).limit("max_memory", 16 << 20);
    let daemon = door_of(setup, json!({ "trusted_proxies": ["127.0.0.1"] }));
    let message = request(1, "m", json!({ "text": "x".repeat(1_000_000) }));
    let begin = &message.to_string()[..1_000_000];
    let begins = |_| {
        let mut client = Http::connect(daemon.address()).with("X-Forwarded-For", "192.0.2.7");
        client.uploads(&message);
        client.send_bytes(begin.as_bytes());
        client
    };
    let greedy: Vec<Http> = (0..4).map(begins).collect();
    daemon.until("they have come", || gauge(&daemon, "stdio_bus_memory_bytes") >= 4_000_000);
    let mut honest = Http::connect(daemon.address()).with("X-Forwarded-For", "192.0.2.8");
    honest.post(&request(0, "initialize", json!({ "protocolVersion": VERSION, "text": "x".repeat(500_000) })));
    assert_eq!(honest.answer().status, 200);
    daemon.logs(&["memory is short", "(429)", "from=127.0.0.1"]);
    // Its own bodies are refused, too, when they find no room: all of that is about it alone, and a balancer does not take
    // the daemon for down.
    let _fills = begins(0);
    daemon.until("it has come", || gauge(&daemon, "stdio_bus_memory_bytes") >= 4_000_000);
    let mut more = Http::connect(daemon.address()).with("X-Forwarded-For", "192.0.2.7");
    more.uploads(&message);
    more.send_bytes(&begin.as_bytes()[..400_000]);
    assert_eq!(more.answer().status, 429);
    drop(greedy);
    let log = daemon.stop().stderr;
    assert!(!log.contains("(503)"), "{log}");
}

#[test]
fn a_request_that_an_orderly_end_leaves_without_a_response_has_reached_no_worker() {
    let log = json!({ "level": "info", "format": "json", "requests": true });
    let daemon = door_of(Setup::new([shared()]).set("log", log), json!({}));
    let session = Http::session(daemon.address(), VERSION);
    let clients: Vec<_> = (0..8).map(|_| session.again()).collect();
    let posting = clients.into_iter().zip(1..).map(|(mut client, number)| {
        std::thread::spawn(move || {
            // A client may send such a request again.
            (0..1_000_000)
                .map(|at| 1_000_000 * number + at)
                .find(|id| !client.is_answered(&request(*id, "a", json!({}))))
        })
    });
    let posting: Vec<_> = posting.collect();
    daemon.logs(&["\"id\":8000001"]);
    let log = daemon.stop().stderr;
    for unanswered in posting {
        let id = unanswered.join().expect("it ends with the daemon").expect("it ends with the daemon");
        let passed = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let passed: Vec<Value> = passed.filter(|line| line["id"] == json!(id) && line["worker"].is_string()).collect();
        assert_eq!(passed, [] as [Value; 0], "{id} has got no response");
    }
}

/// A daemon whose pool is paused, after two sessions and a client of 2026-07-28 have used it.
fn paused() -> (Daemon, [Http; 2], Http) {
    let log = json!({ "level": "info", "format": "json", "requests": true });
    let setup = with_admin(Setup::new([shared()])).limit("quiesce_sec", 600).set("log", log);
    let daemon = door_of(setup, json!({}));
    let sessions = [(); 2].map(|()| Http::session(daemon.address(), "2025-03-26"));
    let mut modern_client = Http::connect(daemon.address());
    post_modern(&mut modern_client, &modern(1, "tools/list", json!({})));
    assert_eq!(modern_client.answer().status, 200);
    said(&daemon, &["pause", "pool", "tools"]);
    (daemon, sessions, modern_client)
}

/// Waits until the requests of so many clients wait for the paused pool.
fn until_held(daemon: &Daemon, clients: usize) {
    let waiting = || said(daemon, &["show", "waiting"]).matches("the paused pool tools").count();
    daemon.until("they wait", || waiting() == clients);
}

#[test]
fn requests_that_wait_for_a_paused_pool_when_the_daemon_drains_are_refused_as_those_that_come_then() {
    let (daemon, [mut session, mut batch], mut other) = paused();
    let mut second = session.again();
    let mut new = Http::connect(daemon.address());
    session.post(&request(11, "tools/list", json!({})));
    post_modern(&mut other, &modern(12, "tools/list", json!({})));
    let params = json!({ "protocolVersion": VERSION, "capabilities": {} });
    new.post(&request(13, "initialize", params));
    batch.post(&json!([request(14, "a", json!({})), request(15, "a", json!({}))]));
    until_held(&daemon, 4);
    second.post(&notification("notifications/cancelled", json!({ "requestId": 99 })));
    daemon.signal(rustix::process::Signal::TERM);
    let not_delivered = json!({ "reason": "shutting_down", "delivered": false });
    let gone = session.answer();
    assert_eq!((gone.status, &gone.json()["id"], &gone.json()["error"]["data"]), (404, &json!(11), &not_delivered));
    assert_eq!(second.answer().status, 404, "what comes behind it is not passed on");
    for (client, id) in [(&mut other, 12), (&mut new, 13)] {
        let refused = client.answer();
        assert_eq!((refused.status, &refused.json()["id"], &*refused.fields["retry-after"]), (503, &json!(id), "1"));
        assert_eq!(refused.json()["error"]["data"], not_delivered);
        assert_eq!(refused.fields["connection"], "close");
    }
    assert!(batch.answer().is_stream());
    let told = messages(&batch.events());
    let told: Vec<_> = told.iter().map(|error| (&error["id"], &error["error"]["data"])).collect();
    assert_eq!(told, [(&json!(14), &not_delivered), (&json!(15), &not_delivered)]);
    drop((session, second, other, new, batch));
    let log = daemon.ends_well().stderr;
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let refused = lines.filter(|line| line["outcome"] == "refused" && line["reason"] == "shutting_down");
    let mut ids: Vec<_> = refused.filter_map(|line| line["id"].as_u64()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [11, 12, 13, 14, 15], "each has its line in the log of requests");
}

#[test]
fn a_request_that_waits_for_a_paused_pool_when_its_session_is_deleted_has_reached_no_worker() {
    let (daemon, [mut session, mut batch], _) = paused();
    let (mut deletes, mut behind) = (session.again(), session.again());
    session.post(&request(11, "tools/list", json!({})));
    batch.post(&json!([request(12, "a", json!({})), request(13, "a", json!({}))]));
    until_held(&daemon, 2);
    behind.post(&notification("notifications/x", json!({})));
    for client in [&mut deletes, &mut batch.again()] {
        client.send("DELETE /mcp", &[], "");
        assert_eq!(client.answer().status, 204);
    }
    let told = session.answer();
    assert_eq!((told.status, &told.json()["id"]), (404, &json!(11)));
    assert_eq!(told.json()["error"]["data"], json!({ "reason": "request_discarded", "delivered": false }));
    let told = batch.answer();
    assert_eq!((told.status, told.json()["error"]["data"]["delivered"].as_bool()), (404, Some(false)));
    assert_eq!(behind.answer().status, 404);
    daemon.logs(&["the session has ended before a worker got this", "\"reason\":\"request_discarded\""]);
    daemon.stop();
}

#[test]
fn a_tool_that_the_pool_denies_is_unknown_to_clients_and_counted_by_its_rule() {
    let pool = with(dedicated(), "deny_tools", json!(["delete_*"]));
    let daemon = door_of(with_admin(Setup::new([pool])), json!({}));
    let mut client = Http::session(daemon.address(), VERSION);
    client.post(&request(1, "tools/call", json!({ "name": "delete_all", "arguments": {} })));
    let answer = client.answer().json();
    assert_eq!((&answer["error"]["code"], &answer["error"]["data"]["reason"]), (&json!(-32602), &json!("tool_denied")));
    assert_eq!(client.call(2, "tools/call", json!({ "name": "read" }))["id"], 2);
    let metrics = Admin::of(&daemon).get("/metrics").body;
    let count = metrics.lines().find(|line| line.starts_with("stdio_bus_tool_calls_denied_total{"));
    assert!(count.is_some_and(|line| line.contains("pattern=\"delete_*\"") && line.ends_with(" 1")), "{count:?}");
    assert!(daemon.stop().stderr.contains("reason=tool_denied"));
}
