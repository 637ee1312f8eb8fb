//! Waits at descriptors whose other side sends no more. The ring's own poll cannot: it asks for POLLRDHUP whatever it is
//! told, and that is there already. An epoll(7) instance is asked for less, and the ring waits for the instance.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use hashbrown::HashMap;

use super::Submission;
use super::ring::Completion;

/// Events that are taken in one turn.
const EVENTS: usize = 64;
const WRITABLE: u32 = libc::EPOLLOUT as u32;
/// The other side has gone: this is told whether it was asked for or not.
const GONE: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// The operations that wait for one descriptor, by their tokens.
#[derive(Clone, Copy, Default)]
struct Waiters {
    room: Option<u64>,
    watch: Option<u64>,
}

/// See the top of the file.
pub struct HalfClosed {
    /// None where it could not be made: then nobody is told anything.
    poll: Option<OwnedFd>,
    waiting: HashMap<RawFd, Waiters>,
    /// What ended without an event.
    done: Vec<Completion>,
}

impl Default for HalfClosed {
    fn default() -> Self {
        // SAFETY: the call takes no memory.
        let poll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        // SAFETY: a system call has just made it for us.
        let poll = (poll >= 0).then(|| unsafe { OwnedFd::from_raw_fd(poll) });
        Self { poll, waiting: HashMap::new(), done: Vec::new() }
    }
}

impl HalfClosed {
    /// What becomes readable when something here has come true; none if nothing is waited for.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.poll.as_ref().filter(|_| !self.waiting.is_empty()).map(AsRawFd::as_raw_fd)
    }

    /// Whether something is to be told without waiting.
    pub fn has_news(&self) -> bool {
        !self.done.is_empty()
    }

    /// Lets a [`Submission::AwaitRoom`] or a [`Submission::Watch`] wait. It completes with nothing where nobody would tell.
    pub fn wait(&mut self, token: u64, submission: Submission) {
        let descriptor = submission.descriptor();
        let waiters = self.waiting.entry(descriptor).or_default();
        let is_new = waiters.room.is_none() && waiters.watch.is_none();
        let place = match submission {
            Submission::AwaitRoom { .. } => &mut waiters.room,
            _ => &mut waiters.watch,
        };
        debug_assert!(place.is_none(), "two operations wait for the same: {place:?} and {submission:?}");
        *place = Some(token);
        let how = if is_new { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_MOD };
        let refused = self.control(how, descriptor);
        if refused == 0 {
            return;
        }
        // Files have room always, and epoll(7) takes none (EPERM).
        let result = if refused == libc::EPERM { WRITABLE as i32 } else { 0 };
        let waiters = self.waiting.remove(&descriptor).unwrap_or_default();
        let tokens = [waiters.room, waiters.watch].into_iter().flatten();
        self.done.extend(tokens.map(|token| Completion::of(token, result, None, false)));
    }

    /// Ends an operation, if it waits here.
    pub fn cancel(&mut self, token: u64) -> bool {
        let found = self.waiting.iter_mut().find(|(_, waiters)| [waiters.room, waiters.watch].contains(&Some(token)));
        let Some((&descriptor, waiters)) = found else { return false };
        if waiters.room == Some(token) {
            waiters.room = None;
        } else {
            waiters.watch = None;
        }
        self.go_on(descriptor);
        self.done.push(Completion::of(token, -libc::ECANCELED, None, false));
        true
    }

    /// Adds what has come true to `completions`.
    pub fn take(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
        let Some(poll) = self.poll.as_ref().filter(|_| !self.waiting.is_empty()) else { return };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        // SAFETY: the events live until the call returns.
        let count = unsafe { libc::epoll_wait(poll.as_raw_fd(), events.as_mut_ptr(), EVENTS as libc::c_int, 0) };
        for event in &events[..usize::try_from(count).unwrap_or(0)] {
            let (descriptor, events) = (event.u64 as RawFd, event.events);
            let Some(waiters) = self.waiting.get_mut(&descriptor) else { continue };
            let room = waiters.room.take_if(|_| events & (WRITABLE | GONE) != 0);
            let watch = waiters.watch.take_if(|_| events & GONE != 0);
            let tokens = [room, watch].into_iter().flatten();
            completions.extend(tokens.map(|token| Completion::of(token, events as i32, None, false)));
            self.go_on(descriptor);
        }
    }

    /// Goes on waiting for what is left at a descriptor.
    fn go_on(&mut self, descriptor: RawFd) {
        let is_over = self.waiting.get(&descriptor).is_none_or(|left| left.room.is_none() && left.watch.is_none());
        self.control(if is_over { libc::EPOLL_CTL_DEL } else { libc::EPOLL_CTL_MOD }, descriptor);
        if is_over {
            self.waiting.remove(&descriptor);
        }
    }

    /// Tells the kernel what is waited for at a descriptor; why it does not want to know, or 0.
    fn control(&self, how: libc::c_int, descriptor: RawFd) -> i32 {
        let Some(poll) = &self.poll else { return libc::EBADF };
        let awaits_room = self.waiting.get(&descriptor).is_some_and(|waiters| waiters.room.is_some());
        let wanted = if awaits_room { WRITABLE } else { 0 };
        let mut event = libc::epoll_event { events: wanted, u64: descriptor as u64 };
        // SAFETY: the event lives until the call returns.
        let result = unsafe { libc::epoll_ctl(poll.as_raw_fd(), how, descriptor, &mut event) };
        if result == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use rustix::net::{RecvFlags, SendFlags, Shutdown};

    use super::*;
    use crate::io::uring::Uring;
    use crate::io::{Io, tells_half_closed};

    /// A full socket whose other side sends no more.
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
    fn room_and_the_end_are_told_each_to_who_waits_for_it() {
        let (ours, theirs) = full();
        let mut half_closed = HalfClosed::default();
        half_closed.wait(1, room(&ours));
        half_closed.wait(2, watch(&ours));
        assert_eq!(taken(&mut half_closed), []);
        drain(&theirs);
        assert_eq!(taken(&mut half_closed), [(1, libc::EPOLLOUT)]);
        assert_eq!(taken(&mut half_closed), [], "nobody waits for room any more");
        fill(&ours);
        half_closed.wait(3, room(&ours));
        drop(theirs);
        let ends = taken(&mut half_closed);
        assert_eq!(ends.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [3, 2]);
        assert!(ends.iter().all(|(_, events)| events & libc::EPOLLHUP != 0));
        assert_eq!(half_closed.descriptor(), None, "nothing is left to wait for");
    }

    #[test]
    fn what_is_cancelled_is_told_so_and_the_rest_goes_on() {
        let (ours, theirs) = full();
        let mut half_closed = HalfClosed::default();
        half_closed.wait(1, room(&ours));
        half_closed.wait(2, watch(&ours));
        assert!(half_closed.cancel(1) && !half_closed.cancel(1) && !half_closed.cancel(7));
        drain(&theirs);
        assert_eq!(taken(&mut half_closed), [(1, -libc::ECANCELED)]);
        assert!(half_closed.cancel(2));
        drop(theirs);
        assert_eq!(taken(&mut half_closed), [(2, -libc::ECANCELED)]);
        assert_eq!(half_closed.descriptor(), None);
    }

    #[test]
    fn a_file_has_room_and_where_nobody_would_tell_that_is_told() {
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
    fn a_ring_that_knows_of_a_half_closed_socket_sleeps_until_there_is_room() {
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
            panic!("the ring tells that nothing more comes")
        };
        assert!(tells_half_closed(result), "{result:#x}");
        assert!(turn(Some(room(&ours)), 0).is_empty());
        drain(&theirs);
        assert_eq!(turn(None, 60), [libc::EPOLLOUT]);
        assert!(turn(Some(watch(&ours)), 0).is_empty());
        rustix::net::shutdown(&theirs, Shutdown::Both).expect("it is connected");
        assert!(matches!(turn(None, 60)[..], [events] if events & libc::EPOLLHUP != 0));
    }
}
