//! Formats the daemon's answers as text. Whatever clients and workers chose, including their names, is escaped:
//! terminals interpret control characters.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde_json::Value;

use crate::printable;
use crate::shell::admin::tables::{Column, columns};

/// A table with a line for each object in a member of the answer; `empty` if there are none.
pub(super) fn table(answer: &Value, name: &str, empty: &str) -> String {
    let rows = answer[name].as_array().map_or(&[][..], Vec::as_slice);
    if rows.is_empty() {
        return format!("{empty}\n");
    }
    let columns = columns().find(|(known, _)| *known == name).map(|(_, columns)| columns).unwrap_or_default();
    let has_some = |column: &Column| rows.iter().any(|row| !row[column.member].is_null());
    let columns: Vec<Column> = columns.into_iter().filter(has_some).collect();
    let mut lines: Vec<Vec<String>> = vec![columns.iter().map(|column| column.heading().to_uppercase()).collect()];
    lines
        .extend(rows.iter().map(|row| columns.iter().map(|column| cell(column.member, &row[column.member])).collect()));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let is_number = |column: &Column| rows.iter().any(|row| row[column.member].is_number());
    let is_number: Vec<bool> = columns.iter().map(is_number).collect();
    let mut out = String::new();
    for line in &lines {
        let mut text = String::new();
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            let _ = match is_number[column] {
                true => write!(text, "{cell:>width$}  "),
                false => write!(text, "{cell:<width$}  "),
            };
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

fn cell(key: &str, value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Number(number) if key.contains("seconds") => time(number.as_f64().unwrap_or_default()),
        Value::Number(number) if key.ends_with("_bytes") => bytes(number.as_f64().unwrap_or_default()),
        Value::String(text) => escaped(text),
        Value::Array(parts) => parts.iter().map(|part| cell("", part)).collect::<Vec<_>>().join(", "),
        Value::Object(parts) => {
            let parts = parts.iter().filter(|(_, count)| **count != 0);
            parts.map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
        }
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    }
}

/// Escapes characters that a terminal might interpret.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        // Bidirectional marks would show one name as another.
        if character.is_control() || printable::is_obeyed(character) || matches!(character, '\u{200b}'..='\u{200d}') {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    out
}

/// A duration in a suitable unit.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        ..0.001 => format!("{:.0} µs", seconds * 1e6),
        ..1.0 => format!("{:.0} ms", seconds * 1e3),
        ..60.0 => format!("{seconds:.1} s"),
        ..3600.0 => format!("{:.0} m {:.0} s", (seconds / 60.0).floor(), seconds % 60.0),
        ..86_400.0 => format!("{:.0} h {:.0} m", (seconds / 3600.0).floor(), (seconds % 3600.0 / 60.0).floor()),
        _ => format!("{:.0} d {:.0} h", (seconds / 86_400.0).floor(), (seconds % 86_400.0 / 3600.0).floor()),
    }
}

/// A number of bytes in a suitable unit.
fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{value} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// An overview of the daemon; its rates since `before`, or since its start.
pub(super) fn status(now: &Value, before: Option<&Value>) -> String {
    let text = |key: &str| escaped(now[key].as_str().unwrap_or("?"));
    let level = |key: &str| format!("{} of {}", now[key]["used"], now[key]["most"]);
    let passed = difference(now, before, &["uptime_seconds"]);
    let rate = |path: &[&str]| if passed > 0.0 { difference(now, before, path) / passed } else { 0.0 };
    let mut out = String::new();
    let why = now["why"].as_str().map_or_else(String::new, |why| format!(" ({})", escaped(why)));
    let _ = writeln!(
        out,
        "stdio_bus {}, node {}, process {}, on {}, up {}: {}{why}",
        text("version"),
        text("node"),
        now["pid"],
        text("io"),
        time(now["uptime_seconds"].as_f64().unwrap_or_default()),
        text("state")
    );
    let _ = writeln!(
        out,
        "clients {}, sessions {}, pending {} from clients and {} from workers",
        level("clients"),
        level("sessions"),
        level("requests"),
        level("worker_requests")
    );
    let lines = |side: &str| {
        let of = |key: &str| rate(&["totals", &format!("{side}_{key}")]);
        format!(
            "{:.0} lines/s in ({}/s), {:.0} out ({}/s)",
            of("lines_received"),
            bytes(of("bytes_received").round()),
            of("lines_sent"),
            bytes(of("bytes_sent").round())
        )
    };
    let _ = writeln!(out, "clients: {}; workers: {}", lines("client"), lines("worker"));
    let _ = writeln!(
        out,
        "loop {:.1} % busy, memory {} of {}, log level {}, {} lines of the log lost",
        100.0 * rate(&["loop", "busy_seconds"]),
        bytes(now["memory"]["used"].as_f64().unwrap_or_default()),
        bytes(now["memory"]["most"].as_f64().unwrap_or_default()),
        now["log"]["level"].as_str().unwrap_or("?"),
        now["log"]["lines_lost"]
    );
    for (key, empty) in [("listeners", "no listeners"), ("pools", "no pools"), ("workers", "no workers")] {
        let _ = write!(out, "\n{}", table(now, key, empty));
    }
    for (key, title) in [("waiting", "who waits for whom"), ("errors", "last warnings and errors")] {
        if now[key].as_array().is_some_and(|rows| !rows.is_empty()) {
            let _ = write!(out, "\n{title}:\n{}", table(now, key, ""));
        }
    }
    let shown = now["errors"].as_array().map_or(0, Vec::len) as u64;
    let more = now["errors_kept"].as_u64().unwrap_or_default().saturating_sub(shown);
    if more > 0 {
        let _ = writeln!(out, "and {more} more: stdio_bus show errors");
    }
    out
}

/// The increase of a counter since `before`, or since the start.
fn difference(now: &Value, before: Option<&Value>, path: &[&str]) -> f64 {
    let of = |value: &Value| path.iter().fold(value, |value, key| &value[*key]).as_f64().unwrap_or_default();
    of(now) - before.map(of).unwrap_or_default()
}

/// Writes to stdout at once.
pub(super) fn say(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_has_units_in_its_cells_and_no_control_characters() {
        let answer = json!({ "sessions": [
            { "session": "a\u{1b}[2J\n", "client": null, "rank": "x", "idle_seconds": 0.25, "other": 1 },
            { "session": "b", "client": null, "rank": "x", "idle_seconds": 3725.0, "other": 1 },
        ], "workers": [{ "worker": "a/0", "queued_bytes": 2048 }] });
        let text = table(&answer, "sessions", "");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["SESSION", "RANK", "IDLE"], "{text}");
        assert!(lines[1].starts_with("a\\u{1b}[2J\\n ") && lines[1].ends_with(" 250 ms"), "{text}");
        assert!(lines[2].ends_with(" 1 h 2 m"), "{text}");
        assert_eq!(table(&answer, "workers", ""), "WORKER   QUEUED\na/0     2.0 KiB\n");
        assert_eq!(table(&json!([]), "sessions", "nobody"), "nobody\n");
    }

    #[test]
    fn headings_are_readable_and_figures_follow_their_names() {
        let pool = json!({
            "pool": "a", "ready": true, "answer_seconds_half_below": 0.001, "answer_seconds_99_percent_below": 0.025,
            "requests": { "answered": 7, "error": 0, "timeout": 1 },
        });
        let text = table(&json!({ "pools": [pool] }), "pools", "");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["POOL", "READY", "REQUESTS", "P50", "P99"]);
        assert!(lines[1].contains("yes    7 answered, 1 timeout  1 ms  25 ms"), "{text}");
    }

    #[test]
    fn hidden_warnings_are_counted_with_where_to_see_them() {
        let error = json!({ "time": "t", "text": "x" });
        let text = status(&json!({ "errors": vec![error.clone(); 10], "errors_kept": 64 }), None);
        assert!(text.ends_with("x\nand 54 more: stdio_bus show errors\n"), "{text}");
        assert!(!status(&json!({ "errors": [error], "errors_kept": 1 }), None).contains("more"));
    }

    #[test]
    fn rates_are_between_two_samples() {
        let look = |seconds: u32, lines: u32| json!({ "uptime_seconds": seconds, "totals": { "client_lines_received": lines }, "state": "ready" });
        let text = status(&look(12, 500), Some(&look(10, 100)));
        assert!(text.contains("clients: 200 lines/s in"), "{text}");
        assert!(status(&look(10, 100), None).contains("clients: 10 lines/s in"));
    }
}
