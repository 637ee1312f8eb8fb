//! Lines that wait for the next worker when the last one has just ended (`Limits::hold`).

use super::*;

/// A bus that lets lines wait for a worker for a second.
fn holding(pools: Vec<Pool>) -> Bench {
    let mut settings = settings(pools);
    settings.limits.hold = seconds(1);
    Bench::new(settings)
}

fn round_robin(workers: usize) -> Bench {
    holding(vec![pool(workers, Assignment::RoundRobin)])
}

#[test]
fn requests_that_come_just_after_a_crash_wait_for_the_next_worker() {
    let mut bench = round_robin(1);
    let (client, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":0,"method":"x"}"#);
    bench.dies(worker);
    assert_eq!(bench.read_error(client).0, "worker_exited", "what the dead one had got is not asked again");
    for id in 1..=3 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    bench.write(client, r#"{"method":"note"}"#);
    bench.write(other, r#"{"id":1,"method":"x"}"#);
    assert!(bench.read(client).is_empty() && bench.read(other).is_empty());
    assert!(bench.is_paused(client) && bench.is_paused(other), "nothing more is read of them");
    bench.pass(milliseconds(100));
    let lines = bench.read(bench.worker(0));
    let of_client: Vec<&String> = lines.iter().filter(|line| line.contains("\"method\":\"note\"")).collect();
    assert_eq!((lines.len(), of_client.len()), (5, 1), "{lines:?}");
    assert_eq!(lines.iter().position(|line| line.contains("note")), Some(3), "a client's lines keep their order");
    assert_eq!(bench.count(Reason::NoWorker), 0);
}

#[test]
fn a_request_waits_from_the_moment_on_at_which_its_worker_breaks() {
    let mut bench = round_robin(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.ends(worker);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert!(bench.read(client).is_empty() && bench.is_paused(client));
    bench.exits(worker, Exit::Signal(9));
    bench.pass(milliseconds(100));
    assert_eq!(bench.read(bench.worker(0)).len(), 1);
}

#[test]
fn no_line_waits_longer_than_hold_ms_in_total() {
    let mut bench = round_robin(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    // It closes its stdout without exiting, so it has no successor.
    bench.ends(worker);
    for id in 1..=3 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    bench.pass(milliseconds(999));
    assert!(bench.read(client).is_empty());
    bench.pass(milliseconds(1));
    let errors = bench.read(client);
    assert_eq!((errors.len(), bench.count(Reason::NoWorker)), (3, 3), "all at once, not one a second: {errors:?}");
    bench.write(client, r#"{"id":4,"method":"x"}"#);
    assert_eq!(bench.read_error(client).0, "no_worker");
}

#[test]
fn workers_that_keep_crashing_are_not_waited_for() {
    let mut bench = round_robin(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.dies(worker);
    bench.pass(milliseconds(100));
    let second = bench.worker(0);
    bench.dies(second);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert_eq!(bench.read_error(client).0, "no_worker");
}

#[test]
fn the_error_without_a_shared_worker_says_when_the_next_one_starts() {
    let mut bench = round_robin(2);
    let client = bench.client();
    for _ in 0..2 {
        for worker in [bench.worker(0), bench.worker(1)] {
            bench.dies(worker);
        }
        bench.pass(milliseconds(100));
    }
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    let message = bench.read_json(client)["error"]["message"].take();
    assert_eq!(message, "no worker is running: the next one starts in 100 ms");
    bench.pass(milliseconds(100));
    for worker in [bench.worker(0), bench.worker(1)] {
        bench.ends(worker);
    }
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    let message = bench.read_json(client)["error"]["message"].take();
    assert_eq!(message, "no worker is running: one is ending, and the next one starts after it");
}

#[test]
fn no_line_waits_for_a_worker_that_was_given_up() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    (settings.limits.hold, settings.limits.max_restarts) = (seconds(1), 0);
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.ends(worker);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert!(bench.is_paused(client), "it may be followed by another");
    bench.exits(worker, Exit::Code(1));
    assert_eq!(bench.read_error(client).0, "no_worker", "it is not");
}

#[test]
fn a_client_that_leaves_while_it_waits_is_forgotten() {
    let mut bench = round_robin(1);
    let (client, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.dies(worker);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.write(other, r#"{"id":2,"method":"x"}"#);
    bench.breaks(client);
    bench.gone(client);
    bench.pass(milliseconds(100));
    assert_eq!(bench.read_one(bench.worker(0)), r#"{"id":2,"method":"x"}"#);
}

#[test]
fn waiting_clients_get_an_error_when_the_daemon_shuts_down() {
    let mut bench = round_robin(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.dies(worker);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.shutdown();
    assert_eq!(bench.read_error(client).0, "shutting_down");
}

#[test]
fn a_notification_that_finds_no_worker_while_the_daemon_shuts_down_does_not_wait_for_one() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin), pool(1, Assignment::RoundRobin)]);
    settings.pools[1].id = "other".into();
    (settings.limits.hold, settings.limits.quiesce) = (seconds(1), seconds(10));
    let mut bench = Bench::new(settings);
    let (client, asker, other) = (bench.client(), bench.client(), bench.worker(1));
    bench.write(asker, r#"{"id":1,"method":"x"}"#);
    bench.dies(other);
    bench.shutdown();
    bench.write(client, r#"{"method":"note","pool":"other"}"#);
    assert!(!bench.is_paused(client));
    assert_eq!(bench.count(Reason::NoWorker), 1);
}

#[test]
fn a_new_connection_waits_for_the_next_spare_after_the_first_one_has_failed() {
    let mut bench = holding(vec![Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }]);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.dies(worker);
    bench.write(client, r#"{"id":1,"method":"initialize"}"#);
    assert!(bench.is_paused(client) && bench.read(client).is_empty());
    bench.pass(milliseconds(100));
    assert_eq!(bench.read(bench.worker(0)).len(), 1);
}

#[test]
fn without_hold_ms_requests_are_refused_at_once() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.dies(worker);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert_eq!(bench.read_error(client).0, "no_worker");
}

#[test]
fn the_end_of_a_worker_wakes_no_client_that_waits_for_another_pool() {
    let of = |id: &str| Pool { id: id.into(), ..pool(1, Assignment::RoundRobin) };
    let mut bench = holding(vec![of("a"), of("b")]);
    let (client, worker, other) = (bench.client(), bench.worker(0), bench.workers[1]);
    bench.dies(worker);
    bench.write(client, r#"{"id":1,"method":"x","pool":"a"}"#);
    assert!(bench.is_paused(client));
    let mut effects: Vec<Effect> =
        bench.bus.handle(bench.now, Input::Exited { worker: other, exit: Exit::Code(1) }).collect();
    effects.extend(bench.bus.handle(bench.now, Input::InputEnded { peer: other.into(), partial: 0 }));
    let is_woken = |effect: &Effect| matches!(effect, Effect::Resume(peer) if *peer == client);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Release(_))) && !effects.iter().any(is_woken));
    bench.effects(&[], effects);
    bench.pass(milliseconds(100));
    let next = bench.workers.iter().map(|worker| Peer::Worker(*worker)).collect::<Vec<_>>();
    assert_eq!(next.into_iter().map(|worker| bench.read(worker).len()).sum::<usize>(), 1);
}

#[test]
fn a_worker_that_has_run_for_restart_window_is_waited_for_after_its_end() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    (settings.limits.hold, settings.limits.restart_window) = (seconds(1), seconds(5));
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.dies(worker);
    bench.pass(seconds(6));
    let worker = bench.worker(0);
    bench.ends(worker);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert!(bench.read(client).is_empty() && bench.is_paused(client), "the next one comes soon");
    bench.exits(worker, Exit::Code(1));
    bench.pass(milliseconds(100));
    assert_eq!(bench.read(bench.worker(0)).len(), 1);
}
