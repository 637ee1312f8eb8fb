//! Parses an event stream (`text/event-stream`, WHATWG HTML section 9.2): its messages, and the position in the stream.
//! It does no I/O.

use std::time::Duration;

use memchr::memchr2;

/// Parses a stream, across the responses that resume it.
#[derive(Default)]
pub(super) struct Events {
    /// The incomplete line.
    line: Vec<u8>,
    /// The last line ended with a carriage return: a newline after it ends nothing.
    is_behind_return: bool,
    has_begun: bool,
    /// The data of the incomplete event, one entry per line.
    data: Option<Vec<u8>>,
    is_message: IsMessage,
    /// The id for the next event, and the last complete one.
    next_id: Option<String>,
    last_id: Option<String>,
    retry: Option<Duration>,
}

/// Events without a type are messages.
struct IsMessage(bool);

impl Default for IsMessage {
    fn default() -> Self {
        Self(true)
    }
}

impl Events {
    /// The id of the last complete event, to resume after.
    pub(super) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// How long to wait before reconnecting, if the server has said.
    pub(super) fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Starts a response that resumes the stream: the truncated event is dropped.
    pub(super) fn begin_again(&mut self) {
        let Self { last_id, retry, .. } = std::mem::take(self);
        *self = Self { next_id: last_id.clone(), last_id, retry, ..Self::default() };
    }

    /// Parses the next bytes and appends the messages that they complete, without newlines.
    pub(super) fn read(&mut self, mut bytes: &[u8], messages: &mut Vec<Vec<u8>>) {
        while let Some(first) = bytes.first() {
            if std::mem::take(&mut self.is_behind_return) && *first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = memchr2(b'\n', b'\r', bytes) else {
                self.line.extend_from_slice(bytes);
                return;
            };
            self.is_behind_return = bytes[end] == b'\r';
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            self.read_line(&line, messages);
            self.line = line;
            self.line.clear();
        }
    }

    fn read_line(&mut self, mut line: &[u8], messages: &mut Vec<Vec<u8>>) {
        if !std::mem::replace(&mut self.has_begun, true) {
            line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        }
        if line.is_empty() {
            return self.end(messages);
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"data" => match &mut self.data {
                // Data lines are joined by newlines, which JSON allows only between tokens.
                Some(data) => {
                    data.push(b'\t');
                    data.extend_from_slice(value);
                }
                None => self.data = Some(value.to_vec()),
            },
            b"event" => self.is_message = IsMessage(value.is_empty() || value == b"message"),
            b"id" if !value.contains(&0) => self.next_id = Some(String::from_utf8_lossy(value).into_owned()),
            b"retry" => {
                let digits = str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
                let milliseconds = digits.and_then(|digits| digits.parse().ok());
                self.retry = milliseconds.map(Duration::from_millis).or(self.retry);
            }
            _ => {}
        }
    }

    /// Ends an event at an empty line.
    fn end(&mut self, messages: &mut Vec<Vec<u8>>) {
        self.last_id = self.next_id.clone().filter(|id| !id.is_empty());
        let IsMessage(is_message) = std::mem::take(&mut self.is_message);
        // An event without data only sets the position.
        messages.extend(self.data.take().filter(|data| is_message && !data.is_empty()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_gives_the_same_events_however_it_is_cut() {
        let stream = "\u{feff}id: a-0\nretry: 250\ndata:\n\n: keep-alive\n\nevent: message\nid: a-1\ndata: {\"a\":\r\ndata: 1}\r\n\r\n\
                      event: other\ndata: {}\n\nid: b\0d\ndata:{\"b\":2}\n\ndata: {\"cut\":";
        for length in 1..=stream.len() {
            let (mut events, mut messages) = (Events::default(), Vec::new());
            for piece in stream.as_bytes().chunks(length) {
                events.read(piece, &mut messages);
            }
            assert_eq!(messages, [b"{\"a\":\t1}".to_vec(), b"{\"b\":2}".to_vec()], "in pieces of {length}");
            assert_eq!((events.last_id(), events.retry()), (Some("a-1"), Some(Duration::from_millis(250))));
        }
    }

    #[test]
    fn a_truncated_event_is_dropped_and_the_position_stays() {
        let (mut events, mut messages) = (Events::default(), Vec::new());
        events.read(b"id: 1\ndata: {}\n\nid: 2\ndata: {\"half", &mut messages);
        events.begin_again();
        assert_eq!(events.last_id(), Some("1"), "the second event did not come whole");
        events.read(b"data: {\"b\":1}\n\n", &mut messages);
        assert_eq!((messages, events.last_id()), (vec![b"{}".to_vec(), b"{\"b\":1}".to_vec()], Some("1")));
        let mut none = Events::default();
        none.read(b"data: {}\n\n", &mut Vec::new());
        assert_eq!(none.last_id(), None);
    }
}
