//! The scanner seen from outside: what it accepts, what it refuses, which fields it finds, however the bytes come and
//! whichever instruction set looks at them.

mod chunks;
#[path = "../../benches/support/corpus.rs"]
mod corpus;
mod differential;
mod exhaustive;
mod fields;
mod guard;
mod held;
#[path = "../../src/testing/oracle.rs"]
mod oracle;
mod package;
#[path = "../../src/testing/reading.rs"]
mod reading;
mod suite;
mod utf8;

use reading::{Reading, read, sets};
use stdio_bus::scan::{self, Fault, Line, Scanner};

/// What one line, given without its newline, comes to: itself, nothing if it is blank, or its fault.
fn read_line(scanner: &mut Scanner, line: &[u8]) -> Result<Option<Line>, Fault> {
    let reading = read(scanner, &[line, b"\n"].concat(), &[], b'"');
    match reading.malformed {
        Some((_, fault)) => Err(fault),
        None => Ok(reading.lines.first().copied()),
    }
}
