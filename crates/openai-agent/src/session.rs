//! What is remembered of conversations: a session, and all open sessions. Pure.
//!
//! The invariants of a session: the history holds whole turns only, each a user message and its answer, in the order in
//! which they ended. User messages of later turns that failed or were cancelled are kept beside it, and become part of
//! the next message, so that "continue" has a context; a refused message leaves no trace.
//!
//! Of all sessions: they change only through [`Sessions::change`], so that their total size is known.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::SystemTime;

use super::chunk::Usage;
use super::convert::join_user_messages;
use super::dialect::weight;

/// Memory of a session beyond its texts, and of one of its messages: estimates, in bytes.
const SESSION: usize = 512;
/// See [`SESSION`].
const MESSAGE: usize = 48;

/// Identifies one run of a prompt; never reused.
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
    /// Its weight in the model's context, in bytes of text.
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
    /// The model that has refused images of earlier turns: it gets none.
    pub blind: Option<Rc<str>>,
    /// First words of the first prompt.
    pub title: Option<Box<str>>,
    /// When it last changed.
    pub updated: SystemTime,
    /// Sum of the counts of all its turns.
    pub usage: Option<Usage>,
    /// The running turn, if any.
    pub turn: Option<TurnId>,
    /// Whether its client understands `usage_update`.
    pub knows_usage_updates: bool,
    /// Whether the log already says that turns were dropped from memory.
    is_reported: bool,
    history: VecDeque<Exchange>,
    /// Number of oldest turns that are no longer sent.
    left_out: usize,
    /// User messages without an answer.
    unanswered: VecDeque<Rc<str>>,
    /// Bytes of all messages.
    bytes: usize,
}

impl Session {
    /// An empty conversation.
    pub fn new(cwd: &str, model: Rc<str>, now: SystemTime) -> Self {
        Self {
            cwd: cwd.into(),
            model,
            blind: None,
            title: None,
            updated: now,
            usage: None,
            turn: None,
            knows_usage_updates: true,
            is_reported: false,
            history: VecDeque::new(),
            left_out: 0,
            unanswered: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Its memory in bytes, estimated.
    fn memory(&self) -> usize {
        let words = self.cwd.len() + self.model.len() + self.title.as_ref().map_or(0, |title| title.len());
        SESSION + words + self.bytes + MESSAGE * (2 * self.history.len() + self.unanswered.len())
    }

    /// Whether [`Self::forget`] would drop anything: while a turn runs, the newest one before it stays.
    fn can_forget(&self) -> bool {
        let is_busy = self.turn.is_some();
        self.history.len() > usize::from(is_busy) || (!is_busy && !self.unanswered.is_empty())
    }

    /// Drops the oldest turns, and then the oldest unanswered messages, until `excess` bytes are free or nothing is
    /// left.
    fn forget(&mut self, excess: usize) {
        let most = self.memory().saturating_sub(excess);
        while self.memory() > most && self.can_forget() {
            if !self.drop_oldest_turn() {
                self.drop_oldest_unanswered();
            }
        }
    }

    fn drop_oldest_turn(&mut self) -> bool {
        let Some(oldest) = self.history.pop_front() else { return false };
        self.bytes -= oldest.user.len() + oldest.assistant.len();
        self.left_out = self.left_out.saturating_sub(1);
        true
    }

    fn drop_oldest_unanswered(&mut self) {
        self.bytes -= self.unanswered.pop_front().map_or(0, |oldest| oldest.len());
    }

    /// The message to send for the user's new text, preceded by the unanswered messages. A repeated text is sent once.
    pub fn message(&self, own: &Rc<str>) -> Rc<str> {
        let before = self.unanswered.iter().filter(|message| *message != own);
        if self.unanswered.is_empty() {
            own.clone()
        } else {
            join_user_messages(before.chain([own]).map(|message| &**message)).into()
        }
    }

    /// Keeps a user message that has no answer. Beyond `limit` bytes the oldest of them are dropped.
    pub fn leave(&mut self, own: Rc<str>, limit: usize) {
        if let Some(at) = self.unanswered.iter().position(|message| *message == own) {
            self.unanswered.remove(at);
            self.bytes -= own.len();
        }
        self.bytes += own.len();
        self.unanswered.push_back(own);
        let bytes = |unanswered: &VecDeque<Rc<str>>| unanswered.iter().map(|message| message.len()).sum::<usize>();
        while self.unanswered.len() > 1 && bytes(&self.unanswered) > limit {
            self.drop_oldest_unanswered();
        }
    }

    /// Clears the unanswered messages: they are answered now, or were refused.
    pub fn settle(&mut self) {
        while !self.unanswered.is_empty() {
            self.drop_oldest_unanswered();
        }
    }

    /// The turns to send, oldest first.
    pub fn sent(&self) -> impl Iterator<Item = &Exchange> {
        self.history.iter().skip(self.left_out)
    }

    /// Stops sending the oldest turns, until the weight of the rest is at most `most` bytes. Returns how many were left
    /// out.
    pub fn leave_out(&mut self, most: usize) -> usize {
        let before = self.left_out;
        let mut left: usize = self.sent().map(Exchange::weight).sum();
        while left > most && self.left_out < self.history.len() {
            left -= self.history[self.left_out].weight();
            self.left_out += 1;
        }
        self.left_out - before
    }

    /// Adds a turn that ended well, and drops the oldest ones beyond `limit` bytes. The newest one always stays.
    pub fn remember(&mut self, exchange: Exchange, limit: usize) {
        self.bytes += exchange.user.len() + exchange.assistant.len();
        self.history.push_back(exchange);
        while self.bytes > limit && self.history.len() > 1 {
            self.drop_oldest_turn();
        }
    }

    /// Adds the counts of a turn to the session's.
    pub fn count(&mut self, usage: &Usage) {
        self.usage.get_or_insert_default().add(usage);
    }
}

/// The sessions of one process.
#[derive(Default)]
pub struct Sessions {
    places: HashMap<Rc<str>, Place>,
    bytes: usize,
    uses: u64,
}

struct Place {
    session: Session,
    /// Sequence number of its last use.
    used: u64,
}

impl Sessions {
    /// Number of open sessions.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// Their memory in bytes, estimated.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The session with this name.
    pub fn get(&self, session_id: &str) -> Option<&Session> {
        self.places.get(session_id).map(|place| &place.session)
    }

    /// The session with this name, and the name as a shared string.
    pub fn find(&self, session_id: &str) -> Option<(&Rc<str>, &Session)> {
        self.places.get_key_value(session_id).map(|(name, place)| (name, &place.session))
    }

    /// All sessions, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&Rc<str>, &Session)> {
        self.places.iter().map(|(name, place)| (name, &place.session))
    }

    /// The least recently used session without a running turn.
    pub fn least_recently_used(&self) -> Option<Rc<str>> {
        let idle = self.places.iter().filter(|(_, place)| place.session.turn.is_none());
        idle.min_by_key(|(_, place)| place.used).map(|(name, _)| name.clone())
    }

    /// Opens a session; it replaces one of the same name.
    pub fn insert(&mut self, session_id: Rc<str>, session: Session) {
        self.remove(&session_id);
        self.uses += 1;
        self.bytes += session.memory();
        self.places.insert(session_id, Place { session, used: self.uses });
    }

    /// Takes a session out.
    pub fn remove(&mut self, session_id: &str) {
        self.bytes -= self.places.remove(session_id).map_or(0, |place| place.session.memory());
    }

    /// Changes a session; `None` if there is none with this name.
    pub fn change<T>(&mut self, session_id: &str, change: impl FnOnce(&mut Session) -> T) -> Option<T> {
        let session = &mut self.places.get_mut(session_id)?.session;
        let before = session.memory();
        let outcome = change(session);
        self.bytes = self.bytes - before + session.memory();
        Some(outcome)
    }

    /// Marks a session as used.
    pub fn touch(&mut self, session_id: &str) {
        self.uses += 1;
        if let Some(place) = self.places.get_mut(session_id) {
            place.used = self.uses;
        }
    }

    /// Drops turns until all sessions together hold `most` bytes, or no turn can be dropped: those of the least
    /// recently used session first, those of sessions with a running turn last. Returns the sessions not logged before.
    pub fn shrink(&mut self, most: usize) -> Vec<Rc<str>> {
        let mut ended = Vec::new();
        while self.bytes > most {
            let droppable = self.places.iter().filter(|(_, place)| place.session.can_forget());
            let first = droppable.min_by_key(|(_, place)| (place.session.turn.is_some(), place.used));
            let Some((name, _)) = first else { break };
            let (name, excess) = (name.clone(), self.bytes - most);
            let was_reported = self.change(&name, |session| {
                session.forget(excess);
                std::mem::replace(&mut session.is_reported, true)
            });
            ended.extend((was_reported == Some(false)).then_some(name));
        }
        ended
    }

    /// Checks every relation that must hold between two calls. For tests.
    ///
    /// # Panics
    /// If one does not hold.
    #[cfg(test)]
    pub fn check_invariants(&self) {
        assert_eq!(self.bytes, self.iter().map(|(_, session)| session.memory()).sum::<usize>());
        for (_, session) in self.iter() {
            let turns = session.history.iter().map(|turn| turn.user.len() + turn.assistant.len());
            let bytes = turns.chain(session.unanswered.iter().map(|message| message.len()));
            assert_eq!(session.bytes, bytes.sum::<usize>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_oldest_turns_are_left_out_of_requests_for_good() {
        let mut session = Session::new("/", "m".into(), SystemTime::UNIX_EPOCH);
        let sent = |session: &Session| session.sent().map(|turn| turn.user.to_string()).collect::<Vec<_>>().join(" ");
        for user in ["a", "b", "c", "d"] {
            session.remember(Exchange { user: user.into(), assistant: "123456789".into() }, 45);
        }
        assert_eq!(session.leave_out(40), 0);
        assert_eq!(session.leave_out(29), 2);
        assert_eq!(sent(&session), "c d");
        assert_eq!(session.leave_out(29), 0);
        // The oldest one is dropped for good: it was left out before.
        session.remember(Exchange { user: "e".into(), assistant: "123456789".into() }, 45);
        assert_eq!(sent(&session), "c d e");
        assert_eq!(session.leave_out(0), 3);
        assert_eq!(sent(&session), "");
    }

    #[test]
    fn an_unanswered_message_is_sent_with_the_next_one_and_only_once() {
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
    fn the_oldest_turns_are_dropped_first_and_while_one_runs_the_newest_stays() {
        let mut session = with_turns(&["a", "b", "c", "d"]);
        session.leave("e".into(), 100);
        session.forget(1);
        assert_eq!(kept(&session), ["b", "c", "d"]);
        session.turn = Some(1);
        session.forget(usize::MAX);
        assert_eq!(kept(&session), ["d"]);
        assert!(!session.can_forget(), "the newest turn of a prompt that runs stays");
        session.turn = None;
        session.forget(usize::MAX);
        assert!(kept(&session).is_empty() && !session.can_forget() && session.bytes == 0);
        // Turns that are no longer sent are dropped first.
        let mut session = with_turns(&["a", "b", "c"]);
        assert_eq!(session.leave_out(2), 2);
        session.forget(1);
        assert_eq!(kept(&session), ["c"]);
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

    fn open(sessions: &mut Sessions, name: &str) {
        sessions.insert(name.into(), Session::new("/", "m".into(), SystemTime::UNIX_EPOCH));
    }

    fn say(sessions: &mut Sessions, name: &str, length: usize) {
        let exchange = Exchange { user: "u".repeat(length).into(), assistant: "a".into() };
        sessions.change(name, |session| session.remember(exchange, usize::MAX)).unwrap();
    }

    fn turns(sessions: &Sessions, name: &str) -> usize {
        sessions.get(name).unwrap().sent().count()
    }

    #[test]
    fn turns_of_the_least_recently_used_session_go_first_and_those_of_running_ones_last() {
        let mut sessions = Sessions::default();
        for name in ["a", "b", "c"] {
            open(&mut sessions, name);
            (0..3).for_each(|_| say(&mut sessions, name, 1000));
        }
        sessions.touch("b");
        sessions.change("a", |session| session.turn = Some(1));
        let all = sessions.bytes();
        assert!(sessions.shrink(all).is_empty(), "nothing is too much");
        assert_eq!(sessions.least_recently_used().as_deref(), Some("c"), "a turn runs in the one before");
        assert_eq!(sessions.shrink(all - 1), ["c".into()]);
        assert_eq!([turns(&sessions, "a"), turns(&sessions, "b"), turns(&sessions, "c")], [3, 3, 2]);
        assert_eq!(sessions.shrink(all - 3500), ["b".into()], "it is returned once");
        assert_eq!([turns(&sessions, "a"), turns(&sessions, "b"), turns(&sessions, "c")], [3, 2, 0]);
        assert_eq!(sessions.shrink(0), ["a".into()]);
        assert_eq!([turns(&sessions, "a"), turns(&sessions, "b"), turns(&sessions, "c")], [1, 0, 0]);
        sessions.check_invariants();
    }

    proptest! {
        #[test]
        fn the_sums_are_right_whatever_happens(steps in proptest::collection::vec((0u8..9, 0usize..5, 0usize..3000), 1..200)) {
            let mut sessions = Sessions::default();
            for (step, slot, size) in steps {
                let name = slot.to_string();
                match step {
                    0 => open(&mut sessions, &name),
                    1 | 2 => sessions.remove(&name),
                    3 => sessions.touch(&name),
                    4 => drop(sessions.change(&name, |session| session.turn = session.turn.xor(Some(1)))),
                    5 => drop(sessions.change(&name, |session| session.leave("x".repeat(size).into(), 2000))),
                    6 => drop(sessions.change(&name, Session::settle)),
                    7 => {
                        sessions.shrink(size);
                        let fits = sessions.bytes() <= size;
                        prop_assert!(fits || sessions.iter().all(|(_, session)| !session.can_forget()));
                    }
                    _ if sessions.get(&name).is_some() => say(&mut sessions, &name, size),
                    _ => {}
                }
                sessions.check_invariants();
            }
        }
    }
}
