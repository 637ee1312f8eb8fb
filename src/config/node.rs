//! What a daemon is called among others: the ids that it gives out begin with that, so that whoever reads one knows where
//! its session lives.

use rustix::system::uname;

/// The longest name. With a dot and 128 random bits behind it an id stays below 64 characters.
pub(super) const LONGEST: usize = 32;

/// What may stand in one; no dot, which ends it in an id.
fn may_stand(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// Whether it can be one.
pub(super) fn is_name(text: &str) -> bool {
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(may_stand)
}

/// The host's name, as far as it can stand there.
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
    fn a_hosts_name_is_made_one_that_an_id_can_begin_with() {
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
