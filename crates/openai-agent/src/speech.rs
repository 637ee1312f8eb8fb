//! What is new in what an endpoint says: nothing is told twice. Pure.
//!
//! What stands in a delta is new. What stands in a message may be all that was said (a stream that ends with the whole
//! answer, as MiniMax's), all of it so far (a stream of messages that grow), or, from servers that call a delta a
//! message, news: a message counts only while no delta has said anything of its kind, and of messages that begin with
//! the one before only the rest counts.
//!
//! A delta that begins with all that was said is told as it stands. Alibaba's Model Studio is known to have sent
//! deltas that grow, but its documentation promises increments, and "ha" and then "haha" are increments too: whoever
//! took one for the other would lose text of endpoints that keep to the rule.

use super::chunk::{Kind, Origin};
use super::json::Characters;
use super::thinking::Thinking;

/// What was said so far.
#[derive(Debug, Default)]
pub struct Speech {
    /// Whether a delta has said anything: a thought, text.
    by_delta: [bool; 2],
    /// What the message that is being read says: thoughts, text.
    message: [Vec<u8>; 2],
    /// What the messages before said.
    messages: [Messages; 2],
    characters: [Characters; 2],
    thinking: Thinking,
}

/// The messages of one kind.
#[derive(Debug, Default)]
enum Messages {
    #[default]
    None,
    /// One, or several that were the same.
    One(Vec<u8>),
    /// Each began with the one before, which was this.
    Growing(Vec<u8>),
    /// They did not: each is news.
    Pieces,
}

impl Speech {
    /// Takes a piece of a delta or of a message; [`Self::end_message`] has to follow the last piece of a message. The
    /// first message is told as it comes, later ones when they have ended.
    pub fn push(&mut self, origin: Origin, kind: Kind, text: &[u8], sink: &mut impl FnMut(Kind, &str)) {
        let index = kind as usize;
        match origin {
            Origin::Delta => {
                self.by_delta[index] = true;
                self.tell(kind, text, sink);
            }
            // Said already.
            Origin::Message if self.by_delta[Kind::Text as usize] || self.by_delta[index] => {}
            Origin::Message => {
                self.message[index].extend_from_slice(text);
                if matches!(self.messages[index], Messages::None) {
                    self.tell(kind, text, sink);
                }
            }
        }
    }

    /// The end of a message: tells what of it is news. `is_part` says that it calls itself a part of a stream.
    pub fn end_message(&mut self, is_part: bool, sink: &mut impl FnMut(Kind, &str)) {
        for kind in [Kind::Thought, Kind::Text] {
            let message = std::mem::take(&mut self.message[kind as usize]);
            if message.is_empty() {
                continue;
            }
            self.messages[kind as usize] = match std::mem::take(&mut self.messages[kind as usize]) {
                Messages::None => Messages::One(message),
                Messages::One(before) if message == before => Messages::One(before),
                Messages::One(before) | Messages::Growing(before) if message.starts_with(&before) => {
                    self.tell(kind, &message[before.len()..], sink);
                    Messages::Growing(message)
                }
                Messages::One(_) | Messages::Pieces if is_part => {
                    self.tell(kind, &message, sink);
                    Messages::Pieces
                }
                // Said already, if in other words.
                before => before,
            };
        }
    }

    /// The end of the answer: tells what was held back.
    pub fn finish(&mut self, sink: &mut impl FnMut(Kind, &str)) {
        let [thoughts, texts] = &mut self.characters;
        thoughts.finish(&mut |text| sink(Kind::Thought, text));
        texts.finish(&mut |text| self.thinking.push(text, &mut *sink));
        self.thinking.finish(sink);
    }

    fn tell(&mut self, kind: Kind, text: &[u8], sink: &mut impl FnMut(Kind, &str)) {
        let thinking = &mut self.thinking;
        self.characters[kind as usize].push(text, &mut |text| match kind {
            Kind::Thought => sink(Kind::Thought, text),
            Kind::Text => thinking.push(text, &mut *sink),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(pieces: &[(Origin, bool, &str)]) -> String {
        let (mut speech, mut said) = (Speech::default(), String::new());
        let mut sink = |_, text: &str| said.push_str(text);
        for (origin, is_part, text) in pieces {
            speech.push(*origin, Kind::Text, text.as_bytes(), &mut sink);
            if *origin == Origin::Message {
                speech.end_message(*is_part, &mut sink);
            }
        }
        speech.finish(&mut sink);
        said
    }

    #[test]
    fn nothing_is_told_twice() {
        use Origin::{Delta, Message};
        assert_eq!(said(&[(Delta, true, "Hel"), (Delta, true, "lo"), (Message, false, "Hello")]), "Hello");
        assert_eq!(said(&[(Message, false, "Hello"), (Message, false, "Hello")]), "Hello");
        assert_eq!(
            said(&[(Message, true, "The"), (Message, true, "The cat"), (Message, true, "The cat sat")]),
            "The cat sat"
        );
        assert_eq!(said(&[(Message, true, "The"), (Message, true, " cat"), (Message, true, " sat")]), "The cat sat");
        assert_eq!(said(&[(Message, false, "Hello."), (Message, false, "Hello!")]), "Hello.");
        assert_eq!(said(&[(Delta, true, "ha"), (Delta, true, "haha")]), "hahaha");
    }
}
