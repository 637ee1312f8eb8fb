//! How many completions a busy turn waits for, so that they share its cost: one system call, one wake-up, and one write
//! for each output that several of them lead to.
//!
//! A turn that begins with the first completion handles one message where a few microseconds later it could handle
//! ten, and whoever waits for the answers then wakes up ten times as well. But to wait is good only if somebody comes.
//! So it is tried for a moment when turns follow one another closely and move little; if the completions come, more
//! are waited for the next time, and if they do not, fewer, then none, and it is tried again ever more rarely. A
//! client that talks alone with its worker waits for nobody, and messages that are far apart are never held up.

use std::time::{Duration, Instant};

/// How long each completion is waited for: where they come more slowly, to wait for them costs more than it saves.
const EACH: Duration = Duration::from_micros(24);
/// Turns that begin further apart are not busy.
const BUSY: Duration = Duration::from_micros(100);
/// Turns that move more bytes than this, on the average, carry enough already.
const ENOUGH: u64 = 1500;
/// Turns that the average looks back on.
const AVERAGE: u64 = 16;
/// The fewest completions that are worth it, and the most: of sixty clients that talk in lockstep, a quarter.
const FEWEST: u32 = 2;
const MOST: u32 = 16;
/// Turns until it is tried again after a failure: doubled up to the most, and the fewest again after a success.
const FEWEST_SKIPPED: u32 = 64;
const MOST_SKIPPED: u32 = 4096;

/// See the top of the file.
pub struct Company {
    wanted: u32,
    last_turn: Option<Instant>,
    bytes: u64,
    skip: u32,
    skip_next: u32,
}

impl Company {
    /// Nobody is waited for yet.
    pub fn new() -> Self {
        Self { wanted: 0, last_turn: None, bytes: 0, skip: FEWEST_SKIPPED, skip_next: FEWEST_SKIPPED }
    }

    /// How many completions to wait for in the turn that begins now, beyond those that come at once.
    pub fn wanted(&mut self, now: Instant) -> u32 {
        let last = self.last_turn.replace(now);
        if last.is_none_or(|last| now.saturating_duration_since(last) > BUSY) {
            return 0;
        }
        if self.wanted == 0 {
            self.skip = self.skip.saturating_sub(1);
            if self.skip == 0 && self.bytes < ENOUGH {
                self.wanted = FEWEST;
            }
        }
        self.wanted
    }

    /// How long to wait for so many.
    pub fn patience(wanted: u32) -> Duration {
        EACH * wanted
    }

    /// A turn has moved so many bytes.
    pub fn moved(&mut self, bytes: u64) {
        self.bytes = (self.bytes * (AVERAGE - 1) + bytes) / AVERAGE;
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
                self.skip_next = (2 * self.skip_next).min(MOST_SKIPPED);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many busy turns in which `come` of those waited for come: how many of the turns wait.
    fn waits(company: &mut Company, turns: usize, come: impl Fn(u32) -> u32) -> usize {
        let (mut now, mut waits) = (Instant::now(), 0);
        for _ in 0..turns {
            now += BUSY / 10;
            let wanted = company.wanted(now);
            if wanted > 0 {
                waits += 1;
                company.came(come(wanted));
            }
        }
        waits
    }

    #[test]
    fn more_are_waited_for_as_long_as_they_come() {
        let mut company = Company::new();
        let waited = waits(&mut company, 1000, |wanted| wanted);
        assert!(waited > 900, "{waited} turns of 1000");
        assert_eq!(company.wanted, MOST);
    }

    #[test]
    fn as_many_are_waited_for_as_mostly_come() {
        let mut company = Company::new();
        waits(&mut company, 1000, |wanted| wanted.min(7));
        assert_eq!(company.wanted, 8);
    }

    #[test]
    fn who_talks_alone_hardly_ever_waits() {
        let mut company = Company::new();
        waits(&mut company, 10_000, |_| 1);
        let waited = waits(&mut company, 100_000, |_| 1);
        assert!((20..=30).contains(&waited), "{waited} turns of 100,000");
    }

    #[test]
    fn nobody_is_waited_for_when_turns_are_far_apart() {
        let mut company = Company::new();
        waits(&mut company, 1000, |wanted| wanted);
        let now = Instant::now() + Duration::from_secs(1);
        assert_eq!((company.wanted(now), company.wanted(now + 2 * BUSY)), (0, 0));
    }

    #[test]
    fn nobody_is_waited_for_when_turns_carry_enough() {
        let mut company = Company::new();
        (0..100).for_each(|_| company.moved(10 * ENOUGH));
        assert_eq!(waits(&mut company, 1000, |wanted| wanted), 0);
        (0..100).for_each(|_| company.moved(10));
        assert!(waits(&mut company, 1000, |wanted| wanted) > 0);
    }
}
