//! The agent itself: ACP's methods, the sessions and the running turns. It decides and does no IO.
//!
//! The shell calls [`Agent::handle_line`] for every line of stdin and [`Agent::delta`], [`Agent::complete`] and
//! [`Agent::fail`] for what an endpoint says; after each call it takes [`Agent::next_effect`] until there is none, and
//! writes what [`Agent::outbox`] holds. Clock and dice are arguments.
//!
//! Invariants: a request is answered exactly once, and the answer to a prompt is the last line of its turn; a session
//! has at most one turn; what comes for a turn that is over is dropped.

mod archive;
mod disk;
mod room;
#[cfg(test)]
mod trial;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::time::SystemTime;

use serde_json::value::RawValue;
use serde_json::{Value as Json, json};
use simd_json::prelude::*;
use simd_json::tape::Value;
use stdio_bus_base::calendar::to_the_second;

use super::answer::{Ending, StopReason};
use super::chunk::Kind;
use super::config::{Config, ErrorStyle, Level, ListScope};
use super::convert::{Request, assistant_message, has_images, request_body, user_message, without_images};
use super::dialect::Dialect;
use super::envelope::Envelope;
use super::errors::Failure;
use super::history::{Entry, Header};
use super::json::{Reader, push_string, scalar_token};
use super::mend::mend;
use super::models::Model;
use super::options::{Parameter, Parameters, config_options};
use super::outbox::Outbox;
use super::rpc::{self, Message, Reply, RpcError, UPDATE_TAIL, push_error, push_result, update_head};
use super::session::{Exchange, Session, TurnId};
use super::sessions::{End, Sessions};
use super::window::{self, Overflow, USUAL_RATE, budget, weight};

use disk::Pending;
pub use disk::{ToKeep, ToStore};

/// Bytes of an answer that are held while the reader is slow; a turn that holds more stops reading its stream.
pub const MOST_HELD: usize = 16 << 10;

/// Most bytes of text in one update. Escaped it stays below 1 MiB, the longest line that the bus takes by default and
/// BenchFlow at all, unless it is made of control characters.
const LONGEST_PIECE: usize = 256 << 10;

/// Models of which it is remembered what they will not have, and how long a request they take.
const MOST_REFUSERS: usize = 1000;

/// Longest working directory, name of a model and value of an option, in bytes: as long as the kernel's paths. They are
/// kept as long as their session.
const LONGEST_WORD: usize = 4096;

/// Something for the shell to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Run this turn: ask the endpoint.
    Start(TurnId),
    /// Drop this turn and its connection at once.
    Stop(TurnId),
    /// This turn may read its stream again.
    Resume(TurnId),
    /// Read this session from the disk, then call [`Agent::loaded`].
    Load(u64, String),
    /// List the sessions on the disk, then call [`Agent::listed`].
    List(u64),
    /// Fetch the list of models, then call [`Agent::models_known`].
    FetchModels,
    /// Add a choice to a session on the disk, then call [`Agent::kept`].
    Keep(u64, ToKeep),
    /// Delete this session from the disk, then call [`Agent::deleted`].
    Delete(u64, String),
    /// Log this.
    Log(Level, String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Storing,
}

struct Turn {
    session_id: Rc<str>,
    reply: Reply,
    /// The message to send, and what the user said of it now.
    user: Rc<str>,
    own: Rc<str>,
    model: Rc<str>,
    phase: Phase,
    /// The beginning of its update lines.
    head: Box<[u8]>,
    message_id: Option<Box<str>>,
    thought_id: Option<Box<str>>,
    /// All text of the answer; up to `told` it is in the outbox.
    answer: String,
    told: usize,
    /// Bytes of the message and of the answer so far, as they count for the memory of all.
    memory: usize,
    held_thought: String,
    is_queued: bool,
    is_paused: bool,
    /// What its request counts for, in bytes of text.
    asked: usize,
    /// Less was sent after the endpoint had refused the whole.
    is_shortened: bool,
    /// The images of the turns before were left out after the endpoint had refused them.
    is_blind: bool,
    ending: Option<Ending>,
}

impl Turn {
    /// The first line of its session's file.
    fn header(&self, session: &Session) -> Header {
        Header {
            version: 1,
            session_id: self.session_id.to_string(),
            cwd: session.cwd.to_string(),
            model: self.model.to_string(),
            options: session.chosen.clone(),
        }
    }
}

/// The models to choose from.
#[derive(Default)]
struct Models {
    known: Option<Vec<Model>>,
    /// Being fetched: the answers that need them, which wait.
    waiting: Option<Vec<(Reply, Rc<str>)>>,
    /// Until then nobody has them fetched again; never, if they are not to be fetched at all.
    fresh_until: Option<SystemTime>,
}

/// The agent.
pub struct Agent {
    config: Rc<Config>,
    sessions: Sessions,
    turns: HashMap<TurnId, Turn>,
    /// Sum of what the turns hold.
    in_flight: usize,
    /// Turns that hold pieces, in the order in which they began to.
    holding: VecDeque<TurnId>,
    pending: HashMap<u64, Pending>,
    models: Models,
    /// What models will not have.
    refused: HashMap<Rc<str>, Parameters>,
    /// The windows of models whose endpoint said so, in tokens.
    windows: HashMap<Rc<str>, u64>,
    /// Models that take no images.
    blind: HashSet<Rc<str>>,
    outbox: Outbox,
    effects: VecDeque<Effect>,
    next_number: u64,
    dice: Box<dyn FnMut() -> [u8; 16]>,
    keeps_history: bool,
    has_noted_servers: bool,
    /// Whether the client that initialized last is new enough for `usage_update`. That its sessions are opened next is true
    /// of all clients that do not share the process, and of nearly all others.
    knows_usage_updates: bool,
    /// When something was told last.
    now: SystemTime,
}

type Outcome = Result<Option<Json>, RpcError>;

impl Agent {
    /// An agent without sessions. `dice` gives random bytes for ids.
    pub fn new(config: Rc<Config>, dice: Box<dyn FnMut() -> [u8; 16]>) -> Self {
        let models = Models {
            known: config.models.as_ref().map(|names| names.iter().map(|name| Model::named(name)).collect()),
            // The shell fetches them at the start.
            waiting: config.fetch_models.then(Vec::new),
            fresh_until: None,
        };
        Self {
            keeps_history: config.history_dir.is_some(),
            config,
            sessions: Sessions::default(),
            turns: HashMap::new(),
            in_flight: 0,
            holding: VecDeque::new(),
            pending: HashMap::new(),
            models,
            refused: HashMap::new(),
            windows: HashMap::new(),
            blind: HashSet::new(),
            outbox: Outbox::default(),
            effects: VecDeque::new(),
            next_number: 0,
            dice,
            has_noted_servers: false,
            knows_usage_updates: true,
            now: SystemTime::UNIX_EPOCH,
        }
    }

    /// What waits to be written.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// The next thing for the shell to do.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Whether anything is still being done for the client.
    pub fn is_idle(&self) -> bool {
        self.turns.is_empty() && self.pending.is_empty() && self.outbox.is_empty()
    }

    /// One line from the client, without its end.
    pub fn handle_line(&mut self, line: &[u8], reader: &mut Reader, now: SystemTime) {
        self.now = now;
        let read = reader.read(&mut line.to_vec(), |value| self.message(rpc::classify(value), now));
        let Err(error) = read else { return };
        // JSON that the parser does not take: half a surrogate pair, which JSON.stringify makes of text that was cut
        // within an emoji, or a number that no float holds. What is no JSON is refused.
        let found = Envelope::of(line);
        let is_json = std::str::from_utf8(line).is_ok_and(|text| serde_json::from_str::<&RawValue>(text).is_ok());
        let read = match is_json {
            true => reader.read(&mut mend(line), |value| {
                let message = rpc::classify(value);
                // An id that was mended is not the one that was sent.
                self.message(message.under(&found.reply), now);
            }),
            false => Err(error),
        };
        if let Err(error) = read
            && !found.is_response
        {
            let error = RpcError { code: -32700, message: format!("Parse error: {error}"), data: None };
            push_error(self.outbox.lines(), &found.reply, &error);
        }
    }

    fn message(&mut self, message: Message<'_, '_>, now: SystemTime) {
        match message {
            Message::Request(reply, method, params) => match self.request(&reply, method, params, now) {
                Ok(Some(result)) => push_result(self.outbox.lines(), &reply, &result),
                // It will be answered when it is done.
                Ok(None) => {}
                Err(error) => push_error(self.outbox.lines(), &reply, &error),
            },
            Message::Notification(method, params) => self.notification(method, params),
            Message::Response => {}
            Message::Invalid(reply, error) => push_error(self.outbox.lines(), &reply, &error),
        }
    }

    /// A line that was longer than the configured limit, and was passed over.
    pub fn handle_long_line(&mut self, found: &Envelope) {
        if found.is_response {
            return;
        }
        let limit = self.config.max_line;
        let message = format!("A line is longer than the limit of {limit} bytes (OPENAI_MAX_LINE_BYTES)");
        push_error(self.outbox.lines(), &found.reply, &RpcError::invalid_request(message));
    }

    fn request(&mut self, reply: &Reply, method: &str, params: Value<'_, '_>, now: SystemTime) -> Outcome {
        if !params.is_object() && !params.is_null() {
            return Err(RpcError::invalid_params("params is not an object"));
        }
        self.expire(now);
        match method {
            "initialize" => Ok(Some(self.initialize(params))),
            // There is nothing to do for any method: the key is in the environment.
            "authenticate" => Ok(Some(json!({}))),
            "session/new" => self.new_session(reply, params, now),
            "session/load" | "session/resume" | "session/delete" if !self.keeps_history => {
                let message =
                    format!("{method} is not supported: no history is kept (set OPENAI_HISTORY_DIR to keep it)");
                Err(RpcError { message, ..RpcError::method_not_found(method) })
            }
            "session/load" | "session/resume" => {
                self.refresh_models(now);
                self.load_session(reply, params, method == "session/load")
            }
            "session/delete" => {
                let session_id = text(params, "sessionId")?;
                self.cancel_session(session_id);
                self.sessions.remove(session_id);
                self.sessions.forget_end(session_id);
                let ticket = self.ticket(Pending::Delete { reply: reply.clone() });
                self.effects.push_back(Effect::Delete(ticket, session_id.to_owned()));
                Ok(None)
            }
            "session/list" if self.config.list_sessions == ListScope::None => {
                let message = format!("{method} is not supported: OPENAI_LIST_SESSIONS is none");
                Err(RpcError { message, ..RpcError::method_not_found(method) })
            }
            "session/list" => self.list_sessions(reply, params),
            "session/close" => {
                let session_id = text(params, "sessionId")?;
                self.session(session_id)?;
                self.cancel_session(session_id);
                self.sessions.end(session_id, End::Closed);
                Ok(Some(json!({})))
            }
            "session/set_config_option" => {
                let session_id = text(params, "sessionId")?;
                self.session(session_id)?;
                match text(params, "configId")? {
                    "model" => self.set_model(session_id, text(params, "value")?)?,
                    option => self.set_option(session_id, option, &option_value(params)?)?,
                }
                let result = json!({ "configOptions": self.config_options(self.session(session_id)?) });
                Ok(self.keep_choice(session_id, Some((reply, result))))
            }
            "session/set_model" => {
                let session_id = text(params, "sessionId")?;
                self.session(session_id)?;
                self.set_model(
                    session_id,
                    text(params, "modelId").or_else(|lack| text(params, "model").map_err(|_| lack))?,
                )?;
                Ok(self.keep_choice(session_id, Some((reply, json!({})))))
            }
            "session/prompt" => self.prompt(reply, params, now),
            // A client that asks for it with an id wants to know that it was heard. The RFD calls it `cancel`.
            "session/cancel" | "cancel" => {
                let session_id = text(params, "sessionId")?;
                self.session(session_id)?;
                self.cancel_session(session_id);
                Ok(Some(json!({})))
            }
            _ => Err(RpcError::method_not_found(method)),
        }
    }

    fn notification(&mut self, method: &str, params: Value<'_, '_>) {
        match method {
            "session/cancel" | "cancel" => {
                if let Some(session_id) = params.get_str("sessionId") {
                    self.cancel_session(session_id);
                }
            }
            "$/cancel_request" => {
                let id = params.get("requestId").and_then(super::json::scalar_token);
                let named = |turn: &Turn| Some(&turn.reply.id) == id.as_ref() && turn.phase == Phase::Running;
                let found = self.turns.iter().filter(|(_, turn)| named(turn)).map(|(number, _)| *number).min();
                if let Some(number) = found {
                    self.flush(number);
                    if let Some(turn) = self.drop_turn(number) {
                        let error = RpcError { code: -32800, message: "Request cancelled".into(), data: None };
                        push_error(self.outbox.lines(), &turn.reply, &error);
                    }
                }
            }
            // A notification that we do not know is none of our business.
            _ => {}
        }
    }

    fn initialize(&mut self, params: Value<'_, '_>) -> Json {
        // Nothing else in version 1 of the protocol tells how old a client is: updates were added without a word, and some
        // parsers refuse those that they do not know.
        self.knows_usage_updates = params.get("clientInfo").is_some_and(|info| info.is_object());
        let mut session = json!({ "close": {} });
        if self.config.list_sessions != ListScope::None {
            session["list"] = json!({});
        }
        if self.keeps_history {
            session["resume"] = json!({});
            session["delete"] = json!({});
        }
        json!({
            "protocolVersion": 1,
            "agentCapabilities": {
                "loadSession": self.keeps_history,
                "promptCapabilities": { "image": self.config.image_input, "audio": false, "embeddedContext": true },
                "sessionCapabilities": session,
            },
            "agentInfo": { "name": "openai-agent", "title": "OpenAI Agent", "version": env!("CARGO_PKG_VERSION") },
            "authMethods": [{
                "id": AUTH_METHOD,
                "name": "API key from OPENAI_API_KEY",
                "description": "The agent reads the key of its endpoint from its environment; nothing has to be done here.",
            }],
        })
    }

    fn new_session(&mut self, reply: &Reply, params: Value<'_, '_>, now: SystemTime) -> Outcome {
        let cwd = directory(params)?;
        self.need_room_for_a_session()?;
        self.note_servers(params);
        let session_id: Rc<str> = self.uuid().into();
        let mut session = Session::new(cwd, self.config.model.as_str().into(), now);
        session.knows_usage_updates = self.knows_usage_updates;
        self.sessions.insert(session_id.clone(), session, now);
        self.refresh_models(now);
        Ok(self.describe(reply, session_id))
    }

    /// A client that names MCP servers expects tools, of which this agent has none: the operator is told once.
    fn note_servers(&mut self, params: Value<'_, '_>) {
        let has_servers = params.get_array("mcpServers").is_some_and(|servers| !servers.is_empty());
        if has_servers && !std::mem::replace(&mut self.has_noted_servers, true) {
            self.effects.push_back(Effect::Log(Level::Warn, NO_SERVERS.to_owned()));
        }
    }

    /// The result of session/new, load or resume, now or when the models are known.
    fn describe(&mut self, reply: &Reply, session_id: Rc<str>) -> Option<Json> {
        if let Some(waiting) = &mut self.models.waiting {
            waiting.push((reply.clone(), session_id));
            return None;
        }
        let session = self.sessions.get(&session_id)?;
        let options = self.config_options(session);
        let models: Vec<Json> =
            self.offered(session).iter().map(|model| json!({ "modelId": model, "name": model })).collect();
        // The spec leaves the id out of the answer to session/load; Open Design wants it there.
        Some(json!({
            "sessionId": &*session_id,
            "configOptions": options,
            "models": { "currentModelId": &*session.model, "availableModels": models },
        }))
    }

    /// Has the models fetched again if the list is old or there is none: for somebody who is about to see them.
    fn refresh_models(&mut self, now: SystemTime) {
        if self.models.waiting.is_none() && self.models.fresh_until.is_some_and(|until| now >= until) {
            self.models.waiting = Some(Vec::new());
            self.effects.push_back(Effect::FetchModels);
        }
    }

    /// The models that can be chosen, or nothing if they could not be fetched: then those from before hold. Until
    /// `fresh_until` nobody has them fetched again.
    pub fn models_known(&mut self, models: Option<Vec<Model>>, fresh_until: SystemTime) {
        self.models.fresh_until = Some(fresh_until);
        if models.is_some() {
            self.models.known = models;
        }
        for (reply, session_id) in self.models.waiting.take().unwrap_or_default() {
            match self.describe(&reply, session_id.clone()) {
                Some(result) => push_result(self.outbox.lines(), &reply, &result),
                None => {
                    let error = self.unknown_session(&session_id);
                    push_error(self.outbox.lines(), &reply, &error);
                }
            }
        }
    }

    fn offered(&self, session: &Session) -> Vec<String> {
        let known = self.models.known.iter().flatten().map(|model| model.id.clone());
        let mut models = if self.models.known.is_some() { known.collect() } else { vec![self.config.model.clone()] };
        if !models.iter().any(|model| **model == *session.model) {
            models.insert(0, session.model.to_string());
        }
        models
    }

    fn config_options(&self, session: &Session) -> Json {
        config_options(&self.offered(session), &session.model, self.choices(&session.model), &session.chosen)
    }

    /// The parameters that a client may choose for requests of a model: what the operator lets it, says nothing of
    /// himself, and the model takes.
    fn choices(&self, model: &str) -> Parameters {
        let refused = self.refused.get(model).copied().unwrap_or_default();
        let is_offered = |parameter: &Parameter| {
            self.config.session_options.contains(*parameter)
                && parameter.is_taken_by(model)
                && !refused.contains(*parameter)
                && !self.config.extra_body.says(model, parameter.name())
        };
        Parameter::ALL.into_iter().filter(is_offered).collect()
    }

    fn set_option(&mut self, session_id: &str, option: &str, value: &str) -> Result<(), RpcError> {
        let Some(session) = self.sessions.get(session_id) else { return Ok(()) };
        let choices = self.choices(&session.model);
        let Some(parameter) = Parameter::named(option).filter(|parameter| choices.contains(*parameter)) else {
            let offered = Parameter::ALL.into_iter().filter(|parameter| choices.contains(*parameter));
            let offered: Vec<&str> = std::iter::once("model").chain(offered.map(Parameter::name)).collect();
            let message = format!(
                "{option:?} is not a configuration option of {}; there are {}",
                session.model,
                offered.join(", ")
            );
            return Err(RpcError::invalid_params(message));
        };
        if value.len() > LONGEST_WORD {
            return Err(RpcError::invalid_params(format!("the value is longer than {LONGEST_WORD} bytes")));
        }
        let value = parameter.read(value).map_err(RpcError::invalid_params)?;
        self.sessions.change(session_id, |session| {
            session.is_choice_kept &= session.chosen.get(parameter) == value.as_ref();
            session.chosen.set(parameter, value);
        });
        self.sessions.touch(session_id, self.now);
        Ok(())
    }

    /// The endpoint will not have these parameters for the model of a turn: they are not offered any more.
    pub fn refuses(&mut self, number: TurnId, parameters: Parameters) {
        let Some(turn) = self.turns.get(&number) else { return };
        let (model, before) = (turn.model.clone(), self.choices(&turn.model));
        if self.refused.len() < MOST_REFUSERS || self.refused.contains_key(&model) {
            self.refused.insert(model.clone(), parameters);
        }
        let Some(session) = self.sessions.get(&turn.session_id) else { return };
        if before == self.choices(&model) || session.model != model {
            return;
        }
        let update = json!({ "configOptions": self.config_options(session) }).to_string();
        let out = self.outbox.lines();
        out.extend_from_slice(&turn.head);
        out.extend_from_slice(b"\"sessionUpdate\":\"config_option_update\",");
        out.extend_from_slice(&update.as_bytes()[1..update.len() - 1]);
        out.extend_from_slice(UPDATE_TAIL);
    }

    fn set_model(&mut self, session_id: &str, model: &str) -> Result<(), RpcError> {
        let mut model = model.trim();
        // Some clients have an entry of this name that means "leave it".
        if model == "default" {
            model = &self.config.model;
        }
        if model.is_empty() {
            return Err(RpcError::invalid_params("the name of the model is empty"));
        }
        if model.len() > LONGEST_WORD {
            let message = format!("the name of the model is longer than {LONGEST_WORD} bytes");
            return Err(RpcError::invalid_params(message));
        }
        if let Some(listed) = self.config.refuses_model(model) {
            let message = format!("{model:?} is not one of the models offered: {}", listed.join(", "));
            return Err(RpcError::invalid_params(message));
        }
        self.sessions.change(session_id, |session| {
            session.is_choice_kept &= *session.model == *model;
            session.model = model.into();
        });
        self.sessions.touch(session_id, self.now);
        Ok(())
    }

    fn session(&self, session_id: &str) -> Result<&Session, RpcError> {
        self.sessions.get(session_id).ok_or_else(|| self.unknown_session(session_id))
    }

    fn prompt(&mut self, reply: &Reply, params: Value<'_, '_>, now: SystemTime) -> Outcome {
        let session_id = text(params, "sessionId")?;
        let Some((session_id, session)) = self.sessions.find(session_id) else {
            return Err(self.unknown_session(session_id));
        };
        if session.turn.is_some() {
            let data = Some(json!({ "sessionId": &**session_id }));
            let message = "A prompt of this session is still running; cancel it first".to_owned();
            return Err(RpcError { code: -32600, message, data });
        }
        let prompt = params.get("prompt").ok_or_else(|| RpcError::invalid_params("prompt is missing"))?;
        let user = user_message(prompt, self.config.image_input)?;
        let (session_id, model) = (session_id.clone(), session.model.clone());
        let own: Rc<str> = user.json.into();
        let message = session.message(&own);
        let number = self.number();
        let memory = own.len() + if Rc::ptr_eq(&own, &message) { 0 } else { message.len() };
        let turn = Turn {
            memory,
            head: update_head(&session_id, reply.route.as_deref()).into(),
            session_id: session_id.clone(),
            reply: reply.clone(),
            user: message,
            own,
            model,
            phase: Phase::Running,
            message_id: None,
            thought_id: None,
            answer: String::new(),
            told: 0,
            held_thought: String::new(),
            is_queued: false,
            is_paused: false,
            asked: 0,
            is_shortened: false,
            is_blind: false,
            ending: None,
        };
        let title = self.sessions.change(&session_id, |session| {
            session.turn = Some(number);
            session.updated = now;
            if session.title.is_none() && !user.title.is_empty() {
                session.title = Some(user.title.into());
                return session.title.clone();
            }
            None
        });
        if let Some(title) = title.flatten() {
            push_title(self.outbox.lines(), &turn.head, &title, now);
        }
        self.turns.insert(number, turn);
        self.in_flight += memory;
        self.sessions.touch(&session_id, now);
        self.make_room();
        self.effects.push_back(Effect::Start(number));
        Ok(None)
    }

    fn cancel_session(&mut self, session_id: &str) {
        let Some(number) = self.sessions.get(session_id).and_then(|session| session.turn) else { return };
        self.cancel(number);
    }

    fn cancel(&mut self, number: TurnId) {
        // A turn that is being stored has been answered but for the last line, which is on its way.
        if self.turns.get(&number).is_none_or(|turn| turn.phase == Phase::Storing) {
            return;
        }
        self.flush(number);
        if let Some(turn) = self.drop_turn(number) {
            let result = json!({ "stopReason": StopReason::Cancelled.name() });
            push_result(self.outbox.lines(), &turn.reply, &result);
        }
    }

    /// Takes a running turn out and has its connection dropped. What the user said in it stays.
    fn drop_turn(&mut self, number: TurnId) -> Option<Turn> {
        self.effects.push_back(Effect::Stop(number));
        self.leave_unanswered(number);
        self.take_turn(number)
    }

    /// Keeps what the user said in a turn that has no answer.
    fn leave_unanswered(&mut self, number: TurnId) {
        let Some(turn) = self.turns.get(&number) else { return };
        let limit = self.config.max_history;
        self.sessions.change(&turn.session_id, |session| session.leave(turn.own.clone(), limit));
    }

    /// Forgets what the endpoint would not have: it would not have it with the next prompt either.
    fn forget_unanswered(&mut self, number: TurnId) {
        let Some(turn) = self.turns.get(&number) else { return };
        self.sessions.change(&turn.session_id, Session::settle);
    }

    fn take_turn(&mut self, number: TurnId) -> Option<Turn> {
        let turn = self.turns.remove(&number)?;
        self.in_flight -= turn.memory;
        // While a turn is stored its session may be closed and loaded anew, and have a turn of its own.
        if self.sessions.get(&turn.session_id).is_some_and(|session| session.turn == Some(number)) {
            self.sessions.change(&turn.session_id, |session| session.turn = None);
            self.sessions.touch(&turn.session_id, self.now);
            self.make_room();
            self.keep_choice(&turn.session_id, None);
        }
        Some(turn)
    }

    /// The end of the input, or of the process: cancels everything that can still be cancelled.
    pub fn cancel_all(&mut self) {
        let mut numbers: Vec<TurnId> = self.turns.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            self.cancel(number);
        }
    }

    /// How large the context window of a model is, in tokens, as far as anybody has said.
    fn window(&self, model: &str) -> Option<u64> {
        if let Some(told) = self.config.context_window {
            return Some(told).filter(|window| *window > 0);
        }
        let listed = self.models.known.iter().flatten().find(|known| known.id == model).and_then(|known| known.window);
        let told = listed.or_else(|| window::of_family(model));
        // What an endpoint says while it refuses a request holds before any list.
        [told, self.windows.get(model).copied()].into_iter().flatten().min()
    }

    /// Leaves out of a turn's request what would not fit into the model's window.
    pub fn fit(&mut self, number: TurnId) {
        let Some(turn) = self.turns.get(&number) else { return };
        let window = self.window(&turn.model);
        let Some(session) = self.sessions.get(&turn.session_id) else { return };
        let own = weight(&turn.user) + self.config.system_prompt.as_ref().map_or(0, String::len);
        let all = own + session.sent().map(Exchange::weight).sum::<usize>();
        let most = window.map(|window| (budget(window, self.config.max_tokens) as f64 / session.rate) as usize);
        // Some room is made at once: each turn that is left out costs the endpoint its cache.
        let most = most.filter(|most| all > *most).map(|most| (most - most / 4).saturating_sub(own));
        let is_blind = self.is_blind(turn);
        let fitted = self.sessions.change(&turn.session_id, |session| {
            let left_out = most.map_or(0, |most| session.leave_out(most));
            let said = |exchange: &Exchange| weight(&said(exchange, is_blind)) + weight(&exchange.assistant);
            (left_out, own + session.sent().map(said).sum::<usize>())
        });
        let Some((left_out, asked)) = fitted else { return };
        self.tell_left_out(number, left_out);
        self.tell_blind(number);
        if let Some(turn) = self.turns.get_mut(&number) {
            turn.asked = asked;
        }
    }

    /// A turn failed. If less of what was said before can be sent, and that promises more, it is to be asked again. That
    /// is so once for each reason.
    pub fn lighten(&mut self, number: TurnId, failure: &Failure) -> bool {
        let Some(turn) = self.turns.get(&number) else { return false };
        let has_said = !turn.answer.is_empty() || turn.thought_id.is_some() || !turn.held_thought.is_empty();
        !has_said && (self.leave_images_out(number, failure) || self.shorten(number, failure))
    }

    /// Leaves out the images of the turns before, which another model has seen, if the model of this one takes none.
    fn leave_images_out(&mut self, number: TurnId, failure: &Failure) -> bool {
        let Some(turn) = self.turns.get(&number) else { return false };
        let has_before = || {
            let session = self.sessions.get(&turn.session_id);
            session.is_some_and(|session| session.sent().any(|exchange| has_images(&exchange.user)))
        };
        // What it says of an image in the prompt itself is for the user.
        let is_blind = failure.is_of_images() && !self.is_blind(turn) && !has_images(&turn.user) && has_before();
        if let Some(turn) = self.turns.get_mut(&number) {
            turn.is_blind |= is_blind;
        }
        is_blind
    }

    /// Whether the images of the turns before are left out of a turn's request.
    fn is_blind(&self, turn: &Turn) -> bool {
        turn.is_blind || !self.config.image_input || self.blind.contains(&turn.model)
    }

    /// Tells the client, once for each model, that the images of the turns before are left out.
    fn tell_blind(&mut self, number: TurnId) {
        let Some(turn) = self.turns.get(&number).filter(|turn| self.is_blind(turn)) else { return };
        let Some(session) = self.sessions.get(&turn.session_id) else { return };
        let is_told = session.told_blind.as_ref() == Some(&turn.model);
        if is_told || !session.sent().any(|exchange| has_images(&exchange.user)) {
            return;
        }
        let text = format!("The images of earlier turns are left out: {} gets none.", turn.model);
        push_text(self.outbox.lines(), &turn.head, "agent_message_chunk", &uuid((self.dice)()), &text);
        self.sessions.change(&turn.session_id, |session| session.told_blind = Some(turn.model.clone()));
    }

    /// A turn failed. If that was because its request did not fit, and less can be sent, that is done.
    fn shorten(&mut self, number: TurnId, failure: &Failure) -> bool {
        let Some(overflow) = Overflow::of(failure) else { return false };
        let Some(turn) = self.turns.get_mut(&number) else { return false };
        if std::mem::replace(&mut turn.is_shortened, true) {
            return false;
        }
        if let Some(window) = overflow.window
            && (self.windows.len() < MOST_REFUSERS || self.windows.contains_key(&turn.model))
        {
            self.windows.insert(turn.model.clone(), window);
        }
        let (asked, max_tokens) = (turn.asked, self.config.max_tokens);
        let left_out = self.sessions.change(&turn.session_id, |session| {
            if let Some(tokens) = overflow.asked {
                session.rate = rate(tokens, asked);
            }
            let said = session.sent().map(Exchange::weight).sum::<usize>();
            let own = asked.saturating_sub(said);
            let most = overflow.window.map(|window| (budget(window, max_tokens) as f64 / session.rate) as usize);
            let most = most.map_or(said / 2, |most| most.saturating_sub(own).min(said.saturating_sub(1)));
            session.leave_out(most - most / 4)
        });
        let Some(left_out) = left_out else { return false };
        self.tell_left_out(number, left_out);
        left_out > 0
    }

    /// Tells the client, and the operator, that turns are not sent any more.
    fn tell_left_out(&mut self, number: TurnId, count: usize) {
        let Some(turn) = self.turns.get(&number).filter(|_| count > 0) else { return };
        let (turns, fit, them) = match count {
            1 => ("The oldest turn".to_owned(), "fits", "it"),
            _ => (format!("The {count} oldest turns"), "fit", "them"),
        };
        let window = self.window(&turn.model).map_or_else(String::new, |window| format!(" ({window} tokens)"));
        let text = format!(
            "{turns} of this conversation no longer {fit} into the context window of {}{window}: the model does not \
             see {them} any more.",
            turn.model
        );
        let message_id = uuid((self.dice)());
        push_text(self.outbox.lines(), &turn.head, "agent_message_chunk", &message_id, &text);
    }

    /// The model of a turn.
    pub fn model(&self, number: TurnId) -> Option<Rc<str>> {
        self.turns.get(&number).map(|turn| turn.model.clone())
    }

    /// What a turn's request says of the usual parameters: the client's choice, else the operator's.
    fn parameters(&self, turn: &Turn, session: &Session) -> Vec<(Parameter, Json)> {
        let choices = self.choices(&turn.model);
        let value = |parameter: Parameter| match session.chosen.get(parameter) {
            Some(value) if choices.contains(parameter) => Some(value.clone()),
            _ if parameter == Parameter::Temperature => self.config.temperature.map(Json::from),
            _ => None,
        };
        let said = Parameter::ALL.into_iter().filter_map(|parameter| Some((parameter, value(parameter)?)));
        said.collect()
    }

    /// The usual parameters that a turn's request names.
    pub fn parameters_of(&self, number: TurnId) -> Parameters {
        let Some(turn) = self.turns.get(&number) else { return Parameters::default() };
        let Some(session) = self.sessions.get(&turn.session_id) else { return Parameters::default() };
        self.parameters(turn, session).into_iter().map(|(parameter, _)| parameter).collect()
    }

    /// The body of a turn's request.
    pub fn request_body(&self, number: TurnId, dialect: Dialect) -> Option<Vec<u8>> {
        let turn = self.turns.get(&number)?;
        let session = self.sessions.get(&turn.session_id)?;
        let is_blind = self.is_blind(turn);
        let said = session.sent().flat_map(|exchange| [said(exchange, is_blind), Cow::from(&*exchange.assistant)]);
        let messages: Vec<Cow<'_, str>> = said.chain([Cow::from(&*turn.user)]).collect();
        let messages: Vec<&str> = messages.iter().map(|message| &**message).collect();
        Some(request_body(&Request {
            model: &turn.model,
            system_prompt: self.config.system_prompt.as_deref(),
            messages: &messages,
            max_tokens: self.config.max_tokens,
            parameters: &self.parameters(turn, session),
            dialect,
            extra: &self.config.extra_body,
        }))
    }

    /// A piece of a turn's answer.
    pub fn delta(&mut self, number: TurnId, kind: Kind, text: &str) {
        if self.is_full() {
            self.make_room();
        }
        let Some(turn) = self.turns.get_mut(&number) else { return };
        // Pieces of one kind are joined; what was held of the other kind goes first, to keep their order.
        let is_congested = self.outbox.is_congested();
        match kind {
            Kind::Text => {
                turn.answer.push_str(text);
                turn.memory += text.len();
                self.in_flight += text.len();
                if !turn.held_thought.is_empty() {
                    turn.tell_thought(&mut self.outbox, &mut *self.dice);
                }
            }
            Kind::Thought => {
                if turn.told < turn.answer.len() {
                    turn.tell_text(&mut self.outbox, &mut *self.dice);
                }
                turn.held_thought.push_str(text);
            }
        }
        if !is_congested {
            turn.tell(&mut self.outbox, &mut *self.dice);
            return;
        }
        if !turn.is_queued {
            turn.is_queued = true;
            self.holding.push_back(number);
        }
        if turn.held() >= MOST_HELD {
            turn.is_paused = true;
        }
    }

    /// Bytes of a turn's answer so far.
    pub fn answer_length(&self, number: TurnId) -> usize {
        self.turns.get(&number).map_or(0, |turn| turn.answer.len())
    }

    /// Whether a turn has to stop reading its stream until [`Effect::Resume`].
    pub fn is_paused(&self, number: TurnId) -> bool {
        self.turns.get(&number).is_some_and(|turn| turn.is_paused)
    }

    /// The shell wrote `count` bytes of the outbox; `blocked` says that the reader takes no more for now.
    pub fn wrote(&mut self, count: usize, blocked: bool) {
        self.outbox.wrote(count, blocked);
        while !self.outbox.is_congested() {
            let Some(number) = self.holding.pop_front() else { break };
            self.flush(number);
        }
    }

    fn flush(&mut self, number: TurnId) {
        let Some(turn) = self.turns.get_mut(&number) else { return };
        turn.tell(&mut self.outbox, &mut *self.dice);
        turn.is_queued = false;
        if std::mem::take(&mut turn.is_paused) {
            self.effects.push_back(Effect::Resume(number));
        }
    }

    /// A turn's answer is complete. If it is to be stored, the shell does that and calls [`Self::stored`]; else the
    /// prompt is answered now.
    pub fn complete(&mut self, number: TurnId, ending: Ending, now: SystemTime) -> Option<ToStore> {
        self.now = now;
        self.flush(number);
        let turn = self.turns.get_mut(&number)?;
        let session = self.sessions.get(&turn.session_id)?;
        let (is_refusal, is_empty) = (ending.stop == StopReason::Refusal, turn.answer.is_empty());
        let exchange = || Exchange { user: turn.user.clone(), assistant: Rc::from(assistant_message(&turn.answer)) };
        // ACP: what was refused, and the refusal, are not part of the next prompt. Of an empty answer (a call of a
        // tool that was not offered, perhaps) nothing can be remembered that endpoints would take back.
        let exchange = (!is_refusal && !is_empty).then(exchange);
        let header = (self.keeps_history && session.stored == 0).then(|| turn.header(session));
        if let Some(tools) = &ending.tools {
            turn.say_aside(&tools_text(tools), &mut self.outbox, &mut *self.dice);
        }
        let (limit, keeps_history) = (self.config.max_history, self.keeps_history);
        let to_store = self.sessions.change(&turn.session_id, |session| {
            session.updated = now;
            if let Some(usage) = &ending.usage {
                session.count(usage);
                session.rate = rate(usage.input_tokens, turn.asked);
            }
            let Some(exchange) = exchange else {
                match is_refusal {
                    true => session.settle(),
                    false => session.leave(turn.own.clone(), limit),
                }
                return None;
            };
            let to_store = keeps_history.then(|| ToStore {
                session_id: turn.session_id.to_string(),
                header,
                known: session.stored,
                entry: Entry {
                    user: exchange.user.to_string(),
                    assistant: exchange.assistant.to_string(),
                    choice: session.choice(),
                    usage: session.usage,
                    title: session.title.as_deref().map(str::to_owned),
                },
            });
            session.is_choice_kept |= keeps_history;
            session.settle();
            session.remember(exchange, limit);
            to_store
        });
        turn.ending = Some(ending);
        if turn.is_blind && self.blind.len() < MOST_REFUSERS {
            self.blind.insert(turn.model.clone());
        }
        match to_store.flatten() {
            Some(to_store) => {
                turn.phase = Phase::Storing;
                // What it held is remembered by its session now.
                self.in_flight -= std::mem::take(&mut turn.memory);
                self.make_room();
                Some(to_store)
            }
            None => {
                self.answer(number);
                None
            }
        }
    }

    /// Answers a prompt whose turn ended well.
    fn answer(&mut self, number: TurnId) {
        let Some(turn) = self.take_turn(number) else { return };
        let Some(ending) = turn.ending else { return };
        let mut result = json!({ "stopReason": ending.stop.name() });
        if let Some(usage) = &ending.usage {
            let session = self.sessions.get(&turn.session_id);
            let sum = session.and_then(|session| session.usage).unwrap_or(*usage);
            let is_known = session.is_none_or(|session| session.knows_usage_updates);
            if self.config.context_window != Some(0) && self.config.usage_updates.unwrap_or(is_known) {
                let window = self.window(&turn.model).unwrap_or(USUAL_WINDOW);
                let cost = sum
                    .cost
                    .map(|cost| format!(",\"cost\":{{\"amount\":{},\"currency\":\"USD\"}}", json!(cost.dollars())));
                let update = format!(
                    "\"sessionUpdate\":\"usage_update\",\"used\":{},\"size\":{window}{}",
                    usage.total_tokens,
                    cost.unwrap_or_default()
                );
                let out = self.outbox.lines();
                out.extend_from_slice(&turn.head);
                out.extend_from_slice(update.as_bytes());
                out.extend_from_slice(UPDATE_TAIL);
            }
            result["usage"] = sum.result();
        }
        push_result(self.outbox.lines(), &turn.reply, &result);
    }

    /// A turn failed: it is told in the configured style, and of it only what the user said stays, unless the endpoint
    /// would not have that.
    pub fn fail(&mut self, number: TurnId, failure: &Failure, now: SystemTime) {
        self.now = now;
        self.flush(number);
        match failure.is_refusal() {
            true => self.forget_unanswered(number),
            false => self.leave_unanswered(number),
        }
        let Some(mut turn) = self.take_turn(number) else { return };
        let url = self.config.shown_url();
        if self.config.errors == ErrorStyle::JsonRpc {
            return push_error(self.outbox.lines(), &turn.reply, &failure.rpc_error(&url));
        }
        turn.say_aside(&failure.text(&url), &mut self.outbox, &mut *self.dice);
        push_result(self.outbox.lines(), &turn.reply, &json!({ "stopReason": StopReason::EndTurn.name() }));
    }

    fn ticket(&mut self, pending: Pending) -> u64 {
        let ticket = self.number();
        self.pending.insert(ticket, pending);
        ticket
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn uuid(&mut self) -> String {
        uuid((self.dice)())
    }

    /// Every relation that must hold between two calls. For tests.
    ///
    /// # Panics
    /// If one does not.
    pub fn check_invariants(&self) {
        self.sessions.check_invariants();
        assert_eq!(self.in_flight, self.turns.values().map(|turn| turn.memory).sum::<usize>());
        for (number, turn) in &self.turns {
            if let Some(session) = self.sessions.get(&turn.session_id) {
                assert_eq!(session.turn, Some(*number), "a session knows its turn");
            }
            assert!(turn.told <= turn.answer.len());
            assert!(turn.held() == 0 || turn.is_queued, "held pieces are let out some time");
            assert!(!turn.is_paused || turn.is_queued, "who pauses is resumed");
            assert!(!turn.is_queued || self.holding.contains(number));
        }
        for (_, session) in self.sessions.iter() {
            assert!(session.turn.is_none_or(|number| self.turns.contains_key(&number)));
        }
    }
}

/// What the user said in a turn, for a model that takes images or takes none.
fn said(exchange: &Exchange, is_blind: bool) -> Cow<'_, str> {
    match is_blind {
        true => without_images(&exchange.user),
        false => Cow::from(&*exchange.user),
    }
}

/// The context window that is told where none is known, in tokens.
const USUAL_WINDOW: u64 = 128_000;

/// Tokens for each byte of a request. Short ones are mostly what endpoints put around them.
fn rate(tokens: u64, bytes: usize) -> f64 {
    const SHORT: u64 = 256;
    match tokens > SHORT && bytes > 0 {
        true => (tokens as f64 / bytes as f64).clamp(0.05, 2.0),
        false => USUAL_RATE,
    }
}

/// What is said of `mcpServers`.
pub const NO_SERVERS: &str = "MCP servers that clients name (mcpServers) are not used: this agent runs no tools.";

/// The one way to authenticate.
const AUTH_METHOD: &str = "env-api-key";

impl Turn {
    fn held(&self) -> usize {
        self.answer.len() - self.told + self.held_thought.len()
    }

    /// Puts what is held into the outbox.
    fn tell(&mut self, outbox: &mut Outbox, dice: &mut dyn FnMut() -> [u8; 16]) {
        if !self.held_thought.is_empty() {
            self.tell_thought(outbox, dice);
        }
        if self.told < self.answer.len() {
            self.tell_text(outbox, dice);
        }
    }

    fn tell_thought(&mut self, outbox: &mut Outbox, dice: &mut dyn FnMut() -> [u8; 16]) {
        let message_id = self.thought_id.get_or_insert_with(|| uuid(dice()).into());
        let mut rest = self.held_thought.as_str();
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(floor(rest, LONGEST_PIECE));
            push_text(outbox.lines(), &self.head, "agent_thought_chunk", message_id, piece);
            rest = more;
        }
        self.held_thought.clear();
        self.held_thought.shrink_to(1024);
    }

    /// Tells a message of its own, so that nobody takes it for the end of what the model said.
    fn say_aside(&mut self, text: &str, outbox: &mut Outbox, dice: &mut dyn FnMut() -> [u8; 16]) {
        self.message_id = None;
        self.told = self.answer.len();
        self.answer.push_str(if self.answer.is_empty() { "" } else { "\n\n" });
        self.answer.push_str(text);
        self.tell_text(outbox, dice);
    }

    fn tell_text(&mut self, outbox: &mut Outbox, dice: &mut dyn FnMut() -> [u8; 16]) {
        let message_id = self.message_id.get_or_insert_with(|| uuid(dice()).into());
        while self.told < self.answer.len() {
            let (told, rest) = self.answer.split_at(self.told);
            let piece = &rest[..floor(rest, piece_length(told, rest).min(LONGEST_PIECE))];
            push_text(outbox.lines(), &self.head, "agent_message_chunk", message_id, piece);
            self.told += piece.len();
        }
    }
}

/// What is told of tools that the model asked for.
fn tools_text(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| name.chars().take(64).collect()).collect();
    let named = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
    format!("The endpoint asked for tools, which this agent does not run{named}.")
}

/// How much of `rest` goes into the next chunk. Open Design takes a chunk that begins with all text so far for a
/// snapshot of the whole, and drops that beginning; such a piece is cut so that its chunks do not begin that way.
/// After a single character nothing can be cut: that case is left as it is.
fn piece_length(told: &str, rest: &str) -> usize {
    if told.is_empty() || !rest.starts_with(told) {
        return rest.len();
    }
    match told.char_indices().next_back() {
        Some((last, _)) if last > 0 => last,
        _ => rest.len(),
    }
}

/// The end of the last character that lies within the first `most` bytes (str::floor_char_boundary from Rust 1.91).
fn floor(text: &str, most: usize) -> usize {
    if most >= text.len() {
        return text.len();
    }
    (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn push_text(out: &mut Vec<u8>, head: &[u8], kind: &str, message_id: &str, text: &str) {
    out.extend_from_slice(head);
    out.extend_from_slice(b"\"sessionUpdate\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"messageId\":\"");
    out.extend_from_slice(message_id.as_bytes());
    out.extend_from_slice(b"\",\"content\":{\"type\":\"text\",\"text\":");
    push_string(out, text);
    out.push(b'}');
    out.extend_from_slice(UPDATE_TAIL);
}

/// Appends what the session is called from now on.
fn push_title(out: &mut Vec<u8>, head: &[u8], title: &str, updated: SystemTime) {
    out.extend_from_slice(head);
    out.extend_from_slice(b"\"sessionUpdate\":\"session_info_update\",\"title\":");
    push_string(out, title);
    out.extend_from_slice(format!(",\"updatedAt\":\"{}\"", to_the_second(updated)).as_bytes());
    out.extend_from_slice(UPDATE_TAIL);
}

/// The working directory of a session.
fn directory<'i>(params: Value<'_, 'i>) -> Result<&'i str, RpcError> {
    let cwd = text(params, "cwd")?;
    match cwd.len() <= LONGEST_WORD {
        true => Ok(cwd),
        false => Err(RpcError::invalid_params(format!("cwd is longer than {LONGEST_WORD} bytes"))),
    }
}

fn text<'i>(params: Value<'_, 'i>, name: &str) -> Result<&'i str, RpcError> {
    let found = params.get(name).and_then(|value| value.into_string());
    found.ok_or_else(|| RpcError::invalid_params(format!("{name} is missing or not a string")))
}

/// The value of an option: a text, or a number by clients that know what it is.
fn option_value(params: Value<'_, '_>) -> Result<String, RpcError> {
    let value = params.get("value").filter(|value| !value.is_null());
    let token = value.and_then(|value| match value.as_str() {
        Some(text) => Some(text.to_owned()),
        None => scalar_token(value).map(Into::into),
    });
    token.ok_or_else(|| RpcError::invalid_params("value is missing, or neither a string nor a number"))
}

fn uuid(mut bytes: [u8; 16]) -> String {
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex = u128::from_be_bytes(bytes);
    let hex = format!("{hex:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn ids_are_uuids() {
        assert_eq!(uuid([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid([0; 16]), "00000000-0000-4000-8000-000000000000");
    }

    #[test]
    fn pieces_do_not_begin_with_all_that_was_told() {
        assert_eq!(piece_length("", "abc"), 3);
        assert_eq!(piece_length("ab", "abab"), 1);
        assert_eq!(piece_length("aé", "aéx"), 1);
        assert_eq!(piece_length("ab", "ba"), 2);
        assert_eq!(piece_length("a", "ab"), 2);
    }

    /// What may happen between two looks at the outbox.
    #[derive(Clone, Debug)]
    enum Step {
        Prompt(usize),
        Cancel(usize),
        CancelRequest(usize),
        Close(usize),
        Thought(usize, String),
        Text(usize, String),
        Complete(usize),
        Fail(usize),
        Write(usize, bool),
        Line(String),
    }

    fn step() -> impl Strategy<Value = Step> {
        let turn = 0usize..4;
        let text = |longest: usize| {
            (any::<u8>(), 1..longest).prop_map(|(seed, length)| {
                (0..length).map(|index| char::from(b'a' + (seed ^ (index as u8 & 7)) % 3)).collect::<String>()
            })
        };
        prop_oneof![
            3 => turn.clone().prop_map(Step::Prompt),
            1 => turn.clone().prop_map(Step::Cancel),
            1 => turn.clone().prop_map(Step::CancelRequest),
            1 => turn.clone().prop_map(Step::Close),
            3 => (turn.clone(), text(9_000)).prop_map(|(turn, text)| Step::Thought(turn, text)),
            9 => (turn.clone(), prop_oneof![text(4), text(20_000)]).prop_map(|(turn, text)| Step::Text(turn, text)),
            2 => turn.clone().prop_map(Step::Complete),
            1 => turn.prop_map(Step::Fail),
            9 => (0usize..60_000, any::<bool>()).prop_map(|(count, blocked)| Step::Write(count, blocked)),
            1 => "\\PC{0,30}".prop_map(Step::Line),
        ]
    }

    /// What was said in the turn of a request.
    #[derive(Default)]
    struct Said {
        session: String,
        thoughts: String,
        texts: String,
        has_failed: bool,
    }

    /// A client, an endpoint and a writer around an agent; it remembers what was asked and what was said.
    struct World {
        agent: Agent,
        reader: Reader,
        read: Vec<u8>,
        sessions: Vec<String>,
        /// The request and the turn that runs in each session.
        running: Vec<Option<(u64, TurnId)>>,
        said: HashMap<u64, Said>,
        next_id: u64,
    }

    impl World {
        fn new() -> Self {
            let mut count = 0u128;
            let dice = move || {
                count += 1;
                count.to_be_bytes()
            };
            let config = Config::from_env(&mut |_| None).unwrap();
            let agent = Agent::new(Rc::new(config), Box::new(dice));
            let (sessions, running) = (Vec::new(), vec![None; 4]);
            let reader = Reader::default();
            let mut world =
                Self { agent, reader, read: Vec::new(), sessions, running, said: HashMap::new(), next_id: 0 };
            for _ in 0..4 {
                world.open();
            }
            world
        }

        fn open(&mut self) {
            self.ask("session/new", json!({"cwd": "/"}));
            let lines = std::mem::take(&mut self.read);
            self.write(usize::MAX, false);
            let lines = [lines, std::mem::take(&mut self.read)].concat();
            let last = lines.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).unwrap();
            let answer: Json = serde_json::from_slice(last).unwrap();
            self.sessions.push(answer["result"]["sessionId"].as_str().unwrap().to_owned());
            self.read = lines;
        }

        fn ask(&mut self, method: &str, params: Json) -> u64 {
            self.next_id += 1;
            let id = self.next_id;
            self.line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
            id
        }

        fn line(&mut self, line: &str) {
            self.agent.handle_line(line.as_bytes(), &mut self.reader, UNIX_EPOCH);
        }

        fn write(&mut self, count: usize, blocked: bool) {
            let count = count.min(self.agent.outbox().len());
            self.read.extend_from_slice(&self.agent.outbox().waiting()[..count]);
            self.agent.wrote(count, blocked);
        }

        fn act(&mut self, step: Step) {
            match step {
                Step::Prompt(slot) => {
                    let params = json!({"sessionId": self.sessions[slot], "prompt": [{"type": "text", "text": "hi"}]});
                    let is_busy = self.running[slot].is_some();
                    let id = self.ask("session/prompt", params);
                    let mut started = None;
                    while let Some(effect) = self.agent.next_effect() {
                        if let Effect::Start(turn) = effect {
                            started = Some(turn);
                        }
                    }
                    assert_eq!(started.is_none(), is_busy);
                    if let Some(turn) = started {
                        self.running[slot] = Some((id, turn));
                        self.said.insert(id, Said { session: self.sessions[slot].clone(), ..Said::default() });
                    }
                }
                Step::Cancel(slot) => {
                    self.ask("session/cancel", json!({"sessionId": self.sessions[slot]}));
                    self.running[slot] = None;
                }
                Step::CancelRequest(slot) => {
                    if let Some((id, _)) = self.running[slot].take() {
                        let params = json!({"requestId": id});
                        self.line(
                            &json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": params}).to_string(),
                        );
                    }
                }
                Step::Close(slot) => {
                    self.ask("session/close", json!({"sessionId": self.sessions[slot]}));
                    self.running[slot] = None;
                    self.open();
                    self.sessions.swap_remove(slot);
                }
                Step::Thought(slot, text) => self.say(slot, Kind::Thought, &text),
                Step::Text(slot, text) => self.say(slot, Kind::Text, &text),
                Step::Complete(slot) => {
                    if let Some((_, turn)) = self.running[slot].take() {
                        let ending = Ending { stop: StopReason::EndTurn, usage: None, tools: None };
                        assert!(self.agent.complete(turn, ending, UNIX_EPOCH).is_none());
                        // What comes late for it is dropped.
                        self.agent.delta(turn, Kind::Text, "late");
                    }
                }
                Step::Fail(slot) => {
                    if let Some((id, turn)) = self.running[slot].take() {
                        self.agent.fail(turn, &Failure::Network("FAILED".to_owned()), UNIX_EPOCH);
                        self.said.get_mut(&id).unwrap().has_failed = true;
                    }
                }
                Step::Write(count, blocked) => self.write(count, blocked),
                Step::Line(line) => self.line(&line),
            }
            while self.agent.next_effect().is_some() {}
            self.agent.check_invariants();
        }

        fn say(&mut self, slot: usize, kind: Kind, text: &str) {
            let Some((id, turn)) = self.running[slot] else { return };
            // A turn that is paused reads nothing.
            if self.agent.is_paused(turn) {
                return;
            }
            self.agent.delta(turn, kind, text);
            let said = self.said.get_mut(&id).unwrap();
            match kind {
                Kind::Thought => said.thoughts.push_str(text),
                Kind::Text => said.texts.push_str(text),
            }
            let turn = &self.agent.turns[&turn];
            assert!(turn.held() < MOST_HELD + text.len(), "what is held is bounded");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn whatever_happens_every_request_is_answered_once_after_all_that_was_said(
            steps in proptest::collection::vec(step(), 1..120),
        ) {
            let mut world = World::new();
            for step in steps {
                world.act(step);
            }
            world.agent.cancel_all();
            while !world.agent.outbox().is_empty() {
                world.write(usize::MAX, false);
            }
            world.agent.check_invariants();
            prop_assert!(world.agent.is_idle());

            // Updates of a session between two answers to its prompts belong to the latter.
            let mut heard: HashMap<String, (String, String)> = HashMap::new();
            let mut answered: HashMap<u64, usize> = HashMap::new();
            let text = String::from_utf8(world.read).unwrap();
            for line in text.lines() {
                let line: Json = serde_json::from_str(line).unwrap();
                if line["method"] == "session/update" {
                    let update = &line["params"]["update"];
                    if update["sessionUpdate"] == "session_info_update" {
                        continue;
                    }
                    let heard = heard.entry(line["params"]["sessionId"].as_str().unwrap().to_owned()).or_default();
                    let text = update["content"]["text"].as_str().unwrap();
                    match update["sessionUpdate"].as_str().unwrap() {
                        "agent_thought_chunk" => heard.0.push_str(text),
                        _ => heard.1.push_str(text),
                    }
                } else if let Some(id) = line["id"].as_u64() {
                    *answered.entry(id).or_default() += 1;
                    if let Some(said) = world.said.get(&id) {
                        let (thoughts, texts) = heard.remove(&said.session).unwrap_or_default();
                        prop_assert_eq!(&thoughts, &said.thoughts);
                        prop_assert!(texts.starts_with(&said.texts), "all that was said is told before the answer");
                        prop_assert_eq!(texts[said.texts.len()..].contains("FAILED"), said.has_failed);
                        prop_assert!(said.has_failed || texts.len() == said.texts.len());
                    }
                }
            }
            prop_assert!(heard.is_empty(), "nothing is said after the answer");
            for id in 1..=world.next_id {
                prop_assert_eq!(answered.get(&id), Some(&1), "request {}", id);
            }
        }
    }
}
