//! `cargo bench -p stdio-bus-bench --bench router`: the core's time for a message, from the bytes to the last effect.
//! No system calls are made; scanning is included.
//!
//! By kind: a request, its answer, a worker's notification, and both halves of a request whose id is replaced. By
//! population: sessions, pending requests, clients. And operations that must not depend on a population: cancellations
//! of pending and unknown requests, by pending requests; session names that are new or belong to another client, by
//! workers.

#[allow(dead_code)]
mod core;

use std::time::{Duration, Instant};

use criterion::{Bencher, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use stdio_bus::bus::port::{Effect, Peer};

use core::{Core, Lines, answer, request, update};

/// Lines per read.
const READ: usize = 8;

/// The measured half of a round trip.
#[derive(Clone, Copy)]
enum Half {
    Request,
    Answer,
    Both,
}

/// Round trips: in each turn a few requests of one client, then their answers.
struct Trips {
    core: Core,
    turns: Vec<(usize, Lines, Lines)>,
    next: usize,
}

impl Trips {
    /// `clients` with `sessions` in total, and `pending` other requests that stay unanswered.
    fn new(clients: usize, sessions: usize, pending: usize) -> Self {
        let mut core = Core::new(clients, 1);
        for number in 0..pending.saturating_sub(READ) {
            let line = request(1_000_000 + number, &format!("session-{}", number % clients));
            core.client(number % clients, &Lines::new([line]));
        }
        let turns = (0..sessions.max(clients)).map(|turn| {
            let client = turn % clients;
            let ids: Vec<_> = (0..READ).map(|line| 10_000 + turn * READ + line).collect();
            let session = format!("session-{}", turn % sessions);
            let session = if sessions < clients { format!("session-{client}") } else { session };
            let requests = Lines::new(ids.iter().map(|id| request(id, &session)));
            (client, requests, Lines::new(ids.iter().map(answer)))
        });
        let turns = turns.collect();
        let mut trips = Self { core, turns, next: 0 };
        for _ in 0..trips.turns.len() {
            trips.turn(Half::Both);
        }
        trips
    }

    fn turn(&mut self, half: Half) -> Duration {
        let (client, requests, answers) = &self.turns[self.next];
        self.next = (self.next + 1) % self.turns.len();
        let began = Instant::now();
        self.core.client(*client, requests);
        let asked = Instant::now();
        self.core.worker(0, answers);
        match half {
            Half::Request => asked - began,
            Half::Answer => asked.elapsed(),
            Half::Both => began.elapsed(),
        }
    }

    fn bench(mut self, bencher: &mut Bencher<'_>, half: Half) {
        bencher.iter_custom(|turns| (0..turns).map(|_| self.turn(half)).sum());
    }
}

/// A second client uses the ids of the first one, all of which are pending.
fn translated(bencher: &mut Bencher<'_>, half: Half) {
    let mut core = Core::new(2, 1);
    let requests = |session| Lines::new((0..READ).map(|id| request(id, session)));
    core.client(0, &requests("first"));
    let second = requests("second");
    bencher.iter_custom(|turns| {
        let mut time = Duration::ZERO;
        for _ in 0..turns {
            let mut made = Vec::with_capacity(READ);
            let began = Instant::now();
            core.send_window(Peer::Client(core.clients[1]), second.window(), |effect| {
                if let Effect::Insert { text, .. } = effect {
                    made.push(text);
                }
            });
            let asked = began.elapsed();
            let answers = made.iter().map(|id| answer(std::str::from_utf8(id.as_bytes()).expect("ids are text")));
            let answers = Lines::new(answers);
            let began = Instant::now();
            core.worker(0, &answers);
            time += match half {
                Half::Request => asked,
                Half::Answer => began.elapsed(),
                Half::Both => asked + began.elapsed(),
            };
        }
        time
    });
}

fn kinds(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("kind");
    group.throughput(Throughput::Elements(READ as u64));
    group.bench_function("request", |bencher| Trips::new(1, 1, 0).bench(bencher, Half::Request));
    group.bench_function("answer", |bencher| Trips::new(1, 1, 0).bench(bencher, Half::Answer));
    group.bench_function("request, id replaced", |bencher| translated(bencher, Half::Request));
    group.bench_function("answer, id restored", |bencher| translated(bencher, Half::Answer));
    group.bench_function("notification", |bencher| {
        let mut core = Core::new(1, 1);
        core.client(0, &Lines::new([request(1, "session-0")]));
        let updates = Lines::new((0..READ).map(|_| update("session-0")));
        bencher.iter(|| core.worker(0, &updates));
    });
    group.finish();
}

fn populations(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("round trip");
    group.throughput(Throughput::Elements(READ as u64));
    for count in [1, 32, 1024] {
        group.bench_function(BenchmarkId::new("sessions", count), |bencher| {
            Trips::new(1, count, 0).bench(bencher, Half::Both);
        });
    }
    for count in [1, 64, 4096] {
        group.bench_function(BenchmarkId::new("pending", count), |bencher| {
            Trips::new(1, 1, count).bench(bencher, Half::Both);
        });
    }
    for count in [1, 32, 1024] {
        group.bench_function(BenchmarkId::new("clients", count), |bencher| {
            Trips::new(count, count, 0).bench(bencher, Half::Both);
        });
    }
    group.finish();
}

/// A client cancels a pending or an unknown request, while `pending` others wait.
fn cancels(bencher: &mut Bencher<'_>, pending: usize, is_pending: bool) {
    let mut core = Core::new(1, 1);
    for id in 0..pending.max(usize::from(is_pending)) {
        core.client(0, &Lines::new([request(id, "session-0")]));
    }
    let id = if is_pending { pending.saturating_sub(1) } else { 1_000_000 };
    let cancel =
        format!("{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{{\"requestId\":{id}}}}}\n");
    let cancels = Lines::new((0..READ).map(|_| cancel.clone()));
    bencher.iter(|| core.client(0, &cancels));
}

/// A client names another client's session, and is refused.
fn foreign_names(bencher: &mut Bencher<'_>, workers: usize) {
    let mut core = Core::new(2, workers);
    core.client(1, &Lines::new([request(1, "theirs")]));
    let requests = Lines::new((0..READ).map(|id| request(id, "theirs")));
    bencher.iter(|| core.client(0, &requests));
}

/// A client requests unknown sessions from the workers in turn. Their answers are not measured.
fn new_names(bencher: &mut Bencher<'_>, workers: usize) {
    let mut core = Core::new(2, workers);
    let load = |id| request(id, &format!("new-{id}")).replace("prompt", "load");
    let requests = Lines::new((0..READ).map(load));
    let fails =
        |id: usize| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":-32002,\"message\":\"\"}}}}\n");
    let answers: Vec<Lines> = (0..READ).map(|id| Lines::new([fails(id)])).collect();
    bencher.iter_custom(|turns| {
        let mut time = Duration::ZERO;
        for _ in 0..turns {
            let mut asked = Vec::with_capacity(READ);
            let client = Peer::Client(core.clients[0]);
            let began = Instant::now();
            core.send_window(client, requests.window(), |effect| {
                if let Effect::Copy { to, .. } = effect {
                    asked.push(to);
                }
            });
            time += began.elapsed();
            // Adjacent lines for one worker are one effect.
            for (at, answer) in answers.iter().enumerate() {
                core.send(*asked.get(at).unwrap_or(&asked[0]), answer);
            }
        }
        time
    });
}

fn refusals(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("by the side");
    group.throughput(Throughput::Elements(READ as u64));
    for pending in [0, 1024] {
        group.bench_function(BenchmarkId::new("cancellation of nothing, pending", pending), |bencher| {
            cancels(bencher, pending, false);
        });
        group.bench_function(BenchmarkId::new("cancellation, pending", pending.max(1)), |bencher| {
            cancels(bencher, pending, true);
        });
    }
    for workers in [1, 1024] {
        group.bench_function(BenchmarkId::new("foreign name, workers", workers), |bencher| {
            foreign_names(bencher, workers);
        });
        group.bench_function(BenchmarkId::new("new name, workers", workers), |bencher| new_names(bencher, workers));
    }
    group.finish();
}

criterion_group!(benches, kinds, populations, refusals);
criterion_main!(benches);
