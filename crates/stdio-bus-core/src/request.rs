//! One pending request: asker, answerer, and deadline. Rarely used state is stored beside it: names that are not
//! numbers, and original names that the answerer sees replaced. All are in one table (`pending.rs`).
//!
//! Invariant: with its key it fills one cache line.

use super::id::Id;
use super::message::{Cancel, Verb};
use super::peer::{Moment, Peer, PeerBits, RequestKey, SessionKey, Text};
use super::settings::MAX_PENDING_REQUESTS;

/// The unit of the times of requests, as a shift: they last for nine years.
pub(super) const SINCE_SHIFT: u32 = 10;

/// No request, as a slot number.
pub(super) const NONE: u16 = u16::MAX;

/// Facts about a request.
#[derive(Clone, Copy)]
pub(super) struct Flags(pub u8);

impl Flags {
    /// There is a [`Rare`] beside it.
    pub(super) const RARE: u8 = 1;
    /// That holds more than the answerer's names. Without one: its asker knows it by another number, and nothing else is
    /// unusual (`Request::original_number`).
    pub(super) const UNUSUAL: u8 = 16;
    /// The sessionId was at top level, where an answer repeats it (spec 5.2.2).
    pub(super) const ON_TOP: u8 = 2;
    /// Its asker has cancelled it, but is to get an answer.
    pub(super) const CANCELLED: u8 = 4;
    /// Its asker has cancelled it, and is to get no answer.
    pub(super) const CANCELLED_SILENTLY: u8 = 8;
    /// Its progress token is the wire id.
    pub(super) const TOKEN_IS_ID: u8 = 32;
    /// The wire id is not a number.
    pub(super) const TEXT: u8 = 64;
    /// It is a `session/prompt` that may time out.
    pub(super) const PROMPT: u8 = 128;

    pub(super) fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
}

/// A pending request.
pub(super) struct Request {
    pub asker: Option<PeerBits>,
    pub answerer: PeerBits,
    /// The id that the answerer sees: the number, or the fingerprint of its text.
    pub wire: u64,
    /// The session that determined its route.
    pub session: Option<SessionKey>,
    pub expires: Moment,
    /// Time of creation in units of 1,024 ns: the low 32 bits, and those above.
    pub since: u32,
    pub since_high: u16,
    /// The asker's previous and next request.
    pub before: u16,
    pub after: u16,
    /// The meaning of its method, and so the effect of an answer on its sessions.
    pub verb: Verb,
    pub flags: Flags,
    /// The hash of its line, to recognise an echo; or the number that its asker knows it by.
    pub print: u32,
}

// With its key a request fills one cache line.
const _: () = assert!(size_of::<Request>() <= 56);
// Slots are counted in sixteen bits.
const _: () = assert!(2 * MAX_PENDING_REQUESTS < NONE as usize);

/// Rarely used state of a request.
#[derive(Default)]
pub(super) struct Rare {
    /// The wire id, if it is not a number.
    pub wire: Option<Id>,
    /// The id as its asker wrote it, if it is not the wire id, or is spelled differently.
    pub original: Option<Original>,
    /// The session in its params, if it differs from the one that determined its route.
    pub second_session: Option<SessionKey>,
    /// The progress token that the answerer sees, if that is not the wire id.
    pub token: Option<Id>,
    /// The asker's progress token, if the answerer sees another one.
    pub original_token: Option<Text>,
    /// The client's request that this question of a worker belongs to.
    pub belongs_to: Option<RequestKey>,
    /// The beginning of the method of a worker's question, as written.
    pub method: Text,
}

/// The id as its asker wrote it.
#[derive(Clone)]
pub(super) struct Original {
    pub id: Id,
    pub token: Text,
    /// The answerer sees another id.
    pub is_replaced: bool,
}

/// A request to be recorded.
pub(super) struct NewRequest {
    pub asker: Peer,
    pub answerer: Peer,
    pub session: Option<SessionKey>,
    pub second_session: Option<SessionKey>,
    /// Those [`Flags`] that are known before it is recorded.
    pub flags: u8,
    pub verb: Verb,
    /// When it times out; perhaps never.
    pub expires: Moment,
    /// See [`print_of`](super::message::print_of).
    pub print: u32,
}

impl Request {
    /// The asker; none once it has left or got an error, and then the answer is discarded.
    #[inline]
    pub(super) fn asker(&self) -> Option<Peer> {
        self.asker.map(Peer::from)
    }

    /// The answerer.
    #[inline]
    pub(super) fn answerer(&self) -> Peer {
        self.answerer.into()
    }

    /// Time of creation, to the microsecond.
    #[inline]
    pub(super) fn since(&self) -> Moment {
        Moment((u64::from(self.since) | u64::from(self.since_high) << 32) << SINCE_SHIFT)
    }

    /// How its asker has cancelled it, if it has.
    pub(super) fn cancelled(&self) -> Option<Cancel> {
        match self.flags {
            flags if flags.has(Flags::CANCELLED) => Some(Cancel::Answered),
            flags if flags.has(Flags::CANCELLED_SILENTLY) => Some(Cancel::Silent),
            _ => None,
        }
    }

    /// Whether it is only a request whose asker waits for the answer, perhaps with another number.
    #[inline]
    pub(super) fn is_simple(&self) -> bool {
        let is_unusual = self.flags.0 & (Flags::UNUSUAL | Flags::RARE) == Flags::UNUSUAL | Flags::RARE;
        self.asker.is_some() && self.verb == Verb::Other && !is_unusual
    }

    /// The number that its asker knows it by, if its answerer sees another one and nothing is stored beside it. Its worker
    /// does not echo requests.
    #[inline]
    pub(super) fn original_number(&self) -> Option<u32> {
        (self.flags.0 & (Flags::UNUSUAL | Flags::RARE) == Flags::UNUSUAL).then_some(self.print)
    }
}
