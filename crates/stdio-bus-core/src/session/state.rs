//! The state machine of a session: what its owner has proved.
//!
//! ```text
//!            answered  loaded  loaded for   made   late   unseen
//!                              another name        result
//! Asked      Attested  Given   Loaded       Given  -      Lent
//! Lent       Attested  Given   Loaded       Given  -      -
//! Claimed    Used      Given   Loaded       Given  -      Lent
//! Used       -         Given   Loaded       Given  -      -
//! Attested   -         Given   Loaded       Given  -      -
//! Loaded     -         -       -            Given  -      -
//! Given      -         -       -            -      -      -
//! ```
//!
//! `-` means no change. A session begins as Claimed, Asked or Given (`session/new`). The name is reserved when its
//! owner disconnects, or when the worker refuses it before the Used state: permanently if the worker may know it, else
//! until all requests in it are answered. A reserved name is Lent to whichever client asks the worker for it. A session
//! that ends with its worker, is closed, evicted, forgotten, or given to another client is removed from the table from
//! any state; one that another connection of its owner takes over keeps its state.
//!
//! After any event but an answer the worker may know the name permanently, and that never changes.

/// The state of a session. In those below [`SessionState::Used`] its owner has got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SessionState {
    /// The name was free, and its owner has asked the worker for it.
    Asked,
    /// Others may have had it, and its owner, if it has one, has asked the worker for it.
    Lent,
    /// Its owner used the name first (spec 6.1.1).
    Claimed,
    /// Claimed, and the worker has answered a request in it with a result.
    Used,
    /// Asked for, and the worker has answered another request in it: a refusal does not revoke it any more.
    Attested,
    /// The worker has loaded it for its owner, though it is bound to another user name (`tombstones.rs`).
    Loaded,
    /// The worker has created or loaded it for its owner.
    Given,
}

/// What a worker's answer means for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEvent {
    /// A request in it was answered with a result.
    Answered,
    /// The worker has loaded it for its owner.
    Loaded,
    /// The worker has loaded it for its owner, but it is bound to another user name.
    LoadedForAnotherName,
    /// The worker has created it for its owner.
    Made,
    /// The worker has loaded it for a client that stopped waiting, or beside another one.
    LoadedLate,
    /// The answer to a request that loads it will not be seen, or a late answer has named it meanwhile.
    Unseen,
}

/// See the table at the top of the file, which a test compares with this function.
pub(crate) fn step(state: SessionState, event: SessionEvent) -> SessionState {
    use SessionEvent as E;
    use SessionState as S;
    match event {
        E::Answered if state == S::Claimed => S::Used,
        E::Answered if state < S::Used => S::Attested,
        E::Loaded if !state.is_issued() => S::Given,
        E::LoadedForAnotherName if !state.is_issued() => S::Loaded,
        E::Made => S::Given,
        E::Unseen if state < S::Used => S::Lent,
        _ => state,
    }
}

impl SessionState {
    /// Whether the worker has given it to its owner.
    #[inline]
    pub(super) fn is_issued(self) -> bool {
        matches!(self, Self::Loaded | Self::Given)
    }

    /// Whether its owner has asked for it, but has not got it yet.
    #[inline]
    pub(crate) fn is_asked_for(self) -> bool {
        matches!(self, Self::Asked | Self::Lent | Self::Attested)
    }
}

#[cfg(test)]
impl SessionState {
    /// Each of them.
    pub(super) const ALL: [Self; 7] =
        [Self::Asked, Self::Lent, Self::Claimed, Self::Used, Self::Attested, Self::Loaded, Self::Given];
}

#[cfg(test)]
mod tests {
    use super::*;

    use SessionEvent::{Answered, Loaded, LoadedForAnotherName, LoadedLate, Made, Unseen};

    const EVENTS: [SessionEvent; 6] = [Answered, Loaded, LoadedForAnotherName, Made, LoadedLate, Unseen];

    #[test]
    fn the_table_at_the_top_matches_the_code() {
        let table = include_str!("state.rs").lines().filter_map(|line| line.strip_prefix("//! ")).collect::<Vec<_>>();
        for state in SessionState::ALL {
            let name = format!("{state:?}");
            let row = table.iter().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let row = row.into_iter().find(|row| row.len() == 1 + EVENTS.len() && row[0] == name).unwrap();
            for (event, cell) in EVENTS.into_iter().zip(&row[1..]) {
                let expected = if *cell == "-" { &name } else { *cell };
                assert_eq!(format!("{:?}", step(state, event)), expected, "{state:?} {event:?}");
            }
        }
    }

    #[test]
    fn only_the_worker_gives_out_a_session_and_that_is_final() {
        for state in SessionState::ALL {
            for event in EVENTS {
                let next = step(state, event);
                if next.is_issued() && !state.is_issued() {
                    assert!(matches!(event, Loaded | LoadedForAnotherName | Made), "{state:?} {event:?}");
                }
                assert!(!state.is_issued() || next >= state, "{state:?} {event:?}");
            }
        }
    }
}
