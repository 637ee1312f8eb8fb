//! The shutdown (spec 10; decision 14).

use super::super::shutdown::Stage;
use super::*;
use crate::settings::Start;

/// A bus that lets requests finish for this long; its one client waits for its one worker.
fn quiescing(quiesce: Duration) -> (Bench, Peer, Peer) {
    let mut patient = settings(vec![pool(1, Assignment::RoundRobin)]);
    patient.limits.quiesce = quiesce;
    let mut bench = Bench::new(patient);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    (bench, client, worker)
}

#[test]
fn a_worker_that_starts_while_the_others_are_killed_is_killed() {
    let mut bench = Bench::starting(settings(vec![pool(1, Assignment::RoundRobin)]));
    let worker = bench.worker(0);
    bench.shutdown();
    bench.pass(seconds(1));
    bench.shutdown();
    bench.spawn_all();
    assert_eq!(bench.signals_to(worker), [Signal::Terminate, Signal::Kill]);
}

#[test]
fn quiescing_ends_when_the_last_client_has_its_answers_and_is_silent() {
    let (mut bench, client, worker) = quiescing(seconds(10));
    bench.shutdown();
    assert_eq!(bench.bus.view().stage(), Stage::Quiescing);
    bench.pass(seconds(1));
    bench.write(worker, r#"{"id":1,"result":1}"#);
    assert_eq!(bench.read_one(client), r#"{"id":1,"result":1}"#);
    bench.pass(milliseconds(249));
    assert_eq!((bench.how_closed(client), bench.signals_to(worker)), (None, vec![]));
    bench.pass(milliseconds(1));
    assert_eq!((bench.how_closed(client), bench.signals_to(worker)), (Some(Close::Refuse), vec![Signal::Terminate]));
}

/// A bus that drains, with a client that has been silent for so long that it is closed, and the only worker.
fn silent() -> (Bench, Peer, Peer) {
    let (mut bench, client, worker) = quiescing(seconds(10));
    bench.write(worker, r#"{"id":1,"result":1}"#);
    bench.read(client);
    bench.shutdown();
    bench.pass(milliseconds(250));
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
    (bench, client, worker)
}

#[test]
fn a_silent_client_is_read_until_the_workers_have_ended_and_closed_at_once_then() {
    let (mut bench, client, worker) = silent();
    bench.pass(milliseconds(500));
    assert_eq!(bench.how_closed(client), Some(Close::Refuse));
    bench.dies(worker);
    bench.pass(milliseconds(1));
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}

#[test]
fn a_request_that_was_under_way_when_its_client_counted_as_silent_is_refused() {
    for has_ended in [false, true] {
        let (mut bench, client, worker) = silent();
        match has_ended {
            false => bench.pass(milliseconds(900)),
            // It is read for 100 ms in any case.
            true => {
                bench.dies(worker);
                bench.pass(milliseconds(99));
            }
        }
        bench.write(client, r#"{"id":2,"method":"x"}"#);
        let error = bench.read_json(client)["error"].take();
        assert_eq!(error["data"], json!({ "reason": "shutting_down", "delivered": false }));
        bench.pass(milliseconds(100));
        assert_eq!(bench.how_closed(client), Some(Close::Flush), "it has been notified");
    }
}

#[test]
fn a_silent_client_waits_for_workers_that_do_not_end_for_a_second_at_most() {
    let (mut bench, client, _) = silent();
    bench.pass(milliseconds(999));
    assert_eq!(bench.how_closed(client), Some(Close::Refuse));
    bench.pass(milliseconds(1));
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}

#[test]
fn quiescing_waits_for_no_subscription() {
    let (mut bench, client, worker) = quiescing(seconds(10));
    let listener = bench.client();
    for (client, id) in [(client, 2), (listener, 1)] {
        bench.write(client, &format!(r#"{{"id":{id},"method":"subscriptions/listen"}}"#));
    }
    bench.shutdown();
    for (client, id) in [(client, 2), (listener, 1)] {
        let error = bench.read_json(client);
        assert_eq!((&error["id"], &error["error"]["data"]["reason"]), (&id.into(), &"shutting_down".into()));
    }
    bench.pass(seconds(1));
    assert_eq!((bench.how_closed(listener), bench.how_closed(client)), (Some(Close::Refuse), None));
    bench.write(worker, r#"{"id":1,"result":1}"#);
    assert_eq!(bench.read_one(client), r#"{"id":1,"result":1}"#);
    bench.pass(seconds(1));
    assert_eq!(bench.signals_to(worker), [Signal::Terminate], "all that was to be answered is");
}

#[test]
fn without_a_grace_an_answer_that_a_deadline_makes_is_looked_at_once() {
    let mut curt = settings(vec![pool(1, Assignment::RoundRobin)]);
    (curt.limits.quiesce, curt.limits.drain_grace) = (seconds(30), Duration::ZERO);
    curt.limits.drain_timeout = seconds(5);
    let mut bench = Bench::new(curt);
    let (gone, waiting) = (bench.client(), bench.client());
    for client in [gone, waiting] {
        bench.write(client, r#"{"id":1,"method":"x"}"#);
    }
    bench.ends(gone);
    bench.shutdown();
    // `pass` checks that no tick asks for its own moment again.
    bench.pass(seconds(5));
    assert_eq!(bench.read_json(gone)["error"]["data"]["reason"], "timeout");
    assert_eq!((bench.how_closed(gone), bench.how_closed(waiting)), (Some(Close::Flush), None));
}

#[test]
fn a_client_that_waits_for_nothing_is_closed_with_its_first_refusal() {
    let (mut bench, client, worker) = quiescing(seconds(10));
    let idle = bench.client();
    bench.read(worker);
    bench.shutdown();
    bench.pass(milliseconds(200));
    bench.write(idle, r#"{"id":2,"method":"x"}"#);
    let error = bench.read_json(idle)["error"].take();
    assert_eq!((&error["code"], &error["data"]["reason"]), (&Value::from(-32016), &Value::from("shutting_down")));
    assert_eq!(error["data"]["delivered"], false);
    assert_eq!(bench.how_closed(idle), Some(Close::Refuse));
    bench.pass(milliseconds(60));
    bench.write(idle, r#"{"id":3,"method":"x"}"#);
    assert_eq!(bench.read_json(idle)["error"]["data"], error["data"], "it had not seen the first refusal yet");
    bench.pass(milliseconds(99));
    assert_eq!(bench.how_closed(idle), Some(Close::Refuse), "it was heard again");
    bench.pass(milliseconds(1));
    assert_eq!((bench.how_closed(idle), bench.how_closed(client)), (Some(Close::Flush), None));
    assert!(bench.read(worker).is_empty());
}

#[test]
fn a_client_that_is_refused_while_it_waits_for_an_answer_gets_that_first() {
    let (mut bench, client, worker) = quiescing(seconds(10));
    bench.shutdown();
    for id in 2..5 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
        assert_eq!(bench.read_error(client).0, "shutting_down");
        bench.pass(milliseconds(400));
        assert_eq!(bench.how_closed(client), None);
    }
    bench.write(worker, r#"{"id":1,"result":1}"#);
    assert_eq!(bench.read_one(client), r#"{"id":1,"result":1}"#);
    bench.write(client, r#"{"id":5,"method":"x"}"#);
    assert_eq!((bench.read_error(client).0.as_str(), bench.how_closed(client)), ("shutting_down", Some(Close::Refuse)));
}

#[test]
fn a_request_that_is_refused_ahead_of_a_line_that_waits_closes_its_client() {
    let mut narrow = settings(vec![pool(1, Assignment::RoundRobin)]);
    (narrow.limits.quiesce, narrow.limits.max_output_queue) = (seconds(10), 100);
    let mut bench = Bench::new(narrow);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.stalls(worker);
    let long = format!(r#"{{"method":"x","params":"{}"}}"#, "y".repeat(200));
    bench.write(client, &long);
    bench.shutdown();
    bench.write_bytes(
        client,
        format!("{{\"id\":2,\"method\":\"x\"}}\n{long}\n{{\"id\":3,\"method\":\"x\"}}\n").as_bytes(),
    );
    let errors: Vec<Value> = bench.read(client).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let refused: Vec<_> = errors.iter().map(|error| (&error["id"], &error["error"]["data"]["reason"])).collect();
    assert_eq!(refused, [(&json!(2), &json!("shutting_down")), (&json!(3), &json!("shutting_down"))]);
    assert_eq!(bench.how_closed(client), Some(Close::Refuse));
}

/// A client sends 20 requests a second, and closes its connection when it sees the end of it. Returns after how many of
/// them the bus is done.
fn asks_on(bench: &mut Bench, client: Peer) -> u32 {
    for id in 100..1000 {
        if bench.how_closed(client) == Some(Close::Flush) {
            bench.gone(client);
        }
        if bench.done {
            return id - 100;
        }
        if bench.how_closed(client) != Some(Close::Flush) {
            bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
            assert_eq!(bench.read_error(client).0, "shutting_down");
        }
        bench.pass(milliseconds(50));
    }
    panic!("the shutdown never ends");
}

#[test]
fn a_client_that_asks_on_holds_up_the_shutdown_for_a_second_at_most() {
    for quiesce in [0, 45] {
        let mut patient = settings(vec![pool(1, Assignment::RoundRobin)]);
        patient.limits.quiesce = seconds(quiesce);
        let mut bench = Bench::new(patient);
        let (client, worker) = (bench.client(), bench.worker(0));
        bench.shutdown();
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        assert_eq!((bench.read_error(client).2, bench.how_closed(client)), (1.into(), Some(Close::Refuse)));
        assert_eq!(bench.signals_to(worker), [Signal::Terminate], "nobody needs it any more");
        bench.dies(worker);
        assert!(asks_on(&mut bench, client) <= 21);
    }
}

#[test]
fn when_all_workers_have_ended_a_client_that_asks_on_is_closed_within_a_second() {
    let (mut bench, client, worker) = quiescing(Duration::ZERO);
    bench.shutdown();
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    assert_eq!((bench.read_error(client).2, bench.how_closed(client)), (2.into(), None), "it waits for an answer");
    bench.dies(worker);
    assert_eq!(bench.read_error(client).2, 1);
    assert!(asks_on(&mut bench, client) <= 21);
}

#[test]
fn messages_about_a_pending_request_pass_while_quiescing() {
    let (mut bench, client, worker) = quiescing(seconds(10));
    bench.write(client, r#"{"id":2,"method":"session/prompt","sessionId":"s"}"#);
    bench.write(worker, r#"{"id":7,"method":"session/request_permission","sessionId":"s"}"#);
    bench.read(client);
    bench.read(worker);
    bench.shutdown();
    let lines = [
        r#"{"id":7,"result":{}}"#,
        r#"{"method":"session/cancel","sessionId":"s"}"#,
        r#"{"method":"$/cancel_request","params":{"requestId":1}}"#,
    ];
    for line in lines {
        bench.write(client, line);
        assert_eq!(bench.read_one(worker), line);
    }
}

#[test]
fn no_worker_is_started_for_a_notification_while_quiescing_nor_a_spare_after_the_one_that_it_took() {
    for (start, lost) in [(Start::OnDemand, 1), (Start::AtOnce, 0)] {
        let mut patient = settings(vec![Pool { start, max_instances: 3, ..pool(1, Assignment::Dedicated) }]);
        patient.limits.quiesce = seconds(10);
        let mut bench = Bench::new(patient);
        let (served, other) = (bench.client(), bench.client());
        bench.write(served, r#"{"id":1,"method":"x"}"#);
        let before = bench.workers.len();
        bench.shutdown();
        bench.write(other, r#"{"method":"n"}"#);
        assert_eq!((bench.workers.len(), bench.count(Reason::NoWorker)), (before, lost), "{start:?}");
        let worker = bench.worker(0);
        bench.write(worker, r#"{"id":1,"result":1}"#);
        assert_eq!(bench.read_json(served)["result"], 1, "what was asked before is answered");
    }
}

#[test]
fn a_client_in_the_middle_of_a_line_is_not_silent() {
    let (mut bench, client, worker) = quiescing(seconds(10));
    bench.write(worker, r#"{"id":1,"result":1}"#);
    bench.read(client);
    bench.shutdown();
    bench.write_bytes(client, br#"{"id":2,"met"#);
    bench.pass(seconds(5));
    assert_eq!(bench.how_closed(client), None);
    bench.write(client, r#"hod":"x"}"#);
    assert_eq!(bench.read_error(client).0, "shutting_down");
    bench.pass(milliseconds(250));
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}

#[test]
fn a_client_that_was_on_its_way_is_taken_while_quiescing_and_refused_afterwards() {
    let (mut bench, _client, _worker) = quiescing(seconds(10));
    bench.shutdown();
    assert!(!bench.listeners.listening);
    assert!(bench.connect(0, Source::Inherited).is_some(), "it was in the backlog");
    bench.pass(seconds(10));
    assert!(bench.connect(0, Source::Inherited).is_none());
}

#[test]
fn a_lame_duck_takes_clients_and_requests_until_its_time_is_up() {
    let mut lame = settings(vec![pool(1, Assignment::RoundRobin)]);
    lame.limits.lame_duck = seconds(3);
    let mut bench = Bench::new(lame);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.shutdown();
    assert_eq!((bench.bus.view().stage(), bench.listeners.listening), (Stage::LameDuck, true));
    let late = bench.client();
    for (id, client) in [(1, client), (2, late)] {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    assert_eq!(bench.read(worker).len(), 2);
    bench.pass(milliseconds(2999));
    assert!(bench.listeners.listening && bench.signals_to(worker).is_empty());
    bench.pass(milliseconds(1));
    assert!(!bench.listeners.listening);
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
}

#[test]
fn a_lame_duck_leaves_shared_ports_to_other_daemons_and_serves_who_had_come() {
    let mut lame = settings(vec![pool(1, Assignment::RoundRobin)]);
    lame.limits.lame_duck = seconds(3);
    let mut bench = Bench::new(lame);
    let worker = bench.worker(0);
    assert!(!bench.listeners.has_left_shared);
    bench.shutdown();
    assert!(bench.listeners.has_left_shared);
    let was_in_the_queue = bench.client();
    bench.write(was_in_the_queue, r#"{"id":1,"method":"x"}"#);
    assert_eq!(bench.read(worker).len(), 1);
}

#[test]
fn a_lame_duck_continues_for_a_second_without_clients_and_sessions() {
    let mut lame = settings(vec![pool(1, Assignment::RoundRobin)]);
    lame.limits.lame_duck = seconds(600);
    let mut bench = Bench::new(lame);
    let client = bench.client();
    bench.shutdown();
    bench.pass(seconds(100));
    assert_eq!(bench.bus.view().stage(), Stage::LameDuck);
    bench.ends(client);
    bench.gone(client);
    bench.pass(milliseconds(999));
    let late = bench.client();
    bench.pass(milliseconds(1));
    assert!(bench.listeners.listening, "one more came by a balancer that had not noticed");
    bench.ends(late);
    bench.gone(late);
    bench.pass(milliseconds(999));
    let briefly = bench.client();
    bench.ends(briefly);
    bench.gone(briefly);
    bench.pass(milliseconds(999));
    assert!(bench.listeners.listening);
    bench.pass(milliseconds(1));
    assert!(!bench.listeners.listening);
    let is_reported = |text: &str| bench.reports.iter().any(|report| report.text.contains(text));
    assert!(is_reported("shutting down: no client is left"));
}

#[test]
fn a_lame_duck_that_never_had_a_client_is_one_for_a_second() {
    let mut lame = settings(vec![pool(1, Assignment::RoundRobin)]);
    lame.limits.lame_duck = seconds(600);
    let mut bench = Bench::new(lame);
    bench.shutdown();
    bench.pass(milliseconds(999));
    assert!(bench.listeners.listening);
    bench.pass(milliseconds(1));
    assert!(!bench.listeners.listening);
}

#[test]
fn two_signals_within_a_second_are_one() {
    let (mut bench, client, worker) = quiescing(seconds(10));
    bench.shutdown();
    bench.pass(milliseconds(999));
    bench.shutdown();
    assert_eq!((bench.how_closed(client), bench.signals_to(worker)), (None, vec![]));
    bench.pass(milliseconds(1));
    bench.shutdown();
    assert_eq!(bench.signals_to(worker), [Signal::Terminate, Signal::Kill]);
    assert_eq!(bench.how_closed(client), Some(Close::Refuse));
}

#[test]
fn a_signal_after_the_end_of_stdin_ends_everything_at_once() {
    let mut stdio = settings(vec![pool(1, Assignment::RoundRobin)]);
    stdio.listeners[0].stdio = true;
    let mut bench = Bench::new(stdio);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.ends(client);
    bench.gone(client);
    bench.shutdown();
    assert_eq!(bench.signals_to(worker), [Signal::Terminate, Signal::Kill]);
}

#[test]
fn a_shutdown_stops_accepting_stops_the_workers_and_ends_when_all_have_left() {
    let mut bench = bench(2);
    let (client, first, second) = (bench.client(), bench.worker(0), bench.worker(1));
    bench.shutdown();
    assert!(!bench.listeners.listening);
    assert!(bench.connect(0, Source::Inherited).is_none());
    assert_eq!(bench.stop_actions.iter().filter(|(_, action)| *action == StopAction::End).count(), 2);
    for worker in [first, second] {
        assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
        bench.exits(worker, Exit::Signal(15));
        bench.ends(worker);
    }
    assert_eq!(bench.count(Reason::WorkerStopped), 2);
    assert_eq!(bench.how_closed(client), Some(Close::Refuse), "it is read until it is silent");
    bench.pass(milliseconds(100));
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
    assert!(!bench.done);
    bench.gone(client);
    assert!(bench.done);
    assert_eq!(bench.bus.view().stage(), Stage::Done);
}

#[test]
fn workers_that_do_not_stop_are_killed_after_drain_timeout() {
    let mut bench = bench(1);
    let worker = bench.worker(0);
    bench.shutdown();
    bench.pass(milliseconds(29_999));
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
    bench.pass(milliseconds(1));
    bench.pass(milliseconds(500));
    assert_eq!(bench.signals_to(worker), [Signal::Terminate, Signal::Kill]);
    assert_eq!(bench.count(Reason::WorkerKilled), 1);
    bench.exits(worker, Exit::Signal(9));
    bench.ends(worker);
    assert!(bench.done);
}

#[test]
fn a_killed_worker_that_is_never_reaped_does_not_hold_up_the_end() {
    let mut bench = bench(1);
    bench.shutdown();
    bench.pass(seconds(32));
    assert!(bench.done);
}

#[test]
fn answers_that_come_during_the_shutdown_are_delivered_and_missing_ones_are_errors() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.write(client, r#"{"id":2,"method":"x","sessionId":"s"}"#);
    bench.shutdown();
    bench.write(worker, r#"{"id":1,"result":1}"#);
    assert_eq!(bench.read_one(client), r#"{"id":1,"result":1}"#);
    bench.write(client, r#"{"id":3,"method":"x","sessionId":"s"}"#);
    let (reason, code, id) = bench.read_error(client);
    assert_eq!((reason.as_str(), code, id), ("shutting_down", -32016, Value::from(3)));
    bench.exits(worker, Exit::Code(0));
    bench.ends(worker);
    assert_eq!(bench.read_error(client).2, Value::from(2));
    bench.pass(milliseconds(60));
    bench.write(client, r#"{"id":4,"method":"x","sessionId":"s"}"#);
    assert_eq!(bench.read_error(client).0, "shutting_down");
    bench.pass(milliseconds(60));
    assert_eq!(bench.how_closed(client), Some(Close::Refuse), "it may send more");
    bench.pass(milliseconds(40));
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
}

#[test]
fn no_worker_is_restarted_during_the_shutdown() {
    let mut bench = bench(2);
    let (first, second) = (bench.worker(0), bench.worker(1));
    bench.dies(first);
    bench.shutdown();
    bench.pass(seconds(10));
    assert_eq!(bench.workers.len(), 1);
    bench.exits(second, Exit::Code(0));
    bench.ends(second);
    assert!(bench.done && bench.workers.is_empty());
}

#[test]
fn a_second_signal_fails_pending_requests_and_ends_within_a_second() {
    for stalls in [false, true] {
        let (mut bench, client, worker) = quiescing(seconds(1000));
        bench.shutdown();
        bench.pass(seconds(1));
        if stalls {
            bench.stalls(client);
        }
        bench.shutdown();
        assert_eq!(bench.signals_to(worker), [Signal::Terminate, Signal::Kill]);
        assert_eq!(bench.how_closed(client), Some(Close::Refuse));
        let error = bench.read_json(client);
        assert_eq!((&error["id"], &error["error"]["data"]["reason"]), (&json!(1), &json!("shutting_down")));
        assert_eq!(error["error"]["data"]["delivered"], true);
        bench.write(client, r#"{"id":2,"method":"x"}"#);
        let error = bench.read_json(client);
        assert_eq!((&error["id"], &error["error"]["data"]["delivered"]), (&json!(2), &json!(false)));
        bench.exits(worker, Exit::Signal(9));
        bench.ends(worker);
        bench.pass(milliseconds(100));
        assert_eq!(bench.how_closed(client), Some(Close::Flush));
        if stalls {
            bench.pass(milliseconds(899));
            assert_eq!(bench.how_closed(client), Some(Close::Flush));
            bench.pass(milliseconds(1));
            assert_eq!(bench.how_closed(client), Some(Close::Now));
        }
        assert!(!bench.done);
        bench.gone(client);
        assert!(bench.done);
        bench.shutdown();
    }
}

#[test]
fn after_a_second_signal_the_end_does_not_wait_for_an_unkillable_worker() {
    let (mut bench, client, _worker) = quiescing(seconds(1000));
    bench.shutdown();
    bench.pass(seconds(1));
    bench.shutdown();
    bench.gone(client);
    bench.pass(milliseconds(999));
    assert!(!bench.done);
    bench.pass(milliseconds(1));
    assert!(bench.done);
}

#[test]
fn a_signal_after_a_drain_by_the_operator_is_the_first_one() {
    let (mut bench, client, worker) = quiescing(seconds(1000));
    bench.handle(Input::Drain);
    bench.pass(seconds(2));
    bench.shutdown();
    bench.handle(Input::Drain);
    assert!(bench.signals_to(worker).is_empty(), "no worker is stopped yet");
    bench.pass(seconds(2));
    bench.shutdown();
    assert_eq!(bench.signals_to(worker), [Signal::Terminate, Signal::Kill]);
    assert_eq!(bench.how_closed(client), Some(Close::Refuse));
}

#[test]
fn a_second_signal_ends_the_quiet_time_too() {
    let (mut bench, _client, worker) = quiescing(seconds(1000));
    bench.shutdown();
    bench.pass(seconds(1));
    bench.shutdown();
    assert_eq!(bench.signals_to(worker), [Signal::Terminate, Signal::Kill]);
}

#[test]
fn the_quiet_time_is_bounded() {
    let (mut bench, _client, worker) = quiescing(seconds(10));
    bench.shutdown();
    assert!(!bench.listeners.listening);
    bench.pass(milliseconds(9999));
    assert!(bench.signals_to(worker).is_empty());
    bench.pass(milliseconds(1));
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
}

#[test]
fn a_client_that_does_not_take_its_last_bytes_is_left_behind() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.stalls(client);
    bench.shutdown();
    bench.dies(worker);
    bench.pass(milliseconds(100));
    assert_eq!(bench.how_closed(client), Some(Close::Flush));
    bench.pass(seconds(30));
    assert_eq!(bench.how_closed(client), Some(Close::Now));
    bench.gone(client);
    assert!(bench.done);
    assert!(bench.bus.view().stats().bytes_unsent > 0);
}

#[test]
fn lines_of_a_client_that_never_took_its_answers_are_reported_at_the_end() {
    let mut settings = settings(vec![pool(1, Assignment::RoundRobin)]);
    settings.limits.max_output_queue = 1000;
    let mut bench = Bench::new(settings);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.stalls(client);
    bench.shutdown();
    bench.dies(worker);
    // Each is refused, until there is no more room for refusals.
    let asked: String = (0..100).map(|id| format!("{{\"id\":{id},\"method\":\"x\"}}\n")).collect();
    bench.write_bytes(client, asked.as_bytes());
    assert!(bench.is_paused(client));
    assert_eq!(bench.count(Reason::ClientOverdue), 0);
    bench.pass(seconds(30));
    assert_eq!(bench.count(Reason::ClientOverdue), 2, "its lines, and what it did not take");
    assert_eq!(bench.how_closed(client), Some(Close::Now));
}

#[test]
fn the_end_of_an_answer_that_a_shutdown_cuts_is_reported() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.stalls(client);
    bench.write(worker, r#"{"id":1,"result":{}}"#);
    bench.shutdown();
    bench.dies(worker);
    bench.pass(seconds(60));
    assert_eq!((bench.how_closed(client), bench.count(Reason::ClientOverdue)), (Some(Close::Now), 1));
}

#[test]
fn a_stdin_that_ends_without_a_line_is_reported_unless_others_can_connect() {
    for (listeners, reports) in [(1, 1), (2, 0)] {
        let mut stdio = settings(vec![pool(1, Assignment::RoundRobin)]);
        stdio.listeners.resize(listeners, stdio.listeners[0].clone());
        stdio.listeners[0].stdio = true;
        let mut bench = Bench::new(stdio);
        let client = bench.client();
        bench.ends(client);
        bench.gone(client);
        assert_eq!(bench.count(Reason::NoInput), reports);
    }
}

#[test]
fn in_stdio_mode_the_end_of_stdin_is_the_end_after_the_last_answer() {
    let mut stdio = settings(vec![pool(1, Assignment::RoundRobin)]);
    stdio.listeners[0].stdio = true;
    let mut bench = Bench::new(stdio);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.ends(client);
    assert_eq!(bench.bus.view().stage(), Stage::Running);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    assert_eq!(bench.read_one(client), r#"{"id":1,"result":1}"#);
    bench.ends(client);
    bench.gone(client);
    let report = bench.reports.iter().find(|report| report.reason == Reason::Draining).unwrap();
    assert!(report.text.starts_with("shutting down: stdin has ended"), "{}", report.text);
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
    bench.exits(worker, Exit::Signal(15));
    bench.ends(worker);
    assert!(bench.done);
}

#[test]
fn a_worker_that_was_asked_to_stop_before_it_ran_is_stopped_when_it_runs() {
    let mut bench = Bench::starting(settings(vec![pool(1, Assignment::RoundRobin)]));
    let worker = bench.worker(0);
    bench.shutdown();
    assert!(bench.signals_to(worker).is_empty(), "there is no process to signal yet");
    bench.spawn_all();
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
}
