//! A caller that uses lines later than they were returned: the bytes before the line in use are dropped, later lines
//! stay in the window, and more bytes arrive behind them.

use super::{Reading, sets};
use crate::reading::{counted_from, read};
use ndjson_scan::{BATCH, Line, PAD, Partial, ScanResult, Scanner, Window};
use std::collections::VecDeque;

/// A window that moves over a stream, and its lines that were returned and not used yet.
struct Caller<'a> {
    stream: &'a [u8],
    garbage: u8,
    buffer: Vec<u8>,
    /// The stream byte at the start of the window, and the next one to arrive.
    dropped: usize,
    received: usize,
    partial: Partial,
    /// Relative to the current start of the window.
    held: VecDeque<Line>,
    reading: Reading,
}

impl<'a> Caller<'a> {
    fn new(stream: &'a [u8], garbage: u8) -> Self {
        Self {
            stream,
            garbage,
            buffer: vec![garbage; PAD + stream.len() + PAD],
            dropped: 0,
            received: 0,
            partial: Partial::new(),
            held: VecDeque::new(),
            reading: Reading::default(),
        }
    }

    /// Bytes of the stream arrive up to `end`.
    fn receive(&mut self, end: usize) {
        let at = PAD + self.received - self.dropped;
        self.buffer[at..][..end - self.received].copy_from_slice(&self.stream[self.received..end]);
        self.received = end;
    }

    /// Scans what has arrived; returns the number of bytes that were examined for the first time.
    fn scan(&mut self, scanner: &mut Scanner) -> usize {
        let before = self.partial.scanned();
        let mut lines = Vec::with_capacity(BATCH);
        loop {
            let window = Window::new(&self.buffer, PAD, PAD + self.received - self.dropped);
            let outcome = scanner.scan(&mut self.partial, window, &mut lines);
            self.held.extend(lines.drain(..));
            match outcome {
                ScanResult::Full => {}
                ScanResult::More => break,
                ScanResult::Malformed { line, fault, .. } => {
                    let found = Some((self.dropped + line, fault));
                    // It is the same fault however often it is found.
                    assert!(self.reading.malformed.is_none() || self.reading.malformed == found);
                    self.reading.malformed = found;
                    return 0;
                }
            }
        }
        self.partial.scanned() - before
    }

    /// Uses the first held line at its current place in the window, and drops it and everything before it.
    fn use_one(&mut self) {
        let Some(line) = self.held.pop_front() else { return };
        let window = Window::new(&self.buffer, PAD, PAD + self.received - self.dropped);
        let used = counted_from(line, self.dropped);
        assert_eq!(window.get(line.span), &self.stream[used.span.start as usize..used.span.end as usize]);
        self.reading.lines.push(used);
        self.drop_front(line.span.end as usize + 1);
    }

    /// Drops the first bytes of the window; the rest moves to the front of the buffer.
    fn drop_front(&mut self, bytes: usize) {
        let (consumed, scanned) = (self.partial.consumed(), self.partial.scanned());
        self.partial.drop_front(bytes);
        assert_eq!((self.partial.consumed() + bytes, self.partial.scanned() + bytes), (consumed, scanned));
        self.held.iter_mut().for_each(|line| *line = line.counted_after(bytes));
        let left = self.received - self.dropped - bytes;
        self.buffer.copy_within(PAD + bytes..PAD + bytes + left, PAD);
        self.buffer[PAD + left..].fill(self.garbage);
        self.dropped += bytes;
    }
}

/// Scans `stream` in the pieces that end at `cuts`; after each piece at most `uses` of the returned lines are used, one
/// at a time, and the others stay.
pub fn read_held(scanner: &mut Scanner, stream: &[u8], cuts: &[usize], garbage: u8, uses: usize) -> Reading {
    let mut caller = Caller::new(stream, garbage);
    for &cut in cuts.iter().chain([&stream.len()]) {
        caller.receive(cut);
        caller.scan(scanner);
        for _ in 0..uses {
            caller.use_one();
        }
    }
    while !caller.held.is_empty() {
        caller.use_one();
        // Nothing new has arrived, so there is nothing new to return.
        let held = caller.held.len();
        caller.scan(scanner);
        assert_eq!(caller.held.len(), held);
    }
    caller.drop_front(caller.partial.consumed());
    assert_eq!(caller.partial.consumed(), 0);
    caller.scan(scanner);
    caller.reading
}

#[test]
fn lines_used_one_at_a_time_are_the_same_as_lines_used_at_once() {
    let mut text = String::new();
    for id in 0..200 {
        let long = "é\\n".repeat(id * 7 % 90);
        text.push_str(&match id % 5 {
            0 => format!("{{\"id\":{id},\"method\":\"m\",\"params\":{{\"sessionId\":\"s{id}\",\"id\":\"{long}\"}}}}\n"),
            1 => format!("\r\n  \n{{\"r\\u0065sult\":{{\"sessionId\":\"{long}\"}},\"pool\":\"p\"}}\r\n"),
            2 => format!("{{\"sessionId\":\"{id}\",\"params\":{{\"i\\u0064\":{id},\"requestId\":-{id}}}}}\n"),
            3 => format!(
                "{{\"x\":[{}0],\"id\":null,\"params\":{{\"_meta\":{{}},\"progressToken\":{id}}}}}\n",
                "{},".repeat(id)
            ),
            _ => "{}\n".to_owned(),
        });
    }
    for end in ["", "{\"id\":1,\"id\":2}\n{}\n"] {
        let stream = [&text, end].concat();
        let stream = stream.as_bytes();
        let whole = read(&mut Scanner::with(sets()[0]).unwrap(), stream, &[], 0);
        assert_eq!(whole.lines.len(), 200);
        assert_eq!(whole.malformed.is_some(), !end.is_empty());
        for set in sets() {
            let scanner = &mut Scanner::with(set).unwrap();
            for (step, uses) in [(stream.len(), 1), (7, 1), (64, 0), (64, 1), (500, 2), (5000, 3), (5000, 40)] {
                let cuts: Vec<_> = (0..stream.len()).step_by(step).collect();
                for garbage in [b'"', b'\n', 0xFF] {
                    let reading = read_held(scanner, stream, &cuts, garbage, uses);
                    assert_eq!(reading, whole, "{set:?} {step} {uses}");
                }
            }
        }
    }
}

#[test]
fn a_long_line_after_held_ones_is_not_read_again() {
    // The last short line is used before the long one ends, or after that. The string is examined 64 bytes at a time,
    // and byte by byte after an escaped key.
    for (count, key) in [(50, "id"), (600, "id"), (50, "i\\u0064"), (600, "i\\u0064")] {
        let short = "{\"id\":1,\"method\":\"m\"}\n".repeat(count);
        let before = format!("{short}{{\"{key}\":70,\"x\":\"");
        let stream = format!("{before}{}\",\"pool\":\"p\"}}\n", "y".repeat(50_000));
        for set in sets() {
            let scanner = &mut Scanner::with(set).unwrap();
            let mut caller = Caller::new(stream.as_bytes(), b'\n');
            let mut looked_at = 0;
            let mut end = before.len() - 10;
            while end < stream.len() {
                end = (end + 131).min(stream.len());
                caller.receive(end);
                looked_at += caller.scan(scanner);
                // The scanned part of the string is made invalid: reading it again would be a fault.
                let string = before.len() - caller.dropped;
                let scanned = caller.partial.scanned();
                if end < stream.len() && scanned > string {
                    caller.buffer[PAD + string..PAD + scanned].fill(0);
                }
                if end < stream.len() {
                    caller.use_one();
                }
            }
            assert_eq!(caller.reading.malformed, None, "{set:?}");
            assert_eq!(looked_at, stream.len(), "{set:?}");
            let line = caller.held.pop_back().expect("the long line is complete");
            let window = Window::new(&caller.buffer, PAD, PAD + caller.received - caller.dropped);
            assert_eq!((window.get(line.id), window.get(line.pool)), (&b"70"[..], &b"\"p\""[..]), "{set:?}");
            assert_eq!(line.span.end as usize + 1, caller.partial.consumed());
            assert_eq!(line.span.start as usize, caller.held.back().map_or(0, |line| line.span.end as usize + 1));
        }
    }
}

#[test]
fn absent_fields_stay_absent_when_a_line_is_moved() {
    let stream = b"{}\n{\"params\":{\"id\":7}}\n";
    let whole = read(&mut Scanner::new(), stream, &[], 0);
    let line = whole.lines[1];
    let moved = line.counted_after(3);
    assert_eq!((moved.span.start, moved.span.len()), (0, line.span.len()));
    assert_eq!(&stream[3..][moved.params_id.start as usize..moved.params_id.end as usize], b"7");
    assert!(!moved.id.is_some() && !moved.method.is_some() && !moved.pool.is_some());
    assert_eq!(counted_from(moved, 3), line);
    assert_eq!(line.counted_after(0), line);
}
