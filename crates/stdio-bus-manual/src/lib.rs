//! Writes the manual pages and the shell completions of both programs: `cargo run -p stdio-bus-manual --example manual DIR`
//! makes `DIR/man` and `DIR/completions`. They come from the tables that the programs parse their command lines with. It is
//! no program of its own, since a release would link all of both programs once more for it.

use std::error::Error;
use std::fs;
use std::path::Path;

use clap_complete::Shell;

/// Writes them below a directory.
///
/// # Errors
/// They cannot be written.
pub fn write(directory: &Path) -> Result<(), Box<dyn Error>> {
    let (pages, completions) = (directory.join("man"), directory.join("completions"));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    // A page is called by its command's name, which has a space where people read it.
    let bus = stdio_bus::cli::command().mut_subcommand("connect", |bridge| bridge.display_name("stdio_bus-connect"));
    for (name, command) in [("stdio_bus", bus), ("openai-agent", openai_agent::command())] {
        clap_mangen::generate_to(command.clone(), &pages)?;
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            clap_complete::generate_to(shell, &mut command.clone(), name, &completions)?;
        }
    }
    Ok(())
}
