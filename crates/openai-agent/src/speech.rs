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
//!
//! Reasoning that a model writes into its answer, `<think>…</think>` at the beginning, becomes thought. Only blocks
//! that stand before the answer count, with nothing but white space before and between them: what stands later is what
//! the model says, be it about such tags. White space around a block, and at its beginning, is left out. A block that is
//! never closed is thought to its end. What is thought and what is said depends on the text alone, never on where it
//! was cut, and but for the tags and the white space around them all of it is told, in order.

use super::chunk::{Kind, Origin};
use super::json::Characters;

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

/// Names of the tags: DeepSeek, Qwen, MiniMax and others; prompts that ask for it; Gemini.
const TAGS: [(&str, &str); 4] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
];

/// White space, in bytes, that is held back at most while nothing else has come.
const MOST_BLANK: usize = 4096;

/// The state between two pieces of text.
#[derive(Debug, Default)]
pub struct Thinking {
    place: Place,
    /// What came and may be the beginning of a tag, or the white space before one.
    held: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before anything but white space.
    #[default]
    Start,
    /// Within a block, which this tag closes; whether anything of it was told.
    Inside(&'static str, bool),
    /// After a block.
    After,
    /// In the answer: nothing is looked for any more.
    Answer,
}

impl Thinking {
    /// Takes the next piece of the answer and calls `sink` with what it is.
    pub fn push(&mut self, text: &str, mut sink: impl FnMut(Kind, &str)) {
        if self.place == Place::Answer {
            return sink(Kind::Text, text);
        }
        let mut held = std::mem::take(&mut self.held);
        let text = match held.is_empty() {
            true => text,
            false => {
                held.push_str(text);
                &held
            }
        };
        let rest = self.read(text, &mut sink);
        self.held = rest.to_owned();
    }

    /// The end of the answer: tells what was held back.
    pub fn finish(&mut self, mut sink: impl FnMut(Kind, &str)) {
        let held = std::mem::take(&mut self.held);
        match self.place {
            _ if held.is_empty() => {}
            Place::Inside(..) => sink(Kind::Thought, &held),
            Place::After if held.trim().is_empty() => {}
            _ => sink(Kind::Text, &held),
        }
    }

    /// Tells as much of the text as can be told, and gives back what has to wait.
    fn read<'a>(&mut self, mut text: &'a str, sink: &mut impl FnMut(Kind, &str)) -> &'a str {
        loop {
            match self.place {
                Place::Start | Place::After => {
                    let begun = text.trim_start();
                    if let Some((open, close)) = TAGS.iter().find(|(open, _)| begun.starts_with(open)) {
                        self.place = Place::Inside(close, false);
                        text = &begun[open.len()..];
                        continue;
                    }
                    if TAGS.iter().any(|(open, _)| open.starts_with(begun)) && text.len() <= MOST_BLANK {
                        return text;
                    }
                    let said = if self.place == Place::After { begun } else { text };
                    self.place = Place::Answer;
                    text = said;
                }
                Place::Inside(close, has_begun) => {
                    if !has_begun {
                        text = text.trim_start();
                    }
                    let end = text.find(close);
                    let told = &text[..end.unwrap_or_else(|| text.len() - overlap(text, close))];
                    if !told.is_empty() {
                        self.place = Place::Inside(close, true);
                        sink(Kind::Thought, told);
                    }
                    let Some(end) = end else { return &text[told.len()..] };
                    self.place = Place::After;
                    text = &text[end + close.len()..];
                }
                Place::Answer => {
                    if !text.is_empty() {
                        sink(Kind::Text, text);
                    }
                    return "";
                }
            }
        }
    }
}

/// Bytes at the end of `text` that may be the beginning of `tag`.
fn overlap(text: &str, tag: &str) -> usize {
    let most = text.len().min(tag.len() - 1);
    (1..=most).rev().find(|length| text.as_bytes().ends_with(&tag.as_bytes()[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    fn read(pieces: &[&str]) -> (String, String) {
        let (mut thinking, mut thought, mut said) = (Thinking::default(), String::new(), String::new());
        let mut sink = |kind, text: &str| match kind {
            Kind::Thought => thought.push_str(text),
            Kind::Text => said.push_str(text),
        };
        for piece in pieces {
            thinking.push(piece, &mut sink);
        }
        thinking.finish(&mut sink);
        (thought, said)
    }

    #[test]
    fn blocks_before_the_answer_are_thought_however_they_are_cut() {
        for (text, thought, said) in [
            ("<think>hm</think>yes", "hm", "yes"),
            ("\n<think>\nhm\n</think>\n\nyes <think>no</think>", "hm\n", "yes <think>no</think>"),
            ("<think>\n\n</think>\n\nyes", "", "yes"),
            ("<reasoning>a < b </think> c</reasoning> d", "a < b </think> c", "d"),
            ("<think>a</think> <thought>b</thought>c", "ab", "c"),
            ("<think>never closed </thin", "never closed </thin", ""),
            ("<thin", "", "<thin"),
            ("<table>", "", "<table>"),
            ("  plain", "", "  plain"),
            ("\n", "", "\n"),
            ("say <think>", "", "say <think>"),
            ("<think>ü</think>é", "ü", "é"),
        ] {
            let expected = (thought.to_owned(), said.to_owned());
            assert_eq!(read(&[text]), expected, "{text}");
            let each: Vec<String> = text.chars().map(String::from).collect();
            assert_eq!(read(&each.iter().map(String::as_str).collect::<Vec<_>>()), expected, "{text}");
            for cut in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
                let (left, right) = text.split_at(cut);
                assert_eq!(read(&[left, right]), expected, "{text} cut at {cut}");
            }
        }
    }

    #[test]
    fn a_lot_of_white_space_is_not_held_back() {
        assert_eq!(read(&[" ".repeat(MOST_BLANK).as_str(), "  <think>"]).0, "");
    }

    proptest! {
        #[test]
        fn a_text_without_such_a_beginning_is_told_as_it_is(text in "[a-z<>/ ]{0,30}", cut in any::<prop::sample::Index>()) {
            prop_assume!(!TAGS.iter().any(|(open, _)| text.trim_start().starts_with(open)));
            let (left, right) = text.split_at(cut.index(text.len() + 1));
            prop_assert_eq!(read(&[left, right]), (String::new(), text.clone()));
        }
    }
}
