//! The official Rust client against an MCP listener: `rmcp-client JSON`, equivalent to client.mjs. It prints each
//! scenario and its result. It is not part of the workspace; `scripts/test mcp` builds it.
// Logging, sampling and roots of the newer era are deprecated there, but tested all the same.
#![allow(deprecated)]

use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientRequest, CreateMessageRequestParams, CreateMessageResult,
    ElicitRequestParams, ElicitResult, ElicitationAction, ErrorData, Implementation, ListRootsResult, LoggingLevel,
    LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken, ProtocolVersion, RequestMetaObject,
    ResourceUpdatedNotificationParam, Root, SamplingMessage, ServerResult, SetLevelRequestParams,
    SubscribeRequestParams, SubscriptionFilter, UnsubscribeRequestParams,
};
use rmcp::service::{NotificationContext, PeerRequestOptions, RequestContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt, RoleClient};
use serde_json::{Value, json};

type Failed = Box<dyn std::error::Error + Send + Sync>;
type Verdict = Result<Outcome, Failed>;

enum Outcome {
    Passed,
    LeftOut,
}

struct Asked {
    is_modern: bool,
    is_shared: bool,
    url: String,
    cut: String,
    /// A folder: only asks for a restart of the daemon there, between two calls.
    restart: Option<PathBuf>,
}

impl Asked {
    /// Without a session, each request has a process of its own in a dedicated pool: other processes do not report its
    /// changes.
    fn meets(&self) -> bool {
        !self.is_modern || self.is_shared
    }

    fn hears_all(&self) -> bool {
        self.is_modern || !self.is_shared
    }
}

/// What a client has received.
#[derive(Clone, Default)]
struct Ears {
    name: String,
    heard: Arc<Mutex<Heard>>,
}

#[derive(Default)]
struct Heard {
    progress: Vec<(ProgressToken, f64)>,
    logged: Vec<Value>,
    changed: usize,
    updated: Vec<String>,
}

impl Ears {
    fn with<T>(&self, look: impl FnOnce(&mut Heard) -> T) -> T {
        look(&mut self.heard.lock().expect("nobody panics with it"))
    }
}

impl ClientHandler for Ears {
    fn get_info(&self) -> rmcp::model::ClientConfig {
        let capabilities: ClientCapabilities =
            serde_json::from_value(json!({ "sampling": {}, "elicitation": {}, "roots": {} })).expect("they are");
        rmcp::model::ClientConfig::new(capabilities, Implementation::new(self.name.clone(), "1"))
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let asked = serde_json::to_value(&params.messages[0].content).unwrap_or_default();
        let text = asked["text"].as_str().or(asked[0]["text"].as_str()).unwrap_or_default();
        let said = SamplingMessage::assistant_text(format!("{} sampled {text}", self.name));
        Ok(CreateMessageResult::new(said, "none".to_owned()))
    }

    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let email = format!("{}@example.com", self.name);
        Ok(ElicitResult::new(ElicitationAction::Accept)
            .with_content(json!({ "username": self.name, "email": email, "ok": true })))
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        Ok(ListRootsResult::new(vec![Root::new(format!("file:///home/{}", self.name))]))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.with(|heard| heard.progress.push((params.progress_token, params.progress)));
    }

    async fn on_logging_message(&self, params: LoggingMessageNotificationParam, _: NotificationContext<RoleClient>) {
        self.with(|heard| heard.logged.push(params.data));
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.with(|heard| heard.changed += 1);
    }

    async fn on_resource_updated(&self, params: ResourceUpdatedNotificationParam, _: NotificationContext<RoleClient>) {
        self.with(|heard| heard.updated.push(params.uri));
    }
}

struct Guest {
    ears: Ears,
    client: RunningService<RoleClient, Ears>,
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T, Failed> {
    let limit = Duration::from_secs(45);
    tokio::time::timeout(limit, future).await.map_err(|_| format!("hung for {limit:?}: {what}").into())
}

async fn until(what: &str, condition: impl Fn() -> bool) -> Result<(), Failed> {
    let end = Instant::now() + Duration::from_secs(30);
    while !condition() {
        if Instant::now() > end {
            return Err(format!("it never came to that: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

fn check(is_so: bool, what: impl Into<String>) -> Result<(), Failed> {
    if is_so { Ok(()) } else { Err(what.into().into()) }
}

impl Guest {
    async fn of(name: &str, url: &str, is_modern: bool) -> Result<Self, Failed> {
        let ears = Ears { name: name.to_owned(), ..Ears::default() };
        let transport = StreamableHttpClientTransport::from_uri(url.to_owned());
        let lifecycle = match is_modern {
            true => ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] },
            false => ClientLifecycleMode::Initialize,
        };
        let client = within("a handshake", ears.clone().serve_with_lifecycle(transport, lifecycle)).await??;
        Ok(Self { ears, client })
    }

    fn request(name: &str, arguments: Value) -> CallToolRequestParams {
        let arguments = arguments.as_object().cloned().unwrap_or_default();
        CallToolRequestParams::new(name.to_owned()).with_arguments(arguments)
    }

    async fn call(&self, name: &str, arguments: Value) -> Result<String, Failed> {
        let what = format!("the answer to {name}");
        let result = within(&what, self.client.call_tool(Self::request(name, arguments))).await??;
        text_of(&serde_json::to_value(result)?)
    }

    /// A slow call, and whether all its steps were reported.
    async fn slow(&self, name: &str, time: u64, steps: u32) -> Result<(), Failed> {
        let request = Self::request("slow", json!({ "name": name, "time": time, "steps": steps }));
        let request = ClientRequest::CallToolRequest(rmcp::model::Request::new(request));
        let handle = self.client.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
        let token = handle.progress_token.clone();
        let what = format!("the answer to {name}");
        let result = match within(&what, handle.await_response()).await?? {
            ServerResult::CallToolResult(result) => serde_json::to_value(result)?,
            other => return Err(format!("{other:?} is no answer to a call").into()),
        };
        let told = text_of(&result)?;
        check(told == format!("{name} is done"), format!("{told} instead of {name}"))?;
        let wanted: Vec<u32> = (1..=steps).collect();
        let mine = || {
            let steps = |heard: &mut Heard| {
                heard.progress.iter().filter(|(at, _)| *at == token).map(|(_, step)| *step as u32).collect::<Vec<_>>()
            };
            self.ears.with(steps)
        };
        // The last one may be reported a moment after the answer.
        until(&format!("all progress of {name}"), || mine() == wanted).await
    }

    async fn end(self) -> Result<(), Failed> {
        within("the end of a client", self.client.cancel()).await??;
        Ok(())
    }
}

fn text_of(result: &Value) -> Result<String, Failed> {
    Ok(result["content"][0]["text"].as_str().ok_or_else(|| format!("no text in {result}"))?.to_owned())
}

/// The file in which a slow call records its outcome.
fn fate(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("stdio-bus-rmcp-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

async fn is_cancelled(fate: &PathBuf) -> Result<(), Failed> {
    let said = || std::fs::read_to_string(fate).unwrap_or_default();
    let verdict = until("the server is notified of the cancellation", || said() == "cancelled\n").await;
    let _ = std::fs::remove_file(fate);
    verdict
}

async fn tools(guest: &Guest, _: &Asked) -> Verdict {
    let tools = within("the list of tools", guest.client.list_all_tools()).await??;
    check(tools.iter().any(|tool| tool.name == "echo"), "there is no echo")?;
    for text in ["zwölf ☃ 𝄞".to_owned(), "x".repeat(500_000)] {
        check(guest.call("echo", json!({ "text": text })).await? == text, "an echo is another")?;
    }
    check(within("prompts", guest.client.list_all_prompts()).await??.len() > 3, "there are too few prompts")?;
    Ok(Outcome::Passed)
}

async fn progress(guest: &Guest, _: &Asked) -> Verdict {
    guest.slow("a slow call", 200, 4).await?;
    Ok(Outcome::Passed)
}

async fn cancel(guest: &Guest, _: &Asked) -> Verdict {
    let fate = fate("cancel");
    let arguments = json!({ "name": "cancelled", "time": 30_000, "steps": 300, "fate": fate });
    let request = ClientRequest::CallToolRequest(rmcp::model::Request::new(Guest::request("slow", arguments)));
    let handle = guest.client.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
    let token = handle.progress_token.clone();
    let begun = || guest.ears.with(|heard| heard.progress.iter().filter(|(at, _)| *at == token).count() > 1);
    until("progress", begun).await?;
    handle.cancel(None).await?;
    is_cancelled(&fate).await?;
    check(guest.call("echo", json!({ "text": "after it" })).await? == "after it", "an echo is another")?;
    Ok(Outcome::Passed)
}

async fn list_changed(guest: &Guest, asked: &Asked) -> Verdict {
    for turn in 0..2 {
        if asked.is_modern {
            let mut filter = SubscriptionFilter::new();
            filter.tools_list_changed = Some(true);
            let mut listening = within("a subscription", guest.client.listen(filter)).await??;
            if asked.meets() {
                guest.call("test_trigger_tool_change", json!({})).await?;
                let told = within("the notification of a changed list", listening.next()).await??;
                check(told.is_some(), "the subscription has ended")?;
            }
            // Again after a cancellation.
            listening.cancel().await?;
        } else {
            guest.call("test_trigger_tool_change", json!({})).await?;
            until("the notification of a changed list", || guest.ears.with(|heard| heard.changed > turn)).await?;
        }
    }
    Ok(Outcome::Passed)
}

async fn resource_updates(guest: &Guest, asked: &Asked) -> Verdict {
    if !asked.hears_all() || !asked.meets() {
        return Ok(Outcome::LeftOut);
    }
    let (uri, other) = ("test://watched-resource", "test://static-text");
    if asked.is_modern {
        let mut filter = SubscriptionFilter::new();
        filter.resource_subscriptions = Some(vec![uri.to_owned()]);
        let mut listening = within("a subscription", guest.client.listen(filter)).await??;
        guest.call("touch", json!({ "uri": other })).await?;
        guest.call("touch", json!({ "uri": uri })).await?;
        let told = within("the notification of an updated resource", listening.next()).await??;
        let told = serde_json::to_value(told)?;
        check(told["params"]["uri"] == uri, format!("{told} instead of {uri}"))?;
        listening.cancel().await?;
    } else {
        within("an answer", guest.client.subscribe(SubscribeRequestParams::new(uri))).await??;
        guest.call("touch", json!({ "uri": uri })).await?;
        until("the notification of an updated resource", || guest.ears.with(|heard| heard.updated == [uri])).await?;
        within("an answer", guest.client.unsubscribe(UnsubscribeRequestParams::new(uri))).await??;
    }
    Ok(Outcome::Passed)
}

/// What a tool asks the client for, and the result.
async fn asks(guest: &Guest, asked: &Asked, tool: &str, arguments: Value, wanted: &str) -> Verdict {
    if !asked.hears_all() {
        return Ok(Outcome::LeftOut);
    }
    let told = guest.call(tool, arguments).await?;
    check(told.contains(wanted), format!("{told} without {wanted}"))?;
    Ok(Outcome::Passed)
}

async fn logging(guest: &Guest, asked: &Asked) -> Verdict {
    if asked.is_shared {
        return Ok(Outcome::LeftOut);
    }
    let mut request = Guest::request("test_tool_with_logging", json!({}));
    if asked.is_modern {
        let meta = json!({ "io.modelcontextprotocol/logLevel": "info" });
        request.meta = Some(serde_json::from_value::<RequestMetaObject>(meta)?);
    } else {
        within("an answer", guest.client.set_level(SetLevelRequestParams::new(LoggingLevel::Info))).await??;
    }
    within("the answer to a tool that logs", guest.client.call_tool(request)).await??;
    until("three messages of the log", || guest.ears.with(|heard| heard.logged.len() == 3)).await?;
    Ok(Outcome::Passed)
}

async fn reconnect(_: &Guest, asked: &Asked) -> Verdict {
    let guest = Guest::of("cut-off", &asked.cut, asked.is_modern).await?;
    if asked.is_modern {
        let fate = fate("cut");
        let arguments = json!({ "name": "cut", "time": 20_000, "steps": 100, "fate": fate });
        check(guest.call("slow", arguments).await.is_err(), "a call whose connection was cut has an answer")?;
        is_cancelled(&fate).await?;
    } else {
        guest.slow("cut", 1500, 5).await?;
    }
    check(guest.call("echo", json!({ "text": "after it" })).await? == "after it", "an echo is another")?;
    guest.end().await?;
    Ok(Outcome::Passed)
}

async fn restart(guest: &Guest, asked: &Asked) -> Verdict {
    let folder = asked.restart.as_ref().ok_or("no folder")?;
    check(guest.call("echo", json!({ "text": "before it" })).await? == "before it", "an echo is another")?;
    std::fs::write(folder.join("asks"), "")?;
    until("the daemon runs again", || folder.join("done").exists()).await?;
    check(guest.call("echo", json!({ "text": "after it" })).await? == "after it", "an echo is another")?;
    Ok(Outcome::Passed)
}

async fn many(asked: &Asked, count: u32) -> Verdict {
    let mut tasks = tokio::task::JoinSet::new();
    for at in 0..count {
        let (url, is_modern, hears_all) = (asked.url.clone(), asked.is_modern, asked.hears_all());
        tasks.spawn(async move {
            let guest = Guest::of(&format!("guest {at} of {count}"), &url, is_modern).await?;
            for turn in 0..3 {
                let text = format!("guest {at}, turn {turn}");
                let echo =
                    async { check(guest.call("echo", json!({ "text": text })).await? == text, "an echo is another") };
                let (echoed, slow) = tokio::join!(echo, guest.slow(&text, 100, 2 + at % 5));
                echoed.and(slow)?;
            }
            if hears_all {
                let told = guest.call("test_sampling", json!({ "prompt": "x" })).await?;
                check(told == format!("LLM response: {} sampled x", guest.ears.name), told)?;
            }
            guest.end().await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(Outcome::Passed)
}

async fn scenario(name: &str, guest: &Guest, asked: &Asked) -> Verdict {
    match name {
        "tools" => tools(guest, asked).await,
        "progress" => progress(guest, asked).await,
        "cancel" => cancel(guest, asked).await,
        "list_changed" => list_changed(guest, asked).await,
        "resource_updates" => resource_updates(guest, asked).await,
        "sampling" => {
            asks(guest, asked, "test_sampling", json!({ "prompt": "a question" }), "guest sampled a question").await
        }
        "elicitation" => {
            asks(guest, asked, "test_elicitation", json!({ "message": "who?" }), "guest@example.com").await
        }
        "roots" => asks(guest, asked, "test_input_required_result_list_roots", json!({}), "file:///home/guest").await,
        "logging" => logging(guest, asked).await,
        "reconnect" => reconnect(guest, asked).await,
        "restart" => restart(guest, asked).await,
        "two_at_once" => many(asked, 2).await,
        _ => many(asked, 16).await,
    }
}

const SCENARIOS: [&str; 12] = [
    "tools",
    "progress",
    "cancel",
    "list_changed",
    "resource_updates",
    "sampling",
    "elicitation",
    "roots",
    "logging",
    "reconnect",
    "two_at_once",
    "sixteen_at_once",
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let asked: Value = serde_json::from_str(&std::env::args().nth(1).ok_or("rmcp-client JSON")?)?;
    let text = |key: &str| asked[key].as_str().unwrap_or_default().to_owned();
    let asked = Asked {
        is_modern: text("era") == "modern",
        is_shared: text("pool") == "shared",
        url: text("url"),
        cut: text("cut"),
        restart: asked["restart"].as_str().map(PathBuf::from),
    };
    let guest = Guest::of("guest", &asked.url, asked.is_modern).await?;
    let mut failed = 0;
    let wanted = if asked.restart.is_some() { vec!["restart"] } else { SCENARIOS.to_vec() };
    for name in wanted {
        println!("begin {name}");
        let begun = Instant::now();
        match scenario(name, &guest, &asked).await {
            Ok(Outcome::Passed) => println!("ok {name} {}", begun.elapsed().as_millis()),
            Ok(Outcome::LeftOut) => println!("skip {name}"),
            Err(error) => {
                failed += 1;
                println!("not ok {name}: {error}");
            }
        }
    }
    guest.end().await?;
    std::process::exit(i32::from(failed > 0));
}
