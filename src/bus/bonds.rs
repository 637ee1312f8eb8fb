//! Under which name a session was made, so that it is loaded under no other, however its owner's connection has ended.
//!
//! A name is what a client's token or certificate stands for ([`Names::owner`](super::origin::Names::owner)). Clients
//! without a name make sessions that are bound to nobody. What is known is of this process: whoever loads a session
//! first after a restart has it.

use std::collections::VecDeque;
use std::rc::Rc;

use hashbrown::HashMap;

/// So many sessions are remembered; beyond them the one goes that was made first.
const MOST: usize = 16 * 1024;

/// See the top of the file.
#[derive(Default)]
pub(super) struct Bonds {
    names: HashMap<(usize, Box<[u8]>), Rc<str>>,
    oldest: VecDeque<(usize, Box<[u8]>)>,
}

impl Bonds {
    /// The session `session` of a pool was made or loaded under `name`. One that is bound stays so.
    pub(super) fn bind(&mut self, pool: usize, session: &[u8], name: &Rc<str>) {
        let key = (pool, Box::from(session));
        if self.names.contains_key(&key) {
            return;
        }
        if self.names.len() >= MOST
            && let Some(oldest) = self.oldest.pop_front()
        {
            self.names.remove(&oldest);
        }
        self.names.insert(key.clone(), Rc::clone(name));
        self.oldest.push_back(key);
    }

    /// Whether a session of a pool is bound to another name than this one.
    pub(super) fn keeps_from(&self, pool: usize, session: &[u8], name: Option<&str>) -> bool {
        !self.names.is_empty()
            && self.names.get(&(pool, Box::from(session))).is_some_and(|bound| Some(&**bound) != name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_bound_to_its_first_name_in_its_pool() {
        let mut bonds = Bonds::default();
        bonds.bind(1, b"s", &"alice".into());
        bonds.bind(1, b"s", &"bob".into());
        assert!(!bonds.keeps_from(1, b"s", Some("alice")));
        assert!(bonds.keeps_from(1, b"s", Some("bob")) && bonds.keeps_from(1, b"s", None));
        assert!(!bonds.keeps_from(0, b"s", None) && !bonds.keeps_from(1, b"t", None));
    }

    #[test]
    fn the_oldest_bond_goes_when_there_are_too_many() {
        let mut bonds = Bonds::default();
        let alice = "alice".into();
        for number in 0..=MOST {
            bonds.bind(0, number.to_string().as_bytes(), &alice);
        }
        assert!(!bonds.keeps_from(0, b"0", None) && bonds.keeps_from(0, b"1", None));
        assert_eq!((bonds.names.len(), bonds.oldest.len()), (MOST, MOST));
    }
}
