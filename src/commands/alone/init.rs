//! `stdio_bus init`: writes a commented configuration for a command or for the agents found in PATH. It passes `check`.
//! It starts nothing, and overwrites nothing without --force.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::config::{CommandLinePool, Config, command};
use crate::error::{StartError, exit};
use crate::kinds::KINDS;

/// What to write, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitOptions {
    /// The file; none and `-` are stdout.
    pub output: Option<PathBuf>,
    /// Overwrite an existing file.
    pub force: bool,
    /// The command of the only pool; empty searches PATH.
    pub command: Vec<String>,
}

/// A worker's protocol, as far as its command shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AgentProtocol {
    Acp,
    Mcp,
    Anything,
}

/// ACP agents: the id of the pool, and the command.
const AGENTS: [(&str, &[&str]); 6] = [
    ("claude", &["claude-agent-acp"]),
    ("codex", &["codex-acp"]),
    ("opencode", &["opencode", "acp"]),
    ("gemini", &["gemini", "--acp"]),
    ("qwen", &["qwen", "--acp"]),
    ("openai", &["openai-agent", "acp"]),
];

/// MCP's own example servers, by their package runner.
const SERVERS: [(&str, &[&str]); 2] =
    [("everything", &["npx", "-y", "@modelcontextprotocol/server-everything"]), ("time", &["uvx", "mcp-server-time"])];

/// A pool with its listener.
struct NewPool {
    id: String,
    command: Vec<String>,
    /// Its working directory, if that is fixed now.
    cwd: Option<PathBuf>,
    speaks: AgentProtocol,
}

/// Writes the configuration.
///
/// # Errors
/// There is nothing to configure, the command cannot be run, or the file cannot be written.
pub fn run(options: &InitOptions) -> Result<u8, StartError> {
    let pools = if options.command.is_empty() { found()? } else { vec![given(&options.command)?] };
    let text = text(&pools);
    Config::from_bytes(text.as_bytes(), "what init has made")?;
    let Some(path) = options.output.as_deref().filter(|path| *path != "-") else {
        io::stdout().write_all(text.as_bytes()).map_err(StartError::io("write stdout"))?;
        return Ok(exit::OK);
    };
    if path.is_dir() {
        return Err(StartError::Usage(format!("{} is a directory; name the file in it", path.display())));
    }
    let mut open = OpenOptions::new();
    open.write(true).create(true).truncate(true).create_new(!options.force);
    let written = open.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            StartError::Usage(format!("{} is there already; --force writes over it", path.display()))
        }
        ErrorKind::NotFound => StartError::Usage(format!(
            "cannot write {}: its directory does not exist; mkdir -p it first",
            path.display()
        )),
        _ => StartError::io(&format!("write {}", path.display()))(error),
    })?;
    let (file, call) = (path.display(), call(&pools[0], 9000));
    // If stderr is closed, there is no reader.
    let _ = writeln!(io::stderr(), "{file} is written\nto run it:  stdio_bus --config {file}\nto try it:  {call}");
    Ok(exit::OK)
}

/// The pools for what is in PATH: all agents, or else a server.
fn found() -> Result<Vec<NewPool>, StartError> {
    let of = |known: &(&str, &[&str]), speaks| NewPool {
        id: known.0.to_owned(),
        command: known.1.iter().map(|word| (*word).to_owned()).collect(),
        cwd: None,
        speaks,
    };
    let is_there = |known: &&(&str, &[&str])| command::resolve(known.1[0], None).is_ok();
    let agents: Vec<_> = AGENTS.iter().filter(is_there).map(|known| of(known, AgentProtocol::Acp)).collect();
    if !agents.is_empty() {
        return Ok(agents);
    }
    let server = SERVERS.iter().find(is_there).map(|known| of(known, AgentProtocol::Mcp));
    server.map(|server| vec![server]).ok_or_else(|| {
        let names: Vec<_> = AGENTS.iter().chain(&SERVERS).map(|known| known.1[0]).collect();
        StartError::Usage(format!(
            "nothing is in PATH that it knows ({}); name the command of your worker: stdio_bus init -- python3 worker.py",
            names.join(", ")
        ))
    })
}

/// The pool for a command.
fn given(command: &[String]) -> Result<NewPool, StartError> {
    Config::of_command(&CommandLinePool { command: command.to_vec(), instances: None, assignment: None })?;
    let says = |part: &str| command.iter().any(|word| word.to_ascii_lowercase().contains(part));
    let speaks = match (says("mcp"), says("acp")) {
        (true, _) => AgentProtocol::Mcp,
        (false, true) => AgentProtocol::Acp,
        (false, false) => AgentProtocol::Anything,
    };
    let mut command = command.to_vec();
    let program = Path::new(&command[0]);
    let name = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let id: String = name.chars().filter(|letter| letter.is_ascii_alphanumeric() || "-_".contains(*letter)).collect();
    let id = if id.is_empty() { "worker".to_owned() } else { id };
    if command[0].contains('/') {
        let whole = std::path::absolute(program).map_err(StartError::io("find the working directory"))?;
        command[0] = whole.to_string_lossy().into_owned();
    }
    // Its relative paths have to work wherever the daemon is started.
    let has_files = command[1..].iter().any(|word| Path::new(word).is_relative() && Path::new(word).is_file());
    let here = has_files.then(std::env::current_dir).transpose();
    Ok(NewPool { id, command, cwd: here.map_err(StartError::io("find the working directory"))?, speaks })
}

/// The whole text.
fn text(pools: &[NewPool]) -> String {
    let (mut of_pools, mut listeners) = (Vec::new(), Vec::new());
    for (port, pool) in (9000..).zip(pools) {
        of_pools.push(pool.text());
        // The first kind whose clients speak it.
        let row = KINDS.iter().find(|row| row.kind.is_mcp() == (pool.speaks == AgentProtocol::Mcp));
        let key = row.map_or("tcp", |row| row.key);
        let (id, how) = (Value::from(pool.id.as_str()), Value::from(call(pool, port)));
        let listener = format!("\"{key}\": \"127.0.0.1:{port}\",\n      \"pool\": {id}");
        listeners.push(format!("    {{\n      \"_try\": {how},\n      {listener}\n    }}"));
    }
    // Messages with images exceed the default limit of a line.
    let limits = match pools.iter().any(|pool| pool.speaks != AgentProtocol::Anything) {
        true => {
            ",\n  \"limits\": {\n    \"_comment\": \"A message with images is some megabytes long; a line may have 1 MiB without this.\",\n    \
             \"max_input_buffer\": 33554432,\n    \"max_output_queue\": 67108864\n  }"
        }
        false => "",
    };
    format!(
        "{{\n  \"_comment\": \"A key that begins with _ is a comment. All keys: docs/configuration.md. Check it: stdio_bus check \
         --config FILE\",\n  \"pools\": [\n{}\n  ],\n  \"listeners\": [\n{}\n  ]{limits}\n}}\n",
        of_pools.join(",\n"),
        listeners.join(",\n")
    )
}

impl NewPool {
    fn text(&self) -> String {
        let (comment, rest) = match self.speaks {
            AgentProtocol::Acp => (
                "A process for each connection, one spare kept warm; a prompt is cancelled when its client leaves.",
                json!({ "instances": 1, "assignment": "dedicated", "max_instances": 16, "cancel_on_disconnect": true }),
            ),
            AgentProtocol::Mcp => (
                "A process for each session. A server that keeps nothing by session can share some: round_robin.",
                json!({ "instances": 1, "assignment": "dedicated", "max_instances": 16, "on_bad_output": "skip" }),
            ),
            AgentProtocol::Anything => (
                "Messages take turns over the workers. client keeps a connection with one; dedicated gives it one.",
                json!({ "instances": 2, "assignment": "round_robin" }),
            ),
        };
        let mut lines = vec![
            format!("\"_comment\": {}", Value::from(comment)),
            format!("\"id\": {}", Value::from(self.id.as_str())),
            format!("\"command\": {}", Value::from(self.command[0].as_str())),
        ];
        if self.command.len() > 1 {
            lines.push(format!("\"args\": {}", json!(self.command[1..]).to_string().replace("\",\"", "\", \"")));
        }
        if let Some(cwd) = &self.cwd {
            lines.push(format!("\"cwd\": {}", Value::from(cwd.to_string_lossy())));
        }
        let known = ["instances", "assignment", "max_instances", "on_bad_output", "cancel_on_disconnect"];
        lines.extend(known.iter().filter_map(|key| Some(format!("\"{key}\": {}", rest.get(key)?))));
        format!("    {{\n      {}\n    }}", lines.join(",\n      "))
    }
}

/// The command that sends a request to a pool's worker.
fn call(pool: &NewPool, port: u16) -> String {
    match pool.speaks {
        AgentProtocol::Acp => format!("stdio_bus call --connect tcp://127.0.0.1:{port} --initialize acp </dev/null"),
        AgentProtocol::Mcp => {
            format!("stdio_bus call --connect http://127.0.0.1:{port}/mcp --initialize mcp tools/list")
        }
        AgentProtocol::Anything => format!("stdio_bus call --connect tcp://127.0.0.1:{port} hello"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_writes_a_valid_configuration_and_says_how_to_try_it() {
        for (words, assignment, door, initialize) in [
            (&["sh", "-c", "exec cat"][..], "round_robin", "tcp", ""),
            (&["sh", "-c", "exec some-acp \"x\\\\\""], "dedicated", "tcp", "--initialize acp"),
            (&["sh", "-c", "exec some-mcp-server"], "dedicated", "http", "--initialize mcp"),
        ] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let text = text(&[given(&words).expect("it can be run")]);
            Config::from_bytes(text.as_bytes(), "a test").expect("it is valid");
            let value: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(value["pools"][0]["assignment"], assignment, "{text}");
            assert_eq!(value["pools"][0]["args"], json!(words[1..]));
            let skips = value["pools"][0]["on_bad_output"] == "skip";
            assert_eq!(skips, door == "http", "servers of MCP print banners: {text}");
            assert!(value["listeners"][0][door].is_string() && value["listeners"][0]["_try"].is_string(), "{text}");
            assert!(value["listeners"][0]["_try"].as_str().is_some_and(|how| how.contains(initialize)));
        }
    }

    #[test]
    fn a_directory_is_not_overwritten_even_by_force() {
        for force in [false, true] {
            let options = InitOptions { output: Some("/".into()), force, command: vec!["cat".into()] };
            let why = run(&options).expect_err("it cannot be written").to_string();
            assert_eq!(why, "/ is a directory; name the file in it");
        }
    }

    #[test]
    fn each_agent_has_a_listener_of_its_own() {
        let pool =
            |id: &str| NewPool { id: id.into(), command: vec!["cat".into()], cwd: None, speaks: AgentProtocol::Acp };
        let text = text(&[pool("a"), pool("b")]);
        let config = Config::from_bytes(text.as_bytes(), "a test").expect("it is valid");
        assert_eq!(config.listeners.iter().map(|one| one.pool).collect::<Vec<_>>(), [Some(0), Some(1)], "{text}");
    }
}
