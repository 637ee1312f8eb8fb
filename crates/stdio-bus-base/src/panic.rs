//! A panic ends the process, whichever thread it is in and however the program was built.

use std::panic;
use std::process::abort;

/// Has every panic end the process when its place was told, as it does in a release, which cannot unwind. Programs that
/// are built for the tests can: tests and programs are built from the same libraries then, and these only once.
pub fn end_the_process() {
    if cfg!(panic = "unwind") {
        let tell = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            tell(panic);
            abort();
        }));
    }
}
