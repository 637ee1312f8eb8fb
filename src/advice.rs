//! What to write instead, for command lines that people write from habit: those of other programs, and those that leave
//! something out. It adds a tip to an error of the parser, and changes nothing of what is an error.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Adds the tip, if there is one, to an error of `parser`. The first of `arguments` is the program's name.
pub(crate) fn advise(mut error: clap::Error, arguments: &[OsString], mut parser: clap::Command) -> clap::Error {
    let of = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let first = arguments.get(1).and_then(|argument| argument.to_str()).unwrap_or_default();
    let tip = match error.kind() {
        ErrorKind::InvalidSubcommand => Some(of_command(first, &of(ContextKind::InvalidSubcommand), &parser)),
        ErrorKind::UnknownArgument => of_argument(first, &of(ContextKind::InvalidArg)),
        _ => None,
    };
    let Some(tip) = tip else { return error };
    error.remove(ContextKind::SuggestedSubcommand);
    if error.remove(ContextKind::SuggestedArg).is_some() && first.starts_with('-') {
        // It was that of the argument that is not meant.
        error.insert(ContextKind::Usage, ContextValue::StyledStr(parser.render_usage()));
    }
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

fn of_command(first: &str, verb: &str, parser: &clap::Command) -> String {
    match (first, verb) {
        ("kill", _) if first != verb => format!("to close a client: stdio_bus kill client {verb}"),
        ("restart", _) if first != verb => format!("to have a worker replaced: stdio_bus restart worker {verb}"),
        (_, "run" | "start" | "serve" | "daemon" | "listen") => {
            "the daemon needs no command: stdio_bus --config FILE --tcp 127.0.0.1:9000".to_owned()
        }
        (_, "stop" | "shutdown" | "quit") => "to end a running daemon: stdio_bus drain, or SIGTERM".to_owned(),
        (_, "reload") => "a configuration is read at the start; end the daemon, and start it again".to_owned(),
        (_, "echo") => "for the built-in worker: stdio_bus worker echo".to_owned(),
        (_, "bridge" | "connect") => "for the bridge: stdio_bus acp --connect tcp://HOST:PORT".to_owned(),
        (_, "version") => "for the version: stdio_bus --version".to_owned(),
        _ if is_file(verb) => format!("to run a configuration: stdio_bus --config {verb}"),
        _ => {
            let commands: Vec<&str> = parser.get_subcommands().map(clap::Command::get_name).collect();
            format!("the commands are {}; the daemon itself needs none", commands.join(", "))
        }
    }
}

fn of_argument(first: &str, argument: &str) -> Option<String> {
    let name = argument.split('=').next().unwrap_or_default();
    let tip = match name {
        _ if first == "acp" && is_address(argument) => {
            format!("to name the daemon: stdio_bus acp --connect {argument}")
        }
        _ if is_file(argument) && first == "doctor" => {
            format!("to name a configuration: stdio_bus doctor --config {argument}")
        }
        _ if is_file(argument) => format!("to name a configuration: stdio_bus check --config {argument}"),
        "--port" | "--host" | "--listen" | "--address" | "--bind" | "-p" | "-l" => {
            "to listen on a port: --tcp 127.0.0.1:9000, or --tcp [::]:9000 for every network".to_owned()
        }
        "--socket" | "-s" => "to listen on a Unix socket: --unix PATH".to_owned(),
        "--websocket" => "to listen for WebSocket: --ws 127.0.0.1:9000".to_owned(),
        "--mcp" | "--streamable-http" => "to listen for MCP over HTTP: --http 127.0.0.1:9000".to_owned(),
        "--log-file" | "--logfile" | "--log" | "--log-path" | "--output" | "-o" => {
            "the log goes to stderr, and the service manager keeps it (under systemd: journalctl -u stdio_bus); in a \
             shell: 2>>FILE"
                .to_owned()
        }
        "--daemon" | "--daemonize" | "--background" | "--detach" | "--fork" | "--pidfile" | "--pid-file" | "-d"
        | "-D" => "it stays in the foreground, and a service manager keeps it running: docs/systemd.md".to_owned(),
        "--user" | "--group" | "-u" => {
            "it runs as who starts it; a service manager can start it as another user: docs/systemd.md".to_owned()
        }
        "--verbose" | "--debug" | "--trace" | "-v" | "-vv" => "to see more: --log-level debug".to_owned(),
        "--quiet" | "--silent" | "-q" => "to see less: --log-level warn".to_owned(),
        "-c" | "--configuration" | "--conf" | "--config-file" | "-f" => {
            "to name a configuration: --config FILE".to_owned()
        }
        "--tls" | "--ssl" | "--cert" | "--key" | "--certificate" => {
            "TLS is for a proxy in front of the daemon: docs/operations.md".to_owned()
        }
        _ => return None,
    };
    Some(tip)
}

fn is_file(text: &str) -> bool {
    const ENDINGS: [&str; 7] = [".json", ".jsonc", ".json5", ".yaml", ".yml", ".toml", ".conf"];
    !text.starts_with('-') && (text.contains('/') || ENDINGS.iter().any(|ending| text.ends_with(ending)))
}

fn is_address(text: &str) -> bool {
    !text.starts_with('-') && text.contains([':', '/'])
}
