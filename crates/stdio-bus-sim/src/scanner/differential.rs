//! Every instruction set against the reference, on real lines with many kinds of damage, in pieces of any size.
//!
//! `SCAN_ROUNDS` sets the number of streams, `SCAN_SEED` the first seed; a failing seed is printed.

use super::{Reading, read, sets};
use crate::corpus::Source;
use crate::oracle::{Judgement, as_judged, judge};
use ndjson_scan::{InstructionSet, Scanner};

const PARTS: &[&[u8]] = &[
    b"\"id\":1,",
    b"\"id\":null,",
    b"\"id\":[1],",
    b"\"method\":\"x\",",
    b",\"sessionId\":\"s1\"",
    b"\"result\":{\"sessionId\":\"zz\"},",
    b"\"error\":{},",
    b"\"\\u0069d\":7,",
    b"\"m\\u0065thod\":\"q\",",
    b"\"session\\u0049d\":\"e\",",
    b"\"sessionIx\":\"e\",",
    b"\"requestId\":5,",
    b"\"request\":5,",
    b"\"pool\":\"p\",",
    b"\"params\":[1,2],",
    b"\"params\":{\"sessionId\":5},",
    b"\"params\":{\"requestId\":\"r\"},",
    b"\"params\":{\"progressToken\":\"t\",\"progress\":1},",
    b"\"params\":{\"name\":\"x\",\"_meta\":{\"progressToken\":1}},",
    b"\"params\":{\"_meta\":{\"a\":{\"b\":1},\"io.modelcontextprotocol/subscriptionId\":\"s\"}},",
    b"\"result\":{\"_meta\":{\"progressToken\":1,\"x\":[]},\"x\":1},",
    b"\"result\":{\"_meta\":{},\"x\":1},",
    b"\"progressToken\":1,",
    b"\"progress\\u0054oken\":\"t\" ,",
    b"\"io.modelcontextprotocol\\/subscriptionId\":2,",
    b"\"params\":{\"id\":12},",
    b"\"params\":{\"i\\u0064\":\"r\",\"x\":1},",
    b"\"par\\u0061ms\":{\"id\":-1,\"id\":2},",
    b"{}",
    b"[]",
    b"[[",
    b"]]",
    b"{\"",
    b"}",
    b",",
    b":",
    b"\"",
    b"\\",
    b"\\\"",
    b"\\\\",
    b"\\u00e9",
    b"\\ud83d",
    b"\\u12",
    b"\\x",
    "é".as_bytes(),
    "中".as_bytes(),
    "😀".as_bytes(),
    b"\xFF",
    b"\xC3",
    b"\xED\xA0\x80",
    b"\xE4\xB8",
    b"\xF4\x90\x80\x80",
    b"\xC0\x80",
    b"true",
    b"false",
    b"null",
    b"nul",
    b"-0",
    b"01",
    b"1.5e+10",
    b"-",
    b"1e",
    b".5",
    b"5.",
    b"1234567890123456789012",
    b" ",
    b"\t",
    b"\r",
    b"\x00",
    b"\x1F",
    b"\x0C",
    b"\x1A",
    b"\x7F",
    b"\"error",
    b"\"id",
    b"\"\":",
    b"\"_meta\":{\"a\":[1,{\"b\":null}]},",
    b"\"jsonrpc\":\"2.0\",",
    b"\"k\":\"\\\\\",",
    b"\n",
];
const KEYS: &[&[u8]] = &[
    b"id",
    b"method",
    b"params",
    b"result",
    b"error",
    b"sessionId",
    b"sessionIx",
    b"session",
    b"pool",
    b"requestId",
    b"requestIdd",
    b"progressToken",
    b"progressTokem",
    b"io.modelcontextprotocol/subscriptionId",
    b"io.modelcontextprotocol/protocolVersion",
    b"progress",
    b"prompt",
    b"_meta",
    b"_m\\u0065ta",
    b"progressToke\\u006e",
    b"i",
    b"jsonrpc",
    b"paramz",
    b"\\u0069d",
    b"resul\\u0074",
    b"sessio\\u006eId",
    b"",
    b"poo\\u006c",
    b"sessionId\\u0000",
    b"\\u0070ool",
    b"m",
    b"methods",
];
const SCALARS: &[&[u8]] =
    &[b"null", b"true", b"-1", b"1.0", b"9999999999999", b"00", b"-", b"12345678", b"1e5", b"123456789", b"\"s\""];

/// The position of a byte of this set, if there is one.
fn place(source: &mut Source, line: &[u8], set: &[u8]) -> Option<usize> {
    let places: Vec<_> = (0..line.len()).filter(|&at| set.contains(&line[at])).collect();
    (!places.is_empty()).then(|| places[source.below(places.len())])
}

/// Some brackets around a value, sometimes with one of them wrong.
fn nest(source: &mut Source) -> Vec<u8> {
    let depth = source.below(90);
    let mut out = Vec::new();
    let mut ends = Vec::new();
    for _ in 0..depth {
        let is_array = source.one_in(2);
        out.extend_from_slice(if is_array { b"[" } else { b"{\"k\":" });
        ends.push(if is_array { b']' } else { b'}' });
    }
    out.push(b'1');
    out.extend(ends.iter().rev());
    if source.one_in(8) {
        let at = source.below(out.len());
        out[at] ^= 0x20;
    }
    out
}

/// Damages a line once, or changes it into something else that is unusual.
fn mutate(source: &mut Source, line: &mut Vec<u8>, pool: &[Vec<u8>]) {
    const STRUCTURE: &[u8] = b"{[,:}]\"";
    if line.is_empty() {
        line.extend_from_slice(b"{}");
    }
    let (length, at) = (line.len(), source.below(line.len()));
    match source.below(14) {
        0 => line[at] ^= 1 << source.below(8),
        1 => line[at] = source.number() as u8,
        2 => drop(line.remove(at)),
        3 => drop(line.splice(at..at, PARTS[source.below(PARTS.len())].iter().copied())),
        4 | 5 => {
            let Some(at) = place(source, line, STRUCTURE) else { return };
            let at = at + source.below(2);
            line.splice(at..at, PARTS[source.below(PARTS.len())].iter().copied());
        }
        6 => drop(line.drain(at..(at + 1 + source.below(20)).min(length))),
        7 => {
            let again = line[at..(at + 1 + source.below(40)).min(length)].to_vec();
            line.splice(at..at, again);
        }
        8 => {
            let other = &pool[source.below(pool.len())];
            let from = source.below(other.len());
            line.truncate(at);
            line.extend_from_slice(&other[from..other.len().min(from + 4096)]);
        }
        9 => {
            let Some(at) = place(source, line, STRUCTURE) else { return };
            line[at] = b"{[,:}]\" 0t"[source.below(10)];
        }
        10 => {
            let quotes: Vec<_> = (0..length).filter(|&at| line[at] == b'"').collect();
            if quotes.len() >= 2 {
                let pair = source.below(quotes.len() - 1) & !1;
                let key = KEYS[source.below(KEYS.len())];
                line.splice(quotes[pair] + 1..quotes[pair + 1], key.iter().copied());
            }
        }
        11 => {
            let Some(start) = place(source, line, b"0123456789") else { return };
            let end = line[start..].iter().position(|byte| !byte.is_ascii_alphanumeric() && !b".-+".contains(byte));
            let end = end.map_or(length, |end| start + end);
            line.splice(start..end, SCALARS[source.below(SCALARS.len())].iter().copied());
        }
        12 => {
            let spaces = if source.one_in(4) { source.below(900) } else { source.below(130) };
            line.splice(at..at, std::iter::repeat_n(b' ', spaces));
        }
        _ => {
            let Some(at) = place(source, line, b":") else { return };
            let nested = [&nest(source)[..], b",\"z\":"].concat();
            line.splice(at + 1..at + 1, nested);
        }
    }
}

/// Lines of all classes, the large ones cut down to a few kilobytes.
fn pool() -> Vec<Vec<u8>> {
    let mut source = Source::new(7, 12);
    let mut pool: Vec<Vec<u8>> = Vec::new();
    for _ in 0..300 {
        pool.extend([source.small(), source.request(), source.mixed()].map(String::into_bytes));
    }
    for _ in 0..40 {
        pool.push(source.medium().into_bytes());
    }
    pool.retain(|line| line.len() < 20_000);
    for length in (0..300).map(|step| 40 + step * 17) {
        let data = "Qm".repeat(length / 2);
        pool.push(format!(r#"{{"jsonrpc":"2.0","id":{length},"result":{{"data":"{data}"}}}}"#).into_bytes());
    }
    for id in 0..60 {
        pool.push(format!(r#"{{"method":"$/cancelRequest","params":{{"id":{id}}}}}"#).into_bytes());
        pool.push(format!(r#"{{"params":{{"x":{{"id":0}},"id":"{id}","requestId":{id}}},"id":{id}}}"#).into_bytes());
    }
    pool.push([b"{\"id\":9,\"x\":", &b"[".repeat(100)[..], &b"]".repeat(100), b"}"].concat());
    pool
}

fn stream(source: &mut Source, pool: &[Vec<u8>]) -> Vec<u8> {
    let mut stream = Vec::new();
    let count = if source.one_in(20) { 150 } else { 1 + source.below(12) };
    let is_heavy = count < 20 && !source.one_in(4);
    for index in 0..count {
        let mut line = if source.one_in(100) { Vec::new() } else { pool[source.below(pool.len())].clone() };
        if (is_heavy || index == count / 2) && !source.one_in(3) {
            for _ in 0..1 + source.below(3) {
                mutate(source, &mut line, pool);
            }
        }
        stream.extend_from_slice(&line);
        stream.extend_from_slice(if source.one_in(10) { b"\r\n" } else { b"\n" });
    }
    stream
}

/// Ends of pieces: none, a few, or one every few bytes.
fn cuts(source: &mut Source, length: usize) -> Vec<usize> {
    let step = [usize::MAX, length, 300, 70, 3][source.below(5)];
    let mut cuts = Vec::new();
    if step != usize::MAX {
        let mut at = 1 + source.below(step);
        while at < length && cuts.len() < 4000 {
            cuts.push(at);
            at += 1 + source.below(step);
        }
    }
    cuts
}

/// The reference itself against serde_json, which stops at 128 levels.
fn check_reference(stream: &[u8], reading: &Reading) {
    let mut lines = reading.lines.iter();
    let mut start = 0;
    for text in stream.split(|&byte| byte == b'\n') {
        let (from, is_deep) = (start, text.iter().filter(|byte| b"[{".contains(byte)).count() > 120);
        start += text.len() + 1;
        if text.trim_ascii().is_empty() && !text.contains(&b'\x0C') {
            continue;
        }
        let is_bad = reading.malformed.is_some_and(|(line, _)| line == from);
        let judgement = if is_deep { Judgement::Undecided } else { judge(text) };
        if judgement != Judgement::Undecided {
            assert_eq!(is_bad, judgement == Judgement::Malformed, "{}", String::from_utf8_lossy(text));
        }
        if is_bad {
            return;
        }
        let line = lines.next().expect("one line for each that is not blank");
        assert_eq!(line.span.start as usize, from);
        if judgement != Judgement::Undecided {
            assert_eq!(as_judged(stream, line), judgement, "{}", String::from_utf8_lossy(text));
        }
    }
    assert_eq!(lines.next(), None);
}

#[test]
fn all_sets_agree_with_the_reference() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let rounds = number("SCAN_ROUNDS").unwrap_or(if cfg!(debug_assertions) { 1500 } else { 20_000 });
    let first = number("SCAN_SEED").unwrap_or(1);
    let pool = pool();
    let mut scanners: Vec<_> = sets().into_iter().map(|set| (set, Scanner::with(set).unwrap())).collect();
    let (mut lines, mut malformed) = (0, 0);
    for seed in first..first + rounds {
        let source = &mut Source::new(seed, 1);
        let stream = stream(source, &pool);
        let cuts = cuts(source, stream.len());
        let garbage = b"\"\n\\{} \xFF\xE4u0"[source.below(10)];
        let mut expected = None;
        for (set, scanner) in &mut scanners {
            let reading = read(scanner, &stream, &cuts, garbage);
            let expected = expected.get_or_insert_with(|| {
                assert_eq!(*set, InstructionSet::Reference);
                check_reference(&stream, &reading);
                lines += reading.lines.len();
                malformed += reading.malformed.iter().len();
                Reading { lines: reading.lines.clone(), malformed: reading.malformed }
            });
            assert_eq!(&reading, expected, "{set:?}, SCAN_SEED={seed}");
        }
    }
    println!("{rounds} streams, {lines} lines, {malformed} malformed");
    assert!(malformed as u64 > rounds / 10 && lines as u64 > rounds, "the mutations are not what they should be");
}
