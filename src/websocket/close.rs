//! Why a connection is closed: the codes of RFC 6455, section 7.4, and which of them a frame may carry.

/// It has done what it was for.
pub const NORMAL: u16 = 1000;
/// A server that shuts down, or a page that was left.
pub const GOING_AWAY: u16 = 1001;
/// The other end has broken the protocol.
pub const PROTOCOL_ERROR: u16 = 1002;
/// A kind of data that is not taken.
pub const UNSUPPORTED: u16 = 1003;
/// Data that is not what its kind says: text that is not UTF-8.
pub const INVALID_DATA: u16 = 1007;
/// What is allowed by the protocol, and not here.
pub const POLICY_VIOLATION: u16 = 1008;
/// A message that is too long.
pub const TOO_BIG: u16 = 1009;
/// Something has gone wrong in a server.
pub const INTERNAL_ERROR: u16 = 1011;
/// A server that cannot serve now, and may be asked again.
pub const TRY_AGAIN_LATER: u16 = 1013;

/// Whether a close frame may carry this code: one of those that are registered for it, or of the ranges that libraries
/// and applications have for themselves. 1004, 1005, 1006 and 1015 stand for what is not said in a frame.
pub const fn may_be_sent(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

/// What the other end has done wrong. Nothing that comes after it can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The code to close the connection with.
    pub code: u16,
    /// What was wrong, for its close frame and for the log.
    pub reason: &'static str,
}

impl Fault {
    /// The protocol was broken.
    pub(super) const fn protocol(reason: &'static str) -> Self {
        Self { code: PROTOCOL_ERROR, reason }
    }
}
