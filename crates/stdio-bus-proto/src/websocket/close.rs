//! Close codes (RFC 6455, section 7.4), and which of them a frame may carry.

/// The connection has served its purpose.
pub const NORMAL: u16 = 1000;
/// The server shuts down, or the browser left the page.
pub const GOING_AWAY: u16 = 1001;
/// The peer violated the protocol.
pub const PROTOCOL_ERROR: u16 = 1002;
/// A type of data that is not accepted.
pub const UNSUPPORTED: u16 = 1003;
/// Data that does not match its type: text that is not UTF-8.
pub const INVALID_DATA: u16 = 1007;
/// Allowed by the protocol, but not here.
pub const POLICY_VIOLATION: u16 = 1008;
/// A message that is too long.
pub const TOO_BIG: u16 = 1009;
/// An error in the server.
pub const INTERNAL_ERROR: u16 = 1011;
/// The server cannot serve now; retry later.
pub const TRY_AGAIN_LATER: u16 = 1013;

/// Whether a close frame may carry this code: registered codes, and the ranges for libraries and applications. 1004,
/// 1005, 1006 and 1015 are never sent in a frame.
pub const fn may_be_sent(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

/// A peer's violation of the protocol. Nothing after it can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The code to close the connection with.
    pub code: u16,
    /// What is wrong, for the close frame and for the log.
    pub reason: &'static str,
}

impl Violation {
    /// A protocol error.
    pub(super) const fn protocol(reason: &'static str) -> Self {
        Self { code: PROTOCOL_ERROR, reason }
    }
}
