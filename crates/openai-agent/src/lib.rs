//! openai-agent: any Chat Completions endpoint as an ACP agent over stdin and stdout.
//!
//! ```text
//!            ┌────── decides, does no IO ──────┐
//! stdin  →   lines → rpc → acp (sessions, turns) → outbox     → stdout
//!                            │ effects     ▲ deltas, outcomes
//!                            ▼             │
//! endpoint ← client ← convert            answer ← chunk ← body ← response
//!            └──── serve: one task per turn, one thread ────┘
//! ```
//!
//! Reading order: [`config`] (the settings), [`rpc`] and [`acp`] (the methods and the turns), [`session`] and
//! [`history`] (what is remembered), [`convert`] (what is sent), [`body`], [`chunk`] and [`answer`] (what comes back;
//! [`json`] reads it), [`failure`] (errors), [`stdio`] (lines, and slow readers), [`serve`] (the only place where they
//! meet the operating system). The route to the endpoint: [`client`] (connections and requests), `hop` (tunnels through
//! proxies, and servers that speak something else), [`secrets`] (keys, and how they are kept secret), [`dialect`] (how
//! requests are written, which models there are, and their context windows). The command line is below.
//!
//! The overall invariant: every request is answered exactly once, after its last update, whatever the endpoint or the
//! disk does; and of a turn that did not end well only the user's message stays in its session.

pub mod acp;
pub mod answer;
#[cfg(test)]
mod bodies;
pub mod body;
pub mod chunk;
pub mod client;
pub mod config;
pub mod convert;
pub mod dialect;
pub mod failure;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzz;
pub mod history;
mod hop;
pub mod json;
#[cfg(test)]
mod played;
pub mod rpc;
pub mod secrets;
pub mod serve;
pub mod session;
pub mod stdio;

use acp::NO_SERVERS;
use answer::Ending;
use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use client::Client;
use config::{Config, INSECURE, Level, variables};
use convert::request_body;
use failure::Failure;
use serve::block_on;
use std::borrow::Cow;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;
use stdio::{note, set_level};

/// An ACP agent for any OpenAI-compatible Chat Completions endpoint.
#[derive(Parser)]
#[command(name = "openai-agent", version)]
struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand, Clone, Copy)]
enum Action {
    /// Speak ACP over stdin and stdout (the default)
    Acp,
    /// Send one tiny request to the endpoint, and print in one sentence that it works or what is wrong
    Check,
}

/// The parser with its help texts, for completions and the manual page.
pub fn command() -> Command {
    Arguments::command().after_help(environment())
}

/// The section of `--help` that documents the environment.
pub fn environment() -> String {
    let mut text = "Environment:\n".to_owned();
    for (name, default, help) in variables() {
        text.push_str(&format!("  {name}\n      {help} [{default}]\n"));
    }
    text.push_str(
        "\nExit codes: 0 success, 1 failure, 2 wrong usage, 78 wrong configuration. The log is written to stderr.",
    );
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
    set_level(config.log);
    match arguments.action.unwrap_or(Action::Acp) {
        Action::Acp => serve::serve(config),
        Action::Check => {
            set_level(Level::Off);
            check(config)
        }
    }
}

/// Asks the endpoint for a token and prints the result; success is exit code 0.
pub fn check(mut config: Config) -> ExitCode {
    // A user who runs `check` wants to know at once.
    config.endpoint.max_retries = 0;
    (config.system_prompt, config.temperature) = (None, None);
    config.max_tokens = Some(config.max_tokens.unwrap_or(16).min(16));
    let config = Rc::new(config);
    let client = match Client::new(config.clone()) {
        Ok(client) => client,
        Err(problem) => {
            eprintln!("openai-agent: error: {problem}");
            return ExitCode::from(78);
        }
    };
    if config.endpoint.tls_insecure {
        eprintln!("openai-agent: warning: {INSECURE}");
    }
    let began = Instant::now();
    let outcome = match block_on(ask(&config, &client)) {
        Ok(outcome) => outcome,
        Err(code) => return code,
    };
    let (model, url) = (&config.model, config.endpoint.shown_url());
    match outcome {
        Ok(_) => {
            println!("OK: {model} at {url} answered in {} ms.", began.elapsed().as_millis());
            match config.models.as_deref() {
                Some(models) => println!("Models that clients may choose: {}.", models.join(", ")),
                None if config.fetch_models => println!("Clients are offered the models that the endpoint lists."),
                None => println!(
                    "Clients are offered this model alone, and some refuse names that are not offered: OPENAI_MODELS=a,b or \
                     OPENAI_MODELS=fetch offer more."
                ),
            }
            println!("{NO_SERVERS}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            let failure = failure.masked(client.secrets());
            println!("{}", failure.text(&url));
            if let Some(advice) = advice(&failure, &config) {
                println!("{advice}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Advice, if the failure's message has none.
fn advice(failure: &Failure, config: &Config) -> Option<String> {
    Some(match failure {
        Failure::Status { status: 401 | 403, .. }
            if config.endpoint.api_key.0.is_empty() && config.endpoint.api_key_file.is_none() =>
        {
            "OPENAI_API_KEY is not set.".to_owned()
        }
        Failure::Status { status: 404, .. } => {
            format!("Check OPENAI_BASE_URL ({}) and OPENAI_MODEL ({}).", config.endpoint.base_url, config.model)
        }
        Failure::Network(_) => {
            format!("Is the endpoint running, and is OPENAI_BASE_URL ({}) right?", config.endpoint.base_url)
        }
        _ => return None,
    })
}

async fn ask(config: &Config, client: &Client) -> Result<Ending, Failure> {
    let model: Rc<str> = config.model.as_str().into();
    let ping = [Cow::from("{\"role\":\"user\",\"content\":\"ping\"}")];
    let body = |dialect| Some(request_body(config, &model, &ping, dialect));
    let mut opened = client.ask(&model, body).await?;
    opened.read(config.limits.line, &mut |_| (), async || Ok(())).await?.0
}
