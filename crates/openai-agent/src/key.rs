//! The key of the endpoint: fixed, read from a file that changes, or given by a command.
//!
//! A file is looked at before each request, beside this thread, and read when it is another one than before; a command
//! runs when the first request needs a key, and again when the endpoint refuses the one it gave. However many requests
//! wait for a key, one command runs.
//!
//! The invariant: a key that was refused is renewed at most once for each request, and every key that was ever given
//! is known to [`Secrets`] before a request carries it.

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::config::{Config, Secret};
use super::log::note;
use super::secrets::Secrets;

/// How long a command may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Most bytes of a file or of what a command says; tokens of identity providers have some thousands.
const LONGEST: u64 = 64 << 10;

/// A key that requests carry. Two of them are the same if they are one allocation.
pub type Key = Rc<str>;

enum Source {
    Fixed(Key),
    File(PathBuf),
    Command(String),
}

/// Where the key comes from, and the one that is used now.
pub struct Keyring {
    source: Source,
    secrets: Rc<Secrets>,
    current: RefCell<Option<Current>>,
    /// Held while a key is being read: the others wait for the same one.
    turn: Mutex<()>,
}

struct Current {
    key: Key,
    /// The file that it was read from.
    stamp: Option<Stamp>,
}

/// A file as it was; replaced or written to, it is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    changed: (i64, i64),
    modified: Option<SystemTime>,
}

impl Keyring {
    /// The keyring of a configuration.
    pub fn new(config: &Config, secrets: Rc<Secrets>) -> Self {
        let source = match (&config.api_key_file, &config.api_key_command) {
            (Some(path), _) => Source::File(path.clone()),
            (None, Some(Secret(command))) => Source::Command(command.clone()),
            (None, None) => Source::Fixed(config.api_key.0.as_str().into()),
        };
        Self { source, secrets, current: RefCell::new(None), turn: Mutex::new(()) }
    }

    /// Reads a key that lies in a file, so that a mistake is told at the start.
    ///
    /// # Errors
    /// The file cannot be used, and why.
    pub fn try_file(&self) -> Result<(), String> {
        match &self.source {
            Source::File(path) => {
                let (key, stamp) = read_file(path, None)?;
                key.map(|key| self.take(key, stamp)).transpose().map(drop)
            }
            Source::Fixed(_) | Source::Command(_) => Ok(()),
        }
    }

    /// The key for a request; it may be empty.
    ///
    /// # Errors
    /// There is none, and why; for people.
    pub async fn key(&self) -> Result<Key, String> {
        match &self.source {
            Source::Fixed(key) => return Ok(key.clone()),
            Source::Command(_) => {
                if let Some(current) = &*self.current.borrow() {
                    return Ok(current.key.clone());
                }
            }
            Source::File(_) => {}
        }
        let _turn = self.turn.lock().await;
        match &self.source {
            Source::Fixed(key) => Ok(key.clone()),
            Source::File(path) => self.read_from(path).await,
            Source::Command(command) => {
                let current = self.current.borrow().as_ref().map(|current| current.key.clone());
                match current {
                    Some(key) => Ok(key),
                    None => self.take(run(command).await?, None),
                }
            }
        }
    }

    /// The endpoint refused this key: whether there is another one now.
    ///
    /// # Errors
    /// There is none, and why; for people.
    pub async fn renew(&self, refused: &Key) -> Result<bool, String> {
        if let Source::Fixed(_) = self.source {
            return Ok(false);
        }
        let _turn = self.turn.lock().await;
        // Somebody else may have renewed it while this one was refused.
        let current = self.current.borrow().as_ref().map(|current| current.key.clone());
        if let Some(key) = current.filter(|key| !Rc::ptr_eq(key, refused)) {
            return Ok(key != *refused);
        }
        let key = match &self.source {
            Source::Fixed(_) => return Ok(false),
            Source::File(path) => self.read_from(path).await?,
            Source::Command(command) => {
                note!(Info, "The endpoint refuses the key: OPENAI_API_KEY_COMMAND runs again.");
                self.take(run(command).await?, None)?
            }
        };
        Ok(key != *refused)
    }

    async fn read_from(&self, path: &Path) -> Result<Key, String> {
        let known = self.current.borrow().as_ref().and_then(|current| current.stamp);
        let path = path.to_owned();
        let read = tokio::task::spawn_blocking(move || read_file(&path, known)).await;
        let read = read.map_err(|error| error.to_string()).and_then(|read| read);
        let current = self.current.borrow().as_ref().map(|current| current.key.clone());
        match (read, current) {
            (Ok((Some(key), stamp)), _) => self.take(key, stamp),
            (Ok((None, _)), Some(key)) => Ok(key),
            (Ok((None, _)), None) => Err("OPENAI_API_KEY_FILE holds no key".to_owned()),
            // Whoever writes it anew may have emptied it first.
            (Err(problem), Some(key)) => {
                note!(Warn, "{problem}; the key before is used.");
                Ok(key)
            }
            (Err(problem), None) => Err(problem),
        }
    }

    fn take(&self, key: String, stamp: Option<Stamp>) -> Result<Key, String> {
        self.secrets.learn(&key);
        if HeaderValue::from_str(&key).is_err() {
            return Err(format!("the key of {} has characters that a header cannot carry", self.name()));
        }
        let key = Key::from(key);
        *self.current.borrow_mut() = Some(Current { key: key.clone(), stamp });
        Ok(key)
    }

    fn name(&self) -> &'static str {
        match self.source {
            Source::Fixed(_) => "OPENAI_API_KEY",
            Source::File(_) => "OPENAI_API_KEY_FILE",
            Source::Command(_) => "OPENAI_API_KEY_COMMAND",
        }
    }
}

/// Reads the file unless it is the one that is known.
fn read_file(path: &Path, known: Option<Stamp>) -> Result<(Option<String>, Option<Stamp>), String> {
    use std::io::Read;
    let unusable = |problem: &dyn std::fmt::Display| format!("OPENAI_API_KEY_FILE: {}: {problem}", path.display());
    // Opening a named pipe would wait for whoever writes into it.
    let metadata = std::fs::metadata(path).map_err(|error| unusable(&error))?;
    if !metadata.is_file() {
        return Err(unusable(&"is not a file"));
    }
    let stamp = Stamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        length: metadata.len(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
        modified: metadata.modified().ok(),
    };
    if known == Some(stamp) {
        return Ok((None, known));
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| unusable(&error))?;
    file.take(LONGEST).read_to_string(&mut text).map_err(|error| unusable(&error))?;
    match text.trim() {
        "" => Err(unusable(&"is empty")),
        key => Ok((Some(key.to_owned()), Some(stamp))),
    }
}

/// A running command; with this it ends, and all that it started.
struct Running(Option<Pid>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It fails only where there is nobody left.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// What a command writes to its stdout; its stderr is ours. The command itself is not told: it may hold secrets.
async fn run(command: &str) -> Result<String, String> {
    let failed = |problem: String| format!("OPENAI_API_KEY_COMMAND {problem}");
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(format!("cannot be started: {error}")))?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let mut running = Running(group);
    let stdout = child.stdout.take();
    let work = async {
        let text = match stdout {
            Some(stdout) => read_all(stdout).await,
            None => Ok(Vec::new()),
        };
        (text, child.wait().await)
    };
    let (text, status) = match timeout(PATIENCE, work).await {
        Ok(outcome) => outcome,
        Err(_) => return Err(failed(format!("gave no key within {} s", PATIENCE.as_secs()))),
    };
    // Its group may live on in something that it left running on purpose, and its number is free for others.
    running.0 = None;
    let status = status.map_err(|error| failed(format!("cannot be waited for: {error}")))?;
    if !status.success() {
        return Err(failed(format!("failed ({status})")));
    }
    let text = text.map_err(|error| failed(format!("cannot be read: {error}")))?;
    let text = String::from_utf8(text).map_err(|_| failed("gave a key that is no text".to_owned()))?;
    match text.trim() {
        "" => Err(failed("gave no key".to_owned())),
        key if key.contains('\n') => Err(failed("gave more than one line".to_owned())),
        key => Ok(key.to_owned()),
    }
}

async fn read_all(from: impl AsyncRead + Unpin) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    from.take(LONGEST).read_to_end(&mut text).await?;
    Ok(text)
}
