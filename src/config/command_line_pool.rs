//! The configuration made from a command on the command line: one pool, read and checked like a file's, with errors in
//! terms of the command line.

use std::path::Path;

use serde_json::json;

use super::{COMMAND_LINE, CommandLinePool, Config, ConfigError, Problem, warnings};
use crate::bus::settings::Assignment;

/// The id of its pool.
const ID: &str = "worker";

impl Config {
    /// The configuration with this pool.
    ///
    /// # Errors
    /// The command cannot be run, or its script does not exist.
    pub fn of_command(said: &CommandLinePool) -> Result<Self, ConfigError> {
        let (command, args) = said.command.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        let mut pool = json!({ "id": ID, "command": command, "args": args, "instances": said.instances.unwrap_or(1) });
        if let Some(assignment) = said.assignment {
            let name = match assignment {
                Assignment::RoundRobin => "round_robin",
                Assignment::Client => "client",
                Assignment::Dedicated => "dedicated",
            };
            pool["assignment"] = name.into();
        }
        let unfit = |message: String| ConfigError::Unusable { origin: COMMAND_LINE.to_owned(), message };
        let read = Self::from_bytes(json!({ "pools": [pool] }).to_string().as_bytes(), COMMAND_LINE);
        let config = read.map_err(|error| match error {
            ConfigError::Invalid { problems, .. } => {
                unfit(problems.iter().map(in_words).collect::<Vec<_>>().join("\n"))
            }
            other => other,
        })?;
        match warnings::missing_script(&config.pools[0]) {
            Some((script, directory)) => Err(unfit(format!(
                "{script} does not exist in {}, and {command} could not run it; correct the path, or go to its directory \
                 first (cd)",
                Path::display(&directory)
            ))),
            None => Ok(config),
        }
    }
}

/// A problem of the pool, in terms of the command line.
fn in_words(problem: &Problem) -> String {
    let place = problem.path.strip_prefix("pools[0].").unwrap_or(&problem.path);
    let is_quoted = problem.hint.as_ref().is_some_and(|hint| hint.contains("\"args\""));
    let hint = match &problem.hint {
        _ if problem.message.contains("command \"-") => " (write the daemon's own options before the --)".to_owned(),
        Some(_) if is_quoted => " (leave out the quotes around the whole: -- python3 worker.py)".to_owned(),
        Some(hint) => format!(" ({hint})"),
        None => String::new(),
    };
    let message = problem.message.replace(&format!(" of pool \"{ID}\""), "");
    match place {
        "command" => format!("{message}{hint}"),
        "instances" | "assignment" => format!("--{place} {message}{hint}"),
        other => format!("{other} {message}{hint}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str], instances: Option<u32>, assignment: Option<Assignment>) -> Result<Config, String> {
        let command = words.iter().map(|word| (*word).to_owned()).collect();
        Config::of_command(&CommandLinePool { command, instances, assignment }).map_err(|error| error.to_string())
    }

    #[test]
    fn a_command_of_the_command_line_is_one_pool() {
        let config = of(&["sh", "-c", "exec cat"], Some(3), Some(Assignment::Dedicated)).expect("it can be run");
        let [pool] = &config.pools[..] else { panic!("one pool") };
        assert_eq!((pool.core.id.as_str(), pool.core.instances, pool.core.max_instances), (ID, 3, 64));
        assert_eq!((pool.core.assignment, pool.says_assignment), (Assignment::Dedicated, true));
        assert_eq!((pool.command.as_str(), &pool.args[..]), ("sh", &["-c".to_owned(), "exec cat".to_owned()][..]));
        let config = of(&["sh"], None, None).expect("it can be run");
        assert_eq!((config.pools[0].core.instances, config.pools[0].says_assignment), (1, false));
    }

    #[test]
    fn a_command_that_cannot_be_run_is_reported_in_terms_of_the_command_line() {
        for (words, instances, begins) in [
            (&["no-such-program"][..], None, "command line: the command \"no-such-program\" is not in PATH"),
            (&["/no/such/program"], None, "command line: the command \"/no/such/program\" does not exist"),
            (&["/dev/null"], None, "command line: the command \"/dev/null\" is not a file"),
            (&[""], None, "command line: "),
            (&["--tcp", ":0"], None, "command line: the command \"--tcp\" is not in PATH"),
            (&["sh"], Some(0), "command line: --instances must be"),
            (&["sh", "no/such/worker.sh"], None, "command line: no/such/worker.sh does not exist in /"),
        ] {
            let why = of(words, instances, None).expect_err("it cannot be run");
            assert!(why.starts_with(begins) && !why.contains("pools[0]"), "{words:?}: {why}");
        }
    }

    #[test]
    fn a_command_that_cannot_be_run_has_a_remedy() {
        for (words, remedy) in [
            (&["no-such-program"][..], "install it, or write its whole path"),
            (&["sh no-such-worker"], "leave out the quotes around the whole"),
            (&["--tcp", ":0"], "own options before the --"),
        ] {
            let why = of(words, None, None).expect_err("it cannot be run");
            assert!(why.contains(remedy), "{words:?}: {why}");
        }
    }

    #[test]
    fn an_argument_that_may_be_written_later_is_warned_of_alone() {
        let config = of(&["cat", "later.json"], None, None).expect("it can be run");
        let warnings = config.pool_warnings();
        assert!(
            matches!(&warnings[..], [warning] if warning.starts_with("later.json does not exist in /")),
            "{warnings:?}"
        );
    }
}
