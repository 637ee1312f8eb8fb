//! `cargo bench -p stdio-bus-bench --bench framing`: a stream of lines through the core, in reads of several sizes; an
//! incomplete line is kept in front of the next read, as in the shell.

#[allow(dead_code)]
mod core;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use stdio_bus::bus::port::Peer;
use stdio_bus::scan::{PAD, Window};

use core::{Core, Lines, request, update};

fn reads(criterion: &mut Criterion) {
    let stream: Vec<u8> = (0..1024).map(|_| update("session-0")).collect::<String>().into_bytes();
    let line = stream.len() / 1024;
    let mut group = criterion.benchmark_group("read");
    group.throughput(Throughput::Elements(1024));
    for size in [64, 199, 1024, 4096, 16 * 1024, 64 * 1024] {
        let mut core = Core::new(1, 1);
        core.client(0, &Lines::new([request(1, "session-0")]));
        let from = Peer::Worker(core.workers[0]);
        let mut buffer = vec![0; PAD + size + line + PAD];
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| {
                let mut kept = 0;
                for read in stream.chunks(size) {
                    let end = PAD + kept + read.len();
                    buffer[PAD + kept..end].copy_from_slice(read);
                    let window = Window::new(&buffer, PAD, end);
                    let consumed = core.send_window(from, window, |effect| {
                        black_box(effect);
                    });
                    buffer.copy_within(PAD + consumed..end, PAD);
                    kept = end - PAD - consumed;
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, reads);
criterion_main!(benches);
