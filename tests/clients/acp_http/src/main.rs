//! The official Rust client of ACP's Streamable HTTP, unmodified: `acp-http URL COUNT [KIB]`. COUNT of them at once, each
//! with two sessions on one connection, and one with a prompt of this length, 5 MiB unless given; the agent is
//! agent_http.py.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    CancelNotification, ContentBlock, InitializeRequest, NewSessionRequest, PromptRequest, RequestPermissionOutcome,
    RequestPermissionRequest, RequestPermissionResponse, SelectedPermissionOutcome, SessionNotification, SessionUpdate,
    StopReason, TextContent,
};
use agent_client_protocol::{Agent, Client, on_receive_notification, on_receive_request};
use agent_client_protocol_http::HttpClient;

/// What was said in which session.
type Heard = Arc<Mutex<Vec<(String, String)>>>;

async fn until(heard: &Heard, session: &str, text: &str) {
    for _ in 0..3000 {
        let is_there = heard.lock().unwrap().iter().any(|(at, said)| at == session && said == text);
        if is_there {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{session} has not said {} bytes", text.len());
}

async fn client(url: String, number: usize, long: usize) {
    let heard = Heard::default();
    let (hears, tells) = (heard.clone(), heard);
    Client
        .v1()
        .on_receive_notification(
            async move |said: SessionNotification, _connection| {
                if let SessionUpdate::AgentMessageChunk(chunk) = said.update
                    && let ContentBlock::Text(text) = chunk.content
                {
                    hears.lock().unwrap().push((said.session_id.to_string(), text.text));
                }
                Ok(())
            },
            on_receive_notification!(),
        )
        .on_receive_request(
            async move |asked: RequestPermissionRequest, responder, _connection| {
                let chosen = asked.options[0].option_id.clone();
                let outcome = RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(chosen));
                responder.respond(RequestPermissionResponse::new(outcome))
            },
            on_receive_request!(),
        )
        .connect_with(HttpClient::new(&url).unwrap(), |connection: ConnectionTo<Agent>| async move {
            connection.send_request(InitializeRequest::new(ProtocolVersion::V1)).block_task().await?;
            let mut sessions = Vec::new();
            for _ in 0..2 {
                let made = connection.send_request(NewSessionRequest::new("/")).block_task().await?;
                sessions.push(made.session_id);
            }
            let prompt = |session: usize, text: &str| {
                let text = vec![ContentBlock::Text(TextContent::new(text))];
                connection.send_request(PromptRequest::new(sessions[session].clone(), text)).block_task()
            };
            for turn in 0..5 {
                for session in 0..2 {
                    let text = format!("{number} {session} {turn}");
                    assert_eq!(prompt(session, &text).await?.stop_reason, StopReason::EndTurn);
                    until(&tells, &sessions[session].to_string(), &format!("heard {text}")).await;
                }
            }
            assert_eq!(prompt(1, "ask").await?.stop_reason, StopReason::EndTurn, "it was allowed");
            let waiting = prompt(0, "wait");
            until(&tells, &sessions[0].to_string(), "heard wait").await;
            connection.send_notification(CancelNotification::new(sessions[0].clone()))?;
            assert_eq!(waiting.await?.stop_reason, StopReason::Cancelled);
            if number == 0 {
                let long = "x".repeat(long);
                assert_eq!(prompt(0, &long).await?.stop_reason, StopReason::EndTurn);
                until(&tells, &sessions[0].to_string(), &format!("heard {long}")).await;
            }
            Ok(())
        })
        .await
        .unwrap_or_else(|error| panic!("client {number}: {error:?}"));
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().expect("a URL");
    let count: usize = arguments.next().and_then(|count| count.parse().ok()).expect("how many clients");
    let long = arguments.next().map_or(5 << 20, |kib| kib.parse::<usize>().expect("a length") << 10);
    let local = tokio::task::LocalSet::new();
    let all: Vec<_> = (0..count).map(|number| local.spawn_local(client(url.clone(), number, long))).collect();
    local
        .run_until(async {
            for one in all {
                one.await.expect("it got all that is its own");
            }
        })
        .await;
    println!("{count} clients");
}
