//! The body of a POST: one message, or several in a batch (2025-03-26). Each becomes a line.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde_json::value::RawValue;

use super::fault::{Fault, INVALID_REQUEST, PARSE_ERROR};
use crate::scan::{Line, Outcome, PAD, Partial, Scanner, Window, decoded, member};

/// The kind of a message, by its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It expects an answer.
    Request,
    /// It expects no answer.
    Notification,
    /// It answers a worker's request.
    Response,
}

/// One message, as a line with padding around it.
pub struct Message {
    padded: Vec<u8>,
    line: Line,
}

/// The contents of a body.
pub enum Body {
    /// One message.
    One(Message),
    /// An array of them.
    Batch(Vec<Message>),
}

/// Reads lines one at a time, each of which is the whole input.
#[derive(Default)]
pub struct LineReader {
    /// Its tables take 160 KB and most daemons serve no HTTP clients, so it is created for the first line.
    scanner: Option<Scanner>,
    lines: Vec<Line>,
}

impl LineReader {
    /// The only line in a window; none if there is no line, or more than one.
    ///
    /// # Errors
    /// The line is malformed.
    pub fn read(&mut self, mut partial: Partial, window: Window<'_>) -> Result<Option<Line>, String> {
        self.lines.clear();
        let scanner = self.scanner.get_or_insert_with(Scanner::new);
        match (scanner.scan(&mut partial, window, &mut self.lines), &self.lines[..]) {
            (Outcome::More, [line]) => Ok(Some(*line)),
            (Outcome::Malformed { at, fault, .. }, _) => Err(format!("{}, at byte {at}", fault.what())),
            _ => Ok(None),
        }
    }
}

/// A buffer with room for a body of `bytes` bytes.
pub fn room(bytes: usize) -> Vec<u8> {
    let mut room = Vec::with_capacity(PAD + bytes + 1 + PAD);
    room.resize(PAD, 0);
    room
}

/// The number of bytes of the body received so far.
pub fn received(body: &[u8]) -> usize {
    body.len().saturating_sub(PAD)
}

/// Reads a body that follows the [`room`] before it.
///
/// # Errors
/// It is neither a message nor an array of messages.
pub fn read(mut body: Vec<u8>, reader: &mut LineReader) -> Result<Body, Fault> {
    let text = body.get(PAD..).unwrap_or_default().trim_ascii();
    if text.starts_with(b"[") {
        let parts: Vec<&RawValue> = serde_json::from_slice(text).map_err(|error| malformed(&error.to_string()))?;
        let parts = parts.iter().map(|part| {
            let mut body = room(part.get().len());
            body.extend_from_slice(part.get().as_bytes());
            line_of(body, reader)
        });
        let messages = parts.collect::<Result<Vec<_>, _>>()?;
        return match messages.is_empty() {
            true => Err(Fault::bad(INVALID_REQUEST, "the batch is empty")),
            false => Ok(Body::Batch(messages)),
        };
    }
    if memchr::memchr2(b'\n', b'\r', text).is_some() {
        // Between tokens a newline is white space. Within a string it is invalid.
        serde_json::from_slice::<serde::de::IgnoredAny>(text).map_err(|error| malformed(&error.to_string()))?;
        body.iter_mut().filter(|byte| matches!(**byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    }
    line_of(body, reader).map(Body::One)
}

/// The message that makes up a whole body without newlines.
fn line_of(mut body: Vec<u8>, reader: &mut LineReader) -> Result<Message, Fault> {
    body.push(b'\n');
    let end = body.len();
    body.resize(end + PAD, 0);
    let line = reader.read(Partial::new(), Window::new(&body, PAD, end)).map_err(|why| malformed(&why))?;
    match line {
        Some(line) if line.has(Line::ID_INVALID) => {
            Err(Fault::bad(INVALID_REQUEST, "the id is neither a string nor a number"))
        }
        Some(line) if !line.method.is_some() && line.flags & (Line::RESULT | Line::ERROR) == 0 => {
            Err(Fault::bad(INVALID_REQUEST, "the message has neither a method nor a result nor an error"))
        }
        Some(line) => Ok(Message { line, padded: body }),
        None => Err(malformed("the body is empty")),
    }
}

fn malformed(why: &str) -> Fault {
    Fault::bad(PARSE_ERROR, format!("Parse error: {why}"))
}

impl Message {
    /// The notification that cancels the request with this id, which is a JSON token.
    pub fn cancelling(id: &[u8], why: &str, reader: &mut LineReader) -> Option<Self> {
        let mut body = room(id.len() + why.len() + 128);
        body.extend_from_slice(
            b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":",
        );
        body.extend_from_slice(id);
        body.extend_from_slice(b",\"reason\":");
        body.extend_from_slice(serde_json::Value::from(why).to_string().as_bytes());
        body.extend_from_slice(b"}}");
        line_of(body, reader).ok()
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        let answers = self.line.flags & (Line::RESULT | Line::ERROR) != 0;
        match self.line.id.is_some() {
            _ if answers && !self.line.method.is_some() => Kind::Response,
            true => Kind::Request,
            false => Kind::Notification,
        }
    }

    /// The line with its newline, in place.
    pub fn window(&self) -> Window<'_> {
        Window::new(&self.padded, PAD, self.padded.len() - PAD)
    }

    /// The line without its newline.
    pub fn text(&self) -> &[u8] {
        let window = self.window().data();
        &window[..window.len() - 1]
    }

    /// Its id, verbatim.
    pub fn id(&self) -> Option<&[u8]> {
        self.line.id.is_some().then(|| self.window().get(self.line.id))
    }

    /// Its method, decoded; empty if it has none.
    pub fn method(&self) -> Cow<'_, [u8]> {
        match self.line.method.is_some() {
            true => decoded(self.window().get(self.line.method)),
            false => Cow::Borrowed(b""),
        }
    }

    /// Its `params`, verbatim.
    pub fn params(&self) -> Option<&[u8]> {
        member(self.text(), b"params")
    }

    /// `params._meta`, verbatim.
    pub fn meta(&self) -> Option<&[u8]> {
        member(self.params()?, b"_meta")
    }

    /// The token that its progress notifications carry, verbatim.
    pub fn progress_token(&self) -> Option<&[u8]> {
        static TOKEN: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("progressToken"));
        TOKEN.find(self.text())?;
        member(self.meta()?, b"progressToken")
    }

    /// Memory used, in bytes.
    pub fn weight(&self) -> usize {
        self.padded.capacity()
    }
}

/// The decoded value of an object's member, if it is a string.
pub fn string<'a>(object: &'a [u8], name: &[u8]) -> Option<Cow<'a, [u8]>> {
    let value = member(object, name)?;
    value.starts_with(b"\"").then(|| decoded(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> Result<Vec<Message>, Fault> {
        let mut body = room(0);
        body.extend_from_slice(text.as_bytes());
        read(body, &mut LineReader::default()).map(|body| match body {
            Body::One(message) => vec![message],
            Body::Batch(messages) => messages,
        })
    }

    #[test]
    fn a_body_is_one_line_however_it_is_written() {
        let pretty = "{\r\n  \"jsonrpc\": \"2.0\",\n  \"id\": 7,\n  \"method\": \"a\\/b\"\n}\n";
        let messages = body(pretty).expect("it is a message");
        assert_eq!(messages.len(), 1);
        let message = &messages[0];
        assert_eq!((message.kind(), message.id(), &*message.method()), (Kind::Request, Some(&b"7"[..]), &b"a/b"[..]));
        assert!(!message.text().contains(&b'\n') && message.window().data().ends_with(b"\n"));
    }

    #[test]
    fn an_invalid_message_is_refused_with_its_code() {
        let code = |text: &str| body(text).map(|_| ()).map_err(|fault| fault.code);
        for text in
            ["", " \n", "x", "{\"a\":\"x\ny\"}", "{} {}", "{}\n{}", "7", "\"a\"", "{\"id\":1,\"id\":2}", "[7]", "["]
        {
            assert_eq!(code(text), Err(PARSE_ERROR), "{text:?}");
        }
        for text in ["[]", "{\"id\":{},\"method\":\"a\"}", "{}", "{\"id\":1}", "[{}]", "{\"method\":7}"] {
            assert_eq!(code(text), Err(INVALID_REQUEST), "{text:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_body_is_said_in_words() {
        for (text, why) in
            [("7", "not a JSON object, at byte 0"), ("{\"id\":1,\"id\":2}", "a routing key stands twice, at byte 11")]
        {
            assert_eq!(body(text).map(|_| ()).map_err(|fault| fault.why), Err(format!("Parse error: {why}").into()));
        }
    }

    #[test]
    fn a_batch_is_split() {
        let messages =
            body(r#" [ {"id":1,"method":"a"} , {"method":"b"}, {"id":2,"result":{}} ] "#).expect("it is one");
        let kinds: Vec<_> = messages.iter().map(Message::kind).collect();
        assert_eq!(kinds, [Kind::Request, Kind::Notification, Kind::Response]);
        assert_eq!(messages[1].text(), br#"{"method":"b"}"#);
    }

    #[test]
    fn the_members_of_a_message_are_found() {
        let text = r#"{"id":1,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":"a\u0062","b":1}}}"#;
        let messages = body(text).expect("it is a message");
        assert_eq!(messages[0].progress_token(), Some(&br#""a\u0062""#[..]));
        let params = messages[0].params().expect("they are there");
        assert_eq!(string(params, b"name").as_deref(), Some(&b"x"[..]));
        assert_eq!(string(params, b"_meta"), None);
    }
}
