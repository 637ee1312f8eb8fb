//! Descriptors for tests with many clients.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's limit of descriptors as far as permitted, up to 16,384: a test that fills every slot needs
/// some thousands, and a login often has 1,024.
pub fn allow() {
    let allowed = getrlimit(Resource::Nofile);
    let most = allowed.maximum.map_or(16_384, |most| most.min(16_384));
    if allowed.current.is_some_and(|current| current < most) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..allowed }).expect("it is allowed");
    }
}
