//! The fast scanner: returns the same lines as the reference scanner, many bytes at a time. It decides only clear
//! cases: a line that is malformed, deep, or has an escape in a key is read by the reference scanner.
//!
//! ```text
//!  bytes    {"id":7,"result":{"text":"a \"b\""}}⏎{"method":"x"}⏎
//!  strings   ▔▔▔▔   ▔▔▔▔▔▔▔▔  ▔▔▔▔▔▔ ▔▔▔▔▔▔▔▔▔    ▔▔▔▔▔▔▔▔ ▔▔▔      64 bytes, 64 bits  tokens.rs
//!  tokens   {"   :0,"       :{"     :"        }}⏎{"       :"  }⏎
//!           └──────────────┬────────────────────┘
//!  kinds    {":7,":{":"}}⏎{":"}⏎                                    packed, a byte each
//!  places   0 1 5 6 7 8 16 17 18 24 25 34 35 36 37 …                and where they begin
//!  colons     ↑   ↑  ·                                              at two levels      grammar.rs, shapes.rs
//!  keys      id   result                                                               keys.rs
//!  line     id = 7, RESULT                                                             messages.rs
//! ```
//!
//! *Tokens.* A block of 64 bytes is searched for quotes, backslashes, operators and so on; each result is a word with a
//! bit for each byte. One subtraction finds which quotes are escaped from runs of backslashes, and the parity of the
//! quotes before a byte says whether it is inside a string. Escapes, control bytes and UTF-8 are checked here, so
//! strings are finished; the rest is packed into an array of kinds and one of places. This covers a whole chunk of the
//! window and knows nothing of lines.
//!
//! *Messages.* The kinds up to a newline are a message. Which kind may follow which is again computed on words, now
//! with a bit for each token; only brackets are followed one by one. All this depends on the kinds alone, and since
//! messages come in few shapes, the shapes of short ones are cached. What remains is to look at each scalar, and at
//! each key of the message and of the objects directly in it.
//!
//! Only a line in doubt is read again: at the end of the bytes received, [`Strings`] and [`Draft`] keep the state, and
//! the next scan resumes from there.

mod grammar;
mod keys;
pub(crate) mod messages;
pub(crate) mod scalar;
mod shapes;
pub(crate) mod tokens;

use crate::isa::{Isa, Job};
use crate::{BATCH, Line, MOST_DOUBTFUL, Partial, ScanResult, Window};
use alloc::boxed::Box;
use alloc::vec::Vec;
use messages::{Draft, Messages, Stop};
use shapes::Shapes;
use tokens::{Strings, TokenReader, Tokens};

/// What all connections share.
#[derive(Default)]
pub(crate) struct Scratch {
    tokens: Tokens,
    shapes: Shapes,
    /// The memory of the connection being scanned. Between scans it belongs to one whose line has not begun.
    memory: Memory,
}

/// What one connection remembers of an incomplete line.
#[derive(Clone, Copy, Default)]
pub(crate) struct Memory {
    strings: Strings,
    draft: Draft,
}

/// [`super::Scanner::scan`]: chunk by chunk, tokens and then their lines.
pub(crate) struct Scan<'a> {
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) partial: &'a mut Partial,
    pub(crate) window: Window<'a>,
    pub(crate) lines: &'a mut Vec<Line>,
}

impl Job for Scan<'_> {
    type Output = ScanResult;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> ScanResult {
        let Self { scratch, partial, window, lines } = self;
        partial.left = MOST_DOUBTFUL as u32;
        if partial.is_amid_a_line
            && let Some(outcome) = scratch.resume(partial, window, lines)
        {
            return outcome;
        }
        scratch.read(isa, partial, window, lines)
    }
}

impl Scratch {
    /// Resumes the incomplete line of a connection.
    #[cold]
    #[inline(never)]
    fn resume(&mut self, partial: &mut Partial, window: Window<'_>, lines: &mut Vec<Line>) -> Option<ScanResult> {
        if lines.len() >= BATCH {
            return Some(ScanResult::Full);
        }
        let Some(memory) = partial.memory.take() else { return partial.read_by_byte(window, lines) };
        (self.memory, partial.is_amid_a_line) = (*memory, false);
        None
    }

    /// Saves the state of the connection's unfinished line.
    #[cold]
    #[inline(never)]
    fn interrupt(memory: &mut Memory, partial: &mut Partial) {
        partial.memory = Some(Box::new(core::mem::take(memory)));
        partial.is_amid_a_line = true;
    }

    #[inline(always)]
    fn read<I: Isa>(&mut self, isa: I, partial: &mut Partial, window: Window<'_>, lines: &mut Vec<Line>) -> ScanResult {
        let Self { tokens, shapes, memory } = self;
        while lines.len() < BATCH {
            let from = partial.scanned;
            if from == window.data().len() {
                if from != partial.consumed {
                    Self::interrupt(memory, partial);
                }
                return ScanResult::More;
            }
            isa.within(TokenReader {
                tokens: &mut *tokens,
                strings: &mut memory.strings,
                window,
                from,
                lines: BATCH - lines.len(),
            });
            if tokens.end == from {
                if from != partial.consumed {
                    Self::interrupt(memory, partial);
                }
                return ScanResult::More;
            }
            partial.looked_at += (tokens.end - from) as u64;
            partial.scanned = tokens.end;
            while !tokens.is_faulty {
                let messages = Messages {
                    window,
                    tokens: &mut *tokens,
                    shapes: &mut *shapes,
                    draft: &mut memory.draft,
                    line: &mut partial.consumed,
                    ends_in_scalar: memory.strings.ends_in_scalar(),
                    lines: &mut *lines,
                };
                match messages.read(isa) {
                    Stop::Empty => break,
                    Stop::Full => {
                        *memory = Memory::default();
                        partial.restart();
                        return ScanResult::Full;
                    }
                    Stop::Doubt => {
                        let (strings, scanned) = (core::mem::take(memory).strings, partial.scanned);
                        partial.restart();
                        if let Some(outcome) = partial.read_by_byte(window, lines) {
                            return outcome;
                        }
                        if partial.consumed > scanned {
                            break;
                        }
                        // The line ended among the tokens, so the rest of them is as valid as before.
                        memory.strings = strings;
                        partial.scanned = scanned;
                    }
                }
            }
            if tokens.is_faulty {
                // Some line in these bytes is malformed; the reference scanner finds which one, and its first fault.
                *memory = Memory::default();
                partial.restart();
                return partial.scan_by_byte(window, lines);
            }
        }
        if partial.scanned != partial.consumed {
            Self::interrupt(memory, partial);
        }
        ScanResult::Full
    }
}
