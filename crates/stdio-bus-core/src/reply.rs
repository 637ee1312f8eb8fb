//! JSON-RPC written by the bus itself: error replies (decisions 8, 9), its own requests and notifications, and ids and names
//! encoded as JSON again.

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

/// What the bus's own errors say to programs, in `error.data`.
pub struct Data<'a> {
    /// Why there is no answer.
    pub reason: &'a str,
    /// Why a worker was replaced, if that is the reason.
    pub cause: Option<&'a str>,
    /// Whether the answerer may have received the request.
    pub delivered: Delivered,
    /// Whether the revisions of MCP that are served are listed, as MCP requires where another one was asked for.
    pub lists_revisions: bool,
}

impl Data<'_> {
    fn write(&self) -> Vec<u8> {
        let mut data = b"{\"reason\":".to_vec();
        write_string(self.reason.as_bytes(), &mut data);
        if let Some(cause) = self.cause {
            data.extend_from_slice(b",\"cause\":");
            write_string(cause.as_bytes(), &mut data);
        }
        data.extend_from_slice(match self.delivered {
            Delivered::Yes => b",\"delivered\":true".as_slice(),
            Delivered::No => b",\"delivered\":false",
            Delivered::Nothing => b"",
        });
        if self.lists_revisions {
            let served = spoken_over_http(Era::Legacy).collect::<Vec<_>>().join("\",\"");
            let revisions = format!(",\"supported\":[\"{served}\"],\"requested\":\"{MODERN}\"");
            data.extend_from_slice(revisions.as_bytes());
        }
        data.push(b'}');
        data
    }
}

/// An error of the bus's own as a line. `id` is a JSON token; `session` a decoded sessionId to repeat at top level.
pub fn error(id: &[u8], session: Option<&[u8]>, code: i32, message: &str, data: &Data<'_>) -> Vec<u8> {
    let mut line = error_response(id, session, code, message, Some(&data.write()));
    line.push(b'\n');
    line
}

/// A JSON-RPC error response, without a newline. `id` is a JSON token, `session` a decoded sessionId to repeat at top
/// level, and `data` is JSON.
pub fn error_response(id: &[u8], session: Option<&[u8]>, code: i32, message: &str, data: Option<&[u8]>) -> Vec<u8> {
    let mut response = Vec::with_capacity(160 + id.len() + message.len());
    response.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    response.extend_from_slice(id);
    if let Some(session) = session {
        response.extend_from_slice(b",\"sessionId\":");
        write_string(session, &mut response);
    }
    response.extend_from_slice(format!(",\"error\":{{\"code\":{code},\"message\":").as_bytes());
    write_string(message.as_bytes(), &mut response);
    if let Some(data) = data {
        response.extend_from_slice(b",\"data\":");
        response.extend_from_slice(data);
    }
    response.extend_from_slice(b"}}");
    response
}

/// A request with this id, which is a JSON token, or a notification without one, as a line. `method` is decoded, and
/// `params` is JSON.
pub fn call(id: Option<&[u8]>, method: &[u8], params: Option<&[u8]>) -> Vec<u8> {
    let mut line = b"{\"jsonrpc\":\"2.0\"".to_vec();
    if let Some(id) = id {
        line.extend_from_slice(b",\"id\":");
        line.extend_from_slice(id);
    }
    line.extend_from_slice(b",\"method\":");
    write_string(method, &mut line);
    if let Some(params) = params {
        line.extend_from_slice(b",\"params\":");
        line.extend_from_slice(params);
    }
    line.extend_from_slice(b"}\n");
    line
}

/// The notification that ends the work in a session of ACP, as a line. `session` is a JSON token.
pub fn session_cancel(session: &[u8]) -> Vec<u8> {
    call(None, b"session/cancel", Some(&[b"{\"sessionId\":", session, b"}"].concat()))
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
        let data =
            |lists_revisions| Data { reason: "no_worker", cause: None, delivered: Delivered::No, lists_revisions };
        let reply = error(&id.token(), Some(b"s"), -32010, "no worker", &data(false));
        let value: serde_json::Value = serde_json::from_slice(&reply).unwrap();
        assert_eq!(value["id"], "a\"b");
        assert_eq!(value["sessionId"], "s");
        assert_eq!(value["error"]["code"], -32010);
        assert_eq!(value["error"]["data"], serde_json::json!({"reason": "no_worker", "delivered": false}));
        assert_eq!(memchr::memchr(b'\n', &reply), Some(reply.len() - 1));
        let of_another_era = error(b"7", None, -32022, "no", &data(true));
        let value: serde_json::Value = serde_json::from_slice(&of_another_era).unwrap();
        assert_eq!(value["error"]["data"]["requested"], MODERN);
        assert_eq!(value["error"]["data"]["delivered"], false);
    }

    #[test]
    fn requests_and_notifications_are_lines_of_json() {
        let line = |id, params| alloc::string::String::from_utf8(call(id, b"a\"b", params)).unwrap();
        assert_eq!(
            line(Some(b"7".as_slice()), Some(b"[]".as_slice())),
            "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"a\\\"b\",\"params\":[]}\n"
        );
        assert_eq!(line(None, None), "{\"jsonrpc\":\"2.0\",\"method\":\"a\\\"b\"}\n");
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
