//! Under which name a session was made, so that it is loaded under no other, however its owner's connection has ended.
//!
//! A name is what a client's token or certificate stands for ([`Names::owner`](super::origin::Names::owner)). Clients
//! without a name make sessions that are bound to nobody. What is known is of this process: whoever loads a session
//! first after a restart has it.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;

use hashbrown::HashMap;

/// So many sessions are remembered; beyond them the one goes that was made first.
const MOST: usize = 16 * 1024;

/// See the top of the file.
#[derive(Default)]
pub(super) struct Bonds {
    /// The names of sessions, by pool and session.
    names: Vec<HashMap<Rc<[u8]>, Box<str>>>,
    /// The same sessions, the one that was bound first in front.
    oldest: VecDeque<(usize, Rc<[u8]>)>,
}

impl Bonds {
    /// The session `session` of a pool was made or loaded under `name`. One that is bound stays so.
    pub(super) fn bind(&mut self, pool: usize, session: &[u8], name: &str) {
        if self.names.len() <= pool {
            self.names.resize_with(pool + 1, HashMap::default);
        }
        if self.names[pool].contains_key(session) {
            return;
        }
        if self.oldest.len() >= MOST
            && let Some((pool, oldest)) = self.oldest.pop_front()
        {
            self.names[pool].remove(&oldest);
        }
        let session: Rc<[u8]> = session.into();
        self.names[pool].insert(Rc::clone(&session), name.into());
        self.oldest.push_back((pool, session));
    }

    /// Whether no session is bound to any name.
    pub(super) fn is_empty(&self) -> bool {
        self.oldest.is_empty()
    }

    /// Whether a session of a pool is bound to another name than this one.
    pub(super) fn keeps_from(&self, pool: usize, session: &[u8], name: Option<&str>) -> bool {
        let bound = self.names.get(pool).and_then(|names| names.get(session));
        bound.is_some_and(|bound| Some(&**bound) != name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_bound_to_its_first_name_in_its_pool() {
        let mut bonds = Bonds::default();
        bonds.bind(1, b"s", "alice");
        bonds.bind(1, b"s", "bob");
        assert!(!bonds.keeps_from(1, b"s", Some("alice")));
        assert!(bonds.keeps_from(1, b"s", Some("bob")) && bonds.keeps_from(1, b"s", None));
        assert!(!bonds.keeps_from(0, b"s", None) && !bonds.keeps_from(1, b"t", None));
    }

    #[test]
    fn the_oldest_bond_goes_when_there_are_too_many() {
        let mut bonds = Bonds::default();
        for number in 0..=MOST {
            bonds.bind(0, number.to_string().as_bytes(), "alice");
        }
        assert!(!bonds.keeps_from(0, b"0", None) && bonds.keeps_from(0, b"1", None));
        assert_eq!((bonds.names[0].len(), bonds.oldest.len()), (MOST, MOST));
    }
}
