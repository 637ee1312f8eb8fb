//! Reasoning that a model writes into its answer: `<think>…</think>` at the beginning becomes thought. Pure.
//!
//! Only blocks that stand before the answer count, with nothing but white space before and between them: what stands
//! later is what the model says, be it about such tags. White space around a block, and at its beginning, is left out.
//! A block that is never closed is thought to its end.
//!
//! The invariant: what is thought and what is said depends on the text alone, never on where it was cut, and but for
//! the tags and the white space around them all of it is told, in order.

use super::chunk::Kind;

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
