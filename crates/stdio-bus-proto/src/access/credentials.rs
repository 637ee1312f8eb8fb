//! What a client brings for its own worker in fields of its request, such as `X-Github-Token`. The values are nobody's but the
//! worker's: they are never shown, and overwritten when they are dropped.

use std::fmt;

use zeroize::Zeroizing;

use super::identity::is_placeholder;
use super::refusal::Refusal;
use crate::http1::{Fields, Status};

/// Maximum length of a value in bytes.
const LONGEST_VALUE: usize = 8 * 1024;

/// The values that a request has in some fields, by their names. That of a field which it does not have is empty.
#[derive(Default, PartialEq, Eq)]
pub struct Credentials(Vec<(Box<str>, Zeroizing<Vec<u8>>)>);

impl Credentials {
    /// Those in the fields of these names. One that is not there, or empty, or has a placeholder, such as `undefined`, is no
    /// error: the client may ask for what needs none.
    ///
    /// # Errors
    /// A field occurs twice, or its value is no line of text, or too long (400). The refusal does not say the value.
    pub fn of<'n>(fields: &Fields<'_>, names: impl IntoIterator<Item = &'n str>) -> Result<Self, Refusal> {
        let mut values = Vec::new();
        for name in names {
            let bad = |why: &str| Refusal::new(Status::BadRequest, format!("{name} {why}"));
            let value = fields.only(name).map_err(|_| bad("occurs twice"))?.unwrap_or_default();
            if value.len() > LONGEST_VALUE {
                return Err(bad(&format!("has more than {LONGEST_VALUE} bytes")));
            }
            let Ok(text) = str::from_utf8(value) else { return Err(bad("is not UTF-8")) };
            if text.chars().any(char::is_control) {
                return Err(bad("has a control character"));
            }
            // An object in JSON is no template.
            let is_missing = is_placeholder(text) && !text.contains('"');
            let value = if is_missing { &[][..] } else { value };
            values.push((name.into(), Zeroizing::new(value.to_vec())));
        }
        Ok(Self(values))
    }

    /// The value of the field with this name, if the request has one there.
    pub fn get(&self, name: &str) -> Option<&Zeroizing<Vec<u8>>> {
        self.find(name).filter(|value| !value.is_empty())
    }

    /// Whether the field with this name was looked for.
    pub fn looked_for(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<&Zeroizing<Vec<u8>>> {
        self.0.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Credentials({} fields)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::HeadReader;

    fn brought(fields: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let head = [b"GET / HTTP/1.1\r\nHost: a\r\n", fields, b"\r\n"].concat();
        let mut reader = HeadReader::default();
        let head = reader.read(&head).expect("it is HTTP").expect("it is whole");
        let found = Credentials::of(&head.fields, ["X-Github-Token", "X-Other"]);
        let found = found.map_err(|refusal| {
            assert_eq!(refusal.status.code(), 400);
            refusal.why.into_owned()
        })?;
        assert_eq!(found.get("x-other"), None);
        Ok(found.get("x-github-token").map(|value| value.to_vec()))
    }

    #[test]
    fn a_value_is_brought_unchanged_and_an_empty_one_or_a_placeholder_is_none() {
        for (field, value) in [
            ("X-Github-Token: gh_1\r\n", Some("gh_1")),
            ("x-github-token:  Bearer a, b \r\n", Some("Bearer a, b")),
            ("x-github-token: müller\r\n", Some("müller")),
            ("X-Github-Token: \r\n", None),
            ("X_Github_Token: gh_1\r\nX-Github-Tokens: gh_2\r\n", None),
            ("", None),
            ("X-Github-Token: undefined\r\n", None),
            ("X-Github-Token: Null\r\n", None),
            ("X-Github-Token: -\r\n", None),
            ("X-Github-Token: {http.auth.user.id}\r\n", None),
            ("X-Github-Token: {\"key\": \"{}\"}\r\n", Some("{\"key\": \"{}\"}")),
        ] {
            assert_eq!(brought(field.as_bytes()), Ok(value.map(|value| value.as_bytes().to_vec())), "{field}");
        }
        let longest = format!("X-Github-Token: {}\r\n", "x".repeat(LONGEST_VALUE));
        assert_eq!(brought(longest.as_bytes()).map(|it| it.map(|it| it.len())), Ok(Some(LONGEST_VALUE)));
    }

    #[test]
    fn two_lines_a_long_value_and_what_is_no_text_are_refused_without_saying_them() {
        let long = format!("X-Github-Token: {}\r\n", "s".repeat(LONGEST_VALUE + 1));
        for (fields, why) in [
            (&b"X-Github-Token: s3cret\r\nx-github-token: s3cret\r\n"[..], "occurs twice"),
            (b"X-Github-Token: s3cret\r\nx-github-token:\r\n", "occurs twice"),
            (b"X-Github-Token: s3cret\xfc\r\n", "not UTF-8"),
            (b"X-Github-Token: s3\tcret\r\n", "control character"),
            (long.as_bytes(), "more than 8192"),
        ] {
            let error = brought(fields).expect_err(why);
            assert!(error.starts_with("X-Github-Token ") && error.contains(why) && !error.contains("s3"), "{error}");
        }
    }

    #[test]
    fn values_are_not_shown() {
        let head = b"GET / HTTP/1.1\r\nHost: a\r\nX: s3cret\r\n\r\n";
        let mut reader = HeadReader::default();
        let head = reader.read(head).expect("it is HTTP").expect("it is whole");
        let found = Credentials::of(&head.fields, ["x"]).expect("it is text");
        assert_eq!(format!("{found:?}"), "Credentials(1 fields)");
    }
}
