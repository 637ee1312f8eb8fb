//! What the agent does with sessions on disk: loading, listing and deleting them, and storing each turn.
//!
//! It asks the shell for disk access by effects and continues with the results. Whatever the disk does, the answer of a
//! turn that ended well reaches the client: a turn that cannot be stored is reported in a separate message.

use std::rc::Rc;

use serde_json::{Value as Json, json};
use stdio_bus_base::calendar::to_the_second;

use super::{Agent, Effect, Load, Outcome};
use crate::config::Level;
use crate::history::{Listed, Stored};
use crate::json::{Raw, quoted};
use crate::rpc::{
    LONGEST_PIECE, Reply, RpcError, floor, push_text, push_title, push_update, text, update_head, uuid, word,
};
use crate::session::{Exchange, Session, TurnId};

const STILL_RUNNING: &str = "A prompt of this session is still running";

/// Maximum number of sessions in a list, the newest of all.
const MOST_LISTED: usize = 1000;

impl Agent {
    /// Asks the shell for disk access; the request is answered when that is done.
    pub(super) fn ask_disk(&mut self, effect: Effect) -> Option<Json> {
        self.pending += 1;
        self.effects.push_back(effect);
        None
    }

    pub(super) fn load_session(&mut self, reply: &Reply, params: Raw<'_>, replay: bool) -> Outcome {
        let session_id = text(params, "sessionId")?;
        let cwd = word(params, "cwd")?;
        match self.sessions.get(&session_id) {
            Some(session) if session.turn.is_some() => return Err(RpcError::invalid_request(STILL_RUNNING)),
            Some(_) => {}
            None => self.need_room_for_a_session()?,
        }
        self.note_servers(params);
        let (session_id, cwd) = (session_id.into_owned(), cwd.into_owned());
        Ok(self.ask_disk(Effect::Load(Load { reply: reply.clone(), session_id, cwd, replay })))
    }

    /// The result of [`Effect::Load`].
    pub fn loaded(&mut self, load: Load, found: Result<Option<Stored>, String>) {
        self.pending -= 1;
        let Load { reply, session_id, cwd, replay } = load;
        let session_id: Rc<str> = session_id.into();
        let open = self.sessions.get(&session_id);
        let refused = match found {
            Ok(_) if open.is_some_and(|session| session.turn.is_some()) => {
                Some(RpcError::invalid_request(STILL_RUNNING))
            }
            Ok(Some(stored)) => {
                let head = update_head(&session_id, reply.route.as_deref());
                if replay {
                    self.replay(&head, &stored);
                }
                self.adopt(&session_id, &cwd, stored, &head);
                None
            }
            // It is open, but still empty: there is nothing to read.
            Ok(None) if open.is_some() => None,
            Ok(None) => Some(RpcError::unknown_session(&session_id)),
            Err(problem) => Some(cannot("The session cannot be read", &problem)),
        };
        match refused {
            Some(error) => self.reply(&reply, Err(error)),
            None => {
                let result = self.describe(&reply, session_id);
                result.into_iter().for_each(|result| self.reply(&reply, Ok(result)));
            }
        }
    }

    /// Opens a session from its file.
    fn adopt(&mut self, session_id: &Rc<str>, cwd: &str, stored: Stored, head: &[u8]) {
        if let Some(damage) = &stored.damage {
            self.report(Level::Warn, session_id, damage);
        }
        let model = stored.entries.last().map_or(&stored.header.model, |entry| &entry.model);
        let mut session = Session::new(cwd, model.as_str().into(), stored.updated);
        session.knows_usage_updates = self.knows_usage_updates;
        session.usage = stored.entries.last().and_then(|entry| entry.usage);
        session.title = stored.entries.iter().find_map(|entry| entry.title.as_deref()).map(Into::into);
        for entry in stored.entries {
            let exchange = Exchange { user: entry.user.into(), assistant: entry.assistant.into() };
            session.remember(exchange, self.config.limits.history);
        }
        // A session whose model the operator no longer offers continues with the configured one.
        if self.config.refuses_model(&session.model).is_some() {
            let before = std::mem::replace(&mut session.model, self.config.model.as_str().into());
            let words = format!("it continues with {}, for {before} is not in OPENAI_MODELS", session.model);
            self.report(Level::Warn, session_id, &words);
        }
        if let Some(title) = &session.title {
            push_title(self.outbox.lines(), head, title, session.updated);
        }
        self.sessions.insert(session_id.clone(), session);
        self.make_room();
    }

    fn report(&mut self, level: Level, session_id: &str, words: &str) {
        self.effects.push_back(Effect::Log(level, format!("Session {session_id}: {words}.")));
    }

    /// Replays a session to the client, as session/load promises.
    fn replay(&mut self, head: &[u8], stored: &Stored) {
        for entry in &stored.entries {
            for (kind, message) in [("user_message_chunk", &entry.user), ("agent_message_chunk", &entry.assistant)] {
                let message_id = uuid((self.dice)());
                let out = self.outbox.lines();
                // A message of ours that we cannot read is left out rather than failing the whole.
                let content = Raw::read(message.as_bytes()).and_then(|message| message.get("content"));
                let Some(content) = content else { continue };
                let text = content.text().unwrap_or_default();
                let mut rest = &*text;
                while !rest.is_empty() {
                    let (piece, more) = rest.split_at(floor(rest, LONGEST_PIECE));
                    push_text(out, head, kind, &message_id, piece);
                    rest = more;
                }
                for part in content.items() {
                    let url = part.get("image_url").and_then(|image| image.get_text("url"));
                    let content = match (part.get_text("text"), url) {
                        (Some(text), _) => format!("{{\"type\":\"text\",\"text\":{}}}", quoted(&text)),
                        (None, Some(url)) => image_content(&url),
                        (None, None) => continue,
                    };
                    let members = format!("\"sessionUpdate\":\"{kind}\",\"messageId\":\"{message_id}\",\"content\":");
                    push_update(out, head, &(members + &content));
                }
            }
        }
    }

    pub(super) fn list_sessions(&mut self, reply: &Reply, params: Raw<'_>) -> Outcome {
        let cwd = params.get_text("cwd");
        if self.keeps_history() {
            return Ok(self.ask_disk(Effect::List(reply.clone(), cwd.map(Into::into))));
        }
        Ok(Some(self.list(cwd.as_deref(), Vec::new())))
    }

    /// The result of [`Effect::List`]; sessions of another directory are left out, and open ones added.
    pub fn listed(&mut self, reply: &Reply, cwd: Option<&str>, found: Result<Vec<Listed>, String>) {
        self.pending -= 1;
        let outcome = found.map(|stored| self.list(cwd, stored));
        self.reply(reply, outcome.map_err(|problem| cannot("The sessions cannot be listed", &problem)));
    }

    /// The newest of these and the open sessions.
    fn list(&self, cwd: Option<&str>, mut stored: Vec<Listed>) -> Json {
        stored.retain(|listed| self.sessions.get(&listed.header.session_id).is_none());
        let stored = stored.into_iter().map(|it| (it.updated, it.header.session_id, it.header.cwd, it.title));
        let open = self.sessions.iter().map(|(session_id, session)| {
            let title = session.title.as_deref().map(str::to_owned);
            (session.updated, session_id.to_string(), session.cwd.to_string(), title)
        });
        let mut all: Vec<_> =
            stored.chain(open).filter(|(_, _, theirs, _)| cwd.is_none_or(|cwd| cwd == theirs)).collect();
        all.sort_by(|left, right| right.0.cmp(&left.0).then_with(|| left.1.cmp(&right.1)));
        let infos = all.into_iter().take(MOST_LISTED).map(|(updated, session_id, cwd, title)| {
            json!({ "sessionId": session_id, "cwd": cwd, "title": title, "updatedAt": to_the_second(updated) })
        });
        json!({ "sessions": infos.collect::<Vec<Json>>() })
    }

    /// The result of [`Effect::Delete`].
    pub fn deleted(&mut self, reply: &Reply, outcome: Result<(), String>) {
        self.pending -= 1;
        let outcome = outcome.map_err(|problem| cannot("The session cannot be deleted", &problem));
        self.reply(reply, outcome.map(|()| json!({})));
    }

    /// A turn was stored, or why it was not. In that case the client gets a separate message: the answer and its stop
    /// reason stay as they are.
    pub fn stored(&mut self, number: TurnId, outcome: Result<(), String>) {
        let Some(turn) = self.turns.get_mut(&number) else { return };
        if let Err(problem) = outcome {
            let words = format!(
                "This turn could not be stored: {problem}. It is sent with your next prompts, and is lost when the session \
                 ends."
            );
            let session_id = turn.session_id.clone();
            turn.said.say_aside(&words, &mut self.outbox, &mut *self.dice);
            self.report(Level::Error, &session_id, &format!("a turn could not be stored: {problem}"));
        }
        self.answer(number);
    }
}

fn cannot(what: &str, problem: &str) -> RpcError {
    RpcError::new(-32603, format!("{what}: {problem}"))
}

/// An image part as the original content block.
fn image_content(url: &str) -> String {
    let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    match data {
        Some((mime, data)) => json!({ "type": "image", "mimeType": mime, "data": data }).to_string(),
        None => json!({ "type": "resource_link", "name": "image", "uri": url }).to_string(),
    }
}
