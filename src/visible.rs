//! Letters that a terminal obeys instead of showing them, or that have others shown elsewhere, and JSON without them.

use std::borrow::Cow;

/// Whether it is such a letter: DEL, the control characters of C1, ends of lines and paragraphs, and marks that change the
/// direction of writing. Those of C0 are for whoever asks: JSON has none.
pub fn is_obeyed(letter: char) -> bool {
    matches!(
        letter,
        '\x7f'..='\u{9f}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// JSON that means the same, and has such letters as escapes alone: they stand nowhere but in strings.
pub fn json(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match is_obeyed(letter) {
            // All of them are below U+10000.
            true => escaped.push_str(&format!("\\u{:04x}", u32::from(letter))),
            false => escaped.push(letter),
        }
    }
    Cow::Owned(escaped)
}

/// Text without such letters, those of C0 but the ends of lines among them.
pub fn text(text: &str) -> String {
    text.replace(|letter: char| is_obeyed(letter) || letter.is_control() && letter != '\n', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_means_the_same_and_has_no_letter_that_is_obeyed() {
        let value = serde_json::json!({ "a\u{9b}31m": "\u{7f}\u{80}\u{9f}\u{61c}\u{200f}\u{2028}\u{202e}x\u{2069}é😀\t\u{1b}" });
        let text = value.to_string();
        let escaped = json(&text);
        assert!(!escaped.contains(is_obeyed) && !escaped.contains(|letter: char| letter.is_control()), "{escaped}");
        assert!(escaped.contains(r"a\u009b31m") && escaped.contains("é😀"), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).expect("it is JSON"), value);
        assert!(matches!(json(r#"{"a":"plain"}"#), Cow::Borrowed(_)));
    }
}
