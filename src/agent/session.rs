//! A session: what is remembered of one conversation. Pure.
//!
//! The invariant: the history holds whole turns only, each a message of the user and the answer to it, in the order
//! in which they ended; a turn that failed, was cancelled or was refused leaves no trace in it.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::SystemTime;

use super::usage::Usage;

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

/// A conversation.
#[derive(Debug)]
pub struct Session {
    /// The client's working directory.
    pub cwd: Box<str>,
    /// The model of the next turn.
    pub model: Rc<str>,
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
    history: VecDeque<Exchange>,
    bytes: usize,
}

impl Session {
    /// An empty conversation.
    pub fn new(cwd: &str, model: Rc<str>, now: SystemTime) -> Self {
        Self {
            cwd: cwd.into(),
            model,
            title: None,
            updated: now,
            usage: None,
            turn: None,
            stored: 0,
            history: VecDeque::new(),
            bytes: 0,
        }
    }

    /// The turns, oldest first.
    pub fn history(&self) -> impl Iterator<Item = &Exchange> {
        self.history.iter()
    }

    /// Adds a turn that ended well, and forgets the oldest ones beyond `limit` bytes. The newest one always stays.
    pub fn remember(&mut self, exchange: Exchange, limit: usize) {
        self.bytes += exchange.user.len() + exchange.assistant.len();
        self.history.push_back(exchange);
        while self.bytes > limit && self.history.len() > 1 {
            if let Some(oldest) = self.history.pop_front() {
                self.bytes -= oldest.user.len() + oldest.assistant.len();
            }
        }
    }

    /// Puts another history in the place of this one.
    pub fn replace_history(&mut self, exchanges: Vec<Exchange>, limit: usize) {
        self.history.clear();
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

    proptest! {
        #[test]
        fn turns_stay_in_order_and_within_the_limit(sizes in proptest::collection::vec(0usize..40, 0..20), limit in 1usize..200) {
            let mut session = Session::new("/", "m".into(), SystemTime::UNIX_EPOCH);
            for (index, size) in sizes.iter().enumerate() {
                let user = format!("{index}:{}", "x".repeat(*size));
                session.remember(Exchange { user: user.into(), assistant: "a".into() }, limit);
                let kept: Vec<usize> = session.history()
                    .map(|turn| turn.user.split(':').next().unwrap().parse().unwrap()).collect();
                prop_assert_eq!(kept.last(), Some(&index));
                prop_assert!(kept.windows(2).all(|pair| pair[0] + 1 == pair[1]));
                let bytes: usize = session.history().map(|turn| turn.user.len() + turn.assistant.len()).sum();
                prop_assert_eq!(bytes, session.bytes);
                prop_assert!(bytes <= limit || kept.len() == 1);
            }
        }
    }
}
