//! Bodies of answers, as servers send them, and the expected result of each: the updates, why the turn ends, what goes
//! with the next prompt and what is logged. Each is played whole, byte by byte, and cut in two at every place.
//!
//! The first words of a row name the server with this habit. Where a row says that a server "may" do something, users
//! or a client of that server reported it; rows of "anybody" are what the standard allows or what a broken proxy sends.

use serde_json::{Value as Json, json};

/// A body and its expected result.
pub(super) struct Body {
    pub(super) whose: &'static str,
    pub(super) bytes: Vec<u8>,
    pub(super) content_type: &'static str,
    pub(super) trouble: Option<&'static str>,
    /// The text of each update, `~` before a thought, `#` before counts.
    pub(super) updates: Vec<String>,
    pub(super) stop: &'static str,
    pub(super) then: Then,
    /// The beginning of each skipped event.
    pub(super) log: &'static [&'static str],
}

/// What is sent with the next prompt.
pub(super) enum Then {
    /// The prompt and this answer.
    Answered(String),
    /// The prompt alone, in one message with the next.
    Unanswered,
    /// Nothing.
    Forgotten,
}

pub(super) const URL: &str = "https://api.openai.com/v1/chat/completions";
const DONE: &str = "[DONE]";
const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}"#;
const BROKE_OFF: &str = "Network error connecting to U: the stream ended before the answer was complete";

/// A chunk with a piece of text.
fn d(text: &str) -> String {
    json!({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]})
        .to_string()
}

/// A chunk with this choice.
fn choice(choice: Json) -> String {
    json!({"object": "chat.completion.chunk", "choices": [choice]}).to_string()
}

/// A chunk that ends the answer for a reason.
fn ends(reason: &str) -> String {
    choice(json!({"index": 0, "delta": {}, "finish_reason": reason}))
}

/// These data, each as an event.
fn events(whose: &'static str, data: &[&str]) -> Body {
    raw(whose, data.iter().map(|data| format!("data: {data}\n\n")).collect::<String>())
}

/// This body as it is.
fn raw(whose: &'static str, body: impl AsRef<[u8]>) -> Body {
    Body {
        whose,
        bytes: body.as_ref().to_vec(),
        content_type: "text/event-stream",
        trouble: None,
        updates: Vec::new(),
        stop: "end_turn",
        then: Then::Answered(String::new()),
        log: &[],
    }
}

/// A JSON body.
fn plain(whose: &'static str, body: impl AsRef<[u8]>) -> Body {
    Body { content_type: "application/json", ..raw(whose, body) }
}

impl Body {
    /// The updates; all their text is the answer that is kept.
    fn says(mut self, updates: &[&str]) -> Self {
        self.updates = updates.iter().map(|text| (*text).to_owned()).collect();
        let answer: String = updates.iter().filter(|text| !text.starts_with(['~', '#'])).copied().collect();
        self.then = if answer.is_empty() { Then::Unanswered } else { Then::Answered(answer) };
        self
    }

    fn stops(mut self, stop: &'static str) -> Self {
        self.stop = stop;
        if stop == "refusal" {
            self.then = Then::Forgotten;
        }
        self
    }

    /// The turn fails with these words after the answer's text.
    fn fails(mut self, words: &str) -> Self {
        self.aside(words);
        self.then = Then::Unanswered;
        self
    }

    /// The agent adds this message after the endpoint's text.
    fn aside(&mut self, words: &str) {
        let has_answer = self.updates.iter().any(|text| !text.starts_with(['~', '#']));
        self.updates.push(format!("{}{words}", if has_answer { "\n\n" } else { "" }));
    }

    /// The turn ends well, and the agent adds these words.
    fn adds(mut self, words: &str) -> Self {
        self.aside(words);
        self
    }

    /// What it says is no answer.
    fn unanswered(mut self) -> Self {
        self.then = Then::Unanswered;
        self
    }

    fn forgets(mut self) -> Self {
        self.then = Then::Forgotten;
        self
    }

    fn logs(mut self, log: &'static [&'static str]) -> Self {
        self.log = log;
        self
    }

    pub(super) fn is_met_by(&self, outcome: &Outcome) -> bool {
        let next = match &self.then {
            Then::Answered(answer) => json!(["hi", answer, "next"]),
            Then::Unanswered => json!(["hi\n\nnext"]),
            Then::Forgotten => json!(["next"]),
        };
        let is_logged = outcome.log.len() == self.log.len()
            && outcome.log.iter().zip(self.log).all(|(logged, begins)| logged.starts_with(begins));
        (&outcome.updates, outcome.stop.as_str(), &outcome.next) == (&self.updates, self.stop, &next) && is_logged
    }

    fn breaks(mut self, trouble: &'static str) -> Self {
        self.trouble = Some(trouble);
        self
    }
}

/// The result of a body.
#[derive(Debug, PartialEq)]
pub(super) struct Outcome {
    pub(super) updates: Vec<String>,
    pub(super) stop: String,
    pub(super) next: Json,
    pub(super) log: Vec<String>,
}

fn whole(content: &str, finish: Json) -> String {
    json!({"object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": content},
        "finish_reason": finish}]})
    .to_string()
}

fn both(delta: &str, message: &str) -> String {
    choice(json!({"index": 0, "delta": {"role": "assistant", "content": delta},
        "message": {"role": "assistant", "content": message}, "finish_reason": null}))
}

fn message(text: &str) -> String {
    choice(json!({"index": 0, "message": {"role": "assistant", "content": text}}))
}

fn thought(name: &str, text: &str) -> String {
    choice(json!({"index": 0, "delta": {name: text}}))
}

fn tool(name: &str) -> String {
    choice(json!({"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c", "type": "function",
        "function": {"name": name, "arguments": ""}}]}}))
}

pub(super) fn bodies() -> Vec<Body> {
    [
        endings(),
        more_endings(),
        messages(),
        contents(),
        choices(),
        no_texts(),
        mended(),
        reasons(),
        thoughts(),
        tools(),
        counts(),
        errors(),
        others(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// How an answer ends, and how events are separated.
fn endings() -> Vec<Body> {
    vec![
        events("OpenAI: role first, text, finish reason, counts, [DONE]", &[
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}]}"#,
            &d("Hel"), &d("lo"), STOP, USAGE, DONE,
        ])
        .says(&["Hel", "lo", "#3"]),
        events("OpenAI: obfuscation beside the choices", &[
            r#"{"choices":[{"index":0,"delta":{"content":"a"}}],"obfuscation":"x7Gq"}"#, STOP, DONE,
        ])
        .says(&["a"]),
        events("vLLM: text and finish reason in one chunk, stop_reason beside", &[
            &d("a"),
            r#"{"choices":[{"index":0,"delta":{"content":"b"},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}"#,
            DONE,
        ])
        .says(&["a", "b"]),
        events("vLLM with continuous_usage_stats: counts in each chunk", &[
            r#"{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#,
            r#"{"choices":[{"delta":{"content":"b"}}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}"#,
            STOP, DONE,
        ])
        .says(&["a", "b", "#3"]),
        events("Azure: the filter's results before the first choice", &[
            r#"{"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[{"prompt_index":0}]}"#,
            &d("a"), STOP, DONE,
        ])
        .says(&["a"]),
        events("Azure with asynchronous filters: empty choices with offsets", &[
            &d("a"),
            r#"{"choices":[{"content_filter_offsets":{"check_offset":1},"content_filter_results":{},"finish_reason":null,"index":0}]}"#,
            STOP, DONE,
        ])
        .says(&["a"]),
        events("LiteLLM: counts with an empty delta and no finish reason", &[
            &d("a"),
            r#"{"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#,
            DONE,
        ])
        .says(&["a", "#2"]),
        events("Ollama: nothing after the finish reason", &[&d("a"), STOP]).says(&["a"]),
        events("text-generation-inference: [DONE] and no finish reason", &[&d("a"), DONE]).says(&["a"]),
        raw("anybody: no empty line after [DONE]", format!("data: {}\n\ndata: [DONE]", d("a"))).says(&["a"]),
        raw("anybody: no empty line after the finish reason", format!("data: {}\n\ndata: {STOP}", d("a"))).says(&["a"]),
        raw("FastChat behind some proxies: events parted by single newlines", format!("data: {}\ndata: {}\ndata: {STOP}\ndata: [DONE]\n", d("a"), d("b")))
            .says(&["a", "b"]),
        raw("anybody: CRLF", format!("data: {}\r\n\r\ndata: {STOP}\r\n\r\ndata: [DONE]\r\n\r\n", d("a"))).says(&["a"]),
        raw("anybody: lone CR", format!("data: {}\r\rdata: {STOP}\r\rdata: [DONE]\r\r", d("a"))).says(&["a"]),
        raw("anybody: no space after the colon", format!("data:{}\n\ndata:{STOP}\n\ndata:[DONE]\n\n", d("a"))).says(&["a"]),
        raw("anybody: a byte order mark", format!("\u{feff}data: {}\n\ndata: {STOP}\n\n", d("a"))).says(&["a"]),
        raw("anybody: blank lines before the first event", format!("\n\n\r\ndata: {}\n\ndata: {STOP}\n\n", d("a"))).says(&["a"]),
        raw("FastAPI's sse-starlette: event, id and retry, comments as pings", format!(": ping - 2025-01-01\n\nevent: message\nid: 1\nretry: 15000\ndata: {}\n\ndata: {STOP}\n\n", d("a")))
            .says(&["a"]),
        raw("OpenRouter: comments while it waits", format!(": OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\ndata: {}\n\ndata: {STOP}\n\ndata: [DONE]\n\n", d("a")))
            .says(&["a"]),
        raw("anybody: one chunk on several data lines", "data: {\"choices\":\ndata: [{\"delta\":{\"content\":\"a\"},\ndata: \"finish_reason\":\"stop\"}]}\n\n")
            .says(&["a"]),
        raw("anybody: a chunk that is printed prettily", "data: {\ndata:   \"choices\": [\ndata:     {\"delta\": {\"content\": \"a\"}}\ndata:   ]\ndata: }\n\ndata: [DONE]\n\n")
            .says(&["a"]),
        raw("sse-starlette given whole events: data twice", format!("data: data: {}\n\ndata: data: {STOP}\n\ndata: data: [DONE]\n\n", d("a")))
            .says(&["a"]),
    ]
}

/// How an answer ends, and how events are separated.
fn more_endings() -> Vec<Body> {
    vec![
        raw(
            "one-api behind some channels: two events on one line",
            format!("data: {}data: {}\n\ndata: {STOP}\n\n", d("a"), d("b")),
        )
        .says(&["a", "b"]),
        events("anybody: two chunks in one event", &[&format!("{} {}", d("a"), d("b")), DONE]).says(&["a", "b"]),
        events("anybody: chunks in an array", &[&format!("[{},{}]", d("a"), d("b")), STOP]).says(&["a", "b"]),
        events("anybody: [DONE] in quotes, as json.dumps writes it", &[&d("a"), "\"[DONE]\""]).says(&["a"]),
        events("anybody: text after [DONE]", &[&d("a"), DONE, &d("b")]).says(&["a"]),
        raw("Ollama's own way, with choices: a line a chunk and no data", format!("{}\n{}\n{STOP}\n", d("a"), d("b")))
            .says(&["a", "b"]),
        raw("anybody: nothing at all", "").fails("Network error connecting to U: the answer is empty"),
        raw("anybody: pings only", ": ping\n\n: ping\n\n").fails("Network error connecting to U: the answer is empty"),
        events("anybody: [DONE] and nothing else", &[DONE]).fails("Network error connecting to U: the answer is empty"),
        events("anybody: neither finish reason nor [DONE]", &[&d("half")]).says(&["half"]).fails(BROKE_OFF),
        raw(
            "anybody: a last chunk that is torn",
            format!("data: {}\n\n{}", d("half"), "data: {\"choices\":[{\"delta\":{\"content\":\"torn"),
        )
        .says(&["half"])
        .fails(BROKE_OFF)
        .logs(&["{\"choices\""]),
        events("anybody: a connection that breaks", &[&d("half")])
            .breaks("reset")
            .says(&["half"])
            .fails("Network error connecting to U: reset"),
        events("anybody: a connection that breaks after the finish reason", &[&d("all"), STOP])
            .breaks("reset")
            .says(&["all"]),
    ]
}

/// Deltas and messages.
fn messages() -> Vec<Body> {
    vec![
        events("Perplexity: a message that grows beside the delta (open-webui 9927)", &[
            &both("The", "The"), &both(" cat", "The cat"), &both(" sat", "The cat sat"), STOP,
        ])
        .says(&["The", " cat", " sat"]),
        events("Perplexity: the last chunk has the whole message and an empty delta", &[
            &both("The", "The"),
            r#"{"choices":[{"index":0,"finish_reason":"stop","delta":{"role":"assistant","content":""},"message":{"role":"assistant","content":"The cat"}}]}"#,
        ])
        .says(&["The", " cat"]),
        events("MiniMax: the whole completion at the end", &[&d("Hel"), &d("lo"), &whole("Hello", json!("stop"))]).says(&["Hel", "lo"]),
        events("hermes-browser-extension 11: the whole message as the last chunk", &[
            &d("Hel"), &d("lo"), r#"{"choices":[{"message":{"content":"Hello"},"finish_reason":"stop"}]}"#, DONE,
        ])
        .says(&["Hel", "lo"]),
        events("MiniMax with thoughts in deltas and the whole at the end", &[
            &thought("reasoning_content", "hm"), &d("yes"),
            r#"{"object":"chat.completion","choices":[{"message":{"content":"yes","reasoning_content":"hm"},"finish_reason":"stop"}]}"#,
        ])
        .says(&["~hm", "yes"]),
        events("anybody: deltas with thoughts only, and the answer as a message", &[
            &thought("reasoning_content", "hm"), &whole("yes", json!("stop")),
        ])
        .says(&["~hm", "yes"]),
        events("anybody: a stream of messages that grow", &[&message("The"), &message("The cat"), &message("The cat"), &message("The cat sat"), STOP])
            .says(&["The", " cat", " sat"]),
        events("text-generation-webui of old: messages that are pieces", &[&message("The"), &message(" cat"), &message(" sat"), STOP])
            .says(&["The", " cat", " sat"]),
        events("a server that ignores stream but answers with an event", &[&whole("all", json!("stop")), DONE]).says(&["all"]),
        events("the same, twice", &[&whole("all", json!("stop")), &whole("all", json!("stop")), DONE]).says(&["all"]),
        events("a delta that is null beside a message", &[
            r#"{"choices":[{"delta":null,"message":{"content":"all"},"finish_reason":"stop"}]}"#,
        ])
        .says(&["all"]),
        events("Alibaba Model Studio may grow deltas (qwen-code 3896): they are sent as they are", &[&d("The"), &d("The cat"), STOP])
            .says(&["The", "Th", "e cat"]),
        events("increments that look like it", &[&d("ha"), &d("haha"), &d("!"), STOP]).says(&["ha", "h", "aha", "!"]),
        events("a completion in the old way: text in the choice", &[
            r#"{"object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":null}]}"#,
            r#"{"object":"text_completion","choices":[{"index":0,"text":"","finish_reason":"stop"}]}"#,
        ])
        .says(&["a"]),
    ]
}

/// Content.
fn contents() -> Vec<Body> {
    vec![
        events("LM Studio: content that is null", &[r#"{"choices":[{"delta":{"role":"assistant","content":null}}]}"#, &d("a"), STOP]).says(&["a"]),
        events("Mistral: content in parts", &[
            r#"{"choices":[{"delta":{"content":[{"type":"text","text":"a"},{"type":"reference","reference_ids":[1]},{"type":"text","text":"b"}]}}]}"#, STOP,
        ])
        .says(&["a", "b"]),
        events("a part that is no array", &[r#"{"choices":[{"delta":{"content":{"type":"text","text":"a"}}}]}"#, STOP]).says(&["a"]),
        events("a delta that is text", &[r#"{"choices":[{"delta":"a"}]}"#, STOP]).says(&["a"]),
        events("several choices: the first is the answer", &[
            r#"{"choices":[{"index":1,"delta":{"content":"no"}}]}"#, &d("a"), STOP,
        ])
        .says(&["a"]),
        events("llama.cpp with timings, and an index that is missing", &[
            r#"{"choices":[{"delta":{"content":"a"}}],"timings":{"predicted_per_second":33.1}}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
        ])
        .says(&["a"]),
        events("white space and emoji in pieces", &[&d(" "), &d("\n"), &d("\u{1f600}é"), STOP]).says(&[" \n\u{1f600}é"]),
    ]
}

/// Where the choices and their text are.
fn choices() -> Vec<Body> {
    vec![
        events("a gateway that joins chunks: several choices of one index", &[
            r#"{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}},{"index":0,"delta":{"content":"b"}}]}"#,
            r#"{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"c"}},{"index":0,"delta":{},"finish_reason":"stop"}]}"#, DONE,
        ])
        .says(&["a", "b", "c"]),
        events("the same without an index", &[r#"{"choices":[{"delta":{"content":"a"}},{"delta":{"content":"b"},"finish_reason":"stop"}]}"#, DONE])
            .says(&["a", "b"]),
        events("entries that are null, empty, or of another answer, before the text", &[
            r#"{"choices":[null,{},{"index":1,"delta":{"content":"no"}},{"index":0,"delta":{"content":"a"}}]}"#, STOP, DONE,
        ])
        .says(&["a"]),
        events("LiteLLM: choices null in a chunk of counts that are null", &[
            r#"{"choices":null,"usage":null}"#, &d("a"), r#"{"choices":null,"usage":null}"#, STOP, DONE,
        ])
        .says(&["a"])
        .logs(&[r#"{"choices":null"#, r#"{"choices":null"#]),
        events("an index that is null, a string or missing", &[
            r#"{"choices":[{"index":null,"delta":{"content":"a"}}]}"#, r#"{"choices":[{"index":"0","delta":{"content":"b"}}]}"#,
            r#"{"choices":[{"delta":{"content":"c"}}]}"#, STOP,
        ])
        .says(&["a", "b", "c"]),
        events("choices that are one object", &[r#"{"choices":{"index":0,"delta":{"content":"a"}}}"#, STOP]).says(&["a"]),
        events("choices that are words", &[&d("a"), r#"{"choices":["b"]}"#, STOP]).says(&["a"]).logs(&[r#"{"choices":["b"]}"#]),
        events("an empty delta beside the message", &[
            r#"{"choices":[{"index":0,"delta":{},"message":{"content":"a"}}]}"#, r#"{"choices":[{"index":0,"delta":{"content":""},"message":{"content":" b"}}]}"#, STOP,
        ])
        .says(&["a", " b"]),
        events("messages in place of deltas, and no object that says that they are parts", &[
            r#"{"choices":[{"index":0,"message":{"content":"The"}}]}"#, r#"{"choices":[{"index":0,"message":{"content":" cat"}}]}"#,
            r#"{"choices":[{"index":0,"message":{"content":" sat"},"finish_reason":"stop"}]}"#,
        ])
        .says(&["The", " cat", " sat"]),
        events("messages that are strings, or parts", &[
            r#"{"choices":[{"message":"a"}]}"#, r#"{"choices":[{"message":{"content":[{"type":"text","text":"b"}]}}]}"#, STOP,
        ])
        .says(&["a", "b"]),
        events("llama-cpp-python, the older API: text in several chunks", &[
            r#"{"object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":null}]}"#,
            r#"{"object":"text_completion","choices":[{"index":0,"text":"b","finish_reason":null}]}"#,
            r#"{"object":"text_completion","choices":[{"index":0,"text":"","finish_reason":"stop"}]}"#, DONE,
        ])
        .says(&["a", "b"]),
        events("text beside a delta of the same", &[r#"{"choices":[{"delta":{"content":"a"},"text":"a"}]}"#, STOP]).says(&["a"]),
        events("text in place of content", &[r#"{"choices":[{"delta":{"text":"a"}}]}"#, STOP]).says(&["a"]),
        events("OpenAI's assistants: the value of a text", &[
            r#"{"choices":[{"delta":{"content":[{"index":0,"type":"text","text":{"value":"a","annotations":[]}}]}}]}"#, STOP,
        ])
        .says(&["a"]),
        events("PHP with JSON_NUMERIC_CHECK: text that became a number", &[&d("a "), r#"{"choices":[{"delta":{"content":42}}]}"#, STOP]).says(&["a ", "42"]),
        events("a delta, and then a message that continues", &[&d("Hel"), &message("lo"), STOP]).says(&["Hel", "lo"]),
        plain("a whole answer in two choices without an index", r#"{"object":"chat.completion","choices":[{"message":{"content":"a"},"finish_reason":"stop"},{"message":{"content":"b"},"finish_reason":"stop"}]}"#)
            .says(&["a", "b"]),
        plain("a whole answer of which another was not asked for", r#"{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"},{"index":1,"message":{"content":"no"},"finish_reason":"stop"}]}"#)
            .says(&["a"]),
        plain("the older API: a whole answer", r#"{"object":"text_completion","choices":[{"index":0,"text":"a"}]}"#).says(&["a"]),
    ]
}

/// Answers without any text.
fn no_texts() -> Vec<Body> {
    const NO_TEXT: &str = "The endpoint's answer has no text.";
    vec![
        events("a model that has nothing to say", &[STOP, DONE]).says(&[]).adds(NO_TEXT),
        events("thoughts and no answer", &[&thought("reasoning_content", "hm"), STOP]).says(&["~hm"]).adds(NO_TEXT),
        events("white space and no answer", &[&d("\n"), STOP]).says(&["\n"]).unanswered().adds(NO_TEXT),
        events(
            "calls of tools without a name, and no answer",
            &[r#"{"choices":[{"delta":{"tool_calls":[{}]}}]}"#, STOP],
        )
        .says(&[])
        .adds(NO_TEXT),
        events(
            "another index than the one that was asked for",
            &[r#"{"choices":[{"index":1,"delta":{"content":"a"}}]}"#, STOP],
        )
        .says(&[])
        .adds(NO_TEXT),
        plain(
            "choices that are empty",
            r#"{"object":"chat.completion","choices":[{"message":{"content":null},"finish_reason":"stop"}]}"#,
        )
        .says(&[])
        .adds(NO_TEXT),
        events("a filter that lets nothing pass", &[&ends("content_filter"), DONE])
            .says(&[])
            .adds("The endpoint refused to answer this.")
            .stops("refusal"),
    ]
}

/// JSON that is not quite JSON.
fn mended() -> Vec<Body> {
    vec![
        events("JSON.stringify of text cut within an emoji", &[r#"{"choices":[{"delta":{"content":"a\ud83d"}}]}"#, r#"{"choices":[{"delta":{"content":"\ude00b"}}]}"#, STOP])
            .says(&["a", "\u{1f600}b"]),
        events("the same in thoughts, parts and text, and halves that stay alone", &[
            &thought("reasoning_content", "x").replace('x', r"\ud83d"), &thought("reasoning_content", "x").replace('x', r"\ude00"),
            r#"{"choices":[{"delta":{"content":[{"type":"text","text":"\ud83d"},{"type":"text","text":"\ude00"}]}}]}"#,
            r#"{"choices":[{"delta":{"content":"\ude00\ud83d"}}]}"#, r#"{"choices":[{"delta":{"content":"b\ud83d"}}]}"#, STOP,
        ])
        .says(&["~\u{1f600}", "\u{1f600}", "\u{fffd}", "\u{fffd}b", "\u{fffd}"]),
        events("a character in halves with another event between them", &[
            r#"{"choices":[{"delta":{"content":"a\ud83d"}}]}"#, r#"{"choices":[{"delta":{"content":""}}]}"#, USAGE,
            r#"{"choices":[{"delta":{"content":"\ude00"}}]}"#, STOP,
        ])
        .says(&["a", "\u{1f600}", "#3"]),
        raw("a byte tokenizer that cuts a character in two", b"data: {\"choices\":[{\"delta\":{\"content\":\"\xe4\xbd\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"\xa0\"}}]}\n\ndata: [DONE]\n\n")
            .says(&["\u{4f60}"]),
        events("an integer above 2^64", &[r#"{"created":17415702830000000000000000,"choices":[{"delta":{"content":"a"}}]}"#, STOP]).says(&["a"]),
        events("1e999 beside the text", &[r#"{"choices":[{"delta":{"content":"a"},"logprob":-1e999}]}"#, STOP]).says(&["a"]),
        events("Python's NaN and Infinity (vLLM logprobs)", &[r#"{"choices":[{"delta":{"content":"a"},"logprobs":{"content":[{"logprob":-Infinity,"x":NaN}]}}]}"#, STOP])
            .says(&["a"]),
        raw("a byte that is no UTF-8", b"data: {\"choices\":[{\"delta\":{\"content\":\"a\xffb\"}}]}\n\ndata: [DONE]\n\n").says(&["a\u{fffd}b"]),
        raw("a character cut by a byte tokenizer", b"data: {\"choices\":[{\"delta\":{\"content\":\"\xe4\xbd\"}}]}\n\ndata: [DONE]\n\n").says(&["\u{fffd}"]),
        raw("a tab within a string", "data: {\"choices\":[{\"delta\":{\"content\":\"a\tb\"}}]}\n\ndata: [DONE]\n\n").says(&["a\tb"]),
        raw("a line break within a string, over two data lines", "data: {\"choices\":[{\"delta\":{\"content\":\"a\ndata: b\"}}]}\n\ndata: [DONE]\n\n").says(&["a\nb"]),
        events("a comma too many", &[r#"{"choices":[{"delta":{"content":"a",},},],}"#, STOP]).says(&["a"]),
        events("an escape that JSON does not know", &[r#"{"choices":[{"delta":{"content":"it\'s"}}]}"#, STOP]).says(&["it's"]),
        events("OpenRouter's neighbours: a ping as data", &[": keepalive", &d("a"), "{\"type\": \"ping\"}", STOP])
            .says(&["a"])
            .logs(&[": keepalive", "{\"type\": \"ping\"}"]),
        events("what cannot be read at all", &["{oops}", &d("a"), "{\"choices\": [{]}", STOP]).says(&["a"]).logs(&["{oops}", "{\"choices\": [{]}"]),
        raw("a torn chunk among whole ones", format!("data: {{\"choices\":[{{\"del\ndata: {}\n\ndata: {STOP}\n\n", d("a"))).says(&["a"]).logs(&["{\"choices\":[{\"del"]),
        raw("a torn event among whole ones", format!("data: {{\"choices\":[{{\"del\n\ndata: {}\n\ndata: {STOP}\n\n", d("a"))).says(&["a"]).logs(&["{\"choices\":[{\"del"]),
        raw("anybody: a NUL, and a field that is none", format!("data: \0\n\ndata: {}\n\nnonsense: x\n\ndata: {STOP}\n\n", d("a")))
            .says(&["a"])
            .logs(&["\0"]),
        events("data that is empty", &["", &d("a"), "", STOP]).says(&["a"]),
        events("scalars as data", &["1", "null", &d("a"), STOP]).says(&["a"]).logs(&["1", "null"]),
    ]
}

/// Why it ended.
fn reasons() -> Vec<Body> {
    vec![
        events("OpenAI: length", &[&d("a"), &ends("length")]).says(&["a"]).stops("max_tokens"),
        events("Anthropic's word", &[&d("a"), &ends("max_tokens")]).says(&["a"]).stops("max_tokens"),
        events("Gemini: MAX_TOKENS", &[&d("a"), &ends("MAX_TOKENS")]).says(&["a"]).stops("max_tokens"),
        events("Mistral: model_length", &[&d("a"), &ends("model_length")]).says(&["a"]).stops("max_tokens"),
        events("Together: eos", &[&d("a"), &ends("eos")]).says(&["a"]),
        events("Gemini: STOP", &[&d("a"), &ends("STOP")]).says(&["a"]),
        events("Anthropic: end_turn", &[&d("a"), &ends("end_turn")]).says(&["a"]),
        events("Gemini: SAFETY", &[&d("a"), &ends("SAFETY")]).says(&["a"]).stops("refusal"),
        events("Zhipu: sensitive", &[&d("a"), &ends("sensitive")]).says(&["a"]).stops("refusal"),
        events("Azure: content_filter", &[&d("a"), &ends("content_filter"), DONE]).says(&["a"]).stops("refusal"),
        events("OpenAI: a refusal", &[r#"{"choices":[{"delta":{"refusal":"I will not."}}]}"#, STOP]).says(&["I will not."]).stops("refusal"),
        events("SGLang and vLLM: abort", &[&d("half"), &ends("abort"), DONE])
            .says(&["half"])
            .fails("The answer from U is not complete: the endpoint ended it with finish_reason \"abort\"."),
        events("Zhipu: network_error", &[&d("half"), &ends("network_error"), DONE])
            .says(&["half"])
            .fails("The answer from U is not complete: the endpoint ended it with finish_reason \"network_error\"."),
        events("DeepSeek: insufficient_system_resource", &[&d("half"), &ends("insufficient_system_resource"), DONE])
            .says(&["half"])
            .fails("The answer from U is not complete: the endpoint ended it with finish_reason \"insufficient_system_resource\"."),
        events("a word that nobody knows", &[&d("half"), &ends("banana"), DONE])
            .says(&["half"])
            .fails("The answer from U is not complete: the endpoint ended it with finish_reason \"banana\"."),
        events("a reason to finish that is a number, and one that is a whole novel", &[
            r#"{"choices":[{"delta":{"content":"half"},"finish_reason":1}]}"#, &ends(&"na".repeat(300)), DONE,
        ])
        .says(&["half"])
        .fails(&format!("The answer from U is not complete: the endpoint ended it with finish_reason \"{}\".", "na".repeat(32))),
        events("a word that nobody knows before one that is known", &[&d("a"), &ends("banana"), STOP]).says(&["a"]),
        events("one-api: an empty finish reason in each chunk", &[
            r#"{"choices":[{"delta":{"content":"a"},"finish_reason":""}]}"#, r#"{"choices":[{"delta":{"content":"b"},"finish_reason":""}]}"#, DONE,
        ])
        .says(&["a", "b"]),
        events("an empty finish reason, and then nothing", &[r#"{"choices":[{"delta":{"content":"half"},"finish_reason":""}]}"#])
            .says(&["half"])
            .fails(BROKE_OFF),
        events("Alibaba: the word null in each chunk", &[
            r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"null"}]}"#, STOP,
        ])
        .says(&["a"]),
        events("Gemini of old: stop in each chunk", &[
            r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}"#, r#"{"choices":[{"delta":{"content":"b"},"finish_reason":"stop"}]}"#,
        ])
        .says(&["a", "b"]),
        events("length, and then stop", &[&d("a"), &ends("length"), STOP]).says(&["a"]).stops("max_tokens"),
        events("OpenAI's first vision models: finish_details", &[&d("a"), r#"{"choices":[{"delta":{},"finish_details":{"type":"max_tokens"}}]}"#])
            .says(&["a"])
            .stops("max_tokens"),
    ]
}

/// Thoughts.
fn thoughts() -> Vec<Body> {
    vec![
        events("DeepSeek: reasoning_content", &[&thought("reasoning_content", "hm"), &d("yes"), STOP]).says(&["~hm", "yes"]),
        events("vLLM, OpenRouter: reasoning", &[&thought("reasoning", "hm"), &d("yes"), STOP]).says(&["~hm", "yes"]),
        events("a proxy that sends both", &[r#"{"choices":[{"delta":{"reasoning":"hm","reasoning_content":"hm","content":"yes"}}]}"#, STOP]).says(&["~hm", "yes"]),
        events("OpenRouter: reasoning_details beside reasoning", &[
            r#"{"choices":[{"delta":{"content":"","reasoning":"hm","reasoning_details":[{"type":"reasoning.text","text":"hm","format":"x","index":0}]}}]}"#,
            &d("yes"), STOP,
        ])
        .says(&["~hm", "yes"]),
        events("OpenRouter: reasoning_details alone", &[
            r#"{"choices":[{"delta":{"reasoning":null,"reasoning_details":[{"type":"reasoning.summary","summary":"hm"},{"type":"reasoning.encrypted","data":"eA=="}]}}]}"#,
            &d("yes"), STOP,
        ])
        .says(&["~hm", "yes"]),
        events("Mistral Magistral: thinking parts", &[
            r#"{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]}]}}]}"#,
            r#"{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":" well"}],"closed":true},{"type":"text","text":"yes"}]}}]}"#,
            STOP,
        ])
        .says(&["~hm", "~ well", "yes"]),
        events("DeepSeek R1 on Ollama: <think> within the text", &[&d("<think>"), &d("\nhm"), &d(" well\n"), &d("</think>"), &d("\n\n"), &d("yes"), STOP])
            .says(&["~hm", "~ well\n", "yes"]),
        events("the tags cut within", &[&d("<th"), &d("ink>h"), &d("m</thi"), &d("nk>yes"), STOP]).says(&["~h", "~m", "yes"]),
        events("Perplexity sonar-reasoning: <think> in delta and message", &[&both("<think>", "<think>"), &both("hm</think>", "<think>hm</think>"), &both("yes", "<think>hm</think>yes"), STOP])
            .says(&["~hm", "yes"]),
        events("MiniMax M2: <think> within the text, and the whole at the end", &[&d("<think>hm</think>\n\n"), &d("yes"), &whole("<think>hm</think>\n\nyes", json!("stop"))])
            .says(&["~hm", "yes"]),
        events("Qwen3 without thinking: an empty block", &[&d("<think>\n\n</think>\n\nyes"), STOP]).says(&["yes"]),
        events("a prompt that asks for <reasoning>", &[&d("<reasoning>a < b</reasoning>"), &d("yes"), STOP]).says(&["~a < b", "yes"]),
        events("Gemini: <thought>", &[&d("<thought>hm</thought>yes"), STOP]).says(&["~hm", "yes"]),
        events("a block that is cut by the limit", &[&d("<think>so much"), &ends("length")])
            .says(&["~so much"])
            .adds("The answer reached its limit of tokens before it had any text.")
            .stops("max_tokens"),
        events("an answer about the tag", &[&d("Write <think>x</think>."), STOP]).says(&["Write <think>x</think>."]),
        events("an answer that begins like a tag", &[&d("<t"), &d("able>"), STOP]).says(&["<table>"]),
    ]
}

/// Tools.
fn tools() -> Vec<Body> {
    vec![
        events("OpenAI: tools that were not offered", &[&tool("look_up"), r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}"#, &ends("tool_calls"), DONE])
            .says(&[])
            .adds("The endpoint asked for tools, which this agent does not run."),
        events("text, and then tools", &[&d("Let me see."), &tool("read"), &tool("read"), &tool("write"), &ends("tool_calls")])
            .says(&["Let me see."])
            .adds("The endpoint asked for tools, which this agent does not run."),
        events("the old function_call", &[r#"{"choices":[{"delta":{"content":null,"function_call":{"name":"look","arguments":"{}"}}}]}"#, &ends("function_call")])
            .says(&[])
            .adds("The endpoint asked for tools, which this agent does not run."),
        events("a finish reason that speaks of tools, and nothing else", &[&ends("tool_calls")])
            .says(&[])
            .adds("The endpoint asked for tools, which this agent does not run."),
        events("text, and a finish reason that speaks of tools", &[r#"{"choices":[{"delta":{"content":"a","tool_calls":[]}}]}"#, &ends("tool_calls")]).says(&["a"]),
        events("tools without names, ids or sense", &[
            r#"{"choices":[{"delta":{"tool_calls":[null,7,{"function":null},{"index":"x","id":null,"function":{"name":7,"arguments":null}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":{"function":{"name":"x"}},"function_call":"x"}}]}"#, &ends("tool_calls"), DONE,
        ])
        .says(&[])
        .adds("The endpoint asked for tools, which this agent does not run."),
    ]
}

/// Counts.
fn counts() -> Vec<Body> {
    vec![
        events("vLLM, LiteLLM: counts that are null or words", &[
            r#"{"choices":[{"delta":{"content":"a"}}],"usage":null}"#, r#"{"choices":[],"usage":"n/a"}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":null,"completion_tokens":4,"total_tokens":"4"}}"#, STOP, DONE,
        ])
        .says(&["a"]),
        events("Gemini: thoughts are only in the sum", &[&d("a"), r#"{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"total_tokens":107}}"#])
            .says(&["a", "#107"]),
        events("one-api: counts that are all zero after those that count", &[&d("a"), USAGE, r#"{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}"#, STOP, DONE])
            .says(&["a", "#3"]),
        events("Moonshot: counts in the choice", &[&d("a"), r#"{"choices":[{"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}]}"#])
            .says(&["a", "#3"]),
        events("Groq: counts in x_groq", &[r#"{"choices":[{"delta":{"content":"a"}}],"x_groq":{"id":"r"}}"#, r#"{"choices":[{"delta":{},"finish_reason":"stop"}],"x_groq":{"id":"r","usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}}"#])
            .says(&["a", "#3"]),
        events("counts with a point, and some that cannot be", &[&d("a"), r#"{"choices":[],"usage":{"prompt_tokens":5.0,"completion_tokens":2.0,"total_tokens":-7,"prompt_tokens_details":{"cached_tokens":1e300}}}"#, STOP, DONE])
            .says(&["a", "#7"]),
        events("counts after the end, without choices", &[&d("a"), STOP, r#"{"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}"#, DONE]).says(&["a", "#3"]),
        events("counts beside choices that are null, and counts that are none", &[
            r#"{"choices":null,"usage":{"prompt_tokens":1,"completion_tokens":2}}"#, &d("a"), r#"{"choices":[],"usage":[1]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":"1","completion_tokens":null}}"#, r#"{"choices":[],"usage":{"prompt_tokens":-1,"completion_tokens":1.5}}"#, STOP, DONE,
        ])
        .says(&["a", "#3"]),
    ]
}

/// Errors within a stream.
fn errors() -> Vec<Body> {
    vec![
        events("OpenAI: an error within the stream", &[&d("half"), r#"{"error":{"message":"The server had an error","type":"server_error","param":null,"code":null}}"#])
            .says(&["half"])
            .fails("Server error (HTTP 500) from U. It says: The server had an error"),
        events("vLLM: an error object", &[r#"{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}"#, DONE])
            .fails("Request refused (HTTP 400) by U: too long")
            .forgets(),
        events("OpenRouter: an error in the choice", &[
            &d("half"),
            r#"{"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error","native_finish_reason":null,"error":{"code":502,"message":"Network connection lost."}}]}"#,
        ])
        .says(&["half"])
        .fails("Server error (HTTP 502) from U. It says: Network connection lost."),
        events("OpenRouter: what the provider behind it said", &[
            r#"{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":"{\"error\":{\"message\":\"model is busy\"}}","provider_name":"X"}},"user_id":"u"}"#,
        ])
        .fails("Rate limit exceeded (HTTP 429) calling U. Please retry later. It says: Provider returned error: model is busy"),
        events("finish_reason error without an error", &[&d("half"), &ends("error"), DONE])
            .says(&["half"])
            .fails("The answer from U is not complete: the endpoint ended it with finish_reason \"error\"."),
        events("Groq: x_groq.error", &[&d("half"), r#"{"choices":[{"index":0,"delta":{},"finish_reason":null}],"x_groq":{"id":"r","error":"over capacity"}}"#])
            .says(&["half"])
            .fails("Error from U: over capacity"),
        events("MiniMax: base_resp", &[r#"{"id":"1","choices":null,"base_resp":{"status_code":1008,"status_msg":"insufficient balance"}}"#])
            .fails("Error from U: insufficient balance"),
        events("MiniMax: base_resp that is well", &[r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],"base_resp":{"status_code":0,"status_msg":""}}"#])
            .says(&["a"]),
        raw("llama.cpp: an error field", format!("data: {}\n\nerror: {{\"code\":500,\"message\":\"slot lost\",\"type\":\"server_error\"}}\n\n", d("half")))
            .says(&["half"])
            .fails("Server error (HTTP 500) from U. It says: slot lost"),
        raw("Anthropic's way: event error", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n")
            .fails("Server error (HTTP 529) from U. It says: Overloaded"),
        raw("event error with words", format!("data: {}\n\nevent: error\ndata: stream timeout\n\n", d("half"))).says(&["half"]).fails("Error from U: stream timeout"),
        raw("event error with a message that is nobody's error else", "event: error\ndata: {\"message\":\"quota\"}\n\n").fails("Error from U: quota"),
        raw("FastAPI: JSON that is appended when a stream breaks", format!("data: {}\n\n{{\"error\": {{\"message\": \"worker died\", \"code\": 500}}}}", d("half")))
            .says(&["half"])
            .fails("Server error (HTTP 500) from U. It says: worker died"),
        raw("the same, printed prettily", format!("data: {}\n\n{{\n  \"error\": {{\n    \"message\": \"worker died\"\n  }}\n}}\n", d("half")))
            .says(&["half"])
            .fails("Error from U: worker died"),
        events("words as data before anything was said", &["Too many requests"]).fails("Error from U: Too many requests").logs(&["Too many requests"]),
        events("LiteLLM: words of an error as data, and [DONE] after all", &[&d("half"), "litellm.APIConnectionError: the model is gone", DONE])
            .says(&["half"])
            .fails("Network error connecting to U: the stream ended before the answer was complete; it said: litellm.APIConnectionError: the model is gone")
            .logs(&["litellm.APIConnectionError"]),
        raw("nginx: a page in the midst of a stream", format!("data: {}\n\n<html>\n<head><title>502 Bad Gateway</title></head>\n</html>\n", d("half")))
            .says(&["half"])
            .fails("Network error connecting to U: the stream ended before the answer was complete; it said: 502 Bad Gateway"),
        events("a torn chunk, and [DONE] after all", &[&d("half"), r#"{"choices":[{"delta":{"con"#, DONE])
            .says(&["half"])
            .fails(BROKE_OFF)
            .logs(&[r#"{"choices":[{"delta":{"con"#]),
        events("a message as data, and [DONE]", &[r#"{"message":"quota exceeded"}"#, DONE])
            .fails("Error from U: quota exceeded")
            .logs(&[r#"{"message"#]),
        events("words as data in the midst of it", &[&d("half"), "upstream gone"])
            .says(&["half"])
            .fails("Network error connecting to U: the stream ended before the answer was complete; it said: upstream gone")
            .logs(&["upstream gone"]),
        events("an error that is null, false or empty", &[
            r#"{"error":null,"choices":[{"delta":{"content":"a"}}]}"#, r#"{"error":false,"choices":[{"delta":{"content":"b"}}]}"#,
            r#"{"error":{},"choices":[{"delta":{"content":"c"}}]}"#, r#"{"error":"","choices":[]}"#, STOP,
        ])
        .says(&["a", "b", "c"]),
    ]
}

/// Bodies that are no stream.
fn others() -> Vec<Body> {
    vec![
        plain("a server that does not stream", whole("all", json!("stop"))).says(&["all"]),
        plain("the same, printed prettily", format!("\n {}", serde_json::to_string_pretty(&serde_json::from_str::<Json>(&whole("all", json!("length"))).unwrap()).unwrap()))
            .says(&["all"])
            .stops("max_tokens"),
        plain("a whole answer without a finish reason", whole("all", json!(null))).says(&["all"]),
        plain("a whole answer that failed", whole("half", json!("error")))
            .says(&["half"])
            .fails("The answer from U is not complete: the endpoint ended it with finish_reason \"error\"."),
        plain("a whole answer that was filtered", whole("half", json!("SAFETY"))).says(&["half"]).stops("refusal"),
        plain("a whole answer with thoughts within", whole("<think>hm</think>\n\nyes", json!("stop"))).says(&["~hm", "yes"]),
        plain("a whole answer with thoughts beside", r#"{"choices":[{"message":{"content":"yes","reasoning":"hm"},"finish_reason":"stop"}]}"#).says(&["~hm", "yes"]),
        plain("a whole answer with half a pair", r#"{"choices":[{"message":{"content":"a\ud83d"},"finish_reason":"stop"}],"created":1e999}"#).says(&["a", "\u{fffd}"]),
        plain("a whole answer that wants tools", r#"{"choices":[{"message":{"content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"look","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}"#)
            .says(&[])
            .adds("The endpoint asked for tools, which this agent does not run."),
        plain("a whole answer, and then [DONE] as an event", format!("{}\n\ndata: [DONE]\n\n", whole("all", json!("stop")))).says(&["all"]),
        plain("a body that is torn", &whole("all", json!("stop"))[..60]).fails(BROKE_OFF),
        plain("a body that is torn by the connection", whole("all", json!(null))).breaks("reset").says(&["all"]).fails("Network error connecting to U: reset"),
        plain("JSON that is no completion", r#"{"hello":1}"#)
            .fails("Unexpected answer from U: application/json instead of a chat completion. Check your OPENAI_BASE_URL.")
            .logs(&["{\"hello\":1}"]),
        plain("OpenAI: an error under status 200", r#"{"error":{"message":"who are you","type":"x","code":"invalid_api_key"}}"#)
            .fails("Authentication error (HTTP 401) calling U. Check your OPENAI_API_KEY. It says: who are you"),
        plain("Gemini: an array of errors", "[{\n  \"error\": {\n    \"code\": 400,\n    \"message\": \"API key not valid.\",\n    \"status\": \"INVALID_ARGUMENT\"\n  }\n}\n]")
            .fails("Request refused (HTTP 400) by U: API key not valid.")
            .forgets(),
        plain("Ollama: an error that is words", r#"{"error":"model \"x\" not found, try pulling it first"}"#).fails("Error from U: model \"x\" not found, try pulling it first"),
        plain("FastAPI: detail", r#"{"detail":"Not Found"}"#).fails("Error from U: Not Found").logs(&["{\"detail\""]),
        plain("FastAPI: what is wrong with the request", r#"{"detail":[{"type":"missing","loc":["body","model"],"msg":"Field required"}]}"#).fails("Error from U: body.model: Field required"),
        plain("a gateway: msg and code", r#"{"code":401,"msg":"token expired","data":null}"#)
            .fails("Authentication error (HTTP 401) calling U. Check your OPENAI_API_KEY. It says: token expired"),
        plain("Alibaba: code and message", r#"{"code":"InvalidApiKey","message":"Invalid API-key provided.","request_id":"1"}"#)
            .fails("Authentication error (HTTP 401) calling U. Check your OPENAI_API_KEY. It says: Invalid API-key provided."),
        plain("Baidu: error_code and error_msg", r#"{"error_code":336003,"error_msg":"the max input characters is 5"}"#).fails("Error from U: the max input characters is 5"),
        plain("Cloudflare: errors", r#"{"result":null,"success":false,"errors":[{"code":7009,"message":"no such model"}],"messages":[]}"#).fails("Error from U: no such model"),
        plain("AWS API Gateway: Message", r#"{"Message":"Missing Authentication Token"}"#).fails("Error from U: Missing Authentication Token").logs(&["{\"Message\""]),
        plain("MiniMax: base_resp", r#"{"base_resp":{"status_code":1004,"status_msg":"login fail"}}"#)
            .fails("Authentication error (HTTP 401) calling U. Check your OPENAI_API_KEY. It says: login fail"),
        raw("Envoy: plain text", "upstream connect error or disconnect/reset before headers").fails("Error from U: upstream connect error or disconnect/reset before headers"),
        Body { content_type: "text/html", ..raw("a login page", "<!doctype html><title>Sign in</title>") }
            .fails("Unexpected answer from U: text/html instead of a chat completion. Check your OPENAI_BASE_URL."),
        Body { content_type: "", ..raw("a page of no type", "\n<html>") }
            .fails("Unexpected answer from U: a body of no type instead of a chat completion. Check your OPENAI_BASE_URL."),
    ]
}
