//! The tokens of a listener, read again when their file changes.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::bus::port::Moment;
use crate::tokens::{Bearer, Tokens};

/// How often it is looked whether the file has changed, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Largest file in bytes: some ten thousand tokens.
const LARGEST: u64 = 1 << 20;

/// What a file was when it was read: who writes it anew changes one of these.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

/// See the top of the file.
pub(super) struct TokensFile {
    path: PathBuf,
    /// What the pools are called that a line may name.
    pools: Vec<String>,
    tokens: Tokens,
    stamp: Stamp,
    looked: Option<Moment>,
}

impl TokensFile {
    /// One that is still to be read.
    pub(super) fn new(path: PathBuf, pools: Vec<String>) -> Self {
        Self { path, pools, tokens: Tokens::default(), stamp: Stamp::default(), looked: None }
    }

    /// Whose token this is, by the file as it is now.
    pub(super) fn find(&mut self, now: Moment, token: &str) -> Option<&Bearer> {
        self.look(now);
        self.tokens.find(token)
    }

    /// Reads the file if it has changed. What is wrong with it is told, and what was read last stays good.
    pub(super) fn look(&mut self, now: Moment) {
        if self.looked.is_some_and(|looked| now.since(looked) < LOOK_EVERY) {
            return;
        }
        self.looked = Some(now);
        let path = self.path.display();
        let stamp = match std::fs::metadata(&self.path) {
            Ok(metadata) => Stamp {
                inode: metadata.ino(),
                length: metadata.len(),
                modified: (metadata.mtime(), metadata.mtime_nsec()),
            },
            Err(_) => Stamp::default(),
        };
        if stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        let pools: Vec<&str> = self.pools.iter().map(String::as_str).collect();
        let text = match stamp.length {
            LARGEST.. => Err(format!("it is larger than {LARGEST} bytes")),
            _ => std::fs::read_to_string(&self.path).map_err(|error| error.to_string()),
        };
        match text.and_then(|text| Tokens::parse(&text, &pools)) {
            Ok(tokens) => {
                if tokens.is_empty() {
                    tracing::warn!("the tokens file {path} has no token: nobody is let in");
                } else if !self.tokens.is_empty() {
                    tracing::info!("the tokens file {path} was read again");
                }
                self.tokens = tokens;
            }
            Err(why) => tracing::error!("the tokens file {path} cannot be used, and the last one stays good: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_is_read_again_and_a_wrong_one_is_not_used() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tokens");
        let write = |text: &str| {
            let new = directory.path().join("new");
            std::fs::write(&new, text).expect("a file");
            std::fs::rename(new, &path).expect("the same directory");
        };
        write("alice:0123456789abcdef\n");
        let mut tokens = TokensFile::new(path.clone(), vec!["a".to_owned()]);
        let later = |seconds: u64| Moment::default().after(Duration::from_secs(seconds));
        assert!(tokens.find(later(0), "0123456789abcdef").is_some());
        write("bob:0123456789abcdeg a\n");
        assert!(tokens.find(later(2), "0123456789abcdef").is_none(), "it is good no more");
        assert!(tokens.find(later(2), "0123456789abcdeg").is_some_and(|bearer| &*bearer.name == "bob"));
        write("bob:0123456789abcdeg b\n");
        assert!(tokens.find(later(4), "0123456789abcdeg").is_some(), "there is no pool b, so the last one stays");
        std::fs::remove_file(&path).expect("it is there");
        assert!(tokens.find(later(6), "0123456789abcdeg").is_some(), "so it does without a file");
        write("");
        assert!(tokens.find(later(8), "0123456789abcdeg").is_none(), "an empty one lets nobody in");
    }
}
