//! Any bytes are a configuration that the core can be started with, or an error that can be printed. An accepted one
//! means the same when its JSON is rewritten without white space and with sorted members.

use stdio_bus::bus::Bus;
use stdio_bus::bus::port::{Effect, Moment};
use stdio_bus::config::Config;

/// Reads the bytes as a configuration. It looks up the commands and directories that they name, but runs nothing.
///
/// # Panics
/// If reading panics, if an error has no message, or if an accepted configuration changes its meaning when it is
/// rewritten.
pub(crate) fn check(bytes: &[u8]) {
    let mut config = match Config::from_bytes(bytes, "any") {
        Ok(config) => config,
        Err(error) => {
            let text = error.to_string();
            assert!(
                text.lines().all(|line| line.starts_with("any:")),
                "a line that does not stand for itself:\n{text}"
            );
            return;
        }
    };
    let text = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    // A comment may contain what serde_json cannot represent, such as deep nesting.
    if let Ok(value) = serde_json::from_slice::<serde_json::Value>(text) {
        let again = Config::from_bytes(value.to_string().as_bytes(), "any");
        let again = again.unwrap_or_else(|error| panic!("written anew it is refused: {error}\n{value}"));
        assert_eq!(format!("{again:?}"), format!("{config:?}"));
    }
    assert!(config.summary().starts_with("any: "));
    if let Err(error) = config.listen(&[]) {
        assert!(error.to_string().starts_with("any: "));
        return;
    }
    let mut bus = Bus::new(config.settings());
    let spawns = bus.start(Moment(0)).filter(|effect| matches!(effect, Effect::Spawn { .. })).count();
    assert!((1..=config.max_workers()).contains(&spawns), "{spawns} workers are started");
    bus.check_invariants();
}
