//! Workers that have still to show that they work, while another one of their pool is well.

use super::*;

const SHARED: [Assignment; 2] = [Assignment::RoundRobin, Assignment::Client];
const INITIALIZE: &str = r#"{"id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#;

/// A pool of one worker that may have three, which two requests each keep busy.
fn growing(assignment: Assignment) -> Settings {
    settings(vec![Pool { max_instances: 3, concurrency: 2, ..pool(1, assignment) }])
}

/// The only worker of a pool is busy with two requests of a client, and a second one was started.
fn grown(settings: Settings) -> (Bench, Peer, [Peer; 2]) {
    let mut bench = Bench::new(settings);
    let client = bench.client();
    (0..2).for_each(|id| ask(&mut bench, client, id));
    bench.pass(milliseconds(250));
    let workers = [bench.worker(0), bench.worker(1)];
    assert_eq!((bench.workers.len(), bench.read(workers[0]).len()), (2, 2));
    (bench, client, workers)
}

fn ask(bench: &mut Bench, client: Peer, id: usize) {
    bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
}

/// So many new clients send a request each.
fn clients_ask(bench: &mut Bench, clients: usize) -> Vec<Peer> {
    let clients: Vec<Peer> = (0..clients).map(|_| bench.client()).collect();
    clients.iter().for_each(|client| ask(bench, *client, 0));
    clients
}

/// A worker answers these lines.
fn answer(bench: &mut Bench, worker: Peer, lines: &[String]) {
    for line in lines {
        let id = &serde_json::from_str::<Value>(line).expect("JSON")["id"];
        bench.write(worker, &format!(r#"{{"id":{id},"result":1}}"#));
    }
}

fn sent(bench: &mut Bench, workers: [Peer; 2]) -> [usize; 2] {
    workers.map(|worker| bench.read(worker).len())
}

#[test]
fn a_new_worker_that_ends_before_it_has_answered_fails_one_request_while_another_one_is_well() {
    for assignment in SHARED {
        let (mut bench, first, workers) = grown(growing(assignment));
        let clients = clients_ask(&mut bench, 4);
        assert_eq!(bench.workers.len(), 2);
        let [old, new] = workers.map(|worker| bench.read(worker));
        assert_eq!((old.len(), new.len()), (3, 1), "{assignment:?}");
        bench.dies(workers[1]);
        answer(&mut bench, workers[0], &old);
        let answers: Vec<String> = clients.into_iter().map(|client| bench.read_one(client)).collect();
        let failed = answers.iter().filter(|line| line.contains("worker_exited")).count();
        assert_eq!((failed, bench.count(Reason::WorkerExited)), (1, 1), "{answers:?}");
        assert!(bench.read(first).is_empty());
    }
}

#[test]
fn a_new_worker_takes_turns_once_it_has_answered_a_request() {
    for assignment in SHARED {
        let (mut bench, _, workers) = grown(growing(assignment));
        clients_ask(&mut bench, 2);
        let lines = bench.read(workers[1]);
        assert_eq!((lines.len(), bench.read(workers[0]).len()), (1, 1));
        answer(&mut bench, workers[1], &lines);
        clients_ask(&mut bench, 4);
        assert_eq!(sent(&mut bench, workers), [2, 2], "{assignment:?}");
    }
}

#[test]
fn a_new_worker_that_is_slow_takes_turns_once_it_has_run_for_as_long_as_one_that_does_well() {
    let mut settings = growing(Assignment::RoundRobin);
    settings.limits.restart_window = seconds(10);
    let (mut bench, _, workers) = grown(settings);
    clients_ask(&mut bench, 4);
    assert_eq!(sent(&mut bench, workers), [3, 1]);
    bench.write(workers[1], r#"{"method":"notifications/message","params":{}}"#);
    bench.pass(seconds(10));
    clients_ask(&mut bench, 4);
    assert_eq!(sent(&mut bench, workers)[1], 2);
}

#[test]
fn a_client_stays_with_the_new_worker_that_has_its_first_request() {
    let (mut bench, _, workers) = grown(growing(Assignment::Client));
    let clients = clients_ask(&mut bench, 2);
    assert_eq!(sent(&mut bench, workers), [1, 1]);
    clients.iter().for_each(|client| bench.write(*client, r#"{"method":"notifications/initialized"}"#));
    clients.iter().for_each(|client| ask(&mut bench, *client, 1));
    assert_eq!(sent(&mut bench, workers), [2, 2], "what a client pipes behind its first request follows it");
    clients_ask(&mut bench, 3);
    assert_eq!(sent(&mut bench, workers), [3, 0], "others go to the well one");
}

#[test]
fn a_worker_that_does_not_run_stays_on_trial_however_long_it_takes_to_start() {
    let mut bench = Bench::new(growing(Assignment::RoundRobin));
    bench.spawns = false;
    let client = bench.client();
    (0..2).for_each(|id| ask(&mut bench, client, id));
    bench.pass(seconds(120));
    let workers = [bench.worker(0), bench.worker(1)];
    bench.write(workers[0], r#"{"method":"notifications/message","params":{}}"#);
    clients_ask(&mut bench, 4);
    assert_eq!(sent(&mut bench, workers), [6, 0]);
}

#[test]
fn a_worker_that_has_written_nothing_and_owes_an_answer_stays_on_trial() {
    let (mut bench, _, workers) = grown(growing(Assignment::RoundRobin));
    clients_ask(&mut bench, 2);
    assert_eq!(sent(&mut bench, workers), [1, 1]);
    bench.pass(seconds(120));
    bench.write(workers[0], r#"{"method":"notifications/message","params":{}}"#);
    clients_ask(&mut bench, 4);
    assert_eq!(bench.read(workers[1]).len(), 0);
}

#[test]
fn a_pool_grows_on_while_each_new_worker_is_slow_with_its_first_request() {
    let (mut bench, _, workers) = grown(growing(Assignment::RoundRobin));
    clients_ask(&mut bench, 2);
    assert_eq!(sent(&mut bench, workers), [1, 1]);
    bench.pass(seconds(3));
    assert_eq!(bench.workers.len(), 3);
}

#[test]
fn two_workers_that_follow_ones_that_have_ended_share_the_lines() {
    let mut bench = Bench::new(settings(vec![pool(2, Assignment::RoundRobin)]));
    for _ in 0..2 {
        bench.dies(bench.worker(0));
        bench.pass(seconds(10));
    }
    let workers = [bench.worker(0), bench.worker(1)];
    clients_ask(&mut bench, 4);
    assert_eq!(sent(&mut bench, workers), [2, 2]);
}

#[test]
fn a_notification_or_a_subscription_is_no_trial() {
    let (mut bench, client, workers) = grown(growing(Assignment::RoundRobin));
    for id in 4..8 {
        bench.write(client, r#"{"method":"n"}"#);
        bench.write(client, &format!(r#"{{"id":{id},"method":"subscriptions/listen"}}"#));
    }
    assert_eq!(sent(&mut bench, workers), [8, 0]);
}

#[test]
fn no_line_waits_for_a_new_worker_that_is_sent_an_initialize_again() {
    let mut bench = Bench::new(growing(Assignment::RoundRobin));
    let (old, clients) = (bench.worker(0), [(); 3].map(|()| bench.client()));
    for client in clients {
        bench.write(client, INITIALIZE);
        let lines = bench.read(old);
        answer(&mut bench, old, &lines);
    }
    (1..3).for_each(|id| ask(&mut bench, clients[0], id));
    bench.pass(milliseconds(250));
    let new = bench.worker(1);
    bench.read(old);
    clients.iter().for_each(|client| ask(&mut bench, *client, 9));
    let greetings = bench.read(new);
    assert!(matches!(&greetings[..], [line] if line.contains("initialize")), "{greetings:?}");
    assert_eq!(bench.read(old).len(), 3, "all lines go to the other one");
    answer(&mut bench, new, &greetings);
    clients.iter().for_each(|client| ask(&mut bench, *client, 10));
    assert!(!bench.read(new).is_empty(), "it takes turns since it has answered that");
}

#[test]
fn a_client_of_a_worker_that_died_does_not_wait_for_the_next_one_that_is_sent_its_initialize() {
    let mut bench = Bench::new(settings(vec![pool(2, Assignment::Client)]));
    let clients = [(); 4].map(|()| bench.client());
    let workers = [bench.worker(0), bench.worker(1)];
    for client in clients {
        bench.write(client, INITIALIZE);
        for worker in workers {
            let lines = bench.read(worker);
            answer(&mut bench, worker, &lines);
        }
    }
    bench.dies(workers[0]);
    bench.pass(milliseconds(150));
    let (well, new) = (bench.worker(0), bench.worker(1));
    assert_eq!(well, workers[1]);
    clients.iter().for_each(|client| ask(&mut bench, *client, 9));
    assert!(bench.read_one(new).contains("initialize"), "it is tried");
    assert_eq!(bench.read(well).len(), 4, "all lines go to the other one, and none waits");
}

#[test]
fn an_initialize_is_kept_although_new_workers_end_before_they_answer_it() {
    let mut settings = growing(Assignment::RoundRobin);
    settings.limits.max_restarts = 9;
    let mut bench = Bench::new(settings);
    let client = bench.client();
    bench.write(client, INITIALIZE);
    let old = bench.worker(0);
    let lines = bench.read(old);
    answer(&mut bench, old, &lines);
    (1..3).for_each(|id| ask(&mut bench, client, id));
    bench.pass(milliseconds(250));
    for id in 3..6 {
        (0..2).for_each(|more| ask(&mut bench, client, 10 * id + more));
        let new = bench.worker(1);
        assert!(bench.read_one(new).contains("initialize"));
        bench.dies(new);
        bench.pass(seconds(2));
    }
    let lines = bench.read(bench.worker(0));
    assert_eq!(lines.len(), 8, "no line is lost");
    bench.dies(bench.worker(0));
    bench.pass(seconds(2));
    bench.read(client);
    ask(&mut bench, client, 99);
    assert_eq!(bench.count(Reason::InitializeLost), 0);
}

#[test]
fn a_worker_that_follows_one_that_has_ended_is_on_trial_while_another_one_is_well() {
    let mut bench = bench(2);
    clients_ask(&mut bench, 2);
    for worker in [bench.worker(0), bench.worker(1)] {
        let lines = bench.read(worker);
        answer(&mut bench, worker, &lines);
    }
    bench.dies(bench.worker(1));
    bench.pass(milliseconds(100));
    let workers = [bench.worker(0), bench.worker(1)];
    clients_ask(&mut bench, 6);
    assert_eq!(sent(&mut bench, workers), [5, 1]);
    bench.dies(workers[0]);
    clients_ask(&mut bench, 2);
    assert_eq!(bench.read(workers[1]).len(), 2, "there is no other one");
}

#[test]
fn a_worker_that_does_not_run_yet_gets_no_line_while_another_one_is_well() {
    let mut bench = Bench::new(growing(Assignment::RoundRobin));
    bench.spawns = false;
    let client = bench.client();
    (0..2).for_each(|id| ask(&mut bench, client, id));
    bench.pass(milliseconds(250));
    let workers = [bench.worker(0), bench.worker(1)];
    clients_ask(&mut bench, 4);
    assert_eq!(sent(&mut bench, workers), [6, 0]);
}

#[test]
fn lines_that_wait_for_a_busy_worker_are_offered_to_a_new_one_when_it_runs_and_when_it_has_answered() {
    let mut settings = growing(Assignment::RoundRobin);
    settings.limits.max_output_queue = 1000;
    let mut bench = Bench::new(settings);
    bench.spawns = false;
    let client = bench.client();
    let old = bench.worker(0);
    bench.stalls(old);
    let long = |id: usize| format!(r#"{{"id":{id},"method":"x","params":"{}"}}"#, "x".repeat(600));
    (0..2).for_each(|id| bench.write(client, &long(id)));
    let clients: Vec<Peer> = (0..3).map(|_| bench.client()).collect();
    clients.iter().for_each(|client| bench.write(*client, &long(0)));
    bench.pass(milliseconds(250));
    let new = bench.worker(1);
    assert!(clients.iter().all(|client| bench.is_paused(*client)), "they wait");
    assert!(bench.read(new).is_empty());
    bench.spawn_all();
    let lines = bench.read(new);
    assert_eq!(lines.len(), 1, "it runs");
    answer(&mut bench, new, &lines);
    assert_eq!(bench.read(new).len(), 1, "it has answered, and takes turns");
}

#[test]
fn a_worker_on_trial_gets_the_lines_while_all_others_are_unresponsive() {
    let mut settings = growing(Assignment::RoundRobin);
    settings.pools[0].worker_silent = Some(seconds(12));
    let (mut bench, _, workers) = grown(settings);
    clients_ask(&mut bench, 2);
    assert_eq!(sent(&mut bench, workers), [1, 1]);
    bench.pass(seconds(5));
    bench.write(workers[1], r#"{"method":"notifications/message","params":{}}"#);
    bench.pass(seconds(8));
    clients_ask(&mut bench, 3);
    assert_eq!(bench.read(workers[0]).len(), 0, "it has said nothing for 13 s, and others have");
}
