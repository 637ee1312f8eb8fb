//! The reference scanner: one line, byte by byte. It defines what a valid line is and what its fields are; the fast
//! paths may only fall back to it. It never recurses, and reads no byte twice. It keeps one bit per level of nesting.
//!
//! The invariant: all that is known of the bytes read so far is in the [`Machine`], so a line may arrive in pieces of
//! any size. A byte that makes the line malformed leaves the machine unchanged.

use super::member::Member;
use super::meta::{Meta, MetaName};
use super::string::plain;
use super::{Fault, Line, MAX_WRAPPED_DEPTH, Span};
use alloc::vec::Vec;

/// The result of reading the bytes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineVerdict {
    /// No newline yet, and no fault.
    Unfinished,
    /// `length` bytes of white space before the newline.
    Blank { length: usize },
    /// A valid line of `length` bytes before the newline.
    Line { length: usize },
    /// The byte at `at` cannot occur in a valid line.
    Malformed { at: usize, fault: Fault },
}

/// What may come next.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Expected {
    /// The object that is the line.
    #[default]
    Start,
    /// A key or the end of the object.
    FirstKey,
    /// A key.
    KeyPrefix,
    /// The colon after a key.
    Colon,
    /// A value or the end of the array.
    FirstValue,
    /// A value.
    Value,
    /// A comma or the end of the container.
    AfterValue,
    /// White space after the object.
    End,
    /// The rest of a string.
    Text,
    /// The letter after a backslash.
    Escape,
    /// This many more hex digits.
    Hex(u8),
    /// This many more continuation bytes, the next one between these two.
    Continuation(u8, u8, u8),
    /// The rest of a literal.
    Word(&'static [u8]),
    /// The first digit after a minus.
    Minus,
    /// The character after a leading zero.
    Zero,
    /// More digits, a point or an exponent.
    Integer,
    /// The first digit after the point.
    Point,
    /// More digits or an exponent.
    Fraction,
    /// The sign or the first digit of the exponent.
    Exponent,
    /// The first digit of the exponent.
    ExponentDigit,
    /// More digits of the exponent.
    Power,
}

/// The longest routing key has 38 bytes; one more shows that a key is not a routing key.
const KEY: usize = 39;

/// The beginning of a key.
struct KeyPrefix([u8; KEY]);

impl Default for KeyPrefix {
    fn default() -> Self {
        Self([0; KEY])
    }
}

/// Number of open containers in a `_meta`: the message, its params or its result, and that.
const META_DEPTH: usize = 3;

/// The state of one line.
#[derive(Default)]
pub(super) struct Machine {
    state: Expected,
    /// Open containers.
    depth: usize,
    /// Maximum number of open containers; more are a fault.
    max_depth: usize,
    /// One bit for each open container, the outermost lowest: whether it is an object.
    objects: Vec<u64>,
    /// The string being read is a key.
    in_key: bool,
    /// The first bytes of the key being read, decoded, if this place can hold a routing key.
    key: KeyPrefix,
    key_length: usize,
    /// The hex digits of the escape being read.
    code: u32,
    /// The member of the top object whose value is being read.
    top: Member,
    /// The member that the next value, or the value being read, belongs to.
    member: Member,
    /// A bit for each member seen.
    seen: u16,
    /// The last byte was a carriage return outside strings.
    after_return: bool,
    /// Where the token being read begins.
    token: usize,
    /// The fields found so far, relative to the line's start.
    line: Line,
    /// The `_meta` of params is being read, or that of the result; what they say is in the line.
    in_meta: bool,
    /// There is one in params, which counts alone.
    has_meta_of_params: bool,
    /// The names that were seen in it.
    named: [bool; 2],
    /// The name that the next value belongs to, or the value being read.
    name: Option<MetaName>,
    /// Where the key being read begins.
    key_at: usize,
}

impl Machine {
    /// Prepares for the first byte of a line with at most `max_depth` nested arrays and objects.
    pub(super) fn begin(&mut self, max_depth: usize) {
        let mut objects = core::mem::take(&mut self.objects);
        objects.clear();
        objects.shrink_to(MAX_WRAPPED_DEPTH / 64);
        *self = Self { max_depth, objects, ..Self::default() };
    }

    /// Reads `bytes`, which begin with the line, from `from` on; the bytes before were read already.
    pub(super) fn read(&mut self, bytes: &[u8], from: usize) -> LineVerdict {
        let mut at = from;
        while at < bytes.len() {
            if self.state == Expected::Text && !self.in_key {
                at += bytes[at..].iter().take_while(|&&byte| is_plain(byte)).count();
                if at == bytes.len() {
                    break;
                }
            }
            let byte = bytes[at];
            if byte == b'\n' {
                match self.state {
                    Expected::Start => return LineVerdict::Blank { length: at },
                    Expected::End => return LineVerdict::Line { length: at },
                    // White space, but the line ends before its object does.
                    _ => {
                        let fault = self.unfinished();
                        return LineVerdict::Malformed { at, fault };
                    }
                }
            }
            if let Err(fault) = self.step(byte, at) {
                return LineVerdict::Malformed { at, fault };
            }
            if self.after_return {
                self.line.flags |= Line::LONE_RETURN;
            }
            // Inside strings it is malformed.
            self.after_return = byte == b'\r';
            at += 1;
        }
        LineVerdict::Unfinished
    }

    /// The line, found valid and `length` bytes long, where it begins at `start`.
    pub(super) fn line(&self, start: usize, length: usize) -> Line {
        self.line.placed(start, length)
    }

    /// Why a newline is not allowed here.
    fn unfinished(&self) -> Fault {
        if matches!(self.state, Expected::Continuation(..)) { Fault::Utf8 } else { Fault::Syntax }
    }

    fn step(&mut self, byte: u8, at: usize) -> Result<(), Fault> {
        use Expected::*;
        self.state = match self.state {
            Start | FirstKey | KeyPrefix | Colon | FirstValue | Value | AfterValue | End if is_space(byte) => {
                self.state
            }
            Start => match byte {
                b'{' => self.open(true)?,
                b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => return Err(Fault::NotAnObject),
                _ => return Err(Fault::Syntax),
            },
            FirstKey if byte == b'}' => self.close(true)?,
            FirstKey | KeyPrefix if byte == b'"' => self.open_key(at),
            Colon if byte == b':' => Value,
            FirstValue if byte == b']' => self.close(false)?,
            FirstValue | Value => self.value(byte, at)?,
            AfterValue => match byte {
                b',' => {
                    self.member = Member::Other;
                    if self.in_object() { KeyPrefix } else { Value }
                }
                b'}' | b']' => self.close(byte == b'}')?,
                _ => return Err(Fault::Syntax),
            },

            Text => self.text(byte, at)?,
            Escape => self.escape(byte)?,
            Hex(left) => self.hex(byte, left)?,
            Continuation(left, low, high) if (low..=high).contains(&byte) => {
                if left > 1 {
                    Continuation(left - 1, 0x80, 0xBF)
                } else {
                    Text
                }
            }
            Continuation(..) => return Err(Fault::Utf8),

            Word([]) | Zero | Integer | Fraction | Power if ends_value(byte) => {
                self.end_token(at);
                self.state = AfterValue;
                return self.step(byte, at);
            }
            Word([expected, rest @ ..]) if byte == *expected => Word(rest),
            Minus if byte == b'0' => Zero,
            Minus | Integer if byte.is_ascii_digit() => Integer,
            Zero | Integer if byte == b'.' => Point,
            Zero | Integer | Fraction if byte | 0x20 == b'e' => Exponent,
            Point | Fraction if byte.is_ascii_digit() => Fraction,
            Exponent if byte == b'+' || byte == b'-' => ExponentDigit,
            Exponent | ExponentDigit | Power if byte.is_ascii_digit() => Power,
            _ => return Err(Fault::Syntax),
        };
        Ok(())
    }

    /// The byte after a backslash.
    fn escape(&mut self, byte: u8) -> Result<Expected, Fault> {
        match byte {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {
                self.push_key(plain(byte));
                Ok(Expected::Text)
            }
            b'u' => {
                self.code = 0;
                Ok(Expected::Hex(4))
            }
            _ => Err(Fault::Syntax),
        }
    }

    /// One hex digit of an escape; `left` remain, this one included.
    fn hex(&mut self, byte: u8, left: u8) -> Result<Expected, Fault> {
        let digit = (byte as char).to_digit(16).ok_or(Fault::Syntax)?;
        self.code = self.code << 4 | digit;
        if left > 1 {
            return Ok(Expected::Hex(left - 1));
        }
        // Routing keys are ASCII: any other character only has to make the key differ.
        self.push_key(if self.code < 0x80 { self.code as u8 } else { 0xFF });
        Ok(Expected::Text)
    }

    /// The first byte of a value.
    fn value(&mut self, byte: u8, at: usize) -> Result<Expected, Fault> {
        let next = match byte {
            b'{' | b'[' => self.open(byte == b'{')?,
            b'"' => {
                self.in_key = false;
                Expected::Text
            }
            b'-' => Expected::Minus,
            b'0' => Expected::Zero,
            b'1'..=b'9' => Expected::Integer,
            b't' => Expected::Word(b"rue"),
            b'f' => Expected::Word(b"alse"),
            b'n' => Expected::Word(b"ull"),
            _ => return Err(Fault::Syntax),
        };
        self.token = at;
        match (self.member, byte) {
            (Member::Id, b'n') => self.line.flags |= Line::ID_NULL,
            (Member::Id, b'{' | b'[' | b't' | b'f') => self.line.flags |= Line::ID_INVALID,
            (Member::ParamsMeta, b'{') => {
                self.has_meta_of_params = true;
                self.open_meta();
            }
            (Member::ResultMeta, b'{') if !self.has_meta_of_params => self.open_meta(),
            _ => {}
        }
        self.name = self.name.filter(|_| matches!(byte, b'"' | b'-' | b'0'..=b'9'));
        // Only a field that names a request may be a number; every other field that routing reads is a string.
        let kept = match byte {
            b'"' => true,
            b'-' | b'0'..=b'9' => {
                matches!(self.member, Member::Id | Member::ParamsRequest | Member::ParamsId | Member::ParamsToken)
            }
            _ => false,
        };
        if !kept {
            self.member = Member::Other;
        }
        Ok(next)
    }

    /// A string, a number or a literal ended before `end`.
    fn end_token(&mut self, end: usize) {
        let span = Span { start: self.token as u32, end: end as u32 };
        match self.name.take() {
            Some(MetaName::Progress) => self.line.meta.progress = span,
            Some(MetaName::Subscription) => self.line.meta.subscription = span,
            None => {}
        }
        match self.member {
            Member::Id => self.line.id = span,
            Member::Method => self.line.method = span,
            Member::Session => self.line.session = span,
            Member::Pool => self.line.pool = span,
            Member::ParamsSession => self.line.params_session = span,
            Member::ParamsRequest => self.line.request_id = span,
            Member::ParamsId => self.line.params_id = span,
            Member::ResultSession => self.line.result_session = span,
            Member::ParamsToken => self.line.token = span,
            Member::ParamsMeta | Member::ResultMeta | Member::ResultTask => {}
            Member::Other | Member::Params | Member::Result | Member::Error => {}
        }
        self.member = Member::Other;
    }

    fn text(&mut self, byte: u8, at: usize) -> Result<Expected, Fault> {
        Ok(match byte {
            b'"' if self.in_key => {
                self.end_key()?;
                Expected::Colon
            }
            b'"' => {
                self.end_token(at + 1);
                Expected::AfterValue
            }
            b'\\' => Expected::Escape,
            0x00..=0x1F => return Err(Fault::Syntax),
            0x20..=0x7F => {
                self.push_key(byte);
                Expected::Text
            }
            _ => {
                self.push_key(byte);
                // Well-formed sequences by table 3-7 of the Unicode standard.
                match byte {
                    0xC2..=0xDF => Expected::Continuation(1, 0x80, 0xBF),
                    0xE0 => Expected::Continuation(2, 0xA0, 0xBF),
                    0xED => Expected::Continuation(2, 0x80, 0x9F),
                    0xE1..=0xEF => Expected::Continuation(2, 0x80, 0xBF),
                    0xF0 => Expected::Continuation(3, 0x90, 0xBF),
                    0xF1..=0xF3 => Expected::Continuation(3, 0x80, 0xBF),
                    0xF4 => Expected::Continuation(3, 0x80, 0x8F),
                    _ => return Err(Fault::Utf8),
                }
            }
        })
    }

    fn open_key(&mut self, at: usize) -> Expected {
        (self.in_key, self.key_at) = (true, at);
        self.key_length = 0;
        Expected::Text
    }

    fn open_meta(&mut self) {
        (self.in_meta, self.named, self.line.meta) = (true, [false; 2], Meta::default());
    }

    fn push_key(&mut self, byte: u8) {
        if self.in_key && self.key_length < KEY {
            self.key.0[self.key_length] = byte;
            self.key_length += 1;
        }
    }

    fn end_key(&mut self) -> Result<(), Fault> {
        let name = &self.key.0[..self.key_length];
        if self.in_meta && self.depth == META_DEPTH {
            self.name = MetaName::named(name);
            if self.name.is_some_and(|name| core::mem::replace(&mut self.named[name as usize], true)) {
                self.line.meta.twice = self.key_at as u32;
            }
        }
        let member = match self.depth {
            1 => Member::of_message(name),
            2 => self.top.inside(name),
            _ => Member::Other,
        };
        let bit = member.bit();
        if member != Member::Other && self.seen & bit != 0 {
            return Err(Fault::DuplicateKey);
        }
        self.seen |= bit;
        match member {
            Member::Result => self.line.flags |= Line::RESULT,
            Member::Error => self.line.flags |= Line::ERROR,
            Member::Pool => self.line.flags |= Line::POOL,
            Member::ResultTask => self.line.flags |= Line::TASK,
            _ => {}
        }
        if self.depth == 1 {
            self.top = member;
        }
        self.member = member;
        Ok(())
    }

    fn open(&mut self, object: bool) -> Result<Expected, Fault> {
        if self.depth == self.max_depth {
            return Err(Fault::Depth);
        }
        if self.depth == MAX_WRAPPED_DEPTH {
            self.line.flags |= Line::TOO_DEEP;
        }
        let (word, bit) = (self.depth / 64, 1 << (self.depth % 64));
        if word == self.objects.len() {
            // If no memory is left for it, it is too deep.
            self.objects.try_reserve(1).map_err(|_| Fault::Depth)?;
            self.objects.push(0);
        }
        if object {
            self.objects[word] |= bit;
        } else {
            self.objects[word] &= !bit;
        }
        self.depth += 1;
        Ok(if object { Expected::FirstKey } else { Expected::FirstValue })
    }

    fn close(&mut self, object: bool) -> Result<Expected, Fault> {
        if self.in_object() != object {
            return Err(Fault::Syntax);
        }
        self.depth -= 1;
        self.in_meta &= self.depth >= META_DEPTH;
        Ok(if self.depth == 0 { Expected::End } else { Expected::AfterValue })
    }

    /// Whether the innermost open container is an object.
    fn in_object(&self) -> bool {
        let innermost = self.depth - 1;
        self.objects[innermost / 64] >> (innermost % 64) & 1 != 0
    }
}

/// Whether a byte of a string is a whole character that stands for itself.
fn is_plain(byte: u8) -> bool {
    (0x20..0x80).contains(&byte) && byte != b'"' && byte != b'\\'
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

/// Whether a number or a literal may end before this byte.
fn ends_value(byte: u8) -> bool {
    is_space(byte) || matches!(byte, b',' | b']' | b'}')
}
