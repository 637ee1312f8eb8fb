//! A byte order mark at the beginning of stdin, which some programs write ahead of UTF-8 (RFC 8259, section 8.1). The
//! daemon passes over it; here it is taken out, so that the first line is read as what it is, and other servers do not
//! get it.

use crate::scan::BYTE_ORDER_MARK as MARK;

#[derive(Default)]
pub(super) struct Mark {
    /// How many of its bytes have come, and are held back until it is clear what they are.
    held: usize,
    is_past: bool,
}

impl Mark {
    /// Takes the mark out of the next bytes of stdin.
    pub(super) fn skip(&mut self, bytes: &mut Vec<u8>) {
        if self.is_past {
            return;
        }
        let rest = &MARK[self.held..];
        let same = rest.iter().zip(bytes.iter()).take_while(|(mark, byte)| mark == byte).count();
        if same == rest.len() {
            self.is_past = true;
            bytes.drain(..same);
        } else if same == bytes.len() {
            self.held += same;
            bytes.clear();
        } else {
            self.is_past = true;
            bytes.splice(..0, MARK[..self.held].iter().copied());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_ahead_of_stdin_is_taken_out_however_it_is_cut() {
        let mark = "\u{feff}";
        for (text, left) in [
            (format!("{mark}{{}}\n"), "{}\n".to_owned()),
            (format!("{mark}{mark}{{}}\n"), format!("{mark}{{}}\n")),
            (format!("{{}}\n{mark}{{}}"), format!("{{}}\n{mark}{{}}")),
            // Begins with two of its three bytes.
            ("\u{fefe}x".to_owned(), "\u{fefe}x".to_owned()),
            (mark.to_owned(), String::new()),
        ] {
            for piece in 1..=text.len() {
                let (mut at, mut read) = (Mark::default(), Vec::new());
                for piece in text.as_bytes().chunks(piece) {
                    let mut piece = piece.to_vec();
                    at.skip(&mut piece);
                    read.extend(piece);
                }
                assert_eq!(String::from_utf8_lossy(&read), left, "{text:?} in pieces of {piece}");
            }
        }
    }
}
