//! JSON in the styles of several programs.

use std::fmt::Write as _;

/// The style in which a program writes JSON.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Style {
    /// Compact, as most do.
    Compact,
    /// Compact, with `<`, `>` and `&` escaped.
    Go,
    /// A space after each comma and colon, and ASCII only.
    Python,
}

pub(super) enum Json {
    Text(String),
    /// A number or a literal.
    Plain(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

pub(super) fn text(text: impl Into<String>) -> Json {
    Json::Text(text.into())
}

pub(super) fn plain(value: impl ToString) -> Json {
    Json::Plain(value.to_string())
}

pub(super) fn object<const N: usize>(members: [(&str, Json); N]) -> Json {
    Json::Object(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

impl Json {
    pub(super) fn write(&self, style: Style, out: &mut String) {
        let (comma, colon) = if style == Style::Python { (", ", ": ") } else { (",", ":") };
        match self {
            Self::Text(text) => write_string(text, style, out),
            Self::Plain(value) => out.push_str(value),
            Self::List(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index > 0 { comma } else { "" });
                    item.write(style, out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (index, (key, value)) in members.iter().enumerate() {
                    out.push_str(if index > 0 { comma } else { "" });
                    write_string(key, style, out);
                    out.push_str(colon);
                    value.write(style, out);
                }
                out.push('}');
            }
        }
    }
}

fn write_string(text: &str, style: Style, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' if style == Style::Go => write!(out, "\\u{:04x}", character as u32).unwrap(),
            _ if style == Style::Python && !character.is_ascii() => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}").unwrap();
                }
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}
