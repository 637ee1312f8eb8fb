//! The same checks with bytes that proptest makes of the fuzzers' dictionaries (`fuzz/words`).

use proptest::prelude::*;
use proptest::sample::select;
use stdio_bus_sim::strategies::{text, words};

const CONFIGURATION: &str = include_str!("../../../fuzz/words/configuration");

/// A valid configuration with some inserted members, which may be valid as well.
fn configuration() -> impl Strategy<Value = Vec<u8>> {
    let member = || prop_oneof![2 => Just(Vec::new()), 1 => text(CONFIGURATION, 4), 1 => select(words(CONFIGURATION))];
    (member(), member()).prop_map(|(top, pool)| {
        let good = &b"{\"pools\":[{\"id\":\"a\",\"command\":\"sh\",\"instances\":1"[..];
        [good, &pool, b"}]", &top, b"}"].concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_a_configuration_that_can_start_or_an_error(
        bytes in prop_oneof![text(CONFIGURATION, 12), configuration()],
    ) {
        super::configuration::check(&bytes);
    }
}

#[test]
fn the_examples_are_configurations_that_can_start() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/config");
    for name in ["minimal.json", "full.json"] {
        super::configuration::check(&std::fs::read(format!("{folder}/{name}")).unwrap());
    }
}
