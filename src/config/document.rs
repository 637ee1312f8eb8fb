//! A JSON text whose values know their positions, and the list of its problems.
//!
//! serde_json does all the parsing: a value is kept as the slice of the text that it was read from, from which its line
//! and column follow. Reading continues after a problem, so that one run reports them all; a value with a problem is
//! `None`, and every problem is listed or counted.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::ops::RangeInclusive;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::keys;

/// One problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// Where in the document, as in `pools[1].instances`; empty at the top level.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it, if we know.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: ", self.line, self.column)?;
        if !self.path.is_empty() {
            write!(out, "{}: ", self.path)?;
        }
        out.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(out, " ({hint})"),
            None => Ok(()),
        }
    }
}

/// A value and its path. `raw` is always a slice of the reader's text.
#[derive(Clone, Debug)]
pub(super) struct Node<'t> {
    raw: &'t str,
    pub(super) path: String,
}

impl Node<'_> {
    /// Whether it has to be read as an object, for values that may be an object or something simpler.
    pub(super) fn is_object(&self) -> bool {
        self.raw.starts_with('{')
    }

    /// Whether it has to be read as a number, for values that may be a number or a name.
    pub(super) fn is_number(&self) -> bool {
        self.kind() == "a number"
    }

    /// The type of the value, in the words of a message.
    fn kind(&self) -> &'static str {
        match self.raw.as_bytes().first() {
            Some(b'{') => "an object",
            Some(b'[') => "an array",
            Some(b'"') => "a string",
            Some(b't' | b'f') => "a boolean",
            Some(b'n') => "null",
            _ => "a number",
        }
    }
}

/// The members of an object, in the order of the text, without the comments.
pub(super) struct Object<'t> {
    pub(super) node: Node<'t>,
    /// The table path of its settings.
    pub(super) path: &'static str,
    members: Vec<(String, Node<'t>)>,
}

impl<'t> Object<'t> {
    pub(super) fn get(&self, key: &str) -> Option<&Node<'t>> {
        self.members.iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }
}

/// Maximum number of listed problems; a file with more is not a configuration.
const MAX_PROBLEMS: usize = 50;

/// Reads values from one text and collects the problems.
pub(super) struct Reader<'t> {
    text: &'t str,
    pub(super) problems: Vec<Problem>,
    /// How many problems are not listed.
    pub(super) omitted: usize,
    /// Problems that keep only one pool from running.
    pub(super) of_pools: Vec<Problem>,
    /// Missing privileges of this process.
    pub(super) of_privileges: Vec<Problem>,
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, problems: Vec::new(), omitted: 0, of_pools: Vec::new(), of_privileges: Vec::new() }
    }

    /// The whole document, if it is one JSON value.
    pub(super) fn root(&mut self) -> Option<Node<'t>> {
        match serde_json::from_str::<&RawValue>(self.text) {
            Ok(raw) => Some(Node { raw: raw.get(), path: String::new() }),
            Err(error) => {
                match other_language(self.text) {
                    Some(name) => {
                        let from = name.to_ascii_lowercase();
                        let hint = format!("write it as JSON, or have it converted: yq -p {from} -o json FILE");
                        let message = format!("is {name}, and a configuration is JSON");
                        self.note(0, String::new(), message, Some(hint));
                    }
                    None => self.syntax(&error, 0, String::new()),
                }
                None
            }
        }
    }

    /// Adds a problem with a value.
    pub(super) fn fail(&mut self, node: &Node<'_>, message: impl Into<String>, hint: Option<String>) {
        self.note(self.offset(node.raw), node.path.clone(), message.into(), hint);
    }

    /// Adds a problem with a removed setting.
    fn fail_gone(&mut self, node: &Node<'_>, message: &str) {
        self.fail(node, message, Some("leave it out".to_owned()));
    }

    /// Adds a problem that concerns only one pool.
    pub(super) fn fail_pool(&mut self, node: &Node<'_>, message: impl Into<String>, hint: Option<String>) {
        let problem = self.problem(node, message, hint);
        self.of_pools.push(problem);
    }

    /// Adds a problem of missing privileges, which another process may have.
    pub(super) fn fail_privilege(&mut self, node: &Node<'_>, message: impl Into<String>, hint: Option<String>) {
        let problem = self.problem(node, message, hint);
        self.of_privileges.push(problem);
    }

    fn problem(&self, node: &Node<'_>, message: impl Into<String>, hint: Option<String>) -> Problem {
        let (line, column) = self.place(self.offset(node.raw));
        Problem { line, column, path: node.path.clone(), message: message.into(), hint }
    }

    fn note(&mut self, offset: usize, path: String, message: String, hint: Option<String>) {
        if self.problems.len() == MAX_PROBLEMS {
            self.omitted += 1;
            return;
        }
        let (line, column) = self.place(offset);
        self.problems.push(Problem { line, column, path, message, hint });
    }

    /// Adds the problem that a value is missing in an object.
    pub(super) fn missing(&mut self, object: &Object<'t>, key: &str, hint: &str) {
        let node = Node { raw: object.node.raw, path: member_path(&object.node.path, key) };
        self.fail(&node, "is missing", Some(hint.to_owned()));
    }

    /// An object with the settings of this path. Comments (keys that begin with `_`) are left out.
    pub(super) fn object(&mut self, node: &Node<'t>, path: &'static str) -> Option<Object<'t>> {
        // Editors find `config/schema.json` by `$schema`.
        let members = self.members(node, |key| key.starts_with('_') || (path.is_empty() && key == "$schema"))?;
        let known = keys::known(path);
        let mut object = Object { node: node.clone(), path, members: Vec::with_capacity(members.len()) };
        for (key, key_raw, value) in members {
            if known.contains(&key.as_str()) {
                object.members.push((key, value));
                continue;
            }
            let place = Node { raw: key_raw, path: value.path };
            match keys::gone(path, &key, "") {
                Some(holds) => self.fail_gone(&place, &format!("is no setting any more: {holds}")),
                None => self.fail(&place, "is not a known key", Some(keys::suggest(&key, path))),
            }
        }
        Some(object)
    }

    /// An object whose keys are user-defined, with string values.
    pub(super) fn strings_by_name(&mut self, node: &Node<'t>) -> Option<Vec<(String, Node<'t>, String)>> {
        let members = self.by_name(node)?;
        let mut strings = Vec::with_capacity(members.len());
        for (key, place, value) in members {
            let text = self.string(&value)?;
            strings.push((key, place, text));
        }
        Some(strings)
    }

    /// An object whose keys are user-defined: each with its place, and the value.
    pub(super) fn by_name(&mut self, node: &Node<'t>) -> Option<Vec<(String, Node<'t>, Node<'t>)>> {
        // Only `_comment` is a comment here, since `_JAVA_OPTIONS` is a real variable.
        let members = self.members(node, |key| key == "_comment")?.into_iter();
        Some(members.map(|(key, raw, value)| (key, Node { raw, path: value.path.clone() }, value)).collect())
    }

    pub(super) fn members(
        &mut self,
        node: &Node<'t>,
        is_comment: impl Fn(&str) -> bool,
    ) -> Option<Vec<(String, &'t str, Node<'t>)>> {
        if !node.raw.starts_with('{') {
            let hint = match node.path.rsplit('.').next().unwrap_or_default() {
                "admin" => Some("write { \"listen\": \"127.0.0.1:9001\" }"),
                "proxy" => Some("write { \"from\": [\"127.0.0.1\"] }"),
                name if name.starts_with("listeners[") => Some("write { \"tcp\": \"127.0.0.1:9000\" }"),
                _ => None,
            };
            self.fail(node, format!("must be an object {{…}}, not {}", node.kind()), hint.map(str::to_owned));
            return None;
        }
        let RawMembers(raw_members) = self.decode(node)?;
        let mut members: Vec<(String, &'t str, Node<'t>)> = Vec::with_capacity(raw_members.len());
        let mut first_places: BTreeMap<String, &'t str> = BTreeMap::new();
        for (raw_key, raw_value) in raw_members {
            let key_node = Node { raw: raw_key.get(), path: node.path.clone() };
            let Some(key) = self.decode::<String>(&key_node) else { continue };
            if is_comment(&key) {
                continue;
            }
            let path = member_path(&node.path, &key);
            if let Some(first) = first_places.insert(key.clone(), raw_key.get()) {
                let (line, column) = self.place(self.offset(first));
                let hint = format!("the first is at {line}:{column}; keep one of them");
                self.fail(&Node { path, ..key_node }, "is given twice", Some(hint));
            } else {
                members.push((key, raw_key.get(), Node { raw: raw_value.get(), path }));
            }
        }
        Some(members)
    }

    /// The elements of an array.
    pub(super) fn array(&mut self, node: &Node<'t>) -> Option<Vec<Node<'t>>> {
        if !node.raw.starts_with('[') {
            let hint = match node.raw.as_bytes().first() {
                // It may be long, or a secret.
                Some(b'"' | b'{') => Some("put it in brackets: [ … ]".to_owned()),
                _ => None,
            };
            self.fail(node, format!("must be an array […], not {}", node.kind()), hint);
            return None;
        }
        let elements: Vec<&RawValue> = self.decode(node)?;
        let path = |index| format!("{}[{index}]", node.path);
        Some(elements.iter().enumerate().map(|(index, raw)| Node { raw: raw.get(), path: path(index) }).collect())
    }

    /// Returns what was found, or adds the error as a problem.
    pub(super) fn found<T>(&mut self, node: &Node<'t>, found: Result<T, impl Display>) -> Option<T> {
        found.map_err(|why| self.fail(node, why.to_string(), None)).ok()
    }

    /// The elements of an array that must not be empty; `message` and `hint` are for one that is.
    pub(super) fn elements(&mut self, node: &Node<'t>, message: &str, hint: &str) -> Option<Vec<Node<'t>>> {
        let elements = self.array(node)?;
        if elements.is_empty() {
            self.fail(node, message, Some(hint.to_owned()));
        }
        Some(elements)
    }

    /// The strings of an array. `objection` returns what is wrong with one, and what to write instead.
    pub(super) fn strings(
        &mut self,
        node: &Node<'t>,
        objection: impl Fn(&str) -> Option<(String, Option<&str>)>,
    ) -> Vec<String> {
        let mut strings = Vec::new();
        for element in self.array(node).unwrap_or_default() {
            let Some(text) = self.string(&element) else { continue };
            if let Some((message, hint)) = objection(&text) {
                self.fail(&element, message, hint.map(str::to_owned));
            }
            strings.push(text);
        }
        strings
    }

    pub(super) fn string(&mut self, node: &Node<'t>) -> Option<String> {
        if !node.raw.starts_with('"') {
            let hint = match node.raw.as_bytes().first() {
                Some(b'[') if node.path.ends_with(".command") => {
                    Some("the program alone is the command; its arguments belong in \"args\"".to_owned())
                }
                Some(b'0'..=b'9') if [".tcp", ".ws", ".http"].iter().any(|key| node.path.ends_with(key)) => {
                    Some(format!("write \"127.0.0.1:{}\"", node.raw))
                }
                Some(b'0'..=b'9') => Some("write it in quotes".to_owned()),
                _ => None,
            };
            self.fail(node, format!("must be a string \"…\", not {}", node.kind()), hint);
            return None;
        }
        self.decode(node)
    }

    /// `true` or `false`.
    pub(super) fn boolean(&mut self, node: &Node<'t>) -> Option<bool> {
        match node.raw {
            "true" => Some(true),
            "false" => Some(false),
            _ => {
                let hint = node.raw.starts_with('"').then(|| "write it without quotes".to_owned());
                self.fail(node, format!("must be true or false, not {}", node.kind()), hint);
                None
            }
        }
    }

    /// A whole number within a range.
    pub(super) fn integer(&mut self, node: &Node<'t>, range: RangeInclusive<u64>) -> Option<u64> {
        self.integer_or(node, range, None)
    }

    /// The same; `instead_of_zero` is what to write where 0 is out of range but common elsewhere.
    pub(super) fn integer_or(
        &mut self,
        node: &Node<'t>,
        range: RangeInclusive<u64>,
        instead_of_zero: Option<&str>,
    ) -> Option<u64> {
        let (low, high) = (*range.start(), *range.end());
        let wanted = format!("must be a whole number from {low} to {high}");
        if node.kind() != "a number" {
            let hint = match bytes_meant(node.raw.trim_matches('"')) {
                Some(bytes) => Some(format!("write {bytes}")),
                None => node.raw.starts_with('"').then(|| "write it without quotes".to_owned()),
            };
            self.fail(node, format!("{wanted}, not {}", node.kind()), hint);
            return None;
        }
        if node.raw.contains(['.', 'e', 'E']) {
            // 1e6 is a million to some JSON parsers and an error to others, so it has to be written out.
            let value =
                node.raw.parse::<f64>().ok().filter(|value| value.fract() == 0.0 && (0.0..1e15).contains(value));
            let hint = value.map(|value| format!("write {value:.0}"));
            self.fail(node, format!("{wanted}, without a fraction or an exponent, not {}", node.raw), hint);
            return None;
        }
        // A number too large for u64 is out of every range, too.
        let value = node.raw.parse::<u64>().ok();
        match value.filter(|value| range.contains(value)) {
            Some(value) => Some(value),
            None => {
                let below = node.raw.starts_with('-') || value.is_some_and(|value| value < low);
                let bound = if below { format!("at least {low}") } else { format!("at most {high}") };
                let hint = instead_of_zero.filter(|_| value == Some(0)).map(str::to_owned);
                self.fail(node, format!("must be {bound}, not {}", node.raw), hint);
                None
            }
        }
    }

    /// A setting that is one of a few names. The values are in the order of the table's names.
    pub(super) fn choice<T: Copy, const N: usize>(
        &mut self,
        object: &Object<'t>,
        key: &str,
        values: [T; N],
    ) -> Option<T> {
        let (node, names) = (object.get(key)?, keys::choices(object.path, key));
        debug_assert_eq!(names.len(), N, "{key}");
        let text = self.string(node)?;
        if let Some((_, value)) = names.iter().zip(values).find(|(name, _)| **name == text) {
            return Some(value);
        }
        if let Some(holds) = keys::gone(object.path, key, &text) {
            self.fail_gone(node, &format!("is {text:?} no more: {holds}"));
            return None;
        }
        let hint = keys::nearest(&text, names).map(|name| format!("did you mean \"{name}\"?"));
        let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
        self.fail(node, format!("must be {}, not {text:?}", names.join(" or ")), hint);
        None
    }

    fn decode<T: Deserialize<'t>>(&mut self, node: &Node<'t>) -> Option<T> {
        match serde_json::from_str(node.raw) {
            Ok(value) => Some(value),
            Err(error) => {
                self.syntax(&error, self.offset(node.raw), node.path.clone());
                None
            }
        }
    }

    /// Adds a syntax error of serde_json in the slice that begins at `base`.
    fn syntax(&mut self, error: &serde_json::Error, base: usize, path: String) {
        let slice = &self.text[base..];
        let line_start: usize = slice.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        let mut offset = (base + line_start + error.column().saturating_sub(1)).min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let text = error.to_string();
        let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
        let hint = if error.is_eof() {
            Some("a bracket or a quotation mark is not closed; is the file complete?")
        } else if message.starts_with("trailing comma") || self.text[offset..].starts_with(['}', ']']) {
            Some("is there a comma too many before this place?")
        } else if self.text[offset..].starts_with(['/', '#']) {
            Some("JSON has no comments; a key that begins with _ is one here, as in \"_comment\": \"…\"")
        } else if self.text[offset..].starts_with('\'') {
            Some("strings need double quotes")
        } else if message.starts_with("key must be a string") {
            Some("keys need double quotes")
        } else if ["True", "False", "None"].iter().any(|word| self.text[offset..].starts_with(word)) {
            Some("in JSON these are true, false and null")
        } else if offset == 0 {
            Some("a configuration is one object, as in {\"pools\": […]}")
        } else if message.starts_with("trailing characters") {
            Some("a configuration is one object, and that has ended before this place")
        } else {
            None
        };
        self.note(offset, path, format!("is not valid JSON: {message}"), hint.map(str::to_owned));
    }

    /// The offset of a slice of the text. Every `raw` is one, because serde_json borrows from the text.
    fn offset(&self, raw: &str) -> usize {
        let offset = raw.as_ptr().addr().wrapping_sub(self.text.as_ptr().addr());
        debug_assert!(offset + raw.len() <= self.text.len());
        offset.min(self.text.len())
    }

    fn place(&self, offset: usize) -> (usize, usize) {
        place(&self.text[..offset])
    }
}

/// The language of a text that is not JSON, if it looks like another program's configuration.
fn other_language(text: &str) -> Option<&'static str> {
    let mut lines =
        text.lines().map(str::trim_end).filter(|line| !line.is_empty() && !line.trim_start().starts_with('#'));
    let first = lines.next()?;
    let is_name = |name: &str| {
        let name = name.trim_matches(['"', '\'']);
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
    };
    let is_key = |line: &str| {
        line.split_once(':').is_some_and(|(name, rest)| is_name(name) && (rest.is_empty() || rest.starts_with(' ')))
    };
    if first == "---" || first.starts_with("%YAML") || is_key(first.strip_prefix("- ").unwrap_or(first)) {
        return Some("YAML");
    }
    let is_section = first.starts_with('[') && first.ends_with(']') && is_name(first.trim_matches(['[', ']']));
    let is_set = first.split_once('=').is_some_and(|(name, _)| is_name(name.trim_end()));
    if is_section || is_set {
        return Some("TOML");
    }
    first.starts_with('<').then_some("XML")
}

/// The number that `10MB`, `64 KiB` or `1g` stand for: powers of ten if only a B follows, else powers of two, as in IEC
/// 80000-13, and as `dd` and `systemd` read a bare letter.
fn bytes_meant(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let unit = text[end..].trim_start().to_ascii_lowercase();
    let (letter, rest) = (unit.chars().next()?, unit.get(1..)?);
    let power = "kmgt".find(letter)? as u32 + 1;
    let base: u64 = match rest {
        "b" => 1000,
        "" | "ib" => 1024,
        _ => return None,
    };
    text[..end].parse::<u64>().ok()?.checked_mul(base.pow(power))
}

/// Line and column of the position after `before`.
pub(super) fn place(before: &str) -> (usize, usize) {
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

fn member_path(parent: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    match (plain, parent.is_empty()) {
        (true, true) => key.to_owned(),
        (true, false) => format!("{parent}.{key}"),
        (false, _) => format!("{parent}[{key:?}]"),
    }
}

/// An object's members as slices, including duplicates, which a map would drop.
struct RawMembers<'t>(Vec<(&'t RawValue, &'t RawValue)>);

impl<'t> Deserialize<'t> for RawMembers<'t> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'t> Visitor<'t> for Collect {
            type Value = RawMembers<'t>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<RawMembers<'t>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(RawMembers(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}
