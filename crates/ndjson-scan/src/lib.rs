//! The scanner finds the lines in a read buffer, validates each one completely (RFC 8259, UTF-8 included) and extracts
//! the routing fields. It builds nothing, keeps no bytes and never looks at the same block twice.
//!
//! The invariant, per connection: `consumed ≤ scanned ≤ received`. A line is returned only if it is valid to its end;
//! the first invalid line is located exactly.
//!
//! # The first line of a buffer
//!
//! [`Scanner`] holds what all connections share; [`Partial`] holds the state of one connection's incomplete line.
//!
//! ```
//! use ndjson_scan::{PAD, Partial, ScanResult, Scanner, Window};
//!
//! let received = b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\"}\n{\"jsonrpc\":";
//! // A buffer is read into between two pads, which may hold anything.
//! let mut buffer = vec![0; PAD + received.len() + PAD];
//! buffer[PAD..][..received.len()].copy_from_slice(received);
//! let window = Window::new(&buffer, PAD, PAD + received.len());
//!
//! let (mut scanner, mut partial, mut lines) = (Scanner::new(), Partial::new(), Vec::new());
//! assert_eq!(scanner.scan(&mut partial, window, &mut lines), ScanResult::More);
//! let [line] = lines[..] else { panic!("the second line has no end yet") };
//! assert_eq!(window.get(line.id), b"7");
//! assert_eq!(window.get(line.method), b"\"ping\"");
//! // What these bytes were can be dropped before more is received behind the rest.
//! assert_eq!(partial.consume(), 41);
//! ```
//!
//! # Reading order
//!
//! 1. What is read: a [`Window`] of received bytes, between two pads of [`PAD`] bytes.
//! 2. Who reads it: a [`Scanner`], with a [`Partial`] for each connection. [`ScanResult`] says why it stopped.
//! 3. What it finds: a [`Line`], with a [`Span`] for each routing field, and its [`Meta`].
//! 4. What is looked up in a line that is known to be valid: [`member`] and [`members`], [`string_in`] and the others beside
//!    it, and [`decoded`] for strings with escapes.
//!
//! # Features
//!
//! Without the feature `std` (on by default) the scanner cannot detect CPU features, and uses those that the program is
//! built for. The crate needs an allocator and nothing else.

#![cfg_attr(not(test), no_std)]
#![warn(missing_docs, unreachable_pub)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod fast;
mod find;
mod isa;
mod member;
mod meta;
mod object;
mod reference;
mod skip;
mod string;
mod zeroed;

use alloc::boxed::Box;
use alloc::vec::Vec;

pub use find::{
    Ambiguous, all_members, member, members, name_in_params, objects_in_params, string_in, string_in_params,
    strings_in, with_its_comma, wrapped_message,
};
pub use meta::Meta;
pub use skip::SkipValue;
pub use string::{BYTE_ORDER_MARK, blank_returns, decoded, is_decoded};

use isa::Isa;
use isa::portable::Portable;
#[cfg(target_arch = "x86_64")]
use isa::{avx2::Avx2, avx512::Avx512};
use reference::{LineVerdict, Machine};

/// Bytes that must be readable before the first and after the last received byte of a [`Window`]. Their values do not
/// matter.
pub const PAD: usize = 64;

/// Deepest nesting of arrays and objects in one line; a deeper one is malformed, unless the peer's [`Partial`] allows
/// any depth.
pub const MAX_DEPTH: usize = 512;

/// Lines nested deeper than this are [`Line::TOO_DEEP`].
pub const MAX_WRAPPED_DEPTH: usize = 2 * MAX_DEPTH;

/// Received bytes that the bus has not consumed yet, with [`PAD`] readable bytes on both sides.
#[derive(Clone, Copy)]
pub struct Window<'a> {
    /// The received bytes and the pad after them.
    padded: &'a [u8],
    received: usize,
}

impl<'a> Window<'a> {
    /// The window `bytes[start..end]`.
    ///
    /// # Panics
    /// If there are fewer than [`PAD`] bytes before `start` or after `end`.
    #[inline]
    pub fn new(bytes: &'a [u8], start: usize, end: usize) -> Self {
        assert!(start >= PAD && start <= end && bytes.len() - end >= PAD, "a window needs its pads");
        assert!(bytes.len() < u32::MAX as usize, "spans are 32 bits wide");
        Self { padded: &bytes[start..], received: end - start }
    }

    /// The received bytes.
    #[inline]
    pub fn data(&self) -> &'a [u8] {
        &self.padded[..self.received]
    }

    /// The received byte at `at`, or a byte of the pad.
    #[inline(always)]
    fn byte(&self, at: usize) -> u8 {
        self.padded[at]
    }

    /// Eight bytes as a number, little-endian.
    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(*self.array(at))
    }

    /// `N` bytes starting at received byte `at`; bytes past the last received one belong to the pad.
    #[inline(always)]
    fn array<const N: usize>(&self, at: usize) -> &'a [u8; N] {
        self.padded[at..at + N].try_into().expect("`N` bytes")
    }

    /// The same window without its first `bytes`.
    #[inline]
    pub fn without(self, bytes: usize) -> Self {
        debug_assert!(bytes <= self.received);
        Self { padded: &self.padded[bytes..], received: self.received - bytes }
    }

    /// The bytes of one span of this window.
    ///
    /// # Panics
    /// If the span is not one of this window, as with any slice.
    #[inline]
    pub fn get(&self, span: Span) -> &'a [u8] {
        &self.data()[span.start as usize..span.end as usize]
    }
}

/// A half-open range of bytes in [`Window::data`]. A token has at least one byte, so `end == 0` means that it is
/// absent.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// Whether the token is present.
    #[inline]
    pub fn is_some(self) -> bool {
        self.end != 0
    }

    /// Number of bytes.
    #[inline]
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether the span is empty.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The same token, `by` bytes earlier; an absent one stays absent.
    fn moved(self, by: u32) -> Self {
        if self.is_some() { Self { start: self.start + by, end: self.end + by } } else { self }
    }

    /// The same token, `by` bytes later; an absent one stays absent.
    fn moved_back(self, by: u32) -> Self {
        if self.is_some() { Self { start: self.start - by, end: self.end - by } } else { self }
    }
}

/// One valid line, a JSON object, and the positions of its routing fields. Tokens are raw: strings with their quotes
/// and escapes. Keys are compared decoded (`"\u0069d"` is `id`).
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Line {
    /// The whole line without its newline.
    pub span: Span,
    /// `id`: a string or a number. Also absent when it is null or [`Line::ID_INVALID`].
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
    /// `params.id`: a string or a number. Only LSP cancellations name a request there.
    pub params_id: Span,
    /// `params.progressToken`: a string or a number. Only MCP notifications name a request there.
    pub token: Span,
    /// What `params._meta` says about requests if it is an object, else what `result._meta` says.
    pub meta: Meta,
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
    /// Nested deeper than [`MAX_WRAPPED_DEPTH`].
    pub const TOO_DEEP: u32 = 16;
    /// A member `pool` is present at top level, whatever its value.
    pub const POOL: u32 = 32;
    /// A carriage return is between its tokens, where some readers end a line; one just before the newline does
    /// not count.
    pub const LONE_RETURN: u32 = 64;
    /// A member `taskId` is present in the `result`, whatever its value.
    pub const TASK: u32 = 128;

    /// Whether all of `bits` are set.
    pub fn has(&self, bits: u32) -> bool {
        self.flags & bits == bits
    }

    /// The same line in a window without its first `bytes`; those end before the line begins.
    pub fn counted_after(&self, bytes: usize) -> Self {
        debug_assert!(bytes <= self.span.start as usize, "a line that is dropped in part is none any more");
        self.with_each(|span| span.moved_back(bytes as u32))
    }

    /// This line, whose fields count from its start, at its place in a window: from `start`, `length` bytes.
    fn placed(&self, start: usize, length: usize) -> Self {
        let by = start as u32;
        Self { span: Span { start: by, end: by + length as u32 }, ..self.with_each(|span| span.moved(by)) }
    }

    /// This line with `moved` applied to each of its spans.
    fn with_each(&self, moved: impl Fn(Span) -> Span) -> Self {
        Self {
            span: moved(self.span),
            id: moved(self.id),
            method: moved(self.method),
            session: moved(self.session),
            params_session: moved(self.params_session),
            result_session: moved(self.result_session),
            pool: moved(self.pool),
            request_id: moved(self.request_id),
            params_id: moved(self.params_id),
            token: moved(self.token),
            meta: self.meta.with_each(&moved),
            flags: self.flags,
        }
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
    /// `sessionId` and `_meta`, in `params` `requestId`, `id` and `progressToken`, in `result` `taskId`) occurs twice, so parsers may differ.
    DuplicateKey,
}

impl Fault {
    /// What is wrong, for people.
    pub fn what(self) -> &'static str {
        match self {
            Self::Syntax => "not JSON",
            Self::Utf8 => "not UTF-8",
            Self::Depth => "nested too deeply",
            Self::NotAnObject => "not a JSON object",
            Self::DuplicateKey => "a routing key occurs twice",
        }
    }
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanResult {
    /// Every complete line was returned.
    More,
    /// The batch is full, or [`MOST_DOUBTFUL`] bytes were read one by one: take its lines and scan again with the same
    /// window.
    Full,
    /// The lines before this one were returned; this one is not a message.
    Malformed {
        /// Where the line begins in the window.
        line: usize,
        /// Where the fault was detected in the window: at or after the byte that makes the line invalid.
        at: usize,
        /// What is wrong.
        fault: Fault,
    },
}

/// Maximum number of lines in the batch after one [`Scanner::scan`].
pub const BATCH: usize = 64;

/// Maximum number of bytes that one [`Scanner::scan`] reads one by one: the reference scanner takes some nanoseconds for
/// each, and a long line that is found doubtful at its end is read again from its start.
pub const MOST_DOUBTFUL: usize = 16 * 1024;

/// How bytes are examined. All sets return the same lines and the same faults; they differ in speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSet {
    /// Byte by byte: it defines the result and decides what the others are in doubt about.
    Reference,
    /// 64 bytes at a time in plain words; every CPU has it.
    Portable,
    /// 64 bytes at a time with AVX2.
    Avx2,
    /// 64 bytes at a time with AVX-512; it needs VBMI2.
    Avx512,
}

/// What one bus needs to scan: the instruction set chosen at start and scratch space that all its connections share.
pub struct Scanner {
    engine: Engine,
    scratch: fast::Scratch,
}

/// An instruction set, and the proof that the CPU supports it.
#[derive(Clone, Copy)]
enum Engine {
    Reference,
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Default for Scanner {
    fn default() -> Self {
        Self::new()
    }
}

impl Scanner {
    /// A scanner with the fastest instruction set of this CPU.
    pub fn new() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(isa) = Avx512::detect() {
            return Self::of(Engine::Avx512(isa));
        } else if let Some(isa) = Avx2::detect() {
            return Self::of(Engine::Avx2(isa));
        }
        Self::of(Engine::Portable(Portable))
    }

    /// A scanner with this instruction set, or `None` if the CPU lacks it.
    pub fn with(set: InstructionSet) -> Option<Self> {
        let engine = match set {
            InstructionSet::Reference => Some(Engine::Reference),
            InstructionSet::Portable => Some(Engine::Portable(Portable)),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => Avx2::detect().map(Engine::Avx2),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => Avx512::detect().map(Engine::Avx512),
            #[cfg(not(target_arch = "x86_64"))]
            InstructionSet::Avx2 | InstructionSet::Avx512 => None,
        };
        engine.map(Self::of)
    }

    /// The instruction set in use.
    pub fn set(&self) -> InstructionSet {
        match self.engine {
            Engine::Reference => InstructionSet::Reference,
            Engine::Portable(_) => InstructionSet::Portable,
            #[cfg(target_arch = "x86_64")]
            Engine::Avx2(_) => InstructionSet::Avx2,
            #[cfg(target_arch = "x86_64")]
            Engine::Avx512(_) => InstructionSet::Avx512,
        }
    }

    fn of(engine: Engine) -> Self {
        Self { engine, scratch: fast::Scratch::default() }
    }

    /// Scans the part of `window` not scanned yet and appends its complete lines to `lines`, at most until it holds
    /// [`BATCH`] of them. Blank lines are consumed and not returned.
    ///
    /// `window` must begin where it began in the last call, less what [`Partial::consume`] and [`Partial::drop_front`]
    /// reported since, and hold at least the bytes it held then. The first line that is not a message ends the scan for
    /// good: each further call finds it again.
    #[inline]
    pub fn scan(&mut self, partial: &mut Partial, window: Window<'_>, lines: &mut Vec<Line>) -> ScanResult {
        debug_assert!(partial.scanned <= window.data().len(), "a window never shrinks but by what was dropped");
        let scan = fast::Scan { scratch: &mut self.scratch, partial, window, lines };
        match self.engine {
            Engine::Reference => {
                scan.partial.left = MOST_DOUBTFUL as u32;
                scan.partial.scan_by_byte(window, scan.lines)
            }
            Engine::Portable(isa) => isa.run(scan),
            #[cfg(target_arch = "x86_64")]
            Engine::Avx2(isa) => isa.run(scan),
            #[cfg(target_arch = "x86_64")]
            Engine::Avx512(isa) => isa.run(scan),
        }
    }
}

/// Scan state of one connection between two calls: how far it got, and the state of its incomplete line.
///
/// Offsets of the unfinished line are relative to its start, [`Partial::consumed`], so they stay valid when the bytes
/// before it are dropped.
pub struct Partial {
    consumed: usize,
    scanned: usize,
    looked_at: u64,
    /// The unfinished line has been partly read: it is read byte by byte, unless `memory` holds its state.
    is_amid_a_line: bool,
    /// Lines may be nested deeper than [`MAX_DEPTH`].
    is_of_any_depth: bool,
    /// How many bytes this scan may still read one by one.
    left: u32,
    /// The byte machine, created when a line first needs it and kept from then on.
    machine: Option<Box<Machine>>,
    /// What the fast scanner remembers of the unfinished line, if any.
    memory: Option<Box<fast::Memory>>,
}

impl Default for Partial {
    #[inline]
    fn default() -> Self {
        Self::new()
    }
}

impl Partial {
    /// Number of bytes of this connection that were examined, counting repeats: each at most three times.
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Nothing received yet.
    #[inline]
    pub const fn new() -> Self {
        Self {
            consumed: 0,
            scanned: 0,
            looked_at: 0,
            is_amid_a_line: false,
            is_of_any_depth: false,
            left: 0,
            machine: None,
            memory: None,
        }
    }

    /// The same for a connection whose lines may be nested to any depth; those above [`MAX_WRAPPED_DEPTH`] are marked.
    pub fn of_any_depth() -> Self {
        Self { is_of_any_depth: true, ..Self::default() }
    }

    /// Where the incomplete line begins in the window; everything before it was returned or is blank.
    #[inline]
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// Where the next scan resumes in the window.
    #[inline]
    pub fn scanned(&self) -> usize {
        self.scanned
    }

    /// The caller drops the first [`Partial::consumed`] bytes from the window; returns their number.
    #[inline]
    pub fn consume(&mut self) -> usize {
        let dropped = self.consumed;
        self.drop_front(dropped);
        dropped
    }

    /// Notifies the scanner that the caller drops the first `bytes` bytes from the window, at most [`Partial::consumed`].
    /// Returned lines after them may stay: they are not returned again, and [`Line::counted_after`] adjusts their
    /// positions.
    #[inline]
    pub fn drop_front(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.consumed, "an unfinished line is kept whole");
        self.consumed -= bytes;
        self.scanned -= bytes;
    }

    /// Forgets everything: the next window starts at the beginning of a line.
    pub fn reset(&mut self) {
        self.consumed = 0;
        self.memory = None;
        self.restart();
    }

    /// Reads the unfinished line again from its start: nothing of it is remembered.
    fn restart(&mut self) {
        self.scanned = self.consumed;
        self.is_amid_a_line = false;
    }

    #[inline(never)]
    fn scan_by_byte(&mut self, window: Window<'_>, lines: &mut Vec<Line>) -> ScanResult {
        while lines.len() < BATCH {
            if let Some(outcome) = self.read_by_byte(window, lines) {
                return outcome;
            }
        }
        ScanResult::Full
    }

    /// Reads one line byte by byte, resuming where the last call for it stopped, and at most as many bytes as are
    /// left of [`MOST_DOUBTFUL`]. `None` means that it was returned or was blank; the next line is not begun.
    fn read_by_byte(&mut self, window: Window<'_>, lines: &mut Vec<Line>) -> Option<ScanResult> {
        let (data, start) = (window.data(), self.consumed);
        let machine = self.machine.get_or_insert_default();
        if !self.is_amid_a_line {
            machine.begin(if self.is_of_any_depth { usize::MAX } else { MAX_DEPTH });
            self.is_amid_a_line = true;
            self.scanned = start;
        }
        let limit = data.len().min(self.scanned + self.left as usize);
        let verdict = machine.read(&data[start..limit], self.scanned - start);
        let end = match verdict {
            LineVerdict::Unfinished => limit,
            LineVerdict::Malformed { at, .. } => start + at,
            LineVerdict::Line { length } | LineVerdict::Blank { length } => start + length,
        };
        let read = end.saturating_sub(self.scanned);
        self.looked_at += read as u64;
        self.left = self.left.saturating_sub(read as u32);
        let length = match verdict {
            LineVerdict::Unfinished => {
                self.scanned = limit;
                return Some(if limit < data.len() { ScanResult::Full } else { ScanResult::More });
            }
            LineVerdict::Malformed { at, fault } => {
                self.scanned = start + at;
                return Some(ScanResult::Malformed { line: start, at: start + at, fault });
            }
            LineVerdict::Line { length } => {
                lines.push(machine.line(start, length));
                length
            }
            LineVerdict::Blank { length } => length,
        };
        self.consumed = start + length + 1;
        self.restart();
        None
    }
}
