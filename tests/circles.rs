//! The files of a program do not import each other in a circle.
//!
//! A file imports the files that its paths lead to, through `crate`, `super`, `self` or a module of its own. Items in
//! the root of a program are available everywhere: the core's `Bus` is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The code of a program's files without comments and tests, by their modules.
type Files = BTreeMap<String, String>;

#[test]
fn no_files_import_from_one_another_in_a_circle() {
    let programs = programs();
    for (program, file) in [
        ("src", "shell/admin/serve"),
        ("crates/stdio-bus-core/src", "flow/gate"),
        ("crates/stdio-bus-sim/src", "scanner/differential"),
        ("crates/openai-agent/tests/agent", "endpoint"),
        ("benches/throughput", "harness/server"),
        ("benches", "core"),
        ("tests", "bridge/tls"),
        ("tests/e2e", "harness"),
        ("fuzz/fuzz_targets", "framing"),
    ] {
        assert!(programs[program].contains_key(file), "{file} of {program} is looked into");
    }
    for (program, files) in &programs {
        assert_eq!(circle(files), None, "in {program}");
    }
}

#[test]
fn the_cores_port_imports_only_what_passes_through_it() {
    let files = &programs()["crates/stdio-bus-core/src"];
    assert_eq!(imports("port", files), BTreeSet::from(["origin", "peer", "report"].map(str::to_owned)));
}

#[test]
fn a_circle_is_named() {
    let files = |sources: &[(&str, &str)]| -> Files {
        sources.iter().map(|(module, source)| ((*module).to_owned(), code(source))).collect()
    };
    let circular = files(&[
        ("a", "use super::{Bus, b::{B, C}};"),
        ("b", "fn f() -> crate::d::c::C {}"),
        ("d", ""),
        ("d/c", "use super::super::a;"),
        ("d/e", "use super::c;"),
    ]);
    assert_eq!(circle(&circular).as_deref(), Some("a -> b -> d/c -> a"));
    assert_eq!(imports("d/e", &circular), BTreeSet::from(["d/c".to_owned()]));
    let parent = files(&[("a", "mod b;\nuse b::B;"), ("a/b", "use super::A;")]);
    assert_eq!(circle(&parent).as_deref(), Some("a -> a/b -> a"));
    let inner = "// super::A\npub(in crate::a) fn f() {}\nmod inner {\n    use super::B;\n}\nmod tests {\n    use super::super::A;\n}";
    assert_eq!(circle(&files(&[("a", "pub mod b;\npub use b::B;"), ("a/b", inner)])), None);
}

/// All programs of the repository by folder, as far as their files can import each other.
fn programs() -> BTreeMap<String, Files> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut programs = BTreeMap::<String, Files>::new();
    for path in sources().into_iter().filter(|path| !["lib.rs", "main.rs"].iter().any(|root| path.ends_with(root))) {
        let program = program_of(&path, root);
        let module = path.strip_prefix(&program).unwrap().with_extension("");
        let module = module.to_str().unwrap();
        let module = module.strip_suffix("/mod").unwrap_or(module).to_owned();
        let program = program.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        programs.entry(program).or_default().insert(module, code(&fs::read_to_string(&path).unwrap()));
    }
    programs
}

/// All Rust files of the repository.
fn sources() -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::from(env!("CARGO_MANIFEST_DIR"))]);
    while let Some(next) = folders.pop() {
        for path in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                let is_ours = !name.starts_with('.') && !["target", "node_modules"].contains(&name);
                folders.extend(is_ours.then_some(path));
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
    }
    found
}

/// The folder of the program that a file belongs to: that of its root, or where each file is a program.
fn program_of(file: &Path, root: &Path) -> PathBuf {
    let folders = || file.ancestors().skip(1).take_while(|folder| *folder != root);
    let has_root = |folder: &&Path| ["lib.rs", "main.rs"].iter().any(|name| folder.join(name).exists());
    let has_programs =
        |folder: &&Path| ["benches", "examples", "fuzz_targets", "tests"].iter().any(|name| folder.ends_with(name));
    let program = folders().filter(has_root).last().or_else(|| folders().filter(has_programs).last());
    program.unwrap_or_else(|| panic!("{} is part of no program", file.display())).to_owned()
}

/// A source without comments, tests and visibilities. `super` in an inline module is the file itself.
fn code(source: &str) -> String {
    let (mut code, mut inline) = (String::new(), None);
    for line in source.lines().filter(|line| !line.trim_start().starts_with("//")) {
        match declared(line).and_then(|module| module.strip_suffix(" {")) {
            None if !line.starts_with('}') => {}
            module => inline = module,
        }
        if inline == Some("tests") {
            continue;
        }
        let line = line.replace("pub(in crate::", "pub(").replace("pub(in super::", "pub(");
        code += &if inline.is_some() { line.replacen("super::", "self::", 1) } else { line };
        code.push('\n');
    }
    code
}

/// The module's name in a line that declares one.
fn declared(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub").map_or(line, |rest| rest.split_once(' ').map_or("", |(_, rest)| rest));
    line.strip_prefix("mod ")
}

/// The files that a file imports from.
fn imports(module: &str, files: &Files) -> BTreeSet<String> {
    let source = &files[module];
    let own: Vec<&str> = source.lines().filter_map(|line| declared(line)?.strip_suffix(';')).collect();
    let mut found = BTreeSet::new();
    for word in ["crate", "self", "super"].into_iter().chain(own) {
        for (at, _) in source.match_indices(&format!("{word}::")) {
            if source[..at].ends_with(|sign: char| sign.is_alphanumeric() || "_:".contains(sign)) {
                continue;
            }
            let mut rest = &source[at..];
            let mut path: Vec<String> = module.split('/').map(str::to_owned).collect();
            if let Some(below) = rest.strip_prefix("crate::") {
                (path, rest) = (Vec::new(), below);
            }
            rest = rest.strip_prefix("self::").unwrap_or(rest);
            while let Some(above) = rest.strip_prefix("super::") {
                path.pop();
                rest = above;
            }
            expand(&mut path, &mut rest, &mut |path| {
                let file = (1..=path.len()).rev().map(|length| path[..length].join("/"));
                found.extend(file.filter(|file| files.contains_key(file)).take(1).filter(|file| file != module));
            });
        }
    }
    found
}

/// Reports each path of the import tree that begins here, and advances past it.
fn expand(path: &mut Vec<String>, rest: &mut &str, found: &mut impl FnMut(&[String])) {
    let depth = path.len();
    loop {
        if let Some(group) = rest.strip_prefix('{') {
            *rest = group;
            while !rest.starts_with('}') && !rest.is_empty() {
                *rest = rest.trim_start_matches(|sign: char| sign.is_whitespace() || sign == ',');
                let before = rest.len();
                expand(path, rest, found);
                // Anything else, such as `as name`, is skipped.
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

/// The first circle found.
fn circle(files: &Files) -> Option<String> {
    let mut done = BTreeSet::new();
    files.keys().find_map(|file| circle_from(files, &mut vec![file.clone()], &mut done))
}

/// The first circle found from the last file of `way`.
fn circle_from(files: &Files, way: &mut Vec<String>, done: &mut BTreeSet<String>) -> Option<String> {
    let here = way.last()?.clone();
    for next in imports(&here, files) {
        if let Some(at) = way.iter().position(|file| *file == next) {
            return Some(format!("{} -> {next}", way[at..].join(" -> ")));
        }
        if !done.contains(&next) {
            way.push(next);
            if let Some(circle) = circle_from(files, way, done) {
                return Some(circle);
            }
            way.pop();
        }
    }
    done.insert(here);
    None
}
