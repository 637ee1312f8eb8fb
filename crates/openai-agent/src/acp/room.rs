//! How many sessions are open and how much they hold: who has to go when there are too many, or too much.
//!
//! There is no timer: a session that has expired is ended when the next request comes, and turns are dropped from
//! memory when something is added to it. The invariant: while there is a turn that may be dropped, all conversations
//! together take no more memory than is configured, but for the piece that is being added.

use std::time::SystemTime;

use super::{Agent, Effect};
use crate::config::Level;
use crate::rpc::RpcError;
use crate::session::Fate;
use crate::sessions::End;

impl Agent {
    pub(super) fn need_room_for_a_session(&self) -> Result<(), RpcError> {
        match self.sessions.len() < self.config.max_sessions {
            true => Ok(()),
            false => {
                let message =
                    format!("No more than {} sessions may be open (OPENAI_MAX_SESSIONS)", self.config.max_sessions);
                Err(RpcError::internal(message))
            }
        }
    }

    /// Ends the sessions that were not used for too long. Called at each request: nobody else could miss them.
    pub(super) fn expire(&mut self, now: SystemTime) {
        let Some(limit) = self.config.session_idle else { return };
        let expired = self.sessions.expire(now, limit);
        let (Some(first), others) = (expired.first(), expired.len().saturating_sub(1)) else { return };
        let more = if others > 0 { format!("; so have {others} more") } else { String::new() };
        let seconds = limit.as_secs_f64();
        let message =
            format!("Session {first} was not used for {seconds} s (OPENAI_SESSION_IDLE_SEC) and has ended{more}.");
        self.effects.push_back(Effect::Log(Level::Info, message));
    }

    /// Drops turns from memory while all conversations together take more of it than they may.
    pub(super) fn make_room(&mut self) {
        let limit = self.config.max_memory;
        for (session_id, fate) in self.sessions.shrink(limit.saturating_sub(self.in_flight)) {
            let what = match fate {
                Fate::Aside => continue,
                Fate::LeftOut => "the oldest turns were dropped while its prompt runs, and may be missing in it",
                Fate::Lost => "the oldest turns were forgotten",
            };
            let message = format!(
                "Session {session_id}: {what}, for all conversations together take more than {limit} bytes \
                 (OPENAI_MAX_MEMORY_BYTES)."
            );
            self.effects.push_back(Effect::Log(Level::Warn, message));
        }
    }

    /// Whether all conversations together take more memory than they may.
    pub(super) fn is_full(&self) -> bool {
        self.sessions.bytes() + self.in_flight > self.config.max_memory
    }

    /// There is no session of this name, and if that is known, why.
    pub(super) fn unknown_session(&self, session_id: &str) -> RpcError {
        let unknown = RpcError::unknown_session(session_id);
        if self.sessions.ended(session_id) != Some(End::Expired) {
            return unknown;
        }
        let seconds = self.config.session_idle.unwrap_or_default().as_secs_f64();
        let advice = if self.keeps_history { "; session/load opens it again" } else { "" };
        let message =
            format!("Session expired: {session_id} was not used for {seconds} s (OPENAI_SESSION_IDLE_SEC){advice}");
        RpcError { message, ..unknown }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::super::trial::{Trial, stored};
    use super::*;
    use crate::chunk::Kind;
    use crate::errors::Failure;
    use crate::history::{Appended, Look};

    fn close(session: &str) -> Json {
        json!({ "sessionId": session })
    }

    #[test]
    fn a_session_that_is_not_used_ends_and_the_next_request_is_told_why() {
        let mut trial = Trial::new(&[("OPENAI_SESSION_IDLE_SEC", "10"), ("OPENAI_HISTORY_DIR", "/h")]);
        let (session, other) = (trial.session(), trial.session());
        trial.seconds = 9;
        let turn = trial.begin(&session, "one");
        trial.seconds = 30;
        let error = trial.answer("session/close", close(&other))["error"].clone();
        let words = format!("Session expired: {other} was not used for 10 s (OPENAI_SESSION_IDLE_SEC)");
        assert_eq!((&error["code"], &error["data"]["sessionId"]), (&json!(-32002), &json!(other)));
        assert_eq!(error["message"], format!("{words}; session/load opens it again"));
        let ended = format!("Session {other} was not used for 10 s (OPENAI_SESSION_IDLE_SEC) and has ended.");
        assert_eq!(trial.log(), [(Level::Info, ended)]);

        // The one in which a turn runs is still there, and counts from the end of the turn.
        let now = trial.now();
        trial.agent.fail(turn, &Failure::Network("x".into()), now);
        trial.lines();
        trial.seconds = 39;
        let params = json!({"sessionId": session, "modelId": "m"});
        assert!(trial.answer("session/set_model", params.clone()).get("result").is_some());
        trial.seconds = 48;
        assert!(trial.answer("session/set_model", params.clone()).get("result").is_some(), "a choice is a use");
        trial.seconds = 58;
        assert_eq!(trial.answer("session/set_model", params)["error"]["code"], -32002);
        let stranger = trial.answer("session/close", close("stranger"));
        assert_eq!(stranger["error"]["message"], "Session not found: stranger");
    }

    #[test]
    fn nobody_expires_when_that_is_not_wanted() {
        let mut trial = Trial::new(&[("OPENAI_SESSION_IDLE_SEC", "0")]);
        let session = trial.session();
        trial.seconds = 100 * 365 * 86_400;
        assert!(trial.answer("session/close", close(&session)).get("result").is_some());
    }

    #[test]
    fn expired_sessions_make_room_for_new_ones() {
        let mut trial = Trial::new(&[("OPENAI_SESSION_IDLE_SEC", "10"), ("OPENAI_MAX_SESSIONS", "2")]);
        let sessions = [trial.session(), trial.session()];
        let refused = trial.answer("session/new", json!({"cwd": "/"}));
        assert!(refused["error"]["message"].as_str().unwrap().contains("OPENAI_MAX_SESSIONS"), "{refused}");
        trial.seconds = 10;
        trial.session();
        let ended = format!(
            "Session {} was not used for 10 s (OPENAI_SESSION_IDLE_SEC) and has ended; so have 1 more.",
            sessions[0]
        );
        assert_eq!(trial.log(), [(Level::Info, ended)]);
        // Without a history there is nothing to load.
        let error = trial.answer("session/close", close(&sessions[1]))["error"].clone();
        assert!(error["message"].as_str().unwrap().ends_with("(OPENAI_SESSION_IDLE_SEC)"), "{error}");
    }

    /// Room for about three turns of [`long`].
    const SMALL: (&str, &str) = ("OPENAI_MAX_MEMORY_BYTES", "36000");

    /// Ten thousand characters that begin with a name.
    fn long(name: &str) -> String {
        format!("{name:<8}{}", "x".repeat(10_000))
    }

    #[test]
    fn the_oldest_turns_of_the_longest_unused_session_are_forgotten_first() {
        let mut trial = Trial::new(&[SMALL]);
        let (left, right) = (trial.session(), trial.session());
        trial.say(&left, &long("left 1"));
        trial.say(&right, &long("right 1"));
        trial.say(&left, &long("left 2"));
        assert_eq!(trial.log(), []);
        trial.say(&left, &long("left 3"));
        let words = "the oldest turns were forgotten, for all conversations together take more than 36000 bytes";
        assert_eq!(
            trial.log(),
            [(Level::Warn, format!("Session {right}: {words} (OPENAI_MAX_MEMORY_BYTES)."))],
            "it was used before the other"
        );
        trial.say(&right, &long("right 2"));
        assert_eq!(trial.log().len(), 1, "now it is the other's turn");
        trial.say(&right, &long("right 3"));
        assert_eq!(trial.log(), [], "who was told is not told again");
        let turn = trial.begin(&left, "left 4");
        assert_eq!(trial.asked(turn), ["left 3  ", "fine", "left 4"]);
        let turn = trial.begin(&right, "right 4");
        assert_eq!(trial.asked(turn), ["right 2 ", "fine", "right 3 ", "fine", "right 4"]);
    }

    #[test]
    fn answers_on_their_way_and_messages_without_an_answer_count() {
        let mut trial = Trial::new(&[SMALL]);
        let (quiet, busy) = (trial.session(), trial.session());
        trial.say(&quiet, &long("quiet 1"));
        let turn = trial.begin(&busy, "hi");
        for _ in 0..300 {
            trial.agent.delta(turn, Kind::Text, &"y".repeat(100));
        }
        assert_eq!(trial.log().len(), 1, "30,000 bytes of an answer");
        trial.lines();
        trial.ask("session/cancel", close(&busy));
        let asking = trial.begin(&quiet, "quiet 2");
        assert_eq!(trial.asked(asking), ["quiet 2"]);
        trial.end(asking, "fine");

        for index in 0..4 {
            let turn = trial.begin(&busy, &long(&format!("busy {index}")));
            let now = trial.now();
            trial.agent.fail(turn, &Failure::Network("x".into()), now);
            trial.lines();
        }
        let turn = trial.begin(&quiet, "quiet 3");
        assert_eq!(trial.asked(turn), ["quiet 3"], "40,000 bytes of messages");
        assert_eq!(trial.log().len(), 1, "of those the oldest is forgotten too");
    }

    #[test]
    fn turns_that_are_on_the_disk_are_dropped_in_silence_and_read_again() {
        let mut trial = Trial::new(&[SMALL, ("OPENAI_HISTORY_DIR", "/h")]);
        let (left, right) = (trial.session(), trial.session());
        let say = |trial: &mut Trial, session: &str, text: &str| {
            let turn = trial.begin(session, text);
            let length = trial.agent.store_header(turn).unwrap().1.max(100);
            trial.agent.refreshed(turn, Look::AsKnown(length));
            let to_store = trial.end(turn, "fine").unwrap();
            assert!(to_store.header.is_none());
            trial.agent.stored(turn, Ok(Appended { length: to_store.known + 1, is_behind: false }));
            trial.lines();
        };
        say(&mut trial, &left, &long("left 1"));
        say(&mut trial, &left, &long("left 2"));
        say(&mut trial, &right, &long("right 1"));
        say(&mut trial, &right, &long("right 2"));
        assert_eq!(trial.log(), []);
        let turn = trial.begin(&left, "left 3");
        let (_, known, is_partial) = trial.agent.store_header(turn).unwrap();
        assert!(is_partial && known == 102);
        let texts = [long("left 1"), long("left 2")];
        let read = stored(&left, "gpt-4o", &[&texts[0], &texts[1]]);
        trial.agent.refreshed(turn, Look::Changed(read.into()));
        trial.lines();
        assert_eq!(trial.asked(turn), ["left 1  ", "fine", "left 2  ", "fine", "left 3"]);
        assert_eq!(trial.log(), [], "the other session gave room");
        // Two that run have to share what there is: the one that began first gives, and says so.
        let other = trial.begin(&right, "right 3");
        let read = stored(&right, "gpt-4o", &[&texts[0], &texts[1]]);
        trial.agent.refreshed(other, Look::Changed(read.into()));
        assert_eq!(trial.asked(turn), ["left 2  ", "fine", "left 3"]);
        let words = "the oldest turns were dropped while its prompt runs, and may be missing in it, for all \
                     conversations together take more than 36000 bytes (OPENAI_MAX_MEMORY_BYTES).";
        assert_eq!(trial.log(), [(Level::Warn, format!("Session {left}: {words}"))]);
        assert!(trial.agent.store_header(turn).unwrap().2, "the next prompt reads them again");
    }

    #[test]
    fn words_that_are_kept_as_long_as_their_session_have_a_limit() {
        let mut trial = Trial::new(&[]);
        let session = trial.session();
        for (method, params) in [
            ("session/new", json!({"cwd": "/".repeat(4097)})),
            ("session/set_model", json!({"sessionId": session, "modelId": "m".repeat(4097)})),
            ("session/set_config_option", json!({"sessionId": session, "configId": "stop", "value": "s".repeat(4097)})),
        ] {
            assert_eq!(trial.answer(method, params)["error"]["code"], -32602, "{method}");
        }
    }
}
