//! The stack of the main thread. The kernel ends a program that needs more than it may have with a signal and without a
//! word, so that is looked at before anything deep is called.

use rustix::process::{Resource, getrlimit};

/// The size that the programs need with room to spare, in bytes: a release build runs with 128 KiB, one without
/// optimization with 320. The usual limit is 8 MiB.
const LEAST: u64 = if cfg!(debug_assertions) { 512 } else { 256 } * 1024;

/// Why the program cannot run, if its stack may not grow to the size that it needs.
pub fn is_too_small() -> Option<String> {
    why(getrlimit(Resource::Stack).current)
}

fn why(limit: Option<u64>) -> Option<String> {
    let limit = limit.filter(|limit| *limit < LEAST)?;
    Some(format!(
        "the stack may have only {} KiB here, and this program needs {}; raise RLIMIT_STACK (ulimit -s 8192, \
         LimitSTACK=8M)",
        limit / 1024,
        LEAST / 1024
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_that_is_too_small_is_named_with_the_remedy() {
        let said = why(Some(64 * 1024)).expect("it is too small");
        assert!(said.contains("64 KiB") && said.contains("ulimit -s"), "{said}");
        assert_eq!((why(Some(LEAST)), why(None)), (None, None));
    }
}
