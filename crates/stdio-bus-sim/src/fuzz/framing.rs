//! Any bytes in any pieces: every instruction set finds the lines and the fault that the reference finds in one piece,
//! and each line ends where skipping its value does.
//!
//! The first byte is the content of the pads; then come the pieces and the stream.

use super::SCANNERS;
use crate::bytes::{cuts, parts};
use crate::reading::read;
use crate::scan::{InstructionSet, Scanner, SkipValue};

/// Cuts the stream in two ways and scans it with every instruction set.
///
/// # Panics
/// If one of them finds something else.
pub fn check(bytes: &[u8]) {
    let Some((garbage, pieces, stream)) = parts(bytes) else { return };
    // One set may report a fault in the last bytes of an unfinished line later than another.
    let stream = &[stream, b"\n"].concat();
    let reference = &mut Scanner::with(InstructionSet::Reference).expect("it runs everywhere");
    let expected = read(reference, stream, &[], b' ');
    for line in &expected.lines {
        let object = stream[line.span.start as usize..line.span.end as usize].trim_ascii();
        assert_eq!(skipped(object, &cuts(pieces, object.len())), Some(object.len()), "{}", object.escape_ascii());
    }
    SCANNERS.with_borrow_mut(|scanners| {
        for scanner in scanners {
            for cuts in [Vec::new(), cuts(pieces, stream.len())] {
                let reading = read(scanner, stream, &cuts, garbage);
                assert_eq!(reading, expected, "{:?}, cut at {cuts:?}", scanner.set());
            }
        }
    });
}

/// Length of the value at the start of this text, which arrives in pieces.
fn skipped(text: &[u8], cuts: &[usize]) -> Option<usize> {
    let mut skip = SkipValue::default();
    let mut from = 0;
    for &to in cuts.iter().chain([&text.len()]) {
        if let Some(end) = skip.read(&text[from..to]) {
            return Some(from + end);
        }
        from = to;
    }
    None
}
