//! What an endpoint says of what went wrong, in whatever shape it says it. Pure.
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

use simd_json::prelude::*;
use simd_json::tape::Value;

use super::json::{Reader, push_value};

/// An error that an endpoint reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// As an HTTP status, if it says one.
    pub code: Option<u16>,
    /// The server's words.
    pub message: String,
}

/// Something that no completion says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// It is marked as an error.
    Error(ServerError),
    /// Words that may be one.
    Words(String),
}

/// Characters of a server's words that are told.
const MOST_WORDS: usize = 1000;

/// How deep words are looked for.
const MOST_DEPTH: usize = 6;

/// Where words stand, the most telling first.
const WORDS: [&str; 19] = [
    "message",
    "Message",
    "detail",
    "details",
    "msg",
    "error_msg",
    "error_message",
    "errorMessage",
    "status_msg",
    "error_description",
    "description",
    "faultstring",
    "reason",
    "error",
    "errors",
    "fault",
    "base_resp",
    "title",
    "text",
];

/// The error that a JSON text marks as one, be it a completion beside it: what a stream can say at any time.
pub fn marked(value: Value<'_, '_>) -> Option<ServerError> {
    if let Some(error) = value.get("error").filter(|error| says_something(*error)) {
        let message = match error.is_bool() {
            true => words(value, 0),
            false => words(error, 0),
        };
        let message = message.unwrap_or_else(|| match error.is_object() && code(error).is_some() {
            true => "no message".to_owned(),
            false => compact(error),
        });
        return Some(ServerError { code: code(error).or_else(|| code(value)), message: shorten(&message) });
    }
    if let Some(base) = value.get("base_resp")
        && let Some(number) = base.get_i64("status_code").filter(|number| *number != 0)
    {
        let code = match number {
            1004 | 2049 => Some(401),
            1002 | 1039 | 2045 => Some(429),
            _ => None,
        };
        return Some(ServerError { code, message: words(base, 0).unwrap_or_else(|| format!("status_code {number}")) });
    }
    if let Some(error) = value.get("x_groq").and_then(|groq| groq.get("error")).filter(|error| says_something(*error)) {
        return Some(ServerError { code: code(error), message: words(error, 0).unwrap_or_else(|| compact(error)) });
    }
    let is_error = |name: &str| value.get_str(name) == Some("error");
    let is_failure = value.get_bool("success") == Some(false) || value.get_bool("ok") == Some(false);
    let lists_errors =
        value.get("errors").is_some_and(says_something) || value.get("fault").is_some_and(says_something);
    if is_error("object") || is_error("type") || is_error("status") || is_failure || lists_errors {
        let message = words(value, 0).unwrap_or_else(|| compact(value));
        return Some(ServerError { code: code(value), message });
    }
    None
}

/// What a JSON text that is no completion complains about.
pub fn read(value: Value<'_, '_>) -> Option<Complaint> {
    if let Some(array) = value.as_array() {
        return array.iter().take(8).find_map(read);
    }
    if let Some(error) = marked(value) {
        return Some(Complaint::Error(error));
    }
    let words = words(value, 0)?;
    let code = code(value);
    let names_code =
        ["code", "error_code"].iter().any(|name| value.get_str(*name).is_some_and(|code| !code.is_empty()));
    let is_validation = value.get("detail").is_some_and(|detail| detail.is_array());
    Some(match code.is_some() || names_code || is_validation || value.get("error_msg").is_some() {
        true => Complaint::Error(ServerError { code, message: words }),
        false => Complaint::Words(words),
    })
}

/// The words of a text that may be JSON, events, a web page or plain text; none if it has none.
pub fn of_text(text: &str) -> Option<ServerError> {
    let plain = text.trim().trim_start_matches('\u{feff}').trim_start();
    let error = |message: String| Some(ServerError { code: None, message });
    if plain.starts_with('<') {
        return title(plain).and_then(error);
    }
    if plain.starts_with(['{', '[']) {
        let found = Reader::default().read_leniently(plain.as_bytes(), |value| match read(value) {
            Some(Complaint::Error(error)) => Some(error),
            Some(Complaint::Words(message)) => Some(ServerError { code: None, message }),
            None if says_something(value) => error(shorten(&compact(value))),
            None => None,
        });
        if let Ok(found) = found {
            return found;
        }
    }
    // An error told as an event, though the response is none: its data.
    let data = plain.lines().find_map(|line| line.strip_prefix("data:").or_else(|| line.strip_prefix("error:")));
    match data.map(str::trim) {
        Some(data) if data.starts_with(['{', '[', '"']) || !data.is_empty() && data.len() < plain.len() => {
            of_text(data)
        }
        _ => Some(shorten(plain.trim_matches('"'))).filter(|words| !words.is_empty()).and_then(error),
    }
}

/// The text of the first words found, with what the server behind said.
fn words(value: Value<'_, '_>, depth: usize) -> Option<String> {
    if depth > MOST_DEPTH {
        return None;
    }
    if let Some(text) = value.as_str() {
        let text = text.trim();
        // JSON within a string: what one server quotes of another.
        let quoted = text
            .starts_with(['{', '['])
            .then(|| Reader::default().read_leniently(text.as_bytes(), |value| words(value, depth + 1)).ok().flatten());
        let said = quoted.flatten().unwrap_or_else(|| shorten(text));
        return Some(said).filter(|said| !said.is_empty());
    }
    if let Some(array) = value.as_array() {
        let all: Vec<String> = array.iter().take(4).filter_map(|item| words(item, depth + 1)).collect();
        return (!all.is_empty()).then(|| shorten(&all.join("; ")));
    }
    let said = WORDS.iter().find_map(|name| value.get(*name).and_then(|value| words(value, depth + 1)));
    let said = said.or_else(|| {
        let object = value.as_object().filter(|_| depth > 0)?;
        // `{"errors":{"model":["is unknown"]}}`: what is wrong with what.
        let lists = object.iter().filter(|(_, value)| value.is_array());
        lists.take(4).find_map(|(name, value)| Some(format!("{name}: {}", words(value, depth + 1)?)))
    })?;
    let place: Vec<String> = value
        .get_array("loc")
        .iter()
        .flat_map(|loc| loc.iter())
        .map(|step| step.as_str().map_or_else(|| compact(step), str::to_owned))
        .collect();
    let said = if place.is_empty() { said } else { format!("{}: {said}", place.join(".")) };
    let raw = value.get("metadata").and_then(|metadata| metadata.get("raw")).and_then(|raw| words(raw, depth + 1));
    Some(match raw.filter(|raw| !said.contains(raw.as_str())) {
        Some(raw) => shorten(&format!("{said}: {raw}")),
        None => said,
    })
}

/// Whether a value is more than a way to say that there is nothing.
fn says_something(value: Value<'_, '_>) -> bool {
    match (value.as_str(), value.as_array(), value.as_object()) {
        (Some(text), _, _) => !text.trim().is_empty(),
        (_, Some(array), _) => !array.is_empty(),
        (_, _, Some(object)) => object.iter().any(|(_, member)| says_something(member)),
        _ => value.as_bool().unwrap_or(!value.is_null() && value.as_f64() != Some(0.0)),
    }
}

fn code(value: Value<'_, '_>) -> Option<u16> {
    const NAMES: [&str; 8] =
        ["code", "status", "status_code", "statusCode", "http_code", "error_code", "error_type", "type"];
    NAMES.iter().find_map(|name| value.get(*name).and_then(status_code))
}

fn status_code(value: Value<'_, '_>) -> Option<u16> {
    let number = match value.as_str() {
        Some(
            "rate_limit_exceeded" | "rate_limit_error" | "insufficient_quota" | "RESOURCE_EXHAUSTED" | "Throttling",
        ) => 429,
        Some("invalid_api_key" | "authentication_error" | "UNAUTHENTICATED" | "InvalidApiKey") => 401,
        Some("permission_error" | "PERMISSION_DENIED") => 403,
        Some("model_not_found") => 404,
        Some(
            "invalid_request_error"
            | "context_length_exceeded"
            | "content_filter"
            | "content_policy_violation"
            | "data_inspection_failed"
            | "DataInspectionFailed"
            | "INVALID_ARGUMENT",
        ) => 400,
        Some("server_error" | "internal_server_error" | "INTERNAL" | "api_error") => 500,
        Some("UNAVAILABLE") => 503,
        Some("overloaded_error") => 529,
        Some(text) => text.parse().ok()?,
        None => value.as_u64()?,
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

fn compact(value: Value<'_, '_>) -> String {
    let mut out = Vec::new();
    push_value(&mut out, value);
    shorten(&String::from_utf8_lossy(&out))
}

/// The words in one line, and not too many of them.
pub fn shorten(text: &str) -> String {
    let mut out = String::new();
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
        if out.len() > MOST_WORDS {
            let cut = (0..=MOST_WORDS).rev().find(|at| out.is_char_boundary(*at)).unwrap_or(0);
            out.truncate(cut);
            out.push('…');
            break;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
}
