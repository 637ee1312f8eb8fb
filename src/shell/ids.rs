//! Ids given to clients: the daemon's name, a dot, and 128 random bits.

use std::io;

use crate::random;

/// Six bits per character, all of them valid in fields, paths and cookies (RFC 4648, section 5).
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A new id.
///
/// # Errors
/// The system has no random numbers yet.
pub(super) fn new(node: &str) -> io::Result<String> {
    let mut bytes = [0; 16];
    random::fill(&mut bytes, random::Flags::NONBLOCK)?;
    let number = u128::from_ne_bytes(bytes);
    let digits = (0..u128::BITS).step_by(6).map(|at| char::from(DIGITS[(number >> at & 63) as usize]));
    Ok(format!("{node}.{}", digits.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_begin_with_the_node() {
        let node = "n".repeat(32);
        let ids: Vec<String> = (0..100).map(|_| new(&node).expect("random numbers")).collect();
        for (at, id) in ids.iter().enumerate() {
            let (before, rest) = id.split_once('.').expect("a dot");
            assert!(before == node && rest.len() == 22 && id.len() <= 64, "{id}");
            assert!(!ids[..at].contains(id));
        }
    }
}
