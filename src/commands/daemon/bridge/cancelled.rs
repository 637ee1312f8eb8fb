//! What the editor cancels: a request, by its id, or in ACP the turn of a session; and what a request is answered with that
//! no daemon has and that is not sent any more.

use std::collections::HashMap;

use memchr::memmem;
use serde_json::value::RawValue;

use crate::bus::cancels;
use crate::bus::id::Id;
use crate::bus::reply::error_response;

/// What a line of stdin cancels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cancelled {
    /// The request with this id, in MCP: nothing answers it.
    Unanswered(Id),
    /// The same in ACP and LSP, where it is answered nevertheless.
    Answered(Id),
    /// The turn of this session, in ACP: its prompt is answered as one that was cancelled.
    Turn(String),
}

/// The error of a cancelled request, in LSP and ACP.
const REQUEST_CANCELLED: i32 = -32800;

/// The answer to a cancelled prompt (ACP, "Cancellation").
const TURN_CANCELLED: &[u8] = br#"{"stopReason":"cancelled"}"#;

/// A longer line cancels nothing: it would be an id or a name of that length.
const LONGEST_CANCELLATION: usize = 64 * 1024;

impl Cancelled {
    /// What a line cancels, if it does that.
    pub(super) fn by(line: &[u8]) -> Option<Self> {
        if line.len() > LONGEST_CANCELLATION || memmem::find(line, b"ancel").is_none() {
            return None;
        }
        let members: HashMap<String, &RawValue> = serde_json::from_slice(line).ok()?;
        let method: String = serde_json::from_str(members.get("method")?.get()).ok()?;
        if members.contains_key("id") || !cancels(method.as_bytes()) {
            return None;
        }
        let params: HashMap<String, &RawValue> = serde_json::from_str(members.get("params")?.get()).ok()?;
        if let Some(session) = params.get("sessionId").filter(|_| method == "session/cancel") {
            return serde_json::from_str(session.get()).ok().map(Self::Turn);
        }
        let id = params.get("requestId").or(params.get("id"))?;
        let id = Id::parse(id.get().as_bytes()).ok()?;
        Some(if method.starts_with("$/") { Self::Answered(id) } else { Self::Unanswered(id) })
    }

    /// Whether it may be about several requests.
    pub(super) fn is_turn(&self) -> bool {
        matches!(self, Self::Turn(_))
    }

    /// What a line is answered with that is cancelled by this, which may be nothing; none if it is not.
    pub(super) fn answer_to(&self, line: &[u8]) -> Option<Vec<u8>> {
        let members: HashMap<String, &RawValue> = serde_json::from_slice(line).ok()?;
        let (token, method) = (members.get("id")?.get().as_bytes(), members.get("method")?);
        let method: String = serde_json::from_str(method.get()).ok()?;
        let is_it = |id: &Id| Id::parse(token).is_ok_and(|own| own == *id);
        let is_cancelled = match self {
            // MCP: the `initialize` is not cancelled.
            Self::Unanswered(id) => is_it(id) && method != "initialize",
            Self::Answered(id) => is_it(id),
            Self::Turn(session) => {
                let names = || -> Option<String> {
                    let params: HashMap<String, &RawValue> = serde_json::from_str(members.get("params")?.get()).ok()?;
                    serde_json::from_str(params.get("sessionId")?.get()).ok()
                };
                method == "session/prompt" && names().is_some_and(|named| named == *session)
            }
        };
        is_cancelled.then(|| self.answer(token))
    }

    /// The answer to a request with this id, a JSON token, that is cancelled by this; it may be nothing.
    pub(super) fn answer(&self, token: &[u8]) -> Vec<u8> {
        let mut answer = match self {
            Self::Unanswered(_) => return Vec::new(),
            Self::Answered(_) => error_response(token, None, REQUEST_CANCELLED, "the request was cancelled", None),
            Self::Turn(_) => [br#"{"jsonrpc":"2.0","id":"#, token, br#","result":"#, TURN_CANCELLED, b"}"].concat(),
        };
        answer.push(b'\n');
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_request_is_answered_as_its_protocol_says() {
        let request = r#"{"jsonrpc":"2.0","id":"\u0061","method":"m"}"#;
        let prompt = r#"{"id":2,"method":"session/prompt","params":{"sessionId":"s"}}"#;
        let error = r#"{"jsonrpc":"2.0","id":"\u0061","error":{"code":-32800,"message":"the request was cancelled"}}"#;
        for (line, cancels, answer) in [
            (r#"{"method":"notifications/cancelled","params":{"requestId":"a"}}"#, request, Some("")),
            (r#"{"method":"$/cancel_request","params":{"requestId":"a"}}"#, request, Some(error)),
            (r#"{"params":{"id":"a"},"method":"$\/cancelRequest"}"#, request, Some(error)),
            (r#"{"method":"$/cancel_request","params":{"requestId":1}}"#, request, None),
            (r#"{"method":"session/cancel","params":{"sessionId":"\u0073"}}"#, request, None),
            (
                r#"{"method":"session/cancel","params":{"sessionId":"\u0073"}}"#,
                prompt,
                Some(r#"{"jsonrpc":"2.0","id":2,"result":{"stopReason":"cancelled"}}"#),
            ),
            (r#"{"method":"session/cancel","params":{"sessionId":"t"}}"#, prompt, None),
            (
                r#"{"method":"notifications/cancelled","params":{"requestId":0}}"#,
                r#"{"id":0,"method":"initialize"}"#,
                None,
            ),
        ] {
            let cancelled = Cancelled::by(line.as_bytes()).expect(line);
            let message =
                cancelled.answer_to(cancels.as_bytes()).map(|message| String::from_utf8(message).expect("text"));
            let expected = answer.map(|text| if text.is_empty() { String::new() } else { format!("{text}\n") });
            assert_eq!(message, expected, "{line}");
        }
        for line in [
            request,
            r#"{"id":1,"method":"session/cancel","params":{"sessionId":"s"}}"#,
            r#"{"method":"cancel","params":{"requestId":1}}"#,
            r#"{"method":"notifications/cancelled"}"#,
            "cancel",
        ] {
            assert_eq!(Cancelled::by(line.as_bytes()), None, "{line}");
        }
    }
}
