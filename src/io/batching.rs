//! How many completions a busy turn waits for, so that they share its cost: one system call, one wake-up, and one write
//! for each output that several of them feed.
//!
//! A turn that starts at the first completion handles one message where it could handle ten a few microseconds later,
//! and the readers of the answers then wake up ten times as well. Waiting pays only under load, and only if more
//! completions arrive. So it is tried while the daemon uses much CPU in turns that move little. If the completions
//! arrive, the next turn waits for more; if they do not, for fewer, then for none, and waiting is retried ever more
//! rarely. Below that load nothing is ever delayed, nor is a client that is alone with its worker.

use std::time::{Duration, Instant};

use rustix::time::ClockId;

use super::clocks::time;

/// The wait for each completion: where they arrive more slowly, waiting costs more than it saves.
const EACH: Duration = Duration::from_micros(24);
/// The wait for the largest batch. At that rate completions arrive in waves, from clients and from workers, and it pays
/// to wait from one wave to the next.
const LONGEST: Duration = Duration::from_micros(600);
/// Batching begins above this share of the CPU's time and ends below a lower one, since batching itself lowers the
/// load.
const BEGINS_ABOVE: u32 = 3;
const ENDS_BELOW: u32 = 8;
/// The load is sampled once in this many turns.
const TURNS: u32 = 64;
/// Turns that on average carry more lines or move more bytes than this are batched well enough.
const ENOUGH_LINES: u64 = 7;
const ENOUGH_BYTES: u64 = 16 * 1024;
/// The number of turns that the moving average covers.
const AVERAGE: u64 = 16;
/// The batch tried first, and the largest: a quarter of sixty clients that talk in lockstep.
const FIRST: u32 = 2;
const MOST: u32 = 16;
/// Turns before batching is retried after a failure: doubled up to the maximum, reset to the minimum by a success.
const FEWEST_SKIPPED: u32 = 64;
const MOST_SKIPPED: u32 = 4096;

/// See the module documentation.
#[derive(Default)]
pub struct Batching {
    wanted: u32,
    /// The smallest batch that goes on.
    fewest: u32,
    /// The average lines and bytes of a turn, times [`AVERAGE`].
    lines: u64,
    bytes: u64,
    skip: u32,
    skip_next: u32,
    turns: u32,
    load: Option<Load>,
    is_busy: bool,
}

/// CPU time used up to some moment.
#[derive(Clone, Copy)]
struct Load {
    used: Duration,
    at: Instant,
}

impl Load {
    fn now() -> Self {
        Self { used: time(ClockId::ThreadCPUTime), at: Instant::now() }
    }
}

impl Batching {
    /// Goes on while at least so many completions arrive.
    pub fn at_least(fewest: u32) -> Self {
        Self { fewest, ..Self::default() }
    }

    /// Returns how many completions to wait for in the turn that starts now, beyond those that are ready.
    pub fn wanted(&mut self) -> u32 {
        self.turns += 1;
        if self.turns.is_multiple_of(TURNS) {
            self.look_at(Load::now());
        }
        if self.wanted == 0 && self.is_busy {
            self.skip = self.skip.saturating_sub(1);
            if self.skip == 0 && self.lines < ENOUGH_LINES * AVERAGE && self.bytes < ENOUGH_BYTES * AVERAGE {
                self.wanted = FIRST;
            }
        }
        self.wanted
    }

    /// Returns how long to wait for that many.
    pub fn patience(wanted: u32) -> Duration {
        if wanted < MOST { EACH * wanted } else { LONGEST }
    }

    /// Records the lines that a turn carried.
    pub fn carried(&mut self, lines: u64) {
        self.lines = self.lines - self.lines / AVERAGE + lines;
    }

    /// Records the bytes that a turn moved, in and out.
    pub fn moved(&mut self, bytes: u64) {
        self.bytes = self.bytes - self.bytes / AVERAGE + bytes;
    }

    /// Records how many of the awaited completions arrived.
    pub fn came(&mut self, completions: u32) {
        if completions >= self.wanted {
            if self.wanted >= self.fewest {
                self.skip_next = FEWEST_SKIPPED;
            }
            self.wanted = (2 * self.wanted).min(MOST);
        } else if 4 * completions < 3 * self.wanted {
            self.wanted /= 2;
            if self.wanted < self.fewest {
                self.wanted = 0;
                self.skip = self.skip_next;
                self.skip_next = (2 * self.skip_next).clamp(FEWEST_SKIPPED, MOST_SKIPPED);
            }
        }
    }

    /// Stops batching: so many completions arrived that the buffers ran out.
    pub fn back_off(&mut self) {
        self.wanted = 0;
        self.skip = MOST_SKIPPED;
    }

    fn look_at(&mut self, load: Load) {
        let Some(last) = self.load.replace(load) else { return };
        let (used, passed) = (load.used.saturating_sub(last.used), load.at.saturating_duration_since(last.at));
        self.is_busy = used * if self.wanted == 0 { BEGINS_ABOVE } else { ENDS_BELOW } > passed;
        if !self.is_busy {
            self.wanted = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets time pass, with `percent` of it spent on the CPU.
    fn works(batching: &mut Batching, percent: u32) {
        let last = *batching.load.get_or_insert_with(|| Load { used: Duration::ZERO, at: Instant::now() });
        let second = Duration::from_secs(1);
        batching.look_at(Load { used: last.used + second * percent / 100, at: last.at + second });
    }

    fn busy() -> Batching {
        let mut batching = Batching::at_least(2);
        works(&mut batching, 50);
        batching
    }

    /// Runs `turns` turns in which `come` of the awaited completions arrive, and returns how many of the turns waited.
    fn waits(batching: &mut Batching, turns: usize, come: impl Fn(u32) -> u32) -> usize {
        let mut waits = 0;
        for _ in 0..turns {
            batching.turns = 0;
            let wanted = batching.wanted();
            if wanted > 0 {
                waits += 1;
                batching.came(come(wanted));
            }
        }
        waits
    }

    #[test]
    fn batches_grow_as_long_as_completions_arrive() {
        let mut batching = busy();
        let waited = waits(&mut batching, 1000, |wanted| wanted);
        assert!(waited > 900, "{waited} turns of 1000");
        assert_eq!(batching.wanted, MOST);
    }

    #[test]
    fn batches_settle_at_the_number_that_usually_arrives() {
        let mut batching = busy();
        waits(&mut batching, 1000, |wanted| wanted.min(7));
        assert_eq!(batching.wanted, 8);
    }

    #[test]
    fn a_client_that_is_alone_hardly_ever_waits() {
        let mut batching = busy();
        waits(&mut batching, 10_000, |_| 1);
        let waited = waits(&mut batching, 100_000, |_| 1);
        assert!((20..=30).contains(&waited), "{waited} turns of 100,000");
    }

    #[test]
    fn batches_that_stay_below_the_smallest_are_tried_ever_more_rarely() {
        let mut batching = Batching::at_least(4);
        works(&mut batching, 50);
        let waited = waits(&mut batching, 100_000, |_| 2);
        assert!((20..=100).contains(&waited), "{waited} turns of 100,000");
        assert!(waits(&mut batching, 10_000, |wanted| wanted) > 5_000, "more arrive now");
    }

    #[test]
    fn there_is_no_wait_before_the_load_is_high_nor_after_it() {
        let mut batching = Batching::at_least(2);
        works(&mut batching, 30);
        assert_eq!(waits(&mut batching, 1000, |wanted| wanted), 0);
        works(&mut batching, 40);
        assert!(waits(&mut batching, 1000, |wanted| wanted) > 0);
        works(&mut batching, 20);
        assert!(waits(&mut batching, 1000, |wanted| wanted) > 0, "less is needed because it helps");
        works(&mut batching, 10);
        assert_eq!(waits(&mut batching, 1000, |wanted| wanted), 0);
    }

    #[test]
    fn there_is_no_wait_after_buffers_ran_out() {
        let mut batching = busy();
        waits(&mut batching, 1000, |wanted| wanted);
        batching.back_off();
        assert_eq!(waits(&mut batching, 1000, |wanted| wanted), 0);
    }

    #[test]
    fn there_is_no_wait_while_turns_carry_enough() {
        for (lines, bytes) in [(2 * ENOUGH_LINES, 0), (1, 2 * ENOUGH_BYTES)] {
            let mut batching = busy();
            let turns = |batching: &mut Batching, lines, bytes| {
                (0..100).for_each(|_| {
                    batching.carried(lines);
                    batching.moved(bytes);
                });
                waits(batching, 1000, |wanted| wanted)
            };
            assert_eq!(turns(&mut batching, lines, bytes), 0);
            assert!(turns(&mut batching, 1, 100) > 0);
        }
    }
}
