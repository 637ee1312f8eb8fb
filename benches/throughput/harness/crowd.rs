//! Idle WebSocket clients, which read frames and answer pings, all on one thread.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use stdio_bus_proto::websocket::Role;
use stdio_bus_proto::websocket::frame::Decoder;

use super::address::Address;
use super::web;

pub struct Crowd {
    epoll: OwnedFd,
    members: Vec<Member>,
    events: Vec<epoll::Event>,
    buffer: Vec<u8>,
}

struct Member {
    socket: OwnedFd,
    decoder: Decoder,
}

/// A received frame.
pub enum Arrival {
    /// A ping, which was answered.
    Ping,
    Message,
}

impl Crowd {
    /// No clients.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, members: Vec::new(), events: Vec::with_capacity(1024), buffer: vec![0; 64 * 1024] })
    }

    /// Adds a connection. Returns its index.
    pub fn join(&mut self, address: &Address) -> io::Result<usize> {
        let number = self.members.len();
        let socket = address.connect_nonblocking()?;
        epoll::add(&self.epoll, &socket, EventData::new_u64(number as u64), EventFlags::IN)?;
        self.members.push(Member { socket, decoder: Decoder::new(Role::Client, u64::MAX) });
        Ok(number)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Sends a frame, for which the socket has room: less than its capacity is in flight.
    pub fn send(&self, member: usize, frame: &[u8]) -> io::Result<()> {
        match rustix::io::write(&self.members[member].socket, frame)? {
            count if count == frame.len() => Ok(()),
            _ => Err(io::Error::other("a socket is full")),
        }
    }

    /// Waits for frames, at most `most`, and reports each.
    pub fn listen(&mut self, most: Duration, mut arrived: impl FnMut(usize, Arrival)) -> io::Result<()> {
        let most = Timespec::try_from(most).map_err(io::Error::other)?;
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&most)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let room = self.buffer.len() - 1;
        for event in &self.events {
            let number = event.data.u64() as usize;
            let member = &mut self.members[number];
            let count = match rustix::io::read(&member.socket, &mut self.buffer[..room]) {
                Ok(0) => return Err(io::Error::other("the server closed a connection")),
                Ok(count) => count,
                Err(Errno::AGAIN) => continue,
                Err(error) => return Err(error.into()),
            };
            let mut pongs = Vec::new();
            let mut lines = web::lines(&mut member.decoder, &mut self.buffer, count, |payload| {
                pongs.extend_from_slice(&web::pong(payload));
                arrived(number, Arrival::Ping);
            })?;
            if !pongs.is_empty() {
                rustix::io::write(&member.socket, &pongs)?;
            }
            while let Some(end) = memchr::memchr(b'\n', lines) {
                arrived(number, Arrival::Message);
                lines = &lines[end + 1..];
            }
        }
        Ok(())
    }
}
