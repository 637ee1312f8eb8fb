//! The body of a POST: one message, or several in a batch (2025-03-26). Each becomes a line.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ops::Range;
use std::rc::Rc;

use super::fault::Fault;
use super::params::{Params, Walk};
use crate::http1::Status;
use ndjson_scan::{
    BATCH, BYTE_ORDER_MARK as MARK, Line, PAD, Partial, ScanResult, Scanner, SkipValue, Span, Window, blank_returns,
    decoded,
};
use stdio_bus_core::eras::protocol::{INVALID_REQUEST, PARSE_ERROR};

/// The kind of a message, by its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It expects an answer.
    Request,
    /// It expects no answer.
    Notification,
    /// It answers a worker's request.
    Response,
}

/// One message, as a line with padding around it: its body, or a part of that of its batch.
pub struct Message {
    padded: Rc<Vec<u8>>,
    /// Where its line begins and ends there, without its newline.
    start: usize,
    end: usize,
    line: Line,
    weight: usize,
    /// What was found in its params; a short one is looked through when that is asked for.
    params: OnceCell<Params>,
}

/// The contents of a body.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once; a box would cost each message an allocation")]
pub enum Body {
    /// One message.
    One(Message),
    /// An array of them.
    Batch(Vec<Message>),
}

/// Maximum number of messages in a batch. Each of them is passed on in the same turn of the loop.
pub const MOST_MESSAGES: usize = 1024;
/// A body is scanned once this much of it has come: a usual one only once, when it is complete, and a long one piece by
/// piece, so that no piece takes long.
const SCAN_FROM: usize = 64 * 1024;
/// A method that is compared with that of a head is no longer.
const LONGEST_METHOD: usize = 256 * 1024;
/// How much of a long one is looked through at once.
const WALK: usize = 64 * 1024;

/// Reads lines one at a time, each of which is the whole input.
#[derive(Default)]
pub struct LineReader {
    /// Its tables take 160 KB and most daemons serve no HTTP clients, so it is created for the first line.
    scanner: Option<Scanner>,
    lines: Vec<Line>,
}

impl LineReader {
    /// The only line in a window; none if there is no line, or more than one.
    ///
    /// # Errors
    /// The line is malformed.
    pub fn read(&mut self, mut partial: Partial, window: Window<'_>) -> Result<Option<Line>, String> {
        self.lines.clear();
        let scanner = self.scanner.get_or_insert_with(Scanner::new);
        let outcome = loop {
            match scanner.scan(&mut partial, window, &mut self.lines) {
                ScanResult::Full if self.lines.is_empty() => {}
                outcome => break outcome,
            }
        };
        match (outcome, &self.lines[..]) {
            (ScanResult::More, [line]) => Ok(Some(*line)),
            (ScanResult::Malformed { at, fault, .. }, _) => Err(format!("{}, at byte {at}", fault.what())),
            _ => Ok(None),
        }
    }
}

/// A body as it comes. It is taken apart piece by piece, and no byte of it is looked at again when it is complete, so that
/// the last piece of the longest body takes no longer than any other. Where the scanner is in doubt, and reads it again
/// from its start, it falls behind: then the caller waits with what comes next, and lets it go on in shares.
#[derive(Default)]
pub struct Upload {
    /// The bytes so far, after a pad. Those between the messages of a batch are blanks and newlines.
    padded: Vec<u8>,
    shape: UploadShape,
    partial: Partial,
    /// The messages of a batch that the scanner has read.
    lines: Vec<Line>,
    /// How many messages of a batch have begun.
    begun: usize,
    /// The scanner may read up to here.
    settled: usize,
    /// There are carriage returns in it, which have to become blanks, and have up to here.
    has_returns: bool,
    blanked: usize,
    /// All of it has come.
    is_ended: bool,
    /// The scanner has not read all that it was to read.
    is_behind: bool,
    /// A long message is looked through in shares when it is complete.
    walk: Walk,
    params: OnceCell<Params>,
    fault: Option<Fault>,
}

/// What an upload is, as far as it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum UploadShape {
    /// Only blanks have come.
    #[default]
    Blank,
    /// One message.
    One,
    /// A batch, before a message, which has to come if there was a comma.
    Before { comma: bool },
    /// A batch, in a message.
    Within(SkipValue),
    /// A batch, right after a message.
    After,
    /// A batch, after a message and a blank.
    Between,
    /// A batch, after its end.
    Over,
}

impl Upload {
    /// Whether these next bytes begin a batch.
    pub fn begins_batch(&self, data: &[u8]) -> bool {
        let data = data.strip_prefix(MARK).unwrap_or(data);
        self.shape == UploadShape::Blank
            && self.fault.is_none()
            && data.iter().find(|byte| !is_blank(**byte)) == Some(&b'[')
    }

    /// Refuses it, whatever else comes. What came is forgotten.
    pub fn refuse(&mut self, fault: Fault) {
        *self = Self { fault: Some(fault), is_ended: self.is_ended, ..Self::default() };
    }

    /// Memory used, in bytes.
    pub fn weight(&self) -> usize {
        self.len() + self.lines.capacity() * size_of::<Line>()
    }

    /// The number of bytes so far.
    fn len(&self) -> usize {
        self.padded.len().saturating_sub(2 * PAD)
    }

    /// Takes the next bytes.
    pub fn push(&mut self, data: &[u8], reader: &mut LineReader) {
        if self.fault.is_some() {
            return;
        }
        let at = self.len();
        if self.padded.is_empty() {
            self.padded.reserve(PAD + data.len() + 1 + PAD);
            self.padded.resize(PAD, 0);
        }
        self.padded.truncate(PAD + at);
        self.padded.extend_from_slice(data);
        let new = &mut self.padded[PAD + at..];
        if memchr::memchr2(b'\n', b'\r', new).is_some() {
            // Between tokens both are blanks, and within a string neither is valid: the scanner sees which it is, if none
            // of them looks like the end of a line.
            new.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b'\r');
            self.has_returns = true;
        }
        if at < MARK.len() {
            self.blank_mark();
        }
        let is_open = self.shape == UploadShape::Blank && !self.may_begin_mark();
        let new = &mut self.padded[PAD + at..];
        if is_open {
            match new.iter().position(|byte| !is_blank(*byte)) {
                Some(first) if new[first] == b'[' => {
                    new[first] = b' ';
                    self.shape = UploadShape::Before { comma: false };
                }
                Some(_) => self.shape = UploadShape::One,
                None => {}
            }
        }
        let is_right = match self.shape {
            UploadShape::Blank | UploadShape::One => Ok(()),
            _ => self.split(PAD + at),
        };
        if self.shape == UploadShape::One {
            self.settled = self.padded.len() - PAD;
        }
        self.padded.resize(self.padded.len() + PAD, 0);
        let is_due = self.is_behind || self.settled - self.partial.scanned() >= SCAN_FROM;
        let result = is_right.and_then(|()| if is_due { self.scan(reader) } else { Ok(()) });
        if let Err(fault) = result {
            self.refuse(fault);
        }
    }

    /// Makes blanks of a byte order mark at its begin.
    fn blank_mark(&mut self) {
        if let Some(begin) = self.padded.get_mut(PAD..PAD + MARK.len()).filter(|begin| begin == &MARK) {
            begin.fill(b' ');
        }
    }

    /// Whether all that has come may be a part of a byte order mark.
    fn may_begin_mark(&self) -> bool {
        let begun = &self.padded[PAD..];
        !begun.is_empty() && begun.len() < MARK.len() && MARK.starts_with(begun)
    }

    /// Parts the messages of a batch, from a place in the buffer on. A newline is written before and after each.
    fn split(&mut self, from: usize) -> Result<(), Fault> {
        let mut at = from;
        while let Some(&byte) = self.padded.get(at) {
            let (is_blank, ends) = (is_blank(byte), self.shape == UploadShape::After);
            self.shape = match self.shape {
                UploadShape::Within(mut value) => match value.read(&self.padded[at..]) {
                    Some(length) => {
                        at += length;
                        self.shape = UploadShape::After;
                        continue;
                    }
                    None => {
                        self.shape = UploadShape::Within(value);
                        break;
                    }
                },
                UploadShape::Before { .. } if byte == b'{' => {
                    self.begun += 1;
                    if self.begun > MOST_MESSAGES {
                        return Err(too_many());
                    }
                    self.padded[at - 1] = b'\n';
                    self.shape = UploadShape::Within(SkipValue::default());
                    continue;
                }
                UploadShape::Before { comma: false } if byte == b']' => UploadShape::Over,
                shape @ (UploadShape::Before { .. } | UploadShape::Between | UploadShape::Over) if is_blank => shape,
                UploadShape::After if is_blank => UploadShape::Between,
                UploadShape::After | UploadShape::Between if byte == b',' => UploadShape::Before { comma: true },
                UploadShape::After | UploadShape::Between if byte == b']' => UploadShape::Over,
                UploadShape::Before { .. } => {
                    return Err(malformed(&format!("not a JSON object, at byte {}", at - PAD)));
                }
                _ => return Err(malformed(&format!("not JSON, at byte {}", at - PAD))),
            };
            // The scanner has not come here yet.
            self.padded[at] = if ends { b'\n' } else { b' ' };
            at += 1;
            if ends {
                self.settled = at - PAD;
            }
        }
        if let UploadShape::Within(_) | UploadShape::After = self.shape {
            self.settled = self.padded.len() - PAD;
        }
        Ok(())
    }

    /// Lets the scanner read what is settled, or a share of it.
    fn scan(&mut self, reader: &mut LineReader) -> Result<(), Fault> {
        let window = Window::new(&self.padded, PAD, PAD + self.settled);
        let scanner = reader.scanner.get_or_insert_with(Scanner::new);
        loop {
            reader.lines.clear();
            let outcome = scanner.scan(&mut self.partial, window, &mut reader.lines);
            self.lines.extend_from_slice(&reader.lines);
            self.is_behind = outcome == ScanResult::Full && reader.lines.len() < BATCH;
            match outcome {
                ScanResult::Full if !self.is_behind => {}
                ScanResult::More | ScanResult::Full => break,
                ScanResult::Malformed { at, fault, .. } => {
                    return Err(malformed(&format!("{}, at byte {at}", fault.what())));
                }
            }
        }
        // Those that were read stand between tokens.
        let read = self.partial.scanned();
        if self.has_returns && read > self.blanked {
            blank_returns(&mut self.padded[PAD + self.blanked..PAD + read]);
        }
        self.blanked = self.blanked.max(read);
        Ok(())
    }

    /// Whether it waits for [`Upload::go_on`].
    pub fn is_behind(&self) -> bool {
        self.is_behind || self.is_to_walk()
    }

    /// Whether it is a long message that is not looked through yet.
    fn is_to_walk(&self) -> bool {
        let is_read = self.is_ended && self.shape == UploadShape::One && self.lines.len() == 1;
        is_read && self.len() >= SCAN_FROM && self.params.get().is_none()
    }

    /// Whether all of it has come.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Reads a share of what it is behind with.
    pub fn go_on(&mut self, reader: &mut LineReader) {
        if self.is_behind {
            if let Err(fault) = self.scan(reader) {
                self.refuse(fault);
            }
        } else if self.is_to_walk()
            && let [line] = &self.lines[..]
        {
            let text = &self.padded[PAD + line.span.start as usize..PAD + line.span.end as usize];
            if self.walk.go_on(text, WALK) {
                self.params = OnceCell::from(std::mem::take(&mut self.walk).found());
            }
        }
    }

    /// All of it has come. It may be behind after this.
    pub fn end(&mut self, reader: &mut LineReader) {
        if std::mem::replace(&mut self.is_ended, true) || self.fault.is_some() {
            return;
        }
        match self.shape {
            UploadShape::Blank => return self.refuse(malformed("the body is empty")),
            UploadShape::One | UploadShape::Over => {}
            _ => return self.refuse(malformed("the array does not end")),
        }
        self.padded.truncate(self.padded.len() - PAD);
        self.padded.push(b'\n');
        self.settled = self.padded.len() - PAD;
        self.padded.resize(self.padded.len() + PAD, 0);
        if let Err(fault) = self.scan(reader) {
            self.refuse(fault);
        }
    }

    /// The messages of a complete body. A caller that must not wait for a long one calls it when [`Upload::end`] has left
    /// nothing behind.
    ///
    /// # Errors
    /// It is neither a message nor an array of messages.
    pub fn finish(mut self, reader: &mut LineReader) -> Result<Body, Fault> {
        self.end(reader);
        while self.is_behind() {
            self.go_on(reader);
        }
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let (is_one, params) = (self.shape == UploadShape::One, self.params);
        self.lines.iter().try_for_each(check)?;
        let (padded, lines) = (Rc::new(self.padded), self.lines);
        if lines.is_empty() {
            return Err(Fault::bad(INVALID_REQUEST, "the batch is empty"));
        }
        // The last one of a batch has the weight of them all: while it is there, all are.
        let last = lines.len() - 1;
        let mut messages = lines.into_iter().enumerate().map(|(at, line)| {
            let Span { start, end } = line.span;
            let weight = size_of::<Message>() + if at == last { padded.capacity() } else { 0 };
            let (start, end) = (PAD + start as usize, PAD + end as usize);
            let (line, params) = (line.counted_after(start - PAD), OnceCell::new());
            Message { padded: Rc::clone(&padded), start, end, line, weight, params }
        });
        if is_one && let Some(message) = messages.next() {
            return Ok(Body::One(Message { params, ..message }));
        }
        Ok(Body::Batch(messages.collect()))
    }
}

/// Whether a byte is white space of JSON.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Checks that a line is a message.
fn check(line: &Line) -> Result<(), Fault> {
    if line.has(Line::ID_INVALID) {
        return Err(Fault::bad(INVALID_REQUEST, "the id is neither a string nor a number"));
    }
    if !line.method.is_some() && line.flags & (Line::RESULT | Line::ERROR) == 0 {
        return Err(Fault::bad(INVALID_REQUEST, "the message has neither a method nor a result nor an error"));
    }
    Ok(())
}

fn too_many() -> Fault {
    let why =
        format!("a batch has more than {MOST_MESSAGES} messages, and nothing of it was passed on: post fewer at once");
    Fault { code: INVALID_REQUEST, ..Fault::new(Status::ContentTooLarge, why) }
}

fn malformed(why: &str) -> Fault {
    Fault::bad(PARSE_ERROR, format!("Parse error: {why}"))
}

impl Message {
    /// The message that is this line.
    pub fn of_line(line: &[u8], reader: &mut LineReader) -> Option<Self> {
        let mut upload = Upload::default();
        upload.push(line.strip_suffix(b"\n").unwrap_or(line), reader);
        match upload.finish(reader).ok()? {
            Body::One(message) => Some(message),
            Body::Batch(_) => None,
        }
    }

    /// Whether it is a request, a notification or a response (JSON-RPC 2.0, sections 4 and 5).
    pub fn kind(&self) -> Kind {
        let answers = self.line.flags & (Line::RESULT | Line::ERROR) != 0;
        match self.line.id.is_some() {
            _ if answers && !self.line.method.is_some() => Kind::Response,
            true => Kind::Request,
            false => Kind::Notification,
        }
    }

    /// The line with its newline, in place.
    pub fn window(&self) -> Window<'_> {
        Window::new(&self.padded, self.start, self.end + 1)
    }

    /// Its length with the newline.
    pub fn length(&self) -> usize {
        self.end + 1 - self.start
    }

    /// A part of the line, in place.
    pub fn part(&self, part: Range<usize>) -> Window<'_> {
        Window::new(&self.padded, self.start + part.start, (self.start + part.end).min(self.end + 1))
    }

    /// The memory that it lies in, perhaps with other messages of its batch, and where it begins there.
    pub fn storage(&self) -> (Rc<Vec<u8>>, usize) {
        (Rc::clone(&self.padded), self.start)
    }

    /// The line without its newline.
    pub fn text(&self) -> &[u8] {
        let window = self.window().data();
        &window[..window.len() - 1]
    }

    /// Its id, verbatim.
    pub fn id(&self) -> Option<&[u8]> {
        self.line.id.is_some().then(|| self.window().get(self.line.id))
    }

    /// Its method, decoded; empty if it has none. One that is longer than any head is not decoded.
    pub fn method(&self) -> Cow<'_, [u8]> {
        match self.line.method.len() {
            0 => Cow::Borrowed(b""),
            1..=LONGEST_METHOD => decoded(self.window().get(self.line.method)).unwrap_or_default(),
            _ => Cow::Borrowed(self.window().get(self.line.method)),
        }
    }

    /// What 2026-07-28 looks at in its params.
    pub fn params(&self) -> &Params {
        self.params.get_or_init(|| Params::of(self.text()))
    }

    /// Whether it is known already, without a look at the text.
    pub fn has_params(&self) -> bool {
        self.params.get().is_some()
    }

    /// `params.requestId`, verbatim.
    pub fn request_id(&self) -> Option<&[u8]> {
        let id = self.line.request_id;
        id.is_some().then(|| self.window().get(id))
    }

    /// The token that its progress notifications carry, verbatim.
    pub fn progress_token(&self) -> Option<&[u8]> {
        let token = self.line.meta.progress;
        token.is_some().then(|| self.window().get(token))
    }

    /// Memory used, in bytes. The last message of a batch has the weight of all of its bytes.
    pub fn weight(&self) -> usize {
        self.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::params::Wanted;
    use ndjson_scan::MOST_DOUBTFUL;

    fn body(text: &str) -> Result<Vec<Message>, Fault> {
        let whole = cut(text.as_bytes(), text.len().max(1));
        for step in [1, 2, 3, 7] {
            let parts = cut(text.as_bytes(), step);
            let shown = |body: &Result<Vec<Message>, Fault>| {
                body.as_ref()
                    .map(|all| all.iter().map(|it| it.text().to_vec()).collect::<Vec<_>>())
                    .map_err(Fault::clone)
            };
            assert_eq!(shown(&parts), shown(&whole), "{text:?} in pieces of {step}");
        }
        whole
    }

    /// The messages of a body that comes in pieces of this length.
    fn cut(text: &[u8], step: usize) -> Result<Vec<Message>, Fault> {
        let (mut upload, mut reader) = (Upload::default(), LineReader::default());
        text.chunks(step).for_each(|piece| upload.push(piece, &mut reader));
        upload.finish(&mut reader).map(|body| match body {
            Body::One(message) => vec![message],
            Body::Batch(messages) => messages,
        })
    }

    #[test]
    fn a_body_is_one_line_however_it_is_written() {
        let pretty = "{\r\n  \"jsonrpc\": \"2.0\",\n  \"id\": 7,\n  \"method\": \"a\\/b\"\n}\n";
        let messages = body(pretty).expect("it is a message");
        assert_eq!(messages.len(), 1);
        let message = &messages[0];
        assert_eq!((message.kind(), message.id(), &*message.method()), (Kind::Request, Some(&b"7"[..]), &b"a/b"[..]));
        assert!(!message.text().contains(&b'\n') && message.window().data().ends_with(b"\n"));
    }

    #[test]
    fn a_byte_order_mark_ahead_of_a_body_is_passed_over() {
        let one = body("\u{feff}{\"id\":1,\"method\":\"a\"}").expect("it is a message");
        assert_eq!(one[0].id(), Some(&b"1"[..]));
        assert_eq!(body("\u{feff} [{\"method\":\"a\"}]").expect("it is a batch").len(), 1);
        assert!(Upload::default().begins_batch("\u{feff}[".as_bytes()));
        for text in ["\u{feff}", "\u{feff}\u{feff}{\"method\":\"a\"}", "{\u{feff}\"method\":\"a\"}", " \u{feff}{}"] {
            assert_eq!(body(text).map(|_| ()).map_err(|fault| fault.code), Err(PARSE_ERROR), "{text:?}");
        }
    }

    #[test]
    fn an_invalid_message_is_refused_with_its_code() {
        let code = |text: &str| body(text).map(|_| ()).map_err(|fault| fault.code);
        for text in
            ["", " \n", "x", "{\"a\":\"x\ny\"}", "{} {}", "{}\n{}", "7", "\"a\"", "{\"id\":1,\"id\":2}", "[7]", "["]
        {
            assert_eq!(code(text), Err(PARSE_ERROR), "{text:?}");
        }
        for text in ["[]", "{\"id\":{},\"method\":\"a\"}", "{}", "{\"id\":1}", "[{}]", "{\"method\":7}"] {
            assert_eq!(code(text), Err(INVALID_REQUEST), "{text:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_body_is_said_in_words() {
        for (text, why) in
            [("7", "not a JSON object, at byte 0"), ("{\"id\":1,\"id\":2}", "a routing key occurs twice, at byte 11")]
        {
            assert_eq!(body(text).map(|_| ()).map_err(|fault| fault.why), Err(format!("Parse error: {why}").into()));
        }
    }

    #[test]
    fn a_batch_is_split() {
        let messages =
            body(r#" [ {"id":1,"method":"a"} , {"method":"b"}, {"id":2,"result":{}} ] "#).expect("it is one");
        let kinds: Vec<_> = messages.iter().map(Message::kind).collect();
        assert_eq!(kinds, [Kind::Request, Kind::Notification, Kind::Response]);
        assert_eq!(messages[1].text(), br#"{"method":"b"}"#);
        let messages =
            body("[{\"method\":\"a\",\r\n\t\"x\":[1,{\"y\":\"],}\\\"\"}]},\n{\"id\":7,\"method\":\"b\"}\n]\n")
                .expect("it is one");
        assert_eq!(messages[0].text(), br#"{"method":"a",  	"x":[1,{"y":"],}\""}]}"#);
        assert_eq!((messages[1].id(), &*messages[1].method()), (Some(&b"7"[..]), &b"b"[..]));
        assert!(messages.iter().all(|message| message.window().data().ends_with(b"\n")));
    }

    #[test]
    fn only_an_array_of_objects_is_a_batch() {
        for text in [
            "[,]",
            "[{\"method\":\"a\"},]",
            "[{\"method\":\"a\"}",
            "[{\"method\":\"a\"}]]",
            "[{\"method\":\"a\"}]{}",
            "[{\"method\":\"a\"}{\"method\":\"a\"}]",
            "[{\"method\":\"a\"} x]",
            "[{\"method\":\"a\"]}]",
            "[[{\"method\":\"a\"}]]",
            "[{\"method\":\"a\"},null]",
            "[{\"method\":\"a\nb\"}]",
            "\u{c}[{\"method\":\"a\"}]",
            "[\u{c}{\"method\":\"a\"}]",
            "[\"{}\"]",
        ] {
            assert_eq!(body(text).map(|_| ()).map_err(|fault| fault.code), Err(PARSE_ERROR), "{text:?}");
        }
    }

    #[test]
    fn a_batch_of_more_than_1024_messages_of_any_kind_is_refused_and_the_rest_of_it_is_not_kept() {
        for kind in [r#"{"method":"a"}"#, r#"{"id":1,"result":{}}"#] {
            let text = |count: usize| format!("[{}]", vec![kind; count].join(","));
            assert_eq!(body(&text(MOST_MESSAGES)).map(|all| all.len()), Ok(MOST_MESSAGES));
            let fault = body(&text(MOST_MESSAGES + 1)).map(|_| ()).expect_err("it is refused");
            assert_eq!((fault.status, fault.code), (Status::ContentTooLarge, INVALID_REQUEST));
        }
        let (mut upload, mut reader) = (Upload::default(), LineReader::default());
        upload.push(b"[", &mut reader);
        let piece = r#"{"method":"a"},"#.repeat(100);
        let weights: Vec<usize> = (0..30)
            .map(|_| {
                upload.push(piece.as_bytes(), &mut reader);
                upload.weight()
            })
            .collect();
        assert!(weights[9] >= 10 * piece.len() && weights[29] == 0, "{weights:?}");
    }

    #[test]
    fn what_was_read_of_a_batch_is_weighed_until_its_last_message_has_gone() {
        let (mut upload, mut reader) = (Upload::default(), LineReader::default());
        let text = format!("[{}]", vec![r#"{"method":"a"}"#; MOST_MESSAGES].join(","));
        upload.push(text.as_bytes(), &mut reader);
        upload.push(&[b' '; SCAN_FROM], &mut reader);
        assert!(upload.weight() >= text.len(), "its bytes");
        let Ok(Body::Batch(messages)) = upload.finish(&mut reader) else { panic!("it is a batch") };
        let weights: Vec<usize> = messages.iter().map(Message::weight).collect();
        assert!(weights.iter().all(|weight| *weight >= size_of::<Message>()), "{weights:?}");
        assert!(weights[MOST_MESSAGES - 1] >= text.len());
    }

    #[test]
    fn a_long_body_is_read_piece_by_piece_and_not_again_at_its_end() {
        let (mut upload, mut reader) = (Upload::default(), LineReader::default());
        upload.push(br#"{"id":1,"method":"a","params":{"_meta":{"progressToken":7},"x":""#, &mut reader);
        (0..100).for_each(|_| upload.push(&[b'x'; 16 * 1024], &mut reader));
        assert!(upload.partial.scanned() > 100 * 16 * 1024 - SCAN_FROM);
        upload.push(br#""}}"#, &mut reader);
        let Ok(Body::One(message)) = upload.finish(&mut reader) else { panic!("it is a message") };
        assert_eq!((message.id(), message.progress_token()), (Some(&b"1"[..]), Some(&b"7"[..])));
        let mut upload = Upload::default();
        upload.push(b"{\"a\":}", &mut reader);
        (0..100).for_each(|_| upload.push(&[b'?'; 16 * 1024], &mut reader));
        assert_eq!(upload.weight(), 0, "it can be no message any more");
        assert_eq!(upload.finish(&mut reader).map(|_| ()).map_err(|fault| fault.code), Err(PARSE_ERROR));
    }

    /// A long message, as a body of which all has come: how many shares it is behind with, and what comes out.
    fn shares_of(text: &str) -> (usize, Result<Message, Fault>) {
        let (mut upload, mut reader) = (Upload::default(), LineReader::default());
        text.as_bytes().chunks(16 * 1024).for_each(|piece| {
            while upload.is_behind() {
                upload.go_on(&mut reader);
            }
            upload.push(piece, &mut reader);
        });
        upload.end(&mut reader);
        let mut shares = 0;
        while upload.is_behind() {
            let (scanned, walked) = (upload.partial.scanned(), upload.walk.clone());
            upload.go_on(&mut reader);
            let is_restarted = upload.partial.scanned() < scanned;
            assert!(is_restarted || upload.partial.scanned() - scanned <= MOST_DOUBTFUL || upload.fault.is_some());
            assert!(upload.partial.scanned() > scanned || upload.walk != walked || !upload.is_behind(), "it continues");
            shares += 1;
        }
        assert!(upload.is_ended(), "the caller continues with what came of it");
        let message = upload.finish(&mut reader).map(|body| match body {
            Body::One(message) => message,
            Body::Batch(_) => panic!("it is one"),
        });
        (shares, message)
    }

    #[test]
    fn a_long_body_in_doubt_at_its_end_is_read_again_in_shares() {
        let numbers = "1,".repeat(512 * 1024);
        let (shares, message) = shares_of(&format!(r#"{{"method":"a","params":{{"x":[{numbers}1]}},"\u0069d":7}}"#));
        assert!(shares >= numbers.len() / MOST_DOUBTFUL, "{shares}");
        assert_eq!(message.expect("it is valid").id(), Some(&b"7"[..]));
        let (shares, message) = shares_of(&format!(r#"{{"method":"a","params":{{"x":[{numbers}1]}},}}"#));
        assert!(shares >= numbers.len() / MOST_DOUBTFUL, "{shares}");
        assert_eq!(message.map(|_| ()).map_err(|fault| fault.code), Err(PARSE_ERROR));
    }

    #[test]
    fn the_params_of_a_long_body_are_looked_through_in_shares() {
        let numbers = "1,\r\n".repeat(256 * 1024);
        let (shares, message) =
            shares_of(&format!(r#"{{"id":1,"method":"a","params":{{"x":[{numbers}1],"name":"n"}}}}"#));
        assert!(shares >= numbers.len() / WALK, "{shares}");
        let message = message.expect("it is valid");
        assert!(message.has_params() && !message.text().contains(&b'\r'));
        assert_eq!(message.params().string(message.text(), Wanted::Name).as_deref(), Some(&b"n"[..]));
    }

    #[test]
    fn the_members_of_a_message_are_found() {
        let text = r#"{"id":1,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":"a\u0062","b":1}}}"#;
        let messages = body(text).expect("it is a message");
        assert_eq!(messages[0].progress_token(), Some(&br#""a\u0062""#[..]));
        assert_eq!(messages[0].params().string(messages[0].text(), Wanted::Name).as_deref(), Some(&b"x"[..]));
    }
}
