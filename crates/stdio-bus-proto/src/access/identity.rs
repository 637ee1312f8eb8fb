//! The name of a client, and its groups, that a proxy in front sends in fields of each request, such as
//! `X-Forwarded-User`: how a client signs in is for the proxy to decide. Anybody can write such a field, so it counts
//! only from trusted proxies, and is refused from all others: their clients would take it for valid.
//!
//! The name of the field is compared as a whole, without case, so `X_Forwarded_User` is another field. Trailers are not
//! read.

use std::borrow::Cow;
use std::sync::Arc;

use stdio_bus_core::port::{PoolId, is_in_group};
use stdio_bus_core::settings::Proxies;

use super::refusal::Refusal;
use crate::http1::Fields;

/// Maximum length of a name in bytes.
pub const LONGEST_NAME: usize = 256;

/// What programs write when they know no name: HAProxy and Apache leave it empty or write `-` and `(null)`, scripts and
/// templates the others, and Caddy the placeholder itself, as in `{http.auth.user.id}`.
const PLACEHOLDERS: [&str; 8] = ["-", "undefined", "null", "(null)", "none", "nil", "<nil>", "<null>"];

/// Which field has the name, and which proxies are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The field of the name, as it is configured.
    pub header: Box<str>,
    /// The field of the groups, if pools or rules are for groups.
    pub groups_header: Option<Box<str>>,
    /// The trusted proxies; none means those of the listener.
    pub trusted_proxies: Option<Proxies>,
}

/// What a request says in the fields. Nothing of it is trusted yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims<'b> {
    name: Claim<'b>,
    groups: Claim<'b>,
}

/// What it says in one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Claim<'b> {
    /// How many field lines there are.
    lines: usize,
    /// The value of the last one.
    value: &'b [u8],
}

impl<'b> Claim<'b> {
    /// That in the field with this name.
    fn of(fields: &Fields<'b>, name: &str) -> Self {
        fields.values(name).fold(Self::default(), |claim, value| Self { lines: claim.lines + 1, value })
    }
}

/// What a trusted proxy says of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProxyName {
    /// None if the proxy does not know it.
    pub name: Option<Arc<str>>,
    /// The pools of its groups, if pools are for groups and the proxy knows it.
    pub pools: Option<Arc<[PoolId]>>,
    /// Its groups, which commas separate, if there is a field of them: of a client without a name, too, whom a token
    /// may let in, since something may be denied to them.
    pub groups: Option<Arc<str>>,
}

impl Identity {
    /// What a request says in the fields.
    pub fn claims<'b>(&self, fields: &Fields<'b>) -> Claims<'b> {
        let groups = self.groups_header.as_ref().map(|name| Claim::of(fields, name)).unwrap_or_default();
        Claims { name: Claim::of(fields, &self.header), groups }
    }

    /// Who sent a request. `groups` are those that pools are for.
    ///
    /// # Errors
    /// A field is there and its sender is not trusted, or the name is invalid, or a field occurs more than once.
    pub(super) fn named(
        &self,
        claims: Claims<'_>,
        is_believed: bool,
        groups: Option<&Groups>,
    ) -> Result<ProxyName, Refusal> {
        let value = self.value(&self.header, claims.name, is_believed)?;
        let bad = |header: &str, what: Cow<'_, str>| Refusal::identity(format!("{header} {what}"));
        let of_groups = match &self.groups_header {
            Some(header) => {
                let value = self.value(header, claims.groups, is_believed)?.map(text).transpose();
                value.map_err(|what| bad(header, what))?.unwrap_or_default()
            }
            None => "",
        };
        let name = value.map(name).transpose().map_err(|what| bad(&self.header, what))?.flatten();
        Ok(ProxyName {
            name: name.map(Into::into),
            pools: name.and(groups).map(|groups| groups.pools(of_groups)),
            groups: (!of_groups.is_empty()).then(|| of_groups.into()),
        })
    }

    /// The value of a field that trusted proxies send, once.
    fn value<'b>(&self, header: &str, claim: Claim<'b>, is_believed: bool) -> Result<Option<&'b [u8]>, Refusal> {
        let bad = |what: &str| Err(Refusal::identity(format!("{header} {what}")));
        match claim.lines {
            0 => Ok(None),
            _ if !is_believed => bad(
                "comes from an address that is not trusted; leave it out, or add the proxy to trusted_proxies of this \
                 listener's identity; a proxy that sends a PROXY header, too, is not the sender: let it send none",
            ),
            1 => Ok(Some(claim.value)),
            _ => {
                bad("occurs twice; let the proxy replace what clients send, and write groups in one line, with commas")
            }
        }
    }
}

/// The pools that are for groups: each group with its own. The group `*` is everybody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups(pub Vec<(Box<str>, Vec<PoolId>)>);

impl Groups {
    /// The pools of the groups in this list, which commas separate, in the order of the configuration.
    pub(super) fn pools(&self, list: &str) -> Arc<[PoolId]> {
        let mut pools = Vec::new();
        for pool in self.0.iter().filter(|(group, _)| is_in_group(list, group)).flat_map(|(_, pools)| pools) {
            if !pools.contains(pool) {
                pools.push(*pool);
            }
        }
        pools.into()
    }

    /// The pools that are for everybody.
    pub(super) fn for_all(&self) -> Arc<[PoolId]> {
        self.pools("")
    }

    /// The same, with the pools at other places: `places` maps the old ones.
    pub fn moved(self, places: &[usize]) -> Self {
        let moved = |pools: Vec<PoolId>| pools.into_iter().map(|pool| PoolId::at(places[pool.index()])).collect();
        Self(self.0.into_iter().map(|(group, pools)| (group, moved(pools))).collect())
    }
}

/// Whether a program has written this because it knows no value.
pub(super) fn is_placeholder(value: &str) -> bool {
    let is_template = value.starts_with('{') && value.ends_with('}');
    is_template || PLACEHOLDERS.iter().any(|known| known.eq_ignore_ascii_case(value))
}

/// Whether a text has no blank and no control character, as names of tokens and of headers.
pub fn is_one_word(name: &str) -> bool {
    !name.chars().any(|c| c.is_control() || c.is_whitespace())
}

/// A field's value as text.
fn text(value: &[u8]) -> Result<&str, Cow<'static, str>> {
    let why = "is not UTF-8; HAProxy 2.6 writes the escapes of a token's claims as Latin-1";
    str::from_utf8(value).map_err(|_| why.into())
}

/// The name in a field's value.
fn name(value: &[u8]) -> Result<Option<&str>, Cow<'static, str>> {
    if value.contains(&b',') {
        return Err("has a comma, so it is two names; let the proxy replace what clients send".into());
    }
    if value.len() > LONGEST_NAME {
        return Err(format!("has {} bytes, and a name has at most {LONGEST_NAME}", value.len()).into());
    }
    let name = text(value)?;
    match name {
        "" => Ok(None),
        _ if is_placeholder(name) => Ok(None),
        _ if !is_one_word(name) => Err("has a blank or a control character, which no name has".into()),
        _ => Ok(Some(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::HeadReader;

    fn identity() -> Identity {
        Identity { header: "X-Forwarded-User".into(), ..Identity::default() }
    }

    /// The name that these field lines give, or why they are refused.
    fn name_of(lines: &[&[u8]], is_believed: bool) -> Result<Option<String>, String> {
        let mut head = b"GET / HTTP/1.1\r\nHost: a\r\n".to_vec();
        lines.iter().for_each(|line| head.extend_from_slice(&[line, &b"\r\n"[..]].concat()));
        head.extend_from_slice(b"\r\n");
        let mut reader = HeadReader::default();
        let read = reader.read(&head).map_err(|error| error.why.to_owned())?.expect("it is whole");
        let named = identity().named(identity().claims(&read.fields), is_believed, None);
        named.map(|named| named.name.map(|name| name.to_string())).map_err(|refusal| {
            assert_eq!(refusal.status.code(), 400);
            refusal.why.into_owned()
        })
    }

    fn of(value: &str) -> Result<Option<String>, String> {
        name_of(&[format!("X-Forwarded-User: {value}").as_bytes()], true)
    }

    #[test]
    fn a_believed_proxy_names_the_client_in_whatever_case_it_writes_the_field() {
        for field in ["X-Forwarded-User", "x-forwarded-user", "X-FORWARDED-USER"] {
            let line = format!("{field}:  alice@example.com\t");
            assert_eq!(name_of(&[line.as_bytes()], true), Ok(Some("alice@example.com".into())));
        }
        for name in ["42", "müller", "工具", "CN=alice", "a/b", "{alice", "Undefined1", &"x".repeat(256)] {
            assert_eq!(of(name), Ok(Some(name.into())));
        }
        assert_eq!(name_of(&[], true), Ok(None));
    }

    #[test]
    fn the_field_of_anybody_else_is_refused_also_if_it_is_empty() {
        for value in ["alice", "", "-"] {
            let line = format!("x-forwarded-user: {value}");
            assert!(name_of(&[line.as_bytes()], false).expect_err(value).contains("is not trusted"));
        }
        assert_eq!(name_of(&[], false), Ok(None));
    }

    #[test]
    fn two_lines_or_two_values_are_refused() {
        let two: [&[u8]; 2] = [b"X-Forwarded-User: alice", b"x-forwarded-user: alice"];
        assert!(name_of(&two, true).expect_err("two lines").contains("occurs twice"));
        assert!(name_of(&[b"X-Forwarded-User:", b"X-Forwarded-User: bob"], true).is_err(), "an empty one is one");
        for value in ["alice, bob", "alice,", ",", ",alice"] {
            assert!(of(value).expect_err(value).contains("two names"));
        }
    }

    #[test]
    fn what_only_resembles_the_field_names_nobody() {
        for line in ["X_Forwarded_User: a", "X-Forwarded_User: a", "XForwardedUser: a", "X-Forwarded-Users: a"] {
            assert_eq!(name_of(&[line.as_bytes()], false), Ok(None), "{line}");
        }
        assert_eq!(name_of(&[b"X-Forwarded-User.: alice"], true), Ok(None));
        for line in [&b"X-Forwarded-User : a"[..], b"X-Forwarded-User\0: a", b"A: b\r\n X-Forwarded-User: a"] {
            assert!(!matches!(name_of(&[line], true), Ok(Some(_))), "{}", line.escape_ascii());
        }
        assert!(name_of(&[b"X-Forwarded-User: alice\r\n bob"], true).is_err(), "a folded value");
    }

    #[test]
    fn an_empty_value_and_a_placeholder_are_no_names() {
        let caddy = "{http.reverse_proxy.header.X-Auth-Request-User}";
        for value in ["", "  ", "\t", "-", "undefined", "null", "(null)", "None", "NULL", "<nil>", "{}", caddy] {
            assert_eq!(of(value), Ok(None), "{value}");
        }
    }

    #[test]
    fn each_byte_is_part_of_a_name_or_refused_and_none_is_left_out() {
        for byte in 0..=u8::MAX {
            let line = [b"X-Forwarded-User: al", &[byte][..], b"ice"].concat();
            match name_of(&[&line], true) {
                Ok(Some(name)) => assert_eq!(name.as_bytes(), [b"al", &[byte][..], b"ice"].concat()),
                Ok(None) => panic!("{byte}"),
                Err(_) => assert!(!byte.is_ascii_graphic() || byte == b',', "{byte}"),
            }
        }
        assert!(of(&"x".repeat(257)).expect_err("it is too long").contains("257 bytes"));
        assert!(name_of(&[b"X-Forwarded-User: m\xfcller"], true).expect_err("Latin-1").contains("not UTF-8"));
    }

    #[test]
    fn groups_have_their_pools_in_the_order_of_the_configuration_and_everybody_those_of_the_star() {
        let at = |pools: &[usize]| pools.iter().map(|pool| PoolId::at(*pool)).collect::<Vec<_>>();
        let groups = Groups(vec![("ops".into(), at(&[1, 0])), ("*".into(), at(&[2])), ("all,of".into(), at(&[3]))]);
        for (list, pools) in [
            ("", &[2][..]),
            ("ops", &[1, 0, 2]),
            (" dev , ops,,", &[1, 0, 2]),
            ("OPS", &[2]),
            ("*", &[2]),
            ("op", &[2]),
            ("all,of", &[2]),
            ("WyJvcHMiXQ==", &[2]),
        ] {
            assert_eq!(*groups.pools(list), at(pools), "{list}");
        }
        assert_eq!(*groups.clone().moved(&[3, 2, 1, 0]).pools("ops"), at(&[2, 3, 1]));
        assert!(Groups(vec![("ops".into(), at(&[0]))]).for_all().is_empty());
    }

    #[test]
    fn groups_are_refused_as_names_are_from_who_is_not_believed_or_twice() {
        let identity = Identity { groups_header: Some("X-Groups".into()), ..identity() };
        let ask_bytes = |fields: &[u8], is_believed| {
            let head = [b"GET / HTTP/1.1\r\nHost: a\r\n", fields, b"\r\n"].concat();
            let mut reader = HeadReader::default();
            let head = reader.read(&head).expect("it is HTTP").expect("it is whole");
            let groups = Groups(vec![("ops".into(), vec![PoolId::at(0)])]);
            let named = identity.named(identity.claims(&head.fields), is_believed, Some(&groups));
            named.map(|named| named.pools.map(|pools| pools.len())).map_err(|refusal| refusal.why)
        };
        let ask = |fields: &str, is_believed| ask_bytes(fields.as_bytes(), is_believed);
        assert_eq!(ask("X-Forwarded-User: a\r\nX-Groups: dev, ops\r\n", true), Ok(Some(1)));
        let latin = b"X-Forwarded-User: a\r\nX-Groups: ops,pr\xfcfer\r\n";
        assert!(ask_bytes(latin, true).expect_err("a rule for the group would be missed").contains("not UTF-8"));
        assert_eq!(ask("X-Forwarded-User: a\r\nX_Groups: ops\r\n", true), Ok(Some(0)));
        assert_eq!(ask("X-Groups: ops\r\n", true), Ok(None), "groups without a name are nobody's");
        for (fields, is_believed) in [("X-Groups: ops\r\n", false), ("X-Groups: dev\r\nx-groups: ops\r\n", true)] {
            assert!(ask(fields, is_believed).expect_err(fields).starts_with("X-Groups "));
        }
    }
}
