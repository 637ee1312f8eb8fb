//! What MCP 2026-07-28 requires of a request: its `params._meta` describes it, and its head repeats that for
//! intermediaries ("Streamable HTTP", "Versioning").

use std::borrow::Cow;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memmem::Finder;

use super::asked::Asked;
use super::fault::Fault;
use super::head::named_by;
use super::message::{Kind, Message};
use super::params::Wanted;
use crate::http1::Status;
use stdio_bus_core::eras::protocol::{
    HEADER_MISMATCH, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, MODERN, revision,
};
use stdio_bus_core::settings::Era;

/// The version that the message itself declares.
fn version(message: &Message) -> Result<Option<Cow<'_, [u8]>>, Fault> {
    static NAME: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("io.modelcontextprotocol"));
    match message.has_params() || NAME.find(message.text()).is_some() {
        true => only_string(message, Wanted::Version),
        false => Ok(None),
    }
}

/// The decoded value of this member, if it is a string. Given two, a worker may read the other one.
fn only_string(message: &Message, wanted: Wanted) -> Result<Option<Cow<'_, [u8]>>, Fault> {
    let params = message.params();
    match params.is_twice(wanted) {
        true => Err(Fault::bad(INVALID_PARAMS, format!("\"{}\" occurs twice", wanted.name()))),
        false => Ok(params.string(message.text(), wanted)),
    }
}

/// Whether a posted message is of 2026-07-28 or later and belongs to no session. An `initialize` is judged by its body
/// alone.
///
/// # Errors
/// The version in its head is unknown.
pub fn is_modern(asked: &Asked, message: &Message) -> Result<bool, Fault> {
    if version(message)?.is_some() {
        return Ok(true);
    }
    // It comes before any negotiation. Some clients send the version that they hope for, others that of the last session.
    if message.kind() == Kind::Request && *message.method() == *b"initialize" {
        return Ok(false);
    }
    if asked.says_modern() {
        return Ok(true);
    }
    check_legacy(asked).map(|()| false)
}

/// Checks that the head of a session's request names a version with sessions, or none.
///
/// # Errors
/// It names another version.
pub fn check_legacy(asked: &Asked) -> Result<(), Fault> {
    match asked.version.as_deref() {
        Some(version) if revision(version.as_bytes()).is_none_or(|revision| revision.era != Era::Legacy) => {
            Err(Fault::new(Status::BadRequest, format!("protocol version {version:?} is not spoken here")))
        }
        _ => Ok(()),
    }
}

/// Checks that a request may have a batch, by its head alone.
///
/// # Errors
/// It may not, or it names an unknown version.
pub fn may_batch(asked: &Asked) -> Result<(), Fault> {
    if asked.says_modern() {
        return Err(Fault::bad(INVALID_REQUEST, format!("{MODERN} has no batches: post one message")));
    }
    check_legacy(asked)
}

/// Checks that a session may receive this batch, by its head and its messages.
///
/// # Errors
/// The batch is not allowed.
pub fn check_batch(asked: &Asked, messages: &[Message]) -> Result<(), Fault> {
    may_batch(asked)?;
    if messages.iter().any(|message| *message.method() == *b"initialize") {
        return Err(Fault::bad(INVALID_REQUEST, "initialize may not be part of a batch: post it alone"));
    }
    Ok(())
}

/// Checks a message of 2026-07-28 against its head.
///
/// # Errors
/// Either lacks required information, or they disagree.
pub fn check(asked: &Asked, message: &Message) -> Result<(), Fault> {
    let mismatch = |why: String| Err(Fault::bad(HEADER_MISMATCH, why));
    let kind = message.kind();
    if kind == Kind::Response {
        return Err(Fault::bad(INVALID_REQUEST, format!("clients of {MODERN} send no responses")));
    }
    let said = version(message)?;
    let head = asked.version.as_deref();
    match (&said, head) {
        (None, _) if kind == Kind::Request => {
            let why = "params._meta has to have io.modelcontextprotocol/protocolVersion";
            return Err(Fault::bad(INVALID_PARAMS, why));
        }
        (Some(_), None) => return mismatch("the head has no MCP-Protocol-Version".into()),
        (Some(said), Some(head)) if **said != *head.as_bytes() => {
            let said = shown(said);
            return mismatch(format!("MCP-Protocol-Version is {head:?}, and the body says \"{said}\""));
        }
        (_, Some(head)) if head != MODERN => return Err(Fault::version(head)),
        _ => {}
    }
    if kind == Kind::Notification {
        return Ok(());
    }
    let method = message.method();
    if *method == *b"initialize" {
        // It would pin the worker, which other clients share, to the older era.
        let why = format!("{MODERN} has no initialize; begin with server/discover, or name an older version");
        return Err(Fault { code: METHOD_NOT_FOUND, ..Fault::new(Status::NotFound, why) });
    }
    match asked.method.as_deref() {
        None => return mismatch("the head has no Mcp-Method".into()),
        Some(head) if *head.as_bytes() != *method => {
            return mismatch(format!("Mcp-Method is {head:?}, and the body says \"{}\"", shown(&method)));
        }
        Some(_) => {}
    }
    check_name(asked, message, &method)
}

/// Checks that the head repeats the name or address of what a request calls.
fn check_name(asked: &Asked, message: &Message, method: &[u8]) -> Result<(), Fault> {
    let Some(wanted) = named_by(method) else { return Ok(()) };
    let Some(name) = only_string(message, wanted)? else { return Ok(()) };
    let mismatch = |why: String| Err(Fault::bad(HEADER_MISMATCH, why));
    match asked.name.as_deref().map(decode) {
        None => mismatch("the head has no Mcp-Name".into()),
        Some(Some(head)) if *head == *name => Ok(()),
        Some(_) => mismatch(format!("Mcp-Name is not what the body says: \"{}\"", shown(&name))),
    }
}

/// The begin of what a body says, for the refusal of that body.
fn shown(text: &[u8]) -> String {
    const MOST: usize = 100;
    let more = if text.len() > MOST { "…" } else { "" };
    format!("{}{more}", text[..text.len().min(MOST)].escape_ascii())
}

/// Decodes a value of `Mcp-Name`, which is literal or `=?base64?…?=`.
fn decode(value: &str) -> Option<Cow<'_, [u8]>> {
    match value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        Some(coded) => STANDARD.decode(coded).ok().map(Cow::Owned),
        None => Some(Cow::Borrowed(value.as_bytes())),
    }
}

/// State from an earlier answer that a request carries, by which its worker is found again.
pub fn request_state(message: &Message) -> Option<Cow<'_, [u8]>> {
    message.params().string(message.text(), Wanted::State)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::asked::{Takes, Verb};
    use crate::mcp::message::{Body, LineReader, Upload};
    use stdio_bus_core::eras::protocol::UNSUPPORTED_VERSION;

    fn message(text: &str) -> Message {
        let (mut upload, mut reader) = (Upload::default(), LineReader::default());
        upload.push(text.as_bytes(), &mut reader);
        match upload.finish(&mut reader) {
            Ok(Body::One(message)) => message,
            _ => panic!("{text} is one message"),
        }
    }

    fn asked(version: Option<&str>, method: Option<&str>, name: Option<&str>) -> Asked {
        let boxed = |text: Option<&str>| text.map(Box::from);
        let (pool, session, last_event) = (None, None, None);
        let (version, method, name) = (boxed(version), boxed(method), boxed(name));
        Asked { verb: Verb::Post, takes: Takes::Either, pool, session, version, method, name, last_event }
    }

    fn call(version: &str, name: &str) -> Message {
        message(&format!(
            r#"{{"id":1,"method":"tools/call","params":{{"name":{name},"_meta":{{"io.modelcontextprotocol/protocolVersion":"{version}"}}}}}}"#
        ))
    }

    #[test]
    fn head_and_body_have_to_agree() {
        let new = Some(MODERN);
        let code = |asked: &Asked, message: &Message| check(asked, message).map_err(|fault| fault.code);
        let ours = call(MODERN, "\"x\"");
        assert_eq!(code(&asked(new, Some("tools/call"), Some("x")), &ours), Ok(()));
        let coded = call(MODERN, "\"\u{e9}\"");
        assert_eq!(code(&asked(new, Some("tools/call"), Some("=?base64?w6k=?=")), &coded), Ok(()));
        for wrong in [
            asked(None, Some("tools/call"), Some("x")),
            asked(Some("2025-11-25"), Some("tools/call"), Some("x")),
            asked(new, None, Some("x")),
            asked(new, Some("tools/list"), Some("x")),
            asked(new, Some("tools/call"), None),
            asked(new, Some("tools/call"), Some("y")),
            asked(new, Some("tools/call"), Some("=?base64?!?=")),
        ] {
            assert_eq!(code(&wrong, &ours), Err(HEADER_MISMATCH), "{wrong:?}");
        }
        for twice in [
            r#"{"id":1,"method":"tools/call","params":{"name":"x","n\u0061me":"y","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#,
            r#"{"id":1,"method":"tools/call","params":{"name":"x","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol\/protocolVersion":"1"}}}"#,
        ] {
            let fault = check(&asked(new, Some("tools/call"), Some("x")), &message(twice)).map_err(|fault| fault.code);
            assert_eq!(fault, Err(INVALID_PARAMS), "parsers may choose either: {twice}");
        }
        let task = |method: &str| {
            message(&format!(
                r#"{{"id":1,"method":"{method}","params":{{"taskId":"t1","_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}}}}"#
            ))
        };
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            assert_eq!(code(&asked(new, Some(method), Some("t1")), &task(method)), Ok(()), "{method}");
            for wrong in [Some("t2"), Some("bus1.t1"), None] {
                let found = code(&asked(new, Some(method), wrong), &task(method));
                assert_eq!(found, Err(HEADER_MISMATCH), "{method} {wrong:?}");
            }
        }
        let bare = message(r#"{"id":1,"method":"tools/list","params":{}}"#);
        assert_eq!(code(&asked(new, Some("tools/list"), None), &bare), Err(INVALID_PARAMS));
        let later = call("2027-01-01", "\"x\"");
        let fault = check(&asked(Some("2027-01-01"), Some("tools/call"), Some("x")), &later).expect_err("too new");
        assert_eq!((fault.code, fault.status), (UNSUPPORTED_VERSION, Status::BadRequest));
    }

    #[test]
    fn a_message_is_modern_if_it_says_so_or_its_head_does() {
        let plain = message(r#"{"id":1,"method":"tools/list","params":{}}"#);
        assert_eq!(is_modern(&asked(None, None, None), &plain), Ok(false));
        assert_eq!(is_modern(&asked(Some("2025-06-18"), None, None), &plain), Ok(false));
        assert_eq!(is_modern(&asked(Some(MODERN), None, None), &plain), Ok(true));
        assert_eq!(is_modern(&asked(None, None, None), &call("2027-01-01", "\"x\"")), Ok(true));
        assert!(is_modern(&asked(Some("1999-01-01"), None, None), &plain).is_err());
    }

    #[test]
    fn an_initialize_is_judged_by_its_body_whatever_version_its_head_has() {
        let plain = message(r#"{"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#);
        for version in [None, Some("2025-06-18"), Some(MODERN), Some("2027-01-01"), Some("1999-01-01"), Some("")] {
            assert_eq!(is_modern(&asked(version, None, None), &plain), Ok(false), "{version:?}");
        }
        let text = r#"{"id":1,"method":"initialize","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
        assert_eq!(is_modern(&asked(None, None, None), &message(text)), Ok(true));
    }
}
