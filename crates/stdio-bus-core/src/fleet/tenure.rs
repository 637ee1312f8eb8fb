//! How long a worker stays: its command, its wear (age, requests, memory), and whether it gets no new work.

use alloc::borrow::Cow;

use crate::peer::Moment;
use crate::settings::Pool;

/// Why a worker is to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wear {
    /// It has reached `max_age_sec`.
    Age,
    /// It has got `max_requests`.
    Requests,
    /// Its processes hold this many MiB, more than `recycle_memory_mb`.
    Memory(u64),
    /// The operator wants it.
    Operator,
    /// It was asked `server/discover`, and may serve no clients of earlier versions any more.
    Asked,
}

/// The tenure of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tenure {
    /// The generation of its command.
    pub(in crate::fleet) generation: u32,
    /// Why it is to be replaced, unless its command is the reason.
    pub(in crate::fleet) worn: Option<Wear>,
    /// When it reaches its maximum age.
    pub(in crate::fleet) ages_at: Moment,
    /// Requests that it may get before it is replaced; 0 means no limit.
    pub(in crate::fleet) requests_left: u32,
    /// It gets no new work, and ends at this moment at the latest.
    pub(in crate::fleet) leaves_by: Option<Moment>,
}

impl Tenure {
    /// The tenure of a new worker. Limits are jittered by its number, so that a pool is not replaced at once.
    pub(crate) fn new(now: Moment, pool: &Pool, generation: u32, number: u32) -> Self {
        // The golden ratio spreads consecutive numbers over the whole range: 0 to 255 of 2,560, a tenth.
        let part = number.wrapping_mul(0x9e37_79b9) >> 24;
        let ages_at = pool.max_age.map_or(Moment::NEVER, |age| now.after(age - age * part / 2560));
        let requests = pool.max_requests.unwrap_or(0);
        let less = (u64::from(requests) * u64::from(part) / 2560) as u32;
        Self { generation, worn: None, ages_at, requests_left: requests - less, leaves_by: None }
    }

    /// Whether it gets no new work.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaves_by.is_some()
    }

    /// Why it is replaced.
    pub(super) fn why(&self) -> Cow<'static, str> {
        match self.worn {
            None => "its pool was reconfigured".into(),
            Some(Wear::Age) => "max_age_sec is over".into(),
            Some(Wear::Requests) => "it has got max_requests".into(),
            Some(Wear::Memory(mib)) => format!("its processes hold {mib} MiB (recycle_memory_mb)").into(),
            Some(Wear::Operator) => "the operator wants it".into(),
            Some(Wear::Asked) => "it was asked server/discover, and sessions need one that was not".into(),
        }
    }
}
