//! The epoll backend: which operation is woken by which event, and that no operation blocks another.

use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::pipe::{PipeFlags, pipe_with};

use super::*;

fn epoll() -> Epoll {
    Epoll::new(1).expect("there is epoll")
}

fn submit(epoll: &mut Epoll, submission: Submission, token: u64) {
    // SAFETY: the tests keep what the operation names until it completes.
    unsafe { epoll.submit(submission, token) };
}

/// The completions of the next turn, without waiting.
fn turn(epoll: &mut Epoll) -> Vec<(u64, i32)> {
    let mut completions = Vec::new();
    epoll.turn(Some(Duration::ZERO), &mut completions).expect("it works");
    completions.iter().map(|completion| (completion.token, completion.result)).collect()
}

/// The completions of the first turn that has any.
fn wait(epoll: &mut Epoll) -> Vec<(u64, i32)> {
    let deadline = Instant::now() + Duration::from_secs(120);
    while Instant::now() < deadline {
        let mut completions = Vec::new();
        epoll.turn(Some(Duration::from_secs(1)), &mut completions).expect("it works");
        if !completions.is_empty() {
            return completions.iter().map(|completion| (completion.token, completion.result)).collect();
        }
    }
    panic!("nothing completes");
}

fn receive(socket: &UnixStream) -> Submission {
    Submission::Receive { socket: socket.as_raw_fd(), was_empty: true }
}

#[test]
fn one_timer_ends_all_waits_in_time() {
    let mut epoll = epoll();
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let (hour, moment) = (Duration::from_secs(3600), Duration::from_millis(1));
    let mut turn = |submission: Option<Submission>, timeout| {
        submission.into_iter().for_each(|submission| submit(&mut epoll, submission, 1));
        let mut completions = Vec::new();
        epoll.turn(Some(timeout), &mut completions).expect("it works");
        (completions.len(), epoll.alarm)
    };
    assert_eq!(turn(None, Duration::ZERO), (0, None), "nothing is waited for");
    rustix::io::write(&theirs, b"abc").expect("there is room");
    let (1, Some(alarm)) = turn(Some(receive(&ours)), hour) else { panic!("there is something to read") };
    assert!(alarm > monotonic());
    rustix::io::write(&theirs, b"abc").expect("there is room");
    assert_eq!(turn(Some(receive(&ours)), 2 * hour), (1, Some(alarm)), "it is in time for what is due later");
    for _ in 0..2 {
        assert!((0..9).any(|_| turn(None, moment) == (0, None)), "it is set again for what is due sooner");
    }
}

#[test]
fn a_reused_descriptor_number_is_registered_again() {
    // A high number, which no other test is given meanwhile.
    const NUMBER: RawFd = 700;
    let mut epoll = epoll();
    for round in 0..3u64 {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let ours = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(&ours, NUMBER).expect("there is room"));
        assert_eq!(ours.as_raw_fd(), NUMBER);
        epoll.opened(ours.as_raw_fd());
        submit(&mut epoll, receive(&ours), round);
        assert_eq!(turn(&mut epoll), []);
        rustix::io::write(&theirs, b"a").expect("there is room");
        assert_eq!(turn(&mut epoll), [(round, 1)]);
        epoll.return_received(RECEIVE_BUFFERS - 1);
    }
}

#[test]
fn a_closed_socket_held_by_another_process_does_not_end_the_next_with_its_number() {
    const NUMBER: RawFd = 701;
    let number =
        |socket: &UnixStream| UnixStream::from(rustix::io::fcntl_dupfd_cloexec(socket, NUMBER).expect("there is room"));
    let mut epoll = epoll();
    let watch = Submission::Watch { descriptor: NUMBER, half_closed: false };
    // A copy that a process being spawned holds until it has started.
    let (held, gone) = UnixStream::pair().expect("a pair");
    let first = number(&held);
    assert_eq!(first.as_raw_fd(), NUMBER);
    epoll.opened(NUMBER);
    submit(&mut epoll, watch, 1);
    assert_eq!(turn(&mut epoll), []);
    drop(gone);
    assert!(matches!(turn(&mut epoll)[..], [(1, _)]));
    drop(first);
    let (ours, _theirs) = UnixStream::pair().expect("a pair");
    let second = number(&ours);
    assert_eq!(second.as_raw_fd(), NUMBER);
    epoll.opened(NUMBER);
    submit(&mut epoll, watch, 2);
    assert_eq!((turn(&mut epoll), turn(&mut epoll)), (vec![], vec![]), "nothing has happened to the second one");
}

#[test]
fn the_read_write_and_watch_of_a_socket_each_wake_for_their_own_event() {
    let mut epoll = epoll();
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let full = vec![0u8; 1 << 20];
    let send = Submission::Send {
        socket: ours.as_raw_fd(),
        from: full.as_ptr(),
        bytes: full.len() as u32,
        now_or_never: false,
        more: false,
    };
    submit(&mut epoll, send, 1);
    let [(1, sent)] = turn(&mut epoll)[..] else { panic!("it is tried at once") };
    assert!(sent > 0 && sent < full.len() as i32);
    submit(&mut epoll, send, 1);
    submit(&mut epoll, receive(&ours), 2);
    submit(&mut epoll, Submission::Watch { descriptor: ours.as_raw_fd(), half_closed: false }, 3);
    assert_eq!(turn(&mut epoll), []);
    rustix::io::write(&theirs, b"abc").expect("there is room");
    assert_eq!(turn(&mut epoll), [(2, 3)]);
    assert_eq!(turn(&mut epoll), []);
    let mut taken = vec![0u8; 1 << 20];
    while rustix::net::recv(&theirs, &mut taken[..], rustix::net::RecvFlags::DONTWAIT).is_ok() {}
    let [(1, more)] = turn(&mut epoll)[..] else { panic!("there is room again") };
    assert!(more > 0);
    drop(theirs);
    let [(3, events)] = turn(&mut epoll)[..] else { panic!("the peer has disconnected") };
    assert_ne!(events & libc::EPOLLHUP, 0);
}

#[test]
fn a_half_close_is_reported_once() {
    let mut epoll = epoll();
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let watch = |half_closed| Submission::Watch { descriptor: ours.as_raw_fd(), half_closed };
    submit(&mut epoll, watch(false), 1);
    assert_eq!(turn(&mut epoll), []);
    // It has data first, which is not read for now.
    rustix::io::write(&theirs, b"a").expect("there is room");
    theirs.shutdown(std::net::Shutdown::Write).expect("a socket");
    let [(1, events)] = turn(&mut epoll)[..] else { panic!("one event comes") };
    assert!(crate::io::is_half_closed(events), "{events:#x}");
    submit(&mut epoll, watch(true), 2);
    assert_eq!((turn(&mut epoll), turn(&mut epoll)), (vec![], vec![]));
    drop(theirs);
    let [(2, events)] = turn(&mut epoll)[..] else { panic!("it has gone") };
    assert_ne!(events & libc::EPOLLHUP, 0);
}

#[test]
fn an_event_without_a_waiter_does_not_wake_the_loop_for_ever() {
    let mut epoll = epoll();
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    submit(&mut epoll, receive(&ours), 1);
    rustix::io::write(&theirs, b"a").expect("there is room");
    assert_eq!(turn(&mut epoll), [(1, 1)]);
    // More data arrives unread, and then the peer closes.
    rustix::io::write(&theirs, b"b").expect("there is room");
    assert_eq!(turn(&mut epoll), []);
    assert_eq!(epoll.waiting[ours.as_raw_fd() as usize].registered, None);
    submit(&mut epoll, Submission::Watch { descriptor: ours.as_raw_fd(), half_closed: false }, 2);
    assert_eq!(turn(&mut epoll), []);
    drop(theirs);
    assert!(matches!(turn(&mut epoll)[..], [(2, 1..)]));
    assert_eq!(turn(&mut epoll), []);
    submit(&mut epoll, receive(&ours), 3);
    assert_eq!(turn(&mut epoll), [(3, 1)], "what was left");
    submit(&mut epoll, receive(&ours), 4);
    assert_eq!(turn(&mut epoll), [(4, 0)], "and the end");
}

#[test]
fn a_cancelled_operation_completes_once_and_a_finished_one_is_not_cancelled() {
    let mut epoll = epoll();
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    submit(&mut epoll, receive(&ours), 5);
    assert_eq!(turn(&mut epoll), []);
    epoll.cancel(5, ours.as_raw_fd());
    assert_eq!(turn(&mut epoll), [(5, -libc::ECANCELED)]);
    epoll.cancel(5, ours.as_raw_fd());
    rustix::io::write(&theirs, b"a").expect("there is room");
    assert_eq!(turn(&mut epoll), []);
    submit(&mut epoll, receive(&ours), 6);
    epoll.cancel(6, ours.as_raw_fd());
    assert_eq!(turn(&mut epoll), [(6, -libc::ECANCELED)], "before it was looked at");
}

#[test]
fn a_shared_pipe_is_written_without_blocking_and_keeps_its_flags() {
    let mut epoll = epoll();
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let bytes = vec![7u8; 1 << 20];
    let write =
        Submission::Write { to: ours.as_raw_fd(), from: bytes.as_ptr(), bytes: bytes.len() as u32, registered: None };
    let mut written = 0;
    submit(&mut epoll, write, 1);
    while let [(1, result)] = turn(&mut epoll)[..] {
        assert!(result > 0, "{result}");
        written += result as usize;
        submit(&mut epoll, write, 1);
    }
    assert!(written >= PIECE);
    assert!(!fcntl_getfl(&ours).expect("it is open").contains(OFlags::NONBLOCK));
    rustix::io::read(&theirs, &mut vec![0u8; written]).expect("they are there");
    let [(1, 1..)] = turn(&mut epoll)[..] else { panic!("there is room again") };
}

#[test]
fn without_nowait_only_what_fits_is_written_and_what_is_available_read() {
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let mut bytes = [7u8; 3 * PIECE];
    let vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut written = 0;
    // SAFETY: the vector and its bytes are alive.
    while let result @ 1.. = unsafe { write_what_fits(ours.as_raw_fd(), &vector, 1) } {
        assert_eq!(result as usize, PIECE);
        written += PIECE;
    }
    assert!(written >= PIECE, "and then it is full");
    while written > 0 {
        // SAFETY: there is room for this many bytes.
        let result = unsafe { read_if_ready(theirs.as_raw_fd(), bytes.as_mut_ptr(), bytes.len()) };
        written -= usize::try_from(result).expect("there is something");
    }
    // SAFETY: the same.
    let result = unsafe { read_if_ready(theirs.as_raw_fd(), bytes.as_mut_ptr(), bytes.len()) };
    assert_eq!(result, -libc::EAGAIN);
}

#[test]
fn a_socket_that_stops_listening_ends_the_wait_for_connections() {
    let directory = tempfile::tempdir().expect("a directory");
    let listening = UnixListener::bind(directory.path().join("s")).expect("it can be bound");
    let mut epoll = epoll();
    submit(&mut epoll, Submission::AwaitConnection { socket: listening.as_raw_fd() }, 1);
    assert_eq!(turn(&mut epoll), []);
    rustix::net::shutdown(&listening, rustix::net::Shutdown::Both).expect("it listens");
    let [(1, events)] = turn(&mut epoll)[..] else { panic!("it listens no more") };
    assert_ne!(events & libc::EPOLLHUP, 0);
}

#[test]
fn a_file_is_read_and_written_although_epoll_refuses_it() {
    let file = tempfile::tempfile().expect("a file");
    let mut epoll = epoll();
    let fd = file.as_raw_fd();
    submit(&mut epoll, Submission::Write { to: fd, from: b"abc".as_ptr(), bytes: 3, registered: None }, 1);
    assert_eq!(turn(&mut epoll), [(1, 3)]);
    // SAFETY: the bytes live for ever.
    submit(&mut epoll, Submission::WriteAside { to: fd, from: b"def".as_ptr(), bytes: 3 }, 2);
    assert_eq!(wait(&mut epoll), [(2, 3)]);
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).expect("it is a file");
    let mut bytes = [0u8; 10];
    let into = bytes.as_mut_ptr();
    submit(&mut epoll, Submission::Read { from: fd, into, bytes: 10, registered: None, now_or_never: false }, 3);
    assert_eq!(wait(&mut epoll), [(3, 6)]);
    assert_eq!(&bytes[..6], b"abcdef");
    submit(&mut epoll, Submission::AwaitRoom { descriptor: fd, half_closed: false }, 4);
    assert_eq!(turn(&mut epoll), [(4, libc::EPOLLOUT)]);
}

#[test]
fn a_blocked_write_on_a_helper_thread_delays_nothing_else() {
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let bytes = vec![7u8; 1 << 20];
    let mut epoll = epoll();
    let aside = Submission::WriteAside { to: ours.as_raw_fd(), from: bytes.as_ptr(), bytes: bytes.len() as u32 };
    submit(&mut epoll, aside, 1);
    let (one, other) = UnixStream::pair().expect("a pair");
    submit(&mut epoll, receive(&one), 2);
    rustix::io::write(&other, b"a").expect("there is room");
    assert_eq!(wait(&mut epoll), [(2, 1)]);
    let mut taken = 0;
    let mut block = vec![0u8; 1 << 16];
    while taken < bytes.len() {
        taken += rustix::io::read(&theirs, &mut block).expect("they come");
    }
    assert_eq!(wait(&mut epoll), [(1, bytes.len() as i32)]);
}

#[test]
fn a_nonblocking_read_reports_that_there_is_nothing() {
    let (ours, _theirs) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let mut epoll = epoll();
    let mut byte = [0u8; 1];
    let into = byte.as_mut_ptr();
    let from = ours.as_raw_fd();
    submit(&mut epoll, Submission::Read { from, into, bytes: 1, registered: None, now_or_never: true }, 1);
    assert_eq!(turn(&mut epoll), [(1, -libc::EAGAIN)]);
}

#[test]
fn a_receive_without_a_free_buffer_says_so() {
    let mut epoll = epoll();
    let pairs: Vec<_> = (0..=RECEIVE_BUFFERS).map(|_| UnixStream::pair().expect("a pair")).collect();
    for (number, (ours, theirs)) in pairs.iter().enumerate() {
        rustix::io::write(theirs, b"a").expect("there is room");
        submit(&mut epoll, receive(ours), number as u64);
    }
    let results = turn(&mut epoll);
    assert_eq!(results.iter().filter(|(_, result)| *result == 1).count(), usize::from(RECEIVE_BUFFERS));
    assert_eq!(results.iter().filter(|(_, result)| *result == -libc::ENOBUFS).count(), 1);
}
