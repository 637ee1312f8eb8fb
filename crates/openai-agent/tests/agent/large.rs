//! What large answers cost, and what happens to cut characters and connections.

use serde_json::json;

use super::client::Client;
use super::endpoint::{Conn, Endpoint, delta};

/// A value of /proc/PID/status, in KiB.
fn status_kib(pid: u32, name: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

/// The memory that an answer with this body costs the agent: the peak and the rest afterwards above the initial value,
/// in multiples of the body. The answer must begin with `said`.
fn cost(body: String, content_type: &'static str, said: &str) -> (f64, f64) {
    let length = body.len();
    let endpoint = Endpoint::start(move |request, conn: &mut Conn| match request.said().as_str() {
        "large" => conn.respond(200, &[("content-type", content_type)], &body),
        _ => conn.say(&["fine"]),
    });
    let mut client = Client::for_url(&endpoint.url());
    let (session, other) = (client.session(), client.session());
    client.prompt(&other, "warm up");
    let before = status_kib(client.pid(), "VmRSS");
    // 5: resets the peak (proc_pid_clear_refs(5)).
    std::fs::write(format!("/proc/{}/clear_refs", client.pid()), "5").unwrap();
    let answered = client.prompt(&session, "large");
    assert_eq!(answered.stop(), "end_turn");
    let text = answered.text();
    assert!(text.starts_with(said), "{} of {} bytes: {}", text.len(), said.len(), &text[..text.len().min(200)]);
    assert!(text.len() < said.len() + 2000, "{} bytes", text.len());
    client.result("session/close", json!({"sessionId": session}));
    client.prompt(&other, "and on");
    let times = |name| (status_kib(client.pid(), name).saturating_sub(before) << 10) as f64 / length as f64;
    (times("VmHWM"), times("VmRSS"))
}

fn costs_little(body: String, content_type: &'static str, said: &str) {
    let (peak, kept) = cost(body, content_type, said);
    assert!(peak <= 5.0 && kept <= 0.5, "at most {peak} times the body, and in the end {kept} times");
}

#[test]
fn an_answer_in_a_million_parts_costs_five_times_its_bytes_at_most_and_gives_them_back() {
    let count = 1 << 20;
    let parts = format!("\"a\"{}", ",\"a\"".repeat(count - 1));
    let body = format!("{{\"choices\":[{{\"message\":{{\"content\":[{parts}]}},\"finish_reason\":\"stop\"}}]}}");
    costs_little(body, "application/json", &"a".repeat(count));
}

#[test]
fn a_long_text_costs_five_times_its_bytes_at_most_and_gives_them_back() {
    let text = "0123456789abcdef".repeat(8 << 16);
    let event = delta(json!({"content": [{"type": "text", "text": text}]}));
    costs_little(format!("data: {event}\n\ndata: [DONE]\n\n"), "text/event-stream", &text);
}

#[test]
fn a_million_values_in_one_event_cost_five_times_their_bytes_at_most() {
    let chunks = vec!["{\"choices\":[]}"; 400_000].join(",");
    costs_little(
        format!("data: [{chunks}]\n\ndata: {}\n\ndata: [DONE]\n\n", delta(json!({"content": "x"}))),
        "text/event-stream",
        "x",
    );
}

#[test]
fn a_large_body_that_is_no_json_costs_five_times_its_bytes_at_most() {
    let numbers = "[1],".repeat(1 << 20);
    costs_little(format!("{{\"choices\":[{numbers}oops]}}"), "application/json", "Error from http");
    costs_little(format!("event: error\ndata: {{\"error\":[{numbers}1]}}\n\n"), "text/event-stream", "Error from http");
}

#[test]
fn a_connection_that_closes_at_any_byte_ends_the_turn_once_with_the_text_so_far() {
    const ANSWER: &str = "the whole\nanswer";
    let mut response =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for event in [
        delta(json!({"content": "the whole"})),
        delta(json!({"content": "\nanswer"})),
        json!({"choices": [{"finish_reason": "stop"}]}),
    ] {
        let event = format!("data: {event}\n\n");
        response.extend_from_slice(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes());
    }
    let (length, sent) = (response.len(), response);
    let endpoint = Endpoint::start(move |request, conn| {
        conn.raw(&sent[..request.said().parse().unwrap()]);
        conn.cut();
    });
    let mut client = Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("OPENAI_MAX_RETRIES", "0")]);
    let mut before = 0;
    for cut in 0..=length {
        let session = client.session();
        let answered = client.prompt(&session, &cut.to_string());
        assert_eq!(answered.stop(), "end_turn");
        let text = answered.text();
        let (said, words) = text.split_once("Network error").unwrap_or((&text, ""));
        let said = said.strip_suffix("\n\n").unwrap_or(said);
        assert!(ANSWER.starts_with(said) && said.len() >= before, "{text:?} at {cut}");
        assert!(!words.is_empty() || said == ANSWER, "{text:?} at {cut}");
        assert!(cut < length || words.is_empty(), "{text:?} though all came");
        before = said.len();
    }
}

#[test]
fn a_character_that_is_cut_into_two_events_arrives_whole() {
    let endpoint = Endpoint::start(|request, conn| {
        conn.begin();
        for half in ["a\\ud83c", "\\udf89b"] {
            for name in ["reasoning_content", "content"] {
                if request.said() == name {
                    conn.chunk(
                        format!("data: {{\"choices\":[{{\"delta\":{{\"{name}\":\"{half}\"}}}}]}}\n\n").as_bytes(),
                    );
                }
            }
        }
        conn.finish_reason("stop");
        conn.done();
    });
    let mut client = Client::for_url(&endpoint.url());
    let session = client.session();
    assert_eq!(client.prompt(&session, "reasoning_content").text_of("agent_thought_chunk"), "a\u{1f389}b");
    assert_eq!(client.prompt(&session, "content").text(), "a\u{1f389}b");
    client.prompt(&session, "and on");
    let messages = endpoint.requests().last().unwrap().body["messages"].clone();
    assert_eq!(messages[1]["content"], "a\u{1f389}b", "it is remembered whole, too");
}
