//! Failures of the endpoint, and the messages for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value as Json, json};

use super::client::Client;
use super::endpoint::{Conn, Endpoint, Request, delta};

/// Asks once in a fresh agent and returns (the text, the URL that was called, the number of requests).
fn fail(
    env: &[(&str, &str)],
    handler: impl Fn(&Request, &mut Conn) + Send + Sync + 'static,
) -> (String, String, usize) {
    let endpoint = Endpoint::start(handler);
    let url = endpoint.url();
    let env: Vec<(&str, &str)> = env.iter().copied().chain([("OPENAI_BASE_URL", url.as_str())]).collect();
    let mut client = Client::start(&env);
    let session = client.session();
    let answered = client.prompt(&session, "hi");
    assert_eq!(answered.stop(), "end_turn");
    (answered.text(), endpoint.chat_url(), endpoint.requests().len())
}

const NOW: (&str, &str) = ("retry-after-ms", "1");

#[test]
fn the_failure_texts_are_those_of_the_rfd() {
    for status in [401, 403] {
        let (text, url, requests) = fail(&[], move |_, conn| conn.refuse(status, "bad key"));
        let expected = format!("Authentication error (HTTP {status}) calling {url}. Check your OPENAI_API_KEY.");
        assert_eq!(text, format!("{expected} It says: bad key"));
        assert_eq!(requests, 1);
    }
    let (text, url, requests) = fail(&[], |_, conn| conn.respond(429, &[NOW], "{}"));
    assert_eq!(text, format!("Rate limit exceeded (HTTP 429) calling {url}. Please retry later."));
    assert_eq!(requests, 3);
    for status in [500, 502, 503, 529] {
        let (text, url, requests) = fail(&[], move |_, conn| conn.respond(status, &[NOW], "oops"));
        assert_eq!(text, format!("Server error (HTTP {status}) from {url}. It says: oops"));
        assert_eq!(requests, 3);
    }
    let (text, url, requests) = fail(&[], |_, conn| conn.refuse(404, "no such model"));
    assert_eq!(text, format!("Request refused (HTTP 404) by {url}: no such model"));
    assert_eq!(requests, 1);
    let (text, ..) = fail(&[], |_, conn| conn.respond(301, &[("location", "https://elsewhere/v1")], ""));
    assert!(text.contains("redirects to https://elsewhere/v1"), "{text}");
}

#[test]
fn a_refused_connection_is_a_network_error() {
    let (free, _keeps_it) = crate::ports::unused();
    let mut client = Client::start(&[("OPENAI_BASE_URL", &format!("http://{free}/v1")), ("OPENAI_MAX_RETRIES", "0")]);
    let session = client.session();
    let text = client.prompt(&session, "hi").text();
    let expected = format!("Network error connecting to http://{free}/v1/chat/completions: ");
    assert!(text.starts_with(&expected) && text.contains("refused"), "{text}");
}

#[test]
fn retries_are_bounded_and_do_what_the_server_says() {
    let (text, _, requests) = fail(&[("OPENAI_MAX_RETRIES", "4")], |_, conn| conn.respond(503, &[NOW], ""));
    assert!(text.starts_with("Server error") && requests == 5);
    let (_, _, requests) = fail(&[("OPENAI_MAX_RETRIES", "0")], |_, conn| conn.respond(503, &[NOW], ""));
    assert_eq!(requests, 1);
    let (_, _, requests) = fail(&[], |_, conn| conn.respond(429, &[NOW, ("x-should-retry", "false")], ""));
    assert_eq!(requests, 1);
    let (_, _, requests) = fail(&[], |_, conn| conn.respond(429, &[("retry-after", "3600")], ""));
    assert_eq!(requests, 1);
    for status in [408, 409, 429, 500] {
        let (text, _, requests) = fail(&[], move |request, conn| match request.number {
            0 => conn.respond(status, &[("retry-after", "0")], ""),
            1 => conn.respond(status, &[("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT")], ""),
            _ => conn.say(&["at last"]),
        });
        assert_eq!((text.as_str(), requests), ("at last", 3), "{status}");
    }
}

#[test]
fn a_connection_that_closes_before_the_first_byte_is_tried_again() {
    let (text, _, requests) = fail(&[], |request, conn| match request.number {
        0 => conn.cut(),
        1 => {
            conn.begin();
            conn.cut();
        }
        _ => conn.say(&["ok"]),
    });
    assert_eq!((text.as_str(), requests), ("ok", 3));
}

#[test]
fn a_stream_that_breaks_off_is_an_error_and_is_not_tried_again() {
    let cut: fn(&Request, &mut Conn) = |_, conn| {
        conn.begin();
        conn.text("half an ans");
        conn.cut();
    };
    let ended: fn(&Request, &mut Conn) = |_, conn| {
        conn.begin();
        conn.text("half an ans");
        conn.end();
    };
    for handler in [cut, ended] {
        let (text, url, requests) = fail(&[], handler);
        let expected = format!("half an ans\n\nNetwork error connecting to {url}: ");
        assert!(text.starts_with(&expected), "{text}");
        assert_eq!(requests, 1);
    }
}

#[test]
fn an_error_inside_the_stream_reads_like_one_outside() {
    for (error, expected) in [
        (json!({"error": {"message": "slow down", "type": null, "code": "429"}}), "Rate limit exceeded (HTTP 429)"),
        (json!({"error": {"message": "boom", "code": 500}}), "Server error (HTTP 500)"),
        (json!({"object": "error", "message": "too long", "code": 400}), "Request refused (HTTP 400)"),
        (json!({"error": "plain words"}), "Error from"),
    ] {
        let (text, ..) = fail(&[], move |_, conn| {
            conn.begin();
            conn.event(&error);
            conn.done();
        });
        assert!(text.starts_with(expected), "{text}");
    }
    let body = json!({"error": {"message": "who are you", "code": 401}}).to_string();
    let (text, ..) = fail(&[], move |_, conn| conn.respond(200, &[("content-type", "application/json")], &body));
    assert!(text.starts_with("Authentication error (HTTP 401)"), "{text}");
}

#[test]
fn a_response_that_is_not_a_completion_is_an_error() {
    let (text, ..) = fail(&[], |_, conn| conn.respond(200, &[("content-type", "text/html")], "<html>log in</html>"));
    assert!(text.contains("text/html instead of a chat completion") && text.contains("OPENAI_BASE_URL"), "{text}");
    let (text, ..) = fail(&[], |_, conn| conn.respond(200, &[("content-type", "application/json")], "{\"ok\":true}"));
    assert!(text.contains("instead of a chat completion"), "{text}");
    let (text, ..) = fail(&[], |_, conn| conn.respond(200, &[], ""));
    assert!(text.contains("the answer is empty"), "{text}");
    let (text, ..) = fail(&[("OPENAI_MAX_RETRIES", "0")], |_, conn| {
        conn.raw(b"SSH-2.0-OpenSSH_9.6\r\n");
        conn.cut();
    });
    assert!(text.starts_with("Network error"), "{text}");
}

#[test]
fn silence_and_slowness_have_limits() {
    let (text, ..) = fail(&[("OPENAI_IDLE_TIMEOUT_SEC", "0.05")], |_, conn| {
        conn.wait_closed();
    });
    assert!(text.contains("no answer within 0.05 s"), "{text}");
    let (text, ..) = fail(&[("OPENAI_IDLE_TIMEOUT_SEC", "1")], |_, conn| {
        conn.begin();
        conn.text("so");
        conn.wait_closed();
    });
    assert!(text.starts_with("so\n\nNetwork error") && text.contains("silence for 1 s"), "{text}");
}

#[test]
fn errors_are_json_rpc_errors_when_that_is_wanted() {
    for (status, code) in [(401, -32000), (403, -32000), (429, -32603), (400, -32603), (500, -32603)] {
        let endpoint = Endpoint::start(move |_, conn| conn.refuse(status, "because"));
        let env = [("OPENAI_BASE_URL", &*endpoint.url()), ("OPENAI_ERRORS", "jsonrpc"), ("OPENAI_MAX_RETRIES", "0")]
            .map(|(name, value)| (name, value.to_owned()));
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let mut client = Client::start(&env);
        let session = client.session();
        let answered = client.prompt(&session, "hi");
        let error = &answered.answer["error"];
        assert!(answered.updates.is_empty());
        assert_eq!(
            (error["code"].as_i64(), error["data"]["status"].as_u64()),
            (Some(code), Some(status.into())),
            "{error}"
        );
    }
}

#[test]
fn a_failed_turn_leaves_the_history_as_it_was() {
    let endpoint = Endpoint::start(|request, conn| match request.said().as_str() {
        "break" => {
            conn.begin();
            conn.text("half");
            conn.cut();
        }
        "refuse" => conn.refuse(400, "no"),
        _ => conn.say(&["fine"]),
    });
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    let said = |endpoint: &Endpoint| {
        let messages = endpoint.requests().last().unwrap().body["messages"].clone();
        let said = messages.as_array().unwrap().iter().map(|message| message["content"].as_str().unwrap().to_owned());
        said.collect::<Vec<String>>()
    };
    for text in ["one", "break", "go on"] {
        client.prompt(&session, text);
    }
    assert_eq!(said(&endpoint), ["one", "fine", "break\n\ngo on"]);
    for text in ["break", "refuse", "two"] {
        client.prompt(&session, text);
    }
    // A prompt that the endpoint refused would be refused again with the next one.
    assert_eq!(said(&endpoint), ["one", "fine", "break\n\ngo on", "fine", "two"]);
}

#[test]
fn the_words_of_the_server_are_shown_in_every_shape() {
    for (status, body, words) in [
        (
            400,
            "[{\n  \"error\": {\n    \"code\": 400,\n    \"message\": \"API key not valid.\"\n  }\n}]",
            "API key not valid.",
        ),
        (401, "{\"detail\":\"who are you\"}", "who are you"),
        (404, "{\n  \"message\": \"no such route\"\n}", "no such route"),
        (422, "{\"detail\":[{\"loc\":[\"body\",\"model\"],\"msg\":\"field required\"}]}", "body.model: field required"),
        (429, "{\"errors\":[{\"message\":\"slow down\"}]}", "slow down"),
        (500, "{\"base_resp\":{\"status_code\":1000,\"status_msg\":\"unknown error\"}}", "unknown error"),
        (502, "<html><head><title>502 Bad Gateway</title></head></html>", "502 Bad Gateway"),
        (503, "no healthy upstream", "no healthy upstream"),
    ] {
        let (text, ..) = fail(&[("OPENAI_MAX_RETRIES", "0")], move |_, conn| conn.respond(status, &[], body));
        assert!(text.contains(&format!("HTTP {status}")) && text.ends_with(words), "{text}");
    }
}

#[test]
fn skipped_events_are_logged_in_a_few_lines() {
    let endpoint = Endpoint::start(|_, conn| {
        conn.begin();
        for _ in 0..100 {
            conn.chunk(b"data: : keepalive\n\n");
        }
        conn.text("ok");
        conn.done();
    });
    let mut client = Client::logging("warn", &[("OPENAI_BASE_URL", &endpoint.url())]);
    let session = client.session();
    assert_eq!(client.prompt(&session, "hi").text(), "ok");
    let log = client.log();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 4, "{log}");
    assert!(lines[0].contains("warning") && lines[0].contains(": keepalive"), "{log}");
    assert!(lines[3].contains("97 more events"), "{log}");
}

#[test]
fn old_servers_are_asked_without_counts_and_new_models_with_the_new_limit() {
    let refusals = Arc::new(AtomicUsize::new(0));
    let seen = refusals.clone();
    let endpoint = Endpoint::start(move |request, conn| {
        let complaint = match &request.body {
            body if body.get("stream_options").is_some() => "Unrecognized request argument supplied: stream_options",
            body if body.get("max_tokens").is_some() => {
                "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            }
            _ => return conn.say(&["ok"]),
        };
        seen.fetch_add(1, Ordering::Relaxed);
        conn.refuse(400, complaint);
    });
    let mut client = Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_MAX_TOKENS", "9")]);
    let session = client.session();
    assert_eq!(client.prompt(&session, "one").text(), "ok");
    assert_eq!(client.prompt(&session, "two").text(), "ok");
    assert_eq!(refusals.load(Ordering::Relaxed), 2, "what was learned is remembered");
    assert_eq!(endpoint.requests().last().unwrap().body["max_completion_tokens"], 9);
    // A server that keeps refusing is believed in the end.
    let (text, _, requests) = fail(&[("OPENAI_MAX_TOKENS", "9")], |_, conn| {
        conn.refuse(400, "stream_options and max_completion_tokens are both unsupported");
    });
    assert!(text.starts_with("Request refused (HTTP 400)"), "{text}");
    assert_eq!(requests, 4);
}

#[test]
fn a_refusal_of_one_model_does_not_affect_the_others() {
    let endpoint = Endpoint::start(|request, conn| {
        let body = &request.body;
        let refusal = |param: &str, words: &str| {
            json!({"error": {"message": words, "param": param, "code": "unsupported_parameter"}}).to_string()
        };
        let refusal = match body["model"].as_str() {
            Some("thinks") if body.get("temperature").is_some() => {
                refusal("temperature", "'temperature' is not supported with this model.")
            }
            Some("thinks") if body.get("max_tokens").is_some() => {
                refusal("max_tokens", "Unsupported parameter: 'max_tokens'.")
            }
            Some("thinks") if body["messages"][0]["role"] == "system" => {
                refusal("messages[0].role", "'messages[0].role' does not support 'system' with this model.")
            }
            _ => return conn.say(&["ok"]),
        };
        conn.respond(400, &[], &refusal);
    });
    let mut client = Client::start(&[
        ("OPENAI_BASE_URL", &endpoint.url()),
        ("OPENAI_TEMPERATURE", "0.5"),
        ("OPENAI_MAX_TOKENS", "9"),
        ("OPENAI_SYSTEM_PROMPT", "be kind"),
    ]);
    let session = client.session();
    for model in ["thinks", "thinks", "plain"] {
        client.result("session/set_model", json!({"sessionId": session, "modelId": model}));
        assert_eq!(client.prompt(&session, "hi").text(), "ok");
    }
    let requests = endpoint.requests();
    assert_eq!(requests.len(), 6, "each is learned once, for one model");
    let first = |number: usize| requests[number].body["messages"][0].clone();
    for number in [3, 4] {
        let body = &requests[number].body;
        assert_eq!(body["model"], "thinks");
        assert!(body.get("temperature").is_none() && body.get("max_tokens").is_none(), "{body}");
        assert_eq!(first(number), json!({"role": "user", "content": "be kind\n\nhi"}));
        assert_eq!(body["stream_options"], json!({"include_usage": true}));
    }
    assert_eq!(requests[5].body["temperature"], 0.5);
    assert_eq!(requests[5].body["max_tokens"], 9);
    assert_eq!(first(5), json!({"role": "system", "content": "be kind"}));
}

#[test]
fn a_refusal_that_repeats_the_request_teaches_nothing() {
    let endpoint = Endpoint::start(|request, conn| match request.said().as_str() {
        "bad" => conn.respond(
            422,
            &[],
            &json!({"detail": [{"loc": ["body", "messages"], "msg": "Value error, not \
            supported", "type": "value_error", "input": request.body}]})
            .to_string(),
        ),
        "worse" => conn.refuse(400, &format!("Unsupported request: {}", request.body)),
        _ => conn.say(&["ok"]),
    });
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    for text in ["bad", "worse", "good"] {
        client.prompt(&session, text);
    }
    let requests = endpoint.requests();
    assert_eq!(requests.len(), 3, "none is sent again");
    assert!(requests.iter().all(|request| request.body.get("stream_options").is_some()));
}

#[test]
fn a_lesson_that_does_not_help_is_forgotten() {
    // It says that it does not accept stream_options, but also refuses the request without them.
    let endpoint = Endpoint::start(|request, conn| match request.said().as_str() {
        "good" => conn.say(&["ok"]),
        _ => conn.refuse(400, "stream_options is not supported"),
    });
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    client.prompt(&session, "bad");
    client.prompt(&session, "good");
    let sent: Vec<bool> =
        endpoint.requests().iter().map(|request| request.body.get("stream_options").is_some()).collect();
    assert_eq!(sent, [true, false, true]);
}

#[test]
fn extra_members_are_merged_into_each_request() {
    let endpoint = Endpoint::saying(&["ok"]);
    let mut client = Client::start(&[
        ("OPENAI_BASE_URL", &endpoint.url()),
        ("OPENAI_MAX_TOKENS", "9"),
        ("OPENAI_EXTRA_BODY", r#"{"top_p":0.5,"max_tokens":null,"metadata":{"a":1}}"#),
    ]);
    let session = client.session();
    client.prompt(&session, "hi");
    let bodies: Vec<Json> = endpoint.requests().into_iter().map(|request| request.body).collect();
    assert_eq!((&bodies[0]["top_p"], bodies[0].get("max_tokens")), (&json!(0.5), None));
    assert_eq!(bodies[0]["metadata"], json!({"a": 1}));
}

#[test]
fn a_connection_that_the_server_closed_after_an_answer_fails_no_prompt() {
    let endpoint = Endpoint::start(|request, conn| match request.number {
        1 | 4 => conn.cut(),
        _ => conn.say(&["ok"]),
    });
    let mut client = Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_MAX_RETRIES", "0")]);
    let session = client.session();
    // The second request meets a connection that is closed as it comes in.
    for _ in 0..2 {
        assert_eq!(client.prompt(&session, "hi").text(), "ok");
    }
    assert_eq!((endpoint.requests().len(), endpoint.connections()), (3, 2));
    // A new connection that is closed without an answer is still a failure.
    let endpoint = Endpoint::start(|_, conn| conn.cut());
    let mut client = Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_MAX_RETRIES", "0")]);
    let session = client.session();
    assert!(client.prompt(&session, "hi").text().starts_with("Network error"));
    assert_eq!(endpoint.requests().len(), 1);
}

#[test]
fn the_log_at_debug_shows_requests_and_never_contents() {
    let endpoint = Endpoint::start(|request, conn| match request.number {
        0 => conn.respond(503, &[NOW, ("x-request-id", "req-17"), ("content-type", "text/plain")], ""),
        _ => {
            let body = "data: {\"choices\":[{\"delta\":{\"content\":\"secret words\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
            conn.respond(200, &[("content-type", "text/event-stream"), ("cf-ray", "8f-FRA")], body);
        }
    });
    let mut client = Client::logging("debug", &[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_API_KEY", "sk-0000")]);
    let session = client.session();
    assert_eq!(client.prompt(&session, "secret words").text(), "secret words");
    let log = client.log();
    let url = endpoint.chat_url();
    for line in [
        format!("openai-agent: debug: POST {url}, "),
        " bytes: HTTP 503 after ".to_owned(),
        " ms, \"text/plain\", x-request-id req-17.".to_owned(),
        format!("openai-agent: info: Server error (HTTP 503) from {url}. Again in 1 ms."),
        " bytes: HTTP 200 after ".to_owned(),
        " ms, \"text/event-stream\", cf-ray 8f-FRA.".to_owned(),
    ] {
        assert!(log.contains(&line), "{line}\n{log}");
    }
    assert!(!log.contains("secret words") && !log.contains("sk-0000"), "{log}");
}

#[test]
fn an_empty_key_sends_no_authentication() {
    let endpoint = Endpoint::saying(&["ok"]);
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    client.prompt(&session, "hi");
    assert_eq!(endpoint.requests()[0].header("authorization"), None);
    assert_eq!(endpoint.requests()[0].header("api-key"), None);
}

#[test]
fn azure_gets_its_header_its_path_and_its_version() {
    let endpoint = Endpoint::start(|_, conn| {
        conn.begin();
        conn.event(&json!({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}));
        conn.event(&delta(json!({"content": "ok"})));
        conn.done();
    });
    let url = format!("http://{}/openai/deployments/gpt?tier=x", endpoint.address);
    let env = [
        ("OPENAI_BASE_URL", url.as_str()),
        ("OPENAI_API_KEY", "secret"),
        ("OPENAI_API_VERSION", "2024-10-21"),
        ("OPENAI_EXTRA_HEADERS", "X-Team: blue\nOpenAI-Organization: org-1"),
    ];
    let mut client = Client::start(&env);
    let session = client.session();
    assert_eq!(client.prompt(&session, "hi").text(), "ok");
    let request = &endpoint.requests()[0];
    assert_eq!(request.target, "/openai/deployments/gpt/chat/completions?tier=x&api-version=2024-10-21");
    assert_eq!((request.header("api-key"), request.header("authorization")), (Some("secret"), None));
    assert_eq!((request.header("x-team"), request.header("openai-organization")), (Some("blue"), Some("org-1")));
}
