//! Lines of the simulation, which reveal any change to them, and helpers that move bytes.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::io::{Errno, read, write};

use crate::testing::Random;

/// Writes bytes to a pipe of the simulation: returns how many were accepted.
pub(super) fn push(to: &OwnedFd, queue: &mut VecDeque<u8>, most: usize) -> usize {
    let bytes = queue.make_contiguous();
    let written = write(to, &bytes[..bytes.len().min(most)]).unwrap_or(0);
    queue.drain(..written);
    written
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pulled {
    Something,
    Nothing,
    End,
}

/// Reads what is available.
pub(super) fn pull(from: &OwnedFd, into: &mut Vec<u8>, most: usize) -> Pulled {
    let mut bytes = vec![0; most];
    match read(from, &mut bytes) {
        Ok(0) => Pulled::End,
        Ok(count) => {
            into.extend_from_slice(&bytes[..count]);
            Pulled::Something
        }
        Err(Errno::AGAIN | Errno::INTR) => Pulled::Nothing,
        Err(_) => Pulled::End,
    }
}

/// Takes the complete lines from received bytes.
pub(super) fn lines(buffer: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let Some(end) = memchr::memrchr(b'\n', buffer) else { return Vec::new() };
    let rest = buffer.split_off(end + 1);
    let mut whole = std::mem::replace(buffer, rest);
    whole.pop();
    whole.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// The length of pieces of text in bytes.
pub(super) const PIECE: usize = 8;
/// The maximum length of a line's text.
pub(super) const LONGEST_TEXT: usize = 90_000;

/// Text without repetitions, of which each line takes a part: letters, and pieces that JSON has to escape and UTF-8
/// encodes in several bytes.
pub(super) fn text() -> &'static [u8] {
    static TEXT: OnceLock<Vec<u8>> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut random = Random::new(0x7e47);
        let mut letters = |_| char::from(*random.pick(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"));
        let pieces = (0..4 * LONGEST_TEXT / PIECE).map(|number| match number % 11 {
            0 => "é{[\\\"é".to_owned(),
            _ => (0..PIECE).map(&mut letters).collect(),
        });
        pieces.collect::<String>().into_bytes()
    })
}

/// A client's request, unique among all requests: its text follows from these, so that its receiver can detect a change
/// of any byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SimRequest {
    pub(super) seed: u64,
    pub(super) who: usize,
    pub(super) number: u64,
    pub(super) length: usize,
}

impl SimRequest {
    pub(super) fn random(&self) -> Random {
        Random::new(self.seed ^ (self.who as u64) << 48 ^ self.number << 24)
    }

    /// Its client's id for it: different clients use the same ids.
    pub(super) fn id(&self) -> String {
        if self.number.is_multiple_of(3) { format!("\"{}\"", self.number) } else { self.number.to_string() }
    }

    pub(super) fn params(&self, into: &mut Vec<u8>) {
        let Self { who, number, length, .. } = self;
        into.extend(format!("{{\"who\":{who},\"number\":{number},\"length\":{length},\"text\":\"").bytes());
        let from = self.random().range(0..text().len() - LONGEST_TEXT) / PIECE * PIECE;
        into.extend_from_slice(&text()[from..from + length / PIECE * PIECE]);
        into.extend_from_slice(&b"abcdefg"[..length % PIECE]);
        into.extend_from_slice(b"\"}");
    }

    /// A line with these members, in one of several spellings.
    pub(super) fn line(&self, id: &str, before: &str, after: &str) -> Vec<u8> {
        let id_comes_last = self.random().number().is_multiple_of(4);
        let mut line = Vec::with_capacity(self.length + 200);
        match id_comes_last {
            true => line.extend(format!("{{ \"jsonrpc\":\"2.0\",{before}").bytes()),
            false => line.extend(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{before}").bytes()),
        }
        self.params(&mut line);
        line.extend_from_slice(after.as_bytes());
        if id_comes_last {
            line.extend(format!(" ,\"id\": {id}").bytes());
        }
        line.push(b'}');
        line
    }

    /// The request, with the id that it has there.
    pub(super) fn question(&self, id: &str) -> Vec<u8> {
        self.line(id, "\"method\":\"m\",\"params\":", "")
    }

    /// The answer of a worker, which has sent `nth` answers before.
    pub(super) fn answer(&self, id: &str, worker: usize, nth: usize) -> Vec<u8> {
        self.line(id, &format!("\"result\":{{\"worker\":{worker},\"nth\":{nth},\"params\":"), "}")
    }
}

/// The token after the name of a member that occurs only once in a line.
pub(super) fn token<'a>(line: &'a [u8], name: &str) -> Option<&'a str> {
    let rest = &line[memchr::memmem::find(line, format!("\"{name}\":").as_bytes())? + name.len() + 3..];
    let end = memchr::memchr2(b',', b'}', rest)?;
    std::str::from_utf8(&rest[..end]).ok().map(str::trim)
}

pub(super) fn number<T: std::str::FromStr>(line: &[u8], name: &str) -> Option<T> {
    token(line, name)?.parse().ok()
}

/// The beginning of a wrong line.
pub(super) fn shown(line: &[u8]) -> String {
    String::from_utf8_lossy(&line[..line.len().min(300)]).into_owned()
}
