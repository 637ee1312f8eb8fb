//! Every key that a configuration may have and the range of every number, once: the reader, the suggestions for
//! misspelt keys and the test of `config/schema.json` all look here.

use std::ops::RangeInclusive;

use crate::bus::settings::{MAX_CONNECTIONS, MAX_WORKERS};

pub(super) const TOP: &[&str] =
    &["pools", "limits", "routing", "error_replies", "listeners", "admin", "log", "transport"];
pub(super) const POOL: &[&str] = &[
    "id",
    "command",
    "args",
    "instances",
    "env",
    "cwd",
    "assignment",
    "max_instances",
    "cancel_on_disconnect",
    "request_timeout_sec",
    "deny_methods",
    "max_timeouts",
    "retry_after_sec",
    "on_exit",
    "stderr_level",
    "stderr_lines_per_sec",
];
pub(super) const LIMITS: &[&str] = &[
    "max_input_buffer",
    "max_output_queue",
    "max_restarts",
    "restart_window_sec",
    "drain_timeout_sec",
    "backpressure_timeout_sec",
    "lame_duck_sec",
    "quiesce_sec",
    "drain_grace_ms",
    "hold_ms",
    "session_idle_sec",
    "max_memory",
    "on_failure",
];
pub(super) const ROUTING: &[&str] = &["id_collision", "session_access", "default_pool"];
pub(super) const LISTENER: &[&str] = &[
    "tcp",
    "unix",
    "ws",
    "path",
    "origins",
    "hosts",
    "tokens_file",
    "trusted_proxies",
    "ping_sec",
    "pong_timeout_sec",
    "mode",
    "owner",
    "pool",
    "pools",
    "max_connections",
    "first_line_timeout_sec",
    "idle_timeout_sec",
    "idle_closes_sessions",
    "keepalive_sec",
    "allow",
    "peer_uids",
    "proxy",
    "when_not_ready",
];
pub(super) const MAX_CONNECTIONS_OF: &[&str] = &["total", "per_source"];
pub(super) const PROXY: &[&str] = &["from", "required", "timeout_ms"];
pub(super) const ADMIN: &[&str] = &["listen", "mode", "token_file"];
pub(super) const LOG: &[&str] = &["level", "format"];
pub(super) const TRANSPORT: &[&str] = &["mode", "framing", "protocol", "options"];

/// Each section by the path that a person would write.
pub(super) const SECTIONS: &[(&str, &[&str])] = &[
    ("", TOP),
    ("pools[]", POOL),
    ("limits", LIMITS),
    ("routing", ROUTING),
    ("listeners[]", LISTENER),
    ("listeners[].max_connections", MAX_CONNECTIONS_OF),
    ("listeners[].proxy", PROXY),
    ("admin", ADMIN),
    ("log", LOG),
    ("transport", TRANSPORT),
];

const DAY: u64 = 24 * 60 * 60;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What to write in place of 0, where that is out of the range and people mean something by it.
pub(super) fn instead_of_zero(key: &str) -> Option<&'static str> {
    match key {
        "backpressure_timeout_sec" => Some(
            "that would close whoever is full for a moment; write 1 for the shortest time, 86400 for the longest, or leave \
             it out for 60",
        ),
        _ => None,
    }
}

/// The range of a number by its key; the keys are unique over all sections.
pub(super) fn range(key: &str) -> RangeInclusive<u64> {
    match key {
        "instances" | "max_instances" => 1..=MAX_WORKERS as u64,
        "request_timeout_sec" => 1..=7 * DAY,
        "max_timeouts" => 1..=1_000_000,
        // 0 never tries again.
        "retry_after_sec" => 0..=30 * DAY,
        "first_line_timeout_sec" | "idle_timeout_sec" => 1..=30 * DAY,
        "keepalive_sec" => 1..=3600,
        "max_input_buffer" => 1..=GIB,
        "max_output_queue" => 1..=4 * GIB,
        // 0 forgets none.
        "session_idle_sec" => 0..=30 * DAY,
        // 0 gives a worker up at its first exit.
        "max_restarts" => 0..=1_000_000,
        "restart_window_sec" => 1..=30 * DAY,
        // 0 kills at once.
        "drain_timeout_sec" => 0..=DAY,
        "backpressure_timeout_sec" => 1..=DAY,
        "lame_duck_sec" | "quiesce_sec" => 0..=DAY,
        // 0 refuses at once.
        "drain_grace_ms" | "hold_ms" => 0..=60_000,
        // The least holds sixteen lines of the default length.
        "max_memory" => 16 * MIB..=1024 * GIB,
        // 0 is no limit.
        "stderr_lines_per_sec" => 0..=1_000_000,
        "timeout_ms" => 1..=60_000,
        // 0 never asks.
        "ping_sec" => 0..=DAY,
        "pong_timeout_sec" => 1..=3600,
        "max_connections" | "total" | "per_source" => 1..=MAX_CONNECTIONS as u64,
        _ => unreachable!("no number has the key {key}"),
    }
}

/// What other programs call our keys.
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

/// What to write instead of an unknown key.
pub(super) fn suggest(key: &str, section: &str, known: &[&str]) -> String {
    if ["mcpServers", "agent_servers", "servers"].contains(&key) && known.contains(&"pools") {
        return "write each of them as a pool: {\"id\": \"NAME\", \"command\": …, \"args\": […], \"instances\": 1}"
            .to_owned();
    }
    let synonym = SYNONYMS.iter().find(|(other, name)| *other == key && known.contains(name)).map(|(_, name)| *name);
    if let Some(name) = synonym.or_else(|| nearest(key, known)) {
        return format!("did you mean \"{name}\"?");
    }
    let elsewhere = SECTIONS.iter().filter(|(name, _)| *name != section);
    for (name, keys) in elsewhere {
        if keys.contains(&key) {
            return match *name {
                "" => format!("\"{key}\" belongs at the top level"),
                name => format!("\"{key}\" belongs under {name}"),
            };
        }
    }
    format!("known here are {}; a key that begins with _ is a comment", known.join(", "))
}

/// The known name that a misspelt one was probably meant to be.
pub(super) fn nearest<'n>(wrong: &str, known: &[&'n str]) -> Option<&'n str> {
    // maxInstances and max-instances are max_instances to a person.
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
