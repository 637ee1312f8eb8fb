//! A client: starts the agent, writes lines, reads lines. It waits for a line at most [`PATIENCE`].

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Once;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::transcript::Transcript;
use super::waiting::comes_true;

/// Time limit for anything that must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a condition that sends no event.
pub fn until(what: &str, condition: impl FnMut() -> bool) {
    assert!(comes_true(PATIENCE, condition), "in vain: {what}");
}

/// Waits for the end of an agent: its exit code.
pub fn end_of(agent: &mut Child) -> Option<i32> {
    until("the agent ends", || agent.try_wait().unwrap().is_some());
    agent.wait().unwrap().code()
}

/// The program under test.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_openai-agent"));
    for (name, _) in std::env::vars() {
        let name_lower = name.to_ascii_lowercase();
        if name.starts_with("OPENAI_") || name_lower.ends_with("_proxy") || name.starts_with("SSL_CERT_") {
            command.env_remove(name);
        }
    }
    // Errors that the tests provoke need no log lines.
    command.env("OPENAI_LOG", "error");
    command
}

static HEED_SIGNALS: Once = Once::new();

/// Tests run in the background (nohup, CI) inherit ignored signals. Handled ones are reset to their default in a new
/// program; and with nothing left to do between fork and exec, the memory of the tests is not copied for each agent.
fn heed_signals() {
    extern "C" fn handle(_: libc::c_int) {}
    for signal in [libc::SIGHUP, libc::SIGINT] {
        // SAFETY: zeroes are an action, the handler does nothing, and both actions live until the calls return.
        unsafe {
            let (mut before, mut action): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut before);
            if before.sa_sigaction == libc::SIG_IGN {
                action.sa_sigaction = handle as *const () as libc::sighandler_t;
                action.sa_flags = libc::SA_RESTART;
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            }
        }
    }
}

/// A running agent and the pipes to it.
pub struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Json>,
    log: Option<JoinHandle<String>>,
    next_id: u64,
    transcript: Transcript,
    /// The session titles received: session and title.
    pub titles: Vec<(String, String)>,
}

/// The result of a request.
#[derive(Debug)]
pub struct Answered {
    /// The `update` members received before the answer.
    pub updates: Vec<Json>,
    /// The whole answer.
    pub answer: Json,
}

impl Answered {
    /// The text of all chunks of a kind.
    pub fn text_of(&self, kind: &str) -> String {
        let chunks = self.updates.iter().filter(|update| update["sessionUpdate"] == kind);
        chunks.map(|update| update["content"]["text"].as_str().unwrap()).collect()
    }

    /// The text of the answer.
    pub fn text(&self) -> String {
        self.text_of("agent_message_chunk")
    }

    /// Why the turn ended.
    pub fn stop(&self) -> &str {
        self.answer["result"]["stopReason"].as_str().unwrap_or_else(|| panic!("no stop reason in {}", self.answer))
    }
}

impl Client {
    /// Starts the agent with these variables.
    pub fn start(env: &[(&str, &str)]) -> Self {
        let mut command = program();
        command.arg("acp").envs(env.iter().copied());
        Self::spawn(command)
    }

    /// Starts the agent with these variables and keeps what it logs for [`Client::log`].
    pub fn logging(level: &str, env: &[(&str, &str)]) -> Self {
        let mut command = program();
        command.arg("acp").env("OPENAI_LOG", level).envs(env.iter().copied()).stderr(Stdio::piped());
        Self::run(command)
    }

    /// Starts this command; its log is written to the tests' stderr.
    pub fn spawn(mut command: Command) -> Self {
        command.stderr(Stdio::inherit());
        Self::run(command)
    }

    /// Starts this command, and keeps its log if its stderr is a pipe.
    pub fn run(mut command: Command) -> Self {
        HEED_SIGNALS.call_once(heed_signals);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let log = child.stderr.take().map(|mut stderr| {
            std::thread::spawn(move || {
                let mut log = Vec::new();
                stderr.read_to_end(&mut log).unwrap();
                String::from_utf8(log).unwrap()
            })
        });
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        let (transcript, mut said) = Transcript::pair();
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while let Ok(1..) = stdout.read_until(b'\n', &mut line) {
                said.keep(&line);
                let json = serde_json::from_slice(&line)
                    .unwrap_or_else(|error| panic!("{error} in {:?}", String::from_utf8_lossy(&line)));
                if sender.send(json).is_err() {
                    return;
                }
                line.clear();
            }
        });
        let stdin = child.stdin.take();
        Self { child, stdin, lines, log, next_id: 0, transcript, titles: Vec::new() }
    }

    /// Starts the agent for an endpoint.
    pub fn for_url(url: &str) -> Self {
        Self::start(&[("OPENAI_BASE_URL", url)])
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes raw bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        self.transcript.keep(bytes);
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Sends a message.
    pub fn send(&mut self, message: &Json) {
        self.write(format!("{message}\n").as_bytes());
    }

    /// Sends a request and returns its id.
    pub fn ask(&mut self, method: &str, params: Json) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// Sends a notification.
    pub fn notify(&mut self, method: &str, params: Json) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// The next line that is not a session title; titles go to [`Self::titles`].
    pub fn line(&mut self) -> Json {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) if line["params"]["update"]["sessionUpdate"] == "session_info_update" => {
                let text = |value: &Json| value.as_str().unwrap().to_owned();
                let params = &line["params"];
                self.titles.push((text(&params["sessionId"]), text(&params["update"]["title"])));
                self.line()
            }
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("no line within {PATIENCE:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the agent has closed stdout"),
        }
    }

    /// Everything up to the answer to `id`.
    pub fn answer(&mut self, id: u64) -> Answered {
        let mut updates = Vec::new();
        loop {
            let line = self.line();
            if line["id"] == id && line.get("method").is_none() {
                return Answered { updates, answer: line };
            }
            assert_eq!(line["method"], "session/update", "{line}");
            updates.push(line["params"]["update"].clone());
        }
    }

    /// A request and its answer.
    pub fn call(&mut self, method: &str, params: Json) -> Answered {
        let id = self.ask(method, params);
        self.answer(id)
    }

    /// A request that must succeed, and its result.
    pub fn result(&mut self, method: &str, params: Json) -> Json {
        let answered = self.call(method, params);
        answered.answer.get("result").unwrap_or_else(|| panic!("{}", answered.answer)).clone()
    }

    /// A request that must fail, and its error.
    pub fn error(&mut self, method: &str, params: Json) -> Json {
        let answered = self.call(method, params);
        answered.answer.get("error").unwrap_or_else(|| panic!("{}", answered.answer)).clone()
    }

    /// A new session.
    pub fn session(&mut self) -> String {
        let result = self.result("session/new", json!({"cwd": "/work", "mcpServers": []}));
        result["sessionId"].as_str().unwrap().to_owned()
    }

    /// Sends a prompt.
    pub fn ask_prompt(&mut self, session: &str, text: &str) -> u64 {
        self.ask("session/prompt", json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]}))
    }

    /// A prompt and its result.
    pub fn prompt(&mut self, session: &str, text: &str) -> Answered {
        let id = self.ask_prompt(session, text);
        self.answer(id)
    }

    /// Closes stdin.
    pub fn close(&mut self) {
        self.stdin = None;
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill(2) with the id of a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Waits for the end of the process: its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        // Its stdout ends with it; the rest is drained here.
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.unread(line);
        }
        end_of(&mut self.child)
    }

    /// Ends the agent and returns its whole log.
    pub fn log(mut self) -> String {
        self.close();
        self.wait();
        self.log.take().expect("started by Client::logging").join().unwrap()
    }

    fn unread(&self, line: Json) {
        eprintln!("unread: {line}");
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
