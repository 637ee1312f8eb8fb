//! The documents derived from the table of settings: `config/schema.json`, the tables of `docs/configuration.md`, and keys
//! with a default in `config/full.json`.

use std::collections::BTreeSet;

use super::table::{DefaultValue, SETTINGS, Section, Setting, Unit, ValueKind};
use super::*;
use crate::kinds::{KINDS, KindRow, listed, over_http};

/// If set, the documents are written; otherwise they are compared.
const WRITE: &str = "STDIO_BUS_WRITE_DOCS";

/// Compares a document with the one derived from the table, or writes it.
fn keep(path: &str, wanted: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os(WRITE).is_some() {
        return fs::write(file, wanted).expect("it can be written");
    }
    let there = fs::read_to_string(file).expect("the file is in the repository");
    let differs = there.lines().zip(wanted.lines()).find(|(one, other)| one != other);
    assert!(
        there == wanted,
        "{path} is not what the table of settings gives; {WRITE}=1 cargo test --lib config writes it: {differs:?}"
    );
}

fn all() -> impl Iterator<Item = (&'static Section, &'static Setting)> {
    SETTINGS.iter().flat_map(|section| section.settings.iter().map(move |setting| (section, setting)))
}

#[test]
fn the_schema_matches_the_table() {
    let mut schema =
        object("", "What stdio_bus reads from --config or --config-fd. Keys that begin with _ are comments.");
    merge(
        &mut schema,
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "stdio_bus configuration",
            "properties": { "$schema": { "description": "This schema, for editors.", "type": "string" } },
        }),
    );
    keep("config/schema.json", &format!("{schema:#}\n"));
}

#[test]
fn the_tables_of_the_documentation_match_the_table() {
    let path = "docs/configuration.md";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let mut text = fs::read_to_string(file).expect("the file is in the repository");
    for section in &SETTINGS {
        let begin = format!("<!-- settings: {} -->\n", section.name);
        let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{path} has no {begin}"));
        let (_, after) = rest.split_once("<!-- end -->\n").expect("a table has an end");
        text = format!("{before}{begin}\n{}\n<!-- end -->\n{after}", rows(section));
    }
    keep(path, &text);
}

/// The keys that no example can show everywhere: files with secrets, that of the log, and users.
const NOT_SHOWN: [&str; 5] = ["token_file", "tokens_file", "user", "group", "file"];

#[test]
fn the_full_example_shows_every_key() {
    let path = "config/full.json";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let mut text = fs::read_to_string(file).expect("the file is in the repository");
    let shown: Value = serde_json::from_str(&text).expect("the file is JSON");
    let mut missing = Vec::new();
    for (section, setting) in all().filter(|(_, setting)| !NOT_SHOWN.contains(&setting.key)) {
        let objects = section.path.split('.').filter(|step| !step.is_empty()).fold(vec![&shown], |objects, step| {
            let members = objects.into_iter().filter_map(|object| object.get(step.trim_end_matches("[]")));
            members.flat_map(|member| member.as_array().map_or(vec![member], |array| array.iter().collect())).collect()
        });
        if objects.iter().any(|object| object.get(setting.key).is_some()) {
            continue;
        }
        match setting.left_out {
            DefaultValue::Value(default) => show(&mut text, section, setting.key, default),
            _ => missing.push(setting.key),
        }
    }
    assert!(missing.is_empty(), "{path} shows no example of {missing:?}, which have no default that could be shown");
    keep(path, &text);
}

/// Adds a key to the full example, at the end of the first object of its section.
fn show(text: &mut String, section: &Section, key: &str, value: &str) {
    let name = section.path.rsplit('.').next().unwrap_or_default().trim_end_matches("[]");
    let is_of_web = section.name == table::PINGS || section.name == table::WEB;
    let (begin, mut depth) = match name {
        "" => (Some(0), 0),
        _ if is_of_web => (text.find("\"ws\": "), 1),
        name => (text.find(&format!("\"{name}\": ")), 0),
    };
    let (begin, mut is_in_string) = (begin.expect("the example has the section"), false);
    let end = text[begin..].find(|letter| {
        is_in_string ^= letter == '"';
        match letter {
            '{' if !is_in_string => depth += 1,
            '}' if !is_in_string => depth -= 1,
            _ => return false,
        }
        depth == 0
    });
    let end = begin + end.expect("an object has an end");
    let last = text[..end].trim_end().len();
    let line = text[..last].rsplit('\n').next().unwrap_or_default();
    let indent = &line[..line.len() - line.trim_start().len()];
    let before = if text[last..end].contains('\n') { format!("\n{indent}") } else { " ".to_owned() };
    text.insert_str(last, &format!(",{before}\"{key}\": {value}"));
}

#[test]
fn a_setting_is_described_in_one_short_sentence() {
    for (section, Setting { key, says, .. }) in all() {
        let place = format!("{} {key}: {says}", section.name);
        assert!(says.ends_with('.') && !says[..says.len() - 1].contains(". "), "{place}");
        assert!(says.split_whitespace().count() <= 25, "{place}");
    }
}

/// A small configuration with this value of a setting, or without the setting.
fn with(section: &Section, key: &str, value: Option<Value>) -> String {
    let mut config = json!({ "pools": [{ "id": "a", "command": "/bin/sh", "instances": 2 }] });
    if ["idle_stop_sec", "start_timeout_sec"].contains(&key) {
        config["pools"][0]["start"] = json!("on_demand");
    }
    if section.path.starts_with("listeners[]") {
        let is_web = section.name == table::PINGS || section.name == table::WEB;
        config["listeners"] = json!([if is_web {
            json!({ "ws": "a:1" })
        } else if key == "reuse_port" {
            json!({ "tcp": "a:1" })
        } else {
            json!({ "unix": "b" })
        }]);
    } else if section.path == "admin" {
        config["admin"] = json!({ "listen": "/a" });
    }
    let mut object = &mut config;
    for step in section.path.split('.').filter(|step| !step.is_empty()) {
        object = match step.strip_suffix("[]") {
            Some(array) => &mut object[array][0],
            None => &mut object[step],
        };
    }
    if object.is_null() {
        *object = json!({});
    }
    if let Some(value) = value {
        object[key] = value;
    }
    config.to_string()
}

#[test]
fn a_default_that_is_written_out_changes_nothing() {
    let debug = |text: &str| format!("{:?}", good(text));
    for (section, setting) in all() {
        let DefaultValue::Value(default) = setting.left_out else { continue };
        let default = serde_json::from_str(default).expect("it is JSON");
        let [with, without] = [Some(default), None].map(|value| debug(&with(section, setting.key, value)));
        assert_eq!(without, with, "the default of {} of {}", setting.key, section.name);
    }
}

#[test]
fn each_number_flag_and_choice_of_the_table_reaches_the_configuration() {
    for (section, Setting { key, kind, .. }) in all() {
        let values: Vec<Value> = match kind {
            ValueKind::Flag => vec![json!(false), json!(true)],
            ValueKind::Choice(names) => names.iter().map(|name| json!(name)).collect(),
            ValueKind::Number(_, from, to) | ValueKind::NumberOrObject(from, to) => {
                [*from, from + 1, from + 2, *to].into_iter().map(|number| json!(number)).collect()
            }
            _ => continue,
        };
        // Some values need another setting beside them.
        let read = values.into_iter().filter_map(|value| read(&with(section, key, Some(value))).ok());
        let configs: BTreeSet<String> = read.map(|config| format!("{config:?}")).collect();
        assert!(configs.len() > 1, "{key} of {} is read, but changes nothing", section.name);
    }
}

/// A table of the documentation.
fn rows(section: &Section) -> String {
    let mut table = "| key | value | default | meaning |\n|---|---|---|---|\n".to_owned();
    for Setting { key, kind, left_out, says } in section.settings {
        let default = match left_out {
            DefaultValue::Required => "required".to_owned(),
            DefaultValue::Words(words) => (*words).to_owned(),
            DefaultValue::Value(value) => match (kind, value.parse()) {
                (ValueKind::Number(unit, ..), Ok(number)) => amount(*unit, number),
                _ => format!("`{value}`"),
            },
        };
        table.push_str(&format!("| `{key}` | {} | {default} | {says} |\n", value_of(*kind)));
    }
    table
}

/// Type and range.
fn value_of(kind: ValueKind) -> String {
    let list = |of: &str| format!("array of {}", if of.is_empty() { "strings" } else { of });
    match kind {
        ValueKind::Text("") => "string".to_owned(),
        ValueKind::Text(words) => words.to_owned(),
        ValueKind::Texts(words) => list(words),
        ValueKind::Users => list("names or numbers"),
        ValueKind::TextsByName => "object of strings".to_owned(),
        ValueKind::ObjectsByName => "object of objects".to_owned(),
        ValueKind::TextsOrByName(words) => format!("{}, or an object of such arrays by group", list(words)),
        ValueKind::Numbers(low, high) => list(&format!("{low} to {high}")),
        ValueKind::Objects => list("objects"),
        ValueKind::Object => "object".to_owned(),
        ValueKind::Choice(names) => names.iter().map(|name| format!("`\"{name}\"`")).collect::<Vec<_>>().join(", "),
        ValueKind::Flag => "boolean".to_owned(),
        ValueKind::Number(unit, low, high) => {
            let counts = match unit {
                Unit::One => "",
                Unit::Bytes => " bytes",
                Unit::Seconds => " s",
            };
            let high = amount(unit, high);
            let (number, said) = high.split_at(high.find(' ').unwrap_or(high.len()));
            format!("{low} to {number}{counts}{said}")
        }
        ValueKind::NumberOrObject(low, high) => format!("{low} to {high}, or object"),
    }
}

/// A number, with its usual spelling if it is large.
fn amount(unit: Unit, number: u64) -> String {
    let of = |size: u64| (number >= size && number.is_multiple_of(size)).then(|| number / size);
    let said = match unit {
        Unit::One => None,
        Unit::Bytes => [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")]
            .into_iter()
            .find_map(|(size, name)| Some(format!("{} {name}", of(size)?))),
        Unit::Seconds => {
            of(24 * 60 * 60).map(|days| if days == 1 { "a day".to_owned() } else { format!("{days} days") })
        }
    };
    said.map_or_else(|| number.to_string(), |said| format!("{number} ({said})"))
}

/// The schema of an object.
fn object(path: &str, says: &str) -> Value {
    let settings = || SETTINGS.iter().filter(|section| section.path == path).flat_map(|section| section.settings);
    let properties: serde_json::Map<String, Value> =
        settings().map(|setting| (setting.key.to_owned(), property(path, setting))).collect();
    let mut object = json!({
        "description": says,
        "type": "object",
        "properties": properties,
        "patternProperties": { "^_": true },
        "additionalProperties": false,
    });
    let required = settings().filter(|setting| matches!(setting.left_out, DefaultValue::Required));
    let required: Vec<&str> = required.map(|setting| setting.key).collect();
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    merge(&mut object, by_hand(path, ""));
    object
}

fn property(path: &str, setting: &Setting) -> Value {
    let says = setting.says.replace('`', "");
    let below = if path.is_empty() { setting.key.to_owned() } else { format!("{path}.{}", setting.key) };
    let mut property = match setting.kind {
        ValueKind::Text(_) => json!({ "type": "string" }),
        ValueKind::Texts(_) => json!({ "type": "array", "items": { "type": "string" } }),
        ValueKind::Numbers(low, high) => {
            json!({ "type": "array", "items": { "type": "integer", "minimum": low, "maximum": high } })
        }
        ValueKind::Users => json!({ "type": "array", "items": { "type": ["integer", "string"] } }),
        ValueKind::Choice(names) => json!({ "enum": names }),
        ValueKind::Flag => json!({ "type": "boolean" }),
        ValueKind::Number(_, low, high) => json!({ "type": "integer", "minimum": low, "maximum": high }),
        ValueKind::NumberOrObject(low, high) => json!({
            "anyOf": [{ "type": "integer", "minimum": low, "maximum": high }, object(&below, "How many at once.")],
        }),
        ValueKind::TextsByName => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        ValueKind::ObjectsByName => json!({
            "type": "object",
            "properties": { "_comment": true },
            "additionalProperties": object(&format!("{path}.groups.*"), "What they may not use."),
        }),
        ValueKind::TextsOrByName(_) => {
            let texts = json!({ "type": "array", "items": { "type": "string" }, "minItems": 1, "uniqueItems": true });
            json!({ "anyOf": [texts, { "type": "object", "additionalProperties": texts, "minProperties": 1 }] })
        }
        ValueKind::Object if setting.key == "transport" => json!({ "type": "object" }),
        ValueKind::Object => object(&below, &says),
        ValueKind::Objects => json!({ "type": "array", "items": object(&format!("{below}[]"), &says) }),
    };
    property["description"] = says.into();
    if let DefaultValue::Value(value) = setting.left_out {
        property["default"] = serde_json::from_str(value).expect("it is JSON");
    }
    merge(&mut property, by_hand(path, setting.key));
    property
}

/// What the table cannot express: patterns of strings, and relations between settings.
fn by_hand(path: &str, key: &str) -> Value {
    let no_zero = "^[^\\u0000]*$";
    match (path, key) {
        // Workers of connections have no load that others share.
        ("pools[]", "") => json!({
            "anyOf": [{ "required": ["instances"] }, { "required": ["env_from"] }],
            "if": { "required": ["concurrency"] },
            "then": { "properties": { "assignment": { "enum": ["round_robin", "client"] } } },
        }),
        ("listeners[]", "") => json!({
            "oneOf": KINDS.iter().map(kind).collect::<Vec<Value>>(),
        }),
        ("listeners[].max_connections", "") => json!({ "minProperties": 1 }),
        ("", "pools") => json!({ "minItems": 1 }),
        ("", "node") => json!({ "pattern": "^[A-Za-z0-9_-]{1,32}$" }),
        ("", "transport") => transport(),
        ("pools[]", "id") => json!({ "minLength": 1, "maxLength": 64 }),
        ("pools[]", "assignment") => json!({ "default": "round_robin" }),
        ("pools[]", "args") => json!({ "items": { "pattern": no_zero } }),
        ("pools[]", "env") => json!({
            "propertyNames": { "pattern": "^[^=\\u0000]+$" },
            "properties": { "_comment": true },
            "additionalProperties": { "type": "string", "pattern": no_zero },
        }),
        ("pools[]", "user" | "group") => json!({ "minLength": 1 }),
        ("pools[]", "cpus") => json!({ "minItems": 1 }),
        ("pools[]", "umask") => json!({ "pattern": "^0?[0-7]{3}$" }),
        (_, "deny_methods") => json!({ "items": { "minLength": 1 } }),
        (_, "deny_tools" | "allow_tools") => json!({ "items": { "pattern": "^([^*]+\\*?|\\*)$" } }),
        ("listeners[]", "tcp") => json!({ "pattern": "^.*:[0-9]{1,5}$" }),
        ("listeners[]", "unix") => json!({ "minLength": 1, "maxLength": 107 }),
        ("listeners[]", key) if over_http().any(|(row, _)| row.key == key) => {
            json!({ "pattern": "^(.*:[0-9]{1,5}(/.*)?|unix:.+)$" })
        }
        ("listeners[]", "path") => json!({ "pattern": "^/[^?#\\s]*$" }),
        ("listeners[]", "origins") => json!({ "items": { "pattern": "^(\\*|null|[^/?#]+://[^/?#]+)$" } }),
        ("listeners[]", "hosts") => json!({ "items": { "pattern": "^[A-Za-z0-9._-]+$" } }),
        ("listeners[]", "peer_uids") => {
            json!({ "minItems": 1, "items": { "minimum": 0, "maximum": 4_294_967_294_u64 } })
        }
        ("listeners[]" | "admin", "mode") => json!({ "pattern": "^0?[0-7]{3}$" }),
        ("listeners[]", "allow" | "trusted_proxies")
        | ("listeners[].identity", "trusted_proxies")
        | ("listeners[].proxy", "from") => json!({ "minItems": 1 }),
        ("listeners[].oauth", "authorization_servers") => json!({ "minItems": 1 }),
        (_, "command" | "cwd" | "owner" | "tokens_file" | "token_file" | "listen" | "file") => {
            json!({ "minLength": 1 })
        }
        _ => json!({}),
    }
}

/// What the key of a kind of listener excludes.
fn kind(row: &KindRow) -> Value {
    let mut one = json!({ "required": [row.key] });
    match &row.web {
        None if !row.needs_path => one["not"] = json!({ "required": ["mode"] }),
        Some(web) if !web.has_idle_timeout => one["not"] = json!({ "required": ["idle_timeout_sec"] }),
        _ => {}
    }
    one
}

/// The C daemon's own section.
fn transport() -> Value {
    let flags = KINDS.iter().map(|row| format!("--{}", row.key));
    let flags = listed(["--stdio".to_owned()].into_iter().chain(flags), "and");
    json!({
        "properties": {
            "mode": {
                "description": format!("The flags {flags} come before it and say where to listen."),
                "enum": ["stdio", "unix", "tcp"],
                "default": "stdio",
            },
            "framing": { "description": "One line per message.", "const": "ndjson", "default": "ndjson" },
            "protocol": { "description": "JSON.", "const": "json", "default": "json" },
            "options": { "description": "Tunes transports that this bus does not have; ignored.", "type": "object" },
        },
        "patternProperties": { "^_": true },
        "additionalProperties": false,
    })
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
