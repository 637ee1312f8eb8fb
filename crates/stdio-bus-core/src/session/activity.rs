//! Whether a session is active without a pending request. In version 2 of ACP `session/prompt` is answered at once, and
//! the turn ends with a `session/update` whose `sessionUpdate` is `state_update` and whose `state` is `idle`.
//!
//! Such a session counts as work when a daemon drains and when a worker is replaced. Only workers that were asked for
//! version 2 are watched. A line is only searched for these words as keys and values.

use crate::cancellation::Dialect;
use crate::ctx::Ctx;
use crate::fleet::pool::Pools;
use crate::fleet::rollout::notice_end_of_work;
use crate::message::{Parsed, session_named, text_after};
use crate::peer::WorkerKey;
use crate::session::children::note_subagents;
use crate::session::table::Sessions;
use crate::shutdown::watch_silence;

/// Whether a line reports that its session is idle, or that it is not; none if it reports neither.
pub(crate) fn reported_idle(line: &[u8]) -> Option<bool> {
    if !text_after(line, "\"sessionUpdate\"")?.starts_with(b"\"state_update\"") {
        return None;
    }
    Some(text_after(line, "\"state\"")?.starts_with(b"\"idle\""))
}

/// Whether an `initialize` asks for a version of ACP in which turns outlive their requests.
fn asks_for_version_2(line: &[u8]) -> bool {
    text_after(line, "\"protocolVersion\"")
        .is_some_and(|version| matches!(version, [b'2'..=b'9', ..] | [b'1', b'0'..=b'9', ..]))
}

impl Pools {
    /// A worker is sent this `initialize` of a client.
    #[cold]
    pub(crate) fn note_initialize(&mut self, ctx: &mut Ctx, worker: WorkerKey, line: &[u8]) {
        note_subagents(self, ctx, worker, line);
        let Some(worker) = ctx.workers.get_mut(worker) else { return };
        worker.updates_mut().ask_for_states(asks_for_version_2(line));
        self[worker.fleet()].note_dialect(Dialect::of_initialize(line));
    }
}

impl Sessions {
    /// A worker sends this line, whether its session has an owner or not.
    pub(crate) fn note_activity(&mut self, ctx: &mut Ctx, worker: WorkerKey, line: Parsed<'_>) {
        if ctx.workers.get(worker).is_none_or(|worker| !worker.updates().reports_states()) {
            return;
        }
        let session = session_named(line).and_then(|name| self.of_worker(worker, &name));
        let Some((session, is_idle)) = session.zip(reported_idle(line.get(line.span))) else { return };
        self.set_working(session, !is_idle);
        if is_idle {
            notice_end_of_work(ctx, worker);
            watch_silence(ctx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_state_as_a_key_and_its_value_counts() {
        let update =
            |update: &str| format!(r#"{{"method":"session/update","params":{{"sessionId":"s","update":{update}}}}}"#);
        let is_idle = |text: &str| reported_idle(update(text).as_bytes());
        assert_eq!(is_idle(r#"{"sessionUpdate":"state_update","state":"idle","stopReason":"end_turn"}"#), Some(true));
        assert_eq!(is_idle("{ \"state\" : \"running\" ,\t\"sessionUpdate\" : \"state_update\" }"), Some(false));
        assert_eq!(is_idle(r#"{"sessionUpdate":"state_update","state":"requires_action"}"#), Some(false));
        assert_eq!(
            is_idle(r#"{"sessionUpdate":"agent_message_chunk","content":{"text":"state_update"},"state":"idle"}"#),
            None
        );
        assert_eq!(is_idle(r#"{"content":"\"sessionUpdate\":\"state_update\",\"state\":\"idle\""}"#), None);
        assert_eq!(is_idle(r#"{"sessionUpdate":"state_update"}"#), None);
    }

    #[test]
    fn a_version_is_a_whole_number() {
        let asks =
            |version: &str| asks_for_version_2(format!(r#"{{"params":{{"protocolVersion":{version}}}}}"#).as_bytes());
        assert!(asks("2") && asks(" 3") && asks("10"));
        assert!(!asks("1") && !asks("\"2025-11-25\"") && !asks("null"));
    }
}
