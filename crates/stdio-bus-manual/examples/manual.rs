//! Writes the manual pages and the shell completions of both programs to the directory given.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).ok_or("usage: manual DIRECTORY")?;
    stdio_bus_manual::write(Path::new(&directory))
}
