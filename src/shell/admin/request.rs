//! An admin request: what is kept of a [`crate::http1`] request until it is answered.

use std::time::Duration;

use crate::access::{bearer, page};
use crate::http1::{self, Error, Framing, Limits, Method, Status};

/// The limits of a request. None needs a body: its parameters are in the query.
pub(super) const LIMITS: Limits = Limits {
    body: 4 * 1024,
    head_time: Duration::from_secs(10),
    body_time: Duration::from_secs(10),
    idle_time: Duration::from_secs(60),
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdminRequest {
    pub method: Method,
    /// The path verbatim, without the query.
    pub path: String,
    /// The decoded query parameters, in order.
    pub query: Vec<(String, String)>,
    pub host: Option<String>,
    pub origin: Option<String>,
    /// `Sec-Fetch-Site`: the browser's relation of the page to this origin.
    pub fetch_site: Option<String>,
    /// The token of `Authorization: Bearer`.
    pub bearer: Option<Vec<u8>>,
    /// It has a body, which is not looked at.
    pub has_body: bool,
}

impl AdminRequest {
    /// Reads a request's head.
    ///
    /// # Errors
    /// It is invalid, and the connection cannot continue.
    pub(super) fn of(head: &http1::Request<'_>) -> Result<Self, Error> {
        let bad = |why| Error { status: Status::BadRequest, why };
        let only = |name, twice| match head.fields.only(name) {
            Ok(value) => Ok(value.map(|value| String::from_utf8_lossy(value).into_owned())),
            Err(_) => Err(bad(twice)),
        };
        if only("expect", "more than one Expect")?.is_some() {
            return Err(Error { status: Status::ExpectationFailed, why: "send the body at once, or none" });
        }
        let pairs = head.query.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        Ok(Self {
            method: head.method,
            path: head.path.to_owned(),
            query: pairs.map(|(name, value)| (decoded(name), decoded(value))).collect(),
            host: head.host.map(str::to_owned),
            origin: page(head)?.map(str::to_owned),
            fetch_site: only("sec-fetch-site", "more than one Sec-Fetch-Site")?,
            bearer: bearer(head)?.map(<[u8]>::to_vec),
            has_body: head.body != Framing::Length(0),
        })
    }

    /// The first value of a query parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Decodes percent-encoding; invalid escapes are kept.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match (first, after) {
            (b'+', _) => bytes.push(b' '),
            (b'%', [high, low, ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => {
                    bytes.push(high << 4 | low);
                    rest = &after[2..];
                }
                _ => bytes.push(b'%'),
            },
            _ => bytes.push(first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::http1::HeadReader;

    /// Parses the head at the front of a text.
    pub(in crate::shell::admin) fn read(text: &str) -> Result<AdminRequest, Error> {
        let head = HeadReader::default().read(text.as_bytes())?;
        AdminRequest::of(&head.unwrap_or_else(|| panic!("{text:?} has no end")))
    }

    fn whole(text: &str) -> AdminRequest {
        read(text).unwrap_or_else(|error| panic!("{text:?}: {error:?}"))
    }

    #[test]
    fn a_request_says_what_it_asks_for_and_whether_another_one_follows() {
        let request = whole("GET /readyz?pool=a%20b+c&x HTTP/1.1\r\nHost: h\r\nAuthorization: bearer t\r\n\r\nGET");
        assert_eq!((request.method, request.path.as_str()), (Method::Get, "/readyz"));
        assert_eq!(
            (request.parameter("pool"), request.parameter("x"), request.parameter("y")),
            (Some("a b c"), Some(""), None)
        );
        assert_eq!(request.bearer.as_deref(), Some(&b"t"[..]));
    }

    #[test]
    fn a_check_of_haproxy_is_understood() {
        let check = whole("OPTIONS / HTTP/1.0\r\n\r\n");
        assert_eq!((check.method, check.path.as_str()), (Method::Options, "/"));
        let check = whole("GET /readyz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!(check.host, None);
    }

    #[test]
    fn unsupported_requests_are_refused_as_http_requires() {
        let code = |fields: &str| {
            let read = read(&format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
            read.map_or_else(|error| error.status.code(), |_| 200)
        };
        assert_eq!((code(""), code("Content-Length: 3\r\n")), (200, 200));
        assert_eq!(code("Expect: 100-continue\r\n"), 417);
        for field in ["Authorization", "Origin", "Sec-Fetch-Site"] {
            assert_eq!(code(&format!("{field}: a\r\n{field}: a\r\n")), 400, "{field}");
        }
    }

    #[test]
    fn an_invalid_escape_is_kept() {
        assert_eq!(decoded("a%2Fb+%zz%4"), "a/b %zz%4");
    }
}
