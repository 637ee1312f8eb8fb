//! Rereads token files at run time. Each has a thread that checks it every second: a network disk may hang, which must
//! block neither the loop nor the other files.

use std::fs::metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::bus::port::ListenerId;
use crate::config::{Config, Listener};
use crate::shell::loop_handle::{FileOwner, LoopHandle, LoopMessage};
use crate::small_file;

/// Interval of checks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The token files that are reread at run time.
fn files(config: &Config) -> Vec<(FileOwner, PathBuf)> {
    let tokens_of = |(at, listener): (usize, &Listener)| {
        let path = listener.web.as_ref().and_then(|web| web.tokens_file.clone())?;
        Some((FileOwner::Listener(ListenerId::at(at)), path))
    };
    let of_admin =
        config.admin.as_ref().and_then(|admin| admin.token_file.clone()).map(|path| (FileOwner::Admin, path));
    config.listeners.iter().enumerate().filter_map(tokens_of).chain(of_admin).collect()
}

#[derive(Default)]
pub(in crate::shell) struct TokenFiles {
    /// The number of the list of files. Its threads end when it is dropped.
    watched: Arc<u64>,
}

impl TokenFiles {
    /// Whether the list of files has this number: what is reported of earlier ones may be of other paths.
    pub(super) fn are_those_of(&self, list: u64) -> bool {
        *self.watched == list
    }

    /// Watches the files of this configuration from now on.
    ///
    /// # Errors
    /// A thread cannot be created.
    pub(in crate::shell) fn watch(&mut self, config: &Config, loop_handle: &LoopHandle) -> io::Result<()> {
        self.watched = Arc::new(*self.watched + 1);
        files(config).into_iter().try_for_each(|(owner, path)| {
            let watched = Arc::downgrade(&self.watched);
            loop_handle.spawn("tokens", move |loop_handle| watch(owner, WatchedFile::at(path), &watched, loop_handle))
        })
    }
}

/// Rereads a file whenever it has changed, until it is no longer watched.
fn watch(owner: FileOwner, mut file: WatchedFile, watched: &Weak<u64>, loop_handle: &LoopHandle) {
    while let Some(list) = watched.upgrade().map(|list| *list) {
        if let Some(read) = file.look()
            && !loop_handle.send(LoopMessage::Tokens(list, owner, read))
        {
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The inode, the length and the time of the last change of a file, if it is there: rewriting it changes one of them.
type Stamp = Option<(u64, u64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    let file = metadata(path).ok()?;
    Some((file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
}

/// A watched file.
struct WatchedFile {
    path: PathBuf,
    /// At the last check.
    seen: Option<Stamp>,
    /// When it was last read.
    read: Option<Stamp>,
}

impl WatchedFile {
    fn at(path: PathBuf) -> Self {
        Self { path, seen: None, read: None }
    }

    /// Reads it if it differs from what was read, and is unchanged since the last check: it may be only half written
    /// before.
    fn look(&mut self) -> Option<io::Result<Vec<u8>>> {
        let stamp = Some(stamp(&self.path));
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
        let mut file = WatchedFile::at(path.clone());
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
