//! The bridge's own answers to requests that the daemon will not answer.

use std::borrow::Cow;

use serde_json::json;

use super::daemon::Options;
use super::failure::{Ending, Failure};
use crate::bus::reply::{Delivered, error_response};
use crate::bus::report::Reason;

const REFUSED: &str = "the daemon refuses the connection";

const UNREACHABLE: &str = "the daemon cannot be reached";

/// The error that answers a request.
pub(super) struct LinkRefusal {
    code: i32,
    message: Cow<'static, str>,
    reason: &'static str,
    pub(super) delivered: Delivered,
    /// Parts of `data`, which is all that some editors show.
    address: String,
    cause: String,
    remedy: String,
}

impl LinkRefusal {
    /// For the end of a connection.
    pub(super) fn over(options: &Options, ending: &Ending, delivered: Delivered) -> Self {
        let (code, reason, what) = match ending {
            Ending::Refused(_) => (-32018, "daemon_refused", REFUSED),
            _ if ending.is_elsewhere() => (-32018, "daemon_unreachable", UNREACHABLE),
            _ if ending.is_gone() => (-32023, "daemon_gone", "the connection to the daemon was lost"),
            _ => (-32024, "daemon_closed", "the connection to the daemon was closed"),
        };
        let message = ending.details().map_or(what.into(), |why| format!("{what}: {why}").into());
        let (address, cause, remedy) = (options.daemon.to_string(), ending.to_string(), ending.remedy(options));
        Self { code, message, reason, delivered, address, cause, remedy }
    }

    /// For a connection that could not be established.
    pub(super) fn of(options: &Options, failure: &Failure) -> Self {
        let (message, reason) = match failure {
            Failure::Refused(_) => (REFUSED, "daemon_refused"),
            _ => (UNREACHABLE, "daemon_unreachable"),
        };
        Self {
            code: -32018,
            message: format!("{message}: {failure}").into(),
            reason,
            delivered: Delivered::No,
            address: options.daemon.to_string(),
            cause: failure.to_string(),
            remedy: failure.remedy(options).trim_end().to_owned(),
        }
    }

    /// For a connection that the daemon closed because of this line.
    pub(super) fn too_long(options: &Options, ending: &Ending, length: u64, delivered: Delivered) -> Self {
        let message = format!("this line is too long for the daemon: {length} bytes").into();
        let reason = Reason::ClientLineTooLong;
        Self { code: reason.code(), message, reason: reason.name(), ..Self::over(options, ending, delivered) }
    }

    pub(super) fn error(&self, id: &[u8]) -> Vec<u8> {
        let mut data = json!({
            "reason": self.reason,
            "address": self.address,
            "cause": self.cause,
            "remedy": self.remedy,
        });
        match self.delivered {
            Delivered::Yes => data["delivered"] = true.into(),
            Delivered::No => data["delivered"] = false.into(),
            Delivered::Nothing => {}
        }
        let mut line = error_response(id, None, self.code, &self.message, Some(data.to_string().as_bytes()));
        line.push(b'\n');
        line
    }
}
