//! The header fields of a message (RFC 9110, section 5).

/// Maximum number of fields of a head, whatever its limit in bytes.
pub(super) const MOST_FIELDS: usize = 100;

/// The fields of a head, in order, borrowed from its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields<'b> {
    list: Vec<httparse::Header<'b>>,
    /// The [`mark`]s of all their names: most of the fields that are asked for are not there, and this shows it without a
    /// walk.
    marks: u64,
}

/// A field that may occur only once occurs twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate;

/// One of 64 bits for a name, in whatever case it is written.
fn mark(name: &str) -> u64 {
    let first = name.bytes().next().unwrap_or_default() | 0x20;
    1 << (usize::from(first).wrapping_add(name.len()) % 64)
}

impl<'b> Fields<'b> {
    pub(super) fn of(list: &[httparse::Header<'b>]) -> Self {
        let marks = list.iter().fold(0, |marks, field| marks | mark(field.name));
        Self { list: list.to_vec(), marks }
    }

    /// The field lines that may have this name: all of them, or none.
    fn candidates(&self, name: &str) -> &[httparse::Header<'b>] {
        if self.marks & mark(name) == 0 { &[] } else { &self.list }
    }

    /// The values of a field, one for each field line.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'b [u8]> {
        self.candidates(name).iter().filter(move |field| is_same_name(field.name, name)).map(|field| field.value)
    }

    /// The value of a field that may occur only once.
    ///
    /// # Errors
    /// It occurs more than once.
    pub fn only(&self, name: &str) -> Result<Option<&'b [u8]>, Duplicate> {
        let mut only = None;
        for field in self.candidates(name) {
            if is_same_name(field.name, name) && only.replace(field.value).is_some() {
                return Err(Duplicate);
            }
        }
        Ok(only)
    }

    /// The elements of a list, which may span several field lines.
    pub fn elements(&self, name: &str) -> impl Iterator<Item = &'b [u8]> {
        self.values(name).flat_map(elements_of)
    }

    /// Whether any element of a list matches.
    pub fn any(&self, name: &str, mut is_it: impl FnMut(&'b [u8]) -> bool) -> bool {
        self.values(name).any(|value| elements_of(value).any(&mut is_it))
    }

    /// Whether a list has this element, ignoring case.
    pub fn has(&self, name: &str, element: &str) -> bool {
        self.any(name, |other| is_same(other, element.as_bytes()))
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        self.list.iter().map(|field| (field.name, field.value))
    }
}

/// Compares field names, ignoring case. Most differ in length, which is checked without a call.
#[inline]
pub fn is_same_name(one: &str, other: &str) -> bool {
    one.len() == other.len() && is_same(one.as_bytes(), other.as_bytes())
}

/// Compares texts, ignoring the case of ASCII letters, eight bytes at a time: each request has dozens of them.
pub fn is_same(one: &[u8], other: &[u8]) -> bool {
    let are_same = |one: &[u8; 8], other: &[u8; 8]| one == other || in_lower_case(*one) == in_lower_case(*other);
    match (one.last_chunk(), other.last_chunk()) {
        _ if one.len() != other.len() => false,
        // The last eight may overlap those before them.
        (Some(last), Some(other_last)) => {
            let eights = one.as_chunks().0.iter().zip(other.as_chunks().0);
            are_same(last, other_last) && eights.into_iter().all(|(one, other)| are_same(one, other))
        }
        _ => one.eq_ignore_ascii_case(other),
    }
}

/// Eight bytes with all letters in lower case.
fn in_lower_case(bytes: [u8; 8]) -> u64 {
    const fn each(byte: u8) -> u64 {
        u64::from_ne_bytes([byte; 8])
    }
    let bytes = u64::from_ne_bytes(bytes);
    let ascii = bytes & each(0x7f);
    // The highest bit of a byte is set from `A` on, and behind `Z`. No sum carries into the next byte.
    let (from_a, behind_z) = (ascii + each(0x80 - b'A'), ascii + each(0x7f - b'Z'));
    let capitals = from_a & !behind_z & !bytes & each(0x80);
    bytes | capitals >> 2
}

fn elements_of(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = memchr::memchr_iter(b',', value).chain([value.len()]);
    let mut at = 0;
    let elements = ends.map(move |end| value[std::mem::replace(&mut at, end + 1)..end].trim_ascii());
    elements.filter(|element| !element.is_empty())
}

/// A value without characters that a log or terminal would hide, truncated to 255 characters.
pub fn printable(text: &[u8]) -> String {
    let visible = |letter: char| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter };
    String::from_utf8_lossy(text).chars().take(255).map(visible).collect()
}

/// Whether the text can be sent as one word of a head.
pub fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_compared_without_the_case_of_letters_whatever_their_length() {
        for byte in 0..=u8::MAX {
            for other in [byte, byte ^ 0x20, byte ^ 0x80, byte.wrapping_add(1)] {
                for length in 1..=20 {
                    for at in 0..length {
                        let (mut one, mut two) = (vec![b'x'; length], vec![b'X'; length]);
                        (one[at], two[at]) = (byte, other);
                        assert_eq!(is_same(&one, &two), one.eq_ignore_ascii_case(&two), "{one:?} {two:?}");
                    }
                }
            }
        }
        assert!(is_same(b"", b"") && !is_same(b"accept", b"accepts") && !is_same(b"accept-encoding", b"accept"));
    }

    #[test]
    fn a_field_is_found_in_any_case_beside_others_with_its_mark() {
        let field = |name, value| httparse::Header { name, value };
        let fields =
            Fields::of(&[field("HOST", b"h"), field("content-TYPE", b"a, b"), field("X", b"1"), field("x", b"2")]);
        assert_eq!(mark("forwarded"), mark("content-type"), "this test needs two names with one mark");
        assert_eq!(fields.only("host"), Ok(Some(&b"h"[..])));
        assert_eq!(
            (fields.only("forwarded"), fields.only("x"), fields.only("y")),
            (Ok(None), Err(Duplicate), Ok(None))
        );
        assert_eq!(fields.values("X").collect::<Vec<_>>(), [b"1", b"2"]);
        assert!(fields.has("Content-Type", "B") && !fields.has("Content-Type", "c") && !fields.has("", ""));
    }
}
