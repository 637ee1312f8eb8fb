//! A client like those of the SDKs: ids from 0, `sessionId` in params, and answers to the agent's requests.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

/// Updates that a worker sends for a prompt.
pub const UPDATES: u64 = 5;
/// Lines through the bus for one prompt: itself, its updates, a permission request and its answer, the result.
pub const LINES_PER_PROMPT: usize = 4 + UPDATES as usize;

struct Client<'a> {
    name: String,
    reader: BufReader<TcpStream>,
    writer: TcpStream,
    next_id: u64,
    lines: &'a AtomicU64,
}

/// Called with the agent's messages while an answer is outstanding, and may answer them.
type Listener<'a> = dyn FnMut(&str, &Value) -> Result<Option<Value>, String> + 'a;

/// Runs a client; returns what went wrong.
pub fn run(number: usize, address: &str, prompts: usize, lines: &AtomicU64) -> Result<(), String> {
    let name = format!("client-{number}");
    let talk = || -> Result<(), Box<dyn std::error::Error>> {
        let writer = TcpStream::connect(address)?;
        writer.set_read_timeout(Some(Duration::from_secs(300)))?;
        writer.set_nodelay(true)?;
        let reader = BufReader::new(writer.try_clone()?);
        let mut client = Client { name: name.clone(), reader, writer, next_id: 0, lines };
        client.talk(prompts)
    };
    talk().map_err(|error| format!("{name}: {error}"))
}

impl Client<'_> {
    fn talk(&mut self, prompts: usize) -> Result<(), Box<dyn std::error::Error>> {
        let whose = json!({"whose": self.name});
        let initialized = self.request("initialize", whose.clone(), &mut |_, _| Ok(None))?;
        self.check(&initialized["whose"], "the answer to initialize")?;
        let made = self.request("session/new", whose, &mut |_, _| Ok(None))?;
        self.check(&made["whose"], "the answer to session/new")?;
        let session = made["sessionId"].as_str().ok_or("no sessionId")?.to_owned();
        for turn in 0..prompts {
            let (mut updates, mut asked) = (0, 0);
            let tag = format!("{}/{turn}", self.name);
            let mine = tag.clone();
            let in_session = session.clone();
            let result = self.request(
                "session/prompt",
                json!({"sessionId": session, "whose": tag, "_meta": {"progressToken": self.next_id}}),
                &mut |method, params| {
                    if params["whose"] != mine.as_str() || params["sessionId"] != in_session.as_str() {
                        return Err(format!("{mine} was given {params}"));
                    }
                    match method {
                        "session/update" if params["number"] == updates => updates += 1,
                        "session/request_permission" => {
                            asked += 1;
                            return Ok(Some(json!({"whose": mine})));
                        }
                        _ => return Err(format!("{mine} saw {method} {params} after {updates} updates")),
                    }
                    Ok(None)
                },
            )?;
            self.check_tag(&result["whose"], &tag, "the answer to session/prompt")?;
            if (updates, asked) != (UPDATES, 1) {
                return Err(format!("{updates} updates and {asked} questions in {tag}").into());
            }
        }
        let closed =
            self.request("session/close", json!({"sessionId": session, "whose": self.name}), &mut |_, _| Ok(None))?;
        self.check(&closed["whose"], "the answer to session/close")?;
        Ok(())
    }

    fn check(&self, whose: &Value, what: &str) -> Result<(), String> {
        self.check_tag(whose, &self.name, what)
    }

    fn check_tag(&self, whose: &Value, tag: &str, what: &str) -> Result<(), String> {
        if whose == tag { Ok(()) } else { Err(format!("{what} for {tag} belongs to {whose}")) }
    }

    /// Sends a request and handles messages until its answer: `other` gets the agent's and may answer them.
    fn request(
        &mut self,
        method: &str,
        params: Value,
        other: &mut Listener<'_>,
    ) -> Result<Value, Box<dyn std::error::Error>> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line)? == 0 {
                return Err(format!("the connection ended while {method} was waited for").into());
            }
            self.lines.fetch_add(1, Ordering::Relaxed);
            let message: Value = serde_json::from_str(&line)?;
            match message["method"].as_str() {
                Some(method) => {
                    if let Some(result) = other(method, &message["params"])? {
                        self.send(&json!({"jsonrpc": "2.0", "id": message["id"], "result": result}))?;
                    }
                }
                None if message["id"] == id && message.get("result").is_some() => return Ok(message["result"].clone()),
                None => return Err(format!("{line} came while the answer to {id} was waited for").into()),
            }
        }
    }

    fn send(&mut self, message: &Value) -> std::io::Result<()> {
        self.writer.write_all(format!("{message}\n").as_bytes())
    }
}
