//! The client's queued lines. Requests wait while too many are in flight; answers to the server never do, since a
//! request may depend on one. While a session starts, nothing else is sent, and nothing overtakes a held request.

use std::collections::VecDeque;

use super::message::{MessageKind, OutgoingMessage};

#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<OutgoingMessage>,
    bytes: usize,
}

impl Queue {
    pub(super) fn push(&mut self, message: OutgoingMessage) {
        self.bytes += message.line.len();
        self.waiting.push_back(message);
    }

    /// Bytes of all queued lines.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first line that may be sent: a request if `has_room`, and any line unless a session is just starting; while
    /// earlier requests are held, only what is about those that are not.
    pub(super) fn next(&mut self, has_room: bool, mut is_beginning: bool, is_holding: bool) -> Option<OutgoingMessage> {
        let mut may_go = |message: &OutgoingMessage| match message.kind {
            MessageKind::Response => true,
            MessageKind::Request { .. } | MessageKind::Other => {
                let may_go = has_room && !is_beginning && !is_holding;
                // Later lines have to wait, too.
                is_beginning |= !may_go && message.initializes();
                may_go
            }
            MessageKind::Cancel { .. } => !is_beginning,
            MessageKind::Initialized | MessageKind::Notification => !is_beginning && !is_holding,
        };
        let at = self.waiting.iter().position(&mut may_go)?;
        self.take(at)
    }

    /// Removes the request with this id.
    pub(super) fn cancel(&mut self, token: &[u8]) -> Option<OutgoingMessage> {
        let at = self.waiting.iter().position(|message| message.token() == Some(token))?;
        self.take(at)
    }

    /// Removes the requests that only their client could end. Returns their canonical ids.
    pub(super) fn take_listens(&mut self) -> Vec<Box<[u8]>> {
        let mut tokens = Vec::new();
        while let Some(at) = self.waiting.iter().position(OutgoingMessage::listens) {
            tokens.extend(self.take(at).and_then(|message| message.token().map(Box::from)));
        }
        tokens
    }

    /// Whether only requests are queued.
    pub(super) fn has_only_requests(&self) -> bool {
        self.waiting.iter().all(|message| matches!(message.kind, MessageKind::Request { .. } | MessageKind::Other))
    }

    /// Whether a line is queued that is no message with an id, and will be answered nevertheless.
    pub(super) fn has_unidentified(&self) -> bool {
        self.waiting.iter().any(|message| message.kind == MessageKind::Other)
    }

    fn take(&mut self, at: usize) -> Option<OutgoingMessage> {
        let message = self.waiting.remove(at)?;
        self.bytes -= message.line.len();
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIALIZE: &str = r#"{"id":0,"method":"initialize"}"#;
    const INITIALIZED: &str = r#"{"method":"notifications/initialized"}"#;
    const ONE: &str = r#"{"id":1,"method":"m"}"#;
    const TWO: &str = r#"{"id":2,"method":"m"}"#;
    const ANSWER: &str = r#"{"id":1,"result":{}}"#;
    const SAID: &str = r#"{"method":"notifications/x"}"#;

    fn queue(lines: &[&str]) -> Queue {
        let mut queue = Queue::default();
        lines.iter().for_each(|line| queue.push(OutgoingMessage::read(line.as_bytes())));
        queue
    }

    fn all(queue: &mut Queue, has_room: bool, is_beginning: bool) -> Vec<String> {
        let lines = std::iter::from_fn(|| queue.next(has_room, is_beginning, false));
        lines.map(|message| String::from_utf8(message.line).expect("text")).collect()
    }

    #[test]
    fn lines_are_sent_in_order_and_answers_wait_for_no_request() {
        let lines = [ONE, SAID, TWO, ANSWER];
        assert_eq!(all(&mut queue(&lines), true, false), lines);
        let mut crowded = queue(&lines);
        assert_eq!(all(&mut crowded, false, false), [SAID, ANSWER]);
        assert!(crowded.has_only_requests() && crowded.bytes() == ONE.len() + TWO.len());
        assert_eq!(all(&mut crowded, true, false), [ONE, TWO]);
        assert_eq!(crowded.bytes(), 0);
    }

    #[test]
    fn lines_after_initialize_wait_for_its_answer() {
        let mut queue = queue(&[INITIALIZED, ONE, ANSWER]);
        assert_eq!(all(&mut queue, true, true), [ANSWER]);
        assert_eq!(all(&mut queue, true, false), [INITIALIZED, ONE]);
        let mut crowded = self::queue(&[ONE, INITIALIZE, INITIALIZED]);
        assert_eq!(all(&mut crowded, false, false), Vec::<String>::new());
    }

    #[test]
    fn while_requests_are_held_only_what_is_about_others_is_sent() {
        let cancels = r#"{"method":"notifications/cancelled","params":{"requestId":9}}"#;
        let mut queue = queue(&[ONE, SAID, cancels, ANSWER]);
        let mut next = |is_holding| Some(String::from_utf8(queue.next(true, false, is_holding)?.line).expect("text"));
        assert_eq!(
            [next(true).as_deref(), next(true).as_deref(), next(true).as_deref()],
            [Some(cancels), Some(ANSWER), None]
        );
        assert_eq!([next(false).as_deref(), next(false).as_deref()], [Some(ONE), Some(SAID)]);
    }

    #[test]
    fn a_request_cancelled_in_the_queue_is_not_sent() {
        let mut queue = queue(&[ONE, TWO]);
        assert_eq!(queue.cancel(b"1").map(|message| message.line), Some(ONE.as_bytes().to_vec()));
        assert!(queue.cancel(b"1").is_none());
        assert_eq!(all(&mut queue, true, false), [TWO]);
    }
}
