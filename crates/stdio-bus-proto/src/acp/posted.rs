//! What a posted message may say, and which stream its answer belongs on.

use std::borrow::Cow;

use ndjson_scan::{string_in, string_in_params};

use super::asked::{LONGEST_NAME, SESSION};
use crate::http1::Status;
use crate::mcp::fault::Fault;
use crate::mcp::message::{Kind, Message};
use stdio_bus_core::eras::protocol::INVALID_REQUEST;

/// The methods whose message has to name its session in the head: those that all official clients send so. A client that
/// asks for a session that it is not using yet (`session/load`, `session/resume`) may have no stream of that.
const OF_A_SESSION: [&[u8]; 5] =
    [b"session/prompt", b"session/cancel", b"session/close", b"session/set_mode", b"session/set_config_option"];

/// The refusal of a batch, which this transport does not have.
pub fn no_batches() -> Fault {
    let why = "batches are not spoken over HTTP: post each message alone";
    Fault { code: INVALID_REQUEST, ..Fault::new(Status::NotImplemented, why) }
}

/// Whether a message begins a connection.
pub fn is_initialize(message: &Message) -> bool {
    message.kind() == Kind::Request && *message.method() == *b"initialize"
}

/// The session that a message of a client names in its params.
pub fn session_of(line: &[u8]) -> Option<Cow<'_, [u8]>> {
    string_in_params(line, b"sessionId").filter(|name| may_have_stream(name))
}

/// The session that a message of a worker is about: it may name that at top level, too.
pub fn session_said(line: &[u8]) -> Option<Cow<'_, [u8]>> {
    session_of(line).or_else(|| string_in(line, b"sessionId").filter(|name| may_have_stream(name)))
}

fn may_have_stream(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= LONGEST_NAME
}

/// The session whose stream has the answer to a message; none if it is that of the connection. `named` is the session that
/// its head names.
///
/// The answer to a message that names no session in its head is sent on the connection's stream, whatever its params
/// say: its client need not have opened another one. So does that of `session/load`, as the RFD has it.
///
/// # Errors
/// The message is of a session, and its head names none, or another one.
pub fn answered_on<'a>(message: &Message, named: Option<&'a str>) -> Result<Option<&'a [u8]>, Fault> {
    let bad = |why: String| Err(Fault::bad(INVALID_REQUEST, why));
    let method = message.method();
    let Some(named) = named else {
        return match OF_A_SESSION.contains(&&*method) {
            true => {
                bad(format!("{} belongs to a session: name that in {SESSION}, too", String::from_utf8_lossy(&method)))
            }
            false => Ok(None),
        };
    };
    if message.kind() == Kind::Response {
        return Ok(None);
    }
    let params = session_of(message.text());
    if params.as_ref().is_some_and(|params| **params != *named.as_bytes()) {
        return bad(format!("{SESSION} names another session than params.sessionId"));
    }
    if params.is_none() && OF_A_SESSION.contains(&&*method) {
        // A worker sees the body alone.
        return bad(format!("{} has no params.sessionId", String::from_utf8_lossy(&method)));
    }
    Ok((message.kind() == Kind::Request && *method != *b"session/load").then_some(named.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::message::LineReader;

    fn message(text: &str) -> Message {
        Message::of_line(text.as_bytes(), &mut LineReader::default()).expect("it is a message")
    }

    fn on(text: &str, named: Option<&str>) -> Result<Option<Vec<u8>>, u16> {
        answered_on(&message(text), named).map(|on| on.map(<[u8]>::to_vec)).map_err(|fault| fault.status.code())
    }

    const PROMPT: &str = r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s","prompt":[]}}"#;

    #[test]
    fn an_answer_is_sent_to_the_stream_of_the_session_that_the_head_of_its_request_names() {
        assert_eq!(on(PROMPT, Some("s")), Ok(Some(b"s".to_vec())));
        let other = |method: &str| format!(r#"{{"id":1,"method":"{method}","params":{{"sessionId":"s"}}}}"#);
        assert_eq!(on(&other("session/resume"), Some("s")), Ok(Some(b"s".to_vec())));
        assert_eq!(on(&other("session/load"), Some("s")), Ok(None), "its client waits on the connection's stream");
        for method in ["session/resume", "session/load", "session/fork", "session/delete", "session/set_model"] {
            assert_eq!(on(&other(method), None), Ok(None), "{method}: Python's client sends no session in the head");
        }
        assert_eq!(on(r#"{"id":1,"method":"session/new","params":{}}"#, None), Ok(None));
        assert_eq!(on(r#"{"id":1,"method":"_x/y","params":{}}"#, Some("s")), Ok(Some(b"s".to_vec())));
    }

    #[test]
    fn nothing_is_sent_on_a_stream_for_a_message_without_an_answer() {
        assert_eq!(on(r#"{"method":"session/cancel","params":{"sessionId":"s"}}"#, Some("s")), Ok(None));
        assert_eq!(on(r#"{"id":1,"result":{}}"#, Some("s")), Ok(None), "a response has no session in its params");
        assert_eq!(on(r#"{"id":1,"result":{}}"#, None), Ok(None));
    }

    #[test]
    fn a_message_of_a_session_whose_head_says_otherwise_is_refused() {
        assert_eq!(on(PROMPT, None), Err(400));
        assert_eq!(on(PROMPT, Some("t")), Err(400));
        assert_eq!(on(r#"{"id":1,"method":"session/prompt","params":{}}"#, Some("s")), Err(400));
        assert!(on(r#"{"id":1,"method":"session/prompt","params":{"sessionId":"\u0073"}}"#, Some("s")).is_ok());
    }

    #[test]
    fn only_a_request_begins_a_connection() {
        assert!(is_initialize(&message(r#"{"id":0,"method":"initialize"}"#)));
        assert!(!is_initialize(&message(r#"{"method":"initialize"}"#)) && !is_initialize(&message(PROMPT)));
        assert_eq!(session_of(PROMPT.as_bytes()).as_deref(), Some(&b"s"[..]));
        assert_eq!(session_of(br#"{"method":"a","params":{"sessionId":""}}"#), None);
        let top = br#"{"method":"a","sessionId":"t","params":{}}"#;
        assert_eq!((session_of(top), session_said(top).as_deref()), (None, Some(&b"t"[..])));
    }
}
