//! Writes the manual pages and the shell completions of both programs: `cargo run -p stdio-bus-manual --example manual
//! DIR` makes `DIR/man` and `DIR/completions`. They come from the tables that the programs parse their command lines
//! with. It is an example, not a program, since a release would link both programs once more for it.

use std::error::Error;
use std::fs;
use std::path::Path;

use clap_complete::Shell;

/// Writes them to a directory.
///
/// # Errors
/// If they cannot be written.
pub fn write(directory: &Path) -> Result<(), Box<dyn Error>> {
    let (pages, completions) = (directory.join("man"), directory.join("completions"));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    // A page is named after its command, which is shown with a space.
    let bus =
        stdio_bus::commands::command().mut_subcommand("connect", |bridge| bridge.display_name("stdio_bus-connect"));
    for (name, command) in [("stdio_bus", bus), ("openai-agent", openai_agent::command())] {
        clap_mangen::generate_to(command.clone(), &pages)?;
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            clap_complete::generate_to(shell, &mut command.clone(), name, &completions)?;
        }
    }
    Ok(())
}
