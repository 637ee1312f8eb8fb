//! Lines that are decoded: what a client or a worker says, but for answers. Nothing here knows the bus.
use alloc::borrow::Cow;
use alloc::format;

use ndjson_scan::{Line, Window};

use crate::id::Spelled;
use crate::message::{Refusal, Verb, request_id, session_name, verb};
use crate::peer::{ClientKey, WorkerKey};
use crate::report::Reason;
use crate::session::access::{Naming, Place};
use crate::settings::MAX_SESSION_ID_LEN;

/// A request or a notification of a client, decoded.
pub(super) struct Message<'a> {
    pub client: ClientKey,
    pub window: Window<'a>,
    pub line: &'a Line,
    pub id: Option<Spelled>,
    pub verb: Verb,
}

/// A request or a notification of a worker, decoded.
pub(super) struct Said<'a> {
    pub worker: WorkerKey,
    pub window: Window<'a>,
    pub line: &'a Line,
    pub id: Option<Spelled>,
}

/// The sessions that a message names: the one that decides its way, where that stands, and the one in the params, if that
/// is another one.
type Names<'a> = (Cow<'a, [u8]>, Place, Option<Cow<'a, [u8]>>);

impl<'a> Message<'a> {
    pub(super) fn decode(client: ClientKey, window: Window<'a>, line: &'a Line) -> Result<Self, Refusal> {
        let id = request_id(window, line)?;
        let verb = match verb(window, line) {
            // Without an answer nothing is given away.
            verb if verb.asks_for_session() && id.is_none() => Verb::Other,
            verb => verb,
        };
        Ok(Self { client, window, line, id, verb })
    }

    /// The sessions that it names.
    pub(super) fn names(&self) -> Result<Option<Names<'a>>, Refusal> {
        let top = session_name(self.window, self.line.session);
        let inner = session_name(self.window, self.line.params_session);
        if [&top, &inner].into_iter().flatten().any(|name| name.len() > MAX_SESSION_ID_LEN) {
            let text = format!("the sessionId is longer than {MAX_SESSION_ID_LEN} bytes");
            return Err(Refusal(Reason::SessionIdTooLong, text));
        }
        Ok(match (top, inner) {
            (Some(top), Some(inner)) if top != inner => Some((top, Place::Leading, Some(inner))),
            (_, Some(inner)) => Some((inner, Place::Params, None)),
            (Some(top), None) => Some((top, Place::Alone, None)),
            (None, None) => None,
        })
    }

    pub(super) fn naming<'n>(&self, name: &'n [u8], place: Place) -> Naming<'n> {
        Naming { client: self.client, verb: self.verb, place, name }
    }
}
