//! What the agent does with the sessions on the disk: loading, listing and deleting them, and keeping each turn.
//!
//! It asks the shell for the disk by effects and goes on with what comes of it. Whatever the disk does, the answer of
//! a turn that ended well reaches the client: a turn that cannot be stored is told in a message of its own.
use std::rc::Rc;
use std::time::SystemTime;

use serde_json::{Value as Json, json};
use simd_json::prelude::*;
use simd_json::tape::Value;
use stdio_bus_base::calendar::to_the_second;

use super::disk::{Pending, ToKeep};
use super::{Agent, Effect, LONGEST_PIECE, Outcome, directory, floor, push_text, push_title, text};
use crate::config::{Level, ListScope};
use crate::history::{Appended, Header, Listed, Look, Stored};
use crate::json::{Reader, quoted};
use crate::rpc::{Reply, RpcError, UPDATE_TAIL, push_error, push_result, update_head};
use crate::session::{Exchange, Session, TurnId};

/// Sessions in one page of a list.
const PAGE: usize = 100;

impl Agent {
    pub(super) fn load_session(&mut self, reply: &Reply, params: Value<'_, '_>, replay: bool) -> Outcome {
        let session_id = text(params, "sessionId")?;
        let cwd = directory(params)?;
        match self.sessions.get(session_id) {
            Some(session) if session.turn.is_some() => {
                return Err(RpcError::invalid_request("A prompt of this session is still running"));
            }
            Some(_) => {}
            None => self.need_room_for_a_session()?,
        }
        self.note_servers(params);
        let (session_id, cwd) = (session_id.to_owned(), cwd.to_owned());
        let load = Pending::Load { reply: reply.clone(), session_id: session_id.clone(), cwd, replay };
        let ticket = self.ticket(load);
        self.effects.push_back(Effect::Load(ticket, session_id));
        Ok(None)
    }

    /// What [`Effect::Load`] found.
    pub fn loaded(&mut self, ticket: u64, found: Result<Option<Stored>, String>, reader: &mut Reader) {
        let Some(Pending::Load { reply, session_id, cwd, replay }) = self.pending.remove(&ticket) else { return };
        let open = self.sessions.get(session_id.as_str());
        let error = match found {
            Ok(_) if open.is_some_and(|session| session.turn.is_some()) => {
                RpcError::invalid_request("A prompt of this session is still running")
            }
            Ok(Some(stored)) => {
                let session_id: Rc<str> = session_id.into();
                if replay {
                    self.replay(&session_id, reply.route.as_deref(), &stored, reader);
                }
                let mut session = Session::new(&cwd, stored.header.model.as_str().into(), stored.updated);
                session.knows_usage_updates = self.knows_usage_updates;
                self.tell_damage(&session_id, &stored);
                let exchanges = adopt(&mut session, stored);
                session.replace_history(exchanges, self.config.max_history);
                self.keep_to_models(&session_id, &mut session);
                if let Some(title) = &session.title {
                    let head = update_head(&session_id, reply.route.as_deref());
                    push_title(self.outbox.lines(), &head, title, session.updated);
                }
                self.sessions.insert(session_id.clone(), session, self.now);
                self.make_room();
                if let Some(result) = self.describe(&reply, session_id) {
                    push_result(self.outbox.lines(), &reply, &result);
                }
                return;
            }
            // Open, but nothing was said in it so far: there is nothing to read.
            Ok(None) if open.is_some() => {
                self.sessions.touch(&session_id, self.now);
                if let Some(result) = self.describe(&reply, session_id.into()) {
                    push_result(self.outbox.lines(), &reply, &result);
                }
                return;
            }
            Ok(None) => RpcError::unknown_session(&session_id),
            Err(problem) => RpcError::internal(format!("The session cannot be read: {problem}")),
        };
        push_error(self.outbox.lines(), &reply, &error);
    }

    fn tell_damage(&mut self, session_id: &str, stored: &Stored) {
        if let Some(damage) = &stored.damage {
            self.tell(Level::Warn, session_id, &damage.to_string());
        }
    }

    /// A session whose model the operator does not offer any more goes on with the configured one.
    fn keep_to_models(&mut self, session_id: &str, session: &mut Session) {
        if self.config.refuses_model(&session.model).is_some() {
            let before = std::mem::replace(&mut session.model, self.config.model.as_str().into());
            let words = format!("it goes on with {}, for {before} is not in OPENAI_MODELS", session.model);
            self.tell(Level::Warn, session_id, &words);
        }
    }

    fn tell(&mut self, level: Level, session_id: &str, words: &str) {
        self.effects.push_back(Effect::Log(level, format!("Session {session_id}: {words}.")));
    }

    /// Tells the client what was said in a session, as session/load promises.
    fn replay(&mut self, session_id: &str, route: Option<&str>, stored: &Stored, reader: &mut Reader) {
        let head = update_head(session_id, route);
        for entry in &stored.entries {
            for (kind, message) in [("user_message_chunk", &entry.user), ("agent_message_chunk", &entry.assistant)] {
                let message_id = self.uuid();
                let out = self.outbox.lines();
                // What we wrote ourselves and cannot read is left out rather than failing the whole.
                let _ = reader.read(&mut message.clone().into_bytes(), |value| {
                    let Some(content) = value.get("content") else { return };
                    let mut rest = content.as_str().unwrap_or_default();
                    while !rest.is_empty() {
                        let (piece, more) = rest.split_at(floor(rest, LONGEST_PIECE));
                        push_text(out, &head, kind, &message_id, piece);
                        rest = more;
                    }
                    for part in content.as_array().iter().flat_map(|parts| parts.iter()) {
                        let url =
                            part.get("image_url").and_then(|image| image.get("url")).and_then(|url| url.into_string());
                        let content = match (part.get_str("text"), url) {
                            (Some(text), _) => text_content(text),
                            (None, Some(url)) => image_content(url),
                            (None, None) => continue,
                        };
                        push_chunk(out, &head, kind, &message_id, &content);
                    }
                });
            }
        }
    }

    pub(super) fn list_sessions(&mut self, reply: &Reply, params: Value<'_, '_>) -> Outcome {
        let cwd = params.get_str("cwd").map(str::to_owned);
        let cursor = match params.get_str("cursor") {
            None => 0,
            Some(cursor) => cursor.parse().map_err(|_| RpcError::invalid_params("cursor is not one that was given"))?,
        };
        let list = Pending::List { reply: reply.clone(), cwd, cursor };
        let ticket = self.ticket(list);
        if self.keeps_history {
            self.effects.push_back(Effect::List(ticket));
        } else {
            self.listed(ticket, Ok(Vec::new()));
        }
        Ok(None)
    }

    /// What [`Effect::List`] found; the open sessions are added to it.
    pub fn listed(&mut self, ticket: u64, found: Result<Vec<Listed>, String>) {
        let Some(Pending::List { reply, cwd, cursor }) = self.pending.remove(&ticket) else { return };
        let stored = match found {
            Ok(stored) => stored,
            Err(problem) => {
                let error = RpcError::internal(format!("The sessions cannot be listed: {problem}"));
                return push_error(self.outbox.lines(), &reply, &error);
            }
        };
        let is_for_all = self.config.list_sessions == ListScope::All;
        let mut all: Vec<(SystemTime, String, String, Option<String>)> = stored
            .into_iter()
            .filter(|listed| self.sessions.get(&listed.header.session_id).is_none())
            .filter(|listed| is_for_all || self.sessions.ended(&listed.header.session_id).is_some())
            .map(|listed| (listed.updated, listed.header.session_id, listed.header.cwd, listed.title))
            .collect();
        all.extend(self.sessions.iter().map(|(session_id, session)| {
            (
                session.updated,
                session_id.to_string(),
                session.cwd.to_string(),
                session.title.as_deref().map(str::to_owned),
            )
        }));
        all.retain(|(_, _, theirs, _)| cwd.as_ref().is_none_or(|cwd| cwd == theirs));
        all.sort_by(|left, right| right.0.cmp(&left.0).then_with(|| left.1.cmp(&right.1)));
        let page: Vec<Json> = all
            .iter()
            .skip(cursor)
            .take(PAGE)
            .map(|(updated, session_id, cwd, title)| {
                let mut info = json!({ "sessionId": session_id, "cwd": cwd, "updatedAt": to_the_second(*updated) });
                if let Some(title) = title {
                    info["title"] = title.as_str().into();
                }
                info
            })
            .collect();
        let mut result = json!({ "sessions": page });
        if all.len() > cursor.saturating_add(PAGE) {
            result["nextCursor"] = (cursor + PAGE).to_string().into();
        }
        push_result(self.outbox.lines(), &reply, &result);
    }

    /// Has the disk keep what was chosen in a session, if it has a file and no turn runs, which would keep it at its end.
    /// The answer to the choice follows; it comes back if there is nothing to wait for.
    pub(super) fn keep_choice(&mut self, session_id: &str, answer: Option<(&Reply, Json)>) -> Option<Json> {
        let session = self.sessions.get(session_id);
        let to_keep = session.filter(|session| !session.is_choice_kept && session.turn.is_none() && session.stored > 0);
        let Some(session) = to_keep else { return answer.map(|(_, result)| result) };
        let to_keep = ToKeep { session_id: session_id.to_owned(), known: session.stored, choice: session.choice() };
        self.sessions.change(session_id, |session| session.is_choice_kept = true);
        let answer = answer.map(|(reply, result)| (reply.clone(), result));
        let ticket = self.ticket(Pending::Keep { session_id: session_id.to_owned(), answer });
        self.effects.push_back(Effect::Keep(ticket, to_keep));
        None
    }

    /// What came of [`Effect::Keep`]. A choice that could not be stored holds all the same.
    pub fn kept(&mut self, ticket: u64, outcome: Result<Appended, String>) {
        let Some(Pending::Keep { session_id, answer }) = self.pending.remove(&ticket) else { return };
        if let Err(problem) = &outcome {
            self.tell(Level::Warn, &session_id, &format!("a choice could not be stored: {problem}"));
        }
        self.sessions.change(&session_id, |session| match outcome {
            Ok(appended) => {
                session.stored = session.stored.max(appended.length);
                session.is_partial |= appended.is_behind;
            }
            Err(_) => session.is_choice_kept = false,
        });
        if let Some((reply, result)) = answer {
            push_result(self.outbox.lines(), &reply, &result);
        }
    }

    /// What came of [`Effect::Delete`].
    pub fn deleted(&mut self, ticket: u64, outcome: Result<(), String>) {
        let Some(Pending::Delete { reply }) = self.pending.remove(&ticket) else { return };
        match outcome {
            Ok(()) => push_result(self.outbox.lines(), &reply, &json!({})),
            Err(problem) => {
                let error = RpcError::internal(format!("The session cannot be deleted: {problem}"));
                push_error(self.outbox.lines(), &reply, &error);
            }
        }
    }

    /// What a look at a turn's file needs to know: its first line, should it have to be made, the bytes known of it,
    /// and whether not all that they say is in memory.
    pub fn store_header(&mut self, number: TurnId) -> Option<(Header, u64, bool)> {
        let turn = self.turns.get(&number)?;
        self.sessions.change(&turn.session_id, |session| {
            // The first line will have it.
            session.is_choice_kept |= session.stored == 0 && session.model == turn.model;
            (turn.header(session), session.stored, session.is_partial)
        })
    }

    /// What a look at the file of a turn's session has shown.
    pub fn refreshed(&mut self, number: TurnId, look: Look) {
        let Some(session_id) = self.turns.get(&number).map(|turn| turn.session_id.clone()) else { return };
        let Some(session) = self.sessions.get(&session_id) else { return };
        let (is_partial, is_unsaved) = (session.is_partial && session.stored > 0, session.is_unsaved);
        let limit = self.config.max_history;
        match look {
            Look::AsKnown(length) => {
                if is_partial {
                    let words = "its file is gone, and with it the turns that were not in memory";
                    self.tell(Level::Warn, &session_id, words);
                }
                self.sessions.change(&session_id, |session| {
                    session.stored = length;
                    session.is_partial = false;
                });
            }
            Look::Changed(stored) => {
                self.tell_damage(&session_id, &stored);
                if is_unsaved {
                    let words = "its file was read again, and the turns that could not be stored are forgotten";
                    self.tell(Level::Warn, &session_id, words);
                }
                self.sessions.change(&session_id, |session| {
                    let (model, chosen) = (session.model.clone(), session.chosen.clone());
                    let exchanges = adopt(session, *stored);
                    session.restore_history(exchanges, limit);
                    (session.model, session.chosen) = (model, chosen);
                });
                self.make_room();
            }
            Look::NotMade(error) => {
                self.tell(Level::Error, &session_id, &format!("its file cannot be made: {error}"));
                self.sessions.change(&session_id, |session| {
                    session.stored = 0;
                    session.is_choice_kept = false;
                });
            }
        }
    }

    /// A turn was stored, or why it was not. Then the client is told that too, in a message of its own: the answer and
    /// its stop reason are what they are.
    pub fn stored(&mut self, number: TurnId, outcome: Result<Appended, String>) {
        let Some(turn) = self.turns.get_mut(&number) else { return };
        let session_id = turn.session_id.clone();
        if let Err(problem) = &outcome {
            let words = format!(
                "This turn could not be stored: {problem}. It goes with your next prompts, and is lost when the session \
                 ends."
            );
            turn.say_aside(&words, &mut self.outbox, &mut *self.dice);
            self.tell(Level::Error, &session_id, &format!("a turn could not be stored: {problem}"));
        }
        if self.sessions.get(&session_id).is_some_and(|session| session.turn == Some(number)) {
            self.sessions.change(&session_id, |session| match outcome {
                Ok(appended) => {
                    session.stored = appended.length;
                    session.is_partial |= appended.is_behind;
                }
                Err(_) => session.is_unsaved = true,
            });
        }
        self.answer(number);
    }
}

/// Puts what a file says into a session, but for its turns, which come back.
fn adopt(session: &mut Session, stored: Stored) -> Vec<Exchange> {
    session.stored = stored.length;
    session.updated = stored.updated;
    session.model = stored.choice.model.into();
    session.chosen = stored.choice.options;
    if let Some(last) = stored.entries.last() {
        session.usage = last.usage;
    }
    if let Some(title) = stored.entries.iter().find_map(|entry| entry.title.as_deref()) {
        session.title = Some(title.into());
    }
    let exchanges = stored.entries.into_iter();
    exchanges.map(|entry| Exchange { user: entry.user.into(), assistant: entry.assistant.into() }).collect()
}

fn push_chunk(out: &mut Vec<u8>, head: &[u8], kind: &str, message_id: &str, content: &str) {
    out.extend_from_slice(head);
    let members = format!("\"sessionUpdate\":\"{kind}\",\"messageId\":\"{message_id}\",\"content\":{content}");
    out.extend_from_slice(members.as_bytes());
    out.extend_from_slice(UPDATE_TAIL);
}

fn text_content(text: &str) -> String {
    format!("{{\"type\":\"text\",\"text\":{}}}", quoted(text))
}

/// An image part as the content block that it was.
fn image_content(url: &str) -> String {
    let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    match data {
        Some((mime, data)) => json!({ "type": "image", "mimeType": mime, "data": data }).to_string(),
        None => json!({ "type": "resource_link", "name": "image", "uri": url }).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::super::trial::{Trial, stored, title};
    use super::*;
    use crate::history::Store;

    const HISTORY: (&str, &str) = ("OPENAI_HISTORY_DIR", "/h");

    /// Loads a session that the disk has: all that was written.
    fn load(trial: &mut Trial, found: Stored) -> Vec<Json> {
        let session_id = found.header.session_id.clone();
        assert!(trial.ask("session/load", json!({"sessionId": session_id, "cwd": "/"})).is_empty());
        let mut effects = trial.effects().into_iter();
        let ticket = effects.find_map(|effect| match effect {
            Effect::Load(ticket, _) => Some(ticket),
            _ => None,
        });
        trial.agent.loaded(ticket.unwrap(), Ok(Some(found)), &mut trial.reader);
        trial.lines()
    }

    /// The sessions of a list, when these are on the disk.
    fn list(trial: &mut Trial, on_disk: &[&str]) -> Vec<String> {
        assert!(trial.ask("session/list", json!({})).is_empty());
        let mut effects = trial.effects().into_iter();
        let ticket = effects.find_map(|effect| match effect {
            Effect::List(ticket) => Some(ticket),
            _ => None,
        });
        let listed = on_disk.iter().map(|session_id| {
            let header = stored(session_id, "m", &["x"]).header;
            Listed { header, title: None, updated: UNIX_EPOCH }
        });
        trial.agent.listed(ticket.unwrap(), Ok(listed.collect()));
        let answer = trial.lines().remove(0);
        let sessions = answer["result"]["sessions"].as_array().unwrap().iter();
        let mut names: Vec<String> = sessions.map(|info| info["sessionId"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_turn_that_cannot_be_stored_is_told_beside_its_answer() {
        let mut trial = Trial::new(&[HISTORY]);
        let session = trial.session();
        let turn = trial.begin(&session, "hi");
        // There is no file, and none can be made: the turn goes on.
        trial.agent.refreshed(turn, Look::NotMade(std::io::Error::other("no space")));
        let to_store = trial.end(turn, "the answer").unwrap();
        assert_eq!(to_store.header.map(|header| header.session_id), Some(session.clone()), "it is tried again");
        trial.agent.stored(turn, Err("no space".to_owned()));
        let lines = trial.lines();
        let told: Vec<&Json> = lines.iter().map(|line| &line["params"]["update"]).collect();
        assert_eq!(told[0]["content"]["text"], "the answer");
        let words = "This turn could not be stored: no space. It goes with your next prompts, and is lost when the session \
                     ends.";
        assert_eq!(told[1]["content"]["text"], format!("\n\n{words}"));
        assert_ne!(told[0]["messageId"], told[1]["messageId"], "nobody takes it for the answer's end");
        assert_eq!(lines[2]["result"]["stopReason"], "end_turn");
        let log = trial.log();
        assert_eq!(log.iter().map(|(level, _)| *level).collect::<Vec<_>>(), [Level::Error; 2]);
        assert_eq!(log[1].1, format!("Session {session}: a turn could not be stored: no space."));
        let turn = trial.begin(&session, "next");
        assert_eq!(trial.asked(turn), ["hi", "the answ", "next"], "of the words none goes to the model");
    }

    #[test]
    fn a_session_keeps_to_the_models_that_are_offered() {
        for (models, expected) in [("a,b", "c"), ("a,old", "old"), ("", "old")] {
            let mut trial = Trial::new(&[HISTORY, ("OPENAI_MODELS", models), ("OPENAI_MODEL", "c")]);
            let lines = load(&mut trial, stored("s", "old", &["hi"]));
            let result = &lines.last().unwrap()["result"];
            assert_eq!(result["configOptions"][0]["currentValue"], expected, "{models}");
            let turn = trial.begin("s", "next");
            assert_eq!(trial.agent.model(turn).as_deref(), Some(expected));
            let words = "Session s: it goes on with c, for old is not in OPENAI_MODELS.".to_owned();
            let told = if expected == "c" { vec![(Level::Warn, words)] } else { vec![] };
            assert_eq!(trial.log(), told);
        }
    }

    #[test]
    fn a_title_is_told_when_it_is_new_and_when_a_session_is_loaded() {
        let mut trial = Trial::new(&[HISTORY]);
        let session = trial.session();
        let prompt = |text: &str| json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]});
        let mut titles = |text: &str| {
            let line = json!({"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": prompt(text)});
            trial.agent.handle_line(line.to_string().as_bytes(), &mut trial.reader, UNIX_EPOCH);
            let lines = trial.lines();
            trial.ask("session/cancel", json!({"sessionId": session}));
            lines.iter().filter_map(title).map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(titles(" \n").is_empty(), "a prompt without words names nothing");
        assert_eq!(titles("Mend the \"roof\"\nplease"), ["Mend the \"roof\""]);
        assert!(titles("again").is_empty());

        let lines = load(&mut trial, stored("s", "m", &["first", "second"]));
        assert_eq!(lines.iter().filter_map(title).collect::<Vec<_>>(), ["first"]);
        let update = lines.iter().find(|line| title(line).is_some()).unwrap();
        assert_eq!(update["params"]["update"]["updatedAt"], "1970-01-01T00:00:00Z");
        assert!(lines.last().unwrap().get("result").is_some(), "the answer is the last line");
    }

    #[test]
    fn a_list_shows_what_it_is_configured_to_show() {
        let mut all = Trial::new(&[HISTORY]);
        let session = all.session();
        assert_eq!(list(&mut all, &["x", "y"]), [session.as_str(), "x", "y"]);

        let mut own = Trial::new(&[HISTORY, ("OPENAI_LIST_SESSIONS", "own")]);
        let (open, closed) = (own.session(), own.session());
        load(&mut own, stored("x", "m", &["hi"]));
        for session in [closed.as_str(), "x"] {
            own.answer("session/close", json!({"sessionId": session}));
        }
        let on_disk = ["x", "y", open.as_str(), closed.as_str()];
        assert_eq!(list(&mut own, &on_disk), [open.as_str(), closed.as_str(), "x"], "made or loaded here");
        own.ask("session/delete", json!({"sessionId": "x"}));
        own.seconds = 30 * 86_400;
        assert_eq!(list(&mut own, &on_disk), [open.as_str(), closed.as_str()], "an expired one can be loaded again");

        let mut none = Trial::new(&[HISTORY, ("OPENAI_LIST_SESSIONS", "none")]);
        let capabilities =
            none.answer("initialize", json!({"protocolVersion": 1}))["result"]["agentCapabilities"].clone();
        assert!(capabilities["sessionCapabilities"].get("list").is_none());
        let error = none.answer("session/list", json!({}))["error"].clone();
        assert_eq!(
            (error["code"].as_i64(), error["message"].as_str().unwrap().contains("OPENAI_LIST_SESSIONS")),
            (Some(-32601), true)
        );
    }

    #[test]
    fn what_the_disk_has_lost_is_logged() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), usize::MAX).unwrap();
        let found = stored("s", "m", &["one", "two"]);
        let known = store.create(&found.header).unwrap();
        let known = store.append("s", known, &found.entries[0]).unwrap().length;
        let file = dir.path().join("s.jsonl");
        let text = std::fs::read_to_string(&file).unwrap() + "torn\n";
        std::fs::write(&file, text).unwrap();
        store.append("s", known, &found.entries[1]).unwrap();

        let mut trial = Trial::new(&[HISTORY]);
        load(&mut trial, store.load("s").unwrap().unwrap());
        let words = "line 3 cannot be read and is passed over; the other turns are kept";
        assert_eq!(trial.log(), [(Level::Warn, format!("Session s: {}: {words}.", file.display()))]);
        let turn = trial.begin("s", "three");
        assert_eq!(trial.asked(turn), ["one", "fine", "two", "fine", "three"]);

        // What could not be stored, and what was not in memory, is gone when the file is another one or none.
        trial.end(turn, "fine");
        trial.agent.stored(turn, Err("x".to_owned()));
        let turn = trial.begin("s", "four");
        trial.log();
        trial.agent.refreshed(turn, Look::Changed(stored("s", "m", &["one"]).into()));
        let words = "Session s: its file was read again, and the turns that could not be stored are forgotten.";
        assert_eq!(trial.log(), [(Level::Warn, words.to_owned())]);
        trial.end(turn, "fine");
        trial.agent.stored(turn, Ok(Appended { length: 2000, is_behind: true }));
        let turn = trial.begin("s", "five");
        assert!(trial.agent.store_header(turn).unwrap().2, "another process has added a turn");
        trial.log();
        trial.agent.refreshed(turn, Look::AsKnown(50));
        let words = "Session s: its file is gone, and with it the turns that were not in memory.";
        assert_eq!(trial.log(), [(Level::Warn, words.to_owned())]);
    }
}
