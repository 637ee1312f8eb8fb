//! What servers, gateways and proxies do with HTTP, and the expected result: the words in the chat, the number of
//! requests, and the log at level info. The turn ends with `end_turn` in each case. One row is one behaviour and names
//! its source: a server, a document or a mishap.
//!
//! In the expected texts `{url}` is the address that was called and `#` is any number. A row without words expects the
//! answer `ok`, one request and no log line; there is one retry unless a row says otherwise.

use std::io::Write;

use super::client::Client;
use super::endpoint::{Conn, Endpoint};

/// What happens to the connection after the bytes of an answer.
#[derive(Clone, Copy)]
pub enum End {
    /// It can be used again.
    Keep,
    /// It is closed properly.
    Close,
    Reset,
    /// Nothing is sent until the agent closes it.
    Hold,
}

/// The answer to one request.
pub struct Answer {
    pub bytes: Vec<u8>,
    pub end: End,
}

impl Answer {
    pub fn raw(bytes: impl AsRef<[u8]>, end: End) -> Self {
        Self { bytes: bytes.as_ref().to_vec(), end }
    }

    pub fn give(&self, conn: &mut Conn) {
        conn.raw(&self.bytes);
        match self.end {
            End::Keep => {}
            End::Close => conn.cut(),
            End::Reset => conn.reset(),
            End::Hold => conn.wait_closed(),
        }
    }
}

pub const SAID: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ok\"}}]}\n\n";
pub const STOP: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
pub const DONE: &str = "data: [DONE]\n\n";
pub const WHOLE: &str = "{\"choices\":[{\"message\":{\"content\":\"ok\"},\"finish_reason\":\"stop\"}]}";
pub const REPEATED: &str = "{\"detail\":[{\"loc\":[\"body\",\"messages\"],\"msg\":\"Extra inputs are not permitted\",\
    \"input\":{\"stream_options\":{}}}]}";
pub const EVENTS: &str = "HTTP/1.1 200 OK\ncontent-type: text/event-stream";

pub fn stream() -> String {
    format!("{SAID}{STOP}{DONE}")
}

/// A response with these lines of a head (without its end) and this body, with its length.
pub fn sized(head: &str, body: impl AsRef<[u8]>) -> Answer {
    let body = body.as_ref();
    let mut bytes = format!("{}\r\ncontent-length: {}\r\n\r\n", head.replace('\n', "\r\n"), body.len()).into_bytes();
    bytes.extend_from_slice(body);
    Answer::raw(bytes, End::Keep)
}

/// A status with a body of this type.
pub fn status(status: u16, kind: &str, body: &str) -> Answer {
    sized(&format!("HTTP/1.1 {status} X\ncontent-type: {kind}"), body)
}

/// An error in OpenAI's JSON, with more headers.
pub fn error(code: u16, headers: &str, message: &str) -> Answer {
    let body = serde_json::json!({"error": {"message": message, "type": "x", "param": null, "code": null}});
    sized(&format!("HTTP/1.1 {code} X{headers}\ncontent-type: application/json"), body.to_string())
}

/// The answer for an account without money, even with a retry time.
pub fn spent(kind: &str) -> Answer {
    let body = serde_json::json!({"error": {"message": "the account is empty", "type": kind}});
    sized("HTTP/1.1 429 X\nretry-after-ms: 1", body.to_string())
}

pub fn ok() -> Answer {
    sized(EVENTS, stream())
}

/// The beginning of a response in chunks.
pub fn chunked(head: &str, pieces: &[&str], end: &str) -> Vec<u8> {
    let mut bytes = format!("{}\r\ntransfer-encoding: chunked\r\n\r\n", head.replace('\n', "\r\n"));
    for piece in pieces {
        bytes.push_str(&format!("{:x}\r\n{piece}\r\n", piece.len()));
    }
    bytes.push_str(end);
    bytes.into_bytes()
}

/// Bytes as chunks of `length`, and the last one.
pub fn chunks(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in bytes.chunks(length) {
        out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

pub fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// A behaviour and the expected result.
pub struct Row {
    pub name: String,
    pub source: &'static str,
    /// The answer to each request; the last one also to all that follow.
    pub answers: Vec<Answer>,
    pub env: &'static [(&'static str, &'static str)],
    pub text: String,
    pub requests: usize,
    pub log: Vec<String>,
}

pub fn row(name: &str, source: &'static str, answers: Vec<Answer>) -> Row {
    Row { name: name.to_owned(), source, answers, env: &[], text: "ok".to_owned(), requests: 1, log: Vec::new() }
}

impl Row {
    pub fn with(self, env: &'static [(&'static str, &'static str)]) -> Self {
        Self { env, ..self }
    }

    /// It is logged before another attempt, after this many milliseconds.
    pub fn retried(mut self, text: &str, milliseconds: &str) -> Self {
        self.requests += 1;
        self.logs(&format!("info: {text}. Again in {milliseconds} ms."))
    }

    /// This many requests, but no retry.
    pub fn asked(self, requests: usize) -> Self {
        Self { requests, ..self }
    }

    pub fn logs(mut self, line: &str) -> Self {
        self.log.push(line.to_owned());
        self
    }

    /// The words in the chat and in the log.
    pub fn fails(self, text: &str) -> Self {
        Self { text: text.to_owned(), ..self }.logs(&format!("warning: {text}"))
    }

    /// The server's own words follow.
    pub fn adds(mut self, detail: &str) -> Self {
        self.log.pop();
        let text = format!("{} It says: {detail}", self.text);
        self.fails(&text)
    }

    /// It fails so after the words of the answer.
    pub fn breaks(self, text: &str) -> Self {
        Self { text: format!("ok\n\n{text}"), ..self }.logs(&format!("warning: {text}"))
    }

    /// Runs the row; returns how the result differs from the expected one.
    pub fn try_out(self) -> Option<String> {
        let answers = self.answers;
        let endpoint = Endpoint::start(move |request, conn| answers[request.number.min(answers.len() - 1)].give(conn));
        let url = endpoint.url();
        let mut env = vec![("OPENAI_BASE_URL", url.as_str()), ("OPENAI_MAX_RETRIES", "1")];
        env.extend(self.env);
        let mut client = Client::logging("info", &env);
        let session = client.session();
        let answered = client.prompt(&session, "hi");
        let (text, stop) = (answered.text(), answered.answer["result"]["stopReason"].clone());
        let (log, requests) = (client.log(), endpoint.requests().len());
        let log: Vec<String> = log.lines().map(|line| line.replacen("openai-agent: ", "", 1)).collect();
        let is_as = |expected: &str, said: &str| {
            let expected = expected.replace("{url}", &endpoint.chat_url());
            let (mut pieces, mut rest) = (expected.split('#'), said);
            let first = pieces.next().unwrap_or_default();
            let Some(after) = rest.strip_prefix(first) else { return false };
            rest = after;
            for piece in pieces {
                let after = rest.trim_start_matches(|letter: char| letter.is_ascii_digit());
                match after.strip_prefix(piece).filter(|_| after.len() < rest.len()) {
                    Some(more) => rest = more,
                    None => return false,
                }
            }
            rest.is_empty()
        };
        let is_right = is_as(&self.text, &text)
            && stop == "end_turn"
            && requests == self.requests
            && log.len() == self.log.len()
            && self.log.iter().zip(&log).all(|(expected, line)| is_as(expected, line));
        let came = serde_json::json!({"text": text.replace(&endpoint.chat_url(), "{url}"), "asked": requests, "log":
            log.iter().map(|line| line.replace(&endpoint.chat_url(), "{url}")).collect::<Vec<_>>(), "stop": stop});
        (!is_right).then(|| format!("{} ({}): {came}", self.name, self.source))
    }
}
