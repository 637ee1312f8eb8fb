//! The floor: a relay that moves the same bytes between the same sockets and pipes with the daemon's own ring and
//! buffers, without parsing them.
//!
//! It cannot route, so it counts. Every message has a fixed length; clients are assigned to workers in turn. If several
//! clients share a worker, its answers go to them in the order of their requests, or, for token streams, to each in
//! turn. It validates nothing, knows no sessions and no ids, applies no backpressure and notices no deaths: the
//! daemon's cost above the relay's is the cost of all these.
//!
//! Small messages are copied from the receive buffer to the end of the worker's queue, so that one write takes messages
//! of many clients. If each client has a worker of its own, whole blocks are passed from the read to the write without
//! a copy, and without waiting for complete lines.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::process::{Child, Command, Stdio};

use io_uring::{opcode, squeue, types};
use rustix::net::SocketFlags;

use stdio_bus::error::StartError;
use stdio_bus::io::buffers::{Block, Buffers, GROUP};
use stdio_bus::io::ring::{Completion, Ring};

/// How answers are assigned to clients.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// In the order of the requests.
    Answers,
    /// One line each, in turn.
    Turns,
    /// All to the worker's only client.
    Pass,
}

/// Why memory suffices.
const ENOUGH: &str = "the relay has all the memory it asks for";

const ACCEPT: u64 = 1;
const READ: u64 = 2;
const WRITE: u64 = 3;

/// A client or a worker.
#[derive(Default)]
struct End {
    input: RawFd,
    output: RawFd,
    is_client: bool,
    /// A client's worker, assigned at its first bytes; some clients only probe whether the relay listens.
    worker: Option<usize>,
    /// Its position in the current message.
    offset: usize,
    /// Bytes that a client sent while another one was in the middle of a message for the same worker.
    kept: Vec<u8>,
    /// The buffer of a read, where the kernel does not choose one.
    reading: Option<Block>,
    /// Queued output: appended at the end, written from the front, one block at a time.
    queue: VecDeque<(Block, usize, usize)>,
    writing: bool,
    dirty: bool,
    /// Of a worker: the client in the middle of a message.
    holder: Option<usize>,
    waiting: VecDeque<usize>,
    /// Of a worker: the clients of the next answers, with their lengths; or all its clients.
    owed: VecDeque<(usize, usize)>,
}

struct Relay {
    ring: Ring,
    buffers: Buffers,
    way: Way,
    bytes: usize,
    workers: usize,
    /// Clients that have sent something.
    clients: usize,
    /// Workers first, then clients.
    ends: Vec<End>,
    listener: OwnedFd,
    dirty: Vec<usize>,
    spare: Vec<Block>,
    children: Vec<Child>,
}

/// Runs until it is killed.
pub fn run(mut arguments: impl Iterator<Item = String>) -> io::Result<()> {
    let mut word = || arguments.next().ok_or(io::ErrorKind::InvalidInput);
    let way = match word()?.as_str() {
        "answers" => Way::Answers,
        "turns" => Way::Turns,
        _ => Way::Pass,
    };
    let bytes = word()?.parse().map_err(io::Error::other)?;
    let workers: usize = word()?.parse().map_err(io::Error::other)?;
    let (transport, address, program) = (word()?, word()?, word()?);
    let listener: OwnedFd = if transport == "--tcp" {
        let listener = std::net::TcpListener::bind(address)?.into();
        // Accepted sockets inherit it.
        rustix::net::sockopt::set_tcp_nodelay(&listener, true)?;
        listener
    } else {
        std::os::unix::net::UnixListener::bind(address)?.into()
    };
    rustix::net::listen(&listener, 1024)?;
    let other = |error: StartError| io::Error::other(error.to_string());
    let mut ring = Ring::new().map_err(other)?;
    let buffers = Buffers::new(Some(&ring), workers)?;
    ring.enable().map_err(other)?;
    let mut relay = Relay {
        ring,
        buffers,
        way,
        bytes,
        workers,
        clients: 0,
        ends: Vec::new(),
        listener,
        dirty: Vec::new(),
        spare: Vec::new(),
        children: Vec::new(),
    };
    let rest: Vec<String> = arguments.collect();
    for number in 0..workers {
        relay.start_worker(number, &program, &rest)?;
    }
    relay.accept();
    relay.serve()
}

impl Relay {
    fn start_worker(&mut self, number: usize, program: &str, arguments: &[String]) -> io::Result<()> {
        let (stdin_theirs, stdin) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (stdout, stdout_theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        for ours in [&stdin, &stdout] {
            rustix::pipe::fcntl_setpipe_size(ours, 256 * 1024)?;
            rustix::io::ioctl_fionbio(ours, true)?;
        }
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::from(stdin_theirs))
            .stdout(Stdio::from(stdout_theirs))
            .spawn()?;
        self.children.push(child);
        self.ends.push(End { input: stdout.into_raw_fd(), output: stdin.into_raw_fd(), ..End::default() });
        self.read(number);
        Ok(())
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut completions = Vec::with_capacity(256);
        loop {
            completions.clear();
            self.ring.turn(None, &mut completions)?;
            for completion in &completions {
                self.complete(completion);
            }
            while let Some(end) = self.dirty.pop() {
                self.ends[end].dirty = false;
                self.write(end);
            }
        }
    }

    fn complete(&mut self, completion: &Completion) {
        let end = completion.token as u32 as usize;
        let count = completion.result.max(0) as usize;
        match completion.token >> 32 {
            ACCEPT => {
                let socket = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC).expect("a client waits");
                let socket = socket.into_raw_fd();
                self.ends.push(End { input: socket, output: socket, is_client: true, ..End::default() });
                self.read(self.ends.len() - 1);
                self.accept();
            }
            // All buffers were in use; those of this turn have been returned.
            READ if completion.result == -libc::ENOBUFS => self.read(end),
            READ if count == 0 => {}
            READ => {
                if let Some(buffer) = completion.buffer() {
                    // SAFETY: the window is used before the buffer is returned.
                    let bytes = unsafe { self.buffers.received(buffer, count) }.data();
                    self.forward(end, bytes);
                    self.buffers.return_received(buffer);
                } else if let Some(block) = self.ends[end].reading.take() {
                    if self.way == Way::Pass {
                        let to = if self.ends[end].is_client { self.worker_of(end) } else { self.ends[end].owed[0].0 };
                        self.ends[to].queue.push_back((block, 0, count));
                        self.mark_dirty(to);
                    } else {
                        self.distribute(end, block.bytes(0, count));
                        self.ends[end].reading = Some(block);
                    }
                }
                self.read(end);
            }
            WRITE => {
                let this = &mut self.ends[end];
                this.writing = false;
                if let Some((_, start, filled)) = this.queue.front_mut() {
                    *start += count;
                    if start == filled {
                        let is_client = this.is_client;
                        if let Some((block, ..)) = this.queue.pop_front() {
                            if is_client || self.way == Way::Pass {
                                self.spare.push(block);
                            } else {
                                self.buffers.give_back(block);
                            }
                        }
                    }
                }
                self.mark_dirty(end);
            }
            _ => {}
        }
    }

    fn worker_of(&mut self, client: usize) -> usize {
        if let Some(worker) = self.ends[client].worker {
            return worker;
        }
        let worker = self.clients % self.workers;
        self.clients += 1;
        self.ends[client].worker = Some(worker);
        if self.way != Way::Answers {
            self.ends[worker].owed.push_back((client, self.bytes));
        }
        worker
    }

    /// Forwards a client's bytes to its worker, unless another client is in the middle of a message.
    fn forward(&mut self, client: usize, bytes: &[u8]) {
        let worker = self.worker_of(client);
        if self.ends[worker].holder.is_some_and(|holder| holder != client) {
            if self.ends[client].kept.is_empty() {
                self.ends[worker].waiting.push_back(client);
            }
            return self.ends[client].kept.extend_from_slice(bytes);
        }
        if self.way == Way::Answers {
            match self.ends[worker].owed.back_mut() {
                Some((last, owed)) if *last == client => *owed += bytes.len(),
                _ => self.ends[worker].owed.push_back((client, bytes.len())),
            }
        }
        self.push(worker, bytes);
        // A prompt has the length of a token line.
        let offset = (self.ends[client].offset + bytes.len()) % self.bytes;
        self.ends[client].offset = offset;
        self.ends[worker].holder = (offset != 0).then_some(client);
        if offset == 0
            && let Some(next) = self.ends[worker].waiting.pop_front()
        {
            let kept = std::mem::take(&mut self.ends[next].kept);
            self.forward(next, &kept);
        }
    }

    /// Forwards a worker's bytes to the clients whose turn it is.
    fn distribute(&mut self, worker: usize, mut bytes: &[u8]) {
        while let (false, Some((client, owed))) = (bytes.is_empty(), self.ends[worker].owed.front_mut()) {
            let (now, later) = bytes.split_at(bytes.len().min(*owed));
            *owed -= now.len();
            let (client, over) = (*client, *owed == 0);
            if over {
                self.ends[worker].owed.pop_front();
                if self.way == Way::Turns {
                    self.ends[worker].owed.push_back((client, self.bytes));
                }
            }
            self.push(client, now);
            bytes = later;
        }
    }

    /// Appends bytes to an output's queue.
    fn push(&mut self, to: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.ends[to].queue.back().map_or(0, |(block, _, filled)| block.capacity() - filled);
            if room == 0 {
                let block = self.block(to);
                self.ends[to].queue.push_back((block, 0, 0));
                continue;
            }
            let Some((block, _, filled)) = self.ends[to].queue.back_mut() else { return };
            let (now, later) = bytes.split_at(bytes.len().min(room));
            block.write(*filled, now);
            *filled += now.len();
            bytes = later;
        }
        self.mark_dirty(to);
    }

    /// Registered memory is for pipes.
    fn block(&mut self, to: usize) -> Block {
        if self.ends[to].is_client {
            return self.spare.pop().unwrap_or_else(|| self.buffers.take_medium().expect(ENOUGH));
        }
        self.buffers.take_registered_chunk().expect(ENOUGH)
    }

    fn mark_dirty(&mut self, end: usize) {
        if !std::mem::replace(&mut self.ends[end].dirty, true) {
            self.dirty.push(end);
        }
    }

    fn accept(&mut self) {
        let socket = types::Fd(self.listener.as_raw_fd());
        self.submit(opcode::PollAdd::new(socket, libc::POLLIN as u32).build(), ACCEPT << 32);
    }

    fn read(&mut self, end: usize) {
        let token = READ << 32 | end as u64;
        let input = types::Fd(self.ends[end].input);
        if self.ends[end].is_client && self.way != Way::Pass {
            const POLL_FIRST: u16 = 1;
            let entry = opcode::Recv::new(input, std::ptr::null_mut(), 0).ioprio(POLL_FIRST).buf_group(GROUP);
            return self.submit(entry.build().flags(squeue::Flags::BUFFER_SELECT), token);
        }
        let block = match self.ends[end].reading.take() {
            Some(block) => block,
            None if self.way == Way::Pass => {
                self.spare.pop().unwrap_or_else(|| self.buffers.take_registered_chunk().expect(ENOUGH))
            }
            None => self.buffers.take_read().expect(ENOUGH),
        };
        let (address, room) = (block.at(0), block.capacity() as u32);
        let entry = match (block.registered(), self.ends[end].is_client) {
            (_, true) => opcode::Recv::new(input, address, room).build(),
            (Some(index), false) => opcode::ReadFixed::new(input, address, room, index).offset(u64::MAX).build(),
            (None, false) => opcode::Read::new(input, address, room).offset(u64::MAX).build(),
        };
        self.ends[end].reading = Some(block);
        self.submit(entry, token);
    }

    fn write(&mut self, end: usize) {
        let this = &mut self.ends[end];
        let Some((block, start, filled)) = this.queue.front().filter(|_| !this.writing) else { return };
        let output = types::Fd(this.output);
        let (address, bytes) = (block.at(*start).cast_const(), (filled - start) as u32);
        let entry = match (this.is_client, block.registered()) {
            (true, _) => opcode::Send::new(output, address, bytes).flags(libc::MSG_NOSIGNAL).build(),
            (false, Some(index)) => opcode::WriteFixed::new(output, address, bytes, index).offset(u64::MAX).build(),
            (false, None) => opcode::Write::new(output, address, bytes).offset(u64::MAX).build(),
        };
        this.writing = true;
        // SAFETY: as in `submit`.
        unsafe { self.ring.submit(entry.user_data(WRITE << 32 | end as u64)) };
    }

    fn submit(&mut self, entry: squeue::Entry, token: u64) {
        // SAFETY: blocks stay in `reading` or at the front of `queue` until their completion, and descriptors are
        // never closed.
        unsafe { self.ring.submit(entry.user_data(token)) };
    }
}
