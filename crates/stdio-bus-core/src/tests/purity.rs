//! The core is pure by construction: it has no standard library, no `unsafe`, and four crates that compute and do nothing
//! else. And its files form no circle, but for the `Bus` that they all are about.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

#[test]
fn the_core_has_no_path_to_the_world() {
    let manifest = include_str!("../../Cargo.toml");
    let listed = manifest.split("\n[dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
    let listed: Vec<&str> = listed.lines().filter_map(|line| Some(line.split_once(" =")?.0)).collect();
    assert_eq!(listed, ["hashbrown", "memchr", "ndjson-scan", "slab"]);
    let sources = sources();
    let outer = ["#![cfg_attr(not(test), no_std)]", "#![forbid(unsafe_code)]"];
    assert!(outer.iter().all(|line| sources["lib"].contains(line)));
    let named: Vec<&str> =
        sources.values().flat_map(|source| source.lines()).filter(|line| line.contains("extern")).collect();
    assert_eq!(named, ["extern crate alloc;"]);
}

#[test]
fn the_files_of_the_core_form_no_circle() {
    let mut files = sources();
    files.remove("lib");
    assert!(files.contains_key("flow/gate") && files.contains_key("session/table"), "folders are looked into");
    let mut done = BTreeSet::new();
    for file in files.keys() {
        assert_eq!(circle(&files, &mut vec![file.clone()], &mut done), None);
    }
    let imported = imports("port", &files["port"], &files);
    assert_eq!(imported, BTreeSet::from(["origin", "peer", "report"].map(str::to_owned)));
}

#[test]
fn a_circle_is_named() {
    let files = [
        ("a", "use super::{Bus, b::{B, C}};"),
        ("b", "fn f() -> crate::d::c::C {}"),
        ("d/c", "use super::super::a;"),
        ("d/e", "use super::c;"),
        ("d", ""),
    ];
    let files = files.map(|(name, source)| (name.to_owned(), source.to_owned())).into();
    let found = circle(&files, &mut vec!["a".to_owned()], &mut BTreeSet::new());
    assert_eq!(found.as_deref(), Some("a -> b -> d/c -> a"));
    assert_eq!(imports("d/e", &files["d/e"], &files), BTreeSet::from(["d/c".to_owned()]));
}

/// The files of the core without comments and tests, by their modules.
fn sources() -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut files, mut folders) = (BTreeMap::new(), vec![folder.clone()]);
    while let Some(next) = folders.pop() {
        for path in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.extend((!path.ends_with("tests")).then_some(path));
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap().lines();
            let code: Vec<&str> = code.filter(|line| !line.trim_start().starts_with("//")).collect();
            let module = path.strip_prefix(&folder).unwrap().with_extension("");
            let module = module.to_str().unwrap();
            files.insert(module.strip_suffix("/mod").unwrap_or(module).to_owned(), code.join("\n"));
        }
    }
    files
}

/// The files that a file imports from.
fn imports(module: &str, source: &str, files: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in source.match_indices("super::").chain(source.match_indices("crate::")) {
        if source[..at].ends_with("super::") {
            continue;
        }
        let (mut base, mut rest): (Vec<&str>, _) = (module.split('/').collect(), &source[at..]);
        if let Some(path) = rest.strip_prefix("crate::") {
            (base, rest) = (Vec::new(), path);
        }
        while let Some(path) = rest.strip_prefix("super::") {
            base.pop();
            rest = path;
        }
        expand(&mut base.into_iter().map(str::to_owned).collect(), &mut rest, &mut |path| {
            let file =
                (1..=path.len()).rev().map(|length| path[..length].join("/")).find(|file| files.contains_key(file));
            found.extend(file.filter(|file| file != module));
        });
    }
    found
}

/// Gives each path of a tree of imports that begins here, and goes behind it.
fn expand(path: &mut Vec<String>, rest: &mut &str, found: &mut impl FnMut(&[String])) {
    let depth = path.len();
    loop {
        if let Some(group) = rest.strip_prefix('{') {
            *rest = group;
            while !rest.starts_with('}') && !rest.is_empty() {
                *rest = rest.trim_start_matches(|sign: char| sign.is_whitespace() || sign == ',');
                let before = rest.len();
                expand(path, rest, found);
                // What is no path, such as `as name`, is passed over.
                if rest.len() == before {
                    *rest = &rest[rest.chars().next().map_or(0, char::len_utf8)..];
                }
            }
            *rest = rest.strip_prefix('}').unwrap_or(rest);
            break;
        }
        let word = rest.find(|sign: char| !sign.is_alphanumeric() && sign != '_').unwrap_or(rest.len());
        path.push(rest[..word].to_owned());
        *rest = &rest[word..];
        match rest.strip_prefix("::") {
            Some(more) => *rest = more,
            None => {
                found(path);
                break;
            }
        }
    }
    path.truncate(depth);
}

/// The first circle that is found on the way from the last file of `way`.
fn circle(files: &BTreeMap<String, String>, way: &mut Vec<String>, done: &mut BTreeSet<String>) -> Option<String> {
    let here = way.last()?.clone();
    for next in imports(&here, &files[&here], files) {
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
