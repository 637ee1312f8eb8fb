//! Why a model stopped, in the words of many servers. Pure.
//!
//! An answer is complete only for a reason that is known to mean so. A word that nobody here knows is an error that
//! names it: an answer that broke off must not look like one that ended.

use std::borrow::Cow;

/// Why the model stopped. A later one is the graver one: when a stream gives several, the gravest counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A word that is not known.
    Unknown(String),
    /// It had said everything.
    Stop,
    /// It waits for tools.
    Tools,
    /// The limit of tokens.
    Length,
    /// A filter of the endpoint.
    Filtered,
    /// Something went wrong: the word for it.
    Failed(Cow<'static, str>),
}

/// Letters of a word that is not known.
const MOST_LETTERS: usize = 64;

/// The words, in lower case: of OpenAI, Azure, Anthropic, Gemini, Bedrock, Mistral, Cohere, Together, TGI, vLLM, SGLang,
/// OpenRouter, DeepSeek, Zhipu and others.
static WORDS: [(Finish, &str); 5] = [
    (
        Finish::Stop,
        "stop eos eos_token end_turn stop_sequence complete completed end stopped finished finish done normal success",
    ),
    (Finish::Tools, "tool_calls tool_call function_call function_calls tool_use"),
    (
        Finish::Length,
        "length max_tokens max_output_tokens max_new_tokens model_length max_length model_context_window_exceeded \
         context_length_exceeded error_limit token_limit",
    ),
    (
        Finish::Filtered,
        "content_filter content_filtered safety recitation blocklist prohibited_content spii image_safety language \
         guardrail_intervened sensitive error_toxic refusal blocked moderation",
    ),
    (
        Finish::Failed(Cow::Borrowed("")),
        "error abort aborted cancel cancelled canceled user_cancel network_error insufficient_system_resource \
         malformed_function_call unexpected_tool_call other failed failure timeout incomplete interrupted",
    ),
];

impl Finish {
    /// Reads a `finish_reason`; nothing if it says that the answer goes on.
    pub fn read(word: &str) -> Option<Self> {
        let lower = word.trim().to_ascii_lowercase();
        let name = lower.rsplit('.').next().unwrap_or_default();
        let name = name.strip_prefix("finish_reason_").unwrap_or(name);
        let found = WORDS.iter().find(|(_, words)| words.split(' ').any(|word| word == name));
        Some(match found {
            // Some servers write a null as a word, or leave the word empty.
            _ if ["", "null", "none", "unspecified"].contains(&name) => return None,
            Some((Self::Failed(_), _)) => Self::Failed(word.to_owned().into()),
            Some((meaning, _)) => meaning.clone(),
            None => Self::Unknown(word.chars().take(MOST_LETTERS).collect()),
        })
    }

    /// The graver of two.
    pub fn graver(self, other: Option<Self>) -> Self {
        match other {
            Some(other) if other.gravity() > self.gravity() => other,
            _ => self,
        }
    }

    fn gravity(&self) -> u8 {
        match self {
            Self::Unknown(_) => 0,
            Self::Stop => 1,
            Self::Tools => 2,
            Self::Length => 3,
            Self::Filtered => 4,
            Self::Failed(_) => 5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_mean_what_they_say() {
        for (word, expected) in [
            ("", None),
            ("null", None),
            ("FINISH_REASON_UNSPECIFIED", None),
            ("stop", Some(Finish::Stop)),
            ("STOP", Some(Finish::Stop)),
            ("FinishReason.STOP", Some(Finish::Stop)),
            ("MAX_TOKENS", Some(Finish::Length)),
            ("model_length", Some(Finish::Length)),
            ("SAFETY", Some(Finish::Filtered)),
            ("tool_calls", Some(Finish::Tools)),
            ("abort", Some(Finish::Failed("abort".into()))),
            ("Banana", Some(Finish::Unknown("Banana".into()))),
        ] {
            assert_eq!(Finish::read(word), expected, "{word}");
        }
    }

    #[test]
    fn the_gravest_counts() {
        let length = Finish::Length;
        assert_eq!(Finish::Stop.graver(Some(length.clone())), length);
        assert_eq!(Finish::Length.graver(Some(Finish::Stop)), length);
        assert_eq!(Finish::Stop.graver(Some(Finish::Unknown("x".into()))), Finish::Stop);
    }
}
