//! Which client may name a session, with which method, and which client a worker means by it. Every route asks here: a
//! client's line for each session that it names, its cancellations, the fast path, and a worker's messages.
//!
//! Three tables say how a client may use a name on a worker, by who has the session there (rows) and how it is asked for
//! (columns):
//!
//! - `usual`: any method but those below. Its session is named at `top` level, where it only determines the route; in the
//!   `params`, where the worker reads it; or there as a `second` one, beside another one at top level.
//! - `load`: `session/load` and `session/resume`. The session that is asked for is the `only` one, the `second` one if
//!   there are two, and not the one `beside` it at top level.
//! - `fork`: `session/fork`, likewise.
//! - `cancel`: a cancellation. It is routed where the request is that it names, whatever session it names.
//!
//! Rows: `Asker` is the client that asks, `OlderName` and `NewerName` are other connections of its verified name on the same
//! listener, with what the owner has proved (`state.rs`); `Reserved` names have no owner; `Others` is everybody else.
//!
//! Cells: what the message does with the session ([`Use`]). `-` is denied. `~` is denied where the workers of the pool
//! give out names, since there a name that was not given to the asker is a guess.
//!
//! ```text
//! A worker that clients share:
//!                     usual                 load                fork                cancel
//!                     top   params second   only  beside second only  beside second top   params
//! Nobody              Claim Claim~ Claim~   Ask   Claim  Ask    None  None   None   None  None~
//! Asker(Asked)        -     -      -        Own   Own    Own    Own   Own    Own    Own   Own
//! Asker(Lent)         -     -      -        Own   Own    Own    Own   Own    Own    Own   Own
//! Asker(Attested)     -     -      -        Own   Own    Own    Own   Own    Own    Own   Own
//! Asker(Claimed)      Own   Own~   Own~     Own   Own    Own    Own   Own    Own    Own   Own
//! Asker(Used)         Own   Own~   Own~     Own   Own    Own    Own   Own    Own    Own   Own
//! Asker(Loaded)       Own   Own    Own      Own   Own    Own    Own   Own    Own    Own   Own
//! Asker(Given)        Own   Own    Own      Own   Own    Own    Own   Own    Own    Own   Own
//! Reserved            -     -      -        Lend  -      Lend   None  -      None   -     -
//! OlderName(Claimed)  Take~ Take~  -        Take~ Take~  -      -     -      -      -     -
//! OlderName(Used)     Take~ Take~  -        Take~ Take~  -      -     -      -      -     -
//! OlderName(Loaded)   Take  Take   -        Take  Take   -      -     -      -      -     -
//! OlderName(Given)    Take  Take   -        Take  Take   -      -     -      -      -     -
//! NewerName(Claimed)  -     -      -        Take~ Take~  -      -     -      -      -     -
//! NewerName(Used)     -     -      -        Take~ Take~  -      -     -      -      -     -
//! NewerName(Loaded)   -     -      -        Take  Take   -      -     -      -      -     -
//! NewerName(Given)    -     -      -        Take  Take   -      -     -      -      -     -
//! Others              -     -      -        -     -      -      -     -      -      -     -
//!
//! A worker that clients share, where all may use every session (session_access), and the second session of a message
//! to any worker then:
//! Nobody              Claim Claim  Claim    Ask   Claim  Ask    None  None   None   None  None
//! Asker               Own   Own    Own      Own   Own    Own    Own   Own    Own    Own   Own
//! Others              Share Share  Share    Share Share  Share  Share Share  Share  None  None
//!
//! A worker that has one client:
//! Nobody              Claim Claim  None     Ask   Claim  None   None  None   None   None  None
//! Asker               Own   Own    Own      Own   Own    Own    Own   Own    Own    Own   Own
//! Reserved            Own   Own    Own      Lend  Lend   Own    Own   Own    Own    None  None
//! Others              Own   Own    Own      Own   Own    Own    Own   Own    Own    None  None
//! ```
//!
//! Then, in this order ([`decide`]):
//!
//! 1. A session that another client has, or had, is denied as the table says, whatever its worker does.
//! 2. If the worker takes no messages any more, the session is lost with it.
//!    A request that asks for a name that no client has comes to another worker (`session_in_group` in `router/client.rs`).
//! 3. The asker's own sessions, and names that nobody has, are denied as the table says.
//! 4. A name that is bound to another verified name is denied (`tombstones.rs`), but to cancel, and if the worker has made
//!    this very session for the asker.
//!
//! A client without access learns nothing of others: every reason has the same text.

use super::state::SessionState;
use super::table::{Session, Sessions};
use crate::ctx::Ctx;
use crate::message::{KnownMethod, Refusal};
use crate::peer::{ClientKey, SessionKey, WorkerKey};
use crate::report::Reason;
use crate::settings::{SessionAccess, Settings};
use crate::worker::Worker;

/// Where in a message a session is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamedAt {
    /// At top level only.
    Alone,
    /// In the params, with no other one elsewhere.
    Params,
    /// At top level, where it determines the route, with another one in the params.
    Leading,
    /// In the params, with another one at top level.
    Second,
}

/// A session that a client's message names.
pub(crate) struct Naming<'a> {
    pub client: ClientKey,
    pub verb: KnownMethod,
    pub place: NamedAt,
    pub name: &'a [u8],
}

/// How a message uses a session that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Not at all.
    None,
    /// Its sender owns it.
    Own(SessionKey),
    /// No client has one of this name yet.
    Claim,
    /// No client has one of this name yet, and the sender asks the worker for it.
    Ask,
    /// Its owner has left, and the sender asks the worker for it.
    Lend(SessionKey),
    /// It belongs to another connection of the same user name, and the sender takes it over.
    Take(SessionKey),
    /// It belongs to another client, or has no owner, and all clients may use every session.
    Share(SessionKey),
}

/// Why a client cannot use a name.
pub(crate) fn denied() -> Refusal {
    let text = "this session is not available to this connection; if it is yours, load it first (session/load)";
    Refusal(Reason::SessionDenied, text.into())
}

/// How a message asks for the sessions that it names: the groups of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Usual,
    Load,
    Fork,
    Cancel,
}

impl From<KnownMethod> for How {
    fn from(verb: KnownMethod) -> Self {
        match verb {
            KnownMethod::Load => Self::Load,
            KnownMethod::Fork => Self::Fork,
            KnownMethod::Cancel(_) => Self::Cancel,
            _ => Self::Usual,
        }
    }
}

/// Who has a session that a client asks for: the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Asker(SessionState),
    /// Its owner has left, and the worker may still know the name.
    Reserved,
    /// An older connection of the asker's verified name, on the same listener.
    OlderName(SessionState),
    /// A newer connection of that name.
    NewerName(SessionState),
    Another,
}

/// A cell of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Denied,
    Open(Use),
    /// Open, unless the workers of the pool give out names.
    NoGuess(Use),
}

/// The cell of a name that no client has on this worker.
fn of_nobody(is_alone: bool, how: How, place: NamedAt) -> Cell {
    match (how, place) {
        // It names the request, and the session only beside it: a guess in the params would be read.
        (How::Cancel, NamedAt::Params | NamedAt::Second) => Cell::NoGuess(Use::None),
        (How::Cancel, NamedAt::Alone | NamedAt::Leading) => Cell::Open(Use::None),
        // The answer names the session that is made; its source stays nobody's.
        (How::Fork, _) => Cell::Open(Use::None),
        // The only client of a worker needs no claim on what it says beside the route.
        (_, NamedAt::Second) if is_alone => Cell::Open(Use::None),
        // The worker may know the name from before.
        (How::Load, NamedAt::Alone | NamedAt::Params | NamedAt::Second) => Cell::Open(Use::Ask),
        // What only determines the route is claimed by who comes first (spec 6.1.1).
        (How::Load, NamedAt::Leading) | (How::Usual, NamedAt::Alone | NamedAt::Leading) => Cell::Open(Use::Claim),
        // So is what the worker reads, unless it gives out names itself.
        (How::Usual, NamedAt::Params | NamedAt::Second) => Cell::NoGuess(Use::Claim),
    }
}

/// The cell of a session on a worker that clients share.
fn on_shared_worker(key: SessionKey, holder: Holder, how: How, place: NamedAt) -> Cell {
    use SessionState::{Asked, Attested, Claimed, Given, Lent, Loaded, Used};
    let is_read = matches!(place, NamedAt::Params | NamedAt::Second);
    match (holder, how) {
        // Its owner may always ask for it again, and cancel what it has asked in it.
        (Holder::Asker(_), How::Load | How::Fork | How::Cancel) => Cell::Open(Use::Own(key)),
        // Before the worker has answered, it may be another client's.
        (Holder::Asker(Asked | Lent | Attested), How::Usual) => Cell::Denied,
        // A claim is a guess where the worker reads it, and gives out names itself.
        (Holder::Asker(Claimed | Used), How::Usual) if is_read => Cell::NoGuess(Use::Own(key)),
        (Holder::Asker(Claimed | Used), How::Usual) => Cell::Open(Use::Own(key)),
        // The worker has given it to the asker.
        (Holder::Asker(Loaded | Given), How::Usual) => Cell::Open(Use::Own(key)),

        // Its owner has left: the worker decides who gets it.
        (Holder::Reserved, How::Load) if place != NamedAt::Leading => Cell::Open(Use::Lend(key)),
        // It is copied, and stays reserved.
        (Holder::Reserved, How::Fork) if place != NamedAt::Leading => Cell::Open(Use::None),
        // Whoever does not ask the worker for it may not touch it.
        (Holder::Reserved, _) => Cell::Denied,

        // Nobody takes a session over in passing.
        (Holder::OlderName(_) | Holder::NewerName(_), How::Fork | How::Cancel) => Cell::Denied,
        (Holder::OlderName(_) | Holder::NewerName(_), _) if place == NamedAt::Second => Cell::Denied,
        // The newer connection has it: only who asks for the session gets it back, so that two do not take it from each
        // other by accident.
        (Holder::NewerName(_), How::Usual) => Cell::Denied,
        // It is not known yet whether it is theirs.
        (Holder::OlderName(Asked | Lent | Attested) | Holder::NewerName(Asked | Lent | Attested), _) => Cell::Denied,
        // A mere claim is taken over where it could be made: elsewhere it is a guess of either.
        (Holder::OlderName(Claimed | Used) | Holder::NewerName(Claimed | Used), _) => Cell::NoGuess(Use::Take(key)),
        // The same user has connected again, and nothing shows yet that the old connection is dead.
        (Holder::OlderName(Loaded | Given) | Holder::NewerName(Loaded | Given), _) => Cell::Open(Use::Take(key)),

        (Holder::Another, _) => Cell::Denied,
    }
}

/// The cell of a session on a worker that clients share, where all of them may use every session.
fn where_all_share(key: SessionKey, holder: Holder, how: How) -> Cell {
    match (holder, how) {
        (Holder::Asker(_), _) => Cell::Open(Use::Own(key)),
        // The request that is cancelled is the asker's, or nothing is cancelled.
        (_, How::Cancel) => Cell::Open(Use::None),
        // It keeps its owner.
        _ => Cell::Open(Use::Share(key)),
    }
}

/// The cell of a session on a worker that has one client. A late answer gave out what is not its own: there is no other
/// client to protect.
fn on_worker_of_one_client(key: SessionKey, holder: Holder, how: How, place: NamedAt) -> Cell {
    match (holder, how) {
        (Holder::Asker(_), _) => Cell::Open(Use::Own(key)),
        (_, How::Cancel) => Cell::Open(Use::None),
        // It gets an owner again.
        (Holder::Reserved, How::Load) if place != NamedAt::Second => Cell::Open(Use::Lend(key)),
        _ => Cell::Open(Use::Own(key)),
    }
}

/// What an access depends on beside the session.
#[derive(Clone, Copy, Debug)]
struct AccessTerms {
    /// The worker serves one client alone.
    is_alone: bool,
    /// All clients may use every session (`session_access`).
    is_shared: bool,
    /// The workers of the pool give out names, so that clients may use no others. No if it serves one client alone, or all
    /// share.
    gives_out_names: bool,
    /// The name is bound to another user name than the asker's. No if all share.
    is_bound_to_another: bool,
    /// The worker takes messages.
    takes_messages: bool,
}

/// Why a session may not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    Denied,
    /// Its worker takes no messages any more.
    Lost,
}

/// The tables, and then the rules in order: see the top of the file.
fn decide(terms: AccessTerms, found: Option<(SessionKey, Holder)>, how: How, place: NamedAt) -> Result<Use, Obstacle> {
    let cell = match found {
        None => of_nobody(terms.is_alone, how, place),
        // If all share, what a message says beside its route is shared on a worker of one client, too.
        Some((key, holder)) if terms.is_alone && !(terms.is_shared && place == NamedAt::Second) => {
            on_worker_of_one_client(key, holder, how, place)
        }
        Some((key, holder)) if terms.is_shared => where_all_share(key, holder, how),
        Some((key, holder)) => on_shared_worker(key, holder, how, place),
    };
    let open = match cell {
        Cell::Open(open) => Some(open),
        Cell::NoGuess(open) => Some(open).filter(|_| !terms.gives_out_names),
        Cell::Denied => None,
    };
    let holder = found.map(|(_, holder)| holder);
    let is_anothers = !matches!(holder, None | Some(Holder::Asker(_)));
    if is_anothers && open.is_none() {
        return Err(Obstacle::Denied);
    }
    if !terms.takes_messages {
        return Err(Obstacle::Lost);
    }
    // Some agents count their sessions from one in each process: one that was made for the asker may be used, even if
    // another user has one of that name. Only to load it would reach the other one.
    let is_made_for_asker = how == How::Usual && holder == Some(Holder::Asker(SessionState::Given));
    let is_bound = terms.is_bound_to_another && how != How::Cancel && !is_made_for_asker;
    open.filter(|_| !is_bound).ok_or(Obstacle::Denied)
}

impl Session {
    /// Whether its owner may use it at once with a usual method, wherever it is named: the cells of the fast path.
    /// `has_bonds` is whether any session is bound to a user name, `gives_out_names` whether the workers of its pool give
    /// out names.
    #[inline]
    pub(crate) fn is_open_at_once(&self, has_bonds: bool, gives_out_names: impl FnOnce() -> bool) -> bool {
        match self.state {
            SessionState::Given => true,
            SessionState::Loaded => !has_bonds,
            SessionState::Claimed | SessionState::Used => !has_bonds && !gives_out_names(),
            SessionState::Asked | SessionState::Lent | SessionState::Attested => false,
        }
    }

    /// The client that its worker means by its name; none if it may mean another one than its owner. An answer proves
    /// nothing: the worker may have read another name in that request, or none.
    #[inline]
    pub(crate) fn addressee(
        &self,
        is_one_made: impl FnOnce() -> bool,
        owner_waits: impl FnOnce() -> bool,
    ) -> Option<ClientKey> {
        let is_its_owner = match self.state {
            // The worker has given it to its owner.
            SessionState::Loaded | SessionState::Given => true,
            // That depends on its parent.
            _ if self.parent.is_some() => false,
            // Its owner has asked for it: the worker replays the history before it answers.
            SessionState::Asked | SessionState::Attested => true,
            // Others may have had it: only if its owner alone waits in it.
            SessionState::Lent => self.pending == 1 && owner_waits(),
            // The worker may be giving this name to another client just now.
            SessionState::Claimed | SessionState::Used => !is_one_made(),
        };
        self.client.filter(|_| is_its_owner)
    }
}

impl Sessions {
    /// How a client may use the session that it names, which is `key` on this worker if it exists. A session that is
    /// closed to a client does not even reveal whether its worker is there.
    pub(crate) fn access(
        &self,
        ctx: &Ctx,
        of: &Naming<'_>,
        worker: WorkerKey,
        key: Option<SessionKey>,
    ) -> Result<Use, Refusal> {
        let found = key.and_then(|key| Some((key, self.holder(ctx, self.get(key)?, of.client))));
        let is_shared = ctx.settings.shares_sessions();
        let at = ctx.workers.get(worker);
        let terms = AccessTerms {
            is_alone: at.is_some_and(|at| at.owner().is_some()),
            is_shared,
            gives_out_names: !is_shared && at.is_some_and(|at| self.issues_names(at)),
            is_bound_to_another: self.is_bound_to_another(ctx, of.client, worker, of.name),
            takes_messages: at.is_some_and(Worker::takes_messages),
        };
        decide(terms, found, of.verb.into(), of.place).map_err(|obstacle| match obstacle {
            Obstacle::Denied => denied(),
            Obstacle::Lost => {
                Refusal(Reason::RequestLost, "the worker of this session has exited or is stopping".into())
            }
        })
    }

    /// Who has a session, for a client that asks for it. A name on one listener may be another user's on another listener,
    /// which has other tokens or authorities.
    fn holder(&self, ctx: &Ctx, session: &Session, asker: ClientKey) -> Holder {
        let Some(owner) = session.client else { return Holder::Reserved };
        if owner == asker {
            return Holder::Asker(session.state);
        }
        match (ctx.clients.identity(asker), ctx.clients.identity(owner)) {
            (Some(asker), Some(owner))
                if asker.listener == owner.listener && asker.origin.names.are_the_same_owner(&owner.origin.names) =>
            {
                let is_older = owner.number < asker.number;
                if is_older { Holder::OlderName(session.state) } else { Holder::NewerName(session.state) }
            }
            _ => Holder::Another,
        }
    }

    /// Whether a session was created or loaded under a user name, and this client has another one or none.
    pub(super) fn is_bound_to_another(&self, ctx: &Ctx, client: ClientKey, worker: WorkerKey, session: &[u8]) -> bool {
        if self.session_users().is_empty() || ctx.settings.shares_sessions() {
            return false;
        }
        let (Some(client), Some(worker)) = (ctx.clients.identity(client), ctx.workers.worker_name(worker)) else {
            return false;
        };
        self.session_users().keeps_from(worker.pool, session, client.origin.names.owner())
    }
}

impl Settings {
    /// Whether all clients may use every session.
    pub(crate) fn shares_sessions(&self) -> bool {
        self.routing.session_access == SessionAccess::Shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Moment;
    use crate::table::Table;

    const HOWS: [How; 4] = [How::Usual, How::Load, How::Fork, How::Cancel];
    const PLACES: [NamedAt; 4] = [NamedAt::Alone, NamedAt::Params, NamedAt::Leading, NamedAt::Second];

    /// A key, of which the rules only say whether there is one.
    fn key() -> SessionKey {
        Table::<(), 's'>::new(1).insert(()).unwrap()
    }

    fn holders() -> Vec<Holder> {
        let of_names = SessionState::ALL
            .into_iter()
            .flat_map(|at| [Holder::Asker(at), Holder::OlderName(at), Holder::NewerName(at)]);
        of_names.chain([Holder::Reserved, Holder::Another]).collect()
    }

    /// All that may be.
    fn all_terms() -> impl Iterator<Item = AccessTerms> {
        let all = (0..32).map(|bits| {
            let has = |bit: u32| bits >> bit & 1 != 0;
            AccessTerms {
                is_alone: has(0),
                is_shared: has(1),
                gives_out_names: has(2),
                is_bound_to_another: has(3),
                takes_messages: has(4),
            }
        });
        all.filter(|terms| !(terms.gives_out_names && (terms.is_alone || terms.is_shared)))
            .filter(|terms| !(terms.is_bound_to_another && terms.is_shared))
    }

    fn all(mut each: impl FnMut(AccessTerms, Option<(SessionKey, Holder)>, How, NamedAt)) {
        let found = holders().into_iter().map(|holder| Some((key(), holder))).chain([None]).collect::<Vec<_>>();
        for terms in all_terms() {
            for found in &found {
                HOWS.into_iter().for_each(|how| PLACES.into_iter().for_each(|place| each(terms, *found, how, place)));
            }
        }
    }

    /// The table below this line at the top of the file: its rows, by their names.
    fn table(after: &str) -> Vec<Vec<&'static str>> {
        let lines = include_str!("access.rs").lines().skip_while(|line| !line.starts_with(&format!("//! {after}")));
        let rows = lines.skip(1).take_while(|line| line.len() > 4).map(|line| line[4..].split_whitespace().collect());
        rows.filter(|row: &Vec<_>| row.len() == 12).collect()
    }

    fn column(how: How, place: NamedAt) -> usize {
        let of_asked = match place {
            NamedAt::Alone | NamedAt::Params => 0,
            NamedAt::Leading => 1,
            NamedAt::Second => 2,
        };
        match (how, place) {
            (How::Usual, NamedAt::Alone | NamedAt::Leading) => 1,
            (How::Usual, NamedAt::Params) => 2,
            (How::Usual, NamedAt::Second) => 3,
            (How::Load, _) => 4 + of_asked,
            (How::Fork, _) => 7 + of_asked,
            (How::Cancel, NamedAt::Alone | NamedAt::Leading) => 10,
            (How::Cancel, NamedAt::Params | NamedAt::Second) => 11,
        }
    }

    #[test]
    fn the_tables_at_the_top_and_their_rules_match_the_code() {
        let [private, shared, alone] =
            ["A worker that clients share:", "to any worker then:", "A worker that has"].map(table);
        all(|terms, found, how, place| {
            let table = match terms {
                AccessTerms { is_shared: true, .. } if found.is_some() && place == NamedAt::Second => &shared,
                AccessTerms { is_alone: true, .. } => &alone,
                AccessTerms { is_shared: true, .. } => &shared,
                _ => &private,
            };
            let holder = found.map(|(_, holder)| holder);
            let name = holder.map_or("Nobody".into(), |holder| format!("{holder:?}"));
            let rows = [name.as_str(), name.split('(').next().unwrap(), "Others"];
            let row = rows.iter().find_map(|name| table.iter().find(|row| row[0] == *name)).unwrap();
            let cell = row[column(how, place)];
            let is_denied = cell == "-" || cell.ends_with('~') && terms.gives_out_names;
            let is_anothers = !matches!(holder, None | Some(Holder::Asker(_)));
            let is_made_for_asker = how == How::Usual && holder == Some(Holder::Asker(SessionState::Given));
            let expected = match terms {
                _ if is_anothers && is_denied => "Denied",
                AccessTerms { takes_messages: false, .. } => "Lost",
                _ if is_denied => "Denied",
                AccessTerms { is_bound_to_another: true, .. } if how != How::Cancel && !is_made_for_asker => "Denied",
                _ => cell.trim_end_matches('~'),
            };
            let is = match decide(terms, found, how, place) {
                Ok(open) => format!("{open:?}"),
                Err(obstacle) => format!("{obstacle:?}"),
            };
            assert_eq!(is.split('(').next(), Some(expected), "{terms:?} {found:?} {how:?} {place:?}");
        });
    }

    #[test]
    fn only_who_has_a_session_or_is_given_it_by_its_worker_uses_one_on_a_worker_that_clients_share() {
        all(|terms, found, how, place| {
            let is_reached = matches!(decide(terms, found, how, place), Ok(Use::Own(_) | Use::Share(_) | Use::Take(_)));
            if !terms.is_alone && !terms.is_shared && is_reached {
                let holder = found.map(|(_, holder)| holder);
                assert!(
                    matches!(holder, Some(Holder::Asker(_) | Holder::OlderName(_) | Holder::NewerName(_))),
                    "{found:?} {how:?} {place:?}"
                );
            }
        });
    }

    /// A session of some client.
    fn session(state: SessionState) -> Session {
        let worker = Table::<(), 'w'>::new(1).insert(()).unwrap();
        let client = Table::<(), 'c'>::new(1).insert(()).unwrap();
        let mut session = Session::new(Moment(0), worker, b"s", state);
        session.client = Some(client);
        session
    }

    #[test]
    fn a_worker_means_the_owner_of_a_session_unless_it_may_mean_another_client() {
        let is_meant =
            |session: &Session, is_one_made, owner_waits| session.addressee(|| is_one_made, || owner_waits).is_some();
        for state in SessionState::ALL {
            let mut session = session(state);
            for (pending, is_one_made, owner_waits) in [0, 1, 2].into_iter().flat_map(|pending| {
                [(false, false), (false, true), (true, false), (true, true)].map(|(a, b)| (pending, a, b))
            }) {
                session.pending = pending;
                let expected = match state {
                    SessionState::Asked | SessionState::Attested | SessionState::Loaded | SessionState::Given => true,
                    SessionState::Lent => pending == 1 && owner_waits,
                    SessionState::Claimed | SessionState::Used => !is_one_made,
                };
                assert_eq!(is_meant(&session, is_one_made, owner_waits), expected, "{state:?} {pending}");
            }
            (session.pending, session.parent) = (1, Some(key()));
            assert_eq!(is_meant(&session, false, true), state.is_issued(), "a child {state:?} ends with its parent");
        }
    }

    #[test]
    fn the_fast_path_opens_what_the_tables_open() {
        all(|terms, found, how, place| {
            let Some((_, Holder::Asker(state))) = found.filter(|_| how == How::Usual && terms.takes_messages) else {
                return;
            };
            let is_open = session(state).is_open_at_once(terms.is_bound_to_another, || terms.gives_out_names);
            assert!(!is_open || matches!(decide(terms, found, how, place), Ok(Use::Own(_))), "{terms:?} {state:?}");
        });
        let opens = SessionState::ALL.map(|state| session(state).is_open_at_once(false, || false));
        assert_eq!(opens, SessionState::ALL.map(|state| !state.is_asked_for()));
    }
}
