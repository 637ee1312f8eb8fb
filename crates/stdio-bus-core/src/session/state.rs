//! The state machine of a session: what its owner has proved, and what happens to its name.
//!
//! ```text
//!            answered  loaded  loaded for   made   late   unseen  refused  owner   asked  last
//!                              another name        result                  leaves  again  answer
//! Asked      Attested  Given   Loaded       Given  -      Lent    (end)    (end)   -      -
//! Lent       Attested  Given   Loaded       Given  -      -       (end)    (end)   -      -
//! Claimed    Used      Given   Loaded       Given  -      Lent    (end)    (end)   -      -
//! Used       -         Given   Loaded       Given  -      -       -        (end)   -      -
//! Attested   -         Given   Loaded       Given  -      -       -        (end)   -      -
//! Loaded     -         -       -            Given  -      -       -        (end)   -      -
//! Given      -         -       -            -      -      -       -        (end)   -      -
//! Held       -         -       -            -      -      -       -        -       Lent   -
//! Lingering  -         Held    Held         Held   Held   Held    -        -       Lent   Gone
//! Gone       -         -       -            -      -      -       -        -       -      -
//! ```
//!
//! `-` means no change. `(end)` is Held if the worker may know the name for good, else Lingering if the worker has
//! still to answer requests in it, else Gone. A session begins as Claimed, Asked, Given (`session/new`) or Held (a late
//! answer). A session that ends with its worker, is closed, evicted, forgotten, or given to another client is removed
//! from the table from any state; one that another connection of its owner takes over keeps its state.
//!
//! From the first result, or unseen answer, to a request that gives the session out, the worker may know the name for
//! good; that never changes ([`Event::makes_known`]).

/// The state of a session. In those below [`State::Used`] its owner has got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// The name was free, and its owner has asked the worker for it.
    Asked,
    /// Others may have had it, and its owner has asked the worker for it.
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
    /// Its owner has left. The name is reserved for a client to which the worker gives it.
    Held,
    /// Its owner has left, and the name is reserved until the last answer in it.
    Lingering,
    /// It is forgotten.
    Gone,
}

/// An event of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A request in it was answered with a result.
    Answered,
    /// The worker has loaded it for its owner.
    Loaded,
    /// The same, but it is bound to another user name.
    LoadedForAnotherName,
    /// The worker has created it for its owner.
    Made,
    /// The worker has loaded it for a client that stopped waiting, or beside another one.
    LoadedLate,
    /// The answer to a request that loads it will not be seen, or a late answer has named it meanwhile.
    Unseen,
    /// The worker did not load it, or was never asked.
    Refused(Rest),
    /// Its owner has left.
    OwnerLeft(Rest),
    /// Another client asks the worker for it.
    AskedAgain,
    /// Nothing is pending in it any more.
    LastAnswer,
}

/// The state of a session besides its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rest {
    /// The worker may know the name for good.
    pub is_known: bool,
    /// The worker has still to answer requests in it.
    pub is_pending: bool,
}

/// See the table at the top of the file, which a test compares with this function.
pub(crate) fn step(state: State, event: Event) -> State {
    use Event as E;
    use State as S;
    if !state.is_owned() {
        return match event {
            E::AskedAgain if state != S::Gone => S::Lent,
            E::LastAnswer if state == S::Lingering => S::Gone,
            known if state == S::Lingering && known.makes_known() => S::Held,
            _ => state,
        };
    }
    match event {
        E::Answered if state == S::Claimed => S::Used,
        E::Answered if state < S::Used => S::Attested,
        E::Loaded if !state.is_issued() => S::Given,
        E::LoadedForAnotherName if !state.is_issued() => S::Loaded,
        E::Made => S::Given,
        E::Unseen if state < S::Used => S::Lent,
        E::Refused(rest) if state < S::Used => end(rest),
        E::OwnerLeft(rest) => end(rest),
        _ => state,
    }
}

fn end(rest: Rest) -> State {
    match rest {
        Rest { is_known: true, .. } => State::Held,
        Rest { is_pending: true, .. } => State::Lingering,
        _ => State::Gone,
    }
}

impl Event {
    /// Whether the worker may know the name for good from then on, so that it outlives its owner.
    pub(super) fn makes_known(self) -> bool {
        matches!(self, Self::Loaded | Self::LoadedForAnotherName | Self::Made | Self::LoadedLate | Self::Unseen)
    }
}

impl State {
    /// Whether it belongs to a client.
    pub(super) fn is_owned(self) -> bool {
        self <= Self::Given
    }

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

    /// How certain its ownership is, for people.
    pub(crate) fn rank(self) -> &'static str {
        match self {
            Self::Claimed | Self::Asked | Self::Lent | Self::Lingering => "claimed",
            Self::Used | Self::Attested => "confirmed",
            Self::Loaded | Self::Given | Self::Held | Self::Gone => "issued",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Event::{
        Answered, AskedAgain, LastAnswer, Loaded, LoadedForAnotherName, LoadedLate, Made, OwnerLeft, Refused, Unseen,
    };

    const STATES: [State; 10] = [
        State::Asked,
        State::Lent,
        State::Claimed,
        State::Used,
        State::Attested,
        State::Loaded,
        State::Given,
        State::Held,
        State::Lingering,
        State::Gone,
    ];
    const KNOWN: Rest = Rest { is_known: true, is_pending: true };
    const PENDING: Rest = Rest { is_known: false, is_pending: true };
    const NOTHING: Rest = Rest { is_known: false, is_pending: false };

    fn events() -> impl Iterator<Item = Event> {
        let ends = [KNOWN, PENDING, NOTHING].into_iter().flat_map(|rest| [Refused(rest), OwnerLeft(rest)]);
        [Answered, Loaded, LoadedForAnotherName, Made, LoadedLate, Unseen, AskedAgain, LastAnswer]
            .into_iter()
            .chain(ends)
    }

    #[test]
    fn the_table_at_the_top_matches_the_code() {
        let table = include_str!("state.rs").lines().filter_map(|line| line.strip_prefix("//! ")).collect::<Vec<_>>();
        let columns = [
            Answered,
            Loaded,
            LoadedForAnotherName,
            Made,
            LoadedLate,
            Unseen,
            Refused(KNOWN),
            OwnerLeft(KNOWN),
            AskedAgain,
            LastAnswer,
        ];
        for state in STATES {
            let name = format!("{state:?}");
            let row = table.iter().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let row = row.into_iter().find(|row| row.len() == 11 && row[0] == name).unwrap();
            for (event, cell) in columns.into_iter().zip(&row[1..]) {
                let expected = match *cell {
                    "-" => name.clone(),
                    "(end)" => "Held".into(),
                    cell => cell.into(),
                };
                assert_eq!(format!("{:?}", step(state, event)), expected, "{state:?} {event:?}");
            }
        }
    }

    #[test]
    fn a_name_that_its_owner_leaves_stays_as_long_as_the_worker_may_speak_of_it() {
        for state in STATES.into_iter().filter(|state| state.is_owned()) {
            assert_eq!(step(state, OwnerLeft(KNOWN)), State::Held);
            assert_eq!(step(state, OwnerLeft(PENDING)), State::Lingering);
            assert_eq!(step(state, OwnerLeft(NOTHING)), State::Gone);
        }
    }

    #[test]
    fn only_the_worker_gives_out_a_session_and_that_is_final() {
        for state in STATES {
            for event in events() {
                let next = step(state, event);
                if next.is_issued() && !state.is_issued() {
                    assert!(matches!(event, Loaded | LoadedForAnotherName | Made), "{state:?} {event:?}");
                }
                assert!(!state.is_issued() || next >= state, "{state:?} {event:?}");
            }
        }
    }

    #[test]
    fn a_reserved_name_gets_an_owner_only_by_a_request_for_it() {
        for state in STATES.into_iter().filter(|state| !state.is_owned()) {
            for event in events().filter(|event| *event != AskedAgain) {
                assert!(!step(state, event).is_owned(), "{state:?} {event:?}");
            }
        }
    }
}
