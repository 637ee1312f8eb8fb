//! A session: what is remembered of one conversation. Pure.
//!
//! The invariant: the history holds whole turns only, each a message of the user and the answer to it, in the order
//! in which they ended. What the user said in turns since then that failed or were cancelled waits beside it, and
//! becomes part of the next message, so that "continue" has something to go on; what was refused leaves no trace.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::SystemTime;

use super::convert::join_user_messages;
use super::history::Choice;
use super::options::Chosen;
use super::usage::Usage;
use super::window::{USUAL_RATE, weight};

/// Memory of a session beside its texts, and of a message of it: estimates, in bytes.
const SESSION: usize = 512;
/// See [`SESSION`].
const MESSAGE: usize = 48;

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

/// What becomes of turns that are dropped from memory, from the least to the gravest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// The next prompt reads them again.
    Aside,
    /// They may be missing in the prompt that runs; the next one reads them again.
    LeftOut,
    /// Nobody has them any more.
    Lost,
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
    /// Whether a file that it has says what was chosen.
    pub is_choice_kept: bool,
    /// The model without vision of which its client was told that it gets no images.
    pub told_blind: Option<Rc<str>>,
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
    /// Whether its file has turns that are not in memory: the next prompt has it read.
    pub is_partial: bool,
    /// Whether there are turns in memory that could not be stored.
    pub is_unsaved: bool,
    /// Whether its client knows what `usage_update` is.
    pub knows_usage_updates: bool,
    /// The gravest thing that its owner was told of turns that were dropped.
    pub told: Fate,
    history: VecDeque<Exchange>,
    /// So many of the oldest turns are not sent any more.
    left_out: usize,
    /// So many of those were dropped from memory.
    dropped_left_out: usize,
    bytes: usize,
    /// Messages of the user that have no answer.
    unanswered: VecDeque<Rc<str>>,
    unanswered_bytes: usize,
}

impl Session {
    /// An empty conversation.
    pub fn new(cwd: &str, model: Rc<str>, now: SystemTime) -> Self {
        Self {
            cwd: cwd.into(),
            model,
            chosen: Chosen::default(),
            is_choice_kept: true,
            told_blind: None,
            title: None,
            updated: now,
            usage: None,
            turn: None,
            stored: 0,
            rate: USUAL_RATE,
            is_partial: false,
            is_unsaved: false,
            knows_usage_updates: true,
            told: Fate::Aside,
            history: VecDeque::new(),
            left_out: 0,
            dropped_left_out: 0,
            bytes: 0,
            unanswered: VecDeque::new(),
            unanswered_bytes: 0,
        }
    }

    /// What holds for its next turn.
    pub fn choice(&self) -> Choice {
        Choice { model: self.model.to_string(), options: self.chosen.clone() }
    }

    /// Bytes of memory that it takes, about.
    pub fn memory(&self) -> usize {
        let words = self.cwd.len() + self.model.len() + self.title.as_ref().map_or(0, |title| title.len());
        let messages = 2 * self.history.len() + self.unanswered.len();
        SESSION + words + self.bytes + self.unanswered_bytes + MESSAGE * messages
    }

    /// Whether there is anything that [`Self::forget`] would drop.
    pub fn can_forget(&self) -> bool {
        match self.turn {
            None => !self.history.is_empty() || !self.unanswered.is_empty(),
            Some(_) => self.history.len() > 1,
        }
    }

    /// Drops the oldest turns, and then the oldest messages without an answer, until `excess` bytes are free or
    /// nothing is left; while a turn runs the newest one stays. Says how many bytes became free, and what becomes of
    /// the turns.
    pub fn forget(&mut self, excess: usize) -> (usize, Fate) {
        let is_running = self.turn.is_some();
        let mut freed = 0;
        let mut fate = Fate::Aside;
        while freed < excess && self.history.len() > usize::from(is_running) {
            let Some(oldest) = self.history.pop_front() else { break };
            let bytes = oldest.user.len() + oldest.assistant.len();
            self.bytes -= bytes;
            freed += bytes + 2 * MESSAGE;
            self.is_partial = true;
            // Nobody misses what is not sent any more.
            if self.left_out > 0 {
                self.left_out -= 1;
                self.dropped_left_out += 1;
                continue;
            }
            fate = match (self.stored == 0 || self.is_unsaved, is_running) {
                (true, _) => Fate::Lost,
                (false, true) => Fate::LeftOut,
                (false, false) => fate,
            };
        }
        while freed < excess && !is_running {
            let Some(oldest) = self.unanswered.pop_front() else { break };
            self.unanswered_bytes -= oldest.len();
            freed += oldest.len() + MESSAGE;
            fate = Fate::Lost;
        }
        if self.history.is_empty() {
            self.history.shrink_to_fit();
        }
        (freed, fate)
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
        self.unanswered_bytes = self.unanswered.iter().map(|message| message.len()).sum();
        while self.unanswered.len() > 1 && self.unanswered_bytes > limit {
            if let Some(oldest) = self.unanswered.pop_front() {
                self.unanswered_bytes -= oldest.len();
            }
        }
    }

    /// What had no answer has one now, or was refused.
    pub fn settle(&mut self) {
        self.unanswered.clear();
        self.unanswered_bytes = 0;
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

    /// Puts what its file says in the place of a history of which turns were dropped from memory. What was left out of
    /// what is sent stays so.
    pub fn restore_history(&mut self, exchanges: Vec<Exchange>, limit: usize) {
        let left_out = self.left_out + self.dropped_left_out;
        self.replace_history(exchanges, limit);
        self.left_out = left_out.min(self.history.len());
    }

    /// Puts another history in the place of this one.
    pub fn replace_history(&mut self, exchanges: Vec<Exchange>, limit: usize) {
        self.history.clear();
        self.left_out = 0;
        self.dropped_left_out = 0;
        self.bytes = 0;
        self.is_partial = false;
        self.is_unsaved = false;
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

    fn with_turns(texts: &[&str]) -> Session {
        let mut session = Session::new("/", "m".into(), SystemTime::UNIX_EPOCH);
        for text in texts {
            session.remember(Exchange { user: (*text).into(), assistant: (*text).into() }, usize::MAX);
        }
        session
    }

    fn kept(session: &Session) -> Vec<&str> {
        session.sent().map(|turn| &*turn.user).collect()
    }

    #[test]
    fn the_oldest_turns_are_dropped_first_and_what_becomes_of_them_is_known() {
        let mut session = with_turns(&["a", "b", "c", "d"]);
        session.leave("e".into(), 100);
        session.stored = 9;
        let before = session.memory();
        let (freed, fate) = session.forget(1);
        assert_eq!((before - freed, fate, kept(&session)), (session.memory(), Fate::Aside, vec!["b", "c", "d"]));
        assert!(session.is_partial, "they are in the file");
        session.turn = Some(1);
        assert_eq!((session.forget(usize::MAX).1, kept(&session)), (Fate::LeftOut, vec!["d"]));
        assert!(!session.can_forget(), "the newest turn of a prompt that runs stays");
        session.turn = None;
        let before = session.memory();
        let (freed, fate) = session.forget(usize::MAX);
        assert_eq!((before - freed, fate), (session.memory(), Fate::Lost), "no file has what has no answer");
        assert!(kept(&session).is_empty() && !session.can_forget());

        // What is not sent any more is missed by nobody, and is not sent when it is read again either.
        let mut session = with_turns(&["a", "b", "c"]);
        assert_eq!(session.leave_out(2), 2);
        assert_eq!((session.forget(1).1, kept(&session)), (Fate::Aside, vec!["c"]));
        let read = with_turns(&["a", "b", "c", "d"]);
        session.restore_history(read.history.into(), usize::MAX);
        assert_eq!(kept(&session), ["c", "d"]);

        for (stored, is_unsaved) in [(0, false), (9, true)] {
            let mut session = with_turns(&["a", "b"]);
            (session.stored, session.is_unsaved) = (stored, is_unsaved);
            assert_eq!(session.forget(1).1, Fate::Lost);
        }
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
