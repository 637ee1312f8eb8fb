//! The cost of one greedy client or source to the others: they get their answers, whatever it floods, fills or breaks.
//! Nothing here is judged by the clock. Answers and lines are counted, and anything that a greedy client delays would be
//! delayed for longer than the harness waits.

use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Daemon, SetAtTheEnd, Setup, complaints, echo, seconds_go_by, skip, until, with, worker};
use crate::http::{Http, request};
use crate::mcp::{VERSION, door_of, modern, post_modern};

// A client that never reads, or hardly ever.

/// Requests far more output than its queue holds.
fn floods_itself(client: &mut Client, session: &str, lines: usize) {
    client.ask_in(session, 1, "flood", json!({ "lines": lines, "size": 500 }));
}

/// One worker for all, and a timeout of stalled readers that no test waits for.
fn patient() -> Setup {
    let setup = Setup::new([worker("agents", 1, &[])]).limit("max_output_queue", 100_000);
    setup.limit("backpressure_timeout_sec", 600).unix()
}

#[test]
fn clients_that_never_read_do_not_delay_others_on_their_worker() {
    let mut daemon = patient().start();
    let mut polite = daemon.connect();
    let pid = polite.request_in("polite", 0, "who", json!({}))["result"]["pid"].clone();
    let mut deaf: Vec<Client> = (0..6).map(|_| daemon.connect()).collect();
    for (number, client) in deaf.iter_mut().enumerate() {
        floods_itself(client, &format!("s{number}"), 5000);
    }
    for id in 0..50 {
        assert_eq!(polite.request(id, "who", json!({}))["result"]["pid"], pid);
    }
    daemon.logs(&["WARN", "client_slow"]);
    for client in &mut deaf {
        let got = client.rest();
        assert!(got.len() < 5000 * 500, "it is the slow one that is closed");
    }
    assert_eq!(polite.request(99, "who", json!({}))["result"]["pid"], pid);
    daemon.stop();
}

#[test]
fn a_client_that_reads_a_few_bytes_now_and_then_does_not_delay_others() {
    let mut daemon = patient().start();
    let (mut polite, mut slow) = (daemon.connect(), daemon.connect());
    polite.request_in("polite", 0, "who", json!({}));
    floods_itself(&mut slow, "slow", 20_000);
    daemon.until("the flood has begun", || slow.has_something());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until("the polite client has its answers", || {
                // Some bytes each time: it is slow, but never stalls.
                let _ = slow.fill(64);
                done.load(Ordering::Relaxed)
            });
        });
        let _end = SetAtTheEnd(&done);
        for id in 0..50 {
            polite.request(id, "who", json!({}));
        }
    });
    daemon.stop();
}

// Connections.

#[test]
fn a_thousand_silent_connections_make_room_for_active_ones() {
    let mut daemon = Setup::new([echo("echo", 1)]).unix().start();
    let path = daemon.path("socket");
    let silent: Vec<UnixStream> = (0..1024).map(|_| UnixStream::connect(&path).expect("the daemon listens")).collect();
    let mut newcomers: Vec<Client> = (0..20).map(|_| daemon.connect()).collect();
    newcomers.iter_mut().for_each(|client| client.ask(1, "m", json!({})));
    for client in &mut newcomers {
        assert!(client.answer(1)["result"].is_object());
    }
    daemon.logs(&["reason=client_idle"]);
    drop(silent);
    daemon.stop();
}

/// Clients that connect, send requests and leave while the daemon is stopped: all are there when it resumes.
const STORM: usize = 900;

#[test]
fn a_storm_of_connections_does_not_delay_an_earlier_client() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).unix().start();
    let mut polite = daemon.connect();
    polite.request(1, "m", json!({}));
    daemon.stand_still();
    let mut storm: Vec<Client> = (0..STORM).map(|_| daemon.connect()).collect();
    storm.iter_mut().for_each(|client| client.ask(1, "m", json!({})));
    polite.ask(2, "m", json!({}));
    daemon.signal(Signal::CONT);
    let before = polite.answer(2)["result"]["line"].as_u64().expect("a number");
    assert!(before < STORM as u64 / 4, "{before} lines of the storm went first");
    for client in &mut storm {
        client.answer(1);
    }
    daemon.stop();
}

#[test]
fn clients_that_all_leave_at_once_do_not_delay_the_one_that_stays() {
    /// This many leave before it sends its request, and the others afterwards.
    const EARLIER: usize = STORM / 4;
    // The worker gets a line for each client that leaves, and reports how many it has read.
    let pool = with(worker("agents", 1, &[]), "cancel_on_disconnect", true);
    let mut daemon = Setup::new([pool]).unix().start();
    let mut polite = daemon.connect();
    let line = |answer: Value| answer["result"]["line"].as_u64().expect("a number");
    let mut crowd: Vec<Client> = (0..STORM).map(|_| daemon.connect()).collect();
    for (number, client) in crowd.iter_mut().enumerate() {
        client.ask_in(&format!("session-{number}"), 1, "hold", json!({}));
    }
    daemon.until("all of them wait", || polite.request(1, "who", json!({}))["result"]["held"] == STORM);
    let open = daemon.descriptors();
    let last = line(polite.request(2, "m", json!({})));
    daemon.stand_still();
    let later = crowd.split_off(EARLIER);
    drop(crowd);
    polite.ask(3, "m", json!({}));
    drop(later);
    daemon.signal(Signal::CONT);
    let before = line(polite.answer(3)) - last - 1;
    // A turn processes events in order: only clients that left before its request may be ahead of it.
    assert!(before <= EARLIER as u64, "{before} of {STORM} that leave went first");
    daemon.until("they are closed", || daemon.descriptors() <= open - STORM);
    let told = line(polite.request(4, "m", json!({}))) - last - 2;
    assert_eq!(told, STORM as u64, "the worker hears of each of them");
    // Nothing of them is left: the answers are dropped, and their sessions are free for others.
    polite.request(3, "release", json!({}));
    for number in 0..STORM {
        let answer = polite.request_in(&format!("session-{number}"), 4, "m", json!({}));
        assert!(answer["result"].is_object(), "{answer}");
    }
    daemon.stop();
}

#[test]
fn a_thousand_requests_that_fail_at_once_are_more_than_the_ring_takes_and_each_gets_its_error() {
    // With the worker's own, as many operations as the ring has entries. One slot stays free: if all were taken, a
    // client that is idle for long would be evicted.
    const CLIENTS: usize = 1023;
    let mut daemon = Setup::new([worker("agents", 1, &[])]).unix().start();
    let asks = |_| {
        let mut client = daemon.connect();
        client.ask(1, "hold", json!({}));
        client
    };
    let mut crowd: Vec<Client> = (0..CLIENTS).map(asks).collect();
    daemon.until("all of them wait", || crowd[0].request(2, "who", json!({}))["result"]["held"] == CLIENTS);
    crowd[0].ask(3, "die", json!({}));
    for (number, client) in crowd.iter_mut().enumerate() {
        client.error(1, "worker_exited");
        if number == 0 {
            client.error(3, "worker_exited");
        }
    }
    daemon.until("there is another worker", || crowd[1].request(4, "m", json!({}))["result"].is_object());
    crowd.iter_mut().for_each(|client| client.ask(5, "m", json!({})));
    for client in &mut crowd {
        client.answer(5);
    }
    daemon.stop();
}

#[test]
fn clients_that_send_more_at_once_than_there_are_buffers_are_all_read() {
    /// The size of one buffer: the next line is there when it was read.
    const LINE: usize = 16 * 1024;
    const LINES: usize = 3;
    let mut daemon = Setup::new([echo("echo", 8)]).unix().start();
    let mut crowd: Vec<Client> = (0..300).map(|_| daemon.connect()).collect();
    crowd.iter_mut().for_each(|client| drop(client.request(9, "m", json!({}))));
    daemon.stand_still();
    for client in &mut crowd {
        for id in 0..LINES {
            let empty = json!({ "id": id, "method": "m", "params": { "fill": "" } }).to_string().len() + 1;
            client.send(&json!({ "id": id, "method": "m", "params": { "fill": "x".repeat(LINE - empty) } }));
        }
    }
    daemon.signal(Signal::CONT);
    for client in &mut crowd {
        let mut ids: Vec<u64> = (0..LINES).map(|_| client.message()["id"].as_u64().expect("a number")).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..LINES as u64).collect::<Vec<_>>());
    }
    let outcome = daemon.stop();
    assert!(complaints(&outcome.stderr).is_empty(), "{}", outcome.stderr);
}

// Workers that cannot be started, and clients that cannot be accepted, for lack of processes or descriptors.

/// Makes a process count as one of this user, who is bound to this limit of processes, with root's rights otherwise.
fn of_user_with_processes(user: u32, most: u64) -> impl FnMut() -> std::io::Result<()> + Send + Sync {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    move || {
        // Drops CAP_SYS_ADMIN and CAP_SYS_RESOURCE (capabilities(7)), which lift the limit. SAFETY: the calls take
        // numbers, and `limit` lives in this closure.
        let done = unsafe {
            [21, 24].into_iter().all(|capability| libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) == 0)
                && libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) == 0
                && libc::setresuid(user, 0, 0) == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}

#[test]
fn a_worker_that_could_not_start_for_lack_of_processes_starts_later_while_others_run() {
    // SAFETY: geteuid(2) cannot fail and takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        return skip("only root can become another user");
    }
    let user = 60_000 + std::process::id() % 5_000;
    let mut another = Command::new("cat");
    // SAFETY: the closure only makes system calls.
    unsafe { another.pre_exec(of_user_with_processes(user, 3)) };
    let mut another = another.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("there is cat");
    // This one, the daemon with its two threads that start workers, and one of the two workers.
    let setup = Setup::new([worker("calm", 1, &[]), worker("agents", 1, &[])]).limit("max_restarts", 1);
    let mut daemon = setup.before_exec(of_user_with_processes(user, 5)).start();
    let mut client = daemon.connect();
    let ask = |client: &mut Client, pool: &str| {
        client.send(&json!({ "id": 1, "method": "who", "pool": pool }));
        client.answer(1)
    };
    // A kernel thread that writes the log may count, too, for some seconds: then the first worker is not the one that
    // runs.
    let mut running = None;
    daemon.until("one worker runs", || {
        running = ["calm", "agents"].into_iter().find(|pool| ask(&mut client, pool)["result"].is_object());
        running.is_some()
    });
    let other = if running == Some("calm") { "agents" } else { "calm" };
    let line = daemon.logs(&["ERROR", "spawn_failed", &format!("{other}/")]);
    assert!(line.contains("Resource temporarily unavailable") && line.contains("raise TasksMax="), "{line}");
    assert_eq!(ask(&mut client, other)["error"]["data"]["reason"], "no_worker");
    drop(another.stdin.take());
    another.wait().expect("it is our child");
    daemon.until("the other worker runs", || ask(&mut client, other)["result"].is_object());
    let outcome = daemon.stop();
    assert!(!outcome.stderr.contains("pool_degraded"), "{}", outcome.stderr);
}

#[test]
fn clients_that_connect_without_a_free_descriptor_wait_for_one() {
    let mut daemon = Setup::new([echo("echo", 1)]).unix().start();
    let mut client = daemon.connect();
    client.request(1, "m", json!({}));
    let before = getrlimit(Resource::Nofile).current.unwrap_or(4096);
    // Fewer than are open: open ones stay open.
    set_descriptors(&daemon, 3);
    let since = Instant::now();
    let mut late: Vec<Client> = (0..50).map(|_| daemon.connect()).collect();
    late.iter_mut().for_each(|client| client.ask(1, "m", json!({})));
    let line = daemon.logs(&["ERROR", "accept_paused"]);
    assert!(line.contains("(os error 24)") && line.contains("raise RLIMIT_NOFILE"), "{line}");
    let used = daemon.ticks();
    seconds_go_by(2);
    assert!(daemon.ticks() - used <= 20, "it tries now and then, and not all the time");
    client.request(2, "m", json!({}));
    let log = daemon.log();
    let told = log.matches("accept_paused").count() as u64;
    assert!(told <= 1 + since.elapsed().as_secs() / 10, "once in ten seconds: {log}");
    set_descriptors(&daemon, before);
    for client in &mut late {
        client.answer(1);
    }
    daemon.stop();
}

/// Sets the daemon's limit of descriptors.
fn set_descriptors(daemon: &Daemon, current: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let process = Pid::from_raw(daemon.pid() as i32);
    prlimit(process, Resource::Nofile, Rlimit { current: Some(current), maximum }).expect("it is our child");
}

#[test]
fn a_worker_that_could_not_start_for_lack_of_descriptors_starts_when_there_are_some() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).limit("max_restarts", 1).start();
    let mut client = daemon.connect();
    client.request(1, "who", json!({}));
    let before = getrlimit(Resource::Nofile).current.unwrap_or(4096);
    set_descriptors(&daemon, 3);
    client.ask(2, "exit", json!({ "code": 1 }));
    client.error(2, "worker_exited");
    daemon.logs_times("spawn_failed", 2);
    set_descriptors(&daemon, before);
    daemon.until("the worker runs", || client.request(3, "who", json!({}))["result"].is_object());
    let outcome = daemon.stop();
    assert!(!outcome.stderr.contains("pool_degraded"), "{}", outcome.stderr);
}

// Floods of a slow worker.

/// Lets a client flood a worker that takes 0.2 ms per line, and counts a polite client's answers by the lines that the
/// worker has read meanwhile.
fn shares_a_slow_worker(flood: &Value) {
    const LINES: u64 = 10_000;
    let mut daemon = Setup::new([worker("slow", 1, &["--slow", "200"])]).unix().start();
    let (mut polite, flooder) = (daemon.connect(), daemon.connect());
    let line = |client: &mut Client| client.request(1, "m", json!({}))["result"]["line"].as_u64().expect("a number");
    let first = line(&mut polite);
    let (flooding, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut writer = flooder.second();
    let mut reader = flooder;
    let mut answers = 0;
    let bytes = format!("{flood}\n").repeat(100);
    std::thread::scope(|scope| {
        let _end = SetAtTheEnd(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) && writer.try_send(bytes.as_bytes()).is_ok() {
                flooding.store(true, Ordering::Relaxed);
            }
            // The end of its input.
            writer.half_close();
        });
        if flood.get("id").is_some() {
            scope.spawn(|| while reader.message_or_end().is_some() {});
        }
        until("the flood has begun", || flooding.load(Ordering::Relaxed));
        while line(&mut polite) < first + LINES {
            answers += 1;
        }
        // It is not waited for: its lines would keep the worker busy for long.
        done.store(true, Ordering::Relaxed);
        daemon.signal(Signal::TERM);
    });
    // Queued behind the flood, one answer would take some 40,000 lines. With turns it takes about a hundred; on a busy
    // machine the worker reads on while the polite client waits for a CPU.
    assert!(answers >= 5, "{answers} answers while the worker read {LINES} lines");
    daemon.ends_well();
}

#[test]
fn a_flood_of_notifications_takes_turns_with_the_others_before_a_slow_worker() {
    shares_a_slow_worker(&json!({ "method": "n", "params": { "fill": "x".repeat(60) } }));
}

// What one source can hold of an `http` listener: its connections and its clients' slots are shared by source, and who
// holds most gives way, of what waits for an answer as of what is idle.

const ALICE: &str = "Bearer 0123456789abcdef";
const BOB: &str = "Bearer fedcba9876543210";

/// A daemon for alice and bob, with a worker that keeps what it reads and answers no `hold`.
fn door_for_two(max_connections: Value) -> Daemon {
    let setup = Setup::new([with(worker("tools", 1, &["--keep"]), "assignment", "client")]);
    let path = setup.path("tokens");
    std::fs::write(&path, "alice:0123456789abcdef\nbob:fedcba9876543210\n").unwrap();
    let keys = json!({ "tokens_file": path });
    door_of(setup, if max_connections.is_null() { keys } else { with(keys, "max_connections", max_connections) })
}

fn of(daemon: &Daemon, token: &str) -> Http {
    Http::connect(daemon.address()).with("Authorization", token)
}

/// A session of this client.
fn begin(daemon: &Daemon, token: &str) -> Http {
    let mut client = of(daemon, token);
    let answer = client.ask(&request(0, "initialize", json!({ "protocolVersion": VERSION })));
    assert_eq!(answer.status, 200, "{answer:?}");
    let id = answer.fields["mcp-session-id"].clone();
    client.with("Mcp-Session-Id", &id)
}

/// Connections of a session, each with a request that is with the worker and waits.
fn wait_for_answers(daemon: &Daemon, session: &mut Http, ids: std::ops::Range<u64>) -> Vec<Http> {
    let mut waiting: Vec<Http> = ids.clone().map(|_| session.again()).collect();
    // One after the other: of requests that are read in the same turn none is the newest.
    for ((client, id), count) in waiting.iter_mut().zip(ids.clone()).zip(1..) {
        client.post(&request(id, "hold", json!({})));
        daemon.until("it is with the worker", || kept(session, ids.end).matches("\\\"hold\\\"").count() >= count);
    }
    waiting
}

/// What the worker has read.
fn kept(session: &mut Http, id: u64) -> String {
    session.call(id, "kept", json!({})).to_string()
}

/// Checks that the request with this id that waits on a connection gets the error of one that was given up.
fn is_given_up(client: &mut Http, id: u64) {
    let answer = client.answer();
    // After a while without an answer the response is a stream.
    let error = match answer.is_stream() {
        true => client.events().pop().expect("an error").json(),
        false => {
            assert_eq!((answer.status, answer.fields["retry-after"].as_str()), (429, "1"), "{answer:?}");
            answer.json()
        }
    };
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!(id), &json!(-32019)), "{error}");
    assert_eq!(error["error"]["data"], json!({ "reason": "connection_limit", "delivered": true }));
}

#[test]
fn a_source_whose_requests_take_all_connections_gives_its_newest_one_up_for_another_source() {
    let daemon = door_for_two(json!({ "total": 12 }));
    let mut bob = begin(&daemon, BOB);
    let mut session = begin(&daemon, ALICE);
    let mut waiting = wait_for_answers(&daemon, &mut session, 1..11);
    let mut other = bob.again();
    assert_eq!(other.call(1, "m", json!({}))["id"], 1, "it has got the place of an idle connection");
    let mut another = bob.again();
    assert_eq!(another.call(2, "m", json!({}))["id"], 2);
    is_given_up(&mut waiting.pop().expect("there are ten"), 10);
    assert_eq!(bob.call(3, "m", json!({}))["id"], 3, "his idle connection was not the price");
    daemon.until("the worker is notified", || kept(&mut bob, 9).contains("notifications/cancelled"));
    daemon.logs(&["WARN", "reason=connection_limit", "a request for MCP is given up: "]);
    daemon.stop();
}

#[test]
fn a_source_above_its_share_is_refused_and_none_of_its_requests_is_cut_off_and_health_is_answered() {
    let daemon = door_for_two(json!({ "total": 6 }));
    let mut session = begin(&daemon, ALICE);
    let mut waiting = wait_for_answers(&daemon, &mut session, 1..6);
    // Its idle connection goes first.
    waiting.push(session.again());
    waiting[5].post(&request(6, "hold", json!({})));
    assert!(session.is_closed());
    for id in 7..9 {
        let refused = session.again().ask(&request(id, "m", json!({})));
        assert_eq!((refused.status, refused.fields.contains_key("retry-after")), (429, true), "{refused:?}");
        assert_eq!(refused.json()["error"]["data"]["reason"], "connection_limit");
    }
    let mut health = Http::connect(daemon.address());
    health.send("GET /healthz", &[], "");
    assert_eq!(health.answer().status, 200);
    let mut bob = begin(&daemon, BOB);
    is_given_up(&mut waiting.pop().expect("there are six"), 6);
    assert_eq!(bob.call(1, "release", json!({}))["id"], 1);
    for (client, id) in waiting.iter_mut().zip(1..) {
        let answer = client.answer();
        let answer = if answer.is_stream() { client.events().pop().expect("it").json() } else { answer.json() };
        assert_eq!((&answer["id"], answer["result"].is_object()), (&json!(id), true), "the others have their answers");
    }
    daemon.stop();
}

#[test]
fn the_limit_of_a_source_counts_its_connections_and_closes_an_idle_one_of_its_own_first() {
    let daemon = door_for_two(json!({ "per_source": 2 }));
    let mut session = begin(&daemon, ALICE);
    let mut second = session.again();
    assert_eq!(second.call(1, "m", json!({}))["id"], 1);
    let mut third = session.again();
    third.post(&request(2, "hold", json!({})));
    assert!(session.is_closed(), "the one that was idle longest");
    second.post(&request(3, "hold", json!({})));
    let mut bob = begin(&daemon, BOB);
    daemon.until("both wait", || kept(&mut bob, 9).matches("\\\"hold\\\"").count() >= 2);
    let refused = second.again().ask(&request(4, "m", json!({})));
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.body.contains("2 connections from one source"), "{refused:?}");
    daemon.stop();
}

#[test]
fn a_request_whose_body_does_not_arrive_gives_way_to_a_whole_one_of_the_same_source() {
    for limit in ["per_source", "total"] {
        let daemon = door_for_two(json!({ (limit): 2 }));
        let session = begin(&daemon, ALICE);
        let mut halves: Vec<Http> = (0..2).map(|_| session.again()).collect();
        halves.iter_mut().for_each(|half| half.uploads(&request(1, "m", json!({}))));
        let ask = || session.again().ask(&request(1, "m", json!({}))).status == 200;
        daemon.until("one of them gives way", ask);
        let given_up = halves[0].answer();
        assert_eq!(
            (given_up.status, &given_up.json()["error"]["data"]["delivered"]),
            (429, &json!(false)),
            "the oldest"
        );
        daemon.stop();
    }
}

#[test]
fn sessions_of_one_source_do_not_take_a_listener_from_the_others() {
    let daemon = door_for_two(json!({ "total": 4 }));
    let first = begin(&daemon, ALICE);
    let _others: Vec<Http> = (0..3).map(|_| begin(&daemon, ALICE)).collect();
    let mut bob = begin(&daemon, BOB);
    assert_eq!(bob.call(1, "m", json!({}))["id"], 1);
    assert_eq!(first.again().ask(&request(1, "m", json!({}))).status, 404, "it was idle longest");
    daemon.logs(&["reason=session_evicted"]);
    daemon.stop();
}

#[test]
fn while_one_source_holds_the_slots_with_requests_that_wait_no_idle_session_of_another_is_the_price() {
    let daemon = door_for_two(Value::Null);
    let mut honest: Vec<Http> = (0..4).map(|_| begin(&daemon, BOB)).collect();
    let mut waiting: Vec<Http> = (0..1020).map(|_| of(&daemon, ALICE)).collect();
    for (client, id) in waiting.iter_mut().zip(1000..) {
        post_modern(client, &modern(id, "hold", json!({})));
    }
    let mut refused = of(&daemon, ALICE);
    daemon.until("it holds all slots", || {
        post_modern(&mut refused, &modern(1, "m", json!({})));
        let answer = refused.answer();
        let is_refused = answer.status == 429;
        if is_refused || answer.fields.contains_key("connection") {
            refused = of(&daemon, ALICE);
        }
        if !is_refused {
            // It was read before one of those that wait, which was refused then: another one takes that slot.
            let mut one_more = of(&daemon, ALICE);
            post_modern(&mut one_more, &modern(2, "hold", json!({})));
            waiting.push(one_more);
        }
        is_refused
    });
    let new: Vec<Http> = (0..3).map(|_| begin(&daemon, BOB)).collect();
    for (number, client) in honest.iter_mut().enumerate() {
        assert_eq!(client.call(1, "m", json!({}))["id"], 1, "{number}");
    }
    drop(new);
    let log = daemon.stop().stderr;
    assert!(log.contains("a request for MCP is given up: "), "{log}");
    let is_the_price = |line: &str| line.contains("session_evicted") && line.contains("token=bob");
    assert!(!log.lines().any(is_the_price), "{log}");
}
