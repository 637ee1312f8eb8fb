//! The file of what outlives the daemon (`state`): sessions of MCP, and the user names that sessions of ACP belong to.
//!
//! A file is never changed: a new one is written beside it, brought to the disk, and takes its place (rename(2)), so that a
//! start finds the one or the other, whenever the machine stopped. Each line has a checksum of its own. A line that does not
//! match is left out, since it could give a session to another client, and the others are used.
//!
//! Nothing in it lets anybody in: ids of MCP sessions, which do where a listener has no tokens, are there as digests, and
//! of tokens there are the names.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, flock, fstat, fsync, linkat, mkdir, open, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::bus::port::{NameAuthority, Owner as Verified};

/// Maximum size of the file in bytes.
pub(crate) const MOST_BYTES: usize = 8 << 20;
/// The version of its format.
const VERSION: u32 = 1;
/// Length of a line's checksum in hexadecimal digits.
const CHECKSUM: usize = 16;
/// What the first line says.
const FORMAT: &str = "stdio_bus state";

/// The file, its successor while that is written, the one that could not be read, and the one that is locked.
const NAME: &str = "sessions";
const NEW: &str = "sessions.new";
const UNREADABLE: &str = "sessions.unreadable";
const LOCK: &str = "lock";

/// The digest of a session's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct SessionDigest([u8; 32]);

impl SessionDigest {
    /// That of this id.
    pub(crate) fn of(id: &str) -> Self {
        Self(Sha256::digest(id).into())
    }
}

impl From<SessionDigest> for String {
    fn from(key: SessionDigest) -> Self {
        hexadecimal(&key.0)
    }
}

impl TryFrom<String> for SessionDigest {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mut key = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err("a digest has 64 hexadecimal digits");
        }
        for (at, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| "it has other characters")?;
        }
        Ok(Self(key))
    }
}

/// Whose a session is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SessionOwner {
    /// Whoever knows its id.
    Anyone,
    /// Clients with the token of this name.
    Token(String),
    /// Clients whose certificate has this common name.
    Certificate(String),
    /// Clients to which a trusted proxy gives this name in a header.
    User(String),
}

impl From<Verified<'_>> for SessionOwner {
    fn from(Verified { vouches, name }: Verified<'_>) -> Self {
        match vouches {
            NameAuthority::Token => Self::Token(name.to_owned()),
            NameAuthority::Certificate => Self::Certificate(name.to_owned()),
            NameAuthority::Proxy => Self::User(name.to_owned()),
        }
    }
}

impl SessionOwner {
    /// The verified name, if it is one's.
    pub(crate) fn verified(&self) -> Option<Verified<'_>> {
        let (vouches, name) = match self {
            Self::Anyone => return None,
            Self::Token(name) => (NameAuthority::Token, name),
            Self::Certificate(name) => (NameAuthority::Certificate, name),
            Self::User(name) => (NameAuthority::Proxy, name),
        };
        Some(Verified { vouches, name })
    }
}

/// A session of MCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredSession {
    pub id: SessionDigest,
    pub pool: String,
    /// The listener that it was begun at, as the configuration names it.
    pub listener: String,
    pub owner: SessionOwner,
    /// How many daemons it has waited for in vain.
    pub daemons: u8,
    /// The negotiated version.
    pub version: String,
    /// The `initialize` that began it, as it was sent.
    pub initialize: String,
    /// The notification that followed, if that has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialized: Option<String>,
}

impl StoredSession {
    /// As many bytes as it takes in the file, or some more.
    pub(crate) fn weight(&self) -> usize {
        serde_json::to_vec(self).map_or(0, |text| text.len()) + CHECKSUM + 24
    }
}

/// The user name that a session of ACP, or of lines, belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionUser {
    pub session: String,
    pub pool: String,
    pub user: SessionOwner,
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Record {
    McpSession(Arc<StoredSession>),
    SessionName(SessionUser),
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct FileHead {
    format: String,
    version: u32,
    node: String,
    /// The number of lines behind it.
    records: usize,
}

/// What a file has.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub records: Vec<Record>,
    /// Why not all of it is used.
    pub damage: Option<String>,
}

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The checksum of a line.
fn checksum(line: &[u8]) -> String {
    let mut sum = hexadecimal(&Sha256::digest(line));
    sum.truncate(CHECKSUM);
    sum
}

fn push(out: &mut Vec<u8>, line: &impl Serialize) {
    // Only a map with keys that are no strings cannot be written.
    let Ok(line) = serde_json::to_vec(line) else { return };
    out.extend_from_slice(checksum(&line).as_bytes());
    out.push(b' ');
    out.extend_from_slice(&line);
    out.push(b'\n');
}

/// The file that has these records, and how many of them are left out, since it would be too large.
fn encode(node: &str, records: &[Record]) -> (Vec<u8>, usize) {
    let (mut lines, mut written) = (Vec::new(), 0);
    for record in records {
        let before = lines.len();
        push(&mut lines, record);
        if lines.len() > MOST_BYTES {
            lines.truncate(before);
            break;
        }
        written += 1;
    }
    let mut out = Vec::new();
    let head = FileHead { format: FORMAT.to_owned(), version: VERSION, node: node.to_owned(), records: written };
    push(&mut out, &head);
    out.append(&mut lines);
    (out, records.len() - written)
}

/// The text of a line whose checksum is right.
fn checked(line: &[u8]) -> Option<&[u8]> {
    let (sum, text) = line.split_at_checked(CHECKSUM)?;
    let text = text.strip_prefix(b" ")?;
    (checksum(text).as_bytes() == sum).then_some(text)
}

/// What a file has that this node wrote.
///
/// # Errors
/// It is undamaged, and another node's or another version's.
fn decode(node: &str, bytes: &[u8]) -> io::Result<Loaded> {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let head = lines.next().and_then(checked).and_then(|text| serde_json::from_slice::<FileHead>(text).ok());
    let Some(head) = head.filter(|head| head.format == FORMAT) else {
        let damage = "its first line is damaged, so that nothing of it is used".to_owned();
        return Ok(Loaded { records: Vec::new(), damage: Some(damage) });
    };
    let FileHead { version, node: writer, .. } = &head;
    if *version != VERSION {
        let text = format!(
            "the file {NAME} has version {version} of its format, and this daemon reads {VERSION}; start the version that \
             wrote it, or use another folder"
        );
        return Err(io::Error::other(text));
    }
    if writer != node {
        return Err(io::Error::other(format!(
            "the file {NAME} is of the node {writer:?}, and this is {node:?}; set node to {writer:?} to continue its sessions, or \
             give this daemon a folder of its own"
        )));
    }
    let read = |line: &[u8]| serde_json::from_slice(checked(line)?).ok();
    let records: Vec<Record> = lines.take(head.records).filter_map(read).collect();
    let lost = head.records - records.len();
    let damage = (lost > 0).then(|| format!("{lost} of its {} records are damaged or missing", head.records));
    Ok(Loaded { records, damage })
}

/// A folder of files: what [`replace`] needs of one.
trait Folder {
    /// Makes a file anew, and writes it. What it has may be lost until `sync`.
    fn write(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Brings a file's content to the disk.
    fn sync(&mut self, name: &str) -> io::Result<()>;

    /// Gives a file the name of another one, which is gone then.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;

    /// Brings the names to the disk, if its file system can do that for a folder.
    fn sync_names(&mut self) -> io::Result<()>;
}

/// Replaces the file.
fn replace(folder: &mut impl Folder, bytes: &[u8]) -> io::Result<()> {
    folder.write(NEW, bytes)?;
    folder.sync(NEW)?;
    folder.rename(NEW, NAME)?;
    folder.sync_names()
}

/// The folder that `state` names. While it exists no other daemon can open it.
pub(crate) struct StateFile {
    folder: OwnedFd,
    /// The locked file, and the one that was written last.
    _lock: OwnedFd,
    written: Option<OwnedFd>,
    node: String,
}

impl StateFile {
    /// Opens the folder, makes it if there is none, and reads what is in it.
    ///
    /// # Errors
    /// It cannot be used, or another daemon uses it.
    pub(crate) fn open(path: &Path, node: &str) -> io::Result<(Self, Loaded)> {
        match mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let folder = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let status = fstat(&folder)?;
        // What is there says whose the sessions are.
        if status.st_mode & 0o022 != 0 || ![0, geteuid().as_raw()].contains(&status.st_uid) {
            return Err(io::Error::other(
                "other users may write there (its owner has to be the daemon's user, its mode 0700)",
            ));
        }
        let lock = openat(&folder, LOCK, OFlags::RDWR | OFlags::CREATE | FLAGS, Mode::RUSR | Mode::WUSR)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::other("another daemon uses it; give each daemon a folder of its own"));
            }
            Err(error) => return Err(error.into()),
        }
        let mut loaded = match openat(&folder, NAME, OFlags::RDONLY | FLAGS, Mode::empty()) {
            Ok(file) => {
                let mut bytes = Vec::new();
                File::from(file).take(2 * MOST_BYTES as u64).read_to_end(&mut bytes)?;
                decode(node, &bytes)?
            }
            Err(Errno::NOENT) => Loaded::default(),
            Err(error) => return Err(error.into()),
        };
        let mut state = Self { folder, _lock: lock, written: None, node: node.to_owned() };
        if let Some(damage) = &mut loaded.damage {
            *damage += &match state.put_aside() {
                Ok(()) => format!("; the file is put aside as {UNREADABLE}"),
                Err(error) => format!("; the file cannot be put aside as {UNREADABLE}: {error}"),
            };
            // If the start fails after this, or the daemon is killed, the next one still finds the undamaged records. Without
            // them another user could load a session.
            if let Err(error) = state.replace(&loaded.records) {
                *damage += &format!("; what is undamaged cannot be written yet: {error}");
            }
        }
        Ok((state, loaded))
    }

    /// Removes a file of the folder, if it is there.
    fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives a damaged file a second name, since people may want to look at it after another one has taken its place.
    fn put_aside(&self) -> io::Result<()> {
        self.remove(UNREADABLE)?;
        Ok(linkat(&self.folder, NAME, &self.folder, UNREADABLE, AtFlags::empty())?)
    }

    /// Replaces the file by one with these records. Returns how many of the last ones found no room.
    ///
    /// # Errors
    /// The file system's. The file that was there before is there still.
    pub(crate) fn replace(&mut self, records: &[Record]) -> io::Result<usize> {
        let (bytes, left) = encode(&self.node, records);
        let result = replace(self, &bytes);
        self.written = None;
        if result.is_err() {
            // A full disk gets its room back.
            let _ = self.remove(NEW);
        }
        result.map(|()| left)
    }
}

/// For all files: none is followed to another place.
const FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);

impl Folder for StateFile {
    fn write(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.remove(name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | FLAGS;
        let mut file = File::from(openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(bytes)?;
        self.written = Some(file.into());
        Ok(())
    }

    fn sync(&mut self, _name: &str) -> io::Result<()> {
        Ok(self.written.as_ref().map_or(Ok(()), |file| fsync(file.as_fd()))?)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.folder, from, &self.folder, to)?)
    }

    fn sync_names(&mut self) -> io::Result<()> {
        match fsync(&self.folder) {
            // Such file systems (some of FUSE, 9p and CIFS) cannot do more, and the file is in its place.
            Ok(()) | Err(Errno::INVAL | Errno::NOTSUP) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn session(number: usize, owner: SessionOwner) -> Record {
        Record::McpSession(Arc::new(StoredSession {
            id: SessionDigest::of(&format!("bus.{number}")),
            pool: "tools".to_owned(),
            listener: "http://127.0.0.1:1/mcp".to_owned(),
            owner,
            daemons: 0,
            version: "2025-11-25".to_owned(),
            initialize: format!(r#"{{"id":{number},"method":"initialize","params":{{"a":"b\nc"}}}}"#),
            initialized: number.is_multiple_of(2).then(|| r#"{"method":"notifications/initialized"}"#.to_owned()),
        }))
    }

    fn records(count: usize) -> Vec<Record> {
        let owner = |number: usize| match number % 3 {
            0 => SessionOwner::Anyone,
            1 => SessionOwner::Token(format!("user {number}")),
            _ => SessionOwner::Certificate(format!("user {number}")),
        };
        let session_user = |number| SessionUser {
            session: format!("s{number}"),
            pool: "agents".into(),
            user: SessionOwner::Token(format!("user {number}")),
        };
        let session_users = (0..count).map(|number| Record::SessionName(session_user(number)));
        (0..count).map(|number| session(number, owner(number))).chain(session_users).collect()
    }

    #[test]
    fn what_is_written_is_read_again_by_the_same_node_alone() {
        let records = records(5);
        let (bytes, left) = encode("bus-1", &records);
        let Loaded { records: read, damage } = decode("bus-1", &bytes).expect("it is its own");
        assert_eq!((read, damage, left), (records, None, 0));
        let other = decode("bus-2", &bytes).expect_err("it is not");
        assert!(other.to_string().contains("bus-1"), "{other}");
    }

    #[test]
    fn a_damaged_file_gives_its_undamaged_records_unchanged_and_says_so() {
        let records = records(4);
        let bytes = encode("bus", &records).0;
        let decode = |bytes: &[u8]| decode("bus", bytes).expect("it is of this node and version");
        let is_whole = |loaded: &Loaded| loaded.records.iter().all(|record| records.contains(record));
        for end in 0..bytes.len() {
            let loaded = decode(&bytes[..end]);
            let lacks_only_its_end = end == bytes.len() - 1 && loaded.records == records;
            assert!(is_whole(&loaded) && (loaded.damage.is_some() || lacks_only_its_end), "cut at {end}");
        }
        for at in 0..bytes.len() {
            for flip in [1, 0x10, 0x80] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                let loaded = decode(&damaged);
                assert!(is_whole(&loaded) && loaded.damage.is_some() || at == bytes.len() - 1, "{flip:#x} at {at}");
            }
        }
    }

    #[test]
    fn a_file_of_a_later_version_is_not_read() {
        let mut bytes = Vec::new();
        push(&mut bytes, &FileHead { format: FORMAT.into(), version: VERSION + 1, node: "bus".into(), records: 0 });
        let why = decode("bus", &bytes).expect_err("it is another version");
        assert!(why.to_string().contains("version 2"), "{why}");
    }

    #[test]
    fn a_file_is_no_larger_than_its_bound_and_what_is_last_is_left_out() {
        let session_user = |number: usize| SessionUser {
            session: "\u{1}".repeat(20_000),
            pool: "p".into(),
            user: SessionOwner::Token(number.to_string()),
        };
        let records: Vec<Record> = (0..100).map(|number| Record::SessionName(session_user(number))).collect();
        let (bytes, left) = encode("bus", &records);
        assert!(bytes.len() <= MOST_BYTES + 1000 && left > 0, "{} bytes, {left} left out", bytes.len());
        let loaded = decode("bus", &bytes).expect("it is its own");
        assert_eq!((loaded.records.as_slice(), loaded.damage), (&records[..100 - left], None));
    }

    #[test]
    fn a_folder_in_which_others_may_write_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o770)).expect("it is ours");
        let why = StateFile::open(directory.path(), "bus").err().expect("its group may write there");
        assert!(why.to_string().contains("other users may write there"), "{why}");
    }

    #[test]
    fn no_id_is_in_the_file() {
        let text = String::from_utf8(encode("bus", &records(3)).0).expect("it is text");
        assert!(!text.contains("bus.1") && text.contains("user 1"), "{text}");
    }

    /// A disk that stops at any moment. What was not brought to it may be lost, in whole or in part.
    #[derive(Clone, Default)]
    struct Disk {
        names: BTreeMap<String, usize>,
        /// The names as they are on the disk, if they differ.
        before: Option<BTreeMap<String, usize>>,
        contents: Vec<(Vec<u8>, bool)>,
        /// How many steps are done before it stops.
        left: usize,
        /// It has no room for more bytes than these.
        room: usize,
    }

    impl Disk {
        fn step(&mut self) -> io::Result<()> {
            self.left = self.left.checked_sub(1).ok_or_else(|| io::Error::other("it has stopped"))?;
            Ok(())
        }

        fn change_names(&mut self, change: impl FnOnce(&mut BTreeMap<String, usize>)) {
            self.before.get_or_insert_with(|| self.names.clone());
            change(&mut self.names);
        }

        /// All contents that the file may have after a stop; none if it may be missing.
        fn after_a_stop(&self) -> Vec<Option<Vec<u8>>> {
            let mut found = Vec::new();
            for names in [Some(&self.names), self.before.as_ref()].into_iter().flatten() {
                match names.get(NAME).map(|at| &self.contents[*at]) {
                    None => found.push(None),
                    Some((bytes, true)) => found.push(Some(bytes.clone())),
                    Some((bytes, false)) => found.extend((0..=bytes.len()).map(|end| Some(bytes[..end].to_vec()))),
                }
            }
            found
        }
    }

    impl Folder for Disk {
        fn write(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
            self.step()?;
            let at = self.contents.len();
            self.contents.push((bytes[..bytes.len().min(self.room)].to_vec(), false));
            self.change_names(|names| _ = names.insert(name.to_owned(), at));
            if bytes.len() > self.room { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }

        fn sync(&mut self, name: &str) -> io::Result<()> {
            self.step()?;
            let at = self.names[name];
            self.contents[at].1 = true;
            Ok(())
        }

        fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
            self.step()?;
            self.change_names(|names| {
                let at = names.remove(from).expect("it is there");
                names.insert(to.to_owned(), at);
            });
            Ok(())
        }

        fn sync_names(&mut self) -> io::Result<()> {
            self.step()?;
            self.before = None;
            Ok(())
        }
    }

    #[test]
    fn a_stop_at_any_moment_leaves_the_file_before_or_the_new_one() {
        let (old, new) = (encode("bus", &records(2)).0, encode("bus", &records(3)).0);
        for before in [None, Some(&old)] {
            for left in 0..=4 {
                let mut disk = Disk { left: usize::MAX, room: usize::MAX, ..Disk::default() };
                before.iter().for_each(|old| replace(&mut disk, old).expect("it continues"));
                disk.left = left;
                let is_done = replace(&mut disk, &new).is_ok();
                assert_eq!(is_done, left == 4, "four steps");
                for found in disk.after_a_stop() {
                    let is_old = !is_done && found.as_ref() == before;
                    assert!(is_old || found.as_ref() == Some(&new), "after {left} steps");
                }
            }
        }
    }

    #[test]
    fn a_full_disk_leaves_the_file_that_was_there() {
        let old = encode("bus", &records(1)).0;
        let mut disk = Disk { left: usize::MAX, room: usize::MAX, ..Disk::default() };
        replace(&mut disk, &old).expect("it has room");
        for room in [0, 10, 100] {
            disk.room = room;
            assert!(replace(&mut disk, &encode("bus", &records(5)).0).is_err());
            assert!(disk.after_a_stop().iter().all(|found| found.as_ref() == Some(&old)), "room for {room}");
        }
    }

    #[test]
    fn a_file_is_written_also_where_a_folder_cannot_be_brought_to_the_disk() {
        let open = |path: &str| open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("it is there");
        let folder = open("/proc/self");
        assert_eq!(fsync(&folder), Err(Errno::INVAL), "this one cannot");
        let mut state = StateFile { folder, _lock: open("/"), written: None, node: "bus".into() };
        state.sync_names().expect("it is no failure");
    }

    /// Opens a folder that was given up. A process that another test starts at the same time holds the lock until it
    /// executes its program.
    fn open_again(path: &Path) -> (StateFile, Loaded) {
        for _ in 0..600 {
            match StateFile::open(path, "bus") {
                Err(error) if error.to_string().starts_with("another daemon uses it") => {
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
                opened => return opened.expect("it continues"),
            }
        }
        panic!("{} is in use for a minute", path.display());
    }

    #[test]
    fn undamaged_records_of_a_damaged_file_are_there_at_every_next_start() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state");
        let (mut state, _) = StateFile::open(&path, "bus").expect("it is made");
        state.replace(&records(3)).expect("it has room");
        drop(state);
        let mut bytes = std::fs::read(path.join(NAME)).expect("it was written");
        *bytes.iter_mut().rev().nth(10).expect("it has a last record") ^= 1;
        std::fs::write(path.join(NAME), &bytes).expect("it is ours");
        let undamaged = open_again(&path).1.records;
        assert_eq!(undamaged.len(), records(3).len() - 1);
        // That daemon has written nothing.
        let again = open_again(&path).1;
        assert_eq!((again.records, again.damage), (undamaged, None));
        assert_eq!(std::fs::read(path.join(UNREADABLE)).expect("it has another name"), bytes);
    }

    #[test]
    fn a_folder_is_one_daemons_its_files_nobody_elses_and_what_cannot_be_read_is_put_aside() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state");
        let (mut state, loaded) = StateFile::open(&path, "bus").expect("it is made");
        assert!(loaded.records.is_empty() && loaded.damage.is_none());
        let why = StateFile::open(&path, "bus").err().expect("it is in use");
        assert!(why.to_string().starts_with("another daemon uses it;"), "{why}");
        state.replace(&records(2)).expect("it has room");
        state.replace(&records(1)).expect("it has room");
        let mode = |name: &str| path.join(name).metadata().expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode("."), mode(NAME), mode(LOCK)), (0o700, 0o600, 0o600));
        assert!(!path.join(NEW).exists());
        drop(state);
        assert_eq!(open_again(&path).1.records, records(1));
        std::fs::write(path.join(NAME), "something else").expect("it is ours");
        let (state, loaded) = open_again(&path);
        assert!(loaded.records.is_empty() && loaded.damage.is_some());
        assert_eq!(std::fs::read(path.join(UNREADABLE)).expect("it has another name"), b"something else");
        drop(state);
        std::fs::remove_file(path.join(NAME)).expect("it is there");
        std::os::unix::fs::symlink("/dev/zero", path.join(NAME)).expect("a link");
        assert!(StateFile::open(&path, "bus").is_err(), "nothing else is read in its place");
    }
}
