//! The manual pages and completions of both programs are written and have the right content.

use std::fs;

#[test]
fn both_programs_have_pages_and_completions() {
    let directory = tempfile::tempdir().expect("a directory");
    stdio_bus_manual::write(directory.path()).expect("they can be written");
    let read =
        |name: &str| fs::read_to_string(directory.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    for (name, word) in [("stdio_bus", "listen"), ("stdio_bus-connect", "wss"), ("openai-agent", "endpoint")] {
        let page = read(&format!("man/{name}.1"));
        assert!(page.starts_with(".ie") && page.contains(word), "{name}: {page}");
    }
    for name in ["stdio_bus", "openai-agent"] {
        for file in [format!("{name}.bash"), format!("{name}.fish"), format!("_{name}")] {
            assert!(read(&format!("completions/{file}")).contains("check"), "{file}");
        }
    }
}
