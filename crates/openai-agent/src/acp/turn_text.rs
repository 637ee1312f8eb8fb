//! The text of a turn, and how much of it was sent to the client, which reads more slowly than the model writes.

use crate::chunk::Kind;
use crate::rpc::{LONGEST_PIECE, floor, piece_length, push_text, push_update, uuid};
use crate::stdio::Outbox;

/// Makes the ids of messages.
pub(super) type Dice<'a> = &'a mut dyn FnMut() -> [u8; 16];

/// The text of a turn.
#[derive(Default)]
pub(super) struct TurnText {
    /// The beginning of its update lines.
    head: Box<[u8]>,
    message_id: Option<Box<str>>,
    thought_id: Option<Box<str>>,
    /// All text of the answer; up to `sent` it is in the outbox.
    answer: String,
    sent: usize,
    held_thought: String,
}

impl TurnText {
    pub(super) fn new(head: Box<[u8]>) -> Self {
        Self { head, ..Self::default() }
    }

    /// All text of the answer so far.
    pub(super) fn answer(&self) -> &str {
        &self.answer
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.answer.is_empty() && self.thought_id.is_none() && self.held_thought.is_empty()
    }

    /// Bytes not sent to the client yet.
    pub(super) fn held(&self) -> usize {
        self.answer.len() - self.sent + self.held_thought.len()
    }

    /// Takes text from the model. Pieces of one kind are joined; held text of the other kind is sent first, to keep the
    /// order.
    pub(super) fn push(&mut self, kind: Kind, text: &str, outbox: &mut Outbox, dice: Dice<'_>) {
        match kind {
            Kind::Text => {
                self.answer.push_str(text);
                self.send_thought(outbox, dice, true);
            }
            Kind::Thought => {
                self.send_text(outbox, dice, true);
                self.held_thought.push_str(text);
            }
        }
        self.send(outbox, dice, false);
    }

    /// Moves held text into the outbox: all of it, or until the outbox is full.
    pub(super) fn send(&mut self, outbox: &mut Outbox, dice: Dice<'_>, all: bool) {
        self.send_thought(outbox, dice, all);
        if self.held_thought.is_empty() {
            self.send_text(outbox, dice, all);
        }
    }

    fn send_thought(&mut self, outbox: &mut Outbox, dice: Dice<'_>, all: bool) {
        let mut sent = 0;
        while sent < self.held_thought.len() && (all || !outbox.is_congested()) {
            let message_id = self.thought_id.get_or_insert_with(|| uuid(dice()).into());
            let rest = &self.held_thought[sent..];
            let piece = &rest[..floor(rest, LONGEST_PIECE)];
            push_text(outbox.lines(), &self.head, "agent_thought_chunk", message_id, piece);
            sent += piece.len();
        }
        self.held_thought.drain(..sent);
    }

    fn send_text(&mut self, outbox: &mut Outbox, dice: Dice<'_>, all: bool) {
        while self.sent < self.answer.len() && (all || !outbox.is_congested()) {
            let message_id = self.message_id.get_or_insert_with(|| uuid(dice()).into());
            let (sent, rest) = self.answer.split_at(self.sent);
            let piece = &rest[..floor(rest, piece_length(sent, rest).min(LONGEST_PIECE))];
            push_text(outbox.lines(), &self.head, "agent_message_chunk", message_id, piece);
            self.sent += piece.len();
        }
    }

    /// Sends a separate message, so that it is not taken for the end of the model's answer.
    pub(super) fn say_aside(&mut self, text: &str, outbox: &mut Outbox, dice: Dice<'_>) {
        self.message_id = None;
        self.sent = self.answer.len();
        self.answer.push_str(if self.answer.is_empty() { "" } else { "\n\n" });
        self.answer.push_str(text);
        self.send_text(outbox, dice, true);
    }

    /// Sends a message that is not part of the answer.
    pub(super) fn note(&self, text: &str, outbox: &mut Outbox, dice: Dice<'_>) {
        push_text(outbox.lines(), &self.head, "agent_message_chunk", &uuid(dice()), text);
    }

    /// Sends another update of the turn: its members.
    pub(super) fn update(&self, members: &str, outbox: &mut Outbox) {
        push_update(outbox.lines(), &self.head, members);
    }
}
