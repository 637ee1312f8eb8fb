//! One request that waits for its answer: who asked, who answers, and until when. What few have is beside it: names that are
//! no numbers, and what stood in the line where the answerer sees another name. All are in one table (`pending.rs`).
//!
//! Invariant: with its key it fills one cache line.

use super::id::Id;
use super::message::{Cancel, Verb};
use super::peer::{Moment, Peer, PeerBits, SessionKey, Text};
use super::settings::MAX_PENDING_REQUESTS;

/// A unit of the time that requests are kept with: they last for nine years.
pub(super) const SINCE_SHIFT: u32 = 10;

/// No request, where one of its slot is named.
pub(super) const NONE: u16 = u16::MAX;

/// Which way a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    ToWorkers,
    ToClients,
}

/// Which way a request goes that this peer has to answer.
impl From<Peer> for Direction {
    fn from(answerer: Peer) -> Self {
        match answerer {
            Peer::Worker(_) => Self::ToWorkers,
            Peer::Client(_) => Self::ToClients,
        }
    }
}

/// Facts about a request.
#[derive(Clone, Copy)]
pub(super) struct Flags(pub u8);

impl Flags {
    /// There is a [`Rare`] beside.
    pub(super) const RARE: u8 = 1;
    /// With more in it than names that its answerer sees.
    pub(super) const UNUSUAL: u8 = 16;
    /// The sessionId stood at top level, where an answer repeats it (spec 5.2.2).
    pub(super) const ON_TOP: u8 = 2;
    /// Its asker does not want the answer any more, but is to have one.
    pub(super) const CANCELLED: u8 = 4;
    /// Its asker does not want the answer any more, and is to have none.
    pub(super) const CANCELLED_SILENTLY: u8 = 8;
    /// Its answerer tells its progress under the wire id.
    pub(super) const TOKEN_IS_ID: u8 = 32;
    /// A line of it is written when it ends (`ended.rs`).
    pub(super) const TOLD: u8 = 64;
    /// The wire id is no number.
    pub(super) const TEXT: u8 = 128;

    pub(super) fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
}

/// A request that waits for its answer.
pub(super) struct Request {
    pub asker: Option<PeerBits>,
    pub answerer: PeerBits,
    /// The id that the answerer sees: the number, or the fingerprint of its text.
    pub wire: u64,
    /// The session that decided its way.
    pub session: Option<SessionKey>,
    pub expires: Moment,
    /// When it was recorded: units of 1,024 ns, and those above thirty-two bits.
    pub since: u32,
    pub since_high: u16,
    /// What its asker has asked before it and after it.
    pub before: u16,
    pub after: u16,
    /// What its method means, and so what an answer does to its sessions.
    pub verb: Verb,
    pub flags: Flags,
    /// What its line looked like, to know it again if it comes back.
    pub print: u32,
}

// With its key a request fills one cache line.
const _: () = assert!(size_of::<Request>() <= 56);
// Slots are counted in sixteen bits.
const _: () = assert!(2 * MAX_PENDING_REQUESTS < NONE as usize);

/// What few requests have beside them.
#[derive(Default)]
pub(super) struct Rare {
    /// The wire id, if it is no number.
    pub wire: Option<Id>,
    /// The id as its asker wrote it, where it is not the wire id, or is spelled in another way.
    pub original: Option<Original>,
    /// The session in its params, where that is another one than the one that decided its way.
    pub second_session: Option<SessionKey>,
    /// The token that its progress is told under, where that is another one than its id on either side.
    pub progress: Option<Progress>,
}

/// The id as its asker wrote it.
pub(super) struct Original {
    pub id: Id,
    pub token: Text,
    /// The answerer sees another id.
    pub is_replaced: bool,
}

/// A progress token.
pub(super) struct Progress {
    /// What the answerer sees; none if that is the wire id.
    pub wire: Option<Id>,
    /// What its asker has written, where the answerer sees another one.
    pub original: Option<Text>,
}

/// What is to be recorded of a request.
pub(super) struct NewRequest {
    pub asker: Peer,
    pub answerer: Peer,
    pub session: Option<SessionKey>,
    pub second_session: Option<SessionKey>,
    /// Of [`Flags`] those that are known before it is recorded.
    pub flags: u8,
    pub verb: Verb,
    /// When an answer is too late; perhaps never.
    pub expires: Moment,
    /// See [`print_of`](super::message::print_of).
    pub print: u32,
}

/// How a request's id stands on the wire.
#[derive(Clone, Copy)]
pub(super) enum Wire<'a> {
    /// As its asker has written it.
    AsItIs,
    /// The same, but an error in place of the answer has to repeat the spelling of this token.
    Spelled(&'a [u8]),
    /// Another one in place of this token.
    Replaced(&'a Id, &'a [u8]),
}

impl Request {
    /// Who asked; none once it has gone or was given an error, and then the answer is discarded.
    #[inline]
    pub(super) fn asker(&self) -> Option<Peer> {
        self.asker.map(Peer::from)
    }

    /// Who has to answer.
    #[inline]
    pub(super) fn answerer(&self) -> Peer {
        self.answerer.into()
    }

    /// When it was recorded, to the microsecond.
    #[inline]
    pub(super) fn since(&self) -> Moment {
        Moment((u64::from(self.since) | u64::from(self.since_high) << 32) << SINCE_SHIFT)
    }

    /// When an answer is too late.
    pub(super) fn expires(&self) -> Option<Moment> {
        (self.expires != Moment::NEVER).then_some(self.expires)
    }

    /// Whether the sessionId stood at top level.
    pub(super) fn session_on_top(&self) -> bool {
        self.flags.has(Flags::ON_TOP)
    }

    /// How its asker has cancelled it, if it has.
    pub(super) fn cancelled(&self) -> Option<Cancel> {
        match self.flags {
            flags if flags.has(Flags::CANCELLED) => Some(Cancel::Answered),
            flags if flags.has(Flags::CANCELLED_SILENTLY) => Some(Cancel::Silent),
            _ => None,
        }
    }

    /// Whether there is nothing to it but an answer that its asker waits for.
    #[inline]
    pub(super) fn is_simple(&self) -> bool {
        self.asker.is_some() && self.verb == Verb::Other && !self.flags.has(Flags::UNUSUAL)
    }

    pub(super) fn direction(&self) -> Direction {
        self.answerer().into()
    }
}
