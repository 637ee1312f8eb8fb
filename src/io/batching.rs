//! How many completions a busy turn waits for, so that they share its cost: one system call, one wake-up, and one write
//! for each output that several of them lead to.
//!
//! A turn that begins with the first completion handles one message where a few microseconds later it could handle
//! ten, and whoever waits for the answers then wakes up ten times as well. But to wait is good only where there is
//! much to do, and if somebody comes. So it is tried while the daemon uses a good part of its CPU in turns that move
//! little; if the completions come, more are waited for the next time, and if they do not, fewer, then none, and it is
//! tried again ever more rarely. Below that load nothing is ever held up, nor is a client that talks alone with its
//! worker.

use std::time::{Duration, Instant};

use rustix::time::ClockId;

use super::clocks::time;

/// How long each completion is waited for: where they come more slowly, to wait for them costs more than it saves.
const EACH: Duration = Duration::from_micros(24);
/// How long the most are waited for. Where so many come, they come in waves, clients' and workers', and it pays to wait
/// from one to the next.
const LONGEST: Duration = Duration::from_micros(600);
/// It begins above this part of the CPU's time and ends below that: where it helps, the daemon needs less.
const BEGINS_ABOVE: u32 = 3;
const ENDS_BELOW: u32 = 8;
/// The load is looked at once in so many turns.
const TURNS: u32 = 64;
/// Turns that carry more lines or move more bytes than this, on the average, carry enough already.
const ENOUGH_LINES: u64 = 7;
const ENOUGH_BYTES: u64 = 16 * 1024;
/// Turns that the average looks back on.
const AVERAGE: u64 = 16;
/// The fewest completions that are worth it, and the most: of sixty clients that talk in lockstep, a quarter.
const FEWEST: u32 = 2;
const MOST: u32 = 16;
/// Turns until it is tried again after a failure: doubled up to the most, and the fewest again after a success.
const FEWEST_SKIPPED: u32 = 64;
const MOST_SKIPPED: u32 = 4096;

/// See the top of the file.
#[derive(Default)]
pub struct Batching {
    wanted: u32,
    /// What a turn carries and moves on the average, times [`AVERAGE`].
    lines: u64,
    bytes: u64,
    skip: u32,
    skip_next: u32,
    turns: u32,
    load: Option<Load>,
    is_busy: bool,
}

/// Time on the CPU until some moment.
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
    /// How many completions to wait for in the turn that begins now, beyond those that come at once.
    pub fn wanted(&mut self) -> u32 {
        self.turns += 1;
        if self.turns.is_multiple_of(TURNS) {
            self.look_at(Load::now());
        }
        if self.wanted == 0 && self.is_busy {
            self.skip = self.skip.saturating_sub(1);
            if self.skip == 0 && self.lines < ENOUGH_LINES * AVERAGE && self.bytes < ENOUGH_BYTES * AVERAGE {
                self.wanted = FEWEST;
            }
        }
        self.wanted
    }

    /// How long to wait for so many.
    pub fn patience(wanted: u32) -> Duration {
        if wanted < MOST { EACH * wanted } else { LONGEST }
    }

    /// A turn has carried so many lines.
    pub fn carried(&mut self, lines: u64) {
        self.lines = self.lines - self.lines / AVERAGE + lines;
    }

    /// A turn has moved so many bytes, in and out.
    pub fn moved(&mut self, bytes: u64) {
        self.bytes = self.bytes - self.bytes / AVERAGE + bytes;
    }

    /// How many came of those waited for.
    pub fn came(&mut self, completions: u32) {
        if completions >= self.wanted {
            self.wanted = (2 * self.wanted).min(MOST);
            self.skip_next = FEWEST_SKIPPED;
        } else if 4 * completions < 3 * self.wanted {
            self.wanted /= 2;
            if self.wanted < FEWEST {
                self.wanted = 0;
                self.skip = self.skip_next;
                self.skip_next = (2 * self.skip_next).clamp(FEWEST_SKIPPED, MOST_SKIPPED);
            }
        }
    }

    /// So many came that buffers ran out.
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

    /// Time passes, of which `percent` are used.
    fn works(batching: &mut Batching, percent: u32) {
        let last = *batching.load.get_or_insert_with(|| Load { used: Duration::ZERO, at: Instant::now() });
        let second = Duration::from_secs(1);
        batching.look_at(Load { used: last.used + second * percent / 100, at: last.at + second });
    }

    fn busy() -> Batching {
        let mut batching = Batching::default();
        works(&mut batching, 50);
        batching
    }

    /// So many turns in which `come` of those waited for come: how many of the turns wait.
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
    fn more_are_waited_for_as_long_as_they_come() {
        let mut batching = busy();
        let waited = waits(&mut batching, 1000, |wanted| wanted);
        assert!(waited > 900, "{waited} turns of 1000");
        assert_eq!(batching.wanted, MOST);
    }

    #[test]
    fn as_many_are_waited_for_as_mostly_come() {
        let mut batching = busy();
        waits(&mut batching, 1000, |wanted| wanted.min(7));
        assert_eq!(batching.wanted, 8);
    }

    #[test]
    fn who_talks_alone_hardly_ever_waits() {
        let mut batching = busy();
        waits(&mut batching, 10_000, |_| 1);
        let waited = waits(&mut batching, 100_000, |_| 1);
        assert!((20..=30).contains(&waited), "{waited} turns of 100,000");
    }

    #[test]
    fn nobody_is_waited_for_before_there_is_much_to_do_nor_when_it_is_over() {
        let mut batching = Batching::default();
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
    fn nobody_is_waited_for_when_buffers_ran_out() {
        let mut batching = busy();
        waits(&mut batching, 1000, |wanted| wanted);
        batching.back_off();
        assert_eq!(waits(&mut batching, 1000, |wanted| wanted), 0);
    }

    #[test]
    fn nobody_is_waited_for_when_turns_carry_enough() {
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
