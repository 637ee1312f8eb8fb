//! The PROXY protocol (PROXY header), versions 1 and 2: parses the header that a proxy sends before the client's bytes
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>). It knows no socket.
//!
//! This file finds the end of a header; the crate `proxy-header`, which only sees complete headers, parses it: so the
//! result does not depend on how the bytes are cut.

use core::net::SocketAddr;

use proxy_header::{ParseConfig, Protocol, ProxyHeader, Tlv, Tlvs};

use stdio_bus_core::port::Names;

/// Maximum length of an accepted header in bytes: far above an address and the names that come with it.
pub const LONGEST: usize = 4096;
/// Maximum length of a version 1 header including its line end (section 2.1 of the protocol).
const LONGEST_TEXT: usize = 107;
/// Maximum length of a stored name in characters.
const LONGEST_NAME: usize = 255;

const TEXT: &[u8] = b"PROXY ";
const BINARY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family, and the length of the rest (section 2.2).
const FIXED: usize = 16;

/// What the first bytes of a connection contain.
#[derive(Debug, PartialEq, Eq)]
pub enum HeaderReading {
    /// A prefix of a possible header.
    More,
    /// A header, possibly followed by the client's bytes.
    Header(Header),
    /// No header.
    Other,
    /// An invalid header, and what is wrong with it.
    Malformed(&'static str),
}

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
pub struct Header {
    /// Its length in bytes.
    pub length: usize,
    /// The client's address; none if the proxy speaks for itself, or if it brings a client whose address it does not
    /// know (AF_UNSPEC) or that has no network address (AF_UNIX).
    pub source: Option<SocketAddr>,
    /// The proxy speaks for itself: LOCAL of version 2, which means its health check, and UNKNOWN of version 1, which is
    /// what proxies send for theirs since version 1 has no other word for it.
    pub is_own: bool,
    /// The client's names in its fields.
    pub names: Names,
}

/// Reads the bytes received so far.
pub fn read(bytes: &[u8]) -> HeaderReading {
    let begins = |signature: &[u8]| signature.starts_with(&bytes[..bytes.len().min(signature.len())]);
    if begins(TEXT) {
        text(bytes)
    } else if begins(BINARY) {
        binary(bytes)
    } else {
        HeaderReading::Other
    }
}

fn text(bytes: &[u8]) -> HeaderReading {
    let longest = &bytes[..bytes.len().min(LONGEST_TEXT)];
    match memchr::memchr(b'\n', longest) {
        Some(end) if has_ports_of_digits(&bytes[..end]) => parse(&bytes[..=end]),
        Some(_) => HeaderReading::Malformed(MALFORMED),
        None if longest.len() == LONGEST_TEXT => {
            HeaderReading::Malformed("its PROXY header has no end of line in 107 bytes")
        }
        None => HeaderReading::More,
    }
}

fn binary(bytes: &[u8]) -> HeaderReading {
    let Some(&[.., command, _, high, low]) = bytes.first_chunk::<FIXED>() else { return HeaderReading::More };
    let length = FIXED + usize::from(u16::from_be_bytes([high, low]));
    if length > LONGEST {
        return HeaderReading::Malformed("its PROXY header is longer than 4096 bytes");
    }
    let Some(header) = bytes.get(..length) else { return HeaderReading::More };
    match command {
        // The family and addresses are ignored.
        0x20 => HeaderReading::Header(Header { length, source: None, is_own: true, names: Names::default() }),
        0x21 if fields_of(header).is_some_and(are_whole) => parse(header),
        0x21 => HeaderReading::Malformed(MALFORMED),
        _ => HeaderReading::Malformed("its PROXY header has an unknown version or command"),
    }
}

const MALFORMED: &str = "its PROXY header is malformed";

/// Whether the ports of a version 1 line consist of digits only (section 2.1): `u16::from_str` would accept "+80".
fn has_ports_of_digits(line: &[u8]) -> bool {
    let mut words = line.trim_ascii_end().split(|byte| *byte == b' ').skip(1);
    let has_ports = words.next() != Some(b"UNKNOWN");
    !has_ports || words.skip(2).all(|port| port.iter().all(u8::is_ascii_digit))
}

/// Whether the fields of a version 2 header, each of type, length and value, end exactly where it does (section 2.2),
/// and likewise those within the SSL field.
fn are_whole(mut fields: &[u8]) -> bool {
    /// Its type, and the length of its contents before the subfields: flags and the verification result.
    const SSL: (u8, usize) = (0x20, 5);
    while let [kind, rest @ ..] = fields {
        let value = rest.split_at_checked(2).and_then(|(length, rest)| {
            let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            rest.split_at_checked(length)
        });
        let Some((value, behind)) = value else { return false };
        if *kind == SSL.0 && !value.get(SSL.1..).is_some_and(are_whole) {
            return false;
        }
        fields = behind;
    }
    true
}

/// The fields of a version 2 header, which follow its addresses.
fn fields_of(header: &[u8]) -> Option<&[u8]> {
    let addresses = match header.get(FIXED - 3)? >> 4 {
        1 => 2 * (4 + 2),
        2 => 2 * (16 + 2),
        3 => 2 * 108,
        _ => 0,
    };
    header.get(FIXED + addresses..)
}

/// Parses a complete header.
fn parse(bytes: &[u8]) -> HeaderReading {
    match ProxyHeader::parse(bytes, ParseConfig::default()) {
        Ok((header, length)) if length == bytes.len() => {
            let address = header.proxied_address().filter(|address| address.protocol == Protocol::Stream);
            HeaderReading::Header(Header {
                length,
                source: address.map(|address| address.source),
                is_own: bytes.starts_with(TEXT) && address.is_none(),
                names: names(header.tlvs()),
            })
        }
        Ok(_) | Err(_) => HeaderReading::Malformed(MALFORMED),
    }
}

/// The names in a header. An unreadable one is omitted.
fn names(fields: Tlvs<'_>) -> Names {
    let mut names = Names::default();
    for field in fields.flatten() {
        match field {
            Tlv::Authority(name) => names.server_name = printable(&name),
            Tlv::UniqueId(id) => names.unique_id = printable(&String::from_utf8_lossy(&id)),
            // The names in an unverified certificate can be forged.
            Tlv::Ssl(ssl) if ssl.verify() == 0 && (ssl.client_cert_conn() || ssl.client_cert_sess()) => {
                // It owns sessions, and different names can become equal when they are cut or cleaned.
                names.common_name = ssl.cn().and_then(|name| printable(name).filter(|kept| **kept == *name));
            }
            _ => {}
        }
    }
    names
}

fn printable(name: &str) -> Option<Box<str>> {
    let visible = |letter: char| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter };
    (!name.is_empty()).then(|| name.chars().take(LONGEST_NAME).map(visible).collect::<String>().into())
}

#[cfg(test)]
mod tests {
    use proxy_header::{ProxiedAddress, SslInfo};

    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    /// A version 2 header with these fields after its addresses.
    fn binary<'a>(source: &str, destination: &str, fields: impl IntoIterator<Item = Tlv<'a>>) -> Vec<u8> {
        let addresses = ProxiedAddress::stream(address(source), address(destination));
        let mut bytes = Vec::new();
        ProxyHeader::with_tlvs(Some(addresses), fields).encode_v2(&mut bytes).expect("it fits");
        bytes
    }

    fn ssl(verified: u32, shown: bool, name: &'static str) -> Tlv<'static> {
        let mut ssl = SslInfo::new(true, shown, shown, verified);
        ssl.append_tlv(Tlv::SslVersion("TLSv1.3".into()));
        ssl.append_tlv(Tlv::SslCn(name.into()));
        Tlv::Ssl(ssl)
    }

    fn header(bytes: &[u8]) -> Header {
        match read(bytes) {
            HeaderReading::Header(header) => header,
            other => panic!("{other:?}: {}", bytes.escape_ascii()),
        }
    }

    fn wrong(bytes: &[u8]) -> &'static str {
        match read(bytes) {
            HeaderReading::Malformed(why) => why,
            other => panic!("{other:?}: {}", bytes.escape_ascii()),
        }
    }

    /// Headers of both versions.
    fn headers() -> Vec<Vec<u8>> {
        let fields = [Tlv::Authority("bus.example".into()), Tlv::UniqueId(b"A1".into()), ssl(0, true, "alice")];
        vec![
            b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 9000\r\n".to_vec(),
            b"PROXY TCP6 2001:db8::7 2001:db8::1 40000 9000\r\n".to_vec(),
            b"PROXY UNKNOWN\r\n".to_vec(),
            b"PROXY UNKNOWN ffff::1 ::1 1 2\r\n".to_vec(),
            binary("192.0.2.7:40000", "198.51.100.1:9000", []),
            binary("[2001:db8::7]:40000", "[2001:db8::1]:9000", fields),
            b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".to_vec(),
            b"\r\n\r\n\0\r\nQUIT\n\x20\xee\0\x03abc".to_vec(),
        ]
    }

    #[test]
    fn a_header_says_where_the_client_is() {
        let sources: Vec<_> = headers().iter().map(|bytes| header(bytes).source).collect();
        let (v4, v6) = (Some(address("192.0.2.7:40000")), Some(address("[2001:db8::7]:40000")));
        assert_eq!(sources, [v4, v6, None, None, v4, v6, None, None]);
    }

    #[test]
    fn only_local_and_unknown_mean_the_proxy_itself_and_other_headers_without_an_address_bring_a_client() {
        let unix = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x31\0\xdc"[..], &[b'x'; 216], b"\x05\0\x01u"].concat();
        assert_eq!((header(&unix).source, header(&unix).names.unique_id.as_deref()), (None, Some("u")));
        let unspecified = b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\x04\x05\0\x01u";
        assert_eq!(header(unspecified).source, None);
        assert_eq!((header(&unix).is_own, header(unspecified).is_own), (false, false));
        let own: Vec<bool> = headers().iter().map(|bytes| header(bytes).is_own).collect();
        assert_eq!(own, [false, false, true, true, false, false, true, true]);
    }

    #[test]
    fn every_prefix_of_a_header_needs_more_and_bytes_after_it_are_left() {
        for bytes in headers() {
            for end in 0..bytes.len() {
                assert_eq!(read(&bytes[..end]), HeaderReading::More, "{}", bytes[..end].escape_ascii());
            }
            for rest in [&b"{\"id\":1}\n"[..], b"\n", b"\r\n\r\n", b"PROXY UNKNOWN\r\n", &[0; 5000]] {
                assert_eq!(header(&[&bytes, rest].concat()), header(&bytes));
            }
            assert_eq!(header(&bytes).length, bytes.len());
        }
    }

    #[test]
    fn names_of_the_client_are_read_if_the_proxy_vouches_for_them() {
        let names = header(&headers()[5]).names;
        let seen = [&names.common_name, &names.server_name, &names.unique_id].map(|name| name.as_deref());
        assert_eq!(seen, [Some("alice"), Some("bus.example"), Some("A1")]);
        let name = |ssl| header(&binary("192.0.2.7:1", "192.0.2.1:2", [ssl])).names.common_name;
        assert_eq!(name(ssl(0, true, "bob")).as_deref(), Some("bob"));
        assert_eq!((name(ssl(19, true, "mallory")), name(ssl(0, false, "mallory"))), (None, None));
    }

    #[test]
    fn a_name_is_truncated_and_has_no_control_characters() {
        let long = "x".repeat(1000);
        let fields = [Tlv::Authority("a\n\u{1b}[31m".into()), Tlv::UniqueId(long.as_bytes().into())];
        let names = header(&binary("192.0.2.7:1", "192.0.2.1:2", fields)).names;
        assert_eq!(names.server_name.as_deref(), Some("a\u{fffd}\u{fffd}[31m"));
        assert_eq!(names.unique_id.as_deref(), Some(&long[..255]));
        let broken = [Tlv::Custom(2, b"\xff\xfe".into()), Tlv::UniqueId(b"id".into())];
        let names = header(&binary("192.0.2.7:1", "192.0.2.1:2", broken)).names;
        assert_eq!((names.server_name, names.unique_id.as_deref()), (None, Some("id")));
    }

    #[test]
    fn a_non_header_is_detected_at_the_first_differing_byte() {
        for bytes in [&b"{"[..], b"P{", b"PROXX", b"PROXYX", b"\r\n\r\n{", b"\n", b"GET /", b"\0"] {
            assert_eq!(read(bytes), HeaderReading::Other, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_header_that_cannot_be_used_says_why() {
        for bytes in [
            &b"PROXY \r\n"[..],
            b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 9000\n",
            b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 90000\r\n",
            b"PROXY TCP4 192.0.2.7 198.51.100.1 40000\r\n",
            b"PROXY TCP4 2001:db8::7 2001:db8::1 40000 9000\r\n",
            b"PROXY UDP4 192.0.2.7 198.51.100.1 40000 9000\r\n",
            b"PROXY UNKNOWN\rx\r\n",
            b"PROXY TCP4 192.0.2.7 198.51.100.1 +40000 9000\r\n",
            b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 +9000\r\n",
            b"PROXY TCP6 2001:db8::7 2001:db8::1 40000 9000 \r\n",
            // A field that extends beyond the header, one without its length, and those within the SSL field.
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x10\xc0\0\x02\x07\xc6\x33\x64\x01\0\x01\0\x02\x02\0\x02x",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0e\xc0\0\x02\x07\xc6\x33\x64\x01\0\x01\0\x02\x02\0",
            b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\x07\x20\0\x04\x01\0\0\0",
            b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\x0c\x20\0\x09\x01\0\0\0\0\x22\0\x02x",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x04\xc0\0\x02\x07",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x99\0\0",
        ] {
            assert_eq!(wrong(bytes), "its PROXY header is malformed", "{}", bytes.escape_ascii());
        }
        assert!(wrong(&[b"PROXY ", &[b'x'; 200][..]].concat()).contains("no end of line in 107 bytes"));
        assert!(wrong(&[b"PROXY UNKNOWN ", &[b'x'; 100][..], b"\r\n"].concat()).contains("no end of line in 107"));
        assert!(wrong(b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0").contains("unknown version or command"));
        assert!(wrong(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x0f\xf1").contains("longer than 4096 bytes"));
    }

    #[test]
    fn a_common_name_that_cannot_be_kept_whole_is_omitted_since_two_could_become_one_owner() {
        let name =
            |name: &'static str| header(&binary("192.0.2.7:1", "192.0.2.1:2", [ssl(0, true, name)])).names.common_name;
        let longest: &'static str = "x".repeat(LONGEST_NAME).leak();
        assert_eq!(name(longest).as_deref(), Some(longest));
        let longer: &'static str = "x".repeat(LONGEST_NAME + 1).leak();
        assert_eq!([longer, "a\u{1}", "a\u{2}"].map(name), [None, None, None]);
    }
}
