//! What has to hold for any bytes that reach the core or the scanner. A fuzzer (`fuzz/fuzz_targets`) and a property test
//! (below) ask each of these for the same, so that every run of the tests covers what a fuzzer would look for, with fewer
//! bytes. What meets other rooms is asked beside them: `src/testing/fuzz` of the daemon, `src/fuzz` of the agent.
//!
//! Each file has one function, `check`, which panics when what it promises does not hold.

pub mod core;
pub mod framing;
pub mod scanner;
#[cfg(test)]
mod tests;

use std::cell::RefCell;

use crate::reading::sets;
use crate::scan::Scanner;

thread_local! {
    /// One for each instruction set. They are kept between inputs, as between connections: what a scanner remembers must
    /// not change what it says.
    static SCANNERS: RefCell<Vec<Scanner>> = RefCell::new(sets().into_iter().filter_map(Scanner::with).collect());
}
