//! openai-agent: an ACP agent for any OpenAI-compatible Chat Completions endpoint.

use std::process::ExitCode;

fn main() -> ExitCode {
    openai_agent::cli::main()
}
