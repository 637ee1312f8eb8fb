//! The lines of `session/update`, and the small things that they are made of. Pure.

use std::borrow::Cow;
use std::time::SystemTime;

use stdio_bus_base::calendar::to_the_second;

use crate::json::{Raw, push_string};
use crate::rpc::{RpcError, UPDATE_TAIL};

/// Most bytes of text in one update. Escaped it stays below 1 MiB, the longest line that the bus takes by default and
/// BenchFlow at all, unless it is made of control characters.
pub(super) const LONGEST_PIECE: usize = 256 << 10;

/// Longest working directory and name of a model, in bytes: as long as the kernel's paths. They are kept as long as
/// their session.
const LONGEST_WORD: usize = 4096;

/// Appends an update with these members.
pub(super) fn push_update(out: &mut Vec<u8>, head: &[u8], members: &str) {
    out.extend_from_slice(head);
    out.extend_from_slice(members.as_bytes());
    out.extend_from_slice(UPDATE_TAIL);
}

/// Appends a piece of text.
pub(super) fn push_text(out: &mut Vec<u8>, head: &[u8], kind: &str, message_id: &str, text: &str) {
    out.extend_from_slice(head);
    out.extend_from_slice(b"\"sessionUpdate\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"messageId\":\"");
    out.extend_from_slice(message_id.as_bytes());
    out.extend_from_slice(b"\",\"content\":{\"type\":\"text\",\"text\":");
    push_string(out, text);
    out.push(b'}');
    out.extend_from_slice(UPDATE_TAIL);
}

/// Appends what the session is called from now on.
pub(super) fn push_title(out: &mut Vec<u8>, head: &[u8], title: &str, updated: SystemTime) {
    let (title, updated) = (serde_json::Value::from(title), to_the_second(updated));
    push_update(
        out,
        head,
        &format!("\"sessionUpdate\":\"session_info_update\",\"title\":{title},\"updatedAt\":\"{updated}\""),
    );
}

/// What is told of tools that the model asked for.
pub(super) fn tools_text(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| name.chars().take(64).collect()).collect();
    let named = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
    format!("The endpoint asked for tools, which this agent does not run{named}.")
}

/// How much of `rest` goes into the next chunk. Open Design takes a chunk that begins with all text so far for a
/// snapshot of the whole, and drops that beginning; such a piece is cut so that its chunks do not begin that way.
/// After a single character nothing can be cut: that case is left as it is.
pub(super) fn piece_length(told: &str, rest: &str) -> usize {
    if told.is_empty() || !rest.starts_with(told) {
        return rest.len();
    }
    match told.char_indices().next_back() {
        Some((last, _)) if last > 0 => last,
        _ => rest.len(),
    }
}

/// The end of the last character that lies within the first `most` bytes (str::floor_char_boundary from Rust 1.91).
pub(super) fn floor(text: &str, most: usize) -> usize {
    if most >= text.len() {
        return text.len();
    }
    (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// A parameter that has to be a string.
pub(super) fn text<'a>(params: Raw<'a>, name: &str) -> Result<Cow<'a, str>, RpcError> {
    params.get_text(name).ok_or_else(|| RpcError::invalid_params(format!("{name} is missing or not a string")))
}

/// A parameter that is kept as long as its session.
pub(super) fn word<'a>(params: Raw<'a>, name: &str) -> Result<Cow<'a, str>, RpcError> {
    let word = text(params, name)?;
    if word.len() <= LONGEST_WORD {
        Ok(word)
    } else {
        Err(RpcError::invalid_params(format!("{name} is longer than {LONGEST_WORD} bytes")))
    }
}

pub(super) fn uuid(mut bytes: [u8; 16]) -> String {
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex = u128::from_be_bytes(bytes);
    let hex = format!("{hex:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids() {
        assert_eq!(uuid([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid([0; 16]), "00000000-0000-4000-8000-000000000000");
    }

    #[test]
    fn pieces_do_not_begin_with_all_that_was_told() {
        assert_eq!(piece_length("", "abc"), 3);
        assert_eq!(piece_length("ab", "abab"), 1);
        assert_eq!(piece_length("aé", "aéx"), 1);
        assert_eq!(piece_length("ab", "ba"), 2);
        assert_eq!(piece_length("a", "ab"), 2);
    }
}
