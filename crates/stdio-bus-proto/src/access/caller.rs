//! The sender of a request over HTTP, as its head says: the host that it asks for, its page, its token, and the client
//! that a proxy says it has. Nothing of it is believed yet; [`super::Policy`] decides.

use std::fmt;

use super::identity::{Claims, Identity};
use super::refusal::Refusal;
use crate::http1::{Error, Request, Status, ascii};

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
    /// The name and the groups that a proxy gives the client. Any client can forge them.
    pub claims: Claims<'b>,
}

impl<'b> Caller<'b> {
    /// Reads them from a head; the token may come from elsewhere. `identity` says which field has the client's name.
    ///
    /// # Errors
    /// The fields are ambiguous or malformed.
    pub fn of(head: &Request<'b>, other_token: Option<&'b str>, identity: Option<&Identity>) -> Result<Self, Refusal> {
        if head.host == Some("") {
            return Err(Refusal::bad("Host is not a host and a port"));
        }
        let origin = page(head)?;
        let own_token = bearer(head)?.map(|token| {
            let is_visible = |token: &&str| token.bytes().all(|byte| byte.is_ascii_graphic());
            let token = ascii(token).filter(is_visible);
            token.ok_or_else(|| Refusal::bad("the token of Authorization is not visible ASCII"))
        });
        let token = match (own_token.transpose()?, other_token) {
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
            claims: identity.map(|identity| identity.claims(&head.fields)).unwrap_or_default(),
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

/// The page that a browser says the request is of (`Origin`).
///
/// # Errors
/// There are several, or it is not ASCII.
pub fn page<'b>(head: &Request<'b>) -> Result<Option<&'b str>, Error> {
    let origin = head.fields.only("origin").map_err(|_| bad("more than one Origin"))?;
    origin.map(|origin| ascii(origin).ok_or(bad("Origin is not ASCII"))).transpose()
}

/// The token of `Authorization: Bearer` (RFC 6750), whatever bytes it has. Other credentials count as none.
///
/// # Errors
/// There are several.
pub fn bearer<'b>(head: &Request<'b>) -> Result<Option<&'b [u8]>, Error> {
    let credentials = head.fields.only("authorization").map_err(|_| bad("more than one Authorization"))?;
    let Some((scheme, rest)) = credentials.and_then(|value| value.split_at_checked("bearer".len())) else {
        return Ok(None);
    };
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer") && rest.first().is_none_or(|byte| *byte == b' ');
    Ok(Some(rest.trim_ascii()).filter(|token| is_bearer && !token.is_empty()))
}

fn bad(why: &'static str) -> Error {
    Error { status: Status::BadRequest, why }
}
