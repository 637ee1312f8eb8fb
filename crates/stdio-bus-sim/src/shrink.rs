//! Runs seeds, and shrinks one that fails: the same seed with the fewest steps that still fail is easier to read.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs `life` for each of these seeds with `steps` steps, as many at once as there are CPUs, and returns what came of
/// them in the order of the seeds. If one panics, no other begins, and it is run once more with the fewest steps that
/// do, as found by bisection. `life` learns whether it is that last run, which is printed.
pub fn run<T: Send>(seeds: Range<u64>, steps: usize, life: impl Fn(u64, usize, bool) -> T + Sync) -> Vec<T> {
    let next = AtomicU64::new(seeds.start);
    let live = || {
        let mut lived = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return lived;
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| life(seed, steps, false)));
            if outcome.is_err() {
                next.store(seeds.end, Ordering::Relaxed);
            }
            lived.push((seed, outcome));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let mut lived: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(live)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a life's panic is caught")).collect()
    });
    lived.sort_by_key(|(seed, _)| *seed);
    let outcome_of = |(seed, outcome): (u64, Result<T, _>)| {
        outcome.unwrap_or_else(|panic| fail(steps, |steps, is_repeated| drop(life(seed, steps, is_repeated)), panic))
    };
    lived.into_iter().map(outcome_of).collect()
}

/// Runs a life that has panicked with `steps` steps once more with the fewest that do.
fn fail(steps: usize, life: impl Fn(usize, bool), panic: Box<dyn Any + Send>) -> ! {
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
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_failure_is_repeated_with_the_fewest_steps_that_fail() {
        assert_eq!(fewest(600, |steps| steps >= 417), 417);
        assert_eq!(fewest(600, |_| true), 1);
        assert_eq!(fewest(1, |_| true), 1);
        let lived = Mutex::new(Vec::new());
        let life = |seed, steps, is_repeated| {
            lived.lock().expect("nobody panics with it").push((seed, steps, is_repeated));
            assert!(seed < 3 || steps < 5, "five steps of the third seed fail");
            seed
        };
        assert_eq!(run(1..10, 4, life), (1..10).collect::<Vec<_>>(), "the outcomes are in the order of the seeds");
        assert!(catch_unwind(|| run(1..10, 600, life)).is_err());
        let lived = lived.lock().expect("nobody panics with it");
        assert_eq!(lived.last(), Some(&(3, 5, true)), "the first seed that fails is repeated");
    }
}
