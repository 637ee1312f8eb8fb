//! `stdio_bus check`: validates a configuration, and whether this machine can run it. It starts nothing, and closes all
//! that it opens.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::address::{self, Address};
use crate::bus::eras::protocol::MODERN;
use crate::bus::settings::Assignment;
use crate::config::{Config, PoolConfig, UserAndGroups};
use crate::env_file::{self, KINDS};
use crate::error::StartError;
use crate::io::Io;
use crate::io::kernel::{Choice, Kernel, Refused};
use crate::small_file;

/// Settings that are valid but may not be intended. The daemon would start all the same.
pub fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = config.open_listeners();
    warnings.extend(config.mixed_listeners());
    warnings.extend(longest_line_warning(config));
    warnings.extend(token_file_warnings(config));
    warnings.extend(personal_pool_warnings(config));
    let doors: Vec<usize> = config
        .listeners
        .iter()
        .filter(|listener| listener.is_mcp())
        .flat_map(|listener| listener.offered(config.pools.len()))
        .collect();
    for (at, pool) in config.pools.iter().enumerate() {
        let warning = if doors.contains(&at) { shared_door_warning(pool) } else { assignment_warning(pool) };
        warnings.extend(warning.map(|warning| format!("pools[{at}].assignment: {warning}")));
        if let (Some(total), Some(idle)) = (pool.core.request_timeout, pool.core.idle_timeout)
            && idle >= total
        {
            warnings.push(format!(
                "pools[{at}].idle_timeout_sec: is not shorter than request_timeout_sec, which ends each request before"
            ));
        }
    }
    warnings.extend(config.pool_warnings());
    warnings.extend(config.rules_for_nobody());
    warnings
}

/// Which variables workers would get of their clients, a line for each pool. It says no value.
pub fn personal_variables(config: &Config) -> Vec<String> {
    /// More files are not listed.
    const MOST: usize = 20;
    let says = |pool: &PoolConfig| {
        let from = pool.env_from.as_ref()?;
        let mut said = format!("pool {:?}: each client's own worker gets {}", pool.core.id, from.says());
        let mut files = from.files.as_deref().map(env_file::survey).unwrap_or_default().files;
        files.retain(|file| file.names.is_ok());
        for file in files.iter().take(MOST) {
            let names = file.names.as_ref().map(|names| names.join(", ")).unwrap_or_default();
            said += &format!("\n  {}: {}", file.path, if names.is_empty() { "nothing" } else { &names });
        }
        if files.len() > MOST {
            said += &format!("\n  and {} more files", files.len() - MOST);
        }
        Some(said)
    };
    config.pools.iter().filter_map(says).collect()
}

/// Files and listeners that leave clients without what their workers need.
fn personal_pool_warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    for (at, pool) in config.pools.iter().enumerate() {
        let Some(from) = &pool.env_from else { continue };
        if let Some(folder) = &from.files {
            warnings.extend(
                variable_file_warnings(folder, pool)
                    .into_iter()
                    .map(|warning| format!("pools[{at}].env_from.files: {warning}")),
            );
        }
        for listener in config.listeners.iter().filter(|one| one.offered(config.pools.len()).contains(&at)) {
            let address = listener.address();
            if !from.headers.is_empty() && listener.web.is_none() {
                warnings.push(format!(
                    "{address}: its clients send no headers, so none gets a worker of pool {:?} (env_from.headers)",
                    pool.core.id
                ));
            }
            let names = listener.entry.proxy.is_some()
                || listener
                    .web
                    .as_ref()
                    .is_some_and(|web| web.access.tokens.is_some() || web.access.identity.is_some());
            if from.files.is_some() && !names {
                warnings.push(format!(
                    "{address}: nobody names its clients, so none gets a worker of pool {:?} (env_from.files); set tokens_file, \
                     identity or proxy",
                    pool.core.id
                ));
            }
        }
    }
    warnings
}

/// What is wrong with a folder of clients' variables, and who else can read or write them.
fn variable_file_warnings(folder: &Path, pool: &PoolConfig) -> Vec<String> {
    if !folder.is_dir() {
        return vec![format!("{} is no folder: no client gets a worker", folder.display())];
    }
    let mut warnings = Vec::new();
    let env_file::Survey { files, faults } = env_file::survey(folder);
    let worker = pool.rights.identity.as_ref();
    if worker.is_none() {
        warnings.push(format!(
            "workers have the daemon's user, so one client's worker can read the variables of all others in {}: give the pool a \
             user of its own that cannot",
            folder.display()
        ));
    }
    let kinds = KINDS.map(|(_, kind)| folder.join(kind));
    for path in std::iter::once(folder).chain(kinds.iter().map(|kind| &**kind)) {
        warnings.extend(writers_warning(path));
    }
    warnings.extend(faults.into_iter().map(|(path, why)| format!("{} {why}", folder.join(path).display())));
    for file in files {
        let path = folder.join(&file.path);
        let shown = path.display();
        if let Err(why) = file.names {
            warnings.push(format!("{shown} {why}"));
        } else if small_file::is_open_to_all(&path) {
            warnings.push(format!("every user of this machine can read {shown}; chmod o= {shown}"));
        } else if worker.is_some_and(|worker| is_readable(&path, worker)) {
            warnings.push(format!(
                "workers of the pool, who are {}, can read {shown}",
                worker.map_or_else(String::new, ToString::to_string)
            ));
        }
        warnings.extend(writers_warning(&path));
    }
    warnings
}

/// Who can write a file of variables decides what a worker runs.
fn writers_warning(path: &Path) -> Option<String> {
    let shown = path.display();
    small_file::is_writable_to_others(path)
        .then(|| format!("others than its owner can write {shown}, and so decide what workers run; chmod go-w {shown}"))
}

/// Whether a user can read a file, by its mode.
fn is_readable(path: &Path, who: &UserAndGroups) -> bool {
    path.metadata().is_ok_and(|file| {
        let is_in_group = who.group == file.gid() || who.groups.contains(&file.gid());
        let bit = if who.user == file.uid() {
            0o400
        } else if is_in_group {
            0o040
        } else {
            0o004
        };
        who.user == 0 || file.mode() & bit != 0
    })
}

/// Any reader of the file can authenticate as its bearers.
fn token_file_warnings(config: &Config) -> Vec<String> {
    let of_listeners = config.listeners.iter().enumerate().filter_map(|(at, listener)| {
        let path = listener.web.as_ref()?.tokens_file.as_deref()?;
        Some((format!("listeners[{at}].tokens_file"), path))
    });
    let of_admin = config.admin.as_ref().and_then(|admin| admin.token_file.as_deref());
    let of_admin = of_admin.map(|path| ("admin.token_file".to_owned(), path));
    let files = of_listeners.chain(of_admin);
    let open = files.filter(|(_, path)| small_file::is_open_to_all(path));
    let warning = |(key, path): (String, &Path)| {
        let path = path.display();
        format!("{key}: every user of this machine can read the tokens in {path}; chmod o= {path}")
    };
    open.map(warning).collect()
}

/// A growing line is copied into a block of twice the size, and may be copied once more.
fn longest_line_warning(config: &Config) -> Option<String> {
    let (line, memory) = (config.limits.max_input_buffer, config.limits.max_memory);
    (line > memory / 4).then(|| {
        format!(
            "limits.max_input_buffer: a line of {line} bytes may need four times as much while it is read, and \
             limits.max_memory is {memory}: a client that sends one may be closed (memory_limit)"
        )
    })
}

/// MCP servers serve one client: most of their notifications name no session.
fn assignment_warning(pool: &PoolConfig) -> Option<String> {
    let is_mcp = |text: &String| text.to_ascii_lowercase().contains("mcp");
    let looks_like_mcp = is_mcp(&pool.command) || pool.args.iter().any(is_mcp);
    (looks_like_mcp && pool.core.assignment != Assignment::Dedicated).then(|| {
        format!(
            "pool \"{}\" looks like an MCP server: with \"assignment\": \"dedicated\" its notifications and requests reach \
             their clients, too",
            pool.core.id
        )
    })
}

/// What MCP sessions of the older era lose by sharing a process.
fn shared_door_warning(pool: &PoolConfig) -> Option<String> {
    (pool.core.assignment != Assignment::Dedicated).then(|| {
        format!(
            "sessions over HTTP share the processes of pool \"{}\": a server of a revision before {MODERN} loses sampling, \
             elicitation and resource updates there; \"dedicated\" gives each session a process of its own",
            pool.core.id
        )
    })
}

/// Checks that this machine has the addresses that the configuration listens on, for clients and operators, and that they
/// do not overlap.
///
/// # Errors
/// As at start ([`StartError::Bind`], [`StartError::Resolve`], [`StartError::NotASocket`]); an address that another
/// program has is no error.
pub fn addresses(config: &Config) -> Result<(), StartError> {
    let clients = config.listeners.iter().map(|listener| &listener.listen);
    let mut taken: Vec<SocketAddr> = Vec::new();
    clients.chain(config.admin.as_ref().map(|admin| &admin.listen)).try_for_each(|listen| {
        if let Some((host, port)) = listen.host_and_port() {
            let own = has_address(host, port)?;
            let is_taken =
                |own: &SocketAddr| taken.iter().any(|one| address::covers(*one, *own) || address::covers(*own, *one));
            if port != 0 && own.iter().any(is_taken) {
                let (address, source) = (Address::tcp(host, port), io::Error::from_raw_os_error(libc::EADDRINUSE));
                return Err(StartError::Bind { address, source });
            }
            taken.extend(own);
        }
        listen.path().map_or(Ok(()), has_directory)
    })
}

/// Those of the addresses of a name that this machine has, at least one.
fn has_address(host: &str, port: u16) -> Result<Vec<SocketAddr>, StartError> {
    let address = || Address::tcp(host, port);
    let found = (host, 0).to_socket_addrs().map_err(|source| StartError::Resolve { address: address(), source })?;
    let (mut here, mut missing) = (Vec::new(), None);
    for one in found.flat_map(|one| std::iter::once(one).chain(address::without_ipv6(one))) {
        match TcpListener::bind(one) {
            Ok(_) => here.push(SocketAddr::new(one.ip(), port)),
            Err(source) => missing = Some(source),
        }
    }
    match missing {
        Some(source) if here.is_empty() => Err(StartError::Bind { address: address(), source }),
        _ => Ok(here),
    }
}

fn has_directory(path: &Path) -> Result<(), StartError> {
    if address::is_abstract(path) {
        return Ok(());
    }
    if path.symlink_metadata().is_ok_and(|file| !file.file_type().is_socket()) {
        return Err(StartError::NotASocket { path: path.to_owned() });
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    accessat(CWD, parent, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
        .map_err(|error| StartError::Bind { address: Address::of_path(path), source: error.into() })
}

/// Checks whether io_uring is usable here, and returns what the daemon would use.
///
/// # Errors
/// As at start, if epoll is unusable as well.
pub fn io_uring(config: &Config) -> Result<String, StartError> {
    Ok(match Kernel::open(Choice::Auto, config.max_workers())? {
        Kernel::Ring(ring) => {
            let (description, unregistered) = ring.describe();
            let note =
                unregistered.map_or_else(String::new, |error| format!("; buffers cannot be registered ({error})"));
            format!("io_uring works: {description}{note}")
        }
        Kernel::Epoll(_, Some(Refused { why, remedy })) => {
            format!("{why}; epoll is used instead\nto get io_uring: {remedy}")
        }
        Kernel::Epoll(_, None) => "epoll is used".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(args: &[&str], listeners: serde_json::Value) -> Config {
        let pools = json!([{ "id": "a", "command": "sh", "args": args, "instances": 1, "cwd": "/" }]);
        let text = json!({ "pools": pools, "listeners": listeners }).to_string();
        Config::from_bytes(text.as_bytes(), "a test").expect("it is valid")
    }

    #[test]
    fn an_mcp_server_that_several_clients_would_share_is_warned_of() {
        let warnings = |args: &[&str], assignment: &str| {
            let pool = json!({ "id": "a", "command": "sh", "args": args, "instances": 1, "assignment": assignment });
            let text = json!({ "pools": [pool] }).to_string();
            warnings(&Config::from_bytes(text.as_bytes(), "a test").expect("it is valid"))
        };
        let warning = "pools[0].assignment: pool \"a\" looks like an MCP server: with \"assignment\": \"dedicated\" its \
                     notifications and requests reach their clients, too";
        for assignment in ["round_robin", "client"] {
            assert_eq!(warnings(&["-c", "npx some-MCP-server"], assignment), [warning]);
        }
        assert_eq!(warnings(&["-c", "npx some-mcp-server"], "dedicated"), Vec::<String>::new());
        assert_eq!(warnings(&["-c", "npx an-agent"], "client"), Vec::<String>::new());
    }

    #[test]
    fn what_sessions_lose_by_sharing_a_process_is_reported_for_an_mcp_listener() {
        let warnings = |listener: serde_json::Value, assignment: &str| {
            let pool = json!({ "id": "a", "command": "sh", "args": ["mcp"], "instances": 1, "assignment": assignment });
            let text = json!({ "pools": [pool], "listeners": [listener] }).to_string();
            warnings(&Config::from_bytes(text.as_bytes(), "a test").expect("it is valid"))
        };
        let door = json!({ "http": "127.0.0.1:1" });
        for assignment in ["round_robin", "client"] {
            let [warning] = &warnings(door.clone(), assignment)[..] else { panic!("one warning") };
            let begin = "pools[0].assignment: sessions over HTTP share the processes of pool \"a\": ";
            assert!(
                warning.starts_with(begin) && warning.contains("sampling, elicitation and resource updates"),
                "{warning}"
            );
        }
        assert_eq!(warnings(door, "dedicated"), Vec::<String>::new());
    }

    #[test]
    fn a_line_that_may_be_too_long_for_the_memory_is_warned_of() {
        let warnings = |bytes: u64| {
            let limits = json!({ "max_input_buffer": bytes, "max_memory": 64 << 20 });
            let text =
                json!({ "pools": [{ "id": "a", "command": "sh", "instances": 1 }], "limits": limits }).to_string();
            warnings(&Config::from_bytes(text.as_bytes(), "a test").expect("it is valid"))
        };
        assert_eq!(warnings(16 << 20), Vec::<String>::new());
        let warning = "limits.max_input_buffer: a line of 16777217 bytes may need four times as much while it is read, and \
                     limits.max_memory is 67108864: a client that sends one may be closed (memory_limit)";
        assert_eq!(warnings((16 << 20) + 1), [warning]);
    }

    #[test]
    fn a_limit_of_silence_that_never_holds_is_warned_of() {
        let warnings = |idle: u64| {
            let limits = json!({ "request_timeout_sec": 60, "idle_timeout_sec": idle });
            let mut pool = json!({ "id": "a", "command": "sh", "instances": 1 });
            pool.as_object_mut().expect("an object").extend(limits.as_object().expect("an object").clone());
            let text = json!({ "pools": [pool] }).to_string();
            warnings(&Config::from_bytes(text.as_bytes(), "a test").expect("it is valid"))
        };
        assert_eq!(warnings(59), Vec::<String>::new());
        let [warning] = &warnings(60)[..] else { panic!("one warning") };
        assert!(warning.starts_with("pools[0].idle_timeout_sec: is not shorter"), "{warning}");
    }

    #[test]
    fn a_world_readable_token_file_is_warned_of() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a directory");
        let [clients, admin] = ["clients", "admin"].map(|name| directory.path().join(name));
        let warnings = |mode: u32| {
            for (path, text) in [(&clients, "alice:0123456789abcdef"), (&admin, "0123456789abcdef")] {
                std::fs::write(path, text).expect("a file");
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
            }
            let text = json!({
                "pools": [{ "id": "a", "command": "sh", "instances": 1 }],
                "listeners": [{ "ws": "127.0.0.1:0", "tokens_file": clients }],
                "admin": { "listen": "127.0.0.1:1", "token_file": admin },
            });
            warnings(&Config::from_bytes(text.to_string().as_bytes(), "a test").expect("it is valid"))
        };
        assert_eq!(warnings(0o640), Vec::<String>::new());
        let warning = |key: &str, path: &Path| {
            let path = path.display();
            format!("{key}: every user of this machine can read the tokens in {path}; chmod o= {path}")
        };
        let both = [warning("listeners[0].tokens_file", &clients), warning("admin.token_file", &admin)];
        assert_eq!(warnings(0o644), both);
    }

    #[test]
    fn variables_of_clients_are_named_without_their_values_and_what_leaves_clients_without_them_is_warned_of() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str, mode: u32| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(&path, text).expect("a file");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
        };
        write("token/alice.env", "A=s3cret\nB=s3cret\n", 0o600);
        write("user/bob.env", "A=s3cret\n", 0o644);
        write("user/carol.env", "export A=s3cret\n", 0o600);
        write("user/.hidden.env", "A=s3cret\n", 0o600);
        let config = |files: &Path, listener: serde_json::Value| {
            let from = json!({ "files": files, "headers": { "X-Key": "KEY" } });
            let pool =
                json!({ "id": "a", "command": "sh", "args": ["-c", "x"], "assignment": "dedicated", "env_from": from });
            let text = json!({ "pools": [pool], "listeners": [listener] }).to_string();
            Config::from_bytes(text.as_bytes(), "a test").expect("it is valid")
        };
        let named =
            json!({ "http": "127.0.0.1:1", "identity": { "header": "X-User", "trusted_proxies": ["127.0.0.1"] } });
        let good = config(folder.path(), named.clone());
        let shown = folder.path().display();
        let wanted = format!(
            "pool \"a\": each client's own worker gets KEY from the header X-Key, what is in {shown}/{{token,cn,user}}/NAME.env\n  \
             token/alice.env: A, B\n  user/bob.env: A"
        );
        assert_eq!(personal_variables(&good), [wanted]);
        let warnings_of = |config: &Config| personal_pool_warnings(config);
        let [user, hidden, bob, carol] = &warnings_of(&good)[..] else { panic!("{:?}", warnings_of(&good)) };
        assert!(user.contains("workers have the daemon's user"), "{user}");
        assert!(hidden.contains("user/.hidden.env is nobody's"), "{hidden}");
        assert!(bob.contains("every user of this machine can read") && bob.contains("chmod o= "), "{bob}");
        assert!(carol.contains("user/carol.env is malformed in line 1") && !carol.contains("s3"), "{carol}");
        let nowhere = warnings_of(&config(&folder.path().join("none"), named));
        assert!(nowhere.len() == 1 && nowhere[0].contains("is no folder"), "{nowhere:?}");
        let nobody = warnings_of(&config(folder.path(), json!({ "tcp": "127.0.0.1:1" })));
        let has = |part: &str| nobody.iter().any(|warning| warning.contains(part));
        assert!(has("send no headers") && has("nobody names its clients"), "{nobody:?}");
    }

    #[test]
    fn variables_of_clients_that_others_can_write_or_their_workers_can_read_are_warned_of() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let path = |path: &str| folder.path().join(path);
        let set = |at: &str, mode: u32| {
            std::fs::set_permissions(path(at), std::fs::Permissions::from_mode(mode)).expect("it is ours");
        };
        std::fs::create_dir(path("token")).expect("a folder");
        std::fs::write(path("token/alice.env"), "A=s3cret\n").expect("a file");
        let warnings = |user: &str| {
            let from = json!({ "files": folder.path() });
            let pool = json!({ "id": "a", "command": "sh", "assignment": "dedicated", "env_from": from, "user": user });
            let text = json!({ "pools": [pool] }).to_string();
            variable_file_warnings(
                folder.path(),
                &Config::from_bytes(text.as_bytes(), "a test").expect("it is valid").pools[0],
            )
        };
        ["", "token"].iter().for_each(|at| set(at, 0o711));
        set("token/alice.env", 0o600);
        let [reads] = &warnings("root")[..] else { panic!("{:?}", warnings("root")) };
        assert!(reads.contains("who are user root, can read") && reads.contains("alice.env"), "{reads}");
        for (at, mode) in [("", 0o777), ("token", 0o771), ("token/alice.env", 0o620)] {
            set(at, mode);
            let warnings = warnings("root");
            let written = warnings.iter().filter(|warning| warning.contains("others than its owner can write"));
            let written: Vec<&String> =
                written.filter(|warning| warning.ends_with(path(at).to_string_lossy().trim_end_matches('/'))).collect();
            assert_eq!(written.len(), 1, "{at}: {warnings:?}");
            set(at, mode & !0o022);
        }
    }

    #[test]
    fn who_can_read_a_file_is_decided_by_its_mode() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().expect("a file");
        let status = file.path().metadata().expect("it is there");
        let of = |user: u32, groups: &[u32]| UserAndGroups {
            user,
            group: 54_321,
            groups: groups.to_vec(),
            name: None,
            home: "/".into(),
        };
        let (owner, member, other) = (of(status.uid(), &[]), of(12_345, &[status.gid()]), of(12_345, &[]));
        for (mode, wanted) in
            [(0o600, [true, false, false]), (0o640, [true, true, false]), (0o604, [true, false, true])]
        {
            std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).expect("it is ours");
            let can = [&owner, &member, &other].map(|who| is_readable(file.path(), who));
            assert_eq!(can, wanted, "{mode:o}");
        }
    }

    #[test]
    fn addresses_that_this_machine_does_not_have_are_errors() {
        let check = |listener| addresses(&config(&[], json!([listener])));
        assert!(check(json!({ "tcp": "127.0.0.1:9" })).is_ok());
        assert!(check(json!({ "unix": "@name" })).is_ok());
        for (listener, code) in [(json!({ "tcp": "192.0.2.1:9" }), 73), (json!({ "unix": "/no/dir/x" }), 73)] {
            assert_eq!(check(listener).map_err(|error| error.exit_code()), Err(code));
        }
    }

    #[test]
    fn what_a_start_would_find_taken_or_missing_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        std::fs::write(&file, "").expect("a file");
        let code = |listeners: serde_json::Value, admin: &str| {
            let pools = json!([{ "id": "a", "command": "sh", "instances": 1, "cwd": "/" }]);
            let text = json!({ "pools": pools, "listeners": listeners, "admin": { "listen": admin } }).to_string();
            let config = Config::from_bytes(text.as_bytes(), "a test").expect("it is valid");
            addresses(&config).map_err(|error| error.exit_code())
        };
        let tcp = |all: [&str; 2]| json!(all.map(|one| json!({ "tcp": one })));
        for apart in [["127.0.0.1:9", "127.0.0.2:9"], ["127.0.0.1:9", "0.0.0.0:8"], ["127.0.0.1:0", "0.0.0.0:0"]] {
            assert_eq!(code(tcp(apart), "@name"), Ok(()), "{apart:?}");
        }
        for over in [["127.0.0.1:9", "0.0.0.0:9"], ["0.0.0.0:9", "127.0.0.1:9"], ["localhost:9", "127.0.0.1:9"]] {
            assert_eq!(code(tcp(over), "@name"), Err(73), "{over:?}");
        }
        let one = || json!([{ "tcp": "127.0.0.1:9" }]);
        for admin in ["0.0.0.0:9", "192.0.2.1:8", "/no/dir/x", file.to_str().expect("it is text")] {
            assert_eq!(code(one(), admin), Err(73), "{admin}");
        }
        assert_eq!(code(json!([{ "unix": file }]), "@name"), Err(73), "it is no socket");
    }
}
