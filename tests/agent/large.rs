//! What large answers cost, and what becomes of characters that are cut.

use serde_json::json;

use super::client::Client;
use super::endpoint::{Conn, Endpoint, delta};

/// The number that a line of /proc/PID/status has, in KiB.
fn status_kib(pid: u32, name: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

/// What an answer of this body makes of the agent's memory: the peak and what is left of it beyond what it had before,
/// in multiples of the body.
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
    // 5: the peak begins anew (proc_pid_clear_refs(5)).
    std::fs::write(format!("/proc/{}/clear_refs", client.pid()), "5").unwrap();
    let answered = client.prompt(&session, "large");
    assert_eq!(answered.stop(), "end_turn");
    let text = answered.text();
    assert!(text == said, "{} of {} bytes", text.len(), said.len());
    client.result("session/close", json!({"sessionId": session}));
    client.prompt(&other, "and on");
    let times = |name| (status_kib(client.pid(), name).saturating_sub(before) << 10) as f64 / length as f64;
    (times("VmHWM"), times("VmRSS"))
}

#[test]
fn an_answer_in_a_million_parts_costs_five_times_its_bytes_at_most_and_gives_them_back() {
    let count = 2 << 20;
    let body = format!(
        "{{\"choices\":[{{\"message\":{{\"content\":[\"a\"{}]}},\"finish_reason\":\"stop\"}}]}}",
        ",\"a\"".repeat(count - 1)
    );
    let (peak, kept) = cost(body, "application/json", &"a".repeat(count));
    assert!(peak <= 5.0 && kept <= 0.5, "at most {peak} times the body, and in the end {kept} times");
}

#[test]
fn a_long_text_costs_five_times_its_bytes_at_most_and_gives_them_back() {
    let text = "0123456789abcdef".repeat(8 << 16);
    let body = format!("data: {}\n\ndata: [DONE]\n\n", delta(json!({"content": [{"type": "text", "text": text}]})));
    let (peak, kept) = cost(body, "text/event-stream", &text);
    assert!(peak <= 5.0 && kept <= 0.5, "at most {peak} times the body, and in the end {kept} times");
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
