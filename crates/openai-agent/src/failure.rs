//! Failures: what an endpoint says, in whatever shape, the message for the user, and whether to retry. Pure.
//!
//! | shape | whose |
//! |---|---|
//! | `{"error":{"message":…,"code":…,"type":…}}`, `{"error":"…"}` | OpenAI and most others; Ollama |
//! | `{"object":"error","message":…}`, `{"type":"error","error":{…}}` | vLLM; Anthropic |
//! | `[{"error":{…,"status":"INVALID_ARGUMENT"}}]` | Gemini |
//! | `{"error":{…,"metadata":{"raw":…}}}` | OpenRouter: the words of the server behind it |
//! | `{"detail":"…"}`, `{"detail":[{"loc":[…],"msg":…}]}` | FastAPI |
//! | `{"errors":[…]}`, `{"success":false,…}` | Cloudflare |
//! | `{"base_resp":{"status_code":1004,"status_msg":…}}` | MiniMax |
//! | `{"x_groq":{"error":"…"}}` | Groq, within a stream |
//! | `{"code":…,"message":…}`, `{"msg":…}`, `{"error_code":…,"error_msg":…}` | DashScope, gateways; Baidu |
//! | text, or a web page with a title | proxies before the endpoint |
//!
//! A request is retried only if no byte of its answer was seen, and at most as often as configured. If a server asks
//! for a wait longer than [`LONGEST_WAIT`], the user gets the error at once instead.

use super::json::Raw;
use super::rpc::{RpcError, floor};
use super::secrets::Secrets;
use http::HeaderMap;
use serde_json::json;
use std::time::{Duration, SystemTime};

/// Why a turn failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The endpoint answered with a status that is not a success.
    Status {
        /// HTTP status.
        status: u16,
        /// What the body says about it, if anything.
        detail: String,
    },
    /// The same, but a proxy that forwards requests may have answered.
    Proxied {
        /// HTTP status.
        status: u16,
        /// What the body says about it, if anything.
        detail: String,
        /// The proxy's host and port.
        proxy: String,
    },
    /// No connection, a broken connection or a timeout: what happened.
    Network(String),
    /// An error object within a successful response.
    Server(ServerError),
    /// The model stopped for a reason that is not a proper end: the endpoint's word for it.
    Ended(String),
    /// A successful response that is not a completion: its content type.
    NotACompletion(String),
    /// An event or an answer exceeded the configured number of bytes.
    TooLong(usize),
    /// There is no usable key: why.
    Key(String),
}

impl Failure {
    /// The message for people. `url` is the address that was called.
    pub fn text(&self, url: &str) -> String {
        match self {
            Self::Status { status, detail } => status_text(*status, detail, url),
            Self::Proxied { status: 407, detail, .. } => status_text(407, detail, url),
            Self::Proxied { status, detail, proxy } => format!(
                "{} The request was forwarded by the proxy {proxy}, which may have answered in place of the endpoint: \
                 NO_PROXY names hosts that are reached without it.",
                status_text(*status, detail, url)
            ),
            Self::Server(error) => match error.code {
                Some(code) => status_text(code, &error.message, url),
                None => {
                    let words = format!("Error from {url}: {}", error.message);
                    let is_lost = ["unexpected endpoint", "invalid url", "not found"]
                        .iter()
                        .any(|sign| error.message.to_ascii_lowercase().contains(sign));
                    with_advice(words, path_advice(&error.message, url).filter(|_| is_lost))
                }
            },
            Self::Ended(word) => {
                format!("The answer from {url} is not complete: the endpoint ended it with finish_reason {word:?}.")
            }
            Self::Network(message) => format!("Network error connecting to {url}: {message}"),
            Self::NotACompletion(kind) => {
                let words = format!(
                    "Unexpected answer from {url}: {kind} instead of a chat completion. Check your OPENAI_BASE_URL."
                );
                with_advice(words, path_advice("", url))
            }
            Self::TooLong(limit) => format!("Answer from {url} is longer than the limit of {limit} bytes."),
            Self::Key(message) => format!("No API key for {url}: {message}"),
        }
    }

    /// The same without any secret that the endpoint has quoted.
    pub fn masked(mut self, secrets: &Secrets) -> Self {
        match &mut self {
            Self::Status { detail: words, .. }
            | Self::Proxied { detail: words, .. }
            | Self::Server(ServerError { message: words, .. }) => {
                *words = secrets.mask(words);
            }
            Self::Network(words) | Self::Ended(words) | Self::NotACompletion(words) | Self::Key(words) => {
                *words = secrets.mask(words);
            }
            Self::TooLong(_) => {}
        }
        self
    }

    /// The HTTP status, if there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } | Self::Proxied { status, .. } => Some(*status),
            Self::Server(error) => error.code,
            _ => None,
        }
    }

    /// Whether the endpoint refuses this prompt: it would refuse it beside the next one, too.
    pub fn is_refusal(&self) -> bool {
        matches!(self.status(), Some(400 | 413 | 422)) || self.is_of_images()
    }

    /// Whether the model takes no images, in the words of many servers. llama.cpp reports that with 500 and OpenRouter
    /// with 404.
    pub fn is_of_images(&self) -> bool {
        let words = self.detail().to_ascii_lowercase();
        !matches!(self.status(), Some(401 | 403 | 429))
            && NO_IMAGES.split('|').any(|signs| signs.split('+').all(|sign| words.contains(sign)))
    }

    /// The server's words beyond those of [`Self::text`], for the log.
    pub fn detail(&self) -> &str {
        match self {
            Self::Status { detail, .. } | Self::Proxied { detail, .. } => detail,
            Self::Server(error) => &error.message,
            _ => "",
        }
    }

    /// The same as a JSON-RPC error: -32000 when the key is missing or wrong, else -32603.
    pub fn rpc_error(&self, url: &str) -> RpcError {
        let is_key = matches!(self.status(), Some(401 | 403)) || matches!(self, Self::Key(_));
        let code = if is_key { -32000 } else { -32603 };
        let mut data = json!({ "url": url });
        if let Some(status) = self.status() {
            data["status"] = status.into();
        }
        if !self.detail().is_empty() {
            data["detail"] = self.detail().into();
        }
        RpcError { code, message: self.text(url), data: Some(data) }
    }
}

/// Words that occur together where a model takes no images: of llama.cpp, Ollama, OpenRouter, Mistral, OpenAI, Azure,
/// vLLM, of DeepSeek and others by what they expect in place of an image, and of proxies.
const NO_IMAGES: &str = "image input|image_url+only supported by certain models|not a multimodal model|at most 0 image|\
    image_url+unknown|image_url+unsupported|image_url+not support|content must be a string|\
    input should be 'text'|vision+not support";

fn status_text(status: u16, detail: &str, url: &str) -> String {
    let words = match status {
        401 | 403 => format!("Authentication error (HTTP {status}) calling {url}. Check your OPENAI_API_KEY."),
        429 => format!("Rate limit exceeded (HTTP 429) calling {url}. Please retry later."),
        500.. => format!("Server error (HTTP {status}) from {url}."),
        _ => {
            let words = if detail.is_empty() { String::new() } else { format!(": {detail}") };
            let words = format!("Request refused (HTTP {status}) by {url}{words}");
            let advice = match status {
                404 | 405 => path_advice(detail, url),
                407 => Some(PROXY_ADVICE.to_owned()),
                426 => Some(VERSION_ADVICE.to_owned()),
                _ => None,
            };
            let end = if detail.is_empty() { "." } else { "" };
            return with_advice(format!("{words}{end}"), advice);
        }
    };
    let words = if detail.is_empty() { words } else { format!("{words} It says: {detail}") };
    with_advice(words, (status == 505).then(|| VERSION_ADVICE.to_owned()))
}

/// After 407.
const PROXY_ADVICE: &str =
    "A proxy asks for a user and a password: write user:password@ before its host in HTTP_PROXY or HTTPS_PROXY.";

/// After 426 and 505.
const VERSION_ADVICE: &str = "This agent speaks HTTP/1.1 only.";

/// The words, and a sentence about what to do.
fn with_advice(words: String, advice: Option<String>) -> String {
    let Some(advice) = advice else { return words };
    let end = if words.ends_with(['.', '!', '?', '…']) { "" } else { "." };
    format!("{words}{end} {advice}")
}

/// What to do about a path that the server does not know, if the base URL has no version in its path as nearly every
/// endpoint has, and if what the server says is not about the model.
fn path_advice(detail: &str, url: &str) -> Option<String> {
    let base = url.strip_suffix("/chat/completions")?;
    let (_, place) = base.split_once("://")?;
    let is_version =
        |step: &str| step.strip_prefix('v').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    let is_known = place.split('/').skip(1).any(|step| is_version(step) || step == "deployments");
    let is_about_the_model = detail.to_ascii_lowercase().contains("model");
    (!is_known && !is_about_the_model)
        .then(|| format!("OPENAI_BASE_URL has no version in its path: try OPENAI_BASE_URL={base}/v1."))
}

/// An error that an endpoint reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// As an HTTP status, if it has one.
    pub code: Option<u16>,
    /// The server's words.
    pub message: String,
}

/// Something that a completion never contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// It is marked as an error.
    Error(ServerError),
    /// Words that may be one.
    Words(String),
}

/// Maximum length of a server's words, in characters.
const MOST_WORDS: usize = 1000;

/// The maximum depth of the search for words.
const MOST_DEPTH: usize = 6;

/// Members that hold words, the most specific first.
const WORDS: &str = "message Message detail details msg error_msg error_message errorMessage status_msg \
                     error_description description faultstring reason error errors fault base_resp title text";

/// The error that a JSON text marks as one, even beside a completion: it may come at any time in a stream.
pub fn marked(value: Raw<'_>) -> Option<ServerError> {
    if let Some(error) = value.get("error").filter(|error| says_something(*error)) {
        let message = if error.boolean().is_some() { words(value, 0) } else { words(error, 0) };
        let message = message.unwrap_or_else(|| {
            if error.is_object() && code(error).is_some() { "no message".to_owned() } else { compact(error) }
        });
        return Some(ServerError { code: code(error).or_else(|| code(value)), message: shorten(&message) });
    }
    let base = value.get("base_resp").and_then(|base| Some((base, base.get("status_code")?.number()?)));
    if let Some((base, number)) = base.filter(|(_, number)| *number != 0.0) {
        let code = match number as i64 {
            1004 | 2049 => Some(401),
            1002 | 1039 | 2045 => Some(429),
            _ => None,
        };
        return Some(ServerError { code, message: words(base, 0).unwrap_or_else(|| format!("status_code {number}")) });
    }
    if let Some(error) = value.get("x_groq").and_then(|groq| groq.get("error")).filter(|error| says_something(*error)) {
        return Some(ServerError { code: code(error), message: words(error, 0).unwrap_or_else(|| compact(error)) });
    }
    let is_error = |name: &&str| value.get_text(name).as_deref() == Some("error");
    let has_failed = |name: &&str| value.get(name).and_then(Raw::boolean) == Some(false);
    let lists = |name: &&str| value.get(name).is_some_and(says_something);
    if ["object", "type", "status"].iter().any(is_error)
        || ["success", "ok"].iter().any(has_failed)
        || ["errors", "fault"].iter().any(lists)
    {
        let message = words(value, 0).unwrap_or_else(|| compact(value));
        return Some(ServerError { code: code(value), message });
    }
    None
}

/// The error in a JSON text that is not a completion.
pub fn read(value: Raw<'_>) -> Option<Complaint> {
    if value.is_array() {
        return value.items().take(8).find_map(read);
    }
    if let Some(error) = marked(value) {
        return Some(Complaint::Error(error));
    }
    let words = words(value, 0)?;
    let code = code(value);
    let names_code = |name: &&str| value.get_text(name).is_some_and(|code| !code.is_empty());
    let is_error = code.is_some()
        || ["code", "error_code"].iter().any(names_code)
        || value.get("detail").is_some_and(Raw::is_array)
        || value.get("error_msg").is_some();
    Some(if is_error { Complaint::Error(ServerError { code, message: words }) } else { Complaint::Words(words) })
}

/// The words of a text that may be JSON, events, a web page or plain text; none if it has none.
pub fn of_text(text: &str) -> Option<ServerError> {
    let plain = text.trim().trim_start_matches('\u{feff}').trim_start();
    let error = |message: String| Some(ServerError { code: None, message });
    if plain.starts_with('<') {
        return title(plain).and_then(error);
    }
    if plain.starts_with(['{', '['])
        && let Some(value) = Raw::read(plain.as_bytes())
    {
        return match read(value) {
            Some(Complaint::Error(error)) => Some(error),
            Some(Complaint::Words(message)) => error(message),
            None if says_something(value) => error(compact(value)),
            None => None,
        };
    }
    // An error sent as an event, though the response is not a stream: its data.
    let data = plain.lines().find_map(|line| line.strip_prefix("data:").or_else(|| line.strip_prefix("error:")));
    match data.map(str::trim) {
        Some(data) if data.starts_with(['{', '[', '"']) || !data.is_empty() && data.len() < plain.len() => {
            of_text(data)
        }
        _ => Some(shorten(plain.trim_matches('"'))).filter(|words| !words.is_empty()).and_then(error),
    }
}

/// The text of the first words found, with those of the server behind.
fn words(value: Raw<'_>, depth: usize) -> Option<String> {
    if depth > MOST_DEPTH {
        return None;
    }
    if let Some(text) = value.text() {
        let text = text.trim();
        // JSON inside a string: what one server quotes of another.
        let quoted = Some(text).filter(|text| text.starts_with(['{', '['])).and_then(|text| Raw::read(text.as_bytes()));
        let said = quoted.and_then(|value| words(value, depth + 1)).unwrap_or_else(|| shorten(text));
        return Some(said).filter(|said| !said.is_empty());
    }
    if value.is_array() {
        let all: Vec<String> = value.items().take(4).filter_map(|item| words(item, depth + 1)).collect();
        return (!all.is_empty()).then(|| shorten(&all.join("; ")));
    }
    let said = WORDS.split_whitespace().find_map(|name| value.get(name).and_then(|value| words(value, depth + 1)));
    let said = said.or_else(|| {
        // `{"errors":{"model":["is unknown"]}}`: what is wrong with what.
        let lists = value.members().filter(|(_, member)| depth > 0 && member.is_array());
        lists.take(4).find_map(|(name, member)| {
            Some(format!("{}: {}", String::from_utf8_lossy(&name), words(member, depth + 1)?))
        })
    })?;
    let place = value.get("loc").into_iter().flat_map(Raw::items);
    let place: Vec<String> =
        place.map(|step| step.text().map_or_else(|| compact(step), |text| text.into_owned())).collect();
    let said = if place.is_empty() { said } else { format!("{}: {said}", place.join(".")) };
    let raw = value.get("metadata").and_then(|metadata| metadata.get("raw")).and_then(|raw| words(raw, depth + 1));
    Some(match raw.filter(|raw| !said.contains(raw.as_str())) {
        Some(raw) => shorten(&format!("{said}: {raw}")),
        None => said,
    })
}

/// Whether a value is more than a way to say "nothing".
fn says_something(value: Raw<'_>) -> bool {
    if let Some(text) = value.text() {
        return !text.trim().is_empty();
    }
    if value.is_object() {
        return value.members().any(|(_, member)| says_something(member));
    }
    value.items().next().is_some()
        || !value.is_array() && value.boolean().unwrap_or(!value.is_null() && value.number() != Some(0.0))
}

/// Names of a status, and the status.
const STATUSES: [(u64, &str); 8] = [
    (429, "rate_limit_exceeded rate_limit_error insufficient_quota RESOURCE_EXHAUSTED Throttling"),
    (401, "invalid_api_key authentication_error UNAUTHENTICATED InvalidApiKey"),
    (403, "permission_error PERMISSION_DENIED"),
    (404, "model_not_found"),
    (
        400,
        "invalid_request_error context_length_exceeded content_filter content_policy_violation data_inspection_failed \
         DataInspectionFailed INVALID_ARGUMENT",
    ),
    (500, "server_error internal_server_error INTERNAL api_error"),
    (503, "UNAVAILABLE"),
    (529, "overloaded_error"),
];

fn code(value: Raw<'_>) -> Option<u16> {
    const NAMES: &str = "code status status_code statusCode http_code error_code error_type type";
    NAMES.split(' ').find_map(|name| value.get(name).and_then(status_code))
}

fn status_code(value: Raw<'_>) -> Option<u16> {
    let number = match value.text() {
        Some(text) => {
            let named = STATUSES.iter().find(|(_, words)| words.split(' ').any(|word| word == text));
            named.map(|(status, _)| *status).or_else(|| text.parse().ok())?
        }
        None => value.count()?,
    };
    u16::try_from(number).ok().filter(|code| (400..600).contains(code))
}

/// The title of a web page.
fn title(page: &str) -> Option<String> {
    let lower = page.to_ascii_lowercase();
    let begin = lower.find("<title")?;
    let begin = begin + lower[begin..].find('>')? + 1;
    let end = begin + lower[begin..].find("</title")?;
    Some(shorten(&page[begin..end])).filter(|title| !title.is_empty())
}

fn compact(value: Raw<'_>) -> String {
    shorten(&String::from_utf8_lossy(value.bytes()))
}

/// The words in one line, shortened.
pub fn shorten(text: &str) -> String {
    let mut out = String::new();
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
        if out.len() > MOST_WORDS {
            out.truncate(floor(&out, MOST_WORDS));
            out.push('…');
            break;
        }
    }
    out
}

/// The longest wait before a retry.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The first wait if the server names none; it doubles up to [`LONGEST_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_secs(8);

/// An answer with a status that is not a success.
#[derive(Clone, Debug)]
pub struct Refused {
    pub status: u16,
    pub headers: HeaderMap,
    /// Whether the account is empty: no wait fills it.
    pub is_spent: bool,
}

/// How long to wait before the next attempt, or `None` if there is none: after a refusal, or without a connection.
/// `attempt` counts from 0, `dice` is uniformly distributed over 0 to 1.
pub fn decide(
    refused: Option<&Refused>,
    attempt: u32,
    max_retries: u32,
    now: SystemTime,
    dice: f64,
) -> Option<Duration> {
    if attempt >= max_retries {
        return None;
    }
    let backoff = FIRST_BACKOFF.saturating_mul(1 << attempt.min(10)).min(LONGEST_BACKOFF).mul_f64(1.0 - dice * 0.25);
    let Some(Refused { status, headers, is_spent }) = refused else { return Some(backoff) };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let again = match text("x-should-retry") {
        Some("true") => true,
        Some("false") => false,
        _ => !is_spent && matches!(*status, 408 | 409 | 429 | 500..),
    };
    if !again {
        return None;
    }
    let wait = asked_wait(text("retry-after-ms"), text("retry-after"), now).unwrap_or(backoff);
    (wait <= LONGEST_WAIT).then_some(wait)
}

/// The wait that the server asks for: milliseconds, seconds or a date.
fn asked_wait(milliseconds: Option<&str>, seconds_or_date: Option<&str>, now: SystemTime) -> Option<Duration> {
    let number = |text: &str, unit: f64| {
        let number = text.parse::<f64>().ok().filter(|number| *number >= 0.0)?;
        Some(Duration::try_from_secs_f64(number * unit).unwrap_or(Duration::MAX))
    };
    if let Some(wait) = milliseconds.and_then(|text| number(text, 0.001)) {
        return Some(wait);
    }
    let text = seconds_or_date?;
    number(text, 1.0).or_else(|| {
        let date = httpdate::parse_http_date(text).ok()?;
        Some(date.duration_since(now).unwrap_or(Duration::ZERO))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Refusal;
    use proptest::prelude::*;

    fn status(status: u16) -> Failure {
        Failure::Status { status, detail: String::new() }
    }

    #[test]
    fn the_texts_are_those_of_the_rfd() {
        let url = "http://h/v1/chat/completions";
        for (failure, text) in [
            (
                status(401),
                "Authentication error (HTTP 401) calling http://h/v1/chat/completions. Check your OPENAI_API_KEY.",
            ),
            (
                status(403),
                "Authentication error (HTTP 403) calling http://h/v1/chat/completions. Check your OPENAI_API_KEY.",
            ),
            (status(429), "Rate limit exceeded (HTTP 429) calling http://h/v1/chat/completions. Please retry later."),
            (status(502), "Server error (HTTP 502) from http://h/v1/chat/completions."),
            (
                Failure::Status { status: 502, detail: "no worker".into() },
                "Server error (HTTP 502) from http://h/v1/chat/completions. It says: no worker",
            ),
            (
                Failure::Ended("abort".into()),
                "The answer from http://h/v1/chat/completions is not complete: the endpoint ended it with finish_reason \"abort\".",
            ),
            (Failure::Network("reset".into()), "Network error connecting to http://h/v1/chat/completions: reset"),
        ] {
            assert_eq!(failure.text(url), text);
        }
    }

    #[test]
    fn a_path_without_a_version_is_named_where_the_server_does_not_know_it() {
        let is_named = |failure: Failure, base: &str| {
            let text = failure.text(&format!("{base}/chat/completions"));
            let advice = format!(" OPENAI_BASE_URL has no version in its path: try OPENAI_BASE_URL={base}/v1.");
            assert_eq!(text.ends_with(&advice), text.contains("no version"), "{text}");
            text.ends_with(&advice)
        };
        let refused = |status, detail: &str| Failure::Status { status, detail: detail.to_owned() };
        let server = |message: &str| Failure::Server(ServerError { code: None, message: message.to_owned() });
        for base in ["http://localhost:11434", "https://models.test/api", "https://vllm.test"] {
            assert!(is_named(refused(404, "404 page not found"), base));
            assert!(is_named(refused(404, ""), base));
            assert!(is_named(refused(405, "Method Not Allowed"), base));
            assert!(is_named(Failure::NotACompletion("text/html".to_owned()), base));
            assert!(is_named(server("Unexpected endpoint or method. (POST /chat/completions)"), base));
            assert!(!is_named(refused(404, "model \"x\" not found, try pulling it first"), base));
            assert!(!is_named(refused(400, "bad"), base));
            assert!(!is_named(server("out of memory"), base));
        }
        for base in ["http://h/v1", "https://h/openai/v1beta", "https://h/openai/deployments/d", "https://h/v4/x"] {
            assert!(!is_named(refused(404, "Not Found"), base), "{base}");
            assert!(!is_named(Failure::NotACompletion("text/html".to_owned()), base), "{base}");
        }
    }

    #[test]
    fn a_status_that_a_proxy_may_have_sent_names_the_proxy() {
        let text = |status, detail: &str| {
            let failure = Failure::Proxied { status, detail: detail.to_owned(), proxy: "p:3128".to_owned() };
            assert_eq!(failure.status(), Some(status));
            failure.text("http://h/v1/chat/completions")
        };
        let words = "The request was forwarded by the proxy p:3128, which may have answered in place of the endpoint: \
                     NO_PROXY names hosts that are reached without it.";
        let url = "http://h/v1/chat/completions";
        assert_eq!(text(502, ""), format!("Server error (HTTP 502) from {url}. {words}"));
        assert_eq!(
            text(407, ""),
            format!(
                "Request refused (HTTP 407) by {url}. A proxy asks for a user and a password: write \
                 user:password@ before its host in HTTP_PROXY or HTTPS_PROXY."
            )
        );
    }

    #[test]
    fn a_prompt_that_would_be_refused_again_is_a_refusal() {
        for (code, detail, is_refusal) in [
            (400, "context is full", true),
            (413, "", true),
            (422, "", true),
            (500, "image input is not supported - hint: you may need to provide the mmproj", true),
            (404, "No endpoints found that support image input", true),
            (500, "out of memory", false),
            (404, "no such model", false),
            (429, "", false),
        ] {
            let failure = Failure::Status { status: code, detail: detail.to_owned() };
            assert_eq!(failure.is_refusal(), is_refusal, "{code} {detail}");
            let inside = Failure::Server(ServerError { code: Some(code), message: detail.to_owned() });
            assert_eq!(inside.is_refusal(), is_refusal, "{code} {detail}");
        }
        assert!(!Failure::Network("reset".into()).is_refusal());
    }

    #[test]
    fn a_model_without_vision_is_recognised_in_the_words_of_many_servers() {
        for (code, detail, is_of_images) in [
            (400, "this model does not support image input", true),
            (404, "No endpoints found that support image input", true),
            (400, "Invalid content type. image_url is only supported by certain models.", true),
            (400, "facebook/opt-125m is not a multimodal model", true),
            (400, "At most 0 image(s) may be provided in one prompt.", true),
            (400, "messages[0]: unknown variant `image_url`, expected `text` at line 1 column 99", true),
            (400, "Unsupported content part type for text-only server: image_url", true),
            (400, "messages[0].content must be a string", true),
            (422, "body.messages.0.content: Input should be 'text'", true),
            (400, "The model `x` does not support vision", true),
            (400, "You uploaded an unsupported image. Please make sure your image is below 20 MB in size", false),
            (400, "Error while downloading https://h/a.png. Upstream status code: 404.", false),
            (429, "image input tokens per minute", false),
        ] {
            let failure = Failure::Status { status: code, detail: detail.to_owned() };
            assert_eq!(failure.is_of_images(), is_of_images, "{code} {detail}");
        }
    }

    proptest! {
        #[test]
        fn every_status_has_its_class(code in 300u16..600, detail in "\\PC{0,20}") {
            let failure = Failure::Status { status: code, detail: detail.clone() };
            let text = failure.text("U");
            prop_assert_eq!(text.starts_with("Authentication error"), code == 401 || code == 403);
            prop_assert_eq!(text.starts_with("Rate limit exceeded"), code == 429);
            prop_assert_eq!(text.starts_with("Server error"), code >= 500);
            let has_status = text.contains(&format!("HTTP {code}"));
            prop_assert!(has_status && text.contains('U'));
            prop_assert_eq!(failure.rpc_error("U").code, if code == 401 || code == 403 { -32000 } else { -32603 });
            // An error inside a stream reads like the same error sent as a status.
            let inside = Failure::Server(ServerError { code: Some(code), message: detail });
            if code >= 400 {
                prop_assert_eq!(inside.text("U"), text);
            }
        }
    }

    #[test]
    fn the_words_of_many_servers_are_found() {
        for (text, code, message) in [
            (r#"{"error":{"message":"m","type":null,"code":"429"}}"#, Some(429), "m"),
            (r#"{"error":{"message":"m","code":503}}"#, Some(503), "m"),
            (r#"{"error":"model not found"}"#, None, "model not found"),
            (r#"{"object":"error","message":"m","code":400}"#, Some(400), "m"),
            (r#"{"error":{"code":"rate_limit_exceeded"}}"#, Some(429), "no message"),
            (r#"{"error":{"hint":7}}"#, None, r#"{"hint":7}"#),
            (r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, Some(529), "Overloaded"),
            (
                "[{\n  \"error\": {\n    \"code\": 400,\n    \"message\": \"API key not valid.\",\n    \"status\": \"INVALID_ARGUMENT\"\n  }\n}]",
                Some(400),
                "API key not valid.",
            ),
            (
                r#"{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":"{\"error\":{\"message\":\"slow down\"}}","provider_name":"P"}}}"#,
                Some(429),
                "Provider returned error: slow down",
            ),
            (r#"{"detail":"Not Found"}"#, None, "Not Found"),
            (
                r#"{"detail":[{"loc":["body","messages",0],"msg":"field required","type":"missing"}]}"#,
                None,
                "body.messages.0: field required",
            ),
            (
                r#"{"result":null,"success":false,"errors":[{"code":10000,"message":"Authentication error"}],"messages":[]}"#,
                None,
                "Authentication error",
            ),
            (r#"{"base_resp":{"status_code":1004,"status_msg":"login fail"}}"#, Some(401), "login fail"),
            (r#"{"x_groq":{"id":"r","error":"over capacity"}}"#, None, "over capacity"),
            (r#"{"code":"InvalidParameter","message":"bad url","request_id":"1"}"#, None, "bad url"),
            (r#"{"error_code":336003,"error_msg":"the max input is 5"}"#, None, "the max input is 5"),
            (r#"{"statusCode":401,"message":"Unauthorized"}"#, Some(401), "Unauthorized"),
            (r#"{"msg":"no balance"}"#, None, "no balance"),
            (r#"{"Message":"no route"}"#, None, "no route"),
            (r#"{"errors":{"model":["is unknown"]}}"#, None, "model: is unknown"),
            (r#"{"fault":{"faultstring":"Invalid key","detail":{"errorcode":"k"}}}"#, None, "Invalid key"),
            (r#"{"error":true,"message":"really"}"#, None, "really"),
            (r#"{"nothing":"known"}"#, None, r#"{"nothing":"known"}"#),
            ("upstream connect error\n or reset", None, "upstream connect error or reset"),
            ("\"just words\"", None, "just words"),
            ("<html><head><TITLE>502 Bad\n Gateway</TITLE></head>", None, "502 Bad Gateway"),
            ("data: {\"error\":{\"message\":\"as an event\"}}\n\n", None, "as an event"),
            ("event: error\ndata: plain words\n\n", None, "plain words"),
            ("{\"error\":{\"message\":\"half a \\ud83d pair\"}}", None, "half a \u{fffd} pair"),
            ("{\"error\":{\"message\":\"cut o", None, "{\"error\":{\"message\":\"cut o"),
        ] {
            let expected = Some(ServerError { code, message: message.to_owned() });
            assert_eq!(of_text(text), expected, "{text}");
        }
        for nothing in ["", " \n", "<html></html>", "{}", "[]", r#"{"error":null}"#] {
            assert_eq!(of_text(nothing), None, "{nothing:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_words_are_few(text in "\\PC{0,60}|[\\[\\]{}\":,a-c<>/]{0,60}|(data|error|\\[|\\{|:|\"|\n| ){0,40}") {
            if let Some(error) = of_text(&text) {
                prop_assert!(!error.message.is_empty() && error.message.len() <= MOST_WORDS + 3);
            }
        }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn wait(status: u16, pairs: &[(&'static str, &str)]) -> Option<Duration> {
        let refused = Refused { status, headers: headers(pairs), is_spent: false };
        decide(Some(&refused), 0, 2, SystemTime::UNIX_EPOCH, 0.0)
    }

    #[test]
    fn an_empty_account_is_not_asked_again() {
        let refusal = Refusal::read(r#"{"error":{"message":"pay","type":"insufficient_quota"}}"#);
        assert!(refusal.is_spent() && !Refusal::read(r#"{"error":{"code":"rate_limit_exceeded"}}"#).is_spent());
        for (pairs, again) in
            [(&[][..], false), (&[("retry-after", "1")], false), (&[("x-should-retry", "true")], true)]
        {
            let refused = Refused { status: 429, headers: headers(pairs), is_spent: true };
            assert_eq!(decide(Some(&refused), 0, 2, SystemTime::UNIX_EPOCH, 0.0).is_some(), again);
        }
    }

    #[test]
    fn the_servers_retry_time_is_obeyed() {
        assert_eq!(wait(429, &[("retry-after-ms", "20"), ("retry-after", "9")]), Some(Duration::from_millis(20)));
        assert_eq!(wait(429, &[("retry-after", "1.5")]), Some(Duration::from_millis(1500)));
        assert_eq!(wait(503, &[("retry-after", "Thu, 01 Jan 1970 00:00:07 GMT")]), Some(Duration::from_secs(7)));
        assert_eq!(wait(429, &[("retry-after", "soon")]), Some(FIRST_BACKOFF));
        assert_eq!(wait(429, &[("retry-after", "60")]), Some(LONGEST_WAIT));
        assert_eq!(wait(429, &[("retry-after", "60.1")]), None);
        assert_eq!(wait(429, &[("retry-after", "1e300")]), None);
        assert_eq!(wait(429, &[("x-should-retry", "false")]), None);
        assert_eq!(wait(400, &[("x-should-retry", "true")]), Some(FIRST_BACKOFF));
        assert_eq!(wait(400, &[]), None);
        assert_eq!(wait(401, &[]), None);
    }

    proptest! {
        #[test]
        fn waits_and_attempts_are_bounded(status in 300u16..600, attempt in 0u32..200, max in 0u32..100,
                                          dice in 0f64..1.0, after in "\\PC{0,12}") {
            let mut map = HeaderMap::new();
            if let Ok(value) = after.parse() {
                map.insert("retry-after", value);
            }
            for refused in [None, Some(&Refused { status, headers: map, is_spent: false })] {
                if let Some(wait) = decide(refused, attempt, max, SystemTime::UNIX_EPOCH, dice) {
                    prop_assert!(attempt < max && wait <= LONGEST_WAIT);
                }
            }
        }
    }
}
