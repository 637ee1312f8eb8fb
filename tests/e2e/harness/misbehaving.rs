//! The tests' misbehaving worker: it behaves well unless told otherwise.
//!
//! Flags set its behaviour from the start, a request's method what it does now. Any other request is answered with
//! `{"result": {"echo": params, "method": method, "pid": pid, "line": number}}`, at once and in order; the number is
//! that of lines it has read.
//!
//! It is this program itself with [`WORKER`] as its first argument. It starts in a program initializer, before the test
//! harness would read the arguments and write to stdout, so no test runs in it.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Command, Stdio, id};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::process::getpgrp;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The first argument of a worker.
pub const WORKER: &str = "--misbehaving-worker";
/// The first argument of a process that a careless agent leaves behind.
const SLEEPER: &str = "--sleeper";

const CANCELLING: [&str; 3] = ["$/cancel_request", "$/cancelRequest", "notifications/cancelled"];

/// Run by the linker before `main`: the only place to detect a worker before any output.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = begin;

extern "C" fn begin() {
    let line = fs::read("/proc/self/cmdline").unwrap_or_default();
    let mut arguments =
        line.split(|byte| *byte == 0).skip(1).map(|argument| String::from_utf8_lossy(argument).into_owned());
    match arguments.next().as_deref() {
        Some(WORKER) => {
            // The last one is zero-terminated as well.
            let mut flags: Vec<String> = arguments.collect();
            flags.pop();
            Worker::new(&flags).live();
            leave(0)
        }
        Some(SLEEPER) => {
            ignore(libc::SIGTERM);
            ignore(libc::SIGHUP);
            std::thread::sleep(Duration::from_secs(600));
            leave(0)
        }
        _ => {}
    }
}

/// Exits at once, without a program's exit handlers.
fn leave(code: i32) -> ! {
    // SAFETY: it takes a number and does not return.
    unsafe { libc::_exit(code) }
}

fn ignore(signal: i32) {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

fn signal_itself(signal: i32) {
    // SAFETY: it takes two numbers.
    unsafe { libc::kill(libc::getpid(), signal) };
}

/// Closes stdin or stdout.
fn close(descriptor: i32) {
    // SAFETY: nothing owns it: this program uses it by its number.
    unsafe { libc::close(descriptor) };
}

fn rest_for_ever() -> ! {
    loop {
        interruptible(|| std::thread::sleep(Duration::from_secs(600)));
    }
}

/// Writes without a buffer and without a lock, so that signal handlers may write, too.
fn write(descriptor: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the bytes are borrowed; the kernel checks the descriptor.
        let written = interruptible(|| unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) });
        match usize::try_from(written) {
            Ok(written) => bytes = &bytes[written..],
            Err(_) if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            // The reader has gone.
            Err(_) => leave(1),
        }
    }
}

/// Numbers and texts that are equal to their readers get the same value.
fn canonical(raw: &str) -> Value {
    match serde_json::from_str(raw) {
        Ok(value) => value,
        // An unpaired surrogate is no character.
        Err(_) => Value::String(raw.replace("\\ud", "\u{fffd}")),
    }
}

/// An id as written by a program with doubles for all numbers and UTF-16 for all text.
fn as_double(raw: &str) -> String {
    if raw.starts_with('"') {
        let mut text = raw.to_owned();
        while serde_json::from_str::<String>(&text).is_err() {
            let half = text.find("\\ud").expect("only half a pair is no text");
            text.replace_range(half..half + 6, "\u{fffd}");
        }
        return Value::String(serde_json::from_str(&text).expect("it is text now")).to_string();
    }
    match raw.parse::<f64>() {
        Ok(number) if number.is_infinite() => "null".to_owned(),
        Ok(number) => number.to_string(),
        Err(_) => raw.to_owned(),
    }
}

#[derive(Default)]
struct Flags {
    /// Block until this FIFO has been opened and closed for writing.
    gate: Option<String>,
    /// Exit with this code at once.
    exit: Option<i32>,
    /// Ignore SIGTERM and the end of stdin.
    ignore_term: bool,
    /// Answer held requests only on shutdown.
    answer_late: bool,
    /// Append events to this file.
    record: Option<String>,
    /// Start a process that outlives this one and ignores SIGTERM.
    orphan: bool,
    /// Returned in the answer to `who`.
    name: String,
    /// Read ids like Node: numbers as doubles, text as UTF-16.
    doubles: bool,
    /// Take this many microseconds for each line.
    slow: u64,
    /// Keep every line and return them in the answer to `kept`.
    keep: bool,
}

impl Flags {
    fn read(arguments: &[String]) -> Self {
        let mut flags = Self::default();
        let mut arguments = arguments.iter();
        while let Some(flag) = arguments.next() {
            let mut value = || arguments.next().expect("the flag has a value").clone();
            match flag.as_str() {
                "--gate" => flags.gate = Some(value()),
                "--exit" => flags.exit = Some(value().parse().expect("a code")),
                "--ignore-term" => flags.ignore_term = true,
                "--answer-late" => flags.answer_late = true,
                "--record" => flags.record = Some(value()),
                "--orphan" => flags.orphan = true,
                "--name" => flags.name = value(),
                "--doubles" => flags.doubles = true,
                "--slow" => flags.slow = value().parse().expect("microseconds"),
                "--keep" => flags.keep = true,
                _ => panic!("{flag} is no flag of a worker"),
            }
        }
        flags
    }

    fn record(&self, what: &str) {
        if let Some(path) = &self.record {
            let at = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let at = at.tv_sec * 1_000_000_000 + at.tv_nsec;
            let mut file = File::options().append(true).create(true).open(path).expect("the record can be written");
            // In one write: two workers may share a record.
            file.write_all(format!("{what} pid={} at={at}\n", id()).as_bytes()).expect("there is room for it");
        }
    }
}

/// A request or notification.
#[derive(Clone)]
struct Request {
    /// The id verbatim; a notification has none.
    id: Option<String>,
    method: String,
    params: Value,
    /// Verbatim: they may be nested deeper than a `Value`.
    raw_params: String,
    session: Option<Value>,
}

impl Request {
    fn number(&self, key: &str, default: i64) -> i64 {
        self.params.get(key).map_or(default, |value| value.as_i64().expect("a number"))
    }

    fn size(&self, key: &str, default: usize) -> usize {
        self.params.get(key).map_or(default, |size| size.as_u64().expect("a size") as usize)
    }

    fn text(&self, key: &str) -> &str {
        self.params[key].as_str().expect("a text")
    }

    fn is(&self, key: &str) -> bool {
        self.params[key].as_bool().unwrap_or(false)
    }

    fn answer(&self, result: &str) {
        let session = self.session.as_ref().map_or(String::new(), |session| format!(",\"sessionId\":{session}"));
        let id = self.id.as_deref().expect("only a request is answered");
        write(1, format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}{session}}}\n").as_bytes());
    }

    fn fail(&self, code: i32, message: &str) {
        let id = self.id.as_deref().expect("only a request fails");
        let error = json!({ "code": code, "message": message });
        write(1, format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}\n").as_bytes());
    }
}

/// Requests to answer later, each with its result.
static HELD: Mutex<Vec<(Request, String)>> = Mutex::new(Vec::new());

fn release() {
    let held = std::mem::take(&mut *HELD.lock().expect("no holder panics"));
    held.iter().for_each(|(request, result)| request.answer(result));
}

/// Starts a careless agent's helper, which keeps our stdout, or leaves our process group.
fn start_grandchild(holds_stdout: bool, setsid: bool) -> u32 {
    let mut command = Command::new(std::env::current_exe().expect("it is running"));
    command.arg(SLEEPER).stdin(Stdio::null());
    if !holds_stdout {
        command.stdout(Stdio::null());
    }
    if setsid {
        // SAFETY: it only makes a system call.
        unsafe { command.pre_exec(|| rustix::process::setsid().map(|_| ()).map_err(Into::into)) };
    }
    // It is not waited for on purpose.
    command.spawn().expect("it is this program").id()
}

struct Worker {
    flags: &'static Flags,
    /// The lines read, if requested.
    kept: Vec<String>,
    lines_read: u64,
    next_session: u64,
    /// Our own requests by id, with the requests that caused them.
    questions: HashMap<String, Request>,
    next_question: u64,
}

impl Worker {
    fn new(arguments: &[String]) -> Self {
        let flags = Box::leak(Box::new(Flags::read(arguments)));
        Self { flags, kept: Vec::new(), lines_read: 0, next_session: 0, questions: HashMap::new(), next_question: 0 }
    }

    fn live(mut self) {
        let flags = self.flags;
        ignore(libc::SIGPIPE);
        obey_signals(flags);
        flags.record("start");
        if let Some(code) = flags.exit {
            leave(code);
        }
        if flags.orphan {
            start_grandchild(false, true);
        }
        if let Some(gate) = &flags.gate {
            let _ = interruptible(|| fs::read(gate));
        }
        // Small manual reads: a buffered reader would take lines that a stopped worker must leave in its pipe.
        let (mut buffer, mut chunk) = (Vec::new(), vec![0; 65_536]);
        loop {
            let length = match interruptible(|| rustix::io::read(rustix::stdio::stdin(), &mut chunk[..])) {
                Ok(0) => break,
                Ok(length) => length,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => panic!("stdin: {error}"),
            };
            buffer.extend_from_slice(&chunk[..length]);
            let mut begin = 0;
            while let Some(length) = memchr::memchr(b'\n', &buffer[begin..]) {
                self.receive(str::from_utf8(&buffer[begin..begin + length]).expect("a line is UTF-8"));
                begin += length + 1;
            }
            buffer.drain(..begin);
        }
        // A signal may have arrived with the end.
        interruptible(|| ());
        flags.record("eof");
        if flags.ignore_term {
            rest_for_ever();
        }
        if flags.answer_late {
            release();
        }
    }

    fn receive(&mut self, line: &str) {
        self.lines_read += 1;
        if self.flags.slow > 0 {
            interruptible(|| std::thread::sleep(Duration::from_micros(self.flags.slow)));
        }
        if self.flags.keep {
            self.kept.push(line.to_owned());
        }
        let message: BTreeMap<String, &RawValue> = serde_json::from_str(line).expect("a line is an object");
        let member = |name: &str| message.get(name).map(|raw| raw.get());
        let value = |name: &str| member(name).map(canonical);
        let mut id = member("id").map(str::to_owned);
        let params = value("params").unwrap_or_default();
        if self.flags.doubles {
            id = id.map(|id| as_double(&id));
        }
        let Some(method) = value("method") else {
            let (result, error) = (value("result"), value("error"));
            let id = id.filter(|_| result.is_some() || error.is_some());
            let asked = id.and_then(|id| self.questions.remove(&canonical(&id).to_string()));
            if let Some(asked) = asked {
                asked.answer(&json!({ "answered": result, "error": error }).to_string());
            }
            return;
        };
        let method = method.as_str().expect("it is text").to_owned();
        let raw_params = member("params").unwrap_or("null").to_owned();
        self.act(&Request { id, method, params, raw_params, session: value("sessionId") });
    }

    /// Does what a request or notification asks for.
    fn act(&mut self, request: &Request) {
        if breaks(request) || writes(request) || self.keeps(request) || self.answers(request) || request.id.is_none() {
            return;
        }
        let (method, line) = (Value::from(request.method.as_str()), self.lines_read);
        let echoed =
            format!("{{\"echo\":{},\"method\":{method},\"pid\":{},\"line\":{line}}}", request.raw_params, id());
        request.answer(&echoed);
    }

    /// Holds an answer, or releases those held; returns whether that is all.
    fn keeps(&mut self, request: &Request) -> bool {
        match request.method.as_str() {
            "hold" => hold(request),
            method if CANCELLING.contains(&method) => {
                let count = cancel(request);
                if request.id.is_some() {
                    request.answer(&json!({ "cancelled": count }).to_string());
                }
            }
            "release" => {
                release();
                return false;
            }
            _ => return false,
        }
        true
    }

    /// Answers like an agent or a server, or sends a request; returns whether that is all.
    fn answers(&mut self, request: &Request) -> bool {
        let params = &request.params;
        let answer = |result: &Value| request.answer(&result.to_string());
        match request.method.as_str() {
            "ask" => {
                let question = params.get("id").cloned().unwrap_or_else(|| self.next_question.into());
                self.next_question += 1;
                self.questions.insert(question.to_string(), request.clone());
                let method = params.get("method").cloned().unwrap_or_else(|| "session/request_permission".into());
                let session = params.get("session").or(request.session.as_ref());
                let asked = json!({ "sessionId": session, "about": params["about"] });
                let line = json!({ "jsonrpc": "2.0", "id": question, "method": method, "params": asked });
                write(1, format!("{line}\n").as_bytes());
            }
            "session/new" => {
                // Names are numbered, as in careless agents: after a restart they start again.
                let name =
                    params.get("name").cloned().unwrap_or_else(|| format!("session-{}", self.next_session).into());
                self.next_session += 1;
                let made = json!({ "sessionId": name, "pid": id() });
                answer(&made);
            }
            "session/load" | "session/resume" => {
                if request.is("unknown") {
                    request.fail(-32002, "there is no such session");
                    return true;
                }
                for replayed in 0..request.size("replay", 0) {
                    let params = json!({ "sessionId": params["sessionId"], "replayed": replayed });
                    let line = json!({ "jsonrpc": "2.0", "method": "session/update", "params": params });
                    write(1, format!("{line}\n").as_bytes());
                }
                return false;
            }
            // Like an MCP server that supports its client's version.
            "initialize" if params["protocolVersion"].is_string() => {
                answer(&json!({ "protocolVersion": params["protocolVersion"], "pid": id() }));
            }
            "kept" => answer(&json!({ "lines": self.kept })),
            "big" => answer(&json!({ "fill": "x".repeat(request.size("size", 0)) })),
            "grandchild" => {
                answer(&json!({ "pid": start_grandchild(request.is("holds_stdout"), request.is("setsid")) }));
            }
            "who" => answer(&self.who(params)),
            _ => return false,
        }
        true
    }

    fn who(&self, variables: &Value) -> Value {
        let variables = variables.as_object().into_iter().flatten().map(|(name, _)| {
            (name.clone(), std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()).into())
        });
        json!({
            "pid": id(), "name": self.flags.name, "cwd": std::env::current_dir().expect("it is there"),
            "held": HELD.lock().expect("no holder panics").len(),
            "group": getpgrp().as_raw_nonzero().get(), "parent": parent_id(),
            "variables": variables.collect::<serde_json::Map<String, Value>>(),
        })
    }
}

/// Exits, stops, or closes its input or output; returns whether that is all.
fn breaks(request: &Request) -> bool {
    match request.method.as_str() {
        "exit" => leave(request.number("code", 0) as i32),
        "die" => {
            signal_itself(request.number("signal", libc::SIGKILL.into()) as i32);
            rest_for_ever();
        }
        "half_line" => {
            write(1, format!("{}\n{}", request.text("whole"), request.text("half")).as_bytes());
            leave(0);
        }
        "close_stdout" => {
            close(1);
            true
        }
        "close_stdin" => {
            close(0);
            if let Some(seconds) = request.params["answer_after"].as_f64() {
                interruptible(|| std::thread::sleep(Duration::from_secs_f64(seconds)));
                request.answer("{}");
            }
            rest_for_ever();
        }
        _ => false,
    }
}

/// Writes what it is asked to; returns whether that is all.
fn writes(request: &Request) -> bool {
    match request.method.as_str() {
        "write" => {
            write(1, request.text("text").as_bytes());
            return true;
        }
        "stderr" => write(2, request.text("text").as_bytes()),
        "stderr_flood" => {
            let line = ("noise ".repeat(request.size("words", 20)) + "\n").repeat(request.size("lines_at_once", 1));
            for _ in 0..request.size("bytes", 0) / line.len() {
                write(2, line.as_bytes());
            }
        }
        "flood" => {
            let fill = "x".repeat(request.size("size", 0));
            let mut tick = json!({ "jsonrpc": "2.0", "method": "tick", "params": { "fill": fill } });
            if let Some(session) = &request.session {
                tick["sessionId"] = session.clone();
            }
            let line = format!("{tick}\n");
            for _ in 0..request.size("lines", 0) {
                write(1, line.as_bytes());
            }
        }
        _ => {}
    }
    false
}

/// Holds an answer until it is released.
fn hold(request: &Request) {
    let result = format!("{{\"held\":true,\"echo\":{}}}", request.raw_params);
    HELD.lock().expect("no holder panics").push((request.clone(), result));
}

/// Gives up held requests, like agents (with an error) or MCP servers (without an answer).
fn cancel(request: &Request) -> usize {
    let names: Vec<&Value> = ["requestId", "id"].iter().filter_map(|key| request.params.get(key)).collect();
    let is_wanted = |(held, _): &mut (Request, String)| {
        let id = canonical(held.id.as_deref().unwrap_or("null"));
        let is_same = |name: &&Value| **name == id || name.is_number() && name.as_f64() == id.as_f64();
        names.iter().any(is_same)
    };
    let wanted: Vec<_> = HELD.lock().expect("no holder panics").extract_if(.., is_wanted).collect();
    if request.method.starts_with('$') {
        wanted.iter().for_each(|(held, _)| held.fail(-32800, "cancelled by the worker"));
    }
    wanted.len()
}

/// What the signal handler needs to know.
static FLAGS: OnceLock<&Flags> = OnceLock::new();

/// Handles SIGINT and SIGTERM, but only in [`interruptible`]: there nothing is half done, and a handler may do
/// anything. A thread for them would count against a user's limit of processes.
fn obey_signals(flags: &'static Flags) {
    FLAGS.get_or_init(|| flags);
    let handler = on_signal as extern "C" fn(i32) as usize;
    mask(libc::SIG_BLOCK);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler has this type, and runs only where it may.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

extern "C" fn on_signal(signal: i32) {
    let flags = FLAGS.get().expect("they were read before");
    flags.record(if signal == libc::SIGTERM { "SIGTERM" } else { "SIGINT" });
    // Another one may arrive while the answers are written.
    static ENDS: AtomicBool = AtomicBool::new(false);
    if signal == libc::SIGTERM && !flags.ignore_term && !ENDS.swap(true, Ordering::Relaxed) {
        if flags.answer_late {
            release();
        }
        leave(0);
    }
}

/// Blocks or unblocks both signals.
fn mask(how: i32) {
    // SAFETY: the set is initialized before it is used, and lives until the call returns.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGINT);
        libc::sigaddset(&raw mut signals, libc::SIGTERM);
        libc::pthread_sigmask(how, &raw const signals, std::ptr::null_mut());
    }
}

/// Waits for something; signals are handled meanwhile.
fn interruptible<T>(mut wait: impl FnMut() -> T) -> T {
    mask(libc::SIG_UNBLOCK);
    let done = wait();
    mask(libc::SIG_BLOCK);
    done
}
