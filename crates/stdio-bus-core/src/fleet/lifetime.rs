//! The lifetime of a worker: its command, its limits (age, requests, memory), and whether it gets no new work.

use alloc::borrow::Cow;

use crate::peer::Moment;
use crate::settings::Pool;

/// Why a worker is to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecycleReason {
    /// It has reached `max_age_sec`.
    Age,
    /// It has got `max_requests`.
    Requests,
    /// Its processes hold this many MiB, more than `recycle_memory_mb`.
    Memory(u64),
    /// The operator wants it.
    Operator,
    /// The operator has taken it out.
    Out,
    /// Nobody has needed it for `idle_stop_sec`.
    Idle,
    /// Nobody needs it, and all workers hold more than `max_workers_memory_mb`.
    Room,
    /// It was asked `server/discover`, and may serve no clients of earlier versions any more.
    Asked,
}

/// How long a worker lives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lifetime {
    /// The generation of its command.
    generation: u32,
    /// Why it is to be replaced, unless its command is the reason.
    reason: Option<RecycleReason>,
    /// When it reaches its maximum age.
    ages_at: Moment,
    /// Requests that it may get before it is replaced; 0 means no limit.
    requests_left: u32,
    /// It gets no new work, and ends at this moment at the latest.
    leaves_by: Option<Moment>,
    /// Since when nobody needs it, and how many bytes it had been sent then, as of the last look.
    idle: Option<(Moment, u64)>,
    /// When some of its work was last over, other than by an answer on the fast path.
    worked_at: Moment,
}

impl Lifetime {
    /// The lifetime of a new worker. Limits are jittered by its number, so that a pool is not replaced at once.
    pub(crate) fn new(now: Moment, pool: &Pool, generation: u32, number: u32) -> Self {
        // The golden ratio spreads consecutive numbers over the whole range: 0 to 255 of 2,560, a tenth.
        let part = number.wrapping_mul(0x9e37_79b9) >> 24;
        let ages_at = pool.max_age.map_or(Moment::NEVER, |age| now.after(age - age * part / 2560));
        let requests = pool.max_requests.unwrap_or(0);
        let less = (u64::from(requests) * u64::from(part) / 2560) as u32;
        Self {
            generation,
            reason: None,
            ages_at,
            requests_left: requests - less,
            leaves_by: None,
            idle: Some((now, 0)),
            worked_at: Moment::default(),
        }
    }

    /// Whether it gets no new work.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaves_by.is_some()
    }

    /// Why it is replaced.
    pub(super) fn why(&self) -> Cow<'static, str> {
        match self.reason {
            None => "its pool was reconfigured".into(),
            Some(RecycleReason::Age) => "max_age_sec is over".into(),
            Some(RecycleReason::Requests) => "it has served max_requests requests".into(),
            Some(RecycleReason::Memory(mib)) => format!("its processes hold {mib} MiB (recycle_memory_mb)").into(),
            Some(RecycleReason::Operator) => "requested by the operator".into(),
            Some(RecycleReason::Out) => "the operator has taken it out".into(),
            Some(RecycleReason::Idle) => "it has been idle for idle_stop_sec".into(),
            Some(RecycleReason::Room) => "it is idle, and workers hold more than max_workers_memory_mb".into(),
            Some(RecycleReason::Asked) => {
                "it was asked server/discover, so it cannot serve sessions of earlier versions".into()
            }
        }
    }

    /// The generation of its command.
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Why it is to be replaced, unless its command is the reason.
    pub(super) fn recycle_reason(&self) -> Option<RecycleReason> {
        self.reason
    }

    /// When it reaches its maximum age.
    pub(super) fn ages_at(&self) -> Moment {
        self.ages_at
    }

    /// When it ends at the latest, if it gets no new work.
    pub(super) fn leaves_by(&self) -> Option<Moment> {
        self.leaves_by
    }

    /// It is to be replaced for this reason, unless there is one already.
    pub(super) fn recycle(&mut self, reason: RecycleReason) {
        self.reason.get_or_insert(reason);
    }

    /// The operator takes it out.
    pub(super) fn take_out(&mut self) {
        self.reason = Some(RecycleReason::Out);
    }

    /// The operator has it stopped.
    pub(super) fn end_for_operator(&mut self) {
        self.reason = Some(RecycleReason::Operator);
    }

    /// It gets no new work, and ends at this moment at the latest.
    pub(super) fn leave(&mut self, by: Moment) {
        self.leaves_by = Some(by);
    }

    /// Since when nobody needs it, and how many bytes it had been sent then, as of the last look.
    pub(super) fn idle(&self) -> Option<(Moment, u64)> {
        self.idle
    }

    /// It was looked at again.
    pub(super) fn note_idle(&mut self, idle: Option<(Moment, u64)>) {
        self.idle = idle;
    }

    /// When some of its work was last over, other than by an answer on the fast path.
    pub(super) fn worked_at(&self) -> Moment {
        self.worked_at
    }

    /// Some of its work is over.
    pub(super) fn note_work(&mut self, now: Moment) {
        self.worked_at = now;
    }

    /// It gets a request. Returns whether that is the last one that it may get.
    #[inline(always)]
    pub(super) fn count_request(&mut self) -> bool {
        let is_last = self.requests_left == 1;
        self.requests_left = self.requests_left.saturating_sub(1);
        if is_last {
            self.recycle(RecycleReason::Requests);
        }
        is_last
    }

    /// Other limits hold for it from now on, as from its start.
    pub(super) fn limit(&mut self, started: Moment, pool: &Pool, number: u32) {
        let limits = Self::new(started, pool, self.generation, number);
        let Self { reason, leaves_by, idle, worked_at, .. } = *self;
        *self = Self { reason, leaves_by, idle, worked_at, ..limits };
    }
}
