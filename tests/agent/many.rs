//! Many sessions in one process, and a reader that is slower than the models.

use std::collections::HashMap;
use std::sync::{Arc, Barrier};

use serde_json::json;

use super::client::Client;
use super::endpoint::{Endpoint, delta};
use super::transcript::Transcript;

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_thousand_sessions_stream_at_once_on_one_thread() {
    const SESSIONS: usize = 1000;
    // No stream goes on before all have begun.
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
    // The agent gets along with the few open files that a login shell allows at first.
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
    let mut child = super::client::program()
        .env("OPENAI_BASE_URL", endpoint.url())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    use std::io::{BufRead, Write};
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let (mut told, mut said) = Transcript::pair();
    let mut read = || {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        said.keep(line.as_bytes());
        serde_json::from_str::<serde_json::Value>(&line).unwrap()
    };
    let mut texts: HashMap<String, (String, usize)> = HashMap::new();
    let mut send = |message: serde_json::Value| {
        let line = format!("{message}\n");
        told.keep(line.as_bytes());
        stdin.write_all(line.as_bytes()).unwrap();
    };
    for id in 0..SESSIONS {
        send(json!({"jsonrpc": "2.0", "id": id, "method": "session/new", "params": {"cwd": "/", "mcpServers": []}}));
        let session = read()["result"]["sessionId"].as_str().unwrap().to_owned();
        texts.insert(session, (String::new(), 0));
    }
    for (id, session) in texts.keys().enumerate() {
        let params = json!({"sessionId": session, "prompt": [{"type": "text", "text": "hi"}]});
        send(json!({"jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": params}));
    }
    // Nobody reads until every stream has begun and the processor time of the agent stands still: it is stopped by us.
    while endpoint.requests().len() < SESSIONS {
        std::thread::yield_now();
    }
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        (fields[0].to_owned(), fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap())
    };
    let mut still = 0;
    let mut before = ticks();
    let mut looked = std::time::Instant::now();
    while still < 20 {
        if looked.elapsed() < std::time::Duration::from_millis(10) {
            std::thread::yield_now();
            continue;
        }
        looked = std::time::Instant::now();
        let now = ticks();
        still = if now == before && now.0 == "S" { still + 1 } else { 0 };
        before = now;
    }
    let resident = resident_kib(child.id());
    assert!(resident < 32 << 10, "{resident} KiB while nobody reads");
    let mut answers = 0;
    while answers < SESSIONS {
        let line = read();
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
    drop(stdin);
    child.wait().unwrap();
}
