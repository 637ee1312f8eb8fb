//! Refusals of HTTP requests that are not admitted (status 401, 403, 429, 503 and so on): the response has one line of
//! JSON that says why.

use std::borrow::Cow;

use stdio_bus_core::admission::Rejection;
use stdio_bus_core::port::Reason;

use crate::http1::{Error, Head, Status};

/// Seconds after which to retry at a daemon that drains or is full.
pub const RETRY_AFTER: u32 = 1;

/// A refused request. [`Self::response`] is the whole response to one for a WebSocket, after which the connection is
/// closed; MCP answers with JSON-RPC ([`crate::mcp::Fault`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status of the response.
    pub status: Status,
    /// What is wrong, for the client and for the log.
    pub why: Cow<'static, str>,
    /// Seconds after which to retry.
    pub retry_after: Option<u32>,
    /// What it is counted as.
    pub reason: Reason,
}

impl Refusal {
    /// A refusal.
    pub fn new(status: Status, why: impl Into<Cow<'static, str>>) -> Self {
        Self { status, why: why.into(), retry_after: None, reason: Reason::HandshakeRefused }
    }

    /// No connection is admitted now; retry in this many seconds.
    pub fn unavailable(why: impl Into<Cow<'static, str>>, retry_after: u32) -> Self {
        Self { retry_after: Some(retry_after), ..Self::new(Status::Unavailable, why) }
    }

    /// There is no room for this client, since its source has as much as it may have; retry in this many seconds.
    pub fn too_many(why: impl Into<Cow<'static, str>>, retry_after: u32) -> Self {
        Self { retry_after: Some(retry_after), ..Self::new(Status::TooManyRequests, why) }
    }

    /// The name that the request gives its client is not trusted, or ambiguous (400).
    pub fn identity(why: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Reason::IdentityRefused, ..Self::new(Status::BadRequest, why) }
    }

    /// The request is ambiguous or malformed (400).
    pub fn bad(why: &'static str) -> Self {
        Self::new(Status::BadRequest, why)
    }

    /// The response to the request of a WebSocket. `challenge` is where its client signs in, if the listener announces that
    /// ([`super::OAuth::challenge`]); a client that lacks a name needs it (RFC 9728, section 5.1).
    pub fn response(&self, challenge: Option<&str>) -> String {
        let (code, name) = (self.status.code(), self.status.name());
        let head = Head::answer(self.status);
        let head = match self.status {
            Status::Unauthorized => head.field("WWW-Authenticate", challenge.unwrap_or("Bearer realm=\"stdio_bus\"")),
            Status::MethodNotAllowed => head.field("Allow", "GET"),
            Status::UpgradeRequired => head.field("Upgrade", "websocket").field("Sec-WebSocket-Version", 13),
            _ => head,
        };
        // RFC 9110, section 7.8: a sender of Upgrade lists it here.
        let connection = if self.status == Status::UpgradeRequired { "close, Upgrade" } else { "close" };
        let head = head
            .field_if("Retry-After", self.retry_after)
            .field("Connection", connection)
            .field("Content-Type", "application/json");
        let body = serde_json::json!({ "status": code, "error": name, "message": self.why }).to_string();
        head.body(&(body + "\n"))
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        // For a WebSocket client it makes no difference which part of the head is too long.
        let Error { status, why } = if error == Error::LONG_TARGET { Error::LONG_HEAD } else { error };
        Self::new(status, why)
    }
}

/// Why the core refuses a client that may come in by its host, page and token.
impl From<Rejection> for Refusal {
    fn from(why: Rejection) -> Self {
        let text = why.text().to_owned();
        // A balancer may take 503 for a sign that the daemon is down, and send nobody there for a while: what is about one
        // client is 429.
        match why {
            Rejection::Draining | Rejection::Removed | Rejection::NoRoom(_) => Self::unavailable(text, RETRY_AFTER),
            Rejection::TooMany(_) => Self::too_many(text, RETRY_AFTER),
            Rejection::NotAllowed(_) => Self::new(Status::Forbidden, text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Status; 11] = [
        Status::BadRequest,
        Status::Unauthorized,
        Status::Forbidden,
        Status::NotFound,
        Status::MethodNotAllowed,
        Status::RequestTimeout,
        Status::UpgradeRequired,
        Status::TooManyRequests,
        Status::FieldsTooLarge,
        Status::Unavailable,
        Status::VersionNotSupported,
    ];

    #[test]
    fn a_refusal_says_why_in_one_line_and_closes() {
        for status in ALL {
            let text = Refusal::new(status, "a \"word\"\nof two lines").response(None);
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {} {}\r\n", status.code(), status.name())), "{text}");
            assert!(head.contains("\r\nConnection: close"), "{text}");
            assert!(head.ends_with(&format!("\r\nContent-Length: {}", body.len())), "{text}");
            assert_eq!(body.find('\n'), Some(body.len() - 1), "{text}");
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!((&body["status"], &body["error"]), (&status.code().into(), &status.name().into()));
            assert_eq!(body["message"], "a \"word\"\nof two lines");
        }
    }

    #[test]
    fn a_refusal_has_the_fields_that_http_asks_for() {
        let has = |refusal: Refusal, field: &str| refusal.response(None).contains(&format!("\r\n{field}\r\n"));
        assert!(has(Refusal::new(Status::Unauthorized, ""), "WWW-Authenticate: Bearer realm=\"stdio_bus\""));
        assert!(has(Refusal::new(Status::MethodNotAllowed, ""), "Allow: GET"));
        assert!(has(Refusal::new(Status::UpgradeRequired, ""), "Sec-WebSocket-Version: 13"));
        assert!(has(Refusal::new(Status::UpgradeRequired, ""), "Upgrade: websocket"));
        assert!(has(Refusal::new(Status::UpgradeRequired, ""), "Connection: close, Upgrade"));
        assert!(has(Refusal::unavailable("it drains", 5), "Retry-After: 5"));
    }

    #[test]
    fn a_refused_upgrade_says_where_to_sign_in_if_its_listener_does() {
        let challenge = "Bearer resource_metadata=\"https://a/.well-known/oauth-protected-resource\"";
        let text = Refusal::new(Status::Unauthorized, "").response(Some(challenge));
        assert!(text.contains(&format!("\r\nWWW-Authenticate: {challenge}\r\n")), "{text}");
        assert_eq!(text.matches("WWW-Authenticate").count(), 1, "{text}");
        let forbidden = Refusal::new(Status::Forbidden, "").response(Some(challenge));
        assert!(!forbidden.contains("WWW-Authenticate"), "signing in would not help: {forbidden}");
    }
}
