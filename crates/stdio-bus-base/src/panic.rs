//! A panic ends the process, on any thread and in any build profile.

use std::panic;
use std::process::abort;

/// Makes every panic end the process once its location was printed, as in a release build, which cannot unwind. Test
/// builds can unwind: tests and programs share the same libraries, which are built only once.
pub fn end_the_process() {
    if cfg!(panic = "unwind") {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            hook(panic);
            abort();
        }));
    }
}
