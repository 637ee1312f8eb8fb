//! The kernel by epoll(7), where it has no io_uring or a sandbox blocks it. What is ready is read and written at once,
//! by this thread, and told as the ring would tell it.
//!
//! Writes are tried first, since there mostly is room; reads are waited for first, since there mostly is nothing yet. What
//! was waited for once stays registered, so that the next wait costs no call; if it wakes us while nobody waits for it, it
//! goes. Sockets that listen are registered for one event at a time (EPOLLONESHOT): others may share them, and then they
//! stay registered when we close ours.
//!
//! As the ring, a busy daemon waits for several events where that pays ([`Batching`]): it sleeps a little before it looks.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::aside::{Aside, Task};
use super::batching::Batching;
use super::buffers::{Buffers, RECEIVE, RECEIVE_BUFFERS};
use super::instance::{GONE, Instance, WRITABLE};
use super::ring::Completion;
use super::{Io, Submission, result_of};
use crate::error::StartError;

/// When it is tried again to wait for what could not be waited for.
const ARM_AGAIN: Duration = Duration::from_millis(100);
/// The first of the sleeps in which events gather.
const FIRST_SLEEP: Duration = Duration::from_micros(48);
/// How long to sleep where nothing but closed descriptors has woken us, which goes on until a process has started.
const STALE_SLEEP: Duration = Duration::from_millis(1);
/// A pipe that has room has room for so much (pipe(7), PIPE_BUF): more might have to wait, if it may.
const PIECE: usize = 4096;
/// RWF_NOWAIT (preadv2(2)).
const NOWAIT: libc::c_int = libc::RWF_NOWAIT;
const READABLE: u32 = libc::EPOLLIN as u32;
/// What the threads wake us by.
const ASIDE: u64 = u64::MAX;

/// An operation that waits.
type Waiting = Option<(u64, Submission)>;

/// What waits for one descriptor.
#[derive(Clone, Copy, Default)]
struct Waiters {
    input: Waiting,
    output: Waiting,
    watch: Waiting,
    /// The events that the kernel knows it by, if it does.
    registered: Option<u32>,
    /// How often its number has come to belong to another file. What is closed here stays registered while a process that
    /// is being started holds it, too (epoll(7), question 6), and its events are not those of who has the number now.
    generation: u32,
}

/// What an event is known by.
fn data(descriptor: RawFd, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(descriptor as u32)
}

impl Waiters {
    fn all(&mut self) -> [&mut Waiting; 3] {
        [&mut self.input, &mut self.output, &mut self.watch]
    }

    /// The events that they wait for; none when nobody waits.
    fn events(&self) -> Option<u32> {
        let wanted = |waiting: &Waiting, event| waiting.map(|_| event);
        let watch = self.watch.map(|(_, submission)| watched(submission));
        let events = [wanted(&self.input, READABLE), wanted(&self.output, WRITABLE), watch];
        events.into_iter().flatten().reduce(|one, other| one | other)
    }
}

/// What a [`Submission::Watch`] waits for, beside [`GONE`]: that the other side sends no more, unless that is known.
fn watched(submission: Submission) -> u32 {
    if matches!(submission, Submission::Watch { half_closed: false, .. }) { libc::EPOLLRDHUP as u32 } else { 0 }
}

/// See the top of the file.
pub struct Epoll {
    poll: Instance,
    buffers: Buffers,
    /// Provided buffers that hold nothing.
    free: Vec<u16>,
    /// Operations that were not looked at yet.
    new: Vec<(u64, Submission)>,
    /// By descriptor.
    waiting: Vec<Waiters>,
    /// What ended without an event.
    done: Vec<Completion>,
    aside: Aside,
    /// Descriptors that could not be waited for, for want of memory or of what this user may watch.
    unarmed: Vec<RawFd>,
    batching: Batching,
    events: Vec<libc::epoll_event>,
    origin: Instant,
}

impl Epoll {
    /// With memory for so many workers.
    ///
    /// # Errors
    /// There are no descriptors or no memory left.
    pub fn new(workers: usize) -> Result<Self, StartError> {
        let poll = Instance::new().map_err(StartError::io("make an epoll instance"))?;
        let aside = Aside::new().map_err(StartError::io("make an eventfd"))?;
        poll.control(libc::EPOLL_CTL_ADD, aside.wakes().as_raw_fd(), READABLE, ASIDE)
            .map_err(StartError::io("wait for an eventfd"))?;
        // Short sleeps are meant: see [`Batching`].
        // SAFETY: the call takes no memory. What it may fail with matters little.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
        Ok(Self {
            poll,
            buffers: Buffers::new(None, workers).map_err(StartError::io("allocate buffers"))?,
            free: (0..RECEIVE_BUFFERS).collect(),
            new: Vec::new(),
            waiting: Vec::new(),
            done: Vec::new(),
            aside,
            unarmed: Vec::new(),
            batching: Batching::default(),
            events: Vec::new(),
            origin: Instant::now(),
        })
    }

    /// Looks at an operation for the first time.
    fn begin(&mut self, token: u64, submission: Submission) {
        use Submission as S;
        if let S::WriteAside { to, from, bytes } = submission {
            return self.hand_over(token, Task::Write { to, from, bytes: bytes as usize });
        }
        let is_tried = match submission {
            S::Send { .. } | S::SendMany { .. } | S::Write { .. } | S::WriteMany { .. } => true,
            // Where buffers are short, who has more to read takes turns with those who have waited.
            S::Receive { was_empty, .. } => !was_empty && self.free.len() > usize::from(RECEIVE_BUFFERS) / 2,
            S::Read { now_or_never, .. } => now_or_never,
            _ => false,
        };
        match is_tried.then(|| self.run(token, submission)).flatten() {
            Some(completion) => self.done.push(completion),
            None => self.wait(token, submission),
        }
    }

    /// Has a thread do what the loop must not wait for.
    fn hand_over(&mut self, token: u64, task: Task) {
        // SAFETY: whoever submitted the operation has promised that its memory stays until it completes.
        if unsafe { self.aside.begin(token, task) }.is_err() {
            self.done.push(Completion::of(token, -libc::ECANCELED, None, false));
        }
    }

    /// Lets an operation wait for its descriptor.
    fn wait(&mut self, token: u64, submission: Submission) {
        use Submission as S;
        let descriptor = submission.descriptor();
        let at = descriptor as usize;
        if self.waiting.len() <= at {
            self.waiting.resize(at + 1, Waiters::default());
        }
        let waiters = &mut self.waiting[at];
        let place = match submission {
            S::Send { .. } | S::SendMany { .. } | S::Write { .. } | S::WriteMany { .. } | S::AwaitRoom { .. } => {
                &mut waiters.output
            }
            S::Watch { .. } => &mut waiters.watch,
            _ => &mut waiters.input,
        };
        debug_assert!(place.is_none(), "two operations wait for the same: {place:?} and {submission:?}");
        *place = Some((token, submission));
        if let Err(error) = self.arm(descriptor) {
            self.cannot_wait(descriptor, &error);
        }
    }

    /// Has the kernel tell what is waited for at a descriptor.
    fn arm(&mut self, descriptor: RawFd) -> io::Result<()> {
        use Submission as S;
        let waiters = &mut self.waiting[descriptor as usize];
        let Some(events) = waiters.events() else { return Ok(()) };
        let listens = matches!(waiters.input, Some((_, S::AwaitConnection { .. })));
        let is_registered = waiters.registered.is_some_and(|registered| registered & events == events);
        if is_registered && !listens {
            debug_assert!(self.is_registered(descriptor), "{descriptor} was opened, and nobody has told");
            return Ok(());
        }
        let once = if listens { libc::EPOLLONESHOT as u32 } else { 0 };
        waiters.registered = if listens { None } else { Some(events) };
        match self.control(libc::EPOLL_CTL_MOD, descriptor, events | once) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                self.control(libc::EPOLL_CTL_ADD, descriptor, events | once)
            }
            other => other,
        }
    }

    fn control(&self, how: libc::c_int, descriptor: RawFd, events: u32) -> io::Result<()> {
        let generation = self.waiting[descriptor as usize].generation;
        self.poll.control(how, descriptor, events, data(descriptor, generation))
    }

    /// Takes what waits for a descriptor. Of what is registered by its number nothing is heard any more.
    fn forget(&mut self, descriptor: RawFd) -> Waiters {
        let waiters = &mut self.waiting[descriptor as usize];
        let generation = waiters.generation.wrapping_add(1);
        std::mem::replace(waiters, Waiters { generation, ..Waiters::default() })
    }

    /// What waits for the descriptor of an event; none if that is closed.
    fn waiters(&self, event: &libc::epoll_event) -> Option<&Waiters> {
        let waiters = self.waiting.get(event.u64 as u32 as usize)?;
        (u64::from(waiters.generation) == event.u64 >> 32).then_some(waiters)
    }

    /// Whether the kernel knows the descriptor by what it is taken to.
    fn is_registered(&self, descriptor: RawFd) -> bool {
        let registered = self.waiting[descriptor as usize].registered;
        registered.is_some_and(|events| self.control(libc::EPOLL_CTL_MOD, descriptor, events).is_ok())
    }

    /// A file never makes anybody wait, in its own opinion (EPERM): it is tried as if it was ready, and read aside, since it
    /// may lie on a disk that hangs. What the kernel has no room for now is asked for again later.
    fn cannot_wait(&mut self, descriptor: RawFd, error: &io::Error) {
        let code = error.raw_os_error().unwrap_or(libc::EIO);
        if matches!(code, libc::ENOSPC | libc::ENOMEM) {
            self.waiting[descriptor as usize].registered = None;
            return self.unarmed.push(descriptor);
        }
        let waiters = self.forget(descriptor);
        for (token, submission) in [waiters.input, waiters.output, waiters.watch].into_iter().flatten() {
            let completion = match submission {
                Submission::AwaitRoom { .. } if code == libc::EPERM => {
                    Completion::of(token, WRITABLE as i32, None, false)
                }
                _ if code != libc::EPERM => Completion::of(token, -code, None, false),
                Submission::Read { from, into, bytes, .. } => {
                    let bytes = bytes as usize;
                    // SAFETY: whoever submitted it has promised that the memory stays until it completes.
                    if unsafe { self.aside.begin(token, Task::Read { from, into, bytes }) }.is_ok() {
                        continue;
                    }
                    // SAFETY: the same. Where there is no thread, waiting for a disk is better than reading nothing.
                    Completion::of(token, result_of(unsafe { libc::read(from, into.cast(), bytes) }), None, false)
                }
                _ => self.run(token, submission).unwrap_or(Completion::of(token, -libc::EAGAIN, None, false)),
            };
            self.done.push(completion);
        }
    }

    /// Does what waits for a descriptor that is ready in this way.
    fn ready(&mut self, descriptor: RawFd, events: u32) {
        let is_ready = |event: u32| events & (event | GONE) != 0;
        let waiters = self.waiting[descriptor as usize];
        let mut is_wanted = false;
        let watch = waiters.watch.map_or(0, |(_, submission)| watched(submission));
        let asks = [(waiters.input, READABLE), (waiters.output, WRITABLE), (waiters.watch, watch)];
        for (place, (waiting, event)) in asks.into_iter().enumerate() {
            let Some((token, submission)) = waiting.filter(|_| is_ready(event)) else { continue };
            is_wanted = true;
            let completion = match submission {
                Submission::AwaitRoom { .. } | Submission::AwaitConnection { .. } | Submission::Watch { .. } => {
                    Some(Completion::of(token, events as i32, None, false))
                }
                _ => self.run(token, submission),
            };
            if let Some(completion) = completion {
                *self.waiting[descriptor as usize].all()[place] = None;
                self.done.push(completion);
            }
        }
        if !is_wanted {
            self.withdraw(descriptor);
        }
        if let Err(error) = self.arm(descriptor) {
            self.cannot_wait(descriptor, &error);
        }
    }

    /// A descriptor has woken us for what nobody waits for, and would go on so.
    fn withdraw(&mut self, descriptor: RawFd) {
        let waiters = &mut self.waiting[descriptor as usize];
        let was_registered = waiters.registered.take().is_some();
        if was_registered && waiters.events().is_none() {
            // One that is closed is not known any more.
            let _ = self.control(libc::EPOLL_CTL_DEL, descriptor, 0);
        }
    }

    /// Tries an operation; none when it has to wait.
    fn run(&mut self, token: u64, submission: Submission) -> Option<Completion> {
        use Submission as S;
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: whoever submitted it has promised that the memory and the descriptor are there until it completes.
        let result = unsafe {
            match submission {
                S::Receive { socket, .. } => return self.receive(token, socket),
                S::ReceiveInto { socket, into, bytes } => {
                    result_of(libc::recv(socket, into.cast(), bytes as usize, flags))
                }
                S::Send { socket, from, bytes, more, .. } => {
                    let more = if more { libc::MSG_MORE } else { 0 };
                    result_of(libc::send(socket, from.cast(), bytes as usize, flags | more))
                }
                S::SendMany { socket, message, more } => {
                    result_of(libc::sendmsg(socket, message, flags | if more { libc::MSG_MORE } else { 0 }))
                }
                S::Read { from, into, bytes, .. } => read(from, into, bytes as usize),
                S::Write { to, from, bytes, .. } => {
                    write(to, &libc::iovec { iov_base: from.cast_mut().cast(), iov_len: bytes as usize }, 1)
                }
                S::WriteMany { to, vectors, count } => write(to, vectors, count),
                S::WriteAside { .. } | S::AwaitRoom { .. } | S::AwaitConnection { .. } | S::Watch { .. } => {
                    return None;
                }
            }
        };
        let now_or_never = submission.is_now_or_never();
        (result != -libc::EAGAIN || now_or_never).then(|| Completion::of(token, result, None, false))
    }

    fn receive(&mut self, token: u64, socket: RawFd) -> Option<Completion> {
        let Some(&buffer) = self.free.last() else { return Some(Completion::of(token, -libc::ENOBUFS, None, false)) };
        // SAFETY: the buffer holds nothing, and has room for so much.
        let received = unsafe { libc::recv(socket, self.buffers.provided(buffer).cast(), RECEIVE, libc::MSG_DONTWAIT) };
        match result_of(received) {
            result if result == -libc::EAGAIN => None,
            result if result > 0 => {
                self.free.pop();
                // Who has not filled it has sent all that there was.
                Some(Completion::of(token, result, Some(buffer), result as usize == RECEIVE))
            }
            result => Some(Completion::of(token, result, None, false)),
        }
    }

    /// Waits for events, for several where that pays, and does what they allow.
    fn poll(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let waits = timeout != Some(Duration::ZERO);
        let several = if waits { self.batching.wanted() } else { 0 };
        if several > 0 {
            self.gather(several as usize, timeout)?;
            self.batching.came(self.events.len() as u32);
        }
        if self.events.is_empty() {
            self.look(if self.done.is_empty() { timeout } else { Some(Duration::ZERO) })?;
        }
        let mut events = std::mem::take(&mut self.events);
        let mut are_stale = waits && !events.is_empty();
        for event in events.drain(..) {
            match event.u64 {
                ASIDE => {
                    let done = &mut self.done;
                    self.aside.finished(|token, result| done.push(Completion::of(token, result, None, false)));
                }
                _ if self.waiters(&event).is_none() => continue,
                _ => self.ready(event.u64 as RawFd, event.events),
            }
            are_stale = false;
        }
        if are_stale {
            std::thread::sleep(STALE_SLEEP);
        }
        self.events = events;
        Ok(())
    }

    /// Sleeps, longer and longer, while more events come and until there are several.
    fn gather(&mut self, several: usize, timeout: Option<Duration>) -> io::Result<()> {
        let patience = Batching::patience(several as u32);
        let patience = timeout.map_or(patience, |timeout| timeout.min(patience));
        let (mut slept, mut slice, mut known) = (Duration::ZERO, FIRST_SLEEP, 0);
        while slept < patience {
            let sleep = slice.min(patience - slept);
            std::thread::sleep(sleep);
            (slept, slice) = (slept + sleep, 2 * slice);
            self.look(Some(Duration::ZERO))?;
            let came = self.events.len();
            if came >= several || came == known {
                break;
            }
            known = came;
        }
        Ok(())
    }

    /// Takes the events that there are, or waits for one. Those that were taken before and not looked at come again, but
    /// for those that come once.
    fn look(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        // A millisecond that has begun is waited for to its end.
        let timeout = timeout.map_or(-1, |timeout| timeout.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32);
        let mut events = std::mem::take(&mut self.events);
        events.retain(|event| self.waiters(event).is_some_and(|waiters| waiters.registered.is_none()));
        let result = self.poll.wait(&mut events, timeout);
        self.events = events;
        result
    }
}

impl Io for Epoll {
    fn name(&self) -> &'static str {
        "epoll"
    }

    unsafe fn submit(&mut self, submission: Submission, token: u64) {
        self.new.push((token, submission));
    }

    fn opened(&mut self, descriptor: RawFd) {
        if (descriptor as usize) < self.waiting.len() {
            self.forget(descriptor);
        }
    }

    fn cancel(&mut self, token: u64, descriptor: RawFd) {
        let waiters = self.waiting.get_mut(descriptor as usize);
        let mut places = waiters.into_iter().flat_map(Waiters::all);
        let waited = places.find_map(|place| place.take_if(|(known, _)| *known == token)).is_some();
        let was_new = self.new.iter().position(|(known, _)| *known == token);
        if waited || was_new.map(|at| self.new.remove(at)).is_some() {
            self.done.push(Completion::of(token, -libc::ECANCELED, None, false));
        }
    }

    fn turn(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) -> io::Result<()> {
        for descriptor in std::mem::take(&mut self.unarmed) {
            if let Err(error) = self.arm(descriptor) {
                self.cannot_wait(descriptor, &error);
            }
        }
        let mut new = std::mem::take(&mut self.new);
        new.drain(..).for_each(|(token, submission)| self.begin(token, submission));
        self.new = new;
        let again = (!self.unarmed.is_empty()).then_some(ARM_AGAIN);
        let turned = self.poll([timeout, again].into_iter().flatten().min());
        let moved = self.done.iter().map(|completion| completion.result.max(0) as u64).sum();
        self.batching.moved(moved);
        completions.append(&mut self.done);
        turned
    }

    fn prepare_aside(&mut self, _: RawFd) {
        self.aside.prepare();
    }

    fn has_news(&mut self) -> bool {
        !self.done.is_empty() || is_ready(self.poll.descriptor(), libc::POLLIN)
    }

    fn carried(&mut self, lines: u64) {
        self.batching.carried(lines);
    }

    fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    #[inline]
    fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    fn memory(&self) -> &Buffers {
        &self.buffers
    }

    fn return_received(&mut self, buffer: u16) {
        debug_assert!(!self.free.contains(&buffer));
        self.free.push(buffer);
    }

    fn describe(&self) -> (String, Option<&io::Error>) {
        ("epoll".to_owned(), None)
    }
}

/// Whether a descriptor is ready now, in this way or because its other side has gone.
fn is_ready(descriptor: RawFd, events: libc::c_short) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events, revents: 0 };
    // SAFETY: the structure lives until the call returns.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 }
}

/// Whether reads and writes of it never wait.
fn is_nonblocking(descriptor: RawFd) -> bool {
    // SAFETY: the call takes no memory.
    unsafe { libc::fcntl(descriptor, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
}

/// Whether a call that was asked not to wait has failed because this kernel, or this kind of file, cannot be asked that.
fn cannot_be_asked(result: i32) -> bool {
    matches!(-result, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)
}

/// Reads what is there, from whatever it is: EAGAIN if that is nothing.
///
/// # Safety
/// There is room for so many bytes.
unsafe fn read(from: RawFd, into: *mut u8, bytes: usize) -> i32 {
    let vector = libc::iovec { iov_base: into.cast(), iov_len: bytes };
    // SAFETY: as promised by the caller. Where it is read from is where the file is (an offset of -1).
    let result = result_of(
        unsafe { libc::syscall(libc::SYS_preadv2, from, &raw const vector, 1, -1i64, -1i64, NOWAIT) } as isize,
    );
    // SAFETY: as promised by the caller.
    if cannot_be_asked(result) { unsafe { read_if_ready(from, into, bytes) } } else { result }
}

/// The same where the call cannot be asked not to wait.
///
/// # Safety
/// As for [`read`].
unsafe fn read_if_ready(from: RawFd, into: *mut u8, bytes: usize) -> i32 {
    if !is_nonblocking(from) && !is_ready(from, libc::POLLIN) {
        return -libc::EAGAIN;
    }
    // SAFETY: as promised by the caller.
    result_of(unsafe { libc::read(from, into.cast(), bytes) })
}

/// Writes what there is room for, to whatever it is: EAGAIN if that is nothing.
///
/// # Safety
/// The vectors and their memory are there.
unsafe fn write(to: RawFd, vectors: *const libc::iovec, count: u32) -> i32 {
    // SAFETY: as promised by the caller.
    let result =
        result_of(unsafe { libc::syscall(libc::SYS_pwritev2, to, vectors, count, -1i64, -1i64, NOWAIT) } as isize);
    // SAFETY: as promised by the caller.
    if cannot_be_asked(result) { unsafe { write_what_fits(to, vectors, count) } } else { result }
}

/// The same where the call cannot be asked not to wait: a piece that surely fits, if there is room at all.
///
/// # Safety
/// As for [`write`]; there is one vector at least.
unsafe fn write_what_fits(to: RawFd, vectors: *const libc::iovec, count: u32) -> i32 {
    if is_nonblocking(to) {
        // SAFETY: as promised by the caller.
        return result_of(unsafe { libc::writev(to, vectors, count as libc::c_int) });
    }
    if !is_ready(to, libc::POLLOUT) {
        return -libc::EAGAIN;
    }
    // SAFETY: as promised by the caller.
    unsafe {
        let first = *vectors;
        result_of(libc::write(to, first.iov_base, first.iov_len.min(PIECE)))
    }
}

#[cfg(test)]
mod tests;
