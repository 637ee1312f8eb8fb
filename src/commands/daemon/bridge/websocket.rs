//! A WebSocket connection to the daemon, with or without TLS. [`crate::websocket`] encodes and decodes the frames.
//!
//! Two tasks use it, one for each direction, and a third sends urgent data: pongs, a close frame, and TLS records. So
//! pings are answered while the daemon does not read stdin's lines, and input is read while a pong waits. A writer
//! holds the lock until all is written, so that frames never interleave.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tokio::time::{sleep, timeout};

use super::daemon::Url;
use super::failure::{Ending, Failure};
use super::frames::Framer;
use super::limits::{BLOCK, say};
use super::stream::Stream;
use super::tls::Tls;
use crate::random;
use crate::websocket::client::{self, ServerResponse, UpgradeRequest};
use crate::websocket::frame::{Decoder, FrameEvent, Received};
use crate::websocket::{Role, close, encode};

/// Maximum number of consecutive reads with nothing but pings and ignored frames, before each further one is delayed.
const MOST_IDLE_READS: u32 = 16;

/// That delay. TCP holds back the rest of a flood.
const PAUSE: Duration = Duration::from_millis(50);

/// The sending side, shared by the tasks that pass on stdin and that send urgent data.
pub(super) struct Sender {
    socket: Rc<Stream>,
    tls: RefCell<Option<Tls>>,
    outgoing: Mutex<Outgoing>,
    urgent: RefCell<Urgent>,
    wake: Notify,
    /// The connection is not used any more.
    is_over: Cell<bool>,
}

/// Outgoing data.
struct Outgoing {
    framer: Framer,
    frames: Vec<u8>,
    sealed: Vec<u8>,
    /// A close frame was sent, and no frame may follow it.
    is_closed: bool,
}

/// Data to send as soon as the current write is done. It is bounded: of several pings only the last is answered, as RFC
/// 6455 (section 5.5.3) allows.
#[derive(Default)]
struct Urgent {
    pong: Option<Vec<u8>>,
    close: Option<(Option<u16>, &'static str)>,
}

/// The receiving side, used by one task.
pub(super) struct Receiver {
    sender: Rc<Sender>,
    /// Bytes received with the response to the handshake.
    first: Vec<u8>,
    block: Vec<u8>,
    decoder: Decoder,
    /// Why there is no more input.
    ending: Option<Ending>,
    /// Consecutive reads without anything for the editor.
    idle_reads: u32,
    /// The message about ignored binary frames was printed.
    has_logged_binary: bool,
    /// The daemon's id for this connection in its log.
    pub(super) connection_id: Option<String>,
}

/// Does the handshake on a connected socket, in at most `limit`.
///
/// # Errors
/// The server refuses, or does not speak WebSocket.
pub(super) async fn connect(
    socket: Rc<Stream>,
    url: &Url,
    token: Option<&str>,
    tls: Option<Tls>,
    limit: Duration,
) -> Result<(Rc<Sender>, Receiver), Failure> {
    let mut key = [0; 16];
    random::fill(&mut key, random::Flags::empty()).map_err(Failure::Broken)?;
    let host = url.host_field();
    let request = UpgradeRequest::new(&host, url.target(), key, token).map_err(|why| Failure::File(why.to_owned()))?;
    let outgoing =
        Outgoing { framer: Framer::new(), frames: request.to_string().into(), sealed: Vec::new(), is_closed: false };
    let sender = Rc::new(Sender {
        socket,
        tls: RefCell::new(tls),
        outgoing: Mutex::new(outgoing),
        urgent: RefCell::default(),
        wake: Notify::new(),
        is_over: Cell::new(false),
    });
    let answered = timeout(limit, sender.shake_hands(key)).await.map_err(|_| Failure::Silent)?;
    let (first, connection_id) = answered?;
    let receiver = Receiver {
        sender: Rc::clone(&sender),
        first,
        block: Vec::with_capacity(BLOCK),
        // Messages are not buffered here, so there is no need for a limit.
        decoder: Decoder::new(Role::Client, u64::MAX),
        ending: None,
        idle_reads: 0,
        has_logged_binary: false,
        connection_id,
    };
    Ok((sender, receiver))
}

impl Sender {
    /// The socket itself.
    pub(super) fn socket(&self) -> &Stream {
        &self.socket
    }

    /// Sends the queued request and reads the response. Returns the bytes after it, and the connection's id.
    async fn shake_hands(&self, key: [u8; 16]) -> Result<(Vec<u8>, Option<String>), Failure> {
        let (mut head, mut block) = (Vec::new(), Vec::with_capacity(BLOCK));
        let mut has_ended = false;
        loop {
            // A server may answer and close before it was asked: its answer counts.
            let written = self.flush(&mut *self.outgoing.lock().await).await;
            match client::read(&head, key, has_ended) {
                ServerResponse::More => {}
                ServerResponse::Accepted { length, connection_id } => {
                    head.drain(..length);
                    return Ok((head, connection_id));
                }
                ServerResponse::Refused(refused) => return Err(Failure::Refused(refused)),
                ServerResponse::Malformed(why) => return Err(Failure::NoWebSocket(why)),
            }
            let result;
            (result, block) = self.socket.read(block).await;
            match result {
                Ok(0) => has_ended = true,
                Ok(_) => {}
                Err(_) if !head.is_empty() => has_ended = true,
                Err(error) => return Err(Failure::Broken(written.err().unwrap_or(error))),
            }
            if let Err(error) = self.open(&block, &mut head) {
                // Sends the TLS alert.
                let _ = self.flush(&mut *self.outgoing.lock().await).await;
                return Err(Failure::Tls(error));
            }
        }
    }

    /// Appends the decrypted bytes from the socket to `plain`.
    fn open(&self, block: &[u8], plain: &mut Vec<u8>) -> Result<(), super::tls::TlsError> {
        match &mut *self.tls.borrow_mut() {
            Some(tls) => tls.open(block, plain),
            None => {
                plain.extend_from_slice(block);
                Ok(())
            }
        }
    }

    /// Writes the queued data.
    async fn flush(&self, outgoing: &mut Outgoing) -> io::Result<()> {
        let Outgoing { frames, sealed, .. } = outgoing;
        let ready = match &mut *self.tls.borrow_mut() {
            Some(tls) => {
                tls.seal(frames, sealed)?;
                frames.clear();
                sealed
            }
            None => frames,
        };
        if ready.is_empty() {
            return Ok(());
        }
        let (result, mut written) = self.socket.write(std::mem::take(ready)).await;
        written.clear();
        *ready = written;
        result
    }

    /// Sends lines of stdin. Returns the buffer.
    pub(super) async fn send(&self, lines: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        let sent = async {
            let mut outgoing = self.open_outgoing().await?;
            let Outgoing { framer, frames, .. } = &mut *outgoing;
            framer.read(&lines, frames)?;
            self.flush(&mut outgoing).await
        };
        let result = sent.await;
        (result, lines)
    }

    /// Sends the rest of stdin at its end. The connection stays open for outstanding answers.
    pub(super) async fn end(&self) -> io::Result<()> {
        let mut outgoing = self.open_outgoing().await?;
        let Outgoing { framer, frames, .. } = &mut *outgoing;
        framer.end(frames)?;
        self.flush(&mut outgoing).await
    }

    async fn open_outgoing(&self) -> io::Result<tokio::sync::MutexGuard<'_, Outgoing>> {
        let outgoing = self.outgoing.lock().await;
        if outgoing.is_closed { Err(ErrorKind::BrokenPipe.into()) } else { Ok(outgoing) }
    }

    /// Closes the connection, since nothing is left to send or receive.
    pub(super) fn close_soon(&self) {
        self.urgent.borrow_mut().close = Some((Some(close::NORMAL), ""));
        self.wake.notify_one();
    }

    /// Ends the task that sends urgent data, which would keep the socket of a connection that is not used any more.
    pub(super) fn end_urgent(&self) {
        self.is_over.set(true);
        self.wake.notify_one();
    }

    /// Sends urgent data until the connection is closed.
    pub(super) async fn send_urgent(&self) {
        loop {
            self.wake.notified().await;
            if self.is_over.get() {
                return;
            }
            let mut outgoing = self.outgoing.lock().await;
            let urgent = self.urgent.take();
            if outgoing.is_closed {
                return;
            }
            // A broken connection is noticed by the reader.
            if self.send_controls(&mut outgoing, urgent).await.is_err() {
                return;
            }
        }
    }

    async fn send_controls(&self, outgoing: &mut Outgoing, urgent: Urgent) -> io::Result<()> {
        let Outgoing { framer, frames, .. } = outgoing;
        if let Some(payload) = urgent.pong {
            frames.extend_from_slice(&encode::pong(&payload, Some(framer.mask()?)));
        }
        if let Some((code, reason)) = urgent.close {
            frames.extend_from_slice(&encode::close(code, reason, Some(framer.mask()?)));
            outgoing.is_closed = true;
        }
        self.flush(outgoing).await
    }

    /// Sends a close frame, unless one was sent, and TLS's close notification.
    pub(super) async fn say_farewell(&self, code: Option<u16>, reason: &'static str) {
        let mut outgoing = self.outgoing.lock().await;
        let close = (!outgoing.is_closed).then_some((code, reason));
        // A peer that does not read it sees the end of the connection.
        if self.send_controls(&mut outgoing, Urgent { pong: None, close }).await.is_err() {
            return;
        }
        match &mut *self.tls.borrow_mut() {
            Some(tls) => tls.close(),
            None => return,
        }
        let _ = self.flush(&mut outgoing).await;
    }
}

impl Receiver {
    /// Waits for lines, or parts of lines, which replace the contents of `text`. Returns why there are no more at the
    /// end.
    pub(super) async fn receive(&mut self, mut text: Vec<u8>) -> (Result<(), Ending>, Vec<u8>) {
        loop {
            if let Some(ending) = self.ending.take() {
                return (Err(ending), text);
            }
            text.clear();
            if let Err(ending) = self.read(&mut text).await {
                return (Err(ending), text);
            }
            self.decode(&mut text);
            if !text.is_empty() {
                self.idle_reads = 0;
                return (Ok(()), text);
            }
            self.idle_reads += 1;
            if self.idle_reads > MOST_IDLE_READS && self.ending.is_none() {
                sleep(PAUSE).await;
            }
        }
    }

    /// Reads frames into `text`.
    async fn read(&mut self, text: &mut Vec<u8>) -> Result<(), Ending> {
        if !self.first.is_empty() {
            *text = std::mem::take(&mut self.first);
            return Ok(());
        }
        let result;
        (result, self.block) = self.sender.socket.read(std::mem::take(&mut self.block)).await;
        match result {
            Ok(0) => return Err(Ending::Closed),
            Ok(_) => {}
            Err(error) => return Err(Ending::Broken(error)),
        }
        let opened = self.sender.open(&self.block, text);
        if self.sender.tls.borrow().as_ref().is_some_and(Tls::has_to_say) {
            self.sender.wake.notify_one();
        }
        opened.map_err(|error| Ending::Broken(io::Error::other(format!("TLS: {}", error.what))))
    }

    /// Decodes the frames in `text` to lines, and handles the other frames.
    fn decode(&mut self, text: &mut Vec<u8>) {
        let count = text.len();
        // A newline may need this byte.
        text.push(0);
        let mut received = Received::new(text, count);
        while let Some(event) = self.decoder.next(&mut received) {
            match event {
                FrameEvent::Text { .. } | FrameEvent::Pong(_) => {}
                FrameEvent::Binary { bytes } => {
                    if !self.has_logged_binary {
                        self.has_logged_binary = true;
                        say(&format!("a binary message of {bytes} bytes is left out, and so are all others"));
                    }
                }
                FrameEvent::Ping(payload) => {
                    self.sender.urgent.borrow_mut().pong = Some(payload.to_vec());
                    self.sender.wake.notify_one();
                }
                FrameEvent::Close { code, reason } => self.ending = Some(Ending::said(code, reason)),
                FrameEvent::Fault(fault) => self.ending = Some(Ending::Wrong(fault)),
            }
        }
        let lines = received.text();
        text.truncate(lines);
    }
}
