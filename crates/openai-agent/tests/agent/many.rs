//! Many sessions in one process, and a reader that is slower than the models.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value as Json, json};

use super::client::{Client, PATIENCE, end_of, program, until};
use super::endpoint::{Endpoint, delta};
use super::transcript::Transcript;

/// An agent whose stdout is read only while the test waits for a line.
pub struct Unread {
    pub child: Child,
    pub stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    transcript: Transcript,
    said: Transcript,
}

impl Unread {
    pub fn start(endpoint: &Endpoint) -> Self {
        let mut command = program();
        command.env("OPENAI_BASE_URL", endpoint.url()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let (transcript, said) = Transcript::pair();
        Self { child, stdin, stdout, transcript, said }
    }

    pub fn send(&mut self, message: &Json) {
        let line = format!("{message}\n");
        self.transcript.keep(line.as_bytes());
        self.stdin.as_ref().unwrap().write_all(line.as_bytes()).unwrap();
    }

    pub fn line(&mut self) -> Json {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            if self.stdout.buffer().is_empty() {
                let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
                let ready = poll(&mut [PollFd::new(self.stdout.get_ref(), PollFlags::IN)], Some(&limit)).unwrap();
                assert_eq!(ready, 1, "no line within {PATIENCE:?}");
            }
            let piece = self.stdout.fill_buf().unwrap();
            assert!(!piece.is_empty(), "the agent has closed stdout");
            let length = memchr::memchr(b'\n', piece).map_or(piece.len(), |end| end + 1);
            line.extend_from_slice(&piece[..length]);
            self.stdout.consume(length);
        }
        self.said.keep(&line);
        serde_json::from_slice(&line).unwrap()
    }

    /// Creates a session and returns its name.
    pub fn session(&mut self, id: usize) -> String {
        let params = json!({"cwd": "/", "mcpServers": []});
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": "session/new", "params": params}));
        self.line()["result"]["sessionId"].as_str().unwrap().to_owned()
    }

    pub fn ask_prompt(&mut self, id: usize, session: &str) {
        let params = json!({"sessionId": session, "prompt": [{"type": "text", "text": "hi"}]});
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": params}));
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_thousand_sessions_stream_at_once_on_one_thread() {
    const SESSIONS: usize = 1000;
    // No stream continues before all have begun.
    let barrier = Arc::new(Barrier::new(SESSIONS));
    let endpoint = Endpoint::start(move |request, conn| {
        let name = request.said();
        conn.begin();
        conn.text(&name);
        barrier.wait();
        for index in 0..5 {
            conn.text(&format!(" {index}"));
        }
        conn.finish_reason("stop");
        conn.done();
    });
    // The agent copes with the few open files that a login shell allows at first.
    let mut command = std::process::Command::new("sh");
    command.arg("-c").arg("ulimit -S -n 256; exec \"$0\" acp").arg(env!("CARGO_BIN_EXE_openai-agent"));
    command.env("OPENAI_BASE_URL", endpoint.url()).env("OPENAI_LOG", "error");
    let mut client = Client::spawn(command);
    let sessions: Vec<String> = (0..SESSIONS).map(|_| client.session()).collect();
    let mut expected = HashMap::new();
    for (index, session) in sessions.iter().enumerate() {
        client.ask_prompt(session, &format!("s{index}"));
        expected.insert(session.clone(), format!("s{index} 0 1 2 3 4"));
    }
    let mut texts: HashMap<String, String> = HashMap::new();
    let mut answers = 0;
    let mut threads = 0;
    while answers < SESSIONS {
        let line = client.line();
        if line["method"] == "session/update" {
            let session = line["params"]["sessionId"].as_str().unwrap().to_owned();
            let text = line["params"]["update"]["content"]["text"].as_str().unwrap();
            texts.entry(session).or_default().push_str(text);
        } else {
            assert_eq!(line["result"]["stopReason"], "end_turn", "{line}");
            answers += 1;
        }
        if answers == 1 {
            threads = std::fs::read_dir(format!("/proc/{}/task", client.pid())).unwrap().count();
        }
    }
    assert_eq!(texts, expected);
    assert_eq!(threads, 1);
    let resident = resident_kib(client.pid());
    assert!(resident < 128 << 10, "{resident} KiB");
}

#[test]
#[ignore = "scripts/test slow"]
fn a_slow_reader_gets_everything_in_fewer_pieces_and_costs_little_memory() {
    const SESSIONS: usize = 20;
    const TOKENS: usize = 20_000;
    let endpoint = Endpoint::start(|_, conn| {
        conn.begin();
        for index in 0..TOKENS / 100 {
            let events: String = (0..100)
                .map(|more| format!("data: {}\n\n", delta(json!({"content": format!("{} ", index * 100 + more)}))))
                .collect();
            conn.chunk(events.as_bytes());
        }
        conn.finish_reason("stop");
        conn.done();
    });
    let mut agent = Unread::start(&endpoint);
    let mut texts: HashMap<String, (String, usize)> =
        (0..SESSIONS).map(|id| (agent.session(id), (String::new(), 0))).collect();
    for (id, session) in texts.keys().enumerate() {
        agent.ask_prompt(id, session);
    }
    // The test reads nothing until every stream has begun and the agent uses no more processor time: we block it.
    until("every session asks the model", || endpoint.requests().len() >= SESSIONS);
    let pid = agent.child.id();
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        (fields[0].to_owned(), fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap())
    };
    let mut still = 0;
    let mut before = ticks();
    let mut looked = Instant::now();
    until("the agent does nothing", || {
        if looked.elapsed() >= Duration::from_millis(10) {
            looked = Instant::now();
            let now = ticks();
            still = if now == before && now.0 == "S" { still + 1 } else { 0 };
            before = now;
        }
        still >= 20
    });
    let resident = resident_kib(pid);
    assert!(resident < 32 << 10, "{resident} KiB without a reader");
    let mut answers = 0;
    while answers < SESSIONS {
        let line = agent.line();
        if line["params"]["update"]["sessionUpdate"] == "session_info_update" {
            continue;
        }
        if line["method"] == "session/update" {
            let (text, pieces) = texts.get_mut(line["params"]["sessionId"].as_str().unwrap()).unwrap();
            text.push_str(line["params"]["update"]["content"]["text"].as_str().unwrap());
            *pieces += 1;
        } else {
            assert_eq!(line["result"]["stopReason"], "end_turn", "{line}");
            answers += 1;
        }
    }
    let expected: String = (0..TOKENS).map(|token| format!("{token} ")).collect();
    assert!(texts.values().all(|(text, _)| *text == expected));
    let pieces: usize = texts.values().map(|(_, pieces)| pieces).sum();
    assert!(pieces < SESSIONS * TOKENS, "pieces were joined");
    agent.stdin = None;
    end_of(&mut agent.child);
}
