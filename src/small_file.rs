//! Reads small files written by others, up to a limit and without blocking; and takes what one that is read again has now.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};

/// Maximum size of a file in bytes: some ten thousand tokens.
pub const LARGEST: u64 = 1 << 20;

/// All bytes of a regular file. A FIFO would block until it has a writer, and a device may have no end.
///
/// # Errors
/// It cannot be opened or read, is not a regular file, or is larger than [`LARGEST`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    content(File::from(open(path, OPENED, Mode::empty())?), LARGEST)?
        .map_err(|why| io::Error::other(format!("it {why}")))
}

/// How a file is opened that may turn out to be none.
pub(crate) const OPENED: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// All bytes of a file that was opened so, or what is wrong with it: it is not regular, or has more than `largest` bytes.
///
/// # Errors
/// It cannot be read.
pub(crate) fn content(file: File, largest: u64) -> io::Result<Result<Vec<u8>, String>> {
    let status = fstat(&file)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Ok(Err("is no regular file".to_owned()));
    }
    let length = u64::try_from(status.st_size).unwrap_or(0).min(largest);
    // With room for all of it no part of a secret is left where it was before.
    let mut bytes = Vec::with_capacity(length as usize + 2);
    // The reported length of a file may be wrong.
    file.take(largest + 1).read_to_end(&mut bytes)?;
    let is_too_large = bytes.len() as u64 > largest;
    Ok(if is_too_large { Err(format!("is larger than {largest} bytes")) } else { Ok(bytes) })
}

/// Whether every user of the machine can read a file.
pub(crate) fn is_open_to_all(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.mode() & 0o004 != 0)
}

/// Whether others than the owner of a file or folder can write it.
pub(crate) fn is_writable_to_others(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.mode() & 0o022 != 0)
}

/// Whether an error is a shortage of descriptors, processes or memory, which says nothing about what was opened.
pub(crate) fn is_short(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::EAGAIN | libc::ENOMEM | libc::ENOBUFS))
}

/// Takes what a file has now: parsed, it replaces `last`. If it is invalid that is logged, and the last content stays
/// valid. True if it has changed. `what` names the file.
pub(crate) fn take<T: PartialEq>(
    last: &mut T,
    what: &str,
    content: io::Result<Vec<u8>>,
    parse: impl FnOnce(&[u8]) -> Result<T, String>,
) -> bool {
    match content.map_err(|error| error.to_string()).and_then(|bytes| parse(&bytes)) {
        Ok(now) => {
            let has_changed = *last != now;
            if has_changed {
                tracing::info!("{what} was read again");
                *last = now;
            }
            has_changed
        }
        Err(why) => {
            tracing::error!("{what} cannot be used, and its last content stays valid: {why}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Tokens;

    #[test]
    fn a_fifo_or_a_device_is_refused_at_once_and_a_large_file_is_read_to_the_limit_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("small"), "secret").expect("a file");
        assert_eq!(read(&path("small")).expect("it is regular"), b"secret");
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
        for irregular in [path("fifo"), "/dev/zero".into(), "/dev/null".into(), directory.path().to_owned()] {
            let error = read(&irregular).expect_err("it is none").to_string();
            assert_eq!(error, "it is no regular file", "{}", irregular.display());
        }
        File::create(path("large")).and_then(|file| file.set_len(LARGEST)).expect("a file with a hole");
        assert_eq!(read(&path("large")).expect("it just fits").len() as u64, LARGEST);
        File::create(path("large")).and_then(|file| file.set_len(1 << 40)).expect("a file with a hole");
        assert_eq!(read(&path("large")).expect_err("it is too large").to_string(), "it is larger than 1048576 bytes");
    }

    #[test]
    fn a_reread_token_file_is_used_if_it_is_valid() {
        let parse = |text: &[u8]| Tokens::parse(str::from_utf8(text).expect("it is text"), &["a"]);
        let mut tokens = parse(b"alice:0123456789abcdef\n").expect("it is right");
        let mut take = |content: io::Result<Vec<u8>>| {
            let has_changed = take(&mut tokens, "the file", content, parse);
            (has_changed, tokens.find("0123456789abcdeg").cloned())
        };
        let text = |text: &str| Ok(text.into());
        assert_eq!(take(text("alice:0123456789abcdef\n")), (false, None), "nothing has changed");
        let (has_changed, bob) = take(text("bob:0123456789abcdeg a\n"));
        assert!(has_changed && bob.is_some());
        let invalid = take(text("bob:0123456789abcdeg b\n"));
        assert_eq!(invalid, (false, bob.clone()), "there is no pool b, so the last one stays");
        assert_eq!(take(Err(io::ErrorKind::NotFound.into())), (false, bob.clone()), "so it does without a file");
        let other = take(text("bob:0123456789abcdeg\n"));
        assert!(other.0 && other.1 != bob, "he may use other pools now");
        assert_eq!(take(text("")), (true, None), "an empty one lets nobody in");
    }
}
