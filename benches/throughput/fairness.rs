//! Fairness: how long polite clients wait while another client sends as fast as it can and a worker floods its stdout.
//!
//! Sixty-three clients send a hundred requests a second each, at fixed times whether or not answers have come; a
//! request's time counts from the moment it was due. The flooding client is a process of its own that gives way to
//! everybody else, as do the workers that only it uses, and the polite go before everybody else: what is measured is
//! the daemon's fairness and not the scheduler's.

use std::io::{self, Read, Write};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::case::Transport;
use crate::load;
use crate::machine::Placement;
use crate::options::Options;
use crate::round::median;
use crate::server::{Address, Contestant, Pool, Server};

const CLIENTS: usize = 63;
const EVERY: Duration = Duration::from_millis(10);
const BYTES: usize = 200;
/// Workers of the polite.
const WORKERS: usize = 2;

/// What came out of one kind of flood.
pub struct Fairness {
    /// Which flood.
    pub name: &'static str,
    /// Microseconds without the flood: p50, p99, p99.9.
    pub quiet: [f64; 3],
    /// The same with it.
    pub flooded: [f64; 3],
    /// p99 with over p99 without, round by round: a median.
    pub ratio: f64,
    /// Lines a second that the flooding client received.
    pub flood_rate: f64,
    /// Requests of the polite that got an error during the flood, of all they made.
    pub refused: f64,
}

/// Measures the daemon, with the flood on a pool of its own and on the pool of the polite.
pub fn measure(options: &Options) -> io::Result<Vec<Fairness>> {
    let placement = &Placement::choose(false, options);
    let mut all = Vec::new();
    for (name, pool) in [("flood beside", "flood"), ("flood through the same workers", "bench")] {
        let length = if options.quick { Duration::from_millis(300) } else { Duration::from_secs(4) };
        let (mut quiet, mut flooded) = (Vec::new(), Vec::new());
        let (mut ratios, mut rates, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..if options.quick { 1 } else { 5 } {
            eprint!("\r\x1b[Kfairness, {name}, round {}", round + 1);
            // Nothing ends the worker's flood but the end of the daemon: each round has its own.
            let flood_worker = Pool {
                id: "flood",
                command: std::env::current_exe()?,
                args: vec!["be-flood-worker".to_owned()],
                instances: 1,
            };
            let beside = Pool { id: "beside", ..Pool::echo("", options, 1) };
            let pools = [Pool::echo("bench", options, WORKERS), beside, flood_worker];
            let server = Server::start(Contestant::Bus, &pools, Transport::Tcp, options, placement)?;
            let mut polite = Polite::connect(&server.address)?;
            polite.run(length / 4)?;
            quiet.push(polite.run(length)?);
            let flooder = Flooder::start(&server.address, if pool == "bench" { "bench" } else { "beside" })?;
            std::thread::sleep(Duration::from_millis(100));
            for worker in server.workers().into_iter().skip(WORKERS) {
                give_way(worker, 19);
            }
            polite.run(length / 8)?;
            (polite.answered, polite.refused) = (0, 0);
            flooded.push(polite.run(length)?);
            refused.push(polite.refused as f64 / polite.answered as f64);
            rates.push(flooder.stop()?);
            ratios.push(flooded[round][1] / quiet[round][1]);
        }
        let middle = |rounds: &[[f64; 3]]| {
            [0, 1, 2].map(|index| median(rounds.iter().map(|times: &[f64; 3]| times[index]).collect()))
        };
        all.push(Fairness {
            name,
            quiet: middle(&quiet),
            flooded: middle(&flooded),
            ratio: median(ratios),
            flood_rate: median(rates),
            refused: median(refused),
        });
    }
    eprint!("\r\x1b[K");
    Ok(all)
}

/// Lets others go before a process, or with 0 before the calling thread: with 19 all others.
pub fn give_way(process: u32, nice: i32) {
    // SAFETY: the call has no memory arguments.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, process, nice) };
}

/// Puts a process, or with 0 the measuring thread, before all others of its CPU, or back among them. Without the right to
/// it, the scheduler's part in the times is larger.
pub fn measure_first(process: u32, first: bool) {
    let parameter = libc::sched_param { sched_priority: i32::from(first) };
    let policy = if first { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
    // SAFETY: the parameter outlives the call.
    unsafe { libc::sched_setscheduler(process as libc::pid_t, policy, &parameter) };
}

struct Polite {
    clients: Vec<(std::os::fd::OwnedFd, Vec<u8>, u64)>,
    answered: u64,
    refused: u64,
}

impl Polite {
    fn connect(address: &Address) -> io::Result<Self> {
        let client = |number| -> io::Result<_> {
            let socket = address.connect()?;
            rustix::io::ioctl_fionbio(&socket, true)?;
            let request = with_pool(load::request(number, BYTES - 15), "bench");
            Ok((socket, request, 0))
        };
        let clients = (0..CLIENTS).map(client).collect::<io::Result<_>>()?;
        Ok(Self { clients, answered: 0, refused: 0 })
    }

    /// Sends at fixed times for a while. Returns p50, p99 and p99.9 in microseconds.
    fn run(&mut self, length: Duration) -> io::Result<[f64; 3]> {
        measure_first(0, true);
        let times = self.measure(length);
        measure_first(0, false);
        times
    }

    fn measure(&mut self, length: Duration) -> io::Result<[f64; 3]> {
        let mut times = load::histogram();
        let start = Instant::now();
        // Client i sends at i/63 of each interval, so that they do not all send at once.
        let step = EVERY / CLIENTS as u32;
        let total = (length.as_nanos() / step.as_nanos()) as usize;
        let mut due: Vec<std::collections::VecDeque<Instant>> = vec![Default::default(); CLIENTS];
        let (mut sent, mut answered) = (0, 0);
        let mut buffer = vec![0; 64 * 1024];
        while answered < total {
            while sent < total && start.elapsed() >= step * sent as u32 {
                let number = sent % CLIENTS;
                let (socket, request, count) = &mut self.clients[number];
                load::set_id(request, number, *count);
                *count += 1;
                due[number].push_back(start + step * sent as u32);
                rustix::io::write(&*socket, request)?;
                sent += 1;
            }
            let next = (step * sent as u32).saturating_sub(start.elapsed());
            let timeout = if sent < total { next } else { Duration::from_secs(5) };
            let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
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
        Ok([0.5, 0.99, 0.999].map(|quantile| times.value_at_quantile(quantile) as f64 / 1e3))
    }
}

/// Puts the name of a pool at the end of a request: what sets the id expects it at the front.
fn with_pool(mut request: Vec<u8>, pool: &str) -> Vec<u8> {
    let end = request.len() - "}\n".len();
    request.splice(end..end, format!(",\"pool\":\"{pool}\"").into_bytes());
    request
}

/// The flooding client's process.
struct Flooder(Child);

impl Flooder {
    fn start(address: &Address, pool: &str) -> io::Result<Self> {
        let Address::Tcp(port) = address else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["be-flooder", &port.to_string(), pool]);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        Ok(Self(command.spawn()?))
    }

    /// Lines a second that it received.
    fn stop(mut self) -> io::Result<f64> {
        if let Some(status) = self.0.try_wait()? {
            return Err(io::Error::other(format!("the flooding client ended before the measurement: {status}")));
        }
        drop(self.0.stdin.take());
        let mut text = String::new();
        if let Some(output) = &mut self.0.stdout {
            output.read_to_string(&mut text)?;
        }
        self.0.wait()?;
        text.trim().parse().map_err(io::Error::other)
    }
}

/// Sends requests as fast as the daemon takes them, reads whatever comes, and lets the flooding worker flood it, until
/// its stdin ends.
pub fn flooder(mut arguments: impl Iterator<Item = String>) -> io::Result<()> {
    give_way(0, 19);
    let port = arguments.next().and_then(|port| port.parse().ok()).ok_or(io::ErrorKind::InvalidInput)?;
    let pool = arguments.next().unwrap_or_default();
    let socket = Address::Tcp(port).connect()?;
    let client = 5000;
    let mut start = with_pool(load::request(client, BYTES), "flood");
    load::set_id(&mut start, client, 0);
    let mut stream = std::net::TcpStream::from(socket);
    stream.write_all(&start)?;
    let mut writer = stream.try_clone()?;
    let sending = std::thread::spawn(move || {
        give_way(0, 19);
        let mut request = with_pool(load::request(client + 1, BYTES), &pool);
        let mut block = Vec::new();
        for number in 0.. {
            block.clear();
            for step in 0..100 {
                load::set_id(&mut request, client + 1, number * 100 + step);
                block.extend_from_slice(&request);
            }
            if writer.write_all(&block).is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 256 * 1024];
    let (began, mut lines) = (Instant::now(), 0);
    let stdin = io::stdin();
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(io::Error::other("the daemon closed the flooding client: there is no flood"));
        }
        lines += memchr::memchr_iter(b'\n', &buffer[..count]).count();
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&zero))? > 0 {
            break;
        }
    }
    println!("{}", lines as f64 / began.elapsed().as_secs_f64());
    stream.shutdown(std::net::Shutdown::Both)?;
    let _ = sending.join();
    Ok(())
}
