//! The reader's queries to the table of settings, and the messages for unknown keys and values.

use std::ops::RangeInclusive;

use super::table::{SETTINGS, Setting, TRANSPORT, ValueKind};

/// The settings of the object with this path.
pub(super) fn settings(path: &str) -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(move |section| section.path == path).flat_map(|section| section.settings)
}

/// The keys that an object may have.
pub(super) fn known(path: &str) -> Vec<&'static str> {
    if path == "transport" { TRANSPORT.to_vec() } else { settings(path).map(|setting| setting.key).collect() }
}

/// Keys that only some listeners have, which are in the section with this name.
pub(super) fn of_section(name: &str) -> impl Iterator<Item = &'static str> {
    let sections = SETTINGS.iter().filter(move |section| section.name == name);
    sections.flat_map(|section| section.settings).map(|setting| setting.key)
}

fn kind(path: &str, key: &str) -> Option<ValueKind> {
    settings(path).find(|setting| setting.key == key).map(|setting| setting.kind)
}

/// The range of a number.
pub(super) fn range(path: &str, key: &str) -> RangeInclusive<u64> {
    match kind(path, key) {
        Some(ValueKind::Number(_, low, high) | ValueKind::NumberOrObject(low, high)) => low..=high,
        _ => unreachable!("{path} has no number {key}"),
    }
}

/// The allowed strings of a setting.
pub(super) fn choices(path: &str, key: &str) -> &'static [&'static str] {
    match kind(path, key) {
        Some(ValueKind::Choice(names)) => names,
        _ => unreachable!("{path} has no choice {key}"),
    }
}

/// What to write instead of 0, where that is out of range but commonly meant as something.
pub(super) fn instead_of_zero(key: &str) -> Option<&'static str> {
    match key {
        "backpressure_timeout_sec" => Some(
            "that would close every client that stalls briefly; write 1 for the shortest time, 86400 for the longest, or leave \
             it out for 60",
        ),
        _ => None,
    }
}

/// Removed settings, and what applies now. The third is a removed choice, or empty.
#[rustfmt::skip]
pub(super) const GONE: [(&str, &str, &str, &str); 17] = [
    ("", "error_replies", "", "a request that cannot be answered always gets an error"),
    ("pools[]", "max_timeouts", "", "with request_timeout_sec, a worker that says nothing while three requests time out is restarted"),
    ("pools[]", "retry_after_sec", "", "a worker that was given up is tried again after limits.restart_window_sec"),
    ("pools[]", "on_exit", "", "a connection ends with its own worker"),
    ("pools[]", "stderr_level", "", "what workers write to stderr has the level info"),
    ("pools[]", "stderr_lines_per_sec", "", "of what a worker writes to stderr 100 lines a second are logged"),
    ("limits", "drain_grace_ms", "", "a shutdown closes a client without requests once it is silent for 250 ms"),
    ("limits", "hold_ms", "", "a message waits 1000 ms for a worker"),
    ("limits", "on_failure", "", "the daemon stays when all workers were given up; /readyz reports that it is not ready"),
    ("routing", "default_pool", "", "a listener names the pool of its clients in listeners[].pool"),
    ("routing", "id_collision", "reject", "an id that is in use is replaced on the way in and restored on the way back"),
    ("listeners[]", "first_line_timeout_sec", "", "a client that never sends a line makes room when all slots are taken"),
    ("listeners[]", "idle_closes_sessions", "", "idle_timeout_sec closes no client that has sessions"),
    ("listeners[]", "keepalive_sec", "", "a silent client over TCP is asked after 10 s, and counts as gone after 30 s"),
    ("listeners[]", "pong_timeout_sec", "", "a client that does not answer a ping within 10 s is closed"),
    ("listeners[].proxy", "required", "", "a connection of a proxy without a PROXY header is closed"),
    ("listeners[].proxy", "timeout_ms", "", "a PROXY header may take 3000 ms"),
];

/// What applies instead of a removed setting or choice.
pub(super) fn gone(path: &str, key: &str, choice: &str) -> Option<&'static str> {
    let mut gone = GONE.iter().filter(|(section, name, value, _)| (*section, *name, *value) == (path, key, choice));
    gone.next().map(|(.., holds)| *holds)
}

/// Other programs' names for our keys.
const SYNONYMS: [(&str, &str); 14] = [
    ("cmd", "command"),
    ("exec", "command"),
    ("program", "command"),
    ("arguments", "args"),
    ("argv", "args"),
    ("environment", "env"),
    ("dir", "cwd"),
    ("directory", "cwd"),
    ("workdir", "cwd"),
    ("workers", "instances"),
    ("replicas", "instances"),
    ("count", "instances"),
    ("name", "id"),
    ("timeout", "request_timeout_sec"),
];

/// Why some limits of setrlimit(2) are not settings.
fn unlimited(key: &str) -> Option<&'static str> {
    match key {
        "memory" | "as" | "address_space" | "data" | "rss" => Some(
            "RLIMIT_AS counts reserved addresses, of which V8 takes far more than it uses; limit memory with a control group \
             (MemoryMax= in systemd), or set recycle_memory_mb beside rlimits",
        ),
        "processes" | "nproc" | "threads" => Some(
            "RLIMIT_NPROC counts all that the user runs on this machine; limit processes with a control group (TasksMax= in \
             systemd)",
        ),
        _ => None,
    }
}

/// What to write instead of an unknown key.
pub(super) fn suggest(key: &str, path: &str) -> String {
    let known = known(path);
    if let Some(why) = unlimited(key).filter(|_| path == "pools[].rlimits") {
        return why.to_owned();
    }
    if ["mcpServers", "agent_servers", "servers"].contains(&key) && known.contains(&"pools") {
        return "write each of them as a pool: {\"id\": \"NAME\", \"command\": …, \"args\": […], \"instances\": 1}"
            .to_owned();
    }
    if let Some((_, name)) = SYNONYMS.iter().find(|(other, name)| *other == key && known.contains(name)) {
        return format!("did you mean \"{name}\"?");
    }
    let mut elsewhere = SETTINGS.iter().filter(|section| section.settings.iter().any(|setting| setting.key == key));
    match elsewhere.next().map(|section| section.path).or_else(|| TRANSPORT.contains(&key).then_some("transport")) {
        Some("") => format!("\"{key}\" belongs at the top level"),
        Some(path) => format!("\"{key}\" belongs under {path}"),
        None => match nearest(key, &known) {
            Some(name) => format!("did you mean \"{name}\"?"),
            None => format!("known here are {}; a key that begins with _ is a comment", known.join(", ")),
        },
    }
}

/// The known name that a misspelt one was probably meant to be.
pub(crate) fn nearest<'n>(wrong: &str, known: &[&'n str]) -> Option<&'n str> {
    // maxInstances and max-instances are max_instances to an operator.
    let plain = |name: &str| -> String {
        name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).take(64).collect()
    };
    let wrong = plain(wrong);
    known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(&wrong, &plain(name)), *name))
        .filter(|(distance, name)| *distance <= (name.len() / 3).max(1))
        .min()
        .map(|(_, name)| name)
}
