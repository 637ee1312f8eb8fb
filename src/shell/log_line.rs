//! Formats a log entry as a line: as text, or as a JSON object. It does no I/O.
//!
//! Whatever an entry contains, it is one line without control characters: clients and workers must not be able to forge
//! a line or to move the cursor of a reader's terminal.

use std::fmt::{self, Write as _};
use std::time::{Duration, SystemTime};

use tracing::Level;
use tracing::field::{Field, Visit};

use super::stderr::LONGEST_LINE;
use crate::bus::report::WorkerName;
use crate::calendar;
use crate::printable;

/// The format of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LineFormat {
    /// As a JSON object.
    pub json: bool,
    /// For the journal: each line begins with its priority (sd-daemon(3)), and text lines have no time, since the
    /// journal records it.
    pub journal: bool,
}

impl LineFormat {
    /// The priority prefix of this level.
    pub(super) fn priority(self, level: Level) -> &'static str {
        match level {
            _ if !self.journal => "",
            Level::ERROR => "<3>",
            Level::WARN => "<4>",
            Level::INFO => "<6>",
            _ => "<7>",
        }
    }
}

/// Bytes of most messages, and of a line besides its message and its fields; these have twice as many.
const USUAL: usize = 96;

pub(super) struct Entry {
    look: LineFormat,
    level: Level,
    message: String,
    /// The formatted fields.
    pub fields: String,
}

impl Entry {
    /// An empty entry.
    pub(super) fn new(look: LineFormat, level: Level) -> Self {
        Self { look, level, message: String::new(), fields: String::new() }
    }

    /// Sets the message.
    pub(super) fn message(&mut self, message: impl fmt::Display) -> &mut Self {
        // Each connection has two lines, which would be moved a dozen times as they grow.
        self.message.reserve(USUAL);
        self.fields.reserve(2 * USUAL);
        let _ = write!(Shown { json: self.look.json, out: &mut self.message }, "{message}");
        self
    }

    fn name(&mut self, name: &str) {
        // There may be a hundred thousand lines per second, and constants cost less.
        let (before, behind) = if self.look.json { (",\"", "\":") } else { (" ", "=") };
        [before, name, behind].into_iter().for_each(|part| self.fields.push_str(part));
    }

    fn quote(&mut self) {
        self.fields.push_str(if self.look.json { "\"" } else { "" });
    }

    /// Adds a field whose text is valid in either format verbatim.
    pub(super) fn word(&mut self, name: &str, word: &str) -> &mut Self {
        self.name(name);
        self.quote();
        self.fields.push_str(word);
        self.quote();
        self
    }

    /// Adds a text field.
    pub(super) fn text(&mut self, name: &str, value: &str) -> &mut Self {
        self.name(name);
        self.quote();
        show(value.as_bytes(), self.look.json, usize::MAX, &mut self.fields);
        self.quote();
        self
    }

    /// Adds a field with what is shown as this text.
    pub(super) fn shown(&mut self, name: &str, value: impl fmt::Display) -> &mut Self {
        self.name(name);
        self.quote();
        let _ = write!(Shown { json: self.look.json, out: &mut self.fields }, "{value}");
        self.quote();
        self
    }

    /// Adds a field with text from a peer, which must not look like another field.
    pub(super) fn chosen(&mut self, name: &str, value: &str) -> &mut Self {
        if is_plain(value) {
            return self.word(name, value);
        }
        let is_one = !value.contains(|c: char| c.is_whitespace() || c == '"' || c == '=');
        match self.look.json || is_one {
            true => self.text(name, value),
            false => self.text(name, &format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))),
        }
    }

    /// Adds a number or a boolean.
    pub(super) fn plain(&mut self, name: &str, value: impl fmt::Display) -> &mut Self {
        self.name(name);
        let _ = write!(self.fields, "{value}");
        self
    }

    /// Adds an integer.
    pub(super) fn number(&mut self, name: &str, number: impl itoa::Integer) -> &mut Self {
        self.name(name);
        self.fields.push_str(itoa::Buffer::new().format(number));
        self
    }

    /// Adds a duration in milliseconds, with three decimals.
    pub(super) fn milliseconds(&mut self, name: &str, time: Duration) -> &mut Self {
        let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.number(name, microseconds / 1000).fields.push('.');
        // Without the first digit, which keeps the leading zeros.
        self.fields.push_str(&itoa::Buffer::new().format(1000 + microseconds % 1000)[1..]);
        self
    }

    /// Adds the name of a worker.
    pub(super) fn worker(&mut self, pool: &str, worker: WorkerName) -> &mut Self {
        self.name("worker");
        self.quote();
        match is_plain(pool) {
            true => self.fields.push_str(pool),
            false => _ = show(pool.as_bytes(), self.look.json, usize::MAX, &mut self.fields),
        }
        self.fields.push('/');
        self.fields.push_str(itoa::Buffer::new().format(worker.place));
        self.quote();
        self.number("incarnation", worker.incarnation)
    }

    /// Adds a JSON token verbatim, if every parser accepts it: unpaired surrogates and huge numbers become text.
    pub(super) fn token(&mut self, name: &str, token: &str) -> &mut Self {
        let inner = token.strip_prefix('"').and_then(|token| token.strip_suffix('"'));
        let is_number = token.len() < 16 && !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_digit());
        if is_number || inner.is_some_and(is_plain) {
            self.name(name);
            self.fields.push_str(token);
            return self;
        }
        match serde_json::from_str::<serde_json::Value>(token) {
            Ok(_) if self.look.json => self.plain(name, printable::json(token.trim())),
            _ => self.text(name, token),
        }
    }

    /// The complete line, with its newline.
    pub(super) fn line(&self) -> Vec<u8> {
        let mut line = String::with_capacity(USUAL + self.message.len() + self.fields.len());
        begin_in(&mut line, self.look, self.level, &self.message);
        line.push_str(&self.fields);
        line.push_str(end(self.look));
        line.into_bytes()
    }
}

/// A line up to its fields.
pub(super) fn begin(look: LineFormat, level: Level, message: &str) -> String {
    let mut line = String::with_capacity(USUAL + message.len());
    begin_in(&mut line, look, level, message);
    line
}

fn begin_in(line: &mut String, look: LineFormat, level: Level, message: &str) {
    let (priority, name) = (look.priority(level), level.as_str());
    let time = if look.journal && !look.json { String::new() } else { calendar::to_the_millisecond(SystemTime::now()) };
    // Columns are as wide as the longest name.
    let blanks = &"      "[name.len().min(5)..];
    let parts = match look {
        LineFormat { json: true, .. } => {
            [priority, "{\"time\":\"", &time, "\",\"level\":\"", name, "\",\"message\":\"", message, "\""]
        }
        LineFormat { journal: true, .. } => [priority, name, blanks, message, "", "", "", ""],
        _ => [&time, " ", name, blanks, message, "", "", ""],
    };
    parts.into_iter().for_each(|part| line.push_str(part));
}

/// The end of a line, after its fields.
pub(super) fn end(look: LineFormat) -> &'static str {
    if look.json { "}\n" } else { "\n" }
}

/// Whether text is valid in either format verbatim.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, 0x21..=0x7e) && !matches!(byte, b'"' | b'\\' | b'='))
}

impl Visit for Entry {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => _ = self.message(format_args!("{value:?}")),
            name => _ = self.text(name, &format!("{value:?}")),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.plain(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.plain(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field.name(), value);
    }
}

/// A line that the named worker wrote to stderr, without its newline: `kept` is the beginning of `length` bytes. At
/// most [`LONGEST_LINE`] bytes of it are shown.
pub(super) fn of_worker(
    look: LineFormat,
    level: Level,
    (pool, worker): (&str, WorkerName),
    kept: &[u8],
    length: usize,
) -> Vec<u8> {
    let mut text = String::with_capacity(kept.len() + 64);
    let shown = show(kept, look.json, LONGEST_LINE, &mut text);
    let is_cut = shown < length;
    if look.json {
        let mut entry = Entry { look, level, message: text, fields: String::new() };
        entry.worker(pool, worker).word("stream", "stderr");
        return if is_cut { entry.number("length", length) } else { &entry }.line();
    }
    let cut = if is_cut { format!("… (cut: {length} bytes in all)") } else { String::new() };
    format!("{}[{pool}/{}] {text}{cut}\n", look.priority(level), worker.place).into_bytes()
}

/// Escapes as much of `bytes` as fits into `most` bytes, for a JSON string or for a terminal. Returns how many of
/// `bytes` that is.
fn show(bytes: &[u8], json: bool, most: usize, out: &mut String) -> usize {
    let (start, mut shown) = (out.len(), 0);
    for chunk in bytes.utf8_chunks() {
        let text = show_text(chunk.valid(), json, most - (out.len() - start), out);
        shown += text;
        if text < chunk.valid().len() {
            return shown;
        }
        let (before, broken) = (out.len(), chunk.invalid());
        match json {
            _ if broken.is_empty() => {}
            true => out.push(char::REPLACEMENT_CHARACTER),
            false => broken.iter().for_each(|byte| _ = write!(out, "\\x{byte:02x}")),
        }
        if out.len() - start > most {
            out.truncate(before);
            return shown;
        }
        shown += broken.len();
    }
    shown
}

/// The same for text.
fn show_text(mut text: &str, json: bool, most: usize, out: &mut String) -> usize {
    let (start, length) = (out.len(), text.len());
    loop {
        // Most of it stays as it is.
        let is_special = |byte: u8| !matches!(byte, b' '..=b'~') || matches!(byte, b'"' | b'\\');
        let plain = text.bytes().position(is_special).unwrap_or(text.len());
        let fits = plain.min(most - (out.len() - start));
        out.push_str(&text[..fits]);
        text = &text[fits..];
        let Some(special) = text.chars().next().filter(|_| fits == plain) else { return length - text.len() };
        let before = out.len();
        if json {
            escape_for_json(special, out)
        } else {
            escape_for_people(special, out)
        }
        if out.len() - start > most {
            out.truncate(before);
            return length - text.len();
        }
        text = &text[special.len_utf8()..];
    }
}

/// Takes text, and shows it.
struct Shown<'o> {
    json: bool,
    out: &'o mut String,
}

impl fmt::Write for Shown<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        show_text(text, self.json, usize::MAX, self.out);
        Ok(())
    }
}

fn escape_for_json(c: char, out: &mut String) {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' => out.extend(c.escape_default()),
        '\0'..='\x1f' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        // All of them are below U+10000.
        _ if printable::is_obeyed(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        _ => out.push(c),
    }
}

/// Escapes control and bidirectional characters.
fn escape_for_people(c: char, out: &mut String) {
    match c {
        '\t' => out.push(c),
        '\n' | '\r' => out.extend(c.escape_default()),
        '\0'..='\x1f' | '\x7f' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
        _ if printable::is_obeyed(c) => out.extend(c.escape_unicode()),
        _ => out.push(c),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bus::index::PoolId;

    const TEXT: LineFormat = LineFormat { json: false, journal: false };
    const JSON: LineFormat = LineFormat { json: true, journal: false };
    const JOURNAL: LineFormat = LineFormat { json: false, journal: true };

    fn line(entry: &mut Entry) -> String {
        String::from_utf8(entry.line()).expect("text")
    }

    fn logged(look: LineFormat, kept: &[u8], length: usize) -> String {
        let worker = WorkerName { pool: PoolId::at(0), place: 0, incarnation: 7 };
        String::from_utf8(of_worker(look, Level::INFO, ("claude", worker), kept, length)).expect("text")
    }

    fn object(line: &str) -> serde_json::Value {
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    #[test]
    fn numbers_booleans_and_ids_keep_their_json_types() {
        let entry = |id: &str| {
            let mut entry = Entry::new(JSON, Level::WARN);
            entry.message("it says \"no\"").text("reason", "timeout");
            object(&line(entry.token("id", id).number("client", 4).plain("last", true)))
        };
        let mut whole = entry("7");
        assert!(whole["time"].as_str().is_some_and(|time| time.ends_with('Z')));
        whole.as_object_mut().map(|fields| fields.remove("time"));
        let expected = json!({ "level": "WARN", "message": "it says \"no\"", "reason": "timeout", "id": 7, "client": 4,
            "last": true });
        assert_eq!(whole, expected);
        assert_eq!(entry(r#""a\"b\n""#)["id"], "a\"b\n");
        for token in [r#""cut"#, r#""\ud800""#, "1e400"] {
            assert_eq!(entry(token)["id"], token, "what some parser refuses is text");
        }
    }

    #[test]
    fn an_entry_is_one_line_without_control_characters() {
        let mut entry = Entry::new(TEXT, Level::ERROR);
        entry.message("a\nb\u{9b}1m").text("name", "\u{202e}x");
        let line = line(entry.token("id", r#""é\n""#));
        assert!(line.ends_with(" ERROR a\\nb\\u{9b}1m name=\\u{202e}x id=\"é\\n\"\n"), "{line}");
    }

    #[test]
    fn an_entry_begins_with_its_time_and_its_level_in_a_column() {
        for (level, column) in [(Level::INFO, " INFO  "), (Level::ERROR, " ERROR ")] {
            let text = line(Entry::new(TEXT, level).message("a \"b\" \\ c").shown("from", "1.2.3.4:5\n"));
            let (time, rest) = text.split_at("2026-01-31T23:59:59.999Z".len());
            assert!(time.ends_with('Z') && time.as_bytes()[10] == b'T', "{text}");
            assert_eq!(rest, format!("{column}a \"b\" \\ c from=1.2.3.4:5\\n\n"));
        }
    }

    #[test]
    fn a_json_entry_has_no_control_characters_either() {
        let mut entry = Entry::new(JSON, Level::ERROR);
        entry.message("a\u{9b}1m\u{7f}").text("name", "\u{202e}x");
        let line = line(entry.token("id", "\"\u{85}\u{200f}\""));
        assert!(line.contains(r#""message":"a\u009b1m\u007f","name":"\u202ex","id":"\u0085\u200f""#), "{line}");
        let text = logged(JSON, "\u{9b}2J".as_bytes(), 4);
        assert!(text.contains(r#""message":"\u009b2J""#), "{text}");
    }

    #[test]
    fn a_workers_control_characters_are_escaped() {
        assert_eq!(logged(TEXT, b"a\tb\x1b[31m\0\r\xff\x7f", 12), "[claude/0] a\tb\\x1b[31m\\x00\\r\\xff\\x7f\n");
        let value = object(&logged(JSON, b"\"\x1b[31m\xff", 7));
        let expected = json!({ "time": value["time"], "level": "INFO", "message": "\"\u{1b}[31m\u{fffd}",
            "worker": "claude/0", "incarnation": 7, "stream": "stderr" });
        assert_eq!(value, expected);
    }

    #[test]
    fn a_workers_long_line_is_cut_whatever_its_escapes_and_its_length_is_shown() {
        let all = |byte: u8| vec![byte; LONGEST_LINE];
        let whole = logged(TEXT, &all(b'x'), LONGEST_LINE);
        assert!(whole.ends_with("xxx\n") && whole.len() == LONGEST_LINE + "[claude/0] \n".len());
        for byte in [b'x', 0, 0xff, b'"'] {
            let text = logged(TEXT, &all(byte), 99_999);
            assert!(text.ends_with("… (cut: 99999 bytes in all)\n") && text.len() < LONGEST_LINE + 100, "{byte}");
            let json = logged(JSON, &all(byte), 99_999);
            assert!(json.len() < LONGEST_LINE + 300 && object(&json)["length"] == 99_999, "{byte}");
        }
    }

    #[test]
    fn the_journal_gets_the_priority_and_no_time() {
        for (level, begin) in [
            (Level::ERROR, "<3>ERROR x"),
            (Level::WARN, "<4>WARN  x"),
            (Level::INFO, "<6>INFO  x"),
            (Level::DEBUG, "<7>DEBUG x"),
        ] {
            assert_eq!(line(Entry::new(JOURNAL, level).message("x")), format!("{begin}\n"));
        }
        assert_eq!(logged(JOURNAL, b"x", 1), "<6>[claude/0] x\n");
        let both = LineFormat { json: true, ..JOURNAL };
        assert!(line(Entry::new(both, Level::INFO).message("x")).starts_with("<6>{\"time\":"));
    }
}
