//! Conversations that outgrow the model's context window.

use std::sync::Mutex;

use serde_json::{Value as Json, json};

use super::client::{Answered, Client};
use super::endpoint::{Conn, Endpoint, Request};

/// The message about turns that are no longer sent.
const TOLD: &str = "no longer fit";

/// The user messages of the last request, oldest first.
fn said(request: &Request) -> Vec<String> {
    let messages = request.body["messages"].as_array().unwrap();
    let users = messages.iter().filter(|message| message["role"] == "user");
    users.map(|message| message["content"].as_str().unwrap().chars().take(1).collect()).collect()
}

fn tokens(request: &Request) -> u64 {
    (request.body["messages"].to_string().len() / 2) as u64
}

/// Answers with the counts of a model that has a token for each two bytes.
fn answer(request: &Request, conn: &mut Conn) {
    conn.begin();
    conn.text("ok");
    conn.finish_reason("stop");
    let (asked, all) = (tokens(request), tokens(request) + 1);
    let usage = json!({"prompt_tokens": asked, "completion_tokens": 1, "total_tokens": all});
    conn.event(&json!({"choices": [], "usage": usage}));
    conn.done();
}

fn long(letter: char) -> String {
    letter.to_string().repeat(1000)
}

fn notice(answered: &Answered) -> Option<String> {
    let texts = answered.updates.iter().map(|update| update["content"]["text"].as_str().unwrap_or_default());
    texts.map(str::to_owned).find(|text| text.contains(TOLD))
}

#[test]
fn a_request_that_is_refused_for_its_length_is_sent_again_with_fewer_turns() {
    let endpoint = Endpoint::start(|request, conn| match tokens(request) {
        asked if asked > 1500 => conn.refuse(
            400,
            &format!(
                "This model's maximum context length is 1500 tokens. However, your messages resulted in {asked} tokens."
            ),
        ),
        _ => answer(request, conn),
    });
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    for letter in ['a', 'b'] {
        let answered = client.prompt(&session, &long(letter));
        assert_eq!((answered.text(), notice(&answered)), ("ok".to_owned(), None));
    }
    let answered = client.prompt(&session, &long('c'));
    assert_eq!(answered.stop(), "end_turn");
    let notice = notice(&answered).expect("the client is notified");
    assert!(notice.contains("(1500 tokens)"), "{notice}");
    assert_eq!(answered.text(), format!("{notice}ok"));
    let requests = endpoint.requests();
    assert_eq!(said(&requests[2]), ["a", "b", "c"]);
    assert!(said(&requests[3]).len() < 3, "{:?}", said(&requests[3]));
    assert_eq!(requests.len(), 4);
    // The message is not part of the conversation.
    assert!(client.prompt(&session, &long('d')).text().ends_with("ok"));
    let last = endpoint.requests().pop().unwrap();
    assert!(!last.body.to_string().contains(TOLD) && !said(&last).contains(&"a".to_owned()));
    assert!(said(&last).ends_with(&["d".to_owned()]));
}

#[test]
fn a_refusal_without_numbers_drops_half_of_the_conversation() {
    let refused = Mutex::new(false);
    let endpoint = Endpoint::start(move |request, conn| {
        let has_room = said(request).len() < 4 || std::mem::replace(&mut *refused.lock().unwrap(), true);
        match has_room {
            true => conn.say(&["ok"]),
            false => conn.refuse(400, "Input is too long for requested model."),
        }
    });
    let mut client = Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_MODEL", "unknown-model")]);
    let session = client.session();
    for letter in ['a', 'b', 'c', 'd'] {
        client.prompt(&session, &long(letter));
    }
    assert_eq!(said(&endpoint.requests()[3]), ["a", "b", "c", "d"]);
    assert_eq!(said(&endpoint.requests()[4]), ["c", "d"]);
}

#[test]
fn a_request_that_cannot_be_shortened_fails_in_the_endpoints_words() {
    let endpoint = Endpoint::start(|_, conn| conn.refuse(400, "prompt is too long: 3000 tokens > 2000 maximum"));
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    let answered = client.prompt(&session, "hi");
    assert!(answered.text().contains("3000 tokens > 2000 maximum"), "{}", answered.text());
    assert_eq!(endpoint.requests().len(), 1);
}

#[test]
fn the_window_is_the_configured_one_or_the_lists() {
    let endpoint = Endpoint::start(|request, conn| match request.target.ends_with("/models") {
        true => conn.respond(
            200,
            &[("content-type", "application/json")],
            r#"{"data":[{"id":"listed","max_model_len":4096},{"id":"unknown-model"}]}"#,
        ),
        false => answer(request, conn),
    });
    for (model, window_of_operator, window) in
        [("listed", "", 4096), ("listed", "2000", 2000), ("unknown-model", "", 128_000)]
    {
        let mut client = Client::start(&[
            ("OPENAI_BASE_URL", &endpoint.url()),
            ("OPENAI_MODEL", model),
            ("OPENAI_MODELS", "fetch"),
            ("OPENAI_CONTEXT_WINDOW", window_of_operator),
        ]);
        let session = client.session();
        let updates = client.prompt(&session, "hi").updates;
        let sizes: Vec<&Json> = updates.iter().filter_map(|update| update.get("size")).collect();
        assert_eq!(sizes, [&json!(window)], "{model}");
    }
}
