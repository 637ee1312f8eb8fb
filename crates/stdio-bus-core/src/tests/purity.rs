//! The core is pure by construction: it has no standard library, no `unsafe`, and four crates that compute and do
//! nothing else.

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
    assert!(outer.iter().all(|line| sources["lib.rs"].contains(line)));
    let named: Vec<&str> =
        sources.values().flat_map(|source| source.lines()).filter(|line| line.contains("extern")).collect();
    assert_eq!(named, ["extern crate alloc;"]);
}

/// A type whose fields others can change cannot keep an invariant. Rows of plain data have no such methods.
#[test]
fn a_type_with_mutating_methods_has_no_public_field() {
    let (mut changing, mut open) = (BTreeSet::new(), BTreeSet::new());
    for code in sources().values() {
        for block in code.split("#[cfg(test)]\nmod tests").next().unwrap().split("\n}\n") {
            let named = |keyword: &str| {
                let (_, behind) = block.rsplit_once(keyword)?;
                let behind = behind.strip_prefix("<'a> ").or(behind.strip_prefix(' '))?;
                Some(behind.split(|sign: char| !sign.is_alphanumeric()).next().unwrap().to_owned())
            };
            changing
                .extend(named("\nimpl").filter(|_| block.contains("(&mut self") || block.contains(" &mut self,\n")));
            // A struct with a named or unnamed field for all, or for the rest of the core.
            let is_for_others = |line: &str| line.starts_with("    pub") && !line.starts_with("    pub(in ");
            let has_field = block.lines().any(is_for_others)
                || block.lines().any(|line| line.contains("struct ") && line.contains("(pub"));
            open.extend(named("struct").filter(|_| has_field && !block.contains("\nimpl")));
        }
    }
    assert!(changing.contains("Sessions") && open.contains("Stats"));
    // The context is what every part of the core may use; each of its fields keeps its own invariants.
    let of_both: Vec<&String> = changing.intersection(&open).collect();
    assert_eq!(
        of_both,
        ["Ctx"],
        "a type with a method that takes `&mut self` has a field that others may set past it: make the field private, or \
         the method a function of the module that owns the type"
    );
}

/// Others ask a row by its methods: so each of its parts has the writers that its type names.
#[test]
fn no_row_of_the_fleet_has_a_field_for_the_rest_of_the_core() {
    let sources = sources();
    let of_fleet = sources.iter().filter(|(file, _)| file.starts_with("fleet/"));
    // Plain data, which nobody changes.
    let of_rows = of_fleet.filter(|(file, _)| *file != "fleet/eras/protocol.rs");
    let (mut open, mut closed) = (Vec::new(), 0);
    for line in of_rows.flat_map(|(_, code)| code.lines()) {
        let Some((visibility, _)) = line.split_once(": ").filter(|(at, _)| !at.contains("fn ") && !at.contains("mod "))
        else {
            continue;
        };
        closed += usize::from(visibility.starts_with("    pub(in crate::fleet) "));
        open.extend(["    pub ", "    pub(crate) "].iter().filter(|at| visibility.starts_with(**at)).map(|_| line));
    }
    assert!(closed > 30, "only {closed} fields were found");
    assert_eq!(open, [""; 0]);
}

/// The files of the core without tests, by path.
fn sources() -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut files, mut folders) = (BTreeMap::new(), vec![folder.clone()]);
    while let Some(next) = folders.pop() {
        for path in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.extend((!path.ends_with("tests")).then_some(path));
                continue;
            }
            let code = fs::read_to_string(&path).unwrap();
            files.insert(path.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned(), code);
        }
    }
    files
}
