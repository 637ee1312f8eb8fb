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

use super::json::Raw;

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
const WORDS: &str = "message Message detail details msg error_msg error_message errorMessage status_msg \
                     error_description description faultstring reason error errors fault base_resp title text";

/// The error that a JSON text marks as one, be it a completion beside it: what a stream can say at any time.
pub fn marked(value: Raw<'_>) -> Option<ServerError> {
    if let Some(error) = value.get("error").filter(|error| says_something(*error)) {
        let message = if error.boolean().is_some() { words(value, 0) } else { words(error, 0) };
        let message = message.unwrap_or_else(|| match error.is_object() && code(error).is_some() {
            true => "no message".to_owned(),
            false => compact(error),
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

/// What a JSON text that is no completion complains about.
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
    Some(match is_error {
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
fn words(value: Raw<'_>, depth: usize) -> Option<String> {
    if depth > MOST_DEPTH {
        return None;
    }
    if let Some(text) = value.text() {
        let text = text.trim();
        // JSON within a string: what one server quotes of another.
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

/// Whether a value is more than a way to say that there is nothing.
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

/// What servers call a status, and the status.
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
