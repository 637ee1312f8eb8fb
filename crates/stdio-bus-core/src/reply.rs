//! JSON written by the bus itself: error replies (decisions 8, 9), and ids and names encoded as JSON again.

use alloc::vec::Vec;

use crate::fleet::eras::protocol::{MODERN, spoken_over_http};
use crate::settings::Era;

/// Whether the answerer may have received the request that failed: retrying it is safe only if it did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// It was forwarded to the answerer.
    Yes,
    /// It was not forwarded.
    No,
    /// The error is not about a request.
    Nothing,
}

/// An error reply with its newline. `id` is a JSON token; `session` a decoded sessionId to repeat at top level; `cause`
/// is why a worker was replaced, if that is the reason.
#[allow(clippy::too_many_arguments)]
pub fn error(
    id: &[u8],
    session: Option<&[u8]>,
    code: i32,
    message: &str,
    reason: &str,
    cause: Option<&str>,
    delivered: Delivered,
) -> Vec<u8> {
    let mut reply = Vec::with_capacity(160 + id.len() + message.len());
    reply.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    reply.extend_from_slice(id);
    if let Some(session) = session {
        reply.extend_from_slice(b",\"sessionId\":");
        write_string(session, &mut reply);
    }
    reply.extend_from_slice(format!(",\"error\":{{\"code\":{code},\"message\":").as_bytes());
    write_string(message.as_bytes(), &mut reply);
    reply.extend_from_slice(b",\"data\":{\"reason\":");
    write_string(reason.as_bytes(), &mut reply);
    if let Some(cause) = cause {
        reply.extend_from_slice(b",\"cause\":");
        write_string(cause.as_bytes(), &mut reply);
    }
    reply.extend_from_slice(match delivered {
        Delivered::Yes => b",\"delivered\":true".as_slice(),
        Delivered::No => b",\"delivered\":false",
        Delivered::Nothing => b"",
    });
    reply.extend_from_slice(b"}}}\n");
    reply
}

/// Adds the error data that MCP requires for an unsupported version.
pub(super) fn add_versions(error: &mut Vec<u8>) {
    let supported = spoken_over_http(Era::Legacy).collect::<Vec<_>>().join("\",\"");
    // It ends with three braces and a newline.
    error.truncate(error.len().saturating_sub(4));
    error.extend_from_slice(format!(",\"supported\":[\"{supported}\"],\"requested\":\"{MODERN}\"}}}}}}\n").as_bytes());
}

/// A decoded string as a JSON string. Lone surrogates of the original (WTF-8) are escaped again.
pub fn write_string(decoded: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = decoded;
    while let Some((&byte, tail)) = rest.split_first() {
        match (byte, tail) {
            (b'"' | b'\\', _) => out.extend_from_slice(&[b'\\', byte]),
            (0..=0x1f, _) => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            (0xed, [second @ 0xa0..=0xbf, third, ..]) => {
                let unit = 0xd000 | u16::from(second & 0x3f) << 6 | u16::from(third & 0x3f);
                out.extend_from_slice(format!("\\u{unit:04x}").as_bytes());
                rest = &tail[2..];
                continue;
            }
            _ => out.push(byte),
        }
        rest = tail;
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndjson_scan::decoded;

    #[test]
    fn an_error_reply_is_one_line_of_json_with_the_reason() {
        let id = crate::id::Id::parse(b"\"a\\\"b\"").unwrap();
        let reply = error(&id.token(), Some(b"s"), -32010, "no worker", "no_worker", None, Delivered::No);
        let value: serde_json::Value = serde_json::from_slice(&reply).unwrap();
        assert_eq!(value["id"], "a\"b");
        assert_eq!(value["sessionId"], "s");
        assert_eq!(value["error"]["code"], -32010);
        assert_eq!(value["error"]["data"], serde_json::json!({"reason": "no_worker", "delivered": false}));
        assert_eq!(memchr::memchr(b'\n', &reply), Some(reply.len() - 1));
    }

    #[test]
    fn a_string_survives_decoding_and_writing() {
        for token in [r#""\ud83d""#, r#""\ud83d\ude00""#, r#""\u0000\"\\/é""#] {
            let (text, mut written) = (decoded(token.as_bytes()).unwrap(), Vec::new());
            write_string(&text, &mut written);
            assert_eq!(decoded(&written).unwrap(), text, "{token}");
        }
    }
}
