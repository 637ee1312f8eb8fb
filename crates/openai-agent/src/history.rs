//! Sessions on disk: one file per session, one line per turn, append-only.
//!
//! `{dir}/{sessionId}.jsonl` begins with a line that names the session; every turn that ended well adds one line in one
//! write, which is synced to disk before the prompt is answered. The invariant: whatever a crash or a full disk tears
//! is the end of the file after its last line end, which readers ignore and the next turn overwrites. Nothing with a
//! line end is ever cut off: an unreadable line is skipped, and loses only its own turn. Writers take turns by a lock
//! on the file, so several workers can serve one directory.
//!
//! These functions block; the shell calls them on a thread of their own.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::chunk::Usage;

/// The content of the first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Version of the format, 1.
    #[serde(rename = "openai-agent")]
    pub version: u32,
    pub session_id: String,
    /// Its working directory.
    pub cwd: String,
    /// Its first model.
    pub model: String,
}

/// A turn to be kept, as stored in its line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The user's message, as JSON.
    #[serde(with = "message")]
    pub user: String,
    /// The answer, as JSON.
    #[serde(with = "message")]
    pub assistant: String,
    /// The model that answered.
    pub model: String,
    /// The session's token counts including this turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The session's title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

impl Entry {
    /// Reads a turn that can be sent: both messages have the form that endpoints accept.
    fn read(line: &[u8]) -> Option<Self> {
        let entry: Self = serde_json::from_slice(line).ok()?;
        (is_message(&entry.user, "user") && is_message(&entry.assistant, "assistant")).then_some(entry)
    }

    fn len(&self) -> usize {
        self.user.len() + self.assistant.len()
    }
}

/// Serializes a text that is JSON already, inside JSON.
mod message {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error};
    use serde_json::value::RawValue;

    pub(super) fn serialize<S: Serializer>(text: &str, out: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(text).map_err(S::Error::custom)?.serialize(out)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
        <&RawValue>::deserialize(from).map(|raw| raw.get().to_owned())
    }
}

fn is_message(json: &str, role: &str) -> bool {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        role: Cow<'a, str>,
        #[serde(borrow)]
        content: &'a RawValue,
    }
    let message = serde_json::from_str::<Message<'_>>(json);
    message.is_ok_and(|message| message.role == role && message.content.get().starts_with(['"', '[']))
}

/// A session as read from its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The first line.
    pub header: Header,
    /// The newest turns, oldest first.
    pub entries: Vec<Entry>,
    /// When it was last written.
    pub updated: SystemTime,
    /// What could not be read, for people.
    pub damage: Option<String>,
}

/// An entry of a list of sessions.
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
    /// Maximum number of bytes read of a session's turns; beyond it the oldest are dropped.
    most: usize,
}

impl Store {
    /// A store in `dir`, which is created if needed (readable by its owner only). At most `most` bytes of a session's
    /// turns are read.
    ///
    /// # Errors
    /// If the directory cannot be created or is not a directory.
    pub fn open(dir: &Path, most: usize) -> io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        Ok(Self { dir: dir.to_owned(), most })
    }

    /// The file of a session; `None` for a name that this agent would not have chosen, so none can leave the directory.
    fn path(&self, session_id: &str) -> Option<PathBuf> {
        let is_ours = !session_id.is_empty()
            && session_id.len() <= 128
            && session_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        is_ours.then(|| self.dir.join(format!("{session_id}.jsonl")))
    }

    /// Creates the file of a session, if it is missing or has no whole line.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn create(&self, header: &Header) -> io::Result<()> {
        self.open_session(header).map(drop)
    }

    /// Adds a turn after the last line end of the session's file, which is created if needed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn append(&self, header: &Header, entry: &Entry) -> io::Result<()> {
        let (mut file, end) = self.open_session(header)?;
        write_line(&mut file, end, entry).map(drop)
    }

    /// The locked file of a session, and its length up to its last line end: one line at least.
    fn open_session(&self, header: &Header) -> io::Result<(File, u64)> {
        let path = self.path(&header.session_id).ok_or(io::ErrorKind::InvalidInput)?;
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        let mut end = last_line_end(&mut file)?;
        if end == 0 {
            end = write_line(&mut file, 0, header)?;
            File::open(&self.dir)?.sync_all()?;
        }
        Ok((file, end))
    }

    /// Reads a session; `None` if there is none. The newest turns are kept, within the byte limit of the store; the
    /// newest one always is.
    ///
    /// # Errors
    /// If the file cannot be read or its first line is not ours.
    pub fn load(&self, session_id: &str) -> io::Result<Option<Stored>> {
        let Some(path) = self.path(session_id) else { return Ok(None) };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        rustix::fs::flock(&file, FlockOperation::LockShared)?;
        let updated = file.metadata()?.modified()?;
        let mut reader = BufReader::with_capacity(64 << 10, file);
        let mut line = Vec::new();
        reader.read_until(b'\n', &mut line)?;
        if !line.ends_with(b"\n") {
            return Err(io::Error::other("the file has no first line"));
        }
        let header: Header = serde_json::from_slice(&line)?;
        if header.version != 1 || header.session_id != session_id {
            return Err(io::Error::other("the file is not one of this session, or of a newer version"));
        }
        let (mut first_damage, mut damaged) = (0, 0);
        let (mut entries, mut bytes) = (VecDeque::<Entry>::new(), 0);
        for number in 2.. {
            line.clear();
            reader.read_until(b'\n', &mut line)?;
            if !line.ends_with(b"\n") {
                break;
            }
            let Some(entry) = Entry::read(&line) else {
                first_damage = if damaged == 0 { number } else { first_damage };
                damaged += 1;
                continue;
            };
            bytes += entry.len();
            entries.push_back(entry);
            while bytes > self.most && entries.len() > 1 {
                bytes -= entries.pop_front().map_or(0, |oldest| oldest.len());
            }
        }
        let more = if damaged > 1 { format!(" (and {} more)", damaged - 1) } else { String::new() };
        let path = path.display();
        let words = "cannot be read and is passed over; the other turns are kept";
        let damage = (damaged > 0).then(|| format!("{path}: line {first_damage}{more} {words}"));
        Ok(Some(Stored { header, entries: entries.into(), updated, damage }))
    }

    /// All sessions in the directory, the most recently written first. Foreign files are skipped.
    ///
    /// # Errors
    /// If the directory cannot be read.
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
        found.sort_by_key(|listed| std::cmp::Reverse(listed.updated));
        Ok(found)
    }

    /// Removes a session's file. It is not an error if there is none.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn delete(&self, session_id: &str) -> io::Result<()> {
        match self.path(session_id).map(std::fs::remove_file) {
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn list_one(path: &Path) -> io::Result<Listed> {
    let mut reader = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    let header = serde_json::from_slice(&line)?;
    // The first turn has it; the next one if the first is unreadable.
    let title = loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            break None;
        }
        if let Some(turn) = Entry::read(&line) {
            break turn.title;
        }
    };
    let updated = reader.get_ref().metadata()?.modified()?;
    Ok(Listed { header, title, updated })
}

/// Length of the file up to its last line end.
fn last_line_end(file: &mut File) -> io::Result<u64> {
    let (length, mut last) = (file.metadata()?.len(), [0]);
    if length > 0 {
        file.seek(SeekFrom::Start(length - 1))?;
        file.read_exact(&mut last)?;
    }
    if last == *b"\n" {
        return Ok(length);
    }
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at as u64 + 1))
}

/// Writes a line after `end` bytes of the file, over whatever is torn there, and syncs it. Returns the new end.
fn write_line(file: &mut File, end: u64, line: &impl Serialize) -> io::Result<u64> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;
    let written = file.write_all(&text).and_then(|()| file.sync_data());
    if written.is_err() {
        // Best effort: if the torn line stays, readers ignore it.
        let _ = file.set_len(end);
    }
    written.map(|()| end + text.len() as u64)
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
        Entry {
            user: json("user"),
            assistant: json("assistant"),
            model: "m".into(),
            usage: None,
            title: Some(text.into()),
        }
    }

    fn open(dir: &Path) -> Store {
        Store::open(dir, usize::MAX).unwrap()
    }

    /// Adds a turn to session `s`.
    fn say(store: &Store, text: &str) {
        store.append(&header("s"), &entry(text)).unwrap();
    }

    fn load(store: &Store) -> Stored {
        store.load("s").unwrap().unwrap()
    }

    /// The titles of the turns that a session has.
    fn turns(stored: &Stored) -> Vec<&str> {
        stored.entries.iter().map(|entry| entry.title.as_deref().unwrap()).collect()
    }

    /// Adds bytes to the file of session `s`, as another program might.
    fn append_bytes(dir: &Path, bytes: &[u8]) {
        OpenOptions::new().append(true).open(dir.join("s.jsonl")).unwrap().write_all(bytes).unwrap();
    }

    #[test]
    fn stored_turns_are_loaded_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir.path().join("a/b"));
        for text in ["one", "two\nlines", "\"quotes\""] {
            say(&store, text);
        }
        let stored = load(&store);
        assert_eq!((stored.entries.len(), stored.header.cwd.as_str()), (3, "/w"));
        assert_eq!((&stored.entries[1], &stored.damage), (&entry("two\nlines"), &None));
        assert_eq!(store.list().unwrap()[0].title.as_deref(), Some("one"));
        store.delete("s").unwrap();
        store.delete("s").unwrap();
        assert_eq!(store.load("s").unwrap(), None);
    }

    #[test]
    fn a_bad_line_costs_its_turn_and_no_other() {
        let bad: [&[u8]; 7] = [
            b"\n",
            b"not json\n",
            b"{\"user\":{\"role\":\"us\n",
            b"\x00\x00\x00\n",
            b"{\"user\":{\"role\":\"user\",\"content\":\"\xff\"},\"assistant\":1,\"model\":\"m\"}\n",
            // Valid JSON, but nothing that an endpoint would accept.
            b"{\"user\":1,\"assistant\":2,\"model\":\"m\"}\n",
            b"{\"user\":{\"role\":\"user\",\"content\":7},\"assistant\":{\"role\":\"assistant\",\"content\":\"\"},\"model\":\"m\"}\n",
        ];
        for bad in bad {
            let dir = tempfile::tempdir().unwrap();
            let store = open(dir.path());
            say(&store, "one");
            append_bytes(dir.path(), bad);
            say(&store, "two");
            append_bytes(dir.path(), &bad.repeat(2));
            say(&store, "three");
            let stored = load(&store);
            assert_eq!(turns(&stored), ["one", "two", "three"]);
            let damage = stored.damage.unwrap();
            let file = dir.path().join("s.jsonl");
            let begins = format!("{}: line 3 (and 2 more) cannot be read and is passed over", file.display());
            assert!(damage.starts_with(&begins), "{damage}");
            assert_eq!(store.list().unwrap()[0].title.as_deref(), Some("one"));
        }
    }

    #[test]
    fn a_bad_last_line_stays_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        say(&store, "one");
        append_bytes(dir.path(), b"somebody may want to mend this\n");
        assert_eq!(turns(&load(&store)), ["one"]);
        say(&store, "two");
        let text = std::fs::read_to_string(dir.path().join("s.jsonl")).unwrap();
        assert!(text.contains("somebody may want to mend this\n"));
        assert_eq!(turns(&load(&store)), ["one", "two"]);
    }

    #[test]
    fn many_bad_lines_make_a_short_report() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        say(&store, "one");
        append_bytes(dir.path(), &b"\n".repeat(1000));
        let damage = load(&store).damage.unwrap();
        assert!(damage.contains("line 3 (and 999 more) cannot be read"), "{damage}");
    }

    #[test]
    fn the_oldest_turns_are_not_read_beyond_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        for text in ["1", "2", "3", "4"] {
            say(&store, text);
        }
        let turn = entry("1").user.len() + entry("1").assistant.len();
        for (most, expected) in [(0, vec!["4"]), (2 * turn, vec!["3", "4"]), (3 * turn - 1, vec!["3", "4"])] {
            let store = Store::open(dir.path(), most).unwrap();
            assert_eq!(turns(&load(&store)), expected);
        }
    }

    #[test]
    fn a_first_line_that_was_torn_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        for torn in ["", "{\"openai-ag"] {
            std::fs::write(dir.path().join("s.jsonl"), torn).unwrap();
            assert!(store.load("s").is_err());
            say(&store, "one");
            assert_eq!(turns(&load(&store)), ["one"]);
        }
    }

    #[test]
    fn names_cannot_leave_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        for name in ["", "..", "../x", "a/b", "a.b", "a\0b", "ä"] {
            assert_eq!(store.load(name).unwrap(), None, "{name:?}");
            assert!(store.append(&header(name), &entry("x")).is_err());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_crash_loses_at_most_the_last_turn(count in 1usize..5, torn in any::<prop::sample::Index>()) {
            let dir = tempfile::tempdir().unwrap();
            let (store, file) = (open(dir.path()), dir.path().join("s.jsonl"));
            let length = || std::fs::metadata(&file).unwrap().len();
            say(&store, "first");
            for turn in 1..count {
                say(&store, &turn.to_string());
            }
            let before = length();
            say(&store, "last");
            // The last write reached the disk only in part.
            let cut = before + torn.index((length() - before) as usize) as u64;
            OpenOptions::new().write(true).open(&file).unwrap().set_len(cut).unwrap();
            let stored = load(&store);
            prop_assert_eq!(stored.entries.len(), count);
            prop_assert!(stored.damage.is_none());
            say(&store, "next");
            let stored = load(&store);
            prop_assert_eq!(stored.entries.last().cloned(), Some(entry("next")));
            prop_assert_eq!(stored.entries.len(), count + 1);
        }
    }
}
