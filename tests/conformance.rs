//! Keeps `docs/conformance.md` true.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The file that a proof like `core/ids::NAME` stands in.
fn file_of(proof: &str) -> PathBuf {
    let (file, directory) = match proof.split_once('/') {
        Some(("core", file)) => (file, "src/bus/tests"),
        Some(("e2e", file)) => (file, "tests/e2e"),
        Some(("unit", file)) => (file, "src"),
        _ => (proof, "tests"),
    };
    root().join(directory).join(format!("{file}.rs"))
}

#[test]
fn every_test_that_the_conformance_table_names_exists() {
    let table = fs::read_to_string(root().join("docs/conformance.md")).unwrap();
    let mut proofs = 0;
    for quoted in table.split('`').skip(1).step_by(2) {
        let Some((file, name)) = quoted.rsplit_once("::").filter(|(_, name)| *name != "NAME") else { continue };
        let path = file_of(file);
        let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(source.contains(&format!("fn {name}(")), "{} has no test {name}", path.display());
        proofs += 1;
    }
    assert!(proofs > 100, "only {proofs} proofs were found");
}

#[test]
fn every_part_of_the_specification_is_in_the_conformance_table() {
    let table = fs::read_to_string(root().join("docs/conformance.md")).unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| §")).collect();
    assert_eq!(rows.len(), 113, "a row for each SHALL");
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 6, "{row}");
        let decided = cells[4].contains('`');
        assert!(cells[3].contains("::") || cells[3].starts_with("all of section") || decided, "no proof: {row}");
    }
}

#[test]
fn the_daemon_starts_no_thread() {
    for directory in ["src/bus", "src/io", "src/scan", "src/shell"] {
        search(&root().join(directory));
    }
    fn search(directory: &Path) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                search(&path);
            } else {
                let source = fs::read_to_string(&path).unwrap();
                for start in ["thread::spawn", "thread::Builder", "thread::scope"] {
                    assert!(!source.contains(start), "{} starts a thread", path.display());
                }
            }
        }
    }
}
