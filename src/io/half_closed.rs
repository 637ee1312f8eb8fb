//! Waits on descriptors whose peer has half-closed. The ring's own poll cannot: it always asks for POLLRDHUP as well,
//! which is already set. An epoll(7) instance can be asked for less, and the ring polls the instance.

use std::io;
use std::os::fd::RawFd;

use hashbrown::HashMap;

use super::Submission;
use super::instance::{GONE, Instance, WRITABLE};
use super::ring::Completion;

/// The tokens of the operations that wait for one descriptor.
#[derive(Clone, Copy, Default)]
struct Waiters {
    room: Option<u64>,
    watch: Option<u64>,
}

impl Waiters {
    fn tokens(self) -> impl Iterator<Item = u64> {
        [self.room, self.watch].into_iter().flatten()
    }

    /// Takes the waiters that these events are for.
    fn take(&mut self, events: u32) -> Self {
        let room = self.room.take_if(|_| events & (WRITABLE | GONE) != 0);
        Self { room, watch: self.watch.take_if(|_| events & GONE != 0) }
    }
}

pub(super) struct HalfClosed {
    /// None if it could not be created: then waiters are never notified.
    poll: Option<Instance>,
    waiting: HashMap<RawFd, Waiters>,
    /// Operations that ended without an event.
    done: Vec<Completion>,
    events: Vec<libc::epoll_event>,
}

impl Default for HalfClosed {
    fn default() -> Self {
        Self { poll: Instance::new().ok(), waiting: HashMap::new(), done: Vec::new(), events: Vec::new() }
    }
}

impl HalfClosed {
    /// The descriptor that becomes readable when a waiter's event occurs; none if there are no waiters.
    pub(super) fn descriptor(&self) -> Option<RawFd> {
        self.poll.as_ref().filter(|_| !self.waiting.is_empty()).map(Instance::descriptor)
    }

    /// Whether there is something to report without waiting.
    pub(super) fn has_news(&self) -> bool {
        !self.done.is_empty()
    }

    /// Queues a [`Submission::AwaitRoom`] or a [`Submission::Watch`]. It completes with nothing if it could never be
    /// notified.
    pub(super) fn wait(&mut self, token: u64, submission: Submission) {
        let descriptor = submission.descriptor();
        let is_new = !self.waiting.contains_key(&descriptor);
        let waiters = self.waiting.entry(descriptor).or_default();
        let place = match submission {
            Submission::AwaitRoom { .. } => &mut waiters.room,
            _ => &mut waiters.watch,
        };
        debug_assert!(place.is_none(), "two operations wait for the same: {place:?} and {submission:?}");
        *place = Some(token);
        let how = if is_new { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_MOD };
        let Err(refused) = self.control(how, descriptor) else { return };
        // Files always have room, and epoll(7) refuses them (EPERM).
        let result = if refused.raw_os_error() == Some(libc::EPERM) { WRITABLE as i32 } else { 0 };
        let waiters = self.waiting.remove(&descriptor).unwrap_or_default();
        self.done.extend(waiters.tokens().map(|token| Completion::of(token, result, None, false)));
    }

    /// Cancels an operation, if it waits here.
    pub(super) fn cancel(&mut self, token: u64, descriptor: RawFd) -> bool {
        let Some(waiters) = self.waiting.get_mut(&descriptor) else { return false };
        let place = if waiters.room == Some(token) { &mut waiters.room } else { &mut waiters.watch };
        if place.take_if(|waiting| *waiting == token).is_none() {
            return false;
        }
        self.rearm(descriptor);
        self.done.push(Completion::of(token, -libc::ECANCELED, None, false));
        true
    }

    /// Adds completed waits to `completions`.
    pub(super) fn take(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
        let Some(poll) = self.poll.as_ref().filter(|_| !self.waiting.is_empty()) else { return };
        let mut events = std::mem::take(&mut self.events);
        // What cannot be fetched now is fetched when the ring polls the instance again.
        let _ = poll.wait(&mut events, 0);
        for event in events.drain(..) {
            let (descriptor, events) = (event.u64 as RawFd, event.events);
            let Some(waiters) = self.waiting.get_mut(&descriptor) else { continue };
            let tokens = waiters.take(events).tokens();
            completions.extend(tokens.map(|token| Completion::of(token, events as i32, None, false)));
            self.rearm(descriptor);
        }
        self.events = events;
    }

    /// Keeps waiting for the remaining events of a descriptor.
    fn rearm(&mut self, descriptor: RawFd) {
        let is_over = self.waiting.get(&descriptor).is_none_or(|left| left.tokens().next().is_none());
        // It is registered, and asked for no more than before.
        let _ = self.control(if is_over { libc::EPOLL_CTL_DEL } else { libc::EPOLL_CTL_MOD }, descriptor);
        if is_over {
            self.waiting.remove(&descriptor);
        }
    }

    /// Registers the events that a descriptor's waiters need.
    fn control(&self, how: libc::c_int, descriptor: RawFd) -> io::Result<()> {
        let Some(poll) = &self.poll else { return Err(io::ErrorKind::Unsupported.into()) };
        let awaits_room = self.waiting.get(&descriptor).is_some_and(|waiters| waiters.room.is_some());
        poll.control(how, descriptor, if awaits_room { WRITABLE } else { 0 }, descriptor as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use rustix::net::{RecvFlags, SendFlags, Shutdown};

    use super::*;
    use crate::io::uring::Uring;
    use crate::io::{Io, is_half_closed};

    /// A full socket whose peer has half-closed.
    fn full() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        theirs.shutdown(std::net::Shutdown::Write).expect("it is connected");
        fill(&ours);
        (ours, theirs)
    }

    fn fill(socket: &UnixStream) {
        while rustix::net::send(socket, &[0; 4096], SendFlags::DONTWAIT).is_ok() {}
    }

    fn drain(socket: &UnixStream) {
        while rustix::net::recv(socket, &mut [0u8; 1 << 16][..], RecvFlags::DONTWAIT).is_ok() {}
    }

    fn room(socket: &UnixStream) -> Submission {
        Submission::AwaitRoom { descriptor: socket.as_raw_fd(), half_closed: true }
    }

    fn watch(socket: &UnixStream) -> Submission {
        Submission::Watch { descriptor: socket.as_raw_fd(), half_closed: true }
    }

    fn taken(half_closed: &mut HalfClosed) -> Vec<(u64, i32)> {
        let mut completions = Vec::new();
        half_closed.take(&mut completions);
        completions.iter().map(|completion| (completion.token, completion.result)).collect()
    }

    #[test]
    fn room_and_the_end_are_each_reported_to_their_waiter() {
        let (ours, theirs) = full();
        let mut half_closed = HalfClosed::default();
        half_closed.wait(1, room(&ours));
        half_closed.wait(2, watch(&ours));
        assert_eq!(taken(&mut half_closed), []);
        drain(&theirs);
        assert_eq!(taken(&mut half_closed), [(1, libc::EPOLLOUT)]);
        assert_eq!(taken(&mut half_closed), [], "no operation waits for room any more");
        fill(&ours);
        half_closed.wait(3, room(&ours));
        drop(theirs);
        let ends = taken(&mut half_closed);
        assert_eq!(ends.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [3, 2]);
        assert!(ends.iter().all(|(_, events)| events & libc::EPOLLHUP != 0));
        assert_eq!(half_closed.descriptor(), None, "nothing is left to wait for");
    }

    #[test]
    fn a_cancelled_wait_says_so_and_the_others_continue() {
        let (ours, theirs) = full();
        let mut half_closed = HalfClosed::default();
        half_closed.wait(1, room(&ours));
        half_closed.wait(2, watch(&ours));
        let ours = ours.as_raw_fd();
        assert!(half_closed.cancel(1, ours) && !half_closed.cancel(1, ours) && !half_closed.cancel(7, ours));
        drain(&theirs);
        assert_eq!(taken(&mut half_closed), [(1, -libc::ECANCELED)]);
        assert!(half_closed.cancel(2, ours));
        drop(theirs);
        assert_eq!(taken(&mut half_closed), [(2, -libc::ECANCELED)]);
        assert_eq!(half_closed.descriptor(), None);
    }

    #[test]
    fn a_file_has_room_and_a_wait_that_could_never_be_notified_ends() {
        let file = tempfile::tempfile().expect("a file");
        let mut half_closed = HalfClosed::default();
        half_closed.wait(1, Submission::AwaitRoom { descriptor: file.as_raw_fd(), half_closed: true });
        assert!(half_closed.has_news());
        assert_eq!(taken(&mut half_closed), [(1, libc::EPOLLOUT)]);
        half_closed.poll = None;
        let (ours, _theirs) = full();
        half_closed.wait(2, room(&ours));
        assert_eq!(taken(&mut half_closed), [(2, 0)]);
    }

    #[test]
    fn a_ring_with_a_half_closed_socket_sleeps_until_there_is_room() {
        let mut ring = Uring::new(1).expect("the tests need io_uring");
        let (ours, theirs) = full();
        let mut turn = |submission: Option<Submission>, patience: u64| {
            if let Some(submission) = submission {
                // SAFETY: the sockets outlive the ring's operations.
                unsafe { ring.submit(submission, 5) };
            }
            let mut completions = Vec::new();
            ring.turn(Some(Duration::from_secs(patience)), &mut completions).expect("it works");
            completions.iter().map(|completion| completion.result).collect::<Vec<_>>()
        };
        let [result] = turn(Some(Submission::AwaitRoom { descriptor: ours.as_raw_fd(), half_closed: false }), 60)[..]
        else {
            panic!("the ring reports that nothing more comes")
        };
        assert!(is_half_closed(result), "{result:#x}");
        assert!(turn(Some(room(&ours)), 0).is_empty());
        drain(&theirs);
        assert_eq!(turn(None, 60), [libc::EPOLLOUT]);
        assert!(turn(Some(watch(&ours)), 0).is_empty());
        rustix::net::shutdown(&theirs, Shutdown::Both).expect("it is connected");
        assert!(matches!(turn(None, 60)[..], [events] if events & libc::EPOLLHUP != 0));
    }
}
