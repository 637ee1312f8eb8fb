//! Signals become bytes in pipes that the backend reads: one pipe for children, one for shutdown requests, one for
//! SIGHUP. The handlers do nothing else.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Receiver;

use rustix::fs::{Mode, OFlags};
use signal_hook::consts::{SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use signal_hook::low_level::pipe;

use super::loop_handle::{LoopHandle, LoopMessage};
use super::operation::Operation;
use crate::io::{Io, Submission};

/// The reading ends.
pub(super) struct Signals {
    /// A byte for each SIGCHLD, each started worker and other message of a thread, or fewer when it is full: then there is
    /// something to check anyway.
    pub children: SignalPipe,
    /// Messages of threads, and the handle by which they send them.
    pub messages: Receiver<LoopMessage>,
    pub loop_handle: LoopHandle,
    /// A byte for each SIGTERM and SIGINT.
    pub stop: SignalPipe,
    /// A byte for each SIGHUP, unless that was ignored at start.
    pub hangup: Option<SignalPipe>,
    /// SIGUSR1 was received: the log's file is to be opened again. `children` becomes readable.
    pub reopen: Arc<AtomicBool>,
    /// There is a controlling terminal, whose hang-up also sends SIGHUP.
    pub has_terminal: bool,
}

impl Signals {
    /// Whether the controlling terminal has hung up (tty(4)).
    pub(super) fn terminal_has_gone(&self) -> bool {
        self.has_terminal && !has_terminal()
    }
}

fn has_terminal() -> bool {
    rustix::fs::open("/dev/tty", OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

/// A pipe that becomes readable on an event; the contents of its bytes do not matter.
pub(super) struct SignalPipe {
    pub pipe: OwnedFd,
    /// The buffer for its bytes, which lives until the process ends.
    bytes: &'static mut [u8; 64],
}

impl SignalPipe {
    pub(super) fn new(pipe: OwnedFd) -> Self {
        Self { pipe, bytes: Box::leak(Box::new([0; 64])) }
    }

    /// Submits a read of the next bytes.
    pub(super) fn arm(&mut self, io: &mut impl Io, operation: Operation) {
        let (from, into, bytes) = (self.pipe.as_raw_fd(), self.bytes.as_mut_ptr(), self.bytes.len() as u32);
        let read = Submission::Read { from, into, bytes, registered: None, now_or_never: false };
        // SAFETY: the bytes live as long as the process, and the pipe as long as the reactor.
        unsafe { io.submit(read, operation.token(0)) };
    }
}

/// Resets inherited signal state, so that neither we nor our workers run with it, and installs the handlers.
///
/// A blocked SIGTERM or an ignored SIGCHLD survives exec: a daemon started by a careless parent could not be stopped,
/// or would never see a worker die.
pub(super) fn install() -> io::Result<Signals> {
    let hangup_ignored = is_ignored(SIGHUP);
    for signal in 1..=64 {
        // SIGPIPE stays ignored: a broken pipe is an error to handle.
        if signal != libc::SIGPIPE && is_ignored(signal) {
            // SAFETY: resetting a disposition touches no memory of ours.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
    // SAFETY: the set is initialized by sigemptyset and lives during the calls.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
    if hangup_ignored {
        // Started by nohup: keep ignoring SIGHUP with a handler, which workers do not inherit. SAFETY: the handler does
        // nothing.
        unsafe { signal_hook::low_level::register(SIGHUP, || ())? };
    }
    // By default they would kill the daemon without draining, and log rotation or monitoring may send them.
    for stray in [SIGUSR2, SIGALRM] {
        // SAFETY: the handler does nothing; workers do not inherit it.
        unsafe { signal_hook::low_level::register(stray, || ())? };
    }
    // A file at its limit (RLIMIT_FSIZE) is an error to handle, too. SAFETY: setting a disposition touches no memory of
    // ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let (children, child_writer) = UnixStream::pair()?;
    let (stop, stop_writer) = UnixStream::pair()?;
    let (loop_handle, messages) = LoopHandle::new(child_writer.try_clone()?.into());
    let reopen = Arc::new(AtomicBool::new(false));
    flag::register(SIGUSR1, Arc::clone(&reopen))?;
    pipe::register(SIGUSR1, child_writer.try_clone()?)?;
    pipe::register(SIGCHLD, child_writer)?;
    for signal in [SIGTERM, SIGINT] {
        pipe::register(signal, stop_writer.try_clone()?)?;
    }
    let mut hangup = None;
    if !hangup_ignored {
        let (reader, writer) = UnixStream::pair()?;
        pipe::register(SIGHUP, writer)?;
        hangup = Some(SignalPipe::new(reader.into()));
    }
    let [children, stop] = [children, stop].map(|pipe| SignalPipe::new(pipe.into()));
    Ok(Signals { children, messages, loop_handle, stop, hangup, reopen, has_terminal: has_terminal() })
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: the structure is plain data that sigaction fills; a null second argument changes nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}
