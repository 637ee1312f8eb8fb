//! Sessions on disk: one file a session, one line a turn, only ever appended to.
//!
//! `{dir}/{sessionId}.jsonl` begins with a line that names the session; every turn that ended well adds one line in
//! one write, which is forced to the disk before the prompt is answered. The invariant: whatever is torn by a crash is
//! the last line, which reading leaves out and the next turn overwrites. Writers take turns by a lock on the file, and
//! a process that finds the file longer than it knows reads it again, so several workers can serve one directory.
//!
//! These functions block; the shell calls them on a thread of their own.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::usage::Usage;

/// What the first line says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Version of the format, 1.
    #[serde(rename = "openai-agent")]
    pub version: u32,
    /// The session.
    pub session_id: String,
    /// Its working directory.
    pub cwd: String,
    /// Its first model.
    pub model: String,
}

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    user: &'a RawValue,
    #[serde(borrow)]
    assistant: &'a RawValue,
    model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
}

/// A turn to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The user's message, as JSON.
    pub user: String,
    /// The answer, as JSON.
    pub assistant: String,
    /// The model that gave it.
    pub model: String,
    /// The session's counts with this turn.
    pub usage: Option<Usage>,
    /// The session's title.
    pub title: Option<String>,
}

/// A session as its file tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The first line.
    pub header: Header,
    /// The turns, oldest first.
    pub entries: Vec<Entry>,
    /// Bytes of the file that hold whole lines.
    pub length: u64,
    /// When it was last written.
    pub updated: SystemTime,
}

/// A line of a list of sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The first line of its file.
    pub header: Header,
    /// First words of its first prompt.
    pub title: Option<String>,
    /// When it was last written.
    pub updated: SystemTime,
}

/// Where sessions are kept.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// Sessions kept in `dir`, which is made if it is not there (readable by its owner only).
    ///
    /// # Errors
    /// The directory cannot be made or is none.
    pub fn open(dir: &Path) -> io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// The file of a session; nothing for a name that we would not have given, which so cannot leave the directory.
    fn path(&self, session_id: &str) -> Option<PathBuf> {
        let is_ours = !session_id.is_empty()
            && session_id.len() <= 128
            && session_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        is_ours.then(|| self.dir.join(format!("{session_id}.jsonl")))
    }

    /// Makes the file of a new session. It is not an error if it is there already.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(&self, header: &Header) -> io::Result<u64> {
        let path = self.path(&header.session_id).ok_or(io::ErrorKind::InvalidInput)?;
        let mut line = serde_json::to_vec(header)?;
        line.push(b'\n');
        let mut file = match OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(std::fs::metadata(&path)?.len()),
            Err(error) => return Err(error),
        };
        file.write_all(&line)?;
        file.sync_data()?;
        File::open(&self.dir)?.sync_all()?;
        Ok(line.len() as u64)
    }

    /// Adds a turn and gives the new length of the file. Nothing is added if the file is not `known` bytes long any
    /// more: another process has added to it, and the caller has to read it again.
    ///
    /// # Errors
    /// The file is gone or cannot be written.
    pub fn append(&self, session_id: &str, known: u64, entry: &Entry) -> io::Result<Option<u64>> {
        let path = self.path(session_id).ok_or(io::ErrorKind::NotFound)?;
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        let line = Line {
            user: serde_json::from_str(&entry.user)?,
            assistant: serde_json::from_str(&entry.assistant)?,
            model: entry.model.clone(),
            usage: entry.usage,
            title: entry.title.clone(),
        };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        let length = file.metadata()?.len();
        if length < known || (length > known && whole_lines(&mut file)? > known) {
            return Ok(None);
        }
        // What stands beyond is torn, by a crash or a full disk.
        file.set_len(known)?;
        file.seek(SeekFrom::Start(known))?;
        let written = file.write_all(&text).and_then(|()| file.sync_data());
        if let Err(error) = written {
            // Best effort: were the torn line to stay, reading would leave it out.
            let _ = file.set_len(known);
            return Err(error);
        }
        Ok(Some(known + text.len() as u64))
    }

    /// The bytes in the file of a session; nothing if it has none.
    pub fn length(&self, session_id: &str) -> Option<u64> {
        Some(std::fs::metadata(self.path(session_id)?).ok()?.len())
    }

    /// Reads a session; nothing if there is none.
    ///
    /// # Errors
    /// The file cannot be read or its first line is not ours.
    pub fn load(&self, session_id: &str) -> io::Result<Option<Stored>> {
        let Some(path) = self.path(session_id) else { return Ok(None) };
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        rustix::fs::flock(&file, FlockOperation::LockShared)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let updated = file.metadata()?.modified()?;
        let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        let first = lines.next().ok_or_else(|| io::Error::other("the file has no first line"))?;
        let header: Header = serde_json::from_slice(first)?;
        if header.version != 1 || header.session_id != session_id {
            return Err(io::Error::other("the file is not one of this session, or of a newer version"));
        }
        let mut length = first.len() as u64;
        let mut entries = Vec::new();
        for line in lines {
            let Ok(turn) = serde_json::from_slice::<Line<'_>>(line) else { break };
            length += line.len() as u64;
            entries.push(Entry {
                user: turn.user.get().to_owned(),
                assistant: turn.assistant.get().to_owned(),
                model: turn.model,
                usage: turn.usage,
                title: turn.title,
            });
        }
        Ok(Some(Stored { header, entries, length, updated }))
    }

    /// All sessions of the directory, the last written first. A file that is not ours is passed over.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> io::Result<Vec<Listed>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "jsonl") {
                continue;
            }
            if let Ok(listed) = list_one(&path) {
                found.push(listed);
            }
        }
        found.sort_by(|left, right| {
            let by_time = right.updated.cmp(&left.updated);
            by_time.then_with(|| left.header.session_id.cmp(&right.header.session_id))
        });
        Ok(found)
    }

    /// Removes a session's file. It is not an error if there is none.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn delete(&self, session_id: &str) -> io::Result<()> {
        match self.path(session_id).map(std::fs::remove_file) {
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn list_one(path: &Path) -> io::Result<Listed> {
    use std::io::BufRead;
    let mut reader = io::BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    let header = serde_json::from_slice(&line)?;
    line.clear();
    reader.read_until(b'\n', &mut line)?;
    let title = serde_json::from_slice::<Line<'_>>(&line).ok().and_then(|turn| turn.title);
    let updated = reader.get_ref().metadata()?.modified()?;
    Ok(Listed { header, title, updated })
}

/// Bytes of the file up to the end of the last line that can be read.
fn whole_lines(file: &mut File) -> io::Result<u64> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    let mut length = 0;
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if !line.ends_with(b"\n") || (index > 0 && serde_json::from_slice::<Line<'_>>(line).is_err()) {
            break;
        }
        length += line.len() as u64;
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(session_id: &str) -> Header {
        Header { version: 1, session_id: session_id.into(), cwd: "/w".into(), model: "m".into() }
    }

    fn entry(text: &str) -> Entry {
        let json = |role: &str| serde_json::json!({"role": role, "content": text}).to_string();
        let (user, assistant) = (json("user"), json("assistant"));
        Entry { user, assistant, model: "m".into(), usage: None, title: Some(text.into()) }
    }

    #[test]
    fn what_is_kept_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("a/b")).unwrap();
        let mut known = store.create(&header("s")).unwrap();
        for text in ["one", "two\nlines", "\"quotes\""] {
            known = store.append("s", known, &entry(text)).unwrap().unwrap();
        }
        let stored = store.load("s").unwrap().unwrap();
        assert_eq!((stored.length, stored.entries.len(), stored.header.cwd.as_str()), (known, 3, "/w"));
        assert_eq!(stored.entries[1], entry("two\nlines"));
        assert_eq!(store.list().unwrap()[0].title.as_deref(), Some("one"));
        store.delete("s").unwrap();
        store.delete("s").unwrap();
        assert_eq!(store.load("s").unwrap(), None);
    }

    #[test]
    fn another_process_that_added_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let known = store.create(&header("s")).unwrap();
        store.append("s", known, &entry("theirs")).unwrap().unwrap();
        assert_eq!(store.append("s", known, &entry("ours")).unwrap(), None);
        assert_eq!(store.load("s").unwrap().unwrap().entries.len(), 1);
    }

    #[test]
    fn names_cannot_leave_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        for name in ["", "..", "../x", "a/b", "a.b", "a\0b", "ä"] {
            assert_eq!(store.load(name).unwrap(), None, "{name:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_crash_loses_at_most_the_last_turn(turns in 1usize..5, torn in any::<prop::sample::Index>()) {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(dir.path()).unwrap();
            let mut lengths = vec![store.create(&header("s")).unwrap()];
            for turn in 0..turns {
                let known = *lengths.last().unwrap();
                lengths.push(store.append("s", known, &entry(&turn.to_string())).unwrap().unwrap());
            }
            // The last write got to the disk only in part.
            let (before, after) = (lengths[turns - 1], lengths[turns]);
            let cut = before + torn.index((after - before) as usize) as u64;
            OpenOptions::new().write(true).open(dir.path().join("s.jsonl")).unwrap().set_len(cut).unwrap();
            let stored = store.load("s").unwrap().unwrap();
            prop_assert_eq!((stored.entries.len(), stored.length), (turns - 1, before));
            store.append("s", stored.length, &entry("next")).unwrap().unwrap();
            let stored = store.load("s").unwrap().unwrap();
            prop_assert_eq!(stored.entries.last().cloned(), Some(entry("next")));
            prop_assert_eq!(stored.entries.len(), turns);
        }
    }
}
