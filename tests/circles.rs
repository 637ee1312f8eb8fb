//! Who may import whom: no files of a crate each other in a circle, but a part what it is part of. Those of the core may,
//! since its tables know each other's rows; there only files with methods of `Bus` name it. All may use a crate's root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{read_dir, read_to_string};
use std::path::Path;

use syn::{ItemMod, ItemUse, UseTree, VisRestricted, visit, visit::Visit};

struct Paths {
    /// The module that is being read, and the paths of several names in it, from the root of its crate.
    at: Vec<String>,
    found: BTreeSet<Vec<String>>,
}

impl Paths {
    fn add(&mut self, path: &[String]) {
        let mut from = if path[0] == "crate" { Vec::new() } else { self.at.clone() };
        for name in path.iter().filter(|name| *name != "crate" && *name != "self") {
            if name == "super" { drop(from.pop()) } else { from.push(name.clone()) }
        }
        self.found.extend((path.len() > 1).then_some(from));
    }
    fn add_tree(&mut self, tree: &UseTree, mut path: Vec<String>) {
        path.push(match tree {
            UseTree::Path(at) => at.ident.to_string(),
            UseTree::Name(at) => at.ident.to_string(),
            UseTree::Rename(at) => at.ident.to_string(),
            UseTree::Glob(_) => "*".to_owned(),
            UseTree::Group(group) => return group.items.iter().for_each(|tree| self.add_tree(tree, path.clone())),
        });
        if let UseTree::Path(at) = tree { self.add_tree(&at.tree, path) } else { self.add(&path) }
    }
}

impl<'a> Visit<'a> for Paths {
    fn visit_item_mod(&mut self, module: &'a ItemMod) {
        if module.ident != "tests" && module.content.is_some() {
            self.at.push(module.ident.to_string());
            visit::visit_item_mod(self, module);
            self.at.pop();
        }
    }
    fn visit_item_use(&mut self, item: &'a ItemUse) {
        self.add_tree(&item.tree, Vec::new());
    }
    fn visit_path(&mut self, path: &'a syn::Path) {
        self.add(&path.segments.iter().map(|segment| segment.ident.to_string()).collect::<Vec<_>>());
        visit::visit_path(self, path);
    }
    fn visit_vis_restricted(&mut self, _: &'a VisRestricted) {}
}
/// Adds the files of a folder by their modules, without tests and the root of the crate: their paths, and their text.
fn add_files(root: &Path, folder: &Path, files: &mut BTreeMap<String, (BTreeSet<Vec<String>>, String)>) {
    for path in read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" {
            add_files(root, &path, files);
        } else if path.extension().is_some_and(|kind| kind == "rs") && !["tests", "lib", "main"].contains(&name) {
            let (module, text) = (path.with_extension(""), read_to_string(&path).unwrap());
            let module = module.strip_prefix(root).unwrap().to_str().unwrap().trim_end_matches("/mod").to_owned();
            let mut paths = Paths { at: module.split('/').map(str::to_owned).collect(), found: BTreeSet::new() };
            paths.visit_file(&syn::parse_file(&text).unwrap());
            files.insert(module, (paths.found, text));
        }
    }
}
/// The other files that each file of a crate imports, and the files that name `Bus` without a method of it.
fn read(krate: &str) -> (BTreeMap<String, BTreeSet<String>>, Vec<String>) {
    let (root, mut files) = (Path::new(env!("CARGO_MANIFEST_DIR")).join(krate), BTreeMap::new());
    add_files(&root, &root, &mut files);
    let file = |at: &Vec<String>| (1..=at.len()).rev().map(|to| at[..to].join("/")).find(|to| files.contains_key(to));
    let is_within = |at: &str, to: &str| format!("{at}/").starts_with(&format!("{to}/"));
    let imports = |at: &String| files[at].0.iter().filter_map(file).filter(|to| !is_within(at, to)).collect();
    let names_bus = |at: &&String| files[*at].0.iter().flatten().any(|name| name == "Bus");
    let other = files.keys().filter(names_bus).filter(|at| !files[*at].1.contains("\nimpl Bus {"));
    (files.keys().map(|at| (at.clone(), imports(at))).collect(), other.cloned().collect())
}

#[test]
fn no_files_of_a_crate_import_from_one_another_in_a_circle() {
    let members = ["ndjson-scan", "stdio-bus-proto", "stdio-bus-sim", "openai-agent"];
    for krate in members.map(|name| format!("crates/{name}/src")).into_iter().chain(["src".to_owned()]) {
        let mut imports = read(&krate).0;
        while let Some(file) = imports.iter().find(|(_, to)| to.is_empty()).map(|(file, _)| file.clone()) {
            imports.remove(&file);
            imports.values_mut().for_each(|to| _ = to.remove(&file));
        }
        assert!(imports.is_empty(), "a circle in {krate} is among these files, or they need it: {imports:#?}");
    }
}

#[test]
fn the_cores_port_imports_only_what_passes_through_it() {
    assert!(read("crates/stdio-bus-core/src").0["port"].iter().eq(["index", "origin", "peer", "report"]));
}

#[test]
fn in_the_core_only_files_with_methods_of_bus_name_it() {
    assert_eq!(read("crates/stdio-bus-core/src").1, [""; 0], "take what is needed as an argument; return what follows");
}
