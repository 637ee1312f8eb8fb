//! The revisions of MCP, with their dates, and the error codes of JSON-RPC and MCP. The core, `mcp` and the bridge have no
//! others. The codes that stdio-bus gives its own errors are in `report.rs`.
//!
//! A new revision is a row of [`REVISIONS`]. So is one that ends: what depends on it alone then does not compile.

use crate::settings::Era;

/// A revision of MCP ("Versioning"), and what the bus has to know of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Revision {
    /// Its name.
    pub date: &'static str,
    /// Whether its clients begin with `initialize`.
    pub era: Era,
    /// Whether it has Streamable HTTP; else it has an older transport, which the bus does not have.
    pub is_over_http: bool,
    /// Whether a client may post several messages at once.
    pub has_batches: bool,
    /// Whether streams begin with an empty event, from which they can be resumed. Clients of other revisions take its
    /// data for a message.
    pub primes_streams: bool,
}

const OLDEST: Revision =
    Revision { date: "2024-10-07", era: Era::Legacy, is_over_http: false, has_batches: false, primes_streams: false };

/// All of them, newest first.
pub static REVISIONS: [Revision; 6] = [
    Revision { date: "2026-07-28", era: Era::Modern, is_over_http: true, ..OLDEST },
    Revision { date: "2025-11-25", is_over_http: true, primes_streams: true, ..OLDEST },
    Revision { date: "2025-06-18", is_over_http: true, ..OLDEST },
    Revision { date: "2025-03-26", is_over_http: true, has_batches: true, ..OLDEST },
    Revision { date: "2024-11-05", ..OLDEST },
    OLDEST,
];

/// The newest revision whose requests are self-contained.
pub const MODERN: &str = newest(Era::Modern);
/// The newest revision that begins with `initialize`.
pub const LEGACY: &str = newest(Era::Legacy);

const fn newest(era: Era) -> &'static str {
    let mut at = 0;
    while REVISIONS[at].era as u8 != era as u8 {
        at += 1;
    }
    REVISIONS[at].date
}

/// The revision with this date.
pub fn revision(date: &[u8]) -> Option<&'static Revision> {
    REVISIONS.iter().find(|revision| revision.date.as_bytes() == date)
}

/// The revisions of an era that clients over HTTP may speak, newest first.
pub fn spoken_over_http(era: Era) -> impl Iterator<Item = &'static str> {
    REVISIONS.iter().filter(move |revision| revision.era == era && revision.is_over_http).map(|revision| revision.date)
}

// JSON-RPC 2.0 ("Error object").
pub const PARSE_ERROR: i32 = -32700;
pub const INVALID_REQUEST: i32 = -32600;
pub const METHOD_NOT_FOUND: i32 = -32601;
pub const INVALID_PARAMS: i32 = -32602;
// MCP ("Error codes").
pub const HEADER_MISMATCH: i32 = -32020;
pub const MISSING_CAPABILITY: i32 = -32021;
pub const UNSUPPORTED_VERSION: i32 = -32022;
/// What the SDKs of MCP use for errors of the transport.
pub const TRANSPORT: i32 = -32000;
/// What they use for a session that does not exist.
pub const NO_SESSION: i32 = -32001;
/// ACP's code for a resource, such as a session, that an agent does not know.
pub const RESOURCE_NOT_FOUND: i32 = -32002;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Reason;

    #[test]
    fn each_era_has_its_newest_revision_and_dates_are_in_order() {
        assert!(REVISIONS.is_sorted_by(|one, next| one.date > next.date));
        for (era, date) in [(Era::Modern, MODERN), (Era::Legacy, LEGACY)] {
            assert_eq!(revision(date.as_bytes()).map(|found| found.era), Some(era));
            assert_eq!(spoken_over_http(era).next(), Some(date));
        }
        assert_eq!(revision(b"2027-01-01"), None);
    }

    #[test]
    fn reasons_that_stand_for_an_error_of_the_protocol_have_its_code() {
        for (reason, code) in [
            (Reason::ClientMalformed, PARSE_ERROR),
            (Reason::ServerRequest, INVALID_REQUEST),
            (Reason::MethodDenied, METHOD_NOT_FOUND),
            (Reason::UnknownPool, INVALID_PARAMS),
            (Reason::EraUnsupported, UNSUPPORTED_VERSION),
        ] {
            assert_eq!(reason.code(), code, "{}", reason.name());
        }
    }
}
