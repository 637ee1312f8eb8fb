//! Messages of a worker in a session before it has answered the request that creates it.

use super::*;

fn update(session: &str, number: usize) -> String {
    format!(r#"{{"method":"session/update","params":{{"sessionId":"{session}","n":{number}}}}}"#)
}

fn made(id: usize, session: &str) -> String {
    format!(r#"{{"id":{id},"result":{{"sessionId":"{session}"}}}}"#)
}

/// Two clients that wait for a session, with the ids 1 and 2, of one worker.
fn two_wait() -> (Bench, Peer, Peer, Peer) {
    let mut bench = Bench::new(settings(vec![pool(1, Assignment::Client)]));
    let (first, second, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(first, r#"{"id":1,"method":"session/new"}"#);
    bench.write(second, r#"{"id":2,"method":"session/new"}"#);
    bench.read(worker);
    (bench, first, second, worker)
}

#[test]
fn early_lines_follow_the_answer_that_creates_their_session() {
    let (mut bench, first, second, worker) = two_wait();
    let lines = [update("b", 1), update("a", 1), update("b", 2), made(2, "b"), update("b", 3)];
    bench.write_bytes(worker, (lines.join("\n") + "\n").as_bytes());
    assert_eq!(bench.read(second), [made(2, "b"), update("b", 1), update("b", 2), update("b", 3)]);
    assert!(bench.read(first).is_empty());
    bench.write(worker, &made(1, "a"));
    assert_eq!(bench.read(first), [made(1, "a"), update("a", 1)]);
    assert_eq!((bench.count(Reason::UnknownSession), bench.bus.view().bytes_waiting()), (0, 0));
}

#[test]
fn early_lines_of_a_session_without_a_client_are_dropped_with_the_last_answer() {
    let (mut bench, first, second, worker) = two_wait();
    bench.write(worker, &update("c", 1));
    bench.write(worker, &made(1, "a"));
    assert_eq!(bench.count(Reason::UnknownSession), 0, "the other answer may name it");
    bench.write(worker, &made(2, "b"));
    assert_eq!((bench.count(Reason::UnknownSession), bench.bus.view().bytes_waiting()), (1, 0));
    assert_eq!((bench.read(first).len(), bench.read(second).len()), (1, 1));
    bench.write(worker, &update("c", 2));
    assert_eq!(bench.count(Reason::UnknownSession), 2, "no client waits for a session now");
}

#[test]
fn early_lines_are_dropped_with_a_request_that_created_no_session() {
    for end in ["error", "leaves", "gives up"] {
        let (mut bench, first, second, worker) = two_wait();
        bench.write(worker, &update("a", 1));
        match end {
            "error" => bench.write(worker, r#"{"id":1,"error":{"code":1,"message":"no"}}"#),
            "leaves" => {
                bench.breaks(first);
                bench.gone(first);
                bench.write(worker, &made(1, "a"));
            }
            _ => {
                bench.write(first, r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#);
                bench.pass(seconds(6));
            }
        }
        assert_eq!((bench.count(Reason::UnknownSession), bench.bus.view().bytes_waiting()), (1, 0), "{end}");
        bench.write(worker, &made(2, "a"));
        let heard = bench.read(second);
        assert!(heard.iter().all(|line| !line.contains("update")), "{end}: {heard:?}");
    }
}

#[test]
fn a_name_that_the_bus_knows_does_not_wait() {
    let (mut bench, first, second, worker) = two_wait();
    bench.write(worker, &made(1, "a"));
    bench.breaks(first);
    bench.gone(first);
    bench.write(worker, &update("a", 1));
    assert_eq!((bench.count(Reason::UnknownSession), bench.bus.view().bytes_waiting()), (1, 0));
    assert!(bench.read(second).is_empty());
}

#[test]
fn a_workers_request_does_not_wait_for_its_session() {
    let (mut bench, _, _, worker) = two_wait();
    bench.write(worker, r#"{"id":0,"method":"fs/read_text_file","params":{"sessionId":"a"}}"#);
    assert_eq!(bench.read_error(worker).0, "unknown_session");
}

#[test]
fn early_lines_wait_for_a_minute() {
    let (mut bench, first, _, worker) = two_wait();
    bench.write(worker, &update("a", 1));
    bench.pass(seconds(59));
    assert_eq!(bench.count(Reason::UnknownSession), 0);
    bench.write(worker, &update("a", 2));
    bench.pass(seconds(1));
    assert_eq!(bench.count(Reason::UnknownSession), 1);
    bench.write(worker, &made(1, "a"));
    assert_eq!(bench.read(first), [made(1, "a"), update("a", 2)]);
}

#[test]
fn early_lines_are_bounded_in_number_and_bytes() {
    let (mut bench, first, second, worker) = two_wait();
    for number in 0..70 {
        bench.write(worker, &update("a", number));
    }
    assert_eq!(bench.count(Reason::UnknownSession), 6);
    bench.write(worker, &made(1, "a"));
    assert_eq!(bench.read(first).len(), 65);
    let long = format!(r#"{{"method":"session/update","params":{{"sessionId":"b","n":"{}"}}}}"#, "x".repeat(400_000));
    for _ in 0..3 {
        bench.write(worker, &long);
    }
    assert_eq!(bench.count(Reason::UnknownSession), 7);
    assert_eq!(bench.bus.view().bytes_waiting(), 2 * (long.len() + 1));
    bench.write(worker, &made(2, "b"));
    assert_eq!(bench.read(second).len(), 3);
}

#[test]
fn early_lines_are_dropped_with_their_worker() {
    let (mut bench, _, _, worker) = two_wait();
    bench.write(worker, &update("a", 1));
    bench.dies(worker);
    assert_eq!((bench.count(Reason::UnknownSession), bench.bus.view().bytes_waiting()), (1, 0));
}

#[test]
fn early_lines_of_a_session_that_is_loaded_meanwhile_are_dropped() {
    let (mut bench, first, second, worker) = two_wait();
    let third = bench.client();
    bench.write(worker, &update("a", 1));
    bench.write(worker, &update("b", 1));
    bench.write(third, r#"{"id":3,"method":"session/load","params":{"sessionId":"a"}}"#);
    bench.read(worker);
    assert_eq!(bench.count(Reason::UnknownSession), 0, "the worker may refuse to load it");
    bench.write(worker, r#"{"id":3,"result":{}}"#);
    assert_eq!(bench.read(third), [r#"{"id":3,"result":{}}"#]);
    assert_eq!(bench.count(Reason::UnknownSession), 1);
    bench.write(worker, &update("a", 2));
    assert_eq!(bench.read(third), [update("a", 2)]);
    bench.write(worker, &made(2, "b"));
    assert_eq!(bench.read(second), [made(2, "b"), update("b", 1)]);
    assert!(bench.read(first).is_empty());
}
