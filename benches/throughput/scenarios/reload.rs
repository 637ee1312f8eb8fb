//! The cost of a reload: how long a full daemon takes, how long a client waits meanwhile, and what happens to requests
//! while workers are replaced.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::Harness;
use crate::harness::address::Transport;
use crate::harness::admin::{ask, post};
use crate::harness::client::{Client, request};
use crate::harness::machine::{self, Placement};
use crate::harness::measure::{self, Over, first, joined, median, progress};
use crate::harness::server::{Contestant, Server, agents};
use crate::scenario::{Goal, Scenario, goals};

/// Connections, pending requests, and pools of a full daemon.
const CLIENTS: usize = 1024;
const PENDING: usize = 4;
const POOLS: usize = 64;
/// Time limit of a reload, and of the delay that it adds to a message, in milliseconds.
const MOST_FOR_ALL: f64 = 50.0;
const MOST_WAIT: f64 = 5.0;
/// Replaced workers, and requests per millisecond meanwhile.
const WORKERS: usize = 16;
const EACH_MILLISECOND: usize = 20;

/// The only scenarios.
pub fn scenario() -> Scenario {
    Scenario::new("reload", |harness| {
        let mut reached = full(harness)?;
        reached.push(rolling(harness)?);
        progress("");
        Ok(vec![goals(reached)])
    })
}

/// Reloads a full daemon repeatedly, while one client sends requests continuously.
fn full(harness: &Harness) -> io::Result<Vec<Goal>> {
    progress("reload, a full daemon");
    let until = Instant::now() + Duration::from_secs(120);
    let rounds = harness.either(40, 4);
    let mut pools = vec![agents("shared", 2, 0), agents("own", 1, 0)];
    pools.extend((pools.len()..POOLS).map(|number| agents(&format!("pool-{number}"), 1, 0)));
    let server = harness.start(Contestant::Admin, &pools, Transport::Unix, Placement::choose(false))?;
    let _clients = fill(&server, until)?;
    let mut waits = [Vec::new(), Vec::new()];
    let mut took = Vec::new();
    for round in 0..rounds {
        for (reloads, waits) in [false, true].into_iter().zip(&mut waits) {
            let over = AtomicBool::new(false);
            let (reloaded, longest) = std::thread::scope(|scope| {
                let asking = scope.spawn(|| first(|| longest_wait(&server, until, &over)));
                let reloaded = {
                    let _over = Over(&over);
                    if reloads { reload(&server, round, until) } else { rest(Duration::from_millis(50)) }
                };
                (reloaded, joined(asking.join()))
            });
            waits.push(longest?);
            took.extend(reloads.then_some(reloaded?));
        }
    }
    let [without, with] = waits.map(median);
    let took = median(took);
    let goal = |what: &str, goal: String, value: String, reached| Goal {
        what: format!("reload of a full daemon (1,024 clients, 4,092 requests that wait, 64 pools): {what}"),
        goal,
        value,
        reached,
        figures: json!({ "took_millis": took, "longest_wait_millis": [without, with], "rounds": rounds }),
    };
    Ok(vec![
        goal("all of it", format!("below {MOST_FOR_ALL} ms"), format!("{took:.1} ms"), took < MOST_FOR_ALL),
        goal(
            "the longest wait of a client that asks without a break",
            format!("{MOST_WAIT} ms more at most"),
            format!("{with:.2} ms, {without:.2} without"),
            with - without < MOST_WAIT,
        ),
    ])
}

fn rest(time: Duration) -> io::Result<f64> {
    std::thread::sleep(time);
    Ok(0.0)
}

/// All other connections, with pending requests.
fn fill(server: &Server, until: Instant) -> io::Result<Vec<Client>> {
    let fill = |_| {
        let mut client = Client::connect(&server.address)?;
        let lines: String = (0..PENDING).map(|id| request(id, "never", "shared")).collect();
        client.send(lines.as_bytes(), until)?;
        Ok(client)
    };
    (1..CLIENTS).map(fill).collect()
}

/// The longest wait in milliseconds.
fn longest_wait(server: &Server, until: Instant, over: &AtomicBool) -> io::Result<f64> {
    let mut client = Client::connect(&server.address)?;
    let mut longest = Duration::ZERO;
    for id in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let began = Instant::now();
        client.ask(id, "m", "own", until)?;
        client.answer(id, until)?;
        longest = longest.max(began.elapsed());
    }
    Ok(longest.as_secs_f64() * 1e3)
}

/// Changes a limit, which replaces no workers. Returns the time in milliseconds until the daemon reports the end.
fn reload(server: &Server, round: usize, until: Instant) -> io::Result<f64> {
    server.configure(|configuration| configuration["limits"]["quiesce_sec"] = json!(100 + round))?;
    let began = Instant::now();
    post(&server.admin, "/reload")?;
    wait_until_over(&server.admin, until)?;
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

fn wait_until_over(admin: &Path, until: Instant) -> io::Result<()> {
    while !ask(admin, "/reload.json")?.contains("\"over\":true") {
        if Instant::now() > until {
            return Err(io::Error::other("the reload is not over"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Replaces all workers of a pool, one after the other, under load.
fn rolling(harness: &Harness) -> io::Result<Goal> {
    progress("reload, rolling");
    let until = Instant::now() + Duration::from_secs(120);
    let placement = Placement::choose(false);
    let server = harness.start(Contestant::Admin, &[agents("bench", WORKERS, 0)], Transport::Unix, placement)?;
    let time = Duration::from_millis(harness.either(4000, 400));
    let began = Instant::now();
    let (before, _) = stream_of_requests(&server, until, || Ok(began.elapsed() > time))?;
    let processes = server.workers();
    post(&server.admin, "/restart-pool?pool=bench")?;
    let is_replaced = || {
        let workers = server.workers();
        // They start on the daemon's CPU. One that has ended meanwhile is skipped.
        let _ = workers.iter().try_for_each(|worker| machine::pin(*worker, placement.workers));
        Ok(workers.iter().all(|worker| !processes.contains(worker)))
    };
    let (during, failed) = stream_of_requests(&server, until, is_replaced)?;
    Ok(Goal {
        what: format!(
            "{WORKERS} workers replaced in turn under {},000 requests a second: failed, p99",
            EACH_MILLISECOND
        ),
        goal: "none, 2 × at most".to_owned(),
        value: format!("{failed}, {during:.2} ms ({before:.2} before)"),
        reached: failed == 0 && during <= 2.0 * before,
        figures: json!({ "failed": failed, "p99_millis": during, "before": before }),
    })
}

/// Sends requests at a constant rate until `done` returns true. Returns p99 in milliseconds, and how many got an error
/// or no answer.
fn stream_of_requests(
    server: &Server,
    until: Instant,
    done: impl Fn() -> io::Result<bool> + Sync,
) -> io::Result<(f64, usize)> {
    let mut client = Client::connect(&server.address)?;
    let mut answers = client.second()?;
    let (sent_at, mut times) = (std::sync::Mutex::new(Vec::new()), measure::histogram());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let _over = Over(&is_over);
            let begun = Instant::now();
            for tick in 1.. {
                // Whether workers are left is not checked every millisecond.
                if tick % 50 == 0 && done()? {
                    break;
                }
                let now = Instant::now();
                let ids = (tick - 1) * EACH_MILLISECOND..tick * EACH_MILLISECOND;
                let lines: String = ids.map(|id| request(id, "m", "bench")).collect();
                sent_at.lock().expect("no thread panics").extend([now; EACH_MILLISECOND]);
                client.send(lines.as_bytes(), until)?;
                std::thread::sleep(
                    (begun + Duration::from_millis(tick as u64)).saturating_duration_since(Instant::now()),
                );
            }
            Ok(())
        });
        let (mut received, mut failed) = (0, 0);
        loop {
            let sent = sent_at.lock().expect("no thread panics").len();
            if received == sent {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::sleep(Duration::from_micros(100));
                continue;
            }
            let answer = answers.line(until)?;
            let id = answer["id"].as_u64().ok_or_else(|| io::Error::other("an answer without an id"))? as usize;
            let sent = sent_at.lock().expect("no thread panics")[id];
            times.saturating_record(sent.elapsed().as_nanos() as u64);
            (received, failed) = (received + 1, failed + usize::from(answer.get("result").is_none()));
        }
        joined(sending.join())?;
        Ok((times.value_at_quantile(0.99) as f64 / 1e6, failed))
    })
}
