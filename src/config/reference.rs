//! Values in `pools[].env` that are read at each start of a worker: `"$file:PATH"`, `"$env:NAME"`.

use std::fmt;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use zeroize::Zeroizing;

use crate::small_file;

/// Maximum size of a value in bytes: execve(2) takes no longer strings than 32 pages of 4 KiB, with the name, the `=` and a
/// zero byte.
const LARGEST: usize = 128 * 1024 - 1024;

/// Where the value of a variable in `env` comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'c> {
    /// It is this text.
    Text(&'c str),
    /// It is the content of this file, without its last line break.
    File(&'c Path),
    /// It is that of this variable of the daemon.
    Env(&'c str),
}

impl<'c> Value<'c> {
    /// What a text in `env` stands for. One dollar more makes it the text itself.
    pub(crate) fn of(text: &'c str) -> Self {
        let begins = |text: &str| text.starts_with("file:") || text.starts_with("env:");
        if text.starts_with("$$") && begins(text.trim_start_matches('$')) {
            return Self::Text(&text[1..]);
        }
        let file = text.strip_prefix("$file:").map(|path| Self::File(Path::new(path)));
        file.or_else(|| text.strip_prefix("$env:").map(Self::Env)).unwrap_or(Self::Text(text))
    }
}

/// Why a text cannot stand in `env`, and what to write.
pub(super) fn reference_fault(text: &str) -> Option<(String, &'static str)> {
    const LITERAL: &str = "a value that begins with $file: or $env: itself is written with $$";
    match Value::of(text) {
        Value::File(path) if !path.is_absolute() => {
            Some((format!("names the file {path:?}, whose path has to begin with a slash"), LITERAL))
        }
        Value::Env(name) if name.is_empty() || name.contains('=') => {
            Some((format!("names the variable {name:?}, which cannot be one"), LITERAL))
        }
        Value::Text(_) | Value::File(_) | Value::Env(_) => None,
    }
}

/// What a text in `env` of a pool stands for. A shortage of descriptors or memory stays the error that it is.
///
/// # Errors
/// It refers to something that cannot be read, or to what no variable can have.
pub(crate) fn read(text: &str) -> io::Result<Zeroizing<Vec<u8>>> {
    match Value::of(text) {
        Value::Text(text) => Ok(Zeroizing::new(text.as_bytes().to_vec())),
        Value::File(path) => of_file(path).map_err(|error| named(error, path.display())),
        Value::Env(name) => {
            let value = std::env::var_os(name).map(|value| Zeroizing::new(value.into_vec()));
            value.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("the daemon has no variable {name}")))
        }
    }
}

fn of_file(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(small_file::read(path)?);
    if bytes.pop_if(|last| *last == b'\n').is_some() {
        bytes.pop_if(|last| *last == b'\r');
    }
    match () {
        () if bytes.contains(&0) => Err(io::Error::other("it has a zero byte")),
        () if bytes.len() > LARGEST => {
            Err(io::Error::other(format!("it is larger than {LARGEST} bytes, and can be no variable")))
        }
        () => Ok(bytes),
    }
}

/// An error with what it is about, unless it is a shortage: that is recognized by its number.
pub(crate) fn named(error: io::Error, what: impl fmt::Display) -> io::Error {
    match small_file::is_short(&error) {
        true => error,
        false => io::Error::new(error.kind(), format!("{what}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_texts_that_begin_so_are_references_and_one_dollar_more_makes_them_texts() {
        for (text, value) in [
            ("$file:/run/secret", Value::File(Path::new("/run/secret"))),
            ("$env:HOME", Value::Env("HOME")),
            ("$$env:HOME", Value::Text("$env:HOME")),
            ("$$file:/x", Value::Text("$file:/x")),
            ("$$$env:HOME", Value::Text("$$env:HOME")),
            ("p@$$w0rd", Value::Text("p@$$w0rd")),
            ("$$", Value::Text("$$")),
            ("a$env:HOME", Value::Text("a$env:HOME")),
            ("$ENV:HOME", Value::Text("$ENV:HOME")),
            ("", Value::Text("")),
        ] {
            assert_eq!(Value::of(text), value, "{text}");
        }
        for bad in ["$file:", "$file:run/secret", "$env:", "$env:A=B"] {
            assert!(reference_fault(bad).is_some(), "{bad}");
        }
        assert_eq!(reference_fault("$$file:x"), None);
    }

    #[test]
    fn a_file_is_a_value_without_its_last_line_break_and_what_no_variable_can_have_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("key");
        let read_of = |content: &[u8]| {
            std::fs::write(&file, content).expect("a file");
            read(&format!("$file:{}", file.display())).map(|value| value.to_vec()).map_err(|error| error.to_string())
        };
        for (content, value) in [
            ("a", "a"),
            ("a\n", "a"),
            ("a\r\n", "a"),
            ("a\r", "a\r"),
            ("a\n\n", "a\n"),
            ("a\nb\r\n", "a\nb"),
            ("\n", ""),
            ("", ""),
        ] {
            assert_eq!(read_of(content.as_bytes()), Ok(value.into()), "{content:?}");
        }
        assert_eq!(read_of(&vec![b'a'; LARGEST]).map(|value| value.len()), Ok(LARGEST));
        for (content, why) in [(b"a\0".to_vec(), "zero byte"), (vec![b'a'; LARGEST + 1], "can be no variable")] {
            let message = read_of(&content).expect_err(why);
            assert!(message.contains(why) && message.starts_with(&file.display().to_string()), "{message}");
        }
    }

    #[test]
    fn a_shortage_stays_recognizable() {
        let named = |code| named(io::Error::from_raw_os_error(code), "/key");
        assert_eq!(named(libc::EMFILE).raw_os_error(), Some(libc::EMFILE));
        assert!(named(libc::EACCES).to_string().starts_with("/key: "));
    }
}
