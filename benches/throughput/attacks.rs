//! The attacks. Each says what a client does to the others and asks those how they fare, on the workers that are
//! attacked ("shared") and on others ("own").

use std::fmt::Write as _;
use std::io::{self, BufRead, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::attack::{Attack, Outcome, Over, Stage, Waits, agents, joined, polite, polite_pair};
use crate::case::Transport;
use crate::client::{Client, request};
use crate::fairness::give_way;
use crate::machine;
use crate::server::Address;
use crate::worker::FLOOD_LINE;

/// Pending requests that the daemon keeps.
const TABLE: usize = 4096;
/// Sessions that it keeps, and connections.
const SESSIONS: usize = 1024;
const CONNECTIONS: usize = 1024;
/// The id of a request that only shows how far a client has come.
const SYNC: usize = 1_000_000;

/// All of them, in the order of the table.
pub fn all() -> impl Iterator<Item = Attack> {
    let attack = |name, goal, seconds, run| Attack { name, goal, limit: Duration::from_secs(seconds), run };
    [
        attack("fairness, six clients never read", "1 s in all", 60, never_read),
        attack("fairness, one client reads 70 kB/s", "1 s in all", 60, dribble),
        attack("fairness, one client with 4,096 unanswered requests", "60 of 60", 60, |stage| unanswered(stage, 1)),
        attack("fairness, two clients with 4,096 unanswered requests each", "60 of 60", 60, |stage| {
            unanswered(stage, 2)
        }),
        attack("fairness, 4,300 requests cancelled by their client", "60 of 60, slots back", 90, cancelled),
        attack("fairness, 1,024 notifications with a session each", "20 of 20 opened", 60, sessions),
        attack("fairness, 1,024 connections of which one leaves", "taken at once", 60, connections),
        attack("fairness, 24 requests that crash their worker", "no worker given up", 90, crashes),
        attack("fairness, 800 lines of 900 kB before a slow worker", "p99 × 3", 90, long_lines),
        attack("fairness, notifications flood a worker of 0.2 ms a line", "p50 10.4 ms", 120, |stage| {
            flood(stage, false, 200)
        }),
        attack("fairness, notifications flood a fast worker", "p50 10 ms", 120, |stage| flood(stage, false, 0)),
        attack("fairness, requests flood a worker of 0.2 ms a line", "p50 10.4 ms", 120, |stage| {
            flood(stage, true, 200)
        }),
        attack("fairness, requests flood a fast worker", "p50 10 ms", 120, |stage| flood(stage, true, 0)),
        attack(
            "fairness, 200 workers of a dedicated pool are started a second",
            "p99 × 2, or as elsewhere",
            60,
            starts,
        ),
        attack("fairness, eight connections take all seats of a dedicated pool", "an error with the figure", 60, seats),
    ]
    .into_iter()
}

/// Fills a table step by step, so that nothing is measured before it has got there. Ids begin with `first`.
fn fill(
    client: &mut Client,
    first: usize,
    count: usize,
    lines: impl Fn(usize) -> String,
    until: Instant,
) -> io::Result<()> {
    let mut block = String::new();
    for id in first..first + count {
        block.push_str(&lines(id));
        if (id + 1 - first).is_multiple_of(256) || id + 1 == first + count {
            block.push_str(&request(SYNC + id, "m", "shared"));
            client.send(block.as_bytes(), until)?;
            block.clear();
            client.answer(SYNC + id, until)?;
        }
    }
    Ok(())
}

/// How long two polite clients were kept waiting.
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

/// A worker that several share, one beside it, and the limits of both attacks by slow readers.
fn slow_reader_stage(stage: &Stage<'_>) -> io::Result<crate::server::Server> {
    let limits = json!({
        "backpressure_timeout_sec": stage.either(5, 1), "max_output_queue": stage.either(2, 1) * 1024 * 1024,
    });
    stage.start(&[agents("shared", 1, 0)?, agents("own", 1, 0)?], &limits, Transport::Unix)
}

/// Asks the worker that is shared for so many bytes.
fn ask_for(client: &mut Client, session: usize, bytes: usize, until: Instant) -> io::Result<()> {
    let mut line = json!({
        "jsonrpc": "2.0", "id": 1, "method": "flood", "sessionId": format!("slow-{session}"), "pool": "shared",
        "lines": bytes / FLOOD_LINE,
    })
    .to_string();
    line.push('\n');
    client.send(line.as_bytes(), until)
}

fn never_read(stage: &Stage<'_>) -> io::Result<Outcome> {
    let server = slow_reader_stage(stage)?;
    let mut deaf = (0..6).map(|_| Client::connect(&server.address)).collect::<io::Result<Vec<_>>>()?;
    for (number, client) in deaf.iter_mut().enumerate() {
        ask_for(client, number, 16_000_000, stage.until)?;
    }
    let began = Instant::now();
    // It is over when nobody is left to wait for; what comes late is waited for, too.
    let closed = || deaf.iter().filter(|client| client.is_closed()).count();
    let least = Duration::from_secs(stage.either(10, 3));
    let done = |_| began.elapsed() > least && closed() == deaf.len();
    let waits = polite_pair(&server.address, ["shared", "own"], stage.within(stage.either(40, 10)), done)?;
    let rest = format!("; {} of 6 are closed", closed());
    Ok(held_up(&waits, &rest, json!({ "closed": closed() })))
}

fn dribble(stage: &Stage<'_>) -> io::Result<Outcome> {
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
            polite_pair(&server.address, ["shared", "own"], until, |_| false)?
        };
        let closed = joined(reader.join())?;
        let rest = closed
            .map_or_else(|| "; it is not closed".to_owned(), |after| format!("; it is closed after {after:.1} s"));
        Ok(held_up(&waits, &rest, json!({ "closed_after_seconds": closed })))
    })
}

/// Polite clients that are there before the attack.
fn three(address: &Address) -> io::Result<Vec<Client>> {
    (0..3).map(|_| Client::connect(address)).collect()
}

/// Three polite clients have twenty requests each in flight at once. Returns how many of them get a result.
fn sixty(clients: &mut [Client], pool: &str, stage: &Stage<'_>) -> io::Result<usize> {
    for client in clients.iter_mut() {
        for id in 0..20 {
            client.ask(id, "hold", pool, stage.within(5))?;
        }
    }
    // A request that got no further than the table has its error by now, and the others are with their worker.
    std::thread::sleep(Duration::from_millis(300));
    // A notification takes no slot, so it arrives where requests are refused.
    let release = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"release\",\"pool\":\"{pool}\"}}\n");
    clients[0].send(release.as_bytes(), stage.within(5))?;
    let (until, mut results) = (stage.within(5), 0);
    for client in clients {
        for _ in 0..20 {
            match client.line(until) {
                Ok(line) => results += usize::from(line.get("result").is_some()),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(results)
}

/// The pools of the attacks on the table of pending requests.
fn two_pools() -> io::Result<[Value; 2]> {
    Ok([agents("shared", 1, 0)?, agents("own", 1, 0)?])
}

fn unanswered(stage: &Stage<'_>, hogs: usize) -> io::Result<Outcome> {
    let server = stage.start(&two_pools()?, &json!({}), Transport::Tcp)?;
    let mut polite = three(&server.address)?;
    let mut hogs = (0..hogs).map(|_| Client::connect(&server.address)).collect::<io::Result<Vec<_>>>()?;
    for hog in &mut hogs {
        fill(hog, 0, TABLE, |id| request(id, "never", "shared"), stage.until)?;
    }
    let shared = sixty(&mut polite, "shared", stage)?;
    let own = sixty(&mut polite, "own", stage)?;
    Ok(Outcome {
        text: format!("shared {shared} of 60, own {own} of 60"),
        reached: shared == 60 && own == 60,
        figures: json!({ "shared": shared, "own": own }),
    })
}

fn cancelled(stage: &Stage<'_>) -> io::Result<Outcome> {
    const REQUESTS: usize = 4300;
    let server = stage.start(&two_pools()?, &json!({}), Transport::Tcp)?;
    let (mut polite, mut greedy) = (three(&server.address)?, Client::connect(&server.address)?);
    let cancelled = |id| {
        let mut lines = request(id, "never", "shared");
        let _ =
            writeln!(lines, r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#);
        lines
    };
    fill(&mut greedy, 0, REQUESTS, cancelled, stage.until)?;
    let began = Instant::now();
    let shared = sixty(&mut polite, "shared", stage)?;
    let own = sixty(&mut polite, "own", stage)?;
    // The slots are back when another client can have half of the table at once.
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
        other.send(b"{\"jsonrpc\":\"2.0\",\"method\":\"release\",\"pool\":\"own\"}\n", stage.until)?;
        let (mut refused, until) = (0, stage.within(5));
        for _ in 0..TABLE / 2 {
            match other.line(until) {
                Ok(line) => refused += usize::from(line.get("result").is_none()),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    refused += 1;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if refused == 0 {
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

fn sessions(stage: &Stage<'_>) -> io::Result<Outcome> {
    let server = stage.start(&two_pools()?, &json!({}), Transport::Tcp)?;
    let mut greedy = Client::connect(&server.address)?;
    let claim = |name| {
        format!("{{\"jsonrpc\":\"2.0\",\"method\":\"n\",\"sessionId\":\"greedy-{name}\",\"pool\":\"shared\"}}\n")
    };
    fill(&mut greedy, 0, SESSIONS, claim, stage.until)?;
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

fn connections(stage: &Stage<'_>) -> io::Result<Outcome> {
    let server = stage.start(&[agents("shared", 1, 0)?], &json!({}), Transport::Unix)?;
    let mut idle = (0..CONNECTIONS).map(|_| Client::connect(&server.address)).collect::<io::Result<Vec<_>>>()?;
    // They are taken in their order, so the answer of the last one says that all are in.
    if let Some(last) = idle.last_mut() {
        last.ask(0, "m", "shared", stage.until)?;
        last.answer(0, stage.within(10))?;
    }
    let mut newcomer = Client::connect(&server.address)?;
    newcomer.ask(0, "m", "shared", stage.until)?;
    if newcomer.line(stage.within(1)).is_ok() {
        return Err(io::Error::other("the connections are not all in use"));
    }
    // The first to leave is one that said nothing.
    drop(idle.swap_remove(0));
    let began = Instant::now();
    let mut taken = newcomer.answer(0, stage.within(2));
    let after = began.elapsed().as_secs_f64();
    let mut left = 1;
    while taken.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) && idle.pop().is_some() {
        left += 1;
        taken = newcomer.answer(0, Instant::now() + Duration::from_millis(20));
    }
    taken?;
    let text = if left == 1 {
        format!("taken after {:.1} ms", after * 1e3)
    } else {
        format!("not within 2 s; taken when {left} have left")
    };
    Ok(Outcome { text, reached: left == 1 && after < 0.1, figures: json!({ "left": left, "seconds": after }) })
}

fn crashes(stage: &Stage<'_>) -> io::Result<Outcome> {
    const CRASHES: usize = 24;
    const WORKER_EXITED: i64 = -32011;
    let server = stage.start(&[agents("shared", 4, 0)?, agents("own", 1, 0)?], &json!({}), Transport::Tcp)?;
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
                    // No worker runs at the moment.
                    Ok(_) => std::thread::sleep(Duration::from_millis(10)),
                    Err(_) => break,
                }
            }
            Ok((crashes, began.elapsed()))
        });
        let done = |_| over.load(Ordering::Relaxed);
        let waits = polite_pair(&server.address, ["shared", "own"], stage.until, done)?;
        let (crashes, elapsed) = joined(poisoning.join())?;
        io::Result::Ok((crashes, elapsed, waits))
    })?;
    // The last crash may have its restart still before it.
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

/// Clients that each have one long line to send, all in one thread.
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
        let client = |_| -> io::Result<_> {
            let socket = address.connect()?;
            rustix::io::ioctl_fionbio(&socket, true)?;
            Ok((socket, 0))
        };
        Ok(Self { line, clients: (0..count).map(client).collect::<io::Result<_>>()? })
    }

    /// Writes until it is over. `written` tells others how many lines have left their clients.
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

fn long_lines(stage: &Stage<'_>) -> io::Result<Outcome> {
    let count = stage.either(800, 200);
    // The peer may be of a time when memory had no limit, and not know the key.
    let limits = match stage.who {
        crate::server::Contestant::Bus => json!({ "max_memory": 2_u64 << 30 }),
        _ => json!({}),
    };
    // Twenty lines a second: most of them wait for as long as it is measured.
    let pools = [agents("shared", 1, 50_000)?, agents("own", 1, 0)?];
    let server = stage.start(&pools, &limits, Transport::Unix)?;
    let length = Duration::from_secs(stage.either(6, 1));
    let asks = || polite(&server.address, "own", stage.within(30), |first| is_past(first, length));
    let quiet = asks()?;
    let mut attackers = LongLines::connect(&server.address, count)?;
    let (written, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (waits, waiting) = std::thread::scope(|scope| {
        let writing = scope.spawn(|| attackers.write(&written, &over));
        let _over = Over(&over);
        // Until all lines have left, or the daemon takes no more of them.
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

/// Whether the first answer came so long ago.
fn is_past(first: Option<Instant>, length: Duration) -> bool {
    first.is_some_and(|first| first.elapsed() > length)
}

/// p50 and p99 without and with an attack.
fn grows(quiet: &Waits, waits: &Waits) -> String {
    let ([p50, p99], [p50_with, p99_with]) = (quiet.middle_and_tail(), waits.middle_and_tail());
    format!("p50 {} → {} ms, p99 {} → {}", short(p50), short(p50_with), short(p99), short(p99_with))
}

/// Two digits that count.
fn short(millis: f64) -> String {
    if millis < 10.0 { format!("{millis:.2}") } else { format!("{millis:.0}") }
}

/// Reads whatever comes, until nothing will come.
fn reads_on(client: &mut Client, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        match client.skim(usize::MAX, Instant::now()) {
            Ok(0) => break,
            Err(error) if error.kind() != io::ErrorKind::TimedOut => break,
            _ => {}
        }
    }
}

/// Sends notifications or requests as fast as they are taken, and counts them.
fn floods(client: &mut Client, requests: bool, sent: &AtomicUsize, over: &AtomicBool) {
    // A third of the CPU is enough for more lines than any worker takes, and lets the worker have the rest.
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
        // A block that is not taken at once goes on where it stopped: a line cut short would end the flood.
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

fn flood(stage: &Stage<'_>, requests: bool, micros: u64) -> io::Result<Outcome> {
    let server = stage.start(&[agents("shared", 1, micros)?, agents("own", 1, 0)?], &json!({}), Transport::Tcp)?;
    let pair = |length, longest| {
        polite_pair(&server.address, ["shared", "own"], stage.within(longest), move |first| is_past(first, length))
    };
    let length = Duration::from_secs(stage.either(8, 1));
    let [quiet, quiet_own] = pair(length / 4, 10)?;
    let mut flooder = Client::connect(&server.address)?;
    let (mut reader, over) = (flooder.second()?, AtomicBool::new(false));
    let sent = AtomicUsize::new(0);
    let ([waits, own], rate) = std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| reads_on(&mut reader, &over));
        let flooding = scope.spawn(|| floods(&mut flooder, requests, &sent, &over));
        // Queues fill before it is measured.
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
    // Queues that the flooder has filled alone are before the first of the others.
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

/// What a polite client of another pool notices of workers that are started, for clients that come, ask, and go with
/// their answers. The same program is started as often by somebody else, too: what that costs is the machine's, and the
/// rest is the daemon's.
fn starts(stage: &Stage<'_>) -> io::Result<Outcome> {
    let mut pool = agents("shared", 1, 0)?;
    let words = [&pool["command"], &pool["args"][0], &pool["args"][1]];
    let [command, args @ ..] = words.map(|word| word.as_str().unwrap_or_default().to_owned());
    pool["assignment"] = json!("dedicated");
    pool["max_instances"] = json!(500);
    let server = stage.start(&[pool, agents("own", 1, 0)?], &json!({}), Transport::Tcp)?;
    // What it starts runs where there is room, as it would anywhere.
    machine::unpin(server.process())?;
    let seconds = stage.either(6, 2);
    let quiet = polite(&server.address, "own", stage.within(seconds), |_| false)?;
    let until = stage.within(seconds);
    let (elsewhere, _) = beside_starts(&server.address, until, || {
        let line = request(0, "m", "shared");
        let mut child = Command::new(&command)
            .args(&args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(line.as_bytes()))?;
        let mut answer = String::new();
        if let Some(stdout) = child.stdout.take() {
            io::BufReader::new(stdout).read_line(&mut answer)?;
        }
        child.wait()?;
        Ok(answer.contains("result"))
    })?;
    let until = stage.within(seconds);
    let (loaded, rate) = beside_starts(&server.address, until, || {
        let mut client = Client::connect(&server.address)?;
        client.ask(0, "m", "shared", until)?;
        Ok(client.answer(0, until)?.get("result").is_some())
    })?;
    let [quiet_tail, elsewhere_tail, tail] = [&quiet, &elsewhere, &loaded].map(|waits| waits.middle_and_tail()[1]);
    Ok(Outcome {
        text: format!(
            "p50 / p99 {} ms, {} without, {} where another program starts them; {rate:.0} workers a second",
            millis(&loaded),
            millis(&quiet),
            millis(&elsewhere)
        ),
        reached: tail <= elsewhere_tail.max(2.0 * quiet_tail) && loaded.errors == 0 && !loaded.unanswered,
        figures: json!({
            "quiet": quiet.figures(),
            "elsewhere": elsewhere.figures(),
            "loaded": loaded.figures(),
            "workers_per_second": rate,
        }),
    })
}

/// What a polite client of the other pool meets while something is begun 200 times a second, and how many of these have
/// come to what they should each second.
fn beside_starts(
    address: &Address,
    until: Instant,
    start: impl Fn() -> io::Result<bool> + Sync,
) -> io::Result<(Waits, f64)> {
    const THREADS: u32 = 8;
    const RATE: u32 = 200;
    let (over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let began = Instant::now();
    let waits = std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (over, done, start) = (&over, &done, &start);
            scope.spawn(move || {
                let mut due = began + Duration::from_secs(1) / RATE * thread;
                while !over.load(Ordering::Relaxed) {
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    due += Duration::from_secs(1) / RATE * THREADS;
                    done.fetch_add(usize::from(start().unwrap_or(false)), Ordering::Relaxed);
                }
            });
        }
        let _over = Over(&over);
        polite(address, "own", until, |_| false)
    })?;
    Ok((waits, done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()))
}

fn millis(waits: &Waits) -> String {
    let [middle, tail] = waits.middle_and_tail();
    format!("{middle:.2} / {tail:.2}")
}

fn seats(stage: &Stage<'_>) -> io::Result<Outcome> {
    const SEATS: usize = 8;
    let mut pool = agents("shared", 1, 0)?;
    pool["assignment"] = json!("dedicated");
    pool["max_instances"] = json!(SEATS);
    let server = stage.start(&[pool, agents("own", 1, 0)?], &json!({}), Transport::Tcp)?;
    let mut takers = (0..SEATS).map(|_| Client::connect(&server.address)).collect::<io::Result<Vec<_>>>()?;
    for (number, taker) in takers.iter_mut().enumerate() {
        // A seat may still be starting: it asks until it has one.
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
            if beside { "goes on" } else { "does not" }
        ),
        reached: message.contains(&SEATS.to_string()) && beside,
        figures: json!({ "error": error, "own_goes_on": beside }),
    })
}
