//! Files for other programs: BenchFlow's manifest, the ACP registry's entry, the example configurations.

use serde_json::{Value as Json, json};

fn root(path: &str) -> String {
    std::fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR")))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_benchflow_manifest_has_the_published_fields_and_no_others() {
    let manifest: toml::Table = root("config/benchflow/manifest.toml").parse().unwrap();
    let text =
        |name: &str| manifest.get(name).map(|value| value.as_str().unwrap_or_else(|| panic!("{name} is no string")));
    for name in ["contract_version", "name", "install_cmd", "launch_cmd"] {
        assert!(text(name).is_some_and(|value| !value.is_empty()), "{name} is required");
    }
    assert!(text("contract_version").unwrap().starts_with("1."));
    assert_eq!(text("protocol").unwrap_or("acp"), "acp");
    assert_eq!(text("api_protocol"), Some("openai-completions"));
    assert!(["bare", "provider/model", "registered-provider/model"].contains(&text("acp_model_format").unwrap()));
    for (name, value) in &manifest {
        let is_right = match name.as_str() {
            "contract_version" | "name" | "install_cmd" | "launch_cmd" | "description" | "protocol"
            | "api_protocol" | "acp_model_format" | "default_model" => value.is_str(),
            "install_timeout" => value.is_integer(),
            "supports_acp_set_model" => value.is_bool(),
            "skill_paths" | "home_dirs" | "requires_env" | "aliases" => {
                value.as_array().is_some_and(|list| list.iter().all(toml::Value::is_str))
            }
            "env_mapping" => value.as_table().is_some_and(|table| table.values().all(toml::Value::is_str)),
            _ => panic!("{name} is not a field of the contract"),
        };
        assert!(is_right, "{name} is of the wrong type");
    }
    let mapping = manifest["env_mapping"].as_table().unwrap();
    for name in ["BASE_URL", "API_KEY", "MODEL"] {
        assert_eq!(mapping[&format!("BENCHFLOW_PROVIDER_{name}")].as_str(), Some(&*format!("OPENAI_{name}")));
    }
}

#[test]
fn the_benchflow_manifest_installs_nothing_under_a_name_that_others_own() {
    let manifest: toml::Table = root("config/benchflow/manifest.toml").parse().unwrap();
    let command = manifest["install_cmd"].as_str().unwrap();
    // A word of its own that fetches: `cargo build` stands in the words for people.
    let fetches =
        ["install", "add", "npm", "npx", "pnpm", "yarn", "pip", "pip3", "pipx", "uv", "uvx", "curl", "wget", "git"];
    let words: Vec<&str> = command.split(|letter: char| !letter.is_alphanumeric()).collect();
    assert!(fetches.iter().all(|fetch| !words.contains(fetch)), "{command}");
    // A program of this name that is somebody else's is not taken for ours.
    let run = |version: &str| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("openai-agent");
        std::fs::write(&path, format!("#!/bin/sh\necho '{version}'\n")).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let path = format!("{}:/usr/bin:/bin", directory.path().display());
        std::process::Command::new("/bin/sh").args(["-c", command]).env("PATH", path).output().unwrap()
    };
    assert!(run(concat!("openai-agent ", env!("CARGO_PKG_VERSION"))).status.success());
    for foreign in ["1.6.0", "openai-agent 1.6.0", ""] {
        let output = run(foreign);
        assert!(!output.status.success(), "{foreign}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("/usr/local/bin"), "{foreign}");
    }
}

#[test]
fn the_registry_entry_has_what_the_registry_asks_for() {
    let agent: Json = serde_json::from_str(&root("config/registry/agent.json")).unwrap();
    let id = agent["id"].as_str().unwrap();
    assert!(id.starts_with(|first: char| first.is_ascii_lowercase()));
    assert!(id.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-'));
    for name in ["name", "version", "description"] {
        assert!(agent[name].as_str().is_some_and(|text| !text.is_empty()), "{name}");
    }
    assert_eq!(agent["version"], env!("CARGO_PKG_VERSION"));
    let distribution = agent["distribution"].as_object().unwrap();
    assert!(!distribution.is_empty());
    // The packages are called otherwise than the program, whose name others have there, and have its version.
    let npx = json!({ "package": concat!("stdio-bus-openai-agent@", env!("CARGO_PKG_VERSION")), "args": ["acp"] });
    let uvx = json!({ "package": concat!("stdio-bus-openai-agent==", env!("CARGO_PKG_VERSION")), "args": ["acp"] });
    assert_eq!((&distribution["npx"], &distribution["uvx"]), (&npx, &uvx));
    assert!(distribution.keys().all(|kind| ["npx", "uvx", "binary"].contains(&kind.as_str())));
    for (platform, build) in distribution["binary"].as_object().unwrap() {
        let (system, processor) = platform.split_once('-').unwrap();
        assert!(["darwin", "linux", "windows"].contains(&system) && ["aarch64", "x86_64"].contains(&processor));
        assert!(build["archive"].as_str().unwrap().starts_with("https://") && build["cmd"].is_string());
        let known = ["archive", "cmd", "args", "env", "sha256"];
        assert!(build.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())));
    }
}

#[test]
fn the_example_configurations_start_this_agent_with_variables_that_it_knows() {
    let known: Vec<&str> = openai_agent::config::variables().flat_map(|variable| variable.0.split(", ")).collect();
    for name in ["openai", "azure", "bedrock", "ollama", "vllm", "litellm"] {
        let config: Json = serde_json::from_str(&root(&format!("config/{name}.json"))).unwrap();
        let pools = config["pools"].as_array().unwrap();
        for pool in pools {
            assert_eq!(
                (pool["command"].as_str(), &pool["args"][0]),
                (Some("openai-agent"), &Json::from("acp")),
                "{name}"
            );
            assert!(pool["instances"].as_u64().is_some_and(|instances| instances > 0));
            let mut values: std::collections::HashMap<String, String> = std::collections::HashMap::new();
            for (key, value) in pool["env"].as_object().unwrap() {
                assert!(known.contains(&key.as_str()), "{name}: {key}");
                values.insert(key.clone(), value.as_str().unwrap().to_owned());
            }
            let read = openai_agent::config::Config::from_env(&mut |name| values.get(name).cloned());
            read.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}
