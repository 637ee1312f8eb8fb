//! MCP over HTTP for the bench's clients: requests with heads of constant length, sessions, and any server's responses,
//! as JSON or as event streams.

use std::io::{self, Read, Write};

use serde_json::{Value, json};

use stdio_bus_proto::http1::{Event, Head, Method, Response, ResponseReader, Status};

use super::request::tool;

/// The path of MCP servers.
const PATH: &str = "/mcp";
/// Maximum length of a response.
const MOST: u64 = 1 << 20;

/// The sender of requests.
#[derive(Clone, Debug)]
pub enum Caller {
    /// A session of 2025-11-25.
    Session(String),
    /// A client of 2026-07-28, which has no session.
    Modern,
}

impl Caller {
    /// A new client, which starts a session.
    pub fn begin(stream: &mut (impl Read + Write), port: u16, is_modern: bool) -> io::Result<Self> {
        if is_modern {
            return Ok(Self::Modern);
        }
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "bench", "version": "1" },
        });
        let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
        let answer = ask(stream, &post(head(port), initialize.to_string().as_bytes()))?;
        let session = answer.session.ok_or_else(|| io::Error::other(format!("no session began: {}", answer.text)))?;
        let caller = Self::Session(session);
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        ask(stream, &caller.request(port, initialized.to_string().as_bytes()))?;
        Ok(caller)
    }

    /// A request with a message. For a client of 2026-07-28 it is a call.
    pub fn request(&self, port: u16, message: &[u8]) -> Vec<u8> {
        post(self.with(head(port), message), message)
    }

    /// The request that opens the stream of a session.
    pub fn stream(&self, port: u16) -> String {
        let head = Head::request("GET", PATH, &format!("127.0.0.1:{port}")).field("Accept", "text/event-stream");
        self.with(head, b"").end()
    }

    fn with(&self, head: Head, message: &[u8]) -> Head {
        match self {
            Self::Session(id) => head.field("Mcp-Session-Id", id).field("MCP-Protocol-Version", "2025-11-25"),
            Self::Modern => head
                .field("MCP-Protocol-Version", "2026-07-28")
                .field("Mcp-Method", "tools/call")
                .field("Mcp-Name", tool(message)),
        }
    }
}

/// The header fields that official clients send with every request.
fn head(port: u16) -> Head {
    Head::request("POST", PATH, &format!("127.0.0.1:{port}"))
        .field("Accept", "application/json, text/event-stream")
        .field("Content-Type", "application/json")
        .field("User-Agent", "stdio-bus-bench")
}

fn post(head: Head, message: &[u8]) -> Vec<u8> {
    let mut request = head.field("Content-Length", message.len()).end().into_bytes();
    request.extend_from_slice(message);
    request
}

/// The head of the daemon's response.
pub fn head_of_answer(length: usize) -> Vec<u8> {
    let head = Head::answer(Status::Ok).field("Content-Type", "application/json");
    head.field("Content-Length", length).end().into_bytes()
}

/// A response.
pub struct Answer {
    /// The session that it starts.
    session: Option<String>,
    /// Its message; none if there is none.
    pub text: String,
}

impl Answer {
    pub fn message(&self) -> io::Result<Value> {
        serde_json::from_str(&self.text).map_err(|_| io::Error::other(format!("no answer: {:?}", self.text)))
    }
}

/// Sends a request, and waits for the complete response.
pub fn ask(stream: &mut (impl Read + Write), request: &[u8]) -> io::Result<Answer> {
    stream.write_all(request)?;
    let mut reading = Reading::new();
    loop {
        let mut more = [0; 4096];
        let count = stream.read(&mut more)?;
        if let Some(answer) = reading.read(&more[..count])? {
            return Ok(answer);
        }
    }
}

/// A partial response: in an event stream the first event with a message counts.
pub struct Reading {
    reader: ResponseReader,
    received: Vec<u8>,
    used: usize,
    session: Option<String>,
    body: Vec<u8>,
    is_events: bool,
}

impl Reading {
    /// Nothing received yet.
    pub fn new() -> Self {
        let reader = ResponseReader::new(Method::Post, MOST);
        Self { reader, received: Vec::new(), used: 0, session: None, body: Vec::new(), is_events: false }
    }

    /// Takes received bytes, which are empty at the end, and returns the response once it is complete.
    pub fn read(&mut self, bytes: &[u8]) -> io::Result<Option<Answer>> {
        self.received.extend_from_slice(bytes);
        loop {
            match self.reader.next(&self.received[self.used..], bytes.is_empty()) {
                Event::Head(head) => {
                    self.used += head.length;
                    let text =
                        |name| head.fields.values(name).next().map(|value| String::from_utf8_lossy(value).into_owned());
                    self.session = text("mcp-session-id");
                    self.is_events = text("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
                    check(&head)?;
                }
                Event::Data { data, length } => {
                    self.body.extend_from_slice(data);
                    self.used += length;
                }
                Event::End(_) => break,
                Event::Wrong(error) => return Err(io::Error::other(format!("an answer: {}", error.why))),
                Event::More(_) if bytes.is_empty() => {
                    return Err(io::Error::other("the connection ended within an answer"));
                }
                Event::More(length) => {
                    self.used += length;
                    return Ok(None);
                }
            }
        }
        let mut text = String::from_utf8_lossy(&self.body).into_owned();
        if self.is_events {
            let mut data = text.lines().filter_map(|line| line.strip_prefix("data:"));
            text = data.find(|data| data.trim_start().starts_with('{')).unwrap_or_default().trim().to_owned();
        }
        Ok(Some(Answer { session: self.session.take(), text }))
    }
}

fn check(head: &Response<'_>) -> io::Result<()> {
    match head.status {
        ..300 => Ok(()),
        status => Err(io::Error::other(format!("the server says {status} {}", head.reason))),
    }
}
