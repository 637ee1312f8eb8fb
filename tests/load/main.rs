//! A thousand clients like those of the SDKs, on sixteen workers, all at once: every client numbers its requests from
//! 0, every worker numbers its own from 0, names its sessions 0 to 9, and speaks late of what it has answered. Each message
//! names its client, so that lost and misrouted ones are detected.
//!
//! `STDIO_BUS_LOAD_MESSAGES` is the approximate number of lines through the bus (default 100,000; the project's figure
//! is 1,000,000), `STDIO_BUS_LOAD_CLIENTS` the number of clients (default 1,000).

mod client;
#[path = "../support/descriptors.rs"]
mod descriptors;
#[path = "../support/waiting.rs"]
mod waiting;
mod worker;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use waiting::comes_true;

const WORKERS: usize = 16;

/// Time limit for everything that must happen. Generous: a loaded machine is not a failure.
const PATIENCE: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("worker") {
        worker::run();
        return ExitCode::SUCCESS;
    }
    let number =
        |name: &str, default: usize| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let clients = number("STDIO_BUS_LOAD_CLIENTS", 1000);
    let messages = number("STDIO_BUS_LOAD_MESSAGES", 100_000);
    let prompts = (messages / clients / client::LINES_PER_PROMPT).max(1);
    let begun = Instant::now();
    let failures = load(clients, prompts);
    for failure in failures.iter().take(20) {
        eprintln!("{failure}");
    }
    println!("test a_thousand_clients_never_see_each_other ... {}", if failures.is_empty() { "ok" } else { "FAILED" });
    println!("took {:.1} s", begun.elapsed().as_secs_f32());
    println!("{} passed, {} failed", usize::from(failures.is_empty()), usize::from(!failures.is_empty()));
    ExitCode::from(u8::from(!failures.is_empty()))
}

/// Kills the daemon in any case.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn load(clients: usize, prompts: usize) -> Vec<String> {
    descriptors::allow();
    let program = std::env::current_exe().expect("this test has a program file");
    let config = serde_json::json!({
        "pools": [{"id": "agents", "command": program, "args": ["worker"], "instances": WORKERS, "assignment": "client"}],
    });
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("load.json");
    std::fs::write(&path, config.to_string()).expect("a file");
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_stdio_bus"));
    daemon.arg("--config").arg(&path).args(["--tcp", "127.0.0.1:0"]).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut daemon = Daemon(daemon.spawn().expect("the daemon starts"));
    let log = follow(daemon.0.stderr.take().expect("a pipe"));
    let address = address(&log);

    let lines = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..clients)
        .map(|number| {
            let (address, lines) = (address.clone(), Arc::clone(&lines));
            let client = move || client::run(number, &address, prompts, &lines);
            std::thread::Builder::new().stack_size(256 * 1024).spawn(client).expect("a thread")
        })
        .collect();
    let mut failures = Vec::new();
    let all_have_ended = || threads.iter().all(JoinHandle::is_finished);
    while !all_have_ended() {
        let seen = lines.load(Ordering::Relaxed);
        if !comes_true(PATIENCE, || lines.load(Ordering::Relaxed) > seen || all_have_ended()) {
            failures.push(format!("no client has got a line for {PATIENCE:?}, and some still wait"));
            break;
        }
    }
    let ended = threads.into_iter().filter(JoinHandle::is_finished);
    failures.extend(ended.filter_map(|thread| thread.join().unwrap_or_else(|_| Err("a client panicked".into())).err()));

    let ended = Command::new("kill").arg(daemon.0.id().to_string()).status().is_ok_and(|status| status.success());
    let mut status = Ok(None);
    comes_true(PATIENCE, || {
        status = daemon.0.try_wait();
        !matches!(status, Ok(None))
    });
    if !ended || !matches!(status, Ok(Some(status)) if status.success()) {
        failures.push(format!("the daemon did not end well: {status:?}"));
    }
    drop(daemon);
    let loud = |line: &String| {
        // Late answers are reported.
        let is_expected =
            ["daemon_held_up", "unknown_id", "worker_answers_twice"].iter().any(|word| line.contains(word));
        [" WARN ", " ERROR ", "panicked"].iter().any(|word| line.contains(word)) && !is_expected
    };
    let said = std::iter::from_fn(|| log.recv_timeout(PATIENCE).ok()).filter(loud);
    failures.extend(said.map(|line| format!("the daemon says: {line}")));
    println!("{clients} clients, {WORKERS} workers, {} lines seen by clients", lines.load(Ordering::Relaxed));
    failures
}

/// The lines of the log, which is read continuously so that it does not fill its pipe.
fn follow(stderr: ChildStderr) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn address(log: &Receiver<String>) -> String {
    loop {
        let line = log.recv_timeout(PATIENCE).expect("the daemon says where it listens");
        if let Some((_, address)) = line.split_once("listening on tcp://") {
            return address.trim().to_owned();
        }
    }
}
