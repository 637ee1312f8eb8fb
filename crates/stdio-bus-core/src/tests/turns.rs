//! Turns for a shared worker, slow readers, and eviction when slots run out (decisions 12, 23).

use super::*;
use crate::port::Source;

impl Bench {
    fn client_from(&mut self, address: u8) -> Peer {
        let source = Source::Address([address; 16]);
        Peer::Client(self.connect(0, source).expect("there is room"))
    }

    /// The worker has this many bytes in its pipe from now on.
    fn leaves_unread(&mut self, worker: Peer, bytes: usize) {
        self.wire(worker).unread = bytes;
    }
}

fn note(letter: &str, length: usize) -> String {
    format!(r#"{{"method":"x","params":"{}"}}"#, letter.repeat(length))
}

/// A worker that reads nothing, and a client that has sent it more than allowed at once.
fn flooded() -> (Bench, Peer, Peer) {
    let mut bench = bench(1);
    let (flooder, worker) = (bench.client(), bench.worker(0));
    bench.client();
    bench.leaves_unread(worker, 1 << 30);
    let mut sent = 0;
    while !bench.is_paused(flooder) {
        bench.write(flooder, &note("f", 200));
        sent += 1;
        assert!(sent < 1000, "an unread flood is held back");
    }
    bench.read(worker);
    (bench, flooder, worker)
}

#[test]
fn the_first_line_of_another_client_does_not_wait_behind_a_flood() {
    let (mut bench, flooder, worker) = flooded();
    let polite = bench.client();
    bench.write(polite, &note("p", 10));
    assert_eq!(bench.read_one(worker), note("p", 10));
    bench.write(polite, &note("q", 10));
    assert!(bench.is_paused(polite) && bench.is_paused(flooder), "its second one has to wait");
}

#[test]
fn a_clients_first_line_does_not_wait_for_its_predecessors_in_the_slot() {
    let (mut bench, flooder, worker) = flooded();
    bench.breaks(flooder);
    bench.gone(flooder);
    let newcomer = bench.client();
    bench.write(newcomer, &note("n", 10));
    assert_eq!(bench.read_one(worker), note("n", 10));
}

#[test]
fn waiting_clients_continue_in_turns_when_the_worker_reads() {
    let (mut bench, flooder, worker) = flooded();
    for _ in 0..20 {
        let line = note("f", 200);
        bench.wire(flooder).kept.extend_from_slice(format!("{line}\n").as_bytes());
    }
    let polite = bench.client();
    for letter in ["p", "q", "r"] {
        bench.write(polite, &note(letter, 10));
    }
    bench.read(worker);
    // There is room for a line, and when that is queued the worker reads one.
    bench.leaves_unread(worker, 16_200);
    bench.pass(milliseconds(4));
    let order: Vec<String> = bench.read(worker).iter().map(|line| line[24..25].to_owned()).collect();
    let mut first = order[..4].to_vec();
    first.sort_unstable();
    assert_eq!(first, ["f", "f", "q", "r"], "a line each");
    bench.leaves_unread(worker, 0);
    bench.pass(milliseconds(50));
    assert_eq!(order.len() + bench.read(worker).len(), 21 + 2, "and nothing is lost");
}

#[test]
fn turns_are_of_bytes_too() {
    let (mut bench, flooder, worker) = flooded();
    let greedy = bench.client();
    bench.write(greedy, &note("g", 10));
    bench.write(greedy, &note("g", 200_000));
    for _ in 0..9 {
        let line = note("f", 200);
        bench.wire(flooder).kept.extend_from_slice(format!("{line}\n").as_bytes());
    }
    bench.read(worker);
    bench.leaves_unread(worker, 0);
    bench.pass(milliseconds(2));
    let lines = bench.read(worker);
    let long = lines.iter().position(|line| line.len() > 100_000).expect("it has its turn too");
    assert!(long >= 3, "a line of three turns waits for as many: it is number {long}");
}

#[test]
fn a_line_that_waits_is_not_scanned_again() {
    let (mut bench, _, worker) = flooded();
    let client = bench.client();
    bench.write(client, &note("a", 10));
    bench.write(client, &note("b", 10));
    assert!(bench.is_paused(client));
    // The validated part is not scanned again.
    let kept = &mut bench.wire(client).kept;
    let at = kept.iter().position(|byte| *byte == b'b').unwrap();
    kept[at] = b'"';
    bench.read(worker);
    bench.leaves_unread(worker, 0);
    bench.pass(milliseconds(2));
    assert_eq!(bench.how_closed(client), None);
    assert!(bench.read(worker).last().unwrap().contains(r#""params":""bbb"#));
}

#[test]
fn a_worker_that_reads_nothing_at_all_fills_up_and_is_ended() {
    let mut small = settings(vec![pool(1, Assignment::RoundRobin)]);
    small.limits.max_output_queue = 50_000;
    small.limits.backpressure_timeout = seconds(4);
    let mut bench = Bench::new(small);
    let (flooder, worker) = (bench.client(), bench.worker(0));
    bench.client();
    bench.stalls(worker);
    bench.leaves_unread(worker, 1 << 20);
    for _ in 0..1000 {
        bench.write(flooder, &note("f", 200));
    }
    assert!(bench.wire(worker).queued < 20_000);
    bench.pass(seconds(1));
    assert!(bench.wire(worker).queued > 50_000, "turns make no sense before a worker that does not read");
    bench.pass(seconds(4));
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
}

#[test]
fn a_client_that_began_to_wait_while_it_was_alone_continues_beside_others() {
    let mut tight = settings(vec![pool(1, Assignment::RoundRobin)]);
    tight.limits.max_output_queue = 50_000;
    let mut bench = Bench::new(tight);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.stalls(worker);
    bench.leaves_unread(worker, 1 << 20);
    let mut sent = 0;
    while !bench.is_paused(client) {
        bench.write(client, &note("f", 200));
        sent += 1;
    }
    bench.client();
    bench.takes(worker, 1 << 20);
    bench.leaves_unread(worker, 0);
    bench.pass(milliseconds(2));
    assert!(!bench.is_paused(client));
    assert_eq!(bench.read(worker).len(), sent);
}

#[test]
fn one_client_alone_waits_for_no_turns() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.leaves_unread(worker, 1 << 30);
    for _ in 0..1000 {
        bench.write(client, &note("f", 200));
    }
    assert_eq!(bench.read(worker).len(), 1000);
}

/// One worker, with an output limit of a thousand bytes.
fn with_small_queues() -> Bench {
    let mut tight = settings(vec![pool(1, Assignment::RoundRobin)]);
    tight.limits.max_output_queue = 1000;
    Bench::new(tight)
}

/// A shared worker with one client that does not read and one that waits for an answer.
fn slow_and_polite() -> (Bench, Peer, Peer, Peer) {
    let mut bench = with_small_queues();
    let (slow, polite, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(slow, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.write(polite, r#"{"id":2,"method":"x"}"#);
    bench.stalls(slow);
    (bench, slow, polite, worker)
}

fn update() -> String {
    format!(r#"{{"method":"update","sessionId":"s","params":"{}"}}"#, "x".repeat(500))
}

#[test]
fn a_worker_that_others_use_is_held_up_by_slow_readers_for_half_a_second_in_all() {
    let (mut bench, slow, polite, worker) = slow_and_polite();
    for _ in 0..3 {
        bench.write(worker, &update());
    }
    bench.write(worker, r#"{"id":2,"result":1}"#);
    assert!(bench.is_paused(worker));
    bench.pass(milliseconds(499));
    assert!(bench.read(polite).is_empty());
    bench.pass(milliseconds(1));
    assert_eq!(bench.read(polite).len(), 1);
    assert!(!bench.is_paused(worker));
    bench.write(polite, r#"{"id":3,"method":"x"}"#);
    bench.write(worker, &update());
    bench.write(worker, r#"{"id":3,"result":1}"#);
    assert_eq!(bench.read(polite).len(), 1, "there is no patience left");
    assert_eq!(bench.how_closed(slow), None, "what is for the slow one is kept");
}

#[test]
fn a_slow_reader_of_a_shared_worker_is_closed_when_its_queue_is_four_times_too_long() {
    let (mut bench, slow, polite, worker) = slow_and_polite();
    for _ in 0..12 {
        bench.write(worker, &update());
    }
    bench.write(worker, r#"{"id":2,"result":1}"#);
    bench.pass(milliseconds(500));
    assert_eq!(bench.how_closed(slow), Some(Close::Now));
    assert_eq!(bench.count(Reason::ClientSlow), 1);
    assert!(bench.wire(slow).queued > 4000 && bench.wire(slow).queued < 5500);
    assert_eq!(bench.read(polite).len(), 1);
}

/// `slow_and_polite` after the slow client has left, with the worker's time for slow readers used up.
fn no_patience_left() -> (Bench, Peer, Peer) {
    let (mut bench, slow, polite, worker) = slow_and_polite();
    (0..12).for_each(|_| bench.write(worker, &update()));
    bench.pass(milliseconds(500));
    bench.gone(slow);
    (bench, polite, worker)
}

/// Twenty updates in one session, more than may be queued for a slow reader.
fn burst(session: &str) -> String {
    let update = update().replace("\"s\"", &format!("\"{session}\""));
    format!("{update}\n").repeat(20)
}

#[test]
fn a_prompt_reader_is_not_closed_as_slow_for_one_burst_though_others_have_used_up_the_patience_of_its_worker() {
    let (mut bench, _, worker) = no_patience_left();
    let prompt = bench.client();
    bench.write(prompt, r#"{"method":"x","sessionId":"t"}"#);
    bench.stalls(prompt);
    for _ in 0..30 {
        bench.write_bytes(worker, burst("t").as_bytes());
        assert!(bench.is_paused(worker), "it has the time to take that");
        bench.pass(milliseconds(5));
        while bench.wire(prompt).queued > 0 {
            bench.takes(prompt, 1000);
        }
        assert_eq!((bench.how_closed(prompt), bench.read(prompt).len()), (None, 20));
    }
}

#[test]
fn a_reader_that_does_not_use_its_moment_is_closed_as_slow_and_all_of_them_get_half_a_second_more() {
    let (mut bench, polite, worker) = no_patience_left();
    let mut waited = Duration::ZERO;
    for at in 0..12 {
        let slow = bench.client();
        bench.write(slow, &format!(r#"{{"method":"x","sessionId":"t{at}"}}"#));
        bench.stalls(slow);
        bench.write_bytes(worker, burst(&format!("t{at}")).as_bytes());
        while bench.how_closed(slow).is_none() {
            assert!(bench.is_paused(worker));
            bench.pass(milliseconds(1));
            waited += milliseconds(1);
        }
        bench.gone(slow);
    }
    assert_eq!(bench.count(Reason::ClientSlow), 13);
    assert!(waited >= milliseconds(500) && waited < milliseconds(520), "{waited:?}");
    bench.write(worker, r#"{"id":2,"result":1}"#);
    assert_eq!(bench.read(polite).len(), 1);
}

#[test]
fn readers_have_their_moment_though_the_daemon_was_stopped_while_one_of_them_held_up_their_worker() {
    let (mut bench, slow, _, worker) = slow_and_polite();
    (0..3).for_each(|_| bench.write(worker, &update()));
    assert!(bench.is_paused(worker));
    bench.now = bench.now.after(seconds(2));
    bench.handle(Input::ClockJumped { held_up: seconds(2), suspended: seconds(0) });
    bench.gone(slow);
    let prompt = bench.client();
    bench.write(prompt, r#"{"method":"x","sessionId":"t"}"#);
    bench.stalls(prompt);
    bench.write_bytes(worker, burst("t").as_bytes());
    bench.pass(milliseconds(40));
    while bench.wire(prompt).queued > 0 {
        bench.takes(prompt, 1000);
    }
    assert_eq!((bench.how_closed(prompt), bench.read(prompt).len()), (None, 20));
}

#[test]
fn a_reader_that_had_its_moment_while_the_daemon_was_stopped_has_another_one() {
    let (mut bench, _, worker) = no_patience_left();
    let prompt = bench.client();
    bench.write(prompt, r#"{"method":"x","sessionId":"t"}"#);
    bench.stalls(prompt);
    bench.write_bytes(worker, burst("t").as_bytes());
    bench.now = bench.now.after(seconds(2));
    bench.handle(Input::ClockJumped { held_up: seconds(2), suspended: seconds(0) });
    bench.pass(milliseconds(40));
    assert_eq!(bench.how_closed(prompt), None);
    bench.pass(milliseconds(10));
    assert_eq!(bench.how_closed(prompt), Some(Close::Now));
}

#[test]
fn a_worker_waits_for_its_only_user_though_it_has_just_been_held_up_by_another_client() {
    let mut bench = with_small_queues();
    let (slow, user, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(slow, r#"{"id":1,"method":"x"}"#);
    bench.write(worker, r#"{"id":"q","method":"y"}"#);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    bench.stalls(slow);
    let said = format!(r#"{{"method":"z","params":"{}"}}"#, "x".repeat(400));
    (0..3).for_each(|_| bench.write(worker, &said));
    bench.write(user, r#"{"id":2,"method":"x","sessionId":"s"}"#);
    // It is for the slow one, which uses the worker no more.
    bench.write(worker, r#"{"method":"$/cancel_request","params":{"requestId":"q"}}"#);
    assert!(bench.is_paused(worker));
    bench.pass(milliseconds(500));
    assert!(!bench.is_paused(worker));
    bench.stalls(user);
    (0..12).for_each(|_| bench.write(worker, &update()));
    assert!(bench.is_paused(worker), "no other client uses it");
    assert_eq!(bench.how_closed(user), None);
}

#[test]
fn the_time_for_slow_readers_is_regained() {
    let (mut bench, slow, _, worker) = slow_and_polite();
    for _ in 0..3 {
        bench.write(worker, &update());
    }
    bench.pass(milliseconds(500));
    assert!(!bench.is_paused(worker));
    bench.pass(seconds(10));
    bench.write(worker, &update());
    assert!(bench.is_paused(worker));
    bench.pass(milliseconds(100));
    assert!(!bench.is_paused(worker), "ten seconds are worth a tenth of one");
    assert_eq!(bench.how_closed(slow), None);
}

#[test]
fn the_time_for_slow_readers_begins_when_another_client_needs_the_worker() {
    let mut tight = settings(vec![pool(1, Assignment::RoundRobin)]);
    tight.limits.max_output_queue = 1000;
    let mut bench = Bench::new(tight);
    let (slow, polite, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(slow, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.stalls(slow);
    for _ in 0..4 {
        bench.write(worker, &update());
    }
    bench.pass(seconds(30));
    assert!(bench.is_paused(worker), "a reader that has the worker to itself is waited for (spec 7.3.1)");
    bench.write(polite, r#"{"id":2,"method":"x"}"#);
    bench.pass(milliseconds(499));
    assert!(bench.is_paused(worker));
    bench.pass(milliseconds(1));
    assert!(!bench.is_paused(worker));
}

#[test]
fn a_full_table_of_requests_takes_from_the_source_and_the_connection_that_hold_most() {
    let mut bench = bench(1);
    let worker = bench.worker(0);
    let greedy: Vec<Peer> = (0..3).map(|_| bench.client_from(1)).collect();
    let (most, polite) = (bench.client_from(2), bench.client_from(3));
    for (client, requests) in [(greedy[0], 900), (greedy[1], 901), (greedy[2], 900), (most, 1395)] {
        for id in 0..requests {
            bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
            if id % 64 == 0 {
                bench.pass(milliseconds(2));
            }
        }
        bench.pass(milliseconds(20));
    }
    bench.read(worker);
    assert_eq!(bench.bus.view().stats().pending, 4080, "four slots are kept for each of the others");
    for client in &greedy {
        bench.read(*client);
    }
    for id in 0..17 {
        bench.write(polite, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    assert!(bench.read(polite).is_empty());
    bench.read(most);
    let (reason, _, id) = bench.read_error(greedy[1]);
    assert_eq!(reason, "pending_limit");
    assert!(id.is_u64(), "one that was pending");
    bench.write(greedy[0], r#"{"id":"more","method":"x"}"#);
    bench.pass(milliseconds(2));
    assert_eq!(bench.read_error(greedy[0]).2, Value::from("more"), "its source holds most");
    bench.read(worker);
    bench.bus.check_invariants();
}

#[test]
fn a_full_table_of_sessions_evicts_unused_claims_of_the_largest_holder_first() {
    let mut bench = bench(1);
    let (greedy, polite, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(greedy, r#"{"id":"n","method":"session/new"}"#);
    bench.write(worker, r#"{"id":"n","result":{"sessionId":"issued"}}"#);
    for at in 0..1023 {
        bench.write(greedy, &format!(r#"{{"method":"x","sessionId":"claim{at}"}}"#));
        if at % 100 == 0 {
            bench.pass(milliseconds(2));
        }
    }
    bench.pass(milliseconds(20));
    bench.write(greedy, r#"{"method":"x","sessionId":"claim0"}"#);
    bench.write(polite, r#"{"id":1,"method":"session/new"}"#);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"polite"}}"#);
    assert_eq!(bench.read_one(polite), r#"{"id":1,"result":{"sessionId":"polite"}}"#);
    assert_eq!((bench.bus.view().stats().sessions, bench.count(Reason::SessionEvicted)), (1024, 1));
    let report = bench.reports.iter().find(|report| report.reason == Reason::SessionEvicted).unwrap();
    assert!(report.text.contains("\"claim1\""), "{}", report.text);
}

#[test]
fn a_client_with_every_session_loses_its_least_recently_used_one_and_is_notified() {
    let mut bench = bench(1);
    let (greedy, worker) = (bench.client(), bench.worker(0));
    for at in 0..1024 {
        bench.write(greedy, &format!(r#"{{"id":{at},"method":"session/new"}}"#));
        bench.write(worker, &format!(r#"{{"id":{at},"result":{{"sessionId":"s{at}"}}}}"#));
        bench.pass(milliseconds(1));
    }
    let prompt =
        |id: usize, at: usize| format!(r#"{{"id":{id},"method":"session/prompt","params":{{"sessionId":"s{at}"}}}}"#);
    // The first one is used again, and the second one has a pending request.
    bench.write(greedy, &prompt(2000, 0));
    bench.write(worker, r#"{"id":2000,"result":1}"#);
    bench.write(greedy, &prompt(2001, 1));
    bench.read(greedy);
    let polite = bench.client();
    bench.write(polite, r#"{"id":3000,"method":"session/new"}"#);
    let seen: Value = serde_json::from_str(bench.read(worker).last().expect("it is asked")).unwrap();
    bench.write(worker, &format!(r#"{{"id":{},"result":{{"sessionId":"polite"}}}}"#, seen["id"]));
    assert_eq!((bench.read(polite).len(), bench.count(Reason::SessionEvicted)), (1, 1));
    bench.read(worker);
    bench.write(greedy, &prompt(2002, 2));
    assert_eq!(bench.read_error(greedy).0, "session_lost");
    for at in [0, 1, 3, 1023] {
        bench.write(greedy, &prompt(2100 + at, at));
        assert_eq!(bench.read_one(worker), prompt(2100 + at, at));
    }
}

#[test]
fn a_cancelled_request_frees_its_slot_after_its_grace() {
    for (method, is_cancelled) in [("notifications/cancelled", false), ("$/cancel_request", true)] {
        let mut bench = bench(1);
        let (client, worker) = (bench.client(), bench.worker(0));
        for id in [1, 2] {
            bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
            bench.write(client, &format!(r#"{{"method":"{method}","params":{{"requestId":{id}}}}}"#));
        }
        bench.pass(milliseconds(4900));
        bench.write(worker, r#"{"id":1,"result":"in time"}"#);
        assert_eq!(bench.read(client).len(), 1);
        bench.pass(milliseconds(200));
        assert_eq!(bench.bus.view().stats().pending, 0);
        if is_cancelled {
            let (reason, code, id) = bench.read_error(client);
            assert_eq!((reason.as_str(), code, id), ("cancelled", -32800, Value::from(2)));
        }
        assert!(bench.read(client).is_empty(), "MCP owes no answer");
        bench.read(worker);
        bench.write(client, r#"{"id":2,"method":"x"}"#);
        let seen: Value = serde_json::from_str(&bench.read_one(worker)).unwrap();
        assert_ne!(seen["id"], 2, "the answer to the first one may still come");
        bench.write(worker, r#"{"id":2,"result":"late"}"#);
        assert!(bench.read(client).is_empty());
    }
}

#[test]
fn a_half_closed_client_does_not_wait_for_what_it_has_cancelled() {
    let mut bench = bench(1);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.write(client, r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#);
    bench.ends(client);
    assert_eq!(bench.how_closed(client), None);
    bench.pass(milliseconds(5100));
    assert_eq!(bench.how_closed(client), Some(Close::Now));
}

#[test]
fn an_answer_that_a_slow_reader_has_not_taken_yet_shows_that_it_ends_no_workers() {
    let mut small = settings(vec![pool(1, Assignment::RoundRobin)]);
    small.limits.max_output_queue = 200;
    let mut bench = Bench::new(small);
    let (slow, other) = (bench.client(), bench.client());
    bench.stalls(slow);
    for id in 0..4 {
        let worker = bench.worker(0);
        bench.write(slow, &format!(r#"{{"id":{id},"method":"x"}}"#));
        if id == 2 {
            bench.write(other, r#"{"id":"other","method":"x"}"#);
            bench.write(worker, r#"{"id":2,"result":1}"#);
            assert!(bench.is_paused(worker), "its output is full of errors");
            bench.pass(milliseconds(600));
            assert_eq!(bench.read(slow).last().map(String::as_str), Some(r#"{"id":2,"result":1}"#));
            continue;
        }
        bench.dies(worker);
        bench.pass(seconds(1));
    }
    assert_eq!(bench.count(Reason::CrashSuspect), 0);
}

#[test]
fn a_client_whose_requests_crash_one_worker_after_another_is_slowed_down() {
    let mut bench = Bench::new(settings(vec![pool(4, Assignment::RoundRobin)]));
    let (poisoner, polite) = (bench.client(), bench.client());
    for id in 0..3 {
        bench.write(poisoner, &format!(r#"{{"id":{id},"method":"poison"}}"#));
        let hit = bench.busy_worker();
        bench.dies(hit);
        assert_eq!(bench.read_error(poisoner).0, "worker_exited");
    }
    let report = bench.reports.iter().find(|report| report.reason == Reason::CrashSuspect).expect("it is report apart");
    assert_eq!((report.client, report.id.as_deref()), (Some(0), Some("2")));
    bench.write(poisoner, r#"{"id":3,"method":"poison"}"#);
    assert!(bench.is_paused(poisoner));
    bench.write(polite, r#"{"id":0,"method":"x"}"#);
    assert!(bench.read(polite).is_empty(), "the others go on");
    bench.pass(milliseconds(999));
    assert!(bench.is_paused(poisoner));
    bench.pass(milliseconds(1));
    assert!(!bench.is_paused(poisoner));
}

#[test]
fn a_client_whose_requests_are_answered_between_crashes_is_not_suspected() {
    let mut bench = bench(1);
    let (client, _other) = (bench.client(), bench.client());
    for id in 0..4 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
        let hit = bench.busy_worker();
        bench.dies(hit);
        assert_eq!(bench.read_error(client).0, "worker_exited");
        bench.pass(seconds(1));
        bench.write(client, &format!(r#"{{"id":"{id}","method":"x"}}"#));
        let next = bench.busy_worker();
        bench.write(next, &format!(r#"{{"id":"{id}","result":1}}"#));
        bench.read_one(client);
    }
    assert_eq!(bench.count(Reason::CrashSuspect), 0);
}

#[test]
fn a_line_that_waits_for_a_client_does_not_excuse_the_crashes_that_its_requests_cause() {
    let mut settings = settings(vec![pool(5, Assignment::RoundRobin)]);
    settings.limits.max_output_queue = 100;
    let mut bench = Bench::new(settings);
    let (poisoner, _other) = (bench.client(), bench.client());
    bench.stalls(poisoner);
    for id in 0..4 {
        bench.write(poisoner, &format!(r#"{{"id":{id},"method":"poison"}}"#));
        let hit = bench.busy_worker();
        bench.write(hit, &format!(r#"{{"id":{id},"result":"{}"}}"#, "x".repeat(200)));
        if id > 0 {
            bench.dies(hit);
        }
    }
    assert_eq!(bench.count(Reason::CrashSuspect), 1);
    bench.write(poisoner, r#"{"id":4,"method":"poison"}"#);
    assert!(bench.is_paused(poisoner));
}

#[test]
fn a_client_is_read_no_sooner_because_it_ends_more_workers() {
    let mut bench = Bench::new(settings(vec![pool(8, Assignment::RoundRobin)]));
    let client = bench.client();
    let workers: Vec<Peer> = bench.workers.iter().copied().map(Peer::Worker).collect();
    for (id, worker) in workers.iter().enumerate() {
        bench.write(client, &format!(r#"{{"id":{id},"method":"poison"}}"#));
        assert_eq!(bench.read(*worker).len(), 1);
    }
    for worker in &workers[..4] {
        bench.dies(*worker);
    }
    bench.write(client, r#"{"id":8,"method":"poison"}"#);
    assert_eq!((bench.count(Reason::CrashSuspect), bench.is_paused(client)), (2, true));
    bench.write(workers[4], r#"{"id":4,"result":1}"#);
    for worker in &workers[5..] {
        bench.dies(*worker);
    }
    assert_eq!(bench.count(Reason::CrashSuspect), 3);
    bench.pass(milliseconds(1999));
    assert!(bench.is_paused(client), "two seconds, not the one of a new row");
    bench.pass(milliseconds(1));
    assert!(!bench.is_paused(client));
}
