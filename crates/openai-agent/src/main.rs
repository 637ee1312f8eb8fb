//! openai-agent: an ACP agent for any OpenAI-compatible Chat Completions endpoint.

use std::process::ExitCode;

fn main() -> ExitCode {
    stdio_bus_base::panic::end_the_process();
    openai_agent::main()
}
