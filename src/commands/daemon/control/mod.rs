//! The operators' commands: `status`, `show`, `kill`, `restart`, `drain` and `log-level` ask a running daemon through
//! its admin listener. They make no decisions about the daemon: they ask, and show the answer.
//!
//! Reading order: `http.rs` sends requests, `text.rs` formats tables, `watch.rs` repeats it.

mod http;
mod text;
mod watch;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use crate::address::Address;
use crate::error::{StartError, exit};
use crate::printable;
use http::{Ask, Server, parsed};
use text::say;

/// The environment variable with the daemon's address, the default of `--admin`.
pub const ADDRESS_VARIABLE: &str = "STDIO_BUS_ADMIN";
/// The environment variable with the path of the token file, the default of `--token-file`.
pub const TOKEN_VARIABLE: &str = "STDIO_BUS_ADMIN_TOKEN_FILE";

/// Interval of polls for the end of a reload.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The daemon to ask, and the format of the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlOptions {
    /// Its admin listener; none uses [`ADDRESS_VARIABLE`].
    pub address: Option<Address>,
    /// The file with its token, for actions over TCP; none uses [`TOKEN_VARIABLE`].
    pub token_file: Option<PathBuf>,
    /// Print the JSON verbatim.
    pub json: bool,
}

/// A question to the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// An overview, once or every second until interrupted.
    Status {
        /// Repeat.
        watch: bool,
    },
    /// A table.
    Show {
        /// Its name.
        table: &'static str,
    },
    /// Reload the configuration.
    Reload {
        /// Change nothing.
        dry_run: bool,
    },
    /// An action.
    Act {
        /// The path and query.
        target: String,
    },
}

/// Asks, and prints the answer to stdout. Returns the exit code.
///
/// # Errors
/// The daemon's address is unknown ([`StartError::Usage`]), it cannot be asked, or it refuses ([`StartError::Io`]).
pub fn run(options: &ControlOptions, question: &Question) -> Result<u8, StartError> {
    let server = server(options)?;
    let written = match question {
        Question::Status { watch: true } => watch::watch(&server, options.json)?,
        Question::Status { watch: false } => {
            let body = server.body(&Ask::get("/status.json"))?;
            if options.json { say(&printable::json(&body)) } else { say(&text::status(&parsed(&body)?, None)) }
        }
        Question::Show { table } => {
            let body = server.body(&Ask::get(&format!("/{table}.json")))?;
            if options.json {
                say(&printable::json(&body))
            } else {
                say(&text::table(&parsed(&body)?, table, "nothing"))
            }
        }
        Question::Reload { dry_run } => return reload(&server, options.json, *dry_run),
        Question::Act { target } => {
            let said = server.body(&Ask::post(target))?;
            let as_json = || format!("{}\n", serde_json::json!({ "said": said.trim_end() }));
            if options.json { say(&printable::json(&as_json())) } else { say(&said) }
        }
    };
    match written {
        // `| head` has read enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(StartError::io("write stdout")(error)),
        _ => Ok(exit::OK),
    }
}

/// Reloads the configuration, and waits for the outcome.
fn reload(server: &Server, json: bool, dry_run: bool) -> Result<u8, StartError> {
    let mut daemon = server.connect()?;
    daemon.body(&Ask::post(if dry_run { "/reload?dry_run=1" } else { "/reload" }))?;
    let mut number = None;
    let (body, outcome) = loop {
        let body = daemon.body(&Ask::get("/reload.json"))?;
        let outcome = parsed(&body)?;
        // Another reload may have begun after this one ended.
        let is_ours = *number.get_or_insert_with(|| outcome["number"].clone()) == outcome["number"];
        if !is_ours || outcome["over"] == true {
            break (body, outcome);
        }
        std::thread::sleep(LOOK_AGAIN);
    };
    let code = outcome["code"].as_u64().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::FAILURE);
    let lines = outcome["lines"].as_array().into_iter().flatten().filter_map(|line| line.as_str());
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    if json {
        say(&printable::json(&body)).map_err(StartError::io("write stdout"))?;
    } else if code == exit::OK {
        say(&printable::text(&text)).map_err(StartError::io("write stdout"))?;
    } else {
        io::stderr().write_all(printable::text(&text).as_bytes()).map_err(StartError::io("write stderr"))?;
    }
    Ok(code)
}

fn server(options: &ControlOptions) -> Result<Server, StartError> {
    let from_environment = || -> Result<Address, StartError> {
        let text = std::env::var(ADDRESS_VARIABLE).unwrap_or_default();
        if text.is_empty() {
            return Err(StartError::Usage(format!(
                "where is the daemon? say it with --admin ADDRESS or in {ADDRESS_VARIABLE}; it is what the daemon was \
                 given as --admin or admin.listen"
            )));
        }
        Address::from_any(&text).map_err(|error| StartError::Usage(format!("{ADDRESS_VARIABLE}: {error}")))
    };
    let address = options.address.clone().map_or_else(from_environment, Ok)?;
    let token_file = options.token_file.clone().or_else(|| std::env::var_os(TOKEN_VARIABLE).map(PathBuf::from));
    let read = |path: PathBuf| {
        let doing = format!("read the token file {}", path.display());
        std::fs::read_to_string(&path).map(|token| token.trim().to_owned()).map_err(StartError::io(&doing))
    };
    Ok(Server { address, token: token_file.map(read).transpose()? })
}

/// Escapes a value for the query of a target.
pub(crate) fn escaped_value(value: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-._~:@".contains(byte);
    value.bytes().map(|byte| if plain(&byte) { (byte as char).to_string() } else { format!("%{byte:02X}") }).collect()
}
