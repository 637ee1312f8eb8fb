//! What has to hold for any bytes. A fuzzer (`fuzz/fuzz_targets`) and a property test (below) ask each of these for the
//! same, so that every run of the tests covers what a fuzzer would look for, with fewer bytes.
//!
//! Each file has one function, `check`, which panics when what it promises does not hold.

pub mod answers;
pub mod configuration;
pub mod core;
pub mod events;
pub mod framing;
pub mod proxy;
pub mod scanner;
#[cfg(test)]
mod tests;
pub mod websocket;

use std::cell::RefCell;

use crate::scan::Scanner;
use crate::testing::reading::sets;

thread_local! {
    /// One for each instruction set. They are kept between inputs, as between connections: what a scanner remembers must
    /// not change what it says.
    static SCANNERS: RefCell<Vec<Scanner>> = RefCell::new(sets().into_iter().filter_map(Scanner::with).collect());
}

/// Where a stream of `length` bytes is cut, as `pieces` says: their lengths in turn, a zero being a long one. Without
/// them it is not cut.
fn cuts(pieces: &[u8], length: usize) -> Vec<usize> {
    let mut at = 0;
    let ends = pieces.iter().cycle().map(|piece| {
        at += if *piece == 0 { LONG_PIECE } else { usize::from(*piece) };
        at
    });
    ends.take_while(|end| *end < length).collect()
}

/// Bytes of a piece that is longer than a byte can say.
const LONG_PIECE: usize = 4000;

/// The first byte of an input says how many of the next ones are lengths of pieces; the rest is the stream.
fn pieces_and_stream(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*count) % 8)
}
