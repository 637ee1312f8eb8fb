//! Polite clients: each has one request in flight, and real-time priority on its CPU, so that its latency is due to the
//! daemon and its workers, and not to the scheduler.

use std::io;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::address::Address;
use super::client::Client;
use super::measure::{self, joined};

/// The pause of a polite client between an answer and the next request.
const BREAK: Duration = Duration::from_millis(5);
/// A request that takes longer was delayed.
const PROMPT: Duration = Duration::from_millis(20);

/// The results of a polite client, which has one request in flight at a time.
pub struct Waits {
    times: Histogram<u64>,
    /// Requests answered with a result.
    pub results: usize,
    /// Requests answered with an error.
    pub errors: usize,
    /// The total time of all requests that took more than 20 ms.
    pub in_all: Duration,
    /// The longest time of a request.
    pub longest: Duration,
    /// The time of the first request: a newcomer's.
    pub first: Duration,
    /// Whether the last one was unanswered at the end.
    pub unanswered: bool,
}

impl Waits {
    /// A quantile in milliseconds.
    pub fn quantile(&self, quantile: f64) -> f64 {
        self.times.value_at_quantile(quantile) as f64 / 1e6
    }

    /// p50 and p99 in milliseconds; an unanswered request counts as answered now.
    pub fn middle_and_tail(&self) -> [f64; 2] {
        [self.quantile(0.5), self.quantile(0.99)]
    }

    /// The figures for the record.
    pub fn figures(&self) -> Value {
        json!({
            "p50_millis": self.quantile(0.5), "p99_millis": self.quantile(0.99), "results": self.results,
            "errors": self.errors, "seconds_above_20_millis": self.in_all.as_secs_f64(),
            "longest_seconds": self.longest.as_secs_f64(), "first_seconds": self.first.as_secs_f64(),
            "unanswered": self.unanswered,
        })
    }
}

/// A polite client sends requests to a pool until `done` returns true, which is passed the time of the first answer.
/// The request in flight then may take until `until`.
pub fn polite(
    address: &Address,
    pool: &str,
    until: Instant,
    done: impl Fn(Option<Instant>) -> bool,
) -> io::Result<Waits> {
    let mut client = Client::connect(address)?;
    let mut waits = Waits {
        times: measure::histogram(),
        results: 0,
        errors: 0,
        in_all: Duration::ZERO,
        longest: Duration::ZERO,
        first: Duration::ZERO,
        unanswered: false,
    };
    let asks = || -> io::Result<()> {
        let mut first = None;
        for id in 0.. {
            if done(first) || Instant::now() >= until {
                break;
            }
            let began = Instant::now();
            let answer = client.ask(id, "m", pool, until).and_then(|()| client.answer(id, until));
            let time = began.elapsed();
            if first.is_none() {
                first = Some(Instant::now());
                waits.first = time;
            }
            waits.times.saturating_record(time.as_nanos() as u64);
            waits.longest = waits.longest.max(time);
            if time > PROMPT {
                waits.in_all += time;
            }
            match answer {
                Ok(answer) if answer.get("result").is_some() => waits.results += 1,
                Ok(_) => waits.errors += 1,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    waits.unanswered = true;
                    break;
                }
                Err(error) => return Err(error),
            }
            std::thread::sleep(BREAK);
        }
        Ok(())
    };
    measure::first(asks).map(|()| waits)
}

/// One polite client for each of the pools "shared" and "own", concurrently.
pub fn polite_pair(
    address: &Address,
    until: Instant,
    done: impl Fn(Option<Instant>) -> bool + Sync,
) -> io::Result<[Waits; 2]> {
    let done = &done;
    std::thread::scope(|scope| {
        let [first, second] = ["shared", "own"].map(|pool| scope.spawn(move || polite(address, pool, until, done)));
        Ok([joined(first.join())?, joined(second.join())?])
    })
}
