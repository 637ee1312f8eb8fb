//! A simulated kernel for the shell, whose order of events follows from a seed. Its sockets and pipes are real, but
//! never waited for; which operation runs next, how many bytes it moves, and what fails, is random. It checks that no
//! descriptor is closed under an operation, and remembers which connections it has broken.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::Random;
use crate::io::buffers::{Buffers, RECEIVE, RECEIVE_BUFFERS};
use crate::io::ring::Completion;
use crate::io::{Io, Submission, result_of};

/// State shared with the simulation.
#[derive(Default)]
pub(crate) struct Wires {
    /// Connections to be accepted, by listening socket.
    pub(crate) connecting: BTreeMap<RawFd, VecDeque<OwnedFd>>,
    /// Only time passes: it advances to the next deadline at once.
    pub(crate) is_quiet: bool,
    /// No more failures.
    pub(crate) is_kind: bool,
    /// No more delays: the daemon waits for the last completions for only a few turns.
    pub(crate) is_prompt: bool,
    /// Descriptors that never fail: those of signals, and those whose end is the daemon's end.
    pub(crate) steady: Vec<RawFd>,
    /// The time that has passed while the machine was awake.
    pub(crate) awake: Duration,
    /// Sockets that an injected fault has ended, by inode.
    pub(crate) broken: BTreeSet<u64>,
    /// A hash of all results so far: two runs of a seed have equal ones at each turn.
    pub(crate) trace: u64,
    /// The maximum number of open connections of a listening socket, where descriptors are limited.
    pub(crate) most_open: BTreeMap<RawFd, usize>,
    /// Those connections, by listening socket: their descriptors and inodes.
    open: BTreeMap<RawFd, Vec<(RawFd, u64)>>,
}

impl Wires {
    /// Adds an event that follows from the seed to the trace.
    fn note(&mut self, words: [u64; 2]) {
        // FNV-1a, by words.
        words.into_iter().for_each(|word| self.trace = (self.trace ^ word).wrapping_mul(0x0100_0000_01b3));
    }

    /// Whether there is a descriptor for another connection.
    fn has_room(&mut self, socket: RawFd) -> bool {
        let Some(most) = self.most_open.get(&socket) else { return true };
        let open = self.open.entry(socket).or_default();
        if open.len() >= *most {
            // The number may have been reused by now.
            open.retain(|(descriptor, inode)| inode_of(*descriptor) == Some(*inode));
        }
        open.len() < *most
    }
}

/// Identifies a socket, even if its number is reused.
pub(crate) fn inode(socket: impl AsFd) -> u64 {
    fstat(socket).expect("it is open").st_ino
}

fn inode_of(descriptor: RawFd) -> Option<u64> {
    // SAFETY: it is borrowed only for this call; a closed one is an error.
    fstat(unsafe { BorrowedFd::borrow_raw(descriptor) }).ok().map(|stat| stat.st_ino)
}

pub(crate) struct Kernel {
    random: Random,
    buffers: Buffers,
    /// Free provided buffers.
    free: Vec<u16>,
    /// Operations in flight, and whether they were cancelled.
    pending: Vec<(u64, Submission, bool)>,
    now: Duration,
    /// How long the machine was suspended.
    asleep: Duration,
    /// Whether the process was stopped once: with more stops, others would time out.
    was_stopped: bool,
    wires: Rc<RefCell<Wires>>,
    /// One in this many operations fails, or moves only part of its bytes.
    fails: usize,
    cuts: usize,
    /// The last log write was partial.
    has_cut_log: bool,
}

/// The machine is suspended, or the process stopped, in one of this many turns.
const FREEZES: usize = 300;

/// Nothing blocks, and no signal is raised.
const QUIET: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

impl Kernel {
    /// A kernel with this seed's behaviour.
    pub(crate) fn new(seed: u64, wires: Rc<RefCell<Wires>>) -> Self {
        let mut random = Random::new(seed);
        let (fails, cuts) = (*random.pick(&[10, 50, 400]), *random.pick(&[1, 3, 20]));
        Self {
            random,
            buffers: Buffers::new(None, 0).expect("there is memory"),
            free: (0..RECEIVE_BUFFERS).collect(),
            pending: Vec::new(),
            now: Duration::ZERO,
            asleep: Duration::ZERO,
            was_stopped: false,
            wires,
            fails,
            cuts,
            has_cut_log: false,
        }
    }

    /// Operations in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// How many of `bytes` are moved.
    fn cut(&mut self, bytes: u32) -> usize {
        let bytes = bytes as usize;
        if bytes > 1 && self.random.one_in(self.cuts) { self.random.range(1..bytes.min(5000)) } else { bytes }
    }

    /// How many bytes of a log write are accepted: all, or half, with the rest the next time. The length of its lines
    /// depends on the process (they contain its id), so nothing else may depend on that length.
    fn log(&mut self, bytes: u32) -> i32 {
        self.has_cut_log = !self.has_cut_log && self.random.one_in(self.cuts);
        (if self.has_cut_log { bytes.div_ceil(2) } else { bytes }) as i32
    }

    fn fails(&mut self) -> bool {
        !self.wires.borrow().is_kind && self.random.one_in(self.fails)
    }

    fn accept(&mut self, socket: RawFd) -> Result<OwnedFd, Errno> {
        let mut wires = self.wires.borrow_mut();
        let waiting = wires.connecting.get_mut(&socket);
        let next = waiting.and_then(VecDeque::pop_front).ok_or(Errno::AGAIN)?;
        let has_room = wires.has_room(socket);
        drop(wires);
        let error = match has_room {
            false => Some(Errno::MFILE),
            true if self.fails() => Some(*self.random.pick(&[Errno::MFILE, Errno::NOBUFS, Errno::CONNABORTED])),
            true => None,
        };
        let mut wires = self.wires.borrow_mut();
        match error {
            Some(Errno::CONNABORTED) => {
                wires.broken.insert(inode(&next));
                Err(Errno::CONNABORTED)
            }
            Some(error) => {
                wires.connecting.entry(socket).or_default().push_front(next);
                Err(error)
            }
            None => {
                if wires.most_open.contains_key(&socket) {
                    let inode = inode(&next);
                    wires.open.entry(socket).or_default().push((next.as_raw_fd(), inode));
                }
                Ok(next)
            }
        }
    }

    /// Breaks the connection of this descriptor, and records that this kernel did it.
    fn breaks(&mut self, descriptor: RawFd) {
        self.wires.borrow_mut().broken.extend(inode_of(descriptor));
    }

    /// Receives into a provided buffer: the result, and the buffer unless it is empty.
    fn receive(&mut self, socket: RawFd) -> (i32, Option<u16>) {
        let Some(free) = self.free.pop() else { return (-libc::ENOBUFS, None) };
        let bytes = self.cut(RECEIVE as u32);
        // SAFETY: the buffer is free, and large enough.
        let result = result_of(unsafe { libc::recv(socket, self.buffers.provided(free).cast(), bytes, QUIET) });
        if result > 0 && !self.fails() {
            return (result, Some(free));
        }
        self.free.push(free);
        if result <= 0 {
            return (result, None);
        }
        // A reset discards what was received. SAFETY: the call takes no memory.
        unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
        self.breaks(socket);
        (-libc::ECONNRESET, None)
    }

    /// Tries an operation: its completion, or none if it has to wait.
    fn run(&mut self, token: u64, submission: Submission) -> Option<Completion> {
        use Submission as S;
        let mut buffer = None;
        // SAFETY: the submitter keeps its memory and descriptors until the completion is taken.
        let result = unsafe {
            match submission {
                S::AwaitConnection { socket } => {
                    let wires = self.wires.borrow();
                    let is_waiting = wires.connecting.get(&socket).is_some_and(|waiting| !waiting.is_empty());
                    if is_waiting { i32::from(libc::POLLIN) } else { -libc::EAGAIN }
                }
                S::Receive { socket, .. } => {
                    let result;
                    (result, buffer) = self.receive(socket);
                    result
                }
                S::ReceiveInto { socket, into, bytes } => {
                    let bytes = self.cut(bytes);
                    result_of(libc::recv(socket, into.cast(), bytes, QUIET))
                }
                S::Read { from, into, bytes, .. } => {
                    let bytes = self.cut(bytes);
                    result_of(libc::read(from, into.cast(), bytes))
                }
                S::Send { socket, from, bytes, .. } => {
                    let bytes = self.cut(bytes);
                    result_of(libc::send(socket, from.cast(), bytes, QUIET))
                }
                // The log is discarded.
                S::Write { to: 2, bytes, .. } | S::WriteAside { to: 2, bytes, .. } => self.log(bytes),
                S::AwaitRoom { descriptor: 2, .. } => i32::from(libc::POLLOUT),
                S::Write { to, from, bytes, .. } | S::WriteAside { to, from, bytes } => {
                    let bytes = self.cut(bytes);
                    result_of(libc::write(to, from.cast(), bytes))
                }
                S::SendMany { socket, message, .. } => {
                    if self.random.one_in(self.cuts) {
                        let first = *(*message).msg_iov;
                        let bytes = self.cut(first.iov_len as u32);
                        result_of(libc::send(socket, first.iov_base, bytes, QUIET))
                    } else {
                        result_of(libc::sendmsg(socket, message, QUIET))
                    }
                }
                S::WriteMany { to, vectors, count } => {
                    let count = self.random.range(1..count as usize + 1);
                    result_of(libc::writev(to, vectors, count as i32))
                }
                S::Watch { half_closed: true, .. } | S::AwaitRoom { half_closed: true, .. } if self.fails() => 0,
                S::Watch { descriptor, half_closed } | S::AwaitRoom { descriptor, half_closed } => {
                    let room = if matches!(submission, S::AwaitRoom { .. }) { libc::POLLOUT } else { 0 };
                    let events = room | if half_closed { 0 } else { libc::POLLRDHUP };
                    let mut poll = libc::pollfd { fd: descriptor, events, revents: 0 };
                    libc::poll(&mut poll, 1, 0);
                    if poll.revents == 0 { -libc::EAGAIN } else { i32::from(poll.revents) }
                }
            }
        };
        if result == -libc::EAGAIN && !submission.is_now_or_never() {
            return None;
        }
        Some(Completion::of(token, result, buffer, self.random.one_in(2)))
    }

    /// The error with which an operation fails before it has any effect.
    fn failure(&mut self, submission: Submission) -> Option<i32> {
        use Submission as S;
        let is_steady = self.wires.borrow().steady.contains(&submission.descriptor());
        let breaks = !is_steady && self.random.one_in(20);
        let errors: &[i32] = match submission {
            S::Read { .. } | S::Write { .. } | S::WriteMany { .. } if breaks => &[libc::EIO],
            S::Send { .. } | S::SendMany { .. } if breaks => &[libc::ENOMEM, libc::EPIPE],
            S::Receive { .. } => &[libc::ENOBUFS, libc::EINTR, libc::EAGAIN],
            S::ReceiveInto { .. } | S::Read { .. } | S::Send { .. } | S::SendMany { .. } => {
                &[libc::EINTR, libc::EAGAIN]
            }
            S::Write { .. } | S::WriteMany { .. } => &[libc::EINTR, libc::EAGAIN],
            S::WriteAside { .. } => &[libc::EINTR, libc::EAGAIN, libc::ECANCELED],
            S::AwaitConnection { .. } | S::Watch { .. } | S::AwaitRoom { .. } => return None,
        };
        let error = *self.random.pick(errors);
        if !self.fails() {
            return None;
        }
        if matches!(error, libc::EIO | libc::ENOMEM | libc::EPIPE) {
            self.breaks(submission.descriptor());
        }
        Some(-error)
    }
}

impl Io for Kernel {
    fn name(&self) -> &'static str {
        "a seed"
    }

    unsafe fn submit(&mut self, submission: Submission, token: u64) {
        assert!(self.pending.iter().all(|(pending, ..)| *pending != token), "{submission:?} twice as {token:#x}");
        self.pending.push((token, submission, false));
    }

    fn opened(&mut self, _: RawFd) {}

    fn accept_now(&mut self, socket: BorrowedFd<'_>) -> Result<(OwnedFd, Option<SocketAddr>), Errno> {
        self.accept(socket.as_raw_fd()).map(|accepted| (accepted, None))
    }

    fn receive_now(&mut self, socket: BorrowedFd<'_>, into: &mut [u8]) -> usize {
        if self.random.one_in(2) {
            return 0;
        }
        let most = self.cut(into.len() as u32);
        rustix::net::recv(socket, &mut into[..most], RecvFlags::DONTWAIT).map_or(0, |(received, _)| received)
    }

    fn cancel(&mut self, token: u64, descriptor: RawFd) {
        for (_, submission, cancelled) in self.pending.iter_mut().filter(|(pending, ..)| *pending == token) {
            assert_eq!(submission.descriptor(), descriptor, "{submission:?} ({token:#x}) is looked for elsewhere");
            *cancelled = true;
        }
    }

    fn turn(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) -> io::Result<()> {
        let before = completions.len();
        let mut pending = std::mem::take(&mut self.pending);
        self.random.shuffle(&mut pending);
        // Required delays only pass while nothing else can happen.
        let is_idle = self.wires.borrow().is_quiet && self.random.one_in(8);
        let is_prompt = self.wires.borrow().is_prompt || is_idle;
        let most = if is_prompt { usize::MAX } else { self.random.range(1..8) };
        for (token, submission, cancelled) in pending {
            // SAFETY: it asks for flags only.
            let is_open = unsafe { libc::fcntl(submission.descriptor(), libc::F_GETFD) } >= 0;
            assert!(is_open, "{submission:?} ({token:#x}) lost its descriptor");
            let is_late = completions.len() - before >= most || self.random.one_in(4) && !is_prompt;
            let completion = if is_late {
                None
            } else if cancelled && self.random.one_in(2) {
                Some(Completion::of(token, -libc::ECANCELED, None, false))
            } else if let Some(error) = self.failure(submission) {
                Some(Completion::of(token, error, None, true))
            } else {
                let ran = self.run(token, submission);
                // It may have been in flight; if it has no result, it is cancelled.
                ran.or_else(|| cancelled.then(|| Completion::of(token, -libc::ECANCELED, None, false)))
            };
            match completion {
                Some(completion) => {
                    let varies = submission.descriptor() == 2;
                    let result = if varies { completion.result.min(1) } else { completion.result };
                    self.wires.borrow_mut().note([completion.token, result as u64]);
                    completions.push(completion);
                }
                None => self.pending.push((token, submission, cancelled)),
            }
        }
        let step = Duration::from_micros(self.random.range(1..500) as u64);
        let is_quiet = is_idle && completions.len() == before;
        let passed = match timeout {
            Some(timeout) if is_quiet => timeout,
            Some(timeout) => timeout.min(step),
            // Nothing happens any more by itself, whatever time it is.
            None if is_quiet => Duration::from_secs(1),
            None => step,
        };
        self.now += passed;
        self.wires.borrow_mut().awake += passed;
        if timeout.is_some() && self.random.one_in(FREEZES) {
            if self.was_stopped || !self.random.one_in(4) {
                self.asleep += Duration::from_secs(self.random.range(2..4000) as u64);
            } else {
                // Shorter than the daemon's timeout for a header: the clients do not run either.
                let stopped = Duration::from_millis(self.random.range(2_000..2_500) as u64);
                self.now += stopped;
                self.was_stopped = true;
                self.wires.borrow_mut().awake += stopped;
            }
        }
        Ok(())
    }

    fn prepare_aside(&mut self, _: RawFd) {}

    fn write_here(&mut self, _: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
        Ok(self.log(bytes.len() as u32) as usize)
    }

    fn has_news(&mut self) -> bool {
        self.random.one_in(2)
    }

    fn elapsed(&self) -> Duration {
        self.now
    }

    fn asleep(&self) -> Duration {
        self.asleep
    }

    fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    fn memory(&self) -> &Buffers {
        &self.buffers
    }

    fn return_received(&mut self, buffer: u16) {
        assert!(!self.free.contains(&buffer), "the buffer {buffer} is returned twice");
        self.free.push(buffer);
    }

    fn describe(&self) -> (String, Option<&io::Error>) {
        ("a seed".to_owned(), None)
    }
}
