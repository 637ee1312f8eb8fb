//! A turn: from the prompt to its answer, everything sent to the client, and how much of the conversation is sent to
//! the endpoint: less if the endpoint says that it is too long, or that it takes no images.

use std::borrow::Cow;
use std::rc::Rc;
use std::time::SystemTime;

use serde_json::json;

use super::turn_text::TurnText;
use super::{Agent, Effect, MOST_HELD, MOST_MODELS, Outcome, Phase, ToStore, Turn};
use crate::answer::{Ending, StopReason};
use crate::chunk::Kind;
use crate::config::Level;
use crate::convert::{assistant_message, has_images, request_body, user_message, without_images};
use crate::dialect::Dialect;
use crate::dialect::{Overflow, USUAL_RATE, budget, weight};
use crate::failure::Failure;
use crate::history::{Entry, Header};
use crate::json::Raw;
use crate::rpc::{Reply, RpcError, push_result, push_title, update_head};
use crate::session::{Exchange, Session, TurnId};

/// The message about tools that the model asked for.
const NO_TOOLS: &str = "The endpoint asked for tools, which this agent does not run.";

/// What the user reads in place of an answer without text.
fn of_no_text(stop: StopReason) -> &'static str {
    match stop {
        StopReason::MaxTokens => "The answer reached its limit of tokens before it had any text.",
        StopReason::Refusal => "The endpoint refused to answer this.",
        _ => "The endpoint's answer has no text.",
    }
}

/// The context window assumed where none is known, in tokens.
const USUAL_WINDOW: u64 = 128_000;

impl Agent {
    pub(super) fn prompt(&mut self, reply: &Reply, session_id: &Rc<str>, params: Raw<'_>, now: SystemTime) -> Outcome {
        let prompt = params.get("prompt").ok_or_else(|| RpcError::invalid_params("prompt is missing"))?;
        let user = user_message(prompt, self.config.image_input)?;
        let own: Rc<str> = user.json.into();
        self.next_number += 1;
        let number = self.next_number;
        let head = update_head(session_id, reply.route.as_deref());
        let begun = self.sessions.change(session_id, |session| {
            session.turn = Some(number);
            session.updated = now;
            let is_new = session.title.is_none() && !user.title.is_empty();
            if is_new {
                session.title = Some(user.title.as_str().into());
            }
            (session.message(&own), session.model.clone(), is_new)
        });
        let Some((message, model, is_new)) = begun else { return Err(RpcError::unknown_session(session_id)) };
        if is_new {
            push_title(self.outbox.lines(), &head, &user.title, now);
        }
        let memory = own.len() + if Rc::ptr_eq(&own, &message) { 0 } else { message.len() };
        let turn = Turn {
            memory,
            said: TurnText::new(head.into()),
            session_id: session_id.clone(),
            reply: reply.clone(),
            user: message,
            own,
            model,
            ..Turn::default()
        };
        self.turns.insert(number, turn);
        self.in_flight += memory;
        self.sessions.touch(session_id);
        self.make_room();
        self.effects.push_back(Effect::Start(number));
        Ok(None)
    }

    /// Drops turns from memory while all conversations together exceed the memory limit.
    pub(super) fn make_room(&mut self) {
        let limit = self.config.limits.memory;
        for session_id in self.sessions.shrink(limit.saturating_sub(self.in_flight)) {
            let mib = limit >> 20;
            let message = format!(
                "Session {session_id}: the oldest turns were forgotten, for all conversations together take more than \
                 {mib} MiB. What is on the disk comes back with session/load."
            );
            self.effects.push_back(Effect::Log(Level::Warn, message));
        }
    }

    pub(super) fn cancel_session(&mut self, session_id: &str) {
        if let Some(number) = self.sessions.get(session_id).and_then(|session| session.turn) {
            self.cancel(number);
        }
    }

    fn cancel(&mut self, number: TurnId) {
        // A turn that is being stored is already answered except for the last line, which is on its way.
        if self.turns.get(&number).is_none_or(|turn| turn.phase == Phase::Storing) {
            return;
        }
        self.flush(number, true);
        if let Some(turn) = self.drop_turn(number) {
            let result = json!({ "stopReason": StopReason::Cancelled });
            push_result(self.outbox.lines(), &turn.reply, &result);
        }
    }

    /// Removes a running turn and drops its connection. The user's message stays.
    pub(super) fn drop_turn(&mut self, number: TurnId) -> Option<Turn> {
        self.effects.push_back(Effect::Stop(number));
        self.leave_unanswered(number);
        self.take_turn(number)
    }

    /// Keeps the user's message of a turn without an answer.
    fn leave_unanswered(&mut self, number: TurnId) {
        let Some(turn) = self.turns.get(&number) else { return };
        let limit = self.config.limits.history;
        self.sessions.change(&turn.session_id, |session| session.leave(turn.own.clone(), limit));
    }

    fn take_turn(&mut self, number: TurnId) -> Option<Turn> {
        let turn = self.turns.remove(&number)?;
        self.in_flight -= turn.memory;
        // While a turn is stored its session may be closed and loaded anew, and run another turn.
        if self.sessions.get(&turn.session_id).is_some_and(|session| session.turn == Some(number)) {
            self.sessions.change(&turn.session_id, |session| session.turn = None);
            self.sessions.touch(&turn.session_id);
            self.make_room();
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

    /// The model of a turn.
    pub fn model(&self, number: TurnId) -> Option<Rc<str>> {
        self.turns.get(&number).map(|turn| turn.model.clone())
    }

    /// A piece of a turn's answer.
    pub fn delta(&mut self, number: TurnId, kind: Kind, text: &str) {
        if self.sessions.bytes() + self.in_flight > self.config.limits.memory {
            self.make_room();
        }
        let Some(turn) = self.turns.get_mut(&number) else { return };
        if kind == Kind::Text {
            turn.memory += text.len();
            self.in_flight += text.len();
        }
        turn.said.push(kind, text, &mut self.outbox, &mut *self.dice);
        if turn.said.held() > 0 && !std::mem::replace(&mut turn.is_queued, true) {
            self.holding.push_back(number);
        }
        turn.is_paused |= turn.said.held() >= MOST_HELD;
    }

    /// Bytes of a turn's answer so far.
    pub fn answer_length(&self, number: TurnId) -> usize {
        self.turns.get(&number).map_or(0, |turn| turn.said.answer().len())
    }

    /// Whether a turn must stop reading its stream until [`Effect::Resume`].
    pub fn is_paused(&self, number: TurnId) -> bool {
        self.turns.get(&number).is_some_and(|turn| turn.is_paused)
    }

    /// The shell wrote `count` bytes of the outbox; `blocked` means that the reader takes no more for now.
    pub fn wrote(&mut self, count: usize, blocked: bool) {
        self.outbox.wrote(count, blocked);
        while !self.outbox.is_congested() {
            let Some(number) = self.holding.pop_front() else { break };
            self.flush(number, false);
        }
    }

    /// Sends what a turn holds: all of it, or as much as the reader takes.
    pub(super) fn flush(&mut self, number: TurnId, all: bool) {
        let Some(turn) = self.turns.get_mut(&number) else { return };
        turn.said.send(&mut self.outbox, &mut *self.dice, all);
        turn.is_queued = turn.said.held() > 0;
        if turn.is_queued {
            self.holding.push_back(number);
        }
        if turn.said.held() < MOST_HELD && std::mem::take(&mut turn.is_paused) {
            self.effects.push_back(Effect::Resume(number));
        }
    }

    /// Completes a turn's answer. If it is to be stored, the shell does that and calls [`Self::stored`]; else the
    /// prompt is answered now.
    pub fn complete(&mut self, number: TurnId, ending: Ending, now: SystemTime) -> Option<ToStore> {
        self.flush(number, true);
        let turn = self.turns.get_mut(&number)?;
        let (is_refusal, is_empty) = (ending.stop == StopReason::Refusal, turn.said.answer().trim().is_empty());
        let exchange =
            || Exchange { user: turn.user.clone(), assistant: Rc::from(assistant_message(turn.said.answer())) };
        // ACP: a refused message and the refusal are not part of the next prompt. An empty answer (a call of a tool
        // that was not offered, perhaps) is not kept: endpoints would reject it.
        let exchange = (!is_refusal && !is_empty).then(exchange);
        if ending.wants_tools {
            turn.said.say_aside(NO_TOOLS, &mut self.outbox, &mut *self.dice);
        } else if is_empty {
            turn.said.say_aside(of_no_text(ending.stop), &mut self.outbox, &mut *self.dice);
        }
        let (limit, keeps_history) = (self.config.limits.history, self.config.history_dir.is_some());
        let to_store = self.sessions.change(&turn.session_id, |session| {
            session.updated = now;
            if let Some(usage) = &ending.usage {
                session.count(usage);
            }
            let Some(exchange) = exchange else {
                if is_refusal {
                    session.settle()
                } else {
                    session.leave(turn.own.clone(), limit)
                }
                return None;
            };
            let to_store = keeps_history.then(|| to_store(turn, session, &exchange));
            session.settle();
            session.remember(exchange, limit);
            to_store
        });
        turn.ending = Some(ending);
        let Some(to_store) = to_store.flatten() else {
            self.answer(number);
            return None;
        };
        turn.phase = Phase::Storing;
        // Its session accounts for its bytes now.
        self.in_flight -= std::mem::take(&mut turn.memory);
        self.make_room();
        Some(to_store)
    }

    /// The first line of a turn's file, if histories are kept: a session can be loaded once something was asked in it.
    pub fn header(&self, number: TurnId) -> Option<Header> {
        let turn = self.turns.get(&number).filter(|_| self.keeps_history())?;
        Some(header(turn, self.sessions.get(&turn.session_id)?))
    }

    /// Answers a prompt whose turn ended well.
    pub(super) fn answer(&mut self, number: TurnId) {
        let Some(turn) = self.take_turn(number) else { return };
        let Some(ending) = turn.ending else { return };
        let mut result = json!({ "stopReason": ending.stop });
        if let Some(usage) = &ending.usage {
            let session = self.sessions.get(&turn.session_id);
            let sum = session.and_then(|session| session.usage).unwrap_or(*usage);
            let is_known = session.is_none_or(|session| session.knows_usage_updates);
            if self.config.context_window != Some(0) && is_known {
                let used = usage.total_tokens;
                let size = self.window(&turn.model).unwrap_or_else(|| used.max(USUAL_WINDOW));
                let members = format!("\"sessionUpdate\":\"usage_update\",\"used\":{used},\"size\":{size}");
                turn.said.update(&members, &mut self.outbox);
            }
            result["usage"] = json!(sum);
        }
        push_result(self.outbox.lines(), &turn.reply, &result);
    }

    /// Fails a turn: the failure is reported in the configured style, and only the user's message stays, unless the
    /// endpoint refused it: it would refuse it with the next prompt, too.
    pub fn fail(&mut self, number: TurnId, failure: &Failure) {
        self.flush(number, true);
        match self.turns.get(&number) {
            Some(turn) if failure.is_refusal() => drop(self.sessions.change(&turn.session_id, Session::settle)),
            _ => self.leave_unanswered(number),
        }
        let Some(mut turn) = self.take_turn(number) else { return };
        let url = self.config.endpoint.shown_url();
        if self.config.rpc_errors {
            return self.reply(&turn.reply, Err(failure.rpc_error(&url)));
        }
        turn.said.say_aside(&failure.text(&url), &mut self.outbox, &mut *self.dice);
        push_result(self.outbox.lines(), &turn.reply, &json!({ "stopReason": StopReason::EndTurn }));
    }
}

/// The first line of the file of a turn's session.
fn header(turn: &Turn, session: &Session) -> Header {
    let (session_id, cwd) = (turn.session_id.to_string(), session.cwd.to_string());
    Header { version: 1, session_id, cwd, model: turn.model.to_string() }
}

/// The line of a turn in its session's file, and the first line, in case it has to be created.
fn to_store(turn: &Turn, session: &Session, exchange: &Exchange) -> ToStore {
    ToStore {
        header: header(turn, session),
        entry: Entry {
            user: exchange.user.to_string(),
            assistant: exchange.assistant.to_string(),
            model: turn.model.to_string(),
            usage: session.usage,
            title: session.title.as_deref().map(str::to_owned),
        },
    }
}

impl Agent {
    /// The context window of a model, in tokens, as far as it is known.
    fn window(&self, model: &str) -> Option<u64> {
        if let Some(window) = self.config.context_window {
            return Some(window).filter(|window| *window > 0);
        }
        let listed = self.models.known.iter().flatten().find(|known| known.id == model).and_then(|known| known.window);
        // What an endpoint says while it refuses a request takes precedence over any list.
        [listed, self.windows.get(model).copied()].into_iter().flatten().min()
    }

    /// A turn failed. Returns whether it is asked again because less of the conversation can be sent and that may help.
    /// That happens once for each reason.
    pub fn lighten(&mut self, number: TurnId, failure: &Failure) -> bool {
        let Some(turn) = self.turns.get(&number) else { return false };
        turn.said.is_nothing() && (self.leave_images_out(number, failure) || self.shorten(number, failure))
    }

    /// Leaves out the images of earlier turns, which another model has seen, if the model of this one takes none.
    fn leave_images_out(&mut self, number: TurnId, failure: &Failure) -> bool {
        let Some(turn) = self.turns.get(&number) else { return false };
        let Some(session) = self.sessions.get(&turn.session_id) else { return false };
        let has_before = || session.sent().any(|exchange| has_images(&exchange.user));
        // A refusal of an image in the prompt itself is for the user.
        if !failure.is_of_images() || self.is_blind(turn, session) || has_images(&turn.user) || !has_before() {
            return false;
        }
        let text = format!("The images of earlier turns are left out: {} gets none.", turn.model);
        turn.said.note(&text, &mut self.outbox, &mut *self.dice);
        self.sessions.change(&turn.session_id, |session| session.blind = Some(turn.model.clone()));
        true
    }

    /// Whether the images of earlier turns are left out of a turn's request.
    fn is_blind(&self, turn: &Turn, session: &Session) -> bool {
        !self.config.image_input || session.blind.as_ref() == Some(&turn.model)
    }

    /// A turn failed. Shortens its request if it did not fit and less can be sent.
    fn shorten(&mut self, number: TurnId, failure: &Failure) -> bool {
        let Some(overflow) = Overflow::of(failure) else { return false };
        let Some(turn) = self.turns.get_mut(&number) else { return false };
        if std::mem::replace(&mut turn.is_shortened, true) {
            return false;
        }
        if let Some(window) = overflow.window
            && (self.windows.len() < MOST_MODELS || self.windows.contains_key(&turn.model))
        {
            self.windows.insert(turn.model.clone(), window);
        }
        let own = weight(&turn.user) + self.config.system_prompt.as_ref().map_or(0, String::len);
        let max_tokens = self.config.max_tokens;
        let left_out = self.sessions.change(&turn.session_id, |session| {
            let said = session.sent().map(Exchange::weight).sum::<usize>();
            let rate = overflow.asked.map_or(USUAL_RATE, |tokens| tokens as f64 / (own + said).max(1) as f64);
            let most = overflow.window.map(|window| (budget(window, max_tokens) as f64 / rate) as usize);
            let most = most.map_or(said / 2, |most| most.saturating_sub(own).min(said.saturating_sub(1)));
            // Some room is made at once: each turn that is left out costs the endpoint its cache.
            session.leave_out(most - most / 4)
        });
        let Some(left_out) = left_out else { return false };
        self.report_left_out(number, left_out);
        left_out > 0
    }

    /// Reports to the client and the operator that turns are no longer sent.
    fn report_left_out(&mut self, number: TurnId, count: usize) {
        let Some(turn) = self.turns.get(&number).filter(|_| count > 0) else { return };
        let window = self.window(&turn.model).map_or_else(String::new, |window| format!(" ({window} tokens)"));
        let model = &turn.model;
        let text = format!("The oldest turns ({count}) no longer fit into the context window of {model}{window}.");
        turn.said.note(&text, &mut self.outbox, &mut *self.dice);
    }

    /// The body of a turn's request.
    pub fn request_body(&self, number: TurnId, dialect: Dialect) -> Option<Vec<u8>> {
        let turn = self.turns.get(&number)?;
        let session = self.sessions.get(&turn.session_id)?;
        let is_blind = self.is_blind(turn, session);
        let said = session.sent().flat_map(|exchange| [said(exchange, is_blind), Cow::from(&*exchange.assistant)]);
        let messages: Vec<Cow<'_, str>> = said.chain([Cow::from(&*turn.user)]).collect();
        Some(request_body(&self.config, &turn.model, &messages, dialect))
    }
}

/// The user's message of a turn, for a model that takes images or not.
fn said(exchange: &Exchange, is_blind: bool) -> Cow<'_, str> {
    if is_blind { without_images(&exchange.user) } else { Cow::from(&*exchange.user) }
}
