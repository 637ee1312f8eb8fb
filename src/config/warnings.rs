//! Pool settings that are valid but probably mistakes: a missing script, a variable that is not substituted. The daemon
//! at start and `stdio_bus check` report them in the same words. Nothing is run.

use std::io;
use std::path::{Path, PathBuf};

use super::{COMMAND_LINE, Config, PoolConfig, reference};
use crate::address::TILDE;
use crate::bus::port::{EVERYBODY, is_in_group};
use crate::bus::settings::{Assignment, RuleScope};

/// Extensions of scripts that interpreters run.
const SCRIPTS: [&str; 12] = ["py", "js", "mjs", "cjs", "ts", "mts", "rb", "sh", "jar", "php", "json", "toml"];

impl Config {
    /// What may not be intended, and is logged at start and after a reload.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.open_listeners().into_iter().chain(self.pool_warnings()).chain(self.rules_for_nobody()).collect()
    }

    /// Doubts about the commands of the pools, each with its path.
    pub fn pool_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (at, pool) in self.pools.iter().enumerate() {
            let is_shared = pool.core.assignment != Assignment::Dedicated;
            if let Some(name) = takes_one_initialize(pool).filter(|_| is_shared) {
                warnings.push(format!(
                    "pools[{at}].assignment: {name} takes one initialize, so that clients with another protocol version or \
                     other capabilities than the first one are refused; \"dedicated\" gives each client a worker of its own"
                ));
            }
            for (number, argument) in pool.args.iter().enumerate() {
                let warning = file_warning(pool, argument).or_else(|| {
                    // A shell substitutes them itself.
                    let is_script = pool.args[..number].last().is_some_and(|before| before.starts_with('-'));
                    let name = variable(argument).filter(|_| !is_script && !argument.contains([' ', '\n']))?;
                    Some(not_replaced(&name))
                });
                let place = match self.origin == COMMAND_LINE {
                    true => String::new(),
                    false => format!("pools[{at}].args[{number}]: "),
                };
                warnings.extend(warning.map(|warning| place + &warning));
            }
            for (key, value) in &pool.env {
                if let Err(why) = reference::read(value) {
                    warnings.push(format!("pools[{at}].env.{key}: {why}; workers do not start without it"));
                }
                let warning = variable(value).map(|name| match name.trim_matches(|c| "${}%".contains(c)) == key {
                    true => format!(
                        "{name} is not replaced, and the worker gets these characters; leave {key} out: workers have the \
                         environment of the daemon"
                    ),
                    false => not_replaced(&name),
                });
                warnings.extend(warning.map(|warning| format!("pools[{at}].env.{key}: {warning}")));
            }
        }
        warnings
    }

    /// Rules for names and groups that no token has, where tokens alone say who somebody is. They may be misspelt.
    pub fn rules_for_nobody(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (at, listener) in self.listeners.iter().enumerate().filter(|(_, listener)| !listener.is_gone) {
            let Some(access) = listener.web.as_ref().map(|web| &web.access) else { continue };
            let Some(tokens) = &access.tokens else { continue };
            let knows_names = access.identity.is_some() || listener.entry.proxy.is_some();
            let knows_groups = access.identity.as_ref().is_some_and(|identity| identity.groups_header.is_some());
            let of_tokens = |group: &str| {
                let mut lists = tokens.bearers().filter_map(|bearer| bearer.groups.as_deref());
                lists.any(|list| is_in_group(list, group))
            };
            warnings.extend(listener.rules.iter().filter_map(|rules| match &rules.whom {
                RuleScope::Name(name) if !knows_names && tokens.bearers().all(|bearer| *bearer.name != **name) => {
                    Some(format!("listeners[{at}].rules.names: {name:?} has no token in tokens_file, so its rules hold for nobody"))
                }
                RuleScope::Group(group) if !knows_groups && group != EVERYBODY && !of_tokens(group) => Some(format!(
                    "listeners[{at}].rules.groups: no token in tokens_file is of the group {group:?} (groups={group}), so its \
                     rules hold for nobody"
                )),
                RuleScope::Name(_) | RuleScope::Group(_) => None,
            }));
        }
        warnings
    }
}

/// The program of a pool that takes one `initialize` only, if it is known as one.
fn takes_one_initialize(pool: &PoolConfig) -> Option<&str> {
    let mut words = [&pool.command].into_iter().chain(&pool.args);
    words.find_map(|word| {
        // A package may have a scope and a version: @zed-industries/codex-acp@2.
        let name = word.rsplit('/').next()?.split('@').next()?;
        (name == "codex-acp").then_some(name)
    })
}

fn not_replaced(name: &str) -> String {
    format!("{name} is not replaced, and the worker gets these characters; write the value")
}

/// A reference to an environment variable, as shells and other programs substitute it: `${NAME}` anywhere, `$NAME` and
/// `%NAME%` only alone and in capitals, since a secret may begin with a dollar, and must not be shown.
pub(super) fn variable(text: &str) -> Option<String> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let alone = text.strip_prefix('$').or_else(|| text.strip_prefix('%')?.strip_suffix('%'));
    if alone.is_some_and(|name| is_name(name) && !name.bytes().any(|byte| byte.is_ascii_lowercase())) {
        return Some(text.to_owned());
    }
    text.match_indices("${").find_map(|(at, _)| {
        let name = text[at + 2..].split('}').next()?;
        let is_closed = text.len() > at + 2 + name.len();
        // `${env:NAME}` and `${NAME:-other}` are references, too.
        let is_meant = name.split([':', '-']).any(is_name);
        (is_closed && is_meant).then(|| format!("${{{name}}}"))
    })
}

/// Checks that a file named by an argument exists.
fn file_warning(pool: &PoolConfig, argument: &str) -> Option<String> {
    if argument.starts_with("~/") {
        return Some(format!("{argument}: {TILDE}"));
    }
    let is_script = Path::new(argument).extension().is_some_and(|ending| SCRIPTS.iter().any(|known| ending == *known));
    let is_path = argument.starts_with(['/', '.']) && argument.contains('/');
    // Its paths are those inside the sandbox.
    let is_sandbox = pool.program.file_name().is_some_and(|name| name == "bwrap");
    if is_sandbox
        || argument.starts_with('-')
        || argument.contains([' ', '\n'])
        || argument.contains("://")
        || variable(argument).is_some()
        || !(is_script || is_path)
    {
        return None;
    }
    let directory = pool.cwd.clone().or_else(|| std::env::current_dir().ok())?;
    let is_missing =
        directory.join(argument).symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    is_missing.then(|| format!("{argument} does not exist in {}", directory.display()))
}

/// The missing script of an interpreter, and where it was searched: the command cannot run.
pub(super) fn missing_script(pool: &PoolConfig) -> Option<(String, PathBuf)> {
    const INTERPRETERS: [&str; 8] = ["python", "node", "ruby", "perl", "php", "sh", "bash", "java"];
    let name = Path::new(&pool.command).file_name()?.to_str()?;
    let name = name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    let script = pool.args.first().filter(|first| !first.starts_with('-') && INTERPRETERS.contains(&name))?;
    let directory = std::env::current_dir().ok()?;
    file_warning(pool, script).map(|_| (script.clone(), directory))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn warnings(args: &[&str], env: serde_json::Value) -> Vec<String> {
        let pool = json!({ "id": "a", "command": "sh", "args": args, "env": env, "instances": 1, "cwd": "/" });
        let text = json!({ "pools": [pool] }).to_string();
        Config::from_bytes(text.as_bytes(), "a test").expect("it is valid").pool_warnings()
    }

    #[test]
    fn arguments_that_name_missing_files_are_warned_of() {
        let warnings = |argument: &str| warnings(&[argument], json!({}));
        assert_eq!(warnings("no/such/worker.py"), ["pools[0].args[0]: no/such/worker.py does not exist in /"]);
        assert_eq!(warnings("/no/such/file"), ["pools[0].args[0]: /no/such/file does not exist in /"]);
        assert_eq!(warnings("~/worker"), ["pools[0].args[0]: ~/worker: ~ is not expanded here; write the whole path"]);
        for fine in ["/dev/null", "--config=x.json", "-c", "echo a/b.sh", "@scope/agent", "http://h/x.js", "main"] {
            assert_eq!(warnings(fine), Vec::<String>::new(), "{fine}");
        }
    }

    #[test]
    fn a_shared_agent_that_takes_one_initialize_is_warned_of() {
        let warnings = |command: &[&str], assignment: &str| {
            let (command, args) = command.split_first().expect("a command");
            let pool = json!({ "id": "a", "command": "sh", "args": args, "instances": 1, "assignment": assignment });
            let text = json!({ "pools": [pool] }).to_string();
            let mut config = Config::from_bytes(text.as_bytes(), "a test").expect("it is valid");
            (*command).clone_into(&mut config.pools[0].command);
            config.pool_warnings()
        };
        for command in [&["codex-acp"][..], &["/opt/bin/codex-acp"], &["npx", "-y", "@zed-industries/codex-acp@2.6.0"]]
        {
            let found = warnings(command, "client");
            assert!(found.len() == 1 && found[0].starts_with("pools[0].assignment: codex-acp takes"), "{found:?}");
            assert_eq!(warnings(command, "dedicated"), Vec::<String>::new());
        }
        assert_eq!(warnings(&["gemini", "--acp"], "client"), Vec::<String>::new());
    }

    #[test]
    fn a_path_in_a_sandbox_is_not_searched_outside() {
        let pool = json!({ "id": "a", "command": "sh", "args": ["--tmpfs", "/no/such/home"], "instances": 1 });
        let text = json!({ "pools": [pool] }).to_string();
        let mut config = Config::from_bytes(text.as_bytes(), "a test").expect("it is valid");
        assert_eq!(config.pool_warnings().len(), 1);
        config.pools[0].program = "/usr/bin/bwrap".into();
        assert_eq!(config.pool_warnings(), Vec::<String>::new());
    }

    #[test]
    fn a_variable_that_is_not_substituted_is_warned_of() {
        let own = "pools[0].env.KEY: ${KEY} is not replaced, and the worker gets these characters; leave KEY out: workers \
                   have the environment of the daemon";
        assert_eq!(warnings(&[], json!({ "KEY": "${KEY}" })), [own]);
        for (value, name) in [
            ("secret-${OTHER}-secret", "${OTHER}"),
            ("$OTHER", "$OTHER"),
            ("%OTHER%", "%OTHER%"),
            ("${env:OTHER}", "${env:OTHER}"),
        ] {
            let warning = format!(
                "pools[0].env.KEY: {name} is not replaced, and the worker gets these characters; write the value"
            );
            assert_eq!(warnings(&[], json!({ "KEY": value })), [warning]);
        }
        for fine in ["a$b", "100%", "$", "${", "${}", "$1", "%", "a%b%c", "${a b}", "p@$$w0rd", "$ecret"] {
            assert_eq!(warnings(&[], json!({ "KEY": fine })), Vec::<String>::new(), "{fine}");
        }
        assert_eq!(warnings(&["${HOME}/x.py"], json!({})).len(), 1);
        assert_eq!(warnings(&["-c", "${HOME}/x"], json!({})), Vec::<String>::new(), "a shell replaces it");
    }
}
