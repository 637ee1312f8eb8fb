//! The current time: the moment of this call, and the gaps in which the daemon did not run, since the machine was
//! suspended, or the process was stopped or got no CPU. Gaps are reported, and so are the durations that include them.

use alloc::vec::Vec;
use core::time::Duration;

use super::peer::Moment;
use super::report::Reason;
use crate::ctx::Ctx;
use crate::view::View;

/// Number of suspensions that are remembered. The oldest ones are merged.
const REMEMBERED: usize = 64;

/// The time of this call, and what of it nobody is blamed for.
#[derive(Default)]
pub(super) struct Time {
    /// The moment of this call.
    now: Moment,
    /// When the line that is being handled was taken from its sender, if that was before this call.
    taken_at: Option<Moment>,
    /// When the machine resumed, and how long it was suspended; the core's clock stood still meanwhile.
    suspended: Vec<(Moment, Duration)>,
    /// When the process resumed, and since when it was held up.
    resumed: Moment,
    held_up_since: Moment,
}

impl Time {
    /// A call begins at this moment.
    pub(super) fn begin(&mut self, now: Moment) {
        self.now = now;
        self.taken_at = None;
    }

    /// The moment of this call.
    #[inline(always)]
    pub(super) fn now(&self) -> Moment {
        self.now
    }

    /// The line that is handled next was taken from its sender at this moment.
    pub(super) fn take_line(&mut self, at: Moment) {
        self.taken_at = Some(at);
    }

    /// When the line that is being handled was taken from its sender: deadlines of requests count from then, also while
    /// the line waits for room.
    pub(super) fn taken_at(&self) -> Moment {
        self.taken_at.unwrap_or(self.now)
    }

    fn add_suspended(&mut self, lasted: Duration) {
        self.suspended.push((self.now, lasted));
        if self.suspended.len() > REMEMBERED {
            let (_, oldest) = self.suspended.remove(0);
            self.suspended[0].1 += oldest;
        }
    }

    /// Duration since `since`, including the time in which the machine was suspended.
    pub(super) fn lasted(&self, since: Moment) -> Duration {
        self.lasted_at(self.now, since)
    }

    fn lasted_at(&self, now: Moment, since: Moment) -> Duration {
        let lasted = now.since(since);
        if self.suspended.is_empty() { lasted } else { lasted + self.suspended_since(since) }
    }

    #[cold]
    fn suspended_since(&self, since: Moment) -> Duration {
        let first = self.suspended.partition_point(|(at, _)| *at <= since);
        self.suspended[first..].iter().map(|(_, lasted)| *lasted).sum()
    }

    /// The earliest time at which a line that is read now may have arrived: input that is read when the process resumes
    /// may have arrived while it was held up.
    pub(super) fn came_at(&self) -> Moment {
        if self.now == self.resumed { self.held_up_since } else { self.now }
    }

    /// Since when a peer that is waited for since `since` could be served: a process that does not run serves none.
    pub(super) fn awake_since(&self, since: Moment) -> Moment {
        since.max(self.resumed)
    }
}

impl Ctx {
    /// The daemon did not run for a while.
    pub(super) fn on_gap(&mut self, held_up: Duration, suspended: Duration) {
        if !suspended.is_zero() {
            self.time.add_suspended(suspended);
            self.report(Reason::MachineSuspended, None, || {
                let seconds = suspended.as_secs_f32();
                format!("the machine was suspended for {seconds:.1} s; that counts for no timeout")
            });
        }
        if !held_up.is_zero() {
            let Moment(now) = self.time.now();
            let since = now.saturating_sub(u64::try_from(held_up.as_nanos()).unwrap_or(u64::MAX));
            (self.time.resumed, self.time.held_up_since) = (self.time.now(), Moment(since));
            self.report(Reason::DaemonHeldUp, None, || {
                let seconds = held_up.as_secs_f32();
                format!(
                    "the daemon did not run for {seconds:.1} s, and its clients waited: it was stopped (SIGSTOP, a \
                     frozen container) or got no CPU time; look at the load and at CPU limits (cpu.max)"
                )
            });
        }
    }
}

impl View<'_> {
    /// Duration since `since`, including the time in which the machine was suspended.
    pub fn lasted(&self, now: Moment, since: Moment) -> Duration {
        self.bus.ctx.time.lasted_at(now, since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Moment {
        Moment(seconds * 1_000_000_000)
    }

    #[test]
    fn durations_include_the_time_of_a_suspended_machine() {
        let mut time = Time::default();
        for (now, lasted) in [(10, 100), (20, 1000)] {
            time.begin(at(now));
            time.add_suspended(lasted * SECOND);
        }
        time.begin(at(30));
        assert_eq!(time.lasted(at(5)), 1125 * SECOND);
        assert_eq!(time.lasted(at(15)), 1015 * SECOND);
        assert_eq!(time.lasted(at(20)), 10 * SECOND, "it began afterwards");
    }

    #[test]
    fn durations_stay_right_however_often_the_machine_is_suspended() {
        let mut time = Time::default();
        for nth in 1..1000 {
            time.begin(at(nth));
            time.add_suspended(SECOND);
        }
        time.begin(at(1000));
        assert_eq!(time.suspended.len(), REMEMBERED);
        assert_eq!(time.lasted(at(0)), 1999 * SECOND);
        assert_eq!(time.lasted(at(990)), 19 * SECOND);
    }
}
