//! Checks before the start whether a pool's command can be run: which file it is, and what prevents it.
//!
//! It never runs anything. What it accepts can still fail at exec, since the file system may change.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::address::TILDE;

/// The search path without a PATH, as in execvp (exec(3)).
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Script extensions that no shell can run, and their interpreters.
const BY_OTHERS: [(&str, &str); 4] = [("py", "python3"), ("js", "node"), ("mjs", "node"), ("rb", "ruby")];

/// The daemon's own name.
const OWN_NAME: &str = "stdio_bus";

/// The absolute path of the program that `command` names.
///
/// `stdio_bus` is the daemon itself, wherever it was started from: its built-in workers need no installation, and no
/// other program of this name in PATH is used.
///
/// A command with a slash is a path, relative to the daemon's working directory (not to the pool's `cwd`). Any other is
/// searched in `search_path`, which is the pool's own PATH if it sets one, else the daemon's. Symbolic links are not
/// resolved, because programs such as busybox depend on the name that they are called by.
pub(crate) fn resolve(command: &str, search_path: Option<&str>) -> Result<PathBuf, String> {
    if command.contains('/') {
        let path = std::path::absolute(command).map_err(|error| reason(&error))?;
        return check_program(&path).map(|()| path).map_err(|why| with_home(command, why));
    }
    if command == OWN_NAME
        && let Ok(program) = env::current_exe()
    {
        return Ok(program);
    }
    let search_path = directories(search_path);
    // Like execvp, skip files without permission to execute, and report one if nothing better is found.
    let mut refused = None;
    for directory in env::split_paths(&search_path) {
        let Ok(path) = std::path::absolute(directory.join(command)) else { continue };
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => match check_program(&path) {
                Ok(()) => return Ok(path),
                Err(why) => refused = refused.or_else(|| Some(format!("{} {why}", path.display()))),
            },
            _ => {}
        }
    }
    if command.trim().contains(char::is_whitespace) {
        // The whole PATH would only hide what is wrong.
        return Err("is a whole command line, and no program has such a name".to_owned());
    }
    Err(refused.unwrap_or_else(|| format!("is not in PATH ({})", search_path.display())))
}

/// The search path: the pool's, else the daemon's.
fn directories(search_path: Option<&str>) -> OsString {
    search_path.map(Into::into).or_else(|| env::var_os("PATH")).unwrap_or_else(|| DEFAULT_PATH.into())
}

/// The path to try for a command that [`resolve`] has not found, since it may be installed later.
pub(super) fn expected(command: &str, search_path: Option<&str>) -> PathBuf {
    let search_path = directories(search_path);
    let directory = env::split_paths(&search_path).find(|directory| directory.is_absolute());
    match command.contains('/') {
        true => std::path::absolute(command).unwrap_or_else(|_| command.into()),
        // Never a file of that name in the working directory.
        false => directory.unwrap_or_else(|| "/bin".into()).join(command),
    }
}

/// The absolute path of a worker's working directory; relative paths start at the daemon's.
pub(super) fn working_directory(directory: &str) -> Result<PathBuf, String> {
    let path = std::path::absolute(directory).map_err(|error| reason(&error))?;
    let metadata = fs::metadata(&path).map_err(|error| with_home(directory, reason(&error)))?;
    if !metadata.is_dir() {
        return Err("is not a directory".to_owned());
    }
    match accessat(CWD, &path, Access::EXEC_OK, AtFlags::EACCESS) {
        Ok(()) => Ok(path),
        Err(_) => Err("may not be entered; the daemon's user needs the x permission on it".to_owned()),
    }
}

/// Adds the remedy to an error if the path was written as for a shell.
fn with_home(written: &str, why: String) -> String {
    match super::warnings::variable(written) {
        _ if written.starts_with('~') => format!("{why}: {TILDE}"),
        // Within a path the variable may be part of a word, or have no braces.
        _ if written.starts_with('$') => format!("{why}: variables are not replaced here; write the whole path"),
        Some(name) => format!("{why}: {name} is not replaced here; write the whole path"),
        None => why,
    }
}

fn check_program(path: &Path) -> Result<(), String> {
    let metadata = fs::metadata(path).map_err(|error| reason(&error))?;
    if metadata.is_dir() {
        return Err("is a directory; name the program in it".to_owned());
    }
    if !metadata.is_file() {
        return Err("is not a file".to_owned());
    }
    if accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_err() {
        return Err(format!("is not executable; chmod +x {}", path.display()));
    }
    check_interpreter(path)
}

/// If a script's interpreter is missing, exec fails with "no such file", which is misleading.
fn check_interpreter(path: &Path) -> Result<(), String> {
    // The kernel reads this much of the first line (BINPRM_BUF_SIZE, execve(2)).
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(256).read_to_end(&mut head));
    // Execute permission without read permission is fine.
    if read.is_err() {
        return Ok(());
    }
    let Some(rest) = head.strip_prefix(b"#!") else {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let other = BY_OTHERS.iter().find(|(known, _)| *known == ending);
        return match other.filter(|_| !head.starts_with(b"\x7fELF")) {
            None => Ok(()),
            Some((_, interpreter)) => {
                Err(format!("has no line #!/usr/bin/env {interpreter} at its top: a shell would run it"))
            }
        };
    };
    let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_start();
    let interpreter = line.split(|byte| matches!(byte, b' ' | b'\t')).next().unwrap_or_default();
    let shown = String::from_utf8_lossy(interpreter).into_owned();
    if line.ends_with(b"\r") {
        return Err(format!("has Windows line ends; sed -i 's/\\r$//' {}", path.display()));
    }
    match fs::metadata(std::ffi::OsStr::from_bytes(interpreter)) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!(
            "is a script whose interpreter {shown:?} does not exist; install it, or correct its first line"
        )),
    }
}

/// An operating system error in the words of a message.
pub(super) fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "does not exist".to_owned(),
        io::ErrorKind::PermissionDenied => "may not be read by the user that runs stdio_bus".to_owned(),
        io::ErrorKind::NotADirectory => "lies under something that is not a directory".to_owned(),
        _ => format!("cannot be used: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn script(directory: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, text).expect("the test can write its file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("the test owns its file");
        path
    }

    #[test]
    fn a_plain_name_is_searched_in_the_path() {
        let found = resolve("sh", None).expect("every machine has sh");
        assert!(found.is_absolute() && found.ends_with("sh"));
        let error = resolve("sh", Some("/nonexistent")).expect_err("there is no such directory");
        assert_eq!(error, "is not in PATH (/nonexistent)");
    }

    #[test]
    fn the_daemons_own_name_is_the_daemon_itself() {
        let own = env::current_exe().expect("a test has a program");
        assert_eq!(resolve("stdio_bus", Some("/nonexistent")), Ok(own));
    }

    #[test]
    fn a_file_without_execute_permission_is_skipped_and_then_named() {
        let (first, second) = (tempfile::tempdir().expect("tmp"), tempfile::tempdir().expect("tmp"));
        let plain = script(first.path(), "agent", "#!/bin/sh\n", 0o644);
        let search = format!("{}:{}", first.path().display(), second.path().display());
        let error = resolve("agent", Some(&search)).expect_err("the only agent is not executable");
        assert!(error.starts_with(&plain.display().to_string()) && error.contains("chmod +x"), "{error}");
        let good = script(second.path(), "agent", "#!/bin/sh\n", 0o755);
        assert_eq!(resolve("agent", Some(&search)), Ok(good));
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let directory = tempfile::tempdir().expect("tmp");
        let at = |name: &str| directory.path().join(name).display().to_string();
        assert_eq!(resolve(&at("none"), None).unwrap_err(), "does not exist");
        let home = "does not exist: ~ is not expanded here; write the whole path";
        assert_eq!(resolve("~/none", None).unwrap_err(), home);
        assert_eq!(working_directory("~/none").unwrap_err(), home);
        assert!(resolve("$HOME/none", None).unwrap_err().contains("variables are not replaced here"));
        assert!(resolve("/x/${NAME}/none", None).unwrap_err().contains("${NAME} is not replaced here"));
        assert_eq!(resolve(&at(""), None).unwrap_err(), "is a directory; name the program in it");
        script(directory.path(), "bare.py", "import sys\n", 0o755);
        assert!(resolve(&at("bare.py"), None).unwrap_err().contains("no line #!/usr/bin/env python3 at its top"));
        script(directory.path(), "windows", "#!/usr/bin/env python3\r\n", 0o755);
        assert!(resolve(&at("windows"), None).unwrap_err().contains("Windows line ends"));
        script(directory.path(), "lost", "#! /no/such/node --x\n", 0o755);
        assert!(resolve(&at("lost"), None).unwrap_err().contains("interpreter \"/no/such/node\" does not exist"));
        script(directory.path(), "dos", "#!/bin/sh\r\n", 0o755);
        assert!(resolve(&at("dos"), None).unwrap_err().contains("Windows line ends"));
        assert_eq!(resolve(&at("dos/x"), None).unwrap_err(), "lies under something that is not a directory");
    }

    #[test]
    fn a_working_directory_must_be_a_directory() {
        assert_eq!(working_directory("/"), Ok(PathBuf::from("/")));
        assert_eq!(working_directory("/dev/null").unwrap_err(), "is not a directory");
        assert_eq!(working_directory("/no/such").unwrap_err(), "does not exist");
        assert!(working_directory(".").is_ok_and(|path| path.is_absolute()));
    }
}
