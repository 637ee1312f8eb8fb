//! Makes a failing seed smaller: the same seed with as few steps as still fail is easier to read.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};

/// Runs `life` with so many steps. If it panics, it runs once more with the fewest steps with which it does, as far as
/// halving finds them, and panics with what that says. `life` is told whether it is that run, which somebody will read.
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

/// The fewest of so many steps that fail, if more steps always fail where fewer do.
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
    fn what_fails_is_repeated_with_as_few_steps_as_fail() {
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
