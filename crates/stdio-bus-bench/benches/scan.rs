//! The scanner's speed: per class of traffic and for the worst inputs, every instruction set of this machine beside
//! other parsers, on the same bytes in the same run.
//!
//! `cargo bench -p stdio-bus-bench --bench scan -- [--quick] [class …]`. Contenders take turns, so that all meet the
//! same noise; a figure is the median of their rounds, in CPU time of this thread, so that other work on the machine
//! does not count. Each has to find all valid lines. Results are printed, and written to `scan-bench.json` in the
//! target directory.

use memchr::memchr_iter;
use serde::de::IgnoredAny;
use std::hint::black_box;
use std::io::{IsTerminal, Write};
use std::time::Duration;
use stdio_bus::scan::{BATCH, InstructionSet, Line, PAD, Partial, ScanResult, Scanner, Window};
use stdio_bus_sim::corpus::{self, Corpus};

/// Bytes per read.
const READ: usize = 64 << 10;

/// A way to find the valid lines.
struct Contender {
    name: &'static str,
    /// The padded bytes that each round starts with, and the function that counts valid lines in them.
    run: Run,
}

type Run = Box<dyn FnMut(&mut [u8]) -> usize>;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    let wanted: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let is_wanted = |corpus: &Corpus| wanted.is_empty() || wanted.iter().any(|name| *name == corpus.name);
    let (size, rounds) = if is_quick { (1 << 20, 9) } else { (4 << 20, 51) };

    let mut report = Report::default();
    for (title, corpora) in [("traffic", corpus::all(size)), ("worst inputs", corpus::worst(size / 4))] {
        let corpora: Vec<_> = corpora.into_iter().filter(is_wanted).collect();
        let mut table = Vec::new();
        for (index, corpus) in corpora.iter().enumerate() {
            progress(&format!("{title} {}/{}: {}", index + 1, corpora.len(), corpus.name));
            table.push(measure(corpus, rounds));
        }
        progress("");
        report.add(title, &corpora, &table);
    }
    report.save();
}

fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
        let _ = std::io::stderr().flush();
    }
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists and `time` is written to.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "every Linux has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The median time of each contender for the whole corpus.
fn measure(corpus: &Corpus, rounds: usize) -> Vec<Duration> {
    let padded = [&[b'\n'; PAD][..], &corpus.bytes, &[0; PAD]].concat();
    let mut bytes = padded.clone();
    let mut contenders = contenders();
    let mut times = vec![Vec::with_capacity(rounds); contenders.len()];
    for round in 0..=rounds {
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            // simd-json modifies its input.
            bytes.copy_from_slice(&padded);
            let start = cpu_time();
            let lines = (contender.run)(black_box(&mut bytes));
            let time = cpu_time() - start;
            // Some parsers refuse valid lines, or limit the depth to 128; that only invalidates their figure.
            if round == 0 && lines != corpus.lines {
                assert!(!contender.name.starts_with("bus"), "{} found {lines}", contender.name);
                times.push(Duration::MAX);
            }
            if round > 0 {
                times.push(time);
            }
        }
    }
    let median = |mut times: Vec<Duration>| {
        times.sort();
        if times.contains(&Duration::MAX) { Duration::MAX } else { times[times.len() / 2] }
    };
    times.into_iter().map(median).collect()
}

fn contenders() -> Vec<Contender> {
    let own = [
        ("bus", None),
        ("bus avx2", Some(InstructionSet::Avx2)),
        ("bus portable", Some(InstructionSet::Portable)),
        ("bus reference", Some(InstructionSet::Reference)),
    ];
    let mut contenders = Vec::new();
    for (name, set) in own {
        let scanner = set.map_or_else(|| Some(Scanner::new()), Scanner::with);
        let Some(mut scanner) = scanner else { continue };
        let mut batch = Vec::with_capacity(BATCH);
        let run = move |bytes: &mut [u8]| {
            let reads = (PAD + READ..bytes.len() - PAD).step_by(READ).chain([bytes.len() - PAD]);
            scan(&mut scanner, &mut batch, bytes, reads)
        };
        contenders.push(Contender { name, run: Box::new(run) });
    }
    // Each line arrives alone, as from a peer that waits for answers.
    let (mut scanner, mut batch, mut ends) = (Scanner::new(), Vec::with_capacity(BATCH), Vec::new());
    let run = move |bytes: &mut [u8]| {
        if ends.is_empty() {
            let length = bytes.len() - PAD;
            ends.extend(memchr_iter(b'\n', &bytes[..length]).map(|end| end + 1).filter(|&end| end > PAD));
        }
        scan(&mut scanner, &mut batch, bytes, ends.iter().copied())
    };
    contenders.push(Contender { name: "bus by line", run: Box::new(run) });
    let mut buffers = simd_json::Buffers::default();
    contenders.push(Contender {
        name: "simd-json",
        run: Box::new(move |bytes| {
            each_line(bytes, |line| simd_json::to_tape_with_buffers(line, &mut buffers).is_ok())
        }),
    });
    contenders.push(Contender {
        name: "sonic-rs",
        run: Box::new(|bytes| each_line(bytes, |line| sonic_rs::from_slice::<IgnoredAny>(line).is_ok())),
    });
    contenders.push(Contender {
        name: "serde_json",
        run: Box::new(|bytes| {
            each_line(bytes, |line| {
                simdutf8::basic::from_utf8(line).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
            })
        }),
    });
    // Finds lines and checks UTF-8, without looking at JSON.
    contenders.push(Contender {
        name: "bound",
        run: Box::new(|bytes| each_line(bytes, |line| simdutf8::basic::from_utf8(line).is_ok())),
    });
    contenders
}

/// Counts the lines for which `is_valid` holds.
fn each_line(padded: &mut [u8], mut is_valid: impl FnMut(&mut [u8]) -> bool) -> usize {
    let length = padded.len() - PAD;
    let mut rest = &mut padded[PAD..length];
    let mut valid = 0;
    while let Some(end) = memchr_iter(b'\n', rest).next() {
        let (line, after) = rest.split_at_mut(end + 1);
        valid += usize::from(is_valid(&mut line[..end]));
        rest = after;
    }
    valid
}

/// Scans as the bus does: reads end at `reads`, and consumed bytes are dropped after each.
fn scan(scanner: &mut Scanner, batch: &mut Vec<Line>, padded: &[u8], reads: impl Iterator<Item = usize>) -> usize {
    let mut partial = Partial::new();
    let (mut start, mut lines) = (PAD, 0);
    for end in reads {
        loop {
            let outcome = scanner.scan(&mut partial, Window::new(padded, start, end), batch);
            lines += batch.len();
            black_box(&batch[..]);
            batch.clear();
            match outcome {
                ScanResult::More => break,
                ScanResult::Full => {}
                ScanResult::Malformed { .. } => return lines,
            }
        }
        start += partial.consume();
    }
    lines
}

/// The tables as text and as JSON.
#[derive(Default)]
struct Report {
    json: serde_json::Map<String, serde_json::Value>,
}

impl Report {
    fn add(&mut self, title: &str, corpora: &[Corpus], table: &[Vec<Duration>]) {
        if corpora.is_empty() {
            return;
        }
        let names: Vec<_> = contenders().iter().map(|contender| contender.name).collect();
        let rate = |corpus: &Corpus, time: Duration| corpus.bytes.len() as f64 / time.as_nanos() as f64;
        let each = |corpus: &Corpus, time: Duration| time.as_nanos() as f64 / corpus.lines as f64;
        let rows = |cell: &dyn Fn(&Corpus, &[Duration], Duration) -> f64, digits: usize| {
            for (corpus, times) in corpora.iter().zip(table) {
                print!("{:14} {:9.0}", corpus.name, corpus.bytes.len() as f64 / corpus.lines as f64);
                for &time in times {
                    match cell(corpus, times, time) {
                        _ if time == Duration::MAX => print!(" {:>13}", "–"),
                        value => print!(" {value:13.digits$}"),
                    }
                }
                println!();
            }
        };
        let head = |what: &str| {
            print!("\n{:14} {:>9}", what, "bytes");
            names.iter().for_each(|name| print!(" {name:>13}"));
            println!();
        };
        println!("\n# {title}");
        head("ns/message");
        rows(&|corpus, _, time| each(corpus, time), 1);
        head("GB/s");
        rows(&|corpus, _, time| rate(corpus, time), 2);
        head("times of bus");
        rows(&|_, times, time| time.as_secs_f64() / times[0].as_secs_f64(), 2);
        for (corpus, times) in corpora.iter().zip(table) {
            let figures = names.iter().zip(times).filter(|(_, time)| **time != Duration::MAX);
            let figures = figures.map(|(name, &time)| (name.to_string(), each(corpus, time).into()));
            let row = serde_json::json!({
                "class": corpus.name,
                "bytes": corpus.bytes.len(),
                "lines": corpus.lines,
                "ns_per_message": figures.collect::<serde_json::Map<_, _>>(),
            });
            self.json.entry(title).or_insert_with(|| serde_json::json!([])).as_array_mut().unwrap().push(row);
        }
    }

    fn save(&self) {
        let folder = std::env::var("CARGO_TARGET_DIR");
        let folder = folder.unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../target").into());
        let path = std::path::Path::new(&folder).join("scan-bench.json");
        match std::fs::write(&path, serde_json::to_string_pretty(&self.json).unwrap()) {
            Ok(()) => println!("\nwritten to {}", path.display()),
            Err(error) => eprintln!("cannot write {}: {error}", path.display()),
        }
    }
}
