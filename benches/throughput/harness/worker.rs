//! Workers in addition to the built-in one: one that streams tokens for its sessions like a model, one that floods its
//! stdout, and one that obeys attacks.

use std::borrow::Cow;
use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::request::{HEAD, ID_LEN, SESSION_LEN};

/// The parts of a token line around the session's name, which has a constant length, and the text.
const UPDATE: [&str; 3] = [
    r#"{"jsonrpc":"2.0","method":"session/update","sessionId":""#,
    r#"","params":{"update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""#,
    "\"}}}}\n",
];
/// The parts of the last answer around the id, the session's name and the text.
const ANSWER: [&str; 4] =
    [r#"{"jsonrpc":"2.0","id":"#, r#","sessionId":""#, r#"","result":{"stopReason":"end_turn","text":""#, "\"}}\n"];

/// The offset of the write time in a token line, in hexadecimal nanoseconds.
pub const STAMP_AT: usize = UPDATE[0].len() + SESSION_LEN + UPDATE[1].len();
/// Digits of the time.
pub const STAMP_LEN: usize = 16;
/// The offset of the session's name before the time.
pub const SESSION_BEFORE_STAMP: usize = SESSION_LEN + UPDATE[1].len();

/// Nanoseconds on a clock shared by all processes.
pub fn wall_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Waits until each of its sessions has sent a request, sends each of them one line in turn, repeatedly, then answers,
/// all in lines of the same length: a relay that parses nothing can tell by counting whose turn it is.
///
/// Each line is a separate write, as from a model that produces one token at a time.
pub fn stream(mut arguments: impl Iterator<Item = String>) -> io::Result<()> {
    let mut number = || arguments.next().and_then(|text| text.parse::<usize>().ok()).ok_or(io::ErrorKind::InvalidInput);
    let (sessions, lines, bytes) = (number()?, number()?, number()?);
    let mut input = io::BufReader::new(io::stdin().lock());
    // The standard library would buffer lines.
    let mut output = std::fs::File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mut asked: Vec<(String, String)> = Vec::new();
    let mut token = Vec::new();
    let mut line = String::new();
    loop {
        let mut waiting = sessions;
        while waiting > 0 {
            line.clear();
            if input.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let request: serde_json::Value = serde_json::from_str(&line)?;
            let text = |key: &str| request[key].as_str().unwrap_or_default().to_owned();
            let (session, id) = (text("sessionId"), request["id"].to_string());
            match asked.iter_mut().find(|(known, _)| *known == session) {
                Some(entry) => entry.1 = id,
                None => asked.push((session, id)),
            }
            waiting -= 1;
        }
        for count in 0..=lines {
            for (session, id) in &asked {
                token.clear();
                let end = if count < lines {
                    let [head, middle, end] = UPDATE;
                    write!(token, "{head}{session}{middle}{:0STAMP_LEN$x}", wall_nanos())?;
                    end
                } else {
                    let [head, middle, result, end] = ANSWER;
                    write!(token, "{head}{id}{middle}{session}{result}")?;
                    end
                };
                token.resize(bytes - end.len(), b'x');
                token.extend_from_slice(end.as_bytes());
                output.write_all(&token)?;
            }
        }
    }
}

/// Writes notifications of the first session that it sees as fast as it can.
pub fn flood() -> io::Result<()> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let request: serde_json::Value = serde_json::from_str(&line)?;
    let session = request["sessionId"].as_str().unwrap_or_default();
    let text = "x".repeat(100);
    let update = format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"sessionId\":\"{session}\",\"params\":{{\"text\":\"{text}\"}}}}\n"
    );
    let updates = update.repeat(300);
    let mut output = io::stdout().lock();
    while output.write_all(updates.as_bytes()).is_ok() {}
    Ok(())
}

/// The relevant members of a line for the attack worker.
#[derive(Deserialize)]
struct Asked<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "sessionId")]
    session: Option<Cow<'a, str>>,
    /// The number of lines of a flood.
    lines: Option<usize>,
}

/// A worker that takes this many microseconds per line, and then acts by its method:
///
/// | method | action |
/// |---|---|
/// | `never` | sends no answer |
/// | `hold` | answers when the notification `release` arrives |
/// | `flood` | writes as many notifications of the session as `lines` says, then answers |
/// | `exit` | exits with an error |
/// | any other | answers |
///
/// It reads as much as a pipe returns at once, like the runtimes of real agents, and sleeps for the time of a line,
/// because the CPU time of a busy loop would be taken from the measured processes.
pub fn agent(mut arguments: impl Iterator<Item = String>) -> io::Result<()> {
    let micros = arguments.next().and_then(|text| text.parse().ok()).ok_or(io::ErrorKind::InvalidInput)?;
    let time_of_a_line = Duration::from_micros(micros);
    // The kernel would add up to fifty microseconds to each sleep. SAFETY: the call has no memory arguments.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let mut input = io::BufReader::with_capacity(64 * 1024, io::stdin().lock());
    let mut output =
        io::BufWriter::with_capacity(64 * 1024, std::fs::File::from(io::stdout().as_fd().try_clone_to_owned()?));
    let mut held: Vec<String> = Vec::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if !time_of_a_line.is_zero() {
            std::thread::sleep(time_of_a_line);
        }
        let asked: Asked<'_> = serde_json::from_slice(&line)?;
        let mut answer = |id: &str| writeln!(output, r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        match (asked.method.as_deref(), asked.id) {
            (Some("exit"), _) => std::process::exit(1),
            (Some("release"), None) => held.drain(..).try_for_each(|id| answer(&id))?,
            (Some("never"), _) | (_, None) => {}
            (Some("hold"), Some(id)) => held.push(id.get().to_owned()),
            (Some("flood"), Some(id)) => {
                let [head, middle, end] = UPDATE;
                let session = asked.session.unwrap_or_default();
                let update = format!("{head}{session}{middle}{}{end}", "x".repeat(FLOOD_LINE));
                for _ in 0..asked.lines.unwrap_or_default() {
                    output.write_all(update.as_bytes())?;
                }
                writeln!(output, r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, id.get())?;
            }
            (_, Some(id)) => answer(id.get())?,
        }
        // Nothing stays buffered while the worker waits, even if a line is incomplete.
        if !time_of_a_line.is_zero() || memchr::memchr(b'\n', input.buffer()).is_none() {
            output.flush()?;
        }
    }
}

/// Length of the text in a line of a requested flood.
pub const FLOOD_LINE: usize = 500;

/// The argument that makes this program a worker for [`tools`].
pub const TOOLS: &str = "be-tools-worker";

/// The relevant members of a line for the tool server.
#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Cow<'a, str>,
}

/// An MCP server of both eras whose tools answer at once, in lines of the given length if ids have as many digits as
/// those of the bench's clients.
pub fn tools(mut arguments: impl Iterator<Item = String>) -> io::Result<()> {
    const BEGIN: &str = r#"{"content":[{"type":"text","text":""#;
    const END: &str = r#""}]}"#;
    let bytes: usize = arguments.next().and_then(|text| text.parse().ok()).ok_or(io::ErrorKind::InvalidInput)?;
    let around = HEAD.len() + ID_LEN + r#","result":}"#.len() + 1 + BEGIN.len() + END.len();
    let result = format!("{BEGIN}{}{END}", "x".repeat(bytes.checked_sub(around).ok_or(io::ErrorKind::InvalidInput)?));
    let mut input = io::BufReader::with_capacity(64 * 1024, io::stdin().lock());
    let mut output = std::fs::File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let (mut line, mut answers) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let call: Call<'_> = serde_json::from_slice(&line)?;
        let result = match &*call.method {
            "tools/call" => &result,
            "initialize" => {
                r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"t","version":"1"}}"#
            }
            "server/discover" => {
                r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"serverInfo":{"name":"t","version":"1"},"ttlMs":0,"cacheScope":"private"}"#
            }
            _ => "{}",
        };
        if let Some(id) = call.id {
            writeln!(answers, r#"{HEAD}{id},"result":{result}}}"#)?;
        }
        // One write for all lines of a read.
        if memchr::memchr(b'\n', input.buffer()).is_none() {
            output.write_all(&answers)?;
            answers.clear();
        }
    }
}
