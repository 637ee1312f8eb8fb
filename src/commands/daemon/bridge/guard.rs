//! Lets only JSON-RPC lines through to the editor: a wrong port may answer with something else, and an editor that
//! reads that takes its agent for broken. Since a line is passed on while it arrives, it only has to begin as an
//! object; the daemon has validated the rest.

use memchr::memchr;

/// How many bytes of foreign data are kept for the message.
const LONGEST_BEGIN: usize = 256;

/// The incoming direction of a connection.
#[derive(Default)]
pub(super) struct Guard {
    /// The stream is within a line that began as an object.
    is_in_line: bool,
    /// A line that began as an object was received.
    has_received: bool,
}

/// Received data that is not JSON-RPC.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NonJsonOutput {
    /// Its beginning.
    pub begin: Vec<u8>,
    /// Nothing was received before it: the peer is not a daemon.
    pub is_first: bool,
}

impl Guard {
    /// Checks the next bytes of the stream. Foreign data is cut off, with all that follows.
    pub(super) fn check(&mut self, bytes: &mut Vec<u8>) -> Result<(), NonJsonOutput> {
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
                return Err(NonJsonOutput { begin, is_first: !self.has_received });
            }
            self.is_in_line = true;
            self.has_received = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_data_is_cut_off_however_it_is_split() {
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
