//! The command line, and the commands beside the daemon by what they need: nothing (`alone`: `init`, `completion`, the
//! built-in worker), a configuration (`file`: `check`, `doctor`), or a running daemon (`daemon`: `connect` and `call` as its
//! clients, all others as its operators).
//!
//! Here is the parser. One table, the derives below, makes the parser, the short help (`-h`), the long help (`--help`)
//! and the usage errors. Parsing opens nothing and starts nothing. A clap error knows where it belongs: help and
//! version go to stdout with exit code 0, usage errors to stderr with 2 (`error.exit()`).

mod advice;
pub mod alone;
pub mod daemon;
pub mod file;
mod listeners;
mod verbs;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, Parser, ValueEnum};
use clap_complete::Shell;

use crate::activation::Inherited;
use crate::address::Address;
use crate::bus::settings::Assignment;
use crate::config::{CommandLinePool, Config, ConfigError, Listen, Listener, LogFormat, LogLevel};
use crate::error::StartError;
use crate::io::kernel::Choice;
use alone::init;
use daemon::bridge;
use daemon::control::{ControlOptions, Question};
use verbs::{LevelArg, Verb};

pub use verbs::Worker;

/// A parsed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Run the daemon.
    Run(Options),
    /// Run a built-in worker.
    Worker(Worker),
    /// Bridge stdin and stdout to a running daemon.
    Connect(bridge::Options),
    /// Send requests to a running daemon as a client.
    Call(bridge::Call),
    /// Write a configuration.
    Init(init::InitOptions),
    /// Write the completions of a shell.
    Completion(Shell),
    /// Query or control a running daemon.
    Control {
        /// The daemon to ask.
        options: ControlOptions,
        /// The question.
        question: Question,
    },
    /// Check whether this machine can run the daemon.
    Doctor {
        /// The configuration to run here.
        config: ConfigSource,
        /// Answer with JSON.
        json: bool,
    },
    /// Check a configuration.
    Check {
        /// Where it comes from.
        config: ConfigSource,
        /// Check this machine, too.
        environment: bool,
    },
}

/// The options of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the configuration comes from.
    pub config: ConfigSource,
    /// Listeners in addition to those of the configuration.
    pub listeners: Vec<Listener>,
    /// `--admin`, which overrides the configuration.
    pub admin: Option<Address>,
    /// `--log-level`, which overrides the configuration.
    pub log_level: Option<LogLevel>,
    /// `--log-format`, which overrides the configuration.
    pub log_format: Option<LogFormat>,
    /// `--io`, which overrides the environment.
    pub io: Option<Choice>,
    /// Every pool's command has to be runnable.
    pub strict: bool,
}

/// Where the configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigSource {
    /// None: two built-in echo workers.
    Embedded,
    /// A file.
    File(PathBuf),
    /// A descriptor that the parent process passed.
    Descriptor(RawFd),
    /// The command line itself.
    Command(CommandLinePool),
}

impl ConfigSource {
    /// Whether it can be read again, which a pipe cannot.
    pub fn can_be_read_again(&self) -> bool {
        matches!(self, Self::File(path) if path.is_file())
    }

    /// Reads it once more, without blocking on a pipe in place of the file.
    pub fn look_again(&self) -> Result<(), StartError> {
        match self {
            Self::File(path) if path.exists() && !path.is_file() => Err(ConfigError::Unusable {
                origin: path.display().to_string(),
                message: "is no longer a regular file; put the configuration there".to_owned(),
            }
            .into()),
            _ => Ok(()),
        }
    }

    /// Loads it. Must be called before anything is opened (see [`Config::from_fd`]).
    pub fn load(&self, program: &Path) -> Result<Config, StartError> {
        Ok(match self {
            Self::Embedded => Config::embedded(program),
            Self::File(path) => Config::load(path)?,
            // SAFETY: the parent passed it for this purpose, and nothing of our own is open yet.
            Self::Descriptor(number) => unsafe { Config::from_fd(*number)? },
            Self::Command(pool) => Config::of_command(pool)?,
        })
    }
}

impl Options {
    /// Applies `DEBUG_STDIO`, the C daemon's variable for full logging: `1` means [`LogLevel::Debug`] unless the
    /// command line sets a level.
    pub fn debug(&mut self, value: Option<&OsStr>) {
        if self.log_level.is_none() && value.is_some_and(|value| !value.is_empty() && value != "0") {
            self.log_level = Some(LogLevel::Debug);
        }
    }

    /// Applies `STDIO_BUS_IO`, the default of `--io`.
    ///
    /// # Errors
    /// It is not a valid value of `--io`.
    pub fn carry(&mut self, value: Option<&OsStr>) -> Result<(), StartError> {
        let Some(value) = value.filter(|value| self.io.is_none() && !value.is_empty()) else { return Ok(()) };
        let means = value.to_str().and_then(|text| Backend::from_str(text, true).ok()).ok_or_else(|| {
            StartError::Usage(format!("STDIO_BUS_IO is {}; write auto, ring or epoll", value.display()))
        })?;
        self.io = Some(means.into());
        Ok(())
    }

    /// The configuration with the command line applied: its listeners are complete and its log settings final.
    ///
    /// `program` is the daemon's own executable, for the built-in workers; `inherited` are the sockets passed to us,
    /// which are the default listeners. Must be called before anything else is opened (see [`Config::from_fd`]).
    pub fn configuration(&self, program: &Path, inherited: &[Inherited]) -> Result<Config, StartError> {
        if let ConfigSource::Descriptor(number) = self.config
            && inherited.iter().any(|socket| socket.number == number)
        {
            let why = "the configuration would come from it, too; use --config PATH".to_owned();
            return Err(StartError::Inherited { number, why });
        }
        let from_stdin = self.config == ConfigSource::Descriptor(0);
        let both = "stdin cannot bring the configuration and the client's messages; add --tcp or --unix, or write the \
                    configuration to a file";
        if from_stdin && self.listeners.iter().any(|listener| listener.listen == Listen::Stdio) {
            return Err(StartError::Usage(both.to_owned()));
        }
        let mut config = self.config.load(program)?.privileged()?;
        if self.strict {
            config = config.strict()?;
        }
        if self.listeners.is_empty() && config.listeners.is_empty() {
            config.listeners = inherited.iter().map(|socket| Listener::open(socket.address.clone().into())).collect();
        }
        config.listen(&self.listeners)?;
        config.administer(self.admin.clone())?;
        if from_stdin && config.listeners.iter().any(|listener| listener.listen == Listen::Stdio) {
            return Err(StartError::Usage(both.to_owned()));
        }
        config.log.level = self.log_level.unwrap_or(config.log.level);
        config.log.format = self.log_format.unwrap_or(config.log.format);
        Ok(config)
    }
}

/// Parses a command line; the first argument is the program's name.
pub fn parse<I>(arguments: I) -> Result<Command, clap::Error>
where
    I: IntoIterator,
    I::Item: Into<OsString> + Clone,
{
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    // The daemon starts workers like this, and its first answer waits for them: skip the parser.
    if let [_, verb, name] = &*arguments
        && verb == "worker"
        && name == "echo"
    {
        return Ok(Command::Worker(Worker::Echo));
    }
    Ok(match CommandLine::try_parse_from(&arguments).map_err(|error| advice::advise(error, &arguments, command()))? {
        CommandLine { command: Some(Verb::Worker { name }), .. } => Command::Worker(name),
        CommandLine { command: Some(Verb::Connect(daemon)), .. } => Command::Connect(
            daemon.options(bridge::User::Editor).map_err(|why| command().error(ErrorKind::ArgumentConflict, why))?,
        ),
        CommandLine { command: Some(Verb::Call { daemon, initialize, timeout, method, params }), .. } => {
            let options = daemon
                .options(bridge::User::Person)
                .map_err(|why| command().error(ErrorKind::ArgumentConflict, why))?;
            let limit = Duration::from_secs(timeout.into());
            Command::Call(bridge::Call { options, handshake: initialize.map(Into::into), limit, method, params })
        }
        CommandLine { command: Some(Verb::Init { output, force, command }), .. } => {
            Command::Init(init::InitOptions { output, force, command })
        }
        CommandLine { command: Some(Verb::Completion { shell }), .. } => Command::Completion(shell),
        CommandLine { command: Some(Verb::Check { config, environment }), .. } => {
            Command::Check { config: config.map_or(ConfigSource::Embedded, ConfigSource::from), environment }
        }
        CommandLine { command: Some(Verb::Doctor { config, json }), .. } => {
            Command::Doctor { config: config.map_or(ConfigSource::Embedded, ConfigSource::from), json }
        }
        CommandLine { command: Some(verb), .. } => match verb.question() {
            Some((options, question)) => Command::Control { options: options.into(), question },
            None => unreachable!("the others are above"),
        },
        CommandLine { command: None, daemon } => {
            daemon
                .check(arguments.last().is_some_and(|last| last == "--"))
                .map_err(|why| command().error(ErrorKind::ArgumentConflict, why))?;
            Command::Run(daemon.into())
        }
    })
}

/// The parser with its help texts, for completions and the manual page.
pub fn command() -> clap::Command {
    <CommandLine as clap::CommandFactory>::command()
}

/// Writes the completions of a shell to stdout.
///
/// # Errors
/// They cannot be written.
pub fn completion(shell: Shell) -> Result<(), StartError> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "stdio_bus", &mut text);
    io::stdout().write_all(&text).map_err(StartError::io("write stdout"))
}

const AFTER_HELP: &str = "\
Examples:
  stdio_bus --tcp 127.0.0.1:9000                        two built-in echo workers
  stdio_bus --tcp 127.0.0.1:9000 -- python3 worker.py   a worker of your own
  stdio_bus call --connect tcp://127.0.0.1:9000 hello   send it a request
  stdio_bus init --output bus.json                      write a configuration for the agents in PATH
  stdio_bus --config bus.json --unix /run/bus.sock      run the daemon with it
  stdio_bus check --config bus.json                     list the errors of a configuration
  stdio_bus status --admin /run/admin.sock              show the state of a daemon that has this --admin

Exit codes:
  0 done, 1 failure at run time or lost output, 2 wrong usage, 69 --io ring without io_uring, 73 cannot listen or open the log file, 78 error in the configuration";

/// A message bus for AI agents that speak JSON-RPC over stdin and stdout.
///
/// Clients connect over stdin and stdout, a Unix socket or TCP with one JSON object per line, over WebSocket, or over the Streamable
/// HTTP of MCP and ACP. Supervised workers read lines on stdin and answer on stdout. Without a configuration and a command, two
/// built-in echo workers run.
#[derive(Debug, Parser)]
#[command(name = "stdio_bus", version, max_term_width = 100, after_help = AFTER_HELP)]
#[command(args_conflicts_with_subcommands = true, args_override_self = true)]
struct CommandLine {
    #[command(flatten)]
    daemon: DaemonArgs,
    #[command(subcommand)]
    command: Option<Verb>,
}

#[derive(Debug, Args)]
struct DaemonArgs {
    /// Read the configuration from this file
    ///
    /// The file is JSON; docs/configuration.md lists every key, and config/ has examples. `-` is stdin. Without a configuration,
    /// two built-in echo workers run.
    #[arg(long, value_name = "PATH", conflicts_with = "config_fd")]
    config: Option<PathBuf>,

    /// Read the configuration from this open descriptor
    ///
    /// This is for programs that start the daemon and generate its configuration. The descriptor is read up to its end and then
    /// closed.
    #[arg(long, value_name = "N", value_parser = descriptor)]
    config_fd: Option<RawFd>,

    /// Serve one client on stdin and stdout (the default)
    ///
    /// The flags of listeners may be combined, each of them once. With --stdio the daemon exits when stdin ends.
    #[arg(long)]
    stdio: bool,

    #[command(flatten)]
    listeners: listeners::Flags,

    /// Serve readiness, metrics, a status page and commands over HTTP
    ///
    /// ADDRESS is the path of a Unix socket (unix:PATH, or a path with a slash), @NAME, or HOST:PORT. It takes
    /// precedence over admin.listen in the configuration. Over TCP, actions need admin.token_file.
    #[arg(long, value_name = "ADDRESS", value_parser = Address::from_any)]
    admin: Option<Address>,

    /// Log this level and the more important ones [default: info]
    ///
    /// It takes precedence over DEBUG_STDIO=1 in the environment, which means debug. Both take precedence over log.level in the
    /// configuration.
    #[arg(long, value_name = "LEVEL", value_enum, ignore_case = true)]
    log_level: Option<LevelArg>,

    /// The format of the log's lines [default: text]
    #[arg(long, value_name = "FORMAT", value_enum, ignore_case = true)]
    log_format: Option<Format>,

    /// The kernel interface for I/O [default: auto]
    ///
    /// If a sandbox blocks io_uring or the kernel does not have it, epoll does the same with more CPU time. This flag takes precedence
    /// over STDIO_BUS_IO in the environment, which has the same values.
    #[arg(long, value_name = "HOW", value_enum, ignore_case = true)]
    io: Option<Backend>,

    /// Do not start if the command of any pool cannot be run
    ///
    /// Without it the daemon logs an error and serves the other pools. Listeners whose clients would use the pool are reported
    /// as not ready.
    #[arg(long)]
    strict: bool,

    /// The number of workers that run the command behind -- [default: 1]
    #[arg(long, value_name = "N", value_parser = whole_number)]
    instances: Option<u32>,

    /// How messages are assigned to the workers that run the command behind -- [default: round_robin]
    #[arg(long, value_name = "HOW", value_enum, ignore_case = true)]
    assignment: Option<Assigned>,

    /// Run this command as the workers, without a configuration
    ///
    /// The workers are the only pool, which is called `worker`, and are started in this directory. A worker reads lines of
    /// JSON-RPC from stdin and answers on stdout.
    #[arg(last = true, value_name = "COMMAND")]
    worker: Vec<String>,
}

impl DaemonArgs {
    /// Checks for options that exclude or require each other.
    fn check(&self, ends_with_dashes: bool) -> Result<(), &'static str> {
        if ends_with_dashes {
            return Err("write the command of the workers after --, as in: -- python3 worker.py");
        }
        if !self.worker.is_empty() && (self.config.is_some() || self.config_fd.is_some()) {
            return Err(
                "a configuration and a command after -- exclude each other: leave --config out, or write the command \
                 in \
                 pools[]",
            );
        }
        if self.worker.is_empty() && (self.instances.is_some() || self.assignment.is_some()) {
            return Err(
                "--instances and --assignment are for a command after --, as in: stdio_bus --tcp 127.0.0.1:9000 \
                 --instances 2 -- python3 worker.py\nwith a configuration, write instances and assignment in pools[]",
            );
        }
        Ok(())
    }
}

/// [`Assignment`] as it is written on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Assigned {
    /// Each message is sent to the next worker
    RoundRobin,
    /// All messages of a connection go to one worker
    Client,
    /// Each connection has a worker of its own
    Dedicated,
}

impl From<Assigned> for Assignment {
    fn from(assigned: Assigned) -> Self {
        match assigned {
            Assigned::RoundRobin => Self::RoundRobin,
            Assigned::Client => Self::Client,
            Assigned::Dedicated => Self::Dedicated,
        }
    }
}

/// [`Choice`] as it is written on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Backend {
    /// io_uring, or epoll if io_uring cannot be used
    Auto,
    /// io_uring; exit with 69 if it cannot be used
    Ring,
    /// epoll
    Epoll,
}

impl From<Backend> for Choice {
    fn from(means: Backend) -> Self {
        match means {
            Backend::Auto => Self::Auto,
            Backend::Ring => Self::Ring,
            Backend::Epoll => Self::Epoll,
        }
    }
}

/// [`LogFormat`] as it is written on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

impl From<Format> for LogFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Text => Self::Text,
            Format::Json => Self::Json,
        }
    }
}

impl From<PathBuf> for ConfigSource {
    fn from(path: PathBuf) -> Self {
        if path.as_os_str() == "-" { Self::Descriptor(0) } else { Self::File(path) }
    }
}

impl From<DaemonArgs> for Options {
    fn from(args: DaemonArgs) -> Self {
        let config = match (args.config, args.config_fd) {
            (Some(path), _) => ConfigSource::from(path),
            (None, Some(number)) => ConfigSource::Descriptor(number),
            (None, None) if args.worker.is_empty() => ConfigSource::Embedded,
            (None, None) => ConfigSource::Command(CommandLinePool {
                command: args.worker,
                instances: args.instances,
                assignment: args.assignment.map(Assignment::from),
            }),
        };
        let stdio = args.stdio.then(|| Listener::open(Listen::Stdio));
        let listeners = stdio.into_iter().chain(args.listeners.0).collect();
        Self {
            config,
            listeners,
            admin: args.admin,
            log_level: args.log_level.map(LogLevel::from),
            log_format: args.log_format.map(LogFormat::from),
            io: args.io.map(Choice::from),
            strict: args.strict,
        }
    }
}

fn whole_number(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "write a whole number, as in 2")
}

fn descriptor(text: &str) -> Result<RawFd, &'static str> {
    let number = text.parse().ok().filter(|number| (0..=1_048_576).contains(number));
    number.ok_or("write the number of an open descriptor, as in 3")
}

#[cfg(test)]
mod tests;
