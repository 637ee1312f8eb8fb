//! Watches that only lines of JSON-RPC go to the editor: at a wrong port something else answers, and an editor that reads
//! that takes its agent for broken. A line passes on while it still arrives, so all that is asked of it is to begin as an
//! object; the daemon has read the rest.

use memchr::memchr;

/// Most bytes that are kept of what is no message.
const LONGEST_BEGIN: usize = 256;

/// One direction of a connection.
#[derive(Default)]
pub(super) struct Guard {
    /// The stream is within a line that has begun as an object.
    is_in_line: bool,
    /// A line has begun as an object.
    has_heard: bool,
}

/// What came is no JSON-RPC.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Foreign {
    /// How it begins.
    pub begin: Vec<u8>,
    /// Nothing else came before it: it is not a daemon that answers.
    pub is_first: bool,
}

impl Guard {
    /// Reads the next bytes of the stream. What is no message is cut off, with all that follows.
    pub(super) fn check(&mut self, bytes: &mut Vec<u8>) -> Result<(), Foreign> {
        let mut at = 0;
        loop {
            if self.is_in_line {
                let Some(newline) = memchr(b'\n', &bytes[at..]) else { return Ok(()) };
                at += newline + 1;
                self.is_in_line = false;
            }
            let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
            let Some(blanks) = bytes[at..].iter().position(|byte| !is_blank(byte)) else { return Ok(()) };
            at += blanks;
            if bytes[at] != b'{' {
                let begin = bytes[at..].iter().take(LONGEST_BEGIN).copied().collect();
                bytes.truncate(at);
                return Err(Foreign { begin, is_first: !self.has_heard });
            }
            self.is_in_line = true;
            self.has_heard = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_object_is_cut_off_however_it_is_cut() {
        let stream = b"\r\n {\"id\":1}\n\n{\"x\":[\n{}\nHTTP/1.1 400 Bad Request\r\n{}\n";
        let end = stream.len() - 29;
        for length in 1..=stream.len() {
            let (mut guard, mut passed, mut found) = (Guard::default(), Vec::new(), None);
            for piece in stream.chunks(length) {
                let mut piece = piece.to_vec();
                let checked = guard.check(&mut piece);
                passed.extend(piece);
                if let Err(foreign) = checked {
                    found = Some(foreign);
                    break;
                }
            }
            let found = found.expect("it is found");
            assert_eq!(passed.escape_ascii().to_string(), stream[..end].escape_ascii().to_string(), "{length}");
            assert!(b"HTTP/1.1 400 Bad Request\r\n{}\n".starts_with(&found.begin) && !found.is_first);
        }
        let mut banner = b"\nSSH-2.0-OpenSSH\r\n".to_vec();
        let foreign = Guard::default().check(&mut banner).expect_err("it is no object");
        assert_eq!((&banner[..], foreign.is_first), (&b"\n"[..], true));
    }
}
