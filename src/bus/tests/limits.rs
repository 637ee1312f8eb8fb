//! Every limit at its exact value (spec 7.3.2, 8; design 2.9).

use super::*;

/// A line of exactly `length` bytes, that becomes malformed at the byte `fault`, if any.
fn line_of(length: usize, fault: Option<usize>) -> Vec<u8> {
    let mut line = format!(r#"{{"method":"x","p":"{}"}}"#, "x".repeat(length - 21)).into_bytes();
    assert_eq!(line.len(), length);
    if let Some(fault) = fault {
        line[fault] = 1;
    }
    line.push(b'\n');
    line
}

fn bench_with_limit(limit: usize) -> Bench {
    let mut small = settings(vec![pool(1, Assignment::RoundRobin)]);
    small.limits.max_input_buffer = limit;
    Bench::new(small)
}

#[test]
fn a_line_that_is_wrong_beyond_the_limit_is_too_long_however_it_is_cut() {
    for fault in [100, 101, 150, 199] {
        for piece in [1, 7, 100, 101, 1000] {
            let mut bench = bench_with_limit(100);
            let client = bench.client();
            for bytes in line_of(202, Some(fault)).chunks(piece) {
                if bench.how_closed(client).is_none() {
                    bench.write_bytes(client, bytes);
                }
            }
            let reason = bench.read_error(client).0;
            assert_eq!(reason, "client_line_too_long", "wrong at byte {fault}, in pieces of {piece}");
        }
    }
}

#[test]
fn a_line_of_exactly_max_input_buffer_passes_and_one_byte_more_closes() {
    for piece in [1, 50, 100, 101, 102, 1000] {
        let mut bench = bench_with_limit(100);
        let (client, worker) = (bench.client(), bench.worker(0));
        line_of(100, None).chunks(piece).for_each(|bytes| bench.write_bytes(client, bytes));
        assert_eq!(bench.read_one(worker).len(), 100);
        for bytes in line_of(101, None).chunks(piece) {
            if bench.how_closed(client).is_none() {
                bench.write_bytes(client, bytes);
            }
        }
        assert!(bench.read(worker).is_empty());
        let (reason, code, id) = bench.read_error(client);
        assert_eq!((reason.as_str(), code, id), ("client_line_too_long", -32600, Value::Null));
        assert_eq!(bench.how_closed(client), Some(Close::Flush));
        let told = bench.reports.iter().find(|report| report.reason == Reason::ClientLineTooLong).unwrap();
        assert_eq!((told.level, told.client), (crate::bus::report::Level::Error, Some(0)));
    }
}
