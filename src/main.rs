//! The `stdio_bus` program: parses the command line and dispatches to the command.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use stdio_bus::activation::Inherited;
use stdio_bus::commands::alone::{echo, init};
use stdio_bus::commands::daemon::{bridge, control};
use stdio_bus::commands::file::{check, doctor};
use stdio_bus::commands::{self, Command, Options, Worker};
use stdio_bus::config::LogFormat;
use stdio_bus::error::{StartError, exit};
use stdio_bus::reserve::Allocator;
use stdio_bus::shell::reload::{ReadConfig, Source};
use stdio_bus::{activation, shell};

/// Input from peers must never abort the daemon, however little memory is left.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    if let Some(why) = stdio_bus_base::stack::is_too_small() {
        let _ = writeln!(io::stderr(), "stdio_bus: {why}");
        return ExitCode::from(exit::FAILURE);
    }
    stdio_bus_base::panic::end_the_process();
    start()
}

/// Out of line: the frame of `main` is there before the stack is looked at.
#[inline(never)]
fn start() -> ExitCode {
    let command = match commands::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(error) => match error.print() {
            Ok(()) => return ExitCode::from(error.exit_code() as u8),
            Err(_) => return ExitCode::from(exit::FAILURE),
        },
    };
    // The daemon's and the bridge's exit codes summarize what their logs explain.
    let result = match command {
        Command::Run(options) => return run(options),
        Command::Check { config, environment } => check(&config, environment).map(|()| exit::OK),
        Command::Worker(Worker::Echo) => echo::run().map(|()| exit::OK).map_err(StartError::io("echo")),
        Command::Control { options, question } => control::run(&options, &question),
        Command::Doctor { config, json } => {
            program().and_then(|program| config.load(&program)).and_then(|config| doctor::run(&config, json))
        }
        Command::Connect(options) => bridge::run(&options),
        Command::Call(call) => bridge::call(&call),
        Command::Init(options) => init::run(&options),
        Command::Completion(shell) => commands::completion(shell).map(|()| exit::OK),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => failed(&error, LogFormat::Text),
    }
}

/// Runs the daemon. Start-up errors are written in the configured log format, as far as it is known by then.
fn run(mut options: Options) -> ExitCode {
    let mut format = options.log_format;
    // SAFETY: no descriptor has been opened yet.
    let result = unsafe { activation::take() }.and_then(|inherited| {
        options.debug(std::env::var_os("DEBUG_STDIO").as_deref());
        options.carry(std::env::var_os("STDIO_BUS_IO").as_deref())?;
        let (program, io) = (program()?, options.io.unwrap_or_default());
        let config = options.configuration(&program, &inherited)?;
        format = Some(config.log.format);
        let can_be_read_again = options.config.can_be_read_again();
        let again: Arc<ReadConfig> = Arc::new(move |inherited: &[Inherited]| {
            options.config.look_again()?;
            options.configuration(&program, inherited)
        });
        let again = can_be_read_again.then_some(again);
        shell::run(config, Source { again, inherited: Arc::new(inherited) }, io)
    });
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => failed(&error, format.or(error.log_format()).unwrap_or_default()),
    }
}

fn failed(error: &StartError, format: LogFormat) -> ExitCode {
    let line = shell::last_line(error, format);
    // If stderr cannot be written, only the exit code is left.
    let _ = io::stderr().write_all(&line);
    let _ = shell::stderr_before().map(|mut stderr| stderr.write_all(&line));
    ExitCode::from(error.exit_code())
}

/// The path of our own executable, from which the built-in workers are spawned.
fn program() -> Result<PathBuf, StartError> {
    std::env::current_exe().map_err(StartError::io("find the daemon's own program file"))
}

fn check(source: &commands::ConfigSource, environment: bool) -> Result<(), StartError> {
    let mut config = source.load(&program()?)?.strict()?;
    if environment {
        config = config.privileged()?;
    }
    for warning in check::warnings(&config) {
        let _ = writeln!(io::stderr(), "stdio_bus: warning: {warning}");
    }
    let mut said = config.summary();
    for line in check::personal_variables(&config) {
        said = format!("{said}\n{line}");
    }
    if environment {
        check::addresses(&config)?;
        said = format!("{said}\n{}", check::io_uring(&config)?);
    }
    writeln!(io::stdout(), "{said}").map_err(StartError::io("write stdout"))
}
