//! The log: lines on stderr, lossy and never blocking.
//!
//! A client that does not read our stderr must not be able to stop us: a line that does not fit at once is dropped
//! and counted, and the next line that fits says how many were. Lines are short enough to be written whole.

use super::config::Level;
use super::secrets::Secrets;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::cell::{Cell, RefCell};
use std::fmt::Arguments;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;
use stdio_bus_base::random::{Flags, fill};

/// Most bytes of a line; a pipe takes that many at once or not at all.
const LONGEST: usize = 2048;

thread_local! {
    static LEVEL: Cell<Level> = const { Cell::new(Level::Warn) };
    static DROPPED: Cell<u64> = const { Cell::new(0) };
    static SECRETS: RefCell<Option<Rc<Secrets>>> = const { RefCell::new(None) };
}

/// No line has one of these secrets in it from now on, whoever writes it.
pub fn hide(secrets: Rc<Secrets>) {
    SECRETS.set(Some(secrets));
}

/// Sets what is logged from now on.
pub fn set_level(level: Level) {
    LEVEL.set(level);
}

/// Writes a line if its level is wanted and stderr takes it at once.
pub fn log(level: Level, message: Arguments<'_>) {
    if level > LEVEL.get() {
        return;
    }
    let name = match level {
        Level::Off => return,
        Level::Error => "error",
        Level::Warn => "warning",
        Level::Info => "info",
        Level::Debug => "debug",
    };
    let dropped = DROPPED.get();
    let mut line = format!("openai-agent: {name}: {message}").replace(['\n', '\r'], " ");
    SECRETS.with_borrow(|secrets| {
        if let Some(secrets) = secrets {
            line = secrets.mask(&line);
        }
    });
    if line.len() > LONGEST {
        let cut = (0..=LONGEST).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
        line.truncate(cut);
        line.push('…');
    }
    if dropped > 0 {
        line.push_str(&format!(" ({dropped} lines before were lost)"));
    }
    line.push('\n');
    let stderr = std::io::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec::try_from(Duration::ZERO).ok();
    let fits = rustix::event::poll(&mut fds, now.as_ref()).is_ok_and(|ready| ready == 1)
        && fds[0].revents().contains(PollFlags::OUT);
    if fits && stderr.lock().write_all(line.as_bytes()).is_ok() {
        DROPPED.set(0);
    } else {
        DROPPED.set(dropped + 1);
    }
}

/// Logs a line at a level: `note!(Warn, "…")`.
macro_rules! note {
    ($level:ident, $($message:tt)*) => {
        $crate::log::log($crate::config::Level::$level, format_args!($($message)*))
    };
}
pub(crate) use note;

/// Random bytes from the kernel.
pub(super) fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    // It fails only where there is no such system call; then ids are merely unlikely to meet.
    if fill(&mut bytes, Flags::empty()).is_err() {
        let (low, high) = (RandomState::new().hash_one(1), RandomState::new().hash_one(2));
        bytes[..8].copy_from_slice(&low.to_be_bytes());
        bytes[8..].copy_from_slice(&high.to_be_bytes());
    }
    bytes
}
