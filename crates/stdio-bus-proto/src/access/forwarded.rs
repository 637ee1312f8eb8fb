//! The client's address as reported by a proxy: `X-Forwarded-For`, and `Forwarded` (RFC 7239). Each proxy appends its
//! peer, and clients can forge what precedes: the client is the last address that is not a trusted proxy.

use std::net::{IpAddr, SocketAddr};

/// The client of a request that a trusted proxy forwarded; none if it names no client. `is_trusted` distinguishes trusted
/// proxies.
///
/// # Errors
/// Both fields are present and disagree, so that one of them may be forged.
pub fn client(
    forwarded_for: &[&[u8]],
    forwarded: &[&[u8]],
    is_trusted: impl Fn(IpAddr) -> bool,
) -> Result<Option<SocketAddr>, &'static str> {
    let old = last_untrusted(elements(forwarded_for).map(address), &is_trusted);
    let new = last_untrusted(elements(forwarded).map(|element| address(for_of(element)?)), &is_trusted);
    match (old, new) {
        (Some(old), Some(new)) if old.ip() != new.ip() => Err(
            "X-Forwarded-For and Forwarded name different clients; let the proxy remove the one that it does not set",
        ),
        (old, new) => Ok(new.or(old)),
    }
}

/// The elements of all values of a list, in reverse order.
fn elements<'b>(values: &[&'b [u8]]) -> impl Iterator<Item = &'b [u8]> {
    let values = values.iter().rev().copied();
    values.flat_map(|value| value.rsplit(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// Nothing before a hidden or unknown address is believed.
fn last_untrusted(
    addresses: impl Iterator<Item = Option<SocketAddr>>,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> Option<SocketAddr> {
    let mut last = None;
    for address in addresses {
        let Some(address) = address else { break };
        last = Some(address);
        if !is_trusted(address.ip()) {
            break;
        }
    }
    last
}

/// The value of `for=` in an element of `Forwarded`.
fn for_of(element: &[u8]) -> Option<&[u8]> {
    element.split(|byte| *byte == b';').find_map(|pair| {
        let (name, value) = pair.trim_ascii().split_at_checked(4)?;
        name.eq_ignore_ascii_case(b"for=").then_some(value)
    })
}

/// An address, with or without a port, quoted or not: `192.0.2.1`, `192.0.2.1:47`, `[2001:db8::1]:47`, `2001:db8::1`.
fn address(text: &[u8]) -> Option<SocketAddr> {
    let text = str::from_utf8(text).ok()?.trim_matches('"');
    let alone = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = match alone.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, 0),
        Err(_) => text.parse::<SocketAddr>().ok()?,
    };
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reported client, where proxies are in 10.0.0.0/8.
    fn client_of(forwarded_for: &[&str], forwarded: &[&str]) -> Result<Option<String>, &'static str> {
        let bytes = |values: &[&str]| values.iter().map(|value| value.as_bytes().to_vec()).collect::<Vec<_>>();
        let (old, new) = (bytes(forwarded_for), bytes(forwarded));
        let (old, new): (Vec<_>, Vec<_>) = (old.iter().map(|v| &v[..]).collect(), new.iter().map(|v| &v[..]).collect());
        let is_proxy = |address: IpAddr| matches!(address, IpAddr::V4(address) if address.octets()[0] == 10);
        client(&old, &new, is_proxy).map(|client| client.map(|client| client.to_string()))
    }

    fn is(client: &str) -> Result<Option<String>, &'static str> {
        Ok(Some(client.to_owned()))
    }

    #[test]
    fn the_client_is_the_last_address_that_is_not_a_trusted_proxy() {
        assert_eq!(client_of(&[], &[]), Ok(None));
        assert_eq!(client_of(&["192.0.2.1"], &[]), is("192.0.2.1:0"));
        assert_eq!(client_of(&["198.51.100.1, 192.0.2.1, 10.0.0.2"], &[]), is("192.0.2.1:0"), "the first one lies");
        assert_eq!(
            client_of(&["198.51.100.1", "192.0.2.1:47,10.0.0.2"], &[]),
            is("192.0.2.1:47"),
            "one field in two lines"
        );
        assert_eq!(client_of(&["10.1.1.1, 10.0.0.2"], &[]), is("10.1.1.1:0"), "a client among the proxies");
        assert_eq!(client_of(&[], &["for=192.0.2.1;proto=https, for=10.0.0.2"]), is("192.0.2.1:0"));
        assert_eq!(client_of(&[], &["proto=https; For=\"[2001:db8::1]:47\""]), is("[2001:db8::1]:47"));
        assert_eq!(client_of(&["2001:db8::1"], &[]), is("[2001:db8::1]:0"));
    }

    #[test]
    fn a_hidden_or_malformed_address_is_no_client() {
        for value in ["unknown", "_hidden", "", "192.0.2.256", "example.org", ",", "192.0.2.1, unknown"] {
            assert_eq!(client_of(&[value], &[]), Ok(None), "{value}");
            assert_eq!(client_of(&[], &[&format!("for={value}")]), Ok(None), "{value}");
        }
        assert_eq!(client_of(&["192.0.2.1, unknown, 10.0.0.2"], &[]), is("10.0.0.2:0"), "the proxy before it");
        assert_eq!(client_of(&[], &["by=192.0.2.1"]), Ok(None));
    }

    #[test]
    fn two_fields_that_disagree_are_refused() {
        assert_eq!(client_of(&["192.0.2.1"], &["for=192.0.2.1:4"]), is("192.0.2.1:4"));
        assert!(client_of(&["192.0.2.1"], &["for=198.51.100.1"]).is_err());
    }
}
