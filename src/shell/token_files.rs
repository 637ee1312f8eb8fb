//! Rereads token files at run time. Each has a thread that checks it every second: a network disk may hang, which must
//! block neither the loop nor the other files.

use std::fs::metadata;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::signals::Bell;
use crate::channel::{Receiver, Sender, channel};
use crate::io::leave_signals_to_the_loop;
use crate::small_file;

/// Interval of checks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// These threads need little stack.
const STACK: usize = 64 * 1024;

/// The owner of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileOwner {
    /// The listener with this index, for its clients' tokens.
    Listener(usize),
    /// The admin listener, for the operators' token.
    Admin,
}

/// A result: the list of files it belongs to, the owner, and the contents.
pub(super) type Read = (u64, FileOwner, io::Result<Vec<u8>>);

/// See the module documentation.
pub(super) struct Rereading {
    read: Receiver<Read>,
    /// Readable when a file was reread.
    pub bell: Bell,
    tell: Sender<Read>,
    ring: UnixStream,
    /// The number of the list of files. Its threads end when it is dropped.
    watched: Arc<u64>,
}

impl Rereading {
    /// Starts to watch these files.
    ///
    /// # Errors
    /// A thread or a socket cannot be created.
    pub(super) fn begin(files: impl IntoIterator<Item = (FileOwner, PathBuf)>) -> io::Result<Self> {
        let (tell, read) = channel();
        let (bell, ring) = UnixStream::pair()?;
        ring.set_nonblocking(true)?;
        let mut rereading = Self { read, bell: Bell::new(bell.into()), tell, ring, watched: Arc::new(0) };
        rereading.watch(files)?;
        Ok(rereading)
    }

    /// Replaces the watched files.
    ///
    /// # Errors
    /// A thread cannot be created.
    pub(super) fn watch(&mut self, files: impl IntoIterator<Item = (FileOwner, PathBuf)>) -> io::Result<()> {
        self.watched = Arc::new(*self.watched + 1);
        for (owner, path) in files {
            let (tell, ring, watched) = (self.tell.clone(), self.ring.try_clone()?, Arc::downgrade(&self.watched));
            let thread = std::thread::Builder::new().name("tokens".to_owned()).stack_size(STACK);
            thread.spawn(move || watch(owner, File::at(path), &watched, &tell, &ring))?;
        }
        Ok(())
    }

    /// Contents of files that are still watched: earlier ones may have been for other paths.
    pub(super) fn news(&self) -> Vec<(FileOwner, io::Result<Vec<u8>>)> {
        let of_these = |(list, owner, read)| (list == *self.watched).then_some((owner, read));
        self.read.try_iter().filter_map(of_these).collect()
    }
}

/// Rereads a file whenever it has changed, until it is no longer watched.
fn watch(owner: FileOwner, mut file: File, watched: &Weak<u64>, tell: &Sender<Read>, mut ring: &UnixStream) {
    leave_signals_to_the_loop();
    while let Some(list) = watched.upgrade().map(|list| *list) {
        if let Some(read) = file.look() {
            if tell.send((list, owner, read)).is_err() {
                return;
            }
            // A full socket is readable already.
            let _ = ring.write(&[0]);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The identity and times of a file: rewriting it changes one of them.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Self {
        let Ok(metadata) = metadata(path) else { return Self::default() };
        Self { inode: metadata.ino(), length: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) }
    }
}

/// A watched file.
struct File {
    path: PathBuf,
    /// At the last check.
    seen: Option<Stamp>,
    /// When it was last read.
    read: Option<Stamp>,
}

impl File {
    fn at(path: PathBuf) -> Self {
        Self { path, seen: None, read: None }
    }

    /// Reads it if it differs from what was read, and is unchanged since the last check: it may be only half written
    /// before.
    fn look(&mut self) -> Option<io::Result<Vec<u8>>> {
        let stamp = Some(Stamp::of(&self.path));
        let is_settled = std::mem::replace(&mut self.seen, stamp) == stamp;
        if !is_settled || self.read == stamp {
            return None;
        }
        self.read = stamp;
        Some(small_file::read(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_read_once_it_is_stable() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tokens");
        let mut file = File::at(path.clone());
        let text = |read: Option<io::Result<Vec<u8>>>| read.map(|read| read.ok());
        std::fs::write(&path, "one").expect("a file");
        assert_eq!(text(file.look()), None, "it may be half written");
        assert_eq!(text(file.look()), Some(Some(b"one".to_vec())));
        assert_eq!(text(file.look()), None, "it is the same");
        std::fs::write(&path, "").expect("a file");
        assert_eq!(text(file.look()), None, "it is half written");
        std::fs::write(&path, "and more").expect("a file");
        assert_eq!(text(file.look()), None);
        assert_eq!(text(file.look()), Some(Some(b"and more".to_vec())));
        std::fs::remove_file(&path).expect("it is there");
        assert_eq!((text(file.look()), text(file.look()), text(file.look())), (None, Some(None), None));
    }
}
