//! The members of a request's `params` that MCP 2026-07-28 has to look at. They are found in one walk, which may be done in
//! shares: a request can be as long as `max_input_buffer` allows.

use std::borrow::Cow;
use std::ops::Range;

use ndjson_scan::{SkipValue, decoded, is_decoded};

/// A member that is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// `params.name`.
    Name,
    /// `params.uri`.
    Uri,
    /// `params.requestState`.
    State,
    /// The protocol version in `params._meta`.
    Version,
    /// `params.taskId`.
    Task,
}

impl Wanted {
    /// Its key.
    pub fn name(self) -> &'static str {
        WANTED[self as usize].1
    }
}

/// All of them, by level: a member of params, or of its `_meta`.
const WANTED: [(usize, &str, Wanted); 5] = [
    (1, "name", Wanted::Name),
    (1, "uri", Wanted::Uri),
    (1, "requestState", Wanted::State),
    (2, "io.modelcontextprotocol/protocolVersion", Wanted::Version),
    (1, "taskId", Wanted::Task),
];

/// The object in a member of this level that is looked into: `params` in the message, and `_meta` in that.
const INTO: [&str; 2] = ["params", "_meta"];

/// The members that were found in a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Params {
    /// The first value of each.
    values: [Option<Range<usize>>; WANTED.len()],
    /// Those that occur more than once.
    twice: [bool; WANTED.len()],
}

impl Params {
    /// Those of a message, which is valid.
    pub fn of(text: &[u8]) -> Self {
        let mut walk = Walk::default();
        while !walk.go_on(text, usize::MAX) {}
        walk.found
    }

    /// The decoded value of a member of this message, if it is a string.
    pub fn string<'a>(&self, text: &'a [u8], wanted: Wanted) -> Option<Cow<'a, [u8]>> {
        decoded(&text[self.values[wanted as usize].clone()?])
    }

    /// Whether the member occurs more than once, so that a worker may read the other one.
    pub fn is_twice(&self, wanted: Wanted) -> bool {
        self.twice[wanted as usize]
    }
}

/// Progress through a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    at: usize,
    step: Step,
    /// How many objects are open: the message, its params and their `_meta`, without the first.
    level: usize,
    /// Where the key or the value that is read begins.
    begin: usize,
    skip: SkipValue,
    key: Range<usize>,
    found: Params,
}

/// What comes next in an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// A key, or the end, after a bracket or a comma.
    #[default]
    Between,
    /// The rest of a key.
    Key,
    /// The colon, and the first byte of a value.
    Colon,
    /// The rest of a value.
    Value,
}

impl Walk {
    /// Reads about `most` bytes further in the message. Returns whether that is all.
    pub fn go_on(&mut self, text: &[u8], most: usize) -> bool {
        let whole = text.len();
        let text = &text[..whole.min(self.at.saturating_add(most))];
        while let Some(&byte) = text.get(self.at) {
            match self.step {
                Step::Between if byte == b'"' => {
                    (self.begin, self.skip, self.step) = (self.at, SkipValue::default(), Step::Key);
                }
                Step::Between if byte == b'}' && self.level < 2 => return true,
                Step::Between => {
                    self.level -= usize::from(byte == b'}');
                    self.at += 1;
                }
                Step::Colon if matches!(byte, b':' | b' ' | b'\t' | b'\r') => self.at += 1,
                Step::Colon if byte == b'{' && INTO.get(self.level).is_some_and(|name| self.is_key(text, name)) => {
                    (self.level, self.step) = (self.level + 1, Step::Between);
                    self.at += 1;
                }
                Step::Colon => {
                    (self.begin, self.skip, self.step) = (self.at, SkipValue::default(), Step::Value);
                }
                Step::Key | Step::Value => {
                    let Some(length) = self.skip.read(&text[self.at..]) else {
                        self.at = text.len();
                        break;
                    };
                    self.at += length;
                    if self.step == Step::Key {
                        (self.key, self.step) = (self.begin..self.at, Step::Colon);
                    } else {
                        self.take(text);
                        self.step = Step::Between;
                    }
                }
            }
        }
        self.at == whole
    }

    /// What was found.
    pub fn found(self) -> Params {
        self.found
    }

    /// A value was read.
    fn take(&mut self, text: &[u8]) {
        let wanted = WANTED.iter().find(|(level, name, _)| *level == self.level && self.is_key(text, name));
        let Some((_, _, wanted)) = wanted else { return };
        let place = *wanted as usize;
        match &self.found.values[place] {
            Some(_) => self.found.twice[place] = true,
            None => self.found.values[place] = Some(self.begin..self.at),
        }
    }

    /// Whether the key that was read is this one.
    fn is_key(&self, text: &[u8], name: &str) -> bool {
        is_decoded(&text[self.key.clone()], name.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_at_their_level_however_the_walk_is_cut() {
        let text = br#" {"name":"no","x":{"params":{"name":"no"}},"p\u0061rams" : { "uri":["no"],"_meta":{"name":"no","a":{},
            "io.modelcontextprotocol/protocolVersion" : "v","io.modelcontextprotocol\/protocolVersion":1 } ,"y":[{"name":"no"}],
            "n\u0061me":"a\u0062","requestState":"s"} ,"uri":"no"} "#;
        let text: Vec<u8> = text.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }).collect();
        let found = Params::of(&text);
        let strings = [Wanted::Name, Wanted::Uri, Wanted::State, Wanted::Version].map(|it| found.string(&text, it));
        let strings = strings.map(|found| found.map(|text| String::from_utf8_lossy(&text).into_owned()));
        assert_eq!(strings.each_ref().map(Option::as_deref), [Some("ab"), None, Some("s"), Some("v")]);
        assert!(found.is_twice(Wanted::Version) && !found.is_twice(Wanted::Name));
        for most in 1..20 {
            let mut walk = Walk::default();
            let mut steps = 0;
            while !walk.go_on(&text, most) {
                steps += 1;
                assert!(steps <= text.len(), "it ends");
            }
            assert_eq!(walk.found(), found, "in shares of {most}");
        }
    }

    #[test]
    fn a_message_without_params_has_none_of_them() {
        for text in [r#"{}"#, r#"{"params":[{"name":"x"}],"id":1}"#, r#"{"params":"name"}"#, r#"{"params":{}}"#] {
            assert_eq!(Params::of(text.as_bytes()), Params::default(), "{text}");
        }
    }
}
