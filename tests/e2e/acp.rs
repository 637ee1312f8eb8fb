//! ACP over Streamable HTTP: what each request is answered with, which stream a line comes on, and what becomes of
//! connections whose streams break, are not read, or end. `tests/clients` has tests with other projects' clients.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::admin::{Admin, with_admin};
use crate::harness::{Daemon, Setup, program, run_to_its_end, with, worker};
use crate::http::{Answer, Http, notification, request};
use crate::reload::reload;
use crate::websocket::UPGRADE;

/// A pool whose clients share one worker, and one with a worker for each client.
fn shared() -> Value {
    with(worker("agents", 1, &[]), "assignment", "client")
}

fn dedicated() -> Value {
    with(with(worker("agents", 1, &[]), "assignment", "dedicated"), "max_instances", 8)
}

fn door(pool: Value, keys: Value) -> Daemon {
    door_of(with_admin(Setup::new([pool])), keys)
}

/// A prepared daemon with one listener that has these keys.
fn door_of(setup: Setup, keys: Value) -> Daemon {
    let mut listener = json!({ "acp": "127.0.0.1:0" });
    keys.as_object().unwrap().iter().for_each(|(key, value)| listener[key] = value.clone());
    setup.no_listener().hears_hangups().set("listeners", json!([listener])).start()
}

/// A client with a connection, which posts over one socket.
struct Acp {
    posts: Http,
    id: String,
}

impl Acp {
    fn begin(address: SocketAddr) -> Self {
        Self::over(Http::connect(address))
    }

    /// Begins a connection with a request that has the fields of this client.
    fn over(mut posts: Http) -> Self {
        posts.send("POST /acp", &[], &initialize().to_string());
        let answer = posts.answer();
        assert_eq!((answer.status, answer.json()["id"].clone()), (200, json!(0)), "{answer:?}");
        let id = answer.fields["acp-connection-id"].clone();
        Self { posts: posts.with("Acp-Connection-Id", &id), id }
    }

    /// Posts a message that belongs to this session, if one is given.
    fn post(&mut self, session: Option<&str>, message: &Value) -> Answer {
        let fields: Vec<_> = session.map(|name| ("Acp-Session-Id", name)).into_iter().collect();
        self.posts.send("POST /acp", &fields, &message.to_string());
        self.posts.answer()
    }

    /// The same, where it is taken.
    fn say(&mut self, session: Option<&str>, message: &Value) {
        let answer = self.post(session, message);
        assert_eq!((answer.status, answer.body.as_str()), (202, ""), "{message}");
    }

    /// Tries to read the stream of a session, or of the connection.
    fn open(&self, session: Option<&str>) -> (Http, Answer) {
        let mut stream = self.posts.again();
        let fields: Vec<_> = session.map(|name| ("Acp-Session-Id", name)).into_iter().collect();
        stream.send("GET /acp", &fields, "");
        let answer = stream.answer();
        (stream, answer)
    }

    fn stream(&self, session: Option<&str>) -> Http {
        let (stream, answer) = self.open(session);
        assert!(answer.is_stream() && answer.fields["acp-connection-id"] == self.id, "{answer:?}");
        assert_eq!(answer.fields.get("acp-session-id").map(String::as_str), session);
        stream
    }

    /// Begins a session on this stream of the connection, and returns its name.
    fn session(&mut self, general: &mut Http, id: u64) -> String {
        self.say(None, &request(id, "session/new", json!({ "name": format!("session-{id}-of-{}", self.id) })));
        let made = next(general);
        assert_eq!(made["id"], id);
        made["result"]["sessionId"].as_str().expect("it has a name").to_owned()
    }

    fn delete(&mut self) -> u16 {
        self.posts.send("DELETE /acp", &[], "");
        self.posts.answer().status
    }
}

fn initialize() -> Value {
    request(0, "initialize", json!({ "protocolVersion": 1 }))
}

fn next(stream: &mut Http) -> Value {
    stream.event().expect("the stream goes on").json()
}

fn update(session: &str, text: &str) -> Value {
    notification("session/update", json!({ "sessionId": session, "update": text }))
}

/// A request that makes the worker write these lines, and one more as its answer.
fn writes(id: u64, lines: &[Value]) -> Value {
    let answer = json!({ "jsonrpc": "2.0", "id": id, "result": { "written": true } });
    let text: String = lines.iter().chain([&answer]).map(|line| format!("{line}\n")).collect();
    request(id, "write", json!({ "text": text }))
}

/// The value of a gauge of the admin listener.
fn gauge(daemon: &Daemon, name: &str) -> f64 {
    let metrics = Admin::of(daemon).get("/metrics").body;
    let series = metrics.lines().filter_map(|line| line.rsplit_once(' '));
    let values = series.filter(|(series, _)| series.split('{').next() == Some(name)).map(|(_, value)| value);
    values.map(|value| value.parse::<f64>().expect("a number")).next().expect("there is such a gauge")
}

fn clients(daemon: &Daemon) -> usize {
    gauge(daemon, "stdio_bus_clients") as usize
}

#[test]
fn initialize_is_answered_at_once_and_all_else_on_the_streams() {
    let daemon = door(shared(), json!({}));
    let mut client = Acp::begin(daemon.address());
    assert!(client.id.split_once('.').is_some_and(|(_, random)| random.len() == 22), "{}", client.id);
    let mut general = client.stream(None);
    let session = client.session(&mut general, 1);
    // It is said before the stream of the session is open.
    client.say(Some(&session), &writes(2, &[update(&session, "early"), notification("auth/status_update", json!({}))]));
    assert_eq!(next(&mut general)["method"], "auth/status_update", "it names no session");
    let mut stream = client.stream(Some(&session));
    assert_eq!(next(&mut stream)["params"]["update"], "early");
    assert_eq!(next(&mut stream)["result"]["written"], true, "the answer is where its request was asked");
    client.say(Some(&session), &request(3, "session/prompt", json!({ "sessionId": session, "prompt": [] })));
    let answer = next(&mut stream);
    assert_eq!((&answer["id"], &answer["result"]["method"]), (&json!(3), &json!("session/prompt")));
    client.say(None, &request(4, "session/list", json!({})));
    assert_eq!(next(&mut general)["id"], 4);
    assert_eq!(client.delete(), 202);
    assert_eq!((general.event(), stream.event()), (None, None), "its streams end");
    daemon.until("it is gone", || clients(&daemon) == 0);
    daemon.stop();
}

#[test]
fn a_permission_is_asked_on_the_stream_of_its_session_and_answered_by_a_post() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Acp::begin(daemon.address());
    let mut general = client.stream(None);
    let sessions = [client.session(&mut general, 1), client.session(&mut general, 2)];
    let mut streams = sessions.each_ref().map(|session| client.stream(Some(session)));
    for (at, session) in sessions.iter().enumerate() {
        let asks = request(10 + at as u64, "ask", json!({ "session": session, "about": at }));
        client.say(Some(session), &asks);
        let asked = next(&mut streams[at]);
        assert_eq!((&asked["method"], &asked["params"]["about"]), (&json!("session/request_permission"), &json!(at)));
        let allowed =
            json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "outcome": { "outcome": "cancelled" } } });
        // Not all clients name the session of a response.
        client.say(Some(session).filter(|_| at == 0).map(String::as_str), &allowed);
        assert_eq!(next(&mut streams[at])["id"], 10 + at);
    }
    assert_eq!(client.delete(), 202);
    daemon.stop();
}

#[test]
fn a_session_is_loaded_with_its_stream_open_and_the_answer_comes_on_that_of_the_connection() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Acp::begin(daemon.address());
    let (mut general, mut stream) = (client.stream(None), client.stream(Some("old")));
    client.say(Some("old"), &request(1, "session/load", json!({ "sessionId": "old", "replay": 2 })));
    assert_eq!([0, 1].map(|_| next(&mut stream)["params"]["replayed"].clone()), [json!(0), json!(1)]);
    assert_eq!(next(&mut general)["id"], 1);
    for at in 0..16 {
        let (_, answer) = client.open(Some(&format!("unknown-{at}")));
        assert!(answer.is_stream());
    }
    daemon.stop();
}

#[test]
fn each_refusal_has_its_status() {
    let daemon = door(shared(), json!({}));
    let mut client = Acp::begin(daemon.address());
    let id = client.id.clone();
    let known = [("Acp-Connection-Id", id.as_str())];
    let prompt = request(1, "session/prompt", json!({ "sessionId": "s" })).to_string();
    let list = request(1, "session/list", json!({})).to_string();
    let ask = |line: &str, fields: &[(&str, &str)], body: &str| {
        let mut other = Http::connect(daemon.address());
        other.send(line, fields, body);
        other.answer()
    };
    let status = |line: &str, fields: &[(&str, &str)], body: &str| ask(line, fields, body).status;
    assert_eq!(status("POST /acp", &[], &list), 400, "it names no connection");
    assert_eq!(status("POST /acp", &[("Acp-Connection-Id", "a.b")], &list), 404);
    assert_eq!(status("POST /acp", &[("Acp-Connection-Id", &id.replace('.', ".x"))], &list), 404);
    assert_eq!(status("POST /acp", &known, &initialize().to_string()), 400);
    assert_eq!(status("POST /acp", &known, &format!("[{list}]")), 501);
    assert_eq!(status("POST /acp", &[], &format!("[{}]", initialize())), 501);
    assert_eq!(status("POST /acp", &known, "{"), 400);
    assert_eq!(status("POST /acp", &known, &prompt), 400, "its head names no session");
    let other = [known[0], ("Acp-Session-Id", "t")];
    assert_eq!(status("POST /acp", &other, &prompt), 400);
    assert_eq!(status("POST /mcp", &known, &list), 404);
    assert_eq!(status("PUT /acp", &known, ""), 405);
    assert_eq!(status("GET /acp", &[], ""), 400);
    assert_eq!(status("GET /acp", &[("Acp-Connection-Id", "a.b")], ""), 404);
    assert_eq!(
        (status("DELETE /acp", &[], ""), status("DELETE /acp", &[("Acp-Connection-Id", "a.b")], "")),
        (400, 404)
    );
    let bytes = |text: String| {
        let mut other = Http::connect(daemon.address());
        other.send_bytes(text.as_bytes());
        other.answer().status
    };
    let head = format!("Host: localhost\r\nAcp-Connection-Id: {id}\r\n");
    assert_eq!(bytes(format!("GET /acp HTTP/1.1\r\n{head}Accept: application/json\r\n\r\n")), 406);
    assert_eq!(
        bytes(format!("POST /acp HTTP/1.1\r\n{head}Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{{}}")),
        415
    );
    assert_eq!(ask("GET /healthz", &[], "").status, 200);
    let _stream = client.stream(None);
    assert_eq!(client.open(None).1.status, 409, "it has a reader");
    let error = client.post(None, &initialize());
    assert_eq!((error.status, &error.json()["id"]), (400, &json!(0)));
    client.say(None, &request(9, "session/list", json!({})));
    daemon.logs(&["handshake_refused", "a request for ACP is refused: ", "(404)"]);
    daemon.stop();
}

#[test]
fn sixteen_streams_wait_for_sessions_that_nobody_has_named_and_no_more() {
    let daemon = door(shared(), json!({}));
    let mut client = Acp::begin(daemon.address());
    let mut general = client.stream(None);
    let _streams: Vec<Http> = (0..16).map(|at| client.stream(Some(&format!("unknown-{at}")))).collect();
    assert_eq!(client.open(Some("one-more")).1.status, 404);
    let session = client.session(&mut general, 1);
    let mut stream = client.stream(Some(&session));
    client.say(Some(&session), &request(2, "session/prompt", json!({ "sessionId": session })));
    assert_eq!(next(&mut stream)["id"], 2);
    daemon.stop();
}

#[test]
fn what_a_broken_stream_did_not_send_comes_on_the_next_one() {
    let daemon = door(shared(), json!({}));
    let mut client = Acp::begin(daemon.address());
    let mut general = client.stream(None);
    let session = client.session(&mut general, 1);
    for (number, is_reset) in [(1, true), (2, false)] {
        let stream = client.stream(Some(&session));
        if is_reset {
            stream.reset();
        } else {
            stream.half_close();
        }
        daemon.until("it is free again", || {
            let (other, answer) = client.open(Some(&session));
            if answer.is_stream() {
                other.reset();
            }
            answer.is_stream()
        });
        daemon.until("and again", || {
            let (mut other, answer) = client.open(Some(&session));
            if answer.is_stream() {
                let text = format!("{number}");
                client.say(Some(&session), &writes(10 + number, &[update(&session, &text)]));
                assert_eq!(next(&mut other)["params"]["update"], text.as_str());
                assert_eq!(next(&mut other)["id"], 10 + number);
                other.reset();
            }
            answer.is_stream()
        });
    }
    daemon.until("nobody reads", || {
        let (stream, answer) = client.open(Some(&session));
        drop(stream);
        answer.is_stream()
    });
    // This is said while nobody reads.
    client.say(None, &writes(20, &[update(&session, "meanwhile")]));
    assert_eq!(next(&mut general)["id"], 20);
    daemon.until("it is read", || {
        let (mut stream, answer) = client.open(Some(&session));
        answer.is_stream() && next(&mut stream)["params"]["update"] == "meanwhile"
    });
    daemon.stop();
}

#[test]
fn a_long_message_is_whole_on_a_slow_stream_and_after_it_broke() {
    let daemon = door_of(with_admin(Setup::new([dedicated()]).limit("max_input_buffer", 16 << 20)), json!({}));
    let mut client = Acp::begin(daemon.address());
    let mut general = client.stream(None).with_little_room();
    let session = client.session(&mut general, 1);
    let size = 5 << 20;
    client.say(None, &request(2, "big", json!({ "size": size })));
    // It is read in part, if at all.
    general.reset();
    let mut again = None;
    daemon.until("the stream is free", || {
        let (stream, answer) = client.open(None);
        again = Some(stream);
        answer.is_stream()
    });
    let mut general = again.expect("it is open");
    let answer = next(&mut general);
    assert_eq!((&answer["id"], answer["result"]["fill"].as_str().map(str::len)), (&json!(2), Some(size)));
    let long = "y".repeat(size);
    let mut stream = client.stream(Some(&session));
    client.say(Some(&session), &request(3, "session/prompt", json!({ "sessionId": session, "text": long })));
    assert_eq!(next(&mut stream)["result"]["echo"]["text"], long.as_str());
    let memory = || gauge(&daemon, "stdio_bus_memory_bytes");
    assert_eq!(client.delete(), 202);
    daemon.until("its memory is free", || clients(&daemon) == 0 && memory() < 1_000_000.0);
    daemon.stop();
}

#[test]
fn a_stream_that_is_not_read_holds_its_worker_back_and_ends_its_connection() {
    let setup = Setup::new([dedicated()]).limit("max_output_queue", 65_536).limit("backpressure_timeout_sec", 1);
    let daemon = door_of(with_admin(setup), json!({}));
    let mut client = Acp::begin(daemon.address());
    // Nobody reads what the worker says.
    client.say(None, &request(1, "flood", json!({ "lines": 1000, "size": 10_000 })));
    daemon.logs(&["reason=client_stalled"]);
    daemon.until("it is gone", || clients(&daemon) == 0);
    assert_eq!(client.post(None, &request(2, "m", json!({}))).status, 404);
    daemon.logs(&["events_lost"]);
    let mut other = Acp::begin(daemon.address());
    let mut general = other.stream(None);
    other.say(None, &request(1, "flood", json!({ "lines": 1000, "size": 10_000 })));
    let told = std::iter::from_fn(|| Some(next(&mut general))).take_while(|line| line["method"] == "tick").count();
    assert_eq!(told, 1000, "one that reads gets all, in order");
    daemon.stop();
}

#[test]
fn all_streams_end_with_the_clients_own_worker_and_its_requests_get_errors_first() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Acp::begin(daemon.address());
    let mut general = client.stream(None);
    let session = client.session(&mut general, 1);
    let mut stream = client.stream(Some(&session));
    client.say(Some(&session), &request(2, "hold", json!({})));
    client.say(None, &request(3, "die", json!({})));
    assert_eq!((next(&mut stream)["id"].clone(), next(&mut general)["id"].clone()), (json!(2), json!(3)));
    let rest = std::iter::from_fn(|| general.event()).map(|event| event.json()).collect::<Vec<_>>();
    assert!(rest.iter().all(|line| line["error"].is_object()) && stream.event().is_none(), "{rest:?}");
    assert_eq!(client.post(None, &request(4, "m", json!({}))).status, 404);
    daemon.until("it is gone", || clients(&daemon) == 0);
    daemon.stop();
}

#[test]
fn a_shutdown_waits_for_answers_and_ends_the_streams() {
    let mut daemon = door(with(worker("agents", 1, &["--answer-late"]), "assignment", "dedicated"), json!({}));
    let mut client = Acp::begin(daemon.address());
    let mut general = client.stream(None);
    let session = client.session(&mut general, 1);
    let mut stream = client.stream(Some(&session));
    client.say(Some(&session), &request(2, "hold", json!({})));
    daemon.signal(Signal::TERM);
    let answer = next(&mut stream);
    assert_eq!(answer["id"], 2, "{answer}");
    assert!(stream.events().is_empty());
    assert!(daemon.wait().success());
}

#[test]
fn a_connection_without_a_stream_ends_after_a_time() {
    let daemon = door_of(with_admin(Setup::new([dedicated()]).limit("session_detached_sec", 1)), json!({}));
    let kept = Acp::begin(daemon.address());
    let mut general = kept.stream(None);
    let mut lost = Acp::begin(daemon.address());
    lost.stream(None).reset();
    daemon.logs(&["reason=session_idle"]);
    daemon.until("one has gone", || clients(&daemon) == 1);
    assert_eq!(lost.post(None, &request(1, "m", json!({}))).status, 404);
    let mut kept = kept;
    kept.say(None, &request(1, "m", json!({})));
    assert_eq!(next(&mut general)["id"], 1, "a stream keeps its connection");
    daemon.stop();
}

/// A file of tokens, one line each.
fn tokens(setup: &Setup, lines: &[&str]) -> PathBuf {
    let path = setup.path("tokens");
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    path
}

#[test]
fn a_refused_upgrade_says_where_to_sign_in_as_a_refused_request_does() {
    let setup = with_admin(Setup::new([shared()]));
    let file = tokens(&setup, &["alice:secret-of-alice-1234567890"]);
    let oauth = json!({ "resource": "https://bus.example/acp", "authorization_servers": ["https://login.example"] });
    let daemon = door_of(setup, json!({ "tokens_file": file, "oauth": oauth, "hosts": ["bus.example"] }));
    let upgrade = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    for (line, fields) in [("POST /acp", &[][..]), ("GET /acp", &upgrade)] {
        let mut nobody = Http::connect(daemon.address());
        nobody.send(line, fields, "");
        let answer = nobody.answer();
        assert_eq!(answer.status, 401, "{answer:?}");
        let place = "https://bus.example/.well-known/oauth-protected-resource/acp";
        assert_eq!(answer.fields["www-authenticate"], format!("Bearer resource_metadata=\"{place}\""), "{line}");
    }
    daemon.stop();
}

#[test]
fn another_tokens_connection_is_unknown() {
    let setup = with_admin(Setup::new([shared()]));
    let file = tokens(&setup, &["alice:secret-of-alice-1234567890", "bob:secret-of-bob-123456789012"]);
    let daemon = door_of(setup, json!({ "tokens_file": file }));
    let bearer = |secret: &str| Http::connect(daemon.address()).with("Authorization", &format!("Bearer {secret}"));
    let mut nobody = Http::connect(daemon.address());
    nobody.send("POST /acp", &[], &initialize().to_string());
    assert_eq!(nobody.answer().status, 401);
    let mut alice = Acp::over(bearer("secret-of-alice-1234567890"));
    let mut bob = Acp::over(bearer("secret-of-bob-123456789012"));
    let own = std::mem::replace(&mut bob.id, alice.id.clone());
    bob.posts
        .fields
        .iter_mut()
        .filter(|(name, _)| name == "Acp-Connection-Id")
        .for_each(|(_, id)| id.clone_from(&alice.id));
    assert_eq!(bob.post(None, &request(1, "m", json!({}))).status, 404);
    assert_eq!((bob.open(None).1.status, bob.delete()), (404, 404));
    assert_ne!(own, alice.id);
    let mut general = alice.stream(None);
    alice.say(None, &request(1, "m", json!({})));
    assert_eq!(next(&mut general)["id"], 1);
    std::fs::write(daemon.path("tokens"), "bob:secret-of-bob-123456789012\n").unwrap();
    daemon.signal(Signal::HUP);
    let why = general.events();
    assert!(why.len() == 1 && why[0].json()["error"].is_object(), "it ends with its token, and says so: {why:?}");
    daemon.stop();
}

const ALICE: &str = "Bearer secret-of-alice-1234567890";
const BOB: &str = "Bearer secret-of-bob-123456789012";

/// A prepared daemon with one listener, where Alice and Bob have tokens.
fn start_with_tokens(folder: &TempDir, setup: Setup) -> Daemon {
    let file = folder.path().join("tokens");
    std::fs::write(&file, "alice:secret-of-alice-1234567890\nbob:secret-of-bob-123456789012\n").expect("it is ours");
    door_of(setup, json!({ "tokens_file": file }))
}

/// A session that Alice has begun and left.
fn session_of_alice(daemon: &Daemon) -> String {
    let mut alice = Acp::over(Http::connect(daemon.address()).with("Authorization", ALICE));
    let mut general = alice.stream(None);
    let session = alice.session(&mut general, 1);
    assert_eq!(alice.delete(), 202);
    session
}

/// Loads a session with a token, and leaves it. Returns the reason of the error, if it is refused.
fn loads(daemon: &Daemon, token: &str, session: &str) -> Value {
    let mut client = Acp::over(Http::connect(daemon.address()).with("Authorization", token));
    let mut general = client.stream(None);
    client.say(Some(session), &request(2, "session/load", json!({ "sessionId": session })));
    let reason = next(&mut general)["error"]["data"]["reason"].clone();
    assert_eq!(client.delete(), 202);
    reason
}

#[test]
fn a_session_is_loaded_by_its_owner_alone_after_a_restart_of_a_daemon_with_a_state() {
    let folder = TempDir::new().expect("a folder");
    let start =
        |state: &str| start_with_tokens(&folder, Setup::new([shared()]).set("state", json!(folder.path().join(state))));
    let daemon = start("state");
    let session = session_of_alice(&daemon);
    daemon.stop();
    let daemon = start("state");
    assert_eq!(loads(&daemon, BOB, &session), "session_denied");
    assert_eq!(loads(&daemon, ALICE, &session), Value::Null);
    assert_eq!(loads(&daemon, BOB, &session), "session_denied");
    daemon.stop();
    let daemon = start("another state");
    assert_eq!(loads(&daemon, BOB, &session), Value::Null, "without it nobody knows the owner");
    daemon.stop();
}

#[test]
fn a_session_is_loaded_by_its_owner_alone_after_a_start_without_its_pool_that_a_reload_adds() {
    let folder = TempDir::new().expect("a folder");
    let other = || worker("others", 1, &[]);
    let start = |pool: Value| {
        let setup = Setup::new([pool]).set("state", json!(folder.path().join("state")));
        start_with_tokens(&folder, with_admin(setup))
    };
    let daemon = start(shared());
    let session = session_of_alice(&daemon);
    daemon.stop();
    let daemon = start(other());
    assert_eq!(loads(&daemon, BOB, &session), Value::Null, "it is another pool, and may have a session of that name");
    reload(&daemon, |config| {
        config["pools"] = json!([shared(), other()]);
        config["listeners"][0]["pool"] = json!("agents");
    });
    assert_eq!(loads(&daemon, BOB, &session), "session_denied");
    assert_eq!(loads(&daemon, ALICE, &session), Value::Null);
    daemon.stop();
}

#[test]
fn a_session_is_loaded_by_its_owner_alone_after_a_reload_has_removed_its_pool_and_another_adds_it() {
    let folder = TempDir::new().expect("a folder");
    let start = || {
        let setup = Setup::new([shared()]).set("state", json!(folder.path().join("state")));
        start_with_tokens(&folder, with_admin(setup))
    };
    let remove = |daemon: &Daemon| {
        reload(daemon, |config| config["pools"] = json!([worker("others", 1, &[])]));
        let workers = || Admin::of(daemon).get("/workers.json").body;
        daemon.until("its worker has ended", || !workers().contains("agents"));
    };
    let daemon = start();
    let session = session_of_alice(&daemon);
    remove(&daemon);
    daemon.stop();
    let daemon = start();
    assert_eq!(loads(&daemon, BOB, &session), "session_denied", "a start has added it");
    remove(&daemon);
    // That gets its place.
    reload(&daemon, |config| config["pools"] = json!([worker("third", 1, &[])]));
    assert_eq!(loads(&daemon, BOB, &session), Value::Null, "it is another pool, and may have a session of that name");
    reload(&daemon, |config| config["pools"] = json!([shared()]));
    assert_eq!(loads(&daemon, BOB, &session), "session_denied", "a reload has added it");
    assert_eq!(loads(&daemon, ALICE, &session), Value::Null);
    daemon.stop();
}

#[test]
fn a_page_reaches_it_only_from_its_origins_and_may_read_the_answers() {
    let daemon = door(shared(), json!({ "origins": ["https://app.example"] }));
    let page = |origin: &str| Http::connect(daemon.address()).with("Origin", origin);
    let mut stranger = page("https://evil.example");
    stranger.send("POST /acp", &[], &initialize().to_string());
    assert_eq!(stranger.answer().status, 403);
    let mut rebound = Http::connect(daemon.address());
    rebound.send_bytes(b"GET /acp HTTP/1.1\r\nHost: evil.example\r\nAccept: text/event-stream\r\n\r\n");
    assert_eq!(rebound.answer().status, 403);
    let mut own = page("https://app.example");
    own.send("OPTIONS /acp", &[("Access-Control-Request-Method", "POST")], "");
    let allowed = own.answer();
    assert_eq!(allowed.status, 204);
    assert!(
        allowed.fields["access-control-allow-headers"].contains("Acp-Connection-Id, Acp-Session-Id"),
        "{allowed:?}"
    );
    own.send("POST /acp", &[], &initialize().to_string());
    let begun = own.answer();
    assert_eq!(begun.fields["access-control-allow-origin"], "https://app.example");
    assert_eq!(begun.fields["access-control-expose-headers"], "Acp-Connection-Id");
    daemon.stop();
}

#[test]
fn an_upgrade_at_the_same_path_is_a_websocket() {
    let daemon = door(shared(), json!({}));
    let mut client = Acp::begin(daemon.address());
    let mut socket = Http::connect(daemon.address());
    socket.send_bytes(format!("{UPGRADE}\r\n").as_bytes());
    let answer = socket.head();
    assert_eq!(answer.status, 101);
    assert_ne!(answer.fields["acp-connection-id"], client.id);
    daemon.until("both are clients", || clients(&daemon) == 2);
    // Another one on a connection that has posted.
    client.posts.send_bytes(format!("{UPGRADE}\r\n").as_bytes());
    assert_eq!(client.posts.head().status, 101);
    daemon.until("all are clients", || clients(&daemon) == 3);
    let mut wrong = Http::connect(daemon.address());
    wrong.send_bytes(format!("{}\r\n", UPGRADE.replace("Version: 13", "Version: 12")).as_bytes());
    let answer = wrong.answer();
    assert_eq!((answer.status, answer.fields["sec-websocket-version"].as_str()), (426, "13"));
    daemon.logs(&["handshake_refused", "a WebSocket is refused"]);
    daemon.stop();
}

#[test]
fn a_connection_whose_initialize_is_abandoned_or_refused_is_none() {
    let silent = json!({ "id": "silent", "command": "sleep", "args": ["600"], "instances": 1, "assignment": "client" });
    let daemon = door(silent, json!({}));
    let mut client = Http::connect(daemon.address());
    client.send("POST /acp", &[], &initialize().to_string());
    daemon.until("it has begun", || clients(&daemon) == 1);
    client.reset();
    daemon.until("nobody knows it", || clients(&daemon) == 0);
    daemon.stop();
}

#[test]
fn sixteen_clients_at_once_get_their_own() {
    let daemon = door(shared(), json!({}));
    let address = daemon.address();
    let pids = std::thread::scope(|scope| {
        let all: Vec<_> = (0..16)
            .map(|number| {
                scope.spawn(move || {
                    let mut client = Acp::begin(address);
                    let mut general = client.stream(None);
                    let session = client.session(&mut general, 1);
                    let mut stream = client.stream(Some(&session));
                    for id in 2..20 {
                        let prompt = json!({ "sessionId": session, "number": number });
                        client.say(Some(&session), &request(id, "session/prompt", prompt));
                        let answer = next(&mut stream);
                        assert_eq!((&answer["id"], &answer["result"]["echo"]["number"]), (&json!(id), &json!(number)));
                    }
                    assert_eq!(client.delete(), 202);
                    session
                })
            })
            .collect();
        all.into_iter().map(|client| client.join().expect("it got its own")).collect::<BTreeSet<_>>()
    });
    assert_eq!(pids.len(), 16);
    daemon.until("all are gone", || clients(&daemon) == 0);
    daemon.stop();
}

#[test]
fn a_connection_without_a_stream_gives_way_when_all_are_taken_and_one_with_a_stream_does_not() {
    // The sockets of requests are counted in the same way: two for the one that is used, and one for the last.
    let daemon = door(shared(), json!({ "max_connections": { "total": 3 } }));
    let idle = [(); 2].map(|()| {
        let client = Acp::begin(daemon.address());
        (client.posts.reset(), client.id).1
    });
    let mut used = Acp::begin(daemon.address());
    let mut general = used.stream(None);
    let mut other = Acp::begin(daemon.address());
    daemon.logs(&["reason=session_evicted", &idle[0]]);
    used.say(None, &request(1, "m", json!({})));
    assert_eq!(next(&mut general)["id"], 1);
    other.say(None, &request(1, "m", json!({})));
    daemon.stop();
}

#[test]
fn behind_a_proxy_that_sends_headers_both_transports_work() {
    let daemon = door(shared(), json!({ "proxy": { "from": ["127.0.0.1"] }, "hosts": ["localhost"] }));
    let header = "PROXY TCP4 192.0.2.7 192.0.2.1 1234 9000\r\n";
    let body = initialize().to_string();
    let mut client = Http::connect(daemon.address());
    client.send_bytes(
        format!(
            "{header}POST /acp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .as_bytes(),
    );
    assert_eq!(client.answer().status, 200);
    let mut socket = Http::connect(daemon.address());
    socket.send_bytes(format!("{header}{UPGRADE}\r\n").as_bytes());
    assert_eq!(socket.head().status, 101);
    daemon.until("both are clients", || clients(&daemon) == 2);
    daemon.logs_times("from=192.0.2.7:1234", 2);
    daemon.stop();
}

#[test]
fn messages_on_one_socket_are_taken_in_order_though_none_is_waited_for() {
    let daemon = door(dedicated(), json!({}));
    let mut client = Acp::begin(daemon.address());
    let mut general = client.stream(None);
    for id in 1..=100 {
        client.posts.send("POST /acp", &[], &request(id, "m", json!({ "number": id })).to_string());
    }
    for id in 1..=100 {
        assert_eq!(client.posts.answer().status, 202);
        let answer = next(&mut general);
        assert_eq!((&answer["id"], &answer["result"]["echo"]["number"]), (&json!(id), &json!(id)));
    }
    daemon.stop();
}

#[test]
fn a_stream_of_http_1_0_ends_with_its_socket() {
    let daemon = door(shared(), json!({}));
    let mut client = Acp::begin(daemon.address());
    let mut old = Http::connect(daemon.address());
    let head = format!("Host: localhost\r\nAccept: text/event-stream\r\nAcp-Connection-Id: {}\r\n", client.id);
    old.send_bytes(format!("GET /acp HTTP/1.0\r\n{head}\r\n").as_bytes());
    let answer = old.head();
    assert!(answer.is_stream() && !answer.fields.contains_key("transfer-encoding"), "{answer:?}");
    client.say(None, &request(1, "m", json!({})));
    let mut rest = Answer { body: String::new(), ..answer };
    rest.fields.insert("content-length".to_owned(), "20".to_owned());
    old.read_body(&mut rest);
    assert_eq!(rest.body, "event: message\ndata:");
    assert_eq!(client.delete(), 202);
    daemon.until("it is gone", || clients(&daemon) == 0);
    daemon.stop();
}

#[test]
fn a_listener_that_is_removed_keeps_its_connections_and_takes_no_new_ones() {
    let daemon = door(shared(), json!({}));
    let mut client = Acp::begin(daemon.address());
    let mut general = client.stream(None);
    let address = daemon.address();
    let path = daemon.path("config.json");
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    config["listeners"] = json!([{ "unix": daemon.path("sock") }]);
    std::fs::write(&path, config.to_string()).unwrap();
    daemon.signal(Signal::HUP);
    daemon.until("it is closed", || std::net::TcpStream::connect(address).is_err());
    client.say(None, &request(1, "m", json!({})));
    assert_eq!(next(&mut general)["id"], 1);
    daemon.stop();
}

#[test]
fn the_commands_connect_to_its_url() {
    let daemon = door(shared(), json!({}));
    let url = format!("http://{}/acp", daemon.address());
    let call = ["call", "--connect", &url, "hello", r#"{"a":1}"#];
    let (status, said) = run_to_its_end(Command::new(program()).args(call));
    assert!(status.success() && said.contains(r#""echo":{"a":1}"#), "{said}");
    daemon.stop();
}
