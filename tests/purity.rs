//! The core is pure by construction: nothing under `src/bus` has a path to the world. No descriptor, no file, no socket,
//! no clock, no thread, no other room of this crate but the scanner. And its files form no circle, but for the `Bus` that
//! they all are about. This reads the sources and names the line.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Parts of the standard library that the core may use; all else is kept from it.
const STANDARD: [&str; 16] = [
    "std::any",
    "std::borrow",
    "std::cmp",
    "std::collections",
    "std::convert",
    "std::fmt",
    "std::hash",
    "std::iter",
    "std::marker",
    "std::mem",
    "std::num",
    "std::ops",
    "std::rc::Rc",
    "std::slice",
    "std::str",
    "std::time::Duration",
];
/// Data that stands among sockets: how an address is written.
const ADDRESSES: [&str; 4] =
    ["core::net::IpAddr", "core::net::Ipv4Addr", "core::net::Ipv6Addr", "core::net::SocketAddr"];
/// Dependencies that compute and do nothing else.
const CRATES: [&str; 3] = ["hashbrown", "memchr", "slab"];
/// What its tests read answers with.
const CRATES_OF_TESTS: [&str; 1] = ["serde_json"];
/// Rooms of this crate that the core may enter.
const ROOMS: [&str; 2] = ["crate::bus", "crate::scan"];
/// Words that have no place in the core, wherever they stand.
const WORDS: [&str; 3] = ["unsafe", "extern", "include"];

#[test]
fn the_core_has_no_path_to_the_world() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = dependencies(&std::fs::read_to_string(root.join("Cargo.toml")).unwrap());
    assert!(crates.iter().any(|name| name == "rustix") && crates.iter().any(|name| name == "io_uring"), "{crates:?}");
    let mut files = Vec::new();
    sources(&root.join("src/bus"), &mut files);
    assert!(files.len() > 20, "{files:?}");
    let mut found = Vec::new();
    for file in files {
        let source = std::fs::read_to_string(&file).unwrap();
        let shown = file.strip_prefix(root).unwrap().display();
        for (line, path) in impure(&source, &crates) {
            found.push(format!("{shown}:{line}: {path}"));
        }
    }
    assert!(found.is_empty(), "the core reaches out:\n{}", found.join("\n"));
}

#[test]
fn a_core_that_reaches_out_is_caught() {
    let crates = dependencies(&std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap());
    let caught = |source: &str| impure(source, &crates).into_iter().map(|(_, path)| path).collect::<Vec<_>>();
    assert_eq!(caught("use std::{collections::VecDeque, time::{Duration, Instant}};"), ["std::time::Instant"]);
    assert_eq!(caught("use std::time;"), ["std::time"]);
    assert_eq!(caught("let now = std::time::Instant::now();"), ["std::time::Instant::now"]);
    assert_eq!(caught("fn f() { ::rustix::io::read(fd, buf); }"), ["rustix::io::read"]);
    assert_eq!(caught("use crate::shell::clock;\nuse crate::{bus::Bus, io};"), ["crate::shell::clock", "crate::io"]);
    assert_eq!(caught("use std::net::Ipv6Addr;"), ["std::net::Ipv6Addr"]);
    assert_eq!(caught("unsafe { *pointer }"), ["unsafe"]);
    assert_eq!(impure("\n\nuse std::fs as disk;", &crates), [(3, "std::fs".to_owned())]);
    assert_eq!(
        caught(
            "// std::fs\n/* std::fs /* libc::x */ */ let a = \"std::fs\\\"libc::x\"; let b = r#\"tokio::\"#; let c = '\"';"
        ),
        [""; 0]
    );
    assert_eq!(caught("use core::net::Ipv6Addr; use std::num::NonZeroU64; use hashbrown::HashTable;"), [""; 0]);
    let with_tests = "use serde_json::Value;\n#[cfg(test)]\nmod tests { use serde_json::Value; }";
    assert_eq!(impure(with_tests, &crates), [(1, "serde_json::Value".to_owned())]);
}

#[test]
fn the_files_of_the_core_form_no_circle() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bus"), &mut files);
    let read = |file: PathBuf| {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read_to_string(file).unwrap())
    };
    let mut files: BTreeMap<_, _> = files.into_iter().map(read).collect();
    // All of them may speak of the bus.
    files.remove("mod");
    let mut done = BTreeSet::new();
    for file in files.keys() {
        assert_eq!(circle(&files, &mut vec![file.clone()], &mut done), None);
    }
    let mut named = imports(&files["port"], &files);
    named.dedup();
    assert_eq!(named, ["origin", "peer", "report"]);
}

#[test]
fn a_circle_is_named() {
    let files =
        [("a", "use super::{Bus, b::B};"), ("b", "fn f() -> super::c::C {}"), ("c", "use super::a::A;"), ("d", "")];
    let files = files.into_iter().map(|(name, source)| (name.to_owned(), source.to_owned())).collect();
    let found = circle(&files, &mut vec!["a".to_owned()], &mut BTreeSet::new());
    assert_eq!(found.as_deref(), Some("a -> b -> c -> a"));
}

/// All Rust sources in a directory.
fn sources(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // The tests of the core play its world.
            if !path.ends_with("tests") {
                sources(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The crates that this one depends on, as they are called in sources.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut crates = Vec::new();
    let mut is_list = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_list = line.ends_with("dependencies]");
        } else if let Some((name, _)) = line.split_once('=').filter(|_| is_list) {
            crates.push(name.trim().replace('-', "_"));
        }
    }
    crates
}

/// The paths in a source that lead out of the core, with their lines.
fn impure(source: &str, crates: &[String]) -> Vec<(usize, String)> {
    let tests_from = tests_from(source);
    let words = tokens(source).into_iter().filter(|(_, token)| WORDS.contains(&token.as_str()));
    let paths = paths(source).into_iter().filter(|(line, path)| leads_out(path, *line >= tests_from, crates));
    let mut found: Vec<_> = words.chain(paths).collect();
    found.sort();
    found
}

/// The line where the tests of a source begin.
fn tests_from(source: &str) -> usize {
    source.find("#[cfg(test)]\nmod tests {").map_or(usize::MAX, |at| source[..at].lines().count() + 1)
}

/// All paths in a source, with their lines.
fn paths(source: &str) -> Vec<(usize, String)> {
    let tokens = tokens(source);
    let (mut paths, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        at = if is_word(&tokens[at].1) { read_paths(&tokens, at, String::new(), &mut paths) } else { at + 1 };
    }
    paths
}

/// The files of the core that a file of it imports from.
fn imports(source: &str, files: &BTreeMap<String, String>) -> Vec<String> {
    let tests_from = tests_from(source);
    let paths = paths(source).into_iter().filter(|(line, _)| *line < tests_from);
    let named = paths.filter_map(|(_, path)| Some(path.strip_prefix("super::")?.split("::").next()?.to_owned()));
    named.filter(|name| files.contains_key(name)).collect()
}

/// The first circle that is found on the way from the last file of `way`.
fn circle(files: &BTreeMap<String, String>, way: &mut Vec<String>, done: &mut BTreeSet<String>) -> Option<String> {
    let here = way.last()?.clone();
    for next in imports(&files[&here], files) {
        if let Some(at) = way.iter().position(|file| *file == next) {
            return Some(format!("{} -> {next}", way[at..].join(" -> ")));
        }
        if !done.contains(&next) {
            way.push(next);
            if let Some(circle) = circle(files, way, done) {
                return Some(circle);
            }
            way.pop();
        }
    }
    done.insert(here);
    None
}

fn leads_out(path: &str, is_test: bool, crates: &[String]) -> bool {
    let is_below = |room: &&str| path == *room || path.strip_prefix(*room).is_some_and(|rest| rest.starts_with("::"));
    let Some((root, _)) = path.split_once("::") else { return false };
    match root {
        "std" | "core" | "alloc" => {
            let path = path.replacen(root, "std", 1);
            let is_allowed =
                |part: &&str| path.strip_prefix(*part).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
            !STANDARD.iter().any(is_allowed) && !ADDRESSES.iter().any(is_below)
        }
        "crate" => !ROOMS.iter().any(is_below),
        _ => {
            let is_known = CRATES.contains(&root) || is_test && CRATES_OF_TESTS.contains(&root);
            crates.iter().any(|name| name == root) && !is_known
        }
    }
}

/// Reads the path at `at`, and all paths of a group in it. Gives where to go on.
fn read_paths(tokens: &[(usize, String)], mut at: usize, mut path: String, paths: &mut Vec<(usize, String)>) -> usize {
    let token = |at: usize| tokens.get(at).map_or("", |(_, token)| token.as_str());
    let line = tokens[at].0;
    loop {
        path.push_str(token(at));
        at += 1;
        if token(at) != "::" {
            break;
        }
        if token(at + 1) == "{" {
            at += 2;
            while at < tokens.len() && token(at) != "}" {
                if is_word(token(at)) && token(at) != "as" {
                    at = read_paths(tokens, at, format!("{path}::"), paths);
                } else {
                    at += if token(at) == "as" { 2 } else { 1 };
                }
            }
            return at + 1;
        }
        if !is_word(token(at + 1)) && token(at + 1) != "*" {
            break;
        }
        path.push_str("::");
        at += 1;
    }
    paths.push((line, path));
    at
}

fn is_word(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Words, `::` and single signs, with their lines; comments and literals are left out.
fn tokens(source: &str) -> Vec<(usize, String)> {
    let mut tokens = Vec::new();
    let mut rest = source;
    let line = |rest: &str| source[..source.len() - rest.len()].matches('\n').count() + 1;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            comment(rest)
        } else if let Some(length) = literal(rest) {
            length
        } else if is_word(rest) {
            let length = rest.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(rest.len());
            tokens.push((line(rest), rest[..length].to_owned()));
            length
        } else {
            let length = if rest.starts_with("::") { 2 } else { first.len_utf8() };
            if !first.is_whitespace() {
                tokens.push((line(rest), rest[..length].to_owned()));
            }
            length
        };
        rest = &rest[length..];
    }
    tokens
}

/// The length of a block comment, which may hold others.
fn comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let next = &rest.as_bytes()[at..];
        match next {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// The length of a string, a byte string or a character, if one stands here.
fn literal(rest: &str) -> Option<usize> {
    let prefix = ["br", "b", "r", "c", ""].into_iter().find(|prefix| {
        let quoted = rest.strip_prefix(*prefix).unwrap_or_default();
        quoted.starts_with('"') || prefix.ends_with('r') && quoted.trim_start_matches('#').starts_with('"')
    });
    if let Some(prefix) = prefix {
        let body = &rest[prefix.len()..];
        let hashes = body.len() - body.trim_start_matches('#').len();
        let close = format!("\"{}", "#".repeat(hashes));
        let from = prefix.len() + hashes + 1;
        if prefix.ends_with('r') {
            return Some(rest[from..].find(&close).map_or(rest.len(), |at| from + at + close.len()));
        }
        return Some(quoted(rest, from, b'"'));
    }
    let body = rest.strip_prefix('b').unwrap_or(rest).strip_prefix('\'')?;
    let from = rest.len() - body.len();
    // Anything else behind a quote is a lifetime.
    let second = body.chars().nth(1);
    (body.starts_with('\\') || second == Some('\'')).then(|| quoted(rest, from, b'\''))
}

/// The end of what is quoted from `from` on.
fn quoted(rest: &str, from: usize, quote: u8) -> usize {
    let mut bytes = rest.bytes().enumerate().skip(from);
    while let Some((at, byte)) = bytes.next() {
        if byte == b'\\' {
            bytes.next();
        } else if byte == quote {
            return at + 1;
        }
    }
    rest.len()
}
