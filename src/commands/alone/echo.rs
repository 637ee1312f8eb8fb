//! The built-in echo worker, `stdio_bus worker echo`: it answers each request with the request's own params.
//!
//! It runs when no worker is configured, and the throughput benchmark uses it, so it costs as little as a worker can:
//! large reads, the bus's own scanner, tokens copied verbatim, one write for all lines of a read. It never rewrites a
//! token, and no line makes it exit.
//!
//! | a line | its answer |
//! |---|---|
//! | request | `{"jsonrpc":"2.0","id":…,"sessionId":…,"result":{"echo":params,"method":…}}`; `sessionId` only if it was at top level, `echo` is null without params |
//! | notification of a session | `{"jsonrpc":"2.0","method":"echo.notification","sessionId":…,"params":{"original":method,"echo":params}}` |
//! | other notification, response, blank line | none |
//! | anything else | none; a line on stderr |

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};

use crate::scan::{BATCH, Fault, Line, PAD, Partial, ScanResult, Scanner, SkipValue, Window, is_decoded};

/// Minimum room for a read.
const BLOCK: usize = 256 * 1024;

/// Maximum length of a line; the scanner's offsets have 32 bits. Longer ones are skipped.
const MAX_LINE: usize = 1 << 30;

/// Serves stdin and stdout until stdin ends or stdout is closed.
///
/// # Errors
/// The error of read(2) or write(2).
pub fn run() -> io::Result<()> {
    // The standard library's own handles would add a second buffer on each side.
    let stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    serve(&mut BlockingFile(stdin), &mut BlockingFile(stdout), &mut io::stderr())
}

/// Answers the lines of `input` on `output`, and reports bad ones on `log`.
fn serve(input: &mut impl Read, output: &mut impl Write, log: &mut impl Write) -> io::Result<()> {
    let mut echo = Echo::new();
    loop {
        let received = match input.read(echo.room()) {
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if received == 0 {
            // `printf '{…}' | stdio_bus worker echo` sends a last line without its newline.
            echo.room()[0] = b'\n';
        }
        echo.received(received.max(1), log);
        match output.write_all(&echo.answers) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            other => other?,
        }
        echo.answers.clear();
        if received == 0 {
            return Ok(());
        }
    }
}

/// The worker's state: received bytes that are not consumed yet, and answers not written yet.
struct Echo {
    scanner: Scanner,
    partial: Partial,
    lines: Vec<Line>,
    /// A pad, `length` received bytes that begin with a line, room for more, a pad.
    buffer: Vec<u8>,
    length: usize,
    /// Skipping to the next newline.
    skipping: bool,
    answers: Vec<u8>,
}

impl Echo {
    fn new() -> Self {
        Self {
            scanner: Scanner::new(),
            partial: Partial::new(),
            lines: Vec::with_capacity(BATCH),
            buffer: vec![0; PAD + BLOCK + PAD],
            length: 0,
            skipping: false,
            answers: Vec::with_capacity(2 * BLOCK),
        }
    }

    /// The room for the next bytes; never empty.
    fn room(&mut self) -> &mut [u8] {
        if self.buffer.len() - 2 * PAD - self.length < BLOCK / 4 {
            // Doubling keeps the copying linear in the length of a growing line.
            let larger = 2 * self.buffer.len();
            self.buffer.resize(larger, 0);
        }
        let end = self.buffer.len() - PAD;
        &mut self.buffer[PAD + self.length..end]
    }

    /// Takes the `count` bytes that were put into [`Echo::room`].
    fn received(&mut self, count: usize, log: &mut impl Write) {
        self.length += count;
        // The start of the window; it moves only when the scanner restarts.
        let mut start = PAD;
        let end = PAD + self.length;
        loop {
            if self.skipping {
                self.partial.reset();
                match memchr::memchr(b'\n', &self.buffer[start..end]) {
                    Some(newline) => start += newline + 1,
                    None => {
                        self.length = 0;
                        return;
                    }
                }
                self.skipping = false;
            }
            let window = Window::new(&self.buffer, start, end);
            let outcome = self.scanner.scan(&mut self.partial, window, &mut self.lines);
            for line in self.lines.drain(..) {
                answer(window, &line, &mut self.answers);
            }
            match outcome {
                ScanResult::Full => {}
                ScanResult::More => break,
                ScanResult::Malformed { line, fault, .. } => {
                    complain(log, why(fault), &window.data()[line..]);
                    start += line;
                    self.skipping = true;
                }
            }
        }
        let rest = start + self.partial.consume();
        self.length = end - rest;
        if self.length > MAX_LINE {
            complain(log, "longer than 1 GiB", &self.buffer[rest..end]);
            self.skipping = true;
            self.length = 0;
        } else if rest != PAD {
            self.buffer.copy_within(rest..end, PAD);
        }
    }
}

/// Appends the answer to one line, if it has one.
fn answer(window: Window<'_>, line: &Line, out: &mut Vec<u8>) {
    if !line.method.is_some() || line.has(Line::ID_INVALID) {
        return;
    }
    let session = if line.session.is_some() { line.session } else { line.params_session };
    if !line.id.is_some() && !session.is_some() {
        return;
    }
    let method = window.get(line.method);
    let params = params(window.get(line.span)).unwrap_or(b"null");
    if line.id.is_some() {
        put(out, &[br#"{"jsonrpc":"2.0","id":"#, window.get(line.id)]);
        if line.session.is_some() {
            put(out, &[br#","sessionId":"#, window.get(line.session)]);
        }
        put(out, &[br#","result":{"echo":"#, params, br#","method":"#, method, b"}}\n"]);
    } else {
        let head = br#"{"jsonrpc":"2.0","method":"echo.notification","sessionId":"#;
        put(out, &[head, window.get(session), br#","params":{"original":"#, method, br#","echo":"#, params, b"}}\n"]);
    }
}

fn put(out: &mut Vec<u8>, pieces: &[&[u8]]) {
    for piece in pieces {
        out.extend_from_slice(piece);
    }
}

/// The raw value of the member `params` of `object`, which is valid JSON; the key is compared decoded.
fn params(object: &[u8]) -> Option<&[u8]> {
    // Only a value's first byte and its quotes and brackets show where it ends, so walk from member to member: `at` is
    // at the key's quote in each iteration.
    let mut at = memchr::memchr(b'"', object)?;
    loop {
        let key_end = after_value(object, at);
        let key = &object[at..key_end];
        at = after_space(object, key_end) + 1;
        at = after_space(object, at);
        let end = after_value(object, at);
        if is_decoded(key, b"params") {
            return Some(&object[at..end]);
        }
        at = after_space(object, end);
        if object[at] == b'}' {
            return None;
        }
        at = after_space(object, at + 1);
    }
}

fn after_space(json: &[u8], from: usize) -> usize {
    let rest = &json[from..];
    from + rest.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'\r')).unwrap_or(rest.len())
}

/// One past the value that begins at `from`.
fn after_value(json: &[u8], from: usize) -> usize {
    SkipValue::default().read(&json[from..]).map_or(json.len(), |length| from + length)
}

fn why(fault: Fault) -> &'static str {
    match fault {
        Fault::Syntax => "not valid JSON",
        Fault::Utf8 => "not valid UTF-8",
        Fault::Depth => "nested too deep",
        Fault::NotAnObject => "not a JSON object",
        Fault::DuplicateKey => "with a routing key that occurs twice",
    }
}

fn complain(log: &mut impl Write, why: &str, line: &[u8]) {
    let end = memchr::memchr(b'\n', line).unwrap_or(line.len()).min(100);
    // A closed stderr is no reason to stop answering.
    let _ = writeln!(log, "echo worker: skipped a line that is {why}: {}", line[..end].escape_ascii());
}

/// A stream that blocks even if another process that shares the file has made it non-blocking.
struct BlockingFile(File);

fn wait(fd: BorrowedFd<'_>, flags: PollFlags) -> io::Result<()> {
    poll(&mut [PollFd::from_borrowed_fd(fd, flags)], None)?;
    Ok(())
}

impl Read for BlockingFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => wait(self.0.as_fd(), PollFlags::IN)?,
                other => return other,
            }
        }
    }
}

impl Write for BlockingFile {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => wait(self.0.as_fd(), PollFlags::OUT)?,
                other => return other,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    /// Returns its bytes in pieces of the given lengths, repeatedly.
    struct Pieces<'a> {
        bytes: &'a [u8],
        lengths: std::iter::Cycle<std::vec::IntoIter<usize>>,
    }

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = self.lengths.next().unwrap_or(1).min(self.bytes.len()).min(buffer.len());
            let (piece, rest) = self.bytes.split_at(length);
            buffer[..length].copy_from_slice(piece);
            self.bytes = rest;
            Ok(length)
        }
    }

    /// What the worker writes, and what it logs.
    fn output_of_pieces(input: &[u8], lengths: Vec<usize>) -> (String, String) {
        let mut pieces = Pieces { bytes: input, lengths: lengths.into_iter().cycle() };
        let (mut output, mut log) = (Vec::new(), Vec::new());
        serve(&mut pieces, &mut output, &mut log).expect("memory does not fail");
        (String::from_utf8(output).expect("UTF-8"), String::from_utf8(log).expect("UTF-8"))
    }

    fn output_of(input: &str) -> (String, String) {
        let whole = output_of_pieces(input.as_bytes(), vec![BLOCK]);
        assert_eq!(output_of_pieces(input.as_bytes(), vec![1]).0, whole.0, "how the bytes arrive makes no difference");
        whole
    }

    fn answer_to(line: &str) -> String {
        let (output, log) = output_of(&format!("{line}\n"));
        assert_eq!(log, "");
        output
    }

    #[test]
    fn a_request_is_answered_with_its_own_tokens() {
        assert_eq!(
            answer_to(r#"{"jsonrpc":"2.0","id":1,"method":"hello","params":{"a":1}}"#),
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"echo\":{\"a\":1},\"method\":\"hello\"}}\n"
        );
        assert_eq!(
            answer_to(r#" { "sessionId" : "\u0073" , "params" : [ 1e2, "}]" ] , "id" : "\u00e9", "method" : "m\n" } "#),
            concat!(
                r#"{"jsonrpc":"2.0","id":"\u00e9","sessionId":"\u0073","result":{"echo":[ 1e2, "}]" ],"method":"m\n"}}"#,
                "\n"
            )
        );
        assert_eq!(
            answer_to(r#"{"jsonrpc":"2.0","id":0,"method":"m"}"#),
            "{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{\"echo\":null,\"method\":\"m\"}}\n"
        );
    }

    #[test]
    fn a_session_in_the_params_stays_there() {
        assert_eq!(
            answer_to(r#"{"id":1,"method":"m","params":{"sessionId":"s"}}"#),
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"echo\":{\"sessionId\":\"s\"},\"method\":\"m\"}}\n"
        );
    }

    #[test]
    fn a_notification_of_a_session_gives_a_notification_of_that_session() {
        let at_top = r#"{"method":"m","sessionId":"s","params":[1]}"#;
        let in_params = r#"{"method":"m","params":{"sessionId":"s"}}"#;
        let head = r#"{"jsonrpc":"2.0","method":"echo.notification","sessionId":"s","params":{"original":"m","echo":"#;
        assert_eq!(answer_to(at_top), format!("{head}[1]}}}}\n"));
        assert_eq!(answer_to(in_params), format!("{head}{{\"sessionId\":\"s\"}}}}}}\n"));
    }

    #[test]
    fn a_message_that_needs_no_answer_gets_none() {
        for line in [
            "",
            " \r",
            r#"{"method":"m","params":{}}"#,
            r#"{"id":null,"method":"m"}"#,
            r#"{"id":1,"result":{"sessionId":"s"}}"#,
            r#"{"id":1,"error":{}}"#,
            r#"{"id":[1],"method":"m"}"#,
            "{}",
        ] {
            assert_eq!(answer_to(line), "", "{line}");
        }
    }

    #[test]
    fn a_line_that_is_not_a_message_is_skipped_and_logged_and_the_next_one_answered() {
        for bad in ["x", "[1]", "{\"id\":1,\"id\":2}", "{\"id\":1,", "{\"a\":\"\u{1}\"}", &"[".repeat(2000)] {
            let good = r#"{"id":7,"method":"m"}"#;
            let (output, log) = output_of(&format!("{good}\n{bad}\n{good}\n{bad}\n\n{good}\n"));
            assert_eq!(output.lines().count(), 3, "{bad}: {output}");
            assert_eq!(log.lines().count(), 2, "{bad}: {log}");
            assert!(log.starts_with("echo worker: skipped a line that is "), "{log}");
        }
    }

    #[test]
    fn the_last_line_needs_no_newline() {
        assert_eq!(output_of(r#"{"id":1,"method":"m"}"#).0.lines().count(), 1);
        assert_eq!(output_of("").0, "");
    }

    #[test]
    fn a_line_larger_than_every_block_comes_back_whole() {
        let text = "x\\\"".repeat(BLOCK);
        let line = format!("{{\"id\":1,\"method\":\"m\",\"params\":\"{text}\"}}\n");
        let input = line.repeat(3);
        let (output, _) = output_of_pieces(input.as_bytes(), vec![64 * 1024, 1, 4095]);
        let answer = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{\"echo\":\"{text}\",\"method\":\"m\"}}}}\n");
        assert!(output == answer.repeat(3), "{} bytes came back", output.len());
    }

    #[test]
    fn a_reader_that_leaves_is_not_an_error() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let input = b"{\"id\":1,\"method\":\"m\"}\n".repeat(3);
        serve(&mut &input[..], &mut Gone, &mut io::sink()).expect("the worker just ends");
    }

    fn json() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_owned()),
            Just("true".to_owned()),
            "-?(0|[1-9][0-9]{0,5})(\\.[0-9]{1,3})?([eE][+-]?[0-9])?",
            "\"([a-z{}:,\\[\\] é]|\\\\\"|\\\\\\\\|\\\\u00e9){0,8}\"",
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let space = "[ \t]{0,2}";
            prop_oneof![
                (prop::collection::vec(inner.clone(), 0..4), space)
                    .prop_map(|(values, space)| format!("[{space}{}{space}]", values.join(&format!("{space},")))),
                (prop::collection::vec(("[a-z\"]?[a-z]", inner), 0..4), space).prop_map(|(members, space)| {
                    let members: Vec<_> = members
                        .into_iter()
                        .map(|(key, value)| format!("{}{space}:{space}{value}", serde_json::Value::from(key)))
                        .collect();
                    format!("{{{space}{}{space}}}", members.join(","))
                }),
            ]
        })
    }

    fn object() -> impl Strategy<Value = String> {
        let key = prop_oneof![
            Just("\"params\"".to_owned()),
            Just("\"par\\u0061ms\"".to_owned()),
            Just("\"params \"".to_owned()),
            "\"[a-p\\\\\"]{0,3}\"".prop_map(|key| serde_json::Value::from(key).to_string()),
        ];
        (prop::collection::vec((key, json()), 0..6), "[ \t\r]{0,2}").prop_map(|(members, space)| {
            let mut seen = std::collections::HashSet::new();
            let members: Vec<_> = members
                .into_iter()
                .filter(|(key, _)| seen.insert(serde_json::from_str::<String>(key).unwrap_or_default()))
                .map(|(key, value)| format!("{space}{key}{space}:{space}{value}{space}"))
                .collect();
            format!("{space}{{{}{space}}}{space}", members.join(","))
        })
    }

    proptest! {
        #[test]
        fn the_params_are_those_that_a_parser_finds(text in object()) {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(&text).expect("the strategy makes JSON");
            let expected = members.get("params").map(|value| value.get().as_bytes());
            prop_assert_eq!(params(text.as_bytes()), expected);
        }

        #[test]
        fn how_the_bytes_arrive_makes_no_difference(
            lines in prop::collection::vec(prop_oneof![
                (json(), 0..9_u32).prop_map(|(json, id)| format!("{{\"id\":{id},\"method\":\"m\",\"params\":{json}}}")),
                json(),
                "[ -~]{0,20}",
            ], 0..12),
            lengths in prop::collection::vec(1..200_usize, 1..8),
        ) {
            let input = lines.join("\n");
            prop_assert_eq!(output_of_pieces(input.as_bytes(), lengths).0, output_of_pieces(input.as_bytes(), vec![BLOCK]).0);
        }
    }
}
