//! From ACP to Chat Completions: content blocks become messages, a conversation becomes a request. Pure.
//!
//! | block | becomes |
//! |---|---|
//! | `text` | the text |
//! | `resource_link` | `[Resource: {name}] {uri}` |
//! | `resource` | `[Resource: {uri}]` and, on the next line, its text |
//! | `image` | `[Image: {mimeType}]`, or an image part when images are on |
//! | `audio` | `[Audio: {mimeType}]` |
//!
//! Blocks are joined by line breaks. A message is kept as the JSON text that is sent, so that a request is built by
//! copying, and the history on disk holds the same text.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

use super::config::Config;
use super::dialect::{Dialect, Limit};
use super::json::{Raw, push_json, quoted};
use super::rpc::RpcError;

/// A user message, converted.
#[derive(Debug, PartialEq, Eq)]
pub struct UserMessage {
    /// The message as JSON.
    pub json: Box<str>,
    /// Its first words, for session lists.
    pub title: String,
}

/// Length of a title, in characters.
const TITLE: usize = 80;

/// A part of a message: a text, or an image, which is a `data:` URL or the client's URL.
enum Part {
    Text(String),
    Image(String),
}

impl Part {
    fn json(&self) -> String {
        match self {
            Self::Text(text) => format!("{{\"type\":\"text\",\"text\":{}}}", quoted(text)),
            Self::Image(url) => format!("{IMAGE},\"image_url\":{{\"url\":{}}}}}", quoted(url)),
        }
    }
}

/// Converts the blocks of a prompt.
///
/// # Errors
/// -32602 with the block and what it lacks, if a block lacks what its type needs.
pub fn user_message(prompt: Raw<'_>, images: bool) -> Result<UserMessage, RpcError> {
    if !prompt.is_array() {
        return Err(RpcError::invalid_params("prompt is not an array of content blocks"));
    }
    let mut parts: Vec<Part> = Vec::new();
    for (index, block) in prompt.items().enumerate() {
        let part =
            convert(block, images).map_err(|lack| RpcError::invalid_params(format!("prompt[{index}]: {lack}")))?;
        match (part, parts.last_mut()) {
            (Part::Text(more), Some(Part::Text(text))) => {
                text.push('\n');
                text.push_str(&more);
            }
            (part, _) => parts.push(part),
        }
    }
    if parts.is_empty() {
        return Err(RpcError::invalid_params("prompt has no content blocks"));
    }
    let first = parts.iter().find_map(|part| match part {
        Part::Text(text) => Some(text.trim()),
        Part::Image(_) => None,
    });
    let title = first.unwrap_or("[Image]").lines().next().unwrap_or_default().chars().take(TITLE).collect();
    let content = match &parts[..] {
        [Part::Text(text)] => quoted(text),
        parts => format!("[{}]", parts.iter().map(Part::json).collect::<Vec<_>>().join(",")),
    };
    let json = format!("{HEAD}{content}}}");
    Ok(UserMessage { json: json.into(), title })
}

fn convert(block: Raw<'_>, images: bool) -> Result<Part, String> {
    let need = |value: Raw<'_>, name: &str| match value.get_text(name) {
        Some(text) => Ok(text.into_owned()),
        None => Err(format!("{name} is missing or not a string")),
    };
    let kind = need(block, "type")?;
    Ok(match kind.as_str() {
        "text" => Part::Text(need(block, "text")?),
        "resource_link" => Part::Text(format!("[Resource: {}] {}", need(block, "name")?, need(block, "uri")?)),
        "resource" => {
            let resource = block.get("resource").filter(|resource| resource.is_object());
            let resource = resource.ok_or("resource is missing or not an object")?;
            let uri = need(resource, "uri")?;
            let mime = resource.get_text("mimeType").unwrap_or_default();
            match (resource.get_text("text"), resource.get_text("blob")) {
                (Some(text), _) => Part::Text(format!("[Resource: {uri}]\n{text}")),
                (None, Some(blob)) if images && mime.starts_with("image/") => {
                    Part::Image(format!("data:{mime};base64,{blob}"))
                }
                (None, Some(_)) => Part::Text(format!("[Resource: {uri}]")),
                (None, None) => return Err("resource has neither text nor blob".to_owned()),
            }
        }
        "image" => {
            let mime = need(block, "mimeType")?;
            let data = need(block, "data")?;
            let uri = block.get_text("uri").unwrap_or_default();
            let is_remote = uri.starts_with("http://") || uri.starts_with("https://");
            match images {
                false => Part::Text(format!("[Image: {mime}]")),
                true if data.is_empty() && is_remote => Part::Image(uri.into_owned()),
                true => Part::Image(format!("data:{mime};base64,{data}")),
            }
        }
        "audio" => Part::Text(format!("[Audio: {}]", need(block, "mimeType")?)),
        other => return Err(format!("{other:?} is not a type of content block")),
    })
}

/// How a message of the user begins.
const HEAD: &str = "{\"role\":\"user\",\"content\":";

/// Joins several user messages into one: many models reject two in a row. They are as [`user_message`] made them.
pub fn join_user_messages<'a>(messages: impl Iterator<Item = &'a str>) -> Box<str> {
    let contents = messages.filter_map(|message| message.strip_prefix(HEAD)?.strip_suffix('}'));
    let contents: Vec<&str> = contents.collect();
    let text = |content: &'a str| content.strip_prefix('"')?.strip_suffix('"');
    let joined = match contents.iter().map(|content| text(content)).collect::<Option<Vec<&str>>>() {
        Some(texts) => format!("\"{}\"", texts.join("\\n\\n")),
        None => {
            let parts = contents.iter().map(|content| {
                match content.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                    Some(parts) => parts.to_owned(),
                    None => format!("{{\"type\":\"text\",\"text\":{content}}}"),
                }
            });
            format!("[{}]", parts.collect::<Vec<String>>().join(","))
        }
    };
    format!("{HEAD}{joined}}}").into()
}

/// How an image begins in a message. Inside a text its quotation marks are escaped.
const IMAGE: &str = "{\"type\":\"image_url\"";

/// Whether a message of the user has images.
pub fn has_images(message: &str) -> bool {
    memchr::memmem::find(message.as_bytes(), IMAGE.as_bytes()).is_some()
}

/// A user message with each image replaced by its name, as if it had been converted without images.
pub fn without_images(message: &str) -> Cow<'_, str> {
    let content =
        Raw::read(message.as_bytes()).filter(|_| has_images(message)).and_then(|message| message.get("content"));
    let Some(content) = content else { return message.into() };
    let parts = content.items().map(|part| match part.get_text("text") {
        Some(text) => text.into_owned(),
        None => {
            let url = part.get("image_url").and_then(|image| image.get("url")?.text()).unwrap_or_default();
            let mime = url.strip_prefix("data:").and_then(|data| data.split(';').next());
            format!("[Image: {}]", mime.unwrap_or(&url))
        }
    });
    format!("{{\"role\":\"user\",\"content\":{}}}", quoted(&parts.collect::<Vec<_>>().join("\n"))).into()
}

/// The model's answer as a message.
pub fn assistant_message(text: &str) -> Box<str> {
    format!("{{\"role\":\"assistant\",\"content\":{}}}", quoted(text)).into()
}

/// The body of a request: these messages, as JSON, oldest first.
pub fn request_body(config: &Config, model: &str, messages: &[Cow<'_, str>], dialect: Dialect) -> Vec<u8> {
    let length: usize = messages.iter().map(|message| message.len() + 1).sum();
    let mut out = Vec::with_capacity(length + config.system_prompt.as_ref().map_or(0, String::len) + 256);
    out.extend_from_slice(b"{\"model\":");
    push_json(&mut out, model);
    out.extend_from_slice(b",\"messages\":[");
    let (mut messages, mut is_first) = (messages, true);
    if let Some(prompt) = &config.system_prompt {
        is_first = false;
        if dialect.system_role {
            out.extend_from_slice(b"{\"role\":\"system\",\"content\":");
            push_json(&mut out, prompt);
            out.push(b'}');
        } else {
            let (first, more) = messages.split_first().map_or(("", &[][..]), |(first, more)| (first, more));
            push_prompted(&mut out, prompt, first);
            messages = more;
        }
    }
    for message in messages {
        if !std::mem::take(&mut is_first) {
            out.push(b',');
        }
        out.extend_from_slice(message.as_bytes());
    }
    out.push(b']');
    for (name, value) in members(config, dialect) {
        out.push(b',');
        push_json(&mut out, &name);
        out.push(b':');
        push_json(&mut out, &value);
    }
    out.push(b'}');
    out
}

/// The members of a request other than its model and messages.
fn members(config: &Config, dialect: Dialect) -> Map<String, Json> {
    let mut members = Map::new();
    members.insert("stream".to_owned(), true.into());
    if dialect.include_usage {
        members.insert("stream_options".to_owned(), serde_json::json!({ "include_usage": true }));
    }
    let limit = match dialect.limit {
        Limit::Old => Some("max_tokens"),
        Limit::New => Some("max_completion_tokens"),
        Limit::Unsaid => None,
    };
    if let (Some(tokens), Some(name)) = (config.max_tokens, limit) {
        members.insert(name.to_owned(), tokens.into());
    }
    if let Some(temperature) = config.temperature.filter(|_| dialect.temperature) {
        members.insert("temperature".to_owned(), temperature.into());
    }
    merge(&mut members, &config.extra_body);
    // Servers reject it in requests that do not stream.
    if members.get("stream") != Some(&true.into()) && !config.extra_body.contains_key("stream_options") {
        members.remove("stream_options");
    }
    members
}

/// Merges as RFC 7396 (JSON Merge Patch) specifies.
fn merge(target: &mut Map<String, Json>, patch: &Map<String, Json>) {
    for (name, value) in patch {
        match value {
            Json::Null => {
                target.remove(name);
            }
            Json::Object(members) => {
                let inner = target.entry(name.as_str()).or_insert(Json::Null);
                if !inner.is_object() {
                    *inner = Json::Object(Map::new());
                }
                if let Some(inner) = inner.as_object_mut() {
                    merge(inner, members);
                }
            }
            value => {
                target.insert(name.clone(), value.clone());
            }
        }
    }
}

/// Appends the first message of a conversation with the system prompt before its text, for models without that role.
/// Those models would also reject two user messages in a row.
fn push_prompted(out: &mut Vec<u8>, prompt: &str, first: &str) {
    let prompt = format!("{HEAD}{}}}", quoted(prompt));
    if first.starts_with(HEAD) {
        return out.extend_from_slice(join_user_messages([&*prompt, first].into_iter()).as_bytes());
    }
    out.extend_from_slice(prompt.as_bytes());
    out.extend_from_slice(if first.is_empty() { b"" } else { b"," });
    out.extend_from_slice(first.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn message(prompt: &Json, images: bool) -> Result<UserMessage, RpcError> {
        user_message(Raw::strict(prompt.to_string().as_bytes()).unwrap(), images)
    }

    fn convert(prompt: &Json, images: bool) -> Result<Json, RpcError> {
        Ok(serde_json::from_str(&message(prompt, images)?.json).unwrap())
    }

    #[test]
    fn the_table_is_that_of_the_rfd() {
        let prompt = json!([
            {"type": "text", "text": "hi"},
            {"type": "resource_link", "name": "a", "uri": "file:///a"},
            {"type": "resource", "resource": {"uri": "file:///b", "text": "inside"}},
            {"type": "image", "mimeType": "image/png", "data": "AAAA"},
        ]);
        let content = "hi\n[Resource: a] file:///a\n[Resource: file:///b]\ninside\n[Image: image/png]";
        assert_eq!(convert(&prompt, false).unwrap(), json!({"role": "user", "content": content}));
        let parts = json!([
            {"type": "text", "text": "hi\n[Resource: a] file:///a\n[Resource: file:///b]\ninside"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ]);
        assert_eq!(convert(&prompt, true).unwrap(), json!({"role": "user", "content": parts}));
    }

    #[test]
    fn a_message_without_its_images_names_them() {
        let prompt = json!([
            {"type": "text", "text": "look {\"type\":\"image_url\""},
            {"type": "image", "mimeType": "image/png", "data": "AAAA"},
            {"type": "image", "mimeType": "image/png", "data": "", "uri": "https://h/a.png"},
            {"type": "text", "text": "é"},
        ]);
        let with = message(&prompt, true).unwrap();
        let without: Json = serde_json::from_str(&without_images(&with.json)).unwrap();
        let content = "look {\"type\":\"image_url\"\n[Image: image/png]\n[Image: https://h/a.png]\né";
        assert_eq!(without, json!({"role": "user", "content": content}));
        let text = format!("{{\"role\":\"user\",\"content\":{}}}", quoted("{\"type\":\"image_url\""));
        assert_eq!((has_images(&text), &*without_images(&text)), (false, text.as_str()));
    }

    #[test]
    fn a_missing_member_of_a_block_is_named() {
        for (prompt, place) in [
            (json!("text"), "prompt is not"),
            (json!([]), "no content"),
            (json!([{}]), "prompt[0]: type"),
            (json!([{"type": "text", "text": "a"}, {"type": "text"}]), "prompt[1]: text"),
            (json!([{"type": "resource", "resource": {"uri": "u"}}]), "neither text nor blob"),
            (json!([{"type": "smell"}]), "smell"),
        ] {
            let error = convert(&prompt, false).unwrap_err();
            assert_eq!(error.code, -32602);
            assert!(error.message.contains(place), "{}", error.message);
        }
    }

    #[test]
    fn messages_of_the_user_are_joined_as_texts_or_as_parts() {
        let message = |prompt: &Json| message(prompt, true).unwrap();
        let texts = [json!([{"type": "text", "text": "a\"}"}]), json!([{"type": "text", "text": "b"}])]
            .map(|prompt| message(&prompt).json);
        let joined: Json = serde_json::from_str(&join_user_messages(texts.iter().map(|json| &**json))).unwrap();
        assert_eq!(joined, json!({"role": "user", "content": "a\"}\n\nb"}));
        let image = message(&json!([{"type": "image", "mimeType": "image/png", "data": "AAAA"}]));
        let joined = join_user_messages([&*texts[1], &*image.json].into_iter());
        let parts = json!([{"type": "text", "text": "b"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]);
        assert_eq!(serde_json::from_str::<Json>(&joined).unwrap(), json!({"role": "user", "content": parts}));
        assert_eq!(join_user_messages([&*image.json].into_iter()), image.json);
    }

    fn body(dialect: Dialect, extra: &Map<String, Json>, messages: &[&str]) -> Json {
        let mut config = Config::from_env(&mut |_| None).unwrap();
        config.system_prompt = Some("be \"kind\"".to_owned());
        (config.max_tokens, config.temperature, config.extra_body) = (Some(5), Some(0.5), extra.clone());
        let messages: Vec<Cow<'_, str>> = messages.iter().map(|message| Cow::from(*message)).collect();
        let body = request_body(&config, "m", &messages, dialect);
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn without_the_system_role_its_prompt_precedes_the_first_message() {
        let dialect = Dialect { system_role: false, ..Dialect::default() };
        let of = |messages: &[&str]| body(dialect, &Map::new(), messages)["messages"].clone();
        let (user, parts) = (r#"{"role":"user","content":"hi"}"#, r#"{"role":"user","content":[{"type":"x"}]}"#);
        let assistant = r#"{"role":"assistant","content":"ho"}"#;
        assert_eq!(
            of(&[user, assistant]),
            json!([{"role": "user", "content": "be \"kind\"\n\nhi"}, {"role": "assistant", "content": "ho"}])
        );
        let text = json!({"type": "text", "text": "be \"kind\""});
        assert_eq!(of(&[parts]), json!([{"role": "user", "content": [text, {"type": "x"}]}]));
        // A history that was edited by hand may begin differently.
        let prompt = json!({"role": "user", "content": "be \"kind\""});
        assert_eq!(of(&[assistant]), json!([prompt, {"role": "assistant", "content": "ho"}]));
        assert_eq!(of(&[]), json!([prompt]));
    }

    #[test]
    fn refused_members_are_left_out_and_extra_members_are_merged() {
        let bare = Dialect { include_usage: false, limit: Limit::Unsaid, temperature: false, system_role: true };
        let members = |dialect, extra: &Map<String, Json>| {
            let mut body = body(dialect, extra, &[]);
            body.as_object_mut().unwrap().remove("messages");
            body
        };
        assert_eq!(members(bare, &Map::new()), json!({"model": "m", "stream": true}));
        let read = |text: &str| serde_json::from_str::<Map<String, Json>>(text).unwrap();
        let extra = read(r#"{"temperature":null,"max_tokens":9,"stream_options":{"x":1},"n":[1]}"#);
        let merged = json!({"model": "m", "stream": true, "max_tokens": 9, "n": [1],
            "stream_options": {"include_usage": true, "x": 1}});
        assert_eq!(members(Dialect::default(), &extra), merged);
        let whole = members(Dialect::default(), &read(r#"{"stream":false}"#));
        assert_eq!(whole, json!({"model": "m", "stream": false, "max_tokens": 5, "temperature": 0.5}));
    }

    #[test]
    fn patches_are_merged_as_rfc_7396_says() {
        // The examples of its appendix A whose target and patch are objects.
        for (target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let mut merged = target.as_object().unwrap().clone();
            merge(&mut merged, patch.as_object().unwrap());
            assert_eq!(Json::Object(merged), result);
        }
    }

    proptest! {
        #[test]
        fn texts_arrive_unchanged(texts in proptest::collection::vec("\\PC*|[\\x00-\\x7f]*", 1..5), images: bool) {
            let prompt: Json = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
            prop_assert_eq!(convert(&prompt, images).unwrap(), json!({"role": "user", "content": texts.join("\n")}));
        }

        #[test]
        fn links_and_resources_keep_their_words(name in "\\PC*", uri in "\\PC*", text in "\\PC*") {
            let prompt = json!([{"type": "resource_link", "name": name, "uri": uri},
                                {"type": "resource", "resource": {"uri": uri, "text": text}}]);
            let content = format!("[Resource: {name}] {uri}\n[Resource: {uri}]\n{text}");
            prop_assert_eq!(convert(&prompt, true).unwrap(), json!({"role": "user", "content": content}));
        }

        #[test]
        fn a_request_has_the_model_the_prompt_and_the_history(model in "\\PC{1,20}", system in proptest::option::of("\\PC{1,40}"),
            answers in proptest::collection::vec("\\PC*", 0..4), tokens in proptest::option::of(1u64..),
            new_name: bool, temperature in proptest::option::of((0u32..200).prop_map(|hundredths| f64::from(hundredths) / 100.0)), usage: bool)
        {
            let messages: Vec<Cow<'_, str>> = answers.iter().map(|text| Cow::from(assistant_message(text).into_string())).collect();
            let mut config = Config::from_env(&mut |_| None).unwrap();
            (config.system_prompt, config.max_tokens, config.temperature) = (system.clone(), tokens, temperature);
            let dialect = Dialect { include_usage: usage, limit: if new_name { Limit::New } else { Limit::Old }, ..Dialect::default() };
            let body = request_body(&config, &model, &messages, dialect);
            let body: Json = serde_json::from_slice(&body).unwrap();
            let mut expected = json!({"model": model, "stream": true});
            let said = answers.iter().map(|text| json!({"role": "assistant", "content": text}));
            let system = system.map(|prompt| json!({"role": "system", "content": prompt}));
            expected["messages"] = system.into_iter().chain(said).collect();
            if usage { expected["stream_options"] = json!({"include_usage": true}); }
            if let Some(tokens) = tokens {
                expected[if new_name { "max_completion_tokens" } else { "max_tokens" }] = tokens.into();
            }
            if let Some(temperature) = temperature { expected["temperature"] = temperature.into(); }
            prop_assert_eq!(body, expected);
        }
    }
}
