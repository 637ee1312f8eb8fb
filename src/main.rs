//! The `stdio_bus` program.

fn main() {}
