//! Characters that a terminal interprets instead of showing, or that change how others are shown; and JSON without
//! them.

use std::borrow::Cow;

/// Whether it is such a character: DEL, C1 controls, line and paragraph separators, and bidirectional marks. The caller
/// has to check for C0 controls: JSON contains none.
pub fn is_obeyed(letter: char) -> bool {
    matches!(
        letter,
        '\x7f'..='\u{9f}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// Equivalent JSON with such characters escaped, which can only occur in strings.
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

/// The text without such characters, and without C0 controls except line ends.
pub fn text(text: &str) -> String {
    text.replace(|letter: char| is_obeyed(letter) || letter.is_control() && letter != '\n', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_json_is_equivalent_and_has_no_control_characters() {
        let value = serde_json::json!({ "a\u{9b}31m": "\u{7f}\u{80}\u{9f}\u{61c}\u{200f}\u{2028}\u{202e}x\u{2069}é😀\t\u{1b}" });
        let text = value.to_string();
        let escaped = json(&text);
        assert!(!escaped.contains(is_obeyed) && !escaped.contains(|letter: char| letter.is_control()), "{escaped}");
        assert!(escaped.contains(r"a\u009b31m") && escaped.contains("é😀"), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).expect("it is JSON"), value);
        assert!(matches!(json(r#"{"a":"plain"}"#), Cow::Borrowed(_)));
    }
}
