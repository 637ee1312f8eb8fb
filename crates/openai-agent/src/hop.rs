//! What is between the agent and the endpoint: a tunnel through a proxy, and the first bytes of a server that does
//! not speak HTTP/1.1. Both are here for the words of their failures, which name the remedy.

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http::{HeaderValue, Uri};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Most bytes of a proxy's answer.
const MOST_HEAD: usize = 16 << 10;

/// Why there is no connection, in words that a repetition would only repeat.
#[derive(Debug)]
pub struct Hindrance {
    words: String,
    /// Whether it may pass.
    pub may_pass: bool,
}

impl fmt::Display for Hindrance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.words)
    }
}

impl Error for Hindrance {}

/// Asks the proxy at the other end for a tunnel to the host of `url`.
///
/// # Errors
/// The connection's, or what the proxy answered.
pub async fn tunnel<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    proxy: &str,
    basic: Option<&HeaderValue>,
    url: &Uri,
) -> Result<S, Box<dyn Error + Send + Sync>> {
    let target = format!("{}:{}", url.host().unwrap_or_default(), url.port_u16().unwrap_or(443));
    let mut head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
    if let Some(basic) = basic {
        head.extend_from_slice(b"Proxy-Authorization: ");
        head.extend_from_slice(basic.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    stream.write_all(&head).await?;
    let mut answer = Vec::new();
    // Nothing follows the head of a proxy that agrees, for in TLS the client begins.
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") && answer.len() < MOST_HEAD {
        if stream.read_buf(&mut answer).await? == 0 {
            break;
        }
    }
    let Some((status, reason)) = status(&answer) else {
        let words = match answer.is_empty() {
            true => format!("the proxy {proxy} closed the connection when it was asked for a tunnel to {target}"),
            false => format!("the proxy {proxy} does not answer in HTTP: check HTTPS_PROXY"),
        };
        return Err(Hindrance { words, may_pass: answer.is_empty() }.into());
    };
    let words = match status {
        200..300 => return Ok(stream),
        407 if basic.is_some() => {
            format!("the proxy {proxy} refuses the user or the password that HTTPS_PROXY has for it (HTTP 407)")
        }
        407 => format!(
            "the proxy {proxy} asks for a user and a password (HTTP 407): write user:password@ before its host in \
             HTTPS_PROXY"
        ),
        _ => format!(
            "the proxy {proxy} opens no tunnel to {target} (HTTP {status}{reason}): check HTTPS_PROXY, or name the \
             host in NO_PROXY if it can be reached without a proxy"
        ),
    };
    Err(Hindrance { words, may_pass: matches!(status, 408 | 429 | 500..) }.into())
}

/// The status of an answer, and its reason with a space before it.
fn status(answer: &[u8]) -> Option<(u16, String)> {
    let line = answer.split(|byte| *byte == b'\n').next()?.trim_ascii_end();
    let line = std::str::from_utf8(line).ok()?.strip_prefix("HTTP/1.")?;
    let (_, rest) = line.split_once(' ')?;
    let (status, reason) = rest.split_at(rest.len().min(3));
    let reason: String = reason.chars().filter(|letter| !letter.is_control()).take(80).collect();
    Some((status.parse().ok()?, reason.trim_end().to_owned()))
}

/// The first bytes that a server sent.
#[derive(Clone, Debug, Default)]
pub struct Greeting(Rc<Cell<[u8; 4]>>);

impl Greeting {
    /// What the server seems to speak, if it is something else than HTTP/1.1.
    pub fn hindrance(&self) -> Option<Hindrance> {
        let words = match self.0.get() {
            // The head of a frame: a length, and the type SETTINGS or GOAWAY.
            [0, _, _, 4 | 7] => {
                "the server speaks HTTP/2 only, and this agent HTTP/1.1: let it accept HTTP/1.1, or put a proxy before it \
                 that speaks both"
            }
            [0x15, 3, ..] => "the server speaks TLS on this port: OPENAI_BASE_URL has to begin with https://",
            _ => return None,
        };
        Some(Hindrance { words: words.to_owned(), may_pass: false })
    }
}

/// A connection whose first bytes are remembered.
#[derive(Debug)]
pub struct Watched<S> {
    stream: S,
    greeting: Greeting,
    seen: usize,
}

impl<S> Watched<S> {
    /// Remembers the first bytes of a new connection.
    pub fn new(stream: S) -> (Self, Greeting) {
        let greeting = Greeting::default();
        (Self { stream, greeting: greeting.clone(), seen: 0 }, greeting)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let mut first = self.greeting.0.get();
        if self.seen < first.len() {
            for byte in &buf.filled()[before..] {
                let seen = self.seen;
                let Some(place) = first.get_mut(seen) else { break };
                *place = *byte;
                self.seen += 1;
            }
            self.greeting.0.set(first);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
