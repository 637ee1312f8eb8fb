//! `stdio_bus call`: sends one request to a running daemon as a client would, or the lines of stdin; for operators and
//! scripts. Each received message is a line on stdout; the command's own messages go to stderr.
//!
//! The connection is the bridge's (`link.rs`), and so are its errors. Requests from the other side cannot be answered
//! by a one-shot command: they are shown, and answered with an error, so that the sender does not wait. In line mode
//! the user can answer them until stdin ends.

use std::borrow::Cow;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use memchr::memchr;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::spawn_local as spawn;
use tokio::time::{Instant, timeout, timeout_at};

use super::byte_order_mark::Mark;
use super::daemon::{Daemon, Options};
use super::failure::{Ending, Failure};
use super::guard::Guard;
use super::limits::{BLOCK, CONNECT_LIMIT, LAST_WORDS_LIMIT, say};
use super::link::{self, LinkSource, Sink};
use super::pending::Waiting;
use super::run;
use super::stream::{Backend, Stream};
use crate::bus::eras::protocol::{LEGACY, METHOD_NOT_FOUND, MODERN, UNSUPPORTED_VERSION};
use crate::bus::id::Id;
use crate::error::{StartError, exit};
use crate::printable;

/// Whether a server that answers `initialize` with this error code has requests without a handshake.
fn has_no_initialize(code: i64) -> bool {
    [METHOD_NOT_FOUND, UNSUPPORTED_VERSION].map(i64::from).contains(&code)
}

/// A call: the request and the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The daemon's address and credentials.
    pub options: Options,
    /// Do this handshake first.
    pub handshake: Option<Handshake>,
    /// How long to wait for an answer.
    pub limit: Duration,
    /// The method; none sends the lines of stdin.
    pub method: Option<String>,
    /// Its params as JSON; `-` is stdin.
    pub params: Option<String>,
}

impl Call {
    fn say_too_late(&self, what: &str) {
        say(&format!(
            "{what} from {} within {} s\nthe worker may need longer (--timeout SEC), or not know what it is to answer: \
             what it says of that is in the daemon's log",
            self.options.daemon,
            self.limit.as_secs()
        ));
    }
}

/// A protocol that begins with `initialize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// The Agent Client Protocol.
    Acp,
    /// The Model Context Protocol.
    Mcp,
}

/// Runs the call, prints what is received, and returns the exit code.
///
/// # Errors
/// The request is invalid; stdin or stdout cannot be used.
pub fn call(call: &Call) -> Result<u8, StartError> {
    let request = call.method.as_deref().map(|method| Ok((method, params(method, call.params.as_deref())?)));
    let request = request.transpose().map_err(StartError::Usage)?;
    run::run(async |backend| talk(call, request, backend).await)?
}

/// The params of a request on one line, if there are any.
fn params(method: &str, said: Option<&str>) -> Result<Option<String>, String> {
    if method.trim_start().starts_with(['{', '[']) {
        return Err(
            "METHOD is only the name of a method; to send whole lines, leave it out and write them to stdin".into()
        );
    }
    match said {
        Some("-") => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map_err(|error| format!("cannot read PARAMS from stdin: {error}"))?;
            one_line(&text, "what stdin says").map(Some)
        }
        Some(text) => one_line(text, "PARAMS").map(Some),
        None => Ok(None),
    }
}

/// JSON params on one line.
fn one_line(text: &str, name: &str) -> Result<String, String> {
    let read: Result<&RawValue, _> = serde_json::from_str(text);
    let value = read.map_err(|error| format!("{name} is no JSON: {}", whereabouts(text, &error)))?;
    if !value.get().starts_with(['{', '[']) {
        return Err(format!(
            "{name} must be an object or an array, and is {}; write {{\"name\": value}}, quoted for the shell: \
             '{{\"a\": 1}}'",
            value.get()
        ));
    }
    // Line ends only occur between tokens.
    Ok(value.get().replace(['\n', '\r'], " "))
}

/// Marks the position of a syntax error: the line, and a caret below it.
fn whereabouts(text: &str, error: &serde_json::Error) -> String {
    const SHOWN: usize = 60;
    let line = text.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
    let before = line.char_indices().take_while(|(at, _)| *at + 1 < error.column().max(1)).count();
    let first = before.saturating_sub(SHOWN);
    let shown: String = line.chars().skip(first).take(2 * SHOWN).collect();
    let hint = match text.contains('"') {
        true => "",
        false => "\nit has no \" at all: quote the whole for the shell, as in '{\"a\": 1}'",
    };
    format!("{error}\n  {}\n  {}^{hint}", printable::text(&shown), " ".repeat(before - first))
}

/// Events from the tasks.
enum CallEvent {
    /// A line from the daemon.
    Said(Vec<u8>),
    /// This request will not be answered.
    GivenUp(Id),
    /// The connection has ended.
    Ended(Ending),
    /// A line from stdin.
    Typed(Vec<u8>),
    /// End of stdin.
    TypedAll,
}

/// The routing fields of a line from the daemon.
#[derive(Deserialize)]
struct LineHead<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    error: Option<Value>,
}

/// A conversation.
struct CallSession<'a> {
    call: &'a Call,
    sink: Sink,
    events: Receiver<CallEvent>,
    waiting: Waiting,
    /// Stdin is open, and its lines may answer requests.
    is_typing: bool,
    /// The exit code so far: an error was received, or a line could not be sent.
    code: u8,
    /// The next request's id.
    next: u64,
    /// Each request has to carry its revision.
    has_no_handshake: bool,
    nothing_came: bool,
}

/// An early end, with the exit code. The reason was printed to stderr.
struct Over(u8);

async fn talk(call: &Call, request: Option<(&str, Option<String>)>, backend: Backend) -> Result<u8, StartError> {
    let (sink, source) = match link::connect(&call.options, backend, call.limit.min(CONNECT_LIMIT)).await {
        Ok(link) => link,
        Err(Failure::Silent) if call.limit < CONNECT_LIMIT => {
            call.say_too_late("no answer");
            return Ok(exit::NO_ANSWER);
        }
        Err(failure) => {
            let remedy = failure.remedy(&call.options);
            say(format!("cannot connect to {}: {failure}\n{remedy}", call.options.daemon).trim_end());
            return Ok(exit::UNAVAILABLE);
        }
    };
    let (sender, events) = channel(16);
    spawn(forward(source, sender.clone()));
    if request.is_none() {
        let stdin = io::stdin().as_fd().try_clone_to_owned().and_then(|fd| Stream::new(fd, backend));
        spawn(read_lines(stdin.map_err(StartError::io("use stdin"))?, sender.clone()));
    }
    let mut talk = CallSession {
        call,
        sink,
        events,
        waiting: Waiting::default(),
        is_typing: request.is_none(),
        code: exit::OK,
        next: 1,
        has_no_handshake: false,
        nothing_came: true,
    };
    let over = match request {
        Some((method, params)) => talk.once(method, params).await,
        None => talk.lines().await,
    };
    let code = match over {
        Ok(()) => talk.code,
        Err(Over(code)) => code,
    };
    talk.sink.close(None).await;
    Ok(code)
}

/// Reads from the daemon.
async fn forward(mut source: LinkSource, events: Sender<CallEvent>) {
    let (mut buffer, mut guard, mut line) = (Vec::with_capacity(BLOCK), Guard::default(), Vec::new());
    loop {
        let received = source.receive(buffer).await;
        buffer = received.1;
        if let Err(ending) = received.0 {
            let _ = events.send(CallEvent::Ended(ending)).await;
            return;
        }
        let checked = guard.check(&mut buffer);
        let mut rest = &buffer[..];
        while let Some(newline) = memchr(b'\n', rest) {
            line.extend_from_slice(&rest[..newline]);
            rest = &rest[newline + 1..];
            if !line.trim_ascii().is_empty() && events.send(CallEvent::Said(std::mem::take(&mut line))).await.is_err() {
                return;
            }
            line.clear();
        }
        line.extend_from_slice(rest);
        for id in source.given_up() {
            let _ = events.send(CallEvent::GivenUp(id)).await;
        }
        if let Err(foreign) = checked {
            let _ = events.send(CallEvent::Ended(Ending::NonJsonOutput(foreign))).await;
            return;
        }
    }
}

/// Reads the lines of stdin.
async fn read_lines(stdin: Stream, events: Sender<CallEvent>) {
    let (mut buffer, mut line, mut mark) = (Vec::with_capacity(BLOCK), Vec::new(), Mark::default());
    loop {
        let read = stdin.read(buffer).await;
        buffer = read.1;
        if let Err(error) = &read.0 {
            say(&format!("cannot read stdin: {error}"));
        }
        if !matches!(read.0, Ok(1..)) {
            break;
        }
        mark.skip(&mut buffer);
        let mut rest = &buffer[..];
        while let Some(newline) = memchr(b'\n', rest) {
            line.extend_from_slice(&rest[..newline]);
            rest = &rest[newline + 1..];
            let _ = events.send(CallEvent::Typed(std::mem::take(&mut line))).await;
        }
        line.extend_from_slice(rest);
    }
    let _ = events.send(CallEvent::Typed(line)).await;
    let _ = events.send(CallEvent::TypedAll).await;
}

impl CallSession<'_> {
    /// Sends one request, and prints all messages until its answer.
    async fn once(&mut self, method: &str, params: Option<String>) -> Result<(), Over> {
        if self.shake_hands().await? {
            let until = self.until();
            self.request(method, params).await?;
            self.answers(Some(until)).await?;
        }
        Ok(())
    }

    /// Sends the lines of stdin, until it has ended and everything is answered.
    async fn lines(&mut self) -> Result<(), Over> {
        if !self.shake_hands().await? {
            return Ok(());
        }
        if io::stdin().is_terminal() {
            say("connected; write a line of JSON-RPC, or METHOD PARAMS, and end with Ctrl-D");
        }
        while self.is_typing {
            self.step(None).await?;
        }
        let until = self.until();
        self.answers(Some(until)).await?;
        // Over HTTP, messages without an answer may still be in flight.
        let _ = timeout(LAST_WORDS_LIMIT, self.sink.end()).await;
        Ok(())
    }

    fn until(&self) -> Instant {
        Instant::now() + self.call.limit
    }

    /// Does the handshake, if requested. Returns whether it succeeded.
    async fn shake_hands(&mut self) -> Result<bool, Over> {
        let Some(handshake) = self.call.handshake else { return Ok(true) };
        let own = json!({ "name": "stdio_bus", "version": env!("CARGO_PKG_VERSION") });
        let params = match handshake {
            Handshake::Acp => json!({ "protocolVersion": 1, "clientCapabilities": {}, "clientInfo": own }),
            Handshake::Mcp => json!({ "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": own }),
        };
        let until = self.until();
        self.send(message(Some(0), "initialize", Some(&params.to_string()))).await?;
        let error = self.answers(Some(until)).await?;
        match (handshake, error) {
            (Handshake::Acp, None) => Ok(true),
            (Handshake::Mcp, None) => {
                self.send(message(None, "notifications/initialized", None)).await?;
                Ok(true)
            }
            // The method is unknown: there are no sessions, and each request carries its revision.
            (Handshake::Mcp, Some(code)) if self.call.method.is_some() && has_no_initialize(code) => {
                self.code = exit::OK;
                self.has_no_handshake = true;
                Ok(true)
            }
            (_, Some(_)) => Ok(false),
        }
    }

    async fn request(&mut self, method: &str, params: Option<String>) -> Result<(), Over> {
        let params = if self.has_no_handshake { Some(with_revision(params.as_deref())) } else { params };
        let line = message(Some(self.next), method, params.as_deref());
        self.next += 1;
        self.send(line).await
    }

    /// Sends a line. A lost connection is reported by the reading side.
    async fn send(&mut self, mut line: Vec<u8>) -> Result<(), Over> {
        line.push(b'\n');
        self.waiting.sending(&line);
        let _ = self.sink.send(line).await;
        Ok(())
    }

    /// Waits until everything is answered. Returns the code of the last error, if there was one.
    async fn answers(&mut self, until: Option<Instant>) -> Result<Option<i64>, Over> {
        let mut error = None;
        while !self.waiting.is_empty() {
            error = self.step(until).await?.or(error);
        }
        Ok(error)
    }

    /// Waits for the next event and handles it. Returns the code of an error.
    async fn step(&mut self, until: Option<Instant>) -> Result<Option<i64>, Over> {
        let event = match until {
            Some(until) => timeout_at(until, self.events.recv()).await.map_err(|_| self.too_late())?,
            None => self.events.recv().await,
        };
        match event {
            Some(CallEvent::Said(line)) => return self.said(&line).await,
            Some(CallEvent::GivenUp(id)) => self.waiting.forget(&id),
            Some(CallEvent::Typed(line)) => self.typed(&line).await?,
            Some(CallEvent::TypedAll) => self.is_typing = false,
            Some(CallEvent::Ended(ending)) => return Err(self.lost(ending)),
            None => return Err(self.lost(Ending::Closed)),
        }
        Ok(None)
    }

    /// Handles a line from the daemon.
    async fn said(&mut self, line: &[u8]) -> Result<Option<i64>, Over> {
        self.nothing_came = false;
        print(line)?;
        self.waiting.passed(&[line, b"\n"].concat());
        let Ok(LineHead { id, method, error }) = serde_json::from_slice::<LineHead<'_>>(line) else { return Ok(None) };
        if let (Some(id), Some(method), false) = (id, &method, self.is_typing) {
            // No one can answer it.
            let answer = match method.as_ref() {
                "ping" => r#""result":{}"#.to_owned(),
                _ => format!(r#""error":{{"code":{METHOD_NOT_FOUND},"message":"stdio_bus call answers no requests"}}"#),
            };
            self.send(format!(r#"{{"jsonrpc":"2.0","id":{},{answer}}}"#, id.get()).into_bytes()).await?;
        }
        Ok(error.map(|error| {
            self.code = self.meaning(&error);
            error["code"].as_i64().unwrap_or_default()
        }))
    }

    /// The exit code for an error. Prints what can be done about it.
    fn meaning(&self, error: &Value) -> u8 {
        let text = |key: &str| error["data"][key].as_str().unwrap_or_default();
        let is_web = matches!(self.call.options.daemon, Daemon::Web(_));
        match text("reason") {
            // Errors of the connection itself: over HTTP each request has its own.
            "daemon_unreachable" | "daemon_refused" | "daemon_gone" | "daemon_closed" if is_web => {
                say(&format!("{}: {}\n{}", self.call.options.daemon, text("cause"), text("remedy")));
                return exit::UNAVAILABLE;
            }
            "no_worker" | "worker_exited" | "spawn_failed" => say("why the worker ends is in the daemon's log"),
            _ if is_web && self.call.handshake.is_none() && error["message"].as_str().is_some_and(wants_handshake) => {
                say("add --initialize mcp, which begins as clients of MCP do");
            }
            _ => {}
        }
        exit::FAILURE
    }

    /// Handles a line of stdin: a message, or a method and its params.
    async fn typed(&mut self, line: &[u8]) -> Result<(), Over> {
        let text = String::from_utf8_lossy(line);
        let text = text.trim();
        if text.is_empty() {
            return Ok(());
        }
        let refused = if text.starts_with(['[', '"']) {
            "a message is an object of JSON, each on a line of its own; write it, or METHOD PARAMS".to_owned()
        } else if text.starts_with('{') {
            match serde_json::from_str::<IgnoredAny>(text) {
                Ok(_) => return self.send(text.into()).await,
                Err(error) => format!("this is no JSON: {}", whereabouts(text, &error)),
            }
        } else {
            let (method, params) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
            let params = Some(params.trim()).filter(|params| !params.is_empty());
            match params.map(|params| one_line(params, "PARAMS")).transpose() {
                Ok(params) => return self.request(method, params).await,
                Err(why) => why,
            }
        };
        say(&format!("not sent: {refused}"));
        self.code = exit::USAGE;
        Ok(())
    }

    fn too_late(&mut self) -> Over {
        let count = self.waiting.take().len();
        let what = if count == 1 { "no answer".to_owned() } else { format!("{count} requests have no answer") };
        self.call.say_too_late(&what);
        Over(exit::NO_ANSWER)
    }

    fn lost(&mut self, ending: Ending) -> Over {
        let options = &self.call.options;
        let is_lines = matches!(options.daemon, Daemon::Lines(_));
        let ending = ending.explained(self.waiting.last_word(), self.nothing_came && is_lines);
        say(&format!("{} {}: {ending}\n{}", ending.headline(), options.daemon, ending.remedy(options)));
        Over(exit::UNAVAILABLE)
    }
}

/// Whether an error says that a handshake is required.
fn wants_handshake(message: &str) -> bool {
    message.contains("initialize")
}

/// A client's message, without its newline.
fn message(id: Option<u64>, method: &str, params: Option<&str>) -> Vec<u8> {
    let id = id.map(|id| format!(r#""id":{id},"#)).unwrap_or_default();
    let params = params.map(|params| format!(r#","params":{params}"#)).unwrap_or_default();
    format!(r#"{{"jsonrpc":"2.0",{id}"method":{}{params}}}"#, Value::from(method)).into_bytes()
}

/// The params of a request without a handshake.
fn with_revision(params: Option<&str>) -> String {
    let mut params: Map<String, Value> = params.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let meta = params.entry("_meta").or_insert_with(|| json!({}));
    if let Value::Object(meta) = meta {
        let key = |name: &str| format!("io.modelcontextprotocol/{name}");
        meta.entry(key("protocolVersion")).or_insert(MODERN.into());
        meta.entry(key("clientCapabilities")).or_insert(json!({}));
    }
    Value::Object(params).to_string()
}

/// Prints a line. On a terminal, control characters are escaped.
fn print(line: &[u8]) -> Result<(), Over> {
    let mut stdout = io::stdout().lock();
    let shown = match std::str::from_utf8(line) {
        Ok(text) if stdout.is_terminal() => Cow::Owned(printable::json(text).into_owned().into_bytes()),
        _ => Cow::Borrowed(line),
    };
    let written = stdout.write_all(&shown).and_then(|()| stdout.write_all(b"\n")).and_then(|()| stdout.flush());
    written.map_err(|error| {
        if error.kind() == ErrorKind::BrokenPipe {
            return Over(exit::OK);
        }
        say(&format!("cannot write stdout: {error}"));
        Over(exit::IO)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn params_are_an_object_or_an_array_on_one_line_as_they_were_written() {
        let read = |text: &str| params("m", Some(text));
        assert_eq!(read("{\"b\": 1.0,\n \"a\": [\"\\n\"]}"), Ok(Some("{\"b\": 1.0,  \"a\": [\"\\n\"]}".to_owned())));
        assert_eq!((read("[]"), params("m", None)), (Ok(Some("[]".to_owned())), Ok(None)));
        for (text, reason) in [
            ("1", "PARAMS must be an object or an array, and is 1"),
            (
                "{\"a\":1 \"b\"}",
                "PARAMS is no JSON: expected `,` or `}` at line 1 column 8\n  {\"a\":1 \"b\"}\n         ^",
            ),
            ("{\n\"a\": x}", "at line 2 column 6\n  \"a\": x}\n       ^"),
            ("{a: 1}", "quote the whole for the shell"),
            ("", "EOF while parsing"),
        ] {
            let why = read(text).expect_err(text);
            assert!(why.contains(reason), "{text}: {why}");
        }
        let long = format!("{{\"a\":\"{}\" 1}}", "x".repeat(500));
        assert!(read(&long).expect_err("it is no JSON").lines().all(|line| line.chars().count() < 150));
        assert!(params("{\"id\":1}", None).is_err_and(|why| why.contains("leave it out")));
    }

    #[test]
    fn a_message_has_what_it_needs_and_no_more() {
        let text = |line: Vec<u8>| String::from_utf8(line).expect("text");
        assert_eq!(
            text(message(Some(1), "a\"b", Some("[1]"))),
            r#"{"jsonrpc":"2.0","id":1,"method":"a\"b","params":[1]}"#
        );
        assert_eq!(text(message(None, "m", None)), r#"{"jsonrpc":"2.0","method":"m"}"#);
        let params: Value = serde_json::from_str(&with_revision(Some(r#"{"a":1}"#))).expect("JSON");
        assert_eq!(params["a"], 1);
        assert_eq!(params["_meta"]["io.modelcontextprotocol/protocolVersion"], MODERN);
    }
}
