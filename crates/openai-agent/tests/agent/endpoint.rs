//! An endpoint scripted by a test: one thread per connection, one call of the test's closure per request.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

/// A request that came in.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// With its query string.
    pub target: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Json,
    /// How many requests came before, on all connections.
    pub number: usize,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The last user message. Earlier unanswered messages may precede it.
    pub fn said(&self) -> String {
        let content = &self.body["messages"].as_array().unwrap().last().unwrap()["content"];
        content.as_str().and_then(|text| text.rsplit("\n\n").next()).unwrap_or_default().to_owned()
    }
}

/// The connection for the answer.
pub struct Conn {
    pub stream: TcpStream,
    is_chunked: bool,
    closes: bool,
}

impl Conn {
    pub fn raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// A whole response.
    pub fn respond(&mut self, status: u16, headers: &[(&str, &str)], body: &str) {
        let mut head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        self.raw(format!("{head}\r\n{body}").as_bytes());
    }

    /// An error with the usual JSON.
    pub fn refuse(&mut self, status: u16, message: &str) {
        let body = json!({"error": {"message": message, "type": "x", "code": null}}).to_string();
        self.respond(status, &[("content-type", "application/json")], &body);
    }

    /// The head of a stream.
    pub fn begin(&mut self) {
        self.is_chunked = true;
        self.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
    }

    /// Bytes of a stream, as one chunk.
    pub fn chunk(&mut self, bytes: &[u8]) {
        assert!(self.is_chunked);
        let mut out = format!("{:x}\r\n", bytes.len()).into_bytes();
        out.extend_from_slice(bytes);
        out.extend_from_slice(b"\r\n");
        self.raw(&out);
    }

    pub fn event(&mut self, data: &Json) {
        self.chunk(format!("data: {data}\n\n").as_bytes());
    }

    pub fn text(&mut self, text: &str) {
        self.event(&delta(json!({"content": text})));
    }

    pub fn finish_reason(&mut self, reason: &str) {
        self.event(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}));
    }

    /// `[DONE]` and the end of the stream in one write: the connection can be reused at once.
    pub fn done(&mut self) {
        self.raw(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
    }

    pub fn end(&mut self) {
        self.raw(b"0\r\n\r\n");
    }

    /// Closes the connection early.
    pub fn cut(&mut self) {
        self.closes = true;
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Resets the connection.
    pub fn reset(&mut self) {
        self.closes = true;
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(std::time::Duration::ZERO)).unwrap();
    }

    /// A stream of these texts with a proper end.
    pub fn say(&mut self, texts: &[&str]) {
        self.begin();
        for text in texts {
            self.text(text);
        }
        self.finish_reason("stop");
        self.done();
    }

    /// Waits until the client drops the connection; reads nothing else.
    pub fn wait_closed(&mut self) {
        self.closes = true;
        let mut byte = [0];
        self.stream.set_read_timeout(Some(super::client::PATIENCE)).unwrap();
        loop {
            match self.stream.read(&mut byte) {
                Ok(0) => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return,
                // The process was stopped, and continues (signal(7)).
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => panic!("not closed: {other:?}"),
            }
        }
    }
}

/// A chunk with this delta.
pub fn delta(delta: Json) -> Json {
    json!({"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

/// A listening endpoint. It lives until the test's process ends.
pub struct Endpoint {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    connections: Arc<Mutex<usize>>,
}

impl Endpoint {
    /// Calls `handler` for every request.
    pub fn start(handler: impl Fn(&Request, &mut Conn) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(Mutex::new(0));
        let handler = Arc::new(handler);
        let (seen, count) = (requests.clone(), connections.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                *count.lock().unwrap() += 1;
                let (handler, seen) = (handler.clone(), seen.clone());
                let serve = move || serve(stream, &*handler, &seen);
                std::thread::Builder::new().stack_size(256 << 10).spawn(serve).unwrap();
            }
        });
        Self { address, requests, connections }
    }

    /// An endpoint that answers everything with these texts.
    pub fn saying(texts: &'static [&'static str]) -> Self {
        Self::start(move |_, conn| conn.say(texts))
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The address shown in errors.
    pub fn chat_url(&self) -> String {
        format!("{}/chat/completions", self.url())
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }
}

fn serve(stream: TcpStream, handler: &dyn Fn(&Request, &mut Conn), seen: &Mutex<Vec<Request>>) {
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(mut request) = read_request(&mut reader) {
        {
            let mut seen = seen.lock().unwrap();
            request.number = seen.len();
            seen.push(request.clone());
        }
        let mut conn = Conn { stream: stream.try_clone().unwrap(), is_chunked: false, closes: false };
        handler(&request, &mut conn);
        if conn.closes {
            return;
        }
    }
}

fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, value)| value.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = serde_json::from_slice(&body).unwrap_or(Json::Null);
    Some(Request { method, target, headers, body, number: 0 })
}
