//! A listener's tokens. Their file is read elsewhere (`token_files.rs`).

use std::io;
use std::path::PathBuf;

use crate::tokens::Tokens;

/// See the module documentation.
pub(super) struct TokensFile {
    path: PathBuf,
    /// The ids of the pools that a line may name.
    pools: Vec<String>,
    pub tokens: Tokens,
}

impl TokensFile {
    /// A file with these tokens.
    pub(super) fn new(path: PathBuf, pools: Vec<String>, tokens: Tokens) -> Self {
        Self { path, pools, tokens }
    }

    /// Takes the reread file. If it is invalid that is logged, and the last tokens stay valid. True if the tokens have
    /// changed.
    pub(super) fn take(&mut self, content: io::Result<Vec<u8>>) -> bool {
        let path = self.path.display();
        let pools: Vec<&str> = self.pools.iter().map(String::as_str).collect();
        let text = content.map_err(|error| error.to_string());
        let text = text.and_then(|bytes| String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned()));
        match text.and_then(|text| Tokens::parse(&text, &pools)) {
            Ok(tokens) if tokens == self.tokens => false,
            Ok(tokens) => {
                if tokens.is_empty() {
                    tracing::warn!("the tokens file {path} has no token: every client is refused");
                } else {
                    tracing::info!("the tokens file {path} was read again");
                }
                self.tokens = tokens;
                true
            }
            Err(why) => {
                tracing::error!("the tokens file {path} cannot be used, and its last content stays valid: {why}");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reread_token_file_is_used_if_it_is_valid() {
        let first = Tokens::parse("alice:0123456789abcdef\n", &[]).expect("it is right");
        let mut tokens = TokensFile::new("tokens".into(), vec!["a".to_owned()], first);
        let mut take = |text: &str| (tokens.take(Ok(text.into())), tokens.tokens.find("0123456789abcdeg").is_some());
        assert_eq!(take("alice:0123456789abcdef\n"), (false, false), "nothing has changed");
        assert_eq!(take("bob:0123456789abcdeg a\n"), (true, true));
        assert_eq!(take("bob:0123456789abcdeg b\n"), (false, true), "there is no pool b, so the last one stays");
        assert!(!tokens.take(Err(io::ErrorKind::NotFound.into())), "so it does without a file");
        let bob = tokens.tokens.find("0123456789abcdeg").cloned().expect("he is known");
        assert!(tokens.tokens.has(&bob));
        assert!(
            tokens.take(Ok(b"bob:0123456789abcdeg\n".into())) && !tokens.tokens.has(&bob),
            "he may use other pools now"
        );
        assert!(
            tokens.take(Ok(Vec::new())) && tokens.tokens.find("0123456789abcdeg").is_none(),
            "an empty one lets nobody in"
        );
    }
}
