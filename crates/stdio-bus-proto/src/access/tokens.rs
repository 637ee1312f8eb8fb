//! Bearer tokens and token hashes: parses the file of the clients' tokens and looks them up, and compares the
//! operators' token.
//!
//! A line is `NAME:TOKEN`, or `NAME:sha256:HEX` with the digest of a token, optionally followed by blanks and the pools
//! that it grants: `POOL,POOL`. Empty lines and lines that begin with `#` are ignored. A name may have several tokens,
//! so that one can be replaced while the other is in use.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use stdio_bus_core::port::{EVERYBODY, PoolId};

use super::identity::is_one_word;

/// Minimum length of a token in bytes, so that it cannot be guessed.
pub const SHORTEST_TOKEN: usize = 16;
/// Maximum length of a name in bytes.
const LONGEST_NAME: usize = 64;
/// The prefix of the groups of a token.
const GROUPS: &str = "groups=";
/// The prefix of a digest.
const SHA256: &str = "sha256:";

/// The bearer of a token, and its pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bearer {
    /// The name of its clients in logs, limits and sessions.
    pub name: Arc<str>,
    /// The pools that it grants, the preferred one first; none means all.
    pub pools: Option<Arc<[PoolId]>>,
    /// Its groups, which commas separate.
    pub groups: Option<Arc<str>>,
    digest: [u8; 32],
}

/// All tokens of a file by their digests, which alone are kept, so tokens cannot be shown.
///
/// How long a lookup takes reveals nothing about the tokens: where it looks, and whether a comparison of digests ends early,
/// depends on the digest of what was presented. Who does not know a token cannot choose text whose SHA-256 begins like that
/// of a token, and what a digest begins with does not lead to its token. The map hashes digests with a key of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens(HashMap<[u8; 32], Bearer>);

impl Tokens {
    /// Parses a file; `pools` are the ids that it may name.
    ///
    /// # Errors
    /// The first bad line, by number, without any part of a token.
    pub fn parse(text: &str, pools: &[&str]) -> Result<Self, String> {
        let (mut bearers, mut lines) = (HashMap::new(), HashMap::new());
        // Some editors begin UTF-8 with a byte order mark.
        for (index, line) in text.strip_prefix('\u{feff}').unwrap_or(text).lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bearer = bearer(line, pools).map_err(|why| format!("line {}: {why}", index + 1))?;
            let (first, name) = lines.entry(bearer.digest).or_insert((index + 1, Arc::clone(&bearer.name)));
            if *name != bearer.name {
                return Err(format!(
                    "line {}: the token of {} is that of {name} in line {first}; give each name a token of its own",
                    index + 1,
                    bearer.name
                ));
            }
            bearers.insert(bearer.digest, bearer);
        }
        Ok(Self(bearers))
    }

    /// The same tokens, with the pools at other places: `places` maps the old ones.
    pub fn moved(mut self, places: &[usize]) -> Self {
        for bearer in self.0.values_mut() {
            let pools = bearer
                .pools
                .as_deref()
                .map(|pools| pools.iter().map(|pool| PoolId::at(places[pool.index()])).collect());
            bearer.pools = pools;
        }
        self
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All bearers, in no order.
    pub fn bearers(&self) -> impl Iterator<Item = &Bearer> {
        self.0.values()
    }

    /// Whether this bearer is still among them, with its name, pools and groups.
    pub fn has(&self, bearer: &Bearer) -> bool {
        self.0.get(&bearer.digest) == Some(bearer)
    }

    /// The bearer of a token.
    pub fn find(&self, token: &str) -> Option<&Bearer> {
        self.0.get(&<[u8; 32]>::from(Sha256::digest(token)))
    }
}

/// A token that is kept as it is and has no bearer: that of the operators, in `admin.token_file`. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The secret, without the white space around it.
    ///
    /// # Errors
    /// It is shorter than [`SHORTEST_TOKEN`].
    pub fn new(secret: &[u8]) -> Result<Self, String> {
        let (secret, least) = (secret.trim_ascii(), SHORTEST_TOKEN);
        match secret.len() {
            length if length < least => Err(format!("has {length} bytes, and {least} is the least")),
            _ => Ok(Self(secret.to_vec())),
        }
    }

    /// Compares in constant time; only the length leaks.
    pub fn is(&self, presented: &[u8]) -> bool {
        is_same(&self.0, presented)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(…)")
    }
}

/// Compares a secret in constant time; only the lengths leak.
fn is_same(secret: &[u8], presented: &[u8]) -> bool {
    let differs = secret.iter().zip(presented).fold(0, |differs, (one, other)| differs | (one ^ other));
    // Keeps the compiler from stopping at the first difference.
    std::hint::black_box(differs) == 0 && secret.len() == presented.len()
}

fn bearer(line: &str, pools: &[&str]) -> Result<Bearer, String> {
    let (name, rest) = line.split_once(':').ok_or("write NAME:TOKEN or NAME:sha256:HEX")?;
    if name.is_empty() || name.len() > LONGEST_NAME || !is_one_word(name) {
        return Err(format!("a name has from 1 to {LONGEST_NAME} bytes without blanks"));
    }
    let mut words = rest.split_ascii_whitespace();
    let secret = words.next().ok_or("the token is missing")?;
    let digest = match secret.strip_prefix(SHA256) {
        Some(hex) => {
            digest(hex).ok_or("a digest is 64 hexadecimal digits; make one with: printf %s TOKEN | sha256sum")?
        }
        None if secret.len() < SHORTEST_TOKEN => {
            return Err(format!(
                "the token has {} bytes, and {SHORTEST_TOKEN} is the least; make one with: openssl rand -hex 32",
                secret.len()
            ));
        }
        None if !secret.bytes().all(|byte| byte.is_ascii_graphic()) => {
            return Err("a token is visible ASCII".to_owned());
        }
        None => Sha256::digest(secret).into(),
    };
    let mut bearer = Bearer { name: name.into(), pools: None, groups: None, digest };
    for word in words {
        match word.strip_prefix(GROUPS) {
            Some(names) if bearer.groups.is_none() => bearer.groups = Some(groups(names)?),
            None if bearer.pools.is_none() && bearer.groups.is_none() => bearer.pools = Some(indexes(word, pools)?),
            _ => {
                return Err(
                    "only a comma-separated list of pools may follow a token, and then groups=GROUP,…".to_owned()
                );
            }
        }
    }
    Ok(bearer)
}

fn groups(names: &str) -> Result<Arc<str>, String> {
    match names.split(',').all(|name| !name.is_empty() && name != EVERYBODY) {
        true => Ok(names.into()),
        false => {
            Err("groups= is followed by names with commas between them; everybody is in the group \"*\"".to_owned())
        }
    }
}

fn indexes(names: &str, pools: &[&str]) -> Result<Arc<[PoolId]>, String> {
    let index = |name: &str| {
        let found = pools.iter().position(|pool| *pool == name);
        found.map(PoolId::at).ok_or_else(|| format!("there is no pool {name:?}; the pools are {}", pools.join(", ")))
    };
    names.split(',').map(index).collect()
}

fn digest(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    let is_hex = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    for (at, byte) in digest.iter_mut().enumerate().filter(|_| is_hex) {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    is_hex.then_some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOLS: [&str; 2] = ["agents", "tools"];

    fn name(tokens: &Tokens, token: &str) -> Option<String> {
        tokens.find(token).map(|bearer| bearer.name.to_string())
    }

    #[test]
    fn a_token_or_its_digest_identifies_its_bearer() {
        let text = "# who may come in\n\nalice:0123456789abcdef\n bob:sha256:\
            9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 \r\nalice:another token no\n";
        assert!(Tokens::parse(text, &POOLS).is_err(), "a token has no blanks");
        let text = text.replace(" token no", "-one-of-alice");
        let tokens = Tokens::parse(&text, &POOLS).expect("good lines");
        assert_eq!(name(&tokens, "0123456789abcdef").as_deref(), Some("alice"));
        assert_eq!(name(&tokens, "another-one-of-alice").as_deref(), Some("alice"), "a name may have several");
        assert_eq!(name(&tokens, "test").as_deref(), Some("bob"));
        for wrong in ["", "0123456789abcde", "0123456789abcdef0", "TEST", "sha256:", "alice"] {
            assert_eq!(name(&tokens, wrong), None, "{wrong}");
        }
        assert!(!format!("{tokens:?}").contains("0123456789abcdef"), "a token is not shown");
    }

    #[test]
    fn a_token_is_found_among_many_and_one_that_was_taken_out_is_not_had() {
        let text = |count: usize| (0..count).map(|number| format!("n{number}:{number:032}\n")).collect::<String>();
        let many = Tokens::parse(&text(10_000), &POOLS).expect("good lines");
        assert_eq!(name(&many, &format!("{:032}", 9_999)).as_deref(), Some("n9999"));
        assert_eq!(name(&many, &format!("{:032}", 10_000)), None);
        let last = many.find(&format!("{:032}", 9_999)).expect("it is there");
        assert!(many.has(last) && !Tokens::parse(&text(9_999), &POOLS).expect("good lines").has(last));
    }

    #[test]
    fn a_token_may_grant_only_some_pools() {
        let tokens =
            Tokens::parse("a:0123456789abcdef tools,agents\nb:0123456789abcdeg\n", &POOLS).expect("good lines");
        assert_eq!(
            tokens.find("0123456789abcdef").and_then(|bearer| bearer.pools.as_deref()),
            Some(&[PoolId::at(1), PoolId::at(0)][..])
        );
        assert_eq!(tokens.find("0123456789abcdeg").map(|bearer| bearer.pools.is_none()), Some(true));
    }

    #[test]
    fn a_token_may_be_of_groups_beside_its_pools_and_another_list_of_them_makes_it_another_one() {
        let parse = |text: &str| Tokens::parse(text, &POOLS).expect("good lines");
        let tokens = parse("a:0123456789abcdef tools groups=interns,staff\nb:0123456789abcdeg groups=tools\n");
        let of = |token: &str| tokens.find(token).map(|bearer| (bearer.pools.is_some(), bearer.groups.as_deref()));
        assert_eq!(of("0123456789abcdef"), Some((true, Some("interns,staff"))));
        assert_eq!(of("0123456789abcdeg"), Some((false, Some("tools"))));
        let before = tokens.find("0123456789abcdef").expect("it is there");
        assert!(!parse("a:0123456789abcdef tools groups=staff\n").has(before));
    }

    #[test]
    fn a_token_of_two_names_is_an_error_that_names_both_lines() {
        for second in
            ["bob:0123456789abcdef", "bob:sha256:9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f"]
        {
            let error =
                Tokens::parse(&format!("# x\nalice:0123456789abcdef\n\n{second} tools\n"), &POOLS).expect_err(second);
            assert_eq!(error, "line 4: the token of bob is that of alice in line 2; give each name a token of its own");
        }
        let twice =
            Tokens::parse("alice:0123456789abcdef\nalice:0123456789abcdef tools\n", &POOLS).expect("it is the same");
        let pools = twice.find("0123456789abcdef").and_then(|bearer| bearer.pools.as_deref());
        assert_eq!(pools, Some(&[PoolId::at(1)][..]), "its last line counts");
    }

    #[test]
    fn a_byte_order_mark_ahead_of_the_first_name_is_no_part_of_it() {
        let tokens = Tokens::parse("\u{feff}alice:0123456789abcdef\r\n", &POOLS).expect("it is valid");
        assert_eq!(tokens.find("0123456789abcdef").map(|bearer| &*bearer.name), Some("alice"));
    }

    #[test]
    fn a_wrong_line_is_named_and_its_token_is_not() {
        for (text, why) in [
            ("a:0123456789abcdef\nsecretsecretsecret", "line 2: write NAME:TOKEN"),
            ("a:", "the token is missing"),
            (":0123456789abcdef", "a name has"),
            ("a b:0123456789abcdef", "a name has"),
            ("a:secret", "6 bytes, and 16 is the least"),
            ("a:sha256:secret", "64 hexadecimal digits"),
            ("a:sécretsecretsecret", "visible ASCII"),
            ("a:0123456789abcdef nobody", "there is no pool \"nobody\"; the pools are agents, tools"),
            ("a:0123456789abcdef agents tools", "a comma-separated list"),
            ("a:0123456789abcdef groups=a agents", "a comma-separated list"),
            ("a:0123456789abcdef groups=a groups=b", "a comma-separated list"),
            ("a:0123456789abcdef groups=", "names with commas"),
            ("a:0123456789abcdef groups=a,,b", "names with commas"),
            ("a:0123456789abcdef groups=*", "names with commas"),
        ] {
            let error = Tokens::parse(text, &POOLS).expect_err(text);
            assert!(error.contains(why), "{error}");
            assert!(!error.contains("secret") && !error.contains("0123"), "{error}");
        }
    }
}
