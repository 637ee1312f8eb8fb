//! Files of tokens that are read again while the daemon runs. Each has a thread that looks at it once a second: a disk of
//! the network may hang, and then it hangs neither the loop nor the other files.

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

/// How often it is looked whether a file has changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What such a thread needs is little.
const STACK: usize = 64 * 1024;

/// Whose file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The tokens of the clients of the listener with this index.
    Listener(usize),
    /// The token of those who operate the daemon.
    Admin,
}

/// What has been read, and for which list of files.
pub(super) type Read = (u64, Whose, io::Result<Vec<u8>>);

/// See the module documentation.
pub(super) struct Rereading {
    read: Receiver<Read>,
    /// Has a byte when something was read.
    pub bell: Bell,
    tell: Sender<Read>,
    ring: UnixStream,
    /// The number of the list of files. Its threads end when it goes.
    watched: Arc<u64>,
}

impl Rereading {
    /// Begins to look at these files.
    ///
    /// # Errors
    /// A thread or a socket cannot be made.
    pub(super) fn begin(files: impl IntoIterator<Item = (Whose, PathBuf)>) -> io::Result<Self> {
        let (tell, read) = channel();
        let (bell, ring) = UnixStream::pair()?;
        ring.set_nonblocking(true)?;
        let mut rereading = Self { read, bell: Bell::new(bell.into()), tell, ring, watched: Arc::new(0) };
        rereading.watch(files)?;
        Ok(rereading)
    }

    /// Looks at these files from now on, and at no others.
    ///
    /// # Errors
    /// A thread cannot be made.
    pub(super) fn watch(&mut self, files: impl IntoIterator<Item = (Whose, PathBuf)>) -> io::Result<()> {
        self.watched = Arc::new(*self.watched + 1);
        for (whose, path) in files {
            let (tell, ring, watched) = (self.tell.clone(), self.ring.try_clone()?, Arc::downgrade(&self.watched));
            let thread = std::thread::Builder::new().name("tokens".to_owned()).stack_size(STACK);
            thread.spawn(move || watch(whose, File::at(path), &watched, &tell, &ring))?;
        }
        Ok(())
    }

    /// What was read of the files that are looked at now: those of before may have stood elsewhere.
    pub(super) fn news(&self) -> Vec<(Whose, io::Result<Vec<u8>>)> {
        let of_these = |(list, whose, read)| (list == *self.watched).then_some((whose, read));
        self.read.try_iter().filter_map(of_these).collect()
    }
}

/// Reads a file whenever it has changed, until nobody wants it any more.
fn watch(whose: Whose, mut file: File, watched: &Weak<u64>, tell: &Sender<Read>, mut ring: &UnixStream) {
    leave_signals_to_the_loop();
    while let Some(list) = watched.upgrade().map(|list| *list) {
        if let Some(read) = file.look() {
            if tell.send((list, whose, read)).is_err() {
                return;
            }
            // A full one rings already.
            let _ = ring.write(&[0]);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What a file was when it was looked at: who writes it anew changes one of these.
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

/// A file that is looked at now and then.
struct File {
    path: PathBuf,
    /// As it was the last time.
    seen: Option<Stamp>,
    /// As it was when it was read.
    read: Option<Stamp>,
}

impl File {
    fn at(path: PathBuf) -> Self {
        Self { path, seen: None, read: None }
    }

    /// Reads it if it is another than it was when it was read, and the same as the last time: what somebody is just
    /// writing is half of it.
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
    fn a_file_that_has_changed_is_read_once_it_stays_as_it_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tokens");
        let mut file = File::at(path.clone());
        let text = |read: Option<io::Result<Vec<u8>>>| read.map(|read| read.ok());
        std::fs::write(&path, "one").expect("a file");
        assert_eq!(text(file.look()), None, "somebody may be writing it");
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
