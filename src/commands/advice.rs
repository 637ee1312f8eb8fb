//! Tips for common mistakes on the command line: habits from other programs, and omissions. It adds a tip to a parser
//! error, and never changes what is an error.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::config::nearest;

/// Adds a tip, if there is one, to an error of `parser`. The first of `arguments` is the program's name.
pub(crate) fn advise(mut error: clap::Error, arguments: &[OsString], mut parser: clap::Command) -> clap::Error {
    let of = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let first = arguments.get(1).and_then(|argument| argument.to_str()).unwrap_or_default();
    let tip = match error.kind() {
        ErrorKind::InvalidSubcommand => Some(of_command(first, &of(ContextKind::InvalidSubcommand), &parser)),
        // An unknown word is taken for a worker's command, which has to follow two dashes.
        ErrorKind::UnknownArgument => match of(ContextKind::InvalidArg) {
            word if !word.starts_with('-') && parser.find_subcommand(first).is_none() => {
                Some(of_command(first, &word, &parser))
            }
            argument => of_argument(first, &argument).or_else(|| of_flag(first, &argument, arguments, &parser)),
        },
        ErrorKind::MissingRequiredArgument => of_missing(first, &parser),
        _ => None,
    };
    let Some(tip) = tip else {
        // The parser's own tip would be to put the flag after the dashes.
        error.remove(ContextKind::Suggested);
        return error;
    };
    error.remove(ContextKind::SuggestedSubcommand);
    if error.remove(ContextKind::SuggestedArg).is_some() && first.starts_with('-') {
        // It was that of an argument that is not meant.
        error.insert(ContextKind::Usage, ContextValue::StyledStr(parser.render_usage()));
    }
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// What a missing argument may be.
fn of_missing(first: &str, parser: &clap::Command) -> Option<String> {
    let tip = match first {
        "call" => "to name the daemon: stdio_bus call --connect tcp://HOST:PORT METHOD".to_owned(),
        "acp" | "connect" => "to name the daemon: stdio_bus connect --connect tcp://HOST:PORT".to_owned(),
        "kill" => "for the numbers of the clients: stdio_bus show clients".to_owned(),
        "restart" => "for the names of pools and workers: stdio_bus show workers".to_owned(),
        _ => {
            let missing =
                parser.find_subcommand(first)?.get_positionals().find(|argument| argument.is_required_set())?;
            let values = missing.get_possible_values();
            let names: Vec<&str> = values.iter().map(clap::builder::PossibleValue::get_name).collect();
            (!names.is_empty()).then(|| format!("it is one of {}", names.join(", ")))?
        }
    };
    Some(tip)
}

fn of_command(first: &str, verb: &str, parser: &clap::Command) -> String {
    match (first, verb) {
        ("kill", "worker") => "to end a worker: stdio_bus restart worker NAME --now".to_owned(),
        ("kill", _) if first != verb => format!("to close a client: stdio_bus kill client {verb}"),
        ("restart", _) if first != verb => format!("to have a worker replaced: stdio_bus restart worker {verb}"),
        (_, "run" | "start" | "serve" | "daemon" | "listen") => {
            "the daemon needs no command: stdio_bus --tcp 127.0.0.1:9000 -- python3 worker.py, or --config FILE in place of \
             the worker"
                .to_owned()
        }
        (_, "stop" | "shutdown" | "quit") => "to end a running daemon: stdio_bus drain, or SIGTERM".to_owned(),
        (_, "echo") => "for the built-in worker: stdio_bus worker echo".to_owned(),
        (_, "bridge") => "for the bridge: stdio_bus connect --connect tcp://HOST:PORT".to_owned(),
        (_, "send" | "request" | "ask" | "query" | "client" | "test") => {
            "to ask a running daemon: stdio_bus call --connect tcp://HOST:PORT METHOD".to_owned()
        }
        (_, "new" | "create" | "config" | "configure" | "generate") => {
            "for a configuration to begin with: stdio_bus init --output bus.json".to_owned()
        }
        (_, "completions") => "for completions: stdio_bus completion SHELL".to_owned(),
        _ if is_script(verb) || is_interpreter(verb) => {
            "to run a worker, write its command after --: stdio_bus --tcp 127.0.0.1:9000 -- python3 \
             worker.py".to_owned()
        }
        (_, "version") => "for the version: stdio_bus --version".to_owned(),
        _ if is_file(verb) => format!("to run a configuration: stdio_bus --config {verb}"),
        _ => {
            let commands: Vec<&str> = parser.get_subcommands().map(clap::Command::get_name).collect();
            match nearest(verb, &commands) {
                Some(name) => format!("did you mean stdio_bus {name}?"),
                None => format!("the commands are {}; the daemon itself needs none", commands.join(", ")),
            }
        }
    }
}

/// The flag that a misspelt one was probably meant to be. With one dash, the parser only reports the first letter.
fn of_flag(first: &str, argument: &str, arguments: &[OsString], parser: &clap::Command) -> Option<String> {
    let mut written = arguments.iter().skip(1).filter_map(|argument| argument.to_str());
    let written = written.find(|text| !argument.starts_with("--") && text.starts_with(argument)).unwrap_or(argument);
    let of = parser.find_subcommand(first).unwrap_or(parser);
    let flags: Vec<&str> = of.get_arguments().filter_map(clap::Arg::get_long).collect();
    nearest(written.split('=').next()?, &flags).map(|flag| format!("did you mean --{flag}?"))
}

fn of_argument(first: &str, argument: &str) -> Option<String> {
    let name = argument.split('=').next().unwrap_or_default();
    let tip = match name {
        _ if matches!(first, "acp" | "connect") && is_address(argument) => {
            format!("to name the daemon: stdio_bus connect --connect {argument}")
        }
        _ if first == "init" && !argument.starts_with('-') => {
            format!("to name the command of your workers: stdio_bus init -- {argument}")
        }
        _ if first == "call" && !argument.starts_with('-') => {
            "PARAMS are one argument of JSON; quote them: '{\"a\": 1}'".to_owned()
        }
        _ if is_file(argument) && first == "doctor" => {
            format!("to name a configuration: stdio_bus doctor --config {argument}")
        }
        _ if is_file(argument) => format!("to name a configuration: stdio_bus check --config {argument}"),
        "--port" | "--host" | "--listen" | "--address" | "--bind" | "-p" | "-l" => {
            "to listen on a port: --tcp 127.0.0.1:9000, or --tcp [::]:9000 for every network".to_owned()
        }
        "--command" | "--cmd" | "--exec" | "--worker" | "-e" => {
            "to run a worker, write its command after --: stdio_bus --tcp 127.0.0.1:9000 -- python3 worker.py"
                .to_owned()
        }
        "--workers" | "--processes" | "--replicas" | "-n" => {
            "for several workers: --instances 3, and their command after --".to_owned()
        }
        "--socket" | "-s" => "to listen on a Unix socket: --unix PATH".to_owned(),
        "--websocket" => "to listen for WebSocket: --ws 127.0.0.1:9000".to_owned(),
        "--mcp" | "--streamable-http" => "to listen for MCP over HTTP: --http 127.0.0.1:9000".to_owned(),
        "--log-file" | "--logfile" | "--log" | "--log-path" | "--output" | "-o" => {
            "the log is written to stderr, and the service manager keeps it (under systemd: journalctl -u stdio_bus); in a \
             shell: 2>>FILE"
                .to_owned()
        }
        "--daemon" | "--daemonize" | "--background" | "--detach" | "--fork" | "--pidfile" | "--pid-file" | "-d"
        | "-D" => "it stays in the foreground, and a service manager keeps it running: docs/operations.md".to_owned(),
        "--user" | "--group" | "-u" => {
            "it runs as the user that starts it; a service manager can start it as another user: docs/operations.md"
                .to_owned()
        }
        "--verbose" | "--debug" | "--trace" | "-v" | "-vv" => "to see more: --log-level debug".to_owned(),
        "--quiet" | "--silent" | "-q" => "to see less: --log-level warn".to_owned(),
        "-c" | "--configuration" | "--conf" | "--config-file" | "-f" => {
            "to name a configuration: --config FILE".to_owned()
        }
        "--tls" | "--ssl" | "--cert" | "--key" | "--certificate" => {
            "TLS is for a proxy in front of the daemon: docs/balancers.md".to_owned()
        }
        _ => return None,
    };
    Some(tip)
}

fn is_file(text: &str) -> bool {
    const ENDINGS: [&str; 7] = [".json", ".jsonc", ".json5", ".yaml", ".yml", ".toml", ".conf"];
    !text.starts_with('-') && (text.contains('/') || ENDINGS.iter().any(|ending| text.ends_with(ending)))
}

/// Whether it names a script.
fn is_script(text: &str) -> bool {
    [".py", ".js", ".mjs", ".cjs", ".ts", ".rb", ".sh", ".php", ".pl", ".jar"]
        .iter()
        .any(|ending| text.ends_with(ending))
}

/// Whether it is a common interpreter of workers.
fn is_interpreter(text: &str) -> bool {
    let name = text.rsplit('/').next().unwrap_or(text).trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    ["python", "node", "npx", "uvx", "uv", "bun", "deno", "ruby", "php", "perl", "java", "sh", "bash", "cat"]
        .contains(&name)
}

fn is_address(text: &str) -> bool {
    !text.starts_with('-') && text.contains([':', '/'])
}
