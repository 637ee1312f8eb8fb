//! Health checks of load balancers and others, in all their forms.

use std::time::{Duration, Instant};

use super::*;

#[test]
fn a_check_of_an_unknown_pool_or_listener_is_an_error() {
    let daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    answers(&daemon, "/readyz?pool=agent", 400, "there is no pool \"agent\"; the pools are agents\n");
    let text = "there is no listener \"7\"; the listeners are 0 (tcp://127.0.0.1:0)\n";
    answers(&daemon, "/readyz?listener=7", 400, text);
    assert_eq!(Admin::of(&daemon).get("/readyz?pools=agents").status, 400);
    daemon.stop();
}

#[test]
fn a_check_of_haproxy_needs_no_host_and_is_answered_on_http_1_0() {
    let daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    for check in ["OPTIONS / HTTP/1.0\r\n\r\n", "GET /readyz HTTP/1.0\r\n\r\n"] {
        let mut admin = Admin::of(&daemon);
        admin.send(check);
        let answer = admin.answer().expect("an answer comes");
        assert_eq!((answer.status, answer.body.as_str()), (200, "ready\n"), "{check}");
        assert!(answer.head.contains("\r\nConnection: close\r\n"), "{}", answer.head);
        assert!(admin.answer().is_none(), "the connection is closed");
    }
    daemon.stop();
}

#[test]
fn several_requests_share_a_connection_also_when_they_come_at_once() {
    let daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let mut admin = Admin::of(&daemon);
    assert_eq!(admin.get("/healthz").body, "alive\n");
    let one = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc";
    admin.send(&[one, one, "HEAD /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n", one].concat());
    for method in ["GET", "GET", "HEAD", "GET"] {
        let answer = admin.answer_to(method).expect("an answer comes");
        assert!(answer.status == 200 && answer.head.contains("\r\nConnection: keep-alive\r\n"), "{answer:?}");
    }
    admin.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(admin.answer().map(|answer| answer.status), Some(200));
    assert!(admin.answer().is_none());
    daemon.stop();
}

#[test]
fn an_invalid_request_is_answered_as_http_requires_and_ends_the_connection() {
    let daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let long = format!("GET / HTTP/1.1\r\nHost: localhost\r\nA: {}\r\n\r\n", "a".repeat(33_000));
    for (text, status) in [
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n", 413),
        (long.as_str(), 431),
        ("GET / HTTP/3.0\r\n\r\n", 505),
    ] {
        let mut admin = Admin::of(&daemon);
        admin.send(text);
        assert_eq!(admin.answer().map(|answer| answer.status), Some(status), "{text:.60}");
        assert!(admin.answer().is_none(), "{text:.60}");
    }
    let mut admin = Admin::of(&daemon);
    for (method, target, status) in
        [("GET", "/nothing", 404), ("POST", "/readyz", 405), ("DELETE", "/readyz", 405), ("BREW", "/readyz", 501)]
    {
        assert_eq!(admin.request(method, target).status, status, "{method} {target}");
    }
    daemon.stop();
}

#[test]
fn a_request_may_come_byte_by_byte_and_its_sender_may_leave_at_any_byte() {
    let daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let before = daemon.descriptors();
    let text = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for cut in 1..text.len() {
        Admin::of(&daemon).send(&text[..cut]);
    }
    let mut admin = Admin::of(&daemon);
    for byte in text.chars() {
        admin.send(&byte.to_string());
    }
    assert_eq!(admin.answer().map(|answer| answer.status), Some(200));
    drop(admin);
    daemon.until("all of them are closed", || daemon.descriptors() <= before);
    daemon.stop();
}

#[test]
fn checks_take_no_slot_and_no_line_of_the_log_and_the_oldest_of_64_connections_makes_room() {
    let mut daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    daemon.logs(&["worker_started"]);
    let log = daemon.log();
    let mut first = Admin::of(&daemon);
    assert_eq!(first.get("/healthz").status, 200);
    let mut others: Vec<_> = (0..64).map(|_| Admin::of(&daemon)).collect();
    for admin in &mut others {
        assert_eq!(admin.get("/readyz").status, 200);
    }
    assert!(first.answer().is_none(), "it has waited longest");
    assert_eq!(others[0].get("/readyz").status, 200);
    assert_eq!(daemon.log(), log, "checks are not logged");
    let mut client = daemon.connect();
    assert!(client.request(1, "who", json!({}))["result"].is_object());
    daemon.stop();
}

#[test]
fn half_closed_stalled_clients_cost_no_kernel_thread() {
    let daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let before = daemon.threads();
    // More than a socket buffer holds.
    let pages = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    let mut silent: Vec<Admin<UnixStream>> = (0..16).map(|_| Admin::of(&daemon)).collect();
    for admin in &mut silent {
        admin.send(&pages);
        admin.0.0.shutdown(std::net::Shutdown::Write).expect("it is connected");
    }
    for _ in 0..10 {
        answers(&daemon, "/healthz", 200, "alive\n");
    }
    // The log may need one.
    assert!(daemon.threads() <= before + 1, "{before}, then {}", daemon.threads());
    // The one that has waited for the shortest time: who takes nothing for ten seconds is given up.
    let mut last = silent.pop().expect("there are some");
    for _ in 0..100 {
        assert_eq!(last.answer().expect("there are more").status, 200);
    }
    assert!(last.answer().is_none());
    daemon.stop();
}

#[test]
fn clients_that_do_not_read_their_responses_keep_no_health_check_out() {
    let daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let page = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1000);
    // It sees all of them at once.
    daemon.stand_still();
    let silent: Vec<UnixStream> = (0..64)
        .map(|_| {
            let mut stream = UnixStream::connect(daemon.path("admin")).expect("the admin socket is there");
            stream.set_nonblocking(true).expect("a socket");
            // The rest does not fit as soon as its responses do not.
            let _ = stream.write(page.as_bytes());
            stream
        })
        .collect();
    let since = Instant::now();
    daemon.signal(Signal::CONT);
    for _ in 0..3 {
        answers(&daemon, "/healthz", 200, "alive\n");
    }
    // On a slower machine there may be room: who takes nothing for ten seconds is given up.
    if since.elapsed() < Duration::from_secs(10) {
        daemon.logs(&["WARN", "accept_paused", "all 64 connections of the admin listener are in use"]);
    }
    drop(silent);
    daemon.stop();
}

#[test]
fn a_full_daemon_is_not_ready_and_still_answers() {
    let mut daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let mut clients = on_all_slots(&mut daemon);
    until_status(&daemon, "/readyz", 404);
    answers(&daemon, "/readyz", 404, "full: all 1024 connections are in use\n");
    // A half-closed client would get its response first.
    clients.pop().expect("there are many").reset();
    until_status(&daemon, "/readyz", 200);
    daemon.stop();
}

#[test]
fn the_daemon_sleeps_while_a_half_closed_client_does_not_read_its_many_responses() {
    const RESPONSES: usize = 700;
    let daemon = start_ready(Setup::new([worker("agents", 1, &[])]));
    let mut silent = Admin::of(&daemon);
    silent.send(&"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(RESPONSES));
    silent.0.0.shutdown(std::net::Shutdown::Write).expect("it is connected");
    daemon.until("it sleeps", || (0..50).all(|_| state(daemon.pid().into()) == Some('S')));
    // Otherwise it slept since it had closed the connection.
    for _ in 0..RESPONSES {
        assert_eq!(silent.answer().expect("there are more").status, 200);
    }
    daemon.stop();
}

#[test]
fn a_worker_that_hangs_is_seen_after_its_client_has_left() {
    let mut daemon = start_ready(Setup::new([with(worker("agents", 1, &[]), "worker_silent_sec", 1)]));
    let mut client = daemon.connect();
    client.ask(7, "hold", json!({}));
    let mut other = daemon.connect();
    daemon.until("it is asked", || other.request(1, "who", json!({}))["result"]["held"] == 1);
    // With a half-close it would wait for its answer.
    client.reset();
    until_status(&daemon, "/readyz", 503);
    assert_eq!(Admin::of(&daemon).get("/readyz?unresponsive=404").status, 404);
    let why = Admin::of(&daemon).get("/readyz?pool=agents").body;
    assert!(why.contains("say nothing although they owe answers"), "{why}");
    let text = Admin::of(&daemon).get("/metrics").body;
    assert!(text.contains("stdio_bus_workers_unresponsive{pool=\"agents\"} 1\n"), "{text}");
    assert!(!text.contains("stdio_bus_requests_owed_oldest_seconds{pool=\"agents\"} 0\n"), "{text}");
    let rows = |table: &str| -> Value {
        let shown: Value = serde_json::from_str(&said(&daemon, &["show", table, "--json"])).expect("it is JSON");
        shown[table].clone()
    };
    let workers = rows("workers");
    assert!(workers[0]["unresponsive"] == true && workers[0]["owes_seconds"].as_f64() > Some(1.0), "{workers}");
    let waiting = rows("waiting");
    assert_eq!(waiting[0]["who"], "a client that has left", "{waiting}");
    assert_eq!((&waiting[0]["waits_for"], &waiting[0]["what"]), (&json!("worker agents/0"), &json!("the answer to 7")));
    let mut third = daemon.connect();
    third.request(1, "who", json!({}));
    until_status(&daemon, "/readyz", 200);
    daemon.logs(&["worker_well"]);
    daemon.stop();
}
