//! The name of a client that a proxy in front tells in a field of each request, such as `X-Forwarded-User`: who signs in,
//! and how, is the proxy's affair. Anybody can write such a field, so it counts from the proxies alone that are believed,
//! and is refused from all others: who sends it there takes it for valid.
//!
//! The name of the field is compared as a whole, without case, so `X_Forwarded_User` is another field. Trailers are not
//! read.

use std::borrow::Cow;
use std::sync::Arc;

use stdio_bus_core::settings::Proxies;

use super::refusal::Refusal;
use crate::http1::Fields;

/// Maximum length of a name in bytes.
pub const LONGEST_NAME: usize = 256;

/// What programs write when they know no name: HAProxy and Apache leave it empty or write `-` and `(null)`, scripts and
/// templates the others, and Caddy the placeholder itself, as in `{http.auth.user.id}`.
const PLACEHOLDERS: [&str; 8] = ["-", "undefined", "null", "(null)", "none", "nil", "<nil>", "<null>"];

/// Which field has the name, and who is believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The field of the name, as it is configured.
    pub header: Box<str>,
    /// The proxies that are believed; none means those of the listener.
    pub trusted_proxies: Option<Proxies>,
}

/// What a request says in the field. Nothing of it is believed yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim<'b> {
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

impl Identity {
    /// What a request says in the field.
    pub fn claim<'b>(&self, fields: &Fields<'b>) -> Claim<'b> {
        Claim::of(fields, &self.header)
    }

    /// The name that a request gives its client; none if its proxy does not know one.
    ///
    /// # Errors
    /// The field is there and its sender not believed, or it is no name, or more than one.
    pub fn name(&self, claim: Claim<'_>, is_believed: bool) -> Result<Option<Arc<str>>, Refusal> {
        let bad = |what: &str| Err(Refusal::identity(format!("{} {what}", self.header)));
        match claim.lines {
            0 => Ok(None),
            _ if !is_believed => bad(
                "comes from an address that is not believed; leave it out, or add the proxy to trusted_proxies of this \
                 listener's identity",
            ),
            1 => match name(claim.value) {
                Ok(name) => Ok(name.map(Arc::from)),
                Err(what) => bad(&what),
            },
            _ => bad("stands twice; let the proxy replace what clients send"),
        }
    }
}

/// The name in a field's value.
fn name(value: &[u8]) -> Result<Option<&str>, Cow<'static, str>> {
    if value.contains(&b',') {
        return Err("has a comma, so it is two names; let the proxy replace what clients send".into());
    }
    if value.len() > LONGEST_NAME {
        return Err(format!("has {} bytes, and a name has at most {LONGEST_NAME}", value.len()).into());
    }
    let Ok(name) = str::from_utf8(value) else {
        return Err("is not UTF-8; HAProxy 2.6 writes the escapes of a token's claims as Latin-1".into());
    };
    let is_placeholder = |name: &str| {
        let is_template = name.starts_with('{') && name.ends_with('}');
        is_template || PLACEHOLDERS.iter().any(|known| known.eq_ignore_ascii_case(name))
    };
    match name {
        "" => Ok(None),
        _ if is_placeholder(name) => Ok(None),
        _ if name.chars().any(|c| c.is_control() || c.is_whitespace()) => {
            Err("has a blank or a control character, which no name has".into())
        }
        _ => Ok(Some(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::HeadReader;

    fn identity() -> Identity {
        Identity { header: "X-Forwarded-User".into(), trusted_proxies: None }
    }

    /// The name that these field lines give, or why they are refused.
    fn told(lines: &[&[u8]], is_believed: bool) -> Result<Option<String>, String> {
        let mut head = b"GET / HTTP/1.1\r\nHost: a\r\n".to_vec();
        lines.iter().for_each(|line| head.extend_from_slice(&[line, &b"\r\n"[..]].concat()));
        head.extend_from_slice(b"\r\n");
        let mut reader = HeadReader::default();
        let read = reader.read(&head).map_err(|error| error.why.to_owned())?.expect("it is whole");
        let name = identity().name(identity().claim(&read.fields), is_believed);
        name.map(|name| name.map(|name| name.to_string())).map_err(|refusal| {
            assert_eq!(refusal.status.code(), 400);
            refusal.why.into_owned()
        })
    }

    fn of(value: &str) -> Result<Option<String>, String> {
        told(&[format!("X-Forwarded-User: {value}").as_bytes()], true)
    }

    #[test]
    fn a_believed_proxy_names_the_client_in_whatever_case_it_writes_the_field() {
        for field in ["X-Forwarded-User", "x-forwarded-user", "X-FORWARDED-USER"] {
            let line = format!("{field}:  alice@example.com\t");
            assert_eq!(told(&[line.as_bytes()], true), Ok(Some("alice@example.com".into())));
        }
        for name in ["42", "müller", "工具", "CN=alice", "a/b", "{alice", "Undefined1", &"x".repeat(256)] {
            assert_eq!(of(name), Ok(Some(name.into())));
        }
        assert_eq!(told(&[], true), Ok(None));
    }

    #[test]
    fn the_field_of_anybody_else_is_refused_also_if_it_is_empty() {
        for value in ["alice", "", "-"] {
            let line = format!("x-forwarded-user: {value}");
            assert!(told(&[line.as_bytes()], false).expect_err(value).contains("is not believed"));
        }
        assert_eq!(told(&[], false), Ok(None));
    }

    #[test]
    fn two_lines_or_two_values_are_refused() {
        let two: [&[u8]; 2] = [b"X-Forwarded-User: alice", b"x-forwarded-user: alice"];
        assert!(told(&two, true).expect_err("two lines").contains("stands twice"));
        assert!(told(&[b"X-Forwarded-User:", b"X-Forwarded-User: bob"], true).is_err(), "an empty one is one");
        for value in ["alice, bob", "alice,", ",", ",alice"] {
            assert!(of(value).expect_err(value).contains("two names"));
        }
    }

    #[test]
    fn what_only_resembles_the_field_names_nobody() {
        for line in ["X_Forwarded_User: a", "X-Forwarded_User: a", "XForwardedUser: a", "X-Forwarded-Users: a"] {
            assert_eq!(told(&[line.as_bytes()], false), Ok(None), "{line}");
        }
        assert_eq!(told(&[b"X-Forwarded-User.: alice"], true), Ok(None));
        for line in [&b"X-Forwarded-User : a"[..], b"X-Forwarded-User\0: a", b"A: b\r\n X-Forwarded-User: a"] {
            assert!(!matches!(told(&[line], true), Ok(Some(_))), "{}", line.escape_ascii());
        }
        assert!(told(&[b"X-Forwarded-User: alice\r\n bob"], true).is_err(), "a folded value");
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
            match told(&[&line], true) {
                Ok(Some(name)) => assert_eq!(name.as_bytes(), [b"al", &[byte][..], b"ice"].concat()),
                Ok(None) => panic!("{byte}"),
                Err(_) => assert!(!byte.is_ascii_graphic() || byte == b',', "{byte}"),
            }
        }
        assert!(of(&"x".repeat(257)).expect_err("it is too long").contains("257 bytes"));
        assert!(told(&[b"X-Forwarded-User: m\xfcller"], true).expect_err("Latin-1").contains("not UTF-8"));
    }
}
