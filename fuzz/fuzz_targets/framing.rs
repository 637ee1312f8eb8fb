//! Any bytes in any pieces: every instruction set finds the lines and the fault that the reference finds.
//!
//! The first byte is what the pads hold, the second is the largest piece; the rest is the stream.

#![no_main]

#[path = "../../tests/scan/reading.rs"]
mod reading;

use libfuzzer_sys::fuzz_target;
use reading::{read, sets};
use std::cell::RefCell;
use stdio_bus::scan::{InstructionSet, Scanner};

thread_local! {
    // Kept between inputs, as between connections: what a scanner remembers must not change what it says.
    static SCANNERS: RefCell<Vec<Scanner>> =
        RefCell::new(sets().into_iter().filter_map(Scanner::with).collect());
}

fuzz_target!(|bytes: &[u8]| {
    let [garbage, piece, stream @ ..] = bytes else { return };
    // A fault in the last bytes of a line without end may be told later by one set than by another.
    let stream = &[stream, b"\n"].concat();
    let cuts: Vec<usize> = match *piece {
        0 => Vec::new(),
        piece => (0..stream.len()).step_by(piece.into()).collect(),
    };
    let expected = read(&mut Scanner::with(InstructionSet::Reference).unwrap(), stream, &[], b' ');
    SCANNERS.with_borrow_mut(|scanners| {
        for scanner in scanners {
            let reading = read(scanner, stream, &cuts, *garbage);
            assert_eq!(reading, expected, "{:?}", scanner.set());
        }
    });
});
