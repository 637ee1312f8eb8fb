//! What refusals, lists and overflows say.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn all() -> Config {
    let mut config = Config::from_env(&mut |_| None).unwrap();
    (config.max_tokens, config.temperature, config.system_prompt) = (Some(1), Some(0.0), Some("be kind".to_owned()));
    config
}

fn lesson(body: &str) -> Option<&'static str> {
    Dialect::default().learn(&Refusal::read(body), &all())
}

/// An error as OpenAI writes it.
fn openai(message: &str, param: &str, code: &str) -> String {
    json!({"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}).to_string()
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
fn an_error_that_only_repeats_the_request_teaches_nothing() {
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
fn members_that_were_not_sent_are_not_learned() {
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

#[test]
fn lists_come_in_several_shapes() {
    for text in [
        r#"{"object":"list","data":[{"id":"a","object":"model"},{"id":"b"}]}"#,
        r#"[{"id":"a"},{"id":"b"}]"#,
        r#"["a","b"]"#,
        r#"{"models":[{"id":"a"},{"id":"b"}]}"#,
        r#"{"data":[{"id":"a"},{"id":7},{"id":null},{},null,{"id":""},{"name":"x"},{"id":"b"},{"id":"a"}]}"#,
    ] {
        assert_eq!(read_models(text).unwrap(), [Model::named("a"), Model::named("b")], "{text}");
    }
}

#[test]
fn windows_are_read_where_servers_say_them() {
    for (server, entry) in [
        ("vLLM", r#"{"id":"a","max_model_len":4096}"#),
        ("OpenRouter", r#"{"id":"a","context_length":8192,"top_provider":{"context_length":4096}}"#),
        ("Groq", r#"{"id":"a","context_window":4096}"#),
        ("Mistral", r#"{"id":"a","max_context_length":4096}"#),
        ("llama.cpp", r#"{"id":"a","meta":{"n_ctx":4096,"n_ctx_train":131072}}"#),
    ] {
        assert_eq!(read_models(&format!(r#"{{"data":[{entry}]}}"#)).unwrap()[0].window, Some(4096), "{server}");
    }
    assert_eq!(read_models(r#"[{"id":"a","context_length":0}]"#).unwrap()[0].window, None);
}

#[test]
fn a_text_that_is_not_a_list_is_an_error() {
    for text in ["", "<html>", "{}", r#"{"data":{}}"#, r#"{"data":[]}"#, "[]", "7", r#"[{"id":1}]"#] {
        assert!(read_models(text).is_err(), "{text}");
    }
    let many: Vec<String> = (0..2000).map(|number| number.to_string()).collect();
    assert_eq!(read_models(&serde_json::to_string(&many).unwrap()).unwrap().len(), MOST_MODELS);
}

fn limits_in(words: &str) -> Option<(Option<u64>, Option<u64>)> {
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
        assert_eq!(limits_in(words), Some((window, asked)), "{server}");
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
        assert_eq!(limits_in(words), Some((window, asked)), "{server}");
    }
}

#[test]
fn other_errors_are_not_an_overflow() {
    for words in [
        "",
        "max_tokens is too large: 999999. This model supports at most 4096 completion tokens.",
        "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 7194, please reduce your message size and try again.",
        "Unsupported parameter: 'max_tokens' is not supported with this model.",
        "Invalid value: context is missing",
    ] {
        assert_eq!(limits_in(words), None, "{words}");
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
