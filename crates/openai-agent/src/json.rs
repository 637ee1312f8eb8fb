//! JSON in and out: reading by simd-json's tape (no tree, no recursion), writing of strings into byte buffers.
//!
//! A [`Reader`] owns the memory that parsing needs and uses it again for the next text, so that a token costs no
//! allocation. Texts nested deeper than [`MAX_DEPTH`] are refused: nothing here recurses on outside data beyond it.

use simd_json::prelude::*;
use simd_json::tape::Value;
use simd_json::{Buffers, Tape};

use super::mend::mend;

/// Deepest nesting that is read.
pub const MAX_DEPTH: usize = 256;

/// Longest text, in bytes, whose parsing memory is kept for the next one.
const KEPT: usize = 256 << 10;

/// Memory for parsing.
pub struct Reader {
    buffers: Buffers,
    tape: Tape<'static>,
}

impl Default for Reader {
    fn default() -> Self {
        Self { buffers: Buffers::with_max_depth(1024, MAX_DEPTH), tape: Tape::null().reset() }
    }
}

impl Reader {
    /// Parses `text` (which serves as scratch space: its bytes change) and calls `use_value` with what it says.
    ///
    /// # Errors
    /// The text is not one JSON value of UTF-8, or nested too deeply.
    pub fn read<'a, T>(
        &mut self,
        text: &'a mut [u8],
        use_value: impl FnOnce(Value<'_, 'a>) -> T,
    ) -> Result<T, simd_json::Error> {
        let length = text.len();
        let mut tape = std::mem::replace(&mut self.tape, Tape(Vec::new())).reset();
        let outcome = simd_json::fill_tape(text, &mut self.buffers, &mut tape).map(|()| use_value(tape.as_value()));
        if length > KEPT {
            *self = Self::default();
        } else {
            self.tape = tape.reset();
        }
        outcome
    }
}

impl Reader {
    /// Parses `text`, and if that fails parses it mended ([`mend`]); `use_value` is called at most once.
    ///
    /// # Errors
    /// As [`Self::read`], of the mended text.
    pub fn read_leniently<T>(
        &mut self,
        text: &[u8],
        mut use_value: impl FnMut(Value<'_, '_>) -> T,
    ) -> Result<T, simd_json::Error> {
        let mut copy = text.to_vec();
        if let Ok(outcome) = self.read(&mut copy, &mut use_value) {
            return Ok(outcome);
        }
        self.read(&mut mend(text), use_value)
    }
}

/// Appends a parsed value as JSON. Nothing deeper than [`MAX_DEPTH`] can have been parsed.
pub fn push_value(out: &mut Vec<u8>, value: Value<'_, '_>) {
    // A vector takes all that is written.
    let _ = value.write(out);
}

/// Appends `text` as a JSON string, quotes included.
pub fn push_string(out: &mut Vec<u8>, text: &str) {
    // serde_json fails only if the writer does, and a vector does not.
    let _ = serde_json::to_writer(out, text);
}

/// `text` as a JSON string, quotes included.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A JSON-RPC id (or any other scalar) as the JSON text that names it; nothing for an array, an object or a boolean.
pub fn scalar_token(value: Value<'_, '_>) -> Option<Box<str>> {
    if let Some(text) = value.as_str() {
        return Some(quoted(text).into());
    }
    if let Some(number) = value.as_i64() {
        return Some(number.to_string().into());
    }
    if let Some(number) = value.as_u64() {
        return Some(number.to_string().into());
    }
    if value.is_null() {
        return Some("null".into());
    }
    // Not an id that ACP knows, but it is the client's to choose and ours to give back.
    value.as_f64().map(|number| serde_json::Value::from(number).to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn garbage_and_deep_nesting_are_errors() {
        let mut reader = Reader::default();
        for text in ["", " ", "{", "nul", "{} {}", "\u{7f}", "[1,]", ": keepalive"] {
            assert!(reader.read(&mut text.as_bytes().to_vec(), |_| ()).is_err(), "{text:?}");
        }
        let mut deep = vec![b'['; 1 << 20];
        deep.extend(vec![b']'; 1 << 20]);
        assert!(reader.read(&mut deep, |_| ()).is_err());
        assert!(reader.read(&mut b"{\"a\":\xff}".to_vec(), |_| ()).is_err());
        assert_eq!(reader.read(&mut b"{\"a\":7}".to_vec(), |value| value.get_u64("a")).unwrap(), Some(7));
    }

    #[test]
    fn ids_keep_their_kind() {
        let mut reader = Reader::default();
        for id in ["0", "-1", "9007199254740993", "18446744073709551615", "\"0\"", "\"a\\\"b\"", "null"] {
            let token = reader.read(&mut id.as_bytes().to_vec(), scalar_token).unwrap();
            assert_eq!(token.as_deref(), Some(id));
        }
    }

    proptest! {
        #[test]
        fn a_string_comes_back_as_it_was_written(text in "\\PC*|[\\x00-\\x7f]*") {
            let mut out = Vec::new();
            push_string(&mut out, &text);
            prop_assert!(!out.contains(&b'\n'));
            let back = Reader::default().read(&mut out, |value| value.as_str().map(str::to_owned)).unwrap();
            prop_assert_eq!(back, Some(text));
        }

        #[test]
        fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Reader::default().read(&mut bytes, |_| ());
        }
    }
}
