//! The `stdio_bus` program.

use std::process::ExitCode;

use stdio_bus::cli::{self, Command, Worker};
use stdio_bus::error::exit;
use stdio_bus::{acp, echo};

fn main() -> ExitCode {
    let command = cli::parse(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match command {
        Command::Worker(Worker::Echo) => match echo::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("stdio_bus worker echo: {error}");
                ExitCode::from(exit::FAILURE)
            }
        },
        Command::Acp { connect } => match acp::run(&connect) {
            Ok(code) => ExitCode::from(code),
            Err(error) => {
                eprintln!("stdio_bus acp: {error}");
                ExitCode::from(error.exit_code())
            }
        },
        Command::Run(_) | Command::Check { .. } => {
            eprintln!("stdio_bus: this command is not part of this build");
            ExitCode::from(exit::FAILURE)
        }
    }
}
