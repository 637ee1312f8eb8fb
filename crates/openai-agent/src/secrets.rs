//! The key of the endpoint, fixed or read from a file that may change; and what is never shown: keys, credentials and
//! the query strings of URLs.
//!
//! Endpoints quote what they were sent: the key in an error, the request's target in a page, a signed URL in a
//! `Location`. Everything that an endpoint or a proxy says passes [`Secrets::mask`] before it is shown in the
//! chat, on stderr or by `check`, and before it is shortened. A model's text is not touched.
//!
//! The invariant: in the output of [`Secrets::mask`] no configured secret of [`SHORTEST`] bytes or more occurs as a
//! word, nor the first [`PREFIX`] bytes of a long one anywhere, nor the query string or the user of any URL. A file is
//! read before each request, on another thread, so that a mounted secret may be rotated; every key that was ever read
//! is known to [`Secrets`] before a request carries it.

use std::cell::RefCell;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use http::HeaderValue;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};
use serde_json::Value as Json;

use super::config::Config;
use super::stdio::note;

/// The replacement for a secret.
pub const MASK: &str = "***";

/// Characters that a URL holds unescaped (RFC 3986, 2.3).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Shorter values protect nothing, and would be found in any text. In bytes.
pub const SHORTEST: usize = 4;

/// Shorter secrets are masked only as whole words: a key `local` is no reason to mask `localhost`.
const SHORT: usize = 8;

/// Longer secrets are masked from this many leading bytes on, since endpoints quote them in part.
pub const PREFIX: usize = 12;

/// Number of keys from a file or a command that are remembered; an endpoint may quote the last but one.
const MOST_LEARNED: usize = 16;

/// Headers of `OPENAI_EXTRA_HEADERS` that name the caller and the format, and are not secrets.
const OPEN_HEADERS: &str = "accept accept-encoding accept-language anthropic-beta anthropic-version content-type \
    http-referer openai-beta openai-organization openai-project referer user-agent x-title";

/// The values to mask.
#[derive(Default)]
pub struct Secrets {
    known: RefCell<Vec<String>>,
    /// Number of secrets known from the start.
    fixed: usize,
    /// The query string of the endpoint, including the question mark.
    query: Option<String>,
}

impl Secrets {
    /// All secrets of a configuration.
    pub fn of(config: &Config) -> Self {
        let mut secrets = Self::default();
        secrets.add(&config.endpoint.api_key.0);
        for (name, value) in &config.endpoint.extra_headers {
            if !OPEN_HEADERS.split_whitespace().any(|open| open == name.as_str())
                && let Ok(value) = value.to_str()
            {
                secrets.add(value);
                // `Bearer KEY`, `Basic CREDENTIALS`: the endpoint may quote the latter alone.
                if let Some((_scheme, credentials)) = value.split_once(' ') {
                    secrets.add(credentials);
                }
            }
        }
        if let Some(query) = config.endpoint.chat_url.query() {
            secrets.query = Some(format!("?{query}"));
            for pair in query.split('&') {
                match pair.split_once('=') {
                    Some(("api-version", _)) => {}
                    Some((_, value)) => secrets.add(value),
                    None => secrets.add(pair),
                }
            }
        }
        secrets.add_named(&config.extra_body);
        secrets
    }

    /// Adds a value known from the start, in all forms in which it may be quoted.
    pub fn add(&mut self, secret: &str) {
        self.learn(secret);
        self.fixed = self.known.borrow().len();
    }

    /// Adds the values of members named like keys: some gateways take them in the body.
    fn add_named(&mut self, members: &serde_json::Map<String, Json>) {
        for (name, value) in members {
            let name = name.to_ascii_lowercase();
            let is_named = ["key", "secret", "password", "credential", "authorization"];
            let is_named = is_named.iter().any(|word| name.contains(word)) || name.ends_with("token");
            match value {
                Json::Object(members) => self.add_named(members),
                Json::String(value) if is_named => self.add(value),
                _ => {}
            }
        }
    }

    /// Adds a key read later.
    pub fn learn(&self, secret: &str) {
        let mut known = self.known.borrow_mut();
        for form in forms(secret) {
            if !known.contains(&form) {
                known.push(form);
            }
        }
        while known.len() > self.fixed + MOST_LEARNED {
            known.remove(self.fixed);
        }
    }

    /// `text` without any secret.
    pub fn mask(&self, text: &str) -> String {
        let mut text = text.to_owned();
        if let Some(query) = &self.query {
            text = text.replace(query, "?***");
        }
        let mut known = self.known.borrow().clone();
        // One may be part of another.
        known.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
        mask_urls(&known.iter().fold(text, |text, secret| mask_secret(&text, secret)))
    }
}

/// A secret literally, escaped for JSON and escaped for a URL.
fn forms(secret: &str) -> Vec<String> {
    let secret = secret.trim();
    if secret.len() < SHORTEST {
        return Vec::new();
    }
    let quoted = Json::from(secret).to_string();
    let encoded = percent_encoding::utf8_percent_encode(secret, UNRESERVED).to_string();
    let decoded = percent_encoding::percent_decode_str(secret).decode_utf8_lossy().into_owned();
    let mut forms = vec![secret.to_owned(), quoted[1..quoted.len() - 1].to_owned(), encoded, decoded];
    forms.dedup();
    forms.retain(|form| form.len() >= SHORTEST);
    forms
}

/// Masks a secret wherever it occurs in full, a short one only as a word; and words that begin like a long one.
fn mask_secret(text: &str, secret: &str) -> String {
    let is_long = secret.len() >= PREFIX + SHORTEST;
    let wanted = (PREFIX..secret.len()).find(|at| is_long && secret.is_char_boundary(*at)).unwrap_or(secret.len());
    let beginning = &secret[..wanted];
    let is_word = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
    let ends = |letter: char| !letter.is_alphanumeric() && !"-_.~+/=%".contains(letter);
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(beginning) {
        let (before, found) = rest.split_at(at);
        let after = &found[beginning.len()..];
        out.push_str(before);
        let is_part = secret.len() < SHORT && (is_word(out.chars().next_back()) || is_word(after.chars().next()));
        out.push_str(if is_part { secret } else { MASK });
        rest = found.strip_prefix(secret).unwrap_or_else(|| &after[after.find(ends).unwrap_or(after.len())..]);
    }
    out.push_str(rest);
    out
}

/// Removes users and query strings from all URLs.
fn mask_urls(text: &str) -> String {
    if !text.contains("://") {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let ends = |letter: char| letter.is_whitespace() || letter.is_control() || "\"'<>\\`{}|".contains(letter);
        let (url, more) = after.split_at(after.find(ends).unwrap_or(after.len()));
        let (place, query) = match url.split_once('?') {
            // It was masked before, and is at the end of a clause.
            Some((_, query)) if query.strip_prefix(MASK).is_some_and(|rest| !rest.contains(char::is_alphanumeric)) => {
                url.split_at(url.len() - query.len() - 1)
            }
            Some((place, _)) => (place, "?***"),
            None => (url, ""),
        };
        let (authority, path) = place.split_at(place.find('/').unwrap_or(place.len()));
        if let Some((_user, host)) = authority.rsplit_once('@') {
            out.push_str("***@");
            out.push_str(host);
        } else {
            out.push_str(authority);
        }
        out.push_str(path);
        out.push_str(query);
        rest = more;
    }
    out.push_str(rest);
    out
}

/// Maximum size of a key file; tokens of identity providers have a few thousand bytes.
const LONGEST: u64 = 64 << 10;

/// The source of the key, and the current key.
pub struct Keyring {
    file: Option<PathBuf>,
    secrets: Rc<Secrets>,
    current: RefCell<Rc<str>>,
}

impl Keyring {
    /// The keyring of a configuration. A key file is read now, so that a mistake shows at startup.
    ///
    /// # Errors
    /// Why the file cannot be used.
    pub fn new(config: &Config, secrets: Rc<Secrets>) -> Result<Self, String> {
        let current = RefCell::new(config.endpoint.api_key.0.as_str().into());
        let keyring = Self { file: config.endpoint.api_key_file.clone(), secrets, current };
        if let Some(path) = &keyring.file {
            keyring.take(read_file(path)?)?;
        }
        Ok(keyring)
    }

    /// The key for a request; it may be empty. A file that is unreadable now is not an error: it may be empty while it
    /// is being rewritten.
    ///
    /// # Errors
    /// Why the key cannot be used, for people.
    pub async fn key(&self) -> Result<Rc<str>, String> {
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

    fn take(&self, key: String) -> Result<Rc<str>, String> {
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
    // Opening a named pipe would wait for a writer.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn secrets(pairs: &[(&str, &str)]) -> Secrets {
        let read = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Secrets::of(&Config::from_env(&mut { read }).unwrap())
    }

    #[test]
    fn a_secret_is_masked_however_it_is_written() {
        let secrets = secrets(&[
            ("OPENAI_API_KEY", "a\"b/c+long-secret"),
            ("OPENAI_BASE_URL", "http://h/v1?key=sig%2Fned-value&api-version=2024-10-21"),
            ("OPENAI_EXTRA_HEADERS", "Authorization: Bearer other-secret\nAccept: text/plain"),
        ]);
        for (text, masked) in [
            ("key a\"b/c+long-secret.", "key ***."),
            (r#"{"key":"a\"b/c+long-secret"}"#, r#"{"key":"***"}"#),
            ("key=a%22b%2Fc%2Blong-secret;", "key=***;"),
            ("sig%2Fned-value or sig/ned-value", "*** or ***"),
            ("POST /v1/models?key=sig%2Fned-value&api-version=2024-10-21 HTTP/1.1", "POST /v1/models?*** HTTP/1.1"),
            ("Bearer other-secret, other-secret", "***, ***"),
            ("no such api-version 2024-10-21, text/plain", "no such api-version 2024-10-21, text/plain"),
        ] {
            assert_eq!(secrets.mask(text), masked);
        }
    }

    #[test]
    fn members_that_are_named_like_keys_are_secrets() {
        let body = r#"{"api_key":"k111","metadata":{"Auth-Token":"k222"},"max_tokens":5,"user":"k333"}"#;
        assert_eq!(secrets(&[("OPENAI_EXTRA_BODY", body)]).mask("k111 k222 k333"), "*** *** k333");
    }

    #[test]
    fn a_short_key_is_masked_only_as_a_word() {
        let secrets = secrets(&[("OPENAI_API_KEY", "local")]);
        assert_eq!(secrets.mask("key 'local' at localhost, nonlocal"), "key '***' at localhost, nonlocal");
        assert_eq!(secrets.mask("locallocal"), "locallocal");
        assert_eq!(self::secrets(&[("OPENAI_API_KEY", "x")]).mask("x marks"), "x marks");
    }

    #[test]
    fn urls_lose_their_users_and_queries() {
        let secrets = Secrets::default();
        for (text, masked) in [
            ("see https://u:p@h:1/a/b?x=1&y=2 now", "see https://***@h:1/a/b?*** now"),
            ("\"http://h?k\",\"http://i/@x\"", "\"http://h?***\",\"http://i/@x\""),
            ("is it? a://b", "is it? a://b"),
            ("to http://h/?***; and on, http://h?***x", "to http://h/?***; and on, http://h?***"),
            ("://", "://"),
        ] {
            assert_eq!(secrets.mask(text), masked);
        }
    }

    #[test]
    fn a_word_that_begins_as_a_key_does_is_masked_to_its_end() {
        // All tokens of an issuer begin alike: one that is no longer remembered is still masked.
        let secrets = secrets(&[("OPENAI_API_KEY", "eyJhbGciOiJSUzI1NiIsImtpZCI6.new.new")]);
        assert_eq!(secrets.mask("(eyJhbGciOiJSUzI1NiIsImtpZCI6.old-token.x) refused"), "(***) refused");
    }

    #[test]
    fn keys_that_change_are_remembered_for_a_while() {
        let secrets = Secrets::default();
        for number in 0..100 {
            secrets.learn(&format!("token-number-{number:03}"));
        }
        assert_eq!(secrets.mask("token-number-099 after token-number-098"), "*** after ***");
        assert!(secrets.known.borrow().len() <= MOST_LEARNED);
    }

    proptest! {
        #[test]
        fn no_text_brings_a_secret_out(key in "[!-~]{8,40}", before in "\\PC{0,20}", after in "\\PC{0,20}", cut in 0usize..40) {
            let secrets = secrets(&[("OPENAI_API_KEY", &key)]);
            let masked = secrets.mask(&format!("{before}{key}{after}"));
            prop_assert!(!masked.contains(&key), "{}", masked);
            if key.len() >= PREFIX + SHORTEST {
                let part = &key[..PREFIX + cut % (key.len() - PREFIX)];
                let masked = secrets.mask(&format!("{before}{part}…"));
                prop_assert!(!masked.contains(part), "{}", masked);
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            secrets(&[("OPENAI_API_KEY", "ключ-secret-key")].map(|(name, _)| (name, "secret-key-000000"))).mask(&text);
        }
    }
}
