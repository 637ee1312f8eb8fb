//! Which worker gets a message without a session: pools, listeners and assignment (decisions 6, 7).

use super::*;

fn named(id: &str, instances: usize, assignment: Assignment) -> Pool {
    Pool { id: id.into(), ..pool(instances, assignment) }
}

/// How many lines each worker was sent since the last call.
fn shares(bench: &mut Bench) -> Vec<usize> {
    (0..bench.workers.len()).map(|at| bench.read(bench.worker(at)).len()).collect()
}

fn asks(bench: &mut Bench, client: Peer, count: usize) {
    for _ in 0..count {
        bench.write(client, r#"{"method":"x"}"#);
    }
}

#[test]
fn round_robin_skips_workers_that_do_not_run() {
    let mut bench = bench(3);
    let client = bench.client();
    let middle = bench.worker(1);
    bench.breaks(middle);
    asks(&mut bench, client, 4);
    assert_eq!(shares(&mut bench), [2, 0, 2]);
}

#[test]
fn with_client_assignment_all_messages_of_a_connection_meet_the_same_process() {
    let mut bench = Bench::new(settings(vec![pool(2, Assignment::Client)]));
    let (first, second, third) = (bench.client(), bench.client(), bench.client());
    asks(&mut bench, first, 5);
    assert_eq!(shares(&mut bench), [5, 0]);
    asks(&mut bench, second, 5);
    assert_eq!(shares(&mut bench), [0, 5]);
    asks(&mut bench, third, 1);
    bench.write(third, r#"{"id":1,"method":"x","sessionId":"new"}"#);
    asks(&mut bench, first, 1);
    assert_eq!(shares(&mut bench), [3, 0]);
}

#[test]
fn with_client_assignment_a_connection_whose_worker_died_gets_another_one() {
    let mut bench = Bench::new(settings(vec![pool(2, Assignment::Client)]));
    let (client, first, second) = (bench.client(), bench.worker(0), bench.worker(1));
    asks(&mut bench, client, 1);
    bench.read_one(first);
    bench.dies(first);
    asks(&mut bench, client, 3);
    assert_eq!(bench.read(second).len(), 3);
}

#[test]
fn a_dedicated_worker_serves_one_connection_and_ends_with_it() {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }]));
    let (first, second) = (bench.client(), bench.client());
    assert_eq!(bench.workers.len(), 1, "one warm spare");
    asks(&mut bench, first, 2);
    assert_eq!(bench.workers.len(), 2, "and a new one when it is taken");
    asks(&mut bench, second, 1);
    assert_eq!(shares(&mut bench), [2, 1, 0]);
    let (worker, other) = (bench.worker(0), bench.worker(1));
    let update = r#"{"method":"update","params":{"no":"session"}}"#;
    bench.write(worker, update);
    assert_eq!(bench.read_one(first), update, "all its messages are for its client");
    bench.breaks(first);
    assert_eq!((bench.signals_to(worker), bench.signals_to(other)), (vec![Signal::Terminate], vec![]));
    bench.dies(worker);
    assert_eq!(bench.count(Reason::WorkerExited), 0, "it was asked to");
    asks(&mut bench, second, 1);
    assert_eq!(bench.read(other).len(), 1);
}

#[test]
fn a_connection_ends_with_the_worker_that_it_has_for_itself() {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }]));
    let (client, other) = (bench.client(), bench.client());
    bench.write(client, r#"{"id":1,"method":"initialize"}"#);
    bench.write(other, r#"{"id":1,"method":"initialize"}"#);
    let worker = bench.worker(0);
    bench.write(worker, r#"{"id":1,"result":{}}"#);
    bench.read(client);
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    bench.dies(worker);
    assert_eq!(bench.read_reasons(client), ["worker_exited", "own_worker_ended"]);
    let Peer::Client(key) = client else { panic!("it is a client") };
    assert_eq!((bench.closed.clone(), bench.count(Reason::OwnWorkerEnded)), (vec![(key, Close::Refuse)], 1));
    bench.write(other, r#"{"id":2,"method":"x"}"#);
    assert!(bench.read(other).is_empty(), "no other client is affected");
}

#[test]
fn a_client_without_pending_requests_is_notified_that_its_own_worker_has_ended() {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }]));
    let client = bench.client();
    bench.write(client, r#"{"method":"x"}"#);
    let worker = bench.worker(0);
    bench.dies(worker);
    assert_eq!(bench.read_error(client), ("own_worker_ended".to_owned(), -32011, Value::Null));
    assert_eq!(bench.how_closed(client), Some(Close::Refuse));
}

#[test]
fn a_dedicated_worker_is_not_replaced_before_its_client_sees_the_end() {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }]));
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":0,"method":"initialize"}"#);
    bench.answers(worker);
    bench.read(client);
    bench.breaks(worker);
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    assert_eq!(bench.read_error(client).0, "worker_exited");
    assert!(bench.closed.is_empty(), "what it says before it ends still comes");
    bench.dies(worker);
    assert_eq!(bench.closed.len(), 1);
}

#[test]
fn a_connection_that_ends_with_its_worker_gets_errors_for_its_requests_to_others() {
    let pools = vec![named("own", 1, Assignment::Dedicated), named("tools", 1, Assignment::RoundRobin)];
    let mut bench = Bench::new(settings(pools));
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":0,"method":"x","pool":"own"}"#);
    bench.answers(worker);
    bench.read(client);
    bench.write(client, r#"{"id":1,"method":"x","pool":"own"}"#);
    bench.write(client, r#"{"id":2,"method":"x","pool":"tools"}"#);
    bench.dies(worker);
    let errors = bench.read(client);
    let reasons = errors.iter().map(|line| serde_json::from_str::<Value>(line).expect("it is JSON"));
    let reasons: Vec<_> = reasons.map(|line| (line["id"].clone(), line["error"]["data"]["reason"].clone())).collect();
    let ended = (Value::Null, "own_worker_ended".into());
    assert_eq!(reasons, [(1.into(), "worker_exited".into()), (2.into(), "request_discarded".into()), ended]);
    assert_eq!(bench.closed.len(), 1);
}

#[test]
fn when_no_dedicated_worker_can_be_had_requests_get_an_error_at_once() {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 2, ..pool(1, Assignment::Dedicated) }]));
    let (first, second, third) = (bench.client(), bench.client(), bench.client());
    asks(&mut bench, first, 1);
    asks(&mut bench, second, 1);
    bench.write(third, r#"{"id":1,"method":"initialize"}"#);
    let error = bench.read_json(third)["error"].take();
    assert_eq!((&error["data"]["reason"], &error["code"]), (&Value::from("no_worker"), &Value::from(-32010)));
    assert_eq!(error["message"], "no worker is free: all 2 of max_instances workers are in use");
    let worker = bench.worker(0);
    bench.breaks(first);
    bench.dies(worker);
    bench.write(third, r#"{"id":1,"method":"initialize"}"#);
    assert!(bench.read(third).is_empty(), "there is room again");
}

#[test]
fn dedicated_connections_may_use_the_same_session_names() {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 3, ..pool(2, Assignment::Dedicated) }]));
    for client in [bench.client(), bench.client()] {
        bench.write(client, r#"{"id":0,"method":"x","params":{"sessionId":"0"}}"#);
        assert!(bench.read(client).is_empty());
    }
    assert_eq!(shares(&mut bench), [1, 1, 0]);
}

#[test]
fn a_dedicated_worker_may_get_a_second_name_that_a_late_answer_gave_out() {
    let mut slow = settings(vec![pool(1, Assignment::Dedicated)]);
    slow.pools[0].request_timeout = Some(seconds(1));
    let mut bench = Bench::new(slow);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    bench.pass(seconds(1));
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"2"}}"#);
    assert_eq!((bench.read(client).len(), bench.count(Reason::LateAnswer)), (1, 1));
    bench.read(worker);
    let line = r#"{"id":2,"method":"session/prompt","sessionId":"3","params":{"sessionId":"2"}}"#;
    bench.write(client, line);
    assert_eq!((bench.read_one(worker).as_str(), bench.read(client).len()), (line, 0));
}

#[test]
fn a_session_that_a_late_answer_gave_out_is_its_clients_once_its_own_worker_has_loaded_it() {
    let mut slow = settings(vec![Pool { max_instances: 2, ..pool(1, Assignment::Dedicated) }]);
    slow.pools[0].request_timeout = Some(seconds(1));
    let mut bench = Bench::new(slow);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    bench.pass(seconds(1));
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"2"}}"#);
    bench.write(client, r#"{"id":2,"method":"session/load","params":{"sessionId":"2"}}"#);
    bench.write(worker, r#"{"id":2,"result":null}"#);
    assert_eq!((bench.read(client).len(), bench.bus.view().stats().sessions), (2, 1));
}

#[test]
fn a_cancellation_for_a_dedicated_worker_may_name_a_session_that_a_late_answer_gave_out() {
    let mut slow = settings(vec![pool(1, Assignment::Dedicated)]);
    slow.pools[0].request_timeout = Some(seconds(1));
    let mut bench = Bench::new(slow);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"session/new"}"#);
    bench.pass(seconds(1));
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"2"}}"#);
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    bench.read(worker);
    let cancel = r#"{"method":"$/cancel_request","sessionId":"2","params":{"requestId":2}}"#;
    bench.write(client, cancel);
    assert_eq!((bench.read_one(worker).as_str(), bench.count(Reason::SessionDenied)), (cancel, 0));
}

#[test]
fn clients_do_not_restart_a_pool_whose_workers_cannot_start() {
    let mut bench = Bench::starting(settings(vec![Pool { max_instances: 9, ..pool(1, Assignment::Dedicated) }]));
    let client = bench.client();
    let worker = bench.workers[0];
    bench.handle(Input::SpawnFailed { worker, why: "no such file".into(), fault: SpawnFailure::Command });
    for id in 0..5 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    let answers = bench.read(client);
    assert_eq!(answers.len(), 5);
    assert!(answers[0].contains("the spare one has exited, and the next one starts in 100 ms"), "{}", answers[0]);
    assert!(bench.workers.is_empty(), "the backoff applies");
    bench.pass(milliseconds(100));
    assert_eq!(bench.workers.len(), 1);
}

#[test]
fn the_error_for_a_pool_whose_spare_was_given_up_says_so() {
    let mut failing = settings(vec![Pool { max_instances: 9, ..pool(1, Assignment::Dedicated) }]);
    failing.limits.max_restarts = 0;
    let mut bench = Bench::new(failing);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.dies(worker);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    let message = bench.read_json(client)["error"]["message"].take();
    let expected = "no worker is free: the spare one was given up after 0 restarts within 60 s (max_restarts); fix the \
                    command, the pool has to be restarted";
    assert_eq!(message, expected);
}

#[test]
fn the_error_for_a_pool_whose_workers_were_given_up_says_when_they_are_tried_again() {
    for (assignment, what) in
        [(Assignment::Dedicated, "free: the spare one was"), (Assignment::Client, "running: its worker was")]
    {
        let mut failing = settings(vec![Pool { max_instances: 9, ..pool(1, assignment) }]);
        (failing.limits.max_restarts, failing.limits.restart_window) = (1, seconds(90));
        let mut bench = Bench::new(failing);
        let client = bench.client();
        for _ in 0..2 {
            bench.pass(milliseconds(100));
            let worker = bench.worker(0);
            bench.dies(worker);
        }
        bench.pass(milliseconds(500));
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        let message = bench.read_json(client)["error"]["message"].take();
        let expected = format!(
            "no worker is {what} given up after 1 restarts within 90 s (max_restarts); fix the command, it is tried again in 90 s"
        );
        assert_eq!(message, expected);
    }
}

#[test]
fn a_message_chooses_its_pool_by_name_then_by_listener_then_any() {
    let mut three = settings(vec![
        named("a", 1, Assignment::RoundRobin),
        named("b", 1, Assignment::RoundRobin),
        named("c", 1, Assignment::Dedicated),
    ]);
    three.listeners.push(Listener { pool: Some(PoolId::at(1)), ..Listener::default() });
    let mut bench = Bench::new(three);
    let (any, bound) = (bench.client(), bench.client_of(1));
    asks(&mut bench, any, 4);
    assert_eq!(shares(&mut bench), [2, 2, 0], "a dedicated worker is not taken by accident");
    asks(&mut bench, bound, 4);
    assert_eq!(shares(&mut bench), [0, 4, 0]);
    bench.write(bound, r#"{"method":"x","pool":"a"}"#);
    bench.write(any, r#"{"method":"x","p\u006fol":"c"}"#);
    assert_eq!(shares(&mut bench), [1, 0, 1]);
}

#[test]
fn a_pool_that_the_listener_does_not_offer_is_answered_like_one_that_does_not_exist() {
    let mut three = settings(vec![
        named("a", 1, Assignment::RoundRobin),
        named("b", 1, Assignment::RoundRobin),
        named("c", 1, Assignment::RoundRobin),
    ]);
    three.listeners[0] = Listener { pool: Some(PoolId::at(0)), pools: Some(places(&[0, 1])), ..Listener::default() };
    let mut bench = Bench::new(three);
    let client = bench.client();
    for line in [r#"{"id":1,"method":"x","pool":"NAME"}"#, r#"{"id":1,"method":"x","pool":"NAME","sessionId":"s"}"#] {
        let mut answer = |name: &str| {
            bench.write(client, &line.replace("NAME", name));
            bench.read_one(client).replace(&format!(r#"\"{name}\""#), "NAME")
        };
        let (kept, unknown) = (answer("c"), answer("zzz"));
        assert!(kept.contains("unknown_pool") && kept == unknown, "{kept} {unknown}");
    }
    assert_eq!(shares(&mut bench), [0, 0, 0]);
    bench.write(client, r#"{"method":"x","pool":"b"}"#);
    asks(&mut bench, client, 2);
    assert_eq!(shares(&mut bench), [2, 1, 0]);
}

#[test]
fn a_listener_that_offers_some_pools_uses_these_for_messages_that_name_none() {
    let mut four = settings(vec![
        named("a", 1, Assignment::RoundRobin),
        named("b", 1, Assignment::RoundRobin),
        named("c", 1, Assignment::RoundRobin),
        named("d", 1, Assignment::Dedicated),
    ]);
    four.pools[3].max_instances = 2;
    let offers = |pools: &[usize]| Listener { pools: Some(places(pools)), ..Listener::default() };
    four.listeners = vec![offers(&[0, 2, 3]), offers(&[1]), offers(&[3])];
    let mut bench = Bench::new(four);
    let (some, one, own) = (bench.client_of(0), bench.client_of(1), bench.client_of(2));
    asks(&mut bench, some, 4);
    assert_eq!(shares(&mut bench), [2, 0, 2, 0], "a dedicated worker is not taken by accident");
    asks(&mut bench, one, 4);
    assert_eq!(shares(&mut bench), [0, 4, 0, 0]);
    asks(&mut bench, own, 1);
    bench.write(own, r#"{"method":"x","pool":"d"}"#);
    assert_eq!(shares(&mut bench), [0, 0, 0, 2, 0], "named or not, it is the client's own worker");
}

#[test]
fn where_one_pool_is_left_to_choose_a_client_has_one_worker_there_whether_it_names_the_pool_or_not() {
    for (first, second) in [(Assignment::Dedicated, Assignment::Dedicated), (Assignment::Client, Assignment::Dedicated)]
    {
        let mut two = settings(vec![named("a", 2, first), named("b", 1, second)]);
        two.pools[0].max_instances = 4;
        let mut bench = Bench::new(two);
        let (names, both) = (bench.client(), bench.client());
        let named = r#"{"method":"x","pool":"a"}"#;
        bench.write(names, named);
        assert_eq!(shares(&mut bench).iter().sum::<usize>(), 1);
        asks(&mut bench, both, 1);
        bench.write(both, named);
        let shares = shares(&mut bench);
        assert!(shares.contains(&2), "{first:?}: {shares:?}");
    }
}

#[test]
fn a_session_stays_where_it_is_whatever_pool_its_next_message_could_choose() {
    let mut two = settings(vec![named("a", 1, Assignment::RoundRobin), named("b", 1, Assignment::RoundRobin)]);
    two.listeners[0].pool = Some(PoolId::at(1));
    let mut bench = Bench::new(two);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s","pool":"a"}"#);
    bench.write(client, r#"{"id":2,"method":"x","sessionId":"s"}"#);
    assert_eq!(shares(&mut bench), [2, 0]);
}

#[test]
fn messages_wait_for_a_worker_that_is_starting() {
    let mut bench = Bench::starting(settings(vec![pool(1, Assignment::RoundRobin)]));
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert!(bench.read(client).is_empty());
    assert_eq!(bench.read(worker).len(), 1);
}

#[test]
fn a_connection_outlives_a_worker_of_its_own_that_could_not_be_started() {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }]));
    let (first, client) = (bench.client(), bench.client());
    bench.spawns = false;
    asks(&mut bench, first, 1);
    // The spare that follows, and the worker that the second one takes.
    bench.write(client, r#"{"id":1,"method":"initialize"}"#);
    let starting: Vec<WorkerKey> = bench.workers.iter().copied().skip(1).collect();
    for worker in starting {
        bench.handle(Input::SpawnFailed { worker, why: "too many open files".into(), fault: SpawnFailure::Shortage });
    }
    assert_eq!((bench.read_error(client).0.as_str(), bench.closed.len()), ("no_worker", 0));
}
