//! One pending request: asker, answerer, and deadline. Rarely used state is stored beside it: names that are not
//! numbers, and original names that the answerer sees replaced. All are in one table (`table.rs`).
//!
//! Invariant: with its key it fills one cache line.

use crate::id::Id;
use crate::message::{Cancel, KnownMethod};
use crate::peer::{ClientKey, Moment, Peer, PeerBits, RequestKey, SessionKey, ShortText};
use crate::settings::MAX_PENDING_REQUESTS;

/// The unit of the times of requests, as a shift: they last for nine years.
pub(super) const SINCE_SHIFT: u32 = 10;

/// No request, as a slot number.
pub(super) const NONE: u16 = u16::MAX;

/// Facts about a request.
#[derive(Clone, Copy)]
pub(crate) struct Flags(pub u8);

impl Flags {
    /// There is a [`RequestExtras`] beside it.
    pub(crate) const RARE: u8 = 1;
    /// That holds more than the answerer's names. Without one: its asker knows it by another number, and nothing else is
    /// unusual (`Request::original_number`).
    pub(crate) const UNUSUAL: u8 = 16;
    /// The sessionId was at top level, where an answer repeats it (spec 5.2.2).
    pub(crate) const ON_TOP: u8 = 2;
    /// Its asker has cancelled it, but is to get an answer.
    pub(crate) const CANCELLED: u8 = 4;
    /// Its asker has cancelled it, and is to get no answer.
    pub(crate) const CANCELLED_SILENTLY: u8 = 8;
    /// Its progress token is the wire id.
    pub(crate) const TOKEN_IS_ID: u8 = 32;
    /// The wire id is not a number.
    pub(crate) const TEXT: u8 = 64;
    /// It is a `session/prompt` that may time out.
    pub(crate) const PROMPT: u8 = 128;

    pub(crate) fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
}

/// A pending request.
pub(crate) struct Request {
    pub(super) asker: Option<PeerBits>,
    pub(super) answerer: PeerBits,
    /// The id that the answerer sees: the number, or the fingerprint of its text.
    pub(super) wire: u64,
    /// The session that determined its route.
    pub(super) session: Option<SessionKey>,
    pub(super) expires: Moment,
    /// Time of creation in units of 1,024 ns: the low 32 bits, and those above.
    pub(super) since: u32,
    pub(super) since_high: u16,
    /// The asker's previous and next request.
    pub(super) before: u16,
    pub(super) after: u16,
    /// The meaning of its method, and so the effect of an answer on its sessions.
    pub(super) verb: KnownMethod,
    pub(super) flags: Flags,
    /// The hash of its line, to recognise an echo; or the number that its asker knows it by.
    pub(super) print: u32,
}

// With its key a request fills one cache line.
const _: () = assert!(size_of::<Request>() <= 56);
// Slots are counted in sixteen bits.
const _: () = assert!(2 * MAX_PENDING_REQUESTS < NONE as usize);

/// Rarely used state of a request.
#[derive(Default)]
pub(super) struct RequestExtras {
    /// The wire id, if it is not a number.
    pub(super) wire: Option<Id>,
    /// The id as its asker wrote it, if it is not the wire id, or is spelled differently.
    pub(super) original: Option<Original>,
    /// The session in its params, if it differs from the one that determined its route.
    pub(super) second_session: Option<SessionKey>,
    /// The progress token that the answerer sees, if that is not the wire id.
    pub(super) token: Option<Id>,
    /// The asker's progress token, if the answerer sees another one.
    pub(super) original_token: Option<ShortText>,
    /// The client's request that this question of a worker belongs to.
    pub(super) belongs_to: Option<RequestKey>,
    /// The beginning of the method of a worker's question, as written.
    pub(super) method: ShortText,
}

/// The id as its asker wrote it.
#[derive(Clone)]
pub(crate) struct Original {
    pub id: Id,
    pub token: ShortText,
    /// The answerer sees another id.
    pub is_replaced: bool,
}

/// A request to be recorded.
pub(crate) struct NewRequest {
    pub asker: Peer,
    pub answerer: Peer,
    pub session: Option<SessionKey>,
    pub second_session: Option<SessionKey>,
    /// Those [`Flags`] that are known before it is recorded.
    pub flags: u8,
    pub verb: KnownMethod,
    /// When it times out; perhaps never.
    pub expires: Moment,
    /// See [`print_of`](crate::message::print_of).
    pub print: u32,
}

impl Request {
    /// The asker; none once it has left or got an error, and then the answer is discarded.
    #[inline]
    pub(crate) fn asker(&self) -> Option<Peer> {
        self.asker.map(Peer::from)
    }

    /// The client that waits for the answer, if one does.
    #[inline(always)]
    pub(crate) fn waiting_client(&self) -> Option<ClientKey> {
        self.asker?.client()
    }

    /// Who has to answer it.
    #[inline]
    pub(crate) fn answerer(&self) -> Peer {
        self.answerer.into()
    }

    /// The meaning of its method, and so the effect of an answer on its sessions.
    #[inline(always)]
    pub(crate) fn verb(&self) -> KnownMethod {
        self.verb
    }

    /// When it times out; perhaps never.
    pub(crate) fn expires(&self) -> Moment {
        self.expires
    }

    /// The session that determined its route.
    #[inline(always)]
    pub(crate) fn session(&self) -> Option<SessionKey> {
        self.session
    }

    /// The session that determined its route, if an answer repeats it at top level (spec 5.2.2).
    pub(crate) fn session_on_top(&self) -> Option<SessionKey> {
        self.session.filter(|_| self.flags.has(Flags::ON_TOP))
    }

    /// Whether it is a `session/prompt` that may time out.
    pub(crate) fn is_prompt(&self) -> bool {
        self.flags.has(Flags::PROMPT)
    }

    /// Whether its progress arrives under its id, which its asker knows it by, too.
    #[inline(always)]
    pub(crate) fn has_own_id_as_token(&self) -> bool {
        self.flags.has(Flags::TOKEN_IS_ID) && !self.flags.has(Flags::UNUSUAL)
    }

    /// Time of creation, to the microsecond.
    #[inline]
    pub(crate) fn since(&self) -> Moment {
        Moment((u64::from(self.since) | u64::from(self.since_high) << 32) << SINCE_SHIFT)
    }

    /// How its asker has cancelled it, if it has.
    pub(crate) fn cancelled(&self) -> Option<Cancel> {
        match self.flags {
            flags if flags.has(Flags::CANCELLED) => Some(Cancel::Answered),
            flags if flags.has(Flags::CANCELLED_SILENTLY) => Some(Cancel::Silent),
            _ => None,
        }
    }

    /// Whether its answerer owes an answer, to an asker that may have left.
    pub(crate) fn is_owed(&self) -> bool {
        self.verb != KnownMethod::Listen && self.cancelled().is_none()
    }

    /// Whether it is only a request whose asker waits for the answer, perhaps with another number.
    #[inline]
    pub(crate) fn is_simple(&self) -> bool {
        let is_unusual = self.flags.0 & (Flags::UNUSUAL | Flags::RARE) == Flags::UNUSUAL | Flags::RARE;
        self.asker.is_some() && self.verb == KnownMethod::Other && !is_unusual
    }

    /// The number that its asker knows it by, if its answerer sees another one and nothing is stored beside it. Its worker
    /// does not echo requests.
    #[inline]
    pub(crate) fn original_number(&self) -> Option<u32> {
        (self.flags.0 & (Flags::UNUSUAL | Flags::RARE) == Flags::UNUSUAL).then_some(self.print)
    }
}
