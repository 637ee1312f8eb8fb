//! Shrinks a failing seed: the same seed with the fewest steps that still fail is easier to read.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};

/// Runs `life` with `steps` steps. If it panics, runs it once more with the fewest steps that do, as found by
/// bisection, and panics with that message. `life` is told whether it is that last run, which is printed.
pub fn run<T>(steps: usize, life: impl Fn(usize, bool) -> T) -> T {
    let panic = match catch_unwind(AssertUnwindSafe(|| life(steps, false))) {
        Ok(outcome) => return outcome,
        Err(panic) => panic,
    };
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let fewest = fewest(steps, |steps| catch_unwind(AssertUnwindSafe(|| life(steps, false))).is_err());
    set_hook(hook);
    eprintln!("\n{steps} steps fail, and {fewest} are enough:");
    life(fewest, true);
    resume_unwind(panic)
}

/// The fewest of `steps` steps that fail, if more steps always fail where fewer do.
fn fewest(steps: usize, fails: impl Fn(usize) -> bool) -> usize {
    let (mut passing, mut failing) = (0, steps);
    while failing - passing > 1 {
        let middle = passing + (failing - passing) / 2;
        if fails(middle) {
            failing = middle;
        } else {
            passing = middle;
        }
    }
    failing
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_failure_is_repeated_with_the_fewest_steps_that_fail() {
        assert_eq!(fewest(600, |steps| steps >= 417), 417);
        assert_eq!(fewest(600, |_| true), 1);
        assert_eq!(fewest(1, |_| true), 1);
        let lived = RefCell::new(Vec::new());
        let life = |steps, is_repeated| {
            lived.borrow_mut().push((steps, is_repeated));
            assert!(steps < 5, "five steps fail");
            steps
        };
        assert_eq!(run(4, life), 4);
        assert!(catch_unwind(AssertUnwindSafe(|| run(600, life))).is_err());
        assert_eq!(lived.borrow().last(), Some(&(5, true)));
    }
}
