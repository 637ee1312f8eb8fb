//! The core is pure by construction: it has no standard library, no `unsafe`, and four crates that compute and do nothing
//! else. And its files form no circle, but for the `Bus` that they all are about.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

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
    let mut done = BTreeSet::new();
    for file in files.keys() {
        assert_eq!(circle(&files, &mut vec![file.clone()], &mut done), None);
    }
    assert_eq!(imports(&files["port"], &files), BTreeSet::from(["origin", "peer", "report"].map(str::to_owned)));
}

#[test]
fn a_circle_is_named() {
    let files =
        [("a", "use super::{Bus, b::{B, C}};"), ("b", "fn f() -> super::c::C {}"), ("c", "use super::a;"), ("d", "")];
    let files = files.map(|(name, source)| (name.to_owned(), source.to_owned())).into();
    let found = circle(&files, &mut vec!["a".to_owned()], &mut BTreeSet::new());
    assert_eq!(found.as_deref(), Some("a -> b -> c -> a"));
}

/// The files of the core without comments and tests, by name.
fn sources() -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap().lines();
        let code: Vec<&str> = code.filter(|line| !line.trim_start().starts_with("//")).collect();
        // What is in a folder is named as if it were beside it.
        let code = code.join("\n").replace("crate::", "super::").replace("supervisor::", "");
        (path.file_stem().unwrap().to_str().unwrap().to_owned(), code)
    };
    let entries = [folder.join("supervisor"), folder].map(|folder| fs::read_dir(folder).unwrap());
    let entries = entries.into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_file()).map(read).collect()
}

/// The files that a file imports from.
fn imports(source: &str, files: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for part in source.split("super::").skip(1) {
        let is_word = |sign: char| sign.is_alphanumeric() || sign == '_';
        let (mut depth, mut word) = (0, String::new());
        for sign in part.chars() {
            match sign {
                _ if is_word(sign) => {
                    word.push(sign);
                    continue;
                }
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            // Of a path in a group, the first word counts.
            if depth <= 1 && files.contains_key(&word) {
                found.insert(std::mem::take(&mut word));
            }
            word.clear();
            if depth == 0 {
                break;
            }
        }
    }
    found
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
