//! What an endpoint is like: how a model's requests are written, what its refusals teach about that, which models it
//! has, and how large their context windows are. Pure.
//!
//! Endpoints refuse members that others need: `stream_options`, `max_tokens`, `temperature`, the role `system`. Such a
//! refusal is recognised by what the endpoint says about a member, never by the member's name alone: many endpoints
//! repeat the request in the refusal of something else. It applies to the model that was asked, and the client
//! remembers it once the endpoint has accepted a request that was written accordingly.
//!
//! The invariant: [`Dialect::learn`] changes something each time it says so and never changes it back, so that no
//! request is rewritten forever.
//!
//! An endpoint has a list of models, with their context windows, and reports when a request does not fit into one. A
//! conversation's tokens are estimated from its last usage. Images count for what models make of them, not for their
//! bytes.

use std::time::Duration;

use serde_json::Value as Json;

use super::config::Config;
use super::failure::Failure;

/// The name of the token limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `max_tokens`.
    Old,
    /// `max_completion_tokens`.
    New,
    /// Omitted: the model accepts neither.
    Unsaid,
}

/// How requests to a model are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Whether token counts are requested.
    pub include_usage: bool,
    /// The name of the token limit.
    pub limit: Limit,
    /// Whether the temperature is sent.
    pub temperature: bool,
    /// Whether there is a role `system`; else its prompt precedes the user's first message.
    pub system_role: bool,
}

/// The first attempt.
impl Default for Dialect {
    fn default() -> Self {
        Self { include_usage: true, limit: Limit::Old, temperature: true, system_role: true }
    }
}

impl Dialect {
    /// Learns from a refusal, if it teaches anything; returns what is done from now on, for the log. Only members that
    /// the agent itself added may be left out.
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

/// Deepest nesting of an error that is searched; some gateways wrap the model's own error as text.
const MOST_DEPTH: usize = 6;

/// Words for "I do not accept this". Words about values that are too large are not among them.
const REFUSALS: &str = "unsupported|not support|n't support|unrecognized|unknown|unexpected|extra_forbidden|\
    extra fields|extra inputs|additional properties|not permitted|not allowed|not accept|not enabled|not implemented|\
    not available|no longer|deprecated|not compatible|incompatible";

/// What an endpoint says when it refuses a request.
#[derive(Debug, Default)]
pub struct Refusal {
    remarks: Vec<Remark>,
    codes: Vec<String>,
}

/// One object of the refusal, or the whole of one that is not JSON.
#[derive(Debug, Default)]
struct Remark {
    /// The members that it blames.
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

    /// Whether it says that one of these members is not accepted.
    fn refuses(&self, names: &[&str]) -> bool {
        self.remarks.iter().any(|remark| {
            let is_culprit = remark.params.iter().any(|param| names.contains(&leaf(param)));
            (is_culprit && is_refusal(&remark.words))
                || sentences(&remark.words)
                    .any(|words| is_refusal(words) && names.iter().any(|name| has_word(words, name)))
        })
    }

    /// Whether it uses this word outside of a quoted request.
    fn names(&self, name: &str) -> bool {
        self.remarks.iter().any(|remark| has_word(&remark.words, name))
    }

    /// Whether it says that there is no role `system`, or that roles must alternate, which `system` breaks.
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

/// The last name of a path: `messages[0].role` is about a role.
fn leaf(place: &str) -> &str {
    place.rsplit(['.', '/', ']']).next().unwrap_or(place)
}

/// The paths in errors that vLLM writes as Python does: `'loc': ('body', 'stream_options')`.
fn python_places(text: &str) -> Vec<String> {
    let places = text.split("'loc': (").skip(1).filter_map(|rest| rest.split(')').next());
    places
        .map(|place| {
            let steps = place.split(',').map(|step| step.trim().trim_matches('\''));
            steps.filter(|step| !step.is_empty() && *step != "body").collect::<Vec<_>>().join(".")
        })
        .collect()
}

/// A text in lower case and without the parts in braces, where the request is repeated; but a refusal in Python syntax
/// is in braces, too, and keeps its kind.
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

/// Whether a name occurs as a word of its own.
fn has_word(words: &str, name: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    words.match_indices(name).any(|(at, _)| {
        !words[..at].chars().next_back().is_some_and(is_part)
            && !words[at + name.len()..].chars().next().is_some_and(is_part)
    })
}

/// Maximum number of models taken from a list.
const MOST_MODELS: usize = 1000;

/// How long a list is valid before a client's request fetches it again.
pub const FRESH: Duration = Duration::from_secs(300);

/// How long an endpoint that did not answer is not asked again, so that its silence does not hold up every session.
pub const REST: Duration = Duration::from_secs(60);

/// Why there is no list, and how long the endpoint is not asked again.
pub type Unavailable = (String, Duration);

/// One model of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name in requests.
    pub id: String,
    /// Its context window in tokens, if the list has it.
    pub window: Option<u64>,
}

impl Model {
    /// A model of which only the name is known.
    pub fn named(id: &str) -> Self {
        Self { id: id.to_owned(), window: None }
    }
}

/// Where servers put the context window: OpenRouter and Together, vLLM, Groq, Mistral and LM Studio, LiteLLM.
const WINDOWS: [&str; 5] =
    ["context_length", "max_model_len", "context_window", "max_context_length", "max_input_tokens"];

/// The context window of an entry.
fn window(entry: &Json) -> Option<u64> {
    // llama.cpp has it one level deeper; OpenRouter's `top_provider` is the server in use, and may have less.
    let places = [entry.get("top_provider"), entry.get("meta"), Some(entry)].into_iter().flatten();
    let windows = places.flat_map(|place| WINDOWS.iter().chain(&["n_ctx"]).map(|name| place[*name].as_u64()));
    windows.flatten().filter(|window| *window > 0).min()
}

/// The models of a list: `{"data": [{"id": …}]}` as in OpenAI's, `{"models": […]}` or a bare array. An entry without a
/// string id is left out, and so is a duplicate.
///
/// # Errors
/// It is not a list, or an empty one.
pub fn read_models(text: &str) -> Result<Vec<Model>, String> {
    let json: Json = serde_json::from_str(text)
        .map_err(|error| format!("no list of models: no JSON at line {}, column {}", error.line(), error.column()))?;
    let list = json.as_array().or_else(|| ["data", "models"].iter().find_map(|name| json[*name].as_array()));
    let list = list.ok_or("no list of models: neither an array nor an object with one as data")?;
    let mut models: Vec<Model> = Vec::new();
    for entry in list {
        let id = entry.as_str().or_else(|| entry["id"].as_str()).map(str::trim).filter(|id| !id.is_empty());
        if let Some(id) = id
            && models.len() < MOST_MODELS
            && !models.iter().any(|known| known.id == id)
        {
            models.push(Model { window: window(entry), ..Model::named(id) });
        }
    }
    if models.is_empty() { Err("the list of models is empty".to_owned()) } else { Ok(models) }
}

/// Tokens per byte of a conversation of which nothing is known yet: in English a token has four bytes.
pub const USUAL_RATE: f64 = 0.25;

/// The weight of an image, in bytes of text: about a thousand tokens.
const IMAGE: usize = 4096;

/// How many tokens of a window a request may fill, so that there is room for the answer.
pub fn budget(window: u64, max_tokens: Option<u64>) -> u64 {
    let answer = max_tokens.unwrap_or_else(|| (window / 8).min(4096));
    window.saturating_sub(answer).max(window / 2)
}

/// The weight of a message in JSON, in bytes of text.
pub fn weight(message: &str) -> usize {
    const BEGINNING: &str = "{\"url\":\"data:";
    let mut pieces = message.split(BEGINNING);
    let first = pieces.next().map_or(0, str::len);
    // Of a piece that begins inside an image, only the part after the image's end is text.
    first + pieces.map(|piece| IMAGE + piece.find('"').map_or(0, |end| piece.len() - end)).sum::<usize>()
}

/// What an endpoint says about a request that does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overflow {
    /// The size of the window, in tokens.
    pub window: Option<u64>,
    /// Tokens that the request would have taken.
    pub asked: Option<u64>,
}

impl Overflow {
    /// Reads a failure; `None` if it is about something else.
    pub fn of(failure: &Failure) -> Option<Self> {
        match failure.status() {
            // A key, an address, a rate: other words, and some name tokens as well.
            Some(401 | 403 | 404 | 408 | 429) => None,
            _ => Self::read(failure.detail()),
        }
    }

    fn read(words: &str) -> Option<Self> {
        let words = words.to_ascii_lowercase();
        if words.contains("per minute")
            || !SIGNS.split('|').any(|sign| sign.split('+').all(|word| words.contains(word)))
        {
            return None;
        }
        let numbers = numbers(&words);
        let most = numbers.iter().copied().max();
        match numbers.iter().find(|number| Some(**number) < most) {
            Some(window) => Some(Self { window: Some(*window), asked: most }),
            None if words.contains("should be") || words.contains("limit: ") => {
                Some(Self { window: most, asked: None })
            }
            // A lone number may be the error code, or the size of what is too large.
            None => Some(Self::default()),
        }
    }
}

/// Words that occur together in the errors of endpoints when a request exceeds the window: of OpenAI, Azure, vLLM,
/// DeepSeek, OpenRouter, Together, Mistral, Ollama, LM Studio, llama.cpp, MiniMax, AWS Bedrock, Anthropic, xAI, Gemini,
/// GitHub, Cohere, Groq, Hugging Face, Alibaba, Moonshot and Zhipu.
const SIGNS: &str = "maximum context length|context_length_exceeded|exceed+context length|overflow+context|\
    greater than the context length|exceed+context size|exceed+context window|exceed+context limit|prompt is too long|\
    prompt too long|input is too long|maximum prompt length|token count+exceed|exceeds the maximum number of tokens|\
    too many tokens|reduce the length of the messages|max_new_tokens+must be <=|must have less than+tokens|\
    range of input length should be|exceeded model token limit|prompt exceeds max length";

/// The numbers in a text that may be token counts, in order.
fn numbers(words: &str) -> Vec<u64> {
    let is_part = |letter: char| letter.is_ascii_digit() || letter == ',' || letter == '_';
    let runs = words.split(|letter: char| !is_part(letter));
    let read = |run: &str| run.replace([',', '_'], "").parse().ok();
    runs.filter_map(read).filter(|number| *number >= 256).collect()
}

#[cfg(test)]
mod tests;
