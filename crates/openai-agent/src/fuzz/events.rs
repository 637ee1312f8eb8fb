//! Any bytes in any pieces: the parser of server-sent events finds the same fields, and the events of the standard.
//!
//! The first byte is the limit, and none if it is even.

use super::Cut;
use crate::body::{Field, Parser};
use crate::failure::Failure;

/// The events up to the end of the stream, or to a line that is longer than the limit.
type Events = (Vec<Vec<u8>>, Result<(), Failure>);

/// Cuts the stream in three ways.
///
/// # Panics
/// If the events are not the same.
pub fn check(first: u8, stream: &[u8], cut: Cut<'_>) {
    let limit = if first.is_multiple_of(2) { 1 << 20 } else { usize::from(first) };
    let expected = standard(stream, limit);
    let each: Vec<usize> = (1..stream.len()).collect();
    for cuts in [Vec::new(), cut(stream.len()), each] {
        assert_eq!(events(stream, &cuts, limit), expected, "limit {limit}, cut at {cuts:?}");
    }
}

fn events(stream: &[u8], cuts: &[usize], limit: usize) -> Events {
    let mut parser = Parser::new(limit);
    let (mut seen, mut data) = (Vec::new(), Vec::<Vec<u8>>::new());
    let mut field = |field: Field<'_>| match field {
        Field::Data(line) => data.push(line.to_vec()),
        Field::End if !data.is_empty() => seen.push(std::mem::take(&mut data).join(&b'\n')),
        _ => {}
    };
    let mut outcome = Ok(());
    let mut from = 0;
    for to in cuts.iter().copied().chain([stream.len()]) {
        outcome = outcome.and_then(|()| parser.push(&stream[from..to], &mut field));
        from = to;
    }
    let outcome = outcome.and_then(|()| parser.finish(&mut field));
    (seen, outcome)
}

/// The standard's text, slowly: the whole stream at hand, line by line, with a limit for a line.
fn standard(stream: &[u8], limit: usize) -> Events {
    let mut unified = Vec::new();
    let mut bytes = stream.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte == b'\r' && bytes.peek() == Some(&b'\n') {
            bytes.next();
        }
        unified.push(if byte == b'\r' { b'\n' } else { byte });
    }
    let (mut seen, mut data) = (Vec::new(), Vec::<Vec<u8>>::new());
    for (number, line) in unified.split(|byte| *byte == b'\n').chain([&b""[..]]).enumerate() {
        if line.len() > limit {
            return (seen, Err(Failure::TooLong(limit)));
        }
        let line = if number == 0 { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        if line.is_empty() {
            if !data.is_empty() {
                seen.push(data.join(&b'\n'));
            }
            data.clear();
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        if &line[..colon] == b"data" {
            let value = line.get(colon + 1..).unwrap_or_default();
            data.push(value.strip_prefix(b" ").unwrap_or(value).to_vec());
        }
    }
    (seen, Ok(()))
}
