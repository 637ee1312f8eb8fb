//! The audit trail: a line of the log for each action of an operator, also for one that is refused, at any level of the
//! log: who it was, what was asked for, and what has changed.

use std::path::Path;

use tracing::Level;

use super::access::Origin;
use super::request::AdminRequest;
use super::response::{AdminBody, Response};
use crate::bus::port::Place;
use crate::shell::log;
use crate::shell::log_line::Entry;
use crate::small_file;

/// The users of this machine (passwd(5)). Those of a directory service are not looked up, since that may take its time:
/// of them the number is known.
const USERS: &str = "/etc/passwd";

/// Who asks.
pub(super) struct Who {
    pub place: Place,
    pub origin: Origin,
}

/// Writes the line of an action that was answered like this.
pub(super) fn note(who: &Who, request: &AdminRequest, answer: &Response) {
    let is_done = (200..300).contains(&answer.status.code());
    let mut entry = Entry::new(log::look(), if is_done { Level::INFO } else { Level::WARN });
    let said = match &answer.body {
        AdminBody::Whole(text) => String::from_utf8_lossy(text).trim_end().to_owned(),
        AdminBody::Pieces(_) => String::new(),
    };
    let what = if is_done { "an operator" } else { "an operator is refused" };
    entry.message(format_args!("{what}: {said}")).word("reason", "operator");
    let parameters: Vec<String> = request.query.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mark = if parameters.is_empty() { "" } else { "?" };
    entry.chosen("action", &format!("{}{mark}{}", request.path.trim_start_matches('/'), parameters.join("&")));
    add_who(&mut entry, who, request, is_done);
    log::note(&entry.line());
}

fn add_who(entry: &mut Entry, who: &Who, request: &AdminRequest, is_done: bool) {
    match who.place {
        Place::Process { pid, user } => {
            if pid != 0 {
                entry.number("pid", pid);
            }
            entry.number("uid", user);
            let users = small_file::read(Path::new(USERS)).unwrap_or_default();
            if let Some(name) = name_of(user, &users) {
                entry.chosen("user", name);
            }
        }
        place @ Place::Address(_) => _ = entry.shown("from", place),
        Place::Inherited => {}
    }
    // There is one token, whose file is the name that operators know it by.
    if is_done && who.origin != Origin::Trusted && request.bearer.is_some() {
        entry.word("token", "admin.token_file");
    }
}

/// The name of a user in the lines of passwd(5).
fn name_of(user: u32, users: &[u8]) -> Option<&str> {
    str::from_utf8(users).ok()?.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(user)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_the_number() {
        let users =
            b"root:x:0:0:root:/root:/bin/sh\n# no user\n\nalice:x:1000:100:,,,:/home/alice:/bin/sh\nbob:x:10:100::/:\n";
        assert_eq!((name_of(0, users), name_of(1000, users)), (Some("root"), Some("alice")));
        assert_eq!((name_of(100, users), name_of(7, users), name_of(0, b"")), (None, None, None));
    }
}
