//! Checks `tests/claims.toml`, the pages derived from it, and `ARCHITECTURE.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The file of a proof like `core/ids::NAME`.
fn file_of(proof: &str) -> PathBuf {
    let (file, directory) = match proof.split_once('/') {
        Some(("core", file)) => (file, "crates/stdio-bus-core/src/tests"),
        Some(("e2e", file)) => (file, "tests/e2e"),
        Some(("scan", file)) => (file, "crates/stdio-bus-sim/src/scanner"),
        Some(("sim", file)) => (file, "crates/stdio-bus-sim/src"),
        Some(("unit", file)) => match file.split_once('/') {
            Some(("bus", file)) => (file, "crates/stdio-bus-core/src"),
            Some(("proto", file)) => (file, "crates/stdio-bus-proto/src"),
            Some(("scan", file)) => (file, "crates/ndjson-scan/src"),
            _ => (file, "src"),
        },
        _ => (proof, "tests"),
    };
    root().join(directory).join(format!("{file}.rs"))
}

fn document(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// The claims of one kind in `tests/claims.toml`.
fn claims(kind: &str) -> Vec<toml::Table> {
    let claims = all_claims().remove(kind).unwrap();
    claims.as_array().unwrap().iter().map(|claim| claim.as_table().unwrap().clone()).collect()
}

fn all_claims() -> toml::Table {
    fs::read_to_string(root().join("tests/claims.toml")).unwrap().parse().unwrap()
}

/// The text of a claim's key; empty if it is missing.
fn text<'a>(claim: &'a toml::Table, key: &str) -> &'a str {
    claim.get(key).map_or("", |value| value.as_str().unwrap())
}

fn list<'a>(claim: &'a toml::Table, key: &str) -> Vec<&'a str> {
    let values = claim.get(key).map_or(&[][..], |value| value.as_array().unwrap());
    values.iter().map(|value| value.as_str().unwrap()).collect()
}

/// Without line breaks, to compare texts however they are wrapped.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn every_test_that_a_claim_names_exists() {
    let all = all_claims();
    let simulators = all["simulators"].as_table().unwrap();
    let claims = ["spec", "fault", "promise"].iter().flat_map(|kind| claims(kind)).collect::<Vec<_>>();
    let named = claims.iter().flat_map(|claim| list(claim, "tests"));
    let named: Vec<_> = named.chain(simulators.values().map(|test| test.as_str().unwrap())).collect();
    for proof in &named {
        let (file, name) = proof.rsplit_once("::").unwrap_or_else(|| panic!("{proof} names no test"));
        let path = file_of(file);
        let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let before = source.split_once(&format!("fn {name}(")).map(|(before, _)| before.trim_end());
        // Or a step of scripts/test runs it.
        let before = before.map(|before| before.strip_suffix("\n#[ignore = \"scripts/test slow\"]").unwrap_or(before));
        assert!(before.is_some_and(|before| before.ends_with("#[test]")), "{} has no test {name}", path.display());
    }
    assert!(named.len() > 400, "only {} tests were found", named.len());
    for claim in &claims {
        let unknown = list(claim, "simulators").into_iter().find(|name| !simulators.contains_key(*name));
        assert_eq!(unknown, None, "{claim:?}");
    }
}

#[test]
fn every_part_of_the_specification_and_every_fault_is_claimed_once_with_a_test() {
    // The specification has so many requirements; of faults and promises there may be more.
    for (kind, subject, count) in
        [("spec", "section", 113..114), ("fault", "fault", 102..999), ("promise", "id", 14..99)]
    {
        let claims = claims(kind);
        assert!(count.contains(&claims.len()), "{} claims of the kind {kind}", claims.len());
        let mut seen = BTreeSet::new();
        for claim in &claims {
            let keys = [subject, "claim", "choice", "obvious", "simulators", "tests"];
            let unknown = claim.keys().find(|key| !keys.contains(&key.as_str()));
            assert_eq!(unknown, None, "{claim:?}");
            assert!(!list(claim, "tests").is_empty(), "no test: {claim:?}");
            assert!(!text(claim, subject).is_empty() && !text(claim, "claim").is_empty(), "{claim:?}");
            let cells = [subject, "claim", "choice"].map(|key| text(claim, key));
            assert!(cells.iter().all(|cell| !cell.contains('|')), "a table has no room for this: {claim:?}");
            assert!(seen.insert((text(claim, subject), text(claim, "claim"))), "twice: {claim:?}");
        }
    }
}

/// A table of `docs/conformance.md`: the claims that a reader might doubt, and of the specification those with a
/// choice.
fn table(kind: &str, subject: &str) -> String {
    let head = if kind == "spec" { "| § | what holds |" } else { "| fault | what the daemon does |" };
    let mut table = format!("{head}\n|---|---|\n");
    for claim in claims(kind) {
        let choice = text(&claim, "choice");
        if !claim.contains_key("obvious") && (kind == "fault" || !choice.is_empty()) {
            let says = flat(&format!("{} {choice}", text(&claim, "claim")));
            table.push_str(&format!("| {} | {says} |\n", text(&claim, subject)));
        }
    }
    table
}

#[test]
fn the_tables_of_the_conformance_page_match_the_claims() {
    const WRITE: &str = "STDIO_BUS_WRITE_DOCS";
    let there = document("conformance.md");
    let mut page = there.clone();
    for (kind, subject) in [("spec", "section"), ("fault", "fault")] {
        let begin = format!("<!-- claims: {kind} -->\n");
        let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("the page has no {begin}"));
        let (_, after) = rest.split_once("<!-- end -->\n").expect("a table has an end");
        page = format!("{before}{begin}\n{}\n<!-- end -->\n{after}", table(kind, subject));
    }
    if std::env::var_os(WRITE).is_some() {
        return fs::write(root().join("docs/conformance.md"), page).unwrap();
    }
    let differs = there.lines().zip(page.lines()).find(|(one, other)| one != other);
    assert!(there == page, "{WRITE}=1 cargo test --test conformance writes docs/conformance.md: {differs:?}");
}

#[test]
fn each_promise_of_the_security_page_is_a_claim_of_the_same_id() {
    let page = document("security.md");
    let ids = page.split(|sign: char| !is_word(sign));
    let ids = ids.filter(|word| word.strip_prefix('P').is_some_and(|number| number.parse::<u8>().is_ok()));
    let claimed: Vec<_> = claims("promise").iter().map(|promise| text(promise, "id").to_owned()).collect();
    assert_eq!(ids.collect::<BTreeSet<_>>(), claimed.iter().map(String::as_str).collect());
    assert_eq!(claimed.iter().collect::<BTreeSet<_>>().len(), claimed.len(), "an id stands for one claim");
}

/// The files in these folders and their subfolders.
fn files(folders: &[&str]) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), folders.iter().map(|folder| root().join(folder)).collect::<Vec<_>>());
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            found.push(path);
        }
    }
    found
}

/// Calls `look` with every source file of the daemon.
fn look_at_the_daemon(look: impl Fn(&Path, &str)) {
    for path in files(&["crates/ndjson-scan/src", "crates/stdio-bus-core/src", "src/io", "src/shell"]) {
        look(&path, &code_of(&path));
    }
}

#[test]
fn threads_are_started_by_two_files_alone() {
    look_at_the_daemon(|path, source| {
        // One has reads and writes that would block the loop beside epoll; the other waits for execs, reads files of
        // tokens and configurations, and measures the memory of workers.
        let may = ["io/blocking_pool.rs", "shell/loop_handle.rs"];
        let may = may.iter().any(|file| path.ends_with(file));
        for start in ["thread::spawn", "thread::Builder", "thread::scope"] {
            assert!(may || !source.contains(start), "{} starts a thread", path.display());
        }
    });
}

#[test]
fn the_wall_clock_is_for_the_log_and_for_monitors_alone() {
    look_at_the_daemon(|path, source| {
        let may = path.ends_with("shell/log_line.rs") || path.ends_with("shell/admin/wall_clock.rs");
        for clock in ["SystemTime", "CLOCK_REALTIME", "ClockId::Realtime", "gettimeofday"] {
            assert!(may || !source.contains(clock), "{} looks at the wall clock", path.display());
        }
    });
}

fn architecture() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap()
}

/// Quoted code outside code blocks.
fn quoted(text: &str) -> Vec<&str> {
    text.split("```").step_by(2).flat_map(|text| text.split('`').skip(1).step_by(2)).collect()
}

/// The table whose first row begins with `head`: the first and last cells of its rows.
fn named<'a>(document: &'a str, head: &str) -> Vec<(&'a str, BTreeSet<&'a str>)> {
    let begin = document.find(&format!("\n| {head} |")).unwrap_or_else(|| panic!("no table of {head}"));
    let rows = document[begin + 1..].lines().take_while(|line| line.starts_with('|')).skip(2);
    let cells = rows.map(|row| row.trim_matches('|').split('|').collect::<Vec<_>>());
    cells.map(|row| (quoted(row[0])[0], quoted(row[row.len() - 1]).into_iter().collect())).collect()
}

fn folders_in(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap());
    entries.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name().into_string().unwrap()).collect()
}

fn is_word(sign: char) -> bool {
    sign.is_alphanumeric() || sign == '_'
}

/// A source file without comments and tests; empty if it contains only tests.
fn code_of(path: &Path) -> String {
    let is_test =
        |part: &std::ffi::OsStr| ["tests", "tests.rs", "simulation", "simulation.rs"].iter().any(|test| part == *test);
    let name = path.strip_prefix(root()).unwrap();
    if name.extension().is_none_or(|extension| extension != "rs") || name.iter().any(is_test) {
        return String::new();
    }
    let source = fs::read_to_string(path).unwrap();
    let lines = source.split("#[cfg(test)]\nmod tests {").next().unwrap().lines();
    lines.filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")).collect()
}

/// The modules that a file imports through `crate::NAME` or `crate::{NAME, NAME}`, or `bus` and `scan` by their crates.
fn imports(code: &str) -> BTreeSet<&str> {
    let paths = code.split("crate::").skip(1);
    let names = paths.flat_map(|path| match path.strip_prefix('{') {
        Some(group) => group.split('}').next().unwrap().split(',').map(str::trim).collect(),
        None => vec![path],
    });
    let crates = [("stdio_bus_core::", "bus"), ("ndjson_scan::", "scan")];
    let crates = crates.into_iter().filter(|(path, _)| code.contains(path)).map(|(_, name)| name);
    names.map(|name| name.split(|sign| !is_word(sign)).next().unwrap()).chain(crates).collect()
}

/// The modules in a folder of sources by name: files and folders, without the crate's root.
fn modules_in(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).filter(|name| name != "lib").collect()
}

#[test]
fn every_crate_and_every_folder_of_src_is_in_the_architecture_with_its_imports() {
    let text = architecture();
    let crates = named(&text, "crate");
    assert_eq!(crates.iter().map(|(name, _)| (*name).to_owned()).collect::<BTreeSet<_>>(), folders_in("crates"));
    for (name, told) in &crates {
        let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
        // One of benches alone has only those.
        let sections = ["\n[dependencies]\n", "\n[dev-dependencies]\n"];
        let listed = sections.iter().find_map(|section| manifest.split(section).nth(1)).expect("it imports something");
        let listed = listed.split("\n[").next().unwrap();
        let listed = listed.lines().filter_map(|line| Some(line.split_once(" =")?.0));
        let ours = listed.filter(|name| *name == "stdio-bus" || crates.iter().any(|(known, _)| known == name));
        assert_eq!(&ours.collect::<BTreeSet<_>>(), told, "{name}");
    }
    let protocols = modules_in("crates/stdio-bus-proto/src");
    for (head, of, there) in [
        ("folder of `src`", "src", folders_in("src")),
        ("module of `stdio-bus-proto`", "crates/stdio-bus-proto/src", protocols.clone()),
    ] {
        let rows = named(&text, head);
        assert_eq!(rows.iter().map(|(name, _)| (*name).to_owned()).collect::<BTreeSet<_>>(), there, "{of}");
        for (name, told) in &rows {
            let folder = format!("{of}/{name}");
            let path = if root().join(&folder).is_dir() { folder } else { folder + ".rs" };
            let code: String = files(&[&path]).iter().map(|path| code_of(path)).collect();
            let known = |import: &&str| {
                let is_row = import != name && there.contains(*import);
                is_row || ["bus", "scan"].contains(import) || protocols.contains(*import) && *import != "testing"
            };
            assert_eq!(&imports(&code).into_iter().filter(known).collect::<BTreeSet<_>>(), told, "{name} of {of}");
        }
    }
}

#[test]
fn every_name_that_the_architecture_gives_exists() {
    let text = architecture();
    let sources = files(&["src", "crates"]);
    let sources: Vec<String> = sources.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
    let documents = document("configuration.md") + &document("routing.md");
    let is_defined_in = |source: &str, name: &str| {
        source.lines().any(|line| {
            let Some((before, behind)) = line.split_once(name) else { return false };
            let is_item =
                ["fn ", "struct ", "enum ", "trait ", "type ", "const "].iter().any(|item| before.ends_with(item));
            let is_variant = before.trim().is_empty() && behind.starts_with([',', '(', ' ']);
            (is_item || is_variant) && !behind.starts_with(is_word)
        })
    };
    let mut names = 0;
    for name in quoted(&text) {
        let exists = if let Some((of, member)) = name.split_once("::") {
            match of {
                "clippy" => fs::read_to_string(root().join("Cargo.toml")).unwrap().contains(member),
                _ => sources.iter().any(|source| source.contains(of) && is_defined_in(source, member)),
            }
        } else if let Some(function) = name.strip_suffix("()") {
            sources.iter().any(|source| is_defined_in(source, function))
        } else if name.contains('/') || name.ends_with(".rs") {
            let mut places = [root(), root().join("crates/stdio-bus-core/src")].into_iter();
            name == "lib.rs" || places.any(|place| place.join(name).exists())
        } else if name.starts_with(|sign: char| sign.is_ascii_uppercase()) {
            sources.iter().any(|source| is_defined_in(source, name))
        } else if name.chars().all(is_word) {
            let is_place =
                ["", "src", "crates", "crates/stdio-bus-core/src"].iter().any(|at| root().join(at).join(name).exists())
                    || modules_in("crates/stdio-bus-proto/src").contains(name);
            is_place || ["bus", "scan", "unsafe"].contains(&name) || documents.contains(name)
        } else {
            continue;
        };
        assert!(exists, "ARCHITECTURE.md speaks of {name}, which is not there");
        names += 1;
    }
    assert!(names > 100, "only {names} names were found");
}

#[test]
fn the_architecture_says_where_unsafe_is() {
    let text = architecture();
    let section = text.split("\n## Where `unsafe` lives\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let places: Vec<PathBuf> =
        quoted(section).into_iter().filter(|name| name.contains('/')).map(|name| root().join(name)).collect();
    let mut used = BTreeSet::new();
    for path in files(&["src", "crates"]) {
        let code = code_of(&path);
        if ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|keyword| code.contains(keyword)) {
            let place = places.iter().find(|place| path.starts_with(place));
            used.insert(
                place.unwrap_or_else(|| panic!("ARCHITECTURE.md does not say that {} has unsafe", path.display())),
            );
        }
    }
    assert_eq!(used.len(), places.len(), "only these have unsafe: {used:?}");
}

#[test]
fn every_referenced_decision_is_in_the_architecture() {
    let text = architecture();
    let section = text.split("\n## Decisions\n").nth(1).unwrap();
    let numbers: Vec<usize> = section.lines().filter_map(|line| line.split_once(". **")?.0.parse().ok()).collect();
    assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>());
    let mut referred = 0;
    for path in files(&["src", "crates", "tests", "docs", "CONTRIBUTING.md", "ARCHITECTURE.md"]) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for (at, word) in text.match_indices("decision") {
            let behind = &text[at + word.len()..];
            let list = behind.strip_prefix('s').unwrap_or(behind).trim_start();
            let list = list.split(|sign: char| !sign.is_ascii_digit() && !", to".contains(sign)).next().unwrap();
            for number in list.split(|sign: char| !sign.is_ascii_digit()).filter_map(|number| number.parse().ok()) {
                assert!(numbers.contains(&number), "{} refers to decision {number}", path.display());
                referred += 1;
            }
        }
    }
    assert!(referred > 50, "only {referred} references were found");
}

/// The anchors of a document's headings.
fn anchors(document: &str) -> BTreeSet<String> {
    let lines = document.split("```").step_by(2).flat_map(str::lines);
    let headings =
        lines.filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim().to_lowercase());
    headings
        .map(|text| {
            text.chars().filter(|sign| is_word(*sign) || "- ".contains(*sign)).collect::<String>().replace(' ', "-")
        })
        .collect()
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let pages = fs::read_dir(root()).unwrap().chain(fs::read_dir(root().join("docs")).unwrap());
    let pages =
        pages.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|kind| kind == "md"));
    let mut links = 0;
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(path.exists(), "{}: {target}", page.display());
            let leads = anchor.is_empty() || anchors(&fs::read_to_string(&path).unwrap()).contains(anchor);
            assert!(leads, "{}: {target}", page.display());
            links += 1;
        }
    }
    assert!(links > 100, "only {links} links were found");
}

#[test]
fn the_documents_show_the_example_workers_as_they_are() {
    let (page, readme) = (document("workers.md"), fs::read_to_string(root().join("README.md")).unwrap());
    let programs = files(&["examples/workers"]);
    assert!(programs.len() >= 15, "only {} workers were found", programs.len());
    for program in programs {
        let name = program.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&program).unwrap();
        assert!(text.lines().count() <= 25, "{name} is no short example any more");
        let is_shown_in = |page: &str| page.contains(&format!("\n{text}```\n"));
        assert!(is_shown_in(&page), "docs/workers.md shows another {name}");
        if ["worker.py", "worker.js"].contains(&name) {
            assert!(is_shown_in(&readme), "README.md shows another {name}");
        }
    }
}
