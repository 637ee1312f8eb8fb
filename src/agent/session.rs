//! A session: what is remembered of one conversation. Pure.
//!
//! The invariant: the history holds whole turns only, each a message of the user and the answer to it, in the order
//! in which they ended. What the user said in turns since then that failed or were cancelled waits beside it, and
//! becomes part of the next message, so that "continue" has something to go on; what was refused leaves no trace.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::SystemTime;

use super::convert::join_user_messages;
use super::options::Chosen;
use super::usage::Usage;
use super::window::{USUAL_RATE, weight};

/// Names one run of a prompt, for ever.
pub type TurnId = u64;

/// One turn of the conversation, as the JSON messages that are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// What the user said.
    pub user: Rc<str>,
    /// What the model answered.
    pub assistant: Rc<str>,
}

impl Exchange {
    /// What it counts for in the model's context, in bytes of text.
    pub fn weight(&self) -> usize {
        weight(&self.user) + weight(&self.assistant)
    }
}

/// A conversation.
#[derive(Debug)]
pub struct Session {
    /// The client's working directory.
    pub cwd: Box<str>,
    /// The model of the next turn.
    pub model: Rc<str>,
    /// What the client chose for its requests.
    pub chosen: Chosen,
    /// First words of the first prompt.
    pub title: Option<Box<str>>,
    /// When it last changed.
    pub updated: SystemTime,
    /// Sum of the counts of all its turns.
    pub usage: Option<Usage>,
    /// The turn that runs, if one does.
    pub turn: Option<TurnId>,
    /// Bytes of its file that are known to this process; 0 if there is none yet.
    pub stored: u64,
    /// Tokens for each byte of a request, as the last one told.
    pub rate: f64,
    history: VecDeque<Exchange>,
    /// So many of the oldest turns are not sent any more.
    left_out: usize,
    bytes: usize,
    /// Messages of the user that have no answer.
    unanswered: VecDeque<Rc<str>>,
}

impl Session {
    /// An empty conversation.
    pub fn new(cwd: &str, model: Rc<str>, now: SystemTime) -> Self {
        Self {
            cwd: cwd.into(),
            model,
            chosen: Chosen::default(),
            title: None,
            updated: now,
            usage: None,
            turn: None,
            stored: 0,
            rate: USUAL_RATE,
            history: VecDeque::new(),
            left_out: 0,
            bytes: 0,
            unanswered: VecDeque::new(),
        }
    }

    /// The message to send for what the user says now: with what has no answer before it. Who says the same again
    /// asks once.
    pub fn message(&self, own: &Rc<str>) -> Rc<str> {
        let before = self.unanswered.iter().filter(|message| *message != own);
        match self.unanswered.is_empty() {
            true => own.clone(),
            false => join_user_messages(before.chain([own]).map(|message| &**message)).into(),
        }
    }

    /// What the user said has no answer. Of such messages the oldest are forgotten beyond `limit` bytes.
    pub fn leave(&mut self, own: Rc<str>, limit: usize) {
        self.unanswered.retain(|message| *message != own);
        self.unanswered.push_back(own);
        while self.unanswered.len() > 1 && self.unanswered.iter().map(|message| message.len()).sum::<usize>() > limit {
            self.unanswered.pop_front();
        }
    }

    /// What had no answer has one now, or was refused.
    pub fn settle(&mut self) {
        self.unanswered.clear();
    }

    /// The turns that are sent, oldest first.
    pub fn sent(&self) -> impl Iterator<Item = &Exchange> {
        self.history.iter().skip(self.left_out)
    }

    /// Leaves so many of the oldest turns out of what is sent that at most `most` bytes are left of them, by their
    /// weight. Gives how many that were.
    pub fn leave_out(&mut self, most: usize) -> usize {
        let before = self.left_out;
        let mut left: usize = self.sent().map(Exchange::weight).sum();
        while left > most && self.left_out < self.history.len() {
            left -= self.history[self.left_out].weight();
            self.left_out += 1;
        }
        self.left_out - before
    }

    /// Adds a turn that ended well, and forgets the oldest ones beyond `limit` bytes. The newest one always stays.
    pub fn remember(&mut self, exchange: Exchange, limit: usize) {
        self.bytes += exchange.user.len() + exchange.assistant.len();
        self.history.push_back(exchange);
        while self.bytes > limit && self.history.len() > 1 {
            if let Some(oldest) = self.history.pop_front() {
                self.bytes -= oldest.user.len() + oldest.assistant.len();
                self.left_out = self.left_out.saturating_sub(1);
            }
        }
    }

    /// Puts another history in the place of this one.
    pub fn replace_history(&mut self, exchanges: Vec<Exchange>, limit: usize) {
        self.history.clear();
        self.left_out = 0;
        self.bytes = 0;
        for exchange in exchanges {
            self.remember(exchange, limit);
        }
    }

    /// Adds the counts of a turn to the session's.
    pub fn count(&mut self, usage: &Usage) -> Usage {
        match &mut self.usage {
            Some(sum) => sum.add(usage),
            none => *none = Some(*usage),
        }
        self.usage.unwrap_or(*usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_oldest_turns_are_left_out_of_what_is_sent_and_stay_so() {
        let mut session = Session::new("/", "m".into(), SystemTime::UNIX_EPOCH);
        let sent = |session: &Session| session.sent().map(|turn| turn.user.to_string()).collect::<Vec<_>>().join(" ");
        for user in ["a", "b", "c", "d"] {
            session.remember(Exchange { user: user.into(), assistant: "123456789".into() }, 45);
        }
        assert_eq!(session.leave_out(40), 0);
        assert_eq!(session.leave_out(29), 2);
        assert_eq!(sent(&session), "c d");
        assert_eq!(session.leave_out(29), 0);
        // The oldest one is forgotten for good: it was left out before.
        session.remember(Exchange { user: "e".into(), assistant: "123456789".into() }, 45);
        assert_eq!(sent(&session), "c d e");
        assert_eq!(session.leave_out(0), 3);
        assert_eq!(sent(&session), "");
    }

    #[test]
    fn what_has_no_answer_goes_with_the_next_message_and_once() {
        let message = |text: &str| Rc::<str>::from(format!("{{\"role\":\"user\",\"content\":\"{text}\"}}"));
        let mut session = Session::new("/", "m".into(), SystemTime::UNIX_EPOCH);
        assert_eq!(session.message(&message("a")), message("a"));
        session.leave(message("a"), 1000);
        assert_eq!(session.message(&message("a")), message("a"));
        assert_eq!(session.message(&message("b")), message("a\\n\\nb"));
        session.leave(message("b"), 1000);
        session.leave(message("a"), 1000);
        assert_eq!(session.message(&message("c")), message("b\\n\\na\\n\\nc"));
        session.leave(message("d"), 40);
        assert_eq!(session.message(&message("c")), message("d\\n\\nc"));
        session.settle();
        assert_eq!(session.message(&message("c")), message("c"));
    }

    proptest! {
        #[test]
        fn turns_stay_in_order_and_within_the_limit(sizes in proptest::collection::vec(0usize..40, 0..20), limit in 1usize..200) {
            let mut session = Session::new("/", "m".into(), SystemTime::UNIX_EPOCH);
            for (index, size) in sizes.iter().enumerate() {
                let user = format!("{index}:{}", "x".repeat(*size));
                session.remember(Exchange { user: user.into(), assistant: "a".into() }, limit);
                let kept: Vec<usize> = session.sent()
                    .map(|turn| turn.user.split(':').next().unwrap().parse().unwrap()).collect();
                prop_assert_eq!(kept.last(), Some(&index));
                prop_assert!(kept.windows(2).all(|pair| pair[0] + 1 == pair[1]));
                let bytes: usize = session.sent().map(|turn| turn.user.len() + turn.assistant.len()).sum();
                prop_assert_eq!(bytes, session.bytes);
                prop_assert!(bytes <= limit || kept.len() == 1);
            }
        }
    }
}
