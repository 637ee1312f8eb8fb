//! What an endpoint wants otherwise: how a model's requests are written, and what its refusals teach about that. Pure.
//!
//! Endpoints refuse members that others want: `stream_options`, `max_tokens`, `temperature`, the role `system`. Such a
//! refusal is told by what the endpoint says of a member, never by the member's name alone: many endpoints repeat the
//! request in the refusal of something else. It counts for the model that was asked, and the client remembers it once
//! the endpoint has taken a request that was written accordingly.
//!
//! The invariant: [`Dialect::learn`] changes something each time it says so and never changes it back, so that no
//! request is written anew for ever.

use serde_json::Value as Json;

use super::config::Config;

/// What the limit of tokens is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `max_tokens`.
    Old,
    /// `max_completion_tokens`.
    New,
    /// Not told: the model takes neither.
    Unsaid,
}

/// How the requests of a model are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Whether the counts are asked for.
    pub include_usage: bool,
    /// What the limit of tokens is called.
    pub limit: Limit,
    /// Whether the temperature is told.
    pub temperature: bool,
    /// Whether there is a role `system`; else its prompt stands before the user's first words.
    pub system_role: bool,
}

/// What is tried first.
impl Default for Dialect {
    fn default() -> Self {
        Self { include_usage: true, limit: Limit::Old, temperature: true, system_role: true }
    }
}

impl Dialect {
    /// Takes a refusal's lesson, if it has one: what is done from now on, for the log.
    /// Only what the agent itself has put there may be left out.
    pub fn learn(&mut self, refusal: &Refusal, config: &Config) -> Option<&'static str> {
        let is_new = |refused: &[&str]| !config.extra_body.contains_key(refused[0]) && refusal.refuses(refused);
        if self.include_usage && is_new(&["stream_options", "include_usage"]) {
            self.include_usage = false;
            return Some("stream_options is left out");
        }
        let lesson = match self.limit {
            _ if config.max_tokens.is_none() => None,
            Limit::Old if refusal.names("max_completion_tokens") => Some((Limit::New, "max_completion_tokens is sent")),
            Limit::Old if is_new(&["max_tokens"]) => Some((Limit::Unsaid, "max_tokens is left out")),
            Limit::New if is_new(&["max_completion_tokens"]) => {
                Some((Limit::Unsaid, "max_completion_tokens is left out"))
            }
            _ => None,
        };
        if let Some((limit, lesson)) = lesson {
            self.limit = limit;
            return Some(lesson);
        }
        if config.temperature.is_some() && self.temperature && is_new(&["temperature"]) {
            self.temperature = false;
            return Some("temperature is left out");
        }
        if config.system_prompt.is_some() && self.system_role && refusal.refuses_system() {
            self.system_role = false;
            return Some("the system prompt is put before the user's first words");
        }
        None
    }
}

/// Deepest nesting of an error that is looked into; some gateways wrap the model's own error as text.
const MOST_DEPTH: usize = 6;

/// Words for "I do not take this". Words about values that are too large are none of them.
const REFUSALS: &str = "unsupported|not support|n't support|unrecognized|unknown|unexpected|extra_forbidden|\
    extra fields|extra inputs|additional properties|not permitted|not allowed|not accept|not enabled|not implemented|\
    not available|no longer|deprecated|not compatible|incompatible";

/// What an endpoint says of a request that it refuses.
#[derive(Debug, Default)]
pub struct Refusal {
    remarks: Vec<Remark>,
    codes: Vec<String>,
}

/// One object of the refusal, or the whole of one that is no JSON.
#[derive(Debug, Default)]
struct Remark {
    /// The members that it names as the culprits.
    params: Vec<String>,
    /// Code, type and message, in lower case.
    words: String,
}

impl Refusal {
    /// Reads an error's body.
    pub fn read(body: &str) -> Self {
        let mut refusal = Self::default();
        refusal.text(body, MOST_DEPTH);
        refusal
    }

    /// Whether it says that the account is empty or closed, in the codes of OpenAI, Moonshot and One API.
    pub fn is_spent(&self) -> bool {
        const CODES: &str = "insufficient_quota insufficient_user_quota exceeded_current_quota_error \
                             billing_hard_limit_reached billing_not_active account_deactivated access_terminated";
        CODES.split(' ').any(|code| self.codes.iter().any(|known| known == code))
    }

    /// Whether it says that one of these members is not taken.
    fn refuses(&self, names: &[&str]) -> bool {
        self.remarks.iter().any(|remark| {
            let is_culprit = remark.params.iter().any(|param| names.contains(&leaf(param)));
            (is_culprit && is_refusal(&remark.words))
                || sentences(&remark.words)
                    .any(|words| is_refusal(words) && names.iter().any(|name| has_word(words, name)))
        })
    }

    /// Whether it says this word of its own.
    fn names(&self, name: &str) -> bool {
        self.remarks.iter().any(|remark| has_word(&remark.words, name))
    }

    /// Whether it says that there is no role `system`, or that the roles should alternate, which it breaks.
    fn refuses_system(&self) -> bool {
        self.remarks.iter().any(|remark| {
            let is_role = |param: &String| param.starts_with("messages") && param.ends_with("role");
            let of_a_role = remark.params.iter().any(is_role);
            (of_a_role && has_word(&remark.words, "system") && is_refusal(&remark.words))
                || sentences(&remark.words).any(|words| {
                    let has = |word| has_word(words, word);
                    let is_system = (has("system") || has("developer"))
                        && ["role", "roles", "message", "messages", "prompt", "instruction", "instructions"]
                            .iter()
                            .any(|word| has(word));
                    (is_system && is_refusal(words)) || (has("roles") && has("alternate"))
                })
        })
    }

    fn text(&mut self, text: &str, depth: usize) {
        match serde_json::from_str::<Json>(text) {
            Ok(value @ (Json::Object(_) | Json::Array(_))) => self.value(&value, depth),
            _ => {
                let remark = Remark { params: python_places(text), words: own_words(text) };
                self.remarks.push(remark);
            }
        }
    }

    fn value(&mut self, value: &Json, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        match value {
            Json::Array(values) => values.iter().for_each(|value| self.value(value, depth)),
            Json::String(text) => self.text(text, depth),
            Json::Object(members) => {
                let mut remark = Remark::default();
                for (name, value) in members {
                    match (name.as_str(), value) {
                        ("param", Json::String(param)) => remark.params.push(param.clone()),
                        ("loc", Json::Array(place)) => remark.params.push(joined(place)),
                        ("code" | "type" | "status", Json::String(code)) => {
                            let code = code.to_ascii_lowercase();
                            remark.words.push_str(&format!("{}. ", code.replace('_', " ")));
                            self.codes.push(code);
                        }
                        ("message" | "msg" | "detail" | "error" | "reason", Json::String(text)) => {
                            // Some gateways pass on the model's error as a text of JSON.
                            if text.trim_start().starts_with(['{', '[']) && depth > 0 {
                                self.text(text, depth);
                            }
                            remark.params.extend(python_places(text));
                            remark.words.push_str(&own_words(text));
                            remark.words.push_str(". ");
                        }
                        ("error" | "errors" | "detail" | "details" | "metadata" | "raw" | "message", value) => {
                            self.value(value, depth);
                        }
                        _ => {}
                    }
                }
                self.remarks.push(remark);
            }
            _ => {}
        }
    }
}

/// `["body", "messages", 0, "role"]` as `body.messages.0.role`.
fn joined(place: &[Json]) -> String {
    let steps: Vec<String> = place
        .iter()
        .map(|step| step.as_str().map_or_else(|| step.to_string(), str::to_owned))
        .filter(|step| step != "body")
        .collect();
    steps.join(".")
}

/// The last name of a place: `messages[0].role` is about a role.
fn leaf(place: &str) -> &str {
    place.rsplit(['.', '/', ']']).next().unwrap_or(place)
}

/// The places of errors that vLLM writes as Python would: `'loc': ('body', 'stream_options')`.
fn python_places(text: &str) -> Vec<String> {
    let places = text.split("'loc': (").skip(1).filter_map(|rest| rest.split(')').next());
    places
        .map(|place| {
            let steps = place.split(',').map(|step| step.trim().trim_matches('\''));
            steps.filter(|step| !step.is_empty() && *step != "body").collect::<Vec<_>>().join(".")
        })
        .collect()
}

/// A text in lower case and without what stands in braces, where the request is repeated; but a refusal in Python's
/// words stands there, too, and keeps its kind.
fn own_words(text: &str) -> String {
    let mut words = String::with_capacity(text.len().min(4096));
    let mut depth = 0usize;
    for letter in text.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            letter if depth == 0 => words.extend(letter.to_lowercase()),
            _ => {}
        }
    }
    if text.contains("'extra_forbidden'") {
        words.push_str(" extra_forbidden");
    }
    words
}

fn is_refusal(words: &str) -> bool {
    REFUSALS.split('|').any(|refusal| words.contains(refusal))
}

fn sentences(words: &str) -> impl Iterator<Item = &str> {
    words.split(['\n', ';']).flat_map(|line| line.split(". "))
}

/// Whether a name stands there as a word of its own.
fn has_word(words: &str, name: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    words.match_indices(name).any(|(at, _)| {
        !words[..at].chars().next_back().is_some_and(is_part)
            && !words[at + name.len()..].chars().next().is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn all() -> Config {
        let mut config = Config::from_env(&mut |_| None).unwrap();
        (config.max_tokens, config.temperature, config.system_prompt) =
            (Some(1), Some(0.0), Some("be kind".to_owned()));
        config
    }

    fn lesson(body: &str) -> Option<&'static str> {
        Dialect::default().learn(&Refusal::read(body), &all())
    }

    /// An error as OpenAI writes it.
    fn openai(message: &str, param: &str, code: &str) -> String {
        json!({"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}})
            .to_string()
    }

    #[test]
    fn refusals_are_understood_in_the_words_of_many_servers() {
        let usage = Some("stream_options is left out");
        let new_limit = Some("max_completion_tokens is sent");
        let temperature = Some("temperature is left out");
        let system = Some("the system prompt is put before the user's first words");
        for (server, body, expected) in [
            (
                "OpenAI, o-series",
                openai(
                    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
                    "max_tokens",
                    "unsupported_parameter",
                ),
                new_limit,
            ),
            (
                "OpenAI, gpt-5",
                openai(
                    "Unsupported value: 'temperature' does not support 0.5 with this model. Only the default (1) value is supported.",
                    "temperature",
                    "unsupported_value",
                ),
                temperature,
            ),
            (
                "OpenAI, o1-mini",
                openai(
                    "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
                    "messages[0].role",
                    "unsupported_value",
                ),
                system,
            ),
            (
                "OpenAI, old models",
                json!({"error": {"message": "Unrecognized request argument supplied: stream_options"}}).to_string(),
                usage,
            ),
            (
                "Anthropic's OpenAI API",
                json!({"error": {"message": "`temperature` is deprecated for this model.", "code": 400}}).to_string(),
                temperature,
            ),
            (
                "FastAPI: LM servers in Python",
                json!({"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"],
                    "msg": "Extra inputs are not permitted", "input": {"include_usage": true}}]})
                .to_string(),
                usage,
            ),
        ] {
            assert_eq!(lesson(&body), expected, "{server}: {body}");
        }
    }

    #[test]
    fn refusals_are_understood_in_the_words_of_more_servers() {
        let usage = Some("stream_options is left out");
        let no_limit = Some("max_tokens is left out");
        let system = Some("the system prompt is put before the user's first words");
        for (server, body, expected) in [
            (
                "vLLM 0.4",
                json!({"object": "error", "code": 400, "message":
                    "[{'type': 'extra_forbidden', 'loc': ('body', 'stream_options'), 'msg': 'Extra inputs are not permitted', 'input': {'include_usage': True}}]"})
                .to_string(),
                usage,
            ),
            (
                "Mistral",
                json!({"object": "error", "message": {"detail": [{"type": "extra_forbidden",
                    "loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]}})
                .to_string(),
                usage,
            ),
            (
                "Gemini for Gemma",
                json!([{"error": {"code": 400, "status": "INVALID_ARGUMENT",
                    "message": "Developer instruction is not enabled for models/gemma-3-27b-it"}}])
                .to_string(),
                system,
            ),
            (
                "vLLM with Gemma's template",
                json!({"object": "error", "message": "System role not supported", "code": 400}).to_string(),
                system,
            ),
            (
                "vLLM with Mistral's template",
                json!({"message": "Conversation roles must alternate user/assistant/user/assistant/..."}).to_string(),
                system,
            ),
            (
                "OpenRouter, the provider's error as text",
                json!({"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw":
                    "{\"error\":{\"message\":\"Unsupported parameter: max_tokens\"}}"}}})
                .to_string(),
                no_limit,
            ),
            ("plain text", "stream_options: unknown field".to_owned(), usage),
        ] {
            assert_eq!(lesson(&body), expected, "{server}: {body}");
        }
    }

    #[test]
    fn who_merely_repeats_the_request_teaches_nothing() {
        let request = r#"{"model":"m","stream_options":{"include_usage":true},"max_tokens":5,"temperature":0.5,
            "messages":[{"role":"system","content":"temperature is not supported"}]}"#;
        for body in [
            request.to_owned(),
            format!("unsupported content: {request}"),
            json!({"error": {"message": format!("The request is not supported: {request}")}}).to_string(),
            json!({"error": {"message": "This model is not supported.", "request": serde_json::from_str::<Json>(request).unwrap()}})
                .to_string(),
            json!({"detail": [{"type": "missing", "loc": ["body", "user"], "msg": "Field required",
                "input": serde_json::from_str::<Json>(request).unwrap()}]})
            .to_string(),
            json!({"detail": [{"loc": ["body", "n"], "msg": "Extra inputs are not permitted", "input":
                {"stream_options": {"include_usage": true}}}]})
            .to_string(),
            // Words about a value, not about the member: leaving it out would hide the mistake.
            openai("Invalid 'temperature': decimal above maximum value. Expected a value <= 2.", "temperature", "x"),
            openai("max_tokens is too large: 999999. This model supports at most 4096.", "max_tokens", "invalid_value"),
            openai("Unknown model: o9. Set temperature as you like.", "model", "model_not_found"),
            String::new(),
            "<html>".to_owned(),
        ] {
            assert_eq!(lesson(&body), None, "{body}");
        }
    }

    #[test]
    fn what_was_not_sent_is_not_learned() {
        let mut none = Config::from_env(&mut |_| None).unwrap();
        none.extra_body.insert("stream_options".to_owned(), Json::Null);
        let words = "stream_options max_tokens temperature top_p system role: not supported";
        assert_eq!(Dialect::default().learn(&Refusal::read(words), &none), None);
        let mut dialect = Dialect::default();
        let mut lessons = 0;
        while dialect.learn(&Refusal::read(words), &all()).is_some() {
            lessons += 1;
        }
        assert_eq!(lessons, 4, "each is learned once");
        let both = "neither max_tokens nor max_completion_tokens are supported; max_completion_tokens is unsupported";
        let mut dialect = Dialect::default();
        while dialect.learn(&Refusal::read(both), &all()).is_some() {}
        assert_eq!(dialect.limit, Limit::Unsaid);
    }

    #[test]
    fn codes_are_found_where_servers_put_them() {
        let refusal = Refusal::read(&openai("You exceeded your current quota", "", "insufficient_quota"));
        assert!(refusal.is_spent() && !Refusal::read("insufficient_quota").is_spent());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*|(\\{|\\}|'loc': \\(|\"message\":|[a-z\", ]){0,30}") {
            let _ = lesson(&text);
        }
    }
}
