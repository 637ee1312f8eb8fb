//! The command line: `openai-agent [acp]`, `openai-agent check`, `--help`, `--version`.

use std::process::ExitCode;

use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};

use super::config::{Config, Level, VARIABLES};
use super::log::note;

/// An ACP agent for any OpenAI-compatible Chat Completions endpoint.
#[derive(Parser)]
#[command(name = "openai-agent", version)]
struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand, Clone, Copy)]
enum Action {
    /// Speak ACP over stdin and stdout (what happens without an argument, too)
    Acp,
    /// Send one tiny request to the endpoint and say in a sentence what is wrong, or that nothing is
    Check,
}

/// The parser with its help texts, for completions and the manual page.
pub fn command() -> Command {
    Arguments::command().after_help(environment())
}

/// The part of `--help` that documents the environment.
pub fn environment() -> String {
    let mut text = "Environment:\n".to_owned();
    for (name, default, help) in VARIABLES {
        text.push_str(&format!("  {name}\n      {help} [{default}]\n"));
    }
    text.push_str("\nExit codes: 0 done, 1 failed, 2 usage, 78 configuration. Logs go to stderr.");
    text
}

/// Runs the program.
pub fn main() -> ExitCode {
    let arguments = match Arguments::from_arg_matches(&command().get_matches()) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    let config = match Config::from_process() {
        Ok(config) => config,
        Err(error) => {
            note!(Error, "{error}");
            return ExitCode::from(78);
        }
    };
    super::log::set_level(config.log);
    match arguments.action.unwrap_or(Action::Acp) {
        Action::Acp => super::serve::serve(config),
        Action::Check => {
            super::log::set_level(Level::Off);
            super::check::check(config)
        }
    }
}
