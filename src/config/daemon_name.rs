//! The daemon's name among others: the ids that it gives out begin with it, so that a reader of an id knows where its
//! session lives.

use rustix::system::uname;

/// Maximum length of a name. With a dot and 128 random bits after it, an id stays below 64 characters.
pub(super) const LONGEST: usize = 32;

/// Whether a byte is allowed in a name; a dot is not, since it ends the name in an id.
fn may_stand(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// Whether it is a valid name.
pub(super) fn is_name(text: &str) -> bool {
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(may_stand)
}

/// The host's name, without invalid characters.
pub(super) fn of_host() -> String {
    made_safe(uname().nodename().to_bytes())
}

fn made_safe(name: &[u8]) -> String {
    let safe = |byte: &u8| if may_stand(*byte) { char::from(*byte) } else { '-' };
    let name: String = name.iter().take(LONGEST).map(safe).collect();
    if name.is_empty() { "node".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_becomes_a_valid_id_prefix() {
        assert_eq!(made_safe(b"stdio-bus-0"), "stdio-bus-0");
        assert_eq!(made_safe(b"bus1.example.com"), "bus1-example-com");
        assert_eq!(made_safe(b"a b\xc3\xa9"), "a-b--");
        assert_eq!(made_safe(&[b'x'; 64]), "x".repeat(LONGEST));
        for name in [&b""[..], b".", b"bus", &[b'.'; 64]] {
            assert!(is_name(&made_safe(name)), "{name:?}");
        }
        assert!(is_name(&of_host()));
    }
}
