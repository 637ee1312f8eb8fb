//! Loads with a target figure. The number of requests is a fraction of it here; `STDIO_BUS_FIGURE_REQUESTS=300000
//! STDIO_BUS_FIGURE_KILLS=3000` (as in scripts/soak) sets the full one.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::client::Client;
use crate::harness::{SetAtTheEnd, Setup, children, complaints, echo, figure, until};

const CONNECTIONS: usize = 64;
const WINDOW: usize = 16;

#[test]
fn sixty_four_connections_through_one_worker_lose_misroute_and_reorder_nothing() {
    let requests = figure("STDIO_BUS_FIGURE_REQUESTS", 30_000);
    let each = requests / CONNECTIONS;
    let mut daemon = Setup::new([echo("echo", 1)]).start();
    let clients: Vec<_> = (0..CONNECTIONS).map(|_| daemon.connect()).collect();
    std::thread::scope(|scope| {
        for (number, mut client) in clients.into_iter().enumerate() {
            scope.spawn(move || {
                let session = format!("session-{number}");
                // 200 bytes including the newline, whatever the lengths of the numbers.
                let line = |id: usize| {
                    let frame = json!({ "id": id, "method": "m", "params": [number, id, ""], "sessionId": session });
                    let fill = 199 - frame.to_string().len();
                    json!({ "id": id, "method": "m", "params": [number, id, "x".repeat(fill)], "sessionId": session })
                };
                for id in 0..WINDOW.min(each) {
                    client.send(&line(id));
                }
                for id in 0..each {
                    let answer = client.answer(id);
                    assert_eq!(answer["sessionId"], session);
                    assert_eq!(
                        (&answer["result"]["echo"][0], &answer["result"]["echo"][1]),
                        (&json!(number), &json!(id))
                    );
                    if id + WINDOW < each {
                        client.send(&line(id + WINDOW));
                    }
                }
                assert!(!client.has_something(), "an answer too many");
            });
        }
    });
    let outcome = daemon.stop();
    assert!(complaints(&outcome.stderr).is_empty(), "{}", outcome.stderr);
}

/// Answered requests between two kills: at 50,000 lines per second, one kill every 100 ms.
const BETWEEN_KILLS: usize = 2500;

/// Sends requests until `over`, each of which must be answered once. Returns the number of errors.
fn asks_without_end(client: &mut Client, answered: &AtomicUsize, over: &AtomicBool) -> usize {
    let (mut waits, mut next, mut errors) = (HashSet::new(), 0_u64, 0);
    loop {
        while waits.len() < WINDOW && !over.load(Ordering::Relaxed) {
            client.ask(next, "m", json!({ "fill": "x".repeat(130) }));
            waits.insert(next);
            next += 1;
        }
        if waits.is_empty() {
            return errors;
        }
        let message = client.message();
        let id = message["id"].as_u64().unwrap_or_else(|| panic!("whose? {message}"));
        assert!(waits.remove(&id), "{id} has been answered before: {message}");
        if message["error"].is_object() {
            let reason = message["error"]["data"]["reason"].as_str().unwrap_or_default();
            assert!(["worker_exited", "no_worker"].contains(&reason), "{message}");
            errors += 1;
        } else {
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn every_request_is_answered_once_or_fails_while_workers_are_killed_one_after_the_other() {
    // Enough that most live for a second and restart after 100 ms: with fewer, all would wait for long delays.
    const WORKERS: usize = 64;
    let kills = figure("STDIO_BUS_FIGURE_KILLS", 25);
    let setup = Setup::new([echo("echo", WORKERS)]);
    let mut daemon = setup.limit("max_restarts", 1_000_000).limit("restart_window_sec", 1).start();
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| daemon.connect()).collect();
    let (answered, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let begun = Instant::now();
    let errors: usize = std::thread::scope(|scope| {
        // They also end if something here panics.
        let end = SetAtTheEnd(&over);
        let asking: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(|| asks_without_end(client, &answered, &over))).collect();
        for kill in 1..=kills {
            until("enough is answered", || answered.load(Ordering::Relaxed) >= kill * BETWEEN_KILLS);
            let workers = children(daemon.pid());
            if !workers.is_empty() {
                // A different one each time.
                let (worker, _) = workers[kill * 7 % workers.len()];
                let _ = kill_process(Pid::from_raw(worker as i32).expect("a process"), Signal::KILL);
            }
        }
        drop(end);
        asking.into_iter().map(|client| client.join().expect("it does not panic")).sum()
    });
    let (answered, took) = (answered.into_inner(), begun.elapsed());
    println!("{answered} requests answered, {errors} failed, {kills} kills in {:.1} s", took.as_secs_f32());
    assert!(clients.iter_mut().all(|client| !client.has_something()), "an answer too many");
    daemon.until("all workers are there again", || children(daemon.pid()).len() == WORKERS);
    daemon.stop();
}
