//! openai-agent: an ACP agent for any OpenAI-compatible Chat Completions endpoint.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(why) = stdio_bus_base::stack::is_too_small() {
        let _ = writeln!(std::io::stderr(), "openai-agent: {why}");
        return ExitCode::FAILURE;
    }
    stdio_bus_base::panic::end_the_process();
    openai_agent::main()
}
