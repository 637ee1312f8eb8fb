//! Token counts and cost: what the endpoint says of one answer, and their sum over a session.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::raw::Raw;

/// Money, in millionths of a millionth of a US dollar: sums of small amounts are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "f64", into = "f64")]
pub struct Cost(u64);

impl Cost {
    const A_DOLLAR: f64 = 1e12;

    /// The most that one answer is believed to cost, in dollars.
    const MOST: f64 = 1e6;

    /// An amount in US dollars.
    pub fn dollars(self) -> f64 {
        self.0 as f64 / Self::A_DOLLAR
    }

    /// What OpenRouter and LiteLLM (with `include_cost_in_streaming_usage`) tell as `cost`, Perplexity as
    /// `cost.total_cost` and DeepInfra as `estimated_cost`: dollars, or OpenRouter's credits, which are sold at one
    /// dollar each.
    fn read(usage: Raw<'_>) -> Option<Self> {
        let told = usage.get("cost").or_else(|| usage.get("estimated_cost"))?;
        Self::of_dollars(told.number().or_else(|| told.get("total_cost")?.number())?)
    }

    /// Nothing for what cannot be an amount.
    pub fn of_dollars(amount: f64) -> Option<Self> {
        (0.0..=Self::MOST).contains(&amount).then(|| amount.into())
    }
}

impl From<f64> for Cost {
    fn from(dollars: f64) -> Self {
        // The conversion saturates, and makes zero of what is no number.
        Self((dollars * Self::A_DOLLAR).round() as u64)
    }
}

impl From<Cost> for f64 {
    fn from(cost: Cost) -> Self {
        cost.dollars()
    }
}

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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
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
            cost: Cost::read(value),
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
        self.cost = sum(self.cost.map(|cost| cost.0), more.cost.map(|cost| cost.0)).map(Cost);
    }

    /// `usage` of the answer to a prompt, as ACP has it: the cost is told in `usage_update` alone.
    pub fn result(&self) -> Json {
        serde_json::to_value(Self { cost: None, ..*self }).unwrap_or(Json::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<f64> {
        let usage = format!("{{\"prompt_tokens\":1,\"completion_tokens\":1,{text}}}");
        Usage::read(Raw::read(usage.as_bytes()).unwrap()).unwrap().cost.map(Cost::dollars)
    }

    #[test]
    fn a_cost_is_read_where_endpoints_tell_it() {
        assert_eq!(read(r#""cost":0.00014,"cost_details":{"upstream_inference_cost":19}"#), Some(0.00014));
        assert_eq!(read(r#""cost":0"#), Some(0.0), "free is an amount");
        assert_eq!(read(r#""cost":2"#), Some(2.0));
        assert_eq!(read(r#""cost":{"request_cost":0.005,"total_cost":0.006}"#), Some(0.006));
        assert_eq!(read(r#""estimated_cost":2.68e-5"#), Some(0.000_026_8));
        for none in
            [r#""cost":null"#, r#""cost":"much""#, r#""cost":-1"#, r#""cost":1e300"#, r#""cost":{}"#, r#""x":1"#]
        {
            assert_eq!(read(none), None, "{none}");
        }
    }

    #[test]
    fn costs_add_up_exactly_and_stay_out_of_the_result() {
        let mut sum = Usage { cost: Some(0.1.into()), ..Usage::default() };
        sum.add(&Usage { cost: Some(0.2.into()), ..Usage::default() });
        sum.add(&Usage::default());
        assert_eq!(sum.cost.map(Cost::dollars), Some(0.3));
        assert!(sum.result().get("cost").is_none());
        let kept: Usage = serde_json::from_str(&serde_json::to_string(&sum).unwrap()).unwrap();
        assert_eq!(kept, sum);
    }
}
