//! A minimal client of MCP over HTTP: it writes requests and reads responses, whole or event by event, and never waits
//! for ever.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};

use crate::client::PATIENCE;
use crate::sockets::register;
use crate::steady::Steady;

/// One connection.
pub struct Http {
    stream: TcpStream,
    reader: BufReader<Steady<TcpStream>>,
    /// Sent with each request.
    pub fields: Vec<(String, String)>,
}

/// A response's head, and its body if it is complete.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub fields: HashMap<String, String>,
    /// The body, unless it is an event stream.
    pub body: String,
}

/// An event of a stream.
#[derive(Debug, PartialEq)]
pub struct Event {
    pub id: Option<String>,
    pub data: String,
}

impl Answer {
    /// Its body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn is_stream(&self) -> bool {
        self.fields.get("content-type").is_some_and(|kind| kind == "text/event-stream")
    }
}

impl Event {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Http {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        register(&stream);
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let reader = BufReader::new(Steady(stream.try_clone().unwrap()));
        let fields = vec![("Host".to_owned(), address.to_string())];
        Self { stream, reader, fields }
    }

    /// Adds a field to each request.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A client with a new session of this revision.
    pub fn session(address: SocketAddr, version: &str) -> Self {
        let mut client = Self::connect(address);
        let params = json!({ "protocolVersion": version, "capabilities": {} });
        let answer = client.ask(&json!({ "jsonrpc": "2.0", "id": "init", "method": "initialize", "params": params }));
        assert_eq!(answer.status, 200, "{answer:?}");
        if answer.is_stream() {
            // It has waited for a worker for so long that it is kept alive.
            client.events();
        }
        let id = answer.fields["mcp-session-id"].clone();
        client.with("Mcp-Session-Id", &id)
    }

    pub fn session_id(&self) -> String {
        let field = self.fields.iter().find(|(name, _)| name == "Mcp-Session-Id");
        field.map(|(_, value)| value.clone()).expect("it has one")
    }

    /// Another connection that sends the same fields.
    pub fn again(&self) -> Self {
        let mut other = Self::connect(self.stream.peer_addr().unwrap());
        other.fields.clone_from(&self.fields);
        other
    }

    /// A second handle of the connection, for a writer thread.
    pub fn second(&self) -> Self {
        let stream = || self.stream.try_clone().unwrap();
        Self { stream: stream(), reader: BufReader::new(Steady(stream())), fields: self.fields.clone() }
    }

    /// The kernel buffers little unread data for it.
    pub fn with_little_room(self) -> Self {
        rustix::net::sockopt::set_socket_recv_buffer_size(&self.stream, 16 << 10).unwrap();
        self
    }

    /// The kernel buffers as much as it may for it from now on: without much room it reads one piece each 200 ms.
    pub fn gets_room(&self) {
        rustix::net::sockopt::set_socket_recv_buffer_size(&self.stream, 4 << 20).unwrap();
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends a request with these additional fields.
    pub fn send(&mut self, line: &str, fields: &[(&str, &str)], body: &str) {
        let mut head = format!("{line} HTTP/1.1\r\nAccept: application/json, text/event-stream\r\n");
        let own = self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in own.chain(fields.iter().copied()) {
            head += &format!("{name}: {value}\r\n");
        }
        if line.starts_with("POST") {
            head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        self.send_bytes((head + "\r\n" + body).as_bytes());
    }

    /// Sends the head of a POST with this message, and waits until the daemon asks for the body.
    pub fn uploads(&mut self, message: &Value) {
        let own: String = self.fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = message.to_string().len();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nAccept: */*\r\n{own}Content-Type: application/json\r\nContent-Length: {length}\r\n\
             Expect: 100-continue\r\n\r\n"
        );
        self.send_bytes(head.as_bytes());
        assert_eq!(self.head().status, 100);
    }

    pub fn post(&mut self, message: &Value) {
        self.send("POST /mcp", &[], &message.to_string());
    }

    /// Posts a message, and returns the response.
    pub fn ask(&mut self, message: &Value) -> Answer {
        self.post(message);
        self.answer()
    }

    /// Posts a message. Whether a response begins before the connection ends.
    pub fn is_answered(&mut self, message: &Value) -> bool {
        let text = message.to_string();
        let own: String = self.fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("POST /mcp HTTP/1.1\r\nAccept: */*\r\n{own}Content-Type: application/json\r\n");
        let post = format!("{head}Content-Length: {}\r\n\r\n{text}", text.len());
        if self.stream.write_all(post.as_bytes()).is_err() || !self.reader.fill_buf().is_ok_and(|read| !read.is_empty())
        {
            return false;
        }
        let mut answer = self.head();
        self.read_body(&mut answer);
        true
    }

    /// Sends a request, and returns the response's body.
    pub fn call(&mut self, id: u64, method: &str, params: Value) -> Value {
        let answer = self.ask(&request(id, method, params));
        assert_eq!((answer.status, answer.is_stream()), (200, false), "{answer:?}");
        answer.json()
    }

    /// Opens the stream of its session, or resumes after an event.
    pub fn open(&mut self, behind: Option<&str>) -> Answer {
        let fields: Vec<_> = behind.map(|id| ("Last-Event-ID", id)).into_iter().collect();
        self.send("GET /mcp", &fields, "");
        self.answer()
    }

    /// A connection of the same session with its stream.
    pub fn stream(&self) -> Self {
        let mut stream = self.again();
        assert!(stream.open(None).is_stream());
        stream
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line).unwrap_or_else(|error| panic!("no line comes: {error}"));
        assert!(read > 0, "the daemon has closed the connection");
        line.trim_end_matches(['\r', '\n']).to_owned()
    }

    /// The next response; of a stream only the head.
    pub fn answer(&mut self) -> Answer {
        let mut answer = self.head();
        self.read_body(&mut answer);
        answer
    }

    /// The body behind the head of a response.
    pub fn read_body(&mut self, answer: &mut Answer) {
        let length = answer.fields.get("content-length").map_or(0, |length| length.parse().expect("a number"));
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).unwrap();
        answer.body = String::from_utf8(body).unwrap();
    }

    /// The head of the next response.
    pub fn head(&mut self) -> Answer {
        let status = self.line();
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{status}"));
        let mut fields = HashMap::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(": ") else { break };
            fields.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        Answer { status, fields, body: String::new() }
    }

    /// The next event or comment of a stream as it was sent, or none at its end.
    pub fn piece(&mut self) -> Option<String> {
        let length = usize::from_str_radix(&self.line(), 16).expect("the length of a chunk");
        let mut chunk = vec![0; length + 2];
        self.reader.read_exact(&mut chunk).unwrap();
        (length > 0).then(|| String::from_utf8(chunk).unwrap())
    }

    /// The next event of a stream, or none at its end. Comments are skipped.
    pub fn event(&mut self) -> Option<Event> {
        loop {
            let text = self.piece()?;
            let field =
                |name: &str| text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim_start().to_owned()));
            if let Some(data) = field("data:") {
                return Some(Event { id: field("id:"), data });
            }
        }
    }

    /// The next event of a stream with data, or none at its end.
    pub fn message(&mut self) -> Option<Event> {
        std::iter::from_fn(|| self.event()).find(|event| !event.data.is_empty())
    }

    /// All events up to the end of a stream.
    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.event()).collect()
    }

    /// Whether the daemon closes the connection without sending anything.
    pub fn is_closed(&mut self) -> bool {
        self.reader.read(&mut [0]).is_ok_and(|read| read == 0)
    }

    /// Resets the connection, so that the daemon notices at once that the client has gone.
    pub fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(std::time::Duration::ZERO)).unwrap();
    }

    /// Its own address, as the daemon's log has it.
    pub fn name(&self) -> String {
        self.stream.local_addr().unwrap().to_string()
    }

    /// Half-closes the connection.
    pub fn half_close(&self) {
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
    }
}

pub fn request(id: u64, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

pub fn notification(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}
