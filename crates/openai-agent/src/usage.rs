//! Token counts: what the endpoint says of one answer, and their sum over a session.

use serde::{Deserialize, Serialize};

use super::json::Raw;

/// Counts of tokens. What the endpoint did not say is absent, never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct Usage {
    pub total_tokens: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_read_tokens: Option<u64>,
}

impl Usage {
    /// Reads the `usage` member of a completion; nothing if it is null or says nothing.
    pub fn read(value: Raw<'_>) -> Option<Self> {
        let count = |name: &str| value.get(name).and_then(Raw::count);
        let (input, output) = (count("prompt_tokens"), count("completion_tokens"));
        if input.is_none() && output.is_none() {
            return None;
        }
        let (input_tokens, output_tokens) = (input.unwrap_or(0), output.unwrap_or(0));
        let detail = |group: &str, name: &str| value.get(group)?.get(name)?.count();
        Some(Self {
            total_tokens: count("total_tokens").unwrap_or(input_tokens.saturating_add(output_tokens)),
            input_tokens,
            output_tokens,
            thought_tokens: detail("completion_tokens_details", "reasoning_tokens"),
            cached_read_tokens: detail("prompt_tokens_details", "cached_tokens"),
        })
    }

    /// Adds the counts of one more answer.
    pub fn add(&mut self, more: &Self) {
        let sum = |mine: Option<u64>, theirs: Option<u64>| match (mine, theirs) {
            (None, None) => None,
            (mine, theirs) => Some(mine.unwrap_or(0).saturating_add(theirs.unwrap_or(0))),
        };
        self.total_tokens = self.total_tokens.saturating_add(more.total_tokens);
        self.input_tokens = self.input_tokens.saturating_add(more.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(more.output_tokens);
        self.thought_tokens = sum(self.thought_tokens, more.thought_tokens);
        self.cached_read_tokens = sum(self.cached_read_tokens, more.cached_read_tokens);
    }
}
