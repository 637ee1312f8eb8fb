//! The open sessions: which there are, which were not used for long, and how much memory they hold. Pure.
//!
//! A session is changed through [`Sessions::change`] alone. The invariants: the sum of what the sessions hold is
//! known; a session in which no turn runs stands in the order of use, and one that has turns to drop in the order in
//! which they are dropped, the longest unused first, those in which a turn runs last.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use super::session::{Fate, Session};

/// Sessions that have ended and are remembered, the last ones.
const ENDED: usize = 1000;

/// Why a session that was open here is not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client closed it.
    Closed,
    /// It was not used for too long.
    Expired,
}

/// The sessions of one process.
#[derive(Default)]
pub struct Sessions {
    places: HashMap<Rc<str>, Place>,
    /// Those in which no turn runs, by their last use.
    idle: BTreeMap<u64, Rc<str>>,
    /// Those that have turns to drop: whether one runs, and the last use.
    droppable: BTreeMap<(bool, u64), Rc<str>>,
    bytes: usize,
    uses: u64,
    ended: HashMap<Rc<str>, End>,
    /// The same, in the order in which they ended.
    ended_order: VecDeque<Rc<str>>,
}

struct Place {
    session: Session,
    /// Number and time of its last use.
    use_number: u64,
    used: SystemTime,
}

/// Where a place stands.
struct Standing {
    memory: usize,
    idle: Option<u64>,
    droppable: Option<(bool, u64)>,
}

impl Place {
    fn standing(&self) -> Standing {
        let is_running = self.session.turn.is_some();
        Standing {
            memory: self.session.memory(),
            idle: (!is_running).then_some(self.use_number),
            droppable: self.session.can_forget().then_some((is_running, self.use_number)),
        }
    }
}

impl Sessions {
    /// How many are open.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes of memory that they take, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// One of them.
    pub fn get(&self, session_id: &str) -> Option<&Session> {
        self.places.get(session_id).map(|place| &place.session)
    }

    /// One of them, and its name to keep.
    pub fn find(&self, session_id: &str) -> Option<(&Rc<str>, &Session)> {
        self.places.get_key_value(session_id).map(|(name, place)| (name, &place.session))
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&Rc<str>, &Session)> {
        self.places.iter().map(|(name, place)| (name, &place.session))
    }

    /// Opens a session, in the place of one of its name if there is one.
    pub fn insert(&mut self, session_id: Rc<str>, session: Session, now: SystemTime) {
        self.remove(&session_id);
        self.forget_end(&session_id);
        self.uses += 1;
        let place = Place { session, use_number: self.uses, used: now };
        self.stand(&session_id, &place.standing());
        self.places.insert(session_id, place);
    }

    /// Takes a session out, and remembers nothing of it.
    pub fn remove(&mut self, session_id: &str) -> Option<Session> {
        let place = self.places.remove(session_id)?;
        self.leave(&place.standing());
        Some(place.session)
    }

    /// Takes a session out, and remembers for a while that it was there.
    pub fn end(&mut self, session_id: &str, end: End) {
        let Some((name, place)) = self.places.remove_entry(session_id) else { return };
        self.leave(&place.standing());
        if self.ended_order.len() == ENDED
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
        self.ended_order.push_back(name.clone());
        self.ended.insert(name, end);
    }

    /// Why a session that is not open has ended, if it was open and that is not long ago.
    pub fn ended(&self, session_id: &str) -> Option<End> {
        self.ended.get(session_id).copied()
    }

    /// Forgets that a session was there.
    pub fn forget_end(&mut self, session_id: &str) {
        if self.ended.remove(session_id).is_some() {
            self.ended_order.retain(|name| **name != *session_id);
        }
    }

    /// Changes a session; nothing if there is none of this name.
    pub fn change<T>(&mut self, session_id: &str, change: impl FnOnce(&mut Session) -> T) -> Option<T> {
        self.change_place(session_id, |place| change(&mut place.session))
    }

    /// A session is being used.
    pub fn touch(&mut self, session_id: &str, now: SystemTime) {
        self.uses += 1;
        let use_number = self.uses;
        self.change_place(session_id, |place| (place.use_number, place.used) = (use_number, now));
    }

    fn change_place<T>(&mut self, session_id: &str, change: impl FnOnce(&mut Place) -> T) -> Option<T> {
        let name = self.places.get_key_value(session_id)?.0.clone();
        let place = self.places.get_mut(session_id)?;
        let before = place.standing();
        let outcome = change(place);
        let after = place.standing();
        self.leave(&before);
        self.stand(&name, &after);
        Some(outcome)
    }

    fn stand(&mut self, session_id: &Rc<str>, standing: &Standing) {
        self.bytes += standing.memory;
        if let Some(key) = standing.idle {
            self.idle.insert(key, session_id.clone());
        }
        if let Some(key) = standing.droppable {
            self.droppable.insert(key, session_id.clone());
        }
    }

    fn leave(&mut self, standing: &Standing) {
        self.bytes -= standing.memory;
        if let Some(key) = standing.idle {
            self.idle.remove(&key);
        }
        if let Some(key) = standing.droppable {
            self.droppable.remove(&key);
        }
    }

    /// Ends the sessions in which no turn runs and that were not used for `limit`, and names them.
    pub fn expire(&mut self, now: SystemTime, limit: Duration) -> Vec<Rc<str>> {
        let mut expired = Vec::new();
        while let Some((_, name)) = self.idle.first_key_value() {
            let unused = self.places.get(name).and_then(|place| now.duration_since(place.used).ok());
            if unused.is_none_or(|unused| unused < limit) {
                break;
            }
            let name = name.clone();
            self.end(&name, End::Expired);
            expired.push(name);
        }
        expired
    }

    /// Drops turns until all sessions together hold `most` bytes, or no turn is left that can be dropped. Names the
    /// sessions whose owners have to be told, once for each and each gravest fate.
    pub fn shrink(&mut self, most: usize) -> Vec<(Rc<str>, Fate)> {
        let mut told = Vec::new();
        while self.bytes > most {
            let Some((_, name)) = self.droppable.first_key_value() else { break };
            let (name, excess) = (name.clone(), self.bytes - most);
            let news = self.change(&name, |session| {
                let (_, fate) = session.forget(excess);
                let is_news = fate > session.told;
                session.told = session.told.max(fate);
                is_news.then_some(fate)
            });
            told.extend(news.flatten().map(|fate| (name, fate)));
        }
        told
    }

    /// Every relation that must hold between two calls. For tests.
    ///
    /// # Panics
    /// If one does not.
    pub fn check_invariants(&self) {
        let standings: Vec<Standing> = self.places.values().map(Place::standing).collect();
        assert_eq!(self.bytes, standings.iter().map(|standing| standing.memory).sum::<usize>());
        assert_eq!(self.idle.len(), standings.iter().filter(|standing| standing.idle.is_some()).count());
        assert_eq!(self.droppable.len(), standings.iter().filter(|standing| standing.droppable.is_some()).count());
        for (key, name) in &self.idle {
            assert_eq!(self.places[name].standing().idle, Some(*key));
        }
        for (key, name) in &self.droppable {
            assert_eq!(self.places[name].standing().droppable, Some(*key));
        }
        assert!(self.ended_order.iter().all(|name| self.ended.contains_key(name) && !self.places.contains_key(name)));
        assert!(self.ended.len() == self.ended_order.len() && self.ended.len() <= ENDED);
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::Exchange;
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn open(sessions: &mut Sessions, name: &str, seconds: u64) {
        sessions.insert(name.into(), Session::new("/", "m".into(), at(seconds)), at(seconds));
    }

    fn say(sessions: &mut Sessions, name: &str, length: usize) {
        let exchange = Exchange { user: "u".repeat(length).into(), assistant: "a".into() };
        sessions.change(name, |session| session.remember(exchange, usize::MAX)).unwrap();
    }

    fn turns(sessions: &Sessions, name: &str) -> usize {
        sessions.get(name).unwrap().sent().count()
    }

    #[test]
    fn who_is_not_used_ends_but_for_those_in_which_a_turn_runs() {
        let mut sessions = Sessions::default();
        for (name, seconds) in [("a", 0), ("b", 1), ("c", 2), ("d", 3)] {
            open(&mut sessions, name, seconds);
        }
        sessions.touch("a", at(5));
        sessions.change("b", |session| session.turn = Some(1));
        let names = |expired: Vec<Rc<str>>| expired.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(sessions.expire(at(12), Duration::from_secs(10))), ["c"]);
        assert_eq!((sessions.ended("c"), sessions.ended("a")), (Some(End::Expired), None));
        // A clock that was set back ends nobody.
        assert!(sessions.expire(at(0), Duration::from_secs(10)).is_empty());
        assert_eq!(names(sessions.expire(at(99), Duration::from_secs(10))), ["d", "a"]);
        sessions.change("b", |session| session.turn = None);
        assert_eq!(names(sessions.expire(at(99), Duration::from_secs(10))), ["b"]);
        open(&mut sessions, "a", 99);
        assert_eq!(sessions.ended("a"), None, "it is open again");
        sessions.check_invariants();
    }

    #[test]
    fn turns_of_the_longest_unused_session_go_first_and_those_of_running_ones_last() {
        let mut sessions = Sessions::default();
        for name in ["a", "b", "c"] {
            open(&mut sessions, name, 0);
            (0..3).for_each(|_| say(&mut sessions, name, 1000));
        }
        sessions.touch("b", at(1));
        sessions.change("a", |session| session.turn = Some(1));
        let all = sessions.bytes();
        assert_eq!(sessions.shrink(all), [], "nothing is too much");
        assert_eq!(sessions.shrink(all - 1), [("c".into(), Fate::Lost)]);
        assert_eq!([turns(&sessions, "a"), turns(&sessions, "b"), turns(&sessions, "c")], [3, 3, 2]);
        assert_eq!(sessions.shrink(all - 3500), [("b".into(), Fate::Lost)], "who was told is not told again");
        assert_eq!([turns(&sessions, "a"), turns(&sessions, "b"), turns(&sessions, "c")], [3, 2, 0]);
        assert_eq!(sessions.shrink(0), [("a".into(), Fate::Lost)]);
        assert_eq!([turns(&sessions, "a"), turns(&sessions, "b"), turns(&sessions, "c")], [1, 0, 0]);
        sessions.check_invariants();
    }

    #[test]
    fn the_end_of_few_sessions_is_remembered() {
        let mut sessions = Sessions::default();
        for number in 0..=ENDED {
            open(&mut sessions, &number.to_string(), 0);
            sessions.end(&number.to_string(), End::Closed);
        }
        assert_eq!((sessions.ended("0"), sessions.ended("1")), (None, Some(End::Closed)));
        sessions.forget_end("1");
        assert_eq!(sessions.ended("1"), None);
        sessions.check_invariants();
    }

    proptest! {
        #[test]
        fn the_books_are_right_whatever_happens(steps in proptest::collection::vec((0u8..9, 0usize..5, 0usize..3000), 1..200)) {
            let mut sessions = Sessions::default();
            for (index, (step, slot, size)) in steps.into_iter().enumerate() {
                let (name, now) = (slot.to_string(), index as u64);
                match step {
                    0 => open(&mut sessions, &name, now),
                    1 => sessions.end(&name, End::Closed),
                    2 => drop(sessions.remove(&name)),
                    3 => sessions.touch(&name, at(now)),
                    4 => drop(sessions.change(&name, |session| session.turn = session.turn.xor(Some(1)))),
                    5 => drop(sessions.change(&name, |session| session.leave("x".repeat(size).into(), 2000))),
                    6 => drop(sessions.expire(at(now), Duration::from_secs(20))),
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
