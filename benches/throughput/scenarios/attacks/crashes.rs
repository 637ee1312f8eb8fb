//! A client whose requests crash their workers.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::stage::{Outcome, Stage};
use crate::harness::address::Transport;
use crate::harness::client::Client;
use crate::harness::measure::{Over, joined};
use crate::harness::polite::polite_pair;
use crate::harness::server::agents;

pub fn crashes(stage: &Stage<'_>) -> io::Result<Outcome> {
    const CRASHES: usize = 24;
    const WORKER_EXITED: i64 = -32011;
    let server = stage.start(&[agents("shared", 4, 0), agents("own", 1, 0)], &json!({}), Transport::Tcp)?;
    let (mut poisoner, over) = (Client::connect(&server.address)?, AtomicBool::new(false));
    let until = stage.within(stage.either(30, 5));
    let began = Instant::now();
    let (crashes, elapsed, [shared, own]) = std::thread::scope(|scope| {
        let poisoning = scope.spawn(|| -> io::Result<(usize, Duration)> {
            let _over = Over(&over);
            let mut crashes = 0;
            for id in 0.. {
                if crashes == CRASHES || Instant::now() >= until {
                    break;
                }
                let answer = poisoner.ask(id, "exit", "shared", until).and_then(|()| poisoner.answer(id, until));
                match answer {
                    Ok(answer) if answer["error"]["code"] == WORKER_EXITED => crashes += 1,
                    // No worker is running at the moment.
                    Ok(_) => std::thread::sleep(Duration::from_millis(10)),
                    Err(_) => break,
                }
            }
            Ok((crashes, began.elapsed()))
        });
        let done = |_| over.load(Ordering::Relaxed);
        let waits = polite_pair(&server.address, stage.until, done)?;
        let (crashes, elapsed) = joined(poisoning.join())?;
        io::Result::Ok((crashes, elapsed, waits))
    })?;
    // A restart may still be due from the last crash.
    std::thread::sleep(Duration::from_secs(1));
    let mut client = Client::connect(&server.address)?;
    let mut after = 0;
    for id in 0..20 {
        client.ask(id, "m", "shared", stage.within(2))?;
        after += usize::from(client.answer(id, stage.within(2))?.get("result").is_some());
        std::thread::sleep(Duration::from_millis(20));
    }
    let given_up = server.log().matches("pool_degraded").count();
    let asked = shared.results + shared.errors;
    Ok(Outcome {
        text: format!(
            "{crashes} crashes in {:.1} s; shared {} of {asked} meanwhile, {after} of 20 afterwards; \
             {given_up} of 4 workers given up; own p99 {:.1} ms",
            elapsed.as_secs_f64(),
            shared.results,
            own.quantile(0.99)
        ),
        reached: given_up == 0 && after == 20,
        figures: json!({
            "crashes": crashes, "seconds": elapsed.as_secs_f64(), "shared": shared.figures(), "own": own.figures(),
            "answered_afterwards": after, "given_up": given_up,
        }),
    })
}
