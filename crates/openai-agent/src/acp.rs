//! The agent itself: ACP's methods, the sessions and the running turns. It decides and does no IO.
//!
//! The shell calls [`Agent::handle_line`] for every line of stdin and [`Agent::delta`], [`Agent::complete`] and
//! [`Agent::fail`] for what an endpoint sends; after each call it drains [`Agent::next_effect`] and writes what
//! [`Agent::outbox`] holds. Clock and random source are arguments.
//!
//! Invariants: a request is answered exactly once, and the answer to a prompt is the last line of its turn; a session
//! has at most one turn; input for a turn that is over is dropped.

mod archive;
#[cfg(test)]
mod scenes;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod trial;
mod turn;
mod turn_text;

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use super::answer::Ending;
use super::config::{Config, Level};
use super::dialect::Model;
use super::history::{Entry, Header};
use super::json::Raw;
use super::rpc::{self, Envelope, Message, Reply, RpcError, push_error, push_result, text, uuid, word};
use super::session::{Session, Sessions, TurnId};
use super::stdio::Outbox;
use turn_text::TurnText;

/// The warning about `mcpServers`.
pub const NO_SERVERS: &str = "MCP servers that clients name (mcpServers) are not used: this agent runs no tools.";

/// The outcome of a request: its result, if it is known already.
type Outcome = Result<Option<Json>, RpcError>;

/// Bytes of an answer that are held while the reader is slow; a turn that holds more stops reading its stream.
pub const MOST_HELD: usize = 16 << 10;

/// Number of models whose context window is remembered.
const MOST_MODELS: usize = 1000;

/// An action for the shell.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Run this turn: ask the endpoint.
    Start(TurnId),
    /// Drop this turn and its connection at once.
    Stop(TurnId),
    /// This turn may read its stream again.
    Resume(TurnId),
    /// Read this session from the disk, then call [`Agent::loaded`].
    Load(Load),
    /// List the sessions on the disk, those with this working directory, then call [`Agent::listed`].
    List(Reply, Option<String>),
    /// Delete this session from the disk, then call [`Agent::deleted`].
    Delete(Reply, String),
    /// Fetch the list of models, then call [`Agent::models_known`].
    FetchModels,
    Log(Level, String),
}

/// A session to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    pub reply: Reply,
    pub session_id: String,
    pub cwd: String,
    /// Whether its messages are replayed to the client.
    pub replay: bool,
}

/// What a turn needs to be stored.
#[derive(Debug)]
pub struct ToStore {
    /// The first line of the session's file, if there is none yet.
    pub header: Header,
    /// The line to add.
    pub entry: Entry,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Running,
    Storing,
}

/// One run of a prompt.
#[derive(Default)]
struct Turn {
    pub session_id: Rc<str>,
    pub reply: Reply,
    /// The message to send, and what the user said in this turn.
    pub user: Rc<str>,
    pub own: Rc<str>,
    pub model: Rc<str>,
    pub phase: Phase,
    pub said: TurnText,
    /// Bytes of the message and of the answer so far, counted against the memory limit.
    pub memory: usize,
    pub is_queued: bool,
    pub is_paused: bool,
    /// A shorter request was sent after the endpoint had refused the whole.
    pub is_shortened: bool,
    pub ending: Option<Ending>,
}

/// The models to choose from.
#[derive(Default)]
struct Models {
    pub known: Option<Vec<Model>>,
    /// Being fetched: the answers that wait for them.
    pub waiting: Option<Vec<(Reply, Rc<str>)>>,
    /// They are not fetched again before this time; never, if they are not to be fetched at all.
    pub fresh_until: Option<SystemTime>,
}

pub struct Agent {
    config: Rc<Config>,
    sessions: Sessions,
    turns: HashMap<TurnId, Turn>,
    /// Total bytes held by turns.
    in_flight: usize,
    /// Turns that hold pieces, in the order in which they began to hold them.
    holding: VecDeque<TurnId>,
    /// Requests to the disk that are not answered yet.
    pending: usize,
    models: Models,
    /// Context windows reported by the endpoint, in tokens.
    windows: HashMap<Rc<str>, u64>,
    outbox: Outbox,
    effects: VecDeque<Effect>,
    next_number: TurnId,
    dice: Box<dyn FnMut() -> [u8; 16]>,
    has_noted_servers: bool,
    /// Whether the client that initialized last is new enough for `usage_update`. It is assumed to open the next
    /// sessions, which is true unless several clients share the process.
    knows_usage_updates: bool,
}

fn unsupported(method: &str, why: &str) -> RpcError {
    let message = format!("{method} is not supported: {why}");
    RpcError { message, ..RpcError::method_not_found(method) }
}

impl Agent {
    /// An agent without sessions. `dice` returns random bytes for ids.
    pub fn new(config: Rc<Config>, dice: Box<dyn FnMut() -> [u8; 16]>) -> Self {
        let models = Models {
            known: config.models.as_ref().map(|names| names.iter().map(|name| Model::named(name)).collect()),
            // The shell fetches them at startup.
            waiting: config.fetch_models.then(Vec::new),
            fresh_until: None,
        };
        Self {
            config,
            sessions: Sessions::default(),
            turns: Default::default(),
            in_flight: 0,
            holding: Default::default(),
            pending: 0,
            models,
            windows: Default::default(),
            outbox: Outbox::default(),
            effects: Default::default(),
            next_number: 0,
            dice,
            has_noted_servers: false,
            knows_usage_updates: true,
        }
    }

    /// The lines to be written.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Returns the next action for the shell.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Whether no work for the client is in progress.
    pub fn is_idle(&self) -> bool {
        self.turns.is_empty() && self.pending == 0 && self.outbox.is_empty()
    }

    /// One line from the client, without its end.
    pub fn handle_line(&mut self, line: &[u8], now: SystemTime) {
        let message = match Raw::strict(line) {
            Ok(value) => rpc::classify(value),
            Err(problem) => {
                return self.refuse_line(&Envelope::of(line), RpcError::new(-32700, format!("Parse error: {problem}")));
            }
        };
        match message {
            Message::Request(reply, method, params) => {
                // A request without a result is answered when it is done.
                let outcome = self.request(&reply, &method, params, now).transpose();
                outcome.into_iter().for_each(|outcome| self.reply(&reply, outcome));
            }
            Message::Notification(method, params) => self.notification(&method, params),
            Message::Response => {}
            Message::Invalid(reply, error) => self.reply(&reply, Err(error)),
        }
    }

    /// Answers a request.
    fn reply(&mut self, reply: &Reply, outcome: Result<Json, RpcError>) {
        match outcome {
            Ok(result) => push_result(self.outbox.lines(), reply, &result),
            Err(error) => push_error(self.outbox.lines(), reply, &error),
        }
    }

    /// Handles a line that was longer than the configured limit and was skipped.
    pub fn handle_long_line(&mut self, found: &Envelope) {
        let limit = self.config.limits.line;
        let message = format!("A line is longer than the limit of {limit} bytes (OPENAI_MAX_LINE_BYTES)");
        self.refuse_line(found, RpcError::invalid_request(message));
    }

    fn refuse_line(&mut self, found: &Envelope, error: RpcError) {
        if !found.is_response {
            self.reply(&found.reply, Err(error));
        }
    }

    fn request(&mut self, reply: &Reply, method: &str, params: Raw<'_>, now: SystemTime) -> Outcome {
        if !params.is_object() && !params.is_null() {
            return Err(RpcError::invalid_params("params is not an object"));
        }
        match method {
            "initialize" => Ok(Some(self.initialize(params))),
            // There is nothing to do for any method: the key is in the environment.
            "authenticate" => Ok(Some(json!({}))),
            "session/new" => self.new_session(reply, params, now),
            "session/load" | "session/resume" | "session/delete" if !self.keeps_history() => {
                Err(unsupported(method, "no history is kept (set OPENAI_HISTORY_DIR to keep it)"))
            }
            "session/load" | "session/resume" => {
                self.refresh_models(now);
                self.load_session(reply, params, method == "session/load")
            }
            "session/delete" => {
                let session_id = text(params, "sessionId")?;
                self.cancel_session(&session_id);
                self.sessions.remove(&session_id);
                Ok(self.ask_disk(Effect::Delete(reply.clone(), session_id.into_owned())))
            }
            "session/list" if !self.config.list_sessions => Err(unsupported(method, "OPENAI_LIST_SESSIONS is none")),
            "session/list" => self.list_sessions(reply, params),
            "session/close"
            | "session/set_config_option"
            | "session/set_model"
            | "session/prompt"
            | "session/cancel"
            | "cancel" => self.of_session(reply, method, params, now),
            _ => Err(RpcError::method_not_found(method)),
        }
    }

    /// A request that names an open session.
    fn of_session(&mut self, reply: &Reply, method: &str, params: Raw<'_>, now: SystemTime) -> Outcome {
        let session_id = text(params, "sessionId")?;
        let Some((session_id, session)) = self.sessions.find(&session_id) else {
            return Err(RpcError::unknown_session(&session_id));
        };
        let session_id = session_id.clone();
        match method {
            "session/prompt" => {
                if session.turn.is_some() {
                    let error = RpcError::invalid_request("A prompt of this session is still running; cancel it first");
                    return Err(RpcError { data: Some(json!({ "sessionId": &*session_id })), ..error });
                }
                return self.prompt(reply, &session_id, params, now);
            }
            "session/set_config_option" => {
                let option = text(params, "configId")?;
                if option != "model" {
                    let message = format!("{option:?} is not a configuration option; there is model");
                    return Err(RpcError::invalid_params(message));
                }
                self.set_model(&session_id, &word(params, "value")?)?;
                let options = self.sessions.get(&session_id).map(|session| self.config_options(session));
                return Ok(Some(json!({ "configOptions": options })));
            }
            "session/set_model" => {
                let model = word(params, "modelId").or_else(|lack| word(params, "model").map_err(|_| lack))?;
                self.set_model(&session_id, &model)?;
            }
            // A client that cancels with an id wants to know that it was received. The RFD calls it `cancel`.
            _ => self.cancel_session(&session_id),
        }
        if method == "session/close" {
            self.sessions.remove(&session_id);
        }
        Ok(Some(json!({})))
    }

    fn notification(&mut self, method: &str, params: Raw<'_>) {
        match method {
            "session/cancel" | "cancel" => {
                if let Some(session_id) = params.get_text("sessionId") {
                    self.cancel_session(&session_id);
                }
            }
            "$/cancel_request" => {
                let id = params.get("requestId").and_then(Raw::scalar);
                let named = |turn: &Turn| Some(&*turn.reply.id) == id && turn.phase == Phase::Running;
                let found = self.turns.iter().filter(|(_, turn)| named(turn)).map(|(number, _)| *number).min();
                if let Some(number) = found {
                    self.flush(number, true);
                    if let Some(turn) = self.drop_turn(number) {
                        self.reply(&turn.reply, Err(RpcError::new(-32800, "Request cancelled")));
                    }
                }
            }
            // Unknown notifications are ignored.
            _ => {}
        }
    }

    fn initialize(&mut self, params: Raw<'_>) -> Json {
        // Nothing else in version 1 of the protocol shows how old a client is: updates were added without notice, and
        // some parsers reject those that they do not know.
        self.knows_usage_updates = params.get("clientInfo").is_some_and(Raw::is_object);
        let mut session = json!({ "close": {} });
        if self.keeps_history() {
            session = json!({ "close": {}, "resume": {}, "delete": {} });
        }
        if self.config.list_sessions {
            session["list"] = json!({});
        }
        json!({
            "protocolVersion": 1,
            "agentCapabilities": {
                "loadSession": self.keeps_history(),
                "promptCapabilities": { "image": self.config.image_input, "audio": false, "embeddedContext": true },
                "sessionCapabilities": session,
            },
            "agentInfo": { "name": "openai-agent", "title": "OpenAI Agent", "version": env!("CARGO_PKG_VERSION") },
            "authMethods": [{
                "id": "env-api-key",
                "name": "API key from OPENAI_API_KEY",
                "description": "The agent reads the key of its endpoint from its environment; nothing has to be done here.",
            }],
        })
    }

    fn keeps_history(&self) -> bool {
        self.config.history_dir.is_some()
    }

    fn new_session(&mut self, reply: &Reply, params: Raw<'_>, now: SystemTime) -> Outcome {
        let cwd = word(params, "cwd")?;
        self.need_room_for_a_session()?;
        self.note_servers(params);
        let session_id: Rc<str> = uuid((self.dice)()).into();
        let mut session = Session::new(&cwd, self.config.model.as_str().into(), now);
        session.knows_usage_updates = self.knows_usage_updates;
        self.sessions.insert(session_id.clone(), session);
        self.refresh_models(now);
        Ok(self.describe(reply, session_id))
    }

    /// Ends the longest unused session if there are too many.
    fn need_room_for_a_session(&mut self) -> Result<(), RpcError> {
        let most = self.config.limits.sessions;
        if self.sessions.count() < most {
            return Ok(());
        }
        let Some(unused) = self.sessions.least_recently_used() else {
            return Err(RpcError::new(
                -32603,
                format!("No more than {most} sessions may be open, and all of them are busy"),
            ));
        };
        let message = format!("Session {unused} has ended: it was the longest unused one of {most}.");
        self.effects.push_back(Effect::Log(Level::Info, message));
        self.sessions.remove(&unused);
        Ok(())
    }

    /// A client that names MCP servers expects tools, but this agent has none: it is logged once.
    fn note_servers(&mut self, params: Raw<'_>) {
        let has_servers = params.get("mcpServers").is_some_and(|servers| servers.items().next().is_some());
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
        let models: Vec<Json> =
            self.offered(session).iter().map(|model| json!({ "modelId": model, "name": model })).collect();
        // The spec leaves the id out of the answer to session/load; Open Design wants it there.
        Some(json!({
            "sessionId": &*session_id,
            "configOptions": self.config_options(session),
            "models": { "currentModelId": &*session.model, "availableModels": models },
        }))
    }

    /// Fetches the models again if the list is old or missing, for a client that is about to see them.
    fn refresh_models(&mut self, now: SystemTime) {
        if self.models.waiting.is_none() && self.models.fresh_until.is_some_and(|until| now >= until) {
            self.models.waiting = Some(Vec::new());
            self.effects.push_back(Effect::FetchModels);
        }
    }

    /// Sets the models that can be chosen; `None` means that they could not be fetched, and the previous ones stay.
    /// They are not fetched again before `fresh_until`.
    pub fn models_known(&mut self, models: Option<Vec<Model>>, fresh_until: SystemTime) {
        self.models.fresh_until = Some(fresh_until);
        if models.is_some() {
            self.models.known = models;
        }
        for (reply, session_id) in self.models.waiting.take().unwrap_or_default() {
            let result = self.describe(&reply, session_id.clone());
            self.reply(&reply, result.ok_or_else(|| RpcError::unknown_session(&session_id)));
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
        let models = self.offered(session);
        let models: Vec<Json> = models.iter().map(|model| json!({ "value": model, "name": model })).collect();
        json!([{
            "id": "model",
            "name": "Model",
            "category": "model",
            "type": "select",
            "currentValue": &*session.model,
            "options": models,
        }])
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
        if let Some(listed) = self.config.refuses_model(model) {
            let message = format!("{model:?} is not one of the models offered: {}", listed.join(", "));
            return Err(RpcError::invalid_params(message));
        }
        self.sessions.change(session_id, |session| session.model = model.into());
        self.sessions.touch(session_id);
        Ok(())
    }

    /// Checks every relation that must hold between two calls. For tests.
    ///
    /// # Panics
    /// If one does not hold.
    #[cfg(test)]
    pub fn check_invariants(&self) {
        self.sessions.check_invariants();
        assert_eq!(self.in_flight, self.turns.values().map(|turn| turn.memory).sum::<usize>());
        for (number, turn) in &self.turns {
            if let Some(session) = self.sessions.get(&turn.session_id) {
                assert_eq!(session.turn, Some(*number), "a session knows its turn");
            }
            assert!(turn.said.held() == 0 || turn.is_queued, "held pieces are let out some time");
            assert!(!turn.is_paused || turn.is_queued, "a paused turn will be resumed");
            assert!(!turn.is_queued || self.holding.contains(number));
        }
        for (_, session) in self.sessions.iter() {
            assert!(session.turn.is_none_or(|number| self.turns.contains_key(&number)));
        }
    }
}
