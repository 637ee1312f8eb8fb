//! Where a JSON value ends that begins with a brace or a bracket, found while its bytes come. Pure.
//!
//! It counts brackets outside strings and looks at nothing else: whether the value is JSON at all is the reader's
//! question. The invariant: the end depends on the bytes alone, never on how they were cut.

/// What is known of a value between two pieces of it.
#[derive(Clone, Debug, Default)]
pub struct Extent {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Extent {
    /// Takes the next bytes of the value; the number of them that belong to it if it ends within them.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        for (index, byte) in bytes.iter().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(index + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_ends_where_its_last_bracket_closes_however_it_is_cut() {
        for (text, end) in [
            (r#"{"a":"}\"]"} tail"#, Some(12)),
            (r#"[{"a":[1,2]},{}]]"#, Some(16)),
            (r#"{"a":"\\"}{"#, Some(10)),
            (r#"{"a":{"b":"#, None),
            (r#"{"a":"}}}}"#, None),
        ] {
            for cut in 0..text.len() {
                let mut extent = Extent::default();
                let (left, right) = text.as_bytes().split_at(cut);
                let found = extent.feed(left).or_else(|| extent.feed(right).map(|end| cut + end));
                assert_eq!(found, end, "{text} cut at {cut}");
            }
        }
    }
}
