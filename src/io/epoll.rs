//! The epoll(7) backend, for systems where io_uring is missing or blocked by a sandbox. Ready descriptors are read and
//! written at once, on this thread, and reported as the ring would.
//!
//! Writes are tried first, since there usually is room; reads wait first, since there usually is nothing yet. A
//! descriptor stays registered after a wait, so that the next wait costs no system call; if it wakes us when nothing
//! waits for it, it is deregistered. Listening sockets are registered for one event at a time (EPOLLONESHOT): other
//! processes may share them, and then they stay registered when we close ours.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::blocking_pool::{BlockingPool, Task};
use super::buffers::{Buffers, RECEIVE, RECEIVE_BUFFERS};
use super::clocks::monotonic;
use super::instance::{GONE, Instance, WRITABLE};
use super::ring::Completion;
use super::{Io, Submission, result_of};
use crate::error::StartError;

/// Interval of retries after a failed registration.
const ARM_AGAIN: Duration = Duration::from_millis(100);
/// The sleep after a wake-up by closed descriptors alone, which recur until a process that is being spawned has
/// started.
const STALE_SLEEP: Duration = Duration::from_millis(1);
/// A writable pipe has room for at least this many bytes (pipe(7), PIPE_BUF); a larger blocking write might block.
const PIECE: usize = 4096;
/// RWF_NOWAIT (preadv2(2)).
const NOWAIT: libc::c_int = libc::RWF_NOWAIT;
const READABLE: u32 = libc::EPOLLIN as u32;
/// The token of the wake-up by helper threads.
const ASIDE: u64 = u64::MAX;
/// The token of the alarm.
const ALARM: u64 = ASIDE - 1;

/// A pending operation.
type WaitingOperations = Option<(u64, Submission)>;

/// The operations that wait for one descriptor.
#[derive(Clone, Copy, Default)]
struct Waiters {
    input: WaitingOperations,
    output: WaitingOperations,
    watch: WaitingOperations,
    /// The events that it is registered for, if it is registered.
    registered: Option<u32>,
    /// How often the number was reused for another file. A closed descriptor stays registered while a process that is
    /// being spawned holds a copy (epoll(7), question 6), and its events do not belong to the file that has the number
    /// now.
    generation: u32,
}

/// The user data of an event.
fn data(descriptor: RawFd, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(descriptor as u32)
}

impl Waiters {
    fn all(&mut self) -> [&mut WaitingOperations; 3] {
        [&mut self.input, &mut self.output, &mut self.watch]
    }

    /// The events that they wait for; none if there are no waiters.
    fn events(&self) -> Option<u32> {
        let wanted = |waiting: &WaitingOperations, event| waiting.map(|_| event);
        let watch = self.watch.map(|(_, submission)| watched(submission));
        let events = [wanted(&self.input, READABLE), wanted(&self.output, WRITABLE), watch];
        events.into_iter().flatten().reduce(|one, other| one | other)
    }
}

/// The event that a [`Submission::Watch`] waits for besides [`GONE`]: the peer's half-close, unless that is known.
fn watched(submission: Submission) -> u32 {
    if matches!(submission, Submission::Watch { half_closed: false, .. }) { libc::EPOLLRDHUP as u32 } else { 0 }
}

pub struct Epoll {
    poll: Instance,
    buffers: Buffers,
    /// Free provided buffers.
    free: Vec<u16>,
    /// Operations that were not tried yet.
    new: Vec<(u64, Submission)>,
    /// By descriptor.
    waiting: Vec<Waiters>,
    /// Operations that ended without an event.
    done: Vec<Completion>,
    aside: BlockingPool,
    /// Descriptors that could not be registered, for lack of memory or because of the user's watch limit.
    unarmed: Vec<RawFd>,
    events: Vec<libc::epoll_event>,
    timer: OwnedFd,
    /// When the timer expires ([`monotonic`]), if it is set. It may expire when nothing is due any more.
    alarm: Option<Duration>,
    /// When the last turn ended: timeouts count from then.
    turned_at: Duration,
    origin: Duration,
}

impl Epoll {
    /// Allocates memory for `workers` workers.
    ///
    /// # Errors
    /// The system is out of descriptors or memory.
    pub fn new(workers: usize) -> Result<Self, StartError> {
        let poll = Instance::new().map_err(StartError::io("make an epoll instance"))?;
        let aside = BlockingPool::new().map_err(StartError::io("make an eventfd"))?;
        poll.control(libc::EPOLL_CTL_ADD, aside.wakes().as_raw_fd(), READABLE, ASIDE)
            .map_err(StartError::io("wait for an eventfd"))?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(|error| StartError::io("make a timer")(error.into()))?;
        poll.control(libc::EPOLL_CTL_ADD, timer.as_raw_fd(), READABLE, ALARM)
            .map_err(StartError::io("wait for a timer"))?;
        let origin = monotonic();
        Ok(Self {
            poll,
            buffers: Buffers::new(None, workers).map_err(StartError::io("allocate buffers"))?,
            free: (0..RECEIVE_BUFFERS).collect(),
            new: Vec::new(),
            waiting: Vec::new(),
            done: Vec::new(),
            aside,
            unarmed: Vec::new(),
            events: Vec::new(),
            timer,
            alarm: None,
            turned_at: origin,
            origin,
        })
    }

    /// Tries an operation for the first time.
    fn begin(&mut self, token: u64, submission: Submission) {
        use Submission as S;
        if let S::WriteAside { to, from, bytes } = submission {
            return self.hand_over(token, Task::Write { to, from, bytes: bytes as usize });
        }
        let is_tried = match submission {
            S::Send { .. } | S::SendMany { .. } | S::Write { .. } | S::WriteMany { .. } => true,
            // While buffers are short, a peer with more to send takes turns with those that have waited.
            S::Receive { was_empty, .. } => !was_empty && self.free.len() > usize::from(RECEIVE_BUFFERS) / 2,
            S::Read { now_or_never, .. } => now_or_never,
            _ => false,
        };
        match is_tried.then(|| self.run(token, submission)).flatten() {
            Some(completion) => self.done.push(completion),
            None => self.wait(token, submission),
        }
    }

    /// Hands a blocking operation to a thread.
    fn hand_over(&mut self, token: u64, task: Task) {
        // SAFETY: the submitter guarantees that the memory stays valid until the operation completes.
        if unsafe { self.aside.begin(token, task) }.is_err() {
            self.done.push(Completion::of(token, -libc::ECANCELED, None, false));
        }
    }

    /// Queues an operation until its descriptor is ready.
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

    /// Registers the events that the waiters of a descriptor need.
    fn arm(&mut self, descriptor: RawFd) -> io::Result<()> {
        use Submission as S;
        let waiters = &mut self.waiting[descriptor as usize];
        let Some(events) = waiters.events() else { return Ok(()) };
        let listens = matches!(waiters.input, Some((_, S::AwaitConnection { .. })));
        let is_registered = waiters.registered.is_some_and(|registered| registered & events == events);
        if is_registered && !listens {
            debug_assert!(self.is_registered(descriptor), "{descriptor} was opened without a call of `opened`");
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

    /// Takes the waiters of a descriptor. Events of its current registration are ignored from then on.
    fn forget(&mut self, descriptor: RawFd) -> Waiters {
        let waiters = &mut self.waiting[descriptor as usize];
        let generation = waiters.generation.wrapping_add(1);
        std::mem::replace(waiters, Waiters { generation, ..Waiters::default() })
    }

    /// The waiters that an event is for; none if its descriptor was closed.
    fn waiters(&self, event: &libc::epoll_event) -> Option<&Waiters> {
        let waiters = self.waiting.get(event.u64 as u32 as usize)?;
        (u64::from(waiters.generation) == event.u64 >> 32).then_some(waiters)
    }

    /// Whether the registered descriptor still is the open file that we think it is.
    fn is_registered(&self, descriptor: RawFd) -> bool {
        let registered = self.waiting[descriptor as usize].registered;
        registered.is_some_and(|events| self.control(libc::EPOLL_CTL_MOD, descriptor, events).is_ok())
    }

    /// Handles a failed registration. Files are always ready as far as epoll is concerned (EPERM): they are tried at
    /// once, and read on a helper thread since the disk may hang. Out of kernel resources, the registration is retried
    /// later.
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
                    // SAFETY: the submitter guarantees that the memory stays valid until the operation completes.
                    if unsafe { self.aside.begin(token, Task::Read { from, into, bytes }) }.is_ok() {
                        continue;
                    }
                    // SAFETY: the same. Without a thread, blocking on a disk is better than reading nothing.
                    Completion::of(token, result_of(unsafe { libc::read(from, into.cast(), bytes) }), None, false)
                }
                _ => self.run(token, submission).unwrap_or(Completion::of(token, -libc::EAGAIN, None, false)),
            };
            self.done.push(completion);
        }
    }

    /// Runs the operations that these events of a descriptor allow.
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

    /// Deregisters a descriptor that woke us although nothing waits for it, and that would keep doing so.
    fn withdraw(&mut self, descriptor: RawFd) {
        let waiters = &mut self.waiting[descriptor as usize];
        let was_registered = waiters.registered.take().is_some();
        if was_registered && waiters.events().is_none() {
            // A closed one is not registered any more.
            let _ = self.control(libc::EPOLL_CTL_DEL, descriptor, 0);
        }
    }

    /// Tries an operation; returns none if it has to wait.
    fn run(&mut self, token: u64, submission: Submission) -> Option<Completion> {
        use Submission as S;
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the submitter guarantees that the memory and the descriptor stay valid until the operation completes.
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
        // SAFETY: the buffer is free and has this capacity.
        let received = unsafe { libc::recv(socket, self.buffers.provided(buffer).cast(), RECEIVE, libc::MSG_DONTWAIT) };
        match result_of(received) {
            result if result == -libc::EAGAIN => None,
            result if result > 0 => {
                self.free.pop();
                // A peer that did not fill the buffer has sent all there was.
                Some(Completion::of(token, result, Some(buffer), result as usize == RECEIVE))
            }
            result => Some(Completion::of(token, result, None, false)),
        }
    }

    /// Waits for events, and runs the operations that they allow.
    fn poll(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let waits = timeout != Some(Duration::ZERO);
        let waits_for_events = waits && self.done.is_empty();
        if let Some(timeout) = timeout.filter(|_| waits_for_events) {
            self.set_alarm(timeout)?;
        }
        let mut events = std::mem::take(&mut self.events);
        let polled = self.poll.wait(&mut events, if waits_for_events { -1 } else { 0 });
        let mut are_stale = waits && !events.is_empty();
        for event in events.drain(..) {
            match event.u64 {
                ASIDE => {
                    let done = &mut self.done;
                    self.aside.finished(|token, result| done.push(Completion::of(token, result, None, false)));
                }
                ALARM => {
                    let _ = rustix::io::read(&self.timer, &mut [0; 8]);
                    self.alarm = None;
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
        polled
    }

    /// Sets the timer, unless it expires within this time already. If each wait had its own timeout, the kernel would
    /// arm and cancel a timer on every sleep.
    fn set_alarm(&mut self, timeout: Duration) -> io::Result<()> {
        let due = self.turned_at + timeout;
        if self.alarm.is_none_or(|alarm| alarm > due) {
            let it_value = Timespec { tv_sec: due.as_secs() as i64, tv_nsec: due.subsec_nanos().into() };
            let once = Itimerspec { it_interval: Timespec::default(), it_value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
            self.alarm = Some(due);
        }
        Ok(())
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
        self.turned_at = monotonic();
        completions.append(&mut self.done);
        turned
    }

    fn prepare_aside(&mut self, _: RawFd) {
        self.aside.prepare();
    }

    fn has_news(&mut self) -> bool {
        !self.done.is_empty() || is_ready(self.poll.descriptor(), libc::POLLIN)
    }

    fn elapsed(&self) -> Duration {
        monotonic().saturating_sub(self.origin)
    }

    fn turned_at(&self) -> Duration {
        self.turned_at.saturating_sub(self.origin)
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

/// Whether a descriptor is ready for these events now, or its peer has gone.
fn is_ready(descriptor: RawFd, events: libc::c_short) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events, revents: 0 };
    // SAFETY: the structure lives until the call returns.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 }
}

/// Whether its reads and writes never block.
fn is_nonblocking(descriptor: RawFd) -> bool {
    // SAFETY: the call takes no memory.
    unsafe { libc::fcntl(descriptor, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
}

/// Whether a call with RWF_NOWAIT failed because this kernel, or this kind of file, does not support it.
fn cannot_be_asked(result: i32) -> bool {
    matches!(-result, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)
}

/// Reads what is available, from any kind of file: EAGAIN if that is nothing.
///
/// # Safety
/// `into` has room for `bytes` bytes.
unsafe fn read(from: RawFd, into: *mut u8, bytes: usize) -> i32 {
    let vector = libc::iovec { iov_base: into.cast(), iov_len: bytes };
    // SAFETY: guaranteed by the caller. An offset of -1 reads at the file's position.
    let result = result_of(
        unsafe { libc::syscall(libc::SYS_preadv2, from, &raw const vector, 1, -1i64, -1i64, NOWAIT) } as isize,
    );
    // SAFETY: guaranteed by the caller.
    if cannot_be_asked(result) { unsafe { read_if_ready(from, into, bytes) } } else { result }
}

/// The same without RWF_NOWAIT.
///
/// # Safety
/// As for [`read`].
unsafe fn read_if_ready(from: RawFd, into: *mut u8, bytes: usize) -> i32 {
    if !is_nonblocking(from) && !is_ready(from, libc::POLLIN) {
        return -libc::EAGAIN;
    }
    // SAFETY: guaranteed by the caller.
    result_of(unsafe { libc::read(from, into.cast(), bytes) })
}

/// Writes what there is room for, to any kind of file: EAGAIN if there is none.
///
/// # Safety
/// The vectors and their memory are valid.
unsafe fn write(to: RawFd, vectors: *const libc::iovec, count: u32) -> i32 {
    // SAFETY: guaranteed by the caller.
    let result =
        result_of(unsafe { libc::syscall(libc::SYS_pwritev2, to, vectors, count, -1i64, -1i64, NOWAIT) } as isize);
    // SAFETY: guaranteed by the caller.
    if cannot_be_asked(result) { unsafe { write_what_fits(to, vectors, count) } } else { result }
}

/// The same without RWF_NOWAIT: writes a piece that is sure to fit, if there is room at all.
///
/// # Safety
/// As for [`write`]; there is at least one vector.
unsafe fn write_what_fits(to: RawFd, vectors: *const libc::iovec, count: u32) -> i32 {
    if is_nonblocking(to) {
        // SAFETY: guaranteed by the caller.
        return result_of(unsafe { libc::writev(to, vectors, count as libc::c_int) });
    }
    if !is_ready(to, libc::POLLOUT) {
        return -libc::EAGAIN;
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        let first = *vectors;
        result_of(libc::write(to, first.iov_base, first.iov_len.min(PIECE)))
    }
}

#[cfg(test)]
mod tests;
