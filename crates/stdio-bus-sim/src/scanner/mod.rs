//! The scanner seen from outside: what it accepts, what it refuses, which fields it finds, however the bytes arrive and
//! with every instruction set.

mod cases;
mod chunks;
mod differential;
mod exhaustive;
mod fields;
mod guard;
mod held;
mod suite;
mod utf8;

use ndjson_scan::{Fault, Line, Scanner};

use crate::reading::{Reading, read, sets};

/// The result for one line without its newline: the line, `None` if it is blank, or its fault.
fn read_line(scanner: &mut Scanner, line: &[u8]) -> Result<Option<Line>, Fault> {
    let reading = read(scanner, &[line, b"\n"].concat(), &[], b'"');
    match reading.malformed {
        Some((_, fault)) => Err(fault),
        None => Ok(reading.lines.first().copied()),
    }
}
