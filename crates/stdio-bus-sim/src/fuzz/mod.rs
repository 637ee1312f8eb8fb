//! Properties that hold for any bytes that reach the core or the scanner. A fuzzer (`fuzz/fuzz_targets`) and a property
//! test (below) check the same ones, so that every test run covers what a fuzzer would look for, with fewer bytes.
//! Those of other crates are in `src/testing/fuzz` of the daemon and of `stdio-bus-proto`, and in `src/fuzz` of the agent.
//!
//! Each file has one function, `check`, which panics if its property does not hold.

pub mod core;
pub mod framing;
pub mod scanner;
#[cfg(test)]
mod tests;

use std::cell::RefCell;

use crate::reading::sets;
use crate::scan::Scanner;

thread_local! {
    /// One for each instruction set, kept between inputs as between connections: the scanner's memory must not change
    /// its results.
    static SCANNERS: RefCell<Vec<Scanner>> = RefCell::new(sets().into_iter().filter_map(Scanner::with).collect());
}
