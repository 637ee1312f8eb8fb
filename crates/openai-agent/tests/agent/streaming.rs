//! What endpoints send, and what a client sees of it.

use serde_json::{Value as Json, json};

use super::client::{Answered, Client};
use super::endpoint::{Conn, Endpoint, Request, delta};

fn ask(handler: impl Fn(&Request, &mut Conn) + Send + Sync + 'static) -> Answered {
    let endpoint = Endpoint::start(handler);
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    client.prompt(&session, "hi")
}

/// A body sent raw, without a length, closed at its end.
fn ask_raw(content_type: &'static str, body: &'static [u8]) -> Answered {
    ask(move |_, conn| {
        conn.raw(format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\nconnection: close\r\n\r\n").as_bytes());
        conn.raw(body);
        conn.cut();
    })
}

#[test]
fn every_delta_is_an_update_of_one_message() {
    let answered = ask(|_, conn| conn.say(&["Hel", "lo", " ", "wörld \u{1f600}\n\"\u{2028}"]));
    let texts: Vec<&str> = answered.updates.iter().map(|update| update["content"]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["Hel", "lo", " ", "wörld \u{1f600}\n\"\u{2028}"]);
    assert!(answered.updates.iter().all(|update| update["messageId"] == answered.updates[0]["messageId"]));
    assert!(answered.updates[0]["messageId"].is_string());
    assert_eq!(answered.stop(), "end_turn");
    // No counts were sent: none are invented.
    assert!(answered.answer["result"].get("usage").is_none());
}

#[test]
fn the_history_is_sent_with_the_next_prompt() {
    let endpoint = Endpoint::start(|request, conn| match request.number {
        0 => conn.say(&["first", " answer"]),
        _ => conn.say(&["second"]),
    });
    let env = [
        ("OPENAI_BASE_URL", &*endpoint.url()),
        ("OPENAI_SYSTEM_PROMPT", "Be brief."),
        ("OPENAI_MAX_TOKENS", "50"),
        ("OPENAI_TEMPERATURE", "0.5"),
        ("OPENAI_API_KEY", "sk-1"),
    ]
    .map(|(name, value)| (name, value.to_owned()));
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut client = Client::start(&env);
    let session = client.session();
    client.prompt(&session, "one");
    client.prompt(&session, "two");
    let requests = endpoint.requests();
    assert_eq!(requests[0].target, "/v1/chat/completions");
    assert_eq!(requests[0].header("authorization"), Some("Bearer sk-1"));
    let expected = json!({
        "model": "gpt-4o", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 50, "temperature": 0.5,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "first answer"},
            {"role": "user", "content": "two"},
        ],
    });
    assert_eq!(requests[1].body, expected);
    assert_eq!(endpoint.connections(), 1, "the connection is used again");
}

#[test]
fn reasoning_is_a_thought_and_stays_out_of_the_history() {
    for name in ["reasoning_content", "reasoning"] {
        let endpoint = Endpoint::start(move |_, conn| {
            conn.begin();
            conn.event(&delta(json!({"role": "assistant", "content": "", name: "hm"})));
            conn.event(&delta(json!({"content": null, name: " well"})));
            conn.text("yes");
            conn.finish_reason("stop");
            conn.done();
        });
        let mut client = Client::for_url(&endpoint.url());
        let session = client.session();
        let answered = client.prompt(&session, "hi");
        assert_eq!((answered.text_of("agent_thought_chunk").as_str(), answered.text().as_str()), ("hm well", "yes"));
        assert_ne!(answered.updates[0]["messageId"], answered.updates[2]["messageId"]);
        client.prompt(&session, "again");
        assert!(!endpoint.requests()[1].body.to_string().contains("well"));
    }
}

#[test]
fn counts_are_sent_with_the_result_and_summed_over_the_session() {
    let endpoint = Endpoint::start(|_, conn| {
        conn.begin();
        conn.text("x");
        conn.finish_reason("stop");
        conn.event(&json!({"choices": [], "usage": {"prompt_tokens": 50, "completion_tokens": 12, "total_tokens": 62,
            "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 4}}}));
        conn.done();
    });
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    let answered = client.prompt(&session, "hi");
    let usage =
        json!({"totalTokens": 62, "inputTokens": 50, "outputTokens": 12, "thoughtTokens": 4, "cachedReadTokens": 0});
    assert_eq!(answered.answer["result"]["usage"], usage);
    let update = json!({"sessionUpdate": "usage_update", "used": 62, "size": 128_000});
    assert_eq!(answered.updates.last(), Some(&update));
    let answered = client.prompt(&session, "hi");
    assert_eq!(answered.answer["result"]["usage"]["totalTokens"], 124);
}

#[test]
fn a_client_older_than_usage_update_does_not_get_it() {
    let endpoint = Endpoint::start(|_, conn| {
        conn.begin();
        conn.text("x");
        conn.finish_reason("stop");
        conn.event(&json!({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}));
        conn.done();
    });
    let old = json!({"protocolVersion": 1, "clientCapabilities": {}});
    let new = json!({"protocolVersion": 1, "clientInfo": {"name": "new", "version": "1"}});
    for (params, is_expected) in [(&old, false), (&new, true)] {
        let mut client = Client::for_url(&endpoint.url());
        client.result("initialize", params.clone());
        let session = client.session();
        let answered = client.prompt(&session, "hi");
        let is_reported = answered.updates.iter().any(|update| update["sessionUpdate"] == "usage_update");
        assert_eq!(is_reported, is_expected, "{params}");
        assert_eq!(answered.answer["result"]["usage"]["totalTokens"], 2, "the result has them anyway");
    }
}

#[test]
fn the_reason_to_finish_is_translated() {
    for (reason, stop) in [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("content_filter", "refusal"),
        ("tool_calls", "end_turn"),
        ("function_call", "end_turn"),
        ("eos", "end_turn"),
        ("MAX_TOKENS", "max_tokens"),
        ("SAFETY", "refusal"),
    ] {
        let answered = ask(move |_, conn| {
            conn.begin();
            conn.event(&delta(json!({"content": "x", "tool_calls": null})));
            conn.finish_reason(reason);
            conn.done();
        });
        assert_eq!(answered.stop(), stop, "{reason}");
    }
}

#[test]
fn a_refusal_is_shown_and_forgotten() {
    let endpoint = Endpoint::start(|request, conn| match request.number {
        0 => {
            conn.begin();
            conn.event(&delta(json!({"refusal": "I will not."})));
            conn.finish_reason("stop");
            conn.done();
        }
        _ => conn.say(&["ok"]),
    });
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    let answered = client.prompt(&session, "bad");
    assert_eq!((answered.text().as_str(), answered.stop()), ("I will not.", "refusal"));
    client.prompt(&session, "good");
    assert_eq!(endpoint.requests()[1].body["messages"], json!([{"role": "user", "content": "good"}]));
}

#[test]
fn events_survive_every_way_of_writing_them() {
    const CRLF: &[u8] = b"\xef\xbb\xbf: hello\r\nevent: message\r\nid: 1\r\nretry: 10\r\ndata:{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\ndata: [DONE]\r\n\r\n";
    const CR: &[u8] = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\rdata: [DONE]\r\r";
    const MULTI: &[u8] = b"data: {\"choices\":\ndata: [{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n";
    const KEEPALIVE: &[u8] = b"data: : keepalive\n\n: ping\n\ndata: {\"choices\":[],\"prompt_filter_results\":[]}\n\ndata: {broken\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: : keepalive\n\ndata: [DONE]\n\n";
    const NO_END: &[u8] = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]";
    const NO_DONE: &[u8] = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n";
    const PARTS: &[u8] =
        b"data: {\"choices\":[{\"delta\":{\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}}]}\n\ndata: [DONE]\n\n";
    for body in [CRLF, CR, MULTI, KEEPALIVE, NO_END, NO_DONE, PARTS] {
        let answered = ask_raw("text/event-stream", body);
        assert_eq!((answered.text().as_str(), answered.stop()), ("a", "end_turn"), "{}", body.escape_ascii());
    }
    let litellm = ask_raw("text/event-stream", b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{}}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n");
    assert_eq!((litellm.text().as_str(), litellm.answer["result"]["usage"]["totalTokens"].as_u64()), ("a", Some(2)));
}

#[test]
fn bytes_may_come_one_by_one() {
    let answered = ask(|_, conn| {
        conn.begin();
        for byte in format!("data: {}\r\n\r\ndata: [DONE]\r\n\r\n", delta(json!({"content": "é\u{1f600}"}))).bytes() {
            conn.chunk(&[byte]);
        }
        conn.end();
    });
    assert_eq!(answered.text(), "é\u{1f600}");
}

#[test]
fn a_server_that_does_not_stream_is_understood() {
    let body = br#"{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"all at once"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}"#;
    let answered = ask_raw("application/json", body);
    assert_eq!((answered.text().as_str(), answered.stop()), ("all at once", "max_tokens"));
    assert_eq!(answered.answer["result"]["usage"]["totalTokens"], 5);
}

#[test]
fn long_events_are_read_and_too_long_ones_are_an_error() {
    let long = "x".repeat(3 << 20);
    let endpoint = Endpoint::start(move |_, conn| {
        conn.begin();
        conn.text(&long);
        conn.done();
    });
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    let answered = client.prompt(&session, "hi");
    assert_eq!(answered.text().len(), 3 << 20);
    // The bus by default and BenchFlow at all accept no line above 1 MiB.
    assert!(answered.updates.iter().all(|update| update.to_string().len() < 1 << 20));
    let mut client = Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_MAX_LINE_BYTES", "1000000")]);
    let session = client.session();
    let text = client.prompt(&session, "hi").text();
    assert!(text.contains("longer than the limit of 1000000 bytes"), "{text}");
}

#[test]
fn an_answer_that_is_over_ends_the_turn_though_the_connection_stays_open() {
    const PLAIN: &str = "{\"choices\":[{\"message\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}";
    let chunk = delta(json!({"content": "a"}));
    let finish = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
    let bodies = [
        format!("data: {chunk}\n\ndata: [DONE]\n\n"),
        format!("data: {chunk}\n\ndata: [DONE]\n"),
        format!("data: {chunk}\n\ndata: [DONE]"),
        format!("data: {chunk}\n\ndata: {finish}\n\n"),
        format!("data: {chunk}\n\ndata: {finish}\n\ndata: {usage}\n\n"),
        format!("data: {chunk}\ndata: {finish}\n"),
        format!("data: {chunk}\n\ndata: {finish}"),
        PLAIN.to_owned(),
    ];
    let ends = |body: &str| {
        let sent = body.to_owned();
        let endpoint = Endpoint::start(move |_, conn| {
            conn.begin();
            conn.chunk(sent.as_bytes());
            conn.wait_closed();
        });
        // A stall never ends it.
        let mut client = Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_IDLE_TIMEOUT_SEC", "0")]);
        let session = client.session();
        let answered = client.prompt(&session, "hi");
        assert_eq!((answered.text().as_str(), answered.stop()), ("a", "end_turn"), "{body}");
    };
    // All at once: the agent waits two seconds for the rest of most of them.
    std::thread::scope(|scope| {
        for body in &bodies {
            scope.spawn(|| ends(body));
        }
    });
}

#[test]
fn events_without_a_blank_line_between_them_are_forwarded_as_they_arrive() {
    let (received, said) = std::sync::mpsc::channel::<()>();
    let said = std::sync::Mutex::new(said);
    let endpoint = Endpoint::start(move |_, conn| {
        conn.begin();
        for text in ["a", "b", "c"] {
            conn.chunk(format!("data: {}\n", delta(json!({"content": text}))).as_bytes());
            // The next one is not sent before the client has this one.
            said.lock().unwrap().recv_timeout(super::client::PATIENCE).expect("the client receives each at once");
        }
        conn.chunk(b"data: [DONE]\n");
        conn.end();
    });
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    let id = client.ask_prompt(&session, "hi");
    for text in ["a", "b", "c"] {
        assert_eq!(client.line()["params"]["update"]["content"]["text"], text);
        received.send(()).unwrap();
    }
    assert_eq!(client.answer(id).stop(), "end_turn");
}

#[test]
fn a_huge_event_arrives_whole_while_other_sessions_stream() {
    let huge = "0123456789abcdef".repeat(8 << 16);
    let text = huge.clone();
    let endpoint = Endpoint::start(move |request, conn| match request.said().as_str() {
        "huge" => conn.say(&[&text]),
        _ => conn.say(&["small", " talk"]),
    });
    let mut client = Client::for_url(&endpoint.url());
    let (first, second) = (client.session(), client.session());
    let long = client.ask_prompt(&first, "huge");
    let short = client.ask_prompt(&second, "small");
    let mut waiting = vec![long, short];
    let (mut received, mut small) = (String::new(), String::new());
    while !waiting.is_empty() {
        let line = client.line();
        if let Some(id) = line["id"].as_u64() {
            waiting.retain(|other| *other != id);
            continue;
        }
        assert!(line.to_string().len() < 1 << 20);
        let text = line["params"]["update"]["content"]["text"].as_str().unwrap();
        match line["params"]["sessionId"] == first.as_str() {
            true => received.push_str(text),
            false => small.push_str(text),
        }
    }
    assert!(received == huge, "{} of {} bytes", received.len(), huge.len());
    assert_eq!(small, "small talk");
}

#[test]
fn reasoning_within_the_text_is_a_thought_and_stays_out_of_the_history() {
    let endpoint = Endpoint::start(|_, conn| conn.say(&["<th", "ink>h", "m</think>\n\n", "yes"]));
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    let answered = client.prompt(&session, "hi");
    assert_eq!((answered.text_of("agent_thought_chunk").as_str(), answered.text().as_str()), ("hm", "yes"));
    client.prompt(&session, "again");
    assert_eq!(endpoint.requests()[1].body["messages"][1], json!({"role": "assistant", "content": "yes"}));
}

#[test]
fn requested_tools_are_reported_and_the_prompt_stays() {
    let endpoint = Endpoint::start(|request, conn| match request.number {
        0 => {
            conn.begin();
            conn.event(&delta(json!({"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": ""}}]})));
            conn.finish_reason("tool_calls");
            conn.done();
        }
        _ => conn.say(&["ok"]),
    });
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    let answered = client.prompt(&session, "where?");
    let words = "The endpoint asked for tools, which this agent does not run.";
    assert_eq!((answered.text().as_str(), answered.stop()), (words, "end_turn"));
    client.prompt(&session, "continue");
    let expected = json!([{"role": "user", "content": "where?\n\ncontinue"}]);
    assert_eq!(endpoint.requests()[1].body["messages"], expected);
}

#[test]
fn images_are_sent_if_enabled() {
    let endpoint = Endpoint::saying(&["ok"]);
    let prompt = json!([{"type": "text", "text": "what is this?"}, {"type": "image", "mimeType": "image/png", "data": "QUJD"},
        {"type": "resource_link", "uri": "file:///a", "name": "a"}]);
    for (switch, expected) in [
        ("0", json!("what is this?\n[Image: image/png]\n[Resource: a] file:///a")),
        (
            "1",
            json!([{"type": "text", "text": "what is this?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
            {"type": "text", "text": "[Resource: a] file:///a"}]),
        ),
    ] {
        let mut client = Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_IMAGE_INPUT", switch)]);
        let capabilities = client.result("initialize", json!({"protocolVersion": 1}))["agentCapabilities"].clone();
        assert_eq!(capabilities["promptCapabilities"]["image"], switch == "1");
        let session = client.session();
        client.result("session/prompt", json!({"sessionId": session, "prompt": prompt}));
        let body = endpoint.requests().last().unwrap().body.clone();
        assert_eq!(body["messages"][0]["content"], expected);
    }
}

#[test]
fn a_chunk_never_looks_like_a_snapshot_of_the_whole() {
    let answered = ask(|_, conn| conn.say(&["ha", "haha", "hahahahaha", "!"]));
    assert_eq!(answered.text(), "hahahahahahahaha!");
    let mut so_far = String::new();
    for update in &answered.updates {
        let text = update["content"]["text"].as_str().unwrap();
        assert!(so_far.is_empty() || !text.starts_with(&so_far), "{text:?} after {so_far:?}");
        so_far.push_str(text);
    }
}

/// Makes a prompt with a picture.
fn picture(session: &str) -> Json {
    let image = json!({"type": "image", "mimeType": "image/png", "data": "QUJD"});
    json!({"sessionId": session, "prompt": [{"type": "text", "text": "what is this?"}, image]})
}

#[test]
fn a_picture_of_an_answered_turn_is_left_out_for_a_model_without_vision_and_the_user_reads_so() {
    let endpoint = Endpoint::start(|request, conn| {
        let has_image = request.body["messages"].to_string().contains("image_url");
        match request.body["model"] == "blind" && has_image {
            true => conn.refuse(404, "No endpoints found that support image input"),
            false => conn.say(&["ok"]),
        }
    });
    let mut client = Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_IMAGE_INPUT", "1")]);
    let session = client.session();
    client.result("session/prompt", picture(&session));
    client.result("session/set_model", json!({"sessionId": session, "modelId": "blind"}));
    let answered = client.prompt(&session, "are you sure?");
    let texts: Vec<&str> = answered.updates.iter().map(|update| update["content"]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["The images of earlier turns are left out: blind gets none.", "ok"]);
    assert_ne!(answered.updates[0]["messageId"], answered.updates[1]["messageId"]);
    let messages = json!([{"role": "user", "content": "what is this?\n[Image: image/png]"},
        {"role": "assistant", "content": "ok"}, {"role": "user", "content": "are you sure?"}]);
    assert_eq!(endpoint.requests().last().unwrap().body["messages"], messages);
    // The agent knows the model by now, and the user has read so.
    let before = endpoint.requests().len();
    assert_eq!(client.prompt(&session, "really?").text(), "ok");
    assert_eq!(endpoint.requests().len(), before + 1);
    // A refusal of a picture in the prompt itself is shown to the user.
    let id = client.ask("session/prompt", picture(&session));
    assert!(client.answer(id).text().contains("support image input"));
    assert_eq!(client.prompt(&session, "and now?").text(), "ok");
    // A model with vision gets them again.
    client.result("session/set_model", json!({"sessionId": session, "modelId": "seeing"}));
    assert_eq!(client.prompt(&session, "look again").text(), "ok");
    let body = endpoint.requests().last().unwrap().body.clone();
    assert_eq!(body["messages"][0]["content"][1]["image_url"]["url"], "data:image/png;base64,QUJD");
}
