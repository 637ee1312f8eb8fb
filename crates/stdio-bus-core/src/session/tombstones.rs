//! The remains of sessions: the user name under which each was created, so that it is loaded under no other after its
//! owner has left; and the sessions lost with their workers, so that their owners get an error when they name them.
//!
//! A user name is that of a client's token or certificate, or of a proxy's header ([`Names::owner`](crate::origin::Names::owner)). Sessions of
//! clients without one are not bound. The caller may keep the user names beyond a restart ([`View::session_users`](crate::View::session_users)):
//! without that the first client that loads a session afterwards gets it.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::index::PoolId;
use crate::origin::{NameAuthority, Owner};
use crate::peer::hash_of_name;

/// Maximum number of sessions remembered; beyond it the oldest one is dropped.
const MOST: usize = 16 * 1024;
/// Maximum number of such names remembered for one client; beyond it the oldest one is dropped.
const MAX_LOST: usize = 64;

/// A user name, and who vouches for it.
type User = (NameAuthority, Box<str>);

/// The user names that sessions were created or loaded under.
#[derive(Default)]
pub(crate) struct SessionUsers {
    /// User names, by pool and session.
    names: Vec<HashMap<Rc<[u8]>, User>>,
    /// The same sessions, the first one bound in front.
    oldest: VecDeque<(PoolId, Rc<[u8]>)>,
    /// How often they have changed.
    changes: u64,
}

impl SessionUsers {
    /// The session `session` of a pool was created or loaded under the user name `owner`. A user name is final.
    pub(crate) fn bind(&mut self, pool: PoolId, session: &[u8], owner: Owner<'_>) {
        if self.has(pool, session) {
            return;
        }
        if self.oldest.len() >= MOST
            && let Some((pool, oldest)) = self.oldest.pop_front()
        {
            self.names[pool.index()].remove(&oldest);
        }
        let session = self.insert(pool, session, owner);
        self.oldest.push_back((pool, session));
    }

    /// The same of an earlier process: it is older than all that are known, and is not bound if there is no room. Returns
    /// whether it is bound.
    pub(crate) fn bind_earlier(&mut self, pool: PoolId, session: &[u8], owner: Owner<'_>) -> bool {
        if self.has(pool, session) {
            return true;
        }
        if self.oldest.len() >= MOST {
            return false;
        }
        let session = self.insert(pool, session, owner);
        self.oldest.push_front((pool, session));
        true
    }

    fn has(&self, pool: PoolId, session: &[u8]) -> bool {
        self.names.get(pool.index()).is_some_and(|names| names.contains_key(session))
    }

    fn insert(&mut self, pool: PoolId, session: &[u8], owner: Owner<'_>) -> Rc<[u8]> {
        if self.names.len() <= pool.index() {
            self.names.resize_with(pool.index() + 1, HashMap::default);
        }
        self.changes += 1;
        let session: Rc<[u8]> = session.into();
        self.names[pool.index()].insert(Rc::clone(&session), (owner.vouches, owner.name.into()));
        session
    }

    /// A pool is removed, and another one may get its index.
    pub(crate) fn forget_pool(&mut self, pool: PoolId) {
        self.changes += 1;
        self.oldest.retain(|(of, _)| *of != pool);
        self.names.get_mut(pool.index()).into_iter().for_each(HashMap::clear);
    }

    /// How often they have changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// All of them, the first one bound in front: the pool, the session, and its user name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PoolId, &[u8], Owner<'_>)> {
        let owner = |pool: PoolId, session: &[u8]| Some(owned(self.names.get(pool.index())?.get(session)?));
        self.oldest.iter().filter_map(move |(pool, session)| Some((*pool, &**session, owner(*pool, session)?)))
    }

    /// Whether no session is bound.
    pub(crate) fn is_empty(&self) -> bool {
        self.oldest.is_empty()
    }

    /// Whether a session of a pool is bound to another user name.
    pub(super) fn keeps_from(&self, pool: PoolId, session: &[u8], owner: Option<Owner<'_>>) -> bool {
        let bound = self.names.get(pool.index()).and_then(|names| names.get(session));
        bound.is_some_and(|bound| Some(owned(bound)) != owner)
    }
}

fn owned((vouches, name): &User) -> Owner<'_> {
    Owner { vouches: *vouches, name }
}

/// Names of sessions that were lost with their workers, for the client that owned them. A name is kept as its hash: a
/// client that finds a collision fools only itself.
#[derive(Default)]
pub(crate) struct LostNames {
    names: VecDeque<u64>,
}

impl LostNames {
    pub(crate) const NONE: Self = Self { names: VecDeque::new() };

    /// A session of this name was lost with its worker.
    pub(crate) fn add(&mut self, name: &[u8]) {
        self.forget(name);
        if self.names.len() == MAX_LOST {
            self.names.pop_front();
        }
        self.names.push_back(hash_of_name(name));
    }

    /// Whether there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether the client owned a session of this name that is gone.
    pub(crate) fn has(&self, name: &[u8]) -> bool {
        !self.names.is_empty() && self.names.contains(&hash_of_name(name))
    }

    /// It has a session of this name again.
    pub(crate) fn forget(&mut self, name: &[u8]) {
        let hash = hash_of_name(name);
        self.names.retain(|lost| *lost != hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Owner<'_> = Owner { vouches: NameAuthority::Token, name: "alice" };
    const BOB: Owner<'_> = Owner { vouches: NameAuthority::Token, name: "bob" };

    #[test]
    fn a_session_is_bound_to_its_first_name_in_its_pool() {
        let mut session_users = SessionUsers::default();
        session_users.bind(PoolId::at(1), b"s", ALICE);
        session_users.bind(PoolId::at(1), b"s", BOB);
        assert!(!session_users.keeps_from(PoolId::at(1), b"s", Some(ALICE)));
        assert!(
            session_users.keeps_from(PoolId::at(1), b"s", Some(BOB))
                && session_users.keeps_from(PoolId::at(1), b"s", None)
        );
        for vouches in [NameAuthority::Certificate, NameAuthority::Proxy] {
            assert!(session_users.keeps_from(PoolId::at(1), b"s", Some(Owner { vouches, ..ALICE })), "another's alice");
        }
        assert!(
            !session_users.keeps_from(PoolId::at(0), b"s", None)
                && !session_users.keeps_from(PoolId::at(1), b"t", None)
        );
    }

    #[test]
    fn bonds_hold_in_a_later_process_that_is_given_them_and_each_change_is_counted() {
        let (mut session_users, mut later) = (SessionUsers::default(), SessionUsers::default());
        session_users.bind(PoolId::at(1), b"s", ALICE);
        session_users.bind(PoolId::at(0), b"t", BOB);
        session_users.bind(PoolId::at(0), b"t", BOB);
        assert_eq!(session_users.changes(), 2);
        session_users.iter().for_each(|(pool, session, owner)| later.bind(pool, session, owner));
        assert!(later.keeps_from(PoolId::at(1), b"s", Some(BOB)) && later.keeps_from(PoolId::at(0), b"t", None));
        session_users.forget_pool(PoolId::at(1));
        assert_eq!((session_users.changes(), session_users.iter().count()), (3, 1));
    }

    #[test]
    fn a_bond_of_an_earlier_process_is_the_oldest_and_takes_no_room_from_others() {
        let mut session_users = SessionUsers::default();
        (1..MOST).for_each(|number| session_users.bind(PoolId::at(0), &number.to_le_bytes(), ALICE));
        assert!(session_users.bind_earlier(PoolId::at(1), b"s", BOB));
        assert!(
            !session_users.bind_earlier(PoolId::at(1), b"t", BOB)
                && session_users.bind_earlier(PoolId::at(1), b"s", BOB)
        );
        assert_eq!(session_users.iter().next(), Some((PoolId::at(1), &b"s"[..], BOB)));
        session_users.bind(PoolId::at(0), b"new", ALICE);
        assert!(!session_users.keeps_from(PoolId::at(1), b"s", None), "it is the first one that goes");
        assert!(session_users.keeps_from(PoolId::at(0), &1_usize.to_le_bytes(), None));
    }

    #[test]
    fn the_oldest_bond_goes_when_there_are_too_many() {
        let mut session_users = SessionUsers::default();
        for number in 0..=MOST {
            session_users.bind(PoolId::at(0), number.to_string().as_bytes(), ALICE);
        }
        assert!(
            !session_users.keeps_from(PoolId::at(0), b"0", None) && session_users.keeps_from(PoolId::at(0), b"1", None)
        );
        assert_eq!((session_users.names[0].len(), session_users.oldest.len()), (MOST, MOST));
    }
}
