//! The command line: what a person or a program may ask of `stdio_bus`, and help for both.
//!
//! One table, the derives below, makes the parser, the short help (`-h`), the long help (`--help`) and the usage
//! errors. Parsing opens nothing and starts nothing. A clap error knows where it belongs: help and version go to stdout
//! with exit code 0, usage errors to stderr with 2 (`error.exit()`).

use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::activation::Inherited;
use crate::address::{Address, AddressError};
use crate::advice;
use crate::bridge::{self, Daemon};
use crate::config::{Config, Listen, Listener, LogFormat, LogLevel, Web, WebProtocol};
use crate::control::{self, Question, Whom};
use crate::error::StartError;
use crate::io::kernel::Choice;

/// What the program was asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Be the daemon.
    Run(Options),
    /// Be the built-in worker of this name.
    Worker(Worker),
    /// Be the bridge between stdin/stdout and a running daemon.
    Acp(bridge::Options),
    /// Ask a running daemon.
    Control {
        /// Which one.
        whom: Whom,
        /// What.
        question: Question,
    },
    /// Look whether this machine is fit for the daemon.
    Doctor {
        /// The configuration that is to run here.
        config: Source,
        /// The answer is JSON.
        json: bool,
    },
    /// Check a configuration.
    Check {
        /// Where it comes from.
        config: Source,
        /// This machine is checked, too.
        environment: bool,
    },
}

/// The workers that the program has built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Worker {
    /// Answers each request with its own params
    Echo,
}

/// How the daemon is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the configuration comes from.
    pub config: Source,
    /// The listeners that were asked for beside those of the configuration.
    pub listeners: Vec<Listener>,
    /// `--admin`, which comes before the configuration's.
    pub admin: Option<Address>,
    /// `--log-level`, which comes before the configuration's.
    pub log_level: Option<LogLevel>,
    /// `--log-format`, which comes before the configuration's.
    pub log_format: Option<LogFormat>,
    /// `--io`, which comes before the environment's.
    pub io: Option<Choice>,
    /// Every pool has to be able to run.
    pub strict: bool,
}

/// Where the configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nowhere: two built-in echo workers.
    Embedded,
    /// A file.
    File(PathBuf),
    /// A descriptor that the parent process passed.
    Descriptor(RawFd),
}

impl Source {
    /// Whether what is there can be read again: a pipe has given all that it had.
    pub fn can_be_read_again(&self) -> bool {
        matches!(self, Self::File(path) if path.is_file())
    }

    /// What is there. To be called before anything is opened (see [`Config::from_fd`]).
    pub fn load(&self, program: &Path) -> Result<Config, StartError> {
        Ok(match self {
            Self::Embedded => Config::embedded(program),
            Self::File(path) => Config::load(path)?,
            // SAFETY: the parent passed it for this purpose, and nothing of our own is open yet.
            Self::Descriptor(number) => unsafe { Config::from_fd(*number)? },
        })
    }
}

impl Options {
    /// Takes `DEBUG_STDIO`, by which the C daemon is told to log everything: `1` means [`LogLevel::Debug`] where the
    /// command line names no level.
    pub fn debug(&mut self, value: Option<&OsStr>) {
        if self.log_level.is_none() && value.is_some_and(|value| !value.is_empty() && value != "0") {
            self.log_level = Some(LogLevel::Debug);
        }
    }

    /// Takes `STDIO_BUS_IO`, which says what `--io` says where the command line does not.
    ///
    /// # Errors
    /// It is none of the values that `--io` takes.
    pub fn carry(&mut self, value: Option<&OsStr>) -> Result<(), StartError> {
        let Some(value) = value.filter(|value| self.io.is_none() && !value.is_empty()) else { return Ok(()) };
        let means = value.to_str().and_then(|text| Means::from_str(text, true).ok()).ok_or_else(|| {
            StartError::Usage(format!("STDIO_BUS_IO is {}; write auto, ring or epoll", value.display()))
        })?;
        self.io = Some(means.into());
        Ok(())
    }

    /// The configuration with the command line applied: its listeners are complete and its log settings final.
    ///
    /// `program` is the daemon's own program file, for the built-in workers; `inherited` are the sockets that were passed
    /// on to us: where nobody says where to listen, it is there. To be called before anything else is opened (see
    /// [`Config::from_fd`]).
    pub fn configuration(&self, program: &Path, inherited: &[Inherited]) -> Result<Config, StartError> {
        if let Source::Descriptor(number) = self.config
            && inherited.iter().any(|socket| socket.number == number)
        {
            let why = "it is to bring the configuration, too; use --config PATH".to_owned();
            return Err(StartError::Inherited { number, why });
        }
        let from_stdin = self.config == Source::Descriptor(0);
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

/// Reads a command line; the first argument is the program's name.
pub fn parse<I>(arguments: I) -> Result<Command, clap::Error>
where
    I: IntoIterator,
    I::Item: Into<OsString> + Clone,
{
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    Ok(match CommandLine::try_parse_from(&arguments).map_err(|error| advice::advise(error, &arguments, command()))? {
        CommandLine { command: Some(Verb::Worker { name }), .. } => Command::Worker(name),
        CommandLine { command: Some(Verb::Acp { connect, token_file, ca_file }), .. } => {
            let options = bridge::Options::new(connect, token_file, ca_file);
            Command::Acp(options.map_err(|why| command().error(ErrorKind::ArgumentConflict, why))?)
        }
        CommandLine { command: Some(Verb::Check { config, environment }), .. } => {
            Command::Check { config: config.map_or(Source::Embedded, Source::from), environment }
        }
        CommandLine { command: Some(Verb::Doctor { config, json }), .. } => {
            Command::Doctor { config: config.map_or(Source::Embedded, Source::from), json }
        }
        CommandLine { command: Some(verb), .. } => match verb.question() {
            Some((whom, question)) => Command::Control { whom: whom.into(), question },
            None => unreachable!("the others are above"),
        },
        CommandLine { command: None, daemon } => Command::Run(daemon.into()),
    })
}

/// The parser with its help texts, for completions and the manual page.
pub fn command() -> clap::Command {
    <CommandLine as clap::CommandFactory>::command()
}

const AFTER_HELP: &str = "\
Examples:
  stdio_bus --tcp 127.0.0.1:9000                        two built-in echo workers
  stdio_bus --config agents.json --unix /run/bus.sock   your own workers
  stdio_bus check --config agents.json                  what is wrong with a configuration
  stdio_bus status --admin /run/admin.sock              what a running daemon does (--admin)

Exit codes:
  0 done, 1 failed at run time or something could not be written, 2 wrong usage, 69 no io_uring with --io ring, 73 cannot listen, 78 wrong configuration";

/// A message bus for AI agents that speak JSON-RPC over stdin and stdout.
///
/// Clients connect over stdin/stdout, a Unix socket or TCP and write one JSON object per line; supervised workers read
/// them on stdin and answer on stdout. Without a configuration, two built-in echo workers run.
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
    /// JSON; docs/configuration.md lists every key, config/ has examples. `-` is stdin. Without a configuration, two
    /// built-in echo workers run.
    #[arg(long, value_name = "PATH", conflicts_with = "config_fd")]
    config: Option<PathBuf>,

    /// Read the configuration from this open descriptor
    ///
    /// For programs that start the daemon and make its configuration: it is read up to the end and then closed.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=1_048_576))]
    config_fd: Option<RawFd>,

    /// Serve one client on stdin and stdout (the default)
    ///
    /// --stdio, --unix, --tcp, --ws and --http may be given together, each once; with --stdio the daemon ends when stdin
    /// does.
    #[arg(long)]
    stdio: bool,

    /// Serve many clients on a Unix socket
    ///
    /// A socket that a dead daemon left behind is replaced, one that is in use is not. Only its owner may connect;
    /// listeners[].mode in the configuration can widen that.
    #[arg(long, value_name = "PATH", value_parser = unix_address())]
    unix: Option<Address>,

    /// Serve many clients on a TCP port
    ///
    /// HOST is a name or an address, an IPv6 address in brackets: [::1]:9000; without it, :9000 is every network of
    /// this machine, IPv4 and IPv6. With port 0 the kernel chooses one, which is reported on stderr.
    #[arg(long, value_name = "HOST:PORT", value_parser = Address::from_listener)]
    tcp: Option<Address>,

    /// Serve many clients that speak WebSocket, at ws://HOST:PORT/acp
    ///
    /// Who may come in (tokens, pages of browsers) is said by listeners[] in the configuration. wss:// is for a proxy in
    /// front of it.
    #[arg(long, value_name = "HOST:PORT", value_parser = websocket_address)]
    ws: Option<Address>,

    /// Serve many clients of MCP over Streamable HTTP, at http://HOST:PORT/mcp
    ///
    /// Each pool is at /mcp/POOL, and has to say its assignment in the configuration; listeners[] there says who may come
    /// in. https:// is for a proxy in front of it.
    #[arg(long, value_name = "HOST:PORT", value_parser = mcp_address)]
    http: Option<Address>,

    /// Serve readiness, metrics, a status page and commands over HTTP
    ///
    /// ADDRESS is the path of a Unix socket (unix:PATH, or a path with a slash), @NAME, or HOST:PORT. It comes before
    /// admin.listen in the configuration. Over TCP, actions need admin.token_file.
    #[arg(long, value_name = "ADDRESS", value_parser = Address::from_any)]
    admin: Option<Address>,

    /// Write this level and the more important ones to stderr [default: info]
    ///
    /// It comes before DEBUG_STDIO=1 in the environment, which means debug, and that before the configuration's.
    #[arg(long, value_name = "LEVEL", value_enum, ignore_case = true)]
    log_level: Option<Level>,

    /// How a line of the log looks [default: text]
    #[arg(long, value_name = "FORMAT", value_enum, ignore_case = true)]
    log_format: Option<Format>,

    /// What carries the bytes [default: auto]
    ///
    /// Where a sandbox blocks io_uring or the kernel has none, epoll does the same for more CPU. It comes before
    /// STDIO_BUS_IO in the environment, which takes the same values.
    #[arg(long, value_name = "HOW", value_enum, ignore_case = true)]
    io: Option<Means>,

    /// Do not start if the command of any pool cannot be run
    ///
    /// Without it the other pools are served, and the log has an error; readiness says no where clients would use that
    /// pool.
    #[arg(long)]
    strict: bool,
}

/// [`LogLevel`] as it is written on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    /// What happens to each message
    Debug,
    /// What happens to workers and clients
    Info,
    /// What went wrong and was dealt with
    #[value(alias = "warning")]
    Warn,
    /// What needs a person
    Error,
}

impl From<Level> for LogLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Debug => Self::Debug,
            Level::Info => Self::Info,
            Level::Warn => Self::Warn,
            Level::Error => Self::Error,
        }
    }
}

/// [`Choice`] as it is written on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Means {
    /// io_uring, and epoll where it cannot be had
    Auto,
    /// io_uring, or exit with 69
    Ring,
    /// epoll
    Epoll,
}

impl From<Means> for Choice {
    fn from(means: Means) -> Self {
        match means {
            Means::Auto => Self::Auto,
            Means::Ring => Self::Ring,
            Means::Epoll => Self::Epoll,
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

#[derive(Debug, Subcommand)]
enum Verb {
    /// Be one of the built-in workers (the daemon starts these)
    Worker {
        /// Which one
        #[arg(value_enum)]
        name: Worker,
    },
    /// Connect an editor's stdin and stdout to a running daemon
    ///
    /// The bridge that ACP clients start as their agent. Nothing but protocol is written to stdout; the log goes to
    /// stderr. It does not connect again by itself: requests that can get no answer any more get an error.
    #[command(version, display_name = "stdio_bus acp")]
    Acp {
        /// The daemon: tcp://HOST:PORT, unix:PATH, ws[s]://HOST:PORT/acp or http[s]://HOST:PORT/mcp
        ///
        /// wss:// and https:// are TLS and need a program that was built with the feature `tls`. Without a port, they mean
        /// 443, and ws:// and http:// mean 80. http:// is for clients of MCP.
        #[arg(long, value_name = "ADDRESS", value_parser = Daemon::parse)]
        connect: Daemon,
        /// A file with the token that the daemon wants to see, for ws://, wss://, http:// and https://
        ///
        /// The token is sent as `Authorization: Bearer`. It stands in no log and not among the arguments, which others
        /// can see.
        #[arg(long, value_name = "PATH")]
        token_file: Option<PathBuf>,
        /// A file with certificates (PEM) to believe beside the usual authorities, for wss:// and https://
        #[arg(long, value_name = "PATH")]
        ca_file: Option<PathBuf>,
    },
    /// Show a running daemon at a glance
    Status {
        /// Draw it anew each second, like top
        #[arg(long)]
        watch: bool,
        #[command(flatten)]
        whom: WhomArgs,
    },
    /// Show a table of a running daemon
    Show {
        /// Which one
        #[arg(value_enum)]
        table: Shown,
        #[command(flatten)]
        whom: WhomArgs,
    },
    /// Close a client's connection
    ///
    /// Its pending requests are answered with errors (client_killed). Asked for again, it is closed at once.
    Kill {
        #[command(subcommand)]
        what: Killed,
    },
    /// Have a worker, or all workers of a pool in turn, replaced
    ///
    /// First another one runs; then the old one gets no new work, and ends when its requests and sessions are over, or after
    /// limits.replace_timeout_sec. No request is lost by that.
    Restart {
        #[command(subcommand)]
        what: Restarted,
    },
    /// Have a running daemon read its configuration again, as SIGHUP does
    ///
    /// It is checked first: on an error the old one goes on, and this exits with 78. Workers whose command has changed are
    /// replaced in turn, without a lost request; that a new command cannot live is told, with exit code 1.
    Reload {
        /// Say what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        whom: WhomArgs,
    },
    /// Have a running daemon drain and end, as SIGTERM does
    ///
    /// Asked for again, it changes nothing: it never ends the drain early.
    Drain {
        #[command(flatten)]
        whom: WhomArgs,
    },
    /// Change what a running daemon writes to its log, until it ends
    LogLevel {
        /// This level and the more important ones
        #[arg(value_enum, ignore_case = true)]
        level: Level,
        #[command(flatten)]
        whom: WhomArgs,
    },
    /// Look whether this machine is fit for the daemon, and say what to do
    ///
    /// It needs no daemon and starts nothing. Exits with 1 if something keeps the daemon from starting. Where
    /// io_uring cannot be used, epoll is: that is no failure.
    Doctor {
        /// The configuration that is to run here, or - for stdin
        #[arg(long, value_name = "PATH")]
        config: Option<PathBuf>,
        /// Answer with JSON
        #[arg(long)]
        json: bool,
    },
    /// Check a configuration and list everything that is wrong with it
    ///
    /// Exits with 0 and one line that sums it up, or with 78. What may be meant otherwise is a warning. Nothing is
    /// started.
    Check {
        /// The configuration file, or - for stdin; without it, the built-in configuration
        #[arg(long, value_name = "PATH")]
        config: Option<PathBuf>,
        /// Check this machine, too: io_uring, addresses, directories; exits as the daemon would
        #[arg(long)]
        environment: bool,
    },
}

#[derive(Debug, Subcommand)]
enum Killed {
    /// A client, by the number that the log and `show clients` call it
    Client {
        /// Its number
        number: u32,
        #[command(flatten)]
        whom: WhomArgs,
    },
}

#[derive(Debug, Subcommand)]
enum Restarted {
    /// A worker, by the name that the log and `show workers` call it
    Worker {
        /// Its pool and number: agents/0
        name: String,
        /// Stop it at once: its pending requests get errors, and another one is started when it is gone
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        whom: WhomArgs,
    },
    /// All workers of a pool, one after the other
    Pool {
        /// Its id
        id: String,
        #[command(flatten)]
        whom: WhomArgs,
    },
}

/// Which daemon is asked.
#[derive(Debug, Args)]
struct WhomArgs {
    /// The admin listener of the daemon [default: $STDIO_BUS_ADMIN]
    ///
    /// What the daemon was given as --admin or admin.listen: the path of a Unix socket, @NAME, or HOST:PORT.
    #[arg(long, value_name = "ADDRESS", value_parser = admin_address)]
    admin: Option<Address>,
    /// A file with the token, for actions over TCP [default: $STDIO_BUS_ADMIN_TOKEN_FILE]
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    /// Answer with JSON
    #[arg(long)]
    json: bool,
}

impl From<WhomArgs> for Whom {
    fn from(args: WhomArgs) -> Self {
        Self { address: args.admin, token_file: args.token_file, json: args.json }
    }
}

/// The tables that can be shown.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shown {
    /// Connections, with what is pending and queued for each
    Clients,
    /// Processes, with what they do
    Workers,
    /// Pools, with what became of their requests
    Pools,
    /// Sessions, and names that are held
    Sessions,
    /// Requests that wait for their answers
    Pending,
    /// Clients and workers that are not read, and for whom they wait
    Waiting,
    /// Tables and queues, and how full they are
    Limits,
    /// The last warnings and errors
    Errors,
}

impl Verb {
    /// What a running daemon is asked, if this asks one.
    fn question(self) -> Option<(WhomArgs, Question)> {
        Some(match self {
            Self::Status { watch, whom } => (whom, Question::Status { watch }),
            Self::Show { table, whom } => {
                let table = match table {
                    Shown::Clients => "clients",
                    Shown::Workers => "workers",
                    Shown::Pools => "pools",
                    Shown::Sessions => "sessions",
                    Shown::Pending => "pending",
                    Shown::Waiting => "waiting",
                    Shown::Limits => "limits",
                    Shown::Errors => "errors",
                };
                (whom, Question::Show { table })
            }
            Self::Kill { what: Killed::Client { number, whom } } => {
                (whom, Question::Act { target: format!("/kill-client?client={number}") })
            }
            Self::Restart { what: Restarted::Worker { name, now, whom } } => {
                let now = if now { "&now=1" } else { "" };
                let target = format!("/restart-worker?worker={}{now}", control::escaped_value(&name));
                (whom, Question::Act { target })
            }
            Self::Restart { what: Restarted::Pool { id, whom } } => {
                (whom, Question::Act { target: format!("/restart-pool?pool={}", control::escaped_value(&id)) })
            }
            Self::Reload { dry_run, whom } => (whom, Question::Reload { dry_run }),
            Self::Drain { whom } => (whom, Question::Act { target: "/drain".to_owned() }),
            Self::LogLevel { level, whom } => {
                let level = match level {
                    Level::Debug => "debug",
                    Level::Info => "info",
                    Level::Warn => "warn",
                    Level::Error => "error",
                };
                (whom, Question::Act { target: format!("/log-level?level={level}") })
            }
            Self::Worker { .. } | Self::Acp { .. } | Self::Check { .. } | Self::Doctor { .. } => return None,
        })
    }
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Self {
        if path.as_os_str() == "-" { Self::Descriptor(0) } else { Self::File(path) }
    }
}

impl From<DaemonArgs> for Options {
    fn from(args: DaemonArgs) -> Self {
        let config = match (args.config, args.config_fd) {
            (Some(path), _) => Source::from(path),
            (None, Some(number)) => Source::Descriptor(number),
            (None, None) => Source::Embedded,
        };
        let lines = [args.stdio.then_some(Listen::Stdio), args.unix.map(Listen::from), args.tcp.map(Listen::from)];
        let web = [(args.ws, WebProtocol::WebSocket), (args.http, WebProtocol::Mcp)];
        let web = web.into_iter().filter_map(|(address, protocol)| {
            Some(Listener { web: Some(Web::of(protocol)), ..Listener::open(address?.into()) })
        });
        let listeners = lines.into_iter().flatten().map(Listener::open).chain(web).collect();
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

fn unix_address() -> impl clap::builder::TypedValueParser<Value = Address> {
    // A path need not be UTF-8.
    use clap::builder::TypedValueParser;
    clap::builder::OsStringValueParser::new().try_map(|path| Address::from_unix_listener(PathBuf::from(path)))
}

fn websocket_address(text: &str) -> Result<Address, AddressError> {
    web_address(text, WebProtocol::WebSocket)
}

fn mcp_address(text: &str) -> Result<Address, AddressError> {
    web_address(text, WebProtocol::Mcp)
}

fn web_address(text: &str, protocol: WebProtocol) -> Result<Address, AddressError> {
    Address::from_web(text, protocol.scheme(), protocol.default_path())
}

fn admin_address(text: &str) -> Result<Address, String> {
    match Address::from_any(text).map_err(|error| error.to_string())? {
        Address::Tcp { port: 0, .. } => Err("port 0 cannot be connected to".to_owned()),
        address => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    fn words(line: &str) -> Result<Command, clap::Error> {
        parse(std::iter::once("stdio_bus").chain(line.split_whitespace()))
    }

    fn run(line: &str) -> Options {
        match words(line) {
            Ok(Command::Run(options)) => options,
            other => panic!("{line:?} does not run the daemon: {other:?}"),
        }
    }

    fn listened(line: &str) -> Vec<String> {
        run(line).listeners.iter().map(Listener::address).collect()
    }

    fn refused(line: &str) -> (ErrorKind, i32, String) {
        let error = words(line).expect_err("this command line must be refused");
        (error.kind(), error.exit_code(), error.to_string())
    }

    #[test]
    fn the_table_has_no_contradiction() {
        command().debug_assert();
        assert_eq!(command().get_name(), "stdio_bus");
    }

    #[test]
    fn nothing_means_the_embedded_default() {
        let options = run("");
        assert_eq!(
            options,
            Options {
                config: Source::Embedded,
                listeners: Vec::new(),
                admin: None,
                log_level: None,
                log_format: None,
                io: None,
                strict: false
            }
        );
        let config =
            options.configuration(Path::new("/proc/self/exe"), &[]).expect("the built-in configuration is good");
        assert_eq!(config.listeners[0].listen, Listen::Stdio);
        assert_eq!(config.settings().pools[0].instances, 2);
        assert!(config.settings().listeners[0].stdio);
    }

    #[test]
    fn every_flag_of_the_spec_is_understood() {
        assert_eq!(run("--config a.json").config, Source::File("a.json".into()));
        assert_eq!(run("--config-fd 3 --stdio").config, Source::Descriptor(3));
        assert_eq!(listened("--stdio"), ["stdio"]);
        assert_eq!(listened("--tcp [::1]:0"), ["tcp://[::1]:0"]);
        assert_eq!(listened("--ws [::1]:0"), ["ws://[::1]:0/acp"]);
        assert_eq!(listened("--http [::1]:0"), ["http://[::1]:0/mcp"]);
        assert!(run("--http [::1]:0").listeners.iter().all(Listener::is_mcp));
        let unix = Listen::Unix { path: "/tmp/bus".into(), mode: 0o600, owner: crate::config::Owner::default() };
        assert_eq!(run("--unix /tmp/bus").listeners, [Listener::open(unix)]);
        let logged = run("--log-level warn --log-format json");
        assert_eq!((logged.log_level, logged.log_format), (Some(LogLevel::Warn), Some(LogFormat::Json)));
    }

    #[test]
    fn of_a_flag_that_is_given_twice_the_last_one_holds() {
        assert_eq!(run("--config a --config b").config, Source::File("b".into()));
        assert_eq!(run("--log-level warn --log-level error").log_level, Some(LogLevel::Error));
        assert_eq!(listened("--tcp localhost:1 --tcp localhost:2"), ["tcp://localhost:2"]);
        assert_eq!(words("check --config a --config b").ok(), words("check --config b").ok());
    }

    #[test]
    fn of_several_flags_that_say_where_to_listen_all_hold() {
        let line = "--http localhost:3 --ws localhost:2 --tcp localhost:1 --unix a --stdio";
        let all = ["stdio", "unix:a", "tcp://localhost:1", "ws://localhost:2/acp", "http://localhost:3/mcp"];
        assert_eq!(listened(line), all);
        let twice = run("--ws localhost:1 --tcp localhost:1").configuration(Path::new("/proc/self/exe"), &[]);
        assert!(twice.is_err_and(|error| error.to_string().contains("is among the listeners already")));
    }

    #[test]
    fn an_address_may_have_its_scheme() {
        assert_eq!(listened("--tcp tcp://127.0.0.1:9000"), ["tcp://127.0.0.1:9000"]);
        assert_eq!(listened("--ws ws://127.0.0.1:9000/acp"), ["ws://127.0.0.1:9000/acp"]);
        assert_eq!(listened("--ws ws://127.0.0.1:9000"), ["ws://127.0.0.1:9000/acp"]);
        assert_eq!(listened("--http http://127.0.0.1:9000/mcp"), ["http://127.0.0.1:9000/mcp"]);
        assert_eq!(listened("--unix unix:/p"), ["unix:/p"]);
        assert_eq!(run("--admin http://127.0.0.1:9001").admin, Address::from_any("127.0.0.1:9001").ok());
    }

    #[test]
    fn a_port_alone_is_every_network() {
        assert_eq!(listened("--tcp :9000"), ["tcp://[::]:9000"]);
        assert_eq!(listened("--tcp *:9000"), ["tcp://[::]:9000"]);
        assert_eq!(listened("--ws :9000"), ["ws://[::]:9000/acp"]);
        assert_eq!(listened("--http :9000"), ["http://[::]:9000/mcp"]);
    }

    #[test]
    fn values_may_be_written_in_capitals() {
        assert_eq!(run("--log-level INFO").log_level, Some(LogLevel::Info));
        assert_eq!(run("--log-level WARNING").log_level, Some(LogLevel::Warn));
        assert_eq!(
            (run("--log-format JSON").log_format, run("--io Epoll").io),
            (Some(LogFormat::Json), Some(Choice::Epoll))
        );
        assert_eq!(words("log-level Debug --admin /a").ok(), words("log-level debug --admin /a").ok());
    }

    #[test]
    fn the_environment_asks_for_debug_unless_the_command_line_names_a_level() {
        let level = |line: &str, value: Option<&str>| {
            let mut options = run(line);
            options.debug(value.map(OsStr::new));
            options.log_level
        };
        assert_eq!(level("", Some("1")), Some(LogLevel::Debug));
        assert_eq!(level("--log-level warn", Some("1")), Some(LogLevel::Warn));
        for value in [None, Some(""), Some("0")] {
            assert_eq!(level("", value), None, "{value:?}");
        }
    }

    #[test]
    fn the_environment_says_what_carries_the_bytes_unless_the_command_line_does() {
        let io = |line: &str, value: Option<&str>| {
            let mut options = run(line);
            options.carry(value.map(OsStr::new)).map(|()| options.io).map_err(|error| error.to_string())
        };
        assert_eq!(io("", Some("epoll")), Ok(Some(Choice::Epoll)));
        assert_eq!(io("--io ring", Some("epoll")), Ok(Some(Choice::Ring)));
        assert_eq!(io("--io ring", Some("nonsense")), Ok(Some(Choice::Ring)));
        for unset in [None, Some("")] {
            assert_eq!(io("", unset), Ok(None));
        }
        assert_eq!(io("", Some("nonsense")), Err("STDIO_BUS_IO is nonsense; write auto, ring or epoll".to_owned()));
    }

    #[test]
    fn a_wrong_command_line_exits_with_2() {
        for line in [
            "--config a --config-fd 3",
            "--config",
            "--config-fd x",
            "--config-fd -1",
            "--tcp 9000",
            "--tcp :",
            "--unix",
            "--log-level loud",
            "--no-such-flag",
            "nonsense",
            "worker",
            "worker sleep",
            "acp",
            "acp --connect localhost:9000",
            "acp --connect tcp://localhost:0",
            "acp --connect tcp://:9000",
            "acp --connect ws://localhost:9000",
            "acp --connect http://localhost:9000",
            "acp --connect tcp://localhost:9000 --token-file a",
            "acp --connect ws://localhost:9000/acp --ca-file a",
            "--tcp localhost:1 check",
        ] {
            let (_, code, message) = refused(line);
            assert_eq!(code, 2, "{line:?}: {message}");
        }
        assert_eq!(refused("--config a --config-fd 3").0, ErrorKind::ArgumentConflict);
        assert!(refused("acp --connect unix:/a --token-file b").2.contains("the other listeners take no tokens"));
    }

    #[test]
    fn help_and_version_exit_with_0() {
        assert_eq!(refused("--version").1, 0);
        assert_eq!(refused("--version").2.trim(), concat!("stdio_bus ", env!("CARGO_PKG_VERSION")));
        let of_bridge = refused("acp --version");
        assert_eq!((of_bridge.1, of_bridge.2.trim()), (0, concat!("stdio_bus acp ", env!("CARGO_PKG_VERSION"))));
        let (short, long) = (refused("-h"), refused("--help"));
        assert_eq!((short.0, short.1, long.1), (ErrorKind::DisplayHelp, 0, 0));
        assert!(short.2.len() < long.2.len());
        for flag in ["--config ", "--config-fd", "--stdio", "--unix", "--tcp", "--log-level", "--log-format"] {
            assert!(short.2.contains(flag) && long.2.contains(flag), "{flag} is missing in the help");
        }
    }

    #[test]
    fn the_other_programs_are_subcommands() {
        assert_eq!(words("worker echo").ok(), Some(Command::Worker(Worker::Echo)));
        for (line, daemon, token_file) in [
            ("acp --connect tcp://localhost:9000", "tcp://localhost:9000", None),
            ("acp --connect ws://localhost:9000/acp --token-file a", "ws://localhost:9000/acp", Some("a".into())),
            ("acp --connect http://localhost:9000/mcp", "http://localhost:9000/mcp", None),
        ] {
            let daemon = Daemon::parse(daemon).expect("a good address");
            assert_eq!(words(line).ok(), Some(Command::Acp(bridge::Options { daemon, token_file, ca_file: None })));
        }
        for (line, config, environment) in [
            ("check", Source::Embedded, false),
            ("check --config a", Source::File("a".into()), false),
            ("check --config - --environment", Source::Descriptor(0), true),
        ] {
            assert_eq!(words(line).ok(), Some(Command::Check { config, environment }));
        }
    }

    #[test]
    fn a_running_daemon_is_asked_by_its_admin_address() {
        let asked = |line: &str| match words(line) {
            Ok(Command::Control { whom, question }) => (whom, question),
            other => panic!("{line:?}: {other:?}"),
        };
        let address = Address::from_any("/run/a").ok();
        for (line, json, question) in [
            ("status --admin /run/a", false, Question::Status { watch: false }),
            ("status --watch --json --admin /run/a", true, Question::Status { watch: true }),
            ("show pending --admin /run/a", false, Question::Show { table: "pending" }),
            ("kill client 7 --admin /run/a", false, Question::Act { target: "/kill-client?client=7".to_owned() }),
            (
                "restart worker a&b/1 --admin /run/a",
                false,
                Question::Act { target: "/restart-worker?worker=a%26b/1".to_owned() },
            ),
            ("drain --json --admin /run/a", true, Question::Act { target: "/drain".to_owned() }),
            ("log-level debug --admin /run/a", false, Question::Act { target: "/log-level?level=debug".to_owned() }),
        ] {
            assert_eq!(asked(line), (Whom { address: address.clone(), token_file: None, json }, question), "{line}");
        }
        let doctor = Command::Doctor { config: Source::Embedded, json: true };
        assert_eq!(words("doctor --json").ok(), Some(doctor));
        for line in
            ["show", "show nothing", "kill 7", "kill client x", "restart agents/0", "log-level", "status --admin 1"]
        {
            assert_eq!(refused(line).1, 2, "{line}");
        }
    }

    #[test]
    fn the_configuration_is_not_read_from_the_clients_stream() {
        for line in ["--config - --stdio", "--config-fd 0 --stdio"] {
            let error = run(line).configuration(Path::new("/proc/self/exe"), &[]).expect_err("stdin is the client's");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn what_people_write_from_habit_is_answered_with_what_to_write_instead() {
        for (line, advice) in [
            ("bus.json", "stdio_bus --config bus.json"),
            ("./here/bus", "stdio_bus --config ./here/bus"),
            ("run", "stdio_bus --config FILE"),
            ("serve --tcp :0", "stdio_bus --config FILE"),
            (
                "frobnicate",
                "the commands are worker, acp, status, show, kill, restart, reload, drain, log-level, doctor, check",
            ),
            ("stop", "stdio_bus drain"),
            ("echo", "stdio_bus worker echo"),
            ("version", "stdio_bus --version"),
            ("kill 7", "stdio_bus kill client 7"),
            ("restart agents/0", "stdio_bus restart worker agents/0"),
            ("show client", "'clients'"),
            ("check bus.json", "stdio_bus check --config bus.json"),
            ("check bus.yaml", "stdio_bus check --config bus.yaml"),
            ("acp tcp://h:1", "stdio_bus acp --connect tcp://h:1"),
            ("--port 9000", "--tcp 127.0.0.1:9000"),
            ("--log-file x", "journalctl"),
            ("--logfile x", "journalctl"),
            ("--daemon", "docs/systemd.md"),
            ("-d", "docs/systemd.md"),
            ("--verbose", "--log-level debug"),
            ("-c x", "--config FILE"),
            ("--tls", "a proxy in front"),
        ] {
            let (_, code, message) = refused(line);
            assert!(code == 2 && message.contains("tip: ") && message.contains(advice), "{line}: {message}");
        }
    }

    #[test]
    fn help_is_a_command_too() {
        assert_eq!((refused("help").0, refused("help").1), (ErrorKind::DisplayHelp, 0));
        assert!(refused("help").2.contains("--config") && refused("help acp").2.contains("--connect"));
    }
}
