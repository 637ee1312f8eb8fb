//! Keeps `docs/conformance.md` and `docs/faults.md` true.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The file that a proof like `core/ids::NAME` stands in.
fn file_of(proof: &str) -> PathBuf {
    let (file, directory) = match proof.split_once('/') {
        Some(("core", file)) => (file, "crates/stdio-bus-core/src/tests"),
        Some(("e2e", file)) => (file, "tests/e2e"),
        Some(("scan", file)) => (file, "crates/stdio-bus-sim/src/scanner"),
        Some(("sim", file)) => (file, "crates/stdio-bus-sim/src"),
        Some(("unit", file)) => match file.split_once('/') {
            Some(("bus", file)) => (file, "crates/stdio-bus-core/src"),
            Some(("scan", file)) => (file, "crates/ndjson-scan/src"),
            _ => (file, "src"),
        },
        _ => (proof, "tests"),
    };
    root().join(directory).join(format!("{file}.rs"))
}

fn document(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// Checks that every test that a document names exists; gives how many it names.
fn tests_that_exist(document: &str) -> usize {
    let mut proofs = 0;
    for quoted in document.split('`').skip(1).step_by(2) {
        let Some((file, name)) = quoted.rsplit_once("::").filter(|(_, name)| *name != "NAME") else { continue };
        let path = file_of(file);
        let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let before = source.split_once(&format!("fn {name}(")).map(|(before, _)| before.trim_end());
        assert!(before.is_some_and(|before| before.ends_with("#[test]")), "{} has no test {name}", path.display());
        proofs += 1;
    }
    proofs
}

/// The rows of all tables by their cells, without those that head a table with one of these words.
fn rows<'a>(document: &'a str, heads: &[&str]) -> Vec<Vec<&'a str>> {
    let rows = document.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix('|'));
    let rows = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    rows.filter(|cells| !heads.contains(&cells[0])).collect()
}

#[test]
fn every_test_that_the_conformance_table_names_exists() {
    let proofs = tests_that_exist(&document("conformance.md"));
    assert!(proofs > 100, "only {proofs} proofs were found");
}

#[test]
fn every_part_of_the_specification_is_in_the_conformance_table() {
    let table = document("conformance.md");
    let rows = rows(&table, &["§"]);
    assert_eq!(rows.len(), 113, "a row for each SHALL");
    for row in rows {
        let [_, _, proof, note] = row[..] else { panic!("{row:?}") };
        let decided = note.contains('`');
        assert!(proof.contains("::") || proof.starts_with("all of section") || decided, "no proof: {row:?}");
    }
}

#[test]
fn every_test_that_the_table_of_faults_names_exists() {
    let tests = tests_that_exist(&document("faults.md"));
    assert!(tests > 100, "only {tests} tests were found");
}

#[test]
fn every_fault_has_a_behaviour_and_a_test_or_the_table_says_that_there_is_none() {
    let table = document("faults.md");
    let rows = rows(&table, &["fault", "promise"]);
    assert_eq!(rows.len(), 89 + 5, "a row for each fault and each promise");
    for row in rows {
        let [_, behaviour, tests] = row[..] else { panic!("{row:?}") };
        assert!(tests.contains("::") || tests == "not there yet" && behaviour.contains(tests), "no test: {row:?}");
    }
}

/// Calls `look` with every source file of the daemon.
fn look_at_the_daemon(look: impl Fn(&Path, &str)) {
    let rooms = ["crates/ndjson-scan/src", "crates/stdio-bus-core/src", "src/io", "src/shell"];
    let mut paths: Vec<PathBuf> = rooms.map(|room| root().join(room)).into();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            look(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn the_daemon_starts_no_thread() {
    look_at_the_daemon(|path, source| {
        // Beside epoll, writes that would hold up the loop are made there; execs are waited for, and files of tokens read.
        // The table says so.
        let may =
            ["io/aside.rs", "shell/workers/starter.rs", "shell/token_files.rs"].iter().any(|file| path.ends_with(file));
        for start in ["thread::spawn", "thread::Builder", "thread::scope"] {
            assert!(may || !source.contains(start), "{} starts a thread", path.display());
        }
    });
}

#[test]
fn the_wall_clock_is_for_the_log_and_for_monitors_alone() {
    look_at_the_daemon(|path, source| {
        let may = path.ends_with("shell/entry.rs") || path.ends_with("shell/admin/wall.rs");
        for clock in ["SystemTime", "CLOCK_REALTIME", "ClockId::Realtime", "gettimeofday"] {
            assert!(may || !source.contains(clock), "{} looks at the wall clock", path.display());
        }
    });
}
