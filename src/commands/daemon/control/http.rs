//! Sends a request to a daemon's admin listener over HTTP/1.1, and reads the whole response.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use rustix::net::getpeername;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::Value;

use crate::address::Address;
use crate::dial::dial;
use crate::error::StartError;
use crate::http1::{Error, Event, Head, Method, ResponseReader};

/// Time limit for the connection, and for each part of the response.
const PATIENCE: Duration = Duration::from_secs(10);

/// A daemon.
pub(super) struct Server {
    /// Its admin listener.
    pub address: Address,
    /// The token for actions over TCP.
    pub token: Option<String>,
}

/// A request.
pub(super) struct Ask {
    method: &'static str,
    target: String,
}

impl Ask {
    pub(super) fn get(target: &str) -> Self {
        Self { method: "GET", target: target.to_owned() }
    }

    pub(super) fn post(target: &str) -> Self {
        Self { method: "POST", target: target.to_owned() }
    }
}

/// A response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AdminAnswer {
    /// Its status code.
    pub status: u16,
    /// Its body, with invalid UTF-8 replaced.
    pub body: String,
}

/// A response body as JSON.
pub(super) fn parsed(body: &str) -> Result<Value, StartError> {
    serde_json::from_str(body).map_err(|error| StartError::io("understand the answer")(error.into()))
}

impl Server {
    /// Connects.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    pub(super) fn connect(&self) -> Result<AdminConnection<'_>, StartError> {
        self.open().map_err(|error| self.cannot_be_asked(with_remedy(error)))
    }

    /// The body of a successful response.
    pub(super) fn body(&self, ask: &Ask) -> Result<String, StartError> {
        self.connect()?.body(ask)
    }

    fn cannot_be_asked(&self, why: io::Error) -> StartError {
        StartError::io(&format!("ask the daemon at {}", self.address))(why)
    }

    fn open(&self) -> io::Result<AdminConnection<'_>> {
        let socket = dial(&self.address, PATIENCE)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        // A name that means this machine may mean anything to the daemon.
        let peer = getpeername(&socket)?.and_then(|address| SocketAddr::try_from(address).ok());
        let host = peer.map_or("localhost".to_owned(), |address| address.to_string());
        Ok(AdminConnection { server: self, stream: socket.into(), host })
    }
}

/// A connection for several requests: it survives if the listener moves.
pub(super) struct AdminConnection<'s> {
    server: &'s Server,
    stream: File,
    host: String,
}

impl AdminConnection<'_> {
    /// The body of a successful response.
    pub(super) fn body(&mut self, ask: &Ask) -> Result<String, StartError> {
        let server = self.server;
        let answer = self.exchange(ask).map_err(|error| server.cannot_be_asked(with_remedy(error)))?;
        if answer.status < 400 {
            return Ok(answer.body);
        }
        if answer.status == 404 && ask.method == "GET" {
            return Err(server.cannot_be_asked(io::Error::other("it answers with 404; is this the admin listener?")));
        }
        let doing = format!("do that: {} answers with {}", server.address, answer.status);
        Err(StartError::io(&doing)(io::Error::other(answer.body.trim_end().to_owned())))
    }

    /// Sends a request, and waits for the whole response.
    fn exchange(&mut self, ask: &Ask) -> io::Result<AdminAnswer> {
        let token = self.server.token.as_ref();
        let head = Head::request(ask.method, &ask.target, &self.host)
            .field_if("Authorization", token.map(|token| format!("Bearer {token}")))
            .field_if("Content-Length", (ask.method == "POST").then_some(0))
            .end();
        self.stream.write_all(head.as_bytes())?;
        read(&mut self.stream)
    }
}

/// Reads one response.
fn read(stream: &mut impl Read) -> io::Result<AdminAnswer> {
    let mut reader = ResponseReader::new(Method::Get, u64::MAX);
    let (mut status, mut body) = (0, Vec::new());
    let (mut bytes, mut at, mut has_ended) = (Vec::new(), 0, false);
    loop {
        match reader.next(&bytes[at..], has_ended) {
            Event::Head(head) => {
                status = head.status;
                at += head.length;
            }
            Event::Data { data, length } => {
                body.extend_from_slice(data);
                at += length;
            }
            Event::More(length) => {
                at += length;
                let mut piece = [0; 16 << 10];
                let read = loop {
                    match stream.read(&mut piece) {
                        // The process was stopped, and continues (signal(7)).
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        read => break read?,
                    }
                };
                has_ended = read == 0;
                bytes.extend_from_slice(&piece[..read]);
            }
            Event::End(_) => return Ok(AdminAnswer { status, body: String::from_utf8_lossy(&body).into_owned() }),
            Event::Wrong(error) => {
                let is_known = matches!(error, Error::NOTHING | Error::CUT_OFF);
                let why = if is_known { error.why } else { "its answer is not HTTP; is this the admin listener?" };
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
    }
}

/// Adds a remedy if the daemon does not listen, answer or admit us.
fn with_remedy(error: io::Error) -> io::Error {
    use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied, TimedOut, WouldBlock};
    let what = match error.kind() {
        NotFound | ConnectionRefused => {
            format!("{error}\nno daemon listens there; start it with this --admin ADDRESS, or correct the address")
        }
        PermissionDenied => {
            format!("{error}\nadmin.mode admits only the daemon's user; run this as that user, or with sudo")
        }
        WouldBlock | TimedOut => format!(
            "it has not answered for {} s, and may still do what was asked later\nsee whether it is stopped or busy: ps -C \
             stdio_bus -o pid,stat,pcpu",
            PATIENCE.as_secs()
        ),
        _ => return error,
    };
    io::Error::new(error.kind(), what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> Result<String, String> {
        read(&mut text.as_bytes()).map(|answer| answer.body).map_err(|error| error.to_string())
    }

    #[test]
    fn an_unreachable_daemon_is_reported_with_a_remedy() {
        let text_of = |kind: io::ErrorKind| with_remedy(kind.into()).to_string();
        for (kind, remedy) in [
            (io::ErrorKind::ConnectionRefused, "start it with this --admin ADDRESS"),
            (io::ErrorKind::PermissionDenied, "with sudo"),
            (io::ErrorKind::WouldBlock, "it has not answered for 10 s"),
            (io::ErrorKind::TimedOut, "ps -C stdio_bus"),
        ] {
            assert!(text_of(kind).contains(remedy), "{}", text_of(kind));
        }
    }

    /// What comes after the process was stopped and continues.
    struct Continued<'b>(&'b [u8], bool);

    impl Read for Continued<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.1, false) {
                Err(io::ErrorKind::Interrupted.into())
            } else {
                self.0.read(into)
            }
        }
    }

    #[test]
    fn a_command_that_was_stopped_and_continues_takes_the_answer() {
        let answer = read(&mut Continued(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", true));
        assert_eq!(answer.ok(), Some(AdminAnswer { status: 200, body: "abc".to_owned() }));
    }

    #[test]
    fn a_response_is_complete_or_an_error() {
        let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n00000003\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        assert_eq!(body(chunks).as_deref(), Ok("abcde"));
        let length = "HTTP/1.1 503 No\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(read(&mut length.as_bytes()).ok(), Some(AdminAnswer { status: 503, body: "abc".to_owned() }));
        for cut in 1..chunks.len() - 4 {
            assert_eq!(body(&chunks[..cut]), Err("its answer was cut off".to_owned()), "{cut}");
        }
        for cut in 1..length.len() {
            assert_eq!(body(&length[..cut]), Err("its answer was cut off".to_owned()), "{cut}");
        }
        assert!(body("").is_err_and(|why| why.contains("without an answer")));
        assert!(body("{\"jsonrpc\":\"2.0\"}\n").is_err_and(|why| why.contains("is this the admin listener?")));
    }
}
