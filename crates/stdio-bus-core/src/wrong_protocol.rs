//! Recognises other protocols by their first bytes: a peer that speaks one of them to a listener or a bridge, or from a
//! worker, usually has the wrong address, and gets an error that names its protocol. Only the first bytes are examined,
//! and only as much is reported as names the protocol.

use alloc::string::{String, ToString};

/// The common name of a protocol that begins like this, if it is often found at a wrong port.
pub fn protocol(bytes: &[u8]) -> Option<&'static str> {
    const OF_HTTP: [&[u8]; 12] = [
        b"GET ",
        b"POST ",
        b"PUT ",
        b"HEAD ",
        b"DELETE ",
        b"OPTIONS ",
        b"PATCH ",
        b"CONNECT ",
        b"PRI * HTTP/",
        b"HTTP/",
        // The answer of some servers to a request without a version.
        b"<!DOCTYPE ",
        b"<html",
    ];
    let begins = |with: &[&[u8]]| with.iter().any(|one| bytes.starts_with(one));
    let begins_in_any_case =
        |name: &[u8]| bytes.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name));
    Some(match bytes {
        _ if begins(&OF_HTTP) => HTTP,
        // A handshake, or an alert, of any version (RFC 8446, section 5.1).
        [0x15 | 0x16, 3, 0..=4, ..] => TLS,
        _ if begins_in_any_case(b"content-length:") || begins_in_any_case(b"content-type:") => HEADERS,
        _ if begins(&[b"SSH-"]) => "SSH",
        _ if begins(&[b"EHLO ", b"HELO ", b"220 ", b"220-"]) => "SMTP or FTP",
        _ if begins(&[b"PING\r\n", b"+PONG\r\n", b"-ERR ", b"-NOAUTH ", b"-DENIED "]) => "Redis",
        [b'*', b'1'..=b'9', b'\r', b'\n', b'$', ..] => "Redis",
        [0, 0, 0, 8, 4, 210, 22, 47, ..] => "PostgreSQL",
        [0xef, 0xbb, 0xbf, ..] => "a byte order mark",
        _ => return None,
    })
}

/// Requests and responses of HTTP.
pub const HTTP: &str = "HTTP";
/// Records of TLS.
pub const TLS: &str = "TLS";
/// Headers before each message, as in the Language Server Protocol.
pub const HEADERS: &str = "headers before a message (as in LSP)";

/// The first line of a protocol, as far as it may be shown: URLs without their query, and binary data only in part.
pub fn begin(bytes: &[u8]) -> String {
    let is_binary = |byte: &u8| !matches!(byte, b' '..=b'~' | b'\t');
    let is_url = protocol(bytes) == Some(HTTP);
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n') || is_url && *byte == b'?';
    let line = bytes.split(is_end).next().unwrap_or_default();
    let longest = if line.iter().any(is_binary) { 8 } else { 64 };
    line[..line.len().min(longest)].escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_is_known_by_its_first_bytes() {
        for (bytes, name) in [
            (&b"GET /acp HTTP/1.1\r\n"[..], Some(HTTP)),
            (b"HTTP/1.1 400 Bad Request\r\n", Some(HTTP)),
            (b"PRI * HTTP/2.0\r\n", Some(HTTP)),
            (b"\x16\x03\x01\x02\x00\x01", Some(TLS)),
            (b"\x15\x03\x03\x00\x02\x02\x46", Some(TLS)),
            (b"content-length: 20\r\n", Some(HEADERS)),
            (b"SSH-2.0-OpenSSH_9.2p1\r\n", Some("SSH")),
            (b"220 mail.example ESMTP\r\n", Some("SMTP or FTP")),
            (b"*1\r\n$4\r\nPING\r\n", Some("Redis")),
            (b"GETTING started", None),
            (b"{\"id\":1}", None),
            (b"*", None),
            (b"", None),
        ] {
            assert_eq!(protocol(bytes), name, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn only_as_much_is_shown_as_names_the_protocol() {
        assert_eq!(begin(b"GET /acp?token=secret HTTP/1.1\r\nCookie: secret\r\n"), "GET /acp");
        assert_eq!(begin(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfcsecret"), "\\x16\\x03\\x01\\x02\\x00\\x01\\x00\\x01");
        assert_eq!(begin(&[b'x'; 1000]).len(), 64);
    }
}
