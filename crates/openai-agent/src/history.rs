//! Sessions on disk: one file a session, one line a turn, only ever appended to.
//!
//! `{dir}/{sessionId}.jsonl` begins with a line that names the session; every turn that ended well adds one line in
//! one write, which is forced to the disk before the prompt is answered, and so does a choice of the model or of an
//! option between two turns. The invariant: whatever is torn by a crash or
//! a full disk is the end of the file after its last line end, which reading leaves out and the next turn overwrites.
//! Nothing that has a line end is ever cut off: a line that cannot be read is passed over, and costs its turn alone.
//! Writers take turns by a lock on the file, and a process that finds the file longer than it knows reads it again, so
//! several workers can serve one directory.
//!
//! These functions block; the shell calls them on a thread of their own.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::options::Chosen;
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
    /// What was chosen before its first turn.
    #[serde(default, skip_serializing_if = "is_default")]
    pub options: Chosen,
}

/// What holds for the next turn of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The model.
    pub model: String,
    /// What was chosen of the other options.
    pub options: Chosen,
}

/// A turn, or a choice alone, which has no messages.
#[derive(Serialize, Deserialize)]
struct Line<'a> {
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    user: Option<&'a RawValue>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    assistant: Option<&'a RawValue>,
    model: String,
    #[serde(default, skip_serializing_if = "is_default")]
    options: Chosen,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
}

impl<'a> Line<'a> {
    /// A choice, or a turn that can be sent: both messages are what endpoints take for such.
    fn read(line: &'a [u8]) -> Option<Self> {
        let line: Self = serde_json::from_slice(line).ok()?;
        let is_usable = match (line.user, line.assistant) {
            (None, None) => true,
            (Some(user), Some(assistant)) => is_message(user, "user") && is_message(assistant, "assistant"),
            _ => false,
        };
        is_usable.then_some(line)
    }

    fn of_choice(choice: &Choice) -> Self {
        let (model, options) = (choice.model.clone(), choice.options.clone());
        Self { user: None, assistant: None, model, options, usage: None, title: None }
    }
}

fn is_default(options: &Chosen) -> bool {
    *options == Chosen::default()
}

fn is_message(json: &RawValue, role: &str) -> bool {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        role: Cow<'a, str>,
        #[serde(borrow)]
        content: &'a RawValue,
    }
    let message = serde_json::from_str::<Message<'_>>(json.get());
    message.is_ok_and(|message| message.role == role && message.content.get().starts_with(['"', '[']))
}

/// A turn to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The user's message, as JSON.
    pub user: String,
    /// The answer, as JSON.
    pub assistant: String,
    /// What holds after it.
    pub choice: Choice,
    /// The session's counts with this turn.
    pub usage: Option<Usage>,
    /// The session's title.
    pub title: Option<String>,
}

/// Lines of a file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    path: PathBuf,
    /// The first of them, from 1.
    lines: Vec<usize>,
    count: usize,
}

impl Damage {
    /// Lines that are named.
    const NAMED: usize = 8;

    fn add(&mut self, line: usize) {
        self.count += 1;
        if self.lines.len() < Self::NAMED {
            self.lines.push(line);
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.lines.iter().map(usize::to_string).collect();
        let more = match self.count - lines.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let (s, are) = if self.count == 1 { ("", "is") } else { ("s", "are") };
        let (path, lines) = (self.path.display(), lines.join(", "));
        write!(out, "{path}: line{s} {lines}{more} cannot be read and {are} passed over; the other turns are kept")
    }
}

/// A session as its file tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The first line.
    pub header: Header,
    /// The newest turns, oldest first.
    pub entries: Vec<Entry>,
    /// The last choice.
    pub choice: Choice,
    /// Bytes of the file that hold whole lines.
    pub length: u64,
    /// When it was last written.
    pub updated: SystemTime,
    /// What could not be read of it.
    pub damage: Option<Damage>,
}

/// What came of adding a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Bytes of the file now.
    pub length: u64,
    /// Whether somebody else has changed the file meanwhile: there may be turns in it that this process does not know.
    pub is_behind: bool,
}

/// What a look at a session's file before a turn shows.
#[derive(Debug)]
pub enum Look {
    /// As many bytes as were known, or the first line that was written now.
    AsKnown(u64),
    /// There is more than is known: all of it.
    Changed(Box<Stored>),
    /// There is no file, and none can be made.
    NotMade(io::Error),
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
    /// Most bytes of a session's turns that are read; the oldest are left out beyond it.
    most: usize,
}

impl Store {
    /// Sessions kept in `dir`, which is made if it is not there (readable by its owner only). At most `most` bytes of
    /// a session's turns are read.
    ///
    /// # Errors
    /// The directory cannot be made or is none.
    pub fn open(dir: &Path, most: usize) -> io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        Ok(Self { dir: dir.to_owned(), most })
    }

    /// The file of a session; nothing for a name that we would not have given, which so cannot leave the directory.
    fn path(&self, session_id: &str) -> Option<PathBuf> {
        let is_ours = !session_id.is_empty()
            && session_id.len() <= 128
            && session_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        is_ours.then(|| self.dir.join(format!("{session_id}.jsonl")))
    }

    /// Makes the file of a new session, if it is not there or has no whole line, and gives its bytes up to its last
    /// line end.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(&self, header: &Header) -> io::Result<u64> {
        let path = self.path(&header.session_id).ok_or(io::ErrorKind::InvalidInput)?;
        let mut line = serde_json::to_vec(header)?;
        line.push(b'\n');
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        let length = last_line_end(&mut file, 0)?;
        if length > 0 {
            return Ok(length);
        }
        write_line(&mut file, 0, &line)?;
        File::open(&self.dir)?.sync_all()?;
        Ok(line.len() as u64)
    }

    /// Looks at a session's file, of which `known` bytes are known; none yet: it is made. `is_partial` says that not
    /// all that was known of it is still in memory.
    ///
    /// # Errors
    /// The file cannot be read or its first line is not ours.
    pub fn look(&self, header: &Header, known: u64, is_partial: bool) -> io::Result<Look> {
        if known > 0 {
            match self.length(&header.session_id) {
                Some(length) if length == known && !is_partial => return Ok(Look::AsKnown(known)),
                // Another worker has gone on with this session, or a crash has torn its last line.
                Some(_) => {
                    if let Some(stored) = self.load(&header.session_id)? {
                        return Ok(Look::Changed(stored.into()));
                    }
                }
                None => {}
            }
        }
        Ok(self.create(header).map_or_else(Look::NotMade, Look::AsKnown))
    }

    /// Adds a turn. It goes after `known` bytes, or if another process has changed the file, after its last line end.
    ///
    /// # Errors
    /// The file is gone or cannot be written.
    pub fn append(&self, session_id: &str, known: u64, entry: &Entry) -> io::Result<Appended> {
        let line = Line {
            user: Some(serde_json::from_str(&entry.user)?),
            assistant: Some(serde_json::from_str(&entry.assistant)?),
            usage: entry.usage,
            title: entry.title.clone(),
            ..Line::of_choice(&entry.choice)
        };
        self.add(session_id, known, &line)
    }

    /// Adds a choice that was made between two turns, where [`Self::append`] would add a turn.
    ///
    /// # Errors
    /// As of [`Self::append`].
    pub fn choose(&self, session_id: &str, known: u64, choice: &Choice) -> io::Result<Appended> {
        self.add(session_id, known, &Line::of_choice(choice))
    }

    fn add(&self, session_id: &str, known: u64, line: &Line<'_>) -> io::Result<Appended> {
        let path = self.path(session_id).ok_or(io::ErrorKind::NotFound)?;
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        let length = file.metadata()?.len();
        let end = match length == known {
            true => known,
            false => last_line_end(&mut file, if length > known { known } else { 0 })?,
        };
        if end == 0 {
            return Err(io::Error::other("the file has no first line any more"));
        }
        write_line(&mut file, end, &text)?;
        Ok(Appended { length: end + text.len() as u64, is_behind: end != known })
    }

    /// The bytes in the file of a session; nothing if it has none.
    pub fn length(&self, session_id: &str) -> Option<u64> {
        Some(std::fs::metadata(self.path(session_id)?).ok()?.len())
    }

    /// Reads a session; nothing if there is none. Of its turns the newest are kept, within the bytes that the store
    /// reads; the newest one always is.
    ///
    /// # Errors
    /// The file cannot be read or its first line is not ours.
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
        let mut length = line.len() as u64;
        let mut damage = Damage { path, lines: Vec::new(), count: 0 };
        let (mut entries, mut bytes) = (VecDeque::new(), 0);
        let mut choice = Choice { model: header.model.clone(), options: header.options.clone() };
        for number in 2.. {
            line.clear();
            reader.read_until(b'\n', &mut line)?;
            if !line.ends_with(b"\n") {
                break;
            }
            length += line.len() as u64;
            let Some(line) = Line::read(&line) else {
                damage.add(number);
                continue;
            };
            choice = Choice { model: line.model, options: line.options };
            let (Some(user), Some(assistant)) = (line.user, line.assistant) else { continue };
            let (user, assistant) = (user.get().to_owned(), assistant.get().to_owned());
            bytes += user.len() + assistant.len();
            entries.push_back(Entry { user, assistant, choice: choice.clone(), usage: line.usage, title: line.title });
            while bytes > self.most && entries.len() > 1 {
                let oldest: Option<Entry> = entries.pop_front();
                bytes -= oldest.map_or(0, |oldest| oldest.user.len() + oldest.assistant.len());
            }
        }
        let damage = (damage.count > 0).then_some(damage);
        Ok(Some(Stored { header, entries: entries.into(), choice, length, updated, damage }))
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
    let mut reader = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    let header = serde_json::from_slice(&line)?;
    // The first turn has it; the next one, should that not be readable.
    let title = loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            break None;
        }
        if let Some(turn) = Line::read(&line).filter(|line| line.user.is_some()) {
            break turn.title;
        }
    };
    let updated = reader.get_ref().metadata()?.modified()?;
    Ok(Listed { header, title, updated })
}

/// Bytes of the file up to its last line end; `from` is one, or the beginning of the file.
fn last_line_end(file: &mut File, from: u64) -> io::Result<u64> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(from))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes.iter().rposition(|byte| *byte == b'\n').map_or(from, |at| from + at as u64 + 1))
}

/// Puts a line after `end` bytes of the file, in the place of whatever is torn there, and on the disk.
fn write_line(file: &mut File, end: u64, line: &[u8]) -> io::Result<()> {
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;
    let written = file.write_all(line).and_then(|()| file.sync_data());
    if written.is_err() {
        // Best effort: were the torn line to stay, reading would leave it out.
        let _ = file.set_len(end);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(session_id: &str) -> Header {
        Header {
            version: 1,
            session_id: session_id.into(),
            cwd: "/w".into(),
            model: "m".into(),
            options: Chosen::default(),
        }
    }

    fn choice(model: &str) -> Choice {
        Choice { model: model.into(), options: Chosen::default() }
    }

    fn entry(text: &str) -> Entry {
        let json = |role: &str| serde_json::json!({"role": role, "content": text}).to_string();
        let (user, assistant) = (json("user"), json("assistant"));
        Entry { user, assistant, choice: choice("m"), usage: None, title: Some(text.into()) }
    }

    fn open(dir: &Path) -> Store {
        Store::open(dir, usize::MAX).unwrap()
    }

    /// The titles of the turns that a session has.
    fn turns(stored: &Stored) -> Vec<&str> {
        stored.entries.iter().map(|entry| entry.title.as_deref().unwrap()).collect()
    }

    /// Adds bytes to the file of session `s`, as another program might.
    fn scribble(dir: &Path, bytes: &[u8]) {
        OpenOptions::new().append(true).open(dir.join("s.jsonl")).unwrap().write_all(bytes).unwrap();
    }

    #[test]
    fn what_is_kept_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir.path().join("a/b"));
        let mut known = store.create(&header("s")).unwrap();
        for text in ["one", "two\nlines", "\"quotes\""] {
            let appended = store.append("s", known, &entry(text)).unwrap();
            assert!(!appended.is_behind);
            known = appended.length;
        }
        let stored = store.load("s").unwrap().unwrap();
        assert_eq!((stored.length, stored.entries.len(), stored.header.cwd.as_str()), (known, 3, "/w"));
        assert_eq!((&stored.entries[1], &stored.damage), (&entry("two\nlines"), &None));
        assert_eq!(store.list().unwrap()[0].title.as_deref(), Some("one"));
        store.delete("s").unwrap();
        store.delete("s").unwrap();
        assert_eq!(store.load("s").unwrap(), None);
    }

    #[test]
    fn a_turn_goes_after_those_that_another_process_has_added() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let known = store.create(&header("s")).unwrap();
        let theirs = store.append("s", known, &entry("theirs")).unwrap();
        let ours = store.append("s", known, &entry("ours")).unwrap();
        assert!(ours.is_behind && ours.length > theirs.length);
        assert_eq!(turns(&store.load("s").unwrap().unwrap()), ["theirs", "ours"]);
    }

    #[test]
    fn a_bad_line_costs_its_turn_and_no_other() {
        let bad: [&[u8]; 7] = [
            b"\n",
            b"not json\n",
            b"{\"user\":{\"role\":\"us\n",
            b"\x00\x00\x00\n",
            b"{\"user\":{\"role\":\"user\",\"content\":\"\xff\"},\"assistant\":1,\"model\":\"m\"}\n",
            // JSON, but nothing that an endpoint would take.
            b"{\"user\":1,\"assistant\":2,\"model\":\"m\"}\n",
            b"{\"user\":{\"role\":\"user\",\"content\":7},\"assistant\":{\"role\":\"assistant\",\"content\":\"\"},\"model\":\"m\"}\n",
        ];
        for bad in bad {
            let dir = tempfile::tempdir().unwrap();
            let store = open(dir.path());
            let known = store.create(&header("s")).unwrap();
            scribble(dir.path(), bad);
            let known = store.append("s", known, &entry("one")).unwrap().length;
            scribble(dir.path(), &bad.repeat(2));
            let appended = store.append("s", known, &entry("two")).unwrap();
            let stored = store.load("s").unwrap().unwrap();
            assert_eq!((turns(&stored), stored.length), (vec!["one", "two"], appended.length));
            let told = stored.damage.unwrap().to_string();
            let file = dir.path().join("s.jsonl");
            let begins = format!("{}: lines 2, 4, 5 cannot be read and are passed over", file.display());
            assert!(told.starts_with(&begins), "{told}");
            assert_eq!(store.list().unwrap()[0].title.as_deref(), Some("one"));
        }
    }

    #[test]
    fn a_bad_last_line_stays_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let known = store.create(&header("s")).unwrap();
        let known = store.append("s", known, &entry("one")).unwrap().length;
        scribble(dir.path(), b"somebody may want to mend this\n");
        let stored = store.load("s").unwrap().unwrap();
        assert!(stored.length > known);
        store.append("s", stored.length, &entry("two")).unwrap();
        let text = std::fs::read_to_string(dir.path().join("s.jsonl")).unwrap();
        assert!(text.contains("somebody may want to mend this\n"));
        assert_eq!(turns(&store.load("s").unwrap().unwrap()), ["one", "two"]);
    }

    #[test]
    fn many_bad_lines_are_told_in_few_words() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        store.create(&header("s")).unwrap();
        scribble(dir.path(), &b"\n".repeat(1000));
        let told = store.load("s").unwrap().unwrap().damage.unwrap().to_string();
        assert!(told.contains("lines 2, 3, 4, 5, 6, 7, 8, 9 and 992 more cannot be read"), "{told}");
    }

    #[test]
    fn the_oldest_turns_are_not_read_beyond_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let mut known = store.create(&header("s")).unwrap();
        for text in ["1", "2", "3", "4"] {
            known = store.append("s", known, &entry(text)).unwrap().length;
        }
        let turn = entry("1").user.len() + entry("1").assistant.len();
        for (most, expected) in [(0, vec!["4"]), (2 * turn, vec!["3", "4"]), (3 * turn - 1, vec!["3", "4"])] {
            let stored = Store::open(dir.path(), most).unwrap().load("s").unwrap().unwrap();
            assert_eq!((turns(&stored), stored.length), (expected, known));
        }
    }

    #[test]
    fn a_look_reads_what_is_not_known_and_makes_what_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let Look::AsKnown(first) = store.look(&header("s"), 0, false).unwrap() else { panic!() };
        let known = store.append("s", first, &entry("one")).unwrap().length;
        assert!(matches!(store.look(&header("s"), known, false).unwrap(), Look::AsKnown(length) if length == known));
        for (known, is_partial) in [(first, false), (known, true)] {
            let Look::Changed(stored) = store.look(&header("s"), known, is_partial).unwrap() else { panic!() };
            assert_eq!(turns(&stored), ["one"]);
        }
        store.delete("s").unwrap();
        assert!(matches!(store.look(&header("s"), known, true).unwrap(), Look::AsKnown(length) if length == first));
        store.delete("s").unwrap();
        std::fs::remove_dir(dir.path()).unwrap();
        assert!(matches!(store.look(&header("s"), known, false).unwrap(), Look::NotMade(_)));
        assert!(store.append("s", known, &entry("two")).is_err());
    }

    #[test]
    fn a_first_line_that_was_torn_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        for torn in ["", "{\"openai-ag"] {
            std::fs::write(dir.path().join("s.jsonl"), torn).unwrap();
            assert!(store.load("s").is_err());
            let known = store.create(&header("s")).unwrap();
            store.append("s", known, &entry("one")).unwrap();
            assert_eq!(turns(&store.load("s").unwrap().unwrap()), ["one"]);
        }
    }

    #[test]
    fn names_cannot_leave_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        for name in ["", "..", "../x", "a/b", "a.b", "a\0b", "ä"] {
            assert_eq!(store.load(name).unwrap(), None, "{name:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_crash_loses_at_most_the_last_turn(count in 1usize..5, torn in any::<prop::sample::Index>()) {
            let dir = tempfile::tempdir().unwrap();
            let store = open(dir.path());
            let mut lengths = vec![store.create(&header("s")).unwrap()];
            for turn in 0..count {
                let known = *lengths.last().unwrap();
                lengths.push(store.append("s", known, &entry(&turn.to_string())).unwrap().length);
            }
            // The last write got to the disk only in part.
            let (before, after) = (lengths[count - 1], lengths[count]);
            let cut = before + torn.index((after - before) as usize) as u64;
            OpenOptions::new().write(true).open(dir.path().join("s.jsonl")).unwrap().set_len(cut).unwrap();
            let stored = store.load("s").unwrap().unwrap();
            prop_assert_eq!((stored.entries.len(), stored.length), (count - 1, before));
            prop_assert!(stored.damage.is_none());
            let appended = store.append("s", stored.length, &entry("next")).unwrap();
            prop_assert!(!appended.is_behind);
            let stored = store.load("s").unwrap().unwrap();
            prop_assert_eq!(stored.entries.last().cloned(), Some(entry("next")));
            prop_assert_eq!(stored.entries.len(), count);
        }
    }
}
