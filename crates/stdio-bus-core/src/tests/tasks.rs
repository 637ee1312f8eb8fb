//! Tasks of MCP 2026-07-28: requests that name one go to the process that has it.

use super::eras::MODERN;
use super::*;
use crate::settings::Era;

/// A client's request is answered with a task. Returns the worker that has it.
fn makes(bench: &mut Bench, client: Peer, task: &str, more: &str) -> Peer {
    bench.write(client, r#"{"id":"make","method":"tools/call","params":{"name":"x"}}"#);
    let (worker, asked) = who_reads(bench);
    answer(
        bench,
        worker,
        &id_of(&asked),
        &format!(r#""resultType":"task","taskId":"{task}","status":"working"{more}"#),
    );
    bench.read(client);
    worker
}

fn answer(bench: &mut Bench, worker: Peer, id: &str, result: &str) {
    bench.write(worker, &format!(r#"{{"id":{id},"result":{{{result}}}}}"#));
}

/// The id of the last of these lines, as its worker has it.
fn id_of(lines: &[String]) -> String {
    serde_json::from_str::<Value>(lines.last().unwrap()).unwrap()["id"].to_string()
}

/// The only worker that was sent something, and what.
fn who_reads(bench: &mut Bench) -> (Peer, Vec<String>) {
    let workers: Vec<Peer> = bench.workers.iter().copied().map(Peer::Worker).collect();
    let mut all: Vec<_> = workers.into_iter().map(|worker| (worker, bench.read(worker))).collect();
    all.retain(|(_, lines)| !lines.is_empty());
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn get(id: usize, method: &str, task: &str) -> String {
    format!(r#"{{"id":{id},"method":"tasks/{method}","params":{{"taskId":"{task}"}}}}"#)
}

fn named(bench: &mut Bench, name: &str) -> Peer {
    let names = crate::origin::Names { token: Some(name.into()), ..Default::default() };
    let origin = Origin { names: names.into(), ..Place::Inherited.into() };
    Peer::Client(bench.connect(0, origin).expect("there is room"))
}

#[test]
fn a_task_is_asked_for_where_it_was_made() {
    let mut bench = bench(3);
    let clients = [bench.client(), bench.client()];
    let tasks: Vec<_> = (0..6)
        .map(|number| {
            let task = format!("t{number}");
            (makes(&mut bench, clients[number % 2], &task, ""), task)
        })
        .collect();
    assert!(tasks.iter().any(|(worker, _)| *worker != tasks[0].0), "several processes have tasks");
    for (worker, task) in &tasks {
        for (number, method) in ["get", "update", "cancel", "get"].into_iter().enumerate() {
            let line =
                get(number, method, task).replace("tasks/", if number == 3 { "t\\u0061sks\\/" } else { "tasks/" });
            bench.write(clients[0], &line);
            let (reader, asked) = who_reads(&mut bench);
            assert_eq!(reader, *worker, "{line}");
            answer(&mut bench, reader, &id_of(&asked), &format!(r#""taskId":"{task}","status":"working""#));
            bench.read(clients[0]);
        }
    }
    for (number, (worker, task)) in tasks.iter().enumerate() {
        let listen =
            |params: String| format!(r#"{{"id":"l{number}","method":"subscriptions/listen","params":{params}}}"#);
        let client = bench.client();
        bench.write(client, &listen(format!(r#"{{"notifications":{{"taskIds":["{task}"]}}}}"#)));
        assert_eq!(who_reads(&mut bench).0, *worker);
        let client = bench.client();
        bench.write(client, &listen(format!(r#"{{"notifications":{{}},"taskIds":["unknown","{task}"]}}"#)));
        assert_eq!(who_reads(&mut bench).0, *worker);
    }
}

#[test]
fn only_a_result_that_says_task_makes_one() {
    let mut bench = bench(2);
    let client = bench.client();
    bench.write(client, r#"{"id":1,"method":"tools/call","params":{"name":"x"}}"#);
    let (worker, _) = who_reads(&mut bench);
    answer(&mut bench, worker, "1", r#""resultType":"complete","taskId":"t","content":[{"resultType":"task"}]"#);
    bench.read(client);
    let readers: Vec<Peer> = (2..6)
        .map(|id| {
            bench.write(client, &get(id, "get", "t"));
            who_reads(&mut bench).0
        })
        .collect();
    assert!(readers.iter().any(|reader| *reader != readers[0]), "they take turns");
}

#[test]
fn a_task_made_under_a_name_is_that_names_alone() {
    let mut bench = bench(2);
    let (alice, again, bob) = (named(&mut bench, "alice"), named(&mut bench, "alice"), named(&mut bench, "bob"));
    let nobody = bench.client();
    let worker = makes(&mut bench, alice, "t", "");
    let listen = r#"{"id":9,"method":"subscriptions/listen","params":{"notifications":{"taskIds":["x","t"]}}}"#;
    for other in [bob, nobody] {
        for line in [&get(1, "get", "t"), &get(2, "cancel", "t"), listen] {
            bench.write(other, line);
            assert_eq!(bench.read_error(other).0, "session_denied", "{line}");
        }
    }
    for (number, own) in [alice, again].into_iter().enumerate() {
        bench.write(own, &get(number, "get", "t"));
        assert_eq!(who_reads(&mut bench).0, worker);
    }
    let free = makes(&mut bench, nobody, "free", "");
    bench.write(bob, &get(5, "get", "free"));
    assert_eq!(who_reads(&mut bench).0, free, "without a name whoever knows the id may use it");
}

#[test]
fn a_task_whose_worker_has_ended_is_unknown() {
    let mut bench = bench(2);
    let client = bench.client();
    let worker = makes(&mut bench, client, "t", "");
    bench.dies(worker);
    bench.pass(seconds(1));
    bench.write(client, &get(1, "get", "t"));
    let (reader, _) = who_reads(&mut bench);
    assert_ne!(reader, worker);
    answer(&mut bench, reader, "1", "");
}

/// A bus whose worker has reached its age while it works on a task.
fn aged(more: &str) -> (Bench, Peer, Peer) {
    let mut config = settings(vec![Pool { max_age: Some(seconds(100)), ..pool(1, Assignment::RoundRobin) }]);
    config.limits.replace_timeout = seconds(60);
    let mut bench = Bench::new(config);
    let client = bench.client();
    let worker = makes(&mut bench, client, "t", more);
    // Its successor has settled meanwhile.
    bench.pass(seconds(130));
    assert!(!is_stopped(&bench, worker), "it works on the task");
    (bench, client, worker)
}

fn is_stopped(bench: &Bench, worker: Peer) -> bool {
    !bench.stop_actions(worker).is_empty()
}

#[test]
fn a_worker_is_not_replaced_before_its_tasks_have_ended() {
    for end in ["completed", "failed", "cancelled"] {
        for how in ["answer", "notification"] {
            let (mut bench, client, worker) = aged("");
            bench.write(client, &get(1, "get", "t"));
            assert_eq!(who_reads(&mut bench).0, worker, "though another one gets what is new");
            answer(&mut bench, worker, "1", r#""resultType":"complete","taskId":"t","status":"input_required""#);
            bench.write(client, r#"{"id":2,"method":"tools/list"}"#);
            let (other, _) = who_reads(&mut bench);
            assert_ne!(other, worker);
            answer(&mut bench, other, "2", "");
            bench.pass(seconds(300));
            assert!(!is_stopped(&bench, worker), "also beyond replace_timeout_sec");
            if how == "answer" {
                bench.write(client, &get(3, "get", "t"));
                answer(&mut bench, worker, "3", &format!(r#""taskId":"t","status":"{end}""#));
            } else {
                let params = format!(r#"{{"taskId":"t","status":"{end}"}}"#);
                bench.write(worker, &format!(r#"{{"method":"notifications/tasks","params":{params}}}"#));
            }
            bench.pass(seconds(1));
            assert!(is_stopped(&bench, worker), "{end} by {how}");
        }
    }
}

#[test]
fn a_task_keeps_its_worker_for_its_time_to_live_and_an_hour_without_one() {
    for (more, seconds_left) in [(r#","ttlMs":500000"#, 370), (r#","ttlMs":null"#, 3470), ("", 3470)] {
        let (mut bench, _, worker) = aged(more);
        bench.pass(seconds(seconds_left - 20));
        assert!(!is_stopped(&bench, worker), "{more}");
        bench.pass(seconds(40));
        assert!(is_stopped(&bench, worker), "{more}");
    }
}

#[test]
fn at_most_4096_tasks_are_known_and_what_has_ended_is_evicted_first() {
    let mut bench = bench(1);
    let client = bench.client();
    for number in 0..4097 {
        makes(&mut bench, client, &format!("t{number}"), "");
        if number == 7 {
            bench.write(client, &get(1, "get", "t7"));
            let (worker, _) = who_reads(&mut bench);
            answer(&mut bench, worker, "1", r#""taskId":"t7","status":"completed""#);
            bench.read(client);
        }
    }
    let other = named(&mut bench, "bob");
    let known = |bench: &Bench, id: &str| bench.bus.tasks.knows(crate::index::FleetId::default(), id.as_bytes());
    assert!(known(&bench, "t0") && known(&bench, "t4096") && !known(&bench, "t7"));
    makes(&mut bench, other, "one more", "");
    assert!(!known(&bench, "t0") && known(&bench, "t1") && known(&bench, "one more"));
}

#[test]
fn a_client_that_makes_more_tasks_than_there_is_room_for_costs_no_other_client_a_task() {
    let mut bench = bench(1);
    let (modest, greedy) = (named(&mut bench, "modest"), named(&mut bench, "greedy"));
    let ended = makes(&mut bench, modest, "ended", "");
    makes(&mut bench, modest, "works", "");
    bench.write(ended, r#"{"method":"notifications/tasks","params":{"taskId":"ended","status":"completed"}}"#);
    for number in 0..5000 {
        makes(&mut bench, greedy, &format!("t{number}"), "");
    }
    let known = |bench: &Bench, id: &str| bench.bus.tasks.knows(crate::index::FleetId::default(), id.as_bytes());
    assert!(known(&bench, "works") && known(&bench, "ended"), "what has ended may still be asked for");
    assert!(known(&bench, "t4999") && !known(&bench, "t905") && known(&bench, "t906"), "its own oldest ones go");
    for number in 0..3 {
        makes(&mut bench, modest, &format!("m{number}"), "");
    }
    let its = ["works", "ended", "m0", "m1", "m2"];
    assert!(its.iter().all(|id| known(&bench, id)) && !known(&bench, "t908") && known(&bench, "t909"));
    bench.dies(ended);
    assert!(!known(&bench, "works") && !known(&bench, "t4999"));
}

#[test]
fn a_task_is_asked_for_at_a_worker_that_another_client_has_borrowed() {
    let mut bench = Bench::asked(Pool { max_instances: 2, ..pool(2, Assignment::Dedicated) }, MODERN);
    let (one, two, three) = (bench.mcp(Era::Modern), bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    let worker = makes(&mut bench, one, "t", "");
    bench.write(two, r#"{"id":2,"method":"tools/call","params":{"name":"slow"}}"#);
    assert_eq!(who_reads(&mut bench).0, worker, "it was given back");
    for round in 0..2 {
        bench.write(three, &get(3 + round, "get", "t"));
        let (reader, asked) = who_reads(&mut bench);
        assert_eq!(reader, worker, "there is no need to wait until it is given back again");
        // It may be about either request.
        bench.write(worker, r#"{"method":"notifications/message","params":{"level":"info","data":"private"}}"#);
        assert!(bench.read(two).is_empty() && bench.read(three).is_empty());
        answer(&mut bench, worker, &id_of(&asked), r#""taskId":"t","status":"working""#);
        assert_eq!(bench.read(three).len(), 1);
    }
    bench.write(worker, r#"{"method":"notifications/message","params":{"level":"info","data":"its own"}}"#);
    assert_eq!(bench.read(two).len(), 1, "no other client's request is there any more");
}

#[test]
fn a_client_that_listens_to_a_task_elsewhere_gives_the_worker_back_that_it_has_borrowed() {
    let mut bench = Bench::asked(Pool { max_instances: 2, ..pool(2, Assignment::Dedicated) }, MODERN);
    let (one, two) = (bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    let worker = makes(&mut bench, one, "t", "");
    let listen = r#"{"id":2,"method":"subscriptions/listen","params":{"notifications":{"taskIds":["t"]}}}"#;
    bench.write(one, listen);
    assert_eq!(who_reads(&mut bench).0, worker);
    bench.write(two, r#"{"id":3,"method":"tools/call","params":{"name":"x"}}"#);
    let (other, asked) = who_reads(&mut bench);
    assert_ne!(other, worker, "that is not idle");
    bench.write(two, &listen.replace(":2,", ":4,"));
    assert_eq!(who_reads(&mut bench).0, worker);
    answer(&mut bench, other, &id_of(&asked), "");
    bench.read(two);
    let three = bench.mcp(Era::Modern);
    bench.write(three, r#"{"id":5,"method":"tools/call","params":{"name":"x"}}"#);
    assert_eq!(who_reads(&mut bench).0, other, "it is idle");
}

#[test]
fn a_worker_beyond_those_that_are_kept_stays_while_somebody_listens_to_a_task_that_it_had() {
    let mut bench = Bench::asked(Pool { max_instances: 2, ..pool(1, Assignment::Dedicated) }, MODERN);
    let (busy, one, listener) = (bench.mcp(Era::Modern), bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    bench.write(busy, r#"{"id":1,"method":"tools/call","params":{"name":"slow"}}"#);
    let (kept, _) = who_reads(&mut bench);
    let extra = makes(&mut bench, one, "t", "");
    assert_ne!(extra, kept);
    bench.write(extra, r#"{"method":"notifications/tasks","params":{"taskId":"t","status":"completed"}}"#);
    bench.write(listener, r#"{"id":2,"method":"subscriptions/listen","params":{"notifications":{"taskIds":["t"]}}}"#);
    let (reader, asked) = who_reads(&mut bench);
    assert_eq!(reader, extra);
    bench.pass(seconds(200));
    answer(&mut bench, extra, &id_of(&asked), "");
    assert_eq!(bench.read(listener).len(), 1, "it was not stopped");
}

#[test]
fn a_client_that_waits_gets_a_worker_as_soon_as_it_has_answered_what_names_its_task() {
    let mut bench = Bench::asked(Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }, MODERN);
    let clients = [(); 4].map(|()| bench.mcp(Era::Modern));
    let worker = makes(&mut bench, clients[0], "t", "");
    bench.write(clients[1], &get(2, "get", "t"));
    let (_, asked) = who_reads(&mut bench);
    // It leaves before its worker has answered anything: its source has to wait for the next one.
    bench.write(clients[2], r#"{"id":3,"method":"tools/call","params":{"name":"slow"}}"#);
    assert_ne!(who_reads(&mut bench).0, worker);
    bench.breaks(clients[2]);
    bench.gone(clients[2]);
    bench.workers.clone().into_iter().for_each(|worker| drop(bench.read(worker.into())));
    bench.write(clients[3], r#"{"id":4,"method":"tools/call","params":{"name":"x"}}"#);
    let all: Vec<Peer> = bench.workers.iter().copied().map(Peer::Worker).collect();
    assert!(all.into_iter().all(|worker| bench.read(worker).is_empty()), "it waits");
    answer(&mut bench, worker, &id_of(&asked), r#""taskId":"t","status":"working""#);
    assert_eq!(who_reads(&mut bench).0, worker);
}

#[test]
fn a_client_that_borrows_a_worker_gets_nothing_that_may_be_about_a_request_of_anothers_task() {
    let mut bench = Bench::asked(pool(1, Assignment::Dedicated), MODERN);
    let clients = [(); 3].map(|()| bench.mcp(Era::Modern));
    let worker = makes(&mut bench, clients[0], "t", "");
    bench.write(clients[1], &get(2, "get", "t"));
    let (_, asked) = who_reads(&mut bench);
    bench.write(clients[2], r#"{"id":3,"method":"tools/call","params":{"name":"x"}}"#);
    assert_eq!(who_reads(&mut bench).0, worker, "it is nobody's");
    let message = r#"{"method":"notifications/message","params":{"level":"info","data":"private"}}"#;
    bench.write(worker, message);
    assert!(clients.into_iter().all(|client| bench.read(client).is_empty()));
    answer(&mut bench, worker, &id_of(&asked), r#""taskId":"t","status":"working""#);
    bench.read(clients[1]);
    bench.write(worker, message);
    assert_eq!(bench.read(clients[2]), [message]);
}

#[test]
fn a_client_with_a_worker_of_its_own_reaches_no_other_ones_by_the_name_of_a_task() {
    for owner in [None, Some("alice")] {
        let mut bench = Bench::new(settings(vec![Pool { max_instances: 2, ..pool(2, Assignment::Dedicated) }]));
        let connect = |bench: &mut Bench| match owner {
            Some(owner) => named(bench, owner),
            None => bench.client(),
        };
        let clients = [connect(&mut bench), connect(&mut bench)];
        let worker = makes(&mut bench, clients[0], "t", "");
        let listen = r#"{"id":3,"method":"subscriptions/listen","params":{"notifications":{"taskIds":["t"]}}}"#;
        for line in [&get(1, "get", "t"), &get(2, "cancel", "t"), listen] {
            bench.write(clients[1], line);
            assert_ne!(who_reads(&mut bench).0, worker, "{owner:?}: {line}");
        }
        bench.write(clients[0], &get(1, "get", "t"));
        assert_eq!(who_reads(&mut bench).0, worker, "{owner:?}");
    }
}

#[test]
fn a_worker_that_was_started_for_a_burst_is_not_idle_while_it_has_a_task() {
    let mut bench = Bench::asked(Pool { max_instances: 2, ..pool(1, Assignment::Dedicated) }, MODERN);
    let (one, two) = (bench.mcp(Era::Modern), bench.mcp(Era::Modern));
    bench.write(one, r#"{"id":1,"method":"tools/call","params":{"name":"slow"}}"#);
    let (first, asked) = who_reads(&mut bench);
    let extra = makes(&mut bench, two, "t", r#","ttlMs":300000"#);
    assert_ne!(extra, first);
    answer(&mut bench, first, &id_of(&asked), "");
    bench.pass(seconds(290));
    assert!(!is_stopped(&bench, extra));
    bench.pass(seconds(20));
    assert!(is_stopped(&bench, extra) && !is_stopped(&bench, first));
}

#[test]
fn a_task_is_found_after_a_reload_that_has_moved_its_pool() {
    let named = |id: &str| Pool { id: id.into(), ..pool(2, Assignment::RoundRobin) };
    let config = eras::with_mcp_listener(named("b"));
    let mut bench = Bench::new(config.clone());
    let worker = bench.worker(0);
    let question = bench.read_json(worker);
    bench.write(worker, &format!(r#"{{"jsonrpc":"2.0","id":{},{}}}"#, question["id"], MODERN.unwrap()));
    let client = bench.mcp(Era::Modern);
    let worker = makes(&mut bench, client, "t", "");
    bench.reload(&Settings { pools: vec![named("b"), named("c")], ..config });
    // The first worker of the new pool is asked which versions it serves.
    bench.workers.clone().into_iter().for_each(|worker| drop(bench.read(worker.into())));
    for id in 0..4 {
        bench.write(client, &get(id, "get", "t"));
        let (reader, asked) = who_reads(&mut bench);
        assert_eq!(reader, worker);
        answer(&mut bench, worker, &id_of(&asked), r#""taskId":"t","status":"working""#);
    }
}

#[test]
fn the_tasks_of_other_workers_stay_when_one_ends() {
    let mut bench = bench(3);
    let client = bench.client();
    let tasks: Vec<Peer> = (0..3).map(|number| makes(&mut bench, client, &format!("t{number}"), "")).collect();
    bench.dies(tasks[0]);
    bench.pass(seconds(1));
    for (id, number) in [1, 2, 1, 2, 1].into_iter().enumerate() {
        bench.write(client, &get(id, "get", &format!("t{number}")));
        assert_eq!(who_reads(&mut bench).0, tasks[number]);
    }
}
