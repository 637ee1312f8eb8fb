//! The scanner: finds the lines of a read buffer, validates each one completely (RFC 8259, UTF-8 included) and
//! pulls out the routing fields. It builds nothing, keeps no bytes and never looks at the same block twice.
//!
//! The invariant, per connection: `consumed ≤ scanned ≤ received`. A line is given only when it is valid to its
//! end; the first line that is not is found exactly.

/// Bytes that must be readable before the first and after the last received byte of a [`Window`]. What they hold
/// does not matter.
pub const PAD: usize = 64;

/// Deepest nesting of arrays and objects in one line; a deeper one is malformed.
pub const MAX_DEPTH: usize = 512;

/// Received bytes that the bus has not consumed yet, with [`PAD`] readable bytes on both sides.
#[derive(Clone, Copy)]
pub struct Window<'a> {
    bytes: &'a [u8],
    start: usize,
    end: usize,
}

impl<'a> Window<'a> {
    /// The window `bytes[start..end]`.
    ///
    /// # Panics
    /// If fewer than [`PAD`] bytes stand before `start` or after `end`.
    pub fn new(bytes: &'a [u8], start: usize, end: usize) -> Self {
        assert!(start >= PAD && start <= end && bytes.len() - end >= PAD, "a window needs its pads");
        assert!(bytes.len() < u32::MAX as usize, "spans are 32 bits wide");
        Self { bytes, start, end }
    }

    /// The received bytes.
    pub fn data(&self) -> &'a [u8] {
        &self.bytes[self.start..self.end]
    }

    /// The bytes of one span of this window.
    pub fn get(&self, span: Span) -> &'a [u8] {
        &self.data()[span.start as usize..span.end as usize]
    }
}

/// A half-open range of bytes in [`Window::data`]. A token has at least one byte, so `end == 0` says that it is
/// absent.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// Whether there is such a token.
    pub fn is_some(self) -> bool {
        self.end != 0
    }

    /// Number of bytes.
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether the span holds no byte.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// One valid line, a JSON object, and where its routing fields stand. Tokens are raw: strings with their quotes and
/// escapes. Keys are compared decoded (`"\u0069d"` is `id`).
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Line {
    /// The whole line without its newline.
    pub span: Span,
    /// `id`: a string or a number. Absent too when it is null or [`Line::ID_INVALID`].
    pub id: Span,
    /// `method`, if it is a string.
    pub method: Span,
    /// `sessionId` at top level, if it is a string.
    pub session: Span,
    /// `params.sessionId`, if it is a string.
    pub params_session: Span,
    /// `result.sessionId`, if it is a string.
    pub result_session: Span,
    /// `pool` at top level, if it is a string.
    pub pool: Span,
    /// `params.requestId`: a string or a number.
    pub request_id: Span,
    /// Any of the `Line::` bits.
    pub flags: u32,
}

impl Line {
    /// A member `result` is present, whatever its value.
    pub const RESULT: u32 = 1;
    /// A member `error` is present, whatever its value.
    pub const ERROR: u32 = 2;
    /// `id` is present and null.
    pub const ID_NULL: u32 = 4;
    /// `id` is present and a boolean, an array or an object.
    pub const ID_INVALID: u32 = 8;

    /// Whether all of `bits` are set.
    pub fn has(&self, bits: u32) -> bool {
        self.flags & bits == bits
    }
}

/// Why a line is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not JSON by RFC 8259.
    Syntax,
    /// Bytes that are not UTF-8.
    Utf8,
    /// Nested deeper than [`MAX_DEPTH`].
    Depth,
    /// Valid JSON, but not an object.
    NotAnObject,
    /// A routing key (`id`, `method`, `params`, `result`, `error`, `sessionId`, `pool`; in `params` and `result`
    /// `sessionId`, in `params` `requestId`) stands twice: two parsers could choose differently.
    DuplicateKey,
}

/// What a scan came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every complete line was given.
    More,
    /// The batch is full: take its lines and scan again with the same window.
    Full,
    /// The lines before this one were given; this one is not a message.
    Malformed {
        /// Where the line begins in the window.
        line: usize,
        /// Where the fault was found in the window: at or after the byte that makes the line invalid.
        at: usize,
        /// What is wrong.
        fault: Fault,
    },
}
