//! The key of the endpoint: fixed, or read from a file that may change.
//!
//! A file is read before each request, beside this thread, so that a mounted secret may be rotated. The invariant: every
//! key that was ever read is known to [`Secrets`] before a request carries it.

use std::cell::RefCell;
use std::io::Read;
use std::path::Path;
use std::rc::Rc;

use http::HeaderValue;

use super::config::Config;
use super::log::note;
use super::secrets::Secrets;

/// Most bytes of a file; tokens of identity providers have some thousands.
const LONGEST: u64 = 64 << 10;

/// A key that requests carry.
pub type Key = Rc<str>;

/// Where the key comes from, and the one that is used now.
pub struct Keyring {
    file: Option<std::path::PathBuf>,
    secrets: Rc<Secrets>,
    current: RefCell<Key>,
}

impl Keyring {
    /// The keyring of a configuration. A key that lies in a file is read now, so that a mistake is told at the start.
    ///
    /// # Errors
    /// The file cannot be used, and why.
    pub fn new(config: &Config, secrets: Rc<Secrets>) -> Result<Self, String> {
        let current = RefCell::new(config.api_key.0.as_str().into());
        let keyring = Self { file: config.api_key_file.clone(), secrets, current };
        if let Some(path) = &keyring.file {
            keyring.take(read_file(path)?)?;
        }
        Ok(keyring)
    }

    /// The key for a request; it may be empty. A file that cannot be read now costs nothing: whoever writes it anew may
    /// have emptied it first.
    ///
    /// # Errors
    /// The key cannot be used, and why; for people.
    pub async fn key(&self) -> Result<Key, String> {
        let Some(path) = self.file.clone() else { return Ok(self.current.borrow().clone()) };
        let read = tokio::task::spawn_blocking(move || read_file(&path)).await;
        match read.map_err(|error| error.to_string()).and_then(|read| read) {
            Ok(key) => self.take(key),
            Err(problem) => {
                note!(Warn, "{problem}; the key before is used.");
                Ok(self.current.borrow().clone())
            }
        }
    }

    fn take(&self, key: String) -> Result<Key, String> {
        if *key != **self.current.borrow() {
            self.secrets.learn(&key);
            if HeaderValue::from_str(&key).is_err() {
                return Err("the key of OPENAI_API_KEY_FILE has characters that a header cannot carry".to_owned());
            }
            *self.current.borrow_mut() = key.into();
        }
        Ok(self.current.borrow().clone())
    }
}

fn read_file(path: &Path) -> Result<String, String> {
    let unusable = |problem: &dyn std::fmt::Display| format!("OPENAI_API_KEY_FILE: {}: {problem}", path.display());
    let mut text = String::new();
    // Opening a named pipe would wait for whoever writes into it.
    if !std::fs::metadata(path).map_err(|error| unusable(&error))?.is_file() {
        return Err(unusable(&"is not a file"));
    }
    let file = std::fs::File::open(path).map_err(|error| unusable(&error))?;
    file.take(LONGEST).read_to_string(&mut text).map_err(|error| unusable(&error))?;
    match text.trim() {
        "" => Err(unusable(&"is empty")),
        key => Ok(key.to_owned()),
    }
}
