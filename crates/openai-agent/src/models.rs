//! The list of models that an endpoint has: what it looks like, and how long it is believed. Pure.

use std::time::Duration;

use serde_json::Value as Json;

/// Models that are taken from a list.
const MOST: usize = 1000;

/// How long a list is believed before a client that asks has it fetched again.
pub const FRESH: Duration = Duration::from_secs(300);

/// How long an endpoint that did not answer is not asked again, so that its silence does not hold up every session.
pub const REST: Duration = Duration::from_secs(60);

/// Why there is no list, and how long the endpoint is not asked again.
pub type Lack = (String, Duration);

/// One model of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// What requests call it.
    pub id: String,
    /// Its context window in tokens, where the list tells it.
    pub window: Option<u64>,
}

impl Model {
    /// A model of which only the name is known.
    pub fn named(id: &str) -> Self {
        Self { id: id.to_owned(), window: None }
    }
}

/// Where servers tell the context window: OpenRouter and Together, vLLM, Groq, Mistral and LM Studio, LiteLLM.
const WINDOWS: [&str; 5] =
    ["context_length", "max_model_len", "context_window", "max_context_length", "max_input_tokens"];

/// The window that an entry tells.
fn window(entry: &Json) -> Option<u64> {
    // llama.cpp has it one level deeper; OpenRouter's `top_provider` is what serves, and may have less.
    let places = [entry.get("top_provider"), entry.get("meta"), Some(entry)].into_iter().flatten();
    let told = places.flat_map(|place| WINDOWS.iter().chain(&["n_ctx"]).map(|name| place[*name].as_u64()));
    told.flatten().filter(|window| *window > 0).min()
}

/// The models of a list: `{"data": [{"id": …}]}` as OpenAI has it, `{"models": […]}` or a bare array. An entry without
/// an id that is a text is left out, and so is one that was there before.
///
/// # Errors
/// It is no list, or an empty one.
pub fn read(text: &str) -> Result<Vec<Model>, String> {
    let json: Json = serde_json::from_str(text)
        .map_err(|error| format!("no list of models: no JSON at line {}, column {}", error.line(), error.column()))?;
    let list = json.as_array().or_else(|| ["data", "models"].iter().find_map(|name| json[*name].as_array()));
    let list = list.ok_or("no list of models: neither an array nor an object with one as data")?;
    let mut models: Vec<Model> = Vec::new();
    for entry in list {
        let id = entry.as_str().or_else(|| entry["id"].as_str()).map(str::trim).filter(|id| !id.is_empty());
        if let Some(id) = id
            && models.len() < MOST
            && !models.iter().any(|known| known.id == id)
        {
            models.push(Model { window: window(entry), ..Model::named(id) });
        }
    }
    match models.is_empty() {
        true => Err("the list of models is empty".to_owned()),
        false => Ok(models),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_in_several_shapes() {
        for text in [
            r#"{"object":"list","data":[{"id":"a","object":"model"},{"id":"b"}]}"#,
            r#"[{"id":"a"},{"id":"b"}]"#,
            r#"["a","b"]"#,
            r#"{"models":[{"id":"a"},{"id":"b"}]}"#,
            r#"{"data":[{"id":"a"},{"id":7},{"id":null},{},null,{"id":""},{"name":"x"},{"id":"b"},{"id":"a"}]}"#,
        ] {
            assert_eq!(read(text).unwrap(), [Model::named("a"), Model::named("b")], "{text}");
        }
    }

    #[test]
    fn windows_are_read_where_servers_tell_them() {
        for (server, entry) in [
            ("vLLM", r#"{"id":"a","max_model_len":4096}"#),
            ("OpenRouter", r#"{"id":"a","context_length":8192,"top_provider":{"context_length":4096}}"#),
            ("Groq", r#"{"id":"a","context_window":4096}"#),
            ("Mistral", r#"{"id":"a","max_context_length":4096}"#),
            ("llama.cpp", r#"{"id":"a","meta":{"n_ctx":4096,"n_ctx_train":131072}}"#),
        ] {
            assert_eq!(read(&format!(r#"{{"data":[{entry}]}}"#)).unwrap()[0].window, Some(4096), "{server}");
        }
        assert_eq!(read(r#"[{"id":"a","context_length":0}]"#).unwrap()[0].window, None);
    }

    #[test]
    fn what_is_no_list_is_said_to_be_none() {
        for text in ["", "<html>", "{}", r#"{"data":{}}"#, r#"{"data":[]}"#, "[]", "7", r#"[{"id":1}]"#] {
            assert!(read(text).is_err(), "{text}");
        }
        let many: Vec<String> = (0..2000).map(|number| number.to_string()).collect();
        assert_eq!(read(&serde_json::to_string(&many).unwrap()).unwrap().len(), MOST);
    }
}
