//! Workers that start, exit, misbehave and are restarted (spec 5.3, 7.1; decision 13).

use super::*;
use crate::pool_stats::ENDS;

#[test]
fn the_last_lines_of_a_worker_are_read_even_if_a_slow_client_held_them_up() {
    let mut small = settings(vec![pool(1, Assignment::RoundRobin)]);
    small.limits.max_output_queue = 100;
    let mut bench = Bench::new(small);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.stalls(client);
    bench.write(worker, &format!(r#"{{"method":"update","sessionId":"s","params":"{}"}}"#, "x".repeat(100)));
    bench.wire(worker).kept.extend_from_slice(b"{\"id\":1,\"result\":2}\n");
    bench.present(worker);
    assert!(bench.is_paused(worker));
    bench.exits(worker, Exit::Code(0));
    bench.pass(milliseconds(1999));
    // It is read again just before its time would be up; the shell needs a moment to do so.
    let queued = bench.wire(client).queued;
    bench.wire(worker).is_late = true;
    bench.takes(client, queued);
    bench.pass(milliseconds(500));
    bench.wire(worker).is_late = false;
    bench.present(worker);
    bench.takes(client, 1000);
    assert_eq!(bench.read(client).last().unwrap(), r#"{"id":1,"result":2}"#);
    bench.pass(milliseconds(500));
    assert!(bench.is_released(worker), "its pipe is held by another process");
}

#[test]
fn a_stalled_worker_that_waits_for_a_client_is_not_resumed_only_to_be_forgotten() {
    let mut small = settings(vec![pool(1, Assignment::RoundRobin)]);
    small.limits.max_output_queue = 100;
    small.limits.backpressure_timeout = seconds(5);
    let mut bench = Bench::new(small);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.stalls(worker);
    bench.write(client, &format!(r#"{{"method":"x","params":"{}"}}"#, "x".repeat(100)));
    bench.pass(seconds(4));
    bench.stalls(client);
    bench.write(worker, &format!(r#"{{"method":"update","sessionId":"s","params":"{}"}}"#, "x".repeat(100)));
    bench.write(worker, r#"{"method":"update","sessionId":"s"}"#);
    assert!(bench.is_paused(worker));
    bench.pass(seconds(1));
    assert_eq!(bench.count(Reason::WorkerStalled), 1);
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
    // Its requests were dropped, so its stdout is over: it is gone as soon as it has exited.
    bench.exits(worker, Exit::Signal(15));
    assert!(bench.is_released(worker));
    assert_eq!(bench.count(Reason::WorkerHoldsPipe), 0);
}

#[test]
fn a_malformed_line_among_the_last_ones_of_a_dead_worker_ends_it_at_once() {
    let mut bench = bench(1);
    let worker = bench.worker(0);
    bench.exits(worker, Exit::Code(0));
    bench.write(worker, "Segmentation fault");
    assert!(bench.is_released(worker));
    assert_eq!((bench.count(Reason::WorkerMalformed), bench.count(Reason::WorkerHoldsPipe)), (1, 0));
    assert!(bench.signals_to(worker).is_empty(), "it has been reaped");
}

#[test]
fn stray_output_on_stdout_ends_the_worker_with_its_requests_and_sessions() {
    for bytes in [&b"Loading model...\n"[..], b"[]\n", b"{\"id\":1,\"id\":1}\n", b"\xff\n"] {
        let mut bench = bench(1);
        let (client, worker) = (bench.client(), bench.worker(0));
        bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
        bench.write_bytes(worker, bytes);
        let error = bench.reports.iter().find(|report| report.reason == Reason::WorkerMalformed).unwrap();
        assert_eq!(
            (error.level, error.worker),
            (crate::report::Level::Error, Some(WorkerName { pool: PoolId::at(0), place: 0, incarnation: 0 }))
        );
        assert_eq!(bench.bus.view().stats().sessions, 0);
        assert_eq!(bench.read_error(client).0, "worker_exited");
        assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
        bench.write_bytes(worker, b"{\"id\":1,\"result\":1}\n");
        assert!(bench.read(client).is_empty(), "it is not listened to any more");
        bench.exits(worker, Exit::Signal(15));
        assert!(bench.is_released(worker) && bench.workers.is_empty());
        bench.pass(milliseconds(100));
        assert_eq!(bench.workers.len(), 1, "it is restarted");
    }
}

#[test]
fn stray_output_of_a_worker_is_shown_escaped_and_short() {
    let mut bench = bench(1);
    let worker = bench.worker(0);
    bench.write_bytes(worker, format!("Hi \x1b[31m{}\n", "x".repeat(500)).as_bytes());
    let error = bench.reports.iter().find(|report| report.reason == Reason::WorkerMalformed).unwrap();
    assert!(error.text.contains(r"Hi \x1b[31mxxx") && error.text.len() < 256, "{}", error.text);
}

#[test]
fn every_unexpected_exit_restarts_the_worker_exit_0_too() {
    for exit in [Exit::Code(0), Exit::Code(1), Exit::Signal(11)] {
        let mut bench = bench(1);
        let worker = bench.worker(0);
        bench.exits(worker, exit);
        bench.ends(worker);
        assert_eq!(bench.count(Reason::WorkerExited), 1);
        let report = bench.reports.iter().find(|report| report.reason == Reason::WorkerExited).unwrap();
        assert!(report.text.contains(&exit.to_string()), "{}", report.text);
        bench.pass(milliseconds(99));
        assert!(bench.workers.is_empty());
        bench.pass(milliseconds(1));
        assert_eq!(bench.workers.len(), 1);
    }
}

#[test]
fn the_backoff_doubles_with_every_exit_and_starts_over_after_a_minute_of_running() {
    let mut bench = bench(1);
    for delay in [100, 200, 400, 800] {
        let worker = bench.worker(0);
        bench.dies(worker);
        bench.pass(milliseconds(delay - 1));
        assert!(bench.workers.is_empty(), "not before {delay} ms");
        bench.pass(milliseconds(1));
        assert_eq!(bench.workers.len(), 1, "after {delay} ms");
    }
    bench.pass(seconds(60));
    let worker = bench.worker(0);
    bench.dies(worker);
    bench.pass(milliseconds(100));
    assert_eq!(bench.workers.len(), 1);
}

#[test]
fn the_sixth_exit_in_a_minute_is_the_last_one_until_the_minute_has_passed() {
    let mut bench = bench(1);
    let client = bench.client();
    for _ in 0..5 {
        let worker = bench.worker(0);
        bench.dies(worker);
        bench.pass(seconds(5));
        assert_eq!(bench.workers.len(), 1);
    }
    let worker = bench.worker(0);
    bench.dies(worker);
    bench.pass(milliseconds(59_999));
    assert!(bench.workers.is_empty());
    let error = bench.reports.iter().find(|report| report.reason == Reason::PoolDegraded).unwrap();
    assert_eq!(error.level, crate::report::Level::Error);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    assert_eq!(bench.read_error(client).0, "no_worker");
    bench.pass(milliseconds(1));
    assert_eq!(bench.workers.len(), 1, "the command may have been fixed");
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    let worker = bench.worker(0);
    assert_eq!(bench.read(worker).len(), 1);
}

#[test]
fn a_worker_that_may_not_be_restarted_is_never_started_again() {
    let mut strict = settings(vec![pool(1, Assignment::RoundRobin)]);
    strict.limits.max_restarts = 0;
    let mut bench = Bench::new(strict);
    let worker = bench.worker(0);
    bench.dies(worker);
    bench.pass(seconds(3600));
    assert!(bench.workers.is_empty());
}

#[test]
fn a_spawn_that_failed_for_want_of_descriptors_is_tried_again_and_counts_for_nothing() {
    let mut bench = Bench::starting(settings(vec![pool(1, Assignment::RoundRobin)]));
    for _ in 0..100 {
        let Peer::Worker(worker) = bench.worker(0) else { unreachable!() };
        bench.handle(Input::SpawnFailed { worker, why: "Too many open files".into(), fault: SpawnFailure::Shortage });
        assert!(bench.workers.is_empty());
        bench.pass(seconds(1));
        assert_eq!(bench.workers.len(), 1);
    }
    assert_eq!(bench.count(Reason::PoolDegraded), 0);
}

#[test]
fn the_log_names_the_kernels_memory_killer() {
    let mut bench = bench(1);
    let worker = bench.worker(0);
    bench.exits(worker, Exit::OutOfMemory);
    let report = bench.reports.iter().find(|report| report.reason == Reason::WorkerExited).expect("it is reported");
    assert!(report.text.contains("signal 9 of the kernel's memory killer"), "{}", report.text);
}

#[test]
fn restarts_outside_the_window_do_not_count() {
    let mut bench = bench(1);
    for _ in 0..20 {
        let worker = bench.worker(0);
        bench.dies(worker);
        bench.pass(seconds(61));
        assert_eq!(bench.workers.len(), 1);
    }
}

#[test]
fn a_worker_that_cannot_be_started_is_tried_again_later_and_others_are_not_touched() {
    let mut bench = Bench::starting(settings(vec![pool(2, Assignment::RoundRobin)]));
    let (client, bad) = (bench.client(), bench.workers[0]);
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.handle(Input::SpawnFailed { worker: bad, why: "cannot fork".into(), fault: SpawnFailure::Command });
    assert_eq!(bench.read_error(client).0, "no_worker");
    assert_eq!(bench.count(Reason::SpawnFailed), 1);
    bench.spawn_all();
    let good = bench.worker(0);
    bench.write(client, r#"{"id":2,"method":"x"}"#);
    assert_eq!(bench.read(good).len(), 1);
    bench.pass(milliseconds(100));
    assert_eq!(bench.workers.len(), 2);
}

#[test]
fn lines_for_a_worker_that_could_not_be_started_were_not_delivered_and_their_senders_read_why() {
    const WHY: &str = "cannot start \"gone\" (/bin/gone): No such file or directory";
    for assignment in [Assignment::RoundRobin, Assignment::Client, Assignment::Dedicated] {
        for (fault, remedy) in [
            (SpawnFailure::Command, "; correct the command of pool \"agents\""),
            // Its reason says what to raise.
            (SpawnFailure::Shortage, ""),
        ] {
            let mut bench = Bench::starting(settings(vec![pool(1, assignment)]));
            let (client, worker) = (bench.client(), bench.workers[0]);
            bench.write(client, r#"{"id":1,"method":"x"}"#);
            bench.write(client, r#"{"method":"note"}"#);
            bench.write(client, r#"{"id":2,"method":"session/new"}"#);
            bench.write(client, r#"{"method":"note"}"#);
            bench.handle(Input::SpawnFailed { worker, why: WHY.into(), fault });
            let said = bench.read(client);
            assert_eq!(said.len(), 2, "{said:?}");
            for (line, id) in said.iter().zip(1..) {
                let said: Value = serde_json::from_str(line).expect("JSON");
                let error = &said["error"];
                assert_eq!((&said["id"], &error["code"]), (&json!(id), &json!(-32010)), "{said}");
                assert_eq!(error["data"], json!({ "reason": "no_worker", "delivered": false }));
                assert_eq!(error["message"], format!("the worker could not be started: {WHY}{remedy}"));
            }
            assert_eq!((bench.count(Reason::RequestLost), bench.count(Reason::NoWorker)), (0, 3));
            let lost = bench
                .reports
                .iter()
                .find(|report| report.text.starts_with("lines that get no answer were not delivered, 2 in all"));
            assert!(lost.is_some_and(|report| report.text.contains(WHY)), "the log names the notifications");
            assert_eq!(bench.how_closed(client), None);
        }
    }
}

#[test]
fn one_bad_worker_does_not_touch_the_others_of_its_pool() {
    let mut bench = bench(3);
    let client = bench.client();
    let workers = [bench.worker(0), bench.worker(1), bench.worker(2)];
    let line = |id: usize, at: usize| format!(r#"{{"id":{id},"method":"x","sessionId":"s{at}"}}"#);
    for (at, worker) in workers.into_iter().enumerate() {
        bench.write(client, &line(at, at));
        bench.read_one(worker);
    }
    bench.write(workers[1], "nonsense");
    assert_eq!(bench.read_error(client), ("worker_exited".to_owned(), -32011, 1.into()));
    for at in [0, 2] {
        bench.write(client, &line(10 + at, at));
        assert_eq!(bench.read_one(workers[at]), line(10 + at, at));
    }
}

#[test]
fn lines_written_by_a_worker_before_it_died_are_delivered() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.exits(worker, Exit::Signal(9));
    assert!(!bench.is_released(worker), "its stdout is still read");
    bench.write_bytes(worker, b"{\"id\":1,\"result\":1}\n{\"id\":1,\"res");
    bench.ends(worker);
    assert_eq!(bench.read_one(client), r#"{"id":1,"result":1}"#);
    assert!(bench.is_released(worker));
    assert_eq!(bench.count(Reason::PartialLine), 1);
}

#[test]
fn a_pipe_that_a_grandchild_holds_open_is_closed_after_a_second() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.exits(worker, Exit::Code(0));
    bench.pass(milliseconds(999));
    assert!(!bench.is_released(worker));
    bench.pass(milliseconds(1));
    assert!(bench.is_released(worker));
    assert_eq!(bench.count(Reason::WorkerHoldsPipe), 1);
    assert_eq!(bench.read_error(client).0, "worker_exited");
}

#[test]
fn a_worker_that_closes_a_pipe_and_lives_is_asked_to_stop() {
    for (reason, stdout) in [(Reason::WorkerClosedStdout, true), (Reason::WorkerClosedStdin, false)] {
        let mut bench = bench(1);
        let (client, worker) = (bench.client(), bench.worker(0));
        bench.write(client, r#"{"id":1,"method":"x"}"#);
        if stdout {
            bench.ends(worker);
        } else {
            bench.write(worker, r#"{"id":1,"result":1}"#);
            bench.read(client);
            bench.breaks(worker);
        }
        bench.write(client, r#"{"id":2,"method":"x"}"#);
        assert_eq!(bench.read_error(client).0, "no_worker", "nothing is given to it any more");
        bench.pass(milliseconds(999));
        assert!(bench.signals_to(worker).is_empty(), "it may be about to exit by itself");
        bench.pass(milliseconds(1));
        assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
        assert_eq!(bench.count(reason), 1);
        bench.pass(seconds(30));
        assert_eq!(bench.signals_to(worker), [Signal::Terminate, Signal::Kill], "it ignored that");
    }
}

#[test]
fn the_answers_of_a_worker_that_closed_its_stdin_are_still_delivered() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.breaks(worker);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    assert_eq!(bench.read_one(client), r#"{"id":1,"result":1}"#);
}

#[test]
fn a_worker_that_closed_its_stdin_has_as_long_as_the_request_that_it_has_read() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.breaks(worker);
    bench.pass(Duration::from_secs(600));
    assert!(bench.signals_to(worker).is_empty());
    bench.write(worker, r#"{"id":1,"result":1}"#);
    assert_eq!(bench.read_one(client), r#"{"id":1,"result":1}"#);
    // The request has no asker now, and the worker takes nothing more.
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
    assert_eq!(bench.count(Reason::WorkerClosedStdin), 1);
}

#[test]
fn a_worker_that_closed_its_stdin_before_it_had_read_all_is_stopped_and_its_requests_fail() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.wire(worker).unread = 10;
    bench.breaks(worker);
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.signals_to(worker), [Signal::Terminate]);
    bench.dies(worker);
    assert_eq!(bench.read_error(client).0, "worker_exited");
}

#[test]
fn the_sessions_of_a_restarted_worker_are_not_those_of_the_old_one() {
    let mut bench = bench(1);
    let (owner, other, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(owner, r#"{"id":1,"method":"session/new"}"#);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"0"}}"#);
    bench.dies(worker);
    bench.pass(milliseconds(100));
    bench.read(owner);
    let worker = bench.worker(0);
    bench.write(other, r#"{"id":1,"method":"session/new"}"#);
    bench.write(worker, r#"{"id":1,"result":{"sessionId":"0"}}"#);
    bench.write(worker, r#"{"method":"update","params":{"sessionId":"0"}}"#);
    assert_eq!((bench.read(owner).len(), bench.read(other).len()), (0, 2));
}

#[test]
fn the_number_of_a_worker_is_never_reused() {
    let mut bench = bench(2);
    for _ in 0..3 {
        let worker = bench.worker(0);
        bench.dies(worker);
        bench.pass(seconds(1));
    }
    let mut numbers: Vec<_> = bench
        .reports
        .iter()
        .filter(|report| report.reason == Reason::WorkerStarted)
        .map(|report| report.worker.unwrap().incarnation)
        .collect();
    assert_eq!(numbers.len(), 5);
    numbers.dedup();
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
}

/// The names of the started workers, in order.
fn names(bench: &Bench) -> Vec<(usize, u32)> {
    let started = bench.reports.iter().filter(|report| report.reason == Reason::WorkerStarted);
    started.filter_map(|report| report.worker).map(|worker| (worker.place, worker.incarnation)).collect()
}

#[test]
fn the_end_of_a_worker_is_one_worker_exited_and_each_request_that_goes_with_it_a_request_lost() {
    let mut bench = bench(1);
    let (client, worker) = (bench.client(), bench.worker(0));
    for id in 0..3 {
        bench.write(client, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    bench.dies(worker);
    let reports = std::mem::take(&mut bench.reports);
    let reports_of = |name: &str| reports.iter().filter(|report| report.reason.name() == name).collect::<Vec<_>>();
    let (ends, losses) = (reports_of("worker_exited"), reports_of("request_lost"));
    assert_eq!((ends.len(), losses.len()), (1, 3));
    assert_eq!((ends[0].worker.is_some(), ends[0].client, ends[0].id.as_deref()), (true, None, None));
    assert!(losses.iter().all(|report| report.worker.is_some() && report.client.is_some() && report.id.is_some()));
    let read = bench.read(client);
    assert!(read.len() == 3 && read.iter().all(|line| line.contains(r#""reason":"worker_exited""#)), "{read:?}");
}

/// The error that a bystander of a worker that `breaks` reads, and how its end is counted.
fn told_of(breaks: impl Fn(&mut Bench, Peer)) -> (Value, String, Vec<(&'static str, u64)>, u64) {
    let agents = Pool { request_timeout: Some(seconds(5)), ..pool(1, Assignment::RoundRobin) };
    let mut settings = settings(vec![agents]);
    settings.limits.max_input_buffer = 64;
    let mut bench = Bench::new(settings);
    let (guilty, bystander, worker) = (bench.client(), bench.client(), bench.worker(0));
    // As many as may time out in a row.
    for id in 1..=3 {
        bench.write(guilty, &format!(r#"{{"id":{id},"method":"x"}}"#));
    }
    bench.pass(seconds(4));
    bench.write(bystander, r#"{"id":7,"method":"x"}"#);
    breaks(&mut bench, worker);
    bench.dies(worker);
    let error = bench.read_json(bystander)["error"].clone();
    let stats = bench.bus.view().pool_row(0).expect("there is a pool").stats;
    let ends = ENDS.iter().map(|reason| (reason.name(), stats.events(*reason))).filter(|(_, count)| *count > 0);
    let logged = bench.reports.iter().find(|report| report.reason == Reason::WorkerExited);
    (
        error,
        logged.map(|report| report.text.clone()).unwrap_or_default(),
        ends.collect(),
        stats.events(Reason::WorkerStopped),
    )
}

#[test]
fn a_worker_stopped_for_its_fault_counts_with_that_reason_and_bystanders_read_it() {
    type Breaks = fn(&mut Bench, Peer);
    let cases: [(Breaks, &str); 5] = [
        (|bench, worker| bench.write(worker, "Starting..."), "worker_malformed"),
        (|bench, worker| bench.write(worker, &format!("{{\"a\":\"{}\"}}", "x".repeat(300))), "worker_line_too_long"),
        (|bench, _| bench.pass(seconds(1)), "worker_hangs"),
        (
            |bench, worker| {
                bench.ends(worker);
                bench.pass(seconds(1));
            },
            "worker_closed_stdout",
        ),
        (
            |bench, worker| {
                bench.wire(worker).unread = 10;
                bench.breaks(worker);
                bench.pass(milliseconds(999));
                bench.pass(milliseconds(1));
            },
            "worker_closed_stdin",
        ),
    ];
    for (breaks, cause) in cases {
        let (error, logged, ends, stops) = told_of(breaks);
        assert_eq!((error["code"].as_i64(), &error["data"]["delivered"]), (Some(-32011), &true.into()), "{error}");
        assert_eq!((&error["data"]["reason"], &error["data"]["cause"]), (&"worker_exited".into(), &cause.into()));
        assert_eq!((&ends[..], stops), (&[(cause, 1)][..], 0), "worker_exits_total sees it");
        assert!(logged.contains("stopped as requested") && logged.contains(cause), "{logged}");
    }
}

#[test]
fn a_worker_that_ends_by_itself_has_no_cause_and_one_that_the_operator_replaces_says_so() {
    let (error, logged, ends, stops) = told_of(|_, _| {});
    assert_eq!((&error["data"]["cause"], ends, stops), (&Value::Null, vec![("worker_exited", 1)], 0));
    assert!(logged.contains("exit code 1; 4 requests were pending"), "{logged}");
    let (error, logged, ends, stops) = told_of(|bench, worker| {
        let Peer::Worker(worker) = worker else { unreachable!() };
        bench.handle(Input::RestartWorker { worker, at_once: true });
    });
    assert_eq!(
        (&error["data"]["reason"], &error["data"]["cause"]),
        (&"worker_replaced".into(), &"worker_replaced".into())
    );
    assert!(error["message"].as_str().is_some_and(|text| text.contains("operator")), "{error}");
    assert_eq!((logged.as_str(), ends, stops), ("", vec![], 1), "it ended as asked");
}

#[test]
fn a_request_lost_with_a_worker_that_the_operator_replaces_says_so() {
    let mut bench = bench(2);
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x","sessionId":"s"}"#);
    bench.write(worker, r#"{"id":1,"result":1}"#);
    bench.read(client);
    let Peer::Worker(key) = worker else { unreachable!() };
    bench.handle(Input::RestartWorker { worker: key, at_once: true });
    bench.write(client, r#"{"id":2,"method":"x","sessionId":"s"}"#);
    let data = bench.read_json(client)["error"]["data"].clone();
    assert_eq!(data, serde_json::json!({"reason": "worker_replaced", "cause": "worker_replaced", "delivered": false}));
}

#[test]
fn a_worker_that_was_to_end_anyway_counts_as_stopped_whatever_it_writes_then() {
    let mut bench = Bench::new(settings(vec![pool(1, Assignment::Dedicated)]));
    let (client, worker) = (bench.client(), bench.worker(0));
    bench.write(client, r#"{"id":1,"method":"x"}"#);
    bench.gone(client);
    bench.write(worker, "bye");
    bench.dies(worker);
    let stats = bench.bus.view().pool_row(0).expect("there is a pool").stats;
    assert_eq!((stats.all_exits(), stats.events(Reason::WorkerStopped)), (0, 1));
}

#[test]
fn a_worker_that_is_started_again_has_the_name_of_the_one_before() {
    let mut bench = bench(3);
    let workers = [bench.worker(2), bench.worker(0), bench.worker(1)];
    for worker in workers {
        bench.dies(worker);
    }
    bench.pass(seconds(1));
    assert_eq!(names(&bench), [(0, 0), (1, 1), (2, 2), (0, 3), (1, 4), (2, 5)]);
    let gone = bench.reports.iter().filter(|report| report.reason == Reason::WorkerExited);
    let gone: Vec<_> = gone.filter_map(|report| report.worker).map(|worker| worker.place).collect();
    assert_eq!(gone, [2, 0, 1]);
}

#[test]
fn live_workers_of_a_dedicated_pool_have_distinct_names_and_free_ones_are_reused() {
    let mut bench = Bench::new(settings(vec![Pool { max_instances: 3, ..pool(1, Assignment::Dedicated) }]));
    let (first, second) = (bench.client(), bench.client());
    for client in [first, second] {
        bench.write(client, r#"{"method":"x"}"#);
    }
    assert_eq!(names(&bench), [(0, 0), (1, 1), (2, 2)], "two that have left the slot, and a spare");
    bench.gone(first);
    let ended = bench.worker(0);
    bench.dies(ended);
    let third = bench.client();
    bench.write(third, r#"{"method":"x"}"#);
    bench.pass(milliseconds(50));
    assert_eq!(names(&bench)[3..], [(0, 3)]);
}

#[test]
fn a_flood_of_unroutable_lines_is_counted_in_full_and_logged_at_a_limited_rate() {
    let mut bench = bench(1);
    let worker = bench.worker(0);
    for _ in 0..1000 {
        bench.write(worker, r#"{"method":"noise"}"#);
    }
    bench.pass(milliseconds(500));
    assert_eq!(bench.count(Reason::Unroutable), 1000);
    assert_eq!(bench.reports.iter().filter(|report| report.reason == Reason::Unroutable).count(), 10);
    bench.pass(seconds(10));
    assert_eq!(bench.reports.last().unwrap().suppressed, 990);
}
