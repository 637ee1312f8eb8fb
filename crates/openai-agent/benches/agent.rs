//! What openai-agent costs: latency added to a token, tokens a second, memory, size of the binary.
//!
//! `cargo bench -p openai-agent` starts the release binary against an endpoint in this process, prints one line per
//! figure and fails if one is missed. `AGENT_BENCH_STRICT=0` only prints. The latency is the whole way from before the
//! endpoint's write to after the client's read: two hops through the kernel and three thread wake-ups.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// A token as OpenAI sends it, in an HTTP chunk of its own.
fn token(text: &str) -> Vec<u8> {
    let event = format!(
        "data: {{\"id\":\"chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG\",\"object\":\"chat.completion.chunk\",\
         \"created\":1741570283,\"model\":\"gpt-4o-2024-08-06\",\"service_tier\":\"default\",\
         \"system_fingerprint\":\"fp_fc9f1d7035\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\
         \"logprobs\":null,\"finish_reason\":null}}]}}\n\n"
    );
    format!("{:x}\r\n{event}\r\n", event.len()).into_bytes()
}

const DONE: &[u8] = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

/// Serves every request with `stream`, one thread per connection.
fn endpoint(stream: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let stream = Arc::new(stream);
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let stream = stream.clone();
            let serve = move || {
                let mut connection = connection;
                connection.set_nodelay(true).expect("TCP_NODELAY");
                let mut reader = BufReader::new(connection.try_clone().expect("a second handle"));
                loop {
                    let (mut length, mut line) = (0, String::new());
                    while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
                        if let Some(value) = line.strip_prefix("content-length:") {
                            length = value.trim().parse().expect("a length");
                        }
                        line.clear();
                    }
                    if length == 0 || reader.read_exact(&mut vec![0; length]).is_err() {
                        return;
                    }
                    stream(&mut connection);
                }
            };
            std::thread::Builder::new().stack_size(128 << 10).spawn(serve).expect("a thread");
        }
    });
    format!("http://{address}/v1")
}

struct Agent {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Agent {
    fn start(url: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_openai-agent"))
            .env("OPENAI_BASE_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the agent");
        let (stdin, stdout) = (child.stdin.take().expect("stdin"), child.stdout.take().expect("stdout"));
        let mut agent = Self { child, stdin, stdout: BufReader::with_capacity(1 << 20, stdout) };
        agent.send("initialize", json!({"protocolVersion": 1}));
        agent.line();
        agent
    }

    fn send(&mut self, method: &str, params: Json) {
        writeln!(self.stdin, "{}", json!({"jsonrpc": "2.0", "id": 0, "method": method, "params": params}))
            .expect("a write");
    }

    /// The next line that is not about a session's title.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            self.stdout.read_line(&mut line).expect("a line");
            if !line.contains("session_info_update") {
                return line;
            }
        }
    }

    fn session(&mut self) -> String {
        self.send("session/new", json!({"cwd": "/", "mcpServers": []}));
        let answer: Json = serde_json::from_str(&self.line()).expect("JSON");
        answer["result"]["sessionId"].as_str().expect("a session").to_owned()
    }

    fn prompt(&mut self, session: &str) {
        self.send("session/prompt", json!({"sessionId": session, "prompt": [{"type": "text", "text": "hi"}]}));
    }

    fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
    }

    fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", self.child.id())).expect("schedstat");
        Duration::from_nanos(stat.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints a figure and whether it meets its limit.
struct Figures {
    missed: usize,
}

impl Figures {
    fn at_most(&mut self, name: &str, value: f64, limit: f64, unit: &str) {
        self.report(name, value, limit, unit, value <= limit, "at most");
    }

    fn at_least(&mut self, name: &str, value: f64, limit: f64, unit: &str) {
        self.report(name, value, limit, unit, value >= limit, "at least");
    }

    fn report(&mut self, name: &str, value: f64, limit: f64, unit: &str, is_reached: bool, word: &str) {
        let verdict = if is_reached { "ok" } else { "MISSED" };
        self.missed += usize::from(!is_reached);
        println!("{name:<58} {value:>12.1} {unit:<9} ({word} {limit}) {verdict}");
    }
}

/// Median and 99th percentile, in microseconds, of a token's latency at `rate` tokens a second.
fn latency(rate: u64, tokens: usize) -> (f64, f64) {
    let began = Instant::now();
    let sent: Arc<Vec<AtomicU64>> = Arc::new((0..tokens).map(|_| AtomicU64::new(0)).collect());
    let stamps = sent.clone();
    let url = endpoint(move |connection| {
        let _ = connection.write_all(HEAD);
        let start = Instant::now();
        for (index, stamp) in stamps.iter().enumerate() {
            let due = start + Duration::from_nanos(1_000_000_000 / rate * index as u64);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let bytes = token(&format!("#{index} "));
            stamp.store(began.elapsed().as_nanos() as u64, Ordering::Release);
            let _ = connection.write_all(&bytes);
        }
        let _ = connection.write_all(DONE);
    });
    let mut agent = Agent::start(&url);
    let session = agent.session();
    agent.prompt(&session);
    let mut took = Vec::with_capacity(tokens);
    loop {
        let line = agent.line();
        let now = began.elapsed().as_nanos() as u64;
        let Some((_, rest)) = line.split_once("\"text\":\"#") else { break };
        let index: usize = rest.split(' ').next().and_then(|number| number.parse().ok()).expect("a number");
        took.push(now - sent[index].load(Ordering::Acquire));
    }
    assert_eq!(took.len(), tokens, "every token came by itself");
    took.sort_unstable();
    (took[tokens / 2] as f64 / 1000.0, took[tokens * 99 / 100] as f64 / 1000.0)
}

/// Tokens a second of the agent's processor time, and of the clock, with `streams` streams of `tokens` tokens that the
/// endpoint writes `batch` at a time.
fn throughput(streams: usize, tokens: usize, batch: usize) -> (f64, f64) {
    let bytes: Vec<u8> = std::iter::repeat_n(token("hello "), batch).flatten().collect();
    let url = endpoint(move |connection| {
        let _ = connection.write_all(HEAD);
        // Not one of the counted tokens, so that these do not repeat the beginning of the answer.
        let _ = connection.write_all(&token("Well, "));
        for _ in 0..tokens / batch {
            if connection.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = connection.write_all(DONE);
    });
    let mut agent = Agent::start(&url);
    let sessions: Vec<String> = (0..streams).map(|_| agent.session()).collect();
    let (before, began) = (agent.processor_time(), Instant::now());
    for session in &sessions {
        agent.prompt(session);
    }
    let (mut buffer, mut text, mut answers) = (vec![0; 1 << 20], 0, 0);
    let mut tail = Vec::new();
    while answers < streams {
        let count = agent.stdout.read(&mut buffer).expect("lines");
        tail.extend_from_slice(&buffer[..count]);
        // Only whole lines are examined; the rest waits for the end of its line.
        let Some(end) = memchr::memrchr(b'\n', &tail) else { continue };
        text += memchr::memmem::find_iter(&tail[..end], b"hello ").count();
        answers += memchr::memmem::find_iter(&tail[..end], b"\"stopReason\"").count();
        tail.drain(..=end);
    }
    let (wall, processor) = (began.elapsed(), agent.processor_time() - before);
    assert_eq!(text, streams * tokens, "every token arrived");
    ((streams * tokens) as f64 / processor.as_secs_f64(), (streams * tokens) as f64 / wall.as_secs_f64())
}

/// Resident KiB at the start, KiB per open session, KiB per streaming session.
fn memory() -> (f64, f64, f64) {
    const SESSIONS: usize = 1000;
    let all = Arc::new(std::sync::Barrier::new(SESSIONS + 1));
    let barrier = all.clone();
    let url = endpoint(move |connection| {
        let _ = connection.write_all(HEAD);
        let _ = connection.write_all(&token("hello "));
        barrier.wait();
        barrier.wait();
        let _ = connection.write_all(DONE);
    });
    let mut agent = Agent::start(&url);
    let start = agent.resident_kib();
    let sessions: Vec<String> = (0..SESSIONS).map(|_| agent.session()).collect();
    let open = agent.resident_kib();
    for session in &sessions {
        agent.prompt(session);
    }
    for _ in &sessions {
        agent.line();
    }
    all.wait();
    let streaming = agent.resident_kib();
    all.wait();
    for _ in &sessions {
        agent.line();
    }
    let each = |more: u64| more.saturating_sub(start) as f64 / SESSIONS as f64;
    (start as f64 / 1024.0, each(open), each(streaming))
}

/// MiB of the binary without its symbols; nothing if there is no `strip`.
fn stripped_size() -> Option<f64> {
    let copy = std::env::temp_dir().join(format!("openai-agent-{}", std::process::id()));
    let stripped = Command::new("strip").arg("-o").arg(&copy).arg(env!("CARGO_BIN_EXE_openai-agent")).status();
    let size = std::fs::metadata(&copy).ok().map(|metadata| metadata.len() as f64 / f64::from(1 << 20));
    let _ = std::fs::remove_file(&copy);
    stripped.is_ok_and(|status| status.success()).then_some(size).flatten()
}

fn main() {
    let mut figures = Figures { missed: 0 };
    let (median, worst) = latency(1000, 5000);
    figures.at_most("latency of a token at 1,000 tokens/s, median", median, 100.0, "µs");
    figures.at_most("latency of a token at 1,000 tokens/s, 99th percentile", worst, 1000.0, "µs");
    for (streams, tokens, batch) in [(1, 1_000_000, 50), (100, 10_000, 50), (1000, 1_000, 20), (100, 5_000, 1)] {
        let (processor, wall) = throughput(streams, tokens, batch);
        let name = format!("tokens a processor second, {streams} streams, {batch} a write");
        // One token per write is the mock's limit as much as the agent's: it is printed, not required.
        let limit = if batch == 1 { 0.0 } else { 200_000.0 };
        figures.at_least(&name, processor, limit, "tokens/s");
        figures.at_least("  by the clock", wall, 0.0, "tokens/s");
    }
    let (start, open, streaming) = memory();
    figures.at_most("resident at the start", start, 12.0, "MiB");
    figures.at_most("a session with an empty history", open, 64.0, "KiB");
    figures.at_most("a session that is streaming, its connection included", streaming, 64.0, "KiB");
    if let Some(size) = stripped_size() {
        figures.at_most("the binary, stripped", size, 8.0, "MiB");
    }
    if figures.missed > 0 && std::env::var("AGENT_BENCH_STRICT").as_deref() != Ok("0") {
        std::process::exit(1);
    }
}
