//! What the bus must have counted, and which errors it must have sent.

use crate::bus::Bus;
use crate::bus::report::Reason;
use crate::line::Party;

/// Reasons for losing a single line or a single request: the model predicts each of them.
const FORESEEN: [Reason; 28] = [
    Reason::NoWorker,
    Reason::SessionLimit,
    Reason::PendingLimit,
    Reason::SessionDenied,
    Reason::IdTooLong,
    Reason::SessionIdTooLong,
    Reason::UnknownPool,
    Reason::UnknownId,
    Reason::LateAnswer,
    Reason::UnknownSession,
    Reason::SessionReused,
    Reason::Unroutable,
    Reason::UnknownRequest,
    Reason::PartialLine,
    Reason::ClientMalformed,
    Reason::ClientLineTooLong,
    Reason::WorkerMalformed,
    Reason::WorkerLineTooLong,
    Reason::Timeout,
    Reason::SessionLost,
    Reason::MethodDenied,
    Reason::WorkerAnswersTwice,
    Reason::ConnectionClosing,
    Reason::RequestLost,
    Reason::ShuttingDown,
    Reason::RequestDiscarded,
    Reason::ClientLeft,
    Reason::Cancelled,
];

/// An error reply: recipient, token of the request, and reason.
type Reply = (Party, String, &'static str);

/// What the bus must have counted, and the errors it must have sent.
pub(super) struct Counts {
    counts: Vec<u64>,
    /// Lines that were lost for one of several reasons: the client has sessions of one name in one pool.
    doubts: Vec<Vec<Reason>>,
    expected_replies: Vec<Reply>,
    seen_replies: Vec<Reply>,
    /// The reason for refusing the next dropped request.
    refused_for: Option<Reason>,
}

impl Counts {
    pub(super) fn new() -> Self {
        Self {
            counts: vec![0; Reason::ALL.len()],
            doubts: Vec::new(),
            expected_replies: Vec::new(),
            seen_replies: Vec::new(),
            refused_for: None,
        }
    }

    pub(super) fn count(&mut self, reason: Reason) {
        self.counts[reason as usize] += 1;
    }

    /// Something is counted for one of these reasons.
    pub(super) fn count_one_of(&mut self, reasons: Vec<Reason>) {
        self.doubts.push(reasons);
    }

    /// The next dropped request is refused for this reason, if any.
    pub(super) fn refuses_next(&mut self, reason: Option<Reason>) {
        self.refused_for = reason;
    }

    /// The reason for refusing the request dropped now, if the bus has given it.
    pub(super) fn take_refusal(&mut self) -> Option<Reason> {
        self.refused_for.take()
    }

    pub(super) fn expect_reply(&mut self, to: Party, token: String, reason: &'static str) {
        self.expected_replies.push((to, token, reason));
    }

    pub(super) fn see_reply(&mut self, to: Party, token: String, reason: &'static str) {
        self.seen_replies.push((to, token, reason));
    }

    /// Compares the error replies of a step.
    pub(super) fn check_replies(&mut self) {
        assert_eq!(self.seen_replies, self.expected_replies, "error replies");
        self.seen_replies.clear();
        self.expected_replies.clear();
    }

    /// Compares what was counted.
    pub(super) fn check_counts(&mut self, bus: &Bus) {
        self.settle_doubts(bus);
        for reason in FORESEEN {
            assert_eq!(bus.view().count(reason), self.counts[reason as usize], "{}", reason.name());
        }
    }

    /// Finds for each line that was lost for one of several reasons one that the bus has counted.
    fn settle_doubts(&mut self, bus: &Bus) {
        let doubts = std::mem::take(&mut self.doubts);
        let left = |reason: Reason| bus.view().count(reason).saturating_sub(self.counts[reason as usize]) as usize;
        let mut chosen: Vec<Option<Reason>> = vec![None; doubts.len()];
        for at in 0..doubts.len() {
            // A line whose reason is used up may take another one.
            let mut tried: Vec<Reason> = Vec::new();
            let mut ways = vec![(at, Vec::new())];
            while let Some((doubt, way)) = ways.pop() {
                let open = doubts[doubt]
                    .iter()
                    .copied()
                    .find(|reason| chosen.iter().flatten().filter(|chosen| *chosen == reason).count() < left(*reason));
                if open.is_some() {
                    chosen[doubt] = open;
                    way.into_iter().for_each(|(at, reason): (usize, Reason)| chosen[at] = Some(reason));
                    break;
                }
                for reason in doubts[doubt].iter().copied() {
                    if tried.contains(&reason) {
                        continue;
                    }
                    tried.push(reason);
                    for other in (0..chosen.len()).filter(|other| chosen[*other] == Some(reason)) {
                        let mut way = way.clone();
                        way.push((doubt, reason));
                        ways.push((other, way));
                    }
                }
            }
        }
        for (doubt, chosen) in doubts.iter().zip(chosen) {
            self.count(chosen.unwrap_or(doubt[0]));
        }
    }
}
