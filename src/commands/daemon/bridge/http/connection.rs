//! One HTTP/1.1 connection to the daemon, with or without TLS, and the response to one request on it. [`crate::http1`]
//! parses heads and bodies.

use std::io::{self, ErrorKind};
use std::net::TcpStream as StdStream;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::super::failure::Failure;
use super::super::limits::CONNECT_LIMIT;
use super::super::tls::{Tls, TlsTrust};
use crate::address::Address;
use crate::dial::{LOOK_EVERY, Pulse, dial};
use crate::http1::{Error, Event, Method, Response, ResponseReader, is_word, printable};
use crate::websocket::client::Refused;

/// Size of a read in bytes.
const BLOCK: usize = 16 * 1024;

/// Maximum length of a response body or stream.
const LONGEST_BODY: u64 = u64::MAX;

pub(super) struct HttpConnection {
    socket: TcpStream,
    tls: Option<Tls>,
    block: Vec<u8>,
    /// Received bytes that are not consumed yet.
    received: Vec<u8>,
}

impl HttpConnection {
    /// Connects, in at most twice [`CONNECT_LIMIT`].
    ///
    /// # Errors
    /// Why it failed.
    pub(super) async fn dial(address: Address, trust: Option<&TlsTrust>) -> Result<Self, Failure> {
        let dialed = spawn_blocking(move || dial(&address, CONNECT_LIMIT)).await;
        let socket = dialed.map_err(io::Error::from).and_then(|socket| {
            let socket = StdStream::from(socket?);
            socket.set_nonblocking(true)?;
            TcpStream::from_std(socket)
        });
        let socket = socket.map_err(Failure::Dial)?;
        let tls = trust.map(TlsTrust::begin).transpose().map_err(Failure::File)?;
        let mut connection = Self { socket, tls, block: vec![0; BLOCK], received: Vec::new() };
        timeout(CONNECT_LIMIT, connection.agree()).await.map_err(|_| Failure::Silent)??;
        Ok(connection)
    }

    /// Does the TLS handshake.
    async fn agree(&mut self) -> Result<(), Failure> {
        while self.tls.as_ref().is_some_and(Tls::is_handshaking) {
            self.send(b"").await.map_err(Failure::Broken)?;
            if self.tls.as_ref().is_some_and(Tls::is_handshaking) && self.receive().await? {
                return Err(Failure::Broken(ErrorKind::UnexpectedEof.into()));
            }
        }
        self.send(b"").await.map_err(Failure::Broken)
    }

    /// Whether it can carry another request: nothing was received unasked, including its end.
    pub(super) fn is_quiet(&mut self) -> bool {
        let is_silent = |read: io::Result<usize>| read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        self.received.is_empty() && is_silent(self.socket.try_read(&mut self.block[..1]))
    }

    /// Sends these bytes, and any pending TLS records.
    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return write(&self.socket, bytes).await };
        let mut sealed = Vec::new();
        tls.seal(bytes, &mut sealed)?;
        write(&self.socket, &sealed).await
    }

    /// Waits for more bytes. True at the end of the connection.
    async fn receive(&mut self) -> Result<bool, Failure> {
        let mut pulse = Pulse::default();
        loop {
            match timeout(LOOK_EVERY, self.socket.readable()).await {
                Ok(readable) => readable.map_err(Failure::Broken)?,
                Err(_) if pulse.has_stopped(&self.socket) => return Err(Failure::Broken(Pulse::error())),
                Err(_) => continue,
            }
            let count = match self.socket.try_read(&mut self.block) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(Failure::Broken(error)),
            };
            let Some(tls) = &mut self.tls else {
                self.received.extend_from_slice(&self.block[..count]);
                return Ok(count == 0);
            };
            let opened = tls.open(&self.block[..count], &mut self.received);
            if tls.has_to_say() {
                let sent = self.send(b"").await;
                if opened.is_ok() {
                    sent.map_err(Failure::Broken)?;
                }
            }
            opened.map_err(Failure::Tls)?;
            return Ok(count == 0);
        }
    }

    /// Sends a request: its head and body. True if all of it was sent; if not, there may be a response all the same.
    pub(super) async fn ask(mut self, method: Method, head: String, body: &[u8]) -> (Reply, bool) {
        let mut request = head.into_bytes();
        request.extend_from_slice(body);
        let sent = self.send(&request).await;
        let reply = Reply {
            connection: self,
            reader: ResponseReader::new(method, LONGEST_BODY),
            has_ended: false,
            keeps_alive: true,
        };
        (reply, sent.is_ok())
    }
}

async fn write(socket: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        socket.writable().await?;
        match socket.try_write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The response to a request.
pub(super) struct Reply {
    connection: HttpConnection,
    reader: ResponseReader,
    has_ended: bool,
    /// The connection may be reused.
    keeps_alive: bool,
}

/// The parsed head of a response.
#[derive(Debug)]
pub(super) struct AnswerHead {
    pub status: u16,
    /// `Content-Type`, without its parameters, in lower case.
    pub kind: String,
    /// `Mcp-Session-Id`, if it is valid in a request.
    pub session: Option<String>,
    reason: String,
    location: Option<String>,
    retry_after: Option<u32>,
}

impl AnswerHead {
    fn new(head: &Response<'_>) -> Self {
        let first = |name| head.fields.values(name).next();
        let kind = first("content-type").unwrap_or_default();
        let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        Self {
            status: head.status,
            kind: text(kind).to_ascii_lowercase(),
            session: first("mcp-session-id").map(text).filter(|id| is_word(id)),
            reason: printable(head.reason.as_bytes()),
            location: first("location").map(printable),
            retry_after: first("retry-after").and_then(|seconds| str::from_utf8(seconds).ok()?.parse().ok()),
        }
    }

    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// When the server may be asked again (RFC 9110, section 10.2.3), if it says so in seconds.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        self.retry_after.map(|seconds| Duration::from_secs(seconds.into()))
    }

    pub(super) fn is_stream(&self) -> bool {
        self.kind == "text/event-stream"
    }

    /// The server's refusal, with the message in its body.
    pub(super) fn refused(self, body: &[u8]) -> Refused {
        let message = crate::websocket::client::message(self.kind.as_bytes(), body).unwrap_or(self.reason);
        Refused { status: self.status, message, retry_after: self.retry_after, location: self.location }
    }
}

impl Reply {
    /// Waits for the head.
    ///
    /// # Errors
    /// There is none, or it is not HTTP.
    pub(super) async fn head(&mut self) -> Result<AnswerHead, Failure> {
        loop {
            let (taken, head) = match self.reader.next(&self.connection.received, self.has_ended) {
                Event::Head(head) if head.status == 101 => return Err(no_http("it switches protocols")),
                Event::Head(head) => {
                    self.keeps_alive = !head.fields.has("connection", "close");
                    (head.length, (head.status >= 200).then(|| AnswerHead::new(&head)))
                }
                Event::Wrong(error @ (Error::NOTHING | Error::CUT_OFF)) => return Err(cut_off(error)),
                Event::Wrong(error) => return Err(no_http(error.why)),
                Event::More(taken) | Event::End(taken) | Event::Data { length: taken, .. } => {
                    self.take(taken);
                    self.has_ended = self.connection.receive().await?;
                    continue;
                }
            };
            self.take(taken);
            if let Some(head) = head {
                return Ok(head);
            }
        }
    }

    /// Waits for the next piece of the body, which is empty at its end.
    ///
    /// # Errors
    /// The body is truncated.
    pub(super) async fn piece(&mut self) -> Result<Vec<u8>, Failure> {
        loop {
            let (taken, piece) = match self.reader.next(&self.connection.received, self.has_ended) {
                Event::Data { data, length } => (length, Some(data.to_vec())),
                Event::End(taken) => (taken, Some(Vec::new())),
                Event::More(taken) => (taken, None),
                Event::Head(_) => return Err(no_http("a head comes where a body should be")),
                Event::Wrong(error @ Error::CUT_OFF) => return Err(cut_off(error)),
                Event::Wrong(error) => return Err(no_http(error.why)),
            };
            self.take(taken);
            match piece {
                Some(piece) => return Ok(piece),
                None => self.has_ended = self.connection.receive().await?,
            }
        }
    }

    /// The whole body, or at most `most` bytes of it.
    pub(super) async fn body(&mut self, most: usize) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        loop {
            let piece = self.piece().await?;
            body.extend_from_slice(&piece);
            if piece.is_empty() || body.len() >= most {
                return Ok(body);
            }
        }
    }

    /// The connection, if its response is complete and it can be reused.
    pub(super) fn into_connection(self) -> Option<HttpConnection> {
        (self.keeps_alive && !self.has_ended && self.connection.received.is_empty()).then_some(self.connection)
    }

    fn take(&mut self, taken: usize) {
        self.connection.received.drain(..taken);
    }
}

fn cut_off(error: Error) -> Failure {
    Failure::Broken(io::Error::new(ErrorKind::UnexpectedEof, error.why))
}

fn no_http(why: &str) -> Failure {
    Failure::NoMcp(format!("its answer cannot be read: {why}"))
}
