//! Where a configuration is read from: a file, a descriptor or memory.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};

use super::document::{self, Problem};
use super::{Config, ConfigError, LogFormat, MAX_CONFIG_BYTES, command, read};

impl Config {
    /// Reads a configuration file, which may be a pipe.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let origin = path.display().to_string();
        let read = || -> Result<Vec<u8>, String> {
            let explain = |error: io::Error| match error.kind() {
                io::ErrorKind::NotFound => {
                    "the file does not exist; stdio_bus init --output FILE writes one, and without \
                                            --config two built-in echo workers run"
                        .to_owned()
                }
                _ => command::reason(&error),
            };
            if fs::metadata(path).map_err(explain)?.is_dir() {
                return Err("is a directory; name the file in it".to_owned());
            }
            read_all(File::open(path).map_err(explain)?)
        };
        match read() {
            Ok(bytes) => Self::from_bytes(&bytes, &origin),
            Err(message) => Err(ConfigError::Unusable { origin, message }),
        }
    }

    /// Reads a configuration from a descriptor that the parent process passed, up to its end, and closes it.
    ///
    /// Must be called before anything else is opened, so that the number cannot be a descriptor of our own.
    /// # Safety
    /// Nothing else in this process owns or uses the descriptor.
    pub unsafe fn from_fd(number: RawFd) -> Result<Self, ConfigError> {
        let origin = if number == 0 { "stdin".to_owned() } else { format!("fd {number}") };
        let unreadable = |message: String| ConfigError::Unusable { origin: origin.clone(), message };
        if number < 0 || number == 1 || number == 2 {
            return Err(unreadable("cannot carry a configuration; pass 3 or above".to_owned()));
        }
        // SAFETY: F_GETFD takes no pointer and is defined for every number; it fails with EBADF for one that is closed.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
            return Err(unreadable(
                "is not open; the parent process has to pass it on (pass_fds in Python, stdio in Node)".to_owned(),
            ));
        }
        // SAFETY: the descriptor is open, and the caller guarantees that nothing else owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        let bytes = read_all(File::from(descriptor)).map_err(unreadable)?;
        Self::from_bytes(&bytes, &origin)
    }

    /// Reads a configuration from memory; `origin` is its name in messages.
    pub fn from_bytes(bytes: &[u8], origin: &str) -> Result<Self, ConfigError> {
        // Some editors begin UTF-8 with a byte order mark.
        let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
        if bytes.trim_ascii().is_empty() {
            let message = "is empty; the least is {\"pools\":[{\"id\":\"echo\",\"command\":\"cat\",\"instances\":1}]}";
            return Err(ConfigError::Unusable { origin: origin.to_owned(), message: message.to_owned() });
        }
        let invalid =
            |(problems, omitted, format)| ConfigError::Invalid { origin: origin.to_owned(), problems, omitted, format };
        let text = str::from_utf8(bytes).map_err(|error| {
            let valid = str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default();
            let (line, column) = document::place(valid);
            let hint = Some("save the file as UTF-8".to_owned());
            let message = "is not UTF-8".to_owned();
            invalid((vec![Problem { line, column, path: String::new(), message, hint }], 0, LogFormat::default()))
        })?;
        read::config(text, origin).map_err(invalid)
    }
}

/// Reads to the end of the file, which may be a non-blocking pipe.
fn read_all(mut file: File) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    loop {
        let room = (MAX_CONFIG_BYTES + 1 - bytes.len()) as u64;
        match file.by_ref().take(room).read_to_end(&mut bytes) {
            Ok(_) if bytes.len() > MAX_CONFIG_BYTES => {
                return Err(format!("is larger than {MAX_CONFIG_BYTES} bytes; is it really a configuration?"));
            }
            Ok(_) => return Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match poll(&mut [PollFd::new(&file, PollFlags::IN)], None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(errno) => return Err(command::reason(&errno.into())),
                }
            }
            Err(error) => return Err(command::reason(&error)),
        }
    }
}
