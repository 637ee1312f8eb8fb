//! One connection of an attacker, or of a polite client beside it. Every wait has a limit, because daemons under attack
//! may keep a client waiting for ever.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::Value;

use stdio_bus_proto::websocket::Role;
use stdio_bus_proto::websocket::frame::Decoder;

use super::address::Address;
use super::web;

/// How often a waiting client checks its deadline.
const LOOK: Duration = Duration::from_millis(50);

pub struct Client {
    socket: OwnedFd,
    received: Vec<u8>,
    /// The end of the used part of `received`.
    used: usize,
    buffer: Vec<u8>,
    /// Decodes frames to lines.
    decoder: Option<Decoder>,
}

impl Client {
    /// A new connection.
    pub fn connect(address: &Address) -> io::Result<Self> {
        let decoder = address.is_web().then(|| Decoder::new(Role::Client, u64::MAX));
        Self::of(address.connect()?, decoder)
    }

    fn of(socket: OwnedFd, decoder: Option<Decoder>) -> io::Result<Self> {
        set_socket_timeout(&socket, Timeout::Recv, Some(LOOK))?;
        set_socket_timeout(&socket, Timeout::Send, Some(LOOK))?;
        Ok(Self { socket, received: Vec::new(), used: 0, buffer: vec![0; 16 * 1024], decoder })
    }

    /// A second handle of the connection, for a thread that writes while this one reads.
    pub fn second(&self) -> io::Result<Self> {
        Self::of(self.socket.try_clone()?, None)
    }

    /// Writes these bytes.
    ///
    /// # Errors
    /// `TimedOut` if not all bytes are written in time.
    pub fn send(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.send_some(bytes)? {
                0 => in_time(until)?,
                count => bytes = &bytes[count..],
            }
        }
        Ok(())
    }

    /// Writes as many of these bytes as are accepted at once or soon. Returns the number.
    pub fn send_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match rustix::net::send(&self.socket, bytes, rustix::net::SendFlags::NOSIGNAL) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a request without params.
    pub fn ask(&mut self, id: usize, method: &str, pool: &str, until: Instant) -> io::Result<()> {
        let line = request(id, method, pool);
        match self.decoder {
            Some(_) => self.send(&web::frame(line.trim_end().as_bytes()), until),
            None => self.send(line.as_bytes(), until),
        }
    }

    /// Reads and discards at most `most` available bytes. Returns the number; 0 at the end.
    pub fn skim(&mut self, most: usize, until: Instant) -> io::Result<usize> {
        let most = most.min(self.buffer.len());
        loop {
            match rustix::io::read(&self.socket, &mut self.buffer[..most]) {
                Ok(count) => return Ok(count),
                Err(Errno::AGAIN | Errno::INTR) => in_time(until)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next line.
    ///
    /// # Errors
    /// `TimedOut` if none arrives in time, `UnexpectedEof` if none will.
    pub fn line(&mut self, until: Instant) -> io::Result<Value> {
        let mut searched = self.used;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.received[searched..]) {
                let end = searched + end;
                let line = serde_json::from_slice(&self.received[self.used..end])?;
                self.used = end + 1;
                return Ok(line);
            }
            self.received.drain(..std::mem::take(&mut self.used));
            searched = self.received.len();
            // A frame's newline may need one byte more than was received.
            match self.skim(self.buffer.len() - 1, until)? {
                0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon closed a connection")),
                count => match &mut self.decoder {
                    Some(decoder) => {
                        let lines = web::lines(decoder, &mut self.buffer, count, |_| {})?;
                        self.received.extend_from_slice(lines);
                    }
                    None => self.received.extend_from_slice(&self.buffer[..count]),
                },
            }
        }
    }

    /// The answer to the request with this id; earlier lines are dropped.
    pub fn answer(&mut self, id: usize, until: Instant) -> io::Result<Value> {
        loop {
            let line = self.line(until)?;
            if line["id"] == id && line.get("method").is_none() {
                return Ok(line);
            }
            in_time(until)?;
        }
    }

    /// Whether the daemon has closed the connection, without reading what is left.
    pub fn is_closed(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&at_once)).is_ok() && !polled[0].revents().is_empty()
    }
}

fn in_time(until: Instant) -> io::Result<()> {
    if Instant::now() < until { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}

/// A line with a request.
pub fn request(id: usize, method: &str, pool: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"pool\":\"{pool}\"}}\n")
}
