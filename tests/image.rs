//! What an image is built from, config/docker/Dockerfile.dockerignore: enough for cargo, and nothing that was downloaded or
//! built. tests/image.py builds the image.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Copies what the ignore file leaves: `!PATH` at the top, `**/NAME` not at any depth, nothing else.
fn copy_what_is_left(root: &Path, to: &Path) {
    let rules = fs::read_to_string(root.join("config/docker/Dockerfile.dockerignore")).unwrap();
    let rules: Vec<&str> = rules.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert_eq!(rules[0], "*", "what is not named stays behind");
    let nowhere: Vec<&str> = rules.iter().filter_map(|rule| rule.strip_prefix("**/")).collect();
    for rule in &rules[1..] {
        match rule.strip_prefix('!') {
            Some(name) => copy(&root.join(name), &to.join(name), &nowhere),
            None => assert!(rule.starts_with("**/"), "this test does not know what {rule} means"),
        }
    }
}

fn copy(from: &Path, to: &Path, nowhere: &[&str]) {
    if nowhere.iter().any(|name| from.ends_with(name)) {
        return;
    }
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy(&entry.path(), &to.join(entry.file_name()), nowhere);
        }
    } else {
        fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    }
}

#[test]
fn what_the_ignore_file_of_the_image_leaves_is_a_workspace_with_its_lock() {
    let folder = tempfile::tempdir().unwrap();
    copy_what_is_left(Path::new(env!("CARGO_MANIFEST_DIR")), folder.path());
    // Reads all manifests and compares them with the lock. `cargo metadata` would also need the packages of other platforms.
    let told = Command::new(env!("CARGO"))
        .args(["update", "--workspace", "--locked", "--offline"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    for downloaded in ["target", "tests/clients/node_modules", "tests/mcp/node_modules", ".git"] {
        assert!(!folder.path().join(downloaded).exists(), "{downloaded} goes into the image");
    }
}
