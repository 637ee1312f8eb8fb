//! Why a model stopped, in the words of many servers. Pure.
//!
//! An answer is complete only for a reason that is known to mean so. A word that nobody here knows is an error that
//! names it: an answer that broke off must not look like one that ended.

/// Why the model stopped. A later one is the graver one: when a stream gives several, the gravest counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A word that is not known.
    Unknown(Box<str>),
    /// It had said everything.
    Stop,
    /// It waits for tools.
    Tools,
    /// The limit of tokens.
    Length,
    /// A filter of the endpoint.
    Filtered,
    /// Something went wrong: the word for it.
    Failed(Box<str>),
}

/// Letters of a word that is not known.
const MOST_LETTERS: usize = 64;

impl Finish {
    /// Reads a `finish_reason`; nothing if it says that the answer goes on.
    pub fn read(word: &str) -> Option<Self> {
        let lower = word.trim().to_ascii_lowercase();
        let name = lower.rsplit('.').next().unwrap_or_default();
        Some(match name.strip_prefix("finish_reason_").unwrap_or(name) {
            // Some servers write a null as a word, or leave the word empty.
            "" | "null" | "none" | "unspecified" => return None,
            // OpenAI; Together, TGI and Hugging Face; Anthropic; Cohere; vLLM's and SGLang's stop strings.
            "stop" | "eos" | "eos_token" | "end_turn" | "stop_sequence" | "complete" | "completed" | "end"
            | "stopped" | "finished" | "finish" | "done" | "normal" | "success" => Self::Stop,
            "tool_calls" | "tool_call" | "function_call" | "function_calls" | "tool_use" => Self::Tools,
            // OpenAI; Anthropic; Gemini; Mistral; Cohere.
            "length"
            | "max_tokens"
            | "max_output_tokens"
            | "max_new_tokens"
            | "model_length"
            | "max_length"
            | "model_context_window_exceeded"
            | "context_length_exceeded"
            | "error_limit"
            | "token_limit" => Self::Length,
            // OpenAI and Azure; Gemini; Bedrock; Zhipu; Cohere.
            "content_filter"
            | "content_filtered"
            | "safety"
            | "recitation"
            | "blocklist"
            | "prohibited_content"
            | "spii"
            | "image_safety"
            | "language"
            | "guardrail_intervened"
            | "sensitive"
            | "error_toxic"
            | "refusal"
            | "blocked"
            | "moderation" => Self::Filtered,
            // OpenRouter; vLLM and SGLang; Zhipu; DeepSeek; Gemini; Cohere.
            "error"
            | "abort"
            | "aborted"
            | "cancel"
            | "cancelled"
            | "canceled"
            | "user_cancel"
            | "network_error"
            | "insufficient_system_resource"
            | "malformed_function_call"
            | "unexpected_tool_call"
            | "other"
            | "failed"
            | "failure"
            | "timeout"
            | "incomplete"
            | "interrupted" => Self::Failed(word.into()),
            _ => Self::Unknown(word.chars().take(MOST_LETTERS).collect()),
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
