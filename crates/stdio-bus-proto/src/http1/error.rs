//! Why bytes are not valid HTTP/1.

use super::status::Status;

/// An error in what the peer sent. Nothing after it can be read on the same connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// The status that a server answers with.
    pub status: Status,
    /// What is wrong, in one line.
    pub why: &'static str,
}

impl Error {
    pub(super) const NOT_HTTP: Self = Self::bad("this is not HTTP");
    pub(super) const MALFORMED: Self = Self::bad("this is not HTTP: the head is malformed");
    pub(super) const LINE_END: Self = Self::bad("a line of the head does not end with CR LF");
    pub(super) const VERSION: Self = Self::new(Status::VersionNotSupported, "HTTP/1.1 is spoken here, and HTTP/1.0");
    pub(crate) const LONG_TARGET: Self = Self::new(Status::TargetTooLong, "the first line of the request is too long");
    pub(crate) const LONG_HEAD: Self =
        Self::new(Status::FieldsTooLarge, "the head of the request is longer than 32 KiB, or has more than 64 fields");
    pub(super) const LONG_BODY: Self = Self::new(Status::ContentTooLarge, "the body is too long");
    pub(super) const CHUNK: Self = Self::bad("the body is no sequence of chunks");
    pub(super) const LONG_CHUNK_LINE: Self =
        Self::bad("a chunk has too long an extension, or too many fields follow it");
    /// The connection was closed before any byte arrived.
    pub const NOTHING: Self = Self::bad("it closed without an answer");
    /// The connection was closed in the middle of a message.
    pub const CUT_OFF: Self = Self::bad("its answer was cut off");

    pub(super) const fn new(status: Status, why: &'static str) -> Self {
        Self { status, why }
    }

    pub(super) const fn bad(why: &'static str) -> Self {
        Self::new(Status::BadRequest, why)
    }
}
