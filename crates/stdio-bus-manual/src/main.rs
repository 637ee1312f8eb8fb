//! Writes the manual pages and the shell completions of both programs: `cargo run -p stdio-bus-manual -- DIR`
//! makes `DIR/man` and `DIR/completions`. They come from the tables that the programs parse their command lines with.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use clap_complete::Shell;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: manual DIRECTORY")?);
    let (pages, completions) = (directory.join("man"), directory.join("completions"));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    // A page is called by its command's name, which has a space where people read it.
    let bus = stdio_bus::cli::command().mut_subcommand("connect", |bridge| bridge.display_name("stdio_bus-connect"));
    for (name, command) in [("stdio_bus", bus), ("openai-agent", openai_agent::cli::command())] {
        clap_mangen::generate_to(command.clone(), &pages)?;
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            clap_complete::generate_to(shell, &mut command.clone(), name, &completions)?;
        }
    }
    Ok(())
}
