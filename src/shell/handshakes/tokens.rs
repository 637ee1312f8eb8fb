//! Takes reread token files, which are read elsewhere (`token_files.rs`).

use std::io;

/// Takes what a file has now: parsed, it replaces `last`. If it is invalid that is logged, and the last content stays
/// valid. True if it has changed. `what` names the file.
pub(in crate::shell) fn take<T: PartialEq>(
    last: &mut T,
    what: &str,
    content: io::Result<Vec<u8>>,
    parse: impl FnOnce(&[u8]) -> Result<T, String>,
) -> bool {
    match content.map_err(|error| error.to_string()).and_then(|bytes| parse(&bytes)) {
        Ok(now) => {
            let has_changed = *last != now;
            if has_changed {
                tracing::info!("{what} was read again");
                *last = now;
            }
            has_changed
        }
        Err(why) => {
            tracing::error!("{what} cannot be used, and its last content stays valid: {why}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Tokens;

    #[test]
    fn a_reread_token_file_is_used_if_it_is_valid() {
        let parse = |text: &[u8]| Tokens::parse(str::from_utf8(text).expect("it is text"), &["a"]);
        let mut tokens = parse(b"alice:0123456789abcdef\n").expect("it is right");
        let mut take = |content: io::Result<Vec<u8>>| {
            let has_changed = take(&mut tokens, "the file", content, parse);
            (has_changed, tokens.find("0123456789abcdeg").cloned())
        };
        let text = |text: &str| Ok(text.into());
        assert_eq!(take(text("alice:0123456789abcdef\n")), (false, None), "nothing has changed");
        let (has_changed, bob) = take(text("bob:0123456789abcdeg a\n"));
        assert!(has_changed && bob.is_some());
        let invalid = take(text("bob:0123456789abcdeg b\n"));
        assert_eq!(invalid, (false, bob.clone()), "there is no pool b, so the last one stays");
        assert_eq!(take(Err(io::ErrorKind::NotFound.into())), (false, bob.clone()), "so it does without a file");
        let other = take(text("bob:0123456789abcdeg\n"));
        assert!(other.0 && other.1 != bob, "he may use other pools now");
        assert_eq!(take(text("")), (true, None), "an empty one lets nobody in");
    }
}
