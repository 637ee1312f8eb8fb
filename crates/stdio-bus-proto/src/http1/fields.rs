//! The header fields of a message (RFC 9110, section 5).

/// Maximum number of fields of a head, whatever its limit in bytes.
pub(super) const MOST_FIELDS: usize = 100;

/// The fields of a head, in order, borrowed from its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields<'b>(pub(super) Vec<httparse::Header<'b>>);

/// A field that may occur only once occurs twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate;

impl<'b> Fields<'b> {
    /// The values of a field, one for each field line.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'b [u8]> {
        self.0.iter().filter(move |field| is_same_name(field.name, name)).map(|field| field.value)
    }

    /// The value of a field that may occur only once.
    ///
    /// # Errors
    /// It occurs more than once.
    pub fn only(&self, name: &str) -> Result<Option<&'b [u8]>, Duplicate> {
        let mut only = None;
        for field in &self.0 {
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
        self.any(name, |other| other.eq_ignore_ascii_case(element.as_bytes()))
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        self.0.iter().map(|field| (field.name, field.value))
    }
}

/// Compares field names, ignoring case. Most differ in length, which is checked without a call.
#[inline]
pub fn is_same_name(one: &str, other: &str) -> bool {
    one.len() == other.len() && one.eq_ignore_ascii_case(other)
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
