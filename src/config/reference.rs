//! Values in `pools[].env` that are read at each start of a worker: `"$file:PATH"`, `"$env:NAME"`.

use std::path::Path;

/// Where the value of a variable in `env` comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'c> {
    /// It is this text.
    Text(&'c str),
    /// It is the content of this file, without its last newline.
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

/// Why what a text in `env` refers to cannot be read now.
pub(super) fn unreadable(text: &str) -> Option<String> {
    match Value::of(text) {
        Value::Text(_) => None,
        Value::File(path) => path.metadata().err().map(|error| format!("{}: {error}", path.display())),
        Value::Env(name) => std::env::var_os(name).is_none().then(|| format!("the daemon has no variable {name}")),
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
}
