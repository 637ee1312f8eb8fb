//! The subcommands and their arguments.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::daemon::bridge::{self, Daemon};
use super::daemon::control::{self, ControlOptions, Question};
use crate::address::Address;
use crate::bus::report::Level as LogLevel;

/// The workers that the program has built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Worker {
    /// Answers each request with its own params
    Echo,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Run as one of the built-in workers (the daemon starts these)
    Worker {
        /// The worker
        #[arg(value_enum)]
        name: Worker,
    },
    /// Connect stdin and stdout to a running daemon: the bridge that an editor or a client of MCP starts
    ///
    /// Only messages of the protocol are written to stdout; the log is written to stderr. If the daemon shuts down, the bridge
    /// connects again and repeats the requests that have reached no worker. Other requests that can no longer be answered get
    /// an error.
    #[command(version, display_name = "stdio_bus connect", visible_alias = "acp")]
    Connect(DaemonAtArgs),
    /// Send one request to a running daemon, and print what comes until its answer
    ///
    /// Each message is printed as a line; the answer is the last one. Without METHOD, the lines of stdin are sent as they are,
    /// until stdin ends and every request is answered. A line that does not begin with { is read as METHOD [PARAMS].
    ///
    /// Exits with 0 for a result, 1 for a JSON-RPC error, 2 for something that cannot be sent, 69 without a connection, and
    /// 75 without an answer in time.
    #[command(after_help = "Examples:
  stdio_bus call --connect tcp://127.0.0.1:9000 hello '{\"a\": 1}'
  stdio_bus call --connect unix:/run/bus.sock --initialize acp session/new '{\"cwd\": \"/tmp\", \"mcpServers\": []}'
  stdio_bus call --connect http://127.0.0.1:9000/mcp --initialize mcp tools/list")]
    Call {
        #[command(flatten)]
        daemon: DaemonAtArgs,
        /// Send the handshake of a client of this protocol first
        #[arg(long, value_name = "PROTOCOL", value_enum, ignore_case = true)]
        initialize: Option<HandshakeArg>,
        /// Give up after so many seconds without an answer
        #[arg(long, value_name = "SEC", default_value_t = 30, value_parser = seconds)]
        timeout: u32,
        /// The method to call
        method: Option<String>,
        /// The params of the request: a JSON object or array, or - for stdin
        #[arg(allow_hyphen_values = true)]
        params: Option<String>,
    },
    /// Show the state of a running daemon at a glance
    Status {
        /// Refresh it every second, as top does
        #[arg(long)]
        watch: bool,
        #[command(flatten)]
        control: ControlArgs,
    },
    /// Show a table of a running daemon
    Show {
        /// The table
        #[arg(value_enum)]
        table: Shown,
        #[command(flatten)]
        control: ControlArgs,
    },
    /// Close a client's connection
    ///
    /// Its pending requests are answered with errors (client_killed) before the connection is closed. A second
    /// `kill` closes it at once.
    Kill {
        #[command(subcommand)]
        what: Killed,
    },
    /// Replace a worker, or all workers of a pool in turn, without losing a request
    ///
    /// The daemon first starts the new worker. Then the old one gets no new work, and ends when its requests and sessions
    /// have ended, or after limits.replace_timeout_sec.
    Restart {
        #[command(subcommand)]
        what: Restarted,
    },
    /// Pause a pool or a listener of a running daemon
    ///
    /// New requests to a paused pool wait, without an error, until the pool is resumed. Pending requests continue, and so do
    /// cancellations, notifications and answers to its workers. A paused listener accepts no new clients: those that speak
    /// lines wait in its socket, those that speak HTTP get 503. Clients that are connected are still served.
    Pause {
        #[command(subcommand)]
        what: Paused,
    },
    /// Resume a paused pool or listener, and start the workers of a pool that were taken out
    Resume {
        #[command(subcommand)]
        what: Paused,
    },
    /// Take a worker out: it gets no new work, ends when its requests and sessions have ended, and is not replaced
    ///
    /// `resume pool` and `restart pool` start another worker in its place.
    TakeOut {
        #[command(subcommand)]
        what: TakenOut,
    },
    /// Make a running daemon reread its configuration, as SIGHUP does
    ///
    /// The daemon checks the new configuration first. If it has errors, the daemon keeps the old one, and this command exits
    /// with 78. Workers whose command has changed are replaced in turn, without losing a request. If the workers of a new
    /// command do not stay alive, this command says so and exits with 1.
    Reload {
        /// Print what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        control: ControlArgs,
    },
    /// Make a running daemon drain and exit, as SIGTERM does
    ///
    /// A second `drain` changes nothing; unlike a second signal, it never ends the drain early.
    Drain {
        #[command(flatten)]
        control: ControlArgs,
    },
    /// Change the log level of a running daemon, until it exits
    LogLevel {
        /// Log this level and the more important ones
        #[arg(value_enum, ignore_case = true)]
        level: LevelArg,
        #[command(flatten)]
        control: ControlArgs,
    },
    /// Check whether this machine can run the daemon, and say what to do if not
    ///
    /// It needs no daemon and starts nothing. It exits with 1 if something keeps the daemon from starting. A machine
    /// without io_uring is no failure, because the daemon uses epoll there.
    Doctor {
        /// The configuration that is to run on this machine, or - for stdin
        #[arg(long, value_name = "PATH")]
        config: Option<PathBuf>,
        /// Answer with JSON
        #[arg(long)]
        json: bool,
    },
    /// Write a configuration with comments, for a command or for the agents in PATH
    ///
    /// It knows agents for ACP (claude-agent-acp, codex-acp, opencode, gemini, qwen, openai-agent), and example servers of
    /// MCP that npx or uvx run. The file passes `stdio_bus check`.
    Init {
        /// The file to write; without it, or with -, the configuration is written to stdout
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Overwrite an existing file
        #[arg(long, requires = "output")]
        force: bool,
        /// The command of your workers
        #[arg(last = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Print the completions of a shell
    ///
    /// For bash: stdio_bus completion bash > ~/.local/share/bash-completion/completions/stdio_bus
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Check a configuration and list everything that is wrong with it
    ///
    /// Exits with 0 and prints a one-line summary, or exits with 78. Something that is valid but may be a mistake is a warning.
    /// Nothing is started.
    Check {
        /// The configuration file, or - for stdin; without it, the built-in configuration
        #[arg(long, value_name = "PATH")]
        config: Option<PathBuf>,
        /// Also check this machine: io_uring, addresses, directories; exit as the daemon would
        #[arg(long)]
        environment: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum Killed {
    /// A client, by its number in the log and in `show clients`
    Client {
        /// Its number
        #[arg(value_parser = |text: &str| text.parse::<u32>().map_err(|_| "write the number of the client, as `show clients` lists it"))]
        number: u32,
        #[command(flatten)]
        control: ControlArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum Paused {
    /// A pool, by its id
    Pool {
        /// Its id
        id: String,
        #[command(flatten)]
        control: ControlArgs,
    },
    /// A listener, by its number in the order of the configuration or its address
    Listener {
        /// Its number or address
        name: String,
        #[command(flatten)]
        control: ControlArgs,
    },
}

impl Paused {
    /// The request for an action on it.
    fn question(self, action: &str) -> (ControlArgs, Question) {
        let (control, kind, name) = match self {
            Self::Pool { id, control } => (control, "pool", id),
            Self::Listener { name, control } => (control, "listener", name),
        };
        (control, Question::Act { target: format!("/{action}?{kind}={}", control::escaped_value(&name)) })
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum TakenOut {
    /// A worker, by its name in the log and in `show workers`
    Worker {
        /// Its pool and number: agents/0
        name: String,
        #[command(flatten)]
        control: ControlArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum Restarted {
    /// A worker, by its name in the log and in `show workers`
    Worker {
        /// Its pool and number: agents/0
        name: String,
        /// Stop it at once: its pending requests get errors, and another worker is started when it has ended
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        control: ControlArgs,
    },
    /// All workers of a pool, one after the other
    Pool {
        /// Its id
        id: String,
        #[command(flatten)]
        control: ControlArgs,
    },
}

/// Which daemon is spoken to, as its clients do.
#[derive(Debug, Args)]
pub(super) struct DaemonAtArgs {
    /// The daemon: tcp://HOST:PORT, unix:PATH, ws[s]://HOST:PORT/acp or http[s]://HOST:PORT/mcp
    ///
    /// wss:// and https:// use TLS and need a program that was built with the feature `tls`. Without a port, wss:// and https:// mean
    /// 443, and ws:// and http:// mean 80. http:// and https:// are for clients of MCP.
    #[arg(long, value_name = "ADDRESS", value_parser = Daemon::parse)]
    connect: Daemon,
    /// A file with the token for the daemon, for ws://, wss://, http:// and https://
    ///
    /// The token is sent as `Authorization: Bearer`. It is never logged, and is not among the arguments, which other users of the
    /// machine can see.
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    /// A file with certificates (PEM) to trust in addition to the usual authorities, for wss:// and https://
    #[arg(long, value_name = "PATH")]
    ca_file: Option<PathBuf>,
}

impl DaemonAtArgs {
    /// Combines them.
    ///
    /// # Errors
    /// They contradict each other.
    pub(super) fn options(self, user: bridge::User) -> Result<bridge::Options, &'static str> {
        bridge::Options::new(self.connect, self.token_file, self.ca_file, user)
    }
}

/// [`bridge::Handshake`] as it is written on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum HandshakeArg {
    /// initialize of the Agent Client Protocol, version 1
    Acp,
    /// initialize of the Model Context Protocol, and notifications/initialized; to a server without initialize METHOD, such as
    /// server/discover, is sent in revision 2026-07-28
    Mcp,
}

impl From<HandshakeArg> for bridge::Handshake {
    fn from(handshake: HandshakeArg) -> Self {
        match handshake {
            HandshakeArg::Acp => Self::Acp,
            HandshakeArg::Mcp => Self::Mcp,
        }
    }
}

/// Which daemon is asked.
#[derive(Debug, Args)]
pub(super) struct ControlArgs {
    /// The admin listener of the daemon [default: $STDIO_BUS_ADMIN]
    ///
    /// The address that the daemon has as --admin or admin.listen: the path of a Unix socket, @NAME, or HOST:PORT.
    #[arg(long, value_name = "ADDRESS", value_parser = admin_address)]
    admin: Option<Address>,
    /// A file with the token, for actions over TCP [default: $STDIO_BUS_ADMIN_TOKEN_FILE]
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    /// Answer with JSON
    #[arg(long)]
    json: bool,
}

impl From<ControlArgs> for ControlOptions {
    fn from(args: ControlArgs) -> Self {
        Self { address: args.admin, token_file: args.token_file, json: args.json }
    }
}

/// The tables that can be shown.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Shown {
    /// Connections, with the requests that are pending and the bytes that are queued for each
    Clients,
    /// Worker processes, with their state and load
    Workers,
    /// Pools, with the outcomes of their requests
    Pools,
    /// Sessions, and names that are held
    Sessions,
    /// Requests that wait for their answers
    Pending,
    /// Who waits for whom: clients and workers that are not read, and requests without an answer
    Waiting,
    /// Who uses most, in the last minute and since the start: by source, token and pool
    Top,
    /// Tables and queues, and how full they are
    Limits,
    /// The last warnings and errors
    Errors,
}

impl Verb {
    /// The question for a running daemon, if the command is one.
    pub(super) fn question(self) -> Option<(ControlArgs, Question)> {
        Some(match self {
            Self::Status { watch, control } => (control, Question::Status { watch }),
            Self::Show { table, control } => {
                let table = match table {
                    Shown::Clients => "clients",
                    Shown::Workers => "workers",
                    Shown::Pools => "pools",
                    Shown::Sessions => "sessions",
                    Shown::Pending => "pending",
                    Shown::Waiting => "waiting",
                    Shown::Top => "top",
                    Shown::Limits => "limits",
                    Shown::Errors => "errors",
                };
                (control, Question::Show { table })
            }
            Self::Kill { what: Killed::Client { number, control } } => {
                (control, Question::Act { target: format!("/kill-client?client={number}") })
            }
            Self::Restart { what: Restarted::Worker { name, now, control } } => {
                let now = if now { "&now=1" } else { "" };
                let target = format!("/restart-worker?worker={}{now}", control::escaped_value(&name));
                (control, Question::Act { target })
            }
            Self::Restart { what: Restarted::Pool { id, control } } => {
                (control, Question::Act { target: format!("/restart-pool?pool={}", control::escaped_value(&id)) })
            }
            Self::Pause { what } => what.question("pause"),
            Self::Resume { what } => what.question("resume"),
            Self::TakeOut { what: TakenOut::Worker { name, control } } => (
                control,
                Question::Act { target: format!("/take-out-worker?worker={}", control::escaped_value(&name)) },
            ),
            Self::Reload { dry_run, control } => (control, Question::Reload { dry_run }),
            Self::Drain { control } => (control, Question::Act { target: "/drain".to_owned() }),
            Self::LogLevel { level, control } => {
                let level = match level {
                    LevelArg::Debug => "debug",
                    LevelArg::Info => "info",
                    LevelArg::Warn => "warn",
                    LevelArg::Error => "error",
                };
                (control, Question::Act { target: format!("/log-level?level={level}") })
            }
            Self::Worker { .. }
            | Self::Connect(_)
            | Self::Call { .. }
            | Self::Init { .. }
            | Self::Completion { .. }
            | Self::Check { .. }
            | Self::Doctor { .. } => {
                return None;
            }
        })
    }
}

/// [`LogLevel`] as it is written on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum LevelArg {
    /// In addition accepted connections, late answers and cancellations
    Debug,
    /// What happens to workers and clients
    Info,
    /// What went wrong and was handled
    #[value(alias = "warning")]
    Warn,
    /// What needs an operator
    Error,
}

impl From<LevelArg> for LogLevel {
    fn from(level: LevelArg) -> Self {
        match level {
            LevelArg::Debug => Self::Debug,
            LevelArg::Info => Self::Info,
            LevelArg::Warn => Self::Warn,
            LevelArg::Error => Self::Error,
        }
    }
}

/// How long a command waits at most.
fn seconds(text: &str) -> Result<u32, &'static str> {
    let number = text.parse().ok().filter(|number| (1..=86_400).contains(number));
    number.ok_or("write whole seconds from 1 to 86400, as in 30")
}

fn admin_address(text: &str) -> Result<Address, String> {
    match Address::from_any(text).map_err(|error| error.to_string())? {
        address if address.is_port_zero() => Err("port 0 cannot be connected to".to_owned()),
        address => Ok(address),
    }
}
