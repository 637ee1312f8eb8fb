//! Clients that request much and read it slowly or not at all.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::stage::{Outcome, Stage, connect, two_pools};
use crate::harness::address::Transport;
use crate::harness::client::Client;
use crate::harness::measure::{Over, joined};
use crate::harness::polite::{Waits, polite_pair};
use crate::harness::server::Server;
use crate::harness::worker::FLOOD_LINE;

/// How long two polite clients were delayed.
fn held_up(waits: &[Waits; 2], rest: &str, figures: Value) -> Outcome {
    let text = |waits: &Waits| {
        let open = if waits.unanswered { ", still waiting at the end" } else { "" };
        format!("{:.1} s in all, {:.1} at most{open}", waits.in_all.as_secs_f64(), waits.longest.as_secs_f64())
    };
    let [shared, own] = waits;
    Outcome {
        text: format!("shared {}; own {}{rest}", text(shared), text(own)),
        reached: waits
            .iter()
            .all(|waits| waits.in_all <= Duration::from_secs(1) && !waits.unanswered && waits.errors == 0),
        figures: json!({ "shared": shared.figures(), "own": own.figures(), "attack": figures }),
    }
}

/// A shared worker, one beside it, and the limits of both attacks by slow readers.
fn slow_reader_stage(stage: &Stage<'_>) -> io::Result<Server> {
    let limits = json!({
        "backpressure_timeout_sec": stage.either(5, 1), "max_output_queue": stage.either(2, 1) * 1024 * 1024,
    });
    stage.start(&two_pools(0), &limits, Transport::Unix)
}

/// Requests this many bytes from the shared worker.
fn ask_for(client: &mut Client, session: usize, bytes: usize, until: Instant) -> io::Result<()> {
    let mut line = json!({
        "jsonrpc": "2.0", "id": 1, "method": "flood", "sessionId": format!("slow-{session}"), "pool": "shared",
        "lines": bytes / FLOOD_LINE,
    })
    .to_string();
    line.push('\n');
    client.send(line.as_bytes(), until)
}

pub fn never_read(stage: &Stage<'_>) -> io::Result<Outcome> {
    let server = slow_reader_stage(stage)?;
    let mut deaf = connect(&server.address, 6)?;
    for (number, client) in deaf.iter_mut().enumerate() {
        ask_for(client, number, 16_000_000, stage.until)?;
    }
    let began = Instant::now();
    // It is over when no client is left to wait for; late answers are awaited, too.
    let closed = || deaf.iter().filter(|client| client.is_closed()).count();
    let least = Duration::from_secs(stage.either(10, 3));
    let done = |_| began.elapsed() > least && closed() == deaf.len();
    let waits = polite_pair(&server.address, stage.within(stage.either(40, 10)), done)?;
    let rest = format!("; {} of 6 are closed", closed());
    Ok(held_up(&waits, &rest, json!({ "closed": closed() })))
}

pub fn dribble(stage: &Stage<'_>) -> io::Result<Outcome> {
    let server = slow_reader_stage(stage)?;
    let mut slow = Client::connect(&server.address)?;
    ask_for(&mut slow, 0, 16_000_000, stage.until)?;
    let (over, began) = (AtomicBool::new(false), Instant::now());
    let until = stage.within(stage.either(40, 4));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| -> io::Result<Option<f64>> {
            while !over.load(Ordering::Relaxed) {
                match slow.skim(7_000, until) {
                    Ok(0) => return Ok(Some(began.elapsed().as_secs_f64())),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                        return Ok(Some(began.elapsed().as_secs_f64()));
                    }
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => break,
                    other => other?,
                };
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(None)
        });
        let waits = {
            let _over = Over(&over);
            polite_pair(&server.address, until, |_| false)?
        };
        let closed = joined(reader.join())?;
        let rest = closed
            .map_or_else(|| "; it is not closed".to_owned(), |after| format!("; it is closed after {after:.1} s"));
        Ok(held_up(&waits, &rest, json!({ "closed_after_seconds": closed })))
    })
}
