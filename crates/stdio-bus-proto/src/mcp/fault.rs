//! Why a request is not served: an HTTP status, and a JSON-RPC error that says what to do.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::access::Refusal;
use crate::http1::Status;
use stdio_bus_core::eras::protocol::{
    HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_CAPABILITY, MODERN, NO_SESSION, TRANSPORT,
    UNSUPPORTED_VERSION, spoken_over_http,
};
use stdio_bus_core::port::Reason;
use stdio_bus_core::reply;
use stdio_bus_core::settings::Era;

/// A refusal: the status of the response, and the JSON-RPC error in its body.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The HTTP status.
    pub status: Status,
    /// The JSON-RPC error code.
    pub code: i32,
    /// What is wrong, and what to do about it.
    pub why: Cow<'static, str>,
    /// Machine-readable details.
    pub data: Option<Value>,
    /// Seconds after which to retry.
    pub retry_after: Option<u32>,
    /// What it is counted as, if that does not follow from status and code.
    pub counts_as: Option<Reason>,
}

impl Fault {
    /// A transport error.
    pub fn new(status: Status, why: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code: TRANSPORT, why: why.into(), data: None, retry_after: None, counts_as: None }
    }

    /// An invalid request, with this code.
    pub fn bad(code: i32, why: impl Into<Cow<'static, str>>) -> Self {
        Self { code, ..Self::new(Status::BadRequest, why) }
    }

    /// There is no capacity now.
    pub fn busy(why: impl Into<Cow<'static, str>>) -> Self {
        Self { retry_after: Some(1), ..Self::new(Status::Unavailable, why) }
    }

    /// The daemon shuts down, and no worker got the request: it is safe to send it again, elsewhere or later.
    pub fn shutting_down() -> Self {
        let why = Reason::ShuttingDown;
        let data = json!({ "reason": why.name(), "delivered": false });
        Self { code: why.code(), data: Some(data), ..Self::busy("the daemon is shutting down") }
    }

    /// The same for a request in a session that ends with the daemon: on a 404 clients begin a new one, which a balancer
    /// brings to another daemon.
    pub fn session_shuts_down() -> Self {
        let why = "the daemon is shutting down, and this session has ended; begin with initialize";
        Self { status: Status::NotFound, retry_after: None, why: why.into(), ..Self::shutting_down() }
    }

    /// There is no capacity for this client, while there is for others: it has as much as it may have, for this reason.
    /// No worker got the request.
    pub fn too_many(reason: Reason, why: impl Into<Cow<'static, str>>) -> Self {
        let data = json!({ "reason": reason.name(), "delivered": false });
        let (code, data) = (reason.code(), Some(data));
        Self { code, data, retry_after: Some(1), ..Self::new(Status::TooManyRequests, why) }
    }

    /// The same for a request that is given up, which a worker may have acted upon.
    pub fn delivered(mut self) -> Self {
        if let Some(data) = &mut self.data {
            data["delivered"] = true.into();
        }
        self
    }

    /// None of the requested versions is supported.
    pub fn version(requested: &str) -> Self {
        let why = format!("protocol version {requested:?} is not spoken here");
        let data = json!({ "supported": [MODERN], "requested": requested });
        Self { data: Some(data), ..Self::bad(UNSUPPORTED_VERSION, why) }
    }

    /// Makes clients of 2026-07-28 fall back to `initialize`, for this reason. One that only asks with `server/discover`
    /// which versions are served gets what a server of an earlier one answers: some clients go on to `initialize` after
    /// that alone.
    pub fn legacy_server(why: String, discovers: bool) -> Self {
        if discovers {
            return Self { code: METHOD_NOT_FOUND, ..Self::new(Status::BadRequest, why) };
        }
        let data = json!({
            "reason": Reason::EraUnsupported.name(),
            "delivered": false,
            "supported": spoken_over_http(Era::Legacy).collect::<Vec<_>>(),
            "requested": MODERN,
        });
        Self { data: Some(data), ..Self::bad(UNSUPPORTED_VERSION, why) }
    }

    /// The reason it is counted under. A client that asks for the newer era first only wants to learn which era the
    /// server speaks.
    pub fn reason(&self) -> Reason {
        if let Some(reason) = self.counts_as {
            return reason;
        }
        match (self.status, self.code) {
            (Status::BadRequest, METHOD_NOT_FOUND) => Reason::EraUnsupported,
            (_, code) if code == Reason::ShuttingDown.code() => Reason::ShuttingDown,
            (Status::TooManyRequests, code) if code == Reason::PendingLimit.code() => Reason::PendingLimit,
            (Status::TooManyRequests, _) => Reason::ConnectionLimit,
            (Status::NotFound, NO_SESSION) if self.data.is_some() => Reason::RequestDiscarded,
            (_, UNSUPPORTED_VERSION) if self.data.as_ref().is_some_and(|data| data.get("reason").is_some()) => {
                Reason::EraUnsupported
            }
            _ => Reason::HandshakeRefused,
        }
    }

    /// The session does not exist, or belongs to another client.
    pub fn no_session() -> Self {
        Self { code: NO_SESSION, ..Self::new(Status::NotFound, "there is no such session; begin with initialize") }
    }

    /// The session ended before one of its requests was answered. On a 404 some clients would repeat the request in a
    /// new session, although a worker may have acted on it.
    pub fn session_ended() -> Self {
        let why = Reason::RequestDiscarded;
        let data = json!({ "reason": why.name(), "delivered": true });
        let text = "the session has ended before this was answered";
        Self { code: why.code(), data: Some(data), ..Self::new(Status::Ok, text) }
    }

    /// The session ended while the daemon held one of its requests, which no worker has got: it is as one that comes later.
    pub fn session_ended_before() -> Self {
        let data = json!({ "reason": Reason::RequestDiscarded.name(), "delivered": false });
        let why = "the session has ended before a worker got this; begin with initialize";
        Self { why: why.into(), data: Some(data), ..Self::no_session() }
    }

    /// No worker serves the session now, which is known: no worker has got the request, and it may be asked again.
    pub fn session_waits() -> Self {
        let data = json!({ "reason": Reason::RequestDiscarded.name(), "delivered": false });
        let why = "no worker serves this session now; ask again";
        Self { code: Reason::RequestDiscarded.code(), data: Some(data), ..Self::busy(why) }
    }

    /// The answer to a request could not be kept until its client came back for it.
    pub fn answer_lost() -> Self {
        let why = Reason::EventsLost;
        let data = json!({ "reason": why.name(), "delivered": true });
        let text =
            "the answer to this request was lost: its connection broke, and limits.max_memory left no room to keep it";
        Self { data: Some(data), ..Self::new(Status::Ok, text) }
    }

    /// The session belongs to another daemon.
    pub fn session_of_another_node() -> Self {
        let why = "there is no such session: another node has begun it, which has gone, or a balancer brings its requests to \
                   the wrong daemon; begin with initialize";
        Self { why: why.into(), ..Self::no_session() }
    }

    /// The response body, with this id, which is a JSON token.
    pub fn body(&self, id: &[u8]) -> Vec<u8> {
        let data = self.data.as_ref().map(Value::to_string);
        reply::error_response(id, None, self.code, &self.why, data.as_deref().map(str::as_bytes))
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let Refusal { status, why, retry_after, reason } = refusal;
        let counts_as = Some(reason).filter(|reason| *reason != Reason::HandshakeRefused);
        match status {
            Status::TooManyRequests => Self { retry_after, ..Self::too_many(Reason::ConnectionLimit, why) },
            _ => Self { retry_after, counts_as, ..Self::new(status, why) },
        }
    }
}

/// The HTTP status for an error response with this code, where MCP 2026-07-28 defines one ("Streamable HTTP").
pub fn status_of(code: i64) -> Status {
    match i32::try_from(code) {
        Ok(METHOD_NOT_FOUND) => Status::NotFound,
        Ok(INVALID_PARAMS | HEADER_MISMATCH | MISSING_CAPABILITY | UNSUPPORTED_VERSION) => Status::BadRequest,
        _ => Status::Ok,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_an_error_of_json_rpc_with_the_id_as_it_was_written() {
        let body = Fault::version("2027-01-01").body(br#""a\u0062""#);
        let text = String::from_utf8(body).expect("it is text");
        assert!(text.starts_with(r#"{"jsonrpc":"2.0","id":"a\u0062","error":{"#), "{text}");
        let value: Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(value["error"]["data"]["supported"], json!([MODERN]));
        let legacy = |discovers| Fault::legacy_server("x".into(), discovers);
        let all = [legacy(true), legacy(false), Fault::version("x"), Fault::no_session()];
        let reasons = all.map(|fault| fault.reason());
        let refused = Reason::HandshakeRefused;
        assert_eq!(reasons, [Reason::EraUnsupported, Reason::EraUnsupported, refused, refused]);
        for reason in [Reason::PendingLimit, Reason::ConnectionLimit] {
            let fault = Fault::too_many(reason, "why").delivered();
            assert_eq!((fault.status.code(), fault.code, fault.reason()), (429, reason.code(), reason));
            assert_eq!(fault.data, Some(json!({ "reason": reason.name(), "delivered": true })));
        }
        let discarded = Fault::session_ended_before();
        assert_eq!((discarded.status.code(), discarded.reason()), (404, Reason::RequestDiscarded));
        for (fault, status) in [(Fault::shutting_down(), 503), (Fault::session_shuts_down(), 404)] {
            assert_eq!((fault.status.code(), fault.code, fault.reason()), (status, -32016, Reason::ShuttingDown));
            assert_eq!(fault.data, Some(json!({ "reason": "shutting_down", "delivered": false })));
            assert_eq!(fault.retry_after.is_some(), status == 503);
        }
        assert_eq!(
            (status_of(-32601), status_of(-32022), status_of(-32603)),
            (Status::NotFound, Status::BadRequest, Status::Ok)
        );
    }
}
