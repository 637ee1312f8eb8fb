//! The names of hosts in `Host` and `Origin`: which of them are this machine, and which of them may lead anywhere, since
//! the owner of a name can point it at any address (DNS rebinding).

use std::net::IpAddr;

/// Whether a host, an IPv6 address without brackets, is this machine wherever it is resolved.
pub fn is_loopback(host: &str) -> bool {
    // Most local clients use one of the first two.
    let is_name = host == "127.0.0.1" || host == "localhost" || host.ends_with(".localhost");
    is_name || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// The host in `Host`, without its port; an IPv6 address without brackets.
pub(super) fn host_of(field: &str) -> &str {
    let host = match field.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => field,
    };
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Whether `Host` names this machine.
pub fn names_this_machine(field: &str) -> bool {
    let host = host_of(field);
    is_loopback(host) || is_loopback(&host.to_ascii_lowercase())
}

/// Whether `Host` is safe from DNS rebinding: the owner of a name can point it at any address.
pub(super) fn cannot_be_rebound(field: &str) -> bool {
    let host = host_of(field);
    host.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}

/// Whether an origin has exactly the host and port of `Host`. Whether the page uses TLS is unknown here.
pub(super) fn is_page_of(origin: &str, field: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let default = match scheme.to_ascii_lowercase().as_str() {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let [one, other] = [authority, field].map(|text| text.strip_suffix(default).unwrap_or(text));
    one.eq_ignore_ascii_case(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in
            ["localhost:9000", "LOCALHOST", "a.localhost:1", "127.0.0.1:9000", "127.9.9.9", "[::1]:9000", "[::1]"]
        {
            assert!(names_this_machine(host), "{host}");
        }
        for host in
            ["evil.example:9000", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1:9000", "", ":9000"]
        {
            assert!(!names_this_machine(host), "{host}");
        }
    }

    #[test]
    fn a_page_has_the_same_origin_if_host_and_port_are_equal() {
        for (origin, host) in [
            ("http://127.0.0.1:9000", "127.0.0.1:9000"),
            ("HTTP://LocalHost:9000", "localhost:9000"),
            ("http://[::1]:9000", "[::1]:9000"),
            ("http://bus.example", "bus.example:80"),
            ("https://bus.example", "bus.example"),
            ("https://bus.example:443", "bus.example"),
        ] {
            assert!(is_page_of(origin, host), "{origin} {host}");
        }
        for (origin, host) in [
            ("http://127.0.0.1:8000", "127.0.0.1:9000"),
            ("http://127.0.0.1", "127.0.0.1:9000"),
            ("http://evil.example:9000", "127.0.0.1:9000"),
            ("file://127.0.0.1:9000", "127.0.0.1:9000"),
            ("127.0.0.1:9000", "127.0.0.1:9000"),
            ("null", "null"),
        ] {
            assert!(!is_page_of(origin, host), "{origin} {host}");
        }
        for host in ["127.0.0.1:9000", "[::1]:9000", "192.0.2.7", "LOCALHOST"] {
            assert!(cannot_be_rebound(host), "{host}");
        }
        for host in ["evil.example:9000", "localhost.evil.example", "127.0.0.1.evil.example", ""] {
            assert!(!cannot_be_rebound(host), "{host}");
        }
    }
}
