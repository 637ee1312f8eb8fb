//! What of a conversation is sent: what fits into the model's window, and images only to who takes them.

use std::borrow::Cow;

use super::state::{Agent, MOST_MODELS, Turn};
use super::updates::{push_text, uuid};
use crate::convert::{Request, has_images, request_body, without_images};
use crate::dialect::Dialect;
use crate::failure::Failure;
use crate::models::{self, Overflow, budget, rate, weight};
use crate::session::{Exchange, TurnId};

impl Agent {
    /// How large the context window of a model is, in tokens, as far as anybody has said.
    pub(super) fn window(&self, model: &str) -> Option<u64> {
        if let Some(told) = self.config.context_window {
            return Some(told).filter(|window| *window > 0);
        }
        let listed = self.models.known.iter().flatten().find(|known| known.id == model).and_then(|known| known.window);
        let told = listed.or_else(|| models::of_family(model));
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
            && (self.windows.len() < MOST_MODELS || self.windows.contains_key(&turn.model))
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
        push_text(self.outbox.lines(), &turn.head, "agent_message_chunk", &uuid((self.dice)()), &text);
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
            temperature: self.config.temperature,
            dialect,
            extra: &self.config.extra_body,
        }))
    }
}

/// What the user said in a turn, for a model that takes images or takes none.
fn said(exchange: &Exchange, is_blind: bool) -> Cow<'_, str> {
    if is_blind { without_images(&exchange.user) } else { Cow::from(&*exchange.user) }
}
