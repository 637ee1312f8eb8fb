//! The protocols are sans-IO: whoever reads and writes gives them bytes and moments, and any loop can run them.

use std::fs::{read_dir, read_to_string};
use std::path::Path;

/// Checks the files below a folder, but for what tests and fuzzers use. Returns how many there are.
fn check(folder: &Path) -> usize {
    let mut count = 0;
    for path in read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            count += if path.ends_with("testing") { 0 } else { check(&path) };
            continue;
        }
        let text = read_to_string(&path).unwrap();
        for modules in ["std::fs", "std::io", "std::os", "std::process", "std::thread", "rustix", "libc"] {
            assert!(!text.contains(modules), "{path:?} has {modules}: take what it gives as an argument");
        }
        for types in ["Instant", "SystemTime", "TcpStream"] {
            assert!(!text.contains(types), "{path:?} has {types}: take what it gives as an argument");
        }
        count += 1;
    }
    count
}

#[test]
fn the_protocols_have_no_socket_file_clock_or_thread() {
    let count = check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(count > 30, "only {count} files were found");
}
