//! Models: the list of them that an endpoint has, how large their context windows are, what a request takes of a window,
//! and what endpoints say when it does not fit. Pure.
//!
//! Tokens are estimated: a conversation has as many for each byte as its last request had, which the endpoint told with
//! its usage. Images count for what models make of them, not for their bytes.

use super::failure::Failure;
use serde_json::Value as Json;
use std::time::Duration;

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
    if models.is_empty() { Err("the list of models is empty".to_owned()) } else { Ok(models) }
}

/// Tokens for each byte of a conversation of which nothing is known yet: English has four bytes a token.
pub const USUAL_RATE: f64 = 0.25;

/// What an image counts for, in bytes of text: about a thousand tokens.
const IMAGE: usize = 4096;

/// How many tokens of a window a request may fill, so that there is room for the answer.
pub fn budget(window: u64, max_tokens: Option<u64>) -> u64 {
    let answer = max_tokens.unwrap_or_else(|| (window / 8).min(4096));
    window.saturating_sub(answer).max(window / 2)
}

/// What a message, as JSON, counts for, in bytes of text.
pub fn weight(message: &str) -> usize {
    const BEGINNING: &str = "{\"url\":\"data:";
    let mut pieces = message.split(BEGINNING);
    let first = pieces.next().map_or(0, str::len);
    // Of a piece that begins within an image, only what follows the image's end is text.
    first + pieces.map(|piece| IMAGE + piece.find('"').map_or(0, |end| piece.len() - end)).sum::<usize>()
}

/// What an endpoint says of a request that does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overflow {
    /// The size of the window, in tokens.
    pub window: Option<u64>,
    /// Tokens that the request would have taken.
    pub asked: Option<u64>,
}

impl Overflow {
    /// Reads a failure; nothing if it is about something else.
    pub fn of(failure: &Failure) -> Option<Self> {
        match failure.status() {
            // A key, an address, a pace: other words, and some name tokens as well.
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
            // A lonely number may be the code of the error, or what there is too much.
            None => Some(Self::default()),
        }
    }
}

/// Words that stand together in the errors of endpoints when a request is longer than the window: of OpenAI, Azure, vLLM,
/// DeepSeek, OpenRouter, Together, Mistral, Ollama, LM Studio, llama.cpp, MiniMax, AWS Bedrock, Anthropic, xAI, Gemini,
/// GitHub, Cohere, Groq, Hugging Face, Alibaba, Moonshot and Zhipu.
const SIGNS: &str = "maximum context length|context_length_exceeded|exceed+context length|overflow+context|\
    greater than the context length|exceed+context size|exceed+context window|exceed+context limit|prompt is too long|\
    prompt too long|input is too long|maximum prompt length|token count+exceed|exceeds the maximum number of tokens|\
    too many tokens|reduce the length of the messages|max_new_tokens+must be <=|must have less than+tokens|\
    range of input length should be|exceeded model token limit|prompt exceeds max length";

/// The numbers of a text that may be counts of tokens, in their order.
fn numbers(words: &str) -> Vec<u64> {
    let is_part = |letter: char| letter.is_ascii_digit() || letter == ',' || letter == '_';
    let runs = words.split(|letter: char| !is_part(letter));
    let read = |run: &str| run.replace([',', '_'], "").parse().ok();
    runs.filter_map(read).filter(|number| *number >= 256).collect()
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

    fn told(words: &str) -> Option<(Option<u64>, Option<u64>)> {
        let failure = Failure::Status { status: 400, detail: words.to_owned() };
        Overflow::of(&failure).map(|overflow| (overflow.window, overflow.asked))
    }

    #[test]
    fn an_overflow_is_recognised_in_the_words_of_many_servers() {
        for (server, words, window, asked) in [
            (
                "OpenAI",
                "This model's maximum context length is 8192 tokens. However, your messages resulted in 10033 tokens. Please reduce the length of the messages.",
                Some(8192),
                Some(10033),
            ),
            (
                "vLLM",
                "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (900 in the messages, 4100 in the completion). Please reduce the length of the messages or completion.",
                Some(4096),
                Some(5000),
            ),
            (
                "llama.cpp",
                "request (5012 tokens) exceeds the available context size (4096 tokens), try increasing it",
                Some(4096),
                Some(5012),
            ),
            (
                "llama.cpp before",
                "the request exceeds the available context size. try increasing the context size or enable context shift",
                None,
                None,
            ),
            ("Anthropic", "prompt is too long: 210000 tokens > 200000 maximum", Some(200_000), Some(210_000)),
            (
                "Anthropic, with the answer",
                "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens` and try again",
                Some(188_240),
                Some(200_000),
            ),
            (
                "Gemini",
                "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                Some(1_048_576),
                Some(1_200_000),
            ),
            (
                "xAI",
                "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
                Some(131_072),
                Some(537_812),
            ),
        ] {
            assert_eq!(told(words), Some((window, asked)), "{server}");
        }
    }

    #[test]
    fn an_overflow_is_recognised_in_the_words_of_more_servers() {
        for (server, words, window, asked) in [
            (
                "Mistral",
                "Prompt contains 40961 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
                Some(32_768),
                Some(40_961),
            ),
            ("Groq", "Please reduce the length of the messages or completion.", None, None),
            (
                "Together",
                "`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens and 512 `max_new_tokens`",
                Some(4097),
                Some(5000),
            ),
            ("Hugging Face", "`inputs` must have less than 1024 tokens. Given: 2000", Some(1024), Some(2000)),
            (
                "Cohere",
                "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000.",
                Some(4081),
                Some(5000),
            ),
            ("Ollama", "the input length exceeds the context length", None, None),
            ("Ollama, another", "prompt too long; exceeded max context length by 1220 tokens", None, None),
            (
                "LM Studio",
                "Trying to keep the first 6079 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough.",
                Some(4096),
                Some(6079),
            ),
            ("Bedrock", "Input is too long for requested model.", None, None),
            ("GitHub", "prompt token count of 130,271 exceeds the limit of 128,000", Some(128_000), Some(130_271)),
            ("MiniMax", "invalid params, context window exceeds limit (2013)", None, None),
            ("Alibaba", "Range of input length should be [1, 30720]", Some(30_720), None),
            ("Moonshot", "Your request exceeded model token limit: 8192", Some(8192), None),
            ("Zhipu", "Prompt exceeds max length", None, None),
            (
                "OpenRouter",
                "This endpoint's maximum context length is 128000 tokens. However, you requested about 150233 tokens (150233 of text input).",
                Some(128_000),
                Some(150_233),
            ),
        ] {
            assert_eq!(told(words), Some((window, asked)), "{server}");
        }
    }

    #[test]
    fn other_errors_are_none() {
        for words in [
            "",
            "max_tokens is too large: 999999. This model supports at most 4096 completion tokens.",
            "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 7194, please reduce your message size and try again.",
            "Unsupported parameter: 'max_tokens' is not supported with this model.",
            "Invalid value: context is missing",
        ] {
            assert_eq!(told(words), None, "{words}");
        }
        let pace = Failure::Status { status: 429, detail: "too many tokens".to_owned() };
        assert_eq!(Overflow::of(&pace), None);
    }

    #[test]
    fn a_part_of_the_window_is_for_the_answer() {
        assert_eq!(budget(8192, None), 7168);
        assert_eq!(budget(8192, Some(2000)), 6192);
        assert_eq!(budget(8192, Some(100_000)), 4096);
    }

    #[test]
    fn an_image_counts_for_what_a_model_makes_of_it() {
        let image = |bytes: usize| {
            format!(
                r#"{{"content":[{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{}"}}}},{{"text":"hello"}}]}}"#,
                "A".repeat(bytes)
            )
        };
        assert_eq!(weight(&image(100)), weight(&image(1_000_000)));
        assert!(weight(&image(100)) > IMAGE);
        assert_eq!(weight(r#"{"content":"hello"}"#), 19);
    }
}
