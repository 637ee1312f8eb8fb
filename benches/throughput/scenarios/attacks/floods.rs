//! Clients that send more than their worker can handle: many short lines, or long ones.

use std::fmt::Write as _;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::json;

use super::stage::{Outcome, Stage, two_pools};
use crate::harness::address::{Address, Transport};
use crate::harness::client::Client;
use crate::harness::measure::{Over, give_way, joined};
use crate::harness::polite::{Waits, polite, polite_pair};
use crate::harness::server::Contestant;

/// Clients that each send one long line, all on one thread.
struct LongLines {
    line: Vec<u8>,
    clients: Vec<(OwnedFd, usize)>,
}

impl LongLines {
    fn connect(address: &Address, count: usize) -> io::Result<Self> {
        const BYTES: usize = 900_000;
        let head = r#"{"jsonrpc":"2.0","id":1,"method":"m","pool":"shared","params":{"text":""#;
        let mut line = head.as_bytes().to_vec();
        line.resize(BYTES - 4, b'x');
        line.extend_from_slice(b"\"}}\n");
        let clients = (0..count).map(|_| Ok((address.connect_nonblocking()?, 0))).collect::<io::Result<_>>()?;
        Ok(Self { line, clients })
    }

    /// Writes until `over`. `written` counts the lines sent.
    fn write(&mut self, written: &AtomicUsize, over: &AtomicBool) -> io::Result<()> {
        while !over.load(Ordering::Relaxed) {
            let open: Vec<_> =
                (0..self.clients.len()).filter(|index| self.clients[*index].1 < self.line.len()).collect();
            written.store(self.clients.len() - open.len(), Ordering::Relaxed);
            let mut polled: Vec<_> =
                open.iter().map(|index| PollFd::new(&self.clients[*index].0, PollFlags::OUT)).collect();
            poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 }))?;
            let ready: Vec<_> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
            for (index, _) in open.into_iter().zip(ready).filter(|(_, ready)| *ready) {
                let (socket, at) = &mut self.clients[index];
                match rustix::io::write(&*socket, &self.line[*at..]) {
                    Ok(count) => *at += count,
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}

pub fn long_lines(stage: &Stage<'_>) -> io::Result<Outcome> {
    let count = stage.either(800, 200);
    // The peer may be an older version without a memory limit, which does not know the key.
    let limits = match stage.contestant {
        Contestant::Bus => json!({ "max_memory": 2_u64 << 30 }),
        _ => json!({}),
    };
    // Twenty lines per second: most of them wait for the whole measurement.
    let server = stage.start(&two_pools(50_000), &limits, Transport::Unix)?;
    let length = Duration::from_secs(stage.either(6, 1));
    let asks = || polite(&server.address, "own", stage.within(30), |first| is_past(first, length));
    let quiet = asks()?;
    let mut attackers = LongLines::connect(&server.address, count)?;
    let (written, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (waits, waiting) = std::thread::scope(|scope| {
        let writing = scope.spawn(|| attackers.write(&written, &over));
        let _over = Over(&over);
        // Until all lines are sent, or the daemon stops reading.
        let (mut last, mut since) = (0, Instant::now());
        let patience = stage.within(20);
        while last < count && since.elapsed() < Duration::from_secs(2) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(20));
            let now = written.load(Ordering::Relaxed);
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        let waits = asks()?;
        let waiting = written.load(Ordering::Relaxed);
        drop(_over);
        joined(writing.join())?;
        io::Result::Ok((waits, waiting))
    })?;
    let ([_, before], [_, after]) = (quiet.middle_and_tail(), waits.middle_and_tail());
    let partly =
        if waiting < count { format!("; {waiting} of {count} lines have left their clients") } else { String::new() };
    let fewer = if count < 800 { format!("; {count} clients") } else { String::new() };
    Ok(Outcome {
        text: format!("own {}: p99 × {:.1}{partly}{fewer}", grows(&quiet, &waits), after / before),
        reached: after <= 3.0 * before && !waits.unanswered,
        figures: json!({ "quiet": quiet.figures(), "attacked": waits.figures(), "clients": count, "written": waiting }),
    })
}

/// Whether the first answer was received that long ago.
fn is_past(first: Option<Instant>, length: Duration) -> bool {
    first.is_some_and(|first| first.elapsed() > length)
}

/// p50 and p99 without and with an attack.
fn grows(quiet: &Waits, waits: &Waits) -> String {
    let ([p50, p99], [p50_with, p99_with]) = (quiet.middle_and_tail(), waits.middle_and_tail());
    format!("p50 {} → {} ms, p99 {} → {}", short(p50), short(p50_with), short(p99), short(p99_with))
}

/// Two significant digits.
fn short(millis: f64) -> String {
    if millis < 10.0 { format!("{millis:.2}") } else { format!("{millis:.0}") }
}

/// Reads until the end of the connection.
fn reads_on(client: &mut Client, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        match client.skim(usize::MAX, Instant::now()) {
            Ok(0) => break,
            Err(error) if error.kind() != io::ErrorKind::TimedOut => break,
            _ => {}
        }
    }
}

/// Sends notifications or requests as fast as they are accepted, and counts them.
fn floods(client: &mut Client, requests: bool, sent: &AtomicUsize, over: &AtomicBool) {
    // A third of the CPU suffices for more lines than any worker can handle, and leaves the rest to the worker.
    give_way(0, 5);
    let text = "as fast as it can be taken";
    let line = |id| {
        let id = if requests { format!("\"id\":{id},") } else { String::new() };
        format!(r#"{{"jsonrpc":"2.0",{id}"method":"m","pool":"shared","params":{{"text":"{text}"}}}}"#) + "\n"
    };
    let mut block = String::new();
    for number in 0.. {
        if requests || block.is_empty() {
            block = (0..100).map(|step| line(number * 100 + step)).collect();
        }
        // A partly accepted block continues where it stopped: a truncated line would end the flood.
        let mut rest = block.as_bytes();
        while !rest.is_empty() {
            match client.send_some(rest) {
                Ok(count) if !over.load(Ordering::Relaxed) => rest = &rest[count..],
                _ => return,
            }
        }
        sent.fetch_add(100, Ordering::Relaxed);
    }
}

pub fn flood(stage: &Stage<'_>, requests: bool, micros: u64) -> io::Result<Outcome> {
    let server = stage.start(&two_pools(micros), &json!({}), Transport::Tcp)?;
    let pair =
        |length, longest| polite_pair(&server.address, stage.within(longest), move |first| is_past(first, length));
    let length = Duration::from_secs(stage.either(8, 1));
    let [quiet, quiet_own] = pair(length / 4, 10)?;
    let mut flooder = Client::connect(&server.address)?;
    let (mut reader, over) = (flooder.second()?, AtomicBool::new(false));
    let sent = AtomicUsize::new(0);
    let ([waits, own], rate) = std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| reads_on(&mut reader, &over));
        let flooding = scope.spawn(|| floods(&mut flooder, requests, &sent, &over));
        // The queues fill before the measurement.
        std::thread::sleep(Duration::from_secs(stage.either(2, 1)));
        let before = (sent.load(Ordering::Relaxed), Instant::now());
        let waits = pair(length, stage.either(60, 12))?;
        let rate = (sent.load(Ordering::Relaxed) - before.0) as f64 / before.1.elapsed().as_secs_f64();
        if flooding.is_finished() {
            return Err(io::Error::other("the daemon closed the flooding client: there is no flood"));
        }
        Ok((waits, rate))
    })?;
    let mut open = if waits.unanswered { ", no answer at the end".to_owned() } else { String::new() };
    if waits.errors > 0 {
        let _ = write!(open, ", {} of {} refused", waits.errors, waits.errors + waits.results);
    }
    // Queues that only the flooder has filled precede the first requests of the others.
    let first = format!("the first {} ms{open}", short(waits.first.as_secs_f64() * 1e3));
    let goal = 2.0 * micros as f64 / 1e3 + 10.0;
    Ok(Outcome {
        text: format!(
            "shared {}, {first}; own {}; {:.0} lines/s",
            grows(&quiet, &waits),
            grows(&quiet_own, &own),
            rate
        ),
        reached: [&waits, &own]
            .iter()
            .all(|waits| waits.quantile(0.5) <= goal && !waits.unanswered && waits.errors == 0),
        figures: json!({
            "quiet": { "shared": quiet.figures(), "own": quiet_own.figures() },
            "attacked": { "shared": waits.figures(), "own": own.figures() },
            "flood_lines_per_second": rate,
        }),
    })
}
