//! Clients that exhaust the requests, sessions, connections or workers.

use std::io;
use std::time::{Duration, Instant};

use serde_json::json;

use super::stage::{Outcome, Stage, connect, two_pools};
use crate::harness::address::Transport;
use crate::harness::client::{Client, request};
use crate::harness::server::agents;

/// The daemon's maximum of pending requests.
const TABLE: usize = 4096;
/// Its maximum of sessions, and of connections.
const SESSIONS: usize = 1024;
const CONNECTIONS: usize = 1024;
/// The id of a request that only shows a client's progress.
const SYNC: usize = 1_000_000;

/// Fills a table step by step, so that the measurement starts only when it is full, or the daemon has delayed the
/// client for long enough.
fn fill(client: &mut Client, count: usize, lines: impl Fn(usize) -> String, stage: &Stage<'_>) -> io::Result<()> {
    let until = stage.within(10);
    let mut block = String::new();
    for id in 0..count {
        block.push_str(&lines(id));
        if (id + 1).is_multiple_of(256) || id + 1 == count {
            block.push_str(&request(SYNC + id, "m", "shared"));
            let answer = client.send(block.as_bytes(), until).and_then(|()| client.answer(SYNC + id, until));
            match answer {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(()),
                other => other?,
            };
            block.clear();
        }
    }
    Ok(())
}

/// How many of these answers are results, until one is not received in time.
fn results(client: &mut Client, count: usize, until: Instant) -> io::Result<usize> {
    let mut results = 0;
    for _ in 0..count {
        match client.line(until) {
            Ok(line) => results += usize::from(line.get("result").is_some()),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => break,
            Err(error) => return Err(error),
        }
    }
    Ok(results)
}

/// Makes the worker of a pool answer what it holds. A notification uses no slot, so it arrives where requests are
/// refused.
fn release(client: &mut Client, pool: &str, until: Instant) -> io::Result<()> {
    client.send(format!("{{\"jsonrpc\":\"2.0\",\"method\":\"release\",\"pool\":\"{pool}\"}}\n").as_bytes(), until)
}

/// Three polite clients send twenty requests each at once. Returns how many get a result.
fn sixty(clients: &mut [Client], pool: &str, stage: &Stage<'_>) -> io::Result<usize> {
    for client in clients.iter_mut() {
        for id in 0..20 {
            client.ask(id, "hold", pool, stage.within(5))?;
        }
    }
    // A request that did not fit into the table has its error by now, and the others are with their worker.
    std::thread::sleep(Duration::from_millis(300));
    release(&mut clients[0], pool, stage.within(5))?;
    let until = stage.within(5);
    clients.iter_mut().map(|client| results(client, 20, until)).sum()
}

pub fn unanswered(stage: &Stage<'_>, hogs: usize) -> io::Result<Outcome> {
    let server = stage.start(&two_pools(0), &json!({}), Transport::Tcp)?;
    let mut polite = connect(&server.address, 3)?;
    let mut hogs = connect(&server.address, hogs)?;
    for hog in &mut hogs {
        fill(hog, TABLE, |id| request(id, "never", "shared"), stage)?;
    }
    let shared = sixty(&mut polite, "shared", stage)?;
    let own = sixty(&mut polite, "own", stage)?;
    Ok(Outcome {
        text: format!("shared {shared} of 60, own {own} of 60"),
        reached: shared == 60 && own == 60,
        figures: json!({ "shared": shared, "own": own }),
    })
}

pub fn cancelled(stage: &Stage<'_>) -> io::Result<Outcome> {
    const REQUESTS: usize = 4300;
    let server = stage.start(&two_pools(0), &json!({}), Transport::Tcp)?;
    let (mut polite, mut greedy) = (connect(&server.address, 3)?, Client::connect(&server.address)?);
    let cancelled = |id| {
        let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"#;
        request(id, "never", "shared") + &format!("{cancel}{id}}}}}\n")
    };
    fill(&mut greedy, REQUESTS, cancelled, stage)?;
    let began = Instant::now();
    let shared = sixty(&mut polite, "shared", stage)?;
    let own = sixty(&mut polite, "own", stage)?;
    // The slots are free when another client can use half of the table at once.
    let patience = Duration::from_secs(stage.either(20, 4));
    let mut back = None;
    for round in 0.. {
        if began.elapsed() > patience {
            break;
        }
        let mut other = Client::connect(&server.address)?;
        let first = round * TABLE;
        let block: String = (first..first + TABLE / 2).map(|id| request(id, "hold", "own")).collect();
        other.send(block.as_bytes(), stage.until)?;
        std::thread::sleep(Duration::from_millis(200));
        release(&mut other, "own", stage.until)?;
        if results(&mut other, TABLE / 2, stage.within(5))? == TABLE / 2 {
            back = Some(began.elapsed().as_secs_f64());
            break;
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    let slots = back.map_or_else(
        || format!("no slots back in {} s", patience.as_secs()),
        |seconds| format!("slots back after {seconds:.1} s at most"),
    );
    Ok(Outcome {
        text: format!("shared {shared} of 60, own {own} of 60; {slots}"),
        reached: shared == 60 && own == 60 && back.is_some(),
        figures: json!({ "shared": shared, "own": own, "slots_back_after_seconds": back }),
    })
}

pub fn sessions(stage: &Stage<'_>) -> io::Result<Outcome> {
    let server = stage.start(&two_pools(0), &json!({}), Transport::Tcp)?;
    let mut greedy = Client::connect(&server.address)?;
    let claim = |name| {
        format!("{{\"jsonrpc\":\"2.0\",\"method\":\"n\",\"sessionId\":\"greedy-{name}\",\"pool\":\"shared\"}}\n")
    };
    fill(&mut greedy, SESSIONS, claim, stage)?;
    let mut opened = [0, 0];
    for (pool, opened) in ["shared", "own"].into_iter().zip(&mut opened) {
        let mut polite = Client::connect(&server.address)?;
        for id in 0..20 {
            let line = format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"m\",\"sessionId\":\"polite-{pool}-{id}\",\"pool\":\"{pool}\"}}\n"
            );
            polite.send(line.as_bytes(), stage.within(5))?;
            *opened += usize::from(polite.answer(id, stage.within(5))?.get("result").is_some());
        }
    }
    let [shared, own] = opened;
    Ok(Outcome {
        text: format!("shared {shared} of 20, own {own} of 20"),
        reached: opened == [20, 20],
        figures: json!({ "shared": shared, "own": own }),
    })
}

pub fn connections(stage: &Stage<'_>) -> io::Result<Outcome> {
    let server = stage.start(&[agents("shared", 1, 0)], &json!({}), Transport::Unix)?;
    let mut idle = connect(&server.address, CONNECTIONS)?;
    // They are accepted in order, so the answer to the last shows that all are accepted.
    if let Some(last) = idle.last_mut() {
        last.ask(0, "m", "shared", stage.until)?;
        last.answer(0, stage.within(10))?;
    }
    let mut newcomer = Client::connect(&server.address)?;
    newcomer.ask(0, "m", "shared", stage.until)?;
    // An idle one may be evicted before any leaves.
    let (mut began, mut left) = (Instant::now(), 0);
    let mut taken = newcomer.answer(0, stage.within(1));
    while taken.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) && !idle.is_empty() {
        // The first to leave is an idle one.
        drop(idle.swap_remove(0));
        left += 1;
        if left == 1 {
            began = Instant::now();
        }
        taken = newcomer.answer(0, Instant::now() + Duration::from_millis(if left == 1 { 2000 } else { 20 }));
    }
    taken?;
    let after = began.elapsed().as_secs_f64();
    let text = match left {
        0 => format!("taken after {:.1} ms, before one has left", after * 1e3),
        1 => format!("taken after {:.1} ms", after * 1e3),
        _ => format!("not within 2 s; taken when {left} have left"),
    };
    Ok(Outcome {
        text,
        reached: left == 0 || left == 1 && after < 0.1,
        figures: json!({ "left": left, "seconds": after }),
    })
}

pub fn seats(stage: &Stage<'_>) -> io::Result<Outcome> {
    const SEATS: usize = 8;
    let mut pool = agents("shared", 1, 0);
    pool["assignment"] = json!("dedicated");
    pool["max_instances"] = json!(SEATS);
    let server = stage.start(&[pool, agents("own", 1, 0)], &json!({}), Transport::Tcp)?;
    let mut takers = connect(&server.address, SEATS)?;
    for (number, taker) in takers.iter_mut().enumerate() {
        // A worker may still be starting: retry until there is one.
        let until = stage.within(10);
        for id in 0.. {
            taker.ask(id, "m", "shared", until)?;
            if taker.answer(id, until)?.get("result").is_some() {
                break;
            }
            if Instant::now() >= until {
                return Err(io::Error::other(format!("only {number} seats can be taken")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let mut ninth = Client::connect(&server.address)?;
    ninth.ask(0, "m", "shared", stage.until)?;
    let answer = ninth.answer(0, stage.within(5))?;
    let error = &answer["error"];
    let message = error["message"].as_str().unwrap_or("a result");
    ninth.ask(1, "m", "own", stage.until)?;
    let beside = ninth.answer(1, stage.within(5))?.get("result").is_some();
    Ok(Outcome {
        text: format!(
            "the ninth gets {}: {message}; own {}",
            error["code"],
            if beside { "continues" } else { "does not" }
        ),
        reached: message.contains(&SEATS.to_string()) && beside,
        figures: json!({ "error": error, "own_continues": beside }),
    })
}
