//! The close of a client: how and why, until when, and what is still read of it (`graceful_close.rs`).

use crate::message::Refusal;
use crate::peer::Moment;
use crate::report::Reason;

/// How and why a client is being closed, or waits for its last answers.
pub(crate) struct Closing {
    /// The reason, if it is.
    why: Option<Reason>,
    /// When that times out.
    deadline: Option<Moment>,
    /// When refusing began.
    since: Moment,
    /// Bytes received since then.
    bytes: usize,
    /// It is in the middle of a line that is not kept.
    skips: bool,
    /// It was silent before refusing began, and is read as long as workers run.
    awaits_workers: bool,
    /// The error that it gets for what it still sends.
    refusal: Option<Refusal>,
}

impl Closing {
    pub(super) const NONE: Self = Self {
        why: None,
        deadline: None,
        since: Moment(0),
        bytes: 0,
        skips: false,
        awaits_workers: false,
        refusal: None,
    };

    /// It begins, or continues faster, without a deadline. Returns the first reason that was given.
    pub(super) fn begin(&mut self, why: Reason) -> Reason {
        self.deadline = None;
        *self.why.get_or_insert(why)
    }

    /// What the client sends from now on is refused with this error.
    pub(crate) fn refuse(&mut self, now: Moment, why: Reason, refusal: Refusal) {
        self.why.get_or_insert(why);
        (self.since, self.refusal) = (now, Some(refusal));
    }

    /// It was silent when refusing began: as long as workers run, it is read on.
    pub(crate) fn await_workers(&mut self) {
        self.awaits_workers = true;
    }

    /// Whether it is read as long as workers run: nothing of it was refused yet.
    pub(crate) fn awaits_workers(&self) -> bool {
        self.awaits_workers && self.bytes == 0
    }

    /// Why it is closed, once it is.
    pub(crate) fn why(&self) -> Option<Reason> {
        self.why
    }

    /// The error for what it still sends, if that is refused.
    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    /// When refusing began.
    pub(crate) fn since(&self) -> Moment {
        self.since
    }

    /// When the client is closed, or its answers become errors, if that is limited.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    pub(crate) fn set_deadline(&mut self, deadline: Option<Moment>) {
        self.deadline = deadline;
    }

    /// There is still progress: the deadline is not before this.
    pub(crate) fn postpone(&mut self, to: Moment) {
        self.deadline = self.deadline.max(Some(to));
    }

    /// Counts refused bytes. Returns how many there were so far.
    pub(crate) fn count(&mut self, bytes: usize) -> usize {
        self.bytes += bytes;
        self.bytes
    }

    /// Whether the client is in the middle of a line that is not kept.
    pub(crate) fn skips_line(&self) -> bool {
        self.skips
    }

    /// The rest of a line is not kept, or it has ended.
    pub(crate) fn skip_line(&mut self, skips: bool) {
        self.skips = skips;
    }
}
