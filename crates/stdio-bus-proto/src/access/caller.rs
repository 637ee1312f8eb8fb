//! The sender of a request over HTTP, as its head says: the host that it asks for, its page, its token, and the client
//! that a proxy says it has. Nothing of it is believed yet; [`super::Policy`] decides.

use std::fmt;

use super::refusal::Refusal;
use crate::http1::{Request, ascii};

/// A request's sender and destination.
#[derive(Debug, PartialEq, Eq)]
pub struct Caller<'b> {
    /// `Host`: a name or an address, with an optional port. Only HTTP/1.0 may omit it.
    pub host: Option<&'b str>,
    /// `Origin`, if a browser page sent the request.
    pub origin: Option<&'b str>,
    /// The token of `Authorization: Bearer` or of the subprotocol `bearer.TOKEN`: visible ASCII. Other credentials count
    /// as none.
    pub token: Option<Token<'b>>,
    /// The values of `X-Forwarded-For`, one per field line. Any client can forge them.
    pub forwarded_for: Vec<&'b [u8]>,
    /// The values of `Forwarded` (RFC 7239), one per field line. Any client can forge them.
    pub forwarded: Vec<&'b [u8]>,
}

impl<'b> Caller<'b> {
    /// Reads them from a head; the token may come from elsewhere.
    ///
    /// # Errors
    /// The fields are ambiguous or malformed.
    pub fn of(head: &Request<'b>, other_token: Option<&'b str>) -> Result<Self, Refusal> {
        if head.host == Some("") {
            return Err(Refusal::bad("Host is not a host and a port"));
        }
        let only = |name: &'static str, twice: &'static str| head.fields.only(name).map_err(|_| Refusal::bad(twice));
        let origin = only("origin", "more than one Origin")?;
        let origin =
            origin.map(|origin| ascii(origin).ok_or_else(|| Refusal::bad("Origin is not ASCII"))).transpose()?;
        let credentials = only("authorization", "more than one Authorization")?;
        let token = match (credentials.map(read_credentials).transpose()?.flatten(), other_token) {
            (Some(_), Some(_)) => {
                return Err(Refusal::bad("a token in Authorization and another one as a subprotocol"));
            }
            (one, other) => one.or(other),
        };
        Ok(Self {
            host: head.host,
            origin,
            token: token.map(Token),
            forwarded_for: head.fields.values("x-forwarded-for").collect(),
            forwarded: head.fields.values("forwarded").collect(),
        })
    }
}

/// A client's credential: visible ASCII. It is never shown in logs or debug output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token<'b>(pub &'b str);

impl fmt::Debug for Token<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Token({} bytes)", self.0.len())
    }
}

/// The token of `Authorization: Bearer` (RFC 6750).
fn read_credentials(value: &[u8]) -> Result<Option<&str>, Refusal> {
    let Some((scheme, rest)) = value.split_at_checked("bearer".len()) else { return Ok(None) };
    if !scheme.eq_ignore_ascii_case(b"bearer") || rest.first().is_some_and(|byte| *byte != b' ') {
        return Ok(None);
    }
    let token = ascii(rest.trim_ascii()).filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
    let token = token.ok_or_else(|| Refusal::bad("the token of Authorization is not visible ASCII"))?;
    Ok(Some(token).filter(|token| !token.is_empty()))
}
