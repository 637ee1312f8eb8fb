//! Short-lived connections: the daemon's cost for each, compared with TCP, and how long a polite client waits while
//! another process opens as many as it can.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use serde_json::json;

use crate::harness::Harness;
use crate::harness::address::{Address, Transport};
use crate::harness::helper::{Helper, is_stopped};
use crate::harness::machine::{Placement, Usage};
use crate::harness::measure::{median, progress, put_first};
use crate::harness::polite::polite;
use crate::harness::server::Contestant;
use crate::harness::web;
use crate::scenario::{Goal, Scenario, goals};

/// Maximum CPU time of the daemon per handshake, in microseconds.
const CPU: f64 = 60.0;
/// Maximum added latency of a polite client at p99, in milliseconds.
const DELAY: f64 = 1.0;
/// Maximum handshakes per second, beside a polite client.
const RATE: u64 = 10_000;
/// Concurrent connections there.
const AT_ONCE: usize = 32;

const WEB: Transport = Transport::WebSocket { ping_sec: 30 };

/// The only scenarios.
pub fn scenario() -> Scenario {
    Scenario::new("handshakes", |harness| {
        let both = vec![cost(harness)?, delay(harness)?];
        progress("");
        Ok(vec![goals(both)])
    })
}

/// Opens one connection after the other.
fn cost(harness: &Harness) -> io::Result<Goal> {
    let pools = [harness.echo("bench", 1)];
    let start = |contestant, transport| harness.start(contestant, &pools, transport, Placement::choose(false));
    let tcp = start(Contestant::Bus, Transport::Tcp)?;
    let web = start(Contestant::WebSocket, WEB)?;
    let count = harness.either(2000, 200);
    let mut micros = [Vec::new(), Vec::new()];
    for round in 0..harness.rounds {
        progress(&format!("handshakes, round {} of {}", round + 1, harness.rounds));
        for (server, micros) in [&tcp, &web].into_iter().zip(&mut micros) {
            let before = Usage::of(server.process())?;
            for _ in 0..count {
                come_and_go(&server.address)?;
            }
            micros.push(Usage::of(server.process())?.micros_since(before) / f64::from(count));
        }
    }
    let [tcp, web] = micros.map(median);
    Ok(Goal {
        what: "connect, handshake, close: CPU of the daemon".to_owned(),
        goal: format!("below {CPU} µs"),
        value: format!("{web:.1} µs; over TCP, without a handshake, {tcp:.1}"),
        reached: web < CPU,
        figures: json!({ "cpu_micros": web, "tcp_cpu_micros": tcp }),
    })
}

/// Opens a connection and waits for the daemon to see its end.
fn come_and_go(address: &Address) -> io::Result<()> {
    let mut stream = TcpStream::from(address.connect()?);
    if address.is_web() {
        stream.write_all(&web::farewell())?;
    } else {
        stream.shutdown(std::net::Shutdown::Write)?;
    }
    let mut end = Vec::new();
    stream.read_to_end(&mut end)?;
    forget(&stream)
}

/// Resets the connection, so that it leaves no TIME_WAIT: the machine's ports would not suffice.
fn forget(stream: &TcpStream) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO))?)
}

/// Measures a polite client, without other connections and with many.
fn delay(harness: &Harness) -> io::Result<Goal> {
    let pools = [harness.echo("bench", 1)];
    let server = harness.start(Contestant::WebSocket, &pools, WEB, Placement::choose(false))?;
    // The daemon's scheduling of its time is measured, and not the kernel's.
    server.workers().into_iter().chain([server.process()]).for_each(|process| put_first(process, true));
    let time = Duration::from_millis(harness.either(3000, 300));
    let (mut quiet, mut beside, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..harness.rounds {
        progress(&format!("a polite client beside handshakes, round {} of {}", round + 1, harness.rounds));
        let waits = || {
            let begun = Instant::now();
            let waits = polite(&server.address, "bench", begun + 10 * time, |_| begun.elapsed() > time)?;
            if waits.errors > 0 || waits.unanswered {
                return Err(io::Error::other("a polite client got an error, or no answer"));
            }
            Ok(waits.quantile(0.99))
        };
        quiet.push(waits()?);
        let visitors = Helper::start(&["be-visitors", &server.address.port()?.to_string()])?;
        beside.push(waits()?);
        rates.push(visitors.stop()?);
    }
    let grows = median(quiet.iter().zip(&beside).map(|(quiet, beside)| beside - quiet).collect());
    let [quiet, beside, rate] = [quiet, beside, rates].map(median);
    Ok(Goal {
        what: format!("up to {RATE} handshakes a second: p99 of a polite client"),
        goal: format!("at most {DELAY} ms more"),
        value: format!("{grows:+.2} ms: {quiet:.2} without, {beside:.2} beside {rate:.0} a second"),
        reached: grows <= DELAY,
        figures: json!({ "quiet_millis": quiet, "beside_millis": beside, "more_millis": grows,
                         "handshakes_per_second": rate }),
    })
}

/// A visitor's connection.
struct Visit {
    stream: TcpStream,
    answer: Vec<u8>,
    is_over: bool,
}

/// Connects, does the handshake and closes, at most [`RATE`] times per second, until its stdin ends.
pub fn visitors(mut arguments: impl Iterator<Item = String>) -> io::Result<()> {
    let port: u16 = arguments.next().and_then(|port| port.parse().ok()).ok_or(io::ErrorKind::InvalidInput)?;
    let request = web::request(port, "/acp")?;
    let farewell = web::farewell();
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let mut visits: Vec<Option<Visit>> = (0..AT_ONCE).map(|_| None).collect();
    let mut events = Vec::with_capacity(AT_ONCE);
    let (begun, mut count, mut done) = (Instant::now(), 0, 0_u64);
    while !is_stopped()? {
        for (number, visit) in visits.iter_mut().enumerate().filter(|(_, visit)| visit.is_none()) {
            if count >= RATE * begun.elapsed().as_micros() as u64 / 1_000_000 {
                break;
            }
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.write_all(request.as_bytes())?;
            stream.set_nonblocking(true)?;
            epoll::add(&epoll, &stream, EventData::new_u64(number as u64), EventFlags::IN)?;
            *visit = Some(Visit { stream, answer: Vec::new(), is_over: false });
            count += 1;
        }
        events.clear();
        let soon = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&soon))?;
        for event in &events {
            let place = &mut visits[event.data.u64() as usize];
            let Some(visit) = place else { continue };
            let mut bytes = [0; 4096];
            let read = visit.stream.read(&mut bytes)?;
            if visit.is_over {
                if read == 0 {
                    forget(&visit.stream)?;
                    *place = None;
                    done += 1;
                }
                continue;
            }
            visit.answer.extend_from_slice(&bytes[..read]);
            if web::is_accepted(&visit.answer, read == 0)? {
                visit.stream.write_all(&farewell)?;
                visit.is_over = true;
            }
        }
    }
    println!("{}", done as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}
