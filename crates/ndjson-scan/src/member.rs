//! The members of a message that routing looks at: their names and places. How a name is found in the bytes is up to
//! the scanners.

/// A member that routing looks at, or any other.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Member {
    #[default]
    Other,
    Id,
    Method,
    Params,
    Result,
    Error,
    Session,
    Pool,
    ParamsSession,
    ParamsRequest,
    ParamsId,
    ResultSession,
    ParamsToken,
    ParamsMeta,
    ResultMeta,
    ResultTask,
}

impl Member {
    /// The member with the highest number.
    pub(super) const LAST: Self = Self::ResultTask;

    /// The member of the message itself with this name.
    pub(super) const fn of_message(name: &[u8]) -> Self {
        match name {
            b"id" => Self::Id,
            b"method" => Self::Method,
            b"params" => Self::Params,
            b"result" => Self::Result,
            b"error" => Self::Error,
            b"sessionId" => Self::Session,
            b"pool" => Self::Pool,
            _ => Self::Other,
        }
    }

    /// The member with this name in the object that is the value of `self`.
    pub(super) const fn inside(self, name: &[u8]) -> Self {
        match (self, name) {
            (Self::Params, b"sessionId") => Self::ParamsSession,
            (Self::Params, b"requestId") => Self::ParamsRequest,
            (Self::Params, b"id") => Self::ParamsId,
            (Self::Params, b"progressToken") => Self::ParamsToken,
            (Self::Params, b"_meta") => Self::ParamsMeta,
            (Self::Result, b"_meta") => Self::ResultMeta,
            (Self::Result, b"sessionId") => Self::ResultSession,
            (Self::Result, b"taskId") => Self::ResultTask,
            _ => Self::Other,
        }
    }

    /// Its bit in a set of members.
    pub(super) const fn bit(self) -> u16 {
        1 << self as u16
    }
}
