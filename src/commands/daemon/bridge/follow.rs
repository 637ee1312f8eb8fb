//! Follows a stream of lines and reports the requests and responses in it. It delays nothing, stores no line and
//! validates none: of a message of any size it keeps one key and the id.
//!
//! The bus's scanner is not used here because it needs a whole line in memory; the bridge passes a line on while it
//! arrives. A line that is not a JSON object may be misread, but never beyond its newline.

use memchr::memchr;

use crate::bus::id::Id;
use crate::scan::SkipValue;

/// Maximum length of a relevant raw key: `method` with all its letters escaped has 38 bytes.
const MAX_KEY: usize = 40;

/// Maximum length of a stored raw id: the longest that the bus accepts, with all its letters escaped.
const MAX_ID: usize = 6 * crate::bus::settings::MAX_REQUEST_ID_LEN + 2;

/// The request that keeps an agent busy for long, and costs money.
const PROMPT: &str = "session/prompt";

/// Maximum length of a relevant raw method: that of a prompt, with all its letters escaped.
const MAX_METHOD: usize = 6 * PROMPT.len() + 2;

/// Maximum length of a stored raw session name.
const MAX_SESSION: usize = 6 * crate::bus::settings::MAX_SESSION_ID_LEN + 2;

/// The kind of a line with an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowedKind {
    /// `method` and `id`.
    Request,
    /// `result` or `error` and `id`.
    Response,
}

/// A complete line.
pub(super) struct FollowedLine<'a> {
    /// Its length, without the newline.
    pub length: u64,
    /// Bytes of the same read that follow its newline.
    pub rest: usize,
    /// Its kind, its id, and the id's raw token; none if it has no id, or is not a message.
    pub message: Option<(FollowedKind, Id, &'a [u8])>,
    /// It is an error response to an unknown request: its id is null.
    pub has_null_id: bool,
    /// The raw session name, if it is a prompt.
    pub prompts: Option<&'a [u8]>,
}

/// The position of the last byte within a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinePosition {
    /// Before the object.
    #[default]
    Start,
    /// Between members: a quote begins a key.
    Members,
    /// In a key.
    Key(SkipValue),
    /// Between a key and its colon.
    Colon,
    /// Between a colon and its value.
    Value,
    /// In a member's value.
    In(SkipValue),
    /// After the object.
    Over,
    /// In a line that is not an object.
    Nothing,
}

/// The current member, if it is relevant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CurrentMember {
    #[default]
    Other,
    Id,
    Method,
    Params,
    /// `sessionId` in `params`.
    Session,
}

/// Follows one direction of a connection.
#[derive(Default)]
pub(super) struct Follower {
    place: LinePosition,
    member: CurrentMember,
    /// The current member is in `params`.
    in_params: bool,
    /// The raw key so far; one byte more than [`MAX_KEY`] means that it is too long.
    key: Vec<u8>,
    /// The raw id; one byte more than [`MAX_ID`] means that it is too long.
    id: Vec<u8>,
    /// The raw method and session name, truncated like the id.
    method_name: Vec<u8>,
    session: Vec<u8>,
    method: bool,
    answer: bool,
    /// Length of the line so far.
    length: u64,
}

impl Follower {
    /// Reads the next bytes of the stream and calls `found` for each completed line.
    pub(super) fn read(&mut self, mut bytes: &[u8], mut found: impl FnMut(FollowedLine<'_>)) {
        // Bytes from the beginning or continuation of the line to the end.
        let mut of_line = bytes.len();
        while let Some((&byte, rest)) = bytes.split_first() {
            bytes = match self.place {
                LinePosition::Key(token) | LinePosition::In(token) => self.read_token(token, bytes),
                _ if byte == b'\n' => {
                    self.length += (of_line - bytes.len()) as u64;
                    self.end_before(rest.len(), &mut found);
                    of_line = rest.len();
                    rest
                }
                LinePosition::Over | LinePosition::Nothing => &bytes[memchr(b'\n', bytes).unwrap_or(bytes.len())..],
                _ => {
                    self.place = self.place_after(byte);
                    if matches!(self.place, LinePosition::Key(_) | LinePosition::In(_)) { bytes } else { rest }
                }
            };
        }
        self.length += of_line as u64;
    }

    /// Ends the line, as a newline or the end of the stream does.
    pub(super) fn end(&mut self, found: impl FnMut(FollowedLine<'_>)) {
        self.end_before(0, found);
    }

    fn end_before(&mut self, rest: usize, mut found: impl FnMut(FollowedLine<'_>)) {
        let kind = match (self.method, self.answer) {
            (true, _) => Some(FollowedKind::Request),
            (false, true) => Some(FollowedKind::Response),
            (false, false) => None,
        };
        let message = match (self.place, kind, parse(&self.id)) {
            (LinePosition::Over, Some(kind), Some(id)) => Some((kind, id, &self.id[..])),
            _ => None,
        };
        let has_null_id =
            self.place == LinePosition::Over && kind == Some(FollowedKind::Response) && self.id == b"null";
        let prompts = (self.place == LinePosition::Over && self.is_prompt()).then_some(&self.session[..]);
        found(FollowedLine { length: self.length, rest, message, has_null_id, prompts });
        self.length = 0;
        self.place = LinePosition::Start;
        self.member = CurrentMember::Other;
        self.in_params = false;
        self.id.clear();
        self.method_name.clear();
        self.session.clear();
        self.method = false;
        self.answer = false;
    }

    /// Whether the line is a prompt for a session whose name was stored completely.
    fn is_prompt(&self) -> bool {
        let text = |raw: &[u8]| serde_json::from_slice::<String>(raw).ok();
        self.method_name.len() <= MAX_METHOD
            && (1..=MAX_SESSION).contains(&self.session.len())
            && text(&self.method_name).is_some_and(|name| name == PROMPT)
            && text(&self.session).is_some()
    }

    /// The incomplete line: its length so far, and the id's raw token if it is a request whose id was read.
    pub(super) fn unfinished(&self) -> (u64, Option<&[u8]>) {
        let is_cut = self.member == CurrentMember::Id && matches!(self.place, LinePosition::In(_));
        let token = (self.method && !is_cut && parse(&self.id).is_some()).then_some(&self.id[..]);
        (self.length, token)
    }

    /// Whether the stream is between two lines.
    pub(super) fn at_line_start(&self) -> bool {
        self.place == LinePosition::Start
    }

    /// Whether the stream is after a complete object, with or without its newline.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.place, LinePosition::Start | LinePosition::Over)
    }

    /// Continues a key or value, up to its end, the line's end or the end of `bytes`, and returns the rest.
    fn read_token<'a>(&mut self, mut token: SkipValue, bytes: &'a [u8]) -> &'a [u8] {
        let end = token.read(bytes);
        let (now, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        self.keep(now);
        self.place = match (self.place, end) {
            (LinePosition::Key(_), None) => LinePosition::Key(token),
            (LinePosition::Key(_), Some(_)) => {
                self.name();
                LinePosition::Colon
            }
            (_, None) => LinePosition::In(token),
            (_, Some(_)) => LinePosition::Members,
        };
        rest
    }

    /// Stores the bytes of a key or of the id, one more than is relevant.
    fn keep(&mut self, bytes: &[u8]) {
        let (kept, limit) = match (self.place, self.member) {
            (LinePosition::Key(_), _) => (&mut self.key, MAX_KEY),
            (LinePosition::In(_), CurrentMember::Id) => (&mut self.id, MAX_ID),
            (LinePosition::In(_), CurrentMember::Method) => (&mut self.method_name, MAX_METHOD),
            (LinePosition::In(_), CurrentMember::Session) => (&mut self.session, MAX_SESSION),
            _ => return,
        };
        let room = (limit + 1).saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Identifies a key by its decoded name.
    fn name(&mut self) {
        let escaped = self.key.contains(&b'\\');
        let decoded = escaped.then(|| serde_json::from_slice::<String>(&self.key).unwrap_or_default());
        let name = match &decoded {
            Some(decoded) => decoded.as_bytes(),
            None => self.key.strip_prefix(b"\"").and_then(|key| key.strip_suffix(b"\"")).unwrap_or_default(),
        };
        self.member = CurrentMember::Other;
        match name {
            b"sessionId" if self.in_params => {
                self.member = CurrentMember::Session;
                self.session.clear();
            }
            _ if self.in_params => {}
            b"params" => self.member = CurrentMember::Params,
            b"id" => {
                self.member = CurrentMember::Id;
                self.id.clear();
            }
            b"method" => {
                self.method = true;
                self.member = CurrentMember::Method;
                self.method_name.clear();
            }
            b"result" | b"error" => self.answer = true,
            _ => {}
        }
    }

    /// The position after a byte outside keys and values. The first byte of a key or value is read with the rest of it.
    fn place_after(&mut self, byte: u8) -> LinePosition {
        let is_space = matches!(byte, b' ' | b'\t' | b'\r');
        match (self.place, byte) {
            (place @ (LinePosition::Start | LinePosition::Members | LinePosition::Colon | LinePosition::Value), _)
                if is_space =>
            {
                place
            }
            (LinePosition::Start, b'{') | (LinePosition::Members, b',') => LinePosition::Members,
            (LinePosition::Members, b'}') if self.in_params => {
                self.in_params = false;
                LinePosition::Members
            }
            (LinePosition::Members, b'}') => LinePosition::Over,
            (LinePosition::Members, b'"') => {
                self.key.clear();
                LinePosition::Key(SkipValue::default())
            }
            (LinePosition::Colon, b':') => LinePosition::Value,
            (LinePosition::Value, b'{') if self.member == CurrentMember::Params => {
                self.in_params = true;
                LinePosition::Members
            }
            (LinePosition::Value, _) => LinePosition::In(SkipValue::default()),
            _ => LinePosition::Nothing,
        }
    }
}

/// Parses a raw id token, which was not validated before; null is no id.
fn parse(token: &[u8]) -> Option<Id> {
    if !matches!(token.first(), Some(b'"' | b'-' | b'0'..=b'9')) || token.len() > MAX_ID {
        return None;
    }
    serde_json::from_slice::<&serde_json::value::RawValue>(token).ok()?;
    Id::parse(token).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    type SeenLines = Vec<(FollowedKind, String)>;

    fn follow(stream: &[u8], lengths: &[usize]) -> SeenLines {
        let mut follower = Follower::default();
        let mut seen = Vec::new();
        let mut found = |line: FollowedLine<'_>| {
            seen.extend(line.message.map(|(kind, _, token)| (kind, String::from_utf8_lossy(token).into_owned())));
        };
        let mut rest = stream;
        for length in lengths.iter().cycle() {
            let (piece, tail) = rest.split_at(rest.len().min(*length));
            follower.read(piece, &mut found);
            rest = tail;
            if rest.is_empty() {
                break;
            }
        }
        follower.end(&mut found);
        seen
    }

    fn request(token: &str) -> (FollowedKind, String) {
        (FollowedKind::Request, token.to_owned())
    }

    #[test]
    fn requests_and_responses_are_distinguished() {
        let stream = concat!(
            r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"id":9,"method":"no"}}"#,
            "\n",
            r#"{"jsonrpc":"2.0","method":"session/update","params":{"id":[{"id":1}]}}"#,
            "\n\n \r\n",
            r#" { "result" : null , "id" : "a\"b\\" } "#,
            "\r\n",
            r#"{"id":null,"method":"m"}"#,
            "\n",
            r#"{"id":-1.5e3,"error":{}}"#,
            "\n",
            r#"{"\u0069d":"\u0069","m\u0065thod":"x"}"#,
        );
        let expected = vec![
            request("0"),
            (FollowedKind::Response, r#""a\"b\\""#.to_owned()),
            (FollowedKind::Response, "-1.5e3".to_owned()),
            request(r#""\u0069""#),
        ];
        assert_eq!(follow(stream.as_bytes(), &[stream.len()]), expected);
        assert_eq!(follow(stream.as_bytes(), &[1]), expected);
    }

    #[test]
    fn the_session_of_a_prompt_is_found() {
        for (line, session) in [
            (r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s","prompt":[{"a":{}}]}}"#, Some(r#""s""#)),
            (r#"{"params":{"p":[],"sessionId":"\u0061"},"method":"session\/prompt","id":1}"#, Some(r#""\u0061""#)),
            (r#"{"id":1,"method":"session/prompt","params":{"sessionId":7}}"#, None),
            (r#"{"id":1,"method":"session/prompt","params":{"a":{"sessionId":"s"}}}"#, None),
            (r#"{"id":1,"method":"session/prompt","params":[],"sessionId":"s"}"#, None),
            (r#"{"id":1,"method":"session/prompts","params":{"sessionId":"s"}}"#, None),
            (r#"{"id":1,"method":"session/load","params":{"sessionId":"s"}}"#, None),
            (r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s"}"#, None),
        ] {
            let (mut whole, mut cut) = (Vec::new(), Vec::new());
            Follower::default()
                .read(format!("{line}\n").as_bytes(), |line| whole.push(line.prompts.map(<[u8]>::to_vec)));
            let mut follower = Follower::default();
            for byte in format!("{line}\n").as_bytes() {
                follower.read(&[*byte], |line| cut.push(line.prompts.map(<[u8]>::to_vec)));
            }
            assert_eq!(whole, [session.map(|session| session.as_bytes().to_vec())], "{line}");
            assert_eq!(whole, cut, "{line}");
        }
    }

    #[test]
    fn an_invalid_line_does_not_hide_the_next_one() {
        for bad in [
            "{\"id\":1,\"method\":\"",
            "{\"id\":\"1\\",
            "[{\"id\":1,\"method\":\"m\"}]",
            "{\"id\":1,\"method\":[[[",
            "{\"\\u00",
            "{\"\\u00\":1}",
            "{\"id\":\"\\ud8\",\"method\":\"m\"}",
            "{\"id\":1x,\"method\":\"m\"}",
            "{\"id\":tru,\"method\":\"m\"}",
            "}}}",
            "\u{1}\"",
            "{\"id\" 1",
            "{\"id\":1,\"method\":\"m\",\"params\":{\"a\"",
            "{\"id\":1,\"method\":\"m\",\"params\":{{}}}",
        ] {
            let stream = format!("{bad}\n{{\"id\":2,\"method\":\"m\"}}\n");
            for lengths in [vec![1], vec![2], vec![stream.len()]] {
                assert_eq!(follow(stream.as_bytes(), &lengths), [request("2")], "{bad}");
            }
        }
    }

    #[test]
    fn the_length_of_a_line_is_known_however_it_is_cut() {
        let stream = b"\n{\"id\":1}\n{\"a\":\"b\nxx\n[1]\r\n\n{\"id\":\"\\";
        for length in 1..=stream.len() {
            let (mut follower, mut lengths) = (Follower::default(), Vec::new());
            for piece in stream.chunks(length) {
                follower.read(piece, |line| lengths.push(line.length));
            }
            assert_eq!((lengths, follower.unfinished()), (vec![0, 8, 7, 2, 4, 0], (8, None)), "in pieces of {length}");
        }
    }

    #[test]
    fn the_id_of_a_request_is_known_before_its_end() {
        for (begun, id) in [
            ("{\"id\":12,\"method\":\"m\",\"params\":[", Some("12")),
            ("{\"method\":\"m\",\"id\":\"a\",", Some("\"a\"")),
            ("{\"method\":\"m\",\"id\":12", None),
            ("{\"method\":\"m\",\"params\":[", None),
            ("{\"id\":12,\"result\":[", None),
            ("{\"id\":null,\"method\":\"m\"", None),
        ] {
            let mut follower = Follower::default();
            follower.read(begun.as_bytes(), |_| ());
            assert_eq!(follower.unfinished(), (begun.len() as u64, id.map(str::as_bytes)), "{begun}");
        }
    }

    #[test]
    fn the_memory_for_a_line_is_bounded() {
        let mut follower = Follower::default();
        for _ in 0..10_000 {
            follower.read(b"{\"id\":\"", |_| ());
            follower.read(&[b'x'; 4096], |_| ());
        }
        assert!(follower.id.capacity() < 4 * MAX_ID);
        let mut follower = Follower::default();
        follower.read(b"{\"", |_| ());
        follower.read(&[b'x'; 1 << 20], |_| ());
        assert!(follower.key.capacity() < 4 * MAX_KEY);
        follower.read(b"\":1,\"method\":\"", |_| ());
        follower.read(&[b'x'; 1 << 20], |_| ());
        follower.read(b"\",\"params\":{\"sessionId\":\"", |_| ());
        follower.read(&[b'x'; 1 << 20], |_| ());
        assert!((1..4 * MAX_METHOD).contains(&follower.method_name.capacity()));
        assert!((1..4 * MAX_SESSION).contains(&follower.session.capacity()));
    }

    /// Lines of every kind: messages with members in any order and spelling, and invalid ones.
    pub(crate) fn line() -> impl Strategy<Value = String> {
        let id = prop_oneof![
            Just("null".to_owned()),
            Just("true".to_owned()),
            (0..30_i32).prop_map(|id| id.to_string()),
            "-?[1-9][0-9]{0,3}(\\.[0-9]{1,2})?([eE][+-]?[0-9])?",
            "\"([a-c \u{e9}]|\\\\\"|\\\\\\\\|\\\\u00e9){0,4}\"",
            Just("[1,\"\\\"]\"]".to_owned()),
        ];
        let value = prop_oneof![
            id.clone(),
            Just(r#"{"id":1,"method":"x","a":["}",{"b":"\\"}]}"#.to_owned()),
            Just("[]".to_owned()),
            Just("\"\\\\\"".to_owned()),
        ];
        let member = prop_oneof![
            4 => id.prop_map(|id| ("\"id\"".to_owned(), id)),
            3 => Just(("\"method\"".to_owned(), "\"m\"".to_owned())),
            1 => Just(("\"m\\u0065thod\"".to_owned(), "\"m\"".to_owned())),
            2 => value.clone().prop_map(|value| ("\"result\"".to_owned(), value)),
            1 => value.clone().prop_map(|value| ("\"error\"".to_owned(), value)),
            3 => ("\"([a-z ]|\\\\\"|\\\\\\\\){0,50}\"", value),
        ];
        let object = (prop::collection::vec(member, 0..6), "[ \t]{0,2}").prop_map(|(members, space)| {
            let mut seen = std::collections::HashSet::new();
            let members: Vec<_> = members
                .into_iter()
                .filter(|(key, _)| seen.insert(serde_json::from_str::<String>(key).expect("a key")))
                .map(|(key, value)| format!("{space}{key}{space}:{space}{value}{space}"))
                .collect();
            format!("{space}{{{}{space}}}{space}", members.join(","))
        });
        prop_oneof![8 => object, 1 => Just(" ".to_owned()), 1 => Just("[1]".to_owned())]
    }

    /// A parser's view of a line.
    fn parsed(line: &str) -> Option<(FollowedKind, String)> {
        let members: std::collections::BTreeMap<String, &serde_json::value::RawValue> =
            serde_json::from_str(line).ok()?;
        let id = members.get("id")?.get();
        let named = matches!(serde_json::from_str(id).ok()?, Value::String(_) | Value::Number(_));
        let kind = if members.contains_key("method") {
            FollowedKind::Request
        } else if members.contains_key("result") || members.contains_key("error") {
            FollowedKind::Response
        } else {
            return None;
        };
        named.then(|| (kind, id.to_owned()))
    }

    proptest! {
        #[test]
        fn a_parser_sees_the_same_however_the_bytes_arrive(
            lines in prop::collection::vec(line(), 0..10),
            lengths in prop::collection::vec(1..40_usize, 1..6),
        ) {
            let expected: SeenLines = lines.iter().filter_map(|line| parsed(line)).collect();
            prop_assert_eq!(follow(lines.join("\n").as_bytes(), &lengths), expected);
        }

        #[test]
        fn no_bytes_make_it_panic_or_lose_the_next_line(
            bytes in prop::collection::vec(prop_oneof![
                any::<u8>(), prop::sample::select(br#"{}[]":,\u0idmethod"#.to_vec()),
            ], 0..80),
            lengths in prop::collection::vec(1..9_usize, 1..6),
        ) {
            let stream = [&bytes[..], b"\n{\"id\":7,\"method\":\"m\"}\n"].concat();
            let seen = follow(&stream, &lengths);
            prop_assert_eq!(seen.last(), Some(&request("7")));
        }
    }
}
