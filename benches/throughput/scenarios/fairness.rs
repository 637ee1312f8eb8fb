//! Fairness: the latency of polite clients while another client sends as fast as it can and a worker floods its stdout.
//!
//! Sixty-three clients send a hundred requests per second each, at fixed times whether or not answers have arrived; a
//! request's latency counts from its scheduled time. The flooding client is a process with low priority, as are its
//! workers, and the polite clients have real-time priority: so the daemon's fairness is measured and not the
//! scheduler's.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use crate::harness::Harness;
use crate::harness::address::{Address, Transport};
use crate::harness::helper::{Helper, is_stopped};
use crate::harness::machine::Placement;
use crate::harness::measure::{first, give_way, histogram, median, percentiles, progress};
use crate::harness::request::{request, set_id};
use crate::harness::server::{Contestant, this_program};
use crate::scenario::{Scenario, Table};

const CLIENTS: usize = 63;
const EVERY: Duration = Duration::from_millis(10);
const BYTES: usize = 200;
/// Workers of the polite clients.
const WORKERS: usize = 2;

/// The results of a round.
struct Round {
    /// Microseconds without the flood: p50, p99, p99.9.
    quiet: [f64; 3],
    /// The same with it.
    flooded: [f64; 3],
    /// Lines per second that the flooding client received.
    flood_rate: f64,
    /// Requests of polite clients with an error during the flood, of all they made.
    refused: f64,
}

/// The only scenario.
pub fn scenario() -> Scenario {
    Scenario::new("fairness", measure)
}

/// Measures the daemon, with the flood on a pool of its own and on the polite clients' pool.
fn measure(harness: &Harness) -> io::Result<Vec<Table>> {
    let mut table = Table { name: "fairness", head: "", rows: Vec::new(), figures: Vec::new() };
    for (name, pool) in [("flood beside", "beside"), ("flood through the same workers", "bench")] {
        let mut rounds = Vec::new();
        for number in 0..harness.either(5, 1) {
            progress(&format!("fairness, {name}, round {}", number + 1));
            rounds.push(round(pool, harness)?);
        }
        let of = |figure: &dyn Fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
        let quiet = [0, 1, 2].map(|index| of(&|round| round.quiet[index]));
        let flooded = [0, 1, 2].map(|index| of(&|round| round.flooded[index]));
        let ratio = of(&|round| round.flooded[1] / round.quiet[1]);
        let (rate, refused) = (of(&|round| round.flood_rate), of(&|round| round.refused));
        let text = |times: [f64; 3]| times.map(|time| format!("{time:.0}")).join(" / ");
        table.rows.push(format!(
            "{name}: 63 polite clients wait p50 / p99 / p99.9 {} µs, with it {} µs: p99 × {ratio:.2}; {:.1} % of their \
             requests are refused; the flooding client receives {rate:.0} lines/s",
            text(quiet),
            text(flooded),
            100.0 * refused
        ));
        table.figures.push(json!({
            "flood": name, "quiet_micros": quiet, "flooded_micros": flooded, "p99_ratio": ratio, "refused": refused,
            "flood_lines_per_second": rate,
        }));
    }
    progress("");
    Ok(vec![table])
}

/// The worker's flood only ends with the daemon, so each round starts its own.
fn round(pool: &str, harness: &Harness) -> io::Result<Round> {
    let length = harness.either(Duration::from_secs(4), Duration::from_millis(300));
    let flood = json!({ "id": "flood", "command": this_program(), "args": ["be-flood-worker"], "instances": 1 });
    let pools = [harness.echo("bench", WORKERS), harness.echo("beside", 1), flood];
    let server = harness.start(Contestant::Bus, &pools, Transport::Tcp, Placement::choose(false))?;
    let mut polite = Polite::connect(&server.address)?;
    polite.run(length / 4)?;
    let quiet = polite.run(length)?;
    let flooder = Helper::start(&["be-flooder", &server.address.port()?.to_string(), pool])?;
    std::thread::sleep(Duration::from_millis(100));
    for worker in server.workers().into_iter().skip(WORKERS) {
        give_way(worker, 19);
    }
    polite.run(length / 8)?;
    (polite.answered, polite.refused) = (0, 0);
    let flooded = polite.run(length)?;
    let refused = polite.refused as f64 / polite.answered as f64;
    Ok(Round { quiet, flooded, flood_rate: flooder.stop()?, refused })
}

struct Polite {
    clients: Vec<(OwnedFd, Vec<u8>, u64)>,
    answered: u64,
    refused: u64,
}

impl Polite {
    fn connect(address: &Address) -> io::Result<Self> {
        let client = |number| -> io::Result<_> {
            Ok((address.connect_nonblocking()?, with_pool(request(number, BYTES - 15), "bench"), 0))
        };
        let clients = (0..CLIENTS).map(client).collect::<io::Result<_>>()?;
        Ok(Self { clients, answered: 0, refused: 0 })
    }

    /// Sends at fixed times for a while. Returns p50, p99 and p99.9 in microseconds.
    fn run(&mut self, length: Duration) -> io::Result<[f64; 3]> {
        first(|| self.measure(length))
    }

    fn measure(&mut self, length: Duration) -> io::Result<[f64; 3]> {
        let mut times = histogram();
        let start = Instant::now();
        // Client i sends at i/63 of each interval, to spread the load.
        let step = EVERY / CLIENTS as u32;
        let total = (length.as_nanos() / step.as_nanos()) as usize;
        let mut due: Vec<VecDeque<Instant>> = vec![Default::default(); CLIENTS];
        let (mut sent, mut answered) = (0, 0);
        let mut buffer = vec![0; 64 * 1024];
        while answered < total {
            while sent < total && start.elapsed() >= step * sent as u32 {
                let number = sent % CLIENTS;
                let (socket, request, count) = &mut self.clients[number];
                set_id(request, number, *count);
                *count += 1;
                due[number].push_back(start + step * sent as u32);
                rustix::io::write(&*socket, request)?;
                sent += 1;
            }
            let next = (step * sent as u32).saturating_sub(start.elapsed());
            let timeout = if sent < total { next } else { Duration::from_secs(5) };
            let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
            let mut polled: Vec<PollFd<'_>> =
                self.clients.iter().map(|(socket, ..)| PollFd::new(socket, PollFlags::IN)).collect();
            let ready = poll(&mut polled, Some(&timeout))?;
            if ready == 0 && sent == total {
                return Err(io::Error::other(format!("{} answers are missing", total - answered)));
            }
            let ready: Vec<_> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
            for number in (0..CLIENTS).filter(|number| ready[*number]) {
                let count = rustix::io::read(&self.clients[number].0, &mut buffer)?;
                let lines = memchr::memchr_iter(b'\n', &buffer[..count]).count();
                answered += lines;
                self.answered += lines as u64;
                self.refused += memchr::memmem::find_iter(&buffer[..count], b"\"error\":{").count() as u64;
                for _ in 0..lines {
                    if let Some(due) = due[number].pop_front() {
                        times.saturating_record(due.elapsed().as_nanos() as u64);
                    }
                }
            }
        }
        Ok(percentiles(&times))
    }
}

/// Puts a pool's name at the end of a request, since the id has to be at a fixed offset.
fn with_pool(mut request: Vec<u8>, pool: &str) -> Vec<u8> {
    let end = request.len() - "}\n".len();
    request.splice(end..end, format!(",\"pool\":\"{pool}\"").into_bytes());
    request
}

/// Sends requests as fast as the daemon accepts them, reads everything, and makes the flooding worker flood it, until
/// its stdin ends.
pub fn flooder(mut arguments: impl Iterator<Item = String>) -> io::Result<()> {
    give_way(0, 19);
    let port = arguments.next().and_then(|port| port.parse().ok()).ok_or(io::ErrorKind::InvalidInput)?;
    let pool = arguments.next().unwrap_or_default();
    let socket = Address::Tcp(port).connect()?;
    let client = 5000;
    let mut start = with_pool(request(client, BYTES), "flood");
    set_id(&mut start, client, 0);
    let mut stream = std::net::TcpStream::from(socket);
    stream.write_all(&start)?;
    let mut writer = stream.try_clone()?;
    let sending = std::thread::spawn(move || {
        give_way(0, 19);
        let mut request = with_pool(request(client + 1, BYTES), &pool);
        let mut block = Vec::new();
        for number in 0.. {
            block.clear();
            for step in 0..100 {
                set_id(&mut request, client + 1, number * 100 + step);
                block.extend_from_slice(&request);
            }
            if writer.write_all(&block).is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 256 * 1024];
    let (began, mut lines) = (Instant::now(), 0);
    while !is_stopped()? {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(io::Error::other("the daemon closed the flooding client: there is no flood"));
        }
        lines += memchr::memchr_iter(b'\n', &buffer[..count]).count();
    }
    println!("{}", lines as f64 / began.elapsed().as_secs_f64());
    stream.shutdown(std::net::Shutdown::Both)?;
    let _ = sending.join();
    Ok(())
}
